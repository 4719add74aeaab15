/*
 * Example program of a device that looks its actions up. A packet is the number of the device that measured, the links
 * it has yet to travel, the number of the slot, and the message. Copy it before you change it: every export writes it
 * anew.
 *
 * A device whose clock was lost has a guess of the slot. It takes the number of the first packet that is sure. Where
 * nobody is sure, the largest guess wins, so that all devices soon count alike. A device that is sure keeps its count.
 */
#include "example_board.h"
#include "heliomesh_device.h"

#define HEAD_BYTES 7u
#define SURE 0x80u /* highest bit of the slot's last byte; plans count fewer slots */
#define PACKET_BYTES (HEAD_BYTES + HELIOMESH_LONGEST_MESSAGE_BYTES)

static heliomesh_view view;
static uint32_t slot;
static bool is_sure;

#if HELIOMESH_HOPS > 0u
static void write_slot(uint8_t *bytes)
{
    bytes[0] = (uint8_t)(slot & 0xFFu);
    bytes[1] = (uint8_t)((slot >> 8u) & 0xFFu);
    bytes[2] = (uint8_t)((slot >> 16u) & 0xFFu);
    bytes[3] = (uint8_t)((slot >> 24u) & 0x7Fu);
    if (is_sure) {
        bytes[3] |= SURE;
    }
}
#endif

static void hear_slot(const uint8_t *bytes)
{
    const bool other_is_sure = bytes[3] >= SURE;
    uint32_t heard = (uint32_t)bytes[3] & 0x7Fu;
    heard = (heard << 8u) | bytes[2];
    heard = (heard << 8u) | bytes[1];
    heard = (heard << 8u) | bytes[0];
    if ((!is_sure) && (other_is_sure || (heard > slot))) {
        slot = heard;
        is_sure = other_is_sure;
    }
}

/* Send what the device measures, and hear it as well. */
static void report(void)
{
    static uint8_t level[HELIOMESH_SITES + 1u];
    static uint8_t weather;
    uint8_t packet[PACKET_BYTES];
    uint32_t battery = 0u;
    board_measure(slot, level, &battery, &weather);
    heliomesh_message(level, battery, weather, &packet[HEAD_BYTES]);
    (void)heliomesh_hear(&view, HELIOMESH_NUMBER, &packet[HEAD_BYTES], HELIOMESH_MESSAGE_BYTES);
#if HELIOMESH_HOPS > 0u
    packet[0] = HELIOMESH_NUMBER & 0xFFu;
    packet[1] = HELIOMESH_NUMBER / 256u;
    packet[2] = HELIOMESH_HOPS;
    write_slot(&packet[3]);
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
            hear_slot(&packet[3]);
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
    is_sure = board_first_slot(&slot);
    while (board_next_slot(slot)) {
        report();
        listen();
        board_act(heliomesh_action(slot, &view));
        slot++;
    }
    return 0;
}
