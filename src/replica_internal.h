/* Shared by the files of the replica; nobody else's.
 *
 *   replica.c           input, the pump, applying, checkpoints, status
 *   replica_requests.c  this node's session: proposals in order, exactly once; barriers
 *   replica_leases.c    keeping leases alive, and what a leader owes the cluster (expiry, settings,
 *                       contacts)
 *   replica_history.c   compaction: when, and step by step
 *   replica_checks.c    whether all members have the same state
 *   replica_members.c   changes of members, transfers, who was heard when, sessions' expiry
 *   replica_snapshots.c sending and receiving snapshots, and the new state that one brings
 */
#ifndef KEEL_REPLICA_INTERNAL_H
#define KEEL_REPLICA_INTERNAL_H

#include "replica.h"

enum {
    RESEND_US = 500000, /* without progress a follower sends its commands again */
    ROUND_US = 200000,  /* without an answer a read round is asked again */
    ROUNDS_MAX = 4,     /* read rounds under way */
    DUTY_US = 500000,   /* between two attempts of a leader's (or a session's) standing duty */
    OFFER_US = 500000,  /* without progress a snapshot is offered again */
    SESSION_TTL_US = 10000000,
    KNOWN_MAX = 2 * KEEL_MEMBERS_MAX,
    HISTORY_SAMPLES = 64,
    CHECKS_KEPT = 4,
};

/* The latest revision as of some moment. */
struct history_sample {
    uint64_t at_us, revision;
};

struct history {
    struct history_sample samples[HISTORY_SAMPLES]; /* ring, ascending */
    size_t first, count;
    uint64_t asked_us;  /* a compaction was proposed */
    uint64_t step;      /* the entry of the last step */
    uint64_t others_us; /* somebody else's was seen behind such a one */
};

struct said_digest {
    uint64_t id;
    struct keel_hash128 digest;
};

/* What the members said of their state as of one entry. */
struct check {
    uint64_t index; /* 0: not in use */
    struct said_digest said[KEEL_MEMBERS_MAX];
    size_t count;
};

struct checks {
    struct check kept[CHECKS_KEPT];
    uint64_t applied_index; /* of the latest one that was applied here */
    bool differ;            /* somebody once said something else than the others */
    uint64_t asked_us, judged_us;
    struct keel_link waiting; /* calls, for answers to the latest one */
    uint64_t answers_until_us;
};

/* What this node has heard of another by itself. */
struct known_node {
    uint64_t id;
    uint64_t incarnation; /* 0: not connected yet */
    uint64_t heard_us;    /* its last message; on a leader not before its own beginning */
};

/* A change of members that a caller here waits for. */
struct member_request {
    struct replica_call *call; /* NULL: none */
    struct keel_member_change *changes;
    size_t count;
    uint64_t number;   /* tells its answers from those to others */
    uint64_t asked_us; /* 0: not yet, or to be asked again */
    unsigned attempts;
    uint64_t index; /* of the entry that began it; 0: none that is known */
};

struct transfer_request {
    struct replica_call *call;
    uint64_t to, from; /* from: who led when it was asked for */
    uint64_t asked_us;
};

/* A snapshot on its way to one follower. Bytes below acked are stored there, below sent on their
 * way or being read. */
struct snapshot_transfer {
    struct keel_link link;
    uint64_t peer;
    uint64_t acked, sent;
    uint64_t progress_us;
    bool offered; /* the answer to an offer says where it stands, be it further back */
};

enum snapshot_source_state { SOURCE_NONE, SOURCE_MAKING, SOURCE_READY };
enum snapshot_target_state {
    TARGET_NONE,
    TARGET_PIECES,    /* comes in */
    TARGET_WAITING,   /* complete: waits for the checkpoint that is out */
    TARGET_INSTALLING /* the environment is at it */
};

struct snapshot_target {
    enum snapshot_target_state state;
    uint64_t from, index, term, nonce, total;
    uint64_t stored;   /* bytes that are safe */
    uint64_t expected; /* what comes next */
    bool storing;
    struct keel_buf *queue[KEEL_SNAPSHOT_CHUNKS + 1];
    size_t queued;
};

/* A command of this node, until it has been applied here. In r->proposals in the order of its
 * numbers. */
struct proposal {
    struct keel_link link;
    uint64_t number;           /* 0: made before there was a session */
    struct keel_buf *data;     /* what is sent; a no-op once the caller has given up */
    struct replica_call *call; /* NULL: nobody waits */
    bool sent;                 /* to anybody: it may be in a log */
};

