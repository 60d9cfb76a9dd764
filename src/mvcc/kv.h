/* The store below MVCC: four ordered tables of byte strings, written in atomic durable batches by
 * one thread, read by others. kv_lmdb.c is the real one (the only file that knows lmdb.h), kv_mem.c
 * sorted arrays for tests and the simulator: what was written is durable at once, so a simulated
 * crash just keeps the kv. */
#ifndef MVCC_KV_H
#define MVCC_KV_H

#include <stdbool.h>

#include "buf.h"

enum kv_table {
    KV_RECORDS, /* 17-byte revision key -> record (docs/format-store.md) */
    KV_CONTENT, /* 17-byte revision key -> content bytes */
    KV_META,    /* name -> bytes: format, state, and what apply keeps */
    KV_DIRS,    /* inode number, 8 bytes big-endian -> mtime and ctime of a directory */
    KV_TABLES
};

struct kv {
    const struct kv_ops *ops;
};

/* One write of a batch. */
struct kv_write {
    enum kv_table table;
    uint8_t key_len;
    uint8_t key[32];
    bool remove;             /* of a key that is absent: nothing happens */
    struct keel_buf *value;  /* counted owner of the bytes; NULL when remove, or borrowed */
    struct keel_slice bytes; /* all of value or a part of it */
};

struct kv_batch {
    struct kv_batch *next; /* for the owner's queue */
    struct kv_write *writes;
    size_t count, capacity;
    size_t bytes;
    uint64_t applied_index; /* what the batch brings the store to */
};

struct kv_batch *kv_batch_new(void);
void kv_batch_put(struct kv_batch *batch, enum kv_table table, struct keel_slice key,
                  struct keel_buf *value_take);
/* Only `bytes`, which lie inside value: the rest of an entry need not be copied away. NULL for the
 * value: they are borrowed until the batch is freed. */
void kv_batch_put_slice(struct kv_batch *batch, enum kv_table table, struct keel_slice key,
                        struct keel_buf *value_take, struct keel_slice bytes);
void kv_batch_remove(struct kv_batch *batch, enum kv_table table, struct keel_slice key);
/* What is left says which keys were written, for kv_follow; `bytes` stays what it was. */
void kv_batch_forget_values(struct kv_batch *batch);
struct kv_batch *kv_batch_free(struct kv_batch *batch); /* takes NULL, returns NULL */

struct kv_read; /* a read transaction: short, of one loop turn */

struct kv_ops {
    /* A consistent view. Reader threads each have their own. */
    struct kv_read *(*read_begin)(struct kv *kv);
    void (*read_end)(struct kv_read *read);
    /* Valid until read_end. KEEL_E_NOTFOUND. */
    int (*get)(struct kv_read *read, enum kv_table table, struct keel_slice key,
               struct keel_slice *ret_value);
    /* In key order from `from` (empty: the first); stops at the first non-zero result of fn and
     * returns it. */
    int (*scan)(struct kv_read *read, enum kv_table table, struct keel_slice from,
                int (*fn)(void *arg, struct keel_slice key, struct keel_slice value), void *arg);
    /* All of the batch or nothing, durable when it returns 0. KEEL_E_DISKFULL, KEEL_E_IO: the
     * caller ends the process. */
    int (*write)(struct kv *kv, const struct kv_batch *batch);
    /* Bytes of the file and bytes in use. */
    void (*sizes)(struct kv *kv, uint64_t *ret_file, uint64_t *ret_used);
    void (*close)(struct kv *kv);
};

/* All of `from` as it is at some moment of the call, into `to`, which is empty: in durable pieces
 * of about a megabyte, in key order. Others may read and write `from` meanwhile. go_on is asked
 * before each piece; an error of its ends the copying, and so do those of a write. Then `to` holds
 * a part.
 */
int kv_copy(struct kv *from, struct kv *to, int (*go_on)(void *arg), void *arg);
/* Each key that is written in the batches (a list; values are not looked at) gets the value in `to`
 * that it has in `from` at some moment of the call, or goes. A copy that has followed all that was
 * written to `from` since before the copying began is the same as `from`. Durable; errors are those
 * of a write. */
int kv_follow(struct kv *from, struct kv *to, const struct kv_batch *batches);

/* LMDB in a directory (created 0700), opened once with map_bytes of address space. KEEL_E_CORRUPT
 * (damaged or truncated), KEEL_E_NEWER (another version of LMDB), KEEL_E_ACCESS, KEEL_E_DISKFULL,
 * KEEL_E_IO; ret_why says what and where. */
int kv_lmdb_open(const char *dir, uint64_t map_bytes, struct kv **ret_kv, char *ret_why,
                 size_t why_size);
/* To look at a store without changing a byte of it, or of its lock; it must be there, and must not
 * be written. While a node does write it, only a short look is right, and only if what it gives has
 * a check of its own. Errors as above. */
int kv_lmdb_open_read_only(const char *dir, struct kv **ret_kv, char *ret_why, size_t why_size);
/* In memory, and for one thread. */
struct kv *kv_mem_new(void);

#endif
