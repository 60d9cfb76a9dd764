/* Going through the segments of a log, record by record, as far as each of them goes by itself.
 * What a node makes of the whole is wal_open's to say. */
#ifndef WAL_WALK_H
#define WAL_WALK_H

#include "wal/internal.h"

enum walk_header {
    WALK_SOUND,
    WALK_READY, /* none, or that of an older epoch: the file was made ready, and not used */
    WALK_BAD,
    WALK_NEWER,
};

struct walk_segment {
    uint64_t epoch;
    char name[WAL_FILE_NAME];
    enum walk_header state;
    struct wal_segment_header header; /* WALK_SOUND */
    uint64_t size, used;              /* bytes of the file; of them up to the last record */
    uint64_t records;
    uint64_t last_sequence, last_checksum;
    bool clean_end; /* nothing but zeroes behind it, or what an older segment has left */
};

struct walk {
    struct disk *disk;
    void *arg;
    /* Each may be NULL. A result that is not 0 ends the walk and is returned. */
    int (*begin)(void *arg, const struct walk_segment *segment);
    int (*record)(void *arg, const struct walk_segment *segment, uint64_t offset,
                  const struct wal_record *record);
    /* A sound record of this epoch behind the end of the chain. */
    int (*stray)(void *arg, const struct walk_segment *segment, uint64_t offset,
                 const struct wal_record *record);
    int (*end)(void *arg, const struct walk_segment *segment);
};

/* The epochs in ascending order, to be freed. */
int walk_list(struct disk *disk, uint64_t **ret_epochs, size_t *ret_count);
/* One segment. KEEL_E_IO, KEEL_E_NOTFOUND, or what a function has returned. */
int walk_one(const struct walk *walk, uint64_t epoch);
int walk_all(const struct walk *walk);

#endif
