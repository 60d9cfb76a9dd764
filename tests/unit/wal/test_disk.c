/* Both disks do what disk.h says: the real one in a temporary directory, and the memory one, whose
 * crashes keep what was synced. */
#include "fixture.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "check.h"
#include "err.h"
#include "rng.h"

/* ---- what holds for both ---- */

static int note_name(void *arg, const char *name)
{
    char *names = arg;

    strcat(names, name);
    strcat(names, ";");
    return 0;
}

static int stop_at_once(void *arg, const char *name)
{
    (void)name;
    return ++*(int *)arg;
}

static void check_names(struct disk *d)
{
    struct disk_file *f;
    char names[100] = "";
    int calls = 0;

    assert_int_equal(d->ops->open(d, "a", 0, &f), KEEL_E_NOTFOUND);
    assert_int_equal(d->ops->open(d, "a", 1, &f), 0);
    d->ops->close(f);
    assert_int_equal(d->ops->open(d, "a", 1, &f), KEEL_E_IO);
    assert_int_equal(d->ops->rename(d, "a", "b"), 0);
    assert_int_equal(d->ops->rename(d, "a", "b"), KEEL_E_NOTFOUND);
    assert_int_equal(d->ops->sync_dir(d), 0);
    assert_int_equal(d->ops->list(d, note_name, names), 0);
    assert_string_equal(names, "b;");
    assert_int_equal(d->ops->list(d, stop_at_once, &calls), 1);
    assert_int_equal(d->ops->remove(d, "b"), 0);
    assert_int_equal(d->ops->remove(d, "b"), KEEL_E_NOTFOUND);
    calls = 0;
    assert_int_equal(d->ops->list(d, stop_at_once, &calls), 0);
}

static void check_content(struct disk *d)
{
    struct iovec iov[3] = { { (void *)"abc", 3 }, { (void *)"", 0 }, { (void *)"defg", 4 } };
    struct disk_file *f;
    char got[16];

    assert_int_equal(d->ops->open(d, "file", 1, &f), 0);
    assert_int_equal(d->ops->write(f, 5, iov, 3), 0);
    assert_int_equal(d->ops->size(f), 12);
    assert_int_equal(d->ops->read(f, 0, got, sizeof got), 12);
    assert_memory_equal(got, "\0\0\0\0\0abcdefg", 12);
    assert_int_equal(d->ops->read(f, 6, got, 2), 2);
    assert_memory_equal(got, "bc", 2);
    assert_int_equal(d->ops->read(f, 12, got, 4), 0);
    assert_int_equal(d->ops->read(f, 100, got, 4), 0);
    assert_int_equal(d->ops->sync(f), 0);
    assert_int_equal(d->ops->truncate(f, 6), 0);
    assert_int_equal(d->ops->size(f), 6);
    assert_int_equal(d->ops->truncate(f, 8), 0);
    assert_int_equal(d->ops->read(f, 0, got, sizeof got), 8);
    assert_memory_equal(got, "\0\0\0\0\0a\0\0", 8);
    d->ops->close(f);
}

/* More pieces than one system call takes. */
static void check_many_pieces(struct disk *d)
{
    enum { PIECES = 2500 };
    struct iovec *iov = keel_calloc(PIECES, sizeof *iov);
    struct disk_file *f;
    uint8_t *got = keel_malloc(PIECES * 2);

    for (int i = 0; i < PIECES; i++)
        iov[i] = (struct iovec){ (void *)(i % 2 ? "xy" : "z"), i % 2 ? 2 : 1 };
    assert_int_equal(d->ops->open(d, "many", 1, &f), 0);
    assert_int_equal(d->ops->write(f, 0, iov, PIECES), 0);
    assert_int_equal(d->ops->size(f), PIECES / 2 * 3);
    assert_int_equal(d->ops->read(f, 0, got, PIECES * 2), PIECES / 2 * 3);
    for (int i = 0; i < PIECES / 2 * 3; i++)
        assert_int_equal(got[i], "zxy"[i % 3]);
    d->ops->close(f);
    free(got);
    free(iov);
}

