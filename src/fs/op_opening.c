/* open and create. What a name with @if=, @ttl=, @lease= or hold asks for becomes the handle's
 * terms here. */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "check.h"
#include "err.h"
#include "fs/fs_internal.h"

static bool is_writing(const struct fs_request *rq)
{
    return (rq->fi.flags & O_ACCMODE) != O_RDONLY || (rq->fi.flags & O_TRUNC) != 0;
}

/* Everything is read and written past the page cache. A close of what only reads has nothing to
 * say: locks are the kernel's own, and local, in this version. */
static void set_file_info(struct fs_request *rq, bool flush)
{
    rq->fi.direct_io = 1;
    rq->fi.keep_cache = 0;
    rq->fi.noflush = !flush;
}

static struct fs_handle *file_handle(struct fs_request *rq, struct fs_node *node,
                                     struct fs_node *via)
{
    struct fs_handle *h = handle_new(rq->fs, HANDLE_FILE, node, via);

    h->flags = rq->fi.flags;
    h->uid = rq->uid;
    h->opener = rq->pid;
    set_file_info(rq, is_writing(rq));
    return h;
}

/* What the name adds. */
static void set_terms(struct fs_handle *h, const struct fs_name *words)
{
    h->conditional = (words->words & WORD_IF) != 0;
    h->condition = words->if_revision;
    h->binding = (words->words & (WORD_TTL | WORD_LEASE)) != 0;
    h->bind_ttl_ms = words->words & WORD_TTL ? words->ttl_s * 1000 : 0;
    h->bind_lease = words->words & WORD_LEASE ? words->lease : 0;
    h->hold = (words->words & WORD_HOLD) != 0;
}

/* ---- open ---- */

static int check_open(const struct fs_request *rq)
{
    if (rq->fs->handle_count >= KEEL_HANDLES_MAX)
        return KEEL_E_MFILE;
    return is_writing(rq) && replica_quorum_lost(rq->fs->replica) ? KEEL_E_TIMEDOUT : 0;
}

/* Replaced or removed since its LOOKUP. The kernel is asked to look again, once; then this is the
 * file that the name had at some time during the call. */
static bool look_again(struct fs_request *rq, const struct fs_node *node)
{
    struct fs *fs = rq->fs;

    if (node->handles > 0 || fs_walk_is_careful(fs->walks, rq->pid, fs->now_us))
        return false;
    fs_walk_stale(fs->walks, rq->pid, fs->now_us);
    return true;
}

static void open_orphan(struct fs_request *rq, struct fs_node *node)
{
    if (look_again(rq, node)) {
        request_answer(rq, KEEL_E_STALE);
        return;
    }
    if (rq->fi.flags & O_TRUNC)
        orphan_resize(rq->fs, node, 0, false);
    request_answer_open(rq, file_handle(rq, node, NULL));
}

static void open_live(struct fs_request *rq, struct fs_node *node, struct fs_node *via)
{
    const struct mvcc_key *key = mvcc_by_ino(rq->fs->mvcc, node->ino);

    if (key == NULL || mvcc_live_kind(key) != MVCC_FILE) {
        request_answer(rq, key == NULL                       ? KEEL_E_STALE
                           : mvcc_live_kind(key) == MVCC_DIR ? KEEL_E_ISDIR
                                                             : KEEL_E_INVALID);
        return;
    }
    struct fs_handle *h = file_handle(rq, node, via);

    if (via != NULL && is_writing(rq))
        set_terms(h, &via->view->words);
    if (rq->fi.flags & O_TRUNC)
        commit_truncate(rq->fs, h);
    request_answer_open(rq, h);
}

static void opened(struct fs_request *rq, int err, const struct command_result *result)
{
    struct fs_node *node = rq->nodes[0];

    (void)result;
    fs_walk_end(rq->fs->walks, rq->pid);
    if (err == 0)
        err = check_open(rq);
    if (err != 0)
        request_answer(rq, err);
    else if (node->orphan)
        open_orphan(rq, node);
    else if (node->provisional) /* its creation failed */
        request_answer(rq, KEEL_E_IO);
    else
        open_live(rq, node, NULL);
}

