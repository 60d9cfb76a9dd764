/* The stream of snapshot.h, written and read; its bytes are in docs/format-snapshot.md. How a store
 * is put in the place of another is not here. */
#include "mvcc/snapshot.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "bytes.h"
#include "check.h"
#include "err.h"
#include "keel_limits.h"
#include "mutant.h"
#include "mvcc/record.h"
#include "mvcc/store.h"

enum {
    HEADER_LEN = 128,
    CHECK_LEN = 8,
    HEAD_LEN = 16,      /* of a block */
    ENTRY_HEAD_LEN = 5, /* of a key and its value in a block */
    COUNTS_LEN = 8 * KV_TABLES,
    TRAILER_LEN = COUNTS_LEN + 8, /* without head and check */
    KEY_MAX = 32,
    VALUE_MAX = KEEL_ENTRY_SIZE_MAX,
    META_MAX = 256 << 20, /* all of KV_META: the leases of very many keys */
    BATCH_BYTES = 1 << 20,
    TRAILER = 0xff, /* in the place of a block's table */
};

static const char magic[8] = { 'k', 'e', 'e', 'l', 's', 'n', 'a', 'p' };

/* Tables in the order of the stream: meta, which makes a store out of the rest, comes last. A
 * block names its table by the place in this list. */
enum { PLACE_RECORDS, PLACE_CONTENT, PLACE_DIRS, PLACE_META };
static const enum kv_table order[KV_TABLES] = { KV_RECORDS, KV_CONTENT, KV_DIRS, KV_META };

/* Bytes that are collected. */
struct pile {
    uint8_t *data;
    size_t len, capacity;
};

static uint8_t *pile_add(struct pile *pile, size_t len)
{
    if (len > pile->capacity - pile->len) {
        size_t twice = pile->capacity * 2, need = pile->len + len;

        pile->capacity = twice > need ? twice : need;
        pile->data = keel_realloc(pile->data, pile->capacity);
    }
    pile->len += len;
    return pile->data + pile->len - len;
}

static void pile_append(struct pile *pile, struct keel_slice bytes)
{
    if (bytes.len > 0)
        memcpy(pile_add(pile, bytes.len), bytes.data, bytes.len);
}

/* The last key of a table, behind which the next one is due. */
struct last_key {
    uint8_t len; /* 0: none yet */
    uint8_t at[KEY_MAX];
};

static struct keel_slice last_key_slice(const struct last_key *last)
{
    return keel_slice_of(last->at, last->len);
}

static void last_key_set(struct last_key *last, struct keel_slice key)
{
    last->len = (uint8_t)key.len;
    memcpy(last->at, key.data, key.len);
}

/* What a key and its value may be in that table. */
static bool sizes_are_sane(size_t place, size_t key_len, size_t value_len)
{
    switch (place) {
    case PLACE_RECORDS:
    case PLACE_CONTENT:
        return key_len == MVCC_REVISION_KEY_LEN && value_len <= VALUE_MAX;
    case PLACE_DIRS:
        return key_len == DIR_KEY_LEN && value_len <= DIR_VALUE_LEN;
    default:
        return key_len > 0 && key_len <= KEY_MAX && value_len <= META_MAX;
    }
}

static void put_counts(uint8_t *p, const uint64_t *entries)
{
    for (size_t place = 0; place < KV_TABLES; place++)
        put_le64(p + 8 * place, entries[order[place]]);
}

static void get_counts(const uint8_t *p, uint64_t *ret_entries)
{
    for (size_t place = 0; place < KV_TABLES; place++)
        ret_entries[order[place]] = get_le64(p + 8 * place);
}

/* ---- writing ---- */

enum writer_part { WRITE_HEADER, WRITE_BLOCKS, WRITE_NOTHING };

struct snapshot_writer {
    struct kv *kv;
    struct kv_read *read;
    struct snapshot_info info;
    enum writer_part part;
    struct pile out;      /* the piece that was handed out last */
    size_t place;         /* of the table at hand, in `order` */
    struct last_key last; /* of it that was written */
    uint32_t number;      /* of the last block */
    uint32_t block_entries;
    uint64_t check; /* of the last block, or the header */
};

