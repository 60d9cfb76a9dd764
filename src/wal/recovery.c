/* Opening a log: list the segments, follow the chain of records from the first one on, judge where
 * it ends, and cut a torn tail. The rule, its reasoning and a worked example are in
 * docs/format-wal.md. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "bytes.h"
#include "check.h"
#include "err.h"
#include "wal/internal.h"

#define ADVICE                                                                                  \
    "restore the data directory from a backup, or remove this member and add it again; do not " \
    "delete the file"

/* A segment that was found, and the bytes behind the log's end that may be what a torn write has
 * left. In a recycled file an older segment's bytes lie there besides; those are not meant. */
struct found_segment {
    uint64_t epoch;
    bool recycled;
    uint64_t dirty_from, dirty_to; /* equal: none */
};

/* The chain ends at record `sequence + 1`, which would be in segment `live - 1` at `offset`. live
 * 0: not even the first segment has a header. */
struct recovery {
    struct wal *w;
    const struct wal_options *options;
    struct wal_recovery *out;
    size_t entry_capacity;
    char *why;
    size_t why_size;
    struct found_segment *found;
    size_t found_count, found_capacity;
    size_t live;
    uint64_t offset;
    struct wal_window window;
};

__attribute__((format(printf, 3, 4))) static int refuse(struct recovery *r, int err,
                                                        const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    vsnprintf(r->why, r->why_size, fmt, args);
    va_end(args);
    return err;
}

/* Words for an error of the disk. */
static int refuse_disk(struct recovery *r, int err, uint64_t epoch, const char *what)
{
    char name[WAL_FILE_NAME];

    wal_segment_name(epoch, name);
    if (err == KEEL_E_DISKFULL)
        return refuse(r, err, "cannot %s %s: no space left on the disk; free some and start again",
                      what, name);
    return refuse(r, KEEL_E_IO, "cannot %s %s: %s; see the kernel's log for the disk's errors",
                  what, name, keel_strerror(err));
}

/* ---- which segments there are ---- */

static int add_segment(void *arg, const char *name)
{
    struct recovery *r = arg;
    uint64_t epoch;

    if (!wal_segment_parse_name(name, &epoch))
        return 0;
    if (r->found_count == r->found_capacity) {
        r->found_capacity = r->found_capacity ? 2 * r->found_capacity : 16;
        r->found = keel_realloc(r->found, r->found_capacity * sizeof r->found[0]);
    }
    r->found[r->found_count++] = (struct found_segment){ .epoch = epoch };
    return 0;
}

static int compare_epochs(const void *a, const void *b)
{
    uint64_t x = ((const struct found_segment *)a)->epoch;
    uint64_t y = ((const struct found_segment *)b)->epoch;

    return (x > y) - (x < y);
}

/* Segments are numbered without gaps: only the oldest ones are released. */
static int list_segments(struct recovery *r)
{
    int err = r->w->disk->ops->list(r->w->disk, add_segment, r);

    if (err != 0)
        return refuse(r, KEEL_E_IO, "cannot list the log's directory: %s", keel_strerror(err));
    if (r->found_count > 0)
        qsort(r->found, r->found_count, sizeof r->found[0], compare_epochs);
    for (size_t i = 0; i < r->found_count; i++) {
        char name[WAL_FILE_NAME];

        if (r->found[i].epoch == r->found[0].epoch + i)
            continue;
        wal_segment_name(r->found[0].epoch + i, name);
        return refuse(r, KEEL_E_CORRUPT,
                      "%s is missing, though later segments of the log exist: " ADVICE, name);
    }
    return 0;
}

static int open_segment(struct recovery *r, size_t i, struct disk_file **ret_file)
{
    char name[WAL_FILE_NAME];

    wal_segment_name(r->found[i].epoch, name);
    int err = r->w->disk->ops->open(r->w->disk, name, 0, ret_file);

    return err == 0 ? 0 : refuse_disk(r, err, r->found[i].epoch, "open");
}

/* ---- following the chain ---- */

static int damaged(struct recovery *r, size_t i, uint64_t offset, const char *proof)
{
    char name[WAL_FILE_NAME];

    wal_segment_name(r->found[i].epoch, name);
    return refuse(r, KEEL_E_CORRUPT,
                  "the log is damaged: record %" PRIu64 " does not check in %s at offset %" PRIu64
                  ", and %s: " ADVICE,
                  r->w->sequence + 1, name, offset, proof);
}

