/* The tree of keys by itself: order and depth of children, whatever the names, and whichever go;
 * and the tables beside it. */
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

/* ---- removal ---- */

/* The rules of an AA tree, by levels; without recursion. */
static void check_levels(struct mvcc_key *root)
{
    struct mvcc_key *stack[200];
    size_t depth = 0;

    if (root != NULL)
        stack[depth++] = root;
    while (depth > 0) {
        struct mvcc_key *key = stack[--depth];
        unsigned left = key->left ? key->left->level : 0;
        unsigned right = key->right ? key->right->level : 0;

        assert_int_equal(left, key->level - 1u);
        assert_true(right == key->level || right + 1 == key->level);
        if (key->right != NULL && key->right->right != NULL)
            assert_true(key->right->right->level < key->level);
        assert_true(depth + 2 <= KEEL_ARRAY_LEN(stack));
        if (key->left != NULL)
            stack[depth++] = key->left;
        if (key->right != NULL)
            stack[depth++] = key->right;
    }
}

/* Those that are there, by name; NULL: not there. */
struct some {
    struct mvcc_key *keys[NAMES];
};

static void check_some(struct mvcc_index *index, const struct some *some)
{
    struct keel_slice after = keel_slice_of(NULL, 0);

    check_levels(index->root->dir->children);
    for (size_t i = 0; i < NAMES; i++) {
        assert_ptr_equal(index_child(index->root, names[i]), some->keys[i]);
        if (some->keys[i] == NULL)
            continue;
        assert_ptr_equal(index_next_child(index->root, after), some->keys[i]);
        after = names[i];
    }
    assert_null(index_next_child(index->root, after));
}

static void keys_can_go_in_any_order(void **state)
{
    struct mvcc_index *index = keel_malloc(sizeof *index);
    struct mvcc_record root = { .kind = MVCC_DIR, .ino = 1, .revision = { 1, 0 } };
    struct some *some = keel_calloc(1, sizeof *some);
    struct keel_rng rng;

    (void)state;
    keel_rng_seed(&rng, 5);
    make_ascending_names(false);
    index_init(index);
    index_add_record(index, index->root, &root, 0);
    for (size_t round = 0; round < 30; round++) {
        uint64_t more = keel_rng_below(&rng, 5); /* of 5 changes; 0: almost all go */

        for (size_t n = 0; n < 2000; n++) {
            size_t i = keel_rng_below(&rng, NAMES);

            if (keel_rng_below(&rng, 5) < more) {
                some->keys[i] = index_add_child(index->root, names[i]);
            } else if (some->keys[i] != NULL) {
                index_release(some->keys[i]);
                some->keys[i] = NULL;
            }
            if (n % 100 == 0)
                check_levels(index->root->dir->children);
        }
        check_some(index, some);
    }
    for (size_t i = 0; i < NAMES; i++)
        if (some->keys[i] != NULL)
            index_release(some->keys[i]);
    assert_null(index->root->dir->children);
    index_free(index);
    free(index);
    free(some);
}

static void a_directory_goes_with_the_last_key_in_it_unless_something_holds_it(void **state)
{
    struct mvcc_index index;
    struct mvcc_record root = { .kind = MVCC_DIR, .ino = 1, .revision = { 1, 0 } };

    (void)state;
    index_init(&index);
    index_add_record(&index, index.root, &root, 0);
    struct mvcc_key *a = index_add_child(index.root, keel_slice_str("a"));

    index_make_dir(a);
    struct mvcc_key *b = index_add_child(a, keel_slice_str("b"));

    index_make_dir(b);
    struct mvcc_key *c = index_add_child(b, keel_slice_str("c"));

    index_release(a);
    index_release(b);
    assert_ptr_equal(index_child(index.root, keel_slice_str("a")), a);
    mvcc_pin(b);
    index_release(c);
    assert_null(index_child(b, keel_slice_str("c")));
    assert_ptr_equal(index_child(a, keel_slice_str("b")), b);
    b->pins = 0;
    index_release(b);
    assert_null(index.root->dir->children);
    index_release(index.root);
    assert_ptr_equal(index.root->parent, NULL);
    index_free(&index);
}

