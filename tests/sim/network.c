/* The network between simulated nodes. A link is one way; a connection both. */
#include <stdlib.h>

#include "check.h"
#include "sim.h"

/* A copy through the wire form. */
static int take_message(void *arg, struct keel_message *msg_take)
{
    *(struct keel_message **)arg = msg_take;
    return 0;
}

static struct keel_message *copy_message(struct sim *sim, const struct keel_message *msg)
{
    struct keel_message *copy = NULL;
    struct keel_buf *wire = keel_message_encode(msg);
    struct frame_reader *reader = frame_reader_new();

    if (frame_reader_feed(reader, keel_buf_slice(wire), take_message, &copy) != 0 || copy == NULL)
        check_fail(sim, "a message of type %d does not survive its own encoding", (int)msg->type);
    frame_reader_free(reader);
    keel_buf_free(wire);
    return copy;
}

static void deliver_at(struct sim *sim, unsigned from, unsigned to, uint64_t at,
                       struct keel_message *msg_take)
{
    struct sim_event *event = sim_event_at(sim, at, EVENT_MESSAGE, to);

    event->from = from;
    event->link_epoch = sim->links[from][to].epoch;
    event->msg = msg_take;
}

void network_send(struct sim *sim, unsigned from, unsigned to, struct keel_message *msg_take)
{
    const struct sim_shape *shape = sim->shape;
    struct sim_link *link = &sim->links[from][to];

    if (!sim->nodes[to].up || !link->connected || link->cut ||
        (!sim->calm && sim_chance(&sim->net_rng, shape->loss))) {
        keel_message_free(msg_take);
        return;
    }
    uint64_t at = sim->now_us + 50 + keel_rng_below(&sim->net_rng, shape->delay_max_us);

    if (!sim_chance(&sim->net_rng, shape->reorder) && at <= link->last_delivery_us)
        at = link->last_delivery_us + 1;
    if (at > link->last_delivery_us)
        link->last_delivery_us = at;
    if (sim_chance(&sim->net_rng, shape->duplicate)) {
        struct keel_message *copy = copy_message(sim, msg_take);

        if (copy != NULL)
            deliver_at(sim, from, to, at + keel_rng_below(&sim->net_rng, 50000), copy);
    }
    if (shape->codec) {
        struct keel_message *copy = copy_message(sim, msg_take);

        keel_message_free(msg_take);
        msg_take = copy;
    }
    if (msg_take != NULL)
        deliver_at(sim, from, to, at, msg_take);
}

void network_deliver(struct sim *sim, struct sim_event *event)
{
    struct sim_node *node = &sim->nodes[event->node];
    const struct sim_link *link = &sim->links[event->from][event->node];

    if (!link->connected || link->epoch != event->link_epoch)
        return;
    struct keel_message *msg = event->msg;

    event->msg = NULL;
    replica_on_alive(node->replica, event->from + 1);
    replica_on_message(node->replica, event->from + 1, msg);
    sim_node_settle(node);
}

/* ---- connections ---- */

static void set_connected(struct sim *sim, unsigned a, unsigned b, bool connected)
{
    struct sim_link *there = &sim->links[a][b], *back = &sim->links[b][a];

    there->connected = back->connected = connected;
    there->epoch++;
    back->epoch++;
    there->last_delivery_us = back->last_delivery_us = 0;
}

static void tell_disconnected(struct sim *sim, unsigned a, unsigned b)
{
    struct sim_node *node = &sim->nodes[a];

    if (!node->up || node->replica == NULL)
        return;
    replica_on_disconnected(node->replica, b + 1);
    sim_node_settle(node);
}

static void tell_connected(struct sim *sim, unsigned a, unsigned b)
{
    struct sim_node *node = &sim->nodes[a];

    replica_on_connected(node->replica, b + 1, sim->nodes[b].incarnation, 1);
    sim_node_settle(node);
}

static void connect_later(struct sim *sim, unsigned a, unsigned b)
{
    struct sim_event *event = sim_event_at(
        sim, sim->now_us + 1000 + keel_rng_below(&sim->net_rng, 100000), EVENT_CONNECT, a);

    event->from = b;
}

void network_connect_event(struct sim *sim, struct sim_event *event)
{
    unsigned a = event->node, b = event->from;

    if (!sim->nodes[a].up || !sim->nodes[b].up || sim->links[a][b].connected)
        return;
    if (sim->links[a][b].cut || sim->links[b][a].cut) {
        connect_later(sim, a, b);
        return;
    }
    set_connected(sim, a, b, true);
    tell_connected(sim, a, b);
    tell_connected(sim, b, a);
}

void network_disconnect_event(struct sim *sim, struct sim_event *event)
{
    if (!sim->links[event->node][event->from].connected)
        tell_disconnected(sim, event->node, event->from);
    connect_later(sim, event->node, event->from);
}

/* One side knows at once; the other may go on for a while as if nothing had happened. */
void network_reset(struct sim *sim, unsigned a, unsigned b)
{
    if (!sim->links[a][b].connected)
        return;
    set_connected(sim, a, b, false);
    tell_disconnected(sim, a, b);
    struct sim_event *event =
        sim_event_at(sim, sim->now_us + keel_rng_below(&sim->net_rng, 150000), EVENT_DISCONNECT, b);

    event->from = a;
}

void network_node_up(struct sim *sim, unsigned slot)
{
    for (unsigned i = 0; i < sim->shape->nodes; i++)
        if (i != slot)
            connect_later(sim, slot, i);
}

/* The other sides notice that it is gone: its kernel closes the connections. */
void network_node_down(struct sim *sim, unsigned slot)
{
    for (unsigned i = 0; i < sim->shape->nodes; i++) {
        if (i == slot || !sim->links[slot][i].connected)
            continue;
        set_connected(sim, slot, i, false);
        tell_disconnected(sim, i, slot);
    }
}

/* ---- faults ---- */

static void cut_some(struct sim *sim)
{
    unsigned nodes = sim->shape->nodes;
    unsigned victim = (unsigned)keel_rng_below(&sim->fault_rng, nodes);
    bool out = !sim_chance(&sim->fault_rng, 300), in = !out || !sim_chance(&sim->fault_rng, 300);

    for (unsigned i = 0; i < nodes; i++) {
        if (i == victim || sim_chance(&sim->fault_rng, 200))
            continue;
        sim->links[victim][i].cut |= out;
        sim->links[i][victim].cut |= in;
    }
    sim_trace(sim, "n%u is cut off%s%s", victim, out ? ", out" : "", in ? ", in" : "");
    sim_event_at(sim, sim->now_us + keel_rng_below(&sim->fault_rng, 2500000), EVENT_HEAL, 0);
}

void network_fault(struct sim *sim)
{
    unsigned a = (unsigned)keel_rng_below(&sim->fault_rng, sim->shape->nodes);
    unsigned b = (unsigned)keel_rng_below(&sim->fault_rng, sim->shape->nodes);

    if (sim->shape->nodes < 2)
        return;
    if (a != b && sim_chance(&sim->fault_rng, 600)) {
        sim_trace(sim, "n%u - n%u reset", a, b);
        network_reset(sim, a, b);
        if (sim_chance(&sim->fault_rng, 500)) /* a loses all of its connections */
            for (unsigned i = 0; i < sim->shape->nodes; i++)
                if (i != a)
                    network_reset(sim, i, a);
    } else {
        cut_some(sim);
    }
}

void network_heal(struct sim *sim)
{
    for (unsigned a = 0; a < sim->shape->nodes; a++)
        for (unsigned b = 0; b < sim->shape->nodes; b++)
            sim->links[a][b].cut = false;
}
