/* The model of unsynced.h, and the cut. Everything that fails in here is a fault of the test, not
 * of what is tested: it ends the process with a message. */
#include "unsynced.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "real.h"

enum { SECTOR = 512 };

struct change {
    struct change *next, *prev;
    uint64_t number;
    uint64_t is_size; /* of the size alone; else a write */
    uint64_t through; /* enum unsynced_through */
    uint64_t offset, len;
    uint64_t old_size, new_size;
    uint64_t old_len; /* there were fewer bytes to replace at the end of the file */
    uint8_t *old_bytes, *new_bytes;
};

struct unsynced_file {
    struct unsynced_file *next;
    ino_t ino;
    int fd; /* our own, to look and to put back; never closed: with it would go the locks of LMDB */
    bool mapped;
    struct change *first, *last;
};

struct name {
    struct name *next, *prev;
    uint64_t number;
    uint64_t op, mode, ino;
    char *path, *to, *grave; /* "" instead of none */
    bool lost;
};

static struct unsynced_file *files;
static struct name *names, *last_name;
static uint64_t last_number;
static char own_dir[PATH_MAX - 64];

static _Noreturn void die(const char *what, const char *path)
{
    dprintf(STDERR_FILENO, "keel-faults: fatal: cannot %s %s: %s\n", what, path, strerror(errno));
    _exit(99);
}

static void *allocate(size_t size)
{
    void *p = calloc(1, size > 0 ? size : 1);

    if (p == NULL)
        die("allocate", "memory");
    return p;
}

static char *copy_of(const char *text)
{
    size_t size = strlen(text) + 1;

    return memcpy(allocate(size), text, size);
}

static void read_at(int fd, void *data, size_t len, uint64_t offset)
{
    if (pread(fd, data, len, (off_t)offset) != (ssize_t)len)
        die("read back", "a file");
}

static void write_at(int fd, const void *data, size_t len, uint64_t offset)
{
    if (len > 0 && real_pwrite(fd, data, len, (off_t)offset) != (ssize_t)len)
        die("write back", "a file");
}

static void resize(int fd, uint64_t size)
{
    if (real_ftruncate(fd, (off_t)size) != 0)
        die("resize", "a file");
}

static uint64_t size_of(int fd)
{
    struct stat st;

    if (fstat(fd, &st) != 0)
        die("look at", "a file");
    return (uint64_t)st.st_size;
}

/* ---- files ---- */

static struct unsynced_file *add_file(ino_t ino, int fd)
{
    struct unsynced_file *file = allocate(sizeof *file);

    file->ino = ino;
    file->fd = fd;
    file->next = files;
    files = file;
    return file;
}

struct unsynced_file *unsynced_file(int fd, const struct stat *st)
{
    char path[64];

    for (struct unsynced_file *file = files; file != NULL; file = file->next)
        if (file->ino == st->st_ino)
            return file;
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    int own = real_openat(AT_FDCWD, path, O_RDWR | O_CLOEXEC, 0);

    if (own < 0)
        die("open", path);
    return add_file(st->st_ino, own);
}

static void free_change(struct change *change)
{
    free(change->old_bytes);
    free(change->new_bytes);
    free(change);
}

static void add_change(struct unsynced_file *file, struct change change)
{
    struct change *added = allocate(sizeof *added);

    *added = change;
    added->number = ++last_number;
    added->next = NULL;
    added->prev = file->last;
    if (file->last != NULL)
        file->last->next = added;
    else
        file->first = added;
    file->last = added;
}

/* What stands in the place of a write. */
static uint8_t *bytes_at(struct unsynced_file *file, uint64_t offset, uint64_t len,
                         uint64_t *ret_len)
{
    uint64_t size = size_of(file->fd);
    uint64_t there = offset >= size ? 0 : size - offset;
    uint8_t *bytes = allocate(len);

    *ret_len = there < len ? there : len;
    read_at(file->fd, bytes, *ret_len, offset);
    return bytes;
}

