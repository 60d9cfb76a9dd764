/* The mount as a whole: mounting, the session's descriptor on the loop, unmounting, the end. */
#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "err.h"
#include "fs/fs_internal.h"
#include "log.h"
#include "mountinfo.h"

enum { MAX_WRITE = 1 << 20, MAX_BACKGROUND = 1024, CONGESTION = 768 };

/* ---- the session's settings ---- */

static void op_init(void *arg, struct fuse_conn_info *conn)
{
    /* splice would only copy; a split read could arrive out of order, and break a run; the
     * attributes of readdirplus would be worthless at once; suid and sgid are cleared by apply
     * (version 2 of that is announced below) */
    unsigned unwanted = FUSE_CAP_SPLICE_READ | FUSE_CAP_SPLICE_WRITE | FUSE_CAP_SPLICE_MOVE |
                        FUSE_CAP_ASYNC_DIO | FUSE_CAP_READDIRPLUS | FUSE_CAP_READDIRPLUS_AUTO |
                        FUSE_CAP_WRITEBACK_CACHE | FUSE_CAP_HANDLE_KILLPRIV |
                        FUSE_CAP_AUTO_INVAL_DATA;

    (void)arg;
    conn->want &= ~unwanted;
    conn->want |= conn->capable & (FUSE_CAP_ATOMIC_O_TRUNC | FUSE_CAP_PARALLEL_DIROPS);
    conn->max_write = MAX_WRITE;
    conn->max_background = MAX_BACKGROUND;
    conn->congestion_threshold = CONGESTION;
    conn->time_gran = 1;
}

/* libfuse 3.14 has no name for HANDLE_KILLPRIV_V2: it is set in the answer to INIT on its way out.
 * Without it each O_TRUNC costs a GETXATTR of security.capability. */
static ssize_t device_read(int fd, void *bytes, size_t size, void *arg)
{
    struct fs *fs = arg;
    ssize_t len = read(fd, bytes, size);
    const struct fuse_in_header *header = bytes;
    const struct fuse_init_in *init = (const struct fuse_init_in *)(header + 1);

    if (len >= (ssize_t)(sizeof *header + sizeof init->major * 4) && header->opcode == FUSE_INIT &&
        (init->flags & FUSE_HANDLE_KILLPRIV_V2) != 0)
        fs->init_unique = header->unique;
    return len;
}

static ssize_t device_writev(int fd, struct iovec *iov, int count, void *arg)
{
    struct fs *fs = arg;
    const struct fuse_out_header *header = iov[0].iov_base;

    if (fs->init_unique != 0 && header->unique == fs->init_unique && count > 1) {
        struct fuse_init_out *init = iov[1].iov_base;

        init->flags |= FUSE_HANDLE_KILLPRIV_V2;
        fs->init_unique = 0;
    }
    return writev(fd, iov, count);
}

static void log_from_fuse(enum fuse_log_level level, const char *fmt, va_list ap)
    __attribute__((format(printf, 2, 0)));

static void log_from_fuse(enum fuse_log_level level, const char *fmt, va_list ap)
{
    char line[512];

    vsnprintf(line, sizeof line, fmt, ap);
    line[strcspn(line, "\n")] = '\0';
    if (level <= FUSE_LOG_ERR)
        log_error("fuse: %s", line);
    else
        log_info("fuse: %s", line);
}

/* ---- requests in ---- */

static void close_down(struct fs *fs);

/* The kernel has ended it: unmounted, or aborted. */
static void session_ended(struct fs *fs)
{
    if (!fs->mounted)
        return;
    fs->mounted = false;
    uv_poll_stop(&fs->poll);
    fs_requests_stop(fs);
    if (fs->done == NULL)
        close_down(fs); /* not asked for */
}

static void on_readable(uv_poll_t *poll, int status, int events)
{
    struct fs *fs = poll->data;

    (void)events;
    if (status < 0) { /* EBADF, POLLERR: the connection was aborted */
        session_ended(fs);
        return;
    }
    for (int i = 0; i < FS_TURN_REQUESTS; i++) {
        int len = fuse_session_receive_buf(fs->session, &fs->buf);

        if (len == -EINTR)
            continue;
        if (len == -EAGAIN)
            return;
        fs->now_us = replica_now_us(fs->replica);
        if (len <= 0) {
            session_ended(fs);
            return;
        }
        if (!removed_refuses(fs, fs->buf.mem))
            fuse_session_process_buf(fs->session, &fs->buf);
        if (fuse_session_exited(fs->session)) {
            session_ended(fs);
            return;
        }
    }
}

