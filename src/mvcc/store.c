/* Opening and closing, what is pending, and checkpoints: the traffic between memory and the kv. How
 * the index is rebuilt is in scan.c. */
#include <stdio.h>
#include <stdlib.h>

#include "bytes.h"
#include "check.h"
#include "err.h"
#include "mutant.h"
#include "mvcc/store.h"

enum {
    STATE_LEN = 56,
    FORMAT_LEN = 4,
    REMOVAL_BYTES = sizeof(struct kv_write), /* what it takes in memory until it is written */
};

/* ---- pending ---- */

static void pending_add(struct pending *p, struct pending_entry entry)
{
    KEEL_ASSERT(p->count == 0 || revision_compare(p->entries[p->count - 1].rev, entry.rev) < 0);
    if (p->count == p->capacity) {
        p->capacity = p->capacity ? p->capacity * 2 : 64;
        p->entries = keel_realloc(p->entries, p->capacity * sizeof *p->entries);
    }
    p->entries[p->count++] = entry;
    p->bytes += sizeof entry + entry.record->len + entry.content.bytes.len;
}

static struct pending_entry *pending_find(const struct pending *p, struct mvcc_revision rev)
{
    size_t low = 0, high = p->count;

    if (high == 0 || revision_compare(p->entries[0].rev, rev) > 0)
        return NULL;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        int order = revision_compare(p->entries[middle].rev, rev);

        if (order == 0)
            return &p->entries[middle];
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return NULL;
}

static void pending_clear(struct pending *p)
{
    for (size_t i = 0; i < p->count; i++) {
        keel_buf_free(p->entries[i].record);
        keel_buf_free(p->entries[i].content.owner);
    }
    free(p->entries);
    kv_batch_free(p->removals);
    *p = (struct pending){ 0 };
}

/* What the next checkpoint hands out; until then it has the removals only. */
static struct kv_batch *pending_batch(struct pending *p)
{
    if (p->removals == NULL)
        p->removals = kv_batch_new();
    return p->removals;
}

static void pending_remove(struct pending *p, enum kv_table table, struct mvcc_revision rev)
{
    uint8_t rev_key[MVCC_REVISION_KEY_LEN];

    revision_key_encode(rev, rev_key);
    kv_batch_remove(pending_batch(p), table, keel_slice_of(rev_key, sizeof rev_key));
    p->bytes += REMOVAL_BYTES;
}

/* What was never handed to a checkpoint is dropped, and leaves an empty entry behind. */
static void pending_drop(struct pending *p, struct pending_entry *entry, enum kv_table table)
{
    if (table == KV_RECORDS) {
        p->bytes -= entry->record->len;
        entry->record = keel_buf_free(entry->record);
    } else {
        p->bytes -= entry->content.bytes.len;
        keel_buf_free(entry->content.owner);
        entry->content = (struct mvcc_value){ 0 };
    }
}

void store_remove(struct mvcc *m, enum kv_table table, struct mvcc_revision rev)
{
    struct pending_entry *entry = pending_find(&m->now, rev);

    if (entry != NULL)
        pending_drop(&m->now, entry, table);
    else
        pending_remove(&m->now, table, rev);
}

const struct pending_entry *store_find_pending(const struct mvcc *m, struct mvcc_revision rev)
{
    const struct pending_entry *entry = pending_find(&m->now, rev);

    return entry ? entry : pending_find(&m->out, rev);
}

void store_add(struct mvcc *m, struct mvcc_key *key, const struct mvcc_record *record,
               const struct mvcc_value *value)
{
    struct index_path scratch;
    struct keel_slice path = index_path_of(key, &scratch);
    struct pending_entry entry = { .rev = record->revision };

    entry.record = record_encode_keyed(record, path);
    if (value != NULL && value->bytes.len > 0) {
        entry.content = *value;
        keel_buf_ref(entry.content.owner);
    }
    m->hash = keel_hash128_add(m->hash, keel_hash128_of(keel_buf_slice(entry.record)));
    pending_add(&m->now, entry);
    index_add_record(&m->index, key, record, path.len);
}

struct keel_hash128 store_hash_of(struct mvcc *m, struct keel_slice rev_key,
                                  struct keel_slice bytes)
{
    size_t size = rev_key.len + bytes.len;

    if (size > m->keyed_size) {
        m->keyed_size = size + size / 2;
        m->keyed = keel_realloc(m->keyed, m->keyed_size);
    }
    memcpy(m->keyed, rev_key.data, rev_key.len);
    memcpy(m->keyed + rev_key.len, bytes.data, bytes.len);
    return keel_hash128_of(keel_slice_of(m->keyed, size));
}

