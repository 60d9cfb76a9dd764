/* Raft consensus as a pure state machine: values in, values out.
 *
 * After Ongaro, "Consensus: Bridging Theory and Practice" (2014): figure 3.1 for the core, 9.6
 * pre-vote, 6.4 read-only queries, 3.10 leadership transfer; and etcd's Ready/Advance for the
 * shape. No clock, no randomness, no I/O: `now` is microseconds of a clock that never goes back
 * (CLOCK_BOOTTIME), and the election jitter comes from a generator seeded in the options.
 *
 * The driver's loop:
 *
 *     raft_step / raft_tick / raft_propose / raft_read_index / raft_on_persisted / ...    any
 * number, then while (raft_ready(r, now, &ready)) { persist ready.hard_state and ready.entries as
 * ONE request named ready.mark (asynchronously: when it is durable, call raft_on_persisted;
 * requests complete in order); send ready.messages (any order is safe, loss and duplication too);
 *         answer ready.reads; start ready.fetches;
 *         raft_accept(r);
 *     }
 *     apply entries up to raft_commit_index(r), and tell raft_on_applied.
 *
 * Messages in `ready` may leave at once: the core itself withholds votes and append
 * acknowledgements until what they promise has been persisted. The leader's appends leave in
 * parallel with its own fsync; its own vote for an entry counts only once persisted.
 *
 * Lease reads and fast elections (docs/raft.md has the argument):
 * - a node may campaign (pre-vote first) before its election timeout when its connection to the
 * leader has closed (raft_on_disconnected). A voter grants (pre-)votes inside the election timeout
 * only if its OWN connection to the leader has closed, or the request is a transfer.
 * - each vote reply carries ack_age_us: how long ago this voter last acknowledged (append or
 * heartbeat reply) a leader. A node that has just started counts its start as an acknowledgement.
 * - the leader lease of lease_us counts from the *sending* of the heartbeat or append that a quorum
 * has acknowledged (sent_us echoed); a follower's share is void while its connection is closed.
 * - a new leader advances no commit index and answers no read until lease_us * (1 + drift) has
 * passed since the latest acknowledgement named in the votes that elected it; with lease_us 0 the
 * default lease, since the earlier leader may have used one. A cluster of one need not wait.
 *
 * A candidate leads only once its own vote is durable, in a cluster of one too: it becomes the
 * leader in the raft_on_persisted that follows its first tick. Nothing is sent to a peer that is
 * not connected (raft_on_connected), replies excepted.
 */
#ifndef RAFT_RAFT_H
#define RAFT_RAFT_H

#include "raft/types.h"

struct raft;

enum raft_role { RAFT_FOLLOWER, RAFT_PRECANDIDATE, RAFT_CANDIDATE, RAFT_LEADER, RAFT_LEARNER };

struct raft_options {
    uint64_t id;
    struct raft_config config;
    struct raft_hard_state hard_state; /* as recovered; zeroes at first start */
    uint64_t base_index;         /* the last entry before `entries`: applied by the store already */
    uint64_t base_term;          /* its term, 0 only with index 0: votes depend on it */
    uint64_t first_stored_index; /* smallest index the WAL can still read (1 when never released) */
    const struct raft_entry *entries; /* base_index + 1 …, as recovered; copied with references */
    size_t entry_count;
    uint64_t seed;
    uint64_t heartbeat_us;        /* default 25,000 */
    uint64_t election_timeout_us; /* default 600,000; randomized to [1, 2) times it */
    uint64_t lease_us;            /* default 100,000; 0: no lease reads */
    uint64_t drift_percent;       /* default 1 */
    bool fast_elections;          /* default true: campaign when the leader's connection closes */
};

/* Defaults for all timing; the caller fills in the rest. */
void raft_options_init(struct raft_options *options);

/* A follower with everything in the options counted as persisted, and hard_state.commit (or
 * base_index, if larger) as committed. */
struct raft *raft_new(const struct raft_options *options, uint64_t now_us);
struct raft *raft_free(struct raft *r); /* takes NULL, returns NULL */

/* ---- input ---- */

/* One message from a peer; borrowed. A message to another id, of a removed or unknown node, or
 * internally impossible is ignored: peers are members, but a bug there must not end this node. */
void raft_step(struct raft *r, uint64_t now_us, const struct raft_message *msg);

/* To be called at raft_deadline() or later; calling early is harmless. */
void raft_tick(struct raft *r, uint64_t now_us);

/* The next time at which raft_tick has something to do; UINT64_MAX: never. */
uint64_t raft_deadline(const struct raft *r);

/* Appends a command to the leader's log; takes one reference of data. On 0, ret_index is its index.
 * KEEL_E_NOTLEADER (also while a transfer is under way); KEEL_E_AGAIN: too many uncommitted bytes,
 * propose again later; KEEL_E_INVALID: larger than KEEL_ENTRY_SIZE_MAX. On error the reference is
 * dropped. */
