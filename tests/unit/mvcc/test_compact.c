/* Compaction: the point, what goes when, content, versions, keys. The comparison with a naive model
 * is in test_twin.c. */
#include "help.h"

#include <stdio.h>

#include "check.h"
#include "mvcc/record.h"

struct fixture {
    struct kv *kv;
    struct mvcc *m;
};

static int set_up(void **state)
{
    struct fixture *f = keel_calloc(1, sizeof *f);

    f->kv = kv_mem_new();
    f->m = help_open(f->kv);
    *state = f;
    return 0;
}

static int tear_down(void **state)
{
    struct fixture *f = *state;

    mvcc_close(f->m);
    f->kv->ops->close(f->kv);
    free(f);
    return 0;
}

static struct mvcc_txn *begin(struct mvcc *m)
{
    uint64_t term = mvcc_applied_term(m);

    return mvcc_begin(m, mvcc_applied_index(m) + 1, term > 0 ? term : 1);
}

static void compact(struct mvcc *m, uint64_t at)
{
    struct mvcc_txn *txn = begin(m);

    mvcc_compact(txn, at);
    mvcc_commit(txn);
}

static uint32_t step(struct mvcc *m, uint32_t budget)
{
    struct mvcc_txn *txn = begin(m);
    uint32_t taken = mvcc_compact_step(txn, budget);

    mvcc_commit(txn);
    mvcc_read_end(m);
    return taken;
}

static void compact_all(struct mvcc *m, uint64_t at)
{
    compact(m, at);
    while (step(m, 2) > 0)
        ;
    assert_false(mvcc_has_garbage(m));
}

static bool compact_for(struct mvcc *m, uint64_t bytes)
{
    struct mvcc_txn *txn = begin(m);
    bool enough = mvcc_compact_for(txn, bytes);

    mvcc_commit(txn);
    mvcc_read_end(m);
    return enough;
}

static void move(struct mvcc *m, const char *from, const char *to)
{
    struct mvcc_record record;
    struct mvcc_key *key = help_key(m, from);

    assert_int_equal(mvcc_get(m, key, 0, &record), 0);
    struct mvcc_txn *txn = begin(m);

    mvcc_put(txn, mvcc_root(m), keel_slice_str(to), &record, NULL);
    mvcc_delete(txn, key, 0, 0, true);
    mvcc_commit(txn);
}

static void chmod_key(struct mvcc *m, struct mvcc_key *key, uint16_t mode)
{
    struct mvcc_record record;

    assert_int_equal(mvcc_get(m, key, 0, &record), 0);
    record.mode = mode;
    struct mvcc_txn *txn = begin(m);

    if (mvcc_parent(key) == NULL)
        mvcc_put_root(txn, &record);
    else
        mvcc_put(txn, mvcc_parent(key), mvcc_name(key), &record, NULL);
    mvcc_commit(txn);
}

static int print_revision(void *arg, struct mvcc_revision rev, bool tombstone)
{
    keel_text_printf(arg, "%llu.%u%s ", (unsigned long long)rev.main, rev.sub,
                     tombstone ? "t" : "");
    return 0;
}

static void assert_history(struct mvcc *m, const char *path, const char *expected)
{
    struct keel_text text = { 0 };
    struct mvcc_key *key = help_key(m, path);

    if (key != NULL)
        mvcc_history(m, key, print_revision, &text);
    assert_string_equal(text.data ? text.data : "", expected);
    keel_text_free(&text);
}

static int count_entry(void *arg, struct keel_slice key, struct keel_slice value)
{
    size_t *count = arg;

    (void)key;
    (void)value;
    ++*count;
    return 0;
}

static size_t entries_of(struct kv *kv, enum kv_table table)
{
    struct kv_read *read = kv->ops->read_begin(kv);
    size_t count = 0;

    assert_int_equal(kv->ops->scan(read, table, keel_slice_of(NULL, 0), count_entry, &count), 0);
    kv->ops->read_end(read);
    return count;
}

/* What is to be looked at as it is, after a checkpoint, and opened again: for (int form = 0;
 * next_form(f, &form);). */
static bool next_form(struct fixture *f, int *form)
{
    if (*form == 1)
        help_checkpoint(f->m, f->kv);
    if (*form == 2)
        f->m = help_reopen(f->m, f->kv);
    return (*form)++ < 3;
}

