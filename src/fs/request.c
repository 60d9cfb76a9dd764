/* The life of a deferred request: what it waits for, how it is given up, and its answer, which is
 * given here and nowhere else, exactly once. */
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "err.h"
#include "fs/fs_internal.h"
#include "fs/proc.h"

enum { FREE_REQUESTS_MAX = 1024 };

static void call_done(struct replica_call *call, int err, const struct command_result *result);

struct fs_request *request_new(struct fs *fs, fuse_req_t req)
{
    struct keel_link *spare = keel_list_first(&fs->free_requests);
    struct fs_request *rq;

    if (spare != NULL) {
        rq = KEEL_CONTAINER_OF(spare, struct fs_request, link);
        keel_list_remove(spare);
        fs->free_count--;
        memset(rq, 0, sizeof *rq);
    } else {
        rq = keel_calloc(1, sizeof *rq);
    }
    keel_list_init(&rq->link);
    rq->fs = fs;
    rq->req = req;
    rq->call.done = call_done;
    if (req != NULL) {
        const struct fuse_ctx *ctx = fuse_req_ctx(req);

        rq->pid = ctx->pid;
        rq->uid = ctx->uid;
        rq->gid = ctx->gid;
        fs->requests++;
    }
    return rq;
}

void request_use(struct fs_request *rq, struct fs_node *node, bool locked)
{
    KEEL_ASSERT(rq->node_count < FS_REQUEST_NODES && !(locked && rq->counted));
    if (locked)
        rq->locked = (uint8_t)(rq->locked | 1U << rq->node_count);
    rq->nodes[rq->node_count++] = node;
    fs_node_ref(node);
}

void request_use_handle(struct fs_request *rq, struct fs_handle *h)
{
    KEEL_ASSERT(rq->handle == NULL);
    rq->handle = handle_ref(h);
}

/* ---- waiting ---- */

/* While it waits, the poker keeps away from the inodes that the kernel has locked for the caller.
 */
static void count_busy(struct fs_request *rq)
{
    if (rq->counted || rq->req == NULL)
        return;
    rq->counted = true;
    for (unsigned i = 0; i < rq->node_count; i++)
        if (rq->locked >> i & 1)
            rq->nodes[i]->busy++;
    if (rq->renames_across && rq->fs->poker != NULL)
        poker_local_rename(rq->fs->poker, true);
}

static void uncount_busy(struct fs_request *rq)
{
    if (!rq->counted)
        return;
    rq->counted = false;
    if (rq->renames_across && rq->fs->poker != NULL)
        poker_local_rename(rq->fs->poker, false);
    for (unsigned i = 0; i < rq->node_count; i++) {
        struct fs_node *node = rq->nodes[i];

        if (!(rq->locked >> i & 1))
            continue;
        KEEL_ASSERT(node->busy > 0);
        if (--node->busy == 0 && rq->fs->poker != NULL)
            poker_idle(rq->fs->poker, node);
    }
}

static void stop_waiting(struct fs_request *rq)
{
    KEEL_ASSERT(rq->waiting);
    rq->waiting = false;
    rq->fs->waiting_count--;
    keel_list_remove(&rq->link);
}

static void go_on(struct fs_request *rq, int err, const struct command_result *result)
{
    fs_step step = rq->step;

    rq->step = NULL;
    step(rq, err, result);
}

static void call_done(struct replica_call *call, int err, const struct command_result *result)
{
    struct fs_request *rq = KEEL_CONTAINER_OF(call, struct fs_request, call);

    stop_waiting(rq);
    go_on(rq, result != NULL ? result->err : err, result);
}

/* The kernel has a signal for the caller. What isn't in the log yet is cancelled; what is goes on,
 * unless the caller is dying: a program that handles the signal would only do it again. */
