/* Revisions, generations, transactions, checkpoints: one property a test. The random comparison
 * with a naive model is in test_twin.c. */
#include "help.h"

#include <stdio.h>

#include "bytes.h"
#include "check.h"
#include "hash.h"
#include "mvcc/record.h"

static struct mvcc_record record_of(struct mvcc *m, const char *path, uint64_t at)
{
    struct mvcc_record record;

    assert_int_equal(mvcc_get(m, help_key(m, path), at, &record), 0);
    return record;
}

/* ---- a fresh store ---- */

static void a_fresh_store_is_the_root_at_revision_one(void **state)
{
    struct fixture *f = *state;
    struct mvcc_record root = record_of(f->m, "", 0);

    assert_int_equal(mvcc_revision(f->m), 1);
    assert_int_equal(mvcc_applied_index(f->m), 0);
    assert_int_equal(mvcc_live_keys(f->m), 1);
    assert_int_equal(mvcc_compact_revision(f->m), 0);
    assert_true(mvcc_has_pending(f->m));
    assert_int_equal(root.mode, 0755);
    assert_int_equal(root.ino, MVCC_ROOT_INO);
    assert_int_equal(root.version, 1);
    assert_int_equal(root.create_revision, 1);
    assert_ptr_equal(mvcc_by_ino(f->m, MVCC_ROOT_INO), mvcc_root(f->m));
}

static void fresh_stores_have_equal_hashes(void **state)
{
    struct fixture *f = *state;
    struct kv *kv = kv_mem_new();
    struct mvcc *other = help_open(kv);
    struct keel_hash128 a = mvcc_state_hash(f->m), b = mvcc_state_hash(other);

    assert_memory_equal(&a, &b, sizeof a);
    assert_true(a.low != 0 || a.high != 0);
    mvcc_close(other);
    kv->ops->close(kv);
}

/* ---- revisions ---- */

static void versions_count_up_within_a_generation(void **state)
{
    struct fixture *f = *state;

    help_write(f->m, "k", "one"); /* 2 */
    help_write(f->m, "k", "two"); /* 3 */
    help_delete(f->m, "k");       /* 4 */
    help_write(f->m, "k", "new"); /* 5 */
    help_write(f->m, "k", "now"); /* 6 */
    struct mvcc_record third = record_of(f->m, "k", 3), now = record_of(f->m, "k", 0);

    assert_int_equal(third.version, 2);
    assert_int_equal(third.create_revision, 2);
    assert_int_equal(now.version, 2);
    assert_int_equal(now.create_revision, 5);
    assert_int_equal(now.revision.main, 6);
}

static void reads_at_a_revision_pick_their_generation(void **state)
{
    struct fixture *f = *state;

    help_write(f->m, "k", "one");
    help_write(f->m, "k", "two");
    help_delete(f->m, "k");
    help_write(f->m, "other", "x");
    help_write(f->m, "k", "new");
    for (int round = 0; round < 2; round++) {
        assert_string_equal(help_read(f->m, "k", 1), "(none)");
        assert_string_equal(help_read(f->m, "k", 2), "one");
        assert_string_equal(help_read(f->m, "k", 3), "two");
        assert_string_equal(help_read(f->m, "k", 4), "(none)");
        assert_string_equal(help_read(f->m, "k", 5), "(none)");
        assert_string_equal(help_read(f->m, "k", 6), "new");
        assert_string_equal(help_read(f->m, "k", 0), "new");
        help_checkpoint(f->m, f->kv);
    }
}

static void a_future_revision_is_stale(void **state)
{
    struct fixture *f = *state;
    struct mvcc_record record;

    help_write(f->m, "k", "one");
    assert_int_equal(mvcc_get(f->m, help_key(f->m, "k"), 3, &record), KEEL_E_STALE);
    assert_int_equal(mvcc_get(f->m, help_key(f->m, "k"), 2, &record), 0);
}

static int collect(void *arg, struct mvcc_revision rev, bool tombstone)
{
    keel_text_printf(arg, "%llu.%u%s ", (unsigned long long)rev.main, rev.sub,
                     tombstone ? "t" : "");
    return 0;
}

static int stop_at_once(void *arg, struct mvcc_revision rev, bool tombstone)
{
    (void)arg;
    (void)rev;
    (void)tombstone;
    return 99;
}

