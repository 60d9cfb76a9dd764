/* What the files of keel-wal share. */
#ifndef KEEL_WAL_H
#define KEEL_WAL_H

#include "wal_walk.h"

struct dump_options {
    uint64_t from;       /* index: from the first entry on that has this one, or a higher one */
    uint64_t count;      /* records; 0: all */
    const char *segment; /* NULL: all of them */
};

/* One line for each record. KEEL_E_NOTFOUND: there is no such segment; or an error of the disk. */
int dump_log(struct disk *disk, const struct dump_options *options);

#endif
