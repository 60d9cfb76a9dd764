/* Old segments are let go, and one of their files is used again: what stays, what a crash on the
 * way leaves, and that the old bytes in a recycled file are never taken for anything. */
#include "fixture.h"

#include <stdio.h>

#include "check.h"
#include "err.h"

enum { SEGMENT = 1024, TERM = 3, VOTE = 77 };

static size_t segment_count(const struct log *log)
{
    size_t count = 0;

    for (uint64_t epoch = 1; epoch < 200; epoch++)
        count += disk_mem_file(log->disk, segment_file(epoch)).data != NULL;
    return count;
}

static void append_noop(struct log *log, uint64_t term)
{
    struct raft_entry entry = { .term = term, .index = wal_last_index(log->wal) + 1 };
    struct wal_batch batch = { .entries = &entry, .count = 1 };
    struct wal_batch *batches[1] = { &batch };

    assert_int_equal(wal_write(log->wal, batches, 1), 0);
}

/* A log with a hard state, and no-ops up to where segment `epoch` is in use. */
static void start_at_epoch(struct log *log, uint64_t epoch)
{
    struct wal_batch *batch = batch_of(0, 0, 0);

    log_start(log, SEGMENT, 256);
    batch_hard_state(batch, TERM, VOTE, 0);
    log_write(log, batch);
    while (log->wal->epoch < epoch)
        append_noop(log, TERM);
}

/* The store has everything; the log is opened again. */
static void reopen_applied(struct log *log, uint64_t applied)
{
    log->options.store_applied = applied;
    log_reopen(log);
}

static void assert_reads(struct log *log, uint64_t first, uint64_t last)
{
    struct raft_entry *entries;
    size_t count;
    uint64_t prev_term;

    assert_true(wal_first_index(log->wal) == first && wal_last_index(log->wal) == last);
    assert_int_equal(wal_read(log->wal, first - 1, 1, &entries, &count, &prev_term),
                     KEEL_E_NOTFOUND);
    assert_int_equal(wal_read(log->wal, first, SIZE_MAX, &entries, &count, &prev_term), 0);
    assert_true(prev_term == TERM && count == last - first + 1);
    for (size_t i = 0; i < count; i++)
        assert_true(entries[i].index == first + i && entries[i].term == TERM);
    raft_entries_free(entries, count);
}

/* The first entry in segment `epoch`. */
static uint64_t first_entry_of(const struct log *log, uint64_t epoch)
{
    uint64_t index = log->wal->index.base + 1;

    while (wal_index_epoch(&log->wal->index, index) < epoch)
        index++;
    return index;
}

static void released_segments_are_gone_and_the_log_stands_alone(void **state)
{
    struct log log;

    (void)state;
    start_at_epoch(&log, 6);
    uint64_t last = wal_last_index(log.wal), kept = first_entry_of(&log, 4);

    assert_int_equal(wal_release(log.wal, kept - 1, 0), 0);
    assert_null(disk_mem_file(log.disk, segment_file(1)).data);
    assert_null(disk_mem_file(log.disk, segment_file(3)).data);
    assert_non_null(disk_mem_file(log.disk, segment_file(4)).data);
    assert_non_null(disk_mem_file(log.disk, segment_file(7)).data); /* the one that is recycled */
    assert_reads(&log, kept + 1, last);
    disk_mem_crash(log.disk); /* all of it was synced */
    reopen_applied(&log, kept - 1);
    assert_int_equal(segment_count(&log), 4);
    assert_reads(&log, kept + 1, last);
    assert_true(log.recovery.first_index == kept + 1 && log.recovery.last_index == last);
    assert_int_equal(log.recovery.count, last - kept + 1);
    assert_true(log.recovery.hard_state.term == TERM && log.recovery.hard_state.vote == VOTE);
    log_end(&log);
}

static void segment_with_an_entry_above_the_index_stays(void **state)
{
    struct log log;

    (void)state;
    start_at_epoch(&log, 6);
    uint64_t kept = first_entry_of(&log, 4);

    assert_int_equal(wal_release(log.wal, kept - 2, 0), 0);
    assert_non_null(disk_mem_file(log.disk, segment_file(3)).data);
    assert_null(disk_mem_file(log.disk, segment_file(2)).data);
    log_end(&log);
}

