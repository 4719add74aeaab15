/*
 * What the example needs of a board. A slot consists of phases, the same ones on all devices. In a phase a device
 * sends some packets and hears those of its neighbours. How neighbours share the air is up to the radio.
 */
#ifndef HELIOMESH_EXAMPLE_BOARD_H
#define HELIOMESH_EXAMPLE_BOARD_H

#include <stdbool.h>
#include <stdint.h>

/* Sleep until the next slot begins; false ends the program. */
bool board_next_slot(void);

/* Levels of the incoming channels (HELIOMESH_SITES of them), energy stored and level of the weather. */
void board_measure(uint8_t *level, uint32_t *battery_microjoule, uint8_t *weather);

/* Send a packet to all neighbours. */
void board_send(const uint8_t *packet, uint16_t num_bytes);

/* Wait for the next packet of the phase: its bytes, at most room; 0 once the phase is over. */
uint16_t board_receive(uint8_t *packet, uint16_t room);

/* Do what was decided. */
void board_act(uint8_t action);

#endif
