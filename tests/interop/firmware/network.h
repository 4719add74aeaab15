/* A whole network in one program: its devices, random states, and where the actions go. */
#ifndef NETWORK_H
#define NETWORK_H

#include <stdbool.h>
#include <stdint.h>

/* One device, whatever its tables. */
typedef struct {
    uint8_t colour;
    void (*begin)(const uint8_t *level, uint32_t battery, uint8_t weather);
#ifdef LOOKUP
    const uint8_t *message;
    uint16_t message_bytes;
    bool (*hear)(uint16_t from, const uint8_t *message, uint16_t num_bytes);
    uint8_t (*action)(uint32_t slot);
#else
    uint16_t (*energy)(void);
    bool (*note_energy)(uint16_t from, uint16_t energy);
    bool (*advice)(uint16_t from, int64_t *row);
    void (*belief)(uint32_t slot, int64_t *row);
    bool (*wish)(uint16_t from, const int64_t *belief);
    void (*advise)(uint32_t slot);
    uint8_t (*start)(uint32_t slot, uint8_t start, const int64_t *belief);
    bool (*note)(uint16_t from, uint8_t action);
    bool (*row)(uint32_t slot, uint16_t from, int32_t *row);
    uint8_t (*move)(uint32_t slot, const int32_t *row);
    int32_t (*share)(uint32_t slot);
#endif
} device;

/* Take the action of the next device. */
void result(uint8_t action);

/* All actions were taken. */
void finish(void);

#endif
