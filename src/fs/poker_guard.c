/* The guardian of the connection, and the clock of the scans. */
#include "fs/poker_guard.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "fs/poker_scan.h"

enum { TICK_MS = 1000, TICKS_PER_SCAN = 5 };

/* ---- guardian ---- */

static void abort_path(const struct poker_guard *g, char *path, size_t size)
{
    snprintf(path, size, "/sys/fs/fuse/connections/%u/abort", minor(g->dev));
}

/* The number of a device is given out again after an unmount, but the file of another connection is
 * another inode. */
static void remember_connection(struct poker_guard *g)
{
    char path[64];
    struct stat st;

    abort_path(g, path, sizeof path);
    g->abort_ino = stat(path, &st) == 0 ? st.st_ino : 0;
}

static void abort_connection(const struct poker_guard *g)
{
    char path[64];
    struct stat st;

    abort_path(g, path, sizeof path);
    int fd = open(path, O_WRONLY | O_CLOEXEC);

    if (fd < 0)
        return;
    if (g->abort_ino != 0 && fstat(fd, &st) == 0 && st.st_ino == g->abort_ino &&
        write(fd, "1", 1) != 1)
        _exit(1);
    close(fd);
}

/* A process whose first thread is dead, while another one is stuck and keeps the descriptors: its
 * pidfd says nothing then. */
static bool is_zombie(pid_t pid)
{
    char path[32], text[512];

    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);

    if (fd < 0)
        return errno == ENOENT;
    ssize_t len = read(fd, text, sizeof text - 1);

    close(fd);
    if (len <= 0)
        return len < 0 && errno == ESRCH;
    text[len] = '\0';
    const char *state = strrchr(text, ')');

    return state && state[1] == ' ' && (state[2] == 'Z' || state[2] == 'X');
}

static bool daemon_dead(const struct poker_guard *g, int wait_ms)
{
    struct pollfd pidfd = { .fd = g->pidfd, .events = POLLIN };

    if (g->pidfd < 0 || poll(&pidfd, 1, wait_ms) > 0)
        return true;
    return getppid() != g->daemon || is_zombie(g->daemon);
}

/* ---- scans ---- */

static bool send_marks(int socket, const uint64_t *inos, size_t count)
{
    struct poker_marks marks = { .verb = POKER_MARKS, .count = (uint32_t)count };
    size_t len = offsetof(struct poker_marks, inos) + count * sizeof *inos;

    memcpy(marks.inos, inos, count * sizeof *inos);
    return send(socket, &marks, len, MSG_DONTWAIT | MSG_NOSIGNAL) == (ssize_t)len;
}

/* A daemon that is too busy to read gets none: it knows what the lack of one means. */
static void scan(const struct poker_guard *g)
{
    struct poker_scan result;
    struct poker_scanned end = { .verb = POKER_SCANNED };
    size_t sent = 0;

    poker_scan(g->dev, &result);
    while (sent < result.count) {
        size_t count =
            result.count - sent < POKER_MARKS_MAX ? result.count - sent : POKER_MARKS_MAX;

        if (!send_marks(g->socket, result.inos + sent, count)) {
            result.blind = true;
            break;
        }
        sent += count;
    }
    end.blind = result.blind;
    end.started_ms = result.started_ms;
    send(g->socket, &end, sizeof end, MSG_DONTWAIT | MSG_NOSIGNAL);
    free(result.inos);
}

static void *guard_main(void *arg)
{
    struct poker_guard *g = arg;

    for (unsigned tick = 0;; tick++) {
        remember_connection(g);
        if (daemon_dead(g, 0))
            break;
        if (tick % TICKS_PER_SCAN == 0)
            scan(g);
        if (daemon_dead(g, TICK_MS))
            break;
    }
    abort_connection(g);
    _exit(0);
}

int poker_guard_start(struct poker_guard *g)
{
    g->pidfd = (int)syscall(SYS_pidfd_open, g->daemon, 0);
    if (g->pidfd < 0 && errno != ESRCH)
        return errno;
    return pthread_create(&g->thread, NULL, guard_main, g);
}
