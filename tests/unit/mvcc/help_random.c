/* Random histories of a keyspace, comparison of two, and snapshots between stores. See help.h. */
#include "help.h"

#include <stdio.h>

#include "check.h"

enum { PATH = 16, DEPTH = 3 };

static const char *const names[] = { "a", "b", "aa", "\xff" };

/* ---- histories ---- */

static struct mvcc_key *random_key(struct mvcc *m, struct keel_rng *rng, struct keel_slice *ret_dir,
                                   struct mvcc_key **ret_parent)
{
    struct mvcc_key *parent = mvcc_root(m);
    size_t depth = keel_rng_below(rng, DEPTH);

    while (depth-- > 0) {
        struct keel_slice name = keel_slice_str(names[keel_rng_below(rng, KEEL_ARRAY_LEN(names))]);
        struct mvcc_key *key = mvcc_child(m, parent, name);

        if (key == NULL || mvcc_live_ino(key) == 0 || mvcc_live_kind(key) != MVCC_DIR)
            break;
        parent = key;
    }
    *ret_dir = keel_slice_str(names[keel_rng_below(rng, KEEL_ARRAY_LEN(names))]);
    *ret_parent = parent;
    return mvcc_child(m, parent, *ret_dir);
}

static bool is_live(const struct mvcc_key *key)
{
    return key != NULL && mvcc_live_ino(key) != 0;
}

static bool is_dir(const struct mvcc_key *key)
{
    return is_live(key) && mvcc_live_kind(key) == MVCC_DIR;
}

static void put_content(struct mvcc_txn *txn, struct mvcc_key *parent, struct keel_slice name,
                        struct mvcc_record *record, struct keel_rng *rng)
{
    static const size_t sizes[] = { 0, 10, 300, 5000, 100000 };
    struct mvcc_value value = { 0 };

    value.owner = keel_buf_new(
        record->kind == MVCC_SYMLINK ? 20 : sizes[keel_rng_below(rng, KEEL_ARRAY_LEN(sizes))]);
    for (size_t i = 0; i < value.owner->len; i++)
        value.owner->data[i] = (uint8_t)(i % 251 + record->ino);
    value.bytes = keel_buf_slice(value.owner);
    mvcc_put(txn, parent, name, record, &value);
    keel_buf_free(value.owner);
}

static void random_create(struct mvcc *m, struct mvcc_txn *txn, struct mvcc_key *parent,
                          struct keel_slice name, struct keel_rng *rng)
{
    static const enum mvcc_kind kinds[] = { MVCC_FILE, MVCC_FILE, MVCC_SYMLINK, MVCC_DIR };
    struct mvcc_record record = {
        .kind = kinds[keel_rng_below(rng, KEEL_ARRAY_LEN(kinds))],
        .mode = (uint16_t)keel_rng_below(rng, 01000),
        .ino = keel_rng_next(rng) >> 8 | 2,
        .mtime_ns = (int64_t)keel_rng_below(rng, 1000),
        .ctime_ns = (int64_t)keel_rng_below(rng, 1000),
    };

    (void)m;
    if (record.kind == MVCC_DIR)
        mvcc_put(txn, parent, name, &record, NULL);
    else
        put_content(txn, parent, name, &record, rng);
    mvcc_touch_dir(txn, parent, (int64_t)keel_rng_below(rng, 1000));
}

static void random_move(struct mvcc *m, struct mvcc_txn *txn, struct mvcc_key *key,
                        struct keel_rng *rng)
{
    struct mvcc_record record;
    struct mvcc_key *parent;
    struct keel_slice name;
    struct mvcc_key *to = random_key(m, rng, &name, &parent);

    if (to == key || is_dir(to) || is_dir(key))
        return;
    assert_int_equal(mvcc_get(m, key, 0, &record), 0);
    mvcc_put(txn, parent, name, &record, NULL);
    mvcc_delete(txn, key, 5, 0, true);
}

static void random_change(struct mvcc *m, struct mvcc_txn *txn, struct mvcc_key *key,
                          struct mvcc_key *parent, struct keel_slice name, struct keel_rng *rng)
{
    struct mvcc_record record;

