/* Error codes: one table of name, number, errno and text. Functions return 0 or a negative code;
 * the errno column is what a FUSE caller sees, and the only place where that mapping is made. */
#ifndef KEEL_ERR_H
#define KEEL_ERR_H

#include <errno.h>

/*        name          value  errno         text */
#define KEEL_ERRORS(X)                                               \
    X(NOTFOUND, -1, ENOENT, "no such file or directory")             \
    X(EXISTS, -2, EEXIST, "already exists")                          \
    X(NOTDIR, -3, ENOTDIR, "not a directory")                        \
    X(ISDIR, -4, EISDIR, "is a directory")                           \
    X(NOTEMPTY, -5, ENOTEMPTY, "directory not empty")                \
    X(INVALID, -6, EINVAL, "invalid argument")                       \
    X(PERM, -7, EPERM, "operation not permitted")                    \
    X(ACCESS, -8, EACCES, "permission denied")                       \
    X(STALE, -9, ESTALE, "condition not met, or revision compacted") \
    X(TIMEDOUT, -10, ETIMEDOUT, "no quorum, timed out")              \
    X(INTR, -11, EINTR, "interrupted")                               \
    X(READONLY, -12, EROFS, "read-only view")                        \
    X(AGAIN, -13, EAGAIN, "too many requests waiting")               \
    X(BUSY, -14, EBUSY, "busy")                                      \
    X(XDEV, -15, EXDEV, "cannot be done in one transaction")         \
    X(NAMETOOLONG, -16, ENAMETOOLONG, "name too long")               \
    X(FILETOOBIG, -17, EFBIG, "file too large")                      \
    X(NOSPACE, -18, ENOSPC, "store quota reached")                   \
    X(NOATTR, -19, ENODATA, "no such attribute")                     \
    X(NOTSUPPORTED, -20, EOPNOTSUPP, "not supported")                \
    X(IO, -21, EIO, "input/output error")                            \
    X(LOST, -22, EIO, "lease or session lost under this descriptor") \
    X(BADFD, -23, EBADF, "bad file descriptor")                      \
    X(RANGE, -24, ERANGE, "result too large for the buffer")         \
    X(OVERFLOW, -25, EOVERFLOW, "value out of range")                \
    X(MFILE, -26, ENFILE, "too many open views or handles")          \
    X(NOSYS, -27, ENOSYS, "not implemented")                         \
    X(NOTREADY, -28, EAGAIN, "has not caught up")                    \
    X(REMOVED, -29, EIO, "this node has been removed")               \
    /* internal: never answered to a FUSE caller */                  \
    X(CORRUPT, -40, EIO, "data is damaged")                          \
    X(MALFORMED, -41, EIO, "malformed message")                      \
    X(NEWER, -42, EIO, "written by a newer version")                 \
    X(NOTLEADER, -43, EIO, "not the leader")                         \
    X(NOSESSION, -44, EIO, "unknown session")                        \
    X(OUTOFORDER, -45, EIO, "not the session's next command")        \
    X(CANCELLED, -46, EINTR, "cancelled")                            \
    X(CLOSED, -47, EIO, "connection closed")                         \
    X(DISKFULL, -48, ENOSPC, "no space left on the disk")

enum keel_err {
    KEEL_OK = 0,
#define X(name, value, err, text) KEEL_E_##name = (value),
    KEEL_ERRORS(X)
#undef X
};

/* The text of a code; "unknown error" for what is not in the table. */
const char *keel_strerror(int err);

/* The positive errno of a code (0 for 0); EIO for what is not in the table. */
int keel_errno(int err);

#endif
