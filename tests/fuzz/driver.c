/* Runs a fuzzer without libFuzzer: on the files named in the arguments (an input that once failed),
 * or else on inputs that are random, but the same each time. So the fuzzers are compiled and run by
 * every check; with -Dfuzz=true and clang they search in earnest. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "rng.h"

enum { ROUNDS = 200000, INPUT_MAX = 600, FILE_MAX = 16 << 20 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* In memory of its own size, so that a sanitizer sees the first read beyond it. */
static void run(const uint8_t *data, size_t size)
{
    uint8_t *copy = keel_malloc(size);

    if (size > 0)
        memcpy(copy, data, size);
    LLVMFuzzerTestOneInput(copy, size);
    free(copy);
}

static int run_file(const char *path)
{
    uint8_t *bytes = keel_malloc(FILE_MAX);
    FILE *file = fopen(path, "rb");

    if (file == NULL) {
        perror(path);
        free(bytes);
        return 1;
    }
    run(bytes, fread(bytes, 1, FILE_MAX, file));
    fclose(file);
    free(bytes);
    return 0;
}

/* Bytes out of a small set as often as not: counts, lengths and types are mostly small, and
 * separators are few. */
static uint8_t random_byte(struct keel_rng *rng)
{
    static const uint8_t common[] = { 0,    0,    0,   1,   2,   3,   8,   16,
                                      0x7f, 0xff, '@', '=', ',', '/', 'r', '9' };
    uint64_t v = keel_rng_next(rng);

    return (v & 0x100) != 0 ? (uint8_t)v : common[v % sizeof common];
}

int main(int argc, char **argv)
{
    uint8_t input[INPUT_MAX];
    struct keel_rng rng;
    int failed = 0;

    for (int i = 1; i < argc; i++)
        failed |= run_file(argv[i]);
    if (argc > 1)
        return failed;
    keel_rng_seed(&rng, 1);
    for (size_t round = 0; round < ROUNDS; round++) {
        size_t size = (size_t)keel_rng_below(&rng, 1 + keel_rng_below(&rng, INPUT_MAX));

        for (size_t i = 0; i < size; i++)
            input[i] = random_byte(&rng);
        run(input, size);
    }
    printf("%d inputs\n", ROUNDS);
    return 0;
}