void store_dir_dirty(struct mvcc *m, struct mvcc_dir *dir)
{
    if (keel_list_empty(&dir->dirty))
        keel_list_add(&m->dirty, &dir->dirty);
}

void store_dir_removed(struct mvcc *m, uint64_t ino)
{
    if (m->removed_count == m->removed_capacity) {
        m->removed_capacity = m->removed_capacity ? m->removed_capacity * 2 : 16;
        m->removed = keel_realloc(m->removed, m->removed_capacity * sizeof *m->removed);
    }
    m->removed[m->removed_count++] = ino;
}

/* ---- values beside the records ---- */

void store_dir_encode(const struct mvcc_dir *dir, uint8_t ret_value[DIR_VALUE_LEN])
{
    put_le64(ret_value, (uint64_t)dir->mtime_ns);
    put_le64(ret_value + 8, (uint64_t)dir->key->ctime_ns);
    put_le64(ret_value + 16, keel_hash64_seed(keel_slice_of(ret_value, 16), dir->key->ino));
}

int store_dir_decode(uint64_t ino, struct keel_slice value, int64_t *ret_mtime_ns,
                     int64_t *ret_ctime_ns)
{
    if (value.len != DIR_VALUE_LEN)
        return KEEL_E_CORRUPT;
    if (get_le64(value.data + 16) != keel_hash64_seed(keel_slice_of(value.data, 16), ino))
        return KEEL_E_CORRUPT;
    *ret_mtime_ns = (int64_t)get_le64(value.data);
    *ret_ctime_ns = (int64_t)get_le64(value.data + 8);
    return 0;
}

static struct keel_buf *state_encode(const struct mvcc *m)
{
    struct keel_buf *buf = keel_buf_new(STATE_LEN);

    put_le64(buf->data, m->applied_index + (MUTANT(STORE_AHEAD_OF_ITS_DATA) ? 1 : 0));
    put_le64(buf->data + 8, m->applied_term);
    put_le64(buf->data + 16, m->revision);
    put_le64(buf->data + 24, m->compact_revision);
    put_le64(buf->data + 32, m->hash.low);
    put_le64(buf->data + 40, m->hash.high);
    put_le64(buf->data + 48, keel_hash64(keel_slice_of(buf->data, 48)));
    return buf;
}

int store_state_decode(struct keel_slice value, struct store_state *ret_state)
{
    if (value.len != STATE_LEN)
        return KEEL_E_CORRUPT;
    if (get_le64(value.data + 48) != keel_hash64(keel_slice_of(value.data, 48)))
        return KEEL_E_CORRUPT;
    ret_state->applied_index = get_le64(value.data);
    ret_state->applied_term = get_le64(value.data + 8);
    ret_state->revision = get_le64(value.data + 16);
    ret_state->compact_revision = get_le64(value.data + 24);
    ret_state->hash.low = get_le64(value.data + 32);
    ret_state->hash.high = get_le64(value.data + 40);
    return 0;
}

uint32_t store_format_decode(struct keel_slice value)
{
    return value.len == FORMAT_LEN ? get_le32(value.data) : 0;
}

static int read_format(struct kv *kv, struct kv_read *read, char *ret_why, size_t why_size)
{
    struct keel_slice value;
    int err = kv->ops->get(read, KV_META, keel_slice_str(STORE_META_FORMAT), &value);

    if (err == KEEL_E_NOTFOUND) {
        snprintf(ret_why, why_size, "the store has no format version");
        return err;
    }
    if (err != 0) {
        snprintf(ret_why, why_size, "cannot read the store: %s", keel_strerror(err));
        return err;
    }
    uint32_t version = store_format_decode(value);

    if (version > MVCC_FORMAT_VERSION) {
        snprintf(ret_why, why_size, "the store has format version %u, this keelfs knows up to %u",
                 version, (unsigned)MVCC_FORMAT_VERSION);
        return KEEL_E_NEWER;
    }
    if (version > 0)
        return 0;
    snprintf(ret_why, why_size, "the store's format version is damaged");
    return KEEL_E_CORRUPT;
}