static void entries_that_were_cut_off_hold_no_segment(void **state)
{
    struct log log;

    (void)state;
    start_at_epoch(&log, 3);
    log_append(&log, 2, 1, TERM); /* all that stands in 1 and 2 but entry 1 is void */
    while (log.wal->epoch < 4)
        append_noop(&log, TERM);
    assert_int_equal(wal_release(log.wal, 1, 0), 0);
    assert_null(disk_mem_file(log.disk, segment_file(2)).data);
    reopen_applied(&log, 1);
    assert_reads(&log, 3, wal_last_index(log.wal));
    log_end(&log);
}

/* Where only part of it has been released, the log begins with entries that are void: entry 30,
 * say, though a later segment has entry 2 again. */
static void log_may_begin_with_entries_that_are_cut_off_later(void **state)
{
    struct log log;

    (void)state;
    start_at_epoch(&log, 4);
    log_append(&log, 2, 1, TERM);
    append_noop(&log, TERM);
    assert_int_equal(wal_release(log.wal, 1, log.wal->ends[1] + log.wal->ends[2]), 0);
    assert_null(disk_mem_file(log.disk, segment_file(1)).data);
    assert_non_null(disk_mem_file(log.disk, segment_file(2)).data);
    reopen_applied(&log, 1);
    assert_reads(&log, 3, 3);
    assert_int_equal(log.recovery.count, 2);
    log_end(&log);
}

static void released_file_is_not_kept_open(void **state)
{
    struct log log;
    struct raft_entry *entries;
    size_t count;
    uint64_t prev_term;

    (void)state;
    start_at_epoch(&log, 4);
    uint64_t kept = first_entry_of(&log, 3);

    assert_int_equal(wal_read(log.wal, 3, 1, &entries, &count, &prev_term), 0);
    raft_entries_free(entries, count);
    assert_non_null(log.wal->reader);
    assert_int_equal(wal_release(log.wal, kept - 1, 0), 0);
    assert_null(log.wal->reader);
    assert_reads(&log, kept + 1, wal_last_index(log.wal));
    assert_int_equal(wal_release(log.wal, kept - 1, 0), 0);
    assert_non_null(log.wal->reader); /* its segment is still there */
    log_end(&log);
}

static uint64_t bytes_from(const struct log *log, size_t segment)
{
    uint64_t bytes = log->wal->offset;

    for (size_t i = segment; i < log->wal->end_count; i++)
        bytes += log->wal->ends[i];
    return bytes;
}

static void keep_bytes_of_log_stay(void **state)
{
    struct log log;

    (void)state;
    for (uint64_t keep = 0; keep < 7000; keep += 100) {
        start_at_epoch(&log, 6);
        uint64_t bytes = bytes_from(&log, 0);

        assert_true(bytes > 5 * (SEGMENT - WAL_RECORD_HEADER) && bytes <= 6 * SEGMENT);
        log_reopen(&log); /* which has to find out where segments end */
        assert_true(bytes_from(&log, 0) == bytes);
        assert_int_equal(wal_release(log.wal, UINT64_MAX, keep), 0);
        assert_true(bytes_from(&log, 0) >= (keep < bytes ? keep : bytes));
        assert_true(log.wal->end_count == 0 || bytes_from(&log, 1) < keep);
        assert_true(log.wal->oldest_epoch == 6 - log.wal->end_count);
        log_end(&log);
    }
}

/* Without it nothing would say where the log ends. */
static void last_entry_is_never_released(void **state)
{
    struct log log;

    (void)state;
    start_at_epoch(&log, 3);
    uint64_t last = wal_last_index(log.wal);

    for (uint64_t term = TERM; log.wal->epoch < 6; term++) {
        struct wal_batch *batch = batch_of(0, 0, 0);

        batch_hard_state(batch, term, VOTE, last);
        log_write(&log, batch);
    }
    assert_int_equal(wal_release(log.wal, last, 0), 0);
    assert_null(disk_mem_file(log.disk, segment_file(2)).data);
    assert_non_null(disk_mem_file(log.disk, segment_file(3)).data);
    struct raft_hard_state before = log.wal->hard_state;

    reopen_applied(&log, last);
    assert_true(log.recovery.last_index == last && log.recovery.base_term == TERM);
    assert_true(log.recovery.hard_state.term == before.term && before.term > TERM);
    log_end(&log);

    start_at_epoch(&log, 1); /* nor is anything released before there is an entry */
    for (uint64_t term = TERM; log.wal->epoch < 3; term++) {
        struct wal_batch *batch = batch_of(0, 0, 0);

        batch_hard_state(batch, term, VOTE, 0);
        log_write(&log, batch);
    }
    assert_int_equal(wal_release(log.wal, 100, 0), 0);
    assert_non_null(disk_mem_file(log.disk, segment_file(1)).data);
    log_end(&log);
}

