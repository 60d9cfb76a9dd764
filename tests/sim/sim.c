/* Virtual time and the life of nodes: events, disks, crashes, restarts. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>

#include "check.h"
#include "err.h"
#include "hash.h"
#include "sim.h"

static const struct keel_env_ops sim_env_ops;

bool sim_chance(struct keel_rng *rng, unsigned per_mille)
{
    return keel_rng_below(rng, 1000) < per_mille;
}

void sim_trace(struct sim *sim, const char *fmt, ...)
{
    char line[256];
    va_list args;

    va_start(args, fmt);
    int len = vsnprintf(line, sizeof line, fmt, args);
    va_end(args);
    size_t used = (size_t)len < sizeof line ? (size_t)len : sizeof line - 1;

    sim->trace_hash = keel_hash64_seed(keel_slice_of(line, used), sim->trace_hash ^ sim->now_us);
    if (sim->trace)
        printf("%10" PRIu64 ".%03" PRIu64 " %s\n", sim->now_us / 1000, sim->now_us % 1000, line);
}

struct sim_event *sim_event_at(struct sim *sim, uint64_t at_us, enum sim_event_kind kind,
                               unsigned node)
{
    struct sim_event *event = keel_calloc(1, sizeof *event);

    event->kind = kind;
    event->node = node;
    if (kind != EVENT_CLIENT && kind != EVENT_FAULT && kind != EVENT_HEAL)
        event->epoch = sim->nodes[node].epoch;
    keel_heap_push(&sim->events, &event->heap, at_us > sim->now_us ? at_us : sim->now_us,
                   ++sim->event_seq);
    return event;
}

/* ---- a node's clock ---- */

uint64_t sim_node_clock(const struct sim_node *node)
{
    int64_t now = (int64_t)node->sim->now_us;

    return node->clock_offset_us + (uint64_t)(now + now / 1000000 * node->drift_ppm +
                                              now % 1000000 * node->drift_ppm / 1000000);
}

/* The virtual time at which a node's clock will have reached `at`, or a little later. */
static uint64_t clock_to_sim(const struct sim_node *node, uint64_t at)
{
    uint64_t local = sim_node_clock(node);

    if (at <= local)
        return node->sim->now_us;
    uint64_t wait = at - local;

    return node->sim->now_us + wait + wait / 64 + 1;
}

static struct sim_node *node_of(struct keel_env *env)
{
    return KEEL_CONTAINER_OF(env, struct sim_node, env);
}

static uint64_t env_now_us(struct keel_env *env)
{
    return sim_node_clock(node_of(env));
}

static int64_t env_wall_ns(struct keel_env *env)
{
    struct sim_node *node = node_of(env);

    return (int64_t)node->sim->now_us * 1000 + node->wall_skew_ns;
}

/* ---- disk ---- */

static void env_log_append(struct keel_env *env, struct wal_batch *batch_take)
{
    struct sim_node *node = node_of(env);
    struct sim *sim = node->sim;

    check_append(node, batch_take);
    if (node->queued == SIM_BATCHES_MAX) {
        check_fail(sim, "node %u: more than %d batches wait for the disk", node->slot,
                   SIM_BATCHES_MAX);
        wal_batch_free(batch_take);
        return;
    }
    node->queue[node->queued++] = batch_take;
    if (node->writing)
        return;
    node->writing = true;
    sim_event_at(sim, sim->now_us + 20 + keel_rng_below(&sim->disk_rng, sim->shape->disk_max_us),
                 EVENT_DISK, node->slot);
}

static void drop_queue(struct sim_node *node)
{
    for (size_t i = 0; i < node->queued; i++)
        wal_batch_free(node->queue[i]);
    node->queued = 0;
    node->writing = false;
}

