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

static uint8_t level[NUM_SITES];

/* Draws the slot and the levels of all channels; returns the slot. */
static uint32_t measure(void)
{
    const uint32_t slot = draw() % SLOTS;
    uint16_t site;
    for (site = 0; site < NUM_SITES; site++) {
        level[site] = (uint8_t)(draw() % LEVELS);
    }
    return slot;
}

/* The levels that a device measures. */
static const uint8_t *levels_of(uint8_t number)
{
    static uint8_t own[MOST_SITES + 1u];
    uint16_t site;
    for (site = 0; site < sites[number]; site++) {
        own[site] = level[site_of[number][site]];
    }
    return own;
}

#ifdef LOOKUP
static void decide(void)
{
    const uint32_t slot = measure();
    uint8_t i, j;
    for (i = 0; i < DEVICES; i++) {
        const uint8_t weather = (uint8_t)(draw() % WEATHERS);
        all[i]->begin(levels_of(i), battery_of(i), weather);
    }
    for (i = 0; i < DEVICES; i++) {
        for (j = 0; j < DEVICES; j++) {
            (void)all[i]->hear(j, all[j]->message, all[j]->message_bytes);
        }
        result(all[i]->action(slot));
    }
}
#else
/* Every device has a model: leans anywhere, and progress not far from that of others. */
static void know(void)
{
    const uint32_t progress = draw();
    uint8_t account[2u + DIRECTIONS], i, place;
    for (i = 0; i < DEVICES; i++) {
        const uint32_t own = progress + draw() % 2048u;
        account[0] = (uint8_t)own;
        account[1] = (uint8_t)(own >> 8);
        for (place = 0; place < DIRECTIONS; place++) {
            account[2u + place] = (uint8_t)(draw() % 255u - 127u);
        }
        all[i]->know(account);
    }
}

/* Others hear what a device says, if it says anything; one of four messages is lost. */
static void tell(uint8_t kind, const uint16_t *num_bytes)
{
    uint8_t i, j;
    for (i = 0; i < DEVICES; i++) {
        for (j = 0; j < DEVICES; j++) {
            if (draw() % 4u > 0u && num_bytes[j] > 0u) {
                (void)all[i]->hear[kind](j, all[j]->message, num_bytes[j]);
            }
        }
    }
}

static void decide(void)
{
    const uint32_t slot = measure();
    uint32_t battery[DEVICES];
    uint16_t num_bytes[DEVICES];
    uint8_t weather[DEVICES], action[DEVICES], i, byte;
    for (i = 0; i < DEVICES; i++) {
        weather[i] = (uint8_t)(draw() % WEATHERS);
        battery[i] = battery_of(i);
    }
    know();
    for (i = 0; i < DEVICES; i++) {
        num_bytes[i] = all[i]->bid(slot, levels_of(i), battery[i], weather[i]);
    }
    tell(0, num_bytes);
    for (i = 0; i < DEVICES; i++) {
        num_bytes[i] = all[i]->grant();
    }
    tell(1, num_bytes);
    for (i = 0; i < DEVICES; i++) {
        action[i] = all[i]->choose();
        num_bytes[i] = all[i]->model(action[i]);
        num_bytes[i] = all[i]->sends(action[i]) ? num_bytes[i] : 0u;
    }
    tell(2, num_bytes);
    for (i = 0; i < DEVICES; i++) {
        all[i]->average();
        result(action[i]);
        for (byte = 0; byte < 2u + DIRECTIONS; byte++) {
            result(all[i]->message[byte]);
        }
    }
}
#endif

int main(void)
{
    uint32_t state;
    for (state = 0; state < STATES; state++) {
        decide();
    }
    finish();
    return 0;
}