static void interrupted(fuse_req_t req, void *arg)
{
    struct fs_request *rq = arg;

    (void)req;
    if (!rq->waiting)
        return;
    rq->uncommitted = replica_cancel(rq->fs->replica, &rq->call, false);
    if (!rq->uncommitted) {
        if (!proc_kill_pending(rq->pid))
            return;
        replica_cancel(rq->fs->replica, &rq->call, true);
    }
    stop_waiting(rq);
    go_on(rq, KEEL_E_INTR, NULL);
}

/* From now on it waits: the replica has its call. */
static void wait(struct fs_request *rq, fs_step step)
{
    struct fs *fs = rq->fs;

    rq->step = step;
    rq->waiting = true;
    fs->waiting_count++;
    keel_list_add(&fs->waiting, &rq->link);
    count_busy(rq);
    if (rq->req == NULL)
        return;
    /* not from inside fuse_req_interrupt_func, which still uses the request after the callback */
    if (fuse_req_interrupted(rq->req))
        interrupted(rq->req, rq);
    else
        fuse_req_interrupt_func(rq->req, interrupted, rq);
}

/* May it wait? 0, or why not. */
static int may_wait(const struct fs_request *rq)
{
    if (rq->fs->stopping)
        return KEEL_E_TIMEDOUT;
    if (rq->fs->waiting_count >= KEEL_REQUESTS_MAX && rq->req != NULL && !rq->essential)
        return KEEL_E_AGAIN;
    return 0;
}

void request_barrier(struct fs_request *rq, fs_step step)
{
    struct fs *fs = rq->fs;
    int err = may_wait(rq);

    rq->barrier_us = fs->now_us;
    if (err != 0 || fs->options.read_local) {
        step(rq, err, NULL);
        return;
    }
    err = replica_barrier(fs->replica, &rq->call);
    if (err == 0)
        wait(rq, step);
    else
        step(rq, err < 0 ? err : 0, NULL);
}

void request_walk(struct fs_request *rq, uint64_t nodeid, fs_step step)
{
    struct fs *fs = rq->fs;

    rq->continues =
        !fs->stopping && fs_walk_continues(fs->walks, rq->pid, nodeid, fs->now_us, &rq->barrier_us);
    if (rq->continues)
        step(rq, 0, NULL);
    else
        request_barrier(rq, step);
}

/* The barrier at the end of a walk: what the steps before it found must still be so. */
static void walk_ended(struct fs_request *rq, int err, const struct command_result *result)
{
    struct fs *fs = rq->fs;

    if (err == 0 && rq->continues &&
        !fs_walk_holds(fs->walks, fs->mvcc, rq->pid, rq->walk_nodeid)) {
        err = KEEL_E_STALE;
        fs_walk_stale(fs->walks, rq->pid, fs->now_us);
    }
    fs_walk_end(fs->walks, rq->pid);
    rq->ends_walk = err == 0 && rq->continues;
    rq->continues = false;
    rq->walk_step(rq, err, result);
}

void request_walk_end(struct fs_request *rq, uint64_t nodeid, fs_step step)
{
    struct fs *fs = rq->fs;
    uint64_t barrier_us;

    rq->continues =
        !fs->stopping && fs_walk_continues(fs->walks, rq->pid, nodeid, fs->now_us, &barrier_us);
    rq->walk_nodeid = nodeid;
    rq->walk_step = step;
    request_barrier(rq, walk_ended);
}

void request_ready(struct fs_request *rq, fs_step step)
{
    int err = may_wait(rq);

    if (err == 0)
        err = replica_when_ready(rq->fs->replica, &rq->call);
    if (err == 0)
        wait(rq, step);
    else
        step(rq, err < 0 ? err : 0, NULL);
}

void request_propose(struct fs_request *rq, Keel__Command *command, struct keel_slice body,
                     fs_step step)
{
    int err = may_wait(rq);

    if (rq->req != NULL)
        fs_walk_end(rq->fs->walks, rq->pid);
    if (err != 0) {
        rq->uncommitted = true;
        step(rq, err, NULL);
        return;
    }
    rq->uncommitted = false;
    replica_propose(rq->fs->replica, &rq->call, command, body);
    wait(rq, step);
}

