/* A leader's progress with each peer, and commit (figure 3.1, "rules for leaders").
 *
 * A peer whose log is not known to match is probed: one append at a time, until one is accepted.
 * Then its state is REPLICATE: appends follow each other without waiting, `next` runs ahead of
 * `match`, bounded by a window of bytes and messages. A rejection falls back to probing, never
 * below match + 1: what a peer has acknowledged it has on its disk, and a rejection that says
 * otherwise is old.
 *
 *     match 7        next 12            log of this leader, up to 14
 *     ... 6  7 | 8  9  10  11 | 12 13 14
 *              \  in flight  / \ to send
 */
#include "check.h"
#include "mutant.h"
#include "raft/raft_internal.h"

static void inflight_clear(struct raft_peer *peer)
{
    peer->inflight_start = peer->inflight_count = peer->inflight_bytes = 0;
}

static void inflight_push(struct raft_peer *peer, uint64_t last, size_t bytes)
{
    size_t at = (peer->inflight_start + peer->inflight_count) % KEEL_INFLIGHT_MESSAGES;

    KEEL_ASSERT(peer->inflight_count < KEEL_INFLIGHT_MESSAGES);
    if (peer->inflight == NULL)
        peer->inflight = keel_calloc(KEEL_INFLIGHT_MESSAGES, sizeof *peer->inflight);
    peer->inflight[at] = (struct raft_inflight){ last, bytes };
    peer->inflight_count++;
    peer->inflight_bytes += bytes;
}

static void inflight_done(struct raft_peer *peer, uint64_t match)
{
    while (peer->inflight_count > 0 && peer->inflight[peer->inflight_start].last <= match) {
        peer->inflight_bytes -= peer->inflight[peer->inflight_start].bytes;
        peer->inflight_start = (peer->inflight_start + 1) % KEEL_INFLIGHT_MESSAGES;
        peer->inflight_count--;
    }
}

void raft_progress_probe(struct raft_peer *peer, uint64_t next)
{
    KEEL_ASSERT(next > peer->match);
    peer->state = RAFT_PROBE;
    peer->next = next;
    peer->paused = false;
    /* What told it the commit index may be lost with the rest. */
    peer->commit_sent = 0;
    inflight_clear(peer);
}

static void progress_replicate(struct raft_peer *peer)
{
    peer->state = RAFT_REPLICATE;
    peer->next = peer->match + 1;
    inflight_clear(peer);
}

void raft_progress_reset(struct raft *r, struct raft_peer *peer)
{
    peer->match = peer->match_before = 0;
    peer->share_us = peer->void_us = peer->round = 0;
    peer->heard_us = r->now_us; /* the votes have just come */
    raft_progress_probe(peer, raft_tail_last(&r->log) + 1);
}

void raft_append_own(struct raft *r, enum raft_entry_kind kind, struct keel_buf *data_take)
{
    struct raft_entry entry = { r->hard.term, raft_tail_last(&r->log) + 1, kind, data_take };

    r->uncommitted_bytes += raft_entry_bytes(&entry);
    raft_log_append(r, entry);
}

/* ---- sending ---- */

static struct raft_message *append_new(const struct raft *r, struct raft_peer *peer, uint64_t prev,
                                       uint64_t prev_term, const struct raft_entry *entries,
                                       size_t count)
{
    struct raft_message *msg = raft_message_new(RAFT_APPEND, r->id, peer->id, r->hard.term);
    uint64_t last = prev + count;

    msg->u.append.prev_index = prev;
    msg->u.append.prev_term = prev_term;
    msg->u.append.commit = r->hard.commit;
    msg->u.append.sent_us = raft_stamp(r);
    if (count > 0)
        msg->u.append.entries = raft_entries_copy(entries, count);
    msg->u.append.count = count;
    last = r->hard.commit < last ? r->hard.commit : last;
    if (last > peer->commit_sent)
        peer->commit_sent = last;
    return msg;
}

