/* The network between simulated nodes, and what a node's pool of connections does: whom it dials,
 * whom it lets in. A link is one way; a connection both. */
#include <inttypes.h>
#include <stdlib.h>

#include "check.h"
#include "checks.h"

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

static struct sim_event *deliver_at(struct sim *sim, unsigned from, unsigned to, uint64_t at,
                                    struct keel_message *msg_take)
{
    struct sim_event *event = sim_event_at(sim, at, EVENT_MESSAGE, to);

    event->from = from;
    event->link_epoch = sim->links[from][to].epoch;
    event->msg = msg_take;
    return event;
}

/* Once more, later; raft's own also across a connection that was closed and made anew. */
static void deliver_again(struct sim *sim, unsigned from, unsigned to, uint64_t at,
                          const struct keel_message *msg)
{
    struct keel_message *copy = copy_message(sim, msg);
    bool stray = msg->type == MESSAGE_RAFT && sim_chance(&sim->net_rng, 300);
    uint64_t later = stray ? 400000 : 50000;

    if (copy == NULL)
        return;
    struct sim_event *event =
        deliver_at(sim, from, to, at + keel_rng_below(&sim->net_rng, later), copy);

    event->from_id = stray ? sim->nodes[from].id : 0;
    event->first = sim->nodes[to].id;
}

static uint64_t delivery_time(struct sim *sim, struct sim_link *link)
{
    uint64_t at = sim->now_us + 50 + keel_rng_below(&sim->net_rng, sim->shape->delay_max_us);

    if (at < link->clogged_until_us)
        at = link->clogged_until_us + keel_rng_below(&sim->net_rng, 1000);
    if (!sim_chance(&sim->net_rng, sim->shape->reorder) && at <= link->last_delivery_us)
        at = link->last_delivery_us + 1;
    if (at > link->last_delivery_us)
        link->last_delivery_us = at;
    return at;
}

static void trace_raft(struct sim *sim, unsigned from, unsigned to, const struct raft_message *m)
{
    const char *name = raft_message_name(m->type);

    if (m->type == RAFT_VOTE_REQUEST)
        sim_trace(sim, "  n%u > n%u %s %" PRIu64 "%s%s at %" PRIu64 " of %" PRIu64, from, to, name,
                  m->term, m->u.vote_request.pre ? " pre" : "",
                  m->u.vote_request.transfer ? " transfer" : "", m->u.vote_request.last_index,
                  m->u.vote_request.last_term);
    else if (m->type == RAFT_VOTE_REPLY)
        sim_trace(sim, "  n%u > n%u %s %" PRIu64 "%s %s", from, to, name, m->term,
                  m->u.vote_reply.pre ? " pre" : "",
                  m->u.vote_reply.granted ? "granted" : "refused");
    else if (m->type == RAFT_APPEND)
        sim_trace(sim,
                  "  n%u > n%u %s %" PRIu64 ": %zu behind %" PRIu64 " of %" PRIu64
                  ", commit %" PRIu64,
                  from, to, name, m->term, m->u.append.count, m->u.append.prev_index,
                  m->u.append.prev_term, m->u.append.commit);
    else if (m->type == RAFT_APPEND_REPLY)
        sim_trace(sim, "  n%u > n%u %s %" PRIu64 ": %s %" PRIu64, from, to, name, m->term,
                  m->u.append_reply.rejected ? "rejected" : "up to", m->u.append_reply.index);
    else
        sim_trace(sim, "  n%u > n%u %s %" PRIu64, from, to, name, m->term);
}

static void trace_message(struct sim *sim, unsigned from, unsigned to,
                          const struct keel_message *msg)
{
    if (msg->type == MESSAGE_RAFT)
        trace_raft(sim, from, to, msg->raft);
    else
        sim_trace(sim, "  n%u > n%u message %d", from, to, (int)msg->type);
}

void network_send(struct sim *sim, struct sim_node *node, uint64_t id,
                  struct keel_message *msg_take)
{
    const struct sim_shape *shape = sim->shape;
    const struct sim_node *peer = sim_node_by_id(sim, id);
    unsigned from = node->slot, to = sim_slot_of(id);

    if (msg_take->type == MESSAGE_RAFT)
        check_sent(node, msg_take->raft);
    if (peer == NULL || !peer->up || !sim->links[from][to].connected || sim->links[from][to].cut ||
        (!sim->calm && sim_chance(&sim->net_rng, shape->loss))) {
        keel_message_free(msg_take);
        return;
    }
    uint64_t at = delivery_time(sim, &sim->links[from][to]);

