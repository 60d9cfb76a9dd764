/* What recovery makes of a log that is not as it was written: torn tails, damage, and logs of
 * others. */
#include "fixture.h"

#include "bytes.h"
#include "check.h"
#include "err.h"

/* A log of several small segments, whose last batch alone is not named durable by any record. */
struct example {
    struct log log;
    uint64_t terms[64];
    uint64_t count, named_count;        /* entries in all; up to the last batch */
    uint64_t named_epoch, named_offset; /* where the last batch begins */
    uint64_t last_epoch;                /* where it ends */
};

static void example_append(struct example *e, size_t count, uint64_t term)
{
    log_append(&e->log, e->count + 1, count, term);
    for (size_t i = 0; i < count; i++)
        e->terms[e->count++] = term;
}

/* From here on nothing is named. */
static void example_mark_named(struct example *e)
{
    e->named_count = e->count;
    e->named_epoch = e->log.wal->epoch;
    e->named_offset = e->log.wal->offset;
}

static void example_write(struct example *e, uint64_t segment_bytes)
{
    struct wal_batch *batch;

    *e = (struct example){ 0 };
    log_start(&e->log, segment_bytes, 256);
    example_append(e, 4, 1);
    example_append(e, 3, 1);
    batch = batch_of(0, 0, 0);
    batch_hard_state(batch, 2, 9, 5);
    log_write(&e->log, batch);
    example_append(e, 5, 2);
    example_append(e, 4, 2);
    assert_int_equal(wal_idle(e->log.wal), 0);
    example_mark_named(e);
    example_append(e, 2, 2);
}

static void example_close(struct example *e)
{
    bool more = true;

    e->last_epoch = e->log.wal->epoch;
    while (more)
        assert_int_equal(wal_prepare(e->log.wal, &more), 0);
    log_close(&e->log);
}

static void example_start(struct example *e, uint64_t segment_bytes)
{
    example_write(e, segment_bytes);
    example_close(e);
}

/* Its last record names all entries. */
static void example_start_idle(struct example *e, uint64_t segment_bytes)
{
    example_write(e, segment_bytes);
    assert_int_equal(wal_idle(e->log.wal), 0);
    example_mark_named(e);
    e->named_offset -= WAL_RECORD_HEADER;
    example_close(e);
}

/* The log of a copy of the example's disk. */
static struct log copy_of(const struct example *e)
{
    return (struct log){ .disk = disk_mem_copy(e->log.disk, 1), .options = e->log.options };
}

/* The log can be used: what is written next is there after the next start, and nothing is cut then.
 */
static void assert_goes_on(struct log *log)
{
    uint64_t last = wal_last_index(log->wal);

    log_append(log, last + 1, 1, 50);
    log_reopen(log);
    assert_true(wal_last_index(log->wal) == last + 1);
    assert_false(log->recovery.tail_cut);
}

/* Nothing that a record names durable may be lost without a word. */
static void assert_flip_is_judged(const struct example *e, uint64_t epoch, uint64_t offset,
                                  uint8_t mask)
{
    struct log log = copy_of(e);
    /* A segment made ready behind it, or a header with records before it, names as well. */
    bool named = epoch < e->last_epoch || (epoch == e->named_epoch && offset < e->named_offset) ||
                 (epoch == e->last_epoch && offset < WAL_SEGMENT_HEADER);

    disk_mem_flip(log.disk, segment_file(epoch), offset, mask);
    int err = log_open(&log);

    if (err == 0) {
        assert_true(log.recovery.last_index >= e->named_count);
        assert_true(log.recovery.last_index == e->count || log.recovery.tail_cut);
        assert_log_holds(&log, e->terms, log.recovery.last_index);
        assert_goes_on(&log);
    } else {
        assert_int_equal(err, KEEL_E_CORRUPT);
        assert_true(named);
        assert_non_null(strstr(log.why, ".wal at offset "));
        assert_non_null(strstr(log.why, "do not delete the file"));
    }
    log_end(&log);
}