/* Entries may raise the term without a hard state of it; when they are void and gone, the term must
 * not fall back to one in which this node has voted. */
static void term_outlives_the_entries_that_have_raised_it(void **state)
{
    struct log log;
    struct wal_batch *batch = batch_of(0, 0, 0);

    (void)state;
    start_at_epoch(&log, 1);
    while (log.wal->epoch < 3 || log.wal->offset + WAL_RECORD_HEADER <= SEGMENT)
        append_noop(&log, TERM + 1);
    batch->reset = true;
    batch->reset_index = 1000;
    batch->reset_term = TERM;
    log_write(&log, batch);
    assert_int_equal(wal_release(log.wal, 0, 0), 0);
    assert_true(log.wal->oldest_epoch == 4);
    reopen_applied(&log, 1000);
    assert_true(log.recovery.hard_state.term == TERM + 1 && log.recovery.hard_state.vote == 0);
    assert_true(log.recovery.hard_state.commit == 1000);
    log_end(&log);
}

static void recycled_file_is_used_without_growing_and_its_old_entries_are_gone(void **state)
{
    struct log log;

    (void)state;
    start_at_epoch(&log, 3);
    assert_int_equal(wal_release(log.wal, first_entry_of(&log, 3) - 1, 0), 0);
    assert_int_equal(segment_count(&log), 2);
    uint64_t size = disk_mem_file(log.disk, segment_file(4)).len;
    bool more;

    do
        assert_int_equal(wal_prepare(log.wal, &more), 0);
    while (more);
    assert_int_equal(disk_mem_file(log.disk, segment_file(4)).len, SEGMENT);
    assert_true(size > SEGMENT / 2 && size <= SEGMENT);
    uint64_t opens = disk_mem_counters(log.disk).opens;

    while (log.wal->epoch < 4)
        append_noop(&log, TERM);
    append_noop(&log, TERM);
    assert_int_equal(disk_mem_counters(log.disk).opens, opens);
    assert_int_equal(disk_mem_file(log.disk, segment_file(4)).len, SEGMENT);
    uint64_t last = wal_last_index(log.wal), first = wal_first_index(log.wal);

    reopen_applied(&log, first - 1);
    assert_false(log.recovery.tail_cut);
    assert_reads(&log, first, last);
    log_end(&log);
}

static void recycled_file_is_known_as_one_after_a_restart(void **state)
{
    struct log log;

    (void)state;
    start_at_epoch(&log, 3);
    uint64_t kept = first_entry_of(&log, 3) - 1;

    assert_int_equal(wal_release(log.wal, kept, 0), 0);
    reopen_applied(&log, kept);
    assert_true(log.wal->next_recycled && !log.wal->recycled);
    while (log.wal->epoch < 4)
        append_noop(&log, TERM);
    for (int i = 0; i < 3; i++) {
        log_reopen(&log);
        assert_true(log.wal->recycled && !log.recovery.tail_cut);
        append_noop(&log, TERM);
    }
    log_end(&log);
}

/* Round after round; neither the disk nor memory grows. */
static void log_that_is_released_again_and_again_stays_small(void **state)
{
    struct log log;
    size_t capacity = 0;

    (void)state;
    start_at_epoch(&log, 1);
    for (int round = 0; round < 3000; round++) {
        for (int i = 0; i < 5; i++)
            append_noop(&log, TERM);
        assert_int_equal(wal_release(log.wal, wal_last_index(log.wal) - 5, 2000), 0);
        assert_true(log.wal->epoch - log.wal->oldest_epoch < 5);
        if (log.wal->index.capacity > capacity)
            capacity = log.wal->index.capacity;
        if (round % 500 == 499)
            reopen_applied(&log, wal_last_index(log.wal) - 5);
    }
    assert_true(capacity <= 256);
    assert_true(log.wal->epoch > 1000 && disk_mem_counters(log.disk).renames > 900);
    log_end(&log);
}

