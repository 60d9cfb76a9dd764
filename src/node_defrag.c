/* Defragmentation of the store of a running node: on a thread of its own, while the loop reads, and
 * the store thread writes on. The files and their order are in store_defrag.h.
 *
 *   idle ──> copying ──> ready <──> catching up
 *    ^          │          │ │
 *    │          │(error)   │ └──> switching ──> switched ──┐
 *    └──────────┴──<───────┴────── dropping <──────────────┘
 *
 * It begins while no checkpoint is out, and the keys of all that are written from then on are kept,
 * to be copied once more. With the last of them in the copy the two stores change places; a
 * checkpoint that comes in that moment is held, and written to the new store. */
#include <inttypes.h>
#include <stdlib.h>

#include "check.h"
#include "err.h"
#include "log.h"
#include "node_internal.h"
#include "store_defrag.h"
#include "store_install.h"

enum {
    KEPT_BYTES_MAX = 64 << 20,             /* of keys; beyond it, it is given up */
    FEW_BYTES = 2 * KEEL_CHECKPOINT_BYTES, /* to be copied once more: the switch may come */
    ROUNDS_MAX = 32,                       /* of catching up */
};

static const uint64_t FILE_BYTES_MIN = 64 << 20;      /* smaller ones are not worth it */
static const uint64_t PAUSE_US = UINT64_C(600000000); /* between two that nobody asked for */

enum phase { IDLE, COPYING, READY, CATCHING_UP, SWITCHING, SWITCHED, DROPPING };

struct defrag {
    enum phase phase;
    bool wanted, install_waits, stopping;
    atomic_bool give_up;
    struct kv *kv;         /* the copy, until the switch */
    struct kv *old;        /* after it: still to be closed */
    struct kv_batch *kept; /* written to the store, not yet to the copy: keys */
    struct kv_batch **kept_tail;
    size_t kept_bytes;     /* in memory */
    uint64_t left_bytes;   /* to be copied once more */
    struct kv_batch *held; /* for whatever the store is after the switch */
    unsigned rounds;
    uint64_t tried_us; /* the last time; 0: never */
    uint64_t file_bytes;
    uint64_t done;
};

enum verb { COPY, CATCH_UP, SWITCH, DROP };

struct defrag_work {
    struct work work;
    enum verb verb;
    struct kv *kv, *old;
    struct kv_batch *batches;
    int err;
    char why[512];
};

static void free_batches(struct kv_batch *list)
{
    while (list != NULL) {
        struct kv_batch *batch = list;

        list = batch->next;
        kv_batch_free(batch);
    }
}

/* ---- on the thread ---- */

static void run_one(struct node *node, struct defrag_work *w)
{
    switch (w->verb) {
    case COPY:
        w->err = store_defrag_copy(w->old, node->map_bytes, &node->defrag->give_up, &w->kv, w->why,
                                   sizeof w->why);
        break;
    case CATCH_UP:
        w->err = store_defrag_catch_up(w->old, w->kv, w->batches, w->why, sizeof w->why);
        break;
    case SWITCH:
        w->err = store_defrag_catch_up(w->old, w->kv, w->batches, w->why, sizeof w->why);
        if (w->err == 0)
            w->err = store_defrag_switch(w->old, w->kv, w->why, sizeof w->why);
        break;
    case DROP:
        w->err = store_defrag_remove(w->kv, w->why, sizeof w->why);
        break;
    }
}

static void defrag_run(void *arg, struct work *list)
{
    for (struct work *item = list; item != NULL; item = item->next)
        run_one(arg, KEEL_CONTAINER_OF(item, struct defrag_work, work));
}

/* ---- on the loop: what comes next ---- */

static void submit(struct node *node, enum phase phase, struct defrag_work asked)
{
    struct defrag_work *w = keel_malloc(sizeof *w);

    *w = asked;
    node->defrag->phase = phase;
    worker_submit(&node->defrag_worker, &w->work);
}

/* Does the copy have to follow what is written? */
static bool is_copying(const struct defrag *d)
{
    return (d->phase == COPYING || d->phase == READY || d->phase == CATCHING_UP) &&
           !atomic_load(&d->give_up);
}

static struct kv_batch *take_kept(struct defrag *d)
{
    struct kv_batch *list = d->kept;

    d->kept = NULL;
    d->kept_tail = &d->kept;
    d->kept_bytes = 0;
    d->left_bytes = 0;
    return list;
}

