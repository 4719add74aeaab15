/*
 * What the example needs of a board. A slot consists of phases, the same ones on all devices. In a phase a device
 * sends some packets and hears those of its neighbours. How neighbours share the air is up to the radio.
 */
#ifndef HELIOMESH_EXAMPLE_BOARD_H
#define HELIOMESH_EXAMPLE_BOARD_H

#include <stdbool.h>
#include <stdint.h>

/*
 * After a reset: the number of the slot that begins next. True if it is sure: a clock that runs through resets tells
 * it, or all devices are started together with slot 0. Else a guess, such as the number that was stored last.
 */
bool board_first_slot(uint32_t *slot);

/* Store the number where a reset does not erase it, and sleep until that slot begins; false ends the program. */
bool board_next_slot(uint32_t slot);

/*
 * Levels of the incoming channels (HELIOMESH_SITES of them), energy stored and level of the weather; of what is not
 * measured, what is there stays. heliomesh_levels.h turns measurements into levels.
 */
void board_measure(uint32_t slot, uint8_t *level, uint32_t *battery, uint8_t *weather);

/* Send a packet to all neighbours. */
void board_send(const uint8_t *packet, uint16_t num_bytes);

/* Wait for the next packet of the phase: its bytes, at most room; 0 once the phase is over. */
uint16_t board_receive(uint8_t *packet, uint16_t room);

/* Do what was decided. */
void board_act(uint8_t action);

#endif
