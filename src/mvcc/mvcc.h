/* Multi-version keyspace: an in-memory tree of keys with their generations of revisions, and
 * records in a kv store behind it. Pure (the kv is reached through its vtable); used from one
 * thread.
 *
 *   key      a path; in the tree one `struct mvcc_key` for each name that exists, or existed and
 *            has a revision that is still kept
 *   record   what a key was at one revision: kind, mode, owner, times, inode, lease, content
 *            reference, xattrs
 *   content  bytes, stored once under the revision that wrote them; records refer to them
 *   pending  records, content and meta applied in memory but not yet checkpointed into the kv
 *
 * The 17-byte revision key (main big-endian, '_', sub big-endian) is etcd's. A generation starts
 * with a creation and ends with a tombstone:
 *
 *     conf/db   {5.0 7.0 9.1(t)} {12.0}
 *
 *     at 4: absent    at 8: record 7.0    at 10: absent    now: record 12.0
 *
 * Memory: at most 96 bytes a live key plus its name, 24 a kept revision, and some 32 for a content
 * that several records share. Records are decoded from pending or the kv's map at each read.
 * Directory mtime, ctime and child counts are beside the records (not versioned; the times are
 * persisted in KV_DIRS). */
#ifndef MVCC_MVCC_H
#define MVCC_MVCC_H

#include "hash.h"
#include "keel_limits.h"
#include "mvcc/kv.h"

struct mvcc;
struct mvcc_key; /* borrowed; pinned (mvcc_pin) if it is held beyond the next transaction */
struct mvcc_txn;

enum mvcc_kind { MVCC_FILE = 1, MVCC_DIR = 2, MVCC_SYMLINK = 3 };

enum { MVCC_ROOT_INO = 1 };

struct mvcc_revision {
    uint64_t main;
    uint32_t sub; /* at most MVCC_SUB_MAX */
};

#define MVCC_SUB_MAX UINT32_C(0x7fffffff)

/* Where content is: the revision that wrote it. length 0: empty, nothing stored. */
struct mvcc_content {
    struct mvcc_revision at;
    uint32_t length;
    uint64_t hash; /* xxh3-64 of the bytes; checked on each read from the kv */
};

struct mvcc_record {
    bool tombstone; /* then only revision, time (ctime_ns), kind, ino, lease are meaningful */
    enum mvcc_kind kind;
    uint16_t mode; /* permission bits, 07777 */
    uint32_t uid, gid;
    int64_t atime_ns, mtime_ns, ctime_ns, btime_ns;
    uint64_t ino;
    uint64_t lease; /* 0: none; in a tombstone: the lease whose expiry deleted the key */
    struct mvcc_revision revision; /* mod_revision */
    uint64_t create_revision;
    uint64_t version;
    struct mvcc_content content;
    struct keel_slice xattrs; /* encoded user attributes; borrowed; empty in this version */
};

/* Bytes given with a put: a slice of a counted buf (an entry's body), so that nothing is copied.
 * The put takes a reference of its own. */
struct mvcc_value {
    struct keel_buf *owner;  /* NULL: no bytes */
    struct keel_slice bytes; /* inside owner */
};

/* Rebuilds from the kv: one scan of the records; verifies the state hash. A fresh store gets
 * revision 1, the root, as a pending record at applied index 0. KEEL_E_CORRUPT with ret_why (record
 * and what differs), KEEL_E_NEWER. The kv is borrowed. */
int mvcc_open(struct kv *kv, struct mvcc **ret_mvcc, char *ret_why, size_t why_size);
struct mvcc *mvcc_close(struct mvcc *m); /* takes NULL, returns NULL */

/* Everything from another kv (borrowed from now on) in the place of what is there: pending records
 * are dropped, no checkpoint may be out. Keys keep their addresses; one that the kv does not know
 * has no revision afterwards. KEEL_E_CORRUPT (also a kv without a format), KEEL_E_NEWER with
 * ret_why: then the mvcc can only be closed. */
int mvcc_reload(struct mvcc *m, struct kv *kv, char *ret_why, size_t why_size);

/* The kv that is there has been copied: from now on the copy is read (borrowed). Everything else
 * stays as it is, also what is pending, and a checkpoint that is out. Ends the read transaction. */
void mvcc_switch(struct mvcc *m, struct kv *kv);

/* ---- reading ---- */

uint64_t mvcc_revision(const struct mvcc *m);         /* main revision, 1 when fresh */
uint64_t mvcc_compact_revision(const struct mvcc *m); /* 0: never compacted */
uint64_t mvcc_applied_index(const struct mvcc *m);
uint64_t mvcc_applied_term(const struct mvcc *m);
struct keel_hash128 mvcc_state_hash(const struct mvcc *m);
uint64_t mvcc_live_keys(const struct mvcc *m);  /* the root counts */
uint64_t mvcc_quota_used(const struct mvcc *m); /* kept records: key + content once + 256 each */

