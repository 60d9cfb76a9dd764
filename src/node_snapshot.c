/* Snapshots of the node: the one that it sends, the one that a user reads and the one that it is
 * sent, each in a file without a name, and the installing of the latter. All of it on one thread,
 * in order. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "check.h"
#include "err.h"
#include "log.h"
#include "mvcc/snapshot.h"
#include "node_internal.h"
#include "store_install.h"

enum snap_verb {
    SNAP_MAKE,
    SNAP_READ,
    SNAP_DROP,
    SNAP_STORE,
    SNAP_INSTALL,
    SNAP_FINISH,
    SNAP_CLOSE
};

/* Who one that is made is for. */
enum snap_reader { FOR_PEERS, FOR_USER, SNAP_READERS };

struct snap_work {
    struct work work;
    enum snap_verb verb;
    struct kv *kv;         /* SNAP_MAKE: of what; SNAP_INSTALL: the new one; SNAP_CLOSE */
    enum snap_reader out;  /* SNAP_MAKE, SNAP_READ, SNAP_DROP: which one */
    uint64_t making;       /* SNAP_MAKE */
    uint64_t peer, offset; /* SNAP_READ, SNAP_STORE */
    size_t size;           /* SNAP_READ */
    struct keel_buf *bytes;
    struct snapshot_info info;
    int err;
};

struct outgoing {
    /* the thread's: */
    int fd; /* -1: none */
    uint64_t bytes;
    /* the loop's; the thread looks whether it works in vain: */
    _Atomic uint64_t making; /* the number of the last one; 0: dropped */
    uint64_t made;           /* in all */
};

struct snapshots {
    struct outgoing out[SNAP_READERS];
    int in_fd; /* the thread's; -1: none */
    uint64_t in_bytes;
    bool user_waits; /* the loop's: for the store to have this */
    uint64_t user_index;
};

static int disk_err(void)
{
    return errno == ENOSPC || errno == EDQUOT ? KEEL_E_DISKFULL : KEEL_E_IO;
}

static void forget(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

/* It has no name, so that nothing is left of it after a crash. */
static int open_nameless(const char *name)
{
    int fd = open(name, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);

    if (fd >= 0 && unlink(name) != 0) {
        close(fd);
        return -1;
    }
    return fd;
}

static int write_at(int fd, struct keel_slice bytes, uint64_t offset)
{
    while (bytes.len > 0) {
        ssize_t written = pwrite(fd, bytes.data, bytes.len, (off_t)offset);

        if (written < 0 && errno == EINTR)
            continue;
        if (written <= 0)
            return disk_err();
        offset += (uint64_t)written;
        bytes = keel_slice_of(bytes.data + written, bytes.len - (size_t)written);
    }
    return 0;
}

/* ---- on the thread: what is sent ---- */

static int copy_out(struct outgoing *out, struct snap_work *w, struct snapshot_writer *writer)
{
    struct keel_slice piece;
    int err;

    while ((err = snapshot_writer_next(writer, &piece)) == 0 && piece.len > 0) {
        if (atomic_load(&out->making) != w->making)
            return KEEL_E_CANCELLED;
        err = write_at(out->fd, piece, out->bytes);
        if (err != 0)
            return err;
        out->bytes += piece.len;
    }
    w->info = *snapshot_writer_info(writer);
    return err;
}

static int run_make(struct node *node, struct snap_work *w)
{
    struct outgoing *out = &node->snapshots->out[w->out];
    struct snapshot_writer *writer;

    forget(&out->fd);
    out->bytes = 0;
    out->fd = open_nameless("snapshot-out");
    if (out->fd < 0)
        return disk_err();
    int err = snapshot_writer_new(w->kv, node->identity.cluster_id, &writer);

    if (err == 0) {
        err = copy_out(out, w, writer);
        snapshot_writer_free(writer);
    }
    if (err != 0)
        forget(&out->fd);
    if (err == KEEL_E_CORRUPT)
        keel_fatal("the store is damaged: a snapshot of it was refused" STORE_ADVICE);
    return err;
}

/* No bytes: it cannot be read. */
static void run_read(const struct outgoing *out, struct snap_work *w)
{
    if (out->fd < 0 || w->offset > out->bytes)
        return;
    size_t left = w->size < out->bytes - w->offset ? w->size : (size_t)(out->bytes - w->offset);
    struct keel_buf *bytes = keel_buf_new(left);

    for (size_t at = 0; at < left;) {
        ssize_t got = pread(out->fd, bytes->data + at, left - at, (off_t)(w->offset + at));

        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0) {
            keel_buf_free(bytes);
            return;
        }
        at += (size_t)got;
    }
    w->bytes = bytes;
}