/* ---- the tables beside it ---- */

static void the_queue_of_garbage_is_first_in_first_out(void **state)
{
    static struct mvcc_key keys[7];
    struct garbage g = { 0 };
    struct keel_rng rng;
    size_t in = 0, out = 0;

    (void)state;
    keel_rng_seed(&rng, 8);
    assert_null(garbage_first(&g));
    for (int round = 0; round < 200; round++) {
        for (uint64_t n = keel_rng_below(&rng, 400); n > 0; n--)
            garbage_push(&g, &keys[in++ % 7]);
        for (uint64_t n = keel_rng_below(&rng, round % 5 == 0 ? 4000 : 350); n > 0 && out < in;
             n--) {
            assert_ptr_equal(garbage_first(&g), &keys[out % 7]);
            assert_ptr_equal(garbage_pop(&g), &keys[out++ % 7]);
        }
        assert_int_equal(g.count, in - out);
        assert_int_equal(garbage_first(&g) == NULL, in == out);
    }
    assert_true(in > 20000);
    garbage_free(&g);
}

static void contents_are_counted_as_in_an_array(void **state)
{
    enum { MAIN = 300, SUB = 3 };
    static uint32_t records[MAIN][SUB]; /* that refer to it */
    struct contents c = { 0 };
    struct keel_rng rng;

    (void)state;
    keel_rng_seed(&rng, 21);
    for (int i = 0; i < 100000; i++) {
        struct mvcc_revision at = { 1 + keel_rng_below(&rng, MAIN),
                                    (uint32_t)keel_rng_below(&rng, SUB) };
        uint32_t *count = &records[at.main - 1][at.sub];
        bool growing = i / 10000 % 2 == 0;

        if (*count == 0) {
            *count = 1; /* its writer */
        } else if (keel_rng_below(&rng, 3) < (growing ? 2 : 1)) {
            contents_share(&c, at);
            ++*count;
        } else {
            assert_int_equal(contents_drop(&c, at), --*count == 0);
        }
        assert_int_equal(contents_has(&c, at), *count > 1);
    }
    size_t shared = 0;

    for (size_t i = 0; i < MAIN * SUB; i++)
        shared += records[i / SUB][i % SUB] > 1;
    assert_int_equal(c.count, shared);
    contents_free(&c);
}

static void adopted_content_that_one_record_refers_to_is_as_any_other(void **state)
{
    struct contents c = { 0 };

    (void)state;
    for (uint32_t sub = 0; sub < 100; sub++) {
        contents_adopt(&c, (struct mvcc_revision){ 9, sub });
        for (uint32_t n = 0; n <= sub % 3; n++)
            contents_share(&c, (struct mvcc_revision){ 9, sub });
    }
    contents_settle(&c);
    for (uint32_t sub = 0; sub < 100; sub++) {
        assert_int_equal(contents_has(&c, (struct mvcc_revision){ 9, sub }), sub % 3 > 0);
        for (uint32_t n = 0; n <= sub % 3; n++)
            assert_int_equal(contents_drop(&c, (struct mvcc_revision){ 9, sub }), n == sub % 3);
    }
    contents_free(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(children_are_in_byte_order_and_the_tree_is_flat_for_random_names),
        cmocka_unit_test(the_tree_is_flat_for_names_that_ascend_or_descend),
        cmocka_unit_test(paths_have_slashes_between_names_only),
        cmocka_unit_test(a_path_of_the_greatest_length_fits),
        cmocka_unit_test(inode_numbers_are_found_after_any_removals),
        cmocka_unit_test(keys_can_go_in_any_order),
        cmocka_unit_test(a_directory_goes_with_the_last_key_in_it_unless_something_holds_it),
        cmocka_unit_test(the_queue_of_garbage_is_first_in_first_out),
        cmocka_unit_test(contents_are_counted_as_in_an_array),
        cmocka_unit_test(adopted_content_that_one_record_refers_to_is_as_any_other),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
