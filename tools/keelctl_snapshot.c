/* keelctl snapshot: taking a snapshot of a running node through its mount, or of one that is
 * stopped out of its data directory; what is in a snapshot file; and a new cluster out of one. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <jansson.h>

#include "check.h"
#include "data_dir.h"
#include "err.h"
#include "keelctl.h"
#include "mvcc/mvcc.h"
#include "snapshot_restore.h"
#include "store_look.h"

enum { PIECE_BYTES = 256 << 10, BAR_CELLS = 40, COPY_BYTES_A_SECOND = 8 << 20 };

static int wrong_usage(void)
{
    fputs("usage: keelctl snapshot save FILE [--data-dir DIR]\n"
          "       keelctl snapshot status FILE\n"
          "       keelctl snapshot restore FILE --data-dir DIR --name NAME\n"
          "                                --initial-cluster NAME=HOST:PORT,…\n"
          "                                [--cluster-token TOKEN] [--bump-revision N] [--wal-dir "
          "DIR]\n",
          stderr);
    return EXIT_USAGE;
}

static int trouble(const char *what, const char *why)
{
    fprintf(stderr, "keelctl: %s: %s\n", what, why);
    return EXIT_TROUBLE;
}

/* ---- what is in a file ---- */

/* One for each record, in the order of revisions: which key, by the hash of its path, and whether
 * it is there from then on. */
struct key_seen {
    uint64_t path;
    uint64_t order; /* twice its number, one more if it is there */
};

struct keys {
    struct key_seen *seen;
    size_t count, capacity;
};

static int note_keys(void *arg, struct kv_batch *batch_take)
{
    struct keys *keys = arg;
    int err = 0;

    for (size_t i = 0; i < batch_take->count && err == 0; i++) {
        const struct kv_write *write = &batch_take->writes[i];
        struct mvcc_record record;
        struct keel_slice path;

        if (write->table != KV_RECORDS)
            continue;
        err = mvcc_record_decode(write->bytes, &record, &path);
        if (keys->count == keys->capacity) {
            keys->capacity = keys->capacity ? keys->capacity * 2 : 1024;
            keys->seen = keel_realloc(keys->seen, keys->capacity * sizeof *keys->seen);
        }
        if (err == 0) {
            keys->seen[keys->count] =
                (struct key_seen){ keel_hash64(path), 2 * keys->count + !record.tombstone };
            keys->count++;
        }
    }
    kv_batch_free(batch_take);
    return err;
}

static int compare_seen(const void *a, const void *b)
{
    const struct key_seen *x = a, *y = b;

    if (x->path != y->path)
        return x->path < y->path ? -1 : 1;
    return (x->order > y->order) - (x->order < y->order);
}

/* The keys whose last record is no tombstone. */
static uint64_t count_live(struct keys *keys)
{
    uint64_t live = 0;

    if (keys->count > 0)
        qsort(keys->seen, keys->count, sizeof *keys->seen, compare_seen);
    for (size_t i = 0; i < keys->count; i++)
        if (i + 1 == keys->count || keys->seen[i].path != keys->seen[i + 1].path)
            live += keys->seen[i].order & 1;
    return live;
}

static void print_status_json(const struct snapshot_info *info, uint64_t keys)
{
    char cluster[17], hash[33];

    snprintf(cluster, sizeof cluster, "%016" PRIx64, info->cluster_id);
    snprintf(hash, sizeof hash, "%016" PRIx64 "%016" PRIx64, info->hash.high, info->hash.low);
    json_t *object = json_pack(
        "{s:s, s:I, s:I, s:I, s:I, s:s, s:I, s:I, s:I, s:I}", "cluster_id", cluster, "revision",
        (json_int_t)info->revision, "compact_revision", (json_int_t)info->compact_revision, "index",
        (json_int_t)info->index, "term", (json_int_t)info->term, "hash", hash, "keys",
        (json_int_t)keys, "revisions_kept", (json_int_t)info->entries[KV_RECORDS], "directories",
        (json_int_t)info->entries[KV_DIRS], "bytes", (json_int_t)info->bytes);

    json_dumpf(object, stdout, JSON_INDENT(2) | JSON_PRESERVE_ORDER);
    putchar('\n');
    json_decref(object);
}

