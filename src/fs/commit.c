/* From what handles hold back to commands, and what becomes of a handle when its command is
 * applied, fails, or was given up. One write(2) is one command with all that was held back before
 * it: one revision. */
#include <fcntl.h>
#include <stdlib.h>

#include "check.h"
#include "err.h"
#include "fs/fs_internal.h"
#include "fs/proc.h"

/* ---- handles ---- */

struct fs_handle *handle_new(struct fs *fs, enum handle_kind kind, struct fs_node *node,
                             struct fs_node *via)
{
    struct fs_handle *h = keel_calloc(1, sizeof *h);

    h->kind = kind;
    h->refs = 1;
    h->node = node;
    h->via = via;
    keel_list_init(&h->bound_link);
    fs_node_opened(node);
    if (via != NULL)
        fs_node_opened(via);
    keel_list_add(&fs->handles, &h->link);
    fs->handle_count++;
    return h;
}

struct fs_handle *handle_ref(struct fs_handle *h)
{
    h->refs++;
    return h;
}

/* ---- accounts of staged bytes ---- */

static struct staged_account *account_find(struct fs *fs, uid_t uid)
{
    struct staged_account *account = fs->accounts;

    while (account != NULL && account->uid != uid)
        account = account->next;
    return account;
}

static void account_join(struct fs *fs, struct staged *staged, uid_t uid)
{
    struct staged_account *account = account_find(fs, uid);

    if (account == NULL) {
        account = keel_calloc(1, sizeof *account);
        account->uid = uid;
        account->next = fs->accounts;
        fs->accounts = account;
    }
    account->handles++;
    account->bytes += staged->len;
    fs->staged_bytes += staged->len;
    staged->account = account;
}

static void account_leave(struct fs *fs, struct staged *staged)
{
    struct staged_account *account = staged->account, **link = &fs->accounts;

    if (account == NULL)
        return;
    staged->account = NULL;
    account->bytes -= staged->len;
    fs->staged_bytes -= staged->len;
    if (--account->handles > 0)
        return;
    while (*link != account)
        link = &(*link)->next;
    *link = account->next;
    free(account);
}

bool commit_defer(struct fs *fs, struct fs_handle *h, const struct defer_buffer *buffer,
                  struct keel_slice piece)
{
    if (!handle_may_defer(h, DEFER_BUFFER, buffer))
        return false;
    if (h->staged.account == NULL)
        account_join(fs, &h->staged, buffer->uid);
    staged_put(&h->staged, buffer->offset, piece);
    h->staged.account->bytes += piece.len;
    fs->staged_bytes += piece.len;
    return true;
}

size_t commit_staged_of(struct fs *fs, uid_t uid)
{
    const struct staged_account *account = account_find(fs, uid);

    return account != NULL ? account->bytes : 0;
}

/* ---- what is held back ---- */

/* The creation that this handle has to commit, or NULL. */
static struct fs_creation *own_creation(const struct fs_handle *h)
{
    struct fs_creation *creation = h->node->creation;

    return creation != NULL && creation->handle == h && !creation->failed ? creation : NULL;
}

bool commit_is_due(const struct fs_handle *h)
{
    return h->staged.len > 0 || h->truncation == TRUNCATION_PENDING || own_creation(h) != NULL;
}

/* Out of the handle, into the request. */
static void take(struct fs_request *rq, struct fs_handle *h)
{
    struct fs_commit *c = &rq->commit;

    KEEL_ASSERT(c->handle == NULL);
    account_leave(rq->fs, &h->staged);
    *c = (struct fs_commit){
        .handle = handle_ref(h),
        .acked = h->staged.len,
        .fresh = h->fresh,
        .binding = h->binding,
        .truncation = h->truncation,
        .sent_us = replica_now_us(rq->fs->replica),
    };
    c->staged = staged_take(&h->staged);
    h->fresh = false;
    h->truncation = TRUNCATION_NONE;
    h->committing++;
}

static void give_back(struct fs_request *rq, struct fs_handle *h)
{
    struct fs_commit *c = &rq->commit;

    h->fresh = c->fresh;
    h->truncation = c->truncation;
    if (c->acked == 0)
        return;
    h->staged = staged_take(&c->staged);
    h->staged.len = c->acked;
    account_join(rq->fs, &h->staged, rq->uid);
}

/* ---- commands ---- */

