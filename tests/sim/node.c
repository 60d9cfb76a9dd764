/* The life of a node: its data directory, starts, crashes, clean stops, its clock. */
#include <inttypes.h>
#include <stdlib.h>

#include "check.h"
#include "checks.h"
#include "err.h"

enum {
    PAUSED_US = 3333333,   /* as in node.c: longer without a turn is a pause */
    STOP_POLL_US = 5000,   /* a clean stop looks whether leadership has been handed over … */
    STOP_MAX_US = 1000000, /* … for so long */
};

/* ---- clocks ---- */

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

static void set_clock(struct sim_node *node)
{
    struct keel_rng *rng = &node->sim->clock_rng;

    node->read_us = 0;
    node->clock_offset_us = 1000000 + keel_rng_below(rng, 1ull << 40);
    node->drift_ppm = (int64_t)keel_rng_below(rng, 9000) - 4500;
    node->wall_skew_ns = (int64_t)keel_rng_below(rng, 2000000000) - 1000000000;
}

void sim_node_trouble(struct sim_node *node, uint64_t until_us)
{
    if (until_us > node->trouble_us)
        node->trouble_us = until_us;
}

/* ---- env ---- */

static struct sim_node *node_of(struct keel_env *env)
{
    return KEEL_CONTAINER_OF(env, struct sim_node, env);
}

/* Asked for many times at each event. */
static uint64_t env_now_us(struct keel_env *env)
{
    struct sim_node *node = node_of(env);

    if (node->read_at_us != node->sim->now_us || node->read_us == 0) {
        node->read_at_us = node->sim->now_us;
        node->read_us = sim_node_clock(node);
    }
    return node->read_us;
}

static int64_t env_wall_ns(struct keel_env *env)
{
    struct sim_node *node = node_of(env);

    return (int64_t)node->sim->now_us * 1000 + node->wall_skew_ns;
}

static void env_send(struct keel_env *env, uint64_t to, struct keel_message *msg_take)
{
    network_send(node_of(env)->sim, node_of(env), to, msg_take);
}

static void env_changed(struct keel_env *env, const struct keel_change *change)
{
    struct sim_node *node = node_of(env);

    check_changed(node, change);
    clients_changed(node->sim, node->slot, change);
}

static void env_lease_lost(struct keel_env *env, uint64_t lease)
{
    clients_lease_lost(node_of(env)->sim, node_of(env)->slot, lease);
}

static void env_members_changed(struct keel_env *env)
{
    network_members_changed(node_of(env));
    operator_members_changed(node_of(env));
}

static void env_reloaded(struct keel_env *env)
{
    check_reloaded(node_of(env));
    env_members_changed(env);
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
    .log_append = disk_log_append,
    .log_read = disk_log_read,
    .log_release = disk_log_release,
    .checkpoint = disk_checkpoint,
    .snapshot_make = disk_snapshot_make,
    .snapshot_read = disk_snapshot_read,
    .snapshot_drop = disk_snapshot_drop,
    .snapshot_store = disk_snapshot_store,
    .snapshot_install = disk_snapshot_install,
    .snapshot_finish = disk_snapshot_finish,
    .changed = env_changed,
    .lease_lost = env_lease_lost,
    .members_changed = env_members_changed,
    .reloaded = env_reloaded,
    .note = env_note,
};

/* ---- data directories ---- */

void sim_node_name(unsigned slot, char ret_name[SIM_NAME_SIZE])
{
    snprintf(ret_name, SIM_NAME_SIZE, "n%u", slot);
}

void sim_node_address(unsigned slot, char ret_address[SIM_NAME_SIZE])
{
    snprintf(ret_address, SIM_NAME_SIZE, "n%u:1", slot);
}

struct sim_node *sim_node_by_id(struct sim *sim, uint64_t id)
{
    if (id == 0 || sim_slot_of(id) >= sim->plan.slots)
        return NULL;
    struct sim_node *node = &sim->nodes[sim_slot_of(id)];

    return node->id == id ? node : NULL;
}

