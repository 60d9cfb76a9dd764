/* Names to nodes, and what a node is: lookup, forget, getattr, setattr, readlink, statfs, extended
 * attributes. */
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "check.h"
#include "err.h"
#include "fs/fs_internal.h"

enum { NS_PER_S = 1000000000 };

struct fs_node *op_node(struct fs *fs, fuse_ino_t ino)
{
    return fs_node_find(fs->nodes, ino);
}

/* ---- lookup ---- */

static int find_live(struct fs *fs, const struct fs_node *dir, struct keel_slice name,
                     struct fs_node **ret_node, struct stat *ret_attr)
{
    const struct mvcc_key *key = mvcc_by_ino(fs->mvcc, dir->ino);
    struct fs_creation *creation = creation_find(fs, dir->ino, name);

    if (creation != NULL) {
        *ret_node = creation->node;
        return attr_of_node(fs, creation->node, ret_attr);
    }
    if (key == NULL)
        return KEEL_E_NOTFOUND;
    if (mvcc_live_kind(key) != MVCC_DIR)
        return KEEL_E_NOTDIR;
    key = mvcc_child(fs->mvcc, key, name);
    uint64_t ino = key != NULL ? mvcc_live_ino(key) : 0;

    if (ino == 0)
        return KEEL_E_NOTFOUND;
    struct fs_node *node = fs_node_by_ino(fs->nodes, ino);

    *ret_node = node != NULL ? node : fs_node_get(fs->nodes, ino);
    return attr_of_key(fs, key, ret_attr);
}

static int find_child(struct fs *fs, struct fs_node *dir, const char *name,
                      struct fs_node **ret_node, struct stat *ret_attr)
{
    struct fs_name parsed;
    int err = fs_name_parse(keel_slice_str(name), &parsed);

    if (err == 0 && dir->view != NULL)
        err = parsed.words != 0 ? KEEL_E_INVALID : view_child(fs, dir, name, ret_node);
    else if (err == 0 && parsed.words != 0)
        err = view_lookup(fs, dir, &parsed, name, ret_node);
    else if (err == 0)
        return find_live(fs, dir, parsed.base, ret_node, ret_attr);
    return err != 0 ? err : view_attr(fs, *ret_node, ret_attr);
}

/* The thread's walk goes on from a node that was found, or from a directory that was looked at. */
static void walk_on(struct fs_request *rq, const struct fs_node *node)
{
    struct fs *fs = rq->fs;
    const struct mvcc_key *key = NULL;

    if (rq->continues && node->view == NULL) /* else it was found under a barrier of its own */
        key = mvcc_by_ino(fs->mvcc, node->ino);
    fs_walk_step(fs->walks, rq->pid, node->nodeid, key, node->ino, rq->barrier_us,
                 replica_now_us(fs->replica));
}

static void looked_up(struct fs_request *rq, int err, const struct command_result *result)
{
    struct fs *fs = rq->fs;
    struct fs_node *node = NULL;
    struct stat attr;

    (void)result;
    if (err == 0)
        err = find_child(fs, rq->nodes[0], rq->name, &node, &attr);
    if (err == KEEL_E_NOTFOUND && rq->continues) { /* that ends the walk: not without a barrier */
        request_walk_end(rq, rq->nodes[0]->nodeid, looked_up);
        return;
    }
    if (node != NULL)
        request_use(rq, node, false);
    if (err != 0) {
        fs_walk_end(fs->walks, rq->pid);
        request_answer(rq, err);
        return;
    }
    node->asked_us = fs->now_us;
    if (!node_is_keel(node))
        walk_on(rq, node);
    request_answer_entry(rq, node, &attr, view_entry_timeout(node));
}

/* A view of a file that exists only here so far: it is committed first. */
static struct fs_creation *creation_behind(struct fs *fs, const struct fs_node *dir,
                                           const char *name)
{
    struct fs_name parsed;

    if (fs->creation_count == 0 || dir->view != NULL || strchr(name, '@') == NULL ||
        fs_name_parse(keel_slice_str(name), &parsed) != 0 || parsed.words == 0)
        return NULL;
    return creation_find(fs, dir->ino, parsed.base);
}

