/* The open log: appending batches, naming what is durable, filling ahead, reading back. What a log
 * on disk means when it is opened is recovery.c's business. */
#include <stdlib.h>

#include "bytes.h"
#include "check.h"
#include "err.h"
#include "wal/internal.h"

/* Bodies up to this size are copied beside their headers: cheaper than one more piece in the write.
 */
enum { SMALL_BODY = 4096, SCRATCH_KEPT = 4 << 20 };

struct wal_batch *wal_batch_free(struct wal_batch *batch)
{
    if (batch == NULL)
        return NULL;
    raft_entries_free(batch->entries, batch->count);
    free(batch);
    return NULL;
}

void wal_recovery_free(struct wal_recovery *recovery)
{
    raft_entries_free(recovery->entries, recovery->count);
    *recovery = (struct wal_recovery){ 0 };
}

int wal_open(struct disk *disk, const struct wal_options *options, struct wal **ret_wal,
             struct wal_recovery *ret_recovery, char *ret_why, size_t why_size)
{
    struct wal *w = keel_calloc(1, sizeof *w);
    struct wal_recovery recovery = { 0 };

    w->disk = disk;
    w->cluster_id = options->cluster_id;
    w->node_id = options->node_id;
    w->segment_bytes = options->segment_bytes ? options->segment_bytes : WAL_SEGMENT_BYTES;
    w->fill_bytes = options->fill_bytes ? options->fill_bytes : WAL_FILL_BYTES;
    w->zeroes = keel_calloc(1, (size_t)w->fill_bytes);
    wal_window_init(&w->window, disk);
    if (why_size > 0)
        ret_why[0] = '\0';

    int err = wal_recover(w, options, &recovery, ret_why, why_size);

    if (err != 0) {
        wal_recovery_free(&recovery);
        wal_close(w);
        return err;
    }
    *ret_wal = w;
    *ret_recovery = recovery;
    return 0;
}

static int is_segment(void *arg, const char *name)
{
    uint64_t epoch;

    (void)arg;
    return wal_segment_parse_name(name, &epoch) ? 1 : 0;
}

int wal_is_there(struct disk *disk, bool *ret_there)
{
    int found = disk->ops->list(disk, is_segment, NULL);

    *ret_there = found == 1;
    return found < 0 ? found : 0;
}

struct wal *wal_close(struct wal *w)
{
    if (w == NULL)
        return NULL;
    if (w->file != NULL)
        w->disk->ops->close(w->file);
    if (w->next != NULL)
        w->disk->ops->close(w->next);
    if (w->reader != NULL)
        w->disk->ops->close(w->reader);
    wal_window_free(&w->window);
    wal_index_free(&w->index);
    free(w->ends);
    free(w->gather.scratch);
    free(w->gather.pieces);
    free(w->gather.iov);
    free(w->zeroes);
    free(w);
    return NULL;
}

uint64_t wal_last_index(const struct wal *w)
{
    return wal_index_last(&w->index);
}

uint64_t wal_first_index(const struct wal *w)
{
    return wal_index_first(&w->index);
}

void wal_note_term(struct wal *w, uint64_t term)
{
    if (term > w->entry_term)
        w->entry_term = term;
    if (w->hard_state.term < w->entry_term) {
        w->hard_state.term = w->entry_term;
        w->hard_state.vote = 0;
    }
}

void wal_note_end(struct wal *w, uint64_t bytes)
{
    if (w->end_count == w->end_capacity) {
        w->end_capacity = w->end_capacity ? 2 * w->end_capacity : 16;
        w->ends = keel_realloc(w->ends, w->end_capacity * sizeof w->ends[0]);
    }
    w->ends[w->end_count++] = bytes;
}

/* ---- putting one write together ---- */

static struct wal_piece *gather_piece(struct wal_gather *g)
{
    if (g->piece_count == g->piece_capacity) {
        g->piece_capacity = g->piece_capacity ? 2 * g->piece_capacity : 16;
        g->pieces = keel_realloc(g->pieces, g->piece_capacity * sizeof g->pieces[0]);
    }
    return &g->pieces[g->piece_count++];
}

