/*
 * Example program of a device that decides by message rounds. All devices go through the same phases. A packet is the
 * number of its phase (modulo 256), the number of its sender, and numbers with their low bytes first. Shares of the
 * cost are summed up along a tree, and its root tells everybody the best start. A row or a choice that is lost costs
 * optimality, not safety: a device never does what its battery does not pay for.
 * Copy it before you change it: every export writes it anew.
 */
#include "example_board.h"
#include "heliomesh_device.h"

#define HEAD_BYTES 3u
#define TO_BYTES 2u /* the device that is addressed, where it is one */
#define NUMBER_BYTES 8u
#define PACKET_BYTES (HEAD_BYTES + TO_BYTES + (NUMBER_BYTES * (HELIOMESH_ACTIONS + HELIOMESH_STARTS)))

static heliomesh_state state;
static uint8_t phase;
static uint8_t packet[PACKET_BYTES];
static uint16_t length; /* bytes of the packet that were written or read */
static uint16_t size;   /* bytes of the packet that were heard */

static void put(int64_t number, uint8_t num_bytes)
{
    uint64_t rest = (uint64_t)number;
    uint8_t place;
    for (place = 0u; place < num_bytes; place++) {
        packet[length] = (uint8_t)(rest & 0xFFu);
        rest >>= 8u;
        length++;
    }
}

/* A number that was put with as many bytes; bytes that did not come count as zero. */
static int64_t get(uint8_t num_bytes)
{
    uint64_t number = 0u;
    uint8_t place;
    uint8_t shift = 0u;
    for (place = 0u; place < num_bytes; place++) {
        uint64_t byte = 0u;
        if (length < size) {
            byte = packet[length];
        }
        number |= byte << shift;
        shift += 8u;
        length++;
    }
    return (int64_t)number;
}

static void begin_packet(void)
{
    length = 0u;
    put((int64_t)phase, 1u);
    put((int64_t)HELIOMESH_NUMBER, 2u);
}

static void send_packet(void)
{
    board_send(packet, length);
}

/* The next packet of the present phase; false once the phase is over, and then the next phase has begun. */
static bool hear_packet(uint16_t *from)
{
    bool heard = false;
    do {
        size = board_receive(packet, PACKET_BYTES);
        length = 0u;
        heard = (size > HEAD_BYTES) && (get(1u) == (int64_t)phase);
    } while ((size > 0u) && !heard);
    if (heard) {
        *from = (uint16_t)get(2u);
    } else {
        phase++;
    }
    return heard;
}

static void measure(uint32_t slot)
{
    static uint8_t level[HELIOMESH_SITES + 1u];
    static uint8_t weather;
    uint32_t battery = 0u;
    board_measure(slot, level, &battery, &weather);
    heliomesh_begin(&state, level, battery, weather);
}

#if HELIOMESH_ENERGY_TOLD > 0u
static void tell_energy(void)
{
    uint16_t from;
    (void)heliomesh_note_energy(&state, HELIOMESH_NUMBER, state.energy);
    begin_packet();
    put((int64_t)state.energy, 2u);
    send_packet();
    while (hear_packet(&from)) {
        (void)heliomesh_note_energy(&state, from, (uint16_t)get(2u));
    }
}
#endif

/* Tell the present action, if it is this device's turn, and note the actions of others. */
static void tell_action(bool own_turn)
{
    uint16_t from;
    if (own_turn) {
        (void)heliomesh_note(&state, HELIOMESH_NUMBER, state.action);
        begin_packet();
        put((int64_t)state.action, 1u);
        send_packet();
    }
    while (hear_packet(&from)) {
        (void)heliomesh_note(&state, from, (uint8_t)get(1u));
    }
}

/* Send rows to the devices of a colour, and add up those that come for this one. */
static void exchange_rows(uint32_t slot, uint8_t colour, int32_t *sum)
{
    uint16_t from;
    uint8_t place;
    uint8_t action;
    for (place = 0u; place != HELIOMESH_HEARD; place++) {
        const uint16_t device = heliomesh_heard_device(place);
        if (heliomesh_heard_colour(place) != colour) {
            continue;
        }
        if (device == HELIOMESH_NUMBER) {
            (void)heliomesh_row(&state, slot, device, sum);
        } else {
            int32_t row[HELIOMESH_ACTIONS] = {0};
            (void)heliomesh_row(&state, slot, device, row);
            begin_packet();
            put((int64_t)device, TO_BYTES);
            for (action = 0u; action < HELIOMESH_ACTIONS; action++) {
                put((int64_t)row[action], 4u);
            }
            send_packet();
        }
    }
    while (hear_packet(&from)) {
        if (get(TO_BYTES) == (int64_t)HELIOMESH_NUMBER) {
            for (action = 0u; action < HELIOMESH_ACTIONS; action++) {
                sum[action] += (int32_t)get(4u);
            }
        }
    }
}

static void move_in_turns(uint32_t slot)
{
    uint8_t colour;
    for (colour = 0u; colour < HELIOMESH_COLOURS; colour++) {
        const bool own_turn = colour == HELIOMESH_COLOUR;
        int32_t sum[HELIOMESH_ACTIONS] = {0};
        exchange_rows(slot, colour, sum);
        if (own_turn) {
            (void)heliomesh_move(&state, slot, sum);
        }
        tell_action(own_turn);
    }
}

