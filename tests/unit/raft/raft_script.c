/* Runs a script of commands against a small cluster and compares the trace with the one in the
 * file.
 *
 *     raft_script FILE...              fails at the first line that differs
 *     raft_script --rewrite FILE...    writes the trace into the files, to be reviewed as a diff
 *
 * A file consists of comments (#), empty lines, commands (>), and the trace of each command below
 * it. Nothing happens by itself: messages, persist requests and fetches wait for their command.
 * tests/data/raft/README.md has the commands. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "buf.h"
#include "check.h"
#include "err.h"
#include "raft/raft.h"

enum { NODES_MAX = 5, LOG_MAX = 256, FLIGHTS_MAX = 1024, REQUESTS_MAX = 64, WORDS_MAX = 16 };

struct request {
    struct raft_mark mark;
    bool has_hard;
    struct raft_hard_state hard;
    struct raft_entry *entries;
    size_t count;
};

struct node {
    struct raft *r;
    uint64_t id;
    struct raft_hard_state hard; /* the disk: hard state, and entry i + 1 at log[i] */
    struct raft_entry log[LOG_MAX];
    uint64_t log_last, base, first_stored;
    bool stalled; /* its disk waits for `persist` */
    struct request requests[REQUESTS_MAX];
    size_t request_count;
    struct raft_fetch fetches[NODES_MAX];
    size_t fetch_count;
    enum raft_role role; /* as last reported */
    uint64_t term, leader, commit;
};

struct world {
    const char *file;
    uint64_t now_us;
    size_t count;
    struct raft_options options; /* what all nodes have in common */
    struct node nodes[NODES_MAX];
    bool link[NODES_MAX][NODES_MAX];
    struct raft_message *flights[FLIGHTS_MAX];
    size_t flight_count;
    bool quiet; /* only changes of role, leader and commit index, and answers */
    struct keel_text out;
};

_Noreturn static void bad_script(const char *file, const char *what, const char *line)
{
    fprintf(stderr, "%s: %s: %s\n", file, what, line);
    exit(2);
}

/* ---- the trace ---- */

static const char *role_name(enum raft_role role)
{
    switch (role) {
    case RAFT_FOLLOWER:
        return "follower";
    case RAFT_PRECANDIDATE:
        return "precandidate";
    case RAFT_CANDIDATE:
        return "candidate";
    case RAFT_LEADER:
        return "leader";
    case RAFT_LEARNER:
        return "learner";
    default:
        return "?";
    }
}

/* Without the filling of `padded`, which begins with the first blank. */
static int text_len(const struct keel_buf *data)
{
    int len = 0;

    while (len < 8 && (size_t)len < data->len && data->data[len] != ' ')
        len++;
    return len;
}

static void print_entries(struct keel_text *out, const struct raft_entry *entries, size_t count)
{
    for (size_t i = 0; i < count && i < 6; i++) {
        const struct keel_buf *data = entries[i].data;

        keel_text_printf(out, " %" PRIu64 "/%" PRIu64, entries[i].index, entries[i].term);
        if (data != NULL)
            keel_text_printf(out, ":%.*s", text_len(data), (const char *)data->data);
    }
    if (count > 6)
        keel_text_printf(out, " … %" PRIu64 "/%" PRIu64, entries[count - 1].index,
                         entries[count - 1].term);
}

static void print_vote(struct keel_text *out, const struct raft_message *m)
{
    if (m->type == RAFT_VOTE_REQUEST)
        keel_text_printf(out, "%s%s last %" PRIu64 "/%" PRIu64, m->u.vote_request.pre ? " pre" : "",
                         m->u.vote_request.transfer ? " transfer" : "",
                         m->u.vote_request.last_index, m->u.vote_request.last_term);
    else
        keel_text_printf(out, "%s %s age %" PRIu64 ".%03" PRIu64 "ms",
                         m->u.vote_reply.pre ? " pre" : "",
                         m->u.vote_reply.granted ? "granted" : "rejected",
                         m->u.vote_reply.ack_age_us / 1000, m->u.vote_reply.ack_age_us % 1000);
}

