/* The kv on disk: LMDB with its default, fully synced commits. One thread writes; readers are not
 * tied to threads (MDB_NOTLS). The only file that knows lmdb.h. Who may open a data directory is
 * locked elsewhere. */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <lmdb.h>

#include "bytes.h"
#include "check.h"
#include "err.h"
#include "mvcc/kv.h"

enum {
    LEFT_BYTES_MIN = 1 << 20, /* a scan of less than this may have its pages */
    TURN_ENTRIES = 256,       /* written in one go: a fraction of a millisecond */
    TURN_BYTES = 1 << 20,
};

static const char *const table_names[KV_TABLES] = { "records", "content", "meta", "dirs" };

struct kv_lmdb {
    struct kv kv;
    MDB_env *env;
    MDB_dbi tables[KV_TABLES];
    _Atomic(struct kv_read *)
        spare; /* a reset read transaction: renewing one takes no allocation and no lock */
};

struct kv_read {
    struct kv_lmdb *lmdb;
    MDB_txn *txn;
    MDB_cursor *cursors[KV_TABLES]; /* of lmdb_get: what is near the last key needs no search */
};

static struct kv_lmdb *lmdb_of(struct kv *kv)
{
    return KEEL_CONTAINER_OF(kv, struct kv_lmdb, kv);
}

static MDB_val val_of(struct keel_slice bytes)
{
    return (MDB_val){ .mv_size = bytes.len, .mv_data = (void *)(uintptr_t)bytes.data };
}

static struct keel_slice slice_of(const MDB_val *val)
{
    return keel_slice_of(val->mv_data, val->mv_size);
}

static int err_of(int rc)
{
    switch (rc) {
    case MDB_SUCCESS:
        return 0;
    case MDB_NOTFOUND:
        return KEEL_E_NOTFOUND;
    case MDB_MAP_FULL:
    case ENOSPC:
    case EDQUOT:
        return KEEL_E_DISKFULL;
    case MDB_VERSION_MISMATCH:
        return KEEL_E_NEWER;
    case MDB_INVALID:
    case MDB_CORRUPTED:
    case MDB_PAGE_NOTFOUND:
    case MDB_INCOMPATIBLE:
        return KEEL_E_CORRUPT;
    case EACCES:
    case EPERM:
    case EROFS:
        return KEEL_E_ACCESS;
    default:
        return KEEL_E_IO;
    }
}

/* ---- reading ---- */

/* LMDB notes the newest commit, N, and then copies the meta page of N. There are two meta
 * pages, so if the reader lost the CPU in between while N + 1 was committed and N + 2 begun, it has
 * copied that of N + 2, which is not synced yet. */
static bool was_overtaken(const struct kv_read *read)
{
    MDB_envinfo info;

    KEEL_ASSERT(mdb_env_info(read->lmdb->env, &info) == 0);
    return info.me_last_txnid > mdb_txn_id(read->txn) + 1;
}

static int read_renew(struct kv_read *read)
{
    int rc = mdb_txn_renew(read->txn);

    for (size_t t = 0; t < KV_TABLES && rc == 0; t++)
        if (read->cursors[t] != NULL)
            rc = mdb_cursor_renew(read->txn, read->cursors[t]);
    return rc;
}

static void read_free(struct kv_read *read)
{
    for (size_t t = 0; t < KV_TABLES; t++)
        if (read->cursors[t] != NULL)
            mdb_cursor_close(read->cursors[t]);
    mdb_txn_abort(read->txn);
    free(read);
}

static struct kv_read *lmdb_read_begin(struct kv *kv)
{
    struct kv_lmdb *lmdb = lmdb_of(kv);
    struct kv_read *read = atomic_exchange(&lmdb->spare, NULL);
    int rc;