/* Group commit: everything that waits becomes durable together. */
static void disk_event(struct sim_node *node)
{
    static struct wal_batch *done[SIM_BATCHES_MAX];
    size_t count = node->queued;
    int err = wal_write(node->wal, node->queue, count);

    if (err != 0) {
        check_fail(node->sim, "node %u: wal_write: %s", node->slot, keel_strerror(err));
        return;
    }
    memcpy(done, node->queue, count * sizeof *done);
    node->queued = 0;
    node->writing = false;
    for (size_t i = 0; i < count; i++) {
        if (done[i]->count > 0)
            node->persisted_last = done[i]->entries[done[i]->count - 1].index;
        replica_on_persisted(node->replica, done[i]->mark);
        wal_batch_free(done[i]);
    }
    if (sim_chance(&node->sim->disk_rng, 200) && wal_idle(node->wal) != 0)
        check_fail(node->sim, "node %u: wal_idle", node->slot);
    sim_node_settle(node);
}

static void env_log_read(struct keel_env *env, uint64_t peer, uint64_t first, size_t max_bytes)
{
    struct sim_node *node = node_of(env);
    struct sim_event *event =
        sim_event_at(node->sim, node->sim->now_us + 50, EVENT_LOG_READ, node->slot);

    event->from = (unsigned)(peer - 1);
    event->first = first;
    event->max_bytes = max_bytes;
}

static void log_read_event(struct sim_node *node, const struct sim_event *event)
{
    struct raft_entry *entries = NULL;
    size_t count = 0;
    uint64_t prev_term = 0;

    if (wal_read(node->wal, event->first, event->max_bytes, &entries, &count, &prev_term) != 0)
        count = 0;
    replica_on_log_read(node->replica, event->from + 1, event->first, prev_term, entries, count);
    raft_entries_free(entries, count);
    sim_node_settle(node);
}

static void env_checkpoint(struct keel_env *env, struct kv_batch *batch_take)
{
    struct sim_node *node = node_of(env);
    struct sim *sim = node->sim;

    if (batch_take->applied_index > node->persisted_last)
        check_fail(sim, "node %u: checkpoint at %" PRIu64 " ahead of its own log at %" PRIu64,
                   node->slot, batch_take->applied_index, node->persisted_last);
    node->checkpoint = batch_take;
    sim_event_at(sim,
                 sim->now_us + 100 + keel_rng_below(&sim->disk_rng, sim->shape->disk_max_us * 4),
                 EVENT_STORE, node->slot);
}

static void store_event(struct sim_node *node)
{
    struct kv_batch *batch = node->checkpoint;

    node->checkpoint = NULL;
    if (node->kv->ops->write(node->kv, batch) != 0)
        check_fail(node->sim, "node %u: the store could not be written", node->slot);
    replica_on_checkpointed(node->replica);
    kv_batch_free(batch);
    sim_node_settle(node);
}

/* ---- what the replica tells ---- */

static void env_send(struct keel_env *env, uint64_t to, struct keel_message *msg_take)
{
    struct sim_node *node = node_of(env);

    network_send(node->sim, node->slot, (unsigned)(to - 1), msg_take);
}

static void env_changed(struct keel_env *env, const struct keel_change *change)
{
    struct sim_node *node = node_of(env);

    check_changed(node, change);
    clients_changed(node->sim, node->slot, change);
}

static void env_lease_lost(struct keel_env *env, uint64_t lease)
{
    struct sim_node *node = node_of(env);

    clients_lease_lost(node->sim, node->slot, lease);
}

static void env_members_changed(struct keel_env *env)
{
    (void)env;
}

static void env_note(struct keel_env *env, const char *line)
{
    struct sim_node *node = node_of(env);

    sim_trace(node->sim, "n%u %s", node->slot, line);
}

static const struct keel_env_ops sim_env_ops = {
    .now_us = env_now_us,
    .wall_ns = env_wall_ns,
    .send = env_send,
    .log_append = env_log_append,
    .log_read = env_log_read,
    .checkpoint = env_checkpoint,
    .changed = env_changed,
    .lease_lost = env_lease_lost,
    .members_changed = env_members_changed,
    .note = env_note,
};