static void memory_of_a_long_log_is_given_back(void **state)
{
    struct log log;

    (void)state;
    log_start(&log, 1 << 20, 4096);
    for (int i = 0; i < 20000; i++)
        append_noop(&log, TERM);
    assert_true(log.wal->index.capacity >= 20000);
    assert_true(log.wal->epoch == 2);
    assert_int_equal(wal_release(log.wal, first_entry_of(&log, 2) - 1, 0), 0);
    assert_true(log.wal->index.capacity >= log.wal->index.count);
    assert_true(log.wal->index.capacity <= 2 * log.wal->index.count);
    assert_reads(&log, wal_first_index(log.wal), 20000);
    log_end(&log);
}

/* ---- crashes ---- */

static void crash_anywhere_in_a_release_leaves_a_log_without_gaps(void **state)
{
    bool was_cut = true;

    (void)state;
    for (uint64_t cut = 1; was_cut; cut++) {
        for (uint64_t seed = 0; seed < 32; seed++) {
            struct log log;

            start_at_epoch(&log, 6);
            log_reseed(&log, seed);
            uint64_t kept = first_entry_of(&log, 5), last = wal_last_index(log.wal);

            disk_mem_cut(log.disk, cut);
            int err = wal_release(log.wal, kept - 1, 0);

            was_cut = disk_mem_is_cut(log.disk);
            assert_int_equal(err, was_cut ? KEEL_E_IO : 0);
            if (was_cut)
                assert_int_equal(wal_idle(log.wal), KEEL_E_IO);
            log_close(&log);
            disk_mem_crash(log.disk);
            log.options.store_applied = kept - 1;
            assert_int_equal(log_open(&log), 0);
            assert_false(log.recovery.tail_cut);
            assert_true(log.recovery.first_index <= kept + 1);
            assert_int_equal(log.recovery.count, last - kept + 1);
            assert_true(log.recovery.hard_state.vote == VOTE);
            assert_int_equal(wal_release(log.wal, kept - 1, 0), 0);
            assert_reads(&log, kept + 1, last);
            append_noop(&log, TERM);
            log_reopen(&log);
            assert_reads(&log, kept + 1, last + 1);
            log_end(&log);
        }
        assert_true(cut < 30);
    }
}

/* A log whose current segment, and the one made ready, are recycled files; up to `named` all is
 * named durable, and a last batch follows at `at` in segment `epoch`. */
struct example {
    struct log log;
    uint64_t epoch, at, end, named, last;
};

static void append_bytes(struct log *log, size_t len)
{
    struct raft_entry entry = { .term = TERM,
                                .index = wal_last_index(log->wal) + 1,
                                .kind = RAFT_ENTRY_COMMAND,
                                .data = keel_buf_new(len) };
    struct wal_batch batch = { .entries = &entry, .count = 1 };
    struct wal_batch *batches[1] = { &batch };

    memset(entry.data->data, 'x', len);
    assert_int_equal(wal_write(log->wal, batches, 1), 0);
    keel_buf_free(entry.data);
}

/* `shift` moves the last batch against the old records that it lies over. */
static void example_start(struct example *e, size_t shift)
{
    struct wal_batch *batch;

    start_at_epoch(&e->log, 4);
    assert_int_equal(wal_release(e->log.wal, first_entry_of(&e->log, 3) - 1, 0), 0);
    while (e->log.wal->epoch < 5)
        append_noop(&e->log, TERM);
    assert_int_equal(wal_release(e->log.wal, first_entry_of(&e->log, 5) - 1, 0), 0);
    assert_true(e->log.wal->recycled && e->log.wal->next_recycled);
    append_bytes(&e->log, shift);
    assert_int_equal(wal_idle(e->log.wal), 0);
    e->epoch = e->log.wal->epoch;
    e->at = e->log.wal->offset;
    e->named = wal_last_index(e->log.wal);
    batch = batch_of(e->named + 1, 2, TERM);
    batch_hard_state(batch, TERM + 1, VOTE, e->named);
    keel_buf_free(batch->entries[0].data);
    batch->entries[0].data = keel_buf_copy(keel_slice_str("some bytes that are not a record"));
    log_write(&e->log, batch);
    e->end = e->log.wal->offset;
    e->last = wal_last_index(e->log.wal);
    assert_true(e->log.wal->epoch == e->epoch && e->end - e->at > 200);
    e->log.options.store_applied = e->log.wal->index.base;
    log_close(&e->log);
}

