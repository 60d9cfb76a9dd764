/* Snapshots (thesis 5.1, 5.3): a leader finds out who needs one; a follower that gets one puts it
 * in the place of its log. How it travels is the driver's business.
 *
 * Everything in a snapshot is committed, so it does not matter who sent it and in which term. */
#include "check.h"
#include "err.h"
#include "raft/raft_internal.h"

/* ---- the leader's side ---- */

void raft_progress_snapshot(struct raft *r, struct raft_peer *peer)
{
    if (r->now_us < peer->fetch_retry_us)
        return;
    raft_progress_probe(peer, peer->next);
    peer->state = RAFT_SNAPSHOT;
    r->snapshots =
        raft_grow(r->snapshots, r->snapshot_count, &r->snapshot_capacity, sizeof *r->snapshots);
    r->snapshots[r->snapshot_count++] = peer->id;
}

void raft_on_snapshot_sent(struct raft *r, uint64_t now_us, uint64_t peer_id, uint64_t index)
{
    raft_enter(r, now_us);
    struct raft_peer *peer = raft_peer_find(r, peer_id);

    if (r->role != RAFT_LEADER || peer == NULL || peer->state != RAFT_SNAPSHOT)
        return;
    if (index == 0)
        peer->fetch_retry_us = r->now_us + r->election_timeout_us;
    raft_progress_probe(peer, index > peer->match ? index + 1 : peer->match + 1);
}

void raft_on_released(struct raft *r, uint64_t first_index)
{
    KEEL_ASSERT(!r->in_ready);
    if (first_index > r->first_stored_index)
        r->first_stored_index = first_index;
}

/* ---- the follower's side ---- */

bool raft_wants_snapshot(const struct raft *r, uint64_t index, uint64_t term)
{
    uint64_t here;

    if (r->role == RAFT_LEADER || r->installing || index <= r->hard.commit)
        return false;
    return !raft_tail_term(&r->log, index, &here) || here != term;
}

bool raft_install_begin(struct raft *r, uint64_t now_us, uint64_t index, uint64_t term)
{
    uint64_t here;

    raft_enter(r, now_us);
    if (!raft_wants_snapshot(r, index, term)) {
        /* The log has that very entry (figure 5.3, 6): what follows it stays. */
        if (r->role != RAFT_LEADER && !r->installing && index > r->hard.commit &&
            raft_tail_term(&r->log, index, &here))
            raft_set_commit(r, index);
        return false;
    }
    if (r->role != RAFT_FOLLOWER)
        raft_become_follower(r, r->hard.term, 0);
    r->installing = true;
    return true;
}

void raft_install_failed(struct raft *r)
{
    r->installing = false;
}

static void void_log(struct raft *r, uint64_t index, uint64_t term)
{
    raft_tail_reset(&r->log, index, term);
    raft_drop_gated_acks(r);
    for (size_t i = 0; i < r->request_count; i++)
        r->requests[i].last = 0;
    r->handed_index = r->persisted = r->applied = r->hard.commit = index;
    r->first_stored_index = index + 1;
    r->reset_index = index;
    r->reset_term = term;
}

void raft_on_installed(struct raft *r, uint64_t now_us, uint64_t index, uint64_t term,
                       const struct raft_config *config, uint64_t config_index)
{
    raft_enter(r, now_us);
    KEEL_ASSERT(r->installing && r->role == RAFT_FOLLOWER && index > r->hard.commit);
    KEEL_ASSERT(config_index <= index);
    r->installing = false;
    if (term > r->hard.term)
        raft_become_follower(r, term, 0);
    void_log(r, index, term);
    raft_config_init(r, config, config_index);
    if (r->leader == 0)
        return;
    struct raft_message *reply =
        raft_message_new(RAFT_APPEND_REPLY, r->id, r->leader, r->hard.term);

    reply->u.append_reply.index = index;
    raft_send_gated(r, reply);
}
