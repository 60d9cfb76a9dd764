/* The poker on a real FUSE mount: what a watcher sees of remote changes, against what it sees of
 * the same changes made locally in an ordinary directory. Needs root and /dev/fuse. All mounts are
 * in a mount namespace of this process. */
#include "unit.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "buf.h"
#include "fs/poker.h"
#include "rng.h"
#include "tree.h"

enum { PATIENCE_MS = 20000 };

static char base[64], mount_point[80], local[80];
static int control = -1;
static pid_t daemon_pid;

/* ---- the two sides ---- */

static struct tree_reply ask(enum tree_command command, const char *path, const char *path2,
                             uint64_t size)
{
    struct tree_order order = { .command = command, .size = size };
    struct tree_reply reply;

    snprintf(order.path, sizeof order.path, "%s", path ? path : "");
    snprintf(order.path2, sizeof order.path2, "%s", path2 ? path2 : "");
    assert_int_equal(send(control, &order, sizeof order, MSG_NOSIGNAL), sizeof order);
    assert_int_equal(recv(control, &reply, sizeof reply, 0), sizeof reply);
    return reply;
}

static void remote(enum tree_command command, const char *path, const char *path2, uint64_t size)
{
    assert_true(ask(command, path, path2, size).ok);
}

static struct tree_reply stats(void)
{
    return ask(TREE_STATS, NULL, NULL, 0);
}

/* Waits until a condition of the statistics holds. */
static struct tree_reply await(bool (*holds)(const struct tree_reply *r, uint64_t arg),
                               uint64_t arg)
{
    struct tree_reply r = stats();

    for (int ms = 0; ms < PATIENCE_MS && !holds(&r, arg); ms++) {
        poll(NULL, 0, 1);
        r = stats();
    }
    assert_true(holds(&r, arg));
    return r;
}

static bool is_idle(const struct tree_reply *r, uint64_t arg)
{
    (void)arg;
    return r->queued == 0;
}

static bool is_sighted(const struct tree_reply *r, uint64_t arg)
{
    (void)arg;
    return r->sighted;
}

static bool has_restarted(const struct tree_reply *r, uint64_t times)
{
    return r->restarts == times && r->poker != 0;
}

static void in(char *path, size_t size, const char *dir, const char *name)
{
    snprintf(path, size, "%s/%s", dir, name);
}

static void local_write(const char *path, int flags, uint64_t size)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC | flags, 0644);

    assert_true(fd >= 0);
    if (size > 0)
        assert_int_equal(write(fd, "0123456789", size), size);
    close(fd);
}

/* The same change, by a local program, in the ordinary directory. */
static void locally(enum tree_command command, const char *name, const char *name2, uint64_t size)
{
    char path[160], path2[160];
    int error = 0;

    in(path, sizeof path, local, name);
    in(path2, sizeof path2, local, name2 ? name2 : "");
    switch (command) {
    case TREE_CREATE:
        local_write(path, O_CREAT | O_EXCL, size);
        break;
    case TREE_CONTENT:
        local_write(path, 0, size);
        break;
    case TREE_MKDIR:
        error = mkdir(path, 0755);
        break;
    case TREE_SYMLINK:
        error = symlink("-", path);
        break;
    case TREE_ATTR:
        error = utimensat(AT_FDCWD, path, NULL, AT_SYMLINK_NOFOLLOW);
        break;
    case TREE_REMOVE:
        error = unlink(path);
        break;
    case TREE_RMDIR:
        error = rmdir(path);
        break;
    case TREE_RENAME:
        error = rename(path, path2);
        break;
    case TREE_BUSY:
    case TREE_IDLE:
    case TREE_POSE:
    case TREE_HOARD:
    case TREE_STATS:
    case TREE_CLOSE_POKER:
    case TREE_QUIT:
        fail();
    }
    assert_int_equal(error, 0);
}

static void both(enum tree_command command, const char *name, const char *name2, uint64_t size)
{
    locally(command, name, name2, size);
    remote(command, name, name2, size);
}