static uint64_t bytes_in(const struct iovec *iov, int count)
{
    uint64_t bytes = 0;

    for (int i = 0; i < count; i++)
        bytes += iov[i].iov_len;
    return bytes;
}

ssize_t unsynced_write(struct unsynced_file *file, int fd, const struct iovec *iov, int count,
                       off_t offset, enum unsynced_through through)
{
    struct change change = { .offset = (uint64_t)offset, .through = through };

    change.old_size = size_of(file->fd);
    change.old_bytes = bytes_at(file, change.offset, bytes_in(iov, count), &change.old_len);

    ssize_t written = real_pwritev(fd, iov, count, offset);
    int saved = errno;

    if (written <= 0 || (through == THROUGH && file->first == NULL)) {
        free(change.old_bytes);
    } else {
        change.len = (uint64_t)written;
        if (change.old_len > change.len)
            change.old_len = change.len;
        change.new_size = size_of(file->fd);
        change.new_bytes = allocate(change.len);
        read_at(file->fd, change.new_bytes, change.len, change.offset);
        add_change(file, change);
    }
    errno = saved;
    return written;
}

int unsynced_truncate(struct unsynced_file *file, off_t size)
{
    struct change change = { .is_size = true, .new_size = (uint64_t)size };

    change.old_size = size_of(file->fd);
    change.offset = change.new_size;
    if (change.old_size > change.new_size)
        change.old_bytes =
            bytes_at(file, change.offset, change.old_size - change.new_size, &change.old_len);

    int rc = real_ftruncate(file->fd, size);

    if (rc == 0 && change.old_size != change.new_size)
        add_change(file, change);
    else
        free(change.old_bytes);
    return rc;
}

int unsynced_allocate(struct unsynced_file *file, int mode, off_t offset, off_t len)
{
    struct change change = { .is_size = true, .old_size = size_of(file->fd) };
    int rc = real_fallocate(file->fd, mode, offset, len);

    change.new_size = size_of(file->fd);
    if (rc == 0 && change.new_size != change.old_size)
        add_change(file, change);
    return rc;
}

void unsynced_mapped(struct unsynced_file *file)
{
    file->mapped = true;
}

uint64_t unsynced_last(void)
{
    return last_number;
}

void unsynced_sync(struct unsynced_file *file, uint64_t last)
{
    while (file->first != NULL && file->first->number <= last) {
        struct change *change = file->first;

        file->first = change->next;
        if (file->first != NULL)
            file->first->prev = NULL;
        else
            file->last = NULL;
        free_change(change);
    }
}

/* ---- directories ---- */

char *unsynced_bury(const char *path)
{
    char grave[PATH_MAX];
    struct stat st;

    if (lstat(path, &st) != 0 || S_ISDIR(st.st_mode))
        return NULL;
    snprintf(grave, sizeof grave, "%s/graves/%d-%llu", own_dir, getpid(),
             (unsigned long long)last_number);
    if (link(path, grave) != 0)
        die("link", path);
    return copy_of(grave);
}

static void forget_name(struct name *name)
{
    if (name->grave[0] != '\0')
        real_unlinkat(AT_FDCWD, name->grave, 0);
    free(name->path);
    free(name->to);
    free(name->grave);
    free(name);
}

static void add_name(struct name name)
{
    struct name *added = allocate(sizeof *added);

    *added = name;
    added->next = NULL;
    added->prev = last_name;
    if (last_name != NULL)
        last_name->next = added;
    else
        names = added;
    last_name = added;
}

static void drop_name(struct name *name)
{
    if (name->prev != NULL)
        name->prev->next = name->next;
    else
        names = name->next;
    if (name->next != NULL)
        name->next->prev = name->prev;
    else
        last_name = name->prev;
    forget_name(name);
}

void unsynced_name(enum unsynced_op op, const char *path, const char *to, char *grave_take)
{
    struct name name = { .number = ++last_number, .op = op };
    struct stat st;

    name.path = copy_of(path);
    name.to = copy_of(to != NULL ? to : "");
    name.grave = grave_take != NULL ? grave_take : copy_of("");
    if (lstat(grave_take != NULL ? grave_take : path, &st) == 0)
        name.ino = st.st_ino;
    add_name(name);
}