    if (read != NULL) {
        rc = read_renew(read);
    } else {
        read = keel_calloc(1, sizeof *read);
        read->lmdb = lmdb;
        rc = mdb_txn_begin(lmdb->env, NULL, MDB_RDONLY, &read->txn);
    }
    while (rc == 0 && was_overtaken(read)) {
        mdb_txn_reset(read->txn);
        rc = read_renew(read);
    }
    if (rc != 0)
        keel_fatal("cannot begin to read the store: %s", mdb_strerror(rc));
    return read;
}

static void lmdb_read_end(struct kv_read *read)
{
    struct kv_read *none = NULL;

    mdb_txn_reset(read->txn);
    if (!atomic_compare_exchange_strong(&read->lmdb->spare, &none, read))
        read_free(read);
}

static int lmdb_get(struct kv_read *read, enum kv_table table, struct keel_slice key,
                    struct keel_slice *ret_value)
{
    MDB_cursor **cursor = &read->cursors[table];
    MDB_val k = val_of(key), value;
    int rc = 0;

    if (*cursor == NULL)
        rc = mdb_cursor_open(read->txn, read->lmdb->tables[table], cursor);
    if (rc == 0)
        rc = mdb_cursor_get(*cursor, &k, &value, MDB_SET);
    if (rc != 0)
        return err_of(rc);
    *ret_value = slice_of(&value);
    return 0;
}

/* Where in the map a scan has been. */
struct span {
    uintptr_t low, high;
};

static void span_add(struct span *span, const MDB_val *val)
{
    uintptr_t at = (uintptr_t)val->mv_data;

    if (span->low == 0 || at < span->low)
        span->low = at;
    if (at + val->mv_size > span->high)
        span->high = at + val->mv_size;
}

/* Whoever goes through everything does so once: the pages leave this process's memory, and stay in
 * the kernel's, from where they come back when they are read again. */
static void span_leave(const struct span *span)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), start = span->low / page * page;

    if (span->high - start >= LEFT_BYTES_MIN)
        madvise((void *)start, span->high - start, MADV_DONTNEED);
}

static int lmdb_scan(struct kv_read *read, enum kv_table table, struct keel_slice from,
                     int (*fn)(void *arg, struct keel_slice key, struct keel_slice value),
                     void *arg)
{
    struct span span = { 0 };
    MDB_cursor *cursor;
    MDB_val key = val_of(from), value;
    int result = 0;
    int rc = mdb_cursor_open(read->txn, read->lmdb->tables[table], &cursor);

    if (rc != 0)
        return err_of(rc);
    rc = mdb_cursor_get(cursor, &key, &value, from.len > 0 ? MDB_SET_RANGE : MDB_FIRST);
    while (rc == 0 && result == 0) {
        span_add(&span, &value);
        result = fn(arg, slice_of(&key), slice_of(&value));
        if (result == 0)
            rc = mdb_cursor_get(cursor, &key, &value, MDB_NEXT);
    }
    mdb_cursor_close(cursor);
    span_leave(&span);
    if (result != 0)
        return result;
    return rc == MDB_NOTFOUND ? 0 : err_of(rc);
}

/* ---- writing ---- */

/* LMDB calls a write that the disk took only a part of EIO; that is how a full disk begins. */
static int disk_full_or(int rc, MDB_env *env)
{
    struct statvfs space;
    int fd;

    if (rc == EIO && mdb_env_get_fd(env, &fd) == 0 && fstatvfs(fd, &space) == 0 &&
        space.f_bavail == 0)
        return ENOSPC;
    return rc;
}

static int write_one(struct kv_lmdb *lmdb, MDB_txn *txn, const struct kv_write *write)
{
    MDB_dbi table = lmdb->tables[write->table];
    MDB_val key = val_of(keel_slice_of(write->key, write->key_len));
    MDB_val value = val_of(write->bytes);
    int rc;

    if (write->remove) {
        rc = mdb_del(txn, table, &key, NULL);
        return rc == MDB_NOTFOUND ? 0 : rc;
    }
    /* Revision keys ascend: appending skips the search and leaves full pages behind. Other keys are
     * refused without effect. */
    if (write->table == KV_RECORDS || write->table == KV_CONTENT) {
        rc = mdb_put(txn, table, &key, &value, MDB_APPEND);
        if (rc != MDB_KEYEXIST)
            return rc;
    }
    return mdb_put(txn, table, &key, &value, 0);
}

