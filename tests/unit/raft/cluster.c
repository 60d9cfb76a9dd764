/* The cluster: what must hold, the world around the nodes, and the passing of time. */
#include <string.h>

#include "check.h"
#include "cluster.h"
#include "raft/config.h"
#include "raft/quorum.h"

struct cluster_totals totals;

uint64_t below(struct cluster *c, uint64_t bound)
{
    return keel_rng_below(&c->rng, bound);
}

bool chance(struct cluster *c, uint64_t percent)
{
    return below(c, 100) < percent;
}

uint64_t clock_of(const struct cluster *c, const struct node *n)
{
    return n->offset_us + c->now_us * n->rate / 1000;
}

static size_t slot(uint64_t id)
{
    return (size_t)id - 1;
}

static uint64_t value_of(const struct raft_entry *entry)
{
    uint64_t value = 0;

    if (entry->data != NULL)
        memcpy(&value, entry->data->data, sizeof value);
    return value;
}

/* ---- what must hold ---- */

/* Log matching, by induction: an index and a term name one entry, whose predecessor has one term.
 */
static void check_entry(struct cluster *c, const struct raft_entry *entry, uint64_t prev_term)
{
    size_t i = 0;

    REQUIRE(c, entry->index < LOG_MAX);
    while (i < c->seen_count[entry->index] && c->seen[entry->index][i].term != entry->term)
        i++;
    if (i == c->seen_count[entry->index]) {
        REQUIRE(c, i < 16);
        c->seen[entry->index][i].term = entry->term;
        c->seen[entry->index][i].value = value_of(entry);
        c->seen[entry->index][i].prev_term = prev_term;
        c->seen_count[entry->index]++;
        return;
    }
    REQUIRE(c, c->seen[entry->index][i].value == value_of(entry));
    REQUIRE(c, c->seen[entry->index][i].prev_term == prev_term);
}

static bool same_entry(const struct raft_entry *a, const struct raft_entry *b)
{
    return a->kind == b->kind && keel_slice_equal(keel_buf_slice(a->data), keel_buf_slice(b->data));
}

/* One change at a time: into a joint configuration of the voters before, or to other learners; and
 * out of it. */
static void check_config(struct cluster *c, const struct raft_entry *entry)
{
    struct raft_config before, now, expected;
    struct keel_slice rest;
    uint64_t index;

    if (entry->kind != RAFT_ENTRY_CONFIG)
        return;
    before = config_at(c, entry->index - 1, &index);
    REQUIRE(c, raft_config_decode(keel_buf_slice(entry->data), &now, &rest) == 0);
    if (raft_config_is_joint(&before)) {
        expected = raft_config_leave(&before);
    } else {
        struct raft_config target = now;

        if (raft_config_is_joint(&now))
            target = raft_config_leave(&now);
        expected = raft_config_enter(&before, &target);
    }
    REQUIRE(c, raft_config_equal(&now, &expected));
    totals.configs++;
    totals.joints += raft_config_is_joint(&now) ? 1 : 0;
}

static void check_commits(struct cluster *c, struct node *n)
{
    uint64_t commit = raft_commit_index(n->r);

    while (n->checked < commit) {
        const struct raft_entry *entry = raft_entry(n->r, ++n->checked);

        REQUIRE(c, entry->index < LOG_MAX);
        if (entry->index > c->committed_last) {
            c->committed_last = entry->index;
            c->committed[entry->index] = *entry;
            c->committed_in[entry->index] = raft_term(n->r);
            if (entry->data != NULL)
                keel_buf_ref(entry->data);
            check_config(c, entry);
            totals.commits++;
        }
        REQUIRE(c, c->committed[entry->index].term == entry->term);
        REQUIRE(c, same_entry(&c->committed[entry->index], entry));
    }
}

/* What was committed in an earlier term is in a new leader's log, in memory or on its disk below
 * that. (Late votes can make a leader of a term that is over.) */
static void check_completeness(struct cluster *c, struct node *n)
{
    for (uint64_t i = 1; i <= c->committed_last; i++) {
        if (c->committed_in[i] >= raft_term(n->r))
            continue;
        REQUIRE(c, i <= raft_last_index(n->r));
        if (i > n->checked)
            REQUIRE(c, raft_entry(n->r, i)->term == c->committed[i].term);
    }
}

