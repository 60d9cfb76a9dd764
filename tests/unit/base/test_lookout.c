/* When the loop stays awake. */
#include "unit.h"

#include "lookout.h"

static bool turn(struct lookout *l, uint64_t reasons, uint64_t arrivals, uint64_t now_us)
{
    return lookout_turn(l, reasons, arrivals, LOOKOUT_REQUEST_US, now_us);
}

static void answer_is_followed_by_a_look_out_of_bounded_length(void **state)
{
    struct lookout l = { 0 };

    (void)state;
    assert_false(turn(&l, 0, 1, 1000)); /* deferred: nothing to expect */
    assert_true(turn(&l, 1, 1, 2000));
    assert_true(turn(&l, 1, 1, 2000 + LOOKOUT_REQUEST_US - 1));
    assert_false(turn(&l, 1, 1, 2000 + LOOKOUT_REQUEST_US));
    assert_false(turn(&l, 1, 1, 9000));
}

static void looking_out_in_vain_becomes_rare_and_success_makes_it_frequent_again(void **state)
{
    struct lookout l = { 0 };
    uint64_t now = 0, n = 0, awake = 0;

    (void)state;
    for (int i = 0; i < 4096; i++) {
        n++;
        awake += turn(&l, n, n, now += 1000);
        turn(&l, n, n, now += 1000); /* nobody came */
    }
    assert_in_range(awake, 10, 40);
    while (!turn(&l, n + 1, n + 1, now += 1000))
        n++;
    n++;
    for (int i = 0; i < 100; i++) { /* each comes in time now */
        n++;
        assert_true(turn(&l, n, n, now += 5));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answer_is_followed_by_a_look_out_of_bounded_length),
        cmocka_unit_test(looking_out_in_vain_becomes_rare_and_success_makes_it_frequent_again),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
