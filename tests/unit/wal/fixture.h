/* A log on a memory disk, entries whose content follows from index and term, and a model of what a
 * log holds. */
#ifndef WAL_FIXTURE_H
#define WAL_FIXTURE_H

#include "unit.h"

#include "wal/disk_mem.h"
#include "wal/internal.h"

enum { TEST_CLUSTER = 0xc1c1, TEST_NODE = 0x0d0d };

struct log {
    struct disk *disk;
    struct wal_options options;
    struct wal *wal; /* NULL while it is closed */
    struct wal_recovery recovery;
    char why[512];
};

/* A fresh log with small segments. */
void log_start(struct log *log, uint64_t segment_bytes, uint64_t fill_bytes);
/* On the disk that is there; returns what wal_open returned. */
int log_open(struct log *log);
void log_close(struct log *log);
void log_reopen(struct log *log);
/* The same log on a copy of its disk that crashes in another way; everything counts as synced. */
void log_reseed(struct log *log, uint64_t seed);
void log_end(struct log *log);

/* A batch of entries first … first + count - 1 of one term; count may be 0. */
struct wal_batch *batch_of(uint64_t first, size_t count, uint64_t term);
void batch_hard_state(struct wal_batch *batch, uint64_t term, uint64_t vote, uint64_t commit);

/* Writes one batch, expecting success, and frees it. */
void log_write(struct log *log, struct wal_batch *batch_take);
void log_append(struct log *log, uint64_t first, size_t count, uint64_t term);

/* The data of the entry (index, term): often small, sometimes over 4 KiB. */
struct keel_buf *entry_data(uint64_t index, uint64_t term);
void assert_entry(const struct raft_entry *entry, uint64_t index, uint64_t term);

/* Entry i has term terms[i - 1]. */
void assert_log_holds(struct log *log, const uint64_t *terms, uint64_t count);

/* The name of a segment's file; static storage, good for one use. */
const char *segment_file(uint64_t epoch);

#endif
