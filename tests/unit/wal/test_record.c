/* The record codec and the segment header. */
#include "fixture.h"

#include "bytes.h"
#include "err.h"
#include "hash.h"

static struct wal_record example(struct keel_slice body)
{
    return (struct wal_record){
        .length = (uint32_t)body.len,
        .kind = WAL_ENTRY,
        .entry_kind = RAFT_ENTRY_COMMAND,
        .term = 3,
        .index = 17,
        .epoch = 2,
        .sequence = 29,
        .previous_checksum = 0x1122334455667788,
        .durable = 25,
        .body = body,
    };
}

/* The record's bytes, padded. */
static size_t encode(const struct wal_record *record, uint8_t *p)
{
    size_t size = wal_record_size(record->body.len);

    memset(p, 0, size);
    wal_record_encode(record, p);
    if (record->body.len > 0)
        memcpy(p + WAL_RECORD_HEADER, record->body.data, record->body.len);
    return size;
}

static void record_comes_back_as_it_went_in(void **state)
{
    (void)state;
    for (size_t len = 0; len <= 17; len++) {
        uint8_t bytes[WAL_RECORD_HEADER + 24 + 8];
        struct wal_record in = example(keel_slice_of("seventeen letters", len)), out;
        size_t size = encode(&in, bytes), got;

        assert_int_equal(size % 8, 0);
        assert_int_equal(wal_record_decode(keel_slice_of(bytes, sizeof bytes), &out, &got), 0);
        assert_true(got == size);
        assert_true(out.kind == in.kind && out.entry_kind == in.entry_kind);
        assert_true(out.term == in.term && out.index == in.index && out.epoch == in.epoch);
        assert_true(out.sequence == in.sequence && out.durable == in.durable);
        assert_true(out.previous_checksum == in.previous_checksum);
        assert_true(out.checksum == get_le64(bytes + 64));
        assert_true(keel_slice_equal(out.body, in.body));
    }
}

static void record_that_is_cut_short_is_malformed(void **state)
{
    uint8_t bytes[WAL_RECORD_HEADER + 16];
    struct wal_record in = example(keel_slice_str("0123456789")), out;
    size_t size = encode(&in, bytes), got;

    (void)state;
    for (size_t len = 0; len < size; len++)
        assert_int_equal(wal_record_decode(keel_slice_of(bytes, len), &out, &got),
                         KEEL_E_MALFORMED);
    assert_int_equal(wal_record_decode(keel_slice_of(bytes, size), &out, &got), 0);
}

static void every_flipped_bit_makes_a_record_malformed(void **state)
{
    uint8_t bytes[WAL_RECORD_HEADER + 16];
    struct wal_record in = example(keel_slice_str("0123456789")), out;
    size_t size = encode(&in, bytes), got;

    (void)state;
    for (size_t bit = 0; bit < size * 8; bit++) {
        bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
        assert_int_equal(wal_record_decode(keel_slice_of(bytes, sizeof bytes), &out, &got),
                         KEEL_E_MALFORMED);
        bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
}

/* Sound checksums do not make nonsense sound. */
static void impossible_record_is_malformed(void **state)
{
    struct {
        size_t offset;
        uint8_t value;
    } const wrong[] = {
        { 8, 0 },   /* no such kind */
        { 8, 5 },   /* no such kind */
        { 8, 2 },   /* a hard state of ten bytes */
        { 8, 3 },   /* a durable record with a body */
        { 9, 3 },   /* no such kind of entry */
        { 10, 1 },  /* reserved */
        { 15, 1 },  /* reserved */
        { 24, 0 },  /* entry 0 */
        { 56, 29 }, /* it cannot have been durable when it was written */
    };

    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        uint8_t bytes[WAL_RECORD_HEADER + 16];
        struct keel_slice body = keel_slice_str("0123456789");
        struct wal_record in = example(body), out;
        size_t size = encode(&in, bytes), got;

        bytes[wrong[i].offset] = wrong[i].value;
        put_le64(bytes + 64, keel_hash64_seed(keel_slice_of(bytes, 64), keel_hash64(body)));
        assert_int_equal(wal_record_decode(keel_slice_of(bytes, size), &out, &got),
                         KEEL_E_MALFORMED);
    }
}

static void oversized_length_is_malformed_before_anything_is_read(void **state)
{
    uint8_t bytes[WAL_RECORD_HEADER + 16];
    struct wal_record in = example(keel_slice_str("0123456789")), out;
    size_t size = encode(&in, bytes), got;

    (void)state;
    put_le32(bytes + 4, KEEL_ENTRY_SIZE_MAX + 1);
    assert_int_equal(wal_record_decode(keel_slice_of(bytes, size), &out, &got), KEEL_E_MALFORMED);
    put_le32(bytes + 4, UINT32_MAX);
    assert_int_equal(wal_record_decode(keel_slice_of(bytes, size), &out, &got), KEEL_E_MALFORMED);
}

static void segment_header_comes_back_and_no_flipped_bit_passes(void **state)
{
    uint8_t bytes[WAL_SEGMENT_HEADER];
    struct wal_segment_header out, in = { .version = WAL_FORMAT_VERSION,
                                          .cluster_id = 11,
                                          .node_id = 12,
                                          .epoch = 13,
                                          .first_sequence = 14,
                                          .previous_checksum = 15 };

    (void)state;
    wal_segment_encode(&in, bytes);
    assert_int_equal(wal_segment_decode(keel_slice_of(bytes, sizeof bytes), &out), 0);
    assert_true(out.version == in.version && out.cluster_id == in.cluster_id);
    assert_true(out.node_id == in.node_id && out.epoch == in.epoch);
    assert_true(out.first_sequence == in.first_sequence);
    assert_true(out.previous_checksum == in.previous_checksum);
    for (size_t bit = 0; bit < sizeof bytes * 8; bit++) {
        bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
        assert_int_equal(wal_segment_decode(keel_slice_of(bytes, sizeof bytes), &out),
                         KEEL_E_MALFORMED);
        bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    assert_int_equal(wal_segment_decode(keel_slice_of(bytes, sizeof bytes - 1), &out),
                     KEEL_E_MALFORMED);
}

static void only_names_of_segments_are_taken_for_segments(void **state)
{
    static const char *const others[] = { "",
                                          "1.wal",
                                          "000000000000000g.wal",
                                          "0000000000000000.wal",
                                          "000000000000000A.wal",
                                          "0000000000000001.walx",
                                          "00000000000000001.wal",
                                          "0000000000000001" };
    char name[WAL_FILE_NAME];
    uint64_t epoch;

    (void)state;
    wal_segment_name(0xabcdef, name);
    assert_string_equal(name, "0000000000abcdef.wal");
    assert_true(wal_segment_parse_name(name, &epoch));
    assert_true(epoch == 0xabcdef);
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        assert_false(wal_segment_parse_name(others[i], &epoch));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(record_comes_back_as_it_went_in),
        cmocka_unit_test(record_that_is_cut_short_is_malformed),
        cmocka_unit_test(every_flipped_bit_makes_a_record_malformed),
        cmocka_unit_test(impossible_record_is_malformed),
        cmocka_unit_test(oversized_length_is_malformed_before_anything_is_read),
        cmocka_unit_test(segment_header_comes_back_and_no_flipped_bit_passes),
        cmocka_unit_test(only_names_of_segments_are_taken_for_segments),
    };

    return cmocka_run_group_tests_name("record", tests, NULL, NULL);
}