#if HELIOMESH_MESSAGES > 0u
/* Send advice to all devices heard, add up what comes for this one, and add the own prices. */
static void exchange_advice(uint32_t slot, int64_t *belief)
{
    uint16_t from;
    uint8_t place;
    uint8_t action;
    for (action = 0u; action < HELIOMESH_ACTIONS; action++) {
        belief[action] = 0;
    }
    for (place = 0u; place != HELIOMESH_HEARD; place++) {
        const uint16_t device = heliomesh_heard_device(place);
        if (device == HELIOMESH_NUMBER) {
            (void)heliomesh_advice(&state, device, belief);
        } else {
            begin_packet();
            put((int64_t)device, TO_BYTES);
            for (action = 0u; action < HELIOMESH_ACTIONS; action++) {
                put(state.advice[place][action], NUMBER_BYTES);
            }
            send_packet();
        }
    }
    while (hear_packet(&from)) {
        if (get(TO_BYTES) == (int64_t)HELIOMESH_NUMBER) {
            for (action = 0u; action < HELIOMESH_ACTIONS; action++) {
                belief[action] += get(NUMBER_BYTES);
            }
        }
    }
    heliomesh_belief(&state, slot, belief);
}

static void tell_belief(const int64_t *belief)
{
    uint16_t from;
    uint8_t action;
    (void)heliomesh_wish(&state, HELIOMESH_NUMBER, belief);
    begin_packet();
    for (action = 0u; action < HELIOMESH_ACTIONS; action++) {
        put(belief[action], NUMBER_BYTES);
    }
    send_packet();
    while (hear_packet(&from)) {
        int64_t other[HELIOMESH_ACTIONS];
        for (action = 0u; action < HELIOMESH_ACTIONS; action++) {
            other[action] = get(NUMBER_BYTES);
        }
        (void)heliomesh_wish(&state, from, other);
    }
}

static void advise(uint32_t slot, int64_t *belief)
{
    uint8_t message;
    for (message = 0u; message < HELIOMESH_MESSAGES; message++) {
        exchange_advice(slot, belief);
        tell_belief(belief);
        heliomesh_advise(&state, slot);
    }
    exchange_advice(slot, belief);
}
#endif

/* Add up the shares along the tree, the farthest devices first; the root has the sum over the network in the end. */
static void add_up(int64_t *cost)
{
    uint8_t depth;
    for (depth = HELIOMESH_DEPTHS; depth > 1u; depth--) {
        uint16_t from;
        uint8_t start;
        if (HELIOMESH_DEPTH == (depth - 1u)) {
            begin_packet();
            put((int64_t)HELIOMESH_PARENT, TO_BYTES);
            for (start = 0u; start < HELIOMESH_STARTS; start++) {
                put(cost[start], NUMBER_BYTES);
            }
            send_packet();
        }
        while (hear_packet(&from)) {
            if (get(TO_BYTES) == (int64_t)HELIOMESH_NUMBER) {
                for (start = 0u; start < HELIOMESH_STARTS; start++) {
                    cost[start] += get(NUMBER_BYTES);
                }
            }
        }
    }
}

/* The root chooses the best start; the choice travels down the tree. */
static uint8_t choose(const int64_t *cost)
{
    uint8_t best = 0u;
    uint8_t start;
    uint8_t depth;
    for (start = 1u; start < HELIOMESH_STARTS; start++) {
        best = (cost[start] < cost[best]) ? start : best;
    }
    for (depth = 1u; depth < HELIOMESH_DEPTHS; depth++) {
        uint16_t from;
        if (HELIOMESH_DEPTH == (depth - 1u)) {
            begin_packet();
            put((int64_t)best, 1u);
            send_packet();
        }
        while (hear_packet(&from)) {
            const int64_t told = get(1u);
            if ((HELIOMESH_DEPTH == depth) && (from == HELIOMESH_PARENT) && (told < (int64_t)HELIOMESH_STARTS)) {
                best = (uint8_t)told;
            }
        }
    }
    return best;
}

static uint8_t decide(uint32_t slot)
{
    int64_t cost[HELIOMESH_STARTS];
    uint8_t action[HELIOMESH_STARTS];
    uint8_t start;
#if HELIOMESH_MESSAGES > 0u
    int64_t belief[HELIOMESH_ACTIONS];
    advise(slot, belief);
#endif
    for (start = 0u; start < HELIOMESH_STARTS; start++) {
        uint8_t turn;
        (void)heliomesh_start(&state, slot, start);
#if HELIOMESH_MESSAGES > 0u
        if (start == 2u) {
            (void)heliomesh_start_advised(&state, slot, belief);
        }
#endif
        tell_action(true);
        for (turn = 0u; turn < HELIOMESH_ROUNDS; turn++) {
            move_in_turns(slot);
        }
        cost[start] = (int64_t)heliomesh_share(&state, slot);
        action[start] = state.action;
    }
    add_up(cost);
    return action[choose(cost)];
}

int main(void)
{
    uint32_t slot = 0u;
    (void)board_first_slot(&slot);
    while (board_next_slot(slot)) {
        phase = 0u;
        measure(slot);
#if HELIOMESH_ENERGY_TOLD > 0u
        tell_energy();
#endif
        board_act(decide(slot));
        slot++;
    }
    return 0;
}
