/* Helpers of the tests of the log. */
#include "fixture.h"

#include <endian.h>

#include "check.h"
#include "hash.h"
#include "rng.h"

void log_start(struct log *log, uint64_t segment_bytes, uint64_t fill_bytes)
{
    *log = (struct log){ .disk = disk_mem_new(1),
                         .options = { .cluster_id = TEST_CLUSTER,
                                      .node_id = TEST_NODE,
                                      .segment_bytes = segment_bytes,
                                      .fill_bytes = fill_bytes } };
    assert_int_equal(log_open(log), 0);
    assert_true(log->recovery.fresh);
}

int log_open(struct log *log)
{
    wal_recovery_free(&log->recovery);
    return wal_open(log->disk, &log->options, &log->wal, &log->recovery, log->why, sizeof log->why);
}

void log_close(struct log *log)
{
    log->wal = wal_close(log->wal);
}

void log_reopen(struct log *log)
{
    log_close(log);
    int err = log_open(log);

    if (err != 0)
        print_message("%s\n", log->why);
    assert_int_equal(err, 0);
    assert_false(log->recovery.fresh);
}

void log_reseed(struct log *log, uint64_t seed)
{
    struct disk *old = log->disk;

    log_close(log);
    log->disk = disk_mem_copy(old, seed);
    old->ops->free(old);
    log_reopen(log);
}

void log_end(struct log *log)
{
    log_close(log);
    wal_recovery_free(&log->recovery);
    log->disk->ops->free(log->disk);
}

static size_t data_size(struct keel_rng *rng)
{
    switch (keel_rng_below(rng, 12)) {
    case 0:
        return 0;
    case 1:
        return (size_t)keel_rng_below(rng, 9000);
    default:
        return (size_t)keel_rng_below(rng, 200);
    }
}

struct keel_buf *entry_data(uint64_t index, uint64_t term)
{
    struct keel_rng rng;

    keel_rng_seed(&rng, index * 1000003 + term);
    struct keel_buf *data = keel_buf_new(data_size(&rng));

    for (size_t i = 0; i < data->len; i += 8) {
        uint64_t word = htole64(keel_rng_next(&rng));

        memcpy(data->data + i, &word, data->len - i < 8 ? data->len - i : 8);
    }
    return data;
}

/* Every seventh entry is a no-op. */
static enum raft_entry_kind entry_kind(uint64_t index)
{
    return index % 7 == 0 ? RAFT_ENTRY_NOOP : RAFT_ENTRY_COMMAND;
}

struct wal_batch *batch_of(uint64_t first, size_t count, uint64_t term)
{
    struct wal_batch *batch = keel_calloc(1, sizeof *batch);

    batch->entries = keel_calloc(count, sizeof batch->entries[0]);
    batch->count = count;
    for (size_t i = 0; i < count; i++) {
        uint64_t index = first + i;
        enum raft_entry_kind kind = entry_kind(index);

        batch->entries[i] = (struct raft_entry){
            .term = term,
            .index = index,
            .kind = kind,
            .data = kind == RAFT_ENTRY_NOOP ? NULL : entry_data(index, term),
        };
    }
    return batch;
}

void batch_hard_state(struct wal_batch *batch, uint64_t term, uint64_t vote, uint64_t commit)
{
    batch->has_hard_state = true;
    batch->hard_state = (struct raft_hard_state){ term, vote, commit };
}

void log_write(struct log *log, struct wal_batch *batch_take)
{
    assert_int_equal(wal_write(log->wal, &batch_take, 1), 0);
    wal_batch_free(batch_take);
}

void log_append(struct log *log, uint64_t first, size_t count, uint64_t term)
{
    log_write(log, batch_of(first, count, term));
}

void assert_entry(const struct raft_entry *entry, uint64_t index, uint64_t term)
{
    assert_true(entry->index == index);
    assert_true(entry->term == term);
    assert_int_equal(entry->kind, entry_kind(index));
    if (entry->kind == RAFT_ENTRY_NOOP) {
        assert_null(entry->data);
        return;
    }
    struct keel_buf *data = entry_data(index, term);

    assert_non_null(entry->data);
    assert_true(keel_slice_equal(keel_buf_slice(entry->data), keel_buf_slice(data)));
    keel_buf_free(data);
}

/* Both what wal_read gives and what recovery returned, if the log has not been written to since. */
void assert_log_holds(struct log *log, const uint64_t *terms, uint64_t count)
{
    struct raft_entry *entries;
    size_t got;
    uint64_t prev_term;

    assert_true(wal_last_index(log->wal) == count);
    if (count == 0)
        return;
    assert_int_equal(wal_read(log->wal, 1, SIZE_MAX, &entries, &got, &prev_term), 0);
    assert_true(got == count);
    assert_true(prev_term == 0);
    for (size_t i = 0; i < got; i++)
        assert_entry(&entries[i], i + 1, terms[i]);
    raft_entries_free(entries, got);
}

const char *segment_file(uint64_t epoch)
{
    static char name[WAL_FILE_NAME];

    wal_segment_name(epoch, name);
    return name;
}
