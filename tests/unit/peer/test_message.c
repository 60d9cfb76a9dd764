/* The codec and the frame reader: what goes in comes out, and nothing else ever does. */
#include "unit.h"

#include "bytes.h"
#include "err.h"
#include "hash.h"
#include "peer/frame.h"
#include "random_message.h"

enum { INBOX_MAX = 64 };

struct inbox {
    struct keel_message *messages[INBOX_MAX];
    size_t count;
};

static int collect(void *arg, struct keel_message *msg_take)
{
    struct inbox *inbox = arg;

    assert_true(inbox->count < INBOX_MAX);
    inbox->messages[inbox->count++] = msg_take;
    return 0;
}

static void inbox_clear(struct inbox *inbox)
{
    while (inbox->count > 0)
        keel_message_free(inbox->messages[--inbox->count]);
}

/* Feeds the bytes to a new reader in pieces of 1 … piece_max bytes. */
static int feed_in_pieces(struct keel_slice bytes, struct keel_rng *rng, size_t piece_max,
                          struct inbox *inbox)
{
    struct frame_reader *reader = frame_reader_new();
    int err = 0;

    while (bytes.len > 0 && err == 0) {
        size_t piece = 1 + (size_t)keel_rng_below(rng, piece_max);

        if (piece > bytes.len)
            piece = bytes.len;
        /* A copy of its own, so that the sanitizer sees each read beyond it. */
        struct keel_buf *copy = keel_buf_copy(keel_slice_of(bytes.data, piece));

        err = frame_reader_feed(reader, keel_buf_slice(copy), collect, inbox);
        keel_buf_free(copy);
        bytes.data += piece;
        bytes.len -= piece;
    }
    frame_reader_free(reader);
    return err;
}

static void every_kind_of_message_survives_the_wire(void **state)
{
    struct keel_rng rng;

    (void)state;
    keel_rng_seed(&rng, 1);
    for (size_t i = 0; i < 40 * RANDOM_MESSAGE_KINDS; i++) {
        struct keel_message *msg = random_message(&rng, i % RANDOM_MESSAGE_KINDS, 600);
        struct keel_buf *frames = keel_message_encode(msg);
        struct inbox inbox = { 0 };

        assert_int_equal(feed_in_pieces(keel_buf_slice(frames), &rng, frames->len, &inbox), 0);
        assert_int_equal(inbox.count, 1);
        assert_true(messages_equal(msg, inbox.messages[0]));
        inbox_clear(&inbox);
        keel_buf_free(frames);
        keel_message_free(msg);
    }
}

/* What ends with bytes of any length is shorter, but in order, when it is cut behind its fixed
 * part. */
static bool is_open_ended(enum keel_message_type type, size_t *ret_fixed)
{
    *ret_fixed = type == MESSAGE_FORWARD ? 32 : type == MESSAGE_SNAPSHOT ? 40 : 0;
    return *ret_fixed > 0 || type == MESSAGE_HELLO || type == MESSAGE_REFUSAL ||
           type == MESSAGE_JOIN || type == MESSAGE_WELCOME;
}

static void
every_truncation_and_extension_of_a_payload_is_rejected_or_is_another_message(void **state)
{
    struct keel_rng rng;

    (void)state;
    keel_rng_seed(&rng, 2);
    for (size_t i = 0; i < 4 * RANDOM_MESSAGE_KINDS; i++) {
        struct keel_message *msg = random_message(&rng, i % RANDOM_MESSAGE_KINDS, 300), *got = NULL;
        struct keel_buf *frames = keel_message_encode(msg);
        size_t len = frames->len - FRAME_HEAD_BYTES;
        size_t fixed;
        bool open_ended = is_open_ended(msg->type, &fixed);

        for (size_t cut = 0; cut < len; cut++) {
            struct keel_buf *part =
                keel_buf_copy(keel_slice_of(frames->data + FRAME_HEAD_BYTES, cut));
            int err = keel_message_decode(msg->type, keel_buf_slice(part), &got);

            assert_int_equal(err, open_ended && cut >= fixed ? 0 : KEEL_E_MALFORMED);
            if (err == 0) {
                assert_false(messages_equal(msg, got));
                keel_message_free(got);
            }
            keel_buf_free(part);
        }
        if (!open_ended) {
            struct keel_buf *more = keel_buf_new(len + 1);

            memcpy(more->data, frames->data + FRAME_HEAD_BYTES, len);
            more->data[len] = 0;
            assert_int_equal(keel_message_decode(msg->type, keel_buf_slice(more), &got),
                             KEEL_E_MALFORMED);
            keel_buf_free(more);
        }
        keel_buf_free(frames);
        keel_message_free(msg);
    }
}