static uint64_t file_bytes(struct node *node, uint64_t *ret_used)
{
    uint64_t file;

    node->kv->ops->sizes(node->kv, &file, ret_used);
    return file;
}

static void begin(struct node *node)
{
    struct defrag *d = node->defrag;
    uint64_t used;

    d->wanted = false;
    d->rounds = 0;
    d->tried_us = node_now_us();
    d->file_bytes = file_bytes(node, &used);
    atomic_store(&d->give_up, false);
    submit(node, COPYING, (struct defrag_work){ .verb = COPY, .old = node->kv });
}

static void drop(struct node *node, struct kv *kv)
{
    free_batches(take_kept(node->defrag));
    submit(node, DROPPING, (struct defrag_work){ .verb = DROP, .kv = kv });
}

static void drop_copy(struct node *node)
{
    struct kv *kv = node->defrag->kv;

    node->defrag->kv = NULL;
    drop(node, kv);
}

static void give_up(struct node *node, const char *why)
{
    if (!atomic_exchange(&node->defrag->give_up, true))
        log_info("the defragmentation of the store is given up for now: %s", why);
}

/* The copy is there, and its thread has nothing to do. */
static void go_on(struct node *node)
{
    struct defrag *d = node->defrag;

    if (d->rounds > ROUNDS_MAX)
        give_up(node, "writes are faster");
    if (atomic_load(&d->give_up)) {
        drop_copy(node);
    } else if (d->left_bytes > FEW_BYTES) {
        d->rounds++;
        submit(node, CATCHING_UP,
               (struct defrag_work){
                   .verb = CATCH_UP, .kv = d->kv, .old = node->kv, .batches = take_kept(d) });
    } else if (!node->checkpoint_out) {
        submit(node, SWITCHING,
               (struct defrag_work){
                   .verb = SWITCH, .kv = d->kv, .old = node->kv, .batches = take_kept(d) });
    }
}

/* The old store, once nobody reads it. */
static void drop_old(struct node *node)
{
    struct kv *old = node->defrag->old;

    if (node->store_readers > 0)
        return;
    node->defrag->old = NULL;
    drop(node, old);
}

/* Not while compaction takes off what need not be copied: each would delay the other, and about
 * half of the space would stay. */
static bool is_due(struct node *node)
{
    struct defrag *d = node->defrag;
    uint64_t used;

    if (mvcc_has_garbage(node->mvcc))
        return false;
    if (d->tried_us != 0 && node_now_us() - d->tried_us < PAUSE_US)
        return false;
    uint64_t file = file_bytes(node, &used);

    if (file < FILE_BYTES_MIN || used >= file / 2)
        return false;
    d->tried_us = node_now_us();
    if (store_defrag_has_room(used))
        return true;
    log_warning("more than half of the store's file is free, but there is no room on the disk for "
                "a second store of %" PRIu64 " MiB, to give it back",
                used >> 20);
    return false;
}

void node_defrag_advance(struct node *node)
{
    struct defrag *d = node->defrag;

    if (d->stopping)
        return;
    if (d->phase == IDLE && d->wanted && !node->checkpoint_out && !node->installing)
        begin(node);
    else if (d->phase == READY)
        go_on(node);
    else if (d->phase == SWITCHED)
        drop_old(node);
}

/* ---- on the loop: what has been done ---- */

static void ended(struct node *node)
{
    struct defrag *d = node->defrag;
    bool install = d->install_waits && !d->stopping;

    d->phase = IDLE;
    d->install_waits = false;
    if (install)
        node_snapshot_install(node);
}

static void failed(const struct defrag_work *w)
{
    if (w->err != KEEL_E_CANCELLED)
        log_warning("the store is not defragmented: %s", w->why);
}

static void copied(struct node *node, const struct defrag_work *w)
{
    struct defrag *d = node->defrag;

    if (w->err == 0) {
        d->kv = w->kv;
        d->phase = READY;
        return;
    }
    failed(w);
    free_batches(take_kept(d));
    ended(node);
}

static void caught_up(struct node *node, const struct defrag_work *w)
{
    node->defrag->phase = READY;
    if (w->err == 0)
        return;
    failed(w);
    atomic_store(&node->defrag->give_up, true);
}

static void take_over(struct node *node, const struct defrag_work *w)
{
    struct defrag *d = node->defrag;

    mvcc_switch(node->mvcc, w->kv);
    d->old = w->old;
    d->kv = NULL;
    node->kv = w->kv;
    d->phase = SWITCHED;
    d->done++;
    uint64_t used, file = file_bytes(node, &used);

    log_info("the store is defragmented: from %" PRIu64 " to %" PRIu64 " MiB", d->file_bytes >> 20,
             file >> 20);
}

