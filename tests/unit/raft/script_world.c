/* Nodes, their disks, and what is on its way between them. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "raft/config.h"
#include "script_world.h"

struct world *world_new(const char *file)
{
    struct world *w = keel_calloc(1, sizeof *w);

    w->file = file;
    w->now_us = 10000000;
    raft_options_init(&w->options);
    for (size_t i = 0; i < NODES_MAX; i++) {
        w->nodes[i].id = i + 1;
        w->nodes[i].first_stored = 1;
    }
    return w;
}

void world_free(struct world *w)
{
    for (size_t i = 0; i < w->flight_count; i++)
        raft_message_free(w->flights[i]);
    for (size_t i = 0; i < NODES_MAX; i++) {
        struct node *n = &w->nodes[i];

        raft_free(n->r);
        for (size_t k = 0; k < n->request_count; k++)
            raft_entries_free(n->requests[k].entries, n->requests[k].count);
        for (uint64_t k = 0; k < n->log_last; k++)
            keel_buf_free(n->log[k].data);
    }
    keel_text_free(&w->out);
    free(w);
}

static void submit(struct world *w, struct node *n, const struct raft_ready *ready)
{
    struct request *request = &n->requests[n->request_count++];

    KEEL_ASSERT(n->request_count < REQUESTS_MAX);
    if (!w->quiet)
        print_request(&w->out, n->id, ready);
    *request = (struct request){ .mark = ready->mark,
                                 .reset_index = ready->reset_index,
                                 .reset_term = ready->reset_term,
                                 .has_hard = ready->hard_state != NULL };
    if (ready->hard_state != NULL)
        request->hard = *ready->hard_state;
    request->entries = raft_entries_copy(ready->entries, ready->entry_count);
    request->count = ready->entry_count;
}

static void launch(struct world *w, struct raft_message *msg_take)
{
    if (!w->quiet) {
        keel_text_printf(&w->out, "  ");
        print_message(&w->out, msg_take);
    }
    KEEL_ASSERT(w->flight_count < FLIGHTS_MAX);
    w->flights[w->flight_count++] = msg_take;
}

static void note_snapshot(struct world *w, struct node *n, uint64_t peer)
{
    keel_text_printf(&w->out, "  %" PRIu64 " has to send %" PRIu64 " a snapshot\n", n->id, peer);
    for (size_t i = 0; i < n->snapshot_count; i++) {
        if (n->snapshots[i] == peer)
            return;
    }
    KEEL_ASSERT(n->snapshot_count < NODES_MAX);
    n->snapshots[n->snapshot_count++] = peer;
}

/* Fetches and snapshots. */
static void take_errands(struct world *w, struct node *n, const struct raft_ready *ready)
{
    for (size_t i = 0; i < ready->fetch_count; i++) {
        KEEL_ASSERT(n->fetch_count < NODES_MAX);
        n->fetches[n->fetch_count++] = ready->fetches[i];
        if (!w->quiet)
            keel_text_printf(&w->out, "  %" PRIu64 " fetches from %" PRIu64 " on for %" PRIu64 "\n",
                             n->id, ready->fetches[i].first, ready->fetches[i].peer);
    }
    for (size_t i = 0; i < ready->snapshot_count; i++)
        note_snapshot(w, n, ready->snapshots[i]);
}

void settle_node(struct world *w, struct node *n)
{
    struct raft_ready ready;

    print_changes(w, n);
    while (raft_ready(n->r, w->now_us, &ready)) {
        if (ready.persist)
            submit(w, n, &ready);
        for (size_t i = 0; i < ready.message_count; i++)
            launch(w, ready.messages[i]);
        for (size_t i = 0; i < ready.read_count; i++)
            keel_text_printf(&w->out, "  %" PRIu64 " read %" PRIu64 " index %" PRIu64 "\n", n->id,
                             ready.reads[i].context, ready.reads[i].index);
        take_errands(w, n, &ready);
        raft_accept(n->r);
        print_changes(w, n);
    }
    raft_on_applied(n->r, raft_commit_index(n->r));
}

static void reset_log(struct node *n, uint64_t index, uint64_t term)
{
    KEEL_ASSERT(index > 0 && index <= LOG_MAX);
    for (uint64_t i = 0; i < n->log_last; i++)
        keel_buf_free(n->log[i].data);
    memset(n->log, 0, sizeof n->log);
    n->log[index - 1] = (struct raft_entry){ .term = term, .index = index };
    n->log_last = index;
    n->first_stored = index + 1;
}

