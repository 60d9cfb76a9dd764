/* From records to what stat(2) shows. */
#include <string.h>
#include <sys/stat.h>

#include "check.h"
#include "err.h"
#include "fs/fs_internal.h"

enum { NS_PER_S = 1000000000, STATFS_BLOCK = 4096 };

static struct timespec timespec_of(int64_t ns)
{
    int64_t s = ns / NS_PER_S, rest = ns % NS_PER_S;

    if (rest < 0) { /* before 1970 */
        s--;
        rest += NS_PER_S;
    }
    return (struct timespec){ .tv_sec = s, .tv_nsec = rest };
}

static mode_t type_of(enum mvcc_kind kind)
{
    switch (kind) {
    case MVCC_FILE:
        return S_IFREG;
    case MVCC_DIR:
        return S_IFDIR;
    case MVCC_SYMLINK:
        return S_IFLNK;
    }
    return S_IFREG;
}

void attr_of_record(const struct mvcc_record *record, struct stat *ret_attr)
{
    *ret_attr = (struct stat){
        .st_ino = record->ino,
        .st_mode = type_of(record->kind) | record->mode,
        .st_nlink = record->kind == MVCC_DIR ? 2 : 1,
        .st_uid = record->uid,
        .st_gid = record->gid,
        .st_size = record->content.length,
        .st_blocks = ((blkcnt_t)record->content.length + 511) / 512,
        .st_blksize = FS_BLOCK_SIZE,
        .st_atim = timespec_of(record->atime_ns),
        .st_mtim = timespec_of(record->mtime_ns),
        .st_ctim = timespec_of(record->ctime_ns),
    };
}

int attr_of_key(struct fs *fs, const struct mvcc_key *key, struct stat *ret_attr)
{
    struct mvcc_record record;
    int err = mvcc_get(fs->mvcc, key, 0, &record);

    if (err != 0)
        return err;
    attr_of_record(&record, ret_attr);
    if (record.kind == MVCC_DIR)
        ret_attr->st_nlink = 2 + mvcc_dir_info(key).subdirs;
    return 0;
}

int attr_of_node(struct fs *fs, struct fs_node *node, struct stat *ret_attr)
{
    if (node->view != NULL)
        return view_attr(fs, node, ret_attr);
    if (node->provisional) {
        attr_of_record(node->record, ret_attr);
        return 0;
    }
    if (node->orphan) {
        attr_of_record(node->record, ret_attr);
        ret_attr->st_nlink = 0;
        return 0;
    }
    const struct mvcc_key *key = mvcc_by_ino(fs->mvcc, node->ino);

    return key != NULL ? attr_of_key(fs, key, ret_attr) : KEEL_E_STALE;
}

double attr_timeout(const struct stat *attr)
{
    return S_ISDIR(attr->st_mode) ? FS_DIR_ATTR_S : 0;
}

void fs_statvfs(struct fs *fs, struct statvfs *ret_stat)
{
    uint64_t quota = apply_settings(replica_apply(fs->replica))->quota_bytes;
    uint64_t used = mvcc_quota_used(fs->mvcc), keys = mvcc_live_keys(fs->mvcc);
    uint64_t free_blocks = quota > used ? (quota - used) / STATFS_BLOCK : 0;

    *ret_stat = (struct statvfs){
        .f_bsize = STATFS_BLOCK,
        .f_frsize = STATFS_BLOCK,
        .f_blocks = quota / STATFS_BLOCK,
        .f_bfree = free_blocks,
        .f_bavail = free_blocks,
        .f_files = KEEL_FILES_MAX,
        .f_ffree = keys < KEEL_FILES_MAX ? KEEL_FILES_MAX - keys : 1,
        .f_namemax = KEEL_NAME_MAX,
    };
    ret_stat->f_favail = ret_stat->f_ffree;
}
