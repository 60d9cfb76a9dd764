/* The daemon's side of the poker: starts the process and starts it again when it dies, hands it
 * tickets, takes in what it reports. What the kernel asks on its behalf is answered in
 * poker_answer.c. */
#include "fs/poker_internal.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "check.h"
#include "err.h"
#include "log.h"

enum {
    BACKOFF_MIN_MS = 50,
    BACKOFF_MAX_MS = 5000,
    LIVED_WELL_US = 10000000, /* a life so long forgives the failures before it */
    SIGHTED_US = 10000000,    /* a scan's result is good for so long (they come every 5 s) */
    CLOSE_PATIENCE_MS = 1000, /* for the process to end by itself, and again for it to be killed */
};

static uint64_t now_us(const struct poker *p)
{
    return p->hooks.now_us(p->hooks.arg);
}

/* ---- tickets out ---- */

static enum poker_verb verb_of(enum keel_change_kind kind)
{
    switch (kind) {
    case CHANGE_CREATE:
        return POKER_CREATE;
    case CHANGE_MKDIR:
        return POKER_MKDIR;
    case CHANGE_SYMLINK:
        return POKER_SYMLINK;
    case CHANGE_CONTENT:
        return POKER_CONTENT;
    case CHANGE_ATTR:
        return POKER_ATTR;
    case CHANGE_REMOVE:
        return POKER_REMOVE;
    case CHANGE_RMDIR:
        return POKER_RMDIR;
    case CHANGE_RENAME:
        break;
    }
    return POKER_RENAME;
}

static struct poker_place place_of(const struct fs_node *dir, struct keel_slice path)
{
    return (struct poker_place){
        .nodeid = dir ? dir->nodeid : MVCC_ROOT_INO,
        .has_path = path.data != NULL,
        .path = (const char *)path.data,
        .path_len = path.len,
    };
}

static size_t ticket_encode(const struct ticket *t, uint8_t *ret_bytes)
{
    struct poker_order order = {
        .verb = verb_of(t->kind),
        .id = t->id,
        .object = ticket_node(t, LANE_OBJECT)->nodeid,
        .size = t->size,
        .dir = place_of(ticket_node(t, LANE_PARENT), t->path),
        .new_dir = place_of(ticket_node(t, LANE_NEW_PARENT), t->new_path),
        .name = (const char *)t->name.text.data,
        .name_len = t->name.text.len,
        .new_name = (const char *)t->new_name.text.data,
        .new_name_len = t->new_name.text.len,
    };

    return poker_order_encode(&order, ret_bytes);
}

/* A full socket is no trouble: what flies will be reported, and then there is room. */
static void pump(struct poker *p)
{
    uint8_t bytes[POKER_ORDER_MAX];
    struct ticket *t;

    while (p->run && !p->closing && p->queue.flying.count < TICKET_WINDOW &&
           (t = ticket_queue_next(&p->queue))) {
        size_t len = ticket_encode(t, bytes);

        if (send(p->run->socket, bytes, len, MSG_DONTWAIT | MSG_NOSIGNAL) < 0)
            return;
        ticket_queue_fly(&p->queue, t);
    }
}

void poker_change(struct poker *p, const struct keel_change *change)
{
    if (change->answered_here || p->closing)
        return;
    ticket_queue_add(&p->queue, change);
    if (p->queue.waiting.count > 0)
        pump(p);
}

void poker_idle(struct poker *p, struct fs_node *node)
{
    (void)node;
    if (p->queue.waiting.count > 0)
        pump(p);
}

void poker_local_rename(struct poker *p, bool deferred)
{
    KEEL_ASSERT(deferred || p->queue.local_renames > 0);
    p->queue.local_renames += deferred ? 1U : -1U;
    if (!deferred && p->queue.waiting.count > 0)
        pump(p);
}

/* ---- reports in ---- */

static void ticket_done(struct poker *p, const struct poker_done *done)
{
    struct ticket *t = ticket_queue_current(&p->queue);

    if (!t || t->id != done->id) {
        log_warning("poker: report about a ticket that is not the present one");
        return;
    }
    if (!done->error) {
        p->queue.stats.done++;
        ticket_queue_remove(&p->queue, t);
        return;
    }
    if (ticket_queue_salvage(&p->queue, t))
        return;
    log_debug("poker: ticket of %.*s dropped: %s", (int)t->name.text.len,
              (const char *)t->name.text.data, strerror(done->error));
    p->queue.stats.dropped++;
    ticket_queue_remove(&p->queue, t);
}

static void mark(struct poker *p, uint64_t ino, bool marked)
{
    struct fs_node *node = fs_node_by_ino(p->nodes, ino);

    if (node)
        node->marked = marked;
}

static void marks_found(struct poker *p, const struct poker_marks *marks)
{
    size_t count = p->scanning.count + marks->count;

    if (marks->count == 0 || count > POKER_WATCHED_MAX)
        return;
    p->scanning.inos = keel_realloc(p->scanning.inos, count * sizeof *p->scanning.inos);
    memcpy(p->scanning.inos + p->scanning.count, marks->inos,
           marks->count * sizeof *p->scanning.inos);
    p->scanning.count = count;
}

