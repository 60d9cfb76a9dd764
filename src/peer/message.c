/* The wire form of messages: hand-written, little-endian, every read checked. What a frame looks
 * like on the way in is frame.c's business; sockets are connection.c's. */
#include <stdlib.h>

#include "bytes.h"
#include "check.h"
#include "err.h"
#include "hash.h"
#include "peer/frame.h"
#include "peer/message.h"

enum {
    ENTRY_HEAD_BYTES = 8 + 1 + 4, /* term, kind, length */
    CONTROL_BYTES_MAX = 4096,     /* a Hello or a Refusal */
};

struct keel_message *keel_message_new(enum keel_message_type type)
{
    struct keel_message *msg = keel_calloc(1, sizeof *msg);

    msg->type = type;
    return msg;
}

struct keel_message *keel_message_raft(struct raft_message *msg_take)
{
    struct keel_message *msg = keel_message_new(MESSAGE_RAFT);

    msg->raft = msg_take;
    return msg;
}

struct keel_message *keel_message_free(struct keel_message *msg)
{
    if (msg == NULL)
        return NULL;
    raft_message_free(msg->raft);
    keel_buf_free(msg->data);
    free(msg->leases);
    free(msg);
    return NULL;
}

bool keel_message_is_bulk(const struct keel_message *msg)
{
    if (msg->type == MESSAGE_FORWARD)
        return true;
    return msg->type == MESSAGE_RAFT && msg->raft->type == RAFT_APPEND &&
           msg->raft->u.append.count > 0;
}

/* ---- encoding ---- */

/* Writes a payload through the gaps that the frame heads will fill. With at == NULL it only counts.
 */
struct writer {
    uint8_t *at;
    size_t room;  /* left in the present frame */
    size_t total; /* payload bytes so far */
};

static void put(struct writer *w, const void *data, size_t len)
{
    const uint8_t *from = data;

    w->total += len;
    while (w->at != NULL && len > 0) {
        if (w->room == 0) {
            w->at += FRAME_HEAD_BYTES;
            w->room = KEEL_FRAME_BYTES;
        }
        size_t piece = len < w->room ? len : w->room;

        memcpy(w->at, from, piece);
        w->at += piece;
        from += piece;
        w->room -= piece;
        len -= piece;
    }
}

static void put_u8(struct writer *w, uint8_t v)
{
    put(w, &v, 1);
}

static void put_u32(struct writer *w, uint32_t v)
{
    uint8_t bytes[4];

    put_le32(bytes, v);
    put(w, bytes, sizeof bytes);
}

static void put_u64(struct writer *w, uint64_t v)
{
    uint8_t bytes[8];

    put_le64(bytes, v);
    put(w, bytes, sizeof bytes);
}

static void put_slice(struct writer *w, struct keel_slice bytes)
{
    put(w, bytes.data, bytes.len);
}

static void put_entries(struct writer *w, const struct raft_entry *entries, size_t count,
                        uint64_t first)
{
    KEEL_ASSERT(count <= UINT32_MAX);
    put_u32(w, (uint32_t)count);
    for (size_t i = 0; i < count; i++) {
        struct keel_slice data = keel_buf_slice(entries[i].data);

        KEEL_ASSERT(entries[i].index == first + i);
        KEEL_ASSERT(data.len <= KEEL_ENTRY_SIZE_MAX);
        KEEL_ASSERT(entries[i].kind != RAFT_ENTRY_NOOP || data.len == 0);
        put_u64(w, entries[i].term);
        put_u8(w, (uint8_t)entries[i].kind);
        put_u32(w, (uint32_t)data.len);
        put_slice(w, data);
    }
}

static void put_append(struct writer *w, const struct raft_message *msg)
{
    put_u64(w, msg->u.append.prev_index);
    put_u64(w, msg->u.append.prev_term);
    put_u64(w, msg->u.append.commit);
    put_u64(w, msg->u.append.sent_us);
    put_entries(w, msg->u.append.entries, msg->u.append.count, msg->u.append.prev_index + 1);
}

static void put_append_reply(struct writer *w, const struct raft_message *msg)
{
    put_u8(w, msg->u.append_reply.rejected);
    put_u64(w, msg->u.append_reply.index);
    put_u64(w, msg->u.append_reply.hint_index);
    put_u64(w, msg->u.append_reply.hint_term);
    put_u64(w, msg->u.append_reply.sent_us);
}

