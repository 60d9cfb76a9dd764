/* The write-ahead log: raft entries and hard states in segments, with checksums, over a disk
 * vtable. Plain synchronous code, owned by one thread (the node's wal thread; the simulator's event
 * loop).
 *
 * Format: docs/format-wal.md. Segments of 64 MiB, zero-filled ahead in steps of 1 MiB (wal_prepare)
 * away from the path of a sync. Records are 8-byte aligned, little-endian, and can be judged by
 * themselves and in their chain: length, kind, term, index, epoch, sequence, previous record's
 * checksum, `durable` (the highest sequence known to be synced when this record was written) and
 * xxh3-64 over header and body.
 *
 * Recovery stops at the first record s that does not check. It is DAMAGE if a later record of this
 * epoch checks and has durable >= s, or if the log ends below the commit index of the last hard
 * state or the store's applied index; else a torn tail, which is cut and zeroed before anything is
 * appended.
 *
 * Old segments are let go (wal_release) and used again under a new epoch. Every segment but the
 * very first begins with the hard state, so that it stands alone when those before it are gone. A
 * snapshot that has been installed resets the log: a mark (index, term) voids all entries before
 * it, the next one is index + 1.
 *
 * After any error from wal_write or wal_idle the log must not be used again: the caller ends the
 * process. */
#ifndef WAL_WAL_H
#define WAL_WAL_H

#include "raft/types.h"
#include "wal/disk.h"

struct wal;

/* One persist request: what a raft_ready said. Owned by whoever holds it. */
struct wal_batch {
    struct wal_batch *next; /* for the owner's queue */
    struct raft_mark mark;
    bool reset; /* first of all: the log is void up to here, and goes on behind this entry */
    uint64_t reset_index, reset_term;
    bool has_hard_state;
    struct raft_hard_state hard_state;
    struct raft_entry *entries; /* owned, with references; entries[0].index cuts the log there */
    size_t count;
};

struct wal_batch *wal_batch_free(struct wal_batch *batch); /* takes NULL, returns NULL */

struct wal_options {
    uint64_t cluster_id, node_id; /* in each segment header; another's segment is refused */
    uint64_t store_applied;       /* entries above it are returned by recovery; see the rule */
    uint64_t segment_bytes;       /* 0: 64 MiB; tests take less */
    uint64_t fill_bytes;          /* 0: 1 MiB: zero-fill step */
    /* Not 0: the installation of a snapshot was under way, and the store is at it: the log is reset
     * to it now, unless it has been already. A log that has the snapshot's very entry goes on as it
     * is, since what follows may have been acknowledged. KEEL_E_CORRUPT if it has something else
     * there that was committed. */
    uint64_t install_index, install_term;
};

struct wal_recovery {
    bool fresh; /* there was no log: one has been created */
    struct raft_hard_state hard_state;
    uint64_t first_index; /* of what can be read with wal_read; last_index + 1: nothing */
    uint64_t last_index;  /* of the log: its last entry, or the snapshot that it was reset to */
    uint64_t base_term;   /* term of entry store_applied (0 when not in the log) */
    struct raft_entry *entries; /* store_applied + 1 …, owned */
    size_t count;
    bool tail_cut; /* a torn tail was cut at: */
    char cut_file[64];
    uint64_t cut_offset;
};

void wal_recovery_free(struct wal_recovery *recovery);

/* Opens or creates the log in `disk` (borrowed, must outlive it). On an error ret_why (of why_size
 * bytes) says which file, where, and what to do: KEEL_E_CORRUPT damage, KEEL_E_NEWER,
 * KEEL_E_INVALID another cluster's or node's log, KEEL_E_DISKFULL, KEEL_E_IO. */
int wal_open(struct disk *disk, const struct wal_options *options, struct wal **ret_wal,
             struct wal_recovery *ret_recovery, char *ret_why, size_t why_size);
/* Is there a log, or what is left of one? wal_open would make one. A file is enough: what is in it
 * is not looked at. */
int wal_is_there(struct disk *disk, bool *ret_there);
struct wal *wal_close(struct wal *w); /* takes NULL, returns NULL; writes nothing */

/* Appends all batches, in order, with one write and one fdatasync (more only when a segment ends or
 * fragments of more than IOV_MAX pieces need it). Durable when it returns 0. */
int wal_write(struct wal *w, struct wal_batch *const *batches, size_t count);

/* The log has fallen idle: writes the small record that carries the new `durable`, unless there is
 * nothing new to say. Synced. */
int wal_idle(struct wal *w);

/* One step of zero-filling ahead, or of making the next segment: a write of fill_bytes and a sync.
 * *ret_more: call again, when there is time. Never needed, but wal_write is slower without it.
 * KEEL_E_DISKFULL is not fatal here; after KEEL_E_IO the log must not be used again. */
int wal_prepare(struct wal *w, bool *ret_more);

/* Entries first … (at least one, else at most max_bytes), with references, and the term of the one
 * before first (0 when first is 1). KEEL_E_NOTFOUND: not (or no longer) in the log. KEEL_E_CORRUPT:
 * the disk no longer gives back what was written. Only what has been written. */
int wal_read(struct wal *w, uint64_t first, size_t max_bytes, struct raft_entry **ret_entries,
             size_t *ret_count, uint64_t *ret_prev_term);

uint64_t wal_last_index(const struct wal *w);
/* The first entry that wal_read can give: its predecessor's term is known. last + 1: none. */
uint64_t wal_first_index(const struct wal *w);

/* Entries up to `index` are in the store, durably: whole segments with nothing else in them go, the
 * oldest first, as long as the log behind them comes to at least keep_bytes; those before a reset
 * mark go in any case. The last entry stays, or the mark if none has followed it. One file is kept
 * to be used again. Two system calls for each segment, one of them a sync of the directory. Errors
 * as wal_write, and nothing is to be done with the log after one. */
int wal_release(struct wal *w, uint64_t index, uint64_t keep_bytes);

/* The record codec, pure: for wal.c, tools and the fuzzer. */
enum wal_record_kind {
    WAL_ENTRY = 1,
    WAL_HARD_STATE = 2,
    WAL_DURABLE = 3,
    WAL_RESET = 4, /* index, term: the log is void up to here */
};

enum { WAL_RECORD_HEADER = 72, WAL_SEGMENT_HEADER = 64, WAL_FORMAT_VERSION = 1 };

struct wal_record {
    uint32_t length; /* of the body */
    uint8_t kind, entry_kind;
    uint64_t term, index, epoch, sequence, previous_checksum, durable, checksum;
    struct keel_slice body;
};

/* Encodes the header (checksum included) for a body; WAL_RECORD_HEADER bytes at p. Returns the
 * checksum. */
uint64_t wal_record_encode(const struct wal_record *record, uint8_t *p);

/* Decodes and verifies one record at the front of `bytes`. The size it takes (padding included) in
 * ret_size. KEEL_E_MALFORMED: does not check by itself (chain and epoch are the caller's). */
int wal_record_decode(struct keel_slice bytes, struct wal_record *ret_record, size_t *ret_size);

#endif
