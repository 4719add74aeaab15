/* See heliomesh_device.h. */
#define HELIOMESH_WITH_TABLES
#include "heliomesh_device.h"

#define UNAFFORDABLE (-1)

uint16_t heliomesh_heard_device(uint8_t place)
{
    return table_heard(place);
}

uint8_t heliomesh_heard_colour(uint8_t place)
{
    return table_heard_colour(place);
}

/* Where a device stands among those heard, or HELIOMESH_HEARD. */
static uint8_t place_of(uint16_t from)
{
    uint8_t place = 0u;
    while ((place != HELIOMESH_HEARD) && (table_heard(place) != from)) {
        place++;
    }
    return place;
}

/* Where a slot stands in a table of so many slots: around it, or at its end beyond the horizon. */
static uint32_t planned(uint32_t slot, uint32_t num_slots)
{
#if HELIOMESH_ENDLESS > 0u
    return slot % num_slots;
#else
    return (slot < num_slots) ? slot : (num_slots - 1u);
#endif
}

void heliomesh_begin(heliomesh_state *state, const uint8_t *level, uint32_t battery, uint8_t weather)
{
    uint32_t energy = weather;
    uint32_t cell = 0u;
    uint8_t site;
    state->channels = 0u;
    for (site = 0u; site != HELIOMESH_SITES; site++) {
        const uint8_t known = (level[site] < HELIOMESH_CHANNEL_LEVELS) ? level[site] : (HELIOMESH_CHANNEL_LEVELS - 1u);
        state->channels = (state->channels * HELIOMESH_CHANNEL_LEVELS) + known;
    }
    while ((cell != (HELIOMESH_BATTERY_LEVELS - 1u)) && (battery >= table_cut(cell))) {
        cell++;
    }
    if (energy >= HELIOMESH_WEATHERS) {
        energy = HELIOMESH_WEATHERS - 1u;
    }
    energy = (energy * HELIOMESH_BATTERY_LEVELS) + cell;
    state->energy = (uint16_t)energy;
#if HELIOMESH_MESSAGES > 0u
    for (site = 0u; site < HELIOMESH_ROOM; site++) {
        uint8_t action;
        for (action = 0u; action < HELIOMESH_ACTIONS; action++) {
            state->advice[site][action] = 0;
        }
    }
#endif
}

bool heliomesh_note_energy(heliomesh_state *state, uint16_t from, uint16_t energy)
{
    const uint8_t place = place_of(from);
    const bool used = (place != HELIOMESH_HEARD) && (energy < HELIOMESH_ENERGIES);
    if (used) {
        state->heard_energy[place] = energy;
    }
    return used;
}

uint8_t heliomesh_start(heliomesh_state *state, uint32_t slot, uint8_t start)
{
    uint8_t place;
    for (place = 0u; place < HELIOMESH_ROOM; place++) {
        state->heard_action[place] = 0u;
    }
    state->action = 0u;
    if (start == 0u) {
        state->action = table_first((planned(slot, HELIOMESH_FIRST_SLOTS) * HELIOMESH_ENERGIES) + state->energy);
    }
    return state->action;
}

bool heliomesh_note(heliomesh_state *state, uint16_t from, uint8_t action)
{
    const uint8_t place = place_of(from);
    const bool used = (place != HELIOMESH_HEARD) && (action < HELIOMESH_ACTIONS);
    if (used) {
        state->heard_action[place] = action;
    }
    return used;
}

