/* flush and release: what a close commits, and when. FLUSH comes at each close of each descriptor,
 * and its answer is what close(2) returns; RELEASE comes once, after the last, and its answer
 * reaches nobody. */
#include <stdlib.h>

#include "check.h"
#include "err.h"
#include "fs/fs_internal.h"
#include "fs/proc.h"

/* Is this close by the process that wrote last, or is that one gone? A child's close says nothing.
 */
static bool writer_closes(const struct fs_handle *h, pid_t pid)
{
    pid_t group;

    if (pid == h->writer || pid == 0)
        return true;
    group = proc_group(h->writer);
    return group == 0 || group == proc_group(pid);
}

/* Looks into /proc/PID/fd are counted: beyond so many a second, RELEASE has to do. */
static bool may_look(struct fs *fs)
{
    uint64_t second = fs->now_us / 1000000;

    if (second != fs->fd_looks_second) {
        fs->fd_looks_second = second;
        fs->fd_looks = 0;
    }
    return fs->fd_looks++ < FS_FD_LOOKS_PER_S;
}

/* The path by which the opener holds it; false: there is none any more. */
static bool open_path(struct fs *fs, const struct fs_handle *h, struct keel_text *text)
{
    const struct fs_creation *creation = h->node->creation;
    const struct mvcc_key *key = mvcc_by_ino(fs->mvcc, h->node->ino), *dir;
    struct keel_slice name;

    if (h->via != NULL) {
        dir = mvcc_by_ino(fs->mvcc, h->via->view->parent);
        name = keel_slice_str(h->via->view->name);
    } else if (creation != NULL) {
        dir = mvcc_by_ino(fs->mvcc, creation->parent);
        name = keel_slice_of(creation->name, creation->name_len);
    } else {
        dir = key != NULL ? mvcc_parent(key) : NULL;
        name = key != NULL ? mvcc_name(key) : keel_slice_of(NULL, 0);
    }
    if (dir == NULL)
        return false;
    mvcc_path(dir, text);
    if (text->len > 0)
        keel_text_printf(text, "/");
    keel_text_append(text, name);
    return true;
}

/* The close of the opener's last descriptor of that file. A lease must not end while a child has
 * inherited one: then it is RELEASE that ends it. */
static bool opener_is_through(struct fs *fs, const struct fs_handle *h, pid_t pid)
{
    struct keel_text path = { 0 };
    bool through = pid == h->opener && pid != 0 && may_look(fs) &&
                   (!h->hold || proc_childless(pid)) && open_path(fs, h, &path) &&
                   !proc_holds(pid, keel_slice_str(fs->options.mount_point),
                               keel_slice_of(path.data, path.len));

    keel_text_free(&path);
    return through;
}

static void flushed(struct fs_request *rq, int err, const struct command_result *result)
{
    request_answer(rq, commit_end(rq, err, result));
}

static void flush(struct fs *fs, fuse_req_t req, fuse_ino_t ino, struct fs_handle *h)
{
    pid_t pid = fuse_req_ctx(req)->pid;
    bool through;

    if (h->staged.len > 0 && !writer_closes(h, pid)) {
        answer_error(req, 0);
        return;
    }
    if (h->staged.len > 0 && proc_killed(pid))
        commit_drop(fs, h); /* half a value is no value */
    through = settle_is_due(h) && (h->staged.len == 0 || h->hold) && opener_is_through(fs, h, pid);
    if (h->staged.len == 0 && !through) {
        answer_error(req, 0);
        return;
    }
    struct fs_request *rq = request_new(fs, req);
    struct fs_node *node = op_node(fs, ino);

    if (node != NULL)
        request_use(rq, node, false);
    request_use_handle(rq, h);
    rq->essential = true;
    if (through)
        settle(rq, h);
    else
        commit_held(rq, h, flushed);
}

static void op_flush(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    struct fs_handle *h = fs_handle_of(fi);

    if (fs_is_poker_handle(fi) || h->kind != HANDLE_FILE)
        answer_error(req, 0);
    else if (h->lost)
        answer_error(req, KEEL_E_LOST);
    else if (!settle_is_due(h))
        answer_error(req, 0);
    else
        flush(fs_of(req), req, ino, h);
}

static void op_release(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    struct fs *fs = fs_of(req);

    if (fs_is_poker_handle(fi)) {
        if (fs->poker != NULL)
            poker_op_release(fs->poker, req, ino, fi);
        else
            answer_error(req, 0);
        return;
    }
    answer_error(req, 0); /* at once: later ones queue behind it */
    handle_settle(fs, fs_handle_of(fi));
}

void op_closing(struct fuse_lowlevel_ops *ops)
{
    ops->flush = op_flush;
    ops->release = op_release;
}
