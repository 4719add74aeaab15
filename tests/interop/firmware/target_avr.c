/* ATmega328P and ATmega2560 in simavr: the first serial port; sleep without interrupts ends the simulation. */
#include <avr/interrupt.h>
#include <avr/io.h>
#include <avr/sleep.h>

#include "target.h"

void target_put(char letter)
{
    UCSR0B = _BV(TXEN0);
    while (!(UCSR0A & _BV(UDRE0))) {
    }
    UDR0 = (uint8_t)letter;
}

void target_stop(void)
{
    cli();
    sleep_mode();
}