static void drop_entries_from(struct recovery *r, uint64_t index)
{
    struct wal_recovery *out = r->out;

    while (out->count > 0 && out->entries[out->count - 1].index >= index)
        keel_buf_free(out->entries[--out->count].data);
}

/* Entries above the store's applied index are kept in memory, the others only indexed. */
static void keep_entry(struct recovery *r, const struct wal_record *record)
{
    struct wal_recovery *out = r->out;

    drop_entries_from(r, record->index);
    if (record->index == r->options->store_applied)
        out->base_term = record->term;
    if (record->index <= r->options->store_applied)
        return;
    if (out->count == r->entry_capacity) {
        r->entry_capacity = r->entry_capacity ? 2 * r->entry_capacity : 64;
        out->entries = keel_realloc(out->entries, r->entry_capacity * sizeof out->entries[0]);
    }
    out->entries[out->count++] = wal_entry_of(record);
}

/* The first entry of a log whose older segments are gone says where it begins, and so does one that
 * cuts off that one: what stood below it has been released. */
static int take_entry(struct recovery *r, const struct wal_record *record)
{
    struct wal_index *index = &r->w->index;

    if (record->index <= index->base && !index->base_term_known)
        wal_index_rebase(index, record->index - 1);
    if (record->index <= index->base || record->index > wal_index_last(index) + 1)
        return damaged(r, r->live - 1, r->offset, "its entry does not follow the one before it");
    wal_index_set(index, record->index, record->epoch, r->offset);
    keep_entry(r, record);
    wal_note_term(r->w, record->term);
    return 0;
}

static void take_hard_state(struct wal *w, const struct wal_record *record)
{
    w->hard_state = (struct raft_hard_state){
        .term = record->term,
        .vote = get_le64(record->body.data),
        .commit = record->index,
    };
    wal_note_term(w, 0);
}

static void take_reset(struct recovery *r, const struct wal_record *record)
{
    struct wal *w = r->w;

    drop_entries_from(r, 0);
    r->out->base_term = record->index == r->options->store_applied ? record->term : 0;
    wal_index_reset(&w->index, record->index, record->term, record->epoch);
    w->hard_state.commit = record->index;
    wal_note_term(w, record->term);
}

/* What the record says. */
static int take_content(struct recovery *r, const struct wal_record *record)
{
    bool first = r->live == 1 && r->offset == WAL_SEGMENT_HEADER;

    if (first && record->epoch > 1 && record->kind != WAL_HARD_STATE)
        return damaged(r, 0, r->offset,
                       "the log's oldest segment does not begin with a hard state");
    switch ((enum wal_record_kind)record->kind) {
    case WAL_ENTRY:
        return take_entry(r, record);
    case WAL_HARD_STATE:
        take_hard_state(r->w, record);
        break;
    case WAL_DURABLE:
        break;
    case WAL_RESET:
        take_reset(r, record);
        break;
    }
    return 0;
}

/* One record that checks and is next in its chain. */
static int take_record(struct recovery *r, const struct wal_record *record)
{
    struct wal *w = r->w;
    int err = take_content(r, record);

    if (err != 0)
        return err;
    w->sequence = record->sequence;
    w->previous_checksum = record->checksum;
    if (record->kind != WAL_DURABLE)
        w->last_data = record->sequence;
    if (record->durable > w->named)
        w->named = record->durable;
    return 0;
}

/* Replays the open segment from its header's end on, to the first record that does not check. */
static int replay_segment(struct recovery *r)
{
    uint64_t epoch = r->found[r->live - 1].epoch;

    r->offset = WAL_SEGMENT_HEADER;
    for (;;) {
        struct wal_record record;
        size_t size;
        int err = wal_window_record(&r->window, r->offset, &record, &size);

        if (err == KEEL_E_MALFORMED)
            return 0;
        if (err != 0)
            return refuse_disk(r, err, epoch, "read");
        if (record.epoch != epoch || record.sequence != r->w->sequence + 1 ||
            record.previous_checksum != r->w->previous_checksum)
            return 0;
        err = take_record(r, &record);
        if (err != 0)
            return err;
        r->offset += size;
    }
}

/* 1: the header is sound and carries this segment's epoch. 0: there is none, or one of an older
 * epoch: the file has been made ready, but not used. */