/* ---- on the thread: what is received ---- */

static int run_store(struct snapshots *s, const struct snap_work *w)
{
    if (w->offset == 0) {
        forget(&s->in_fd);
        s->in_fd = open_nameless("snapshot-in");
        s->in_bytes = 0;
    }
    if (s->in_fd < 0)
        return w->offset == 0 ? disk_err() : KEEL_E_INVALID;
    KEEL_ASSERT(w->offset == s->in_bytes);
    int err = write_at(s->in_fd, keel_buf_slice(w->bytes), w->offset);

    if (err != 0)
        forget(&s->in_fd);
    s->in_bytes += w->bytes->len;
    return err;
}

/* ---- on the thread: the new store ---- */

static bool is_refusal(int err)
{
    return err == KEEL_E_CORRUPT || err == KEEL_E_NEWER || err == KEEL_E_INVALID ||
           err == KEEL_E_NOTSUPPORTED;
}

/* A snapshot that is not what it should be is not used. Whatever else goes wrong leaves files of
 * which only the next start can tell which of them count. */
static int run_install(struct node *node, struct snap_work *w)
{
    char why[1024];
    int err = store_install_build(node->snapshots->in_fd, node->map_bytes,
                                  node->identity.cluster_id, &w->info, why, sizeof why);

    forget(&node->snapshots->in_fd);
    if (is_refusal(err)) {
        log_warning("the snapshot that was received is not used: %s", why);
        return err;
    }
    if (err == 0)
        err = store_install_swap(why, sizeof why);
    if (err == 0)
        err = kv_lmdb_open(STORE_DIR, node->map_bytes, &w->kv, why, sizeof why);
    if (err != 0)
        keel_fatal("%s; %s", why,
                   err == KEEL_E_DISKFULL ? "make space on the disk and start the node again"
                                          : "check the disk before the node is started again");
    return 0;
}

static void run_finish(void)
{
    char why[1024];

    if (store_install_finish(why, sizeof why) != 0)
        keel_fatal("%s; check the disk before the node is started again", why);
}

static void run_one(struct node *node, struct snap_work *w)
{
    switch (w->verb) {
    case SNAP_MAKE:
        w->err = run_make(node, w);
        break;
    case SNAP_READ:
        run_read(&node->snapshots->out[w->out], w);
        break;
    case SNAP_DROP:
        forget(&node->snapshots->out[w->out].fd);
        break;
    case SNAP_STORE:
        w->err = run_store(node->snapshots, w);
        break;
    case SNAP_INSTALL:
        w->err = run_install(node, w);
        break;
    case SNAP_FINISH:
        run_finish();
        break;
    case SNAP_CLOSE:
        w->kv->ops->close(w->kv);
        break;
    }
}

static void snap_run(void *arg, struct work *list)
{
    for (struct work *item = list; item != NULL; item = item->next)
        run_one(arg, KEEL_CONTAINER_OF(item, struct snap_work, work));
}

/* ---- on the loop ---- */

static void submit(struct node *node, enum snap_verb verb, struct snap_work asked)
{
    struct snap_work *w = keel_malloc(sizeof *w);

    *w = asked;
    w->verb = verb;
    worker_submit(&node->snap_worker, &w->work);
}

/* The new store is in use once the replica has taken it over; the old one is closed away from the
 * loop. */
static void installed(struct node *node, struct snap_work *w)
{
    struct kv *old = node->kv;

    if (w->err == 0)
        node->kv = w->kv;
    replica_on_snapshot_installed(node->replica, w->err, w->kv, &w->info);
    if (w->err == 0)
        submit(node, SNAP_CLOSE, (struct snap_work){ .kv = old });
    else
        node->installing = false;
}

/* The node stops, and nothing is told any more. A store that was installed counts from the next
 * start on, as after a crash. */
static void stopped(struct snap_work *w)
{
    if (w->verb == SNAP_INSTALL && w->err == 0)
        w->kv->ops->close(w->kv);
}

static void tell_made(struct node *node, struct snap_work *w)
{
    if (atomic_load(&node->snapshots->out[w->out].making) != w->making)
        return;
    if (w->out == FOR_PEERS)
        replica_on_snapshot_made(node->replica, w->err, &w->info);
    else
        fs_snapshot_made(node->fs, w->err, w->info.bytes);
}