static struct log copy_of(const struct example *e)
{
    return (struct log){ .disk = disk_mem_copy(e->log.disk, 1), .options = e->log.options };
}

/* The last batch is there in [from, to) only; elsewhere stands what stood there before, or zeroes.
 */
static void tear(struct log *log, const struct example *e, struct keel_slice before, size_t from,
                 size_t to, bool zeroed)
{
    struct keel_slice file = disk_mem_file(log->disk, segment_file(e->epoch));
    struct keel_buf *torn = keel_buf_copy(file);

    for (size_t i = e->at; i < e->end; i++)
        if (i < e->at + from || i >= e->at + to)
            torn->data[i] = zeroed ? 0 : before.data[i];
    disk_mem_put(log->disk, segment_file(e->epoch), keel_buf_slice(torn));
    keel_buf_free(torn);
}

/* All that was named is there, what comes next can be written, and nothing of the torn batch ever
 * turns up behind it. */
static void assert_torn_log_goes_on(struct log *log, const struct example *e, bool whole)
{
    assert_int_equal(log_open(log), 0);
    uint64_t last = log->recovery.last_index;

    assert_true(last >= e->named && last <= e->last);
    assert_true(!whole || (last == e->last && log->recovery.hard_state.term == TERM + 1));
    assert_true(log->recovery.hard_state.vote == VOTE);
    append_noop(log, TERM + 5);
    log_reopen(log);
    assert_true(log->recovery.last_index == last + 1 && !log->recovery.tail_cut);
    assert_true(log->recovery.entries[log->recovery.count - 1].term == TERM + 5);
    assert_true(log->recovery.hard_state.term == TERM + 5);
}

/* Segment 1, whose file was recycled to be the example's last one. */
static struct keel_buf *old_bytes(const struct example *e)
{
    struct log old;

    start_at_epoch(&old, 4);
    struct keel_buf *bytes = keel_buf_copy(disk_mem_file(old.disk, segment_file(1)));
    struct keel_slice now = disk_mem_file(e->log.disk, segment_file(e->epoch));

    log_end(&old);
    assert_true(bytes->len == now.len && bytes->len > e->end + 100);
    assert_memory_equal(bytes->data + e->end, now.data + e->end, bytes->len - e->end);
    return bytes;
}

static void torn_tail_of_a_recycled_segment_is_cut_at_every_byte(void **state)
{
    (void)state;
    for (size_t shift = 0; shift <= 72; shift += 24) {
        struct example e;

        example_start(&e, shift);
        size_t len = e.end - e.at;
        struct keel_buf *before = old_bytes(&e);

        for (size_t cut = 0; cut <= len; cut++) {
            for (int variant = 0; variant < 4; variant++) {
                struct log log = copy_of(&e);
                bool front = variant < 2, zeroed = variant % 2;

                tear(&log, &e, keel_buf_slice(before), front ? 0 : cut, front ? cut : len, zeroed);
                assert_torn_log_goes_on(&log, &e, front ? cut == len : cut == 0);
                log_end(&log);
            }
        }
        keel_buf_free(before);
        log_end(&e.log);
    }
}

/* Only what names itself of this epoch is zeroed: old bytes may stay, and are not reported. */
static void old_bytes_behind_the_end_are_left_alone(void **state)
{
    struct example e;

    (void)state;
    example_start(&e, 16);
    struct log log = copy_of(&e);
    struct keel_buf *before = keel_buf_copy(disk_mem_file(log.disk, segment_file(e.epoch)));
    uint64_t syncs = disk_mem_counters(log.disk).syncs;

    assert_int_equal(log_open(&log), 0);
    assert_false(log.recovery.tail_cut);
    assert_int_equal(disk_mem_counters(log.disk).writes, 0);
    assert_int_equal(disk_mem_counters(log.disk).syncs, syncs + 1);
    assert_true(
        keel_slice_equal(disk_mem_file(log.disk, segment_file(e.epoch)), keel_buf_slice(before)));
    keel_buf_free(before);
    log_end(&log);
    log_end(&e.log);
}