/* ---- the poker's questions ---- */

static bool hook_attributes(void *arg, struct fs_node *node, struct stat *ret_stat)
{
    return attr_of_node(arg, node, ret_stat) == 0;
}

static bool hook_path(void *arg, uint64_t ino, struct keel_text *text)
{
    struct fs *fs = arg;
    const struct mvcc_key *key = mvcc_by_ino(fs->mvcc, ino);

    if (key == NULL)
        return false;
    mvcc_path(key, text);
    return true;
}

static uint64_t hook_child(void *arg, uint64_t parent, struct keel_slice name)
{
    struct fs *fs = arg;
    const struct fs_creation *creation = creation_find(fs, parent, name);
    const struct mvcc_key *key = mvcc_by_ino(fs->mvcc, parent);

    if (creation != NULL) /* here, though not committed yet */
        return creation->node->ino;
    if (key != NULL && mvcc_live_kind(key) == MVCC_DIR)
        key = mvcc_child(fs->mvcc, key, name);
    else
        key = NULL;
    uint64_t ino = key != NULL ? mvcc_live_ino(key) : 0;

    return change_is_lost(fs, ino) ? 0 : ino;
}

static uint64_t hook_now(void *arg)
{
    const struct fs *fs = arg;

    return replica_now_us(fs->replica);
}

static void start_poker(struct fs *fs)
{
    struct poker_hooks hooks = { fs, hook_attributes, hook_path, hook_child, hook_now };
    int err = fs->options.poke ? poker_new(fs->loop, fs->options.mount_point, fs->dev, fs->nodes,
                                           &hooks, &fs->poker)
                               : 0;

    if (err != 0) {
        fs->poker = NULL;
        log_warning("the poker cannot be started (%s): changes made on other nodes raise no "
                    "inotify events here",
                    keel_strerror(err));
    }
}

/* ---- mounting ---- */

static const char *keep(const char *s)
{
    return keel_strdup(s != NULL ? s : "");
}

static void drop_view(void *arg, struct fs_node *node)
{
    view_free(arg, node);
}

static struct fs *fs_new(uv_loop_t *loop, struct replica *replica, const struct fs_options *options,
                         const struct fs_node_info *info)
{
    struct fs *fs = keel_calloc(1, sizeof *fs);

    fs->loop = loop;
    fs->replica = replica;
    fs->mvcc = replica_mvcc(replica);
    fs->options = *options;
    fs->options.mount_point = keep(options->mount_point);
    fs->options.source = keep(options->source);
    fs->options.mount_options = keep(options->mount_options);
    fs->options.name = keep(options->name);
    fs->info = *info;
    fs->now_us = replica_now_us(replica);
    fs->nodes = fs_nodes_new();
    fs_nodes_on_drop(fs->nodes, drop_view, fs);
    fs_node_ref(fs_node_get(fs->nodes, FUSE_ROOT_ID));
    fs->walks = fs_walks_new();
    fs->unmount_fd = -1;
    fs->next_view = 1;
    keel_list_init(&fs->waiting);
    keel_list_init(&fs->free_requests);
    keel_list_init(&fs->creations);
    keel_list_init(&fs->handles);
    keel_list_init(&fs->snapshot.reads);
    keel_list_init(&fs->bound);
    return fs;
}

/* libfuse splits options at commas. */
static void append_escaped(struct keel_text *text, const char *s)
{
    for (; *s != '\0'; s++)
        keel_text_printf(text, *s == ',' || *s == '\\' ? "\\%c" : "%c", *s);
}

static struct fuse_session *new_session(struct fs *fs)
{
    struct fuse_lowlevel_ops ops = { .init = op_init };
    struct fuse_args args = FUSE_ARGS_INIT(0, NULL);
    struct keel_text options = { 0 };

    keel_text_printf(&options, "-oallow_other,default_permissions,subtype=keelfs,fsname=");
    append_escaped(&options, fs->options.source);
    if (fs->options.mount_options[0] != '\0')
        keel_text_printf(&options, ",%s", fs->options.mount_options);
    op_names(&ops);
    op_attributes(&ops);
    op_directories(&ops);
    op_opening(&ops);
    op_content(&ops);
    op_closing(&ops);
    fuse_set_log_func(log_from_fuse);
    KEEL_ASSERT(fuse_opt_add_arg(&args, "keelfs") == 0 &&
                fuse_opt_add_arg(&args, options.data) == 0);
    struct fuse_session *session = fuse_session_new(&args, &ops, sizeof ops, fs);