int store_state_read(struct kv *kv, struct kv_read *read, struct store_state *ret_state,
                     char *ret_why, size_t why_size)
{
    struct keel_slice value;
    int err = read_format(kv, read, ret_why, why_size);

    if (err != 0)
        return err;
    err = kv->ops->get(read, KV_META, keel_slice_str(STORE_META_STATE), &value);
    if (err == 0 && store_state_decode(value, ret_state) == 0)
        return 0;
    snprintf(ret_why, why_size, "the store's applied state is damaged");
    return KEEL_E_CORRUPT;
}

/* ---- opening ---- */

/* The same on every node: nothing of it may depend on where or when. */
static void make_fresh(struct mvcc *m)
{
    struct mvcc_record root = {
        .kind = MVCC_DIR,
        .mode = 0755,
        .ino = MVCC_ROOT_INO,
        .revision = { 1, 0 },
        .create_revision = 1,
        .version = 1,
    };

    m->revision = 1;
    store_add(m, m->index.root, &root, NULL);
    store_dir_dirty(m, m->index.root->dir);
}

static int found_one(void *arg, struct keel_slice key, struct keel_slice value)
{
    (void)arg;
    (void)key;
    (void)value;
    return 1;
}

static int open_unformatted(struct mvcc *m, struct kv_read *read, char *ret_why, size_t why_size)
{
    for (enum kv_table t = 0; t < KV_TABLES; t++) {
        int found = m->kv->ops->scan(read, t, keel_slice_of(NULL, 0), found_one, NULL);

        if (found == 0)
            continue;
        snprintf(ret_why, why_size, "the store has data but no format version");
        return found < 0 ? found : KEEL_E_CORRUPT;
    }
    make_fresh(m);
    return 0;
}

static int open_existing(struct mvcc *m, struct kv_read *read, const struct store_state *state,
                         char *ret_why, size_t why_size)
{
    m->applied_index = state->applied_index;
    m->applied_term = state->applied_term;
    m->durable_index = state->applied_index;
    m->revision = state->revision;
    m->compact_revision = state->compact_revision;
    m->hash = state->hash;
    if (state->compact_revision > state->revision) {
        snprintf(ret_why, why_size, "the store is damaged: compacted at %llu, but at revision %llu",
                 (unsigned long long)state->compact_revision, (unsigned long long)state->revision);
        return KEEL_E_CORRUPT;
    }
    return scan_store(m, read, ret_why, why_size);
}

int mvcc_open(struct kv *kv, struct mvcc **ret_mvcc, char *ret_why, size_t why_size)
{
    struct mvcc *m = keel_calloc(1, sizeof *m);
    struct store_state state;

    KEEL_ASSERT(why_size > 0);
    m->kv = kv;
    m->txn.m = m;
    keel_list_init(&m->dirty);
    index_init(&m->index);
    struct kv_read *read = kv->ops->read_begin(kv);
    int err = store_state_read(kv, read, &state, ret_why, why_size);

    if (err == 0)
        err = open_existing(m, read, &state, ret_why, why_size);
    else if (err == KEEL_E_NOTFOUND)
        err = open_unformatted(m, read, ret_why, why_size);
    kv->ops->read_end(read);
    if (err != 0) {
        mvcc_close(m);
        return err;
    }
    *ret_mvcc = m;
    return 0;
}

int mvcc_reload(struct mvcc *m, struct kv *kv, char *ret_why, size_t why_size)
{
    struct store_state state;

    KEEL_ASSERT(why_size > 0 && !m->is_out && !m->txn.open);
    mvcc_read_end(m);
    pending_clear(&m->now);
    m->removed_count = 0;
    store_forget_emptied(m);
    index_clear(&m->index);
    m->kv = kv;
    struct kv_read *read = kv->ops->read_begin(kv);
    int err = store_state_read(kv, read, &state, ret_why, why_size);

    if (err == 0)
        err = open_existing(m, read, &state, ret_why, why_size);
    kv->ops->read_end(read);
    if (err == 0)
        store_keep_emptied(m);
    return err == KEEL_E_NOTFOUND ? KEEL_E_CORRUPT : err;
}

void mvcc_switch(struct mvcc *m, struct kv *kv)
{
    mvcc_read_end(m);
    m->kv = kv;
}

struct mvcc *mvcc_close(struct mvcc *m)
{
    if (m == NULL)
        return NULL;
    mvcc_read_end(m);
    pending_clear(&m->now);
    pending_clear(&m->out);
    index_free(&m->index);
    free(m->removed);
    free(m->emptied);
    free(m->keyed);
    free(m);
    return NULL;
}

struct kv_read *store_read(struct mvcc *m)
{
    if (m->read == NULL)
        m->read = m->kv->ops->read_begin(m->kv);
    return m->read;
}

