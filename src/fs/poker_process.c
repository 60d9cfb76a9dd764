/* The poker process: repeats changes as system calls on the mount, one after another. It knows no
 * state: what its calls find and do is the daemon's answer. It can change nothing outside the
 * mount: names are resolved below the mount's root without crossing mounts or following links, and
 * the device is checked before each change. */
#include "fs/poker.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/openat2.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "check.h"
#include "fs/poker_guard.h"
#include "fs/poker_wire.h"

enum {
    SOCKET = 0,
    LINGER_MS = 10,
    DIRS_MAX = 64,
    FUSE_HANDLE_INO64_GEN = 0x81,
    FUSE_HANDLE_BYTES = 12
};

struct poker_process {
    const char *mount_point;
    dev_t dev;
    int root; /* O_PATH, and the working directory; -1: not open, so that an idle poker doesn't keep
                 the mount busy */
    struct {
        uint64_t nodeid;
        int fd;
    } dirs[DIRS_MAX]; /* O_PATH, on the mount */
    size_t dir_count;
};

/* ---- reaching a directory ---- */

/* From what the kernel knows: it asks nobody for this. */
static bool on_mount(const struct poker_process *p, int fd)
{
    struct statx stx;

    return statx(fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_TYPE, &stx) == 0 &&
           makedev(stx.stx_dev_major, stx.stx_dev_minor) == p->dev;
}

/* A descriptor on the mount, or -1 with errno. */
static int open_below(const struct poker_process *p, int dir, const char *path, int flags,
                      mode_t mode)
{
    struct open_how how = {
        .flags = (unsigned)(flags | O_CLOEXEC | O_NOFOLLOW),
        .mode = mode,
        .resolve = RESOLVE_NO_XDEV | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS,
    };
    int fd = (int)syscall(SYS_openat2, dir, path, &how, sizeof how);

    if (fd < 0 || on_mount(p, fd))
        return fd;
    close(fd);
    errno = EXDEV;
    return -1;
}

static void leave(struct poker_process *p)
{
    for (size_t i = 0; i < p->dir_count; i++)
        close(p->dirs[i].fd);
    p->dir_count = 0;
    if (p->root < 0)
        return;
    close(p->root);
    p->root = -1;
    if (chdir("/") < 0)
        _exit(1);
}

/* Opening with O_PATH raises no event and asks the daemon for nothing. */
static bool enter(struct poker_process *p)
{
    if (p->root >= 0)
        return true;
    int fd = open(p->mount_point, O_PATH | O_DIRECTORY | O_CLOEXEC);

    if (fd < 0)
        return false;
    if (!on_mount(p, fd) || fchdir(fd) < 0) {
        close(fd);
        errno = EXDEV;
        return false;
    }
    p->root = fd;
    return true;
}

/* The kernel's own inode by its nodeid, wherever its directories have moved meanwhile. ESTALE: the
 * kernel has no path to it. */
static int dir_by_handle(const struct poker_process *p, uint64_t nodeid)
{
    _Alignas(struct file_handle) uint8_t bytes[sizeof(struct file_handle) + FUSE_HANDLE_BYTES];
    struct file_handle *handle = (struct file_handle *)(void *)bytes;
    uint32_t words[3] = { (uint32_t)(nodeid >> 32), (uint32_t)nodeid, 0 };

    handle->handle_bytes = FUSE_HANDLE_BYTES;
    handle->handle_type = FUSE_HANDLE_INO64_GEN;
    memcpy(bytes + sizeof(struct file_handle), words, sizeof words);
    int fd = open_by_handle_at(AT_FDCWD, handle, O_PATH | O_DIRECTORY | O_CLOEXEC);

    if (fd < 0 || on_mount(p, fd))
        return fd;
    close(fd);
    errno = EXDEV;
    return -1;
}

