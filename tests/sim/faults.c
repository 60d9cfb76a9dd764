/* What goes wrong, and when. Everything heals: a crashed node starts again, a cut ends. Disks that
 * are lost for good are the operator's business, who has to replace the member. */
#include <stdlib.h>

#include "check.h"
#include "checks.h"

/* By then nobody takes it for a leader any more, and waits for nothing that was sent to it. */
enum { REBOOT_US = 4500000 };

static struct sim_node *any_node(struct sim *sim)
{
    return &sim->nodes[keel_rng_below(&sim->fault_rng, sim->plan.slots)];
}

static unsigned count_up(const struct sim *sim)
{
    unsigned up = 0;

    for (unsigned i = 0; i < sim->plan.slots; i++)
        up += sim->nodes[i].up;
    return up;
}

void faults_crash(struct sim_node *node, bool power, uint64_t within_us)
{
    struct sim *sim = node->sim;

    if (!node->up || (count_up(sim) == 1 && !sim_chance(&sim->fault_rng, 300)))
        return;
    power |= sim_chance(&sim->fault_rng, 400);
    node->reboots = power && sim_chance(&sim->fault_rng, 200);
    sim_node_crash(node, power);
    uint64_t least = node->reboots ? REBOOT_US : 1000;

    sim_event_at(sim, sim->now_us + least + keel_rng_below(&sim->fault_rng, within_us), EVENT_START,
                 node->slot)
        ->first = node->id;
}

/* The moments after a vote, or the end of a term, are those in which a crash would do most harm. */
void faults_after(struct sim_node *node, const struct raft_message *msg)
{
    struct sim *sim = node->sim;
    bool votes = msg->type == RAFT_VOTE_REQUEST || msg->type == RAFT_VOTE_REPLY;

    if (!votes || sim->shape->fault_every_us == 0 || !sim_chance(&sim->fault_rng, 6))
        return;
    sim_event_at(sim, sim->now_us + keel_rng_below(&sim->fault_rng, 6000), EVENT_CRASH, node->slot)
        ->first = node->id;
}

/* The process does not run; its clock goes on, as through a suspension. */
static void pause_node(struct sim *sim, struct sim_node *node)
{
    uint64_t most = 1500000;

    if (sim->plan.rough && sim_chance(&sim->fault_rng, 150))
        most = 6000000;
    if (!node->up)
        return;
    node->paused_until_us = sim->now_us + keel_rng_below(&sim->fault_rng, most);
    sim_node_trouble(node, node->paused_until_us);
    sim_trace(sim, "n%u pauses", node->slot);
}

static void jump_wall_clock(struct sim *sim, struct sim_node *node)
{
    node->wall_skew_ns = ((int64_t)keel_rng_below(&sim->fault_rng, 20000) - 10000) * 1000000;
}

/* Another one, connected to it; or NULL. */
static struct sim_node *any_peer(struct sim *sim, const struct sim_node *node)
{
    struct sim_node *peer = any_node(sim);

    return peer != node && sim->links[node->slot][peer->slot].connected ? peer : NULL;
}

static void reset(struct sim *sim, struct sim_node *node)
{
    struct sim_node *peer = any_peer(sim, node);

    if (peer == NULL)
        return;
    sim_trace(sim, "n%u - n%u reset", node->slot, peer->slot);
    network_reset(sim, node->slot, peer->slot);
    if (sim_chance(&sim->fault_rng, 500)) /* it loses all of its connections */
        for (unsigned i = 0; i < sim->plan.slots; i++)
            if (i != node->slot)
                network_reset(sim, i, node->slot);
}

static void cut_off(struct sim *sim, struct sim_node *victim)
{
    bool out = !sim_chance(&sim->fault_rng, 300), in = !out || !sim_chance(&sim->fault_rng, 300);

    for (unsigned i = 0; i < sim->plan.slots; i++) {
        if (i == victim->slot || sim_chance(&sim->fault_rng, 200))
            continue;
        sim->links[victim->slot][i].cut |= out;
        sim->links[i][victim->slot].cut |= in;
        sim_node_trouble(&sim->nodes[i], sim->now_us);
    }
    sim_node_trouble(victim, sim->now_us);
    sim_trace(sim, "n%u is cut off%s%s", victim->slot, out ? ", out" : "", in ? ", in" : "");
    sim_event_at(sim, sim->now_us + keel_rng_below(&sim->fault_rng, 2500000), EVENT_HEAL, 0);
}

