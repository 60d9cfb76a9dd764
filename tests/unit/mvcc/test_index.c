/* The tree of keys by itself: order and depth of children, whatever the names. */
#include "help.h"

#include <stdio.h>

#include "check.h"
#include "mvcc/index.h"
#include "rng.h"

enum { NAMES = 4000 };

static struct keel_slice names[NAMES];
static uint8_t name_bytes[NAMES][12];

/* Short names over few byte values: many prefixes of each other, bytes above 0x7f, and repetitions.
 */
static void make_random_names(uint64_t seed)
{
    static const uint8_t alphabet[] = { 1, '.', 'a', 'b', 0x7f, 0x80, 0xff };
    struct keel_rng rng;

    keel_rng_seed(&rng, seed);
    for (size_t i = 0; i < NAMES; i++) {
        size_t len = 1 + keel_rng_below(&rng, sizeof name_bytes[i]);

        for (size_t k = 0; k < len; k++)
            name_bytes[i][k] = alphabet[keel_rng_below(&rng, sizeof alphabet)];
        names[i] = keel_slice_of(name_bytes[i], len);
    }
}

static void make_ascending_names(bool descending)
{
    for (size_t i = 0; i < NAMES; i++) {
        snprintf((char *)name_bytes[i], sizeof name_bytes[i], "%06zu", descending ? NAMES - i : i);
        names[i] = keel_slice_of(name_bytes[i], 6);
    }
}

static int compare(const void *a, const void *b)
{
    return keel_slice_compare(*(const struct keel_slice *)a, *(const struct keel_slice *)b);
}

static struct mvcc_index *index_of_names(void)
{
    struct mvcc_index *index = keel_malloc(sizeof *index);
    struct mvcc_record root = { .kind = MVCC_DIR, .ino = 1, .revision = { 1, 0 } };

    index_init(index);
    index_add_record(index, index->root, &root, 0);
    for (size_t i = 0; i < NAMES; i++) {
        struct mvcc_key *key = index_add_child(index->root, names[i]);

        assert_ptr_equal(key, index_add_child(index->root, names[i]));
        assert_ptr_equal(key, index_child(index->root, names[i]));
    }
    return index;
}

/* Walks down by the bits of a path: the deepest key of the tree, without recursion. */
static size_t depth_of(const struct mvcc_key *root, struct keel_slice name)
{
    size_t depth = 0;

    for (const struct mvcc_key *key = root; key != NULL; depth++) {
        int order = keel_slice_compare(name, keel_slice_of(key->name, key->name_len));

        if (order == 0)
            return depth + 1;
        key = order < 0 ? key->left : key->right;
    }
    fail_msg("a name is not in its tree");
    return 0;
}

static void check_order_and_depth(void)
{
    struct mvcc_index *index = index_of_names();
    struct keel_slice after = keel_slice_of(NULL, 0);
    size_t keys = 0;

    qsort(names, NAMES, sizeof names[0], compare);
    for (size_t i = 0; i < NAMES; i++) {
        if (i > 0 && keel_slice_equal(names[i], names[i - 1]))
            continue;
        struct mvcc_key *key = index_next_child(index->root, after);

        assert_non_null(key);
        assert_true(keel_slice_equal(keel_slice_of(key->name, key->name_len), names[i]));
        after = names[i];
        keys++;
    }
    assert_null(index_next_child(index->root, after));
    /* 2 * log2(n + 1), the bound of an AA tree. */
    size_t bound = 2 * (size_t)(64 - __builtin_clzll(keys + 1));

    for (size_t i = 0; i < NAMES; i++)
        assert_true(depth_of(index->root->dir->children, names[i]) <= bound);
    index_free(index);
    free(index);
}

static void children_are_in_byte_order_and_the_tree_is_flat_for_random_names(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 5; seed++) {
        make_random_names(seed);
        check_order_and_depth();
    }
}

static void the_tree_is_flat_for_names_that_ascend_or_descend(void **state)
{
    (void)state;
    make_ascending_names(false);
    check_order_and_depth();
    make_ascending_names(true);
    check_order_and_depth();
}

static void paths_have_slashes_between_names_only(void **state)
{
    struct mvcc_index index;
    struct mvcc_record dir = { .kind = MVCC_DIR, .ino = 1, .revision = { 1, 0 } };
    struct index_path path;

    (void)state;
    index_init(&index);
    index_add_record(&index, index.root, &dir, 0);
    assert_int_equal(index_path_of(index.root, &path).len, 0);
    struct mvcc_key *a = index_add_child(index.root, keel_slice_str("a"));

    dir.ino = 2;
    index_add_record(&index, a, &dir, 1);
    struct mvcc_key *b = index_add_child(a, keel_slice_str("bc"));

    assert_true(keel_slice_equal(index_path_of(a, &path), keel_slice_str("a")));
    assert_true(keel_slice_equal(index_path_of(b, &path), keel_slice_str("a/bc")));
    index_free(&index);
}

static void a_path_of_the_greatest_length_fits(void **state)
{
    struct mvcc_index index;
    struct mvcc_record dir = { .kind = MVCC_DIR, .revision = { 1, 0 } };
    struct index_path path;
    char name[KEEL_NAME_MAX];

    (void)state;
    memset(name, 'n', sizeof name);
    index_init(&index);
    struct mvcc_key *key = index.root;

    /* 16 names of 255 bytes and 15 slashes are 4095 bytes. */
    for (uint64_t i = 1; i <= 16; i++) {
        dir.ino = i;
        dir.revision.main = i;
        index_add_record(&index, key, &dir, 0);
        key = index_add_child(key, keel_slice_of(name, sizeof name));
    }
    assert_int_equal(index_path_of(key, &path).len, KEEL_PATH_MAX);
    index_free(&index);
}

static void inode_numbers_are_found_after_any_removals(void **state)
{
    struct mvcc_index index;
    struct mvcc_record record = { .kind = MVCC_DIR, .ino = 1, .revision = { 1, 0 } };
    struct mvcc_key *keys[NAMES];
    uint64_t inos[NAMES];
    struct keel_rng rng;

    (void)state;
    keel_rng_seed(&rng, 11);
    make_ascending_names(false);
    index_init(&index);
    index_add_record(&index, index.root, &record, 0);
    record.kind = MVCC_FILE;
    for (size_t i = 0; i < NAMES; i++) {
        keys[i] = index_add_child(index.root, names[i]);
        /* Ranges of several nodes, as they are handed out. */
        record.ino = inos[i] = (1 + i % 3) * KEEL_INODE_RANGE + i;
        record.tombstone = false;
        record.revision.main++;
        index_add_record(&index, keys[i], &record, 6);
        if (keel_rng_below(&rng, 3) != 0)
            continue;
        size_t gone = keel_rng_below(&rng, i + 1);

        if (keys[gone]->ino == 0)
            continue;
        record.tombstone = true;
        record.revision.main++;
        index_add_record(&index, keys[gone], &record, 6);
    }
    for (size_t i = 0; i < NAMES; i++)
        assert_ptr_equal(index_by_ino(&index, inos[i]), keys[i]->ino != 0 ? keys[i] : NULL);
    assert_int_equal(index.inos.count, index.live_keys);
    assert_null(index_by_ino(&index, 0));
    index_free(&index);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(children_are_in_byte_order_and_the_tree_is_flat_for_random_names),
        cmocka_unit_test(the_tree_is_flat_for_names_that_ascend_or_descend),
        cmocka_unit_test(paths_have_slashes_between_names_only),
        cmocka_unit_test(a_path_of_the_greatest_length_fits),
        cmocka_unit_test(inode_numbers_are_found_after_any_removals),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
