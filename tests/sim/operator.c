/* The workload of an administrator: one thing after the other, through whatever node answers. Adds
 * learners and voters, promotes, removes (the leader too), replaces, hands leadership over, stops
 * nodes cleanly, and replaces members that have lost their disk. */
#include <inttypes.h>
#include <stdlib.h>

#include "check.h"
#include "checks.h"
#include "err.h"

enum { CHANGES_MAX = 4 };

struct sim_operator {
    struct replica_call call;
    struct replica_call rival; /* somebody else wants something, too */
    bool rival_busy;
    struct sim *sim;
    bool busy;
    const struct sim_node *node; /* that was asked */
    bool transfers;              /* the call is a transfer */
    bool unsure;                 /* something that timed out may still come */
    struct keel_member_change changes[CHANGES_MAX];
    char names[CHANGES_MAX][SIM_NAME_SIZE], addresses[CHANGES_MAX][SIM_NAME_SIZE];
    size_t count;
    unsigned victim; /* slot whose disk will be lost once everybody has … */
    uint64_t victim_id;
    uint64_t marks[SIM_SLOTS_MAX]; /* … this in its store; 0: nobody's */
};

static void again_later(struct sim *sim)
{
    uint64_t every = sim->calm ? 300000 : sim->shape->operator_every_us;

    sim_event_at(sim, sim->now_us + 1000 + keel_rng_below(&sim->operator_rng, every * 2),
                 EVENT_OPERATOR, 0);
}

/* ---- choosing ---- */

static unsigned any_of(struct sim *sim, unsigned count)
{
    return (unsigned)keel_rng_below(&sim->operator_rng, count);
}

static bool is_usable(const struct sim_node *node)
{
    return node->up && node->replica != NULL && node->state == SLOT_MEMBER &&
           node->paused_until_us <= node->sim->now_us;
}

static struct sim_node *usable_node(struct sim *sim)
{
    unsigned first = any_of(sim, sim->plan.slots);

    for (unsigned i = 0; i < sim->plan.slots; i++) {
        struct sim_node *node = &sim->nodes[(first + i) % sim->plan.slots];

        if (is_usable(node))
            return node;
    }
    return NULL;
}

static bool in_config(const struct raft_config *config, uint64_t id)
{
    return check_holds_id(config->voters, config->voter_count, id) ||
           check_holds_id(config->old_voters, config->old_voter_count, id) ||
           check_holds_id(config->learners, config->learner_count, id);
}

/* A slot that a new member may begin in: one whose proposal was not heard of again, or a free one.
 */
static struct sim_node *slot_to_add(struct sim *sim, const struct sim_operator *op)
{
    const struct raft_config *config = check_committed_config(sim);
    unsigned first = any_of(sim, sim->plan.slots);

    for (unsigned i = 0; i < sim->plan.slots; i++) {
        struct sim_node *node = &sim->nodes[(first + i) % sim->plan.slots];
        bool taken = false;

        for (size_t c = 0; c < op->count; c++)
            taken |= op->changes[c].id == node->id && node->id != 0;
        if (!taken && (node->state == SLOT_FREE ||
                       (node->state == SLOT_RESERVED && !in_config(config, node->id))))
            return node;
    }
    return NULL;
}

static struct sim_node *member_of(struct sim *sim, const uint64_t *ids, size_t count)
{
    return count == 0 ? NULL : sim_node_by_id(sim, ids[any_of(sim, (unsigned)count)]);
}

/* ---- changes ---- */

static void put_change(struct sim_operator *op, enum keel_change_verb verb, unsigned slot,
                       uint64_t id)
{
    size_t i = op->count++;

    KEEL_ASSERT(i < CHANGES_MAX);
    sim_node_name(slot, op->names[i]);
    sim_node_address(slot, op->addresses[i]);
    op->changes[i] = (struct keel_member_change){ .verb = verb, .name = op->names[i], .id = id };
    if (verb == MEMBER_ADD || verb == MEMBER_ADD_VOTER)
        op->changes[i].address = op->addresses[i];
}

static bool put_addition(struct sim_operator *op, enum keel_change_verb verb)
{
    struct sim_node *node = slot_to_add(op->sim, op);

    if (node == NULL)
        return false;
    if (node->state == SLOT_FREE)
        sim_node_create(node, false);
    put_change(op, verb, node->slot, node->id);
    return true;
}

