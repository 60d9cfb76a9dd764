/* Logs of format version 1 that are committed as test data: every later build has to read them, and
 * as long as that is the current version, writes them byte for byte. With --write-golden DIR it
 * writes them. */
#include "fixture.h"

#include <stdio.h>

#include "check.h"
#include "err.h"

enum { SEGMENT = 1024, NAME_SIZE = 64 };

static struct keel_buf *data_file(const char *name)
{
    char path[512];
    struct keel_buf *bytes = keel_buf_new(64 << 10);

    snprintf(path, sizeof path, "%s/wal/%s", TEST_DATA, name);
    FILE *f = fopen(path, "rb");

    assert_non_null(f);
    bytes->len = fread(bytes->data, 1, bytes->len, f);
    fclose(f);
    return bytes;
}

static bool write_file(const char *dir, const char *name, struct keel_slice bytes)
{
    char path[512];

    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "wb");

    if (f == NULL)
        return false;
    bool ok = fwrite(bytes.data, 1, bytes.len, f) == bytes.len;

    return fclose(f) == 0 && ok;
}

static struct log empty_log(void)
{
    return (struct log){ .disk = disk_mem_new(1),
                         .options = { .cluster_id = TEST_CLUSTER, .node_id = TEST_NODE } };
}

static void assert_goes_on(struct log *log)
{
    uint64_t last = wal_last_index(log->wal);

    log_append(log, last + 1, 1, 50);
    log_reopen(log);
    assert_true(wal_last_index(log->wal) == last + 1);
    assert_false(log->recovery.tail_cut);
}

/* ---- a log of one segment ---- */

static const uint64_t golden_terms[] = { 1, 1, 1, 1, 2, 2, 3, 3 };

static void young_log(struct log *log)
{
    struct wal_batch *batch = batch_of(1, 4, 1);

    log_start(log, 0, 4096);
    batch_hard_state(batch, 1, 4711, 2);
    log_write(log, batch);
    log_append(log, 5, 5, 2);
    batch = batch_of(7, 2, 3);
    batch_hard_state(batch, 3, 0, 6);
    log_write(log, batch);
    assert_int_equal(wal_idle(log->wal), 0);
}

static void a_young_log_of_format_1_stays_readable(void **state)
{
    struct keel_buf *bytes = data_file("golden-v1.wal");
    struct log log = empty_log();

    (void)state;
    log.options.store_applied = 5;
    disk_mem_put(log.disk, segment_file(1), keel_buf_slice(bytes));
    keel_buf_free(bytes);
    assert_int_equal(log_open(&log), 0);
    assert_false(log.recovery.tail_cut || log.recovery.fresh);
    assert_true(log.recovery.hard_state.term == 3 && log.recovery.hard_state.vote == 0 &&
                log.recovery.hard_state.commit == 6);
    assert_int_equal(log.recovery.count, 3);
    assert_true(log.recovery.base_term == 2);
    assert_log_holds(&log, golden_terms, 8);
    assert_goes_on(&log);
    log_end(&log);
}

/* ---- a log with all that the format knows ---- */

/* Segment 4 has the mark of a snapshot of entry 40; those before it are released, and 1 is recycled
 * to be 5, which is in use over its old bytes. 6 is a new file made ready. */
enum { OLD_FIRST = 4, OLD_LAST = 6, OLD_SNAPSHOT = 40 };

static void append_words(struct log *log, uint64_t index, size_t count, uint64_t term)
{
    struct wal_batch *batch = keel_calloc(1, sizeof *batch);
    char words[64];

    batch->entries = keel_calloc(count, sizeof batch->entries[0]);
    batch->count = count;
    for (size_t i = 0; i < count; i++) {
        snprintf(words, sizeof words, "entry %u of term %u", (unsigned)(index + i), (unsigned)term);
        batch->entries[i] = (struct raft_entry){ .term = term,
                                                 .index = index + i,
                                                 .kind = RAFT_ENTRY_COMMAND,
                                                 .data = keel_buf_copy(keel_slice_str(words)) };
    }
    log_write(log, batch);
}

static void old_log(struct log *log)
{
    struct wal_batch *batch = batch_of(1, 0, 0);

    log_start(log, SEGMENT, 256);
    batch_hard_state(batch, 1, 4711, 0);
    log_write(log, batch);
    for (uint64_t index = 1; log->wal->epoch < 4; index += 2)
        append_words(log, index, 2, 1);
    batch = batch_of(OLD_SNAPSHOT + 1, 0, 0);
    batch->reset = true;
    batch->reset_index = OLD_SNAPSHOT;
    batch->reset_term = 2;
    batch_hard_state(batch, 3, 4712, OLD_SNAPSHOT);
    log_write(log, batch);
    append_words(log, OLD_SNAPSHOT + 1, 3, 3);
    assert_int_equal(wal_release(log->wal, 0, SEGMENT), 0);
    for (uint64_t index = OLD_SNAPSHOT + 4; log->wal->epoch < 5; index++)
        append_words(log, index, 1, 3);
    append_words(log, OLD_SNAPSHOT + 6, 2, 4); /* cuts off the one that stands there */
    assert_int_equal(wal_idle(log->wal), 0);

    bool more = true;

    while (more)
        assert_int_equal(wal_prepare(log->wal, &more), 0);
}

