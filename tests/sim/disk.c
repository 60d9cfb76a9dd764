/* A node's log thread and store thread: what its env does asynchronously, and what a crash leaves.
 * The store thread does one thing after the other; the log is written by group commit. */
#include <inttypes.h>
#include <stdlib.h>

#include "check.h"
#include "checks.h"
#include "err.h"

static struct sim_node *node_of(struct keel_env *env)
{
    return KEEL_CONTAINER_OF(env, struct sim_node, env);
}

/* How long one thing takes; now and then a disk stalls. */
static uint64_t disk_time(struct sim *sim, uint64_t max_us)
{
    uint64_t time = 20 + keel_rng_below(&sim->disk_rng, max_us);

    if (sim->plan.rough && !sim->calm && sim_chance(&sim->disk_rng, 4))
        time += 100000 + keel_rng_below(&sim->disk_rng, 400000);
    return time;
}

/* ---- log: append ---- */

void disk_log_append(struct keel_env *env, struct wal_batch *batch_take)
{
    struct sim_node *node = node_of(env);
    struct sim *sim = node->sim;

    check_append(node, batch_take);
    batch_take->next = NULL;
    *node->queue_end = batch_take;
    node->queue_end = &batch_take->next;
    node->queued++;
    if (node->writing)
        return;
    node->writing = true;
    sim_event_at(sim, sim->now_us + disk_time(sim, sim->shape->disk_max_us), EVENT_DISK,
                 node->slot);
}

static int write_queue(struct sim_node *node)
{
    struct sim *sim = node->sim;
    size_t count = 0;

    if (node->queued > sim->scratch_capacity) {
        sim->scratch_capacity = node->queued + 16;
        sim->scratch = keel_realloc(sim->scratch, sim->scratch_capacity * sizeof *sim->scratch);
    }
    for (struct wal_batch *batch = node->queue; batch != NULL; batch = batch->next)
        sim->scratch[count++] = batch;
    return wal_write(node->wal, sim->scratch, count);
}

static struct wal_batch *take_queue(struct sim_node *node)
{
    struct wal_batch *first = node->queue;

    node->queue = NULL;
    node->queue_end = &node->queue;
    node->queued = 0;
    node->writing = false;
    return first;
}

/* Group commit: everything that waits becomes durable together. */
static void write_event(struct sim_node *node)
{
    int err = write_queue(node);

    if (err != 0) {
        check_fail(node->sim, "n%u: wal_write: %s", node->slot, keel_strerror(err));
        return;
    }
    for (struct wal_batch *batch = take_queue(node), *next; batch != NULL; batch = next) {
        next = batch->next;
        if (batch->count > 0)
            node->persisted_last = batch->entries[batch->count - 1].index;
        if (batch->has_hard_state)
            node->hard = batch->hard_state;
        replica_on_persisted(node->replica, batch->mark);
        wal_batch_free(batch);
    }
    if (sim_chance(&node->sim->disk_rng, 200) && wal_idle(node->wal) != 0)
        check_fail(node->sim, "n%u: wal_idle", node->slot);
    sim_node_settle(node);
}

/* ---- log: read, release ---- */

void disk_log_read(struct keel_env *env, uint64_t peer, uint64_t first, size_t max_bytes)
{
    struct sim_node *node = node_of(env);
    struct sim_event *event = sim_event_at(node->sim, node->sim->now_us + disk_time(node->sim, 200),
                                           EVENT_LOG_READ, node->slot);

    event->first = first;
    event->from_id = peer;
    event->max_bytes = max_bytes;
}

static void log_read_event(struct sim_node *node, const struct sim_event *event)
{
    struct raft_entry *entries = NULL;
    size_t count = 0;
    uint64_t prev_term = 0;

    if (wal_read(node->wal, event->first, event->max_bytes, &entries, &count, &prev_term) != 0)
        count = 0;
    replica_on_log_read(node->replica, event->from_id, event->first, prev_term, entries, count);
    raft_entries_free(entries, count);
    sim_node_settle(node);
}

