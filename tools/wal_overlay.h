/* The segments of a log as a disk of its own (src/wal/disk.h) that reads the real files, and keeps
 * in memory whatever is written: so the code of a node's start can judge a log, and even mend it,
 * without changing a byte of it. */
#ifndef WAL_OVERLAY_H
#define WAL_OVERLAY_H

#include "wal/disk.h"

/* Nothing is created. ret_errno has the errno on failure. Its free() is in the ops. */
int wal_overlay_open(const char *dir, struct disk **ret_disk, int *ret_errno);

#endif