/* Nobody waits for the thread that writes much, but a client may wait for another one (the loop's,
 * the log's) that has to run on the same processor, and the scheduler may let this one go on until
 * its time slice is over: that is some milliseconds. */
struct turn {
    size_t entries, bytes;
};

static void give_way(struct turn *turn, size_t bytes)
{
    turn->entries++;
    turn->bytes += bytes;
    if (turn->entries < TURN_ENTRIES && turn->bytes < TURN_BYTES)
        return;
    *turn = (struct turn){ 0 };
    sched_yield();
}

static int lmdb_write(struct kv *kv, const struct kv_batch *batch)
{
    struct kv_lmdb *lmdb = lmdb_of(kv);
    struct turn turn = { 0 };
    MDB_txn *txn;
    int rc = mdb_txn_begin(lmdb->env, NULL, 0, &txn);

    if (rc != 0)
        return err_of(rc);
    for (size_t i = 0; i < batch->count && rc == 0; i++) {
        rc = write_one(lmdb, txn, &batch->writes[i]);
        give_way(&turn, batch->writes[i].bytes.len);
    }
    if (rc != 0) {
        mdb_txn_abort(txn);
        return err_of(rc);
    }
    return err_of(disk_full_or(mdb_txn_commit(txn), lmdb->env));
}

static uint64_t pages_of(const MDB_stat *stat)
{
    return stat->ms_branch_pages + stat->ms_leaf_pages + stat->ms_overflow_pages;
}

static void lmdb_sizes(struct kv *kv, uint64_t *ret_file, uint64_t *ret_used)
{
    struct kv_lmdb *lmdb = lmdb_of(kv);
    struct kv_read *read = lmdb_read_begin(kv);
    MDB_envinfo info;
    MDB_stat stat;
    uint64_t used = 0;

    KEEL_ASSERT(mdb_env_info(lmdb->env, &info) == 0);
    for (size_t t = 0; t < KV_TABLES; t++) {
        KEEL_ASSERT(mdb_stat(read->txn, lmdb->tables[t], &stat) == 0);
        used += pages_of(&stat) * stat.ms_psize;
    }
    KEEL_ASSERT(mdb_env_stat(lmdb->env, &stat) == 0);
    *ret_file = ((uint64_t)info.me_last_pgno + 1) * stat.ms_psize;
    *ret_used = used;
    lmdb_read_end(read);
}

/* ---- opening and closing ---- */

static void lmdb_close(struct kv *kv)
{
    struct kv_lmdb *lmdb = lmdb_of(kv);
    struct kv_read *spare = atomic_exchange(&lmdb->spare, NULL);

    if (spare != NULL)
        read_free(spare);
    if (lmdb->env != NULL)
        mdb_env_close(lmdb->env);
    free(lmdb);
}

static const struct kv_ops lmdb_ops = {
    .read_begin = lmdb_read_begin,
    .read_end = lmdb_read_end,
    .get = lmdb_get,
    .scan = lmdb_scan,
    .write = lmdb_write,
    .sizes = lmdb_sizes,
    .close = lmdb_close,
};

/* Every failure of opening ends here: the step that failed, where, and what it means for the reader
 * of the message. */