/* ---- watching ---- */

static void watch(int fd, const char *dir, const char *name)
{
    char path[160];

    in(path, sizeof path, dir, name);
    assert_true(inotify_add_watch(fd, path, IN_ALL_EVENTS | IN_DONT_FOLLOW) > 0);
}

static void event_line(struct keel_text *text, const struct inotify_event *event, uint32_t *cookie,
                       int *cookies)
{
    static const char *const names[] = { "ACCESS", "MODIFY",  "ATTRIB",      "CLOSE_WRITE",
                                         "CLOSE",  "OPEN",    "MOVED_FROM",  "MOVED_TO",
                                         "CREATE", "DELETE",  "DELETE_SELF", "MOVE_SELF",
                                         NULL,     "UNMOUNT", "OVERFLOW",    "IGNORED" };

    keel_text_printf(text, "%d %s", event->wd, event->len ? event->name : "-");
    for (unsigned bit = 0; bit < 16; bit++)
        if ((event->mask & 1U << bit) && names[bit])
            keel_text_printf(text, " %s", names[bit]);
    if (event->mask & IN_ISDIR)
        keel_text_printf(text, " ISDIR");
    if (event->cookie != 0) {
        *cookies += event->cookie != *cookie;
        *cookie = event->cookie;
        keel_text_printf(text, " #%d", *cookies);
    }
    keel_text_printf(text, "\n");
}

/* What has been raised so far, as lines; cookies are numbered. Free it. */
static char *events(int fd)
{
    _Alignas(struct inotify_event) char buffer[65536];
    struct keel_text text = { 0 };
    uint32_t cookie = 0;
    int cookies = 0;
    ssize_t len;

    keel_text_printf(&text, "%s", "");
    while ((len = read(fd, buffer, sizeof buffer)) > 0)
        for (ssize_t at = 0; at < len;) {
            const struct inotify_event *event = (const void *)(buffer + at);

            event_line(&text, event, &cookie, &cookies);
            at += (ssize_t)(sizeof *event + event->len);
        }
    assert_int_equal(errno, EAGAIN);
    return text.data;
}

static int watcher(void)
{
    int fd = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);

    assert_true(fd >= 0);
    return fd;
}

static void assert_same_events(int local_fd, int remote_fd)
{
    char *expected = events(local_fd), *seen = events(remote_fd);

    assert_string_equal(seen, expected);
    assert_true(strlen(expected) > 0);
    free(expected);
    free(seen);
    close(local_fd);
    close(remote_fd);
}

/* ---- set-up ---- */

static int start(void **state)
{
    int pair[2];
    struct tree_reply ready;

    (void)state;
    snprintf(base, sizeof base, "/tmp/keel-poker.XXXXXX");
    if (!mkdtemp(base))
        return -1;
    snprintf(mount_point, sizeof mount_point, "%s/mnt", base);
    snprintf(local, sizeof local, "%s/local", base);
    if (mkdir(mount_point, 0755) || mkdir(local, 0755) || mount("none", local, "tmpfs", 0, NULL) ||
        socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair))
        return -1;
    daemon_pid = fork();
    if (daemon_pid == 0) {
        close(pair[0]);
        tree_serve(mount_point, pair[1]);
    }
    close(pair[1]);
    control = pair[0];
    if (recv(control, &ready, sizeof ready, 0) != sizeof ready)
        return -1;
    await(is_sighted, 0);
    both(TREE_MKDIR, "d", NULL, 0);
    both(TREE_MKDIR, "e", NULL, 0);
    await(is_idle, 0);
    return 0;
}

static int stop(void **state)
{
    int status;

    (void)state;
    if (control >= 0) {
        struct tree_order quit = { .command = TREE_QUIT };

        send(control, &quit, sizeof quit, MSG_NOSIGNAL);
        waitpid(daemon_pid, &status, 0);
        close(control);
        control = -1;
        if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
            return -1;
    }
    umount2(mount_point, MNT_DETACH);
    umount2(local, MNT_DETACH);
    rmdir(mount_point);
    rmdir(local);
    return rmdir(base);
}

