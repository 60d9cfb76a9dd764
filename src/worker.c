/* The queue between the loop and a thread. */
#include "check.h"
#include "worker.h"

static void deliver(struct worker *w)
{
    uv_mutex_lock(&w->mutex);
    struct work *list = w->out;

    w->out = NULL;
    w->out_tail = &w->out;
    uv_mutex_unlock(&w->mutex);
    while (list != NULL) {
        struct work *item = list;

        list = item->next;
        item->next = NULL;
        w->ops->done(w->arg, item);
    }
}

static void on_async(uv_async_t *async)
{
    deliver(async->data);
}

/* Takes everything that is waiting. With nothing there: waits, for at most idle_ms if `timed`. */
static struct work *take(struct worker *w, bool timed, bool *ret_stopping)
{
    uv_mutex_lock(&w->mutex);
    while (w->in == NULL && !w->stopping) {
        if (!timed)
            uv_cond_wait(&w->cond, &w->mutex);
        else if (uv_cond_timedwait(&w->cond, &w->mutex, w->idle_ms * 1000000) != 0)
            break;
    }
    struct work *list = w->in;

    w->in = NULL;
    w->in_tail = &w->in;
    *ret_stopping = w->stopping;
    uv_mutex_unlock(&w->mutex);
    return list;
}

static void give_back(struct worker *w, struct work *list)
{
    struct work *last = list;

    while (last->next != NULL)
        last = last->next;
    uv_mutex_lock(&w->mutex);
    *w->out_tail = list;
    w->out_tail = &last->next;
    uv_mutex_unlock(&w->mutex);
    uv_async_send(&w->async);
}

static void worker_main(void *arg)
{
    struct worker *w = arg;
    bool idle_work = w->idle_ms != 0;

    for (;;) {
        bool stopping;
        struct work *list = take(w, idle_work, &stopping);

        if (list != NULL) {
            w->ops->run(w->arg, list);
            give_back(w, list);
            if (w->ops->after != NULL)
                w->ops->after(w->arg);
            idle_work = w->idle_ms != 0;
        } else if (stopping) {
            return;
        } else if (idle_work) {
            idle_work = w->ops->idle(w->arg);
        }
    }
}

void worker_start(struct worker *w, uv_loop_t *loop, const struct worker_ops *ops, void *arg,
                  uint64_t idle_ms)
{
    *w = (struct worker){ .ops = ops, .arg = arg, .idle_ms = ops->idle != NULL ? idle_ms : 0 };
    w->in_tail = &w->in;
    w->out_tail = &w->out;
    int err = uv_mutex_init(&w->mutex);

    err = err != 0 ? err : uv_cond_init(&w->cond);
    err = err != 0 ? err : uv_async_init(loop, &w->async, on_async);
    w->async.data = w;
    err = err != 0 ? err : uv_thread_create(&w->thread, worker_main, w);
    if (err != 0)
        keel_fatal("a thread could not be started: %s", uv_strerror(err));
}

void worker_submit(struct worker *w, struct work *item)
{
    item->next = NULL;
    uv_mutex_lock(&w->mutex);
    *w->in_tail = item;
    w->in_tail = &item->next;
    uv_cond_signal(&w->cond);
    uv_mutex_unlock(&w->mutex);
}

void worker_stop(struct worker *w)
{
    uv_mutex_lock(&w->mutex);
    w->stopping = true;
    uv_cond_signal(&w->cond);
    uv_mutex_unlock(&w->mutex);
    uv_thread_join(&w->thread);
    deliver(w);
    uv_close((uv_handle_t *)&w->async, NULL);
    uv_cond_destroy(&w->cond);
    uv_mutex_destroy(&w->mutex);
}
