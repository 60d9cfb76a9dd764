/* `event`: how long after a write on one node its inotify event is read on another. `watch`: a
 * reader of inotify events that does nothing but count them, to be run beside a load. */
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <fcntl.h>
#include <sys/inotify.h>
#include <unistd.h>

#include "bench.h"
#include "check.h"

enum { BUFFER_SIZE = 64 * (sizeof(struct inotify_event) + NAME_MAX + 1) };
enum { LOST_AFTER_MS = 2000, PAUSE_US = 2000, WARM_UP_EVENTS = 5 };

static int watch_directory(const char *dir)
{
    int fd = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);

    if (fd < 0 || inotify_add_watch(fd, dir, IN_ALL_EVENTS) < 0)
        bench_die("cannot watch %s: %s", dir, strerror(errno));
    return fd;
}

/* Calls `each` for every event that can be read now. */
static void read_events(int fd, void (*each)(const struct inotify_event *, void *), void *arg)
{
    _Alignas(struct inotify_event) uint8_t buffer[BUFFER_SIZE];
    ssize_t n;

    while ((n = read(fd, buffer, sizeof buffer)) > 0) {
        for (const uint8_t *at = buffer; at < buffer + n;) {
            const struct inotify_event *event = (const struct inotify_event *)(const void *)at;

            each(event, arg);
            at += sizeof *event + event->len;
        }
    }
    if (n < 0 && errno != EAGAIN && errno != EINTR)
        bench_die("cannot read inotify events: %s", strerror(errno));
}

/* ---- event ---- */

/* Reads on a thread of its own, so that an event that comes before write() returns has its true
 * time. */
struct reader {
    int fd;
    char name[32]; /* of the file in the watched directory */
    atomic_bool stop;
    pthread_mutex_t mutex; /* of the rest */
    pthread_cond_t changed;
    uint64_t count, last_ns; /* CLOSE_WRITE of that file: how many, and when the last was read */
};

static void note_close_write(const struct inotify_event *event, void *arg)
{
    struct reader *reader = arg;

    if (!(event->mask & IN_CLOSE_WRITE) || event->len == 0 ||
        strcmp(event->name, reader->name) != 0)
        return;
    pthread_mutex_lock(&reader->mutex);
    reader->count++;
    reader->last_ns = bench_now_ns();
    pthread_cond_signal(&reader->changed);
    pthread_mutex_unlock(&reader->mutex);
}

static void *reader_run(void *arg)
{
    struct reader *reader = arg;
    struct pollfd polled = { .fd = reader->fd, .events = POLLIN };

    while (!atomic_load(&reader->stop)) {
        poll(&polled, 1, 100);
        read_events(reader->fd, note_close_write, reader);
    }
    return NULL;
}

static uint64_t reader_count(struct reader *reader)
{
    uint64_t count;

    pthread_mutex_lock(&reader->mutex);
    count = reader->count;
    pthread_mutex_unlock(&reader->mutex);
    return count;
}

/* Waits until more than `before` were seen; false when none comes. */
static bool reader_wait(struct reader *reader, uint64_t before, uint64_t *ret_at_ns)
{
    uint64_t end_ns = bench_now_ns() + (uint64_t)LOST_AFTER_MS * 1000000;
    struct timespec end = { .tv_sec = (time_t)(end_ns / 1000000000),
                            .tv_nsec = (long)(end_ns % 1000000000) };
    bool seen;

    pthread_mutex_lock(&reader->mutex);
    while (reader->count <= before &&
           pthread_cond_clockwait(&reader->changed, &reader->mutex, CLOCK_MONOTONIC, &end) == 0)
        ;
    seen = reader->count > before;
    *ret_at_ns = reader->last_ns;
    pthread_mutex_unlock(&reader->mutex);
    return seen;
}

struct event_figures {
    struct bench_samples event, write; /* both from the begin of write() */
    uint64_t lost, errors;
};

/* As a shell does it: open(O_TRUNC), write, close; only the time from the write on counts. */
static int timed_write(const char *path, const void *data, size_t size, uint64_t *ret_from_ns,
                       uint64_t *ret_until_ns)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644), err;
    ssize_t n;

    if (fd < 0)
        return errno;
    *ret_from_ns = bench_now_ns();
    n = write(fd, data, size);
    err = n < 0 ? errno : 0;
    *ret_until_ns = bench_now_ns();
    close(fd);
    return n >= 0 && (size_t)n != size ? EIO : err;
}

static void one_event(struct reader *reader, const char *path, const struct bench_options *options,
                      struct event_figures *figures)
{
    static uint8_t data[BENCH_SIZE_MAX];
    uint64_t before = reader_count(reader), from_ns = 0, until_ns = 0, seen_ns;

