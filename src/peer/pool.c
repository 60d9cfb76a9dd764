/* The pool: who is connected, who dials whom and when, handshakes, signs of life. Bytes are
 * connection.c's business.
 *
 * Failures are only noted where they happen (that may be deep inside a call of the owner's) and
 * dealt with in the reaper, a uv_async: so the owner's callbacks come from libuv's poll phase only,
 * and never from inside peer_send or peer_pool_flush. */
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

#include "check.h"
#include "err.h"
#include "log.h"
#include "peer/address.h"
#include "peer/connection.h"
#include "peer/handshake.h"
#include "rng.h"

enum {
    TICK_MS = 50,
    CONNECT_TIMEOUT_MS = 500,
    HANDSHAKE_TIMEOUT_MS = 1000,
    PING_MS = 250,
    SILENCE_MS = 1500,
    PAUSE_MS = 500, /* a tick that is so late says that this process did not run */
    REDIAL_MIN_MS = 20,
    REDIAL_MAX_MS = 250,
    REDIAL_REFUSED_MS = 1000,
    STRANGERS_MAX = 64,   /* accepted connections that have not said who they are */
    COMPLAINTS_MS = 1000, /* at most one log line about strangers in this time */
    READ_AREA_BYTES = 256 << 10,
    BACKLOG = 128,
    COMPLAINT_SIZE = HANDSHAKE_WHY_SIZE + 32,
};

/* A connection's way to being a member's:
 *
 *     dialled    CONNECTING -> GREETING --their HELLO is right, we send PING------------> MEMBER
 *     accepted                 GREETING --their HELLO is right, we send ours-> CONFIRMING --PING->
 * MEMBER either     GREETING --their HELLO is wrong, we send REFUSAL-> REFUSED, until they close
 *
 * The accepting side waits for the PING because the dialling side may still refuse it. */
enum channel_state {
    CHANNEL_CONNECTING,
    CHANNEL_GREETING,
    CHANNEL_CONFIRMING,
    CHANNEL_MEMBER,
    CHANNEL_REFUSED
};

struct channel {
    struct connection conn;
    struct peer_pool *pool;
    struct peer_link *link; /* NULL: a stranger */
    struct channel *next, *prev;
    enum channel_state state;
    bool dialled;
    uint64_t started_ms;
    uint64_t incarnation; /* from its HELLO */
    uint32_t level;
};

/* Another member, connected or not. */
struct peer_link {
    struct peer_pool *pool;
    const struct peer_member *member;
    char host[ADDRESS_HOST_SIZE], port[ADDRESS_PORT_SIZE];
    bool dial;               /* by us: our name sorts first */
    struct channel *current; /* in state MEMBER */
    struct channel *dialling;
    uv_timer_t redial;
    uv_getaddrinfo_t lookup;
    bool looking_up;
    uint64_t backoff_ms;
    bool refused;                   /* by them, at the last attempt */
    char complaint[COMPLAINT_SIZE]; /* what the log knows already */
};

struct peer_pool {
    uv_loop_t *loop;
    struct peer_options options; /* strings are owned */
    struct peer_events events;
    struct peer_link links[KEEL_MEMBERS_MAX];
    size_t link_count;
    struct channel *channels; /* all that libuv knows, in no order */
    size_t strangers;
    uv_tcp_t server;
    uv_timer_t tick;
    uv_async_t reaper;
    uv_prepare_t prepare;
    size_t handles; /* that libuv has not let go, lookups included */
    struct sockaddr_storage from;
    bool has_from; /* we listen on one address: dial from it, so that a peer sees one address of
                      ours */
    uint64_t ticked_ms, complained_ms;
    struct keel_rng rng;
    uint8_t *read_area;
    bool closing;
    void (*closed)(void *arg);
    void *closed_arg;
};

static const struct connection_events channel_events;
static void schedule_redial(struct peer_link *link);

static struct channel *channel_of(struct connection *conn)
{
    return KEEL_CONTAINER_OF(conn, struct channel, conn);
}

static struct peer_link *find_link(struct peer_pool *pool, uint64_t id)
{
    for (size_t i = 0; i < pool->link_count; i++) {
        if (pool->links[i].member->id == id)
            return &pool->links[i];
    }
    return NULL;
}

/* ---- the end of the pool ---- */

