/* Batches of writes: built by the owner of the data, written by a kv. What a kv does with them is
 * in kv_lmdb.c and kv_mem.c. */
#include <stdlib.h>

#include "check.h"
#include "mvcc/kv.h"

struct kv_batch *kv_batch_new(void)
{
    return keel_calloc(1, sizeof(struct kv_batch));
}

static struct kv_write *batch_add(struct kv_batch *batch, enum kv_table table,
                                  struct keel_slice key)
{
    KEEL_ASSERT(table < KV_TABLES);
    KEEL_ASSERT(key.len > 0 && key.len <= sizeof batch->writes->key);
    if (batch->count == batch->capacity) {
        batch->capacity = batch->capacity ? batch->capacity * 2 : 16;
        batch->writes = keel_realloc(batch->writes, batch->capacity * sizeof *batch->writes);
    }
    struct kv_write *write = &batch->writes[batch->count++];

    *write = (struct kv_write){ .table = table, .key_len = (uint8_t)key.len };
    memcpy(write->key, key.data, key.len);
    batch->bytes += key.len;
    return write;
}

void kv_batch_put_slice(struct kv_batch *batch, enum kv_table table, struct keel_slice key,
                        struct keel_buf *value_take, struct keel_slice bytes)
{
    struct kv_write *write = batch_add(batch, table, key);

    KEEL_ASSERT(value_take == NULL || bytes.len <= value_take->len);
    write->value = value_take;
    write->bytes = bytes;
    batch->bytes += bytes.len;
}

void kv_batch_put(struct kv_batch *batch, enum kv_table table, struct keel_slice key,
                  struct keel_buf *value_take)
{
    kv_batch_put_slice(batch, table, key, value_take, keel_buf_slice(value_take));
}

void kv_batch_remove(struct kv_batch *batch, enum kv_table table, struct keel_slice key)
{
    batch_add(batch, table, key)->remove = true;
}

void kv_batch_forget_values(struct kv_batch *batch)
{
    for (size_t i = 0; i < batch->count; i++) {
        keel_buf_free(batch->writes[i].value);
        batch->writes[i].value = NULL;
        batch->writes[i].bytes = keel_slice_of(NULL, 0);
    }
}

struct kv_batch *kv_batch_free(struct kv_batch *batch)
{
    if (batch == NULL)
        return NULL;
    for (size_t i = 0; i < batch->count; i++)
        keel_buf_free(batch->writes[i].value);
    free(batch->writes);
    free(batch);
    return NULL;
}
