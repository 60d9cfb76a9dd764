/* A daemon for the poker's tests: a small tree in memory behind a real FUSE mount, in a process of
 * its own. "Remote" changes are commands; local operations come through the mount and are answered
 * at once. */
#ifndef TREE_H
#define TREE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

enum tree_command {
    TREE_CREATE, /* a file of `size` bytes at path */
    TREE_MKDIR,
    TREE_SYMLINK,
    TREE_CONTENT, /* new size */
    TREE_ATTR,
    TREE_REMOVE,
    TREE_RMDIR,
    TREE_RENAME, /* path to path2 */
    TREE_BUSY,   /* as if a local request on the node at path were deferred */
    TREE_IDLE,   /* that one is answered */
    TREE_POSE,   /* requests of the process `size` are taken for the poker's */
    TREE_HOARD,  /* starts a process that keeps the daemon's descriptors */
    TREE_STATS,
    TREE_CLOSE_POKER,
    TREE_QUIT,
};

struct tree_order {
    enum tree_command command;
    uint64_t size;
    char path[64], path2[64];
};

struct tree_reply {
    bool ok;
    pid_t poker, hoarder;
    bool sighted; /* a scan has told what is watched */
    uint64_t queued, done, dropped, skipped, restarts, nodes, lookups;
};

/* Serves the mount until told to quit; the calling process is the daemon. */
_Noreturn void tree_serve(const char *mount_point, int socket);

#endif
