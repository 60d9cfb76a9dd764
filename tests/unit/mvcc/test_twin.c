/* mvcc against its naive twin (twin.h). Random transactions run on a store in memory and on one on
 * disk at once; both are checkpointed, closed and crashed at random points (a crash is followed by
 * a replay of the lost entries, as from the log), and both must go on saying what the twin says. */
#include "twin.h"

#include <stdio.h>

#include "check.h"
#include "hash.h"
#include "mvcc/record.h"

enum { WORLDS = 2 };

/* ---- a store ---- */

struct world {
    const char *name;
    struct kv *kv;
    struct mvcc *m;
    struct kv_batch *out;
    bool written;  /* out is in the kv, but the mvcc doesn't know */
    char dir[128]; /* "": in memory */
};

static struct mvcc_key *parent_key(struct mvcc *m, const char *path, struct keel_slice *ret_name)
{
    const char *slash = strrchr(path, '/');
    char parent[PATH];

    twin_parent(path, parent);
    *ret_name = keel_slice_str(slash ? slash + 1 : path);
    return help_key(m, parent);
}

static void world_touch_parent(struct mvcc_txn *txn, struct mvcc *m, const struct op *op,
                               const char *path)
{
    struct keel_slice name;

    mvcc_touch_dir(txn, parent_key(m, path, &name), op->time);
}

static void world_put(struct mvcc_txn *txn, struct mvcc *m, const char *path,
                      struct mvcc_record record, bool new_content, const struct op *op,
                      uint32_t sub)
{
    struct keel_slice name;
    struct mvcc_key *parent = parent_key(m, path, &name);
    struct mvcc_value value = { 0 };

    if (new_content) {
        value.owner = twin_content((struct mvcc_revision){ mvcc_txn_revision(txn), sub }, op->size);
        value.bytes = keel_buf_slice(value.owner);
    }
    if (path[0] == '\0')
        mvcc_put_root(txn, &record);
    else
        mvcc_put(txn, parent, name, &record, new_content ? &value : NULL);
    assert_int_equal(record.revision.sub, sub);
    keel_buf_free(value.owner);
}

static void world_rename(struct mvcc_txn *txn, struct mvcc *m, const struct op *op, uint32_t sub)
{
    struct mvcc_key *from = help_key(m, op->path);
    struct mvcc_record record;

    assert_int_equal(mvcc_get(m, from, 0, &record), 0);
    record.ctime_ns = op->time;
    if (op->delete_first)
        mvcc_delete(txn, from, op->time, op->lease, true);
    world_put(txn, m, op->to, record, false, op, sub + op->delete_first);
    if (!op->delete_first)
        mvcc_delete(txn, from, op->time, op->lease, true);
    world_touch_parent(txn, m, op, op->path);
    world_touch_parent(txn, m, op, op->to);
}

static void world_write(struct mvcc_txn *txn, struct mvcc *m, const struct op *op, uint32_t sub)
{
    struct mvcc_key *key = help_key(m, op->path);
    struct mvcc_record record = twin_record(op, MVCC_FILE);
    bool exists = key != NULL && mvcc_get(m, key, 0, &record) == 0;

    if (exists)
        record.mtime_ns = record.ctime_ns = op->time;
    world_put(txn, m, op->path, record, true, op, sub);
    if (!exists)
        world_touch_parent(txn, m, op, op->path);
}