static void history_is_newest_first_with_tombstones(void **state)
{
    struct fixture *f = *state;
    struct keel_text text = { 0 };

    help_write(f->m, "k", "one");
    help_write(f->m, "k", "two");
    help_delete(f->m, "k");
    help_write(f->m, "k", "new");
    f->m = (help_checkpoint(f->m, f->kv), help_reopen(f->m, f->kv));
    assert_int_equal(mvcc_history(f->m, help_key(f->m, "k"), collect, &text), 0);
    assert_string_equal(text.data, "5.0 4.0t 3.0 2.0 ");
    assert_int_equal(mvcc_history(f->m, help_key(f->m, "k"), stop_at_once, NULL), 99);
    keel_text_free(&text);
}

static void a_record_is_found_by_its_exact_revision(void **state)
{
    struct fixture *f = *state;
    struct mvcc_key *key = help_write(f->m, "k", "one");
    struct mvcc_record record;

    help_delete(f->m, "k");
    for (int round = 0; round < 2; round++) {
        assert_int_equal(mvcc_get_revision(f->m, key, (struct mvcc_revision){ 3, 0 }, &record), 0);
        assert_true(record.tombstone);
        assert_int_equal(mvcc_get_revision(f->m, key, (struct mvcc_revision){ 2, 0 }, &record), 0);
        assert_false(record.tombstone);
        assert_int_equal(mvcc_get_revision(f->m, key, (struct mvcc_revision){ 2, 1 }, &record),
                         KEEL_E_NOTFOUND);
        assert_int_equal(mvcc_get_revision(f->m, key, (struct mvcc_revision){ 1, 0 }, &record),
                         KEEL_E_NOTFOUND);
        help_checkpoint(f->m, f->kv);
    }
}

static void a_transaction_without_changes_takes_no_revision(void **state)
{
    struct fixture *f = *state;
    struct keel_hash128 before = mvcc_state_hash(f->m);

    help_checkpoint(f->m, f->kv);
    assert_false(mvcc_has_pending(f->m));
    assert_int_equal(mvcc_commit(mvcc_begin(f->m, 9, 4)), 1);
    struct keel_hash128 after = mvcc_state_hash(f->m);

    assert_memory_equal(&before, &after, sizeof before);
    assert_true(mvcc_has_pending(f->m));
    assert_int_equal(mvcc_applied_index(f->m), 9);
    f->m = (help_checkpoint(f->m, f->kv), help_reopen(f->m, f->kv));
    assert_int_equal(mvcc_applied_index(f->m), 9);
    assert_int_equal(mvcc_applied_term(f->m), 4);
    assert_int_equal(mvcc_durable_index(f->m), 9);
}

static void ctime_never_goes_back_for_a_key(void **state)
{
    struct fixture *f = *state;
    struct mvcc_record record = { .kind = MVCC_FILE, .ino = 50, .ctime_ns = 100 };
    struct mvcc_txn *txn = mvcc_begin(f->m, 1, 1);
    struct mvcc_key *key = mvcc_put(txn, mvcc_root(f->m), keel_slice_str("k"), &record, NULL);

    record.ctime_ns = 90;
    mvcc_put(txn, mvcc_root(f->m), keel_slice_str("k"), &record, NULL);
    assert_int_equal(record.ctime_ns, 100);
    assert_int_equal(record.version, 2);
    assert_int_equal(record.revision.sub, 1);
    mvcc_delete(txn, key, 80, 0, false);
    record.ctime_ns = 70;
    mvcc_put(txn, mvcc_root(f->m), keel_slice_str("k"), &record, NULL);
    assert_int_equal(record.ctime_ns, 70); /* another generation */
    mvcc_commit(txn);
    assert_int_equal(mvcc_get_revision(f->m, key, (struct mvcc_revision){ 2, 2 }, &record), 0);
    assert_int_equal(record.ctime_ns, 100);
}

/* ---- rename ---- */

static void rename_file(struct mvcc *m, const char *from, const char *to, bool delete_first)
{
    struct mvcc_record record = record_of(m, from, 0);
    struct mvcc_txn *txn = mvcc_begin(m, mvcc_applied_index(m) + 1, 1);

    if (delete_first)
        mvcc_delete(txn, help_key(m, from), 0, 0, true);
    mvcc_put(txn, mvcc_root(m), keel_slice_str(to), &record, NULL);
    if (!delete_first)
        mvcc_delete(txn, help_key(m, from), 0, 0, true);
    mvcc_commit(txn);
}