/* The example of mvcc.h. */
static void make_example(struct fixture *f)
{
    help_write(f->m, "x", "");          /* 2 */
    help_write(f->m, "y", "");          /* 3 */
    help_mkdir(f->m, "conf");           /* 4 */
    help_write(f->m, "conf/db", "a");   /* 5 */
    help_write(f->m, "log", "b");       /* 6 */
    help_write(f->m, "conf/db", "c");   /* 7 */
    help_write(f->m, "log", "d");       /* 8 */
    help_delete(f->m, "conf/db");       /* 9 */
    help_write(f->m, "z", "");          /* 10 */
    help_write(f->m, "z", "e");         /* 11 */
    help_write(f->m, "conf/db", "new"); /* 12 */
}

static void check_example(struct fixture *f)
{
    struct mvcc_key *db = help_key(f->m, "conf/db");
    struct mvcc_record record;

    assert_history(f->m, "conf/db", "12.0 ");
    assert_history(f->m, "log", "8.0 ");
    assert_history(f->m, "z", "11.0 10.0 ");
    assert_int_equal(mvcc_get(f->m, db, 8, &record), KEEL_E_STALE);
    assert_int_equal(mvcc_get(f->m, db, 9, &record), KEEL_E_NOTFOUND);
    assert_string_equal(help_read(f->m, "conf/db", 12), "new");
    assert_string_equal(help_read(f->m, "log", 9), "d");
    assert_string_equal(help_read(f->m, "z", 10), "");
    for (uint64_t main = 1; main <= 9; main++)
        assert_int_equal(mvcc_get_revision(f->m, db, (struct mvcc_revision){ main, 0 }, &record),
                         KEEL_E_STALE);
    assert_int_equal(mvcc_get_revision(f->m, db, (struct mvcc_revision){ 10, 0 }, &record),
                     KEEL_E_NOTFOUND);
    assert_int_equal(mvcc_get_revision(f->m, db, (struct mvcc_revision){ 12, 0 }, &record), 0);
    assert_int_equal(
        mvcc_get_revision(f->m, help_key(f->m, "log"), (struct mvcc_revision){ 8, 0 }, &record), 0);
    assert_null(mvcc_next_child(f->m, mvcc_root(f->m), 8, keel_slice_of(NULL, 0)));
    assert_non_null(mvcc_next_child(f->m, mvcc_root(f->m), 9, keel_slice_of(NULL, 0)));
}

static void what_can_be_asked_depends_on_the_point_and_not_on_what_is_gone(void **state)
{
    struct fixture *f = *state;
    size_t taken = 0;

    make_example(f);
    compact(f->m, 9);
    assert_int_equal(mvcc_compact_revision(f->m), 9);
    check_example(f);
    for (uint32_t n; (n = step(f->m, 1)) > 0; taken += n) {
        check_example(f);
        help_checkpoint(f->m, f->kv);
        f->m = help_reopen(f->m, f->kv);
        check_example(f);
    }
    assert_int_equal(taken, 4);
    assert_int_equal(entries_of(f->kv, KV_RECORDS), 12 - 4);
    assert_int_equal(entries_of(f->kv, KV_CONTENT), 3);
}

static void garbage_goes_in_the_order_in_which_it_was_followed(void **state)
{
    struct fixture *f = *state;
    uint64_t used[4];

    make_example(f);
    compact(f->m, 9);
    used[0] = mvcc_quota_used(f->m);
    for (int i = 1; i < 4; i++) {
        assert_true(mvcc_has_garbage(f->m));
        step(f->m, 1);
        used[i] = mvcc_quota_used(f->m);
    }
    assert_int_equal(used[0] - used[1], 256 + 7 + 1); /* conf/db 5.0 */
    assert_int_equal(used[1] - used[2], 256 + 3 + 1); /* log 6.0 */
    assert_int_equal(used[2] - used[3], 2 * (256 + 7) + 1);
    assert_false(mvcc_has_garbage(f->m));
    assert_int_equal(step(f->m, 1), 0);
}

static void the_point_never_goes_back(void **state)
{
    struct fixture *f = *state;

    make_example(f);
    compact(f->m, 9);
    compact(f->m, 7);
    assert_int_equal(mvcc_compact_revision(f->m), 9);
    compact(f->m, 12);
    assert_int_equal(mvcc_compact_revision(f->m), 12);
    assert_string_equal(help_read(f->m, "log", 12), "d");
}

