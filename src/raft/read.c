/* Read indexes (thesis 6.4): by the leader's lease, or by a round of heartbeats that all reads
 * waiting for one share.
 *
 * A read that arrives while round n is on its way needs one that begins later: n + 1, which starts
 * as soon as n is confirmed, or with the next heartbeat if that one is lost. So there is never more
 * than one round for each round trip, however many reads there are. A leader knows what is
 * committed only once an entry of its own term is; reads that come before wait for that (round 0).
 */
#include "check.h"
#include "err.h"
#include "mutant.h"
#include "raft/raft_internal.h"

static uint64_t share_value(const void *arg, uint64_t id)
{
    const struct raft *r = arg;

    return id == r->id ? raft_stamp(r) : raft_peer_get(r, id)->share_us;
}

bool raft_term_committed(const struct raft *r)
{
    return r->role == RAFT_LEADER && r->hard.commit >= r->term_start;
}

bool raft_lease_valid(const struct raft *r, uint64_t now_us)
{
    uint64_t start;

    bool renounced = r->renounced && !MUTANT(RENOUNCED_LEASE_USED);

    if (r->lease_us == 0 || renounced || !raft_term_committed(r))
        return false;
    if (MUTANT(LEASE_WITHOUT_QUORUM))
        return true;
    if (MUTANT(LEASE_BY_OLD_CLOCK))
        now_us = r->now_us;
    if (raft_is_alone(r))
        return true;
    start = raft_quorum_value(&r->config, share_value, r);
    return start != 0 && now_us < start + r->lease_us;
}

static void answer(struct raft *r, uint64_t from, uint64_t context, uint64_t index)
{
    struct raft_message *msg;

    if (from == 0) {
        raft_push_read(r, context, index);
        return;
    }
    msg = raft_message_new(RAFT_READ_REPLY, r->id, from, r->hard.term);
    msg->u.read_reply.context = context;
    msg->u.read_reply.index = index;
    raft_send(r, msg);
}

static void refuse(struct raft *r, uint64_t from, uint64_t context)
{
    struct raft_message *msg = raft_message_new(RAFT_READ_REPLY, r->id, from, r->hard.term);

    msg->u.read_reply.context = context;
    msg->u.read_reply.refused = true;
    raft_send(r, msg);
}

static void keep(struct raft *r, uint64_t from, uint64_t context, uint64_t round)
{
    r->pending = raft_grow(r->pending, r->pending_count, &r->pending_capacity, sizeof *r->pending);
    r->pending[r->pending_count++] =
        (struct raft_pending_read){ from, context, r->hard.commit, round };
}

/* On the leader. False: too many wait already. */
static bool admit(struct raft *r, uint64_t from, uint64_t context)
{
    if (raft_lease_valid(r, r->now_us) || (MUTANT(READ_WITHOUT_ROUND) && raft_term_committed(r))) {
        answer(r, from, context, r->hard.commit);
        return true;
    }
    if (r->pending_count >= KEEL_REQUESTS_MAX)
        return false;
    keep(r, from, context,
         MUTANT(READ_IN_OLD_ROUND) && r->round_confirmed < r->round_sent ? r->round_sent
         : raft_term_committed(r) || MUTANT(READ_BEFORE_COMMIT)          ? r->round_sent + 1
                                                                         : 0);
    return true;
}

int raft_read_index(struct raft *r, uint64_t now_us, uint64_t context)
{
    struct raft_message *msg;

    raft_enter(r, now_us);
    if (r->role == RAFT_LEADER)
        return admit(r, 0, context) ? 0 : KEEL_E_AGAIN;
    if (r->leader == 0)
        return KEEL_E_NOTLEADER;
    msg = raft_message_new(RAFT_READ_REQUEST, r->id, r->leader, r->hard.term);
    msg->u.read_request.context = context;
    raft_send(r, msg);
    return 0;
}

void raft_on_read_request(struct raft *r, const struct raft_message *msg)
{
    if (r->role != RAFT_LEADER || !admit(r, msg->from, msg->u.read_request.context))
        refuse(r, msg->from, msg->u.read_request.context);
}

void raft_on_read_reply(struct raft *r, const struct raft_message *msg)
{
    if (!msg->u.read_reply.refused) {
        raft_push_read(r, msg->u.read_reply.context, msg->u.read_reply.index);
        return;
    }
    /* It has stopped leading in this very term. Saying so here lets the asker look for another one.
     */
    if (r->role == RAFT_FOLLOWER && r->leader == msg->from)
        raft_become_follower(r, r->hard.term, 0);
}

void raft_reads_after_commit(struct raft *r)
{
    bool lease = raft_lease_valid(r, r->now_us);
    size_t kept = 0;

    if (!raft_term_committed(r))
        return;
    for (size_t i = 0; i < r->pending_count; i++) {
        struct raft_pending_read *read = &r->pending[i];

        if (read->round == 0) {
            read->index = r->hard.commit;
            read->round = r->round_sent + 1;
        }
        if (lease)
            answer(r, read->from, read->context, read->index);
        else
            r->pending[kept++] = *read;
    }
    r->pending_count = kept;
}

/* Reads are in the order of their rounds: the last one tells whether any needs a new round. */
void raft_reads_start_round(struct raft *r, bool always)
{
    if (r->pending_count == 0 || r->pending[r->pending_count - 1].round <= r->round_sent)
        return;
    if (!always && r->round_confirmed < r->round_sent)
        return;
    r->round_sent++;
    raft_heartbeat(r);
    raft_reads_confirm(r);
}

static uint64_t round_value(const void *arg, uint64_t id)
{
    const struct raft *r = arg;

    return id == r->id ? r->round_sent : raft_peer_get(r, id)->round;
}

void raft_reads_confirm(struct raft *r)
{
    uint64_t confirmed = raft_quorum_value(&r->config, round_value, r);
    size_t done = 0;

    if (confirmed <= r->round_confirmed)
        return;
    r->round_confirmed = confirmed;
    while (done < r->pending_count && r->pending[done].round != 0 &&
           r->pending[done].round <= confirmed) {
        answer(r, r->pending[done].from, r->pending[done].context, r->pending[done].index);
        done++;
    }
    r->pending_count -= done;
    if (done > 0)
        memmove(r->pending, r->pending + done, r->pending_count * sizeof *r->pending);
}

void raft_reads_fail(struct raft *r)
{
    for (size_t i = 0; i < r->pending_count; i++) {
        if (r->pending[i].from != 0)
            refuse(r, r->pending[i].from, r->pending[i].context);
    }
    r->pending_count = 0;
}
