/* Timers, campaigns, votes, check-quorum and leadership transfer (thesis 3.4, 3.10, 4.2.3, 9.6),
 * with elections before the timeout and the waiting out of an old lease (docs/raft.md). */
#include "check.h"
#include "err.h"
#include "mutant.h"
#include "raft/raft_internal.h"

static bool is_self(const void *arg, uint64_t id)
{
    return ((const struct raft *)arg)->id == id;
}

/* Whether this node is a quorum by itself. */
bool raft_is_alone(const struct raft *r)
{
    return raft_quorum_reached(&r->config, is_self, r);
}

static void new_timeout(struct raft *r)
{
    r->timeout_us = r->election_timeout_us + keel_rng_below(&r->rng, r->election_timeout_us);
    r->election_deadline_us = r->now_us + r->timeout_us;
}

static void set_term(struct raft *r, uint64_t term, uint64_t vote)
{
    KEEL_ASSERT(term > r->hard.term);
    r->hard.term = term;
    r->hard.vote = vote;
    r->leader_clock_us = 0; /* the same node may lead again, after its machine's clock began anew */
    raft_drop_gated(r);
}

static void set_leader(struct raft *r, uint64_t leader)
{
    if (r->leader != leader)
        r->leader_clock_us = 0;
    r->leader = leader;
}

static void stop_leading(struct raft *r)
{
    if (r->role != RAFT_LEADER)
        return;
    r->quorum_seen_us = raft_quorum_heard(r);
    raft_reads_fail(r);
    r->transferee = 0;
    r->uncommitted_bytes = 0;
    /* Whom it has sent a snapshot is the next leader's business. */
    r->snapshot_count = 0;
}

void raft_become_follower(struct raft *r, uint64_t term, uint64_t leader)
{
    stop_leading(r);
    if (term != r->hard.term)
        set_term(r, term, 0);
    r->role = RAFT_FOLLOWER;
    set_leader(r, leader);
    new_timeout(r);
}

void raft_heard_leader(struct raft *r)
{
    r->heard_us = r->contact_us = r->quorum_seen_us = r->now_us;
    r->election_deadline_us = r->now_us + r->timeout_us;
    r->fast_campaigns = 0;
}

bool raft_in_lease(const struct raft *r)
{
    const struct raft_peer *leader;

    if (r->leader == 0)
        return false;
    if (r->leader == r->id)
        return true;
    leader = raft_peer_get(r, r->leader);
    if (r->fast_elections && (leader == NULL || !leader->connected))
        return false;
    return r->now_us < r->contact_us + r->election_timeout_us;
}

/* ---- campaigns ---- */

/* After a closed connection the first few campaigns may be repeated soon: pre-votes that came
 * before the others had noticed, or a split vote, must not cost a whole election timeout. */
static void campaign_deadline(struct raft *r)
{
    uint64_t part = r->election_timeout_us / 12 + 1;

    if (r->fast_campaigns == 0) {
        new_timeout(r);
        return;
    }
    r->fast_campaigns--;
    r->election_deadline_us = r->now_us + part + keel_rng_below(&r->rng, part);
}

void raft_send_vote_request(struct raft *r, const struct raft_peer *peer)
{
    bool pre = r->role == RAFT_PRECANDIDATE;
    struct raft_message *msg;

    if (!peer->connected || !raft_config_is_voter(&r->config, peer->id))
        return;
    msg = raft_message_new(RAFT_VOTE_REQUEST, r->id, peer->id, r->hard.term + (pre ? 1 : 0));
    msg->u.vote_request.pre = pre;
    msg->u.vote_request.transfer = r->campaign_transfer;
    msg->u.vote_request.last_index = raft_tail_last(&r->log);
    msg->u.vote_request.last_term = raft_tail_last_term(&r->log);
    if (pre)
        raft_send(r, msg);
    else
        raft_send_after(r, r->campaign_seq, msg);
}

static bool has_granted(const void *arg, uint64_t id)
{
    const struct raft *r = arg;

    if (id == r->id)
        return r->own_ballot;
    return raft_peer_get(r, id)->ballot == RAFT_GRANTED;
}

static bool has_not_rejected(const void *arg, uint64_t id)
{
    const struct raft *r = arg;

    return id == r->id || raft_peer_get(r, id)->ballot != RAFT_REJECTED;
}

/* Own clock before which no lease of an earlier leader can end, by the votes that elected this one.
 * Nobody has one if the leader of the term before has renounced it (it had waited out all others).
 */