static int count_entry(void *arg, struct keel_slice key, struct keel_slice value)
{
    uint64_t *count = arg;

    (void)key;
    (void)value;
    ++*count;
    return 0;
}

static int read_info(struct snapshot_writer *w)
{
    struct snapshot_info *info = &w->info;
    struct store_state state;
    char why[128];
    int err = store_state_read(w->kv, w->read, &state, why, sizeof why);

    if (err != 0)
        return err;
    info->index = state.applied_index;
    info->term = state.applied_term;
    info->revision = state.revision;
    info->compact_revision = state.compact_revision;
    info->hash = state.hash;
    for (enum kv_table t = 0; t < KV_TABLES && err == 0; t++)
        err = w->kv->ops->scan(w->read, t, keel_slice_of(NULL, 0), count_entry, &info->entries[t]);
    return err;
}

int snapshot_writer_new(struct kv *kv, uint64_t cluster_id, struct snapshot_writer **ret_writer)
{
    struct snapshot_writer *w = keel_calloc(1, sizeof *w);

    w->kv = kv;
    w->read = kv->ops->read_begin(kv);
    w->info.cluster_id = cluster_id;
    int err = read_info(w);

    if (err != 0) {
        snapshot_writer_free(w);
        return err;
    }
    *ret_writer = w;
    return 0;
}

static void write_header(struct snapshot_writer *w)
{
    const struct snapshot_info *info = &w->info;
    uint8_t *p = pile_add(&w->out, HEADER_LEN);

    memset(p, 0, HEADER_LEN);
    memcpy(p, magic, sizeof magic);
    put_le32(p + 8, SNAPSHOT_FORMAT_VERSION);
    put_le32(p + 12, MVCC_FORMAT_VERSION);
    put_le64(p + 16, info->cluster_id);
    put_le64(p + 24, info->index);
    put_le64(p + 32, info->term);
    put_le64(p + 40, info->revision);
    put_le64(p + 48, info->compact_revision);
    put_le64(p + 56, info->hash.low);
    put_le64(p + 64, info->hash.high);
    put_counts(p + 72, info->entries);
    w->check = keel_hash64(keel_slice_of(p, HEADER_LEN - CHECK_LEN));
    put_le64(p + HEADER_LEN - CHECK_LEN, w->check);
}

/* Head and check around what is in the pile behind the room for the head. */
static void close_block(struct snapshot_writer *w, size_t table, uint32_t entries)
{
    put_le32(w->out.data, ++w->number);
    put_le32(w->out.data + 4, (uint32_t)table);
    put_le32(w->out.data + 8, (uint32_t)(w->out.len - HEAD_LEN));
    put_le32(w->out.data + 12, entries);
    w->check = keel_hash64_seed(keel_slice_of(w->out.data, w->out.len), w->check);
    put_le64(pile_add(&w->out, CHECK_LEN), w->check);
}

/* Rotten content must not get to other nodes, or into a backup. Content is looked at with the
 * record that brought it, and, when that is gone, with each that refers to it. */
static int check_content(struct snapshot_writer *w, struct keel_slice key, struct keel_slice value)
{
    uint8_t at[MVCC_REVISION_KEY_LEN];
    struct mvcc_record record;
    struct keel_slice path, bytes;
    int err = mvcc_record_decode(value, &record, &path);

    if (err != 0 || record.content.length == 0)
        return err;
    revision_key_encode(record.content.at, at);
    struct keel_slice at_key = keel_slice_of(at, sizeof at);

    if (!keel_slice_equal(at_key, key) && w->kv->ops->get(w->read, KV_RECORDS, at_key, &bytes) == 0)
        return 0;
    err = w->kv->ops->get(w->read, KV_CONTENT, at_key, &bytes);
    if (err != 0)
        return err == KEEL_E_NOTFOUND ? KEEL_E_CORRUPT : err;
    return bytes.len == record.content.length && keel_hash64(bytes) == record.content.hash
               ? 0
               : KEEL_E_CORRUPT;
}