/* Returns how many sub revisions it took. */
static uint32_t world_op(struct mvcc_txn *txn, struct mvcc *m, const struct op *op, uint32_t sub)
{
    struct mvcc_record record;

    switch (op->kind) {
    case OP_WRITE:
        world_write(txn, m, op, sub);
        return 1;
    case OP_MKDIR:
    case OP_LINK:
        world_put(txn, m, op->path, twin_record(op, op->kind == OP_MKDIR ? MVCC_DIR : MVCC_SYMLINK),
                  op->kind == OP_LINK, op, sub);
        world_touch_parent(txn, m, op, op->path);
        return 1;
    case OP_DELETE:
        mvcc_delete(txn, help_key(m, op->path), op->time, op->lease, false);
        world_touch_parent(txn, m, op, op->path);
        return 1;
    case OP_RENAME:
        world_rename(txn, m, op, sub);
        return 2;
    case OP_CHMOD:
    case OP_UTIMES:
        assert_int_equal(mvcc_get(m, help_key(m, op->path), 0, &record), 0);
        if (op->kind == OP_CHMOD)
            record.mode = op->mode;
        else
            record.mtime_ns = op->size;
        record.ctime_ns = op->time;
        world_put(txn, m, op->path, record, false, op, sub);
        return 1;
    case OP_TOUCH:
        world_touch_parent(txn, m, op, op->path);
        return 0;
    case OP_COMPACT:
        mvcc_compact(txn, op->at);
        return 0;
    case OP_STEP:
        assert_int_equal(mvcc_compact_step(txn, op->size), op->result);
        return 0;
    case OP_YIELD:
        assert_int_equal(mvcc_compact_for(txn, op->size, UINT32_MAX) == MVCC_ROOM_ENOUGH,
                         op->result);
        return 0;
    }
    return 0;
}

static void world_apply(struct world *w, const struct entry *entry)
{
    uint64_t index = mvcc_applied_index(w->m) + 1;
    struct mvcc_txn *txn = mvcc_begin(w->m, index, 1 + index / 100);
    uint32_t sub = 0;

    for (size_t i = 0; i < entry->count; i++)
        sub += world_op(txn, w->m, &entry->ops[i], sub);
    mvcc_commit(txn);
    mvcc_read_end(w->m);
}

static void world_crash(struct world *w, const struct entry *log, size_t count)
{
    w->out = kv_batch_free(w->out);
    w->written = false;
    mvcc_close(w->m);
    if (w->dir[0] != '\0') {
        w->kv->ops->close(w->kv);
        w->kv = help_lmdb(w->dir);
    }
    w->m = help_open(w->kv);
    while (mvcc_applied_index(w->m) < count)
        world_apply(w, &log[mvcc_applied_index(w->m)]);
}

/* Moves a checkpoint on by a step, or begins one, or crashes. */
static void world_step(struct world *w, struct keel_rng *rng, const struct entry *log, size_t count)
{
    uint64_t dice = keel_rng_below(rng, 40);

    if (dice == 0) {
        world_crash(w, log, count);
    } else if (dice > 12) {
        return;
    } else if (w->out == NULL) {
        w->out = mvcc_checkpoint(w->m, NULL, NULL, 0);
        assert_int_equal(w->out->applied_index, count);
    } else if (!w->written) {
        assert_int_equal(w->kv->ops->write(w->kv, w->out), 0);
        w->written = true;
    } else {
        mvcc_checkpointed(w->m);
        w->out = kv_batch_free(w->out);
        w->written = false;
    }
}

/* ---- comparison ---- */

static void assert_same_record(const struct mvcc_record *got, const struct mvcc_record *want)
{
    struct keel_buf *a = mvcc_record_encode(got, keel_slice_of(NULL, 0));
    struct keel_buf *b = mvcc_record_encode(want, keel_slice_of(NULL, 0));

    assert_int_equal(a->len, b->len);
    assert_memory_equal(a->data, b->data, a->len);
    keel_buf_free(a);
    keel_buf_free(b);
}

static void check_content(struct world *w, const struct mvcc_record *record)
{
    struct keel_slice bytes;
    struct keel_buf *want = twin_content(record->content.at, record->content.length);

    assert_int_equal(mvcc_read(w->m, &record->content, &bytes), 0);
    assert_true(keel_slice_equal(bytes, keel_buf_slice(want)));
    keel_buf_free(want);
}

static void check_now(struct world *w, struct twin *t, const char *path,
                      const struct mvcc_record *got, const struct mvcc_record *want)
{
    struct mvcc_record expected = *want;

    if (twin_dir(t, path) != NULL) {
        expected.mtime_ns = twin_dir(t, path)->mtime;
        expected.ctime_ns = twin_dir(t, path)->ctime;
    }
    assert_same_record(got, &expected);
    assert_ptr_equal(mvcc_by_ino(w->m, got->ino), help_key(w->m, path));
}

