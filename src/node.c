/* The composition root: opens everything in order, runs the loop, and takes it down again. */
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#include "check.h"
#include "err.h"
#include "log.h"
#include "node_internal.h"
#include "store_install.h"

enum {
    SEGMENTS_KEPT = 4, /* the log that is kept is at least as many whole segments */
    SEGMENT_BYTES_MIN = 2 << 20,
    WAL_STEP_BYTES = 1 << 20,
    TRANSFER_MS = 1000,  /* at most, for handing leadership over before a stop */
    FLUSH_MS = 5000,     /* at most, for bringing the store up to date then */
    PAUSED_US = 3333333, /* a third of a session's ttl: longer without a turn is a pause */
    STOP_POLL_MS = 10,
    MAP_BY_QUOTA = 4, /* address space of the store for each byte of the quota */
};

static const uint64_t MAP_BYTES_MIN = 16ull << 30;

/* --wal-dir, absolute, since the working directory becomes the data directory. */
static int wal_dir_prepare(struct node *node, char *why, size_t why_size)
{
    const char *dir = node->options->wal_dir;

    if (mkdir(dir, 0700) != 0 && errno != EEXIST) {
        snprintf(why, why_size, "cannot create --wal-dir %s: %s", dir, strerror(errno));
        return KEEL_E_IO;
    }
    node->wal_dir = realpath(dir, NULL);
    return data_dir_check_place(dir, node->mount_point, why, why_size);
}

static int prepare_mount(struct node *node)
{
    const struct node_options *o = node->options;
    char why[1024];

    snprintf(node->source, sizeof node->source, "keelfs:%s/%s", node->identity.token,
             node->identity.name);
    int err = mount_point_prepare(o->mount_point, node->source, node->mount_point, why, sizeof why);

    if (err == 0)
        err = data_dir_check_place(o->data_dir, node->mount_point, why, sizeof why);
    if (err == 0 && o->wal_dir != NULL)
        err = wal_dir_prepare(node, why, sizeof why);
    if (err == 0)
        err = own_files_check_place(why, sizeof why);
    if (err != 0)
        log_error("%s", why);
    return err;
}

/* ---- local state ---- */

/* LMDB trusts the pointers in its pages: damage there is a fault in its map. The scan at the start
 * looks at every page that can have this. */
static void on_store_fault(int signum)
{
    static const char text[] = "keelfs: fatal: store: the store is damaged: reading it ended in a "
                               "memory fault" STORE_ADVICE "\n";
    ssize_t written = write(STDERR_FILENO, text, sizeof text - 1);

    (void)signum;
    (void)written;
    _exit(1);
}

static bool has_config(const struct node *node)
{
    uint64_t index;

    apply_config(node->apply, &index);
    return index > 0;
}

static int read_cluster(struct node *node, char *why, size_t why_size)
{
    int err = apply_new(node->mvcc, &node->apply);

    mvcc_read_end(node->mvcc);
    if (err == 0 && mvcc_applied_index(node->mvcc) > 0 && !has_config(node))
        err = KEEL_E_CORRUPT; /* every log begins with one */
    if (err != 0)
        snprintf(why, why_size, "the cluster's state in it cannot be read: %s", keel_strerror(err));
    return err;
}

/* installed: the snapshot whose installation was interrupted, if one was. */
static int read_store(struct node *node, struct snapshot_info *ret_installed, char *why,
                      size_t why_size)
{
    const struct sigaction fault = { .sa_handler = on_store_fault };
    struct sigaction segv, bus;

    sigaction(SIGSEGV, &fault, &segv);
    sigaction(SIGBUS, &fault, &bus);
    int err = store_install_recover(node->map_bytes, &ret_installed->index, &ret_installed->term,
                                    why, why_size);

    if (err == 0)
        err = kv_lmdb_open(STORE_DIR, node->map_bytes, &node->kv, why, why_size);
    if (err == 0)
        err = mvcc_open(node->kv, &node->mvcc, why, why_size);
    if (err == 0)
        err = read_cluster(node, why, why_size);
    sigaction(SIGSEGV, &segv, NULL);
    sigaction(SIGBUS, &bus, NULL);
    return err;
}