static void pool_free(struct peer_pool *pool)
{
    for (size_t i = 0; i < pool->options.member_count; i++) {
        free((char *)(uintptr_t)pool->options.members[i].name);
        free((char *)(uintptr_t)pool->options.members[i].address);
    }
    free((char *)(uintptr_t)pool->options.name);
    free((char *)(uintptr_t)pool->options.listen);
    free(pool->read_area);
    free(pool);
}

static void let_go(struct peer_pool *pool)
{
    KEEL_ASSERT(pool->handles > 0);
    pool->handles--;
    if (pool->handles > 0 || !pool->closing)
        return;
    void (*closed)(void *arg) = pool->closed;
    void *arg = pool->closed_arg;

    pool_free(pool);
    if (closed != NULL)
        closed(arg);
}

static void on_handle_closed(uv_handle_t *handle)
{
    let_go(handle->data);
}

/* ---- channels ---- */

static struct channel *channel_new(struct peer_pool *pool, struct peer_link *link)
{
    struct channel *ch = keel_calloc(1, sizeof *ch);

    ch->pool = pool;
    ch->link = link;
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
    pool->strangers -= ch->link == NULL;
    free(ch);
    let_go(pool);
}

static void send_now(struct channel *ch, struct keel_message *msg_take)
{
    bool bulk = keel_message_is_bulk(msg_take);
    struct keel_buf *frames = keel_message_encode(msg_take);

    keel_message_free(msg_take);
    connection_queue(&ch->conn, frames, bulk);
    connection_flush(&ch->conn);
}

/* Strangers can make us write lines; not more than one a second. */
static void complain_of_stranger(struct peer_pool *pool, const char *why)
{
    uint64_t now = connection_now_ms();

    if (now - pool->complained_ms < COMPLAINTS_MS)
        return;
    pool->complained_ms = now;
    log_warning("a connection to %s was closed: %s", pool->options.listen, why);
}

/* The same complaint about a member is written once, until it has been connected in between. */
static void complain(struct peer_link *link, const char *what, const char *why)
{
    char line[COMPLAINT_SIZE];

    snprintf(line, sizeof line, "%s: %s", what, why);
    if (strcmp(line, link->complaint) == 0)
        return;
    memcpy(link->complaint, line, sizeof line);
    log_warning("%s at %s: %s", link->member->name, link->member->address, line);
}

static void report_end(const struct channel *ch)
{
    if (ch->state == CHANNEL_MEMBER)
        log_info("connection to %s lost: %s", ch->link->member->name, ch->conn.why);
    else if (ch->state == CHANNEL_REFUSED)
        return; /* said when it was refused */
    else if (ch->link == NULL)
        complain_of_stranger(ch->pool, ch->conn.why);
    else if (!ch->link->refused)
        complain(ch->link, "no connection", ch->conn.why);
}

/* Closes a channel; what was connected through it isn't any more. */
static void channel_end(struct channel *ch)
{
    struct peer_pool *pool = ch->pool;
    struct peer_link *link = ch->link;
    bool was_member = link != NULL && link->current == ch;

    if (ch->conn.closing)
        return;
    if (!pool->closing)
        report_end(ch);
    connection_close(&ch->conn);
    if (link == NULL)
        return;
    if (was_member)
        link->current = NULL;
    if (link->dialling == ch)
        link->dialling = NULL;
    if (link->dial && !pool->closing)
        schedule_redial(link);
    if (was_member && !pool->closing)
        pool->events.disconnected(pool->events.arg, link->member->id);
}

static void on_failed(struct connection *conn)
{
    uv_async_send(&channel_of(conn)->pool->reaper);
}

static void on_reaper(uv_async_t *async)
{
    struct peer_pool *pool = async->data;

    /* Channels leave the list in a later turn, when libuv has let go of them. */
    for (struct channel *ch = pool->channels; ch != NULL; ch = ch->next) {
        if (ch->conn.failed)
            channel_end(ch);
    }
}

/* ---- handshake ---- */

static void refuse(struct channel *ch, const char *why)
{
    if (ch->link != NULL)
        complain(ch->link, "refused by us", why);
    else
        complain_of_stranger(ch->pool, why);
    ch->state = CHANNEL_REFUSED;
    ch->started_ms = connection_now_ms();
    send_now(ch, handshake_refusal(why));
    connection_drain(&ch->conn);
}