static void put_removal(struct sim_operator *op)
{
    struct sim *sim = op->sim;
    const struct raft_config *config = check_committed_config(sim);
    struct sim_node *node = member_of(sim, config->voters, config->voter_count);

    if (sim_chance(&sim->operator_rng, 300))
        node = &sim->nodes[sim->last_leader];
    if (config->learner_count > 0 && sim_chance(&sim->operator_rng, 200))
        node = member_of(sim, config->learners, config->learner_count);
    if (node != NULL && (config->voter_count > 2 || sim_chance(&sim->operator_rng, 100)))
        put_change(op, MEMBER_REMOVE, node->slot, 0);
}

/* A voter out of nothing is let in only once the others have committed that it is one: those that
 * stay must be a majority of the new voters. */
static enum keel_change_verb verb_to_add(const struct sim_operator *op, size_t stay, size_t more)
{
    bool voter = stay > more && sim_chance(&op->sim->operator_rng, 700);

    return voter ? MEMBER_ADD_VOTER : MEMBER_ADD;
}

static void put_replacement(struct sim_operator *op)
{
    unsigned count = 1 + any_of(op->sim, 2);
    size_t voters = check_committed_config(op->sim)->voter_count;

    for (unsigned i = 0; i < count; i++)
        if (!put_addition(op, verb_to_add(op, voters - 1, i + 1)))
            break;
    if (op->count > 0)
        put_removal(op);
}

static void put_promotion(struct sim_operator *op)
{
    const struct raft_config *config = check_committed_config(op->sim);
    struct sim_node *node = member_of(op->sim, config->learners, config->learner_count);

    if (node != NULL)
        put_change(op, MEMBER_PROMOTE, node->slot, 0);
    else
        put_addition(op, verb_to_add(op, config->voter_count, 1));
}

/* ---- results ---- */

/* What was proposed and refused for certain leaves no trace; a slot whose id is in nobody's
 * configuration may be used for something else. */
static bool anybody_has(const struct sim *sim, uint64_t id)
{
    for (unsigned i = 0; i < sim->plan.slots; i++) {
        const struct sim_node *node = &sim->nodes[i];

        if (node->up && node->replica != NULL && raft_is_member(node->replica->raft, id))
            return true;
    }
    return false;
}

static void check_done(struct sim_operator *op)
{
    const struct raft_config *config = apply_config(op->node->apply, NULL);

    if (op->unsure)
        return;
    for (size_t i = 0; i < op->count; i++) {
        const struct keel_member_change *change = &op->changes[i];
        bool adds = change->verb == MEMBER_ADD || change->verb == MEMBER_ADD_VOTER;

        if (adds && !in_config(config, change->id))
            check_fail(op->sim, "%s was added as %" PRIu64 ", and is no member", change->name,
                       change->id);
        if (change->verb == MEMBER_ADD_VOTER &&
            !check_holds_id(config->voters, config->voter_count, change->id))
            check_fail(op->sim, "%s was added as a voter and is none", change->name);
    }
}

static void undo_reservations(struct sim_operator *op)
{
    for (size_t i = 0; i < op->count; i++) {
        struct sim_node *node = sim_node_by_id(op->sim, op->changes[i].id);

        if (node != NULL && node->state == SLOT_RESERVED && !op->unsure && !node->up &&
            !anybody_has(op->sim, node->id))
            sim_node_destroy(node);
    }
}

static bool is_uncertain(int err)
{
    return err == KEEL_E_TIMEDOUT || err == KEEL_E_CLOSED || err == KEEL_E_REMOVED;
}

static void on_done(struct replica_call *call, int err, const struct command_result *result)
{
    struct sim_operator *op = KEEL_CONTAINER_OF(call, struct sim_operator, call);
    struct sim *sim = op->sim;

    (void)result;
    op->busy = false;
    sim_trace(sim, "operator: %s: %s", op->transfers ? "transfer" : "change", keel_strerror(err));
    if (op->transfers) {
        sim->transfers_done += err == 0;
        return;
    }
    sim->changes_done += err == 0;
    if (err == 0)
        check_done(op);
    op->unsure |= is_uncertain(err);
    if (err != 0 && !is_uncertain(err))
        undo_reservations(op);
}

/* ---- acting ---- */

static void trace_changes(struct sim_operator *op, const struct sim_node *node)
{
    static const char *const verbs[] = { "", "add", "add voter", "remove", "promote" };

    for (size_t i = 0; i < op->count; i++)
        sim_trace(op->sim, "operator at n%u: %s %s %" PRIu64, node->slot,
                  verbs[op->changes[i].verb], op->changes[i].name, op->changes[i].id);
}

