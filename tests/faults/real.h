/* The calls as the kernel has them: those of libc are the ones that are interposed. */
#ifndef KEEL_FAULTS_REAL_H
#define KEEL_FAULTS_REAL_H

#include <fcntl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

static inline int real_openat(int dir, const char *path, int flags, unsigned mode)
{
    return (int)syscall(SYS_openat, dir, path, flags, mode);
}

static inline ssize_t real_write(int fd, const void *data, size_t len)
{
    return syscall(SYS_write, fd, data, len);
}

static inline ssize_t real_pwrite(int fd, const void *data, size_t len, off_t offset)
{
    return syscall(SYS_pwrite64, fd, data, len, offset);
}

static inline ssize_t real_pwritev(int fd, const struct iovec *iov, int count, off_t offset)
{
    return syscall(SYS_pwritev, fd, iov, count, offset, 0);
}

static inline int real_ftruncate(int fd, off_t size)
{
    return (int)syscall(SYS_ftruncate, fd, size);
}

static inline int real_fallocate(int fd, int mode, off_t offset, off_t len)
{
    return (int)syscall(SYS_fallocate, fd, mode, offset, len);
}

static inline int real_unlinkat(int dir, const char *path, int flags)
{
    return (int)syscall(SYS_unlinkat, dir, path, flags);
}

static inline int real_renameat2(int from_dir, const char *from, int to_dir, const char *to,
                                 unsigned flags)
{
    return (int)syscall(SYS_renameat2, from_dir, from, to_dir, to, flags);
}

static inline int real_mkdirat(int dir, const char *path, unsigned mode)
{
    return (int)syscall(SYS_mkdirat, dir, path, mode);
}

#endif