static int read_header(struct recovery *r, size_t i, struct wal_segment_header *ret_header)
{
    struct keel_slice bytes;
    uint64_t epoch = r->found[i].epoch;
    char name[WAL_FILE_NAME];
    int err = wal_window_get(&r->window, 0, WAL_SEGMENT_HEADER, &bytes);

    if (err != 0)
        return refuse_disk(r, err, epoch, "read");
    wal_segment_name(epoch, name);
    err = wal_segment_decode(bytes, ret_header);
    if (err == KEEL_E_NEWER)
        return refuse(r, err, "%s was written by a newer version of keelfs: install that version",
                      name);
    if (err != 0)
        return 0;
    r->found[i].recycled = ret_header->recycled || ret_header->epoch < epoch;
    if (ret_header->epoch < epoch)
        return 0;
    if (ret_header->epoch > epoch)
        return refuse(r, KEEL_E_CORRUPT,
                      "%s holds segment %" PRIu64 " of the log: files have been mixed up; " ADVICE,
                      name, ret_header->epoch);
    if (ret_header->cluster_id != r->w->cluster_id)
        return refuse(r, KEEL_E_INVALID,
                      "%s belongs to another cluster (%016" PRIx64 ", this is %016" PRIx64
                      "): start the node with its own data directory",
                      name, ret_header->cluster_id, r->w->cluster_id);
    if (ret_header->node_id != r->w->node_id)
        return refuse(r, KEEL_E_INVALID,
                      "%s belongs to another node (%016" PRIx64 ", this is %016" PRIx64
                      "): start the node with its own data directory",
                      name, ret_header->node_id, r->w->node_id);
    return 1;
}

/* A header is written only when all before it is synced: it proves that the records up to its first
 * one existed. */
static int follow_header(struct recovery *r, size_t i, const struct wal_segment_header *header)
{
    struct wal *w = r->w;

    if (i == 0 && header->epoch > 1) {
        w->sequence = w->last_data = w->named = header->first_sequence - 1;
        w->previous_checksum = header->previous_checksum;
        wal_index_rebase(&w->index, WAL_BASE_UNKNOWN);
    }
    bool follows = header->first_sequence == w->sequence + 1 &&
                   header->previous_checksum == w->previous_checksum;

    if (i == r->live && follows) {
        if (i > 0)
            wal_note_end(w, r->offset);
        r->live = i + 1;
        return replay_segment(r);
    }
    if (i == 0)
        return damaged(r, 0, WAL_SEGMENT_HEADER, "its segment does not begin with it");
    if (r->live == 0)
        return damaged(r, 0, 0, "a later segment of the log is in use");
    return damaged(r, r->live - 1, r->offset, "a later segment of the log goes on behind it");
}

/* Segments behind the first one without a header are looked at as well: a sound header there is a
 * proof of damage. */
static int replay_segments(struct recovery *r)
{
    for (size_t i = 0; i < r->found_count; i++) {
        struct wal_segment_header header;
        struct disk_file *file;
        int err = open_segment(r, i, &file);

        if (err != 0)
            return err;
        wal_window_open(&r->window, file);
        err = read_header(r, i, &header);
        if (err == 1)
            err = follow_header(r, i, &header);
        r->w->disk->ops->close(file);
        if (err != 0)
            return err;
    }
    return 0;
}

/* ---- judging the end ---- */

/* The last word of a file may be a short one. */
static bool word_is_zero(struct keel_slice bytes, size_t at)
{
    uint8_t word[8] = { 0 };

    memcpy(word, bytes.data + at, bytes.len - at < 8 ? bytes.len - at : 8);
    return get_le64(word) == 0;
}

/* Skips zeroes. *ret_offset is where the first word lies that is not zero, or the end of the file.
 */
static int skip_zeroes(struct recovery *r, size_t i, uint64_t offset, uint64_t *ret_offset,
                       bool *ret_end)
{
    for (;;) {
        struct keel_slice bytes;
        size_t at = 0;
        int err = wal_window_get(&r->window, offset, 4096, &bytes);

        if (err != 0)
            return refuse_disk(r, err, r->found[i].epoch, "read");
        while (at < bytes.len && word_is_zero(bytes, at))
            at += bytes.len - at < 8 ? bytes.len - at : 8;
        *ret_offset = offset + at;
        *ret_end = at == bytes.len;
        if (at < bytes.len || bytes.len < 4096)
            return 0;
        offset += at;
    }
}

/* How much of what lies at an offset, which is no sound record of this epoch, may be a torn
 * write's: in a recycled file, whatever says that it is of this epoch. */
