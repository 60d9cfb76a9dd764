/* What a start makes of a store in the middle of a compaction: the same books, or a refusal. */
#include "help.h"

#include "check.h"
#include "mvcc/record.h"

/* ---- damage ---- */

/* Puts a record into the kv as if it had always been there, and opens. */
static void expect_refused(struct fixture *f, const char *path, const struct mvcc_record *record,
                           const char *expected)
{
    struct kv_batch *batch = kv_batch_new();
    uint8_t key[MVCC_REVISION_KEY_LEN];
    char why[256] = "";
    struct mvcc *m = NULL;

    revision_key_encode(record->revision, key);
    kv_batch_put(batch, KV_RECORDS, keel_slice_of(key, sizeof key),
                 mvcc_record_encode(record, keel_slice_str(path)));
    assert_int_equal(f->kv->ops->write(f->kv, batch), 0);
    kv_batch_free(batch);
    assert_int_equal(mvcc_open(f->kv, &m, why, sizeof why), KEEL_E_CORRUPT);
    if (strstr(why, expected) == NULL)
        fail_msg("\"%s\" lacks \"%s\"", why, expected);
}

static void a_directory_that_never_comes_is_refused(void **state)
{
    struct fixture *f = *state;
    struct mvcc_record file = { .kind = MVCC_FILE, .ino = 900, .version = 1 };

    for (int i = 0; i < 6; i++)
        help_write(f->m, "k", ""); /* 2 to 7 */
    help_compact_all(f->m, 5);
    help_checkpoint(f->m, f->kv);
    file.revision.main = file.create_revision = 3;
    expect_refused(f, "none/file", &file, "record 6.0: before it, 1 directories have no record");
    file.revision.main = file.create_revision = 7;
    expect_refused(f, "none/file", &file, "record 6.0: before it, 1 directories have no record");
}

static void beginnings_are_only_missing_up_to_the_point(void **state)
{
    struct fixture *f = *state;
    struct mvcc_record file = { .kind = MVCC_FILE, .ino = 900 };
    struct mvcc_record gone = { .tombstone = true, .kind = MVCC_FILE, .ino = 900 };

    for (int i = 0; i < 6; i++)
        help_write(f->m, "k", ""); /* 2 to 7 */
    help_compact_all(f->m, 5);
    help_checkpoint(f->m, f->kv);
    file.revision.main = 6;
    file.version = 5;
    file.create_revision = 3;
    expect_refused(f, "x", &file, "record 6.0: version 5, create_revision 3 where 1, 6 are due");
    file.revision.main = 4;
    file.version = 1;
    expect_refused(f, "x", &file, "record 4.0: version 1, but create_revision 3");
    file.version = 2;
    file.create_revision = 4;
    expect_refused(f, "x", &file, "record 4.0: version 2, but create_revision 4");
    gone.revision.main = 4;
    expect_refused(f, "x", &gone, "record 4.0: a tombstone for what was not there");
}

static void a_presumed_directory_must_turn_out_to_be_one(void **state)
{
    struct fixture *f = *state;
    struct mvcc_record file = { .kind = MVCC_FILE, .ino = 900, .version = 1 };
    struct mvcc_record dir = { .kind = MVCC_DIR, .ino = 901, .version = 2 };

    for (int i = 0; i < 6; i++)
        help_write(f->m, "k", "");
    help_compact_all(f->m, 7);
    help_checkpoint(f->m, f->kv);
    file.revision.main = file.create_revision = 3;
    dir.revision.main = 6;
    dir.create_revision = 4;
    expect_refused(f, "none/file", &file, "directories have no record");
    expect_refused(f, "none", &dir, "record 6.0: it is not the directory that there was at 3");
    dir.kind = MVCC_FILE;
    dir.create_revision = 2;
    expect_refused(f, "none", &dir, "record 6.0: it is not the directory that there was at 3");
    dir.kind = MVCC_DIR;
    expect_refused(f, "none", &dir, "state hash"); /* only that */
}

/* ---- in the middle of it ---- */

