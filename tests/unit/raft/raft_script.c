/* Runs a script of commands against a small cluster and compares the trace with the one in the
 * file.
 *
 *     raft_script FILE...              fails at the first line that differs
 *     raft_script --rewrite FILE...    writes the trace into the files, to be reviewed as a diff
 *
 * A file consists of comments (#), empty lines, commands (>), and the trace of each command below
 * it. Nothing happens by itself: messages, persist requests, fetches and snapshots wait for their
 * command. tests/data/raft/README.md has the commands. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "err.h"
#include "raft/config.h"
#include "script_world.h"

enum { WORDS_MAX = 16 };

_Noreturn static void bad_script(const char *file, const char *what, const char *line)
{
    fprintf(stderr, "%s: %s: %s\n", file, what, line);
    exit(2);
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

/* voters=, learners= and old= into a configuration. False: none of them is there. */
static bool config_options(const struct command *cmd, struct raft_config *ret)
{
    struct {
        const char *name;
        uint64_t *ids;
        size_t *count;
    } lists[] = { { "voters", ret->voters, &ret->voter_count },
                  { "old", ret->old_voters, &ret->old_voter_count },
                  { "learners", ret->learners, &ret->learner_count } };
    bool any = false;

    *ret = (struct raft_config){ 0 };
    for (size_t i = 0; i < KEEL_ARRAY_LEN(lists); i++) {
        const char *at = option_of(cmd, lists[i].name);

        any = any || at != NULL;
        while (at != NULL && *at != '\0' && *lists[i].count < KEEL_MEMBERS_MAX) {
            lists[i].ids[(*lists[i].count)++] = strtoull(at, (char **)&at, 10);
            at += *at == ',' ? 1 : 0;
        }
    }
    return any;
}

/* preset N [log=1,1,2] [term=] [vote=] [commit=] [base=] [stored=] [size=] [voters=1,2] [old=]
 * [learners=]: what its disk holds at the start, and the configuration as of base. */
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
    n->store.index = number_option(cmd, "base", 0);
    n->store.term = n->store.index ? n->log[n->store.index - 1].term : 0;
    n->has_config = config_options(cmd, &n->store.config);
    n->first_stored = number_option(cmd, "stored", 1);
}

/* nodes N [learners=K] [joining=K] [lease=MS] [fast=0]: starts N nodes, all connected; the last
 * ones are joining: they have no configuration, and are in nobody's. The K before them are
 * learners. */