static void moving_the_point_and_a_step_take_no_revision(void **state)
{
    struct fixture *f = *state;

    make_example(f);
    compact(f->m, 9);
    assert_int_equal(mvcc_revision(f->m), 12);
    assert_int_not_equal(step(f->m, 100), 0);
    assert_int_equal(mvcc_revision(f->m), 12);
    assert_true(mvcc_has_pending(f->m));
}

static void what_was_never_written_is_not_written_when_it_is_gone(void **state)
{
    struct fixture *f = *state;

    for (int i = 0; i < 50; i++)
        help_write(f->m, "k", "some text");
    size_t before = mvcc_pending_bytes(f->m);

    compact_all(f->m, mvcc_revision(f->m));
    assert_true(mvcc_pending_bytes(f->m) < before);
    struct kv_batch *batch = mvcc_checkpoint(f->m, NULL, NULL, 0);

    for (size_t i = 0; i < batch->count; i++)
        assert_false(batch->writes[i].remove);
    assert_int_equal(f->kv->ops->write(f->kv, batch), 0);
    mvcc_checkpointed(f->m);
    kv_batch_free(batch);
    assert_int_equal(entries_of(f->kv, KV_RECORDS), 2); /* the root and k */
    assert_int_equal(entries_of(f->kv, KV_CONTENT), 1);
    assert_int_equal(mvcc_pending_bytes(f->m), 0);
}

static void what_a_checkpoint_holds_is_removed_by_the_next_one(void **state)
{
    struct fixture *f = *state;

    help_write(f->m, "k", "one");
    help_write(f->m, "k", "two");
    struct kv_batch *batch = mvcc_checkpoint(f->m, NULL, NULL, 0);

    compact_all(f->m, mvcc_revision(f->m));
    assert_string_equal(help_read(f->m, "k", 0), "two");
    assert_int_equal(f->kv->ops->write(f->kv, batch), 0);
    mvcc_checkpointed(f->m);
    kv_batch_free(batch);
    assert_int_equal(entries_of(f->kv, KV_RECORDS), 3);
    help_checkpoint(f->m, f->kv);
    assert_int_equal(entries_of(f->kv, KV_RECORDS), 2);
    assert_int_equal(entries_of(f->kv, KV_CONTENT), 1);
    f->m = help_reopen(f->m, f->kv);
    assert_string_equal(help_read(f->m, "k", 0), "two");
}

/* ---- versions ---- */

static void versions_go_on_when_the_generations_beginning_is_gone(void **state)
{
    struct fixture *f = *state;
    struct mvcc_record record;

    for (int i = 0; i < 5; i++)
        help_write(f->m, "k", "text"); /* 2 to 6 */
    compact_all(f->m, 6);
    for (uint64_t version = 6; version < 9; version++) {
        help_write(f->m, "k", "text");
        assert_int_equal(mvcc_get(f->m, help_key(f->m, "k"), 0, &record), 0);
        assert_int_equal(record.version, version);
        assert_int_equal(record.create_revision, 2);
        f->m = (help_checkpoint(f->m, f->kv), help_reopen(f->m, f->kv));
    }
    help_delete(f->m, "k"); /* 10 */
    help_write(f->m, "k", "text");
    assert_int_equal(mvcc_get(f->m, help_key(f->m, "k"), 0, &record), 0);
    assert_int_equal(record.version, 1);
    assert_int_equal(record.create_revision, 11);
}

static void a_long_history_goes_from_the_front_and_grows_at_the_end(void **state)
{
    struct fixture *f = *state;
    struct mvcc_record record;

    for (uint64_t i = 1; i <= 3000; i++) {
        help_write(f->m, "k", "text");
        if (i % 7 == 0) {
            compact(f->m, mvcc_revision(f->m) / 2);
            step(f->m, (uint32_t)(i % 11) + 1);
        }
    }
    struct mvcc_key *key = help_key(f->m, "k");

    for (uint64_t at = mvcc_compact_revision(f->m); at <= mvcc_revision(f->m); at++) {
        assert_int_equal(mvcc_get(f->m, key, at, &record), 0);
        assert_int_equal(record.revision.main, at);
        assert_int_equal(record.version, at - 1);
    }
    compact_all(f->m, mvcc_revision(f->m));
    assert_history(f->m, "k", "3001.0 ");
}

/* ---- content ---- */

