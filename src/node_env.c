/* The world of a replica on a real machine: clocks, the log thread, the store thread, peers, the
 * mount. Its snapshots are in node_snapshot.c. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <systemd/sd-daemon.h>
#include <time.h>

#include "check.h"
#include "command.h"
#include "err.h"
#include "log.h"
#include "node_internal.h"

enum {
    WAL_IDLE_MS = 20,         /* without anything to write: the log may be tidied */
    WAL_STEP_BYTES = 1 << 20, /* written, before another step is filled ahead under load */
};

static struct node *node_of(struct keel_env *env)
{
    return KEEL_CONTAINER_OF(env, struct node, env);
}

uint64_t node_now_us(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_BOOTTIME, &ts);
    return (uint64_t)ts.tv_sec * 1000000 + (uint64_t)ts.tv_nsec / 1000;
}

static uint64_t env_now_us(struct keel_env *env)
{
    (void)env;
    return node_now_us();
}

static int64_t env_wall_ns(struct keel_env *env)
{
    struct timespec ts;

    (void)env;
    clock_gettime(CLOCK_REALTIME, &ts);
    return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

static void env_send(struct keel_env *env, uint64_t to, struct keel_message *msg_take)
{
    struct node *node = node_of(env);

    if (node->peers != NULL)
        peer_send(node->peers, to, msg_take);
    else
        keel_message_free(msg_take);
}

/* ---- the log thread ---- */

enum wal_verb { WAL_APPEND, WAL_READ, WAL_LET_GO };

struct wal_work {
    struct work work;
    enum wal_verb verb;
    struct wal_batch *batch; /* WAL_APPEND */
    uint64_t peer, prev_term;
    uint64_t first; /* WAL_READ; WAL_LET_GO: of the log afterwards */
    uint64_t index; /* WAL_LET_GO */
    size_t max_bytes;
    struct raft_entry *entries;
    size_t count;
};

static struct wal_work *wal_work_of(struct work *work)
{
    return KEEL_CONTAINER_OF(work, struct wal_work, work);
}

static void write_batches(struct node *node, struct wal_batch **batches, size_t count)
{
    if (count == 0)
        return;
    int err = wal_write(node->wal, batches, count);

    for (size_t i = 0; i < count; i++)
        for (size_t j = 0; j < batches[i]->count; j++)
            node->wal_written_bytes +=
                WAL_RECORD_HEADER + raft_entry_bytes(&batches[i]->entries[j]);
    if (err != 0)
        keel_fatal("the log cannot be written (%s): nothing more can be promised; %s",
                   keel_strerror(err),
                   err == KEEL_E_DISKFULL ? "make space on its disk and start the node again"
                                          : "check the disk before the node is started again");
}

static void read_entries(struct node *node, struct wal_work *w)
{
    int err = wal_read(node->wal, w->first, w->max_bytes, &w->entries, &w->count, &w->prev_term);

    if (err != 0)
        w->count = 0;
}

static void let_go(struct node *node, struct wal_work *w)
{
    int err = wal_release(node->wal, w->index, node->log_kept_bytes);

    if (err != 0)
        keel_fatal("the log cannot be shortened (%s); check its disk before the node is started "
                   "again",
                   keel_strerror(err));
    w->first = wal_first_index(node->wal);
}

/* All batches that are waiting become durable with one sync. */
static void wal_run(void *arg, struct work *list)
{
    enum { GROUP_MAX = 256 };
    struct node *node = arg;
    struct wal_batch *batches[GROUP_MAX];
    size_t count = 0;

    for (struct work *item = list; item != NULL; item = item->next) {
        struct wal_work *w = wal_work_of(item);

        if (w->verb == WAL_APPEND)
            batches[count++] = w->batch;
        if (count == GROUP_MAX || w->verb != WAL_APPEND) {
            write_batches(node, batches, count);
            count = 0;
        }
        if (w->verb == WAL_READ)
            read_entries(node, w);
        else if (w->verb == WAL_LET_GO)
            let_go(node, w);
    }
    write_batches(node, batches, count);
}

/* Filling ahead while nobody waits, then the record that tells how far everything is durable. */
static bool wal_run_idle(void *arg)
{
    struct node *node = arg;
    bool more = false;
    int err = wal_prepare(node->wal, &more);

    if (err == 0 && !more)
        err = wal_idle(node->wal);
    if (err == KEEL_E_DISKFULL)
        return false; /* nothing is lost; the next write will tell */
    if (err != 0)
        keel_fatal("the log cannot be written (%s)", keel_strerror(err));
    return more;
}

/* Without a pause for wal_run_idle the log would outrun what was filled ahead: a step now and then.
 */
static void wal_run_after(void *arg)
{
    struct node *node = arg;
    bool more;

    if (node->wal_written_bytes < WAL_STEP_BYTES)
        return;
    node->wal_written_bytes = 0;
    int err = wal_prepare(node->wal, &more);

    if (err != 0 && err != KEEL_E_DISKFULL)
        keel_fatal("the log cannot be written (%s)", keel_strerror(err));
}

static void wal_done(void *arg, struct work *item)
{
    struct node *node = arg;
    struct wal_work *w = wal_work_of(item);

    switch (w->verb) {
    case WAL_APPEND:
        replica_on_persisted(node->replica, w->batch->mark);
        wal_batch_free(w->batch);
        break;
    case WAL_READ:
        replica_on_log_read(node->replica, w->peer, w->first, w->prev_term, w->entries, w->count);
        raft_entries_free(w->entries, w->count);
        break;
    case WAL_LET_GO:
        replica_on_log_released(node->replica, w->first);
        break;
    }
    free(w);
}

static const struct worker_ops wal_worker_ops = {
    .run = wal_run,
    .idle = wal_run_idle,
    .after = wal_run_after,
    .done = wal_done,
};

static void env_log_append(struct keel_env *env, struct wal_batch *batch_take)
{
    struct wal_work *w = keel_calloc(1, sizeof *w);

    w->batch = batch_take;
    worker_submit(&node_of(env)->wal_worker, &w->work);
}

static void env_log_read(struct keel_env *env, uint64_t peer, uint64_t first, size_t max_bytes)
{
    struct wal_work *w = keel_calloc(1, sizeof *w);

    w->verb = WAL_READ;
    w->peer = peer;
    w->first = first;
    w->max_bytes = max_bytes;
    worker_submit(&node_of(env)->wal_worker, &w->work);
}

static void env_log_release(struct keel_env *env, uint64_t index)
{
    struct wal_work *w = keel_calloc(1, sizeof *w);

    w->verb = WAL_LET_GO;
    w->index = index;
    worker_submit(&node_of(env)->wal_worker, &w->work);
}

/* ---- the store thread ---- */

struct db_work {
    struct work work;
    struct kv *kv; /* the store of when it was asked for */
    struct kv_batch *batch;
};

static struct db_work *db_work_of(struct work *work)
{
    return KEEL_CONTAINER_OF(work, struct db_work, work);
}

static void db_run(void *arg, struct work *list)
{
    (void)arg;
    for (struct work *item = list; item != NULL; item = item->next) {
        struct db_work *w = db_work_of(item);
        int err = w->kv->ops->write(w->kv, w->batch);

        if (err != 0)
            keel_fatal("the store cannot be written: %s; nothing acknowledged is lost (it is in "
                       "the log): %s",
                       keel_strerror(err),
                       err == KEEL_E_DISKFULL ? "make space on its disk and start the node again"
                                              : "check the disk");
    }
}

static void db_done(void *arg, struct work *item)
{
    struct node *node = arg;
    struct db_work *w = db_work_of(item);

    node->checkpoint_out = false;
    node_defrag_written(node, w->batch);
    replica_on_checkpointed(node->replica);
    node_defrag_advance(node);
    free(w);
}

static const struct worker_ops db_worker_ops = { .run = db_run, .done = db_done };

void node_store_write(struct node *node, struct kv_batch *batch_take)
{
    struct db_work *w = keel_calloc(1, sizeof *w);

    w->kv = node->kv;
    w->batch = batch_take;
    worker_submit(&node->db_worker, &w->work);
}

static void env_checkpoint(struct keel_env *env, struct kv_batch *batch_take)
{
    struct node *node = node_of(env);

    node->checkpoint_out = true;
    if (!node_defrag_holds(node, batch_take))
        node_store_write(node, batch_take);
}

/* ---- snapshots ---- */

static void env_snapshot_make(struct keel_env *env)
{
    node_snapshot_make(node_of(env));
}

static void env_snapshot_read(struct keel_env *env, uint64_t peer, uint64_t offset, size_t bytes)
{
    node_snapshot_read(node_of(env), peer, offset, bytes);
}

static void env_snapshot_drop(struct keel_env *env)
{
    node_snapshot_drop(node_of(env));
}

static void env_snapshot_store(struct keel_env *env, uint64_t offset, struct keel_buf *bytes_take)
{
    node_snapshot_store(node_of(env), offset, bytes_take);
}

static void env_snapshot_install(struct keel_env *env)
{
    struct node *node = node_of(env);

    node->installing = true;
    if (!node_defrag_delays_install(node))
        node_snapshot_install(node);
}

static void env_snapshot_finish(struct keel_env *env)
{
    node_snapshot_finish(node_of(env));
}

/* ---- the threads ---- */

void node_workers_start(struct node *node)
{
    worker_start(&node->wal_worker, &node->loop, &wal_worker_ops, node, WAL_IDLE_MS);
    worker_start(&node->db_worker, &node->loop, &db_worker_ops, node, 0);
    node_snapshots_start(node);
    node_defrag_start(node);
    node->workers_running = true;
}

void node_workers_stop(struct node *node)
{
    if (!node->workers_running)
        return;
    node->workers_running = false;
    node_defrag_stop(node);
    worker_stop(&node->db_worker);
    worker_stop(&node->wal_worker); /* a checkpoint that is told lets go of log */
    node_snapshots_stop(node);
    node_defrag_free(node);
}

/* ---- what the replica tells ---- */

static void env_changed(struct keel_env *env, const struct keel_change *change)
{
    if (node_of(env)->fs != NULL)
        fs_changed(node_of(env)->fs, change);
}

static void env_lease_lost(struct keel_env *env, uint64_t lease)
{
    if (node_of(env)->fs != NULL)
        fs_lease_lost(node_of(env)->fs, lease);
}

/* The replica has said so in the log; the mount says it to whoever asks. */
static void check_removed(struct node *node)
{
    if (node->told_removed || !replica_is_removed(node->replica))
        return;
    node->told_removed = true;
    removal_note(node->dir_fd);
    sd_notify(0, "STATUS=removed from the cluster");
}

static void env_members_changed(struct keel_env *env)
{
    node_of(env)->members_changed = true;
}

/* Incarnations are looked up at each handshake: only who the members are has to be told. */
void node_follow_members(struct node *node)
{
    struct peer_member members[KEEL_MEMBERS_MAX];
    uint64_t config_index;

    if (!node->members_changed || node->peers == NULL)
        return;
    node->members_changed = false;
    size_t count = node_members(node, members, &config_index);

    if (config_index == node->peers_config_index)
        return;
    node->peers_config_index = config_index;
    peer_pool_set_members(node->peers, members, count, config_index);
    check_removed(node);
    node_report(node);
}

static void env_reloaded(struct keel_env *env)
{
    if (node_of(env)->fs != NULL)
        fs_reloaded(node_of(env)->fs);
}

static void env_note(struct keel_env *env, const char *line)
{
    (void)env;
    log_info("%s", line);
}

const struct keel_env_ops node_env_ops = {
    .now_us = env_now_us,
    .wall_ns = env_wall_ns,
    .send = env_send,
    .log_append = env_log_append,
    .log_read = env_log_read,
    .log_release = env_log_release,
    .checkpoint = env_checkpoint,
    .snapshot_make = env_snapshot_make,
    .snapshot_read = env_snapshot_read,
    .snapshot_drop = env_snapshot_drop,
    .snapshot_store = env_snapshot_store,
    .snapshot_install = env_snapshot_install,
    .snapshot_finish = env_snapshot_finish,
    .changed = env_changed,
    .lease_lost = env_lease_lost,
    .members_changed = env_members_changed,
    .reloaded = env_reloaded,
    .note = env_note,
};

/* ---- what the peers tell ---- */

static void on_message(void *arg, uint64_t from, struct keel_message *msg_take)
{
    replica_on_message(((struct node *)arg)->replica, from, msg_take);
}

static void forget_refusal(struct node *node, uint64_t peer)
{
    for (size_t i = 0; i < node->refusals; i++)
        if (node->refused_by[i] == peer)
            node->refused_by[i--] = node->refused_by[--node->refusals];
}

void node_report(struct node *node)
{
    struct keel_text text = { 0 };
    struct peer_member members[KEEL_MEMBERS_MAX];
    uint64_t config_index;
    size_t count = node_members(node, members, &config_index);
    const char *between = ", not connected: ";

    if (node->told_removed)
        return;

    keel_text_printf(&text, "STATUS=mounted on %s", node->mount_point);
    for (size_t i = 0; i < count; i++) {
        if (members[i].id == node->identity.id || peer_connected(node->peers, members[i].id))
            continue;
        keel_text_printf(&text, "%s%s", between, members[i].name);
        between = " ";
    }
    sd_notify(0, text.data);
    keel_text_free(&text);
}

static void on_connected(void *arg, uint64_t peer, uint64_t incarnation, uint32_t level)
{
    forget_refusal(arg, peer);
    replica_on_connected(((struct node *)arg)->replica, peer, incarnation, level);
    node_report(arg);
}

static void on_disconnected(void *arg, uint64_t peer)
{
    replica_on_disconnected(((struct node *)arg)->replica, peer);
    if (((struct node *)arg)->phase == NODE_RUNNING)
        node_report(arg);
}

static void on_alive(void *arg, uint64_t peer)
{
    replica_on_alive(((struct node *)arg)->replica, peer);
}

static bool on_incarnation_ok(void *arg, uint64_t peer, uint64_t incarnation)
{
    struct node *node = arg;
    size_t count;
    const struct apply_member *members = apply_members(node->apply, &count);

    for (size_t i = 0; i < count; i++)
        if (members[i].id == peer)
            return members[i].incarnation == 0 || members[i].incarnation == incarnation;
    return true; /* none is on record */
}

/* That this data directory is not the member's, or no member's any more, is for good, whoever says
 * so first: such nodes must not come together as a cluster of their own. A new node that has not
 * read of its own addition yet is another matter: a member that is behind does not know it either.
 */
static bool is_final(const struct node *node, enum peer_refusal kind)
{
    size_t count;
    const struct apply_member *members = apply_members(node->apply, &count);
    bool is_member = false;

    for (size_t i = 0; i < count; i++)
        is_member |= members[i].id == node->identity.id;
    return kind == PEER_REFUSAL_LOST || (kind == PEER_REFUSAL_REMOVED && is_member);
}

/* Apart from that, one peer may be wrong itself; most of them are not: then this node has nothing
 * to do here. */
static void on_refused(void *arg, uint64_t peer, enum peer_refusal kind, const char *why)
{
    struct node *node = arg;
    struct peer_member members[KEEL_MEMBERS_MAX];
    uint64_t config_index;
    size_t count = node_members(node, members, &config_index), others = 0;

    if (node->told_removed)
        return; /* it stays, and says so */
    if (is_final(node, kind)) {
        if (kind == PEER_REFUSAL_REMOVED)
            removal_note(node->dir_fd);
        log_error("stopping: %s", why);
        node_stop(node, 1);
        return;
    }
    for (size_t i = 0; i < count; i++)
        others += members[i].id != node->identity.id;
    forget_refusal(node, peer);
    if (node->refusals < KEEL_MEMBERS_MAX)
        node->refused_by[node->refusals++] = peer;
    if (node->refusals * 2 <= others)
        return;
    log_error("refused by %zu of %zu other members, stopping: %s", node->refusals, others, why);
    node_stop(node, 1);
}

/* ---- a new node ---- */

static struct keel_buf *pack_welcome(const struct node *node, uint64_t id,
                                     const struct apply_member *members, size_t count)
{
    Keel__Welcome welcome = KEEL__WELCOME__INIT;
    Keel__MemberState states[KEEL_MEMBERS_MAX], *pointers[KEEL_MEMBERS_MAX];

    for (size_t i = 0; i < count; i++) {
        keel__member_state__init(&states[i]);
        states[i].id = members[i].id;
        states[i].name = members[i].name;
        states[i].address = members[i].address;
        states[i].voter = members[i].voter;
        pointers[i] = &states[i];
    }
    welcome.cluster_id = node->identity.cluster_id;
    welcome.id = id;
    welcome.token = (char *)(uintptr_t)node->identity.token;
    welcome.n_members = count;
    welcome.members = pointers;
    struct keel_buf *buf = keel_buf_new(keel__welcome__get_packed_size(&welcome));

    keel__welcome__pack(&welcome, buf->data);
    return buf;
}

/* Once a member has been in touch it has data, and nobody else may come under its name. */
static struct keel_buf *on_join(void *arg, const char *name, uint64_t incarnation, char *ret_why,
                                size_t why_size)
{
    struct node *node = arg;
    size_t count;
    const struct apply_member *members = apply_members(node->apply, &count);

    if (node->told_removed) {
        snprintf(ret_why, why_size, "%s has been removed from the cluster itself: ask a member",
                 node->identity.name);
        return NULL;
    }
    for (size_t i = 0; i < count; i++) {
        if (strcmp(members[i].name, name) != 0)
            continue;
        if (members[i].incarnation == 0 || members[i].incarnation == incarnation)
            return pack_welcome(node, members[i].id, members, count);
        snprintf(ret_why, why_size,
                 "%s has joined already with another data directory: remove it and add it again",
                 name);
        return NULL;
    }
    snprintf(ret_why, why_size,
             "%s is not a member: run `keelctl members add %s HOST:PORT` on a member first", name,
             name);
    return NULL;
}

const struct peer_events node_peer_events = {
    .message = on_message,
    .connected = on_connected,
    .disconnected = on_disconnected,
    .alive = on_alive,
    .incarnation_ok = on_incarnation_ok,
    .refused = on_refused,
    .join = on_join,
};
