/* What the files of the mount share, and nobody else: the mount itself, a deferred request, view
 * nodes. */
#ifndef FS_INTERNAL_H
#define FS_INTERNAL_H

#define FUSE_USE_VERSION 314
#include <fuse_lowlevel.h>
#include <linux/fuse.h>

#include "fs/fs.h"
#include "fs/handle.h"
#include "fs/names.h"
#include "fs/nodes.h"
#include "fs/poker.h"
#include "fs/view.h"
#include "fs/walk.h"
#include "list.h"

enum {
    FS_TURN_REQUESTS = 64,    /* read from the kernel in one loop turn */
    FS_CREATION_US = 1000000, /* a file created here is committed after this time at the latest */
    FS_CREATION_BUCKETS = 1024,
    FS_VIEW_BUCKETS = 1024,
    FS_FD_LOOKS_PER_S =
        2000,               /* looks into /proc/PID/fd; beyond them a close is settled at RELEASE */
    FS_BLOCK_SIZE = 131072, /* st_blksize */
    FS_REQUEST_NODES = 4,
    FS_LOST_FILES = 1024, /* lost here, not yet elsewhere: of older ones watchers may hear twice */
};

#define FS_CONDITIONAL (WORD_IF | WORD_TTL | WORD_LEASE | WORD_HOLD)
#define FS_DIR_ATTR_S 0.05
#define FS_FOREVER_S 1e9

struct fs_request;
typedef void (*fs_step)(struct fs_request *rq, int err, const struct command_result *result);

/* A file that exists only here so far. */
struct fs_creation {
    struct keel_link link;    /* fs->creations, oldest first, until its time has come */
    struct fs_creation *next; /* in its bucket */
    struct fs_node *node;     /* one reference */
    struct fs_handle *handle; /* the one that created it; NULL once that is closed */
    uint64_t parent;          /* inode number */
    uint64_t created_us;
    bool failed; /* a commit failed: only another write tries again */
    uint8_t name_len;
    char name[KEEL_NAME_MAX];
};

/* What a commit has taken out of its handle: back there if it is certain not to happen. */
struct fs_commit {
    struct fs_handle *handle; /* one reference; NULL: no commit under way */
    struct staged staged;
    size_t acked;           /* staged bytes that were answered before */
    struct keel_buf *piece; /* the bytes of a write that go by themselves */
    uint64_t offset;
    bool append;
    bool fresh, binding;
    bool settling; /* nobody's write: a change by another in between is no error */
    enum truncation truncation;
    uint64_t sent_us;
};

/* The life of a request: made -> waits for a barrier, a command … (each time the next step is
 * named) -> answered exactly once -> freed. Internal ones have no caller (req NULL). */
struct fs_request {
    struct replica_call call;
    struct fs *fs;
    fuse_req_t req;
    fs_step step;
    struct keel_link link; /* in fs->waiting, or fs->free_requests */
    bool waiting;
    bool uncommitted;           /* given up before it was in the log: it will never take place */
    bool essential;             /* never refused for load */
    bool counted;               /* its nodes' busy counts have it */
    bool renames_across;        /* between two directories */
    bool continues;             /* goes on with its thread's walk */
    bool ends_walk;             /* ended its thread's walk, and all of that held */
    uint64_t walk_nodeid;       /* where it ends, */
    fs_step walk_step;          /* and what follows then */
    fs_step fenced_step;        /* what follows a fence */
    uint8_t node_count, locked; /* locked: bits of nodes[] whose kernel lock the caller holds */
    struct fs_node *nodes[FS_REQUEST_NODES]; /* one reference each */
    struct fs_handle *handle, *source;       /* one reference each */
    pid_t pid;
    uid_t uid;
    gid_t gid;
    uint64_t barrier_us; /* when its barrier was taken */
    struct fs_commit commit;
    /* the operation's own: */
    char *name, *new_name, *target;
    struct fuse_file_info fi;
    struct stat attr;
    int to_set, flags;
    mode_t mode;
    size_t size;
    uint64_t offset, source_offset, ino;
};

enum fs_view_kind { VIEW_PAST, VIEW_STAT, VIEW_LOG, VIEW_CONDITIONAL, VIEW_KEEL };

struct fs_view {
    struct fs_view *next; /* in its bucket */
    struct fs_node *node;
    enum fs_view_kind kind;
    uint64_t parent_nodeid; /* with its name: what it is found by */
    char *name;
    uint64_t parent;        /* inode number of the directory that the base is in (conditional) */
    struct mvcc_key *key;   /* the key (past, stat, log) */
    uint64_t rev;           /* past */
    struct fs_name words;   /* conditional; base points into name */
    struct stat attr;       /* conditional: the latest; mode 0: none yet */
    enum control_file file; /* keel */
};