static void check_leader(struct cluster *c, struct node *n)
{
    uint64_t term = raft_term(n->r);

    if (raft_role(n->r) != RAFT_LEADER)
        return;
    REQUIRE(c, term < TERMS_MAX);
    REQUIRE(c, c->leader_of[term] == 0 || c->leader_of[term] == n->id);
    REQUIRE(c, n->hard.term == term && n->hard.vote == n->id);
    if (c->leader_of[term] == 0) {
        totals.leaders++;
        check_completeness(c, n);
    }
    c->leader_of[term] = n->id;
}

/* What leaves is covered by the disk. */
static void check_promise(struct cluster *c, const struct node *n, const struct raft_message *msg)
{
    if (msg->type == RAFT_VOTE_REQUEST && !msg->u.vote_request.pre)
        REQUIRE(c, n->hard.term == msg->term && n->hard.vote == n->id);
    if (msg->type == RAFT_VOTE_REPLY && !msg->u.vote_reply.pre && msg->u.vote_reply.granted)
        REQUIRE(c, n->hard.term == msg->term && n->hard.vote == msg->to);
    if (msg->type == RAFT_APPEND_REPLY && !msg->u.append_reply.rejected) {
        REQUIRE(c, n->hard.term == msg->term);
        REQUIRE(c, msg->u.append_reply.index <= n->disk_last);
    }
}

/* Nothing that was committed when a read began may be missing from its answer. */
static void check_read(struct cluster *c, const struct node *n, const struct raft_read *answer)
{
    struct read *read = &c->reads[answer->context];

    REQUIRE(c, answer->context < c->read_count);
    if (!read->open || read->node != slot(n->id))
        return;
    REQUIRE(c, answer->index >= read->at_least);
    read->open = false;
    if (raft_role(n->r) == RAFT_LEADER && raft_lease_valid(n->r, clock_of(c, n)))
        totals.lease_reads++;
    else
        totals.round_reads++;
}

/* ---- the world ---- */

static struct raft_message *copy_message(const struct raft_message *msg)
{
    struct raft_message *copy = raft_message_new(msg->type, msg->from, msg->to, msg->term);

    copy->u = msg->u;
    if (msg->type == RAFT_APPEND && msg->u.append.count > 0)
        copy->u.append.entries = raft_entries_copy(msg->u.append.entries, msg->u.append.count);
    return copy;
}

static void send(struct cluster *c, struct raft_message *msg_take)
{
    size_t from = slot(msg_take->from), to = slot(msg_take->to);
    uint64_t delay = c->faults ? (chance(c, 5) ? 60000 : 3000) : 1000;
    uint64_t due_us = c->now_us + (c->delay_us ? c->delay_us : below(c, delay));

    if (!c->link[from][to] || c->mute[from][to] || (c->faults && chance(c, 3)) ||
        c->flight_count + 1 >= FLIGHT_MAX) {
        raft_message_free(msg_take);
        return;
    }
    if (c->faults && chance(c, 3))
        c->flights[c->flight_count++] =
            (struct flight){ copy_message(msg_take), c->now_us + below(c, 60000) };
    c->flights[c->flight_count++] = (struct flight){ msg_take, due_us };
}

static void submit(struct cluster *c, struct node *n, const struct raft_ready *ready)
{
    struct request *request = &n->requests[n->request_count++];

    KEEL_ASSERT(n->request_count < KEEL_ARRAY_LEN(n->requests));
    *request = (struct request){ .mark = ready->mark,
                                 .reset_index = ready->reset_index,
                                 .reset_term = ready->reset_term,
                                 .has_hard = ready->hard_state != NULL };
    if (ready->hard_state != NULL)
        request->hard = *ready->hard_state;
    request->entries = raft_entries_copy(ready->entries, ready->entry_count);
    request->count = ready->entry_count;
    request->due_us =
        c->now_us + (c->disk_us ? c->disk_us : below(c, chance(c, 5) ? 150000 : 5000));
}