/* ---- the table ---- */

struct row {
    const char *title;
    enum tree_command before, command;
    const char *before_name, *before_name2; /* what `before` makes; NULL: nothing */
    const char *name, *name2;
    uint64_t size;
    const char *object, *object2; /* watched beside the directories; NULL: nothing */
};

static const struct row rows[] = {
    { "create", 0, TREE_CREATE, NULL, NULL, "d/f", NULL, 0, NULL, NULL },
    { "create with content", 0, TREE_CREATE, NULL, NULL, "d/f", NULL, 5, NULL, NULL },
    { "overwrite", TREE_CREATE, TREE_CONTENT, "d/f", NULL, "d/f", NULL, 5, "d/f", NULL },
    { "unlink", TREE_CREATE, TREE_REMOVE, "d/f", NULL, "d/f", NULL, 0, "d/f", NULL },
    { "unlink, unwatched", TREE_CREATE, TREE_REMOVE, "d/f", NULL, "d/f", NULL, 0, NULL, NULL },
    { "mkdir", 0, TREE_MKDIR, NULL, NULL, "d/s", NULL, 0, NULL, NULL },
    { "rmdir", TREE_MKDIR, TREE_RMDIR, "d/s", NULL, "d/s", NULL, 0, "d/s", NULL },
    { "rename", TREE_CREATE, TREE_RENAME, "d/f", NULL, "d/f", "d/g", 0, "d/f", NULL },
    { "rename across", TREE_CREATE, TREE_RENAME, "d/f", NULL, "d/f", "e/f", 0, "d/f", NULL },
    { "rename over", TREE_CREATE, TREE_RENAME, "d/f", "d/g", "d/f", "d/g", 0, "d/f", "d/g" },
    { "attributes", TREE_CREATE, TREE_ATTR, "d/f", NULL, "d/f", NULL, 0, "d/f", NULL },
    { "directory's attributes", TREE_MKDIR, TREE_ATTR, "d/s", NULL, "d/s", NULL, 0, "d/s", NULL },
    { "link's attributes", TREE_SYMLINK, TREE_ATTR, "d/l", NULL, "d/l", NULL, 0, "d/l", NULL },
    { "symlink", 0, TREE_SYMLINK, NULL, NULL, "d/l", NULL, 0, NULL, NULL },
};

static void watch_row(int fd, const char *dir, const struct row *row)
{
    watch(fd, dir, "d");
    watch(fd, dir, "e");
    if (row->object)
        watch(fd, dir, row->object);
    if (row->object2)
        watch(fd, dir, row->object2);
}

/* The next row finds empty directories. */
static void clear_row(const struct row *row)
{
    const char *left = row->name2 ? row->name2 : row->name;
    struct stat st;
    char path[160];

    in(path, sizeof path, local, left);
    if (lstat(path, &st) == 0)
        both(S_ISDIR(st.st_mode) ? TREE_RMDIR : TREE_REMOVE, left, NULL, 0);
    await(is_idle, 0);
}

static void run_row(const struct row *row)
{
    int here = watcher(), there = watcher();

    print_message("# %s\n", row->title);
    if (row->before_name)
        both(row->before, row->before_name, NULL, 3);
    if (row->before_name2)
        both(row->before, row->before_name2, NULL, 3);
    await(is_idle, 0);
    watch_row(here, local, row);
    watch_row(there, mount_point, row);
    both(row->command, row->name, row->name2, row->size);
    await(is_idle, 0);
    assert_same_events(here, there);
    clear_row(row);
}

static void remote_changes_raise_the_events_of_local_ones(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        run_row(&rows[i]);
    assert_int_equal(stats().dropped, 0);
}

/* ---- order ---- */