static void print_append(struct keel_text *out, const struct raft_message *m)
{
    if (m->type == RAFT_APPEND) {
        keel_text_printf(out, " prev %" PRIu64 "/%" PRIu64 " commit %" PRIu64,
                         m->u.append.prev_index, m->u.append.prev_term, m->u.append.commit);
        if (m->u.append.sent_us == 0)
            keel_text_printf(out, " (no reply)");
        print_entries(out, m->u.append.entries, m->u.append.count);
    } else if (m->u.append_reply.rejected) {
        keel_text_printf(out, " rejected %" PRIu64 " hint %" PRIu64 "/%" PRIu64,
                         m->u.append_reply.index, m->u.append_reply.hint_index,
                         m->u.append_reply.hint_term);
    } else {
        keel_text_printf(out, " up to %" PRIu64, m->u.append_reply.index);
    }
}

static void print_message(struct keel_text *out, const struct raft_message *m)
{
    keel_text_printf(out, "%" PRIu64 ">%" PRIu64 " %s term %" PRIu64, m->from, m->to,
                     raft_message_name(m->type), m->term);
    switch (m->type) {
    case RAFT_VOTE_REQUEST:
    case RAFT_VOTE_REPLY:
        print_vote(out, m);
        break;
    case RAFT_APPEND:
    case RAFT_APPEND_REPLY:
        print_append(out, m);
        break;
    case RAFT_HEARTBEAT:
        keel_text_printf(out, " commit %" PRIu64 " round %" PRIu64, m->u.heartbeat.commit,
                         m->u.heartbeat.round);
        break;
    case RAFT_HEARTBEAT_REPLY:
        keel_text_printf(out, " round %" PRIu64, m->u.heartbeat_reply.round);
        break;
    case RAFT_READ_REQUEST:
        keel_text_printf(out, " context %" PRIu64, m->u.read_request.context);
        break;
    case RAFT_READ_REPLY:
        keel_text_printf(out, " context %" PRIu64, m->u.read_reply.context);
        if (m->u.read_reply.refused)
            keel_text_printf(out, " refused");
        else
            keel_text_printf(out, " index %" PRIu64, m->u.read_reply.index);
        break;
    case RAFT_TIMEOUT_NOW:
    case RAFT_MESSAGE_TYPES:
    default:
        break;
    }
    keel_text_printf(out, "\n");
}

static void print_request(struct keel_text *out, uint64_t id, const struct raft_ready *ready)
{
    keel_text_printf(out, "  %" PRIu64 " persists #%" PRIu64 ":", id, ready->mark.seq);
    if (ready->hard_state != NULL)
        keel_text_printf(out, " term %" PRIu64 " vote %" PRIu64 " commit %" PRIu64,
                         ready->hard_state->term, ready->hard_state->vote,
                         ready->hard_state->commit);
    if (ready->entry_count > 0)
        keel_text_printf(out, "%s entries", ready->hard_state != NULL ? "," : "");
    print_entries(out, ready->entries, ready->entry_count);
    keel_text_printf(out, "\n");
}

static void print_changes(struct world *w, struct node *n)
{
    if (n->role != raft_role(n->r) || n->term != raft_term(n->r)) {
        keel_text_printf(&w->out, "  %" PRIu64 " is %s in term %" PRIu64 "\n", n->id,
                         role_name(raft_role(n->r)), raft_term(n->r));
        n->leader = raft_role(n->r) == RAFT_LEADER ? n->id : n->leader;
    }
    if (n->leader != raft_leader(n->r) && raft_leader(n->r) != 0)
        keel_text_printf(&w->out, "  %" PRIu64 " follows %" PRIu64 "\n", n->id, raft_leader(n->r));
    else if (n->leader != raft_leader(n->r) && raft_role(n->r) == RAFT_FOLLOWER)
        keel_text_printf(&w->out, "  %" PRIu64 " has no leader\n", n->id);
    if (n->commit != raft_commit_index(n->r))
        keel_text_printf(&w->out, "  %" PRIu64 " commits %" PRIu64 "\n", n->id,
                         raft_commit_index(n->r));
    n->role = raft_role(n->r);
    n->term = raft_term(n->r);
    n->leader = raft_leader(n->r);
    n->commit = raft_commit_index(n->r);
}

