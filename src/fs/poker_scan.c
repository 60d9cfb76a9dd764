/* Looks for inotify and fanotify marks in /proc/PID/fdinfo. Only descriptors whose link says that
 * they are a notification group are read; of other processes nothing else is, for that could wait
 * for our own mount. */
#include "fs/poker_scan.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/sysmacros.h>
#include <time.h>
#include <unistd.h>

#include "check.h"
#include "mountinfo.h"

enum { SCAN_MS_MAX = 250, MINOR_BITS = 20 };

static int64_t now_ms(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static bool is_number(const char *name)
{
    return isdigit((unsigned char)name[0]) != 0;
}

static void found(struct poker_scan *scan, uint64_t ino)
{
    if (scan->count == POKER_WATCHED_MAX) {
        scan->blind = true;
        return;
    }
    if (scan->count == scan->capacity) {
        scan->capacity = scan->capacity ? scan->capacity * 2 : 64;
        scan->inos = keel_realloc(scan->inos, scan->capacity * sizeof *scan->inos);
    }
    scan->inos[scan->count++] = ino;
}

struct mount_question {
    unsigned device, mount_id;
    bool foreign;
};

static unsigned kernel_device(dev_t dev)
{
    return major(dev) << MINOR_BITS | minor(dev);
}

static int ask_mount(void *arg, const struct mountinfo *info)
{
    struct mount_question *question = arg;

    if (info->id == question->mount_id)
        question->foreign = kernel_device(info->dev) != question->device;
    return info->id == question->mount_id;
}

/* Is the mount with this id another filesystem's for certain? One that this namespace doesn't have
 * may be ours. */
static bool mount_is_foreign(unsigned device, unsigned mount_id)
{
    struct mount_question question = { .device = device, .mount_id = mount_id };

    mountinfo_each(NULL, ask_mount, &question);
    return question.foreign;
}

/* Numbers are hexadecimal. A mark is on an inode, on a mount (fanotify), or on a whole filesystem
 * (fanotify). */
void poker_scan_line(struct poker_scan *scan, const char *line)
{
    uint64_t ino;
    unsigned device, mount_id;

    if (sscanf(line, "inotify wd:%*x ino:%" SCNx64 " sdev:%x", &ino, &device) == 2 ||
        sscanf(line, "fanotify ino:%" SCNx64 " sdev:%x", &ino, &device) == 2) {
        if (device == scan->device)
            found(scan, ino);
        return;
    }
    if (sscanf(line, "fanotify sdev:%x", &device) == 1)
        scan->blind |= device == scan->device;
    else if (sscanf(line, "fanotify mnt_id:%x", &mount_id) == 1)
        scan->blind |= !mount_is_foreign(scan->device, mount_id);
}

static void scan_group(struct poker_scan *scan, const char *pid, const char *fd)
{
    char path[64], *line = NULL;
    size_t capacity = 0;

    snprintf(path, sizeof path, "/proc/%.10s/fdinfo/%.10s", pid, fd);
    FILE *file = fopen(path, "re");

    if (!file) {
        scan->blind |= errno == EACCES || errno == EPERM;
        return;
    }
    while (getline(&line, &capacity, file) > 0)
        poker_scan_line(scan, line);
    free(line);
    fclose(file);
}

static bool is_group(int dir, const char *fd)
{
    char link[64];
    ssize_t len = readlinkat(dir, fd, link, sizeof link - 1);

    if (len < 0)
        return false;
    link[len] = '\0';
    return strcmp(link, "anon_inode:inotify") == 0 || strcmp(link, "anon_inode:[fanotify]") == 0;
}

static void scan_process(struct poker_scan *scan, const char *pid)
{
    char path[64];
    struct dirent *entry;

    snprintf(path, sizeof path, "/proc/%.10s/fd", pid);
    DIR *dir = opendir(path);

    if (!dir) {
        scan->blind |= errno == EACCES || errno == EPERM;
        return;
    }
    while ((entry = readdir(dir)))
        if (is_number(entry->d_name) && is_group(dirfd(dir), entry->d_name))
            scan_group(scan, pid, entry->d_name);
    closedir(dir);
}

/* Only the first namespaces have all processes in them; the kernel gives those two fixed numbers.
 */
static bool sees_all_processes(void)
{
    char link[64];
    ssize_t len = readlink("/proc/self/ns/pid", link, sizeof link - 1);

    if (len < 0)
        return false;
    link[len] = '\0';
    if (strcmp(link, "pid:[4026531836]") != 0)
        return false;
    len = readlink("/proc/self/ns/user", link, sizeof link - 1);
    if (len < 0)
        return false;
    link[len] = '\0';
    return strcmp(link, "user:[4026531837]") == 0 && access("/proc/1/fd", R_OK) == 0;
}

void poker_scan(dev_t dev, struct poker_scan *ret_scan)
{
    struct poker_scan scan = { .device = kernel_device(dev), .started_ms = now_ms() };
    DIR *proc = opendir("/proc");
    struct dirent *entry;

    scan.blind = !proc || !sees_all_processes();
    while (proc && (entry = readdir(proc))) {
        if (now_ms() >= scan.started_ms + SCAN_MS_MAX) {
            scan.blind = true;
            break;
        }
        if (is_number(entry->d_name))
            scan_process(&scan, entry->d_name);
    }
    if (proc)
        closedir(proc);
    *ret_scan = scan;
}
