/* Configurations against brute force: every small configuration, with sets as bits (node i + 1 is
 * bit i) for the naive side. */
#include "unit.h"

#include "check.h"
#include "err.h"
#include "raft/config.h"
#include "raft/quorum.h"
#include "rng.h"

enum { IDS = 5, SETS = 1 << IDS };

static size_t list_of(unsigned set, uint64_t *ids)
{
    size_t count = 0;

    for (unsigned i = 0; i < IDS; i++) {
        if (set & (1u << i))
            ids[count++] = i + 1;
    }
    return count;
}

static struct raft_config config_of(unsigned voters, unsigned old, unsigned learners)
{
    struct raft_config config = { 0 };

    config.voter_count = list_of(voters, config.voters);
    config.old_voter_count = list_of(old, config.old_voters);
    config.learner_count = list_of(learners, config.learners);
    return config;
}

static unsigned set_of(const uint64_t *ids, size_t count)
{
    unsigned set = 0;

    for (size_t i = 0; i < count; i++)
        set |= 1u << (ids[i] - 1);
    return set;
}

static void assert_config(const struct raft_config *config, unsigned voters, unsigned old,
                          unsigned learners)
{
    struct raft_config expected = config_of(voters, old, learners);

    assert_true(raft_config_valid(config));
    assert_true(raft_config_equal(config, &expected));
}

/* Calls `check` with every valid configuration. */
static void each_config(void (*check)(unsigned voters, unsigned old, unsigned learners))
{
    for (unsigned voters = 0; voters < SETS; voters++) {
        for (unsigned old = 0; old < (voters ? SETS : 1); old++) {
            for (unsigned learners = 0; learners < SETS; learners++) {
                if ((voters & learners) == 0)
                    check(voters, old, learners);
            }
        }
    }
}

/* Sixteen members numbered from 1 on, voters first. */
static struct raft_config full_config(size_t voters)
{
    struct raft_config config = { .voter_count = voters,
                                  .learner_count = KEEL_MEMBERS_MAX - voters };

    for (size_t i = 0; i < KEEL_MEMBERS_MAX; i++) {
        if (i < voters)
            config.voters[i] = i + 1;
        else
            config.learners[i - voters] = i + 1;
    }
    return config;
}

/* ---- validity ---- */

static void sorted_disjoint_lists_are_valid(void **state)
{
    (void)state;
    for (unsigned voters = 0; voters < SETS; voters++) {
        for (unsigned old = 0; old < SETS; old++) {
            for (unsigned learners = 0; learners < SETS; learners++) {
                struct raft_config config = config_of(voters, old, learners);
                bool expected = (voters & learners) == 0 && (old == 0 || voters != 0);

                assert_int_equal(raft_config_valid(&config), expected);
            }
        }
    }
}

/* Every list of up to three ids of 0 to 3, at each of the three places. */
static void lists_with_zeroes_duplicates_or_disorder_are_not(void **state)
{
    (void)state;
    for (unsigned n = 0; n < 64; n++) {
        const uint64_t ids[3] = { n % 4, n / 4 % 4, n / 16 };

        for (size_t count = 1; count <= 3; count++) {
            bool expected = ids[0] != 0;
            struct raft_config a = { .voter_count = count };
            struct raft_config b = { .voters = { 9 }, .voter_count = 1, .old_voter_count = count };
            struct raft_config c = { .learner_count = count };

            for (size_t i = 1; i < count; i++)
                expected = expected && ids[i] > ids[i - 1];
            memcpy(a.voters, ids, count * sizeof *ids);
            memcpy(b.old_voters, ids, count * sizeof *ids);
            memcpy(c.learners, ids, count * sizeof *ids);
            assert_int_equal(raft_config_valid(&a), expected);
            assert_int_equal(raft_config_valid(&b), expected);
            assert_int_equal(raft_config_valid(&c), expected);
        }
    }
}

static void sixteen_members_are_the_most(void **state)
{
    struct raft_config config = full_config(9);

    (void)state;
    assert_true(raft_config_valid(&config));
    memcpy(config.old_voters, config.voters, sizeof config.voters);
    config.old_voter_count = config.voter_count;
    assert_true(raft_config_valid(&config));
    config.old_voters[8] = 17; /* was 9, a voter too: now a seventeenth member */
    assert_false(raft_config_valid(&config));
    config.old_voters[8] = 16; /* a learner */
    assert_true(raft_config_valid(&config));
    config.voter_count = KEEL_MEMBERS_MAX + 1; /* no list of that size is looked at */
    assert_false(raft_config_valid(&config));
}

