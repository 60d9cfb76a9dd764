/* Both kvs against each other, and what opening a store on disk says when it can't. */
#include "help.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "check.h"
#include "rng.h"

/* ---- the same batches give the same tables ---- */

static struct kv_batch *random_batch(struct keel_rng *rng)
{
    struct kv_batch *batch = kv_batch_new();
    size_t count = 1 + keel_rng_below(rng, 20);

    for (size_t i = 0; i < count; i++) {
        enum kv_table table = (enum kv_table)keel_rng_below(rng, KV_TABLES);
        uint8_t key[3] = { (uint8_t)keel_rng_below(rng, 12), (uint8_t)keel_rng_below(rng, 12), 7 };
        struct keel_slice k = keel_slice_of(key, 1 + keel_rng_below(rng, 3));

        if (keel_rng_below(rng, 4) == 0) {
            kv_batch_remove(batch, table, k);
            continue;
        }
        struct keel_buf *value = keel_buf_new(1 + keel_rng_below(rng, 5000));

        memset(value->data, (int)keel_rng_below(rng, 256), value->len);
        if (keel_rng_below(rng, 3) == 0) {
            size_t from = keel_rng_below(rng, value->len);
            size_t len = keel_rng_below(rng, value->len - from);

            kv_batch_put_slice(batch, table, k, value, keel_slice_of(value->data + from, len));
        } else {
            kv_batch_put(batch, table, k, value);
        }
    }
    return batch;
}

struct listing {
    struct keel_text text;
    size_t entries, stop_after;
};

static int list_entry(void *arg, struct keel_slice key, struct keel_slice value)
{
    struct listing *listing = arg;

    keel_text_append(&listing->text, key);
    keel_text_printf(&listing->text, "=%zu:", value.len);
    keel_text_append(&listing->text, value);
    return ++listing->entries == listing->stop_after ? 42 : 0;
}

static int list(struct kv *kv, enum kv_table table, struct keel_slice from, size_t stop_after,
                struct keel_text *ret_text)
{
    struct kv_read *read = kv->ops->read_begin(kv);
    struct listing listing = { .stop_after = stop_after };
    int result = kv->ops->scan(read, table, from, list_entry, &listing);

    kv->ops->read_end(read);
    *ret_text = listing.text;
    return result;
}

static void assert_same(struct kv *a, struct kv *b, enum kv_table table, struct keel_slice from,
                        size_t stop_after)
{
    struct keel_text ta, tb;

    assert_int_equal(list(a, table, from, stop_after, &ta), list(b, table, from, stop_after, &tb));
    assert_int_equal(ta.len, tb.len);
    if (ta.len > 0)
        assert_memory_equal(ta.data, tb.data, ta.len);
    keel_text_free(&ta);
    keel_text_free(&tb);
}

/* Several in one read transaction, near each other and not. */
static void assert_same_gets(struct kv *a, struct kv *b, enum kv_table table, struct keel_rng *rng)
{
    struct kv_read *ra = a->ops->read_begin(a), *rb = b->ops->read_begin(b);

    for (int i = 0; i < 20; i++) {
        uint8_t key[2] = { (uint8_t)keel_rng_below(rng, 13), (uint8_t)keel_rng_below(rng, 13) };
        struct keel_slice k = keel_slice_of(key, 1 + keel_rng_below(rng, 2));
        struct keel_slice va = { 0 }, vb = { 0 };

        assert_int_equal(a->ops->get(ra, table, k, &va), b->ops->get(rb, table, k, &vb));
        assert_true(keel_slice_equal(va, vb));
    }
    a->ops->read_end(ra);
    b->ops->read_end(rb);
}

