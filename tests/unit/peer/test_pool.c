/* Connections between members that stay what they are: finding each other, refusals, bad peers,
 * silence, and what passes what on the way. */
#include "world.h"

#include <stdio.h>
#include <unistd.h>

#include "bytes.h"
#include "err.h"
#include "log.h"
#include "peer/frame.h"

static void members_find_each_other_and_talk(void **state)
{
    struct world *world = world_new();

    (void)state;
    world_start(world, 2);
    world_start(world, 3);
    world_start(world, 1);
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
    world_start(world, 1);
    world_start(world, 2);
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
    world_start(world, 1);
    world_start(world, 2);
    WAIT_FOR(world, together(world, 1, 2));
    for (uint64_t i = 1; i <= SMALL; i++)
        peer_send(world->nodes[1].pool, 2, forward(50, i));
    WAIT_FOR(world, world->nodes[2].bulk == SMALL);
    assert_int_equal(world->nodes[2].last->number, SMALL);
    world_free(world);
}

static struct keel_message *piece(size_t len)
{
    struct keel_message *msg = keel_message_new(MESSAGE_SNAPSHOT);

    msg->snapshot.total = len;
    msg->data = keel_buf_new(len);
    memset(msg->data->data, 7, len);
    return msg;
}

/* What goes over the wire, frame by frame. */
struct wire {
    struct keel_text bytes;
    size_t frames, snapshot_frames;        /* whole ones so far */
    size_t snapshot_bytes_before_transfer; /* those of the first turn */
    size_t transfers, bulk_after_transfer, snapshots_before_last_bulk;
    size_t at;
};

static void look_at_frame(struct wire *wire, const uint8_t *head, size_t len)
{
    bool bulk = (head[5] & FRAME_BULK) != 0, snapshot = (head[5] & FRAME_SNAPSHOT) != 0;

    wire->frames++;
    wire->snapshot_frames += snapshot;
    if (head[4] == MESSAGE_TRANSFER)
        wire->transfers++;
    if (snapshot && wire->transfers == 0)
        wire->snapshot_bytes_before_transfer += len - FRAME_HEAD_BYTES;
    if (bulk) {
        wire->bulk_after_transfer += wire->transfers;
        wire->snapshots_before_last_bulk = wire->snapshot_frames;
    }
}

static size_t read_wire(struct wire *wire, int fd)
{
    uint8_t bytes[65536];
    ssize_t n;

    while ((n = recv(fd, bytes, sizeof bytes, 0)) > 0)
        keel_text_append(&wire->bytes, keel_slice_of(bytes, (size_t)n));
    while (wire->bytes.len - wire->at >= FRAME_HEAD_BYTES) {
        const uint8_t *head = (const uint8_t *)wire->bytes.data + wire->at;
        size_t len = FRAME_HEAD_BYTES + get_le32(head);

        if (wire->bytes.len - wire->at < len)
            break;
        look_at_frame(wire, head, len);
        wire->at += len;
    }
    return wire->frames;
}

static void a_snapshot_waits_for_everything_else_after_each_batch(void **state)
{
    struct world *world = world_new();
    int server = fake_listen(world->addresses[2]);
    enum { PIECES = 40, BULK = 4, SIZE = 1 << 20 };
    struct wire wire = { 0 };
    struct fake fake;

    (void)state;
    world_start(world, 1);
    fake = fake_member_2(world, server);
    for (size_t i = 0; i < PIECES; i++)
        peer_send(world->nodes[1].pool, 2, piece(KEEL_SNAPSHOT_CHUNK_BYTES));
    peer_pool_flush(world->nodes[1].pool); /* the socket would take more than a batch */
    for (uint64_t i = 0; i < BULK; i++)
        peer_send(world->nodes[1].pool, 2, forward(SIZE, i));
    peer_send(world->nodes[1].pool, 2, keel_message_new(MESSAGE_TRANSFER));
    peer_pool_flush(world->nodes[1].pool);
    /* A piece is two full frames and a small one, a forward one full frame for each 64 KiB and one
     * for its head. */
    WAIT_FOR(world,
             read_wire(&wire, fake.fd) >= PIECES * 3 + BULK * (SIZE / KEEL_FRAME_BYTES + 1) + 1);
    assert_true(wire.snapshot_bytes_before_transfer > 0);
    assert_true(wire.snapshot_bytes_before_transfer <= 128 << 10);
    assert_int_equal(wire.bulk_after_transfer, BULK * (SIZE / KEEL_FRAME_BYTES + 1));
    assert_true(wire.snapshots_before_last_bulk <= 2);
    assert_int_equal(wire.snapshot_frames, PIECES * 3);
    assert_int_equal(world->nodes[1].disconnected[2], 0);
    keel_text_free(&wire.bytes);
    fake_free(&fake);
    close(server);
    world_free(world);
}

