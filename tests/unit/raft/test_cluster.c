/* Seeded random runs of a small cluster (cluster.h); at the end everything heals, and the members
 * have to agree.
 *
 * `test_cluster SEED` replays one seed. */
#include <stdio.h>
#include <string.h>

#include "check.h"
#include "cluster.h"
#include "raft/config.h"

/* Three voters, or five from seed 1001 on; where members change, two others wait to become some. */
static void run_seed(uint64_t seed)
{
    bool big = seed > 1000;
    struct cluster *c = cluster_new(seed, big ? 5 : 3, seed % 3 != 0 ? 2 : 0);
    size_t steps = big ? 4000 : 5000;

    for (size_t i = 0; i < steps; i++)
        step(c);
    heal(c);
    cluster_free(c);
}

/* From the death of the leader to the first commit of the next one, on a network without faults. */
static uint64_t failover_us(uint64_t seed)
{
    struct cluster *c = cluster_new(seed, 3, 0);
    uint64_t start_us, took_us, committed;

    heal(c);
    c->keep_down = true;
    committed = c->committed_last;
    start_us = c->now_us;
    crash(c, leader(c));
    while (c->committed_last == committed) {
        step(c);
        REQUIRE(c, c->now_us < start_us + 10000000);
    }
    took_us = c->now_us - start_us;
    cluster_free(c);
    return took_us;
}

static uint64_t seeds = 150;

static void print_totals(void)
{
    print_message("# %llu terms with a leader, %llu entries, %llu + %llu reads, %llu restarts, "
                  "%llu fetches, %llu cuts\n",
                  (unsigned long long)totals.leaders, (unsigned long long)totals.commits,
                  (unsigned long long)totals.lease_reads, (unsigned long long)totals.round_reads,
                  (unsigned long long)totals.restarts, (unsigned long long)totals.fetches,
                  (unsigned long long)totals.cuts);
    print_message("# %llu configurations, %llu joint, %llu own removals, %llu transfers, "
                  "%llu snapshots, %llu cut short\n",
                  (unsigned long long)totals.configs, (unsigned long long)totals.joints,
                  (unsigned long long)totals.own_removals, (unsigned long long)totals.transfers,
                  (unsigned long long)totals.installs, (unsigned long long)totals.cut_installs);
}

/* Two seeds in three change members, every other one releases logs. */
static void run_seeds(uint64_t first)
{
    totals = (struct cluster_totals){ 0 };
    for (uint64_t seed = first; seed < first + seeds; seed++)
        run_seed(seed);
    print_totals();
    assert_true(totals.leaders > seeds && totals.commits > seeds * 100);
    assert_true(totals.lease_reads > seeds && totals.round_reads > seeds);
    assert_true(totals.restarts > seeds && totals.fetches > seeds && totals.cuts > 0);
    assert_true(totals.configs > seeds && totals.joints > seeds / 2 && totals.own_removals > 0);
    assert_true(totals.transfers > seeds / 2);
    assert_true(totals.installs > seeds && totals.cut_installs > 0);
}

static void three_voters_and_two_others_stay_safe_and_agree_in_the_end(void **state)
{
    (void)state;
    run_seeds(1);
}

static void five_voters_and_two_others_stay_safe_and_agree_in_the_end(void **state)
{
    (void)state;
    run_seeds(1001);
}

static int by_size(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return (x > y) - (x < y);
}

/* Up to 8 ms until the close is noticed, up to 1 ms a message and mostly up to 5 ms an fsync. */
static void a_dead_leader_is_replaced_in_well_under_an_election_timeout(void **state)
{
    uint64_t took_us[100];

    (void)state;
    for (size_t i = 0; i < KEEL_ARRAY_LEN(took_us); i++)
        took_us[i] = failover_us(2000 + i);
    qsort(took_us, KEEL_ARRAY_LEN(took_us), sizeof *took_us, by_size);
    print_message("# median %llu ms, 90 %% %llu ms, longest %llu ms\n",
                  (unsigned long long)took_us[50] / 1000, (unsigned long long)took_us[90] / 1000,
                  (unsigned long long)took_us[99] / 1000);
    assert_true(took_us[50] < 150000);
    assert_true(took_us[90] < 300000);
}

/* ---- handing over ---- */

enum { DELAY_US = 1000, DISK_US = 2000 };