/* Condition and lease of a handle. */
struct terms {
    Keel__Condition condition;
    Keel__Bind bind;
};

static void terms_of(const struct fs_request *rq, const struct fs_handle *h, struct terms *t,
                     Keel__Condition **ret_condition, Keel__Bind **ret_bind)
{
    keel__condition__init(&t->condition);
    keel__bind__init(&t->bind);
    t->condition.revision = h->condition;
    t->bind.ttl_ms = h->bind_ttl_ms;
    t->bind.lease = h->bind_lease;
    t->bind.uid = rq->uid;
    *ret_condition = h->conditional ? &t->condition : NULL;
    *ret_bind = h->binding ? &t->bind : NULL;
}

static void propose_create(struct fs_request *rq, struct fs_creation *creation,
                           struct keel_slice body, uint64_t offset, bool append, bool write,
                           fs_step step)
{
    struct fs_handle *h = rq->commit.handle;
    const struct mvcc_record *record = creation->node->record;
    Keel__Command command = KEEL__COMMAND__INIT;
    Keel__Create create = KEEL__CREATE__INIT;
    struct terms t;

    terms_of(rq, h, &t, &create.condition, &create.bind);
    create.parent = creation->parent;
    create.name.data = (uint8_t *)creation->name;
    create.name.len = creation->name_len;
    create.kind = KEEL__KIND__FILE;
    create.mode = record->mode;
    create.uid = record->uid;
    create.gid = record->gid;
    create.ino = record->ino;
    create.write = write;
    create.truncate = write && rq->commit.truncation != TRUNCATION_NONE;
    create.offset = offset;
    create.append = append;
    command.op_case = KEEL__COMMAND__OP_CREATE;
    command.create = &create;
    request_propose(rq, &command, body, step);
}

static void propose_write(struct fs_request *rq, struct keel_slice body, uint64_t offset,
                          bool append, fs_step step)
{
    struct fs_handle *h = rq->commit.handle;
    Keel__Command command = KEEL__COMMAND__INIT;
    Keel__Write write = KEEL__WRITE__INIT;
    struct terms t;

    terms_of(rq, h, &t, &write.condition, &write.bind);
    write.ino = h->node->ino;
    write.offset = offset;
    write.append = append;
    write.replace = rq->commit.truncation != TRUNCATION_NONE;
    write.keep_id = rq->uid == 0;
    command.op_case = KEEL__COMMAND__OP_WRITE;
    command.write = &write;
    request_propose(rq, &command, body, step);
}

void commit_write(struct fs_request *rq, struct fs_handle *h, struct keel_slice piece,
                  uint64_t offset, bool append, fs_step step)
{
    struct fs_commit *c = &rq->commit;

    take(rq, h);
    if (append && (c->acked > 0 || c->truncation != TRUNCATION_NONE)) {
        append = false; /* its end is known: here */
        offset = c->acked;
    }
    if (!append && (offset > KEEL_FILE_SIZE_MAX || piece.len > KEEL_FILE_SIZE_MAX - offset)) {
        step(rq, KEEL_E_FILETOOBIG, NULL);
        return;
    }
    if (piece.len > KEEL_FILE_SIZE_MAX) {
        step(rq, KEEL_E_FILETOOBIG, NULL);
        return;
    }
    if (c->acked > 0 || (c->truncation != TRUNCATION_NONE && offset > 0)) {
        staged_put(&c->staged, offset, piece);
        piece = keel_slice_of(c->staged.data, c->staged.len);
        offset = 0;
    } else {
        c->piece = keel_buf_copy(piece);
    }
    c->offset = offset;
    c->append = append;
    if (h->node->creation != NULL)
        propose_create(rq, h->node->creation, piece, offset, append, true, step);
    else
        propose_write(rq, piece, offset, append, step);
}

/* The content is still what it was when the truncation was asked for, and there is something to
 * truncate. Then ret_revision is the condition under which it is done. */
static bool truncation_applies(struct fs *fs, const struct fs_handle *h, uint64_t *ret_revision)
{
    const struct mvcc_key *key = mvcc_by_ino(fs->mvcc, h->node->ino);
    struct mvcc_record record;

    if (key == NULL || mvcc_get(fs->mvcc, key, 0, &record) != 0 || record.content.length == 0)
        return false;
    *ret_revision = record.revision.main;
    return record.content.at.main == h->seen.main && record.content.at.sub == h->seen.sub;
}