static const char *const random_names[] = {
    "d/0", "d/1", "d/2", "d/3", "e/0", "e/1", "e/2", "e/3"
};

enum { RANDOM_NAMES = sizeof random_names / sizeof random_names[0] };

/* Content is left out, since waiting ones become one. */
static void random_change(struct keel_rng *rng, bool *exists)
{
    size_t name = keel_rng_below(rng, RANDOM_NAMES), name2 = keel_rng_below(rng, RANDOM_NAMES);

    if (!exists[name]) {
        both(TREE_CREATE, random_names[name], NULL, keel_rng_below(rng, 2) * 4);
        exists[name] = true;
    } else if (keel_rng_below(rng, 3) == 0) {
        both(TREE_REMOVE, random_names[name], NULL, 0);
        exists[name] = false;
    } else if (name == name2) {
        both(TREE_ATTR, random_names[name], NULL, 0);
    } else {
        both(TREE_RENAME, random_names[name], random_names[name2], 0);
        exists[name] = false;
        exists[name2] = true;
    }
}

static void watch_both(int here, int there, const char *name)
{
    watch(here, local, name);
    watch(there, mount_point, name);
}

/* Compares the events of many changes in both directories; leaves these empty. */
static void run_random_changes(uint64_t seed)
{
    bool exists[RANDOM_NAMES] = { false };
    int here = watcher(), there = watcher();
    struct keel_rng rng;

    keel_rng_seed(&rng, seed);
    watch_both(here, there, "d");
    watch_both(here, there, "e");
    for (int i = 0; i < 1000; i++)
        random_change(&rng, exists);
    assert_int_equal(await(is_idle, 0).dropped, 0);
    assert_same_events(here, there);
    for (size_t i = 0; i < RANDOM_NAMES; i++)
        if (exists[i])
            both(TREE_REMOVE, random_names[i], NULL, 0);
    await(is_idle, 0);
}

static void a_thousand_changes_arrive_in_their_order(void **state)
{
    (void)state;
    run_random_changes(20261129);
}

/* Ends with the test's process at the latest. */
_Noreturn static void look_for_ever(void)
{
    char path[160];
    struct stat st;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (size_t i = 0;; i++) {
        in(path, sizeof path, mount_point, random_names[i % RANDOM_NAMES]);
        stat(path, &st);
    }
}

/* Its look-ups are answered from the present, the poker's from the past: the kernel's picture of
 * the names changes to and fro. */
static void a_thousand_changes_arrive_while_somebody_looks(void **state)
{
    pid_t looking = fork();

    (void)state;
    if (looking == 0)
        look_for_ever();
    run_random_changes(20261130);
    assert_int_equal(kill(looking, SIGKILL), 0);
    assert_int_equal(waitpid(looking, NULL, 0), looking);
}

/* With the way to a directory gone from the kernel's memory, and from the state too. */
static void a_watched_file_in_a_directory_that_is_gone_already_is_reported(void **state)
{
    int here = watcher(), there = watcher();

    (void)state;
    both(TREE_MKDIR, "d/s", NULL, 0);
    both(TREE_CREATE, "d/s/f", NULL, 0);
    await(is_idle, 0);
    watch_both(here, there, "d/s/f");
    remote(TREE_BUSY, "d/s", NULL, 0);
    both(TREE_REMOVE, "d/s/f", NULL, 0);
    both(TREE_RMDIR, "d/s", NULL, 0);
    both(TREE_MKDIR, "d/s", NULL, 0);
    int drop = open("/proc/sys/vm/drop_caches", O_WRONLY | O_CLOEXEC);

    assert_int_equal(write(drop, "2", 1), 1);
    close(drop);
    assert_true(stats().queued > 0);
    struct tree_reply before = stats();

    remote(TREE_IDLE, NULL, NULL, 0);
    assert_int_equal(await(is_idle, 0).dropped, before.dropped);
    assert_same_events(here, there);
    both(TREE_RMDIR, "d/s", NULL, 0);
    await(is_idle, 0);
}