static struct raft_options node_options(const struct world *w, const struct node *n)
{
    struct raft_options options = w->options;

    options.id = n->id;
    options.seed = n->id;
    options.config = n->store.config;
    options.config_index = n->store.config_index;
    options.hard_state = n->hard;
    options.base_index = n->store.index;
    options.base_term = n->store.term;
    options.first_stored_index = n->first_stored;
    options.entries = &n->log[n->store.index];
    options.entry_count = (size_t)(n->log_last - n->store.index);
    return options;
}

/* A store that is ahead of the log, or of another one: an installation was cut short. */
void start_node(struct world *w, struct node *n)
{
    const struct snapshot *store = &n->store;
    struct raft_options options;

    if (store->index > n->log_last ||
        (store->index > 0 && n->log[store->index - 1].term != store->term))
        reset_log(n, store->index, store->term);
    options = node_options(w, n);
    n->r = raft_new(&options, w->now_us);
    n->role = raft_role(n->r);
    n->term = raft_term(n->r);
    n->leader = 0;
    n->commit = raft_commit_index(n->r);
    n->config = *raft_config(n->r);
    n->config_index = raft_config_index(n->r);
}

void crash_node(struct node *n)
{
    for (size_t i = 0; i < n->request_count; i++)
        raft_entries_free(n->requests[i].entries, n->requests[i].count);
    n->request_count = n->fetch_count = n->snapshot_count = 0;
    n->arriving = (struct snapshot){ 0 };
    n->r = raft_free(n->r);
}

void set_link(struct world *w, struct node *a, struct node *b, bool up)
{
    w->link[a->id - 1][b->id - 1] = up;
    if (a->r == NULL)
        return;
    if (up)
        raft_on_connected(a->r, w->now_us, b->id);
    else
        raft_on_disconnected(a->r, w->now_us, b->id);
    settle_node(w, a);
}

static bool linked(const struct world *w, const struct raft_message *msg)
{
    return w->link[msg->from - 1][msg->to - 1] && w->link[msg->to - 1][msg->from - 1];
}

void arrive(struct world *w, struct raft_message *msg_take)
{
    struct node *n = &w->nodes[msg_take->to - 1];

    if (n->r != NULL && linked(w, msg_take)) {
        if (!w->quiet)
            keel_text_printf(&w->out, "%" PRIu64 " gets %s of %" PRIu64 "\n", n->id,
                             raft_message_name(msg_take->type), msg_take->from);
        raft_step(n->r, w->now_us, msg_take);
        settle_node(w, n);
    }
    raft_message_free(msg_take);
}

size_t take_flights(struct world *w, uint64_t from, uint64_t to, size_t limit,
                    struct raft_message *ret[FLIGHTS_MAX])
{
    size_t kept = 0, taken = 0;

    for (size_t i = 0; i < w->flight_count; i++) {
        struct raft_message *msg = w->flights[i];

        if (taken < limit && (from == 0 || msg->from == from) && (to == 0 || msg->to == to))
            ret[taken++] = msg;
        else
            w->flights[kept++] = msg;
    }
    w->flight_count = kept;
    return taken;
}

static void write_request(struct node *n, struct request *request)
{
    if (request->reset_index != 0)
        reset_log(n, request->reset_index, request->reset_term);
    if (request->has_hard)
        n->hard = request->hard;
    while (request->count > 0 && n->log_last >= request->entries[0].index)
        keel_buf_free(n->log[--n->log_last].data);
    for (size_t i = 0; i < request->count; i++) {
        KEEL_ASSERT(request->entries[i].index == n->log_last + 1 && n->log_last < LOG_MAX);
        n->log[n->log_last++] = request->entries[i];
    }
    free(request->entries);
}

bool persist(struct world *w, struct node *n, size_t count)
{
    struct raft_mark mark;

    count = count < n->request_count ? count : n->request_count;
    if (n->r == NULL || count == 0)
        return false;
    for (size_t i = 0; i < count; i++) {
        mark = n->requests[i].mark;
        write_request(n, &n->requests[i]);
    }
    n->request_count -= count;
    memmove(n->requests, n->requests + count, n->request_count * sizeof *n->requests);
    raft_on_persisted(n->r, w->now_us, mark);
    settle_node(w, n);
    return true;
}