static void propose_truncation(struct fs_request *rq, uint64_t revision, fs_step step)
{
    struct fs_handle *h = rq->commit.handle;
    Keel__Command command = KEEL__COMMAND__INIT;
    Keel__Write write = KEEL__WRITE__INIT;
    struct terms t;

    terms_of(rq, h, &t, &write.condition, &write.bind);
    if (write.condition == NULL) {
        t.condition.revision = revision;
        write.condition = &t.condition;
    }
    write.ino = h->node->ino;
    write.replace = true;
    write.keep_id = rq->uid == 0;
    command.op_case = KEEL__COMMAND__OP_WRITE;
    command.write = &write;
    request_propose(rq, &command, keel_slice_of(NULL, 0), step);
}

int commit_fold(struct fs *fs, struct fs_handle *h)
{
    int err = h->truncation != TRUNCATION_NONE ? orphan_resize(fs, h->node, 0, false) : 0;

    if (err == 0 && h->staged.len > 0)
        err = orphan_write(fs, h->node, keel_slice_of(h->staged.data, h->staged.len), 0, false);
    account_leave(fs, &h->staged);
    staged_free(&h->staged);
    h->truncation = TRUNCATION_NONE;
    h->fresh = false;
    return err;
}

void commit_held(struct fs_request *rq, struct fs_handle *h, fs_step step)
{
    struct fs_creation *creation = own_creation(h);
    uint64_t revision;

    if (h->node->orphan) {
        step(rq, commit_fold(rq->fs, h), NULL);
        return;
    }
    if (h->staged.len > 0) {
        commit_write(rq, h, keel_slice_of(NULL, 0), h->staged.len, false, step);
        return;
    }
    if (creation != NULL) {
        take(rq, h);
        propose_create(rq, creation, keel_slice_of(NULL, 0), 0, false, false, step);
        return;
    }
    if (h->truncation == TRUNCATION_PENDING && truncation_applies(rq->fs, h, &revision)) {
        take(rq, h);
        rq->commit.settling = !h->conditional;
        propose_truncation(rq, revision, step);
        return;
    }
    h->truncation = TRUNCATION_NONE;
    step(rq, 0, NULL);
}

static void held_done(struct fs_request *rq, int err, const struct command_result *result)
{
    request_answer(rq, commit_end(rq, err, result));
}

/* An internal request on behalf of a handle's opener. */
static struct fs_request *request_for(struct fs *fs, struct fs_handle *h)
{
    struct fs_request *rq = request_new(fs, NULL);

    rq->uid = h->uid;
    request_use_handle(rq, h);
    return rq;
}

void commit_held_ahead(struct fs *fs, struct fs_handle *h)
{
    if (commit_is_due(h))
        commit_held(request_for(fs, h), h, held_done);
}

static bool is_writer(const struct fs_handle *h, pid_t pid)
{
    pid_t group;

    if (h->writer == pid)
        return true;
    group = proc_group(pid);
    return group != 0 && group == proc_group(h->writer);
}

void commit_held_by(struct fs *fs, const struct fs_node *node, pid_t pid)
{
    struct keel_link *l = fs->handles.next;

    if (fs->staged_bytes == 0 || node->handles == 0)
        return;
    while (l != &fs->handles) {
        struct fs_handle *h = KEEL_CONTAINER_OF(l, struct fs_handle, link);

        l = l->next;
        if (h->node == node && h->staged.len > 0 && is_writer(h, pid))
            commit_held_ahead(fs, h);
    }
}

const struct fs_handle *commit_holder(const struct fs *fs, const struct fs_node *node, pid_t pid)
{
    if (fs->staged_bytes == 0 || node->handles == 0 || pid == 0)
        return NULL;
    for (const struct keel_link *l = fs->handles.next; l != &fs->handles; l = l->next) {
        const struct fs_handle *h = KEEL_CONTAINER_OF(l, const struct fs_handle, link);

        if (h->node == node && h->staged.len > 0 && h->writer == pid)
            return h;
    }
    return NULL;
}

/* ---- afterwards ---- */

void handle_keep_lease(struct fs *fs, struct fs_handle *h, uint64_t lease, uint64_t sent_us)
{
    h->binding = false;
    h->lease = lease;
    h->kept = true;
    keel_list_add(&fs->bound, &h->bound_link);
    replica_lease_keep(fs->replica, lease, sent_us);
}

