/* See help.h. */
#include "help.h"

#include <dirent.h>
#include <stdio.h>
#include <unistd.h>

#include "check.h"

void help_dir_new(char *ret_dir, size_t size)
{
    const char *tmp = getenv("TMPDIR");

    snprintf(ret_dir, size, "%s/keel-mvcc-XXXXXX", tmp ? tmp : "/tmp");
    assert_non_null(mkdtemp(ret_dir));
}

void help_dir_remove(const char *dir)
{
    DIR *d = opendir(dir);
    struct dirent *entry;

    assert_non_null(d);
    while ((entry = readdir(d)) != NULL)
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            assert_int_equal(unlinkat(dirfd(d), entry->d_name, 0), 0);
    closedir(d);
    assert_int_equal(rmdir(dir), 0);
}

struct kv *help_lmdb(const char *dir)
{
    struct kv *kv = NULL;
    char why[256] = "";

    if (kv_lmdb_open(dir, UINT64_C(1) << 30, &kv, why, sizeof why) != 0)
        fail_msg("%s", why);
    return kv;
}

struct mvcc *help_open(struct kv *kv)
{
    struct mvcc *m = NULL;
    char why[256] = "";

    if (mvcc_open(kv, &m, why, sizeof why) != 0)
        fail_msg("%s", why);
    return m;
}

void help_checkpoint(struct mvcc *m, struct kv *kv)
{
    struct kv_batch *batch = mvcc_checkpoint(m, NULL, NULL, 0);

    assert_int_equal(kv->ops->write(kv, batch), 0);
    mvcc_checkpointed(m);
    kv_batch_free(batch);
}

struct mvcc *help_reopen(struct mvcc *m, struct kv *kv)
{
    mvcc_close(m);
    return help_open(kv);
}

/* ---- paths ---- */

static struct mvcc_key *parent_of(struct mvcc *m, const char *path, struct keel_slice *ret_name)
{
    struct mvcc_key *key = mvcc_root(m);
    const char *slash;

    while (key != NULL && (slash = strchr(path, '/')) != NULL) {
        key = mvcc_child(m, key, keel_slice_of(path, (size_t)(slash - path)));
        path = slash + 1;
    }
    *ret_name = keel_slice_str(path);
    return key;
}

int help_set_up(void **state)
{
    struct fixture *f = keel_calloc(1, sizeof *f);

    f->kv = kv_mem_new();
    f->m = help_open(f->kv);
    *state = f;
    return 0;
}

int help_tear_down(void **state)
{
    struct fixture *f = *state;

    mvcc_close(f->m);
    f->kv->ops->close(f->kv);
    free(f);
    return 0;
}

struct mvcc_key *help_key(struct mvcc *m, const char *path)
{
    struct keel_slice name;
    struct mvcc_key *parent = parent_of(m, path, &name);

    if (parent == NULL || name.len == 0)
        return parent;
    return mvcc_child(m, parent, name);
}

static uint64_t free_ino(const struct mvcc *m)
{
    return 1000 + mvcc_applied_index(m);
}

static struct mvcc_key *put(struct mvcc *m, const char *path, enum mvcc_kind kind,
                            const struct mvcc_value *value)
{
    struct mvcc_record record = { 0 };
    struct keel_slice name;
    struct mvcc_key *parent = parent_of(m, path, &name);
    struct mvcc_key *key = help_key(m, path);

    assert_non_null(parent);
    if (key == NULL || mvcc_get(m, key, 0, &record) != 0)
        record = (struct mvcc_record){ .kind = kind, .mode = 0644, .ino = free_ino(m) };
    struct mvcc_txn *txn = mvcc_begin(m, mvcc_applied_index(m) + 1, 1);

    key = mvcc_put(txn, parent, name, &record, value);
    mvcc_commit(txn);
    return key;
}

struct mvcc_key *help_write(struct mvcc *m, const char *path, const char *text)
{
    struct mvcc_value value = { .owner = keel_buf_copy(keel_slice_str(text)) };

    value.bytes = keel_buf_slice(value.owner);
    struct mvcc_key *key = put(m, path, MVCC_FILE, &value);

    keel_buf_free(value.owner);
    return key;
}

struct mvcc_key *help_mkdir(struct mvcc *m, const char *path)
{
    return put(m, path, MVCC_DIR, NULL);
}

void help_delete(struct mvcc *m, const char *path)
{
    struct mvcc_txn *txn = mvcc_begin(m, mvcc_applied_index(m) + 1, 1);

    mvcc_delete(txn, help_key(m, path), 0, 0, false);
    mvcc_commit(txn);
}

struct mvcc_txn *help_begin(struct mvcc *m)
{
    uint64_t term = mvcc_applied_term(m);

    return mvcc_begin(m, mvcc_applied_index(m) + 1, term > 0 ? term : 1);
}

void help_compact(struct mvcc *m, uint64_t at)
{
    struct mvcc_txn *txn = help_begin(m);

    mvcc_compact(txn, at);
    mvcc_commit(txn);
}

uint32_t help_compact_step(struct mvcc *m, uint32_t budget)
{
    struct mvcc_txn *txn = help_begin(m);
    uint32_t taken = mvcc_compact_step(txn, budget);

    mvcc_commit(txn);
    mvcc_read_end(m);
    return taken;
}

void help_compact_all(struct mvcc *m, uint64_t at)
{
    help_compact(m, at);
    while (help_compact_step(m, 2) > 0)
        ;
    assert_false(mvcc_has_garbage(m));
}

const char *help_read(struct mvcc *m, const char *path, uint64_t at)
{
    static char text[256];
    struct mvcc_record record;
    struct mvcc_key *key = help_key(m, path);
    struct keel_slice bytes;

    if (key == NULL || mvcc_get(m, key, at, &record) == KEEL_E_NOTFOUND)
        return "(none)";
    assert_int_equal(mvcc_read(m, &record.content, &bytes), 0);
    assert_true(bytes.len < sizeof text);
    if (bytes.len > 0)
        memcpy(text, bytes.data, bytes.len);
    text[bytes.len] = '\0';
    mvcc_read_end(m);
    return text;
}

static int count_entry(void *arg, struct keel_slice key, struct keel_slice value)
{
    size_t *count = arg;

    (void)key;
    (void)value;
    ++*count;
    return 0;
}

size_t help_entries(struct kv *kv, enum kv_table table)
{
    struct kv_read *read = kv->ops->read_begin(kv);
    size_t count = 0;

    assert_int_equal(kv->ops->scan(read, table, keel_slice_of(NULL, 0), count_entry, &count), 0);
    kv->ops->read_end(read);
    return count;
}