static bool is_directly_in(const char *path, const char *dir)
{
    const char *slash = strrchr(path, '/');

    return strlen(dir) == (size_t)(slash - path) && strncmp(path, dir, strlen(dir)) == 0;
}

/* A directory that is gone for good: what was in it is, too. */
static void drop_names_in(const char *dir, uint64_t last)
{
    for (struct name *next, *name = names; name != NULL; name = next) {
        next = name->next;
        if (name->number < last && is_directly_in(name->path, dir))
            drop_name(name);
    }
}

void unsynced_sync_names(const char *dir, uint64_t last)
{
    for (const struct name *name = names; name != NULL; name = name->next)
        if (name->op == OP_RMDIR && name->number <= last && is_directly_in(name->path, dir))
            drop_names_in(name->path, name->number);
    drop_names_in(dir, last + 1);
}

/* ---- the cut ---- */

enum mood { MOOD_KEEP, MOOD_LOSE, MOOD_MIXED, MOOD_MIXED_TOO, MOODS };

enum fate { FATE_KEEP, FATE_LOSE, FATE_TEAR, FATE_ZERO, FATES };

static uint64_t random_state;

/* xorshift64*, below a bound. */
static uint64_t draw(uint64_t below)
{
    random_state ^= random_state >> 12;
    random_state ^= random_state << 25;
    random_state ^= random_state >> 27;
    return (random_state * UINT64_C(2685821657736338717) >> 32) % below;
}

static enum fate draw_fate(enum mood mood)
{
    if (mood == MOOD_KEEP)
        return FATE_KEEP;
    return mood == MOOD_LOSE ? FATE_LOSE : (enum fate)draw(FATES);
}

static void take_back(struct unsynced_file *file)
{
    for (const struct change *c = file->last; c != NULL; c = c->prev) {
        if (c->new_size != c->old_size)
            resize(file->fd, c->old_size);
        write_at(file->fd, c->old_bytes, c->old_len, c->offset);
    }
}

/* in_order: from its front, as far as it goes. */
static void land_sector(int fd, uint64_t offset, const uint8_t *bytes, size_t len, enum fate fate,
                        bool in_order)
{
    static const uint8_t zeroes[SECTOR];
    size_t part;

    switch (fate) {
    case FATE_KEEP:
        write_at(fd, bytes, len, offset);
        break;
    case FATE_TEAR:
        part = (size_t)draw(len + 1);
        if (in_order || draw(2) == 0)
            write_at(fd, bytes, part, offset);
        else
            write_at(fd, bytes + part, len - part, offset + part);
        break;
    case FATE_ZERO:
        write_at(fd, zeroes, len, offset);
        break;
    case FATE_LOSE:
    case FATES:
        break;
    }
}

static void land(struct unsynced_file *file, const struct change *change, enum mood mood)
{
    if (change->is_size) {
        if (draw_fate(mood) == FATE_KEEP)
            resize(file->fd, change->new_size);
        return;
    }
    for (uint64_t done = 0; done < change->len;) {
        uint64_t offset = change->offset + done;
        size_t len = SECTOR - (size_t)(offset % SECTOR);

        if (len > change->len - done)
            len = (size_t)(change->len - done);
        land_sector(file->fd, offset, change->new_bytes + done, len,
                    change->through == THROUGH ? FATE_KEEP : draw_fate(mood),
                    change->through == THROUGH_CUT);
        done += len;
    }
}

/* Any sector may be as it is, or of any other moment. */
static void scramble(struct unsynced_file *file, enum mood mood)
{
    uint8_t bytes[SECTOR];

    for (uint64_t at = 0, size = size_of(file->fd); at + SECTOR <= size; at += SECTOR) {
        for (size_t i = 0; i < SECTOR; i++)
            bytes[i] = (uint8_t)draw(256);
        land_sector(file->fd, at, bytes, SECTOR, draw_fate(mood), false);
    }
}

