/* Flow control and memory: what a peer that is slow, silent or dead may cost. */
#include "unit.h"

#include "check.h"
#include "err.h"
#include "one_node.h"
#include "raft/tail.h"

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

static void proposals_go_on_once_a_majority_has_what_waits(void **state)
{
    struct raft *r = leader_new();
    struct keel_buf *data = keel_buf_new(1 << 20);
    uint64_t index;

    (void)state;
    memset(data->data, 0, data->len);
    while (raft_propose(r, 3000000, keel_buf_ref(data), &index) == 0)
        continue;
    drain(r, 3000000);
    assert_int_equal(raft_propose(r, 3000000, keel_buf_ref(data), &index), KEEL_E_AGAIN);
    acknowledge(r, 3000000, 2, raft_last_index(r) - 1); /* the last one stays uncommitted */
    for (int i = 0; i < 62; i++)
        assert_int_equal(raft_propose(r, 3000000, keel_buf_ref(data), &index), 0);
    assert_int_equal(raft_propose(r, 3000000, keel_buf_ref(data), &index), KEEL_E_AGAIN);
    drain(r, 3000000);
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

static void appends_in_flight_are_bounded_in_bytes(void **state)
{
    struct raft *r = leader_new();
    struct keel_buf *data = keel_buf_new(300 << 10);
    struct output out;
    uint64_t index;

    (void)state;
    memset(data->data, 0, data->len);
    acknowledge(r, 3000000, 2, 1);
    drain(r, 3000000);
    for (int i = 0; i < 100; i++)
        raft_propose(r, 3000000, keel_buf_ref(data), &index);
    out = take(r, 3000000);
    assert_in_range(out.append_bytes[2], KEEL_INFLIGHT_BYTES - (300 << 10), KEEL_INFLIGHT_BYTES);
    assert_int_equal(take(r, 3000000).to[2], 0);
    acknowledge(r, 3000000, 2, 4);
    assert_in_range(take(r, 3000000).append_bytes[2], 3 * (300 << 10), 4 * (300 << 10));
    raft_free(r);
    keel_buf_free(data);
}

/* Node 3 is not connected, and never has been. */
static void a_dead_follower_costs_nothing(void **state)
{
    struct raft *r = leader_new();
    struct keel_buf *data = keel_buf_new(1 << 20);
    struct output out;
    uint64_t index;

    (void)state;
    memset(data->data, 0, data->len);
    raft_on_disconnected(r, 3000000, 3);
    acknowledge(r, 3000000, 2, 1);
    drain(r, 3000000);
    for (int i = 0; i < 500; i++) {
        uint64_t now = 3000000 + (uint64_t)i * 10000;

        assert_int_equal(raft_propose(r, now, keel_buf_ref(data), &index), 0);
        raft_tick(r, now);
        out = take(r, now);
        assert_int_equal(out.to[3] + out.fetches + out.snapshots, 0);
        acknowledge(r, now, 2, index);
        assert_int_equal(raft_commit_index(r), index);
        raft_on_applied(r, index);
        drain(r, now);
        assert_in_range(data->refs, 1, 18); /* the tail: 16 MiB */
    }
    raft_free(r);
    keel_buf_free(data);
}

/* It takes bytes, and answers nothing: one window, and then heartbeats. */
static void a_silent_follower_costs_one_window(void **state)
{
    struct raft *r = leader_new();
    struct keel_buf *data = keel_buf_new(1 << 20);
    size_t bytes = 0, fetches = 0, beats = 0;
    uint64_t index;

    (void)state;
    memset(data->data, 0, data->len);
    acknowledge(r, 3000000, 2, 1);
    acknowledge(r, 3000000, 3, 1);
    drain(r, 3000000);
    for (int i = 0; i < 500; i++) {
        uint64_t now = 3000000 + (uint64_t)i * 10000;
        struct output out;

        assert_int_equal(raft_propose(r, now, keel_buf_ref(data), &index), 0);
        out = take(r, now);
        acknowledge(r, now, 2, index);
        raft_on_applied(r, index);
        raft_tick(r, now);
        bytes += out.append_bytes[3];
        beats += take(r, now).to[3];
        fetches += out.fetches;
        assert_in_range(data->refs, 1, 18);
    }
    assert_in_range(bytes, 1, KEEL_INFLIGHT_BYTES);
    assert_in_range(fetches, 0, 1);
    assert_in_range(beats, 1, 170); /* 5 s / 25 ms, and not one a proposal */
    raft_free(r);
    keel_buf_free(data);
}

static void tail_is_bounded_in_entries_too(void **state)
{
    struct raft_options options;
    struct raft *r;
    struct keel_buf *data = keel_buf_copy(keel_slice_str("x"));
    uint64_t index;

    (void)state;
    raft_options_init(&options);
    options.id = 1;
    options.config.voters[options.config.voter_count++] = 1;
    options.tail_entries = 10;
    r = raft_new(&options, 1000000);
    raft_tick(r, 1000000);
    drain(r, 1000000);
    raft_tick(r, 1200000);
    for (int i = 0; i < 100; i++) {
        assert_int_equal(raft_propose(r, 1200000, keel_buf_ref(data), &index), 0);
        drain(r, 1200000);
        raft_on_applied(r, raft_commit_index(r));
    }
    assert_int_equal(raft_commit_index(r), index);
    assert_int_equal(data->refs, 1 + 10);
    raft_free(r);
    keel_buf_free(data);
}

/* ---- a follower that does not keep up ---- */

/* Node 2 sends entries first … last, a MiB each; node 1 has everything before. */
static size_t append_big(struct raft *r, uint64_t first, uint64_t last, struct keel_buf *data)
{
    struct raft_entry entries[8];
    struct raft_message msg = { .type = RAFT_APPEND, .from = 2, .to = 1, .term = 1 };

    KEEL_ASSERT(last - first < KEEL_ARRAY_LEN(entries));
    msg.u.append.prev_index = first - 1;
    msg.u.append.prev_term = first > 1 ? 1 : 0;
    msg.u.append.commit = first - 1;
    msg.u.append.sent_us = 1;
    msg.u.append.entries = entries;
    for (uint64_t i = first; i <= last; i++)
        entries[msg.u.append.count++] = (struct raft_entry){ 1, i, RAFT_ENTRY_COMMAND, data };
    raft_step(r, 1000000, &msg);
    return drain(r, 1000000);
}

static void appends_are_not_taken_while_too_much_is_unapplied(void **state)
{
    struct raft_message heartbeat = { .type = RAFT_HEARTBEAT, .from = 2, .to = 1, .term = 1 };
    struct keel_buf *data = keel_buf_new(1 << 20);
    struct raft *r = node_new(3);
    uint64_t first = 1;

    (void)state;
    memset(data->data, 0, data->len);
    while (append_big(r, first, first + 3, data) == 1)
        first += 4;
    assert_int_equal(raft_last_index(r), 64);
    assert_int_equal(data->refs, 1 + 64);
    raft_step(r, 1000000, &heartbeat); /* it is alive nevertheless */
    assert_int_equal(drain(r, 1000000), 1);
    assert_int_equal(append_big(r, 65, 66, data), 0);
    raft_on_applied(r, raft_commit_index(r));
    assert_int_equal(append_big(r, 65, 66, data), 1);
    assert_int_equal(raft_last_index(r), 66);
    raft_free(r);
    assert_int_equal(data->refs, 1);
    keel_buf_free(data);
}

/* Two real nodes, and a third that acknowledges everything at once. */
struct pair {
    struct raft *leader, *follower;
    uint64_t now_us;
    struct keel_buf *data; /* of every entry but the first */
    size_t fetches;
};

static void pair_fetch(struct pair *p, const struct raft_fetch *fetch)
{
    struct raft_entry entries[4];
    size_t count = 0;

    for (uint64_t i = fetch->first; i <= raft_last_index(p->leader) && count < 4; i++)
        entries[count++] = (struct raft_entry){ 1, i, i == 1 ? RAFT_ENTRY_NOOP : RAFT_ENTRY_COMMAND,
                                                i == 1 ? NULL : p->data };
    p->fetches++;
    raft_on_fetched(p->leader, p->now_us, fetch->peer, fetch->first, fetch->first > 1 ? 1 : 0,
                    entries, count);
}

/* What one of the two has to say reaches the other. */
static void pair_pump(struct pair *p, struct raft *from)
{
    struct raft *to = from == p->leader ? p->follower : p->leader;
    struct raft_ready ready;

    while (raft_ready(from, p->now_us, &ready)) {
        struct raft_fetch fetch = { 0 };
        struct raft_mark mark = ready.mark;
        bool persist = ready.persist;
        struct raft_message *messages[512];
        size_t count = ready.message_count;

        KEEL_ASSERT(count <= KEEL_ARRAY_LEN(messages) && ready.fetch_count <= 1);
        memcpy(messages, ready.messages, count * sizeof *messages);
        if (ready.fetch_count > 0)
            fetch = ready.fetches[0];
        raft_accept(from);
        if (persist)
            raft_on_persisted(from, p->now_us, mark);
        for (size_t i = 0; i < count; i++) {
            if (messages[i]->to != 3)
                raft_step(to, p->now_us, messages[i]);
            raft_message_free(messages[i]);
        }
        if (fetch.first != 0)
            pair_fetch(p, &fetch);
    }
}

static void pair_step(struct pair *p)
{
    p->now_us += 10000;
    raft_tick(p->leader, p->now_us);
    acknowledge(p->leader, p->now_us, 3, raft_last_index(p->leader));
    pair_pump(p, p->leader);
    pair_pump(p, p->follower);
    raft_on_applied(p->leader, raft_commit_index(p->leader));
}

static void a_follower_that_did_not_apply_catches_up_when_it_does(void **state)
{
    struct raft_options options;
    struct pair p = { .leader = leader_new(), .now_us = 3000000, .data = keel_buf_new(1 << 20) };
    uint64_t index;

    (void)state;
    memset(p.data->data, 0, p.data->len);
    raft_options_init(&options);
    options.id = 2;
    options.config = *raft_config(p.leader);
    p.follower = raft_new(&options, p.now_us);
    raft_on_connected(p.follower, p.now_us, 1);
    for (int i = 0; i < 100; i++) {
        assert_int_equal(raft_propose(p.leader, p.now_us, keel_buf_ref(p.data), &index), 0);
        pair_step(&p);
    }
    for (int i = 0; i < 50; i++)
        pair_step(&p);
    assert_int_equal(raft_commit_index(p.leader), index);
    assert_in_range(raft_last_index(p.follower), 64, 67); /* a batch beyond 64 MiB at most */
    for (int i = 0; i < 300 && raft_commit_index(p.follower) < index; i++) {
        raft_on_applied(p.follower, raft_commit_index(p.follower));
        pair_step(&p);
    }
    assert_int_equal(raft_commit_index(p.follower), index);
    assert_true(p.fetches > 0);
    raft_free(p.leader);
    raft_free(p.follower);
    assert_int_equal(p.data->refs, 1);
    keel_buf_free(p.data);
}

/* ---- snapshots ---- */

/* Node 3 needs what the log has released; it is being sent a snapshot, and nothing else. */
static void a_peer_that_gets_a_snapshot_stalls_nobody(void **state)
{
    struct raft *r = leader_new();
    struct keel_buf *data = keel_buf_new(1 << 20);
    struct raft_peer_status peers[KEEL_MEMBERS_MAX];
    size_t snapshots = 0, appended = 0;
    uint64_t index, now = 3000000;

    (void)state;
    memset(data->data, 0, data->len);
    raft_on_disconnected(r, now, 3);
    acknowledge(r, now, 2, 1);
    for (int i = 0; i < 200; i++) {
        struct output out;

        now += 10000;

        assert_int_equal(raft_propose(r, now, keel_buf_ref(data), &index), 0);
        out = take(r, now);
        acknowledge(r, now, 2, index);
        assert_int_equal(raft_commit_index(r), index);
        raft_on_applied(r, index);
        raft_tick(r, now);
        if (i == 50)
            raft_on_released(r, 40);
        if (i == 60)
            raft_on_connected(r, now, 3);
        snapshots += out.snapshots + take(r, now).snapshots;
        appended += out.append_bytes[3];
        assert_int_equal(out.fetches, 0);
        assert_in_range(data->refs, 1, 18);
    }
    assert_int_equal(snapshots, 1);
    assert_int_equal(appended, 0);
    raft_on_snapshot_sent(r, now, 3, 0); /* could not be sent */
    assert_int_equal(take(r, now + 500000).snapshots, 0);
    assert_int_equal(take(r, now + 600000).snapshots, 1);
    raft_on_snapshot_sent(r, now + 600000, 3, index);
    assert_int_equal(take(r, now + 600000).to[3], 1);
    acknowledge(r, now + 600000, 3, index);
    assert_int_equal(raft_peers(r, peers), 3);
    assert_int_equal(peers[2].state, RAFT_REPLICATE);
    assert_int_equal(peers[2].next, index + 1);
    raft_free(r);
    keel_buf_free(data);
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
        cmocka_unit_test(appends_in_flight_are_bounded_in_number),
        cmocka_unit_test(proposals_go_on_once_a_majority_has_what_waits),
        cmocka_unit_test(appends_in_flight_are_bounded_in_bytes),
        cmocka_unit_test(a_dead_follower_costs_nothing),
        cmocka_unit_test(a_silent_follower_costs_one_window),
        cmocka_unit_test(tail_is_bounded_in_entries_too),
        cmocka_unit_test(appends_are_not_taken_while_too_much_is_unapplied),
        cmocka_unit_test(a_follower_that_did_not_apply_catches_up_when_it_does),
        cmocka_unit_test(a_peer_that_gets_a_snapshot_stalls_nobody),
        cmocka_unit_test(tail_keeps_its_entries_when_they_move_in_the_array),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