static int open_store(struct node *node, struct snapshot_info *ret_installed)
{
    char why[1024];

    node->map_bytes = node->options->quota_bytes * MAP_BY_QUOTA;
    if (node->map_bytes < MAP_BYTES_MIN)
        node->map_bytes = MAP_BYTES_MIN;
    int err = read_store(node, ret_installed, why, sizeof why);

    if (err != 0)
        log_error("store: %s%s", why, err == KEEL_E_CORRUPT ? STORE_ADVICE : "");
    return err;
}

/* How much log is kept for followers that lag; it goes by whole segments. */
static uint64_t segment_bytes(const struct node *node)
{
    uint64_t bytes = node->log_kept_bytes / SEGMENTS_KEPT / WAL_STEP_BYTES * WAL_STEP_BYTES;

    return bytes < SEGMENT_BYTES_MIN ? SEGMENT_BYTES_MIN : bytes;
}

static int recover_log(struct node *node, const struct snapshot_info *installed,
                       struct wal_recovery *ret_recovery)
{
    const struct wal_options options = {
        .cluster_id = node->identity.cluster_id,
        .node_id = node->identity.id,
        .store_applied = mvcc_applied_index(node->mvcc),
        .segment_bytes = segment_bytes(node),
        .install_index = installed->index,
        .install_term = installed->term,
    };
    char why[1024];
    int err = wal_open(node->disk, &options, &node->wal, ret_recovery, why, sizeof why);

    if (err != 0)
        log_error("log: %s", why);
    else if (ret_recovery->tail_cut)
        log_warning("log: the last write before the crash was torn; %s was cut at byte %" PRIu64
                    " (nothing acknowledged was in it)",
                    ret_recovery->cut_file, ret_recovery->cut_offset);
    return err;
}

/* The log of a new cluster begins with its members, on each of them. */
static int write_first_entry(struct node *node)
{
    struct wal_batch *batch = keel_calloc(1, sizeof *batch);

    batch->has_hard_state = true;
    batch->hard_state = (struct raft_hard_state){ .term = 1, .commit = 1 };
    batch->entries = keel_malloc(sizeof *batch->entries);
    batch->entries[0] = apply_first_entry(node->founders.members, node->founders.count);
    batch->count = 1;
    int err = wal_write(node->wal, &batch, 1);

    wal_batch_free(batch);
    if (err != 0)
        log_error("log: the first entry cannot be written: %s", keel_strerror(err));
    return err;
}

/* Where there is an identity there must be a log, and none is made in its place: the next start
 * would take it for the node's own. */
static int check_log_is_there(const struct node *node, const char *dir)
{
    bool there;
    int err = wal_is_there(node->disk, &there);

    if (err != 0) {
        log_error("log: cannot list the directory %s: %s", dir, keel_strerror(err));
        return err;
    }
    if (there || node->identity_is_new)
        return 0;
    log_error("the log is gone from the data directory: what this node has promised is in it. "
              "Restore it, or remove this member and add it again");
    return KEEL_E_CORRUPT;
}

static int open_log(struct node *node, const struct snapshot_info *installed,
                    struct wal_recovery *ret_recovery)
{
    const char *dir = node->wal_dir != NULL ? node->wal_dir : "wal";
    int sys_err;
    int err = disk_posix_open(dir, &node->disk, &sys_err);

    if (err != 0) {
        log_error("log: cannot open the directory %s: %s", dir, strerror(sys_err));
        return err;
    }
    err = check_log_is_there(node, dir);
    if (err == 0)
        err = recover_log(node, installed, ret_recovery);
    /* a start that was interrupted here may have left the log without it */
    if (err != 0 || !node->identity_is_new || node->founders.count == 0 ||
        ret_recovery->last_index != 0)
        return err;
    err = write_first_entry(node);
    if (err != 0)
        return err;
    node->wal = wal_close(node->wal);
    wal_recovery_free(ret_recovery);
    return recover_log(node, installed, ret_recovery);
}

