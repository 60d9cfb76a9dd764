/* See twin.h. */
#include "twin.h"

#include <stdio.h>

#include "check.h"
#include "hash.h"
#include "mvcc/record.h"

/* ---- what there was and is ---- */

struct keel_buf *twin_content(struct mvcc_revision at, uint32_t size)
{
    struct keel_buf *buf = keel_buf_new(size);

    for (size_t i = 0; i < size; i++)
        buf->data[i] = (uint8_t)(at.main * 31 + at.sub * 7 + i);
    return buf;
}

struct version *twin_at(struct twin *t, const char *path, uint64_t at)
{
    for (size_t i = t->count; i > 0; i--) {
        struct version *v = &t->versions[i - 1];

        if (v->record.revision.main <= at && strcmp(v->path, path) == 0)
            return v->record.tombstone ? NULL : v;
    }
    return NULL;
}

struct version *twin_live(struct twin *t, const char *path)
{
    return twin_at(t, path, UINT64_MAX);
}

static uint64_t twin_generation(struct twin *t, const char *path, uint64_t *ret_version)
{
    struct version *last = twin_live(t, path);

    *ret_version = last ? last->record.version + 1 : 1;
    return last ? last->record.create_revision : t->revision + 1;
}

struct living_dir *twin_dir(struct twin *t, const char *path)
{
    for (size_t i = 0; i < t->dir_count; i++)
        if (strcmp(t->dirs[i].path, path) == 0)
            return &t->dirs[i];
    return NULL;
}

void twin_parent(const char *path, char *ret_parent)
{
    const char *slash = strrchr(path, '/');

    snprintf(ret_parent, PATH, "%.*s", slash ? (int)(slash - path) : 0, path);
}

static void twin_touch_parent(struct twin *t, const struct op *op, const char *path)
{
    char parent[PATH];

    twin_parent(path, parent);
    struct living_dir *dir = twin_dir(t, parent);

    assert_non_null(dir);
    dir->mtime = op->time;
    dir->ctime = op->time > dir->ctime ? op->time : dir->ctime;
}

static void twin_add(struct twin *t, const char *path, struct mvcc_record record)
{
    assert_true(t->count < KEEL_ARRAY_LEN(t->versions));
    struct version *v = &t->versions[t->count++];

    record.revision = (struct mvcc_revision){ t->revision + 1, t->sub++ };
    snprintf(v->path, PATH, "%s", path);
    v->record = record;
    v->gone = false;
    v->follower = record.tombstone ? t->count - 1 : SIZE_MAX;
    for (size_t i = t->count - 1; i-- > 0;) {
        if (strcmp(t->versions[i].path, path) != 0)
            continue;
        if (!t->versions[i].record.tombstone)
            t->versions[i].follower = t->count - 1;
        break;
    }
}

void twin_put(struct twin *t, const char *path, struct mvcc_record record, bool new_content,
              uint32_t size)
{
    struct version *last = twin_live(t, path);
    struct living_dir *dir = twin_dir(t, path);
    int64_t ctime = dir ? dir->ctime : last ? last->record.ctime_ns : INT64_MIN;

    record.create_revision = twin_generation(t, path, &record.version);
    if (ctime > record.ctime_ns)
        record.ctime_ns = ctime;
    if (new_content) {
        struct mvcc_revision at = { t->revision + 1, t->sub };
        struct keel_buf *bytes = twin_content(at, size);

        record.content = (struct mvcc_content){ 0 };
        if (size > 0)
            record.content = (struct mvcc_content){ at, size, keel_hash64(keel_buf_slice(bytes)) };
        keel_buf_free(bytes);
    }
    twin_add(t, path, record);
    if (record.kind != MVCC_DIR)
        return;
    if (dir == NULL) {
        dir = &t->dirs[t->dir_count++];
        snprintf(dir->path, PATH, "%s", path);
    }
    dir->mtime = record.mtime_ns;
    dir->ctime = record.ctime_ns;
}

static void twin_delete(struct twin *t, const struct op *op, const char *path)
{
    struct version *last = twin_live(t, path);
    struct living_dir *dir = twin_dir(t, path);
    int64_t ctime = dir ? dir->ctime : last->record.ctime_ns;
    struct mvcc_record tombstone = { .tombstone = true,
                                     .kind = last->record.kind,
                                     .ino = last->record.ino,
                                     .lease = op->lease,
                                     .ctime_ns = op->time > ctime ? op->time : ctime };

    twin_add(t, path, tombstone);
    if (dir != NULL)
        *dir = t->dirs[--t->dir_count];
}

struct mvcc_record twin_record(const struct op *op, enum mvcc_kind kind)
{
    return (struct mvcc_record){
        .kind = kind,
        .mode = op->mode,
        .uid = 7,
        .gid = 8,
        .ino = op->ino,
        .lease = op->lease,
        .atime_ns = op->time,
        .mtime_ns = op->time,
        .ctime_ns = op->time,
        .btime_ns = op->time,
    };
}