/* One byte is wrong at `at`: the log is cut at `cut`, and zeroed from there to the batch's end. */
static void assert_cut(const struct example *e, uint64_t at, uint64_t cut)
{
    struct log log = copy_of(e);

    disk_mem_flip(log.disk, segment_file(e->epoch), at, 1);
    assert_int_equal(log_open(&log), 0);
    assert_true(log.recovery.tail_cut && log.recovery.cut_offset == cut);
    assert_string_equal(log.recovery.cut_file, segment_file(e->epoch));
    struct keel_slice file = disk_mem_file(log.disk, segment_file(e->epoch));

    for (size_t i = cut; i < e->end; i++)
        assert_int_equal(file.data[i], 0);
    log_end(&log);
}

static void torn_batch_in_a_recycled_segment_is_reported_and_zeroed(void **state)
{
    struct example e;
    uint64_t last;

    (void)state;
    example_start(&e, 16);
    last = e.end - WAL_RECORD_HEADER - 8;
    assert_cut(&e, e.at, e.at);      /* no head any more, but the records behind it */
    assert_cut(&e, e.at + 70, e.at); /* a head with a wrong checksum */
    assert_cut(&e, last + 70, last); /* … and nothing behind it */
    assert_cut(&e, e.end - 1, last); /* a body */
    log_end(&e.log);
}

/* Each bit of the log, which ends in a recycled segment. */
static void flipped_bit_in_a_recycled_log_never_unacknowledges(void **state)
{
    struct example e;
    uint64_t damaged = 0, cut = 0;

    (void)state;
    example_start(&e, 16);
    for (uint64_t epoch = e.epoch - 1; epoch <= e.epoch + 1; epoch++) {
        size_t size = disk_mem_file(e.log.disk, segment_file(epoch)).len;

        for (uint64_t bit = 0; bit < size * 8; bit++) {
            struct log log = copy_of(&e);
            bool unnamed = epoch > e.epoch || (epoch == e.epoch && bit / 8 >= e.at);
            bool idle = epoch == e.epoch && bit / 8 >= e.at - WAL_RECORD_HEADER && !unnamed;

            if (size == 0)
                break;
            disk_mem_flip(log.disk, segment_file(epoch), bit / 8, (uint8_t)(1 << bit % 8));
            int err = log_open(&log);

            assert_true(err == 0 || (err == KEEL_E_CORRUPT && !unnamed));
            if (err == 0) {
                assert_true(log.recovery.last_index >= e.named);
                assert_true(log.recovery.hard_state.vote == VOTE);
                assert_true(unnamed || idle || log.recovery.last_index == e.last);
                cut += log.recovery.last_index < e.last;
            }
            damaged += err != 0;
            log_end(&log);
        }
    }
    assert_true(damaged > 1000 && cut > 1000);
    log_end(&e.log);
}

/* ---- what is refused ---- */

static void missing_segments_are_told_with_both_numbers(void **state)
{
    struct log log;
    char words[64];

    (void)state;
    start_at_epoch(&log, 5);
    uint64_t kept = first_entry_of(&log, 4);

    assert_int_equal(wal_release(log.wal, kept - 1, 0), 0);
    log_close(&log);
    log.options.store_applied = kept - 1;
    assert_int_equal(log_open(&log), 0);
    log_close(&log);
    log.options.store_applied = kept - 2;
    assert_int_equal(log_open(&log), KEEL_E_CORRUPT);
    assert_non_null(strstr(log.why, "segments are missing"));
    assert_non_null(strstr(log.why, segment_file(4)));
    snprintf(words, sizeof words, "with entry %lu, ", (unsigned long)kept);
    assert_non_null(strstr(log.why, words));
    snprintf(words, sizeof words, "applied entry %lu only", (unsigned long)kept - 2);
    assert_non_null(strstr(log.why, words));
    log_end(&log);
}

