/* Another state in the place of this one, and how the live tree differs by it, told as changes that
 * could have been made one after the other.
 *
 * Objects are known by their inode numbers, names by their keys, which keep their addresses. For
 * an order in which each change is possible there are phases:
 *
 *   files that are gone                  but for those that a rename replaces
 *   renames within what was there        one that waits for another comes after it; of a circle,
 *                                        and of what is in the way of all this, one is parked
 *   directories that are gone            deepest first; whoever moves out has left, or is parked
 *   new directories                      from the top
 *   renames into them                    or to the name of a directory that is gone
 *   new files, then contents, attributes
 *
 * To be parked is to be renamed to a name of its own in the root, and from there later. */
#include <stdio.h>
#include <stdlib.h>

#include "apply_internal.h"
#include "check.h"
#include "err.h"

enum fate { STAYS, MOVES, GONE };

/* What was live before. */
struct object {
    struct mvcc_key *key;   /* where it was */
    struct mvcc_key *to;    /* where it is now; NULL when it is gone */
    struct object *waiting; /* for the place of this one */
    uint64_t ino, parent;
    struct mvcc_revision revision;
    uint32_t length; /* of its content */
    uint64_t hash;
    uint64_t lease;
    int64_t mtime_ns, ctime_ns;
    uint32_t uid, gid;
    uint16_t mode;
    uint8_t kind;
    uint8_t fate;
    bool left;       /* its place is free */
    bool arrived;    /* it moves, and has */
    uint64_t parked; /* number of its name in the root; 0: it is not there */
};

struct reload {
    struct mvcc *m;
    void (*changed)(void *arg, const struct keel_change *change);
    void *arg;
    struct object *objects; /* directories in front of what is in them */
    size_t count, capacity;
    struct object **by_ino, **by_key;
    uint64_t parked; /* last number given */
};

enum { PARKED_NAME = 48 };

/* In front of what is in it; NULL behind the last one. */
static struct mvcc_key *next_live(struct mvcc *m, struct mvcc_key *key)
{
    struct mvcc_key *next = NULL, *parent;

    if (mvcc_live_kind(key) == MVCC_DIR)
        next = mvcc_next_child(m, key, 0, keel_slice_of(NULL, 0));
    for (; next == NULL && (parent = mvcc_parent(key)) != NULL; key = parent)
        next = mvcc_next_child(m, parent, 0, mvcc_name(key));
    return next;
}

static struct mvcc_record record_of(struct mvcc *m, const struct mvcc_key *key)
{
    struct mvcc_record record;
    int err = mvcc_get(m, key, 0, &record);

    if (err != 0)
        keel_fatal("the record of a live key cannot be read: %s", keel_strerror(err));
    record.xattrs = keel_slice_of(NULL, 0);
    return record;
}

static uint64_t parent_ino(const struct mvcc_key *key)
{
    const struct mvcc_key *parent = mvcc_parent(key);

    return parent != NULL ? mvcc_live_ino(parent) : 0;
}

/* ---- what was there ---- */

static void remember(struct reload *r, struct mvcc_key *key)
{
    struct mvcc_record record = record_of(r->m, key);

    mvcc_pin(key); /* it may have no records afterwards */
    if (r->count == r->capacity) {
        r->capacity = r->capacity ? r->capacity * 2 : 256;
        r->objects = keel_realloc(r->objects, r->capacity * sizeof *r->objects);
    }
    r->objects[r->count++] = (struct object){
        .key = key,
        .ino = record.ino,
        .parent = parent_ino(key),
        .revision = record.revision,
        .length = record.content.length,
        .hash = record.content.hash,
        .lease = record.lease,
        .mtime_ns = record.mtime_ns,
        .ctime_ns = record.ctime_ns,
        .uid = record.uid,
        .gid = record.gid,
        .mode = record.mode,
        .kind = (uint8_t)record.kind,
    };
}

static int compare_inos(const void *a, const void *b)
{
    uint64_t x = (*(struct object *const *)a)->ino, y = (*(struct object *const *)b)->ino;

    return (x > y) - (x < y);
}

static int compare_keys(const void *a, const void *b)
{
    uintptr_t x = (uintptr_t)(*(struct object *const *)a)->key;
    uintptr_t y = (uintptr_t)(*(struct object *const *)b)->key;

    return (x > y) - (x < y);
}