static void drop_lease(struct fs *fs, struct fs_handle *h)
{
    if (!h->kept)
        return;
    h->kept = false;
    keel_list_remove(&h->bound_link);
    replica_lease_release(fs->replica, h->lease);
}

static void commit_succeeded(struct fs_request *rq, struct fs_handle *h,
                             const struct command_result *result)
{
    struct fs *fs = rq->fs;

    creation_settled(fs, h->node->creation, result->ino);
    if (h->conditional && result->revision != 0)
        h->condition = result->revision;
    if (rq->commit.binding && h->binding && result->lease != 0)
        handle_keep_lease(fs, h, result->lease, rq->commit.sent_us);
    h->pinned = false;
}

/* The old value stays. What was answered before is lost, and so writing at its end would make no
 * sense. A new content of which a piece was too large must not become what is written after that:
 * stdio goes on with the rest. */
static void commit_failed(struct fs_request *rq, struct fs_handle *h, int err)
{
    if (err == KEEL_E_FILETOOBIG && rq->commit.fresh)
        h->too_big = true;
    else if (rq->commit.acked > 0)
        h->failed = true;
    if (rq->commit.truncation != TRUNCATION_NONE && h->truncation == TRUNCATION_NONE)
        h->truncation = TRUNCATION_WRITE;
    if (h->node->creation != NULL)
        h->node->creation->failed = true;
}

static void commit_release(struct fs_request *rq)
{
    struct fs_commit *c = &rq->commit;
    struct fs_handle *h = c->handle;

    h->committing--;
    staged_free(&c->staged);
    c->piece = keel_buf_free(c->piece);
    c->handle = NULL;
    handle_unref(rq->fs, h);
}

/* The file has gone while this was on its way: it is for this node alone. */
static int commit_to_orphan(struct fs_request *rq)
{
    struct fs_commit *c = &rq->commit;
    struct fs_node *node = c->handle->node;
    struct keel_slice bytes =
        c->piece != NULL ? keel_buf_slice(c->piece) : keel_slice_of(c->staged.data, c->staged.len);
    int err = c->truncation != TRUNCATION_NONE ? orphan_resize(rq->fs, node, 0, false) : 0;

    return err != 0 ? err : orphan_write(rq->fs, node, bytes, c->offset, c->append);
}

int commit_end(struct fs_request *rq, int err, const struct command_result *result)
{
    struct fs_commit *c = &rq->commit;
    struct fs_handle *h = c->handle;

    if (h == NULL)
        return err;
    if (err == 0)
        commit_succeeded(rq, h, result);
    else if (c->settling && (err == KEEL_E_STALE || err == KEEL_E_NOTFOUND))
        err = 0; /* somebody else has changed it since: theirs stays */
    else if (err == KEEL_E_NOTFOUND && h->node->orphan)
        err = commit_to_orphan(rq);
    else if (rq->uncommitted || err == KEEL_E_AGAIN)
        give_back(rq, h);
    else
        commit_failed(rq, h, err);
    commit_release(rq);
    return err;
}

void commit_truncate(struct fs *fs, struct fs_handle *h)
{
    const struct mvcc_key *key = mvcc_by_ino(fs->mvcc, h->node->ino);
    struct mvcc_record record;

    account_leave(fs, &h->staged);
    staged_free(&h->staged);
    h->fresh = true;
    h->too_big = false;
    h->pinned = false;
    h->truncation = TRUNCATION_WRITE;
    if (key == NULL || mvcc_get(fs->mvcc, key, 0, &record) != 0)
        return;
    h->truncation = TRUNCATION_PENDING;
    h->seen = record.content.at;
}

void commit_drop(struct fs *fs, struct fs_handle *h)
{
    account_leave(fs, &h->staged);
    staged_free(&h->staged);
    h->truncation = TRUNCATION_NONE;
    h->fresh = false;
    h->failed = true;
    if (h->node->creation != NULL && h->node->creation->handle == h)
        creation_drop(fs, h->node->creation);
}

/* ---- the last close ---- */

/* Nothing was written to what would be gone again at once. */
static bool is_pointless(const struct fs_handle *h)
{
    return h->hold && h->binding && h->staged.len == 0;
}

