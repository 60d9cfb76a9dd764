/* Reading and taking apart the files of /proc/PID. */
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fs/proc.h"
#include "keel_limits.h"

enum { PROC_TEXT_MAX = 8192 };

static bool read_text(pid_t pid, const char *file, char *text, size_t size)
{
    char path[64];

    if (pid <= 0)
        return false;
    snprintf(path, sizeof path, "/proc/%d/%s", (int)pid, file);
    int fd = open(path, O_RDONLY | O_CLOEXEC);

    if (fd < 0)
        return false;
    ssize_t len = read(fd, text, size - 1);

    close(fd);
    if (len <= 0)
        return false;
    text[len] = '\0';
    return true;
}

/* What stands behind "KEY:" at the start of a line, or NULL. */
static const char *status_value(const char *status, const char *key)
{
    size_t len = strlen(key);

    for (const char *line = status; line != NULL && *line != '\0';) {
        if (strncmp(line, key, len) == 0 && line[len] == ':')
            return line + len + 1;
        line = strchr(line, '\n');
        if (line != NULL)
            line++;
    }
    return NULL;
}

bool proc_parse_kill_pending(const char *status)
{
    const char *pending = status_value(status, "SigPnd");

    return pending != NULL && (strtoull(pending, NULL, 16) >> (SIGKILL - 1) & 1) != 0;
}

bool proc_parse_killed(const char *stat)
{
    /* the last field is exit_code: the low seven bits are the signal */
    const char *last = strrchr(stat, ' ');

    return last != NULL && (strtol(last + 1, NULL, 10) & 0x7f) != 0;
}

pid_t proc_parse_group(const char *status)
{
    const char *group = status_value(status, "Tgid");

    return group != NULL ? (pid_t)strtol(group, NULL, 10) : 0;
}

bool proc_kill_pending(pid_t pid)
{
    char text[PROC_TEXT_MAX];

    return read_text(pid, "status", text, sizeof text) && proc_parse_kill_pending(text);
}

bool proc_killed(pid_t pid)
{
    char text[PROC_TEXT_MAX];

    return read_text(pid, "stat", text, sizeof text) && proc_parse_killed(text);
}

pid_t proc_group(pid_t pid)
{
    char text[PROC_TEXT_MAX];

    return read_text(pid, "status", text, sizeof text) ? proc_parse_group(text) : 0;
}

bool proc_childless(pid_t pid)
{
    char path[64], byte;

    if (pid <= 0)
        return false;
    snprintf(path, sizeof path, "/proc/%d/task/%d/children", (int)pid, (int)pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);

    if (fd < 0)
        return false;
    ssize_t len = read(fd, &byte, 1);

    close(fd);
    return len == 0;
}

static bool ends_in(struct keel_slice s, struct keel_slice tail)
{
    return s.len > tail.len && s.data[s.len - tail.len - 1] == '/' &&
           memcmp(s.data + s.len - tail.len, tail.data, tail.len) == 0;
}

static struct keel_slice last_part(struct keel_slice path)
{
    size_t start = path.len;

    while (start > 0 && path.data[start - 1] != '/')
        start--;
    return keel_slice_of(path.data + start, path.len - start);
}

bool proc_link_is(struct keel_slice link, struct keel_slice mount_point, struct keel_slice path)
{
    if (!ends_in(link, last_part(path)))
        return false;
    if (link.len <= mount_point.len || link.data[mount_point.len] != '/' ||
        memcmp(link.data, mount_point.data, mount_point.len) != 0)
        return true;
    return link.len == mount_point.len + 1 + path.len && ends_in(link, path);
}

static bool link_is_held(int dir, const char *name, struct keel_slice mount_point,
                         struct keel_slice path)
{
    char target[KEEL_PATH_MAX + 1];
    ssize_t len = readlinkat(dir, name, target, sizeof target);

    return len > 0 && proc_link_is(keel_slice_of(target, (size_t)len), mount_point, path);
}

bool proc_holds(pid_t pid, struct keel_slice mount_point, struct keel_slice path)
{
    char name[64];
    bool held = false;

    if (pid <= 0)
        return true;
    /* `echo v > f` in a shell: one look instead of one for each descriptor */
    snprintf(name, sizeof name, "/proc/%d/fd/1", (int)pid);
    if (link_is_held(AT_FDCWD, name, mount_point, path))
        return true;
    snprintf(name, sizeof name, "/proc/%d/fd", (int)pid);
    DIR *dir = opendir(name);

    if (dir == NULL)
        return true;
    for (struct dirent *entry; !held && (entry = readdir(dir)) != NULL;)
        held = link_is_held(dirfd(dir), entry->d_name, mount_point, path);
    closedir(dir);
    return held;
}
