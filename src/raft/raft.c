/* The life of an instance; persist requests and the gate that holds back what they must cover;
 * ready and accept; state. The protocol itself is in the files next to this one (see
 * raft_internal.h). */
#include <stdlib.h>

#include "check.h"
#include "err.h"
#include "mutant.h"
#include "raft/raft_internal.h"

void raft_options_init(struct raft_options *options)
{
    *options = (struct raft_options){
        .first_stored_index = 1,
        .heartbeat_us = RAFT_DEFAULT_HEARTBEAT_US,
        .election_timeout_us = RAFT_DEFAULT_ELECTION_US,
        .lease_us = RAFT_DEFAULT_LEASE_US,
        .drift_percent = RAFT_DEFAULT_DRIFT_PERCENT,
        .tail_bytes = KEEL_TAIL_BYTES,
        .tail_entries = KEEL_TAIL_ENTRIES,
        .fast_elections = true,
    };
}

static void load_log(struct raft *r, const struct raft_options *options)
{
    uint64_t last;

    raft_tail_init(&r->log, options->base_index, options->base_term, options->tail_bytes,
                   options->tail_entries);
    for (size_t i = 0; i < options->entry_count; i++) {
        struct raft_entry entry = options->entries[i];

        if (entry.data != NULL)
            keel_buf_ref(entry.data);
        raft_log_append(r, entry);
    }
    last = raft_tail_last(&r->log);
    r->hard = options->hard_state;
    if (MUTANT(FORGET_VOTE))
        r->hard.vote = 0;
    /* A snapshot of a later term was installed, and the end came before the log said so. */
    if (r->hard.term < options->base_term)
        r->hard = (struct raft_hard_state){ .term = options->base_term };
    KEEL_ASSERT(r->hard.term >= raft_tail_last_term(&r->log));
    /* A commit index above the log would be one whose entries the log's recovery has cut. */
    if (r->hard.commit > last)
        r->hard.commit = last;
    if (r->hard.commit < options->base_index)
        r->hard.commit = options->base_index;
    r->handed_hard = r->hard;
    r->handed_index = r->persisted = last;
    r->applied = options->base_index;
    raft_config_committed(r);
}

struct raft *raft_new(const struct raft_options *options, uint64_t now_us)
{
    struct raft *r = keel_calloc(1, sizeof *r);

    KEEL_ASSERT(options->id != 0 && options->election_timeout_us > 0 && options->heartbeat_us > 0);
    KEEL_ASSERT(options->drift_percent < 100);
    /* With a term unknown here, this node would vote for logs that lack what it has applied. */
    KEEL_ASSERT((options->base_index == 0) == (options->base_term == 0));
    r->id = options->id;
    r->heartbeat_us = options->heartbeat_us;
    r->election_timeout_us = options->election_timeout_us;
    r->lease_us = options->lease_us;
    r->drift_percent = options->drift_percent;
    r->fast_elections = options->fast_elections;
    r->first_stored_index = options->first_stored_index;
    r->now_us = now_us;
    keel_rng_seed(&r->rng, options->seed);
    raft_config_init(r, &options->config, options->config_index);
    load_log(r, options);
    /* What this node acknowledged before it started is forgotten: as late as possible is safe. */
    r->last_ack_us = MUTANT(RESTART_NAMES_NO_ACK) ? 0 : now_us;
    raft_become_follower(r, r->hard.term, 0);
    if (raft_is_alone(r))
        r->election_deadline_us = now_us;
    return r;
}

struct raft *raft_free(struct raft *r)
{
    if (r == NULL)
        return NULL;
    raft_drop_gated(r);
    /* Between ready and accept the messages are the driver's already. */
    for (size_t i = 0; i < r->outbox_count && !r->in_ready; i++)
        raft_message_free(r->outbox[i]);
    for (size_t i = 0; i < r->peer_count; i++)
        free(r->peers[i].inflight);
    raft_tail_free(&r->log);
    free(r->configs);
    free(r->snapshots);
    free(r->requests);
    free(r->gated);
    free(r->outbox);
    free(r->reads);
    free(r->fetches);
    free(r->pending);
    free(r);
    return NULL;
}

void raft_enter(struct raft *r, uint64_t now_us)
{
    KEEL_ASSERT(!r->in_ready);
    if (now_us > r->now_us)
        r->now_us = now_us;
}

const struct raft_peer *raft_peer_get(const struct raft *r, uint64_t id)
{
    for (size_t i = 0; i < r->peer_count; i++) {
        if (r->peers[i].id == id)
            return &r->peers[i];
    }
    return NULL;
}

struct raft_peer *raft_peer_find(struct raft *r, uint64_t id)
{
    const struct raft_peer *peer = raft_peer_get(r, id);

