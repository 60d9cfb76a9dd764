/* One connection's way through the handshake, and what comes over it afterwards. Who there is and
 * who dials is link.c's business.
 *
 * Failures are only noted where they happen (that may be deep inside a call of the owner's) and
 * dealt with in the reaper, a uv_async: so the owner's callbacks come from libuv's poll phase only,
 * and never from inside peer_send or peer_pool_flush. */
#include <stdio.h>
#include <stdlib.h>

#include "check.h"
#include "err.h"
#include "log.h"
#include "peer/pool.h"

enum { COMPLAINTS_MS = 1000 }; /* at most one log line about strangers in this time */

static const struct connection_events channel_events;

static struct channel *channel_of(struct connection *conn)
{
    return KEEL_CONTAINER_OF(conn, struct channel, conn);
}

struct channel *channel_new(struct peer_pool *pool, struct peer_link *link)
{
    struct channel *ch = keel_calloc(1, sizeof *ch);

    ch->pool = pool;
    ch->link = link != NULL ? link_ref(link) : NULL;
    ch->dialled = link != NULL;
    ch->state = link != NULL ? CHANNEL_CONNECTING : CHANNEL_GREETING;
    ch->started_ms = connection_now_ms();
    connection_init(&ch->conn, pool->loop, keel_slice_of(pool->read_area, READ_AREA_BYTES),
                    &channel_events);
    ch->next = pool->channels;
    if (ch->next != NULL)
        ch->next->prev = ch;
    pool->channels = ch;
    pool->handles++;
    pool->strangers += link == NULL;
    return ch;
}

static void on_channel_closed(struct connection *conn)
{
    struct channel *ch = channel_of(conn);
    struct peer_pool *pool = ch->pool;

    if (ch->prev != NULL)
        ch->prev->next = ch->next;
    else
        pool->channels = ch->next;
    if (ch->next != NULL)
        ch->next->prev = ch->prev;
    if (ch->link != NULL)
        link_unref(ch->link);
    else
        pool->strangers--;
    free(ch);
    pool_let_go(pool);
}

void channel_send(struct channel *ch, struct keel_message *msg_take)
{
    enum keel_lane lane = keel_message_lane(msg_take);
    struct keel_buf *frames = keel_message_encode(msg_take);

    keel_message_free(msg_take);
    connection_queue(&ch->conn, frames, lane);
    connection_flush(&ch->conn);
}

void channel_part(struct channel *ch)
{
    ch->state = CHANNEL_PARTING;
    ch->started_ms = connection_now_ms();
    connection_drain(&ch->conn);
}

void channel_complain_of_stranger(struct peer_pool *pool, const char *why)
{
    uint64_t now = connection_now_ms();

    if (now - pool->complained_ms < COMPLAINTS_MS)
        return;
    pool->complained_ms = now;
    log_warning("a connection to %s was closed: %s", pool->options.listen, why);
}

static void report_end(const struct channel *ch)
{
    if (ch->state == CHANNEL_MEMBER)
        log_info("connection to %s lost: %s", ch->link->name, ch->conn.why);
    else if (ch->state == CHANNEL_PARTING)
        return; /* said when it began to */
    else if (ch->link == NULL)
        channel_complain_of_stranger(ch->pool, ch->conn.why);
    else if (!ch->link->refused && !ch->link->gone && ch->link->current == NULL)
        link_complain(ch->link, "no connection", ch->conn.why);
}

static bool link_has_channel(const struct peer_link *link)
{
    for (const struct channel *ch = link->pool->channels; ch != NULL; ch = ch->next) {
        if (ch->link == link && !ch->conn.closing)
            return true;
    }
    return false;
}

void channel_end(struct channel *ch)
{
    struct peer_pool *pool = ch->pool;
    struct peer_link *link = ch->link;
    bool was_current = link != NULL && link->current == ch;

    if (ch->conn.closing)
        return;
    if (!pool->closing)
        report_end(ch);
    connection_close(&ch->conn);
    if (link == NULL)
        return;
    if (was_current)
        link->current = NULL;
    if (link->dialling == ch)
        link->dialling = NULL;
    if (pool->closing)
        return;
    if (link->guest && !link->gone && !link_has_channel(link))
        link_drop(link);
    if (!link->gone && (ch->dialled || was_current))
        link_redial(link, was_current);
    if (was_current)
        pool->events.disconnected(pool->events.arg, link->id);
}

static void on_failed(struct connection *conn)
{
    uv_async_send(&channel_of(conn)->pool->reaper);
}

/* ---- handshake ---- */