/* ---- changes ---- */

static void check_put(unsigned voters, unsigned old, unsigned learners)
{
    for (unsigned i = 0; i < IDS; i++) {
        unsigned bit = 1u << i;
        struct raft_config a = config_of(voters, old, learners), b = a;

        assert_true(raft_config_put(&a, i + 1, true));
        assert_config(&a, voters | bit, old, learners & ~bit);
        if (old != 0 && (voters & ~bit) == 0)
            continue; /* the last voter of a joint one: not valid without it */
        assert_true(raft_config_put(&b, i + 1, false));
        assert_config(&b, voters & ~bit, old, learners | bit);
    }
}

static void put_moves_a_member_from_wherever_it_was(void **state)
{
    (void)state;
    each_config(check_put);
}

static void check_drop(unsigned voters, unsigned old, unsigned learners)
{
    for (unsigned i = 0; i < IDS; i++) {
        unsigned bit = 1u << i;
        struct raft_config config = config_of(voters, old, learners);

        if (old != 0 && (voters & ~bit) == 0)
            continue;
        assert_int_equal(raft_config_drop(&config, i + 1), ((voters | learners) & bit) != 0);
        assert_config(&config, voters & ~bit, old, learners & ~bit);
    }
}

static void drop_takes_a_member_out_of_both_lists(void **state)
{
    (void)state;
    each_config(check_drop);
}

static void a_full_configuration_takes_no_more_but_moves_its_members(void **state)
{
    (void)state;
    for (size_t voters = 0; voters <= KEEL_MEMBERS_MAX; voters++) {
        struct raft_config config = full_config(voters), before = config;

        assert_false(raft_config_put(&config, 17, true));
        assert_false(raft_config_put(&config, 17, false));
        assert_true(raft_config_equal(&config, &before));
        for (uint64_t id = 1; id <= KEEL_MEMBERS_MAX; id++) {
            assert_true(raft_config_put(&config, id, id % 2 == 0));
            assert_true(raft_config_valid(&config));
        }
        assert_int_equal(config.voter_count, KEEL_MEMBERS_MAX / 2);
        assert_int_equal(config.learner_count, KEEL_MEMBERS_MAX / 2);
        assert_true(raft_config_drop(&config, 5));
        assert_true(raft_config_put(&config, 17, true));
    }
}

static void entering_is_joint_only_when_the_voters_differ(void **state)
{
    (void)state;
    for (unsigned from = 0; from < SETS; from++) {
        for (unsigned voters = 1; voters < SETS; voters++) {
            for (unsigned learners = 0; learners < SETS; learners++) {
                struct raft_config a = config_of(from, 0, SETS - 1 - from);
                struct raft_config b = config_of(voters, 0, learners), joint, end;

                if (voters & learners)
                    continue;
                joint = raft_config_enter(&a, &b);
                assert_config(&joint, voters, from == voters ? 0 : from, learners);
                assert_int_equal(raft_config_is_joint(&joint), from != voters && from != 0);
                if (!raft_config_is_joint(&joint))
                    continue;
                end = raft_config_leave(&joint);
                assert_true(raft_config_equal(&end, &b));
            }
        }
    }
}

static void check_members(unsigned voters, unsigned old, unsigned learners)
{
    struct raft_config config = config_of(voters, old, learners);
    uint64_t members[KEEL_MEMBERS_MAX];
    size_t count = raft_config_members(&config, members);

    assert_int_equal(set_of(members, count), voters | old | learners);
    assert_int_equal(count, __builtin_popcount(voters | old | learners));
    for (size_t i = 1; i < count; i++)
        assert_true(members[i - 1] < members[i]);
    for (unsigned i = 0; i < IDS; i++) {
        unsigned bit = 1u << i;

        assert_int_equal(raft_config_is_voter(&config, i + 1), ((voters | old) & bit) != 0);
        assert_int_equal(raft_config_is_member(&config, i + 1),
                         ((voters | old | learners) & bit) != 0);
    }
}

