/* Bytes: keel_slice borrows, keel_buf is counted.
 *
 * A buf is immutable once it is shared. The count is atomic: the log and store threads drop
 * references to bufs that the loop made. */
#ifndef KEEL_BUF_H
#define KEEL_BUF_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct keel_slice {
    const uint8_t *data; /* may be NULL when len is 0 */
    size_t len;
};

struct keel_buf {
    _Atomic uint32_t refs;
    size_t len;
    uint8_t data[];
};

/* A new buf with one reference and `len` bytes that are not initialized. */
struct keel_buf *keel_buf_new(size_t len);

/* A new buf with a copy of the bytes. */
struct keel_buf *keel_buf_copy(struct keel_slice bytes);

struct keel_buf *keel_buf_ref(struct keel_buf *buf);

/* Drops one reference; takes NULL; returns NULL. */
struct keel_buf *keel_buf_free(struct keel_buf *buf);

static inline struct keel_slice keel_slice_of(const void *data, size_t len)
{
    return (struct keel_slice){ data, len };
}

static inline struct keel_slice keel_slice_str(const char *s)
{
    return keel_slice_of(s, strlen(s));
}

static inline struct keel_slice keel_buf_slice(const struct keel_buf *buf)
{
    return buf ? keel_slice_of(buf->data, buf->len) : keel_slice_of(NULL, 0);
}

static inline bool keel_slice_equal(struct keel_slice a, struct keel_slice b)
{
    return a.len == b.len && (a.len == 0 || memcmp(a.data, b.data, a.len) == 0);
}

/* Byte order, a prefix before what it is a prefix of. */
static inline int keel_slice_compare(struct keel_slice a, struct keel_slice b)
{
    size_t shorter = a.len < b.len ? a.len : b.len;
    int order = shorter ? memcmp(a.data, b.data, shorter) : 0;

    return order != 0 ? order : (a.len > b.len) - (a.len < b.len);
}

/* Text that grows: for control files and messages. Starts as all zeroes; free with keel_text_free.
 */
struct keel_text {
    char *data; /* NUL-terminated when not NULL */
    size_t len, capacity;
};

void keel_text_printf(struct keel_text *text, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
void keel_text_append(struct keel_text *text, struct keel_slice bytes);
void keel_text_free(struct keel_text *text);

#endif