static bool is_or_is_below(const char *path, const char *dir)
{
    size_t len = strlen(dir);

    return len > 0 && strncmp(path, dir, len) == 0 && (path[len] == '\0' || path[len] == '/');
}

static bool meets(const char *a, const char *b)
{
    return is_or_is_below(a, b) || is_or_is_below(b, a);
}

/* Is about a name that an earlier change, which is lost, is about. */
static bool needs_a_lost_one(const struct name *name)
{
    for (const struct name *n = names; n != name; n = n->next)
        if (n->lost && (meets(n->path, name->path) || meets(n->path, name->to) ||
                        meets(n->to, name->path) || meets(n->to, name->to)))
            return true;
    return false;
}

/* With all that is in it: two levels are all there is. */
static void remove_tree(const char *path, int depth)
{
    char inner[PATH_MAX];
    struct dirent *entry;
    DIR *dir = depth > 0 ? opendir(path) : NULL;

    if (dir == NULL) {
        real_unlinkat(AT_FDCWD, path, 0);
        return;
    }
    while ((entry = readdir(dir)) != NULL) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        if ((size_t)snprintf(inner, sizeof inner, "%s/%s", path, entry->d_name) >= sizeof inner)
            die("remove", path);
        remove_tree(inner, depth - 1);
    }
    closedir(dir);
    if (real_unlinkat(AT_FDCWD, path, AT_REMOVEDIR) != 0)
        die("remove", path);
}

static void revive(const struct name *name, const char *path)
{
    if (name->grave[0] != '\0' && link(name->grave, path) != 0)
        die("bring back", path);
}

static void undo_name(const struct name *name)
{
    switch ((enum unsynced_op)name->op) {
    case OP_CREATE:
        real_unlinkat(AT_FDCWD, name->path, 0);
        break;
    case OP_MKDIR:
        remove_tree(name->path, 4);
        break;
    case OP_UNLINK:
        revive(name, name->path);
        break;
    case OP_RMDIR:
        if (real_mkdirat(AT_FDCWD, name->path, 0700) != 0)
            die("bring back", name->path);
        break;
    case OP_RENAME:
        if (real_renameat2(AT_FDCWD, name->to, AT_FDCWD, name->path, 0) != 0)
            die("take back the renaming of", name->path);
        revive(name, name->to);
        break;
    case OP_EXCHANGE:
        if (real_renameat2(AT_FDCWD, name->to, AT_FDCWD, name->path, RENAME_EXCHANGE) != 0)
            die("take back the exchange of", name->path);
        break;
    }
}

static void undo_names(enum mood mood)
{
    for (struct name *name = names; name != NULL; name = name->next)
        name->lost =
            needs_a_lost_one(name) || (mood != MOOD_KEEP && (mood == MOOD_LOSE || draw(2) == 0));
    for (const struct name *name = last_name; name != NULL; name = name->prev)
        if (name->lost)
            undo_name(name);
    while (names != NULL)
        drop_name(names);
}

void unsynced_cut(uint64_t seed)
{
    random_state = seed * UINT64_C(0x9e3779b97f4a7c15) + 1;
    for (int i = 0; i < 8; i++)
        draw(2);

    enum mood mood = (enum mood)draw(MOODS), names_mood = (enum mood)draw(MOODS);

    for (struct unsynced_file *file = files; file != NULL; file = file->next) {
        take_back(file);
        for (const struct change *change = file->first; change != NULL; change = change->next)
            land(file, change, mood);
        if (file->mapped)
            scramble(file, mood);
    }
    undo_names(names_mood);
}

/* ---- from one life to the next ---- */

static FILE *open_state(const char *mode)
{
    char path[PATH_MAX];

    snprintf(path, sizeof path, "%s/state", own_dir);
    return fopen(path, mode);
}

static void put(FILE *out, const void *data, size_t len)
{
    if (len > 0 && fwrite(data, len, 1, out) != 1)
        die("write", "state");
}

