/* `fill`: makes many files, and many revisions of them; how fast plays no part. And `await`: until
 * a file can be read, for the time that a start takes. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bench.h"
#include "check.h"

enum { AWAIT_PAUSE_NS = 500000 };

/* Each has a directory of its own: the kernel makes one file at a time in a directory. */
struct filler {
    const struct bench_options *options;
    pthread_t thread;
    char *dir;
    uint64_t files, writes; /* its share */
};

/* ---- one client ---- */

static void make_files(const struct filler *filler, const uint8_t *data)
{
    for (uint64_t i = 0; i < filler->files; i++) {
        char *path = bench_path(filler->dir, "f", (unsigned)i);
        int err = bench_replace(path, data, filler->options->size_bytes);

        if (err != 0)
            bench_die("cannot write %s: %s", path, strerror(err));
        free(path);
    }
}

static int *open_files(const struct filler *filler)
{
    int *fds = keel_calloc(filler->files, sizeof *fds);

    for (uint64_t i = 0; i < filler->files; i++) {
        char *path = bench_path(filler->dir, "f", (unsigned)i);

        fds[i] = open(path, O_WRONLY | O_CLOEXEC);
        if (fds[i] < 0)
            bench_die("cannot open %s: %s", path, strerror(errno));
        free(path);
    }
    return fds;
}

/* The files in turn, each write another content. */
static void write_on(const struct filler *filler, uint8_t *data)
{
    size_t size = filler->options->size_bytes;
    int *fds = open_files(filler);

    for (uint64_t i = 0; i < filler->writes; i++) {
        data[0] = (uint8_t)('a' + i / filler->files % 26);
        if (pwrite(fds[i % filler->files], data, size, 0) != (ssize_t)size)
            bench_die("cannot write to a file in %s: %s", filler->dir, strerror(errno));
    }
    for (uint64_t i = 0; i < filler->files; i++)
        close(fds[i]);
    free(fds);
}

static void *filler_run(void *arg)
{
    const struct filler *filler = arg;
    uint8_t *data = keel_malloc(filler->options->size_bytes);

    memset(data, 'z', filler->options->size_bytes);
    if (mkdir(filler->dir, 0755) != 0 && errno != EEXIST)
        bench_die("cannot make %s: %s", filler->dir, strerror(errno));
    make_files(filler, data);
    if (filler->writes > 0)
        write_on(filler, data);
    free(data);
    return NULL;
}

/* ---- all of them ---- */

static uint64_t share(uint64_t all, unsigned clients, unsigned number)
{
    return all / clients + (number < all % clients ? 1 : 0);
}

static void may_open(uint64_t files)
{
    struct rlimit limit = { .rlim_cur = files + 64, .rlim_max = files + 64 };
    struct rlimit now;

    if (getrlimit(RLIMIT_NOFILE, &now) != 0 || now.rlim_cur >= limit.rlim_cur)
        return;
    if (now.rlim_max >= limit.rlim_cur)
        limit.rlim_max = now.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &limit) != 0)
        bench_die("cannot have %llu files open: %s", (unsigned long long)files, strerror(errno));
}

void bench_fill(const struct bench_options *options, json_t *ret)
{
    uint64_t more = options->count > options->files ? options->count - options->files : 0;
    unsigned clients = options->clients;

    if (clients > options->files)
        clients = (unsigned)options->files;
    struct filler *fillers = keel_calloc(clients, sizeof *fillers);
    uint64_t begin_ns = bench_now_ns();

    if (more > 0)
        may_open(options->files);
    for (unsigned i = 0; i < clients; i++) {
        fillers[i] = (struct filler){
            .options = options,
            .dir = bench_path(options->dirs[0], "d", i),
            .files = share(options->files, clients, i),
            .writes = share(more, clients, i),
        };
        int err = pthread_create(&fillers[i].thread, NULL, filler_run, &fillers[i]);

        if (err != 0)
            bench_die("cannot start client %u: %s", i, strerror(err));
    }
    for (unsigned i = 0; i < clients; i++) {
        pthread_join(fillers[i].thread, NULL);
        free(fillers[i].dir);
    }
    free(fillers);
    bench_set_count(ret, "files", options->files);
    bench_set_count(ret, "count", options->files + more);
    bench_set_number(ret, "seconds", (double)(bench_now_ns() - begin_ns) / 1e9);
}

/* ---- await ---- */

static bool can_be_read(const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    char byte;

    if (fd < 0)
        return false;
    bool ok = read(fd, &byte, 1) >= 0;

    close(fd);
    return ok;
}

void bench_await(const struct bench_options *options, json_t *ret)
{
    uint64_t end_ns = bench_now_ns() + bench_seconds_to_ns(options->seconds);

    while (!can_be_read(options->dirs[0])) {
        if (bench_now_ns() > end_ns)
            bench_die("cannot read %s: %s", options->dirs[0], strerror(errno));
        bench_sleep_until(bench_now_ns() + AWAIT_PAUSE_NS);
    }
    bench_set_count(ret, "at_ns", bench_now_ns());
}
