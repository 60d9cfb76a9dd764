/* One node among peers that are played by the test. */
#ifndef ONE_NODE_H
#define ONE_NODE_H

#include "unit.h"

#include <string.h>

#include "check.h"
#include "raft/raft.h"

static inline struct raft *node_new(size_t voters)
{
    struct raft_options options;

    raft_options_init(&options);
    options.id = 1;
    for (size_t i = 0; i < voters; i++)
        options.config.voters[i] = i + 1;
    options.config.voter_count = voters;
    return raft_new(&options, 1000000);
}

/* What has been handed out. */
struct output {
    size_t messages, to[4]; /* of all, and by receiver */
    size_t append_bytes[4];
    size_t fetches, snapshots;
    uint64_t last_fetch;
};

static inline void count_message(struct output *out, const struct raft_message *msg)
{
    out->messages++;
    if (msg->to >= KEEL_ARRAY_LEN(out->to))
        return;
    out->to[msg->to]++;
    for (size_t i = 0; msg->type == RAFT_APPEND && i < msg->u.append.count; i++)
        out->append_bytes[msg->to] += raft_entry_bytes(&msg->u.append.entries[i]);
}

/* Takes everything that is ready; what there is to persist is durable at once. */
static inline struct output take(struct raft *r, uint64_t now_us)
{
    struct raft_ready ready;
    struct output out = { 0 };

    while (raft_ready(r, now_us, &ready)) {
        struct raft_mark mark = ready.mark;
        bool persist = ready.persist;

        for (size_t i = 0; i < ready.message_count; i++) {
            count_message(&out, ready.messages[i]);
            raft_message_free(ready.messages[i]);
        }
        out.fetches += ready.fetch_count;
        out.snapshots += ready.snapshot_count;
        if (ready.fetch_count > 0)
            out.last_fetch = ready.fetches[0].first;
        raft_accept(r);
        if (persist)
            raft_on_persisted(r, now_us, mark);
    }
    return out;
}

/* The same; returns the number of messages. */
static inline size_t drain(struct raft *r, uint64_t now_us)
{
    return take(r, now_us).messages;
}

static inline struct raft *single_leader_new(void)
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
static inline struct raft *leader_new(void)
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

/* A follower acknowledges everything up to an index. */
static inline void acknowledge(struct raft *r, uint64_t now_us, uint64_t from, uint64_t index)
{
    struct raft_message ack = { .type = RAFT_APPEND_REPLY, .from = from, .to = 1, .term = 1 };

    ack.u.append_reply.index = index;
    ack.u.append_reply.sent_us = now_us;
    raft_step(r, now_us, &ack);
}

#endif
