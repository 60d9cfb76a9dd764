/* A store that takes the place of another, by a process that is killed at every step of it: then it
 * is wholly the old one or wholly the new one, as the manifest says. */
#include "help.h"

#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bytes.h"
#include "check.h"
#include "hash.h"
#include "place.h"
#include "store_install.h"

enum { CLUSTER = 77 };
static const uint64_t map_bytes = UINT64_C(1) << 30;

/* ---- a data directory ---- */

struct data_dir {
    struct place place;
    struct snapshot_info info; /* of the file `snapshot` */
};

static void write_bytes(const char *name, struct keel_slice bytes)
{
    int fd = open(name, O_WRONLY | O_CREAT | O_TRUNC, 0600);

    assert_true(fd >= 0);
    assert_int_equal(write(fd, bytes.data, bytes.len), bytes.len);
    close(fd);
}

static size_t read_bytes(const char *name, uint8_t *ret_bytes, size_t size)
{
    int fd = open(name, O_RDONLY);

    assert_true(fd >= 0);
    ssize_t len = read(fd, ret_bytes, size);

    assert_true(len >= 0);
    close(fd);
    return (size_t)len;
}

static void fill(struct kv *kv, const char *text, int writes)
{
    struct mvcc *m = help_open(kv);

    for (int i = 0; i < writes; i++)
        help_write(m, "who", text);
    help_checkpoint(m, kv);
    mvcc_close(m);
}

static void make_old(void)
{
    struct kv *kv = help_lmdb("store");

    fill(kv, "old", 3);
    kv->ops->close(kv);
}

static void make_snapshot(struct snapshot_info *ret_info)
{
    struct kv *kv = kv_mem_new();

    fill(kv, "new", 9);
    struct keel_buf *stream = help_snapshot(kv, ret_info);

    write_bytes("snapshot", keel_buf_slice(stream));
    keel_buf_free(stream);
    kv->ops->close(kv);
}

static int setup(void **state)
{
    struct data_dir *p = calloc(1, sizeof *p);

    if (access("/dev/shm", W_OK) == 0)
        setenv("TMPDIR", "/dev/shm", 0); /* there is a lot to be synced */
    place_enter(&p->place);
    make_old();
    make_snapshot(&p->info);
    *state = p;
    return 0;
}

static int teardown(void **state)
{
    struct data_dir *p = *state;

    store_install_step = NULL;
    place_leave(&p->place);
    free(p);
    return 0;
}

static void assert_no_rubbish(void)
{
    assert_false(is_there("store.new"));
    assert_false(is_there("install"));
    assert_false(is_there("install.new"));
    assert_false(is_there("store/installed"));
}

static char *listing;
static size_t listing_size;

static int list_one(const char *path, const struct stat *st, int flag, struct FTW *ftw)
{
    size_t len = strlen(listing);

    (void)flag;
    (void)ftw;
    snprintf(listing + len, listing_size - len, "%s %lld %lld.%09ld\n", path,
             (long long)st->st_size, (long long)st->st_mtim.tv_sec, st->st_mtim.tv_nsec);
    return 0;
}

/* The names, sizes and times of all that is in the working directory. */
static void list_dir(char *ret_text, size_t size)
{
    listing = ret_text;
    listing_size = size;
    listing[0] = '\0';
    assert_int_equal(nftw(".", list_one, 8, FTW_PHYS), 0);
    assert_true(strlen(listing) + 1 < size);
}

/* What the store in that directory says, as a start finds it. */
static void assert_store(const char *dir, const char *text, uint64_t index)
{
    struct kv *kv = help_lmdb(dir);
    struct mvcc *m = help_open(kv);

    assert_string_equal(help_read(m, "who", 0), text);
    assert_int_equal(mvcc_applied_index(m), index);
    mvcc_close(m);
    kv->ops->close(kv);
}

/* ---- the procedure ---- */

static int build(char *why, size_t size)
{
    struct snapshot_info info;
    int fd = open("snapshot", O_RDONLY);
    int err = store_install_build(fd, map_bytes, CLUSTER, &info, why, size);

    close(fd);
    return err;
}

static void install(void)
{
    char why[512] = "";

    must(build(why, sizeof why), why);
    must(store_install_swap(why, sizeof why), why);
    must(store_install_finish(why, sizeof why), why);
}

static uint64_t recover(void)
{
    char why[512] = "";
    uint64_t index, term;

    must(store_install_recover(map_bytes, &index, &term, why, sizeof why), why);
    assert_int_equal(term, index != 0 ? 1 : 0);
    return index;
}