/* ---- the world ---- */

static void submit(struct world *w, struct node *n, const struct raft_ready *ready)
{
    struct request *request = &n->requests[n->request_count++];

    KEEL_ASSERT(n->request_count < REQUESTS_MAX);
    if (!w->quiet)
        print_request(&w->out, n->id, ready);
    *request = (struct request){ .mark = ready->mark, .has_hard = ready->hard_state != NULL };
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

/* Carries out what the last call on a node has brought. */
static void settle_node(struct world *w, struct node *n)
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
        for (size_t i = 0; i < ready.fetch_count; i++) {
            KEEL_ASSERT(n->fetch_count < NODES_MAX);
            n->fetches[n->fetch_count++] = ready.fetches[i];
            if (!w->quiet)
                keel_text_printf(&w->out,
                                 "  %" PRIu64 " fetches from %" PRIu64 " on for %" PRIu64 "\n",
                                 n->id, ready.fetches[i].first, ready.fetches[i].peer);
        }
        raft_accept(n->r);
        print_changes(w, n);
    }
    raft_on_applied(n->r, raft_commit_index(n->r));
}

static void start_node(struct world *w, struct node *n)
{
    struct raft_options options = w->options;

    options.id = n->id;
    options.seed = n->id;
    options.hard_state = n->hard;
    options.base_index = n->base;
    options.base_term = n->base ? n->log[n->base - 1].term : 0;
    options.first_stored_index = n->first_stored;
    options.entries = &n->log[n->base];
    options.entry_count = (size_t)(n->log_last - n->base);
    n->r = raft_new(&options, w->now_us);
    n->role = raft_role(n->r);
    n->term = raft_term(n->r);
    n->leader = 0;
    n->commit = raft_commit_index(n->r);
}

static void set_link(struct world *w, struct node *a, struct node *b, bool up)
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

static void arrive(struct world *w, struct raft_message *msg_take)
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

/* Messages on their way that match (0: any), taken out, at most `limit`. */
static size_t take_flights(struct world *w, uint64_t from, uint64_t to, size_t limit,
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

/* The oldest `count` requests of a node become durable with one fsync. */
static bool persist(struct world *w, struct node *n, size_t count)
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

static bool fetch_one(struct world *w, struct node *n, bool fails)
{
    struct raft_fetch fetch;

    if (n->r == NULL || n->fetch_count == 0)
        return false;
    fetch = n->fetches[0];
    n->fetch_count--;
    memmove(n->fetches, n->fetches + 1, n->fetch_count * sizeof *n->fetches);
    raft_on_fetched(n->r, w->now_us, fetch.peer, fetch.first,
                    fetch.first > 1 ? n->log[fetch.first - 2].term : 0, &n->log[fetch.first - 1],
                    fails ? 0 : (size_t)(n->log_last + 1 - fetch.first));
    settle_node(w, n);
    return true;
}

/* Everything that is waiting happens, until nothing is. */
static void settle_all(struct world *w)
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
                   fetch_one(w, &w->nodes[i], false))
                busy = true;
        }
    }
}

/* ---- commands ---- */

struct command {
    const char *line;
    char *words[WORDS_MAX];
    size_t count;
};

static const char *option_of(const struct command *cmd, const char *name)
{
    size_t len = strlen(name);

    for (size_t i = 1; i < cmd->count; i++) {
        if (strncmp(cmd->words[i], name, len) == 0 && cmd->words[i][len] == '=')
            return cmd->words[i] + len + 1;
    }
    return NULL;
}

static bool has_word(const struct command *cmd, const char *word)
{
    for (size_t i = 1; i < cmd->count; i++) {
        if (strcmp(cmd->words[i], word) == 0)
            return true;
    }
    return false;
}

static uint64_t number_at(const struct command *cmd, size_t at)
{
    return at < cmd->count ? strtoull(cmd->words[at], NULL, 10) : 0;
}

