/* The open log: what is written comes back, in how many calls, and what happens when the disk
 * fails. */
#include "fixture.h"

#include "check.h"
#include "err.h"
#include "rng.h"

static void entries_come_back_across_segment_boundaries(void **state)
{
    struct log log;
    uint64_t terms[200];

    (void)state;
    log_start(&log, 4096, 512);
    for (uint64_t i = 0; i < 200; i += 4) {
        log_append(&log, i + 1, 4, i / 40 + 1);
        for (uint64_t j = i; j < i + 4; j++)
            terms[j] = i / 40 + 1;
    }
    assert_log_holds(&log, terms, 200);
    log_reopen(&log);
    assert_true(log.wal->epoch > 3);
    assert_true(log.recovery.first_index == 1 && log.recovery.last_index == 200);
    assert_int_equal(log.recovery.count, 200);
    for (size_t i = 0; i < 200; i++)
        assert_entry(&log.recovery.entries[i], i + 1, terms[i]);
    assert_false(log.recovery.tail_cut);
    assert_log_holds(&log, terms, 200);
    log_end(&log);
}

static void several_batches_in_one_call_are_all_there(void **state)
{
    struct log log;
    struct wal_batch *batches[3] = { batch_of(1, 5, 1), batch_of(0, 0, 0), batch_of(4, 3, 2) };
    const uint64_t terms[] = { 1, 1, 1, 2, 2, 2 };

    (void)state;
    log_start(&log, 0, 4096);
    batch_hard_state(batches[1], 2, 77, 3);
    assert_int_equal(wal_write(log.wal, batches, 3), 0);
    for (size_t i = 0; i < 3; i++)
        wal_batch_free(batches[i]);
    log_reopen(&log);
    assert_log_holds(&log, terms, 6);
    assert_true(log.recovery.hard_state.term == 2 && log.recovery.hard_state.vote == 77 &&
                log.recovery.hard_state.commit == 3);
    log_end(&log);
}

static void entries_that_the_store_has_are_indexed_but_not_returned(void **state)
{
    struct log log;
    struct raft_entry *entries;
    size_t count;
    uint64_t prev_term;

    (void)state;
    log_start(&log, 4096, 512);
    log_append(&log, 1, 10, 1);
    log_append(&log, 11, 10, 2);
    log.options.store_applied = 15;
    log_reopen(&log);
    assert_int_equal(log.recovery.count, 5);
    assert_entry(&log.recovery.entries[0], 16, 2);
    assert_true(log.recovery.base_term == 2);
    assert_int_equal(wal_read(log.wal, 10, 1, &entries, &count, &prev_term), 0);
    assert_int_equal(count, 1);
    assert_true(prev_term == 1);
    assert_entry(&entries[0], 10, 1);
    raft_entries_free(entries, count);

    log.options.store_applied = 20;
    log_reopen(&log);
    assert_int_equal(log.recovery.count, 0);
    assert_true(log.recovery.last_index == 20 && log.recovery.base_term == 2);
    log_end(&log);
}

static void later_entry_replaces_everything_from_its_index_on(void **state)
{
    struct log log;
    const uint64_t terms[] = { 1, 1, 1, 3, 3 };

    (void)state;
    log_start(&log, 4096, 512);
    log_append(&log, 1, 9, 1);
    log_append(&log, 6, 20, 2);
    log_append(&log, 4, 2, 3);
    assert_log_holds(&log, terms, 5);
    log_reopen(&log);
    assert_log_holds(&log, terms, 5);
    assert_int_equal(log.recovery.count, 5);
    for (size_t i = 0; i < 5; i++)
        assert_entry(&log.recovery.entries[i], i + 1, terms[i]);
    log_end(&log);
}

/* A random history with replaced suffixes, read from every position with several limits. */
static void read_gives_the_right_entries_from_every_position(void **state)
{
    struct log log;
    struct keel_rng rng;
    uint64_t terms[1000], last = 0;

    (void)state;
    keel_rng_seed(&rng, 5);
    log_start(&log, 8192, 512);
    for (uint64_t term = 1; term < 40; term++) {
        uint64_t first = last - keel_rng_below(&rng, last < 8 ? last + 1 : 8) + 1;
        size_t count = (size_t)keel_rng_below(&rng, 12) + 1;

        log_append(&log, first, count, term);
        last = first + count - 1;
        for (uint64_t i = first; i <= last; i++)
            terms[i - 1] = term;
    }
    for (uint64_t first = 1; first <= last; first++) {
        size_t max = (size_t)keel_rng_below(&rng, 3000), bytes = 0, count;
        struct raft_entry *entries;
        uint64_t prev_term;

        assert_int_equal(wal_read(log.wal, first, max, &entries, &count, &prev_term), 0);
        assert_true(prev_term == (first == 1 ? 0 : terms[first - 2]));
        assert_true(count >= 1);
        for (size_t i = 0; i < count; i++) {
            assert_entry(&entries[i], first + i, terms[first + i - 1]);
            bytes += raft_entry_bytes(&entries[i]);
        }
        assert_true(count == 1 || bytes <= max);
        if (first + count <= last) {
            struct keel_buf *next = entry_data(first + count, terms[first + count - 1]);

            assert_true(bytes + 32 + ((first + count) % 7 ? next->len : 0) > max);
            keel_buf_free(next);
        }
        raft_entries_free(entries, count);
    }
    log_end(&log);
}

