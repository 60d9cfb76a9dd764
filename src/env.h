/* The world, as a replica sees it. Two implement it: the node (src/node.c) and the simulator
 * (tests/sim/).
 *
 * Everything asynchronous comes back as a call of replica.h: log_append -> replica_on_persisted (in
 * order), log_read -> replica_on_log_read, log_release -> replica_on_log_released, checkpoint ->
 * replica_on_checkpointed, snapshot_NAME -> replica_on_snapshot_NAME. */
#ifndef KEEL_ENV_H
#define KEEL_ENV_H

#include "change.h"
#include "mvcc/kv.h"
#include "peer/message.h"
#include "wal/wal.h"

struct keel_env;

struct keel_env_ops {
    /* Microseconds that never go back, also counting suspension (CLOCK_BOOTTIME); read afresh at
     * each call. */
    uint64_t (*now_us)(struct keel_env *env);
    /* CLOCK_REALTIME. */
    int64_t (*wall_ns)(struct keel_env *env);
    /* Sends to a member, or drops. */
    void (*send)(struct keel_env *env, uint64_t to, struct keel_message *msg_take);
    /* Makes a batch durable. A failure ends the node. */
    void (*log_append)(struct keel_env *env, struct wal_batch *batch_take);
    void (*log_read)(struct keel_env *env, uint64_t peer, uint64_t first, size_t max_bytes);
    /* Entries up to index are in the store, durably: what of the log is older than what is kept for
     * followers that lag may go. */
    void (*log_release)(struct keel_env *env, uint64_t index);
    /* Writes a batch into the store. A failure ends the node. */
    void (*checkpoint)(struct keel_env *env, struct kv_batch *batch_take);

    /* The snapshot that this node sends, one at a time: made of the store as it is on the disk,
     * then read in pieces, then dropped (also one that is being made: then nothing comes back). */
    void (*snapshot_make)(struct keel_env *env);
    void (*snapshot_read)(struct keel_env *env, uint64_t peer, uint64_t offset, size_t bytes);
    void (*snapshot_drop)(struct keel_env *env);
    /* The snapshot that this node is sent: pieces in order, from offset 0 on (which drops what was
     * there before), then installed: checked, made the store, while the old one goes on being
     * readable until replica_on_snapshot_installed has brought the new one. Only one store or
     * install at a time. */
    void (*snapshot_store)(struct keel_env *env, uint64_t offset, struct keel_buf *bytes_take);
    void (*snapshot_install)(struct keel_env *env);
    /* The old store is not used any more; the log's reset is durable. */
    void (*snapshot_finish)(struct keel_env *env);
    /* A change has been applied. Changes of one entry come in their order; state already shows all
     * of the entry. */
    void (*changed)(struct keel_env *env, const struct keel_change *change);
    /* A lease that this node keeps alive has been lost (locally, or by apply): its descriptors fail
     * from now on. */
    void (*lease_lost)(struct keel_env *env, uint64_t lease);
    /* The member table has changed: members, or what is known of one. */
    void (*members_changed)(struct keel_env *env);
    /* The whole state has been replaced by a snapshot's, and what is different has been told by
     * `changed`. */
    void (*reloaded)(struct keel_env *env);
    /* One line for the log (leadership, sessions): the replica itself writes none. */
    void (*note)(struct keel_env *env, const char *line);
};

struct keel_env {
    const struct keel_env_ops *ops;
};

#endif
