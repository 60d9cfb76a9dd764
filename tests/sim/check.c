/* What must hold, whatever happens: checked after every event of every node. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>

#include "check.h"
#include "err.h"
#include "hash.h"
#include "sim.h"

void check_fail(struct sim *sim, const char *fmt, ...)
{
    va_list args;

    if (sim->failure[0] != '\0')
        return;
    va_start(args, fmt);
    vsnprintf(sim->failure, sizeof sim->failure, fmt, args);
    va_end(args);
    sim_trace(sim, "FAILURE: %s", sim->failure);
}

/* Room for index `last` in an array; what is new is zero. */
static void *reserve(void *array, uint64_t *capacity, uint64_t last, size_t size)
{
    if (last < *capacity)
        return array;
    uint64_t more = last + last / 2 + 64;

    array = keel_realloc(array, more * size);
    memset((char *)array + *capacity * size, 0, (more - *capacity) * size);
    *capacity = more;
    return array;
}

/* ---- one leader a term (Election Safety) ---- */

static void check_leader(struct sim_node *node, const struct replica_status *status)
{
    struct sim *sim = node->sim;
    uint64_t capacity = sim->leader_capacity;

    if (status->role != RAFT_LEADER)
        return;
    sim->leaders = reserve(sim->leaders, &capacity, status->term, sizeof *sim->leaders);
    sim->leader_capacity = capacity;
    uint64_t *leader = &sim->leaders[status->term];

    if (*leader == 0)
        sim->elections++;
    if (*leader != 0 && *leader != node->id)
        check_fail(sim, "term %" PRIu64 " has two leaders: %" PRIu64 " and %" PRIu64, status->term,
                   *leader, node->id);
    *leader = node->id;
}

/* ---- logs (Log Matching, and what is committed stays) ---- */

static uint64_t entry_hash(const struct raft_entry *entry)
{
    return keel_hash64_seed(keel_buf_slice(entry->data), (uint64_t)entry->kind + entry->term);
}

void check_append(struct sim_node *node, const struct wal_batch *batch)
{
    struct sim *sim = node->sim;

    if (batch->count == 0)
        return;
    uint64_t first = batch->entries[0].index, last = batch->entries[batch->count - 1].index;

    if (first <= node->checked_commit)
        check_fail(sim, "n%u cuts its log at %" PRIu64 ", but %" PRIu64 " is committed", node->slot,
                   first, node->checked_commit);
    if (first > node->log_last + 1)
        check_fail(sim, "n%u leaves a gap in its log at %" PRIu64, node->slot, first);
    node->log = reserve(node->log, &node->log_capacity, last, sizeof *node->log);
    for (size_t i = 0; i < batch->count; i++) {
        const struct raft_entry *entry = &batch->entries[i];

        node->log[entry->index] = (struct sim_entry){ entry->term, entry_hash(entry) };
    }
    node->log_last = last;
    if (node->persisted_last >= first)
        node->persisted_last = first - 1;
}

/* After a restart: everything that it was told is durable must be there, and nothing else than was
 * handed over. */
void check_recovered(struct sim_node *node, const struct wal_recovery *recovery)
{
    struct sim *sim = node->sim;

    if (recovery->last_index < node->persisted_last)
        check_fail(sim, "n%u lost entries %" PRIu64 " to %" PRIu64 " of its log", node->slot,
                   recovery->last_index + 1, node->persisted_last);
    for (size_t i = 0; i < recovery->count; i++) {
        const struct raft_entry *entry = &recovery->entries[i];

        if (entry->index > node->log_last)
            continue; /* of a suffix that was cut in memory, not on the disk yet */
        if (entry->index <= node->persisted_last &&
            node->log[entry->index].hash != entry_hash(entry))
            check_fail(sim, "n%u: entry %" PRIu64 " is another one after its restart", node->slot,
                       entry->index);
    }
    for (size_t i = 0; i < recovery->count; i++) {
        const struct raft_entry *entry = &recovery->entries[i];

        node->log = reserve(node->log, &node->log_capacity, entry->index, sizeof *node->log);
        node->log[entry->index] = (struct sim_entry){ entry->term, entry_hash(entry) };
    }
    node->log_last = recovery->last_index;
    node->persisted_last = recovery->last_index;
    node->checked_commit = recovery->hard_state.commit > mvcc_applied_index(node->mvcc)
                               ? recovery->hard_state.commit
                               : mvcc_applied_index(node->mvcc);
}