static int open_failed(int rc, const char *step, const char *dir, char *ret_why, size_t why_size)
{
    const char *text = mdb_strerror(rc);

    if (rc == MDB_VERSION_MISMATCH)
        text = "it was written by another version of LMDB; use the keelfs that wrote it";
    else if (rc == MDB_INVALID || rc == MDB_CORRUPTED || rc == MDB_PAGE_NOTFOUND)
        text = "the file is damaged, or not an LMDB database";
    else if (rc == EACCES || rc == EPERM)
        text = "permission denied; the directory and its files must belong to the user that runs "
               "keelfs";
    else if (rc == ENOSPC || rc == EDQUOT || rc == MDB_MAP_FULL)
        text = "no space left on the disk; free some and start again";
    else if (rc == ENOMEM)
        text = "not enough address space for the map (see ulimit -v)";
    snprintf(ret_why, why_size, "cannot %s the store in %s: %s", step, dir, text);
    return err_of(rc);
}

static _Thread_local sigjmp_buf fault_jump;

static void on_fault(int signum)
{
    (void)signum;
    siglongjmp(fault_jump, 1);
}

/* So many pages from `first` on are in the free list, LMDB's own table: a value is a count and so
 * many pages. */
static uint64_t count_free(MDB_cursor *cursor, uint64_t first)
{
    MDB_val key, value;
    uint64_t found = 0;

    while (mdb_cursor_get(cursor, &key, &value, MDB_NEXT) == 0)
        for (size_t at = sizeof first; at + sizeof first <= value.mv_size; at += sizeof first) {
            uint64_t page;

            memcpy(&page, (const uint8_t *)value.mv_data + at, sizeof page);
            found += page >= first;
        }
    return found;
}

/* The same where the free list itself may be in a part that the file does not have. */
static uint64_t try_to_count_free(MDB_env *env, uint64_t first)
{
    enum { FREE_LIST = 0 };
    const struct sigaction fault = { .sa_handler = on_fault };
    struct sigaction before;
    volatile uint64_t found = 0;
    MDB_cursor *cursor;
    MDB_txn *txn;

    if (mdb_txn_begin(env, NULL, MDB_RDONLY, &txn) != 0)
        return 0;
    if (mdb_cursor_open(txn, FREE_LIST, &cursor) != 0) {
        mdb_txn_abort(txn);
        return 0;
    }
    sigaction(SIGBUS, &fault, &before);
    if (sigsetjmp(fault_jump, 1) == 0)
        found = count_free(cursor, first);
    sigaction(SIGBUS, &before, NULL);
    mdb_cursor_close(cursor);
    mdb_txn_abort(txn);
    return found;
}

/* A map of a file that ends too early would end the process with SIGBUS at some later read. Pages
 * at the end that a transaction took and gave back are never written, and never read: without them
 * the file is whole. */
static int check_length(MDB_env *env, const char *dir, char *ret_why, size_t why_size)
{
    MDB_envinfo info;
    MDB_stat stat;
    struct stat st;
    int fd;

    KEEL_ASSERT(mdb_env_info(env, &info) == 0 && mdb_env_stat(env, &stat) == 0);
    KEEL_ASSERT(mdb_env_get_fd(env, &fd) == 0);
    if (fstat(fd, &st) != 0)
        return open_failed(errno, "examine", dir, ret_why, why_size);
    uint64_t have = (uint64_t)st.st_size / stat.ms_psize, need = (uint64_t)info.me_last_pgno + 1;

    if (have >= need || try_to_count_free(env, have) == need - have)
        return 0;
    snprintf(ret_why, why_size, "the store in %s is truncated: data.mdb has %llu bytes of %llu",
             dir, (unsigned long long)st.st_size, (unsigned long long)(need * stat.ms_psize));
    return KEEL_E_CORRUPT;
}

/* Whoever takes its flags for granted would look for keys in an order that they are not in. */
static int open_table(MDB_txn *txn, const char *name, unsigned flags, MDB_dbi *ret_table)
{
    unsigned found;
    int rc = mdb_dbi_open(txn, name, flags, ret_table);

    if (rc == 0)
        rc = mdb_dbi_flags(txn, *ret_table, &found);
    return rc == 0 && found != 0 ? MDB_CORRUPTED : rc;
}

