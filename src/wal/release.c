/* Letting go of old segments, and keeping one of their files for the next segment. Why the steps
 * come in this order is told in docs/format-wal.md, "Release". */
#include "check.h"
#include "err.h"
#include "wal/internal.h"

static uint64_t bytes_of_all(const struct wal *w)
{
    uint64_t bytes = w->offset;

    for (size_t i = 0; i < w->end_count; i++)
        bytes += w->ends[i];
    return bytes;
}

/* The file becomes the next segment, made ready: it has its length and its blocks. Its header is
 * one of an older epoch than its name, so that it counts as unused. */
static int recycle_oldest(struct wal *w, const char *name)
{
    char next[WAL_FILE_NAME];
    struct disk_file *file;

    wal_segment_name(w->epoch + 1, next);
    int err = w->disk->ops->rename(w->disk, name, next);

    if (err == 0)
        err = w->disk->ops->sync_dir(w->disk);
    if (err == 0)
        err = w->disk->ops->open(w->disk, next, 0, &file);
    if (err != 0)
        return err;
    w->next = file;
    w->next_recycled = true;

    int64_t size = w->disk->ops->size(file);

    w->next_filled = size < 0 ? 0 : (uint64_t)size;
    return size < 0 ? (int)size : 0;
}

/* Each step is synced before the next one, oldest first: a crash leaves no gap. */
static int release_oldest(struct wal *w)
{
    char name[WAL_FILE_NAME];
    int err;

    KEEL_ASSERT(w->end_count > 0 && w->oldest_epoch < w->epoch);
    wal_segment_name(w->oldest_epoch, name);
    if (w->next == NULL) {
        err = recycle_oldest(w, name);
    } else {
        err = w->disk->ops->remove(w->disk, name);
        if (err == 0)
            err = w->disk->ops->sync_dir(w->disk);
    }
    if (err != 0)
        return err;
    w->oldest_epoch++;
    w->end_count--;
    memmove(w->ends, w->ends + 1, w->end_count * sizeof w->ends[0]);
    return 0;
}

/* The reader may hold one of the files open, which would keep it on the disk. */
static void forget_released(struct wal *w)
{
    wal_index_trim(&w->index, w->oldest_epoch);
    if (w->reader == NULL || w->reader_epoch >= w->oldest_epoch)
        return;
    wal_window_open(&w->window, NULL);
    w->disk->ops->close(w->reader);
    w->reader = NULL;
}

int wal_release(struct wal *w, uint64_t index, uint64_t keep_bytes)
{
    uint64_t needed = wal_index_needs(&w->index, index);
    uint64_t bytes = bytes_of_all(w);
    int err = 0;

    if (w->failed != 0)
        return w->failed;
    while (err == 0 && w->oldest_epoch < needed) {
        uint64_t behind = bytes - w->ends[0];

        if (w->oldest_epoch >= w->index.mark_epoch && behind < keep_bytes)
            break;
        err = release_oldest(w);
        bytes = behind;
    }
    if (err != 0)
        wal_fail(w, err);
    forget_released(w);
    return err;
}