static void a_truncated_frame_delivers_nothing(void **state)
{
    struct keel_rng rng;

    (void)state;
    keel_rng_seed(&rng, 3);
    for (size_t kind = 0; kind < RANDOM_MESSAGE_KINDS; kind++) {
        struct keel_message *msg = random_message(&rng, kind, 200);
        struct keel_buf *frames = keel_message_encode(msg);

        for (size_t cut = 0; cut < frames->len; cut++) {
            struct inbox inbox = { 0 };

            assert_int_equal(feed_in_pieces(keel_slice_of(frames->data, cut), &rng, 64, &inbox), 0);
            assert_int_equal(inbox.count, 0);
        }
        keel_buf_free(frames);
        keel_message_free(msg);
    }
}

static void a_flipped_bit_is_never_delivered(void **state)
{
    struct keel_rng rng;

    (void)state;
    keel_rng_seed(&rng, 4);
    for (size_t i = 0; i < 2 * RANDOM_MESSAGE_KINDS; i++) {
        struct keel_message *msg = random_message(&rng, i % RANDOM_MESSAGE_KINDS, 120);
        struct keel_buf *frames = keel_message_encode(msg);

        for (size_t bit = 0; bit < frames->len * 8; bit++) {
            struct inbox inbox = { 0 };

            frames->data[bit / 8] ^= (uint8_t)(1u << bit % 8);
            int err = feed_in_pieces(keel_buf_slice(frames), &rng, frames->len, &inbox);

            frames->data[bit / 8] ^= (uint8_t)(1u << bit % 8);
            assert_int_equal(inbox.count, 0);
            /* Only a longer length leaves the reader waiting; all else is an error at once. */
            if (bit >= 32)
                assert_int_equal(err, KEEL_E_MALFORMED);
        }
        keel_buf_free(frames);
        keel_message_free(msg);
    }
}

static void a_stream_may_arrive_in_pieces_of_any_size(void **state)
{
    static const size_t piece_max[] = { 1, 2, 15, 16, 17, 1000, 100000 };
    struct keel_text stream = { 0 };
    struct inbox sent = { 0 };
    struct keel_rng rng;

    (void)state;
    keel_rng_seed(&rng, 5);
    for (size_t i = 0; i < 2 * RANDOM_MESSAGE_KINDS; i++) {
        struct keel_message *msg = random_message(&rng, i % RANDOM_MESSAGE_KINDS, 3000);
        struct keel_buf *frames = keel_message_encode(msg);

        keel_text_append(&stream, keel_buf_slice(frames));
        keel_buf_free(frames);
        collect(&sent, msg);
    }
    for (size_t p = 0; p < sizeof piece_max / sizeof piece_max[0]; p++) {
        struct inbox got = { 0 };

        assert_int_equal(
            feed_in_pieces(keel_slice_of(stream.data, stream.len), &rng, piece_max[p], &got), 0);
        assert_int_equal(got.count, sent.count);
        for (size_t i = 0; i < got.count; i++)
            assert_true(messages_equal(sent.messages[i], got.messages[i]));
        inbox_clear(&got);
    }
    inbox_clear(&sent);
    keel_text_free(&stream);
}

