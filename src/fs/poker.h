/* The poker: remote changes as natural inotify events.
 *
 * A separate process (keelfs re-executed as "keelfs --poker", with one SOCK_SEQPACKET socket and
 * nothing else) repeats each change as an ordinary system call on this mount; the daemon answers
 * those calls from the ticket, not from the state, and never proposes anything for them. The kernel
 * raises the events a local change would have raised. docs/poker.md has the mechanism, the hazards
 * and the safety rules:
 *
 * - a ticket for every applied change, except one that a request of this mount waits for and is
 * told of;
 * - only what may be watched is poked: parent, target or replaced target open, asked for in the
 * last 10 s by anyone but the poker, or marked in the scan of /proc/PID/fdinfo every 5 s;
 * - a ticket waits while a local request on its directories or inode is deferred (fs_node.busy),
 * and goes when that is answered; nothing ever waits for a ticket;
 * - waiting content tickets of one inode are one;
 * - path steps with openat2(RESOLVE_NO_XDEV | NO_SYMLINKS | NO_MAGICLINKS), st_dev checked before
 * any change;
 * - it is also the guardian: with a pidfd of the daemon it aborts the connection when the daemon is
 * gone or a zombie.
 */
#ifndef FS_POKER_H
#define FS_POKER_H

#define FUSE_USE_VERSION 314
#include <fuse_lowlevel.h>
#include <uv.h>

#include "change.h"
#include "fs/nodes.h"

struct poker;

struct poker_hooks {
    void *arg;
    /* Fills in the present attributes of a node as the kernel may see them (no barrier). False:
     * gone. */
    bool (*attributes)(void *arg, struct fs_node *node, struct stat *ret_stat);
    /* The path of a live inode, without a leading slash. False: gone. */
    bool (*path)(void *arg, uint64_t ino, struct keel_text *text);
    /* The inode that is now at (parent, name), one created here and not committed yet included, or
     * 0. */
    uint64_t (*child)(void *arg, uint64_t parent, struct keel_slice name);
    uint64_t (*now_us)(void *arg);
};

struct poker_stats {
    uint64_t queued, done, dropped, skipped, restarts;
};

/* Starts the process. dev: st_dev of the mount, whose minor number is also that of the connection
 * below /sys/fs/fuse/connections. nodes is borrowed. KEEL_E_IO: it can't be started (nothing to
 * close then). */
int poker_new(uv_loop_t *loop, const char *mount_point, dev_t dev, struct fs_nodes *nodes,
              const struct poker_hooks *hooks, struct poker **ret_poker);

/* Ends the process (closing its socket); done once from the loop, the poker is freed then. */
void poker_close(struct poker *p, void (*done)(void *arg), void *arg);

/* A change: makes a ticket, or skips it. Copies what it needs. */
void poker_change(struct poker *p, const struct keel_change *change);

/* A node's `busy` has dropped to 0: tickets that waited for it may go. */
void poker_idle(struct poker *p, struct fs_node *node);

/* A local rename between two directories is deferred, or has been answered: the kernel lets only
 * one of them happen at a time. */
void poker_local_rename(struct poker *p, bool deferred);

/* Is this the poker's thread id? fs asks at the top of every operation, and hands it over if so: */
bool poker_is(const struct poker *p, pid_t pid);

void poker_op_lookup(struct poker *p, fuse_req_t req, fuse_ino_t parent, const char *name);
void poker_op_getattr(struct poker *p, fuse_req_t req, fuse_ino_t ino);
void poker_op_setattr(struct poker *p, fuse_req_t req, fuse_ino_t ino, struct stat *attr,
                      int to_set);
void poker_op_open(struct poker *p, fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void poker_op_create(struct poker *p, fuse_req_t req, fuse_ino_t parent, const char *name,
                     mode_t mode, struct fuse_file_info *fi);
void poker_op_mkdir(struct poker *p, fuse_req_t req, fuse_ino_t parent, const char *name,
                    mode_t mode);
void poker_op_symlink(struct poker *p, fuse_req_t req, const char *target, fuse_ino_t parent,
                      const char *name);
void poker_op_unlink(struct poker *p, fuse_req_t req, fuse_ino_t parent, const char *name);
void poker_op_rmdir(struct poker *p, fuse_req_t req, fuse_ino_t parent, const char *name);
void poker_op_rename(struct poker *p, fuse_req_t req, fuse_ino_t parent, const char *name,
                     fuse_ino_t new_parent, const char *new_name, unsigned int flags);
void poker_op_setxattr(struct poker *p, fuse_req_t req, fuse_ino_t ino, const char *name);
void poker_op_other(struct poker *p, fuse_req_t req); /* anything else: EPERM */

/* FLUSH and RELEASE carry no pid that can be trusted: handles that poker_op_open and create gave
 * out have this bit in fi->fh. */
#define POKER_HANDLE_BIT ((uint64_t)1 << 63)
void poker_op_release(struct poker *p, fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);

void poker_stats(const struct poker *p, struct poker_stats *ret_stats);

/* main() of the poker process: argv after "--poker". Returns its exit code. */
int poker_main(int argc, char **argv);

#endif
