/* See heliomesh_device.h. Names of functions are those of Python's heliomesh/slot/bids.py. */
#define HELIOMESH_WITH_TABLES
#include "heliomesh_device.h"

#define ONE ((int32_t)65536) /* a slot of training */
#define LIMIT ((int32_t)268435456)
#define BARRED ((int32_t)1073741824) /* the price of what the battery does not pay for */
#define MOST_WORTH ((int32_t)134184960)
#define WORTH_LIMIT 4096u /* of a message, before it is shifted */
#define NOBODY 255u
#define SHARE_BITS 15u
#define PULL_BITS 3u
#define LEAN_STEPS 127
#define PROGRESS_STEPS 64u
#define MOST_LEAD ((int32_t)HELIOMESH_MOST_LEAD)
#define HEARD_BID 1u
#define HEARD_GRANT 2u
#define HEARD_MODEL 4u

/* A product divided by a power of two, at least by two; halves to even numbers. */
static int64_t rounded(int64_t product, uint8_t bits)
{
    const uint64_t below_half = (((uint64_t)1u << bits) >> 1u) - 1u;
    const uint64_t size = (product < 0) ? (uint64_t)(-product) : (uint64_t)product;
    const uint64_t quotient = (size + ((size >> bits) & 1u) + below_half) >> bits;
    const int64_t found = (int64_t)quotient;
    return (product < 0) ? (-found) : found;
}

static int32_t within(int64_t value, int32_t least, int32_t most)
{
    int64_t found = (value < least) ? least : value;
    found = (found > most) ? most : found;
    return (int32_t)found;
}

/* Where a slot stands in a table of so many slots: around it, or at its end beyond the horizon. */
static uint32_t planned(uint32_t slot)
{
#if HELIOMESH_ENDLESS > 0u
    return slot % HELIOMESH_SLOTS;
#else
    return (slot < HELIOMESH_SLOTS) ? slot : (HELIOMESH_SLOTS - 1u);
#endif
}

/* The place of a neighbour of which a message of a kind is new, or NOBODY. */
static uint8_t new_from(heliomesh_state *state, uint16_t from, uint8_t kind)
{
    uint8_t found = NOBODY;
    uint8_t place;
    for (place = 0u; place != HELIOMESH_DEGREE; place++) {
        if ((table_near(place) == from) && ((state->heard[place] & kind) == 0u)) {
            found = place;
            state->heard[place] |= kind;
        }
    }
    return found;
}

static int16_t direction(uint8_t place)
{
    return (int16_t)table_direction(place) - 128;
}

/* Lean after training. */
static int16_t trained_lean(const heliomesh_account *account, uint8_t place)
{
    const int16_t mine = account->lean[place];
    return mine + (int16_t)rounded((int64_t)direction(place) - mine, PULL_BITS);
}

static int32_t training_gain(const heliomesh_state *state)
{
    int32_t rise = 0;
    uint8_t place;
    for (place = 0u; place < HELIOMESH_DIRECTIONS; place++) {
        const int32_t now = state->account.lean[place];
        const int32_t after = trained_lean(&state->account, place);
        rise += (after * after) - (now * now);
    }
    return within(ONE - rounded((int64_t)rise * (int64_t)state->bias_weight, HELIOMESH_BIAS_BITS), -LIMIT, LIMIT);
}

/* What is left of an energy, or nothing. */
static uint32_t less(uint32_t energy, uint32_t spent)
{
    uint32_t left = 0u;
    if (energy > spent) {
        left = energy - spent;
    }
    return left;
}

/* What an action costs through the energy it spends. */
static int32_t spending(uint32_t row, uint32_t battery, uint8_t action)
{
    const uint32_t left = less(battery, table_spent(action));
    const uint32_t entry = row + (left >> HELIOMESH_POINT_BITS);
#if HELIOMESH_POINT_BITS >= 8u
    const uint32_t part = (left >> (HELIOMESH_POINT_BITS - 8u)) & 255u;
#else
    const uint32_t part = (left << (8u - HELIOMESH_POINT_BITS)) & 255u;
#endif
    const uint32_t below = table_value(entry);
    const uint32_t above = table_value(entry + 1u);
    const uint32_t sum = (below * (256u - part)) + (above * part);
    const uint32_t between = (sum + ((sum >> 8u) & 1u) + 127u) >> 8u;
    const uint32_t cost = between << HELIOMESH_ENTRY_BITS;
    return (int32_t)cost;
}

