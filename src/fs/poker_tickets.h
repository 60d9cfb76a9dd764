/* The poker's tickets: which changes become one, in which order they may go, what a name meant at
 * the time of each. Pure: no process, no socket, no FUSE request; time and the state come in as
 * arguments and hooks.
 *
 * A ticket passes these states:
 *
 *     waiting -> flying (handed to the poker process, at most TICKET_WINDOW) -> freed
 *        ^---------- the process died ----------|
 *
 * Flying tickets are done one after another, so the oldest of them is the one that the poker's
 * present request is for.
 *
 * Order. Each ticket has a lane for each inode that it touches: its object, its directory, and for
 * a rename the new directory and the replaced inode. Tickets that share a lane keep their order;
 * others may overtake one that has to wait. With /a busy:
 *
 *     waiting:   1 unlink a/x {a,x}   2 create b/y {b,y}   3 rename b/y a/z {b,a,y}   4 create b/w
 * {b,w} may go:    2 only: 1 waits for a, 3 shares a with 1, 4 shares b with 3
 *
 * Names. Requests are answered as things were at the time of the ticket, although the state is
 * further on. What (dir, name) held right after a ticket is what the next ticket about that name
 * found there; without one it is the present state. This is exact because every remote change in a
 * lane that has tickets becomes a ticket too, hot or not. */
#ifndef FS_POKER_TICKETS_H
#define FS_POKER_TICKETS_H

#include <sys/stat.h>

#include "fs/poker.h"

enum {
    TICKET_WINDOW = 32,       /* flying at once */
    TICKET_LOOK_AHEAD = 256,  /* waiting tickets that are considered for overtaking */
    TICKET_BUCKETS = 4096,    /* a power of two */
    TICKET_HOT_US = 10000000, /* asked for so lately: may be watched */
};

enum ticket_lane_role { LANE_OBJECT, LANE_PARENT, LANE_NEW_PARENT, LANE_REPLACED, LANE_ROLES };

struct ticket;

struct ticket_lane {
    struct ticket_lane *next; /* in its bucket */
    uint64_t ino;
    struct fs_node *node; /* one reference */
    struct ticket *last;  /* newest ticket in it, while that is queued */
    uint32_t tickets;     /* references by tickets */
    uint32_t flying;      /* those by flying ones */
    uint64_t held;        /* number of the pass in which an older ticket was held back */
};

/* A name that a ticket changes: in a bucket's list, in order of the tickets. */
struct ticket_name {
    struct ticket_name *older, *newer;
    struct ticket *ticket;
    uint64_t parent; /* inode number; 0: not in use, or the root itself */
    struct keel_slice text;
};

struct ticket {
    struct ticket *older, *newer; /* in the waiting or the flying list */
    uint64_t id;                  /* ascending in the order of changes, never 0 */
    enum keel_change_kind kind;
    bool flying;
    bool created;  /* its CREATE was answered, its content not yet */
    bool answered; /* its last changing request was answered: the kernel raises the events */
    uint64_t size; /* of the object, afterwards */
    struct stat object, replaced; /* as they were when the ticket was made; removed ones as before,
                                     with a link left */
    struct ticket_lane *lanes[LANE_ROLES]; /* NULL: no such role */
    struct ticket_name name, new_name;
    struct keel_slice path,
        new_path; /* of the directories, without a leading slash; names, paths: in `text` */
    char text[];
};

struct ticket_list {
    struct ticket *oldest, *newest;
    size_t count;
};

struct ticket_queue {
    struct fs_nodes *nodes;
    const struct poker_hooks *hooks;
    struct ticket_list waiting, flying;
    struct ticket_lane *lanes[TICKET_BUCKETS];
    struct {
        struct ticket_name *oldest, *newest;
    } names[TICKET_BUCKETS];
    uint64_t last_id, pass;
    unsigned local_renames;    /* local renames between two directories that are not answered yet */
    uint64_t sighted_until_us; /* until then `marked` tells what is watched; later all that the
                                  kernel knows is hot */
    struct poker_stats stats;
};

void ticket_queue_init(struct ticket_queue *q, struct fs_nodes *nodes,
                       const struct poker_hooks *hooks);
void ticket_queue_clear(struct ticket_queue *q);

/* May somebody watch this node? NULL: no. */
bool ticket_node_hot(const struct ticket_queue *q, const struct fs_node *node, uint64_t now_us);

/* Makes a ticket, merges the change into one that waits, or skips it. Cheap for what the kernel
 * doesn't know. */
void ticket_queue_add(struct ticket_queue *q, const struct keel_change *change);

/* The oldest waiting ticket that may go now, or NULL. Drops those that nobody can watch any more.
 */
struct ticket *ticket_queue_next(struct ticket_queue *q);
/* It went. */
void ticket_queue_fly(struct ticket_queue *q, struct ticket *t);
/* The flying rename t failed because a local operation has overtaken one half of it: what is left,
 * a removal or a creation, waits in its place. False: nothing is left of it. */
bool ticket_queue_salvage(struct ticket_queue *q, struct ticket *t);
/* It is done, or given up: out of the queue. */
void ticket_queue_remove(struct ticket_queue *q, struct ticket *t);
/* The process died: what was flying waits again, before all others, less what was answered already.
 */
void ticket_queue_land(struct ticket_queue *q);

static inline struct ticket *ticket_queue_current(const struct ticket_queue *q)
{
    return q->flying.oldest;
}

/* The oldest ticket after t that changes what (dir, name) holds, or NULL. */
struct ticket *ticket_queue_after(const struct ticket_queue *q, const struct ticket *t,
                                  uint64_t dir, struct keel_slice name);
/* What (dir, name) held just before t, which changes it: LANE_OBJECT, LANE_REPLACED, or LANE_ROLES
 * for nothing. */
enum ticket_lane_role ticket_held_before(const struct ticket *t, uint64_t dir,
                                         struct keel_slice name);
/* How an inode looked before the last queued ticket removed or replaced it; NULL: none does. */
const struct stat *ticket_queue_gone(const struct ticket_queue *q, uint64_t ino);
/* Has a local operation changed the ticket's names since? Then it has raised its own events, and
 * the ticket is not to be done. */
bool ticket_overtaken(const struct ticket_queue *q, const struct ticket *t);

static inline bool ticket_name_is(const struct ticket_name *n, uint64_t dir, struct keel_slice name)
{
    return n->parent != 0 && n->parent == dir && keel_slice_equal(n->text, name);
}

static inline struct fs_node *ticket_node(const struct ticket *t, enum ticket_lane_role role)
{
    return t->lanes[role] ? t->lanes[role]->node : NULL;
}

#endif