struct mvcc_key *mvcc_root(const struct mvcc *m);
/* The key that now has this inode number, or NULL. */
struct mvcc_key *mvcc_by_ino(const struct mvcc *m, uint64_t ino);
/* The key of that name in a directory key, live or not, or NULL when no record of it can be asked
 * for. */
struct mvcc_key *mvcc_child(const struct mvcc *m, const struct mvcc_key *dir,
                            struct keel_slice name);
struct mvcc_key *mvcc_parent(const struct mvcc_key *key); /* NULL for the root */
struct keel_slice mvcc_name(const struct mvcc_key *key);
/* Appends the path without a leading slash ("" for the root). */
void mvcc_path(const struct mvcc_key *key, struct keel_text *text);
uint64_t mvcc_live_ino(const struct mvcc_key *key);        /* 0 when the key is not live */
enum mvcc_kind mvcc_live_kind(const struct mvcc_key *key); /* of a live key: no store access */
/* Of the newest record on the books, be it a tombstone (and that even garbage); 0.0: there is none.
 */
struct mvcc_revision mvcc_mod_revision(const struct mvcc_key *key);

/* The record of a key as of main revision `at` (0: now, changes of an open transaction included).
 * KEEL_E_NOTFOUND: absent then; KEEL_E_STALE: at is compacted or in the future; KEEL_E_CORRUPT:
 * lost trust. Borrowed slices are valid until mvcc_read_end or the next write. Now, a directory's
 * mtime and ctime are the living ones (mvcc_dir_info), so that what is read, changed and put back
 * is right; at a revision they are those of its record. */
int mvcc_get(struct mvcc *m, const struct mvcc_key *key, uint64_t at,
             struct mvcc_record *ret_record);

/* A record by its exact revision (history, orphans), which may lie before the compaction point if
 * nothing followed it by then. KEEL_E_NOTFOUND; KEEL_E_STALE: it is garbage, or was, or never was
 * one of this key's. */
int mvcc_get_revision(struct mvcc *m, const struct mvcc_key *key, struct mvcc_revision rev,
                      struct mvcc_record *ret_record);

/* Content bytes: borrowed until mvcc_read_end (the kv's map), the next mvcc_checkpointed, or the
 * next step of compaction. KEEL_E_STALE: it is gone, with the last record on the books that
 * referred to it. KEEL_E_CORRUPT: the hash differs (lost trust: the caller ends the process). */
int mvcc_read(struct mvcc *m, const struct mvcc_content *content, struct keel_slice *ret_bytes);

/* Ends the read transaction that get and read open on demand: at the end of every loop turn. */
void mvcc_read_end(struct mvcc *m);

/* The first child of dir with a name > after (empty: the first) that is present at `at` (0: now);
 * NULL at the end, and when `at` is compacted. */
struct mvcc_key *mvcc_next_child(struct mvcc *m, const struct mvcc_key *dir, uint64_t at,
                                 struct keel_slice after);

/* Beside a live directory's record. */
struct mvcc_dir_info {
    int64_t mtime_ns, ctime_ns;
    uint32_t entries; /* live children */
    uint32_t subdirs;
};
struct mvcc_dir_info mvcc_dir_info(const struct mvcc_key *dir);

/* Revisions of a key that can be asked for, newest first: fn gets each with whether it is a
 * tombstone; stops at non-zero. */
int mvcc_history(struct mvcc *m, const struct mvcc_key *key,
                 int (*fn)(void *arg, struct mvcc_revision rev, bool tombstone), void *arg);

/* ---- writing: only apply does ---- */

/* Starts the transaction of the log entry (index, term); its main revision is mvcc_revision + 1.
 * One at a time. */
struct mvcc_txn *mvcc_begin(struct mvcc *m, uint64_t index, uint64_t term);
uint64_t mvcc_txn_revision(const struct mvcc_txn *txn);

/* Puts a record at (parent, name). Fills in revision (next sub), create_revision, version (key
 * rule: a live key goes on), and content.at for new content; everything else is as given. `value`
 * NULL: record->content is kept as given (metadata change, rename). ctime is raised to the key's
 * previous ctime if it would go back. Returns the key. An inode number that was live at another key
 * moves here: that key must be deleted (keep_ino), or get another inode number, before the commit.
 * Asserted: parent is a live directory, the name is a valid one, the path is not too long, a live
 * directory is only followed by a directory and nothing else by one. A directory takes over
 * record's times. The parent's times are left alone (mvcc_touch_dir). */
struct mvcc_key *mvcc_put(struct mvcc_txn *txn, struct mvcc_key *parent, struct keel_slice name,
                          struct mvcc_record *record, const struct mvcc_value *value);

/* The root's own record (chmod, chown). */
void mvcc_put_root(struct mvcc_txn *txn, struct mvcc_record *record);

/* Tombstone. The key must be live, and a directory empty. lease: the expired lease, else 0.
 * keep_ino: the inode lives on at another key of this transaction (rename): the inode map is left
 * alone. */
