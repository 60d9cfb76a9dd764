/* Fixed-width integers in byte strings, and a cursor that checks every read. */
#ifndef KEEL_BYTES_H
#define KEEL_BYTES_H

#include <endian.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "buf.h"

static inline void put_le16(uint8_t *p, uint16_t v)
{
    v = htole16(v);
    memcpy(p, &v, sizeof v);
}

static inline void put_le32(uint8_t *p, uint32_t v)
{
    v = htole32(v);
    memcpy(p, &v, sizeof v);
}

static inline void put_le64(uint8_t *p, uint64_t v)
{
    v = htole64(v);
    memcpy(p, &v, sizeof v);
}

static inline void put_be64(uint8_t *p, uint64_t v)
{
    v = htobe64(v);
    memcpy(p, &v, sizeof v);
}

static inline uint16_t get_le16(const uint8_t *p)
{
    uint16_t v;

    memcpy(&v, p, sizeof v);
    return le16toh(v);
}

static inline uint32_t get_le32(const uint8_t *p)
{
    uint32_t v;

    memcpy(&v, p, sizeof v);
    return le32toh(v);
}

static inline uint64_t get_le64(const uint8_t *p)
{
    uint64_t v;

    memcpy(&v, p, sizeof v);
    return le64toh(v);
}

static inline uint64_t get_be64(const uint8_t *p)
{
    uint64_t v;

    memcpy(&v, p, sizeof v);
    return be64toh(v);
}

/* Reads from the front of a slice. After the first read past the end `bad` is set, and every read
 * gives zeroes: check `bad` once, at the end. */
struct keel_cursor {
    struct keel_slice rest;
    bool bad;
};

static inline const uint8_t *cursor_take(struct keel_cursor *c, size_t len)
{
    const uint8_t *p = c->rest.data;

    if (c->bad || len > c->rest.len) {
        c->bad = true;
        return NULL;
    }
    if (len > 0)
        c->rest.data += len;
    c->rest.len -= len;
    return p;
}

static inline uint8_t cursor_u8(struct keel_cursor *c)
{
    const uint8_t *p = cursor_take(c, 1);

    return p ? *p : 0;
}

static inline uint16_t cursor_le16(struct keel_cursor *c)
{
    const uint8_t *p = cursor_take(c, 2);

    return p ? get_le16(p) : 0;
}

static inline uint32_t cursor_le32(struct keel_cursor *c)
{
    const uint8_t *p = cursor_take(c, 4);

    return p ? get_le32(p) : 0;
}

static inline uint64_t cursor_le64(struct keel_cursor *c)
{
    const uint8_t *p = cursor_take(c, 8);

    return p ? get_le64(p) : 0;
}

static inline struct keel_slice cursor_slice(struct keel_cursor *c, size_t len)
{
    const uint8_t *p = cursor_take(c, len);

    return keel_slice_of(p, c->bad ? 0 : len);
}

#endif
