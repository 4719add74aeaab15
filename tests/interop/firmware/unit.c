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
const device UNIT = {message, begin, HELIOMESH_MESSAGE_BYTES, hear, action};
#else
static heliomesh_state state;
static uint8_t message[HELIOMESH_BID_BYTES + HELIOMESH_GRANT_BYTES];

static void know(const uint8_t *account)
{
    (void)read_account(account, &state.account);
}

static uint16_t bid(uint32_t slot, const uint8_t *level, uint32_t battery, uint8_t weather)
{
    return heliomesh_bid(&state, slot, level, battery, weather, message);
}

static uint16_t grant(void)
{
    return heliomesh_grant(&state, message);
}

static uint8_t choose(void)
{
    return heliomesh_choose(&state);
}

static uint16_t model(uint8_t action)
{
    return heliomesh_model(&state, action, message);
}

static bool hear_bid(uint16_t from, const uint8_t *other, uint16_t num_bytes)
{
    return heliomesh_hear_bid(&state, from, other, num_bytes);
}

static bool hear_grant(uint16_t from, const uint8_t *other, uint16_t num_bytes)
{
    return heliomesh_hear_grant(&state, from, other, num_bytes);
}

static bool hear_model(uint16_t from, const uint8_t *other, uint16_t num_bytes)
{
    return heliomesh_hear_model(&state, from, other, num_bytes);
}

static void average(void)
{
    heliomesh_average(&state);
    write_account(&state.account, message);
}

extern const device UNIT;
const device UNIT = {message, know, bid, grant, choose, model, heliomesh_sends, {hear_bid, hear_grant, hear_model}, average};
#endif
