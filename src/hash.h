/* xxh3 behind two names; 128-bit values that add up (the state hash). */
#ifndef KEEL_HASH_H
#define KEEL_HASH_H

#include <stdbool.h>
#include <stdint.h>

#include "buf.h"

struct keel_hash128 {
    uint64_t low, high;
};

uint64_t keel_hash64(struct keel_slice bytes);
uint64_t keel_hash64_seed(struct keel_slice bytes, uint64_t seed);
struct keel_hash128 keel_hash128_of(struct keel_slice bytes);

static inline bool keel_hash128_equal(struct keel_hash128 a, struct keel_hash128 b)
{
    return a.low == b.low && a.high == b.high;
}

/* Sum and difference modulo 2^128. */
static inline struct keel_hash128 keel_hash128_add(struct keel_hash128 a, struct keel_hash128 b)
{
    struct keel_hash128 sum = { a.low + b.low, a.high + b.high };

    sum.high += sum.low < a.low;
    return sum;
}

static inline struct keel_hash128 keel_hash128_sub(struct keel_hash128 a, struct keel_hash128 b)
{
    struct keel_hash128 difference = { a.low - b.low, a.high - b.high };

    difference.high -= a.low < b.low;
    return difference;
}

#endif
