/* What must hold, whatever happens: checked after every event of every node. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>

#include "bytes.h"
#include "check.h"
#include "checks.h"
#include "err.h"
#include "hash.h"
#include "raft/raft_internal.h"

enum { LATE_US = 80000 }; /* clocks drift apart by a percent of the longest timeout, and more */

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

/* ---- one leader a term (Election Safety) ---- */

static void check_leader(struct sim_node *node, uint64_t term)
{
    struct sim *sim = node->sim;

    sim->leaders = sim_reserve(sim->leaders, &sim->leader_capacity, term, sizeof *sim->leaders);
    uint64_t *leader = &sim->leaders[term];

    if (*leader == 0) {
        sim->elections++;
        sim->former_leader = sim->last_leader;
        sim->last_leader = node->slot;
        sim->leader_change_us = sim->now_us;
    }
    if (*leader != 0 && *leader != node->id)
        check_fail(sim, "term %" PRIu64 " has two leaders: %" PRIu64 " and %" PRIu64, term, *leader,
                   node->id);
    *leader = node->id;
}

/* ---- logs (Log Matching, and what is committed stays) ---- */

static uint64_t entry_hash(const struct raft_entry *entry)
{
    return keel_hash64_seed(keel_buf_slice(entry->data), (uint64_t)entry->kind + entry->term);
}

void check_gave_up(struct sim *sim, uint64_t value)
{
    check_value(sim, value)->given_up_us = sim->now_us;
}

/* A leader takes up a command whose caller was told long ago that it had timed out. */
static void check_in_time(struct sim_node *node, const struct raft_entry *entry)
{
    struct sim *sim = node->sim;

    if (entry->kind != RAFT_ENTRY_COMMAND || entry->data->len < 8 ||
        entry->term != raft_term(node->replica->raft) || !replica_is_leader(node->replica))
        return;
    uint64_t value = get_le64(entry->data->data + entry->data->len - 8);

    if ((value & SIM_VALUE_MASK) != SIM_VALUE_TAG)
        return;
    uint64_t gave_up = check_value(sim, value)->given_up_us;

    if (gave_up != 0 && sim->now_us > gave_up + LATE_US)
        check_fail(sim, "n%u proposes value %" PRIu64 " %" PRIu64 " ms after its caller gave up",
                   node->slot, value & ~SIM_VALUE_MASK, (sim->now_us - gave_up) / 1000);
}

static void set_entry(struct sim_node *node, const struct raft_entry *entry)
{
    node->log[entry->index] = (struct sim_entry){ entry->term, entry_hash(entry) };
    check_config_appended(node, entry);
}

/* The log is void up to an index, where a snapshot ends: what is committed stands there. */
static void base_log(struct sim_node *node, uint64_t index)
{
    struct sim *sim = node->sim;

    if (index > sim->committed_last) {
        check_fail(sim, "n%u has a snapshot of %" PRIu64 ", committed is %" PRIu64, node->slot,
                   index, sim->committed_last);
        return;
    }
    node->log = sim_reserve(node->log, &node->log_capacity, index, sizeof *node->log);
    memcpy(node->log, sim->committed, (index + 1) * sizeof *node->log);
    node->log_last = node->persisted_last = index;
    check_config_cut(node, 0);
    check_config_based(node, index);
}

static void check_reset(struct sim_node *node, uint64_t index, uint64_t term)
{
    struct sim *sim = node->sim;

    if (index < node->checked_commit)
        check_fail(sim, "n%u resets its log to %" PRIu64 ", but %" PRIu64 " is committed",
                   node->slot, index, node->checked_commit);
    if (index > node->store_durable)
        check_fail(sim, "n%u resets its log to %" PRIu64 ", but its store is at %" PRIu64,
                   node->slot, index, node->store_durable);
    base_log(node, index);
    if (sim->failure[0] == '\0' && sim->committed[index].term != term)
        check_fail(sim, "n%u resets its log to %" PRIu64 " with another term", node->slot, index);
}

void check_append(struct sim_node *node, const struct wal_batch *batch)
{
    struct sim *sim = node->sim;

    if (batch->reset)
        check_reset(node, batch->reset_index, batch->reset_term);
    if (batch->count == 0 || sim->failure[0] != '\0')
        return;
    uint64_t first = batch->entries[0].index, last = batch->entries[batch->count - 1].index;

    if (first <= node->checked_commit)
        check_fail(sim, "n%u cuts its log at %" PRIu64 ", but %" PRIu64 " is committed", node->slot,
                   first, node->checked_commit);
    if (first > node->log_last + 1)
        check_fail(sim, "n%u leaves a gap in its log at %" PRIu64, node->slot, first);
    node->log = sim_reserve(node->log, &node->log_capacity, last, sizeof *node->log);
    check_config_cut(node, first);
    for (size_t i = 0; i < batch->count; i++) {
        set_entry(node, &batch->entries[i]);
        check_in_time(node, &batch->entries[i]);
    }
    node->log_last = last;
    if (node->persisted_last >= first)
        node->persisted_last = first - 1;
}