/* ---- start and crash ---- */

static bool open_state(struct sim *sim, struct sim_node *node, struct wal_recovery *recovery)
{
    char why[512] = "";
    struct wal_options options = { .cluster_id = 1, .node_id = node->id };

    options.segment_bytes = 256 << 10;
    options.fill_bytes = 16 << 10;
    int err = mvcc_open(node->kv, &node->mvcc, why, sizeof why);

    if (err == 0)
        err = apply_new(node->mvcc, sim->members, sim->shape->nodes, &node->apply);
    if (err == 0) {
        options.store_applied = mvcc_applied_index(node->mvcc);
        err = wal_open(node->disk, &options, &node->wal, recovery, why, sizeof why);
    }
    if (err != 0)
        check_fail(sim, "node %u cannot start: %s %s", node->slot, keel_strerror(err), why);
    return err == 0;
}

void sim_node_start(struct sim *sim, struct sim_node *node)
{
    struct wal_recovery recovery = { 0 };
    struct replica_options options = {
        .incarnation = node->incarnation,
        .nonce = node->epoch + 1,
        .request_timeout_us = 3000000,
        .lease_reads = sim->shape->lease_reads,
    };

    node->epoch++;
    node->up = true;
    node->timer_us = UINT64_MAX;
    node->clock_offset_us = 1000000 + keel_rng_below(&sim->clock_rng, 1ull << 40);
    node->drift_ppm = (int64_t)keel_rng_below(&sim->clock_rng, 9000) - 4500;
    node->wall_skew_ns = (int64_t)keel_rng_below(&sim->clock_rng, 2000000000) - 1000000000;
    if (!open_state(sim, node, &recovery))
        return;
    check_recovered(node, &recovery);
    node->seen_revision = mvcc_revision(node->mvcc);
    raft_options_init(&options.raft);
    options.raft.id = node->id;
    options.raft.hard_state = recovery.hard_state;
    options.raft.first_stored_index = 1;
    options.raft.entries = recovery.entries;
    options.raft.entry_count = recovery.count;
    options.raft.seed = keel_rng_next(&sim->clock_rng);
    node->replica = replica_new(&node->env, node->apply, &options);
    wal_recovery_free(&recovery);
    sim_trace(sim, "n%u starts, applied %" PRIu64 " log %" PRIu64, node->slot,
              mvcc_applied_index(node->mvcc), wal_last_index(node->wal));
    network_node_up(sim, node->slot);
    sim_node_settle(node);
}

void sim_node_crash(struct sim *sim, struct sim_node *node)
{
    if (!node->up)
        return;
    sim_trace(sim, "n%u crashes", node->slot);
    /* Some of what waits is on its way to the platter: it may be torn, lost, or there after all. */
    if (node->queued > 0 && sim_chance(&sim->disk_rng, 700)) {
        disk_mem_cut(node->disk, 1 + keel_rng_below(&sim->disk_rng, 3));
        wal_write(node->wal, node->queue, node->queued);
    }
    clients_node_down(sim, node->slot);
    node->up = false;
    node->epoch++;
    network_node_down(sim, node->slot);
    drop_queue(node);
    node->checkpoint = kv_batch_free(node->checkpoint);
    node->replica = replica_free(node->replica);
    node->apply = apply_free(node->apply);
    node->mvcc = mvcc_close(node->mvcc);
    node->wal = wal_close(node->wal);
    disk_mem_crash(node->disk);
}

/* ---- the end of a node's turn ---- */

static void set_timer(struct sim_node *node)
{
    uint64_t deadline = replica_deadline(node->replica);

    if (deadline == UINT64_MAX)
        return;
    uint64_t at = clock_to_sim(node, deadline);

    if (at >= node->timer_us)
        return;
    node->timer_us = at;
    sim_event_at(node->sim, at, EVENT_TIMER, node->slot);
}

void sim_node_settle(struct sim_node *node)
{
    if (!node->up || node->replica == NULL || node->sim->failure[0] != '\0')
        return;
    replica_pump(node->replica);
    check_node(node);
    set_timer(node);
}

