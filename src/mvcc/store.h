/* struct mvcc and what its files share. store.c: open, pending, checkpoint; scan.c: the rebuild;
 * read.c: questions; txn.c: changes; compact.c: what goes. */
#ifndef MVCC_STORE_H
#define MVCC_STORE_H

#include "mvcc/index.h"
#include "mvcc/record.h"

/* What one revision wrote and the kv doesn't have yet. Compaction may take either part away. */
struct pending_entry {
    struct mvcc_revision rev;
    struct keel_buf *record;   /* behind its revision key; NULL: gone */
    struct mvcc_value content; /* owner NULL: wrote none, or gone */
};

/* Entries in the order of their revisions, which is the order in which they arrive: found by
 * bisection. */
struct pending {
    struct pending_entry *entries;
    size_t count, capacity;
    /* Of what the kv has, or will have by the batch that is out: the beginning of the next batch,
     * so that it grows with the steps of compaction and needs no time of its own. NULL: none. */
    struct kv_batch *removals;
    size_t bytes;
};

struct mvcc_txn {
    struct mvcc *m;
    uint64_t index, term;
    uint64_t revision;
    uint32_t next_sub;
    bool open;
};

struct mvcc {
    struct kv *kv;
    struct kv_read *read; /* open while somebody reads */
    struct mvcc_index index;
    uint64_t revision, compact_revision;
    uint64_t applied_index, applied_term, durable_index;
    struct keel_hash128 hash;
    struct mvcc_txn txn;

    struct pending now; /* since the last mvcc_checkpoint */
    struct pending out; /* in the batch that is being written */
    bool is_out;
    uint64_t out_index;
    struct keel_link dirty; /* directories (mvcc_dir.dirty) whose times have changed since */
    uint64_t *removed;      /* inode numbers of directories removed since */
    size_t removed_count, removed_capacity;

    struct mvcc_key **emptied; /* keys without a revision since the last reload, pinned here */
    size_t emptied_count;
    uint8_t *keyed; /* a revision key and a record in one piece, for the hash */
    size_t keyed_size;
};

/* ---- store.c ---- */

/* Encodes, hashes, and makes pending a record with its key's place filled in; tells the index.
 * value: new content or NULL. */
void store_add(struct mvcc *m, struct mvcc_key *key, const struct mvcc_record *record,
               const struct mvcc_value *value);
/* Takes away what a revision wrote into that table. */
void store_remove(struct mvcc *m, enum kv_table table, struct mvcc_revision rev);
const struct pending_entry *store_find_pending(const struct mvcc *m, struct mvcc_revision rev);
/* The read transaction, begun on demand. */
struct kv_read *store_read(struct mvcc *m);
/* A record's term of the state hash. */
struct keel_hash128 store_hash_of(struct mvcc *m, struct keel_slice rev_key,
                                  struct keel_slice bytes);
void store_dir_dirty(struct mvcc *m, struct mvcc_dir *dir);
void store_dir_removed(struct mvcc *m, uint64_t ino);

enum { DIR_VALUE_LEN = 24, DIR_KEY_LEN = 8 };
void store_dir_encode(const struct mvcc_dir *dir, uint8_t ret_value[DIR_VALUE_LEN]);
int store_dir_decode(uint64_t ino, struct keel_slice value, int64_t *ret_mtime_ns,
                     int64_t *ret_ctime_ns);

/* ---- what KV_META says of the store ---- */

#define STORE_META_FORMAT "format"
#define STORE_META_STATE "state"

struct store_state {
    uint64_t applied_index, applied_term;
    uint64_t revision, compact_revision;
    struct keel_hash128 hash;
};

/* The format version; 0: damaged. */
uint32_t store_format_decode(struct keel_slice value);
/* KEEL_E_CORRUPT. */
int store_state_decode(struct keel_slice value, struct store_state *ret_state);
/* Format checked, state decoded. KEEL_E_NOTFOUND: there is no format; KEEL_E_CORRUPT, KEEL_E_NEWER,
 * or the kv's error. */
int store_state_read(struct kv *kv, struct kv_read *read, struct store_state *ret_state,
                     char *ret_why, size_t why_size);

/* ---- read.c ---- */

/* A kept record's bytes, and what they say; slices as with mvcc_get. KEEL_E_CORRUPT. */
int store_load(struct mvcc *m, const struct mvcc_key *key, struct mvcc_revision rev,
               struct mvcc_record *ret_record, struct keel_slice *ret_bytes);

/* ---- compact.c ---- */

/* After a reload: keys without a revision are kept until the next step of compaction, since they
 * may be known elsewhere and are pinned only later. Before one: those of the last. */
void store_keep_emptied(struct mvcc *m);
void store_forget_emptied(struct mvcc *m);

/* ---- scan.c ---- */

/* Rebuilds the index; m->revision and the other numbers of the stored state are there, m->hash is
 * what must come out. */
int scan_store(struct mvcc *m, struct kv_read *read, char *ret_why, size_t why_size);

#endif