static void new_disk(struct sim_node *node)
{
    struct sim *sim = node->sim;

    node->env.ops = &sim_env_ops;
    node->incarnation = keel_rng_next(&sim->clock_rng) | 1;
    node->disk = disk_mem_new(keel_rng_next(&sim->disk_rng));
    node->kv = kv_mem_new();
    node->install_index = 0;
    node->log_last = node->persisted_last = node->store_durable = 0;
    node->checked_commit = node->checked_applied = node->checked_members = 0;
    node->config_count = 0;
    node->counted_by = node->led_term = 0;
    node->voted_term = node->voted_for = 0;
    node->last_context = 0;
    if (node->log_capacity > 0)
        memset(node->log, 0, node->log_capacity * sizeof *node->log);
}

void sim_node_create(struct sim_node *node, bool bootstrap)
{
    KEEL_ASSERT(node->disk == NULL);
    node->id = node->slot + 1 + SIM_ID_STRIDE * node->generation;
    node->state = bootstrap ? SLOT_MEMBER : SLOT_RESERVED;
    node->bootstrap = bootstrap;
    node->welcome_count = 0;
    node->reboots = true;
    new_disk(node);
}

static void remember_lost(struct sim_node *node)
{
    struct sim *sim = node->sim;

    sim->lost = keel_realloc(sim->lost, (sim->lost_count + 1) * sizeof *sim->lost);
    sim->lost[sim->lost_count++] =
        (struct sim_lost){ node->id, node->persisted_last, node->store_durable };
}

static void drop_disk(struct sim_node *node)
{
    node->disk->ops->free(node->disk);
    node->disk = NULL;
    node->kv->ops->close(node->kv);
    node->kv = NULL;
}

void sim_node_destroy(struct sim_node *node)
{
    sim_node_crash(node, false);
    sim_trace(node->sim, "n%u: the data directory of %" PRIu64 " is deleted", node->slot, node->id);
    if (node->state != SLOT_WIPED)
        remember_lost(node);
    drop_disk(node);
    node->state = SLOT_FREE;
    node->id = 0;
    node->generation++;
}

/* ---- start ---- */

/* A new cluster's log begins with the same entry everywhere. */
static int begin_log(struct sim_node *node, struct wal *wal)
{
    struct sim *sim = node->sim;
    struct apply_member members[KEEL_MEMBERS_MAX] = { 0 };
    char names[SIM_SLOTS_MAX][SIM_NAME_SIZE], addresses[SIM_SLOTS_MAX][SIM_NAME_SIZE];

    for (unsigned i = 0; i < sim->plan.nodes; i++) {
        sim_node_name(i, names[i]);
        sim_node_address(i, addresses[i]);
        members[i] = (struct apply_member){
            .id = i + 1, .name = names[i], .address = addresses[i], .voter = true
        };
    }
    struct raft_entry first = apply_first_entry(members, sim->plan.nodes);
    struct wal_batch batch = {
        .mark = { .seq = 1, .term = first.term, .index = first.index },
        .has_hard_state = true,
        .hard_state = { .term = first.term, .commit = first.index },
        .entries = &first,
        .count = 1,
    };
    struct wal_batch *list[] = { &batch };
    int err = wal_write(wal, list, 1);

    keel_buf_free(first.data);
    return err;
}

static int open_log(struct sim_node *node, struct wal_recovery *recovery, char *why, size_t size)
{
    struct wal_options options = {
        .cluster_id = 1,
        .node_id = node->id,
        .store_applied = mvcc_applied_index(node->mvcc),
        .segment_bytes = node->sim->plan.short_log ? 4 << 10 : 256 << 10,
        .fill_bytes = node->sim->plan.short_log ? 2 << 10 : 16 << 10,
        .install_index = node->install_index,
        .install_term = node->install_term,
    };
    int err = wal_open(node->disk, &options, &node->wal, recovery, why, size);

    if (err != 0 || !node->bootstrap)
        return err;
    node->bootstrap = false;
    err = begin_log(node, node->wal);
    node->wal = wal_close(node->wal);
    wal_recovery_free(recovery);
    if (err != 0)
        return err;
    return wal_open(node->disk, &options, &node->wal, recovery, why, size);
}

static bool open_state(struct sim_node *node, struct wal_recovery *recovery)
{
    char why[512] = "";
    int err = mvcc_open(node->kv, &node->mvcc, why, sizeof why);

    if (err == 0)
        err = apply_new(node->mvcc, &node->apply);
    if (err == 0)
        err = open_log(node, recovery, why, sizeof why);
    if (err != 0) {
        check_fail(node->sim, "n%u cannot start: %s %s", node->slot, keel_strerror(err), why);
        return false;
    }
    node->install_index = 0; /* the log has been reset, for certain */
    return true;
}

