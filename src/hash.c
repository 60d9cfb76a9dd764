/* The one place that includes xxhash.h. */
#include <xxhash.h>

#include "hash.h"

uint64_t keel_hash64(struct keel_slice bytes)
{
    return XXH3_64bits(bytes.data, bytes.len);
}

uint64_t keel_hash64_seed(struct keel_slice bytes, uint64_t seed)
{
    return XXH3_64bits_withSeed(bytes.data, bytes.len, seed);
}

struct keel_hash128 keel_hash128_of(struct keel_slice bytes)
{
    XXH128_hash_t h = XXH3_128bits(bytes.data, bytes.len);

    return (struct keel_hash128){ h.low64, h.high64 };
}
