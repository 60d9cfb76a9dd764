/* A node whose log ends too early gets the state of another: what apply says about the difference
 * is a way that leads from the one tree to the other, and nothing is lost of sessions and leases.
 */
#include "world.h"

#include <stdio.h>

#include "check.h"
#include "err.h"
#include "rng.h"

enum { ROUNDS = 400 };

/* ---- tests ---- */

static void without_a_difference_nothing_is_told(void **state)
{
    struct world *w = *state;

    make_dir(w, "d");
    make_file(w, "d/f", "text");
    catch_up_telling(w, "");
}

static void creations_are_told_from_the_top(void **state)
{
    struct world *w = *state;

    w->together = false;
    make_dir(w, "d");
    make_dir(w, "d/e");
    make_file(w, "d/e/f", "text");
    make(w, "a", KEEL__KIND__SYMLINK, "d/e", 0);
    catch_up_telling(w, "mkdir d, mkdir e, symlink a, create f");
}

static void removals_are_told_from_the_bottom(void **state)
{
    struct world *w = *state;

    make_dir(w, "d");
    make_dir(w, "d/e");
    make_file(w, "d/e/f", "text");
    w->together = false;
    remove_path(w, "d/e/f", false);
    remove_path(w, "d/e", true);
    remove_path(w, "d", true);
    catch_up_telling(w, "remove f, rmdir e, rmdir d");
}

static void contents_and_attributes_are_told_where_they_differ(void **state)
{
    struct world *w = *state;

    make_dir(w, "d");
    make_file(w, "d/f", "text");
    make_file(w, "d/g", "text");
    make_file(w, "d/h", "text");
    w->together = false;
    rewrite(w, ino_of(w, "d/f"), "other");
    change_mode(w, ino_of(w, "d/g"), 0600);
    rewrite(w, ino_of(w, "d/h"), "both");
    change_mode(w, ino_of(w, "d/h"), 0600);
    change_mode(w, MVCC_ROOT_INO, 0700);
    catch_up_telling(w, "attributes , write f, attributes g, write h, attributes h");
}

static void a_new_revision_with_the_old_content_is_one_of_attributes(void **state)
{
    struct world *w = *state;

    make_file(w, "f", "text");
    w->together = false;
    rewrite(w, ino_of(w, "f"), "other");
    rewrite(w, ino_of(w, "f"), "text");
    catch_up_telling(w, "attributes f");
}

static void a_rename_is_told_as_one_and_with_what_it_replaced(void **state)
{
    struct world *w = *state;

    make_file(w, "conf", "old");
    make_file(w, "tmp", "new");
    make_file(w, "free", "x");
    w->together = false;
    move(w, "tmp", "conf");
    move(w, "free", "taken");
    catch_up_telling(w, "rename free to taken, rename tmp to conf over another");
}

static void a_renamed_file_with_new_content_is_told_as_both(void **state)
{
    struct world *w = *state;

    make_file(w, "a", "old");
    w->together = false;
    move(w, "a", "b");
    rewrite(w, ino_of(w, "b"), "new");
    catch_up_telling(w, "rename a to b, write b");
}

static void renames_that_wait_for_each_other_come_in_turn(void **state)
{
    struct world *w = *state;

    make_file(w, "log", "3");
    make_file(w, "log.1", "2");
    make_file(w, "log.2", "1");
    w->together = false;
    move(w, "log.2", "log.3");
    move(w, "log.1", "log.2");
    move(w, "log", "log.1");
    catch_up_telling(w, "rename log.2 to log.3, rename log.1 to log.2, rename log to log.1");
}

static void names_that_were_swapped_go_over_a_third_one(void **state)
{
    struct world *w = *state;

    make_file(w, "a", "1");
    make_file(w, "b", "2");
    w->together = false;
    move(w, "a", "c");
    move(w, "b", "a");
    move(w, "c", "b");
    catch_up_telling(w, "rename a to .keelfs-moved-1, rename b to a, rename .keelfs-moved-1 to b");
}

static void a_file_gives_its_name_to_the_directory_that_it_moves_into(void **state)
{
    struct world *w = *state;

    make_file(w, "a", "1");
    w->together = false;
    move(w, "a", "b");
    make_dir(w, "a");
    move(w, "b", "a/a");
    catch_up_telling(w, "rename a to .keelfs-moved-1, mkdir a, rename .keelfs-moved-1 to a");
}

static void a_file_leaves_a_directory_before_that_is_removed(void **state)
{
    struct world *w = *state;

    make_dir(w, "d");
    make_file(w, "d/f", "1");
    w->together = false;
    move(w, "d/f", "f");
    remove_path(w, "d", true);
    move(w, "f", "d");
    catch_up_telling(w, "rename f to .keelfs-moved-1, rmdir d, rename .keelfs-moved-1 to d");
}