    memset(data, 'a' + (int)(before % 26), options->size_bytes);
    if (timed_write(path, data, options->size_bytes, &from_ns, &until_ns) != 0) {
        figures->errors++;
        return;
    }
    if (!reader_wait(reader, before, &seen_ns)) {
        figures->lost++;
        return;
    }
    bench_samples_add(&figures->event, from_ns, seen_ns - from_ns);
    bench_samples_add(&figures->write, from_ns, until_ns - from_ns);
}

static void event_report(struct event_figures *figures, json_t *ret)
{
    bench_set_count(ret, "count", figures->event.count);
    bench_set_count(ret, "lost", figures->lost);
    bench_set_count(ret, "errors", figures->errors);
    bench_samples_report(&figures->event, "event", ret);
    bench_samples_report(&figures->write, "write", ret);
    bench_samples_free(&figures->event);
    bench_samples_free(&figures->write);
}

static void event_measure(struct reader *reader, const char *path,
                          const struct bench_options *options, json_t *ret)
{
    struct event_figures figures = { 0 };
    uint64_t end_ns;

    bench_samples_init(&figures.event);
    bench_samples_init(&figures.write);
    for (int i = 0; i < WARM_UP_EVENTS; i++)
        one_event(reader, path, options, &figures);
    figures.event.count = figures.write.count = 0;
    end_ns = bench_now_ns() + bench_seconds_to_ns(options->seconds);
    do {
        one_event(reader, path, options, &figures);
        usleep(PAUSE_US); /* what the event before set off is over */
    } while (bench_now_ns() < end_ns);
    event_report(&figures, ret);
}

void bench_event(const struct bench_options *options, json_t *ret)
{
    struct reader reader = { .mutex = PTHREAD_MUTEX_INITIALIZER,
                             .changed = PTHREAD_COND_INITIALIZER };
    char *path = bench_path(options->dirs[0], "event", 0);
    pthread_t thread;
    int err;

    snprintf(reader.name, sizeof reader.name, "event%u", 0U);
    err = bench_replace(path, "before", 6);
    if (err != 0)
        bench_die("cannot write %s: %s", path, strerror(err));
    reader.fd = watch_directory(options->dirs[1]);
    err = pthread_create(&thread, NULL, reader_run, &reader);
    if (err != 0)
        bench_die("cannot start the reader: %s", strerror(err));
    event_measure(&reader, path, options, ret);
    atomic_store(&reader.stop, true);
    pthread_join(thread, NULL);
    close(reader.fd);
    free(path);
}

/* ---- watch ---- */

struct counts {
    uint64_t events, modify, close_write, overflows;
};

static void count_event(const struct inotify_event *event, void *arg)
{
    struct counts *counts = arg;

    counts->events++;
    counts->modify += (event->mask & IN_MODIFY) != 0;
    counts->close_write += (event->mask & IN_CLOSE_WRITE) != 0;
    counts->overflows += (event->mask & IN_Q_OVERFLOW) != 0;
}

static json_t *counts_json(const struct counts *counts)
{
    json_t *object = json_object();

    bench_set_count(object, "events", counts->events);
    bench_set_count(object, "modify", counts->modify);
    bench_set_count(object, "close_write", counts->close_write);
    bench_set_count(object, "overflows", counts->overflows);
    return object;
}

/* Until stdin ends. Says "ready" when all directories are watched. */
void bench_watch(const struct bench_options *options, json_t *ret)
{
    struct pollfd polled[BENCH_DIRS_MAX + 1];
    struct counts counts[BENCH_DIRS_MAX] = { 0 };
    size_t n = options->dir_count;
    json_t *list = json_array();

    for (size_t i = 0; i < n; i++)
        polled[i] = (struct pollfd){ .fd = watch_directory(options->dirs[i]), .events = POLLIN };
    polled[n] = (struct pollfd){ .fd = STDIN_FILENO, .events = POLLIN };
    fputs("ready\n", stdout);
    fflush(stdout);
    while (polled[n].revents == 0) {
        if (poll(polled, (nfds_t)n + 1, -1) < 0 && errno != EINTR)
            bench_die("cannot poll: %s", strerror(errno));
        for (size_t i = 0; i < n; i++)
            read_events(polled[i].fd, count_event, &counts[i]);
    }
    for (size_t i = 0; i < n; i++) {
        close(polled[i].fd);
        if (json_array_append_new(list, counts_json(&counts[i])) != 0)
            bench_die("out of memory");
    }
    if (json_object_set_new(ret, "watched", list) != 0)
        bench_die("out of memory");
}