bool fetch_one(struct world *w, struct node *n, bool fails)
{
    struct raft_fetch fetch;

    if (n->r == NULL || n->fetch_count == 0)
        return false;
    fetch = n->fetches[0];
    n->fetch_count--;
    memmove(n->fetches, n->fetches + 1, n->fetch_count * sizeof *n->fetches);
    if (fails || fetch.first < n->first_stored)
        raft_on_fetched(n->r, w->now_us, fetch.peer, fetch.first, 0, NULL, 0);
    else
        raft_on_fetched(n->r, w->now_us, fetch.peer, fetch.first,
                        fetch.first > 1 ? n->log[fetch.first - 2].term : 0,
                        &n->log[fetch.first - 1], (size_t)(n->log_last + 1 - fetch.first));
    settle_node(w, n);
    return true;
}

/* ---- snapshots ---- */

struct snapshot snapshot_at(const struct node *n, uint64_t index)
{
    struct snapshot snapshot = n->store;
    struct keel_slice rest;

    KEEL_ASSERT(index >= n->store.index && index <= n->log_last);
    for (uint64_t i = n->store.index + 1; i <= index; i++) {
        const struct raft_entry *entry = &n->log[i - 1];

        snapshot.index = i;
        snapshot.term = entry->term;
        if (entry->kind != RAFT_ENTRY_CONFIG)
            continue;
        KEEL_ASSERT(raft_config_decode(keel_buf_slice(entry->data), &snapshot.config, &rest) == 0);
        snapshot.config_index = i;
    }
    return snapshot;
}

void release(struct world *w, struct node *n, uint64_t first)
{
    if (first - 1 > n->store.index)
        n->store = snapshot_at(n, first - 1);
    n->first_stored = first;
    raft_on_released(n->r, first);
    settle_node(w, n);
}

bool install_begin(struct world *w, struct node *n, const struct snapshot *snapshot)
{
    bool needed = raft_install_begin(n->r, w->now_us, snapshot->index, snapshot->term);

    keel_text_printf(&w->out, "%" PRIu64 " %s %" PRIu64 "/%" PRIu64 "\n", n->id,
                     needed ? "installs" : "needs no", snapshot->index, snapshot->term);
    if (needed)
        n->arriving = *snapshot;
    settle_node(w, n);
    return needed;
}

void install_end(struct world *w, struct node *n)
{
    n->store = n->arriving;
    n->arriving = (struct snapshot){ 0 };
    raft_on_installed(n->r, w->now_us, n->store.index, n->store.term, &n->store.config,
                      n->store.config_index);
    settle_node(w, n);
}

void snapshot_sent(struct world *w, struct node *n, uint64_t peer, uint64_t index)
{
    for (size_t i = 0; i < n->snapshot_count; i++) {
        if (n->snapshots[i] == peer)
            n->snapshots[i] = n->snapshots[--n->snapshot_count];
    }
    raft_on_snapshot_sent(n->r, w->now_us, peer, index);
    settle_node(w, n);
}

/* Sent, installed and reported in one go. */
static bool send_snapshot(struct world *w, struct node *n)
{
    struct node *peer;
    struct snapshot snapshot;

    if (n->r == NULL || n->slow || n->snapshot_count == 0)
        return false;
    peer = &w->nodes[n->snapshots[0] - 1];
    if (peer->r == NULL || !w->link[n->id - 1][peer->id - 1] || !w->link[peer->id - 1][n->id - 1]) {
        snapshot_sent(w, n, peer->id, 0);
        return true;
    }
    snapshot = snapshot_at(n, raft_commit_index(n->r) < n->log_last ? raft_commit_index(n->r)
                                                                    : n->log_last);
    if (install_begin(w, peer, &snapshot))
        install_end(w, peer);
    snapshot_sent(w, n, peer->id, snapshot.index);
    return true;
}

/* ---- all of it ---- */

void settle_all(struct world *w)
{
    struct raft_message *flights[FLIGHTS_MAX];
    bool busy = true;

    for (size_t turns = 0; busy; turns++) {
        size_t count = take_flights(w, 0, 0, FLIGHTS_MAX, flights);

        KEEL_ASSERT(turns < 10000);
        busy = count > 0;
        for (size_t i = 0; i < count; i++)
            arrive(w, flights[i]);
        for (size_t i = 0; i < w->count; i++) {
            while ((!w->nodes[i].stalled && persist(w, &w->nodes[i], REQUESTS_MAX)) ||
                   fetch_one(w, &w->nodes[i], false) || send_snapshot(w, &w->nodes[i]))
                busy = true;
        }
    }
}
