/* Compaction and the quota, as commands. Two nodes, one of which is restarted now and then: the
 * books must be the same. */
#include "world.h"

#include <stdio.h>

#include "err.h"
#include "keel_limits.h"

static struct mvcc_key *key_of(struct world *w, const char *name)
{
    return mvcc_child(w->ahead.mvcc, mvcc_root(w->ahead.mvcc), keel_slice_str(name));
}

static void same_books(struct world *w)
{
    struct keel_hash128 a = mvcc_state_hash(w->ahead.mvcc), b = mvcc_state_hash(w->behind.mvcc);

    assert_true(keel_hash128_equal(a, b));
    a = apply_digest(w->ahead.apply);
    b = apply_digest(w->behind.apply);
    assert_true(keel_hash128_equal(a, b));
    assert_int_equal(mvcc_quota_used(w->ahead.mvcc), mvcc_quota_used(w->behind.mvcc));
    assert_int_equal(mvcc_compact_revision(w->ahead.mvcc), mvcc_compact_revision(w->behind.mvcc));
    assert_int_equal(mvcc_has_garbage(w->ahead.mvcc), mvcc_has_garbage(w->behind.mvcc));
    assert_int_equal(apply_nospace(w->ahead.apply), apply_nospace(w->behind.apply));
}

/* The node that is behind stops and starts. */
static void restart(struct world *w)
{
    struct node *n = &w->behind;
    char why[256];

    node_checkpoint(n);
    apply_free(n->apply);
    mvcc_close(n->mvcc);
    assert_int_equal(mvcc_open(n->kv, &n->mvcc, why, sizeof why), 0);
    assert_int_equal(apply_new(n->mvcc, &n->apply), 0);
    mvcc_read_end(n->mvcc);
}

static int setup_together(void **state)
{
    int err = reload_setup(state);

    ((struct world *)*state)->together = true;
    return err;
}

static void compaction_hides_the_past_at_once_and_takes_it_off_in_steps(void **state)
{
    struct world *w = *state;
    struct mvcc_record record;

    assert_int_equal(make_file(w, "f", "one"), 0);
    uint64_t first = mvcc_revision(w->ahead.mvcc);

    for (int i = 0; i < 20; i++)
        assert_int_equal(rewrite(w, ino_of(w, "f"), "again"), 0);
    uint64_t now = mvcc_revision(w->ahead.mvcc), used = mvcc_quota_used(w->ahead.mvcc);

    assert_int_equal(compact(w, now - 5), 0);
    assert_int_equal(mvcc_revision(w->ahead.mvcc), now); /* consumes none */
    assert_int_equal(mvcc_get(w->ahead.mvcc, key_of(w, "f"), first, &record), KEEL_E_STALE);
    assert_int_equal(mvcc_get(w->ahead.mvcc, key_of(w, "f"), now - 5, &record), 0);
    assert_int_equal(mvcc_quota_used(w->ahead.mvcc), used); /* still on the books */
    restart(w);
    same_books(w);
    assert_true(compact_step(w, 3) >= 3);
    restart(w);
    while (compact_step(w, 3) > 0)
        same_books(w);
    assert_false(mvcc_has_garbage(w->ahead.mvcc));
    assert_true(mvcc_quota_used(w->ahead.mvcc) < used / 2);
    assert_int_equal(compact_step(w, 3), 0);
    same_books(w);
}

static void compaction_goes_forward_only_and_not_into_the_future(void **state)
{
    struct world *w = *state;

    assert_int_equal(make_file(w, "f", "one"), 0);
    assert_int_equal(make_file(w, "g", "two"), 0);
    uint64_t now = mvcc_revision(w->ahead.mvcc);

    assert_int_equal(compact(w, now + 1), KEEL_E_INVALID);
    assert_int_equal(compact(w, now), 0);
    assert_int_equal(compact(w, now), KEEL_E_STALE);
    assert_int_equal(compact(w, now - 1), KEEL_E_STALE);
    same_books(w);
}

static char big[3000];

static void old_history_yields_before_a_write_is_refused(void **state)
{
    struct world *w = *state;

    memset(big, 'x', sizeof big - 1);
    assert_int_equal(set_quota(w, 40000), 0);
    assert_int_equal(make_file(w, "f", big), 0);
    for (int i = 0; i < 100; i++) { /* thirty times the quota */
        assert_int_equal(rewrite(w, ino_of(w, "f"), big), 0);
        assert_true(mvcc_quota_used(w->ahead.mvcc) <= 40000);
        if (i % 7 == 0)
            restart(w);
        same_books(w);
    }
    assert_true(mvcc_compact_revision(w->ahead.mvcc) > 0);
    assert_false(apply_nospace(w->ahead.apply));
}