/* The last word on a connection, and then no more. */
static void dismiss(struct channel *ch, struct keel_message *msg_take)
{
    channel_send(ch, msg_take);
    channel_part(ch);
}

static void refuse(struct channel *ch, enum peer_refusal kind, const char *why)
{
    if (ch->link != NULL)
        link_complain(ch->link, "refused by us", why);
    else
        channel_complain_of_stranger(ch->pool, why);
    dismiss(ch, handshake_refusal(kind, why));
}

/* Two members may dial each other at the same time. Both ends then keep the connection that was
 * dialled by the one whose name sorts first, so that they can't each close the other's. */
static bool is_preferred(const struct channel *ch)
{
    return ch->dialled == ch->link->first;
}

/* Is there already a connection that is kept rather than this? */
static bool is_superfluous(const struct channel *ch)
{
    const struct channel *current = ch->link->current;

    return current != NULL && current != ch && !current->conn.failed && is_preferred(current) &&
           !is_preferred(ch);
}

/* Whoever was here under this id before, also one that is parting as a member no more, is gone. */
static void end_older(struct channel *newer)
{
    for (struct channel *ch = newer->pool->channels; ch != NULL; ch = ch->next) {
        if (ch == newer || ch->link == NULL || ch->link->id != newer->link->id ||
            ch->link->current != ch)
            continue;
        connection_fail(&ch->conn, "replaced by a newer connection");
        channel_end(ch);
    }
}

static void establish(struct channel *ch)
{
    struct peer_pool *pool = ch->pool;
    struct peer_link *link = ch->link;

    if (is_superfluous(ch)) {
        connection_fail(&ch->conn, "there is another connection");
        return;
    }
    end_older(ch);
    ch->state = CHANNEL_MEMBER;
    link->current = ch;
    if (link->dialling == ch)
        link->dialling = NULL;
    link_connected(link);
    log_info("connected to %s", link->name);
    pool->events.connected(pool->events.arg, link->id, ch->incarnation, ch->level);
}

/* The link of whoever says this HELLO; NULL: ret_kind, ret_why. */
static struct peer_link *recognize(struct channel *ch, const struct hello *hello,
                                   enum peer_refusal *ret_kind, char *ret_why, size_t size)
{
    struct peer_pool *pool = ch->pool;
    enum handshake_verdict verdict =
        handshake_check(&pool->options, hello, ch->link ? ch->link->id : 0, ret_why, size);

    *ret_kind = verdict == HANDSHAKE_REMOVED ? PEER_REFUSAL_REMOVED : PEER_REFUSAL_OTHER;
    if (verdict == HANDSHAKE_REFUSED || verdict == HANDSHAKE_REMOVED)
        return NULL;
    if (!pool->events.incarnation_ok(pool->events.arg, hello->id, hello->incarnation)) {
        *ret_kind = PEER_REFUSAL_LOST;
        snprintf(ret_why, size, "%s has lost its data: remove it and add it again", hello->name);
        return NULL;
    }
    struct peer_link *link = link_find(pool, hello->id);

    if (verdict == HANDSHAKE_MEMBER) {
        KEEL_ASSERT(link != NULL && !link->guest);
        return link;
    }
    if (link != NULL)
        link->config_index = hello->config_index;
    else
        link = link_new_guest(pool, hello);
    if (link == NULL)
        snprintf(ret_why, size, "%s knows too little yet to let %s in: try again later",
                 pool->options.name, hello->name);
    return link;
}

static int on_hello(struct channel *ch, const struct keel_message *msg)
{
    struct peer_pool *pool = ch->pool;
    char why[HANDSHAKE_WHY_SIZE];
    struct hello hello;
    int err = handshake_read_hello(keel_buf_slice(msg->data), &hello);

    if (err != 0)
        return err;
    enum peer_refusal kind;
    struct peer_link *link = recognize(ch, &hello, &kind, why, sizeof why);

    if (link == NULL) {
        refuse(ch, kind, why);
        return 0;
    }
    ch->incarnation = hello.incarnation;
    ch->level = hello.level;
    if (ch->dialled) {
        channel_send(ch, keel_message_new(MESSAGE_PING));
        establish(ch);
        return 0;
    }
    ch->link = link_ref(link);
    pool->strangers--;
    if (is_superfluous(ch)) {
        connection_fail(&ch->conn, "there is another connection");
        return 0;
    }
    ch->state = CHANNEL_CONFIRMING;
    channel_send(ch, handshake_hello(&pool->options, link->id));
    return 0;
}