static uint64_t old_lease_end(const struct raft *r)
{
    uint64_t lease = r->lease_us ? r->lease_us : RAFT_DEFAULT_LEASE_US;
    uint64_t ack_us = r->last_ack_us;

    if (r->handover_term == r->hard.term || (MUTANT(HANDOVER_FOR_EVER) && r->handover_term != 0))
        return 0;
    for (size_t i = 0; i < r->peer_count; i++) {
        if (r->peers[i].ballot == RAFT_GRANTED && r->peers[i].ack_us > ack_us)
            ack_us = r->peers[i].ack_us;
    }
    return ack_us + lease + lease * r->drift_percent / 100 + 1;
}

static void become_leader(struct raft *r)
{
    KEEL_ASSERT(r->role == RAFT_CANDIDATE && r->own_ballot);
    /* Its term is durable: no later life of this node can lead in it again and write other entries.
     */
    KEEL_ASSERT(r->campaign_seq <= r->seq_persisted);
    r->role = RAFT_LEADER;
    set_leader(r, r->id);
    r->wait_until_us = old_lease_end(r);
    r->quorum_seen_us = r->now_us;
    r->heartbeat_deadline_us = r->now_us + r->heartbeat_us;
    r->transferee = 0;
    r->renounced = false;
    r->round_sent = r->round_confirmed = 0;
    r->uncommitted_bytes = 0;
    for (uint64_t i = r->hard.commit + 1; i <= raft_tail_last(&r->log); i++)
        r->uncommitted_bytes += raft_entry_bytes(raft_tail_at(&r->log, i));
    for (size_t i = 0; i < r->peer_count; i++)
        raft_progress_reset(r, &r->peers[i]);
    raft_append_own(r, RAFT_ENTRY_NOOP, NULL);
    r->term_start = raft_tail_last(&r->log);
    r->caught_up_next = r->caught_up_index = r->term_start;
    r->caught_up_at_us = r->now_us + r->heartbeat_us;
}

static void tally(struct raft *r)
{
    if (r->own_ballot && raft_quorum_reached(&r->config, has_granted, r)) {
        if (r->role == RAFT_PRECANDIDATE)
            raft_campaign(r, RAFT_CAMPAIGN_REAL);
        else
            become_leader(r);
        return;
    }
    if (raft_quorum_reached(&r->config, has_not_rejected, r))
        return;
    raft_become_follower(r, r->hard.term, 0);
    campaign_deadline(r);
}

void raft_campaign(struct raft *r, enum raft_campaign kind)
{
    KEEL_ASSERT(r->role != RAFT_LEADER);
    set_leader(r, 0);
    r->campaign_transfer = kind == RAFT_CAMPAIGN_TRANSFER;
    for (size_t i = 0; i < r->peer_count; i++)
        r->peers[i].ballot = RAFT_NO_VOTE;
    if (kind == RAFT_CAMPAIGN_PRE) {
        r->role = RAFT_PRECANDIDATE;
        r->own_ballot = true;
    } else {
        r->role = RAFT_CANDIDATE;
        r->own_ballot = false;
        set_term(r, r->hard.term + 1, r->id);
        r->campaign_seq = raft_gate(r);
    }
    campaign_deadline(r);
    for (size_t i = 0; i < r->peer_count; i++)
        raft_send_vote_request(r, &r->peers[i]);
    if (r->own_ballot && raft_is_alone(r))
        tally(r);
}

void raft_own_ballot_persisted(struct raft *r)
{
    r->own_ballot = true;
    tally(r);
}

/* ---- votes ---- */

static void send_vote(struct raft *r, const struct raft_message *request, bool granted)
{
    bool pre = request->u.vote_request.pre;
    /* A granted pre-vote names the term that it is for: that of the request. */
    uint64_t term = pre && granted ? request->term : r->hard.term;
    struct raft_message *msg = raft_message_new(RAFT_VOTE_REPLY, r->id, request->from, term);

    msg->u.vote_reply.pre = pre;
    msg->u.vote_reply.granted = granted;
    if (granted && !pre)
        raft_send_gated(r, msg);
    else
        raft_send(r, msg);
}

static bool up_to_date(const struct raft *r, const struct raft_message *msg)
{
    uint64_t last_term = raft_tail_last_term(&r->log);

    if (MUTANT(ANY_LOG_WINS))
        return true;
    if (msg->u.vote_request.last_term != last_term)
        return msg->u.vote_request.last_term > last_term;
    return msg->u.vote_request.last_index >= raft_tail_last(&r->log);
}

