/* A whole network in one program: its devices, random states, and where the actions go. */
#ifndef NETWORK_H
#define NETWORK_H

#include <stdbool.h>
#include <stdint.h>

/* One device, whatever its tables. */
typedef struct {
    const uint8_t *message; /* that it writes */
#ifdef LOOKUP
    void (*begin)(const uint8_t *level, uint32_t battery, uint8_t weather);
    uint16_t message_bytes;
    bool (*hear)(uint16_t from, const uint8_t *message, uint16_t num_bytes);
    uint8_t (*action)(uint32_t slot);
#else
    void (*know)(const uint8_t *account);
    uint16_t (*bid)(uint32_t slot, const uint8_t *level, uint32_t battery, uint8_t weather);
    uint16_t (*grant)(void);
    uint8_t (*choose)(void);
    uint16_t (*model)(uint8_t action);
    bool (*sends)(uint8_t action);
    bool (*hear[3])(uint16_t from, const uint8_t *message, uint16_t num_bytes); /* bid, grant, model */
    void (*average)(void);
#endif
} device;

/* Take what the next device does: its action, or a byte of its account. */
void result(uint8_t byte);

/* All actions were taken. */
void finish(void);

#endif
