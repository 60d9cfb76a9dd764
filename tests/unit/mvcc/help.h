/* What the tests of mvcc share: stores in temporary directories, checkpoints that are written at
 * once, and short ways to put things at a path. */
#ifndef MVCC_HELP_H
#define MVCC_HELP_H

#include "unit.h"

#include "err.h"
#include "mvcc/mvcc.h"
#include "mvcc/snapshot.h"
#include "rng.h"

/* A directory of its own under $TMPDIR or /tmp, and its end with everything in it (one level). */
void help_dir_new(char *ret_dir, size_t size);
void help_dir_remove(const char *dir);

struct kv *help_lmdb(const char *dir);
/* Opens, and fails the test with the text if that doesn't work. */
struct mvcc *help_open(struct kv *kv);
/* Checkpoint, write, done. */
void help_checkpoint(struct mvcc *m, struct kv *kv);
/* Closes and opens again. */
struct mvcc *help_reopen(struct mvcc *m, struct kv *kv);

/* A fresh mvcc in memory: cmocka's state of most tests. */
struct fixture {
    struct kv *kv;
    struct mvcc *m;
};
int help_set_up(void **state);
int help_tear_down(void **state);

/* The key of a path, or NULL. */
struct mvcc_key *help_key(struct mvcc *m, const char *path);
/* One transaction each, at the next index; new files get the next inode number that is free in m.
 */
struct mvcc_key *help_write(struct mvcc *m, const char *path, const char *text);
struct mvcc_key *help_mkdir(struct mvcc *m, const char *path);
void help_delete(struct mvcc *m, const char *path);
/* A transaction at the next index, of the same term. */
struct mvcc_txn *help_begin(struct mvcc *m);
/* Each a transaction of its own; all: in small steps. */
void help_compact(struct mvcc *m, uint64_t at);
uint32_t help_compact_step(struct mvcc *m, uint32_t budget);
void help_compact_all(struct mvcc *m, uint64_t at);
/* The content of a path at a revision as a string, "(none)" when it is absent; static. */
const char *help_read(struct mvcc *m, const char *path, uint64_t at);

/* One transaction of up to three operations that are allowed, on few names. */
void help_random_entry(struct mvcc *m, struct keel_rng *rng);
/* Every answer that mvcc gives about those names, at every revision, is the same. */
void help_assert_same(struct mvcc *a, struct mvcc *b);
size_t help_entries(struct kv *kv, enum kv_table table);
/* Byte for byte. */
void help_assert_same_tables(struct kv *a, struct kv *b);

/* The whole stream of a kv. */
struct keel_buf *help_snapshot(struct kv *kv, struct snapshot_info *ret_info);
/* Into a kv that is empty, in pieces of random sizes. */
void help_install(struct keel_buf *stream, struct kv *kv, struct keel_rng *rng);

#endif
