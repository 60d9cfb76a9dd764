/* Raft's plain values: entries, hard state, configuration and messages. The wire form of a message
 * is src/peer/message.h's business, the disk form of an entry src/wal's. */
#ifndef RAFT_TYPES_H
#define RAFT_TYPES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "buf.h"
#include "keel_limits.h"

/* Node ids are 64-bit hashes, never 0: 0 means "nobody". */

enum raft_entry_kind {
    RAFT_ENTRY_NOOP = 0,    /* the first entry of a leader's term; no data */
    RAFT_ENTRY_COMMAND = 1, /* data is a command (src/command.h) */
    RAFT_ENTRY_CONFIG = 2,  /* data is a configuration and what the driver adds (raft/config.h) */
};

struct raft_entry {
    uint64_t term;
    uint64_t index;
    enum raft_entry_kind kind;
    struct keel_buf *data; /* counted; NULL for a no-op */
};

static inline size_t raft_entry_bytes(const struct raft_entry *entry)
{
    return 32 + (entry->data ? entry->data->len : 0);
}

/* Figure 2, "persistent state on all servers", plus the commit index, which is only a hint. */
struct raft_hard_state {
    uint64_t term;
    uint64_t vote; /* 0: nobody */
    uint64_t commit;
};

/* What one persist request covers. `seq` numbers the requests of this process from 1; term and
 * index name the last entry in it (0, 0: it has none). */
struct raft_mark {
    uint64_t seq;
    uint64_t term;
    uint64_t index;
};

/* Voters of the new and, while joint, the old configuration, and learners: each list sorted by id,
 * at most KEEL_MEMBERS_MAX members in all. A voter that is to become a learner is in old_voters and
 * in learners while the configuration is joint. Empty: of a node that has joined and not been told
 * yet. */
struct raft_config {
    uint64_t voters[KEEL_MEMBERS_MAX];
    size_t voter_count;
    uint64_t old_voters[KEEL_MEMBERS_MAX]; /* joint consensus (thesis 4.3); empty otherwise */
    size_t old_voter_count;
    uint64_t learners[KEEL_MEMBERS_MAX];
    size_t learner_count;
};

enum raft_message_type {
    RAFT_VOTE_REQUEST = 1,
    RAFT_VOTE_REPLY,
    RAFT_APPEND,
    RAFT_APPEND_REPLY,
    RAFT_HEARTBEAT,
    RAFT_HEARTBEAT_REPLY,
    RAFT_READ_REQUEST, /* follower -> leader: give me a read index */
    RAFT_READ_REPLY,
    RAFT_TIMEOUT_NOW, /* leader -> follower: campaign at once (leader transfer, thesis 3.10) */
    RAFT_MESSAGE_TYPES
};

/* Never acknowledged a leader: the age in a vote reply. */
#define RAFT_AGE_NEVER UINT64_MAX

struct raft_message {
    enum raft_message_type type;
    uint64_t from, to;
    uint64_t term; /* of the sender; of a pre-vote request: the term it would campaign in */
    union {
        struct {
            bool pre;      /* pre-vote (thesis 9.6) */
            bool transfer; /* asked for by the leader itself: check-quorum does not refuse it */
            uint64_t last_index, last_term;
        } vote_request;
        struct {
            bool pre, granted;
            uint64_t ack_age_us; /* since this voter last acknowledged another node as leader */
        } vote_reply;
        struct {
            uint64_t prev_index, prev_term, commit;
            uint64_t sent_us; /* leader's clock at sending; the reply echoes it. 0: it only tells
                                 the commit index, and is answered only if it does not match */
            struct raft_entry *entries; /* owned array; indexes prev_index + 1 … */
            size_t count;
        } append;
        struct {
            bool rejected;
            uint64_t index; /* accepted: the last index that matches and is persisted;
                               rejected: the prev_index that did not match */
            uint64_t hint_index, hint_term; /* rejected: where to try next (etcd's hint) */
            uint64_t sent_us;
        } append_reply;
        struct {
            uint64_t commit; /* never above what the follower is known to hold */
            uint64_t round;  /* latest read round that this heartbeat confirms */
            uint64_t sent_us;
        } heartbeat;
        struct {
            uint64_t round, sent_us;
        } heartbeat_reply;
        struct {
            uint64_t context; /* chosen by the asker, echoed */
        } read_request;
        struct {
            uint64_t context;
            bool refused; /* not the leader (any more): ask again */
            uint64_t index;
        } read_reply;
        struct {
            bool renounced; /* the sender uses no lease in this term any more, and leases of earlier
                               terms are over: who is elected in the next term need not wait */
        } timeout_now;
    } u;
};

/* Heap-allocates a message of a type, all zero otherwise. */
struct raft_message *raft_message_new(enum raft_message_type type, uint64_t from, uint64_t to,
                                      uint64_t term);

/* Frees the message, its entry array and the array's references. Takes NULL; returns NULL. */
struct raft_message *raft_message_free(struct raft_message *msg);

/* Frees an entry array of `count` with its references. Takes NULL. */
void raft_entries_free(struct raft_entry *entries, size_t count);

/* A new array with its own references. */
struct raft_entry *raft_entries_copy(const struct raft_entry *entries, size_t count);

const char *raft_message_name(enum raft_message_type type);

#endif