static void check_record(struct world *w, struct twin *t, const char *path, uint64_t at)
{
    struct mvcc_key *key = help_key(w->m, path);
    struct version *want = twin_at(t, path, at ? at : UINT64_MAX);
    struct mvcc_record got;
    int err = key ? mvcc_get(w->m, key, at, &got) : KEEL_E_NOTFOUND;

    if (key != NULL && at != 0 && at < t->compacted) {
        assert_int_equal(err, KEEL_E_STALE);
        return;
    }
    if (at != 0 && at < t->compacted)
        return;
    assert_int_equal(err, want ? 0 : KEEL_E_NOTFOUND);
    if (want == NULL)
        return;
    if (at == 0)
        check_now(w, t, path, &got, &want->record);
    else
        assert_same_record(&got, &want->record);
    check_content(w, &got);
}

/* By its exact revision. */
static void check_version(struct world *w, struct twin *t, const struct version *v)
{
    struct mvcc_key *key = help_key(w->m, v->path);
    struct mvcc_record got;

    if (key == NULL) {
        assert_false(twin_askable(t, v));
        return;
    }
    int err = mvcc_get_revision(w->m, key, v->record.revision, &got);

    assert_int_equal(err, twin_askable(t, v) ? 0 : KEEL_E_STALE);
    if (err == 0)
        assert_same_record(&got, &v->record);
}

static int by_string(const void *a, const void *b)
{
    return strcmp(a, b);
}

/* The names in a directory at a revision, each with a newline. */
static void twin_list(struct twin *t, const char *dir, uint64_t at, struct keel_text *text)
{
    static char names[ENTRIES * OPS * 2][PATH];
    char parent[PATH];
    size_t count = 0;

    for (size_t i = 0; i < t->count; i++) {
        const char *path = t->versions[i].path;

        twin_parent(path, parent);
        if (path[0] != '\0' && strcmp(parent, dir) == 0 && twin_at(t, path, at) != NULL)
            snprintf(names[count++], PATH, "%s",
                     strrchr(path, '/') ? strrchr(path, '/') + 1 : path);
    }
    qsort(names, count, PATH, by_string);
    for (size_t i = 0; i < count; i++)
        if (i == 0 || strcmp(names[i], names[i - 1]) != 0)
            keel_text_printf(text, "%s\n", names[i]);
}

static void check_listing(struct world *w, struct twin *t, const char *dir, uint64_t at)
{
    struct keel_text got = { 0 }, want = { 0 };
    struct mvcc_key *dir_key = help_key(w->m, dir);
    struct mvcc_key *key = NULL;

    if (dir_key == NULL)
        return;
    keel_text_printf(&got, "in %s:\n", dir);
    keel_text_printf(&want, "in %s:\n", dir);
    if (at == 0 || at >= t->compacted)
        twin_list(t, dir, at ? at : UINT64_MAX, &want);
    for (;;) {
        struct keel_slice after = key ? mvcc_name(key) : keel_slice_of(NULL, 0);

        key = mvcc_next_child(w->m, dir_key, at, after);
        if (key == NULL)
            break;
        keel_text_append(&got, mvcc_name(key));
        keel_text_append(&got, keel_slice_str("\n"));
    }
    assert_string_equal(got.data, want.data);
    keel_text_free(&got);
    keel_text_free(&want);
}

static int print_revision(void *arg, struct mvcc_revision rev, bool tombstone)
{
    keel_text_printf(arg, "%llu.%u%s ", (unsigned long long)rev.main, rev.sub,
                     tombstone ? "t" : "");
    return 0;
}