/* Stops with 1 when the block is full. */
static int write_entry(void *arg, struct keel_slice key, struct keel_slice value)
{
    struct snapshot_writer *w = arg;
    size_t len = ENTRY_HEAD_LEN + key.len + value.len;

    if (keel_slice_equal(key, last_key_slice(&w->last)))
        return 0;
    if (w->block_entries > 0 && w->out.len - HEAD_LEN + len > SNAPSHOT_BLOCK_BYTES)
        return 1;
    if (!sizes_are_sane(w->place, key.len, value.len))
        return KEEL_E_CORRUPT;
    int err = w->place == PLACE_RECORDS ? check_content(w, key, value) : 0;

    if (err != 0)
        return err;
    uint8_t *head = pile_add(&w->out, ENTRY_HEAD_LEN);

    head[0] = (uint8_t)key.len;
    put_le32(head + 1, (uint32_t)value.len);
    pile_append(&w->out, key);
    pile_append(&w->out, value);
    last_key_set(&w->last, key);
    w->block_entries++;
    return 0;
}

/* The next block that has anything in it; leaves the place behind the last table without one. */
static int write_block(struct snapshot_writer *w)
{
    pile_add(&w->out, HEAD_LEN);
    w->block_entries = 0;
    for (;;) {
        int err =
            w->kv->ops->scan(w->read, order[w->place], last_key_slice(&w->last), write_entry, w);

        if (err < 0)
            return err;
        if (w->block_entries > 0)
            break;
        w->last.len = 0;
        if (++w->place == KV_TABLES)
            return 0;
    }
    close_block(w, w->place, w->block_entries);
    return 0;
}

static void write_trailer(struct snapshot_writer *w)
{
    uint8_t *p = pile_add(&w->out, TRAILER_LEN);

    w->info.bytes += HEAD_LEN + TRAILER_LEN + CHECK_LEN;
    put_counts(p, w->info.entries);
    put_le64(p + COUNTS_LEN, w->info.bytes);
    close_block(w, TRAILER, 0);
}

int snapshot_writer_next(struct snapshot_writer *w, struct keel_slice *ret_bytes)
{
    int err = 0;

    w->out.len = 0;
    if (w->part == WRITE_HEADER) {
        write_header(w);
        w->info.bytes += w->out.len;
        w->part = WRITE_BLOCKS;
    } else if (w->part == WRITE_BLOCKS) {
        err = write_block(w);
        if (err == 0 && w->place == KV_TABLES) {
            write_trailer(w);
            w->part = WRITE_NOTHING;
        } else {
            w->info.bytes += w->out.len;
        }
    }
    *ret_bytes = keel_slice_of(w->out.data, w->out.len);
    return err;
}

const struct snapshot_info *snapshot_writer_info(const struct snapshot_writer *w)
{
    return &w->info;
}

struct snapshot_writer *snapshot_writer_free(struct snapshot_writer *w)
{
    if (w == NULL)
        return NULL;
    w->kv->ops->read_end(w->read);
    free(w->out.data);
    free(w);
    return NULL;
}

/* ---- reading ---- */

enum reader_part { READ_HEADER, READ_HEAD, READ_BODY, READ_NOTHING };

struct snapshot_reader {
    int (*sink)(void *arg, struct kv_batch *batch_take);
    void *arg;
    int err;
    char why[200];

    enum reader_part part; /* being put together in `have` until that has `need` bytes */
    struct pile have;
    size_t need;
    uint64_t position; /* bytes taken */

    struct snapshot_info info;
    uint32_t number; /* of the block at hand */
    uint64_t check;
    size_t place;
    struct last_key last;
    uint64_t seen[KV_TABLES];
    uint64_t meta_bytes;
    bool has_format, has_state;
    struct keel_hash128 hash;

