/* keel-wal: lists, checks and explains a log. It reads, and never writes: what a node's start would
 * make of a log is found out by that very code, on a disk whose changes stay in memory. */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "check.h"
#include "data_dir.h"
#include "err.h"
#include "keel_wal.h"
#include "mvcc/store.h"
#include "store_look.h"
#include "wal_overlay.h"

enum { EXIT_SOUND = 0, EXIT_TORN = 1, EXIT_DAMAGED = 2, EXIT_TROUBLE = 3 };

/* What there is to look at. */
struct place {
    const char *dir; /* as given */
    const char *wal_option;
    char *wal_dir;
    int data_dir_fd; /* -1: it is not known */
    bool live;       /* a node has the data directory */
    bool has_identity;
    struct identity identity;
    struct disk *disk;
};

__attribute__((format(printf, 1, 2))) static int trouble(const char *fmt, ...)
{
    va_list args;

    fputs("keel-wal: ", stderr);
    va_start(args, fmt);
    vfprintf(stderr, fmt, args);
    va_end(args);
    fputc('\n', stderr);
    return EXIT_TROUBLE;
}

static int finish_output(int code)
{
    if (fflush(stdout) == 0 && ferror(stdout) == 0)
        return code;
    return trouble("cannot write the answer: %s", strerror(errno));
}

/* ---- finding the log ---- */

static char *join(const char *dir, const char *name)
{
    struct keel_text text = { 0 };

    keel_text_printf(&text, "%s/%s", dir, name);
    return text.data;
}

static bool is_there(const char *dir, const char *name)
{
    char *path = join(dir, name);
    struct stat st;
    bool there = stat(path, &st) == 0;

    free(path);
    return there;
}