/* Only root writes, and only to some files of /@keel. */
static bool may_write_text(const struct fs_request *rq, const struct fs_node *node)
{
    return node_is_keel(node) && control_is_writable(node->view->file) && rq->uid == 0;
}

static void open_text(struct fs_request *rq, struct fs_node *node)
{
    struct keel_text text = { 0 };
    int err = is_writing(rq) && !may_write_text(rq, node) ? KEEL_E_PERM
                                                          : view_text(rq->fs, node->view, &text);

    if (err != 0) {
        keel_text_free(&text);
        request_answer(rq, err);
        return;
    }
    struct fs_handle *h = handle_new(rq->fs, HANDLE_TEXT, node, NULL);

    h->text = text;
    set_file_info(rq, false);
    request_answer_open(rq, h);
}

static void open_past(struct fs_request *rq, struct fs_node *node)
{
    struct mvcc_record record;
    int err = is_writing(rq) ? KEEL_E_READONLY
                             : view_record(rq->fs->mvcc, node->view->key, node->view->rev, &record);

    if (err != 0) {
        request_answer(rq, err);
        return;
    }
    struct fs_handle *h = handle_new(rq->fs, HANDLE_PAST, node, NULL);

    h->content = record.content;
    set_file_info(rq, false);
    request_answer_open(rq, h);
}

/* The condition is checked here already, so that the error comes where shells look; and again when
 * it is applied. */
static int check_terms(struct fs_request *rq, const struct fs_name *words, uint64_t ino)
{
    const struct mvcc_key *key = mvcc_by_ino(rq->fs->mvcc, ino);

    if (!is_writing(rq) || (words->words & WORD_IF) == 0)
        return 0;
    if (words->if_revision == 0)
        return KEEL_E_EXISTS;
    return mvcc_mod_revision(key).main == words->if_revision ? 0 : KEEL_E_STALE;
}

/* The file has gone since its LOOKUP. Who wants it only if it is not there looks again, once; then
 * it was there at some time during the call. */
static int check_gone(struct fs_request *rq, const struct fs_name *words)
{
    struct fs *fs = rq->fs;

    if ((words->words & WORD_IF) != 0 && words->if_revision == 0 && is_writing(rq) &&
        fs_walk_is_careful(fs->walks, rq->pid, fs->now_us))
        return KEEL_E_EXISTS;
    fs_walk_stale(fs->walks, rq->pid, fs->now_us);
    return KEEL_E_STALE;
}

static void open_conditional(struct fs_request *rq, struct fs_node *via)
{
    struct fs *fs = rq->fs;
    const struct fs_name *words = &via->view->words;
    uint64_t ino = view_base(fs, via->view);
    int err = ino == 0 ? check_gone(rq, words) : check_terms(rq, words, ino);
    struct fs_node *node = ino != 0 ? fs_node_by_ino(fs->nodes, ino) : NULL;

    if (err != 0) {
        request_answer(rq, err);
        return;
    }
    if (node == NULL)
        node = fs_node_get(fs->nodes, ino);
    open_live(rq, node, via);
}

static bool is_control(const struct fs_node *node, enum control_file file)
{
    return node_is_keel(node) && node->view->file == file;
}

static void opened_view(struct fs_request *rq, int err, const struct command_result *result)
{
    struct fs_node *node = rq->nodes[0];

    (void)result;
    fs_walk_end(rq->fs->walks, rq->pid);
    if (err == 0)
        err = check_open(rq);
    if (err != 0) {
        request_answer(rq, err);
        return;
    }
    switch (node->view->kind) {
    case VIEW_PAST:
        open_past(rq, node);
        break;
    case VIEW_STAT:
    case VIEW_LOG:
        open_text(rq, node);
        break;
    case VIEW_KEEL:
        if (is_control(node, CONTROL_SNAPSHOT) && !is_writing(rq))
            snapshot_open(rq);
        else
            open_text(rq, node);
        break;
    case VIEW_CONDITIONAL:
        open_conditional(rq, node);
        break;
    }
}