static void content_outlives_the_record_that_wrote_it(void **state)
{
    struct fixture *f = *state;

    help_write(f->m, "temp", "0123456789"); /* 2 */
    help_checkpoint(f->m, f->kv);
    move(f->m, "temp", "target"); /* 3 */
    compact_all(f->m, 3);
    assert_null(help_key(f->m, "temp"));
    for (int form = 0; next_form(f, &form);) {
        assert_string_equal(help_read(f->m, "target", 0), "0123456789");
        assert_int_equal(mvcc_quota_used(f->m), 256 + 256 + 6 + 10);
    }
    assert_int_equal(entries_of(f->kv, KV_CONTENT), 1);
    chmod_key(f->m, help_key(f->m, "target"), 0600); /* 4 */
    compact_all(f->m, 4);
    for (int form = 0; next_form(f, &form);) {
        assert_string_equal(help_read(f->m, "target", 0), "0123456789");
        assert_int_equal(mvcc_quota_used(f->m), 256 + 256 + 6 + 10);
    }
    help_write(f->m, "target", "new"); /* 5 */
    compact_all(f->m, 5);
    assert_int_equal(mvcc_quota_used(f->m), 256 + 256 + 6 + 3);
    help_checkpoint(f->m, f->kv);
    assert_int_equal(entries_of(f->kv, KV_CONTENT), 1);
    assert_string_equal(help_read(f->m, "target", 0), "new");
}

static void content_that_was_never_written_outlives_its_record_too(void **state)
{
    struct fixture *f = *state;

    help_write(f->m, "temp", "text");
    move(f->m, "temp", "target");
    compact_all(f->m, 3);
    for (int form = 0; next_form(f, &form);) {
        assert_string_equal(help_read(f->m, "target", 0), "text");
    }
    assert_int_equal(entries_of(f->kv, KV_CONTENT), 1);
    assert_int_equal(entries_of(f->kv, KV_RECORDS), 2);
}

static void missing_content_is_noticed_when_its_writer_is_gone(void **state)
{
    struct fixture *f = *state;
    struct kv_batch *batch = kv_batch_new();
    uint8_t key[MVCC_REVISION_KEY_LEN];
    char why[256] = "";
    struct mvcc *m = NULL;

    help_write(f->m, "temp", "text");
    move(f->m, "temp", "target");
    compact_all(f->m, 3);
    help_checkpoint(f->m, f->kv);
    revision_key_encode((struct mvcc_revision){ 2, 0 }, key);
    kv_batch_remove(batch, KV_CONTENT, keel_slice_of(key, sizeof key));
    assert_int_equal(f->kv->ops->write(f->kv, batch), 0);
    kv_batch_free(batch);
    assert_int_equal(mvcc_open(f->kv, &m, why, sizeof why), KEEL_E_CORRUPT);
    assert_non_null(strstr(why, "record 3.0: its content of revision 2.0 is missing"));
}

/* ---- the quota ---- */

static void old_history_yields_as_much_as_is_needed(void **state)
{
    struct fixture *f = *state;

    for (int i = 0; i < 10; i++)
        help_write(f->m, "k", "0123456789"); /* 2 to 11, 267 bytes each */
    uint64_t used = mvcc_quota_used(f->m);

    assert_true(compact_for(f->m, 0));
    assert_int_equal(mvcc_compact_revision(f->m), 0);
    assert_true(compact_for(f->m, 267));
    assert_int_equal(mvcc_compact_revision(f->m), 3);
    assert_int_equal(mvcc_quota_used(f->m), used - 267);
    assert_true(compact_for(f->m, 268));
    assert_int_equal(mvcc_compact_revision(f->m), 5);
    assert_int_equal(mvcc_quota_used(f->m), used - 3 * 267);
    assert_false(compact_for(f->m, 10 * 267));
    assert_int_equal(mvcc_compact_revision(f->m), 11);
    assert_int_equal(mvcc_quota_used(f->m), used - 9 * 267);
    assert_string_equal(help_read(f->m, "k", 0), "0123456789");
}

static void garbage_that_is_there_yields_before_the_point_moves(void **state)
{
    struct fixture *f = *state;

    for (int i = 0; i < 10; i++)
        help_write(f->m, "k", "");
    compact(f->m, 5);
    assert_true(compact_for(f->m, 3 * 257));
    assert_int_equal(mvcc_compact_revision(f->m), 5);
    assert_false(mvcc_has_garbage(f->m));
    assert_true(compact_for(f->m, 1));
    assert_int_equal(mvcc_compact_revision(f->m), 6);
}