static void check_rename(struct fixture *f, bool delete_first)
{
    help_write(f->m, "target", "old"); /* 2 */
    help_write(f->m, "target", "old"); /* 3 */
    uint64_t replaced = mvcc_live_ino(help_key(f->m, "target"));
    struct mvcc_key *source = help_write(f->m, "temp", "new"); /* 4 */
    uint64_t ino = mvcc_live_ino(source);

    rename_file(f->m, "temp", "target", delete_first); /* 5 */
    for (int round = 0; round < 2; round++) {
        struct mvcc_record target = record_of(f->m, "target", 0);

        assert_int_equal(target.version, 3);
        assert_int_equal(target.create_revision, 2);
        assert_int_equal(target.revision.main, 5);
        assert_int_equal(target.content.at.main, 4);
        assert_int_equal(target.ino, ino);
        assert_string_equal(help_read(f->m, "target", 0), "new");
        assert_string_equal(help_read(f->m, "target", 4), "old");
        assert_string_equal(help_read(f->m, "temp", 4), "new");
        assert_string_equal(help_read(f->m, "temp", 0), "(none)");
        assert_ptr_equal(mvcc_by_ino(f->m, ino), help_key(f->m, "target"));
        assert_null(mvcc_by_ino(f->m, replaced));
        assert_int_equal(mvcc_live_keys(f->m), 2);
        assert_int_equal(mvcc_live_ino(help_key(f->m, "temp")), 0);
        f->m = (help_checkpoint(f->m, f->kv), help_reopen(f->m, f->kv));
    }
}

static void rename_moves_the_inode_and_goes_on_with_the_targets_versions(void **state)
{
    check_rename(*state, false);
}

static void rename_may_delete_before_it_puts(void **state)
{
    check_rename(*state, true);
}

static void rename_to_a_new_name_starts_a_generation(void **state)
{
    struct fixture *f = *state;

    help_write(f->m, "a", "x");
    help_write(f->m, "a", "y");
    rename_file(f->m, "a", "b", false);
    struct mvcc_record b = record_of(f->m, "b", 0);

    assert_int_equal(b.version, 1);
    assert_int_equal(b.create_revision, 4);
    assert_int_equal(b.content.at.main, 3);
}

static void rename_writes_no_content_and_counts_none(void **state)
{
    struct fixture *f = *state;

    help_write(f->m, "a", "0123456789");
    uint64_t before = mvcc_quota_used(f->m);

    rename_file(f->m, "a", "bcd", false);
    assert_int_equal(mvcc_quota_used(f->m) - before, 256 + 3 + 256 + 1);
}

static void two_keys_can_exchange_their_inodes(void **state)
{
    struct fixture *f = *state;

    help_write(f->m, "a", "of a");
    help_write(f->m, "b", "of b");
    struct mvcc_record a = record_of(f->m, "a", 0), b = record_of(f->m, "b", 0);
    uint64_t ino_a = a.ino, ino_b = b.ino;
    struct mvcc_txn *txn = mvcc_begin(f->m, mvcc_applied_index(f->m) + 1, 1);

    mvcc_put(txn, mvcc_root(f->m), keel_slice_str("b"), &a, NULL);
    mvcc_put(txn, mvcc_root(f->m), keel_slice_str("a"), &b, NULL);
    mvcc_commit(txn);
    for (int round = 0; round < 2; round++) {
        assert_ptr_equal(mvcc_by_ino(f->m, ino_a), help_key(f->m, "b"));
        assert_ptr_equal(mvcc_by_ino(f->m, ino_b), help_key(f->m, "a"));
        assert_string_equal(help_read(f->m, "a", 0), "of b");
        f->m = (help_checkpoint(f->m, f->kv), help_reopen(f->m, f->kv));
    }
}

/* ---- directories ---- */

static void listings_show_what_was_there_at_a_revision(void **state)
{
    struct fixture *f = *state;
    struct mvcc_key *root = mvcc_root(f->m), *key;

    help_write(f->m, "b", "");  /* 2 */
    help_write(f->m, "a", "");  /* 3 */
    help_delete(f->m, "b");     /* 4 */
    help_write(f->m, "ab", ""); /* 5 */
    key = mvcc_next_child(f->m, root, 3, keel_slice_of(NULL, 0));
    assert_true(keel_slice_equal(mvcc_name(key), keel_slice_str("a")));
    key = mvcc_next_child(f->m, root, 3, mvcc_name(key));
    assert_true(keel_slice_equal(mvcc_name(key), keel_slice_str("b")));
    assert_null(mvcc_next_child(f->m, root, 3, mvcc_name(key)));
    key = mvcc_next_child(f->m, root, 0, keel_slice_str("a"));
    assert_true(keel_slice_equal(mvcc_name(key), keel_slice_str("ab")));
    assert_null(mvcc_next_child(f->m, root, 0, keel_slice_str("ab")));
    assert_null(mvcc_next_child(f->m, root, 1, keel_slice_of(NULL, 0)));
}