static void put_vote(struct writer *w, const struct raft_message *msg)
{
    if (msg->type == RAFT_VOTE_REQUEST) {
        put_u8(w, msg->u.vote_request.pre);
        put_u8(w, msg->u.vote_request.transfer);
        put_u64(w, msg->u.vote_request.last_index);
        put_u64(w, msg->u.vote_request.last_term);
        return;
    }
    put_u8(w, msg->u.vote_reply.pre);
    put_u8(w, msg->u.vote_reply.granted);
    put_u64(w, msg->u.vote_reply.ack_age_us);
}

static void put_heartbeat(struct writer *w, const struct raft_message *msg)
{
    put_u64(w, msg->u.heartbeat.commit);
    put_u64(w, msg->u.heartbeat.round);
    put_u64(w, msg->u.heartbeat.sent_us);
}

static void put_raft(struct writer *w, const struct raft_message *msg)
{
    put_u8(w, (uint8_t)msg->type);
    put_u64(w, msg->from);
    put_u64(w, msg->to);
    put_u64(w, msg->term);
    switch (msg->type) {
    case RAFT_VOTE_REQUEST:
    case RAFT_VOTE_REPLY:
        put_vote(w, msg);
        return;
    case RAFT_APPEND:
        put_append(w, msg);
        return;
    case RAFT_APPEND_REPLY:
        put_append_reply(w, msg);
        return;
    case RAFT_HEARTBEAT:
        put_heartbeat(w, msg);
        return;
    case RAFT_HEARTBEAT_REPLY:
        put_u64(w, msg->u.heartbeat_reply.round);
        put_u64(w, msg->u.heartbeat_reply.sent_us);
        return;
    case RAFT_READ_REQUEST:
        put_u64(w, msg->u.read_request.context);
        return;
    case RAFT_READ_REPLY:
        put_u64(w, msg->u.read_reply.context);
        put_u8(w, msg->u.read_reply.refused);
        put_u64(w, msg->u.read_reply.index);
        return;
    case RAFT_TIMEOUT_NOW:
        return;
    case RAFT_MESSAGE_TYPES:
        break;
    }
    KEEL_ASSERT(false && "a raft message of an unknown type");
}

static void put_leases(struct writer *w, const struct keel_message *msg)
{
    KEEL_ASSERT(msg->lease_count <= KEEL_LEASES_MAX);
    put_u64(w, msg->sent_us);
    put_u32(w, (uint32_t)msg->lease_count);
    for (size_t i = 0; i < msg->lease_count; i++)
        put_u64(w, msg->leases[i]);
}

static void put_message(struct writer *w, const struct keel_message *msg)
{
    switch (msg->type) {
    case MESSAGE_RAFT:
        put_raft(w, msg->raft);
        return;
    case MESSAGE_FORWARD:
        KEEL_ASSERT(msg->data != NULL && msg->data->len <= KEEL_ENTRY_SIZE_MAX);
        put_u64(w, msg->session);
        put_u64(w, msg->number);
        put_u64(w, msg->deadline_us);
        put_slice(w, keel_buf_slice(msg->data));
        return;
    case MESSAGE_FORWARD_REFUSED:
        put_u64(w, msg->session);
        put_u64(w, msg->number);
        return;
    case MESSAGE_RENEW:
    case MESSAGE_RENEWED:
        put_leases(w, msg);
        return;
    case MESSAGE_HELLO:
    case MESSAGE_REFUSAL:
        KEEL_ASSERT(msg->data != NULL && msg->data->len <= CONTROL_BYTES_MAX);
        put_slice(w, keel_buf_slice(msg->data));
        return;
    case MESSAGE_PING:
        return;
    case MESSAGE_TYPES:
        break;
    }
    KEEL_ASSERT(false && "a message of an unknown type");
}

/* Every frame but the last is full, so heads lie at multiples of FRAME_BYTES_MAX. */
static void put_heads(struct keel_buf *buf, enum keel_message_type type, bool bulk)
{
    for (size_t at = 0; at < buf->len; at += FRAME_BYTES_MAX) {
        uint8_t *head = buf->data + at;
        size_t left = buf->len - at;
        bool more = left > FRAME_BYTES_MAX;
        size_t len = (more ? FRAME_BYTES_MAX : left) - FRAME_HEAD_BYTES;

        put_le32(head, (uint32_t)len);
        head[4] = (uint8_t)type;
        head[5] = (uint8_t)((more ? FRAME_MORE : 0) | (bulk ? FRAME_BULK : 0));
        put_le16(head + 6, 0);
        put_le64(head + 8,
                 keel_hash64_seed(keel_slice_of(head + FRAME_HEAD_BYTES, len), get_le64(head)));
    }
}