/* ---- the memory disk ---- */

static void memory_disk_does_what_disk_h_says(void **state)
{
    struct disk *d = disk_mem_new(1);

    (void)state;
    check_names(d);
    check_content(d);
    check_many_pieces(d);
    assert_int_equal(disk_mem_counters(d).writes, 2);
    assert_int_equal(disk_mem_counters(d).renames, 2);
    d->ops->free(d);
}

static void write_byte(struct disk *d, struct disk_file *f, uint64_t offset, char c, size_t count)
{
    char *bytes = keel_malloc(count);
    struct iovec iov = { bytes, count };

    memset(bytes, c, count);
    assert_int_equal(d->ops->write(f, offset, &iov, 1), 0);
    free(bytes);
}

/* Of 4 KiB of b over synced a: which outcomes does a sector have over many seeds? */
static void crash_keeps_what_was_synced_and_does_its_worst_with_the_rest(void **state)
{
    bool kept = false, lost = false, torn = false, zeroed = false, file_lost = false;

    (void)state;
    for (uint64_t seed = 0; seed < 200; seed++) {
        struct disk *d = disk_mem_new(seed);
        struct disk_file *f, *g;

        assert_int_equal(d->ops->open(d, "f", 1, &f), 0);
        assert_int_equal(d->ops->sync_dir(d), 0);
        write_byte(d, f, 0, 'a', 8192);
        assert_int_equal(d->ops->sync(f), 0);
        write_byte(d, f, 100, 'b', 4096);
        assert_int_equal(d->ops->open(d, "g", 1, &g), 0);
        write_byte(d, g, 0, 'c', 100);
        assert_int_equal(d->ops->sync(g), 0);
        d->ops->close(f);
        d->ops->close(g);
        disk_mem_crash(d);

        struct keel_slice file = disk_mem_file(d, "f"), other = disk_mem_file(d, "g");

        assert_int_equal(file.len, 8192);
        for (size_t i = 0; i < file.len; i++)
            assert_true(file.data[i] == 'a' ||
                        (i >= 100 && i < 4196 && (file.data[i] == 'b' || file.data[i] == 0)));
        for (size_t sector = 512; sector < 4096; sector += 512) {
            uint8_t head = file.data[sector], tail = file.data[sector + 511];

            kept |= head == 'b' && tail == 'b';
            lost |= head == 'a' && tail == 'a';
            torn |= head != tail;
            zeroed |= head == 0 && tail == 0;
        }
        assert_true(other.data == NULL || (other.len == 100 && other.data[99] == 'c'));
        file_lost |= other.data == NULL;
        d->ops->free(d);
    }
    assert_true(kept && lost && torn && zeroed && file_lost);
}

static void crash_without_sync_dir_may_undo_renames_and_removals(void **state)
{
    bool undone = false, done = false;

    (void)state;
    for (uint64_t seed = 0; seed < 100; seed++) {
        struct disk *d = disk_mem_new(seed);

        disk_mem_put(d, "a", keel_slice_str("1"));
        disk_mem_put(d, "b", keel_slice_str("2"));
        assert_int_equal(d->ops->rename(d, "a", "c"), 0);
        assert_int_equal(d->ops->remove(d, "b"), 0);
        disk_mem_crash(d);
        assert_true((disk_mem_file(d, "a").data == NULL) != (disk_mem_file(d, "c").data == NULL));
        undone |= disk_mem_file(d, "a").data != NULL && disk_mem_file(d, "b").data != NULL;
        done |= disk_mem_file(d, "c").data != NULL && disk_mem_file(d, "b").data == NULL;
        d->ops->free(d);
    }
    assert_true(undone && done);
}