static void directory_times_move_without_a_revision_and_survive(void **state)
{
    struct fixture *f = *state;
    struct mvcc_key *dir = help_mkdir(f->m, "d");

    help_mkdir(f->m, "d/sub");
    help_write(f->m, "d/file", "");
    struct mvcc_txn *txn = mvcc_begin(f->m, mvcc_applied_index(f->m) + 1, 1);

    mvcc_touch_dir(txn, dir, 500);
    assert_int_equal(mvcc_commit(txn), 4);
    txn = mvcc_begin(f->m, mvcc_applied_index(f->m) + 1, 1);
    mvcc_touch_dir(txn, dir, 400); /* a clock that is behind */
    mvcc_commit(txn);
    for (int round = 0; round < 2; round++) {
        struct mvcc_dir_info info = mvcc_dir_info(help_key(f->m, "d"));

        assert_int_equal(info.mtime_ns, 400);
        assert_int_equal(info.ctime_ns, 500);
        assert_int_equal(info.entries, 2);
        assert_int_equal(info.subdirs, 1);
        assert_int_equal(record_of(f->m, "d", 0).mtime_ns, 400);
        assert_int_equal(record_of(f->m, "d", 0).ctime_ns, 500);
        assert_int_equal(record_of(f->m, "d", 2).mtime_ns, 0);
        f->m = (help_checkpoint(f->m, f->kv), help_reopen(f->m, f->kv));
    }
}

static void changing_a_directorys_mode_keeps_its_living_times(void **state)
{
    struct fixture *f = *state;
    struct mvcc_txn *txn = mvcc_begin(f->m, 1, 1);

    mvcc_touch_dir(txn, mvcc_root(f->m), 500);
    mvcc_commit(txn);
    struct mvcc_record root = record_of(f->m, "", 0);

    root.mode = 0700;
    txn = mvcc_begin(f->m, 2, 1);
    mvcc_put_root(txn, &root);
    mvcc_commit(txn);
    assert_int_equal(mvcc_dir_info(mvcc_root(f->m)).mtime_ns, 500);
    assert_int_equal(record_of(f->m, "", 0).version, 2);
    assert_int_equal(record_of(f->m, "", 2).mode, 0700);
    assert_int_equal(record_of(f->m, "", 1).mode, 0755);
}

static void a_directorys_times_can_be_set(void **state)
{
    struct fixture *f = *state;
    struct mvcc_key *dir = help_mkdir(f->m, "d");
    struct mvcc_txn *txn = mvcc_begin(f->m, mvcc_applied_index(f->m) + 1, 1);

    mvcc_touch_dir(txn, dir, 500);
    mvcc_commit(txn);
    struct mvcc_record record = record_of(f->m, "d", 0);

    record.mtime_ns = 0; /* as in the record of its creation: not to be taken for unchanged */
    txn = mvcc_begin(f->m, mvcc_applied_index(f->m) + 1, 1);
    mvcc_put(txn, mvcc_root(f->m), keel_slice_str("d"), &record, NULL);
    mvcc_commit(txn);
    for (int round = 0; round < 2; round++) {
        assert_int_equal(mvcc_dir_info(help_key(f->m, "d")).mtime_ns, 0);
        assert_int_equal(mvcc_dir_info(help_key(f->m, "d")).ctime_ns, 500);
        f->m = (help_checkpoint(f->m, f->kv), help_reopen(f->m, f->kv));
    }
}

static void a_removed_directory_leaves_no_times_behind(void **state)
{
    struct fixture *f = *state;
    struct keel_slice value;
    uint8_t key[8];
    uint64_t ino = mvcc_live_ino(help_mkdir(f->m, "d"));

    help_checkpoint(f->m, f->kv);
    help_delete(f->m, "d");
    help_mkdir(f->m, "e");
    help_delete(f->m, "e"); /* came and went between two checkpoints */
    help_mkdir(f->m, "d");  /* another inode at the same name */
    f->m = (help_checkpoint(f->m, f->kv), help_reopen(f->m, f->kv));
    struct kv_read *read = f->kv->ops->read_begin(f->kv);

    put_be64(key, ino);
    assert_int_equal(f->kv->ops->get(read, KV_DIRS, keel_slice_of(key, 8), &value),
                     KEEL_E_NOTFOUND);
    put_be64(key, mvcc_live_ino(help_key(f->m, "d")));
    assert_int_equal(f->kv->ops->get(read, KV_DIRS, keel_slice_of(key, 8), &value), 0);
    f->kv->ops->read_end(read);
}

/* ---- checkpoints ---- */