/* What has to be committed before this can be opened, or NULL. */
static struct fs_creation *creation_of(struct fs *fs, const struct fs_node *node)
{
    if (node->view != NULL && node->view->kind == VIEW_CONDITIONAL)
        return creation_find(fs, node->view->parent, node->view->words.base);
    return node->creation;
}

static void op_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    struct fs *fs = fs_of(req);
    struct fs_node *node = op_node(fs, ino);

    if (fs_is_poker(fs, req)) {
        poker_op_open(fs->poker, req, ino, fi);
        return;
    }
    if (node == NULL) {
        answer_error(req, KEEL_E_STALE);
        return;
    }
    struct fs_request *rq = request_new(fs, req);
    fs_step step = node->view != NULL ? opened_view : opened;
    struct fs_creation *creation = creation_of(fs, node);
    int err;

    rq->fi = *fi;
    node->asked_us = fs->now_us;
    request_use(rq, node, false);
    err = check_open(rq);
    if (err == 0 && is_control(node, CONTROL_SNAPSHOT)) {
        request_barrier(rq, step);
    } else if (err == 0 && is_control(node, CONTROL_CHECK) && !is_writing(rq)) {
        request_check(rq, step);
    } else if (err != 0 || node_is_keel(node)) {
        step(rq, err, NULL);
    } else if (creation != NULL) {
        creation_commit(fs, creation);
        request_fence(rq, step);
    } else if (fs_walk_has_looked(fs->walks, rq->pid, ino, fs->now_us)) {
        step(rq, 0, NULL);
    } else {
        request_walk_end(rq, ino, step);
    }
}

/* ---- create ---- */

/* rq: nodes[0] the directory, name as given, mode, fi. */
static int parse_create(const struct fs_request *rq, struct fs_name *ret_parsed)
{
    int err = fs_name_parse(keel_slice_str(rq->name), ret_parsed);

    if (err != 0 || (ret_parsed->words & ~(unsigned)FS_CONDITIONAL) == 0)
        return err;
    return ret_parsed->words & WORD_REV ? KEEL_E_READONLY : KEEL_E_PERM;
}

/* Committed at once: O_EXCL, and @if=0, which has to tell the shell at open whether it won. */
static bool is_exclusive(const struct fs_request *rq, const struct fs_name *parsed)
{
    struct fs_handle asked = { .flags = rq->fi.flags, .exclusive = (rq->fi.flags & O_EXCL) != 0 };

    set_terms(&asked, parsed);
    return !handle_may_defer(&asked, DEFER_CREATION, NULL);
}

/* The node that the kernel gets for the name: the file's, or a conditional view's. */
static int node_for_name(struct fs_request *rq, const struct fs_name *parsed, uint64_t ino,
                         struct fs_node **ret_node, struct fs_node **ret_via)
{
    struct fs *fs = rq->fs;

    *ret_via = NULL;
    if (parsed->words != 0) {
        int err = view_conditional(fs, rq->nodes[0], parsed, rq->name, ret_via);

        if (err != 0)
            return err;
        request_use(rq, *ret_via, false);
    }
    *ret_node = fs_node_by_ino(fs->nodes, ino);
    if (*ret_node == NULL)
        *ret_node = fs_node_get(fs->nodes, ino);
    request_use(rq, *ret_node, false);
    return 0;
}

static void answer_created(struct fs_request *rq, struct fs_node *node, struct fs_node *via,
                           struct fs_handle *h)
{
    struct stat attr;
    int err = attr_of_node(rq->fs, node, &attr);

    if (err != 0) {
        handle_settle(rq->fs, h);
        request_answer(rq, err);
        return;
    }
    request_answer_create(rq, via != NULL ? via : node, &attr, h);
}

