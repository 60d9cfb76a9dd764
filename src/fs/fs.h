/* The mount: a FUSE low-level session on the loop thread, over a replica. Everything a user does
 * through the mount comes in here; nothing here knows raft, peers or the log. docs/semantics.md
 * says what each operation promises.
 *
 * Sources: docs/semantics.md, docs/architecture.md; the FUSE protocol as in <linux/fuse.h>. */
#ifndef FS_FS_H
#define FS_FS_H

#include <uv.h>

#include "replica.h"

struct fs;

struct fs_options {
    const char *mount_point;   /* an absolute path that exists and is a directory */
    const char *source;        /* "keelfs:CLUSTER/NAME", shown in mountinfo */
    const char *mount_options; /* FUSE's own, comma-separated; may be "" */
    const char *name;          /* node name */
    uint64_t cluster_id;
    bool read_local; /* -o read=local: no barriers */
    bool list_xattr; /* -o list_xattr */
    bool poke;       /* raise inotify events for remote changes (default true) */
    uint64_t request_timeout_us;
    uint64_t quota_max; /* more than the store of this node can hold is not to be allowed */
};

/* What only the node knows, for the files of /@keel. */
struct fs_node_info {
    void *arg;
    /* Appends the "name: value" lines of @keel/status that the replica can't tell
     * (db_size …). */
    void (*status)(void *arg, struct keel_text *text);
    bool (*peer_connected)(void *arg, uint64_t peer);
    /* Could this be a member's name, and HOST:PORT? */
    bool (*member_ok)(void *arg, const char *name, const char *address);
    /* A snapshot for a user, one at a time: all that is applied now is in it. fs_snapshot_made
     * tells when it can be read, and fs_snapshot_read what was, in the order in which it was asked
     * for. Dropped at any time, also while it is made: nothing is told of that any more. */
    void (*snapshot_make)(void *arg);
    void (*snapshot_read)(void *arg, uint64_t offset, size_t bytes);
    void (*snapshot_drop)(void *arg);
    /* Begins to give the store's free space back to the file system, unless that is under way
     * already. KEEL_E_BUSY: not while a snapshot is being installed; KEEL_E_DISKFULL: a second
     * store would not fit. */
    int (*defrag)(void *arg);
};

/* Mounts and starts serving on the loop. On an error ret_why says what failed and what to do.
 * replica and loop are borrowed. */
int fs_mount(uv_loop_t *loop, struct replica *replica, const struct fs_options *options,
             const struct fs_node_info *info, struct fs **ret_fs, char *ret_why, size_t why_size);

/* From env: a change has been applied; a lease kept by this mount is lost. */
void fs_changed(struct fs *fs, const struct keel_change *change);
void fs_lease_lost(struct fs *fs, uint64_t lease);
/* From the node: as fs_node_info says. err: there is none, KEEL_E_DISKFULL for lack of room. */
void fs_snapshot_made(struct fs *fs, int err, uint64_t size);
/* bytes: borrowed; NULL: they cannot be read. */
void fs_snapshot_read(struct fs *fs, const struct keel_buf *bytes);
/* The whole state has been replaced, and the differences have been told by fs_changed. */
void fs_reloaded(struct fs *fs);

/* Answers all waiting requests with ETIMEDOUT, ends the poker, unmounts in a child process while
 * the loop goes on serving (lazily when busy), then calls done once from the loop. */
void fs_unmount(struct fs *fs, void (*done)(void *arg), void *arg);

/* The kernel has ended the session (somebody unmounted or aborted it): called once. */
void fs_on_gone(struct fs *fs, void (*gone)(void *arg), void *arg);

/* After done or gone, when the loop has stopped. */
void fs_free(struct fs *fs);

/* How many requests have come in, and how many answers have gone out: cheap. */
void fs_pulse(const struct fs *fs, uint64_t *ret_requests, uint64_t *ret_answers);

struct fs_stats {
    uint64_t requests, waiting, handles, nodes, staged_bytes, tickets_queued, tickets_done,
        tickets_dropped, tickets_skipped;
};
void fs_stats(const struct fs *fs, struct fs_stats *ret_stats);

#endif