/* A borrowed descriptor, or -1 with errno. At most two for one ticket (see carry_out). */
static int dir_open(struct poker_process *p, const struct poker_place *place)
{
    if (place->nodeid == MVCC_ROOT_INO)
        return p->root;
    for (size_t i = 0; i < p->dir_count; i++)
        if (p->dirs[i].nodeid == place->nodeid)
            return p->dirs[i].fd;
    int fd = dir_by_handle(p, place->nodeid);

    if (fd < 0 && place->has_path && place->path_len > 0)
        fd = open_below(p, p->root, place->path, O_PATH | O_DIRECTORY, 0);
    if (fd < 0)
        return -1;
    KEEL_ASSERT(p->dir_count < DIRS_MAX);
    p->dirs[p->dir_count].nodeid = place->nodeid;
    p->dirs[p->dir_count++].fd = fd;
    return fd;
}

static void dir_drop(struct poker_process *p, uint64_t nodeid)
{
    for (size_t i = 0; i < p->dir_count; i++) {
        if (p->dirs[i].nodeid != nodeid)
            continue;
        close(p->dirs[i].fd);
        p->dirs[i] = p->dirs[--p->dir_count];
        return;
    }
}

/* ---- the changes: 0 or an errno ---- */

static int result(int returned)
{
    return returned < 0 ? errno : 0;
}

/* Both times are an IN_ATTRIB, the mtime alone is an IN_MODIFY. */
static int touch(const struct poker_process *p, int dir, const char *name, bool content)
{
    struct timespec times[2] = { { .tv_nsec = content ? UTIME_OMIT : UTIME_NOW },
                                 { .tv_nsec = UTIME_NOW } };
    int fd = *name ? open_below(p, dir, name, O_PATH, 0) : dir;

    if (fd < 0)
        return errno;
    int error = result(utimensat(fd, "", times, AT_EMPTY_PATH));

    if (fd != dir)
        close(fd);
    return error;
}

/* Sets the new size: the kernel raises IN_MODIFY and learns the size, which a local append needs.
 */
static int resize(int fd, uint64_t size)
{
    return result(ftruncate(fd, (off_t)size));
}

static int create(const struct poker_process *p, int dir, const struct poker_order *order)
{
    int fd = open_below(p, dir, order->name, O_WRONLY | O_CREAT | O_EXCL, 0600);

    if (fd < 0)
        return errno;
    int error = order->size > 0 ? resize(fd, order->size) : 0;

    close(fd);
    return error;
}

/* A program that runs from the file, or a lease on it, forbids opening it for writing. */
static int content(const struct poker_process *p, int dir, const struct poker_order *order)
{
    int fd = open_below(p, dir, order->name, O_WRONLY | O_NONBLOCK, 0);

    if (fd < 0 && (errno == ETXTBSY || errno == EWOULDBLOCK))
        return touch(p, dir, order->name, true);
    if (fd < 0)
        return errno;
    int error = resize(fd, order->size);

    close(fd);
    return error;
}

static int move(struct poker_process *p, int dir, const struct poker_order *order)
{
    int new_dir = dir_open(p, &order->new_dir);

    if (new_dir < 0)
        return errno;
    return result(renameat(dir, order->name, new_dir, order->new_name));
}

/* IN_DELETE_SELF comes when the last descriptor is closed, so ours must be before. */
static int remove_dir(struct poker_process *p, int dir, const struct poker_order *order)
{
    dir_drop(p, order->object);
    return result(unlinkat(dir, order->name, AT_REMOVEDIR));
}

static int carry_out(struct poker_process *p, const struct poker_order *order)
{
    if (p->dir_count + 2 > DIRS_MAX)
        leave(p);
    if (!enter(p))
        return errno;
    int dir = dir_open(p, &order->dir);

    if (dir < 0)
        return errno;
    switch (order->verb) {
    case POKER_CREATE:
        return create(p, dir, order);
    case POKER_MKDIR:
        return result(mkdirat(dir, order->name, 0700));
    case POKER_SYMLINK:
        return result(symlinkat("-", dir, order->name));
    case POKER_CONTENT:
        return content(p, dir, order);
    case POKER_ATTR:
        return touch(p, dir, order->name, false);
    case POKER_REMOVE:
        return result(unlinkat(dir, order->name, 0));
    case POKER_RMDIR:
        return remove_dir(p, dir, order);
    case POKER_RENAME:
        return move(p, dir, order);
    case POKER_QUIT:
    case POKER_DONE:
    case POKER_MARKS:
    case POKER_SCANNED:
        break;
    }
    return EINVAL;
}