static struct keel_message *forward_of(size_t len, uint64_t number)
{
    struct keel_message *msg = keel_message_new(MESSAGE_FORWARD);

    msg->number = number;
    msg->data = keel_buf_new(len);
    for (size_t i = 0; i < len; i++)
        msg->data->data[i] = (uint8_t)(i * 7 + number);
    return msg;
}

static void lengths_around_a_full_frame_survive(void **state)
{
    struct keel_rng rng;

    (void)state;
    keel_rng_seed(&rng, 6);
    for (size_t frames = 1; frames <= 3; frames++) {
        for (size_t len = frames * KEEL_FRAME_BYTES - 34; len <= frames * KEEL_FRAME_BYTES - 30;
             len++) {
            struct keel_message *msg = forward_of(len, len);
            struct keel_buf *bytes = keel_message_encode(msg);
            struct inbox got = { 0 };

            assert_int_equal(bytes->len, 32 + len +
                                             FRAME_HEAD_BYTES * ((32 + len + KEEL_FRAME_BYTES - 1) /
                                                                 KEEL_FRAME_BYTES));
            assert_int_equal(feed_in_pieces(keel_buf_slice(bytes), &rng, 50000, &got), 0);
            assert_int_equal(got.count, 1);
            assert_true(messages_equal(msg, got.messages[0]));
            inbox_clear(&got);
            keel_buf_free(bytes);
            keel_message_free(msg);
        }
    }
}

static struct keel_message *piece_of(uint64_t offset, size_t len)
{
    struct keel_message *msg = keel_message_new(MESSAGE_SNAPSHOT);

    msg->snapshot.offset = offset;
    msg->snapshot.total = UINT64_MAX;
    msg->data = keel_buf_new(len);
    memset(msg->data->data, (int)offset, len);
    return msg;
}

static void feed(struct frame_reader *reader, const struct keel_buf *bytes, size_t from, size_t to,
                 struct inbox *got)
{
    assert_int_equal(
        frame_reader_feed(reader, keel_slice_of(bytes->data + from, to - from), collect, got), 0);
}

static void messages_of_three_lanes_are_put_together_side_by_side(void **state)
{
    struct keel_message *piece = piece_of(7, KEEL_SNAPSHOT_CHUNK_BYTES);
    struct keel_message *bulk = forward_of(KEEL_SNAPSHOT_CHUNK_BYTES, 1);
    struct keel_message *ping = keel_message_new(MESSAGE_PING);
    struct keel_buf *piece_bytes = keel_message_encode(piece);
    struct keel_buf *bulk_bytes = keel_message_encode(bulk);
    struct keel_buf *ping_bytes = keel_message_encode(ping);
    struct frame_reader *reader = frame_reader_new();
    struct inbox got = { 0 };

    (void)state;
    feed(reader, piece_bytes, 0, FRAME_BYTES_MAX, &got);
    feed(reader, bulk_bytes, 0, FRAME_BYTES_MAX, &got);
    feed(reader, ping_bytes, 0, ping_bytes->len, &got);
    feed(reader, piece_bytes, FRAME_BYTES_MAX, 2 * FRAME_BYTES_MAX, &got);
    assert_int_equal(got.count, 1);
    feed(reader, bulk_bytes, FRAME_BYTES_MAX, bulk_bytes->len, &got);
    feed(reader, piece_bytes, 2 * FRAME_BYTES_MAX, piece_bytes->len, &got);
    assert_int_equal(got.count, 3);
    assert_true(messages_equal(got.messages[1], bulk));
    assert_true(messages_equal(got.messages[2], piece));
    inbox_clear(&got);
    frame_reader_free(reader);
    keel_buf_free(piece_bytes);
    keel_buf_free(bulk_bytes);
    keel_buf_free(ping_bytes);
    keel_message_free(piece);
    keel_message_free(bulk);
    keel_message_free(ping);
}

