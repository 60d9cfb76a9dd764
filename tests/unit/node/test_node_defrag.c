/* When a node defragments its store, what it holds back meanwhile, and what makes it give up. The
 * thread is the real one, and is stopped at the steps that a test names. */
#include "help.h"

#include <stdio.h>
#include <string.h>

#include "check.h"
#include "node_internal.h"
#include "place.h"
#include "store_defrag.h"

static const uint64_t TEN_MINUTES_US = UINT64_C(600000000);

/* ---- the rest of the node ---- */

struct world {
    struct place place;
    struct node *node;
    struct kv_batch *writing; /* the store thread's */
    unsigned installs;
    uint64_t now_us;
};

static struct world *world;

uint64_t node_now_us(void)
{
    return world->now_us;
}

void node_snapshot_install(struct node *node)
{
    KEEL_ASSERT(node->installing);
    world->installs++;
}

void node_store_write(struct node *node, struct kv_batch *batch_take)
{
    KEEL_ASSERT(world->writing == NULL);
    assert_int_equal(node->kv->ops->write(node->kv, batch_take), 0);
    world->writing = batch_take;
}

/* As the replica, node_env.c and the store thread do it, in two halves. */
static void checkpoint_begins_with(const char *path, const char *text)
{
    struct node *node = world->node;

    help_write(node->mvcc, path, text);
    struct kv_batch *batch = mvcc_checkpoint(node->mvcc, NULL, NULL, 0);

    node->checkpoint_out = true;
    if (!node_defrag_holds(node, batch))
        node_store_write(node, batch);
}

static void checkpoint_ends(void)
{
    struct node *node = world->node;
    struct kv_batch *batch = world->writing;

    KEEL_ASSERT(batch != NULL);
    world->writing = NULL;
    node->checkpoint_out = false;
    node_defrag_written(node, batch);
    mvcc_checkpointed(node->mvcc);
    node_defrag_advance(node);
}

static void write_text(const char *path, const char *text)
{
    checkpoint_begins_with(path, text);
    checkpoint_ends();
}

/* ---- the thread ---- */

static const char *stop_at;
static uv_sem_t reached, released;

static void on_step(const char *step)
{
    if (stop_at == NULL || strcmp(step, stop_at) != 0)
        return;
    stop_at = NULL;
    uv_sem_post(&reached);
    uv_sem_wait(&released);
}

/* To be called while the thread has nothing to do. */
static void stop_thread_at(const char *step)
{
    stop_at = step;
}

static void release_thread(void)
{
    uv_sem_post(&released);
}

/* Turns of the loop, until the thread is at its step. */
static void run_to_step(void)
{
    while (uv_sem_trywait(&reached) != 0)
        uv_run(&world->node->loop, UV_RUN_NOWAIT);
}

static void defragment_to(const char *step)
{
    stop_thread_at(step);
    assert_int_equal(node_defrag(world->node), 0);
    run_to_step();
}

static bool says(const char *line)
{
    struct keel_text text = { 0 };

    node_defrag_status(world->node, &text);
    bool found = strstr(text.data, line) != NULL;

    keel_text_free(&text);
    return found;
}

static void run_to_end(void)
{
    while (!says("defragmenting: no\n"))
        uv_run(&world->node->loop, UV_RUN_ONCE);
}

/* ---- a data directory ---- */

static int setup(void **state)
{
    struct world *w = world = calloc(1, sizeof *w);

    place_enter(&w->place);
    w->now_us = 1000;
    w->node = calloc(1, sizeof *w->node);
    w->node->map_bytes = UINT64_C(1) << 30;
    w->node->kv = help_lmdb("store");
    w->node->mvcc = help_open(w->node->kv);
    assert_int_equal(uv_loop_init(&w->node->loop), 0);
    uv_sem_init(&reached, 0);
    uv_sem_init(&released, 0);
    stop_at = NULL;
    store_defrag_step = on_step;
    node_defrag_start(w->node);
    write_text("first", "1");
    *state = w;
    return 0;
}

static void stop_node(struct world *w)
{
    node_defrag_stop(w->node);
    if (w->writing != NULL)
        checkpoint_ends();
    node_defrag_free(w->node);
    uv_run(&w->node->loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&w->node->loop), 0);
    mvcc_close(w->node->mvcc);
    w->node->kv->ops->close(w->node->kv);
    free(w->node);
    w->node = NULL;
}

static int teardown(void **state)
{
    struct world *w = *state;

    if (w->node != NULL)
        stop_node(w);
    store_defrag_step = NULL;
    place_leave(&w->place);
    free(w);
    return 0;
}

/* What the next start finds. */
static void assert_store_after_stop(const char *path, const char *text)
{
    stop_node(world);
    assert_false(is_there("store.new"));
    struct kv *kv = help_lmdb("store");
    struct mvcc *m = help_open(kv);

    assert_string_equal(help_read(m, path, 0), text);
    assert_string_equal(help_read(m, "first", 0), "1");
    mvcc_close(m);
    kv->ops->close(kv);
}

