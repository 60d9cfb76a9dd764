/* A replica: raft, apply, leases and waiting requests behind one interface. Pure and
 * single-threaded; the world is a struct keel_env. The mount (src/fs) uses the "requests" part, the
 * environment the "input" part.
 *
 * Life of a proposal: numbered in this node's session -> raft_propose here, or forwarded to the
 * leader -> in the log -> applied here -> its call is done, exactly once. It is sent again after
 * each change of leader or connection while its caller waits; a caller that gave up leaves a no-op
 * under the same number behind. */
#ifndef KEEL_REPLICA_H
#define KEEL_REPLICA_H

#include "apply.h"
#include "env.h"
#include "heap.h"
#include "list.h"
#include "mvcc/snapshot.h"
#include "raft/raft.h"

struct replica;

struct replica_options {
    struct raft_options raft; /* id, recovered log and timing; config comes from the state */
    uint64_t incarnation;
    uint64_t nonce;              /* random at each start of the process */
    uint64_t request_timeout_us; /* 5,000,000 */
    bool lease_reads;            /* false: every barrier asks a quorum */
    /* First values of the replicated settings: proposed by the first leader of a new cluster. 0:
     * the default. */
    uint64_t first_file_size_bytes, first_quota_bytes;
    uint64_t first_history_ms, first_history_revisions;
    uint64_t pending_limit_bytes; /* 0: KEEL_PENDING_BYTES */
    uint64_t session_ttl_us;      /* 0: 10,000,000 */
    uint64_t check_us;            /* between two checks; 0: 10,000,000 */
};

/* env, apply: borrowed. */
struct replica *replica_new(struct keel_env *env, struct apply *apply,
                            const struct replica_options *options);
/* What still waits is told KEEL_E_CLOSED. Takes NULL, returns NULL. */
struct replica *replica_free(struct replica *r);

/* ---- input, from the environment ---- */

void replica_on_message(struct replica *r, uint64_t from, struct keel_message *msg_take);
void replica_on_connected(struct replica *r, uint64_t peer, uint64_t incarnation, uint32_t level);
void replica_on_disconnected(struct replica *r, uint64_t peer);
void replica_on_alive(struct replica *r, uint64_t peer);
void replica_on_persisted(struct replica *r, struct raft_mark mark);
void replica_on_log_read(struct replica *r, uint64_t peer, uint64_t first, uint64_t prev_term,
                         const struct raft_entry *entries, size_t count);
void replica_on_log_released(struct replica *r, uint64_t first_index);
void replica_on_checkpointed(struct replica *r);
/* err: no snapshot now, for lack of room, say; or info of the one that is there. */
void replica_on_snapshot_made(struct replica *r, int err, const struct snapshot_info *info);
/* bytes: borrowed; NULL: it cannot be read. */
void replica_on_snapshot_read(struct replica *r, uint64_t peer, uint64_t offset,
                              struct keel_buf *bytes);
/* Stored up to `offset`, or an error: there is no snapshot any more. */
void replica_on_snapshot_stored(struct replica *r, int err, uint64_t offset);
/* err 0: the store is now `kv`, which holds the snapshot `info`; the old one is not needed after
 * this call. Else (damaged, no room) nothing has changed. */
void replica_on_snapshot_installed(struct replica *r, int err, struct kv *kv,
                                   const struct snapshot_info *info);
/* At replica_deadline() or later. */
void replica_tick(struct replica *r);
uint64_t replica_deadline(const struct replica *r);
/* Does everything that the inputs and requests since the last call have made due: sends, appends,
 * applies, answers. At the end of every loop turn. Requests that `done` callbacks make in it are
 * included. */
void replica_pump(struct replica *r);
/* The process did not run for so long (SIGSTOP, a paused machine): leases kept and the leader lease
 * are doubtful until confirmed. */
void replica_on_paused(struct replica *r);

/* Before a clean stop: what has been applied need not wait for company on its way into the store.
 * Poll mvcc_durable_index. */
void replica_flush(struct replica *r);
/* Before a clean stop: hands leadership over. True: under way; poll replica_is_leader. */
bool replica_transfer(struct replica *r);

/* ---- requests, from the mount ---- */

/* Embedded in the caller's request. `done` is called exactly once from replica_pump unless
 * replica_cancel said that it won't be. */
struct replica_call {
    void (*done)(struct replica_call *call, int err, const struct command_result *result);
    /* private: */
    struct keel_heap_node deadline;
    struct keel_link link;     /* in the list that it waits in */
    struct proposal *proposal; /* NULL: not a proposal */
    uint64_t started_us;
    bool barrier; /* counted as one */
    int failed;   /* the error to tell at the next pump; 0: none */
};

/* Proposes a command of this node's session. The head's session, number, acked, level and time are
 * filled in here; head and body are packed before it returns. Errors come through done:
 * KEEL_E_TIMEDOUT, KEEL_E_AGAIN (4096 waiting), and apply's. result is NULL unless the command was
 * applied (err is then result->err). */
void replica_propose(struct replica *r, struct replica_call *call, Keel__Command *head,
                     struct keel_slice body);

/* Waits until a read of the local state is linearizable. 1: it is now, done will not be called. 0:
 * done will be called. KEEL_E_TIMEDOUT: no leader for longer than the request timeout; not called
 * either. */
