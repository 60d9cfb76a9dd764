/* A store that is copied while it is written, and changes places with its copy: nothing of it is
 * lost, also by a process that is killed at any step. */
#include "help.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "check.h"
#include "place.h"
#include "store_defrag.h"
#include "store_install.h"

enum { BIG_FILES = 24, BIG_BYTES = 1000000, SMALL_FILES = 400 };
static const uint64_t map_bytes = UINT64_C(1) << 30;

/* ---- a data directory ---- */

static int setup(void **state)
{
    struct place *p = calloc(1, sizeof *p);

    place_enter(p);
    *state = p;
    return 0;
}

static int teardown(void **state)
{
    struct place *p = *state;

    store_defrag_step = NULL;
    place_leave(p);
    free(p);
    return 0;
}

static uint64_t file_bytes(struct kv *kv)
{
    uint64_t file, used;

    kv->ops->sizes(kv, &file, &used);
    return file;
}

static uint64_t bytes_on_disk(const char *name)
{
    struct stat st;

    assert_int_equal(stat(name, &st), 0);
    return (uint64_t)st.st_blocks * 512;
}

static void write_files(struct mvcc *m, struct kv *kv, const char *prefix, size_t count,
                        size_t bytes)
{
    char *text = calloc(1, bytes + 1), path[32];

    for (size_t i = 0; i < count; i++) {
        memset(text, 'a' + (int)(i % 26), bytes);
        snprintf(path, sizeof path, "%s%zu", prefix, i);
        help_write(m, path, text);
        help_checkpoint(m, kv);
    }
    free(text);
}

static struct kv *copy_of(struct kv *from)
{
    atomic_bool give_up = false;
    char why[512] = "";
    struct kv *kv = NULL;

    must(store_defrag_copy(from, map_bytes, &give_up, &kv, why, sizeof why), why);
    return kv;
}

static void change_places(struct kv *old, struct kv *kv)
{
    char why[512] = "";

    must(store_defrag_switch(old, kv, why, sizeof why), why);
}

static void remove_new(struct kv *kv)
{
    char why[512] = "";

    must(store_defrag_remove(kv, why, sizeof why), why);
}

/* ---- space ---- */

static void space_of_what_was_deleted_goes_back_to_the_filesystem(void **state)
{
    struct kv *old = help_lmdb("store");
    struct mvcc *m = help_open(old);

    (void)state;
    write_files(m, old, "big", BIG_FILES, BIG_BYTES);
    write_files(m, old, "small", SMALL_FILES, 300);
    for (size_t i = 0; i < BIG_FILES; i++) {
        char path[32];

        snprintf(path, sizeof path, "big%zu", i);
        help_delete(m, path);
    }
    help_compact_all(m, mvcc_revision(m));
    help_checkpoint(m, old);
    assert_true(bytes_on_disk("store/data.mdb") > BIG_FILES * BIG_BYTES);
    struct kv *kv = copy_of(old);

    help_assert_same_tables(old, kv);
    assert_true(file_bytes(kv) < file_bytes(old) / 10);
    change_places(old, kv);
    mvcc_switch(m, kv);
    remove_new(old);
    assert_false(is_there("store.new"));
    assert_true(bytes_on_disk("store/data.mdb") < 2 << 20);
    write_files(m, kv, "more", 3, 50);
    m = help_reopen(m, kv);
    assert_int_equal(mvcc_live_keys(m), 1 + SMALL_FILES + 3);
    mvcc_close(m);
    kv->ops->close(kv);
}

static void a_copy_is_for_the_owner_alone(void **state)
{
    static const struct {
        const char *name;
        mode_t mode;
    } all[] = { { "store.new", 0700 },
                { "store.new/data.mdb", 0600 },
                { "store.new/lock.mdb", 0600 } };
    struct kv *old = help_lmdb("store");
    struct mvcc *m = help_open(old);
    struct stat st;

    (void)state;
    write_files(m, old, "f", 1, 10);
    struct kv *kv = copy_of(old);

    for (size_t i = 0; i < KEEL_ARRAY_LEN(all); i++) {
        assert_int_equal(stat(all[i].name, &st), 0);
        assert_int_equal(st.st_mode & 07777, all[i].mode);
    }
    remove_new(kv);
    mvcc_close(m);
    old->ops->close(old);
}

/* ---- written meanwhile ---- */

/* A thread that writes, and keeps what it has written. */
struct writer {
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t wrote;
    struct mvcc *m;
    struct kv *kv;
    struct kv_batch *kept, **tail;
    uint64_t count;
    bool stop;
};

static struct writer *the_writer; /* for the step hook */

static void write_one(struct writer *w, struct keel_rng *rng)
{
    help_random_entry(w->m, rng);
    if (keel_rng_below(rng, 8) == 0) {
        help_compact(w->m, mvcc_revision(w->m));
        help_compact_step(w->m, 3);
    }
    struct kv_batch *batch = mvcc_checkpoint(w->m, NULL, NULL, 0);

    KEEL_ASSERT(w->kv->ops->write(w->kv, batch) == 0);
    mvcc_checkpointed(w->m);
    kv_batch_forget_values(batch);
    pthread_mutex_lock(&w->mutex);
    *w->tail = batch;
    w->tail = &batch->next;
    w->count++;
    pthread_cond_broadcast(&w->wrote);
    pthread_mutex_unlock(&w->mutex);
}