static void make_replica(struct node *node, struct wal_recovery *recovery)
{
    const struct node_options *o = node->options;
    struct replica_options options = {
        .incarnation = node->identity.incarnation,
        .nonce = node_random(),
        .request_timeout_us = o->request_timeout_ms * 1000,
        .lease_reads = !o->no_lease_reads,
        .first_file_size_bytes = o->file_size_bytes,
        .first_quota_bytes = o->quota_bytes,
        .first_history_ms = o->history_ms,
        .first_history_revisions = o->history_revisions,
    };

    raft_options_init(&options.raft);
    options.raft.id = node->identity.id;
    options.raft.hard_state = recovery->hard_state;
    options.raft.first_stored_index = recovery->first_index;
    options.raft.entries = recovery->entries;
    options.raft.entry_count = recovery->count;
    options.raft.seed = node_random();
    if (node->log_kept_bytes < options.raft.tail_bytes)
        options.raft.tail_bytes = (size_t)node->log_kept_bytes;
    options.raft.heartbeat_us = o->heartbeat_ms * 1000;
    options.raft.election_timeout_us = o->election_timeout_ms * 1000;
    options.raft.lease_us = o->lease_ms * 1000;
    node->replica = replica_new(&node->env, node->apply, &options);
}

/* The identity is written last. */
static int settle_identity(struct node *node)
{
    char why[512];
    int err =
        node->identity_is_new ? identity_save(node->dir_fd, &node->identity, why, sizeof why) : 0;

    if (err != 0)
        log_error("%s", why);
    return err;
}

static int finish_install(const struct snapshot_info *installed)
{
    char why[1024];

    if (installed->index == 0)
        return 0;
    log_info("the snapshot up to entry %" PRIu64 " that was being installed is in place",
             installed->index);
    int err = store_install_finish(why, sizeof why);

    if (err != 0)
        log_error("%s", why);
    return err;
}

static int open_local_state(struct node *node)
{
    struct wal_recovery recovery = { 0 };
    struct snapshot_info installed = { 0 };
    int err = open_store(node, &installed);

    if (err == 0)
        err = open_log(node, &installed, &recovery);
    if (err == 0)
        err = settle_identity(node);
    if (err == 0)
        err = finish_install(&installed);
    if (err == 0) {
        log_info("recovered: applied %" PRIu64 ", log %" PRIu64 ", revision %" PRIu64,
                 mvcc_applied_index(node->mvcc), recovery.last_index, mvcc_revision(node->mvcc));
        make_replica(node, &recovery);
    }
    wal_recovery_free(&recovery);
    return err;
}

/* ---- peers and mount ---- */

/* Peers are not authenticated: whoever reaches the port can claim to be a member. */
static int check_listen(const struct node *node, const char *address)
{
    char host[256], port[32];

    if (peer_address_split(address, host, sizeof host, port, sizeof port) != 0) {
        log_error("--listen-peer: '%s' is not HOST:PORT (IPv6: [ADDRESS]:PORT)", address);
        return KEEL_E_INVALID;
    }
    if (node->options->insecure_peers || peer_address_is_loopback(address))
        return 0;
    log_error("peers talk without TLS in this version, so a node listens on loopback only; on a "
              "network that you trust, --insecure-peers allows %s",
              address);
    return KEEL_E_INVALID;
}

/* A wrong option must not have made a data directory: the members of that could not be corrected
 * any more. */
static int check_first_listen(const struct node *node)
{
    if (node->options->listen_peer != NULL)
        return check_listen(node, node->options->listen_peer);
    for (size_t i = 0; node->identity_is_new && i < node->founders.count; i++)
        if (node->founders.members[i].id == node->identity.id)
            return check_listen(node, node->founders.members[i].address);
    return 0;
}

/* The configuration that this node knows may not have it yet: then, as it was told when it joined.
 */
static const char *own_address(const struct node *node, const struct peer_member *members,
                               size_t count)
{
    const struct identity *identity = &node->identity;

    for (size_t i = 0; i < count; i++)
        if (members[i].id == identity->id)
            return members[i].address;
    for (size_t i = 0; i < identity->member_count; i++)
        if (identity->members[i].id == identity->id)
            return identity->members[i].address;
    return NULL;
}

static int open_peers(struct node *node)
{
    struct peer_options options = {
        .cluster_id = node->identity.cluster_id,
        .id = node->identity.id,
        .incarnation = node->identity.incarnation,
        .name = node->identity.name,
        .listen = node->options->listen_peer,
        .level = KEEL_SEMANTICS_LEVEL,
    };
    struct peer_events events = node_peer_events;
    char why[512];

    options.member_count = node_members(node, options.members, &options.config_index);
    if (options.listen == NULL)
        options.listen = own_address(node, options.members, options.member_count);
    if (options.listen == NULL) {
        log_error("where to listen is not known: --listen-peer HOST:PORT tells it");
        return KEEL_E_INVALID;
    }
    int err = check_listen(node, options.listen);

    if (err != 0)
        return err;
    node->peers_config_index = options.config_index;
    events.arg = node;
    err = peer_pool_new(&node->loop, &options, &events, &node->peers, why, sizeof why);

    if (err != 0)
        log_error("peers: %s", why);
    return err;
}

