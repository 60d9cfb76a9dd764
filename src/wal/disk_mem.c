/* The memory disk. Each file has two images, the live one and the durable one, and between them the
 * writes that are not synced; the directory likewise. A crash decides about each of them and makes
 * the result both images. */
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "err.h"
#include "rng.h"
#include "wal/disk_mem.h"

enum { SECTOR = 512, NAME_SIZE = 64, FILE_MAX = 1 << 30 };

struct mem_image {
    uint8_t *data;
    size_t size, capacity;
};

/* An unsynced write, or truncation to `offset`. */
struct mem_change {
    struct mem_change *next;
    bool truncation;
    uint64_t offset;
    size_t len;
    uint8_t data[];
};

struct mem_inode {
    size_t refs; /* names, open files and unsynced directory changes */
    struct mem_image live, durable;
    struct mem_change *first, **last; /* in the order in which they were made */
};

struct mem_name {
    char name[NAME_SIZE];
    struct mem_inode *inode;
};

struct mem_dir {
    struct mem_name *names;
    size_t count, capacity;
};

enum mem_op_kind { OP_CREATE, OP_RENAME, OP_REMOVE };

struct mem_op {
    enum mem_op_kind kind;
    char name[NAME_SIZE], to[NAME_SIZE];
    struct mem_inode *inode; /* OP_CREATE */
};

struct disk_mem {
    struct disk disk;
    struct keel_rng rng;
    struct mem_dir live, durable;
    struct mem_op *ops;
    size_t op_count, op_capacity;
    struct disk_mem_counters counters;
    uint64_t cut_in, fail_write_in, fail_sync_in;
    int fail_write_err, fail_sync_err;
    bool cut;
};

struct disk_file {
    struct disk_mem *disk;
    struct mem_inode *inode;
};

static struct disk_mem *mem_of(const struct disk *disk)
{
    return KEEL_CONTAINER_OF((struct disk *)(uintptr_t)disk, struct disk_mem, disk);
}

/* ---- images ---- */

static void image_resize(struct mem_image *image, size_t size)
{
    KEEL_ASSERT(size <= FILE_MAX);
    if (size > image->capacity) {
        image->capacity = size + size / 4 + 64;
        image->data = keel_realloc(image->data, image->capacity);
    }
    if (size > image->size)
        memset(image->data + image->size, 0, size - image->size);
    image->size = size;
}

static void image_write(struct mem_image *image, uint64_t offset, const uint8_t *data, size_t len)
{
    KEEL_ASSERT(offset <= FILE_MAX && len <= FILE_MAX);
    if (len == 0)
        return;
    if (offset + len > image->size)
        image_resize(image, (size_t)offset + len);
    memcpy(image->data + offset, data, len);
}

static void image_zero(struct mem_image *image, uint64_t offset, size_t len)
{
    if (len == 0)
        return;
    if (offset + len > image->size)
        image_resize(image, (size_t)offset + len);
    memset(image->data + offset, 0, len);
}

static void image_copy(struct mem_image *to, const struct mem_image *from)
{
    image_resize(to, from->size);
    if (from->size > 0)
        memcpy(to->data, from->data, from->size);
}

/* ---- files ---- */

static struct mem_inode *inode_new(void)
{
    struct mem_inode *inode = keel_calloc(1, sizeof *inode);

    inode->last = &inode->first;
    return inode;
}

static void inode_forget_changes(struct mem_inode *inode)
{
    while (inode->first != NULL) {
        struct mem_change *change = inode->first;

        inode->first = change->next;
        free(change);
    }
    inode->last = &inode->first;
}

static struct mem_inode *inode_ref(struct mem_inode *inode)
{
    inode->refs++;
    return inode;
}

static void inode_drop(struct mem_inode *inode)
{
    KEEL_ASSERT(inode->refs > 0);
    if (--inode->refs > 0)
        return;
    inode_forget_changes(inode);
    free(inode->live.data);
    free(inode->durable.data);
    free(inode);
}

static struct mem_change *inode_add_change(struct mem_inode *inode, uint64_t offset, size_t len)
{
    struct mem_change *change = keel_calloc(1, sizeof *change + len);

