/* The tree of keys: AA trees of children, revisions of a key, the inode map. See index.h; rules of
 * the filesystem are checked by the callers (txn.c, scan.c), what goes when is for compact.c. */
#include <stdlib.h>

#include "check.h"
#include "mvcc/index.h"

enum {
    DEPTH_MAX = 80, /* an AA tree is at most 2 * log2(n + 1) deep, n < 2^40 */
    QUOTA_RECORD = 256,
};

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
    struct mvcc_key *key = *link, *left = key ? key->left : NULL;

    if (left == NULL || left->level != key->level)
        return;
    key->left = left->right;
    left->right = key;
    *link = left;
}

/* Two right children in a row on one level: the middle one goes up. */
static void split(struct mvcc_key **link)
{
    struct mvcc_key *key = *link, *right = key ? key->right : NULL;

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
    struct mvcc_key **links[DEPTH_MAX];
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
    /* A rotation changes what a link points to, never where the links above it are. What a key has
     * to do depends on its children and theirs: where two in a row have stayed as they were, all
     * above them do. */
    for (unsigned same = 0; depth > 0 && same < 2;) {
        const struct mvcc_key *before = *links[--depth];
        uint8_t level = before->level;

        skew(links[depth]);
        split(links[depth]);
        same = *links[depth] == before && before->level == level ? same + 1 : 0;
    }
    return key;
}

/* A child below may have become too low for its parent: the parent comes down, and what then stands
 * on one level with it goes to the right. */
static void lower(struct mvcc_key **link)
{
    struct mvcc_key *key = *link;
    unsigned left = key->left ? key->left->level : 0, right = key->right ? key->right->level : 0;

    if (left + 1 >= key->level && right + 1 >= key->level)
        return;
    key->level--;
    if (right > key->level)
        key->right->level = key->level;
    skew(link);
    skew(&(*link)->right);
    if ((*link)->right != NULL)
        skew(&(*link)->right->right);
    split(link);
    split(&(*link)->right);
}

/* Takes a key out that has two children: the next one in order, which has no left child, comes into
 * its place. Returns how many links there are then above the place that is empty now. */
static size_t replace_by_next(struct mvcc_key **links[DEPTH_MAX], size_t depth)
{
    struct mvcc_key **place = links[depth - 1], *key = *place;
    size_t below = depth;

    for (struct mvcc_key **link = &key->right; *link != NULL; link = &(*link)->left) {
        KEEL_ASSERT(depth < DEPTH_MAX);
        links[depth++] = link;
    }
    struct mvcc_key *next = *links[depth - 1];

    *links[depth - 1] = next->right;
    next->left = key->left;
    next->right = key->right;
    next->level = key->level;
    *place = next;
    links[below] = &next->right; /* it was a link inside the key that goes */
    return depth;
}

static void remove_child(struct mvcc_dir *dir, const struct mvcc_key *key)
{
    struct mvcc_key **links[DEPTH_MAX];
    size_t depth = 0;

    links[depth++] = &dir->children;
    while (*links[depth - 1] != key) {
        struct mvcc_key *at = *links[depth - 1];

        KEEL_ASSERT(at != NULL && depth < DEPTH_MAX);
        links[depth++] = keel_slice_compare(name_of(key), name_of(at)) < 0 ? &at->left : &at->right;
    }
    if (key->left != NULL && key->right != NULL)
        depth = replace_by_next(links, depth);
    else
        *links[depth - 1] = key->left ? key->left : key->right;
    while (--depth > 0)
        lower(links[depth - 1]);
}

void index_make_dir(struct mvcc_key *key)
{
    if (key->dir != NULL)
        return;
    key->dir = keel_calloc(1, sizeof *key->dir);
    key->dir->key = key;
    keel_list_init(&key->dir->dirty);
}

static void key_free(struct mvcc_key *key)
{
    if (key->count > 1)
        free(key->revs.many.list);
    free(key->dir);
    free(key);
}

