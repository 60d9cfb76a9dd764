/* The chain of a segment, from its header on. */
#include "wal_walk.h"

#include <stdlib.h>

#include "check.h"
#include "err.h"

struct found {
    uint64_t *epochs;
    size_t count, capacity;
};

static int add_epoch(void *arg, const char *name)
{
    struct found *found = arg;
    uint64_t epoch;

    if (!wal_segment_parse_name(name, &epoch))
        return 0;
    if (found->count == found->capacity) {
        found->capacity = found->capacity ? 2 * found->capacity : 16;
        found->epochs = keel_realloc(found->epochs, found->capacity * sizeof *found->epochs);
    }
    found->epochs[found->count++] = epoch;
    return 0;
}

static int compare_epochs(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return (x > y) - (x < y);
}

int walk_list(struct disk *disk, uint64_t **ret_epochs, size_t *ret_count)
{
    struct found found = { 0 };
    int err = disk->ops->list(disk, add_epoch, &found);

    if (found.count > 0)
        qsort(found.epochs, found.count, sizeof *found.epochs, compare_epochs);
    *ret_epochs = found.epochs;
    *ret_count = found.count;
    return err;
}

static bool all_zero(struct keel_slice bytes)
{
    for (size_t i = 0; i < bytes.len; i++)
        if (bytes.data[i] != 0)
            return false;
    return true;
}

static int read_header(struct wal_window *window, struct walk_segment *s)
{
    struct keel_slice bytes;
    int err = wal_window_get(window, 0, WAL_SEGMENT_HEADER, &bytes);

    if (err != 0)
        return err;
    err = wal_segment_decode(bytes, &s->header);
    if (err == 0)
        s->state = s->header.epoch == s->epoch  ? WALK_SOUND
                   : s->header.epoch < s->epoch ? WALK_READY
                                                : WALK_BAD;
    else if (err == KEEL_E_NEWER)
        s->state = WALK_NEWER;
    else
        s->state = all_zero(bytes) ? WALK_READY : WALK_BAD;
    return 0;
}

static int walk_chain(const struct walk *walk, struct wal_window *window, struct walk_segment *s)
{
    s->used = WAL_SEGMENT_HEADER;
    s->last_sequence = s->header.first_sequence - 1;
    s->last_checksum = s->header.previous_checksum;
    for (;;) {
        struct wal_record record;
        size_t size;
        int err = wal_window_record(window, s->used, &record, &size);

        if (err == KEEL_E_MALFORMED)
            return 0;
        if (err != 0)
            return err;
        if (record.epoch != s->epoch || record.sequence != s->last_sequence + 1 ||
            record.previous_checksum != s->last_checksum)
            return 0;
        err = walk->record != NULL ? walk->record(walk->arg, s, s->used, &record) : 0;
        if (err != 0)
            return err;
        s->records++;
        s->last_sequence = record.sequence;
        s->last_checksum = record.checksum;
        s->used += size;
    }
}

/* How far to the next word that may be worth a look. */
static int look_behind(const struct walk *walk, struct wal_window *window, struct walk_segment *s,
                       uint64_t offset, size_t *ret_size)
{
    struct wal_record record;
    struct keel_slice bytes;
    int err = wal_window_record(window, offset, &record, ret_size);

    if (err != 0 && err != KEEL_E_MALFORMED)
        return err;
    if (err == 0 && record.epoch == s->epoch) {
        s->clean_end = false;
        return walk->stray != NULL ? walk->stray(walk->arg, s, offset, &record) : 0;
    }
    if (err == 0)
        return 0;
    *ret_size = 8;
    err = wal_window_get(window, offset, 8, &bytes);
    if (err == 0 && !s->header.recycled && !all_zero(bytes))
        s->clean_end = false;
    return err;
}

static int walk_behind(const struct walk *walk, struct wal_window *window, struct walk_segment *s)
{
    uint64_t offset = s->used;
    size_t size;
    int err = 0;

    s->clean_end = true;
    for (; offset < s->size && err == 0; offset += size)
        err = look_behind(walk, window, s, offset, &size);
    return err;
}

static int walk_file(const struct walk *walk, struct wal_window *window, struct walk_segment *s)
{
    int err = read_header(window, s);

    if (err == 0 && walk->begin != NULL)
        err = walk->begin(walk->arg, s);
    if (err == 0 && s->state == WALK_SOUND)
        err = walk_chain(walk, window, s);
    if (err == 0 && s->state == WALK_SOUND)
        err = walk_behind(walk, window, s);
    if (err == 0 && walk->end != NULL)
        err = walk->end(walk->arg, s);
    return err;
}

int walk_one(const struct walk *walk, uint64_t epoch)
{
    struct walk_segment segment = { .epoch = epoch };
    struct wal_window window;
    struct disk_file *file;

    wal_segment_name(epoch, segment.name);
    int err = walk->disk->ops->open(walk->disk, segment.name, 0, &file);

    if (err != 0)
        return err;
    wal_window_init(&window, walk->disk);
    wal_window_open(&window, file);
    segment.size = (uint64_t)walk->disk->ops->size(file);
    err = walk_file(walk, &window, &segment);
    wal_window_free(&window);
    walk->disk->ops->close(file);
    return err;
}

int walk_all(const struct walk *walk)
{
    uint64_t *epochs;
    size_t count;
    int err = walk_list(walk->disk, &epochs, &count);

    for (size_t i = 0; i < count && err == 0; i++)
        err = walk_one(walk, epochs[i]);
    free(epochs);
    return err;
}