static void members_are_everybody_once_and_sorted(void **state)
{
    (void)state;
    each_config(check_members);
}

static void check_equal(unsigned voters, unsigned old, unsigned learners)
{
    struct raft_config a = config_of(voters, old, learners), b = a;

    b.voters[KEEL_MEMBERS_MAX - 1] = 99; /* behind the count: means nothing */
    assert_true(raft_config_equal(&a, &b));
    b = config_of(voters ^ 1u, old, learners);
    assert_false(raft_config_equal(&a, &b));
    b = config_of(voters, old ^ 2u, learners);
    assert_false(raft_config_equal(&a, &b));
    b = config_of(voters, old, learners ^ 4u);
    assert_false(raft_config_equal(&a, &b));
}

static void equal_looks_at_all_three_lists(void **state)
{
    (void)state;
    each_config(check_equal);
}

/* ---- quorums ---- */

static bool in_set(const void *arg, uint64_t id)
{
    return (*(const unsigned *)arg >> (id - 1)) & 1u;
}

/* Every pair of C_old and C_new, every pair of a joint quorum and a quorum of one of them: they
 * share a node, so that no two leaders of a term, and no two entries of an index, can be. */
static void a_joint_quorum_meets_every_quorum_of_old_and_of_new(void **state)
{
    (void)state;
    for (unsigned voters = 1; voters < SETS; voters++) {
        for (unsigned old = 1; old < SETS; old++) {
            struct raft_config from = config_of(old, 0, 0), to = config_of(voters, 0, 0);
            struct raft_config joint = raft_config_enter(&from, &to);

            for (unsigned a = 0; a < SETS; a++) {
                if (!raft_quorum_reached(&joint, in_set, &a))
                    continue;
                for (unsigned b = 0; b < SETS; b++) {
                    if (raft_quorum_reached(&from, in_set, &b) ||
                        raft_quorum_reached(&to, in_set, &b))
                        assert_true(a & b);
                }
            }
        }
    }
}

static void learners_make_no_quorum(void **state)
{
    (void)state;
    for (unsigned voters = 1; voters < SETS; voters++) {
        struct raft_config with = config_of(voters, 0, (SETS - 1) & ~voters);
        struct raft_config without = config_of(voters, 0, 0);

        for (unsigned set = 0; set < SETS; set++)
            assert_int_equal(raft_quorum_reached(&with, in_set, &set),
                             raft_quorum_reached(&without, in_set, &set));
    }
}

/* ---- the form in an entry ---- */

/* In memory of exactly its size, so that a read beyond it is seen. */
static int decode(const uint8_t *data, size_t len, struct raft_config *ret, struct keel_text *rest)
{
    uint8_t *exact = keel_malloc(len ? len : 1);
    struct keel_slice behind = { 0 };
    int err;

    if (len > 0)
        memcpy(exact, data, len);
    err = raft_config_decode(keel_slice_of(exact, len), ret, &behind);
    if (err == 0)
        keel_text_append(rest, behind);
    free(exact);
    return err;
}

static void check_round_trip(unsigned voters, unsigned old, unsigned learners)
{
    static const char rest[] = "names and addresses";
    struct raft_config config = config_of(voters, old, learners), back;
    struct keel_buf *buf = raft_config_encode(&config, keel_slice_str(rest));
    struct keel_text behind = { 0 };

    assert_int_equal(decode(buf->data, buf->len, &back, &behind), 0);
    assert_true(raft_config_equal(&config, &back));
    assert_string_equal(behind.data, rest);
    keel_text_free(&behind);
    keel_buf_free(buf);
}

static void what_is_encoded_comes_back_with_the_rest(void **state)
{
    (void)state;
    each_config(check_round_trip);
}

static void the_form_is_as_documented(void **state)
{
    struct raft_config config = {
        .voters = { 1, 0x0203 }, .voter_count = 2, .old_voters = { 1 }, .old_voter_count = 1
    };
    struct keel_buf *buf = raft_config_encode(&config, keel_slice_str("x"));
    const uint8_t expected[] = { 1,  2, 1, 0,             /* version, counts */
                                 1,  0, 0, 0, 0, 0, 0, 0, /* a voter */
                                 3,  2, 0, 0, 0, 0, 0, 0, /* another */
                                 1,  0, 0, 0, 0, 0, 0, 0, /* an old voter */
                                 'x' };

    (void)state;
    assert_int_equal(buf->len, sizeof expected);
    assert_memory_equal(buf->data, expected, sizeof expected);
    keel_buf_free(buf);
}