    if (sim->trace_messages)
        trace_message(sim, from, to, msg_take);
    if (msg_take->type == MESSAGE_RAFT && !sim->calm)
        faults_after(node, msg_take->raft);
    if (sim_chance(&sim->net_rng, shape->duplicate))
        deliver_again(sim, from, to, at, msg_take);
    if (shape->codec) {
        struct keel_message *copy = copy_message(sim, msg_take);

        keel_message_free(msg_take);
        msg_take = copy;
    }
    if (msg_take != NULL)
        deliver_at(sim, from, to, at, msg_take);
}

static bool may_arrive(const struct sim *sim, const struct sim_event *event)
{
    const struct sim_link *link = &sim->links[event->from][event->node];

    if (event->from_id != 0)
        return link->connected && event->from_id == sim->nodes[event->from].id &&
               event->first == sim->nodes[event->node].id;
    if (link->connected)
        return link->epoch == event->link_epoch;
    return link->untold && link->epoch == event->link_epoch + 1;
}

void network_deliver(struct sim *sim, struct sim_event *event)
{
    struct sim_node *node = &sim->nodes[event->node];
    struct keel_message *msg = event->msg;

    if (!may_arrive(sim, event))
        return;
    event->msg = NULL;
    if (sim->trace_messages && msg->type == MESSAGE_FORWARD)
        sim_trace(sim, "  n%u < n%u forward %" PRIu64 "/%" PRIu64 ", %" PRId64 " us left",
                  event->node, event->from, msg->session, msg->number,
                  (int64_t)(msg->deadline_us - sim_node_clock(node)));
    replica_on_alive(node->replica, sim->nodes[event->from].id);
    replica_on_message(node->replica, sim->nodes[event->from].id, msg);
    sim_node_settle(node);
}

/* ---- whom a node knows ---- */

static const struct apply_member *find_member(const struct sim_node *node, uint64_t id)
{
    size_t count;
    const struct apply_member *members = apply_members(node->apply, &count);

    for (size_t i = 0; i < count; i++)
        if (members[i].id == id)
            return &members[i];
    return NULL;
}

static uint64_t config_index_of(const struct sim_node *node)
{
    uint64_t index;

    apply_config(node->apply, &index);
    return index;
}

bool network_knows(const struct sim_node *node, const struct sim_node *other)
{
    if (config_index_of(node) == 0)
        return check_holds_id(node->welcome, node->welcome_count, other->id);
    return find_member(node, other->id) != NULL;
}

/* As the pool and the node decide about a HELLO. */
static bool admits(const struct sim_node *node, const struct sim_node *other)
{
    const struct apply_member *member = find_member(node, other->id);

    if (member != NULL)
        return member->incarnation == 0 || member->incarnation == other->incarnation;
    return network_knows(node, other) || config_index_of(other) > config_index_of(node);
}

/* ---- connections ---- */

static void set_connected(struct sim *sim, unsigned a, unsigned b, bool connected)
{
    struct sim_link *there = &sim->links[a][b], *back = &sim->links[b][a];

    there->connected = back->connected = connected;
    there->epoch++;
    back->epoch++;
    there->untold = back->untold = false;
    there->last_delivery_us = back->last_delivery_us = 0;
}

static void tell_disconnected(struct sim *sim, unsigned a, unsigned b)
{
    struct sim_node *node = &sim->nodes[a];

    sim_node_trouble(node, sim->now_us);
    if (!node->up || node->replica == NULL)
        return;
    replica_on_disconnected(node->replica, sim->nodes[b].id);
    sim_node_settle(node);
}

static void tell_connected(struct sim *sim, unsigned a, unsigned b)
{
    struct sim_node *node = &sim->nodes[a];

    sim_node_trouble(node, sim->now_us);
    replica_on_connected(node->replica, sim->nodes[b].id, sim->nodes[b].incarnation, 1);
    sim_node_settle(node);
}

/* The connection has been closed at the other end for a while. */
static void notice(struct sim *sim, unsigned slot, unsigned peer)
{
    if (!sim->links[peer][slot].untold)
        return;
    sim->links[peer][slot].untold = false;
    tell_disconnected(sim, slot, peer);
}

static void connect_later(struct sim *sim, unsigned a, unsigned b, uint64_t within_us)
{
    struct sim_link *pair = a < b ? &sim->links[a][b] : &sim->links[b][a];

    if (pair->connecting)
        return;
    if (sim_chance(&sim->net_rng, 400))
        within_us /= 20;
    pair->connecting = true;
    sim_event_at(sim, sim->now_us + 1000 + keel_rng_below(&sim->net_rng, within_us), EVENT_CONNECT,
                 a)
        ->from = b;
}