static void another_directory_of_the_same_name_is_another_directory(void **state)
{
    struct world *w = *state;

    make_dir(w, "d");
    make_file(w, "d/f", "1");
    make_file(w, "d/g", "2");
    w->together = false;
    move(w, "d/f", "f");
    remove_path(w, "d/g", false);
    remove_path(w, "d", true);
    make_dir(w, "d");
    move(w, "f", "d/g");
    catch_up_telling(
        w, "remove g, rename f to .keelfs-moved-1, rmdir d, mkdir d, rename .keelfs-moved-1 to g");
}

static void a_name_that_is_taken_is_not_used_for_parking(void **state)
{
    struct world *w = *state;

    make_file(w, "a", "1");
    make_file(w, "b", "2");
    make_file(w, ".keelfs-moved-1", "3");
    w->together = false;
    move(w, "a", "c");
    move(w, "b", "a");
    move(w, "c", "b");
    catch_up_telling(w, "rename a to .keelfs-moved-2, rename b to a, rename .keelfs-moved-2 to b");
}

static void a_removal_names_the_lease_that_ended(void **state)
{
    struct world *w = *state;

    make(w, "f", KEEL__KIND__FILE, "1", 60000);
    uint64_t lease = w->ahead.outcome.granted;

    assert_true(lease != 0);
    make(w, "g", KEEL__KIND__FILE, "1", 60000);
    w->together = false;
    assert_int_equal(revoke_lease(w, lease), 0);
    catch_up_telling(w, "remove f with its lease");
    assert_int_equal(lease_count(apply_leases(w->behind.apply)), 1);
    assert_false(lease_is_primary(apply_leases(w->behind.apply)));
}

static void a_session_goes_on_where_it_is_in_the_new_state(void **state)
{
    struct world *w = *state;
    uint64_t last;

    make_file(w, "a", "1");
    w->together = false;
    make_file(w, "b", "2");
    make_file(w, "c", "3");
    catch_up(w);
    assert_true(apply_session(w->behind.apply, w->session, &last));
    assert_int_equal(last, w->number);
    assert_int_equal(make_file(w, "d", "4"), 0);
    assert_int_equal(w->behind.outcome.result.err, 0);
    w->number--; /* sent again */
    assert_int_equal(make_file(w, "d", "4"), 0);
    assert_true(w->behind.outcome.is_command && !w->behind.outcome.fresh);
    assert_int_equal(w->behind.outcome.result.ino, w->ahead.outcome.result.ino);
}

static struct mvcc_record removed;

static void note_removed(void *arg, const struct keel_change *c)
{
    reload_note(arg, c);
    if (c->object == MVCC_FILE)
        removed = c->before;
}

/* The state of another cluster: no record of it is there. */
static void what_the_new_state_knows_nothing_of_is_removed_by_memory(void **state)
{
    struct world *w = *state;
    struct node other;
    struct kv *old = w->behind.kv;
    char why[256] = "";

    make_file(w, "f", "1");
    change_mode(w, ino_of(w, "f"), 0604);
    make_dir(w, "d");
    node_open(&other);
    node_checkpoint(&other);
    w->behind.kv = copy_of(other.kv);
    assert_int_equal(apply_reload(w->behind.apply, w->behind.kv, note_removed, w, why, sizeof why),
                     0);
    assert_string_equal(w->told.data, "remove f, rmdir d");
    assert_int_equal(mvcc_live_keys(w->behind.mvcc), 1);
    assert_int_equal(removed.ino, ino_of(w, "f"));
    assert_int_equal(removed.mode, 0604);
    assert_int_equal(removed.kind, MVCC_FILE);
    assert_int_equal(removed.content.length, 0);
    old->ops->close(old);
    node_close(&other);
}

static void a_store_without_the_state_of_a_cluster_is_refused(void **state)
{
    struct world *w = *state;
    struct kv *kv = kv_mem_new(), *old = w->behind.kv;
    struct mvcc *m;
    char why[256] = "";

    assert_int_equal(mvcc_open(kv, &m, why, sizeof why), 0);
    struct kv_batch *batch = mvcc_checkpoint(m, NULL, NULL, 0);

    assert_int_equal(write_batch(kv, batch), 0);
    mvcc_checkpointed(m);
    mvcc_close(m);
    assert_int_equal(apply_reload(w->behind.apply, kv, reload_note, w, why, sizeof why),
                     KEEL_E_CORRUPT);
    assert_non_null(strstr(why, "cluster"));
    old->ops->close(old);
    w->behind.kv = kv;
}

/* ---- random histories ---- */

static const char *const names[] = { "a", "b", "c", "d" };

static const char *random_name(struct keel_rng *rng)
{
    return names[keel_rng_below(rng, KEEL_ARRAY_LEN(names))];
}

static bool is_dir(struct world *w, const char *path)
{
    uint64_t ino = ino_of(w, path);

    return ino != 0 && mvcc_live_kind(mvcc_by_ino(w->ahead.mvcc, ino)) == MVCC_DIR;
}