int replica_barrier(struct replica *r, struct replica_call *call);

/* The caller no longer waits. True: done will not be called, and the change will never take place.
 * False: it is in the log (or may be): with `force` done will not be called all the same, without
 * it, it still will. */
bool replica_cancel(struct replica *r, struct replica_call *call, bool force);

/* Inode numbers out of this node's range. 0: none yet (no session so far): the caller waits with
 * replica_when_ready. */
uint64_t replica_new_ino(struct replica *r);
/* done(0) once this node has a session and inode numbers; otherwise as replica_barrier. */
int replica_when_ready(struct replica *r, struct replica_call *call);

/* Has there been no leader for longer than the request timeout? (Opening for write fails then.) */
bool replica_quorum_lost(const struct replica *r);

/* Keeps a lease alive from here (counted: one release for each keep). env.lease_lost tells of its
 * end. The lease must have been granted or renewed by a command that was proposed at sent_us of
 * this node's clock. */
void replica_lease_keep(struct replica *r, uint64_t lease, uint64_t sent_us);
void replica_lease_release(struct replica *r, uint64_t lease);
/* One renewal now (touch). */
void replica_lease_renew(struct replica *r, uint64_t lease);
/* Whether this node regards a lease that it keeps as lost. */
bool replica_lease_is_lost(const struct replica *r, uint64_t lease);
/* Milliseconds left as far as this node can tell (leader: exact; others: from its own renewals,
 * else the replicated remaining time). KEEL_E_NOTFOUND. */
int replica_lease_remaining(struct replica *r, uint64_t lease, uint64_t *ret_ms);

/* Moves the compaction point to a revision: done: KEEL_E_INVALID, it is in the future;
 * KEEL_E_STALE: the point is there already, or further. What that frees goes in the background. */
void replica_compact(struct replica *r, struct replica_call *call, uint64_t revision);

/* Changes the replicated settings: those that are 0 in `changes` stay. The caller has checked the
 * ranges. */
void replica_change_settings(struct replica *r, struct replica_call *call,
                             const struct apply_settings *changes);

/* Changes the members, all at once (a joint configuration), wherever the leader is. The changes are
 * copied. done: 0 once the new configuration is committed and in force; KEEL_E_EXISTS (a name or an
 * address is a member's already), KEEL_E_NOTFOUND (no such member), KEEL_E_BUSY (another change is
 * in flight), KEEL_E_NOTREADY (a learner that was to be promoted has not caught up), KEEL_E_INVALID
 * (no voter would be left, too many members), KEEL_E_TIMEDOUT (it may still come). One at a time
 * for a node: KEEL_E_BUSY. Ids of additions are filled in by the caller: random, not 0. */
void replica_change_members(struct replica *r, struct replica_call *call,
                            const struct keel_member_change *changes, size_t count);

/* Hands leadership to a member (0: whoever is furthest), wherever the leader is. done: 0 once it
 * leads; KEEL_E_NOTFOUND: no such voter; KEEL_E_TIMEDOUT. */
void replica_transfer_to(struct replica *r, struct replica_call *call, uint64_t to);

/* Compares the state of all members, as of a new entry of the log. done: 0 once everybody has
 * answered who is connected, or two seconds later: replica_check_report tells what came of it. A
 * node that is found to have another state than the majority ends. */
void replica_check(struct replica *r, struct replica_call *call);

struct replica_checked_member {
    uint64_t id;
    bool answered;
    bool differs; /* from the majority; without one, from somebody */
    struct keel_hash128 digest;
};

struct replica_check_report {
    uint64_t index; /* of the latest check here; 0: none yet */
    bool agreed;    /* a majority of the voters has the same state */
    bool differ;    /* somebody has not */
    struct replica_checked_member members[KEEL_MEMBERS_MAX];
    size_t count;
};

void replica_check_report(const struct replica *r, struct replica_check_report *ret_report);

/* Has this node been removed from the cluster? Then nothing it is asked is answered with success.
 */
bool replica_is_removed(const struct replica *r);

uint64_t replica_now_us(const struct replica *r);

/* ---- state ---- */

struct apply *replica_apply(const struct replica *r);
struct mvcc *replica_mvcc(const struct replica *r);
bool replica_is_leader(const struct replica *r);

struct replica_status {
    uint64_t id, leader, term, commit_index, applied_index, last_index, persisted_index;
    enum raft_role role;
    bool quorum;                /* known to be there */
    uint64_t quorum_lost_us;    /* on the clock of replica_now_us; 0 while there is one */
    bool stale;                 /* no leader heard since the start */
    uint64_t session;           /* 0: none yet */
    size_t proposals, barriers; /* waiting */
    uint64_t first_index;       /* of the log, as far as it is kept */
    bool joint;                 /* a change of members is under way */
    bool receiving_snapshot;
    uint64_t snapshots_sent, snapshots_installed;
    struct raft_peer_status peers[KEEL_MEMBERS_MAX];
    size_t peer_count;
};

/* How many read rounds have been begun, and how many are over: cheap. */
void replica_pulse(const struct replica *r, uint64_t *ret_begun, uint64_t *ret_over);

void replica_status(const struct replica *r, struct replica_status *ret_status);

#endif