static void recover_and_finish(void)
{
    char why[512] = "";

    if (recover() != 0)
        must(store_install_finish(why, sizeof why), why);
}

/* ---- being killed ---- */

static void start_again(void)
{
    remove_tree("store");
    make_old();
}

/* Learns the steps, and leaves the directory as it was. */
static void learn_steps(void)
{
    steps_learn(&store_install_step, install);
    start_again();
}

/* ---- tests ---- */

static void an_installed_store_is_the_one_of_the_snapshot(void **state)
{
    struct data_dir *p = *state;

    install();
    assert_store("store", "new", p->info.index);
    assert_no_rubbish();
    assert_int_equal(recover(), 0);
    assert_store("store", "new", p->info.index);
}

static void until_the_exchange_the_old_store_is_in_its_place(void **state)
{
    struct data_dir *p = *state;
    char why[512] = "";

    must(build(why, sizeof why), why);
    assert_store("store", "old", 3);
    assert_store("store.new", "new", p->info.index);
    must(store_install_swap(why, sizeof why), why);
    assert_store("store", "new", p->info.index);
    assert_store("store.new", "old", 3);
}

static void whoever_has_the_old_store_open_goes_on_with_it(void **state)
{
    struct kv *old = help_lmdb("store");
    struct mvcc *m = help_open(old);

    (void)state;
    install();
    assert_string_equal(help_read(m, "who", 0), "old");
    help_write(m, "who", "older");
    help_checkpoint(m, old);
    assert_string_equal(help_read(m, "who", 0), "older");
    assert_store("store", "new", 9);
    mvcc_close(m);
    old->ops->close(old);
    assert_no_rubbish();
}

static void files_and_directories_are_for_the_owner_alone(void **state)
{
    static const struct {
        const char *name;
        mode_t mode;
    } all[] = { { "store.new", 0700 },
                { "store.new/data.mdb", 0600 },
                { "store.new/lock.mdb", 0600 },
                { "store.new/installed", 0600 },
                { "install", 0600 } };
    char why[512] = "";
    struct stat st;

    (void)state;
    must(build(why, sizeof why), why);
    for (size_t i = 0; i < KEEL_ARRAY_LEN(all); i++) {
        assert_int_equal(stat(all[i].name, &st), 0);
        assert_int_equal(st.st_mode & 07777, all[i].mode);
    }
}

static void a_process_killed_at_any_step_leaves_one_store_or_the_other(void **state)
{
    struct data_dir *p = *state;
    size_t at = 0;

    learn_steps();
    size_t begins = step_named("manifest named"), ends = step_named("manifest removed");

    for (; killed_at(&store_install_step, install, at); at++) {
        bool is_new = at >= begins;

        print_message("# killed at '%s'\n", step_name(at));
        assert_int_equal(recover(), at >= begins && at < ends ? p->info.index : 0);
        assert_store("store", is_new ? "new" : "old", is_new ? p->info.index : 3);
        recover_and_finish();
        assert_store("store", is_new ? "new" : "old", is_new ? p->info.index : 3);
        assert_no_rubbish();
        start_again();
    }
    assert_int_equal(at, steps_count());
}

/* Which store a start would take, and where that is; nothing is changed. */
static void assert_look(uint64_t install_index, uint64_t store_index)
{
    uint64_t index = 1, term = 1;
    const char *store;
    struct kv *kv;
    char why[512] = "", before[4096], after[4096];

    list_dir(before, sizeof before);
    must(store_install_peek(&store, &index, &term, why, sizeof why), why);
    assert_int_equal(index, install_index);
    assert_int_equal(term, install_index != 0 ? 1 : 0);
    must(kv_lmdb_open_read_only(store, &kv, why, sizeof why), why);
    struct mvcc *m = help_open(kv);

    assert_int_equal(mvcc_applied_index(m), store_index);
    mvcc_close(m);
    kv->ops->close(kv);
    list_dir(after, sizeof after);
    assert_string_equal(before, after);
}

static void at_any_step_a_look_finds_what_a_start_would(void **state)
{
    struct data_dir *p = *state;
    size_t at = 0;

    learn_steps();
    size_t begins = step_named("manifest named"), ends = step_named("manifest removed");

    for (; killed_at(&store_install_step, install, at); at++) {
        assert_look(at >= begins && at < ends ? p->info.index : 0,
                    at >= begins ? p->info.index : 3);
        recover_and_finish();
        assert_look(0, at >= begins ? p->info.index : 3);
        start_again();
    }
    assert_int_equal(at, steps_count());
}