#if HELIOMESH_VALUED > 0u
/* What the actions of those heard leave to come. */
static uint32_t value_left(const heliomesh_state *state, uint32_t slot, const uint8_t *action)
{
    const uint32_t left = HELIOMESH_SLOTS - 1u - planned(slot, HELIOMESH_SLOTS);
    const uint32_t row = table_row_of_left((left < HELIOMESH_ROWS_OF_LEFT) ? left : (HELIOMESH_ROWS_OF_LEFT - 1u));
    uint32_t entry = (row * HELIOMESH_CHANNEL_COMBINATIONS) + state->channels;
    uint32_t value;
    uint8_t place;
    for (place = 0u; place != HELIOMESH_HEARD; place++) {
        const uint32_t acted = (place * HELIOMESH_ACTIONS) + action[place];
        const uint16_t energy = state->heard_energy[place]; /* 16 bits: a shorter division */
        entry = (entry * HELIOMESH_ENERGIES) + energy;
        if (table_needed_heard(acted) <= (energy % HELIOMESH_BATTERY_LEVELS)) {
            entry -= table_quanta_heard(acted);
        }
    }
    value = table_value(entry); /* 32 bits before it is multiplied: int may have 16 */
    return value * HELIOMESH_VALUE_STEP;
}
#endif

/* What this device misses, and what that leaves to come, if those heard act so. */
static int32_t cost_of(const heliomesh_state *state, uint32_t slot, const uint8_t *action)
{
    uint32_t joint = state->channels;
    uint32_t cost;
    uint8_t place;
    for (place = 0u; place != HELIOMESH_HEARD; place++) {
        joint = (joint * HELIOMESH_ACTIONS) + action[place];
    }
#if HELIOMESH_VALUED > 0u
    cost = value_left(state, slot, action) + table_missed(joint);
#else
    (void)slot; /* what is missed is the same in every slot */
    cost = table_missed(joint);
#endif
    return (int32_t)cost;
}

bool heliomesh_row(const heliomesh_state *state, uint32_t slot, uint16_t from, int32_t *row)
{
    const uint8_t mover = place_of(from);
    const bool heard = mover != HELIOMESH_HEARD;
    uint8_t tried[HELIOMESH_ROOM];
    uint8_t place;
    uint8_t action;
    for (place = 0u; place < HELIOMESH_ROOM; place++) {
        tried[place] = state->heard_action[place];
    }
    for (action = 0u; heard && (action < HELIOMESH_ACTIONS); action++) {
        tried[mover] = action;
        row[action] += cost_of(state, slot, tried);
    }
    return heard;
}

/* Price of an action, or UNAFFORDABLE. */
static int32_t price_of(const heliomesh_state *state, uint32_t slot, uint8_t action)
{
    const uint32_t level = state->energy % HELIOMESH_BATTERY_LEVELS;
    int32_t price = UNAFFORDABLE;
    if (table_needed(action) <= level) {
        const uint32_t now = (planned(slot, HELIOMESH_FUTURE_SLOTS) * HELIOMESH_ENERGIES) + state->energy;
        const uint32_t cost = table_idle(action) + table_future(now - table_quanta(action));
        price = (int32_t)cost;
    }
    return price;
}

uint8_t heliomesh_move(heliomesh_state *state, uint32_t slot, const int32_t *row)
{
    int32_t least = INT32_MAX;
    uint8_t action;
    for (action = 0u; action < HELIOMESH_ACTIONS; action++) {
        const int32_t price = price_of(state, slot, action);
        if ((price >= 0) && ((price + row[action]) < least)) {
            least = price + row[action];
            state->action = action;
        }
    }
    return state->action;
}

int32_t heliomesh_share(const heliomesh_state *state, uint32_t slot)
{
    return price_of(state, slot, state->action) + cost_of(state, slot, state->heard_action);
}

#if HELIOMESH_MESSAGES > 0u
/* Costs in units of which no halving loses a bit. */
static int64_t in_units(int32_t cost)
{
    return (int64_t)cost * HELIOMESH_MESSAGE_UNIT;
}

bool heliomesh_advice(const heliomesh_state *state, uint16_t from, int64_t *row)
{
    const uint8_t place = place_of(from);
    const bool heard = place != HELIOMESH_HEARD;
    uint8_t action;
    for (action = 0u; heard && (action < HELIOMESH_ACTIONS); action++) {
        row[action] += state->advice[place][action];
    }
    return heard;
}

