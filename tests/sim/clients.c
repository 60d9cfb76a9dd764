/* The workload. Each client does one operation after the other, through whatever node it is at.
 * Each value is unique: eight bytes, so that every committed write can be told from every other. */
#include <inttypes.h>
#include <stdlib.h>

#include "bytes.h"
#include "check.h"
#include "checks.h"
#include "err.h"

enum client_op {
    OP_WRITE,
    OP_APPEND,
    OP_CREATE,
    OP_REMOVE,
    OP_RENAME,
    OP_READ,
    OP_LEASE,
    OP_KINDS
};

struct sim_client {
    struct replica_call call;
    struct sim *sim;
    unsigned slot; /* its own */
    unsigned node;
    bool busy;
    bool insists; /* waits for a node that is paused */
    enum client_op op;
    uint64_t value;          /* that it writes; 0: none */
    uint64_t floor_revision; /* of operations that had completed when this one began */
    uint64_t sent_us;        /* on the node's clock */
    unsigned file;
    uint64_t lease; /* held, at lease_node; 0: none */
    unsigned lease_node;
    uint64_t lease_epoch;
};

static struct sim_node *node_at(struct sim_client *client)
{
    return &client->sim->nodes[client->node];
}

static void next_later(struct sim_client *client)
{
    struct sim *sim = client->sim;

    client->busy = false;
    sim_event_at(sim, sim->now_us + keel_rng_below(&sim->client_rng, sim->shape->think_max_us),
                 EVENT_CLIENT, client->slot);
}

static void finished(struct sim_client *client)
{
    client->sim->ops_done++;
    next_later(client);
}

/* ---- commands ---- */

struct op_names {
    char name[16], other[16];
};

static void file_name(char *to, unsigned file)
{
    snprintf(to, 16, "f%u", file);
}

static ProtobufCBinaryData name_data(char *name)
{
    return (ProtobufCBinaryData){ strlen(name), (uint8_t *)name };
}

static struct mvcc_key *file_key(struct sim_node *node, unsigned file)
{
    char name[16];

    file_name(name, file);
    struct mvcc_key *key = mvcc_child(node->mvcc, mvcc_root(node->mvcc), keel_slice_str(name));

    return key != NULL && mvcc_live_ino(key) != 0 ? key : NULL;
}

static void propose(struct sim_client *client, Keel__Command *head, uint64_t value)
{
    uint8_t bytes[8];

    client->value = value;
    put_le64(bytes, SIM_VALUE_TAG | value);
    replica_propose(node_at(client)->replica, &client->call, head,
                    keel_slice_of(bytes, value != 0 ? 8 : 0));
}

static void propose_create(struct sim_client *client, char *name, uint64_t ino, bool exclusive,
                           uint64_t ttl_ms)
{
    Keel__Command head = KEEL__COMMAND__INIT;
    Keel__Create create = KEEL__CREATE__INIT;
    Keel__Bind bind = KEEL__BIND__INIT;

    create.parent = MVCC_ROOT_INO;
    create.name = name_data(name);
    create.kind = KEEL__KIND__FILE;
    create.mode = 0644;
    create.ino = ino;
    create.exclusive = exclusive;
    create.write = true;
    create.truncate = true;
    bind.ttl_ms = ttl_ms;
    if (ttl_ms != 0)
        create.bind = &bind;
    head.op_case = KEEL__COMMAND__OP_CREATE;
    head.create = &create;
    propose(client, &head, ++client->sim->next_value);
}

static void propose_write(struct sim_client *client, uint64_t ino, bool append)
{
    Keel__Command head = KEEL__COMMAND__INIT;
    Keel__Write write = KEEL__WRITE__INIT;

    write.ino = ino;
    write.append = append;
    write.replace = !append;
    head.op_case = KEEL__COMMAND__OP_WRITE;
    head.write = &write;
    propose(client, &head, ++client->sim->next_value);
}

static void propose_remove(struct sim_client *client, char *name)
{
    Keel__Command head = KEEL__COMMAND__INIT;
    Keel__Remove remove = KEEL__REMOVE__INIT;

    remove.parent = MVCC_ROOT_INO;
    remove.name = name_data(name);
    head.op_case = KEEL__COMMAND__OP_REMOVE;
    head.remove = &remove;
    propose(client, &head, 0);
}

static void propose_rename(struct sim_client *client, char *name, char *other)
{
    Keel__Command head = KEEL__COMMAND__INIT;
    Keel__Rename rename = KEEL__RENAME__INIT;

    rename.parent = rename.new_parent = MVCC_ROOT_INO;
    rename.name = name_data(name);
    rename.new_name = name_data(other);
    head.op_case = KEEL__COMMAND__OP_RENAME;
    head.rename = &rename;
    propose(client, &head, 0);
}

/* ---- results ---- */