static void each_lane_has_a_limit_of_its_own(void **state)
{
    struct world *world = world_new();
    enum { PIECES = KEEL_PEER_QUEUE_BYTES / KEEL_SNAPSHOT_CHUNK_BYTES };
    int server = fake_listen(world->addresses[2]);
    struct fake deaf;

    (void)state;
    world_start(world, 1);
    deaf = fake_member_2(world, server);
    for (size_t i = 0; i + 1 < PIECES; i++)
        peer_send(world->nodes[1].pool, 2, piece(KEEL_SNAPSHOT_CHUNK_BYTES));
    for (uint64_t i = 0; i < 8; i++)
        peer_send(world->nodes[1].pool, 2, forward(KEEL_ENTRY_SIZE_MAX, i));
    peer_send(world->nodes[1].pool, 2, heartbeat(1, 2));
    assert_true(peer_connected(world->nodes[1].pool, 2));
    peer_send(world->nodes[1].pool, 2, piece(KEEL_SNAPSHOT_CHUNK_BYTES));
    assert_false(peer_connected(world->nodes[1].pool, 2));
    WAIT_FOR(world, world->nodes[1].disconnected[2] == 1);
    fake_free(&deaf);
    close(server);
    world_free(world);
}

static void another_cluster_is_refused_with_the_reason(void **state)
{
    struct world *world = world_new();
    struct peer_options foreign = options_of(world, 1);

    (void)state;
    foreign.cluster_id = 78;
    world_start(world, 2);
    world_start_with(world, &foreign);
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
    world_start(world, 2);
    world_start(world, 1);
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
    world_start(world, 2);
    world_start(world, 1);
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
    world_start(world, 1);
    world_start(world, 2);
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
    world_start(world, 2);
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
    world_start(world, 1);
    world_start(world, 2);
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
    world_start(world, 1);
    world_start(world, 2);
    WAIT_FOR(world, together(world, 1, 2));
    world_stop(world, 2); /* the side that is dialled */
    WAIT_FOR(world, world->nodes[1].disconnected[2] == 1);
    world->nodes[2].connected[1] = 0;
    world_start(world, 2);
    WAIT_FOR(world, together(world, 1, 2));
    world_stop(world, 1); /* the side that dials */
    WAIT_FOR(world, world->nodes[2].disconnected[1] == 1);
    world->nodes[1].connected[2] = world->nodes[1].disconnected[2] = 0;
    world_start(world, 1);
    WAIT_FOR(world, together(world, 1, 2));
    world_free(world);
}

static void a_silent_member_is_dialled_anew(void **state)
{
    struct world *world = world_new();
    int server = fake_listen(world->addresses[2]);
    struct fake silent, again;

    (void)state;
    world_start(world, 1);
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
    world_start(world, 1);
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

static void a_newer_connection_replaces_the_older_once_it_is_confirmed(void **state)
{
    struct world *world = world_new();
    struct fake older, newer;

    (void)state;
    world_start(world, 2);
    older = fake_hello(world, 1, 2);
    fake_send(&older, keel_message_new(MESSAGE_PING));
    WAIT_FOR(world, peer_connected(world->nodes[2].pool, 1));
    newer = fake_hello(world, 1, 2);
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
    world_start_with(world, &options);
    stranger = fake_dial(world->addresses[1]);
    uv_run(&world->loop, UV_RUN_NOWAIT);
    world_stop(world, 1);
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
    assert_int_equal(check(&self, &hello, 0, why), HANDSHAKE_REMOVED);
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
    struct keel_message *msg =
        handshake_refusal(PEER_REFUSAL_LOST, "no\n2026 error: forged\033[2J");
    enum peer_refusal kind;
    char why[64];

    (void)state;
    assert_int_equal(handshake_read_refusal(keel_buf_slice(msg->data), &kind, why, sizeof why), 0);
    assert_string_equal(why, "no?2026 error: forged?[2J");
    assert_int_equal(kind, PEER_REFUSAL_LOST);
    assert_int_equal(handshake_read_refusal(keel_slice_of("\x0a\xff", 2), &kind, why, sizeof why),
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
        cmocka_unit_test(a_snapshot_waits_for_everything_else_after_each_batch),
        cmocka_unit_test(each_lane_has_a_limit_of_its_own),
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