static void print_status(const struct snapshot_info *info, uint64_t keys)
{
    printf("cluster_id: %016" PRIx64 "\nrevision: %" PRIu64 "\ncompact_revision: %" PRIu64 "\n",
           info->cluster_id, info->revision, info->compact_revision);
    printf("index: %" PRIu64 "\nterm: %" PRIu64 "\nhash: %016" PRIx64 "%016" PRIx64 "\n",
           info->index, info->term, info->hash.high, info->hash.low);
    printf("keys: %" PRIu64 "\nrevisions_kept: %" PRIu64 "\ndirectories: %" PRIu64
           "\nbytes: %" PRIu64 "\n",
           keys, info->entries[KV_RECORDS], info->entries[KV_DIRS], info->bytes);
}

static int status(const struct ctl *ctl, const char *file)
{
    struct keys keys = { 0 };
    struct snapshot_info info;
    char why[512];
    int fd = open(file, O_RDONLY | O_CLOEXEC);

    if (fd < 0)
        return trouble(file, strerror(errno));
    int err = snapshot_file_read(fd, note_keys, &keys, &info, why, sizeof why);

    close(fd);
    if (err == 0) {
        uint64_t live = count_live(&keys);

        if (ctl->json)
            print_status_json(&info, live);
        else
            print_status(&info, live);
    }
    free(keys.seen);
    return err != 0 ? trouble(file, why) : ctl_finish_output();
}

/* ---- restore ---- */

static int restore(const struct ctl *ctl, const char *file)
{
    const struct ctl_snapshot *s = &ctl->snapshot;
    const struct restore_options options = {
        .file = file,
        .data_dir = s->data_dir,
        .wal_dir = s->wal_dir,
        .name = s->name,
        .initial_cluster = s->initial_cluster,
        .cluster_token = s->cluster_token,
        .bump_revision = s->bump_revision,
    };
    struct snapshot_info info;
    char why[1024];

    if (s->data_dir == NULL || s->name == NULL || s->initial_cluster == NULL)
        return wrong_usage();
    int err = snapshot_restore(&options, &info, why, sizeof why);

    if (err != 0) {
        trouble(file, why);
        return err == KEEL_E_INVALID ? EXIT_USAGE : EXIT_TROUBLE;
    }
    printf("%s is the data directory of %s, with revision %" PRIu64 "; do the same for each of the "
           "other members, then start them all\n",
           s->data_dir, s->name, info.revision + s->bump_revision);
    return ctl_finish_output();
}

/* ---- save ---- */

/* FILE.tmp, which becomes FILE once all of it is there and good. */
struct saving {
    const char *file;
    struct keel_text temporary;
    int fd;
    uint64_t written, expected; /* bytes; expected 0: not known */
    unsigned percent;           /* shown last */
    struct snapshot_reader *reader;
    struct snapshot_info info;
    char why[512];
};

static void show_progress(struct saving *s)
{
    unsigned percent;

    if (s->expected == 0 || isatty(STDERR_FILENO) == 0)
        return;
    percent = s->written >= s->expected ? 100 : (unsigned)(s->written * 100 / s->expected);
    if (percent == s->percent)
        return;
    s->percent = percent;
    fprintf(stderr, "\r[%-*.*s] %3u%%", BAR_CELLS, (int)(percent * BAR_CELLS / 100),
            "########################################", percent);
}

static void end_progress(const struct saving *s)
{
    if (s->percent != 0)
        fputs("\r\033[K", stderr);
}

