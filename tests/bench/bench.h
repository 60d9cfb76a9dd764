/* What the subcommands of keel-bench share: options, the clock, samples of latency, CPU time of
 * processes, and the one JSON object that each of them prints. tools/bench runs them and puts their
 * figures together. */
#ifndef KEEL_BENCH_H
#define KEEL_BENCH_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum {
    BENCH_DIRS_MAX = 16,
    BENCH_PIDS_MAX = 64,
    BENCH_CLIENTS_MAX = 4096,
    BENCH_SIZE_MAX = 1 << 20,
    BENCH_SIZE_DEFAULT = 256,
    BENCH_COUNT_MAX = 100000000,
};

struct bench_options {
    const char *dirs[BENCH_DIRS_MAX];
    size_t dir_count;
    pid_t pids[BENCH_PIDS_MAX]; /* whose CPU time is wanted */
    size_t pid_count;
    pid_t victim; /* whom `gap` kills */
    unsigned clients;
    size_t size_bytes;
    double seconds;
    bool until_eof; /* measure until stdin ends, not for so many seconds */
    bool trace;     /* tell of each operation, not only of all of them */
    bool replace;   /* write by open(O_TRUNC) + write + close */
    uint64_t rate;  /* operations a second of all clients together; 0: as many as possible */
    uint64_t files; /* that `fill` makes */
    uint64_t count; /* writes of `fill`; 0: one for each file */
};

/* The subcommands. They end the process with a message when what they need is not there; what fails
 * while they measure is counted. `ret` is an empty object that they fill. */
void bench_floor(const struct bench_options *options, json_t *ret);
void bench_write(const struct bench_options *options, json_t *ret);
void bench_read(const struct bench_options *options, json_t *ret);
void bench_event(const struct bench_options *options, json_t *ret);
void bench_watch(const struct bench_options *options, json_t *ret);
void bench_gap(const struct bench_options *options, json_t *ret);
void bench_fill(const struct bench_options *options, json_t *ret);
void bench_await(const struct bench_options *options, json_t *ret);

/* ---- measure.c ---- */

_Noreturn void bench_die(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* CLOCK_MONOTONIC. */
uint64_t bench_now_ns(void);
void bench_sleep_until(uint64_t at_ns);
uint64_t bench_seconds_to_ns(double seconds);

/* Latencies of one thread, each in ns, up to 4.29 s (longer ones count as that), and when what took
 * so long began. */
struct bench_samples {
    uint64_t *begin_ns;
    uint32_t *ns;
    size_t count, capacity;
};

void bench_samples_init(struct bench_samples *samples);
void bench_samples_add(struct bench_samples *samples, uint64_t begin_ns, uint64_t ns);
void bench_samples_append(struct bench_samples *samples, const struct bench_samples *more);
void bench_samples_free(struct bench_samples *samples);

/* Sets "begin_ns": [...] and "ns": [...], in the order in which they were added. */
void bench_samples_trace(const struct bench_samples *samples, json_t *ret);

/* Sets PREFIX_p50_us, PREFIX_p99_us and PREFIX_max_us; nothing if there is no sample. Sorts the
 * latencies: they do not go with their begins any more. */
void bench_samples_report(struct bench_samples *samples, const char *prefix, json_t *ret);

/* CPU time used so far: by each of options->pids (utime + stime of /proc/PID/stat, 0 for one that
 * is gone), by this process, and by the whole machine (what /proc/stat does not call idle, iowait
 * or steal). */
struct bench_cpu {
    uint64_t pid_us[BENCH_PIDS_MAX];
    uint64_t self_us, machine_us;
};

void bench_cpu_read(const struct bench_options *options, struct bench_cpu *ret);

/* Sets "cpu_us": {"PID": …, "self": …, "machine": …}, the differences. */
void bench_cpu_report(const struct bench_options *options, const struct bench_cpu *before,
                      const struct bench_cpu *after, json_t *ret);

void bench_set_number(json_t *object, const char *name, double value);
void bench_set_count(json_t *object, const char *name, uint64_t value);

/* ---- files ---- */

/* A path in `dir`, to be freed. */
char *bench_path(const char *dir, const char *prefix, unsigned number);

/* Creates the file, or replaces its content, by open(O_TRUNC) + write + close. 0 or an errno. */
int bench_replace(const char *path, const void *data, size_t size);

#endif
