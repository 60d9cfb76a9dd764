/* Pools on one libuv loop over loopback, and bare sockets that play a bad peer. Every wait is for a
 * condition; the bound only ends a test that hangs. */
#include "unit.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include "err.h"
#include "check.h"
#include "log.h"
#include "peer/handshake.h"
#include "random_message.h"

enum { NODES = 3, BOUND_MS = 30000 };

struct world;

struct node {
    struct world *world;
    uint64_t id;
    struct peer_pool *pool;
    bool closed;
    unsigned int connected[NODES + 1], disconnected[NODES + 1], alive[NODES + 1];
    uint64_t seen_incarnation[NODES + 1];
    uint64_t expected[NODES + 1]; /* incarnation on record; 0: any */
    char refused[HANDSHAKE_WHY_SIZE];
    unsigned int refusals;
    size_t bulk, urgent;       /* messages received */
    size_t bulk_before_urgent; /* bulk ones when the first urgent one came */
    struct keel_message *last;
};

struct world {
    uv_loop_t loop;
    uv_timer_t bound;
    bool late;
    struct node nodes[NODES + 1]; /* by id, from 1 */
    char names[NODES + 1][8], addresses[NODES + 1][32];
};

/* ---- the callbacks of a pool ---- */

static void on_message(void *arg, uint64_t from, struct keel_message *msg_take)
{
    struct node *node = arg;

    assert_true(from >= 1 && from <= NODES && from != node->id);
    if (keel_message_lane(msg_take) == LANE_BULK) {
        node->bulk++;
    } else if (node->urgent++ == 0) {
        node->bulk_before_urgent = node->bulk;
    }
    keel_message_free(node->last);
    node->last = msg_take;
}

static void on_connected(void *arg, uint64_t peer, uint64_t incarnation, uint32_t level)
{
    struct node *node = arg;

    assert_int_equal(level, 7);
    assert_int_equal(node->connected[peer], node->disconnected[peer]);
    node->connected[peer]++;
    node->seen_incarnation[peer] = incarnation;
}

static void on_disconnected(void *arg, uint64_t peer)
{
    struct node *node = arg;

    node->disconnected[peer]++;
    assert_int_equal(node->connected[peer], node->disconnected[peer]);
    assert_false(peer_connected(node->pool, peer));
}

static void on_alive(void *arg, uint64_t peer)
{
    struct node *node = arg;

    assert_true(peer_connected(node->pool, peer));
    node->alive[peer]++;
}

static bool on_incarnation(void *arg, uint64_t peer, uint64_t incarnation)
{
    struct node *node = arg;

    return node->expected[peer] == 0 || node->expected[peer] == incarnation;
}

static void on_refused(void *arg, uint64_t peer, const char *why)
{
    struct node *node = arg;

    (void)peer;
    node->refusals++;
    snprintf(node->refused, sizeof node->refused, "%s", why);
}

/* ---- setting up ---- */

static void on_bound(uv_timer_t *timer)
{
    struct world *world = timer->data;

    world->late = true;
}

/* A port that nobody listens on, on an address that only this test uses. */
static void choose_address(char *ret, size_t size)
{
    struct sockaddr_in address = { .sin_family = AF_INET };
    socklen_t len = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM, 0);

    address.sin_addr.s_addr = htonl(0x7f020301); /* 127.2.3.1 */
    assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&address, &len), 0);
    close(fd);
    snprintf(ret, size, "127.2.3.1:%d", ntohs(address.sin_port));
}

static struct world *world_new(void)
{
    struct world *world = keel_calloc(1, sizeof *world);

    assert_int_equal(uv_loop_init(&world->loop), 0);
    uv_timer_init(&world->loop, &world->bound);
    world->bound.data = world;
    for (uint64_t id = 1; id <= NODES; id++) {
        world->nodes[id].world = world;
        world->nodes[id].id = id;
        snprintf(world->names[id], sizeof world->names[id], "n%d", (int)id);
        choose_address(world->addresses[id], sizeof world->addresses[id]);
    }
    return world;
}

static struct peer_options options_of(struct world *world, uint64_t id)
{
    struct peer_options options = { .cluster_id = 77,
                                    .id = id,
                                    .incarnation = 100 + id,
                                    .name = world->names[id],
                                    .listen = world->addresses[id],
                                    .level = 7,
                                    .member_count = NODES };

