/* Tickets: making, ordering, names in the past. Nothing here reaches the process or the kernel. */
#include "fs/poker_tickets.h"

#include <stdlib.h>

#include "check.h"
#include "hash.h"

static size_t lane_bucket(uint64_t ino)
{
    return (size_t)(ino * UINT64_C(0x9e3779b97f4a7c15) >> 32) & (TICKET_BUCKETS - 1);
}

static size_t name_bucket(uint64_t dir, struct keel_slice name)
{
    return (size_t)keel_hash64_seed(name, dir) & (TICKET_BUCKETS - 1);
}

void ticket_queue_init(struct ticket_queue *q, struct fs_nodes *nodes,
                       const struct poker_hooks *hooks)
{
    *q = (struct ticket_queue){ .nodes = nodes, .hooks = hooks };
}

/* ---- lanes ---- */

static struct ticket_lane *lane_find(const struct ticket_queue *q, uint64_t ino)
{
    struct ticket_lane *lane = q->lanes[lane_bucket(ino)];

    while (lane && lane->ino != ino)
        lane = lane->next;
    return lane;
}

static struct ticket_lane *lane_hold(struct ticket_queue *q, uint64_t ino)
{
    struct ticket_lane *lane = lane_find(q, ino);

    if (!lane) {
        struct ticket_lane **bucket = &q->lanes[lane_bucket(ino)];
        struct fs_node *node = fs_node_by_ino(q->nodes, ino);

        lane = keel_calloc(1, sizeof *lane);
        lane->ino = ino;
        lane->node = node ? node : fs_node_get(q->nodes, ino);
        fs_node_ref(lane->node);
        lane->next = *bucket;
        *bucket = lane;
    }
    lane->tickets++;
    return lane;
}

static void lane_drop(struct ticket_queue *q, struct ticket_lane *lane)
{
    struct ticket_lane **link = &q->lanes[lane_bucket(lane->ino)];

    KEEL_ASSERT(lane->tickets > 0);
    if (--lane->tickets > 0)
        return;
    while (*link != lane)
        link = &(*link)->next;
    *link = lane->next;
    fs_node_unref(q->nodes, lane->node);
    free(lane);
}

/* ---- names ---- */

/* In the order of the tickets: nearly always the newest. */
static void name_link(struct ticket_queue *q, struct ticket_name *n)
{
    size_t bucket = name_bucket(n->parent, n->text);
    struct ticket_name *older = q->names[bucket].newest;

    while (older && older->ticket->id > n->ticket->id)
        older = older->older;
    n->older = older;
    n->newer = older ? older->newer : q->names[bucket].oldest;
    if (older)
        older->newer = n;
    else
        q->names[bucket].oldest = n;
    if (n->newer)
        n->newer->older = n;
    else
        q->names[bucket].newest = n;
}

static void name_unlink(struct ticket_queue *q, struct ticket_name *n)
{
    size_t bucket = name_bucket(n->parent, n->text);

    if (n->older)
        n->older->newer = n->newer;
    else
        q->names[bucket].oldest = n->newer;
    if (n->newer)
        n->newer->older = n->older;
    else
        q->names[bucket].newest = n->older;
}

/* Content and attributes leave their name alone. */
static bool changes_names(const struct ticket *t)
{
    return t->kind != CHANGE_CONTENT && t->kind != CHANGE_ATTR;
}

struct ticket *ticket_queue_after(const struct ticket_queue *q, const struct ticket *t,
                                  uint64_t dir, struct keel_slice name)
{
    const struct ticket_name *n = q->names[name_bucket(dir, name)].oldest;

    while (n && !(n->ticket->id > t->id && ticket_name_is(n, dir, name)))
        n = n->newer;
    return n ? n->ticket : NULL;
}

enum ticket_lane_role ticket_held_before(const struct ticket *t, uint64_t dir,
                                         struct keel_slice name)
{
    if (t->kind == CHANGE_CREATE || t->kind == CHANGE_MKDIR || t->kind == CHANGE_SYMLINK)
        return LANE_ROLES;
    if (ticket_name_is(&t->name, dir, name))
        return LANE_OBJECT;
    return t->lanes[LANE_REPLACED] ? LANE_REPLACED : LANE_ROLES;
}

/* What (dir, name) holds after all tickets that are newer than t; `ino` when there are none. */
static uint64_t held_in_the_end(const struct ticket_queue *q, const struct ticket *t, uint64_t dir,
                                struct keel_slice name, uint64_t ino)
{
    const struct ticket_name *n = q->names[name_bucket(dir, name)].newest;

