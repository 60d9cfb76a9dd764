/* Which requests share the barrier of the walk before them. */
#include "unit.h"

#include "fs/walk.h"
#include "keel_limits.h"

enum { PID = 100, START = 1000000 };

static int new_walks(void **state)
{
    *state = fs_walks_new();
    return 0;
}

static int free_walks(void **state)
{
    *state = fs_walks_free(*state);
    return 0;
}

static bool goes_on(struct fs_walks *walks, pid_t pid, uint64_t nodeid, uint64_t now_us)
{
    uint64_t barrier_us;

    return fs_walk_continues(walks, pid, nodeid, now_us, &barrier_us);
}

static void steps_of_one_path_share_the_first_barrier(void **state)
{
    struct fs_walks *walks = *state;
    uint64_t barrier_us = 0;

    assert_false(goes_on(walks, PID, 1, START));
    fs_walk_step(walks, PID, 5, NULL, 0, START, START + 100);
    assert_true(fs_walk_continues(walks, PID, 5, START + 200, &barrier_us));
    assert_int_equal(barrier_us, START);
    fs_walk_step(walks, PID, 9, NULL, 0, barrier_us, START + 300);
    assert_true(fs_walk_continues(walks, PID, 9, START + 400, &barrier_us));
    assert_int_equal(barrier_us, START);
}

static void only_the_node_that_was_reached_goes_on(void **state)
{
    struct fs_walks *walks = *state;

    fs_walk_step(walks, PID, 5, NULL, 0, START, START);
    assert_false(goes_on(walks, PID, 1, START)); /* stat("d") and then stat("d/f") */
    assert_false(goes_on(walks, PID + 1, 5, START));
    assert_true(goes_on(walks, PID, 5, START));
}

static void walk_that_has_ended_does_not_go_on(void **state)
{
    struct fs_walks *walks = *state;

    fs_walk_step(walks, PID, 5, NULL, 0, START, START);
    fs_walk_end(walks, PID);
    assert_false(goes_on(walks, PID, 5, START));
    fs_walk_end(walks, PID);
}

static void pause_or_age_ask_for_a_new_barrier(void **state)
{
    struct fs_walks *walks = *state;

    fs_walk_step(walks, PID, 5, NULL, 0, START, START);
    assert_true(goes_on(walks, PID, 5, START + WALK_GAP_US));
    assert_false(goes_on(walks, PID, 5, START + WALK_GAP_US + 1));
    fs_walk_step(walks, PID, 5, NULL, 0, START, START + WALK_AGE_US);
    assert_true(goes_on(walks, PID, 5, START + WALK_AGE_US));
    assert_false(goes_on(walks, PID, 5, START + WALK_AGE_US + 1));
}

static void walk_holds_while_every_name_of_it_is_what_it_was(void **state)
{
    struct fs_walks *walks = *state;
    struct kv *kv = kv_mem_new();
    struct mvcc *mvcc;
    struct mvcc_record record = { .kind = MVCC_FILE, .ino = 7 };
    char why[128];

    assert_int_equal(mvcc_open(kv, &mvcc, why, sizeof why), 0);
    struct mvcc_txn *txn = mvcc_begin(mvcc, 1, 1);
    struct mvcc_key *key = mvcc_put(txn, mvcc_root(mvcc), keel_slice_str("f"), &record, NULL);

    mvcc_commit(txn);
    fs_walk_step(walks, PID, 7, key, 7, START, START);
    assert_true(fs_walk_holds(walks, mvcc, PID, 7));
    assert_false(fs_walk_holds(walks, mvcc, PID, 1));
    assert_false(fs_walk_holds(walks, mvcc, PID + 1, 7));
    txn = mvcc_begin(mvcc, 2, 1);
    mvcc_delete(txn, key, 1, 0, false);
    mvcc_commit(txn);
    assert_false(fs_walk_holds(walks, mvcc, PID, 7));
    txn = mvcc_begin(mvcc, 3, 1);
    mvcc_compact(txn, mvcc_revision(mvcc));
    assert_true(mvcc_compact_step(txn, 10) > 0); /* the key itself is gone with its records */
    mvcc_commit(txn);
    assert_false(fs_walk_holds(walks, mvcc, PID, 7));
    mvcc_close(mvcc);
    kv->ops->close(kv);
}