    change->offset = offset;
    change->len = len;
    *inode->last = change;
    inode->last = &change->next;
    return change;
}

static void inode_sync(struct mem_inode *inode)
{
    for (struct mem_change *change = inode->first; change != NULL; change = change->next) {
        if (change->truncation)
            image_resize(&inode->durable, (size_t)change->offset);
        else
            image_write(&inode->durable, change->offset, change->data, change->len);
    }
    inode_forget_changes(inode);
}

/* ---- directories ---- */

static struct mem_name *dir_find(const struct mem_dir *dir, const char *name)
{
    for (size_t i = 0; i < dir->count; i++)
        if (strcmp(dir->names[i].name, name) == 0)
            return &dir->names[i];
    return NULL;
}

static void set_name(char to[NAME_SIZE], const char *name)
{
    size_t len = strlen(name);

    KEEL_ASSERT(len > 0 && len < NAME_SIZE);
    memcpy(to, name, len + 1);
}

static void dir_remove(struct mem_dir *dir, const char *name)
{
    struct mem_name *entry = dir_find(dir, name);

    if (entry == NULL)
        return;
    inode_drop(entry->inode);
    *entry = dir->names[--dir->count];
}

static void dir_put(struct mem_dir *dir, const char *name, struct mem_inode *inode)
{
    inode_ref(inode);
    dir_remove(dir, name);
    if (dir->count == dir->capacity) {
        dir->capacity = dir->capacity ? 2 * dir->capacity : 8;
        dir->names = keel_realloc(dir->names, dir->capacity * sizeof dir->names[0]);
    }
    set_name(dir->names[dir->count].name, name);
    dir->names[dir->count++].inode = inode;
}

static void dir_rename(struct mem_dir *dir, const char *from, const char *to)
{
    struct mem_name *entry = dir_find(dir, from);

    if (entry == NULL || strcmp(from, to) == 0)
        return;
    dir_put(dir, to, entry->inode);
    dir_remove(dir, from);
}

static void dir_clear(struct mem_dir *dir)
{
    while (dir->count > 0)
        inode_drop(dir->names[--dir->count].inode);
}

static void dir_copy(struct mem_dir *to, const struct mem_dir *from)
{
    dir_clear(to);
    for (size_t i = 0; i < from->count; i++)
        dir_put(to, from->names[i].name, from->names[i].inode);
}

static void add_op(struct disk_mem *mem, enum mem_op_kind kind, const char *name, const char *to,
                   struct mem_inode *inode)
{
    if (mem->op_count == mem->op_capacity) {
        mem->op_capacity = mem->op_capacity ? 2 * mem->op_capacity : 8;
        mem->ops = keel_realloc(mem->ops, mem->op_capacity * sizeof mem->ops[0]);
    }
    struct mem_op *op = &mem->ops[mem->op_count++];

    *op = (struct mem_op){ .kind = kind, .inode = inode ? inode_ref(inode) : NULL };
    set_name(op->name, name);
    if (to != NULL)
        set_name(op->to, to);
}

static void forget_ops(struct disk_mem *mem)
{
    for (size_t i = 0; i < mem->op_count; i++)
        if (mem->ops[i].inode != NULL)
            inode_drop(mem->ops[i].inode);
    mem->op_count = 0;
}

static void apply_op(struct mem_dir *dir, const struct mem_op *op)
{
    switch (op->kind) {
    case OP_CREATE:
        dir_put(dir, op->name, op->inode);
        break;
    case OP_RENAME:
        dir_rename(dir, op->name, op->to);
        break;
    case OP_REMOVE:
        dir_remove(dir, op->name);
        break;
    }
}

/* ---- faults ---- */

static bool counts_down_to_now(uint64_t *in)
{
    return *in > 0 && --*in == 0;
}

/* Each call that changes something passes here; true: power is, or has just been, lost. */
static bool power_is_lost(struct disk_mem *mem, bool *ret_just_now)
{
    *ret_just_now = false;
    if (mem->cut)
        return true;
    mem->counters.changes++;
    mem->cut = *ret_just_now = counts_down_to_now(&mem->cut_in);
    return mem->cut;
}

static bool power_is_lost_here(struct disk_mem *mem)
{
    bool just_now;

    return power_is_lost(mem, &just_now);
}

