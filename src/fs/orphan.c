/* Files whose key is gone, but which are still open here: they read as they were when they went,
 * and what is written to them stays in memory, on this node, until their last close. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "check.h"
#include "err.h"
#include "fs/fs_internal.h"

int content_of(struct fs *fs, const struct mvcc_content *content, struct keel_slice *ret_bytes)
{
    *ret_bytes = keel_slice_of(NULL, 0);
    int err = content->length > 0 ? mvcc_read(fs->mvcc, content, ret_bytes) : 0;

    if (err != 0 && err != KEEL_E_STALE)
        keel_fatal("the store is damaged: content of revision %llu does not match its checksum; "
                   "restore the data directory from a backup, or remove this member and add it "
                   "again",
                   (unsigned long long)content->at.main);
    return err;
}

int orphan_content(struct fs *fs, struct fs_node *node, struct keel_slice *ret_bytes)
{
    KEEL_ASSERT(node->orphan);
    if (node->orphan_data == NULL)
        return content_of(fs, &node->record->content, ret_bytes);
    *ret_bytes = keel_buf_slice(node->orphan_data);
    return 0;
}

/* Its content in memory, with this size. */
static int set_size(struct fs *fs, struct fs_node *node, uint64_t size)
{
    size_t had = node->orphan_data != NULL ? node->orphan_data->len : 0;

    if (size > KEEL_FILE_SIZE_MAX)
        return KEEL_E_FILETOOBIG;
    if (fs->orphan_bytes - had + size > KEEL_ORPHAN_BYTES)
        return KEEL_E_NOSPACE;
    struct keel_slice old;
    int err = orphan_content(fs, node, &old);

    if (err != 0)
        return err;
    struct keel_buf *data = keel_buf_new((size_t)size);
    size_t kept = old.len < size ? old.len : (size_t)size;

    if (kept > 0)
        memcpy(data->data, old.data, kept);
    memset(data->data + kept, 0, (size_t)size - kept);
    keel_buf_free(node->orphan_data);
    node->orphan_data = data;
    node->record->content.length = (uint32_t)size;
    fs->orphan_bytes = fs->orphan_bytes - had + size;
    return 0;
}

void orphan_make(struct fs *fs, struct fs_node *node, const struct mvcc_record *record)
{
    KEEL_ASSERT(!node->orphan);
    node->orphan = true;
    fs_node_set_record(node, record);
    node->record->xattrs = keel_slice_of(NULL, 0);
    /* What is open is kept: its content may go with history. Without room for it, it is as long as
     * history is. */
    if (node->handles > 0 && node->record->content.length > 0)
        set_size(fs, node, node->record->content.length);
}

/* In memory, at least this long, with the time of now. */
static int make_writable(struct fs *fs, struct fs_node *node, uint64_t size)
{
    uint64_t length = node->record->content.length;
    struct timespec now;
    int err = 0;

    if (node->orphan_data == NULL || size > length)
        err = set_size(fs, node, size > length ? size : length);
    if (err != 0)
        return err;
    clock_gettime(CLOCK_REALTIME, &now);
    node->record->mtime_ns = node->record->ctime_ns =
        now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
    return 0;
}

int orphan_write(struct fs *fs, struct fs_node *node, struct keel_slice piece, uint64_t offset,
                 bool append)
{
    if (append)
        offset = node->record->content.length;
    if (offset > KEEL_FILE_SIZE_MAX || piece.len > KEEL_FILE_SIZE_MAX)
        return KEEL_E_FILETOOBIG;
    int err = make_writable(fs, node, offset + piece.len);

    if (err == 0 && piece.len > 0)
        memcpy(node->orphan_data->data + offset, piece.data, piece.len);
    return err;
}

int orphan_resize(struct fs *fs, struct fs_node *node, uint64_t size, bool grow_only)
{
    if (grow_only && size <= node->record->content.length)
        return 0;
    return set_size(fs, node, size);
}

int orphan_zero(struct fs *fs, struct fs_node *node, uint64_t from, uint64_t to)
{
    uint64_t length = node->record->content.length;
    int err = make_writable(fs, node, 0);

    if (to > length)
        to = length;
    if (err == 0 && from < to)
        memset(node->orphan_data->data + from, 0, (size_t)(to - from));
    return err;
}

void orphan_closed(struct fs *fs, struct fs_node *node)
{
    KEEL_ASSERT(node->handles == 0);
    if (node->orphan_data == NULL)
        return; /* it can still be read as it was */
    node->orphan = false;
    fs_node_set_record(node, NULL);
    fs->orphan_bytes -= node->orphan_data->len;
    node->orphan_data = keel_buf_free(node->orphan_data);
}