/* ---- beside local operations ---- */

static void a_ticket_waits_for_its_directory_and_others_overtake_it(void **state)
{
    int fd = watcher();

    (void)state;
    watch(fd, mount_point, "d");
    watch(fd, mount_point, "e");
    remote(TREE_BUSY, "d", NULL, 0);
    remote(TREE_SYMLINK, "d/l", NULL, 0);
    remote(TREE_SYMLINK, "e/l", NULL, 0);
    for (int ms = 0; ms < PATIENCE_MS && stats().queued > 1; ms++)
        poll(NULL, 0, 1);
    remote(TREE_IDLE, NULL, NULL, 0);
    await(is_idle, 0);
    char *seen = events(fd);

    assert_string_equal(seen, "2 l CREATE\n1 l CREATE\n");
    free(seen);
    close(fd);
    remote(TREE_REMOVE, "d/l", NULL, 0);
    remote(TREE_REMOVE, "e/l", NULL, 0);
    await(is_idle, 0);
}

static void a_name_that_was_made_again_here_is_not_deleted(void **state)
{
    char path[160], *seen;
    struct stat st;
    int fd = watcher();

    (void)state;
    remote(TREE_CREATE, "d/f", NULL, 0);
    struct tree_reply before = await(is_idle, 0);

    remote(TREE_BUSY, "d", NULL, 0);
    remote(TREE_REMOVE, "d/f", NULL, 0);
    in(path, sizeof path, mount_point, "d/f");
    local_write(path, O_CREAT | O_EXCL, 0);
    watch(fd, mount_point, "d");
    remote(TREE_IDLE, NULL, NULL, 0);
    assert_int_equal(await(is_idle, 0).dropped, before.dropped + 1);
    seen = events(fd);
    assert_string_equal(seen, "");
    free(seen);
    close(fd);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(unlink(path), 0);
}

/* Both names of the rename: of the one that is no more true, the local operation has told. */
static void of_a_rename_that_is_half_undone_here_the_other_half_is_raised(void **state)
{
    char path[160], *seen;
    int fd = watcher();

    (void)state;
    remote(TREE_CREATE, "d/f", NULL, 0);
    await(is_idle, 0);
    remote(TREE_BUSY, "d", NULL, 0);
    remote(TREE_RENAME, "d/f", "d/g", 0);
    in(path, sizeof path, mount_point, "d/g");
    assert_int_equal(unlink(path), 0);
    watch(fd, mount_point, "d");
    remote(TREE_IDLE, NULL, NULL, 0);
    await(is_idle, 0);
    seen = events(fd);
    assert_string_equal(seen, "1 f DELETE\n");
    free(seen);

    remote(TREE_CREATE, "d/f", NULL, 0);
    await(is_idle, 0);
    remote(TREE_BUSY, "d", NULL, 0);
    remote(TREE_RENAME, "d/f", "d/g", 0);
    in(path, sizeof path, mount_point, "d/f");
    local_write(path, O_CREAT | O_EXCL, 0);
    free(events(fd));
    remote(TREE_IDLE, NULL, NULL, 0);
    await(is_idle, 0);
    seen = events(fd);
    assert_string_equal(seen, "1 g CREATE\n1 g OPEN\n1 g CLOSE_WRITE\n");
    free(seen);
    close(fd);
    remote(TREE_REMOVE, "d/f", NULL, 0);
    remote(TREE_REMOVE, "d/g", NULL, 0);
    await(is_idle, 0);
}

