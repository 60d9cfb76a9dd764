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
 * - a leader that hands over renounces its lease for the rest of its term, so that the next one
 * need not wait.
 *
 * A candidate leads only once its own vote is durable, in a cluster of one too: it becomes the
 * leader in the raft_on_persisted that follows its first tick. Nothing is sent to a peer that is
 * not connected (raft_on_connected), replies excepted.
 *
 * Membership (thesis chapter 4): a configuration counts from the moment that its entry is in the
 * log, committed or not; if the entry is cut off, the one before it counts again. Voters change
 * through a joint configuration, which the leader leaves by itself once it is committed; there is
 * one change at a time. A leader that is not in the new configuration leads until that is
 * committed, and then hands over. Requests to vote, appends and heartbeats are taken from nodes
 * that this one does not know: they may know a later configuration.
 *
 * Snapshots (thesis 5.1, 5.3): the driver decides when log is released and says so
 * (raft_on_released); a peer that needs what is gone comes up in ready.snapshots, and the driver
 * sends it one by its own means. On the other side the driver asks raft_install_begin, replaces the
 * state, and calls raft_on_installed: the log is void up to there, which the next persist request
 * says (ready.reset_index), and then the leader is told.
 */
#ifndef RAFT_RAFT_H
#define RAFT_RAFT_H

#include "raft/types.h"

struct raft;

enum raft_role { RAFT_FOLLOWER, RAFT_PRECANDIDATE, RAFT_CANDIDATE, RAFT_LEADER, RAFT_LEARNER };

struct raft_options {
    uint64_t id;
    struct raft_config
        config;            /* as of base_index: of the last configuration applied; empty: none */
    uint64_t config_index; /* of the entry that it came from; 0: none */
    struct raft_hard_state hard_state; /* as recovered; zeroes at first start */
    uint64_t base_index;         /* the last entry before `entries`: applied by the store already */
    uint64_t base_term;          /* its term, 0 only with index 0: votes depend on it */
    uint64_t first_stored_index; /* as raft_on_released; 1 when nothing was */
    const struct raft_entry *entries; /* base_index + 1 …, as recovered; copied with references */
    size_t entry_count;
    uint64_t seed;
    uint64_t heartbeat_us;        /* default 25,000 */
    uint64_t election_timeout_us; /* default 600,000; randomized to [1, 2) times it */
    uint64_t lease_us;            /* default 100,000; 0: no lease reads */
    uint64_t drift_percent;       /* default 1 */
    size_t tail_bytes;            /* default KEEL_TAIL_BYTES */
    uint64_t tail_entries;        /* default KEEL_TAIL_ENTRIES */
    bool fast_elections;          /* default true: campaign when the leader's connection closes */
};

/* Defaults for all timing; the caller fills in the rest. */
void raft_options_init(struct raft_options *options);

/* A follower with everything in the options counted as persisted, and hard_state.commit (or
 * base_index, if larger) as committed. */
struct raft *raft_new(const struct raft_options *options, uint64_t now_us);
struct raft *raft_free(struct raft *r); /* takes NULL, returns NULL */

/* ---- input ---- */

/* One message from a peer; borrowed. A message to another id, a reply of an unknown node, or an
 * internally impossible one is ignored: peers are members, but a bug there must not end this node.
 */
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

/* Begins a change of configuration to `target` (valid, not joint, with a voter); `rest` goes behind
 * it in the entry. On 0, ret_index is the entry's index; the change is complete when the
 * configuration is not joint and its entry is committed. KEEL_E_NOTLEADER (also while a transfer is
 * under way, and before the leader has committed an entry of its term); KEEL_E_BUSY: one is in
 * flight; KEEL_E_INVALID: not valid; KEEL_E_EXISTS: it is that already; KEEL_E_NOTREADY: a learner
 * that would become a voter has not caught up, or a majority of the new voters are not members, or
 * not connected: it might never be committed. */
int raft_propose_config(struct raft *r, uint64_t now_us, const struct raft_config *target,
                        struct keel_slice rest, uint64_t *ret_index);

/* The log can give entries from first_index on only (with the term of the one before). */
void raft_on_released(struct raft *r, uint64_t first_index);

/* A peer in ready.snapshots has been sent one that ends at `index`, and has installed it or found
 * that it needs none; 0: it could not be sent, try again later. */
void raft_on_snapshot_sent(struct raft *r, uint64_t now_us, uint64_t peer, uint64_t index);

/* A snapshot that ends at (index, term) is here. True: it is needed, and from now until
 * raft_on_installed or raft_install_failed this node appends, commits and campaigns for nothing.
 * False: the log has as much (the commit index may have moved because of it). */
bool raft_install_begin(struct raft *r, uint64_t now_us, uint64_t index, uint64_t term);
/* Whether it would be needed. */
bool raft_wants_snapshot(const struct raft *r, uint64_t index, uint64_t term);
/* The state has been replaced; config as in the snapshot. */
void raft_on_installed(struct raft *r, uint64_t now_us, uint64_t index, uint64_t term,
                       const struct raft_config *config, uint64_t config_index);
void raft_install_failed(struct raft *r);

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
    uint64_t reset_index, reset_term; /* index not 0: before anything else, the log is void up to
                                         here and goes on behind it */
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
    const uint64_t *snapshots; /* peers that need one, at most 2 * KEEL_MEMBERS_MAX; a peer may come
                                  up again, if it falls behind again, or this node leads again */
    size_t snapshot_count;
};

/* Collects what is to be done. False when there is nothing (then no raft_accept). */
bool raft_ready(struct raft *r, uint64_t now_us, struct raft_ready *ret_ready);

/* The driver has taken over everything in the last ready. */
void raft_accept(struct raft *r);

/* ---- state ---- */

enum raft_role raft_role(const struct raft *r);
uint64_t raft_leader(const struct raft *r); /* 0: unknown */
uint64_t raft_term(const struct raft *r);
uint64_t raft_commit_index(const struct raft *r);
uint64_t raft_last_index(const struct raft *r);
uint64_t raft_first_stored_index(const struct raft *r); /* as raft_on_released */
uint64_t
raft_persisted_index(const struct raft *r); /* own log, as far as it is known to be durable */
/* The latest in the log, and the index of its entry. */
const struct raft_config *raft_config(const struct raft *r);
uint64_t raft_config_index(const struct raft *r);
bool raft_is_member(const struct raft *r, uint64_t id);
/* On a leader: is this peer so close behind that it may become a voter? */
bool raft_is_caught_up(const struct raft *r, uint64_t id);

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

enum raft_peer_state {
    RAFT_PROBE,     /* where the logs agree is being found out */
    RAFT_REPLICATE, /* appends follow each other without waiting */
    RAFT_SNAPSHOT   /* nothing is appended: it is being sent a snapshot */
};

struct raft_peer_status {
    uint64_t id;
    bool learner, connected;
    enum raft_peer_state state; /* leader's view */
    uint64_t match, next;
};

/* The members; at most KEEL_MEMBERS_MAX; returns how many (self included if it is one, with its own
 * log as match). */
size_t raft_peers(const struct raft *r, struct raft_peer_status ret[KEEL_MEMBERS_MAX]);

#endif