static void reset_disk(struct node *n, uint64_t index, uint64_t term)
{
    for (uint64_t i = 0; i < n->disk_last; i++)
        keel_buf_free(n->disk[i].data);
    memset(n->disk, 0, sizeof n->disk);
    n->disk[index - 1] = (struct raft_entry){ .term = term, .index = index };
    n->disk_last = index;
    n->first_stored = index + 1;
}

static void write_request(struct cluster *c, struct node *n, struct request *request)
{
    if (request->reset_index != 0)
        reset_disk(n, request->reset_index, request->reset_term);
    if (request->has_hard)
        n->hard = request->hard;
    if (request->count > 0 && request->entries[0].index <= n->disk_last) {
        totals.cuts++;
        while (n->disk_last >= request->entries[0].index)
            keel_buf_free(n->disk[--n->disk_last].data);
    }
    for (size_t i = 0; i < request->count; i++) {
        struct raft_entry *entry = &request->entries[i];

        REQUIRE(c, entry->index == n->disk_last + 1);
        n->disk[n->disk_last++] = *entry;
        entry->data = NULL;
    }
    raft_entries_free(request->entries, request->count);
    request->entries = NULL;
}

static void fetch(struct cluster *c, struct node *n, const struct raft_fetch *fetch)
{
    uint64_t prev_term = fetch->first > 1 ? n->disk[fetch->first - 2].term : 0;
    size_t count = (size_t)(n->disk_last + 1 - fetch->first);

    REQUIRE(c, fetch->first >= n->first_stored);
    totals.fetches++;
    if (c->faults && chance(c, 10))
        count = 0;
    count = count > 7 ? 7 : count;
    raft_on_fetched(n->r, clock_of(c, n), fetch->peer, fetch->first, prev_term,
                    &n->disk[fetch->first - 1], count);
}

static void check_entries(struct cluster *c, const struct node *n, const struct raft_ready *ready)
{
    for (size_t i = 0; i < ready->entry_count; i++) {
        uint64_t index = ready->entries[i].index;
        uint64_t prev_term = i > 0 ? ready->entries[i - 1].term : 0;

        if (i == 0 && index > n->checked + 1)
            prev_term = raft_entry(n->r, index - 1)->term;
        else if (i == 0 && index > 1)
            prev_term = c->committed[index - 1].term;
        check_entry(c, &ready->entries[i], prev_term);
    }
}

uint64_t durable_applied(const struct cluster *c, const struct node *n)
{
    uint64_t index = n->checked < n->disk_last ? n->checked : n->disk_last;

    while (index > n->store_index && n->disk[index - 1].term != c->committed[index].term)
        index--;
    return index > n->store_index ? index : n->store_index;
}

static void ship_for(struct cluster *c, struct node *n, uint64_t peer)
{
    ship(c, slot(n->id), slot(peer), durable_applied(c, n));
}

void settle(struct cluster *c, struct node *n)
{
    struct raft_fetch fetches[NODES_MAX];
    struct raft_ready ready;

    while (raft_ready(n->r, clock_of(c, n), &ready)) {
        size_t fetch_count = ready.fetch_count;

        check_entries(c, n, &ready);
        if (ready.persist)
            submit(c, n, &ready);
        for (size_t i = 0; i < ready.message_count; i++) {
            check_promise(c, n, ready.messages[i]);
            send(c, ready.messages[i]);
        }
        for (size_t i = 0; i < ready.read_count; i++)
            check_read(c, n, &ready.reads[i]);
        for (size_t i = 0; i < ready.snapshot_count; i++)
            ship_for(c, n, ready.snapshots[i]);
        KEEL_ASSERT(fetch_count <= NODES_MAX);
        if (fetch_count > 0)
            memcpy(fetches, ready.fetches, fetch_count * sizeof *fetches);
        raft_accept(n->r);
        for (size_t i = 0; i < fetch_count; i++)
            fetch(c, n, &fetches[i]);
    }
    check_commits(c, n);
    check_leader(c, n);
    raft_on_applied(n->r, raft_commit_index(n->r));
}

struct raft_config config_at(const struct cluster *c, uint64_t index, uint64_t *ret_index)
{
    struct raft_config config = c->config;
    struct keel_slice rest;