/* Everything that it was told is durable must be there, and nothing else than was handed over. */
static void check_recovered(struct sim_node *node, const struct wal_recovery *recovery)
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
}

void check_started(struct sim_node *node, const struct wal_recovery *recovery)
{
    uint64_t applied = mvcc_applied_index(node->mvcc);

    if (applied > node->log_last) /* the reset after a snapshot had not been handed over */
        base_log(node, applied);
    check_recovered(node, recovery);
    check_config_cut(node,
                     recovery->count > 0 ? recovery->entries[0].index : recovery->last_index + 1);
    for (size_t i = 0; i < recovery->count; i++) {
        node->log = sim_reserve(node->log, &node->log_capacity, recovery->entries[i].index,
                                sizeof *node->log);
        set_entry(node, &recovery->entries[i]);
    }
    check_config_based(node, applied);
    node->log_last = node->persisted_last = recovery->last_index;
    node->store_durable = applied;
    node->checked_commit =
        recovery->hard_state.commit > applied ? recovery->hard_state.commit : applied;
    node->checked_applied = 0;
    node->hard = recovery->hard_state;
    node->answered_us = sim_node_clock(node);
    node->old_context = node->last_context;
    node->counted_by = node->led_term = 0;
    node->reloading = false;
    node->seen_revision = mvcc_revision(node->mvcc);
    check_mirror_start(node);
}

static bool check_committed_entry(struct sim_node *node, uint64_t index)
{
    struct sim *sim = node->sim;
    struct sim_entry *known = &sim->committed[index];

    if (index > node->log_last) {
        check_fail(sim, "n%u takes %" PRIu64 " for committed and does not have it", node->slot,
                   index);
        return false;
    }
    if (known->term == 0) {
        *known = node->log[index];
        check_config_committed(node, index);
    }
    if (known->term != node->log[index].term || known->hash != node->log[index].hash) {
        check_fail(sim, "entry %" PRIu64 " was committed as another one than n%u has", index,
                   node->slot);
        return false;
    }
    return true;
}

static void check_commit(struct sim_node *node, uint64_t commit, bool leads)
{
    struct sim *sim = node->sim;

    check_commit_counted(node, commit, leads);
    if (commit <= node->checked_commit && commit <= sim->committed_last)
        return;
    if (commit > sim->committed_last) {
        sim->committed =
            sim_reserve(sim->committed, &sim->committed_capacity, commit, sizeof *sim->committed);
        for (uint64_t i = sim->committed_last + 1; i < node->checked_commit + 1; i++)
            if (!check_committed_entry(node, i))
                return;
        sim->committed_last = commit;
    }
    for (uint64_t i = node->checked_commit + 1; i <= commit; i++)
        if (!check_committed_entry(node, i))
            return;
    if (commit > node->checked_commit)
        node->checked_commit = commit;
}

/* ---- what leaves (figure 3.1, "updated on stable storage before responding") ---- */

static void check_vote(struct sim_node *node, uint64_t term, uint64_t vote)
{
    if (node->hard.term != term || node->hard.vote != vote)
        check_fail(node->sim,
                   "n%u votes for %" PRIu64 " in term %" PRIu64 ", which its disk does not say",
                   node->slot, vote, term);
    if (node->voted_term == term && node->voted_for != vote)
        check_fail(node->sim, "n%u votes twice in term %" PRIu64, node->slot, term);
    node->voted_term = term;
    node->voted_for = vote;
}

static void check_ack(struct sim_node *node, const struct raft_message *msg)
{
    uint64_t index = msg->u.append_reply.index;

    if (index > node->persisted_last && index > node->store_durable)
        check_fail(node->sim, "n%u acknowledges %" PRIu64 ", its disk has %" PRIu64, node->slot,
                   index, node->persisted_last);
    if (node->hard.term < msg->term)
        check_fail(node->sim, "n%u acknowledges in term %" PRIu64 ", its disk says %" PRIu64,
                   node->slot, msg->term, node->hard.term);
}

