/* The composition root: opens everything in order, runs the loop, and takes it down again. */
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#include "check.h"
#include "err.h"
#include "log.h"
#include "node_internal.h"

enum {
    TRANSFER_MS = 1000,  /* at most, for handing leadership over before a stop */
    PAUSED_US = 3333333, /* a third of a session's ttl: longer without a turn is a pause */
    STOP_POLL_MS = 10,
};

static const uint64_t MAP_BYTES_MIN = 16ull << 30;

static uint64_t random_u64(void)
{
    uint64_t x = 0;

    while (x == 0)
        if (getrandom(&x, sizeof x, 0) != (ssize_t)sizeof x)
            keel_fatal("no randomness: %s", strerror(errno));
    return x;
}

/* ---- members ---- */

static bool name_is_plain(const char *name)
{
    size_t len = strlen(name);

    return len > 0 && len < 64 &&
           strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-") == len;
}

/* "n1=host:port,n2=host:port" into node->members. */
static int parse_members(struct node *node, const char *text)
{
    char *save = NULL;

    node->member_text = keel_strdup(text);
    for (char *part = strtok_r(node->member_text, ",", &save); part != NULL;
         part = strtok_r(NULL, ",", &save)) {
        char *equals = strchr(part, '=');
        char host[256], port[32];

        if (equals != NULL)
            *equals = '\0';
        if (equals == NULL || !name_is_plain(part) ||
            peer_address_split(equals + 1, host, sizeof host, port, sizeof port) != 0) {
            log_error("--initial-cluster: '%s' is not NAME=HOST:PORT", part);
            return KEEL_E_INVALID;
        }
        if (node->member_count == KEEL_MEMBERS_MAX) {
            log_error("--initial-cluster: at most %d members", KEEL_MEMBERS_MAX);
            return KEEL_E_INVALID;
        }
        node->members[node->member_count++] = (struct apply_member){
            .id = identity_node_id(node->options->cluster_token, part),
            .name = part,
            .address = equals + 1,
            .voter = true,
        };
    }
    return 0;
}

static const struct apply_member *find_member(const struct apply_member *members, size_t count,
                                              uint64_t id)
{
    for (size_t i = 0; i < count; i++)
        if (members[i].id == id)
            return &members[i];
    return NULL;
}

static int check_members(const struct node *node)
{
    const struct apply_member *m = node->members;

    for (size_t i = 0; i < node->member_count; i++)
        for (size_t j = 0; j < i; j++)
            if (strcmp(m[i].name, m[j].name) == 0 || strcmp(m[i].address, m[j].address) == 0 ||
                m[i].id == m[j].id) {
                log_error("--initial-cluster: %s and %s have the same name or address", m[j].name,
                          m[i].name);
                return KEEL_E_INVALID;
            }
    if (find_member(m, node->member_count, node->identity.id) == NULL) {
        log_error("--initial-cluster does not name this node (%s): add %s=HOST:PORT to it",
                  node->options->name, node->options->name);
        return KEEL_E_INVALID;
    }
    return 0;
}

/* ---- identity ---- */

static int identity_bootstrap(struct node *node)
{
    const struct node_options *o = node->options;

    if (!o->bootstrap) {
        log_error("the data directory %s is empty: --bootstrap starts a new cluster in it; if this "
                  "node was a member before, its data are lost: remove it from the cluster and add "
                  "it again",
                  o->data_dir);
        return KEEL_E_INVALID;
    }
    if (o->initial_cluster == NULL) {
        log_error("--bootstrap needs --initial-cluster n1=HOST:PORT,n2=HOST:PORT,…");
        return KEEL_E_INVALID;
    }
    node->identity.cluster_id = identity_cluster_id(o->cluster_token, o->initial_cluster);
    node->identity.id = identity_node_id(o->cluster_token, o->name);
    node->identity.incarnation = random_u64();
    snprintf(node->identity.name, sizeof node->identity.name, "%s", o->name);
    snprintf(node->identity.token, sizeof node->identity.token, "%s", o->cluster_token);
    node->identity_is_new = true;
    int err = parse_members(node, o->initial_cluster);

    return err != 0 ? err : check_members(node);
}

