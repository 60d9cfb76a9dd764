/* What the index costs: every allocation is counted (the linker sends malloc and its family here),
 * so that the figure is exact and the same on every machine with the same malloc. */
#include "help.h"

#include <malloc.h>
#include <stdio.h>

enum { DIRS = 100, FILES = 1000, KEYS = DIRS * FILES, MORE = 3, SLACK = 64 << 10 };

void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *p, size_t size);
void __real_free(void *p);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *p, size_t size);
void __wrap_free(void *p);

static size_t in_use;

void *__wrap_malloc(size_t size)
{
    void *p = __real_malloc(size);

    in_use += malloc_usable_size(p);
    return p;
}

void *__wrap_calloc(size_t count, size_t size)
{
    void *p = __real_calloc(count, size);

    in_use += malloc_usable_size(p);
    return p;
}

void *__wrap_realloc(void *p, size_t size)
{
    size_t before = malloc_usable_size(p);

    p = __real_realloc(p, size);
    in_use += malloc_usable_size(p) - before;
    return p;
}

void __wrap_free(void *p)
{
    in_use -= malloc_usable_size(p);
    __real_free(p);
}

static size_t name_of(size_t i, char *ret_name, size_t size)
{
    return (size_t)snprintf(ret_name, size, "service-%03zu", i % FILES);
}

static size_t put_all(struct mvcc *m, struct mvcc_key **dirs)
{
    size_t name_bytes = 0;
    char name[32];

    for (size_t i = 0; i < KEYS; i++) {
        struct mvcc_record record = { .kind = MVCC_FILE, .mode = 0644, .ino = 1000000 + i };
        struct mvcc_txn *txn = mvcc_begin(m, mvcc_applied_index(m) + 1, 1);
        size_t len = name_of(i, name, sizeof name);

        mvcc_put(txn, dirs[i / FILES], keel_slice_of(name, len), &record, NULL);
        mvcc_commit(txn);
        name_bytes += len;
    }
    return name_bytes;
}

static void make_dirs(struct mvcc *m, struct mvcc_key **ret_dirs)
{
    char name[32];

    for (size_t i = 0; i < DIRS; i++) {
        snprintf(name, sizeof name, "d%zu", i);
        ret_dirs[i] = help_mkdir(m, name);
    }
}

static void find_dirs(struct mvcc *m, struct mvcc_key **ret_dirs)
{
    char name[32];

    for (size_t i = 0; i < DIRS; i++) {
        snprintf(name, sizeof name, "d%zu", i);
        ret_dirs[i] = help_key(m, name);
    }
}

/* What a store costs once it is open, and nothing is pending. */
static size_t cost_of_open(struct kv *kv, struct mvcc **ret_m)
{
    size_t before = in_use;

    *ret_m = help_open(kv);
    return in_use - before;
}

static void a_hundred_thousand_keys_stay_within_their_budget(void **state)
{
    struct kv *kv = kv_mem_new();
    struct mvcc *m = help_open(kv);
    struct mvcc_key *dirs[DIRS];

    (void)state;
    make_dirs(m, dirs);
    size_t names = put_all(m, dirs);

    help_checkpoint(m, kv);
    mvcc_close(m);
    size_t bytes = cost_of_open(kv, &m);

    print_message("# %d keys of one revision: %.1f bytes each beside the name\n", KEYS,
                  (double)(bytes - names) / KEYS);
    assert_int_equal(mvcc_live_keys(m), KEYS + DIRS + 1);
    assert_true(bytes <= KEYS * (96 + 24) + names + SLACK);

    find_dirs(m, dirs);
    for (size_t i = 0; i < MORE; i++)
        put_all(m, dirs);
    help_checkpoint(m, kv);
    mvcc_close(m);
    size_t more = cost_of_open(kv, &m);

    print_message("# %d keys of %d revisions: %.1f bytes more a revision\n", KEYS, 1 + MORE,
                  (double)(more - bytes) / (KEYS * MORE));
    assert_true(more <= KEYS * (96 + 24 * (1 + MORE)) + names + SLACK);
    mvcc_close(m);
    kv->ops->close(kv);
}

static void write_and_move(struct mvcc *m, size_t times)
{
    for (size_t i = 0; i < times; i++) {
        struct mvcc_record record;

        help_write(m, "temp", "text");
        struct mvcc_key *temp = help_key(m, "temp");

        assert_int_equal(mvcc_get(m, temp, 0, &record), 0);
        struct mvcc_txn *txn = help_begin(m);

        mvcc_put(txn, mvcc_root(m), keel_slice_str("file"), &record, NULL);
        mvcc_delete(txn, temp, 0, 0, true);
        mvcc_commit(txn);
    }
}

static void a_history_that_is_gone_costs_nothing(void **state)
{
    struct kv *kv = kv_mem_new();
    struct mvcc *m = help_open(kv);

    (void)state;
    write_and_move(m, 10);
    help_compact_all(m, mvcc_revision(m));
    help_checkpoint(m, kv);
    mvcc_read_end(m);
    size_t before = in_use;

    write_and_move(m, 20000);
    mvcc_read_end(m);
    size_t full = in_use;

    help_compact_all(m, mvcc_revision(m) - 20); /* not quite all: what is left must not hold it */
    help_checkpoint(m, kv);
    mvcc_read_end(m);
    print_message("# %zu bytes of history, then %zu\n", full - before, in_use - before);
    assert_true(in_use < before + (16 << 10));
    mvcc_close(m);
    kv->ops->close(kv);
}

static void nothing_is_left_after_closing(void **state)
{
    size_t before = in_use;
    struct kv *kv = kv_mem_new();
    struct mvcc *m = help_open(kv);

    (void)state;
    help_mkdir(m, "d");
    help_write(m, "d/f", "text");
    help_checkpoint(m, kv);
    help_write(m, "d/f", "more");
    mvcc_close(m);
    kv->ops->close(kv);
    assert_int_equal(in_use, before);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_hundred_thousand_keys_stay_within_their_budget),
        cmocka_unit_test(a_history_that_is_gone_costs_nothing),
        cmocka_unit_test(nothing_is_left_after_closing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
