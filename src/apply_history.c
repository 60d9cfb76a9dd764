/* How history ends: compaction, and what gives way when the quota is reached. */
#include "apply_internal.h"
#include "check.h"
#include "err.h"

enum {
    RECORD_COUNTS = 256, /* what a kept record counts for the quota beside its key and content */
    YIELD_RECORDS_MAX = 8192, /* to one command: more than the largest file takes of small ones */
    /* No command adds more than this: as long as so much is free, nothing has to be looked at. */
    COMMAND_ADDS_MAX =
        KEEL_ENTRY_SIZE_MAX + KEEL_FILE_SIZE_MAX + 2 * (KEEL_PATH_MAX + RECORD_COUNTS),
};

int apply_compact(struct apply_op *op, const Keel__Compact *compact)
{
    if (compact->revision > mvcc_revision(op->a->mvcc))
        return KEEL_E_INVALID;
    if (compact->revision <= mvcc_compact_revision(op->a->mvcc))
        return KEEL_E_STALE;
    mvcc_compact(op->txn, compact->revision);
    op->result->value = compact->revision;
    return 0;
}

/* What is not garbage yet yields only to a quota that was lowered. */
int apply_compact_step(struct apply_op *op, const Keel__CompactStep *step)
{
    uint32_t budget = step->budget < KEEL_COMPACT_STEP_MAX ? step->budget : KEEL_COMPACT_STEP_MAX;
    uint64_t used = mvcc_quota_used(op->a->mvcc), quota = op->a->settings.quota_bytes;

    op->result->value = mvcc_compact_step(op->txn, budget);
    if (op->result->value == 0 && used > quota)
        mvcc_compact_for(op->txn, used - quota, budget);
    return 0;
}

/* ---- the quota ---- */

/* What a command adds to the books. */
struct need {
    uint64_t bytes;
    bool grows; /* what is live gets larger: not only its history */
};

static uint64_t record_bytes(const struct mvcc_key *key)
{
    return RECORD_COUNTS + apply_path_len(key);
}

static struct need need_of_content(struct apply_op *op, uint64_t ino, uint64_t end, bool replace)
{
    const struct mvcc_key *key = mvcc_by_ino(op->a->mvcc, ino);
    struct mvcc_record record;

    if (key == NULL || mvcc_get(op->a->mvcc, key, 0, &record) != 0)
        return (struct need){ 0 };
    uint64_t old = record.content.length;
    uint64_t length = replace || end > old ? end : old;

    return (struct need){ record_bytes(key) + length, length > old };
}

static uint64_t length_of(struct apply_op *op, uint64_t ino)
{
    const struct mvcc_key *key = mvcc_by_ino(op->a->mvcc, ino);
    struct mvcc_record record;

    return key != NULL && mvcc_get(op->a->mvcc, key, 0, &record) == 0 ? record.content.length : 0;
}

static struct need need_of_write(struct apply_op *op, const Keel__Write *write)
{
    uint64_t offset = write->replace  ? 0
                      : write->append ? length_of(op, write->ino)
                                      : write->offset;

    return need_of_content(op, write->ino, offset + op->body.len, write->replace);
}

static struct need need_of_create(struct apply_op *op, const Keel__Create *create)
{
    const struct mvcc_key *dir = mvcc_by_ino(op->a->mvcc, create->parent);
    struct keel_slice name = keel_slice_of(create->name.data, create->name.len);
    uint64_t end = (create->append ? 0 : create->offset) + op->body.len;

    if (dir == NULL || mvcc_live_kind(dir) != MVCC_DIR)
        return (struct need){ 0 };
    const struct mvcc_key *key = mvcc_child(op->a->mvcc, dir, name);
    uint64_t ino = key != NULL ? mvcc_live_ino(key) : 0;

    if (ino == 0)
        return (struct need){ record_bytes(dir) + name.len + 1 + end, true };
    if (create->append)
        end += length_of(op, ino);
    return need_of_content(op, ino, end, create->truncate);
}

static struct need need_of_attributes(struct apply_op *op, const Keel__SetAttr *set)
{
    const struct mvcc_key *key = mvcc_by_ino(op->a->mvcc, set->ino);

    if (set->set & KEEL__ATTR__ATTR_SIZE)
        return need_of_content(op, set->ino, set->size, !set->grow_only);
    if (set->zero_to > set->zero_from)
        return need_of_content(op, set->ino, 0, false);
    return (struct need){ key != NULL ? record_bytes(key) : 0, false };
}

static struct need need_of(struct apply_op *op)
{
    const Keel__Command *head = op->head;

    switch ((int)head->op_case) {
    case KEEL__COMMAND__OP_CREATE:
        return need_of_create(op, head->create);
    case KEEL__COMMAND__OP_WRITE:
        return need_of_write(op, head->write);
    case KEEL__COMMAND__OP_SET_ATTR:
        return need_of_attributes(op, head->set_attr);
    case KEEL__COMMAND__OP_COPY_RANGE:
        return need_of_content(op, head->copy_range->target,
                               head->copy_range->target_offset + head->copy_range->length, false);
    case KEEL__COMMAND__OP_RENAME:
        return (struct need){ 2 * (RECORD_COUNTS + KEEL_PATH_MAX), false };
    default: /* deletes, and what is not in the keyspace */
        return (struct need){ 0 };
    }
}

void apply_make_room(struct apply_op *op)
{
    uint64_t used = mvcc_quota_used(op->a->mvcc), quota = op->a->settings.quota_bytes;

    if (used + COMMAND_ADDS_MAX <= quota)
        return;
    struct need need = need_of(op);

    if (need.bytes == 0 || used + need.bytes <= quota)
        return;
    /* A quota that was lowered far takes its time: meanwhile it may be exceeded. */
    op->full =
        mvcc_compact_for(op->txn, used + need.bytes - quota, YIELD_RECORDS_MAX) == MVCC_ROOM_NONE &&
        need.grows;
}

void apply_watch_room(struct apply *a, int err)
{
    uint64_t quota = a->settings.quota_bytes;

    if (err == KEEL_E_NOSPACE)
        a->nospace = true;
    else if (a->nospace && mvcc_quota_used(a->mvcc) <= quota - quota / 20)
        a->nospace = false;
}