static void read_outside_the_log_finds_nothing(void **state)
{
    struct log log;
    struct raft_entry *entries;
    size_t count;
    uint64_t prev_term;

    (void)state;
    log_start(&log, 0, 512);
    assert_int_equal(wal_read(log.wal, 1, 100, &entries, &count, &prev_term), KEEL_E_NOTFOUND);
    log_append(&log, 1, 3, 1);
    assert_int_equal(wal_read(log.wal, 0, 100, &entries, &count, &prev_term), KEEL_E_NOTFOUND);
    assert_int_equal(wal_read(log.wal, 4, 100, &entries, &count, &prev_term), KEEL_E_NOTFOUND);
    log_end(&log);
}

static void read_of_rotten_bytes_is_corrupt(void **state)
{
    struct log log;
    struct raft_entry *entries;
    size_t count;
    uint64_t prev_term;

    (void)state;
    log_start(&log, 0, 512);
    log_append(&log, 1, 3, 1);
    disk_mem_flip(log.disk, segment_file(1), wal_index_offset(&log.wal->index, 2) + 30, 4);
    assert_int_equal(wal_read(log.wal, 1, 1, &entries, &count, &prev_term), 0);
    raft_entries_free(entries, count);
    assert_int_equal(wal_read(log.wal, 1, SIZE_MAX, &entries, &count, &prev_term), KEEL_E_CORRUPT);
    assert_int_equal(wal_read(log.wal, 3, SIZE_MAX, &entries, &count, &prev_term), KEEL_E_CORRUPT);
    log_end(&log);
}

static void batch_costs_one_write_and_one_sync(void **state)
{
    struct log log;
    struct wal_batch *batches[20];

    (void)state;
    log_start(&log, 0, 4096);
    for (uint64_t i = 0; i < 20; i++)
        batches[i] = batch_of(1 + i * 5, 5, 1);

    struct disk_mem_counters before = disk_mem_counters(log.disk);

    assert_int_equal(wal_write(log.wal, batches, 20), 0);

    struct disk_mem_counters after = disk_mem_counters(log.disk);

    assert_true(after.writes == before.writes + 1);
    assert_true(after.syncs == before.syncs + 1);
    assert_true(after.dir_syncs == before.dir_syncs);
    for (size_t i = 0; i < 20; i++)
        wal_batch_free(batches[i]);
    log_end(&log);
}

static void nothing_to_write_costs_nothing(void **state)
{
    struct log log;
    struct wal_batch *empty = batch_of(1, 0, 0);

    (void)state;
    log_start(&log, 0, 4096);
    struct disk_mem_counters before = disk_mem_counters(log.disk);

    assert_int_equal(wal_write(log.wal, &empty, 1), 0);
    assert_int_equal(wal_write(log.wal, NULL, 0), 0);
    assert_true(disk_mem_counters(log.disk).changes == before.changes);
    wal_batch_free(empty);
    log_end(&log);
}

static void idle_log_says_once_what_is_durable(void **state)
{
    struct log log;

    (void)state;
    log_start(&log, 0, 4096);
    uint64_t before = disk_mem_counters(log.disk).changes;

    assert_int_equal(wal_idle(log.wal), 0);
    assert_true(disk_mem_counters(log.disk).changes == before);
    log_append(&log, 1, 3, 1);
    before = disk_mem_counters(log.disk).changes;
    assert_int_equal(wal_idle(log.wal), 0);
    assert_true(disk_mem_counters(log.disk).changes == before + 2);
    assert_int_equal(wal_idle(log.wal), 0);
    assert_true(disk_mem_counters(log.disk).changes == before + 2);

    log_reopen(&log);
    before = disk_mem_counters(log.disk).changes;
    assert_int_equal(wal_idle(log.wal), 0);
    assert_true(disk_mem_counters(log.disk).changes == before);
    log_append(&log, 4, 1, 1);
    log_reopen(&log);
    before = disk_mem_counters(log.disk).changes;
    assert_int_equal(wal_idle(log.wal), 0);
    assert_true(disk_mem_counters(log.disk).changes == before + 2);
    log_end(&log);
}