static void check_history(struct world *w, struct twin *t, const char *path)
{
    struct keel_text got = { 0 }, want = { 0 };
    struct mvcc_key *key = help_key(w->m, path);

    keel_text_printf(&got, "%s: ", path);
    keel_text_printf(&want, "%s: ", path);
    if (key != NULL)
        mvcc_history(w->m, key, print_revision, &got);
    for (size_t i = t->count; i > 0; i--)
        if (strcmp(t->versions[i - 1].path, path) == 0 && twin_askable(t, &t->versions[i - 1]))
            print_revision(&want, t->versions[i - 1].record.revision,
                           t->versions[i - 1].record.tombstone);
    assert_string_equal(got.data, want.data);
    keel_text_free(&got);
    keel_text_free(&want);
}

/* The definitions of docs/format-store.md, taken literally. */
static void check_sums(struct world *w, struct twin *t)
{
    struct keel_hash128 hash = { 0 }, got = mvcc_state_hash(w->m);
    uint64_t live = 0;
    size_t contents;

    for (size_t i = 0; i < t->count; i++) {
        const struct version *v = &t->versions[i];

        if (v->gone)
            continue;
        struct keel_buf *keyed = record_encode_keyed(&v->record, keel_slice_str(v->path));

        hash = keel_hash128_add(hash, keel_hash128_of(keel_buf_slice(keyed)));
        keel_buf_free(keyed);
        live += twin_live(t, v->path) == v;
    }
    assert_memory_equal(&got, &hash, sizeof got);
    assert_int_equal(mvcc_quota_used(w->m), twin_quota(t, &contents));
    assert_int_equal(mvcc_live_keys(w->m), live);
    assert_int_equal(mvcc_compact_revision(w->m), t->compacted);
    assert_int_equal(mvcc_has_garbage(w->m), twin_has_garbage(t));
}

/* The kv has what is kept, and nothing else. */
static void check_tables(struct world *w, struct twin *t)
{
    size_t contents, records = 0;

    help_checkpoint(w->m, w->kv);
    for (size_t i = 0; i < t->count; i++)
        records += !t->versions[i].gone;
    twin_quota(t, &contents);
    assert_int_equal(help_entries(w->kv, KV_RECORDS), records);
    assert_int_equal(help_entries(w->kv, KV_CONTENT), contents);
    assert_int_equal(help_entries(w->kv, KV_DIRS), t->dir_count);
}

static void check_dir_counts(struct world *w, struct twin *t, const char *path)
{
    struct mvcc_dir_info info = mvcc_dir_info(help_key(w->m, path));
    uint32_t entries = 0, subdirs = 0;
    char parent[PATH];

    for (size_t i = 0; i < t->count; i++) {
        const struct version *v = &t->versions[i];

        twin_parent(v->path, parent);
        if (v->path[0] == '\0' || strcmp(parent, path) != 0 || twin_live(t, v->path) != v)
            continue;
        entries++;
        subdirs += v->record.kind == MVCC_DIR;
    }
    assert_int_equal(info.entries, entries);
    assert_int_equal(info.subdirs, subdirs);
    assert_true(info.mtime_ns == twin_dir(t, path)->mtime);
    assert_true(info.ctime_ns == twin_dir(t, path)->ctime);
}

/* ---- random operations that are allowed ---- */

static void random_path(struct keel_rng *rng, char *ret_path)
{
    static const char *const names[] = { "a", "b", "aa", "a b", "\xc3\xa4", "\xff\x01", ".x" };
    size_t depth = 1 + keel_rng_below(rng, 3), len = 0;

    ret_path[0] = '\0';
    for (size_t i = 0; i < depth; i++)
        len += (size_t)snprintf(ret_path + len, PATH - len, "%s%s", i ? "/" : "",
                                names[keel_rng_below(rng, KEEL_ARRAY_LEN(names))]);
}

static bool parent_lives(struct twin *t, const char *path)
{
    char parent[PATH];

    twin_parent(path, parent);
    return twin_dir(t, parent) != NULL;
}

static bool is_empty_dir(struct twin *t, const char *path)
{
    char parent[PATH];

    for (size_t i = 0; i < t->count; i++) {
        twin_parent(t->versions[i].path, parent);
        if (strcmp(parent, path) == 0 && twin_live(t, t->versions[i].path) == &t->versions[i])
            return false;
    }
    return true;
}