/* ---- the calls ---- */

static int mem_open(struct disk *d, const char *name, int create, struct disk_file **ret_file)
{
    struct disk_mem *mem = mem_of(d);
    struct mem_name *entry = dir_find(&mem->live, name);
    struct mem_inode *inode;

    if (mem->cut || (create && power_is_lost_here(mem)))
        return KEEL_E_IO;
    mem->counters.opens++;
    if (create) {
        if (entry != NULL)
            return KEEL_E_IO;
        inode = inode_new();
        dir_put(&mem->live, name, inode);
        add_op(mem, OP_CREATE, name, NULL, inode);
    } else {
        if (entry == NULL)
            return KEEL_E_NOTFOUND;
        inode = entry->inode;
    }
    *ret_file = keel_malloc(sizeof **ret_file);
    **ret_file = (struct disk_file){ mem, inode_ref(inode) };
    return 0;
}

static void mem_close(struct disk_file *f)
{
    inode_drop(f->inode);
    free(f);
}

static int64_t mem_size(struct disk_file *f)
{
    return f->disk->cut ? KEEL_E_IO : (int64_t)f->inode->live.size;
}

static int64_t mem_read(struct disk_file *f, uint64_t offset, void *data, size_t len)
{
    const struct mem_image *image = &f->inode->live;

    if (f->disk->cut)
        return KEEL_E_IO;
    f->disk->counters.reads++;
    if (offset >= image->size)
        return 0;
    if (len > image->size - offset)
        len = image->size - (size_t)offset;
    if (len > 0)
        memcpy(data, image->data + offset, len);
    f->disk->counters.read_bytes += len;
    return (int64_t)len;
}

static struct mem_change *change_of_iov(struct mem_inode *inode, uint64_t offset,
                                        const struct iovec *iov, size_t count)
{
    size_t len = 0;

    for (size_t i = 0; i < count; i++)
        len += iov[i].iov_len;
    struct mem_change *change = inode_add_change(inode, offset, len);

    len = 0;
    for (size_t i = 0; i < count; i++) {
        if (iov[i].iov_len > 0)
            memcpy(change->data + len, iov[i].iov_base, iov[i].iov_len);
        len += iov[i].iov_len;
    }
    return change;
}

static int mem_write(struct disk_file *f, uint64_t offset, const struct iovec *iov, size_t count)
{
    struct disk_mem *mem = f->disk;
    bool just_now;
    bool lost = power_is_lost(mem, &just_now);

    if (lost && !just_now)
        return KEEL_E_IO;
    mem->counters.writes++;
    bool fails = counts_down_to_now(&mem->fail_write_in);
    struct mem_change *change = change_of_iov(f->inode, offset, iov, count);

    if (fails)
        change->len = (size_t)keel_rng_below(&mem->rng, change->len + 1);
    image_write(&f->inode->live, offset, change->data, change->len);
    mem->counters.written_bytes += change->len;
    if (lost)
        return KEEL_E_IO;
    return fails ? mem->fail_write_err : 0;
}

static int mem_sync(struct disk_file *f)
{
    struct disk_mem *mem = f->disk;

    if (power_is_lost_here(mem))
        return KEEL_E_IO;
    mem->counters.syncs++;
    if (counts_down_to_now(&mem->fail_sync_in))
        return mem->fail_sync_err;
    inode_sync(f->inode);
    return 0;
}

static int mem_truncate(struct disk_file *f, uint64_t size)
{
    if (power_is_lost_here(f->disk))
        return KEEL_E_IO;
    f->disk->counters.truncates++;
    image_resize(&f->inode->live, (size_t)size);
    inode_add_change(f->inode, size, 0)->truncation = true;
    return 0;
}

static int mem_rename(struct disk *d, const char *from, const char *to)
{
    struct disk_mem *mem = mem_of(d);

    if (power_is_lost_here(mem))
        return KEEL_E_IO;
    mem->counters.renames++;
    if (dir_find(&mem->live, from) == NULL)
        return KEEL_E_NOTFOUND;
    dir_rename(&mem->live, from, to);
    add_op(mem, OP_RENAME, from, to, NULL);
    return 0;
}