/* Room for `len` bytes in the scratch area, as part of the write. Valid until the next call. */
static uint8_t *gather_reserve(struct wal_gather *g, size_t len)
{
    if (g->scratch_len + len > g->scratch_capacity) {
        g->scratch_capacity = 2 * (g->scratch_len + len);
        g->scratch = keel_realloc(g->scratch, g->scratch_capacity);
    }
    if (g->piece_count == 0 || g->pieces[g->piece_count - 1].body != NULL)
        *gather_piece(g) = (struct wal_piece){ NULL, g->scratch_len, 0 };
    g->pieces[g->piece_count - 1].len += len;

    uint8_t *p = g->scratch + g->scratch_len;

    g->scratch_len += len;
    g->bytes += len;
    return p;
}

static void gather_body(struct wal_gather *g, struct keel_slice body)
{
    static const uint8_t padding[8];
    size_t pad = wal_record_size(body.len) - WAL_RECORD_HEADER - body.len;

    if (body.len > SMALL_BODY) {
        *gather_piece(g) = (struct wal_piece){ body.data, 0, body.len };
        g->bytes += body.len;
    } else if (body.len > 0) {
        memcpy(gather_reserve(g, body.len), body.data, body.len);
    }
    if (pad > 0)
        memcpy(gather_reserve(g, pad), padding, pad);
}

static void gather_reset(struct wal_gather *g)
{
    if (g->scratch_capacity > SCRATCH_KEPT) {
        free(g->scratch);
        g->scratch = NULL;
        g->scratch_capacity = 0;
    }
    g->scratch_len = 0;
    g->piece_count = 0;
    g->bytes = 0;
}

static void gather_to_iov(struct wal_gather *g)
{
    if (g->iov_capacity < g->piece_count) {
        g->iov_capacity = g->piece_capacity;
        g->iov = keel_realloc(g->iov, g->iov_capacity * sizeof g->iov[0]);
    }
    for (size_t i = 0; i < g->piece_count; i++) {
        const struct wal_piece *piece = &g->pieces[i];
        const uint8_t *base = piece->body ? piece->body : g->scratch + piece->offset;

        g->iov[i] = (struct iovec){ (void *)(uintptr_t)base, piece->len };
    }
}

/* ---- appending ---- */

void wal_fail(struct wal *w, int err)
{
    w->failed = err == KEEL_E_DISKFULL ? err : KEEL_E_IO;
}

/* Writes and syncs what has been gathered. All records in it then count as durable; what they say
 * of themselves ends before this write. */
static int flush(struct wal *w)
{
    struct wal_gather *g = &w->gather;

    if (g->bytes == 0)
        return 0;
    gather_to_iov(g);
    int err = w->disk->ops->write(w->file, w->offset, g->iov, g->piece_count);

    if (err == 0)
        err = w->disk->ops->sync(w->file);
    if (err != 0) {
        wal_fail(w, err);
        return err;
    }
    w->offset += g->bytes;
    if (w->filled < w->offset)
        w->filled = w->offset;
    w->named = w->durable;
    w->durable = w->sequence;
    gather_reset(g);
    return 0;
}

static void gather_segment_header(struct wal *w)
{
    struct wal_segment_header header = {
        .version = WAL_FORMAT_VERSION,
        .cluster_id = w->cluster_id,
        .node_id = w->node_id,
        .epoch = w->epoch,
        .first_sequence = w->sequence + 1,
        .previous_checksum = w->previous_checksum,
        .recycled = w->recycled,
    };

    wal_segment_encode(&header, gather_reserve(&w->gather, WAL_SEGMENT_HEADER));
}

int wal_write_header(struct wal *w)
{
    KEEL_ASSERT(w->offset == 0 && w->gather.bytes == 0);
    gather_segment_header(w);
    return flush(w);
}

