/* Lock, identity file, mount table. Everything here runs before the loop does. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <time.h>
#include <unistd.h>

#include "check.h"
#include "data_dir.h"
#include "err.h"
#include "hash.h"
#include "log.h"
#include "mountinfo.h"

enum {
    IDENTITY_VERSION = 1,
    IDENTITY_SIZE_MAX = 16384,
    LOCK_WAIT_MS = 3000,
    LOCK_PAUSE_MS = 20,
};

#define IDENTITY_FILE "identity"

/* A process that was killed a moment ago may still be going: the last of its threads may wait for
 * the disk. */
static bool lock_soon(int fd)
{
    const struct timespec pause = { .tv_nsec = LOCK_PAUSE_MS * 1000000L };

    for (int waited_ms = 0; waited_ms < LOCK_WAIT_MS; waited_ms += LOCK_PAUSE_MS) {
        if (flock(fd, LOCK_EX | LOCK_NB) == 0)
            return true;
        nanosleep(&pause, NULL);
    }
    return false;
}

int data_dir_lock(const char *dir, bool create, int *ret_fd, char *ret_why, size_t why_size)
{
    if (create && mkdir(dir, 0700) != 0 && errno != EEXIST) {
        snprintf(ret_why, why_size, "cannot create the data directory %s: %s", dir,
                 strerror(errno));
        return KEEL_E_IO;
    }
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    if (fd < 0) {
        snprintf(ret_why, why_size, "cannot open the data directory %s: %s%s", dir, strerror(errno),
                 errno == ENOENT
                     ? " (a new node is started with --bootstrap or --join, which create it)"
                     : "");
        return KEEL_E_NOTFOUND;
    }
    if (faccessat(fd, ".", W_OK | X_OK, AT_EACCESS) != 0) {
        snprintf(ret_why, why_size, "the data directory %s is not writable: %s", dir,
                 strerror(errno));
        close(fd);
        return KEEL_E_ACCESS;
    }
    if (!lock_soon(fd)) {
        snprintf(ret_why, why_size,
                 "the data directory %s is in use by another keelfs process: stop that one first, "
                 "or give this node a directory of its own",
                 dir);
        close(fd);
        return KEEL_E_BUSY;
    }
    *ret_fd = fd;
    return 0;
}

/* ---- identity ---- */

static uint64_t text_checksum(const char *text, size_t len)
{
    return keel_hash64(keel_slice_of(text, len));
}

/* The lines "member=ID NAME ADDRESS". */
static int parse_members(const char *text, struct identity *id)
{
    const char *at = strstr(text, "\nmember=");

    for (; at != NULL; at = strstr(at + 1, "\nmember=")) {
        struct identity_member *m = &id->members[id->member_count];

        if (id->member_count == KEEL_MEMBERS_MAX ||
            sscanf(at, "\nmember=%" SCNx64 " %63s %299s\n", &m->id, m->name, m->address) != 3)
            return KEEL_E_CORRUPT;
        id->member_count++;
    }
    return 0;
}

/* All versions begin with the first line and end with the checksum: damage is never taken for a
 * newer one. */
static int identity_parse(char *text, struct identity *ret_identity)
{
    unsigned version = 0;
    char *sum = strstr(text, "checksum=");
    struct identity id = { 0 };

    if (sum == NULL || strtoull(sum + 9, NULL, 16) != text_checksum(text, (size_t)(sum - text)))
        return KEEL_E_CORRUPT;
    if (sscanf(text, "keelfs identity %u\n", &version) != 1)
        return KEEL_E_CORRUPT;
    if (version > IDENTITY_VERSION)
        return KEEL_E_NEWER;
    if (sscanf(text,
               "keelfs identity %u\ncluster_id=%" SCNx64 "\nid=%" SCNx64 "\nincarnation=%" SCNx64
               "\nname=%63s\ntoken=%63s\n",
               &version, &id.cluster_id, &id.id, &id.incarnation, id.name, id.token) != 6 ||
        parse_members(text, &id) != 0)
        return KEEL_E_CORRUPT;
    *ret_identity = id;
    return 0;
}

int identity_load(int dir_fd, struct identity *ret_identity, char *ret_why, size_t why_size)
{
    char text[IDENTITY_SIZE_MAX + 1];
    int fd = openat(dir_fd, IDENTITY_FILE, O_RDONLY | O_CLOEXEC);

    if (fd < 0 && errno == ENOENT)
        return KEEL_E_NOTFOUND;
    ssize_t len = fd < 0 ? -1 : read(fd, text, IDENTITY_SIZE_MAX);

    if (len < 0) {
        snprintf(ret_why, why_size, "cannot read the identity file: %s", strerror(errno));
        if (fd >= 0)
            close(fd);
        return KEEL_E_IO;
    }
    close(fd);
    text[len] = '\0';
    int err = identity_parse(text, ret_identity);

    if (err == KEEL_E_NEWER)
        snprintf(ret_why, why_size, "the data directory was written by a newer keelfs: use that");
    else if (err != 0)
        snprintf(ret_why, why_size,
                 "the identity file is damaged: restore the data directory from a backup, or "
                 "remove this member and add it again");
    return err;
}