/* The lease of a live leader and the request's term have been looked at (raft_step). */
void raft_on_vote_request(struct raft *r, const struct raft_message *msg)
{
    bool granted;

    if (msg->u.vote_request.pre) {
        send_vote(r, msg, msg->term > r->hard.term && up_to_date(r, msg));
        return;
    }
    granted = msg->term == r->hard.term &&
              (r->hard.vote == 0 || r->hard.vote == msg->from || MUTANT(VOTE_TWICE)) &&
              r->leader == 0 && up_to_date(r, msg);
    if (granted) {
        r->hard.vote = msg->from;
        new_timeout(r);
    }
    send_vote(r, msg, granted);
}

/* When, on this clock, the voter can have acknowledged a leader at the latest: its age counts from
 * a moment before now, and its clock may have run fast. */
static uint64_t ack_time(const struct raft *r, uint64_t age_us)
{
    uint64_t age = age_us - age_us / 100 * r->drift_percent;

    if (r->drift_percent > 0 && age > 0)
        age--; /* the division rounds down */
    return age >= r->now_us ? 0 : r->now_us - age;
}

void raft_on_vote_reply(struct raft *r, const struct raft_message *msg)
{
    struct raft_peer *peer = raft_peer_find(r, msg->from);
    bool pre = msg->u.vote_reply.pre, granted = msg->u.vote_reply.granted;

    if (r->role != (pre ? RAFT_PRECANDIDATE : RAFT_CANDIDATE) || peer->ballot != RAFT_NO_VOTE)
        return;
    if (msg->term != r->hard.term + (pre && granted ? 1 : 0))
        return;
    peer->ballot = granted ? RAFT_GRANTED : RAFT_REJECTED;
    peer->ack_us = ack_time(r, msg->u.vote_reply.ack_age_us);
    tally(r);
}

void raft_on_timeout_now(struct raft *r, const struct raft_message *msg)
{
    if (r->role != RAFT_FOLLOWER || r->leader != msg->from || r->installing ||
        !raft_config_is_voter(&r->config, r->id))
        return;
    r->handover_term = msg->u.timeout_now.renounced ? r->hard.term + 1 : 0;
    raft_campaign(r, RAFT_CAMPAIGN_TRANSFER);
}

/* ---- connections and signs of life ---- */

void raft_on_connected(struct raft *r, uint64_t now_us, uint64_t peer_id)
{
    struct raft_peer *peer;

    raft_enter(r, now_us);
    peer = raft_peer_make(r, peer_id);
    if (peer == NULL || peer->connected)
        return;
    peer->connected = true;
    if (r->role == RAFT_LEADER) {
        raft_heartbeat_one(r, peer);
    } else if (r->role == RAFT_FOLLOWER) {
        if (r->leader == peer_id)
            r->election_deadline_us = r->now_us + r->timeout_us;
    } else if (peer->ballot == RAFT_NO_VOTE) {
        raft_send_vote_request(r, peer);
    }
}

static void leader_disconnected(struct raft *r)
{
    uint64_t delay = RAFT_FAST_DELAY_MIN_US + keel_rng_below(&r->rng, RAFT_FAST_DELAY_SPREAD_US);

    if (!r->fast_elections)
        return;
    r->fast_campaigns = RAFT_FAST_CAMPAIGNS;
    if (r->election_deadline_us > r->now_us + delay)
        r->election_deadline_us = r->now_us + delay;
}

void raft_on_disconnected(struct raft *r, uint64_t now_us, uint64_t peer_id)
{
    struct raft_peer *peer;

    raft_enter(r, now_us);
    peer = raft_peer_find(r, peer_id);
    if (peer == NULL || !peer->connected)
        return;
    peer->connected = false;
    if (r->role == RAFT_LEADER && peer->member) {
        peer->share_us = 0;
        peer->void_us = r->now_us;
        /* A snapshot goes on where it was when the connection comes back: the driver sees to it. */
        if (peer->state != RAFT_SNAPSHOT)
            raft_progress_probe(peer, peer->state == RAFT_REPLICATE ? peer->match + 1 : peer->next);
        if (r->transferee == peer_id)
            r->transferee = 0;
    } else if (r->role == RAFT_FOLLOWER && r->leader == peer_id) {
        leader_disconnected(r);
    }
    raft_peer_release(r, peer);
}