void heliomesh_belief(const heliomesh_state *state, uint32_t slot, int64_t *row)
{
    uint8_t action;
    for (action = 0u; action < HELIOMESH_ACTIONS; action++) {
        const int32_t price = price_of(state, slot, action);
        row[action] += (price < 0) ? HELIOMESH_FORBIDDEN_UNITS : in_units(price);
    }
}

/* Lower all numbers of a row so that the least is zero. */
static void from_zero(int64_t *row)
{
    int64_t least = INT64_MAX;
    uint8_t action;
    for (action = 0u; action < HELIOMESH_ACTIONS; action++) {
        least = (row[action] < least) ? row[action] : least;
    }
    for (action = 0u; action < HELIOMESH_ACTIONS; action++) {
        row[action] -= least;
    }
}

bool heliomesh_wish(heliomesh_state *state, uint16_t from, const int64_t *belief)
{
    const uint8_t place = place_of(from);
    const bool heard = place != HELIOMESH_HEARD;
    if (heard) {
        uint8_t action;
        for (action = 0u; action < HELIOMESH_ACTIONS; action++) {
            state->wish[place][action] = belief[action] - state->advice[place][action];
        }
        from_zero(state->wish[place]);
    }
    return heard;
}

/* The next joint action of those heard, the last device's action counts first; false after the last one. */
static bool next_joint(uint8_t *tried)
{
    uint8_t place = HELIOMESH_HEARD;
    bool carried = true;
    while (carried && (place > 0u)) {
        place--;
        tried[place]++;
        carried = tried[place] == HELIOMESH_ACTIONS;
        if (carried) {
            tried[place] = 0u;
        }
    }
    return !carried;
}

/* The least cost, wishes included, for each action of each device heard. */
static void least_costs(const heliomesh_state *state, uint32_t slot, int64_t least[HELIOMESH_ROOM][HELIOMESH_ACTIONS])
{
    uint8_t tried[HELIOMESH_ROOM] = {0};
    uint8_t place;
    do {
        int64_t cost = in_units(cost_of(state, slot, tried));
        for (place = 0u; place != HELIOMESH_HEARD; place++) {
            cost += state->wish[place][tried[place]];
        }
        for (place = 0u; place != HELIOMESH_HEARD; place++) {
            if (cost < least[place][tried[place]]) {
                least[place][tried[place]] = cost;
            }
        }
    } while (next_joint(tried));
}

void heliomesh_advise(heliomesh_state *state, uint32_t slot)
{
    int64_t least[HELIOMESH_ROOM][HELIOMESH_ACTIONS];
    uint8_t place;
    uint8_t action;
    for (place = 0u; place < HELIOMESH_ROOM; place++) {
        for (action = 0u; action < HELIOMESH_ACTIONS; action++) {
            least[place][action] = INT64_MAX;
        }
    }
    least_costs(state, slot, least);
    for (place = 0u; place != HELIOMESH_HEARD; place++) {
        for (action = 0u; action < HELIOMESH_ACTIONS; action++) {
            least[place][action] -= state->wish[place][action];
        }
        from_zero(least[place]);
        for (action = 0u; action < HELIOMESH_ACTIONS; action++) {
            state->advice[place][action] = (state->advice[place][action] + least[place][action]) / 2;
        }
    }
}

uint8_t heliomesh_start_advised(heliomesh_state *state, uint32_t slot, const int64_t *belief)
{
    int64_t least = INT64_MAX;
    uint8_t action;
    (void)heliomesh_start(state, slot, 1u);
    for (action = 0u; action < HELIOMESH_ACTIONS; action++) {
        const int32_t price = price_of(state, slot, action);
        if ((price >= 0) && ((belief[action] + in_units(price)) < least)) {
            least = belief[action] + in_units(price);
            state->action = action;
        }
    }
    return state->action;
}
#endif
