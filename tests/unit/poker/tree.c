/* The daemon of the poker's tests. */
#include "tree.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <time.h>
#include <unistd.h>

#include "check.h"
#include "fs/poker_internal.h"

enum { INODES = 4096 };

struct inode {
    mode_t mode; /* 0: never used */
    bool live;
    uint64_t parent, size;
    char name[64];
};

static struct inode inodes[INODES]; /* by number; numbers are not used again */
static uint64_t last_ino = MVCC_ROOT_INO;
static struct fuse_session *session;
static struct fs_nodes *nodes;
static struct poker *poker;
static pid_t poser;
static int control;

/* ---- the tree ---- */

static uint64_t child(uint64_t parent, struct keel_slice name)
{
    for (uint64_t ino = 2; ino <= last_ino; ino++)
        if (inodes[ino].live && inodes[ino].parent == parent &&
            keel_slice_equal(keel_slice_str(inodes[ino].name), name))
            return ino;
    return 0;
}

/* The inode at a path (0: none), its directory and last name. */
static uint64_t resolve(const char *path, uint64_t *ret_parent, const char **ret_name)
{
    uint64_t at = MVCC_ROOT_INO, parent = MVCC_ROOT_INO;
    const char *name = path;

    while (*name) {
        const char *slash = strchr(name, '/');

        parent = at;
        at = child(parent,
                   slash ? keel_slice_of(name, (size_t)(slash - name)) : keel_slice_str(name));
        if (!slash)
            break;
        name = slash + 1;
    }
    *ret_parent = parent;
    *ret_name = name;
    return at;
}

static uint64_t add(uint64_t parent, const char *name, mode_t mode, uint64_t size)
{
    uint64_t ino = ++last_ino;

    KEEL_ASSERT(ino < INODES);
    inodes[ino] = (struct inode){ .mode = mode, .live = true, .parent = parent, .size = size };
    snprintf(inodes[ino].name, sizeof inodes[ino].name, "%s", name);
    return ino;
}

static bool attributes(void *arg, struct fs_node *node, struct stat *ret_stat)
{
    const struct inode *inode = &inodes[node->ino];

    (void)arg;
    *ret_stat = (struct stat){ .st_ino = node->ino,
                               .st_mode = inode->mode,
                               .st_nlink = S_ISDIR(inode->mode) ? 2 : 1,
                               .st_size = (off_t)inode->size };
    return inode->live;
}

static bool path_of(void *arg, uint64_t ino, struct keel_text *text)
{
    (void)arg;
    if (ino == 0 || !inodes[ino].live)
        return false;
    if (ino == MVCC_ROOT_INO)
        return true;
    if (inodes[ino].parent != MVCC_ROOT_INO) { /* the tests' trees are two deep */
        path_of(NULL, inodes[ino].parent, text);
        keel_text_printf(text, "/");
    }
    keel_text_printf(text, "%s", inodes[ino].name);
    return true;
}

static uint64_t child_hook(void *arg, uint64_t parent, struct keel_slice name)
{
    (void)arg;
    return child(parent, name);
}

static uint64_t now_us(void *arg)
{
    struct timespec now;

    (void)arg;
    clock_gettime(CLOCK_BOOTTIME, &now);
    return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
}

/* ---- the mount ---- */

static bool by_poker(fuse_req_t req)
{
    pid_t pid = fuse_req_ctx(req)->pid;

    return poker && (poker_is(poker, pid) || (poser && pid == poser));
}

static struct fs_node *asked(fuse_ino_t ino)
{
    struct fs_node *node = fs_node_get(nodes, ino);

    node->asked_us = now_us(NULL);
    return node;
}

static void entry(fuse_req_t req, uint64_t ino, struct fuse_file_info *fi)
{
    struct fuse_entry_param e = { .ino = ino };
    struct fs_node *node = asked(ino);

    attributes(NULL, node, &e.attr);
    fs_node_looked_up(node);
    if (fi)
        fuse_reply_create(req, &e, fi);
    else
        fuse_reply_entry(req, &e);
}

static void op_lookup(fuse_req_t req, fuse_ino_t parent, const char *name)
{
    if (by_poker(req)) {
        poker_op_lookup(poker, req, parent, name);
        return;
    }
    uint64_t ino = child(parent, keel_slice_str(name));

    asked(parent);
    if (ino)
        entry(req, ino, NULL);
    else
        fuse_reply_err(req, ENOENT);
}

