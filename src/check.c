/* The ends of a process that lost trust in itself, and allocation that does not fail. */
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"

/* What one thread has found is often met by another a moment later: the first has the word. */
static void speak_first(void)
{
    static atomic_flag spoken = ATOMIC_FLAG_INIT;

    while (atomic_flag_test_and_set(&spoken))
        continue; /* the process ends in a moment */
}

_Noreturn void keel_assert_failed(const char *cond, const char *file, int line)
{
    speak_first();
    fprintf(stderr, "keelfs: assertion failed: %s (%s:%d)\n", cond, file, line);
    abort();
}

_Noreturn void keel_fatal(const char *fmt, ...)
{
    va_list args;

    speak_first();
    fputs("keelfs: fatal: ", stderr);
    va_start(args, fmt);
    vfprintf(stderr, fmt, args);
    va_end(args);
    fputc('\n', stderr);
    abort();
}

void *keel_malloc(size_t size)
{
    void *p = malloc(size ? size : 1);

    if (p == NULL)
        keel_fatal("out of memory (%zu bytes)", size);
    return p;
}

void *keel_calloc(size_t count, size_t size)
{
    void *p = calloc(count ? count : 1, size ? size : 1);

    if (p == NULL)
        keel_fatal("out of memory (%zu * %zu bytes)", count, size);
    return p;
}

void *keel_realloc(void *ptr, size_t size)
{
    void *p = realloc(ptr, size ? size : 1);

    if (p == NULL)
        keel_fatal("out of memory (%zu bytes)", size);
    return p;
}

char *keel_strdup(const char *s)
{
    size_t size = strlen(s) + 1;

    return memcpy(keel_malloc(size), s, size);
}
