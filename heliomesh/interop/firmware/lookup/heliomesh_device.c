/* See heliomesh_device.h. */
#define HELIOMESH_WITH_TABLES
#include "heliomesh_device.h"

void heliomesh_message(const uint8_t *level, uint32_t battery, uint8_t weather, uint8_t *message)
{
    uint32_t energy = weather;
    uint32_t cell = 0u;
    uint8_t site;
    if (energy >= HELIOMESH_WEATHERS) {
        energy = HELIOMESH_WEATHERS - 1u;
    }
    while ((cell != HELIOMESH_CUTS) && (battery >= table_cut(cell))) {
        cell++;
    }
    for (site = 0u; site != HELIOMESH_SITES; site++) {
        message[site] = level[site];
    }
    energy = (energy * (HELIOMESH_CUTS + 1u)) + cell;
    message[HELIOMESH_SITES] = (uint8_t)energy;
}

/* Whether all that matters of a message is there and within its range. */
static bool is_whole(uint16_t from, const uint8_t *message, uint16_t num_bytes)
{
    bool whole = true;
    uint8_t place;
    for (place = 0u; place != HELIOMESH_SCOPE; place++) {
        if (table_from(place) == from) {
            const uint8_t byte = table_byte(place);
            if ((byte >= num_bytes) || (message[byte] >= table_size(place))) {
                whole = false;
                break;
            }
        }
    }
    return whole;
}

bool heliomesh_hear(heliomesh_view *view, uint16_t from, const uint8_t *message, uint16_t num_bytes)
{
    const bool whole = is_whole(from, message, num_bytes);
    bool used = false;
    uint8_t place;
    for (place = 0u; whole && (place != HELIOMESH_SCOPE); place++) {
        if (table_from(place) == from) {
            view->value[place] = message[table_byte(place)];
            used = true;
        }
    }
    return used;
}

/* Number of the table of a slot. */
static uint32_t table_in(uint32_t slot)
{
#if (HELIOMESH_TABLE_SLOTS > 1u) && (HELIOMESH_ENDLESS > 0u)
    return table_of_slot(slot % HELIOMESH_TABLE_SLOTS);
#elif HELIOMESH_TABLE_SLOTS > 1u
    return table_of_slot((slot < HELIOMESH_TABLE_SLOTS) ? slot : (HELIOMESH_TABLE_SLOTS - 1u));
#else
    (void)slot; /* every slot has the same table */
    return 0u;
#endif
}

uint8_t heliomesh_action(uint32_t slot, const heliomesh_view *view)
{
    uint32_t entry = table_in(slot);
    uint8_t place;
    for (place = 0u; place != HELIOMESH_SCOPE; place++) {
        entry = (entry * table_size(place)) + view->value[place];
    }
    return table_action(entry);
}
