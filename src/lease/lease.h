/* Leases: a table by id, and a heap by expiry. Time is an argument, and only a leader has any:
 * everywhere else a lease is just replicated facts (id, ttl, owner, remaining at the last
 * checkpoint, keys). The semantics are etcd's lessor's.
 *
 * What is replicated (changed by apply only): grant, revoke, attach, detach, checkpoint. What is
 * not: expiry times, which exist between lease_promote and lease_demote. */
#ifndef LEASE_LEASE_H
#define LEASE_LEASE_H

#include "buf.h"
#include "keel_limits.h"

struct lease_table;

struct lease_info {
    uint64_t id;
    uint64_t ttl_ms;
    uint64_t remaining_ms; /* at the last checkpoint; ttl_ms when never checkpointed */
    uint32_t uid;
    size_t keys;
    uint64_t expires_us; /* leader only; UINT64_MAX otherwise */
    uint64_t known_us;   /* when this node learned remaining_ms; 0: it doesn't know */
};

struct lease_table *lease_table_new(void);
struct lease_table *lease_table_free(struct lease_table *t);

/* ---- replicated state: deterministic ---- */

/* KEEL_E_EXISTS, KEEL_E_INVALID (ttl outside keel_limits.h), KEEL_E_AGAIN (too many leases, in all
 * or of this uid). */
int lease_grant(struct lease_table *t, uint64_t id, uint64_t ttl_ms, uint32_t uid, uint64_t now_us);
/* Removes it; the caller has deleted its keys. KEEL_E_NOTFOUND. */
int lease_revoke(struct lease_table *t, uint64_t id);
/* An inode number belongs to at most one lease: attaching moves it. KEEL_E_NOTFOUND. */
int lease_attach(struct lease_table *t, uint64_t id, uint64_t ino);
void lease_detach(struct lease_table *t, uint64_t id, uint64_t ino);
/* The remaining time (at most the ttl) becomes the replicated one; a running clock is left alone.
 * KEEL_E_NOTFOUND. */
int lease_checkpoint(struct lease_table *t, uint64_t id, uint64_t remaining_ms, uint64_t now_us);

int lease_get(const struct lease_table *t, uint64_t id, struct lease_info *ret_info);
size_t lease_count(const struct lease_table *t);
/* Inode numbers attached, ascending; fn's non-zero result stops and is returned. */
int lease_keys(const struct lease_table *t, uint64_t id, int (*fn)(void *arg, uint64_t ino),
               void *arg);
/* All leases, ascending by id. */
int lease_each(const struct lease_table *t, int (*fn)(void *arg, const struct lease_info *info),
               void *arg);

/* The whole replicated state as bytes, the same on every node at the same index; and back.
 * KEEL_E_MALFORMED, KEEL_E_NEWER. */
struct keel_buf *lease_table_encode(const struct lease_table *t);
int lease_table_decode(struct keel_slice bytes, struct lease_table **ret_table);

/* ---- the leader's clock ---- */

/* This node leads from now on: every lease gets its replicated remaining time, from now. To be
 * called once the first entry of the own term is applied: a checkpoint of an earlier leader that
 * came after it could undo a renewal. */
void lease_promote(struct lease_table *t, uint64_t now_us);
void lease_demote(struct lease_table *t);
bool lease_is_primary(const struct lease_table *t);

/* A renewal that was received now: expires ttl from now. KEEL_E_NOTFOUND (also when it has expired
 * and only its removal is outstanding); KEEL_E_NOTLEADER; KEEL_E_STALE: its remaining time has been
 * checkpointed below its ttl, or is about to be: the caller first has a checkpoint of the full ttl
 * replicated (proposed after this call), then renews again. */
int lease_renew(struct lease_table *t, uint64_t id, uint64_t now_us);

/* The next moment at which lease_expired or lease_due has something; UINT64_MAX when not primary or
 * empty. */
uint64_t lease_deadline(const struct lease_table *t);
/* The id of a lease that has expired and was not returned yet in this leadership (the caller
 * proposes its expiry), or 0. */
uint64_t lease_expired(struct lease_table *t, uint64_t now_us);
/* Puts an expiry that could not be proposed back. */
void lease_expire_again(struct lease_table *t, uint64_t id);
/* The id of a lease whose remaining time ought to be checkpointed now (unrenewed for a third of its
 * ttl, at least 1 s, since the last checkpoint), with the value; or 0. */
uint64_t lease_due(struct lease_table *t, uint64_t now_us, uint64_t *ret_remaining_ms);

#endif
