/* Files and their order. What a crash may leave behind, and how it is told apart, is in
 * store_install.h. */
#include "store_install.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "check.h"
#include "err.h"
#include "mvcc/mvcc.h"

#define STORE "store"
#define STORE_NEW "store.new"
#define MANIFEST "install"
#define MANIFEST_NEW "install.new"
#define TRIAL "install.try"
#define MARK "installed" /* the manifest's copy in a store */

#define ADVICE                                                                                  \
    "restore the data directory from a backup, or remove this member and add it again with an " \
    "empty one"

enum {
    MANIFEST_VERSION = 1,
    MANIFEST_MAX = 512,
    CHECKSUM_LINE = 26, /* bytes of it */
    PIECE_BYTES = 256 << 10,
};

void (*store_install_step)(const char *step);

static void step(const char *name)
{
    if (store_install_step != NULL)
        store_install_step(name);
}

/* Where the text of an error goes. */
struct why {
    char *text;
    size_t size;
};

static int failed(struct why why, const char *what, const char *name)
{
    int err = errno == ENOSPC || errno == EDQUOT ? KEEL_E_DISKFULL : KEEL_E_IO;

    snprintf(why.text, why.size, "cannot %s %s: %s", what, name, strerror(errno));
    return err;
}

/* ---- files ---- */

static int sync_dir(const char *dir, struct why why)
{
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int err = fd < 0 || fsync(fd) != 0 ? failed(why, "sync the directory", dir) : 0;

    if (fd >= 0)
        close(fd);
    return err;
}

static int remove_file(const char *name, struct why why)
{
    return unlink(name) == 0 || errno == ENOENT ? 0 : failed(why, "remove", name);
}

/* With the files in it. */
static int remove_dir(const char *name, struct why why)
{
    DIR *dir = opendir(name);
    struct dirent *entry;
    int err = 0;

    if (dir == NULL)
        return errno == ENOENT ? 0 : failed(why, "open", name);
    while (err == 0 && (entry = readdir(dir)) != NULL) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        if (unlinkat(dirfd(dir), entry->d_name, 0) != 0)
            err = failed(why, "remove from " STORE_NEW, entry->d_name);
    }
    closedir(dir);
    if (err == 0 && rmdir(name) != 0)
        err = failed(why, "remove", name);
    return err;
}

static bool write_all(int fd, const char *text)
{
    size_t left = strlen(text);

    while (left > 0) {
        ssize_t written = write(fd, text, left);

        if (written < 0 && errno == EINTR)
            continue;
        if (written < 0)
            return false;
        text += written;
        left -= (size_t)written;
    }
    return true;
}

