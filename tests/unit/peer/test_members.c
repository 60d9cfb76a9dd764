/* Members that come and go at run time, guests, and two that dial each other at once. */
#include "world.h"

#include <stdio.h>
#include <unistd.h>

#include "err.h"
#include "log.h"

static void start_as(struct world *world, uint64_t id, const char *members, uint64_t config_index)
{
    struct peer_options options = options_with(world, id, members, config_index);

    world_start_with(world, &options);
}

static struct world *two_together(void)
{
    struct world *world = world_new();

    world_start(world, 1);
    world_start(world, 2);
    WAIT_FOR(world, together(world, 1, 2));
    return world;
}

/* 1 knows a later configuration, in which it is a member; 2 does not. */
static struct world *guest_and_host(void)
{
    struct world *world = world_new();

    start_as(world, 2, "23", 5);
    start_as(world, 1, "123", 6);
    WAIT_FOR(world, together(world, 1, 2));
    return world;
}

/* The test plays a node whose HELLO names this configuration. */
static struct keel_message *hello_with(struct world *world, uint64_t id, uint64_t to,
                                       uint64_t config_index)
{
    struct peer_options options = options_with(world, id, "123", config_index);

    return handshake_hello(&options, to);
}

static void members_that_are_added_are_dialled_or_expected(void **state)
{
    struct world *world = world_new();

    (void)state;
    start_as(world, 1, "13", 4);
    start_as(world, 3, "13", 4);
    WAIT_FOR(world, together(world, 1, 3));
    start_as(world, 2, "123", 5);
    set_members(world, 1, "123", 5); /* dials 2 */
    set_members(world, 3, "123", 5); /* is dialled by 2 */
    WAIT_FOR(world, together(world, 1, 2) && together(world, 2, 3));
    peer_send(world->nodes[1].pool, 2, heartbeat(1, 2));
    peer_send(world->nodes[2].pool, 3, heartbeat(2, 3));
    WAIT_FOR(world, world->nodes[2].urgent == 1 && world->nodes[3].urgent == 1);
    assert_int_equal(world->nodes[1].disconnected[3] + world->nodes[3].disconnected[1], 0);
    world_free(world);
}

static void a_member_that_is_removed_gets_what_was_queued_and_is_told_why(void **state)
{
    struct world *world = world_new();
    enum { LARGE = 10 };

    (void)state;
    start_as(world, 1, "123", 4);
    start_as(world, 2, "123", 4);
    start_as(world, 3, "123", 4);
    WAIT_FOR(world, together(world, 1, 2) && together(world, 2, 3));
    for (uint64_t i = 0; i < LARGE; i++)
        peer_send(world->nodes[2].pool, 1, forward(KEEL_ENTRY_SIZE_MAX, i));
    peer_send(world->nodes[2].pool, 1, heartbeat(2, 1));
    set_members(world, 2, "23", 5);
    assert_false(peer_connected(world->nodes[2].pool, 1));
    assert_int_equal(world->nodes[2].disconnected[1], 0); /* not from inside the call */
    peer_send(world->nodes[2].pool, 1, heartbeat(2, 1));  /* dropped */
    WAIT_FOR(world, world->nodes[2].disconnected[1] == 1);
    WAIT_FOR(world, world->nodes[1].refusals > 0);
    assert_int_equal(world->nodes[1].bulk, LARGE);
    assert_int_equal(world->nodes[1].urgent, 1);
    assert_string_equal(world->nodes[1].refused, "n1 has been removed from the cluster");
    assert_int_equal(world->nodes[1].refusal, PEER_REFUSAL_REMOVED);
    assert_int_equal(world->nodes[2].connected[1], 1);
    assert_int_equal(world->nodes[2].disconnected[3], 0);
    world_free(world);
}

static void a_member_that_is_removed_and_does_not_read_is_closed_all_the_same(void **state)
{
    struct world *world = world_new();
    int server = fake_listen(world->addresses[2]);
    struct fake deaf;

    (void)state;
    world_start(world, 1);
    deaf = fake_member_2(world, server);
    for (uint64_t i = 0; i < 20; i++)
        peer_send(world->nodes[1].pool, 2, forward(KEEL_ENTRY_SIZE_MAX, i));
    set_members(world, 1, "13", 1);
    WAIT_FOR(world, world->nodes[1].disconnected[2] == 1);
    fake_free(&deaf);
    close(server);
    world_free(world);
}

static void remove_1(struct node *node)
{
    node->during_message = NULL;
    set_members(node->world, node->id, "23", 1);
}

