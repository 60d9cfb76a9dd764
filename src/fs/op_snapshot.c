/* /@keel/snapshot: a backup that is read like a file. open(2) waits until the node has made a copy
 * of its store in which everything is that was written before, which may be seconds for a large one
 * and can be interrupted; the copy lives until the last close. There is one at a time: it takes as
 * much of the disk as the store. */

#include "check.h"
#include "err.h"
#include "fs/fs_internal.h"

void snapshot_close(struct fs *fs)
{
    fs->info.snapshot_drop(fs->info.arg);
    fs->snapshot.taken = false;
    fs->snapshot.size = 0;
}

/* Its opener does not wait any more. */
static void give_up(struct fs *fs, int err)
{
    struct fs_request *rq = fs->snapshot.opening;

    fs->snapshot.opening = NULL;
    snapshot_close(fs);
    request_answer(rq, err);
}

static void interrupted(fuse_req_t req, void *arg)
{
    struct fs_request *rq = arg;

    (void)req;
    if (rq->fs->snapshot.opening == rq)
        give_up(rq->fs, KEEL_E_INTR);
}

void snapshot_open(struct fs_request *rq)
{
    struct fs *fs = rq->fs;

    if (fs->stopping || fs->snapshot.taken) {
        request_answer(rq, fs->stopping ? KEEL_E_TIMEDOUT : KEEL_E_BUSY);
        return;
    }
    fs->snapshot.taken = true;
    fs->snapshot.opening = rq;
    fs->info.snapshot_make(fs->info.arg);
    /* not from inside fuse_req_interrupt_func: see request.c */
    if (fuse_req_interrupted(rq->req))
        interrupted(rq->req, rq);
    else
        fuse_req_interrupt_func(rq->req, interrupted, rq);
}

void fs_snapshot_made(struct fs *fs, int err, uint64_t size)
{
    struct fs_request *rq = fs->snapshot.opening;

    if (rq == NULL)
        return;
    if (err != 0) {
        give_up(fs, err);
        return;
    }
    fs->snapshot.opening = NULL;
    fs->snapshot.size = size;
    rq->fi.direct_io = 1;
    rq->fi.keep_cache = 0;
    rq->fi.noflush = 1;
    request_answer_open(rq, handle_new(fs, HANDLE_SNAPSHOT, rq->nodes[0], NULL));
}

void snapshot_read(struct fs_request *rq)
{
    struct fs *fs = rq->fs;

    if (fs->stopping) {
        request_answer(rq, KEEL_E_TIMEDOUT);
    } else if (rq->offset >= fs->snapshot.size) {
        request_answer_data(rq, keel_slice_of(NULL, 0));
    } else {
        keel_list_add(&fs->snapshot.reads, &rq->link);
        fs->info.snapshot_read(fs->info.arg, rq->offset, rq->size);
    }
}

static struct fs_request *next_read(struct fs *fs)
{
    struct keel_link *first = keel_list_first(&fs->snapshot.reads);

    if (first == NULL)
        return NULL;
    keel_list_remove(first);
    return KEEL_CONTAINER_OF(first, struct fs_request, link);
}

void fs_snapshot_read(struct fs *fs, const struct keel_buf *bytes)
{
    struct fs_request *rq = next_read(fs);

    if (rq == NULL)
        return;
    if (bytes != NULL)
        request_answer_data(rq, keel_buf_slice(bytes));
    else
        request_answer(rq, KEEL_E_IO);
}

void snapshot_stop(struct fs *fs)
{
    struct fs_request *rq;

    if (fs->snapshot.opening != NULL)
        give_up(fs, KEEL_E_TIMEDOUT);
    while ((rq = next_read(fs)) != NULL)
        request_answer(rq, KEEL_E_TIMEDOUT);
}