/* How long a scan's result is still good for: whatever was watched after it began has been asked
 * for since. */
static uint64_t sight_left_us(const struct poker_scanned *end)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    int64_t age_us = (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000 - end->started_ms * 1000;

    return end->blind || age_us < 0 || age_us >= SIGHTED_US ? 0 : (uint64_t)(SIGHTED_US - age_us);
}

/* A scan is complete: it replaces the one before. */
static void scanned(struct poker *p, const struct poker_scanned *end)
{
    for (size_t i = 0; i < p->marked.count; i++)
        mark(p, p->marked.inos[i], false);
    free(p->marked.inos);
    p->marked.inos = p->scanning.inos;
    p->marked.count = p->scanning.count;
    p->scanning.inos = NULL;
    p->scanning.count = 0;
    for (size_t i = 0; i < p->marked.count; i++)
        mark(p, p->marked.inos[i], true);
    p->queue.sighted_until_us = now_us(p) + sight_left_us(end);
}

static bool report(struct poker *p, const void *bytes, size_t len)
{
    enum poker_verb verb;

    if (len < sizeof verb)
        return false;
    memcpy(&verb, bytes, sizeof verb);
    if (verb == POKER_DONE && len == sizeof(struct poker_done)) {
        ticket_done(p, bytes);
        return true;
    }
    if (verb == POKER_SCANNED && len == sizeof(struct poker_scanned)) {
        scanned(p, bytes);
        return true;
    }
    const struct poker_marks *marks = bytes;

    if (verb != POKER_MARKS || len < offsetof(struct poker_marks, inos) ||
        marks->count > POKER_MARKS_MAX ||
        len != offsetof(struct poker_marks, inos) + marks->count * sizeof marks->inos[0])
        return false;
    marks_found(p, marks);
    return true;
}

/* Returns false when the process has closed its end, or talks nonsense. */
static bool receive(struct poker *p)
{
    union {
        struct poker_done done;
        struct poker_marks marks;
        struct poker_scanned scanned;
    } message;
    ssize_t len = 1;

    while (len > 0) {
        len = recv(p->run->socket, &message, sizeof message, MSG_DONTWAIT | MSG_TRUNC);
        if (len > 0 && ((size_t)len > sizeof message || !report(p, &message, (size_t)len)))
            return false;
    }
    return len < 0 && (errno == EAGAIN || errno == EINTR);
}

static void on_readable(uv_poll_t *poll, int status, int events)
{
    struct poker_run *run = poll->data;

    (void)events;
    if (!run->poker)
        return;
    if (status == 0 && receive(run->poker)) {
        pump(run->poker);
        return;
    }
    uv_poll_stop(poll); /* its end comes to on_ended, now for certain */
    if (!run->poker->closing)
        uv_process_kill(&run->process, SIGKILL);
}

void poker_drain(struct poker *p)
{
    size_t flying = p->queue.flying.count;

    if (p->run && receive(p) && p->queue.flying.count < flying)
        pump(p);
}

/* ---- the process ---- */

static void on_handle_closed(uv_handle_t *handle)
{
    struct poker_run *run = handle->data;

    if (--run->handles == 0)
        free(run);
}

/* Lets go of the process: reaped, or given up. */
static void run_end(struct poker *p)
{
    struct poker_run *run = p->run;

    if (!run)
        return;
    p->run = NULL;
    p->pid = 0;
    run->poker = NULL;
    uv_close((uv_handle_t *)&run->poll, on_handle_closed);
    uv_close((uv_handle_t *)&run->process, on_handle_closed);
    close(run->socket);
}

static void on_timer_closed(uv_handle_t *handle)
{
    struct poker *p = handle->data;
    void (*done)(void *arg) = p->done;
    void *arg = p->done_arg;

    ticket_queue_clear(&p->queue);
    free(p->marked.inos);
    free(p->scanning.inos);
    free(p->mount_point);
    free(p);
    if (done)
        done(arg);
}

static void closed(struct poker *p)
{
    if (!uv_is_closing((uv_handle_t *)&p->timer))
        uv_close((uv_handle_t *)&p->timer, on_timer_closed);
}

static void on_restart(uv_timer_t *timer);

static void restart_later(struct poker *p)
{
    if (now_us(p) - p->started_us > LIVED_WELL_US)
        p->backoff_ms = BACKOFF_MIN_MS;
    uv_timer_start(&p->timer, on_restart, p->backoff_ms, 0);
    p->backoff_ms = p->backoff_ms * 2 < BACKOFF_MAX_MS ? p->backoff_ms * 2 : BACKOFF_MAX_MS;
}