void index_release(struct mvcc_key *key)
{
    while (key->parent != NULL && key->count == 0 && key->pins == 0 &&
           (key->dir == NULL || key->dir->children == NULL)) {
        struct mvcc_key *parent = key->parent;

        KEEL_ASSERT(key->ino == 0);
        remove_child(parent->dir, key);
        if (key->dir != NULL)
            keel_list_remove(&key->dir->dirty);
        key_free(key);
        key = parent;
    }
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

__extension__ typedef unsigned __int128 wide;

/* Fibonacci hashing (Knuth, vol. 3, 6.4): consecutive numbers spread evenly over 2^64; that scaled
 * to the capacity, which so may grow by less than doubling. */
static size_t ino_slot(const struct ino_map *map, uint64_t ino)
{
    return (size_t)((wide)(ino * UINT64_C(0x9e3779b97f4a7c15)) * map->capacity >> 64);
}

static size_t slot_after(const struct ino_map *map, size_t i)
{
    return i + 1 < map->capacity ? i + 1 : 0;
}

/* How many steps slot i is behind `from`. */
static size_t slots_from(const struct ino_map *map, size_t from, size_t i)
{
    return i >= from ? i - from : i + map->capacity - from;
}

struct mvcc_key *index_by_ino(const struct mvcc_index *index, uint64_t ino)
{
    const struct ino_map *map = &index->inos;

    if (map->capacity == 0 || ino == 0)
        return NULL;
    for (size_t i = ino_slot(map, ino); map->slots[i] != NULL; i = slot_after(map, i))
        if (map->slots[i]->ino == ino)
            return map->slots[i];
    return NULL;
}

static void map_place(struct ino_map *map, struct mvcc_key *key)
{
    size_t i = ino_slot(map, key->ino);

    while (map->slots[i] != NULL)
        i = slot_after(map, i);
    map->slots[i] = key;
    map->count++;
}

static void map_grow(struct ino_map *map)
{
    struct ino_map bigger = { .capacity = map->capacity ? map->capacity / 2 * 3 : 64 };

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
    size_t gap = ino_slot(map, key->ino);

    while (map->slots[gap] != key)
        gap = slot_after(map, gap);
    for (size_t i = slot_after(map, gap); map->slots[i] != NULL; i = slot_after(map, i)) {
        size_t home = ino_slot(map, map->slots[i]->ino);

        if (slots_from(map, home, i) >= slots_from(map, gap, i)) {
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
    return key->count <= 1 ? &key->revs.one : key->revs.many.list + key->revs.many.first;
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

/* A new array, by a quarter bigger than what is in it: at most 23 bytes, with the entry in the
 * queue of garbage, for each of the revisions that there are then. */
static void resize_revs(struct mvcc_key *key)
{
    KEEL_ASSERT(key->count < UINT32_MAX / 2);
    uint32_t capacity = key->count + 1 + key->count / 4;
    struct mvcc_rev *list = keel_malloc(capacity * sizeof *list);

    memcpy(list, index_revs(key), key->count * sizeof *list);
    free(key->revs.many.list);
    key->revs.many.list = list;
    key->revs.many.first = 0;
    key->revs.many.capacity = capacity;
}

static void add_rev(struct mvcc_key *key, struct mvcc_rev rev)
{
    if (key->count == 0) {
        key->revs.one = rev;
    } else if (key->count == 1) {
        struct mvcc_rev first = key->revs.one;

        key->revs.many.first = 0;
        key->revs.many.capacity = 2;
        key->revs.many.list = keel_malloc(2 * sizeof rev);
        key->revs.many.list[0] = first;
        key->revs.many.list[1] = rev;
    } else {
        if (key->revs.many.first + key->count == key->revs.many.capacity)
            resize_revs(key);
        key->revs.many.list[key->revs.many.first + key->count] = rev;
    }
    key->count++;
}

/* Once half of the array is gone, the rest moves: a step for each revision that goes. */
static void remove_first_rev(struct mvcc_key *key)
{
    KEEL_ASSERT(key->count > 0);
    if (key->count == 2) {
        struct mvcc_rev *list = key->revs.many.list, last = index_revs(key)[1];

        key->revs.one = last;
        free(list);
    } else if (key->count > 2) {
        key->revs.many.first++;
    }
    key->count--;
    if (key->count > 1 && key->revs.many.first > key->revs.many.capacity / 2)
        resize_revs(key);
}

uint64_t index_next_version(const struct mvcc_key *key)
{
    return key->ino != 0 ? key->version + 1 : 1;
}

uint64_t index_next_create(const struct mvcc_key *key, uint64_t main)
{
    return key->ino != 0 ? key->create_revision : main;
}

/* ---- records ---- */

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

/* What is followed is garbage from that revision on, and so is a tombstone, followed or not. */
static void note_garbage(struct mvcc_index *index, struct mvcc_key *key, bool tombstone)
{
    if (key->count > 0 && !index_revs(key)[key->count - 1].tombstone)
        garbage_push(&index->garbage, key);
    if (tombstone)
        garbage_push(&index->garbage, key);
}

static bool wrote_content(const struct mvcc_record *record)
{
    return record->content.length > 0 && record->content.at.main == record->revision.main &&
           record->content.at.sub == record->revision.sub;
}

static void add_content(struct mvcc_index *index, const struct mvcc_record *record)
{
    if (wrote_content(record))
        index->quota_used += record->content.length;
    else if (record->content.length > 0)
        contents_share(&index->contents, record->content.at);
}

void index_adopt_content(struct mvcc_index *index, const struct mvcc_content *content)
{
    contents_adopt(&index->contents, content->at);
    index->quota_used += content->length;
}

static void put_record(struct mvcc_index *index, struct mvcc_key *key,
                       const struct mvcc_record *record)
{
    bool was_live = key->ino != 0;

    if (record->kind == MVCC_DIR)
        index_make_dir(key);
    if (record->kind == MVCC_DIR && !was_live)
        key->dir->mtime_ns = record->mtime_ns;
    key->kind = (uint8_t)record->kind;
    key->ctime_ns = record->ctime_ns;
    key->version = record->version;
    key->create_revision = record->create_revision;
    take_ino(index, key, record->ino);
    if (!was_live)
        count_child(index, key, true);
}

void index_add_record(struct mvcc_index *index, struct mvcc_key *key,
                      const struct mvcc_record *record, size_t path_len)
{
    struct mvcc_rev rev = {
        .main = record->revision.main,
        .sub = record->revision.sub & MVCC_SUB_MAX,
        .tombstone = record->tombstone,
    };

    KEEL_ASSERT(record->revision.sub <= MVCC_SUB_MAX);
    note_garbage(index, key, record->tombstone);
    if (!record->tombstone) {
        put_record(index, key, record);
    } else if (key->ino != 0) {
        count_child(index, key, false);
        drop_ino(index, key);
    }
    add_rev(key, rev);
    add_content(index, record);
    index->quota_used += path_len + QUOTA_RECORD;
}

uint64_t index_garbage_since(const struct mvcc_key *key)
{
    KEEL_ASSERT(key->count > 1 && !index_revs(key)->tombstone);
    return index_revs(key)[1].main;
}

bool index_remove_oldest(struct mvcc_index *index, struct mvcc_key *key,
                         const struct mvcc_record *record, size_t path_len)
{
    bool last = record->content.length > 0 && contents_drop(&index->contents, record->content.at);

    KEEL_ASSERT(key->count > 1 || index_revs(key)->tombstone);
    remove_first_rev(key);
    index->quota_used -= path_len + QUOTA_RECORD + (last ? record->content.length : 0);
    return last;
}

/* ---- the whole ---- */

void index_init(struct mvcc_index *index)
{
    *index = (struct mvcc_index){ 0 };
    index->root = key_new(NULL, keel_slice_of(NULL, 0));
}

struct mvcc_key *index_next_key(struct mvcc_key *key)
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
    key->ino = 0;
    key->ctime_ns = 0;
    if (key->dir == NULL)
        return;
    key->dir->mtime_ns = 0;
    key->dir->entries = 0;
    key->dir->subdirs = 0;
    key->dir->presumed = 0;
    keel_list_remove(&key->dir->dirty);
}

static void free_tables(struct mvcc_index *index)
{
    free(index->inos.slots);
    garbage_free(&index->garbage);
    contents_free(&index->contents);
}

void index_clear(struct mvcc_index *index)
{
    struct mvcc_key *root = index->root;

    for (struct mvcc_key *key = root; key != NULL; key = index_next_key(key))
        clear_key(key);
    free_tables(index);
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
        key_free(key);
    }
    free_tables(index);
    *index = (struct mvcc_index){ 0 };
}