void disk_log_release(struct keel_env *env, uint64_t index)
{
    struct sim_node *node = node_of(env);

    if (index > node->store_durable)
        check_fail(node->sim, "n%u lets go of its log up to %" PRIu64 ", its store is at %" PRIu64,
                   node->slot, index, node->store_durable);
    node->release_index = index;
    sim_event_at(node->sim, node->sim->now_us + disk_time(node->sim, 500), EVENT_LOG_RELEASE,
                 node->slot)
        ->first = index;
}

static void log_release_event(struct sim_node *node, uint64_t index)
{
    int err = wal_release(node->wal, index, node->sim->plan.log_kept_bytes);

    if (err != 0)
        check_fail(node->sim, "n%u: wal_release: %s", node->slot, keel_strerror(err));
    if (node->release_index == index)
        node->release_index = 0;
    replica_on_log_released(node->replica, wal_first_index(node->wal));
    sim_node_settle(node);
}

/* ---- store ---- */

static struct sim_event *store_later(struct sim_node *node, enum sim_event_kind kind,
                                     uint64_t max_us)
{
    struct sim *sim = node->sim;
    uint64_t from = node->store_free_us > sim->now_us ? node->store_free_us : sim->now_us;

    node->store_free_us = from + disk_time(sim, max_us);
    return sim_event_at(sim, node->store_free_us, kind, node->slot);
}

void disk_checkpoint(struct keel_env *env, struct kv_batch *batch_take)
{
    struct sim_node *node = node_of(env);

    if (batch_take->applied_index > node->persisted_last)
        check_fail(node->sim, "n%u: checkpoint at %" PRIu64 " ahead of its own log at %" PRIu64,
                   node->slot, batch_take->applied_index, node->persisted_last);
    if (node->checkpoint != NULL)
        check_fail(node->sim, "n%u: two checkpoints at a time", node->slot);
    node->checkpoint = batch_take;
    store_later(node, EVENT_STORE, node->sim->shape->disk_max_us * 4);
}

static void write_checkpoint(struct sim_node *node)
{
    if (node->checkpoint->applied_index < node->store_durable)
        check_fail(node->sim, "n%u: its store would go back from %" PRIu64 " to %" PRIu64,
                   node->slot, node->store_durable, node->checkpoint->applied_index);
    if (node->kv->ops->write(node->kv, node->checkpoint) != 0)
        check_fail(node->sim, "n%u: the store could not be written", node->slot);
    node->store_durable = node->checkpoint->applied_index;
}

static void store_event(struct sim_node *node)
{
    struct kv_batch *batch = node->checkpoint;

    write_checkpoint(node);
    node->checkpoint = NULL;
    replica_on_checkpointed(node->replica);
    kv_batch_free(batch);
    sim_node_settle(node);
}

/* ---- the snapshot that it sends ---- */

static struct keel_buf *write_snapshot(struct sim_node *node, struct snapshot_info *info)
{
    struct snapshot_writer *writer;
    struct keel_text all = { 0 };
    struct keel_slice piece;
    int err = snapshot_writer_new(node->kv, 1, &writer);

    if (err != 0)
        return NULL;
    while ((err = snapshot_writer_next(writer, &piece)) == 0 && piece.len > 0)
        keel_text_append(&all, piece);
    *info = *snapshot_writer_info(writer);
    snapshot_writer_free(writer);
    struct keel_buf *buf =
        err == 0 ? keel_buf_copy(keel_slice_of((const uint8_t *)all.data, all.len)) : NULL;

    keel_text_free(&all);
    return buf;
}

void disk_snapshot_make(struct keel_env *env)
{
    struct sim_node *node = node_of(env);

    node->snapshot_making++;
    store_later(node, EVENT_SNAPSHOT_MAKE, node->sim->shape->disk_max_us * 8)->first =
        node->snapshot_making;
}