static void cmd_nodes(struct world *w, const struct command *cmd)
{
    uint64_t learners = number_option(cmd, "learners", 0);
    uint64_t members = number_at(cmd, 1) - number_option(cmd, "joining", 0);
    struct raft_config config = { 0 };

    w->count = (size_t)number_at(cmd, 1);
    if (w->count > NODES_MAX || members > w->count || learners > members)
        bad_script(w->file, "not so many nodes", cmd->line);
    w->options.lease_us = number_option(cmd, "lease", 100) * 1000;
    w->options.fast_elections = number_option(cmd, "fast", 1) != 0;
    for (uint64_t id = 1; id <= members; id++)
        raft_config_put(&config, id, id + learners <= members);
    for (size_t i = 0; i < w->count; i++) {
        if (i < members && !w->nodes[i].has_config)
            w->nodes[i].store.config = config;
        start_node(w, &w->nodes[i]);
    }
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

/* propose-config N voters=1,2 [learners=3] [rest=TEXT]: the change begins. */
static void cmd_propose_config(struct world *w, const struct command *cmd)
{
    struct node *n = live_node_at(w, cmd, 1);
    const char *rest = option_of(cmd, "rest");
    struct raft_config target;
    uint64_t index;

    config_options(cmd, &target);
    print_result(
        w, raft_propose_config(n->r, w->now_us, &target, keel_slice_str(rest ? rest : ""), &index));
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

    crash_node(n);
}

/* release N FIRST: its log has nothing below an index any more. */
static void cmd_release(struct world *w, const struct command *cmd)
{
    release(w, live_node_at(w, cmd, 1), number_at(cmd, 2));
}

/* slow N: its snapshots wait for `snapshot` from now on, also in settle and run. */
static void cmd_slow(struct world *w, const struct command *cmd)
{
    live_node_at(w, cmd, 1)->slow = true;
}

/* snapshot FROM TO [at=INDEX]: one of FROM (of its commit index) arrives; TO begins to install it,
 * if it needs it. */
static void cmd_snapshot(struct world *w, const struct command *cmd)
{
    struct node *from = live_node_at(w, cmd, 1), *to = live_node_at(w, cmd, 2);
    struct snapshot snapshot =
        snapshot_at(from, number_option(cmd, "at", raft_commit_index(from->r)));

    bool wants = raft_wants_snapshot(to->r, snapshot.index, snapshot.term);

    if (install_begin(w, to, &snapshot) != wants)
        bad_script(w->file, "wanted is not what is installed", cmd->line);
}

static struct node *installing_node_at(struct world *w, const struct command *cmd)
{
    struct node *n = live_node_at(w, cmd, 1);

    if (n->arriving.index == 0)
        bad_script(w->file, "nothing to install", cmd->line);
    return n;
}

/* installed N: its state has been replaced. */
static void cmd_installed(struct world *w, const struct command *cmd)
{
    install_end(w, installing_node_at(w, cmd));
}

/* install-failed N: it has not. */
static void cmd_install_failed(struct world *w, const struct command *cmd)
{
    struct node *n = installing_node_at(w, cmd);

    n->arriving = (struct snapshot){ 0 };
    raft_install_failed(n->r);
    settle_node(w, n);
}

/* snapshot-sent N PEER [INDEX]: it is told so; 0: that it could not be sent. */
static void cmd_snapshot_sent(struct world *w, const struct command *cmd)
{
    snapshot_sent(w, live_node_at(w, cmd, 1), number_at(cmd, 2), number_at(cmd, 3));
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
    for (uint64_t i = n->store.index + 1; i <= raft_last_index(n->r); i++)
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
            keel_text_printf(
                &w->out,
                "  %" PRIu64 " sees %" PRIu64 "%s%s: %s match %" PRIu64 " next %" PRIu64 "%s\n",
                n->id, peers[i].id, peers[i].learner ? " (learner)" : "",
                peers[i].connected ? "" : " (closed)", states[peers[i].state], peers[i].match,
                peers[i].next,
                peers[i].learner && raft_is_caught_up(n->r, peers[i].id) ? ", has caught up" : "");
    }
}

static void show_config(struct world *w, const struct node *n)
{
    keel_text_printf(&w->out, "  %" PRIu64 " counts by %" PRIu64 ": ", n->id,
                     raft_config_index(n->r));
    print_config(&w->out, raft_config(n->r));
    keel_text_printf(&w->out, "\n");
}

static void show_state(struct world *w, const struct node *n)
{
    keel_text_printf(&w->out,
                     "  %" PRIu64 " %s term %" PRIu64 " leader %" PRIu64 " last %" PRIu64
                     " persisted %" PRIu64 " commit %" PRIu64,
                     n->id, role_name(raft_role(n->r)), raft_term(n->r), raft_leader(n->r),
                     raft_last_index(n->r), raft_persisted_index(n->r), raft_commit_index(n->r));
    if (raft_config_index(n->r) != 0)
        keel_text_printf(&w->out, " config %" PRIu64, raft_config_index(n->r));
    keel_text_printf(&w->out, "%s%s\n", raft_lease_valid(n->r, w->now_us) ? ", has the lease" : "",
                     raft_transferring(n->r) ? ", transferring" : "");
}

/* show [N] [log] [peers] [config]: state of all or of one, as of now. */
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
        show_state(w, n);
        if (has_word(cmd, "log"))
            show_log(w, n);
        if (has_word(cmd, "peers"))
            show_peers(w, n);
        if (has_word(cmd, "config"))
            show_config(w, n);
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
    { "propose-config", cmd_propose_config },
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
    { "release", cmd_release },
    { "slow", cmd_slow },
    { "snapshot", cmd_snapshot },
    { "installed", cmd_installed },
    { "install-failed", cmd_install_failed },
    { "snapshot-sent", cmd_snapshot_sent },
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