    while (n && n->ticket->id > t->id && !ticket_name_is(n, dir, name))
        n = n->older;
    if (!n || n->ticket->id <= t->id)
        return ino;
    bool leaves = n->ticket->kind == CHANGE_REMOVE || n->ticket->kind == CHANGE_RMDIR ||
                  (n->ticket->kind == CHANGE_RENAME && n == &n->ticket->name);

    return leaves ? 0 : n->ticket->lanes[LANE_OBJECT]->ino;
}

/* Is what t left at its name, `ino`, all right to raise? Yes if it and the tickets after it about
 * that name end in the present state. Otherwise a local operation came in between or afterwards,
 * its events have been raised already, and they are the last word about this name: nothing may be
 * raised after them. The root has no name. */
static bool still_holds(const struct ticket_queue *q, const struct ticket *t,
                        const struct ticket_name *n, uint64_t ino)
{
    return n->parent == 0 || q->hooks->child(q->hooks->arg, n->parent, n->text) ==
                                 held_in_the_end(q, t, n->parent, n->text, ino);
}

bool ticket_overtaken(const struct ticket_queue *q, const struct ticket *t)
{
    bool gone = t->kind == CHANGE_REMOVE || t->kind == CHANGE_RMDIR || t->kind == CHANGE_RENAME;
    uint64_t ino = t->lanes[LANE_OBJECT]->ino;

    if (!still_holds(q, t, &t->name, gone ? 0 : ino))
        return true;
    return t->kind == CHANGE_RENAME && !still_holds(q, t, &t->new_name, ino);
}

/* Nothing follows in the lane of an inode that is gone. */
const struct stat *ticket_queue_gone(const struct ticket_queue *q, uint64_t ino)
{
    const struct ticket_lane *lane = lane_find(q, ino);
    const struct ticket *t = lane ? lane->last : NULL;

    if (t && t->kind == CHANGE_RENAME && t->lanes[LANE_REPLACED] == lane)
        return &t->replaced;
    if (t && t->lanes[LANE_OBJECT] == lane && (t->kind == CHANGE_REMOVE || t->kind == CHANGE_RMDIR))
        return &t->object;
    return NULL;
}

/* ---- lists ---- */

static void list_append(struct ticket_list *list, struct ticket *t)
{
    t->newer = NULL;
    t->older = list->newest;
    if (list->newest)
        list->newest->newer = t;
    else
        list->oldest = t;
    list->newest = t;
    list->count++;
}

static void list_prepend(struct ticket_list *list, struct ticket *t)
{
    t->older = NULL;
    t->newer = list->oldest;
    if (list->oldest)
        list->oldest->older = t;
    else
        list->newest = t;
    list->oldest = t;
    list->count++;
}

static void list_remove(struct ticket_list *list, struct ticket *t)
{
    KEEL_ASSERT(list->count > 0);
    if (t->older)
        t->older->newer = t->newer;
    else
        list->oldest = t->newer;
    if (t->newer)
        t->newer->older = t->older;
    else
        list->newest = t->older;
    list->count--;
}

/* ---- making ---- */

bool ticket_node_hot(const struct ticket_queue *q, const struct fs_node *node, uint64_t now_us)
{
    if (!node)
        return false;
    if (node->handles > 0 || node->marked)
        return true;
    if (now_us >= q->sighted_until_us && node->lookups > 0)
        return true;
    return node->asked_us != 0 && now_us < node->asked_us + TICKET_HOT_US;
}

static bool ino_hot(const struct ticket_queue *q, uint64_t ino, uint64_t now_us)
{
    if (ino == 0)
        return false;
    if (q->waiting.count + q->flying.count > 0 && lane_find(q, ino))
        return true;
    return ticket_node_hot(q, fs_node_by_ino(q->nodes, ino), now_us);
}

static bool change_hot(const struct ticket_queue *q, const struct keel_change *change)
{
    uint64_t now_us = q->hooks->now_us(q->hooks->arg);
    bool rename = change->kind == CHANGE_RENAME;

    return ino_hot(q, change->parent, now_us) || ino_hot(q, change->ino, now_us) ||
           ino_hot(q, rename ? change->new_parent : 0, now_us) ||
           ino_hot(q, rename ? change->replaced : 0, now_us);
}

