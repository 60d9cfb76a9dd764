/* One change that apply made, as the rest of the node sees it: the mount keeps its nodes in step
 * with it, and the poker turns it into inotify events. Everything is borrowed for the time of the
 * call. */
#ifndef KEEL_CHANGE_H
#define KEEL_CHANGE_H

#include <stdbool.h>
#include <stdint.h>

#include "buf.h"
#include "mvcc/mvcc.h"

enum keel_change_kind {
    CHANGE_CREATE, /* a file; size > 0: with content */
    CHANGE_MKDIR,
    CHANGE_SYMLINK,
    CHANGE_CONTENT, /* written, truncated */
    CHANGE_ATTR,    /* chmod, chown, utimens, xattr, lease attached */
    CHANGE_REMOVE,  /* unlink, lease expiry */
    CHANGE_RMDIR,
    CHANGE_RENAME,
};

struct keel_change {
    enum keel_change_kind kind;
    uint64_t revision;
    uint64_t index;        /* of the log entry */
    uint64_t ino;          /* of the object */
    enum mvcc_kind object; /* what it is */
    uint64_t parent;       /* inode number of its directory (rename: the old one) */
    struct keel_slice name;
    uint64_t new_parent; /* rename only */
    struct keel_slice new_name;
    uint64_t replaced; /* rename: inode that was at the new name; 0: none */
    struct mvcc_record
        before; /* of the object before the change (remove, content); kind 0 when new */
    struct mvcc_record replaced_before; /* of what a rename replaced */
    uint64_t size;                      /* afterwards */
    uint64_t lease;                     /* remove: whose expiry or revocation it was; 0: none */
    bool answered_here; /* a request of this node waits for just this and will be told success */
};

#endif
