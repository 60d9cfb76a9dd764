/* What scripts cannot show: limits, memory, and messages that no correct peer would send. */
#include "unit.h"

#include "check.h"
#include "err.h"
#include "raft/raft.h"
#include "raft/tail.h"

static struct raft *node_new(size_t voters)
{
    struct raft_options options;

    raft_options_init(&options);
    options.id = 1;
    for (size_t i = 0; i < voters; i++)
        options.config.voters[i] = i + 1;
    options.config.voter_count = voters;
    return raft_new(&options, 1000000);
}

/* Takes everything that is ready; what there is to persist is durable at once. Returns the number
 * of messages. */
static size_t drain(struct raft *r, uint64_t now_us)
{
    struct raft_ready ready;
    size_t messages = 0;

    while (raft_ready(r, now_us, &ready)) {
        struct raft_mark mark = ready.mark;
        bool persist = ready.persist;

        for (size_t i = 0; i < ready.message_count; i++)
            raft_message_free(ready.messages[i]);
        messages += ready.message_count;
        raft_accept(r);
        if (persist)
            raft_on_persisted(r, now_us, mark);
    }
    return messages;
}

static struct raft *single_leader_new(void)
{
    struct raft *r = node_new(1);

    raft_tick(r, 1000000);
    drain(r, 1000000);
    assert_int_equal(raft_role(r), RAFT_LEADER);
    raft_tick(r, 1200000); /* a lease has passed since its start */
    assert_int_equal(raft_commit_index(r), 1);
    return r;
}

/* Node 1 of three leads in term 1; node 2 has voted for it. */
static struct raft *leader_new(void)
{
    struct raft_message vote = { .type = RAFT_VOTE_REPLY, .from = 2, .to = 1, .term = 1 };
    struct raft *r = node_new(3);

    raft_on_connected(r, 1000000, 2);
    raft_on_connected(r, 1000000, 3);
    raft_tick(r, raft_deadline(r));
    vote.u.vote_reply.granted = true;
    vote.u.vote_reply.pre = true;
    vote.u.vote_reply.ack_age_us = 1000000; /* long ago: nothing to wait out */
    raft_step(r, 3000000, &vote);
    drain(r, 3000000);
    vote.u.vote_reply.pre = false;
    raft_step(r, 3000000, &vote);
    assert_int_equal(raft_role(r), RAFT_LEADER);
    drain(r, 3000000);
    return r;
}

static void proposals_wait_when_too_much_is_uncommitted(void **state)
{
    struct raft *r = leader_new();
    struct keel_buf *data = keel_buf_new(1 << 20);
    uint64_t index;
    int err, taken = 0;

    (void)state;
    memset(data->data, 0, data->len);
    while ((err = raft_propose(r, 3000000, keel_buf_ref(data), &index)) == 0)
        taken++;
    assert_int_equal(err, KEEL_E_AGAIN);
    assert_int_equal(taken, 63); /* each is a little more than 1 MiB */
    assert_int_equal(data->refs, 64);
    raft_free(r);
    assert_int_equal(data->refs, 1);
    keel_buf_free(data);
}

static void applied_and_durable_entries_leave_memory_beyond_the_tail(void **state)
{
    struct raft *r = single_leader_new();
    struct keel_buf *data = keel_buf_new(1 << 20);
    uint64_t index;

    (void)state;
    memset(data->data, 0, data->len);
    for (int i = 0; i < 40; i++)
        assert_int_equal(raft_propose(r, 1200000, keel_buf_ref(data), &index), 0);
    drain(r, 1200000);
    assert_int_equal(raft_commit_index(r), 41);
    assert_int_equal(data->refs, 41);
    raft_on_applied(r, 20);
    assert_int_equal(data->refs,
                     1 + 40 - 4); /* 15 of the 19 are below 16 MiB; none above 20 has left */
    raft_on_applied(r, 41);
    assert_int_equal(data->refs, 1 + 15);
    assert_int_equal(raft_entry(r, 41)->data == data, true);
    raft_free(r);
    keel_buf_free(data);
}

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

static void appends_in_flight_are_bounded_in_number(void **state)
{
    struct raft_message ack = { .type = RAFT_APPEND_REPLY, .from = 2, .to = 1, .term = 1 };
    struct raft *r = leader_new();
    uint64_t index;
    size_t sent = 0;

    (void)state;
    ack.u.append_reply.index = 1;
    raft_step(r, 3000000, &ack);
    drain(r, 3000000);
    for (int i = 0; i < 2 * KEEL_INFLIGHT_MESSAGES; i++) {
        raft_propose(r, 3000000, keel_buf_copy(keel_slice_str("x")), &index);
        sent += drain(r, 3000000);
    }
    assert_int_equal(sent, KEEL_INFLIGHT_MESSAGES);
    ack.u.append_reply.index = 2;
    raft_step(r, 3000000, &ack);
    assert_int_equal(drain(r, 3000000), 1);
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

static void tail_keeps_its_entries_when_they_move_in_the_array(void **state)
{
    struct keel_buf *data = keel_buf_new(1 << 20);
    struct raft_tail tail;

    (void)state;
    memset(data->data, 0, data->len);
    raft_tail_init(&tail, 0, 0, KEEL_TAIL_BYTES, KEEL_TAIL_ENTRIES);
    for (uint64_t i = 1; i <= 1000; i++) {
        raft_tail_append(&tail,
                         (struct raft_entry){ i, i, RAFT_ENTRY_COMMAND, keel_buf_ref(data) });
        raft_tail_settle(&tail, i);
        assert_int_equal(raft_tail_last(&tail), i);
        assert_int_equal(raft_tail_at(&tail, i)->term, i);
        assert_int_equal(raft_tail_at(&tail, tail.base_index + 1)->term, tail.base_index + 1);
    }
    assert_int_equal(tail.count, 15);
    assert_int_equal(tail.capacity, 64);
    assert_int_equal(raft_tail_agree(&tail, 1000, 990, tail.base_index), 990);
    assert_int_equal(raft_tail_agree(&tail, 1000, 1, tail.base_index), tail.base_index);
    raft_tail_free(&tail);
    assert_int_equal(data->refs, 1);
    keel_buf_free(data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(proposals_wait_when_too_much_is_uncommitted),
        cmocka_unit_test(applied_and_durable_entries_leave_memory_beyond_the_tail),
        cmocka_unit_test(ready_hands_out_entries_without_copying_them),
        cmocka_unit_test(proposals_between_two_readies_travel_in_one_append),
        cmocka_unit_test(appends_in_flight_are_bounded_in_number),
        cmocka_unit_test(foreign_messages_are_ignored),
        cmocka_unit_test(impossible_appends_change_nothing),
        cmocka_unit_test(acknowledgements_of_what_was_never_sent_are_ignored),
        cmocka_unit_test(echoed_times_of_the_future_give_no_lease),
        cmocka_unit_test(answers_to_what_was_sent_before_a_close_give_no_lease),
        cmocka_unit_test(tail_keeps_its_entries_when_they_move_in_the_array),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
