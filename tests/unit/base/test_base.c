/* The shared small things: heap, generator, buffers, 128-bit sums. */
#include "unit.h"

#include "arena.h"
#include "buf.h"
#include "bytes.h"
#include "check.h"
#include "err.h"
#include "hash.h"
#include "heap.h"
#include "rng.h"
#include "units.h"

static void heap_gives_items_in_key_order_after_random_removals(void **state)
{
    struct keel_heap heap = { 0 };
    struct keel_heap_node nodes[500] = { 0 };
    struct keel_rng rng;
    uint64_t last = 0;

    (void)state;
    keel_rng_seed(&rng, 7);
    for (size_t i = 0; i < 500; i++)
        keel_heap_push(&heap, &nodes[i], keel_rng_below(&rng, 100), i);
    for (size_t i = 0; i < 500; i += 3)
        keel_heap_remove(&heap, &nodes[i]);
    size_t left = heap.count;

    assert_int_equal(left, 333);
    while (keel_heap_top(&heap) != NULL) {
        struct keel_heap_node *top = keel_heap_top(&heap);

        assert_true(top->key >= last);
        last = top->key;
        keel_heap_remove(&heap, top);
        left--;
    }
    assert_int_equal(left, 0);
    keel_heap_free(&heap);
}

static void generator_repeats_for_a_seed_and_stays_below_its_bound(void **state)
{
    struct keel_rng a, b;

    (void)state;
    keel_rng_seed(&a, 42);
    keel_rng_seed(&b, 42);
    for (int i = 0; i < 1000; i++) {
        uint64_t x = keel_rng_below(&a, 7);

        assert_true(x < 7);
        assert_true(x == keel_rng_below(&b, 7));
    }
}

static void hash_sums_do_not_depend_on_order_and_can_be_taken_back(void **state)
{
    struct keel_hash128 a = keel_hash128_of(keel_slice_str("a"));
    struct keel_hash128 b = keel_hash128_of(keel_slice_str("b"));
    struct keel_hash128 ab = keel_hash128_add(a, b), ba = keel_hash128_add(b, a);
    struct keel_hash128 back = keel_hash128_sub(ab, b);

    (void)state;
    assert_memory_equal(&ab, &ba, sizeof ab);
    assert_memory_equal(&back, &a, sizeof a);
}

static void cursor_reads_zeroes_after_the_end_and_says_so(void **state)
{
    uint8_t bytes[5] = { 1, 2, 3, 4, 5 };
    struct keel_cursor c = { .rest = keel_slice_of(bytes, 5) };

    (void)state;
    assert_int_equal(cursor_le32(&c), 0x04030201);
    assert_false(c.bad);
    assert_int_equal(cursor_le16(&c), 0);
    assert_true(c.bad);
    assert_int_equal(cursor_u8(&c), 0);
}

static void arena_memory_is_zeroed_and_aligned(void **state)
{
    struct keel_arena arena;

    (void)state;
    keel_arena_init(&arena);
    for (int round = 0; round < 3; round++) {
        for (size_t size = 1; size < 40000; size = size * 3 + 1) {
            uint8_t *p = keel_arena_alloc(&arena, size);

            assert_int_equal((uintptr_t)p % 16, 0);
            for (size_t i = 0; i < size; i++)
                assert_int_equal(p[i], 0);
            memset(p, 0xff, size);
        }
        keel_arena_reset(&arena);
    }
    keel_arena_free(&arena);
}

static void text_grows_and_errors_have_an_errno(void **state)
{
    struct keel_text text = { 0 };

    (void)state;
    for (int i = 0; i < 200; i++)
        keel_text_printf(&text, "%d,", i);
    assert_int_equal(text.len, 690);
    assert_string_equal(text.data + text.len - 4, "199,");
    keel_text_free(&text);
    assert_int_equal(keel_errno(KEEL_E_FILETOOBIG), EFBIG);
    assert_int_equal(keel_errno(-9999), EIO);
    assert_string_equal(keel_strerror(KEEL_E_TIMEDOUT), "no quorum, timed out");
}

static void sizes_and_times_have_units(void **state)
{
    static const char *const bad_sizes[] = {
        "", "M", "1m", "1.5G", "-1", "+1", " 1", "1 K", "1KB", "16777216T", "1000000000000000000000"
    };
    static const char *const bad_times[] = {
        "", "1", "h", "2H", "-1s", "1h30m", "999999999999999999d"
    };
    uint64_t value;

    (void)state;
    assert_true(keel_units_size("1044480", &value) && value == 1044480);
    assert_true(keel_units_size("512M", &value) && value == 512 << 20);
    assert_true(keel_units_size("3T", &value) && value == 3ull << 40);
    assert_true(keel_units_time("500ms", &value) && value == 500);
    assert_true(keel_units_time("90s", &value) && value == 90000);
    assert_true(keel_units_time("20m", &value) && value == 1200000);
    assert_true(keel_units_time("2h", &value) && value == 7200000);
    assert_true(keel_units_time("7d", &value) && value == 604800000);
    for (size_t i = 0; i < KEEL_ARRAY_LEN(bad_sizes); i++)
        if (keel_units_size(bad_sizes[i], &value))
            fail_msg("taken: %s", bad_sizes[i]);
    for (size_t i = 0; i < KEEL_ARRAY_LEN(bad_times); i++)
        if (keel_units_time(bad_times[i], &value))
            fail_msg("taken: %s", bad_times[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(heap_gives_items_in_key_order_after_random_removals),
        cmocka_unit_test(generator_repeats_for_a_seed_and_stays_below_its_bound),
        cmocka_unit_test(hash_sums_do_not_depend_on_order_and_can_be_taken_back),
        cmocka_unit_test(cursor_reads_zeroes_after_the_end_and_says_so),
        cmocka_unit_test(arena_memory_is_zeroed_and_aligned),
        cmocka_unit_test(text_grows_and_errors_have_an_errno),
        cmocka_unit_test(sizes_and_times_have_units),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
