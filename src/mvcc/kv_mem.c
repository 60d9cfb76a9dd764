/* A kv of sorted arrays, for tests and the simulator. A reader holds the version of the tables that
 * it began with; a write while somebody reads goes into a copy. Values are shared, keys are copied.
 * Nothing here blocks or fails. */
#include <stdlib.h>

#include "check.h"
#include "err.h"
#include "mvcc/kv.h"

struct mem_entry {
    uint8_t key_len;
    uint8_t key[32];
    struct keel_buf *value; /* NULL: removed; only inside a write */
};

struct mem_table {
    struct mem_entry *entries; /* ascending by key */
    size_t count, capacity;
    size_t removed; /* of count */
};

struct mem_version {
    size_t users; /* the kv while it is the newest one, and readers */
    struct mem_table tables[KV_TABLES];
};

struct kv_mem {
    struct kv kv;
    struct mem_version *newest;
};

struct kv_read {
    struct mem_version *version;
};

static struct kv_mem *mem_of(struct kv *kv)
{
    return KEEL_CONTAINER_OF(kv, struct kv_mem, kv);
}

static struct keel_slice entry_key(const struct mem_entry *entry)
{
    return keel_slice_of(entry->key, entry->key_len);
}

static void version_release(struct mem_version *version)
{
    KEEL_ASSERT(version->users > 0);
    if (--version->users > 0)
        return;
    for (size_t t = 0; t < KV_TABLES; t++) {
        for (size_t i = 0; i < version->tables[t].count; i++)
            keel_buf_free(version->tables[t].entries[i].value);
        free(version->tables[t].entries);
    }
    free(version);
}

static struct mem_version *version_copy(const struct mem_version *old)
{
    struct mem_version *copy = keel_calloc(1, sizeof *copy);

    copy->users = 1;
    for (size_t t = 0; t < KV_TABLES; t++) {
        const struct mem_table *from = &old->tables[t];
        struct mem_table *to = &copy->tables[t];

        to->count = to->capacity = from->count;
        to->entries = keel_malloc(from->count * sizeof *to->entries);
        for (size_t i = 0; i < from->count; i++) {
            to->entries[i] = from->entries[i];
            keel_buf_ref(to->entries[i].value);
        }
    }
    return copy;
}