    assert_int_equal(mvcc_get(m, key, 0, &record), 0);
    record.mode = (uint16_t)keel_rng_below(rng, 01000);
    record.ctime_ns++;
    if (record.kind == MVCC_FILE && keel_rng_below(rng, 2) == 0)
        put_content(txn, parent, name, &record, rng);
    else
        mvcc_put(txn, parent, name, &record, NULL);
}

static void random_op(struct mvcc *m, struct mvcc_txn *txn, struct keel_rng *rng)
{
    struct keel_slice name;
    struct mvcc_key *parent;
    struct mvcc_key *key = random_key(m, rng, &name, &parent);

    if (!is_live(key)) {
        random_create(m, txn, parent, name, rng);
        return;
    }
    switch (keel_rng_below(rng, 4)) {
    case 0:
        if (!is_dir(key) || mvcc_dir_info(key).entries == 0)
            mvcc_delete(txn, key, 7, keel_rng_below(rng, 3), false);
        break;
    case 1:
        random_move(m, txn, key, rng);
        break;
    default:
        random_change(m, txn, key, parent, name, rng);
        break;
    }
}

void help_random_entry(struct mvcc *m, struct keel_rng *rng)
{
    struct mvcc_txn *txn = mvcc_begin(m, mvcc_applied_index(m) + 1, mvcc_applied_term(m) + 1);
    uint64_t ops = keel_rng_below(rng, 4);

    while (ops-- > 0)
        random_op(m, txn, rng);
    mvcc_commit(txn);
    mvcc_read_end(m);
}

/* ---- comparison ---- */

static int print_revision(void *arg, struct mvcc_revision rev, bool tombstone)
{
    keel_text_printf(arg, "%llu.%u%s ", (unsigned long long)rev.main, rev.sub,
                     tombstone ? "t" : "");
    return 0;
}

static void print_record(struct mvcc *m, struct mvcc_key *key, uint64_t at, struct keel_text *text)
{
    struct mvcc_record record;
    struct keel_slice content;
    int err = mvcc_get(m, key, at, &record);

    if (err != 0) {
        keel_text_printf(text, "at %llu: %d\n", (unsigned long long)at, err);
        return;
    }
    struct keel_buf *bytes = mvcc_record_encode(&record, keel_slice_of(NULL, 0));

    assert_int_equal(mvcc_read(m, &record.content, &content), 0);
    keel_text_printf(text, "at %llu: %llx %llx\n", (unsigned long long)at,
                     (unsigned long long)keel_hash64(keel_buf_slice(bytes)),
                     (unsigned long long)keel_hash64(content));
    keel_buf_free(bytes);
}

static void print_children(struct mvcc *m, struct mvcc_key *key, uint64_t at,
                           struct keel_text *text)
{
    struct mvcc_key *child = NULL;
    struct keel_slice after = keel_slice_of(NULL, 0);

    while ((child = mvcc_next_child(m, key, at, after)) != NULL) {
        after = mvcc_name(child);
        keel_text_append(text, after);
        keel_text_printf(text, ", ");
    }
    keel_text_printf(text, "\n");
}

static void print_key(struct mvcc *m, struct mvcc_key *key, struct keel_text *text)
{
    struct mvcc_revision mod = mvcc_mod_revision(key);

    mvcc_path(key, text);
    keel_text_printf(text, ": %llu.%u ino %llu, ", (unsigned long long)mod.main, mod.sub,
                     (unsigned long long)mvcc_live_ino(key));
    mvcc_history(m, key, print_revision, text);
    for (uint64_t at = 0; at <= mvcc_revision(m); at++) {
        print_record(m, key, at, text);
        print_children(m, key, at, text);
    }
    if (is_live(key))
        assert_ptr_equal(mvcc_by_ino(m, mvcc_live_ino(key)), key);
    if (!is_dir(key))
        return;
    struct mvcc_dir_info info = mvcc_dir_info(key);

    keel_text_printf(text, "%lld %lld %u %u\n", (long long)info.mtime_ns, (long long)info.ctime_ns,
                     info.entries, info.subdirs);
}

static void print_below(struct mvcc *m, struct mvcc_key *key, int depth, struct keel_text *text)
{
    print_key(m, key, text);
    for (size_t i = 0; i < KEEL_ARRAY_LEN(names) && depth > 0; i++) {
        struct mvcc_key *child = mvcc_child(m, key, keel_slice_str(names[i]));

        if (child != NULL)
            print_below(m, child, depth - 1, text);
    }
}

