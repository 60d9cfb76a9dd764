/* The disk as the log sees it: a vtable of plain synchronous calls on files in one directory.
 * disk_posix.c is the real one; disk_mem.c keeps files in memory, loses or tears what was not
 * synced at a crash, and counts every call (the simulator's and the unit tests' disk).
 *
 * All return 0 or more, or a negative KEEL_E_*: KEEL_E_DISKFULL (ENOSPC, EDQUOT), KEEL_E_NOTFOUND,
 * KEEL_E_IO for anything else. */
#ifndef WAL_DISK_H
#define WAL_DISK_H

#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

struct disk_file;

struct disk {
    const struct disk_ops *ops;
};

struct disk_ops {
    /* Opens for reading and writing; create: the file must not exist yet. */
    int (*open)(struct disk *d, const char *name, int create, struct disk_file **ret_file);
    void (*close)(struct disk_file *f);
    int64_t (*size)(struct disk_file *f);
    /* Bytes read: short only at the end of the file. */
    int64_t (*read)(struct disk_file *f, uint64_t offset, void *data, size_t len);
    /* All bytes, in one system call where the kernel lets it. */
    int (*write)(struct disk_file *f, uint64_t offset, const struct iovec *iov, size_t count);
    int (*sync)(struct disk_file *f); /* fdatasync */
    int (*truncate)(struct disk_file *f, uint64_t size);
    int (*rename)(struct disk *d, const char *from, const char *to);
    int (*remove)(struct disk *d, const char *name);
    int (*sync_dir)(struct disk *d);
    /* Calls fn for each file's name; stops at the first non-zero result and returns it. */
    int (*list)(struct disk *d, int (*fn)(void *arg, const char *name), void *arg);
    void (*free)(struct disk *d);
};

/* Files in the directory, created (0700) if it is missing. ret_errno has the errno on failure. */
int disk_posix_open(const char *dir, struct disk **ret_disk, int *ret_errno);

#endif
