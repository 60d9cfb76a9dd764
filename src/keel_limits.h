/* Every maximum in one place: what it bounds, its unit, and what happens beyond it. docs/limits.md
 * tells users the same. Limits that are replicated settings have only their ceiling here. */
#ifndef KEEL_LIMITS_H
#define KEEL_LIMITS_H

enum {
    /* Names and values. */
    KEEL_NAME_MAX = 255,             /* bytes of one path component; ENAMETOOLONG */
    KEEL_PATH_MAX = 4095,            /* bytes of a key; ENAMETOOLONG */
    KEEL_DEPTH_MAX = 2047,           /* components of a key that fits in KEEL_PATH_MAX */
    KEEL_FILE_SIZE_MAX = 1020 << 10, /* ceiling of the file size setting; EFBIG */
    KEEL_SYMLINK_MAX = 4095,         /* bytes of a link's target; ENAMETOOLONG */
    KEEL_TXN_OPS_MAX = 4096,         /* operations in one transaction; EXDEV */

    /* Raft and its log. */
    KEEL_MEMBERS_MAX = 16,            /* voters and learners; refused at bootstrap */
    KEEL_ENTRY_SIZE_MAX = 1280 << 10, /* 1.25 MiB: bytes of one log entry; malformed beyond it */
    KEEL_INFLIGHT_BYTES = 2 << 20,    /* append bytes in flight to one follower; the rest waits */
    KEEL_INFLIGHT_MESSAGES = 256, /* append messages in flight to one follower; the rest waits */
    KEEL_APPEND_BYTES = 1 << 20,  /* entry bytes in one append message (one entry may exceed it) */
    KEEL_TAIL_BYTES =
        16 << 20, /* applied entries kept in memory; older ones are read from the WAL */
    KEEL_TAIL_ENTRIES = 65536,         /* the same, in entries */
    KEEL_UNCOMMITTED_BYTES = 64 << 20, /* on a leader; further proposals wait */
    KEEL_UNAPPLIED_BYTES = 64 << 20,   /* on a follower, in memory; further appends are not taken */
    KEEL_LOG_KEPT_BYTES = 256 << 20, /* of the log, for followers that lag; beyond it a snapshot */

    /* Snapshots on their way to a follower. */
    KEEL_SNAPSHOT_CHUNK_BYTES = 128 << 10, /* read, sent and stored at a time */
    KEEL_SNAPSHOT_CHUNKS = 4,              /* on their way to one follower; the rest waits */

    /* History. */
    KEEL_HISTORY_MS = 3600 * 1000,  /* kept at least so long; a replicated setting's default */
    KEEL_HISTORY_REVISIONS = 10000, /* and at least so many main revisions; the same */
    KEEL_COMPACT_STEP_MAX = 4096,   /* records taken off the books by one command */

    /* The checkpoint into the store. */
    KEEL_CHECKPOINT_BYTES = 4 << 20, /* pending records that start a checkpoint at once */
    KEEL_CHECKPOINT_MS = 200,        /* age of the oldest pending record that starts one */
    KEEL_PENDING_BYTES = 64 << 20,   /* not in the store yet; applying waits beyond it */

    /* Peers. */
    KEEL_FRAME_BYTES = 64 << 10,     /* one frame on the wire; longer messages are cut */
    KEEL_MESSAGE_SIZE_MAX = 3 << 20, /* one message put together; the connection closes beyond it */
    KEEL_PEER_QUEUE_BYTES = 32 << 20, /* unsent to one peer; the connection closes beyond it */

    /* Sessions. */
    KEEL_SESSION_COMMANDS = 4096, /* unacknowledged commands of one node; EAGAIN */
    KEEL_INODE_RANGE = 1 << 20,   /* inode numbers reserved for a node at a time */

    /* Leases. */
    KEEL_LEASES_MAX = 65536,            /* in the cluster; EAGAIN */
    KEEL_LEASES_PER_UID = 4096,         /* EAGAIN */
    KEEL_LEASE_TTL_MIN_S = 1,           /* EINVAL */
    KEEL_LEASE_TTL_MAX_S = 86400 * 365, /* EINVAL */

    /* The mount. */
    KEEL_WALKS_MAX = 4096,       /* remembered path walks; the oldest is dropped */
    KEEL_HANDLES_MAX = 1 << 20,  /* open handles; ENFILE */
    KEEL_VIEW_NODES_MAX = 65536, /* view nodes the kernel may hold; ENFILE */
    KEEL_REQUESTS_MAX = 16384,   /* requests waiting at once; EAGAIN */
    KEEL_STAGED_UID_BYTES =
        16 << 20, /* full buffers held back for one uid; beyond it a write commits */
    KEEL_STAGED_NODE_BYTES = 64 << 20, /* the same for the node */
    KEEL_ORPHAN_BYTES =
        64 << 20, /* content of unlinked files that are written while open; ENOSPC */
    KEEL_TICKETS_MAX =
        65536, /* changes that wait for the poker; beyond it the oldest are dropped */
    KEEL_FILES_MAX = 1048576,   /* what statfs reports as f_files */
    KEEL_LOG_LINES_MAX = 10000, /* lines of a @log view */
};

#endif
