/* Names come and go: mkdir, mknod, symlink, unlink, rmdir, rename. Each is one command; what is
 * allowed is decided where it is applied. */
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "check.h"
#include "err.h"
#include "fs/fs_internal.h"

/* The directory of an operation that changes it; NULL: answered. */
static struct fs_node *changeable_dir(struct fs *fs, fuse_req_t req, fuse_ino_t ino)
{
    struct fs_node *dir = op_node(fs, ino);

    if (dir != NULL && dir->view == NULL)
        return dir;
    answer_error(req, dir == NULL         ? KEEL_E_STALE
                      : node_is_keel(dir) ? KEEL_E_PERM
                                          : KEEL_E_READONLY);
    return NULL;
}

static ProtobufCBinaryData data_of(struct keel_slice bytes)
{
    return (ProtobufCBinaryData){ bytes.len, (uint8_t *)(uintptr_t)bytes.data };
}

/* ---- new names ---- */

static void made(struct fs_request *rq, int err, const struct command_result *result)
{
    struct stat attr;

    if (err != 0) {
        request_answer(rq, err);
        return;
    }
    struct fs_node *node = fs_node_get(rq->fs->nodes, result->ino);

    request_use(rq, node, false);
    err = attr_of_node(rq->fs, node, &attr);
    if (err != 0)
        request_answer(rq, err);
    else
        request_answer_entry(rq, node, &attr, 0);
}

/* rq: name, mode (with the type), target of a symlink. */
static void make(struct fs_request *rq, int err, const struct command_result *result)
{
    Keel__Command command = KEEL__COMMAND__INIT;
    Keel__Create create = KEEL__CREATE__INIT;
    uint64_t ino = err == 0 ? replica_new_ino(rq->fs->replica) : 0;

    (void)result;
    if (err != 0) {
        request_answer(rq, err);
        return;
    }
    if (ino == 0) {
        request_ready(rq, make);
        return;
    }
    create.parent = rq->nodes[0]->ino;
    create.name = data_of(keel_slice_str(rq->name));
    create.kind = S_ISDIR(rq->mode)   ? KEEL__KIND__DIR
                  : S_ISLNK(rq->mode) ? KEEL__KIND__SYMLINK
                                      : KEEL__KIND__FILE;
    create.mode = rq->mode & 07777;
    create.uid = rq->uid;
    create.gid = rq->gid;
    create.ino = ino;
    create.exclusive = true;
    command.op_case = KEEL__COMMAND__OP_CREATE;
    command.create = &create;
    request_propose(rq, &command,
                    rq->target != NULL ? keel_slice_str(rq->target) : keel_slice_of(NULL, 0), made);
}

static void make_in(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode,
                    const char *target)
{
    struct fs *fs = fs_of(req);
    struct fs_node *dir = changeable_dir(fs, req, parent);
    struct fs_name parsed;

    if (dir == NULL)
        return;
    int err = fs_name_parse(keel_slice_str(name), &parsed);

    if (err == 0 && parsed.words != 0)
        err = KEEL_E_INVALID;
    if (err == 0 && target != NULL && strlen(target) > KEEL_SYMLINK_MAX)
        err = KEEL_E_NAMETOOLONG;
    if (err != 0) {
        answer_error(req, err);
        return;
    }
    struct fs_request *rq = request_new(fs, req);

    request_use(rq, dir, true);
    rq->name = keel_strdup(name);
    rq->mode = mode;
    rq->target = target != NULL ? keel_strdup(target) : NULL;
    make(rq, 0, NULL);
}

static void op_mkdir(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode)
{
    struct fs *fs = fs_of(req);

    if (fs_is_poker(fs, req))
        poker_op_mkdir(fs->poker, req, parent, name, mode);
    else
        make_in(req, parent, name, S_IFDIR | (mode & 07777), NULL);
}

static void op_mknod(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode, dev_t dev)
{
    struct fs *fs = fs_of(req);

    (void)dev;
    if (fs_is_poker(fs, req))
        poker_op_other(fs->poker, req);
    else if (!S_ISREG(mode))
        answer_error(req, KEEL_E_PERM);
    else
        make_in(req, parent, name, mode, NULL);
}

static void op_symlink(fuse_req_t req, const char *target, fuse_ino_t parent, const char *name)
{
    struct fs *fs = fs_of(req);

    if (fs_is_poker(fs, req))
        poker_op_symlink(fs->poker, req, target, parent, name);
    else
        make_in(req, parent, name, S_IFLNK | 0777, target);
}

static void op_link(fuse_req_t req, fuse_ino_t ino, fuse_ino_t new_parent, const char *new_name)
{
    (void)ino;
    (void)new_parent;
    (void)new_name;
    answer_error(req, KEEL_E_PERM); /* no hard links */
}

/* ---- names that go ---- */

static void answered(struct fs_request *rq, int err, const struct command_result *result)
{
    (void)result;
    request_answer(rq, err);
}

/* A name of an operation that changes it: ordinary, or one with `@if=`, which becomes its
 * condition. */
static int changeable_name(const char *name, struct fs_name *ret_parsed)
{
    int err = fs_name_parse(keel_slice_str(name), ret_parsed);

    if (err != 0 || ret_parsed->words == 0 || ret_parsed->words == WORD_IF)
        return err;
    return ret_parsed->words & WORD_REV ? KEEL_E_READONLY : KEEL_E_PERM;
}

/* The node that the kernel has locked as the victim, if it is known; what exists only here is
 * committed first. */