    fuse_opt_free_args(&args);
    keel_text_free(&options);
    return session;
}

static int mount_session(struct fs *fs, char *ret_why, size_t why_size)
{
    static const struct fuse_custom_io io = { .writev = device_writev, .read = device_read };

    fs->session = new_session(fs);
    if (fs->session == NULL) {
        snprintf(ret_why, why_size, "mount options \"%s\": not understood by FUSE",
                 fs->options.mount_options);
        return KEEL_E_INVALID;
    }
    errno = 0;
    if (fuse_session_mount(fs->session, fs->options.mount_point) != 0) {
        snprintf(ret_why, why_size, "cannot mount on %s: %s; run as root, and check /dev/fuse",
                 fs->options.mount_point, errno != 0 ? strerror(errno) : "refused by FUSE");
        return KEEL_E_IO;
    }
    int fd = fuse_session_fd(fs->session);

    if (fuse_session_custom_io(fs->session, &io, fd) != 0 ||
        fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK) != 0) {
        snprintf(ret_why, why_size, "cannot serve %s: %s", fs->options.mount_point,
                 strerror(errno));
        umount2(fs->options.mount_point, MNT_DETACH);
        return KEEL_E_IO;
    }
    return 0;
}

static void serve(struct fs *fs)
{
    struct mountinfo info = { 0 };

    KEEL_ASSERT(uv_poll_init(fs->loop, &fs->poll, fuse_session_fd(fs->session)) == 0);
    KEEL_ASSERT(uv_timer_init(fs->loop, &fs->timer) == 0);
    fs->poll.data = fs->timer.data = fs;
    fs->open_handles = 2;
    fs->mounted = true;
    uv_poll_start(&fs->poll, UV_READABLE, on_readable);
    if (mountinfo_find(NULL, fs->options.mount_point, &info)) {
        fs->dev = info.dev;
        start_poker(fs);
    } else
        log_warning("%s is not in /proc/self/mountinfo: no inotify events of remote changes",
                    fs->options.mount_point);
}

int fs_mount(uv_loop_t *loop, struct replica *replica, const struct fs_options *options,
             const struct fs_node_info *info, struct fs **ret_fs, char *ret_why, size_t why_size)
{
    struct fs *fs = fs_new(loop, replica, options, info);
    int err = mount_session(fs, ret_why, why_size);

    if (err != 0) {
        fs_free(fs);
        return err;
    }
    serve(fs);
    *ret_fs = fs;
    return 0;
}

/* ---- the end ---- */

static void finish(struct fs *fs)
{
    void (*done)(void *arg) = fs->done != NULL ? fs->done : fs->gone;
    void *arg = fs->done != NULL ? fs->done_arg : fs->gone_arg;

    if (done != NULL)
        done(arg);
}

static void on_closed(uv_handle_t *handle)
{
    struct fs *fs = handle->data;

    if (--fs->open_handles == 0)
        finish(fs);
}

static void close_handles(void *arg)
{
    struct fs *fs = arg;

    fs->poker = NULL;
    uv_close((uv_handle_t *)&fs->poll, on_closed);
    uv_close((uv_handle_t *)&fs->timer, on_closed);
}

/* Poker, then libuv's handles, then the caller is told. */
static void close_down(struct fs *fs)
{
    struct poker *poker = fs->poker;

    if (fs->closing)
        return;
    fs->closing = true;
    handles_let_go(fs);
    uv_timer_stop(&fs->timer);
    if (poker != NULL)
        poker_close(poker, close_handles, fs);
    else
        close_handles(fs);
}

/* The child is through: it held the other end. */
static void on_unmounted(uv_poll_t *poll, int status, int events)
{
    struct fs *fs = poll->data;
    int code = 0;

    (void)status;
    (void)events;
    uv_poll_stop(poll);
    if (waitpid(fs->unmount_pid, &code, 0) == fs->unmount_pid && code != 0)
        log_error("%s cannot be unmounted", fs->options.mount_point);
    close(fs->unmount_fd);
    fs->unmount_fd = -1;
    uv_close((uv_handle_t *)poll, on_closed);
    close_down(fs);
}

