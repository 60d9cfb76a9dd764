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
    CONTROL_BYTES_MAX = 4096,     /* a Hello, a Join or a Refusal */
    WELCOME_BYTES_MAX = KEEL_FRAME_BYTES,
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
    keel_member_changes_free(msg->changes, msg->change_count);
    free(msg);
    return NULL;
}

bool keel_member_name_ok(const char *name)
{
    size_t len = name != NULL ? strlen(name) : 0;

    return len > 0 && len < MEMBER_NAME_SIZE &&
           strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-") == len;
}

bool keel_member_address_ok(const char *address)
{
    size_t len = address != NULL ? strlen(address) : 0;
    const char *colon = len > 0 ? strrchr(address, ':') : NULL;

    return len < MEMBER_ADDRESS_SIZE && colon != NULL && colon != address && colon[1] != '\0' &&
           strcspn(address, " \t\n,=") == len;
}

void keel_member_changes_free(struct keel_member_change *changes, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        free(changes[i].name);
        free(changes[i].address);
    }
    free(changes);
}

enum keel_lane keel_message_lane(const struct keel_message *msg)
{
    if (msg->type == MESSAGE_FORWARD)
        return LANE_BULK;
    /* Offers too: none may overtake the pieces of the snapshot before it. */
    if (msg->type == MESSAGE_SNAPSHOT)
        return LANE_SNAPSHOT;
    return msg->type == MESSAGE_RAFT && msg->raft->type == RAFT_APPEND &&
                   msg->raft->u.append.count > 0
               ? LANE_BULK
               : LANE_URGENT;
}

static size_t control_bytes_max(enum keel_message_type type)
{
    return type == MESSAGE_WELCOME ? WELCOME_BYTES_MAX : CONTROL_BYTES_MAX;
}