/* Barriers that share one read index. */
struct read_round {
    struct keel_link link;
    struct keel_link calls;
    uint64_t context, sent_us;
    bool answered;
    uint64_t index;
};

/* A lease that this node keeps alive. */
struct lease_keeper {
    struct keel_link link;
    uint64_t lease;
    uint32_t count;
    uint64_t ttl_us;
    uint64_t confirmed_us; /* sending time of the last confirmed renewal */
    uint64_t asked_us;     /* sending time of the last renewal */
    bool lost;
};

struct replica {
    struct keel_env *env;
    struct apply *apply;
    struct mvcc *mvcc;
    struct raft *raft;
    struct replica_options options;
    uint64_t started_us;
    struct keel_arena arena;
    struct keel_heap deadlines; /* of waiting calls */

    uint64_t session, next_number, acked;
    uint64_t open_sent_us; /* last attempt to open it; 0: none */
    struct keel_link proposals;
    struct keel_link *next_to_send; /* in proposals; the head: all are sent */
    size_t proposal_count, barrier_count;
    uint64_t progress_us; /* last time that a proposal was applied, or sent after none */
    uint64_t ino_next, ino_end, spare_next, spare_end;
    bool reserving;
    struct replica_call reserve_call;

    struct keel_link new_barriers, rounds, ready_waiters, failed;
    size_t rounds_out; /* not answered yet */
    uint64_t rounds_begun, rounds_over;
    uint64_t next_context;

    struct history history;
    struct checks checks;

    struct keel_link keepers;
    uint64_t duty_us;         /* last attempt of the leader's duties */
    uint64_t expire_again_us; /* an expiry could not be proposed: not before */

    struct known_node known[KNOWN_MAX];
    size_t known_count;
    bool was_member, removed;
    struct keel_link admin_calls; /* calls of the two requests */
    struct member_request change;
    struct transfer_request transfer;
    uint64_t change_number;

    enum snapshot_source_state source;
    struct snapshot_info source_info;
    uint64_t source_nonce;
    struct keel_link transfers;
    struct snapshot_target target;
    uint64_t reset_seq; /* the persist request that resets the log; 0: none is out */
    uint64_t snapshots_sent, snapshots_installed;

    uint64_t seen_leader, seen_term; /* as of the last pump */
    bool heard_leader;               /* ever */
    bool checkpoint_out, flushing;
    uint64_t pending_since_us; /* 0: nothing pending */
    bool reloaded;             /* by a snapshot, since the last pump */
    bool pumping;
};

static inline uint64_t now_of(const struct replica *r)
{
    return r->env->ops->now_us(r->env);
}

/* Since when there has been no leader; 0: there is one. */
uint64_t replica_quorum_lost_us(const struct replica *r);

/* A member of the applied configuration; NULL: none of that id. */
const struct apply_member *replica_member(const struct replica *r, uint64_t id);
/* Tells the environment of a change that nobody here asked for. */
void replica_report_change(void *arg, const struct keel_change *change);

/* ---- replica_requests.c ---- */

void requests_init(struct replica *r);
void requests_free(struct replica *r);
/* Sends what is unsent, starts a read round. True: something was done. */
bool requests_pump(struct replica *r, uint64_t now);
void requests_tick(struct replica *r, uint64_t now);
uint64_t requests_deadline(const struct replica *r);
/* The leader, or the way to it, is another one: everything is sent and asked again. */
void requests_again(struct replica *r, uint64_t now);
void requests_on_read(struct replica *r, uint64_t context, uint64_t index);
/* Completes the barriers whose index has been applied. */
void requests_on_applied(struct replica *r);
void requests_on_refused(struct replica *r, uint64_t now);
/* An outcome of this node's session: the call that waits for it (taken out), or NULL. */
struct replica_call *requests_take(struct replica *r, uint64_t now,
                                   const struct apply_outcome *outcome);
bool requests_expects(const struct replica *r, const struct apply_outcome *outcome);
void requests_session_opened(struct replica *r, uint64_t now, uint64_t session, uint64_t first_ino);
/* Another process of this node has opened one, or a late request of an earlier one was applied.
 * What waits has not been applied, and never will be in that session: it is numbered again in the
 * next. */
void requests_session_ended(struct replica *r);
/* A call begins to wait, at most until its deadline; it waits no more; to be told at the next pump:
 * never from inside the request that failed; told now. */