/* The snapshot that a user reads: /@keel/snapshot. */
struct fs_snapshot {
    bool taken;                 /* opened, or being opened */
    struct fs_request *opening; /* waits until it is made */
    uint64_t size;              /* once it is */
    struct keel_link reads;     /* requests, in order */
};

struct fs {
    uint64_t answers; /* given in all */
    uv_loop_t *loop;
    struct replica *replica;
    struct mvcc *mvcc;
    struct fs_options options;
    struct fs_node_info info;
    struct fuse_session *session;
    struct fuse_buf buf;
    uint64_t init_unique; /* of the INIT request, while its answer is outstanding */
    uint64_t now_us;      /* of this loop turn: for what needs no better */
    struct poker *poker;
    dev_t dev; /* st_dev of the mount; 0: none */
    uv_poll_t poll;
    uv_timer_t timer;       /* creations, and what waits on lost leases */
    uv_poll_t unmount_poll; /* end of the child that unmounts */
    int unmount_fd;
    pid_t unmount_pid;
    int open_handles; /* libuv's, of ours */
    bool mounted;     /* the session is served */
    bool stopping;    /* nothing waits any more */
    bool lease_lost;  /* requests of its descriptors may still wait */
    bool closing;
    bool ended; /* done or gone was called, or will be */
    void (*done)(void *arg);
    void *done_arg;
    void (*gone)(void *arg);
    void *gone_arg;

    struct fs_nodes *nodes;
    struct fs_walks *walks;
    struct keel_link waiting;
    size_t waiting_count;
    struct keel_link free_requests; /* for the next ones */
    size_t free_count;

    struct keel_link creations;
    struct fs_creation *creation_buckets[FS_CREATION_BUCKETS];
    size_t creation_count;

    struct fs_snapshot snapshot;

    struct fs_view *view_buckets[FS_VIEW_BUCKETS];
    size_t view_count;
    uint64_t next_view;

    struct keel_link handles;     /* all */
    struct keel_link bound;       /* those that keep a lease */
    uint64_t lost[FS_LOST_FILES]; /* inode numbers; see change.c */
    size_t lost_count;
    struct staged_account *accounts;
    size_t staged_bytes, orphan_bytes, handle_count;
    uint64_t fd_looks_second, fd_looks;
    uint64_t requests;
};

static inline struct fs *fs_of(fuse_req_t req)
{
    return fuse_req_userdata(req);
}

static inline bool fs_is_poker(const struct fs *fs, fuse_req_t req)
{
    return fs->poker != NULL && poker_is(fs->poker, fuse_req_ctx(req)->pid);
}

static inline bool fs_is_poker_handle(const struct fuse_file_info *fi)
{
    return fi != NULL && (fi->fh & POKER_HANDLE_BIT) != 0;
}

static inline struct fs_handle *fs_handle_of(const struct fuse_file_info *fi)
{
    return (struct fs_handle *)(uintptr_t)fi->fh;
}

/* ---- request.c ---- */

/* req NULL: an internal one. */
struct fs_request *request_new(struct fs *fs, fuse_req_t req);
/* Uses a node until it is freed; locked: while it waits, the caller holds the inode's lock in the
 * kernel. */
void request_use(struct fs_request *rq, struct fs_node *node, bool locked);
void request_use_handle(struct fs_request *rq, struct fs_handle *h);

/* Each goes to `step`, at once or later; the request may be gone when they return. */
void request_barrier(struct fs_request *rq, fs_step step);
/* A barrier unless the request goes on with its thread's walk at `nodeid`. */
void request_walk(struct fs_request *rq, uint64_t nodeid, fs_step step);
/* Ends the thread's walk at `nodeid`: always a barrier, and the walk's steps are checked under it.
 */
void request_walk_end(struct fs_request *rq, uint64_t nodeid, fs_step step);
void request_ready(struct fs_request *rq, fs_step step); /* inode numbers */
void request_propose(struct fs_request *rq, Keel__Command *command, struct keel_slice body,
                     fs_step step);
/* Behind everything that this node has proposed so far. */
void request_fence(struct fs_request *rq, fs_step step);
/* One change of the configuration; done once it is in force. */
void request_change_members(struct fs_request *rq, const struct keel_member_change *changes,
                            size_t count, fs_step step);
void request_transfer(struct fs_request *rq, uint64_t to, fs_step step); /* 0: to anybody */
void request_change_settings(struct fs_request *rq, const struct apply_settings *changes,
                             fs_step step);
void request_compact(struct fs_request *rq, uint64_t revision, fs_step step);
void request_check(struct fs_request *rq, fs_step step);

