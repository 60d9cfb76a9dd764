/* read, write, fsync, fallocate, copy_file_range. */
#include <fcntl.h>
#include <linux/falloc.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "err.h"
#include "fs/fs_internal.h"

/* ---- read ---- */

static void answer_range(struct fs_request *rq, struct keel_slice bytes)
{
    size_t start = rq->offset < bytes.len ? (size_t)rq->offset : bytes.len;
    size_t len = bytes.len - start < rq->size ? bytes.len - start : rq->size;

    request_answer_data(rq, keel_slice_of(bytes.data + start, len));
}

static void answer_range_or(struct fs_request *rq, int err, struct keel_slice bytes)
{
    if (err != 0)
        request_answer(rq, err);
    else
        answer_range(rq, bytes);
}

static void answer_content(struct fs_request *rq)
{
    struct keel_slice bytes;
    int err = content_of(rq->fs, &rq->handle->content, &bytes);

    answer_range_or(rq, err, bytes);
}

/* A run that began at offset 0 sees the content of one revision, to its end. */
static void answer_pinned(struct fs_request *rq)
{
    struct fs_handle *h = rq->handle;

    h->pin_next =
        rq->offset + rq->size < h->content.length ? rq->offset + rq->size : h->content.length;
    if (rq->offset >= h->content.length)
        h->pinned = false; /* told that this is the end: what comes is new */
    answer_content(rq);
}

static void read_current(struct fs_request *rq, int err, const struct command_result *result)
{
    struct fs *fs = rq->fs;
    struct fs_handle *h = rq->handle;
    const struct mvcc_key *key = mvcc_by_ino(fs->mvcc, h->node->ino);
    struct mvcc_record record;

    (void)result;
    if (err == 0 && h->node->orphan) {
        struct keel_slice bytes;

        err = orphan_content(fs, h->node, &bytes);
        answer_range_or(rq, err, bytes);
        return;
    }
    if (err == 0 && h->node->provisional) {
        answer_range(rq, keel_slice_of(NULL, 0));
        return;
    }
    if (err == 0)
        err = key != NULL ? mvcc_get(fs->mvcc, key, 0, &record) : KEEL_E_STALE;
    if (err != 0) {
        request_answer(rq, err);
        return;
    }
    h->pinned = rq->offset == 0;
    h->content = record.content;
    answer_pinned(rq);
}

/* What the handle holds back is its own content. False: it has none. */
static bool read_own(struct fs_request *rq)
{
    struct fs_handle *h = rq->handle;

    if (h->kind == HANDLE_TEXT)
        answer_range(rq, keel_slice_of(h->text.data, h->text.len));
    else if (h->kind == HANDLE_SNAPSHOT)
        snapshot_read(rq);
    else if (h->kind == HANDLE_PAST)
        answer_content(rq);
    else if (h->node->orphan)
        read_current(rq, commit_fold(rq->fs, h), NULL);
    else if (handle_begins_anew(h))
        answer_range(rq, keel_slice_of(h->staged.data, h->staged.len));
    else if (h->node->provisional)
        read_current(rq, 0, NULL);
    else
        return false;
    return true;
}

static void op_read(fuse_req_t req, fuse_ino_t ino, size_t size, off_t offset,
                    struct fuse_file_info *fi)
{
    struct fs *fs = fs_of(req);
    struct fs_node *node = op_node(fs, ino);

    if (fs_is_poker_handle(fi) || node == NULL) {
        answer_error(req, node == NULL ? KEEL_E_STALE : KEEL_E_PERM);
        return;
    }
    struct fs_request *rq = request_new(fs, req);
    struct fs_handle *h = fs_handle_of(fi);

    rq->size = size;
    rq->offset = (uint64_t)offset;
    request_use(rq, node, false);
    request_use_handle(rq, h);
    if (h->lost)
        request_answer(rq, KEEL_E_LOST);
    else if (read_own(rq))
        return;
    else if (h->pinned && offset != 0 && rq->offset == h->pin_next)
        answer_pinned(rq);
    else
        request_barrier(rq, read_current);
}

