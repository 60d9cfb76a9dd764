/* Segment files: their header, their names, reading them through a window, creating and zeroing
 * them. Which segment is in use, and what its records mean, is wal.c's and recovery.c's business.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "bytes.h"
#include "check.h"
#include "err.h"
#include "hash.h"
#include "wal/internal.h"

enum {
    OFF_MAGIC = 0,
    OFF_VERSION = 8,
    OFF_FLAGS = 12,
    OFF_CLUSTER = 16,
    OFF_NODE = 24,
    OFF_EPOCH = 32,
    OFF_FIRST = 40,
    OFF_PREVIOUS = 48,
    OFF_CHECKSUM = 56,
};

enum { FLAG_RECYCLED = 1 };

enum { WINDOW_BYTES_MIN = 4 << 10, WINDOW_BYTES = 256 << 10 };

static const uint8_t segment_magic[8] = { 'K', 'E', 'E', 'L', 'W', 'A', 'L', '\n' };

void wal_segment_encode(const struct wal_segment_header *header, uint8_t *p)
{
    KEEL_ASSERT(header->epoch > 0 && header->first_sequence > 0);

    memset(p, 0, WAL_SEGMENT_HEADER);
    memcpy(p + OFF_MAGIC, segment_magic, sizeof segment_magic);
    put_le32(p + OFF_VERSION, header->version);
    put_le32(p + OFF_FLAGS, header->recycled ? FLAG_RECYCLED : 0);
    put_le64(p + OFF_CLUSTER, header->cluster_id);
    put_le64(p + OFF_NODE, header->node_id);
    put_le64(p + OFF_EPOCH, header->epoch);
    put_le64(p + OFF_FIRST, header->first_sequence);
    put_le64(p + OFF_PREVIOUS, header->previous_checksum);
    put_le64(p + OFF_CHECKSUM, keel_hash64(keel_slice_of(p, OFF_CHECKSUM)));
}

/* Magic, version and checksum keep their places in every version, so that "newer" can be told from
 * "damaged". */
int wal_segment_decode(struct keel_slice bytes, struct wal_segment_header *ret_header)
{
    const uint8_t *p = bytes.data;

    if (bytes.len < WAL_SEGMENT_HEADER || memcmp(p, segment_magic, sizeof segment_magic) != 0)
        return KEEL_E_MALFORMED;
    if (get_le64(p + OFF_CHECKSUM) != keel_hash64(keel_slice_of(p, OFF_CHECKSUM)))
        return KEEL_E_MALFORMED;

    struct wal_segment_header header = {
        .version = get_le32(p + OFF_VERSION),
        .cluster_id = get_le64(p + OFF_CLUSTER),
        .node_id = get_le64(p + OFF_NODE),
        .epoch = get_le64(p + OFF_EPOCH),
        .first_sequence = get_le64(p + OFF_FIRST),
        .previous_checksum = get_le64(p + OFF_PREVIOUS),
        .recycled = get_le32(p + OFF_FLAGS) == FLAG_RECYCLED,
    };

    if (header.version > WAL_FORMAT_VERSION)
        return KEEL_E_NEWER;
    if (header.version == 0 || get_le32(p + OFF_FLAGS) > FLAG_RECYCLED ||
        header.first_sequence == 0)
        return KEEL_E_MALFORMED;
    *ret_header = header;
    return 0;
}

void wal_segment_name(uint64_t epoch, char name[WAL_FILE_NAME])
{
    snprintf(name, WAL_FILE_NAME, "%016" PRIx64 ".wal", epoch);
}

bool wal_segment_parse_name(const char *name, uint64_t *ret_epoch)
{
    uint64_t epoch = 0;

    for (int i = 0; i < 16; i++) {
        char c = name[i];
        unsigned digit;

        if (c >= '0' && c <= '9')
            digit = (unsigned)(c - '0');
        else if (c >= 'a' && c <= 'f')
            digit = (unsigned)(c - 'a') + 10;
        else
            return false;
        epoch = epoch << 4 | digit;
    }
    if (strcmp(name + 16, ".wal") != 0 || epoch == 0)
        return false;
    *ret_epoch = epoch;
    return true;
}

void wal_window_init(struct wal_window *win, struct disk *disk)
{
    *win = (struct wal_window){ .disk = disk };
}

void wal_window_free(struct wal_window *win)
{
    free(win->data);
    *win = (struct wal_window){ 0 };
}

void wal_window_open(struct wal_window *win, struct disk_file *file)
{
    win->file = file;
    win->offset = 0;
    win->len = 0;
    win->chunk = WINDOW_BYTES;

    int64_t size = file != NULL ? win->disk->ops->size(file) : 0; /* an error shows in the read */

    if (size >= 0 && size < WINDOW_BYTES)
        win->chunk = size > WINDOW_BYTES_MIN ? (size_t)size : WINDOW_BYTES_MIN;
}

static bool window_holds(const struct wal_window *win, uint64_t offset, size_t want)
{
    return offset >= win->offset && offset - win->offset <= win->len &&
           win->len - (offset - win->offset) >= want;
}

int wal_window_get(struct wal_window *win, uint64_t offset, size_t want,
                   struct keel_slice *ret_bytes)
{
    if (!window_holds(win, offset, want)) {
        size_t size = want > win->chunk ? want : win->chunk;

        if (size > win->capacity) {
            win->data = keel_realloc(win->data, size);
            win->capacity = size;
        }
        win->len = 0;
        int64_t got = win->disk->ops->read(win->file, offset, win->data, size);

        if (got < 0)
            return (int)got;
        win->offset = offset;
        win->len = (size_t)got;
    }

    size_t start = (size_t)(offset - win->offset);
    size_t there = win->len - start;

    *ret_bytes = keel_slice_of(win->data + start, there < want ? there : want);
    return 0;
}

int wal_window_record(struct wal_window *win, uint64_t offset, struct wal_record *ret_record,
                      size_t *ret_size)
{
    struct keel_slice bytes;
    int err = wal_window_get(win, offset, WAL_RECORD_HEADER, &bytes);

    if (err != 0)
        return err;
    uint64_t epoch;
    size_t size;

    if (bytes.len < WAL_RECORD_HEADER || !wal_record_peek(bytes.data, &size, &epoch))
        return KEEL_E_MALFORMED;
    err = wal_window_get(win, offset, size, &bytes);
    if (err != 0)
        return err;
    return wal_record_decode(bytes, ret_record, ret_size);
}

int wal_segment_zero(struct wal *w, struct disk_file *file, uint64_t from, uint64_t to)
{
    while (from < to) {
        uint64_t len = to - from < w->fill_bytes ? to - from : w->fill_bytes;
        struct iovec iov = { w->zeroes, (size_t)len };
        int err = w->disk->ops->write(file, from, &iov, 1);

        if (err != 0)
            return err;
        from += len;
    }
    return w->disk->ops->sync(file);
}

int wal_segment_create(struct wal *w, uint64_t epoch, struct disk_file **ret_file)
{
    char name[WAL_FILE_NAME];
    struct disk_file *file;

    wal_segment_name(epoch, name);
    int err = w->disk->ops->open(w->disk, name, 1, &file);

    if (err != 0)
        return err;
    err = w->disk->ops->sync_dir(w->disk);
    if (err != 0) {
        w->disk->ops->close(file);
        return err;
    }
    *ret_file = file;
    return 0;
}