static void nobody_gets_more_from_the_poker_s_place_than_the_ticket(void **state)
{
    char path[160];
    struct stat st;

    (void)state;
    remote(TREE_CREATE, "d/f", NULL, 0);
    await(is_idle, 0);
    remote(TREE_POSE, NULL, NULL, (uint64_t)getpid());
    in(path, sizeof path, mount_point, "d/f");
    assert_int_equal(unlink(path), -1);
    assert_int_equal(errno, EPERM);
    in(path, sizeof path, mount_point, "d/g");
    assert_int_equal(open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0644), -1);
    assert_int_equal(errno, EPERM);
    assert_int_equal(mkdir(path, 0755), -1);
    assert_int_equal(errno, EPERM);
    remote(TREE_POSE, NULL, NULL, 0);
    assert_int_equal(stat(path, &st), -1);
    in(path, sizeof path, mount_point, "d/f");
    assert_int_equal(stat(path, &st), 0);
    remote(TREE_REMOVE, "d/f", NULL, 0);
    await(is_idle, 0);
}

/* ---- safety ---- */

static void a_foreign_file_mounted_over_a_name_is_left_alone(void **state)
{
    char path[160], foreign[160];
    struct stat st;

    (void)state;
    in(foreign, sizeof foreign, local, "foreign");
    in(path, sizeof path, mount_point, "d/f");
    local_write(foreign, O_CREAT | O_EXCL, 7);
    remote(TREE_CREATE, "d/f", NULL, 0);
    struct tree_reply before = await(is_idle, 0);

    assert_int_equal(mount(foreign, path, NULL, MS_BIND, NULL), 0);
    remote(TREE_CONTENT, "d/f", NULL, 3);
    remote(TREE_ATTR, "d/f", NULL, 0);
    struct stat untouched;

    assert_int_equal(stat(foreign, &untouched), 0);
    assert_int_equal(await(is_idle, 0).dropped, before.dropped + 2);
    assert_int_equal(stat(foreign, &st), 0);
    assert_int_equal(st.st_size, 7);
    assert_int_equal(st.st_mtim.tv_nsec, untouched.st_mtim.tv_nsec);
    assert_int_equal(umount2(path, MNT_DETACH), 0);
    remote(TREE_REMOVE, "d/f", NULL, 0);
    assert_int_equal(unlink(foreign), 0);
    await(is_idle, 0);
}

/* The kernel forgets whatever it got from the poker's lookups when it drops its caches: our counts
 * are its counts. */
static void all_lookups_are_given_back(void **state)
{
    struct tree_reply r = stats();

    (void)state;
    for (int i = 0; i < 20; i++)
        remote(TREE_SYMLINK, "d/l", NULL, 0), remote(TREE_REMOVE, "d/l", NULL, 0);
    await(is_idle, 0);
    for (int ms = 0; ms < PATIENCE_MS && (r = stats()).lookups > 0; ms++) {
        int fd = open("/proc/sys/vm/drop_caches", O_WRONLY | O_CLOEXEC);

        assert_int_equal(write(fd, "2", 1), 1);
        close(fd);
        poll(NULL, 0, 1);
    }
    assert_int_equal(r.lookups, 0);
}

static void an_idle_poker_does_not_keep_the_mount_busy(void **state)
{
    struct tree_reply r = await(is_idle, 0);
    char path[64], link[160];

    (void)state;
    snprintf(path, sizeof path, "/proc/%d/cwd", (int)r.poker);
    for (int ms = 0; ms < PATIENCE_MS; ms++) {
        ssize_t len = readlink(path, link, sizeof link - 1);

        assert_true(len > 0);
        link[len] = '\0';
        if (strcmp(link, "/") == 0)
            break;
        poll(NULL, 0, 1);
    }
    assert_string_equal(link, "/");
}

/* ---- life and death ---- */

static void a_killed_poker_is_started_again_and_goes_on(void **state)
{
    struct tree_reply r = stats();
    int here = watcher(), there = watcher();

    (void)state;
    watch_both(here, there, "d");
    assert_int_equal(kill(r.poker, SIGKILL), 0);
    both(TREE_SYMLINK, "d/l", NULL, 0);
    await(has_restarted, r.restarts + 1);
    both(TREE_REMOVE, "d/l", NULL, 0);
    await(is_idle, 0);
    assert_same_events(here, there);
}

