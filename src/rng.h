/* A seeded generator (xoshiro256**, Blackman & Vigna 2018; seeded by splitmix64): one instance a
 * concern, so that a change in one place does not reshuffle another. Not for secrets. */
#ifndef KEEL_RNG_H
#define KEEL_RNG_H

#include <stdint.h>

struct keel_rng {
    uint64_t s[4];
};

void keel_rng_seed(struct keel_rng *rng, uint64_t seed);
uint64_t keel_rng_next(struct keel_rng *rng);

/* Uniform in [0, bound); bound > 0. */
uint64_t keel_rng_below(struct keel_rng *rng, uint64_t bound);

#endif
