/* A snapshot has been installed: the log is void up to it and goes on behind it. */
#include "fixture.h"

#include <stdio.h>

#include "check.h"
#include "err.h"

enum { SEGMENT = 1024, SNAPSHOT = 100, SNAPSHOT_TERM = 4 };

/* What raft asks for when a snapshot has come: the mark, some entries, the hard state. */
static struct wal_batch *reset_batch(size_t entries)
{
    struct wal_batch *batch = batch_of(SNAPSHOT + 1, entries, 5);

    batch->reset = true;
    batch->reset_index = SNAPSHOT;
    batch->reset_term = SNAPSHOT_TERM;
    batch_hard_state(batch, 5, 9, SNAPSHOT);
    return batch;
}

/* Entries 1 … count of terms 1 and 2, with a hard state. */
static void start_with(struct log *log, size_t count)
{
    struct wal_batch *batch;

    log_start(log, SEGMENT, 256);
    log_append(log, 1, count / 2, 1);
    batch = batch_of(count / 2 + 1, count - count / 2, 2);
    batch_hard_state(batch, 3, 7, count / 2);
    log_write(log, batch);
}

static void assert_entries_behind_the_snapshot(struct log *log, size_t count)
{
    struct raft_entry *entries;
    size_t got;
    uint64_t prev_term;

    assert_true(wal_first_index(log->wal) == SNAPSHOT + 1);
    assert_true(wal_last_index(log->wal) == SNAPSHOT + count);
    assert_int_equal(wal_read(log->wal, SNAPSHOT, 1, &entries, &got, &prev_term), KEEL_E_NOTFOUND);
    if (count == 0) {
        assert_int_equal(wal_read(log->wal, SNAPSHOT + 1, 1, &entries, &got, &prev_term),
                         KEEL_E_NOTFOUND);
        return;
    }
    assert_int_equal(wal_read(log->wal, SNAPSHOT + 1, SIZE_MAX, &entries, &got, &prev_term), 0);
    assert_true(prev_term == SNAPSHOT_TERM && got == count);
    for (size_t i = 0; i < got; i++)
        assert_entry(&entries[i], SNAPSHOT + 1 + i, 5);
    raft_entries_free(entries, got);
}

static void assert_hard_state(const struct log *log, uint64_t term, uint64_t vote, uint64_t commit)
{
    assert_true(log->recovery.hard_state.term == term);
    assert_true(log->recovery.hard_state.vote == vote);
    assert_true(log->recovery.hard_state.commit == commit);
}

static void log_goes_on_behind_the_snapshot(void **state)
{
    (void)state;
    for (size_t before = 0; before <= 200; before += 40) {
        for (size_t behind = 0; behind <= 3; behind++) {
            struct log log;

            start_with(&log, before);
            log_write(&log, reset_batch(behind));
            assert_entries_behind_the_snapshot(&log, behind);
            log.options.store_applied = SNAPSHOT;
            log_reopen(&log);
            assert_entries_behind_the_snapshot(&log, behind);
            assert_true(log.recovery.first_index == SNAPSHOT + 1);
            assert_true(log.recovery.last_index == SNAPSHOT + behind);
            assert_true(log.recovery.base_term == SNAPSHOT_TERM);
            assert_int_equal(log.recovery.count, behind);
            assert_hard_state(&log, 5, 9, SNAPSHOT);
            log_append(&log, SNAPSHOT + 1 + behind, 2, 5);
            assert_entries_behind_the_snapshot(&log, behind + 2);
            log_end(&log);
        }
    }
}

static void reset_is_one_write_and_one_sync(void **state)
{
    struct log log;
    struct wal_batch *batch = reset_batch(2);

    (void)state;
    log_start(&log, 1 << 20, 4096);
    struct disk_mem_counters before = disk_mem_counters(log.disk);

    log_write(&log, batch);
    assert_true(disk_mem_counters(log.disk).writes == before.writes + 1);
    assert_true(disk_mem_counters(log.disk).syncs == before.syncs + 1);
    log_end(&log);
}

static void segments_before_the_mark_are_released_whatever_is_to_be_kept(void **state)
{
    struct log log;

    (void)state;
    start_with(&log, 60);
    uint64_t epoch = log.wal->epoch;

    assert_true(epoch > 3);
    assert_int_equal(wal_release(log.wal, 0, 0), 0);
    assert_true(log.wal->oldest_epoch == 1);
    log_write(&log, reset_batch(1));
    assert_int_equal(wal_release(log.wal, 0, UINT64_MAX), 0);
    assert_true(log.wal->oldest_epoch >= epoch);
    assert_true(log.wal->oldest_epoch == log.wal->index.mark_epoch);
    assert_entries_behind_the_snapshot(&log, 1);
    log.options.store_applied = SNAPSHOT;
    log_reopen(&log);
    assert_entries_behind_the_snapshot(&log, 1);
    assert_hard_state(&log, 5, 9, SNAPSHOT);
    log_end(&log);
}