static void establish(struct channel *ch)
{
    struct peer_pool *pool = ch->pool;
    struct peer_link *link = ch->link;

    /* The member has dialled anew, so its end of the older connection is gone. */
    if (link->current != NULL) {
        connection_fail(&link->current->conn, "replaced by a newer connection");
        channel_end(link->current);
    }
    ch->state = CHANNEL_MEMBER;
    link->current = ch;
    if (link->dialling == ch)
        link->dialling = NULL;
    link->backoff_ms = REDIAL_MIN_MS;
    link->refused = false;
    link->complaint[0] = '\0';
    log_info("connected to %s", link->member->name);
    pool->events.connected(pool->events.arg, link->member->id, ch->incarnation, ch->level);
}

static int on_hello(struct channel *ch, const struct keel_message *msg)
{
    struct peer_pool *pool = ch->pool;
    char why[HANDSHAKE_WHY_SIZE];
    struct hello hello;
    int err = handshake_read_hello(keel_buf_slice(msg->data), &hello);

    if (err != 0)
        return err;
    const struct peer_member *member = handshake_check(
        &pool->options, &hello, ch->link ? ch->link->member : NULL, why, sizeof why);

    if (member != NULL &&
        !pool->events.incarnation_ok(pool->events.arg, member->id, hello.incarnation)) {
        snprintf(why, sizeof why, "%s has lost its data: remove it and add it again", member->name);
        member = NULL;
    }
    if (member == NULL) {
        refuse(ch, why);
        return 0;
    }
    ch->incarnation = hello.incarnation;
    ch->level = hello.level;
    if (ch->dialled) {
        send_now(ch, keel_message_new(MESSAGE_PING));
        establish(ch);
        return 0;
    }
    ch->link = find_link(pool, member->id);
    pool->strangers--;
    ch->state = CHANNEL_CONFIRMING;
    send_now(ch, handshake_hello(&pool->options, member->id));
    return 0;
}

static int on_refusal(struct channel *ch, const struct keel_message *msg)
{
    struct peer_pool *pool = ch->pool;
    char why[HANDSHAKE_WHY_SIZE];
    int err = handshake_read_refusal(keel_buf_slice(msg->data), why, sizeof why);

    if (err != 0 || ch->link == NULL)
        return KEEL_E_MALFORMED;
    ch->link->refused = true;
    complain(ch->link, "refused us", why);
    pool->events.refused(pool->events.arg, ch->link->member->id, why);
    return KEEL_E_CLOSED;
}

/* From a member. What raft says must be said in its own name and to us. */
static int on_member_message(struct channel *ch, struct keel_message *msg_take)
{
    struct peer_pool *pool = ch->pool;
    uint64_t peer = ch->link->member->id;
    const struct raft_message *raft = msg_take->raft;

    if (raft != NULL && (raft->from != peer || raft->to != pool->options.id)) {
        keel_message_free(msg_take);
        return KEEL_E_MALFORMED;
    }
    pool->events.message(pool->events.arg, peer, msg_take);
    return 0;
}

static int on_message(struct connection *conn, struct keel_message *msg_take)
{
    struct channel *ch = channel_of(conn);
    enum keel_message_type type = msg_take->type;
    int err = KEEL_E_MALFORMED;

    if (ch->state == CHANNEL_MEMBER && type != MESSAGE_HELLO && type != MESSAGE_REFUSAL &&
        type != MESSAGE_PING)
        return on_member_message(ch, msg_take);
    if (type == MESSAGE_REFUSAL) {
        err = on_refusal(ch, msg_take);
    } else if (type == MESSAGE_HELLO && ch->state == CHANNEL_GREETING) {
        err = on_hello(ch, msg_take);
    } else if (type == MESSAGE_PING && ch->state == CHANNEL_CONFIRMING) {
        establish(ch);
        err = 0;
    } else if (type == MESSAGE_PING && ch->state == CHANNEL_MEMBER) {
        err = 0;
    }
    keel_message_free(msg_take);
    return err;
}

static void on_opened(struct connection *conn)
{
    struct channel *ch = channel_of(conn);

    ch->state = CHANNEL_GREETING;
    ch->started_ms = connection_now_ms();
    send_now(ch, handshake_hello(&ch->pool->options, ch->link->member->id));
}