static void a_member_may_be_removed_while_its_message_is_being_handled(void **state)
{
    struct world *world = two_together();

    (void)state;
    world->nodes[2].during_message = remove_1;
    for (size_t i = 0; i < 100; i++)
        peer_send(world->nodes[1].pool, 2, heartbeat(1, 2));
    WAIT_FOR(world, world->nodes[2].disconnected[1] == 1);
    assert_int_equal(world->nodes[2].urgent, 1);
    world_free(world);
}

static void a_member_that_is_added_again_at_once_is_connected_anew(void **state)
{
    struct world *world = two_together();

    (void)state;
    set_members(world, 1, "13", 1);
    set_members(world, 1, "123", 2);
    /* Its events come in order: on_connected in world.c looks at that. */
    WAIT_FOR(world, together(world, 1, 2) && world->nodes[1].connected[2] == 2);
    assert_int_equal(world->nodes[1].disconnected[2], 1);
    world_free(world);
}

static void members_that_stay_keep_their_connections(void **state)
{
    struct world *world = world_new();

    (void)state;
    world_start(world, 1);
    world_start(world, 2);
    world_start(world, 3);
    WAIT_FOR(world, together(world, 1, 2) && together(world, 1, 3) && together(world, 2, 3));
    for (uint64_t index = 1; index < 50; index++) {
        set_members(world, 1, index % 2 ? "321" : "123", index);
        set_members(world, 2, index % 2 ? "31" : "213", index); /* itself or not */
        uv_run(&world->loop, UV_RUN_NOWAIT);
    }
    assert_true(together(world, 1, 2) && together(world, 1, 3) && together(world, 2, 3));
    assert_int_equal(world->nodes[1].disconnected[2] + world->nodes[1].disconnected[3], 0);
    world_free(world);
}

static void a_changed_address_is_dialled(void **state)
{
    struct world *world = world_new();
    struct peer_options options = options_of(world, 1);

    (void)state;
    options.members[1].address = "127.2.3.1:9";
    world_start_with(world, &options);
    world_start(world, 3);
    WAIT_FOR(world, together(world, 1, 3));
    assert_false(peer_connected(world->nodes[1].pool, 2));
    world_start(world, 2);
    set_members(world, 1, "123", 1);
    WAIT_FOR(world, together(world, 1, 2));
    world_free(world);
}

static void whoever_knows_a_later_configuration_is_let_in_as_a_guest(void **state)
{
    struct world *world = guest_and_host();

    (void)state;
    peer_send(world->nodes[1].pool, 2, heartbeat(1, 2));
    peer_send(world->nodes[2].pool, 1, heartbeat(2, 1));
    WAIT_FOR(world, world->nodes[1].urgent == 1 && world->nodes[2].urgent == 1);
    set_members(world, 2, "23", 5); /* still older than what the guest knows */
    uv_run(&world->loop, UV_RUN_NOWAIT);
    assert_true(together(world, 1, 2));
    set_members(world, 2, "123", 6); /* a member now */
    uv_run(&world->loop, UV_RUN_NOWAIT);
    assert_true(together(world, 1, 2));
    assert_int_equal(world->nodes[2].disconnected[1], 0);
    world_stop(world, 1);
    WAIT_FOR(world, world->nodes[2].disconnected[1] == 1);
    world_free(world);
}

static void a_guest_is_dismissed_by_a_configuration_as_new_without_it(void **state)
{
    struct world *world = guest_and_host();

    (void)state;
    set_members(world, 2, "23", 6);
    WAIT_FOR(world, world->nodes[2].disconnected[1] == 1 && world->nodes[1].refusals > 0);
    assert_string_equal(world->nodes[1].refused, "n1 has been removed from the cluster");
    world_free(world);
}

static void a_guest_may_leave_and_come_again(void **state)
{
    struct world *world = guest_and_host();

    (void)state;
    world_stop(world, 1);
    WAIT_FOR(world, world->nodes[2].disconnected[1] == 1);
    world->nodes[1].connected[2] = world->nodes[1].disconnected[2] = 0;
    start_as(world, 1, "123", 6);
    WAIT_FOR(world, together(world, 1, 2));
    world_free(world);
}

static void a_guest_of_another_incarnation_is_refused(void **state)
{
    struct world *world = world_new();

    (void)state;
    world->nodes[2].expected[1] = 55;
    start_as(world, 2, "23", 5);
    start_as(world, 1, "123", 6);
    WAIT_FOR(world, world->nodes[1].refusals > 0);
    assert_string_equal(world->nodes[1].refused,
                        "n1 has lost its data: remove it and add it again");
    assert_int_equal(world->nodes[1].refusal, PEER_REFUSAL_LOST);
    world_free(world);
}

