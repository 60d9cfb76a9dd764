/* A new node asks to be let in: peer_join in a thread of its own, a pool or a bare socket on the
 * other side. */
#include "world.h"

#include <stdio.h>
#include <unistd.h>

#include "err.h"
#include "check.h"
#include "command.pb-c.h"
#include "log.h"

struct joining {
    const char *address, *name;
    unsigned int timeout_ms;
    struct peer_welcome welcome;
    char why[HANDSHAKE_WHY_SIZE];
    int err;
    uv_thread_t thread;
    uv_async_t *done;
    bool over;
};

static void on_done(uv_async_t *async)
{
    ((struct joining *)async->data)->over = true;
}

static void run_join(void *arg)
{
    struct joining *joining = arg;

    joining->err = peer_join(joining->address, joining->name, 4711, joining->timeout_ms,
                             &joining->welcome, joining->why, sizeof joining->why);
    uv_async_send(joining->done);
}

static void free_async(uv_handle_t *handle)
{
    free(handle);
}

static void begin_join(struct world *world, struct joining *joining)
{
    joining->done = keel_calloc(1, sizeof *joining->done);
    uv_async_init(&world->loop, joining->done, on_done);
    joining->done->data = joining;
    assert_int_equal(uv_thread_create(&joining->thread, run_join, joining), 0);
}

static int await_join(struct world *world, struct joining *joining)
{
    WAIT_FOR(world, joining->over);
    uv_thread_join(&joining->thread);
    uv_close((uv_handle_t *)joining->done, free_async);
    return joining->err;
}

static struct joining joining_of(struct world *world, const char *name)
{
    return (struct joining){ .address = world->addresses[2], .name = name, .timeout_ms = BOUND_MS };
}

static void a_new_node_that_has_been_added_is_welcomed(void **state)
{
    struct world *world = world_new();
    struct joining joining = joining_of(world, "n9");

    (void)state;
    world->nodes[2].awaited = "n9";
    world_start(world, 2);
    begin_join(world, &joining);
    assert_int_equal(await_join(world, &joining), 0);
    assert_int_equal(world->nodes[2].join_incarnation, 4711);
    assert_int_equal(joining.welcome.cluster_id, 77);
    assert_int_equal(joining.welcome.id, 9);
    assert_string_equal(joining.welcome.token, "token");
    assert_int_equal(joining.welcome.member_count, 1);
    assert_int_equal(joining.welcome.members[0].id, 2);
    assert_string_equal(joining.welcome.members[0].name, "n2");
    assert_string_equal(joining.welcome.members[0].address, world->addresses[2]);
    peer_welcome_free(&joining.welcome);
    world_free(world);
}

static void a_new_node_that_has_not_been_added_is_told_what_to_do(void **state)
{
    struct world *world = world_new();
    struct joining joining = joining_of(world, "n8");

    (void)state;
    world->nodes[2].awaited = "n9";
    world_start(world, 2);
    begin_join(world, &joining);
    assert_int_equal(await_join(world, &joining), KEEL_E_PERM);
    assert_string_equal(joining.why, "n8 has not been added: keelfs add n8");
    world_free(world);
}

static int join_at(const char *address, unsigned int timeout_ms, char *ret_why, size_t size)
{
    struct peer_welcome welcome;

    return peer_join(address, "n9", 1, timeout_ms, &welcome, ret_why, size);
}

static void nobody_there_is_a_reason_to_try_again(void **state)
{
    struct world *world = world_new();
    int silent = fake_listen(world->addresses[3]);
    char why[HANDSHAKE_WHY_SIZE];

    (void)state;
    assert_int_equal(join_at(world->addresses[2], BOUND_MS, why, sizeof why), KEEL_E_TIMEDOUT);
    assert_non_null(strstr(why, "Connection refused"));
    assert_int_equal(join_at(world->addresses[3], 50, why, sizeof why), KEEL_E_TIMEDOUT);
    assert_non_null(strstr(why, world->addresses[3]));
    assert_int_equal(join_at("nonsense", 50, why, sizeof why), KEEL_E_INVALID);
    assert_non_null(strstr(why, "host:port"));
    close(silent);
    world_free(world);
}

/* Answers the JOIN with these bytes, and closes. */
static int answer_with(struct keel_slice bytes, char *ret_why, size_t size)
{
    struct world *world = world_new();
    struct joining joining = joining_of(world, "n9");
    int server = fake_listen(world->addresses[2]);

    begin_join(world, &joining);
    struct fake fake = fake_accept(world, server);

    WAIT_FOR(world, fake_got(&fake, MESSAGE_JOIN));
    fake_write(&fake, bytes);
    fake_free(&fake);
    int err = await_join(world, &joining);

    snprintf(ret_why, size, "%s", joining.why);
    if (err == 0)
        peer_welcome_free(&joining.welcome);
    close(server);
    world_free(world);
    return err;
}

static int answer_with_message(struct keel_message *msg_take, char *ret_why, size_t size)
{
    struct keel_buf *frames = keel_message_encode(msg_take);
    int err = answer_with(keel_buf_slice(frames), ret_why, size);

    keel_buf_free(frames);
    keel_message_free(msg_take);
    return err;
}