/* A member whose disk was lost is to be kept out by everybody. */
static void check_refused(const struct sim_node *node, const struct sim_node *other)
{
    if (node->state == SLOT_MEMBER && other->state == SLOT_WIPED && admits(node, other))
        check_fail(node->sim, "n%u lets in n%u, which lost its disk", node->slot, other->slot);
}

static bool want_each_other(const struct sim_node *a, const struct sim_node *b)
{
    return network_knows(a, b) || network_knows(b, a);
}

void network_connect_event(struct sim *sim, struct sim_event *event)
{
    struct sim_node *a = &sim->nodes[event->node], *b = &sim->nodes[event->from];
    struct sim_link *pair =
        a->slot < b->slot ? &sim->links[a->slot][b->slot] : &sim->links[b->slot][a->slot];

    pair->connecting = false;
    if (!a->up || !b->up || pair->connected || !want_each_other(a, b))
        return;
    check_refused(a, b);
    check_refused(b, a);
    if (sim->links[a->slot][b->slot].cut || sim->links[b->slot][a->slot].cut ||
        a->paused_until_us > sim->now_us || b->paused_until_us > sim->now_us) {
        connect_later(sim, a->slot, b->slot, 100000);
        return;
    }
    if (!admits(a, b) || !admits(b, a)) {
        connect_later(sim, a->slot, b->slot, 1000000);
        return;
    }
    notice(sim, a->slot, b->slot);
    notice(sim, b->slot, a->slot);
    set_connected(sim, a->slot, b->slot, true);
    tell_connected(sim, a->slot, b->slot);
    if (pair->connected)
        tell_connected(sim, b->slot, a->slot);
}

void network_disconnect_event(struct sim *sim, struct sim_event *event)
{
    notice(sim, event->node, event->from);
    connect_later(sim, event->node, event->from, 100000);
}

static void notice_later(struct sim *sim, unsigned slot, unsigned peer, uint64_t within_us)
{
    struct sim_event *event = sim_event_at(
        sim, sim->now_us + keel_rng_below(&sim->net_rng, within_us), EVENT_DISCONNECT, slot);

    event->from = peer;
}

/* One side knows at once; the other may go on for a while as if nothing had happened. */
void network_reset(struct sim *sim, unsigned a, unsigned b)
{
    if (!sim->links[a][b].connected)
        return;
    set_connected(sim, a, b, false);
    sim->links[a][b].untold = true;
    tell_disconnected(sim, a, b);
    notice_later(sim, b, a, 150000);
}

static void connect_all(struct sim *sim, unsigned slot, uint64_t within_us)
{
    for (unsigned i = 0; i < sim->plan.slots; i++)
        if (i != slot && sim->nodes[i].up && !sim->links[slot][i].connected)
            connect_later(sim, slot, i, within_us);
}

void network_node_up(struct sim *sim, unsigned slot)
{
    connect_all(sim, slot, 100000);
}

/* The other sides notice that it is gone: its kernel closes the connections, unless the power is
 * gone; then it is the silence that they notice. */
void network_node_down(struct sim *sim, unsigned slot, bool power)
{
    for (unsigned i = 0; i < sim->plan.slots; i++) {
        if (i == slot || !sim->links[slot][i].connected)
            continue;
        set_connected(sim, slot, i, false);
        if (power) {
            sim->links[slot][i].untold = true;
            notice_later(sim, i, slot, 1500000);
        } else {
            tell_disconnected(sim, i, slot);
        }
    }
}

/* ---- members ---- */

void network_members_changed(struct sim_node *node)
{
    struct sim *sim = node->sim;

    connect_all(sim, node->slot, 20000);
    if (node->pruning)
        return;
    node->pruning = true;
    sim_event_at(sim, sim->now_us + keel_rng_below(&sim->net_rng, 1000000), EVENT_PRUNE,
                 node->slot);
}

/* Connections to those that are members no more are closed. */
void network_prune_event(struct sim_node *node)
{
    struct sim *sim = node->sim;

    node->pruning = false;
    for (unsigned i = 0; i < sim->plan.slots; i++)
        if (i != node->slot && sim->links[node->slot][i].connected && !admits(node, &sim->nodes[i]))
            network_reset(sim, node->slot, i);
}

void network_heal(struct sim *sim)
{
    for (unsigned a = 0; a < sim->plan.slots; a++)
        for (unsigned b = 0; b < sim->plan.slots; b++) {
            struct sim_link *link = &sim->links[a][b];

            if (link->cut || link->clogged_until_us > sim->now_us) {
                sim_node_trouble(&sim->nodes[a], sim->now_us);
                sim_node_trouble(&sim->nodes[b], sim->now_us);
            }
            link->cut = false;
            if (sim->calm)
                link->clogged_until_us = link->last_delivery_us = 0;
        }
}
