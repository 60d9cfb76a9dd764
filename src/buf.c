/* Counted buffers and growing text. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "buf.h"
#include "check.h"

struct keel_buf *keel_buf_new(size_t len)
{
    struct keel_buf *buf = keel_malloc(sizeof *buf + len);

    atomic_init(&buf->refs, 1);
    buf->len = len;
    return buf;
}

struct keel_buf *keel_buf_copy(struct keel_slice bytes)
{
    struct keel_buf *buf = keel_buf_new(bytes.len);

    if (bytes.len > 0)
        memcpy(buf->data, bytes.data, bytes.len);
    return buf;
}

struct keel_buf *keel_buf_ref(struct keel_buf *buf)
{
    uint32_t before = atomic_fetch_add_explicit(&buf->refs, 1, memory_order_relaxed);

    KEEL_ASSERT(before > 0);
    return buf;
}

struct keel_buf *keel_buf_free(struct keel_buf *buf)
{
    if (buf == NULL)
        return NULL;
    uint32_t before = atomic_fetch_sub_explicit(&buf->refs, 1, memory_order_acq_rel);

    KEEL_ASSERT(before > 0);
    if (before == 1)
        free(buf);
    return NULL;
}

static void text_reserve(struct keel_text *text, size_t more)
{
    size_t need = text->len + more + 1;

    if (need <= text->capacity)
        return;
    text->capacity = need < 256 ? 256 : need + need / 2;
    text->data = keel_realloc(text->data, text->capacity);
}

void keel_text_append(struct keel_text *text, struct keel_slice bytes)
{
    text_reserve(text, bytes.len);
    if (bytes.len > 0)
        memcpy(text->data + text->len, bytes.data, bytes.len);
    text->len += bytes.len;
    text->data[text->len] = '\0';
}

void keel_text_printf(struct keel_text *text, const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    int len = vsnprintf(NULL, 0, fmt, args);
    va_end(args);
    KEEL_ASSERT(len >= 0);
    text_reserve(text, (size_t)len);
    va_start(args, fmt);
    vsnprintf(text->data + text->len, (size_t)len + 1, fmt, args);
    va_end(args);
    text->len += (size_t)len;
}

void keel_text_free(struct keel_text *text)
{
    free(text->data);
    *text = (struct keel_text){ 0 };
}