static void random_compaction(struct mvcc *m, struct keel_rng *rng)
{
    struct mvcc_txn *txn = help_begin(m);

    switch (keel_rng_below(rng, 4)) {
    case 0:
        mvcc_compact(txn, 1 + keel_rng_below(rng, mvcc_revision(m)));
        break;
    case 1:
        mvcc_compact_for(txn, keel_rng_below(rng, 3000), 1 + (uint32_t)keel_rng_below(rng, 20));
        break;
    default:
        mvcc_compact_step(txn, 1 + (uint32_t)keel_rng_below(rng, 5));
        break;
    }
    mvcc_commit(txn);
    mvcc_read_end(m);
}

/* A kv with the snapshot of another. */
static struct kv *copy_of(struct kv *from, struct keel_rng *rng)
{
    struct snapshot_info info;
    struct keel_buf *stream = help_snapshot(from, &info);
    struct kv *to = kv_mem_new();

    help_install(stream, to, rng);
    keel_buf_free(stream);
    return to;
}

static void assert_same_books(struct mvcc *a, struct mvcc *b)
{
    struct keel_hash128 hash_a = mvcc_state_hash(a), hash_b = mvcc_state_hash(b);

    assert_memory_equal(&hash_a, &hash_b, sizeof hash_a);
    assert_int_equal(mvcc_quota_used(a), mvcc_quota_used(b));
    assert_int_equal(mvcc_has_garbage(a), mvcc_has_garbage(b));
}

/* Two with the same books lose the same from here to the end. */
static void assert_same_end(struct mvcc *a, struct mvcc *b)
{
    uint32_t taken;

    help_compact(a, mvcc_revision(a));
    help_compact(b, mvcc_revision(b));
    do {
        taken = help_compact_step(a, 1);
        assert_int_equal(taken, help_compact_step(b, 1));
        assert_same_books(a, b);
    } while (taken > 0);
}

/* `other` is reloaded from what a snapshot of m's store gives, and must be m's like. */
static void check_copy(struct mvcc *m, struct kv *kv, struct keel_rng *rng)
{
    struct kv *kv_old = kv_mem_new(), *kv_copy = copy_of(kv, rng);
    struct mvcc *other = help_open(kv_old);
    char why[256] = "";

    for (uint64_t i = keel_rng_below(rng, 30); i > 0; i--)
        help_random_entry(other, rng);
    random_compaction(other, rng);
    if (mvcc_reload(other, kv_copy, why, sizeof why) != 0)
        fail_msg("%s", why);
    help_assert_same(m, other);
    struct kv *kv_end = copy_of(kv, rng);
    struct mvcc *end = help_open(kv_end);

    assert_same_end(other, end);
    help_checkpoint(other, kv_copy);
    help_checkpoint(end, kv_end);
    help_assert_same_tables(kv_copy, kv_end);
    mvcc_close(other);
    mvcc_close(end);
    kv_old->ops->close(kv_old);
    kv_copy->ops->close(kv_copy);
    kv_end->ops->close(kv_end);
}

static void run_random(uint64_t seed)
{
    struct kv *kv = kv_mem_new();
    struct mvcc *m = help_open(kv);
    struct keel_rng rng;

    keel_rng_seed(&rng, seed);
    for (int i = 0; i < 60; i++) {
        for (uint64_t n = keel_rng_below(&rng, 4); n > 0; n--)
            help_random_entry(m, &rng);
        random_compaction(m, &rng);
        if (keel_rng_below(&rng, 2) == 0)
            continue;
        help_checkpoint(m, kv);
        /* A second one on the same kv: only read. */
        struct mvcc *again = help_open(kv);

        assert_same_books(m, again);
        if (i % 10 == 9)
            help_assert_same(m, again);
        if (keel_rng_below(&rng, 2) == 0)
            assert_same_end(again, m);
        mvcc_close(again);
    }
    help_checkpoint(m, kv);
    check_copy(m, kv, &rng);
    mvcc_close(m);
    kv->ops->close(kv);
}

static void a_rebuilt_keyspace_goes_on_losing_what_the_other_loses(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 25; seed++)
        run_random(seed);
}

#define FIXTURE_TEST(name) cmocka_unit_test_setup_teardown(name, help_set_up, help_tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        FIXTURE_TEST(a_directory_that_never_comes_is_refused),
        FIXTURE_TEST(beginnings_are_only_missing_up_to_the_point),
        FIXTURE_TEST(a_presumed_directory_must_turn_out_to_be_one),
        cmocka_unit_test(a_rebuilt_keyspace_goes_on_losing_what_the_other_loses),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
