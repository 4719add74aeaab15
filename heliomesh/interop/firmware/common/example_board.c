/* A board without a radio: three slots, half-full batteries, nobody is heard. Replace it with your own. */
#include "example_board.h"

#include "heliomesh_device.h"

bool board_next_slot(void)
{
    static uint8_t begun = 0u;
    begun++;
    return begun <= 3u;
}

void board_measure(uint8_t *level, uint32_t *battery_microjoule, uint8_t *weather)
{
    uint8_t site;
    for (site = 0u; site != HELIOMESH_SITES; site++) {
        level[site] = 0u; /* from the strength of what was received */
    }
    *battery_microjoule = HELIOMESH_CAPACITY_MICROJOULE / 2u; /* from the voltage of the battery */
    *weather = 0u;
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
