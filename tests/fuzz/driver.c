/* Runs a fuzzer without libFuzzer: on the files named in the arguments (an input that once failed);
 * on the files of the directories named there and on mutations of them; and without arguments on
 * random bytes. All that is random is the same each time. So the fuzzers are compiled and run by
 * every check; with -Dfuzz=true and clang they search in earnest. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "rng.h"

enum { ROUNDS = 200000, INPUT_MAX = 600, FILE_MAX = 16 << 20 };
enum { MUTATIONS = 20000, SEEDS_MAX = 256, SPARE = 64 };

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

static uint8_t *read_file(const char *path, size_t *ret_size)
{
    uint8_t *bytes = keel_malloc(FILE_MAX);
    FILE *file = fopen(path, "rb");

    if (file == NULL) {
        perror(path);
        free(bytes);
        return NULL;
    }
    *ret_size = fread(bytes, 1, FILE_MAX, file);
    fclose(file);
    return keel_realloc(bytes, *ret_size + SPARE);
}

static int run_file(const char *path)
{
    size_t size;
    uint8_t *bytes = read_file(path, &size);

    if (bytes == NULL)
        return 1;
    run(bytes, size);
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

/* ---- a directory of inputs ---- */

struct seed {
    uint8_t *bytes; /* with SPARE bytes of room */
    size_t size;
};

static int compare_names(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

static int is_visible(const struct dirent *entry)
{
    return entry->d_name[0] != '.';
}

static size_t read_seeds(const char *dir, struct seed *seeds)
{
    struct dirent **names;
    int count = scandir(dir, &names, is_visible, compare_names);
    size_t kept = 0;

    for (int i = 0; i < count; i++) {
        char path[4096];
        struct seed *seed = &seeds[kept];

        snprintf(path, sizeof path, "%s/%s", dir, names[i]->d_name);
        free(names[i]);
        if (kept == SEEDS_MAX)
            continue;
        seed->bytes = read_file(path, &seed->size);
        kept += seed->bytes != NULL;
    }
    if (count >= 0)
        free(names);
    return kept;
}

/* One change somewhere: a byte, a bit, bytes copied elsewhere, bytes cut out, or the end cut off.
 */
static size_t mutate_once(struct keel_rng *rng, uint8_t *bytes, size_t size)
{
    if (size == 0)
        return 0;

    size_t at = (size_t)keel_rng_below(rng, size), to = (size_t)keel_rng_below(rng, size);
    size_t high = at > to ? at : to;
    size_t len = (size_t)keel_rng_below(rng, (size - high < SPARE ? size - high : SPARE) + 1);

    switch (keel_rng_below(rng, 16)) {
    case 0:
        memmove(bytes + to, bytes + at, len);
        return size;
    case 1:
        memmove(bytes + at, bytes + at + len, size - at - len);
        return size - len;
    case 2:
        return size - (size_t)keel_rng_below(rng, (size < SPARE ? size : SPARE) + 1);
    case 3:
    case 4:
    case 5:
    case 6:
        bytes[at] ^= (uint8_t)(1u << keel_rng_below(rng, 8));
        return size;
    default:
        bytes[at] = random_byte(rng);
        return size;
    }
}

static int run_dir(const char *dir)
{
    struct seed seeds[SEEDS_MAX];
    size_t count = read_seeds(dir, seeds);
    struct keel_rng rng;

    keel_rng_seed(&rng, 1);
    for (size_t i = 0; i < count; i++)
        run(seeds[i].bytes, seeds[i].size);
    for (size_t round = 0; count > 0 && round < MUTATIONS; round++) {
        const struct seed *seed = &seeds[keel_rng_below(&rng, count)];
        uint8_t *bytes = keel_malloc(seed->size + SPARE);
        size_t size = seed->size, changes = (size_t)keel_rng_below(&rng, 8) + 1;

        memcpy(bytes, seed->bytes, size);
        while (changes-- > 0)
            size = mutate_once(&rng, bytes, size);
        run(bytes, size);
        free(bytes);
    }
    for (size_t i = 0; i < count; i++)
        free(seeds[i].bytes);
    printf("%zu inputs, %d mutations\n", count, count > 0 ? MUTATIONS : 0);
    return count > 0 ? 0 : 1;
}

static int run_path(const char *path)
{
    DIR *dir = opendir(path);

    if (dir == NULL)
        return run_file(path);
    closedir(dir);
    return run_dir(path);
}

int main(int argc, char **argv)
{
    uint8_t input[INPUT_MAX];
    struct keel_rng rng;
    int failed = 0;

    for (int i = 1; i < argc; i++)
        failed |= run_path(argv[i]);
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