static void check_commit(struct sim_node *node, const struct replica_status *status)
{
    struct sim *sim = node->sim;

    if (status->commit_index > sim->committed_last) {
        sim->committed = reserve(sim->committed, &sim->committed_capacity, status->commit_index,
                                 sizeof *sim->committed);
        sim->committed_last = status->commit_index;
    }
    for (uint64_t i = node->checked_commit + 1; i <= status->commit_index; i++) {
        struct sim_entry *known = &sim->committed[i];

        if (i > node->log_last) {
            check_fail(sim, "n%u takes %" PRIu64 " for committed and does not have it", node->slot,
                       i);
            return;
        }
        if (known->term == 0)
            *known = node->log[i];
        if (known->term != node->log[i].term || known->hash != node->log[i].hash)
            check_fail(sim, "entry %" PRIu64 " was committed as another one than n%u has", i,
                       node->slot);
    }
    if (status->commit_index > node->checked_commit)
        node->checked_commit = status->commit_index;
}

/* ---- state ---- */

static void check_state(struct sim_node *node, const struct replica_status *status)
{
    struct sim *sim = node->sim;
    uint64_t capacity = sim->state_capacity, index = status->applied_index;
    struct keel_hash128 hash = mvcc_state_hash(node->mvcc);

    if (index > status->commit_index)
        check_fail(sim, "n%u has applied %" PRIu64 ", committed is %" PRIu64, node->slot, index,
                   status->commit_index);
    sim->state_hashes = reserve(sim->state_hashes, &capacity, index, sizeof *sim->state_hashes);
    sim->state_capacity = capacity;
    struct keel_hash128 *known = &sim->state_hashes[index];

    if (known->low == 0 && known->high == 0)
        *known = hash;
    if (known->low != hash.low || known->high != hash.high)
        check_fail(sim, "n%u has another state than others had at index %" PRIu64, node->slot,
                   index);
}

void check_node(struct sim_node *node)
{
    struct replica_status status;

    replica_status(node->replica, &status);
    check_leader(node, &status);
    check_commit(node, &status);
    check_state(node, &status);
}

/* ---- changes: revisions in order, each value once ---- */

static uint64_t content_hash(struct sim_node *node, uint64_t ino, uint64_t *ret_last_value)
{
    const struct mvcc_key *key = mvcc_by_ino(node->mvcc, ino);
    struct mvcc_record record;
    struct keel_slice bytes;

    *ret_last_value = 0;
    if (key == NULL || mvcc_get(node->mvcc, key, 0, &record) != 0 ||
        mvcc_read(node->mvcc, &record.content, &bytes) != 0)
        return 0;
    if (bytes.len >= 8)
        memcpy(ret_last_value, bytes.data + bytes.len - 8, 8);
    return keel_hash64(bytes);
}

/* A value that is committed a second time was applied twice. */
static void check_once(struct sim *sim, const struct sim_change *change, uint64_t revision,
                       uint64_t value)
{
    if (change->kind != CHANGE_CREATE && change->kind != CHANGE_CONTENT)
        return;
    for (uint64_t r = 1; r < revision && r <= sim->change_last; r++) {
        const struct sim_change *old = &sim->changes[r];

        if ((old->kind == CHANGE_CREATE || old->kind == CHANGE_CONTENT) && old->hash != 0 &&
            old->size == value)
            check_fail(
                sim, "value %" PRIu64 " was written at revision %" PRIu64 " and again at %" PRIu64,
                value, r, revision);
    }
}