static void every_truncation_is_malformed(void **state)
{
    struct raft_config config = full_config(9), back;
    struct keel_buf *buf = raft_config_encode(&config, keel_slice_of(NULL, 0));
    struct keel_text rest = { 0 };

    (void)state;
    for (size_t len = 0; len < buf->len; len++)
        assert_int_equal(decode(buf->data, len, &back, &rest), KEEL_E_MALFORMED);
    assert_int_equal(decode(buf->data, buf->len, &back, &rest), 0);
    assert_int_equal(rest.len, 0);
    keel_text_free(&rest);
    keel_buf_free(buf);
}

static void a_later_version_is_told_apart(void **state)
{
    uint8_t bytes[] = { 2, 0, 0, 0 };
    struct keel_text rest = { 0 };
    struct raft_config back;

    (void)state;
    assert_int_equal(decode(bytes, sizeof bytes, &back, &rest), KEEL_E_NEWER);
    bytes[0] = 0;
    assert_int_equal(decode(bytes, sizeof bytes, &back, &rest), KEEL_E_MALFORMED);
    bytes[0] = 1;
    assert_int_equal(decode(bytes, sizeof bytes, &back, &rest), 0);
    keel_text_free(&rest);
}

/* Half of the inputs are noise, half a valid form with some bytes changed. What is taken is valid,
 * and encodes to the same bytes. */
static void random_bytes_are_refused_or_a_configuration(void **state)
{
    struct keel_rng rng;
    size_t taken = 0;

    (void)state;
    keel_rng_seed(&rng, 1);
    for (int turn = 0; turn < 20000; turn++) {
        struct raft_config config = full_config((size_t)keel_rng_below(&rng, 17)), back;
        struct keel_buf *buf = raft_config_encode(&config, keel_slice_str("rest"));
        struct keel_text rest = { 0 };
        bool noise = turn % 2 == 0;
        size_t changes = noise ? buf->len : 1 + (size_t)keel_rng_below(&rng, 3);

        for (size_t i = 0; i < changes; i++)
            buf->data[noise ? i : (size_t)keel_rng_below(&rng, buf->len)] =
                (uint8_t)keel_rng_below(&rng, noise ? 4 : 256);
        if (decode(buf->data, buf->len, &back, &rest) == 0) {
            struct keel_buf *again = raft_config_encode(&back, keel_slice_of(rest.data, rest.len));

            assert_true(raft_config_valid(&back));
            assert_true(keel_slice_equal(keel_buf_slice(buf), keel_buf_slice(again)));
            keel_buf_free(again);
            taken++;
        }
        keel_text_free(&rest);
        keel_buf_free(buf);
    }
    assert_in_range(taken, 100, 19900);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sorted_disjoint_lists_are_valid),
        cmocka_unit_test(lists_with_zeroes_duplicates_or_disorder_are_not),
        cmocka_unit_test(sixteen_members_are_the_most),
        cmocka_unit_test(put_moves_a_member_from_wherever_it_was),
        cmocka_unit_test(drop_takes_a_member_out_of_both_lists),
        cmocka_unit_test(a_full_configuration_takes_no_more_but_moves_its_members),
        cmocka_unit_test(entering_is_joint_only_when_the_voters_differ),
        cmocka_unit_test(members_are_everybody_once_and_sorted),
        cmocka_unit_test(equal_looks_at_all_three_lists),
        cmocka_unit_test(a_joint_quorum_meets_every_quorum_of_old_and_of_new),
        cmocka_unit_test(learners_make_no_quorum),
        cmocka_unit_test(what_is_encoded_comes_back_with_the_rest),
        cmocka_unit_test(the_form_is_as_documented),
        cmocka_unit_test(every_truncation_is_malformed),
        cmocka_unit_test(a_later_version_is_told_apart),
        cmocka_unit_test(random_bytes_are_refused_or_a_configuration),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
