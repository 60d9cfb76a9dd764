/* The tree of keys: AA trees of children, revisions of a key, the inode map. See index.h; rules of
 * the filesystem are checked by the callers (txn.c, scan.c). */
#include <stdlib.h>

#include "check.h"
#include "mvcc/index.h"

static struct keel_slice name_of(const struct mvcc_key *key)
{
    return keel_slice_of(key->name, key->name_len);
}

/* ---- children ---- */

struct mvcc_key *index_child(const struct mvcc_key *dir, struct keel_slice name)
{
    struct mvcc_key *key = dir->dir ? dir->dir->children : NULL;

    while (key != NULL) {
        int order = keel_slice_compare(name, name_of(key));

        if (order == 0)
            return key;
        key = order < 0 ? key->left : key->right;
    }
    return NULL;
}

struct mvcc_key *index_next_child(const struct mvcc_key *dir, struct keel_slice after)
{
    struct mvcc_key *key = dir->dir ? dir->dir->children : NULL;
    struct mvcc_key *next = NULL;

    while (key != NULL) {
        if (keel_slice_compare(after, name_of(key)) < 0) {
            next = key;
            key = key->left;
        } else {
            key = key->right;
        }
    }
    return next;
}

/* A left child on the same level becomes the parent. */
static void skew(struct mvcc_key **link)
{
    struct mvcc_key *key = *link, *left = key->left;

    if (left == NULL || left->level != key->level)
        return;
    key->left = left->right;
    left->right = key;
    *link = left;
}

/* Two right children in a row on one level: the middle one goes up. */
static void split(struct mvcc_key **link)
{
    struct mvcc_key *key = *link, *right = key->right;

    if (right == NULL || right->right == NULL || right->right->level != key->level)
        return;
    key->right = right->left;
    right->left = key;
    right->level++;
    *link = right;
}

static struct mvcc_key *key_new(struct mvcc_key *parent, struct keel_slice name)
{
    size_t size = offsetof(struct mvcc_key, name) + name.len;
    struct mvcc_key *key =
        keel_calloc(1, size > sizeof(struct mvcc_key) ? size : sizeof(struct mvcc_key));

    KEEL_ASSERT(name.len <= KEEL_NAME_MAX);
    key->parent = parent;
    key->level = 1;
    key->name_len = (uint8_t)name.len;
    if (name.len > 0)
        memcpy(key->name, name.data, name.len);
    return key;
}

struct mvcc_key *index_add_child(struct mvcc_key *dir, struct keel_slice name)
{
    struct mvcc_key **links[80]; /* an AA tree is at most 2 * log2(n + 1) deep, n < 2^40 */
    size_t depth = 0;

    KEEL_ASSERT(dir->dir != NULL);
    links[depth++] = &dir->dir->children;
    while (*links[depth - 1] != NULL) {
        struct mvcc_key *at = *links[depth - 1];
        int order = keel_slice_compare(name, name_of(at));

        if (order == 0)
            return at;
        KEEL_ASSERT(depth < KEEL_ARRAY_LEN(links));
        links[depth++] = order < 0 ? &at->left : &at->right;
    }
    struct mvcc_key *key = key_new(dir, name);

    *links[--depth] = key;
    /* A rotation changes what a link points to, never where the links above it are. */
    while (depth > 0) {
        depth--;
        skew(links[depth]);
        split(links[depth]);
    }
    return key;
}

struct keel_slice index_path_of(const struct mvcc_key *key, struct index_path *path)
{
    size_t start = sizeof path->at;

    for (; key->parent != NULL; key = key->parent) {
        if (start < sizeof path->at) {
            KEEL_ASSERT(start > 0);
            path->at[--start] = '/';
        }
        KEEL_ASSERT(key->name_len <= start);
        start -= key->name_len;
        memcpy(&path->at[start], key->name, key->name_len);
    }
    return keel_slice_of(&path->at[start], sizeof path->at - start);
}

/* ---- the inode map ---- */

static size_t ino_slot(const struct ino_map *map, uint64_t ino)
{
    /* Fibonacci hashing (Knuth, vol. 3, 6.4): consecutive numbers spread evenly. */
    return (size_t)(ino * UINT64_C(0x9e3779b97f4a7c15) >> (64 - __builtin_ctzll(map->capacity)));
}

struct mvcc_key *index_by_ino(const struct mvcc_index *index, uint64_t ino)
{
    const struct ino_map *map = &index->inos;