static void put_text(FILE *out, const char *text)
{
    uint64_t size = strlen(text) + 1;

    put(out, &size, sizeof size);
    put(out, text, size);
}

static bool get(FILE *in, void *data, size_t len)
{
    return len == 0 || fread(data, len, 1, in) == 1;
}

static void *get_bytes(FILE *in, uint64_t len)
{
    void *bytes = allocate(len);

    if (!get(in, bytes, len))
        die("read", "state");
    return bytes;
}

static char *get_text(FILE *in)
{
    uint64_t size;

    if (!get(in, &size, sizeof size))
        die("read", "state");
    return get_bytes(in, size);
}

/* Where the file is now: by a name, or in a grave; false: nowhere any more. */
static bool find_file(const struct unsynced_file *file, char ret[PATH_MAX])
{
    char link[64];
    struct stat st;

    for (const struct name *n = names; n != NULL; n = n->next)
        if (n->grave[0] != '\0' && lstat(n->grave, &st) == 0 && st.st_ino == file->ino) {
            snprintf(ret, PATH_MAX, "%s", n->grave);
            return true;
        }
    snprintf(link, sizeof link, "/proc/self/fd/%d", file->fd);
    ssize_t len = readlink(link, ret, PATH_MAX - 1);

    ret[len > 0 ? len : 0] = '\0';
    return lstat(ret, &st) == 0 && st.st_ino == file->ino;
}

static void save_file(FILE *out, const struct unsynced_file *file)
{
    char path[PATH_MAX];

    if ((file->first == NULL && !file->mapped) || !find_file(file, path))
        return;
    put_text(out, path);
    for (const struct change *c = file->first; c != NULL; c = c->next) {
        put(out, c, sizeof *c);
        put(out, c->old_bytes, c->old_len);
        put(out, c->new_bytes, c->is_size ? 0 : c->len);
    }
    put(out, &(struct change){ 0 }, sizeof(struct change)); /* no change has the number 0 */
}

void unsynced_save(void)
{
    FILE *out = open_state("w");

    if (out == NULL)
        die("write", "state");
    for (const struct unsynced_file *file = files; file != NULL; file = file->next)
        save_file(out, file);
    put_text(out, "");
    for (const struct name *n = names; n != NULL; n = n->next) {
        put(out, n, sizeof *n);
        put_text(out, n->path);
        put_text(out, n->to);
        put_text(out, n->grave);
    }
    if (fclose(out) != 0)
        die("write", "state");
}

static void load_file(FILE *in, const char *path)
{
    struct change change;
    struct stat st;
    int fd = real_openat(AT_FDCWD, path, O_RDWR | O_CLOEXEC, 0);

    if (fd < 0 || fstat(fd, &st) != 0)
        die("open", path);
    struct unsynced_file *file = add_file(st.st_ino, fd);

    while (get(in, &change, sizeof change) && change.number != 0) {
        change.old_bytes = get_bytes(in, change.old_len);
        change.new_bytes = get_bytes(in, change.is_size ? 0 : change.len);
        add_change(file, change);
    }
}

static void load(FILE *in)
{
    struct name name;
    char *path;

    while ((path = get_text(in))[0] != '\0') {
        load_file(in, path);
        free(path);
    }
    free(path);
    while (get(in, &name, sizeof name)) {
        name.path = get_text(in);
        name.to = get_text(in);
        name.grave = get_text(in);
        name.number = ++last_number;
        add_name(name);
    }
}

void unsynced_init(const char *own)
{
    char graves[PATH_MAX], state[PATH_MAX];

    snprintf(own_dir, sizeof own_dir, "%s", own);
    snprintf(graves, sizeof graves, "%s/graves", own_dir);
    snprintf(state, sizeof state, "%s/state", own_dir);

    FILE *in = open_state("r");

    if (in != NULL) {
        load(in);
        fclose(in);
        real_unlinkat(AT_FDCWD, state, 0);
    } else {
        remove_tree(graves, 2);
    }
    if (real_mkdirat(AT_FDCWD, graves, 0700) != 0 && errno != EEXIST)
        die("make", graves);
}
