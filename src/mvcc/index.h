/* The tree of keys in memory: which names there are and were, and at which revisions. Knows no kv
 * and no bytes of records; what a record says beyond its place is read from the store (read.c).
 *
 * Children of a directory are an AA tree (Andersson 1993) by byte order, threaded through the keys
 * themselves: balanced whatever names users choose, and small. A tree of levels (in brackets):
 *
 *              conf [2]                     left child: one level lower
 *             /        \                    right child: the same or one lower, but no two
 *         app [1]      log [1]              equal levels in a row to the right
 *                         \
 *                          tmp [1]
 *
 * A key with one revision keeps it inline; further ones move to an array that grows by a quarter.
 */
#ifndef MVCC_INDEX_H
#define MVCC_INDEX_H

#include "mvcc/mvcc.h"

struct mvcc_rev {
    uint64_t main;
    uint32_t sub;
    uint32_t tombstone; /* 0 or 1 */
};

/* What a key that is or was a directory has in addition. */
struct mvcc_dir {
    struct mvcc_key *key;
    struct mvcc_key *children; /* root of the AA tree; live or not, with revisions or without */
    int64_t mtime_ns;
    uint32_t entries, subdirs; /* live ones */
    bool dirty;                /* times not handed to a checkpoint yet */
};

struct mvcc_key {
    struct mvcc_key *parent; /* NULL: the root */
    struct mvcc_key *left, *right;
    struct mvcc_dir *dir; /* NULL: was never a directory */
    union {
        struct mvcc_rev one; /* count <= 1 */
        struct {
            struct mvcc_rev *list;
            uint32_t capacity;
        } many;
    } revs;
    int64_t ctime_ns;   /* of a live key: its last one; a directory's moves with its entries */
    uint64_t ino;       /* 0: not live */
    uint32_t count;     /* kept revisions, ascending */
    uint32_t live_from; /* live: index of the revision that its generation began with */
    uint8_t kind;       /* enum mvcc_kind of the newest record */
    uint8_t level;
    uint8_t name_len;
    char name[];
};

/* Open addressing by inode number with linear probing; the number itself is in the key. */
struct ino_map {
    struct mvcc_key **slots;
    size_t count, capacity; /* capacity: 0 or a power of two */
};

struct mvcc_index {
    struct mvcc_key *root;
    struct ino_map inos;
    uint64_t live_keys, live_dirs;
    uint64_t quota_used;
    /* Live keys whose inode number has moved on to another key: between the put and the delete of a
     * rename, never at the end of a transaction. */
    uint64_t moved;
};

void index_init(struct mvcc_index *index);
void index_free(struct mvcc_index *index);
/* Forgets all revisions; the keys stay, as keys without one. */
void index_clear(struct mvcc_index *index);

struct mvcc_key *index_child(const struct mvcc_key *dir, struct keel_slice name);
/* The child of that name, made if there is none. dir must be or have been a directory. */
struct mvcc_key *index_add_child(struct mvcc_key *dir, struct keel_slice name);
/* The first child with a name > after, live or not; NULL at the end. */
struct mvcc_key *index_next_child(const struct mvcc_key *dir, struct keel_slice after);
struct mvcc_key *index_by_ino(const struct mvcc_index *index, uint64_t ino);

/* Where a key's path is built: its bytes end at the end of `at`. */
struct index_path {
    uint8_t at[KEEL_PATH_MAX];
};
struct keel_slice index_path_of(const struct mvcc_key *key, struct index_path *path);

/* Kept revisions, ascending. */
const struct mvcc_rev *index_revs(const struct mvcc_key *key);
/* The newest revision with main <= at, or NULL. */
const struct mvcc_rev *index_rev_at(const struct mvcc_key *key, uint64_t at);

/* What the rule "a live key goes on" gives to a record that is put at `key` in revision `main`. */
uint64_t index_next_version(const struct mvcc_key *key);
uint64_t index_next_create(const struct mvcc_key *key, uint64_t main);

/* Takes a record of that key into account: its revision, whether the key is live, counts, the inode
 * map, the quota. The rules (parent is a live directory, an emptied directory, kinds) are the
 * caller's to check. A directory that is created gets the record's times. */
void index_add_record(struct mvcc_index *index, struct mvcc_key *key,
                      const struct mvcc_record *record, size_t path_len);

/* Bytes that a kept record counts for the quota. */
uint64_t index_quota_of(const struct mvcc_record *record, size_t path_len);

static inline bool index_is_live_dir(const struct mvcc_key *key)
{
    return key->ino != 0 && key->kind == MVCC_DIR;
}

#endif