static void writing_goes_on_while_a_checkpoint_is_out(void **state)
{
    struct fixture *f = *state;

    help_write(f->m, "a", "first");
    size_t bytes = mvcc_pending_bytes(f->m);
    struct kv_batch *batch = mvcc_checkpoint(f->m, NULL, NULL, 0);

    assert_int_equal(batch->applied_index, 1);
    help_write(f->m, "a", "second");
    help_write(f->m, "b", "other");
    assert_true(mvcc_pending_bytes(f->m) > bytes);
    assert_string_equal(help_read(f->m, "a", 2), "first"); /* in memory: nothing is written yet */
    assert_int_equal(mvcc_durable_index(f->m), 0);
    assert_int_equal(f->kv->ops->write(f->kv, batch), 0);
    assert_string_equal(help_read(f->m, "a", 2), "first");
    mvcc_checkpointed(f->m);
    kv_batch_free(batch);
    assert_int_equal(mvcc_durable_index(f->m), 1);
    assert_true(mvcc_has_pending(f->m));
    assert_string_equal(help_read(f->m, "a", 2), "first"); /* from the kv */
    assert_string_equal(help_read(f->m, "a", 3), "second");
    f->m = (help_checkpoint(f->m, f->kv), help_reopen(f->m, f->kv));
    assert_false(mvcc_has_pending(f->m));
    assert_int_equal(mvcc_pending_bytes(f->m), 0);
    assert_string_equal(help_read(f->m, "a", 0), "second");
    assert_string_equal(help_read(f->m, "b", 0), "other");
}

static void a_reader_sees_what_a_checkpoint_took_out_of_memory(void **state)
{
    struct fixture *f = *state;
    struct mvcc_record record;

    help_checkpoint(f->m, f->kv);
    struct mvcc_key *key = help_write(f->m, "a", "text");

    assert_int_equal(mvcc_get(f->m, mvcc_root(f->m), 0, &record), 0); /* begins to read the kv */
    help_checkpoint(f->m, f->kv);
    assert_int_equal(mvcc_get(f->m, key, 0, &record), 0);
}

static void a_crash_before_the_batch_is_written_loses_all_of_it(void **state)
{
    struct fixture *f = *state;
    struct keel_hash128 before = mvcc_state_hash(f->m);

    help_checkpoint(f->m, f->kv);
    help_write(f->m, "a", "lost");
    kv_batch_free(mvcc_checkpoint(f->m, NULL, NULL, 0));
    f->m = help_reopen(f->m, f->kv);
    struct keel_hash128 after = mvcc_state_hash(f->m);

    assert_int_equal(mvcc_applied_index(f->m), 0);
    assert_memory_equal(&before, &after, sizeof before);
    assert_null(help_key(f->m, "a"));
}

static void values_that_are_a_part_of_an_entry_are_written_alone(void **state)
{
    struct fixture *f = *state;
    struct keel_buf *entry = keel_buf_copy(keel_slice_str("head:value:tail"));
    struct mvcc_value value = { entry, keel_slice_of(entry->data + 5, 5) };
    struct mvcc_record record = { .kind = MVCC_FILE, .ino = 7 };
    struct mvcc_txn *txn = mvcc_begin(f->m, 1, 1);

    mvcc_put(txn, mvcc_root(f->m), keel_slice_str("k"), &record, &value);
    mvcc_commit(txn);
    keel_buf_free(entry);
    assert_string_equal(help_read(f->m, "k", 0), "value");
    f->m = (help_checkpoint(f->m, f->kv), help_reopen(f->m, f->kv));
    assert_string_equal(help_read(f->m, "k", 0), "value");
}

static void an_empty_file_is_not_an_absent_one(void **state)
{
    struct fixture *f = *state;

    help_write(f->m, "k", "full");
    help_write(f->m, "k", "");
    f->m = (help_checkpoint(f->m, f->kv), help_reopen(f->m, f->kv));
    struct mvcc_record record = record_of(f->m, "k", 0);

    assert_int_equal(record.content.length, 0);
    assert_int_equal(record.content.at.main, 0);
    assert_string_equal(help_read(f->m, "k", 0), "");
}

static void meta_values_come_back(void **state)
{
    struct fixture *f = *state;
    struct keel_slice names[2] = { keel_slice_str("sessions"), keel_slice_str("leases") };
    struct keel_buf *values[2] = { keel_buf_copy(keel_slice_str("s")), keel_buf_new(0) };
    struct kv_batch *batch = mvcc_checkpoint(f->m, names, values, 2);
    struct keel_buf *back;

    assert_int_equal(mvcc_meta(f->m, names[0], &back), KEEL_E_NOTFOUND);
    assert_int_equal(f->kv->ops->write(f->kv, batch), 0);
    mvcc_checkpointed(f->m);
    kv_batch_free(batch);
    f->m = help_reopen(f->m, f->kv);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(mvcc_meta(f->m, names[i], &back), 0);
        assert_true(keel_slice_equal(keel_buf_slice(back), keel_buf_slice(values[i])));
        keel_buf_free(back);
        keel_buf_free(values[i]);
    }
}