static struct fake dial_as_guest(struct world *world, uint64_t id)
{
    struct fake fake = fake_dial(world->addresses[2]);

    fake_send(&fake, hello_with(world, id, 2, 6));
    return fake;
}

/* The guests that are in give a sign of life, so that a slow machine does not cost them their
 * place. */
static bool all_ping(struct fake *guests, size_t count)
{
    for (size_t i = 0; i < count; i++)
        fake_send(&guests[i], keel_message_new(MESSAGE_PING));
    return true;
}

/* Tries again after a refusal. */
static bool is_let_in(struct world *world, struct fake *fake, uint64_t id)
{
    if (fake_got(fake, MESSAGE_REFUSAL)) {
        fake_free(fake);
        *fake = dial_as_guest(world, id);
    }
    return fake_got(fake, MESSAGE_HELLO);
}

static void there_may_be_as_many_guests_as_members(void **state)
{
    struct world *world = world_new();
    struct fake guests[KEEL_MEMBERS_MAX], another, first_again;
    size_t in = 0;

    (void)state;
    start_as(world, 2, "2", 5);
    for (; in < KEEL_MEMBERS_MAX; in++) {
        guests[in] = dial_as_guest(world, 3 + in);
        WAIT_FOR(world, all_ping(guests, in) && fake_got(&guests[in], MESSAGE_HELLO));
    }
    another = dial_as_guest(world, 3 + KEEL_MEMBERS_MAX);
    WAIT_FOR(world, all_ping(guests, in) && fake_got(&another, MESSAGE_REFUSAL));
    assert_non_null(strstr(another.why, "try again later"));
    fake_free(&another);
    first_again = dial_as_guest(world, 3); /* it has its place already */
    WAIT_FOR(world, all_ping(guests, in) && fake_got(&first_again, MESSAGE_HELLO));
    fake_free(&first_again);
    for (uint64_t i = 0; i < KEEL_MEMBERS_MAX; i++)
        fake_free(&guests[i]);
    another = dial_as_guest(world, 3 + KEEL_MEMBERS_MAX);
    WAIT_FOR(world, is_let_in(world, &another, 3 + KEEL_MEMBERS_MAX)); /* there is room again */
    fake_free(&another);
    world_free(world);
}

static void a_member_dials_out_of_turn_whoever_does_not_know_it(void **state)
{
    struct world *world = world_new();

    (void)state;
    start_as(world, 1, "12", 5); /* would dial 3 if it knew it */
    start_as(world, 3, "123", 6);
    WAIT_FOR(world, together(world, 1, 3));
    assert_int_equal(world->nodes[3].refusals, 0);
    world_free(world);
}

/* ---- two that dial each other at once: the connection dialled by the first name is kept ---- */

/* Node 1 has dialled, and not been answered. */
static struct fake accept_from_1(struct world *world, int server)
{
    struct fake fake = fake_accept(world, server);

    WAIT_FOR(world, fake_got(&fake, MESSAGE_HELLO));
    return fake;
}

static void the_first_name_keeps_the_connection_that_it_has_dialled(void **state)
{
    struct world *world = world_new();
    int server = fake_listen(world->addresses[2]);
    struct fake dialled, accepted;

    (void)state;
    world_start(world, 1);
    dialled = fake_member_2(world, server);
    accepted = fake_dial(world->addresses[1]);
    fake_send(&accepted, hello_of(world, 2, 1));
    WAIT_FOR(world, fake_read(&accepted));
    assert_int_equal(accepted.count, 0);
    fake_send(&dialled, heartbeat(2, 1));
    WAIT_FOR(world, world->nodes[1].urgent == 1);
    assert_int_equal(world->nodes[1].disconnected[2], 0);
    fake_free(&dialled);
    fake_free(&accepted);
    close(server);
    world_free(world);
}

static void the_first_name_gives_up_the_other_connection_for_its_own(void **state)
{
    struct world *world = world_new();
    int server = fake_listen(world->addresses[2]);
    struct fake dialled, accepted;

    (void)state;
    world_start(world, 1);
    dialled = accept_from_1(world, server);
    accepted = fake_hello(world, 2, 1);
    fake_send(&accepted, keel_message_new(MESSAGE_PING));
    WAIT_FOR(world, world->nodes[1].connected[2] == 1);
    fake_send(&dialled, hello_of(world, 2, 1));
    WAIT_FOR(world, world->nodes[1].connected[2] == 2);
    WAIT_FOR(world, fake_read(&accepted));
    fake_send(&dialled, heartbeat(2, 1));
    WAIT_FOR(world, world->nodes[1].urgent == 1);
    fake_free(&dialled);
    fake_free(&accepted);
    close(server);
    world_free(world);
}

