"""The text of headers with message rounds; `interop/c_rounds.py` fills in the numbers."""

from string import Template

TELL_ENERGY = """
 *      Tell the state's energy to those that hear the device; they call _note_energy.
 *      Not heard: the last one stays."""

# Parts of a header that depend on whether the receiver has values of the energies left.
VALUED = {
    "energies_kept": """
    uint16_t heard_energy[$room];""",
    "note_energy": """
    int place = ${prefix}_place(from);
    if (place < 0 || energy >= $energies) {
        return 0;
    }
    state->heard_energy[place] = energy;
    return 1;""",
    "value_start": """
    uint32_t left = $slots - 1 - ($place_of_slot), energies = 0;
    uint32_t row = ${prefix}_row_of_left[left < $stored ? left : $stored - 1] * (uint32_t)$states;""",
    "value_place": """
        uint32_t energy = state->heard_energy[place];
        uint32_t quanta = ${prefix}_quanta_heard[place * $count + action[place]];
        uint32_t needed = ${prefix}_${needed}_heard[place * $count + action[place]];
        energies = energies * $energies + energy - (needed > energy % $battery_levels ? 0 : quanta);""",
    "value_end": """
        + ${prefix}_value[row + state->channels * $combinations + energies] * (uint32_t)$step""",
}
UNVALUED = {
    "energies_kept": "",
    "note_energy": """
    (void)state, (void)from, (void)energy;
    return 0; /* this device needs no energies */""",
    "value_start": """
    (void)slot; /* what is missed is the same in every slot */""",
    "value_place": "",
    "value_end": "",
}

# Parts that depend on whether min-sum messages advise a start; halves of costs are kept, in units of 2^-messages.
ADVISED = {
    "advice_steps": """
 *   2. ${upper}_MESSAGES times, all devices at once, ${upper}_ACTIONS numbers each:
 *      a. Ask all that hear the device for their _advice, add it up, call ${prefix}_belief and tell the sum to them;
 *         they call their _wish.
 *      b. ${prefix}_advise: new advice from the wishes.
 *      Then, once more: the advice of all that hear the device, added up, and ${prefix}_belief. Keep the sum.""",
    "advised_start": "\n *      Start 2 takes ${prefix}_start_advised with the belief kept.",
    "advice_kept": """
    int64_t advice[$room][$count]; /* to the devices heard */
    int64_t wish[$room][$count];   /* theirs */""",
    "advice_declared": ", action",
    "advice_forgotten": """
    for (site = 0; site < $room; site++) {
        for (action = 0; action < $count; action++) {
            state->advice[site][action] = 0;
        }
    }""",
    "advice_functions": """
/* This device's advice to a device it hears: added to the row; 1 if it hears it. */
static inline int ${prefix}_advice(const ${prefix}_state *state, uint16_t from, int64_t *row)
{
    int place = ${prefix}_place(from), action;
    for (action = 0; place >= 0 && action < $count; action++) {
        row[action] += state->advice[place][action];
    }
    return place >= 0;
}

/* The prices of the device, added to the advice of all that hear it. */
static inline void ${prefix}_belief(const ${prefix}_state *state, uint32_t slot, int64_t *row)
{
    int action;
    for (action = 0; action < $count; action++) {
        int32_t price = ${prefix}_price(state, slot, action);
        row[action] += (price < 0 ? $forbidden : price) * $unit;
    }
}

/* A device tells its belief; 1 if this one hears it. */
static inline int ${prefix}_wish(${prefix}_state *state, uint16_t from, const int64_t *belief)
{
    int place = ${prefix}_place(from), action;
    int64_t least = INT64_MAX;
    for (action = 0; place >= 0 && action < $count; action++) {
        state->wish[place][action] = belief[action] - state->advice[place][action];
        least = state->wish[place][action] < least ? state->wish[place][action] : least;
    }
    for (action = 0; place >= 0 && action < $count; action++) {
        state->wish[place][action] -= least;
    }
    return place >= 0;
}

/* New advice: half the old, half the least cost per action of each device heard, given what the others wish. */
static inline void ${prefix}_advise(${prefix}_state *state, uint32_t slot)
{
    uint8_t tried[$room] = {0};
    int64_t least[$room][$count];
    int place, action;
    for (place = 0; place < $room; place++) {
        for (action = 0; action < $count; action++) {
            least[place][action] = INT64_MAX;
        }
    }
    do { /* all joint actions, the last device's action first */
        int64_t cost = (int64_t)${prefix}_cost(state, slot, tried) * $unit;
        for (place = 0; place < $heard; place++) {
            cost += state->wish[place][tried[place]];
        }
        for (place = 0; place < $heard; place++) {
            if (cost < least[place][tried[place]]) {
                least[place][tried[place]] = cost;
            }
        }
        for (place = $heard - 1; place >= 0 && ++tried[place] == $count; place--) {
            tried[place] = 0;
        }
    } while (place >= 0);
    for (place = 0; place < $heard; place++) {
        int64_t lowest = INT64_MAX;
        for (action = 0; action < $count; action++) {
            least[place][action] -= state->wish[place][action];
            lowest = least[place][action] < lowest ? least[place][action] : lowest;
        }
        for (action = 0; action < $count; action++) {
            state->advice[place][action] = (state->advice[place][action] + least[place][action] - lowest) / 2;
        }
    }
}

/* The first action of the start that follows the advice. */
static inline uint8_t ${prefix}_start_advised(${prefix}_state *state, uint32_t slot, const int64_t *belief)
{
    int64_t least = INT64_MAX;
    int action;
    (void)${prefix}_start(state, slot, 1);
    for (action = 0; action < $count; action++) {
        int32_t price = ${prefix}_price(state, slot, action);
        if (price >= 0 && belief[action] + (int64_t)price * $unit < least) {
            least = belief[action] + (int64_t)price * $unit;
            state->action = (uint8_t)action;
        }
    }
    return state->action;
}
""",
}
UNADVISED = dict.fromkeys(ADVISED, "")

