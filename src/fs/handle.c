/* When a handle may hold something back, and the bytes that it holds back. */
#include <fcntl.h>
#include <stdlib.h>

#include "check.h"
#include "fs/handle.h"

enum { FULL_BUFFER_MIN = 4096, FULL_BUFFER_UNIT = 512, STAGED_FIRST = 16384 };

static bool may_stage(const struct fs_handle *h)
{
    int access = h->flags & O_ACCMODE;

    if (!h->fresh || h->failed || h->too_big || h->lost)
        return false;
    return access == O_WRONLY || (access == O_RDWR && h->exclusive);
}

/* A program's full buffer, with more to come. */
static bool is_full_buffer(const struct fs_handle *h, const struct defer_buffer *b)
{
    return b->len >= FULL_BUFFER_MIN && b->len % FULL_BUFFER_UNIT == 0 &&
           b->offset == h->staged.len && (b->flags & (O_APPEND | O_SYNC | O_DSYNC | O_DIRECT)) == 0;
}

static bool has_room(const struct defer_buffer *b)
{
    return b->offset + b->len <= b->size_limit && b->uid_bytes + b->len <= KEEL_STAGED_UID_BYTES &&
           b->node_bytes + b->len <= KEEL_STAGED_NODE_BYTES;
}

bool handle_may_defer(const struct fs_handle *h, enum defer_what what,
                      const struct defer_buffer *buffer)
{
    switch (what) {
    case DEFER_TRUNCATION:
        return !h->failed && !h->lost && (h->flags & O_ACCMODE) != O_RDONLY;
    case DEFER_CREATION:
        return !h->exclusive && !(h->conditional && h->condition == 0);
    case DEFER_BUFFER:
        return may_stage(h) && is_full_buffer(h, buffer) && has_room(buffer);
    }
    return false;
}

bool handle_begins_anew(const struct fs_handle *h)
{
    return h->kind == HANDLE_FILE &&
           (h->staged.len > 0 || (h->fresh && h->truncation != TRUNCATION_NONE));
}

void staged_put(struct staged *staged, uint64_t offset, struct keel_slice piece)
{
    size_t end = (size_t)offset + piece.len;

    KEEL_ASSERT(offset <= KEEL_FILE_SIZE_MAX && end <= KEEL_FILE_SIZE_MAX);
    if (end > staged->capacity) {
        size_t capacity = staged->capacity ? staged->capacity : STAGED_FIRST;

        while (capacity < end)
            capacity *= 2;
        staged->data = keel_realloc(staged->data, capacity);
        staged->capacity = capacity;
    }
    if (offset > staged->len)
        memset(staged->data + staged->len, 0, (size_t)offset - staged->len);
    if (piece.len > 0)
        memcpy(staged->data + offset, piece.data, piece.len);
    if (end > staged->len)
        staged->len = end;
}

struct staged staged_take(struct staged *from)
{
    struct staged taken = *from;

    *from = (struct staged){ 0 };
    return taken;
}

void staged_free(struct staged *staged)
{
    KEEL_ASSERT(staged->account == NULL);
    free(staged->data);
    *staged = (struct staged){ 0 };
}