    for (uint64_t i = 1; i <= NODES; i++)
        options.members[i - 1] = (struct peer_member){ .id = i,
                                                       .name = world->names[i],
                                                       .address = world->addresses[i] };
    return options;
}

static void start_with(struct world *world, const struct peer_options *options)
{
    struct node *node = &world->nodes[options->id];
    struct peer_events events = { .arg = node,
                                  .message = on_message,
                                  .connected = on_connected,
                                  .disconnected = on_disconnected,
                                  .alive = on_alive,
                                  .incarnation_ok = on_incarnation,
                                  .refused = on_refused };
    char why[256] = "";
    int err = peer_pool_new(&world->loop, options, &events, &node->pool, why, sizeof why);

    if (err != 0)
        fail_msg("%s", why);
}

static void start(struct world *world, uint64_t id)
{
    struct peer_options options = options_of(world, id);

    start_with(world, &options);
}

#define WAIT_FOR(world, cond)                                   \
    do {                                                        \
        uv_timer_start(&(world)->bound, on_bound, BOUND_MS, 0); \
        while (!(cond) && !(world)->late)                       \
            uv_run(&(world)->loop, UV_RUN_ONCE);                \
        uv_timer_stop(&(world)->bound);                         \
        if ((world)->late)                                      \
            fail_msg("waited in vain for: %s", #cond);          \
    } while (0)

static void on_pool_closed(void *arg)
{
    ((struct node *)arg)->closed = true;
}

static void stop(struct world *world, uint64_t id)
{
    struct node *node = &world->nodes[id];

    peer_pool_close(node->pool, on_pool_closed, node);
    WAIT_FOR(world, node->closed);
    node->closed = false;
    node->pool = NULL;
}

static void world_free(struct world *world)
{
    for (uint64_t id = 1; id <= NODES; id++) {
        if (world->nodes[id].pool != NULL)
            stop(world, id);
        keel_message_free(world->nodes[id].last);
    }
    uv_close((uv_handle_t *)&world->bound, NULL);
    uv_run(&world->loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&world->loop), 0);
    free(world);
}

static bool together(struct world *world, uint64_t a, uint64_t b)
{
    return peer_connected(world->nodes[a].pool, b) && peer_connected(world->nodes[b].pool, a);
}

static struct keel_message *heartbeat(uint64_t from, uint64_t to)
{
    return keel_message_raft(raft_message_new(RAFT_HEARTBEAT, from, to, 5));
}

static struct keel_message *forward(size_t len, uint64_t number)
{
    struct keel_message *msg = keel_message_new(MESSAGE_FORWARD);

    msg->number = number;
    msg->data = keel_buf_new(len);
    memset(msg->data->data, (int)number, len);
    return msg;
}

/* ---- a bare socket that plays a peer ---- */

struct fake {
    int fd;
    struct frame_reader *reader;
    enum keel_message_type last; /* received; 0: nothing yet */
    size_t count;
};

static void nonblocking(int fd)
{
    assert_int_equal(fcntl(fd, F_SETFL, O_NONBLOCK), 0);
}

static struct sockaddr_in socket_address(const char *address)
{
    struct sockaddr_in in = { .sin_family = AF_INET };
    char host[64], port[8];

    assert_int_equal(peer_address_split(address, host, sizeof host, port, sizeof port), 0);
    assert_int_equal(inet_pton(AF_INET, host, &in.sin_addr), 1);
    in.sin_port = htons((uint16_t)atoi(port));
    return in;
}

static struct fake fake_dial(const char *address)
{
    struct sockaddr_in to = socket_address(address);
    struct fake fake = { .fd = socket(AF_INET, SOCK_STREAM, 0), .reader = frame_reader_new() };

    assert_int_equal(connect(fake.fd, (struct sockaddr *)&to, sizeof to), 0);
    nonblocking(fake.fd);
    return fake;
}