static void snapshot_make_event(struct sim_node *node, const struct sim_event *event)
{
    struct snapshot_info info = { 0 };

    if (event->first != node->snapshot_making)
        return; /* dropped meanwhile */
    keel_buf_free(node->snapshot);
    node->snapshot = sim_chance(&node->sim->disk_rng, 30) ? NULL : write_snapshot(node, &info);
    sim_trace(node->sim, "n%u has %s snapshot of %" PRIu64, node->slot,
              node->snapshot != NULL ? "made a" : "no", info.index);
    replica_on_snapshot_made(node->replica, node->snapshot != NULL ? 0 : KEEL_E_DISKFULL, &info);
    sim_node_settle(node);
}

void disk_snapshot_read(struct keel_env *env, uint64_t peer, uint64_t offset, size_t bytes)
{
    struct sim_node *node = node_of(env);
    struct sim_event *event = sim_event_at(
        node->sim, node->sim->now_us + disk_time(node->sim, 1000), EVENT_SNAPSHOT_READ, node->slot);

    event->from_id = peer;
    event->offset = offset;
    event->max_bytes = bytes;
}

/* On its way a piece may be damaged, and nobody but the reader of the snapshot notices. */
static struct keel_buf *piece_of(struct sim_node *node, uint64_t offset, size_t bytes)
{
    struct keel_rng *rng = &node->sim->disk_rng;

    if (node->snapshot == NULL || offset >= node->snapshot->len)
        return NULL;
    size_t rest = node->snapshot->len - (size_t)offset;
    struct keel_buf *piece =
        keel_buf_copy(keel_slice_of(node->snapshot->data + offset, bytes < rest ? bytes : rest));

    if (!node->sim->calm && sim_chance(rng, 50))
        piece->data[keel_rng_below(rng, piece->len)] ^= (uint8_t)(1u << keel_rng_below(rng, 8));
    return piece;
}

static void snapshot_read_event(struct sim_node *node, const struct sim_event *event)
{
    struct keel_buf *piece = piece_of(node, event->offset, event->max_bytes);

    replica_on_snapshot_read(node->replica, event->from_id, event->offset, piece);
    keel_buf_free(piece);
    sim_node_settle(node);
}

void disk_snapshot_drop(struct keel_env *env)
{
    struct sim_node *node = node_of(env);

    node->snapshot_making++;
    node->snapshot = keel_buf_free(node->snapshot);
}

/* ---- the snapshot that it is sent ---- */

void disk_snapshot_store(struct keel_env *env, uint64_t offset, struct keel_buf *bytes_take)
{
    struct sim_event *event = store_later(node_of(env), EVENT_SNAPSHOT_STORE, 1000);

    event->offset = offset;
    event->buf = bytes_take;
}

static void snapshot_store_event(struct sim_node *node, const struct sim_event *event)
{
    size_t end = (size_t)event->offset + event->buf->len;

    if (event->offset == 0)
        node->received_len = 0;
    if (event->offset != node->received_len)
        check_fail(node->sim, "n%u stores a piece at %" PRIu64 " after one that ended at %zu",
                   node->slot, event->offset, node->received_len);
    if (end > node->received_capacity) {
        node->received_capacity = 2 * end;
        node->received = keel_realloc(node->received, node->received_capacity);
    }
    memcpy(node->received + event->offset, event->buf->data, event->buf->len);
    node->received_len = end;
    replica_on_snapshot_stored(node->replica, 0, end);
    sim_node_settle(node);
}

void disk_snapshot_install(struct keel_env *env)
{
    struct sim_node *node = node_of(env);

    store_later(node, EVENT_SNAPSHOT_INSTALL, node->sim->shape->disk_max_us * 8);
}

static int write_into(void *arg, struct kv_batch *batch_take)
{
    struct kv *kv = arg;
    int err = kv->ops->write(kv, batch_take);

    kv_batch_free(batch_take);
    return err;
}

static int build_store(struct sim_node *node, struct kv *kv, struct snapshot_info *info)
{
    char why[256] = "";
    struct snapshot_reader *reader = snapshot_reader_new(write_into, kv);
    int err = snapshot_reader_feed(reader, keel_slice_of(node->received, node->received_len), why,
                                   sizeof why);

    if (err == 0)
        err = snapshot_reader_finish(reader, info, why, sizeof why);
    snapshot_reader_free(reader);
    if (err != 0)
        sim_trace(node->sim, "n%u refuses a snapshot: %s", node->slot, why);
    return err;
}