static void read_now(struct sim_client *client)
{
    struct sim *sim = client->sim;
    struct sim_node *node = node_at(client);
    uint64_t revision = mvcc_revision(node->mvcc), expected;
    struct mvcc_key *key = file_key(node, client->file);
    struct mvcc_record record;
    struct keel_slice bytes;

    if (revision < client->floor_revision)
        check_fail(sim,
                   "client %u read at n%u at revision %" PRIu64 " after an operation at %" PRIu64
                   " had completed",
                   client->slot, client->node, revision, client->floor_revision);
    if (key != NULL) {
        if (mvcc_get(node->mvcc, key, 0, &record) != 0 ||
            mvcc_read(node->mvcc, &record.content, &bytes) != 0)
            check_fail(sim, "client %u: a live file cannot be read", client->slot);
        else if (!check_value_at(sim, record.ino, revision, &expected) ||
                 expected != keel_hash64(bytes))
            check_fail(sim, "client %u read a value that revision %" PRIu64 " does not have",
                       client->slot, revision);
    }
    mvcc_read_end(node->mvcc);
    if (revision > sim->floor_revision)
        sim->floor_revision = revision;
    sim->ops_ok++;
}

static void wrote(struct sim_client *client, const struct command_result *result)
{
    struct sim *sim = client->sim;

    sim->ops_ok++;
    if (result->revision == 0)
        return; /* changed nothing: a rename onto itself */
    if (result->revision <= client->floor_revision)
        check_fail(sim, "client %u: a write got revision %" PRIu64 ", not above %" PRIu64,
                   client->slot, result->revision, client->floor_revision);
    if (client->value != 0)
        check_wrote(sim, result->revision, client->value);
    if (result->revision > sim->floor_revision)
        sim->floor_revision = result->revision;
    if (client->op == OP_LEASE) {
        client->lease = result->lease;
        client->lease_node = client->node;
        client->lease_epoch = node_at(client)->epoch;
        replica_lease_keep(node_at(client)->replica, result->lease, client->sent_us);
    }
}

/* … and not only because there has been no leader for a while. */
static bool has_timed_out(struct sim_client *client)
{
    return sim_node_clock(node_at(client)) - client->sent_us >=
           client->sim->plan.request_timeout_us;
}

static void on_done(struct replica_call *call, int err, const struct command_result *result)
{
    struct sim_client *client = KEEL_CONTAINER_OF(call, struct sim_client, call);

    if (err == KEEL_E_CLOSED)
        return; /* its node went down: clients_node_down sees to it */
    sim_trace(client->sim, "c%u op %d at n%u: %s", client->slot, (int)client->op, client->node,
              keel_strerror(err));
    if (err == 0 && client->op == OP_READ)
        read_now(client);
    else if (err == 0)
        wrote(client, result);
    else if (err == KEEL_E_NOSESSION || err == KEEL_E_OUTOFORDER || err == KEEL_E_MALFORMED)
        check_fail(client->sim, "client %u was told %s", client->slot, keel_strerror(err));
    else if (err == KEEL_E_TIMEDOUT && client->value != 0 && has_timed_out(client))
        check_gave_up(client->sim, client->value);
    finished(client);
}

/* ---- choosing ---- */

static void begin_read(struct sim_client *client)
{
    int state = replica_barrier(node_at(client)->replica, &client->call);

    if (state == 1)
        on_done(&client->call, 0, NULL);
    else if (state < 0)
        on_done(&client->call, state, NULL);
}

static void begin_create(struct sim_client *client, char *name, bool exclusive, uint64_t ttl_ms)
{
    uint64_t ino = replica_new_ino(node_at(client)->replica);

    if (ino == 0)
        finished(client); /* no session yet */
    else
        propose_create(client, name, ino, exclusive, ttl_ms);
}

/* Short ones leave the least to clocks and delays. */
static uint64_t lease_ttl_ms(struct sim *sim)
{
    uint64_t more = sim_chance(&sim->client_rng, 500) ? 50 : 2000;

    return 1000 + keel_rng_below(&sim->client_rng, more);
}

static void begin(struct sim_client *client)
{
    struct sim *sim = client->sim;
    struct mvcc_key *key = file_key(node_at(client), client->file);
    char name[16], other[16];

    file_name(name, client->file);
    file_name(other, (unsigned)keel_rng_below(&sim->client_rng, SIM_FILES));
    switch (client->op) {
    case OP_WRITE:
    case OP_APPEND:
        if (key == NULL)
            begin_create(client, name, false, 0);
        else
            propose_write(client, mvcc_live_ino(key), client->op == OP_APPEND);
        break;
    case OP_CREATE:
        begin_create(client, name, true, 0);
        break;
    case OP_REMOVE:
        propose_remove(client, name);
        break;
    case OP_RENAME:
        propose_rename(client, name, other);
        break;
    case OP_LEASE:
        snprintf(name, sizeof name, "lease%u", client->slot);
        begin_create(client, name, true, lease_ttl_ms(sim));
        break;
    case OP_READ:
    case OP_KINDS:
        begin_read(client);
        break;
    }
}