/* ---- write ---- */

static void written(struct fs_request *rq, int err, const struct command_result *result)
{
    err = commit_end(rq, err, result);
    if (err != 0)
        request_answer(rq, err);
    else
        request_answer_write(rq, rq->size);
}

static int check_write(const struct fs_handle *h)
{
    if (h->kind != HANDLE_FILE)
        return KEEL_E_BADFD;
    if (h->lost)
        return KEEL_E_LOST;
    if (h->too_big)
        return KEEL_E_FILETOOBIG;
    return h->failed ? KEEL_E_IO : 0;
}

static void write_orphan(fuse_req_t req, struct fs_handle *h, struct keel_slice piece,
                         uint64_t offset, bool append)
{
    int err = commit_fold(fs_of(req), h);

    if (err == 0)
        err = orphan_write(fs_of(req), h->node, piece, offset, append);
    if (err != 0)
        answer_error(req, err);
    else
        fuse_reply_write(req, piece.len);
}

static void op_write(fuse_req_t req, fuse_ino_t ino, const char *data, size_t size, off_t offset,
                     struct fuse_file_info *fi)
{
    struct fs *fs = fs_of(req);
    struct fs_node *node = op_node(fs, ino);

    if (fs_is_poker_handle(fi) || node == NULL) {
        answer_error(req, node == NULL ? KEEL_E_STALE : KEEL_E_PERM);
        return;
    }
    if (node_is_keel(node)) {
        control_write(req, node, keel_slice_of(data, size));
        return;
    }
    const struct fuse_ctx *ctx = fuse_req_ctx(req);
    struct fs_handle *h = fs_handle_of(fi);
    struct keel_slice piece = keel_slice_of(data, size);
    bool append = (fi->flags & O_APPEND) != 0;
    struct defer_buffer buffer = {
        .offset = (uint64_t)offset,
        .len = size,
        .flags = fi->flags,
        .uid = ctx->uid,
        .uid_bytes = commit_staged_of(fs, ctx->uid),
        .node_bytes = fs->staged_bytes,
        .size_limit = apply_settings(replica_apply(fs->replica))->file_size_bytes,
    };
    int err = check_write(h);

    h->pinned = false;
    h->writer = ctx->pid;
    if (err != 0) {
        answer_error(req, err);
    } else if (h->node->orphan) {
        write_orphan(req, h, piece, buffer.offset, append);
    } else if (commit_defer(fs, h, &buffer, piece)) {
        fuse_reply_write(req, size);
    } else {
        struct fs_request *rq = request_new(fs, req);

        rq->size = size;
        request_use(rq, node, true);
        request_use_handle(rq, h);
        commit_write(rq, h, piece, buffer.offset, append, written);
    }
}

/* ---- fsync ---- */

static void synced(struct fs_request *rq, int err, const struct command_result *result)
{
    request_answer(rq, commit_end(rq, err, result));
}

static void op_fsync(fuse_req_t req, fuse_ino_t ino, int datasync, struct fuse_file_info *fi)
{
    struct fs *fs = fs_of(req);
    struct fs_node *node = op_node(fs, ino);
    struct fs_handle *h = fs_handle_of(fi);

    (void)datasync;
    if (fs_is_poker_handle(fi) || node == NULL || h->kind != HANDLE_FILE) {
        answer_error(req, 0);
        return;
    }
    if (h->lost) {
        answer_error(req, KEEL_E_LOST);
        return;
    }
    if (!commit_is_due(h) && h->committing == 0) {
        h->fresh = false;
        answer_error(req, 0);
        return;
    }
    struct fs_request *rq = request_new(fs, req);

    request_use(rq, node, true);
    request_use_handle(rq, h);
    if (commit_is_due(h))
        commit_held(rq, h, synced);
    else
        request_fence(rq, synced); /* another thread's commit is under way */
}