    return peer ? &r->peers[peer - r->peers] : NULL;
}

void *raft_grow(void *items, size_t count, size_t *capacity, size_t size)
{
    if (count < *capacity)
        return items;
    *capacity = *capacity ? *capacity * 2 : 16;
    return keel_realloc(items, *capacity * size);
}

uint64_t raft_stamp(const struct raft *r)
{
    return r->now_us ? r->now_us : 1;
}

/* ---- the gate ----
 *
 * A vote, a request for one, and the acknowledgement of entries promise that this node will still
 * know the term, its vote and the entries after a crash. Such a message waits for the persist
 * request that covers everything in memory at the time, since requests become durable in order. A
 * change of term drops what is still waiting: it was addressed to a leader or a candidate of a term
 * that this node has left. */

static bool unhanded(const struct raft *r)
{
    return r->handed_index < raft_tail_last(&r->log) || r->handed_hard.term != r->hard.term ||
           r->handed_hard.vote != r->hard.vote || r->reset_index != 0;
}

uint64_t raft_gate(const struct raft *r)
{
    return r->seq_issued + (unhanded(r) ? 1 : 0);
}

void raft_send(struct raft *r, struct raft_message *msg_take)
{
    if (msg_take->type == RAFT_VOTE_REPLY)
        msg_take->u.vote_reply.ack_age_us = r->now_us - r->last_ack_us;
    r->outbox = raft_grow(r->outbox, r->outbox_count, &r->outbox_capacity, sizeof *r->outbox);
    r->outbox[r->outbox_count++] = msg_take;
}

/* Several acknowledgements of appends that leave at the same time are one: the last index, the
 * latest sending. Only accepted ones are ever held back. */
static bool merge_ack(struct raft_message *first, const struct raft_message *next)
{
    if (first->type != RAFT_APPEND_REPLY || next->type != RAFT_APPEND_REPLY ||
        first->to != next->to)
        return false;
    if (next->u.append_reply.index > first->u.append_reply.index)
        first->u.append_reply.index = next->u.append_reply.index;
    if (next->u.append_reply.sent_us > first->u.append_reply.sent_us)
        first->u.append_reply.sent_us = next->u.append_reply.sent_us;
    return true;
}

static bool leaves_early(const struct raft_message *msg)
{
    return (MUTANT(ACK_BEFORE_PERSIST) && msg->type == RAFT_APPEND_REPLY) ||
           (MUTANT(VOTE_BEFORE_PERSIST) && msg->type == RAFT_VOTE_REPLY) ||
           (MUTANT(VOTE_REQUEST_BEFORE_PERSIST) && msg->type == RAFT_VOTE_REQUEST);
}

void raft_send_after(struct raft *r, uint64_t seq, struct raft_message *msg_take)
{
    if (seq <= r->seq_persisted || leaves_early(msg_take)) {
        raft_send(r, msg_take);
        return;
    }
    r->gated = raft_grow(r->gated, r->gated_count, &r->gated_capacity, sizeof *r->gated);
    r->gated[r->gated_count++] = (struct raft_gated){ seq, msg_take };
}

void raft_send_gated(struct raft *r, struct raft_message *msg_take)
{
    raft_send_after(r, raft_gate(r), msg_take);
}

void raft_drop_gated(struct raft *r)
{
    for (size_t i = 0; i < r->gated_count; i++)
        raft_message_free(r->gated[i].msg);
    r->gated_count = 0;
}

void raft_drop_gated_acks(struct raft *r)
{
    size_t kept = 0;

    for (size_t i = 0; i < r->gated_count; i++) {
        if (r->gated[i].msg->type == RAFT_APPEND_REPLY)
            raft_message_free(r->gated[i].msg);
        else
            r->gated[kept++] = r->gated[i];
    }
    r->gated_count = kept;
}

static void release_gated(struct raft *r)
{
    struct raft_message *last = NULL;
    size_t kept = 0;

    for (size_t i = 0; i < r->gated_count; i++) {
        struct raft_message *msg = r->gated[i].msg;

        if (r->gated[i].seq > r->seq_persisted) {
            r->gated[kept++] = r->gated[i];
        } else if (last != NULL && merge_ack(last, msg)) {
            raft_message_free(msg);
        } else {
            last = msg;
            raft_send(r, msg);
        }
    }
    r->gated_count = kept;
}

/* ---- the log and its persistence ---- */

static void settle(struct raft *r)
{
    uint64_t index = r->applied < r->persisted ? r->applied : r->persisted;

    if (index > r->log.settled)
        raft_tail_settle(&r->log, index);
}

