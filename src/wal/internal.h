/* What the files of src/wal share and nobody else includes: the open log, the segment header, and a
 * window for reading a segment piece by piece. */
#ifndef WAL_INTERNAL_H
#define WAL_INTERNAL_H

#include "wal/wal.h"

enum {
    WAL_SEGMENT_BYTES = 64 << 20,
    WAL_FILL_BYTES = 1 << 20,
    WAL_FILL_AHEAD =
        16,             /* steps that are zero-filled before the place where the next record goes */
    WAL_FILE_NAME = 24, /* sixteen hex digits, ".wal", NUL, rounded up */
    WAL_RECORD_MAX = WAL_RECORD_HEADER + KEEL_ENTRY_SIZE_MAX,
    WAL_SEGMENT_FRONT = WAL_SEGMENT_HEADER + WAL_RECORD_HEADER + 8, /* header and hard state */
};

/* Where an entry's record is. */
struct wal_position {
    uint32_t segment; /* epoch of its segment less wal_index.origin */
    uint32_t slot;    /* offset in the segment, in units of eight bytes */
};

/* The base of a log of which nothing is known yet: its first entry is still to be met. */
#define WAL_BASE_UNKNOWN UINT64_MAX

/* The entries base + 1 … base + count. */
struct wal_index {
    struct wal_position *at; /* of entry base + 1 + i at [i] */
    size_t count, capacity;
    uint64_t base;
    uint64_t base_term; /* of entry `base`, if it is known: base is 0, or a reset mark says it */
    bool base_term_known;
    uint64_t mark_epoch; /* of the segment with the last reset mark; 0: the log has none */
    uint64_t origin;     /* positions count segments from this epoch on */
};

/* Reads a file piece by piece; what it gave stays valid until the next call. */
struct wal_window {
    struct disk *disk;
    struct disk_file *file; /* borrowed */
    uint64_t offset;
    uint8_t *data;
    size_t len, capacity;
    size_t chunk; /* what is read at least; small files need no large window */
};

/* A stretch of one write: bytes in the scratch area (body NULL), or a body that is written from
 * where it lies. */
struct wal_piece {
    const uint8_t *body;
    size_t offset, len;
};

/* The write that is being put together. Headers, padding and small bodies are copied side by side.
 */
struct wal_gather {
    uint8_t *scratch;
    size_t scratch_len, scratch_capacity;
    struct wal_piece *pieces;
    size_t piece_count, piece_capacity;
    struct iovec *iov;
    size_t iov_capacity;
    size_t bytes;
};

struct wal {
    struct disk *disk;
    uint64_t cluster_id, node_id, segment_bytes, fill_bytes;

    struct disk_file *file; /* the segment that is appended to */
    uint64_t oldest_epoch;
    uint64_t epoch;         /* of `file` */
    uint64_t offset;        /* where the next record goes; 0: the segment's header goes first */
    uint64_t filled;        /* the file's length: zeroes, or an older segment's bytes, up to here */
    bool recycled;          /* … the latter */
    struct disk_file *next; /* the segment of epoch + 1, prepared and unused; may be NULL */
    uint64_t next_filled;
    bool next_recycled;
    uint64_t *ends; /* of the segments before this one, oldest first: how many bytes are in use */
    size_t end_count, end_capacity;

    uint64_t sequence;          /* of the last record */
    uint64_t previous_checksum; /* its checksum */
    uint64_t durable;           /* the highest sequence that is synced */
    uint64_t named;             /* the highest `durable` that a synced record carries */
    uint64_t last_data;         /* the last sequence that is not a WAL_DURABLE record */
    int failed; /* KEEL_E_DISKFULL, KEEL_E_IO: nothing is tried any more, everything returns it */

    struct raft_hard_state hard_state; /* as the records say, but never below entry_term */
    uint64_t entry_term;               /* the highest of any entry or mark */
    struct wal_index index;

    struct wal_gather gather;
    struct wal_window window; /* of wal_read */
    struct disk_file *reader; /* an older segment, kept open between reads */
    uint64_t reader_epoch;
    uint8_t *zeroes; /* fill_bytes */
};

/* Records are padded to eight bytes. */
static inline size_t wal_record_size(size_t body_len)
{
    return (WAL_RECORD_HEADER + body_len + 7) & ~(size_t)7;
}

/* Whether a record may begin with these WAL_RECORD_HEADER bytes, how long it would be and of which
 * epoch: cheap, and no more than a reason to read that far and decode. */