static void price(heliomesh_state *state, uint32_t slot, uint32_t battery, uint8_t weather)
{
    const int32_t gain = training_gain(state);
    uint32_t row = table_row_of_slot(planned(slot));
    uint8_t action;
    row = (row * HELIOMESH_WEATHERS) + ((weather < HELIOMESH_WEATHERS) ? weather : (HELIOMESH_WEATHERS - 1u));
    row *= HELIOMESH_POINTS;
    for (action = 0u; action < HELIOMESH_ACTIONS; action++) {
        int32_t cost = BARRED;
        if (battery >= table_needed(action)) {
            cost = spending(row, battery, action);
            if (table_trains(action) != 0u) {
                cost -= gain;
            }
            cost = within(cost, -LIMIT, LIMIT);
        }
        state->price[action] = cost;
    }
}

static void write_account(const heliomesh_account *account, uint8_t *message)
{
    uint8_t place;
    message[0] = (uint8_t)(account->progress & 255u);
    message[1] = (uint8_t)(account->progress >> 8u);
    for (place = 0u; place < HELIOMESH_DIRECTIONS; place++) {
        message[2u + place] = (uint8_t)account->lean[place];
    }
}

/* False where a lean does not exist. */
static bool read_account(const uint8_t *message, heliomesh_account *account)
{
    bool whole = true;
    uint8_t place;
    account->progress = (uint16_t)(((uint16_t)message[1] * 256u) + message[0]);
    for (place = 0u; place < HELIOMESH_DIRECTIONS; place++) {
        const uint8_t byte = message[2u + place];
        int16_t lean = (int16_t)byte;
        if (byte > 127u) {
            lean -= 256;
        }
        whole = whole && (byte != 128u);
        account->lean[place] = (int8_t)lean;
    }
    return whole;
}

/* By how much progress is ahead, modulo 2^16. */
static int32_t ahead_of(uint16_t theirs, uint16_t mine)
{
    const uint16_t apart = (uint16_t)(theirs - mine);
    int32_t found = (int32_t)apart;
    if (found > 32767) {
        found -= 65536;
    }
    return found;
}

static void train(heliomesh_account *account)
{
    uint8_t place;
    account->progress = (uint16_t)(account->progress + PROGRESS_STEPS);
    for (place = 0u; place < HELIOMESH_DIRECTIONS; place++) {
        account->lean[place] = (int8_t)trained_lean(account, place);
    }
}

/* Whether the battery pays for messages. */
static bool is_awake(uint32_t battery)
{
#if HELIOMESH_AWAKE > 0u
    return battery >= HELIOMESH_AWAKE;
#else
    (void)battery; /* they are free */
    return true;
#endif
}

static void forget(heliomesh_state *state)
{
    uint8_t *byte = (uint8_t *)state;
    size_t number;
    for (number = 0u; number < sizeof(*state); number++) {
        byte[number] = 0u;
    }
}

uint16_t heliomesh_bid(heliomesh_state *state, uint32_t slot, const uint8_t *level, uint32_t battery, uint8_t weather,
                       uint8_t *message)
{
    const uint32_t stored = (battery < HELIOMESH_CAPACITY) ? battery : HELIOMESH_CAPACITY;
    heliomesh_account after = state->account;
    int32_t least = BARRED;
    uint8_t place;
    forget(state);
    state->account = after;
    state->awake = is_awake(stored);
    for (place = 0u; place != HELIOMESH_SITES; place++) {
        state->level[place] = (level[place] < HELIOMESH_LEVELS) ? level[place] : (HELIOMESH_LEVELS - 1u);
    }
    state->bias_weight = table_bias_weight(planned(slot));
    price(state, slot, less(stored, HELIOMESH_TALK), weather);
    message[0] = 0u;
    for (place = 0u; place < HELIOMESH_ACTIONS; place++) {
        if (state->price[place] < least) {
            least = state->price[place];
            state->trains = table_trains(place) != 0u;
        }
        if ((state->price[place] != BARRED) && (table_power(place) > message[0])) {
            message[0] = table_power(place);
        }
    }
    if (state->trains) {
        train(&after);
    }
    write_account(&after, &message[1]);
    return state->awake ? HELIOMESH_BID_BYTES : 0u;
}

