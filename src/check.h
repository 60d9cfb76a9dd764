/* KEEL_ASSERT: programmer errors, on in every build. keel_fatal: lost trust (a failed fsync, a
 * checksum). Both end the process at once; pure code may call them, since they never return. */
#ifndef KEEL_CHECK_H
#define KEEL_CHECK_H

#include <stddef.h>

#define KEEL_ASSERT(cond) \
    (__builtin_expect(!!(cond), 1) ? (void)0 : keel_assert_failed(#cond, __FILE__, __LINE__))

#define KEEL_ARRAY_LEN(a) (sizeof(a) / sizeof((a)[0]))

/* The struct that holds `member`, from a pointer to the member. */
#define KEEL_CONTAINER_OF(ptr, type, member) \
    ((type *)(void *)((char *)(ptr)-offsetof(type, member)))

_Noreturn void keel_assert_failed(const char *cond, const char *file, int line);
_Noreturn void keel_fatal(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* malloc and friends that do not fail: running out of memory is fatal (apply must not depend on
 * it). */
void *keel_malloc(size_t size) __attribute__((malloc, returns_nonnull));
void *keel_calloc(size_t count, size_t size) __attribute__((malloc, returns_nonnull));
void *keel_realloc(void *ptr, size_t size) __attribute__((returns_nonnull));
char *keel_strdup(const char *s) __attribute__((malloc, returns_nonnull));

#endif
