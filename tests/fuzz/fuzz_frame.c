/* Peer frames: any bytes, in pieces of any size, give messages or one error for good; and what is
 * decoded encodes to frames that are decoded to the same bytes. Three ways in, chosen by the first
 * byte: a raw stream (bad heads and checksums), a payload that is decoded as a message of some
 * type, or the payload of a message in order with some bytes changed. */
#include <stddef.h>
#include <stdint.h>

#include "bytes.h"
#include "check.h"
#include "err.h"
#include "keel_limits.h"
#include "peer/frame.h"
#include "random_message.h"

enum { CHANGED_SIZE = 600, SEED_BYTES = 9, CHANGE_BYTES = 3 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int keep(void *arg, struct keel_message *msg_take)
{
    struct keel_message **kept = arg;

    keel_message_free(*kept);
    *kept = msg_take;
    return 0;
}

/* A message that came in can go out again, and comes out the same. */
static void check_message(const struct keel_message *msg)
{
    struct keel_buf *frames = keel_message_encode(msg), *again;
    struct frame_reader *reader = frame_reader_new();
    struct keel_message *got = NULL;

    KEEL_ASSERT(frame_reader_feed(reader, keel_buf_slice(frames), keep, &got) == 0);
    KEEL_ASSERT(got != NULL);
    again = keel_message_encode(got);
    KEEL_ASSERT(keel_slice_equal(keel_buf_slice(frames), keel_buf_slice(again)));
    keel_buf_free(frames);
    keel_buf_free(again);
    keel_message_free(got);
    frame_reader_free(reader);
}

static void fuzz_stream(struct keel_slice input, size_t piece)
{
    struct frame_reader *reader = frame_reader_new();
    struct keel_message *last = NULL;
    int err = 0;

    for (size_t at = 0; at < input.len; at += piece) {
        size_t left = input.len - at;
        struct keel_slice part = keel_slice_of(input.data + at, left < piece ? left : piece);
        int now = frame_reader_feed(reader, part, keep, &last);

        KEEL_ASSERT(now == 0 || now == KEEL_E_MALFORMED);
        KEEL_ASSERT(err == 0 || now == err);
        err = now;
    }
    if (last != NULL)
        check_message(last);
    keel_message_free(last);
    frame_reader_free(reader);
}

static void fuzz_payload(struct keel_slice input, uint8_t type)
{
    struct keel_message *msg = NULL;
    int err = keel_message_decode((enum keel_message_type)type, input, &msg);

    KEEL_ASSERT(err == 0 || err == KEEL_E_MALFORMED);
    if (err == 0)
        check_message(msg);
    keel_message_free(msg);
}

/* Input: 8 bytes of seed and one of kind for the message, then changes: where (2 bytes), what. */
static void fuzz_changed(struct keel_slice input)
{
    struct keel_rng rng;

    if (input.len < SEED_BYTES)
        return;
    keel_rng_seed(&rng, get_le64(input.data));
    struct keel_message *msg =
        random_message(&rng, input.data[8] % RANDOM_MESSAGE_KINDS, CHANGED_SIZE);
    struct keel_buf *frames = keel_message_encode(msg);
    struct keel_buf *payload = keel_buf_copy(
        keel_slice_of(frames->data + FRAME_HEAD_BYTES, frames->len - FRAME_HEAD_BYTES));

    KEEL_ASSERT(payload->len <= KEEL_FRAME_BYTES);
    for (size_t at = SEED_BYTES; payload->len > 0 && at + CHANGE_BYTES <= input.len;
         at += CHANGE_BYTES)
        payload->data[get_le16(input.data + at) % payload->len] ^= input.data[at + 2];
    fuzz_payload(keel_buf_slice(payload), (uint8_t)msg->type);
    keel_buf_free(payload);
    keel_buf_free(frames);
    keel_message_free(msg);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0)
        return 0;
    uint8_t way = data[0];
    struct keel_slice input = keel_slice_of(data + 1, size - 1);

    if (way < 64)
        fuzz_stream(input, 2 * (size_t)way + 1);
    else if (way < 128)
        fuzz_changed(input);
    else
        fuzz_payload(input, (uint8_t)(1 + way % (MESSAGE_TYPES - 1)));
    return 0;
}