static void urgent_messages_pass_between_the_pieces_of_a_bulk_one(void **state)
{
    struct keel_message *bulk = forward_of(KEEL_ENTRY_SIZE_MAX, 1);
    struct keel_message *urgent = keel_message_raft(raft_message_new(RAFT_HEARTBEAT, 1, 2, 3));
    struct keel_buf *bulk_bytes = keel_message_encode(bulk);
    struct keel_buf *urgent_bytes = keel_message_encode(urgent);
    struct frame_reader *reader = frame_reader_new();
    struct inbox got = { 0 };
    size_t frames = 0;

    (void)state;
    for (size_t at = 0; at < bulk_bytes->len; at += FRAME_BYTES_MAX, frames++) {
        size_t left = bulk_bytes->len - at;
        size_t len = left < FRAME_BYTES_MAX ? left : FRAME_BYTES_MAX;

        assert_int_equal(frame_reader_feed(reader, keel_buf_slice(urgent_bytes), collect, &got), 0);
        assert_int_equal(got.count, frames + 1);
        assert_int_equal(
            frame_reader_feed(reader, keel_slice_of(bulk_bytes->data + at, len), collect, &got), 0);
    }
    assert_int_equal(frames, 21);
    assert_int_equal(got.count, frames + 1);
    assert_true(messages_equal(got.messages[0], urgent));
    assert_true(messages_equal(got.messages[frames], bulk));
    inbox_clear(&got);
    frame_reader_free(reader);
    keel_buf_free(bulk_bytes);
    keel_buf_free(urgent_bytes);
    keel_message_free(bulk);
    keel_message_free(urgent);
}

/* One frame with a right checksum, whatever its head says. */
static struct keel_buf *frame_of(uint32_t claimed, size_t len, uint8_t type, uint8_t flags,
                                 uint16_t reserved)
{
    struct keel_buf *frame = keel_buf_new(FRAME_HEAD_BYTES + len);
    uint8_t *payload = frame->data + FRAME_HEAD_BYTES;

    if (len > 0)
        memset(payload, 0, len);
    put_le32(frame->data, claimed);
    frame->data[4] = type;
    frame->data[5] = flags;
    put_le16(frame->data + 6, reserved);
    put_le64(frame->data + 8, keel_hash64_seed(keel_slice_of(payload, len), get_le64(frame->data)));
    return frame;
}

static void expect_malformed(struct keel_buf *frame_take)
{
    struct frame_reader *reader = frame_reader_new();
    struct inbox got = { 0 };

    assert_int_equal(frame_reader_feed(reader, keel_buf_slice(frame_take), collect, &got),
                     KEEL_E_MALFORMED);
    assert_int_equal(got.count, 0);
    frame_reader_free(reader);
    keel_buf_free(frame_take);
}

static void heads_out_of_order_are_malformed(void **state)
{
    (void)state;
    expect_malformed(frame_of(KEEL_FRAME_BYTES + 1, 0, MESSAGE_PING, 0, 0));
    expect_malformed(frame_of(UINT32_MAX, 0, MESSAGE_PING, 0, 0));
    expect_malformed(frame_of(0, 0, 0, 0, 0));
    expect_malformed(frame_of(0, 0, MESSAGE_TYPES, 0, 0));
    expect_malformed(frame_of(0, 0, 255, 0, 0));
    expect_malformed(frame_of(0, 0, MESSAGE_PING, FRAME_BULK | FRAME_SNAPSHOT, 0));
    expect_malformed(frame_of(0, 0, MESSAGE_PING, 8, 0));
    expect_malformed(frame_of(0, 0, MESSAGE_PING, 0, 1));
    expect_malformed(frame_of(0, 0, MESSAGE_PING, FRAME_MORE, 0));
    expect_malformed(frame_of(1, 1, MESSAGE_PING, 0, 0));
}

