/* In the poker process: what on the mount is watched by inotify or fanotify, by anybody on this
 * host. */
#ifndef FS_POKER_SCAN_H
#define FS_POKER_SCAN_H

#include <sys/types.h>

#include "fs/poker_wire.h"

struct poker_scan {
    unsigned device;    /* of the mount, as the kernel prints it in fdinfo */
    int64_t started_ms; /* CLOCK_MONOTONIC */
    bool blind;         /* something could not be seen, or a mark covers the whole mount */
    uint64_t *inos;     /* marked ones, in any order, also more than once */
    size_t count, capacity;
};

/* One pass over /proc, of at most 250 ms. Free inos afterwards. */
void poker_scan(dev_t dev, struct poker_scan *ret_scan);

/* Takes in one line of an fdinfo file. */
void poker_scan_line(struct poker_scan *scan, const char *line);

#endif
