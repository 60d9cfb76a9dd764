/* What the files of src/raft share: the whole state, and who does what. Nobody else includes this.
 *
 *     raft.c         life, persist requests and the gate, ready/accept, state
 *     step.c         one message in: terms, dispatch, and what a follower does with it
 *     election.c     timers, campaigns, votes, check-quorum, transfer
 *     replication.c  a leader's progress with each peer, and commit
 *     membership.c   which configuration counts, and changes of it
 *     install.c      snapshots: who needs one, and what installing one does to the log
 *     read.c         read indexes: lease and rounds
 *     tail.c         the log in memory        quorum.c  majorities
 */
#ifndef RAFT_INTERNAL_H
#define RAFT_INTERNAL_H

#include "raft/config.h"
#include "raft/quorum.h"
#include "raft/raft.h"
#include "raft/tail.h"
#include "rng.h"

#define RAFT_DEFAULT_HEARTBEAT_US 25000u
#define RAFT_DEFAULT_ELECTION_US 600000u
#define RAFT_DEFAULT_LEASE_US 100000u
#define RAFT_DEFAULT_DRIFT_PERCENT 1u

/* A closed connection to the leader starts a pre-vote after 1 … 20 ms: the spread lets one follower
 * win before the other stands, on a network that is much faster than that. */
#define RAFT_FAST_DELAY_MIN_US 1000u
#define RAFT_FAST_DELAY_SPREAD_US 19000u

/* So many campaigns after it may be repeated soon, should votes split or the others notice a little
 * later. */
#define RAFT_FAST_CAMPAIGNS 4u

/* Bare bytes keep a leader alive for at most so many election timeouts after its last message: one
 * that has stepped down and only pings must not hold its followers for ever. */
#define RAFT_ALIVE_TIMEOUTS 4u

/* Members by the latest configuration and by the last committed one, and others that are connected.
 */
#define RAFT_PEERS_MAX (3 * KEEL_MEMBERS_MAX)

enum raft_ballot { RAFT_NO_VOTE, RAFT_GRANTED, RAFT_REJECTED };
enum raft_campaign { RAFT_CAMPAIGN_PRE, RAFT_CAMPAIGN_REAL, RAFT_CAMPAIGN_TRANSFER };

struct raft_inflight {
    uint64_t last;
    size_t bytes;
};

struct raft_peer {
    uint64_t id;
    bool connected;
    bool member; /* of the latest configuration, or of the last committed one */

    /* A candidate's view. */
    enum raft_ballot ballot;
    uint64_t ack_us; /* granted: own clock at or after its last acknowledgement of any leader */

    /* A leader's view: progress. */
    enum raft_peer_state state;
    uint64_t match, next;
    uint64_t commit_sent;  /* the commit index it has been told, if nothing was lost */
    uint64_t match_before; /* match at its last heartbeat reply */
    bool paused;           /* probing, and the probe is on its way … */
    uint64_t probe_term;   /* … behind next - 1, whose term this is */
    bool fetching;         /* a fetch is outstanding, from fetch_first on */
    uint64_t fetch_first;
    uint64_t fetch_retry_us;        /* after one that failed: not before */
    struct raft_inflight *inflight; /* ring of KEEL_INFLIGHT_MESSAGES; NULL: never needed */
    size_t inflight_start, inflight_count, inflight_bytes;

    /* A leader's view: contact. All on the leader's clock. */
    uint64_t heard_us; /* arrival of its last reply in this term: check-quorum */
    uint64_t share_us; /* sending of the latest message that it has answered in this term: lease. 0:
                          none */
    uint64_t void_us;  /* answers to what was sent until here don't count for the lease */
    uint64_t round;    /* latest read round that it has answered */
};

/* A configuration in the log, or the one before it. */
struct raft_config_at {
    uint64_t index; /* of its entry */
    struct raft_config config;
};

/* A persist request under way: `last` is the last of its entries that has not been cut since (0:
 * none). */
struct raft_request {
    uint64_t seq;
    uint64_t last;
};

struct raft_gated {
    uint64_t seq;
    struct raft_message *msg;
};

struct raft_pending_read {
    uint64_t from; /* 0: this node */
    uint64_t context;
    uint64_t index;
    uint64_t round; /* 0: waits for the first commit of the term */
};