static void twin_rename(struct twin *t, const struct op *op)
{
    struct mvcc_record record = twin_live(t, op->path)->record;

    record.ctime_ns = op->time;
    if (op->delete_first)
        twin_delete(t, op, op->path);
    twin_put(t, op->to, record, false, 0);
    if (!op->delete_first)
        twin_delete(t, op, op->path);
    twin_touch_parent(t, op, op->path);
    twin_touch_parent(t, op, op->to);
}

static void twin_write(struct twin *t, const struct op *op)
{
    struct version *last = twin_live(t, op->path);
    struct mvcc_record record = twin_record(op, MVCC_FILE);

    if (last != NULL) {
        record = last->record;
        record.mtime_ns = record.ctime_ns = op->time;
    }
    twin_put(t, op->path, record, true, op->size);
    if (last == NULL)
        twin_touch_parent(t, op, op->path);
}

/* chmod and utimes. */
static void twin_chmod(struct twin *t, const struct op *op)
{
    struct mvcc_record record = twin_live(t, op->path)->record;
    struct living_dir *dir = twin_dir(t, op->path);

    record.ctime_ns = op->time;
    if (op->kind == OP_UTIMES)
        record.mtime_ns = op->size;
    else
        record.mode = op->mode;
    if (op->kind == OP_CHMOD && dir != NULL)
        record.mtime_ns = dir->mtime;
    twin_put(t, op->path, record, false, 0);
}

/* ---- compaction ---- */

/* When it became garbage; UINT64_MAX: it is none. */
static uint64_t garbage_since(const struct twin *t, const struct version *v)
{
    return v->follower == SIZE_MAX ? UINT64_MAX : t->versions[v->follower].record.revision.main;
}

bool twin_askable(const struct twin *t, const struct version *v)
{
    return garbage_since(t, v) > t->compacted;
}

/* What goes first: what was followed first. NULL: there is nothing that ever was. */
static struct version *first_garbage(struct twin *t)
{
    struct version *first = NULL;

    for (size_t i = 0; i < t->count; i++) {
        struct version *v = &t->versions[i];

        if (!v->gone && v->follower != SIZE_MAX && (first == NULL || v->follower < first->follower))
            first = v;
    }
    return first;
}

bool twin_has_garbage(struct twin *t)
{
    struct version *first = first_garbage(t);

    return first != NULL && !twin_askable(t, first);
}

/* With the tombstone that ended it. */
static uint32_t twin_take(struct twin *t, struct version *v)
{
    struct version *follower = &t->versions[v->follower];

    assert_false(v->record.tombstone);
    v->gone = true;
    if (!follower->record.tombstone)
        return 1;
    follower->gone = true;
    return 2;
}

static uint32_t twin_step(struct twin *t, uint32_t budget)
{
    uint32_t taken = 0;

    while (taken < budget && twin_has_garbage(t))
        taken += twin_take(t, first_garbage(t));
    return taken;
}

uint64_t twin_quota(const struct twin *t, size_t *ret_contents)
{
    uint64_t quota = 0;

    *ret_contents = 0;
    for (size_t i = 0; i < t->count; i++) {
        const struct version *v = &t->versions[i];
        bool counted = v->record.content.length == 0;

        if (v->gone)
            continue;
        quota += strlen(v->path) + 256;
        for (size_t k = 0; k < i && !counted; k++)
            counted = !t->versions[k].gone &&
                      revision_compare(t->versions[k].record.content.at, v->record.content.at) == 0;
        quota += counted ? 0 : v->record.content.length;
        *ret_contents += !counted;
    }
    return quota;
}

static bool twin_yield(struct twin *t, uint64_t bytes)
{
    size_t contents;
    uint64_t before = twin_quota(t, &contents);

    while (before - twin_quota(t, &contents) < bytes) {
        struct version *first = first_garbage(t);

        if (first == NULL || garbage_since(t, first) > t->revision)
            return false;
        uint64_t since = garbage_since(t, first);

        t->compacted = since > t->compacted ? since : t->compacted;
        while (first != NULL && garbage_since(t, first) == since) {
            twin_take(t, first);
            first = first_garbage(t);
        }
    }
    return true;
}

void twin_op(struct twin *t, struct op *op)
{
    switch (op->kind) {
    case OP_WRITE:
        twin_write(t, op);
        break;
    case OP_MKDIR:
    case OP_LINK:
        twin_put(t, op->path, twin_record(op, op->kind == OP_MKDIR ? MVCC_DIR : MVCC_SYMLINK),
                 op->kind == OP_LINK, op->size);
        twin_touch_parent(t, op, op->path);
        break;
    case OP_DELETE:
        twin_delete(t, op, op->path);
        twin_touch_parent(t, op, op->path);
        break;
    case OP_RENAME:
        twin_rename(t, op);
        break;
    case OP_CHMOD:
    case OP_UTIMES:
        twin_chmod(t, op);
        break;
    case OP_TOUCH:
        twin_touch_parent(t, op, op->path);
        break;
    case OP_COMPACT:
        t->compacted = op->at > t->compacted ? op->at : t->compacted;
        break;
    case OP_STEP:
        op->result = twin_step(t, op->size);
        break;
    case OP_YIELD:
        op->result = twin_yield(t, op->size);
        break;
    }
}

void twin_commit(struct twin *t)
{
    t->revision += t->sub > 0;
    t->sub = 0;
}
