/* The clock, samples, CPU time and small file helpers of bench.h. What is measured with them is in
 * the files of the subcommands. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "bench.h"
#include "check.h"

enum { NS_PER_US = 1000, US_PER_S = 1000000, NS_PER_S = 1000000000 };
enum { SAMPLES_AT_FIRST = 4096 };

void bench_die(const char *fmt, ...)
{
    va_list args;

    fputs("keel-bench: ", stderr);
    va_start(args, fmt);
    vfprintf(stderr, fmt, args);
    va_end(args);
    fputc('\n', stderr);
    _exit(1);
}

/* ---- the clock ---- */

uint64_t bench_now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * NS_PER_S + (uint64_t)now.tv_nsec;
}

void bench_sleep_until(uint64_t at_ns)
{
    struct timespec at = { .tv_sec = (time_t)(at_ns / NS_PER_S),
                           .tv_nsec = (long)(at_ns % NS_PER_S) };

    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL) == EINTR)
        ;
}

uint64_t bench_seconds_to_ns(double seconds)
{
    KEEL_ASSERT(seconds >= 0 && seconds < 1e6);
    return (uint64_t)(seconds * NS_PER_S);
}

/* ---- samples ---- */

void bench_samples_init(struct bench_samples *samples)
{
    samples->count = 0;
    samples->capacity = SAMPLES_AT_FIRST;
    samples->begin_ns = keel_malloc(samples->capacity * sizeof *samples->begin_ns);
    samples->ns = keel_malloc(samples->capacity * sizeof *samples->ns);
}

void bench_samples_add(struct bench_samples *samples, uint64_t begin_ns, uint64_t ns)
{
    size_t capacity = 2 * samples->capacity;

    if (samples->count == samples->capacity) {
        samples->begin_ns = keel_realloc(samples->begin_ns, capacity * sizeof *samples->begin_ns);
        samples->ns = keel_realloc(samples->ns, capacity * sizeof *samples->ns);
        samples->capacity = capacity;
    }
    samples->begin_ns[samples->count] = begin_ns;
    samples->ns[samples->count++] = ns > UINT32_MAX ? UINT32_MAX : (uint32_t)ns;
}

void bench_samples_append(struct bench_samples *samples, const struct bench_samples *more)
{
    for (size_t i = 0; i < more->count; i++)
        bench_samples_add(samples, more->begin_ns[i], more->ns[i]);
}

void bench_samples_free(struct bench_samples *samples)
{
    free(samples->begin_ns);
    free(samples->ns);
    memset(samples, 0, sizeof *samples);
}

static void set_list(json_t *object, const char *name, json_t *list)
{
    if (json_object_set_new(object, name, list) != 0)
        bench_die("out of memory");
}

void bench_samples_trace(const struct bench_samples *samples, json_t *ret)
{
    json_t *begin_ns = json_array(), *ns = json_array();

    for (size_t i = 0; i < samples->count; i++)
        if (json_array_append_new(begin_ns, json_integer((json_int_t)samples->begin_ns[i])) != 0 ||
            json_array_append_new(ns, json_integer(samples->ns[i])) != 0)
            bench_die("out of memory");
    set_list(ret, "begin_ns", begin_ns);
    set_list(ret, "ns", ns);
}

static int compare_u32(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

    return (x > y) - (x < y);
}

/* The smallest sample that at least `percent` of 100 do not exceed. */
static double percentile_us(const struct bench_samples *sorted, size_t percent)
{
    size_t rank = (sorted->count * percent + 99) / 100;

    KEEL_ASSERT(sorted->count > 0 && percent > 0 && percent <= 100);
    return (double)sorted->ns[rank - 1] / NS_PER_US;
}

void bench_samples_report(struct bench_samples *samples, const char *prefix, json_t *ret)
{
    static const struct {
        const char *name;
        size_t percent;
    } wanted[] = { { "p50_us", 50 }, { "p99_us", 99 }, { "max_us", 100 } };
    char name[64];

    if (samples->count == 0)
        return;
    qsort(samples->ns, samples->count, sizeof *samples->ns, compare_u32);
    for (size_t i = 0; i < KEEL_ARRAY_LEN(wanted); i++) {
        snprintf(name, sizeof name, "%s_%s", prefix, wanted[i].name);
        bench_set_number(ret, name, percentile_us(samples, wanted[i].percent));
    }
}

