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
 * Compaction takes them off at the front. */
#ifndef MVCC_INDEX_H
#define MVCC_INDEX_H

#include "list.h"
#include "mvcc/contents.h"
#include "mvcc/garbage.h"
#include "mvcc/mvcc.h"

/* 12 bytes: most of what a long history costs. */
struct mvcc_rev {
    uint64_t main;
    uint32_t sub : 31; /* MVCC_SUB_MAX */
    uint32_t tombstone : 1;
} __attribute__((packed, aligned(4)));

/* What a key that is or was a directory has in addition. */
struct mvcc_dir {
    struct mvcc_key *key;
    struct mvcc_key *children; /* root of the AA tree; live or not, with revisions or without */
    int64_t mtime_ns;
    uint32_t entries, subdirs; /* live ones */
    struct keel_link dirty;    /* on the store's list: times not handed to a checkpoint yet */
    uint64_t presumed;         /* only while the store is scanned: see scan.c */
};

struct mvcc_key {
    struct mvcc_key *parent; /* NULL: the root */
    struct mvcc_key *left, *right;
    struct mvcc_dir *dir; /* NULL: was never a directory */
    union {
        struct mvcc_rev one; /* count <= 1 */
        struct {
            struct mvcc_rev *list;
            uint32_t first; /* of the list: those before it are gone */
            uint32_t capacity;
        } many;
    } revs;
    int64_t ctime_ns; /* of a live key: its last one; a directory's moves with its entries */
    uint64_t ino;     /* 0: not live */
    /* Of a live key: what its newest record says. The records before may be gone. */
    uint64_t version, create_revision;
    uint32_t count; /* kept revisions, ascending */
    uint32_t pins;  /* mvcc_pin */
    uint8_t kind;   /* enum mvcc_kind of the newest record */
    uint8_t level;
    uint8_t name_len;
    char name[];
};

/* Open addressing by inode number with linear probing; the number itself is in the key. */
struct ino_map {
    struct mvcc_key **slots;
    size_t count, capacity;
};

struct mvcc_index {
    struct mvcc_key *root;
    struct ino_map inos;
    struct garbage garbage; /* at any compaction point that there may be */
    struct contents contents;
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
/* The key behind this one, a directory's before its children's; NULL at the end. */
struct mvcc_key *index_next_key(struct mvcc_key *key);
/* Frees the key if it has no revision, no keys in it and no pin (never the root), then its
 * directory likewise. */
void index_release(struct mvcc_key *key);

struct mvcc_key *index_child(const struct mvcc_key *dir, struct keel_slice name);
/* The child of that name, made if there is none. dir must be or have been a directory. */
struct mvcc_key *index_add_child(struct mvcc_key *dir, struct keel_slice name);
/* From now on the key can have children. */
void index_make_dir(struct mvcc_key *key);
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
 * map, garbage, content, the quota. The rules (parent is a live directory, an emptied directory,
 * kinds) are the caller's to check. A directory that is created gets the record's times. */
void index_add_record(struct mvcc_index *index, struct mvcc_key *key,
                      const struct mvcc_record *record, size_t path_len);
/* For the scan: a record comes that refers to this content, whose writer is gone, as is everything
 * else that referred to it. At its end: contents_settle. */
void index_adopt_content(struct mvcc_index *index, const struct mvcc_content *content);

/* When a key's oldest record became garbage: the main revision of the one that followed. There must
 * be one. */
uint64_t index_garbage_since(const struct mvcc_key *key);
/* Takes a key's oldest record, which was garbage, out of the account. True: its content, if any,
 * goes with it. */
bool index_remove_oldest(struct mvcc_index *index, struct mvcc_key *key,
                         const struct mvcc_record *record, size_t path_len);

static inline bool index_is_live_dir(const struct mvcc_key *key)
{
    return key->ino != 0 && key->kind == MVCC_DIR;
}

#endif
