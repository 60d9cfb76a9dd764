/* The codec of records: what is encoded decodes to the same, anything else is refused. */
#include "help.h"

#include "bytes.h"
#include "hash.h"
#include "mvcc/record.h"
#include "rng.h"

static const struct mvcc_record full = {
    .kind = MVCC_FILE,
    .mode = 04755,
    .uid = 1000,
    .gid = UINT32_MAX - 1,
    .atime_ns = -1,
    .mtime_ns = INT64_MAX,
    .ctime_ns = INT64_MIN,
    .btime_ns = 4,
    .ino = UINT64_MAX,
    .lease = 77,
    .revision = { 42, 7 },
    .create_revision = 40,
    .version = 3,
    .content = { .at = { 41, 2 }, .length = KEEL_FILE_SIZE_MAX, .hash = 0x1122334455667788 },
    .xattrs = { (const uint8_t *)"attributes", 10 },
};

static void assert_records_equal(const struct mvcc_record *a, const struct mvcc_record *b)
{
    assert_int_equal(a->tombstone, b->tombstone);
    assert_int_equal(a->kind, b->kind);
    assert_int_equal(a->mode, b->mode);
    assert_int_equal(a->uid, b->uid);
    assert_int_equal(a->gid, b->gid);
    assert_true(a->atime_ns == b->atime_ns && a->mtime_ns == b->mtime_ns);
    assert_true(a->ctime_ns == b->ctime_ns && a->btime_ns == b->btime_ns);
    assert_true(a->ino == b->ino && a->lease == b->lease);
    assert_int_equal(revision_compare(a->revision, b->revision), 0);
    assert_int_equal(a->create_revision, b->create_revision);
    assert_int_equal(a->version, b->version);
    assert_int_equal(revision_compare(a->content.at, b->content.at), 0);
    assert_int_equal(a->content.length, b->content.length);
    assert_true(a->content.hash == b->content.hash);
    assert_true(keel_slice_equal(a->xattrs, b->xattrs));
}

static void check_round_trip(const struct mvcc_record *record, const char *path)
{
    struct keel_buf *buf = mvcc_record_encode(record, keel_slice_str(path));
    struct mvcc_record decoded;
    struct keel_slice decoded_path;

    assert_int_equal(mvcc_record_decode(keel_buf_slice(buf), &decoded, &decoded_path), 0);
    assert_records_equal(record, &decoded);
    assert_true(keel_slice_equal(decoded_path, keel_slice_str(path)));
    keel_buf_free(buf);
}

static void records_come_back_as_they_were(void **state)
{
    struct mvcc_record dir = { .kind = MVCC_DIR,
                               .mode = 0755,
                               .ino = 1,
                               .revision = { 1, 0 },
                               .create_revision = 1,
                               .version = 1 };
    struct mvcc_record tombstone = { .tombstone = true,
                                     .kind = MVCC_SYMLINK,
                                     .ino = 9,
                                     .lease = 5,
                                     .ctime_ns = 12,
                                     .revision = { 6, 0 } };

    (void)state;
    check_round_trip(&full, "conf/db");
    check_round_trip(&dir, "");
    check_round_trip(&tombstone, "a/b/c");
}

/* Bytes with a check that fits: what a bug, rather than the disk, would have written. */
static int decode_signed(struct keel_buf *buf)
{
    struct mvcc_record record;
    struct keel_slice path;

    put_le64(buf->data + buf->len - 8, keel_hash64(keel_slice_of(buf->data, buf->len - 8)));
    return mvcc_record_decode(keel_buf_slice(buf), &record, &path);
}

