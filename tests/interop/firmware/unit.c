/* One device with its state; UNIT is the only name that stays visible. */
#include "heliomesh_device.c"
#include "network.h"

#ifdef LOOKUP
static heliomesh_view view;
static uint8_t message[HELIOMESH_MESSAGE_BYTES];

static void begin(const uint8_t *level, uint32_t battery, uint8_t weather)
{
    heliomesh_message(level, battery, weather, message);
}

static bool hear(uint16_t from, const uint8_t *other, uint16_t num_bytes)
{
    return heliomesh_hear(&view, from, other, num_bytes);
}

static uint8_t action(uint32_t slot)
{
    return heliomesh_action(slot, &view);
}

extern const device UNIT;
const device UNIT = {0, begin, message, HELIOMESH_MESSAGE_BYTES, hear, action};
#else
static heliomesh_state state;

static void begin(const uint8_t *level, uint32_t battery, uint8_t weather)
{
    heliomesh_begin(&state, level, battery, weather);
}

static uint16_t energy(void)
{
    return state.energy;
}

static bool note_energy(uint16_t from, uint16_t told)
{
    return heliomesh_note_energy(&state, from, told);
}

#if HELIOMESH_MESSAGES > 0u
static bool advice(uint16_t from, int64_t *row)
{
    return heliomesh_advice(&state, from, row);
}

static void belief(uint32_t slot, int64_t *row)
{
    heliomesh_belief(&state, slot, row);
}

static bool wish(uint16_t from, const int64_t *told)
{
    return heliomesh_wish(&state, from, told);
}

static void advise(uint32_t slot)
{
    heliomesh_advise(&state, slot);
}
#endif

static uint8_t start(uint32_t slot, uint8_t number, const int64_t *believed)
{
    (void)believed;
#if HELIOMESH_MESSAGES > 0u
    if (number == 2u) {
        return heliomesh_start_advised(&state, slot, believed);
    }
#endif
    return heliomesh_start(&state, slot, number);
}

static bool note(uint16_t from, uint8_t action)
{
    return heliomesh_note(&state, from, action);
}

static bool row(uint32_t slot, uint16_t from, int32_t *sum)
{
    return heliomesh_row(&state, slot, from, sum);
}

static uint8_t move(uint32_t slot, const int32_t *sum)
{
    return heliomesh_move(&state, slot, sum);
}

static int32_t share(uint32_t slot)
{
    return heliomesh_share(&state, slot);
}

#if HELIOMESH_MESSAGES == 0u
#define advice 0
#define belief 0
#define wish 0
#define advise 0
#endif
extern const device UNIT;
const device UNIT = {HELIOMESH_COLOUR, begin, energy, note_energy, advice, belief, wish, advise, start, note, row, move, share};
#endif