static void submit(struct sim_operator *op)
{
    struct sim_node *node = usable_node(op->sim);

    if (node == NULL || op->count == 0)
        return;
    trace_changes(op, node);
    op->busy = true;
    op->node = node;
    op->transfers = false;
    op->call.done = on_done;
    replica_change_members(node->replica, &op->call, op->changes, op->count);
    sim_node_settle(node);
}

static void rival_done(struct replica_call *call, int err, const struct command_result *result)
{
    struct sim_operator *op = KEEL_CONTAINER_OF(call, struct sim_operator, rival);

    (void)result;
    op->rival_busy = false;
    op->unsure = true;
    sim_trace(op->sim, "another operator: %s", keel_strerror(err));
}

/* At the same time, at another node; which of the two comes first, and what is left for the other,
 * is not foreseen. */
static void submit_rival(struct sim_operator *op)
{
    const struct raft_config *config = check_committed_config(op->sim);
    struct sim_node *node = usable_node(op->sim);
    struct keel_member_change change = { .verb = MEMBER_PROMOTE };
    char name[SIM_NAME_SIZE];

    if (node == NULL || node == op->node || op->rival_busy || config->learner_count == 0)
        return;
    if (sim_chance(&op->sim->operator_rng, 500))
        change.verb = MEMBER_REMOVE;
    sim_node_name(sim_slot_of(config->learners[0]), name);
    change.name = name;
    op->rival_busy = true;
    op->rival.done = rival_done;
    sim_trace(op->sim, "another operator at n%u: %s", node->slot, name);
    replica_change_members(node->replica, &op->rival, &change, 1);
    sim_node_settle(node);
}

static void transfer(struct sim_operator *op)
{
    struct sim *sim = op->sim;
    const struct raft_config *config = check_committed_config(sim);
    struct sim_node *node = usable_node(sim);

    if (node == NULL || config->voter_count == 0)
        return;
    op->busy = true;
    op->transfers = true;
    op->call.done = on_done;
    uint64_t to = config->voters[any_of(sim, (unsigned)config->voter_count)];

    if (sim_chance(&sim->operator_rng, 400))
        to = 0;
    sim_trace(sim, "operator at n%u: transfer to %" PRIu64, node->slot, to);
    replica_transfer_to(node->replica, &op->call, to);
    sim_node_settle(node);
}

static void stop(struct sim_operator *op)
{
    struct sim_node *node = usable_node(op->sim);

    if (node == NULL || node->stopping)
        return;
    sim_trace(op->sim, "operator: n%u is stopped", node->slot);
    node->stopping = true;
    sim_event_at(op->sim, op->sim->now_us, EVENT_STOP, node->slot);
}

/* ---- a disk that is lost ---- */

static void choose_victim(struct sim_operator *op)
{
    struct sim *sim = op->sim;
    struct sim_node *node = usable_node(sim);

    if (node == NULL || !faults_may_wipe(node))
        return;
    op->victim = node->slot;
    op->victim_id = node->id;
    for (unsigned i = 0; i < sim->plan.slots; i++)
        op->marks[i] = sim->nodes[i].checked_applied;
}

static bool everybody_remembers(const struct sim_operator *op)
{
    for (unsigned i = 0; i < op->sim->plan.slots; i++) {
        const struct sim_node *node = &op->sim->nodes[i];

        if (node->state == SLOT_MEMBER && i != op->victim && node->store_durable < op->marks[i])
            return false;
    }
    return true;
}

/* It starts again, empty, as what it was. */
static void wipe(struct sim_operator *op)
{
    struct sim *sim = op->sim;
    struct sim_node *node = &sim->nodes[op->victim];
    bool bootstrap = node->generation == 0 && node->slot < sim->plan.nodes;
    uint64_t generation = node->generation;

    op->victim_id = 0;
    sim->wipes++;
    sim_node_destroy(node);
    node->generation = generation;
    sim_node_create(node, bootstrap);
    node->state = SLOT_WIPED;
    for (unsigned i = 0; !bootstrap && i < sim->plan.nodes; i++)
        node->welcome[node->welcome_count++] = i + 1;
    sim_event_at(sim, sim->now_us + 10000, EVENT_START, node->slot)->first = node->id;
}

