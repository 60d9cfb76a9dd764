/* What the kernel knows of this mount: one node for each nodeid that it holds a lookup count, an
 * open handle or a request on.
 *
 * nodeid: a live inode's number is its nodeid (root 1); numbers are never reused, so the generation
 * is always 0. View nodes (@rev, @stat, @keel …) have bit 63 set. A node that was created here
 * before its commit, and turned out to adopt a file that another node had created, keeps its nodeid
 * and has another `ino`. */
#ifndef FS_NODES_H
#define FS_NODES_H

#include <stdbool.h>
#include <stdint.h>

#include "mvcc/mvcc.h"

#define FS_VIEW_BIT ((uint64_t)1 << 63)

struct fs_nodes;
struct fs_view;
struct fs_creation;

struct fs_node {
    uint64_t nodeid;
    uint64_t ino;      /* in the keyspace; differs from nodeid only after an adoption */
    uint64_t lookups;  /* the kernel's count, from all callers */
    uint64_t asked_us; /* last LOOKUP, GETATTR … by anyone but the poker; 0: never */
    uint32_t handles;  /* open handles */
    uint32_t busy;     /* deferred requests during which the kernel holds this inode's lock */
    bool marked;       /* an inotify or fanotify mark was seen on it at the last scan */
    bool orphan;       /* its key is gone, but the kernel knows it still */
    bool provisional;  /* created here, not committed yet */
    struct mvcc_record *record;   /* orphan: as it was when it went (xattrs slice empty);
                                     provisional: as it is to be; else NULL */
    struct keel_buf *orphan_data; /* its content once it was written here; NULL: as in the record */
    struct fs_creation *creation; /* provisional: where, and for which handle */
    struct fs_view *view;         /* not NULL: a view node */
    uint32_t refs;                /* requests and tickets that hold the node in the table */
    struct fs_node *next, *next_adopted; /* private: in the table's buckets */
};

struct fs_nodes *fs_nodes_new(void);
struct fs_nodes *fs_nodes_free(struct fs_nodes *nodes);
/* Called with each node right before it goes, to free what others have hung on it. */
void fs_nodes_on_drop(struct fs_nodes *nodes, void (*fn)(void *arg, struct fs_node *node),
                      void *arg);

struct fs_node *fs_node_find(struct fs_nodes *nodes,
                             uint64_t nodeid); /* NULL: unknown to the kernel and to us */
struct fs_node *fs_node_by_ino(struct fs_nodes *nodes,
                               uint64_t ino); /* the node whose `ino` it is; adoption considered */
struct fs_node *fs_node_get(struct fs_nodes *nodes,
                            uint64_t nodeid); /* finds or makes it, ino = nodeid */
void fs_node_adopt(struct fs_nodes *nodes, struct fs_node *node, uint64_t ino);

/* Gives it a record of its own (copied; another one goes), or takes it away (NULL). */
void fs_node_set_record(struct fs_node *node, const struct mvcc_record *record);

/* Lookup counts; forget drops n, and the node when nothing holds it. Underflow is a bug (asserted).
 */
void fs_node_looked_up(struct fs_node *node);
void fs_node_forget(struct fs_nodes *nodes, struct fs_node *node, uint64_t n);

/* An open handle more, or less; closing drops the node when nothing else holds it. */
void fs_node_opened(struct fs_node *node);
void fs_node_closed(struct fs_nodes *nodes, struct fs_node *node);

/* Keeps a node in the table; unref drops it when nothing holds it. */
void fs_node_ref(struct fs_node *node);
void fs_node_unref(struct fs_nodes *nodes, struct fs_node *node);

size_t fs_nodes_count(const struct fs_nodes *nodes);
void fs_nodes_each(struct fs_nodes *nodes, void (*fn)(void *arg, struct fs_node *node), void *arg);

#endif