static bool random_path(struct world *w, struct keel_rng *rng, char *ret_path)
{
    uint64_t depth = keel_rng_below(rng, 2) + keel_rng_below(rng, 2);
    size_t len = 0;

    for (uint64_t i = 0; i <= depth; i++) {
        len += (size_t)snprintf(ret_path + len, NAME - len, "%s%s", i ? "/" : "", random_name(rng));
        if (i < depth && !is_dir(w, ret_path))
            return false;
    }
    return true;
}

/* Files as far as they are: the commands that find something else are refused. */
static void swap_names(struct world *w, const char *path, const char *to)
{
    move(w, path, "third");
    move(w, to, path);
    move(w, "third", to);
}

static void put_into_a_directory_of_its_name(struct world *w, const char *path,
                                             struct keel_rng *rng)
{
    char inside[NAME];

    if (move(w, path, "third") != 0)
        return;
    make_dir(w, path);
    snprintf(inside, sizeof inside, "%.30s/%s", path, random_name(rng));
    move(w, "third", inside);
}

/* What is in it goes elsewhere, where there is room; the directory goes, and another comes. */
static void dissolve(struct world *w, const char *path, struct keel_rng *rng)
{
    char inside[NAME];

    for (size_t i = 0; i < KEEL_ARRAY_LEN(names) && is_dir(w, path); i++) {
        const char *to = random_name(rng);

        snprintf(inside, sizeof inside, "%.30s/%s", path, names[i]);
        if (ino_of(w, to) == 0)
            move(w, inside, to);
        else
            remove_path(w, inside, false);
    }
    if (remove_path(w, path, true) == 0 && keel_rng_below(rng, 2) == 0)
        make_dir(w, path);
}

static void random_command(struct world *w, struct keel_rng *rng)
{
    char path[NAME], to[NAME], body[16];

    if (!random_path(w, rng, path) || !random_path(w, rng, to))
        return;
    uint64_t ino = ino_of(w, path);

    snprintf(body, sizeof body, "%llu", (unsigned long long)keel_rng_below(rng, 5));
    switch (keel_rng_below(rng, 16)) {
    case 0:
    case 1:
        make_file(w, path, body);
        break;
    case 2:
        make(w, path, KEEL__KIND__FILE, body, 60000);
        break;
    case 3:
        make(w, path, KEEL__KIND__SYMLINK, body, 0);
        break;
    case 4:
    case 5:
        make_dir(w, path);
        break;
    case 6:
        remove_path(w, path, is_dir(w, path));
        break;
    case 7:
        if (ino != 0)
            rewrite(w, ino, body);
        break;
    case 8:
        if (ino != 0)
            change_mode(w, ino, (uint32_t)keel_rng_below(rng, 4));
        break;
    case 9:
        swap_names(w, path, to);
        break;
    case 10:
        put_into_a_directory_of_its_name(w, path, rng);
        break;
    case 11:
        dissolve(w, path, rng);
        break;
    default:
        if (ino_of(w, to) == 0 || keel_rng_below(rng, 2) == 0)
            move(w, path, to);
        break;
    }
}

static void what_is_told_leads_from_any_tree_to_any_later_one(void **state)
{
    struct world *w = *state;
    struct keel_rng rng;

    keel_rng_seed(&rng, 11);
    for (int round = 0; round < ROUNDS; round++) {
        uint64_t commands = keel_rng_below(&rng, 1 + keel_rng_below(&rng, 100));

        w->together = false;
        while (commands-- > 0)
            random_command(w, &rng);
        catch_up(w);
        commands = keel_rng_below(&rng, 5);
        while (commands-- > 0)
            random_command(w, &rng);
    }
    assert_true(w->parked > 20);
    assert_true(w->replaced > 10);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, reload_setup, reload_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(without_a_difference_nothing_is_told),
        TEST(creations_are_told_from_the_top),
        TEST(removals_are_told_from_the_bottom),
        TEST(contents_and_attributes_are_told_where_they_differ),
        TEST(a_new_revision_with_the_old_content_is_one_of_attributes),
        TEST(a_rename_is_told_as_one_and_with_what_it_replaced),
        TEST(a_renamed_file_with_new_content_is_told_as_both),
        TEST(renames_that_wait_for_each_other_come_in_turn),
        TEST(names_that_were_swapped_go_over_a_third_one),
        TEST(a_file_gives_its_name_to_the_directory_that_it_moves_into),
        TEST(a_file_leaves_a_directory_before_that_is_removed),
        TEST(another_directory_of_the_same_name_is_another_directory),
        TEST(a_name_that_is_taken_is_not_used_for_parking),
        TEST(a_removal_names_the_lease_that_ended),
        TEST(a_session_goes_on_where_it_is_in_the_new_state),
        TEST(what_the_new_state_knows_nothing_of_is_removed_by_memory),
        TEST(a_store_without_the_state_of_a_cluster_is_refused),
        TEST(what_is_told_leads_from_any_tree_to_any_later_one),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
