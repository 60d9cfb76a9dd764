/* Questions to the keyspace: numbers, the tree, records, content, history. Nothing here changes
 * anything but the read transaction. */
#include "check.h"
#include "err.h"
#include "hash.h"
#include "mvcc/store.h"

uint64_t mvcc_revision(const struct mvcc *m)
{
    return m->revision;
}

uint64_t mvcc_compact_revision(const struct mvcc *m)
{
    return m->compact_revision;
}

uint64_t mvcc_applied_index(const struct mvcc *m)
{
    return m->applied_index;
}

uint64_t mvcc_applied_term(const struct mvcc *m)
{
    return m->applied_term;
}

struct keel_hash128 mvcc_state_hash(const struct mvcc *m)
{
    return m->hash;
}

uint64_t mvcc_live_keys(const struct mvcc *m)
{
    return m->index.live_keys;
}

uint64_t mvcc_quota_used(const struct mvcc *m)
{
    return m->index.quota_used;
}

/* ---- the compaction point ---- */

/* Which of a key's records is the first that is no garbage; all of them are: count. What can be
 * asked for depends on the point alone, never on what is still there. */
static size_t first_askable(const struct mvcc *m, const struct mvcc_key *key)
{
    const struct mvcc_rev *at_point = index_rev_at(key, m->compact_revision);

    if (at_point == NULL)
        return 0;
    return (size_t)(at_point - index_revs(key)) + at_point->tombstone;
}

/* ---- the tree ---- */

struct mvcc_key *mvcc_root(const struct mvcc *m)
{
    return m->index.root;
}

struct mvcc_key *mvcc_by_ino(const struct mvcc *m, uint64_t ino)
{
    return index_by_ino(&m->index, ino);
}

struct mvcc_key *mvcc_child(const struct mvcc *m, const struct mvcc_key *dir,
                            struct keel_slice name)
{
    struct mvcc_key *key = index_child(dir, name);

    if (key == NULL || key->ino != 0)
        return key;
    return first_askable(m, key) < key->count ? key : NULL;
}

struct mvcc_key *mvcc_parent(const struct mvcc_key *key)
{
    return key->parent;
}

struct keel_slice mvcc_name(const struct mvcc_key *key)
{
    return keel_slice_of(key->name, key->name_len);
}

void mvcc_path(const struct mvcc_key *key, struct keel_text *text)
{
    struct index_path path;

    keel_text_append(text, index_path_of(key, &path));
}

uint64_t mvcc_live_ino(const struct mvcc_key *key)
{
    return key->ino;
}

enum mvcc_kind mvcc_live_kind(const struct mvcc_key *key)
{
    KEEL_ASSERT(key->ino != 0);
    return (enum mvcc_kind)key->kind;
}

struct mvcc_revision mvcc_mod_revision(const struct mvcc_key *key)
{
    if (key->count == 0)
        return (struct mvcc_revision){ 0 };
    const struct mvcc_rev *rev = &index_revs(key)[key->count - 1];

    return (struct mvcc_revision){ rev->main, rev->sub };
}

struct mvcc_dir_info mvcc_dir_info(const struct mvcc_key *dir)
{
    KEEL_ASSERT(index_is_live_dir(dir));
    return (struct mvcc_dir_info){
        .mtime_ns = dir->dir->mtime_ns,
        .ctime_ns = dir->ctime_ns,
        .entries = dir->dir->entries,
        .subdirs = dir->dir->subdirs,
    };
}

static bool is_present(const struct mvcc_key *key, uint64_t at)
{
    if (at == 0)
        return key->ino != 0;
    const struct mvcc_rev *rev = index_rev_at(key, at);

    return rev != NULL && !rev->tombstone;
}

struct mvcc_key *mvcc_next_child(struct mvcc *m, const struct mvcc_key *dir, uint64_t at,
                                 struct keel_slice after)
{
    struct mvcc_key *key = index_next_child(dir, after);

    KEEL_ASSERT(at <= m->revision);
    if (at != 0 && at < m->compact_revision)
        return NULL;
    while (key != NULL && !is_present(key, at))
        key = index_next_child(dir, mvcc_name(key));
    return key;
}

int mvcc_history(struct mvcc *m, const struct mvcc_key *key,
                 int (*fn)(void *arg, struct mvcc_revision rev, bool tombstone), void *arg)
{
    for (size_t i = key->count, first = first_askable(m, key); i > first; i--) {
        const struct mvcc_rev *rev = &index_revs(key)[i - 1];
        int result = fn(arg, (struct mvcc_revision){ rev->main, rev->sub }, rev->tombstone != 0);

        if (result != 0)
            return result;
    }
    return 0;
}