bool settle_is_due(const struct fs_handle *h)
{
    return h->kind == HANDLE_FILE && (commit_is_due(h) || (h->hold && h->kept));
}

static void propose_revoke(struct fs_request *rq, uint64_t lease);

static void revoked(struct fs_request *rq, int err, const struct command_result *result)
{
    (void)result;
    /* the kernel interrupts the FLUSH of a process that was killed: from inside, then */
    if (err == KEEL_E_INTR && rq->uncommitted)
        propose_revoke(request_for(rq->fs, rq->handle), rq->handle->lease);
    request_answer(rq, err == KEEL_E_NOTFOUND ? 0 : err);
}

static void propose_revoke(struct fs_request *rq, uint64_t lease)
{
    Keel__Command command = KEEL__COMMAND__INIT;
    Keel__LeaseRevoke revoke = KEEL__LEASE_REVOKE__INIT;

    revoke.lease = lease;
    command.op_case = KEEL__COMMAND__OP_LEASE_REVOKE;
    command.lease_revoke = &revoke;
    request_propose(rq, &command, keel_slice_of(NULL, 0), revoked);
}

static void settle_lease(struct fs_request *rq, int err, const struct command_result *result)
{
    struct fs_handle *h = rq->handle;

    err = commit_end(rq, err, result);
    if (err != 0 || !h->hold || !h->kept) {
        request_answer(rq, err);
        return;
    }
    drop_lease(rq->fs, h);
    propose_revoke(rq, h->lease);
}

void settle(struct fs_request *rq, struct fs_handle *h)
{
    KEEL_ASSERT(rq->handle == h);
    if (is_pointless(h))
        commit_drop(rq->fs, h);
    commit_held(rq, h, settle_lease);
}

void handle_settle(struct fs *fs, struct fs_handle *h)
{
    if (settle_is_due(h))
        settle(request_for(fs, h), h);
    handle_unref(fs, h);
}

static void leave_node(struct fs *fs, struct fs_node *node)
{
    fs_node_ref(node);
    fs_node_closed(fs->nodes, node);
    if (node->handles == 0 && node->orphan)
        orphan_closed(fs, node);
    fs_node_unref(fs->nodes, node);
}

void handle_unref(struct fs *fs, struct fs_handle *h)
{
    struct fs_creation *creation = h->node->creation;

    if (--h->refs > 0)
        return;
    if (creation != NULL && creation->handle == h) {
        creation->handle = NULL;
        if (creation->failed)
            creation_drop(fs, creation);
    }
    if (h->kind == HANDLE_SNAPSHOT)
        snapshot_close(fs);
    drop_lease(fs, h);
    account_leave(fs, &h->staged);
    staged_free(&h->staged);
    keel_text_free(&h->text);
    if (h->listing != NULL) {
        keel_buf_free(h->listing->extra);
        if (h->listing->dir != NULL)
            mvcc_unpin(fs->mvcc, h->listing->dir);
    }
    free(h->listing);
    leave_node(fs, h->node);
    if (h->via != NULL)
        leave_node(fs, h->via);
    keel_list_remove(&h->link);
    fs->handle_count--;
    free(h);
}

void handles_let_go(struct fs *fs)
{
    struct keel_link *first;

    while ((first = keel_list_first(&fs->bound)) != NULL)
        drop_lease(fs, KEEL_CONTAINER_OF(first, struct fs_handle, bound_link));
}

void handles_free(struct fs *fs)
{
    struct keel_link *first;

    KEEL_ASSERT(keel_list_empty(&fs->bound));
    while ((first = keel_list_first(&fs->handles)) != NULL) {
        struct fs_handle *h = KEEL_CONTAINER_OF(first, struct fs_handle, link);

        h->refs = 1;
        handle_unref(fs, h);
    }
}

void fs_lease_lost(struct fs *fs, uint64_t lease)
{
    for (struct keel_link *l = fs->bound.next; l != &fs->bound; l = l->next) {
        struct fs_handle *h = KEEL_CONTAINER_OF(l, struct fs_handle, bound_link);

        if (h->lease != lease)
            continue;
        h->lost = fs->lease_lost = true;
        change_lost(fs, h->node, lease);
    }
    if (fs->lease_lost)
        creation_hurry(fs); /* what waits is answered later: the replica is at work just now */
}
