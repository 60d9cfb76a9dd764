/* Random messages and their comparison. */
#include "check.h"
#include "random_message.h"

static bool random_bool(struct keel_rng *rng)
{
    return keel_rng_below(rng, 2) == 1;
}

/* Small, large and extreme values alike. */
static uint64_t random_u64(struct keel_rng *rng)
{
    uint64_t v = keel_rng_next(rng);

    switch (keel_rng_below(rng, 4)) {
    case 0:
        return v % 10;
    case 1:
        return UINT64_MAX - v % 3;
    default:
        return v;
    }
}

static struct keel_buf *random_buf(struct keel_rng *rng, size_t size_max)
{
    struct keel_buf *buf = keel_buf_new((size_t)keel_rng_below(rng, size_max + 1));

    for (size_t i = 0; i < buf->len; i++)
        buf->data[i] = (uint8_t)keel_rng_next(rng);
    return buf;
}

static void random_append(struct keel_rng *rng, struct raft_message *msg, size_t size_max)
{
    size_t count = (size_t)keel_rng_below(rng, 6);

    msg->u.append.prev_index = keel_rng_next(rng) >> 1;
    msg->u.append.prev_term = random_u64(rng);
    msg->u.append.commit = random_u64(rng);
    msg->u.append.sent_us = random_u64(rng);
    msg->u.append.count = count;
    if (count > 0)
        msg->u.append.entries = keel_calloc(count, sizeof *msg->u.append.entries);
    for (size_t i = 0; i < count; i++) {
        struct raft_entry *entry = &msg->u.append.entries[i];

        entry->term = random_u64(rng);
        entry->index = msg->u.append.prev_index + 1 + i;
        entry->kind = (enum raft_entry_kind)keel_rng_below(rng, 3);
        if (entry->kind != RAFT_ENTRY_NOOP)
            entry->data = random_buf(rng, size_max / 6);
    }
}

static void random_vote(struct keel_rng *rng, struct raft_message *msg)
{
    if (msg->type == RAFT_VOTE_REQUEST) {
        msg->u.vote_request.pre = random_bool(rng);
        msg->u.vote_request.transfer = random_bool(rng);
        msg->u.vote_request.last_index = random_u64(rng);
        msg->u.vote_request.last_term = random_u64(rng);
        return;
    }
    msg->u.vote_reply.pre = random_bool(rng);
    msg->u.vote_reply.granted = random_bool(rng);
    msg->u.vote_reply.ack_age_us = random_bool(rng) ? RAFT_AGE_NEVER : random_u64(rng);
}

static void random_replies(struct keel_rng *rng, struct raft_message *msg)
{
    switch ((int)msg->type) {
    case RAFT_APPEND_REPLY:
        msg->u.append_reply.rejected = random_bool(rng);
        msg->u.append_reply.index = random_u64(rng);
        msg->u.append_reply.hint_index = random_u64(rng);
        msg->u.append_reply.hint_term = random_u64(rng);
        msg->u.append_reply.sent_us = random_u64(rng);
        break;
    case RAFT_HEARTBEAT:
        msg->u.heartbeat.commit = random_u64(rng);
        msg->u.heartbeat.round = random_u64(rng);
        msg->u.heartbeat.sent_us = random_u64(rng);
        break;
    case RAFT_HEARTBEAT_REPLY:
        msg->u.heartbeat_reply.round = random_u64(rng);
        msg->u.heartbeat_reply.sent_us = random_u64(rng);
        break;
    case RAFT_READ_REQUEST:
        msg->u.read_request.context = random_u64(rng);
        break;
    case RAFT_READ_REPLY:
        msg->u.read_reply.context = random_u64(rng);
        msg->u.read_reply.refused = random_bool(rng);
        msg->u.read_reply.index = random_u64(rng);
        break;
    case RAFT_TIMEOUT_NOW:
        msg->u.timeout_now.renounced = random_bool(rng);
        break;
    default:
        break;
    }
}

static struct keel_message *random_raft(struct keel_rng *rng, enum raft_message_type type,
                                        size_t size_max)
{
    struct raft_message *msg =
        raft_message_new(type, keel_rng_next(rng) | 1, keel_rng_next(rng) | 1, random_u64(rng));

    if (type == RAFT_VOTE_REQUEST || type == RAFT_VOTE_REPLY)
        random_vote(rng, msg);
    else if (type == RAFT_APPEND)
        random_append(rng, msg, size_max);
    else
        random_replies(rng, msg);
    return keel_message_raft(msg);
}