static bool is_stopped(struct writer *w)
{
    pthread_mutex_lock(&w->mutex);
    bool stop = w->stop;

    pthread_mutex_unlock(&w->mutex);
    return stop;
}

static void *writer_main(void *arg)
{
    struct writer *w = arg;
    struct keel_rng rng;

    keel_rng_seed(&rng, 7);
    while (!is_stopped(w))
        write_one(w, &rng);
    return NULL;
}

/* Between two pieces there are some writes. */
static void wait_for_writes(const char *step)
{
    struct writer *w = the_writer;

    (void)step;
    pthread_mutex_lock(&w->mutex);
    for (uint64_t until = w->count + 5; w->count < until;)
        pthread_cond_wait(&w->wrote, &w->mutex);
    pthread_mutex_unlock(&w->mutex);
}

static void what_is_written_meanwhile_is_in_the_copy_too(void **state)
{
    struct writer w = { .mutex = PTHREAD_MUTEX_INITIALIZER, .wrote = PTHREAD_COND_INITIALIZER };
    char why[512] = "";

    (void)state;
    w.kv = help_lmdb("store");
    w.m = help_open(w.kv);
    w.tail = &w.kept;
    write_files(w.m, w.kv, "big", BIG_FILES, BIG_BYTES);
    the_writer = &w;
    store_defrag_step = wait_for_writes;
    assert_int_equal(pthread_create(&w.thread, NULL, writer_main, &w), 0);
    struct kv *kv = copy_of(w.kv);

    store_defrag_step = NULL;
    pthread_mutex_lock(&w.mutex);
    w.stop = true;
    pthread_mutex_unlock(&w.mutex);
    pthread_join(w.thread, NULL);
    assert_true(w.count >= 5 * (BIG_FILES * BIG_BYTES / (5 << 20)));
    assert_int_equal(store_defrag_switch(w.kv, kv, why, sizeof why), KEEL_E_CORRUPT);
    must(store_defrag_catch_up(w.kv, kv, w.kept, why, sizeof why), why);
    help_assert_same_tables(w.kv, kv);
    change_places(w.kv, kv);
    struct mvcc *m = help_open(kv);

    help_assert_same(w.m, m);
    mvcc_close(m);
    mvcc_close(w.m);
    while (w.kept != NULL) {
        struct kv_batch *batch = w.kept;

        w.kept = batch->next;
        kv_batch_free(batch);
    }
    remove_new(w.kv);
    kv->ops->close(kv);
}

static void a_store_in_which_nothing_was_ever_written_is_one_like_any_other(void **state)
{
    struct kv *old = help_lmdb("store");
    struct kv *kv = copy_of(old);

    (void)state;
    change_places(old, kv);
    remove_new(old);
    struct mvcc *m = help_open(kv);

    write_files(m, kv, "f", 1, 10);
    mvcc_close(m);
    kv->ops->close(kv);
}

static void a_checkpoint_that_is_out_goes_to_the_copy(void **state)
{
    struct kv *old = help_lmdb("store");
    struct mvcc *m = help_open(old);

    (void)state;
    write_files(m, old, "f", 3, 10);
    struct kv *kv = copy_of(old);

    help_write(m, "out", "held");
    assert_string_equal(help_read(m, "f0", 0), "aaaaaaaaaa"); /* a read transaction is open */
    struct kv_batch *batch = mvcc_checkpoint(m, NULL, NULL, 0);

    help_write(m, "pending", "later");
    change_places(old, kv);
    mvcc_switch(m, kv);
    remove_new(old);
    assert_string_equal(help_read(m, "f0", 0), "aaaaaaaaaa");
    assert_string_equal(help_read(m, "out", 0), "held");
    assert_string_equal(help_read(m, "pending", 0), "later");
    assert_int_equal(kv->ops->write(kv, batch), 0);
    mvcc_checkpointed(m);
    kv_batch_free(batch);
    help_checkpoint(m, kv);
    m = help_reopen(m, kv);
    assert_string_equal(help_read(m, "out", 0), "held");
    assert_string_equal(help_read(m, "pending", 0), "later");
    mvcc_close(m);
    kv->ops->close(kv);
}

/* ---- being killed ---- */

static uint64_t *durable; /* shared with the child: what it could have acknowledged */

static struct kv_batch *write_batch(struct mvcc *m, struct kv *kv)
{
    char text[32];

    snprintf(text, sizeof text, "%d", (int)mvcc_applied_index(m) + 1);
    help_write(m, "who", text);
    struct kv_batch *batch = mvcc_checkpoint(m, NULL, NULL, 0);

    assert_int_equal(kv->ops->write(kv, batch), 0);
    mvcc_checkpointed(m);
    *durable = mvcc_applied_index(m);
    return batch;
}