/* What a packet with their account is worth to a device with an account, at the weight that a neighbour's has alone. */
static int64_t packet_value(const heliomesh_state *state, uint8_t place, const heliomesh_account *account,
                            const heliomesh_account *theirs)
{
    const int32_t share = (int32_t)table_share(place);
    const int32_t ahead = ahead_of(theirs->progress, account->progress);
    int32_t along = 0;
    int32_t length = 0;
    int64_t rise;
    uint8_t number;
    for (number = 0u; number < HELIOMESH_DIRECTIONS; number++) {
        const int16_t mine = account->lean[number];
        const int16_t apart = (int16_t)theirs->lean[number] - mine;
        along += (int32_t)mine * apart;
        length += (int32_t)apart * apart;
    }
    rise = ((int64_t)along * 65536) + ((int64_t)share * length);
    rise = rounded(share * rise, SHARE_BITS);
    return rounded((int64_t)share * ahead, 5u)
           - rounded(rise * (int64_t)state->bias_weight, SHARE_BITS + HELIOMESH_BIAS_BITS);
}

/* The same to the device itself, which may train. */
static int64_t own_value(const heliomesh_state *state, uint8_t place)
{
    int64_t value = packet_value(state, place, &state->account, &state->bid[place]);
    if (state->trains) {
        value -= (int64_t)table_weight(place) * 2;
    }
    return value;
}

/* To the neighbours that were heard and hear it too. */
static int64_t value_to_others(const heliomesh_state *state, uint8_t place)
{
    int64_t value = 0;
    uint8_t other;
    for (other = 0u; other != HELIOMESH_DEGREE; other++) {
        const uint32_t pair = ((uint32_t)other * HELIOMESH_DEGREE) + place;
        if (((state->heard[other] & HEARD_BID) != 0u) && (table_hears(pair) != 0u)) {
            value += packet_value(state, place, &state->bid[other], &state->bid[place]);
        }
    }
    return value;
}

/* The chance that it arrives if it is sent at a power. */
static int64_t arrival(const heliomesh_state *state, uint8_t place, uint8_t power)
{
    const uint8_t level = state->level[table_site(place)];
    const uint32_t entry = ((((uint32_t)place * HELIOMESH_LEVELS) + level) * HELIOMESH_POWERS) + power;
    return (power > 0u) ? (int64_t)table_arrival(entry) : 0;
}

bool heliomesh_hear_bid(heliomesh_state *state, uint16_t from, const uint8_t *message, uint16_t num_bytes)
{
    heliomesh_account theirs;
    uint8_t place = NOBODY;
    if (state->awake && (num_bytes == HELIOMESH_BID_BYTES) && (message[0] < HELIOMESH_POWERS)
        && read_account(&message[1], &theirs)) {
        place = new_from(state, from, HEARD_BID);
    }
    if (place != NOBODY) {
        if (ahead_of(theirs.progress, state->account.progress) > MOST_LEAD) { /* nobody comes to be so far ahead */
            theirs.progress = (uint16_t)(state->account.progress + (uint32_t)MOST_LEAD);
        }
        state->bid[place] = theirs;
        state->bid_power[place] = message[0];
    }
    return place != NOBODY;
}

uint16_t heliomesh_grant(heliomesh_state *state, uint8_t *message)
{
    uint8_t best = NOBODY;
    int64_t most = 0;
    int32_t value = 0;
    uint8_t place;
    uint8_t power;
    for (place = 0u; place != HELIOMESH_DEGREE; place++) {
        const int64_t arrives = arrival(state, place, state->bid_power[place]);
        if (arrives > 0) {
            const int64_t own = own_value(state, place);
            const int64_t all = arrives * within(own + value_to_others(state, place), -LIMIT, LIMIT);
            if ((best == NOBODY) || (all > most)) {
                best = place;
                most = all;
                value = within(own, 0, MOST_WORTH);
            }
        }
    }
    message[0] = NOBODY;
    for (power = 1u; power < HELIOMESH_POWERS; power++) {
        uint32_t written = 0u;
        if ((best != NOBODY) && (power <= state->bid_power[best])) {
            uint32_t exponent = 0u;
            int32_t told;
            written = (uint32_t)rounded(arrival(state, best, power) * value, SHARE_BITS);
            while (written >= WORTH_LIMIT) {
                written >>= 1u;
                exponent++;
            }
            told = (int32_t)(uint32_t)(written << exponent);
            state->granted = (told > state->granted) ? told : state->granted;
            written |= exponent << 12u;
        }
        message[(2u * power) - 1u] = (uint8_t)(written & 255u);
        message[2u * power] = (uint8_t)(written >> 8u);
    }
    if (state->granted > 0) {
        message[0] = best;
    }
    return state->awake ? HELIOMESH_GRANT_BYTES : 0u;
}

