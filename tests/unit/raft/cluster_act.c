/* What clients, operators and bad luck do to the cluster. */
#include "check.h"
#include "cluster.h"
#include "err.h"
#include "raft/config.h"

static void propose(struct cluster *c, struct node *n)
{
    uint64_t value = ++c->next_value, index;
    struct keel_buf *data = keel_buf_copy(keel_slice_of(&value, sizeof value));

    if (raft_last_index(n->r) + 64 >= LOG_MAX)
        keel_buf_free(data);
    else if (raft_propose(n->r, clock_of(c, n), data, &index) == 0)
        REQUIRE(c, index == raft_last_index(n->r));
    settle(c, n);
}

static void begin_read(struct cluster *c, struct node *n)
{
    uint64_t context = c->read_count;

    if (c->read_count == READS_MAX)
        return;
    c->reads[c->read_count++] =
        (struct read){ (size_t)n->id - 1, context, c->committed_last, true };
    raft_read_index(n->r, clock_of(c, n), context);
    settle(c, n);
}

/* Up to three members are put in, moved or taken out: a learner added or promoted, several voters
 * replaced, the leader removed, or something that is refused. */
static void change_members(struct cluster *c, struct node *n)
{
    struct raft_config target = *raft_config(n->r);
    uint64_t index;
    int err;

    if (raft_last_index(n->r) + 64 >= LOG_MAX || raft_config_is_joint(&target))
        return;
    for (uint64_t i = below(c, 3) + 1; i > 0; i--) {
        uint64_t id = below(c, c->count) + 1, dice = below(c, 10);

        if (dice < 4)
            raft_config_put(&target, id, false);
        else if (dice < 8)
            raft_config_put(&target, id, true);
        else
            raft_config_drop(&target, chance(c, 20) ? n->id : id);
    }
    err = raft_propose_config(n->r, clock_of(c, n), &target, keel_slice_str("rest"), &index);
    if (err == 0) {
        REQUIRE(c, index == raft_last_index(n->r) && index == raft_config_index(n->r));
        totals.own_removals += raft_config_drop(&target, n->id) ? 0 : 1;
    }
    settle(c, n);
}

/* The store is at some applied index, and the log is let go up to there or less. */
static void release(struct cluster *c, struct node *n)
{
    uint64_t most = durable_applied(c, n);

    if (n->installing != 0 || most <= n->store_index)
        return;
    n->store_index += below(c, most - n->store_index) + 1;
    if (n->store_index + 1 > n->first_stored)
        n->first_stored += below(c, n->store_index + 2 - n->first_stored);
    raft_on_released(n->r, n->first_stored);
}

/* One that nobody has asked for. */
static void ship_any(struct cluster *c, struct node *n)
{
    uint64_t most = durable_applied(c, n);

    if (most > n->store_index)
        ship(c, (size_t)n->id - 1, below(c, c->count),
             n->store_index + below(c, most - n->store_index) + 1);
}

static void transfer(struct cluster *c, struct node *n)
{
    if (raft_transfer(n->r, clock_of(c, n), chance(c, 50) ? 0 : below(c, c->count) + 1) == 0)
        totals.transfers++;
    settle(c, n);
}

/* The leader's connections close, and it notices late: what it answers from its lease meanwhile has
 * to be true. */
static void isolate(struct cluster *c, struct node *n)
{
    for (size_t i = 0; i < c->count; i++) {
        if (i == n->id - 1 || c->nodes[i].r == NULL)
            continue;
        set_link(c, n->id - 1, i, false);
        if (n->notices[i].pending)
            n->notices[i].due_us = c->now_us + 200000;
    }
}

static void disturb_links(struct cluster *c, uint64_t dice)
{
    size_t a = below(c, c->count), b = below(c, c->count);

    if (a == b || c->nodes[a].r == NULL || c->nodes[b].r == NULL)
        return;
    if (dice < 14)
        set_link(c, a, b, false);
    else if (dice < 60)
        set_link(c, a, b, true);
    else if (dice < 66)
        c->mute[a][b] = true;
    else
        c->mute[a][b] = false;
}

void act(struct cluster *c)
{
    struct node *n = &c->nodes[below(c, c->count)];
    uint64_t dice = below(c, 1000);

    if (dice >= 600 && dice < 700)
        disturb_links(c, dice - 600);
    if (n->r == NULL)
        return;
    if (dice < 300)
        propose(c, n);
    else if (dice < 600)
        begin_read(c, leader(c) && dice < 350 ? leader(c) : n);
    else if (dice >= 700 && dice < 700 + c->seed % 5 + (n->installing != 0 ? 10 : 0))
        crash(c, n);
    else if (dice >= 710 && dice < 712)
        transfer(c, leader(c) ? leader(c) : n);
    else if (dice == 712 && leader(c) != NULL)
        isolate(c, leader(c));
    else if (dice >= 720 && dice < 735 && c->seed % 3 != 0)
        change_members(c, leader(c) ? leader(c) : n);
    else if (dice >= 740 && dice < 755 && c->seed % 2 != 0)
        release(c, n);
    else if (dice >= 755 && dice < 765 && c->seed % 2 != 0)
        ship_any(c, n);
}