/* Calls wal_prepare until it has nothing left to do; returns the number of calls. */
static int prepare_all(struct log *log)
{
    bool more = true;
    int calls = 0;

    while (more) {
        assert_int_equal(wal_prepare(log->wal, &more), 0);
        assert_true(++calls < 1000);
    }
    return calls;
}

static void prepared_log_neither_grows_nor_makes_files_when_it_is_written(void **state)
{
    struct log log;

    (void)state;
    log_start(&log, 8192, 1024);
    prepare_all(&log);
    assert_int_equal(disk_mem_file(log.disk, segment_file(1)).len, 8192);
    assert_int_equal(disk_mem_file(log.disk, segment_file(2)).len, 8192);
    assert_null(disk_mem_file(log.disk, segment_file(3)).data);
    for (uint64_t i = 0; log.wal->epoch == 1; i++) {
        struct wal_batch *batch = batch_of(7, 1, i + 1); /* a no-op: 72 bytes */

        batch->entries[0].index = i + 1;
        log_write(&log, batch);
        assert_int_equal(disk_mem_file(log.disk, segment_file(1)).len, 8192);
    }
    assert_int_equal(disk_mem_file(log.disk, segment_file(2)).len, 8192);
    assert_int_equal(disk_mem_counters(log.disk).dir_syncs, 2); /* one a file */
    assert_true(prepare_all(&log) > 8);
    assert_int_equal(disk_mem_file(log.disk, segment_file(3)).len, 8192);
    log_end(&log);
}

static void entry_larger_than_a_segment_has_one_of_its_own(void **state)
{
    struct log log;
    struct wal_batch *batch = batch_of(1, 3, 1);
    struct raft_entry *entries;
    size_t count;
    uint64_t prev_term;

    (void)state;
    log_start(&log, 4096, 512);
    keel_buf_free(batch->entries[1].data);
    batch->entries[1].data = keel_buf_new(KEEL_ENTRY_SIZE_MAX);
    memset(batch->entries[1].data->data, 'x', KEEL_ENTRY_SIZE_MAX);
    assert_int_equal(wal_write(log.wal, &batch, 1), 0);
    log_reopen(&log);
    assert_int_equal(log.recovery.count, 3);
    assert_entry(&log.recovery.entries[0], 1, 1);
    assert_true(keel_slice_equal(keel_buf_slice(log.recovery.entries[1].data),
                                 keel_buf_slice(batch->entries[1].data)));
    assert_entry(&log.recovery.entries[2], 3, 1);
    assert_int_equal(wal_read(log.wal, 2, 1, &entries, &count, &prev_term), 0);
    assert_int_equal(count, 1);
    assert_int_equal(entries[0].data->len, KEEL_ENTRY_SIZE_MAX);
    raft_entries_free(entries, count);
    wal_batch_free(batch);
    log_end(&log);
}

static void last_hard_state_counts_and_its_commit_index_never_exceeds_the_log(void **state)
{
    struct log log;
    struct wal_batch *batch = batch_of(1, 4, 1);

    (void)state;
    log_start(&log, 0, 4096);
    batch_hard_state(batch, 1, 5, 2);
    log_write(&log, batch);
    batch = batch_of(0, 0, 0);
    batch_hard_state(batch, 6, 0, 99);
    log_write(&log, batch);
    log_reopen(&log);
    assert_true(log.recovery.hard_state.term == 6);
    assert_true(log.recovery.hard_state.vote == 0);
    assert_true(log.recovery.hard_state.commit == 4);
    log_end(&log);
}

static void entries_of_a_newer_term_than_the_hard_state_raise_it_without_a_vote(void **state)
{
    struct log log;
    struct wal_batch *batch = batch_of(1, 1, 3);

    (void)state;
    log_start(&log, 0, 4096);
    batch_hard_state(batch, 3, 5, 0);
    log_write(&log, batch);
    log_append(&log, 2, 1, 4);
    log_reopen(&log);
    assert_true(log.recovery.hard_state.term == 4 && log.recovery.hard_state.vote == 0);
    log_end(&log);
}

static void failed_write_surfaces_and_ends_the_log(void **state)
{
    struct log log;
    struct wal_batch *batch = batch_of(1, 2, 1);

    (void)state;
    log_start(&log, 0, 4096);
    disk_mem_fail_write(log.disk, 1, KEEL_E_DISKFULL);
    assert_int_equal(wal_write(log.wal, &batch, 1), KEEL_E_DISKFULL);
    assert_int_equal(wal_write(log.wal, &batch, 1), KEEL_E_DISKFULL);
    wal_batch_free(batch);
    log_end(&log);
}