/* A network and disks that always take the same time. */
static struct cluster *exact_cluster_new(uint64_t seed)
{
    struct cluster *c = cluster_new(seed, 3, 0);

    c->lease_us = 100000;
    c->delay_us = DELAY_US;
    c->disk_us = DISK_US;
    heal(c);
    c->step_us = 50;
    while (leader(c) == NULL || !raft_lease_valid(leader(c)->r, clock_of(c, leader(c))))
        step(c);
    return c;
}

/* Until somebody else has committed an entry. */
static uint64_t next_leader_us(struct cluster *c, const struct node *old)
{
    uint64_t start_us = c->now_us, term = raft_term(old->r);

    while (leader(c) == NULL || leader(c) == old || raft_term(leader(c)->r) == term ||
           c->committed[c->committed_last].term == term) {
        step(c);
        REQUIRE(c, c->now_us < start_us + 10000000);
    }
    return c->now_us - start_us;
}

/* The order to stand, a request to vote, the vote, the first entry and its acknowledgement travel;
 * own vote, the others' votes and the entry go to disk. */
static void a_planned_handover_costs_a_round_trip_not_a_lease(void **state)
{
    (void)state;
    for (uint64_t seed = 3001; seed <= 3020; seed++) {
        struct cluster *c = exact_cluster_new(seed);
        struct node *old = leader(c);
        uint64_t took_us;

        assert_int_equal(raft_transfer(old->r, clock_of(c, old), 0), 0);
        settle(c, old);
        took_us = next_leader_us(c, old);
        assert_in_range(took_us, 5 * DELAY_US + 3 * DISK_US, 6 * DELAY_US + 3 * DISK_US);
        assert_true(took_us < c->lease_us / 5);
        cluster_free(c);
    }
}

static void a_removed_leader_is_replaced_as_fast_as_one_that_hands_over(void **state)
{
    (void)state;
    for (uint64_t seed = 3101; seed <= 3110; seed++) {
        struct cluster *c = exact_cluster_new(seed);
        struct node *old = leader(c);
        struct raft_config target = *raft_config(old->r);
        uint64_t index;

        raft_config_drop(&target, old->id);
        assert_int_equal(
            raft_propose_config(old->r, clock_of(c, old), &target, keel_slice_of(NULL, 0), &index),
            0);
        settle(c, old);
        while (raft_role(old->r) == RAFT_LEADER)
            step(c);
        assert_int_equal(raft_commit_index(old->r), index + 1);
        assert_in_range(next_leader_us(c, old), 1, 6 * DELAY_US + 3 * DISK_US);
        cluster_free(c);
    }
}

/* ---- connections that flap ---- */

/* One connection at a time closes for 5 to 500 ms, also of the leader's: of five, at least four
 * keep it in office. */
static void flap(struct cluster *c)
{
    size_t a = below(c, c->count), b = below(c, c->count);
    uint64_t until_us = c->now_us + 5000 + below(c, 495000);

    if (a == b)
        return;
    set_link(c, a, b, false);
    while (c->now_us < until_us)
        step(c);
    set_link(c, a, b, true);
}

static void elections_stay_rare_when_connections_flap(void **state)
{
    uint64_t flaps = 0;

    (void)state;
    for (uint64_t seed = 4001; seed <= 4005; seed++) {
        struct cluster *c = cluster_new(seed * 4, 5, 0); /* never joint */
        uint64_t start_us, term;

        heal(c);
        start_us = c->now_us;
        term = raft_term(leader(c)->r);
        while (c->now_us < start_us + 60000000) {
            flap(c);
            flaps++;
        }
        heal(c);
        assert_in_range(raft_term(leader(c)->r) - term, 0, 1);
        cluster_free(c);
    }
    assert_true(flaps > 1000);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(three_voters_and_two_others_stay_safe_and_agree_in_the_end),
        cmocka_unit_test(five_voters_and_two_others_stay_safe_and_agree_in_the_end),
        cmocka_unit_test(a_dead_leader_is_replaced_in_well_under_an_election_timeout),
        cmocka_unit_test(a_planned_handover_costs_a_round_trip_not_a_lease),
        cmocka_unit_test(a_removed_leader_is_replaced_as_fast_as_one_that_hands_over),
        cmocka_unit_test(elections_stay_rare_when_connections_flap),
    };

    if (argc > 1) {
        uint64_t seed = strtoull(argv[1], NULL, 10);

        run_seed(seed);
        return 0;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
