/*
 * A device of a plan that decides by message rounds between neighbours. Compile with -DHELIOMESH_DEVICE=0, 1, …; all
 * devices have this source, and device_N.h holds the tables of one. No heap, no writable data; all a device remembers
 * is its state. Costs are whole numbers, so all processors come to the same actions.
 *
 * In every slot:
 *   1. heliomesh_begin: what the device measures. Where HELIOMESH_ENERGY_TOLD is 1, tell the state's energy to those
 *      that hear the device; they call heliomesh_note_energy. Not heard: the last one stays.
 *   2. Where HELIOMESH_MESSAGES is not 0, so many times, all devices at once, HELIOMESH_ACTIONS numbers each:
 *      a. Ask all that hear the device for their heliomesh_advice, add it up, call heliomesh_belief and tell the sum to
 *         them; they call their heliomesh_wish.
 *      b. heliomesh_advise: new advice from the wishes.
 *      Then, once more: the advice of all that hear the device, added up, and heliomesh_belief. Keep the sum.
 *   3. For every start, 0 to HELIOMESH_STARTS - 1:
 *      a. heliomesh_start: the first action. Start 2 takes heliomesh_start_advised with the belief kept. Tell the
 *         action to those that hear the device; they call heliomesh_note.
 *      b. HELIOMESH_ROUNDS times, for colours 0 to HELIOMESH_COLOURS - 1: devices of that colour get a row from all that
 *         hear them (their heliomesh_row), add the rows up, call their heliomesh_move and tell the action; who is told
 *         calls heliomesh_note. A round that changed nothing in the whole network may be the last.
 *      c. heliomesh_share: the device's part of the network's cost.
 *   4. Keep the actions of the start whose shares, in 64 bits, sum to least; of equals the first.
 * Under half duplex a device hears itself, so it is one of those that are told. Slots count from 0; device_N.h says what
 * happens after the last slot of a plan.
 */
#ifndef HELIOMESH_DEVICE_H
#define HELIOMESH_DEVICE_H

#include <stdbool.h>
#include <stdint.h>

#include "heliomesh_tables.h"

/* Zero it once. */
typedef struct {
#if HELIOMESH_MESSAGES > 0u
    int64_t advice[HELIOMESH_ROOM][HELIOMESH_ACTIONS]; /* to the devices heard */
    int64_t wish[HELIOMESH_ROOM][HELIOMESH_ACTIONS];   /* theirs */
#endif
    uint32_t channels; /* of all sites, the last one counts least */
    uint16_t energy;   /* weather and battery level */
    uint16_t heard_energy[HELIOMESH_ROOM];
    uint8_t action;
    uint8_t heard_action[HELIOMESH_ROOM];
} heliomesh_state;

/* Number of the device heard at a place, 0 to HELIOMESH_HEARD - 1, and its colour. */
uint16_t heliomesh_heard_device(uint8_t place);
uint8_t heliomesh_heard_colour(uint8_t place);

/* Levels of the HELIOMESH_SITES incoming channels, battery and weather; levels beyond the last count as the last. */
void heliomesh_begin(heliomesh_state *state, const uint8_t *level, uint32_t battery, uint8_t weather);

/* A device tells its energy; true if this one hears it. */
bool heliomesh_note_energy(heliomesh_state *state, uint16_t from, uint16_t energy);

/* The first action of a start; everybody heard is silent until told otherwise. */
uint8_t heliomesh_start(heliomesh_state *state, uint32_t slot, uint8_t start);

/* A device tells its action; true if this one hears it. */
bool heliomesh_note(heliomesh_state *state, uint16_t from, uint8_t action);

/* This device's cost for each action of a device it hears: added to the row; true if it hears it. */
bool heliomesh_row(const heliomesh_state *state, uint32_t slot, uint16_t from, int32_t *row);

/* The best action for the sum of the rows of all that hear the device. */
uint8_t heliomesh_move(heliomesh_state *state, uint32_t slot, const int32_t *row);

/* The device's part of the network's cost: its price and its cost as a receiver. */
int32_t heliomesh_share(const heliomesh_state *state, uint32_t slot);

#if HELIOMESH_MESSAGES > 0u
/* This device's advice to a device it hears: added to the row; true if it hears it. */
bool heliomesh_advice(const heliomesh_state *state, uint16_t from, int64_t *row);

/* The prices of the device, added to the advice of all that hear it. */
void heliomesh_belief(const heliomesh_state *state, uint32_t slot, int64_t *row);

/* A device tells its belief; true if this one hears it. */
bool heliomesh_wish(heliomesh_state *state, uint16_t from, const int64_t *belief);

/* New advice: half the old, half the least cost per action of each device heard, given what the others wish. */
void heliomesh_advise(heliomesh_state *state, uint32_t slot);

/* The first action of the start that follows the advice. */
uint8_t heliomesh_start_advised(heliomesh_state *state, uint32_t slot, const int64_t *belief);
#endif

#endif