/* Everything in the segment is synced, so that a header in the next one proves it. */
static int switch_segment(struct wal *w)
{
    KEEL_ASSERT(w->gather.bytes == 0 && w->durable == w->sequence);

    struct disk_file *file = w->next;

    if (file == NULL) {
        int err = wal_segment_create(w, w->epoch + 1, &file);

        if (err != 0) {
            wal_fail(w, err);
            return err;
        }
    }
    wal_note_end(w, w->offset);
    w->disk->ops->close(w->file);
    w->file = file;
    w->filled = w->next ? w->next_filled : 0;
    w->recycled = w->next && w->next_recycled;
    w->next = NULL;
    w->next_filled = 0;
    w->next_recycled = false;
    w->epoch++;
    w->offset = 0;
    return 0;
}

/* A segment takes at least one record, whatever its size. */
static bool segment_is_full(const struct wal *w, size_t more)
{
    uint64_t end = w->offset + w->gather.bytes;

    return end > WAL_SEGMENT_FRONT && end + more > w->segment_bytes;
}

/* Completes the record's place in the chain and adds it to the write. */
static void place(struct wal *w, struct wal_record *record)
{
    record->length = (uint32_t)record->body.len;
    record->epoch = w->epoch;
    record->sequence = w->sequence + 1;
    record->previous_checksum = w->previous_checksum;
    record->durable = w->durable;
    if (record->kind == WAL_ENTRY)
        wal_index_set(&w->index, record->index, w->epoch, w->offset + w->gather.bytes);
    w->previous_checksum = wal_record_encode(record, gather_reserve(&w->gather, WAL_RECORD_HEADER));
    gather_body(&w->gather, record->body);
    w->sequence++;
    if (record->kind != WAL_DURABLE)
        w->last_data = w->sequence;
}

/* The commit index is a hint, and recovery takes a log that ends before it for damaged: never
 * promise more than what stands before this record. `vote` becomes the body. */
static struct wal_record
hard_state_record(const struct wal *w, const struct raft_hard_state *hard_state, uint8_t vote[8])
{
    uint64_t last = wal_index_last(&w->index);

    put_le64(vote, hard_state->vote);
    return (struct wal_record){
        .kind = WAL_HARD_STATE,
        .term = hard_state->term,
        .index = hard_state->commit < last ? hard_state->commit : last,
        .body = keel_slice_of(vote, 8),
    };
}

/* What a segment begins with: its header and, so that it stands alone when those before it have
 * been released, the hard state. The log's very first segment has none to tell of. */
static void place_front(struct wal *w)
{
    uint8_t vote[8];

    if (w->offset + w->gather.bytes == 0)
        gather_segment_header(w);
    if (w->epoch == 1 || w->offset + w->gather.bytes > WAL_SEGMENT_HEADER)
        return;
    struct wal_record record = hard_state_record(w, &w->hard_state, vote);

    place(w, &record);
}

static int append(struct wal *w, struct wal_record *record)
{
    if (segment_is_full(w, wal_record_size(record->body.len))) {
        int err = flush(w);

        if (err == 0)
            err = switch_segment(w);
        if (err != 0)
            return err;
    }
    place_front(w);
    place(w, record);
    return 0;
}

static int append_entry(struct wal *w, const struct raft_entry *entry)
{
    KEEL_ASSERT(keel_buf_slice(entry->data).len <= KEEL_ENTRY_SIZE_MAX);

    struct wal_record record = {
        .kind = WAL_ENTRY,
        .entry_kind = (uint8_t)entry->kind,
        .term = entry->term,
        .index = entry->index,
        .body = keel_buf_slice(entry->data),
    };
    int err = append(w, &record);

    if (err == 0)
        wal_note_term(w, entry->term);
    return err;
}

static int append_hard_state(struct wal *w, const struct raft_hard_state *hard_state)
{
    uint8_t vote[8];
    struct wal_record record = hard_state_record(w, hard_state, vote);
    int err = append(w, &record);

    if (err != 0)
        return err;
    w->hard_state = *hard_state;
    w->hard_state.commit = record.index;
    wal_note_term(w, 0);
    return 0;
}