/* ---- tests ---- */

static void it_begins_when_no_checkpoint_is_out(void **state)
{
    (void)state;
    checkpoint_begins_with("a", "x");
    assert_int_equal(node_defrag(world->node), 0);
    uv_run(&world->node->loop, UV_RUN_NOWAIT);
    assert_false(is_there("store.new"));
    assert_true(says("defragmenting: yes\n"));
    stop_thread_at("opened");
    checkpoint_ends();
    run_to_step();
    assert_true(is_there("store.new"));
    release_thread();
    run_to_end();
    assert_true(says("defragmentations: 1\n"));
    assert_store_after_stop("a", "x");
}

static void checkpoints_that_come_while_it_copies_are_in_the_new_store(void **state)
{
    struct kv *old = world->node->kv;

    (void)state;
    defragment_to("copied");
    write_text("a", "1");
    write_text("a", "2");
    write_text("b", "x");
    release_thread();
    run_to_end();
    assert_true(world->node->kv != old);
    assert_string_equal(help_read(world->node->mvcc, "a", 0), "2");
    write_text("c", "y");
    assert_string_equal(help_read(world->node->mvcc, "b", 0), "x");
    assert_store_after_stop("c", "y");
}

static void the_switch_waits_for_a_checkpoint_that_is_out(void **state)
{
    struct kv *old = world->node->kv;

    (void)state;
    defragment_to("copied");
    checkpoint_begins_with("a", "x");
    stop_thread_at("compared");
    release_thread();
    for (int i = 0; i < 100; i++)
        uv_run(&world->node->loop, UV_RUN_NOWAIT);
    assert_true(world->node->kv == old && uv_sem_trywait(&reached) != 0);
    checkpoint_ends();
    run_to_step();
    release_thread();
    run_to_end();
    assert_true(world->node->kv != old);
    assert_store_after_stop("a", "x");
}

static void a_checkpoint_that_comes_at_the_switch_goes_to_the_new_store(void **state)
{
    struct kv *old = world->node->kv;

    (void)state;
    defragment_to("compared");
    checkpoint_begins_with("a", "x");
    assert_null(world->writing);
    release_thread();
    while (world->writing == NULL)
        uv_run(&world->node->loop, UV_RUN_ONCE);
    assert_true(world->node->kv != old);
    checkpoint_ends();
    run_to_end();
    assert_string_equal(help_read(world->node->mvcc, "a", 0), "x");
    assert_store_after_stop("a", "x");
}

static void the_old_store_stays_as_long_as_somebody_reads_it(void **state)
{
    struct kv *old = world->node->kv;

    (void)state;
    world->node->store_readers = 1;
    assert_int_equal(node_defrag(world->node), 0);
    while (world->node->kv == old)
        uv_run(&world->node->loop, UV_RUN_ONCE);
    for (int i = 0; i < 100; i++)
        uv_run(&world->node->loop, UV_RUN_NOWAIT);
    assert_true(is_there("store.new"));
    assert_true(help_entries(old, KV_RECORDS) == help_entries(world->node->kv, KV_RECORDS));
    world->node->store_readers = 0;
    node_defrag_advance(world->node);
    run_to_end();
    assert_false(is_there("store.new"));
}

static void an_installation_makes_it_give_up_and_comes_after_it(void **state)
{
    struct kv *old = world->node->kv;

    (void)state;
    defragment_to("piece read");
    world->node->installing = true;
    assert_true(node_defrag_delays_install(world->node));
    release_thread();
    assert_int_equal(world->installs, 0);
    while (world->installs == 0)
        uv_run(&world->node->loop, UV_RUN_ONCE);
    assert_true(says("defragmenting: no\n") && says("defragmentations: 0\n"));
    assert_true(world->node->kv == old);
    assert_false(is_there("store.new"));
    assert_int_equal(node_defrag(world->node), KEEL_E_BUSY);
    world->node->installing = false;
    assert_int_equal(node_defrag(world->node), 0);
    run_to_end();
    assert_true(says("defragmentations: 1\n"));
    assert_int_equal(world->installs, 1);
}

static void an_installation_at_the_switch_comes_after_the_old_store_is_gone(void **state)
{
    (void)state;
    defragment_to("exchanged");
    world->node->installing = true;
    assert_true(node_defrag_delays_install(world->node));
    release_thread();
    while (world->installs == 0)
        uv_run(&world->node->loop, UV_RUN_ONCE);
    assert_true(says("defragmentations: 1\n"));
    assert_false(is_there("store.new"));
    assert_int_equal(world->installs, 1);
}