void check_changed(struct sim_node *node, const struct keel_change *change)
{
    struct sim *sim = node->sim;
    uint64_t value;
    struct sim_change now = { .kind = change->kind, .ino = change->ino };

    now.value_hash = content_hash(node, change->ino, &value);
    now.size = value;
    now.hash = 1 + (change->replaced ^ change->lease << 32 ^ keel_hash64(change->name) ^
                    keel_hash64(change->new_name));
    if (change->revision != node->seen_revision + 1)
        check_fail(sim, "n%u sees revision %" PRIu64 " after %" PRIu64, node->slot,
                   change->revision, node->seen_revision);
    node->seen_revision = change->revision;
    sim->changes =
        reserve(sim->changes, &sim->change_capacity, change->revision, sizeof *sim->changes);
    struct sim_change *known = &sim->changes[change->revision];

    if (known->hash == 0) {
        check_once(sim, &now, change->revision, value);
        *known = now;
        if (change->revision > sim->change_last)
            sim->change_last = change->revision;
    }
    if (known->kind != now.kind || known->ino != now.ino || known->hash != now.hash ||
        known->value_hash != now.value_hash)
        check_fail(sim, "n%u sees another change at revision %" PRIu64 " than others did",
                   node->slot, change->revision);
}

bool check_value_at(struct sim *sim, uint64_t ino, uint64_t revision, uint64_t *ret_hash)
{
    for (uint64_t r = revision < sim->change_last ? revision : sim->change_last; r > 0; r--) {
        const struct sim_change *change = &sim->changes[r];

        if (change->hash == 0 || change->ino != ino)
            continue;
        *ret_hash = change->value_hash;
        return change->kind != CHANGE_REMOVE;
    }
    return false;
}

/* ---- the end: everybody has the same ---- */

bool check_is_converged(struct sim *sim)
{
    struct replica_status first, other;

    if (!clients_done(sim))
        return false;
    for (unsigned i = 0; i < sim->shape->nodes; i++) {
        if (!sim->nodes[i].up || sim->nodes[i].replica == NULL)
            return false;
        replica_status(sim->nodes[i].replica, &other);
        if (i == 0)
            first = other;
        if (other.leader == 0 || other.leader != first.leader || other.session == 0 ||
            other.applied_index != first.applied_index || other.applied_index != other.last_index ||
            other.proposals != 0 || other.barriers != 0)
            return false;
    }
    return true;
}

static void trace_status(struct sim *sim, unsigned slot)
{
    struct replica_status s;

    if (!sim->nodes[slot].up || sim->nodes[slot].replica == NULL)
        return;
    replica_status(sim->nodes[slot].replica, &s);
    sim_trace(sim,
              "n%u: leader %" PRIu64 " term %" PRIu64 " last %" PRIu64 " commit %" PRIu64
              " applied %" PRIu64 " session %" PRIu64 " proposals %zu barriers %zu",
              slot, s.leader, s.term, s.last_index, s.commit_index, s.applied_index, s.session,
              s.proposals, s.barriers);
}

void check_converged(struct sim *sim)
{
    if (!check_is_converged(sim)) {
        for (unsigned i = 0; i < sim->shape->nodes; i++)
            trace_status(sim, i);
        check_fail(sim, "no convergence: %u of %u operations done, after the network has healed",
                   sim->ops_done, sim->shape->ops);
        return;
    }
    for (unsigned i = 0; i < sim->shape->nodes; i++)
        if (mvcc_revision(sim->nodes[i].mvcc) < sim->floor_revision)
            check_fail(sim, "n%u ends at revision %" PRIu64 ", acknowledged was %" PRIu64, i,
                       mvcc_revision(sim->nodes[i].mvcc), sim->floor_revision);
}

void check_free(struct sim *sim)
{
    free(sim->leaders);
    free(sim->committed);
    free(sim->state_hashes);
    free(sim->changes);
}