static void an_error_is_for_good(void **state)
{
    struct frame_reader *reader = frame_reader_new();
    struct keel_buf *bad = frame_of(1, 1, MESSAGE_PING, 0, 0);
    struct keel_buf *good = frame_of(0, 0, MESSAGE_PING, 0, 0);
    struct inbox got = { 0 };

    (void)state;
    assert_int_equal(frame_reader_feed(reader, keel_buf_slice(good), collect, &got), 0);
    assert_int_equal(got.count, 1);
    assert_int_equal(frame_reader_feed(reader, keel_buf_slice(bad), collect, &got),
                     KEEL_E_MALFORMED);
    assert_int_equal(frame_reader_feed(reader, keel_buf_slice(good), collect, &got),
                     KEEL_E_MALFORMED);
    assert_int_equal(got.count, 1);
    inbox_clear(&got);
    keel_buf_free(bad);
    keel_buf_free(good);
    frame_reader_free(reader);
}

static void a_message_that_never_ends_is_cut_off_at_the_limit(void **state)
{
    struct frame_reader *reader = frame_reader_new();
    struct keel_buf *piece =
        frame_of(KEEL_FRAME_BYTES, KEEL_FRAME_BYTES, MESSAGE_FORWARD, FRAME_MORE | FRAME_BULK, 0);
    struct inbox got = { 0 };
    size_t fed = 0;

    (void)state;
    while (frame_reader_feed(reader, keel_buf_slice(piece), collect, &got) == 0)
        fed += KEEL_FRAME_BYTES;
    assert_int_equal(fed, KEEL_MESSAGE_SIZE_MAX);
    assert_int_equal(got.count, 0);
    keel_buf_free(piece);
    frame_reader_free(reader);
}

static void the_type_may_not_change_inside_a_message(void **state)
{
    struct frame_reader *reader = frame_reader_new();
    struct keel_buf *first = frame_of(100, 100, MESSAGE_FORWARD, FRAME_MORE | FRAME_BULK, 0);
    struct keel_buf *other = frame_of(100, 100, MESSAGE_REFUSAL, FRAME_BULK, 0);
    struct inbox got = { 0 };

    (void)state;
    assert_int_equal(frame_reader_feed(reader, keel_buf_slice(first), collect, &got), 0);
    assert_int_equal(frame_reader_feed(reader, keel_buf_slice(other), collect, &got),
                     KEEL_E_MALFORMED);
    keel_buf_free(first);
    keel_buf_free(other);
    frame_reader_free(reader);
}

static int decode(enum keel_message_type type, const uint8_t *bytes, size_t len)
{
    struct keel_message *msg = NULL;
    int err = keel_message_decode(type, keel_slice_of(bytes, len), &msg);

    if (err == 0)
        keel_message_free(msg);
    return err;
}

static void counts_and_values_beyond_their_limits_are_malformed(void **state)
{
    uint8_t append[25 + 32 + 4] = { RAFT_APPEND, 1, [9] = 2 };
    uint8_t renew[12] = { 0 };
    uint8_t vote[25 + 10] = { RAFT_VOTE_REPLY, 1, [9] = 2 };
    struct keel_buf *control = keel_buf_new(4097);

    (void)state;
    assert_int_equal(decode(MESSAGE_RAFT, append, sizeof append), 0);
    put_le32(append + 57, UINT32_MAX); /* entries that are not there */
    assert_int_equal(decode(MESSAGE_RAFT, append, sizeof append), KEEL_E_MALFORMED);
    put_le32(append + 57, 0);
    append[9] = 0; /* to nobody */
    assert_int_equal(decode(MESSAGE_RAFT, append, sizeof append), KEEL_E_MALFORMED);
    assert_int_equal(decode(MESSAGE_RENEW, renew, sizeof renew), 0);
    put_le32(renew + 8, KEEL_LEASES_MAX + 1);
    assert_int_equal(decode(MESSAGE_RENEW, renew, sizeof renew), KEEL_E_MALFORMED);
    assert_int_equal(decode(MESSAGE_RAFT, vote, sizeof vote), 0);
    vote[25] = 2; /* a boolean that is neither */
    assert_int_equal(decode(MESSAGE_RAFT, vote, sizeof vote), KEEL_E_MALFORMED);
    memset(control->data, 0, control->len);
    assert_int_equal(decode(MESSAGE_HELLO, control->data, 4096), 0);
    assert_int_equal(decode(MESSAGE_HELLO, control->data, 4097), KEEL_E_MALFORMED);
    keel_buf_free(control);
}

