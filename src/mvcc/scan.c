/* The rebuild at start: one pass over the records in revision order, replayed into the index under
 * the rules that wrote them, then the directories' times. Anything that those rules could not have
 * written is damage, and named.
 *
 * Of each key the oldest records may be gone, if what followed them is not behind the compaction
 * point. So up to that point a record may be the first of its key without having created it; and
 * its directory may be one whose first record comes later. That one is presumed until then:
 *
 *     conf 5.0 (gone)    conf/db 7.0    conf 9.0 (chmod)         compacted at 9 or later
 *
 * 7.0 makes a key conf, presumed since 7; 9.0 must be a directory's that was created at 7 or
 * before. Behind the point nothing is presumed any more. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "bytes.h"
#include "check.h"
#include "err.h"
#include "hash.h"
#include "mvcc/store.h"

struct scan {
    struct mvcc *m;
    struct kv_read *read;
    char *why;
    size_t why_size;
    struct mvcc_revision rev; /* of the record at hand; 0.0 before the first */
    struct keel_hash128 hash;
    uint64_t dirs;     /* of KV_DIRS */
    uint64_t presumed; /* directories whose first record is still to come */

    /* The directory of the last record: most records have the same one. */
    struct mvcc_key *parent;
    size_t parent_path_len;
    uint8_t parent_path[KEEL_PATH_MAX];
};

