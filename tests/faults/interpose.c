/* Stands between a program and its disk (LD_PRELOAD): the calls by which files are changed and
 * synced. KEEL_FAULTS names a directory of our own (plan.h, unsynced.h), KEEL_FAULTS_DISK another
 * one on the same file system: what lies below that is the disk, and all else is passed on. All
 * calls of the disk are done one after the other, but for syncs, which take their time beside
 * writes.
 *
 * Not interposed, because nobody here calls them: pwritev2, sync, syncfs, sync_file_range, link,
 * symlink, copy_file_range, sendfile, io_uring; msync, which LMDB has but for maps that it writes
 * to; and the calls that are done inside of libc, of which fclose and so on are the most. */
#undef _FILE_OFFSET_BITS /* open and open64 are two symbols of one meaning */
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "plan.h"
#include "real.h"
#include "unsynced.h"

enum { SECTOR = 512 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char disk[PATH_MAX]; /* "": nothing is interposed */
static bool in_use;         /* the first call has come: a process that makes none leaves no trace */

__attribute__((constructor)) static void begin(void)
{
    const char *own = getenv("KEEL_FAULTS"), *place = getenv("KEEL_FAULTS_DISK");

    if (own != NULL && place != NULL)
        snprintf(disk, sizeof disk, "%s", place);
}

static void enter(void)
{
    pthread_mutex_lock(&lock);
    if (in_use)
        return;
    in_use = true;
    unsynced_init(getenv("KEEL_FAULTS"));
    plan_init(getenv("KEEL_FAULTS"));
}

static void leave(void)
{
    int saved = errno;

    pthread_mutex_unlock(&lock);
    errno = saved;
}

/* ---- ends ---- */

static _Noreturn void die(void)
{
    kill(getpid(), SIGKILL);
    for (;;)
        pause();
}

static _Noreturn void be_killed(void)
{
    unsynced_save();
    die();
}

/* Every thread of it, or almost: one that waits for the disk stops when it has it. */
static bool is_stopped(pid_t process)
{
    char path[PATH_MAX], line[512];
    bool all = true;

    snprintf(path, sizeof path, "/proc/%d/task", process);
    DIR *dir = opendir(path);
    struct dirent *entry;

    while (dir != NULL && (entry = readdir(dir)) != NULL) {
        if (entry->d_name[0] == '.')
            continue;
        snprintf(path, sizeof path, "/proc/%d/task/%.20s/stat", process, entry->d_name);
        FILE *file = fopen(path, "r");
        const char *state =
            file != NULL && fgets(line, sizeof line, file) != NULL ? strrchr(line, ')') : NULL;

        all = all && (state == NULL || strchr("TD", state[2]) != NULL);
        if (file != NULL)
            fclose(file);
    }
    if (dir != NULL)
        closedir(dir);
    return all;
}

/* No thread may see what becomes of the files: so a child does it, while all of them are stopped.
 */
static _Noreturn void lose_power(void)
{
    const struct timespec pause = { .tv_nsec = 200000 };
    pid_t process = getpid();

    if (fork() != 0)
        for (;;)
            nanosleep(&pause, NULL);
    kill(process, SIGSTOP);
    while (!is_stopped(process))
        nanosleep(&pause, NULL);
    unsynced_cut(plan_seed());
    kill(process, SIGKILL);
    _exit(0);
}

static void before(enum plan_verb verb)
{
    if (verb == PLAN_KILL_BEFORE)
        be_killed();
}

static void after(enum plan_verb verb)
{
    if (verb == PLAN_KILL_AFTER)
        be_killed();
    if (verb == PLAN_CUT_IN || verb == PLAN_CUT_AFTER)
        lose_power();
}

static void end_by_itself(void)
{
    pthread_mutex_lock(&lock);
    if (in_use && plan_cuts_at_end())
        lose_power();
    if (in_use)
        unsynced_save();
    in_use = false;
    disk[0] = '\0';
    pthread_mutex_unlock(&lock);
}

__attribute__((destructor)) static void end(void)
{
    end_by_itself();
}

void abort(void)
{
    if (disk[0] != '\0')
        end_by_itself();
    signal(SIGABRT, SIG_DFL);
    raise(SIGABRT);
    _exit(127);
}

/* ---- what is on the disk ---- */

static const char *below_disk(const char *path)
{
    size_t len = strlen(disk);

    if (len == 0 || strncmp(path, disk, len) != 0)
        return NULL;
    if (path[len] == '\0')
        return ".";
    return path[len] == '/' ? path + len + 1 : NULL;
}

static bool path_of_fd(int fd, char ret[PATH_MAX])
{
    static const char gone[] = " (deleted)";
    char link[64];

    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t len = readlink(link, ret, PATH_MAX - 1);

    if (len <= 0)
        return false;
    ret[len] = '\0';
    if ((size_t)len >= sizeof gone && strcmp(ret + len + 1 - sizeof gone, gone) == 0)
        ret[(size_t)len + 1 - sizeof gone] = '\0';
    return true;
}

/* An open file or directory of the disk. */
struct target {
    struct stat st;
    char path[PATH_MAX];
    const char *name;
};

static bool is_target(int fd, struct target *ret)
{
    int saved = errno;
    bool is = disk[0] != '\0' && fstat(fd, &ret->st) == 0 &&
              (S_ISREG(ret->st.st_mode) || S_ISDIR(ret->st.st_mode)) && path_of_fd(fd, ret->path);

    ret->name = is ? below_disk(ret->path) : NULL;
    errno = saved;
    return ret->name != NULL;
}

/* A name as it is given to a call; NULL: not of the disk. */
static const char *name_at(int dir, const char *path, char ret[PATH_MAX])
{
    int saved = errno;
    bool known = disk[0] != '\0';

    ret[0] = '\0';
    if (known && path[0] != '/')
        known = dir == AT_FDCWD ? syscall(SYS_getcwd, ret, PATH_MAX) > 0 : path_of_fd(dir, ret);

    size_t len = strlen(ret);

    if (known)
        snprintf(ret + len, PATH_MAX - len, "%s%s", len > 0 ? "/" : "", path);
    errno = saved;
    return known ? below_disk(ret) : NULL;
}

static bool is_there(const char *path)
{
    struct stat st;
    int saved = errno;
    bool there = lstat(path, &st) == 0;

    errno = saved;
    return there;
}

static bool is_full(enum plan_verb verb)
{
    if (verb != PLAN_FULL && verb != PLAN_STILL_FULL)
        return false;
    errno = ENOSPC;
    return true;
}

/* ---- opening ---- */

static int make_file(int dir, const char *path, int flags, mode_t mode, const char *absolute,
                     const char *name)
{
    enum plan_verb verb = plan_next("create", name, 0);

    before(verb);
    int fd = is_full(verb) ? -1 : real_openat(dir, path, flags, mode);

    if (fd >= 0)
        unsynced_name(OP_CREATE, absolute, NULL, NULL);
    after(verb);
    return fd;
}

static int truncate_target(int fd, const struct target *target, off_t size)
{
    enum plan_verb verb = plan_next("truncate", target->name, (uint64_t)size);

    before(verb);
    int rc = is_full(verb) ? -1 : unsynced_truncate(unsynced_file(fd, &target->st), size);

    after(verb);
    return rc;
}

static int open_target(int dir, const char *path, int flags, mode_t mode, const char *absolute,
                       const char *name)
{
    struct target target;

    if (!is_there(absolute))
        return make_file(dir, path, flags, mode, absolute, name);
    int fd = real_openat(dir, path, flags & ~O_TRUNC, mode);

    if (fd >= 0 && flags & O_TRUNC && is_target(fd, &target) && target.st.st_size > 0 &&
        truncate_target(fd, &target, 0) != 0) {
        close(fd);
        return -1;
    }
    return fd;
}

static int any_open(int dir, const char *path, int flags, mode_t mode)
{
    char absolute[PATH_MAX];
    const char *name = flags & (O_CREAT | O_TRUNC) && (flags & O_TMPFILE) != O_TMPFILE
                           ? name_at(dir, path, absolute)
                           : NULL;

    if (name == NULL)
        return real_openat(dir, path, flags, mode);
    enter();
    int fd = open_target(dir, path, flags, mode, absolute, name);

    leave();
    return fd;
}

static mode_t mode_of(int flags, va_list args)
{
    return flags & O_CREAT || (flags & O_TMPFILE) == O_TMPFILE ? (mode_t)va_arg(args, unsigned) : 0;
}

int open(const char *path, int flags, ...)
{
    va_list args;

    va_start(args, flags);
    mode_t mode = mode_of(flags, args);

    va_end(args);
    return any_open(AT_FDCWD, path, flags, mode);
}

int openat(int dir, const char *path, int flags, ...)
{
    va_list args;

    va_start(args, flags);
    mode_t mode = mode_of(flags, args);

    va_end(args);
    return any_open(dir, path, flags, mode);
}

/* ---- writing ---- */

static size_t bytes_in(const struct iovec *iov, int count)
{
    size_t bytes = 0;

    for (int i = 0; i < count; i++)
        bytes += iov[i].iov_len;
    return bytes;
}

/* A disk that fills up takes some sectors of a write, if it has several, and refuses the next. */
static ssize_t write_in_part(struct unsynced_file *file, int fd, const struct iovec *iov,
                             off_t offset)
{
    struct iovec half = { iov[0].iov_base, iov[0].iov_len / 2 / SECTOR * SECTOR };

    if (half.iov_len == 0 || plan_seed() % 2 == 0) {
        errno = ENOSPC;
        return -1;
    }
    return unsynced_write(file, fd, &half, 1, offset, NOT_THROUGH);
}

static ssize_t write_target(int fd, const struct target *target, const struct iovec *iov, int count,
                            off_t offset)
{
    bool dsync = (fcntl(fd, F_GETFL) & O_DSYNC) != 0;
    enum plan_verb verb = plan_next(dsync ? "commit" : "write", target->name, bytes_in(iov, count));
    struct unsynced_file *file = unsynced_file(fd, &target->st);
    ssize_t written = -1;

    before(verb);
    if (verb == PLAN_FULL)
        written = write_in_part(file, fd, iov, offset);
    else if (!is_full(verb))
        written = unsynced_write(file, fd, iov, count, offset,
                                 !dsync || plan_lies() ? NOT_THROUGH
                                 : verb == PLAN_CUT_IN ? THROUGH_CUT
                                                       : THROUGH);
    after(verb);
    return written;
}

ssize_t pwritev(int fd, const struct iovec *iov, int count, off_t offset)
{
    struct target target;

    if (!is_target(fd, &target))
        return real_pwritev(fd, iov, count, offset);
    enter();
    ssize_t written = write_target(fd, &target, iov, count, offset);

    leave();
    return written;
}

ssize_t pwrite(int fd, const void *data, size_t len, off_t offset)
{
    struct iovec iov = { (void *)(uintptr_t)data, len };

    return pwritev(fd, &iov, 1, offset);
}

/* At the place where the descriptor stands. */
ssize_t writev(int fd, const struct iovec *iov, int count)
{
    struct target target;

    if (!is_target(fd, &target))
        return syscall(SYS_writev, fd, iov, count);
    enter();
    off_t at = fcntl(fd, F_GETFL) & O_APPEND ? target.st.st_size : lseek(fd, 0, SEEK_CUR);
    ssize_t written = write_target(fd, &target, iov, count, at);

    if (written > 0)
        lseek(fd, at + written, SEEK_SET);
    leave();
    return written;
}

ssize_t write(int fd, const void *data, size_t len)
{
    struct target target;
    struct iovec iov = { (void *)(uintptr_t)data, len };

    return is_target(fd, &target) ? writev(fd, &iov, 1) : real_write(fd, data, len);
}

int ftruncate(int fd, off_t size)
{
    struct target target;

    if (!is_target(fd, &target))
        return real_ftruncate(fd, size);
    enter();
    int rc = truncate_target(fd, &target, size);

    leave();
    return rc;
}

int fallocate(int fd, int mode, off_t offset, off_t len)
{
    struct target target;

    if (!is_target(fd, &target))
        return real_fallocate(fd, mode, offset, len);
    enter();
    enum plan_verb verb = plan_next("allocate", target.name, (uint64_t)len);

    before(verb);
    int rc =
        is_full(verb) ? -1 : unsynced_allocate(unsynced_file(fd, &target.st), mode, offset, len);

    after(verb);
    leave();
    return rc;
}

int posix_fallocate(int fd, off_t offset, off_t len)
{
    return fallocate(fd, 0, offset, len) == 0 ? 0 : errno;
}

void *mmap(void *address, size_t len, int protection, int flags, int fd, off_t offset)
{
    struct target target;

    if (fd >= 0 && flags & MAP_SHARED && protection & PROT_WRITE && is_target(fd, &target)) {
        enter();
        unsynced_mapped(unsynced_file(fd, &target.st));
        leave();
    }
    return (void *)syscall(SYS_mmap, address, len, protection, flags, fd, offset);
}

/* ---- syncing ---- */

struct broken {
    struct broken *next;
    ino_t ino;
};

static struct broken *all_broken; /* files whose syncs fail from now on */

static bool is_broken(ino_t ino)
{
    for (const struct broken *b = all_broken; b != NULL; b = b->next)
        if (b->ino == ino)
            return true;
    return false;
}

static void break_file(ino_t ino)
{
    struct broken *b = malloc(sizeof *b);

    if (b == NULL || is_broken(ino)) {
        free(b);
        return;
    }
    b->ino = ino;
    b->next = all_broken;
    all_broken = b;
}

static void synced(int fd, const struct target *target, uint64_t last)
{
    if (plan_lies())
        return;
    if (S_ISDIR(target->st.st_mode))
        unsynced_sync_names(target->path, last);
    else
        unsynced_sync(unsynced_file(fd, &target->st), last);
}

/* What is written while it goes on is not in it. */
static int sync_target(int fd, const struct target *target, long number)
{
    enter();
    enum plan_verb verb =
        plan_next(S_ISDIR(target->st.st_mode) ? "syncdir" : "sync", target->name, 0);
    uint64_t last = unsynced_last();

    before(verb);
    if (verb == PLAN_CUT_IN)
        lose_power();
    if (verb == PLAN_EIO)
        break_file(target->st.st_ino);
    int rc = is_full(verb) || is_broken(target->st.st_ino) ? -1 : 0;

    if (rc != 0) {
        errno = is_full(verb) ? ENOSPC : EIO;
        leave();
        return rc;
    }
    leave();
    rc = (int)syscall(number, fd);
    enter();
    if (rc == 0)
        synced(fd, target, last);
    after(verb);
    leave();
    return rc;
}

int fsync(int fd)
{
    struct target target;

    return is_target(fd, &target) ? sync_target(fd, &target, SYS_fsync)
                                  : (int)syscall(SYS_fsync, fd);
}

int fdatasync(int fd)
{
    struct target target;

    return is_target(fd, &target) ? sync_target(fd, &target, SYS_fdatasync)
                                  : (int)syscall(SYS_fdatasync, fd);
}

/* ---- names ---- */

static int remove_name(int dir, const char *path, int flags)
{
    char absolute[PATH_MAX];
    const char *name = name_at(dir, path, absolute);

    if (name == NULL || !is_there(absolute))
        return real_unlinkat(dir, path, flags);
    enter();
    enum plan_verb verb = plan_next(flags & AT_REMOVEDIR ? "rmdir" : "unlink", name, 0);

    before(verb);
    char *grave = flags & AT_REMOVEDIR ? NULL : unsynced_bury(absolute);
    int rc = real_unlinkat(dir, path, flags);

    if (rc == 0)
        unsynced_name(flags & AT_REMOVEDIR ? OP_RMDIR : OP_UNLINK, absolute, NULL, grave);
    after(verb);
    leave();
    return rc;
}

int unlinkat(int dir, const char *path, int flags)
{
    return remove_name(dir, path, flags);
}

int unlink(const char *path)
{
    return remove_name(AT_FDCWD, path, 0);
}

int rmdir(const char *path)
{
    return remove_name(AT_FDCWD, path, AT_REMOVEDIR);
}

int mkdirat(int dir, const char *path, mode_t mode)
{
    char absolute[PATH_MAX];
    const char *name = name_at(dir, path, absolute);

    if (name == NULL || is_there(absolute))
        return real_mkdirat(dir, path, mode);
    enter();
    enum plan_verb verb = plan_next("mkdir", name, 0);

    before(verb);
    int rc = is_full(verb) ? -1 : real_mkdirat(dir, path, mode);

    if (rc == 0)
        unsynced_name(OP_MKDIR, absolute, NULL, NULL);
    after(verb);
    leave();
    return rc;
}

int mkdir(const char *path, mode_t mode)
{
    return mkdirat(AT_FDCWD, path, mode);
}

int renameat2(int from_dir, const char *from, int to_dir, const char *to, unsigned flags)
{
    char from_path[PATH_MAX], to_path[PATH_MAX];
    const char *name = name_at(from_dir, from, from_path);
    bool exchange = (flags & RENAME_EXCHANGE) != 0;

    if (name == NULL || name_at(to_dir, to, to_path) == NULL)
        return real_renameat2(from_dir, from, to_dir, to, flags);
    enter();
    enum plan_verb verb = plan_next(exchange ? "exchange" : "rename", name, 0);

    before(verb);
    char *grave = exchange ? NULL : unsynced_bury(to_path);
    int rc = is_full(verb) ? -1 : real_renameat2(from_dir, from, to_dir, to, flags);

    if (rc == 0)
        unsynced_name(exchange ? OP_EXCHANGE : OP_RENAME, from_path, to_path, grave);
    after(verb);
    leave();
    return rc;
}

int renameat(int from_dir, const char *from, int to_dir, const char *to)
{
    return renameat2(from_dir, from, to_dir, to, 0);
}

int rename(const char *from, const char *to)
{
    return renameat2(AT_FDCWD, from, AT_FDCWD, to, 0);
}

/* ---- space ---- */

/* On a disk that is full, there is none to be told of. */
static int tell_space(int rc, struct statvfs64 *space)
{
    if (rc == 0 && disk[0] != '\0' && in_use && plan_is_full())
        space->f_bfree = space->f_bavail = 0;
    return rc;
}

int statvfs64(const char *path, struct statvfs64 *ret)
{
    int (*real)(const char *, struct statvfs64 *);

    *(void **)&real = dlsym(RTLD_NEXT, "statvfs64");
    return tell_space(real(path, ret), ret);
}

int fstatvfs64(int fd, struct statvfs64 *ret)
{
    int (*real)(int, struct statvfs64 *);

    *(void **)&real = dlsym(RTLD_NEXT, "fstatvfs64");
    return tell_space(real(fd, ret), ret);
}

/* ---- the other names of the same calls ---- */

#define ALIAS(of) __attribute__((alias(#of)))

int open64(const char *path, int flags, ...) ALIAS(open);
int openat64(int dir, const char *path, int flags, ...) ALIAS(openat);
ssize_t pwrite64(int fd, const void *data, size_t len, off64_t offset) ALIAS(pwrite);
ssize_t pwritev64(int fd, const struct iovec *iov, int count, off64_t offset) ALIAS(pwritev);
int ftruncate64(int fd, off64_t size) ALIAS(ftruncate);
int fallocate64(int fd, int mode, off64_t offset, off64_t len) ALIAS(fallocate);
int posix_fallocate64(int fd, off64_t offset, off64_t len) ALIAS(posix_fallocate);
void *mmap64(void *address, size_t len, int protection, int flags, int fd, off64_t offset)
    ALIAS(mmap);
