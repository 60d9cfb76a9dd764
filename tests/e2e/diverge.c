/* diverge STORE: makes the store of a stopped node one that no sequence of log entries leads to,
 * and with which nothing seems to be wrong: the permissions of the file that was written last are
 * other ones, and all checksums are right. For test_checks.py. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "bytes.h"
#include "err.h"
#include "mvcc/kv.h"
#include "mvcc/record.h"

#define STATE "state"
enum { STATE_LEN = 56, HASH_AT = 32, CHECK_AT = 48 }; /* docs/format-store.md */

struct found {
    uint8_t key[MVCC_REVISION_KEY_LEN];
    struct mvcc_record record;
    struct keel_buf *old, *path;
};

/* Keeps the last one that is a file. */
static int look_at(void *arg, struct keel_slice key, struct keel_slice value)
{
    struct found *f = arg;
    struct mvcc_record record;
    struct keel_slice path;
    int err = mvcc_record_decode(value, &record, &path);

    if (err != 0 || record.kind != MVCC_FILE)
        return err;
    keel_buf_free(f->old);
    keel_buf_free(f->path);
    memcpy(f->key, key.data, sizeof f->key);
    f->record = record;
    f->old = keel_buf_copy(value);
    f->path = keel_buf_copy(path);
    return revision_key_decode(key, &f->record.revision);
}

static struct keel_hash128 hash_of(const struct found *f, struct keel_slice record)
{
    struct keel_buf *keyed = keel_buf_new(sizeof f->key + record.len);

    memcpy(keyed->data, f->key, sizeof f->key);
    memcpy(keyed->data + sizeof f->key, record.data, record.len);
    struct keel_hash128 hash = keel_hash128_of(keel_buf_slice(keyed));

    keel_buf_free(keyed);
    return hash;
}

static struct keel_buf *new_state(struct keel_slice old, struct keel_hash128 gone,
                                  struct keel_hash128 come)
{
    struct keel_buf *state = keel_buf_copy(old);
    struct keel_hash128 hash = { get_le64(state->data + HASH_AT),
                                 get_le64(state->data + HASH_AT + 8) };

    hash = keel_hash128_add(keel_hash128_sub(hash, gone), come);
    put_le64(state->data + HASH_AT, hash.low);
    put_le64(state->data + HASH_AT + 8, hash.high);
    put_le64(state->data + CHECK_AT, keel_hash64(keel_slice_of(state->data, CHECK_AT)));
    return state;
}

static int diverge(struct kv *kv)
{
    struct kv_read *read = kv->ops->read_begin(kv);
    struct kv_batch *batch = kv_batch_new();
    struct found f = { 0 };
    struct keel_slice state;
    int err = kv->ops->scan(read, KV_RECORDS, keel_slice_of(NULL, 0), look_at, &f);

    if (err == 0)
        err = kv->ops->get(read, KV_META, keel_slice_str(STATE), &state);
    if (err == 0 && (f.old == NULL || state.len != STATE_LEN))
        err = KEEL_E_NOTFOUND;
    if (err == 0) {
        f.record.mode ^= 0111;
        struct keel_buf *keyed = record_encode_keyed(&f.record, keel_buf_slice(f.path));
        struct keel_slice record =
            keel_slice_of(keyed->data + sizeof f.key, keyed->len - sizeof f.key);

        kv_batch_put(batch, KV_RECORDS, keel_slice_of(f.key, sizeof f.key), keel_buf_copy(record));
        kv_batch_put(batch, KV_META, keel_slice_str(STATE),
                     new_state(state, hash_of(&f, keel_buf_slice(f.old)), hash_of(&f, record)));
        keel_buf_free(keyed);
    }
    kv->ops->read_end(read);
    if (err == 0)
        err = kv->ops->write(kv, batch);
    kv_batch_free(batch);
    keel_buf_free(f.old);
    keel_buf_free(f.path);
    return err;
}

int main(int argc, char **argv)
{
    struct kv *kv;
    char why[512] = "";

    if (argc != 2) {
        fputs("usage: diverge STORE\n", stderr);
        return 2;
    }
    int err = kv_lmdb_open(argv[1], UINT64_C(1) << 30, &kv, why, sizeof why);

    if (err == 0) {
        err = diverge(kv);
        kv->ops->close(kv);
    }
    if (err != 0)
        fprintf(stderr, "diverge: %s: %s %s\n", argv[1], keel_strerror(err), why);
    return err == 0 ? 0 : 1;
}
