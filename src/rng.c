/* xoshiro256**. */
#include "check.h"
#include "rng.h"

static uint64_t splitmix64(uint64_t *x)
{
    uint64_t z = (*x += 0x9e3779b97f4a7c15u);

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static uint64_t rotl(uint64_t x, int k)
{
    return (x << k) | (x >> (64 - k));
}

void keel_rng_seed(struct keel_rng *rng, uint64_t seed)
{
    for (int i = 0; i < 4; i++)
        rng->s[i] = splitmix64(&seed);
}

uint64_t keel_rng_next(struct keel_rng *rng)
{
    uint64_t *s = rng->s;
    uint64_t result = rotl(s[1] * 5, 7) * 9;
    uint64_t t = s[1] << 17;

    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = rotl(s[3], 45);
    return result;
}

uint64_t keel_rng_below(struct keel_rng *rng, uint64_t bound)
{
    uint64_t threshold, x;

    KEEL_ASSERT(bound > 0);
    threshold = (0 - bound) % bound; /* rejecting below it leaves a multiple of bound */
    do {
        x = keel_rng_next(rng);
    } while (x < threshold);
    return x % bound;
}
