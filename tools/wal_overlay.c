/* A file is what is below, and what was written on top of that, in order. */
#include "wal_overlay.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "check.h"
#include "err.h"
#include "wal/internal.h"

struct patch {
    struct patch *next;
    uint64_t offset;
    size_t len;
    uint8_t data[];
};

struct over_file {
    char name[WAL_FILE_NAME];
    int fd; /* -1: not opened yet, or only made here */
    bool is_new;
    uint64_t size;
    struct patch *first, **last;
    struct over_file *next;
};

struct disk_file {
    struct over_file *file;
};

struct overlay {
    struct disk disk;
    int dir_fd;
    struct over_file *files;
};

static struct overlay *overlay_of(struct disk *d)
{
    return KEEL_CONTAINER_OF(d, struct overlay, disk);
}

static struct over_file *find(struct overlay *o, const char *name)
{
    struct over_file *file = o->files;

    while (file != NULL && strcmp(file->name, name) != 0)
        file = file->next;
    return file;
}

static struct over_file *add(struct overlay *o, const char *name, bool is_new)
{
    struct over_file *file = keel_calloc(1, sizeof *file);

    memcpy(file->name, name, strlen(name) + 1);
    file->fd = -1;
    file->is_new = is_new;
    file->last = &file->first;
    file->next = o->files;
    o->files = file;
    return file;
}

static int open_below(struct overlay *o, struct over_file *file)
{
    struct stat st;

    file->fd = openat(o->dir_fd, file->name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (file->fd < 0)
        return errno == ENOENT ? KEEL_E_NOTFOUND : KEEL_E_IO;
    if (fstat(file->fd, &st) != 0)
        return KEEL_E_IO;
    file->size = (uint64_t)st.st_size;
    return 0;
}

static int over_open(struct disk *d, const char *name, int create, struct disk_file **ret_file)
{
    struct overlay *o = overlay_of(d);
    struct over_file *file = find(o, name);
    int err = 0;

    if (create) {
        if (file != NULL)
            return KEEL_E_IO;
        file = add(o, name, true);
    }
    if (file == NULL)
        return KEEL_E_NOTFOUND;
    if (file->fd < 0 && !file->is_new)
        err = open_below(o, file);
    if (err != 0)
        return err;
    *ret_file = keel_malloc(sizeof **ret_file);
    (*ret_file)->file = file;
    return 0;
}

static void over_close(struct disk_file *f)
{
    free(f);
}

static int64_t over_size(struct disk_file *f)
{
    return (int64_t)f->file->size;
}

/* What is below, with zeroes behind its end. */
static int read_below(const struct over_file *file, uint64_t offset, uint8_t *data, size_t len)
{
    size_t done = 0;

    while (file->fd >= 0 && done < len) {
        ssize_t got = pread(file->fd, data + done, len - done, (off_t)(offset + done));

        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return KEEL_E_IO;
        if (got == 0)
            break;
        done += (size_t)got;
    }
    memset(data + done, 0, len - done);
    return 0;
}

static void lay_over(const struct patch *patch, uint64_t offset, uint8_t *data, size_t len)
{
    uint64_t from = patch->offset > offset ? patch->offset : offset;
    uint64_t patch_end = patch->offset + patch->len, end = offset + len;
    uint64_t to = patch_end < end ? patch_end : end;

    if (from < to)
        memcpy(data + (from - offset), patch->data + (from - patch->offset), (size_t)(to - from));
}

static int64_t over_read(struct disk_file *f, uint64_t offset, void *data, size_t len)
{
    const struct over_file *file = f->file;

    if (offset >= file->size)
        return 0;
    if (len > file->size - offset)
        len = (size_t)(file->size - offset);
    int err = read_below(file, offset, data, len);

    for (const struct patch *p = file->first; p != NULL && err == 0; p = p->next)
        lay_over(p, offset, data, len);
    return err != 0 ? err : (int64_t)len;
}

static int over_write(struct disk_file *f, uint64_t offset, const struct iovec *iov, size_t count)
{
    struct over_file *file = f->file;

    for (size_t i = 0; i < count; i++) {
        struct patch *patch = keel_malloc(sizeof *patch + iov[i].iov_len);

        *patch = (struct patch){ .offset = offset, .len = iov[i].iov_len };
        if (patch->len > 0)
            memcpy(patch->data, iov[i].iov_base, patch->len);
        *file->last = patch;
        file->last = &patch->next;
        offset += patch->len;
    }
    if (offset > file->size)
        file->size = offset;
    return 0;
}

static int over_sync(struct disk_file *f)
{
    (void)f;
    return 0;
}

static int over_sync_dir(struct disk *d)
{
    (void)d;
    return 0;
}

/* No start of a node needs the rest. */

static int over_truncate(struct disk_file *f, uint64_t size)
{
    (void)f;
    (void)size;
    return KEEL_E_IO;
}

static int over_rename(struct disk *d, const char *from, const char *to)
{
    (void)d;
    (void)from;
    (void)to;
    return KEEL_E_IO;
}

static int over_remove(struct disk *d, const char *name)
{
    (void)d;
    (void)name;
    return KEEL_E_IO;
}

static int over_list(struct disk *d, int (*fn)(void *arg, const char *name), void *arg)
{
    int result = 0;

    for (struct over_file *file = overlay_of(d)->files; file != NULL && result == 0;
         file = file->next)
        result = fn(arg, file->name);
    return result;
}

static void over_free(struct disk *d)
{
    struct overlay *o = overlay_of(d);

    while (o->files != NULL) {
        struct over_file *file = o->files;

        o->files = file->next;
        while (file->first != NULL) {
            struct patch *patch = file->first;

            file->first = patch->next;
            free(patch);
        }
        if (file->fd >= 0)
            close(file->fd);
        free(file);
    }
    close(o->dir_fd);
    free(o);
}

static const struct disk_ops over_ops = {
    .open = over_open,
    .close = over_close,
    .size = over_size,
    .read = over_read,
    .write = over_write,
    .sync = over_sync,
    .truncate = over_truncate,
    .rename = over_rename,
    .remove = over_remove,
    .sync_dir = over_sync_dir,
    .list = over_list,
    .free = over_free,
};

int wal_overlay_open(const char *path, struct disk **ret_disk, int *ret_errno)
{
    DIR *dir = opendir(path);
    struct dirent *entry;
    uint64_t epoch;

    if (dir == NULL) {
        *ret_errno = errno;
        return errno == ENOENT ? KEEL_E_NOTFOUND : KEEL_E_IO;
    }
    struct overlay *o = keel_calloc(1, sizeof *o);

    o->disk.ops = &over_ops;
    o->dir_fd = dup(dirfd(dir));
    while ((entry = readdir(dir)) != NULL)
        if (wal_segment_parse_name(entry->d_name, &epoch))
            add(o, entry->d_name, false);
    closedir(dir);
    *ret_disk = &o->disk;
    return 0;
}
