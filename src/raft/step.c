/* One message in: whom it may come from, what its term means, and what a follower does with it. */
#include "check.h"
#include "mutant.h"
#include "raft/raft_internal.h"

/* No cluster gets there by elections; a term from nowhere must not leave this node without a next
 * one. */
#define RAFT_TERM_MAX (UINT64_MAX / 2)

/* ---- a follower and its leader ---- */

static void follow(struct raft *r, uint64_t leader, uint64_t sent_us)
{
    if (r->role != RAFT_FOLLOWER || r->leader != leader)
        raft_become_follower(r, r->hard.term, leader);
    raft_heard_leader(r);
    /* From here on some reply to this may count for the leader's lease. */
    r->last_ack_us = r->now_us;
    if (sent_us > r->leader_clock_us)
        r->leader_clock_us = sent_us;
}

static struct raft_message *append_reply(const struct raft *r, const struct raft_message *msg)
{
    struct raft_message *reply =
        raft_message_new(RAFT_APPEND_REPLY, r->id, msg->from, r->hard.term);

    reply->u.append_reply.sent_us = msg->u.append.sent_us;
    return reply;
}

/* The log has another entry at prev, or none. The hint is the last place where both logs can still
 * agree: entries of later terms than the leader has at prev are none of its own. Own commit index
 * is common ground. */
static void reject_append(struct raft *r, const struct raft_message *msg)
{
    struct raft_message *reply = append_reply(r, msg);
    uint64_t last = raft_tail_last(&r->log);
    uint64_t from = msg->u.append.prev_index < last ? msg->u.append.prev_index : last;
    uint64_t hint = raft_tail_agree(&r->log, from, msg->u.append.prev_term, r->hard.commit);
    uint64_t hint_term = 0;
    bool known = raft_tail_term(&r->log, hint, &hint_term);

    KEEL_ASSERT(known);
    reply->u.append_reply.rejected = true;
    reply->u.append_reply.index = msg->u.append.prev_index;
    reply->u.append_reply.hint_index = hint;
    reply->u.append_reply.hint_term = hint_term;
    /* Promises nothing: needs no disk. */
    raft_send(r, reply);
}

static bool entries_make_sense(const struct raft_message *msg)
{
    uint64_t term = msg->u.append.prev_term;

    for (size_t i = 0; i < msg->u.append.count; i++) {
        const struct raft_entry *entry = &msg->u.append.entries[i];

        if (entry->index != msg->u.append.prev_index + 1 + i || entry->term < term)
            return false;
        if (entry->data != NULL && entry->data->len > KEEL_ENTRY_SIZE_MAX)
            return false;
        if (entry->kind == RAFT_ENTRY_CONFIG && !raft_config_entry_valid(entry))
            return false;
        term = entry->term;
    }
    return term <= msg->term;
}

/* Takes over what is new; false when the leader contradicts a committed entry, which cannot be. */
static bool merge_entries(struct raft *r, const struct raft_entry *entries, size_t count)
{
    size_t known = 0;
    uint64_t term;

    while (known < count && raft_tail_term(&r->log, entries[known].index, &term) &&
           term == entries[known].term)
        known++;
    if (MUTANT(CUT_BY_OLD_APPEND) && known == count && count > 0 &&
        entries[count - 1].index < raft_tail_last(&r->log))
        raft_cut_log(r, entries[count - 1].index + 1);
    if (known == count)
        return true;
    if (entries[known].index <= r->hard.commit)
        return false;
    if (!raft_tail_term(&r->log, entries[known].index - 1, &term) || term > entries[known].term)
        return false;
    if (entries[known].index <= raft_tail_last(&r->log))
        raft_cut_log(r, entries[known].index);
    for (size_t i = known; i < count; i++) {
        if (entries[i].data != NULL)
            keel_buf_ref(entries[i].data);
        raft_log_append(r, entries[i]);
    }
    return true;
}

/* The log stands still while a snapshot takes its place; and what is not applied, because the store
 * or the disk does not keep up, is bounded: the leader tries again later. */
static bool takes_append(const struct raft *r, const struct raft_message *msg)
{
    return !r->installing &&
           (msg->u.append.count == 0 || raft_tail_unsettled_bytes(&r->log) < KEEL_UNAPPLIED_BYTES);
}

static void on_append(struct raft *r, const struct raft_message *msg)
{
    uint64_t last = msg->u.append.prev_index + msg->u.append.count;
    uint64_t known = MUTANT(COMMIT_BEYOND_MATCH) ? raft_tail_last(&r->log) : last;
    uint64_t commit = msg->u.append.commit < known ? msg->u.append.commit : known;
    struct raft_message *reply;
    uint64_t skip = 0, term;

    if (r->role == RAFT_LEADER || !entries_make_sense(msg))
        return;
    follow(r, msg->from, msg->u.append.sent_us);
    if (!takes_append(r, msg))
        return;
    if (msg->u.append.prev_index < r->log.base_index) {
        /* In memory no more: applied, and so the same in every leader's log. */
        skip = r->log.base_index - msg->u.append.prev_index;
        skip = skip < msg->u.append.count ? skip : msg->u.append.count;
    } else if (!raft_tail_term(&r->log, msg->u.append.prev_index, &term) ||
               term != msg->u.append.prev_term) {
        if (msg->u.append.prev_index > r->hard.commit)
            reject_append(r, msg);
        return;
    }
    if (!merge_entries(r, msg->u.append.entries + skip, msg->u.append.count - skip))
        return;
    if (commit > r->hard.commit)
        raft_set_commit(r, commit);
    if (msg->u.append.sent_us == 0)
        return; /* it only told the commit index */
    reply = append_reply(r, msg);
    reply->u.append_reply.index = last > r->hard.commit ? last : r->hard.commit;
    raft_send_gated(r, reply);
}