static void lose_disk(struct sim_operator *op)
{
    if (op->victim_id == 0) {
        choose_victim(op);
        return;
    }
    const struct sim_node *node = &op->sim->nodes[op->victim];

    if (node->id != op->victim_id || !faults_may_wipe(node))
        op->victim_id = 0;
    else if (everybody_remembers(op))
        wipe(op);
}

/* ---- what has to be put right ---- */

static void retire(struct sim_node *node)
{
    struct sim *sim = node->sim;

    node->state = SLOT_RETIRED;
    sim_event_at(sim, sim->now_us + keel_rng_below(&sim->operator_rng, 3000000), EVENT_RETIRE,
                 node->slot)
        ->first = node->id;
}

static void retire_removed(struct sim *sim)
{
    const struct raft_config *config = check_committed_config(sim);

    for (unsigned i = 0; i < sim->plan.slots; i++) {
        struct sim_node *node = &sim->nodes[i];

        if ((node->state == SLOT_MEMBER || node->state == SLOT_WIPED) &&
            !in_config(config, node->id))
            retire(node);
    }
}

/* A member without its data directory is removed. */
static bool put_repair(struct sim_operator *op, const uint64_t *ids, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const struct sim_node *node = sim_node_by_id(op->sim, ids[i]);

        if (node != NULL && node->state != SLOT_WIPED)
            continue;
        put_change(op, MEMBER_REMOVE, sim_slot_of(ids[i]), 0);
        return true;
    }
    return false;
}

static bool repair(struct sim_operator *op)
{
    const struct raft_config *config = check_committed_config(op->sim);

    op->count = 0;
    if (!put_repair(op, config->voters, config->voter_count) &&
        !put_repair(op, config->learners, config->learner_count))
        return false;
    submit(op);
    return true;
}

static void act(struct sim_operator *op)
{
    unsigned roll = any_of(op->sim, 100);

    op->count = 0;
    if (sim_chance(&op->sim->operator_rng, op->sim->shape->transfers)) {
        transfer(op);
        return;
    }
    if (roll < 20)
        put_addition(op, MEMBER_ADD);
    else if (roll < 40)
        put_promotion(op);
    else if (roll < 52)
        put_removal(op);
    else if (roll < 64)
        put_replacement(op);
    if (roll < 64) {
        submit(op);
        if (op->busy && sim_chance(&op->sim->operator_rng, 100))
            submit_rival(op);
    } else if (roll < 76) {
        transfer(op);
    } else if (roll < 86) {
        stop(op);
    } else {
        lose_disk(op);
    }
}

void operator_event(struct sim *sim)
{
    struct sim_operator *op = sim->operator;
    const struct raft_config *config = check_committed_config(sim);

    again_later(sim);
    if (op->busy || config == NULL || config->old_voter_count > 0)
        return;
    retire_removed(sim);
    if (op->victim_id != 0)
        lose_disk(op);
    if (repair(op) || sim->calm)
        return;
    act(op);
}

/* ---- new members ---- */

/* A node that lists a new member answers its request to join. */
void operator_members_changed(struct sim_node *node)
{
    size_t count;
    const struct apply_member *members = apply_members(node->apply, &count);

    for (size_t i = 0; i < count; i++) {
        struct sim_node *joiner = sim_node_by_id(node->sim, members[i].id);

        if (joiner == NULL || joiner->state != SLOT_RESERVED)
            continue;
        joiner->state = SLOT_MEMBER;
        joiner->welcome_count = count;
        for (size_t m = 0; m < count; m++)
            joiner->welcome[m] = members[m].id;
        sim_event_at(node->sim,
                     node->sim->now_us + keel_rng_below(&node->sim->operator_rng, 300000),
                     EVENT_START, joiner->slot)
            ->first = joiner->id;
    }
}

void operator_start(struct sim *sim)
{
    sim->operator= keel_calloc(1, sizeof *sim->operator);
    sim->operator->sim = sim;
    if (sim->plan.operated)
        again_later(sim);
}

bool operator_done(const struct sim *sim)
{
    const struct raft_config *config = check_committed_config(sim);

    if (sim->operator->busy || sim->operator->rival_busy || config == NULL ||
        config->old_voter_count> 0)
        return false;
    for (unsigned i = 0; i < sim->plan.slots; i++)
        if (sim->nodes[i].state == SLOT_WIPED && in_config(config, sim->nodes[i].id))
            return false;
    return true;
}

void operator_free(struct sim *sim)
{
    free(sim->operator);
    sim->operator= NULL;
}