static int saving_begin(struct saving *s, const char *file)
{
    *s = (struct saving){ .file = file };
    keel_text_printf(&s->temporary, "%s.tmp", file);
    s->fd = open(s->temporary.data, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (s->fd < 0) {
        trouble(s->temporary.data, strerror(errno));
        keel_text_free(&s->temporary);
        return EXIT_TROUBLE;
    }
    s->reader = snapshot_reader_new(NULL, NULL);
    return 0;
}

/* 0, or what is wrong is in s->why. */
static int saving_add(struct saving *s, struct keel_slice bytes)
{
    int err = snapshot_reader_feed(s->reader, bytes, s->why, sizeof s->why);

    while (err == 0 && bytes.len > 0) {
        ssize_t written = write(s->fd, bytes.data, bytes.len);

        if (written < 0 && errno == EINTR)
            continue;
        if (written < 0) {
            snprintf(s->why, sizeof s->why, "cannot write %s: %s", s->temporary.data,
                     strerror(errno));
            return KEEL_E_IO;
        }
        s->written += (uint64_t)written;
        bytes = keel_slice_of(bytes.data + written, bytes.len - (size_t)written);
    }
    show_progress(s);
    return err;
}

/* The name is made durable as well. */
static int sync_parent(const char *file)
{
    char *copy = keel_strdup(file);
    char *slash = strrchr(copy, '/');

    if (slash != NULL)
        slash[slash == copy ? 1 : 0] = '\0';
    int fd = open(slash != NULL ? copy : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int rc = fd < 0 || fsync(fd) != 0 ? -1 : 0;

    if (fd >= 0)
        close(fd);
    free(copy);
    return rc;
}

static int name_it(struct saving *s)
{
    int err = snapshot_reader_finish(s->reader, &s->info, s->why, sizeof s->why);

    if (err != 0)
        return err;
    if (fsync(s->fd) == 0 && rename(s->temporary.data, s->file) == 0 && sync_parent(s->file) == 0)
        return 0;
    snprintf(s->why, sizeof s->why, "cannot write it: %s", strerror(errno));
    return KEEL_E_IO;
}

/* err: of what came before; an exit code. */
static int saving_end(struct saving *s, int err)
{
    if (err == 0)
        err = name_it(s);
    end_progress(s);
    if (err != 0) {
        unlink(s->temporary.data);
        trouble(s->file, s->why);
    } else {
        printf("%s: revision %" PRIu64 ", as of entry %" PRIu64 ", %" PRIu64 " bytes\n", s->file,
               s->info.revision, s->info.index, s->info.bytes);
    }
    close(s->fd);
    snapshot_reader_free(s->reader);
    keel_text_free(&s->temporary);
    return err != 0 ? EXIT_TROUBLE : ctl_finish_output();
}

/* Why the node's file cannot be read. */
static const char *mount_reason(int err)
{
    switch (err) {
    case EBUSY:
        return "another snapshot is being read: try again";
    case EACCES:
    case EPERM:
        return "only root may do that";
    case ENOENT:
    case ENOTDIR:
        return "this is not the mount point of a running keelfs node that gives snapshots";
    case ENOTCONN:
    case ECONNABORTED:
        return "the node behind this mount has ended; --data-dir DIR takes the snapshot out of its "
               "data directory";
    default:
        return strerror(err);
    }
}

static int copy_from_mount(struct saving *s, int fd)
{
    uint8_t *piece = keel_malloc(PIECE_BYTES);
    ssize_t len = 1;
    int err = 0;

    while (err == 0 && len != 0) {
        ctl_watchdog_rearm();
        len = read(fd, piece, PIECE_BYTES);
        if (len < 0 && errno == EINTR)
            continue;
        if (len < 0) {
            snprintf(s->why, sizeof s->why, "cannot read the node's snapshot: %s",
                     mount_reason(errno));
            err = KEEL_E_IO;
        } else {
            err = saving_add(s, keel_slice_of(piece, (size_t)len));
        }
    }
    free(piece);
    return err;
}

/* Opening it takes as long as the node takes to copy its store. */
static void allow_for_copy(const struct ctl *ctl)
{
    struct statvfs space;

    if (statvfs(ctl->mount, &space) == 0)
        ctl_watchdog_extend(
            (unsigned)((space.f_blocks - space.f_bfree) * space.f_frsize / COPY_BYTES_A_SECOND));
}

static int save_from_mount(const struct ctl *ctl, const char *file)
{
    struct keel_text path = { 0 };
    struct saving s;
    struct stat st;

    allow_for_copy(ctl);
    keel_text_printf(&path, "%s/@keel/snapshot", ctl->mount);
    int fd = open(path.data, O_RDONLY | O_CLOEXEC), err = errno;

    if (fd < 0) {
        trouble(path.data, mount_reason(err));
        keel_text_free(&path);
        return err == EBUSY ? EXIT_AGAIN : EXIT_TROUBLE;
    }
    keel_text_free(&path);
    int code = saving_begin(&s, file);

    if (code == 0) {
        if (fstat(fd, &st) == 0 && st.st_size > 0)
            s.expected = (uint64_t)st.st_size;
        code = saving_end(&s, copy_from_mount(&s, fd));
    }
    close(fd);
    return code;
}

static int copy_from_kv(struct saving *s, struct kv *kv, uint64_t cluster_id)
{
    struct snapshot_writer *writer;
    struct keel_slice piece = { 0 };
    uint64_t used;
    int err = snapshot_writer_new(kv, cluster_id, &writer);

    kv->ops->sizes(kv, &used, &s->expected);
    if (err == 0) {
        do {
            err = snapshot_writer_next(writer, &piece);
            if (err == 0)
                err = saving_add(s, piece);
        } while (err == 0 && piece.len > 0);
        snapshot_writer_free(writer);
    }
    if (err != 0 && s->why[0] == '\0')
        snprintf(s->why, sizeof s->why, "cannot read the store: %s", keel_strerror(err));
    return err;
}

/* As of the node's last checkpoint: what is in its log only is not there. */
static int copy_from_dir(struct saving *s, int dir_fd)
{
    struct identity identity;
    uint64_t index, term;
    struct kv *kv;
    int err = identity_load(dir_fd, &identity, s->why, sizeof s->why);

    if (err == KEEL_E_NOTFOUND)
        snprintf(s->why, sizeof s->why, "the data directory is that of no node");
    if (err == 0)
        err = store_look(dir_fd, EXIT_TROUBLE, &kv, &index, &term, s->why, sizeof s->why);
    if (err != 0)
        return err;
    err = copy_from_kv(s, kv, identity.cluster_id);
    kv->ops->close(kv);
    return err;
}

static int save_from_dir(const struct ctl *ctl, const char *file)
{
    struct saving s;
    char why[512];
    int dir_fd;

    int err = data_dir_lock(ctl->snapshot.data_dir, false, &dir_fd, why, sizeof why);

    if (err == KEEL_E_BUSY)
        return trouble(ctl->snapshot.data_dir,
                       "a node is running with it: save through its mount, or stop it first");
    if (err != 0)
        return trouble(file, why);
    int code = saving_begin(&s, file);

    if (code == 0)
        code = saving_end(&s, copy_from_dir(&s, dir_fd));
    close(dir_fd);
    return code;
}

/* ---- the command ---- */

static bool parse_bump(const char *text, uint64_t *ret)
{
    char *end;

    errno = 0;
    *ret = strtoull(text, &end, 10);
    return text[0] >= '0' && text[0] <= '9' && *end == '\0' && errno == 0;
}

int snapshot_option(struct ctl *ctl, int option, const char *value)
{
    struct ctl_snapshot *s = &ctl->snapshot;

    s->given = true;
    switch (option) {
    case SNAPSHOT_DATA_DIR:
        s->data_dir = value;
        break;
    case SNAPSHOT_WAL_DIR:
        s->wal_dir = value;
        break;
    case SNAPSHOT_NAME:
        s->name = value;
        break;
    case SNAPSHOT_INITIAL_CLUSTER:
        s->initial_cluster = value;
        break;
    case SNAPSHOT_CLUSTER_TOKEN:
        s->cluster_token = value;
        break;
    case SNAPSHOT_BUMP_REVISION:
        if (parse_bump(value, &s->bump_revision))
            break;
        fprintf(stderr, "keelctl: --bump-revision takes a number, not '%s'\n", value);
        return EXIT_USAGE;
    default:
        return EXIT_USAGE;
    }
    return 0;
}

static bool only_data_dir(const struct ctl_snapshot *s)
{
    return s->wal_dir == NULL && s->name == NULL && s->initial_cluster == NULL &&
           s->cluster_token == NULL && s->bump_revision == 0;
}

bool snapshot_needs_mount(const struct ctl *ctl, char *const *operands)
{
    return operands[0] != NULL && strcmp(operands[0], "save") == 0 &&
           ctl->snapshot.data_dir == NULL;
}

int run_snapshot(const struct ctl *ctl, char **operands)
{
    const char *verb = operands[0], *file = operands[1];

    if (strcmp(verb, "status") == 0 && !ctl->snapshot.given)
        return status(ctl, file);
    if (strcmp(verb, "restore") == 0)
        return restore(ctl, file);
    if (strcmp(verb, "save") != 0 || !only_data_dir(&ctl->snapshot))
        return wrong_usage();
    return ctl->snapshot.data_dir != NULL ? save_from_dir(ctl, file) : save_from_mount(ctl, file);
}