static bool op_is_allowed(struct twin *t, const struct op *op)
{
    struct version *live = twin_live(t, op->path), *target = twin_live(t, op->to);
    bool is_dir = live != NULL && live->record.kind == MVCC_DIR;

    switch (op->kind) {
    case OP_WRITE:
        return parent_lives(t, op->path) && (live == NULL || live->record.kind == MVCC_FILE);
    case OP_MKDIR:
    case OP_LINK:
        return parent_lives(t, op->path) && live == NULL;
    case OP_DELETE:
        return live != NULL && (!is_dir || is_empty_dir(t, op->path));
    case OP_RENAME:
        return live != NULL && !is_dir && strcmp(op->path, op->to) != 0 &&
               parent_lives(t, op->to) && (target == NULL || target->record.kind != MVCC_DIR);
    case OP_CHMOD:
    case OP_UTIMES:
        return live != NULL;
    case OP_TOUCH:
        return parent_lives(t, op->path);
    case OP_COMPACT:
    case OP_STEP:
    case OP_YIELD:
        return true;
    }
    return false;
}

/* Compaction follows the revision at a distance, and steps don't quite keep up. */
static void random_compaction(struct twin *t, struct keel_rng *rng, struct op *op)
{
    uint64_t behind = keel_rng_below(rng, 60);

    op->at = behind < t->revision ? t->revision - behind : 1;
    if (op->kind == OP_STEP)
        op->size = 1 + (uint32_t)keel_rng_below(rng, 6);
    if (op->kind == OP_YIELD)
        op->size = (uint32_t)keel_rng_below(rng, 1500);
}

static bool random_op(struct twin *t, struct keel_rng *rng, bool compacting, struct op *ret_op)
{
    static const enum op_kind mix[] = { OP_COMPACT, OP_STEP,   OP_STEP,   OP_YIELD,  OP_WRITE,
                                        OP_WRITE,   OP_WRITE,  OP_WRITE,  OP_MKDIR,  OP_MKDIR,
                                        OP_LINK,    OP_DELETE, OP_RENAME, OP_RENAME, OP_CHMOD,
                                        OP_UTIMES,  OP_TOUCH };
    static uint64_t next_ino = 100;
    size_t first = compacting ? 0 : 4;

    for (int attempt = 0; attempt < 30; attempt++) {
        struct op op = { .kind = mix[first + keel_rng_below(rng, KEEL_ARRAY_LEN(mix) - first)],
                         .ino = next_ino++,
                         .lease = keel_rng_below(rng, 3),
                         .time = (int64_t)keel_rng_below(rng, 1000),
                         .size = (uint32_t)keel_rng_below(rng, 4) * 100,
                         .mode = (uint16_t)keel_rng_below(rng, 010000),
                         .delete_first = keel_rng_below(rng, 2) == 0 };

        random_path(rng, op.path);
        random_path(rng, op.to);
        if ((op.kind == OP_CHMOD || op.kind == OP_UTIMES) && keel_rng_below(rng, 4) == 0)
            op.path[0] = '\0';
        if (op.kind == OP_WRITE && keel_rng_below(rng, 10) == 0)
            op.size = 20000;
        random_compaction(t, rng, &op);
        if (!op_is_allowed(t, &op))
            continue;
        *ret_op = op;
        return true;
    }
    return false;
}

/* Applies to the twin as it goes: each operation has to be allowed after those before it. */
static void random_entry(struct twin *t, struct keel_rng *rng, bool compacting,
                         struct entry *ret_entry)
{
    size_t count = keel_rng_below(rng, OPS + 1);

    ret_entry->count = 0;
    for (size_t i = 0; i < count; i++) {
        if (!random_op(t, rng, compacting, &ret_entry->ops[ret_entry->count]))
            continue;
        twin_op(t, &ret_entry->ops[ret_entry->count++]);
    }
    twin_commit(t);
}

/* ---- the whole ---- */