static void op_lookup(fuse_req_t req, fuse_ino_t parent, const char *name)
{
    struct fs *fs = fs_of(req);
    struct fs_node *dir = op_node(fs, parent);

    if (fs_is_poker(fs, req)) {
        poker_op_lookup(fs->poker, req, parent, name);
        return;
    }
    if (dir == NULL) {
        answer_error(req, KEEL_E_STALE);
        return;
    }
    struct fs_request *rq = request_new(fs, req);
    struct fs_creation *creation = creation_behind(fs, dir, name);

    request_use(rq, dir, false);
    rq->name = keel_strdup(name);
    if (creation != NULL) {
        creation_commit(fs, creation);
        rq->barrier_us = fs->now_us;
        request_fence(rq, looked_up);
    } else if (node_is_keel(dir) || (parent == FUSE_ROOT_ID && strcmp(name, "@keel") == 0)) {
        looked_up(rq, 0, NULL);
    } else {
        request_walk(rq, parent, looked_up);
    }
}

static void forget(struct fs *fs, fuse_ino_t ino, uint64_t n)
{
    struct fs_node *node = op_node(fs, ino);

    if (node != NULL)
        fs_node_forget(fs->nodes, node, n);
}

static void op_forget(fuse_req_t req, fuse_ino_t ino, uint64_t n)
{
    forget(fs_of(req), ino, n);
    fuse_reply_none(req);
}

static void op_forget_multi(fuse_req_t req, size_t count, struct fuse_forget_data *forgets)
{
    for (size_t i = 0; i < count; i++)
        forget(fs_of(req), forgets[i].ino, forgets[i].nlookup);
    fuse_reply_none(req);
}

/* ---- getattr ---- */

/* A writer sees the size of what it has written, though it is held back: it seeks to the end of it.
 * fstat comes without its descriptor, lseek with it. */
static int attr_for(const struct fs_request *rq, struct fs_node *node, struct stat *ret_attr)
{
    const struct fs_handle *h = rq->handle;
    int err = attr_of_node(rq->fs, node, ret_attr);

    if (h == NULL)
        h = commit_holder(rq->fs, node, rq->pid);
    if (err == 0 && h != NULL && handle_begins_anew(h)) {
        ret_attr->st_size = (off_t)h->staged.len;
        ret_attr->st_blocks = ((blkcnt_t)h->staged.len + 511) / 512;
    }
    return err;
}

static void answer_attr(struct fs_request *rq, struct fs_node *node)
{
    struct stat attr;
    int err = attr_for(rq, node, &attr);

    if (err != 0)
        request_answer(rq, err);
    else
        request_answer_attr(rq, &attr, attr_timeout(&attr));
}

static void got_attr(struct fs_request *rq, int err, const struct command_result *result)
{
    struct fs *fs = rq->fs;
    struct fs_node *node = rq->nodes[0];
    struct stat attr;

    (void)result;
    if (err == 0)
        err = attr_for(rq, node, &attr);
    /* of a directory it may be a permission check on the way: the walk goes on */
    if (err == 0 && rq->continues && S_ISDIR(attr.st_mode))
        walk_on(rq, node);
    else
        fs_walk_end(fs->walks, rq->pid);
    if (err == 0 && rq->ends_walk)
        fs_walk_looked(fs->walks, rq->pid, node->nodeid, replica_now_us(fs->replica));
    if (err != 0)
        request_answer(rq, err);
    else
        request_answer_attr(rq, &attr, attr_timeout(&attr));
}

static bool node_is_live_dir(const struct fs *fs, const struct fs_node *node)
{
    const struct mvcc_key *key = node->view == NULL ? mvcc_by_ino(fs->mvcc, node->ino) : NULL;

    return key != NULL && mvcc_live_kind(key) == MVCC_DIR;
}