static void same_seed_crashes_the_same_way(void **state)
{
    struct keel_buf *first = NULL;

    (void)state;
    for (int run = 0; run < 2; run++) {
        struct disk *d = disk_mem_new(77);
        struct disk_file *f;

        disk_mem_put(d, "f", keel_slice_str("base"));
        assert_int_equal(d->ops->open(d, "f", 0, &f), 0);
        for (char c = 'a'; c < 'z'; c++)
            write_byte(d, f, (uint64_t)(c - 'a') * 700, c, 1500);
        d->ops->close(f);
        disk_mem_crash(d);
        if (run == 0)
            first = keel_buf_copy(disk_mem_file(d, "f"));
        else
            assert_true(keel_slice_equal(keel_buf_slice(first), disk_mem_file(d, "f")));
        d->ops->free(d);
    }
    keel_buf_free(first);
}

static void faults_strike_the_call_they_were_meant_for(void **state)
{
    struct disk *d = disk_mem_new(5);
    struct iovec iov = { (void *)"x", 1 };
    struct disk_file *f;

    (void)state;
    assert_int_equal(d->ops->open(d, "f", 1, &f), 0);
    disk_mem_fail_write(d, 2, KEEL_E_DISKFULL);
    disk_mem_fail_sync(d, 1, KEEL_E_IO);
    assert_int_equal(d->ops->write(f, 0, &iov, 1), 0);
    assert_int_equal(d->ops->write(f, 0, &iov, 1), KEEL_E_DISKFULL);
    assert_int_equal(d->ops->write(f, 0, &iov, 1), 0);
    assert_int_equal(d->ops->sync(f), KEEL_E_IO);
    assert_int_equal(d->ops->sync(f), 0);
    disk_mem_cut(d, 2);
    assert_int_equal(d->ops->write(f, 0, &iov, 1), 0);
    assert_false(disk_mem_is_cut(d));
    assert_int_equal(d->ops->sync(f), KEEL_E_IO);
    assert_true(disk_mem_is_cut(d));
    assert_int_equal(d->ops->read(f, 0, &(char){ 0 }, 1), KEEL_E_IO);
    d->ops->close(f);
    disk_mem_crash(d);
    assert_false(disk_mem_is_cut(d));
    d->ops->free(d);
}

/* ---- the real disk ---- */

static int make_temp_dir(void **state)
{
    const char *base = getenv("TMPDIR");
    char *dir = keel_malloc(200);

    snprintf(dir, 200, "%s/keelfs-wal-XXXXXX", base != NULL ? base : "/tmp");
    if (mkdtemp(dir) == NULL)
        return -1;
    *state = dir;
    return 0;
}

static int remove_temp_dir(void **state)
{
    char path[300];
    struct disk *d;
    struct dirent *entry;
    DIR *dir;
    int errnum;

    snprintf(path, sizeof path, "%s/log", (char *)*state);
    if (disk_posix_open(path, &d, &errnum) == 0) {
        dir = opendir(path);
        while ((entry = readdir(dir)) != NULL)
            d->ops->remove(d, entry->d_name);
        closedir(dir);
        d->ops->free(d);
    }
    rmdir(path);
    rmdir(*state);
    free(*state);
    return 0;
}

static struct disk *open_disk(void **state)
{
    char path[300];
    struct disk *d;
    int errnum;

    snprintf(path, sizeof path, "%s/log", (char *)*state);
    assert_int_equal(disk_posix_open(path, &d, &errnum), 0);
    return d;
}

static void real_disk_does_what_disk_h_says(void **state)
{
    struct disk *d = open_disk(state);

    check_names(d);
    check_content(d);
    check_many_pieces(d);
    d->ops->free(d);
}

static void real_files_are_private_and_closed_on_exec(void **state)
{
    struct disk *d = open_disk(state);
    struct disk_file *f;
    struct stat st;
    char path[300];

    assert_int_equal(d->ops->open(d, "f", 1, &f), 0);
    snprintf(path, sizeof path, "%s/log", (char *)*state);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0700);
    snprintf(path, sizeof path, "%s/log/f", (char *)*state);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    for (int fd = 3; fd < 20; fd++) {
        struct stat opened;

        if (fstat(fd, &opened) == 0 && opened.st_ino == st.st_ino && opened.st_dev == st.st_dev)
            assert_true(fcntl(fd, F_GETFD) & FD_CLOEXEC);
    }
    d->ops->close(f);
    d->ops->free(d);
}