static void op_forget(fuse_req_t req, fuse_ino_t ino, uint64_t count)
{
    struct fs_node *node = fs_node_find(nodes, ino);

    KEEL_ASSERT(node);
    fs_node_forget(nodes, node, count);
    fuse_reply_none(req);
}

static void op_getattr(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    struct stat attr;

    (void)fi;
    if (by_poker(req)) {
        poker_op_getattr(poker, req, ino);
        return;
    }
    attributes(NULL, asked(ino), &attr);
    fuse_reply_attr(req, &attr, 0);
}

static void op_setattr(fuse_req_t req, fuse_ino_t ino, struct stat *attr, int to_set,
                       struct fuse_file_info *fi)
{
    (void)fi;
    if (by_poker(req))
        poker_op_setattr(poker, req, ino, attr, to_set);
    else
        fuse_reply_err(req, ENOSYS);
}

static void op_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    if (by_poker(req)) {
        poker_op_open(poker, req, ino, fi);
        return;
    }
    fs_node_opened(asked(ino));
    fuse_reply_open(req, fi);
}

static void op_release(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    if (fi->fh & POKER_HANDLE_BIT) {
        poker_op_release(poker, req, ino, fi);
        return;
    }
    fs_node_closed(nodes, fs_node_find(nodes, ino));
    fuse_reply_err(req, 0);
}

static void op_create(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode,
                      struct fuse_file_info *fi)
{
    if (by_poker(req)) {
        poker_op_create(poker, req, parent, name, mode, fi);
        return;
    }
    uint64_t ino = add(parent, name, mode, 0);

    fs_node_opened(fs_node_get(nodes, ino));
    entry(req, ino, fi);
}

static void op_mkdir(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode)
{
    if (by_poker(req))
        poker_op_mkdir(poker, req, parent, name, mode);
    else
        fuse_reply_err(req, ENOSYS);
}

static void op_symlink(fuse_req_t req, const char *target, fuse_ino_t parent, const char *name)
{
    if (by_poker(req))
        poker_op_symlink(poker, req, target, parent, name);
    else
        fuse_reply_err(req, ENOSYS);
}

static void op_unlink(fuse_req_t req, fuse_ino_t parent, const char *name)
{
    if (by_poker(req)) {
        poker_op_unlink(poker, req, parent, name);
        return;
    }
    uint64_t ino = child(parent, keel_slice_str(name));

    inodes[ino].live = false;
    fuse_reply_err(req, ino ? 0 : ENOENT);
}

static void op_rmdir(fuse_req_t req, fuse_ino_t parent, const char *name)
{
    if (by_poker(req))
        poker_op_rmdir(poker, req, parent, name);
    else
        fuse_reply_err(req, ENOSYS);
}

static void op_rename(fuse_req_t req, fuse_ino_t parent, const char *name, fuse_ino_t new_parent,
                      const char *new_name, unsigned int flags)
{
    if (by_poker(req))
        poker_op_rename(poker, req, parent, name, new_parent, new_name, flags);
    else
        fuse_reply_err(req, ENOSYS);
}

static void op_setxattr(fuse_req_t req, fuse_ino_t ino, const char *name, const char *value,
                        size_t size, int flags)
{
    (void)value;
    (void)size;
    (void)flags;
    if (by_poker(req))
        poker_op_setxattr(poker, req, ino, name);
    else
        fuse_reply_err(req, EOPNOTSUPP);
}

static void op_getxattr(fuse_req_t req, fuse_ino_t ino, const char *name, size_t size)
{
    (void)ino;
    (void)name;
    (void)size;
    if (by_poker(req))
        poker_op_other(poker, req);
    else
        fuse_reply_err(req, ENODATA);
}

static void op_opendir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    if (by_poker(req)) {
        poker_op_other(poker, req);
        return;
    }
    asked(ino);
    fuse_reply_open(req, fi);
}

static const struct fuse_lowlevel_ops operations = {
    .lookup = op_lookup,
    .forget = op_forget,
    .getattr = op_getattr,
    .setattr = op_setattr,
    .open = op_open,
    .release = op_release,
    .create = op_create,
    .mkdir = op_mkdir,
    .symlink = op_symlink,
    .unlink = op_unlink,
    .rmdir = op_rmdir,
    .rename = op_rename,
    .setxattr = op_setxattr,
    .getxattr = op_getxattr,
    .opendir = op_opendir,
};