static mode_t mode_of(enum mvcc_kind kind)
{
    switch (kind) {
    case MVCC_DIR:
        return S_IFDIR | 0755;
    case MVCC_SYMLINK:
        return S_IFLNK | 0777;
    case MVCC_FILE:
        break;
    }
    return S_IFREG | 0644;
}

static struct timespec time_of(int64_t ns)
{
    return (struct timespec){ ns / 1000000000, ns % 1000000000 };
}

/* How an inode looked before a change; one link is left, for the kernel to take away when it sees
 * the removal. */
static void stat_before(uint64_t ino, enum mvcc_kind kind, const struct mvcc_record *record,
                        struct stat *ret_stat)
{
    *ret_stat = (struct stat){ .st_ino = ino, .st_mode = mode_of(kind), .st_blksize = 131072 };
    ret_stat->st_nlink = kind == MVCC_DIR ? 2 : 1;
    if (record->kind == 0)
        return;
    ret_stat->st_mode = (mode_of(record->kind) & S_IFMT) | (record->mode & 07777U);
    ret_stat->st_uid = record->uid;
    ret_stat->st_gid = record->gid;
    ret_stat->st_size = record->content.length;
    ret_stat->st_blocks = (record->content.length + 511) / 512;
    ret_stat->st_atim = time_of(record->atime_ns);
    ret_stat->st_mtim = time_of(record->mtime_ns);
    ret_stat->st_ctim = time_of(record->ctime_ns);
}

static void ticket_stats(const struct ticket_queue *q, struct ticket *t,
                         const struct keel_change *change)
{
    bool gone = change->kind == CHANGE_REMOVE || change->kind == CHANGE_RMDIR;
    struct fs_node *node = ticket_node(t, LANE_OBJECT);

    stat_before(change->ino, change->object, &change->before, &t->object);
    t->object.st_ino = node->ino;
    if (!gone)
        q->hooks->attributes(q->hooks->arg, node, &t->object);
    if (change->kind == CHANGE_RENAME && change->replaced)
        stat_before(change->replaced, change->object, &change->replaced_before, &t->replaced);
}

static struct keel_slice text_put(struct ticket *t, size_t *at, struct keel_slice bytes)
{
    struct keel_slice copy = keel_slice_of(bytes.data ? t->text + *at : NULL, bytes.len);

    if (bytes.len > 0)
        memcpy(t->text + *at, bytes.data, bytes.len);
    *at += bytes.len;
    return copy;
}

/* The directory's path as it is now; no data: it has none any more. */
static struct keel_slice path_of(const struct ticket_queue *q, uint64_t ino, struct keel_text *text)
{
    keel_text_append(text, keel_slice_of(NULL, 0));
    if (!q->hooks->path(q->hooks->arg, ino, text) || text->len > KEEL_PATH_MAX)
        return keel_slice_of(NULL, 0);
    return keel_slice_of(text->data, text->len);
}

/* A new file that the kernel knows already was created here: by an open whose commit nobody was
 * told of, or at the same time as elsewhere. Its creation has been seen. */
static bool created_here(const struct ticket_queue *q, const struct keel_change *change)
{
    if (change->kind != CHANGE_CREATE)
        return false;
    const struct fs_node *node = fs_node_by_ino(q->nodes, change->ino);

    return node && (node->lookups > 0 || node->handles > 0 || node->nodeid != node->ino);
}

static struct ticket *ticket_new(struct ticket_queue *q, const struct keel_change *change)
{
    struct keel_text text = { 0 }, new_text = { 0 };
    bool rename = change->kind == CHANGE_RENAME;
    struct keel_slice path = path_of(q, change->parent, &text);
    struct keel_slice new_path = path;
    struct keel_slice new_name = rename ? change->new_name : keel_slice_of(NULL, 0);
    size_t at = 0;

    if (rename && change->new_parent != change->parent)
        new_path = path_of(q, change->new_parent, &new_text);
    struct ticket *t =
        keel_calloc(1, sizeof *t + path.len + new_path.len + change->name.len + new_name.len);

    t->id = ++q->last_id;
    t->kind = change->kind;
    t->size = change->size;
    t->path = text_put(t, &at, path);
    t->name = (struct ticket_name){ .ticket = t, .parent = change->name.len ? change->parent : 0 };
    t->name.text = text_put(t, &at, change->name);
    t->new_path = text_put(t, &at, new_path);
    t->new_name = (struct ticket_name){ .ticket = t, .parent = rename ? change->new_parent : 0 };
    t->new_name.text = text_put(t, &at, new_name);
    keel_text_free(&text);
    keel_text_free(&new_text);
    return t;
}

