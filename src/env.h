/* The world, as a replica sees it. Two implement it: the node (src/node.c) and the simulator
 * (tests/sim/).
 *
 * Everything asynchronous comes back as a call of replica.h: log_append -> replica_on_persisted (in
 * order), log_read -> replica_on_log_read, checkpoint -> replica_on_checkpointed. */
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
    /* Writes a batch into the store. A failure ends the node. */
    void (*checkpoint)(struct keel_env *env, struct kv_batch *batch_take);
    /* A change has been applied. Changes of one entry come in their order; state already shows all
     * of the entry. */
    void (*changed)(struct keel_env *env, const struct keel_change *change);
    /* A lease that this node keeps alive has been lost (locally, or by apply): its descriptors fail
     * from now on. */
    void (*lease_lost)(struct keel_env *env, uint64_t lease);
    /* A member's incarnation has been recorded, or there is some other change of the member table.
     */
    void (*members_changed)(struct keel_env *env);
    /* One line for the log (leadership, sessions): the replica itself writes none. */
    void (*note)(struct keel_env *env, const char *line);
};

struct keel_env {
    const struct keel_env_ops *ops;
};

#endif