static struct object **sorted(struct reload *r, int (*compare)(const void *a, const void *b))
{
    struct object **list = keel_malloc(r->count * sizeof *list);

    for (size_t i = 0; i < r->count; i++)
        list[i] = &r->objects[i];
    qsort(list, r->count, sizeof(struct object *), compare);
    return list;
}

static void remember_all(struct reload *r)
{
    for (struct mvcc_key *key = mvcc_root(r->m); key != NULL; key = next_live(r->m, key))
        remember(r, key);
    mvcc_read_end(r->m);
    r->by_ino = sorted(r, compare_inos);
    r->by_key = sorted(r, compare_keys);
}

static struct object *find(struct reload *r, struct object **list, const struct object *like,
                           int (*compare)(const void *a, const void *b))
{
    struct object **found = bsearch(&like, list, r->count, sizeof(struct object *), compare);

    return found != NULL ? *found : NULL;
}

static struct object *object_at(struct reload *r, struct mvcc_key *key)
{
    return find(r, r->by_key, &(struct object){ .key = key }, compare_keys);
}

/* What is live there now and was live before, here or elsewhere; NULL: it is new, or nothing is. */
static struct object *survivor_at(struct reload *r, struct mvcc_key *key)
{
    struct object *o =
        find(r, r->by_ino, &(struct object){ .ino = mvcc_live_ino(key) }, compare_inos);

    return o != NULL && o->fate != GONE ? o : NULL;
}

static bool is_new(struct reload *r, struct mvcc_key *key)
{
    return mvcc_live_ino(key) != 0 && survivor_at(r, key) == NULL;
}

/* Whether a directory was there before under that inode number, and no longer is. */
static bool is_gone(struct reload *r, uint64_t ino)
{
    const struct object *o = find(r, r->by_ino, &(struct object){ .ino = ino }, compare_inos);

    return o != NULL && o->fate == GONE;
}

static void decide_fates(struct reload *r)
{
    for (size_t i = 0; i < r->count; i++) {
        struct object *o = &r->objects[i];
        struct mvcc_key *key = mvcc_by_ino(r->m, o->ino);

        o->fate = GONE;
        if (key == NULL || mvcc_live_kind(key) != o->kind)
            continue;
        o->to = key;
        o->fate = key == o->key ? STAYS : MOVES;
    }
}

/* ---- one change ---- */

static struct keel_change change_of(struct reload *r, enum keel_change_kind kind)
{
    return (struct keel_change){
        .kind = kind,
        .revision = mvcc_revision(r->m),
        .index = mvcc_applied_index(r->m),
    };
}

static void tell(struct reload *r, const struct keel_change *change)
{
    r->changed(r->arg, change);
    mvcc_read_end(r->m);
}

/* The record that it had, if that is still kept; else what is remembered of it, without content. */
static struct mvcc_record record_before(struct reload *r, const struct object *o)
{
    struct mvcc_record record;
    int err = mvcc_get_revision(r->m, o->key, o->revision, &record);

    if (err != 0 && err != KEEL_E_NOTFOUND && err != KEEL_E_STALE)
        keel_fatal("a kept record cannot be read: %s", keel_strerror(err));
    if (err != 0 || record.tombstone || record.ino != o->ino || record.kind != o->kind)
        record = (struct mvcc_record){
            .kind = o->kind,
            .ino = o->ino,
            .mode = o->mode,
            .uid = o->uid,
            .gid = o->gid,
            .lease = o->lease,
            .revision = o->revision,
            .atime_ns = o->mtime_ns,
            .btime_ns = o->ctime_ns,
        };
    record.mtime_ns = o->mtime_ns;
    record.ctime_ns = o->ctime_ns;
    record.xattrs = keel_slice_of(NULL, 0);
    return record;
}

/* Whose end removed it, if that is the last that was written at its key. */
static uint64_t lease_that_removed(struct reload *r, const struct object *o)
{
    struct mvcc_record record;
    int err = mvcc_get_revision(r->m, o->key, mvcc_mod_revision(o->key), &record);

    return err == 0 && record.tombstone && record.ino == o->ino ? record.lease : 0;
}

static void tell_removal(struct reload *r, struct object *o)
{
    struct keel_change change = change_of(r, o->kind == MVCC_DIR ? CHANGE_RMDIR : CHANGE_REMOVE);

    change.ino = o->ino;
    change.object = o->kind;
    change.parent = o->parent;
    change.name = mvcc_name(o->key);
    change.lease = lease_that_removed(r, o);
    change.before = record_before(r, o);
    o->left = true;
    tell(r, &change);
}