static struct replica *new_replica(struct sim_node *node, const struct wal_recovery *recovery)
{
    struct sim *sim = node->sim;
    struct replica_options options = {
        .incarnation = node->incarnation,
        .nonce = keel_rng_next(&sim->clock_rng) | 1,
        .request_timeout_us = sim->plan.request_timeout_us,
        .session_ttl_us = sim->plan.session_ttl_us,
        .check_us = sim->plan.check_us,
        .lease_reads = sim->shape->lease_reads,
        .first_history_ms = sim->plan.history_ms,
        .first_history_revisions = sim->plan.history_revisions,
        .first_quota_bytes = sim->plan.quota_bytes,
    };

    raft_options_init(&options.raft);
    options.raft.id = node->id;
    options.raft.hard_state = recovery->hard_state;
    options.raft.first_stored_index = wal_first_index(node->wal);
    options.raft.entries = recovery->entries;
    options.raft.entry_count = recovery->count;
    options.raft.seed = keel_rng_next(&sim->clock_rng);
    options.raft.tail_entries = sim->plan.tail_entries;
    return replica_new(&node->env, node->apply, &options);
}

void sim_node_start(struct sim_node *node)
{
    struct sim *sim = node->sim;
    struct wal_recovery recovery = { 0 };

    node->epoch++;
    node->up = true;
    node->stopping = node->pruning = false;
    node->timer_us = UINT64_MAX;
    node->last_turn_us = 0;
    node->store_free_us = 0;
    node->session = 0;
    node->trouble_us = sim->now_us;
    if (node->reboots)
        set_clock(node);
    node->reboots = false;
    if (!open_state(node, &recovery))
        return;
    check_started(node, &recovery);
    node->replica = new_replica(node, &recovery);
    wal_recovery_free(&recovery);
    sim_trace(sim, "n%u starts as %" PRIu64 ", applied %" PRIu64 " log %" PRIu64 " to %" PRIu64,
              node->slot, node->id, mvcc_applied_index(node->mvcc), wal_first_index(node->wal),
              wal_last_index(node->wal));
    network_node_up(sim, node->slot);
    sim_node_settle(node);
}

/* ---- crash and clean stop ---- */

void sim_node_crash(struct sim_node *node, bool power)
{
    struct sim *sim = node->sim;

    if (!node->up)
        return;
    sim_trace(sim, "n%u %s", node->slot, power ? "loses power" : "crashes");
    clients_node_down(sim, node->slot);
    node->up = false;
    node->epoch++;
    node->paused_until_us = 0;
    network_node_down(sim, node->slot, power);
    if (node->replica != NULL)
        disk_crash(node);
    node->replica = replica_free(node->replica);
    node->apply = apply_free(node->apply);
    node->mvcc = mvcc_close(node->mvcc);
    node->wal = wal_close(node->wal);
    if (node->old_kv != NULL)
        node->old_kv->ops->close(node->old_kv);
    node->old_kv = NULL;
    disk_mem_crash(node->disk);
}

void sim_node_stop_event(struct sim_node *node, const struct sim_event *event)
{
    struct sim *sim = node->sim;
    uint64_t began = event->first;

    if (began == 0 && replica_transfer(node->replica))
        began = sim->now_us;
    sim_node_settle(node);
    if (began != 0 && replica_is_leader(node->replica) && sim->now_us - began < STOP_MAX_US) {
        sim_event_at(sim, sim->now_us + STOP_POLL_US, EVENT_STOP, node->slot)->first = began;
        return;
    }
    sim_node_crash(node, false);
    sim_event_at(sim, sim->now_us + 50000, EVENT_START, node->slot)->first = node->id;
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
    uint64_t now = sim_node_clock(node);

    if (node->last_turn_us != 0 && now - node->last_turn_us > PAUSED_US)
        replica_on_paused(node->replica);
    node->last_turn_us = now;
    replica_pump(node->replica);
    check_node(node);
    set_timer(node);
}

void sim_node_timer(struct sim_node *node, uint64_t at)
{
    if (at == node->timer_us || node->timer_us <= node->sim->now_us)
        node->timer_us = UINT64_MAX;
    replica_tick(node->replica);
    sim_node_settle(node);
}
