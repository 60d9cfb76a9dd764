/* Everything is built in DATA_DIR/restore.new and then renamed to its place, the identity last:
 * where there is one, there are a store and a log. */
#include "snapshot_restore.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "check.h"
#include "data_dir.h"
#include "err.h"
#include "mvcc/mvcc.h"
#include "node_founders.h"
#include "peer/message.h"
#include "wal/wal.h"

#define BUILD_DIR "restore.new"

enum { PIECE_BYTES = 256 << 10 };

static const uint64_t map_bytes_min = 16ull << 30;
static const uint64_t map_bytes_unit = 1ull << 30;

struct restore {
    const struct restore_options *options;
    const char *token;
    struct founders founders;
    int file_fd, dir_fd; /* -1: not open */
    bool data_dir_made, wal_dir_made;
    bool data_dir_taken, wal_dir_taken; /* found empty: whatever is in them now is ours */
    struct keel_text store, wal, build; /* paths */
    struct snapshot_info info;
    char *why;
    size_t why_size;
};

static int failed(struct restore *r, const char *what, const char *path)
{
    int err = errno == ENOSPC || errno == EDQUOT ? KEEL_E_DISKFULL : KEEL_E_IO;

    snprintf(r->why, r->why_size, "cannot %s %s: %s", what, path, strerror(errno));
    return err;
}

/* ---- the file ---- */

int snapshot_file_read(int fd, int (*sink)(void *arg, struct kv_batch *batch_take), void *arg,
                       struct snapshot_info *ret_info, char *ret_why, size_t why_size)
{
    struct snapshot_reader *reader = snapshot_reader_new(sink, arg);
    uint8_t *piece = keel_malloc(PIECE_BYTES);
    off_t at = 0;
    ssize_t len;
    int err = 0;

    while (err == 0 && (len = pread(fd, piece, PIECE_BYTES, at)) != 0) {
        if (len < 0 && errno == EINTR)
            continue;
        if (len < 0) {
            snprintf(ret_why, why_size, "cannot read it: %s", strerror(errno));
            err = KEEL_E_IO;
            break;
        }
        at += len;
        err = snapshot_reader_feed(reader, keel_slice_of(piece, (size_t)len), ret_why, why_size);
    }
    if (err == 0)
        err = snapshot_reader_finish(reader, ret_info, ret_why, why_size);
    free(piece);
    snapshot_reader_free(reader);
    return err;
}

static int verify_file(struct restore *r)
{
    r->file_fd = open(r->options->file, O_RDONLY | O_CLOEXEC);
    if (r->file_fd < 0)
        return failed(r, "open", r->options->file);
    return snapshot_file_read(r->file_fd, NULL, NULL, &r->info, r->why, r->why_size);
}

/* ---- options ---- */

static int invalid(struct restore *r, const char *text)
{
    snprintf(r->why, r->why_size, "%s", text);
    return KEEL_E_INVALID;
}

static int check_options(struct restore *r)
{
    const struct restore_options *o = r->options;

    r->token = o->cluster_token != NULL ? o->cluster_token : DEFAULT_TOKEN;
    if (!keel_member_name_ok(o->name) || !keel_member_name_ok(r->token))
        return invalid(r, "--name and --cluster-token take up to 63 letters, digits, '_', '.' "
                          "and '-'");
    int err = founders_parse(o->initial_cluster, r->token, &r->founders, r->why, r->why_size);

    return err != 0 ? err : founders_check(&r->founders, o->name, r->why, r->why_size);
}

/* Members of the old cluster must not take those of the new one for their own. */
static int check_info(struct restore *r)
{
    if (identity_cluster_id(r->token, r->options->initial_cluster) == r->info.cluster_id)
        return invalid(r, "that would be the cluster that the snapshot is of: give the new one "
                          "another --cluster-token");
    if (r->options->bump_revision > (uint64_t)INT64_MAX - r->info.revision)
        return invalid(r, "--bump-revision: the revision would be too high");
    return 0;
}

/* ---- directories ---- */

/* What a file system puts in its root is no content. */
static bool counts(const char *name)
{
    return strcmp(name, ".") != 0 && strcmp(name, "..") != 0 && strcmp(name, "lost+found") != 0 &&
           strcmp(name, BUILD_DIR) != 0;
}

/* KEEL_E_NOTEMPTY, also for what is no directory at all. */
static int check_empty(struct restore *r, const char *path)
{
    DIR *dir = opendir(path);
    struct dirent *entry;
    int err = 0;

    if (dir == NULL)
        return failed(r, "open the directory", path);
    while (err == 0 && (entry = readdir(dir)) != NULL)
        if (counts(entry->d_name)) {
            snprintf(r->why, r->why_size,
                     "%s is not empty (%s is in it): give a directory that is not there yet", path,
                     entry->d_name);
            err = KEEL_E_NOTEMPTY;
        }
    closedir(dir);
    return err;
}

