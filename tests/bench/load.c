/* `write` and `read`: N clients, a thread and a file each, that do the same operation over and over
 * for a fixed time. What counts is what ends inside the measured window; the clients run before it
 * begins and until it is over. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "bench.h"
#include "check.h"

#define WARM_UP_SECONDS 0.2

struct load;

struct client {
    struct load *load;
    pthread_t thread;
    char *path;
    uint8_t *data;
    int fd; /* -1 where each operation opens the file itself */
    struct bench_samples samples;
    uint64_t errors;
    int last_error;
};

struct load {
    const struct bench_options *options;
    int (*operation)(struct client *client);
    atomic_ulong begin_ns, end_ns; /* the measured window; 0 until it has begun, or ended */
    atomic_bool any;               /* something has ended in it */
    pthread_barrier_t ready;
};

/* ---- operations: 0 or an errno ---- */

static int write_in_place(struct client *client)
{
    size_t size = client->load->options->size_bytes;
    ssize_t n = pwrite(client->fd, client->data, size, 0);

    if (n < 0)
        return errno;
    return (size_t)n == size ? 0 : EIO;
}

static int replace_file(struct client *client)
{
    return bench_replace(client->path, client->data, client->load->options->size_bytes);
}

static int read_file(struct client *client)
{
    size_t size = client->load->options->size_bytes;
    int fd = open(client->path, O_RDONLY | O_CLOEXEC);
    ssize_t n;
    int err = 0;

    if (fd < 0)
        return errno;
    n = read(fd, client->data, size);
    if (n < 0)
        err = errno;
    else if ((size_t)n != size)
        err = EIO;
    close(fd);
    return err;
}

/* ---- clients ---- */

/* No value is written twice in a row. */
static void vary(struct client *client)
{
    client->data[0] = (uint8_t)(client->data[0] == 'z' ? 'a' : client->data[0] + 1);
}

static void pause_after_error(void)
{
    struct timespec pause = { .tv_nsec = 1000000 };

    nanosleep(&pause, NULL);
}

static void count(struct client *client, int err, uint64_t from_ns, uint64_t until_ns)
{
    struct load *load = client->load;
    uint64_t begin_ns = atomic_load(&load->begin_ns);
    bool inside = begin_ns != 0 && until_ns >= begin_ns;

    if (inside && !atomic_load(&load->any))
        atomic_store(&load->any, true);
    if (err != 0) {
        client->errors++;
        client->last_error = err;
        pause_after_error();
    } else if (inside) {
        bench_samples_add(&client->samples, from_ns, until_ns - from_ns);
    }
}

/* Waits for the turn of the client's next operation, where there is a rate. Who is late does not
 * make up for it. */
static void pace(const struct load *load, uint64_t *due_ns)
{
    uint64_t now_ns = bench_now_ns();

    if (load->options->rate == 0)
        return;
    *due_ns += bench_seconds_to_ns(load->options->clients / (double)load->options->rate);
    if (*due_ns < now_ns)
        *due_ns = now_ns;
    bench_sleep_until(*due_ns);
}

static void *client_run(void *arg)
{
    struct client *client = arg;
    struct load *load = client->load;
    uint64_t due_ns = 0;

    pthread_barrier_wait(&load->ready);
    for (;;) {
        pace(load, &due_ns);
        vary(client);
        uint64_t from_ns = bench_now_ns();
        int err = load->operation(client);
        uint64_t until_ns = bench_now_ns();

        if (atomic_load(&load->end_ns) != 0)
            return NULL;
        count(client, err, from_ns, until_ns);
    }
}

static void client_open(struct client *client, struct load *load, unsigned number)
{
    const struct bench_options *options = load->options;
    const char *dir = options->dirs[number % options->dir_count];
    int err;

    client->load = load;
    client->fd = -1;
    client->path = bench_path(dir, "f", number);
    client->data = keel_malloc(options->size_bytes);
    memset(client->data, 'a', options->size_bytes);
    bench_samples_init(&client->samples);
    err = bench_replace(client->path, client->data, options->size_bytes);
    if (err != 0)
        bench_die("cannot write %s: %s", client->path, strerror(err));
    if (load->operation != write_in_place)
        return;
    client->fd = open(client->path, O_WRONLY | O_CLOEXEC);
    if (client->fd < 0)
        bench_die("cannot open %s: %s", client->path, strerror(errno));
}