/* When no entry has followed it, the mark alone says where the log ends. */
static void mark_is_kept_until_an_entry_has_followed_it(void **state)
{
    struct log log;

    (void)state;
    start_with(&log, 10);
    log_write(&log, reset_batch(0));
    for (uint64_t term = 6; log.wal->epoch < log.wal->index.mark_epoch + 3; term++) {
        struct wal_batch *batch = batch_of(0, 0, 0);

        batch_hard_state(batch, term, 0, SNAPSHOT);
        log_write(&log, batch);
    }
    assert_int_equal(wal_release(log.wal, UINT64_MAX, 0), 0);
    assert_true(log.wal->oldest_epoch == log.wal->index.mark_epoch);
    log.options.store_applied = SNAPSHOT;
    log_reopen(&log);
    assert_entries_behind_the_snapshot(&log, 0);

    log_append(&log, SNAPSHOT + 1, 1, 50);
    assert_int_equal(wal_release(log.wal, UINT64_MAX, 0), 0);
    assert_true(log.wal->index.mark_epoch == 0);
    assert_true(wal_first_index(log.wal) == SNAPSHOT + 2);
    log_reopen(&log);
    assert_true(log.recovery.first_index == SNAPSHOT + 2);
    assert_true(log.recovery.last_index == SNAPSHOT + 1);
    assert_true(log.recovery.base_term == 0);
    assert_int_equal(log.recovery.count, 1);
    log_end(&log);
}

/* ---- the end of an installation that a crash has interrupted ---- */

static void install_of_the_snapshot(struct log *log)
{
    log->options.store_applied = log->options.install_index = SNAPSHOT;
    log->options.install_term = SNAPSHOT_TERM;
}

static void interrupted_installation_is_finished_when_the_log_is_opened(void **state)
{
    (void)state;
    for (size_t before = 0; before <= 160; before += 40) {
        struct log log;

        start_with(&log, before);
        install_of_the_snapshot(&log);
        log_reopen(&log);
        assert_true(log.recovery.first_index == SNAPSHOT + 1);
        assert_true(log.recovery.last_index == SNAPSHOT && log.recovery.count == 0);
        assert_true(log.recovery.base_term == SNAPSHOT_TERM);
        assert_hard_state(&log, 4, 0, SNAPSHOT); /* the term of the snapshot was higher */
        assert_entries_behind_the_snapshot(&log, 0);
        log_close(&log);
        disk_mem_crash(log.disk); /* it was synced */
        uint64_t writes = disk_mem_counters(log.disk).writes;

        assert_int_equal(log_open(&log), 0);
        assert_int_equal(disk_mem_counters(log.disk).writes, writes); /* once is enough */
        log.options.install_index = log.options.install_term = 0;
        log_reopen(&log);
        assert_entries_behind_the_snapshot(&log, 0);
        assert_hard_state(&log, 4, 0, SNAPSHOT);
        log_end(&log);
    }
}

static void term_and_vote_outlive_the_reset_that_recovery_makes(void **state)
{
    struct log log;
    struct wal_batch *batch = batch_of(1, 3, 1);

    (void)state;
    log_start(&log, SEGMENT, 256);
    batch_hard_state(batch, 11, 7, 2);
    log_write(&log, batch);
    install_of_the_snapshot(&log);
    log_reopen(&log);
    assert_hard_state(&log, 11, 7, SNAPSHOT);
    log_reopen(&log);
    assert_hard_state(&log, 11, 7, SNAPSHOT);
    log_end(&log);
}

static void log_that_was_reset_already_keeps_what_follows(void **state)
{
    struct log log;

    (void)state;
    start_with(&log, 10);
    log_write(&log, reset_batch(3));
    install_of_the_snapshot(&log);
    log_reopen(&log);
    assert_int_equal(log.recovery.count, 3);
    assert_entries_behind_the_snapshot(&log, 3);
    log_end(&log);
}

/* The entries behind it may have been acknowledged. */
static void log_that_has_the_snapshots_entry_keeps_what_follows(void **state)
{
    struct log log;

    (void)state;
    log_start(&log, SEGMENT, 256);
    log_append(&log, 1, 120, SNAPSHOT_TERM);
    install_of_the_snapshot(&log);
    log_reopen(&log);
    assert_true(log.recovery.last_index == 120 && log.recovery.first_index == 1);
    assert_int_equal(log.recovery.count, 20);
    log.options.install_term++; /* another one of that index: not the same history */
    log_reopen(&log);
    assert_true(log.recovery.last_index == SNAPSHOT && log.recovery.count == 0);
    log_end(&log);
}

static void installation_below_what_is_committed_is_refused(void **state)
{
    struct log log;
    struct wal_batch *batch = batch_of(1, 120, 1);

    (void)state;
    log_start(&log, SEGMENT, 256);
    batch_hard_state(batch, 1, 0, 110);
    log_write(&log, batch);
    log_close(&log);
    install_of_the_snapshot(&log);
    assert_int_equal(log_open(&log), KEEL_E_CORRUPT);
    assert_non_null(strstr(log.why, "a snapshot of entry 100 was being installed"));
    assert_non_null(strstr(log.why, "entry 110 is already committed"));
    log_end(&log);
}