static const char *old_log_file(uint64_t epoch)
{
    static char name[NAME_SIZE];

    snprintf(name, sizeof name, "golden-v1-%s", segment_file(epoch));
    return name;
}

static void put_old_log(struct log *log)
{
    *log = empty_log();
    log->options.store_applied = OLD_SNAPSHOT;
    log->options.segment_bytes = SEGMENT;
    log->options.fill_bytes = 256;
    for (uint64_t epoch = OLD_FIRST; epoch <= OLD_LAST; epoch++) {
        struct keel_buf *bytes = data_file(old_log_file(epoch));

        disk_mem_put(log->disk, segment_file(epoch), keel_buf_slice(bytes));
        keel_buf_free(bytes);
    }
}

static void a_log_of_format_1_stays_readable(void **state)
{
    struct raft_entry *entries;
    struct log log;
    size_t count;
    uint64_t prev_term;

    (void)state;
    put_old_log(&log);
    assert_int_equal(log_open(&log), 0);
    assert_false(log.recovery.tail_cut || log.recovery.fresh);
    assert_true(log.recovery.hard_state.term == 4 && log.recovery.hard_state.vote == 0 &&
                log.recovery.hard_state.commit == OLD_SNAPSHOT);
    assert_true(log.recovery.first_index == OLD_SNAPSHOT + 1 && log.recovery.base_term == 2);
    assert_true(log.recovery.last_index == OLD_SNAPSHOT + 7 && log.recovery.count == 7);
    assert_int_equal(wal_read(log.wal, OLD_SNAPSHOT + 1, SIZE_MAX, &entries, &count, &prev_term),
                     0);
    assert_true(count == 7 && prev_term == 2);
    for (size_t i = 0; i < count; i++) {
        char words[64];

        snprintf(words, sizeof words, "entry %zu of term %d", OLD_SNAPSHOT + 1 + i, i < 5 ? 3 : 4);
        assert_true(entries[i].index == OLD_SNAPSHOT + 1 + i && entries[i].term == (i < 5 ? 3 : 4));
        assert_true(keel_slice_equal(keel_buf_slice(entries[i].data), keel_slice_str(words)));
    }
    raft_entries_free(entries, count);
    assert_goes_on(&log);
    log_end(&log);
}

static void logs_are_still_written_as_in_format_1(void **state)
{
    struct keel_buf *bytes = data_file("golden-v1.wal");
    struct log log;

    (void)state;
    young_log(&log);
    assert_true(keel_slice_equal(disk_mem_file(log.disk, segment_file(1)), keel_buf_slice(bytes)));
    keel_buf_free(bytes);
    log_end(&log);

    old_log(&log);
    assert_true(log.wal->oldest_epoch == OLD_FIRST && log.wal->epoch == 5 && log.wal->recycled);
    for (uint64_t epoch = OLD_FIRST; epoch <= OLD_LAST; epoch++) {
        bytes = data_file(old_log_file(epoch));
        assert_true(
            keel_slice_equal(disk_mem_file(log.disk, segment_file(epoch)), keel_buf_slice(bytes)));
        keel_buf_free(bytes);
    }
    log_end(&log);
}

static int write_golden(const char *dir)
{
    struct log log;

    young_log(&log);
    bool ok = write_file(dir, "golden-v1.wal", disk_mem_file(log.disk, segment_file(1)));

    log_end(&log);
    old_log(&log);
    for (uint64_t epoch = OLD_FIRST; epoch <= OLD_LAST; epoch++)
        ok = write_file(dir, old_log_file(epoch), disk_mem_file(log.disk, segment_file(epoch))) &&
             ok;
    log_end(&log);
    return ok ? 0 : 1;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_young_log_of_format_1_stays_readable),
        cmocka_unit_test(a_log_of_format_1_stays_readable),
        cmocka_unit_test(logs_are_still_written_as_in_format_1),
    };

    if (argc == 3 && strcmp(argv[1], "--write-golden") == 0)
        return write_golden(argv[2]);
    return cmocka_run_group_tests_name("golden", tests, NULL, NULL);
}