static uint64_t torn_size(struct recovery *r, size_t i, uint64_t offset)
{
    struct keel_slice bytes;
    uint64_t epoch;
    size_t size;

    if (!r->found[i].recycled)
        return 8;
    if (wal_window_get(&r->window, offset, WAL_RECORD_HEADER, &bytes) != 0 ||
        bytes.len < WAL_RECORD_HEADER || !wal_record_peek(bytes.data, &size, &epoch) ||
        epoch != r->found[i].epoch)
        return 0;
    return size;
}

/* Whether `count` records can lie between the end and here. A record that says more is not one of
 * this log: a copy of another node's, say, in what is left of some entry's data. */
static bool is_in_reach(const struct recovery *r, size_t i, uint64_t offset, uint64_t count)
{
    return i + 1 != r->live || count <= (offset - r->offset) / WAL_RECORD_HEADER;
}

/* Looks at the word at an offset, which is not zero. 1: a record begins there that was written when
 * record s was known to be synced, so the chain once went on. *ret_size: how far it goes; bodies of
 * sound records, of older ones too, are not looked into. *ret_torn: how much of it may be a torn
 * write's. */
static int weigh_word(struct recovery *r, size_t i, uint64_t offset, uint64_t s, size_t *ret_size,
                      uint64_t *ret_torn)
{
    const struct found_segment *found = &r->found[i];
    struct wal_record record;
    int err = wal_window_record(&r->window, offset, &record, ret_size);

    if (err < 0 && err != KEEL_E_MALFORMED)
        return refuse_disk(r, err, found->epoch, "read");
    if (err == 0 && record.epoch == found->epoch) {
        *ret_torn = *ret_size;
        return record.durable >= s && is_in_reach(r, i, offset, record.sequence - s);
    }
    if (err == 0 && record.epoch < found->epoch) {
        *ret_torn = found->recycled ? 0 : *ret_size;
        return 0;
    }
    *ret_size = 8;
    *ret_torn = torn_size(r, i, offset);
    return 0;
}

static void note_dirty(struct found_segment *found, uint64_t from, uint64_t to)
{
    if (found->dirty_to == 0)
        found->dirty_from = from;
    if (found->dirty_to < to)
        found->dirty_to = to;
}

/* Looks through a segment from an offset on for such a proof, and for what is to be cut. Behind the
 * log's end a recycled file has no zeroes that would show where a torn write begins: there, it is
 * the end itself. */
static int scan_segment(struct recovery *r, size_t i, uint64_t offset, uint64_t s)
{
    struct found_segment *found = &r->found[i];
    uint64_t start = offset;

    for (;;) {
        uint64_t torn = 0;
        size_t size;
        bool end = false;
        int err = skip_zeroes(r, i, offset, &offset, &end);

        if (err != 0 || end)
            return err;
        err = weigh_word(r, i, offset, s, &size, &torn);
        if (err != 0)
            return err;
        if (torn > 0)
            note_dirty(found, found->recycled && i + 1 == r->live ? start : offset, offset + torn);
        offset += size;
    }
}

/* Where a segment is not part of the log any more. The header of an older epoch stays. */
static uint64_t scan_start(const struct recovery *r, size_t i)
{
    if (i + 1 == r->live)
        return r->offset;
    return r->found[i].recycled ? WAL_SEGMENT_HEADER : 0;
}

/* What doubt falls on: the first record that does not check, or the header that should follow. */
static size_t blamed_segment(const struct recovery *r, uint64_t *ret_offset)
{
    size_t last = r->live > 0 ? r->live - 1 : 0;
    bool clean = r->found_count > 0 && r->found[last].dirty_to == 0;

    *ret_offset = r->live > 0 ? r->offset : 0;
    if (clean && last + 1 < r->found_count && r->found[last + 1].dirty_to > 0) {
        *ret_offset = 0;
        return last + 1;
    }
    return last;
}

static int scan_tail(struct recovery *r)
{
    size_t first = r->live > 0 ? r->live - 1 : 0;
    uint64_t s = r->live > 0 ? r->w->sequence + 1 : 0;
    bool proven = false;

    for (size_t i = first; i < r->found_count; i++) {
        struct disk_file *file;
        int err = open_segment(r, i, &file);

        if (err != 0)
            return err;
        wal_window_open(&r->window, file);
        err = scan_segment(r, i, scan_start(r, i), s);
        r->w->disk->ops->close(file);
        if (err < 0)
            return err;
        proven = proven || err == 1;
    }

    uint64_t offset;
    size_t blamed = blamed_segment(r, &offset);

    if (proven)
        return damaged(r, blamed, offset, "a record behind it says that it was synced");
    if (r->found_count > first + 2)
        return damaged(r, blamed, offset, "there are more segments than one made ready behind it");
    if (r->live == 0 && r->found_count > 0 && r->found[0].epoch > 1)
        return damaged(r, 0, 0, "the log's oldest segment has no header");
    return 0;
}