    if (map->capacity == 0 || ino == 0)
        return NULL;
    for (size_t i = ino_slot(map, ino); map->slots[i] != NULL; i = (i + 1) & (map->capacity - 1))
        if (map->slots[i]->ino == ino)
            return map->slots[i];
    return NULL;
}

static void map_place(struct ino_map *map, struct mvcc_key *key)
{
    size_t i = ino_slot(map, key->ino);

    while (map->slots[i] != NULL)
        i = (i + 1) & (map->capacity - 1);
    map->slots[i] = key;
    map->count++;
}

static void map_grow(struct ino_map *map)
{
    struct ino_map bigger = { .capacity = map->capacity ? map->capacity * 2 : 64 };

    bigger.slots = keel_calloc(bigger.capacity, sizeof *bigger.slots);
    for (size_t i = 0; i < map->capacity; i++)
        if (map->slots[i] != NULL)
            map_place(&bigger, map->slots[i]);
    free(map->slots);
    *map = bigger;
}

/* The key has its inode number already. */
static void map_add(struct ino_map *map, struct mvcc_key *key)
{
    if (map->count >= map->capacity / 4 * 3)
        map_grow(map);
    map_place(map, key);
}

/* Closes the gap instead of marking it: what was pushed past the freed slot moves back (Knuth,
 * algorithm 6.4R). The key still has the inode number. */
static void map_remove(struct ino_map *map, const struct mvcc_key *key)
{
    size_t mask = map->capacity - 1;
    size_t gap = ino_slot(map, key->ino);

    while (map->slots[gap] != key)
        gap = (gap + 1) & mask;
    for (size_t i = (gap + 1) & mask; map->slots[i] != NULL; i = (i + 1) & mask) {
        size_t home = ino_slot(map, map->slots[i]->ino);

        if (((i - home) & mask) >= ((i - gap) & mask)) {
            map->slots[gap] = map->slots[i];
            gap = i;
        }
    }
    map->slots[gap] = NULL;
    map->count--;
}

/* The key no longer has its inode number: gone, or moved to another key before. */
static void drop_ino(struct mvcc_index *index, struct mvcc_key *key)
{
    if (index_by_ino(index, key->ino) == key) {
        map_remove(&index->inos, key);
    } else {
        KEEL_ASSERT(index->moved > 0);
        index->moved--;
    }
    key->ino = 0;
}

static void take_ino(struct mvcc_index *index, struct mvcc_key *key, uint64_t ino)
{
    if (key->ino == ino && index_by_ino(index, ino) == key)
        return;
    if (key->ino != 0)
        drop_ino(index, key);
    struct mvcc_key *other = index_by_ino(index, ino);

    if (other != NULL) {
        map_remove(&index->inos, other);
        index->moved++;
    }
    key->ino = ino;
    map_add(&index->inos, key);
}

/* ---- revisions ---- */

const struct mvcc_rev *index_revs(const struct mvcc_key *key)
{
    return key->count <= 1 ? &key->revs.one : key->revs.many.list;
}

const struct mvcc_rev *index_rev_at(const struct mvcc_key *key, uint64_t at)
{
    const struct mvcc_rev *revs = index_revs(key);
    size_t low = 0, high = key->count;

    /* Most questions are about now. */
    if (high > 0 && revs[high - 1].main <= at)
        return &revs[high - 1];
    while (low < high) {
        size_t middle = low + (high - low) / 2;

        if (revs[middle].main <= at)
            low = middle + 1;
        else
            high = middle;
    }
    return low > 0 ? &revs[low - 1] : NULL;
}

static void add_rev(struct mvcc_key *key, struct mvcc_rev rev)
{
    if (key->count == 0) {
        key->revs.one = rev;
    } else if (key->count == 1) {
        struct mvcc_rev first = key->revs.one;

        key->revs.many.capacity = 2;
        key->revs.many.list = keel_malloc(2 * sizeof rev);
        key->revs.many.list[0] = first;
        key->revs.many.list[1] = rev;
    } else {
        if (key->count == key->revs.many.capacity) {
            /* By a quarter: at most 24 bytes for each of the revisions that there are then. */
            KEEL_ASSERT(key->count < UINT32_MAX / 2);
            key->revs.many.capacity = key->count + 1 + key->count / 4;
            key->revs.many.list =
                keel_realloc(key->revs.many.list, key->revs.many.capacity * sizeof rev);
        }
        key->revs.many.list[key->count] = rev;
    }
    key->count++;
}

uint64_t index_next_version(const struct mvcc_key *key)
{
    return key->ino != 0 ? (uint64_t)(key->count - key->live_from) + 1 : 1;
}

