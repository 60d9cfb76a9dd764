/* What scripts cannot show: what is handed out, and messages that no correct peer would send.
 * Limits are in test_limits.c. */
#include "unit.h"

#include "check.h"
#include "err.h"
#include "one_node.h"
#include "raft/config.h"

static void ready_hands_out_entries_without_copying_them(void **state)
{
    struct raft *r = single_leader_new();
    struct keel_buf *data = keel_buf_copy(keel_slice_str("x"));
    struct raft_ready ready;
    uint64_t index;

    (void)state;
    assert_int_equal(raft_propose(r, 1200000, data, &index), 0);
    assert_true(raft_ready(r, 1200000, &ready));
    assert_int_equal(ready.entry_count, 1);
    assert_ptr_equal(ready.entries, raft_entry(r, index));
    assert_int_equal(data->refs, 1);
    raft_accept(r);
    assert_false(raft_ready(r, 1200000, &ready));
    raft_free(r);
}

static void proposals_between_two_readies_travel_in_one_append(void **state)
{
    struct raft_message ack = { .type = RAFT_APPEND_REPLY, .from = 2, .to = 1, .term = 1 };
    struct raft *r = leader_new();
    struct raft_ready ready;
    uint64_t index;

    (void)state;
    ack.u.append_reply.index = 1;
    raft_step(r, 3000000, &ack);
    ack.from = 3;
    raft_step(r, 3000000, &ack);
    drain(r, 3000000);
    for (int i = 0; i < 100; i++)
        raft_propose(r, 3000000, keel_buf_copy(keel_slice_str("x")), &index);
    assert_true(raft_ready(r, 3000000, &ready));
    assert_int_equal(ready.message_count, 2);
    assert_int_equal(ready.messages[0]->u.append.count, 100);
    for (size_t i = 0; i < ready.message_count; i++)
        raft_message_free(ready.messages[i]);
    raft_accept(r);
    raft_free(r);
}

static struct raft *newcomer_new(void)
{
    struct raft_options options;

    raft_options_init(&options);
    options.id = 1;
    return raft_new(&options, 1000000);
}

/* The leader's messages may all be lost, and its snapshot not. */
static void a_snapshot_of_a_later_term_brings_the_term(void **state)
{
    struct raft_config config = { .voters = { 1, 2, 3 }, .voter_count = 3 };
    struct raft *r = newcomer_new();
    struct raft_ready ready;

    (void)state;
    assert_true(raft_install_begin(r, 1000000, 100, 7));
    raft_on_installed(r, 1000000, 100, 7, &config, 90);
    assert_int_equal(raft_term(r), 7);
    assert_int_equal(raft_config_index(r), 90);
    assert_true(raft_ready(r, 1000000, &ready));
    assert_int_equal(ready.reset_index, 100);
    assert_int_equal(ready.reset_term, 7);
    assert_non_null(ready.hard_state);
    assert_int_equal(ready.hard_state->term, 7);
    raft_accept(r);
    raft_free(r);
}

/* … and the node may crash before its new hard state is durable. */
static void a_store_of_a_later_term_than_the_hard_state_is_taken(void **state)
{
    struct raft_options options;
    struct raft_message vote = { .type = RAFT_VOTE_REQUEST, .from = 2, .to = 1, .term = 6 };
    struct raft *r;

    (void)state;
    raft_options_init(&options);
    options.id = 1;
    options.config = (struct raft_config){ .voters = { 1, 2, 3 }, .voter_count = 3 };
    options.config_index = 90;
    options.base_index = 100;
    options.base_term = 7;
    options.hard_state = (struct raft_hard_state){ .term = 5, .vote = 3 };
    r = raft_new(&options, 1000000);
    assert_int_equal(raft_term(r), 7);
    raft_step(r, 1000000, &vote);
    drain(r, 1000000);
    assert_int_equal(raft_term(r), 7);
    raft_free(r);
}

/* ---- peers ---- */