static uint64_t number_option(const struct command *cmd, const char *name, uint64_t otherwise)
{
    const char *value = option_of(cmd, name);

    return value ? strtoull(value, NULL, 10) : otherwise;
}

static struct node *node_at(struct world *w, const struct command *cmd, size_t at)
{
    uint64_t id = number_at(cmd, at);

    if (id == 0 || id > NODES_MAX)
        bad_script(w->file, "no such node", cmd->line);
    return &w->nodes[id - 1];
}

static struct node *live_node_at(struct world *w, const struct command *cmd, size_t at)
{
    struct node *n = node_at(w, cmd, at);

    if (n->r == NULL)
        bad_script(w->file, "node is down", cmd->line);
    return n;
}

/* The text, filled up with blanks to at least a size. */
static struct keel_buf *padded(const char *text, size_t size)
{
    size_t len = strlen(text);
    struct keel_buf *data = keel_buf_new(size > len ? size : len);

    memset(data->data, ' ', data->len);
    memcpy(data->data, text, len);
    return data;
}

/* preset N [log=1,1,2] [term=] [vote=] [commit=] [base=] [stored=] [size=]: what its disk holds at
 * the start. */
static void cmd_preset(struct world *w, const struct command *cmd)
{
    struct node *n = node_at(w, cmd, 1);
    const char *terms = option_of(cmd, "log");
    uint64_t size = number_option(cmd, "size", 0);
    char text[16];

    while (terms != NULL && *terms != '\0') {
        uint64_t term = strtoull(terms, (char **)&terms, 10);
        uint64_t index = ++n->log_last;

        snprintf(text, sizeof text, "e%" PRIu64, index);
        n->log[index - 1] =
            (struct raft_entry){ term, index, RAFT_ENTRY_COMMAND, padded(text, (size_t)size) };
        terms += *terms == ',' ? 1 : 0;
    }
    n->hard.term = number_option(cmd, "term", n->log_last ? n->log[n->log_last - 1].term : 0);
    n->hard.vote = number_option(cmd, "vote", 0);
    n->hard.commit = number_option(cmd, "commit", 0);
    n->base = number_option(cmd, "base", 0);
    n->first_stored = number_option(cmd, "stored", 1);
}

/* nodes N [learners=K] [lease=MS] [fast=0]: starts N nodes, all connected; the last K are learners.
 */
static void cmd_nodes(struct world *w, const struct command *cmd)
{
    uint64_t learners = number_option(cmd, "learners", 0);
    struct raft_config *config = &w->options.config;

    w->count = (size_t)number_at(cmd, 1);
    w->options.lease_us = number_option(cmd, "lease", 100) * 1000;
    w->options.fast_elections = number_option(cmd, "fast", 1) != 0;
    for (uint64_t id = 1; id <= w->count; id++) {
        if (id + learners <= w->count)
            config->voters[config->voter_count++] = id;
        else
            config->learners[config->learner_count++] = id;
    }
    for (size_t i = 0; i < w->count; i++)
        start_node(w, &w->nodes[i]);
    for (size_t a = 0; a < w->count; a++) {
        for (size_t b = 0; b < w->count; b++) {
            if (a != b)
                set_link(w, &w->nodes[a], &w->nodes[b], true);
        }
    }
}

/* time +MS: only the clock moves. */
static void cmd_time(struct world *w, const struct command *cmd)
{
    w->now_us += number_at(cmd, 1) * 1000;
}

/* tick N [+MS]: the clock moves by that much, else to the node's deadline; then its tick. */
static void cmd_tick(struct world *w, const struct command *cmd)
{
    struct node *n = live_node_at(w, cmd, 1);
    uint64_t deadline = raft_deadline(n->r);

    if (cmd->count > 2)
        w->now_us += number_at(cmd, 2) * 1000;
    else if (deadline == UINT64_MAX)
        bad_script(w->file, "has no deadline", cmd->line);
    else if (deadline > w->now_us)
        w->now_us = deadline;
    raft_tick(n->r, w->now_us);
    settle_node(w, n);
}

/* deliver [FROM TO] [first | last]: what is on its way now (of that pair; only the first, or the
 * last); 0 for any. */