static void entries_out_of_order_are_malformed(void **state)
{
    uint8_t append[25 + 32 + 4 + 13 + 1] = { RAFT_APPEND, 1, [9] = 2 };
    uint8_t *entry = append + 61;

    (void)state;
    put_le32(append + 57, 1);
    put_le32(entry + 9, 1);
    entry[8] = RAFT_ENTRY_COMMAND;
    assert_int_equal(decode(MESSAGE_RAFT, append, sizeof append), 0);
    entry[8] = RAFT_ENTRY_NOOP; /* with data */
    assert_int_equal(decode(MESSAGE_RAFT, append, sizeof append), KEEL_E_MALFORMED);
    entry[8] = RAFT_ENTRY_CONFIG + 1;
    assert_int_equal(decode(MESSAGE_RAFT, append, sizeof append), KEEL_E_MALFORMED);
    entry[8] = RAFT_ENTRY_COMMAND;
    put_le64(append + 25, UINT64_MAX); /* the entry's index would wrap to 0 */
    assert_int_equal(decode(MESSAGE_RAFT, append, sizeof append), KEEL_E_MALFORMED);
    put_le64(append + 25, UINT64_MAX - 1);
    assert_int_equal(decode(MESSAGE_RAFT, append, sizeof append), 0);
    put_le32(entry + 9, KEEL_ENTRY_SIZE_MAX + 1);
    assert_int_equal(decode(MESSAGE_RAFT, append, sizeof append), KEEL_E_MALFORMED);
}

static void snapshots_beyond_their_end_are_malformed(void **state)
{
    struct keel_buf *piece = keel_buf_new(40 + KEEL_SNAPSHOT_CHUNK_BYTES + 1);
    uint8_t where[33] = { 0 };

    (void)state;
    memset(piece->data, 0, piece->len);
    assert_int_equal(decode(MESSAGE_SNAPSHOT, piece->data, 40), 0); /* an offer of nothing */
    assert_int_equal(decode(MESSAGE_SNAPSHOT, piece->data, 41), KEEL_E_MALFORMED);
    put_le64(piece->data + 32, 1);
    assert_int_equal(decode(MESSAGE_SNAPSHOT, piece->data, 41), 0);
    assert_int_equal(decode(MESSAGE_SNAPSHOT, piece->data, 42), KEEL_E_MALFORMED);
    put_le64(piece->data + 24, 2); /* begins behind the end */
    assert_int_equal(decode(MESSAGE_SNAPSHOT, piece->data, 40), KEEL_E_MALFORMED);
    put_le64(piece->data + 24, UINT64_MAX); /* offset + length would wrap */
    put_le64(piece->data + 32, UINT64_MAX);
    assert_int_equal(decode(MESSAGE_SNAPSHOT, piece->data, 40), 0);
    assert_int_equal(decode(MESSAGE_SNAPSHOT, piece->data, 41), KEEL_E_MALFORMED);
    put_le64(piece->data + 24, 0);
    assert_int_equal(decode(MESSAGE_SNAPSHOT, piece->data, piece->len - 1), 0);
    assert_int_equal(decode(MESSAGE_SNAPSHOT, piece->data, piece->len), KEEL_E_MALFORMED);
    where[32] = SNAPSHOT_REFUSED;
    assert_int_equal(decode(MESSAGE_SNAPSHOT_STATE, where, sizeof where), 0);
    where[32]++;
    assert_int_equal(decode(MESSAGE_SNAPSHOT_STATE, where, sizeof where), KEEL_E_MALFORMED);
    keel_buf_free(piece);
}