static void what_a_transaction_replaces_does_not_yield_to_it(void **state)
{
    struct fixture *f = *state;
    struct mvcc_record record;

    help_write(f->m, "k", "text"); /* 2 */
    assert_int_equal(mvcc_get(f->m, help_key(f->m, "k"), 0, &record), 0);
    struct mvcc_txn *txn = begin(f->m);

    mvcc_put(txn, mvcc_root(f->m), keel_slice_str("k"), &record, NULL);
    assert_false(mvcc_compact_for(txn, 1));
    assert_int_equal(mvcc_compact_revision(f->m), 0);
    mvcc_commit(txn);
    assert_string_equal(help_read(f->m, "k", 2), "text");
    assert_true(compact_for(f->m, 1));
    assert_int_equal(mvcc_compact_revision(f->m), 3);
}

static void all_that_became_garbage_at_one_revision_yields_at_once(void **state)
{
    struct fixture *f = *state;

    help_write(f->m, "a", "");
    help_write(f->m, "b", "");
    struct mvcc_txn *txn = begin(f->m);

    mvcc_delete(txn, help_key(f->m, "a"), 0, 0, false);
    mvcc_delete(txn, help_key(f->m, "b"), 0, 0, false);
    mvcc_commit(txn);
    assert_true(compact_for(f->m, 1));
    assert_false(mvcc_has_garbage(f->m));
    assert_int_equal(mvcc_quota_used(f->m), 256);
}

/* ---- directories ---- */

static void a_directorys_beginning_may_go_before_what_is_in_it(void **state)
{
    struct fixture *f = *state;

    help_mkdir(f->m, "d");                        /* 2 */
    help_mkdir(f->m, "d/e");                      /* 3 */
    help_write(f->m, "d/e/f", "text");            /* 4 */
    chmod_key(f->m, help_key(f->m, "d/e"), 0700); /* 5 */
    chmod_key(f->m, help_key(f->m, "d"), 0700);   /* 6 */
    chmod_key(f->m, mvcc_root(f->m), 0700);       /* 7 */
    compact(f->m, 7);
    for (uint32_t n = 1; n > 0; n = step(f->m, 1)) {
        help_checkpoint(f->m, f->kv);
        f->m = help_reopen(f->m, f->kv);
        assert_string_equal(help_read(f->m, "d/e/f", 0), "text");
        assert_int_equal(mvcc_dir_info(help_key(f->m, "d")).entries, 1);
        assert_int_equal(mvcc_dir_info(help_key(f->m, "d")).subdirs, 1);
        assert_int_equal(mvcc_dir_info(help_key(f->m, "d/e")).entries, 1);
        assert_int_equal(mvcc_live_keys(f->m), 4);
    }
    assert_int_equal(entries_of(f->kv, KV_RECORDS), 4);
}

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
    compact_all(f->m, 5);
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
    compact_all(f->m, 5);
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
    compact_all(f->m, 7);
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

/* ---- keys ---- */

static void keys_go_with_their_last_record(void **state)
{
    struct fixture *f = *state;

    help_mkdir(f->m, "d");
    help_write(f->m, "d/f", "text");
    help_delete(f->m, "d/f");
    help_delete(f->m, "d");
    help_write(f->m, "other", "");
    compact(f->m, mvcc_revision(f->m));
    assert_null(help_key(f->m, "d"));
    compact_all(f->m, mvcc_revision(f->m));
    assert_int_equal(mvcc_quota_used(f->m), 256 + 256 + 5);
    assert_null(help_key(f->m, "d"));
    help_checkpoint(f->m, f->kv);
    help_mkdir(f->m, "d");
    help_write(f->m, "d/f", "again");
    for (int form = 0; next_form(f, &form);) {
        assert_string_equal(help_read(f->m, "d/f", 0), "again");
        assert_int_equal(mvcc_live_keys(f->m), 4);
    }
}