bool wal_record_peek(const uint8_t *p, size_t *ret_size, uint64_t *ret_epoch);

/* ---- segment.c ---- */

struct wal_segment_header {
    uint32_t version;
    uint64_t cluster_id, node_id, epoch, first_sequence, previous_checksum;
    bool recycled; /* bytes of an older segment may lie behind the records */
};

/* WAL_SEGMENT_HEADER bytes at p. */
void wal_segment_encode(const struct wal_segment_header *header, uint8_t *p);

/* KEEL_E_MALFORMED: not a segment header, or damaged. KEEL_E_NEWER: sound, but of a later format
 * version. */
int wal_segment_decode(struct keel_slice bytes, struct wal_segment_header *ret_header);

void wal_segment_name(uint64_t epoch, char name[WAL_FILE_NAME]);

/* Whether the name is a segment's, and of which epoch. */
bool wal_segment_parse_name(const char *name, uint64_t *ret_epoch);

void wal_window_init(struct wal_window *win, struct disk *disk);
void wal_window_free(struct wal_window *win);

/* Turns to another file; also forgets what has been read, since the file may have been written to.
 */
void wal_window_open(struct wal_window *win, struct disk_file *file);

/* Bytes at an offset: `want` of them, fewer only at the end of the file. */
int wal_window_get(struct wal_window *win, uint64_t offset, size_t want,
                   struct keel_slice *ret_bytes);

/* The record at an offset. KEEL_E_MALFORMED when what is there does not check by itself. */
int wal_window_record(struct wal_window *win, uint64_t offset, struct wal_record *ret_record,
                      size_t *ret_size);

/* Writes zeroes over [from, to) and syncs. */
int wal_segment_zero(struct wal *w, struct disk_file *file, uint64_t from, uint64_t to);

/* Creates the file of an epoch, so that its name is durable. */
int wal_segment_create(struct wal *w, uint64_t epoch, struct disk_file **ret_file);

/* ---- index.c ---- */

uint64_t wal_index_last(const struct wal_index *x);
/* The first whose predecessor's term is known. */
uint64_t wal_index_first(const struct wal_index *x);

/* Entry `index` is at this place now, and is the last one. */
void wal_index_set(struct wal_index *x, uint64_t index, uint64_t epoch, uint64_t offset);

/* A mark in segment `epoch`: no entries, the next one is index + 1. */
void wal_index_reset(struct wal_index *x, uint64_t index, uint64_t term, uint64_t epoch);
/* No entries, the next one is base + 1; nothing is known of `base` itself, unless it is 0. */
void wal_index_rebase(struct wal_index *x, uint64_t base);

/* Segments older than this one are gone. */
void wal_index_trim(struct wal_index *x, uint64_t oldest_epoch);

/* Of an entry base < index <= last. */
uint64_t wal_index_epoch(const struct wal_index *x, uint64_t index);
uint64_t wal_index_offset(const struct wal_index *x, uint64_t index);

/* The oldest segment that is needed when entries up to `index` are not: one that has an entry above
 * it. The last entry, or the mark when no entry has followed it, is always needed: without it
 * nothing would say where the log ends. 0: all are needed. */
uint64_t wal_index_needs(const struct wal_index *x, uint64_t index);

void wal_index_free(struct wal_index *x);

/* ---- wal.c ---- */

/* An entry or a mark of this term is in the log: a hard state below it was lost, or is still to
 * come. */
void wal_note_term(struct wal *w, uint64_t term);

/* The segment that is oldest_epoch + end_count ends here. */
void wal_note_end(struct wal *w, uint64_t bytes);

/* The term of an entry, or of the base. KEEL_E_NOTFOUND: not known. */
int wal_term_of(struct wal *w, uint64_t index, uint64_t *ret_term);

/* Writes a reset mark with the hard state that goes with it, synced. */
int wal_write_reset(struct wal *w, uint64_t index, uint64_t term);

/* The entry that a record holds; its data is a copy. */
struct raft_entry wal_entry_of(const struct wal_record *record);

/* Writes and syncs the header of an empty segment w->file. */
int wal_write_header(struct wal *w);

/* The log has come to its end, with this error. */
void wal_fail(struct wal *w, int err);

/* ---- recovery.c ---- */

/* Reads everything, judges the end, cuts a torn tail, and leaves w ready to append. */
int wal_recover(struct wal *w, const struct wal_options *options, struct wal_recovery *ret_recovery,
                char *ret_why, size_t why_size);

#endif