/* The probe is on its way. Should it be lost, one without entries follows each heartbeat's answer.
 */
static void sent_probe(struct raft_peer *peer, uint64_t prev_term)
{
    peer->paused = true;
    peer->probe_term = prev_term;
}

/* Entries next … last are on their way. */
static void sent_entries(struct raft_peer *peer, uint64_t prev_term, uint64_t last, size_t bytes)
{
    if (peer->state == RAFT_PROBE) {
        sent_probe(peer, prev_term);
        return;
    }
    inflight_push(peer, last, bytes);
    peer->next = last + 1;
}

static bool window_open(const struct raft_peer *peer)
{
    if (peer->state == RAFT_SNAPSHOT)
        return false;
    if (peer->state == RAFT_PROBE)
        return !peer->paused;
    return peer->inflight_count < KEEL_INFLIGHT_MESSAGES &&
           peer->inflight_bytes < KEEL_INFLIGHT_BYTES;
}

static size_t window_bytes(const struct raft_peer *peer)
{
    size_t room = KEEL_INFLIGHT_BYTES - peer->inflight_bytes;

    return room < KEEL_APPEND_BYTES ? room : KEEL_APPEND_BYTES;
}

/* How many entries from an array go into one append: what there is room for, but at least `least`.
 */
static size_t batch_size(const struct raft_peer *peer, const struct raft_entry *entries,
                         size_t count, size_t least, size_t *ret_bytes)
{
    size_t room = window_bytes(peer), bytes = 0, n = 0;

    while (n < count) {
        size_t more = raft_entry_bytes(&entries[n]);

        if (bytes + more > room && n >= least)
            break;
        bytes += more;
        n++;
    }
    *ret_bytes = bytes;
    return n;
}

static void request_fetch(struct raft *r, struct raft_peer *peer)
{
    if (peer->fetching || r->now_us < peer->fetch_retry_us)
        return;
    if (peer->next < r->first_stored_index) {
        raft_progress_snapshot(r, peer);
        return;
    }
    peer->fetching = true;
    peer->fetch_first = peer->next;
    r->fetches = raft_grow(r->fetches, r->fetch_count, &r->fetch_capacity, sizeof *r->fetches);
    r->fetches[r->fetch_count++] = (struct raft_fetch){ peer->id, peer->next, window_bytes(peer) };
}

/* One append of what comes next; false when there is nothing (more) to be sent now. */
static bool send_next(struct raft *r, struct raft_peer *peer)
{
    uint64_t last = raft_tail_last(&r->log), prev = peer->next - 1, prev_term;
    const struct raft_entry *entries;
    size_t count, bytes = 0;

    if (!raft_tail_term(&r->log, prev, &prev_term)) {
        request_fetch(r, peer);
        return false;
    }
    if (peer->next > last) {
        if (peer->state == RAFT_PROBE) {
            raft_send(r, append_new(r, peer, prev, prev_term, NULL, 0));
            sent_probe(peer, prev_term);
        }
        return false;
    }
    entries = raft_tail_at(&r->log, peer->next);
    count = batch_size(peer, entries, (size_t)(last - prev), peer->inflight_count == 0, &bytes);
    if (count == 0)
        return false;
    raft_send(r, append_new(r, peer, prev, prev_term, entries, count));
    sent_entries(peer, prev_term, prev + count, bytes);
    return true;
}

/* An append without entries: tells the commit index as soon as it has moved, and asks for no reply.
 */
void raft_send_commit(struct raft *r, struct raft_peer *peer)
{
    uint64_t prev = peer->next - 1, prev_term;
    uint64_t commit = r->hard.commit < prev ? r->hard.commit : prev;
    struct raft_message *msg;

    if (commit <= peer->commit_sent || !raft_tail_term(&r->log, prev, &prev_term))
        return;
    msg = append_new(r, peer, prev, prev_term, NULL, 0);
    msg->u.append.sent_us = 0;
    raft_send(r, msg);
}