static void a_pinned_key_stays_as_one_that_never_was(void **state)
{
    struct fixture *f = *state;
    struct mvcc_record record;
    struct mvcc_key *dir = help_mkdir(f->m, "d");
    struct mvcc_key *file = help_write(f->m, "d/f", "text");

    mvcc_pin(file);
    mvcc_pin(file);
    help_delete(f->m, "d/f");
    help_delete(f->m, "d");
    compact_all(f->m, mvcc_revision(f->m));
    assert_int_equal(mvcc_live_ino(file), 0);
    assert_int_equal(mvcc_mod_revision(file).main, 0);
    assert_int_equal(mvcc_get(f->m, file, 0, &record), KEEL_E_NOTFOUND);
    assert_ptr_equal(mvcc_parent(file), dir);
    assert_null(help_key(f->m, "d"));
    mvcc_unpin(f->m, file);
    assert_ptr_equal(help_mkdir(f->m, "d"), dir);
    assert_ptr_equal(help_write(f->m, "d/f", "new"), file);
    mvcc_unpin(f->m, file);
    assert_string_equal(help_read(f->m, "d/f", 0), "new");
    mvcc_pin(file);
    help_delete(f->m, "d/f");
    help_delete(f->m, "d");
    compact_all(f->m, mvcc_revision(f->m));
    mvcc_unpin(f->m, file); /* frees both: found by the address sanitizer if not */
    assert_null(help_key(f->m, "d"));
}

static void keys_that_a_reload_left_empty_go_with_the_next_step(void **state)
{
    struct fixture *f = *state;
    struct kv *kv = kv_mem_new();
    struct mvcc *other = help_open(kv);
    char why[256];

    struct mvcc_key *dir = help_mkdir(f->m, "d");
    struct mvcc_key *file = help_write(f->m, "d/f", "text");

    help_checkpoint(other, kv);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(mvcc_reload(f->m, kv, why, sizeof why), 0);
        assert_ptr_equal(mvcc_parent(file), dir);
        assert_int_equal(mvcc_mod_revision(dir).main, 0);
    }
    mvcc_pin(file);
    assert_int_equal(step(f->m, 10), 0);
    assert_ptr_equal(mvcc_parent(file), dir);
    mvcc_unpin(f->m, file);
    help_mkdir(f->m, "d");
    mvcc_close(other);
    mvcc_close(f->m);
    kv->ops->close(kv);
    f->m = help_open(f->kv);
}

/* ---- in the middle of it ---- */

static void random_compaction(struct mvcc *m, struct keel_rng *rng)
{
    struct mvcc_txn *txn = begin(m);

    switch (keel_rng_below(rng, 4)) {
    case 0:
        mvcc_compact(txn, 1 + keel_rng_below(rng, mvcc_revision(m)));
        break;
    case 1:
        mvcc_compact_for(txn, keel_rng_below(rng, 3000));
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

    compact(a, mvcc_revision(a));
    compact(b, mvcc_revision(b));
    do {
        taken = step(a, 1);
        assert_int_equal(taken, step(b, 1));
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

#define FIXTURE_TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        FIXTURE_TEST(what_can_be_asked_depends_on_the_point_and_not_on_what_is_gone),
        FIXTURE_TEST(garbage_goes_in_the_order_in_which_it_was_followed),
        FIXTURE_TEST(the_point_never_goes_back),
        FIXTURE_TEST(moving_the_point_and_a_step_take_no_revision),
        FIXTURE_TEST(what_was_never_written_is_not_written_when_it_is_gone),
        FIXTURE_TEST(what_a_checkpoint_holds_is_removed_by_the_next_one),
        FIXTURE_TEST(versions_go_on_when_the_generations_beginning_is_gone),
        FIXTURE_TEST(a_long_history_goes_from_the_front_and_grows_at_the_end),
        FIXTURE_TEST(content_outlives_the_record_that_wrote_it),
        FIXTURE_TEST(content_that_was_never_written_outlives_its_record_too),
        FIXTURE_TEST(missing_content_is_noticed_when_its_writer_is_gone),
        FIXTURE_TEST(old_history_yields_as_much_as_is_needed),
        FIXTURE_TEST(garbage_that_is_there_yields_before_the_point_moves),
        FIXTURE_TEST(what_a_transaction_replaces_does_not_yield_to_it),
        FIXTURE_TEST(all_that_became_garbage_at_one_revision_yields_at_once),
        FIXTURE_TEST(a_directorys_beginning_may_go_before_what_is_in_it),
        FIXTURE_TEST(a_directory_that_never_comes_is_refused),
        FIXTURE_TEST(beginnings_are_only_missing_up_to_the_point),
        FIXTURE_TEST(a_presumed_directory_must_turn_out_to_be_one),
        FIXTURE_TEST(keys_go_with_their_last_record),
        FIXTURE_TEST(a_pinned_key_stays_as_one_that_never_was),
        FIXTURE_TEST(keys_that_a_reload_left_empty_go_with_the_next_step),
        cmocka_unit_test(a_rebuilt_keyspace_goes_on_losing_what_the_other_loses),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