static void real_disk_says_why_a_directory_cannot_be_opened(void **state)
{
    char path[300];
    struct disk *d;
    int errnum = 0;

    snprintf(path, sizeof path, "%s/missing/log", (char *)*state);
    assert_int_equal(disk_posix_open(path, &d, &errnum), KEEL_E_NOTFOUND);
    assert_int_equal(errnum, ENOENT);
    assert_int_equal(disk_posix_open("/dev/null", &d, &errnum), KEEL_E_IO);
    assert_int_equal(errnum, ENOTDIR);
}

static void full_real_disk_is_told_apart(void **state)
{
    struct disk *d;
    struct disk_file *f;
    struct iovec iov = { (void *)"x", 1 };
    int errnum;

    (void)state;
    assert_int_equal(disk_posix_open("/dev", &d, &errnum), 0);
    assert_int_equal(d->ops->open(d, "full", 0, &f), 0);
    assert_int_equal(d->ops->write(f, 0, &iov, 1), KEEL_E_DISKFULL);
    d->ops->close(f);
    d->ops->free(d);
}

static void log_on_a_real_disk_comes_back(void **state)
{
    struct log log = { .disk = open_disk(state),
                       .options = { .cluster_id = TEST_CLUSTER,
                                    .node_id = TEST_NODE,
                                    .segment_bytes = 16384,
                                    .fill_bytes = 4096 } };
    uint64_t terms[120];
    bool more;

    assert_int_equal(log_open(&log), 0);
    assert_true(log.recovery.fresh);
    for (uint64_t i = 0; i < 120; i += 3) {
        log_append(&log, i + 1, 3, i);
        terms[i] = terms[i + 1] = terms[i + 2] = i;
        assert_int_equal(wal_prepare(log.wal, &more), 0);
    }
    assert_int_equal(wal_idle(log.wal), 0);
    assert_log_holds(&log, terms, 120);
    log_reopen(&log);
    assert_log_holds(&log, terms, 120);
    assert_int_equal(log.recovery.count, 120);
    assert_int_equal(wal_release(log.wal, 100, 0), 0);
    assert_true(log.wal->oldest_epoch > 1);
    log.options.store_applied = 100;
    log_append(&log, 121, 30, 120);
    log_reopen(&log);
    assert_int_equal(log.recovery.count, 50);
    assert_true(log.recovery.first_index > 2 && log.recovery.first_index <= 102);
    for (size_t i = 0; i < log.recovery.count; i++)
        assert_entry(&log.recovery.entries[i], 101 + i, i < 20 ? terms[100 + i] : 120);
    log_end(&log);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_disk_does_what_disk_h_says),
        cmocka_unit_test(crash_keeps_what_was_synced_and_does_its_worst_with_the_rest),
        cmocka_unit_test(crash_without_sync_dir_may_undo_renames_and_removals),
        cmocka_unit_test(same_seed_crashes_the_same_way),
        cmocka_unit_test(faults_strike_the_call_they_were_meant_for),
        cmocka_unit_test_setup_teardown(real_disk_does_what_disk_h_says, make_temp_dir,
                                        remove_temp_dir),
        cmocka_unit_test_setup_teardown(real_files_are_private_and_closed_on_exec, make_temp_dir,
                                        remove_temp_dir),
        cmocka_unit_test_setup_teardown(real_disk_says_why_a_directory_cannot_be_opened,
                                        make_temp_dir, remove_temp_dir),
        cmocka_unit_test(full_real_disk_is_told_apart),
        cmocka_unit_test_setup_teardown(log_on_a_real_disk_comes_back, make_temp_dir,
                                        remove_temp_dir),
    };

    return cmocka_run_group_tests_name("disk", tests, NULL, NULL);
}