/* ---- fallocate ---- */

static int check_fallocate(const struct fs_handle *h, int mode, off_t offset, off_t length)
{
    int known = FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE | FALLOC_FL_ZERO_RANGE;
    int err = check_write(h);

    if (err != 0)
        return err;
    if ((mode & ~known) != 0)
        return KEEL_E_NOTSUPPORTED;
    if ((mode & FALLOC_FL_KEEP_SIZE) == 0 &&
        (offset > KEEL_FILE_SIZE_MAX || length > KEEL_FILE_SIZE_MAX - offset))
        return KEEL_E_FILETOOBIG;
    return 0;
}

static void fill_fallocate(Keel__SetAttr *set, int mode, uint64_t offset, uint64_t end)
{
    if ((mode & FALLOC_FL_KEEP_SIZE) == 0) {
        set->set = KEEL__ATTR__ATTR_SIZE;
        set->size = end;
        set->grow_only = true;
    }
    if (mode & (FALLOC_FL_PUNCH_HOLE | FALLOC_FL_ZERO_RANGE)) {
        set->zero_from = offset;
        set->zero_to = end;
    }
}

static int fallocate_orphan(struct fs *fs, struct fs_node *node, const Keel__SetAttr *set)
{
    int err = set->grow_only ? orphan_resize(fs, node, set->size, true) : 0;

    return err == 0 && set->zero_from < set->zero_to
               ? orphan_zero(fs, node, set->zero_from, set->zero_to)
               : err;
}

static void allocated(struct fs_request *rq, int err, const struct command_result *result)
{
    if (err == 0 && rq->handle->conditional && result->revision != 0)
        rq->handle->condition = result->revision;
    request_answer(rq, err == KEEL_E_NOTFOUND ? KEEL_E_STALE : err);
}

static void op_fallocate(fuse_req_t req, fuse_ino_t ino, int mode, off_t offset, off_t length,
                         struct fuse_file_info *fi)
{
    struct fs *fs = fs_of(req);
    struct fs_node *node = op_node(fs, ino);
    struct fs_handle *h = fs_handle_of(fi);
    Keel__Command command = KEEL__COMMAND__INIT;
    Keel__SetAttr set = KEEL__SET_ATTR__INIT;

    if (fs_is_poker_handle(fi) || node == NULL) {
        answer_error(req, KEEL_E_PERM);
        return;
    }
    int err = check_fallocate(h, mode, offset, length);

    fill_fallocate(&set, mode, (uint64_t)offset, (uint64_t)offset + (uint64_t)length);
    if (err == 0 && h->node->orphan)
        err = commit_fold(fs, h);
    if (err == 0 && h->node->orphan)
        err = fallocate_orphan(fs, h->node, &set);
    else if (err == 0 && mode != FALLOC_FL_KEEP_SIZE) {
        struct fs_request *rq = request_new(fs, req);
        Keel__Condition condition = KEEL__CONDITION__INIT;

        request_use(rq, node, true);
        request_use_handle(rq, h);
        commit_held_ahead(fs, h);
        h->fresh = false;
        if (h->node->creation != NULL)
            creation_commit(fs, h->node->creation);
        condition.revision = h->condition;
        if (h->conditional && h->committing == 0)
            set.condition = &condition;
        set.ino = h->node->ino;
        set.keep_id = rq->uid == 0;
        command.op_case = KEEL__COMMAND__OP_SET_ATTR;
        command.set_attr = &set;
        request_propose(rq, &command, keel_slice_of(NULL, 0), allocated);
        return;
    }
    answer_error(req, err);
}

/* ---- copy_file_range ---- */

static void copied(struct fs_request *rq, int err, const struct command_result *result)
{
    if (err == 0)
        request_answer_write(rq, (size_t)result->value);
    else
        request_answer(rq, err == KEEL_E_NOTFOUND ? KEEL_E_STALE : err);
}

