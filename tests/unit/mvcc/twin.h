/* A naive model of mvcc: every version of every key in one array, whatever is asked is looked for
 * from one end of it to the other. What is gone is only marked. */
#ifndef MVCC_TWIN_H
#define MVCC_TWIN_H

#include "help.h"
#include "mvcc/record.h"

enum { PATH = 40, OPS = 3, ENTRIES = 500 };

enum op_kind {
    OP_WRITE,
    OP_MKDIR,
    OP_LINK,
    OP_DELETE,
    OP_RENAME,
    OP_CHMOD,
    OP_UTIMES,
    OP_TOUCH,
    OP_COMPACT,
    OP_STEP,
    OP_YIELD,
};

struct op {
    enum op_kind kind;
    char path[PATH], to[PATH];
    uint64_t ino; /* of what is created */
    uint64_t lease;
    int64_t time;
    uint32_t size; /* step: the budget; yield: how many bytes */
    uint16_t mode;
    bool delete_first; /* rename */
    uint64_t at;       /* compact */
    uint32_t result;   /* step: how many went; yield: whether it was enough; set by the twin */
};

struct entry {
    struct op ops[OPS];
    size_t count;
};

struct version {
    char path[PATH];
    struct mvcc_record record;
    size_t follower; /* the version by which it became garbage: a tombstone itself; SIZE_MAX */
    bool gone;
};

struct living_dir {
    char path[PATH];
    int64_t mtime, ctime;
};

struct twin {
    struct version versions[ENTRIES * OPS * 2 + 1];
    size_t count;
    struct living_dir dirs[400]; /* 7 + 49 + 343 paths */
    size_t dir_count;
    uint64_t revision, compacted;
    uint32_t sub;
};

/* The bytes that revision 'at' wrote: any function of the revision and the size does. */
struct keel_buf *twin_content(struct mvcc_revision at, uint32_t size);
void twin_parent(const char *path, char *ret_parent);
/* The record of what an operation creates. */
struct mvcc_record twin_record(const struct op *op, enum mvcc_kind kind);

/* The version of a path as of a revision, NULL when it was absent; of now. */
struct version *twin_at(struct twin *t, const char *path, uint64_t at);
struct version *twin_live(struct twin *t, const char *path);
struct living_dir *twin_dir(struct twin *t, const char *path);
/* Is it no garbage at the present point? */
bool twin_askable(const struct twin *t, const struct version *v);
bool twin_has_garbage(struct twin *t);
/* Of all that is not gone; the contents among it. */
uint64_t twin_quota(const struct twin *t, size_t *ret_contents);

void twin_put(struct twin *t, const char *path, struct mvcc_record record, bool new_content,
              uint32_t size);
void twin_op(struct twin *t, struct op *op);
void twin_commit(struct twin *t);

#endif