static void a_look_at_no_store_makes_none(void **state)
{
    struct kv *kv;
    char why[512] = "";

    (void)state;
    assert_int_equal(kv_lmdb_open_read_only("nothing", &kv, why, sizeof why), KEEL_E_IO);
    assert_non_null(strstr(why, "nothing"));
    assert_false(is_there("nothing"));
}

static void a_recovery_may_be_killed_too(void **state)
{
    struct data_dir *p = *state;

    learn_steps();
    for (size_t at = step_named("manifest named"); killed_at(&store_install_step, install, at);
         at++) {
        for (size_t again = 0; killed_at(&store_install_step, recover_and_finish, again); again++)
            ;
        recover_and_finish();
        assert_store("store", "new", p->info.index);
        assert_no_rubbish();
        start_again();
    }
}

static void install_and_go_on(void)
{
    char why[512] = "";

    must(build(why, sizeof why), why);
    must(store_install_swap(why, sizeof why), why);
    struct kv *kv = help_lmdb("store");

    fill(kv, "newer", 4);
    kv->ops->close(kv);
}

static void what_the_new_store_has_got_since_is_kept(void **state)
{
    struct data_dir *p = *state;

    install_and_go_on();
    assert_int_equal(recover(), p->info.index);
    assert_store("store", "newer", p->info.index + 4);
    recover_and_finish();
    assert_store("store", "newer", p->info.index + 4);
}

static void another_snapshot_can_be_installed_later(void **state)
{
    struct data_dir *p = *state;

    install();
    install();
    assert_store("store", "new", p->info.index);
    assert_no_rubbish();
}

/* ---- refusals ---- */

static void assert_refused(int err, const char *text)
{
    char why[512] = "";

    assert_int_equal(build(why, sizeof why), err);
    if (strstr(why, text) == NULL)
        fail_msg("'%s' is not in '%s'", text, why);
    assert_no_rubbish();
    assert_store("store", "old", 3);
}

/* One bit in each byte; each bit of a stream, which the same code reads, is another test's. */
static void a_snapshot_with_a_flipped_bit_is_refused_and_nothing_is_left_of_it(void **state)
{
    uint8_t bytes[1 << 16];
    size_t len = read_bytes("snapshot", bytes, sizeof bytes);

    (void)state;
    for (size_t i = 0; i < len; i++) {
        bytes[i] ^= (uint8_t)(1u << i % 8);
        write_bytes("snapshot", keel_slice_of(bytes, len));
        assert_refused(KEEL_E_CORRUPT, "damaged");
        bytes[i] ^= (uint8_t)(1u << i % 8);
    }
    write_bytes("snapshot", keel_slice_of(bytes, len - 1));
    assert_refused(KEEL_E_CORRUPT, "ends");
    write_bytes("snapshot", keel_slice_of(bytes, len));
    install();
}

static void a_snapshot_of_another_cluster_is_refused(void **state)
{
    struct snapshot_info info;
    char why[512] = "";
    int fd = open("snapshot", O_RDONLY);

    (void)state;
    assert_int_equal(store_install_build(fd, map_bytes, CLUSTER + 1, &info, why, sizeof why),
                     KEEL_E_INVALID);
    assert_non_null(strstr(why, "cluster"));
    assert_no_rubbish();
    close(fd);
}

/* The stream is sound, but no history could have written what is in it. */
static void a_snapshot_that_does_not_open_as_a_store_is_refused(void **state)
{
    struct kv *kv = kv_mem_new();
    struct kv_batch *batch = kv_batch_new();
    uint8_t key[8] = { 0, 0, 0, 0, 0, 0, 0, MVCC_ROOT_INO };
    struct snapshot_info info;

    (void)state;
    fill(kv, "new", 9);
    kv_batch_remove(batch, KV_DIRS, keel_slice_of(key, sizeof key));
    assert_int_equal(kv->ops->write(kv, batch), 0);
    kv_batch_free(batch);
    struct keel_buf *stream = help_snapshot(kv, &info);

    write_bytes("snapshot", keel_buf_slice(stream));
    keel_buf_free(stream);
    kv->ops->close(kv);
    assert_refused(KEEL_E_CORRUPT, "directories");
}

static void assert_not_recovered(int err, const char *text)
{
    char why[512] = "";
    uint64_t index = 1, term = 1;

    assert_int_equal(store_install_recover(map_bytes, &index, &term, why, sizeof why), err);
    if (strstr(why, text) == NULL)
        fail_msg("'%s' is not in '%s'", text, why);
    assert_int_equal(index, 0);
}