static void info_status(void *arg, struct keel_text *text)
{
    struct node *node = arg;
    uint64_t file, used;

    node->kv->ops->sizes(node->kv, &file, &used);
    keel_text_printf(text, "db_size: %" PRIu64 "\ndb_used: %" PRIu64 "\n", file, used);
    keel_text_printf(text, "stored_index: %" PRIu64 "\ncompacting: %s\n",
                     mvcc_durable_index(node->mvcc), mvcc_has_garbage(node->mvcc) ? "yes" : "no");
    node_defrag_status(node, text);
}

static bool info_connected(void *arg, uint64_t peer)
{
    struct node *node = arg;

    return node->peers != NULL && peer_connected(node->peers, peer);
}

static bool info_member_ok(void *arg, const char *name, const char *address)
{
    (void)arg;
    return keel_member_name_ok(name) && node_address_ok(address);
}

static int info_defrag(void *arg)
{
    return node_defrag(arg);
}

static void info_snapshot_make(void *arg)
{
    node_user_snapshot_make(arg);
}

static void info_snapshot_read(void *arg, uint64_t offset, size_t bytes)
{
    node_user_snapshot_read(arg, offset, bytes);
}

static void info_snapshot_drop(void *arg)
{
    node_user_snapshot_drop(arg);
}

static void on_fs_gone(void *arg)
{
    struct node *node = arg;

    if (node->phase >= NODE_UNMOUNTING)
        return;
    log_warning("the mount is gone (unmounted by somebody else): stopping");
    node_stop(node, 0);
}

static int open_mount(struct node *node)
{
    const struct fs_options options = {
        .mount_point = node->mount_point,
        .source = node->source,
        .mount_options = node->options->mount_options != NULL ? node->options->mount_options : "",
        .name = node->identity.name,
        .cluster_id = node->identity.cluster_id,
        .read_local = node->options->read_local,
        .list_xattr = node->options->list_xattr,
        .poke = !node->options->no_poke,
        .request_timeout_us = node->options->request_timeout_ms * 1000,
        .quota_max = node->map_bytes / MAP_BY_QUOTA,
    };
    const struct fs_node_info info = {
        .arg = node,
        .status = info_status,
        .peer_connected = info_connected,
        .member_ok = info_member_ok,
        .snapshot_make = info_snapshot_make,
        .snapshot_read = info_snapshot_read,
        .snapshot_drop = info_snapshot_drop,
        .defrag = info_defrag,
    };
    char why[512];
    int err = fs_mount(&node->loop, node->replica, &options, &info, &node->fs, why, sizeof why);

    if (err != 0)
        log_error("mount: %s", why);
    else
        fs_on_gone(node->fs, on_fs_gone, node);
    return err;
}

/* ---- the loop ---- */

static void on_timer(uv_timer_t *timer)
{
    struct node *node = timer->data;

    replica_tick(node->replica);
}

static void set_timer(struct node *node)
{
    uint64_t at = replica_deadline(node->replica), now = node_now_us();
    uint64_t wait_ms = at <= now ? 0 : (at - now + 999) / 1000;

    uv_update_time(&node->loop);
    uv_timer_start(&node->timer, on_timer, wait_ms < 1000 ? wait_ms : 1000, 0);
}

/* With the idle handle active the loop polls without sleeping. */
static void on_idle(uv_idle_t *idle)
{
    (void)idle;
}

static void look_out(struct node *node)
{
    uint64_t requests, answers;

    if (node->fs == NULL)
        return;
    fs_pulse(node->fs, &requests, &answers);
    uint64_t asked, told, now = node_now_us();

    replica_pulse(node->replica, &asked, &told);
    bool awake = lookout_turn(&node->for_requests, answers, requests, LOOKOUT_REQUEST_US, now);

    awake |= lookout_turn(&node->for_barriers, asked, told, LOOKOUT_BARRIER_US, now);
    if (awake && !uv_is_active((uv_handle_t *)&node->idle))
        uv_idle_start(&node->idle, on_idle);
    else if (!awake && uv_is_active((uv_handle_t *)&node->idle))
        uv_idle_stop(&node->idle);
}