static void tell_creation(struct reload *r, struct mvcc_key *key)
{
    static const enum keel_change_kind kinds[] = {
        [MVCC_FILE] = CHANGE_CREATE,
        [MVCC_DIR] = CHANGE_MKDIR,
        [MVCC_SYMLINK] = CHANGE_SYMLINK,
    };
    struct keel_change change = change_of(r, kinds[mvcc_live_kind(key)]);

    change.ino = mvcc_live_ino(key);
    change.object = mvcc_live_kind(key);
    change.parent = parent_ino(key);
    change.name = mvcc_name(key);
    change.size = record_of(r->m, key).content.length;
    tell(r, &change);
}

static void tell_update(struct reload *r, const struct object *o, enum keel_change_kind kind,
                        uint64_t size)
{
    struct keel_change change = change_of(r, kind);

    change.ino = o->ino;
    change.object = o->kind;
    change.parent = parent_ino(o->to);
    change.name = mvcc_name(o->to);
    change.before = record_before(r, o);
    change.size = size;
    tell(r, &change);
}

/* ---- renames ---- */

static struct keel_slice parked_name(uint64_t number, char ret_name[PARKED_NAME])
{
    snprintf(ret_name, PARKED_NAME, ".keelfs-moved-%llu", (unsigned long long)number);
    return keel_slice_str(ret_name);
}

/* From where it is at the moment. */
static void tell_rename(struct reload *r, struct object *o, uint64_t new_parent,
                        struct keel_slice new_name, struct object *replaced)
{
    char name[PARKED_NAME];
    struct keel_change change = change_of(r, CHANGE_RENAME);

    change.ino = o->ino;
    change.object = o->kind;
    change.parent = o->parked ? MVCC_ROOT_INO : o->parent;
    change.name = o->parked ? parked_name(o->parked, name) : mvcc_name(o->key);
    change.new_parent = new_parent;
    change.new_name = new_name;
    change.before = record_before(r, o);
    change.size = o->length;
    if (replaced != NULL) {
        change.replaced = replaced->ino;
        change.replaced_before = record_before(r, replaced);
        replaced->left = true;
    }
    o->left = true;
    tell(r, &change);
}

/* What was at the key and has not left it. */
static struct object *occupant(struct reload *r, struct mvcc_key *key)
{
    struct object *o = object_at(r, key);

    return o != NULL && !o->left ? o : NULL;
}

static void move(struct reload *r, struct object *o)
{
    struct object *there = occupant(r, o->to);

    KEEL_ASSERT(there == NULL || (there->fate == GONE && there->kind != MVCC_DIR));
    tell_rename(r, o, parent_ino(o->to), mvcc_name(o->to), there);
    o->parked = 0;
    o->arrived = true;
}

static void park(struct reload *r, struct object *o)
{
    char name[PARKED_NAME];
    struct keel_slice free_name;

    do
        free_name = parked_name(++r->parked, name);
    while (mvcc_child(r->m, mvcc_root(r->m), free_name) != NULL);
    tell_rename(r, o, MVCC_ROOT_INO, free_name, NULL);
    o->parked = r->parked;
}

/* Whether the place that it moves to is one of a directory that was there, and not that of a
 * directory that is gone. */
static bool moves_within(struct reload *r, const struct object *o)
{
    const struct object *there = occupant(r, o->to);

    if (is_new(r, mvcc_parent(o->to)))
        return false;
    return there == NULL || there->fate != GONE || there->kind != MVCC_DIR;
}

/* A place is waited for by one at most, so only the first can be met again. */
static void move_in_turn(struct reload *r, struct object *first)
{
    struct object *o = first, *there;

    o->waiting = NULL;
    while ((there = occupant(r, o->to)) != NULL && there->fate == MOVES) {
        if (there == first || !moves_within(r, there)) {
            park(r, there);
            break;
        }
        there->waiting = o;
        o = there;
    }
    for (; o != NULL; o = o->waiting)
        move(r, o);
}

static void move_within(struct reload *r)
{
    for (size_t i = 0; i < r->count; i++) {
        struct object *o = &r->objects[i];

        if (o->fate == MOVES && !o->arrived && !o->parked && moves_within(r, o))
            move_in_turn(r, o);
    }
}

