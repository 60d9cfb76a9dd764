/* Inputs for a decoder whose bytes end with an xxh3-64 of themselves. Random bytes never have that,
 * so there are three ways in, chosen by the first byte: the bytes as they are; the bytes with a
 * check that fits; a good example with some of its bytes replaced (three bytes of input each:
 * where, and by what) and a check that fits. */
#ifndef FUZZ_SIGNED_H
#define FUZZ_SIGNED_H

#include "bytes.h"
#include "hash.h"

static inline void sign(struct keel_buf *buf)
{
    if (buf->len >= 8)
        put_le64(buf->data + buf->len - 8, keel_hash64(keel_slice_of(buf->data, buf->len - 8)));
}

static inline void replace_bytes(struct keel_buf *buf, struct keel_slice input)
{
    for (size_t i = 0; i + 3 <= input.len; i += 3)
        buf->data[get_le16(input.data + i) % buf->len] = input.data[i + 2];
}

static inline int run_signed(struct keel_slice data, struct keel_buf *(*example)(void),
                             void (*check)(struct keel_slice bytes))
{
    if (data.len == 0)
        return 0;
    struct keel_slice input = keel_slice_of(data.data + 1, data.len - 1);
    bool mutate = data.data[0] % 3 == 2;
    struct keel_buf *buf = mutate ? example() : keel_buf_copy(input);

    if (mutate)
        replace_bytes(buf, input);
    if (data.data[0] % 3 != 0)
        sign(buf);
    check(keel_buf_slice(buf));
    keel_buf_free(buf);
    return 0;
}

#endif