static bool is_same(const char *a, const char *b)
{
    struct stat x, y;

    return stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

/* For the wal/ of a data directory, that directory; else NULL. */
static char *parent_data_dir(const char *dir)
{
    char *parent = join(dir, "..");
    char *again = join(parent, "wal");
    bool known = is_there(parent, "identity") && is_same(dir, again);

    free(again);
    if (known)
        return parent;
    free(parent);
    return NULL;
}

/* A shared lock for a moment: a node that starts just now tries again. */
static bool is_locked(int fd)
{
    if (flock(fd, LOCK_SH | LOCK_NB) != 0)
        return errno == EWOULDBLOCK;
    flock(fd, LOCK_UN);
    return false;
}

static int open_data_dir(struct place *p, const char *data_dir)
{
    char why[512];

    p->data_dir_fd = open(data_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (p->data_dir_fd < 0)
        return trouble("cannot open %s: %s", data_dir, strerror(errno));
    p->live = is_locked(p->data_dir_fd);
    int err = identity_load(p->data_dir_fd, &p->identity, why, sizeof why);

    p->has_identity = err == 0;
    return err == 0 || err == KEEL_E_NOTFOUND ? 0 : trouble("%s: %s", data_dir, why);
}

/* DIR is a data directory, or a log's. */
static int find_dirs(struct place *p)
{
    bool is_data_dir = is_there(p->dir, "identity") || is_there(p->dir, "store");
    char *data_dir = is_data_dir ? keel_strdup(p->dir) : parent_data_dir(p->dir);
    int code = data_dir != NULL ? open_data_dir(p, data_dir) : 0;

    free(data_dir);
    if (code != 0)
        return code;
    if (p->wal_option != NULL)
        p->wal_dir = keel_strdup(p->wal_option);
    else if (is_data_dir || is_there(p->dir, "wal"))
        p->wal_dir = join(p->dir, "wal");
    else
        p->wal_dir = keel_strdup(p->dir);
    return 0;
}

static int open_place(struct place *p)
{
    int sys_err, code = find_dirs(p);

    if (code != 0)
        return code;
    if (wal_overlay_open(p->wal_dir, &p->disk, &sys_err) != 0)
        return trouble("cannot open the log in %s: %s%s", p->wal_dir, strerror(sys_err),
                       sys_err == ENOENT && p->data_dir_fd >= 0
                           ? " (a node with --wal-dir has it elsewhere: give that to keel-wal, too)"
                           : "");
    if (p->live)
        fputs("keel-wal: a node is running with this log: what is written meanwhile may look "
              "torn, or be missing\n",
              stderr);
    return 0;
}

static void close_place(struct place *p)
{
    if (p->disk != NULL)
        p->disk->ops->free(p->disk);
    if (p->data_dir_fd >= 0)
        close(p->data_dir_fd);
    free(p->wal_dir);
}

/* ---- list ---- */

struct listing {
    uint64_t lowest, highest;        /* entries of the segment at hand; 0: none */
    uint64_t last;                   /* entry, or reset, of the whole log */
    struct wal_segment_header first; /* header of the first segment that has one */
    bool has_first, quiet;
};

static int list_begin(void *arg, const struct walk_segment *s)
{
    struct listing *l = arg;

    l->lowest = l->highest = 0;
    if (s->state == WALK_SOUND && !l->has_first) {
        l->first = s->header;
        l->has_first = true;
    }
    return 0;
}

static int list_record(void *arg, const struct walk_segment *s, uint64_t offset,
                       const struct wal_record *record)
{
    struct listing *l = arg;

    (void)s;
    (void)offset;
    if (record->kind == WAL_ENTRY || record->kind == WAL_RESET)
        l->last = record->index;
    if (record->kind != WAL_ENTRY)
        return 0;
    if (l->lowest == 0 || record->index < l->lowest)
        l->lowest = record->index;
    if (record->index > l->highest)
        l->highest = record->index;
    return 0;
}

static const char *note_of(const struct walk_segment *s)
{
    switch (s->state) {
    case WALK_READY:
        return "made ready, not in use";
    case WALK_BAD:
        return "its header does not check";
    case WALK_NEWER:
        return "written by a newer keelfs";
    case WALK_SOUND:
    default:
        break;
    }
    if (!s->clean_end)
        return "something follows its last record: see check";
    return s->header.recycled ? "recycled" : "";
}

static int list_end(void *arg, const struct walk_segment *s)
{
    struct listing *l = arg;
    char entries[48] = "-", first[24] = "-";

    if (l->quiet)
        return 0;
    if (l->highest != 0)
        snprintf(entries, sizeof entries, "%" PRIu64 "-%" PRIu64, l->lowest, l->highest);
    if (s->state == WALK_SOUND)
        snprintf(first, sizeof first, "%" PRIu64, s->header.first_sequence);
    printf("%-20s %6" PRIu64 " %10s %10" PRIu64 " %-21s %10" PRIu64 " %10" PRIu64 "%s%s\n", s->name,
           s->epoch, first, s->records, entries, s->used, s->size, *note_of(s) != '\0' ? "  " : "",
           note_of(s));
    return 0;
}

static int walk_listing(const struct place *p, struct listing *listing)
{
    const struct walk walk = {
        .disk = p->disk,
        .arg = listing,
        .begin = list_begin,
        .record = list_record,
        .end = list_end,
    };

    return walk_all(&walk);
}

static int no_log(const struct place *p)
{
    return trouble("there is no log in %s", p->wal_dir);
}

static int cannot_read(const struct place *p, int err)
{
    return trouble("cannot read the log in %s: %s", p->wal_dir, keel_strerror(err));
}

static bool has_segments(const struct place *p)
{
    uint64_t *epochs;
    size_t count = 0;

    walk_list(p->disk, &epochs, &count);
    free(epochs);
    return count > 0;
}

static int run_list(struct place *p)
{
    struct listing listing = { 0 };

    if (!has_segments(p))
        return no_log(p);
    printf("%-20s %6s %10s %10s %-21s %10s %10s  NOTE\n", "FILE", "EPOCH", "SEQUENCE", "RECORDS",
           "ENTRIES", "USED", "SIZE");
    int err = walk_listing(p, &listing);

    return err != 0 ? cannot_read(p, err) : finish_output(EXIT_SUCCESS);
}

/* ---- check ---- */

static int verdict(const struct place *p, int code, const char *what, const char *why)
{
    printf("%s: %s: %s\n", p->wal_dir, what, why);
    return finish_output(code);
}

/* The index that the store has applied, and to what the log is to be reset, if it is. */
static int read_store(const struct place *p, struct wal_options *options, char *why,
                      size_t why_size)
{
    struct store_state state;
    struct kv *kv;
    int err = store_look(p->data_dir_fd, EXIT_DAMAGED, &kv, &options->install_index,
                         &options->install_term, why, why_size);

    if (err != 0)
        return err;
    struct kv_read *read = kv->ops->read_begin(kv);

    err = store_state_read(kv, read, &state, why, why_size);
    kv->ops->read_end(read);
    kv->ops->close(kv);
    options->store_applied = err == 0 ? state.applied_index : 0;
    return err == KEEL_E_NOTFOUND ? 0 : err; /* the store of a node that has not written it yet */
}

/* Without a data directory the log is judged for itself: as one of which the store has all. */
static int ask_around(const struct place *p, struct wal_options *options, char *why,
                      size_t why_size)
{
    struct listing listing = { .quiet = true };
    int err = walk_listing(p, &listing);

    if (err != 0) {
        snprintf(why, why_size, "it cannot be read: %s", keel_strerror(err));
        return err;
    }
    options->cluster_id = p->has_identity ? p->identity.cluster_id : listing.first.cluster_id;
    options->node_id = p->has_identity ? p->identity.id : listing.first.node_id;
    options->store_applied = listing.last;
    if (p->has_identity)
        return read_store(p, options, why, why_size);
    fputs("keel-wal: without the data directory, the store is not compared with the log\n", stderr);
    return 0;
}

static int judge(const struct place *p, const struct wal_options *options,
                 const struct wal_recovery *recovery)
{
    char text[256];

    if (recovery->fresh && p->has_identity)
        return verdict(p, EXIT_DAMAGED, "a node would not start",
                       "the log is gone: what this node has promised is in it");
    if (recovery->tail_cut) {
        snprintf(text, sizeof text,
                 "%s at offset %" PRIu64
                 " (harmless: nobody was told that it was there; a start cuts it off)",
                 recovery->cut_file, recovery->cut_offset);
        return verdict(p, EXIT_TORN, "the last write is torn", text);
    }
    snprintf(text, sizeof text,
             "entries up to %" PRIu64 ", readable from %" PRIu64 "; term %" PRIu64
             ", commit %" PRIu64,
             recovery->last_index, recovery->first_index, recovery->hard_state.term,
             recovery->hard_state.commit);
    if (p->has_identity)
        snprintf(text + strlen(text), sizeof text - strlen(text), ", applied %" PRIu64,
                 options->store_applied);
    return verdict(p, EXIT_SOUND, "sound", text);
}

static int run_check(struct place *p)
{
    struct wal_options options = { 0 };
    struct wal_recovery recovery = { 0 };
    struct wal *wal;
    char why[1024];

    if (!has_segments(p) && !p->has_identity)
        return no_log(p);
    int err = ask_around(p, &options, why, sizeof why);

    if (err == 0)
        err = wal_open(p->disk, &options, &wal, &recovery, why, sizeof why);
    if (err == KEEL_E_IO)
        return trouble("%s: %s", p->wal_dir, why);
    if (err != 0)
        return verdict(p, EXIT_DAMAGED, "a node would not start", why);
    int code = judge(p, &options, &recovery);

    wal_recovery_free(&recovery);
    wal_close(wal);
    return code;
}

/* ---- the command line ---- */

static void print_help(void)
{
    puts(
        "usage: keel-wal list DIR\n"
        "       keel-wal check DIR\n"
        "       keel-wal dump DIR [--from INDEX] [--count N] [--segment FILE]\n"
        "\n"
        "Looks at the log of a node, and changes nothing. DIR is a data directory, or the wal/ in\n"
        "it. A log that a node is using may be looked at too.\n"
        "\n"
        "  list   the segments: epoch, first sequence, records, entries, bytes in use and in all\n"
        "  check  what a start of the node would say: whether the log is sound, ends in a torn\n"
        "         write, or is damaged, and where; and whether the store goes with it\n"
        "  dump   one line for each record: its offset, kind and fields, and what it says. Of\n"
        "         what a command says, numbers that are 0 are left out\n"
        "\n"
        "options:\n"
        "  --wal-dir DIR   where the log is, if the node is started with that option\n"
        "  --from INDEX    begin with the first entry that has this index, or a higher one\n"
        "  --count N       so many records\n"
        "  --segment FILE  only this segment\n"
        "  --help          print this\n"
        "\n"
        "exit status: 0 done, and of check: sound. Of check: 1 a torn tail, which is harmless and\n"
        "will be cut off; 2 a node would not start with it. 3 wrong usage, or it cannot be read");
}

static int wrong_usage(const char *text)
{
    fprintf(stderr, "keel-wal: %s; see keel-wal --help\n", text);
    return EXIT_TROUBLE;
}

static bool parse_number(const char *text, uint64_t *ret)
{
    char *end;

    errno = 0;
    *ret = strtoull(text, &end, 10);
    return text[0] >= '0' && text[0] <= '9' && *end == '\0' && errno == 0 && *ret > 0;
}

/* -1: go on; else the exit code. */
static int parse_options(int argc, char **argv, struct place *place, struct dump_options *dump)
{
    static const struct option options[] = {
        { "wal-dir", required_argument, NULL, 'w' }, { "from", required_argument, NULL, 'f' },
        { "count", required_argument, NULL, 'c' },   { "segment", required_argument, NULL, 's' },
        { "help", no_argument, NULL, 'h' },          { NULL, 0, NULL, 0 }
    };
    int c;

    while ((c = getopt_long(argc, argv, "h", options, NULL)) != -1) {
        switch (c) {
        case 'w':
            place->wal_option = optarg;
            break;
        case 's':
            dump->segment = optarg;
            break;
        case 'f':
            if (!parse_number(optarg, &dump->from))
                return wrong_usage("--from takes the index of an entry, from 1");
            break;
        case 'c':
            if (!parse_number(optarg, &dump->count))
                return wrong_usage("--count takes a number, from 1");
            break;
        case 'h':
            print_help();
            return finish_output(EXIT_SUCCESS);
        default: /* getopt has said what is wrong */
            fputs("keel-wal: see keel-wal --help\n", stderr);
            return EXIT_TROUBLE;
        }
    }
    return -1;
}

static int run_dump(struct place *p, const struct dump_options *options)
{
    if (!has_segments(p))
        return no_log(p);
    int err = dump_log(p->disk, options);

    if (err == KEEL_E_NOTFOUND && options->segment != NULL)
        return trouble("there is no segment %s in %s; see keel-wal list", options->segment,
                       p->wal_dir);
    return err != 0 ? cannot_read(p, err) : finish_output(EXIT_SUCCESS);
}

static int run(const char *command, struct place *place, const struct dump_options *dump)
{
    bool is_dump = strcmp(command, "dump") == 0;

    if (!is_dump && (dump->from != 0 || dump->count != 0 || dump->segment != NULL))
        return wrong_usage("--from, --count and --segment are for dump");
    if (!is_dump && strcmp(command, "list") != 0 && strcmp(command, "check") != 0)
        return wrong_usage("the commands are list, check and dump");
    int code = open_place(place);

    if (code != 0)
        return code;
    if (is_dump)
        return run_dump(place, dump);
    return strcmp(command, "list") == 0 ? run_list(place) : run_check(place);
}

int main(int argc, char **argv)
{
    struct place place = { .data_dir_fd = -1 };
    struct dump_options dump = { 0 };
    int code = parse_options(argc, argv, &place, &dump);

    if (code >= 0)
        return code;
    if (argc - optind != 2)
        return wrong_usage("a command and a directory are wanted");
    place.dir = argv[optind + 1];
    code = run(argv[optind], &place, &dump);
    close_place(&place);
    return code;
}