static void on_input(struct connection *conn)
{
    struct channel *ch = channel_of(conn);

    if (ch->state == CHANNEL_MEMBER)
        ch->pool->events.alive(ch->pool->events.arg, ch->link->member->id);
}

static const struct connection_events channel_events = {
    .opened = on_opened,
    .input = on_input,
    .message = on_message,
    .failed = on_failed,
    .closed = on_channel_closed,
};

/* ---- dialling ---- */

static void dial(struct peer_link *link, const struct sockaddr *to)
{
    struct peer_pool *pool = link->pool;
    bool from = pool->has_from && pool->from.ss_family == to->sa_family;
    struct channel *ch = channel_new(pool, link);

    link->dialling = ch;
    link->refused = false;
    int err = connection_dial(&ch->conn, from ? (const struct sockaddr *)&pool->from : NULL, to);

    if (err != 0)
        connection_fail(&ch->conn, "%s", uv_strerror(err));
}

static void on_looked_up(uv_getaddrinfo_t *req, int status, struct addrinfo *found)
{
    struct peer_link *link = req->data;

    link->looking_up = false;
    if (!link->pool->closing) {
        if (status == 0) {
            dial(link, found->ai_addr);
        } else {
            complain(link, "cannot be resolved", uv_strerror(status));
            schedule_redial(link);
        }
    }
    uv_freeaddrinfo(found);
    let_go(link->pool);
}

static void look_up(struct peer_link *link)
{
    struct addrinfo hints = { .ai_socktype = SOCK_STREAM };
    int err = uv_getaddrinfo(link->pool->loop, &link->lookup, on_looked_up, link->host, link->port,
                             &hints);

    if (err != 0) {
        complain(link, "cannot be resolved", uv_strerror(err));
        schedule_redial(link);
        return;
    }
    link->looking_up = true;
    link->pool->handles++;
}

static void on_redial(uv_timer_t *timer)
{
    struct peer_link *link = timer->data;
    struct sockaddr_storage to;

    if (link->current != NULL || link->dialling != NULL || link->looking_up)
        return;
    if (address_numeric(link->host, link->port, &to))
        dial(link, (const struct sockaddr *)&to);
    else
        look_up(link);
}

/* Half of the delay is random, so that nodes that were cut off together do not come back in step.
 */
static void schedule_redial(struct peer_link *link)
{
    uint64_t base = link->refused ? REDIAL_REFUSED_MS : link->backoff_ms;
    uint64_t delay = base / 2 + keel_rng_below(&link->pool->rng, base / 2 + 1);

    link->backoff_ms = link->backoff_ms * 2 < REDIAL_MAX_MS ? link->backoff_ms * 2 : REDIAL_MAX_MS;
    uv_timer_start(&link->redial, on_redial, delay, 0);
}

/* ---- listening ---- */

static void on_connection(uv_stream_t *server, int status)
{
    struct peer_pool *pool = server->data;

    if (status != 0) {
        complain_of_stranger(pool, uv_strerror(status));
        return;
    }
    bool room = pool->strangers < STRANGERS_MAX;
    struct channel *ch = channel_new(pool, NULL);
    int err = connection_accept(&ch->conn, server);

    if (err != 0)
        connection_fail(&ch->conn, "%s", uv_strerror(err));
    else if (!room)
        connection_fail(&ch->conn, "too many that have not said who they are");
}