/* Before the loop waits again: everything that this turn's events have made due. */
static void on_prepare(uv_prepare_t *prepare)
{
    struct node *node = prepare->data;
    uint64_t now = node_now_us();

    if (node->last_turn_us != 0 && now - node->last_turn_us > PAUSED_US) {
        log_warning("the process did not run for %" PRIu64 " ms",
                    (now - node->last_turn_us) / 1000);
        replica_on_paused(node->replica);
    }
    node->last_turn_us = now;
    replica_pump(node->replica);
    if (node->phase < NODE_UNMOUNTING)
        node_follow_members(node);
    node_user_snapshot_advance(node);
    if (node->peers != NULL)
        peer_pool_flush(node->peers);
    look_out(node);
    set_timer(node);
}

static void on_signal(uv_signal_t *handle, int signum)
{
    log_info("signal %d: stopping", signum);
    node_stop(handle->data, 0);
}

static void start_loop_handles(struct node *node)
{
    static const int signums[] = { SIGTERM, SIGINT };

    uv_prepare_init(&node->loop, &node->prepare);
    uv_idle_init(&node->loop, &node->idle);
    uv_timer_init(&node->loop, &node->timer);
    uv_timer_init(&node->loop, &node->stop_timer);
    node->prepare.data = node->timer.data = node->stop_timer.data = node;
    uv_prepare_start(&node->prepare, on_prepare);
    for (size_t i = 0; i < KEEL_ARRAY_LEN(signums); i++) {
        uv_signal_init(&node->loop, &node->signals[i]);
        node->signals[i].data = node;
        uv_signal_start(&node->signals[i], on_signal, signums[i]);
        uv_unref((uv_handle_t *)&node->signals[i]); /* never closed: see node_run */
    }
}

/* ---- stopping ---- */

static void on_peers_closed(void *arg)
{
    ((struct node *)arg)->peers = NULL;
}

static void close_handles(struct node *node)
{
    node->phase = NODE_STOPPED;
    if (node->peers != NULL)
        peer_pool_close(node->peers, on_peers_closed, node);
    uv_close((uv_handle_t *)&node->prepare, NULL);
    uv_close((uv_handle_t *)&node->idle, NULL);
    uv_close((uv_handle_t *)&node->timer, NULL);
    uv_close((uv_handle_t *)&node->stop_timer, NULL);
    node_workers_stop(node);
}

/* The store has everything, or the disk is too slow: the log has it in any case. */
static void on_flush_timer(uv_timer_t *timer)
{
    struct node *node = timer->data;

    if (mvcc_durable_index(node->mvcc) < node->stop_index && --node->stop_polls > 0)
        return;
    uv_timer_stop(timer);
    close_handles(node);
}

static void on_unmounted(void *arg)
{
    struct node *node = arg;

    node->phase = NODE_FLUSHING;
    node->stop_index = mvcc_applied_index(node->mvcc);
    node->stop_polls = FLUSH_MS / STOP_POLL_MS;
    replica_flush(node->replica);
    uv_timer_start(&node->stop_timer, on_flush_timer, 0, STOP_POLL_MS);
}

static void unmount(struct node *node)
{
    node->phase = NODE_UNMOUNTING;
    uv_timer_stop(&node->stop_timer);
    if (node->fs != NULL)
        fs_unmount(node->fs, on_unmounted, node);
    else
        close_handles(node);
}

/* Leadership has moved on, or there was no time left for it. */
static void on_stop_timer(uv_timer_t *timer)
{
    struct node *node = timer->data;

    if (!replica_is_leader(node->replica) || --node->stop_polls <= 0)
        unmount(node);
}

void node_stop(struct node *node, int exit_code)
{
    if (exit_code != 0)
        node->exit_code = exit_code;
    if (node->phase >= NODE_TRANSFERRING)
        return;
    bool running = node->phase == NODE_RUNNING;

    node->phase = NODE_TRANSFERRING;
    sd_notify(0, "STOPPING=1");
    if (running && replica_is_leader(node->replica) && replica_transfer(node->replica)) {
        node->stop_polls = TRANSFER_MS / STOP_POLL_MS;
        uv_timer_start(&node->stop_timer, on_stop_timer, STOP_POLL_MS, STOP_POLL_MS);
        return;
    }
    unmount(node);
}