static void check_world(struct world *w, struct twin *t, struct keel_rng *rng)
{
    char path[PATH];
    uint64_t at = 1 + keel_rng_below(rng, t->revision);

    assert_int_equal(mvcc_revision(w->m), t->revision);
    for (int i = 0; i < 4; i++) {
        random_path(rng, path);
        check_record(w, t, path, at);
        check_record(w, t, path, 0);
        check_history(w, t, path);
        check_listing(w, t, path, at);
        check_version(w, t, &t->versions[keel_rng_below(rng, t->count)]);
    }
    check_record(w, t, "", 0);
    check_listing(w, t, "", at);
    check_listing(w, t, "", 0);
    mvcc_read_end(w->m);
}

static void check_all(struct world *w, struct twin *t)
{
    for (size_t i = 0; i < t->count; i++) {
        check_record(w, t, t->versions[i].path, t->versions[i].record.revision.main);
        check_record(w, t, t->versions[i].path, 0);
        check_version(w, t, &t->versions[i]);
    }
    for (size_t i = 0; i < t->dir_count; i++)
        check_dir_counts(w, t, t->dirs[i].path);
    check_sums(w, t);
    mvcc_read_end(w->m);
}

static void make_worlds(struct world *worlds)
{
    worlds[0] = (struct world){ .name = "mem", .kv = kv_mem_new() };
    worlds[1] = (struct world){ .name = "lmdb" };
    help_dir_new(worlds[1].dir, sizeof worlds[1].dir);
    worlds[1].kv = help_lmdb(worlds[1].dir);
    for (size_t i = 0; i < WORLDS; i++)
        worlds[i].m = help_open(worlds[i].kv);
}

static void end_worlds(struct world *worlds)
{
    for (size_t i = 0; i < WORLDS; i++) {
        kv_batch_free(worlds[i].out);
        mvcc_close(worlds[i].m);
        worlds[i].kv->ops->close(worlds[i].kv);
    }
    help_dir_remove(worlds[1].dir);
}

static size_t gone_of(const struct twin *t)
{
    size_t gone = 0;

    for (size_t i = 0; i < t->count; i++)
        gone += t->versions[i].gone;
    return gone;
}

static void run(uint64_t seed, bool compacting)
{
    struct world worlds[WORLDS];
    struct twin *t = keel_calloc(1, sizeof *t);
    struct entry *log = keel_calloc(ENTRIES, sizeof *log);
    struct mvcc_record root = { .kind = MVCC_DIR, .mode = 0755, .ino = 1 };
    struct keel_rng rng;

    keel_rng_seed(&rng, seed);
    twin_put(t, "", root, false, 0);
    twin_commit(t);
    make_worlds(worlds);
    for (size_t i = 0; i < ENTRIES; i++) {
        random_entry(t, &rng, compacting, &log[i]);
        for (size_t k = 0; k < WORLDS; k++) {
            world_apply(&worlds[k], &log[i]);
            world_step(&worlds[k], &rng, log, i + 1);
            check_world(&worlds[k], t, &rng);
        }
        struct keel_hash128 a = mvcc_state_hash(worlds[0].m), b = mvcc_state_hash(worlds[1].m);

        assert_memory_equal(&a, &b, sizeof a);
    }
    for (size_t k = 0; k < WORLDS; k++) {
        check_all(&worlds[k], t);
        world_crash(&worlds[k], log, ENTRIES);
        check_all(&worlds[k], t);
        check_tables(&worlds[k], t);
    }
    assert_true(t->revision > ENTRIES / 3);
    assert_true(!compacting || gone_of(t) > ENTRIES / 3);
    end_worlds(worlds);
    free(log);
    free(t);
}

static void mvcc_says_what_its_twin_says_whatever_is_done(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 2; seed++)
        run(seed, false);
}

static void mvcc_loses_what_its_twin_loses(void **state)
{
    (void)state;
    for (uint64_t seed = 11; seed <= 14; seed++)
        run(seed, true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mvcc_says_what_its_twin_says_whatever_is_done),
        cmocka_unit_test(mvcc_loses_what_its_twin_loses),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
