/* The replica's inputs, its pump (raft's ready, applying, answering), checkpoints and status.
 * Requests and leases are in replica_requests.c and replica_leases.c. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "check.h"
#include "err.h"
#include "hash.h"
#include "mutant.h"
#include "replica_internal.h"

static struct raft *make_raft(struct replica *r, uint64_t now)
{
    struct raft_options options = r->options.raft;

    options.config = *apply_config(r->apply, &options.config_index);
    if (!r->options.lease_reads)
        options.lease_us = 0;
    options.base_index = mvcc_applied_index(r->mvcc);
    options.base_term = mvcc_applied_term(r->mvcc);
    return raft_new(&options, now);
}

const struct apply_member *replica_member(const struct replica *r, uint64_t id)
{
    size_t count;
    const struct apply_member *members = apply_members(r->apply, &count);

    for (size_t i = 0; i < count; i++)
        if (members[i].id == id)
            return &members[i];
    return NULL;
}

struct replica *replica_new(struct keel_env *env, struct apply *apply,
                            const struct replica_options *options)
{
    struct replica *r = keel_calloc(1, sizeof *r);

    r->env = env;
    r->apply = apply;
    r->mvcc = apply_mvcc(apply);
    r->options = *options;
    if (r->options.pending_limit_bytes == 0)
        r->options.pending_limit_bytes = KEEL_PENDING_BYTES;
    if (r->options.session_ttl_us == 0)
        r->options.session_ttl_us = SESSION_TTL_US;
    r->started_us = now_of(r);
    /* An answer to a read of this node's last life must not pass for one to a read of this one. */
    if (!MUTANT(CONTEXTS_REPEAT))
        r->next_context = keel_hash64(keel_slice_of(&options->nonce, sizeof options->nonce));
    keel_arena_init(&r->arena);
    requests_init(r);
    leases_init(r);
    members_init(r);
    snapshots_init(r);
    checks_init(r);
    r->raft = make_raft(r, r->started_us);
    members_connected(r, options->raft.id, options->incarnation);
    checks_members_changed(r);
    return r;
}

struct replica *replica_free(struct replica *r)
{
    if (r == NULL)
        return NULL;
    requests_free(r);
    leases_free(r);
    members_free(r);
    snapshots_free(r);
    raft_free(r->raft);
    keel_arena_free(&r->arena);
    free(r);
    return NULL;
}

/* ---- input ---- */

static void on_forward(struct replica *r, uint64_t from, struct keel_message *msg)
{
    uint64_t now = now_of(r), index;

    if (now > msg->deadline_us && !MUTANT(LATE_FORWARD))
        return; /* its caller has given up; a no-op will follow */
    /* Another term: the deadline may be on the clock of an earlier life of this machine. */
    if (replica_is_leader(r) && msg->term == raft_term(r->raft) &&
        mvcc_pending_bytes(r->mvcc) < r->options.pending_limit_bytes &&
        raft_propose(r->raft, now, keel_buf_ref(msg->data), &index) == 0)
        return;
    struct keel_message *refusal = keel_message_new(MESSAGE_FORWARD_REFUSED);

    refusal->session = msg->session;
    refusal->number = msg->number;
    r->env->ops->send(r->env, from, refusal);
}

void replica_on_message(struct replica *r, uint64_t from, struct keel_message *msg_take)
{
    members_heard(r, from, now_of(r));
    switch (msg_take->type) {
    case MESSAGE_RAFT:
        if (msg_take->raft->from == from)
            raft_step(r->raft, now_of(r), msg_take->raft);
        break;
    case MESSAGE_FORWARD:
        on_forward(r, from, msg_take);
        break;
    case MESSAGE_FORWARD_REFUSED:
        requests_on_refused(r, now_of(r));
        break;
    case MESSAGE_RENEW:
        leases_on_renew(r, from, msg_take);
        break;
    case MESSAGE_RENEWED:
        leases_on_renewed(r, msg_take);
        break;
    case MESSAGE_SNAPSHOT:
        snapshots_on_piece(r, from, msg_take);
        break;
    case MESSAGE_SNAPSHOT_STATE:
        snapshots_on_state(r, from, msg_take);
        break;
    case MESSAGE_CHANGE:
        members_on_change(r, from, msg_take);
        break;
    case MESSAGE_CHANGE_REPLY:
        members_on_reply(r, msg_take);
        break;
    case MESSAGE_TRANSFER:
        members_on_transfer(r, msg_take);
        break;
    case MESSAGE_DIGEST:
        checks_on_digest(r, from, msg_take);
        break;
    case MESSAGE_JOIN:
    case MESSAGE_WELCOME:
    case MESSAGE_HELLO:
    case MESSAGE_REFUSAL:
    case MESSAGE_PING:
    case MESSAGE_TYPES:
        break; /* the connections' own business */
    }
    keel_message_free(msg_take);
}

