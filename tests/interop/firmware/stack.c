/* Runs the example on painted stack and tells how many bytes of it were used, as eight hexadecimal digits. */
#define main example
__attribute__((noinline)) int main(void);
#include "example_main.c"
#undef main
#include "target.h"

#define PAINTED 1200u /* bytes */
#define OWN 32u       /* bytes that may belong to main */
#define PAINT 0xA5u

int main(void)
{
    volatile uint8_t here = 0;
    volatile uintptr_t top = (uintptr_t)&here; /* a number, since compilers know the bounds of pointers */
    uint16_t distance, used;
    uint8_t digit;
    for (distance = OWN; distance < PAINTED; distance++) {
        *(volatile uint8_t *)(top - distance) = PAINT;
    }
    (void)example();
    for (used = PAINTED - 1u; used > OWN && *(volatile uint8_t *)(top - used) == PAINT; used--) {
    }
    for (digit = 0; digit < 8u; digit++) {
        const uint8_t value = digit < 4u ? 0u : (uint8_t)(used >> (4u * (7u - digit)) & 15u);
        target_put((char)(value < 10u ? '0' + value : 'a' + value - 10));
    }
    target_put('\n');
    target_stop();
    return 0;
}