/* Of 1 … len_max bytes, of any value but NUL. */
static char *random_string(struct keel_rng *rng, size_t len_max)
{
    size_t len = 1 + (size_t)keel_rng_below(rng, len_max);
    char *text = keel_calloc(len + 1, 1);

    for (size_t i = 0; i < len; i++)
        text[i] = (char)(1 + keel_rng_below(rng, 255));
    return text;
}

static void random_changes(struct keel_rng *rng, struct keel_message *msg, size_t size_max)
{
    size_t len_max = size_max / 40 < 63 ? 1 + size_max / 40 : 63;

    msg->number = random_u64(rng);
    msg->change_count = 1 + (size_t)keel_rng_below(rng, KEEL_MEMBERS_MAX);
    msg->changes = keel_calloc(msg->change_count, sizeof *msg->changes);
    for (size_t i = 0; i < msg->change_count; i++) {
        struct keel_member_change *change = &msg->changes[i];

        change->verb = (enum keel_change_verb)(MEMBER_ADD + keel_rng_below(rng, 4));
        change->name = random_string(rng, len_max);
        if (change->verb != MEMBER_ADD && change->verb != MEMBER_ADD_VOTER)
            continue;
        change->address = random_string(rng, len_max);
        change->id = keel_rng_next(rng) | 1;
    }
}

static void random_snapshot(struct keel_rng *rng, struct keel_message *msg, size_t size_max)
{
    msg->snapshot.index = random_u64(rng);
    msg->snapshot.term = random_u64(rng);
    msg->snapshot.nonce = random_u64(rng);
    msg->snapshot.offset = keel_rng_next(rng) >> 1;
    if (msg->type == MESSAGE_SNAPSHOT_STATE) {
        msg->snapshot.state = (enum keel_snapshot_state)keel_rng_below(rng, 3);
        return;
    }
    size_t len = size_max < KEEL_SNAPSHOT_CHUNK_BYTES ? size_max : KEEL_SNAPSHOT_CHUNK_BYTES;

    msg->data = random_buf(rng, len);
    if (msg->data->len == 0)
        msg->data = keel_buf_free(msg->data); /* an offer */
    msg->snapshot.total = msg->snapshot.offset + (msg->data ? msg->data->len : 0) +
                          (random_bool(rng) ? 0 : keel_rng_next(rng) >> 2);
}

static void random_member_change(struct keel_rng *rng, struct keel_message *msg, size_t size_max)
{
    if (msg->type == MESSAGE_CHANGE) {
        msg->index = random_u64(rng);
        random_changes(rng, msg, size_max);
    } else if (msg->type == MESSAGE_CHANGE_REPLY) {
        msg->number = random_u64(rng);
        msg->err = -(int)keel_rng_below(rng, 50);
        msg->index = random_u64(rng);
    } else {
        msg->to = random_u64(rng);
    }
}

struct keel_message *random_message(struct keel_rng *rng, size_t kind, size_t size_max)
{
    if (kind < RAFT_MESSAGE_TYPES - 1)
        return random_raft(rng, (enum raft_message_type)(kind + 1), size_max);
    struct keel_message *msg = keel_message_new(
        (enum keel_message_type)(MESSAGE_RAFT + 1 + kind - (RAFT_MESSAGE_TYPES - 1)));