void replica_on_connected(struct replica *r, uint64_t peer, uint64_t incarnation, uint32_t level)
{
    uint64_t now = now_of(r);

    (void)level; /* one level so far: nothing to raise */
    members_connected(r, peer, incarnation);
    raft_on_connected(r->raft, now, peer);
    snapshots_connected(r, peer, now);
    if (peer == raft_leader(r->raft))
        requests_again(r, now);
}

void replica_on_disconnected(struct replica *r, uint64_t peer)
{
    raft_on_disconnected(r->raft, now_of(r), peer);
}

void replica_on_alive(struct replica *r, uint64_t peer)
{
    raft_on_alive(r->raft, now_of(r), peer);
}

void replica_on_persisted(struct replica *r, struct raft_mark mark)
{
    raft_on_persisted(r->raft, now_of(r), mark);
    snapshots_persisted(r, mark);
}

void replica_on_log_read(struct replica *r, uint64_t peer, uint64_t first, uint64_t prev_term,
                         const struct raft_entry *entries, size_t count)
{
    raft_on_fetched(r->raft, now_of(r), peer, first, prev_term, entries, count);
}

void replica_on_checkpointed(struct replica *r)
{
    KEEL_ASSERT(r->checkpoint_out);
    r->checkpoint_out = false;
    mvcc_checkpointed(r->mvcc);
    r->env->ops->log_release(r->env, mvcc_durable_index(r->mvcc));
    snapshots_checkpointed(r);
}

void replica_on_log_released(struct replica *r, uint64_t first_index)
{
    raft_on_released(r->raft, first_index);
}

void replica_on_paused(struct replica *r)
{
    /* Everything with a limit in time is judged before anything else happens. */
    uint64_t now = now_of(r);

    leases_tick(r, now);
    raft_tick(r->raft, now);
}

/* ---- raft's ready ---- */

static void persist(struct replica *r, const struct raft_ready *ready)
{
    struct wal_batch *batch = keel_calloc(1, sizeof *batch);

    batch->mark = ready->mark;
    batch->reset = ready->reset_index != 0 && !MUTANT(INSTALL_KEEPS_LOG);
    batch->reset_index = ready->reset_index;
    batch->reset_term = ready->reset_term;
    if (batch->reset)
        r->reset_seq = ready->mark.seq;
    batch->has_hard_state = ready->hard_state != NULL;
    if (ready->hard_state != NULL)
        batch->hard_state = *ready->hard_state;
    batch->entries = raft_entries_copy(ready->entries, ready->entry_count);
    batch->count = ready->entry_count;
    r->env->ops->log_append(r->env, batch);
}

static bool pump_raft(struct replica *r)
{
    struct raft_ready ready;
    uint64_t wanted[2 * KEEL_MEMBERS_MAX]; /* snapshots, by these peers */
    size_t wanted_count;
    bool any = false;

    while (raft_ready(r->raft, now_of(r), &ready)) {
        if (ready.persist)
            persist(r, &ready);
        for (size_t i = 0; i < ready.message_count; i++) {
            uint64_t to = ready.messages[i]->to;

            r->env->ops->send(r->env, to, keel_message_raft(ready.messages[i]));
        }
        for (size_t i = 0; i < ready.read_count; i++)
            requests_on_read(r, ready.reads[i].context, ready.reads[i].index);
        for (size_t i = 0; i < ready.fetch_count; i++)
            r->env->ops->log_read(r->env, ready.fetches[i].peer, ready.fetches[i].first,
                                  ready.fetches[i].max_bytes);
        KEEL_ASSERT(ready.snapshot_count <= KEEL_ARRAY_LEN(wanted));
        for (size_t i = 0; i < ready.snapshot_count; i++)
            wanted[i] = ready.snapshots[i];
        wanted_count = ready.snapshot_count;
        raft_accept(r->raft);
        for (size_t i = 0; i < wanted_count; i++)
            snapshots_begin(r, wanted[i], now_of(r));
        any = true;
    }
    return any;
}

