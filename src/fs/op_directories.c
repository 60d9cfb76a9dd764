/* Listing: a directory is read as of the revision at which it was opened, or rewound. */
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "bytes.h"
#include "check.h"
#include "err.h"
#include "fs/fs_internal.h"

enum { READDIR_MAX = 1 << 20 };

struct entry {
    struct keel_slice name;
    struct stat attr; /* st_ino and the type are enough */
};

static mode_t type_of(enum mvcc_kind kind)
{
    switch (kind) {
    case MVCC_DIR:
        return S_IFDIR;
    case MVCC_SYMLINK:
        return S_IFLNK;
    case MVCC_FILE:
        break;
    }
    return S_IFREG;
}

/* From the first entry again. */
static void listing_start(struct fs *fs, struct fs_handle *h)
{
    struct handle_listing *l = h->listing;

    l->position = 0;
    l->last_len = 0;
    l->at_end = false;
    l->extra_offset = 0;
    if (l->past)
        return;
    l->at = mvcc_revision(fs->mvcc);
    keel_buf_free(l->extra);
    l->extra = creation_names(fs, h->node->ino);
}

/* What a name of the listing is. False: it can't be told any more, and is left out. */
static bool entry_of_key(struct fs *fs, const struct handle_listing *l, const struct mvcc_key *key,
                         struct entry *ret_entry)
{
    struct mvcc_record record;

    ret_entry->name = mvcc_name(key);
    if (!l->past && mvcc_live_ino(key) != 0 && mvcc_mod_revision(key).main <= l->at) {
        ret_entry->attr.st_ino = mvcc_live_ino(key);
        ret_entry->attr.st_mode = type_of(mvcc_live_kind(key));
        return true;
    }
    if (mvcc_get(fs->mvcc, key, l->at, &record) != 0)
        return false;
    ret_entry->attr.st_ino = l->past ? view_past_ino(record.ino, l->at) : record.ino;
    ret_entry->attr.st_mode = type_of(record.kind);
    return true;
}

static bool next_of_revision(struct fs *fs, struct handle_listing *l, struct entry *ret_entry)
{
    while (!l->at_end) {
        struct mvcc_key *key =
            mvcc_next_child(fs->mvcc, l->dir, l->at, keel_slice_of(l->last, l->last_len));

        if (key == NULL) {
            l->at_end = true;
            break;
        }
        struct keel_slice name = mvcc_name(key);

        memcpy(l->last, name.data, name.len);
        l->last_len = (uint8_t)name.len;
        if (entry_of_key(fs, l, key, ret_entry))
            return true;
    }
    return false;
}

static bool next_extra(struct handle_listing *l, struct entry *ret_entry)
{
    struct keel_cursor c = { .rest = keel_buf_slice(l->extra) };

    cursor_take(&c, l->extra_offset);
    if (l->extra == NULL || c.rest.len == 0)
        return false;
    ret_entry->attr.st_ino = cursor_le64(&c);
    ret_entry->attr.st_mode = S_IFREG;
    ret_entry->name = cursor_slice(&c, cursor_u8(&c));
    l->extra_offset = l->extra->len - c.rest.len;
    return !c.bad;
}

static bool next_control(const struct handle_listing *l, struct entry *ret_entry)
{
    const struct control_entry *entry = control_entries;

    for (uint64_t i = 2; i < l->position && entry->name != NULL; i++)
        entry++;
    if (entry->name == NULL)
        return false;
    ret_entry->name = keel_slice_str(entry->name);
    ret_entry->attr.st_ino = FS_VIEW_BIT;
    ret_entry->attr.st_mode = S_IFREG;
    return true;
}

/* The entry at the listing's position. */
static bool next_entry(struct fs *fs, struct fs_handle *h, struct entry *ret_entry)
{
    struct handle_listing *l = h->listing;

    memset(ret_entry, 0, sizeof *ret_entry);
    if (l->position < 2) {
        ret_entry->name = keel_slice_str(l->position == 0 ? "." : "..");
        ret_entry->attr.st_ino = l->position == 0 ? h->node->ino : l->parent_ino;
        ret_entry->attr.st_mode = S_IFDIR;
        return true;
    }
    if (l->dir == NULL)
        return next_control(l, ret_entry);
    return next_of_revision(fs, l, ret_entry) || next_extra(l, ret_entry);
}

/* ---- opendir ---- */

static struct fs_handle *listing_new(struct fs *fs, struct fs_node *node, struct mvcc_key *dir)
{
    struct fs_handle *h = handle_new(fs, HANDLE_DIR, node, NULL);
    struct handle_listing *l = keel_calloc(1, sizeof *l);
    const struct mvcc_key *parent = dir != NULL ? mvcc_parent(dir) : NULL;

    h->listing = l;
    l->dir = dir;
    if (dir != NULL)
        mvcc_pin(dir);
    l->parent_ino = parent != NULL ? mvcc_live_ino(parent) : FUSE_ROOT_ID;
    l->past = node->view != NULL;
    if (l->parent_ino == 0)
        l->parent_ino = FUSE_ROOT_ID;
    if (l->past)
        l->at = node->view->rev;
    listing_start(fs, h);
    return h;
}