static int mem_remove(struct disk *d, const char *name)
{
    struct disk_mem *mem = mem_of(d);

    if (power_is_lost_here(mem))
        return KEEL_E_IO;
    mem->counters.removes++;
    if (dir_find(&mem->live, name) == NULL)
        return KEEL_E_NOTFOUND;
    dir_remove(&mem->live, name);
    add_op(mem, OP_REMOVE, name, NULL, NULL);
    return 0;
}

static int mem_sync_dir(struct disk *d)
{
    struct disk_mem *mem = mem_of(d);

    if (power_is_lost_here(mem))
        return KEEL_E_IO;
    mem->counters.dir_syncs++;
    dir_copy(&mem->durable, &mem->live);
    forget_ops(mem);
    return 0;
}

static int mem_list(struct disk *d, int (*fn)(void *arg, const char *name), void *arg)
{
    struct disk_mem *mem = mem_of(d);

    if (mem->cut)
        return KEEL_E_IO;
    for (size_t i = 0; i < mem->live.count; i++) {
        int result = fn(arg, mem->live.names[i].name);

        if (result != 0)
            return result;
    }
    return 0;
}

static void mem_free(struct disk *d)
{
    struct disk_mem *mem = mem_of(d);

    forget_ops(mem);
    dir_clear(&mem->live);
    dir_clear(&mem->durable);
    free(mem->live.names);
    free(mem->durable.names);
    free(mem->ops);
    free(mem);
}

static const struct disk_ops mem_ops = {
    .open = mem_open,
    .close = mem_close,
    .size = mem_size,
    .read = mem_read,
    .write = mem_write,
    .sync = mem_sync,
    .truncate = mem_truncate,
    .rename = mem_rename,
    .remove = mem_remove,
    .sync_dir = mem_sync_dir,
    .list = mem_list,
    .free = mem_free,
};

struct disk *disk_mem_new(uint64_t seed)
{
    struct disk_mem *mem = keel_calloc(1, sizeof *mem);

    mem->disk.ops = &mem_ops;
    keel_rng_seed(&mem->rng, seed);
    return &mem->disk;
}

/* ---- the crash ---- */

/* How a whole crash goes: everything may come through, or nothing; chance alone would hardly ever
 * try those. */
enum crash_mood { MOOD_KEEP, MOOD_LOSE, MOOD_MIXED, MOOD_MIXED_TOO, MOODS };

enum sector_fate { FATE_KEEP, FATE_LOSE, FATE_TEAR, FATE_ZERO, FATES };

static enum sector_fate draw_fate(struct disk_mem *mem, enum crash_mood mood)
{
    if (mood == MOOD_KEEP)
        return FATE_KEEP;
    if (mood == MOOD_LOSE)
        return FATE_LOSE;
    return (enum sector_fate)keel_rng_below(&mem->rng, FATES);
}

/* The part of one write that lies in one sector. */
static void crash_sector(struct disk_mem *mem, struct mem_image *image, uint64_t offset,
                         const uint8_t *data, size_t len, enum sector_fate fate)
{
    size_t part;

    switch (fate) {
    case FATE_KEEP:
        image_write(image, offset, data, len);
        break;
    case FATE_TEAR:
        part = (size_t)keel_rng_below(&mem->rng, len + 1);
        if (keel_rng_below(&mem->rng, 2) == 0)
            image_write(image, offset, data, part);
        else
            image_write(image, offset + part, data + part, len - part);
        break;
    case FATE_ZERO:
        image_zero(image, offset, len);
        break;
    case FATE_LOSE:
    case FATES:
        break;
    }
}

static void crash_change(struct disk_mem *mem, struct mem_image *image,
                         const struct mem_change *change, enum crash_mood mood)
{
    size_t done = 0;

    if (change->truncation) {
        if (draw_fate(mem, mood) == FATE_KEEP)
            image_resize(image, (size_t)change->offset);
        return;
    }
    while (done < change->len) {
        uint64_t offset = change->offset + done;
        size_t len = SECTOR - (size_t)(offset % SECTOR);

        if (len > change->len - done)
            len = change->len - done;
        crash_sector(mem, image, offset, change->data + done, len, draw_fate(mem, mood));
        done += len;
    }
}