static void cmd_deliver(struct world *w, const struct command *cmd)
{
    struct raft_message *flights[FLIGHTS_MAX];
    size_t count = take_flights(w, number_at(cmd, 1), number_at(cmd, 2), FLIGHTS_MAX, flights);
    size_t from = 0, to = count;

    if (count > 0 && has_word(cmd, "first"))
        to = 1;
    if (count > 0 && has_word(cmd, "last"))
        from = count - 1;
    for (size_t i = 0; i < count; i++) {
        if (i < from || i >= to)
            w->flights[w->flight_count++] = flights[i];
    }
    for (size_t i = from; i < to; i++)
        arrive(w, flights[i]);
}

/* drop [FROM TO]: what is on its way is lost. */
static void cmd_drop(struct world *w, const struct command *cmd)
{
    struct raft_message *flights[FLIGHTS_MAX];
    size_t count = take_flights(w, number_at(cmd, 1), number_at(cmd, 2), FLIGHTS_MAX, flights);

    for (size_t i = 0; i < count; i++) {
        keel_text_printf(&w->out, "  lost ");
        print_message(&w->out, flights[i]);
        raft_message_free(flights[i]);
    }
}

/* double FROM TO: each message on its way from one to the other arrives once more, later. */
static void cmd_double(struct world *w, const struct command *cmd)
{
    size_t count = w->flight_count;

    for (size_t i = 0; i < count; i++) {
        const struct raft_message *msg = w->flights[i];
        struct raft_message *copy;

        if (msg->from != number_at(cmd, 1) || msg->to != number_at(cmd, 2))
            continue;
        copy = raft_message_new(msg->type, msg->from, msg->to, msg->term);
        copy->u = msg->u;
        if (msg->type == RAFT_APPEND)
            copy->u.append.entries = raft_entries_copy(msg->u.append.entries, msg->u.append.count);
        w->flights[w->flight_count++] = copy;
    }
}

/* persist N [one]: its requests so far become durable together; the oldest one only. */
static void cmd_persist(struct world *w, const struct command *cmd)
{
    if (!persist(w, live_node_at(w, cmd, 1), has_word(cmd, "one") ? 1 : REQUESTS_MAX))
        bad_script(w->file, "nothing to persist", cmd->line);
}

/* stall N: its disk waits for `persist` from now on, also in settle and run. */
static void cmd_stall(struct world *w, const struct command *cmd)
{
    live_node_at(w, cmd, 1)->stalled = true;
}

/* fetch N [fails]: its oldest fetch is answered. */
static void cmd_fetch(struct world *w, const struct command *cmd)
{
    if (!fetch_one(w, live_node_at(w, cmd, 1), has_word(cmd, "fails")))
        bad_script(w->file, "nothing to fetch", cmd->line);
}

static void print_result(struct world *w, int err)
{
    if (err != 0)
        keel_text_printf(&w->out, "  refused: %s\n", keel_strerror(err));
}

/* propose N TEXT... [size=BYTES] */
static void cmd_propose(struct world *w, const struct command *cmd)
{
    struct node *n = live_node_at(w, cmd, 1);
    uint64_t index, size = number_option(cmd, "size", 0);
    int err = 0;

    for (size_t i = 2; i < cmd->count && strchr(cmd->words[i], '=') == NULL; i++) {
        struct keel_buf *data = padded(cmd->words[i], (size_t)size);

        err = raft_propose(n->r, w->now_us, data, &index);
        print_result(w, err);
    }
    settle_node(w, n);
}

/* read N CONTEXT... */
static void cmd_read(struct world *w, const struct command *cmd)
{
    struct node *n = live_node_at(w, cmd, 1);

    for (size_t i = 2; i < cmd->count; i++)
        print_result(w, raft_read_index(n->r, w->now_us, number_at(cmd, i)));
    settle_node(w, n);
}

/* transfer N [TO] */
static void cmd_transfer(struct world *w, const struct command *cmd)
{
    struct node *n = live_node_at(w, cmd, 1);

    print_result(w, raft_transfer(n->r, w->now_us, number_at(cmd, 2)));
    settle_node(w, n);
}