/* ---- commands ---- */

static struct mvcc_record record_of(uint64_t ino)
{
    return (struct mvcc_record){
        .kind = S_ISDIR(inodes[ino].mode)   ? MVCC_DIR
                : S_ISLNK(inodes[ino].mode) ? MVCC_SYMLINK
                                            : MVCC_FILE,
        .mode = inodes[ino].mode & 07777,
        .ino = ino,
        .content = { .length = (uint32_t)inodes[ino].size },
    };
}

static bool made(const struct tree_order *order, mode_t mode, enum keel_change_kind kind)
{
    uint64_t parent;
    const char *name;

    if (resolve(order->path, &parent, &name))
        return false;
    uint64_t ino = add(parent, name, mode, order->size);

    poker_change(poker, &(struct keel_change){ .kind = kind,
                                               .ino = ino,
                                               .object = record_of(ino).kind,
                                               .parent = parent,
                                               .name = keel_slice_str(name),
                                               .size = order->size });
    return true;
}

static bool changed(const struct tree_order *order, enum keel_change_kind kind)
{
    uint64_t parent;
    const char *name;
    uint64_t ino = resolve(order->path, &parent, &name);

    if (!ino)
        return false;
    struct mvcc_record before = record_of(ino);

    if (kind == CHANGE_CONTENT)
        inodes[ino].size = order->size;
    if (kind == CHANGE_REMOVE || kind == CHANGE_RMDIR)
        inodes[ino].live = false;
    poker_change(poker, &(struct keel_change){ .kind = kind,
                                               .ino = ino,
                                               .object = before.kind,
                                               .parent = parent,
                                               .name = keel_slice_str(name),
                                               .before = before,
                                               .size = order->size });
    return true;
}

static bool renamed(const struct tree_order *order)
{
    uint64_t parent, new_parent;
    const char *name, *new_name;
    uint64_t ino = resolve(order->path, &parent, &name);
    uint64_t replaced = resolve(order->path2, &new_parent, &new_name);

    if (!ino || ino == replaced)
        return false;
    struct mvcc_record replaced_before = record_of(replaced);

    inodes[replaced].live = false;
    inodes[ino].parent = new_parent;
    snprintf(inodes[ino].name, sizeof inodes[ino].name, "%s", new_name);
    poker_change(poker, &(struct keel_change){ .kind = CHANGE_RENAME,
                                               .ino = ino,
                                               .object = record_of(ino).kind,
                                               .parent = parent,
                                               .name = keel_slice_str(name),
                                               .new_parent = new_parent,
                                               .new_name = keel_slice_str(new_name),
                                               .replaced = replaced,
                                               .before = record_of(ino),
                                               .replaced_before = replaced_before });
    return true;
}

/* One node at a time. */
static struct fs_node *busy_node;

static bool busy(const struct tree_order *order)
{
    uint64_t parent;
    const char *name;

    busy_node = fs_node_get(nodes, resolve(order->path, &parent, &name));
    fs_node_ref(busy_node);
    busy_node->busy = 1;
    return true;
}

static bool idle(void)
{
    busy_node->busy = 0;
    poker_idle(poker, busy_node);
    fs_node_unref(nodes, busy_node);
    return true;
}

static void count_lookups(void *arg, struct fs_node *node)
{
    if (node->nodeid != MVCC_ROOT_INO)
        *(uint64_t *)arg += node->lookups;
}

static void stats(struct tree_reply *reply)
{
    struct poker_stats s;

    poker_drain(poker);
    poker_stats(poker, &s);
    reply->poker = poker->pid;
    reply->sighted = now_us(NULL) < poker->queue.sighted_until_us;
    reply->queued = s.queued;
    reply->done = s.done;
    reply->dropped = s.dropped;
    reply->skipped = s.skipped;
    reply->restarts = s.restarts;
    reply->nodes = fs_nodes_count(nodes);
    fs_nodes_each(nodes, count_lookups, &reply->lookups);
}

static void poker_closed(void *arg)
{
    struct tree_reply reply = { .ok = true };

    (void)arg;
    poker = NULL;
    KEEL_ASSERT(send(control, &reply, sizeof reply, 0) == sizeof reply);
}