static void timer_event(struct sim_node *node, uint64_t at)
{
    if (at == node->timer_us || node->timer_us <= node->sim->now_us)
        node->timer_us = UINT64_MAX;
    replica_tick(node->replica);
    sim_node_settle(node);
}

/* ---- faults ---- */

static unsigned count_up(const struct sim *sim)
{
    unsigned up = 0;

    for (unsigned i = 0; i < sim->shape->nodes; i++)
        up += sim->nodes[i].up;
    return up;
}

static void restart_later(struct sim *sim, struct sim_node *node)
{
    uint64_t after = keel_rng_below(&sim->fault_rng, 2) == 0 ? 20000 : 1500000;

    sim_event_at(sim, sim->now_us + keel_rng_below(&sim->fault_rng, after) + 1000, EVENT_RESTART,
                 node->slot);
}

static void fault_event(struct sim *sim)
{
    struct sim_node *node = &sim->nodes[keel_rng_below(&sim->fault_rng, sim->shape->nodes)];

    if (sim->calm)
        return;
    switch (keel_rng_below(&sim->fault_rng, 4)) {
    case 0:
        if (node->up && (count_up(sim) > 1 || sim_chance(&sim->fault_rng, 300))) {
            sim_node_crash(sim, node);
            restart_later(sim, node);
        }
        break;
    case 1:
        if (node->up) {
            node->paused_until_us = sim->now_us + keel_rng_below(&sim->fault_rng, 1500000);
            sim_trace(sim, "n%u pauses", node->slot);
        }
        break;
    default:
        network_fault(sim);
        break;
    }
    sim_event_at(sim, sim->now_us + keel_rng_below(&sim->fault_rng, sim->shape->fault_every_us * 2),
                 EVENT_FAULT, 0);
}

static void calm_down(struct sim *sim)
{
    sim->calm = true;
    sim_trace(sim, "calm");
    network_heal(sim);
    for (unsigned i = 0; i < sim->shape->nodes; i++) {
        sim->nodes[i].paused_until_us = 0;
        if (!sim->nodes[i].up)
            sim_node_start(sim, &sim->nodes[i]);
    }
}

/* ---- the loop ---- */

/* A paused node's events wait for it. */
static bool postponed(struct sim *sim, struct sim_event *event)
{
    struct sim_node *node = &sim->nodes[event->node];

    if (node->paused_until_us <= sim->now_us)
        return false;
    keel_heap_push(&sim->events, &event->heap, node->paused_until_us, ++sim->event_seq);
    return true;
}

static void event_free(struct sim_event *event)
{
    keel_message_free(event->msg);
    free(event);
}

static void node_event(struct sim *sim, struct sim_event *event, uint64_t at)
{
    struct sim_node *node = &sim->nodes[event->node];

    if (event->kind == EVENT_RESTART) {
        if (!node->up)
            sim_node_start(sim, node);
        return;
    }
    if (event->kind == EVENT_CONNECT) {
        network_connect_event(sim, event);
        return;
    }
    if (!node->up || event->epoch != node->epoch)
        return;
    switch (event->kind) {
    case EVENT_TIMER:
        timer_event(node, at);
        break;
    case EVENT_MESSAGE:
        network_deliver(sim, event);
        break;
    case EVENT_DISK:
        disk_event(node);
        break;
    case EVENT_LOG_READ:
        log_read_event(node, event);
        break;
    case EVENT_STORE:
        store_event(node);
        break;
    case EVENT_DISCONNECT:
        network_disconnect_event(sim, event);
        break;
    case EVENT_RESTART:
    case EVENT_CONNECT:
    case EVENT_FAULT:
    case EVENT_CLIENT:
    case EVENT_HEAL:
        KEEL_ASSERT(false);
    }
}

