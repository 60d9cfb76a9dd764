/* A kv from another one: see kv.h. Appending in key order leaves no free space behind but what the
 * last commits replaced. */
#include "check.h"
#include "err.h"
#include "mvcc/kv.h"

/* Each is synced: the log, which may be on the same disk, waits no longer than for one. */
enum { PIECE_BYTES = 1 << 20 };

struct copy {
    struct kv *from, *to;
    enum kv_table table;
    struct kv_batch *piece;
    int (*go_on)(void *arg);
    void *arg;
};

static int write_piece(struct copy *c)
{
    int err = c->go_on != NULL ? c->go_on(c->arg) : 0;

    if (err == 0)
        err = c->to->ops->write(c->to, c->piece);
    kv_batch_free(c->piece);
    c->piece = kv_batch_new();
    return err;
}

static int copy_one(void *arg, struct keel_slice key, struct keel_slice value)
{
    struct copy *c = arg;

    kv_batch_put_slice(c->piece, c->table, key, NULL, value);
    return c->piece->bytes < PIECE_BYTES ? 0 : write_piece(c);
}

int kv_copy(struct kv *from, struct kv *to, int (*go_on)(void *arg), void *arg)
{
    struct copy c = { .from = from, .to = to, .piece = kv_batch_new(), .go_on = go_on, .arg = arg };
    struct kv_read *read = from->ops->read_begin(from);
    int err = 0;

    for (enum kv_table t = 0; t < KV_TABLES && err == 0; t++) {
        c.table = t;
        err = from->ops->scan(read, t, keel_slice_of(NULL, 0), copy_one, &c);
    }
    if (err == 0)
        err = write_piece(&c);
    from->ops->read_end(read);
    kv_batch_free(c.piece);
    return err;
}

static int follow_one(struct copy *c, struct kv_read *read, const struct kv_write *write)
{
    struct keel_slice key = keel_slice_of(write->key, write->key_len), value;
    int err = c->from->ops->get(read, write->table, key, &value);

    if (err == 0)
        kv_batch_put_slice(c->piece, write->table, key, NULL, value);
    else if (err == KEEL_E_NOTFOUND)
        kv_batch_remove(c->piece, write->table, key);
    else
        return err;
    return c->piece->bytes < PIECE_BYTES ? 0 : write_piece(c);
}

int kv_follow(struct kv *from, struct kv *to, const struct kv_batch *batches)
{
    struct copy c = { .from = from, .to = to, .piece = kv_batch_new() };
    struct kv_read *read = from->ops->read_begin(from);
    int err = 0;

    for (const struct kv_batch *batch = batches; batch != NULL; batch = batch->next)
        for (size_t i = 0; i < batch->count && err == 0; i++)
            err = follow_one(&c, read, &batch->writes[i]);
    if (err == 0)
        err = write_piece(&c);
    from->ops->read_end(read);
    kv_batch_free(c.piece);
    return err;
}