void raft_replicate(struct raft *r)
{
    for (size_t i = 0; i < r->peer_count; i++) {
        struct raft_peer *peer = &r->peers[i];

        if (!peer->connected || !peer->member)
            continue;
        while (window_open(peer) && send_next(r, peer))
            continue;
        if (peer->state == RAFT_REPLICATE)
            raft_send_commit(r, peer);
    }
}

void raft_heartbeat_one(struct raft *r, struct raft_peer *peer)
{
    struct raft_message *msg;

    if (!peer->connected || !peer->member)
        return;
    msg = raft_message_new(RAFT_HEARTBEAT, r->id, peer->id, r->hard.term);
    msg->u.heartbeat.commit = r->hard.commit < peer->match || MUTANT(HEARTBEAT_COMMIT_UNBOUNDED)
                                  ? r->hard.commit
                                  : peer->match;
    msg->u.heartbeat.round = r->round_sent;
    msg->u.heartbeat.sent_us = raft_stamp(r);
    raft_send(r, msg);
}

void raft_heartbeat(struct raft *r)
{
    for (size_t i = 0; i < r->peer_count; i++)
        raft_heartbeat_one(r, &r->peers[i]);
    if (r->now_us >= r->caught_up_at_us) {
        r->caught_up_index = r->caught_up_next;
        r->caught_up_next = r->hard.commit;
        r->caught_up_at_us = r->now_us + r->heartbeat_us;
    }
    r->heartbeat_deadline_us = r->now_us + r->heartbeat_us;
}

/* ---- answers ---- */

static uint64_t match_value(const void *arg, uint64_t id)
{
    const struct raft *r = arg;

    if (MUTANT(COUNT_UNPERSISTED) && id == r->id)
        return raft_tail_last(&r->log);
    if (MUTANT(LEARNER_COUNTS) && id != r->id && r->config.learner_count > 0)
        id = r->config.learners[0];
    return id == r->id ? r->persisted : raft_peer_get(r, id)->match;
}

/* Only an entry of this term is committed by counting; those before it follow (figure 3.7). Not
 * before the lease of an earlier leader has ended. */
void raft_maybe_commit(struct raft *r)
{
    uint64_t index, term;

    if (r->now_us < r->wait_until_us && !MUTANT(NO_WAITING_OUT))
        return;
    index = raft_quorum_value(&r->config, match_value, r);
    if (index <= r->hard.commit || !raft_tail_term(&r->log, index, &term) ||
        (term != r->hard.term && !MUTANT(COMMIT_OLD_TERM)))
        return;
    raft_set_commit(r, index);
    raft_reads_after_commit(r);
    raft_membership_step(r);
}

/* Any reply in this term is contact; one that echoes a sending also counts for the lease from that
 * on. */
static void peer_replied(struct raft *r, struct raft_peer *peer, uint64_t sent_us)
{
    peer->heard_us = r->now_us;
    if (sent_us > peer->void_us && sent_us > peer->share_us && sent_us <= raft_stamp(r) &&
        peer->connected)
        peer->share_us = MUTANT(LEASE_FROM_RECEIPT) ? raft_stamp(r) : sent_us;
}

static void rejected(struct raft *r, struct raft_peer *peer, const struct raft_message *msg)
{
    uint64_t index = msg->u.append_reply.index, hint = msg->u.append_reply.hint_index;
    uint64_t next;

    if ((index <= peer->match && !MUTANT(NEXT_BELOW_MATCH)) || peer->state == RAFT_SNAPSHOT)
        return;
    if (peer->state == RAFT_PROBE && index != peer->next - 1)
        return;
    if (hint > index)
        return;
    if (hint > r->log.base_index && hint <= raft_tail_last(&r->log))
        hint = raft_tail_agree(&r->log, hint, msg->u.append_reply.hint_term, r->log.base_index);
    next = hint + 1 < index ? hint + 1 : index;
    raft_progress_probe(peer,
                        next > peer->match || MUTANT(NEXT_BELOW_MATCH) ? next : peer->match + 1);
}

