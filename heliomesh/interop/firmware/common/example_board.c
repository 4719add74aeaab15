/* A board without a radio: three slots, half-full batteries, nobody is heard. Replace it with your own. */
#include "example_board.h"

#include "heliomesh_device.h"
#include "heliomesh_levels.h"

bool board_first_slot(uint32_t *slot)
{
    *slot = 0u; /* from a clock that runs through resets: then return true; or from what board_next_slot stored */
    return false;
}

bool board_next_slot(uint32_t slot)
{
    return slot < 3u;
}

void board_measure(uint32_t slot, uint8_t *level, uint32_t *battery, uint8_t *weather)
{
    const uint32_t harvest = 0u; /* from the current of the panel */
    *battery = HELIOMESH_CAPACITY / 2u; /* from the voltage of the battery */
    *weather = heliomesh_weather(slot, harvest, *weather);
    heliomesh_note_loss(level, 0u, 11000); /* for each packet heard: its sender, and power sent less received */
}

void board_send(const uint8_t *packet, uint16_t num_bytes)
{
    (void)packet;
    (void)num_bytes;
}

uint16_t board_receive(uint8_t *packet, uint16_t room)
{
    (void)packet;
    (void)room;
    return 0u;
}

void board_act(uint8_t action)
{
    (void)action; /* idle, train, send: see the table of actions in device_N.h */
}
