/* Puts messages together from a stream of bytes, each lane by itself. Pure: no socket is known
 * here. */
#include <stdlib.h>

#include "bytes.h"
#include "check.h"
#include "err.h"
#include "hash.h"
#include "peer/frame.h"
#include "peer/message.h"

/* A message of which more pieces are to come. The memory is kept for the next one. */
struct frame_lane {
    uint8_t *data;
    size_t len, capacity;
    bool open;
    uint8_t type;
};

/* A frame that lies whole in what was fed is looked at where it lies; only the pieces of a frame
 * that arrives in several reads are collected in `held`. Likewise a message of one frame is decoded
 * from the frame, and only one of several frames goes through its lane. */
struct frame_reader {
    struct frame_lane lanes[LANES];
    uint8_t *held; /* FRAME_BYTES_MAX, allocated at first need */
    size_t held_len;
    int err; /* the first error; for good */
};

typedef int frame_message_fn(void *arg, struct keel_message *msg_take);

struct frame_reader *frame_reader_new(void)
{
    return keel_calloc(1, sizeof(struct frame_reader));
}

struct frame_reader *frame_reader_free(struct frame_reader *reader)
{
    if (reader == NULL)
        return NULL;
    for (size_t i = 0; i < LANES; i++)
        free(reader->lanes[i].data);
    free(reader->held);
    free(reader);
    return NULL;
}

/* The whole length of the frame that begins with this head; 0: malformed. */
static size_t frame_length(const uint8_t *head)
{
    uint32_t len = get_le32(head);
    uint8_t type = head[4], flags = head[5];

    if (len > KEEL_FRAME_BYTES || type == 0 || type >= MESSAGE_TYPES)
        return 0;
    if ((flags & ~(FRAME_MORE | FRAME_BULK | FRAME_SNAPSHOT)) != 0 || get_le16(head + 6) != 0)
        return 0;
    if ((flags & FRAME_BULK) != 0 && (flags & FRAME_SNAPSHOT) != 0)
        return 0;
    if ((flags & FRAME_MORE) != 0 && len == 0)
        return 0;
    return FRAME_HEAD_BYTES + len;
}

static void lane_add(struct frame_lane *lane, struct keel_slice piece)
{
    size_t need = lane->len + piece.len;

    if (need > lane->capacity) {
        lane->capacity = need + need / 2;
        if (lane->capacity > KEEL_MESSAGE_SIZE_MAX)
            lane->capacity = KEEL_MESSAGE_SIZE_MAX;
        lane->data = keel_realloc(lane->data, lane->capacity);
    }
    if (piece.len > 0)
        memcpy(lane->data + lane->len, piece.data, piece.len);
    lane->len = need;
}

static int deliver(uint8_t type, struct keel_slice payload, frame_message_fn *fn, void *arg)
{
    struct keel_message *msg = NULL;
    int err = keel_message_decode((enum keel_message_type)type, payload, &msg);

    return err != 0 ? err : fn(arg, msg);
}

static enum keel_lane lane_of(uint8_t flags)
{
    if ((flags & FRAME_SNAPSHOT) != 0)
        return LANE_SNAPSHOT;
    return (flags & FRAME_BULK) != 0 ? LANE_BULK : LANE_URGENT;
}

/* One whole frame, its head already looked at. */
static int take_frame(struct frame_reader *reader, const uint8_t *frame, size_t frame_len,
                      frame_message_fn *fn, void *arg)
{
    uint8_t type = frame[4], flags = frame[5];
    struct frame_lane *lane = &reader->lanes[lane_of(flags)];
    struct keel_slice payload =
        keel_slice_of(frame + FRAME_HEAD_BYTES, frame_len - FRAME_HEAD_BYTES);
    bool more = (flags & FRAME_MORE) != 0;

    if (keel_hash64_seed(payload, get_le64(frame)) != get_le64(frame + 8))
        return KEEL_E_MALFORMED;
    if (!lane->open && !more)
        return deliver(type, payload, fn, arg);
    if (lane->open && lane->type != type)
        return KEEL_E_MALFORMED;
    if (lane->len + payload.len > KEEL_MESSAGE_SIZE_MAX)
        return KEEL_E_MALFORMED;
    lane_add(lane, payload);
    lane->type = type;
    lane->open = more;
    if (more)
        return 0;
    struct keel_slice whole = keel_slice_of(lane->data, lane->len);

    lane->len = 0;
    return deliver(type, whole, fn, arg);
}

/* Moves bytes into `held` until it has what it lacks next: its head, or the rest of its frame. */
static int hold(struct frame_reader *reader, struct keel_slice bytes, size_t *ret_used,
                frame_message_fn *fn, void *arg)
{
    size_t want = FRAME_HEAD_BYTES;

    if (reader->held == NULL)
        reader->held = keel_malloc(FRAME_BYTES_MAX);
    if (reader->held_len >= FRAME_HEAD_BYTES)
        want = frame_length(reader->held);
    size_t lack = want - reader->held_len;
    size_t used = bytes.len < lack ? bytes.len : lack;

    memcpy(reader->held + reader->held_len, bytes.data, used);
    reader->held_len += used;
    *ret_used = used;
    if (reader->held_len < FRAME_HEAD_BYTES)
        return 0;
    size_t whole = frame_length(reader->held);

    if (whole == 0)
        return KEEL_E_MALFORMED;
    if (reader->held_len < whole)
        return 0;
    reader->held_len = 0;
    return take_frame(reader, reader->held, whole, fn, arg);
}

static int step(struct frame_reader *reader, struct keel_slice bytes, size_t *ret_used,
                frame_message_fn *fn, void *arg)
{
    if (reader->held_len > 0 || bytes.len < FRAME_HEAD_BYTES)
        return hold(reader, bytes, ret_used, fn, arg);
    size_t whole = frame_length(bytes.data);

    if (whole == 0)
        return KEEL_E_MALFORMED;
    if (bytes.len < whole)
        return hold(reader, bytes, ret_used, fn, arg);
    *ret_used = whole;
    return take_frame(reader, bytes.data, whole, fn, arg);
}

int frame_reader_feed(struct frame_reader *reader, struct keel_slice bytes,
                      int (*fn)(void *arg, struct keel_message *msg_take), void *arg)
{
    while (reader->err == 0 && bytes.len > 0) {
        size_t used = 0;

        reader->err = step(reader, bytes, &used, fn, arg);
        KEEL_ASSERT(used <= bytes.len && (used > 0 || reader->err != 0));
        bytes.data += used;
        bytes.len -= used;
    }
    return reader->err;
}