static int open_tables(struct kv_lmdb *lmdb, bool read_only)
{
    MDB_txn *txn;
    int rc = mdb_txn_begin(lmdb->env, NULL, read_only ? MDB_RDONLY : 0, &txn);

    if (rc != 0)
        return rc;
    for (size_t t = 0; t < KV_TABLES && rc == 0; t++)
        rc = open_table(txn, table_names[t], read_only ? 0 : MDB_CREATE, &lmdb->tables[t]);
    if (rc != 0) {
        mdb_txn_abort(txn);
        return rc;
    }
    return disk_full_or(mdb_txn_commit(txn), lmdb->env);
}

/* LMDB syncs its file, not the directory entries that lead to it. */
static int sync_directory(const char *dir, const char *relative)
{
    int at = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    if (at < 0)
        return errno;
    int fd = openat(at, relative, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int rc = fd < 0 || fsync(fd) != 0 ? errno : 0;

    if (fd >= 0)
        close(fd);
    close(at);
    return rc;
}

/* LMDB makes its lock file by length alone, maps it and writes there: on a full disk that would end
 * the process with SIGBUS. So the blocks are taken before; 8192 bytes are its default of readers.
 */
static int allocate_lock_file(const char *dir)
{
    enum { LOCK_FILE_BYTES = 8192 };
    int at = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    if (at < 0)
        return errno;
    int fd = openat(at, "lock.mdb", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    int rc = fd < 0 ? errno : posix_fallocate(fd, 0, LOCK_FILE_BYTES);

    if (fd >= 0)
        close(fd);
    close(at);
    return rc;
}

/* ---- a meta page that was lost ---- */

/* There are two, pages 0 and 1, and each commit writes the older one, less than a sector of it. If
 * power fails in that, LMDB goes on from the other one, as of the commit before; but not if zeroes
 * are left, which give no size of a page. */
enum {
    META_PAGES = 2,
    META_FLAGS = 10, /* offsets of fields */
    META_MAGIC = 16,
    META_VERSION = 20,
    META_WRITTEN = 32, /* from here on by each commit */
    META_PAGE_SIZE = 40,
    META_NUMBER = 144, /* of the commit */
    META_END = 152,
};

static bool is_meta(const uint8_t *page, uint64_t number, uint64_t page_size)
{
    const uint16_t flag = 0x08;
    const uint32_t magic = 0xbeefc0de, version = 1;

    return get_le64(page) == number && get_le16(page + META_FLAGS) == flag &&
           get_le32(page + META_MAGIC) == magic && get_le32(page + META_VERSION) == version &&
           get_le32(page + META_PAGE_SIZE) == page_size;
}

static bool is_lost(const uint8_t *page)
{
    static const uint8_t zeroes[META_END];

    return memcmp(page + META_WRITTEN, zeroes, META_END - META_WRITTEN) == 0;
}

/* What belongs in the place of the one that was lost, if one was: the other, as the older one. */
static bool find_lost_meta(int fd, uint8_t ret_page[META_END], off_t *ret_at)
{
    const off_t page_size = sysconf(_SC_PAGESIZE); /* LMDB's choice for a new file */
    uint8_t pages[META_PAGES][META_END];

    for (uint64_t i = 0; i < META_PAGES; i++)
        if (pread(fd, pages[i], META_END, (off_t)i * page_size) != META_END)
            return false;
    for (uint64_t i = 0; i < META_PAGES; i++) {
        if (!is_lost(pages[i]) || !is_meta(pages[1 - i], 1 - i, (uint64_t)page_size))
            continue;
        memcpy(ret_page, pages[1 - i], META_END);
        put_le64(ret_page, i);
        put_le64(ret_page + META_NUMBER, 0);
        *ret_at = (off_t)i * page_size;
        return true;
    }
    return false;
}

/* Returns an errno; ret_lost: one was lost, and with `mend` it is there again. */
static int look_for_lost_meta(const char *dir, bool mend, bool *ret_lost)
{
    uint8_t page[META_END];
    off_t at;
    int in = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int fd = in < 0 ? -1 : openat(in, "data.mdb", (mend ? O_RDWR : O_RDONLY) | O_CLOEXEC);
    int rc = 0;

    *ret_lost = fd >= 0 && find_lost_meta(fd, page, &at);
    if (*ret_lost && mend &&
        (pwrite(fd, page, sizeof page, at) != sizeof page || fdatasync(fd) != 0))
        rc = errno != 0 ? errno : EIO;
    if (fd >= 0)
        close(fd);
    if (in >= 0)
        close(in);
    return rc;
}

static int open_env(struct kv_lmdb *lmdb, const char *dir, uint64_t map_bytes)
{
    int dead;
    bool lost;
    int rc = allocate_lock_file(dir);

    if (rc == 0)
        rc = look_for_lost_meta(dir, true, &lost);

    if (rc == 0)
        rc = mdb_env_create(&lmdb->env);
    if (rc == 0)
        rc = mdb_env_set_mapsize(lmdb->env, map_bytes);
    if (rc == 0)
        rc = mdb_env_set_maxdbs(lmdb->env, KV_TABLES);
    if (rc == 0)
        rc = disk_full_or(mdb_env_open(lmdb->env, dir, MDB_NOTLS, 0600), lmdb->env);
    if (rc == 0)
        rc = mdb_reader_check(lmdb->env, &dead);
    return rc;
}

int kv_lmdb_open(const char *dir, uint64_t map_bytes, struct kv **ret_kv, char *ret_why,
                 size_t why_size)
{
    struct kv_lmdb *lmdb = keel_calloc(1, sizeof *lmdb);
    const char *step = "create";
    int rc = 0, err;

    lmdb->kv.ops = &lmdb_ops;
    if (mkdir(dir, 0700) != 0 && errno != EEXIST) {
        rc = errno;
    } else {
        step = "open";
        rc = open_env(lmdb, dir, map_bytes);
    }
    if (rc == 0) {
        err = check_length(lmdb->env, dir, ret_why, why_size);
        if (err != 0) {
            lmdb_close(&lmdb->kv);
            return err;
        }
        rc = open_tables(lmdb, false);
    }
    if (rc == 0)
        rc = sync_directory(dir, ".");
    if (rc == 0)
        rc = sync_directory(dir, "..");
    if (rc != 0) {
        err = open_failed(rc, step, dir, ret_why, why_size);
        lmdb_close(&lmdb->kv);
        return err;
    }
    *ret_kv = &lmdb->kv;
    return 0;
}

int kv_lmdb_open_read_only(const char *dir, struct kv **ret_kv, char *ret_why, size_t why_size)
{
    struct kv_lmdb *lmdb;
    bool lost;
    int rc = look_for_lost_meta(dir, false, &lost), err = 0;

    if (lost) {
        snprintf(ret_why, why_size,
                 "the last commit to the store in %s was lost when power failed: a start of the "
                 "node mends that",
                 dir);
        return KEEL_E_IO;
    }
    lmdb = keel_calloc(1, sizeof *lmdb);
    lmdb->kv.ops = &lmdb_ops;
    rc = mdb_env_create(&lmdb->env);
    if (rc == 0)
        rc = mdb_env_set_maxdbs(lmdb->env, KV_TABLES);
    if (rc == 0)
        rc = mdb_env_open(lmdb->env, dir, MDB_RDONLY | MDB_NOLOCK | MDB_NOTLS, 0);
    if (rc == 0)
        err = check_length(lmdb->env, dir, ret_why, why_size);
    if (rc == 0 && err == 0)
        rc = open_tables(lmdb, true);
    if (rc != 0)
        err = open_failed(rc, "open", dir, ret_why, why_size);
    if (err != 0) {
        lmdb_close(&lmdb->kv);
        return err;
    }
    *ret_kv = &lmdb->kv;
    return 0;
}