void raft_log_append(struct raft *r, struct raft_entry entry_take)
{
    raft_tail_append(&r->log, entry_take);
    if (entry_take.kind == RAFT_ENTRY_CONFIG)
        raft_config_appended(r, &entry_take);
}

void raft_cut_log(struct raft *r, uint64_t from)
{
    KEEL_ASSERT(from > r->hard.commit);
    raft_tail_cut(&r->log, from);
    raft_config_cut(r, from);
    if (r->handed_index >= from)
        r->handed_index = from - 1;
    if (r->persisted >= from)
        r->persisted = from - 1;
    /* A request that is still on its way makes nothing durable from here on: the next one cuts it
     * off. */
    for (size_t i = 0; i < r->request_count; i++) {
        if (r->requests[i].last >= from)
            r->requests[i].last = from - 1;
    }
}

void raft_set_commit(struct raft *r, uint64_t commit)
{
    KEEL_ASSERT(commit > r->hard.commit && commit <= raft_tail_last(&r->log));
    for (uint64_t i = r->hard.commit + 1; r->role == RAFT_LEADER && i <= commit; i++)
        r->uncommitted_bytes -= raft_entry_bytes(raft_tail_at(&r->log, i));
    r->hard.commit = commit;
    raft_config_committed(r);
}

void raft_on_persisted(struct raft *r, uint64_t now_us, struct raft_mark mark)
{
    size_t done = 0;

    raft_enter(r, now_us);
    KEEL_ASSERT(mark.seq <= r->seq_issued);
    if (mark.seq <= r->seq_persisted)
        return;
    r->seq_persisted = mark.seq;
    for (; done < r->request_count && r->requests[done].seq <= mark.seq; done++) {
        if (r->requests[done].last > r->persisted)
            r->persisted = r->requests[done].last;
    }
    r->request_count -= done;
    if (r->request_count > 0)
        memmove(r->requests, r->requests + done, r->request_count * sizeof *r->requests);
    release_gated(r);
    settle(r);
    if (r->role == RAFT_CANDIDATE && !r->own_ballot && r->campaign_seq <= r->seq_persisted)
        raft_own_ballot_persisted(r);
    else if (r->role == RAFT_LEADER)
        raft_maybe_commit(r);
}

void raft_on_applied(struct raft *r, uint64_t index)
{
    KEEL_ASSERT(!r->in_ready);
    KEEL_ASSERT(index <= r->hard.commit);
    if (index <= r->applied)
        return;
    r->applied = index;
    settle(r);
}

int raft_propose(struct raft *r, uint64_t now_us, struct keel_buf *data_take, uint64_t *ret_index)
{
    int err = 0;

    raft_enter(r, now_us);
    KEEL_ASSERT(data_take != NULL);
    if (r->role != RAFT_LEADER || r->transferee != 0)
        err = KEEL_E_NOTLEADER;
    else if (data_take->len > KEEL_ENTRY_SIZE_MAX)
        err = KEEL_E_INVALID;
    else if (r->uncommitted_bytes + data_take->len > KEEL_UNCOMMITTED_BYTES)
        err = KEEL_E_AGAIN;
    if (err != 0) {
        keel_buf_free(data_take);
        return err;
    }
    raft_append_own(r, RAFT_ENTRY_COMMAND, data_take);
    *ret_index = raft_tail_last(&r->log);
    return 0;
}

/* ---- ready and accept ---- */

/* The commit index alone is not worth an fsync: it goes along with entries. */
static bool hard_state_due(const struct raft *r, bool with_entries)
{
    if (r->handed_hard.term != r->hard.term || r->handed_hard.vote != r->hard.vote)
        return true;
    return (with_entries || r->reset_index != 0) && r->handed_hard.commit != r->hard.commit;
}

static void ready_persist(const struct raft *r, struct raft_ready *ready)
{
    uint64_t last = raft_tail_last(&r->log);

    if (!unhanded(r))
        return;
    ready->persist = true;
    ready->mark.seq = r->seq_issued + 1;
    ready->reset_index = r->reset_index;
    ready->reset_term = r->reset_term;
    if (r->handed_index < last) {
        ready->entries = raft_tail_at(&r->log, r->handed_index + 1);
        ready->entry_count = (size_t)(last - r->handed_index);
        ready->mark.term = raft_tail_last_term(&r->log);
        ready->mark.index = last;
    }
    if (hard_state_due(r, ready->entry_count > 0))
        ready->hard_state = &r->hard;
}