static void note_leader(struct replica *r, uint64_t leader, uint64_t term)
{
    const struct apply_member *member = replica_member(r, leader);
    char line[512];

    snprintf(line, sizeof line, "term %" PRIu64 ": %s%s", term,
             leader == 0                    ? "no leader"
             : leader == r->options.raft.id ? "this node leads"
                                            : "the leader is ",
             leader == 0 || leader == r->options.raft.id ? ""
             : member != NULL                            ? member->name
                                                         : "one that is not known here yet");
    r->env->ops->note(r->env, line);
}

/* A new leader, or term: nobody knows what arrived at the old one. */
static void follow_leader(struct replica *r)
{
    uint64_t leader = raft_leader(r->raft), term = raft_term(r->raft);

    if (leader == r->seen_leader && (leader == 0 || term == r->seen_term))
        return;
    r->seen_leader = leader;
    r->seen_term = term;
    r->heard_leader |= leader != 0;
    r->duty_us = 0;
    note_leader(r, leader, term);
    snapshots_follow(r);
    if (leader != 0)
        requests_again(r, now_of(r));
}

/* ---- applying ---- */

void replica_report_change(void *arg, const struct keel_change *change)
{
    struct replica *r = arg;

    r->env->ops->changed(r->env, change);
}

static void report_changes(struct replica *r, const struct apply_outcome *outcome)
{
    bool here = requests_expects(r, outcome);

    for (size_t i = 0; i < outcome->change_count; i++) {
        struct keel_change change = outcome->changes[i];

        /* who is told of the end of a lease has not deleted the file by himself */
        change.answered_here = here && change.lease == 0;
        r->env->ops->changed(r->env, &change);
    }
}

static void take_outcome(struct replica *r, const struct apply_outcome *outcome)
{
    uint64_t now = now_of(r);

    report_changes(r, outcome);
    if (outcome->revoked != 0)
        leases_on_revoked(r, outcome->revoked);
    if (outcome->config_changed)
        members_configured(r);
    if (outcome->members_changed) {
        checks_members_changed(r);
        r->env->ops->members_changed(r->env);
    }
    if (outcome->expired_session != 0 && outcome->expired_session == r->session)
        requests_session_ended(r);
    if (outcome->opened_session && outcome->node == r->options.raft.id) {
        if (outcome->nonce == r->options.nonce)
            requests_session_opened(r, now, outcome->result.value, outcome->result.ino);
        else if (r->session != 0)
            requests_session_ended(r);
    }
    if (outcome->check)
        checks_applied(r, mvcc_applied_index(r->mvcc));
    struct replica_call *call = requests_take(r, now, outcome);

    if (call != NULL && outcome->check)
        checks_wait(r, call, now);
    else if (call != NULL)
        call->done(call, outcome->result.err, &outcome->result);
}

static void apply_next(struct replica *r, uint64_t index)
{
    struct apply_outcome outcome;
    const struct raft_entry *entry = raft_entry(r->raft, index);
    int err = apply_entry(r->apply, entry, now_of(r), &outcome);

    if (err == KEEL_E_NEWER)
        keel_fatal("entry %" PRIu64 " needs a newer keelfs than this one: upgrade this node and "
                   "start it again",
                   index);
    if (err != 0)
        keel_fatal("entry %" PRIu64 " cannot be applied: %s", index, keel_strerror(err));
    take_outcome(r, &outcome);
    raft_on_applied(r->raft, index);
}

static bool pump_apply(struct replica *r)
{
    uint64_t index = mvcc_applied_index(r->mvcc);
    bool any = false;

    while (index < raft_commit_index(r->raft) &&
           mvcc_pending_bytes(r->mvcc) < r->options.pending_limit_bytes) {
        apply_next(r, ++index);
        any = true;
    }
    requests_on_applied(r);
    return any;
}

/* ---- checkpoints ---- */

/* Never ahead of this node's own log: only what it has persisted itself goes into the store. */
static bool may_checkpoint(const struct replica *r)
{
    return !r->checkpoint_out && !snapshots_installing(r) && mvcc_has_pending(r->mvcc) &&
           (mvcc_applied_index(r->mvcc) <= raft_persisted_index(r->raft) ||
            MUTANT(CHECKPOINT_AHEAD));
}

static void checkpoint(struct replica *r, uint64_t now)
{
    if (!mvcc_has_pending(r->mvcc)) {
        r->pending_since_us = 0;
        return;
    }
    if (r->pending_since_us == 0)
        r->pending_since_us = now;
    if (!may_checkpoint(r) ||
        (!r->flushing && mvcc_pending_bytes(r->mvcc) < KEEL_CHECKPOINT_BYTES &&
         now - r->pending_since_us < KEEL_CHECKPOINT_MS * 1000))
        return;
    r->checkpoint_out = true;
    r->pending_since_us = 0;
    r->env->ops->checkpoint(r->env, apply_checkpoint(r->apply));
}