static int identity_check(struct node *node)
{
    const struct node_options *o = node->options;

    if (strcmp(o->name, node->identity.name) != 0) {
        log_error("the data directory %s belongs to node %s, not to %s: correct --name or "
                  "--data-dir",
                  o->data_dir, node->identity.name, o->name);
        return KEEL_E_INVALID;
    }
    if (strcmp(o->cluster_token, node->identity.token) != 0) {
        log_error("the data directory %s belongs to the cluster '%s', not to '%s': correct "
                  "--cluster-token or --data-dir",
                  o->data_dir, node->identity.token, o->cluster_token);
        return KEEL_E_INVALID;
    }
    if (o->bootstrap)
        log_info("--bootstrap is ignored: the data directory has a cluster already");
    if (o->initial_cluster != NULL &&
        identity_cluster_id(o->cluster_token, o->initial_cluster) != node->identity.cluster_id)
        log_warning("--initial-cluster differs from the one at bootstrap and is ignored: "
                    "membership comes from the data directory");
    return o->initial_cluster != NULL ? parse_members(node, o->initial_cluster) : 0;
}

static int open_data_dir(struct node *node)
{
    const struct node_options *o = node->options;
    char why[512];
    int err = data_dir_lock(o->data_dir, o->bootstrap, &node->dir_fd, why, sizeof why);

    if (err == 0) {
        err = identity_load(node->dir_fd, &node->identity, why, sizeof why);
        if (err == 0)
            return identity_check(node);
        if (err == KEEL_E_NOTFOUND)
            return identity_bootstrap(node);
    }
    log_error("%s", why);
    return err;
}

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

#define STORE_ADVICE \
    "; restore the data directory from a backup, or remove this member and add it again"

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

static int read_store(struct node *node, uint64_t map_bytes, char *why, size_t why_size)
{
    const struct sigaction fault = { .sa_handler = on_store_fault };
    struct sigaction segv, bus;

    sigaction(SIGSEGV, &fault, &segv);
    sigaction(SIGBUS, &fault, &bus);
    int err = kv_lmdb_open("store", map_bytes, &node->kv, why, why_size);

    if (err == 0)
        err = mvcc_open(node->kv, &node->mvcc, why, why_size);
    sigaction(SIGSEGV, &segv, NULL);
    sigaction(SIGBUS, &bus, NULL);
    return err;
}

static int open_store(struct node *node)
{
    char why[1024];
    uint64_t map_bytes = node->options->quota_bytes * 4;

    if (map_bytes < MAP_BYTES_MIN)
        map_bytes = MAP_BYTES_MIN;
    int err = read_store(node, map_bytes, why, sizeof why);

    if (err != 0) {
        log_error("store: %s%s", why, err == KEEL_E_CORRUPT ? STORE_ADVICE : "");
        return err;
    }
    err = apply_new(node->mvcc, node->members, node->member_count, &node->apply);
    mvcc_read_end(node->mvcc);
    if (err != 0)
        log_error("store: the cluster's state in it cannot be read: %s", keel_strerror(err));
    return err;
}

static int open_log(struct node *node, struct wal_recovery *ret_recovery)
{
    const char *dir = node->wal_dir != NULL ? node->wal_dir : "wal";
    char why[1024];
    int sys_err;
    int err = disk_posix_open(dir, &node->disk, &sys_err);

    if (err != 0) {
        log_error("log: cannot open the directory %s: %s", dir, strerror(sys_err));
        return err;
    }
    const struct wal_options options = {
        .cluster_id = node->identity.cluster_id,
        .node_id = node->identity.id,
        .store_applied = mvcc_applied_index(node->mvcc),
    };

    err = wal_open(node->disk, &options, &node->wal, ret_recovery, why, sizeof why);
    if (err != 0)
        log_error("log: %s", why);
    else if (ret_recovery->tail_cut)
        log_warning("log: the last write before the crash was torn; %s was cut at byte %" PRIu64
                    " (nothing acknowledged was in it)",
                    ret_recovery->cut_file, ret_recovery->cut_offset);
    return err;
}