static void created(struct fs_request *rq, int err, const struct command_result *result)
{
    struct fs_name parsed;
    struct fs_node *node, *via;

    if (err == 0)
        err = parse_create(rq, &parsed);
    if (err == 0)
        err = node_for_name(rq, &parsed, result->ino, &node, &via);
    if (err != 0) {
        request_answer(rq, err);
        return;
    }
    struct fs_handle *h = file_handle(rq, node, via);

    set_terms(h, &parsed);
    h->condition = result->revision;
    h->binding = false;
    h->exclusive = true;
    h->fresh = true;
    if (result->lease != 0)
        handle_keep_lease(rq->fs, h, result->lease, rq->barrier_us);
    answer_created(rq, node, via, h);
}

static void propose_exclusive(struct fs_request *rq, const struct fs_name *parsed, uint64_t ino)
{
    Keel__Command command = KEEL__COMMAND__INIT;
    Keel__Create create = KEEL__CREATE__INIT;
    Keel__Bind bind = KEEL__BIND__INIT;

    create.parent = rq->nodes[0]->ino;
    create.name.data = (uint8_t *)(uintptr_t)parsed->base.data;
    create.name.len = parsed->base.len;
    create.kind = KEEL__KIND__FILE;
    create.mode = rq->mode & 07777;
    create.uid = rq->uid;
    create.gid = rq->gid;
    create.ino = ino;
    create.exclusive = true;
    bind.ttl_ms = parsed->words & WORD_TTL ? parsed->ttl_s * 1000 : 0;
    bind.lease = parsed->words & WORD_LEASE ? parsed->lease : 0;
    bind.uid = rq->uid;
    if (parsed->words & (WORD_TTL | WORD_LEASE))
        create.bind = &bind;
    command.op_case = KEEL__COMMAND__OP_CREATE;
    command.create = &create;
    rq->barrier_us = replica_now_us(rq->fs->replica); /* the lease counts from here */
    request_propose(rq, &command, keel_slice_of(NULL, 0), created);
}

static int64_t now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_REALTIME, &now);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

/* As apply will make it, if nothing comes in between. */
static struct mvcc_record provisional_record(const struct fs_request *rq,
                                             const struct mvcc_key *dir, uint64_t ino)
{
    int64_t now = now_ns();
    struct mvcc_record parent, record = {
        .kind = MVCC_FILE,
        .mode = (uint16_t)(rq->mode & 07777),
        .uid = rq->uid,
        .gid = rq->gid,
        .atime_ns = now,
        .mtime_ns = now,
        .ctime_ns = now,
        .btime_ns = now,
        .ino = ino,
    };

    if (mvcc_get(rq->fs->mvcc, dir, 0, &parent) == 0 && (parent.mode & S_ISGID) != 0)
        record.gid = parent.gid;
    return record;
}

/* The file exists here from now on, and elsewhere with its first write. */
static void create_later(struct fs_request *rq, const struct fs_name *parsed,
                         const struct mvcc_key *dir, uint64_t ino)
{
    struct fs *fs = rq->fs;
    uint64_t parent = rq->nodes[0]->ino;
    struct mvcc_record record = provisional_record(rq, dir, ino);
    struct fs_node *node, *via;
    int err = node_for_name(rq, parsed, ino, &node, &via);

    if (err != 0) {
        request_answer(rq, err);
        return;
    }
    struct fs_handle *h = file_handle(rq, node, via);

    set_terms(h, parsed);
    h->fresh = true;
    h->truncation = rq->fi.flags & O_TRUNC ? TRUNCATION_WRITE : TRUNCATION_NONE;
    creation_new(fs, parent, parsed->base, &record, h);
    answer_created(rq, node, via, h);
}

/* The kernel has just seen that there is no such name. If there is one now, it has to look again:
 * only then it checks whether the caller may open it. */