/* The whole, with a write before each of its parts. */
static void defragment(void)
{
    struct kv *old = help_lmdb("store"), *kv;
    struct mvcc *m = help_open(old);
    char why[512] = "";

    kv_batch_free(write_batch(m, old));
    kv = copy_of(old);
    struct kv_batch *kept = write_batch(m, old);

    kept->next = write_batch(m, old);
    must(store_defrag_catch_up(old, kv, kept, why, sizeof why), why);
    kv_batch_free(kept->next);
    kv_batch_free(kept);
    change_places(old, kv);
    mvcc_switch(m, kv);
    kv_batch_free(write_batch(m, kv));
    remove_new(old);
    kv_batch_free(write_batch(m, kv));
    mvcc_close(m);
    kv->ops->close(kv);
}

static void assert_recovered(void)
{
    uint64_t index, term;
    char why[512] = "", text[32];

    must(store_install_recover(map_bytes, &index, &term, why, sizeof why), why);
    assert_int_equal(index, 0);
    assert_false(is_there("store.new"));
    struct kv *kv = help_lmdb("store");
    struct mvcc *m = help_open(kv);

    assert_int_equal(mvcc_applied_index(m), *durable);
    snprintf(text, sizeof text, "%d", (int)*durable);
    assert_string_equal(help_read(m, "who", 0), text);
    assert_int_equal(mvcc_live_keys(m), 1 + 9 + 1);
    mvcc_close(m);
    kv->ops->close(kv);
}

static void a_process_killed_at_any_step_leaves_a_complete_store(void **state)
{
    size_t at = 0;
    struct kv *kv = help_lmdb("store");
    struct mvcc *m = help_open(kv);

    (void)state;
    durable =
        mmap(NULL, sizeof *durable, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(durable != MAP_FAILED);
    write_files(m, kv, "big", 9, BIG_BYTES);
    mvcc_close(m);
    kv->ops->close(kv);
    steps_learn(&store_defrag_step, defragment);
    assert_recovered();
    for (; killed_at(&store_defrag_step, defragment, at); at++) {
        print_message("# killed at '%s'\n", step_name(at));
        assert_recovered();
    }
    assert_int_equal(at, steps_count());
    assert_true(steps_count() >= 9);
    munmap(durable, sizeof *durable);
}

/* ---- when it does not come off ---- */

static atomic_bool not_wanted;
static size_t pieces;

static void give_up_later(const char *step)
{
    if (strcmp(step, "piece read") == 0 && ++pieces == 2)
        atomic_store(&not_wanted, true);
}

static void assert_nothing_came_of_it(struct kv *old, int err, int expected, const char *why)
{
    if (err != expected)
        fail_msg("%d, not %d: %s", err, expected, why);
    assert_false(is_there("store.new"));
    struct mvcc *m = help_open(old);

    write_files(m, old, "after", 1, 10);
    assert_int_equal(mvcc_live_keys(m), 1 + BIG_FILES + 1);
    mvcc_close(m);
    old->ops->close(old);
}

static struct kv *big_store(void)
{
    struct kv *kv = help_lmdb("store");
    struct mvcc *m = help_open(kv);

    write_files(m, kv, "big", BIG_FILES, BIG_BYTES);
    mvcc_close(m);
    return kv;
}

static void one_that_is_not_wanted_any_more_ends_soon_and_leaves_nothing(void **state)
{
    struct kv *old = big_store(), *kv;
    char why[512] = "";

    (void)state;
    store_defrag_step = give_up_later;
    int err = store_defrag_copy(old, map_bytes, &not_wanted, &kv, why, sizeof why);

    assert_int_equal(pieces, 2);
    assert_nothing_came_of_it(old, err, KEEL_E_CANCELLED, why);
}

static void one_for_which_there_is_no_room_leaves_nothing(void **state)
{
    struct kv *old = big_store(), *kv;
    atomic_bool give_up = false;
    char why[512] = "";

    (void)state;
    int err = store_defrag_copy(old, 8 << 20, &give_up, &kv, why, sizeof why);

    assert_non_null(strstr(why, "no space left"));
    assert_nothing_came_of_it(old, err, KEEL_E_DISKFULL, why);
}

static void what_is_left_of_another_one_is_no_obstacle(void **state)
{
    struct kv *old = big_store();
    struct kv *first = copy_of(old), *second;

    (void)state;
    first->ops->close(first);
    second = copy_of(old);
    help_assert_same_tables(old, second);
    remove_new(second);
    old->ops->close(old);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(space_of_what_was_deleted_goes_back_to_the_filesystem),
        TEST(a_copy_is_for_the_owner_alone),
        TEST(what_is_written_meanwhile_is_in_the_copy_too),
        TEST(a_store_in_which_nothing_was_ever_written_is_one_like_any_other),
        TEST(a_checkpoint_that_is_out_goes_to_the_copy),
        TEST(a_process_killed_at_any_step_leaves_a_complete_store),
        TEST(one_that_is_not_wanted_any_more_ends_soon_and_leaves_nothing),
        TEST(one_for_which_there_is_no_room_leaves_nothing),
        TEST(what_is_left_of_another_one_is_no_obstacle),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
