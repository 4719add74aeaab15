/* Cortex-M0 of QEMU's microbit: start-up code, and semihosting for output and end. */
#include "target.h"

extern uint32_t data_begin, data_end, data_stored, bss_begin, bss_end, stack_top;
int main(void);
void reset(void);

static void semihost(uint32_t operation, const void *argument)
{
    register uint32_t r0 __asm__("r0") = operation;
    register const void *r1 __asm__("r1") = argument;
    __asm__ volatile("bkpt 0xAB" : "+r"(r0) : "r"(r1) : "memory");
}

void target_put(char letter)
{
    semihost(3, &letter);
}

void target_stop(void)
{
    semihost(0x18, (const void *)0x20026); /* the application ended as it should */
}

void reset(void)
{
    uint32_t *to, *from = &data_stored;
    for (to = &data_begin; to < &data_end; to++, from++) {
        *to = *from;
    }
    for (to = &bss_begin; to < &bss_end; to++) {
        *to = 0;
    }
    (void)main();
    target_stop();
    for (;;) {
    }
}

__attribute__((section(".vectors"), used)) const void *const vectors[2] = {&stack_top, (const void *)(uintptr_t)reset};