static int check_absent(const struct fs_request *rq, const struct fs_name *parsed,
                        const struct mvcc_key **ret_dir)
{
    struct fs *fs = rq->fs;
    const struct mvcc_key *dir = mvcc_by_ino(fs->mvcc, rq->nodes[0]->ino), *key;

    if (dir == NULL)
        return KEEL_E_STALE;
    *ret_dir = dir;
    key = mvcc_child(fs->mvcc, dir, parsed->base);
    if (key != NULL && mvcc_live_ino(key) != 0)
        return parsed->words & WORD_IF && parsed->if_revision == 0 ? KEEL_E_EXISTS : KEEL_E_STALE;
    if (parsed->words & WORD_IF && parsed->if_revision != 0)
        return KEEL_E_STALE;
    return creation_find(fs, rq->nodes[0]->ino, parsed->base) != NULL ? KEEL_E_STALE : 0;
}

/* May the caller open it so? No: perhaps still, by a group that is not known here. */
static bool permits(const struct fs_request *rq, const struct mvcc_record *record)
{
    int access = rq->fi.flags & O_ACCMODE;
    unsigned want = (access != O_WRONLY ? 4U : 0U) | (access != O_RDONLY ? 2U : 0U);
    unsigned shift = rq->uid == record->uid ? 6 : rq->gid == record->gid ? 3 : 0;

    return rq->uid == 0 || (record->mode >> shift & want) == want;
}

/* Another node has created it since the kernel looked. False: the kernel has to look again. */
static bool open_existing(struct fs_request *rq, const struct fs_name *parsed)
{
    struct fs *fs = rq->fs;
    const struct mvcc_key *key = mvcc_by_ino(fs->mvcc, rq->nodes[0]->ino);
    struct mvcc_record record;
    struct fs_node *node, *via;

    key = key != NULL && parsed->words == 0 ? mvcc_child(fs->mvcc, key, parsed->base) : NULL;
    if (key == NULL || mvcc_get(fs->mvcc, key, 0, &record) != 0 || record.kind != MVCC_FILE ||
        !permits(rq, &record) || node_for_name(rq, parsed, record.ino, &node, &via) != 0)
        return false;
    struct fs_handle *h = file_handle(rq, node, via);

    if (rq->fi.flags & O_TRUNC)
        commit_truncate(fs, h);
    answer_created(rq, node, via, h);
    return true;
}

static void create(struct fs_request *rq, int err, const struct command_result *result)
{
    struct fs_name parsed;
    const struct mvcc_key *dir = NULL;
    uint64_t ino;

    (void)result;
    if (err == 0)
        err = parse_create(rq, &parsed);
    if (err == 0)
        err = check_open(rq);
    if (err == 0 && (rq->fi.flags & O_EXCL) == 0)
        err = check_absent(rq, &parsed, &dir);
    if (err == KEEL_E_STALE && open_existing(rq, &parsed))
        return;
    if (err != 0) {
        request_answer(rq, err);
        return;
    }
    ino = replica_new_ino(rq->fs->replica);
    if (ino == 0)
        request_ready(rq, create);
    else if (is_exclusive(rq, &parsed))
        propose_exclusive(rq, &parsed, ino);
    else
        create_later(rq, &parsed, dir, ino);
}

static void op_create(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode,
                      struct fuse_file_info *fi)
{
    struct fs *fs = fs_of(req);
    struct fs_node *dir = op_node(fs, parent);

    if (fs_is_poker(fs, req)) {
        poker_op_create(fs->poker, req, parent, name, mode, fi);
        return;
    }
    if (dir == NULL || dir->view != NULL) {
        answer_error(req, dir == NULL         ? KEEL_E_STALE
                          : node_is_keel(dir) ? KEEL_E_PERM
                                              : KEEL_E_READONLY);
        return;
    }
    struct fs_request *rq = request_new(fs, req);

    rq->fi = *fi;
    rq->name = keel_strdup(name);
    rq->mode = mode;
    request_use(rq, dir, true);
    create(rq, 0, NULL);
}

void op_opening(struct fuse_lowlevel_ops *ops)
{
    ops->open = op_open;
    ops->create = op_create;
}
