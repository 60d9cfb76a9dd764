/* What is read out of /proc: callers, and what is mounted where. */
#include "unit.h"

#include <fcntl.h>
#include <string.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "fs/proc.h"
#include "mountinfo.h"

static void only_sigkill_pending_for_the_thread_is_fatal(void **state)
{
    (void)state;
    assert_true(proc_parse_kill_pending("Name:\tcat\nSigPnd:\t0000000000000100\nShdPnd:\t0\n"));
    assert_true(proc_parse_kill_pending("SigPnd:\t0000000000004102\n"));
    assert_false(proc_parse_kill_pending("SigPnd:\t0000000000000002\nShdPnd:\t0100\n"));
    assert_false(proc_parse_kill_pending("Name:\tx\n"));
    assert_false(proc_parse_kill_pending(""));
}

static void exit_code_of_a_signal_means_killed(void **state)
{
    (void)state;
    assert_true(proc_parse_killed("12 (a b) R 1 2 0 0 9\n"));
    assert_true(proc_parse_killed("12 (x) 139")); /* with a core dump */
    assert_false(proc_parse_killed("12 (a b) R 1 2 0 0 0\n"));
    assert_false(proc_parse_killed("12 (a b) R 1 2 0 0 256\n")); /* exit(1) */
    assert_false(proc_parse_killed("garbage"));
}

static void group_is_found_between_other_lines(void **state)
{
    (void)state;
    assert_int_equal(proc_parse_group("Name:\tTgid: 9\nTgid:\t4711\nNgid:\t0\n"), 4711);
    assert_int_equal(proc_parse_group("Name:\tx\n"), 0);
}

static void own_process_is_alive_and_in_its_group(void **state)
{
    (void)state;
    assert_false(proc_kill_pending(getpid()));
    assert_false(proc_killed(getpid()));
    assert_int_equal(proc_group(getpid()), getpid());
    assert_int_equal(proc_group(0), 0);
}

static void a_process_with_a_child_is_not_childless(void **state)
{
    int gate[2];
    char byte;

    (void)state;
    assert_int_equal(pipe(gate), 0);
    assert_true(proc_childless(getpid()));

    pid_t child = fork();

    if (child == 0) {
        close(gate[1]);
        _exit(read(gate[0], &byte, 1) == 0 ? 0 : 1);
    }
    assert_false(proc_childless(getpid()));
    close(gate[0]);
    close(gate[1]);
    assert_int_equal(waitpid(child, NULL, 0), child);
    assert_true(proc_childless(getpid()));
    assert_false(proc_childless(0));
}

static bool own_descriptor(const char *mount_point, const char *path)
{
    return proc_holds(getpid(), keel_slice_str(mount_point), keel_slice_str(path));
}

static void descriptors_are_told_by_their_links(void **state)
{
    int fd = open("/proc/self/mountinfo", O_RDONLY | O_CLOEXEC);

    (void)state;
    assert_true(fd >= 0);
    assert_true(own_descriptor("/mnt", "a/mountinfo"));
    assert_false(own_descriptor("/mnt", "a/ountinfo"));
    assert_false(own_descriptor("/proc", "mountinfo")); /* it is in /proc/PID */
    close(fd);
    assert_false(own_descriptor("/mnt", "a/mountinfo"));
    assert_true(proc_holds(0, keel_slice_str("/mnt"), keel_slice_str("f"))); /* unknown */
}

static bool link_is(const char *link, const char *path)
{
    return proc_link_is(keel_slice_str(link), keel_slice_str("/mnt"), keel_slice_str(path));
}

static void link_below_the_mount_point_must_be_the_path_itself(void **state)
{
    (void)state;
    assert_true(link_is("/mnt/a/f", "a/f"));
    assert_false(link_is("/mnt/b/f", "a/f"));
    assert_false(link_is("/mnt/a/f", "f"));
    assert_false(link_is("/mnt/b/a/f", "a/f"));
    assert_true(link_is("/mnt/f", "f"));
    assert_true(link_is("/bind/f", "a/f"));
    assert_true(link_is("/mnt2/f", "a/f"));
    assert_false(link_is("/bind/g", "a/f"));
    assert_false(link_is("pipe:[1]", "f"));
    assert_false(link_is("/mnt/f (deleted)", "f"));
}