static void switched(struct node *node, const struct defrag_work *w)
{
    struct defrag *d = node->defrag;
    struct kv_batch *held = d->held;

    if (w->err == 0)
        take_over(node, w);
    else
        caught_up(node, w);
    d->held = NULL;
    if (held != NULL)
        node_store_write(node, held);
}

static void defrag_done(void *arg, struct work *item)
{
    struct node *node = arg;
    struct defrag_work *w = KEEL_CONTAINER_OF(item, struct defrag_work, work);

    switch (w->verb) {
    case COPY:
        copied(node, w);
        break;
    case CATCH_UP:
        caught_up(node, w);
        break;
    case SWITCH:
        switched(node, w);
        break;
    case DROP:
        if (w->err != 0)
            log_warning("%s: it goes at the next start", w->why);
        ended(node);
        break;
    }
    free_batches(w->batches);
    free(w);
    node_defrag_advance(node);
}

static const struct worker_ops defrag_worker_ops = { .run = defrag_run, .done = defrag_done };

/* ---- for the rest of the node ---- */

int node_defrag(struct node *node)
{
    struct defrag *d = node->defrag;
    uint64_t used;

    if (d->wanted || d->phase != IDLE)
        return 0;
    if (node->installing || d->stopping)
        return KEEL_E_BUSY;
    file_bytes(node, &used);
    if (!store_defrag_has_room(used))
        return KEEL_E_DISKFULL;
    d->wanted = true;
    node_defrag_advance(node);
    return 0;
}

void node_defrag_status(const struct node *node, struct keel_text *text)
{
    const struct defrag *d = node->defrag;

    keel_text_printf(text, "defragmenting: %s\ndefragmentations: %" PRIu64 "\n",
                     d->wanted || d->phase != IDLE ? "yes" : "no", d->done);
}

bool node_defrag_holds(struct node *node, struct kv_batch *batch_take)
{
    struct defrag *d = node->defrag;

    if (d->phase != SWITCHING)
        return false;
    KEEL_ASSERT(d->held == NULL);
    d->held = batch_take;
    return true;
}

void node_defrag_written(struct node *node, struct kv_batch *batch_take)
{
    struct defrag *d = node->defrag;

    KEEL_ASSERT(d->phase != SWITCHING);
    if (d->phase == IDLE && !node->installing && !d->stopping && is_due(node))
        d->wanted = true;
    if (!is_copying(d)) {
        kv_batch_free(batch_take);
        return;
    }
    kv_batch_forget_values(batch_take);
    *d->kept_tail = batch_take;
    d->kept_tail = &batch_take->next;
    batch_take->next = NULL;
    d->left_bytes += batch_take->bytes;
    d->kept_bytes += batch_take->capacity * sizeof *batch_take->writes;
    if (d->kept_bytes > KEPT_BYTES_MAX) {
        give_up(node, "writes are faster");
        free_batches(take_kept(d));
    }
}

bool node_defrag_delays_install(struct node *node)
{
    struct defrag *d = node->defrag;

    d->wanted = false;
    if (d->phase == IDLE)
        return false;
    d->install_waits = true;
    if (is_copying(d))
        give_up(node, "a snapshot is to be installed");
    node_defrag_advance(node);
    return true;
}

void node_defrag_start(struct node *node)
{
    struct defrag *d = node->defrag = keel_calloc(1, sizeof *d);

    d->kept_tail = &d->kept;
    worker_start(&node->defrag_worker, &node->loop, &defrag_worker_ops, node, 0);
}

void node_defrag_stop(struct node *node)
{
    struct defrag *d = node->defrag;
    char why[512];
    int err = 0;

    d->stopping = true;
    atomic_store(&d->give_up, true);
    worker_stop(&node->defrag_worker);
    free_batches(take_kept(d));
    if (d->kv != NULL)
        err = store_defrag_remove(d->kv, why, sizeof why);
    else if (d->old != NULL)
        err = store_new_remove(why, sizeof why); /* it may still be read */
    if (err != 0)
        log_warning("%s: it goes at the next start", why);
    d->kv = NULL;
    d->phase = IDLE;
}

void node_defrag_free(struct node *node)
{
    struct defrag *d = node->defrag;

    if (d->old != NULL)
        d->old->ops->close(d->old);
    free(d);
    node->defrag = NULL;
}
