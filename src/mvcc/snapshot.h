/* A snapshot of a store as a stream of bytes (docs/format-snapshot.md): what InstallSnapshot sends
 * and a backup file holds. Pure: from a kv, and into one.
 *
 *   header    magic, format version, cluster id, applied index and term, revision, compaction
 *             point, state hash, counts
 *   blocks    at most SNAPSHOT_BLOCK_BYTES of entries of one table, in order, each block with its
 *             number and an xxh3-64 that is seeded with that of the block before it
 *   trailer   counts again, total length; its check is at the end of the chain, so of the whole
 *
 * A reader takes pieces of any size and hands on batches; nothing that fails a check is handed on,
 * but a failure may come after batches: what they were written into is to be thrown away then. */
#ifndef MVCC_SNAPSHOT_H
#define MVCC_SNAPSHOT_H

#include "hash.h"
#include "mvcc/kv.h"

enum {
    SNAPSHOT_FORMAT_VERSION = 1,
    SNAPSHOT_BLOCK_BYTES = 64 << 10, /* aimed at: a larger record has a block of its own */
};

struct snapshot_info {
    uint64_t cluster_id;
    uint64_t index, term; /* applied */
    uint64_t revision, compact_revision;
    struct keel_hash128 hash; /* state hash */
    uint64_t entries[KV_TABLES];
    uint64_t bytes; /* of the whole stream; 0 until it is known */
};

/* ---- writing ---- */

struct snapshot_writer;

/* Begins a read transaction of the kv, which lasts until snapshot_writer_free: a file on a disk of
 * one's own is fast enough, a peer's connection is not. KEEL_E_NOTFOUND: the store is empty. */
int snapshot_writer_new(struct kv *kv, uint64_t cluster_id, struct snapshot_writer **ret_writer);
/* The next piece, valid until the next call; empty: that was all. KEEL_E_CORRUPT: the store has
 * something that none may have, or content that is not what its record says; or the kv's error. */
int snapshot_writer_next(struct snapshot_writer *writer, struct keel_slice *ret_bytes);
/* Complete (with bytes) at the end. */
const struct snapshot_info *snapshot_writer_info(const struct snapshot_writer *writer);
struct snapshot_writer *snapshot_writer_free(struct snapshot_writer *writer); /* NULL -> NULL */

/* ---- reading ---- */

struct snapshot_reader;

/* sink: takes each batch (to be freed by it); a non-zero result ends the reading with it. NULL:
 * only checks. Batches have at most 1 MiB, but for the last one: that is all of KV_META, comes
 * after everything was found good, and has the applied index. */
struct snapshot_reader *snapshot_reader_new(int (*sink)(void *arg, struct kv_batch *batch_take),
                                            void *arg);
/* KEEL_E_CORRUPT (ret_why says where), KEEL_E_NEWER, or the sink's. The first error is for good. */
int snapshot_reader_feed(struct snapshot_reader *reader, struct keel_slice bytes, char *ret_why,
                         size_t why_size);
/* Was that all? KEEL_E_CORRUPT: it ends too early. */
int snapshot_reader_finish(struct snapshot_reader *reader, struct snapshot_info *ret_info,
                           char *ret_why, size_t why_size);
struct snapshot_reader *snapshot_reader_free(struct snapshot_reader *reader); /* NULL -> NULL */

#endif