/* Only calls that are safe after fork in a process with threads. */
_Noreturn static void unmount_child(const char *mount_point)
{
    int failed = umount2(mount_point, UMOUNT_NOFOLLOW);

    if (failed != 0 && errno == EBUSY)
        failed = umount2(mount_point, UMOUNT_NOFOLLOW | MNT_DETACH);
    _exit(failed == 0 || errno == EINVAL ? 0 : 1); /* EINVAL: not mounted any more */
}

static bool start_unmount(struct fs *fs)
{
    int ends[2];

    if (pipe2(ends, O_CLOEXEC) != 0)
        return false;
    fs->unmount_pid = fork();
    if (fs->unmount_pid == 0)
        unmount_child(fs->options.mount_point);
    close(ends[1]);
    if (fs->unmount_pid < 0) {
        close(ends[0]);
        return false;
    }
    fs->unmount_fd = ends[0];
    KEEL_ASSERT(uv_poll_init(fs->loop, &fs->unmount_poll, ends[0]) == 0);
    fs->unmount_poll.data = fs;
    fs->open_handles++;
    uv_poll_start(&fs->unmount_poll, UV_READABLE | UV_DISCONNECT, on_unmounted);
    return true;
}

static void unmount(void *arg)
{
    struct fs *fs = arg;

    fs->poker = NULL;
    if (!fs->mounted)
        close_down(fs); /* the kernel was faster */
    else if (!start_unmount(fs)) {
        log_error("%s cannot be unmounted: %s", fs->options.mount_point, strerror(errno));
        close_down(fs);
    }
}

void fs_unmount(struct fs *fs, void (*done)(void *arg), void *arg)
{
    struct poker *poker = fs->poker;

    KEEL_ASSERT(fs->done == NULL);
    fs->done = done;
    fs->done_arg = arg;
    if (fs->closing) { /* the session has ended by itself: done comes instead of gone, or after it
                        */
        if (fs->open_handles == 0)
            done(arg);
        return;
    }
    fs_requests_stop(fs);
    if (poker != NULL)
        poker_close(poker, unmount, fs);
    else
        unmount(fs);
}

void fs_on_gone(struct fs *fs, void (*gone)(void *arg), void *arg)
{
    fs->gone = gone;
    fs->gone_arg = arg;
}

static void free_creations(struct fs *fs)
{
    for (size_t i = 0; i < FS_CREATION_BUCKETS; i++)
        while (fs->creation_buckets[i] != NULL)
            creation_drop(fs, fs->creation_buckets[i]);
}

/* libfuse unmounts by path unless its descriptor says that the connection has ended; after a lazy
 * unmount the path could be somebody else's mount. So its descriptor becomes one that says so: a
 * pipe without a reader. */
static void free_session(struct fs *fs)
{
    int ends[2];

    if (fs->session == NULL)
        return;
    if (fuse_session_fd(fs->session) >= 0 && pipe2(ends, O_CLOEXEC) == 0) {
        close(ends[0]);
        if (dup2(ends[1], fuse_session_fd(fs->session)) >= 0)
            fuse_session_unmount(fs->session);
        close(ends[1]);
    }
    fuse_session_destroy(fs->session);
}

void fs_free(struct fs *fs)
{
    if (fs == NULL)
        return;
    free_session(fs);
    free(fs->buf.mem);
    handles_free(fs);
    free_creations(fs);
    fs_requests_free(fs);
    fs_nodes_free(fs->nodes);
    fs_walks_free(fs->walks);
    free((void *)(uintptr_t)fs->options.mount_point);
    free((void *)(uintptr_t)fs->options.source);
    free((void *)(uintptr_t)fs->options.mount_options);
    free((void *)(uintptr_t)fs->options.name);
    free(fs);
}

void fs_pulse(const struct fs *fs, uint64_t *ret_requests, uint64_t *ret_answers)
{
    *ret_requests = fs->requests;
    *ret_answers = fs->answers;
}

void fs_stats(const struct fs *fs, struct fs_stats *ret_stats)
{
    struct poker_stats poker = { 0 };

    if (fs->poker != NULL)
        poker_stats(fs->poker, &poker);
    *ret_stats = (struct fs_stats){
        .requests = fs->requests,
        .waiting = fs->waiting_count,
        .handles = fs->handle_count,
        .nodes = fs_nodes_count(fs->nodes),
        .staged_bytes = fs->staged_bytes,
        .tickets_queued = poker.queued,
        .tickets_done = poker.done,
        .tickets_dropped = poker.dropped,
        .tickets_skipped = poker.skipped,
    };
}
