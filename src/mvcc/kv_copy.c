/* A kv from another one: see kv.h. Appending in key order leaves no free space behind but what the
 * last commits replaced. */
#include "check.h"
#include "mvcc/kv.h"

/* Each is synced: the log, which may be on the same disk, waits no longer than for one. */
enum { PIECE_BYTES = 1 << 20 };

struct copy {
    struct kv *to;
    enum kv_table table;
    struct kv_batch *piece;
    int (*go_on)(void *arg);
    void *arg;
};

static int write_piece(struct copy *c)
{
    int err = c->go_on(c->arg);

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
    struct copy c = { .to = to, .piece = kv_batch_new(), .go_on = go_on, .arg = arg };
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