/* Headers, records, the zeroes behind them, and the segment that was made ready. */
static void judge_bits(const struct example *e, uint64_t first_epoch)
{
    assert_true(e->named_epoch > 2);
    for (uint64_t epoch = first_epoch; epoch <= e->last_epoch + 1; epoch++) {
        size_t size = disk_mem_file(e->log.disk, segment_file(epoch)).len;

        assert_true(size > 0);
        for (uint64_t bit = 0; bit < size * 8; bit++)
            assert_flip_is_judged(e, epoch, bit / 8, (uint8_t)(1u << bit % 8));
    }
}

static void one_flipped_bit_anywhere_is_damage_or_a_torn_last_batch(void **state)
{
    struct example e;

    (void)state;
    example_start(&e, 1024);
    assert_true(e.named_count < e.count);
    judge_bits(&e,
               e.named_epoch - 1); /* what is before that differs in nothing from the next test */
    log_end(&e.log);
}

static void one_flipped_bit_anywhere_in_an_idle_log_is_damage_or_loses_no_entry(void **state)
{
    struct example e;

    (void)state;
    example_start_idle(&e, 1024);
    assert_true(e.named_count == e.count);
    judge_bits(&e, 1);
    log_end(&e.log);
}

/* The other half of the rule: each byte that a named record consists of, and each header before it,
 * is found. */
static void one_flipped_byte_of_a_named_record_is_always_damage(void **state)
{
    struct example e;

    (void)state;
    example_start(&e, 0);
    assert_true(e.named_epoch == 1);
    for (uint64_t offset = 0; offset < e.named_offset - WAL_RECORD_HEADER; offset++) {
        struct log log = copy_of(&e);

        disk_mem_flip(log.disk, segment_file(1), offset, 0x10);
        assert_int_equal(log_open(&log), KEEL_E_CORRUPT);
        log_end(&log);
    }
    log_end(&e.log);
}

static void zero_file(struct disk *disk, uint64_t epoch, uint64_t from, uint64_t to)
{
    struct keel_slice now = disk_mem_file(disk, segment_file(epoch));
    struct keel_buf *copy = keel_buf_copy(now);

    memset(copy->data + from, 0, to - from);
    disk_mem_put(disk, segment_file(epoch), keel_buf_slice(copy));
    keel_buf_free(copy);
}

static void zeroed_middle_is_damage_at_its_offset(void **state)
{
    struct example e;
    struct log log;

    (void)state;
    example_start(&e, 0);
    log = copy_of(&e);
    uint64_t at = WAL_SEGMENT_HEADER;

    zero_file(log.disk, 1, at, at + 512);
    assert_int_equal(log_open(&log), KEEL_E_CORRUPT);
    assert_non_null(
        strstr(log.why, "record 1 does not check in 0000000000000001.wal at offset 64"));
    log_end(&log);
    log_end(&e.log);
}

static void torn_tail_is_cut_reported_and_zeroed(void **state)
{
    struct example e;
    struct log log;

    (void)state;
    example_start(&e, 0);
    log = copy_of(&e);
    disk_mem_flip(log.disk, segment_file(1), e.named_offset + 3, 0x40);
    assert_int_equal(log_open(&log), 0);
    assert_true(log.recovery.tail_cut);
    assert_string_equal(log.recovery.cut_file, "0000000000000001.wal");
    assert_true(log.recovery.cut_offset == e.named_offset);
    assert_log_holds(&log, e.terms, e.named_count);

    struct keel_slice file = disk_mem_file(log.disk, segment_file(1));

    for (size_t i = e.named_offset; i < file.len; i++)
        assert_int_equal(file.data[i], 0);
    disk_mem_crash(log.disk); /* the zeroes were synced */
    file = disk_mem_file(log.disk, segment_file(1));
    for (size_t i = e.named_offset; i < file.len; i++)
        assert_int_equal(file.data[i], 0);
    log_reopen(&log);
    assert_false(log.recovery.tail_cut);
    assert_goes_on(&log);
    log_end(&log);
    log_end(&e.log);
}