struct keel_buf *keel_message_encode(const struct keel_message *msg)
{
    struct writer count = { 0 };

    put_message(&count, msg);
    KEEL_ASSERT(count.total <= KEEL_MESSAGE_SIZE_MAX);
    size_t frames = (count.total + KEEL_FRAME_BYTES - 1) / KEEL_FRAME_BYTES;

    if (frames == 0)
        frames = 1; /* a ping has no payload, but is a frame all the same */
    struct keel_buf *buf = keel_buf_new(frames * FRAME_HEAD_BYTES + count.total);
    struct writer w = { .at = buf->data };

    put_message(&w, msg);
    put_heads(buf, msg->type, keel_message_is_bulk(msg));
    return buf;
}

/* ---- decoding ---- */

/* Only 0 and 1 are booleans: one value, one encoding. */
static bool take_bool(struct keel_cursor *c)
{
    uint8_t v = cursor_u8(c);

    if (v > 1)
        c->bad = true;
    return v == 1;
}

static void take_entry(struct keel_cursor *c, struct raft_entry *entry)
{
    entry->term = cursor_le64(c);
    uint8_t kind = cursor_u8(c);
    size_t len = cursor_le32(c);

    if (kind > RAFT_ENTRY_CONFIG || len > KEEL_ENTRY_SIZE_MAX ||
        (kind == RAFT_ENTRY_NOOP && len > 0)) {
        c->bad = true;
        return;
    }
    struct keel_slice data = cursor_slice(c, len);

    if (c->bad)
        return;
    entry->kind = (enum raft_entry_kind)kind;
    if (kind != RAFT_ENTRY_NOOP)
        entry->data = keel_buf_copy(data);
}

static void take_entries(struct keel_cursor *c, struct raft_message *msg)
{
    uint64_t prev = msg->u.append.prev_index;
    size_t count = cursor_le32(c);

    /* What is left bounds the array before it is allocated. */
    if (count > c->rest.len / ENTRY_HEAD_BYTES || prev > UINT64_MAX - count) {
        c->bad = true;
        return;
    }
    if (count == 0)
        return;
    msg->u.append.entries = keel_calloc(count, sizeof *msg->u.append.entries);
    msg->u.append.count = count;
    for (size_t i = 0; i < count && !c->bad; i++) {
        msg->u.append.entries[i].index = prev + 1 + i;
        take_entry(c, &msg->u.append.entries[i]);
    }
}

static void take_append(struct keel_cursor *c, struct raft_message *msg)
{
    msg->u.append.prev_index = cursor_le64(c);
    msg->u.append.prev_term = cursor_le64(c);
    msg->u.append.commit = cursor_le64(c);
    msg->u.append.sent_us = cursor_le64(c);
    take_entries(c, msg);
}

static void take_append_reply(struct keel_cursor *c, struct raft_message *msg)
{
    msg->u.append_reply.rejected = take_bool(c);
    msg->u.append_reply.index = cursor_le64(c);
    msg->u.append_reply.hint_index = cursor_le64(c);
    msg->u.append_reply.hint_term = cursor_le64(c);
    msg->u.append_reply.sent_us = cursor_le64(c);
}

static void take_vote(struct keel_cursor *c, struct raft_message *msg)
{
    if (msg->type == RAFT_VOTE_REQUEST) {
        msg->u.vote_request.pre = take_bool(c);
        msg->u.vote_request.transfer = take_bool(c);
        msg->u.vote_request.last_index = cursor_le64(c);
        msg->u.vote_request.last_term = cursor_le64(c);
        return;
    }
    msg->u.vote_reply.pre = take_bool(c);
    msg->u.vote_reply.granted = take_bool(c);
    msg->u.vote_reply.ack_age_us = cursor_le64(c);
}

static void take_heartbeat(struct keel_cursor *c, struct raft_message *msg)
{
    msg->u.heartbeat.commit = cursor_le64(c);
    msg->u.heartbeat.round = cursor_le64(c);
    msg->u.heartbeat.sent_us = cursor_le64(c);
}

