/* The pools' callbacks, and everything that a test of theirs needs to begin and to end. */
#include "world.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include "check.h"
#include "command.pb-c.h"
#include "err.h"

/* ---- the callbacks of a pool ---- */

static void on_message(void *arg, uint64_t from, struct keel_message *msg_take)
{
    struct node *node = arg;

    assert_true(from >= 1 && from < IDS && from != node->id);
    if (keel_message_lane(msg_take) == LANE_BULK) {
        node->bulk++;
    } else if (node->urgent++ == 0) {
        node->bulk_before_urgent = node->bulk;
    }
    keel_message_free(node->last);
    node->last = msg_take;
    if (node->during_message != NULL)
        node->during_message(node);
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

static void on_refused(void *arg, uint64_t peer, enum peer_refusal kind, const char *why)
{
    struct node *node = arg;

    (void)peer;
    node->refusals++;
    node->refusal = kind;
    snprintf(node->refused, sizeof node->refused, "%s", why);
}

static struct keel_buf *on_join(void *arg, const char *name, uint64_t incarnation, char *ret_why,
                                size_t why_size)
{
    struct node *node = arg;

    if (node->awaited == NULL || strcmp(name, node->awaited) != 0) {
        snprintf(ret_why, why_size, "%s has not been added: keelfs add %s", name, name);
        return NULL;
    }
    node->join_incarnation = incarnation;
    Keel__MemberState member = KEEL__MEMBER_STATE__INIT, *members[] = { &member };
    Keel__Welcome welcome = KEEL__WELCOME__INIT;

    member.id = node->id;
    member.name = node->world->names[node->id];
    member.address = node->world->addresses[node->id];
    welcome.cluster_id = 77;
    welcome.id = 9;
    welcome.token = (char *)(uintptr_t) "token";
    welcome.members = members;
    welcome.n_members = 1;
    struct keel_buf *packed = keel_buf_new(keel__welcome__get_packed_size(&welcome));

    keel__welcome__pack(&welcome, packed->data);
    return packed;
}

/* ---- setting up ---- */

void on_bound(uv_timer_t *timer)
{
    struct world *world = timer->data;

    world->late = true;
}

static void on_pulse(uv_timer_t *timer)
{
    (void)timer;
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

struct world *world_new(void)
{
    struct world *world = keel_calloc(1, sizeof *world);

    assert_int_equal(uv_loop_init(&world->loop), 0);
    uv_timer_init(&world->loop, &world->bound);
    world->bound.data = world;
    uv_timer_init(&world->loop, &world->pulse);
    uv_timer_start(&world->pulse, on_pulse, PULSE_MS, PULSE_MS);
    for (uint64_t id = 1; id < IDS; id++)
        snprintf(world->names[id], sizeof world->names[id], "n%d", (int)id);
    for (uint64_t id = 1; id <= NODES; id++) {
        world->nodes[id].world = world;
        world->nodes[id].id = id;
        choose_address(world->addresses[id], sizeof world->addresses[id]);
    }
    return world;
}

static size_t choose_members(struct world *world, const char *ids,
                             struct peer_member ret[KEEL_MEMBERS_MAX])
{
    size_t count = 0;

    for (; ids[count] != '\0'; count++) {
        uint64_t id = (uint64_t)(ids[count] - '0');

        ret[count] = (struct peer_member){ .id = id,
                                           .name = world->names[id],
                                           .address = world->addresses[id] };
    }
    return count;
}

struct peer_options options_with(struct world *world, uint64_t id, const char *ids,
                                 uint64_t config_index)
{
    struct peer_options options = { .cluster_id = 77,
                                    .id = id,
                                    .incarnation = 100 + id,
                                    .name = world->names[id],
                                    .listen = world->addresses[id],
                                    .level = 7,
                                    .config_index = config_index };

    options.member_count = choose_members(world, ids, options.members);
    return options;
}

struct peer_options options_of(struct world *world, uint64_t id)
{
    return options_with(world, id, "123", 0);
}

void set_members(struct world *world, uint64_t id, const char *ids, uint64_t config_index)
{
    struct peer_member members[KEEL_MEMBERS_MAX];
    size_t count = choose_members(world, ids, members);

    peer_pool_set_members(world->nodes[id].pool, members, count, config_index);
}

void world_start_with(struct world *world, const struct peer_options *options)
{
    struct node *node = &world->nodes[options->id];
    struct peer_events events = { .arg = node,
                                  .message = on_message,
                                  .connected = on_connected,
                                  .disconnected = on_disconnected,
                                  .alive = on_alive,
                                  .incarnation_ok = on_incarnation,
                                  .refused = on_refused,
                                  .join = on_join };
    char why[256] = "";
    int err = peer_pool_new(&world->loop, options, &events, &node->pool, why, sizeof why);

    if (err != 0)
        fail_msg("%s", why);
}

void world_start(struct world *world, uint64_t id)
{
    struct peer_options options = options_of(world, id);

    world_start_with(world, &options);
}

static void on_pool_closed(void *arg)
{
    ((struct node *)arg)->closed = true;
}

void world_stop(struct world *world, uint64_t id)
{
    struct node *node = &world->nodes[id];

    peer_pool_close(node->pool, on_pool_closed, node);
    WAIT_FOR(world, node->closed);
    node->closed = false;
    node->pool = NULL;
}

void world_free(struct world *world)
{
    for (uint64_t id = 1; id <= NODES; id++) {
        if (world->nodes[id].pool != NULL)
            world_stop(world, id);
        keel_message_free(world->nodes[id].last);
    }
    uv_close((uv_handle_t *)&world->bound, NULL);
    uv_close((uv_handle_t *)&world->pulse, NULL);
    uv_run(&world->loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&world->loop), 0);
    free(world);
}

bool together(struct world *world, uint64_t a, uint64_t b)
{
    return peer_connected(world->nodes[a].pool, b) && peer_connected(world->nodes[b].pool, a);
}

struct keel_message *heartbeat(uint64_t from, uint64_t to)
{
    return keel_message_raft(raft_message_new(RAFT_HEARTBEAT, from, to, 5));
}

struct keel_message *forward(size_t len, uint64_t number)
{
    struct keel_message *msg = keel_message_new(MESSAGE_FORWARD);

    msg->number = number;
    msg->data = keel_buf_new(len);
    memset(msg->data->data, (int)number, len);
    return msg;
}

/* ---- a bare socket that plays a peer ---- */

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

struct fake fake_dial(const char *address)
{
    struct sockaddr_in to = socket_address(address);
    struct fake fake = { .fd = socket(AF_INET, SOCK_STREAM, 0), .reader = frame_reader_new() };

    assert_int_equal(connect(fake.fd, (struct sockaddr *)&to, sizeof to), 0);
    nonblocking(fake.fd);
    return fake;
}

int fake_listen(const char *address)
{
    struct sockaddr_in at = socket_address(address);
    int fd = socket(AF_INET, SOCK_STREAM, 0), on = 1;

    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    assert_int_equal(bind(fd, (struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(listen(fd, 8), 0);
    nonblocking(fd);
    return fd;
}

struct fake fake_accept(struct world *world, int server)
{
    struct fake fake = { .fd = -1, .reader = frame_reader_new() };

    WAIT_FOR(world, (fake.fd = accept4(server, NULL, NULL, SOCK_NONBLOCK)) >= 0);
    return fake;
}

void fake_free(struct fake *fake)
{
    close(fake->fd);
    frame_reader_free(fake->reader);
}

void fake_write(struct fake *fake, struct keel_slice bytes)
{
    assert_int_equal(send(fake->fd, bytes.data, bytes.len, MSG_NOSIGNAL), (ssize_t)bytes.len);
}

void fake_send(struct fake *fake, struct keel_message *msg_take)
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
    if (msg_take->type == MESSAGE_REFUSAL)
        assert_int_equal(handshake_read_refusal(keel_buf_slice(msg_take->data), &fake->refusal,
                                                fake->why, sizeof fake->why),
                         0);
    keel_message_free(msg_take);
    return 0;
}

bool fake_read(struct fake *fake)
{
    uint8_t bytes[4096];
    ssize_t n;

    while ((n = recv(fake->fd, bytes, sizeof bytes, 0)) > 0)
        assert_int_equal(
            frame_reader_feed(fake->reader, keel_slice_of(bytes, (size_t)n), fake_take, fake), 0);
    return n == 0 || (errno != EAGAIN && errno != EWOULDBLOCK);
}

bool fake_got(struct fake *fake, enum keel_message_type type)
{
    fake_read(fake);
    return fake->last == type;
}

struct keel_message *hello_of(struct world *world, uint64_t id, uint64_t to)
{
    struct peer_options options = options_of(world, id);

    return handshake_hello(&options, to);
}

struct fake fake_hello(struct world *world, uint64_t id, uint64_t to)
{
    struct fake fake = fake_dial(world->addresses[to]);

    fake_send(&fake, hello_of(world, id, to));
    WAIT_FOR(world, fake_got(&fake, MESSAGE_HELLO));
    return fake;
}

struct fake fake_member_2(struct world *world, int server)
{
    struct fake fake = fake_accept(world, server);

    WAIT_FOR(world, fake_got(&fake, MESSAGE_HELLO));
    fake_send(&fake, hello_of(world, 2, 1));
    WAIT_FOR(world, fake_got(&fake, MESSAGE_PING));
    WAIT_FOR(world, peer_connected(world->nodes[1].pool, 2));
    return fake;
}