void raft_on_append_reply(struct raft *r, const struct raft_message *msg)
{
    struct raft_peer *peer = raft_peer_find(r, msg->from);
    uint64_t index = msg->u.append_reply.index;

    if (r->role != RAFT_LEADER || !peer->member || index > raft_tail_last(&r->log))
        return;
    peer_replied(r, peer, msg->u.append_reply.sent_us);
    if (msg->u.append_reply.rejected) {
        rejected(r, peer, msg);
        return;
    }
    if (index < peer->match)
        return;
    peer->match = index;
    if (peer->next <= index)
        peer->next = index + 1;
    if (peer->state == RAFT_PROBE ||
        (peer->state == RAFT_SNAPSHOT && peer->next >= r->first_stored_index))
        progress_replicate(peer);
    else
        inflight_done(peer, index);
    raft_maybe_commit(r); /* after which it may be no leader, and the peer gone */
    if (r->role == RAFT_LEADER && r->transferee == msg->from)
        raft_transfer_step(r);
}

/* The peer takes messages, but has not acknowledged more since its last heartbeat reply: an append
 * or its answer may be lost. An empty append behind the last one sent will be accepted or rejected,
 * and either helps. */
static void recheck(struct raft *r, struct raft_peer *peer)
{
    uint64_t prev = peer->next - 1, prev_term;
    bool stuck = peer->inflight_count > 0 && peer->match == peer->match_before;

    peer->match_before = peer->match;
    if (!stuck)
        return;
    if (raft_tail_term(&r->log, prev, &prev_term))
        raft_send(r, append_new(r, peer, prev, prev_term, NULL, 0));
    else
        raft_progress_probe(peer, peer->match + 1);
}

void raft_on_heartbeat_reply(struct raft *r, const struct raft_message *msg)
{
    struct raft_peer *peer = raft_peer_find(r, msg->from);

    if (r->role != RAFT_LEADER || !peer->member)
        return;
    peer_replied(r, peer, msg->u.heartbeat_reply.sent_us);
    if (peer->state == RAFT_REPLICATE)
        recheck(r, peer);
    else if (peer->paused)
        raft_send(r, append_new(r, peer, peer->next - 1, peer->probe_term, NULL, 0));
    if (msg->u.heartbeat_reply.round > peer->round &&
        msg->u.heartbeat_reply.round <= r->round_sent) {
        peer->round = msg->u.heartbeat_reply.round;
        raft_reads_confirm(r);
    }
}

/* ---- entries from the WAL ---- */

static bool fetched_makes_sense(const struct raft *r, const struct raft_entry *entries,
                                size_t count, uint64_t first, uint64_t prev_term)
{
    for (size_t i = 0; i < count; i++) {
        if (entries[i].index != first + i || entries[i].term < prev_term ||
            entries[i].term > r->hard.term || entries[i].index > raft_tail_last(&r->log))
            return false;
    }
    return true;
}

void raft_on_fetched(struct raft *r, uint64_t now_us, uint64_t peer_id, uint64_t first,
                     uint64_t prev_term, const struct raft_entry *entries, size_t count)
{
    struct raft_peer *peer;
    size_t bytes = 0;

    raft_enter(r, now_us);
    peer = raft_peer_find(r, peer_id);
    if (peer == NULL || !peer->fetching || peer->fetch_first != first)
        return;
    peer->fetching = false;
    if (count == 0)
        peer->fetch_retry_us = r->now_us + r->election_timeout_us;
    if (count == 0 || r->role != RAFT_LEADER || !peer->connected || peer->next != first ||
        !window_open(peer) || !fetched_makes_sense(r, entries, count, first, prev_term))
        return;
    /* One goes in any case: it would only have to be read again. */
    count = batch_size(peer, entries, count, 1, &bytes);
    raft_send(r, append_new(r, peer, first - 1, prev_term, entries, count));
    sent_entries(peer, prev_term, first + count - 1, bytes);
}