/* ---- the pump ---- */

void replica_pump(struct replica *r)
{
    KEEL_ASSERT(!r->pumping);
    r->pumping = true;
    if (r->reloaded)
        requests_reloaded(r, now_of(r));
    for (bool more = true; more;) {
        follow_leader(r);
        more = pump_apply(r);
        leases_follow_role(r, now_of(r));
        leases_duties(r, now_of(r));
        history_duties(r, now_of(r));
        checks_pump(r, now_of(r));
        members_pump(r, now_of(r));
        more |= requests_pump(r, now_of(r));
        more |= pump_raft(r); /* last: whatever the others have proposed leaves now */
    }
    checkpoint(r, now_of(r));
    mvcc_read_end(r->mvcc);
    r->pumping = false;
}

void replica_tick(struct replica *r)
{
    uint64_t now = now_of(r);

    raft_tick(r->raft, now);
    requests_tick(r, now);
    leases_tick(r, now);
    snapshots_tick(r, now);
}

uint64_t replica_deadline(const struct replica *r)
{
    uint64_t at = raft_deadline(r->raft);
    const uint64_t others[] = { requests_deadline(r), leases_deadline(r), members_deadline(r),
                                snapshots_deadline(r), checks_deadline(r) };

    for (size_t i = 0; i < KEEL_ARRAY_LEN(others); i++)
        at = others[i] < at ? others[i] : at;
    if (r->pending_since_us != 0 && !r->checkpoint_out && !snapshots_installing(r) &&
        mvcc_applied_index(r->mvcc) <= raft_persisted_index(r->raft) &&
        r->pending_since_us + KEEL_CHECKPOINT_MS * 1000 < at)
        at = r->pending_since_us + KEEL_CHECKPOINT_MS * 1000;
    return at;
}

void replica_flush(struct replica *r)
{
    r->flushing = true;
}

bool replica_transfer(struct replica *r)
{
    return raft_transfer(r->raft, now_of(r), 0) == 0;
}

/* ---- state ---- */

uint64_t replica_quorum_lost_us(const struct replica *r)
{
    if (raft_leader(r->raft) != 0)
        return 0;
    uint64_t seen = raft_quorum_seen_us(r->raft);

    return seen != 0 ? seen : r->started_us;
}

bool replica_quorum_lost(const struct replica *r)
{
    uint64_t lost = replica_quorum_lost_us(r);

    return lost != 0 && now_of(r) - lost >= r->options.request_timeout_us;
}

uint64_t replica_now_us(const struct replica *r)
{
    return now_of(r);
}

struct apply *replica_apply(const struct replica *r)
{
    return r->apply;
}

struct mvcc *replica_mvcc(const struct replica *r)
{
    return r->mvcc;
}

bool replica_is_leader(const struct replica *r)
{
    return raft_role(r->raft) == RAFT_LEADER;
}

void replica_pulse(const struct replica *r, uint64_t *ret_begun, uint64_t *ret_over)
{
    *ret_begun = r->rounds_begun;
    *ret_over = r->rounds_over;
}

void replica_status(const struct replica *r, struct replica_status *ret_status)
{
    *ret_status = (struct replica_status){
        .id = r->options.raft.id,
        .leader = raft_leader(r->raft),
        .term = raft_term(r->raft),
        .commit_index = raft_commit_index(r->raft),
        .applied_index = mvcc_applied_index(r->mvcc),
        .last_index = raft_last_index(r->raft),
        .persisted_index = raft_persisted_index(r->raft),
        .role = raft_role(r->raft),
        .quorum = raft_leader(r->raft) != 0,
        .quorum_lost_us = replica_quorum_lost_us(r),
        .stale = !r->heard_leader,
        .session = r->session,
        .proposals = r->proposal_count,
        .barriers = r->barrier_count,
        .first_index = raft_first_stored_index(r->raft),
        .joint = raft_config_is_joint(raft_config(r->raft)),
        .receiving_snapshot = r->target.state != TARGET_NONE,
        .snapshots_sent = r->snapshots_sent,
        .snapshots_installed = r->snapshots_installed,
    };
    ret_status->peer_count = raft_peers(r->raft, ret_status->peers);
}