static void ticket_enter_lanes(struct ticket_queue *q, struct ticket *t,
                               const struct keel_change *change)
{
    t->lanes[LANE_OBJECT] = lane_hold(q, change->ino);
    if (t->name.parent)
        t->lanes[LANE_PARENT] = lane_hold(q, change->parent);
    if (change->kind == CHANGE_RENAME) {
        t->lanes[LANE_NEW_PARENT] = lane_hold(q, change->new_parent);
        if (change->replaced)
            t->lanes[LANE_REPLACED] = lane_hold(q, change->replaced);
    }
    for (int role = 0; role < LANE_ROLES; role++)
        if (t->lanes[role])
            t->lanes[role]->last = t;
}

/* A content ticket that waits stands for the new content too, if nothing else has happened to that
 * inode since. */
static bool merge(struct ticket_queue *q, const struct keel_change *change)
{
    struct ticket_lane *lane = change->kind == CHANGE_CONTENT ? lane_find(q, change->ino) : NULL;
    struct ticket *t = lane ? lane->last : NULL;

    if (!t || t->flying || t->kind != CHANGE_CONTENT || t->lanes[LANE_OBJECT] != lane)
        return false;
    t->size = change->size;
    return true;
}

/* Only the root's attributes change without a name. */
static bool well_formed(const struct keel_change *change)
{
    size_t shortest = change->kind == CHANGE_ATTR && change->ino == MVCC_ROOT_INO ? 0 : 1;

    if (change->name.len < shortest || change->name.len > KEEL_NAME_MAX)
        return false;
    return change->kind != CHANGE_RENAME ||
           (change->new_name.len > 0 && change->new_name.len <= KEEL_NAME_MAX);
}

static void add(struct ticket_queue *q, const struct keel_change *change)
{
    if (merge(q, change))
        return;
    while (q->waiting.count + q->flying.count >= KEEL_TICKETS_MAX && q->waiting.oldest) {
        q->stats.dropped++;
        ticket_queue_remove(q, q->waiting.oldest);
    }
    struct ticket *t = ticket_new(q, change);

    ticket_enter_lanes(q, t, change);
    ticket_stats(q, t, change);
    if (changes_names(t)) {
        name_link(q, &t->name);
        if (t->new_name.parent)
            name_link(q, &t->new_name);
    }
    list_append(&q->waiting, t);
}

void ticket_queue_add(struct ticket_queue *q, const struct keel_change *change)
{
    bool seen = created_here(q, change);

    if (!change_hot(q, change) || !well_formed(change) || (seen && change->size == 0)) {
        q->stats.skipped++;
        return;
    }
    struct keel_change raised = *change;

    if (seen)
        raised.kind = CHANGE_CONTENT;
    add(q, &raised);
}

/* ---- going ---- */

static bool ticket_hot(const struct ticket_queue *q, const struct ticket *t, uint64_t now_us)
{
    for (int role = 0; role < LANE_ROLES; role++)
        if (ticket_node_hot(q, ticket_node(t, (enum ticket_lane_role)role), now_us))
            return true;
    return false;
}

/* An older one of its lanes is held back, or a local request has the lock that the kernel would
 * take. */
static bool ticket_held(const struct ticket_queue *q, const struct ticket *t)
{
    bool moves_across =
        t->kind == CHANGE_RENAME && t->lanes[LANE_PARENT] != t->lanes[LANE_NEW_PARENT];

    if (moves_across && q->local_renames > 0)
        return true;
    for (int role = 0; role < LANE_ROLES; role++)
        if (t->lanes[role] && (t->lanes[role]->held == q->pass || t->lanes[role]->node->busy > 0))
            return true;
    return false;
}

static bool ticket_follows_flying(const struct ticket *t)
{
    for (int role = 0; role < LANE_ROLES; role++)
        if (t->lanes[role] && t->lanes[role]->flying > 0)
            return true;
    return false;
}

static void ticket_hold(const struct ticket_queue *q, struct ticket *t)
{
    for (int role = 0; role < LANE_ROLES; role++)
        if (t->lanes[role])
            t->lanes[role]->held = q->pass;
}

/* A ticket that nobody can watch any more goes when none before it needs it to know what its name
 * held. */