static bool process_is_gone(pid_t pid)
{
    return kill(pid, 0) < 0 && errno == ESRCH;
}

static void closing_ends_the_process(void **state)
{
    struct tree_reply r = stats();

    (void)state;
    assert_true(ask(TREE_CLOSE_POKER, NULL, NULL, 0).ok);
    assert_true(process_is_gone(r.poker));
}

static int start_again(void **state)
{
    return stop(state) || start(state);
}

/* A process that asks the mount for something; its exit code is the errno. */
static pid_t ask_mount(void)
{
    pid_t pid = fork();
    struct stat st;

    if (pid == 0)
        _exit(stat(mount_point, &st) < 0 ? errno : 0);
    return pid;
}

/* The daemon is killed while another process keeps its descriptors, so that the kernel doesn't end
 * the connection itself; one that waits in the mount then would wait for ever. */
static void a_dead_daemon_s_connection_is_aborted(void **state)
{
    struct tree_reply hoard = ask(TREE_HOARD, NULL, NULL, 0), r = stats();
    int status = 0;

    (void)state;
    assert_int_equal(kill(daemon_pid, SIGKILL), 0);
    assert_int_equal(waitpid(daemon_pid, &status, 0), daemon_pid);
    close(control);
    control = -1;
    pid_t asking = ask_mount(), ended = 0;

    for (int ms = 0; ms < PATIENCE_MS && !ended; ms++) {
        poll(NULL, 0, 1);
        ended = waitpid(asking, &status, WNOHANG);
    }
    kill(hoard.hoarder, SIGKILL);
    if (!ended)
        kill(asking, SIGKILL);
    assert_int_equal(ended, asking);
    assert_true(WEXITSTATUS(status) == ENOTCONN || WEXITSTATUS(status) == ECONNABORTED);
    for (int ms = 0; ms < PATIENCE_MS && !process_is_gone(r.poker); ms++)
        poll(NULL, 0, 1);
    assert_true(process_is_gone(r.poker));
}

/* ---- main ---- */

static bool can_run(void)
{
    if (geteuid() != 0 || access("/dev/fuse", R_OK | W_OK) != 0)
        return false;
    if (unshare(CLONE_NEWNS) != 0 || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0)
        return false;
    if (access("/sys/fs/fuse/connections", F_OK) == 0)
        mount("none", "/sys/fs/fuse/connections", "fusectl", 0, NULL);
    return true;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(remote_changes_raise_the_events_of_local_ones),
        cmocka_unit_test(a_thousand_changes_arrive_in_their_order),
        cmocka_unit_test(a_thousand_changes_arrive_while_somebody_looks),
        cmocka_unit_test(a_watched_file_in_a_directory_that_is_gone_already_is_reported),
        cmocka_unit_test(a_ticket_waits_for_its_directory_and_others_overtake_it),
        cmocka_unit_test(a_name_that_was_made_again_here_is_not_deleted),
        cmocka_unit_test(of_a_rename_that_is_half_undone_here_the_other_half_is_raised),
        cmocka_unit_test(nobody_gets_more_from_the_poker_s_place_than_the_ticket),
        cmocka_unit_test(a_foreign_file_mounted_over_a_name_is_left_alone),
        cmocka_unit_test(all_lookups_are_given_back),
        cmocka_unit_test(an_idle_poker_does_not_keep_the_mount_busy),
        cmocka_unit_test(a_killed_poker_is_started_again_and_goes_on),
        cmocka_unit_test(closing_ends_the_process),
        cmocka_unit_test_setup(a_dead_daemon_s_connection_is_aborted, start_again),
    };

    if (argc > 1 && strcmp(argv[1], "--poker") == 0)
        return poker_main(argc - 2, argv + 2);
    if (!can_run()) {
        printf("1..0 # SKIP needs root and /dev/fuse\n");
        return 0;
    }
    return cmocka_run_group_tests_name("poker", tests, start, stop);
}