static void opened_dir(struct fs_request *rq, int err, const struct command_result *result)
{
    struct fs *fs = rq->fs;
    struct fs_node *node = rq->nodes[0];
    struct mvcc_key *dir = node->view != NULL ? node->view->key : mvcc_by_ino(fs->mvcc, node->ino);

    (void)result;
    fs_walk_end(fs->walks, rq->pid);
    if (err == 0 && fs->handle_count >= KEEL_HANDLES_MAX)
        err = KEEL_E_MFILE;
    if (err == 0 && node->view == NULL && dir == NULL)
        err = KEEL_E_STALE;
    if (err != 0)
        request_answer(rq, err);
    else
        request_answer_open(rq, listing_new(fs, node, dir));
}

static void op_opendir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    struct fs *fs = fs_of(req);
    struct fs_node *node = op_node(fs, ino);

    if (fs_is_poker(fs, req)) {
        poker_op_other(fs->poker, req);
        return;
    }
    if (node == NULL) {
        answer_error(req, KEEL_E_STALE);
        return;
    }
    struct fs_request *rq = request_new(fs, req);

    rq->fi = *fi;
    node->asked_us = fs->now_us;
    request_use(rq, node, false);
    /* df(1) opens the root, and has to work without a quorum: the names are read under a barrier
     * then */
    if (node_is_keel(node) || ino == FUSE_ROOT_ID)
        opened_dir(rq, 0, NULL);
    else
        request_walk_end(rq, ino, opened_dir);
}

/* ---- readdir ---- */

/* As many entries from the listing's position on as fit. */
static void give_entries(struct fs_request *rq)
{
    struct fs *fs = rq->fs;
    struct fs_handle *h = rq->handle;
    struct handle_listing *l = h->listing;

    if (l->dir != NULL && !l->at_end && l->at < mvcc_compact_revision(fs->mvcc)) {
        request_answer(rq, KEEL_E_STALE); /* what was to be listed is gone */
        return;
    }
    size_t size = rq->size < READDIR_MAX ? rq->size : READDIR_MAX, used = 0;
    char *text = keel_malloc(size + 1), name[KEEL_NAME_MAX + 1];
    struct entry entry;

    for (;;) {
        struct handle_listing before = *l;

        if (!next_entry(fs, h, &entry))
            break;
        memcpy(name, entry.name.data, entry.name.len);
        name[entry.name.len] = '\0';
        size_t need = fuse_add_direntry(rq->req, text + used, size - used, name, &entry.attr,
                                        (off_t)(l->position + 1));

        if (need > size - used) {
            *l = before; /* for the next request */
            break;
        }
        used += need;
        l->position++;
    }
    request_answer_data(rq, keel_slice_of(text, used));
    free(text);
}

/* seekdir(3): from the start to that position again. */
static void seek_entries(struct fs_request *rq, uint64_t position)
{
    struct handle_listing *l = rq->handle->listing;
    struct entry entry;

    l->position = 0;
    l->last_len = 0;
    l->at_end = false;
    l->extra_offset = 0;
    while (l->position < position && next_entry(rq->fs, rq->handle, &entry))
        l->position++;
}

static void read_from_start(struct fs_request *rq, int err, const struct command_result *result)
{
    (void)result;
    if (err != 0) {
        request_answer(rq, err);
        return;
    }
    listing_start(rq->fs, rq->handle);
    give_entries(rq);
}

static void op_readdir(fuse_req_t req, fuse_ino_t ino, size_t size, off_t offset,
                       struct fuse_file_info *fi)
{
    struct fs *fs = fs_of(req);

    if (fs_is_poker(fs, req) || fs_is_poker_handle(fi)) {
        poker_op_other(fs->poker, req);
        return;
    }
    struct fs_request *rq = request_new(fs, req);
    struct fs_handle *h = fs_handle_of(fi);

    rq->size = size;
    request_use_handle(rq, h);
    /* a rewound directory is read anew; so is the root, which was opened without a barrier */
    if (offset == 0 && !h->listing->past && h->listing->dir != NULL &&
        (h->listing->position > 0 || ino == FUSE_ROOT_ID)) {
        request_barrier(rq, read_from_start);
        return;
    }
    if ((uint64_t)offset != h->listing->position)
        seek_entries(rq, (uint64_t)offset);
    give_entries(rq);
}

static void op_releasedir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    struct fs *fs = fs_of(req);

    (void)ino;
    if (fs_is_poker_handle(fi)) {
        poker_op_other(fs->poker, req);
        return;
    }
    answer_error(req, 0);
    handle_unref(fs, fs_handle_of(fi));
}

static void op_fsyncdir(fuse_req_t req, fuse_ino_t ino, int datasync, struct fuse_file_info *fi)
{
    (void)ino;
    (void)datasync;
    (void)fi;
    answer_error(req, 0); /* what has returned is durable */
}

void op_directories(struct fuse_lowlevel_ops *ops)
{
    ops->opendir = op_opendir;
    ops->readdir = op_readdir;
    ops->releasedir = op_releasedir;
    ops->fsyncdir = op_fsyncdir;
}