struct raft {
    uint64_t id;
    struct raft_config config;      /* the latest in the log */
    struct raft_config_at *configs; /* ascending; the first is the last committed one, the last one
                                       is `config` */
    size_t config_count, config_capacity;
    uint64_t heartbeat_us, election_timeout_us, lease_us, drift_percent;
    bool fast_elections;
    uint64_t first_stored_index;
    struct keel_rng rng;
    uint64_t now_us; /* of the latest call */

    struct raft_hard_state hard; /* as in memory */
    enum raft_role role;         /* a learner is a follower here */
    uint64_t leader;
    struct raft_tail log;
    uint64_t applied;

    /* Persisting: requests are numbered; everything up to handed_index and handed_hard is in a
     * request. */
    uint64_t persisted; /* own log, durable */
    uint64_t handed_index;
    struct raft_hard_state handed_hard;
    uint64_t reset_index, reset_term; /* the log was reset, and no request says so yet; 0: no */
    bool installing;                  /* a snapshot is being installed: the log stands still */
    uint64_t seq_issued, seq_persisted;
    struct raft_request *requests;
    size_t request_count, request_capacity;
    struct raft_gated *gated;
    size_t gated_count, gated_capacity;

    /* Output since the last accept. */
    bool in_ready;
    struct raft_message **outbox;
    size_t outbox_count, outbox_capacity;
    struct raft_read *reads;
    size_t read_count, read_capacity;
    struct raft_fetch *fetches;
    size_t fetch_count, fetch_capacity;
    uint64_t *snapshots;
    size_t snapshot_count, snapshot_capacity;

    /* Elections. */
    uint64_t timeout_us; /* this term's, in [1, 2) election timeouts */
    uint64_t election_deadline_us;
    uint64_t heard_us;   /* last message of the leader */
    uint64_t contact_us; /* last sign of life of it */
    uint64_t last_ack_us;
    uint64_t leader_clock_us;
    uint64_t quorum_seen_us;
    unsigned fast_campaigns; /* left */
    uint64_t campaign_seq;   /* candidate: the request that holds its vote for itself */
    bool campaign_transfer;
    uint64_t handover_term; /* the leader before this term has renounced its lease; 0: none has */
    bool own_ballot;        /* candidate: that request is durable */

    /* Leading. */
    uint64_t term_start; /* index of the term's no-op */
    uint64_t wait_until_us;
    uint64_t heartbeat_deadline_us;
    size_t uncommitted_bytes;
    uint64_t transferee, transfer_deadline_us;
    bool renounced;           /* no lease in this term any more */
    uint64_t caught_up_index; /* what was committed a heartbeat interval ago, or earlier … */
    uint64_t caught_up_next;  /* … and what it will be … */
    uint64_t caught_up_at_us; /* … from then on */
    uint64_t round_sent, round_confirmed;
    struct raft_pending_read *pending;
    size_t pending_count, pending_capacity;

    struct raft_peer peers[RAFT_PEERS_MAX]; /* ascending by id, self not among them */
    size_t peer_count;
};

/* ---- raft.c ---- */

/* Begins an input: time only goes forward. */
void raft_enter(struct raft *r, uint64_t now_us);
struct raft_peer *raft_peer_find(struct raft *r, uint64_t id);
const struct raft_peer *raft_peer_get(const struct raft *r, uint64_t id);

/* The one place that lets a message out. */
void raft_send(struct raft *r, struct raft_message *msg_take);
/* … once everything in memory now is durable. */
void raft_send_gated(struct raft *r, struct raft_message *msg_take);
/* … once request `seq` is durable. */
void raft_send_after(struct raft *r, uint64_t seq, struct raft_message *msg_take);
/* The request that will have made (or has made) everything in memory now durable. */
uint64_t raft_gate(const struct raft *r);
/* What was held back promises something in a term that is over. */
void raft_drop_gated(struct raft *r);
/* What was held back promises entries that are gone. */
void raft_drop_gated_acks(struct raft *r);
/* Adds the entry that is next; takes its reference. A configuration counts from now on. */
void raft_log_append(struct raft *r, struct raft_entry entry_take);

