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

static bool link_ends_in(int dir, const char *entry, struct keel_slice name)
{
    char target[KEEL_PATH_MAX + 1];
    ssize_t len = readlinkat(dir, entry, target, sizeof target);

    return len > (ssize_t)name.len && target[len - (ssize_t)name.len - 1] == '/' &&
           memcmp(target + len - (ssize_t)name.len, name.data, name.len) == 0;
}

bool proc_holds_name(pid_t pid, struct keel_slice name)
{
    char path[64];
    bool held = false;

    snprintf(path, sizeof path, "/proc/%d/fd", (int)pid);
    DIR *dir = pid > 0 ? opendir(path) : NULL;

    if (dir == NULL)
        return true;
    for (struct dirent *entry; !held && (entry = readdir(dir)) != NULL;)
        held = link_ends_in(dirfd(dir), entry->d_name, name);
    closedir(dir);
    return held;
}