    KEEL_ASSERT(index <= c->committed_last);
    while (index > 0 && c->committed[index].kind != RAFT_ENTRY_CONFIG)
        index--;
    if (index > 0)
        KEEL_ASSERT(raft_config_decode(keel_buf_slice(c->committed[index].data), &config, &rest) ==
                    0);
    *ret_index = index;
    return config;
}

/* As the log's recovery does: a store that is ahead of the log, or of another one, has been
 * installed. Its term is as durable as it is. */
static void recover(struct cluster *c, struct node *n)
{
    uint64_t term = n->store_index ? c->committed[n->store_index].term : 0;

    if (n->store_index > n->disk_last ||
        (n->store_index > 0 && n->disk[n->store_index - 1].term != term))
        reset_disk(n, n->store_index, term);
    if (n->hard.term < term)
        n->hard = (struct raft_hard_state){ .term = term };
}

static void start(struct cluster *c, struct node *n)
{
    struct raft_options options;
    uint64_t base;

    recover(c, n);
    base = n->store_index + below(c, durable_applied(c, n) - n->store_index + 1);
    raft_options_init(&options);
    options.id = n->id;
    if (base > 0 || raft_config_is_member(&c->config, n->id))
        options.config = config_at(c, base, &options.config_index);
    options.hard_state = n->hard;
    options.base_index = base;
    options.base_term = base ? c->committed[base].term : 0;
    options.first_stored_index = n->first_stored;
    options.entries = &n->disk[base];
    options.entry_count = (size_t)(n->disk_last - base);
    options.seed = keel_rng_next(&c->rng);
    options.lease_us = c->lease_us;
    options.tail_entries = below(c, 64);
    n->checked = base;
    n->lives++;
    n->r = raft_new(&options, clock_of(c, n));
    for (size_t i = 0; i < c->count; i++)
        n->notices[i] =
            (struct notice){ true, c->link[slot(n->id)][i], c->now_us + below(c, 5000) };
}

static void drop_flights(struct cluster *c, size_t a, size_t b)
{
    size_t kept = 0;

    for (size_t i = 0; i < c->flight_count; i++) {
        size_t from = slot(c->flights[i].msg->from), to = slot(c->flights[i].msg->to);

        if ((from == a && to == b) || (from == b && to == a))
            raft_message_free(c->flights[i].msg);
        else
            c->flights[kept++] = c->flights[i];
    }
    c->flight_count = kept;
}

void set_link(struct cluster *c, size_t a, size_t b, bool up)
{
    if (c->link[a][b] == up)
        return;
    c->link[a][b] = c->link[b][a] = up;
    if (!up)
        drop_flights(c, a, b);
    c->nodes[a].notices[b] = (struct notice){ true, up, c->now_us + below(c, 8000) };
    c->nodes[b].notices[a] = (struct notice){ true, up, c->now_us + below(c, 8000) };
}

/* Of what was under way, some first part had reached the disk. */
void crash(struct cluster *c, struct node *n)
{
    size_t durable = below(c, n->request_count + 1);

    for (size_t i = 0; i < n->request_count; i++) {
        if (i < durable)
            write_request(c, n, &n->requests[i]);
        else
            raft_entries_free(n->requests[i].entries, n->requests[i].count);
    }
    n->request_count = 0;
    if (n->installing != 0 && chance(c, 50)) {
        n->store_index = n->installing;
        totals.cut_installs++;
    }
    n->installing = 0;
    n->r = raft_free(n->r);
    n->restart_us = c->now_us + below(c, 300000);
    for (size_t i = 0; i < c->count; i++) {
        if (i != slot(n->id))
            set_link(c, slot(n->id), i, false);
    }
    totals.restarts++;
}

/* ---- snapshots ---- */

void ship(struct cluster *c, size_t from, size_t to, uint64_t index)
{
    if (c->shipment_count == SHIPMENTS_MAX)
        return;
    c->shipments[c->shipment_count++] = (struct shipment){ .from = from,
                                                           .to = to,
                                                           .from_lives = c->nodes[from].lives,
                                                           .to_lives = c->nodes[to].lives,
                                                           .index = index,
                                                           .due_us = c->now_us + below(c, 50000) };
}