static bool obey(const struct tree_order *order, struct tree_reply *reply)
{
    switch (order->command) {
    case TREE_CREATE:
        return made(order, S_IFREG | 0644, CHANGE_CREATE);
    case TREE_MKDIR:
        return made(order, S_IFDIR | 0755, CHANGE_MKDIR);
    case TREE_SYMLINK:
        return made(order, S_IFLNK | 0777, CHANGE_SYMLINK);
    case TREE_CONTENT:
        return changed(order, CHANGE_CONTENT);
    case TREE_ATTR:
        return changed(order, CHANGE_ATTR);
    case TREE_REMOVE:
        return changed(order, CHANGE_REMOVE);
    case TREE_RMDIR:
        return changed(order, CHANGE_RMDIR);
    case TREE_RENAME:
        return renamed(order);
    case TREE_BUSY:
        return busy(order);
    case TREE_IDLE:
        return idle();
    case TREE_POSE:
        poser = (pid_t)order->size;
        return true;
    case TREE_HOARD:
        reply->hoarder = fork();
        if (reply->hoarder == 0)
            for (;;)
                pause();
        return true;
    case TREE_STATS:
        stats(reply);
        return true;
    case TREE_CLOSE_POKER:
    case TREE_QUIT:
        break;
    }
    return false;
}

static void on_control(uv_poll_t *poll, int status, int events)
{
    struct tree_order order;
    struct tree_reply reply = { 0 };

    (void)poll;
    (void)status;
    (void)events;
    ssize_t len = recv(control, &order, sizeof order, MSG_DONTWAIT);

    if (len < 0 && errno == EAGAIN)
        return;
    if (len != sizeof order || order.command == TREE_QUIT)
        exit(0);
    if (order.command == TREE_CLOSE_POKER) {
        poker_close(poker, poker_closed, NULL);
        return;
    }
    reply.ok = obey(&order, &reply);
    KEEL_ASSERT(send(control, &reply, sizeof reply, 0) == sizeof reply);
}

static void on_request(uv_poll_t *poll, int status, int events)
{
    static struct fuse_buf buf;

    (void)status;
    (void)events;
    for (;;) {
        int len = fuse_session_receive_buf(session, &buf);

        if (len == -EAGAIN || len == -EINTR)
            return;
        if (len <= 0) {
            uv_poll_stop(poll);
            return;
        }
        fuse_session_process_buf(session, &buf);
    }
}

/* The device of the mount at this path, without touching it: the daemon must not wait for itself.
 */
static dev_t device_of(const char *mount_point)
{
    FILE *file = fopen("/proc/self/mountinfo", "re");
    char line[1024], at[512];
    unsigned minor_number = 0, id;

    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "%*u %*u 0:%u %*s %511s", &id, at) == 2 && strcmp(at, mount_point) == 0)
            minor_number = id;
    KEEL_ASSERT(file && minor_number);
    fclose(file);
    return makedev(0, minor_number);
}

void tree_serve(const char *mount_point, int socket)
{
    char *argv[] = { "tree", "-oallow_other,default_permissions,fsname=poker-test", NULL };
    struct fuse_args args = FUSE_ARGS_INIT(2, argv);
    struct poker_hooks hooks = { NULL, attributes, path_of, child_hook, now_us };
    uv_loop_t *loop = uv_default_loop();
    uv_poll_t requests, commands;

    control = socket;
    nodes = fs_nodes_new();
    inodes[MVCC_ROOT_INO] = (struct inode){ .mode = S_IFDIR | 0755, .live = true };
    fs_node_looked_up(fs_node_get(nodes, MVCC_ROOT_INO));
    session = fuse_session_new(&args, &operations, sizeof operations, NULL);
    if (!session || fuse_session_mount(session, mount_point) != 0)
        exit(3);
    fcntl(fuse_session_fd(session), F_SETFL, O_NONBLOCK | O_RDWR);
    uv_poll_init(loop, &requests, fuse_session_fd(session));
    uv_poll_start(&requests, UV_READABLE, on_request);
    uv_poll_init(loop, &commands, control);
    uv_poll_start(&commands, UV_READABLE, on_control);
    if (poker_new(loop, mount_point, device_of(mount_point), nodes, &hooks, &poker) != 0)
        exit(4);
    KEEL_ASSERT(send(control, &(struct tree_reply){ .ok = true }, sizeof(struct tree_reply), 0) >
                0);
    uv_run(loop, UV_RUN_DEFAULT);
    exit(0);
}