/* Node 2 has dialled node 1 out of turn, and not been answered. */
static struct fake accept_from_2(struct world *world, int server)
{
    struct fake fake = fake_accept(world, server);

    WAIT_FOR(world, fake_got(&fake, MESSAGE_HELLO));
    return fake;
}

static void the_second_name_gives_up_what_it_has_dialled_out_of_turn(void **state)
{
    struct world *world = world_new();
    int server = fake_listen(world->addresses[1]);
    struct fake dialled, accepted;

    (void)state;
    world_start(world, 2);
    dialled = accept_from_2(world, server);
    accepted = fake_hello(world, 1, 2);
    fake_send(&accepted, keel_message_new(MESSAGE_PING));
    WAIT_FOR(world, world->nodes[2].connected[1] == 1);
    fake_send(&dialled, hello_of(world, 1, 2));
    WAIT_FOR(world, fake_read(&dialled));
    fake_send(&accepted, heartbeat(1, 2));
    WAIT_FOR(world, world->nodes[2].urgent == 1);
    assert_int_equal(world->nodes[2].disconnected[1], 0);
    fake_free(&dialled);
    fake_free(&accepted);
    close(server);
    world_free(world);
}

static void the_second_name_is_connected_by_what_it_has_dialled_until_the_first_dials(void **state)
{
    struct world *world = world_new();
    int server = fake_listen(world->addresses[1]);
    struct fake dialled, accepted;

    (void)state;
    world_start(world, 2);
    dialled = accept_from_2(world, server);
    fake_send(&dialled, hello_of(world, 1, 2));
    WAIT_FOR(world, world->nodes[2].connected[1] == 1);
    accepted = fake_hello(world, 1, 2);
    assert_int_equal(world->nodes[2].disconnected[1], 0);
    fake_send(&accepted, keel_message_new(MESSAGE_PING));
    WAIT_FOR(world, world->nodes[2].connected[1] == 2);
    WAIT_FOR(world, fake_read(&dialled));
    fake_free(&dialled);
    fake_free(&accepted);
    close(server);
    world_free(world);
}

static void members_that_are_removed_and_added_over_and_over_end_up_connected(void **state)
{
    struct world *world = world_new();

    (void)state;
    world_start(world, 1);
    world_start(world, 2);
    for (uint64_t index = 1; index < 60; index++) {
        set_members(world, 1 + index % 2, index % 3 ? "12" : "3", index);
        for (uint64_t turns = 0; turns < index % 7; turns++)
            uv_run(&world->loop, UV_RUN_NOWAIT);
    }
    set_members(world, 1, "12", 100);
    set_members(world, 2, "12", 100);
    WAIT_FOR(world, together(world, 1, 2));
    peer_send(world->nodes[1].pool, 2, heartbeat(1, 2));
    peer_send(world->nodes[2].pool, 1, heartbeat(2, 1));
    WAIT_FOR(world, world->nodes[1].urgent == 1 && world->nodes[2].urgent == 1);
    world_free(world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(members_that_are_added_are_dialled_or_expected),
        cmocka_unit_test(a_member_that_is_removed_gets_what_was_queued_and_is_told_why),
        cmocka_unit_test(a_member_that_is_removed_and_does_not_read_is_closed_all_the_same),
        cmocka_unit_test(a_member_may_be_removed_while_its_message_is_being_handled),
        cmocka_unit_test(a_member_that_is_added_again_at_once_is_connected_anew),
        cmocka_unit_test(members_that_stay_keep_their_connections),
        cmocka_unit_test(a_changed_address_is_dialled),
        cmocka_unit_test(whoever_knows_a_later_configuration_is_let_in_as_a_guest),
        cmocka_unit_test(a_guest_is_dismissed_by_a_configuration_as_new_without_it),
        cmocka_unit_test(a_guest_may_leave_and_come_again),
        cmocka_unit_test(a_guest_of_another_incarnation_is_refused),
        cmocka_unit_test(there_may_be_as_many_guests_as_members),
        cmocka_unit_test(a_member_dials_out_of_turn_whoever_does_not_know_it),
        cmocka_unit_test(the_first_name_keeps_the_connection_that_it_has_dialled),
        cmocka_unit_test(the_first_name_gives_up_the_other_connection_for_its_own),
        cmocka_unit_test(the_second_name_gives_up_what_it_has_dialled_out_of_turn),
        cmocka_unit_test(the_second_name_is_connected_by_what_it_has_dialled_until_the_first_dials),
        cmocka_unit_test(members_that_are_removed_and_added_over_and_over_end_up_connected),
    };

    keel_log_setup("test", KEEL_LOG_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