static struct keel_message *welcome_of(const Keel__Welcome *welcome)
{
    struct keel_message *msg = keel_message_new(MESSAGE_WELCOME);

    msg->data = keel_buf_new(keel__welcome__get_packed_size(welcome));
    keel__welcome__pack(welcome, msg->data->data);
    return msg;
}

static void an_answer_that_is_none_is_not_taken_for_a_welcome(void **state)
{
    Keel__MemberState nameless = KEEL__MEMBER_STATE__INIT, *members[KEEL_MEMBERS_MAX + 1];
    Keel__Welcome welcome = KEEL__WELCOME__INIT;
    char why[HANDSHAKE_WHY_SIZE], long_name[MEMBER_NAME_SIZE + 1];

    (void)state;
    assert_int_equal(answer_with(keel_slice_str(""), why, sizeof why), KEEL_E_TIMEDOUT);
    assert_int_equal(answer_with(keel_slice_str("HTTP/1.1 400 Bad Request\r\n"), why, sizeof why),
                     KEEL_E_MALFORMED);
    assert_int_equal(answer_with_message(keel_message_new(MESSAGE_PING), why, sizeof why),
                     KEEL_E_MALFORMED);
    assert_int_equal(
        answer_with_message(handshake_refusal(PEER_REFUSAL_OTHER, "no\n"), why, sizeof why),
        KEEL_E_PERM);
    assert_string_equal(why, "no?");
    welcome.cluster_id = welcome.id = 1;
    welcome.members = members;
    assert_int_equal(answer_with_message(welcome_of(&welcome), why, sizeof why),
                     KEEL_E_MALFORMED); /* without a token */
    welcome.token = (char *)(uintptr_t) "token";
    for (size_t i = 0; i <= KEEL_MEMBERS_MAX; i++)
        members[i] = &nameless;
    welcome.n_members = 1;
    assert_int_equal(answer_with_message(welcome_of(&welcome), why, sizeof why), KEEL_E_MALFORMED);
    nameless.id = 5;
    nameless.address = (char *)(uintptr_t) "n5:1";
    memset(long_name, 'n', sizeof long_name);
    long_name[MEMBER_NAME_SIZE] = '\0';
    nameless.name = long_name;
    assert_int_equal(answer_with_message(welcome_of(&welcome), why, sizeof why), KEEL_E_MALFORMED);
    long_name[MEMBER_NAME_SIZE - 1] = '\0';
    assert_int_equal(answer_with_message(welcome_of(&welcome), why, sizeof why), 0);
    welcome.n_members = KEEL_MEMBERS_MAX + 1;
    assert_int_equal(answer_with_message(welcome_of(&welcome), why, sizeof why), KEEL_E_MALFORMED);
}

static void a_join_of_another_version_is_refused(void **state)
{
    struct world *world = world_new();
    struct keel_message *msg = keel_message_new(MESSAGE_JOIN);
    Keel__Join join = KEEL__JOIN__INIT;

    (void)state;
    join.version = PEER_PROTOCOL_VERSION + 1;
    join.name = (char *)(uintptr_t) "n9";
    msg->data = keel_buf_new(keel__join__get_packed_size(&join));
    keel__join__pack(&join, msg->data->data);
    world->nodes[2].awaited = "n9";
    world_start(world, 2);
    struct fake fake = fake_dial(world->addresses[2]);

    fake_send(&fake, msg);
    WAIT_FOR(world, fake_got(&fake, MESSAGE_REFUSAL));
    assert_non_null(strstr(fake.why, "install the same release"));
    fake_free(&fake);
    world_free(world);
}

static void a_join_is_the_first_message_or_none(void **state)
{
    struct world *world = world_new();

    (void)state;
    world->nodes[2].awaited = "n9";
    world_start(world, 2);
    struct fake twice = fake_dial(world->addresses[2]), late = fake_hello(world, 1, 2);

    fake_send(&twice, handshake_join("n9", 1));
    fake_send(&twice, handshake_join("n9", 1));
    WAIT_FOR(world, fake_read(&twice));
    assert_int_equal(twice.count, 1);
    assert_int_equal(twice.last, MESSAGE_WELCOME);
    fake_send(&late, handshake_join("n9", 1));
    WAIT_FOR(world, fake_read(&late));
    assert_int_equal(late.count, 1);
    fake_free(&late);
    fake_free(&twice);
    world_free(world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_new_node_that_has_been_added_is_welcomed),
        cmocka_unit_test(a_new_node_that_has_not_been_added_is_told_what_to_do),
        cmocka_unit_test(nobody_there_is_a_reason_to_try_again),
        cmocka_unit_test(an_answer_that_is_none_is_not_taken_for_a_welcome),
        cmocka_unit_test(a_join_of_another_version_is_refused),
        cmocka_unit_test(a_join_is_the_first_message_or_none),
    };

    keel_log_setup("test", KEEL_LOG_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
