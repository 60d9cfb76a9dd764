/* Lines to standard error, written with one write(2) so that threads do not mix them. */
#include <stdarg.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include "log.h"

static const char *log_name = "keelfs";
static enum keel_log_level log_level = KEEL_LOG_INFO;

void keel_log_setup(const char *node_name, enum keel_log_level level)
{
    log_name = node_name;
    log_level = level;
}

void keel_log(enum keel_log_level level, const char *fmt, ...)
{
    static const char *const names[] = { "error", "warning", "info", "debug" };
    char line[2048];
    struct timespec now;
    struct tm tm;
    va_list args;

    if (level > log_level)
        return;
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &tm);
    size_t used = strftime(line, sizeof line, "%Y-%m-%dT%H:%M:%S", &tm);
    int head = snprintf(line + used, sizeof line - used, ".%03ldZ %s %s: ", now.tv_nsec / 1000000,
                        names[level], log_name);

    used += (size_t)head;
    va_start(args, fmt);
    int body = vsnprintf(line + used, sizeof line - used - 1, fmt, args);

    va_end(args);
    used += (size_t)body < sizeof line - used - 1 ? (size_t)body : sizeof line - used - 2;
    line[used++] = '\n';
    ssize_t written = write(STDERR_FILENO, line, used);

    (void)written; /* nobody is left to be told */
}
