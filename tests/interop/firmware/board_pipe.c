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

bool board_next_slot(void)
{
    uint8_t more;
    (void)putchar('S');
    read_bytes(&more, 1);
    return more != 0u;
}

void board_measure(uint8_t *level, uint32_t *battery_microjoule, uint8_t *weather)
{
    read_bytes(level, HELIOMESH_SITES);
    read_bytes(weather, 1);
    read_bytes(battery_microjoule, 4);
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