/* The store is ahead of the log: because something was lost, or because the two do not belong
 * together. */
static int refuse_store_ahead(struct recovery *r, size_t blamed, uint64_t offset)
{
    uint64_t last = wal_index_last(&r->w->index);

    if (r->found_count > 0 && r->found[blamed].dirty_to > 0) {
        char name[WAL_FILE_NAME];

        wal_segment_name(r->found[blamed].epoch, name);
        return refuse(r, KEEL_E_CORRUPT,
                      "the log is damaged: record %" PRIu64
                      " does not check in %s at offset %" PRIu64 " behind entry %" PRIu64
                      ", and the store has applied entry %" PRIu64 ": " ADVICE,
                      r->w->sequence + 1, name, offset, last, r->options->store_applied);
    }
    return refuse(r, KEEL_E_CORRUPT,
                  "the store is ahead of the log: it has applied entry %" PRIu64
                  ", the log ends at entry %" PRIu64
                  "; the log and the store must be of the same node and moment: " ADVICE,
                  r->options->store_applied, last);
}

/* The log must begin before, or right behind, what the store has. */
static int check_beginning(struct recovery *r)
{
    const struct wal_index *index = &r->w->index;
    char name[WAL_FILE_NAME];

    if (index->base <= r->options->store_applied)
        return 0;
    wal_segment_name(r->found[0].epoch, name);
    return refuse(r, KEEL_E_CORRUPT,
                  "segments are missing: the log begins in %s, with entry %" PRIu64
                  ", and the store has applied entry %" PRIu64 " only: " ADVICE,
                  name, index->base + 1, r->options->store_applied);
}

/* The end must not lie before what is known to be committed, nor before what the store has taken
 * from it, unless the store has it from a snapshot whose mark is still to be written. */
static int check_reach(struct recovery *r)
{
    uint64_t last = wal_index_last(&r->w->index);
    uint64_t offset;
    size_t blamed = blamed_segment(r, &offset);

    if (r->w->index.base == WAL_BASE_UNKNOWN)
        return damaged(r, blamed, offset, "no entry of the log is left before it");
    if (last < r->w->hard_state.commit)
        return damaged(r, blamed, offset,
                       "the log ends before an entry that is known to be committed");
    int err = check_beginning(r);

    if (err != 0 || last >= r->options->store_applied ||
        r->options->store_applied <= r->options->install_index)
        return err;
    return refuse_store_ahead(r, blamed, offset);
}

/* ---- making it ready ---- */

static void report_cut(struct recovery *r)
{
    uint64_t offset;
    size_t blamed = blamed_segment(r, &offset);

    if (r->found[blamed].dirty_to == 0)
        return;
    r->out->tail_cut = true;
    r->out->cut_offset = offset;
    wal_segment_name(r->found[blamed].epoch, r->out->cut_file);
}

/* Zeroes what lies behind the end, so that it can't be taken for a continuation of what is appended
 * next. */
static int adopt_segment(struct recovery *r, size_t i, struct disk_file **ret_file,
                         uint64_t *ret_size)
{
    const struct found_segment *found = &r->found[i];
    struct disk_file *file;
    int err = open_segment(r, i, &file);

    if (err != 0)
        return err;
    *ret_file = file;
    int64_t size = r->w->disk->ops->size(file);

    if (size < 0)
        return refuse_disk(r, (int)size, found->epoch, "read the size of");
    *ret_size = (uint64_t)size;
    if (found->dirty_to > found->dirty_from) {
        uint64_t to = found->dirty_to < *ret_size ? found->dirty_to : *ret_size;

        err = wal_segment_zero(r->w, file, found->dirty_from, to);
        if (err != 0)
            return refuse_disk(r, err, found->epoch, "cut the torn tail of");
    }
    return 0;
}

/* The process may have been killed between a write and its sync: what was read just now could still
 * be lost, so it is synced before anyone relies on it. Older segments were synced before the last
 * one got its header. */