static void any_flipped_bit_is_damage(void **state)
{
    struct keel_buf *buf = mvcc_record_encode(&full, keel_slice_str("conf/db"));
    struct mvcc_record record;
    struct keel_slice path;

    (void)state;
    for (size_t bit = 0; bit < buf->len * 8; bit++) {
        buf->data[bit / 8] ^= (uint8_t)(1u << bit % 8);
        assert_int_equal(mvcc_record_decode(keel_buf_slice(buf), &record, &path), KEEL_E_CORRUPT);
        buf->data[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    keel_buf_free(buf);
}

static void any_cut_or_longer_record_is_damage(void **state)
{
    struct keel_buf *buf = mvcc_record_encode(&full, keel_slice_str("conf/db"));
    struct mvcc_record record;
    struct keel_slice path;

    (void)state;
    for (size_t len = 0; len < buf->len; len++)
        assert_int_equal(mvcc_record_decode(keel_slice_of(buf->data, len), &record, &path),
                         KEEL_E_CORRUPT);
    struct keel_buf *longer = keel_buf_new(buf->len + 1);

    memset(longer->data, 0, longer->len);
    memcpy(longer->data, buf->data, buf->len - 8);
    assert_int_equal(decode_signed(longer), KEEL_E_CORRUPT);
    keel_buf_free(longer);
    keel_buf_free(buf);
}

static void a_newer_version_is_told_from_damage(void **state)
{
    struct keel_buf *buf = mvcc_record_encode(&full, keel_slice_str("conf/db"));

    (void)state;
    buf->data[0] = 2;
    assert_int_equal(decode_signed(buf), KEEL_E_NEWER);
    buf->data[0] = 0;
    assert_int_equal(decode_signed(buf), KEEL_E_CORRUPT);
    buf->data[0] = 1;
    assert_int_equal(decode_signed(buf), 0);
    keel_buf_free(buf);
}

struct bad_field {
    const char *what;
    size_t offset;
    uint8_t value;
};

static void fields_that_no_record_has_are_refused(void **state)
{
    static const struct bad_field bad[] = {
        { "an unknown flag", 1, 2 },
        { "kind 0", 2, 0 },
        { "kind 4", 2, 4 },
        { "a directory with content", 2, MVCC_DIR },
        { "a link with 1020 KiB", 2, MVCC_SYMLINK },
        { "a reserved byte", 3, 1 },
        { "mode beyond 07777", 5, 0xff },
        { "a longer path", 6, 8 },
        { "content of the future", 96, 43 },
        { "a content too large", 110, 0xff },
        { "created in the future", 48, 43 },
        { "version 0", 56, 0 },
        { "a slash at the front", 120, '/' },
        { "NUL in a name", 121, 0 },
        { "an empty name", 125, '/' },
    };

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct keel_buf *buf = mvcc_record_encode(&full, keel_slice_str("conf/db"));

        buf->data[bad[i].offset] = bad[i].value;
        if (decode_signed(buf) != KEEL_E_CORRUPT)
            fail_msg("accepted: %s", bad[i].what);
        keel_buf_free(buf);
    }
}

static void tombstones_have_zeroes_where_nothing_is_meant(void **state)
{
    struct mvcc_record tombstone = { .tombstone = true,
                                     .kind = MVCC_FILE,
                                     .ino = 9,
                                     .lease = 5,
                                     .ctime_ns = 12,
                                     .revision = { 6, 0 } };
    static const uint8_t meaningful[] = { 16, 24, 32, 40, 80 }; /* ino, lease, revision, ctime */

    (void)state;
    for (size_t offset = 4; offset < 120; offset++) {
        struct keel_buf *buf = mvcc_record_encode(&tombstone, keel_slice_str("gone"));
        bool free_to_set = offset >= 6 && offset < 8; /* the path's length: another error */

        for (size_t i = 0; i < sizeof meaningful; i++)
            free_to_set |= offset >= meaningful[i] && offset < meaningful[i] + 8u;
        buf->data[offset] = 1;
        if (!free_to_set)
            assert_int_equal(decode_signed(buf), KEEL_E_CORRUPT);
        keel_buf_free(buf);
    }
}

static void paths_are_checked_name_by_name(void **state)
{
    char longest[KEEL_NAME_MAX + 2];
    static const char *const good[] = { "", "a", "a/b", "...", ".a", "..a/b.", "a b/\xff" };
    static const char *const bad[] = { "/", "/a", "a/", "a//b", ".", "..", "a/..", "./a", "a/./b" };

    (void)state;
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++)
        assert_true(mvcc_path_valid(keel_slice_str(good[i])));
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_false(mvcc_path_valid(keel_slice_str(bad[i])));
    memset(longest, 'x', sizeof longest);
    assert_true(mvcc_path_valid(keel_slice_of(longest, KEEL_NAME_MAX)));
    assert_false(mvcc_path_valid(keel_slice_of(longest, KEEL_NAME_MAX + 1)));
}

static void revision_keys_sort_as_revisions_do(void **state)
{
    struct keel_rng rng;

    (void)state;
    keel_rng_seed(&rng, 5);
    for (int i = 0; i < 2000; i++) {
        struct mvcc_revision a = { 1 + keel_rng_below(&rng, 300),
                                   (uint32_t)keel_rng_below(&rng, 3) };
        struct mvcc_revision b = { 1 + keel_rng_below(&rng, 300),
                                   (uint32_t)keel_rng_below(&rng, 3) };
        struct mvcc_revision back;
        uint8_t ka[MVCC_REVISION_KEY_LEN], kb[MVCC_REVISION_KEY_LEN];

        revision_key_encode(a, ka);
        revision_key_encode(b, kb);
        int order = memcmp(ka, kb, sizeof ka);

        assert_int_equal((order > 0) - (order < 0), revision_compare(a, b));
        assert_int_equal(revision_key_decode(keel_slice_of(ka, sizeof ka), &back), 0);
        assert_int_equal(revision_compare(a, back), 0);
    }
}

static void keys_that_are_no_revisions_are_refused(void **state)
{
    struct mvcc_revision rev;
    uint8_t key[MVCC_REVISION_KEY_LEN + 1] = { 0 };

    (void)state;
    revision_key_encode((struct mvcc_revision){ 5, 1 }, key);
    assert_int_equal(revision_key_decode(keel_slice_of(key, 16), &rev), KEEL_E_CORRUPT);
    assert_int_equal(revision_key_decode(keel_slice_of(key, 18), &rev), KEEL_E_CORRUPT);
    key[9] = 1;
    assert_int_equal(revision_key_decode(keel_slice_of(key, 17), &rev), KEEL_E_CORRUPT);
    key[9] = 0;
    key[13] = 0x80;
    assert_int_equal(revision_key_decode(keel_slice_of(key, 17), &rev), KEEL_E_CORRUPT);
    key[13] = 0x7f;
    assert_int_equal(revision_key_decode(keel_slice_of(key, 17), &rev), 0);
    key[13] = 0;
    key[8] = '-';
    assert_int_equal(revision_key_decode(keel_slice_of(key, 17), &rev), KEEL_E_CORRUPT);
    key[8] = '_';
    key[7] = 0;
    assert_int_equal(revision_key_decode(keel_slice_of(key, 17), &rev), KEEL_E_CORRUPT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(records_come_back_as_they_were),
        cmocka_unit_test(any_flipped_bit_is_damage),
        cmocka_unit_test(any_cut_or_longer_record_is_damage),
        cmocka_unit_test(a_newer_version_is_told_from_damage),
        cmocka_unit_test(fields_that_no_record_has_are_refused),
        cmocka_unit_test(tombstones_have_zeroes_where_nothing_is_meant),
        cmocka_unit_test(paths_are_checked_name_by_name),
        cmocka_unit_test(revision_keys_sort_as_revisions_do),
        cmocka_unit_test(keys_that_are_no_revisions_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