static void lmdb_and_mem_hold_the_same_after_any_batches(void **state)
{
    char dir[128];
    struct keel_rng rng;

    (void)state;
    help_dir_new(dir, sizeof dir);
    struct kv *lmdb = help_lmdb(dir), *mem = kv_mem_new();

    keel_rng_seed(&rng, 3);
    for (int round = 0; round < 60; round++) {
        struct kv_batch *batch = random_batch(&rng);
        uint8_t key[2] = { (uint8_t)keel_rng_below(&rng, 13), (uint8_t)keel_rng_below(&rng, 13) };

        assert_int_equal(lmdb->ops->write(lmdb, batch), 0);
        assert_int_equal(mem->ops->write(mem, batch), 0);
        kv_batch_free(batch);
        for (enum kv_table t = 0; t < KV_TABLES; t++) {
            assert_same(lmdb, mem, t, keel_slice_of(NULL, 0), 0);
            assert_same(lmdb, mem, t, keel_slice_of(key, 2), 3);
            assert_same_gets(lmdb, mem, t, &rng);
        }
        if (round % 20 == 19) {
            lmdb->ops->close(lmdb);
            lmdb = help_lmdb(dir);
        }
    }
    lmdb->ops->close(lmdb);
    mem->ops->close(mem);
    help_dir_remove(dir);
}

/* ---- isolation ---- */

static void put_one(struct kv *kv, const char *key, const char *value)
{
    struct kv_batch *batch = kv_batch_new();

    kv_batch_put(batch, KV_META, keel_slice_str(key), keel_buf_copy(keel_slice_str(value)));
    assert_int_equal(kv->ops->write(kv, batch), 0);
    kv_batch_free(batch);
}

static void check_reader_keeps_its_view(struct kv *kv)
{
    struct keel_slice value;

    put_one(kv, "k", "old");
    struct kv_read *early = kv->ops->read_begin(kv);

    assert_int_equal(kv->ops->get(early, KV_META, keel_slice_str("k"), &value), 0);
    put_one(kv, "k", "new");
    put_one(kv, "l", "more");
    assert_true(keel_slice_equal(value, keel_slice_str("old")));
    assert_int_equal(kv->ops->get(early, KV_META, keel_slice_str("l"), &value), KEEL_E_NOTFOUND);
    struct kv_read *late = kv->ops->read_begin(kv);

    assert_int_equal(kv->ops->get(late, KV_META, keel_slice_str("k"), &value), 0);
    assert_true(keel_slice_equal(value, keel_slice_str("new")));
    kv->ops->read_end(early);
    kv->ops->read_end(late);
}

static void a_reader_keeps_its_view_while_others_write(void **state)
{
    char dir[128];

    (void)state;
    help_dir_new(dir, sizeof dir);
    struct kv *lmdb = help_lmdb(dir), *mem = kv_mem_new();

    check_reader_keeps_its_view(lmdb);
    check_reader_keeps_its_view(mem);
    lmdb->ops->close(lmdb);
    mem->ops->close(mem);
    help_dir_remove(dir);
}

struct writer {
    struct kv *kv;
    atomic_bool done;
};

/* Two keys in each batch, always of the same value. */
static void *write_pairs(void *arg)
{
    struct writer *writer = arg;

    for (int i = 0; i < 100; i++) {
        struct kv_batch *batch = kv_batch_new();
        struct keel_buf *value = keel_buf_copy(keel_slice_of(&i, sizeof i));

        kv_batch_put(batch, KV_META, keel_slice_str("one"), keel_buf_ref(value));
        kv_batch_put(batch, KV_RECORDS, keel_slice_str("two"), value);
        KEEL_ASSERT(writer->kv->ops->write(writer->kv, batch) == 0);
        kv_batch_free(batch);
    }
    atomic_store(&writer->done, true);
    return NULL;
}

static int read_number(struct kv *kv, struct kv_read *read, enum kv_table table, const char *key)
{
    struct keel_slice value;
    int number = -1;

    if (kv->ops->get(read, table, keel_slice_str(key), &value) == 0)
        memcpy(&number, value.data, sizeof number);
    return number;
}

/* Nothing is asserted before the writer is at its end: it uses this stack. */
static void a_reader_sees_whole_batches_of_a_writer_on_another_thread(void **state)
{
    char dir[128];
    pthread_t thread;
    int last = -1, torn = 0, backwards = 0;
    bool done;

    (void)state;
    help_dir_new(dir, sizeof dir);
    struct writer writer = { .kv = help_lmdb(dir) };

    assert_int_equal(pthread_create(&thread, NULL, write_pairs, &writer), 0);
    do {
        done = atomic_load(&writer.done);
        struct kv_read *read = writer.kv->ops->read_begin(writer.kv);
        int one = read_number(writer.kv, read, KV_META, "one");

        torn += one != read_number(writer.kv, read, KV_RECORDS, "two");
        backwards += one < last;
        last = one;
        writer.kv->ops->read_end(read);
    } while (!done);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(torn, 0);
    assert_int_equal(backwards, 0);
    assert_int_equal(last, 99);
    writer.kv->ops->close(writer.kv);
    help_dir_remove(dir);
}