static int settle(struct recovery *r)
{
    struct wal *w = r->w;
    size_t last = r->live > 0 ? r->live - 1 : 0;
    int err = adopt_segment(r, last, &w->file, &w->filled);

    w->epoch = r->found[last].epoch;
    w->recycled = r->found[last].recycled;
    w->offset = r->live > 0 ? r->offset : 0;
    if (err == 0 && last + 1 < r->found_count)
        err = adopt_segment(r, last + 1, &w->next, &w->next_filled);
    if (err != 0)
        return err;
    w->next_recycled = w->next != NULL && r->found[last + 1].recycled;
    err = w->disk->ops->sync(w->file);
    if (err == 0)
        err = w->disk->ops->sync_dir(w->disk);
    if (err == 0 && w->offset == 0)
        err = wal_write_header(w);
    if (err != 0)
        return refuse_disk(r, err, w->epoch, "sync");
    w->durable = w->sequence;
    return 0;
}

static int create_log(struct recovery *r)
{
    struct wal *w = r->w;
    int err = wal_segment_create(w, 1, &w->file);

    if (err != 0)
        return refuse_disk(r, err, 1, "create");
    w->epoch = 1;
    err = wal_write_header(w);
    return err == 0 ? 0 : refuse_disk(r, err, 1, "write");
}

/* Whether the log goes on from the snapshot that is being installed: it was reset to it, or it has
 * that very entry, so that what follows it may have been acknowledged and stays. */
static int log_has_snapshot(struct recovery *r, bool *ret_has)
{
    const struct wal_index *index = &r->w->index;
    uint64_t term;
    int err = wal_term_of(r->w, r->options->install_index, &term);

    if (err != 0 && err != KEEL_E_NOTFOUND)
        return refuse_disk(r, err, r->found[0].epoch, "read");
    if (err == 0)
        *ret_has = term == r->options->install_term;
    else
        *ret_has = r->options->install_index == index->base; /* its entry has been released */
    return 0;
}

/* The last step of an installation that a crash has come before. */
static int finish_install(struct recovery *r)
{
    uint64_t index = r->options->install_index, term = r->options->install_term;
    uint64_t commit = r->w->hard_state.commit;
    bool done = false;
    int err = index > 0 ? log_has_snapshot(r, &done) : 0;

    if (index == 0 || err != 0 || done)
        return err;
    if (commit >= index || r->options->store_applied > index)
        return refuse(r, KEEL_E_CORRUPT,
                      "a snapshot of entry %" PRIu64 " was being installed, and entry %" PRIu64
                      " is already committed: the log and the store must be of the same node and "
                      "moment: " ADVICE,
                      index,
                      commit > r->options->store_applied ? commit : r->options->store_applied);
    err = wal_write_reset(r->w, index, term);
    if (err != 0)
        return refuse_disk(r, err, r->w->epoch, "write");
    drop_entries_from(r, 0);
    r->out->base_term = r->options->store_applied == index ? term : 0;
    return 0;
}

static void tell_result(struct recovery *r)
{
    r->out->hard_state = r->w->hard_state;
    r->out->first_index = wal_index_first(&r->w->index);
    r->out->last_index = wal_index_last(&r->w->index);
}

/* Leaves the log as it can be appended to. */
static int make_ready(struct recovery *r)
{
    struct wal *w = r->w;

    r->out->fresh = r->live == 0;
    w->oldest_epoch = r->found_count > 0 ? r->found[0].epoch : 1;
    if (r->found_count == 0)
        return create_log(r);
    report_cut(r);
    return settle(r);
}

static int recover(struct recovery *r)
{
    int err = list_segments(r);

    wal_index_rebase(&r->w->index, 0);
    r->w->index.origin = r->found_count > 0 ? r->found[0].epoch : 1;
    if (err == 0)
        err = replay_segments(r);
    if (err == 0)
        err = scan_tail(r);
    if (err == 0)
        err = check_reach(r);
    if (err == 0)
        err = make_ready(r);
    if (err == 0)
        err = finish_install(r);
    if (err == 0)
        tell_result(r);
    return err;
}

int wal_recover(struct wal *w, const struct wal_options *options, struct wal_recovery *ret_recovery,
                char *ret_why, size_t why_size)
{
    struct recovery r = {
        .w = w,
        .options = options,
        .out = ret_recovery,
        .why = ret_why,
        .why_size = why_size,
    };

    wal_window_init(&r.window, w->disk);
    int err = recover(&r);

    wal_window_free(&r.window);
    free(r.found);
    return err;
}
