/* Compaction: the point, what goes when, content, versions, keys. The comparison with a naive model
 * is in test_twin.c, what a start makes of it in test_rebuild.c. */
#include "help.h"

#include <stdio.h>

#include "check.h"
#include "mvcc/record.h"

static enum mvcc_room compact_within(struct mvcc *m, uint64_t bytes, uint32_t budget)
{
    struct mvcc_txn *txn = help_begin(m);
    enum mvcc_room room = mvcc_compact_for(txn, bytes, budget);

    mvcc_commit(txn);
    mvcc_read_end(m);
    return room;
}

static bool compact_for(struct mvcc *m, uint64_t bytes)
{
    return compact_within(m, bytes, UINT32_MAX) == MVCC_ROOM_ENOUGH;
}

static void move(struct mvcc *m, const char *from, const char *to)
{
    struct mvcc_record record;
    struct mvcc_key *key = help_key(m, from);

    assert_int_equal(mvcc_get(m, key, 0, &record), 0);
    struct mvcc_txn *txn = help_begin(m);

    mvcc_put(txn, mvcc_root(m), keel_slice_str(to), &record, NULL);
    mvcc_delete(txn, key, 0, 0, true);
    mvcc_commit(txn);
}

static void chmod_key(struct mvcc *m, struct mvcc_key *key, uint16_t mode)
{
    struct mvcc_record record;

    assert_int_equal(mvcc_get(m, key, 0, &record), 0);
    record.mode = mode;
    struct mvcc_txn *txn = help_begin(m);

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
    help_compact(f->m, 9);
    assert_int_equal(mvcc_compact_revision(f->m), 9);
    check_example(f);
    for (uint32_t n; (n = help_compact_step(f->m, 1)) > 0; taken += n) {
        check_example(f);
        help_checkpoint(f->m, f->kv);
        f->m = help_reopen(f->m, f->kv);
        check_example(f);
    }
    assert_int_equal(taken, 4);
    assert_int_equal(help_entries(f->kv, KV_RECORDS), 12 - 4);
    assert_int_equal(help_entries(f->kv, KV_CONTENT), 3);
}

static void garbage_goes_in_the_order_in_which_it_was_followed(void **state)
{
    struct fixture *f = *state;
    uint64_t used[4];

    make_example(f);
    help_compact(f->m, 9);
    used[0] = mvcc_quota_used(f->m);
    for (int i = 1; i < 4; i++) {
        assert_true(mvcc_has_garbage(f->m));
        help_compact_step(f->m, 1);
        used[i] = mvcc_quota_used(f->m);
    }
    assert_int_equal(used[0] - used[1], 256 + 7 + 1); /* conf/db 5.0 */
    assert_int_equal(used[1] - used[2], 256 + 3 + 1); /* log 6.0 */
    assert_int_equal(used[2] - used[3], 2 * (256 + 7) + 1);
    assert_false(mvcc_has_garbage(f->m));
    assert_int_equal(help_compact_step(f->m, 1), 0);
}

static void the_point_never_goes_back(void **state)
{
    struct fixture *f = *state;

    make_example(f);
    help_compact(f->m, 9);
    help_compact(f->m, 7);
    assert_int_equal(mvcc_compact_revision(f->m), 9);
    help_compact(f->m, 12);
    assert_int_equal(mvcc_compact_revision(f->m), 12);
    assert_string_equal(help_read(f->m, "log", 12), "d");
}

static void moving_the_point_and_a_step_take_no_revision(void **state)
{
    struct fixture *f = *state;

    make_example(f);
    help_compact(f->m, 9);
    assert_int_equal(mvcc_revision(f->m), 12);
    assert_int_not_equal(help_compact_step(f->m, 100), 0);
    assert_int_equal(mvcc_revision(f->m), 12);
    assert_true(mvcc_has_pending(f->m));
}

static void what_was_never_written_is_not_written_when_it_is_gone(void **state)
{
    struct fixture *f = *state;

    for (int i = 0; i < 50; i++)
        help_write(f->m, "k", "some text");
    size_t before = mvcc_pending_bytes(f->m);

    help_compact_all(f->m, mvcc_revision(f->m));
    assert_true(mvcc_pending_bytes(f->m) < before);
    struct kv_batch *batch = mvcc_checkpoint(f->m, NULL, NULL, 0);

    for (size_t i = 0; i < batch->count; i++)
        assert_false(batch->writes[i].remove);
    assert_int_equal(f->kv->ops->write(f->kv, batch), 0);
    mvcc_checkpointed(f->m);
    kv_batch_free(batch);
    assert_int_equal(help_entries(f->kv, KV_RECORDS), 2); /* the root and k */
    assert_int_equal(help_entries(f->kv, KV_CONTENT), 1);
    assert_int_equal(mvcc_pending_bytes(f->m), 0);
}