/* False: it may not wait, and has been told so. */
static bool may_ask(struct fs_request *rq, fs_step step)
{
    int err = may_wait(rq);

    if (err != 0)
        step(rq, err, NULL);
    return err == 0;
}

void request_change_members(struct fs_request *rq, const struct keel_member_change *changes,
                            size_t count, fs_step step)
{
    if (!may_ask(rq, step))
        return;
    replica_change_members(rq->fs->replica, &rq->call, changes, count);
    wait(rq, step);
}

void request_transfer(struct fs_request *rq, uint64_t to, fs_step step)
{
    if (!may_ask(rq, step))
        return;
    replica_transfer_to(rq->fs->replica, &rq->call, to);
    wait(rq, step);
}

void request_change_settings(struct fs_request *rq, const struct apply_settings *changes,
                             fs_step step)
{
    if (!may_ask(rq, step))
        return;
    replica_change_settings(rq->fs->replica, &rq->call, changes);
    wait(rq, step);
}

void request_compact(struct fs_request *rq, uint64_t revision, fs_step step)
{
    if (!may_ask(rq, step))
        return;
    replica_compact(rq->fs->replica, &rq->call, revision);
    wait(rq, step);
}

void request_check(struct fs_request *rq, fs_step step)
{
    if (!may_ask(rq, step))
        return;
    replica_check(rq->fs->replica, &rq->call);
    wait(rq, step);
}

/* A no-op stands in the log for what was cancelled, and its result says so; here it is what was
 * asked for. */
static void fenced(struct fs_request *rq, int err, const struct command_result *result)
{
    rq->fenced_step(rq, err == KEEL_E_CANCELLED ? 0 : err, result);
}

void request_fence(struct fs_request *rq, fs_step step)
{
    Keel__Command command = KEEL__COMMAND__INIT;
    Keel__Noop noop = KEEL__NOOP__INIT;

    rq->fenced_step = step;
    command.op_case = KEEL__COMMAND__OP_NOOP;
    command.noop = &noop;
    request_propose(rq, &command, keel_slice_of(NULL, 0), fenced);
}

/* ---- the end ---- */

static void request_free(struct fs_request *rq)
{
    struct fs *fs = rq->fs;

    KEEL_ASSERT(rq->req == NULL && !rq->waiting && rq->commit.handle == NULL);
    uncount_busy(rq);
    for (unsigned i = 0; i < rq->node_count; i++)
        fs_node_unref(fs->nodes, rq->nodes[i]);
    if (rq->handle != NULL)
        handle_unref(fs, rq->handle);
    if (rq->source != NULL)
        handle_unref(fs, rq->source);
    free(rq->name);
    free(rq->new_name);
    free(rq->target);
    if (fs->free_count >= FREE_REQUESTS_MAX) {
        free(rq);
        return;
    }
    keel_list_add(&fs->free_requests, &rq->link);
    fs->free_count++;
}

void fs_requests_stop(struct fs *fs)
{
    struct keel_link *first;

    fs->stopping = true;
    while ((first = keel_list_first(&fs->waiting)) != NULL) {
        struct fs_request *rq = KEEL_CONTAINER_OF(first, struct fs_request, link);

        rq->uncommitted = replica_cancel(fs->replica, &rq->call, true);
        stop_waiting(rq);
        go_on(rq, KEEL_E_TIMEDOUT, NULL);
    }
    snapshot_stop(fs);
}

static bool waits_in_vain(const struct fs_request *rq)
{
    return rq->req != NULL && rq->handle != NULL && rq->handle->lost;
}

void fs_requests_lost(struct fs *fs)
{
    struct keel_link *l = fs->waiting.next;

    fs->lease_lost = false;
    while (l != &fs->waiting) {
        struct fs_request *rq = KEEL_CONTAINER_OF(l, struct fs_request, link);

        l = l->next;
        if (!waits_in_vain(rq))
            continue;
        rq->uncommitted = replica_cancel(fs->replica, &rq->call, true);
        stop_waiting(rq);
        go_on(rq, KEEL_E_LOST, NULL);
        l = fs->waiting.next; /* others may have come or gone */
    }
}