/* A file may be met more than once: it has no changes left then. */
static void crash_inode(struct disk_mem *mem, struct mem_inode *inode, enum crash_mood mood)
{
    for (struct mem_change *change = inode->first; change != NULL; change = change->next)
        crash_change(mem, &inode->durable, change, mood);
    inode_forget_changes(inode);
    image_copy(&inode->live, &inode->durable);
}

/* All files that may have a name after the crash. */
static void crash_files(struct disk_mem *mem, enum crash_mood mood)
{
    for (size_t i = 0; i < mem->live.count; i++)
        crash_inode(mem, mem->live.names[i].inode, mood);
    for (size_t i = 0; i < mem->durable.count; i++)
        crash_inode(mem, mem->durable.names[i].inode, mood);
    for (size_t i = 0; i < mem->op_count; i++)
        if (mem->ops[i].inode != NULL)
            crash_inode(mem, mem->ops[i].inode, mood);
}

void disk_mem_crash(struct disk *disk)
{
    struct disk_mem *mem = mem_of(disk);
    enum crash_mood mood = (enum crash_mood)keel_rng_below(&mem->rng, MOODS);
    enum crash_mood dir_mood = (enum crash_mood)keel_rng_below(&mem->rng, MOODS);

    crash_files(mem, mood);
    for (size_t i = 0; i < mem->op_count; i++)
        if (draw_fate(mem, dir_mood) == FATE_KEEP)
            apply_op(&mem->durable, &mem->ops[i]);
    forget_ops(mem);
    dir_copy(&mem->live, &mem->durable);
    mem->cut = false;
    mem->cut_in = mem->fail_write_in = mem->fail_sync_in = 0;
}

/* ---- for tests ---- */

void disk_mem_cut(struct disk *disk, uint64_t nth)
{
    struct disk_mem *mem = mem_of(disk);

    mem->cut = false;
    mem->cut_in = nth;
}

bool disk_mem_is_cut(const struct disk *disk)
{
    return mem_of(disk)->cut;
}

void disk_mem_fail_write(struct disk *disk, uint64_t nth, int err)
{
    mem_of(disk)->fail_write_in = nth;
    mem_of(disk)->fail_write_err = err;
}

void disk_mem_fail_sync(struct disk *disk, uint64_t nth, int err)
{
    mem_of(disk)->fail_sync_in = nth;
    mem_of(disk)->fail_sync_err = err;
}

struct disk_mem_counters disk_mem_counters(const struct disk *disk)
{
    return mem_of(disk)->counters;
}

struct keel_slice disk_mem_file(const struct disk *disk, const char *name)
{
    const struct mem_name *entry = dir_find(&mem_of(disk)->live, name);

    if (entry == NULL)
        return keel_slice_of(NULL, 0);
    return keel_slice_of(entry->inode->live.data, entry->inode->live.size);
}

void disk_mem_put(struct disk *disk, const char *name, struct keel_slice content)
{
    struct disk_mem *mem = mem_of(disk);
    struct mem_inode *inode = inode_new();

    image_write(&inode->live, 0, content.data, content.len);
    image_write(&inode->durable, 0, content.data, content.len);
    dir_put(&mem->live, name, inode);
    dir_put(&mem->durable, name, inode);
}

void disk_mem_flip(struct disk *disk, const char *name, uint64_t offset, uint8_t mask)
{
    struct mem_name *entry = dir_find(&mem_of(disk)->live, name);

    KEEL_ASSERT(entry != NULL && offset < entry->inode->live.size);
    entry->inode->live.data[offset] ^= mask;
    if (offset < entry->inode->durable.size)
        entry->inode->durable.data[offset] ^= mask;
}

struct disk *disk_mem_copy(const struct disk *disk, uint64_t seed)
{
    const struct disk_mem *from = mem_of(disk);
    struct disk *copy = disk_mem_new(seed);

    for (size_t i = 0; i < from->live.count; i++)
        disk_mem_put(copy, from->live.names[i].name,
                     keel_slice_of(from->live.names[i].inode->live.data,
                                   from->live.names[i].inode->live.size));
    return copy;
}