static int write_synced(int dir_fd, const char *name, const char *text, size_t len)
{
    int fd = openat(dir_fd, name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

    if (fd < 0)
        return -1;
    ssize_t written = write(fd, text, len);
    bool ok = written == (ssize_t)len && fsync(fd) == 0;
    int saved = written >= 0 && written < (ssize_t)len ? ENOSPC : errno;

    close(fd);
    errno = saved;
    return ok ? 0 : -1;
}

/* The directory's own name must survive a crash as well: before there is an identity in it, so that
 * no later start has to. A parent that may not be read was made by somebody else. */
static int sync_parent(int dir_fd)
{
    int fd = openat(dir_fd, "..", O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    if (fd < 0)
        return errno == EACCES ? 0 : -1;
    int rc = fsync(fd), saved = errno;

    close(fd);
    errno = saved;
    return rc;
}

int identity_save(int dir_fd, const struct identity *identity, char *ret_why, size_t why_size)
{
    struct keel_text text = { 0 };
    int err = 0;

    keel_text_printf(&text,
                     "keelfs identity %d\ncluster_id=%016" PRIx64 "\nid=%016" PRIx64
                     "\nincarnation=%016" PRIx64 "\nname=%s\ntoken=%s\n",
                     IDENTITY_VERSION, identity->cluster_id, identity->id, identity->incarnation,
                     identity->name, identity->token);
    for (size_t i = 0; i < identity->member_count; i++)
        keel_text_printf(&text, "member=%016" PRIx64 " %s %s\n", identity->members[i].id,
                         identity->members[i].name, identity->members[i].address);
    keel_text_printf(&text, "checksum=%016" PRIx64 "\n", text_checksum(text.data, text.len));
    if (sync_parent(dir_fd) != 0 ||
        write_synced(dir_fd, IDENTITY_FILE ".new", text.data, text.len) != 0 ||
        renameat(dir_fd, IDENTITY_FILE ".new", dir_fd, IDENTITY_FILE) != 0 || fsync(dir_fd) != 0) {
        snprintf(ret_why, why_size, "cannot write the identity file: %s", strerror(errno));
        err = errno == ENOSPC || errno == EDQUOT ? KEEL_E_DISKFULL : KEEL_E_IO;
    }
    keel_text_free(&text);
    return err;
}

#define REMOVED_FILE "removed"

bool removal_is_noted(int dir_fd)
{
    return faccessat(dir_fd, REMOVED_FILE, F_OK, 0) == 0;
}

/* Without it the next start finds out by itself, a little later. */
void removal_note(int dir_fd)
{
    int fd = openat(dir_fd, REMOVED_FILE, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);

    if (fd < 0 || close(fd) != 0 || fsync(dir_fd) != 0)
        log_warning("cannot note the removal in the data directory: %s", strerror(errno));
}

static int compare_strings(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* The order of the members on the command line does not matter. */
uint64_t identity_cluster_id(const char *token, const char *initial_cluster)
{
    char *copy = keel_strdup(initial_cluster), *save = NULL;
    char *parts[KEEL_MEMBERS_MAX + 1];
    size_t count = 0;
    uint64_t id = keel_hash64(keel_slice_str(token));

    for (char *p = strtok_r(copy, ",", &save); p != NULL && count < KEEL_MEMBERS_MAX;
         p = strtok_r(NULL, ",", &save))
        parts[count++] = p;
    qsort(parts, count, sizeof parts[0], compare_strings);
    for (size_t i = 0; i < count; i++)
        id = keel_hash64_seed(keel_slice_str(parts[i]), id);
    free(copy);
    return id != 0 ? id : 1;
}

uint64_t identity_node_id(const char *token, const char *name)
{
    uint64_t id = keel_hash64_seed(keel_slice_str(name), keel_hash64(keel_slice_str(token)));

    return id != 0 ? id : 1;
}

/* ---- mounts ---- */

static void abort_connection(unsigned minor)
{
    char path[64];

    snprintf(path, sizeof path, "/sys/fs/fuse/connections/%u/abort", minor);
    int fd = open(path, O_WRONLY | O_CLOEXEC);

    if (fd < 0)
        return;
    ssize_t written = write(fd, "1", 1);

    (void)written; /* gone already: as good */
    close(fd);
}

struct mount_search {
    const char *point, *source;
    int found; /* 1: a dead mount of our own was cleared; KEEL_E_BUSY: another keelfs */
};

static int look_at_mount(void *arg, const struct mountinfo *m)
{
    struct mount_search *search = arg;

    if (strcmp(m->point, search->point) != 0 || strncmp(m->source, "keelfs:", 7) != 0)
        return 0;
    if (strcmp(m->source, search->source) != 0) {
        search->found = KEEL_E_BUSY;
        return 1;
    }
    /* Ours, and we hold the lock of the data directory: nobody serves it any more. */
    log_warning("clearing the dead mount of this node on %s", m->point);
    abort_connection(minor(m->dev));
    if (umount2(m->point, MNT_DETACH | UMOUNT_NOFOLLOW) != 0)
        log_warning("cannot unmount %s: %s", m->point, strerror(errno));
    search->found = 1;
    return 1;
}

/* The path made absolute by words alone: a stat could hang or fail on a dead mount. */
static void absolute_path(const char *path, char ret[KEEL_PATH_MAX + 1])
{
    char cwd[KEEL_PATH_MAX + 1] = "";

    if (path[0] != '/' && getcwd(cwd, sizeof cwd) == NULL)
        cwd[0] = '\0';
    snprintf(ret, KEEL_PATH_MAX + 1, "%s%s%.*s", cwd, path[0] == '/' ? "" : "/", 2048, path);
    for (size_t len = strlen(ret); len > 1 && ret[len - 1] == '/'; len--)
        ret[len - 1] = '\0';
}

/* No keelfs but a dead one of this node may be mounted on `point`, and that one is cleared. */
static int clear_mount(const char *point, const char *source, char *ret_why, size_t why_size)
{
    struct mount_search search = { .point = point, .source = source };

    do {
        search.found = 0;
        mountinfo_each(NULL, look_at_mount, &search);
    } while (search.found == 1);
    if (search.found == KEEL_E_BUSY)
        snprintf(ret_why, why_size, "another keelfs is mounted on %s: unmount it first", point);
    return search.found;
}

int mount_point_prepare(const char *path, const char *source, char ret_path[KEEL_PATH_MAX + 1],
                        char *ret_why, size_t why_size)
{
    char absolute[KEEL_PATH_MAX + 1], real[PATH_MAX];
    struct stat st;

    absolute_path(path, absolute);
    int err = clear_mount(absolute, source, ret_why, why_size);

    if (err != 0)
        return err;
    if (realpath(absolute, real) == NULL || stat(real, &st) != 0) {
        snprintf(ret_why, why_size, "the mount point %s cannot be used: %s%s", path,
                 strerror(errno), errno == ENOENT ? " (create it: mkdir -p)" : "");
        return KEEL_E_NOTFOUND;
    }
    if (!S_ISDIR(st.st_mode)) {
        snprintf(ret_why, why_size, "the mount point %s is not a directory", path);
        return KEEL_E_NOTDIR;
    }
    snprintf(ret_path, KEEL_PATH_MAX + 1, "%s", real);
    return strcmp(real, absolute) != 0 ? clear_mount(real, source, ret_why, why_size) : 0;
}

static int same_device(void *arg, const struct mountinfo *m)
{
    const struct stat *st = arg;

    return strncmp(m->source, "keelfs:", 7) == 0 && st->st_dev == m->dev;
}

int data_dir_check_place(const char *dir, const char *mount_point, char *ret_why, size_t why_size)
{
    char real[PATH_MAX];
    struct stat st;
    size_t len = strlen(mount_point);

    if (realpath(dir, real) == NULL || stat(real, &st) != 0) {
        snprintf(ret_why, why_size, "cannot look at %s: %s", dir, strerror(errno));
        return KEEL_E_IO;
    }
    if (strncmp(real, mount_point, len) == 0 && (real[len] == '/' || real[len] == '\0')) {
        snprintf(ret_why, why_size,
                 "%s lies below the mount point %s: the node would wait for itself; put it "
                 "elsewhere",
                 dir, mount_point);
        return KEEL_E_INVALID;
    }
    if (mountinfo_each(NULL, same_device, &st) != 0) {
        snprintf(ret_why, why_size, "%s lies on a keelfs mount: put it on a local disk", dir);
        return KEEL_E_INVALID;
    }
    return 0;
}

int own_files_check_place(char *ret_why, size_t why_size)
{
    struct stat program, log;

    if (stat("/proc/self/exe", &program) == 0 && mountinfo_each(NULL, same_device, &program) != 0) {
        snprintf(ret_why, why_size,
                 "this program lies on a keelfs mount: without a quorum it could not run on; put a "
                 "copy on a local disk");
        return KEEL_E_INVALID;
    }
    if (fstat(STDERR_FILENO, &log) == 0 && mountinfo_each(NULL, same_device, &log) != 0) {
        snprintf(ret_why, why_size,
                 "the log (standard error) goes to a file on a keelfs mount: a node that writes it "
                 "could wait for itself; put it on a local disk");
        return KEEL_E_INVALID;
    }
    return 0;
}