/* The new store takes the old one's place together with the manifest, which stays until the log's
 * reset is durable; the replica is told a little later. */
static void snapshot_install_event(struct sim_node *node)
{
    struct snapshot_info info;
    struct kv *kv = kv_mem_new();
    int err = build_store(node, kv, &info);

    node->received_len = 0;
    if (err != 0) {
        kv->ops->close(kv);
        replica_on_snapshot_installed(node->replica, err, NULL, NULL);
        sim_node_settle(node);
        return;
    }
    if (node->old_kv != NULL || info.index <= node->store_durable)
        check_fail(node->sim, "n%u installs a snapshot of %" PRIu64 " over a store at %" PRIu64,
                   node->slot, info.index, node->store_durable);
    node->old_kv = node->kv;
    node->kv = kv;
    node->install_index = info.index;
    node->install_term = info.term;
    node->store_durable = info.index;
    sim_trace(node->sim, "n%u has the store of %" PRIu64, node->slot, info.index);
    store_later(node, EVENT_SNAPSHOT_SWAPPED, 500)->info = info;
}

static void snapshot_swapped_event(struct sim_node *node, const struct sim_event *event)
{
    node->sim->snapshots_installed++;
    check_reload_begins(node);
    replica_on_snapshot_installed(node->replica, 0, node->kv, &event->info);
    sim_node_settle(node);
}

void disk_snapshot_finish(struct keel_env *env)
{
    struct sim_node *node = node_of(env);

    if (node->old_kv == NULL)
        check_fail(node->sim, "n%u finishes an installation that is none", node->slot);
    else
        node->old_kv->ops->close(node->old_kv);
    node->old_kv = NULL;
    node->install_index = 0;
}

/* ---- events and crashes ---- */

void disk_event(struct sim_node *node, struct sim_event *event)
{
    if (event->kind == EVENT_DISK)
        write_event(node);
    else if (event->kind == EVENT_LOG_READ)
        log_read_event(node, event);
    else if (event->kind == EVENT_LOG_RELEASE)
        log_release_event(node, event->first);
    else if (event->kind == EVENT_STORE)
        store_event(node);
    else if (event->kind == EVENT_SNAPSHOT_MAKE)
        snapshot_make_event(node, event);
    else if (event->kind == EVENT_SNAPSHOT_READ)
        snapshot_read_event(node, event);
    else if (event->kind == EVENT_SNAPSHOT_STORE)
        snapshot_store_event(node, event);
    else if (event->kind == EVENT_SNAPSHOT_INSTALL)
        snapshot_install_event(node);
    else if (event->kind == EVENT_SNAPSHOT_SWAPPED)
        snapshot_swapped_event(node, event);
}

/* Some of what waits is on its way to the platter: it may be torn, lost, or there after all. */
static void crash_log(struct sim_node *node)
{
    struct sim *sim = node->sim;

    if (node->queued > 0 && sim_chance(&sim->disk_rng, 700)) {
        disk_mem_cut(node->disk, 1 + keel_rng_below(&sim->disk_rng, 3));
        write_queue(node);
    } else if (node->release_index != 0 && sim_chance(&sim->disk_rng, 700)) {
        disk_mem_cut(node->disk, 1 + keel_rng_below(&sim->disk_rng, 4));
        wal_release(node->wal, node->release_index, sim->plan.log_kept_bytes);
    }
    for (struct wal_batch *batch = take_queue(node), *next; batch != NULL; batch = next) {
        next = batch->next;
        wal_batch_free(batch);
    }
    node->release_index = 0;
}

void disk_crash(struct sim_node *node)
{
    crash_log(node);
    if (node->checkpoint != NULL && sim_chance(&node->sim->disk_rng, 300))
        write_checkpoint(node);
    node->checkpoint = kv_batch_free(node->checkpoint);
    node->snapshot = keel_buf_free(node->snapshot);
    node->snapshot_making++;
    node->received_len = 0;
}