void requests_call_start(struct replica *r, struct replica_call *call, uint64_t now, bool barrier);
void requests_call_stop(struct replica *r, struct replica_call *call);
void requests_call_fail_later(struct replica *r, struct replica_call *call, int err);
void requests_call_finish(struct replica *r, struct replica_call *call, int err);
/* Everything that waits is told an error. */
void requests_fail_all(struct replica *r, int err);
/* The state is another one: what was applied on the way to it is answered. */
void requests_reloaded(struct replica *r, uint64_t now);
/* Proposes here or forwards: a command without a session. */
int requests_send_bare(struct replica *r, uint64_t now, Keel__Command *head);

/* ---- replica_leases.c ---- */

void leases_init(struct replica *r);
void leases_free(struct replica *r);
void leases_tick(struct replica *r, uint64_t now);
uint64_t leases_deadline(const struct replica *r);
void leases_on_renew(struct replica *r, uint64_t from, struct keel_message *msg);
void leases_on_renewed(struct replica *r, const struct keel_message *msg);
void leases_on_revoked(struct replica *r, uint64_t lease);
/* The table is another one: leases that it does not have are lost. */
void leases_reloaded(struct replica *r);
/* This node leads, and has all of the state. */
bool leases_leads_for_sure(const struct replica *r);
/* Leadership has changed, or an entry of this term has been applied. */
void leases_follow_role(struct replica *r, uint64_t now);
void leases_duties(struct replica *r, uint64_t now);

/* ---- replica_history.c ---- */

void history_duties(struct replica *r, uint64_t now);

/* ---- replica_checks.c ---- */

void checks_init(struct replica *r);
/* A check has been applied: tells the others a digest. */
void checks_applied(struct replica *r, uint64_t index);
void checks_on_digest(struct replica *r, uint64_t from, const struct keel_message *msg);
/* A check that a caller asked for has been applied. */
void checks_wait(struct replica *r, struct replica_call *call, uint64_t now);
/* Has everybody answered who can? */
bool checks_complete(const struct replica *r);
void checks_pump(struct replica *r, uint64_t now);
uint64_t checks_deadline(const struct replica *r);
/* The members are others, or marked: if this node is one whose state is not that of the others, the
 * process ends. */
void checks_members_changed(const struct replica *r);

/* ---- replica_members.c ---- */

void members_init(struct replica *r);
void members_free(struct replica *r);
/* Another node was heard. */
void members_heard(struct replica *r, uint64_t id, uint64_t now);
void members_connected(struct replica *r, uint64_t id, uint64_t incarnation);
/* The incarnation that a member was heard with; 0: none. */
uint64_t members_incarnation(const struct replica *r, uint64_t id);
/* A configuration has been applied, or come with a snapshot. */
void members_configured(struct replica *r);
/* This node begins to lead for sure: whoever has a session is alive until proven otherwise. */
void members_begin_term(struct replica *r, uint64_t now);
void members_on_change(struct replica *r, uint64_t from, const struct keel_message *msg);
void members_on_reply(struct replica *r, const struct keel_message *msg);
void members_on_transfer(struct replica *r, const struct keel_message *msg);
/* The leader is another one: asks again. */
void members_again(struct replica *r);
/* A call of an administrator waits no more. */
void members_call_stopped(struct replica *r, const struct replica_call *call);
void members_pump(struct replica *r, uint64_t now);
void members_expire_sessions(struct replica *r, uint64_t now);
uint64_t members_deadline(const struct replica *r);

/* ---- replica_snapshots.c ---- */

void snapshots_init(struct replica *r);
void snapshots_free(struct replica *r);
/* A peer needs one. */
void snapshots_begin(struct replica *r, uint64_t peer, uint64_t now);
void snapshots_on_piece(struct replica *r, uint64_t from, struct keel_message *msg);
void snapshots_on_state(struct replica *r, uint64_t from, const struct keel_message *msg);
void snapshots_connected(struct replica *r, uint64_t peer, uint64_t now);
/* Not the leader any more, or members have gone: transfers for nobody end. */
void snapshots_follow(struct replica *r);
/* A checkpoint has come back, which an installation may have waited for. */
void snapshots_checkpointed(struct replica *r);
bool snapshots_installing(const struct replica *r);
void snapshots_persisted(struct replica *r, struct raft_mark mark);
void snapshots_tick(struct replica *r, uint64_t now);
uint64_t snapshots_deadline(const struct replica *r);

#endif