static bool is_all_zero(struct keel_slice bytes)
{
    for (size_t i = 0; i < bytes.len; i++)
        if (bytes.data[i] != 0)
            return false;
    return true;
}

static void junk_in_a_segment_that_was_made_ready_is_zeroed_and_that_is_synced(void **state)
{
    struct example e;

    (void)state;
    example_start(&e, 1024);
    for (uint64_t seed = 1; seed < 20; seed++) {
        struct log log = { .disk = disk_mem_copy(e.log.disk, seed), .options = e.log.options };

        disk_mem_flip(log.disk, segment_file(e.last_epoch + 1), 40, 0x40);
        assert_int_equal(log_open(&log), 0);
        assert_true(log.recovery.tail_cut);
        assert_string_equal(log.recovery.cut_file, segment_file(e.last_epoch + 1));
        assert_log_holds(&log, e.terms, e.count);
        log_close(&log);
        disk_mem_crash(log.disk);
        assert_true(is_all_zero(disk_mem_file(log.disk, segment_file(e.last_epoch + 1))));
        log_end(&log);
    }
    log_end(&e.log);
}

/* The next segment is made ready only when this one is in use, so its header has been synced. */
static void bad_header_before_a_segment_that_was_made_ready_is_damage(void **state)
{
    struct example e;
    struct log log;

    (void)state;
    example_start(&e, 1024);
    log = copy_of(&e);
    disk_mem_flip(log.disk, segment_file(e.last_epoch), 20, 1);
    zero_file(log.disk, e.last_epoch, WAL_SEGMENT_HEADER, 1024);
    assert_int_equal(log_open(&log), KEEL_E_CORRUPT);
    assert_non_null(strstr(log.why, segment_file(e.last_epoch)));
    assert_non_null(strstr(log.why, "more segments than one"));
    log_end(&log);
    log_end(&e.log);
}

static void bad_record_below_the_stores_applied_index_is_damage(void **state)
{
    struct example e;

    (void)state;
    example_start(&e, 0);
    for (uint64_t applied = e.named_count - 1; applied <= e.count; applied++) {
        struct log log = copy_of(&e);

        log.options.store_applied = applied;
        disk_mem_flip(log.disk, segment_file(1), e.named_offset + 3, 0x40);
        if (applied <= e.named_count) {
            assert_int_equal(log_open(&log), 0);
            assert_true(log.recovery.base_term == 2);
        } else {
            assert_int_equal(log_open(&log), KEEL_E_CORRUPT);
            assert_non_null(strstr(log.why, "behind entry 16"));
            assert_non_null(strstr(log.why, "has applied entry"));
        }
        log_end(&log);
    }
    log_end(&e.log);
}

static void store_ahead_of_a_sound_log_is_refused_with_both_numbers(void **state)
{
    struct example e;
    struct log log;

    (void)state;
    example_start(&e, 0);
    log = copy_of(&e);
    log.options.store_applied = 1234;
    assert_int_equal(log_open(&log), KEEL_E_CORRUPT);
    assert_non_null(strstr(log.why, "the store is ahead of the log"));
    assert_non_null(strstr(log.why, "1234"));
    assert_non_null(strstr(log.why, "ends at entry 18"));
    log_end(&log);
    log_end(&e.log);

    log = (struct log){ .disk = disk_mem_new(1), .options = { .store_applied = 1 } };
    assert_int_equal(log_open(&log), KEEL_E_CORRUPT);
    assert_non_null(strstr(log.why, "the store is ahead of the log"));
    assert_null(disk_mem_file(log.disk, segment_file(1)).data);
    log_end(&log);
}

/* ---- logs put together by hand ---- */

struct handmade {
    uint8_t bytes[4096];
    size_t len;
    uint64_t sequence, previous;
};