/* All up to the mark is in a snapshot, so it was committed, and nothing behind it is known. */
static int append_reset(struct wal *w, uint64_t index, uint64_t term)
{
    struct wal_record record = { .kind = WAL_RESET, .term = term, .index = index };

    KEEL_ASSERT(index > 0);
    int err = append(w, &record);

    if (err != 0)
        return err;
    wal_index_reset(&w->index, index, term, w->epoch);
    w->hard_state.commit = index;
    wal_note_term(w, term);
    return 0;
}

/* The hard state comes last: if the batch is torn, its commit index can't outlive the entries it
 * speaks of. */
static int append_batch(struct wal *w, const struct wal_batch *batch)
{
    int err = batch->reset ? append_reset(w, batch->reset_index, batch->reset_term) : 0;

    for (size_t i = 0; err == 0 && i < batch->count; i++) {
        KEEL_ASSERT(i == 0 || batch->entries[i].index == batch->entries[i - 1].index + 1);
        err = append_entry(w, &batch->entries[i]);
    }
    if (err == 0 && batch->has_hard_state)
        err = append_hard_state(w, &batch->hard_state);
    return err;
}

int wal_write_reset(struct wal *w, uint64_t index, uint64_t term)
{
    int err = append_reset(w, index, term);
    struct raft_hard_state hard_state = w->hard_state;

    if (err == 0)
        err = append_hard_state(w, &hard_state);
    return err == 0 ? flush(w) : err;
}

int wal_write(struct wal *w, struct wal_batch *const *batches, size_t count)
{
    if (w->failed != 0)
        return w->failed;
    for (size_t i = 0; i < count; i++) {
        int err = append_batch(w, batches[i]);

        if (err != 0)
            return err;
    }
    return flush(w);
}

int wal_idle(struct wal *w)
{
    if (w->failed != 0)
        return w->failed;
    if (w->last_data <= w->named)
        return 0;

    struct wal_record record = { .kind = WAL_DURABLE };
    int err = append(w, &record);

    return err != 0 ? err : flush(w);
}

/* ---- filling ahead ---- */

/* One step of zeroes at the end of a file. */
static int fill_step(struct wal *w, struct disk_file *file, uint64_t *filled)
{
    uint64_t end = (*filled / w->fill_bytes + 1) * w->fill_bytes;

    if (end > w->segment_bytes)
        end = w->segment_bytes;

    struct iovec iov = { w->zeroes, (size_t)(end - *filled) };
    int err = w->disk->ops->write(file, *filled, &iov, 1);

    if (err != 0)
        return err; /* harmless: the log has not lost anything yet */
    err = w->disk->ops->sync(file);
    if (err != 0) {
        wal_fail(w, err);
        return err;
    }
    *filled = end;
    return 0;
}

/* How far each of the two segments should be filled by now. */
static void fill_goals(const struct wal *w, uint64_t *ret_current, uint64_t *ret_next)
{
    uint64_t ahead = w->offset + WAL_FILL_AHEAD * w->fill_bytes;

    *ret_current = ahead < w->segment_bytes ? ahead : w->segment_bytes;
    *ret_next = ahead - *ret_current;
    if (*ret_next > w->segment_bytes)
        *ret_next = w->segment_bytes;
}

static bool fill_is_due(const struct wal *w)
{
    uint64_t current, next;

    fill_goals(w, &current, &next);
    return w->filled < current || w->next_filled < next;
}

int wal_prepare(struct wal *w, bool *ret_more)
{
    uint64_t current, next;
    int err = 0;

    if (w->failed != 0)
        return w->failed;
    fill_goals(w, &current, &next);
    if (w->filled < current) {
        err = fill_step(w, w->file, &w->filled);
    } else if (w->next_filled < next) {
        if (w->next == NULL)
            err = wal_segment_create(w, w->epoch + 1, &w->next);
        else
            err = fill_step(w, w->next, &w->next_filled);
    }
    if (err != 0)
        return err;
    *ret_more = fill_is_due(w);
    return 0;
}

/* ---- reading back ---- */