void raft_on_alive(struct raft *r, uint64_t now_us, uint64_t peer_id)
{
    const struct raft_peer *peer;

    raft_enter(r, now_us);
    if (r->role != RAFT_FOLLOWER || r->leader == 0 || r->leader != peer_id)
        return;
    peer = raft_peer_get(r, peer_id);
    if (peer == NULL || !peer->connected ||
        r->now_us > r->heard_us + RAFT_ALIVE_TIMEOUTS * r->election_timeout_us)
        return;
    r->contact_us = r->now_us;
    r->election_deadline_us = r->now_us + r->timeout_us;
}

/* ---- check-quorum and the clock ---- */

static uint64_t heard_value(const void *arg, uint64_t id)
{
    const struct raft *r = arg;

    return id == r->id ? r->now_us : raft_peer_get(r, id)->heard_us;
}

uint64_t raft_quorum_heard(const struct raft *r)
{
    return raft_quorum_value(&r->config, heard_value, r);
}

static void tick_leader(struct raft *r)
{
    if (r->now_us > raft_quorum_heard(r) + r->election_timeout_us) {
        raft_become_follower(r, r->hard.term, 0);
        return;
    }
    if (r->transferee != 0 && r->now_us >= r->transfer_deadline_us)
        r->transferee = 0;
    raft_maybe_commit(r); /* after which it may be no leader */
    if (r->role != RAFT_LEADER || r->now_us < r->heartbeat_deadline_us)
        return;
    raft_reads_start_round(r, true);
    if (r->now_us >= r->heartbeat_deadline_us)
        raft_heartbeat(r);
    raft_transfer_step(r); /* again, should the first one be lost */
}

void raft_tick(struct raft *r, uint64_t now_us)
{
    raft_enter(r, now_us);
    if (r->role == RAFT_LEADER)
        tick_leader(r);
    else if (r->now_us < r->election_deadline_us || !raft_may_stand(r))
        return;
    else if (r->installing)
        new_timeout(r);
    else
        raft_campaign(r, RAFT_CAMPAIGN_PRE);
}

uint64_t raft_deadline(const struct raft *r)
{
    uint64_t deadline;

    if (r->role != RAFT_LEADER)
        return raft_may_stand(r) ? r->election_deadline_us : UINT64_MAX;
    deadline = r->heartbeat_deadline_us;
    if (r->hard.commit < r->term_start && r->wait_until_us > r->now_us &&
        r->wait_until_us < deadline)
        deadline = r->wait_until_us;
    if (r->transferee != 0 && r->transfer_deadline_us < deadline)
        deadline = r->transfer_deadline_us;
    return deadline;
}

/* ---- transfer ---- */

static bool will_vote(const struct raft *r, uint64_t id)
{
    return raft_ids_contain(r->config.voters, r->config.voter_count, id);
}

uint64_t raft_furthest_voter(const struct raft *r)
{
    const struct raft_peer *best = NULL;

    for (size_t i = 0; i < r->peer_count; i++) {
        const struct raft_peer *peer = &r->peers[i];

        if (peer->connected && will_vote(r, peer->id) &&
            (best == NULL || peer->match > best->match))
            best = peer;
    }
    return best ? best->id : 0;
}

/* `to` may campaign. It may do so late: so there is no lease in this term any more, even if the
 * transfer comes to nothing. */
void raft_hand_over(struct raft *r, uint64_t to)
{
    struct raft_message *msg = raft_message_new(RAFT_TIMEOUT_NOW, r->id, to, r->hard.term);

    r->renounced = true;
    /* Before its first commit the lease of an earlier leader may still hold. */
    msg->u.timeout_now.renounced = raft_term_committed(r);
    raft_send(r, msg);
}

/* The rest of a transfer: once the transferee has everything, it may campaign. */
void raft_transfer_step(struct raft *r)
{
    if (r->transferee != 0 && raft_peer_get(r, r->transferee)->match == raft_tail_last(&r->log))
        raft_hand_over(r, r->transferee);
}

int raft_transfer(struct raft *r, uint64_t now_us, uint64_t to)
{
    raft_enter(r, now_us);
    if (r->role != RAFT_LEADER)
        return KEEL_E_NOTLEADER;
    if (to == r->id || (to != 0 && !will_vote(r, to)))
        return KEEL_E_INVALID;
    if (to == 0)
        to = raft_furthest_voter(r);
    if (to == 0 || !raft_peer_get(r, to)->connected)
        return KEEL_E_NOTFOUND;
    if (r->transferee == to)
        return 0;
    r->transferee = to;
    r->transfer_deadline_us = r->now_us + r->election_timeout_us;
    raft_transfer_step(r);
    return 0;
}
