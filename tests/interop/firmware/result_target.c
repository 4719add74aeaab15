/* On a microcontroller: the FNV-1a hash of all actions, in hexadecimal digits. */
#include "network.h"
#include "target.h"

static uint32_t hash = 2166136261u;

void result(uint8_t action)
{
    hash = (hash ^ action) * 16777619u;
}

void finish(void)
{
    uint8_t digit;
    for (digit = 0; digit < 8u; digit++) {
        const uint8_t value = (uint8_t)(hash >> 28);
        target_put((char)(value < 10u ? '0' + value : 'a' + value - 10));
        hash <<= 4;
    }
    target_put('\n');
    target_stop();
}