static void step(struct sim *sim)
{
    struct keel_heap_node *top = keel_heap_top(&sim->events);
    struct sim_event *event = KEEL_CONTAINER_OF(top, struct sim_event, heap);
    uint64_t at = top->key;

    keel_heap_remove(&sim->events, top);
    sim->now_us = at;
    if (event->kind == EVENT_FAULT) {
        fault_event(sim);
    } else if (event->kind == EVENT_CLIENT) {
        clients_event(sim, event->node);
    } else if (event->kind == EVENT_HEAL) {
        network_heal(sim);
    } else {
        bool is_local = event->kind != EVENT_RESTART && event->kind != EVENT_CONNECT;

        if (is_local && postponed(sim, event))
            return;
        node_event(sim, event, at);
    }
    event_free(event);
}

static void run_until(struct sim *sim, uint64_t end_us, bool (*done)(struct sim *sim))
{
    while (sim->failure[0] == '\0' && !done(sim)) {
        struct keel_heap_node *top = keel_heap_top(&sim->events);

        if (top == NULL || top->key > end_us)
            return;
        step(sim);
    }
}

static bool workload_done(struct sim *sim)
{
    return clients_done(sim);
}

bool sim_run(struct sim *sim)
{
    for (unsigned i = 0; i < sim->shape->nodes; i++)
        sim_node_start(sim, &sim->nodes[i]);
    clients_start(sim);
    if (sim->shape->fault_every_us != 0)
        sim_event_at(sim, keel_rng_below(&sim->fault_rng, sim->shape->fault_every_us), EVENT_FAULT,
                     0);
    run_until(sim, sim->shape->limit_us, workload_done);
    if (sim->failure[0] == '\0') {
        calm_down(sim);
        run_until(sim, sim->now_us + sim->shape->limit_us, check_is_converged);
    }
    if (sim->failure[0] == '\0')
        check_converged(sim);
    return sim->failure[0] == '\0';
}

struct sim *sim_new(const struct sim_shape *shape, uint64_t seed, bool trace)
{
    struct sim *sim = keel_calloc(1, sizeof *sim);

    sim->shape = shape;
    sim->seed = seed;
    sim->trace = trace;
    keel_rng_seed(&sim->net_rng, seed ^ 0x11);
    keel_rng_seed(&sim->disk_rng, seed ^ 0x22);
    keel_rng_seed(&sim->fault_rng, seed ^ 0x33);
    keel_rng_seed(&sim->client_rng, seed ^ 0x44);
    keel_rng_seed(&sim->clock_rng, seed ^ 0x55);
    for (unsigned i = 0; i < shape->nodes; i++) {
        struct sim_node *node = &sim->nodes[i];

        snprintf(sim->member_names[i], sizeof sim->member_names[i], "n%u", i);
        sim->members[i] = (struct apply_member){
            .id = i + 1,
            .name = sim->member_names[i],
            .address = sim->member_names[i],
            .voter = true,
        };
        node->env.ops = &sim_env_ops;
        node->sim = sim;
        node->slot = i;
        node->id = i + 1;
        node->incarnation = keel_rng_next(&sim->clock_rng) | 1;
        node->disk = disk_mem_new(keel_rng_next(&sim->disk_rng));
        node->kv = kv_mem_new();
    }
    return sim;
}

void sim_free(struct sim *sim)
{
    struct keel_heap_node *top;

    if (sim->failure[0] == '\0')
        check_fail(sim, "over"); /* nobody acts any more */
    for (unsigned i = 0; i < sim->shape->nodes; i++) {
        struct sim_node *node = &sim->nodes[i];

        sim_node_crash(sim, node);
        node->disk->ops->free(node->disk);
        node->kv->ops->close(node->kv);
        free(node->log);
    }
    clients_free(sim);
    while ((top = keel_heap_top(&sim->events)) != NULL) {
        keel_heap_remove(&sim->events, top);
        event_free(KEEL_CONTAINER_OF(top, struct sim_event, heap));
    }
    keel_heap_free(&sim->events);
    check_free(sim);
    free(sim);
}