static void an_installation_does_not_wait_for_one_that_has_not_begun(void **state)
{
    (void)state;
    checkpoint_begins_with("a", "x");
    assert_int_equal(node_defrag(world->node), 0);
    world->node->installing = true;
    assert_false(node_defrag_delays_install(world->node));
    assert_true(says("defragmenting: no\n"));
    checkpoint_ends();
    uv_run(&world->node->loop, UV_RUN_NOWAIT);
    assert_true(says("defragmenting: no\n"));
}

static void it_is_given_up_when_too_much_is_written_meanwhile(void **state)
{
    struct kv *old = world->node->kv;

    (void)state;
    defragment_to("copied");
    checkpoint_begins_with("a", "x");
    /* As if it had written so many keys. */
    world->writing->capacity = (65 << 20) / sizeof *world->writing->writes;
    checkpoint_ends();
    write_text("b", "y");
    release_thread();
    run_to_end();
    assert_true(says("defragmentations: 0\n"));
    assert_true(world->node->kv == old);
    assert_false(is_there("store.new"));
    assert_store_after_stop("b", "y");
}

static void a_stop_at_any_step_leaves_a_complete_store(void **state)
{
    static const char *const steps[] = { "opened",    "piece read",      "copied", "compared",
                                         "exchanged", "exchange synced", "closed", "removed" };

    for (size_t i = 0; i < KEEL_ARRAY_LEN(steps); i++) {
        defragment_to(steps[i]);
        checkpoint_begins_with("a", steps[i]);
        release_thread();
        assert_store_after_stop("a", steps[i]);
        teardown(state);
        setup(state);
    }
}

/* ---- by itself ---- */

static uint64_t fake_file, fake_used;
static struct kv_ops fake_ops;

static void fake_sizes(struct kv *kv, uint64_t *ret_file, uint64_t *ret_used)
{
    (void)kv;
    *ret_file = fake_file;
    *ret_used = fake_used;
}

/* Whether a checkpoint at that moment begins one. */
static bool begins(uint64_t now_us, uint64_t file, uint64_t used)
{
    struct kv *kv = world->node->kv;

    world->now_us = now_us;
    fake_file = file;
    fake_used = used;
    fake_ops = *kv->ops;
    fake_ops.sizes = fake_sizes;
    kv->ops = &fake_ops;
    write_text("a", "x");
    bool yes = says("defragmenting: yes\n");

    run_to_end();
    return yes;
}

static void it_begins_by_itself_when_more_than_half_is_free(void **state)
{
    const uint64_t mib = 1 << 20;

    (void)state;
    assert_false(begins(1000, 100 * mib, 50 * mib));
    assert_false(begins(1000, 64 * mib - 1, 1 * mib));
    world->node->installing = true;
    assert_false(begins(1000, 100 * mib, 49 * mib));
    world->node->installing = false;
    assert_true(begins(1000, 100 * mib, 49 * mib));
    assert_true(says("defragmentations: 1\n"));
    assert_false(begins(1000 + TEN_MINUTES_US - 1, 100 * mib, 49 * mib));
    assert_true(begins(1000 + TEN_MINUTES_US, 64 * mib, 31 * mib));
    assert_true(says("defragmentations: 2\n"));
}

static void it_does_not_begin_by_itself_before_compaction_has_ended(void **state)
{
    const uint64_t mib = 1 << 20;
    struct mvcc *m = world->node->mvcc;

    (void)state;
    write_text("b", "old");
    write_text("b", "new");
    help_compact(m, mvcc_revision(m));
    assert_true(mvcc_has_garbage(m));
    assert_false(begins(1000, 100 * mib, 49 * mib));
    while (mvcc_has_garbage(m))
        help_compact_step(m, 1);
    assert_true(begins(1000, 100 * mib, 49 * mib));
}

static void without_room_for_a_second_store_it_does_not_begin(void **state)
{
    const uint64_t huge = UINT64_C(1) << 60;

    (void)state;
    assert_false(begins(1000, 2 * huge + 2, huge));
    assert_int_equal(node_defrag(world->node), KEEL_E_DISKFULL);
    assert_false(is_there("store.new"));
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(it_begins_when_no_checkpoint_is_out),
        TEST(checkpoints_that_come_while_it_copies_are_in_the_new_store),
        TEST(the_switch_waits_for_a_checkpoint_that_is_out),
        TEST(a_checkpoint_that_comes_at_the_switch_goes_to_the_new_store),
        TEST(the_old_store_stays_as_long_as_somebody_reads_it),
        TEST(an_installation_makes_it_give_up_and_comes_after_it),
        TEST(an_installation_at_the_switch_comes_after_the_old_store_is_gone),
        TEST(an_installation_does_not_wait_for_one_that_has_not_begun),
        TEST(it_is_given_up_when_too_much_is_written_meanwhile),
        TEST(a_stop_at_any_step_leaves_a_complete_store),
        TEST(it_begins_by_itself_when_more_than_half_is_free),
        TEST(it_does_not_begin_by_itself_before_compaction_has_ended),
        TEST(without_room_for_a_second_store_it_does_not_begin),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