/* A vote names a moment not before the last one at which this node took somebody for its leader. */
static void check_age(struct sim_node *node, const struct raft_message *msg)
{
    if (msg->u.vote_reply.ack_age_us > sim_node_clock(node) - node->answered_us)
        check_fail(node->sim, "n%u names an acknowledgement in its vote that was not its last",
                   node->slot);
}

/* An answer that is late must not pass for one to a read of this life. */
static void check_context(struct sim_node *node, uint64_t context)
{
    node->last_context = context;
    if (context <= node->old_context && context + 1000 > node->old_context)
        check_fail(node->sim, "n%u numbers its reads as in its last life", node->slot);
}

void check_sent(struct sim_node *node, const struct raft_message *msg)
{
    if (msg->type == RAFT_HEARTBEAT_REPLY && msg->u.heartbeat_reply.sent_us != 0)
        node->answered_us = sim_node_clock(node);
    else if (msg->type == RAFT_READ_REQUEST)
        check_context(node, msg->u.read_request.context);
    else if (msg->type == RAFT_VOTE_REPLY && msg->u.vote_reply.granted)
        check_age(node, msg);
    if (msg->type == RAFT_VOTE_REQUEST && !msg->u.vote_request.pre)
        check_vote(node, msg->term, node->id);
    else if (msg->type == RAFT_VOTE_REPLY && !msg->u.vote_reply.pre && msg->u.vote_reply.granted)
        check_vote(node, msg->term, msg->to);
    else if (msg->type == RAFT_APPEND_REPLY && !msg->u.append_reply.rejected)
        check_ack(node, msg);
}

/* ---- state ---- */

static void check_state(struct sim_node *node, uint64_t commit)
{
    struct sim *sim = node->sim;
    uint64_t index = mvcc_applied_index(node->mvcc);

    if (index > commit)
        check_fail(sim, "n%u has applied %" PRIu64 ", committed is %" PRIu64, node->slot, index,
                   commit);
    if (index == node->checked_applied)
        return;
    node->checked_applied = index;
    sim->state_hashes =
        sim_reserve(sim->state_hashes, &sim->state_capacity, index, sizeof *sim->state_hashes);
    struct keel_hash128 hash = mvcc_state_hash(node->mvcc);
    struct keel_hash128 *known = &sim->state_hashes[index];

    if (known->low == 0 && known->high == 0)
        *known = hash;
    if (known->low != hash.low || known->high != hash.high)
        check_fail(sim, "n%u has another state than others had at index %" PRIu64, node->slot,
                   index);
    check_members(node);
}

/* ---- sessions ---- */

static bool is_in_touch(const struct sim_node *node)
{
    const struct sim *sim = node->sim;

    for (unsigned i = 0; i < sim->plan.slots; i++) {
        const struct sim_link *there = &sim->links[node->slot][i],
                              *back = &sim->links[i][node->slot];

        if (i == node->slot || sim->nodes[i].state != SLOT_MEMBER)
            continue;
        if (!there->connected || there->cut || back->cut ||
            sim->nodes[i].paused_until_us > sim->now_us || there->clogged_until_us > sim->now_us ||
            back->clogged_until_us > sim->now_us)
            return false;
    }
    return true;
}

/* A session ends when its node has not been heard from for the time to live; not before. */
static void check_session(struct sim_node *node)
{
    struct sim *sim = node->sim;
    uint64_t session = node->replica->session, since = node->trouble_us;

    if (session == node->session)
        return;
    if (since < sim->leader_change_us)
        since = sim->leader_change_us;
    if (since < sim->nodes[sim->last_leader].trouble_us)
        since = sim->nodes[sim->last_leader].trouble_us;
    if (node->session != 0 && node->state == SLOT_MEMBER && is_in_touch(node) &&
        sim->now_us > since + sim->plan.session_ttl_us / 2)
        check_fail(sim, "n%u lost its session %" PRIu64 " while it was in touch", node->slot,
                   node->session);
    node->session = session;
}

/* ---- memory ---- */

static void check_bounds(struct sim_node *node)
{
    const struct raft *raft = node->replica->raft;
    uint64_t settled = raft->persisted < raft->applied ? raft->persisted : raft->applied;
    uint64_t unsettled = raft_last_index(raft) > settled ? raft_last_index(raft) - settled : 0;

    if (raft->log.count > unsettled + node->sim->plan.tail_entries + 1)
        check_fail(node->sim, "n%u keeps %zu entries in memory, of which it needs %" PRIu64,
                   node->slot, raft->log.count, unsettled);
}