static void store_ahead_of_the_log_is_refused_without_an_installation(void **state)
{
    struct log log;

    (void)state;
    start_with(&log, 10);
    log_close(&log);
    log.options.store_applied = SNAPSHOT;
    assert_int_equal(log_open(&log), KEEL_E_CORRUPT);
    assert_non_null(strstr(log.why, "it has applied entry 100, the log ends at entry 10"));
    install_of_the_snapshot(&log);
    log.options.store_applied++;
    assert_int_equal(log_open(&log), KEEL_E_CORRUPT);
    assert_non_null(strstr(log.why, "it has applied entry 101, the log ends at entry 10"));
    log_end(&log);
}

/* ---- crashes ---- */

/* The store is at the snapshot, its manifest is there; power fails at the n-th change. Whatever is
 * left, the log goes on from the snapshot when it is opened with it. */
static void crash_anywhere_in_a_reset_is_made_good(void **state)
{
    bool was_cut = true;

    (void)state;
    for (uint64_t cut = 1; was_cut; cut++) {
        for (uint64_t seed = 0; seed < 64; seed++) {
            struct wal_batch *batch = reset_batch(4);
            struct log log;

            start_with(&log, 20 + seed % 12);
            log_reseed(&log, seed);
            disk_mem_cut(log.disk, cut);
            int err = wal_write(log.wal, &batch, 1);

            wal_batch_free(batch);
            was_cut = disk_mem_is_cut(log.disk);
            assert_true(was_cut == (err != 0));
            log_close(&log);
            disk_mem_crash(log.disk);
            install_of_the_snapshot(&log);
            assert_int_equal(log_open(&log), 0);
            size_t count = log.recovery.count;

            assert_true(count <= 4 && (was_cut || count == 4));
            assert_entries_behind_the_snapshot(&log, count);
            assert_true(log.recovery.hard_state.commit == SNAPSHOT);
            assert_true(log.recovery.hard_state.term >= SNAPSHOT_TERM);
            assert_true(was_cut || log.recovery.hard_state.vote == 9);
            log_end(&log);
        }
        assert_true(cut < 30);
    }
}

static void crash_anywhere_in_the_reset_of_an_opening_is_made_good(void **state)
{
    bool was_cut = true;

    (void)state;
    for (uint64_t cut = 1; was_cut; cut++) {
        for (uint64_t seed = 0; seed < 64; seed++) {
            struct log log;

            start_with(&log, 20 + seed % 12);
            log_reseed(&log, seed);
            log_close(&log);
            install_of_the_snapshot(&log);
            disk_mem_cut(log.disk, cut);
            int err = log_open(&log);

            was_cut = disk_mem_is_cut(log.disk);
            assert_true(was_cut == (err != 0));
            log_close(&log);
            disk_mem_crash(log.disk);
            assert_int_equal(log_open(&log), 0);
            assert_hard_state(&log, 4, 0, SNAPSHOT);
            log.options.install_index = log.options.install_term = 0;
            log_reopen(&log);
            assert_entries_behind_the_snapshot(&log, 0);
            assert_hard_state(&log, 4, 0, SNAPSHOT);
            log_end(&log);
        }
        assert_true(cut < 30);
    }
}

/* Once acknowledged, a mark that rots is not forgotten: the store is where the mark says, and the
 * manifest of the installation is gone. */
static void lost_mark_is_damage_once_the_installation_is_over(void **state)
{
    struct log log;

    (void)state;
    start_with(&log, 4);
    uint64_t at = log.wal->offset;

    assert_true(log.wal->epoch == 1);
    log_write(&log, reset_batch(0));
    log_close(&log);
    log.options.store_applied = SNAPSHOT;
    disk_mem_flip(log.disk, segment_file(1), at + 30, 1);
    assert_int_equal(log_open(&log), KEEL_E_CORRUPT);
    assert_non_null(strstr(log.why, "behind entry 4, and the store has applied entry 100"));
    log_end(&log);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(log_goes_on_behind_the_snapshot),
        cmocka_unit_test(reset_is_one_write_and_one_sync),
        cmocka_unit_test(segments_before_the_mark_are_released_whatever_is_to_be_kept),
        cmocka_unit_test(mark_is_kept_until_an_entry_has_followed_it),
        cmocka_unit_test(interrupted_installation_is_finished_when_the_log_is_opened),
        cmocka_unit_test(term_and_vote_outlive_the_reset_that_recovery_makes),
        cmocka_unit_test(log_that_was_reset_already_keeps_what_follows),
        cmocka_unit_test(log_that_has_the_snapshots_entry_keeps_what_follows),
        cmocka_unit_test(installation_below_what_is_committed_is_refused),
        cmocka_unit_test(store_ahead_of_the_log_is_refused_without_an_installation),
        cmocka_unit_test(crash_anywhere_in_a_reset_is_made_good),
        cmocka_unit_test(crash_anywhere_in_the_reset_of_an_opening_is_made_good),
        cmocka_unit_test(lost_mark_is_damage_once_the_installation_is_over),
    };

    return cmocka_run_group_tests_name("reset", tests, NULL, NULL);
}