static uint64_t put_config(struct raft *r, uint64_t index, const struct raft_config *config)
{
    struct keel_buf *data = raft_config_encode(config, keel_slice_of(NULL, 0));
    struct raft_entry entry = { 1, index, RAFT_ENTRY_CONFIG, data };
    struct raft_message msg = { .type = RAFT_APPEND, .from = 2, .to = 1, .term = 1 };

    msg.u.append.prev_index = index - 1;
    msg.u.append.prev_term = index > 1 ? 1 : 0;
    msg.u.append.entries = &entry;
    msg.u.append.count = 1;
    msg.u.append.sent_us = 1;
    raft_step(r, 1000000, &msg);
    keel_buf_free(data);
    drain(r, 1000000);
    return raft_last_index(r);
}

/* Fifteen learners are exchanged for others again and again, nothing is committed, everybody stays
 * connected, and strangers are as well. */
static void members_that_come_and_go_need_bounded_memory(void **state)
{
    struct raft *r = newcomer_new();
    uint64_t next = 100;

    (void)state;
    for (uint64_t id = 1000; id < 1100; id++)
        raft_on_connected(r, 1000000, id);
    for (uint64_t index = 1; index <= 20; index++) {
        struct raft_config config = { .voters = { 2 }, .voter_count = 1 };

        for (size_t i = 0; i < 15; i++)
            assert_true(raft_config_put(&config, next++, false));
        assert_int_equal(put_config(r, index, &config), index);
        for (size_t i = 0; i < 15; i++)
            raft_on_connected(r, 1000000, config.learners[i]);
        assert_true(raft_is_member(r, next - 1));
        assert_false(raft_is_member(r, next - 16));
    }
    raft_free(r);
}

static void foreign_messages_are_ignored(void **state)
{
    struct raft_message msg = { .type = RAFT_HEARTBEAT_REPLY, .from = 9, .to = 1, .term = 5 };
    struct raft *r = node_new(3);

    (void)state;
    raft_step(r, 1000000, &msg); /* an answer of an unknown node */
    msg.type = RAFT_HEARTBEAT;
    msg.from = 2;
    msg.to = 7;
    raft_step(r, 1000000, &msg); /* to another one */
    msg.from = 1;
    msg.to = 1;
    raft_step(r, 1000000, &msg); /* from itself */
    msg.from = 0;
    raft_step(r, 1000000, &msg); /* from nobody */
    assert_int_equal(raft_term(r), 0);
    msg.from = 2;
    msg.term = UINT64_MAX; /* nothing could follow it */
    raft_step(r, 1000000, &msg);
    assert_int_equal(raft_term(r), 0);
    msg.type = RAFT_MESSAGE_TYPES;
    msg.term = 0;
    raft_step(r, 1000000, &msg);
    drain(r, 1000000);
    assert_int_equal(raft_term(r), 0);
    raft_free(r);
}

/* One append of two entries with the given indexes and terms, from node 2 in term 5. */
static void append_two(struct raft *r, uint64_t prev, uint64_t prev_term, uint64_t first,
                       uint64_t term1, uint64_t term2)
{
    struct raft_entry entries[2] = { { .term = term1, .index = first },
                                     { .term = term2, .index = first + 1 } };
    struct raft_message msg = { .type = RAFT_APPEND, .from = 2, .to = 1, .term = 5 };

    msg.u.append.prev_index = prev;
    msg.u.append.prev_term = prev_term;
    msg.u.append.entries = entries;
    msg.u.append.count = 2;
    msg.u.append.sent_us = 1;
    raft_step(r, 1000000, &msg);
    drain(r, 1000000);
}

static void impossible_appends_change_nothing(void **state)
{
    struct raft_message heartbeat = { .type = RAFT_HEARTBEAT, .from = 2, .to = 1, .term = 5 };
    struct raft *r = node_new(3);

    (void)state;
    append_two(r, 0, 0, 1, 3, 4);
    assert_int_equal(raft_last_index(r), 2);
    append_two(r, 2, 4, 4, 4, 4); /* a gap */
    append_two(r, 2, 4, 3, 3, 4); /* a term that falls */
    append_two(r, 2, 4, 3, 4, 6); /* a term that is yet to come */
    append_two(r, UINT64_MAX, 4, 0, 5, 5);
    assert_int_equal(raft_last_index(r), 2);
    heartbeat.u.heartbeat.commit = 99; /* more than this node has */
    raft_step(r, 1000000, &heartbeat);
    assert_int_equal(raft_commit_index(r), 0);
    heartbeat.u.heartbeat.commit = 2;
    raft_step(r, 1000000, &heartbeat);
    assert_int_equal(raft_commit_index(r), 2);
    append_two(r, 0, 0, 1, 5, 5); /* contradicts what is committed */
    append_two(r, 1, 3, 2, 5, 5);
    assert_int_equal(raft_last_index(r), 2);
    assert_int_equal(raft_entry(r, 2)->term, 4);
    raft_free(r);
}