static void gap_behind_the_oldest_segment_is_damage(void **state)
{
    struct log log;

    (void)state;
    start_at_epoch(&log, 6);
    assert_int_equal(wal_release(log.wal, first_entry_of(&log, 3) - 1, 0), 0);
    log.options.store_applied = log.wal->index.base;
    log_close(&log);
    assert_int_equal(log.disk->ops->remove(log.disk, segment_file(4)), 0);
    assert_int_equal(log_open(&log), KEEL_E_CORRUPT);
    assert_non_null(strstr(log.why, "0000000000000004.wal is missing"));
    log_end(&log);
}

static void oldest_segment_without_a_header_or_an_entry_is_damage(void **state)
{
    struct log log;
    uint8_t zeroes[SEGMENT] = { 0 };
    bool more;

    (void)state;
    start_at_epoch(&log, 4);
    assert_int_equal(wal_prepare(log.wal, &more), 0);
    log_close(&log);
    for (uint64_t epoch = 1; epoch < 4; epoch++)
        assert_int_equal(log.disk->ops->remove(log.disk, segment_file(epoch)), 0);
    disk_mem_put(log.disk, segment_file(4), keel_slice_of(zeroes, sizeof zeroes));
    assert_int_equal(log_open(&log), KEEL_E_CORRUPT);
    assert_non_null(strstr(log.why, "no header"));
    log_end(&log);

    start_at_epoch(&log, 4);
    log_close(&log);
    struct keel_buf *front = keel_buf_copy(disk_mem_file(log.disk, segment_file(4)));

    memset(front->data + WAL_SEGMENT_FRONT, 0, front->len - WAL_SEGMENT_FRONT);
    for (uint64_t epoch = 1; epoch < 4; epoch++)
        assert_int_equal(log.disk->ops->remove(log.disk, segment_file(epoch)), 0);
    disk_mem_put(log.disk, segment_file(4), keel_buf_slice(front));
    keel_buf_free(front);
    assert_int_equal(log_open(&log), KEEL_E_CORRUPT);
    assert_non_null(strstr(log.why, "no entry of the log is left"));
    log_end(&log);
}

static void failing_disk_ends_the_log_in_a_release_too(void **state)
{
    struct log log;

    (void)state;
    start_at_epoch(&log, 4);
    assert_int_equal(log.disk->ops->remove(log.disk, segment_file(1)), 0);
    assert_true(wal_release(log.wal, first_entry_of(&log, 3) - 1, 0) != 0);
    assert_int_equal(wal_idle(log.wal), KEEL_E_IO);
    assert_int_equal(wal_release(log.wal, 1, 0), KEEL_E_IO);
    log_end(&log);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(released_segments_are_gone_and_the_log_stands_alone),
        cmocka_unit_test(segment_with_an_entry_above_the_index_stays),
        cmocka_unit_test(entries_that_were_cut_off_hold_no_segment),
        cmocka_unit_test(log_may_begin_with_entries_that_are_cut_off_later),
        cmocka_unit_test(released_file_is_not_kept_open),
        cmocka_unit_test(keep_bytes_of_log_stay),
        cmocka_unit_test(last_entry_is_never_released),
        cmocka_unit_test(term_outlives_the_entries_that_have_raised_it),
        cmocka_unit_test(recycled_file_is_used_without_growing_and_its_old_entries_are_gone),
        cmocka_unit_test(recycled_file_is_known_as_one_after_a_restart),
        cmocka_unit_test(log_that_is_released_again_and_again_stays_small),
        cmocka_unit_test(memory_of_a_long_log_is_given_back),
        cmocka_unit_test(crash_anywhere_in_a_release_leaves_a_log_without_gaps),
        cmocka_unit_test(torn_tail_of_a_recycled_segment_is_cut_at_every_byte),
        cmocka_unit_test(old_bytes_behind_the_end_are_left_alone),
        cmocka_unit_test(torn_batch_in_a_recycled_segment_is_reported_and_zeroed),
        cmocka_unit_test(flipped_bit_in_a_recycled_log_never_unacknowledges),
        cmocka_unit_test(missing_segments_are_told_with_both_numbers),
        cmocka_unit_test(gap_behind_the_oldest_segment_is_damage),
        cmocka_unit_test(oldest_segment_without_a_header_or_an_entry_is_damage),
        cmocka_unit_test(failing_disk_ends_the_log_in_a_release_too),
    };

    return cmocka_run_group_tests_name("release", tests, NULL, NULL);
}