static void hand_header(struct handmade *h, const struct wal_segment_header *header)
{
    *h = (struct handmade){ .len = WAL_SEGMENT_HEADER };
    wal_segment_encode(header, h->bytes);
    h->sequence = header->first_sequence - 1;
    h->previous = header->previous_checksum;
}

static void hand_record(struct handmade *h, struct wal_record record)
{
    record.length = (uint32_t)record.body.len;
    record.sequence = ++h->sequence;
    record.previous_checksum = h->previous;
    h->previous = wal_record_encode(&record, h->bytes + h->len);
    if (record.body.len > 0)
        memcpy(h->bytes + h->len + WAL_RECORD_HEADER, record.body.data, record.body.len);
    h->len += wal_record_size(record.body.len);
    assert_true(h->len <= sizeof h->bytes);
}

static struct wal_segment_header first_header(void)
{
    return (struct wal_segment_header){ .version = WAL_FORMAT_VERSION,
                                        .cluster_id = TEST_CLUSTER,
                                        .node_id = TEST_NODE,
                                        .epoch = 1,
                                        .first_sequence = 1 };
}

static struct log log_of(const struct handmade *h)
{
    struct log log = { .disk = disk_mem_new(1),
                       .options = { .cluster_id = TEST_CLUSTER, .node_id = TEST_NODE } };

    disk_mem_put(log.disk, segment_file(1), keel_slice_of(h->bytes, h->len));
    return log;
}

static void hand_noop(struct handmade *h, uint64_t index)
{
    hand_record(h, (struct wal_record){ .kind = WAL_ENTRY, .term = 1, .index = index, .epoch = 1 });
}

static void end_below_the_commit_index_is_damage(void **state)
{
    struct wal_segment_header header = first_header();
    uint8_t vote[8] = { 0 };

    (void)state;
    for (uint64_t commit = 1; commit <= 3; commit++) {
        struct handmade h;

        hand_header(&h, &header);
        hand_noop(&h, 1);
        hand_noop(&h, 2);
        hand_record(&h, (struct wal_record){ .kind = WAL_HARD_STATE,
                                             .term = 1,
                                             .index = commit,
                                             .epoch = 1,
                                             .body = keel_slice_of(vote, 8) });
        struct log log = log_of(&h);

        if (commit <= 2) {
            assert_int_equal(log_open(&log), 0);
        } else {
            assert_int_equal(log_open(&log), KEEL_E_CORRUPT);
            assert_non_null(strstr(log.why, "known to be committed"));
        }
        log_end(&log);
    }
}

static void gap_between_entries_is_damage(void **state)
{
    struct wal_segment_header header = first_header();
    struct handmade h;

    (void)state;
    hand_header(&h, &header);
    hand_noop(&h, 1);
    hand_noop(&h, 3);
    struct log log = log_of(&h);

    assert_int_equal(log_open(&log), KEEL_E_CORRUPT);
    assert_non_null(strstr(log.why, "does not follow the one before it"));
    log_end(&log);
}

/* It checks, but it is not the next of its chain. */
static void record_out_of_its_chain_ends_the_log(void **state)
{
    struct wal_segment_header header = first_header();

    (void)state;
    for (int wrong = 0; wrong < 3; wrong++) {
        struct handmade h;

        hand_header(&h, &header);
        hand_noop(&h, 1);
        size_t end = h.len;

        h.previous ^= wrong == 0;
        h.sequence += wrong == 1;
        hand_record(&h,
                    (struct wal_record){
                        .kind = WAL_ENTRY, .term = 1, .index = 2, .epoch = wrong == 2 ? 7 : 1 });
        struct log log = log_of(&h);

        assert_int_equal(log_open(&log), 0);
        assert_true(log.recovery.last_index == 1);
        assert_true(log.recovery.tail_cut && log.recovery.cut_offset == end);
        assert_goes_on(&log);
        log_end(&log);
    }
}

