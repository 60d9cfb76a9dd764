/* A disk in memory that crashes as badly as a real one may: for unit tests and the simulator.
 * Deterministic: all that is random comes from its seed and the order of calls. Its free() is in
 * the ops, as of every disk. */
#ifndef WAL_DISK_MEM_H
#define WAL_DISK_MEM_H

#include "buf.h"
#include "wal/disk.h"

struct disk *disk_mem_new(uint64_t seed);

/* Power is lost and comes back. What was synced stays. Of each unsynced write, each sector of 512
 * bytes is kept, lost, torn or zeroed by itself; bytes of a sector outside the write are not
 * touched. Creations, renames and removals since the last sync_dir may be undone, each by itself.
 * Also takes back disk_mem_cut and the failures that are still to come. Open files may only be
 * closed afterwards. */
void disk_mem_crash(struct disk *disk);

/* Power will be lost in the n-th call from now (1: the next) that changes or syncs something: that
 * call and all later ones, reads too, fail with KEEL_E_IO until disk_mem_crash. A write that power
 * is lost in counts as unsynced. 0: take it back. */
void disk_mem_cut(struct disk *disk, uint64_t nth);
bool disk_mem_is_cut(const struct disk *disk);

/* The n-th write or sync from now (1: the next; 0: none) fails with `err`, once. A failed write has
 * written a random part of itself; what a failed sync should have synced stays unsynced. */
void disk_mem_fail_write(struct disk *disk, uint64_t nth, int err);
void disk_mem_fail_sync(struct disk *disk, uint64_t nth, int err);

struct disk_mem_counters {
    uint64_t opens, reads, writes, syncs, truncates, renames, removes, dir_syncs;
    uint64_t read_bytes, written_bytes;
    uint64_t changes; /* calls that disk_mem_cut counts */
};

struct disk_mem_counters disk_mem_counters(const struct disk *disk);

/* The file as it is now, borrowed until the next change; { NULL, 0 } when there is none. */
struct keel_slice disk_mem_file(const struct disk *disk, const char *name);

/* Makes a file, or replaces its content; synced at once. */
void disk_mem_put(struct disk *disk, const char *name, struct keel_slice content);

/* Bit rot: xors one byte, in what is synced as well. The file must reach that far. */
void disk_mem_flip(struct disk *disk, const char *name, uint64_t offset, uint8_t mask);

/* A new disk with the same files, all of them synced. */
struct disk *disk_mem_copy(const struct disk *disk, uint64_t seed);

#endif
