/* Shared by node.c (start, stop, loop) and node_env.c (the replica's world: threads and sockets).
 */
#ifndef KEEL_NODE_INTERNAL_H
#define KEEL_NODE_INTERNAL_H

#include <uv.h>

#include "data_dir.h"
#include "fs/fs.h"
#include "lookout.h"
#include "mvcc/kv.h"
#include "node.h"
#include "peer/peer.h"
#include "replica.h"
#include "wal/wal.h"
#include "worker.h"

enum node_phase {
    NODE_STARTING,
    NODE_RUNNING,
    NODE_TRANSFERRING, /* asked to stop: handing leadership over, at most a second */
    NODE_UNMOUNTING,
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
    int stop_polls; /* left, while leadership is handed over */
    uv_signal_t signals[2];
    uint64_t last_turn_us;

    int dir_fd;
    struct identity identity;
    bool identity_is_new; /* to be saved once log and store exist */
    char mount_point[KEEL_PATH_MAX + 1];
    char source[256];
    char *wal_dir;                                 /* NULL: below the data directory */
    struct apply_member members[KEEL_MEMBERS_MAX]; /* of --initial-cluster, at bootstrap */
    size_t member_count;
    char *member_text; /* what their strings point into */

    struct disk *disk;
    struct wal *wal;
    struct kv *kv;
    struct mvcc *mvcc;
    struct apply *apply;
    struct replica *replica;
    struct peer_pool *peers;
    struct fs *fs;
    struct worker wal_worker, db_worker;
    size_t wal_written_bytes; /* the log thread's: since it last filled ahead */
    bool workers_running;
    uint64_t refused_by[KEEL_MEMBERS_MAX]; /* peers that do not take us for who we say */
    size_t refusals;
};

extern const struct keel_env_ops node_env_ops;
extern const struct peer_events node_peer_events; /* arg is filled in */

/* The wal and store threads. Stopping writes what is still queued. */
void node_workers_start(struct node *node);
void node_workers_stop(struct node *node);

/* Begins a stop; exit_code is that of the process. Safe to call again. */
void node_stop(struct node *node, int exit_code);

/* Tells the service manager, if there is one, which peers are missing. */
void node_report(struct node *node);

uint64_t node_now_us(void);

#endif