static void failed_sync_surfaces_and_is_never_retried(void **state)
{
    struct log log;
    struct wal_batch *batch = batch_of(1, 2, 1);
    bool more;

    (void)state;
    log_start(&log, 0, 4096);
    disk_mem_fail_sync(log.disk, 1, KEEL_E_IO);
    assert_int_equal(wal_write(log.wal, &batch, 1), KEEL_E_IO);
    uint64_t before = disk_mem_counters(log.disk).changes;

    assert_int_equal(wal_write(log.wal, &batch, 1), KEEL_E_IO);
    assert_int_equal(wal_idle(log.wal), KEEL_E_IO);
    assert_int_equal(wal_prepare(log.wal, &more), KEEL_E_IO);
    assert_true(disk_mem_counters(log.disk).changes == before);
    wal_batch_free(batch);
    log_end(&log);
}

static void failed_sync_of_the_durable_record_and_of_the_filling_surface_too(void **state)
{
    struct log log;
    bool more;

    (void)state;
    log_start(&log, 0, 4096);
    log_append(&log, 1, 2, 1);
    disk_mem_fail_sync(log.disk, 1, KEEL_E_IO);
    assert_int_equal(wal_idle(log.wal), KEEL_E_IO);
    log_reopen(&log);
    disk_mem_fail_sync(log.disk, 1, KEEL_E_IO);
    assert_int_equal(wal_prepare(log.wal, &more), KEEL_E_IO);
    log_end(&log);
}

static void full_disk_while_filling_ahead_loses_nothing(void **state)
{
    struct log log;
    const uint64_t terms[] = { 1, 1, 1, 1 };
    bool more;

    (void)state;
    log_start(&log, 0, 4096);
    log_append(&log, 1, 2, 1);
    disk_mem_fail_write(log.disk, 1, KEEL_E_DISKFULL);
    assert_int_equal(wal_prepare(log.wal, &more), KEEL_E_DISKFULL);
    log_append(&log, 3, 2, 1);
    log_reopen(&log);
    assert_log_holds(&log, terms, 4);
    log_end(&log);
}

static void full_disk_at_creation_is_told_in_words(void **state)
{
    struct log log = { .disk = disk_mem_new(3), .options = { .cluster_id = 1, .node_id = 2 } };

    (void)state;
    disk_mem_fail_write(log.disk, 1, KEEL_E_DISKFULL);
    assert_int_equal(log_open(&log), KEEL_E_DISKFULL);
    assert_non_null(strstr(log.why, "0000000000000001.wal"));
    assert_non_null(strstr(log.why, "no space left"));
    assert_int_equal(log_open(&log), 0);
    assert_true(log.recovery.fresh);
    log_end(&log);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(entries_come_back_across_segment_boundaries),
        cmocka_unit_test(several_batches_in_one_call_are_all_there),
        cmocka_unit_test(entries_that_the_store_has_are_indexed_but_not_returned),
        cmocka_unit_test(later_entry_replaces_everything_from_its_index_on),
        cmocka_unit_test(read_gives_the_right_entries_from_every_position),
        cmocka_unit_test(read_outside_the_log_finds_nothing),
        cmocka_unit_test(read_of_rotten_bytes_is_corrupt),
        cmocka_unit_test(batch_costs_one_write_and_one_sync),
        cmocka_unit_test(nothing_to_write_costs_nothing),
        cmocka_unit_test(idle_log_says_once_what_is_durable),
        cmocka_unit_test(prepared_log_neither_grows_nor_makes_files_when_it_is_written),
        cmocka_unit_test(entry_larger_than_a_segment_has_one_of_its_own),
        cmocka_unit_test(last_hard_state_counts_and_its_commit_index_never_exceeds_the_log),
        cmocka_unit_test(entries_of_a_newer_term_than_the_hard_state_raise_it_without_a_vote),
        cmocka_unit_test(failed_write_surfaces_and_ends_the_log),
        cmocka_unit_test(failed_sync_surfaces_and_is_never_retried),
        cmocka_unit_test(failed_sync_of_the_durable_record_and_of_the_filling_surface_too),
        cmocka_unit_test(full_disk_while_filling_ahead_loses_nothing),
        cmocka_unit_test(full_disk_at_creation_is_told_in_words),
    };

    return cmocka_run_group_tests_name("wal", tests, NULL, NULL);
}