static int listen_on(struct peer_pool *pool, char *ret_why, size_t why_size)
{
    const char *listen = pool->options.listen;
    char host[ADDRESS_HOST_SIZE], port[ADDRESS_PORT_SIZE];
    struct sockaddr_storage address;

    if (peer_address_split(listen, host, sizeof host, port, sizeof port) != 0) {
        snprintf(ret_why, why_size, "'%s' is not host:port (IPv6: [address]:port)", listen);
        return KEEL_E_INVALID;
    }
    int err = address_resolve(pool->loop, host, port, &address);

    if (err != 0) {
        snprintf(ret_why, why_size, "'%s' cannot be resolved (%s): give an address of this host",
                 listen, uv_strerror(err));
        return KEEL_E_INVALID;
    }
    err = uv_tcp_bind(&pool->server, (const struct sockaddr *)&address, 0);
    if (err == 0)
        err = uv_listen((uv_stream_t *)&pool->server, BACKLOG, on_connection);
    if (err != 0) {
        const char *advice =
            err == UV_EADDRINUSE ? "another process has this port: stop it, or choose another port"
            : err == UV_EADDRNOTAVAIL ? "it is not an address of this host: give one that is"
                                      : "choose an address and port that this process may use";

        snprintf(ret_why, why_size, "cannot listen on %s (%s): %s", listen, uv_strerror(err),
                 advice);
        return err == UV_EADDRINUSE ? KEEL_E_BUSY : KEEL_E_INVALID;
    }
    address_without_port(&address, &pool->from);
    pool->has_from = !address_is_wildcard(&address);
    return 0;
}

/* ---- time ---- */

static void tick_channel(struct channel *ch, uint64_t now)
{
    struct connection *conn = &ch->conn;

    switch (ch->state) {
    case CHANNEL_CONNECTING:
        if (now - ch->started_ms >= CONNECT_TIMEOUT_MS)
            connection_fail(conn, "no answer within %d ms", CONNECT_TIMEOUT_MS);
        return;
    case CHANNEL_GREETING:
    case CHANNEL_CONFIRMING:
    case CHANNEL_REFUSED:
        if (now - ch->started_ms >= HANDSHAKE_TIMEOUT_MS)
            connection_fail(conn, "no handshake within %d ms", HANDSHAKE_TIMEOUT_MS);
        return;
    case CHANNEL_MEMBER:
        if (now - conn->input_ms >= SILENCE_MS)
            connection_fail(conn, "silent for %d ms", SILENCE_MS);
        else if (now - conn->output_ms >= PING_MS && conn->unsent == 0 && !conn->writing)
            send_now(ch, keel_message_new(MESSAGE_PING));
        return;
    }
}

static void on_tick(uv_timer_t *timer)
{
    struct peer_pool *pool = timer->data;
    uint64_t now = connection_now_ms(), gap = now - pool->ticked_ms;

    pool->ticked_ms = now;
    for (struct channel *ch = pool->channels; ch != NULL; ch = ch->next) {
        if (ch->conn.failed)
            continue;
        /* We were stopped, and what came in meanwhile has not been read yet: nobody was silent. */
        if (gap >= PAUSE_MS) {
            ch->started_ms += gap;
            ch->conn.input_ms += gap;
        }
        ch->started_ms = ch->started_ms < now ? ch->started_ms : now;
        ch->conn.input_ms = ch->conn.input_ms < now ? ch->conn.input_ms : now;
        tick_channel(ch, now);
    }
}

static void on_prepare(uv_prepare_t *prepare)
{
    peer_pool_flush(prepare->data);
}

/* ---- the public side ---- */

static void copy_options(struct peer_pool *pool, const struct peer_options *options)
{
    pool->options = *options;
    pool->options.name = keel_strdup(options->name);
    pool->options.listen = keel_strdup(options->listen);
    for (size_t i = 0; i < options->member_count; i++) {
        pool->options.members[i].name = keel_strdup(options->members[i].name);
        pool->options.members[i].address = keel_strdup(options->members[i].address);
    }
}

/* libuv's inits of these kinds fail only for want of descriptors or memory. */
static void own_handle(struct peer_pool *pool, uv_handle_t *handle, int err)
{
    if (err != 0)
        keel_fatal("peers: cannot set up a handle: %s", uv_strerror(err));
    handle->data = pool;
    pool->handles++;
}

static void init_handles(struct peer_pool *pool)
{
    own_handle(pool, (uv_handle_t *)&pool->server, uv_tcp_init(pool->loop, &pool->server));
    own_handle(pool, (uv_handle_t *)&pool->tick, uv_timer_init(pool->loop, &pool->tick));
    own_handle(pool, (uv_handle_t *)&pool->reaper,
               uv_async_init(pool->loop, &pool->reaper, on_reaper));
    own_handle(pool, (uv_handle_t *)&pool->prepare, uv_prepare_init(pool->loop, &pool->prepare));
}