/* The first entry with a key >= key. */
static size_t table_find(const struct mem_table *table, struct keel_slice key, bool *ret_equal)
{
    size_t low = 0, high = table->count;

    /* Most keys go behind the last one. */
    if (high > 0 && keel_slice_compare(entry_key(&table->entries[high - 1]), key) < 0)
        low = high;
    while (low < high) {
        size_t middle = low + (high - low) / 2;

        if (keel_slice_compare(entry_key(&table->entries[middle]), key) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    *ret_equal = low < table->count && keel_slice_equal(entry_key(&table->entries[low]), key);
    return low;
}

static void table_insert(struct mem_table *table, size_t at, struct keel_slice key,
                         struct keel_buf *value_take)
{
    if (table->count == table->capacity) {
        table->capacity = table->capacity ? table->capacity * 2 : 16;
        table->entries = keel_realloc(table->entries, table->capacity * sizeof *table->entries);
    }
    struct mem_entry *entry = &table->entries[at];

    memmove(entry + 1, entry, (table->count - at) * sizeof *entry);
    *entry = (struct mem_entry){ .key_len = (uint8_t)key.len, .value = value_take };
    memcpy(entry->key, key.data, key.len);
    table->count++;
}

/* Removed entries stay until the end of the batch: so they cost one pass together. */
static void table_set(struct mem_table *table, size_t at, struct keel_buf *value_take)
{
    struct mem_entry *entry = &table->entries[at];

    if (entry->value == NULL)
        table->removed--;
    if (value_take == NULL)
        table->removed++;
    keel_buf_free(entry->value);
    entry->value = value_take;
}

static void table_sweep(struct mem_table *table)
{
    size_t kept = 0;

    if (table->removed == 0)
        return;
    for (size_t i = 0; i < table->count; i++)
        if (table->entries[i].value != NULL)
            table->entries[kept++] = table->entries[i];
    KEEL_ASSERT(kept + table->removed == table->count);
    table->count = kept;
    table->removed = 0;
}

static struct kv_read *mem_read_begin(struct kv *kv)
{
    struct kv_read *read = keel_malloc(sizeof *read);

    read->version = mem_of(kv)->newest;
    read->version->users++;
    return read;
}

static void mem_read_end(struct kv_read *read)
{
    version_release(read->version);
    free(read);
}

static int mem_get(struct kv_read *read, enum kv_table table, struct keel_slice key,
                   struct keel_slice *ret_value)
{
    const struct mem_table *in = &read->version->tables[table];
    bool equal;
    size_t at = table_find(in, key, &equal);

    if (!equal)
        return KEEL_E_NOTFOUND;
    *ret_value = keel_buf_slice(in->entries[at].value);
    return 0;
}

static int mem_scan(struct kv_read *read, enum kv_table table, struct keel_slice from,
                    int (*fn)(void *arg, struct keel_slice key, struct keel_slice value), void *arg)
{
    const struct mem_table *in = &read->version->tables[table];
    bool equal;

    for (size_t i = table_find(in, from, &equal); i < in->count; i++) {
        int result = fn(arg, entry_key(&in->entries[i]), keel_buf_slice(in->entries[i].value));

        if (result != 0)
            return result;
    }
    return 0;
}

/* A part of a bigger buf is copied, lest the store keep whole log entries alive. */
static struct keel_buf *value_of(const struct kv_write *write)
{
    if (write->value != NULL && write->bytes.len == write->value->len)
        return keel_buf_ref(write->value);
    return keel_buf_copy(write->bytes);
}

static void mem_apply(struct mem_table *table, const struct kv_write *write)
{
    struct keel_slice key = keel_slice_of(write->key, write->key_len);
    bool equal;
    size_t at = table_find(table, key, &equal);

    struct keel_buf *value = write->remove ? NULL : value_of(write);

    if (equal)
        table_set(table, at, value);
    else if (value != NULL)
        table_insert(table, at, key, value);
}

static int mem_write(struct kv *kv, const struct kv_batch *batch)
{
    struct kv_mem *mem = mem_of(kv);

    if (mem->newest->users > 1) {
        struct mem_version *old = mem->newest;

        mem->newest = version_copy(old);
        version_release(old);
    }
    for (size_t i = 0; i < batch->count; i++)
        mem_apply(&mem->newest->tables[batch->writes[i].table], &batch->writes[i]);
    for (size_t t = 0; t < KV_TABLES; t++)
        table_sweep(&mem->newest->tables[t]);
    return 0;
}

static void mem_sizes(struct kv *kv, uint64_t *ret_file, uint64_t *ret_used)
{
    const struct mem_version *version = mem_of(kv)->newest;
    uint64_t sum = 0;

    for (size_t t = 0; t < KV_TABLES; t++)
        for (size_t i = 0; i < version->tables[t].count; i++)
            sum += sizeof(struct mem_entry) + version->tables[t].entries[i].value->len;
    *ret_file = sum;
    *ret_used = sum;
}

static void mem_close(struct kv *kv)
{
    KEEL_ASSERT(mem_of(kv)->newest->users == 1);
    version_release(mem_of(kv)->newest);
    free(mem_of(kv));
}

static const struct kv_ops mem_ops = {
    .read_begin = mem_read_begin,
    .read_end = mem_read_end,
    .get = mem_get,
    .scan = mem_scan,
    .write = mem_write,
    .sizes = mem_sizes,
    .close = mem_close,
};

struct kv *kv_mem_new(void)
{
    struct kv_mem *mem = keel_calloc(1, sizeof *mem);

    mem->kv.ops = &mem_ops;
    mem->newest = keel_calloc(1, sizeof *mem->newest);
    mem->newest->users = 1;
    return &mem->kv;
}
