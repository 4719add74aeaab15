/*
 * Example program of a device that bids and grants. A slot has three phases: bids, grants, models. A packet is its
 * phase, the number of its sender, the slot modulo SLOTS with a bit that says whether the sender is sure of it, and the
 * message. A model's parameters, which the board trains and stores, go along with the account in the third phase. Copy
 * this program before you change it: every export writes it anew.
 *
 * A device whose clock was lost has a guess of the slot. It takes the number of the first packet that is sure, and may
 * have missed the phases before. Where nobody is sure, the largest guess wins, so that all devices soon count alike. A
 * device that is sure keeps its count, and packets of another slot, as of a clock that drifted, change nothing.
 */
#include "example_board.h"
#include "heliomesh_device.h"

#define HEAD_BYTES 5u
#if HELIOMESH_ENDLESS > 0u
#define SLOTS ((0x8000u / HELIOMESH_SLOTS) * HELIOMESH_SLOTS) /* after which packets count anew: whole cycles */
#else
#define SLOTS 0x8000u
#endif
#define SURE 0x80u    /* highest bit of the slot's last byte */
#define BIDS 0u
#define GRANTS 1u
#define MODELS 2u
#define LONGER ((HELIOMESH_BID_BYTES > HELIOMESH_GRANT_BYTES) ? HELIOMESH_BID_BYTES : HELIOMESH_GRANT_BYTES)
#define PACKET_BYTES (HEAD_BYTES + LONGER)

static heliomesh_state state;
static uint32_t slot;
static bool is_sure;
static uint8_t packet[PACKET_BYTES];

static void send_packet(uint8_t phase, uint16_t num_bytes)
{
    packet[0] = phase;
    packet[1] = HELIOMESH_NUMBER & 0xFFu;
    packet[2] = HELIOMESH_NUMBER / 256u;
    packet[3] = (uint8_t)(slot & 0xFFu);
    packet[4] = (uint8_t)((slot >> 8u) & 0x7Fu);
    if (is_sure) {
        packet[4] |= SURE;
    }
    board_send(packet, HEAD_BYTES + num_bytes);
}

/* Take a packet's slot if this device is not sure of its own; whether both now count alike. */
static bool hear_slot(void)
{
    const bool other_is_sure = packet[4] >= SURE;
    const uint32_t heard = (((uint32_t)packet[4] & 0x7Fu) * 256u) + packet[3];
    if ((!is_sure) && (other_is_sure || (heard > (slot % SLOTS)))) {
        slot = (slot - (slot % SLOTS)) + heard;
        is_sure = other_is_sure;
    }
    return heard == (slot % SLOTS);
}

static void hear_packets(uint8_t phase)
{
    uint16_t num_bytes = board_receive(packet, PACKET_BYTES);
    while (num_bytes > 0u) {
        if ((num_bytes > HEAD_BYTES) && hear_slot() && (packet[0] == phase)) {
            const uint16_t from = (uint16_t)(packet[1] + (packet[2] * 256u));
            const uint16_t rest = num_bytes - HEAD_BYTES;
            if (phase == BIDS) {
                (void)heliomesh_hear_bid(&state, from, &packet[HEAD_BYTES], rest);
            } else if (phase == GRANTS) {
                (void)heliomesh_hear_grant(&state, from, &packet[HEAD_BYTES], rest);
            } else {
                (void)heliomesh_hear_model(&state, from, &packet[HEAD_BYTES], rest);
            }
        }
        num_bytes = board_receive(packet, PACKET_BYTES);
    }
}

int main(void)
{
    static uint8_t level[HELIOMESH_SITES + 1u];
    static uint8_t weather;
    is_sure = board_first_slot(&slot);
    while (board_next_slot(slot)) {
        uint32_t battery = 0u;
        uint16_t num_bytes;
        uint8_t action;
        board_measure(slot, level, &battery, &weather);
        num_bytes = heliomesh_bid(&state, slot, level, battery, weather, &packet[HEAD_BYTES]);
        if (num_bytes > 0u) {
            send_packet(BIDS, num_bytes);
        }
        hear_packets(BIDS);
        num_bytes = heliomesh_grant(&state, &packet[HEAD_BYTES]);
        if (num_bytes > 0u) {
            send_packet(GRANTS, num_bytes);
        }
        hear_packets(GRANTS);
        action = heliomesh_choose(&state);
        board_act(action);
        num_bytes = heliomesh_model(&state, action, &packet[HEAD_BYTES]);
        if (heliomesh_sends(action)) {
            send_packet(MODELS, num_bytes);
        }
        hear_packets(MODELS);
        heliomesh_average(&state);
        slot++;
    }
    return 0;
}