static void free_all(struct node *node)
{
    if (node->fs != NULL)
        fs_free(node->fs);
    replica_free(node->replica);
    apply_free(node->apply);
    mvcc_close(node->mvcc);
    if (node->kv != NULL)
        node->kv->ops->close(node->kv);
    wal_close(node->wal);
    if (node->disk != NULL)
        node->disk->ops->free(node->disk);
    founders_free(&node->founders);
    free(node->wal_dir);
    if (node->dir_fd >= 0)
        close(node->dir_fd);
}

/* ---- starting ---- */

static int check_options(const struct node_options *o)
{
    if (o->name == NULL || o->data_dir == NULL || o->mount_point == NULL) {
        log_error("--name, --data-dir and a mount point are needed; see keelfs --help");
        return KEEL_E_INVALID;
    }
    if (!keel_member_name_ok(o->name) ||
        (o->cluster_token != NULL && !keel_member_name_ok(o->cluster_token))) {
        log_error("--name and --cluster-token are 1 to 63 letters, digits, '_', '.' or '-'");
        return KEEL_E_INVALID;
    }
    if (o->heartbeat_ms == 0 || o->election_timeout_ms < 4 * o->heartbeat_ms ||
        o->lease_ms >= o->election_timeout_ms) {
        log_error("--election-timeout must be at least 4 heartbeat intervals, and longer than the "
                  "leader lease");
        return KEEL_E_INVALID;
    }
    if (o->bootstrap && o->join != NULL) {
        log_error("--bootstrap founds a cluster, --join enters one: give one of them");
        return KEEL_E_INVALID;
    }
    if (o->join != NULL && !node_address_ok(o->join)) {
        log_error("--join: '%s' is not HOST:PORT", o->join);
        return KEEL_E_INVALID;
    }
    return 0;
}

/* From here on everything in the data directory is named relative to it. */
static int enter_data_dir(struct node *node)
{
    if (fchdir(node->dir_fd) == 0)
        return 0;
    log_error("cannot enter the data directory: %s", strerror(errno));
    return KEEL_E_IO;
}

static int start(struct node *node)
{
    int err = check_options(node->options);

    if (err == 0)
        err = node_open_data_dir(node);
    if (err == 0)
        err = check_first_listen(node);
    if (err == 0)
        err = prepare_mount(node);
    if (err == 0)
        err = enter_data_dir(node);
    if (err == 0)
        err = open_local_state(node);
    if (err != 0)
        return err;
    node_workers_start(node);
    start_loop_handles(node);
    replica_pump(node->replica); /* replays what the log knows to be committed */
    if (replica_is_removed(node->replica)) {
        removal_note(node->dir_fd);
        log_error("%s", NODE_REMOVED);
        return KEEL_E_REMOVED;
    }
    err = open_peers(node);
    if (err == 0)
        err = open_mount(node);
    return err;
}

int node_run(const struct node_options *options)
{
    struct node *node = keel_calloc(1, sizeof *node);

    node->env.ops = &node_env_ops;
    node->options = options;
    node->log_kept_bytes =
        options->log_kept_bytes != 0 ? options->log_kept_bytes : KEEL_LOG_KEPT_BYTES;
    node->dir_fd = -1;
    signal(SIGPIPE, SIG_IGN);
    umask(0077);
    uv_loop_init(&node->loop);
    int err = start(node);

    if (err == 0) {
        node->phase = NODE_RUNNING;
        log_info("mounted on %s", node->mount_point);
        sd_notify(0, "READY=1");
        node_report(node);
    } else {
        node->exit_code = err == KEEL_E_INVALID ? 2 : 1;
        if (node->workers_running)
            node_stop(node, node->exit_code);
    }
    uv_run(&node->loop, UV_RUN_DEFAULT);
    free_all(node);
    if (node->exit_code == 0)
        log_info("stopped");
    /* The loop and its signal handles stay until the process is gone. With the last handle of a
     * signal libuv gives the signal its default action back, and who asks for the end a second
     * time would cut it short. */
    return node->exit_code;
}