/* The answers; each frees the request. */
void request_answer(struct fs_request *rq, int err);
void request_answer_attr(struct fs_request *rq, const struct stat *attr, double timeout_s);
void request_answer_entry(struct fs_request *rq, struct fs_node *node, const struct stat *attr,
                          double entry_timeout_s);
void request_answer_open(struct fs_request *rq, struct fs_handle *h);
void request_answer_create(struct fs_request *rq, struct fs_node *node, const struct stat *attr,
                           struct fs_handle *h);
void request_answer_write(struct fs_request *rq, size_t size);
void request_answer_data(struct fs_request *rq, struct keel_slice bytes);
void request_answer_xattr(struct fs_request *rq, struct keel_slice value, size_t size);
void request_answer_readlink(struct fs_request *rq, struct keel_slice target);
void request_answer_statfs(struct fs_request *rq, const struct statvfs *stat);

/* Answers everything that waits with KEEL_E_TIMEDOUT. */
void fs_requests_stop(struct fs *fs);
/* Answers what waits on descriptors whose lease is lost with KEEL_E_LOST. */
void fs_requests_lost(struct fs *fs);
void fs_requests_free(struct fs *fs);

/* For operations that need no request: the one place beside the above that answers. */
void answer_error(fuse_req_t req, int err);

/* ---- attr.c ---- */

void attr_of_record(const struct mvcc_record *record, struct stat *ret_attr);
/* Attributes of a live key, as of now. */
int attr_of_key(struct fs *fs, const struct mvcc_key *key, struct stat *ret_attr);
/* Of a node, live, created here, or gone but open: without a barrier. KEEL_E_STALE: gone. */
int attr_of_node(struct fs *fs, struct fs_node *node, struct stat *ret_attr);
double attr_timeout(const struct stat *attr);
void fs_statvfs(struct fs *fs, struct statvfs *ret_stat);

/* ---- creation.c: files that exist only here so far ---- */

struct fs_creation *creation_find(struct fs *fs, uint64_t parent, struct keel_slice name);
struct fs_creation *creation_new(struct fs *fs, uint64_t parent, struct keel_slice name,
                                 const struct mvcc_record *record, struct fs_handle *h);
/* It is committed, as this inode. Takes NULL. */
void creation_settled(struct fs *fs, struct fs_creation *creation, uint64_t ino);
/* It never will be: the node lives on, empty, while it is open. */
void creation_drop(struct fs *fs, struct fs_creation *creation);
/* Commits it empty, from inside: what the caller proposes next comes after it. */
void creation_commit(struct fs *fs, struct fs_creation *creation);
/* All of a directory. */
void creation_commit_in(struct fs *fs, uint64_t parent);
void creation_on_timer(uv_timer_t *timer);
/* The timer at once. */
void creation_hurry(struct fs *fs);

/* Puts the names of those in a directory into a packed list (handle_listing.extra); NULL: none. */
struct keel_buf *creation_names(struct fs *fs, uint64_t parent);

/* ---- change.c ---- */

/* The lease of the file behind this node is lost here: watchers see the file go. */
void change_lost(struct fs *fs, const struct fs_node *node, uint64_t lease);
/* Have they been told so, and is it still there for the cluster? */
bool change_is_lost(const struct fs *fs, uint64_t ino);

/* ---- commit.c: from handles to commands ---- */

struct fs_handle *handle_new(struct fs *fs, enum handle_kind kind, struct fs_node *node,
                             struct fs_node *via);
struct fs_handle *handle_ref(struct fs_handle *h);
void handle_unref(struct fs *fs, struct fs_handle *h);

/* The mount is over: leases are kept no more, and later the handles go. */
void handles_let_go(struct fs *fs);
void handles_free(struct fs *fs);

bool commit_is_due(
    const struct fs_handle *h); /* is anything held back that a close or fsync commits? */
size_t commit_staged_of(struct fs *fs, uid_t uid);
/* Holds a write back, if it may. */
bool commit_defer(struct fs *fs, struct fs_handle *h, const struct defer_buffer *buffer,
                  struct keel_slice piece);
/* Proposes a write with all that the handle holds back, as one revision; then `step`, which begins
 * with commit_end. */
void commit_write(struct fs_request *rq, struct fs_handle *h, struct keel_slice piece,
                  uint64_t offset, bool append, fs_step step);
/* What is held back alone; step at once if that is nothing. */
void commit_held(struct fs_request *rq, struct fs_handle *h, fs_step step);
/* What is held back of a file that is gone: it is for this node alone. */
int commit_fold(struct fs *fs, struct fs_handle *h);
/* The same as commit_held from inside, ahead of what the caller proposes next. */
void commit_held_ahead(struct fs *fs, struct fs_handle *h);
/* And what this thread's process holds back of a file, ahead of what it does to it by name (fchmod
 * and futimens come without their descriptor): its order counts, for the times and for suid. */