static void print_all(struct mvcc *m, struct keel_text *text)
{
    struct keel_hash128 hash = mvcc_state_hash(m);

    keel_text_printf(
        text, "revision %llu index %llu term %llu hash %llx %llx live %llu quota %llu\n",
        (unsigned long long)mvcc_revision(m), (unsigned long long)mvcc_applied_index(m),
        (unsigned long long)mvcc_applied_term(m), (unsigned long long)hash.low,
        (unsigned long long)hash.high, (unsigned long long)mvcc_live_keys(m),
        (unsigned long long)mvcc_quota_used(m));
    keel_text_printf(text, "compacted at %llu, %s\n", (unsigned long long)mvcc_compact_revision(m),
                     mvcc_has_garbage(m) ? "with garbage" : "without garbage");
    print_below(m, mvcc_root(m), DEPTH, text);
    mvcc_read_end(m);
}

void help_assert_same(struct mvcc *a, struct mvcc *b)
{
    struct keel_text text_a = { 0 }, text_b = { 0 };

    print_all(a, &text_a);
    print_all(b, &text_b);
    assert_string_equal(text_a.data, text_b.data);
    keel_text_free(&text_a);
    keel_text_free(&text_b);
}

/* Each entry as its lengths and bytes. */
static int print_entry(void *arg, struct keel_slice key, struct keel_slice value)
{
    keel_text_printf(arg, "%zu %zu ", key.len, value.len);
    keel_text_append(arg, key);
    keel_text_append(arg, value);
    return 0;
}

void help_assert_same_tables(struct kv *a, struct kv *b)
{
    struct kv_read *read_a = a->ops->read_begin(a), *read_b = b->ops->read_begin(b);
    struct keel_slice start = keel_slice_of(NULL, 0);

    for (enum kv_table t = 0; t < KV_TABLES; t++) {
        struct keel_text text_a = { 0 }, text_b = { 0 };

        assert_int_equal(a->ops->scan(read_a, t, start, print_entry, &text_a), 0);
        assert_int_equal(b->ops->scan(read_b, t, start, print_entry, &text_b), 0);
        assert_int_equal(text_a.len, text_b.len);
        assert_true(text_a.len == 0 || memcmp(text_a.data, text_b.data, text_a.len) == 0);
        keel_text_free(&text_a);
        keel_text_free(&text_b);
    }
    a->ops->read_end(read_a);
    b->ops->read_end(read_b);
}

/* ---- snapshots ---- */

struct keel_buf *help_snapshot(struct kv *kv, struct snapshot_info *ret_info)
{
    struct snapshot_writer *writer;
    struct keel_text stream = { 0 };
    struct keel_slice piece;

    assert_int_equal(snapshot_writer_new(kv, 77, &writer), 0);
    do {
        assert_int_equal(snapshot_writer_next(writer, &piece), 0);
        keel_text_append(&stream, piece);
    } while (piece.len > 0);
    *ret_info = *snapshot_writer_info(writer);
    assert_int_equal(ret_info->bytes, stream.len);
    snapshot_writer_free(writer);
    struct keel_buf *buf = keel_buf_copy(keel_slice_of(stream.data, stream.len));

    keel_text_free(&stream);
    return buf;
}

static int write_batch(void *arg, struct kv_batch *batch_take)
{
    struct kv *kv = arg;
    int err = kv->ops->write(kv, batch_take);

    kv_batch_free(batch_take);
    return err;
}

void help_install(struct keel_buf *stream, struct kv *kv, struct keel_rng *rng)
{
    struct snapshot_reader *reader = snapshot_reader_new(write_batch, kv);
    struct snapshot_info info;
    char why[256] = "";

    for (size_t at = 0; at < stream->len;) {
        size_t left = stream->len - at;
        size_t len = 1 + keel_rng_below(rng, keel_rng_below(rng, 3) == 0 ? 200000 : 40);

        len = len < left ? len : left;
        if (snapshot_reader_feed(reader, keel_slice_of(stream->data + at, len), why, sizeof why))
            fail_msg("%s", why);
        at += len;
    }
    if (snapshot_reader_finish(reader, &info, why, sizeof why) != 0)
        fail_msg("%s", why);
    assert_int_equal(info.bytes, stream->len);
    snapshot_reader_free(reader);
}