static int32_t told_worth(const uint8_t *message, uint8_t power)
{
    const uint32_t written = ((uint32_t)message[2u * power] * 256u) + message[(2u * power) - 1u];
    const uint32_t worth = (written % WORTH_LIMIT) << (written / WORTH_LIMIT);
    return (int32_t)worth;
}

bool heliomesh_hear_grant(heliomesh_state *state, uint16_t from, const uint8_t *message, uint16_t num_bytes)
{
    uint8_t place = NOBODY;
    if (state->awake && (num_bytes == HELIOMESH_GRANT_BYTES)) {
        place = new_from(state, from, HEARD_GRANT);
    }
    if ((place != NOBODY) && (message[0] != NOBODY)) {
        const bool to_me = message[0] == table_place(place);
        int32_t most = 0;
        uint8_t most_power = 0u;
        uint8_t power;
        for (power = 1u; power < HELIOMESH_POWERS; power++) {
            const int32_t worth = told_worth(message, power);
            if (worth > 0) {
                most = (worth > most) ? worth : most;
                most_power = power;
            }
            if (to_me) {
                state->gain[power] = within((int64_t)state->gain[power] + worth, 0, LIMIT);
            }
        }
        for (power = 1u; (!to_me) && (power < HELIOMESH_POWERS); power++) {
            const int64_t share = (int64_t)table_harm(((uint32_t)most_power * HELIOMESH_POWERS) + power);
            state->harm[power] = within(state->harm[power] + rounded(share * most, SHARE_BITS), 0, LIMIT);
        }
    }
    return place != NOBODY;
}

uint8_t heliomesh_choose(const heliomesh_state *state)
{
    int32_t least = BARRED;
    uint8_t best = 0u;
    uint8_t action;
    for (action = 0u; state->awake && (action < HELIOMESH_ACTIONS); action++) {
        const uint8_t power = table_power(action);
        int64_t harm = state->harm[power];
        int32_t cost;
#if HELIOMESH_HALF_DUPLEX > 0u
        if (power > 0u) {
            harm += rounded(state->granted, 1u);
        }
#endif
        cost = state->price[action] - (state->gain[power] - within(harm, 0, LIMIT));
        if ((state->price[action] != BARRED) && (cost < least)) {
            least = cost;
            best = action;
        }
    }
    return best;
}

uint16_t heliomesh_model(heliomesh_state *state, uint8_t action, uint8_t *message)
{
    if (table_trains(action) != 0u) {
        train(&state->account);
    }
    write_account(&state->account, message);
    return HELIOMESH_ACCOUNT_BYTES;
}

bool heliomesh_sends(uint8_t action)
{
    return table_power(action) > 0u;
}

bool heliomesh_hear_model(heliomesh_state *state, uint16_t from, const uint8_t *message, uint16_t num_bytes)
{
    heliomesh_account theirs;
    uint8_t place = NOBODY;
    if ((num_bytes == HELIOMESH_ACCOUNT_BYTES) && read_account(message, &theirs)) {
        place = new_from(state, from, HEARD_MODEL);
    }
    if (place != NOBODY) {
        const int32_t weight = (int32_t)table_weight(place);
        uint8_t number;
        state->arrived_weight += table_weight(place);
        state->ahead += weight * ahead_of(theirs.progress, state->account.progress);
        for (number = 0u; number < HELIOMESH_DIRECTIONS; number++) {
            const int16_t apart = (int16_t)theirs.lean[number] - state->account.lean[number];
            state->apart[number] += weight * apart;
        }
    }
    return place != NOBODY;
}

void heliomesh_average(heliomesh_state *state)
{
    if (state->arrived_weight > 0u) {
#if HELIOMESH_SCALE_OF > 0u
        const uint32_t scale = HELIOMESH_SCALE_OF / (HELIOMESH_SCALE_OWN + state->arrived_weight);
#else
        const uint32_t scale = 32768u; /* others' weights stay what they are */
#endif
        const int64_t ahead = rounded((int64_t)state->ahead * (int64_t)scale, 2u * SHARE_BITS);
        uint8_t number;
        state->account.progress = (uint16_t)(state->account.progress + (uint16_t)ahead);
        for (number = 0u; number < HELIOMESH_DIRECTIONS; number++) {
            const int64_t apart = rounded((int64_t)state->apart[number] * (int64_t)scale, 2u * SHARE_BITS);
            const int32_t lean = within(apart + state->account.lean[number], -LEAN_STEPS, LEAN_STEPS);
            state->account.lean[number] = (int8_t)lean;
        }
    }
}