struct ticket *ticket_queue_next(struct ticket_queue *q)
{
    uint64_t now_us = q->hooks->now_us(q->hooks->arg);
    struct ticket *t = q->waiting.oldest, *newer = NULL;

    q->pass++;
    for (unsigned looked = 0; t && looked < TICKET_LOOK_AHEAD; t = newer) {
        bool held = ticket_held(q, t);
        bool hot = ticket_hot(q, t, now_us);

        newer = t->newer;
        if (!held && hot)
            return t;
        if (held || ticket_follows_flying(t)) {
            ticket_hold(q, t);
            looked++;
            continue;
        }
        q->stats.skipped++;
        ticket_queue_remove(q, t);
    }
    return NULL;
}

void ticket_queue_fly(struct ticket_queue *q, struct ticket *t)
{
    KEEL_ASSERT(!t->flying && q->flying.count < TICKET_WINDOW);
    list_remove(&q->waiting, t);
    list_append(&q->flying, t);
    t->flying = true;
    for (int role = 0; role < LANE_ROLES; role++)
        if (t->lanes[role])
            t->lanes[role]->flying++;
}

static void ticket_fly_no_more(struct ticket_queue *q, struct ticket *t)
{
    list_remove(&q->flying, t);
    t->flying = false;
    for (int role = 0; role < LANE_ROLES; role++)
        if (t->lanes[role])
            t->lanes[role]->flying--;
}

static void ticket_forget_names(struct ticket_queue *q, struct ticket *t)
{
    if (!changes_names(t))
        return;
    name_unlink(q, &t->name);
    if (t->new_name.parent)
        name_unlink(q, &t->new_name);
}

/* The old name is gone, as the rename said. The inode may be alive elsewhere: then it has a link
 * left after this removal. */
static void keep_departure(struct ticket_queue *q, struct ticket *t)
{
    struct stat now;
    bool alive =
        q->hooks->attributes(q->hooks->arg, ticket_node(t, LANE_OBJECT), &now) && now.st_nlink > 0;

    t->kind = CHANGE_REMOVE;
    t->object.st_nlink = alive ? 2 : 1;
}

static void keep_arrival(struct ticket *t)
{
    struct ticket_lane *old_parent = t->lanes[LANE_PARENT];

    t->kind = S_ISLNK(t->object.st_mode) ? CHANGE_SYMLINK : CHANGE_CREATE;
    t->size = 0;
    t->lanes[LANE_PARENT] = t->lanes[LANE_NEW_PARENT];
    t->lanes[LANE_NEW_PARENT] = old_parent;
    t->name = t->new_name;
    t->path = t->new_path;
}

bool ticket_queue_salvage(struct ticket_queue *q, struct ticket *t)
{
    if (t->kind != CHANGE_RENAME || t->answered)
        return false;
    bool departed = still_holds(q, t, &t->name, 0);
    bool arrived = still_holds(q, t, &t->new_name, t->lanes[LANE_OBJECT]->ino);

    if (departed == arrived)
        return false;
    ticket_fly_no_more(q, t);
    ticket_forget_names(q, t);
    if (departed)
        keep_departure(q, t);
    else
        keep_arrival(t);
    t->new_name.parent = 0;
    name_link(q, &t->name);
    list_prepend(&q->waiting, t);
    return true;
}

void ticket_queue_remove(struct ticket_queue *q, struct ticket *t)
{
    if (t->flying)
        ticket_fly_no_more(q, t);
    else
        list_remove(&q->waiting, t);
    ticket_forget_names(q, t);
    for (int role = 0; role < LANE_ROLES; role++) {
        if (!t->lanes[role])
            continue;
        if (t->lanes[role]->last == t)
            t->lanes[role]->last = NULL;
        lane_drop(q, t->lanes[role]);
    }
    free(t);
}

void ticket_queue_land(struct ticket_queue *q)
{
    struct ticket *t;

    while ((t = q->flying.newest)) {
        if (t->answered) {
            q->stats.done++;
            ticket_queue_remove(q, t);
            continue;
        }
        ticket_fly_no_more(q, t);
        list_prepend(&q->waiting, t);
        if (t->created) {
            ticket_forget_names(q, t);
            t->kind = CHANGE_CONTENT;
            t->created = false;
        }
    }
}

void ticket_queue_clear(struct ticket_queue *q)
{
    while (q->flying.oldest)
        ticket_queue_remove(q, q->flying.oldest);
    while (q->waiting.oldest)
        ticket_queue_remove(q, q->waiting.oldest);
}