static void client_close(struct client *client)
{
    if (client->fd >= 0)
        close(client->fd);
    bench_samples_free(&client->samples);
    free(client->path);
    free(client->data);
}

/* ---- a run ---- */

static void start_all(struct load *load, struct client *clients)
{
    unsigned count = load->options->clients;
    int err = pthread_barrier_init(&load->ready, NULL, count + 1);

    if (err != 0)
        bench_die("cannot make a barrier for %u clients: %s", count, strerror(err));
    for (unsigned i = 0; i < count; i++)
        client_open(&clients[i], load, i);
    for (unsigned i = 0; i < count; i++) {
        err = pthread_create(&clients[i].thread, NULL, client_run, &clients[i]);
        if (err != 0)
            bench_die("cannot start client %u: %s", i, strerror(err));
    }
    pthread_barrier_wait(&load->ready);
}

static void wait_for_end(const struct load *load)
{
    char byte;

    if (!load->options->until_eof)
        bench_sleep_until(load->begin_ns + bench_seconds_to_ns(load->options->seconds));
    while (load->options->until_eof && read(STDIN_FILENO, &byte, 1) > 0)
        ;
}

/* Many busy clients can make this thread late: so the window is what it was, not what it should
 * have been. */
static void measure(struct load *load, struct bench_cpu *before, struct bench_cpu *after)
{
    bench_sleep_until(bench_now_ns() + bench_seconds_to_ns(WARM_UP_SECONDS));
    bench_cpu_read(load->options, before);
    atomic_store(&load->begin_ns, bench_now_ns());
    wait_for_end(load);
    while (!atomic_load(&load->any))
        bench_sleep_until(bench_now_ns() + bench_seconds_to_ns(0.01));
    atomic_store(&load->end_ns, bench_now_ns());
    bench_cpu_read(load->options, after);
}

/* Waits for all clients and puts their figures together. */
static void collect(struct load *load, struct client *clients, json_t *ret)
{
    struct bench_samples all;
    uint64_t errors = 0;
    int last_error = 0;

    bench_samples_init(&all);
    for (unsigned i = 0; i < load->options->clients; i++) {
        pthread_join(clients[i].thread, NULL);
        bench_samples_append(&all, &clients[i].samples);
        errors += clients[i].errors;
        if (clients[i].last_error != 0)
            last_error = clients[i].last_error;
        client_close(&clients[i]);
    }
    bench_set_count(ret, "count", all.count);
    bench_set_number(ret, "rate",
                     (double)all.count * 1e9 / (double)(load->end_ns - load->begin_ns));
    bench_set_count(ret, "errors", errors);
    if (last_error != 0 &&
        json_object_set_new(ret, "error", json_string(strerror(last_error))) != 0)
        bench_die("out of memory");
    if (load->options->trace)
        bench_samples_trace(&all, ret);
    bench_samples_report(&all, "latency", ret);
    bench_samples_free(&all);
    pthread_barrier_destroy(&load->ready);
}

static void load_run(const struct bench_options *options, int (*operation)(struct client *),
                     json_t *ret)
{
    struct load load = { .options = options, .operation = operation };
    struct client *clients = keel_calloc(options->clients, sizeof *clients);
    struct bench_cpu before, after;

    start_all(&load, clients);
    measure(&load, &before, &after);
    collect(&load, clients, ret);
    bench_cpu_report(options, &before, &after, ret);
    free(clients);
}

void bench_write(const struct bench_options *options, json_t *ret)
{
    load_run(options, options->replace ? replace_file : write_in_place, ret);
}

void bench_read(const struct bench_options *options, json_t *ret)
{
    load_run(options, read_file, ret);
}
