/* See heliomesh_levels.h. */
#define HELIOMESH_WITH_THRESHOLDS
#include "heliomesh_levels.h"

void heliomesh_note_loss(uint8_t *level, uint16_t from, int16_t loss)
{
#if HELIOMESH_CHANNEL_CUTS > 0u
    const int32_t shifted = (int32_t)loss + 32768;
    const uint32_t stored = (uint32_t)shifted;
    uint16_t place;
    for (place = 0u; place < HELIOMESH_NEIGHBOURS; place++) {
        if (table_neighbour(place) == from) {
            const uint32_t first = (uint32_t)place * HELIOMESH_CHANNEL_CUTS;
            uint8_t found = 0u;
            while ((found < HELIOMESH_CHANNEL_CUTS) && (stored <= table_loss_cut(first + found))) {
                found++;
            }
            level[table_neighbour_site(place)] = found;
        }
    }
#else
    (void)level; /* there is one level, or no neighbour */
    (void)from;
    (void)loss;
#endif
}

#if HELIOMESH_WEATHER_CUTS > 0u
/* Which cuts of the harvest hold in a slot. */
static uint32_t phase_of(uint32_t slot)
{
#if HELIOMESH_WEATHER_SLOTS > 1u
    return table_phase(slot % HELIOMESH_WEATHER_SLOTS);
#else
    (void)slot; /* every slot has the same ones */
    return 0u;
#endif
}
#endif

uint8_t heliomesh_weather(uint32_t slot, uint32_t harvest, uint8_t last)
{
#if HELIOMESH_WEATHER_CUTS > 0u
    const uint32_t first = phase_of(slot) * HELIOMESH_WEATHER_CUTS;
    uint8_t weather = last;
#if HELIOMESH_FORECASTS > 1u
    weather -= last % HELIOMESH_FORECASTS;
#endif
    if (table_harvest_cut(first) != UINT32_MAX) { /* else all weathers are alike in this slot */
        uint8_t rank = 0u;
        while ((rank < HELIOMESH_WEATHER_CUTS) && (harvest >= table_harvest_cut(first + rank))) {
            rank++;
        }
        weather = table_weather_of_rank(rank);
    }
    return weather;
#else
    (void)slot; /* there is one weather */
    (void)harvest;
    return last;
#endif
}
