/* Shared by node.c (start, stop, loop), node_identity.c (who this node is), node_env.c (the
 * replica's world: threads and sockets), node_snapshot.c (the snapshots in it) and node_defrag.c
 * (the store's free space). */
#ifndef KEEL_NODE_INTERNAL_H
#define KEEL_NODE_INTERNAL_H

#include <uv.h>

#include "data_dir.h"
#include "fs/fs.h"
#include "lookout.h"
#include "mvcc/kv.h"
#include "node.h"
#include "node_founders.h"
#include "peer/peer.h"
#include "replica.h"
#include "wal/wal.h"
#include "worker.h"

#define STORE_DIR "store"
#define STORE_ADVICE \
    "; restore the data directory from a backup, or remove this member and add it again"

#define NODE_REMOVED                                                                           \
    "this node has been removed from the cluster; stop it, and delete its data directory. To " \
    "take "                                                                                    \
    "it in again: keelctl members add on a member, and keelfs --join with an empty directory"

enum node_phase {
    NODE_STARTING,
    NODE_RUNNING,
    NODE_TRANSFERRING, /* asked to stop: handing leadership over, at most a second */
    NODE_UNMOUNTING,
    NODE_FLUSHING, /* what is applied goes into the store */
    NODE_STOPPED,
};

struct node {
    struct keel_env env;
    const struct node_options *options;
    enum node_phase phase;
    int exit_code;
    uv_loop_t loop;
    uv_prepare_t prepare; /* the end of each loop turn: pump, flush, set the timer */
    uv_idle_t idle;       /* active: the loop does not sleep (lookout.h) */
    struct lookout for_requests, for_barriers;
    uv_timer_t timer;
    uv_timer_t stop_timer;
    int stop_polls; /* left, while leadership is handed over, then while the store is written */
    uint64_t stop_index; /* what the store is to have then */
    uv_signal_t signals[2];
    uint64_t last_turn_us;

    int dir_fd;
    struct identity identity;
    bool identity_is_new; /* to be saved once log and store exist */
    char mount_point[KEEL_PATH_MAX + 1];
    char source[256];
    char *wal_dir;            /* NULL: below the data directory */
    struct founders founders; /* of --initial-cluster */

    struct disk *disk;
    struct wal *wal;
    struct kv *kv;
    struct mvcc *mvcc;
    struct apply *apply;
    struct replica *replica;
    struct peer_pool *peers;
    struct fs *fs;
    struct worker wal_worker, db_worker, snap_worker, defrag_worker; /* as long as the loop */
    struct snapshots *snapshots;                                     /* node_snapshot.c's */
    struct defrag *defrag;                                           /* node_defrag.c's */
    bool checkpoint_out;    /* the replica has handed one over that is not in the store yet */
    bool installing;        /* a snapshot, from when it was asked for until it is finished */
    unsigned store_readers; /* on other threads: works that read the `kv` of when they began */
    uint64_t map_bytes, log_kept_bytes;
    size_t wal_written_bytes; /* the log thread's: since it last filled ahead */
    bool workers_running;
    uint64_t refused_by[KEEL_MEMBERS_MAX]; /* peers that do not take us for who we say */
    size_t refusals;
    uint64_t peers_config_index; /* of the members that the peers were told */
    bool members_changed, told_removed;
};

extern const struct keel_env_ops node_env_ops;
extern const struct peer_events node_peer_events; /* arg is filled in */

/* Locks the data directory and finds out who this node is, if need be by asking to be let in. */
int node_open_data_dir(struct node *node);
uint64_t node_random(void); /* never 0 */

/* Who the members are, as far as this node knows: as applied, or as it was told when it joined
 * (config_index 0). The strings are borrowed. */
size_t node_members(const struct node *node, struct peer_member ret[KEEL_MEMBERS_MAX],
                    uint64_t *ret_config_index);

/* The peers are the members of now, after all that was said to those of before has been queued:
 * whoever is removed is to hear of it. */
void node_follow_members(struct node *node);

/* The wal, store, snapshot and defragmentation threads. Stopping writes what is still queued. */
void node_workers_start(struct node *node);
void node_workers_stop(struct node *node);

void node_store_write(struct node *node, struct kv_batch *batch_take);

/* ---- node_snapshot.c: the snapshots of keel_env_ops, on a thread of their own ---- */

void node_snapshots_start(struct node *node);
void node_snapshots_stop(struct node *node);
void node_snapshot_make(struct node *node);
void node_snapshot_read(struct node *node, uint64_t peer, uint64_t offset, size_t bytes);
void node_snapshot_drop(struct node *node);
void node_snapshot_store(struct node *node, uint64_t offset, struct keel_buf *bytes_take);
void node_snapshot_install(struct node *node);
void node_snapshot_finish(struct node *node);
/* As fs_node_info.snapshot_...: at most one, made once the store has all that is applied. */
void node_user_snapshot_make(struct node *node);
void node_user_snapshot_read(struct node *node, uint64_t offset, size_t bytes);
void node_user_snapshot_drop(struct node *node);
/* After checkpoints, and at any time. */
void node_user_snapshot_advance(struct node *node);

/* ---- node_defrag.c ---- */

void node_defrag_start(struct node *node);
/* While the store thread still runs. */
void node_defrag_stop(struct node *node);
/* Once nobody reads the store any more. */
void node_defrag_free(struct node *node);
/* As fs_node_info.defrag. */
int node_defrag(struct node *node);
void node_defrag_status(const struct node *node, struct keel_text *text);
/* After anything that it may have waited for: checkpoint_out, installing, store_readers. */
void node_defrag_advance(struct node *node);
/* A checkpoint that is to be written: true, it will be later. */
bool node_defrag_holds(struct node *node, struct kv_batch *batch_take);
/* One that has been written. */
void node_defrag_written(struct node *node, struct kv_batch *batch_take);
/* A snapshot is to be installed: true, node_snapshot_install is called later. */
bool node_defrag_delays_install(struct node *node);

/* Begins a stop; exit_code is that of the process. Safe to call again. */
void node_stop(struct node *node, int exit_code);

/* Tells the service manager, if there is one, which peers are missing. */
void node_report(struct node *node);

uint64_t node_now_us(void);

#endif