/* The store must be at the snapshot, or further. */
static void reset_mark_sets_where_the_log_goes_on(void **state)
{
    struct wal_segment_header header = first_header();
    struct handmade h;

    (void)state;
    for (uint64_t applied = 5; applied <= 9; applied++) {
        hand_header(&h, &header);
        hand_noop(&h, 1);
        hand_record(&h,
                    (struct wal_record){ .kind = WAL_RESET, .term = 3, .index = 7, .epoch = 1 });
        hand_noop(&h, 8);
        struct log log = log_of(&h);

        log.options.store_applied = applied;
        int err = log_open(&log);

        if (applied == 7 || applied == 8) {
            assert_int_equal(err, 0);
            assert_true(log.recovery.first_index == 8 && log.recovery.last_index == 8);
            assert_true(log.recovery.base_term == (applied == 7 ? 3 : 1));
            assert_int_equal(log.recovery.count, 8 - applied);
            assert_true(log.recovery.hard_state.commit == 7 && log.recovery.hard_state.term == 3);
        } else {
            assert_int_equal(err, KEEL_E_CORRUPT);
            assert_non_null(
                strstr(log.why, applied < 7 ? "segments are missing" : "the store is ahead"));
        }
        log_end(&log);
    }
}

static void entry_at_or_below_a_reset_mark_is_damage(void **state)
{
    struct wal_segment_header header = first_header();

    (void)state;
    for (uint64_t index = 1; index <= 10; index++) {
        struct handmade h;

        hand_header(&h, &header);
        hand_record(&h, (struct wal_record){ .kind = WAL_RESET, .index = 7, .epoch = 1 });
        hand_noop(&h, index);
        struct log log = log_of(&h);

        log.options.store_applied = 7;
        assert_int_equal(log_open(&log), index == 8 ? 0 : KEEL_E_CORRUPT);
        log_end(&log);
    }
}

static void logs_of_others_and_of_newer_versions_are_refused(void **state)
{
    (void)state;
    for (int wrong = 0; wrong < 3; wrong++) {
        struct wal_segment_header header = first_header();
        struct handmade h;

        header.cluster_id += wrong == 0;
        header.node_id += wrong == 1;
        header.version += wrong == 2;
        hand_header(&h, &header);
        hand_noop(&h, 1);
        struct log log = log_of(&h);

        assert_int_equal(log_open(&log), wrong == 2 ? KEEL_E_NEWER : KEEL_E_INVALID);
        assert_non_null(strstr(log.why, wrong == 0   ? "another cluster"
                                        : wrong == 1 ? "another node"
                                                     : "newer version"));
        assert_non_null(strstr(log.why, "0000000000000001.wal"));
        log_end(&log);
    }
}

static void missing_segment_is_damage(void **state)
{
    struct example e;

    (void)state;
    example_start(&e, 1024);
    for (uint64_t epoch = 1; epoch < e.named_epoch; epoch++) {
        struct log log = copy_of(&e);

        assert_int_equal(log.disk->ops->remove(log.disk, segment_file(epoch)), 0);
        assert_int_equal(log_open(&log), KEEL_E_CORRUPT);
        assert_non_null(strstr(log.why, segment_file(epoch == 1 ? 2 : epoch)));
        assert_non_null(strstr(log.why, epoch == 1 ? "segments are missing" : "is missing"));
        log_end(&log);
    }
    log_end(&e.log);
}

static void segment_under_a_wrong_name_is_refused(void **state)
{
    struct example e;
    struct log log;

    (void)state;
    example_start(&e, 1024);
    log = copy_of(&e);
    disk_mem_put(log.disk, segment_file(1), disk_mem_file(log.disk, segment_file(2)));
    assert_int_equal(log_open(&log), KEEL_E_CORRUPT);
    assert_non_null(strstr(log.why, "mixed up"));
    log_end(&log);
    log_end(&e.log);
}

/* A later version may rename the oldest segment to be the next one. Its records check, but carry an
 * old epoch. */
