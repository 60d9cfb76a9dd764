/* The replicated state machine: mvcc, leases, sessions, settings and members, changed by log
 * entries and by nothing else. Pure and deterministic: apply reads the entry and this state, never
 * a clock, and every replica gets the same state and the same results. POSIX checks happen here
 * (docs/semantics.md).
 *
 * Sessions (exactly-once, in order): apply accepts a session's next number; answers an applied one
 * from the table; rejects everything else of it (KEEL_E_OUTOFORDER) and of unknown sessions
 * (KEEL_E_NOSESSION) without effect. */
#ifndef KEEL_APPLY_H
#define KEEL_APPLY_H

#include "change.h"
#include "command.h"
#include "lease/lease.h"
#include "mvcc/mvcc.h"
#include "raft/config.h"

struct apply;

struct apply_settings {
    bool known; /* the first leader has proposed them */
    uint64_t file_size_bytes;
    uint64_t quota_bytes;
    uint64_t txn_ops;
    uint64_t history_ms, history_revisions; /* kept at least */
    uint32_t level;                         /* of the cluster */
};

struct apply_member {
    uint64_t id;
    char *name, *address;
    bool voter;
    uint64_t incarnation;   /* 0: not yet heard from */
    uint64_t corrupt_index; /* not 0: the check at this index found another state on it */
};

/* A member is listed as long as the configuration, joint or not, has it. */

/* What an entry came to. */
struct apply_outcome {
    bool is_command;
    uint64_t session, number; /* 0, 0: not of a session */
    bool fresh;               /* it was executed now; false: rejected, or answered from the table */
    bool opened_session;      /* it opened one: result.value is its id; node and nonce tell whose */
    uint64_t node, nonce;
    bool members_changed, settings_changed;
    bool check;                /* it was one: every member takes a digest now */
    bool config_changed;       /* it was a configuration */
    uint64_t expired_session;  /* not 0: this session is over */
    uint64_t granted, revoked; /* leases */
    struct command_result result;
    const struct keel_change *changes; /* valid until the next call */
    size_t change_count;
};

/* Takes over the state of `mvcc` (borrowed): sessions, leases, settings, members as of its applied
 * index. A fresh store has no members: they come with the configurations in the log, the first with
 * its first entry. KEEL_E_CORRUPT, KEEL_E_NEWER. */
int apply_new(struct mvcc *mvcc, struct apply **ret_apply);
struct apply *apply_free(struct apply *a);

/* Applies the next entry (index = applied + 1; asserted). KEEL_E_NEWER: it needs a semantics level
 * that this build does not know; nothing was changed: the node stops. KEEL_E_MALFORMED: lost trust.
 * now_us only starts the clocks of leases granted on a leader and decides nothing. */
int apply_entry(struct apply *a, const struct raft_entry *entry, uint64_t now_us,
                struct apply_outcome *ret_outcome);

/* The state of an installed snapshot, in another kv (borrowed from now on), takes the place of this
 * one. Pointers to the mvcc and its keys stay valid (keys that it does not have are keys without a
 * revision). `changed` is called afterwards for each difference in what is live, all at the new
 * revision and index, in an order in which apply could have made them: removals and renames so far
 * as they must come first, creations from the top, contents, attributes. Names that were swapped go
 * over a third one in the root, ".keelfs-moved-N". A removal's `before` is the last record, or, if
 * that is not kept, what is remembered of it, without content. On an error (as mvcc_reload,
 * apply_new) the node must stop. */
int apply_reload(struct apply *a, struct kv *kv,
                 void (*changed)(void *arg, const struct keel_change *change), void *arg,
                 char *ret_why, size_t why_size);

/* The pending state as one batch for the kv (mvcc_checkpoint with sessions, leases and so on). */
struct kv_batch *apply_checkpoint(struct apply *a);

/* Of all of the state as of the applied index, apart from directories' times: the same on all
 * members. Costs a packing of sessions and leases. */
struct keel_hash128 apply_digest(const struct apply *a);

struct mvcc *apply_mvcc(const struct apply *a);
struct lease_table *apply_leases(const struct apply *a);
const struct apply_settings *apply_settings(const struct apply *a);
/* The alarm NOSPACE: a write that grows was refused for the quota, and less than a twentieth of the
 * quota has become free since. */
bool apply_nospace(const struct apply *a);
const struct apply_member *apply_members(const struct apply *a, size_t *ret_count);
/* The configuration as applied, and the index of its entry (0: none yet). */
const struct raft_config *apply_config(const struct apply *a, uint64_t *ret_index);
/* What goes behind the configuration in its entry: names and addresses of its members. */
struct keel_buf *apply_pack_members(const struct apply_member *members, size_t count);
/* The entry with which a new cluster's log begins, the same on every node: index 1, term 1, all
 * members voters, committed. Its data is counted. */
struct raft_entry apply_first_entry(const struct apply_member *members, size_t count);
/* The state becomes that of a new cluster of these members, all voters, as of the applied index: a
 * restored backup. Nobody has been heard from, no session is open; leases stay, with the time that
 * they had left. The configuration counts as that index's. To be checkpointed. */
void apply_found(struct apply *a, const struct apply_member *members, size_t count);
/* Whether a session is known, and its last applied number. */
bool apply_session(const struct apply *a, uint64_t session, uint64_t *ret_last);
/* The result of a number that is applied and not acknowledged. False: not kept. */
bool apply_session_result(const struct apply *a, uint64_t session, uint64_t number,
                          struct command_result *ret_result);
/* What is in the table. */
struct apply_session_info {
    uint64_t id, node, nonce, first_ino;
};
size_t apply_session_count(const struct apply *a);
struct apply_session_info apply_session_at(const struct apply *a, size_t i);

#endif