/* ---- records ---- */

/* The kv's bytes are believed only if they are what was asked for. */
static int load_stored(struct mvcc *m, const struct mvcc_key *key, struct mvcc_revision rev,
                       struct mvcc_record *ret_record, struct keel_slice *ret_bytes)
{
    uint8_t rev_key[MVCC_REVISION_KEY_LEN];
    struct index_path scratch;
    struct keel_slice bytes, path;
    struct mvcc_record record;

    revision_key_encode(rev, rev_key);
    int err =
        m->kv->ops->get(store_read(m), KV_RECORDS, keel_slice_of(rev_key, sizeof rev_key), &bytes);

    if (err != 0 || mvcc_record_decode(bytes, &record, &path) != 0)
        return KEEL_E_CORRUPT;
    if (revision_compare(record.revision, rev) != 0)
        return KEEL_E_CORRUPT;
    if (!keel_slice_equal(path, index_path_of(key, &scratch)))
        return KEEL_E_CORRUPT;
    *ret_record = record;
    *ret_bytes = bytes;
    return 0;
}

int store_load(struct mvcc *m, const struct mvcc_key *key, struct mvcc_revision rev,
               struct mvcc_record *ret_record, struct keel_slice *ret_bytes)
{
    const struct pending_entry *entry = store_find_pending(m, rev);
    struct keel_slice path;

    if (entry == NULL)
        return load_stored(m, key, rev, ret_record, ret_bytes);
    KEEL_ASSERT(entry->record != NULL);
    *ret_bytes = keel_slice_of(entry->record->data + MVCC_REVISION_KEY_LEN,
                               entry->record->len - MVCC_REVISION_KEY_LEN);
    int err = mvcc_record_decode(*ret_bytes, ret_record, &path);

    KEEL_ASSERT(err == 0); /* encoded by this process, in its own memory */
    return 0;
}

int mvcc_get_revision(struct mvcc *m, const struct mvcc_key *key, struct mvcc_revision rev,
                      struct mvcc_record *ret_record)
{
    const struct mvcc_rev *known = index_rev_at(key, rev.main);
    const struct mvcc_rev *revs = index_revs(key), *first = revs + first_askable(m, key);
    struct keel_slice bytes;

    while (known != NULL && known > first && known->main == rev.main && known->sub > rev.sub)
        known--;
    if (known != NULL && known >= first && known->main == rev.main && known->sub == rev.sub)
        return store_load(m, key, rev, ret_record, &bytes);
    return rev.main <= m->compact_revision ? KEEL_E_STALE : KEEL_E_NOTFOUND;
}

int mvcc_get(struct mvcc *m, const struct mvcc_key *key, uint64_t at,
             struct mvcc_record *ret_record)
{
    struct keel_slice bytes;

    if (at > m->revision || (at != 0 && at < m->compact_revision))
        return KEEL_E_STALE;
    const struct mvcc_rev *rev = index_rev_at(key, at != 0 ? at : UINT64_MAX);

    if (rev == NULL || rev->tombstone)
        return KEEL_E_NOTFOUND;
    int err = store_load(m, key, (struct mvcc_revision){ rev->main, rev->sub }, ret_record, &bytes);

    if (err == 0 && at == 0 && ret_record->kind == MVCC_DIR) {
        ret_record->mtime_ns = key->dir->mtime_ns;
        ret_record->ctime_ns = key->ctime_ns;
    }
    return err;
}

int mvcc_read(struct mvcc *m, const struct mvcc_content *content, struct keel_slice *ret_bytes)
{
    uint8_t key[MVCC_REVISION_KEY_LEN];
    struct keel_slice bytes;

    if (content->length == 0) {
        *ret_bytes = keel_slice_of(NULL, 0);
        return 0;
    }
    const struct pending_entry *entry = store_find_pending(m, content->at);

    if (entry != NULL) {
        if (entry->content.owner == NULL)
            return KEEL_E_STALE; /* compacted before it was handed to the kv */
        if (entry->content.bytes.len != content->length)
            return KEEL_E_CORRUPT;
        *ret_bytes = entry->content.bytes;
        return 0;
    }
    revision_key_encode(content->at, key);
    int err = m->kv->ops->get(store_read(m), KV_CONTENT, keel_slice_of(key, sizeof key), &bytes);

    if (err != 0)
        return err == KEEL_E_NOTFOUND ? KEEL_E_STALE : KEEL_E_CORRUPT;
    if (bytes.len != content->length || keel_hash64(bytes) != content->hash)
        return KEEL_E_CORRUPT;
    *ret_bytes = bytes;
    return 0;
}