/* disconnect A B [one-sided]: the connection closes, for A only if so; what is on its way is lost.
 */
static void cmd_disconnect(struct world *w, const struct command *cmd)
{
    struct node *a = node_at(w, cmd, 1), *b = node_at(w, cmd, 2);
    struct raft_message *flights[FLIGHTS_MAX];
    size_t count = take_flights(w, a->id, b->id, FLIGHTS_MAX, flights);

    count += take_flights(w, b->id, a->id, FLIGHTS_MAX - count, flights + count);
    for (size_t i = 0; i < count; i++)
        raft_message_free(flights[i]);
    set_link(w, a, b, false);
    if (!has_word(cmd, "one-sided"))
        set_link(w, b, a, false);
}

/* connect A B */
static void cmd_connect(struct world *w, const struct command *cmd)
{
    struct node *a = node_at(w, cmd, 1), *b = node_at(w, cmd, 2);

    set_link(w, a, b, true);
    set_link(w, b, a, true);
}

/* cut A B, heal A B: nothing arrives between them, and neither notices. */
static void cmd_cut(struct world *w, const struct command *cmd)
{
    bool up = strcmp(cmd->words[0], "heal") == 0;
    uint64_t a = node_at(w, cmd, 1)->id, b = node_at(w, cmd, 2)->id;

    w->link[a - 1][b - 1] = w->link[b - 1][a - 1] = up;
}

/* alive N OF: bytes of OF have come in. */
static void cmd_alive(struct world *w, const struct command *cmd)
{
    struct node *n = live_node_at(w, cmd, 1);

    raft_on_alive(n->r, w->now_us, number_at(cmd, 2));
    settle_node(w, n);
}

/* crash N: it is gone, with every request that was not durable; the others notice nothing by
 * themselves. */
static void cmd_crash(struct world *w, const struct command *cmd)
{
    struct node *n = live_node_at(w, cmd, 1);

    for (size_t i = 0; i < n->request_count; i++)
        raft_entries_free(n->requests[i].entries, n->requests[i].count);
    n->request_count = n->fetch_count = 0;
    n->r = raft_free(n->r);
}

/* restart N: from its disk; connected with everybody who is up. */
static void cmd_restart(struct world *w, const struct command *cmd)
{
    struct node *n = node_at(w, cmd, 1);

    start_node(w, n);
    keel_text_printf(&w->out,
                     "  %" PRIu64 " starts: term %" PRIu64 " vote %" PRIu64 " commit %" PRIu64
                     ", log up to %" PRIu64 "\n",
                     n->id, n->term, n->hard.vote, n->commit, raft_last_index(n->r));
    for (size_t i = 0; i < w->count; i++) {
        if (&w->nodes[i] == n || w->nodes[i].r == NULL)
            continue;
        set_link(w, n, &w->nodes[i], true);
        raft_on_disconnected(w->nodes[i].r, w->now_us, n->id);
        set_link(w, &w->nodes[i], n, true);
    }
}

/* settle: everything waiting happens, until nothing is; only changes are shown. */
static void cmd_settle(struct world *w, const struct command *cmd)
{
    (void)cmd;
    w->quiet = true;
    settle_all(w);
    w->quiet = false;
}

static uint64_t due_us(const struct node *n, uint64_t except)
{
    return n->r != NULL && n->id != except ? raft_deadline(n->r) : UINT64_MAX;
}

/* run MS [except=N]: time passes; ticks happen when due (N's don't), and everything else at once;
 * only changes are shown.
 */
static void cmd_run(struct world *w, const struct command *cmd)
{
    uint64_t end = w->now_us + number_at(cmd, 1) * 1000;
    uint64_t except = number_option(cmd, "except", 0);

    w->quiet = true;
    settle_all(w);
    for (;;) {
        uint64_t next = UINT64_MAX;
        size_t len = w->out.len;

        for (size_t i = 0; i < w->count; i++) {
            if (due_us(&w->nodes[i], except) < next)
                next = due_us(&w->nodes[i], except);
        }
        if (next > end)
            break;
        w->now_us = next > w->now_us ? next : w->now_us;
        for (size_t i = 0; i < w->count; i++) {
            if (due_us(&w->nodes[i], except) <= w->now_us) {
                raft_tick(w->nodes[i].r, w->now_us);
                settle_node(w, &w->nodes[i]);
            }
        }
        settle_all(w);
        if (w->out.len > len)
            keel_text_printf(&w->out, "  … at %" PRIu64 "ms\n", w->now_us / 1000);
    }
    w->now_us = end;
    w->quiet = false;
}

