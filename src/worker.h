/* One thread with a queue: items go in from the loop, the thread runs all that are waiting at once
 * (group commit), and each comes back to the loop, in order. Nothing else is shared. */
#ifndef KEEL_WORKER_H
#define KEEL_WORKER_H

#include <stdbool.h>
#include <uv.h>

struct work {
    struct work *next;
};

struct worker_ops {
    /* On the thread: runs a list of items, in order. */
    void (*run)(void *arg, struct work *list);
    /* On the thread, when nothing has come in for idle_ms: true when there is more idle work. May
     * be NULL. */
    bool (*idle)(void *arg);
    /* On the thread, after what was run has been handed back: work that nobody waits for. May be
     * NULL. */
    void (*after)(void *arg);
    /* On the loop: an item has been run; it belongs to the loop again. */
    void (*done)(void *arg, struct work *item);
};

struct worker {
    const struct worker_ops *ops;
    void *arg;
    uint64_t idle_ms;
    uv_thread_t thread;
    uv_mutex_t mutex;
    uv_cond_t cond;
    uv_async_t async;
    struct work *in, **in_tail;   /* under the mutex */
    struct work *out, **out_tail; /* under the mutex */
    bool stopping;                /* under the mutex */
};

/* idle_ms 0: no idle calls. */
void worker_start(struct worker *w, uv_loop_t *loop, const struct worker_ops *ops, void *arg,
                  uint64_t idle_ms);
void worker_submit(struct worker *w, struct work *item);

/* Runs what is still queued, ends the thread and closes the async handle; `done` is called for what
 * came back. */
void worker_stop(struct worker *w);

#endif