static void thread_that_was_told_estale_is_careful_for_a_while(void **state)
{
    struct fs_walks *walks = *state;

    assert_false(fs_walk_is_careful(walks, PID, START));
    fs_walk_stale(walks, PID, START);
    assert_true(fs_walk_is_careful(walks, PID, START + 1));
    fs_walk_step(walks, PID, 5, NULL, 0, START + 1, START + 1);
    assert_false(goes_on(walks, PID, 5, START + 2));
    fs_walk_end(walks, PID);
    assert_true(fs_walk_is_careful(walks, PID, START + WALK_CAREFUL_US));
    assert_false(fs_walk_is_careful(walks, PID, START + WALK_CAREFUL_US + 1));
    assert_false(fs_walk_is_careful(walks, PID + 1, START));
}

static void open_right_after_the_permission_check_needs_no_barrier(void **state)
{
    struct fs_walks *walks = *state;

    assert_false(fs_walk_has_looked(walks, PID, 5, START));
    fs_walk_looked(walks, PID, 5, START);
    assert_true(fs_walk_has_looked(walks, PID, 5, START + WALK_OPEN_US));
    assert_false(fs_walk_has_looked(walks, PID, 5, START + WALK_OPEN_US + 1));
    assert_false(fs_walk_has_looked(walks, PID, 6, START));
    assert_false(fs_walk_has_looked(walks, PID + 1, 5, START));
    fs_walk_step(walks, PID, 5, NULL, 0, START, START); /* another walk has begun */
    assert_false(fs_walk_has_looked(walks, PID, 5, START));
}

static void unknown_process_never_goes_on(void **state)
{
    struct fs_walks *walks = *state;

    fs_walk_step(walks, 0, 5, NULL, 0, START, START);
    fs_walk_end(walks, 0);
    assert_false(goes_on(walks, 0, 5, START));
}

static void oldest_walk_makes_room(void **state)
{
    struct fs_walks *walks = *state;
    int left = 0;

    for (pid_t pid = 1; pid <= 2 * KEEL_WALKS_MAX; pid++)
        fs_walk_step(walks, pid, 5, NULL, 0, START, START + (uint64_t)pid % WALK_GAP_US);
    for (pid_t pid = 1; pid <= 2 * KEEL_WALKS_MAX; pid++)
        left += goes_on(walks, pid, 5, START + WALK_GAP_US - 1);
    assert_true(left > KEEL_WALKS_MAX / 2);
    assert_true(left <= KEEL_WALKS_MAX);
    fs_walk_step(walks, 77777, 5, NULL, 0, START, START + WALK_GAP_US);
    assert_true(goes_on(walks, 77777, 5, START + WALK_GAP_US));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(steps_of_one_path_share_the_first_barrier, new_walks,
                                        free_walks),
        cmocka_unit_test_setup_teardown(only_the_node_that_was_reached_goes_on, new_walks,
                                        free_walks),
        cmocka_unit_test_setup_teardown(walk_that_has_ended_does_not_go_on, new_walks, free_walks),
        cmocka_unit_test_setup_teardown(pause_or_age_ask_for_a_new_barrier, new_walks, free_walks),
        cmocka_unit_test_setup_teardown(walk_holds_while_every_name_of_it_is_what_it_was, new_walks,
                                        free_walks),
        cmocka_unit_test_setup_teardown(thread_that_was_told_estale_is_careful_for_a_while,
                                        new_walks, free_walks),
        cmocka_unit_test_setup_teardown(open_right_after_the_permission_check_needs_no_barrier,
                                        new_walks, free_walks),
        cmocka_unit_test_setup_teardown(unknown_process_never_goes_on, new_walks, free_walks),
        cmocka_unit_test_setup_teardown(oldest_walk_makes_room, new_walks, free_walks),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