static void show_log(struct world *w, const struct node *n)
{
    keel_text_printf(&w->out, "  %" PRIu64 " log:", n->id);
    for (uint64_t i = n->base + 1; i <= raft_last_index(n->r); i++)
        print_entries(&w->out, raft_entry(n->r, i), 1);
    keel_text_printf(&w->out, "\n");
}

static void show_peers(struct world *w, const struct node *n)
{
    static const char *const states[] = { "probe", "replicate", "snapshot" };
    struct raft_peer_status peers[KEEL_MEMBERS_MAX];
    size_t count = raft_peers(n->r, peers);

    for (size_t i = 0; i < count; i++) {
        if (peers[i].id != n->id)
            keel_text_printf(&w->out,
                             "  %" PRIu64 " sees %" PRIu64 "%s%s: %s match %" PRIu64
                             " next %" PRIu64 "\n",
                             n->id, peers[i].id, peers[i].learner ? " (learner)" : "",
                             peers[i].connected ? "" : " (closed)", states[peers[i].state],
                             peers[i].match, peers[i].next);
    }
}

/* show [N] [log] [peers]: state of all or of one, as of now. */
static void cmd_show(struct world *w, const struct command *cmd)
{
    for (size_t i = 0; i < w->count; i++) {
        const struct node *n = &w->nodes[i];

        if (number_at(cmd, 1) != 0 && number_at(cmd, 1) != n->id)
            continue;
        if (n->r == NULL) {
            keel_text_printf(&w->out, "  %" PRIu64 " is down\n", n->id);
            continue;
        }
        keel_text_printf(&w->out,
                         "  %" PRIu64 " %s term %" PRIu64 " leader %" PRIu64 " last %" PRIu64
                         " persisted %" PRIu64 " commit %" PRIu64 "%s%s\n",
                         n->id, role_name(raft_role(n->r)), raft_term(n->r), raft_leader(n->r),
                         raft_last_index(n->r), raft_persisted_index(n->r), raft_commit_index(n->r),
                         raft_lease_valid(n->r, w->now_us) ? ", has the lease" : "",
                         raft_transferring(n->r) ? ", transferring" : "");
        if (has_word(cmd, "log"))
            show_log(w, n);
        if (has_word(cmd, "peers"))
            show_peers(w, n);
    }
}

/* waiting: messages on their way. */
static void cmd_waiting(struct world *w, const struct command *cmd)
{
    (void)cmd;
    for (size_t i = 0; i < w->flight_count; i++) {
        keel_text_printf(&w->out, "  ");
        print_message(&w->out, w->flights[i]);
    }
}

/* contact N: when the quorum was last seen, and the leader's clock. */
static void cmd_contact(struct world *w, const struct command *cmd)
{
    const struct node *n = live_node_at(w, cmd, 1);
    uint64_t seen = raft_quorum_seen_us(n->r), clock = raft_leader_clock(n->r, w->now_us);

    keel_text_printf(&w->out, "  quorum seen %" PRIu64 "ms ago, ", (w->now_us - seen) / 1000);
    if (clock == 0)
        keel_text_printf(&w->out, "leader's clock unknown\n");
    else
        keel_text_printf(&w->out, "leader's clock %" PRIu64 "ms behind\n",
                         (w->now_us - clock) / 1000);
}