/* A CHANGE of `count` members by that verb, with a name and, perhaps, an address of these lengths.
 */
static int decode_change(size_t count, uint8_t verb, size_t name_len, size_t address_len,
                         uint8_t id)
{
    struct keel_text text = { 0 };
    uint8_t head[20] = { 0 }, len[4], ids[8] = { id };
    char filler[512];

    memset(filler, 'x', sizeof filler);
    put_le32(head + 16, (uint32_t)count);
    keel_text_append(&text, keel_slice_of(head, sizeof head));
    for (size_t i = 0; i < count; i++) {
        keel_text_append(&text, keel_slice_of(&verb, 1));
        put_le32(len, (uint32_t)name_len);
        keel_text_append(&text, keel_slice_of(len, sizeof len));
        keel_text_append(&text, keel_slice_of(filler, name_len));
        if (verb != MEMBER_ADD && verb != MEMBER_ADD_VOTER)
            continue;
        put_le32(len, (uint32_t)address_len);
        keel_text_append(&text, keel_slice_of(len, sizeof len));
        keel_text_append(&text, keel_slice_of(filler, address_len));
        keel_text_append(&text, keel_slice_of(ids, sizeof ids));
    }
    int err = decode(MESSAGE_CHANGE, (const uint8_t *)text.data, text.len);

    keel_text_free(&text);
    return err;
}

static void changes_beyond_their_limits_are_malformed(void **state)
{
    uint8_t reply[20] = { 0 };
    uint8_t nul[20 + 1 + 4 + 1] = { [16] = 1, [20] = MEMBER_REMOVE, [21] = 1 };

    (void)state;
    assert_int_equal(decode_change(KEEL_MEMBERS_MAX, MEMBER_ADD_VOTER, 63, 299, 1), 0);
    assert_int_equal(decode_change(KEEL_MEMBERS_MAX + 1, MEMBER_REMOVE, 1, 0, 0), KEEL_E_MALFORMED);
    assert_int_equal(decode_change(0, 0, 0, 0, 0), KEEL_E_MALFORMED);
    assert_int_equal(decode_change(1, MEMBER_PROMOTE, 63, 0, 0), 0);
    assert_int_equal(decode_change(1, MEMBER_PROMOTE, 64, 0, 0), KEEL_E_MALFORMED);
    assert_int_equal(decode_change(1, MEMBER_PROMOTE, 0, 0, 0), KEEL_E_MALFORMED);
    assert_int_equal(decode_change(1, MEMBER_ADD, 1, 300, 1), KEEL_E_MALFORMED);
    assert_int_equal(decode_change(1, MEMBER_ADD, 1, 0, 1), KEEL_E_MALFORMED);
    assert_int_equal(decode_change(1, MEMBER_ADD, 1, 1, 0), KEEL_E_MALFORMED); /* nobody's id */
    assert_int_equal(decode_change(1, 0, 1, 1, 1), KEEL_E_MALFORMED);
    assert_int_equal(decode_change(1, MEMBER_PROMOTE + 1, 1, 1, 1), KEEL_E_MALFORMED);
    assert_int_equal(decode(MESSAGE_CHANGE, nul, sizeof nul), KEEL_E_MALFORMED); /* in a name */
    nul[25] = 'n';
    assert_int_equal(decode(MESSAGE_CHANGE, nul, sizeof nul), 0);
    put_le32(reply + 8, (uint32_t)KEEL_E_BUSY);
    assert_int_equal(decode(MESSAGE_CHANGE_REPLY, reply, sizeof reply), 0);
    put_le32(reply + 8, 1);
    assert_int_equal(decode(MESSAGE_CHANGE_REPLY, reply, sizeof reply), KEEL_E_MALFORMED);
}