bool raft_ready(struct raft *r, uint64_t now_us, struct raft_ready *ret_ready)
{
    struct raft_ready ready = { 0 };

    raft_enter(r, now_us);
    if (r->role == RAFT_LEADER) {
        raft_reads_start_round(r, false);
        raft_replicate(r);
    }
    ready_persist(r, &ready);
    ready.messages = r->outbox;
    ready.message_count = r->outbox_count;
    ready.reads = r->reads;
    ready.read_count = r->read_count;
    ready.fetches = r->fetches;
    ready.fetch_count = r->fetch_count;
    ready.snapshots = r->snapshots;
    ready.snapshot_count = r->snapshot_count;
    if (!ready.persist &&
        ready.message_count + ready.read_count + ready.fetch_count + ready.snapshot_count == 0)
        return false;
    r->in_ready = true;
    *ret_ready = ready;
    return true;
}

void raft_accept(struct raft *r)
{
    struct raft_ready ready = { 0 };

    KEEL_ASSERT(r->in_ready);
    ready_persist(r, &ready);
    if (ready.persist) {
        r->requests =
            raft_grow(r->requests, r->request_count, &r->request_capacity, sizeof *r->requests);
        r->requests[r->request_count++] = (struct raft_request){ ready.mark.seq, ready.mark.index };
        r->seq_issued = ready.mark.seq;
        r->handed_index = raft_tail_last(&r->log);
        if (ready.hard_state != NULL)
            r->handed_hard = r->hard;
        r->reset_index = r->reset_term = 0;
    }
    r->outbox_count = r->read_count = r->fetch_count = r->snapshot_count = 0;
    r->in_ready = false;
}

void raft_push_read(struct raft *r, uint64_t context, uint64_t index)
{
    r->reads = raft_grow(r->reads, r->read_count, &r->read_capacity, sizeof *r->reads);
    r->reads[r->read_count++] = (struct raft_read){ context, index };
}

/* ---- state ---- */

enum raft_role raft_role(const struct raft *r)
{
    if (r->role == RAFT_FOLLOWER && !raft_config_is_voter(&r->config, r->id))
        return RAFT_LEARNER;
    return r->role;
}

uint64_t raft_leader(const struct raft *r)
{
    return r->leader;
}

uint64_t raft_term(const struct raft *r)
{
    return r->hard.term;
}

uint64_t raft_commit_index(const struct raft *r)
{
    return r->hard.commit;
}

uint64_t raft_last_index(const struct raft *r)
{
    return raft_tail_last(&r->log);
}

uint64_t raft_first_stored_index(const struct raft *r)
{
    return r->first_stored_index;
}

uint64_t raft_persisted_index(const struct raft *r)
{
    return r->persisted;
}

const struct raft_config *raft_config(const struct raft *r)
{
    return &r->config;
}

uint64_t raft_config_index(const struct raft *r)
{
    return r->configs[r->config_count - 1].index;
}

bool raft_is_member(const struct raft *r, uint64_t id)
{
    return raft_config_is_member(&r->config, id);
}

const struct raft_entry *raft_entry(const struct raft *r, uint64_t index)
{
    return raft_tail_at(&r->log, index);
}

uint64_t raft_quorum_seen_us(const struct raft *r)
{
    return r->role == RAFT_LEADER ? raft_quorum_heard(r) : r->quorum_seen_us;
}

uint64_t raft_leader_clock(const struct raft *r, uint64_t now_us)
{
    return r->role == RAFT_LEADER ? now_us : r->leader_clock_us;
}

bool raft_transferring(const struct raft *r)
{
    return r->transferee != 0;
}

static struct raft_peer_status self_status(const struct raft *r)
{
    return (struct raft_peer_status){
        .id = r->id,
        .learner = !raft_config_is_voter(&r->config, r->id),
        .connected = true,
        .state = RAFT_REPLICATE,
        .match = r->persisted,
        .next = raft_tail_last(&r->log) + 1,
    };
}

size_t raft_peers(const struct raft *r, struct raft_peer_status ret[KEEL_MEMBERS_MAX])
{
    size_t count = 0;
    bool self = !raft_config_is_member(&r->config, r->id);

    for (size_t i = 0; i < r->peer_count; i++) {
        const struct raft_peer *peer = &r->peers[i];

        if (!raft_config_is_member(&r->config, peer->id))
            continue;
        if (!self && r->id < peer->id) {
            ret[count++] = self_status(r);
            self = true;
        }
        KEEL_ASSERT(count < KEEL_MEMBERS_MAX);
        ret[count++] = (struct raft_peer_status){
            .id = peer->id,
            .learner = !raft_config_is_voter(&r->config, peer->id),
            .connected = peer->connected,
            .state = peer->state,
            .match = peer->match,
            .next = peer->next,
        };
    }
    if (!self)
        ret[count++] = self_status(r);
    return count;
}