static const struct {
    const char *name;
    void (*run)(struct world *w, const struct command *cmd);
} commands[] = {
    { "preset", cmd_preset },
    { "nodes", cmd_nodes },
    { "time", cmd_time },
    { "tick", cmd_tick },
    { "deliver", cmd_deliver },
    { "drop", cmd_drop },
    { "double", cmd_double },
    { "persist", cmd_persist },
    { "fetch", cmd_fetch },
    { "propose", cmd_propose },
    { "read", cmd_read },
    { "transfer", cmd_transfer },
    { "disconnect", cmd_disconnect },
    { "connect", cmd_connect },
    { "cut", cmd_cut },
    { "heal", cmd_cut },
    { "alive", cmd_alive },
    { "crash", cmd_crash },
    { "restart", cmd_restart },
    { "settle", cmd_settle },
    { "run", cmd_run },
    { "show", cmd_show },
    { "waiting", cmd_waiting },
    { "contact", cmd_contact },
    { "stall", cmd_stall },
};

static void run_command(struct world *w, const char *line)
{
    char *copy = keel_strdup(line), *rest = NULL;
    struct command cmd = { .line = line };

    for (char *word = strtok_r(copy, " ", &rest); word; word = strtok_r(NULL, " ", &rest)) {
        if (cmd.count == WORDS_MAX)
            bad_script(w->file, "too many words", line);
        cmd.words[cmd.count++] = word;
    }
    for (size_t i = 0; cmd.count > 0 && i < KEEL_ARRAY_LEN(commands); i++) {
        if (strcmp(commands[i].name, cmd.words[0]) == 0) {
            commands[i].run(w, &cmd);
            free(copy);
            return;
        }
    }
    bad_script(w->file, "unknown command", line);
}

/* ---- files ---- */

static struct world *world_new(const char *file)
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

static void world_free(struct world *w)
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

static char *read_file(const char *file)
{
    struct keel_text text = { 0 };
    char chunk[4096];
    FILE *f = fopen(file, "r");
    size_t got;

    if (f == NULL)
        bad_script(file, "cannot be opened", "");
    while ((got = fread(chunk, 1, sizeof chunk, f)) > 0)
        keel_text_append(&text, keel_slice_of(chunk, got));
    fclose(f);
    return text.data ? text.data : keel_strdup("");
}

/* The file as it should be: its comments and commands, each with the trace it gives now. */
static struct world *play(const char *file, const char *text)
{
    struct world *w = world_new(file);
    char *copy = keel_strdup(text), *at = copy;

    while (at != NULL && *at != '\0') {
        char *end = strchr(at, '\n');

        if (end != NULL)
            *end = '\0';
        if (*at == '#' || *at == '>' || *at == '\0')
            keel_text_printf(&w->out, "%s\n", at);
        if (*at == '>')
            run_command(w, at + 1);
        at = end ? end + 1 : NULL;
    }
    free(copy);
    return w;
}

static int report(const char *file, const char *expected, const char *actual)
{
    size_t line = 1, i = 0, start = 0;

    for (; expected[i] != '\0' && expected[i] == actual[i]; i++) {
        if (expected[i] == '\n') {
            line++;
            start = i + 1;
        }
    }
    fprintf(stderr, "%s:%zu: expected: %.*s\n%*sgot: %.*s\n", file, line,
            (int)strcspn(expected + start, "\n"), expected + start, 8, "",
            (int)strcspn(actual + start, "\n"), actual + start);
    return 1;
}

static int run_file(const char *file, bool rewrite)
{
    char *expected = read_file(file);
    struct world *w = play(file, expected);
    const char *actual = w->out.data ? w->out.data : "";
    int failed = 0;

    if (strcmp(expected, actual) != 0 && rewrite) {
        FILE *f = fopen(file, "w");

        if (f == NULL)
            bad_script(file, "cannot be written", "");
        fputs(actual, f);
        fclose(f);
    } else if (strcmp(expected, actual) != 0) {
        failed = report(file, expected, actual);
    }
    world_free(w);
    free(expected);
    return failed;
}

int main(int argc, char **argv)
{
    bool rewrite = argc > 1 && strcmp(argv[1], "--rewrite") == 0;
    int first = rewrite ? 2 : 1, failed = 0;

    if (first >= argc) {
        fprintf(stderr, "usage: raft_script [--rewrite] FILE...\n");
        return 2;
    }
    for (int i = first; i < argc; i++)
        failed |= run_file(argv[i], rewrite);
    return failed;
}