/* What is sent one way arrives seconds later, all at once. */
static void clog_links(struct sim *sim, struct sim_node *node)
{
    uint64_t most = sim_chance(&sim->fault_rng, 500) ? 400000 : 4000000;
    uint64_t until = sim->now_us + keel_rng_below(&sim->fault_rng, most);
    bool all = sim_chance(&sim->fault_rng, 300), in = sim_chance(&sim->fault_rng, 500);

    for (unsigned i = 0; i < sim->plan.slots; i++) {
        if (i == node->slot || (!all && !sim_chance(&sim->fault_rng, 400)))
            continue;
        struct sim_link *link = in ? &sim->links[i][node->slot] : &sim->links[node->slot][i];

        link->clogged_until_us = until;
        sim_node_trouble(&sim->nodes[i], until);
    }
    sim_node_trouble(node, until);
    sim_trace(sim, "n%u is clogged%s", node->slot, in ? ", in" : ", out");
}

/* One follower loses the leader; when it stands for election, the other one has just come back. */
static void part_and_restart(struct sim *sim)
{
    unsigned leader = sim->last_leader;
    struct sim_node *away = any_node(sim), *back = any_node(sim);

    if (away == back || away->slot == leader || back->slot == leader || !away->up || !back->up)
        return;
    sim->links[leader][away->slot].cut = sim->links[away->slot][leader].cut = true;
    sim_node_trouble(away, sim->now_us);
    sim_trace(sim, "n%u and n%u are cut apart", leader, away->slot);
    sim_event_at(sim, sim->now_us + 1500000, EVENT_HEAL, 0);
    struct sim_event *event =
        sim_event_at(sim, sim->now_us + 650000 + keel_rng_below(&sim->fault_rng, 700000),
                     EVENT_CRASH, back->slot);

    event->first = back->id;
    event->offset = 1; /* of power */
}

static void network_fault(struct sim *sim, struct sim_node *node)
{
    if (sim->plan.slots < 2)
        return;
    if (sim->plan.rough && sim_chance(&sim->fault_rng, 100))
        part_and_restart(sim);
    else if (sim->plan.rough && sim_chance(&sim->fault_rng, 300))
        clog_links(sim, node);
    else if (sim_chance(&sim->fault_rng, 550))
        reset(sim, node);
    else
        cut_off(sim, node);
}

static void fault_later(struct sim *sim)
{
    uint64_t mean = sim->shape->fault_every_us;

    /* sometimes one soon after the other: connections flap, a leader dies while it waits */
    if (sim_chance(&sim->fault_rng, 150))
        mean /= 16;
    sim_event_at(sim, sim->now_us + keel_rng_below(&sim->fault_rng, mean * 2), EVENT_FAULT, 0);
}

void faults_event(struct sim *sim)
{
    struct sim_node *node = any_node(sim);

    if (sim->calm)
        return;
    if (sim_chance(&sim->fault_rng, 250)) /* leaders have more to lose */
        node = &sim->nodes[sim->last_leader];
    unsigned roll = (unsigned)keel_rng_below(&sim->fault_rng, 100);

    if (roll < 25)
        faults_crash(node, false, sim_chance(&sim->fault_rng, 500) ? 20000 : 1500000);
    else if (roll < 45)
        pause_node(sim, node);
    else if (roll < 50)
        jump_wall_clock(sim, node);
    else
        network_fault(sim, node);
    fault_later(sim);
}

void faults_start(struct sim *sim)
{
    if (sim->shape->fault_every_us != 0)
        sim_event_at(sim, keel_rng_below(&sim->fault_rng, sim->shape->fault_every_us), EVENT_FAULT,
                     0);
}

/* ---- a disk that is lost ---- */

static bool has_settled(const struct sim_node *node, const struct sim_config *committed)
{
    return node->up && node->replica != NULL && node->paused_until_us <= node->sim->now_us &&
           raft_config_index(node->replica->raft) == committed->index;
}

static bool knows_incarnation(const struct sim_node *node, const struct sim_node *other)
{
    size_t count;
    const struct apply_member *members = apply_members(node->apply, &count);

    for (size_t i = 0; i < count; i++)
        if (members[i].id == other->id)
            return members[i].incarnation == other->incarnation;
    return false;
}

/* Only one disk at a time (two that begin anew could found the cluster once more), not of a small
 * cluster, and only when nobody can mistake the new disk
 * for the old one: a wiped member that is let in has forgotten what it had promised. */
bool faults_may_wipe(const struct sim_node *node)
{
    const struct sim *sim = node->sim;
    const struct sim_config *committed = check_config_at(sim, UINT64_MAX);

    if (sim->calm || node->state != SLOT_MEMBER || !node->up || committed == NULL ||
        committed->config.old_voter_count > 0 || committed->config.voter_count < 3)
        return false;
    for (unsigned i = 0; i < sim->plan.slots; i++) {
        const struct sim_node *other = &sim->nodes[i];

        if (other->state == SLOT_FREE || other == node)
            continue;
        if (other->state != SLOT_MEMBER || !has_settled(other, committed) ||
            !knows_incarnation(other, node))
            return false;
    }
    return true;
}