static void op_getattr(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    struct fs *fs = fs_of(req);
    struct fs_node *node = op_node(fs, ino);

    if (fs_is_poker(fs, req)) {
        poker_op_getattr(fs->poker, req, ino);
        return;
    }
    if (node == NULL) {
        answer_error(req, KEEL_E_STALE);
        return;
    }
    struct fs_request *rq = request_new(fs, req);

    node->asked_us = fs->now_us;
    request_use(rq, node, false);
    if (fi != NULL && !fs_is_poker_handle(fi))
        request_use_handle(rq, fs_handle_of(fi));
    /* the root without a barrier: df and @keel have to work when there is no quorum, and it is
     * always there */
    if (node->provisional || node->orphan || node_is_keel(node) || ino == FUSE_ROOT_ID)
        answer_attr(rq, node);
    else if (node_is_live_dir(fs, node))
        request_walk(rq, ino, got_attr);
    else
        request_walk_end(rq, ino, got_attr);
}

/* ---- setattr ---- */

static int64_t ns_of(struct timespec t)
{
    return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

static void fill_set_attr(const struct fs_request *rq, Keel__SetAttr *set)
{
    static const struct {
        int fuse;
        uint32_t attr;
    } bits[] = {
        { FUSE_SET_ATTR_MODE, KEEL__ATTR__ATTR_MODE },
        { FUSE_SET_ATTR_UID, KEEL__ATTR__ATTR_UID },
        { FUSE_SET_ATTR_GID, KEEL__ATTR__ATTR_GID },
        { FUSE_SET_ATTR_SIZE, KEEL__ATTR__ATTR_SIZE },
        { FUSE_SET_ATTR_ATIME | FUSE_SET_ATTR_ATIME_NOW, KEEL__ATTR__ATTR_ATIME },
        { FUSE_SET_ATTR_MTIME | FUSE_SET_ATTR_MTIME_NOW, KEEL__ATTR__ATTR_MTIME },
    };

    for (size_t i = 0; i < KEEL_ARRAY_LEN(bits); i++)
        if (rq->to_set & bits[i].fuse)
            set->set |= bits[i].attr;
    if (rq->to_set & FUSE_SET_ATTR_ATIME_NOW)
        set->now |= KEEL__ATTR__ATTR_ATIME;
    if (rq->to_set & FUSE_SET_ATTR_MTIME_NOW)
        set->now |= KEEL__ATTR__ATTR_MTIME;
    set->mode = rq->attr.st_mode & 07777;
    set->uid = rq->attr.st_uid;
    set->gid = rq->attr.st_gid;
    set->size = (uint64_t)rq->attr.st_size;
    set->atime_ns = ns_of(rq->attr.st_atim);
    set->mtime_ns = ns_of(rq->attr.st_mtim);
    set->keep_id = rq->uid == 0;
}

static int set_attr_of_orphan(struct fs_request *rq, struct fs_node *node)
{
    struct mvcc_record *record = node->record;
    int set = rq->to_set;

    if (set & FUSE_SET_ATTR_MODE)
        record->mode = (uint16_t)(rq->attr.st_mode & 07777);
    if (set & FUSE_SET_ATTR_UID)
        record->uid = rq->attr.st_uid;
    if (set & FUSE_SET_ATTR_GID)
        record->gid = rq->attr.st_gid;
    if (set & FUSE_SET_ATTR_ATIME)
        record->atime_ns = ns_of(rq->attr.st_atim);
    if (set & FUSE_SET_ATTR_MTIME)
        record->mtime_ns = ns_of(rq->attr.st_mtim);
    return set & FUSE_SET_ATTR_SIZE ? orphan_resize(rq->fs, node, (uint64_t)rq->attr.st_size, false)
                                    : 0;
}

/* touch(1) of a file that is bound to a lease renews it. */
static void renew_if_touched(struct fs_request *rq, const struct fs_node *node)
{
    const struct mvcc_key *key = mvcc_by_ino(rq->fs->mvcc, node->ino);
    struct mvcc_record record;

    if ((rq->to_set & (FUSE_SET_ATTR_MTIME | FUSE_SET_ATTR_MTIME_NOW)) == 0 || key == NULL)
        return;
    if (mvcc_get(rq->fs->mvcc, key, 0, &record) == 0 && record.lease != 0)
        replica_lease_renew(rq->fs->replica, record.lease);
}

static void attr_set(struct fs_request *rq, int err, const struct command_result *result)
{
    struct fs_node *node = rq->nodes[rq->node_count - 1];

    if (err == KEEL_E_NOTFOUND && node->orphan) {
        err = rq->handle != NULL ? commit_fold(rq->fs, rq->handle) : 0;
        if (err == 0)
            err = set_attr_of_orphan(rq, node);
    } else if (err == KEEL_E_NOTFOUND)
        err = KEEL_E_STALE;
    else if (err == 0)
        renew_if_touched(rq, node);
    if (err == 0 && result != NULL && rq->handle != NULL && rq->handle->conditional &&
        result->revision != 0)
        rq->handle->condition = result->revision;
    if (err != 0)
        request_answer(rq, err);
    else
        answer_attr(rq, node);
}

static void propose_set_attr(struct fs_request *rq, struct fs_node *node);

/* touch(1) of a file that exists only here so far: its creation is all there is to do, unless it
 * turns out to be another node's file. */
static void touched(struct fs_request *rq, int err, const struct command_result *result)
{
    struct fs_node *node = rq->nodes[rq->node_count - 1];
    bool ours = err == 0 && result->ino == node->nodeid;

    err = commit_end(rq, err, result);
    if (err != 0)
        request_answer(rq, err);
    else if (ours)
        answer_attr(rq, node);
    else
        propose_set_attr(rq, node);
}

/* node: the live one, or one that is created here. */
static void propose_set_attr(struct fs_request *rq, struct fs_node *node)
{
    Keel__Command command = KEEL__COMMAND__INIT;
    Keel__SetAttr set = KEEL__SET_ATTR__INIT;
    Keel__Condition condition = KEEL__CONDITION__INIT;
    const struct fs_view *view = rq->nodes[0]->view;

    fill_set_attr(rq, &set);
    if (set.set == 0) {
        answer_attr(rq, node);
        return;
    }
    if (node->creation != NULL && node->creation->handle != NULL && set.set == set.now &&
        node->creation->handle->staged.len == 0 && commit_is_due(node->creation->handle)) {
        commit_held(rq, node->creation->handle, touched);
        return;
    }
    if (rq->handle != NULL)
        commit_held_ahead(rq->fs, rq->handle);
    commit_held_by(rq->fs, node, rq->pid);
    if (node->creation != NULL)
        creation_commit(rq->fs, node->creation);
    if (view != NULL && (view->words.words & WORD_IF) && rq->handle == NULL) {
        condition.revision = view->words.if_revision;
        set.condition = &condition;
    }
    set.ino = node->ino;
    command.op_case = KEEL__COMMAND__OP_SET_ATTR;
    command.set_attr = &set;
    request_propose(rq, &command, keel_slice_of(NULL, 0), attr_set);
}

/* ftruncate(fd, 0) waits for the write that follows. */
static bool truncates_later(const struct fs_request *rq)
{
    const struct fs_handle *h = rq->handle;

    return h != NULL && h->kind == HANDLE_FILE && !h->node->orphan && rq->attr.st_size == 0 &&
           (rq->to_set & FUSE_SET_ATTR_SIZE) != 0 &&
           (rq->to_set & ~(FUSE_SET_ATTR_SIZE | FUSE_SET_ATTR_CTIME)) == 0 &&
           handle_may_defer(h, DEFER_TRUNCATION, NULL);
}

static void truncate_later(struct fs_request *rq)
{
    struct stat attr;
    int err;

    commit_truncate(rq->fs, rq->handle);
    err = attr_of_node(rq->fs, rq->handle->node, &attr);
    if (err != 0) {
        request_answer(rq, err);
        return;
    }
    attr.st_size = 0; /* for this descriptor it is so */
    attr.st_blocks = 0;
    request_answer_attr(rq, &attr, 0);
}

/* The node that a change of attributes is for. */
static int set_attr_target(struct fs_request *rq, struct fs_node *node, struct fs_node **ret_node)
{
    struct fs *fs = rq->fs;
    const struct fs_view *view = node->view;
    struct fs_creation *creation;

    *ret_node = node;
    if (view == NULL)
        return 0;
    if (view->kind == VIEW_PAST)
        return KEEL_E_READONLY;
    if (view->kind != VIEW_CONDITIONAL)
        return KEEL_E_PERM;
    creation = creation_find(fs, view->parent, view->words.base);
    uint64_t ino = view_base(fs, view);

    if (creation == NULL && ino == 0)
        return KEEL_E_STALE;
    if (creation != NULL)
        *ret_node = creation->node;
    else if ((*ret_node = fs_node_by_ino(fs->nodes, ino)) == NULL)
        *ret_node = fs_node_get(fs->nodes, ino);
    request_use(rq, *ret_node, false);
    return 0;
}

static void op_setattr(fuse_req_t req, fuse_ino_t ino, struct stat *attr, int to_set,
                       struct fuse_file_info *fi)
{
    struct fs *fs = fs_of(req);
    struct fs_node *node = op_node(fs, ino), *target;

    if (fs_is_poker(fs, req)) {
        poker_op_setattr(fs->poker, req, ino, attr, to_set);
        return;
    }
    if (node == NULL) {
        answer_error(req, KEEL_E_STALE);
        return;
    }
    struct fs_request *rq = request_new(fs, req);

    request_use(rq, node, true);
    rq->attr = *attr;
    rq->to_set = to_set;
    if (fi != NULL && !fs_is_poker_handle(fi))
        request_use_handle(rq, fs_handle_of(fi));
    int err = set_attr_target(rq, node, &target);

    if (err == 0 && rq->handle != NULL && rq->handle->lost)
        err = KEEL_E_LOST;
    if (err != 0)
        request_answer(rq, err);
    else if (truncates_later(rq))
        truncate_later(rq);
    else if (target->orphan)
        attr_set(rq, KEEL_E_NOTFOUND, NULL);
    else
        propose_set_attr(rq, target);
}

/* ---- readlink, statfs ---- */

static void read_link(struct fs_request *rq, int err, const struct command_result *result)
{
    struct fs *fs = rq->fs;
    const struct fs_node *node = rq->nodes[0];
    const struct mvcc_key *key;
    struct mvcc_record record = { 0 };

    (void)result;
    fs_walk_end(fs->walks, rq->pid);
    if (err == 0 && node->view != NULL) {
        err = view_record(fs->mvcc, node->view->key, node->view->rev, &record);
    } else if (err == 0) {
        key = mvcc_by_ino(fs->mvcc, node->ino);
        err = key != NULL ? mvcc_get(fs->mvcc, key, 0, &record) : KEEL_E_STALE;
    }
    if (err == 0 && record.kind != MVCC_SYMLINK)
        err = KEEL_E_INVALID;
    struct keel_slice target;

    if (err == 0)
        err = content_of(fs, &record.content, &target);
    if (err != 0)
        request_answer(rq, err);
    else
        request_answer_readlink(rq, target);
}

static void op_readlink(fuse_req_t req, fuse_ino_t ino)
{
    struct fs *fs = fs_of(req);
    struct fs_node *node = op_node(fs, ino);

    if (fs_is_poker(fs, req)) {
        poker_op_other(fs->poker, req);
        return;
    }
    if (node == NULL || (node->view != NULL && node->view->kind != VIEW_PAST)) {
        answer_error(req, node == NULL ? KEEL_E_STALE : KEEL_E_INVALID);
        return;
    }
    struct fs_request *rq = request_new(fs, req);

    request_use(rq, node, false);
    request_walk_end(rq, ino, read_link);
}

static void op_statfs(fuse_req_t req, fuse_ino_t ino)
{
    struct fs *fs = fs_of(req);
    struct statvfs stat;

    (void)ino;
    fs_statvfs(fs, &stat);
    request_answer_statfs(request_new(fs, req), &stat);
}

/* ---- extended attributes ---- */

static const struct mvcc_key *attributed_key(struct fs *fs, const struct fs_node *node)
{
    const struct fs_view *view = node->view;

    if (view == NULL)
        return mvcc_by_ino(fs->mvcc, node->ino);
    if (view->kind == VIEW_CONDITIONAL)
        return mvcc_by_ino(fs->mvcc, view_base(fs, view));
    return NULL;
}

static void got_xattr(struct fs_request *rq, int err, const struct command_result *result)
{
    struct fs *fs = rq->fs;
    const struct mvcc_key *key = attributed_key(fs, rq->nodes[0]);
    struct keel_text text = { 0 };

    (void)result;
    fs_walk_end(fs->walks, rq->pid);
    if (err == 0 && key == NULL)
        err = rq->nodes[0]->view != NULL || rq->nodes[0]->orphan ? KEEL_E_NOATTR : KEEL_E_STALE;
    if (err == 0)
        err = xattr_get(fs->replica, key, rq->name, &text);
    if (err != 0)
        request_answer(rq, err);
    else
        request_answer_xattr(rq, keel_slice_of(text.data, text.len), rq->size);
    keel_text_free(&text);
}

static void op_getxattr(fuse_req_t req, fuse_ino_t ino, const char *name, size_t size)
{
    struct fs *fs = fs_of(req);
    struct fs_node *node = op_node(fs, ino);

    if (fs_is_poker(fs, req) || strncmp(name, "user.", 5) != 0) {
        answer_error(req, KEEL_E_NOTSUPPORTED); /* asked often, by ls and at writes: no barrier */
        return;
    }
    if (node == NULL) {
        answer_error(req, KEEL_E_STALE);
        return;
    }
    struct fs_request *rq = request_new(fs, req);

    request_use(rq, node, false);
    rq->name = keel_strdup(name);
    rq->size = size;
    if (node->creation != NULL) {
        creation_commit(fs, node->creation);
        request_fence(rq, got_xattr);
    } else {
        request_walk_end(rq, ino, got_xattr);
    }
}

static void op_listxattr(fuse_req_t req, fuse_ino_t ino, size_t size)
{
    struct fs *fs = fs_of(req);
    struct fs_node *node = op_node(fs, ino);
    const struct mvcc_key *key = node != NULL ? attributed_key(fs, node) : NULL;
    struct keel_text text = { 0 };

    if (fs->options.list_xattr && key != NULL)
        xattr_list(fs->replica, key, &text);
    request_answer_xattr(request_new(fs, req), keel_slice_of(text.data, text.len), size);
    keel_text_free(&text);
}

static void op_setxattr(fuse_req_t req, fuse_ino_t ino, const char *name, const char *value,
                        size_t size, int flags)
{
    struct fs *fs = fs_of(req);

    (void)value;
    (void)size;
    (void)flags;
    if (fs_is_poker(fs, req))
        poker_op_setxattr(fs->poker, req, ino, name);
    else
        answer_error(req, xattr_set_error(name));
}

static void op_removexattr(fuse_req_t req, fuse_ino_t ino, const char *name)
{
    (void)ino;
    answer_error(req, xattr_set_error(name));
}

void op_attributes(struct fuse_lowlevel_ops *ops)
{
    ops->lookup = op_lookup;
    ops->forget = op_forget;
    ops->forget_multi = op_forget_multi;
    ops->getattr = op_getattr;
    ops->setattr = op_setattr;
    ops->readlink = op_readlink;
    ops->statfs = op_statfs;
    ops->getxattr = op_getxattr;
    ops->listxattr = op_listxattr;
    ops->setxattr = op_setxattr;
    ops->removexattr = op_removexattr;
}