/* Cuts own log from an index on (a leader's log differs there). */
void raft_cut_log(struct raft *r, uint64_t from);
void raft_set_commit(struct raft *r, uint64_t commit);
void raft_push_read(struct raft *r, uint64_t context, uint64_t index);
/* This node's clock for a message; never 0, which asks for no reply. */
uint64_t raft_stamp(const struct raft *r);
/* An array with room for one more. */
void *raft_grow(void *items, size_t count, size_t *capacity, size_t size);

/* ---- election.c ---- */

void raft_become_follower(struct raft *r, uint64_t term, uint64_t leader);
void raft_campaign(struct raft *r, enum raft_campaign kind);
/* The leader of this term has given a sign of life. */
void raft_heard_leader(struct raft *r);
/* Whether a live leader protects this node against (pre-)votes. */
bool raft_in_lease(const struct raft *r);
void raft_on_vote_request(struct raft *r, const struct raft_message *msg);
void raft_on_vote_reply(struct raft *r, const struct raft_message *msg);
void raft_on_timeout_now(struct raft *r, const struct raft_message *msg);
void raft_own_ballot_persisted(struct raft *r);
void raft_send_vote_request(struct raft *r, const struct raft_peer *peer);
void raft_transfer_step(struct raft *r);
uint64_t raft_quorum_heard(const struct raft *r);
bool raft_is_alone(const struct raft *r);

void raft_hand_over(struct raft *r, uint64_t to);
uint64_t raft_furthest_voter(const struct raft *r);

/* ---- membership.c ---- */

void raft_config_init(struct raft *r, const struct raft_config *config, uint64_t index);
/* The entry of a configuration has been appended; entries from `from` on have been cut off; the
 * commit index has moved. */
void raft_config_appended(struct raft *r, const struct raft_entry *entry);
void raft_config_cut(struct raft *r, uint64_t from);
void raft_config_committed(struct raft *r);
/* Whether this node is a voter of any configuration since the last committed one. By the latest it
 * may be none, and still be needed as a leader: nobody else may hold that one (thesis 4.2.2). */
bool raft_may_stand(const struct raft *r);
/* A leader's duties after a commit: leaving a joint configuration, or its office. */
void raft_membership_step(struct raft *r);
/* Whether the data of a configuration's entry are one. */
bool raft_config_entry_valid(const struct raft_entry *entry);
/* Finds a peer, or makes one (NULL: no room for strangers). */
struct raft_peer *raft_peer_make(struct raft *r, uint64_t id);
/* A peer that is neither a member nor connected is forgotten; of strangers, all that are too many.
 */
void raft_peer_release(struct raft *r, struct raft_peer *peer);

/* ---- install.c ---- */

/* What the peer needs next is gone from the log. */
void raft_progress_snapshot(struct raft *r, struct raft_peer *peer);

/* ---- replication.c ---- */

void raft_progress_reset(struct raft *r, struct raft_peer *peer);
void raft_progress_probe(struct raft_peer *peer, uint64_t next);
void raft_replicate(struct raft *r); /* everything that can be sent now, to everybody */
void raft_heartbeat(struct raft *r); /* to everybody */
void raft_heartbeat_one(struct raft *r, struct raft_peer *peer);
void raft_send_commit(struct raft *r, struct raft_peer *peer);
bool raft_term_committed(const struct raft *r); /* a leader: an entry of its term is */
void raft_maybe_commit(struct raft *r);
void raft_on_append_reply(struct raft *r, const struct raft_message *msg);
void raft_on_heartbeat_reply(struct raft *r, const struct raft_message *msg);
void raft_append_own(struct raft *r, enum raft_entry_kind kind, struct keel_buf *data_take);

/* ---- read.c ---- */

void raft_on_read_request(struct raft *r, const struct raft_message *msg);
void raft_on_read_reply(struct raft *r, const struct raft_message *msg);
void raft_reads_after_commit(struct raft *r); /* the term's first entry may be committed now */
void raft_reads_start_round(struct raft *r, bool always);
void raft_reads_confirm(struct raft *r); /* a peer has answered a round */
void raft_reads_fail(struct raft *r);    /* not the leader any more */

#endif