void commit_held_by(struct fs *fs, const struct fs_node *node, pid_t pid);
/* The handle in which this thread holds something of the file back, or NULL. */
const struct fs_handle *commit_holder(const struct fs *fs, const struct fs_node *node, pid_t pid);
/* The handle's state after the commit; returns what the caller is to be told. */
int commit_end(struct fs_request *rq, int err, const struct command_result *result);
/* ftruncate(fd, 0): the handle begins anew, and its next write replaces. */
void commit_truncate(struct fs *fs, struct fs_handle *h);
/* A lease that was granted or joined by a command proposed at sent_us. */
void handle_keep_lease(struct fs *fs, struct fs_handle *h, uint64_t lease, uint64_t sent_us);
/* The writer was killed: what is held back is dropped. */
void commit_drop(struct fs *fs, struct fs_handle *h);
/* Before the last close, so far as it can be told: what is held back, then the lease. */
bool settle_is_due(const struct fs_handle *h);
void settle(struct fs_request *rq, struct fs_handle *h);
/* The kernel has closed it: settles in the background, and lets go. */
void handle_settle(struct fs *fs, struct fs_handle *h);

/* ---- orphan.c: files that are gone, but open here ---- */

void orphan_make(struct fs *fs, struct fs_node *node, const struct mvcc_record *record);
/* Bytes of the store; a mismatch with their checksum ends the process. */
/* KEEL_E_STALE: it was pinned for longer than history is kept. */
int content_of(struct fs *fs, const struct mvcc_content *content, struct keel_slice *ret_bytes);
int orphan_content(struct fs *fs, struct fs_node *node, struct keel_slice *ret_bytes);
int orphan_write(struct fs *fs, struct fs_node *node, struct keel_slice piece, uint64_t offset,
                 bool append);
int orphan_resize(struct fs *fs, struct fs_node *node, uint64_t size, bool grow_only);
int orphan_zero(struct fs *fs, struct fs_node *node, uint64_t from, uint64_t to);
/* Its last handle is closed. */
void orphan_closed(struct fs *fs, struct fs_node *node);

/* ---- view_node.c ---- */

/* The node of a view name looked up in a live directory. Not found here: KEEL_E_NOTFOUND. */
int view_lookup(struct fs *fs, struct fs_node *parent, const struct fs_name *parsed,
                const char *name, struct fs_node **ret_node);
/* A name looked up in a view directory. */
int view_child(struct fs *fs, struct fs_node *dir, const char *name, struct fs_node **ret_node);
int view_attr(struct fs *fs, struct fs_node *node, struct stat *ret_attr);
int view_text(struct fs *fs, const struct fs_view *view, struct keel_text *text);
uint64_t view_past_ino(uint64_t ino, uint64_t rev);
/* The inode number of the live file behind a conditional view; 0: there is none. */
uint64_t view_base(struct fs *fs, const struct fs_view *view);
/* The node of a conditional name, whether there is a file behind it or not. KEEL_E_MFILE. */
int view_conditional(struct fs *fs, struct fs_node *parent, const struct fs_name *parsed,
                     const char *name, struct fs_node **ret_node);
double view_entry_timeout(const struct fs_node *node);
void view_free(struct fs *fs, struct fs_node *node);
static inline bool node_is_keel(const struct fs_node *node)
{
    return node->view != NULL && node->view->kind == VIEW_KEEL;
}

/* ---- removed.c: a node that is no member any more ---- */

/* Answers what came in with EIO if it asks for more than /@keel, df, or to let go. */
bool removed_refuses(struct fs *fs, const struct fuse_in_header *in);

/* ---- op_*.c: the operations ---- */

struct fs_node *op_node(struct fs *fs, fuse_ino_t ino); /* NULL: unknown */
void op_names(struct fuse_lowlevel_ops *ops);
void op_attributes(struct fuse_lowlevel_ops *ops);
void op_directories(struct fuse_lowlevel_ops *ops);
void op_opening(struct fuse_lowlevel_ops *ops);
void op_content(struct fuse_lowlevel_ops *ops);
void op_closing(struct fuse_lowlevel_ops *ops);
/* A write to a file of /@keel. */
void control_write(fuse_req_t req, struct fs_node *node, struct keel_slice bytes);

/* ---- op_snapshot.c: /@keel/snapshot ---- */

/* After its barrier. */
void snapshot_open(struct fs_request *rq);
void snapshot_read(struct fs_request *rq);
/* Its handle is gone. */
void snapshot_close(struct fs *fs);
/* Answers everything that waits for it with KEEL_E_TIMEDOUT. */
void snapshot_stop(struct fs *fs);

#endif