static void a_damaged_manifest_is_told_with_what_to_do(void **state)
{
    uint8_t bytes[1024];
    char why[512] = "";

    (void)state;
    must(build(why, sizeof why), why);
    size_t len = read_bytes("install", bytes, sizeof bytes);

    for (size_t bit = 0; bit < len * 8; bit++) {
        bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
        write_bytes("install", keel_slice_of(bytes, len));
        assert_not_recovered(KEEL_E_CORRUPT, "restore the data directory");
        bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    write_bytes("install", keel_slice_of(bytes, len - 1));
    assert_not_recovered(KEEL_E_CORRUPT, "restore the data directory");
    write_bytes("install", keel_slice_of(bytes, 0));
    assert_not_recovered(KEEL_E_CORRUPT, "restore the data directory");
    assert_store("store", "old", 3);
    write_bytes("install", keel_slice_of(bytes, len));
    assert_int_equal(recover(), 9);
}

static void a_newer_manifest_is_refused_as_newer(void **state)
{
    static const char text[] = "keelfs install 2\nwhatever\n";
    char manifest[128];

    (void)state;
    snprintf(manifest, sizeof manifest, "%schecksum=%016llx\n", text,
             (unsigned long long)keel_hash64(keel_slice_str(text)));
    write_bytes("install", keel_slice_str(manifest));
    assert_not_recovered(KEEL_E_NEWER, "newer");
    assert_store("store", "old", 3);
}

/* All versions to come have to read it. That store is not there. */
static void a_manifest_of_version_1_stays_readable(void **state)
{
    uint64_t index, term;
    const char *store;
    char why[512] = "";

    (void)state;
    write_bytes("install", keel_slice_str("keelfs install 1\n"
                                          "index=1234\n"
                                          "term=5\n"
                                          "hash=0123456789abcdeffedcba9876543210\n"
                                          "checksum=3f8e7404c287608e\n"));
    assert_int_equal(store_install_peek(&store, &index, &term, why, sizeof why), KEEL_E_CORRUPT);
    assert_non_null(strstr(why, "the store that was made of it is not there"));
}

static void a_manifest_without_its_store_is_told_with_what_to_do(void **state)
{
    char why[512] = "";

    (void)state;
    must(build(why, sizeof why), why);
    assert_int_equal(unlink("store.new/installed"), 0);
    assert_not_recovered(KEEL_E_CORRUPT, "restore the data directory");
    assert_store("store", "old", 3);
}

static void a_store_that_is_behind_its_manifest_is_told(void **state)
{
    uint8_t bytes[1024];
    char why[512] = "";

    (void)state;
    must(build(why, sizeof why), why);
    size_t len = read_bytes("install", bytes, sizeof bytes);

    write_bytes("store/installed", keel_slice_of(bytes, len));
    assert_not_recovered(KEEL_E_CORRUPT, "restore the data directory");
}

static void a_directory_without_a_store_has_nothing_to_recover(void **state)
{
    (void)state;
    remove_tree("store");
    assert_int_equal(recover(), 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(an_installed_store_is_the_one_of_the_snapshot),
        TEST(until_the_exchange_the_old_store_is_in_its_place),
        TEST(whoever_has_the_old_store_open_goes_on_with_it),
        TEST(files_and_directories_are_for_the_owner_alone),
        TEST(a_process_killed_at_any_step_leaves_one_store_or_the_other),
        TEST(at_any_step_a_look_finds_what_a_start_would),
        TEST(a_look_at_no_store_makes_none),
        TEST(a_recovery_may_be_killed_too),
        TEST(what_the_new_store_has_got_since_is_kept),
        TEST(another_snapshot_can_be_installed_later),
        TEST(a_snapshot_with_a_flipped_bit_is_refused_and_nothing_is_left_of_it),
        TEST(a_snapshot_of_another_cluster_is_refused),
        TEST(a_snapshot_that_does_not_open_as_a_store_is_refused),
        TEST(a_damaged_manifest_is_told_with_what_to_do),
        TEST(a_newer_manifest_is_refused_as_newer),
        TEST(a_manifest_of_version_1_stays_readable),
        TEST(a_manifest_without_its_store_is_told_with_what_to_do),
        TEST(a_store_that_is_behind_its_manifest_is_told),
        TEST(a_directory_without_a_store_has_nothing_to_recover),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