static void a_full_store_refuses_what_grows_and_takes_the_rest(void **state)
{
    struct world *w = *state;
    char name[16];
    int files = 0, err;

    memset(big, 'x', sizeof big - 1);
    assert_int_equal(set_quota(w, 40000), 0);
    for (;; files++) {
        snprintf(name, sizeof name, "f%d", files);
        err = make_file(w, name, big);
        if (err != 0)
            break;
    }
    assert_int_equal(err, KEEL_E_NOSPACE);
    assert_in_range(files, 10, 13);
    assert_true(apply_nospace(w->ahead.apply));
    same_books(w);
    restart(w);
    same_books(w); /* the alarm is kept */
    assert_int_equal(make_file(w, "another", big), KEEL_E_NOSPACE);
    assert_int_equal(make_file(w, "f0", big), KEEL_E_EXISTS); /* what is wrong anyway, first */
    for (int i = 0; i < 10; i++) {
        assert_int_equal(rewrite(w, ino_of(w, "f0"), big), 0); /* the same size */
        assert_int_equal(rewrite(w, ino_of(w, "f1"), "less"), 0);
    }
    assert_int_equal(change_mode(w, ino_of(w, "f2"), 0600), 0);
    assert_int_equal(move(w, "f2", "g2"), 0);
    for (int i = 3; i < 7; i++) {
        snprintf(name, sizeof name, "f%d", i);
        assert_int_equal(remove_path(w, name, false), 0);
    }
    assert_int_equal(make_dir(w, "d"), 0);       /* there is room again … */
    assert_false(apply_nospace(w->ahead.apply)); /* … and nobody had to say so */
    same_books(w);
}

static void history_yields_in_steps_to_a_quota_that_is_lowered(void **state)
{
    struct world *w = *state;
    uint64_t point = 0;
    int steps = 0;

    memset(big, 'x', sizeof big - 1);
    assert_int_equal(make_file(w, "f", big), 0);
    for (int i = 0; i < 100; i++)
        assert_int_equal(rewrite(w, ino_of(w, "f"), big), 0);
    assert_int_equal(set_quota(w, 40000), 0);
    assert_true(mvcc_quota_used(w->ahead.mvcc) > 300000);
    for (; mvcc_quota_used(w->ahead.mvcc) > 40000; steps++) {
        compact_step(w, 10);
        assert_in_range(mvcc_compact_revision(w->ahead.mvcc), point + 1, point + 13);
        point = mvcc_compact_revision(w->ahead.mvcc);
        same_books(w);
    }
    assert_in_range(steps, 9, 10);
    compact_step(w, 10);
    assert_int_equal(mvcc_compact_revision(w->ahead.mvcc), point); /* the rest stays */
}

static void a_write_waits_for_no_more_than_some_history(void **state)
{
    struct world *w = *state;

    assert_int_equal(make_file(w, "f", "x"), 0);
    for (int i = 0; i < 9000; i++)
        assert_int_equal(rewrite(w, ino_of(w, "f"), "y"), 0);
    assert_int_equal(set_quota(w, 1000), 0);
    assert_int_equal(make_file(w, "g", "grows"), 0); /* what is live would fit */
    assert_in_range(mvcc_compact_revision(w->ahead.mvcc), 8190, 8200);
    assert_false(apply_nospace(w->ahead.apply));
    while (mvcc_has_history(w->ahead.mvcc))
        compact_step(w, KEEL_COMPACT_STEP_MAX);
    assert_int_equal(make_file(w, "h", "grows"), KEEL_E_NOSPACE);
    same_books(w);
}

static void commands_that_change_nothing_take_no_history(void **state)
{
    struct world *w = *state;

    assert_int_equal(set_quota(w, 3000), 0);
    assert_int_equal(make_file(w, "f", "one"), 0);
    assert_int_equal(rewrite(w, ino_of(w, "f"), "two"), 0);
    uint64_t point = mvcc_compact_revision(w->ahead.mvcc);

    assert_int_equal(remove_path(w, "absent", false), KEEL_E_NOTFOUND);
    assert_int_equal(mvcc_compact_revision(w->ahead.mvcc), point);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup_together, reload_teardown)
    const struct CMUnitTest tests[] = {
        T(compaction_hides_the_past_at_once_and_takes_it_off_in_steps),
        T(compaction_goes_forward_only_and_not_into_the_future),
        T(old_history_yields_before_a_write_is_refused),
        T(a_full_store_refuses_what_grows_and_takes_the_rest),
        T(history_yields_in_steps_to_a_quota_that_is_lowered),
        T(a_write_waits_for_no_more_than_some_history),
        T(commands_that_change_nothing_take_no_history),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
