/* struct lease_table and what its files share: lease.c (replicated facts and the leader's clock),
 * lease_set.c (which lease an inode number belongs to), lease_codec.c (bytes). */
#ifndef LEASE_TABLE_H
#define LEASE_TABLE_H

#include "heap.h"
#include "lease/lease.h"

/* A checkpoint that was handed out by lease_due, on its way through the log. */
enum lease_checkpoint_state {
    CHECKPOINT_NONE,
    CHECKPOINT_OUT,    /* a shorter remaining time may become the replicated one at any moment */
    CHECKPOINT_COVERED /* a renewal waits for the full ttl to be replicated behind it */
};

struct lease {
    uint64_t id;
    uint64_t ttl_ms, remaining_ms;
    uint32_t uid;
    uint64_t *inos; /* ascending */
    size_t ino_count, ino_capacity;
    uint64_t known_us; /* when this node learned remaining_ms; 0: from a decoded state */

    /* The leader's clock. */
    struct keel_heap_node expiry; /* in no heap while primary: handed out by lease_expired */
    struct keel_heap_node due;
    uint64_t expires_us;
    uint64_t out_remaining_ms; /* what CHECKPOINT_OUT may make of remaining_ms */
    enum lease_checkpoint_state checkpoint;
};

struct lease_uid {
    uint32_t uid;
    uint32_t leases;
};

struct lease_owner {
    uint64_t ino; /* 0: a free slot */
    struct lease *lease;
};

struct lease_table {
    struct lease **leases; /* ascending by id: ids are log indexes, so a grant appends */
    size_t count, capacity;
    struct lease_uid *uids; /* ascending; those with leases */
    size_t uid_count, uid_capacity;
    struct lease_owner *owners; /* open addressing by inode number */
    size_t owner_count, owner_capacity;
    bool primary;
    struct keel_heap expiries, dues;
};

struct lease *lease_find(const struct lease_table *t, uint64_t id);
/* Adds one that is not there yet and may be there: limits are the caller's to check. */
struct lease *lease_insert(struct lease_table *t, uint64_t id, uint64_t ttl_ms, uint32_t uid);

/* ---- lease_set.c ---- */

struct lease *lease_owner_of(const struct lease_table *t, uint64_t ino);
/* ino belongs to no lease. */
void lease_set_add(struct lease_table *t, struct lease *lease, uint64_t ino);
/* ino belongs to that lease. */
void lease_set_remove(struct lease_table *t, struct lease *lease, uint64_t ino);
/* All of them. */
void lease_set_clear(struct lease_table *t, struct lease *lease);

#endif