static int add_links(struct peer_pool *pool, char *ret_why, size_t why_size)
{
    for (size_t i = 0; i < pool->options.member_count; i++) {
        const struct peer_member *member = &pool->options.members[i];
        struct peer_link *link = &pool->links[pool->link_count];

        if (member->id == pool->options.id)
            continue;
        if (peer_address_split(member->address, link->host, sizeof link->host, link->port,
                               sizeof link->port) != 0) {
            snprintf(ret_why, why_size,
                     "the address of %s, '%s', is not host:port (IPv6: [address]:port)",
                     member->name, member->address);
            return KEEL_E_INVALID;
        }
        link->pool = pool;
        link->member = member;
        link->dial = strcmp(pool->options.name, member->name) < 0;
        link->backoff_ms = REDIAL_MIN_MS;
        own_handle(pool, (uv_handle_t *)&link->redial, uv_timer_init(pool->loop, &link->redial));
        link->redial.data = link;
        link->lookup.data = link;
        pool->link_count++;
    }
    return 0;
}

int peer_pool_new(uv_loop_t *loop, const struct peer_options *options,
                  const struct peer_events *events, struct peer_pool **ret_pool, char *ret_why,
                  size_t why_size)
{
    struct peer_pool *pool = keel_calloc(1, sizeof *pool);

    KEEL_ASSERT(options->member_count <= KEEL_MEMBERS_MAX && options->id != 0);
    pool->loop = loop;
    pool->events = *events;
    pool->read_area = keel_malloc(READ_AREA_BYTES);
    copy_options(pool, options);
    keel_rng_seed(&pool->rng, uv_hrtime() ^ options->id);
    /* libuv writes with write(2): a peer that is gone must not end this process. */
    signal(SIGPIPE, SIG_IGN);
    init_handles(pool);
    int err = add_links(pool, ret_why, why_size);

    if (err == 0)
        err = listen_on(pool, ret_why, why_size);
    if (err != 0) {
        peer_pool_close(pool, NULL, NULL);
        return err;
    }
    pool->ticked_ms = connection_now_ms();
    uv_timer_start(&pool->tick, on_tick, TICK_MS, TICK_MS);
    uv_prepare_start(&pool->prepare, on_prepare);
    for (size_t i = 0; i < pool->link_count; i++) {
        if (pool->links[i].dial)
            uv_timer_start(&pool->links[i].redial, on_redial, 0, 0);
    }
    *ret_pool = pool;
    return 0;
}

void peer_send(struct peer_pool *pool, uint64_t to, struct keel_message *msg_take)
{
    struct peer_link *link = find_link(pool, to);

    if (link != NULL && link->current != NULL) {
        connection_queue(&link->current->conn, keel_message_encode(msg_take),
                         keel_message_is_bulk(msg_take));
    }
    keel_message_free(msg_take);
}

void peer_pool_flush(struct peer_pool *pool)
{
    for (size_t i = 0; i < pool->link_count; i++) {
        if (pool->links[i].current != NULL)
            connection_flush(&pool->links[i].current->conn);
    }
}

bool peer_connected(const struct peer_pool *pool, uint64_t peer)
{
    const struct peer_link *link = find_link((struct peer_pool *)(uintptr_t)pool, peer);

    return link != NULL && link->current != NULL && !link->current->conn.failed;
}

static void on_link_closed(uv_handle_t *handle)
{
    struct peer_link *link = handle->data;

    let_go(link->pool);
}

void peer_pool_close(struct peer_pool *pool, void (*closed)(void *arg), void *arg)
{
    KEEL_ASSERT(!pool->closing);
    pool->closing = true;
    pool->closed = closed;
    pool->closed_arg = arg;
    for (struct channel *ch = pool->channels; ch != NULL; ch = ch->next)
        channel_end(ch);
    for (size_t i = 0; i < pool->link_count; i++) {
        if (pool->links[i].looking_up)
            uv_cancel((uv_req_t *)&pool->links[i].lookup); /* else it ends by itself */
        uv_close((uv_handle_t *)&pool->links[i].redial, on_link_closed);
    }
    uv_close((uv_handle_t *)&pool->server, on_handle_closed);
    uv_close((uv_handle_t *)&pool->tick, on_handle_closed);
    uv_close((uv_handle_t *)&pool->reaper, on_handle_closed);
    uv_close((uv_handle_t *)&pool->prepare, on_handle_closed);
}