static bool change_adds(enum keel_change_verb verb)
{
    return verb == MEMBER_ADD || verb == MEMBER_ADD_VOTER;
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
        put_u8(w, msg->u.timeout_now.renounced);
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

static void put_snapshot(struct writer *w, const struct keel_message *msg)
{
    put_u64(w, msg->snapshot.index);
    put_u64(w, msg->snapshot.term);
    put_u64(w, msg->snapshot.nonce);
    put_u64(w, msg->snapshot.offset);
    if (msg->type == MESSAGE_SNAPSHOT_STATE) {
        put_u8(w, (uint8_t)msg->snapshot.state);
        return;
    }
    struct keel_slice piece = keel_buf_slice(msg->data);

    KEEL_ASSERT(piece.len <= KEEL_SNAPSHOT_CHUNK_BYTES && (msg->data == NULL || piece.len > 0));
    KEEL_ASSERT(msg->snapshot.offset <= msg->snapshot.total &&
                piece.len <= msg->snapshot.total - msg->snapshot.offset);
    put_u64(w, msg->snapshot.total);
    put_slice(w, piece);
}

static void put_string(struct writer *w, const char *text, size_t size)
{
    size_t len = strlen(text);

    KEEL_ASSERT(len > 0 && len < size);
    put_u32(w, (uint32_t)len);
    put(w, text, len);
}

static void put_changes(struct writer *w, const struct keel_message *msg)
{
    KEEL_ASSERT(msg->change_count > 0 && msg->change_count <= KEEL_MEMBERS_MAX);
    put_u64(w, msg->number);
    put_u64(w, msg->index);
    put_u32(w, (uint32_t)msg->change_count);
    for (size_t i = 0; i < msg->change_count; i++) {
        const struct keel_member_change *change = &msg->changes[i];

        put_u8(w, (uint8_t)change->verb);
        put_string(w, change->name, MEMBER_NAME_SIZE);
        if (!change_adds(change->verb))
            continue;
        KEEL_ASSERT(change->id != 0);
        put_string(w, change->address, MEMBER_ADDRESS_SIZE);
        put_u64(w, change->id);
    }
}

static void put_forward(struct writer *w, const struct keel_message *msg)
{
    KEEL_ASSERT(msg->data != NULL && msg->data->len <= KEEL_ENTRY_SIZE_MAX);
    put_u64(w, msg->session);
    put_u64(w, msg->number);
    put_u64(w, msg->deadline_us);
    put_u64(w, msg->term);
    put_slice(w, keel_buf_slice(msg->data));
}

static void put_control(struct writer *w, const struct keel_message *msg)
{
    KEEL_ASSERT(msg->data != NULL && msg->data->len <= control_bytes_max(msg->type));
    put_slice(w, keel_buf_slice(msg->data));
}

static void put_message(struct writer *w, const struct keel_message *msg)
{
    switch (msg->type) {
    case MESSAGE_RAFT:
        put_raft(w, msg->raft);
        return;
    case MESSAGE_FORWARD:
        put_forward(w, msg);
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
    case MESSAGE_JOIN:
    case MESSAGE_WELCOME:
        put_control(w, msg);
        return;
    case MESSAGE_SNAPSHOT:
    case MESSAGE_SNAPSHOT_STATE:
        put_snapshot(w, msg);
        return;
    case MESSAGE_CHANGE:
        put_changes(w, msg);
        return;
    case MESSAGE_CHANGE_REPLY:
        put_u64(w, msg->number);
        put_u32(w, (uint32_t)msg->err);
        put_u64(w, msg->index);
        return;
    case MESSAGE_TRANSFER:
        put_u64(w, msg->to);
        return;
    case MESSAGE_DIGEST:
        put_u64(w, msg->index);
        put_u64(w, msg->digest.low);
        put_u64(w, msg->digest.high);
        return;
    case MESSAGE_PING:
        return;
    case MESSAGE_TYPES:
        break;
    }
    KEEL_ASSERT(false && "a message of an unknown type");
}

/* Every frame but the last is full, so heads lie at multiples of FRAME_BYTES_MAX. */
static void put_heads(struct keel_buf *buf, enum keel_message_type type, enum keel_lane lane)
{
    static const uint8_t flags[LANES] = { 0, FRAME_BULK, FRAME_SNAPSHOT };

    for (size_t at = 0; at < buf->len; at += FRAME_BYTES_MAX) {
        uint8_t *head = buf->data + at;
        size_t left = buf->len - at;
        bool more = left > FRAME_BYTES_MAX;
        size_t len = (more ? FRAME_BYTES_MAX : left) - FRAME_HEAD_BYTES;

        put_le32(head, (uint32_t)len);
        head[4] = (uint8_t)type;
        head[5] = (uint8_t)((more ? FRAME_MORE : 0) | flags[lane]);
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
    put_heads(buf, msg->type, keel_message_lane(msg));
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
        msg->u.timeout_now.renounced = take_bool(c);
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
    msg->term = cursor_le64(c);
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
    if (c->rest.len > control_bytes_max(msg->type))
        c->bad = true;
    struct keel_slice data = cursor_slice(c, c->rest.len);

    if (!c->bad)
        msg->data = keel_buf_copy(data);
}

static void take_snapshot(struct keel_cursor *c, struct keel_message *msg)
{
    msg->snapshot.index = cursor_le64(c);
    msg->snapshot.term = cursor_le64(c);
    msg->snapshot.nonce = cursor_le64(c);
    msg->snapshot.offset = cursor_le64(c);
    if (msg->type == MESSAGE_SNAPSHOT_STATE) {
        uint8_t state = cursor_u8(c);

        if (state > SNAPSHOT_REFUSED)
            c->bad = true;
        msg->snapshot.state = (enum keel_snapshot_state)state;
        return;
    }
    msg->snapshot.total = cursor_le64(c);
    size_t len = c->rest.len;

    if (len > KEEL_SNAPSHOT_CHUNK_BYTES || msg->snapshot.offset > msg->snapshot.total ||
        len > msg->snapshot.total - msg->snapshot.offset)
        c->bad = true;
    struct keel_slice piece = cursor_slice(c, len);

    if (!c->bad && piece.len > 0)
        msg->data = keel_buf_copy(piece);
}

/* Of 1 … size - 1 bytes, none of them NUL. NULL: malformed. */
static char *take_string(struct keel_cursor *c, size_t size)
{
    size_t len = cursor_le32(c);

    if (len == 0 || len >= size)
        c->bad = true;
    struct keel_slice bytes = cursor_slice(c, len);

    if (c->bad || memchr(bytes.data, '\0', bytes.len) != NULL) {
        c->bad = true;
        return NULL;
    }
    char *text = keel_malloc(len + 1);

    memcpy(text, bytes.data, len);
    text[len] = '\0';
    return text;
}

static void take_change(struct keel_cursor *c, struct keel_member_change *change)
{
    uint8_t verb = cursor_u8(c);

    if (verb < MEMBER_ADD || verb > MEMBER_PROMOTE) {
        c->bad = true;
        return;
    }
    change->verb = (enum keel_change_verb)verb;
    change->name = take_string(c, MEMBER_NAME_SIZE);
    if (!change_adds(change->verb))
        return;
    change->address = take_string(c, MEMBER_ADDRESS_SIZE);
    change->id = cursor_le64(c);
    if (change->id == 0)
        c->bad = true;
}

static void take_changes(struct keel_cursor *c, struct keel_message *msg)
{
    msg->number = cursor_le64(c);
    msg->index = cursor_le64(c);
    size_t count = cursor_le32(c);

    if (count == 0 || count > KEEL_MEMBERS_MAX) {
        c->bad = true;
        return;
    }
    msg->changes = keel_calloc(count, sizeof *msg->changes);
    msg->change_count = count;
    for (size_t i = 0; i < count && !c->bad; i++)
        take_change(c, &msg->changes[i]);
}

static void take_change_reply(struct keel_cursor *c, struct keel_message *msg)
{
    msg->number = cursor_le64(c);
    msg->err = (int32_t)cursor_le32(c);
    msg->index = cursor_le64(c);
    if (msg->err > 0)
        c->bad = true;
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
    case MESSAGE_JOIN:
    case MESSAGE_WELCOME:
        take_control(c, msg);
        return;
    case MESSAGE_SNAPSHOT:
    case MESSAGE_SNAPSHOT_STATE:
        take_snapshot(c, msg);
        return;
    case MESSAGE_CHANGE:
        take_changes(c, msg);
        return;
    case MESSAGE_CHANGE_REPLY:
        take_change_reply(c, msg);
        return;
    case MESSAGE_TRANSFER:
        msg->to = cursor_le64(c);
        return;
    case MESSAGE_DIGEST:
        msg->index = cursor_le64(c);
        msg->digest.low = cursor_le64(c);
        msg->digest.high = cursor_le64(c);
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
