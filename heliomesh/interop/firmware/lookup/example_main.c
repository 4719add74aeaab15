/*
 * Example program of a device that looks its actions up. A packet is the number of the device that measured, the links
 * it has yet to travel, and the message. Copy it before you change it: every export writes it anew.
 */
#include "example_board.h"
#include "heliomesh_device.h"

#define HEAD_BYTES 3u
#define PACKET_BYTES (HEAD_BYTES + HELIOMESH_LONGEST_MESSAGE_BYTES)

static heliomesh_view view;

/* Send what the device measures, and hear it as well. */
static void report(void)
{
    uint8_t level[HELIOMESH_SITES + 1u] = {0};
    uint8_t packet[PACKET_BYTES];
    uint32_t battery_microjoule;
    uint8_t weather;
    packet[0] = HELIOMESH_NUMBER & 0xFFu;
    packet[1] = HELIOMESH_NUMBER / 256u;
    packet[2] = HELIOMESH_HOPS;
    board_measure(level, &battery_microjoule, &weather);
    heliomesh_message(level, battery_microjoule, weather, &packet[HEAD_BYTES]);
    (void)heliomesh_hear(&view, HELIOMESH_NUMBER, &packet[HEAD_BYTES], HELIOMESH_MESSAGE_BYTES);
#if HELIOMESH_HOPS > 0u
    board_send(packet, HEAD_BYTES + HELIOMESH_MESSAGE_BYTES);
#endif
}

/* Hear all messages of a slot and pass on those that have farther to go than any earlier copy. */
static void listen(void)
{
    uint8_t packet[PACKET_BYTES];
    uint8_t links_left[HELIOMESH_DEVICES] = {0};
    uint16_t num_bytes = board_receive(packet, PACKET_BYTES);
    while (num_bytes > 0u) {
        const uint16_t from = (uint16_t)(packet[0] + (packet[1] * 256u));
        if ((num_bytes > HEAD_BYTES) && (from < HELIOMESH_DEVICES) && (from != HELIOMESH_NUMBER)
            && (packet[2] > links_left[from])) {
            links_left[from] = packet[2];
            (void)heliomesh_hear(&view, from, &packet[HEAD_BYTES], (uint16_t)(num_bytes - HEAD_BYTES));
            if (packet[2] > 1u) {
                packet[2]--;
                board_send(packet, num_bytes);
            }
        }
        num_bytes = board_receive(packet, PACKET_BYTES);
    }
}

int main(void)
{
    uint32_t slot = 0u;
    while (board_next_slot()) {
        report();
        listen();
        board_act(heliomesh_action(slot, &view));
        slot++;
    }
    return 0;
}