static void take_raft_body(struct keel_cursor *c, struct raft_message *msg)
{
    switch (msg->type) {
    case RAFT_VOTE_REQUEST:
    case RAFT_VOTE_REPLY:
        take_vote(c, msg);
        return;
    case RAFT_APPEND:
        take_append(c, msg);
        return;
    case RAFT_APPEND_REPLY:
        take_append_reply(c, msg);
        return;
    case RAFT_HEARTBEAT:
        take_heartbeat(c, msg);
        return;
    case RAFT_HEARTBEAT_REPLY:
        msg->u.heartbeat_reply.round = cursor_le64(c);
        msg->u.heartbeat_reply.sent_us = cursor_le64(c);
        return;
    case RAFT_READ_REQUEST:
        msg->u.read_request.context = cursor_le64(c);
        return;
    case RAFT_READ_REPLY:
        msg->u.read_reply.context = cursor_le64(c);
        msg->u.read_reply.refused = take_bool(c);
        msg->u.read_reply.index = cursor_le64(c);
        return;
    case RAFT_TIMEOUT_NOW:
        return;
    case RAFT_MESSAGE_TYPES:
        break;
    }
    c->bad = true;
}

static void take_raft(struct keel_cursor *c, struct keel_message *msg)
{
    uint8_t type = cursor_u8(c);
    uint64_t from = cursor_le64(c), to = cursor_le64(c), term = cursor_le64(c);

    if (type == 0 || type >= RAFT_MESSAGE_TYPES || from == 0 || to == 0)
        c->bad = true;
    if (c->bad)
        return;
    msg->raft = raft_message_new((enum raft_message_type)type, from, to, term);
    take_raft_body(c, msg->raft);
}

static void take_forward(struct keel_cursor *c, struct keel_message *msg)
{
    msg->session = cursor_le64(c);
    msg->number = cursor_le64(c);
    msg->deadline_us = cursor_le64(c);
    if (c->rest.len > KEEL_ENTRY_SIZE_MAX)
        c->bad = true;
    struct keel_slice data = cursor_slice(c, c->rest.len);

    if (!c->bad)
        msg->data = keel_buf_copy(data);
}

static void take_leases(struct keel_cursor *c, struct keel_message *msg)
{
    msg->sent_us = cursor_le64(c);
    size_t count = cursor_le32(c);

    if (c->bad || count > KEEL_LEASES_MAX || count != c->rest.len / sizeof(uint64_t)) {
        c->bad = true;
        return;
    }
    if (count == 0)
        return;
    msg->leases = keel_calloc(count, sizeof *msg->leases);
    msg->lease_count = count;
    for (size_t i = 0; i < count; i++)
        msg->leases[i] = cursor_le64(c);
}

static void take_control(struct keel_cursor *c, struct keel_message *msg)
{
    if (c->rest.len > CONTROL_BYTES_MAX)
        c->bad = true;
    struct keel_slice data = cursor_slice(c, c->rest.len);

    if (!c->bad)
        msg->data = keel_buf_copy(data);
}

static void take_message(struct keel_cursor *c, struct keel_message *msg)
{
    switch (msg->type) {
    case MESSAGE_RAFT:
        take_raft(c, msg);
        return;
    case MESSAGE_FORWARD:
        take_forward(c, msg);
        return;
    case MESSAGE_FORWARD_REFUSED:
        msg->session = cursor_le64(c);
        msg->number = cursor_le64(c);
        return;
    case MESSAGE_RENEW:
    case MESSAGE_RENEWED:
        take_leases(c, msg);
        return;
    case MESSAGE_HELLO:
    case MESSAGE_REFUSAL:
        take_control(c, msg);
        return;
    case MESSAGE_PING:
        return;
    case MESSAGE_TYPES:
        break;
    }
    c->bad = true;
}

int keel_message_decode(enum keel_message_type type, struct keel_slice payload,
                        struct keel_message **ret_msg)
{
    struct keel_cursor c = { .rest = payload };
    struct keel_message *msg = keel_message_new(type);

    if (payload.len > KEEL_MESSAGE_SIZE_MAX)
        c.bad = true;
    else
        take_message(&c, msg);
    if (c.bad || c.rest.len > 0) {
        keel_message_free(msg);
        return KEEL_E_MALFORMED;
    }
    *ret_msg = msg;
    return 0;
}