/* The target begins with this copy: the bytes are taken here, so that creation and content are one
 * revision. */
static void copy_first(struct fs_request *rq, int err, const struct command_result *result)
{
    struct fs *fs = rq->fs;
    const struct mvcc_key *key = mvcc_by_ino(fs->mvcc, rq->source->node->ino);
    struct mvcc_record record;

    (void)result;
    struct keel_slice bytes;

    if (err == 0)
        err = key != NULL ? mvcc_get(fs->mvcc, key, 0, &record) : KEEL_E_STALE;
    if (err == 0)
        err = content_of(fs, &record.content, &bytes);
    if (err != 0) {
        request_answer(rq, err);
        return;
    }
    size_t start = rq->source_offset < bytes.len ? (size_t)rq->source_offset : bytes.len;
    size_t len = bytes.len - start < rq->size ? bytes.len - start : rq->size;

    rq->size = len;
    if (len == 0)
        request_answer_write(rq, 0);
    else
        commit_write(rq, rq->handle, keel_slice_of(bytes.data + start, len), rq->offset, false,
                     written);
}

static void propose_copy(struct fs_request *rq)
{
    Keel__Command command = KEEL__COMMAND__INIT;
    Keel__CopyRange copy = KEEL__COPY_RANGE__INIT;

    copy.source = rq->source->node->ino;
    copy.source_offset = rq->source_offset;
    copy.target = rq->handle->node->ino;
    copy.target_offset = rq->offset;
    copy.length = rq->size;
    copy.keep_id = rq->uid == 0;
    command.op_case = KEEL__COMMAND__OP_COPY_RANGE;
    command.copy_range = &copy;
    rq->handle->pinned = false;
    request_propose(rq, &command, keel_slice_of(NULL, 0), copied);
}

/* Only between two files that are there, or one that begins: the kernel reads and writes itself
 * otherwise. */
static int check_copy(const struct fs_handle *from, const struct fs_handle *to)
{
    int err = check_write(to);

    if (err != 0)
        return err;
    if (from->kind != HANDLE_FILE || from->node->orphan || from->node->provisional ||
        from->staged.len > 0 || to->node->orphan || to->conditional || to->node == from->node)
        return KEEL_E_XDEV;
    return from->lost ? KEEL_E_LOST : 0;
}

static void op_copy_file_range(fuse_req_t req, fuse_ino_t ino_in, off_t off_in,
                               struct fuse_file_info *fi_in, fuse_ino_t ino_out, off_t off_out,
                               struct fuse_file_info *fi_out, size_t len, int flags)
{
    struct fs *fs = fs_of(req);
    struct fs_node *node = op_node(fs, ino_out);
    struct fs_handle *from = fs_handle_of(fi_in), *to = fs_handle_of(fi_out);

    (void)ino_in;
    (void)flags;
    if (fs_is_poker_handle(fi_in) || fs_is_poker_handle(fi_out) || node == NULL) {
        answer_error(req, KEEL_E_PERM);
        return;
    }
    int err = check_copy(from, to);

    if (err != 0) {
        answer_error(req, err);
        return;
    }
    struct fs_request *rq = request_new(fs, req);

    rq->source_offset = (uint64_t)off_in;
    rq->offset = (uint64_t)off_out;
    rq->size = len;
    rq->source = handle_ref(from);
    request_use(rq, node, true);
    request_use_handle(rq, to);
    if (to->fresh || to->binding || commit_is_due(to) || to->truncation != TRUNCATION_NONE)
        request_barrier(rq, copy_first);
    else
        propose_copy(rq);
}

void op_content(struct fuse_lowlevel_ops *ops)
{
    ops->read = op_read;
    ops->write = op_write;
    ops->fsync = op_fsync;
    ops->fallocate = op_fallocate;
    ops->copy_file_range = op_copy_file_range;
}