static bool find_in(const char *text, const char *mount_point, struct mountinfo *info)
{
    FILE *table = fmemopen((char *)(uintptr_t)text, strlen(text), "r");
    bool found;

    assert_non_null(table);
    found = mountinfo_find(table, mount_point, info);
    fclose(table);
    return found;
}

static void topmost_mount_is_found_with_its_device_and_source(void **state)
{
    static const char table[] =
        "22 1 254:1 / / rw - ext4 /dev/root rw\n"
        "40 22 0:38 / /mnt/a\\040b rw,nosuid shared:1 master:2 - fuse.keelfs keelfs:old/n1 rw\n"
        "41 40 0:39 / /mnt/a\\040b rw,nosuid - fuse.keelfs keelfs:c\\040d/n1 rw,user_id=0\n"
        "42 22 0:40 / /mnt/other rw - tmpfs none rw\n";
    struct mountinfo info;

    (void)state;
    assert_true(find_in(table, "/mnt/a b", &info));
    assert_int_equal(minor(info.dev), 39);
    assert_int_equal(info.id, 41);
    assert_string_equal(info.point, "/mnt/a b");
    assert_string_equal(info.source, "keelfs:c d/n1");
    assert_true(find_in(table, "/mnt/other", &info));
    assert_string_equal(info.source, "none");
    assert_false(find_in(table, "/mnt", &info));
}

static void lines_that_are_no_mounts_are_passed_over(void **state)
{
    struct mountinfo info;

    (void)state;
    assert_false(find_in("\n", "/m", &info));
    assert_false(find_in("1 2 3:4 / /m rw\n", "/m", &info));
    assert_false(find_in("1 2 x / /m rw - t s rw\n", "/m", &info));
    assert_false(find_in("1 2 3:4 / /m rw - t\n", "/m", &info));
}

static int stop_at_forty_one(void *arg, const struct mountinfo *info)
{
    (*(int *)arg)++;
    return info->id == 41 ? -7 : 0;
}

static void walk_through_the_mounts_ends_at_the_first_result(void **state)
{
    static char text[] = "40 1 0:1 / /a rw - t s rw\n41 1 0:2 / /b rw - t s rw\n"
                         "42 1 0:3 / /c rw - t s rw\n";
    FILE *table = fmemopen(text, sizeof text - 1, "r");
    int calls = 0;

    (void)state;
    assert_non_null(table);
    assert_int_equal(mountinfo_each(table, stop_at_forty_one, &calls), -7);
    assert_int_equal(calls, 2);
    fclose(table);
}

static void escapes_that_are_not_octal_stay(void **state)
{
    struct mountinfo info;

    (void)state;
    assert_true(find_in("1 2 3:4 / /m\\089 rw - t s rw\n", "/m\\089", &info));
    assert_true(find_in("1 2 3:4 / /m\\134x rw - t s rw\n", "/m\\x", &info));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(only_sigkill_pending_for_the_thread_is_fatal),
        cmocka_unit_test(exit_code_of_a_signal_means_killed),
        cmocka_unit_test(group_is_found_between_other_lines),
        cmocka_unit_test(own_process_is_alive_and_in_its_group),
        cmocka_unit_test(a_process_with_a_child_is_not_childless),
        cmocka_unit_test(descriptors_are_told_by_their_links),
        cmocka_unit_test(link_below_the_mount_point_must_be_the_path_itself),
        cmocka_unit_test(topmost_mount_is_found_with_its_device_and_source),
        cmocka_unit_test(walk_through_the_mounts_ends_at_the_first_result),
        cmocka_unit_test(escapes_that_are_not_octal_stay),
        cmocka_unit_test(lines_that_are_no_mounts_are_passed_over),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
