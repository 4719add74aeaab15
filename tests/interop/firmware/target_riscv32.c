/* A 32-bit RISC-V of QEMU's virt machine: start-up code, serial port, and the register that ends the run. */
#include "target.h"

int main(void);
void begin(void);

void target_put(char letter)
{
    *(volatile uint8_t *)0x10000000u = (uint8_t)letter;
}

void target_stop(void)
{
    *(volatile uint32_t *)0x100000u = 0x5555u;
}

__attribute__((naked, section(".vectors"), used)) void begin(void)
{
    __asm__ volatile("la sp, stack_top\n\tcall main\n1:\tj 1b");
}