static void release(struct sim_client *client)
{
    struct sim_node *node = &client->sim->nodes[client->lease_node];

    if (client->lease != 0 && node->up && node->epoch == client->lease_epoch)
        replica_lease_release(node->replica, client->lease);
    client->lease = 0;
}

/* Often one that leads, or did: it has something to lose. */
static unsigned choose_node(struct sim *sim)
{
    unsigned roll = (unsigned)keel_rng_below(&sim->client_rng, 1000);

    if (roll < 300)
        return roll < 150 ? sim->last_leader : sim->former_leader;
    for (unsigned tries = 0; tries < 3; tries++) {
        unsigned slot = (unsigned)keel_rng_below(&sim->client_rng, sim->plan.slots);

        if (sim->nodes[slot].up)
            return slot;
    }
    return sim->last_leader;
}

/* A request that waited while its node did not run is the first that it sees afterwards. */
static bool is_ready(struct sim_client *client)
{
    const struct sim_node *node = node_at(client);

    return node->up && node->replica != NULL &&
           node->paused_until_us <= client->sim->now_us + client->insists;
}

static bool wait_for_node(struct sim_client *client)
{
    struct sim *sim = client->sim;
    const struct sim_node *node = node_at(client);

    if (client->insists || !node->up || node->replica == NULL || sim->calm ||
        !sim_chance(&sim->client_rng, 500))
        return false;
    client->insists = true;
    sim_event_at(sim, node->paused_until_us - 1, EVENT_CLIENT, client->slot);
    return true;
}

void clients_event(struct sim *sim, unsigned slot)
{
    static const unsigned weights[OP_KINDS] = { 30, 20, 8, 7, 7, 45, 6 };
    struct sim_client *client = &sim->clients[slot];
    unsigned roll = (unsigned)keel_rng_below(&sim->client_rng, 123), op = 0;

    if (client->busy || sim->ops_started >= sim->shape->ops)
        return;
    client->node = client->insists ? client->node : choose_node(sim);
    if (!is_ready(client) && wait_for_node(client))
        return;
    if (!is_ready(client)) {
        client->insists = false;
        next_later(client);
        return;
    }
    for (; roll >= weights[op]; op++)
        roll -= weights[op];
    if (sim_chance(&sim->client_rng, sim->shape->leases))
        op = OP_LEASE;
    if (client->lease != 0 && sim_chance(&sim->client_rng, 200))
        release(client);
    if (op == OP_LEASE && client->lease != 0)
        op = OP_READ;
    sim->ops_started++;
    client->busy = true;
    client->insists = false;
    client->value = 0;
    client->op = (enum client_op)op;
    client->file = (unsigned)keel_rng_below(&sim->client_rng, SIM_FILES);
    client->floor_revision = sim->floor_revision;
    client->sent_us = sim_node_clock(node_at(client));
    begin(client);
    sim_node_settle(node_at(client));
}

void clients_node_down(struct sim *sim, unsigned slot)
{
    for (unsigned i = 0; i < sim->shape->clients; i++) {
        struct sim_client *client = &sim->clients[i];

        if (client->lease != 0 && client->lease_node == slot)
            client->lease = 0;
        if (client->busy && client->node == slot) {
            sim_trace(sim, "c%u op %d at n%u: unknown", i, (int)client->op, slot);
            finished(client);
        }
    }
}

/* ---- leases ---- */

void clients_lease_lost(struct sim *sim, unsigned slot, uint64_t lease)
{
    for (unsigned i = 0; i < sim->shape->clients; i++) {
        struct sim_client *client = &sim->clients[i];

        if (client->lease == lease && client->lease_node == slot) {
            sim_trace(sim, "c%u loses lease %" PRIu64, i, lease);
            release(client);
        }
    }
}

/* The first node to apply an expiry must not be earlier than the holder's own view. */
void clients_changed(struct sim *sim, unsigned slot, const struct keel_change *change)
{
    if (change->kind != CHANGE_REMOVE || change->lease == 0)
        return;
    for (unsigned i = 0; i < sim->shape->clients; i++) {
        struct sim_client *client = &sim->clients[i];
        struct sim_node *holder = &sim->nodes[client->lease_node];

        if (client->lease != change->lease || !holder->up ||
            holder->paused_until_us > sim->now_us || client->lease_node == slot)
            continue;
        if (!replica_lease_is_lost(holder->replica, client->lease))
            check_fail(sim, "lease %" PRIu64 " was given away while n%u still held it",
                       change->lease, client->lease_node);
    }
}

void clients_start(struct sim *sim)
{
    sim->clients = keel_calloc(sim->shape->clients, sizeof *sim->clients);
    for (unsigned i = 0; i < sim->shape->clients; i++) {
        struct sim_client *client = &sim->clients[i];

        client->call.done = on_done;
        client->sim = sim;
        client->slot = i;
        next_later(client);
    }
}

bool clients_done(const struct sim *sim)
{
    return sim->ops_done >= sim->shape->ops;
}

void clients_free(struct sim *sim)
{
    free(sim->clients);
    sim->clients = NULL;
}
