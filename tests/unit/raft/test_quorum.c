/* Quorums against brute force: every small configuration, every set of nodes. */
#include "unit.h"

#include "raft/quorum.h"

/* Voters of a configuration as bits: node i + 1 is bit i. */
static struct raft_config config_of(unsigned voters, unsigned old_voters)
{
    struct raft_config config = { 0 };

    for (unsigned i = 0; i < 5; i++) {
        if (voters & (1u << i))
            config.voters[config.voter_count++] = i + 1;
        if (old_voters & (1u << i))
            config.old_voters[config.old_voter_count++] = i + 1;
    }
    return config;
}

static bool in_set(const void *arg, uint64_t id)
{
    return (*(const unsigned *)arg >> (id - 1)) & 1u;
}

static uint64_t value_in(const void *arg, uint64_t id)
{
    return ((const uint64_t *)arg)[id - 1];
}

static bool majority(unsigned voters, unsigned set)
{
    return 2 * __builtin_popcount(voters & set) > __builtin_popcount(voters);
}

static void quorum_is_a_majority_of_both_voter_sets(void **state)
{
    (void)state;
    for (unsigned voters = 0; voters < 32; voters++) {
        for (unsigned old = 0; old < 32; old++) {
            struct raft_config config = config_of(voters, old);

            for (unsigned set = 0; set < 32; set++) {
                bool expected = majority(voters, set) && (old == 0 || majority(old, set));

                assert_int_equal(raft_quorum_reached(&config, in_set, &set), expected);
            }
        }
    }
}

/* The largest v for which the nodes with at least v are a quorum, by trying every v. */
static uint64_t value_by_trying(unsigned voters, unsigned old, const uint64_t values[5])
{
    for (uint64_t v = 4; v > 0; v--) {
        unsigned set = 0;

        for (unsigned i = 0; i < 5; i++)
            set |= values[i] >= v ? 1u << i : 0;
        if (majority(voters, set) && (old == 0 || majority(old, set)))
            return v;
    }
    return 0;
}

static void quorum_value_is_the_largest_that_a_quorum_has(void **state)
{
    (void)state;
    for (unsigned voters = 0; voters < 32; voters++) {
        for (unsigned old = 0; old < 32; old++) {
            struct raft_config config = config_of(voters, old);

            for (unsigned n = 0; n < 3125; n += 7) { /* five digits of base five */
                uint64_t values[5] = { n % 5, n / 5 % 5, n / 25 % 5, n / 125 % 5, n / 625 };

                assert_int_equal(raft_quorum_value(&config, value_in, values),
                                 value_by_trying(voters, old, values));
            }
        }
    }
}

static void two_quorums_always_share_a_voter(void **state)
{
    (void)state;
    for (unsigned voters = 1; voters < 32; voters++) {
        struct raft_config config = config_of(voters, 0);

        for (unsigned a = 0; a < 32; a++) {
            for (unsigned b = 0; b < 32; b++) {
                if (raft_quorum_reached(&config, in_set, &a) &&
                    raft_quorum_reached(&config, in_set, &b))
                    assert_true(a & b & voters);
            }
        }
    }
}

static void members_are_voters_of_either_set_and_learners(void **state)
{
    struct raft_config config = config_of(1u, 2u);

    (void)state;
    config.learners[config.learner_count++] = 3;
    assert_true(raft_config_is_voter(&config, 1));
    assert_true(raft_config_is_voter(&config, 2));
    assert_false(raft_config_is_voter(&config, 3));
    assert_true(raft_config_is_member(&config, 3));
    assert_false(raft_config_is_member(&config, 4));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(quorum_is_a_majority_of_both_voter_sets),
        cmocka_unit_test(quorum_value_is_the_largest_that_a_quorum_has),
        cmocka_unit_test(two_quorums_always_share_a_voter),
        cmocka_unit_test(members_are_voters_of_either_set_and_learners),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