void mvcc_delete(struct mvcc_txn *txn, struct mvcc_key *key, int64_t time_ns, uint64_t lease,
                 bool keep_ino);

/* Ends it: if anything was put or deleted the revision advances by one; the applied index in any
 * case. Returns the main revision afterwards. */
uint64_t mvcc_commit(struct mvcc_txn *txn);

/* So many main revisions are never given out: in the state of a restored backup, whose readers may
 * have seen more than is in it. No transaction is open. */
void mvcc_skip_revisions(struct mvcc *m, uint64_t count);

/* Directory times: set by create, delete and rename in it. Not a revision. Inside a transaction. */
void mvcc_touch_dir(struct mvcc_txn *txn, struct mvcc_key *dir, int64_t time_ns);

/* ---- compaction: only apply does, inside a transaction ---- *
 *
 * History goes in two parts. Moving the compaction point to main revision C decides what can be
 * asked: reads at revisions before C are KEEL_E_STALE, reads at C or later are answered as before.
 * What nobody can ask for any more is garbage: of each key, every record that another one has
 * followed at C or before, and a tombstone of C or before. It stays on the books (index, state
 * hash, quota, kv) until a step takes it off, which is part of a transaction too: so all replicas
 * have the same books at the same log index, also those that were rebuilt from the kv in between.
 *
 * Garbage stands in a queue in the order in which its successors came; a key stands in it once for
 * each of its records that has been followed, and once more for a tombstone:
 *
 *     conf/db  5.0 7.0 9.1(t) 12.0     log  6.0 8.0        now 12, compacted at 9
 *     queue    [conf/db: 5.0, at 7] [log: 6.0, at 8] [conf/db: 7.0, at 9] [conf/db: 9.1(t), at 9]
 *     kept     conf/db 12.0    log 8.0
 *
 * Content goes with the last kept record that refers to it. */

/* Moves the point forward to `at` (<= mvcc_revision before the transaction). Lower: nothing. */
void mvcc_compact(struct mvcc_txn *txn, uint64_t at);
/* Takes about `budget` records of garbage off the books (a record and the tombstone that ended it
 * go together). Returns how many; 0: there is none left. Here and below, keys may go: what was
 * looked up before, and is not pinned, is looked up again. */
uint32_t mvcc_compact_step(struct mvcc_txn *txn, uint32_t budget);
enum mvcc_room {
    MVCC_ROOM_ENOUGH,
    MVCC_ROOM_NONE, /* all garbage is gone, and it was not enough */
    MVCC_ROOM_LATER /* the budget is spent: there is more */
};

/* Old history yields: takes garbage off the books, and moves the point as far as needed, until at
 * least `bytes` less count for the quota, or about `budget` records are gone. All that became
 * garbage at one revision goes at once. */
enum mvcc_room mvcc_compact_for(struct mvcc_txn *txn, uint64_t bytes, uint32_t budget);
/* Is there any that could yield? */
bool mvcc_has_history(const struct mvcc *m);
/* Is there garbage at the present point? */
bool mvcc_has_garbage(const struct mvcc *m);

/* Keys go with their last record, unless they are directories with keys in them, or pinned: whoever
 * holds a key beyond a loop turn pins it. A pinned key that is gone is like one that never was.
 * Keys that a reload left without a record go with the first step after it. */
void mvcc_pin(struct mvcc_key *key);
void mvcc_unpin(struct mvcc *m, struct mvcc_key *key);

/* ---- checkpoint ---- */

size_t mvcc_pending_bytes(const struct mvcc *m);
/* Whether anything (even only the applied index) is not in the kv. */
bool mvcc_has_pending(const struct mvcc *m);

/* Hands out everything applied so far as one batch, with the applied index, revision, hash, and the
 * caller's meta values (names and bytes) in it. One at a time: KEEL_ASSERTs that none is out. The
 * records stay readable. */
struct kv_batch *mvcc_checkpoint(struct mvcc *m, const struct keel_slice *meta_names,
                                 struct keel_buf *const *meta_values, size_t meta_count);
/* The batch is durable: its records are now read from the kv. Ends the read transaction, which
 * can't see them. */
void mvcc_checkpointed(struct mvcc *m);
uint64_t mvcc_durable_index(const struct mvcc *m);

/* A meta value as of the last checkpoint that is durable (so, after mvcc_open, as it was then);
 * KEEL_E_NOTFOUND. Copied out. */
int mvcc_meta(struct mvcc *m, struct keel_slice name, struct keel_buf **ret_value);

/* The record codec (docs/format-store.md), pure: for mvcc, tools and the fuzzer. The key path is
 * part of it; KEEL_E_CORRUPT, KEEL_E_NEWER; slices point into bytes. */
struct keel_buf *mvcc_record_encode(const struct mvcc_record *record, struct keel_slice path);
int mvcc_record_decode(struct keel_slice bytes, struct mvcc_record *ret_record,
                       struct keel_slice *ret_path);

#endif