/* ---- the process ---- */

/* The next packet; when there is none for a moment, lets go of the mount before it waits. */
static ssize_t next_order(struct poker_process *p, uint8_t *bytes, size_t size)
{
    struct pollfd readable = { .fd = SOCKET, .events = POLLIN };
    ssize_t len = recv(SOCKET, bytes, size, MSG_DONTWAIT);

    if (len >= 0 || errno != EAGAIN)
        return len;
    if (p->root >= 0 && poll(&readable, 1, LINGER_MS) == 0)
        leave(p);
    do {
        len = recv(SOCKET, bytes, size, 0);
    } while (len < 0 && errno == EINTR);
    return len;
}

/* Returns true when told to quit, false when the daemon has vanished. */
static bool serve(struct poker_process *p)
{
    uint8_t bytes[POKER_ORDER_MAX];
    struct poker_order order;

    for (;;) {
        ssize_t len = next_order(p, bytes, sizeof bytes);

        if (len <= 0 || poker_order_decode(keel_slice_of(bytes, (size_t)len), &order) != 0)
            return false;
        if (order.verb == POKER_QUIT)
            return true;
        struct poker_done done = { .verb = POKER_DONE, .id = order.id };

        done.error = carry_out(p, &order);
        if (send(SOCKET, &done, sizeof done, MSG_NOSIGNAL) < 0)
            return false;
    }
}

/* What it needs, if it has it: to open by handle and to pass modes and owners on the mount, to read
 * other processes' fdinfo, not to strip suid bits where a local root writer wouldn't. */
static int drop_capabilities(void)
{
    struct __user_cap_header_struct header = { .version = _LINUX_CAPABILITY_VERSION_3 };
    struct __user_cap_data_struct data[2];
    uint32_t keep = 1U << CAP_DAC_OVERRIDE | 1U << CAP_DAC_READ_SEARCH | 1U << CAP_FOWNER |
                    1U << CAP_FSETID | 1U << CAP_SYS_PTRACE;

    if (syscall(SYS_capget, &header, data) < 0)
        return -1;
    data[0].permitted &= keep;
    data[0].effective = data[0].permitted;
    data[0].inheritable = 0;
    data[1] = (struct __user_cap_data_struct){ 0 };
    return (int)syscall(SYS_capset, &header, data);
}

static int close_others(void)
{
#ifdef __SANITIZE_ADDRESS__
    const unsigned first = STDERR_FILENO + 1; /* where the sanitizer reports */
    close(STDOUT_FILENO);
#else
    const unsigned first = SOCKET + 1;
#endif
    return (int)syscall(SYS_close_range, first, ~0U, 0);
}

/* Signals that end a whole group of processes are the daemon's to act on: it tells us. */
static int confine(void)
{
    signal(SIGINT, SIG_IGN);
    signal(SIGTERM, SIG_IGN);
    signal(SIGHUP, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN);
    umask(0);
    prctl(PR_SET_NAME, "keelfs-poker");
    if (chdir("/") < 0 || close_others() < 0 || drop_capabilities() < 0)
        return -1;
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
        return -1;
    return prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
}

static bool started_by_daemon(int argc)
{
    int type = 0;
    socklen_t len = sizeof type;

    return argc == 3 && getsockopt(SOCKET, SOL_SOCKET, SO_TYPE, &type, &len) == 0 &&
           type == SOCK_SEQPACKET;
}

int poker_main(int argc, char **argv)
{
    struct poker_process process = { .root = -1 };
    struct poker_guard guard = { .socket = SOCKET };

    if (!started_by_daemon(argc)) {
        fprintf(stderr,
                "keelfs: --poker is for keelfs itself, which starts it beside each mount\n");
        return 2;
    }
    process.mount_point = argv[0];
    process.dev = guard.dev = (dev_t)strtoull(argv[1], NULL, 10);
    guard.daemon = (pid_t)strtol(argv[2], NULL, 10);
    if (confine() < 0 || poker_guard_start(&guard) != 0)
        return 1;
    bool told = serve(&process);

    leave(&process);
    if (!told)
        pthread_join(guard.thread, NULL);
    return 0;
}