/* ---- on disk ---- */

static void files_are_readable_by_their_owner_only(void **state)
{
    char base[128], dir[160], file[192];
    struct stat st;

    (void)state;
    help_dir_new(base, sizeof base);
    snprintf(dir, sizeof dir, "%s/db", base);
    struct kv *kv = help_lmdb(dir);

    assert_int_equal(stat(dir, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0700);
    snprintf(file, sizeof file, "%s/data.mdb", dir);
    assert_int_equal(stat(file, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0600);
    kv->ops->close(kv);
    help_dir_remove(dir);
    help_dir_remove(base);
}

static void a_full_map_is_reported_and_the_batch_has_no_effect(void **state)
{
    char dir[128], why[256];
    struct kv *kv;

    (void)state;
    help_dir_new(dir, sizeof dir);
    assert_int_equal(kv_lmdb_open(dir, 1 << 20, &kv, why, sizeof why), 0);
    put_one(kv, "k", "kept");
    struct kv_batch *batch = kv_batch_new();

    kv_batch_put(batch, KV_META, keel_slice_str("k"), keel_buf_copy(keel_slice_str("lost")));
    for (char c = 'a'; c <= 'd'; c++) {
        struct keel_buf *value = keel_buf_new(KEEL_FILE_SIZE_MAX);

        memset(value->data, c, value->len);
        kv_batch_put(batch, KV_CONTENT, keel_slice_of(&c, 1), value);
    }
    assert_int_equal(kv->ops->write(kv, batch), KEEL_E_DISKFULL);
    kv_batch_free(batch);
    struct keel_text text;

    assert_int_equal(list(kv, KV_META, keel_slice_of(NULL, 0), 0, &text), 0);
    assert_string_equal(text.data, "k=4:kept");
    keel_text_free(&text);
    kv->ops->close(kv);
    help_dir_remove(dir);
}

/* ---- memory ---- */

/* Of the map of the store, in KiB: the lines of a mapping are its addresses and name, then
 * "Rss: N kB" and others. */
static unsigned long mapped_kib(const char *dir)
{
    FILE *file = fopen("/proc/self/smaps", "r");
    unsigned long from, to, kib, sum = 0;
    bool inside = false;
    char line[512];

    assert_non_null(file);
    while (fgets(line, sizeof line, file) != NULL) {
        if (sscanf(line, "%lx-%lx", &from, &to) == 2)
            inside = strstr(line, dir) != NULL && strstr(line, "data.mdb") != NULL;
        else if (inside && sscanf(line, "Rss: %lu kB", &kib) == 1)
            sum += kib;
    }
    fclose(file);
    return sum;
}

static int touch(void *arg, struct keel_slice key, struct keel_slice value)
{
    (void)key;
    *(unsigned *)arg += value.data[value.len - 1];
    return 0;
}

static void a_scan_does_not_keep_the_store_in_memory(void **state)
{
    struct keel_slice key = keel_slice_str("k7"), value;
    unsigned sum = 0;
    char dir[128];

    (void)state;
    help_dir_new(dir, sizeof dir);
    struct kv *kv = help_lmdb(dir);

    for (char digit = '0'; digit <= '9'; digit++) {
        struct kv_batch *batch = kv_batch_new();
        struct keel_buf *big = keel_buf_new(1 << 20);
        char name[] = { 'k', digit, '\0' };

        memset(big->data, digit, big->len);
        kv_batch_put(batch, KV_CONTENT, keel_slice_str(name), big);
        assert_int_equal(kv->ops->write(kv, batch), 0);
        kv_batch_free(batch);
    }
    struct kv_read *read = kv->ops->read_begin(kv);

    assert_int_equal(kv->ops->get(read, KV_CONTENT, key, &value), 0);
    for (size_t i = 0; i < value.len; i += 4096)
        assert_int_equal(value.data[i], '7');
    assert_true(mapped_kib(dir) >= 1024);
    assert_int_equal(kv->ops->scan(read, KV_CONTENT, keel_slice_of(NULL, 0), touch, &sum), 0);
    assert_int_equal(sum, 10 * '0' + 45);
    assert_true(mapped_kib(dir) < 1024);
    for (size_t i = 0; i < value.len; i += 4096) /* what was borrowed before is still there */
        assert_int_equal(value.data[i], '7');
    kv->ops->read_end(read);
    kv->ops->close(kv);
    help_dir_remove(dir);
}

static void values_of_the_greatest_file_size_come_back(void **state)
{
    char dir[128];
    struct keel_slice value;

    (void)state;
    help_dir_new(dir, sizeof dir);
    struct kv *kv = help_lmdb(dir);
    struct kv_batch *batch = kv_batch_new();
    struct keel_buf *big = keel_buf_new(KEEL_FILE_SIZE_MAX);
    uint64_t file, used;

    for (size_t i = 0; i < big->len; i++)
        big->data[i] = (uint8_t)(i * 7 + i / 251);
    kv_batch_put(batch, KV_CONTENT, keel_slice_str("big"), keel_buf_ref(big));
    assert_int_equal(kv->ops->write(kv, batch), 0);
    kv_batch_free(batch);
    kv->ops->sizes(kv, &file, &used);
    assert_true(used >= KEEL_FILE_SIZE_MAX && file >= used);
    struct kv_read *read = kv->ops->read_begin(kv);

    assert_int_equal(kv->ops->get(read, KV_CONTENT, keel_slice_str("big"), &value), 0);
    assert_true(keel_slice_equal(value, keel_buf_slice(big)));
    kv->ops->read_end(read);
    keel_buf_free(big);
    kv->ops->close(kv);
    help_dir_remove(dir);
}

static void check_open_fails(const char *dir, int expected, const char *text)
{
    char why[256] = "";
    struct kv *kv;

    assert_int_equal(kv_lmdb_open(dir, 1 << 24, &kv, why, sizeof why), expected);
    if (strstr(why, text) == NULL || strstr(why, dir) == NULL)
        fail_msg("\"%s\" lacks \"%s\" or the directory", why, text);
}

static void opening_says_what_is_wrong_with_the_files(void **state)
{
    char dir[128], file[160], missing[160];

    (void)state;
    help_dir_new(dir, sizeof dir);
    snprintf(missing, sizeof missing, "%s/no/such", dir);
    check_open_fails(missing, KEEL_E_IO, "cannot create");
    struct kv *kv = help_lmdb(dir);

    for (int i = 0; i < 50; i++)
        put_one(kv, (char[]){ (char)('a' + i % 26), (char)('a' + i), 0 }, "some value");
    kv->ops->close(kv);
    snprintf(file, sizeof file, "%s/data.mdb", dir);
    assert_int_equal(truncate(file, 3 * 4096), 0);
    check_open_fails(dir, KEEL_E_CORRUPT, "truncated");

    int fd = open(file, O_WRONLY);

    assert_true(fd >= 0);
    for (off_t page = 0; page < 2; page++)
        assert_int_equal(pwrite(fd, "garbage garbage garbage garbage", 31, page * 4096), 31);
    close(fd);
    check_open_fails(dir, KEEL_E_CORRUPT, "damaged");
    help_dir_remove(dir);
}

static uint64_t pages_missing(struct kv *kv, const char *file)
{
    uint64_t whole, used;
    struct stat st;

    kv->ops->sizes(kv, &whole, &used);
    assert_int_equal(stat(file, &st), 0);
    return (uint64_t)st.st_size < whole ? (whole - (uint64_t)st.st_size) / 4096 : 0;
}

/* Values of several pages that come in one transaction, and go again but for a few. */
static void write_and_take_back(struct kv *kv, int round)
{
    enum { KEYS = 60, BYTES = 3000 };
    struct kv_batch *batch = kv_batch_new();

    for (uint8_t key = 0; key < KEYS; key++) {
        struct keel_buf *value = keel_buf_new((size_t)(BYTES + (key * 7 + round) % 50 * 100));

        memset(value->data, key, value->len);
        kv_batch_put(batch, KV_CONTENT, keel_slice_of(&key, 1), value);
    }
    for (uint8_t key = KEYS; key-- > 0;)
        if (round % 2 == 1 || key % 4 != 0)
            kv_batch_remove(batch, KV_CONTENT, keel_slice_of(&key, 1));
    assert_int_equal(kv->ops->write(kv, batch), 0);
    kv_batch_free(batch);
}

static void a_file_without_the_free_pages_at_its_end_is_whole(void **state)
{
    char dir[128], file[160], why[256];

    (void)state;
    help_dir_new(dir, sizeof dir);
    snprintf(file, sizeof file, "%s/data.mdb", dir);
    struct kv *kv = help_lmdb(dir);

    for (int round = 0; pages_missing(kv, file) == 0; round++) {
        assert_true(round < 100);
        write_and_take_back(kv, round);
    }
    kv->ops->close(kv);
    if (kv_lmdb_open_read_only(dir, &kv, why, sizeof why) != 0)
        fail_msg("%s", why);
    kv->ops->close(kv);
    kv = help_lmdb(dir);
    assert_true(pages_missing(kv, file) > 0);
    put_one(kv, "key", "other");
    kv->ops->close(kv);
    assert_int_equal(truncate(file, 3 * 4096), 0);
    check_open_fails(dir, KEEL_E_CORRUPT, "truncated");
    help_dir_remove(dir);
}

/* One meta page has the last commit, the other the one before. */
static off_t older_meta(const char *file)
{
    uint64_t numbers[2];
    int fd = open(file, O_RDONLY);

    assert_true(fd >= 0);
    for (off_t page = 0; page < 2; page++)
        assert_int_equal(pread(fd, &numbers[page], 8, page * 4096 + 144), 8);
    close(fd);
    return numbers[0] < numbers[1] ? 0 : 4096;
}

static void zero(const char *file, off_t offset, size_t len)
{
    static const uint8_t zeroes[512];
    int fd = open(file, O_WRONLY);

    assert_true(fd >= 0);
    assert_int_equal(pwrite(fd, zeroes, len, offset), len);
    close(fd);
}

/* A commit was under way: what it would have overwritten is the older meta page. */
static void a_commit_of_which_zeroes_are_left_is_as_if_it_had_not_been(void **state)
{
    char dir[128], file[160], why[256];
    struct keel_slice value;

    (void)state;
    help_dir_new(dir, sizeof dir);
    snprintf(file, sizeof file, "%s/data.mdb", dir);
    struct kv *kv = help_lmdb(dir);

    for (int round = 0; round < 8; round++) {
        put_one(kv, "key", (char[]){ (char)('0' + round), 0 });
        kv->ops->close(kv);
        zero(file, older_meta(file) + (round / 2 % 2 == 0 ? 32 : 0),
             round / 2 % 2 == 0 ? 120 : 512);
        assert_int_equal(kv_lmdb_open_read_only(dir, &kv, why, sizeof why), KEEL_E_IO);
        assert_non_null(strstr(why, "when power failed"));
        kv = help_lmdb(dir);
        struct kv_read *read = kv->ops->read_begin(kv);

        assert_int_equal(kv->ops->get(read, KV_META, keel_slice_str("key"), &value), 0);
        assert_true(value.len == 1 && value.data[0] == '0' + round);
        kv->ops->read_end(read);
    }
    kv->ops->close(kv);
    zero(file, 0, 512);
    zero(file, 4096, 512);
    check_open_fails(dir, KEEL_E_CORRUPT, "damaged");
    help_dir_remove(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_commit_of_which_zeroes_are_left_is_as_if_it_had_not_been),
        cmocka_unit_test(a_file_without_the_free_pages_at_its_end_is_whole),
        cmocka_unit_test(lmdb_and_mem_hold_the_same_after_any_batches),
        cmocka_unit_test(a_reader_keeps_its_view_while_others_write),
        cmocka_unit_test(a_reader_sees_whole_batches_of_a_writer_on_another_thread),
        cmocka_unit_test(files_are_readable_by_their_owner_only),
        cmocka_unit_test(a_full_map_is_reported_and_the_batch_has_no_effect),
        cmocka_unit_test(a_scan_does_not_keep_the_store_in_memory),
        cmocka_unit_test(values_of_the_greatest_file_size_come_back),
        cmocka_unit_test(opening_says_what_is_wrong_with_the_files),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