HEADER = Template("""\
/*
 * heliomesh plan "$planner" of scenario "$scenario" (sha256 $sha): device $device of $devices.
 * $beyond
 * Flash: $flash bytes of constants. RAM: $ram bytes of state, constant; no heap. C99, needs <stdint.h> only.
 *
 * Actions:
$actions
 *
 * In every slot:
 *   1. ${prefix}_begin: what the device measures.$tell_energy$advice_steps
 *   $starts_step. For every start, 0 to ${upper}_STARTS - 1:
 *      a. ${prefix}_start: the first action. Tell it to those that hear the device; they call _note.$advised_start
 *      b. ${upper}_ROUNDS times, for colours 0 to ${upper}_COLOURS - 1: devices of that colour ask all that hear them
 *         for a row (their _row), add the rows up, call their _move and tell the action; who is told calls _note.
 *         Under half duplex a device hears itself. A round that changed nothing is the last.
 *      c. ${prefix}_share: the device's part of the network's cost.
 *   $choice_step. Keep the actions of the start whose shares, in 64 bits, sum to least; of equals the first.
 */
#ifndef HELIOMESH_DEVICE_${device}_H
#define HELIOMESH_DEVICE_${device}_H

#include <stdint.h>

#define ${upper}_DEVICE $device
#define ${upper}_SLOTS $slots
#define ${upper}_SITES $sites
#define ${upper}_ACTIONS $count
#define ${upper}_HEARD $heard
#define ${upper}_COLOUR $colour
#define ${upper}_COLOURS $colours
#define ${upper}_ROUNDS $rounds
#define ${upper}_MESSAGES $messages
#define ${upper}_STARTS $starts
#define ${upper}_FLASH_BYTES $flash

$constants

/* Zero it once. */
typedef struct {$advice_kept
    uint32_t channels; /* of all sites, the last one counts least */
    uint16_t energy;$energies_kept
    uint8_t action;
    uint8_t heard[$room]; /* actions of the devices heard */
} ${prefix}_state;

/* Bytes of the constants above, as the compiler counts them: ${upper}_FLASH_BYTES. */
static inline uint32_t ${prefix}_flash_bytes(void)
{
    return (uint32_t)($sum_of_sizes);
}

/* Where a device stands among those heard, or -1. */
static inline int ${prefix}_place(uint16_t from)
{
    int place;
    for (place = 0; place < $heard; place++) {
        if (${prefix}_heard[place] == from) {
            return place;
        }
    }
    return -1;
}

/* Levels (0 to $channel_levels - 1) of the $sites incoming channels, battery and weather (0 to $weathers - 1). */
static inline void ${prefix}_begin(
    ${prefix}_state *state, const uint8_t *level, uint32_t battery_microjoule, uint8_t weather)
{
    int site, cell = 0$advice_declared;
    state->channels = 0;
    for (site = 0; site < $sites; site++) {
        uint32_t known = level[site] < $channel_levels ? level[site] : $channel_levels - 1;
        state->channels = state->channels * $channel_levels + known;
    }
    while (cell < $cuts && battery_microjoule >= ${prefix}_cut[cell]) {
        cell++;
    }
    if (weather >= $weathers) {
        weather = $weathers - 1;
    }
    state->energy = (uint16_t)(weather * $battery_levels + cell);$advice_forgotten
}

/* A device tells its energy; 1 if this one needs it. */
static inline int ${prefix}_note_energy(${prefix}_state *state, uint16_t from, uint16_t energy)
{$note_energy
}

/* Where the energy of a slot stands in a table of so many slots. */
static inline uint32_t ${prefix}_entry(const ${prefix}_state *state, uint32_t slot, uint32_t slots)
{
    return ($place_of_row) * $energies + state->energy;
}

/* The first action of a start; everybody heard is silent until told otherwise. */
static inline uint8_t ${prefix}_start(${prefix}_state *state, uint32_t slot, int start)
{
    uint32_t entry = ${prefix}_entry(state, slot, $first_slots);
    int place;
    for (place = 0; place < $room; place++) {
        state->heard[place] = 0;
    }
    state->action = 0;
    if (start == 0) {
        state->action = (uint8_t)(${prefix}_first[entry / $per_byte] >> (entry % $per_byte * $bits) & $mask);
    }
    return state->action;
}

/* A device tells its action; 1 if this one hears it. */
static inline int ${prefix}_note(${prefix}_state *state, uint16_t from, uint8_t action)
{
    int place = ${prefix}_place(from);
    if (place < 0 || action >= $count) {
        return 0;
    }
    state->heard[place] = action;
    return 1;
}

/* What this device misses, and what that leaves to come, if those heard act so. */
static inline int32_t ${prefix}_cost(const ${prefix}_state *state, uint32_t slot, const uint8_t *action)
{
    uint32_t joint = 0;
    int place;$value_start
    for (place = 0; place < $heard; place++) {$value_place
        joint = joint * $count + action[place];
    }
    return (int32_t)(${prefix}_missed[state->channels * ${joint} + joint]$value_end);
}

/* This device's cost for each action of a device it hears: added to the row; 1 if it hears it. */
static inline int ${prefix}_row(const ${prefix}_state *state, uint32_t slot, uint16_t from, int32_t *row)
{
    uint8_t tried[$room];
    int place, mover = ${prefix}_place(from), action;
    if (mover < 0) {
        return 0;
    }
    for (place = 0; place < $room; place++) {
        tried[place] = state->heard[place];
    }
    for (action = 0; action < $count; action++) {
        tried[mover] = (uint8_t)action;
        row[action] += ${prefix}_cost(state, slot, tried);
    }
    return 1;
}

/* Price of an action, or -1 where the battery does not pay for it. */
static inline int32_t ${prefix}_price(const ${prefix}_state *state, uint32_t slot, int action)
{
    if (${prefix}_$needed[action] > state->energy % $battery_levels) {
        return -1;
    }
    return (int32_t)(${prefix}_idle[action]
        + ${prefix}_future[${prefix}_entry(state, slot, $future_slots) - ${prefix}_quanta[action]]);
}

/* The best action for the sum of the rows of all that hear the device. */
static inline uint8_t ${prefix}_move(${prefix}_state *state, uint32_t slot, const int32_t *row)
{
    int32_t least = 0;
    int action;
    for (action = 0; action < $count; action++) {
        int32_t price = ${prefix}_price(state, slot, action);
        if (price >= 0 && (action == 0 || price + row[action] < least)) {
            least = price + row[action];
            state->action = (uint8_t)action;
        }
    }
    return state->action;
}

/* The device's part of the network's cost: its price and its cost as a receiver. */
static inline int32_t ${prefix}_share(const ${prefix}_state *state, uint32_t slot)
{
    return ${prefix}_price(state, slot, state->action) + ${prefix}_cost(state, slot, state->heard);
}
$advice_functions
#endif
""")
