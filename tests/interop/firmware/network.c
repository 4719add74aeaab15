/* All devices measure random states and act; numbers.h says what states there are. */
#include "network.h"

#include "numbers.h"

static uint32_t drawn = 1u;

/* 16 bits of a linear congruential generator, modulo 2^32. */
static uint32_t draw(void)
{
    drawn = drawn * 1664525u + 1013904223u;
    return drawn >> 16;
}

/* A battery: any, or one of those at which something may change, one more or one less. */
static uint32_t battery_of(uint8_t number)
{
    const uint32_t nearby = draw(), which = draw(), offset = draw(), high = draw(), low = draw();
    uint32_t battery = (high << 16 | low) % (capacity[number] + 1u);
    if (nearby % 10u < 3u) {
        battery = special[number][which % SPECIALS] + offset % 3u;
        battery = battery > 0u ? battery - 1u : 0u;
    }
    return battery < capacity[number] ? battery : capacity[number];
}

/* Every device measures; returns the slot. */
static uint32_t measure(void)
{
    const uint32_t slot = draw() % SLOTS;
    uint8_t level[NUM_SITES], own[MOST_SITES], number;
    uint16_t site;
    for (site = 0; site < NUM_SITES; site++) {
        level[site] = (uint8_t)(draw() % LEVELS);
    }
    for (number = 0; number < DEVICES; number++) {
        const uint8_t weather = (uint8_t)(draw() % WEATHERS);
        for (site = 0; site < sites[number]; site++) {
            own[site] = level[site_of[number][site]];
        }
        all[number]->begin(own, battery_of(number), weather);
    }
    return slot;
}

#ifdef LOOKUP
static void decide(uint32_t slot, uint8_t *chosen)
{
    uint8_t i, j;
    for (i = 0; i < DEVICES; i++) {
        for (j = 0; j < DEVICES; j++) {
            (void)all[i]->hear(j, all[j]->message, all[j]->message_bytes);
        }
        chosen[i] = all[i]->action(slot);
    }
}
#else
static int64_t belief[DEVICES][ACTIONS];

static void tell(uint8_t from, uint8_t action)
{
    uint8_t i;
    for (i = 0; i < DEVICES; i++) {
        (void)all[i]->note(from, action);
    }
}

static void believe(uint32_t slot)
{
    uint8_t i, j, action;
    for (i = 0; i < DEVICES; i++) {
        for (action = 0; action < ACTIONS; action++) {
            belief[i][action] = 0;
        }
        for (j = 0; j < DEVICES; j++) {
            (void)all[j]->advice(i, belief[i]);
        }
        all[i]->belief(slot, belief[i]);
    }
}

static void advise(uint32_t slot)
{
    uint8_t message, i, j;
    for (message = 0; message != MESSAGES; message++) {
        believe(slot);
        for (i = 0; i < DEVICES; i++) {
            for (j = 0; j < DEVICES; j++) {
                (void)all[i]->wish(j, belief[j]);
            }
            all[i]->advise(slot);
        }
    }
    believe(slot);
}

/* Devices of a colour move; whether any did. */
static bool moved(uint32_t slot, uint8_t colour, uint8_t *chosen)
{
    bool changed = false;
    uint8_t i, j;
    for (i = 0; i < DEVICES; i++) {
        if (all[i]->colour == colour) {
            int32_t row[ACTIONS] = {0};
            uint8_t now;
            for (j = 0; j < DEVICES; j++) {
                (void)all[j]->row(slot, i, row);
            }
            now = all[i]->move(slot, row);
            changed = changed || now != chosen[i];
            chosen[i] = now;
            tell(i, now);
        }
    }
    return changed;
}

/* Rounds from one start; their cost. */
static int64_t end_of(uint32_t slot, uint8_t start, uint8_t *chosen)
{
    bool changed = true;
    int64_t cost = 0;
    uint8_t i, round, colour;
    for (i = 0; i < DEVICES; i++) {
        chosen[i] = all[i]->start(slot, start, belief[i]);
    }
    for (i = 0; i < DEVICES; i++) {
        tell(i, chosen[i]);
    }
    for (round = 0; changed && round < ROUNDS; round++) {
        changed = false;
        for (colour = 0; colour < COLOURS; colour++) {
            changed = moved(slot, colour, chosen) || changed;
        }
    }
    for (i = 0; i < DEVICES; i++) {
        cost += all[i]->share(slot);
    }
    return cost;
}

static void decide(uint32_t slot, uint8_t *chosen)
{
    uint8_t i, j, start, found[DEVICES];
    int64_t least = INT64_MAX;
    for (i = 0; i < DEVICES; i++) {
        for (j = 0; j < DEVICES; j++) {
            (void)all[i]->note_energy(j, all[j]->energy());
        }
    }
    if (MESSAGES > 0) {
        advise(slot);
    }
    for (start = 0; start < (MESSAGES > 0 ? 3 : 2); start++) {
        const int64_t cost = end_of(slot, start, found);
        for (i = 0; cost < least && i < DEVICES; i++) {
            chosen[i] = found[i];
        }
        least = cost < least ? cost : least;
    }
}
#endif

int main(void)
{
    uint32_t state;
    uint8_t chosen[DEVICES], i;
    for (state = 0; state < STATES; state++) {
        decide(measure(), chosen);
        for (i = 0; i < DEVICES; i++) {
            result(chosen[i]);
        }
    }
    finish();
    return 0;
}
