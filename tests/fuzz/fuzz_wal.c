/* The log: any bytes as a record, and any bytes as segments, are read or refused in words; a log
 * that opens can be read from end to end, and written, and opens again. Since hardly any random
 * bytes have a sound checksum, the same input is also tried as records whose checksums, and mostly
 * places in the chain, have been put right. */
#include <stdlib.h>

#include "bytes.h"
#include "check.h"
#include "err.h"
#include "hash.h"
#include "wal/disk_mem.h"
#include "wal/internal.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { CLUSTER = 0xc1c1, NODE = 0x0d0d }; /* those of the golden file */

static void check_record(struct keel_slice bytes)
{
    struct wal_record record;
    uint8_t header[WAL_RECORD_HEADER];
    size_t size;
    int err = wal_record_decode(bytes, &record, &size);

    KEEL_ASSERT(err == 0 || err == KEEL_E_MALFORMED);
    if (err != 0)
        return;
    KEEL_ASSERT(size <= bytes.len && size >= WAL_RECORD_HEADER + record.body.len);
    wal_record_encode(&record, header);
    KEEL_ASSERT(memcmp(header, bytes.data, sizeof header) == 0);
}

static int open_log(struct disk *disk, uint64_t applied, struct wal **ret_wal,
                    struct wal_recovery *ret_recovery)
{
    struct wal_options options = { .cluster_id = CLUSTER,
                                   .node_id = NODE,
                                   .store_applied = applied,
                                   .segment_bytes = 8192,
                                   .fill_bytes = 512 };
    char why[512];
    int err = wal_open(disk, &options, ret_wal, ret_recovery, why, sizeof why);

    if (err == 0)
        return 0;
    KEEL_ASSERT(err == KEEL_E_CORRUPT || err == KEEL_E_NEWER || err == KEEL_E_INVALID);
    KEEL_ASSERT(strlen(why) > 20);
    return err;
}

static void read_all(struct wal *w, const struct wal_recovery *recovery)
{
    struct raft_entry *entries;
    size_t count;
    uint64_t prev_term;
    uint64_t first = wal_first_index(w);
    int err = wal_read(w, first, SIZE_MAX, &entries, &count, &prev_term);

    KEEL_ASSERT(recovery->first_index == first);
    if (first > recovery->last_index) {
        KEEL_ASSERT(err == KEEL_E_NOTFOUND);
        return;
    }
    KEEL_ASSERT(err == 0 && count == recovery->last_index - first + 1);
    for (size_t i = 0; i < count; i++) {
        size_t back = count - i;

        KEEL_ASSERT(entries[i].index == first + i);
        if (back > recovery->count)
            continue;
        const struct raft_entry *other = &recovery->entries[recovery->count - back];

        KEEL_ASSERT(other->index == first + i && other->term == entries[i].term &&
                    keel_slice_equal(keel_buf_slice(entries[i].data), keel_buf_slice(other->data)));
    }
    raft_entries_free(entries, count);
}

static void append_one(struct wal *w)
{
    struct raft_entry entry = { .index = wal_last_index(w) + 1, .kind = RAFT_ENTRY_NOOP };
    struct wal_batch batch = { .entries = &entry, .count = 1 };
    struct wal_batch *batches[1] = { &batch };

    KEEL_ASSERT(wal_write(w, batches, 1) == 0);
}

static void check_open_log(struct disk *disk, uint64_t applied, struct wal *w,
                           struct wal_recovery *recovery)
{
    uint64_t last = recovery->last_index;

    read_all(w, recovery);
    if (last < UINT64_MAX - 1) {
        append_one(w);
        KEEL_ASSERT(wal_release(w, applied, 0) == 0);
        last++;
    }
    wal_recovery_free(recovery);
    wal_close(w);
    KEEL_ASSERT(open_log(disk, applied, &w, recovery) == 0);
    KEEL_ASSERT(recovery->last_index == last && !recovery->tail_cut);
    read_all(w, recovery);
    wal_recovery_free(recovery);
    wal_close(w);
}

/* The disk is consumed. */
static void check_log(struct disk *disk_take, uint64_t applied)
{
    struct wal_recovery recovery;
    struct wal *w;

    if (open_log(disk_take, applied, &w, &recovery) == 0)
        check_open_log(disk_take, applied, w, &recovery);
    disk_take->ops->free(disk_take);
}

/* One record at the front of what is left; returns how much it takes. The first reserved byte of
 * the input says what is not put right. */
static size_t repair_record(uint8_t *p, size_t left, uint64_t epoch, uint64_t *sequence,
                            uint64_t *previous)
{
    size_t room = left - WAL_RECORD_HEADER;
    size_t length = get_le32(p + 4) % (room + 1);
    uint8_t spare = p[10];

    if (wal_record_size(length) > left)
        length = 0;

    struct wal_record record = {
        .length = (uint32_t)length,
        .kind = (spare & 0x08) ? p[8] : p[8] % 5,
        .entry_kind = p[9] % 3,
        .term = get_le64(p + 16),
        .index = (spare & 0x10) ? get_le64(p + 24) : p[24],
        .epoch = (spare & 0x20) ? get_le64(p + 32) : epoch,
        .sequence = (spare & 0x40) ? get_le64(p + 40) : *sequence + 1,
        .previous_checksum = (spare & 0x80) ? get_le64(p + 48) : *previous,
        .durable = get_le64(p + 56),
        .body = keel_slice_of(p + WAL_RECORD_HEADER, length),
    };
    size_t size = wal_record_size(length);

    if (record.sequence == 0)
        record.sequence = 1;
    record.durable %= record.sequence;
    memset(p + WAL_RECORD_HEADER + length, 0, size - WAL_RECORD_HEADER - length);
    *sequence = record.sequence;
    *previous = wal_record_encode(&record, p);
    return size;
}

static void repair_segment(uint8_t *p, size_t size, uint64_t epoch)
{
    struct wal_segment_header header = { .version = WAL_FORMAT_VERSION,
                                         .cluster_id = CLUSTER,
                                         .node_id = NODE,
                                         .epoch = epoch,
                                         .first_sequence = 1 };
    uint64_t sequence = 0, previous = 0;
    size_t at = WAL_SEGMENT_HEADER;

    if (size < WAL_SEGMENT_HEADER)
        return;
    wal_segment_encode(&header, p);
    while (size - at >= WAL_RECORD_HEADER)
        at += repair_record(p + at, size - at, epoch, &sequence, &previous);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t *copy = keel_malloc(size);
    struct disk *disk = disk_mem_new(1);
    size_t half = size / 2 & ~(size_t)7;
    uint64_t applied = size > 0 ? data[size - 1] % 4 : 0; /* small, as indexes put right are */

    check_record(keel_slice_of(data, size));
    disk_mem_put(disk, "0000000000000001.wal", keel_slice_of(data, size));
    check_log(disk, 0);

    if (size > 0)
        memcpy(copy, data, size);
    repair_segment(copy, size, 7);
    disk = disk_mem_new(1);
    disk_mem_put(disk, "0000000000000007.wal", keel_slice_of(copy, size));
    check_log(disk, applied);

    repair_segment(copy, size, 1);
    disk = disk_mem_new(1);
    disk_mem_put(disk, "0000000000000001.wal", keel_slice_of(copy, size));
    check_log(disk, applied);

    disk = disk_mem_new(1);
    disk_mem_put(disk, "0000000000000001.wal", keel_slice_of(copy, half));
    disk_mem_put(disk, "0000000000000002.wal", keel_slice_of(data + half, size - half));
    check_log(disk, 0);
    free(copy);
    return 0;
}
