/* Shared by the files of the replica; nobody else's.
 *
 *   replica.c           input, the pump, applying, checkpoints, status
 *   replica_requests.c  this node's session: proposals in order, exactly once; barriers
 *   replica_leases.c    keeping leases alive, and what a leader owes the cluster (expiry, settings,
 * contacts)
 */
#ifndef KEEL_REPLICA_INTERNAL_H
#define KEEL_REPLICA_INTERNAL_H

#include "replica.h"

enum {
    RESEND_US = 500000, /* without progress a follower sends its commands again */
    ROUND_US = 200000,  /* without an answer a read round is asked again */
    ROUNDS_MAX = 4,     /* read rounds under way */
    DUTY_US = 500000,   /* between two attempts of a leader's (or a session's) standing duty */
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

    struct keel_link keepers;
    uint64_t member_incarnation[KEEL_MEMBERS_MAX]; /* as heard; by slot of apply_members */
    uint64_t duty_us;                              /* last attempt of the leader's duties */

    uint64_t seen_leader, seen_term; /* as of the last pump */
    bool heard_leader;               /* ever */
    bool checkpoint_out;
    uint64_t pending_since_us; /* 0: nothing pending */
    bool pumping;
};

static inline uint64_t now_of(const struct replica *r)
{
    return r->env->ops->now_us(r->env);
}

/* Since when there has been no leader; 0: there is one. */
uint64_t replica_quorum_lost_us(const struct replica *r);

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
/* Leadership has changed, or an entry of this term has been applied. */
void leases_follow_role(struct replica *r, uint64_t now);
void leases_duties(struct replica *r, uint64_t now);

#endif