static int on_refusal(struct channel *ch, const struct keel_message *msg)
{
    struct peer_pool *pool = ch->pool;
    char why[HANDSHAKE_WHY_SIZE];
    enum peer_refusal kind;
    int err = handshake_read_refusal(keel_buf_slice(msg->data), &kind, why, sizeof why);

    if (err != 0 || ch->link == NULL)
        return KEEL_E_MALFORMED;
    ch->link->refused = true;
    link_complain(ch->link, "refused us", why);
    pool->events.refused(pool->events.arg, ch->link->id, kind, why);
    return KEEL_E_CLOSED;
}

/* The owner of the pool knows whether it has been added. NULL: ret_why. */
static struct keel_buf *welcome(struct peer_pool *pool, const struct join *join, char *ret_why,
                                size_t size)
{
    if (!handshake_check_version(pool->options.name, join->name, join->version, ret_why, size))
        return NULL;
    if (pool->events.join == NULL) {
        snprintf(ret_why, size, "%s lets nobody in: ask another member", pool->options.name);
        return NULL;
    }
    return pool->events.join(pool->events.arg, join->name, join->incarnation, ret_why, size);
}

/* A new node asks to be let in. */
static int on_join(struct channel *ch, const struct keel_message *msg)
{
    struct peer_pool *pool = ch->pool;
    char why[HANDSHAKE_WHY_SIZE];
    struct join join;
    int err = handshake_read_join(keel_buf_slice(msg->data), &join);

    if (err != 0)
        return err;
    struct keel_buf *packed = welcome(pool, &join, why, sizeof why);

    if (packed == NULL) {
        refuse(ch, PEER_REFUSAL_OTHER, why);
        return 0;
    }
    struct keel_message *answer = keel_message_new(MESSAGE_WELCOME);

    answer->data = packed;
    log_info("%s joins", join.name);
    dismiss(ch, answer);
    return 0;
}

/* ---- what comes in ---- */

/* What raft says must be said in the member's own name and to us. */
static int on_member_message(struct channel *ch, struct keel_message *msg_take)
{
    struct peer_pool *pool = ch->pool;
    uint64_t peer = ch->link->id;
    const struct raft_message *raft = msg_take->raft;

    if (raft != NULL && (raft->from != peer || raft->to != pool->options.id)) {
        keel_message_free(msg_take);
        return KEEL_E_MALFORMED;
    }
    pool->events.message(pool->events.arg, peer, msg_take);
    return 0;
}

static bool is_handshake(enum keel_message_type type)
{
    return type == MESSAGE_HELLO || type == MESSAGE_REFUSAL || type == MESSAGE_PING ||
           type == MESSAGE_JOIN || type == MESSAGE_WELCOME;
}

/* Of the handshake, or a PING later. */
static int on_handshake_message(struct channel *ch, const struct keel_message *msg)
{
    enum keel_message_type type = msg->type;

    if (type == MESSAGE_REFUSAL)
        return on_refusal(ch, msg);
    if (type == MESSAGE_HELLO && ch->state == CHANNEL_GREETING)
        return on_hello(ch, msg);
    if (type == MESSAGE_JOIN && ch->state == CHANNEL_GREETING && !ch->dialled)
        return on_join(ch, msg);
    if (type == MESSAGE_PING && ch->state == CHANNEL_CONFIRMING) {
        establish(ch);
        return 0;
    }
    return type == MESSAGE_PING && ch->state == CHANNEL_MEMBER ? 0 : KEEL_E_MALFORMED;
}

static int on_message(struct connection *conn, struct keel_message *msg_take)
{
    struct channel *ch = channel_of(conn);

    if (ch->state == CHANNEL_MEMBER && !is_handshake(msg_take->type))
        return on_member_message(ch, msg_take);
    int err = on_handshake_message(ch, msg_take);

    keel_message_free(msg_take);
    return err;
}

static void on_opened(struct connection *conn)
{
    struct channel *ch = channel_of(conn);

    ch->state = CHANNEL_GREETING;
    ch->started_ms = connection_now_ms();
    channel_send(ch, handshake_hello(&ch->pool->options, ch->link->id));
}

static void on_input(struct connection *conn)
{
    struct channel *ch = channel_of(conn);

    if (ch->state == CHANNEL_MEMBER)
        ch->pool->events.alive(ch->pool->events.arg, ch->link->id);
}

static const struct connection_events channel_events = {
    .opened = on_opened,
    .input = on_input,
    .message = on_message,
    .failed = on_failed,
    .closed = on_channel_closed,
};