static void acknowledgements_of_what_was_never_sent_are_ignored(void **state)
{
    struct raft_message ack = { .type = RAFT_APPEND_REPLY, .from = 2, .to = 1, .term = 1 };
    struct raft *r = leader_new();
    struct raft_peer_status peers[KEEL_MEMBERS_MAX];

    (void)state;
    ack.u.append_reply.index = 1000;
    raft_step(r, 3000000, &ack);
    ack.u.append_reply.rejected = true;
    ack.u.append_reply.index = 0;
    ack.u.append_reply.hint_index = UINT64_MAX;
    raft_step(r, 3000000, &ack);
    ack.u.append_reply.index = 1;
    raft_step(r, 3000000, &ack);
    assert_int_equal(raft_peers(r, peers), 3);
    assert_int_equal(peers[1].match, 0);
    assert_int_equal(peers[1].next, 1);
    assert_int_equal(raft_commit_index(r), 0);
    drain(r, 3000000);
    raft_free(r);
}

static void echoed_times_of_the_future_give_no_lease(void **state)
{
    struct raft_message ack = { .type = RAFT_APPEND_REPLY, .from = 2, .to = 1, .term = 1 };
    struct raft *r = leader_new();

    (void)state;
    ack.u.append_reply.index = 1;
    ack.u.append_reply.sent_us = 9000000;
    raft_step(r, 3000000, &ack);
    assert_int_equal(raft_commit_index(r), 1);
    assert_false(raft_lease_valid(r, 3000000));
    ack.u.append_reply.sent_us = 3000000;
    raft_step(r, 3000000, &ack);
    assert_true(raft_lease_valid(r, 3099999));
    assert_false(raft_lease_valid(r, 3100000));
    drain(r, 3000000);
    raft_free(r);
}

static void answers_to_what_was_sent_before_a_close_give_no_lease(void **state)
{
    struct raft_message ack = { .type = RAFT_APPEND_REPLY, .from = 2, .to = 1, .term = 1 };
    struct raft *r = leader_new();

    (void)state;
    ack.u.append_reply.index = 1;
    ack.u.append_reply.sent_us = 3000000;
    raft_step(r, 3000000, &ack);
    assert_true(raft_lease_valid(r, 3000010));
    raft_on_disconnected(r, 3000020, 2);
    assert_false(raft_lease_valid(r, 3000020));
    raft_on_connected(r, 3000030, 2);
    ack.u.append_reply.sent_us = 3000015;
    raft_step(r, 3000040, &ack);
    assert_false(raft_lease_valid(r, 3000040));
    ack.u.append_reply.sent_us = 3000030;
    raft_step(r, 3000050, &ack);
    assert_true(raft_lease_valid(r, 3000050));
    drain(r, 3000050);
    raft_free(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ready_hands_out_entries_without_copying_them),
        cmocka_unit_test(proposals_between_two_readies_travel_in_one_append),
        cmocka_unit_test(a_snapshot_of_a_later_term_brings_the_term),
        cmocka_unit_test(a_store_of_a_later_term_than_the_hard_state_is_taken),
        cmocka_unit_test(members_that_come_and_go_need_bounded_memory),
        cmocka_unit_test(foreign_messages_are_ignored),
        cmocka_unit_test(impossible_appends_change_nothing),
        cmocka_unit_test(acknowledgements_of_what_was_never_sent_are_ignored),
        cmocka_unit_test(echoed_times_of_the_future_give_no_lease),
        cmocka_unit_test(answers_to_what_was_sent_before_a_close_give_no_lease),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