static void old_data_of_a_recycled_segment_is_never_taken_for_new(void **state)
{
    struct wal_segment_header header = first_header();
    struct handmade old, h;

    (void)state;
    hand_header(&old, &header);
    for (uint64_t i = 1; i <= 20; i++)
        hand_record(&old,
                    (struct wal_record){
                        .kind = WAL_ENTRY, .term = 1, .index = i, .epoch = 1, .durable = i - 1 });
    hand_header(&h, &header);
    hand_noop(&h, 1);

    struct log log = log_of(&h);

    disk_mem_put(log.disk, segment_file(2), keel_slice_of(old.bytes, old.len));
    assert_int_equal(log_open(&log), 0);
    assert_true(log.recovery.last_index == 1);
    assert_goes_on(&log);
    log_end(&log);

    /* In use under its new epoch, with a first record of the new chain and old ones behind it. */
    header.epoch = 2;
    header.first_sequence = 2;
    header.previous_checksum = h.previous;
    wal_segment_encode(&header, old.bytes);
    uint8_t record[WAL_RECORD_HEADER];
    uint64_t previous = h.previous;
    struct wal_record first = { .kind = WAL_ENTRY,
                                .term = 2,
                                .index = 2,
                                .epoch = 2,
                                .sequence = 2,
                                .previous_checksum = previous,
                                .durable = 1 };

    wal_record_encode(&first, record);
    memcpy(old.bytes + WAL_SEGMENT_HEADER, record, sizeof record);
    log = log_of(&h);
    disk_mem_put(log.disk, segment_file(2), keel_slice_of(old.bytes, old.len));
    assert_int_equal(log_open(&log), 0);
    assert_true(log.recovery.last_index == 2);
    assert_true(log.recovery.entries[1].term == 2);
    assert_goes_on(&log);
    log_end(&log);
}

static void foreign_files_beside_the_log_are_left_alone(void **state)
{
    struct log log;

    (void)state;
    log_start(&log, 0, 4096);
    disk_mem_put(log.disk, "notes.txt", keel_slice_str("hello"));
    log_append(&log, 1, 2, 1);
    log_reopen(&log);
    assert_true(log.recovery.last_index == 2);
    assert_int_equal(disk_mem_file(log.disk, "notes.txt").len, 5);
    log_end(&log);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_flipped_bit_anywhere_is_damage_or_a_torn_last_batch),
        cmocka_unit_test(one_flipped_bit_anywhere_in_an_idle_log_is_damage_or_loses_no_entry),
        cmocka_unit_test(one_flipped_byte_of_a_named_record_is_always_damage),
        cmocka_unit_test(zeroed_middle_is_damage_at_its_offset),
        cmocka_unit_test(torn_tail_is_cut_reported_and_zeroed),
        cmocka_unit_test(junk_in_a_segment_that_was_made_ready_is_zeroed_and_that_is_synced),
        cmocka_unit_test(bad_header_before_a_segment_that_was_made_ready_is_damage),
        cmocka_unit_test(bad_record_below_the_stores_applied_index_is_damage),
        cmocka_unit_test(store_ahead_of_a_sound_log_is_refused_with_both_numbers),
        cmocka_unit_test(end_below_the_commit_index_is_damage),
        cmocka_unit_test(gap_between_entries_is_damage),
        cmocka_unit_test(record_out_of_its_chain_ends_the_log),
        cmocka_unit_test(reset_mark_sets_where_the_log_goes_on),
        cmocka_unit_test(entry_at_or_below_a_reset_mark_is_damage),
        cmocka_unit_test(logs_of_others_and_of_newer_versions_are_refused),
        cmocka_unit_test(missing_segment_is_damage),
        cmocka_unit_test(segment_under_a_wrong_name_is_refused),
        cmocka_unit_test(old_data_of_a_recycled_segment_is_never_taken_for_new),
        cmocka_unit_test(foreign_files_beside_the_log_are_left_alone),
    };

    return cmocka_run_group_tests_name("recovery", tests, NULL, NULL);
}