void fs_requests_free(struct fs *fs)
{
    struct keel_link *spare;

    KEEL_ASSERT(keel_list_empty(&fs->waiting));
    while ((spare = keel_list_first(&fs->free_requests)) != NULL) {
        keel_list_remove(spare);
        free(KEEL_CONTAINER_OF(spare, struct fs_request, link));
    }
}

/* ---- answers ---- */

/* The caller's request leaves here, and is answered by who takes it. NULL: an internal one. */
static fuse_req_t take_caller(struct fs_request *rq)
{
    fuse_req_t req = rq->req;

    rq->req = NULL;
    rq->fs->answers++;
    return req;
}

void answer_error(fuse_req_t req, int err)
{
    fuse_reply_err(req, keel_errno(err));
}

void request_answer(struct fs_request *rq, int err)
{
    fuse_req_t req = take_caller(rq);

    if (req != NULL)
        answer_error(req, err);
    request_free(rq);
}

void request_answer_attr(struct fs_request *rq, const struct stat *attr, double timeout_s)
{
    fuse_reply_attr(take_caller(rq), attr, timeout_s);
    request_free(rq);
}

static struct fuse_entry_param entry_of(const struct fs_node *node, const struct stat *attr,
                                        double entry_timeout_s)
{
    return (struct fuse_entry_param){
        .ino = node->nodeid,
        .attr = *attr,
        .attr_timeout = attr_timeout(attr),
        .entry_timeout = entry_timeout_s,
    };
}

void request_answer_entry(struct fs_request *rq, struct fs_node *node, const struct stat *attr,
                          double entry_timeout_s)
{
    struct fuse_entry_param entry = entry_of(node, attr, entry_timeout_s);

    if (fuse_reply_entry(take_caller(rq), &entry) == 0)
        fs_node_looked_up(node);
    request_free(rq);
}

void request_answer_open(struct fs_request *rq, struct fs_handle *h)
{
    rq->fi.fh = (uint64_t)(uintptr_t)h;
    if (fuse_reply_open(take_caller(rq), &rq->fi) != 0)
        handle_settle(rq->fs, h); /* nobody got it */
    request_free(rq);
}

void request_answer_create(struct fs_request *rq, struct fs_node *node, const struct stat *attr,
                           struct fs_handle *h)
{
    struct fuse_entry_param entry = entry_of(node, attr, 0);

    rq->fi.fh = (uint64_t)(uintptr_t)h;
    if (fuse_reply_create(take_caller(rq), &entry, &rq->fi) == 0)
        fs_node_looked_up(node);
    else
        handle_settle(rq->fs, h);
    request_free(rq);
}

void request_answer_write(struct fs_request *rq, size_t size)
{
    fuse_reply_write(take_caller(rq), size);
    request_free(rq);
}

void request_answer_data(struct fs_request *rq, struct keel_slice bytes)
{
    fuse_reply_buf(take_caller(rq), (const char *)bytes.data, bytes.len);
    request_free(rq);
}

void request_answer_xattr(struct fs_request *rq, struct keel_slice value, size_t size)
{
    if (size == 0)
        fuse_reply_xattr(take_caller(rq), value.len);
    else if (size < value.len)
        answer_error(take_caller(rq), KEEL_E_RANGE);
    else
        fuse_reply_buf(take_caller(rq), (const char *)value.data, value.len);
    request_free(rq);
}

void request_answer_readlink(struct fs_request *rq, struct keel_slice target)
{
    char text[KEEL_SYMLINK_MAX + 1];

    KEEL_ASSERT(target.len < sizeof text);
    if (target.len > 0)
        memcpy(text, target.data, target.len);
    text[target.len] = '\0';
    fuse_reply_readlink(take_caller(rq), text);
    request_free(rq);
}

void request_answer_statfs(struct fs_request *rq, const struct statvfs *stat)
{
    fuse_reply_statfs(take_caller(rq), stat);
    request_free(rq);
}
