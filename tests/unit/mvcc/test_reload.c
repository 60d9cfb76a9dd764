/* A keyspace that is reloaded in place from another store: as if it had been opened there, but for
 * the addresses of its keys. */
#include "help.h"

#include "check.h"

enum { ROUNDS = 40, KEYS_MAX = 200 };

static struct mvcc *grown(struct kv *kv, struct keel_rng *rng, uint64_t entries)
{
    struct mvcc *m = help_open(kv);

    while (entries-- > 0) {
        help_random_entry(m, rng);
        if (keel_rng_below(rng, 5) == 0)
            help_checkpoint(m, kv);
    }
    return m;
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

static void reload(struct mvcc *m, struct kv *kv)
{
    char why[256] = "";

    if (mvcc_reload(m, kv, why, sizeof why) != 0)
        fail_msg("%s", why);
}

struct known {
    struct mvcc_key *keys[KEYS_MAX];
    char *paths[KEYS_MAX];
    size_t count;
};

/* All live keys, those of this moment. */
static void remember(struct mvcc *m, struct mvcc_key *key, struct known *known)
{
    struct keel_text path = { 0 };
    struct mvcc_key *child = NULL;
    struct keel_slice after = keel_slice_of(NULL, 0);

    assert_true(known->count < KEYS_MAX);
    mvcc_path(key, &path);
    known->keys[known->count] = key;
    known->paths[known->count++] = path.data ? path.data : calloc(1, 1);
    if (mvcc_live_kind(key) != MVCC_DIR)
        return;
    while ((child = mvcc_next_child(m, key, 0, after)) != NULL) {
        remember(m, child, known);
        after = mvcc_name(child);
    }
}

static int count_revision(void *arg, struct mvcc_revision rev, bool tombstone)
{
    size_t *count = arg;

    (void)rev;
    (void)tombstone;
    ++*count;
    return 0;
}

/* Each is found under its name, or has no revision. */
static void check_known(struct mvcc *m, struct known *known)
{
    struct mvcc_record record;

    for (size_t i = 0; i < known->count; i++) {
        struct mvcc_key *key = known->keys[i];
        struct keel_text path = { 0 };
        size_t revisions = 0;

        mvcc_path(key, &path);
        assert_string_equal(path.data ? path.data : "", known->paths[i]);
        mvcc_history(m, key, count_revision, &revisions);
        if (revisions > 0) {
            assert_ptr_equal(help_key(m, known->paths[i]), key);
        } else {
            assert_null(help_key(m, known->paths[i]));
            assert_int_equal(mvcc_live_ino(key), 0);
            assert_int_equal(mvcc_mod_revision(key).main, 0);
            assert_int_equal(mvcc_get(m, key, 0, &record), KEEL_E_NOTFOUND);
            assert_int_equal(mvcc_get(m, key, mvcc_revision(m), &record), KEEL_E_NOTFOUND);
            assert_int_equal(mvcc_get_revision(m, key, (struct mvcc_revision){ 1, 0 }, &record),
                             KEEL_E_NOTFOUND);
            assert_null(mvcc_next_child(m, key, 0, keel_slice_of(NULL, 0)));
        }
        keel_text_free(&path);
    }
}

static void forget(struct known *known)
{
    while (known->count > 0)
        free(known->paths[--known->count]);
}

/* The same history for both. */
static void go_on(struct mvcc *a, struct mvcc *b, uint64_t seed)
{
    struct keel_rng rng_a, rng_b;

    keel_rng_seed(&rng_a, seed);
    keel_rng_seed(&rng_b, seed);
    for (int i = 0; i < 20; i++) {
        help_random_entry(a, &rng_a);
        help_random_entry(b, &rng_b);
    }
}

static void a_reloaded_keyspace_is_that_of_the_other_store(void **state)
{
    struct keel_rng rng;

    (void)state;
    keel_rng_seed(&rng, 9);
    for (uint64_t round = 0; round < ROUNDS; round++) {
        struct kv *kv_a = kv_mem_new(), *kv_b = kv_mem_new();
        struct mvcc *a = grown(kv_a, &rng, keel_rng_below(&rng, 40));
        struct mvcc *b = grown(kv_b, &rng, keel_rng_below(&rng, 40));
        struct known known = { .count = 0 };

        remember(a, mvcc_root(a), &known);
        help_checkpoint(b, kv_b);
        struct kv *kv_c = copy_of(kv_b, &rng);

        reload(a, kv_c);
        kv_a->ops->close(kv_a);
        assert_int_equal(mvcc_durable_index(a), mvcc_applied_index(b));
        assert_false(mvcc_has_pending(a));
        assert_int_equal(mvcc_pending_bytes(a), 0);
        help_assert_same(a, b);
        check_known(a, &known);
        go_on(a, b, round);
        help_assert_same(a, b);
        help_checkpoint(a, kv_c);
        help_checkpoint(b, kv_b);
        help_assert_same(a, b);
        help_assert_same_tables(kv_c, kv_b);
        a = help_reopen(a, kv_c);
        help_assert_same(a, b);
        forget(&known);
        mvcc_close(a);
        mvcc_close(b);
        kv_b->ops->close(kv_b);
        kv_c->ops->close(kv_c);
    }
}

static void what_was_pending_before_a_reload_is_never_written(void **state)
{
    struct kv *kv_a = kv_mem_new(), *kv_b = kv_mem_new();
    struct mvcc *a = help_open(kv_a), *b = help_open(kv_b);

    (void)state;
    help_mkdir(a, "old");
    help_write(a, "old/file", "old");
    help_write(b, "new", "new");
    help_checkpoint(b, kv_b);
    reload(a, kv_b);
    help_write(a, "new", "newer");
    help_checkpoint(a, kv_b);
    b = help_reopen(b, kv_b);
    help_assert_same(a, b);
    assert_null(help_key(b, "old"));
    mvcc_close(a);
    mvcc_close(b);
    kv_a->ops->close(kv_a);
    kv_b->ops->close(kv_b);
}

static void a_name_that_comes_back_is_the_same_key(void **state)
{
    struct kv *kv_a = kv_mem_new(), *kv_b = kv_mem_new();
    struct mvcc *a = help_open(kv_a), *b = help_open(kv_b);

    (void)state;
    struct mvcc_key *dir = help_mkdir(a, "dir"), *file = help_write(a, "dir/file", "old");

    help_write(b, "x", "");
    help_checkpoint(b, kv_b);
    reload(a, kv_b);
    assert_null(help_key(a, "dir"));
    assert_ptr_equal(help_mkdir(a, "dir"), dir);
    assert_int_equal(mvcc_dir_info(dir).entries, 0);
    assert_null(help_key(a, "dir/file"));
    assert_ptr_equal(help_write(a, "dir/file", "new"), file);
    assert_string_equal(help_read(a, "dir/file", 0), "new");
    assert_string_equal(help_read(a, "dir/file", 2), "(none)");
    mvcc_close(a);
    mvcc_close(b);
    kv_a->ops->close(kv_a);
    kv_b->ops->close(kv_b);
}

static void a_fresh_or_damaged_store_is_no_store_to_reload_from(void **state)
{
    struct kv *kv_a = kv_mem_new(), *kv_b = kv_mem_new(), *fresh = kv_mem_new();
    struct mvcc *a = help_open(kv_a), *b = help_open(kv_b);
    struct kv_batch *batch = kv_batch_new();
    char why[256] = "";

    (void)state;
    help_write(a, "file", "a");
    assert_int_equal(mvcc_reload(a, fresh, why, sizeof why), KEEL_E_CORRUPT);
    assert_non_null(strstr(why, "format"));
    mvcc_close(a);
    a = help_open(kv_a);
    help_write(b, "other", "b");
    help_checkpoint(b, kv_b);
    uint8_t key[8] = { 0, 0, 0, 0, 0, 0, 0, MVCC_ROOT_INO };

    kv_batch_remove(batch, KV_DIRS, keel_slice_of(key, sizeof key));
    assert_int_equal(kv_b->ops->write(kv_b, batch), 0);
    kv_batch_free(batch);
    assert_int_equal(mvcc_reload(a, kv_b, why, sizeof why), KEEL_E_CORRUPT);
    assert_non_null(strstr(why, "directories"));
    mvcc_close(a);
    mvcc_close(b);
    kv_a->ops->close(kv_a);
    kv_b->ops->close(kv_b);
    fresh->ops->close(fresh);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_reloaded_keyspace_is_that_of_the_other_store),
        cmocka_unit_test(what_was_pending_before_a_reload_is_never_written),
        cmocka_unit_test(a_name_that_comes_back_is_the_same_key),
        cmocka_unit_test(a_fresh_or_damaged_store_is_no_store_to_reload_from),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
