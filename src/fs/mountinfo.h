/* /proc/self/mountinfo: what is mounted where, without touching it. */
#ifndef FS_MOUNTINFO_H
#define FS_MOUNTINFO_H

#include <stdbool.h>
#include <stdio.h>
#include <sys/types.h>

#include "keel_limits.h"

struct mountinfo {
    dev_t dev;
    char source[KEEL_PATH_MAX + 1];
};

/* The topmost mount on a directory. False: nothing is mounted there. */
bool mountinfo_find(FILE *table, const char *mount_point, struct mountinfo *ret_info);

#endif