/* Whether it had to be made. */
static int make_dir(struct restore *r, const char *path, bool *ret_made)
{
    *ret_made = mkdir(path, 0700) == 0;
    if (*ret_made || errno == EEXIST)
        return 0;
    return failed(r, "create", path);
}

static int sync_dir(struct restore *r, const char *path)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int err = fd < 0 || fsync(fd) != 0 ? failed(r, "sync", path) : 0;

    if (fd >= 0)
        close(fd);
    return err;
}

static int remove_one(const char *path, const struct stat *st, int flag, struct FTW *ftw)
{
    (void)st;
    (void)flag;
    (void)ftw;
    return remove(path);
}

static void remove_tree(const char *dir, const char *name)
{
    struct keel_text path = { 0 };

    keel_text_printf(&path, "%s/%s", dir, name);
    nftw(path.data, remove_one, 8, FTW_DEPTH | FTW_PHYS);
    keel_text_free(&path);
}

/* The lock of the data directory keeps nodes away. */
static int take_data_dir(struct restore *r)
{
    const char *path = r->options->data_dir;
    int err = make_dir(r, path, &r->data_dir_made);

    if (err == 0)
        err = data_dir_lock(path, false, &r->dir_fd, r->why, r->why_size);
    if (err == KEEL_E_BUSY)
        snprintf(r->why, r->why_size, "%s is that of a node that is running", path);
    if (err == 0)
        err = check_empty(r, path);
    if (err != 0)
        return err;
    r->data_dir_taken = true;
    remove_tree(path, BUILD_DIR);
    return mkdir(r->build.data, 0700) == 0 ? 0 : failed(r, "create", r->build.data);
}

static int take_wal_dir(struct restore *r)
{
    const char *path = r->options->wal_dir;
    int err = path != NULL ? make_dir(r, path, &r->wal_dir_made) : 0;

    if (err == 0 && path != NULL)
        err = check_empty(r, path);
    r->wal_dir_taken = err == 0 && path != NULL;
    return err;
}

static int remove_segment(void *arg, const char *name)
{
    size_t len = strlen(name);

    if (len > 4 && strcmp(name + len - 4, ".wal") == 0)
        remove_tree(arg, name);
    return 0;
}

static void undo(struct restore *r)
{
    static const char *const ours[] = { "identity", "store", "wal", BUILD_DIR };
    const struct restore_options *o = r->options;
    struct disk *disk;
    int sys_err;

    for (size_t i = 0; r->data_dir_taken && i < KEEL_ARRAY_LEN(ours); i++)
        remove_tree(o->data_dir, ours[i]);
    if (r->wal_dir_taken && disk_posix_open(o->wal_dir, &disk, &sys_err) == 0) {
        disk->ops->list(disk, remove_segment, (void *)(uintptr_t)o->wal_dir);
        disk->ops->free(disk);
    }
    if (r->wal_dir_made)
        rmdir(o->wal_dir);
    if (r->data_dir_made)
        rmdir(o->data_dir);
}

/* ---- the store ---- */

static int store_batch(void *arg, struct kv_batch *batch_take)
{
    struct kv *kv = arg;
    int err = kv->ops->write(kv, batch_take);

    kv_batch_free(batch_take);
    return err;
}

static int write_state(struct restore *r, struct apply *a, struct kv *kv)
{
    struct kv_batch *batch = apply_checkpoint(a);
    int err = kv->ops->write(kv, batch);

    kv_batch_free(batch);
    if (err != 0)
        snprintf(r->why, r->why_size, "cannot write the store: %s", keel_strerror(err));
    return err;
}

/* The snapshot's state becomes the new cluster's. */
static int found_cluster(struct restore *r, struct mvcc *m, struct kv *kv)
{
    struct apply *a;
    uint64_t config_index;
    int err = apply_new(m, &a);

    mvcc_read_end(m);
    if (err != 0) {
        snprintf(r->why, r->why_size, "the cluster's state in the snapshot cannot be read: %s",
                 keel_strerror(err));
        return err;
    }
    apply_config(a, &config_index);
    if (config_index == 0) {
        snprintf(r->why, r->why_size, "the snapshot is of no cluster: it has no members in it");
        err = KEEL_E_CORRUPT;
    } else {
        apply_found(a, r->founders.members, r->founders.count);
        mvcc_skip_revisions(m, r->options->bump_revision);
        err = write_state(r, a, kv);
    }
    apply_free(a);
    return err;
}

/* The file is read for a second time: it is checked again. */
static int fill_store(struct restore *r, struct kv *kv)
{
    struct mvcc *m;
    int err = snapshot_file_read(r->file_fd, store_batch, kv, &r->info, r->why, r->why_size);

    if (err == 0)
        err = mvcc_open(kv, &m, r->why, r->why_size);
    if (err != 0)
        return err;
    err = found_cluster(r, m, kv);
    mvcc_close(m);
    return err;
}

