/* The store below MVCC: four ordered tables of byte strings, written in atomic durable batches by one
 * thread, read by others. kv_lmdb.c is the real one (the only file that knows lmdb.h), kv_mem.c a sorted array
 * for tests and the simulator: it keeps what a batch made durable across kv_mem_crash(). */
#ifndef MVCC_KV_H
#define MVCC_KV_H

#include <stdbool.h>

#include "buf.h"

enum kv_table {
    KV_RECORDS, /* 17-byte revision key -> record (docs/format-store.md) */
    KV_CONTENT, /* 17-byte revision key -> content bytes */
    KV_META,    /* name -> bytes: applied, compaction point, hash, sessions, leases, settings, members */
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
    bool remove;
    struct keel_buf *value; /* counted; NULL when remove */
};

struct kv_batch {
    struct kv_batch *next; /* for the owner's queue */
    struct kv_write *writes;
    size_t count, capacity;
    size_t bytes;
    uint64_t applied_index; /* what the batch brings the store to */
};

void kv_batch_put(struct kv_batch *batch, enum kv_table table, struct keel_slice key,
                  struct keel_buf *value_take);
struct kv_batch *kv_batch_free(struct kv_batch *batch); /* takes NULL, returns NULL */

struct kv_read; /* a read transaction: short, of one loop turn */

struct kv_ops {
    /* A consistent view. Reader threads each have their own. */
    struct kv_read *(*read_begin)(struct kv *kv);
    void (*read_end)(struct kv_read *read);
    /* Valid until read_end. KEEL_E_NOTFOUND. */
    int (*get)(struct kv_read *read, enum kv_table table, struct keel_slice key,
               struct keel_slice *ret_value);
    /* In key order from `from` (empty: the first); stops at the first non-zero result of fn and returns it. */
    int (*scan)(struct kv_read *read, enum kv_table table, struct keel_slice from,
                int (*fn)(void *arg, struct keel_slice key, struct keel_slice value), void *arg);
    /* All of the batch or nothing, durable when it returns 0. KEEL_E_DISKFULL, KEEL_E_IO: the caller ends the process. */
    int (*write)(struct kv *kv, const struct kv_batch *batch);
    /* Bytes of the file and bytes in use. */
    void (*sizes)(struct kv *kv, uint64_t *ret_file, uint64_t *ret_used);
    void (*close)(struct kv *kv);
};

/* LMDB in a directory (created 0700), opened once with map_bytes of address space. */
int kv_lmdb_open(const char *dir, uint64_t map_bytes, struct kv **ret_kv, char *ret_why,
                 size_t why_size);
struct kv *kv_mem_new(void);

#endif
