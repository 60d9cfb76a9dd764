/* Snapshots: any bytes, in pieces of any size, give batches or one error for good; what is read to
 * the end is a store that opens or is refused in words, and is streamed again. As hardly any random
 * bytes have sound checks, the same input is also tried with checks that were put right. */
#include <stdlib.h>

#include "../unit/mvcc/chain.h"
#include "check.h"
#include "err.h"
#include "mvcc/mvcc.h"
#include "mvcc/snapshot.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int store(void *arg, struct kv_batch *batch_take)
{
    struct kv *kv = arg;
    int err = kv->ops->write(kv, batch_take);

    KEEL_ASSERT(batch_take->count > 0);
    kv_batch_free(batch_take);
    return err;
}

/* Again from the kv: it must be one that a reader takes, with the same numbers; unless the records
 * or their contents are not what a store has. */
static void stream_again(struct kv *kv, const struct snapshot_info *info)
{
    struct snapshot_reader *reader = snapshot_reader_new(NULL, NULL);
    struct snapshot_writer *writer;
    struct snapshot_info again;
    struct keel_slice piece;
    char why[256];

    KEEL_ASSERT(snapshot_writer_new(kv, info->cluster_id, &writer) == 0);
    int err;

    while ((err = snapshot_writer_next(writer, &piece)) == 0) {
        KEEL_ASSERT(snapshot_reader_feed(reader, piece, why, sizeof why) == 0);
        if (piece.len == 0)
            break;
    }
    KEEL_ASSERT(err == 0 || err == KEEL_E_CORRUPT || err == KEEL_E_NEWER);
    if (err == 0) {
        KEEL_ASSERT(snapshot_reader_finish(reader, &again, why, sizeof why) == 0);
        again.bytes = info->bytes; /* blocks may have been cut elsewhere */
        KEEL_ASSERT(memcmp(&again, info, sizeof again) == 0);
    }
    snapshot_writer_free(writer);
    snapshot_reader_free(reader);
}

static void open_store(struct kv *kv)
{
    struct mvcc *m = NULL;
    char why[256] = "";
    int err = mvcc_open(kv, &m, why, sizeof why);

    KEEL_ASSERT(err == 0 || err == KEEL_E_CORRUPT || err == KEEL_E_NEWER);
    KEEL_ASSERT(err == 0 || strlen(why) > 20);
    mvcc_close(m);
}

static void check_stream(struct keel_slice bytes, size_t piece)
{
    struct kv *kv = kv_mem_new();
    struct snapshot_reader *reader = snapshot_reader_new(store, kv);
    struct snapshot_info info;
    char why[256] = "";
    int err = 0;

    for (size_t at = 0; at < bytes.len; at += piece) {
        size_t left = bytes.len - at;
        struct keel_slice part = keel_slice_of(bytes.data + at, left < piece ? left : piece);
        int now = snapshot_reader_feed(reader, part, why, sizeof why);

        KEEL_ASSERT(err == 0 || now == err);
        err = now;
    }
    int end = snapshot_reader_finish(reader, &info, why, sizeof why);

    KEEL_ASSERT(err == 0 || end == err);
    KEEL_ASSERT(end == 0 || end == KEEL_E_CORRUPT || end == KEEL_E_NEWER);
    KEEL_ASSERT(end == 0 || strlen(why) > 20);
    if (end == 0) {
        open_store(kv);
        stream_again(kv, &info);
    }
    snapshot_reader_free(reader);
    kv->ops->close(kv);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t *copy = keel_malloc(size);

    check_stream(keel_slice_of(data, size), 1 + size / 3);
    if (size > 0)
        memcpy(copy, data, size);
    chain_repair(copy, size);
    check_stream(keel_slice_of(copy, size), size % 2 ? 7 : size);
    free(copy);
    return 0;
}