static int build_store(struct restore *r)
{
    uint64_t map_bytes = (r->info.bytes / map_bytes_unit + 1) * map_bytes_unit * 4;
    struct kv *kv;
    int err = kv_lmdb_open(r->store.data, map_bytes < map_bytes_min ? map_bytes_min : map_bytes,
                           &kv, r->why, r->why_size);

    if (err != 0)
        return err;
    err = fill_store(r, kv);
    kv->ops->close(kv);
    return err;
}

/* ---- the log and the identity ---- */

/* A new log that is reset to the snapshot's entry: what is next is the one behind it. */
static int build_log(struct restore *r, const struct identity *identity)
{
    const struct wal_options options = {
        .cluster_id = identity->cluster_id,
        .node_id = identity->id,
        .store_applied = r->info.index,
        .install_index = r->info.index,
        .install_term = r->info.term,
    };
    struct wal_recovery recovery = { 0 };
    struct disk *disk;
    struct wal *wal;
    int sys_err;
    int err = disk_posix_open(r->wal.data, &disk, &sys_err);

    if (err != 0) {
        errno = sys_err;
        return failed(r, "open the directory", r->wal.data);
    }
    err = wal_open(disk, &options, &wal, &recovery, r->why, r->why_size);
    if (err == 0) {
        wal_recovery_free(&recovery);
        wal_close(wal);
    }
    disk->ops->free(disk);
    return err;
}

static int make_identity(struct restore *r, struct identity *ret_identity)
{
    const struct restore_options *o = r->options;
    struct identity identity = {
        .cluster_id = identity_cluster_id(r->token, o->initial_cluster),
        .id = identity_node_id(r->token, o->name),
    };

    while (identity.incarnation == 0)
        if (getrandom(&identity.incarnation, sizeof identity.incarnation, 0) < 0)
            return failed(r, "get", "random bytes");
    snprintf(identity.name, sizeof identity.name, "%s", o->name);
    snprintf(identity.token, sizeof identity.token, "%s", r->token);
    *ret_identity = identity;
    return 0;
}

static int build(struct restore *r)
{
    struct identity identity;
    int err = make_identity(r, &identity);

    if (err == 0)
        err = build_store(r);
    if (err == 0)
        err = build_log(r, &identity);
    if (err != 0)
        return err;
    int fd = open(r->build.data, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    if (fd < 0)
        return failed(r, "open", r->build.data);
    err = identity_save(fd, &identity, r->why, r->why_size);
    close(fd);
    return err;
}

/* ---- to their places ---- */

static int place(struct restore *r, const char *name)
{
    struct keel_text from = { 0 };

    keel_text_printf(&from, BUILD_DIR "/%s", name);
    int err = renameat(r->dir_fd, from.data, r->dir_fd, name) != 0 || fsync(r->dir_fd) != 0
                  ? failed(r, "rename", from.data)
                  : 0;

    keel_text_free(&from);
    return err;
}

static int place_all(struct restore *r)
{
    struct keel_text parent = { 0 };
    int err = place(r, "store");

    if (err == 0 && r->options->wal_dir == NULL)
        err = place(r, "wal");
    if (err == 0)
        err = place(r, "identity");
    if (err == 0 && unlinkat(r->dir_fd, BUILD_DIR, AT_REMOVEDIR) != 0)
        err = failed(r, "remove", r->build.data);
    keel_text_printf(&parent, "%s/..", r->options->data_dir);
    if (err == 0)
        err = sync_dir(r, parent.data);
    keel_text_free(&parent);
    return err;
}

static int restore(struct restore *r)
{
    int err = check_options(r);

    if (err == 0)
        err = verify_file(r);
    if (err == 0)
        err = check_info(r);
    if (err != 0)
        return err;
    err = take_data_dir(r);
    if (err == 0)
        err = take_wal_dir(r);
    if (err == 0)
        err = build(r);
    if (err == 0)
        err = place_all(r);
    if (err != 0)
        undo(r);
    return err;
}

int snapshot_restore(const struct restore_options *options, struct snapshot_info *ret_info,
                     char *ret_why, size_t why_size)
{
    struct restore r = {
        .options = options,
        .file_fd = -1,
        .dir_fd = -1,
        .why = ret_why,
        .why_size = why_size,
    };

    keel_text_printf(&r.build, "%s/" BUILD_DIR, options->data_dir);
    keel_text_printf(&r.store, "%s/store", r.build.data);
    if (options->wal_dir != NULL)
        keel_text_printf(&r.wal, "%s", options->wal_dir);
    else
        keel_text_printf(&r.wal, "%s/wal", r.build.data);
    int err = restore(&r);

    *ret_info = r.info;
    founders_free(&r.founders);
    keel_text_free(&r.build);
    keel_text_free(&r.store);
    keel_text_free(&r.wal);
    if (r.dir_fd >= 0)
        close(r.dir_fd);
    if (r.file_fd >= 0)
        close(r.file_fd);
    return err;
}