void mvcc_read_end(struct mvcc *m)
{
    if (m->read != NULL)
        m->kv->ops->read_end(m->read);
    m->read = NULL;
}

/* ---- checkpoint ---- */

size_t mvcc_pending_bytes(const struct mvcc *m)
{
    return m->now.bytes + m->out.bytes;
}

bool mvcc_has_pending(const struct mvcc *m)
{
    return m->is_out || m->now.count > 0 || m->applied_index != m->durable_index;
}

uint64_t mvcc_durable_index(const struct mvcc *m)
{
    return m->durable_index;
}

static void batch_records(struct kv_batch *batch, const struct pending *p)
{
    uint8_t rev_key[MVCC_REVISION_KEY_LEN];
    struct keel_slice key = keel_slice_of(rev_key, sizeof rev_key);

    for (size_t i = 0; i < p->count; i++) {
        const struct pending_entry *entry = &p->entries[i];

        revision_key_encode(entry->rev, rev_key);
        if (entry->record != NULL)
            kv_batch_put_slice(batch, KV_RECORDS, key, keel_buf_ref(entry->record),
                               keel_slice_of(entry->record->data + sizeof rev_key,
                                             entry->record->len - sizeof rev_key));
        if (entry->content.owner != NULL)
            kv_batch_put_slice(batch, KV_CONTENT, key, keel_buf_ref(entry->content.owner),
                               entry->content.bytes);
    }
}

static void batch_dirs(struct mvcc *m, struct kv_batch *batch)
{
    uint8_t key[DIR_KEY_LEN], value[DIR_VALUE_LEN];

    for (size_t i = 0; i < m->removed_count; i++) {
        put_be64(key, m->removed[i]);
        kv_batch_remove(batch, KV_DIRS, keel_slice_of(key, sizeof key));
    }
    while (!keel_list_empty(&m->dirty)) {
        struct mvcc_dir *dir =
            KEEL_CONTAINER_OF(keel_list_first(&m->dirty), struct mvcc_dir, dirty);

        keel_list_remove(&dir->dirty);
        if (!index_is_live_dir(dir->key))
            continue;
        put_be64(key, dir->key->ino);
        store_dir_encode(dir, value);
        kv_batch_put(batch, KV_DIRS, keel_slice_of(key, sizeof key),
                     keel_buf_copy(keel_slice_of(value, sizeof value)));
    }
    m->removed_count = 0;
}

static void batch_meta(const struct mvcc *m, struct kv_batch *batch)
{
    struct keel_buf *format = keel_buf_new(FORMAT_LEN);

    put_le32(format->data, MVCC_FORMAT_VERSION);
    kv_batch_put(batch, KV_META, keel_slice_str(STORE_META_FORMAT), format);
    kv_batch_put(batch, KV_META, keel_slice_str(STORE_META_STATE), state_encode(m));
}

struct kv_batch *mvcc_checkpoint(struct mvcc *m, const struct keel_slice *meta_names,
                                 struct keel_buf *const *meta_values, size_t meta_count)
{
    struct kv_batch *batch = pending_batch(&m->now);

    KEEL_ASSERT(!m->is_out && !m->txn.open);
    m->now.removals = NULL;
    batch_records(batch, &m->now);
    batch_dirs(m, batch);
    for (size_t i = 0; i < meta_count; i++) {
        KEEL_ASSERT(!keel_slice_equal(meta_names[i], keel_slice_str(STORE_META_FORMAT)) &&
                    !keel_slice_equal(meta_names[i], keel_slice_str(STORE_META_STATE)));
        kv_batch_put(batch, KV_META, meta_names[i], keel_buf_ref(meta_values[i]));
    }
    batch_meta(m, batch);
    batch->applied_index = m->applied_index;
    m->out = m->now;
    m->now = (struct pending){ 0 };
    m->is_out = true;
    m->out_index = m->applied_index;
    return batch;
}

void mvcc_checkpointed(struct mvcc *m)
{
    KEEL_ASSERT(m->is_out);
    mvcc_read_end(m);
    pending_clear(&m->out);
    m->is_out = false;
    m->durable_index = m->out_index;
}

int mvcc_meta(struct mvcc *m, struct keel_slice name, struct keel_buf **ret_value)
{
    struct keel_slice value;
    int err = m->kv->ops->get(store_read(m), KV_META, name, &value);

    if (err == 0)
        *ret_value = keel_buf_copy(value);
    return err;
}