uint64_t index_next_create(const struct mvcc_key *key, uint64_t main)
{
    return key->ino != 0 ? index_revs(key)[key->live_from].main : main;
}

/* ---- records ---- */

uint64_t index_quota_of(const struct mvcc_record *record, size_t path_len)
{
    bool wrote = record->content.length > 0 && record->content.at.main == record->revision.main &&
                 record->content.at.sub == record->revision.sub;

    return path_len + (wrote ? record->content.length : 0) + 256;
}

static void count_child(struct mvcc_index *index, struct mvcc_key *key, bool comes)
{
    uint32_t step = comes ? 1 : UINT32_MAX; /* + 1 or - 1, modulo 2^32 */
    bool is_dir = key->kind == MVCC_DIR;

    index->live_keys += comes ? 1 : UINT64_MAX;
    if (is_dir)
        index->live_dirs += comes ? 1 : UINT64_MAX;
    if (key->parent == NULL)
        return;
    key->parent->dir->entries += step;
    if (is_dir)
        key->parent->dir->subdirs += step;
}

static void come_to_life(struct mvcc_key *key, const struct mvcc_record *record)
{
    key->live_from = key->count;
    if (record->kind != MVCC_DIR)
        return;
    if (key->dir == NULL) {
        key->dir = keel_calloc(1, sizeof *key->dir);
        key->dir->key = key;
    }
    KEEL_ASSERT(key->dir->entries == 0 && key->dir->subdirs == 0);
    key->dir->mtime_ns = record->mtime_ns;
}

void index_add_record(struct mvcc_index *index, struct mvcc_key *key,
                      const struct mvcc_record *record, size_t path_len)
{
    struct mvcc_rev rev = { record->revision.main, record->revision.sub, record->tombstone };
    bool was_live = key->ino != 0;

    if (was_live && record->tombstone) {
        count_child(index, key, false);
        drop_ino(index, key);
    } else if (!record->tombstone) {
        if (!was_live)
            come_to_life(key, record);
        key->kind = (uint8_t)record->kind;
        key->ctime_ns = record->ctime_ns;
        take_ino(index, key, record->ino);
        if (!was_live)
            count_child(index, key, true);
    }
    add_rev(key, rev);
    index->quota_used += index_quota_of(record, path_len);
}

/* ---- the whole ---- */

void index_init(struct mvcc_index *index)
{
    *index = (struct mvcc_index){ 0 };
    index->root = key_new(NULL, keel_slice_of(NULL, 0));
}

/* In front of its children; NULL behind the last one. */
static struct mvcc_key *next_key(struct mvcc_key *key)
{
    struct mvcc_key *next = index_next_child(key, keel_slice_of(NULL, 0));

    while (next == NULL && key->parent != NULL) {
        next = index_next_child(key->parent, name_of(key));
        key = key->parent;
    }
    return next;
}

static void clear_key(struct mvcc_key *key)
{
    if (key->count > 1)
        free(key->revs.many.list);
    key->revs.one = (struct mvcc_rev){ 0 };
    key->count = 0;
    key->live_from = 0;
    key->ino = 0;
    key->ctime_ns = 0;
    if (key->dir == NULL)
        return;
    key->dir->mtime_ns = 0;
    key->dir->entries = 0;
    key->dir->subdirs = 0;
    key->dir->dirty = false;
}

void index_clear(struct mvcc_index *index)
{
    struct mvcc_key *root = index->root;

    for (struct mvcc_key *key = root; key != NULL; key = next_key(key))
        clear_key(key);
    free(index->inos.slots);
    *index = (struct mvcc_index){ .root = root };
}

/* Puts a tree of children on the list of what is to be freed, which is linked by `parent`. */
static struct mvcc_key *queue_push(struct mvcc_key *queue, struct mvcc_key *key)
{
    if (key == NULL)
        return queue;
    key->parent = queue;
    return key;
}

void index_free(struct mvcc_index *index)
{
    struct mvcc_key *queue = queue_push(NULL, index->root);

    while (queue != NULL) {
        struct mvcc_key *key = queue;

        queue = key->parent;
        queue = queue_push(queue, key->left);
        queue = queue_push(queue, key->right);
        if (key->dir != NULL)
            queue = queue_push(queue, key->dir->children);
        if (key->count > 1)
            free(key->revs.many.list);
        free(key->dir);
        free(key);
    }
    free(index->inos.slots);
    *index = (struct mvcc_index){ 0 };
}