static void tell_read(struct node *node, struct snap_work *w)
{
    if (w->out == FOR_PEERS)
        replica_on_snapshot_read(node->replica, w->peer, w->offset, w->bytes);
    else
        fs_snapshot_read(node->fs, w->bytes);
}

static void tell(struct node *node, struct snap_work *w)
{
    switch (w->verb) {
    case SNAP_MAKE:
        tell_made(node, w);
        break;
    case SNAP_READ:
        tell_read(node, w);
        break;
    case SNAP_STORE:
        replica_on_snapshot_stored(node->replica, w->err, w->offset + w->bytes->len);
        break;
    case SNAP_INSTALL:
        installed(node, w);
        break;
    case SNAP_FINISH:
        node->installing = false;
        break;
    case SNAP_DROP:
    case SNAP_CLOSE:
        break;
    }
}

static void snap_done(void *arg, struct work *item)
{
    struct node *node = arg;
    struct snap_work *w = KEEL_CONTAINER_OF(item, struct snap_work, work);

    if (w->verb == SNAP_MAKE)
        node->store_readers--;
    if (node->workers_running)
        tell(node, w);
    else
        stopped(w);
    node_defrag_advance(node);
    keel_buf_free(w->bytes);
    free(w);
}

static const struct worker_ops snap_worker_ops = { .run = snap_run, .done = snap_done };

void node_snapshots_start(struct node *node)
{
    node->snapshots = keel_calloc(1, sizeof *node->snapshots);
    node->snapshots->in_fd = -1;
    for (size_t i = 0; i < SNAP_READERS; i++)
        node->snapshots->out[i].fd = -1;
    worker_start(&node->snap_worker, &node->loop, &snap_worker_ops, node, 0);
}

void node_snapshots_stop(struct node *node)
{
    for (size_t i = 0; i < SNAP_READERS; i++)
        atomic_store(&node->snapshots->out[i].making, 0);
    worker_stop(&node->snap_worker);
    for (size_t i = 0; i < SNAP_READERS; i++)
        forget(&node->snapshots->out[i].fd);
    forget(&node->snapshots->in_fd);
    free(node->snapshots);
    node->snapshots = NULL;
}

static void make(struct node *node, enum snap_reader reader)
{
    struct outgoing *out = &node->snapshots->out[reader];
    uint64_t making = ++out->made;

    atomic_store(&out->making, making);
    node->store_readers++;
    submit(node, SNAP_MAKE, (struct snap_work){ .kv = node->kv, .out = reader, .making = making });
}

static void drop(struct node *node, enum snap_reader reader)
{
    atomic_store(&node->snapshots->out[reader].making, 0);
    submit(node, SNAP_DROP, (struct snap_work){ .out = reader });
}

void node_snapshot_make(struct node *node)
{
    make(node, FOR_PEERS);
}

void node_snapshot_read(struct node *node, uint64_t peer, uint64_t offset, size_t bytes)
{
    submit(node, SNAP_READ,
           (struct snap_work){ .out = FOR_PEERS, .peer = peer, .offset = offset, .size = bytes });
}

void node_snapshot_drop(struct node *node)
{
    drop(node, FOR_PEERS);
}

void node_snapshot_store(struct node *node, uint64_t offset, struct keel_buf *bytes_take)
{
    submit(node, SNAP_STORE, (struct snap_work){ .offset = offset, .bytes = bytes_take });
}

void node_snapshot_install(struct node *node)
{
    submit(node, SNAP_INSTALL, (struct snap_work){ 0 });
}

void node_snapshot_finish(struct node *node)
{
    submit(node, SNAP_FINISH, (struct snap_work){ 0 });
}

/* ---- for a user ---- */

void node_user_snapshot_make(struct node *node)
{
    node->snapshots->user_waits = true;
    node->snapshots->user_index = mvcc_applied_index(node->mvcc);
    node_user_snapshot_advance(node);
}

void node_user_snapshot_advance(struct node *node)
{
    struct snapshots *s = node->snapshots;

    if (!s->user_waits || mvcc_durable_index(node->mvcc) < s->user_index)
        return;
    s->user_waits = false;
    make(node, FOR_USER);
}

void node_user_snapshot_read(struct node *node, uint64_t offset, size_t bytes)
{
    submit(node, SNAP_READ, (struct snap_work){ .out = FOR_USER, .offset = offset, .size = bytes });
}

void node_user_snapshot_drop(struct node *node)
{
    if (node->snapshots == NULL)
        return; /* what is left of it went with the thread */
    node->snapshots->user_waits = false;
    drop(node, FOR_USER);
}