/* ---- damage ---- */

struct victim {
    struct kv_batch *batch;
    enum kv_table table;
    size_t skip, byte;
};

static int damage_one(void *arg, struct keel_slice key, struct keel_slice value)
{
    struct victim *victim = arg;

    if (victim->skip-- > 0)
        return 0;
    struct keel_buf *copy = keel_buf_copy(value);

    copy->data[victim->byte % copy->len] ^= 0x10;
    kv_batch_put(victim->batch, victim->table, key, copy);
    return 1;
}

/* Flips a bit of the n-th value of a table. */
static void damage(struct kv *kv, enum kv_table table, size_t n, size_t byte)
{
    struct victim victim = { kv_batch_new(), table, n, byte };
    struct kv_read *read = kv->ops->read_begin(kv);

    assert_int_equal(kv->ops->scan(read, table, keel_slice_of(NULL, 0), damage_one, &victim), 1);
    kv->ops->read_end(read);
    assert_int_equal(kv->ops->write(kv, victim.batch), 0);
    kv_batch_free(victim.batch);
}

static void put_meta(struct kv *kv, enum kv_table table, struct keel_slice key,
                     struct keel_slice value)
{
    struct kv_batch *batch = kv_batch_new();

    if (value.data != NULL)
        kv_batch_put(batch, table, key, keel_buf_copy(value));
    else
        kv_batch_remove(batch, table, key);
    assert_int_equal(kv->ops->write(kv, batch), 0);
    kv_batch_free(batch);
}

static void make_store(struct fixture *f)
{
    help_mkdir(f->m, "d");
    help_write(f->m, "d/a", "some content");
    help_write(f->m, "d/b", "other content");
    help_delete(f->m, "d/a");
    help_checkpoint(f->m, f->kv);
}

static void expect_refused(struct fixture *f, int expected, const char *text)
{
    struct mvcc *m = NULL;
    char why[256] = "";

    assert_int_equal(mvcc_open(f->kv, &m, why, sizeof why), expected);
    assert_null(m);
    if (strstr(why, text) == NULL)
        fail_msg("\"%s\" lacks \"%s\"", why, text);
}

static void a_flipped_bit_in_any_record_is_refused_with_its_revision(void **state)
{
    struct fixture *f = *state;
    static const char *const names[] = { "record 1.0", "record 2.0", "record 3.0", "record 4.0" };

    make_store(f);
    for (size_t i = 0; i < 4; i++)
        for (size_t byte = 0; byte < 130; byte += 3) {
            damage(f->kv, KV_RECORDS, i, byte);
            expect_refused(f, KEEL_E_CORRUPT, names[i]);
            damage(f->kv, KV_RECORDS, i, byte);
        }
    f->m = help_reopen(f->m, f->kv);
}

static void damage_of_state_format_and_directory_times_is_refused(void **state)
{
    struct fixture *f = *state;

    make_store(f);
    for (size_t byte = 0; byte < 56; byte++) {
        damage(f->kv, KV_META, 1, byte);
        expect_refused(f, KEEL_E_CORRUPT, "applied state");
        damage(f->kv, KV_META, 1, byte);
    }
    for (size_t byte = 0; byte < 24; byte++) {
        damage(f->kv, KV_DIRS, 1, byte);
        expect_refused(f, KEEL_E_CORRUPT, "times of directory");
        damage(f->kv, KV_DIRS, 1, byte);
    }
    f->m = help_reopen(f->m, f->kv);
}

static void a_directory_without_times_is_refused(void **state)
{
    struct fixture *f = *state;
    uint8_t key[8];

    make_store(f);
    put_be64(key, MVCC_ROOT_INO);
    put_meta(f->kv, KV_DIRS, keel_slice_of(key, 8), keel_slice_of(NULL, 0));
    expect_refused(f, KEEL_E_CORRUPT, "times of 1 directories instead of 2");
}

static const struct kv_ops *sound_ops;

/* A database whose pages lead back to its beginning. */
static int scan_twice(struct kv_read *read, enum kv_table table, struct keel_slice from,
                      int (*fn)(void *arg, struct keel_slice key, struct keel_slice value),
                      void *arg)
{
    int result = sound_ops->scan(read, table, from, fn, arg);

    return result ? result : sound_ops->scan(read, table, from, fn, arg);
}

