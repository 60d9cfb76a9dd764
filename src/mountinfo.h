/* /proc/self/mountinfo: what is mounted where, without touching it. */
#ifndef KEEL_MOUNTINFO_H
#define KEEL_MOUNTINFO_H

#include <stdbool.h>
#include <stdio.h>
#include <sys/types.h>

#include "keel_limits.h"

struct mountinfo {
    unsigned id; /* of the mount */
    dev_t dev;
    char point[KEEL_PATH_MAX + 1];
    char source[KEEL_PATH_MAX + 1];
};

/* Calls fn for each mount, in the order in which they were made; the first result that is not zero
 * ends it and is returned. table NULL: this process's own. */
int mountinfo_each(FILE *table, int (*fn)(void *arg, const struct mountinfo *info), void *arg);

/* The topmost mount on a directory. False: nothing is mounted there. */
bool mountinfo_find(FILE *table, const char *mount_point, struct mountinfo *ret_info);

#endif