static int turn_to_segment(struct wal *w, uint64_t epoch)
{
    char name[WAL_FILE_NAME];

    if (epoch == w->epoch) {
        if (w->window.file != w->file)
            wal_window_open(&w->window, w->file);
        return 0;
    }
    if (w->reader == NULL || w->reader_epoch != epoch) {
        struct disk_file *file;

        wal_segment_name(epoch, name);
        int err = w->disk->ops->open(w->disk, name, 0, &file);

        if (err != 0)
            return err == KEEL_E_NOTFOUND ? KEEL_E_CORRUPT : err;
        if (w->reader != NULL)
            w->disk->ops->close(w->reader);
        w->reader = file;
        w->reader_epoch = epoch;
        wal_window_open(&w->window, file);
    }
    if (w->window.file != w->reader)
        wal_window_open(&w->window, w->reader);
    return 0;
}

/* The record is borrowed until the next read. */
static int read_record(struct wal *w, uint64_t index, struct wal_record *ret_record)
{
    uint64_t epoch = wal_index_epoch(&w->index, index);
    size_t size;
    int err = turn_to_segment(w, epoch);

    if (err == 0)
        err = wal_window_record(&w->window, wal_index_offset(&w->index, index), ret_record, &size);
    if (err == KEEL_E_MALFORMED)
        return KEEL_E_CORRUPT;
    if (err != 0)
        return err;
    if (ret_record->kind != WAL_ENTRY || ret_record->index != index || ret_record->epoch != epoch)
        return KEEL_E_CORRUPT;
    return 0;
}

int wal_term_of(struct wal *w, uint64_t index, uint64_t *ret_term)
{
    struct wal_record record;

    if (index == w->index.base && w->index.base_term_known) {
        *ret_term = w->index.base_term;
        return 0;
    }
    if (index <= w->index.base || index > wal_index_last(&w->index))
        return KEEL_E_NOTFOUND;
    int err = read_record(w, index, &record);

    if (err == 0)
        *ret_term = record.term;
    return err;
}

struct raft_entry wal_entry_of(const struct wal_record *record)
{
    bool bare = record->entry_kind == RAFT_ENTRY_NOOP && record->body.len == 0;

    return (struct raft_entry){
        .term = record->term,
        .index = record->index,
        .kind = (enum raft_entry_kind)record->entry_kind,
        .data = bare ? NULL : keel_buf_copy(record->body),
    };
}

static int read_entries(struct wal *w, uint64_t first, size_t max_bytes,
                        struct raft_entry **entries, size_t *count)
{
    size_t capacity = 0, bytes = 0;

    for (uint64_t index = first; index <= wal_index_last(&w->index); index++) {
        struct wal_record record;

        if (*count > 0 && bytes + raft_entry_bytes(&(struct raft_entry){ 0 }) > max_bytes)
            return 0; /* not even an empty one fits */
        int err = read_record(w, index, &record);

        if (err != 0)
            return err;

        struct raft_entry entry = wal_entry_of(&record);

        bytes += raft_entry_bytes(&entry);
        if (*count > 0 && bytes > max_bytes) {
            keel_buf_free(entry.data);
            return 0;
        }
        if (*count == capacity) {
            capacity = capacity ? 2 * capacity : 16;
            *entries = keel_realloc(*entries, capacity * sizeof **entries);
        }
        (*entries)[(*count)++] = entry;
    }
    return 0;
}

int wal_read(struct wal *w, uint64_t first, size_t max_bytes, struct raft_entry **ret_entries,
             size_t *ret_count, uint64_t *ret_prev_term)
{
    struct raft_entry *entries = NULL;
    size_t count = 0;
    uint64_t prev_term;
    int err;

    if (first < wal_first_index(w) || first > wal_last_index(w))
        return KEEL_E_NOTFOUND;
    wal_window_open(&w->window, NULL); /* the current segment may have grown since */
    err = wal_term_of(w, first - 1, &prev_term);
    if (err == 0)
        err = read_entries(w, first, max_bytes, &entries, &count);
    if (err != 0) {
        raft_entries_free(entries, count);
        return err;
    }
    *ret_entries = entries;
    *ret_count = count;
    *ret_prev_term = prev_term;
    return 0;
}