static void on_ended(uv_process_t *process, int64_t status, int signal)
{
    struct poker_run *run = process->data;
    struct poker *p = run->poker;

    if (!p)
        return;
    receive(p);
    run_end(p);
    if (p->closing) {
        closed(p);
        return;
    }
    log_warning("poker: process ended (exit code %d, signal %d), starting it again", (int)status,
                signal);
    ticket_queue_land(&p->queue);
    free(p->scanning.inos);
    p->scanning.inos = NULL;
    p->scanning.count = 0;
    p->restarts++;
    restart_later(p);
}

/* The process has its socket as descriptor 0, and no other one from here. A binary with sanitizers
 * may keep its error output. */
static int spawn(struct poker *p, struct poker_run *run, int socket)
{
    char dev[24], pid[24];
    char *args[] = { "keelfs", "--poker", p->mount_point, dev, pid, NULL };
    uv_stdio_container_t stdio[3] = {
        { .flags = UV_INHERIT_FD, .data.fd = socket },
        { .flags = UV_IGNORE },
        { .flags = UV_IGNORE },
    };
    uv_process_options_t options = {
        .exit_cb = on_ended,
        .file = "/proc/self/exe",
        .args = args,
        .cwd = "/",
        .flags = UV_PROCESS_DETACHED,
        .stdio_count = 3,
        .stdio = stdio,
    };

#ifdef __SANITIZE_ADDRESS__
    stdio[2] = (uv_stdio_container_t){ .flags = UV_INHERIT_FD, .data.fd = STDERR_FILENO };
#endif
    snprintf(dev, sizeof dev, "%llu", (unsigned long long)p->dev);
    snprintf(pid, sizeof pid, "%d", (int)getpid());
    return uv_spawn(p->loop, &run->process, &options);
}

static int start(struct poker *p)
{
    struct poker_run *run = keel_calloc(1, sizeof *run);
    int pair[2];

    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0) {
        free(run);
        return KEEL_E_IO;
    }
    run->poker = p;
    run->socket = pair[0];
    run->process.data = run;
    run->poll.data = run;
    run->handles = 2;
    p->started_us = now_us(p);
    p->run = run;
    int err = spawn(p, run, pair[1]);

    close(pair[1]);
    uv_poll_init(p->loop, &run->poll, run->socket);
    run->poll.data = run;
    if (err < 0) {
        log_error("poker: can't start its process: %s", uv_strerror(err));
        run_end(p);
        return KEEL_E_IO;
    }
    p->pid = run->process.pid;
    uv_poll_start(&run->poll, UV_READABLE, on_readable);
    pump(p);
    return 0;
}

static void on_restart(uv_timer_t *timer)
{
    struct poker *p = timer->data;

    if (start(p) != 0)
        restart_later(p);
}

int poker_new(uv_loop_t *loop, const char *mount_point, dev_t dev, struct fs_nodes *nodes,
              const struct poker_hooks *hooks, struct poker **ret_poker)
{
    struct poker *p = keel_calloc(1, sizeof *p);

    p->loop = loop;
    p->mount_point = keel_strdup(mount_point);
    p->dev = dev;
    p->nodes = nodes;
    p->hooks = *hooks;
    p->backoff_ms = BACKOFF_MIN_MS;
    ticket_queue_init(&p->queue, nodes, &p->hooks);
    uv_timer_init(loop, &p->timer);
    p->timer.data = p;
    int err = start(p);

    if (err) {
        poker_close(p, NULL, NULL);
        return err;
    }
    *ret_poker = p;
    return 0;
}

static void on_impatient(uv_timer_t *timer)
{
    struct poker *p = timer->data;

    if (p->run && !p->killed) {
        p->killed = true;
        uv_process_kill(&p->run->process, SIGKILL);
        uv_timer_start(&p->timer, on_impatient, CLOSE_PATIENCE_MS, 0);
        return;
    }
    if (p->run)
        log_warning("poker: process %d can't be ended, leaving it behind", (int)p->pid);
    run_end(p);
    closed(p);
}

/* Told to quit, rather than only hung up on: a poker whose daemon vanishes stays to see it buried.
 */
void poker_close(struct poker *p, void (*done)(void *arg), void *arg)
{
    KEEL_ASSERT(!p->closing);
    p->closing = true;
    p->done = done;
    p->done_arg = arg;
    if (!p->run) {
        closed(p);
        return;
    }
    uint8_t bytes[POKER_ORDER_MAX];
    size_t len = poker_order_encode(&(struct poker_order){ .verb = POKER_QUIT }, bytes);

    if (send(p->run->socket, bytes, len, MSG_DONTWAIT | MSG_NOSIGNAL) < 0)
        uv_process_kill(&p->run->process, SIGKILL);
    uv_timer_start(&p->timer, on_impatient, CLOSE_PATIENCE_MS, 0);
}

bool poker_is(const struct poker *p, pid_t pid)
{
    return pid > 0 && pid == p->pid;
}

void poker_stats(const struct poker *p, struct poker_stats *ret_stats)
{
    *ret_stats = p->queue.stats;
    ret_stats->queued = p->queue.waiting.count + p->queue.flying.count;
    ret_stats->restarts = p->restarts;
}
