/*
 * A device of a plan that looks its actions up. Compile with -DHELIOMESH_DEVICE=0, 1, …; all devices have this source,
 * and device_N.h holds the tables of one. No heap, no writable data; all a device remembers is its view.
 *
 * In every slot:
 *   1. heliomesh_message: what the device measures, as HELIOMESH_MESSAGE_BYTES bytes. Every message travels
 *      HELIOMESH_HOPS links, passed on unchanged together with the number of its device.
 *   2. heliomesh_hear: for each message heard, the device's own included. Not heard: the last values stay.
 *   3. heliomesh_action: what to do.
 */
#ifndef HELIOMESH_DEVICE_H
#define HELIOMESH_DEVICE_H

#include <stdbool.h>
#include <stdint.h>

#include "heliomesh_tables.h"

/* What the device knows of the present slot; zero it once. */
typedef struct {
    uint8_t value[HELIOMESH_ROOM];
} heliomesh_view;

/*
 * The device's message: levels of its HELIOMESH_SITES incoming channels, then its energy, which is made of weather and
 * battery cell. device_N.h states the unit of the battery. A weather beyond the last counts as the last.
 */
void heliomesh_message(const uint8_t *level, uint32_t battery, uint8_t weather, uint8_t *message);

/* Take what matters from the message of a device; false if nothing does or the message is damaged. */
bool heliomesh_hear(heliomesh_view *view, uint16_t from, const uint8_t *message, uint16_t num_bytes);

/* The action for a slot, 0 first, and a view; device_N.h says what happens after the last slot of a plan. */
uint8_t heliomesh_action(uint32_t slot, const heliomesh_view *view);

#endif