static void make_replica(struct node *node, struct wal_recovery *recovery)
{
    const struct node_options *o = node->options;
    struct replica_options options = {
        .incarnation = node->identity.incarnation,
        .nonce = random_u64(),
        .request_timeout_us = o->request_timeout_ms * 1000,
        .lease_reads = !o->no_lease_reads,
        .first_file_size_bytes = o->file_size_bytes,
        .first_quota_bytes = o->quota_bytes,
    };

    raft_options_init(&options.raft);
    options.raft.id = node->identity.id;
    options.raft.hard_state = recovery->hard_state;
    options.raft.first_stored_index = 1;
    options.raft.entries = recovery->entries;
    options.raft.entry_count = recovery->count;
    options.raft.seed = random_u64();
    options.raft.heartbeat_us = o->heartbeat_ms * 1000;
    options.raft.election_timeout_us = o->election_timeout_ms * 1000;
    options.raft.lease_us = o->lease_ms * 1000;
    node->replica = replica_new(&node->env, node->apply, &options);
}

/* The identity is written last: where there is one, there must be a log. */
static int settle_identity(struct node *node, const struct wal_recovery *recovery)
{
    char why[512];

    if (node->identity_is_new) {
        int err = identity_save(node->dir_fd, &node->identity, why, sizeof why);

        if (err != 0)
            log_error("%s", why);
        return err;
    }
    if (!recovery->fresh)
        return 0;
    log_error("the log is gone from the data directory: what this node has promised is in it. "
              "Restore it, or remove this member and add it again");
    return KEEL_E_CORRUPT;
}

static int open_local_state(struct node *node)
{
    struct wal_recovery recovery = { 0 };
    int err = open_store(node);

    if (err == 0)
        err = open_log(node, &recovery);
    if (err == 0)
        err = settle_identity(node, &recovery);
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
    const struct apply_member *self =
        find_member(node->members, node->member_count, node->identity.id);

    if (node->options->listen_peer != NULL)
        return check_listen(node, node->options->listen_peer);
    return node->identity_is_new ? check_listen(node, self->address) : 0;
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
    const struct apply_member *members = apply_members(node->apply, &options.member_count);
    const struct apply_member *self = find_member(members, options.member_count, node->identity.id);
    char why[512];

    if (options.listen == NULL)
        options.listen = self->address;
    int err = check_listen(node, options.listen);

    if (err != 0)
        return err;
    for (size_t i = 0; i < options.member_count; i++)
        options.members[i] =
            (struct peer_member){ members[i].id, members[i].name, members[i].address };
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
}

static bool info_connected(void *arg, uint64_t peer)
{
    struct node *node = arg;

    return node->peers != NULL && peer_connected(node->peers, peer);
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
    };
    const struct fs_node_info info = {
        .arg = node,
        .status = info_status,
        .peer_connected = info_connected,
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
    for (size_t i = 0; i < KEEL_ARRAY_LEN(node->signals); i++)
        uv_close((uv_handle_t *)&node->signals[i], NULL);
    node_workers_stop(node);
}

static void on_unmounted(void *arg)
{
    close_handles(arg);
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
    free(node->member_text);
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
    if (!name_is_plain(o->name) || !name_is_plain(o->cluster_token)) {
        log_error("--name and --cluster-token are 1 to 63 letters, digits, '_', '.' or '-'");
        return KEEL_E_INVALID;
    }
    if (o->heartbeat_ms == 0 || o->election_timeout_ms < 4 * o->heartbeat_ms ||
        o->lease_ms >= o->election_timeout_ms) {
        log_error("--election-timeout must be at least 4 heartbeat intervals, and longer than the "
                  "leader lease");
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
        err = open_data_dir(node);
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
    uv_loop_close(&node->loop);
    int exit_code = node->exit_code;

    free_all(node);
    free(node);
    if (exit_code == 0)
        log_info("stopped");
    return exit_code;
}