/* An open file's content, say, that somebody goes on reading. */
static void content_that_is_gone_is_stale_whether_it_was_written_or_not(void **state)
{
    struct fixture *f = *state;

    for (int written = 0; written < 2; written++) {
        struct mvcc_record old;
        struct keel_slice bytes;

        help_write(f->m, "k", "some text");
        assert_int_equal(mvcc_get(f->m, help_key(f->m, "k"), 0, &old), 0);
        if (written)
            help_checkpoint(f->m, f->kv);
        help_write(f->m, "k", "other text");
        assert_int_equal(mvcc_read(f->m, &old.content, &bytes), 0);
        help_compact_all(f->m, mvcc_revision(f->m));
        if (written)
            help_checkpoint(f->m, f->kv);
        assert_int_equal(mvcc_read(f->m, &old.content, &bytes), KEEL_E_STALE);
        mvcc_read_end(f->m);
    }
}

static void what_a_checkpoint_holds_is_removed_by_the_next_one(void **state)
{
    struct fixture *f = *state;

    help_write(f->m, "k", "one");
    help_write(f->m, "k", "two");
    struct kv_batch *batch = mvcc_checkpoint(f->m, NULL, NULL, 0);

    help_compact_all(f->m, mvcc_revision(f->m));
    assert_string_equal(help_read(f->m, "k", 0), "two");
    assert_int_equal(f->kv->ops->write(f->kv, batch), 0);
    mvcc_checkpointed(f->m);
    kv_batch_free(batch);
    assert_int_equal(help_entries(f->kv, KV_RECORDS), 3);
    help_checkpoint(f->m, f->kv);
    assert_int_equal(help_entries(f->kv, KV_RECORDS), 2);
    assert_int_equal(help_entries(f->kv, KV_CONTENT), 1);
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
    help_compact_all(f->m, 6);
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
            help_compact(f->m, mvcc_revision(f->m) / 2);
            help_compact_step(f->m, (uint32_t)(i % 11) + 1);
        }
    }
    struct mvcc_key *key = help_key(f->m, "k");

    for (uint64_t at = mvcc_compact_revision(f->m); at <= mvcc_revision(f->m); at++) {
        assert_int_equal(mvcc_get(f->m, key, at, &record), 0);
        assert_int_equal(record.revision.main, at);
        assert_int_equal(record.version, at - 1);
    }
    help_compact_all(f->m, mvcc_revision(f->m));
    assert_history(f->m, "k", "3001.0 ");
}

/* ---- content ---- */

static void content_outlives_the_record_that_wrote_it(void **state)
{
    struct fixture *f = *state;

    help_write(f->m, "temp", "0123456789"); /* 2 */
    help_checkpoint(f->m, f->kv);
    move(f->m, "temp", "target"); /* 3 */
    help_compact_all(f->m, 3);
    assert_null(help_key(f->m, "temp"));
    for (int form = 0; next_form(f, &form);) {
        assert_string_equal(help_read(f->m, "target", 0), "0123456789");
        assert_int_equal(mvcc_quota_used(f->m), 256 + 256 + 6 + 10);
    }
    assert_int_equal(help_entries(f->kv, KV_CONTENT), 1);
    chmod_key(f->m, help_key(f->m, "target"), 0600); /* 4 */
    help_compact_all(f->m, 4);
    for (int form = 0; next_form(f, &form);) {
        assert_string_equal(help_read(f->m, "target", 0), "0123456789");
        assert_int_equal(mvcc_quota_used(f->m), 256 + 256 + 6 + 10);
    }
    help_write(f->m, "target", "new"); /* 5 */
    help_compact_all(f->m, 5);
    assert_int_equal(mvcc_quota_used(f->m), 256 + 256 + 6 + 3);
    help_checkpoint(f->m, f->kv);
    assert_int_equal(help_entries(f->kv, KV_CONTENT), 1);
    assert_string_equal(help_read(f->m, "target", 0), "new");
}

static void content_that_was_never_written_outlives_its_record_too(void **state)
{
    struct fixture *f = *state;

    help_write(f->m, "temp", "text");
    move(f->m, "temp", "target");
    help_compact_all(f->m, 3);
    for (int form = 0; next_form(f, &form);) {
        assert_string_equal(help_read(f->m, "target", 0), "text");
    }
    assert_int_equal(help_entries(f->kv, KV_CONTENT), 1);
    assert_int_equal(help_entries(f->kv, KV_RECORDS), 2);
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
    help_compact_all(f->m, 3);
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
    help_compact(f->m, 5);
    assert_true(compact_for(f->m, 3 * 257));
    assert_int_equal(mvcc_compact_revision(f->m), 5);
    assert_false(mvcc_has_garbage(f->m));
    assert_true(compact_for(f->m, 1));
    assert_int_equal(mvcc_compact_revision(f->m), 6);
}