static int fake_listen(const char *address)
{
    struct sockaddr_in at = socket_address(address);
    int fd = socket(AF_INET, SOCK_STREAM, 0), on = 1;

    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    assert_int_equal(bind(fd, (struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(listen(fd, 8), 0);
    nonblocking(fd);
    return fd;
}

static struct fake fake_accept(struct world *world, int server)
{
    struct fake fake = { .fd = -1, .reader = frame_reader_new() };

    WAIT_FOR(world, (fake.fd = accept4(server, NULL, NULL, SOCK_NONBLOCK)) >= 0);
    return fake;
}

static void fake_free(struct fake *fake)
{
    close(fake->fd);
    frame_reader_free(fake->reader);
}

static void fake_write(struct fake *fake, struct keel_slice bytes)
{
    assert_int_equal(send(fake->fd, bytes.data, bytes.len, MSG_NOSIGNAL), (ssize_t)bytes.len);
}

static void fake_send(struct fake *fake, struct keel_message *msg_take)
{
    struct keel_buf *frames = keel_message_encode(msg_take);

    fake_write(fake, keel_buf_slice(frames));
    keel_buf_free(frames);
    keel_message_free(msg_take);
}

static int fake_take(void *arg, struct keel_message *msg_take)
{
    struct fake *fake = arg;

    fake->last = msg_take->type;
    fake->count++;
    keel_message_free(msg_take);
    return 0;
}

/* Reads what is there. True: the other side has closed. */
static bool fake_read(struct fake *fake)
{
    uint8_t bytes[4096];
    ssize_t n;

    while ((n = recv(fake->fd, bytes, sizeof bytes, 0)) > 0)
        assert_int_equal(
            frame_reader_feed(fake->reader, keel_slice_of(bytes, (size_t)n), fake_take, fake), 0);
    return n == 0 || (errno != EAGAIN && errno != EWOULDBLOCK);
}

static bool fake_got(struct fake *fake, enum keel_message_type type)
{
    fake_read(fake);
    return fake->last == type;
}

static struct keel_message *hello_of(struct world *world, uint64_t id, uint64_t to)
{
    struct peer_options options = options_of(world, id);

    return handshake_hello(&options, to);
}

/* ---- tests ---- */

static void members_find_each_other_and_talk(void **state)
{
    struct world *world = world_new();

    (void)state;
    start(world, 2);
    start(world, 3);
    start(world, 1);
    WAIT_FOR(world, together(world, 1, 2) && together(world, 1, 3) && together(world, 2, 3));
    assert_int_equal(world->nodes[1].seen_incarnation[2], 102);
    assert_int_equal(world->nodes[2].seen_incarnation[1], 101);
    for (uint64_t from = 1; from <= NODES; from++) {
        for (uint64_t to = 1; to <= NODES; to++)
            peer_send(world->nodes[from].pool, to, heartbeat(from, to)); /* to itself: dropped */
    }
    WAIT_FOR(world, world->nodes[1].urgent == 2 && world->nodes[2].urgent == 2 &&
                        world->nodes[3].urgent == 2);
    assert_int_equal(world->nodes[1].last->raft->term, 5);
    assert_true(world->nodes[1].alive[2] > 0 && world->nodes[2].alive[1] > 0);
    world_free(world);
}

static void a_heartbeat_passes_large_messages(void **state)
{
    struct world *world = world_new();
    enum { LARGE = 20 };

    (void)state;
    start(world, 1);
    start(world, 2);
    WAIT_FOR(world, together(world, 1, 2));
    for (uint64_t i = 1; i <= LARGE; i++)
        peer_send(world->nodes[2].pool, 1, forward(KEEL_ENTRY_SIZE_MAX, i));
    peer_pool_flush(world->nodes[2].pool); /* as much as the kernel takes */
    peer_send(world->nodes[2].pool, 1, heartbeat(2, 1));
    WAIT_FOR(world, world->nodes[1].bulk == LARGE);
    assert_int_equal(world->nodes[1].urgent, 1);
    assert_true(world->nodes[1].bulk_before_urgent < LARGE - 1);
    assert_int_equal(world->nodes[1].last->number, LARGE);
    assert_int_equal(world->nodes[1].last->data->data[KEEL_ENTRY_SIZE_MAX - 1], LARGE);
    assert_int_equal(world->nodes[1].disconnected[2], 0);
    world_free(world);
}

static void thousands_of_small_messages_arrive_in_order(void **state)
{
    struct world *world = world_new();
    enum { SMALL = 20000 };

    (void)state;
    start(world, 1);
    start(world, 2);
    WAIT_FOR(world, together(world, 1, 2));
    for (uint64_t i = 1; i <= SMALL; i++)
        peer_send(world->nodes[1].pool, 2, forward(50, i));
    WAIT_FOR(world, world->nodes[2].bulk == SMALL);
    assert_int_equal(world->nodes[2].last->number, SMALL);
    world_free(world);
}

static void another_cluster_is_refused_with_the_reason(void **state)
{
    struct world *world = world_new();
    struct peer_options foreign = options_of(world, 1);

    (void)state;
    foreign.cluster_id = 78;
    start(world, 2);
    start_with(world, &foreign);
    WAIT_FOR(world, world->nodes[1].refusals > 0);
    assert_non_null(strstr(world->nodes[1].refused, "cluster"));
    assert_non_null(strstr(world->nodes[1].refused, "--cluster-token"));
    assert_int_equal(world->nodes[1].connected[2] + world->nodes[2].connected[1], 0);
    world_free(world);
}

static void a_dialling_member_of_another_incarnation_is_refused(void **state)
{
    struct world *world = world_new();

    (void)state;
    world->nodes[2].expected[1] = 55;
    start(world, 2);
    start(world, 1);
    WAIT_FOR(world, world->nodes[1].refusals > 1); /* it goes on trying */
    assert_string_equal(world->nodes[1].refused,
                        "n1 has lost its data: remove it and add it again");
    assert_int_equal(world->nodes[1].connected[2] + world->nodes[2].connected[1], 0);
    world->nodes[2].expected[1] = 101;
    WAIT_FOR(world, together(world, 1, 2));
    world_free(world);
}

static void a_dialled_member_of_another_incarnation_is_refused(void **state)
{
    struct world *world = world_new();

    (void)state;
    world->nodes[1].expected[2] = 55;
    start(world, 2);
    start(world, 1);
    WAIT_FOR(world, world->nodes[2].refusals > 0);
    assert_string_equal(world->nodes[2].refused,
                        "n2 has lost its data: remove it and add it again");
    assert_int_equal(world->nodes[1].connected[2] + world->nodes[2].connected[1], 0);
    world_free(world);
}

static void garbage_closes_its_own_connection_and_no_other(void **state)
{
    struct world *world = world_new();
    uint8_t oversized[16] = { 0xff, 0xff, 0xff, 0x7f, MESSAGE_HELLO };
    struct fake fake, half, early;

    (void)state;
    start(world, 1);
    start(world, 2);
    WAIT_FOR(world, together(world, 1, 2));
    fake = fake_dial(world->addresses[2]);
    fake_write(&fake, keel_slice_str("GET / HTTP/1.1\r\nHost: keel\r\n\r\n"));
    WAIT_FOR(world, fake_read(&fake));
    fake_free(&fake);
    fake = fake_dial(world->addresses[2]);
    fake_write(&fake, keel_slice_of(oversized, sizeof oversized));
    WAIT_FOR(world, fake_read(&fake));
    fake_free(&fake);
    half = fake_dial(world->addresses[2]); /* ends in the middle of a frame's head */
    fake_write(&half, keel_slice_of("\x05\0\0\0\x06", 5));
    fake_free(&half);
    early = fake_dial(world->addresses[2]); /* in order, but before any HELLO */
    fake_send(&early, heartbeat(1, 2));
    WAIT_FOR(world, fake_read(&early));
    fake_free(&early);
    peer_send(world->nodes[1].pool, 2, heartbeat(1, 2));
    WAIT_FOR(world, world->nodes[2].urgent == 1);
    assert_int_equal(world->nodes[2].disconnected[1] + world->nodes[1].disconnected[2], 0);
    world_free(world);
}

static void a_stranger_that_says_nothing_is_closed(void **state)
{
    struct world *world = world_new();
    struct fake fake;

    (void)state;
    start(world, 2);
    fake = fake_dial(world->addresses[2]);
    WAIT_FOR(world, fake_read(&fake));
    assert_int_equal(fake.count, 0);
    fake_free(&fake);
    world_free(world);
}

static void a_member_that_speaks_in_anothers_name_is_closed_and_may_come_back(void **state)
{
    struct world *world = world_new();

    (void)state;
    start(world, 1);
    start(world, 2);
    WAIT_FOR(world, together(world, 1, 2));
    peer_send(world->nodes[1].pool, 2, heartbeat(3, 2));
    WAIT_FOR(world, world->nodes[2].disconnected[1] == 1);
    WAIT_FOR(world, together(world, 1, 2));
    assert_int_equal(world->nodes[2].urgent, 0);
    world_free(world);
}

static void a_member_that_restarts_is_connected_again(void **state)
{
    struct world *world = world_new();

    (void)state;
    start(world, 1);
    start(world, 2);
    WAIT_FOR(world, together(world, 1, 2));
    stop(world, 2); /* the side that is dialled */
    WAIT_FOR(world, world->nodes[1].disconnected[2] == 1);
    world->nodes[2].connected[1] = 0;
    start(world, 2);
    WAIT_FOR(world, together(world, 1, 2));
    stop(world, 1); /* the side that dials */
    WAIT_FOR(world, world->nodes[2].disconnected[1] == 1);
    world->nodes[1].connected[2] = world->nodes[1].disconnected[2] = 0;
    start(world, 1);
    WAIT_FOR(world, together(world, 1, 2));
    world_free(world);
}

/* Node 1 dials; the test answers as node 2 and does the handshake. */
static struct fake fake_member_2(struct world *world, int server)
{
    struct fake fake = fake_accept(world, server);

    WAIT_FOR(world, fake_got(&fake, MESSAGE_HELLO));
    fake_send(&fake, hello_of(world, 2, 1));
    WAIT_FOR(world, fake_got(&fake, MESSAGE_PING));
    WAIT_FOR(world, peer_connected(world->nodes[1].pool, 2));
    return fake;
}

static void a_silent_member_is_dialled_anew(void **state)
{
    struct world *world = world_new();
    int server = fake_listen(world->addresses[2]);
    struct fake silent, again;

    (void)state;
    start(world, 1);
    silent = fake_member_2(world, server);
    WAIT_FOR(world, world->nodes[1].disconnected[2] == 1);
    WAIT_FOR(world, fake_read(&silent));
    assert_true(silent.count >= 4); /* its own HELLO, and pings all the while */
    again = fake_member_2(world, server);
    assert_int_equal(world->nodes[1].connected[2], 2);
    fake_free(&silent);
    fake_free(&again);
    close(server);
    world_free(world);
}

static void a_member_that_does_not_read_is_closed_at_the_limit(void **state)
{
    struct world *world = world_new();
    int server = fake_listen(world->addresses[2]);
    struct fake deaf;
    size_t sent = 0;

    (void)state;
    start(world, 1);
    deaf = fake_member_2(world, server);
    while (peer_connected(world->nodes[1].pool, 2)) {
        peer_send(world->nodes[1].pool, 2, forward(KEEL_ENTRY_SIZE_MAX, 1));
        peer_pool_flush(world->nodes[1].pool);
        sent += KEEL_ENTRY_SIZE_MAX;
        assert_true(sent < 4u * KEEL_PEER_QUEUE_BYTES);
        assert_int_equal(world->nodes[1].disconnected[2], 0); /* never from inside a call */
    }
    assert_true(sent > KEEL_PEER_QUEUE_BYTES);
    WAIT_FOR(world, world->nodes[1].disconnected[2] == 1);
    fake_free(&deaf);
    close(server);
    world_free(world);
}

static struct fake fake_member_1(struct world *world)
{
    struct fake fake = fake_dial(world->addresses[2]);

    fake_send(&fake, hello_of(world, 1, 2));
    WAIT_FOR(world, fake_got(&fake, MESSAGE_HELLO));
    return fake;
}

static void a_newer_connection_replaces_the_older_once_it_is_confirmed(void **state)
{
    struct world *world = world_new();
    struct fake older, newer;

    (void)state;
    start(world, 2);
    older = fake_member_1(world);
    fake_send(&older, keel_message_new(MESSAGE_PING));
    WAIT_FOR(world, peer_connected(world->nodes[2].pool, 1));
    newer = fake_member_1(world);
    assert_int_equal(world->nodes[2].disconnected[1], 0);
    fake_send(&newer, keel_message_new(MESSAGE_PING));
    WAIT_FOR(world, world->nodes[2].connected[1] == 2);
    assert_int_equal(world->nodes[2].disconnected[1], 1);
    WAIT_FOR(world, fake_read(&older));
    fake_send(&newer, heartbeat(1, 2));
    WAIT_FOR(world, world->nodes[2].urgent == 1);
    fake_free(&older);
    fake_free(&newer);
    world_free(world);
}

static void closing_while_dialling_and_greeting_lets_go_of_everything(void **state)
{
    struct world *world = world_new();
    struct peer_options options = options_of(world, 1);
    struct fake stranger;

    (void)state;
    options.members[1].address = "localhost:9"; /* a look-up is under way when it closes */
    start_with(world, &options);
    stranger = fake_dial(world->addresses[1]);
    uv_run(&world->loop, UV_RUN_NOWAIT);
    stop(world, 1);
    fake_free(&stranger);
    world_free(world);
}

static int try_listen(struct world *world, const char *listen, char *ret_why, size_t size)
{
    struct peer_options options = options_of(world, 1);
    struct peer_events events = { .arg = NULL };
    struct peer_pool *pool = NULL;

    options.listen = listen;
    int err = peer_pool_new(&world->loop, &options, &events, &pool, ret_why, size);

    assert_null(pool);
    return err;
}

static void an_address_that_cannot_be_listened_on_is_explained(void **state)
{
    struct world *world = world_new();
    int server = fake_listen(world->addresses[1]);
    char why[256];

    (void)state;
    assert_int_equal(try_listen(world, world->addresses[1], why, sizeof why), KEEL_E_BUSY);
    assert_non_null(strstr(why, "another process has this port"));
    assert_int_equal(try_listen(world, "192.0.2.1:4000", why, sizeof why), KEEL_E_INVALID);
    assert_non_null(strstr(why, "not an address of this host"));
    assert_int_equal(try_listen(world, "nonsense", why, sizeof why), KEEL_E_INVALID);
    assert_non_null(strstr(why, "host:port"));
    close(server);
    world_free(world);
}

static int split(const char *address)
{
    char host[16], port[8];

    return peer_address_split(address, host, sizeof host, port, sizeof port);
}

static void addresses_are_taken_apart(void **state)
{
    char host[64], port[8];

    (void)state;
    assert_int_equal(peer_address_split("[fe80::1]:80", host, sizeof host, port, sizeof port), 0);
    assert_string_equal(host, "fe80::1");
    assert_string_equal(port, "80");
    assert_int_equal(split("n1.lan:65535"), 0);
    assert_int_equal(split(""), KEEL_E_INVALID);
    assert_int_equal(split("n1"), KEEL_E_INVALID);
    assert_int_equal(split("n1:"), KEEL_E_INVALID);
    assert_int_equal(split(":80"), KEEL_E_INVALID);
    assert_int_equal(split("[]:80"), KEEL_E_INVALID);
    assert_int_equal(split("n1:0"), KEEL_E_INVALID);
    assert_int_equal(split("n1:65536"), KEEL_E_INVALID);
    assert_int_equal(split("n1:8o"), KEEL_E_INVALID);
    assert_int_equal(split("fe80::1:80"), KEEL_E_INVALID);
    assert_int_equal(split("a-name-that-is-too-long:80"), KEEL_E_INVALID);
    assert_true(peer_address_is_loopback("127.0.1.3:80"));
    assert_true(peer_address_is_loopback("[::1]:80"));
    assert_false(peer_address_is_loopback("0.0.0.0:80"));
    assert_false(peer_address_is_loopback("192.0.2.1:80"));
    assert_false(peer_address_is_loopback("127.0.0.1"));
}

static enum handshake_verdict check(const struct peer_options *self, const struct hello *hello,
                                    uint64_t dialled, char why[HANDSHAKE_WHY_SIZE])
{
    return handshake_check(self, hello, dialled, why, HANDSHAKE_WHY_SIZE);
}

static void whoever_is_not_who_he_says_is_not_recognized(void **state)
{
    struct world *world = world_new();
    struct peer_options self = options_of(world, 2);
    struct hello right = { .version = 1, .cluster_id = 77, .id = 1, .to = 2, .name = "n1" };
    struct hello hello;
    char why[HANDSHAKE_WHY_SIZE];

    (void)state;
    assert_int_equal(check(&self, &right, 0, why), HANDSHAKE_MEMBER);
    assert_int_equal(check(&self, &right, 1, why), HANDSHAKE_MEMBER);
    assert_int_equal(check(&self, &right, 3, why), HANDSHAKE_REFUSED);
    hello = right;
    hello.version = 2;
    assert_int_equal(check(&self, &hello, 0, why), HANDSHAKE_REFUSED);
    assert_non_null(strstr(why, "same release"));
    hello = right;
    hello.to = 3;
    assert_int_equal(check(&self, &hello, 0, why), HANDSHAKE_REFUSED);
    assert_non_null(strstr(why, "--initial-cluster"));
    hello = right;
    hello.id = 9;
    assert_int_equal(check(&self, &hello, 0, why), HANDSHAKE_REFUSED);
    assert_non_null(strstr(why, "add it first"));
    hello = right;
    hello.id = 2; /* itself */
    hello.config_index = 99;
    assert_int_equal(check(&self, &hello, 0, why), HANDSHAKE_REFUSED);
    hello = right;
    hello.id = 3; /* the name of another */
    assert_int_equal(check(&self, &hello, 0, why), HANDSHAKE_REFUSED);
    hello.name[1] = '3'; /* right: whoever's turn it is to dial */
    assert_int_equal(check(&self, &hello, 0, why), HANDSHAKE_MEMBER);
    world_free(world);
}

static void an_unknown_node_is_a_guest_only_if_it_knows_a_later_configuration(void **state)
{
    struct world *world = world_new();
    struct peer_options self = options_of(world, 2);
    struct hello hello = { .version = 1, .cluster_id = 77, .id = 9, .to = 2, .name = "n9" };
    char why[HANDSHAKE_WHY_SIZE];

    (void)state;
    self.config_index = 5;
    hello.config_index = 6;
    assert_int_equal(check(&self, &hello, 0, why), HANDSHAKE_GUEST);
    hello.config_index = 5;
    assert_int_equal(check(&self, &hello, 0, why), HANDSHAKE_REFUSED);
    assert_string_equal(why, "n9 has been removed from the cluster");
    hello.config_index = 0;
    assert_int_equal(check(&self, &hello, 0, why), HANDSHAKE_REFUSED);
    assert_string_equal(why, "n9 is not a member of this cluster: add it first");
    hello.config_index = 6;
    hello.cluster_id = 78;
    assert_int_equal(check(&self, &hello, 0, why), HANDSHAKE_REFUSED);
    hello.cluster_id = 77;
    hello.id = 0;
    assert_int_equal(check(&self, &hello, 0, why), HANDSHAKE_REFUSED);
    world_free(world);
}

static void a_refusal_cannot_write_control_characters_into_the_log(void **state)
{
    struct keel_message *msg = handshake_refusal("no\n2026 error: forged\033[2J");
    char why[64];

    (void)state;
    assert_int_equal(handshake_read_refusal(keel_buf_slice(msg->data), why, sizeof why), 0);
    assert_string_equal(why, "no?2026 error: forged?[2J");
    assert_int_equal(handshake_read_refusal(keel_slice_of("\x0a\xff", 2), why, sizeof why),
                     KEEL_E_MALFORMED);
    keel_message_free(msg);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(addresses_are_taken_apart),
        cmocka_unit_test(whoever_is_not_who_he_says_is_not_recognized),
        cmocka_unit_test(an_unknown_node_is_a_guest_only_if_it_knows_a_later_configuration),
        cmocka_unit_test(a_refusal_cannot_write_control_characters_into_the_log),
        cmocka_unit_test(members_find_each_other_and_talk),
        cmocka_unit_test(a_heartbeat_passes_large_messages),
        cmocka_unit_test(thousands_of_small_messages_arrive_in_order),
        cmocka_unit_test(another_cluster_is_refused_with_the_reason),
        cmocka_unit_test(a_dialling_member_of_another_incarnation_is_refused),
        cmocka_unit_test(a_dialled_member_of_another_incarnation_is_refused),
        cmocka_unit_test(garbage_closes_its_own_connection_and_no_other),
        cmocka_unit_test(a_stranger_that_says_nothing_is_closed),
        cmocka_unit_test(a_member_that_speaks_in_anothers_name_is_closed_and_may_come_back),
        cmocka_unit_test(a_member_that_restarts_is_connected_again),
        cmocka_unit_test(a_silent_member_is_dialled_anew),
        cmocka_unit_test(a_member_that_does_not_read_is_closed_at_the_limit),
        cmocka_unit_test(a_newer_connection_replaces_the_older_once_it_is_confirmed),
        cmocka_unit_test(closing_while_dialling_and_greeting_lets_go_of_everything),
        cmocka_unit_test(an_address_that_cannot_be_listened_on_is_explained),
    };

    keel_log_setup("test", KEEL_LOG_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
