/* Snapshots as a stream: what is written is read, and everything else is refused. */
#include "help.h"

#include <stdio.h>

#include "chain.h"
#include "check.h"
#include "mvcc/record.h"

enum { STORES = 30, HEADER = 128, BATCH_MAX = 1 << 20 };

static struct mvcc *random_store(struct kv *kv, struct keel_rng *rng)
{
    struct mvcc *m = help_open(kv);
    uint64_t entries = keel_rng_below(rng, 60);

    while (entries-- > 0)
        help_random_entry(m, rng);
    help_checkpoint(m, kv);
    return m;
}

static struct keel_buf *small_stream(struct snapshot_info *ret_info)
{
    struct kv *kv = kv_mem_new();
    struct mvcc *m = help_open(kv);

    help_mkdir(m, "conf");
    help_write(m, "conf/db", "hello\n");
    help_write(m, "conf/db", "more");
    help_delete(m, "conf/db");
    help_checkpoint(m, kv);
    struct keel_buf *stream = help_snapshot(kv, ret_info);

    mvcc_close(m);
    kv->ops->close(kv);
    return stream;
}

/* What a sink has been given. */
struct taken {
    size_t batches, entries, last_entries, most_bytes;
    bool meta, meta_before_last;
    uint64_t applied_index;
};

static int take(void *arg, struct kv_batch *batch_take)
{
    struct taken *taken = arg;

    taken->batches++;
    taken->entries += batch_take->count;
    taken->meta_before_last |= taken->meta;
    for (size_t i = 0; i < batch_take->count; i++)
        taken->meta |= batch_take->writes[i].table == KV_META;
    if (batch_take->bytes > taken->most_bytes)
        taken->most_bytes = batch_take->bytes;
    taken->applied_index = batch_take->applied_index;
    kv_batch_free(batch_take);
    return 0;
}

static int read_bytes(struct keel_slice bytes, struct taken *ret_taken, char *ret_why, size_t size)
{
    struct snapshot_reader *reader = snapshot_reader_new(take, ret_taken);
    struct snapshot_info info;

    *ret_taken = (struct taken){ 0 };
    ret_why[0] = '\0';
    int err = snapshot_reader_feed(reader, bytes, ret_why, size);

    if (err != 0)
        assert_int_equal(snapshot_reader_feed(reader, bytes, ret_why, size), err);
    int end = snapshot_reader_finish(reader, &info, ret_why, size);

    assert_true(err == 0 || end == err);
    snapshot_reader_free(reader);
    return end;
}

static void assert_refused(struct keel_slice bytes, int err)
{
    struct taken taken;
    char why[256];

    assert_int_equal(read_bytes(bytes, &taken, why, sizeof why), err);
    assert_true(strlen(why) > 20);
    assert_false(taken.meta);
}

/* Changed by fn, with checks that fit. */
static void assert_forgery_refused(void (*fn)(uint8_t *stream, size_t len))
{
    struct snapshot_info info;
    struct keel_buf *stream = small_stream(&info);

    fn(stream->data, stream->len);
    chain_repair(stream->data, stream->len);
    assert_refused(keel_buf_slice(stream), KEEL_E_CORRUPT);
    keel_buf_free(stream);
}

/* ---- tests ---- */

static void what_is_streamed_into_another_kv_is_the_same_store(void **state)
{
    struct keel_rng rng;

    (void)state;
    keel_rng_seed(&rng, 3);
    for (int i = 0; i < STORES; i++) {
        char dir[128];

        help_dir_new(dir, sizeof dir);
        struct kv *mem = kv_mem_new(), *lmdb = help_lmdb(dir);
        struct kv *from = i % 2 ? lmdb : mem, *to = i % 2 ? mem : lmdb;
        struct mvcc *m = random_store(from, &rng);
        struct snapshot_info info;
        struct keel_buf *stream = help_snapshot(from, &info);

        assert_int_equal(info.index, mvcc_applied_index(m));
        assert_int_equal(info.term, mvcc_applied_term(m));
        assert_int_equal(info.revision, mvcc_revision(m));
        assert_int_equal(info.cluster_id, 77);
        help_install(stream, to, &rng);
        help_assert_same_tables(from, to);
        struct mvcc *copy = help_open(to);

        help_assert_same(m, copy);
        mvcc_close(copy);
        mvcc_close(m);
        keel_buf_free(stream);
        mem->ops->close(mem);
        lmdb->ops->close(lmdb);
        help_dir_remove(dir);
    }
}

