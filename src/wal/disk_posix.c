/* The real disk: files of one directory, opened relative to its descriptor. Errors become KEEL_E_*;
 * nothing is retried but what was interrupted or done in part. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "check.h"
#include "err.h"
#include "wal/disk.h"

enum { IOV_AT_ONCE = 1024 }; /* IOV_MAX of Linux */

struct disk_posix {
    struct disk disk;
    int fd;
};

struct disk_file {
    int fd;
};

static int error_of(int errnum)
{
    switch (errnum) {
    case ENOSPC:
    case EDQUOT:
        return KEEL_E_DISKFULL;
    case ENOENT:
        return KEEL_E_NOTFOUND;
    default:
        return KEEL_E_IO;
    }
}

static int dir_fd(struct disk *d)
{
    return KEEL_CONTAINER_OF(d, struct disk_posix, disk)->fd;
}

static int posix_open(struct disk *d, const char *name, int create, struct disk_file **ret_file)
{
    int flags = O_RDWR | O_CLOEXEC | O_NOFOLLOW | (create ? O_CREAT | O_EXCL : 0);
    int fd;

    do
        fd = openat(dir_fd(d), name, flags, 0600);
    while (fd < 0 && errno == EINTR);
    if (fd < 0)
        return error_of(errno);
    *ret_file = keel_malloc(sizeof **ret_file);
    (*ret_file)->fd = fd;
    return 0;
}

static void posix_close(struct disk_file *f)
{
    close(f->fd);
    free(f);
}

static int64_t posix_size(struct disk_file *f)
{
    struct stat st;

    if (fstat(f->fd, &st) != 0)
        return error_of(errno);
    return st.st_size;
}

static int64_t posix_read(struct disk_file *f, uint64_t offset, void *data, size_t len)
{
    size_t done = 0;

    while (done < len) {
        ssize_t got = pread(f->fd, (char *)data + done, len - done, (off_t)(offset + done));

        if (got == 0)
            break;
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return error_of(errno);
        done += (size_t)got;
    }
    return (int64_t)done;
}

/* What is left of one piece that was written in part. */
static int write_rest(struct disk_file *f, uint64_t offset, const uint8_t *data, size_t len)
{
    while (len > 0) {
        ssize_t put = pwrite(f->fd, data, len, (off_t)offset);

        if (put < 0 && errno == EINTR)
            continue;
        if (put < 0)
            return error_of(errno);
        data += put;
        offset += (uint64_t)put;
        len -= (size_t)put;
    }
    return 0;
}

static int posix_write(struct disk_file *f, uint64_t offset, const struct iovec *iov, size_t count)
{
    while (count > 0) {
        int some = count < IOV_AT_ONCE ? (int)count : IOV_AT_ONCE;
        ssize_t put = pwritev(f->fd, iov, some, (off_t)offset);

        if (put < 0 && errno == EINTR)
            continue;
        if (put < 0)
            return error_of(errno);
        offset += (uint64_t)put;

        size_t done = (size_t)put;

        while (count > 0 && done >= iov->iov_len) {
            done -= iov->iov_len;
            iov++;
            count--;
        }
        if (done == 0)
            continue;
        int err = write_rest(f, offset, (const uint8_t *)iov->iov_base + done, iov->iov_len - done);

        if (err != 0)
            return err;
        offset += iov->iov_len - done;
        iov++;
        count--;
    }
    return 0;
}

/* Not repeated on any error, EINTR included: a second fdatasync may succeed without having written
 * anything. */
static int posix_sync(struct disk_file *f)
{
    return fdatasync(f->fd) == 0 ? 0 : error_of(errno);
}

static int posix_truncate(struct disk_file *f, uint64_t size)
{
    int rc;

    do
        rc = ftruncate(f->fd, (off_t)size);
    while (rc != 0 && errno == EINTR);
    return rc == 0 ? 0 : error_of(errno);
}

static int posix_rename(struct disk *d, const char *from, const char *to)
{
    return renameat(dir_fd(d), from, dir_fd(d), to) == 0 ? 0 : error_of(errno);
}

static int posix_remove(struct disk *d, const char *name)
{
    return unlinkat(dir_fd(d), name, 0) == 0 ? 0 : error_of(errno);
}

static int posix_sync_dir(struct disk *d)
{
    return fsync(dir_fd(d)) == 0 ? 0 : error_of(errno);
}

static int posix_list(struct disk *d, int (*fn)(void *arg, const char *name), void *arg)
{
    int fd = openat(dir_fd(d), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int result = 0;

    if (fd < 0)
        return error_of(errno);
    DIR *dir = fdopendir(fd);

    if (dir == NULL) {
        close(fd);
        return KEEL_E_IO;
    }
    while (result == 0) {
        errno = 0;
        struct dirent *entry = readdir(dir);

        if (entry == NULL) {
            result = errno == 0 ? 0 : error_of(errno);
            break;
        }
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            result = fn(arg, entry->d_name);
    }
    closedir(dir);
    return result;
}

static void posix_free(struct disk *d)
{
    struct disk_posix *posix = KEEL_CONTAINER_OF(d, struct disk_posix, disk);

    close(posix->fd);
    free(posix);
}

static const struct disk_ops posix_ops = {
    .open = posix_open,
    .close = posix_close,
    .size = posix_size,
    .read = posix_read,
    .write = posix_write,
    .sync = posix_sync,
    .truncate = posix_truncate,
    .rename = posix_rename,
    .remove = posix_remove,
    .sync_dir = posix_sync_dir,
    .list = posix_list,
    .free = posix_free,
};

/* The directory's own name must survive a crash too: its parent is synced, at each start, since the
 * one that made the directory may have been killed before that. A parent that may not be read was
 * made by somebody else, and what is in it too. Returns an errno. */
static int make_dir(const char *dir)
{
    if (mkdir(dir, 0700) != 0 && errno != EEXIST)
        return errno;

    int self = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int parent = self < 0 ? -1 : openat(self, "..", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int errnum = parent >= 0 && fsync(parent) == 0 ? 0 : errno;

    if (self >= 0 && parent < 0 && errnum == EACCES)
        errnum = 0;
    if (parent >= 0)
        close(parent);
    if (self >= 0)
        close(self);
    return errnum;
}

int disk_posix_open(const char *dir, struct disk **ret_disk, int *ret_errno)
{
    int errnum = make_dir(dir);

    if (errnum != 0) {
        *ret_errno = errnum;
        return error_of(errnum);
    }
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    if (fd < 0) {
        *ret_errno = errno;
        return error_of(errno);
    }
    struct disk_posix *posix = keel_malloc(sizeof *posix);

    posix->disk.ops = &posix_ops;
    posix->fd = fd;
    *ret_disk = &posix->disk;
    return 0;
}
