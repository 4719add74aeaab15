/*
 * From what a board measures to the levels that a plan knows; thresholds are in device_N.h.
 *
 * Energies are whole numbers of the unit that device_N.h states, rounded down. A loss is the power sent less the power
 * received, in hundredths of a dB: a packet sent with 14 dBm and heard with -96 dBm lost 11000.
 */
#ifndef HELIOMESH_LEVELS_H
#define HELIOMESH_LEVELS_H

#include <stdint.h>

#include "heliomesh_tables.h"

/*
 * Note the loss of a packet that a neighbour sent itself: writes the one of the HELIOMESH_SITES levels that it tells.
 * Packets of others tell nothing. A channel of which nothing was heard keeps its level.
 */
void heliomesh_note_loss(uint8_t *level, uint16_t from, int16_t loss);

/*
 * The weather of a slot, from the energy that the panel gives in a slot, before losses of charging, and from the last
 * weather, which stays where no harvest tells, as at night. Where the scenario has forecasts, add that of the slot.
 */
uint8_t heliomesh_weather(uint32_t slot, uint32_t harvest, uint8_t last);

#endif
