/* Shared by apply.c (sessions, dispatch, state), apply_members.c (members), apply_history.c
 * (compaction, quota), apply_ops.c (what each operation does) and apply_reload.c (another state in
 * the place of this one); nobody else's. */
#ifndef KEEL_APPLY_INTERNAL_H
#define KEEL_APPLY_INTERNAL_H

#include "apply.h"
#include "raft/quorum.h"

struct apply_session {
    uint64_t id, node, nonce;
    uint64_t first_ino;             /* of the range that came with it */
    uint64_t last;                  /* highest number applied */
    uint64_t acked;                 /* results up to here are forgotten */
    struct command_result *results; /* of acked + 1 … last */
    size_t capacity;
};

struct apply {
    struct mvcc *mvcc;
    struct lease_table *leases;
    struct apply_session *sessions;
    size_t session_count, session_capacity;
    struct apply_member members[KEEL_MEMBERS_MAX];
    size_t member_count;
    struct raft_config config;
    uint64_t config_index;
    struct apply_settings settings;
    bool nospace;
    uint64_t next_ino;
    struct keel_arena arena; /* of the entry that was applied last */
    struct keel_change *changes;
    size_t change_count, change_capacity;
};

/* One command on its way through apply. */
struct apply_op {
    struct apply *a;
    struct mvcc_txn *txn;
    const struct raft_entry *entry;
    const Keel__Command *head;
    struct keel_slice body;
    uint64_t now_us;
    struct apply_outcome *outcome;
    struct command_result *result;
    bool full; /* what is live would grow, and there is no room for that */
};

/* ---- apply.c ---- */

/* A node's sessions are over. */
void apply_end_sessions(struct apply *a, uint64_t node);

/* ---- apply_members.c ---- */

/* Takes the data of a configuration's entry. KEEL_E_MALFORMED, KEEL_E_NEWER: lost trust. */
int apply_configuration(struct apply *a, const struct raft_entry *entry,
                        struct apply_outcome *outcome);
void apply_add_member(struct apply *a, const struct apply_member *member); /* copies its strings */
void apply_clear_members(struct apply *a);
int apply_contact(struct apply_op *op, const Keel__Contact *contact);
int apply_verdict(struct apply_op *op, const Keel__Verdict *verdict);

/* ---- apply_history.c ---- */

int apply_compact(struct apply_op *op, const Keel__Compact *compact);
int apply_compact_step(struct apply_op *op, const Keel__CompactStep *step);
/* Before a command: if there is no room for what it adds, old history yields; if that is not enough
 * and it makes what is live larger, op->full says so. */
void apply_make_room(struct apply_op *op);
/* After an entry that came to err: raises or clears the alarm. */
void apply_watch_room(struct apply *a, int err);

/* ---- apply_ops.c ---- */

/* Bytes of what stands before a name in this directory; one more than those of the key itself. */
size_t apply_path_len(const struct mvcc_key *key);

/* Executes a command that touches the keyspace or leases; fills in op->result apart from err, which
 * is returned. An error leaves the state as it was. */
int apply_create(struct apply_op *op, const Keel__Create *create);
int apply_write(struct apply_op *op, const Keel__Write *write);
int apply_set_attr(struct apply_op *op, const Keel__SetAttr *set);
int apply_remove(struct apply_op *op, const Keel__Remove *remove);
int apply_rename(struct apply_op *op, const Keel__Rename *rename);
int apply_copy_range(struct apply_op *op, const Keel__CopyRange *copy);
int apply_lease_grant(struct apply_op *op, const Keel__LeaseGrant *grant);
/* Revocation and expiry: deletes all keys of the lease in one revision, in key order. */
int apply_lease_end(struct apply_op *op, uint64_t lease);

/* Sessions, leases, settings and members as in the store; nothing of them is there before.
 * KEEL_E_NOTFOUND: the store has none; KEEL_E_CORRUPT, KEEL_E_NEWER. */
int apply_load(struct apply *a);
/* Frees and forgets them. */
void apply_clear(struct apply *a);

#endif