static int damaged(struct scan *s, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

static int damaged(struct scan *s, const char *fmt, ...)
{
    char text[160];
    va_list args;

    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    snprintf(s->why, s->why_size, "the store is damaged: record %llu.%u: %s",
             (unsigned long long)s->rev.main, s->rev.sub, text);
    return KEEL_E_CORRUPT;
}

/* ---- the key of a path ---- */

static bool before_point(const struct scan *s)
{
    return s->rev.main <= s->m->compact_revision;
}

/* Whether keys can be in it at this point. */
static bool is_dir_here(struct scan *s, struct mvcc_key *key)
{
    if (index_is_live_dir(key))
        return true;
    if (key->count > 0 || !before_point(s))
        return false;
    index_make_dir(key);
    if (key->dir->presumed == 0) {
        key->dir->presumed = s->rev.main;
        s->presumed++;
    }
    return true;
}

/* NULL: one on the way is no directory at this point. */
static struct mvcc_key *walk(struct scan *s, struct keel_slice path)
{
    struct mvcc_key *key = s->m->index.root;

    while (is_dir_here(s, key) && path.len > 0) {
        const uint8_t *slash = memchr(path.data, '/', path.len);
        size_t len = slash ? (size_t)(slash - path.data) : path.len;

        key = index_add_child(key, keel_slice_of(path.data, len));
        path = slash ? keel_slice_of(slash + 1, path.len - len - 1) : keel_slice_of(NULL, 0);
    }
    return is_dir_here(s, key) ? key : NULL;
}

static struct mvcc_key *find_parent(struct scan *s, struct keel_slice path)
{
    if (s->parent != NULL &&
        keel_slice_equal(path, keel_slice_of(s->parent_path, s->parent_path_len)))
        return is_dir_here(s, s->parent) ? s->parent : NULL;
    struct mvcc_key *parent = walk(s, path);

    if (parent == NULL)
        return NULL;
    s->parent = parent;
    s->parent_path_len = path.len;
    if (path.len > 0)
        memcpy(s->parent_path, path.data, path.len);
    return parent;
}

/* The key, made if it is new; NULL when its parent is no directory at this point. */
static struct mvcc_key *find_key(struct scan *s, struct keel_slice path)
{
    const uint8_t *slash = path.len > 0 ? memrchr(path.data, '/', path.len) : NULL;
    size_t parent_len = slash ? (size_t)(slash - path.data) : 0;
    size_t name_at = slash ? parent_len + 1 : 0;

    if (path.len == 0)
        return s->m->index.root;
    struct mvcc_key *parent = find_parent(s, keel_slice_of(path.data, parent_len));

    if (parent == NULL)
        return NULL;
    return index_add_child(parent, keel_slice_of(path.data + name_at, path.len - name_at));
}

/* ---- the rules ---- */

static int check_tombstone(struct scan *s, const struct mvcc_key *key,
                           const struct mvcc_record *record)
{
    if (key->parent == NULL)
        return damaged(s, "the root is deleted");
    if (key->ino != record->ino || key->kind != record->kind)
        return damaged(s, "a tombstone for what was not there (inode %llu)",
                       (unsigned long long)record->ino);
    if (key->kind == MVCC_DIR && key->dir->entries > 0)
        return damaged(s, "a directory with %u entries is deleted", key->dir->entries);
    return 0;
}

/* The first kept record of a key, where those before it may be gone: its version and
 * create_revision are taken as they are. */
static int check_first(struct scan *s, struct mvcc_key *key, const struct mvcc_record *record)
{
    uint64_t presumed = key->dir != NULL ? key->dir->presumed : 0;

    bool same_main = record->create_revision == record->revision.main;

    if (record->version == 1 ? !same_main : same_main && record->revision.sub == 0)
        return damaged(s, "version %llu, but create_revision %llu",
                       (unsigned long long)record->version,
                       (unsigned long long)record->create_revision);
    if (presumed == 0)
        return 0;
    if (record->kind != MVCC_DIR || record->create_revision > presumed)
        return damaged(s, "it is not the directory that there was at %llu",
                       (unsigned long long)presumed);
    key->dir->presumed = 0;
    s->presumed--;
    return 0;
}

static int check_next(struct scan *s, const struct mvcc_key *key, const struct mvcc_record *record)
{
    uint64_t version = index_next_version(key);
    uint64_t create = index_next_create(key, record->revision.main);

    if (record->version == version && record->create_revision == create)
        return 0;
    return damaged(s, "version %llu, create_revision %llu where %llu, %llu are due",
                   (unsigned long long)record->version, (unsigned long long)record->create_revision,
                   (unsigned long long)version, (unsigned long long)create);
}

static int check_put(struct scan *s, struct mvcc_key *key, const struct mvcc_record *record)
{
    bool is_dir = record->kind == MVCC_DIR;

    if (key->parent == NULL && (!is_dir || record->ino != MVCC_ROOT_INO))
        return damaged(s, "the root is not the root directory");
    if (key->ino != 0 && is_dir != (key->kind == MVCC_DIR))
        return damaged(s, "a directory and something else replace one another");
    if (key->count == 0 && before_point(s))
        return check_first(s, key, record);
    return check_next(s, key, record);
}

/* The length stands in the kv's own structure: no page of the content is read. */
static int check_content(struct scan *s, const struct mvcc_content *content)
{
    uint8_t key[MVCC_REVISION_KEY_LEN];
    struct keel_slice bytes;

    if (content->length == 0)
        return 0;
    revision_key_encode(content->at, key);
    int err = s->m->kv->ops->get(s->read, KV_CONTENT, keel_slice_of(key, sizeof key), &bytes);

    if (err != 0)
        return damaged(s, "its content of revision %llu.%u is missing",
                       (unsigned long long)content->at.main, content->at.sub);
    if (bytes.len != content->length)
        return damaged(s, "its content has %zu bytes instead of %u", bytes.len, content->length);
    return 0;
}

/* The record that wrote it has been taken off, as has every other that referred to it before. */
static bool is_orphaned(struct scan *s, const struct mvcc_record *record)
{
    const struct mvcc_content *content = &record->content;
    uint8_t key[MVCC_REVISION_KEY_LEN];
    struct keel_slice bytes;

    if (content->length == 0 || revision_compare(content->at, record->revision) == 0)
        return false;
    if (contents_has(&s->m->index.contents, content->at))
        return false;
    revision_key_encode(content->at, key);
    return s->m->kv->ops->get(s->read, KV_RECORDS, keel_slice_of(key, sizeof key), &bytes) != 0;
}

static int check_order(struct scan *s, struct mvcc_revision rev)
{
    struct mvcc_revision last = s->rev;

    s->rev = rev;
    if (revision_compare(last, rev) >= 0)
        return damaged(s, "it stands behind %llu.%u", (unsigned long long)last.main, last.sub);
    if (rev.main > s->m->revision)
        return damaged(s, "it is newer than the store's revision %llu",
                       (unsigned long long)s->m->revision);
    if (rev.main != last.main && s->m->index.moved > 0)
        return damaged(s, "before it, an inode is at two names");
    if (!before_point(s) && s->presumed > 0)
        return damaged(s, "before it, %llu directories have no record",
                       (unsigned long long)s->presumed);
    return 0;
}

static int decode(struct scan *s, struct keel_slice value, struct mvcc_record *ret_record,
                  struct keel_slice *ret_path)
{
    int err = mvcc_record_decode(value, ret_record, ret_path);

    if (err == KEEL_E_NEWER) {
        snprintf(s->why, s->why_size, "record %llu.%u was written by a newer keelfs",
                 (unsigned long long)s->rev.main, s->rev.sub);
        return err;
    }
    if (err != 0)
        return damaged(s, "its bytes fail their check");
    if (revision_compare(s->rev, ret_record->revision) != 0)
        return damaged(s, "it says that it is %llu.%u",
                       (unsigned long long)ret_record->revision.main, ret_record->revision.sub);
    return 0;
}

static int scan_record(void *arg, struct keel_slice key, struct keel_slice value)
{
    struct scan *s = arg;
    struct mvcc_revision rev;
    struct mvcc_record record;
    struct keel_slice path;

    if (revision_key_decode(key, &rev) != 0)
        return damaged(s, "what follows it has a key that is no revision");
    int err = check_order(s, rev);

    if (err != 0)
        return err;
    err = decode(s, value, &record, &path);
    if (err != 0)
        return err;
    struct mvcc_key *at = find_key(s, path);

    if (at == NULL)
        return damaged(s, "its directory does not exist at that revision");
    err = record.tombstone ? check_tombstone(s, at, &record) : check_put(s, at, &record);
    if (err == 0)
        err = check_content(s, &record.content);
    if (err != 0)
        return err;
    s->hash = keel_hash128_add(s->hash, store_hash_of(s->m, key, value));
    if (is_orphaned(s, &record))
        index_adopt_content(&s->m->index, &record.content);
    index_add_record(&s->m->index, at, &record, path.len);
    return 0;
}

/* ---- directories' times ---- */

static int scan_dir(void *arg, struct keel_slice key, struct keel_slice value)
{
    struct scan *s = arg;
    uint64_t ino = key.len == DIR_KEY_LEN ? get_be64(key.data) : 0;
    struct mvcc_key *dir = index_by_ino(&s->m->index, ino);

    if (dir == NULL || !index_is_live_dir(dir) ||
        store_dir_decode(ino, value, &dir->dir->mtime_ns, &dir->ctime_ns) != 0) {
        snprintf(s->why, s->why_size, "the store is damaged: times of directory inode %llu",
                 (unsigned long long)ino);
        return KEEL_E_CORRUPT;
    }
    s->dirs++;
    return 0;
}

static int check_sums(struct scan *s)
{
    const struct mvcc *m = s->m;

    if (m->index.moved > 0)
        return damaged(s, "after it, an inode is at two names");
    if (s->presumed > 0)
        return damaged(s, "after it, %llu directories have no record",
                       (unsigned long long)s->presumed);
    if (m->index.root->ino != MVCC_ROOT_INO)
        return damaged(s, "there is no root");
    if (!keel_hash128_equal(s->hash, m->hash)) {
        snprintf(s->why, s->why_size,
                 "the store is damaged: state hash %016llx%016llx, stored %016llx%016llx",
                 (unsigned long long)s->hash.high, (unsigned long long)s->hash.low,
                 (unsigned long long)m->hash.high, (unsigned long long)m->hash.low);
        return KEEL_E_CORRUPT;
    }
    return 0;
}

static int run(struct scan *s)
{
    struct mvcc *m = s->m;
    struct keel_slice start = keel_slice_of(NULL, 0);
    int err = m->kv->ops->scan(s->read, KV_RECORDS, start, scan_record, s);

    if (err == 0)
        err = check_sums(s);
    if (err == 0)
        err = m->kv->ops->scan(s->read, KV_DIRS, start, scan_dir, s);
    if (err == 0 && s->dirs != m->index.live_dirs) {
        snprintf(s->why, s->why_size,
                 "the store is damaged: times of %llu directories instead of %llu",
                 (unsigned long long)s->dirs, (unsigned long long)m->index.live_dirs);
        err = KEEL_E_CORRUPT;
    }
    return err;
}

int scan_store(struct mvcc *m, struct kv_read *read, char *ret_why, size_t why_size)
{
    struct scan *s = keel_calloc(1, sizeof *s);

    s->m = m;
    s->read = read;
    s->why = ret_why;
    s->why_size = why_size;
    snprintf(ret_why, why_size, "the store is damaged: its pages do not fit together");
    int err = run(s);

    contents_settle(&m->index.contents);
    free(s);
    return err;
}