    struct kv_batch *batch;
    struct kv_batch *meta; /* held back until the trailer has come */
};

struct snapshot_reader *snapshot_reader_new(int (*sink)(void *arg, struct kv_batch *batch_take),
                                            void *arg)
{
    struct snapshot_reader *r = keel_calloc(1, sizeof *r);

    r->sink = sink;
    r->arg = arg;
    r->part = READ_HEADER;
    r->need = HEADER_LEN;
    r->batch = kv_batch_new();
    r->meta = kv_batch_new();
    return r;
}

static int damaged(struct snapshot_reader *r, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

static int damaged(struct snapshot_reader *r, const char *fmt, ...)
{
    char text[128];
    va_list args;

    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    snprintf(r->why, sizeof r->why, "the snapshot is damaged: block %u, before byte %llu: %s",
             r->number, (unsigned long long)r->position, text);
    return KEEL_E_CORRUPT;
}

static void expect(struct snapshot_reader *r, enum reader_part part, size_t need)
{
    r->part = part;
    r->need = need;
}

static void decode_info(const uint8_t *p, struct snapshot_info *ret_info)
{
    ret_info->cluster_id = get_le64(p + 16);
    ret_info->index = get_le64(p + 24);
    ret_info->term = get_le64(p + 32);
    ret_info->revision = get_le64(p + 40);
    ret_info->compact_revision = get_le64(p + 48);
    ret_info->hash = (struct keel_hash128){ get_le64(p + 56), get_le64(p + 64) };
    get_counts(p + 72, ret_info->entries);
}

static int newer(struct snapshot_reader *r, const char *what, uint32_t version, uint32_t known)
{
    snprintf(r->why, sizeof r->why, "the snapshot has %s version %u, this keelfs knows up to %u",
             what, version, known);
    return KEEL_E_NEWER;
}

/* Magic, version and the place of the check are the same in all versions: damage is not taken for a
 * newer version. */
static int take_header(struct snapshot_reader *r)
{
    const uint8_t *p = r->have.data;

    r->check = keel_hash64(keel_slice_of(p, HEADER_LEN - CHECK_LEN));
    if (memcmp(p, magic, sizeof magic) != 0)
        return damaged(r, "it does not begin like a snapshot");
    if (get_le64(p + HEADER_LEN - CHECK_LEN) != r->check)
        return damaged(r, "the header fails its check");
    uint32_t version = get_le32(p + 8), store_version = get_le32(p + 12);

    if (version > SNAPSHOT_FORMAT_VERSION)
        return newer(r, "format", version, SNAPSHOT_FORMAT_VERSION);
    if (store_version > MVCC_FORMAT_VERSION)
        return newer(r, "store format", store_version, MVCC_FORMAT_VERSION);
    if (version == 0 || store_version == 0 || get_le64(p + 104) != 0 || get_le64(p + 112) != 0)
        return damaged(r, "the header is none that was ever written");
    decode_info(p, &r->info);
    r->have.len = 0;
    expect(r, READ_HEAD, HEAD_LEN);
    return 0;
}

static size_t length_max(size_t place, uint32_t entries)
{
    if (entries > 1)
        return SNAPSHOT_BLOCK_BYTES;
    return ENTRY_HEAD_LEN + KEY_MAX + (place == PLACE_META ? (size_t)META_MAX : (size_t)VALUE_MAX);
}

static int take_head(struct snapshot_reader *r)
{
    const uint8_t *p = r->have.data;
    uint32_t number = get_le32(p), table = get_le32(p + 4);
    uint32_t length = get_le32(p + 8), entries = get_le32(p + 12);

    r->number++;
    if (number != r->number)
        return damaged(r, "it has the number %u", number);
    if (table == TRAILER) {
        if (length != TRAILER_LEN || entries != 0)
            return damaged(r, "the trailer's head is none");
    } else {
        if (table >= KV_TABLES || table < r->place)
            return damaged(r, "it is of table %u, behind table %zu", table, r->place);
        if (entries == 0 || length > length_max(table, entries))
            return damaged(r, "%u entries in %u bytes", entries, length);
    }
    expect(r, READ_BODY, HEAD_LEN + (size_t)length + CHECK_LEN);
    return 0;
}

static int flush(struct snapshot_reader *r, struct kv_batch **batch)
{
    struct kv_batch *full = *batch;

    *batch = kv_batch_new();
    if (r->sink == NULL || full->count == 0) {
        kv_batch_free(full);
        return 0;
    }
    int err = r->sink(r->arg, full);

    if (err != 0)
        snprintf(r->why, sizeof r->why, "the snapshot cannot be stored: %s", keel_strerror(err));
    return err;
}

/* The stored state must be that of the header. */
static int check_meta(struct snapshot_reader *r, struct keel_slice key, struct keel_slice value)
{
    const struct snapshot_info *info = &r->info;
    struct store_state state;

    r->meta_bytes += key.len + value.len;
    if (r->meta_bytes > META_MAX)
        return damaged(r, "more than %u bytes of meta", (unsigned)META_MAX);
    if (keel_slice_equal(key, keel_slice_str(STORE_META_FORMAT))) {
        r->has_format = true;
        return store_format_decode(value) == MVCC_FORMAT_VERSION
                   ? 0
                   : damaged(r, "the store's format version is not the header's");
    }
    if (!keel_slice_equal(key, keel_slice_str(STORE_META_STATE)))
        return 0;
    r->has_state = true;
    if (store_state_decode(value, &state) != 0 || state.applied_index != info->index ||
        state.applied_term != info->term || state.revision != info->revision ||
        state.compact_revision != info->compact_revision ||
        !keel_hash128_equal(state.hash, info->hash))
        return damaged(r, "the store's state is not the header's");
    return 0;
}

/* owner: the block's bytes, in which key and value lie behind one another; NULL: only check. */
static int take_entry(struct snapshot_reader *r, struct keel_slice key, struct keel_slice value,
                      struct keel_buf *owner)
{
    int err = 0;

    if (keel_slice_compare(last_key_slice(&r->last), key) >= 0)
        return damaged(r, "its keys do not ascend");
    last_key_set(&r->last, key);
    r->seen[order[r->place]]++;
    if (r->place == PLACE_RECORDS)
        r->hash = keel_hash128_add(r->hash,
                                   keel_hash128_of(keel_slice_of(key.data, key.len + value.len)));
    if (r->place == PLACE_META)
        err = check_meta(r, key, value);
    if (err != 0 || owner == NULL)
        return err;
    if (r->place == PLACE_META) {
        kv_batch_put_slice(r->meta, KV_META, key, keel_buf_ref(owner), value);
        return 0;
    }
    if (r->batch->bytes + key.len + value.len > BATCH_BYTES)
        err = flush(r, &r->batch);
    kv_batch_put_slice(r->batch, order[r->place], key, keel_buf_ref(owner), value);
    return err;
}

static int take_entries(struct snapshot_reader *r, uint32_t entries, struct keel_slice bytes,
                        struct keel_buf *owner)
{
    struct keel_cursor c = { .rest = bytes };

    for (uint32_t i = 0; i < entries; i++) {
        size_t key_len = cursor_u8(&c), value_len = cursor_le32(&c);
        struct keel_slice key = cursor_slice(&c, key_len);
        struct keel_slice value = cursor_slice(&c, value_len);

        if (c.bad || !sizes_are_sane(r->place, key_len, value_len))
            return damaged(r, "entry %u has a key of %zu bytes and a value of %zu", i, key_len,
                           value_len);
        int err = take_entry(r, key, value, owner);

        if (err != 0)
            return err;
    }
    return c.rest.len == 0 ? 0 : damaged(r, "%zu bytes are left over", c.rest.len);
}

static int take_block(struct snapshot_reader *r, struct keel_slice bytes)
{
    uint32_t table = get_le32(r->have.data + 4), entries = get_le32(r->have.data + 12);
    struct keel_buf *owner = r->sink ? keel_buf_copy(bytes) : NULL;

    if (table != r->place)
        r->last.len = 0;
    r->place = table;
    int err = take_entries(r, entries, owner ? keel_buf_slice(owner) : bytes, owner);

    keel_buf_free(owner);
    return err;
}

static int check_sums(struct snapshot_reader *r, struct keel_slice trailer)
{
    uint64_t entries[KV_TABLES];

    get_counts(trailer.data, entries);
    if (memcmp(entries, r->info.entries, sizeof entries) != 0)
        return damaged(r, "header and trailer count differently");
    if (memcmp(entries, r->seen, sizeof entries) != 0)
        return damaged(r, "there are not as many entries as the trailer counts");
    if (get_le64(trailer.data + COUNTS_LEN) != r->position)
        return damaged(r, "it has not the length that the trailer says");
    if (!keel_hash128_equal(r->hash, r->info.hash))
        return damaged(r, "its records do not have the header's state hash");
    if (!r->has_format || !r->has_state)
        return damaged(r, "the store's state is missing");
    return 0;
}

static int take_trailer(struct snapshot_reader *r, struct keel_slice bytes)
{
    int err = check_sums(r, bytes);

    if (err == 0)
        err = flush(r, &r->batch);
    r->meta->applied_index = r->info.index;
    if (err == 0)
        err = flush(r, &r->meta);
    r->info.bytes = r->position;
    return err;
}

static int take_body(struct snapshot_reader *r)
{
    size_t len = r->have.len - CHECK_LEN;
    struct keel_slice bytes = keel_slice_of(r->have.data + HEAD_LEN, len - HEAD_LEN);
    bool is_trailer = get_le32(r->have.data + 4) == TRAILER;

    r->check = keel_hash64_seed(keel_slice_of(r->have.data, len), r->check);
    if (get_le64(r->have.data + len) != r->check && !MUTANT(DAMAGE_UNNOTICED))
        return damaged(r, "it fails its check");
    int err = is_trailer ? take_trailer(r, bytes) : take_block(r, bytes);

    r->have.len = 0;
    expect(r, is_trailer ? READ_NOTHING : READ_HEAD, HEAD_LEN);
    return err;
}

static int take_part(struct snapshot_reader *r)
{
    switch (r->part) {
    case READ_HEADER:
        return take_header(r);
    case READ_HEAD:
        return take_head(r);
    case READ_BODY:
        return take_body(r);
    case READ_NOTHING:
    default:
        return damaged(r, "there is something behind the trailer");
    }
}

static int report(const struct snapshot_reader *r, char *ret_why, size_t why_size)
{
    if (r->err != 0)
        snprintf(ret_why, why_size, "%s", r->why);
    return r->err;
}

int snapshot_reader_feed(struct snapshot_reader *r, struct keel_slice bytes, char *ret_why,
                         size_t why_size)
{
    while (r->err == 0 && bytes.len > 0) {
        size_t missing = r->need - r->have.len;
        size_t len = bytes.len < missing ? bytes.len : missing;

        pile_append(&r->have, keel_slice_of(bytes.data, len));
        r->position += len;
        bytes = keel_slice_of(bytes.data + len, bytes.len - len);
        if (len == missing || r->part == READ_NOTHING)
            r->err = take_part(r);
    }
    return report(r, ret_why, why_size);
}

int snapshot_reader_finish(struct snapshot_reader *r, struct snapshot_info *ret_info, char *ret_why,
                           size_t why_size)
{
    if (r->err == 0 && r->part != READ_NOTHING)
        r->err = damaged(r, "it ends there");
    if (r->err == 0)
        *ret_info = r->info;
    return report(r, ret_why, why_size);
}

struct snapshot_reader *snapshot_reader_free(struct snapshot_reader *r)
{
    if (r == NULL)
        return NULL;
    kv_batch_free(r->batch);
    kv_batch_free(r->meta);
    free(r->have.data);
    free(r);
    return NULL;
}