int raft_propose(struct raft *r, uint64_t now_us, struct keel_buf *data_take, uint64_t *ret_index);

/* Asks for a read index: once applied reaches the index in ready.reads with this context, a local
 * read is linearizable. Rounds are batched by the caller, confirmed together here. KEEL_E_NOTLEADER
 * when no leader is known; KEEL_E_AGAIN: KEEL_REQUESTS_MAX wait already. The answer may never come
 * (lost message, leader change: raft_leader or raft_term differs): ask again with a new context. */
int raft_read_index(struct raft *r, uint64_t now_us, uint64_t context);

/* The persist request of this mark and all before it are durable. */
void raft_on_persisted(struct raft *r, uint64_t now_us, struct raft_mark mark);

/* The driver has applied everything up to index: entries up to there may leave memory. */
void raft_on_applied(struct raft *r, uint64_t index);

/* A fetch (ready.fetches) came back with entries first …: borrowed, copied with references.
 * prev_term is the term of first - 1. count 0: could not be read; the follower stays where it is.
 */
void raft_on_fetched(struct raft *r, uint64_t now_us, uint64_t peer, uint64_t first,
                     uint64_t prev_term, const struct raft_entry *entries, size_t count);

/* The connection to a peer is up (messages can be expected to arrive), or has closed. */
void raft_on_connected(struct raft *r, uint64_t now_us, uint64_t peer);
void raft_on_disconnected(struct raft *r, uint64_t now_us, uint64_t peer);

/* Bytes came in from a peer, message or part of one: a sign of life. */
void raft_on_alive(struct raft *r, uint64_t now_us, uint64_t peer);

/* Hands leadership to a voter (0: the one that is furthest). KEEL_E_NOTLEADER; KEEL_E_INVALID:
 * unknown or self; KEEL_E_NOTFOUND: no candidate is connected. Ends by itself after one election
 * timeout; raft_transferring() tells. */
int raft_transfer(struct raft *r, uint64_t now_us, uint64_t to);
bool raft_transferring(const struct raft *r);

/* ---- output ---- */

struct raft_read {
    uint64_t context;
    uint64_t index;
};

/* The leader needs entries that are in memory no more: read from the WAL first … (at most
 * max_bytes, at least one entry), and the term of first - 1. At most one outstanding for each peer.
 */
struct raft_fetch {
    uint64_t peer;
    uint64_t first;
    size_t max_bytes;
};

struct raft_ready {
    bool persist; /* whether there is anything to persist */
    struct raft_mark mark;
    const struct raft_hard_state *hard_state; /* NULL: unchanged since the last request */
    const struct raft_entry *entries; /* replace everything from entries[0].index on; valid until
                                         the next call; the driver takes its own references */
    size_t entry_count;
    struct raft_message **messages; /* the driver takes each message (not the array) */
    size_t message_count;
    const struct raft_read *reads;
    size_t read_count;
    const struct raft_fetch *fetches;
    size_t fetch_count;
};

/* Collects what is to be done. False when there is nothing (then no raft_accept). */
bool raft_ready(struct raft *r, uint64_t now_us, struct raft_ready *ret_ready);

/* The driver has taken over everything in the last ready. */
void raft_accept(struct raft *r);

/* ---- state ---- */

enum raft_role raft_role(const struct raft *r);
uint64_t raft_id(const struct raft *r);
uint64_t raft_leader(const struct raft *r); /* 0: unknown */
uint64_t raft_term(const struct raft *r);
uint64_t raft_commit_index(const struct raft *r);
uint64_t raft_last_index(const struct raft *r);
uint64_t
raft_persisted_index(const struct raft *r); /* own log, as far as it is known to be durable */
const struct raft_config *raft_config(const struct raft *r);

/* The entry at an index that is above raft_on_applied's and at most raft_last_index; borrowed. */
const struct raft_entry *raft_entry(const struct raft *r, uint64_t index);

/* When the leader was last known to be in touch with a quorum (leader), or was last heard
 * (follower). The replica counts the loss of the quorum from here. 0: not since the start. */
uint64_t raft_quorum_seen_us(const struct raft *r);

/* The leader's clock as last heard, plus nothing: for deadlines in forwarded commands. 0: unknown.
 * On the leader: now_us. */
uint64_t raft_leader_clock(const struct raft *r, uint64_t now_us);

/* On a leader: is the lease valid now, and has the waiting-out ended? */
bool raft_lease_valid(const struct raft *r, uint64_t now_us);

enum raft_peer_state { RAFT_PROBE, RAFT_REPLICATE, RAFT_SNAPSHOT };

struct raft_peer_status {
    uint64_t id;
    bool learner, connected;
    enum raft_peer_state state; /* leader's view */
    uint64_t match, next;
};

/* Fills at most KEEL_MEMBERS_MAX; returns how many (self included, with its own log as match). */
size_t raft_peers(const struct raft *r, struct raft_peer_status ret[KEEL_MEMBERS_MAX]);

#endif