/* The sender is told how it ended. */
static void shipped(struct cluster *c, const struct shipment *s, uint64_t index)
{
    struct node *n = &c->nodes[s->from];

    if (n->r == NULL || n->lives != s->from_lives)
        return;
    raft_on_snapshot_sent(n->r, clock_of(c, n), s->to + 1, index);
    settle(c, n);
}

static void installed(struct cluster *c, struct node *n)
{
    uint64_t config_index;
    struct raft_config config = config_at(c, n->installing, &config_index);

    n->store_index = n->checked = n->installing;
    n->installing = 0;
    raft_on_installed(n->r, clock_of(c, n), n->store_index, c->committed[n->store_index].term,
                      &config, config_index);
    totals.installs++;
    settle(c, n);
}

/* True: the shipment is over. */
static bool advance_shipment(struct cluster *c, struct shipment *s)
{
    struct node *n = &c->nodes[s->to];
    bool lost = n->r == NULL || n->lives != s->to_lives;

    if (lost || (!s->arrived && (!c->link[s->from][s->to] || (c->faults && chance(c, 20))))) {
        shipped(c, s, 0);
        return true;
    }
    if (!s->arrived) {
        if (!raft_install_begin(n->r, clock_of(c, n), s->index, c->committed[s->index].term)) {
            settle(c, n);
            shipped(c, s, n->installing ? 0 : s->index);
            return true;
        }
        n->installing = s->index;
        s->arrived = true;
        s->due_us = c->now_us + below(c, 50000);
        settle(c, n);
        return false;
    }
    if (c->faults && chance(c, 10)) {
        n->installing = 0;
        raft_install_failed(n->r);
        settle(c, n);
        shipped(c, s, 0);
    } else {
        installed(c, n);
        shipped(c, s, s->index);
    }
    return true;
}

static void run_shipments(struct cluster *c)
{
    for (size_t i = 0; i < c->shipment_count;) {
        struct shipment s = c->shipments[i];

        if (s.due_us > c->now_us) {
            i++;
            continue;
        }
        c->shipments[i] = c->shipments[--c->shipment_count];
        if (!advance_shipment(c, &s))
            c->shipments[c->shipment_count++] = s;
    }
}

/* ---- time ---- */

static void run_notices(struct cluster *c, struct node *n)
{
    for (size_t i = 0; i < c->count; i++) {
        struct notice *notice = &n->notices[i];

        if (!notice->pending || notice->due_us > c->now_us || i == slot(n->id))
            continue;
        notice->pending = false;
        if (notice->up)
            raft_on_connected(n->r, clock_of(c, n), i + 1);
        else
            raft_on_disconnected(n->r, clock_of(c, n), i + 1);
        settle(c, n);
    }
}

static void run_disk(struct cluster *c, struct node *n)
{
    while (n->request_count > 0 && n->requests[0].due_us <= c->now_us) {
        size_t done = below(c, n->request_count) + 1; /* one fsync for several */
        struct raft_mark mark = n->requests[done - 1].mark;

        for (size_t i = 0; i < done; i++)
            write_request(c, n, &n->requests[i]);
        n->request_count -= done;
        memmove(n->requests, n->requests + done, n->request_count * sizeof *n->requests);
        raft_on_persisted(n->r, clock_of(c, n), mark);
        settle(c, n);
    }
}

static void run_flights(struct cluster *c)
{
    for (size_t i = 0; i < c->flight_count;) {
        struct raft_message *msg = c->flights[i].msg;
        struct node *n = &c->nodes[slot(msg->to)];

        if (c->flights[i].due_us > c->now_us) {
            i++;
            continue;
        }
        c->flights[i] = c->flights[--c->flight_count];
        if (n->r != NULL) {
            raft_step(n->r, clock_of(c, n), msg);
            settle(c, n);
        }
        raft_message_free(msg);
    }
}

static void run_node(struct cluster *c, struct node *n)
{
    if (n->r == NULL) {
        if (c->keep_down || (n->restart_us > c->now_us && c->faults))
            return;
        start(c, n);
        for (size_t i = 0; i < c->count; i++) {
            if (i != slot(n->id) && c->nodes[i].r != NULL)
                set_link(c, slot(n->id), i, true);
        }
    }
    run_notices(c, n);
    run_disk(c, n);
    if (raft_deadline(n->r) <= clock_of(c, n)) {
        raft_tick(n->r, clock_of(c, n));
        settle(c, n);
    }
}