/* Out of directories that go, and from the names of those that come. */
static void park_what_is_in_the_way(struct reload *r)
{
    for (size_t i = 0; i < r->count; i++) {
        struct object *o = &r->objects[i];

        if (o->fate != MOVES || o->left)
            continue;
        if (is_gone(r, o->parent) || (is_new(r, o->key) && mvcc_live_kind(o->key) == MVCC_DIR))
            park(r, o);
    }
}

static void move_the_others(struct reload *r)
{
    for (size_t i = 0; i < r->count; i++)
        if (r->objects[i].fate == MOVES && !r->objects[i].arrived)
            move(r, &r->objects[i]);
}

/* ---- the rest ---- */

/* By a file that comes from elsewhere into the same directory. */
static bool is_replaced(struct reload *r, const struct object *o)
{
    const struct object *mover = survivor_at(r, o->key);

    return mover != NULL && mover->kind != MVCC_DIR && parent_ino(o->key) == o->parent;
}

static void remove_files(struct reload *r)
{
    for (size_t i = r->count; i > 0; i--) {
        struct object *o = &r->objects[i - 1];

        if (o->fate == GONE && o->kind != MVCC_DIR && !is_replaced(r, o))
            tell_removal(r, o);
    }
}

static void remove_directories(struct reload *r)
{
    for (size_t i = r->count; i > 0; i--)
        if (r->objects[i - 1].fate == GONE && r->objects[i - 1].kind == MVCC_DIR)
            tell_removal(r, &r->objects[i - 1]);
}

static void create(struct reload *r, bool directories)
{
    for (struct mvcc_key *key = mvcc_root(r->m); key != NULL; key = next_live(r->m, key))
        if (is_new(r, key) && (mvcc_live_kind(key) == MVCC_DIR) == directories)
            tell_creation(r, key);
}

static bool same_content(const struct object *o, const struct mvcc_record *now)
{
    return o->length == now->content.length && o->hash == now->content.hash;
}

static bool same_attributes(const struct object *o, const struct mvcc_record *now)
{
    return o->mode == now->mode && o->uid == now->uid && o->gid == now->gid &&
           o->lease == now->lease;
}

/* A new revision without new content is at least one of attributes, unless a rename made it. */
static bool was_touched(const struct object *o, const struct mvcc_record *now)
{
    return o->fate == STAYS && same_content(o, now) &&
           (o->revision.main != now->revision.main || o->revision.sub != now->revision.sub);
}

static void update(struct reload *r)
{
    for (size_t i = 0; i < r->count; i++) {
        struct object *o = &r->objects[i];

        if (o->fate == GONE)
            continue;
        struct mvcc_record now = record_of(r->m, o->to);

        if (!same_content(o, &now))
            tell_update(r, o, CHANGE_CONTENT, now.content.length);
        if (!same_attributes(o, &now) || was_touched(o, &now))
            tell_update(r, o, CHANGE_ATTR, now.content.length);
    }
}

static void tell_all(struct reload *r)
{
    decide_fates(r);
    remove_files(r);
    move_within(r);
    park_what_is_in_the_way(r);
    remove_directories(r);
    create(r, true);
    move_the_others(r);
    create(r, false);
    update(r);
    mvcc_read_end(r->m);
}

static int load(struct apply *a, char *ret_why, size_t why_size)
{
    apply_clear(a);
    int err = apply_load(a);

    mvcc_read_end(a->mvcc);
    if (err == 0)
        return 0;
    snprintf(ret_why, why_size, "the state of the cluster in the store: %s", keel_strerror(err));
    return err == KEEL_E_NOTFOUND ? KEEL_E_CORRUPT : err;
}

int apply_reload(struct apply *a, struct kv *kv,
                 void (*changed)(void *arg, const struct keel_change *change), void *arg,
                 char *ret_why, size_t why_size)
{
    struct reload r = { .m = a->mvcc, .changed = changed, .arg = arg };

    remember_all(&r);
    int err = mvcc_reload(r.m, kv, ret_why, why_size);

    if (err == 0)
        err = load(a, ret_why, why_size);
    if (err == 0)
        tell_all(&r);
    for (size_t i = 0; err == 0 && i < r.count; i++)
        mvcc_unpin(r.m, r.objects[i].key);
    free(r.objects);
    free(r.by_ino);
    free(r.by_key);
    return err;
}
