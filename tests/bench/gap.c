/* `gap`: kills a node and measures how long nobody can write. A writer on each surviving node
 * writes without pause, as a shell does (open(O_TRUNC), write, close); the clock starts at the
 * kill.
 *
 * What counts is the first write that *began* after the killed process had ended, and succeeded: a
 * write that was on its way before may owe its success to the node that is gone. */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "bench.h"
#include "check.h"

enum { BEFORE_KILL_MS = 500, EXIT_MS = 10000, WRITE_MS = 30000, STEP_MS = 1 };

struct gap;

struct survivor {
    struct gap *gap;
    pthread_t thread;
    char *path;
    uint64_t errors;
    atomic_ulong before;       /* successes before the kill */
    atomic_ulong recovered_ns; /* when the write that counts returned; 0 before */
};

struct gap {
    const struct bench_options *options;
    atomic_ulong killed_ns, exited_ns; /* 0 until then */
    atomic_bool stop;
};

/* ---- the writers ---- */

static void note_success(struct survivor *survivor, uint64_t from_ns)
{
    uint64_t exited_ns = atomic_load(&survivor->gap->exited_ns);

    if (atomic_load(&survivor->gap->killed_ns) == 0)
        atomic_fetch_add(&survivor->before, 1);
    else if (exited_ns != 0 && from_ns >= exited_ns && atomic_load(&survivor->recovered_ns) == 0)
        atomic_store(&survivor->recovered_ns, bench_now_ns());
}

static void *survivor_run(void *arg)
{
    struct survivor *survivor = arg;
    size_t size = survivor->gap->options->size_bytes;
    uint8_t *data = keel_malloc(size);
    struct timespec pause = { .tv_nsec = STEP_MS * 1000000L };

    for (unsigned round = 0; !atomic_load(&survivor->gap->stop); round++) {
        uint64_t from_ns = bench_now_ns();

        memset(data, 'a' + (int)(round % 26), size);
        if (bench_replace(survivor->path, data, size) == 0) {
            note_success(survivor, from_ns);
        } else {
            survivor->errors++;
            nanosleep(&pause, NULL);
        }
    }
    free(data);
    return NULL;
}

static void survivor_start(struct survivor *survivor, struct gap *gap, unsigned number)
{
    const char *dir = gap->options->dirs[number];
    int err;

    survivor->gap = gap;
    survivor->path = bench_path(dir, "gap", number);
    err = bench_replace(survivor->path, "before", 6);
    if (err != 0)
        bench_die("cannot write %s: %s", survivor->path, strerror(err));
    err = pthread_create(&survivor->thread, NULL, survivor_run, survivor);
    if (err != 0)
        bench_die("cannot start a writer: %s", strerror(err));
}

/* ---- the kill ---- */

static void kill_victim(struct gap *gap)
{
    pid_t victim = gap->options->victim;
    int fd = (int)syscall(SYS_pidfd_open, victim, 0);
    struct pollfd polled = { .fd = fd, .events = POLLIN };

    if (fd < 0)
        bench_die("cannot open process %d: %s", (int)victim, strerror(errno));
    atomic_store(&gap->killed_ns, bench_now_ns());
    if (kill(victim, SIGKILL) != 0)
        bench_die("cannot kill process %d: %s", (int)victim, strerror(errno));
    if (poll(&polled, 1, EXIT_MS) != 1)
        bench_die("process %d did not end within %d ms of SIGKILL", (int)victim, EXIT_MS);
    atomic_store(&gap->exited_ns, bench_now_ns());
    close(fd);
}

static bool all_recovered(struct survivor *survivors, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (atomic_load(&survivors[i].recovered_ns) == 0)
            return false;
    return true;
}

static void wait_for_all(struct survivor *survivors, size_t count)
{
    uint64_t end_ns = bench_now_ns() + (uint64_t)WRITE_MS * 1000000;

    while (!all_recovered(survivors, count)) {
        if (bench_now_ns() > end_ns)
            bench_die("no successful write within %d ms of the kill", WRITE_MS);
        bench_sleep_until(bench_now_ns() + (uint64_t)STEP_MS * 1000000);
    }
}

static double since_kill_ms(const struct gap *gap, uint64_t at_ns)
{
    return (double)(at_ns - atomic_load(&gap->killed_ns)) / 1e6;
}

static void report(const struct gap *gap, struct survivor *survivors, json_t *ret)
{
    double first = 0, last = 0;
    uint64_t errors = 0;

    for (size_t i = 0; i < gap->options->dir_count; i++) {
        double ms = since_kill_ms(gap, atomic_load(&survivors[i].recovered_ns));

        first = i == 0 || ms < first ? ms : first;
        last = ms > last ? ms : last;
        errors += survivors[i].errors;
    }
    bench_set_number(ret, "exit_ms", since_kill_ms(gap, atomic_load(&gap->exited_ns)));
    bench_set_number(ret, "first_ms", first);
    bench_set_number(ret, "all_ms", last);
    bench_set_count(ret, "errors", errors);
}

void bench_gap(const struct bench_options *options, json_t *ret)
{
    struct gap gap = { .options = options };
    struct survivor survivors[BENCH_DIRS_MAX] = { 0 };

    for (unsigned i = 0; i < options->dir_count; i++)
        survivor_start(&survivors[i], &gap, i);
    bench_sleep_until(bench_now_ns() + (uint64_t)BEFORE_KILL_MS * 1000000);
    for (unsigned i = 0; i < options->dir_count; i++)
        if (atomic_load(&survivors[i].before) == 0)
            bench_die("no write succeeded in %s before the kill", options->dirs[i]);
    kill_victim(&gap);
    wait_for_all(survivors, options->dir_count);
    atomic_store(&gap.stop, true);
    for (unsigned i = 0; i < options->dir_count; i++)
        pthread_join(survivors[i].thread, NULL);
    report(&gap, survivors, ret);
    for (unsigned i = 0; i < options->dir_count; i++)
        free(survivors[i].path);
}