/* ---- CPU time ---- */

static uint64_t ticks_to_us(uint64_t ticks)
{
    return ticks * US_PER_S / (uint64_t)sysconf(_SC_CLK_TCK);
}

/* The start of a file in /proc as a string; false if it is gone. */
static bool read_proc(const char *path, char *buffer, size_t size)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n;

    if (fd < 0)
        return false;
    n = read(fd, buffer, size - 1);
    close(fd);
    if (n <= 0)
        return false;
    buffer[n] = '\0';
    return true;
}

/* utime and stime are the 14th and 15th field; the 2nd is a name in parentheses that may hold
 * anything. */
static uint64_t pid_cpu_us(pid_t pid)
{
    char path[64], text[1024];
    uint64_t user, system;
    char *end;

    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    if (!read_proc(path, text, sizeof text))
        return 0;
    end = strrchr(text, ')');
    if (!end || sscanf(end + 1, " %*c %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %" SCNu64 " %" SCNu64,
                       &user, &system) != 2)
        return 0;
    return ticks_to_us(user + system);
}

/* cpu user nice system idle iowait irq softirq …; guest time is in user already. */
static uint64_t machine_cpu_us(void)
{
    uint64_t user, nice, system, irq, softirq;
    char text[512];

    if (!read_proc("/proc/stat", text, sizeof text) ||
        sscanf(text, "cpu %" SCNu64 " %" SCNu64 " %" SCNu64 " %*u %*u %" SCNu64 " %" SCNu64, &user,
               &nice, &system, &irq, &softirq) != 5)
        return 0;
    return ticks_to_us(user + nice + system + irq + softirq);
}

static uint64_t timeval_us(struct timeval t)
{
    return (uint64_t)t.tv_sec * US_PER_S + (uint64_t)t.tv_usec;
}

void bench_cpu_read(const struct bench_options *options, struct bench_cpu *ret)
{
    struct rusage usage;

    for (size_t i = 0; i < options->pid_count; i++)
        ret->pid_us[i] = pid_cpu_us(options->pids[i]);
    getrusage(RUSAGE_SELF, &usage);
    ret->self_us = timeval_us(usage.ru_utime) + timeval_us(usage.ru_stime);
    ret->machine_us = machine_cpu_us();
}

static uint64_t grown(uint64_t before, uint64_t after)
{
    return after > before ? after - before : 0;
}

void bench_cpu_report(const struct bench_options *options, const struct bench_cpu *before,
                      const struct bench_cpu *after, json_t *ret)
{
    json_t *cpu = json_object();
    char name[32];

    for (size_t i = 0; i < options->pid_count; i++) {
        snprintf(name, sizeof name, "%d", (int)options->pids[i]);
        bench_set_count(cpu, name, grown(before->pid_us[i], after->pid_us[i]));
    }
    bench_set_count(cpu, "self", grown(before->self_us, after->self_us));
    bench_set_count(cpu, "machine", grown(before->machine_us, after->machine_us));
    if (json_object_set_new(ret, "cpu_us", cpu) != 0)
        bench_die("out of memory");
}

/* ---- output ---- */

void bench_set_number(json_t *object, const char *name, double value)
{
    if (json_object_set_new(object, name, json_real(value)) != 0)
        bench_die("out of memory");
}

void bench_set_count(json_t *object, const char *name, uint64_t value)
{
    if (json_object_set_new(object, name, json_integer((json_int_t)value)) != 0)
        bench_die("out of memory");
}

/* ---- files ---- */

char *bench_path(const char *dir, const char *prefix, unsigned number)
{
    size_t size = strlen(dir) + strlen(prefix) + 16;
    char *path = keel_malloc(size);

    snprintf(path, size, "%s/%s%u", dir, prefix, number);
    return path;
}

int bench_replace(const char *path, const void *data, size_t size)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    ssize_t n;
    int err = 0;

    if (fd < 0)
        return errno;
    n = write(fd, data, size);
    if (n < 0)
        err = errno;
    else if ((size_t)n != size)
        err = EIO;
    if (close(fd) != 0 && err == 0)
        err = errno;
    return err;
}