static void batches_are_at_most_a_mebibyte_and_meta_comes_last(void **state)
{
    struct kv *kv = kv_mem_new();
    struct mvcc *m = help_open(kv);
    struct mvcc_value value = { .owner = keel_buf_new(KEEL_FILE_SIZE_MAX) };
    struct snapshot_info info;
    struct taken taken;
    char name[8], why[256];

    (void)state;
    memset(value.owner->data, 'x', value.owner->len);
    value.bytes = keel_buf_slice(value.owner);
    for (uint64_t i = 1; i <= 4; i++) {
        struct mvcc_record record = { .kind = MVCC_FILE, .ino = 10 + i };
        struct mvcc_txn *txn = mvcc_begin(m, i, 1);

        snprintf(name, sizeof name, "f%d", (int)i);
        mvcc_put(txn, mvcc_root(m), keel_slice_str(name), &record, &value);
        mvcc_commit(txn);
    }
    keel_buf_free(value.owner);
    help_checkpoint(m, kv);
    struct keel_buf *stream = help_snapshot(kv, &info);

    assert_int_equal(read_bytes(keel_buf_slice(stream), &taken, why, sizeof why), 0);
    assert_int_equal(taken.entries, 5 + 4 + 1 + 2);
    assert_in_range(taken.most_bytes, KEEL_FILE_SIZE_MAX, BATCH_MAX);
    assert_in_range(taken.batches, 5, 7);
    assert_true(taken.meta && !taken.meta_before_last);
    assert_int_equal(taken.applied_index, 4);
    keel_buf_free(stream);
    mvcc_close(m);
    kv->ops->close(kv);
}