static void commands_and_snapshots_have_lanes_of_their_own(void **state)
{
    struct keel_rng rng;

    (void)state;
    keel_rng_seed(&rng, 8);
    for (size_t i = 0; i < 4 * RANDOM_MESSAGE_KINDS; i++) {
        struct keel_message *msg = random_message(&rng, i % RANDOM_MESSAGE_KINDS, 100);
        bool entries = msg->type == MESSAGE_RAFT && msg->raft->type == RAFT_APPEND &&
                       msg->raft->u.append.count > 0;

        assert_int_equal(keel_message_lane(msg), entries || msg->type == MESSAGE_FORWARD ? LANE_BULK
                                                 : msg->type == MESSAGE_SNAPSHOT ? LANE_SNAPSHOT
                                                                                 : LANE_URGENT);
        keel_message_free(msg);
    }
}

static void names_and_addresses_are_none_that_a_list_of_members_would_take_apart(void **state)
{
    static const char *const names[] = { "n1", "a.b-c_D9", "-", "." };
    static const char *const no_names[] = { "", "n 1", "n=1", "n,1", "n\n", "n/1", "\xc3\xa9" };
    static const char *const addresses[] = { "h:1", "10.0.0.1:7000", "[::1]:7000", "h:https" };
    static const char *const no_addresses[] = { "",        ":",     "h",     ":1",    "h:",
                                                "h:1,h:2", "h =:1", "h h:1", "h\t:1", "h:1\n" };
    char text[MEMBER_ADDRESS_SIZE + 1];

    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        assert_true(keel_member_name_ok(names[i]));
    for (size_t i = 0; i < sizeof no_names / sizeof no_names[0]; i++)
        assert_false(keel_member_name_ok(no_names[i]));
    for (size_t i = 0; i < sizeof addresses / sizeof addresses[0]; i++)
        assert_true(keel_member_address_ok(addresses[i]));
    for (size_t i = 0; i < sizeof no_addresses / sizeof no_addresses[0]; i++)
        assert_false(keel_member_address_ok(no_addresses[i]));
    assert_false(keel_member_name_ok(NULL));
    assert_false(keel_member_address_ok(NULL));
    for (size_t len = 1; len <= MEMBER_ADDRESS_SIZE; len++) {
        memset(text, 'n', sizeof text);
        text[len] = '\0';
        assert_true(keel_member_name_ok(text) == (len < MEMBER_NAME_SIZE));
        if (len < 3)
            continue;
        text[len - 2] = ':';
        assert_true(keel_member_address_ok(text) == (len < MEMBER_ADDRESS_SIZE));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_kind_of_message_survives_the_wire),
        cmocka_unit_test(
            every_truncation_and_extension_of_a_payload_is_rejected_or_is_another_message),
        cmocka_unit_test(a_truncated_frame_delivers_nothing),
        cmocka_unit_test(a_flipped_bit_is_never_delivered),
        cmocka_unit_test(a_stream_may_arrive_in_pieces_of_any_size),
        cmocka_unit_test(lengths_around_a_full_frame_survive),
        cmocka_unit_test(urgent_messages_pass_between_the_pieces_of_a_bulk_one),
        cmocka_unit_test(heads_out_of_order_are_malformed),
        cmocka_unit_test(an_error_is_for_good),
        cmocka_unit_test(a_message_that_never_ends_is_cut_off_at_the_limit),
        cmocka_unit_test(the_type_may_not_change_inside_a_message),
        cmocka_unit_test(counts_and_values_beyond_their_limits_are_malformed),
        cmocka_unit_test(entries_out_of_order_are_malformed),
        cmocka_unit_test(messages_of_three_lanes_are_put_together_side_by_side),
        cmocka_unit_test(snapshots_beyond_their_end_are_malformed),
        cmocka_unit_test(changes_beyond_their_limits_are_malformed),
        cmocka_unit_test(names_and_addresses_are_none_that_a_list_of_members_would_take_apart),
        cmocka_unit_test(commands_and_snapshots_have_lanes_of_their_own),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