static struct fs_node *settle_name(struct fs *fs, const struct fs_node *dir, struct keel_slice name)
{
    const struct mvcc_key *key = mvcc_by_ino(fs->mvcc, dir->ino);
    struct fs_creation *creation = creation_find(fs, dir->ino, name);

    if (creation != NULL) {
        struct fs_node *node = creation->node;

        creation_commit(fs, creation);
        return node;
    }
    key = key != NULL ? mvcc_child(fs->mvcc, key, name) : NULL;
    uint64_t ino = key != NULL ? mvcc_live_ino(key) : 0;

    return ino != 0 ? fs_node_by_ino(fs->nodes, ino) : NULL;
}

static void remove_name(fuse_req_t req, fuse_ino_t parent, const char *name, bool directory)
{
    struct fs *fs = fs_of(req);
    struct fs_node *dir = changeable_dir(fs, req, parent), *victim;
    Keel__Command command = KEEL__COMMAND__INIT;
    Keel__Remove remove = KEEL__REMOVE__INIT;
    Keel__Condition condition = KEEL__CONDITION__INIT;
    struct fs_name parsed;

    if (dir == NULL)
        return;
    int err = changeable_name(name, &parsed);

    if (err != 0) {
        answer_error(req, err);
        return;
    }
    struct fs_request *rq = request_new(fs, req);

    request_use(rq, dir, true);
    victim = settle_name(fs, dir, parsed.base);
    if (victim != NULL)
        request_use(rq, victim, true);
    if (victim != NULL && directory)
        creation_commit_in(fs, victim->ino);
    remove.parent = dir->ino;
    remove.name = data_of(parsed.base);
    remove.directory = directory;
    condition.revision = parsed.if_revision;
    if (parsed.words != 0)
        remove.condition = &condition;
    command.op_case = KEEL__COMMAND__OP_REMOVE;
    command.remove = &remove;
    request_propose(rq, &command, keel_slice_of(NULL, 0), answered);
}

static void op_unlink(fuse_req_t req, fuse_ino_t parent, const char *name)
{
    struct fs *fs = fs_of(req);

    if (fs_is_poker(fs, req))
        poker_op_unlink(fs->poker, req, parent, name);
    else
        remove_name(req, parent, name, false);
}

static void op_rmdir(fuse_req_t req, fuse_ino_t parent, const char *name)
{
    struct fs *fs = fs_of(req);

    if (fs_is_poker(fs, req))
        poker_op_rmdir(fs->poker, req, parent, name);
    else
        remove_name(req, parent, name, true);
}

/* ---- rename ---- */

static int check_rename(const char *name, const char *new_name, unsigned int flags,
                        struct fs_name *ret_from, struct fs_name *ret_to)
{
    int err = (flags & ~(unsigned)RENAME_NOREPLACE) != 0 ? KEEL_E_INVALID : 0;

    if (err == 0)
        err = changeable_name(name, ret_from);
    if (err == 0)
        err = changeable_name(new_name, ret_to);
    return err == 0 && ret_from->words != 0 ? KEEL_E_INVALID : err;
}

static void rename_to(fuse_req_t req, struct fs_node *dir, const struct fs_name *from,
                      struct fs_node *new_dir, const struct fs_name *to, unsigned int flags)
{
    struct fs *fs = fs_of(req);
    struct fs_request *rq = request_new(fs, req);
    struct fs_node *node = settle_name(fs, dir, from->base);
    Keel__Command command = KEEL__COMMAND__INIT;
    Keel__Rename rename = KEEL__RENAME__INIT;
    Keel__Condition condition = KEEL__CONDITION__INIT;

    request_use(rq, dir, true);
    if (new_dir != dir)
        request_use(rq, new_dir, true);
    rq->renames_across = new_dir != dir;
    if (node != NULL)
        request_use(rq, node, true);
    node = settle_name(fs, new_dir, to->base);
    if (node != NULL)
        request_use(rq, node, true);
    rename.parent = dir->ino;
    rename.name = data_of(from->base);
    rename.new_parent = new_dir->ino;
    rename.new_name = data_of(to->base);
    rename.no_replace = (flags & RENAME_NOREPLACE) != 0;
    condition.revision = to->if_revision;
    if (to->words != 0)
        rename.condition = &condition;
    command.op_case = KEEL__COMMAND__OP_RENAME;
    command.rename = &rename;
    request_propose(rq, &command, keel_slice_of(NULL, 0), answered);
}

static void op_rename(fuse_req_t req, fuse_ino_t parent, const char *name, fuse_ino_t new_parent,
                      const char *new_name, unsigned int flags)
{
    struct fs *fs = fs_of(req);
    struct fs_name from, to;

    if (fs_is_poker(fs, req)) {
        poker_op_rename(fs->poker, req, parent, name, new_parent, new_name, flags);
        return;
    }
    struct fs_node *dir = changeable_dir(fs, req, parent);
    struct fs_node *new_dir = dir != NULL ? changeable_dir(fs, req, new_parent) : NULL;

    if (new_dir == NULL)
        return;
    int err = check_rename(name, new_name, flags, &from, &to);

    if (err != 0)
        answer_error(req, err);
    else
        rename_to(req, dir, &from, new_dir, &to, flags);
}

void op_names(struct fuse_lowlevel_ops *ops)
{
    ops->mkdir = op_mkdir;
    ops->mknod = op_mknod;
    ops->symlink = op_symlink;
    ops->link = op_link;
    ops->unlink = op_unlink;
    ops->rmdir = op_rmdir;
    ops->rename = op_rename;
}