void step(struct cluster *c)
{
    c->now_us += c->step_us ? c->step_us : below(c, 2500);
    for (size_t i = 0; i < c->count; i++)
        run_node(c, &c->nodes[i]);
    run_flights(c);
    run_shipments(c);
    if (c->faults)
        act(c);
}

struct node *leader(struct cluster *c)
{
    for (size_t i = 0; i < c->count; i++) {
        if (c->nodes[i].r != NULL && raft_role(c->nodes[i].r) == RAFT_LEADER)
            return &c->nodes[i];
    }
    return NULL;
}

/* One leader, and every member of its configuration, which is not joint, has all that it has. */
static bool agreed(struct cluster *c)
{
    const struct node *first = leader(c);
    size_t leaders = 0;

    if (first == NULL || raft_config_is_joint(raft_config(first->r)))
        return false;
    for (size_t i = 0; i < c->count; i++) {
        const struct node *n = &c->nodes[i];

        if (n->r == NULL)
            return false;
        leaders += raft_role(n->r) == RAFT_LEADER ? 1 : 0;
        if (raft_is_member(first->r, n->id) &&
            (raft_commit_index(n->r) != raft_last_index(first->r) ||
             !raft_config_equal(raft_config(n->r), raft_config(first->r))))
            return false;
    }
    return leaders == 1;
}

void heal(struct cluster *c)
{
    size_t steps = 0;

    c->faults = false;
    memset(c->mute, 0, sizeof c->mute);
    for (size_t i = 0; i < c->count; i++)
        run_node(c, &c->nodes[i]);
    for (size_t a = 0; a < c->count; a++) {
        for (size_t b = a + 1; b < c->count; b++)
            set_link(c, a, b, true);
    }
    while (steps < 3000 || !agreed(c)) {
        REQUIRE(c, steps < 20000);
        step(c);
        steps++;
    }
}

void cluster_free(struct cluster *c)
{
    for (size_t i = 0; i < c->flight_count; i++)
        raft_message_free(c->flights[i].msg);
    for (size_t i = 0; i < c->count; i++) {
        struct node *n = &c->nodes[i];

        raft_free(n->r);
        for (size_t k = 0; k < n->request_count; k++)
            raft_entries_free(n->requests[k].entries, n->requests[k].count);
        for (uint64_t k = 0; k < n->disk_last; k++)
            keel_buf_free(n->disk[k].data);
    }
    for (uint64_t i = 1; i <= c->committed_last; i++)
        keel_buf_free(c->committed[i].data);
    free(c);
}

/* Every fourth cluster of five begins in the middle of a change from nodes 1 to 3 to nodes 3 to 5.
 */
static struct raft_config first_config(uint64_t seed, size_t voters)
{
    struct raft_config config = { 0 };
    bool joint = voters == 5 && seed % 4 == 1;

    for (size_t i = joint ? 2 : 0; i < voters; i++)
        config.voters[config.voter_count++] = i + 1;
    for (size_t i = 0; joint && i < 3; i++)
        config.old_voters[config.old_voter_count++] = i + 1;
    return config;
}

struct cluster *cluster_new(uint64_t seed, size_t voters, size_t others)
{
    struct cluster *c = keel_calloc(1, sizeof *c);

    keel_rng_seed(&c->rng, seed);
    c->seed = seed;
    c->count = voters + others;
    c->config = first_config(seed, voters);
    c->faults = true;
    c->now_us = 1000000;
    /* One seed in four has no leases; the clocks' rates differ by up to one percent. */
    c->lease_us = seed % 4 == 3 ? 0 : 100000;
    for (size_t i = 0; i < c->count; i++) {
        c->nodes[i].id = i + 1;
        c->nodes[i].first_stored = 1;
        c->nodes[i].offset_us = below(c, 1000000000);
        c->nodes[i].rate = 1000 + below(c, 10);
    }
    return c;
}