static void what_yields_goes_in_bounded_steps(void **state)
{
    struct fixture *f = *state;
    uint64_t used;

    for (int i = 0; i < 40; i++)
        help_write(f->m, "k", "text"); /* 2 … 41 */
    used = mvcc_quota_used(f->m);
    assert_int_equal(compact_within(f->m, UINT64_MAX, 10), MVCC_ROOM_LATER);
    assert_int_equal(mvcc_compact_revision(f->m), 12);
    assert_true(mvcc_has_history(f->m));
    assert_true(mvcc_quota_used(f->m) > used / 2);
    assert_int_equal(compact_within(f->m, UINT64_MAX, 100), MVCC_ROOM_NONE);
    assert_int_equal(mvcc_compact_revision(f->m), 41);
    assert_false(mvcc_has_history(f->m));
    assert_string_equal(help_read(f->m, "k", 0), "text");
}

static void what_a_transaction_replaces_does_not_yield_to_it(void **state)
{
    struct fixture *f = *state;
    struct mvcc_record record;

    help_write(f->m, "k", "text"); /* 2 */
    assert_int_equal(mvcc_get(f->m, help_key(f->m, "k"), 0, &record), 0);
    struct mvcc_txn *txn = help_begin(f->m);

    mvcc_put(txn, mvcc_root(f->m), keel_slice_str("k"), &record, NULL);
    assert_int_equal(mvcc_compact_for(txn, 1, UINT32_MAX), MVCC_ROOM_NONE);
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
    struct mvcc_txn *txn = help_begin(f->m);

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
    help_compact(f->m, 7);
    for (uint32_t n = 1; n > 0; n = help_compact_step(f->m, 1)) {
        help_checkpoint(f->m, f->kv);
        f->m = help_reopen(f->m, f->kv);
        assert_string_equal(help_read(f->m, "d/e/f", 0), "text");
        assert_int_equal(mvcc_dir_info(help_key(f->m, "d")).entries, 1);
        assert_int_equal(mvcc_dir_info(help_key(f->m, "d")).subdirs, 1);
        assert_int_equal(mvcc_dir_info(help_key(f->m, "d/e")).entries, 1);
        assert_int_equal(mvcc_live_keys(f->m), 4);
    }
    assert_int_equal(help_entries(f->kv, KV_RECORDS), 4);
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
    help_compact(f->m, mvcc_revision(f->m));
    assert_null(help_key(f->m, "d"));
    help_compact_all(f->m, mvcc_revision(f->m));
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
    help_compact_all(f->m, mvcc_revision(f->m));
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
    help_compact_all(f->m, mvcc_revision(f->m));
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
    assert_int_equal(help_compact_step(f->m, 10), 0);
    assert_ptr_equal(mvcc_parent(file), dir);
    mvcc_unpin(f->m, file);
    help_mkdir(f->m, "d");
    mvcc_close(other);
    mvcc_close(f->m);
    kv->ops->close(kv);
    f->m = help_open(f->kv);
}

#define FIXTURE_TEST(name) cmocka_unit_test_setup_teardown(name, help_set_up, help_tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        FIXTURE_TEST(what_can_be_asked_depends_on_the_point_and_not_on_what_is_gone),
        FIXTURE_TEST(garbage_goes_in_the_order_in_which_it_was_followed),
        FIXTURE_TEST(the_point_never_goes_back),
        FIXTURE_TEST(moving_the_point_and_a_step_take_no_revision),
        FIXTURE_TEST(what_was_never_written_is_not_written_when_it_is_gone),
        FIXTURE_TEST(content_that_is_gone_is_stale_whether_it_was_written_or_not),
        FIXTURE_TEST(what_a_checkpoint_holds_is_removed_by_the_next_one),
        FIXTURE_TEST(versions_go_on_when_the_generations_beginning_is_gone),
        FIXTURE_TEST(a_long_history_goes_from_the_front_and_grows_at_the_end),
        FIXTURE_TEST(content_outlives_the_record_that_wrote_it),
        FIXTURE_TEST(content_that_was_never_written_outlives_its_record_too),
        FIXTURE_TEST(missing_content_is_noticed_when_its_writer_is_gone),
        FIXTURE_TEST(old_history_yields_as_much_as_is_needed),
        FIXTURE_TEST(garbage_that_is_there_yields_before_the_point_moves),
        FIXTURE_TEST(what_yields_goes_in_bounded_steps),
        FIXTURE_TEST(what_a_transaction_replaces_does_not_yield_to_it),
        FIXTURE_TEST(all_that_became_garbage_at_one_revision_yields_at_once),
        FIXTURE_TEST(a_directorys_beginning_may_go_before_what_is_in_it),
        FIXTURE_TEST(keys_go_with_their_last_record),
        FIXTURE_TEST(a_pinned_key_stays_as_one_that_never_was),
        FIXTURE_TEST(keys_that_a_reload_left_empty_go_with_the_next_step),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