static void any_flipped_bit_is_refused(void **state)
{
    struct snapshot_info info;
    struct keel_buf *stream = small_stream(&info);

    (void)state;
    for (size_t bit = 0; bit < stream->len * 8; bit++) {
        stream->data[bit / 8] ^= (uint8_t)(1u << bit % 8);
        assert_refused(keel_buf_slice(stream), KEEL_E_CORRUPT);
        stream->data[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    keel_buf_free(stream);
}

static void a_stream_that_ends_too_early_or_too_late_is_refused(void **state)
{
    struct snapshot_info info;
    struct keel_buf *stream = small_stream(&info);
    struct keel_buf *longer = keel_buf_new(stream->len + 1);
    struct taken taken;
    char why[256];

    (void)state;
    for (size_t len = 0; len < stream->len; len++)
        assert_refused(keel_slice_of(stream->data, len), KEEL_E_CORRUPT);
    memcpy(longer->data, stream->data, stream->len);
    longer->data[stream->len] = 0;
    assert_int_equal(read_bytes(keel_buf_slice(longer), &taken, why, sizeof why), KEEL_E_CORRUPT);
    assert_non_null(strstr(why, "behind the trailer"));
    keel_buf_free(longer);
    keel_buf_free(stream);
}

static void a_newer_version_is_refused_as_newer(void **state)
{
    struct snapshot_info info;
    struct keel_buf *stream = small_stream(&info);

    (void)state;
    put_le32(stream->data + 8, SNAPSHOT_FORMAT_VERSION + 1);
    chain_repair(stream->data, HEADER);
    assert_refused(keel_buf_slice(stream), KEEL_E_NEWER);
    put_le32(stream->data + 8, SNAPSHOT_FORMAT_VERSION);
    put_le32(stream->data + 12, MVCC_FORMAT_VERSION + 1);
    chain_repair(stream->data, HEADER);
    assert_refused(keel_buf_slice(stream), KEEL_E_NEWER);
    keel_buf_free(stream);
}

/* ---- forgeries: every check fits ---- */

static void count_one_more(uint8_t *p, size_t len)
{
    p[72]++;
    p[len - 8 - 40]++;
}

static void count_one_more_in_the_header(uint8_t *p, size_t len)
{
    (void)len;
    p[72]++;
}

static void say_another_length(uint8_t *p, size_t len)
{
    p[len - 16]++;
}

static void change_a_record(uint8_t *p, size_t len)
{
    (void)len;
    p[HEADER + 16 + 5 + 17 + 4] ^= 1;
}

/* The second key of records becomes the first one. */
static void write_a_key_twice(uint8_t *p, size_t len)
{
    uint8_t *first = p + HEADER + 16;
    size_t entry = 5 + 17 + get_le32(first + 1);

    (void)len;
    memcpy(first + entry + 5, first + 5, 17);
}

static void say_another_index_in_the_header(uint8_t *p, size_t len)
{
    (void)len;
    p[24]++;
}

static void number_a_block_wrong(uint8_t *p, size_t len)
{
    (void)len;
    p[HEADER]++;
}

static void name_a_table_that_is_not_there(uint8_t *p, size_t len)
{
    (void)len;
    p[HEADER + 4] = KV_TABLES;
}

static void make_a_value_longer_than_its_block(uint8_t *p, size_t len)
{
    (void)len;
    p[HEADER + 16 + 4] = 0x7f;
}

static void make_a_key_shorter(uint8_t *p, size_t len)
{
    (void)len;
    p[HEADER + 16]--;
}

static void write_into_the_unused_part_of_the_header(uint8_t *p, size_t len)
{
    (void)len;
    p[110] = 1;
}

static void contradictions_are_refused_though_the_checks_fit(void **state)
{
    static void (*const forgeries[])(uint8_t *, size_t) = {
        count_one_more,
        count_one_more_in_the_header,
        say_another_length,
        change_a_record,
        write_a_key_twice,
        say_another_index_in_the_header,
        number_a_block_wrong,
        name_a_table_that_is_not_there,
        make_a_value_longer_than_its_block,
        make_a_key_shorter,
        write_into_the_unused_part_of_the_header,
    };
    struct snapshot_info info;
    struct keel_buf *stream = small_stream(&info);
    struct taken taken;
    char why[256];

    (void)state;
    chain_repair(stream->data, stream->len);
    assert_int_equal(read_bytes(keel_buf_slice(stream), &taken, why, sizeof why), 0);
    keel_buf_free(stream);
    for (size_t i = 0; i < KEEL_ARRAY_LEN(forgeries); i++)
        assert_forgery_refused(forgeries[i]);
}

/* Number and length fit; what it is chained to does not. */
static void a_block_of_another_stream_is_refused(void **state)
{
    struct keel_buf *streams[2];
    struct snapshot_info info;

    (void)state;
    for (size_t i = 0; i < 2; i++) {
        struct kv *kv = kv_mem_new();
        struct mvcc *m = help_open(kv);

        help_write(m, "file", i == 0 ? "one" : "two");
        help_checkpoint(m, kv);
        streams[i] = help_snapshot(kv, &info);
        mvcc_close(m);
        kv->ops->close(kv);
    }
    size_t at = HEADER + 16 + get_le32(streams[0]->data + HEADER + 8) + 8;
    size_t len = 16 + get_le32(streams[0]->data + at + 8) + 8;

    assert_int_equal(streams[0]->len, streams[1]->len);
    assert_int_equal(get_le32(streams[0]->data + at + 4), 1);
    assert_memory_not_equal(streams[0]->data + at, streams[1]->data + at, len);
    memcpy(streams[0]->data + at, streams[1]->data + at, len);
    assert_refused(keel_buf_slice(streams[0]), KEEL_E_CORRUPT);
    keel_buf_free(streams[0]);
    keel_buf_free(streams[1]);
}

/* The leases of very many keys. */
static void meta_values_may_be_larger_than_any_record(void **state)
{
    struct kv *kv = kv_mem_new(), *to = kv_mem_new();
    struct mvcc *m = help_open(kv);
    const struct keel_slice names[2] = { keel_slice_str("cluster"), keel_slice_str("leases") };
    struct keel_buf *values[2] = { keel_buf_new(100), keel_buf_new(5 << 20) };
    struct snapshot_info info;
    struct keel_rng rng;

    (void)state;
    keel_rng_seed(&rng, 8);
    for (size_t i = 0; i < 2; i++)
        memset(values[i]->data, 'v', values[i]->len);
    struct kv_batch *batch = mvcc_checkpoint(m, names, values, 2);

    assert_int_equal(kv->ops->write(kv, batch), 0);
    mvcc_checkpointed(m);
    kv_batch_free(batch);
    struct keel_buf *stream = help_snapshot(kv, &info);

    help_install(stream, to, &rng);
    help_assert_same_tables(kv, to);
    for (size_t i = 0; i < 2; i++)
        keel_buf_free(values[i]);
    keel_buf_free(stream);
    mvcc_close(m);
    to->ops->close(to);
    kv->ops->close(kv);
}

/* The head says 1 GiB: nothing is allocated for what has not come. */
static void a_length_is_not_believed_before_its_bytes_have_come(void **state)
{
    struct snapshot_info info;
    struct keel_buf *stream = small_stream(&info);

    (void)state;
    put_le32(stream->data + HEADER + 8, 1 << 30);
    assert_refused(keel_buf_slice(stream), KEEL_E_CORRUPT);
    put_le32(stream->data + HEADER + 4, 3);
    put_le32(stream->data + HEADER + 8, 200 << 20);
    put_le32(stream->data + HEADER + 12, 1);
    assert_refused(keel_slice_of(stream->data, HEADER + 20), KEEL_E_CORRUPT);
    keel_buf_free(stream);
}

static int refuse(void *arg, struct kv_batch *batch_take)
{
    (void)arg;
    kv_batch_free(batch_take);
    return KEEL_E_DISKFULL;
}

static void an_error_of_the_sink_ends_the_reading(void **state)
{
    struct snapshot_info info;
    struct keel_buf *stream = small_stream(&info);
    struct snapshot_reader *reader = snapshot_reader_new(refuse, NULL);
    char why[256] = "";

    (void)state;
    assert_int_equal(snapshot_reader_feed(reader, keel_buf_slice(stream), why, sizeof why),
                     KEEL_E_DISKFULL);
    assert_int_equal(snapshot_reader_finish(reader, &info, why, sizeof why), KEEL_E_DISKFULL);
    assert_non_null(strstr(why, "no space"));
    snapshot_reader_free(reader);
    keel_buf_free(stream);
}

static void without_a_sink_it_only_checks(void **state)
{
    struct snapshot_info info, read_info;
    struct keel_buf *stream = small_stream(&info);
    struct snapshot_reader *reader = snapshot_reader_new(NULL, NULL);
    char why[256] = "";

    (void)state;
    assert_int_equal(snapshot_reader_feed(reader, keel_buf_slice(stream), why, sizeof why), 0);
    assert_int_equal(snapshot_reader_finish(reader, &read_info, why, sizeof why), 0);
    assert_memory_equal(&info, &read_info, sizeof info);
    snapshot_reader_free(reader);
    stream->data[stream->len / 2] ^= 1;
    reader = snapshot_reader_new(NULL, NULL);
    assert_int_equal(snapshot_reader_feed(reader, keel_buf_slice(stream), why, sizeof why),
                     KEEL_E_CORRUPT);
    snapshot_reader_free(reader);
    keel_buf_free(stream);
}

static void a_store_without_a_format_has_no_snapshot(void **state)
{
    struct kv *kv = kv_mem_new();
    struct snapshot_writer *writer;

    (void)state;
    assert_int_equal(snapshot_writer_new(kv, 1, &writer), KEEL_E_NOTFOUND);
    kv->ops->close(kv);
}

static void what_is_written_meanwhile_is_not_in_the_stream(void **state)
{
    struct kv *kv = kv_mem_new(), *to = kv_mem_new();
    struct mvcc *m = help_open(kv), *copy;
    struct snapshot_writer *writer;
    struct keel_text stream = { 0 };
    struct keel_slice piece;
    struct keel_rng rng;

    (void)state;
    keel_rng_seed(&rng, 5);
    help_write(m, "a", "before");
    help_checkpoint(m, kv);
    assert_int_equal(snapshot_writer_new(kv, 1, &writer), 0);
    for (int i = 0; snapshot_writer_next(writer, &piece) == 0 && piece.len > 0; i++) {
        keel_text_append(&stream, piece);
        help_write(m, "a", "after");
        help_checkpoint(m, kv);
    }
    snapshot_writer_free(writer);
    struct keel_buf *buf = keel_buf_copy(keel_slice_of(stream.data, stream.len));

    help_install(buf, to, &rng);
    copy = help_open(to);
    assert_string_equal(help_read(copy, "a", 0), "before");
    assert_string_equal(help_read(m, "a", 0), "after");
    mvcc_close(copy);
    mvcc_close(m);
    keel_buf_free(buf);
    keel_text_free(&stream);
    to->ops->close(to);
    kv->ops->close(kv);
}

/* ---- the golden file ---- */

static struct keel_buf *golden(void)
{
    static uint8_t bytes[1 << 16];
    FILE *file = fopen(GOLDEN, "rb");

    assert_non_null(file);
    size_t len = fread(bytes, 1, sizeof bytes, file);

    fclose(file);
    return keel_buf_copy(keel_slice_of(bytes, len));
}

/* Written by version 1: every later one must read it. */
static void the_golden_file_is_read(void **state)
{
    struct keel_buf *stream = golden();
    struct kv *kv = kv_mem_new();
    struct keel_rng rng;

    (void)state;
    keel_rng_seed(&rng, 6);
    help_install(stream, kv, &rng);
    struct mvcc *m = help_open(kv);

    assert_string_equal(help_read(m, "conf/db", 0), "hello again\n");
    assert_string_equal(help_read(m, "conf/db", 3), "hello\n");
    assert_string_equal(help_read(m, "gone", 0), "(none)");
    assert_string_equal(help_read(m, "gone", 5), "for a while\n");
    assert_int_equal(mvcc_applied_index(m), 5);
    mvcc_close(m);
    kv->ops->close(kv);
    keel_buf_free(stream);
}

/* As long as 1 is the version that is written. */
static void the_golden_file_is_what_is_written(void **state)
{
    struct keel_buf *want = golden(), *got;
    struct kv *kv = kv_mem_new();
    struct mvcc *m = help_open(kv);
    struct snapshot_info info;

    (void)state;
    help_mkdir(m, "conf");
    help_write(m, "conf/db", "hello\n");
    help_write(m, "conf/db", "hello again\n");
    help_write(m, "gone", "for a while\n");
    help_delete(m, "gone");
    help_checkpoint(m, kv);
    got = help_snapshot(kv, &info);
    assert_int_equal(got->len, want->len);
    assert_memory_equal(got->data, want->data, got->len);
    keel_buf_free(got);
    keel_buf_free(want);
    mvcc_close(m);
    kv->ops->close(kv);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_streamed_into_another_kv_is_the_same_store),
        cmocka_unit_test(batches_are_at_most_a_mebibyte_and_meta_comes_last),
        cmocka_unit_test(any_flipped_bit_is_refused),
        cmocka_unit_test(a_stream_that_ends_too_early_or_too_late_is_refused),
        cmocka_unit_test(a_newer_version_is_refused_as_newer),
        cmocka_unit_test(contradictions_are_refused_though_the_checks_fit),
        cmocka_unit_test(a_block_of_another_stream_is_refused),
        cmocka_unit_test(meta_values_may_be_larger_than_any_record),
        cmocka_unit_test(a_length_is_not_believed_before_its_bytes_have_come),
        cmocka_unit_test(an_error_of_the_sink_ends_the_reading),
        cmocka_unit_test(without_a_sink_it_only_checks),
        cmocka_unit_test(a_store_without_a_format_has_no_snapshot),
        cmocka_unit_test(what_is_written_meanwhile_is_not_in_the_stream),
        cmocka_unit_test(the_golden_file_is_read),
        cmocka_unit_test(the_golden_file_is_what_is_written),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