    switch (msg->type) {
    case MESSAGE_FORWARD:
        msg->deadline_us = random_u64(rng);
        msg->term = random_u64(rng);
        msg->data = random_buf(rng, size_max);
        msg->session = random_u64(rng);
        msg->number = random_u64(rng);
        break;
    case MESSAGE_FORWARD_REFUSED:
        msg->session = random_u64(rng);
        msg->number = random_u64(rng);
        break;
    case MESSAGE_RENEW:
    case MESSAGE_RENEWED:
        msg->sent_us = random_u64(rng);
        msg->lease_count = (size_t)keel_rng_below(rng, size_max / 8 + 1);
        if (msg->lease_count > 0)
            msg->leases = keel_calloc(msg->lease_count, sizeof *msg->leases);
        for (size_t i = 0; i < msg->lease_count; i++)
            msg->leases[i] = random_u64(rng);
        break;
    case MESSAGE_HELLO:
    case MESSAGE_REFUSAL:
    case MESSAGE_JOIN:
    case MESSAGE_WELCOME:
        msg->data = random_buf(rng, size_max < 4096 ? size_max : 4096);
        break;
    case MESSAGE_SNAPSHOT:
    case MESSAGE_SNAPSHOT_STATE:
        random_snapshot(rng, msg, size_max);
        break;
    case MESSAGE_CHANGE:
    case MESSAGE_CHANGE_REPLY:
    case MESSAGE_TRANSFER:
        random_member_change(rng, msg, size_max);
        break;
    case MESSAGE_DIGEST:
        msg->index = random_u64(rng);
        msg->digest = (struct keel_hash128){ random_u64(rng), random_u64(rng) };
        break;
    case MESSAGE_RAFT:
    case MESSAGE_PING:
    case MESSAGE_TYPES:
        break;
    }
    return msg;
}

static bool entries_equal(const struct raft_message *a, const struct raft_message *b)
{
    for (size_t i = 0; i < a->u.append.count; i++) {
        const struct raft_entry *x = &a->u.append.entries[i], *y = &b->u.append.entries[i];

        if (x->term != y->term || x->index != y->index || x->kind != y->kind ||
            (x->data == NULL) != (y->data == NULL) ||
            !keel_slice_equal(keel_buf_slice(x->data), keel_buf_slice(y->data)))
            return false;
    }
    return true;
}

/* Both were allocated zeroed and written field by field, so their bytes can be compared, less what
 * is a pointer. */
static bool raft_equal(const struct raft_message *a, const struct raft_message *b)
{
    struct raft_message x = *a, y = *b;

    if (a->type != b->type)
        return false;
    if (a->type == RAFT_APPEND) {
        if (a->u.append.count != b->u.append.count || !entries_equal(a, b))
            return false;
        x.u.append.entries = y.u.append.entries = NULL;
    }
    return x.from == y.from && x.to == y.to && x.term == y.term &&
           memcmp(&x.u, &y.u, sizeof x.u) == 0;
}

static bool strings_equal(const char *a, const char *b)
{
    return a == NULL || b == NULL ? a == b : strcmp(a, b) == 0;
}

static bool changes_equal(const struct keel_message *a, const struct keel_message *b)
{
    if (a->change_count != b->change_count)
        return false;
    for (size_t i = 0; i < a->change_count; i++) {
        const struct keel_member_change *x = &a->changes[i], *y = &b->changes[i];

        if (x->verb != y->verb || x->id != y->id || !strings_equal(x->name, y->name) ||
            !strings_equal(x->address, y->address))
            return false;
    }
    return true;
}

static bool snapshots_equal(const struct keel_message *a, const struct keel_message *b)
{
    return a->snapshot.index == b->snapshot.index && a->snapshot.term == b->snapshot.term &&
           a->snapshot.nonce == b->snapshot.nonce && a->snapshot.offset == b->snapshot.offset &&
           a->snapshot.total == b->snapshot.total && a->snapshot.state == b->snapshot.state;
}

bool messages_equal(const struct keel_message *a, const struct keel_message *b)
{
    if (a->type != b->type || (a->raft == NULL) != (b->raft == NULL))
        return false;
    if (a->raft != NULL && !raft_equal(a->raft, b->raft))
        return false;
    if (!changes_equal(a, b) || !snapshots_equal(a, b) || a->err != b->err ||
        a->index != b->index || a->to != b->to || !keel_hash128_equal(a->digest, b->digest))
        return false;
    return a->number == b->number && a->session == b->session && a->deadline_us == b->deadline_us &&
           a->term == b->term && a->sent_us == b->sent_us && a->lease_count == b->lease_count &&
           (a->lease_count == 0 ||
            memcmp(a->leases, b->leases, a->lease_count * sizeof *a->leases) == 0) &&
           (a->data == NULL) == (b->data == NULL) &&
           keel_slice_equal(keel_buf_slice(a->data), keel_buf_slice(b->data));
}