void check_node(struct sim_node *node)
{
    struct raft *raft = node->replica->raft;
    uint64_t commit = raft_commit_index(raft);
    bool leads = raft_role(raft) == RAFT_LEADER;

    if (leads)
        check_leader(node, raft_term(raft));
    check_commit(node, commit, leads);
    node->led_term = leads ? raft_term(raft) : 0;
    if (node->sim->failure[0] != '\0')
        return;
    check_state(node, commit);
    check_session(node);
    check_bounds(node);
}

/* ---- the end: everybody has the same ---- */

/* The data directory of each member is on record: another one would be refused. */
static bool knows_directories(const struct sim_node *node)
{
    size_t count;
    const struct apply_member *members = apply_members(node->apply, &count);

    for (size_t i = 0; i < count; i++) {
        const struct sim_node *member = sim_node_by_id(node->sim, members[i].id);

        if (member == NULL || members[i].incarnation != member->incarnation)
            return false;
    }
    return true;
}

static bool is_settled(const struct sim_node *node)
{
    const struct raft *raft = node->replica->raft;
    uint64_t applied = mvcc_applied_index(node->mvcc);

    return raft_leader(raft) != 0 && node->replica->session != 0 && knows_directories(node) &&
           applied == raft_last_index(raft) && node->replica->proposal_count == 0 &&
           node->replica->barrier_count == 0;
}

static bool members_agree(struct sim *sim, const uint64_t *ids, size_t count,
                          const struct sim_node **first)
{
    for (size_t i = 0; i < count; i++) {
        const struct sim_node *node = sim_node_by_id(sim, ids[i]);

        if (node == NULL || !node->up || node->replica == NULL || !is_settled(node))
            return false;
        if (*first == NULL)
            *first = node;
        if (raft_leader(node->replica->raft) != raft_leader((*first)->replica->raft) ||
            mvcc_applied_index(node->mvcc) != mvcc_applied_index((*first)->mvcc))
            return false;
    }
    return true;
}

bool check_is_converged(struct sim *sim)
{
    const struct raft_config *config = check_committed_config(sim);
    const struct sim_node *first = NULL;

    return clients_done(sim) && operator_done(sim) &&
           members_agree(sim, config->voters, config->voter_count, &first) &&
           members_agree(sim, config->learners, config->learner_count, &first) &&
           mvcc_applied_index(first->mvcc) == sim->committed_last;
}

static void trace_status(struct sim *sim, unsigned slot)
{
    struct replica_status s;

    if (!sim->trace || !sim->nodes[slot].up || sim->nodes[slot].replica == NULL)
        return;
    for (unsigned i = 0; i < sim->plan.slots; i++)
        if (i != slot && sim->nodes[i].up && !sim->links[slot][i].connected)
            sim_trace(sim, "n%u: not connected to n%u", slot, i);
    replica_status(sim->nodes[slot].replica, &s);
    sim_trace(sim,
              "n%u (%" PRIu64 "): leader %" PRIu64 " term %" PRIu64 " last %" PRIu64
              " commit %" PRIu64 " applied %" PRIu64 " session %" PRIu64
              " proposals %zu barriers %zu config %" PRIu64 "%s%s",
              slot, s.id, s.leader, s.term, s.last_index, s.commit_index, s.applied_index,
              s.session, s.proposals, s.barriers, raft_config_index(sim->nodes[slot].replica->raft),
              s.joint ? ", joint" : "", s.receiving_snapshot ? ", receives a snapshot" : "");
}

static void check_end(struct sim_node *node)
{
    struct sim *sim = node->sim;

    if (mvcc_revision(node->mvcc) < sim->floor_revision)
        check_fail(sim, "n%u ends at revision %" PRIu64 ", acknowledged was %" PRIu64, node->slot,
                   mvcc_revision(node->mvcc), sim->floor_revision);
    if (replica_is_removed(node->replica))
        check_fail(sim, "n%u is a member and does not believe it", node->slot);
    check_mirror(node);
}

void check_converged(struct sim *sim)
{
    const struct raft_config *config = check_committed_config(sim);

    if (!check_is_converged(sim)) {
        for (unsigned i = 0; i < sim->plan.slots; i++)
            trace_status(sim, i);
        check_fail(sim, "no convergence: %u of %u operations done, after the network has healed",
                   sim->ops_done, sim->shape->ops);
        return;
    }
    for (size_t i = 0; i < config->voter_count; i++)
        check_end(sim_node_by_id(sim, config->voters[i]));
    for (size_t i = 0; i < config->learner_count; i++)
        check_end(sim_node_by_id(sim, config->learners[i]));
}

void check_free(struct sim *sim)
{
    free(sim->leaders);
    free(sim->committed);
    free(sim->configs);
    free(sim->lost);
    free(sim->state_hashes);
    free(sim->changes);
    free(sim->values);
}
