/*
 * A device of a plan by bids and grants. Compile with -DHELIOMESH_DEVICE=0, 1, …; all devices have this source, and
 * device_N.h holds the tables of one. No heap, no writable data; all a device remembers from slot to slot is the account
 * of its model. All numbers are integers, the same ones as in Python.
 *
 * In every slot:
 *   1. heliomesh_bid: what the device measures; writes its bid. Send it, and give those that are heard to
 *      heliomesh_hear_bid.
 *   2. heliomesh_grant: writes its grant. Send it, and give those that are heard to heliomesh_hear_grant.
 *   3. heliomesh_choose: what to do. Train if the action trains; then heliomesh_model notes it and writes the account of
 *      the model. If the action sends, send it along with the model.
 *   4. heliomesh_hear_model: for each account that arrives together with a model that is averaged.
 *   5. heliomesh_average: once the models are averaged.
 * A device without energy for messages is silent: its bid has no bytes, it hears no bid and no grant, and it idles. A
 * bid that is not heard does not count in the slot, and a grant that is not heard is worth nothing. Messages of strangers
 * or of a wrong length, bids with numbers that do not exist, and messages that are heard twice change nothing.
 */
#ifndef HELIOMESH_DEVICE_H
#define HELIOMESH_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "heliomesh_tables.h"

#define HELIOMESH_ACCOUNT_BYTES (2u + HELIOMESH_DIRECTIONS)
#define HELIOMESH_BID_BYTES (1u + HELIOMESH_ACCOUNT_BYTES)
#define HELIOMESH_GRANT_BYTES ((2u * HELIOMESH_POWERS) - 1u)

/* What the model is made of; store it wherever the model is stored. */
typedef struct {
    uint16_t progress; /* in 1/64 slots of training, modulo 2^16 */
    int8_t lean[HELIOMESH_DIRECTIONS];
} heliomesh_account;

/* Zero it once; all but the account is of the present slot. */
typedef struct {
    int32_t price[HELIOMESH_ACTIONS];    /* of energy less the gain of training, in 2^-16 slots of it */
    int32_t gain[HELIOMESH_POWERS];      /* of grants to this device, by power */
    int32_t harm[HELIOMESH_POWERS];      /* to grants to others */
    int32_t granted;                     /* the most that the own grant offers */
    int32_t apart[HELIOMESH_DIRECTIONS]; /* leans of models that arrived, less the own one, weighted */
    int32_t ahead;                       /* and progress */
    uint32_t arrived_weight;
    heliomesh_account account;
    heliomesh_account bid[HELIOMESH_ROOM]; /* of each neighbour */
    uint16_t bias_weight;
    bool awake;
    bool trains; /* as the device bids */
    uint8_t bid_power[HELIOMESH_ROOM];
    uint8_t level[HELIOMESH_SITES + 1u];
    uint8_t heard[HELIOMESH_ROOM]; /* which messages of each neighbour */
} heliomesh_state;

/*
 * Begin a slot, 0 first; device_N.h says what happens after the last slot of a plan. Levels of the HELIOMESH_SITES
 * incoming channels, battery and weather; levels beyond the last count as the last. Returns bytes of the bid, or 0.
 */
uint16_t heliomesh_bid(heliomesh_state *state, uint32_t slot, const uint8_t *level, uint32_t battery, uint8_t weather,
                       uint8_t *message);

/* A neighbour's bid; false if it is not used. */
bool heliomesh_hear_bid(heliomesh_state *state, uint16_t from, const uint8_t *message, uint16_t num_bytes);

/* The device's grant; returns its bytes, or 0. */
uint16_t heliomesh_grant(heliomesh_state *state, uint8_t *message);

/* A neighbour's grant; false if it is not used. */
bool heliomesh_hear_grant(heliomesh_state *state, uint16_t from, const uint8_t *message, uint16_t num_bytes);

/* The action of the slot. */
uint8_t heliomesh_choose(const heliomesh_state *state);

/* Note what the device did, and write the account that goes along with its model. */
uint16_t heliomesh_model(heliomesh_state *state, uint8_t action, uint8_t *message);

/* Whether an action sends. */
bool heliomesh_sends(uint8_t action);

/* The account of a neighbour's model that arrived; false if it is not used. */
bool heliomesh_hear_model(heliomesh_state *state, uint16_t from, const uint8_t *message, uint16_t num_bytes);

/* The account of the average of all models that arrived. */
void heliomesh_average(heliomesh_state *state);

#endif