static void records_that_do_not_ascend_are_refused(void **state)
{
    struct fixture *f = *state;
    struct kv_ops looping = *f->kv->ops;

    make_store(f);
    sound_ops = f->kv->ops;
    looping.scan = scan_twice;
    f->kv->ops = &looping;
    expect_refused(f, KEEL_E_CORRUPT, "record 1.0: it stands behind 5.0");
    f->kv->ops = sound_ops;
}

static void a_missing_record_changes_the_state_hash(void **state)
{
    struct fixture *f = *state;
    uint8_t key[MVCC_REVISION_KEY_LEN];

    make_store(f);
    revision_key_encode((struct mvcc_revision){ 4, 0 }, key); /* d/b: nothing refers to it */
    put_meta(f->kv, KV_RECORDS, keel_slice_of(key, sizeof key), keel_slice_of(NULL, 0));
    expect_refused(f, KEEL_E_CORRUPT, "state hash");
}

static void a_record_without_its_directory_is_refused(void **state)
{
    struct fixture *f = *state;
    uint8_t key[MVCC_REVISION_KEY_LEN];

    make_store(f);
    revision_key_encode((struct mvcc_revision){ 2, 0 }, key); /* d */
    put_meta(f->kv, KV_RECORDS, keel_slice_of(key, sizeof key), keel_slice_of(NULL, 0));
    expect_refused(f, KEEL_E_CORRUPT, "record 3.0: its directory does not exist");
}

static void missing_or_short_content_is_refused(void **state)
{
    struct fixture *f = *state;
    uint8_t key[MVCC_REVISION_KEY_LEN];

    make_store(f);
    revision_key_encode((struct mvcc_revision){ 4, 0 }, key);
    put_meta(f->kv, KV_CONTENT, keel_slice_of(key, sizeof key), keel_slice_str("short"));
    expect_refused(f, KEEL_E_CORRUPT, "record 4.0: its content has 5 bytes instead of 13");
    put_meta(f->kv, KV_CONTENT, keel_slice_of(key, sizeof key), keel_slice_of(NULL, 0));
    expect_refused(f, KEEL_E_CORRUPT, "record 4.0: its content of revision 4.0 is missing");
}

/* A record that decodes, put in place of, or beside, those of make_store. */
static void forge(struct fixture *f, const struct mvcc_record *record, const char *path)
{
    uint8_t key[MVCC_REVISION_KEY_LEN];
    struct keel_buf *bytes = mvcc_record_encode(record, keel_slice_str(path));

    revision_key_encode(record->revision, key);
    put_meta(f->kv, KV_RECORDS, keel_slice_of(key, sizeof key), keel_buf_slice(bytes));
    keel_buf_free(bytes);
}

static void records_that_break_the_rules_are_refused(void **state)
{
    struct fixture *f = *state;
    struct mvcc_record file = {
        .kind = MVCC_FILE, .ino = 900, .revision = { 5, 0 }, .create_revision = 5, .version = 1
    };
    struct mvcc_record gone = {
        .tombstone = true, .kind = MVCC_FILE, .ino = 900, .revision = { 5, 0 }
    };

    make_store(f);
    file.version = 2;
    forge(f, &file, "d/new");
    expect_refused(f, KEEL_E_CORRUPT, "record 5.0: version 2");
    file.version = 1;
    forge(f, &file, "d/b/below-a-file");
    expect_refused(f, KEEL_E_CORRUPT, "record 5.0: its directory does not exist");
    forge(f, &file, "d");
    expect_refused(f, KEEL_E_CORRUPT, "record 5.0: a directory and something else");
    forge(f, &gone, "d/b");
    expect_refused(f, KEEL_E_CORRUPT, "record 5.0: a tombstone for what was not there");
    gone.kind = MVCC_DIR;
    gone.ino = mvcc_live_ino(help_key(f->m, "d"));
    forge(f, &gone, "d");
    expect_refused(f, KEEL_E_CORRUPT, "record 5.0: a directory with 2 entries");
    gone.ino = MVCC_ROOT_INO;
    forge(f, &gone, "");
    expect_refused(f, KEEL_E_CORRUPT, "record 5.0: the root is deleted");
    file.ino = mvcc_live_ino(help_key(f->m, "d/b"));
    forge(f, &file, "d/c");
    expect_refused(f, KEEL_E_CORRUPT, "record 5.0: after it, an inode is at two names");
    file.revision.main = 6;
    file.create_revision = 6;
    forge(f, &file, "d/x");
    expect_refused(f, KEEL_E_CORRUPT, "record 6.0: it is newer than the store's revision 5");
}

