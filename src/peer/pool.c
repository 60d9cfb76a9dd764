/* The pool: its beginning and end, listening, signs of life, and the calls of peer.h. Who there is
 * is link.c's business, what is said on a connection channel.c's. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

#include "check.h"
#include "err.h"
#include "log.h"
#include "peer/pool.h"

enum {
    TICK_MS = 50,
    CONNECT_TIMEOUT_MS = 500,
    PING_MS = 250,
    SILENCE_MS = 1500,
    PAUSE_MS = 500, /* a tick that is so late says that this process did not run */
    BACKLOG = 128,
};

/* ---- the end of the pool ---- */

static void pool_free(struct peer_pool *pool)
{
    link_free_members(&pool->options);
    free((char *)(uintptr_t)pool->options.name);
    free((char *)(uintptr_t)pool->options.listen);
    free(pool->read_area);
    free(pool);
}

void pool_let_go(struct peer_pool *pool)
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
    pool_let_go(handle->data);
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

/* ---- listening ---- */

static void on_connection(uv_stream_t *server, int status)
{
    struct peer_pool *pool = server->data;

    if (status != 0) {
        channel_complain_of_stranger(pool, uv_strerror(status));
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
    case CHANNEL_PARTING:
        if (now - ch->started_ms >= HANDSHAKE_TIMEOUT_MS)
            connection_fail(conn, "no handshake within %d ms", HANDSHAKE_TIMEOUT_MS);
        return;
    case CHANNEL_MEMBER:
        if (now - conn->input_ms >= SILENCE_MS)
            connection_fail(conn, "silent for %d ms", SILENCE_MS);
        else if (now - conn->output_ms >= PING_MS && connection_is_idle(conn))
            channel_send(ch, keel_message_new(MESSAGE_PING));
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

/* libuv's inits of these kinds fail only for want of descriptors or memory. */
void pool_own_handle(struct peer_pool *pool, uv_handle_t *handle, int err)
{
    if (err != 0)
        keel_fatal("peers: cannot set up a handle: %s", uv_strerror(err));
    handle->data = pool;
    pool->handles++;
}

static void init_handles(struct peer_pool *pool)
{
    pool_own_handle(pool, (uv_handle_t *)&pool->server, uv_tcp_init(pool->loop, &pool->server));
    pool_own_handle(pool, (uv_handle_t *)&pool->tick, uv_timer_init(pool->loop, &pool->tick));
    pool_own_handle(pool, (uv_handle_t *)&pool->reaper,
                    uv_async_init(pool->loop, &pool->reaper, on_reaper));
    pool_own_handle(pool, (uv_handle_t *)&pool->prepare,
                    uv_prepare_init(pool->loop, &pool->prepare));
}

static int check_addresses(const struct peer_options *options, char *ret_why, size_t why_size)
{
    char host[ADDRESS_HOST_SIZE], port[ADDRESS_PORT_SIZE];

    for (size_t i = 0; i < options->member_count; i++) {
        const struct peer_member *member = &options->members[i];

        if (member->id == options->id ||
            peer_address_split(member->address, host, sizeof host, port, sizeof port) == 0)
            continue;
        snprintf(ret_why, why_size,
                 "the address of %s, '%s', is not host:port (IPv6: [address]:port)", member->name,
                 member->address);
        return KEEL_E_INVALID;
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
    pool->options = *options;
    pool->options.member_count = 0; /* link_set_members takes copies */
    pool->options.name = keel_strdup(options->name);
    pool->options.listen = keel_strdup(options->listen);
    keel_rng_seed(&pool->rng, uv_hrtime() ^ options->id);
    /* libuv writes with write(2): a peer that is gone must not end this process. */
    signal(SIGPIPE, SIG_IGN);
    init_handles(pool);
    int err = check_addresses(options, ret_why, why_size);

    if (err == 0)
        err = listen_on(pool, ret_why, why_size);
    if (err != 0) {
        peer_pool_close(pool, NULL, NULL);
        return err;
    }
    pool->ticked_ms = connection_now_ms();
    uv_timer_start(&pool->tick, on_tick, TICK_MS, TICK_MS);
    uv_prepare_start(&pool->prepare, on_prepare);
    link_set_members(pool, options->members, options->member_count, options->config_index);
    *ret_pool = pool;
    return 0;
}

void peer_pool_set_members(struct peer_pool *pool, const struct peer_member *members, size_t count,
                           uint64_t config_index)
{
    KEEL_ASSERT(!pool->closing);
    link_set_members(pool, members, count, config_index);
}

void peer_send(struct peer_pool *pool, uint64_t to, struct keel_message *msg_take)
{
    struct peer_link *link = link_find(pool, to);

    if (link != NULL && link->current != NULL) {
        connection_queue(&link->current->conn, keel_message_encode(msg_take),
                         keel_message_lane(msg_take));
    }
    keel_message_free(msg_take);
}

void peer_pool_flush(struct peer_pool *pool)
{
    for (size_t i = 0; i < pool->link_count; i++) {
        if (pool->links[i]->current != NULL)
            connection_flush(&pool->links[i]->current->conn);
    }
}

bool peer_connected(const struct peer_pool *pool, uint64_t peer)
{
    const struct peer_link *link = link_find(pool, peer);

    return link != NULL && link->current != NULL && !link->current->conn.failed;
}

void peer_pool_close(struct peer_pool *pool, void (*closed)(void *arg), void *arg)
{
    KEEL_ASSERT(!pool->closing);
    pool->closing = true;
    pool->closed = closed;
    pool->closed_arg = arg;
    for (struct channel *ch = pool->channels; ch != NULL; ch = ch->next)
        channel_end(ch);
    while (pool->link_count > 0)
        link_drop(pool->links[0]);
    uv_close((uv_handle_t *)&pool->server, on_handle_closed);
    uv_close((uv_handle_t *)&pool->tick, on_handle_closed);
    uv_close((uv_handle_t *)&pool->reaper, on_handle_closed);
    uv_close((uv_handle_t *)&pool->prepare, on_handle_closed);
}