/* Its name is not durable yet. */
static int write_file(const char *name, const char *text, struct why why)
{
    int fd = open(name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    int err = fd < 0 || !write_all(fd, text) || fsync(fd) != 0 ? failed(why, "write", name) : 0;

    if (fd >= 0)
        close(fd);
    return err;
}

/* KEEL_E_NOTFOUND. A file that is too long is cut: then it is not what it should be. */
static int read_file(const char *name, char ret_text[MANIFEST_MAX], struct why why)
{
    int fd = open(name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    ssize_t len;

    if (fd < 0)
        return errno == ENOENT ? KEEL_E_NOTFOUND : failed(why, "open", name);
    do
        len = read(fd, ret_text, MANIFEST_MAX - 1);
    while (len < 0 && errno == EINTR);
    int err = len < 0 ? failed(why, "read", name) : 0;

    close(fd);
    ret_text[len < 0 ? 0 : len] = '\0';
    return err;
}

/* ---- the manifest ---- */

struct manifest {
    uint64_t index, term;
    struct keel_hash128 hash;
};

/* The line that every version ends with. */
static size_t checksum_line(const char *text, size_t len, char *ret_line, size_t size)
{
    return (size_t)snprintf(ret_line, size, "checksum=%016" PRIx64 "\n",
                            keel_hash64(keel_slice_of(text, len)));
}

static void manifest_format(const struct manifest *m, char ret_text[MANIFEST_MAX])
{
    int len = snprintf(ret_text, MANIFEST_MAX,
                       "keelfs install %u\nindex=%" PRIu64 "\nterm=%" PRIu64 "\nhash=%016" PRIx64
                       "%016" PRIx64 "\n",
                       (unsigned)MANIFEST_VERSION, m->index, m->term, m->hash.high, m->hash.low);

    checksum_line(ret_text, (size_t)len, ret_text + len, MANIFEST_MAX - (size_t)len);
}

static bool checksum_fits(const char *text)
{
    char line[CHECKSUM_LINE + 1];
    size_t len = strlen(text);

    if (len < CHECKSUM_LINE)
        return false;
    KEEL_ASSERT(checksum_line(text, len - CHECKSUM_LINE, line, sizeof line) == CHECKSUM_LINE);
    return strcmp(text + len - CHECKSUM_LINE, line) == 0;
}

static int manifest_parse(const char *text, struct manifest *ret_manifest)
{
    struct manifest m = { 0 };
    unsigned version = 0;

    if (!checksum_fits(text) || sscanf(text, "keelfs install %u\n", &version) != 1)
        return KEEL_E_CORRUPT;
    if (version > MANIFEST_VERSION)
        return KEEL_E_NEWER;
    if (sscanf(text,
               "keelfs install %u\nindex=%" SCNu64 "\nterm=%" SCNu64 "\nhash=%16" SCNx64
               "%16" SCNx64 "\n",
               &version, &m.index, &m.term, &m.hash.high, &m.hash.low) != 5 ||
        m.index == 0)
        return KEEL_E_CORRUPT;
    *ret_manifest = m;
    return 0;
}

/* Whether that store is the one of the manifest. */
static int is_marked(const char *mark, const char *manifest, bool *ret_marked, struct why why)
{
    char text[MANIFEST_MAX];
    int err = read_file(mark, text, why);

    *ret_marked = err == 0 && strcmp(text, manifest) == 0;
    return err == KEEL_E_NOTFOUND ? 0 : err;
}

/* ---- build ---- */

static int store_batch(void *arg, struct kv_batch *batch_take)
{
    struct kv *kv = arg;
    int err = kv->ops->write(kv, batch_take);

    kv_batch_free(batch_take);
    step("batch stored");
    return err;
}

static int feed(int fd, struct snapshot_reader *reader, struct why why)
{
    uint8_t *piece = keel_malloc(PIECE_BYTES);
    off_t at = 0;
    int err = 0;

    while (err == 0) {
        ssize_t len = pread(fd, piece, PIECE_BYTES, at);

        if (len < 0 && errno == EINTR)
            continue;
        if (len < 0)
            err = failed(why, "read", "the received file");
        if (len <= 0)
            break;
        at += len;
        err = snapshot_reader_feed(reader, keel_slice_of(piece, (size_t)len), why.text, why.size);
    }
    free(piece);
    return err;
}

static int receive(int fd, struct kv *kv, struct snapshot_info *ret_info, struct why why)
{
    struct snapshot_reader *reader = snapshot_reader_new(store_batch, kv);
    int err = feed(fd, reader, why);

    if (err == 0)
        err = snapshot_reader_finish(reader, ret_info, why.text, why.size);
    snapshot_reader_free(reader);
    return err;
}

/* Opens it as a start does, which recomputes its state hash. */
static int check_store(struct kv *kv, const struct manifest *manifest, bool may_have_gone_on,
                       struct why why)
{
    struct mvcc *m;
    int err = mvcc_open(kv, &m, why.text, why.size);

    if (err != 0)
        return err;
    struct keel_hash128 hash = mvcc_state_hash(m);
    uint64_t index = mvcc_applied_index(m), term = mvcc_applied_term(m);
    bool same = index == manifest->index && term == manifest->term &&
                keel_hash128_equal(hash, manifest->hash);

    mvcc_close(m);
    if (same || (may_have_gone_on && index > manifest->index))
        return 0;
    snprintf(why.text, why.size,
             "the store is at entry %" PRIu64
             ", and not what the installed snapshot left at %" PRIu64 ": " ADVICE,
             index, manifest->index);
    return KEEL_E_CORRUPT;
}

static int fill(struct kv *kv, int fd, uint64_t cluster_id, struct snapshot_info *ret_info,
                struct why why)
{
    int err = receive(fd, kv, ret_info, why);

    if (err != 0)
        return err;
    if (ret_info->cluster_id != cluster_id) {
        snprintf(why.text, why.size,
                 "the snapshot is of cluster %016" PRIx64 ", this is %016" PRIx64,
                 ret_info->cluster_id, cluster_id);
        return KEEL_E_INVALID;
    }
    const struct manifest manifest = { ret_info->index, ret_info->term, ret_info->hash };

    step("received");
    err = check_store(kv, &manifest, false, why);
    step("checked");
    return err;
}

static int build(int fd, uint64_t map_bytes, uint64_t cluster_id, struct snapshot_info *ret_info,
                 struct why why)
{
    struct kv *kv;
    int err = kv_lmdb_open(STORE_NEW, map_bytes, &kv, why.text, why.size);

    if (err != 0)
        return err;
    step("opened");
    err = fill(kv, fd, cluster_id, ret_info, why);
    kv->ops->close(kv);
    return err;
}

/* From the rename on the new store is the one that counts. */
static int mark(const struct snapshot_info *info, struct why why)
{
    const struct manifest manifest = { info->index, info->term, info->hash };
    char text[MANIFEST_MAX];

    manifest_format(&manifest, text);
    int err = write_file(STORE_NEW "/" MARK, text, why);

    if (err == 0)
        err = sync_dir(STORE_NEW, why);
    if (err == 0)
        err = sync_dir(".", why);
    step("marked");
    if (err == 0)
        err = write_file(MANIFEST_NEW, text, why);
    step("manifest written");
    if (err == 0 && rename(MANIFEST_NEW, MANIFEST) != 0)
        err = failed(why, "rename", MANIFEST_NEW);
    step("manifest named");
    if (err == 0)
        err = sync_dir(".", why);
    step("manifest synced");
    return err;
}

static int remove_rubbish(struct why why)
{
    int err = remove_file(MANIFEST_NEW, why);

    if (err == 0)
        err = remove_file(TRIAL, why);
    if (err == 0)
        err = remove_file(STORE "/" MARK, why);
    if (err == 0)
        err = remove_dir(STORE_NEW, why);
    return err;
}

int store_new_remove(char *ret_why, size_t why_size)
{
    KEEL_ASSERT(access(MANIFEST, F_OK) != 0);
    return remove_dir(STORE_NEW, (struct why){ ret_why, why_size });
}

/* Not every file system can: to be known before there is a manifest. */
static int try_exchange(struct why why)
{
    int err = write_file(MANIFEST_NEW, "", why);

    if (err == 0)
        err = write_file(TRIAL, "", why);
    if (err == 0 && renameat2(AT_FDCWD, MANIFEST_NEW, AT_FDCWD, TRIAL, RENAME_EXCHANGE) != 0) {
        failed(why, "exchange two names",
               "(the file system of the data directory must be able to)");
        err = KEEL_E_NOTSUPPORTED;
    }
    return err != 0 ? err : remove_rubbish(why);
}

static bool is_refusal(int err)
{
    return err == KEEL_E_CORRUPT || err == KEEL_E_NEWER || err == KEEL_E_INVALID ||
           err == KEEL_E_NOTSUPPORTED;
}

int store_install_build(int snapshot_fd, uint64_t map_bytes, uint64_t cluster_id,
                        struct snapshot_info *ret_info, char *ret_why, size_t why_size)
{
    struct why why = { ret_why, why_size }, unsaid = { NULL, 0 };

    KEEL_ASSERT(access(MANIFEST, F_OK) != 0);
    int err = remove_rubbish(why);

    step("begun");
    if (err == 0)
        err = try_exchange(why);
    if (err == 0)
        err = build(snapshot_fd, map_bytes, cluster_id, ret_info, why);
    if (err == 0)
        return mark(ret_info, why);
    if (is_refusal(err) && remove_rubbish(unsaid) != 0)
        return KEEL_E_IO;
    return err;
}

/* ---- swap, finish, recover ---- */

int store_install_swap(char *ret_why, size_t why_size)
{
    struct why why = { ret_why, why_size };

    if (renameat2(AT_FDCWD, STORE, AT_FDCWD, STORE_NEW, RENAME_EXCHANGE) != 0)
        return failed(why, "exchange " STORE " and", STORE_NEW);
    step("exchanged");
    int err = sync_dir(".", why);

    step("exchange synced");
    return err;
}

int store_install_finish(char *ret_why, size_t why_size)
{
    struct why why = { ret_why, why_size };
    int err = remove_file(MANIFEST, why);

    step("manifest removed");
    if (err == 0)
        err = sync_dir(".", why);
    step("removal synced");
    if (err == 0)
        err = remove_rubbish(why);
    step("old store removed");
    return err;
}

/* Which of the two is the manifest's. */
static int find_marked(const char *text, const char **ret_store, struct why why)
{
    bool in_place, beside;
    int err = is_marked(STORE "/" MARK, text, &in_place, why);

    if (err == 0)
        err = is_marked(STORE_NEW "/" MARK, text, &beside, why);
    if (err != 0)
        return err;
    if (!in_place && !beside) {
        snprintf(why.text, why.size,
                 "a snapshot was being installed, but the store that was made of it is not "
                 "there: " ADVICE);
        return KEEL_E_CORRUPT;
    }
    *ret_store = in_place ? STORE : STORE_NEW;
    return 0;
}

static int recover(const char *text, uint64_t map_bytes, const struct manifest *manifest,
                   struct why why)
{
    const char *store;
    struct kv *kv;
    int err = find_marked(text, &store, why);

    if (err != 0)
        return err;
    if (strcmp(store, STORE) != 0)
        err = store_install_swap(why.text, why.size);
    if (err == 0)
        err = kv_lmdb_open(STORE, map_bytes, &kv, why.text, why.size);
    if (err != 0)
        return err;
    err = check_store(kv, manifest, true, why);
    kv->ops->close(kv);
    return err;
}

/* KEEL_E_NOTFOUND: there is none. */
static int read_manifest(char ret_text[MANIFEST_MAX], struct manifest *ret_manifest, struct why why)
{
    int err = read_file(MANIFEST, ret_text, why);

    if (err == 0)
        err = manifest_parse(ret_text, ret_manifest);
    if (err == KEEL_E_NEWER)
        snprintf(why.text, why.size, "a newer keelfs was installing a snapshot: use that");
    if (err == KEEL_E_CORRUPT)
        snprintf(why.text, why.size, "the file `" MANIFEST "` is damaged: " ADVICE);
    return err;
}

/* Under a name that does not count: LMDB cannot go on with a file that it was making when power
 * failed. */
static int make_first_store(uint64_t map_bytes, struct why why)
{
    struct kv *kv;

    if (access(STORE, F_OK) == 0)
        return 0;
    int err = kv_lmdb_open(STORE_NEW, map_bytes, &kv, why.text, why.size);

    if (err != 0)
        return err;
    kv->ops->close(kv);
    step("first store made");
    if (rename(STORE_NEW, STORE) != 0)
        return failed(why, "rename", STORE_NEW);
    step("first store named");
    return sync_dir(".", why);
}

int store_install_recover(uint64_t map_bytes, uint64_t *ret_index, uint64_t *ret_term,
                          char *ret_why, size_t why_size)
{
    struct why why = { ret_why, why_size };
    struct manifest manifest;
    char text[MANIFEST_MAX];
    int err = read_manifest(text, &manifest, why);

    *ret_index = *ret_term = 0;
    if (err == KEEL_E_NOTFOUND) {
        err = remove_rubbish(why);
        return err != 0 ? err : make_first_store(map_bytes, why);
    }
    if (err == 0)
        err = recover(text, map_bytes, &manifest, why);
    if (err != 0)
        return err;
    *ret_index = manifest.index;
    *ret_term = manifest.term;
    return 0;
}

int store_install_peek(const char **ret_store, uint64_t *ret_index, uint64_t *ret_term,
                       char *ret_why, size_t why_size)
{
    struct why why = { ret_why, why_size };
    struct manifest manifest = { 0 };
    char text[MANIFEST_MAX];
    int err = read_manifest(text, &manifest, why);

    *ret_store = STORE;
    if (err == 0)
        err = find_marked(text, ret_store, why);
    if (err != 0 && err != KEEL_E_NOTFOUND)
        return err;
    *ret_index = manifest.index;
    *ret_term = manifest.term;
    return 0;
}