static void a_newer_format_is_told_from_damage(void **state)
{
    struct fixture *f = *state;

    make_store(f);
    put_meta(f->kv, KV_META, keel_slice_str("format"), keel_slice_of("\2\0\0\0", 4));
    expect_refused(f, KEEL_E_NEWER, "format version 2");
    put_meta(f->kv, KV_META, keel_slice_str("format"), keel_slice_of("\1", 1));
    expect_refused(f, KEEL_E_CORRUPT, "format version");
    put_meta(f->kv, KV_META, keel_slice_str("format"), keel_slice_of(NULL, 0));
    expect_refused(f, KEEL_E_CORRUPT, "no format version");
}

static void content_that_rotted_is_not_handed_out(void **state)
{
    struct fixture *f = *state;
    struct keel_slice bytes;

    make_store(f);
    damage(f->kv, KV_CONTENT, 1, 5);
    f->m = help_reopen(f->m, f->kv);
    struct mvcc_record record = record_of(f->m, "d/b", 0);

    assert_int_equal(mvcc_read(f->m, &record.content, &bytes), KEEL_E_CORRUPT);
}

static void a_record_that_rotted_after_the_start_is_not_handed_out(void **state)
{
    struct fixture *f = *state;
    struct mvcc_record record;

    make_store(f);
    damage(f->kv, KV_RECORDS, 3, 9);
    assert_int_equal(mvcc_get(f->m, help_key(f->m, "d/b"), 0, &record), KEEL_E_CORRUPT);
}

#define FIXTURE_TEST(name) cmocka_unit_test_setup_teardown(name, help_set_up, help_tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        FIXTURE_TEST(a_fresh_store_is_the_root_at_revision_one),
        FIXTURE_TEST(fresh_stores_have_equal_hashes),
        FIXTURE_TEST(versions_count_up_within_a_generation),
        FIXTURE_TEST(reads_at_a_revision_pick_their_generation),
        FIXTURE_TEST(a_future_revision_is_stale),
        FIXTURE_TEST(history_is_newest_first_with_tombstones),
        FIXTURE_TEST(a_record_is_found_by_its_exact_revision),
        FIXTURE_TEST(a_transaction_without_changes_takes_no_revision),
        FIXTURE_TEST(ctime_never_goes_back_for_a_key),
        FIXTURE_TEST(rename_moves_the_inode_and_goes_on_with_the_targets_versions),
        FIXTURE_TEST(rename_may_delete_before_it_puts),
        FIXTURE_TEST(rename_to_a_new_name_starts_a_generation),
        FIXTURE_TEST(rename_writes_no_content_and_counts_none),
        FIXTURE_TEST(two_keys_can_exchange_their_inodes),
        FIXTURE_TEST(listings_show_what_was_there_at_a_revision),
        FIXTURE_TEST(directory_times_move_without_a_revision_and_survive),
        FIXTURE_TEST(changing_a_directorys_mode_keeps_its_living_times),
        FIXTURE_TEST(a_directorys_times_can_be_set),
        FIXTURE_TEST(a_removed_directory_leaves_no_times_behind),
        FIXTURE_TEST(writing_goes_on_while_a_checkpoint_is_out),
        FIXTURE_TEST(a_reader_sees_what_a_checkpoint_took_out_of_memory),
        FIXTURE_TEST(a_crash_before_the_batch_is_written_loses_all_of_it),
        FIXTURE_TEST(values_that_are_a_part_of_an_entry_are_written_alone),
        FIXTURE_TEST(an_empty_file_is_not_an_absent_one),
        FIXTURE_TEST(meta_values_come_back),
        FIXTURE_TEST(a_flipped_bit_in_any_record_is_refused_with_its_revision),
        FIXTURE_TEST(damage_of_state_format_and_directory_times_is_refused),
        FIXTURE_TEST(a_directory_without_times_is_refused),
        FIXTURE_TEST(records_that_do_not_ascend_are_refused),
        FIXTURE_TEST(a_missing_record_changes_the_state_hash),
        FIXTURE_TEST(a_record_without_its_directory_is_refused),
        FIXTURE_TEST(missing_or_short_content_is_refused),
        FIXTURE_TEST(records_that_break_the_rules_are_refused),
        FIXTURE_TEST(a_newer_format_is_told_from_damage),
        FIXTURE_TEST(content_that_rotted_is_not_handed_out),
        FIXTURE_TEST(a_record_that_rotted_after_the_start_is_not_handed_out),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
