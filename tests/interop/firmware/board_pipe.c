/* A board whose radio, clock and sensors are a pipe to the test. */
#include <stdio.h>
#include <stdlib.h>

#include "example_board.h"
#include "heliomesh_device.h"

static void read_bytes(void *to, size_t num_bytes)
{
    (void)fflush(stdout);
    if (fread(to, 1, num_bytes, stdin) != num_bytes) {
        exit(1);
    }
}

/* 0xFF: the clock was lost; else a sure slot. */
bool board_first_slot(uint32_t *slot)
{
    uint8_t first;
    (void)putchar('F');
    read_bytes(&first, 1);
    *slot = (first == 0xFFu) ? 0u : first;
    return first != 0xFFu;
}

bool board_next_slot(uint32_t slot)
{
    uint8_t more;
    (void)slot;
    (void)putchar('S');
    read_bytes(&more, 1);
    return more != 0u;
}

void board_measure(uint32_t slot, uint8_t *level, uint32_t *battery, uint8_t *weather)
{
    (void)slot;
    read_bytes(level, HELIOMESH_SITES);
    read_bytes(weather, 1);
    read_bytes(battery, 4);
}

void board_send(const uint8_t *packet, uint16_t num_bytes)
{
    (void)putchar('P');
    (void)fwrite(&num_bytes, 2, 1, stdout);
    (void)fwrite(packet, 1, num_bytes, stdout);
}

uint16_t board_receive(uint8_t *packet, uint16_t room)
{
    uint16_t num_bytes;
    (void)putchar('R');
    read_bytes(&num_bytes, 2);
    if (num_bytes > room) {
        exit(2);
    }
    read_bytes(packet, num_bytes);
    return num_bytes;
}

void board_act(uint8_t action)
{
    (void)putchar('A');
    (void)putchar(action);
}
