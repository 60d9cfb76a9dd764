/* Puts the checks of a snapshot's bytes right after they were changed, as far as its parts can be
 * found: what is refused then is refused for what it says. */
#ifndef MVCC_CHAIN_H
#define MVCC_CHAIN_H

#include "bytes.h"
#include "hash.h"

static inline void chain_repair(uint8_t *p, size_t size)
{
    enum { HEADER = 128, HEAD = 16, CHECK = 8 };
    uint64_t check = 0;
    size_t at = HEADER;

    if (size < HEADER)
        return;
    check = keel_hash64(keel_slice_of(p, HEADER - CHECK));
    put_le64(p + HEADER - CHECK, check);
    while (size - at >= HEAD + CHECK) {
        size_t len = get_le32(p + at + 8);

        if (len > size - at - HEAD - CHECK)
            return;
        check = keel_hash64_seed(keel_slice_of(p + at, HEAD + len), check);
        put_le64(p + at + HEAD + len, check);
        at += HEAD + len + CHECK;
    }
}

#endif