/* Answered at once, whatever the disk does: the reply says that at this moment this node knew of no
 * later term and takes the sender for its leader. It promises nothing beyond a crash; docs/raft.md
 * has why that is enough for the lease and for read rounds, even before this term itself is
 * durable. */
static void on_heartbeat(struct raft *r, const struct raft_message *msg)
{
    struct raft_message *reply;
    uint64_t commit = msg->u.heartbeat.commit;

    if (r->role == RAFT_LEADER)
        return;
    follow(r, msg->from, msg->u.heartbeat.sent_us);
    if (commit > r->hard.commit && commit <= raft_tail_last(&r->log) && !r->installing)
        raft_set_commit(r, commit);
    reply = raft_message_new(RAFT_HEARTBEAT_REPLY, r->id, msg->from, r->hard.term);
    reply->u.heartbeat_reply.round = msg->u.heartbeat.round;
    reply->u.heartbeat_reply.sent_us = msg->u.heartbeat.sent_us;
    raft_send(r, reply);
}

/* ---- terms ---- */

static bool is_granted_pre_vote(const struct raft_message *msg)
{
    return msg->type == RAFT_VOTE_REPLY && msg->u.vote_reply.pre && msg->u.vote_reply.granted;
}

/* A vote request that a live leader's follower does not even look at, so that a node which has lost
 * the leader alone disturbs nobody (thesis 4.2.3). The leader itself asking has stopped to be one.
 */
static bool is_shut_out(const struct raft *r, const struct raft_message *msg)
{
    return msg->type == RAFT_VOTE_REQUEST && msg->term > r->hard.term &&
           !msg->u.vote_request.transfer && msg->from != r->leader && raft_in_lease(r);
}

/* Somebody is behind. Whoever believes to lead, or wants to, is told the term. Others need no
 * answer. */
static void step_lower_term(struct raft *r, const struct raft_message *msg)
{
    struct raft_message *reply;

    switch (msg->type) {
    case RAFT_VOTE_REQUEST:
        raft_on_vote_request(r, msg);
        break;
    case RAFT_APPEND:
    case RAFT_HEARTBEAT:
        reply = raft_message_new(RAFT_HEARTBEAT_REPLY, r->id, msg->from, r->hard.term);
        raft_send(r, reply);
        break;
    case RAFT_READ_REQUEST:
        raft_on_read_request(r, msg);
        break;
    case RAFT_VOTE_REPLY:
    case RAFT_APPEND_REPLY:
    case RAFT_HEARTBEAT_REPLY:
    case RAFT_READ_REPLY:
    case RAFT_TIMEOUT_NOW:
    case RAFT_MESSAGE_TYPES:
    default:
        break;
    }
}

static void step_same_term(struct raft *r, const struct raft_message *msg)
{
    switch (msg->type) {
    case RAFT_VOTE_REQUEST:
        raft_on_vote_request(r, msg);
        break;
    case RAFT_VOTE_REPLY:
        raft_on_vote_reply(r, msg);
        break;
    case RAFT_APPEND:
        on_append(r, msg);
        break;
    case RAFT_APPEND_REPLY:
        raft_on_append_reply(r, msg);
        break;
    case RAFT_HEARTBEAT:
        on_heartbeat(r, msg);
        break;
    case RAFT_HEARTBEAT_REPLY:
        raft_on_heartbeat_reply(r, msg);
        break;
    case RAFT_READ_REQUEST:
        raft_on_read_request(r, msg);
        break;
    case RAFT_READ_REPLY:
        raft_on_read_reply(r, msg);
        break;
    case RAFT_TIMEOUT_NOW:
        raft_on_timeout_now(r, msg);
        break;
    case RAFT_MESSAGE_TYPES:
    default:
        break;
    }
}

/* What a leader or a candidate sends may come from a node that this one does not know yet: its
 * configuration may be a later one (thesis 4.1). Answers come from peers. */
static bool may_come_from(const struct raft *r, const struct raft_message *msg)
{
    bool answer = msg->type == RAFT_VOTE_REPLY || msg->type == RAFT_APPEND_REPLY ||
                  msg->type == RAFT_HEARTBEAT_REPLY;

    return msg->from != 0 && msg->from != r->id && (!answer || raft_peer_get(r, msg->from) != NULL);
}

void raft_step(struct raft *r, uint64_t now_us, const struct raft_message *msg)
{
    bool is_pre_vote = msg->type == RAFT_VOTE_REQUEST && msg->u.vote_request.pre;
    bool leads = msg->type == RAFT_APPEND || msg->type == RAFT_HEARTBEAT;

    raft_enter(r, now_us);
    if (msg->to != r->id || !may_come_from(r, msg) || msg->term > RAFT_TERM_MAX ||
        is_shut_out(r, msg))
        return;
    if (msg->term < r->hard.term) {
        step_lower_term(r, msg);
        return;
    }
    if (msg->term > r->hard.term && !is_pre_vote && !is_granted_pre_vote(msg))
        raft_become_follower(r, msg->term, leads ? msg->from : 0);
    step_same_term(r, msg);
}
