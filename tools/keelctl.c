/* keelctl: asks a running node, through nothing but its mount: the files of /@keel and the views of
 * names. What a node may be asked, and how it answers, is decided there; this only finds the mount,
 * prints, and turns the lines into JSON. It never hangs: a watchdog thread ends it when the mount
 * does not answer. What changes the members is in keelctl_members.c, settings and history in
 * keelctl_settings.c, backups in keelctl_snapshot.c.
 */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <jansson.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "check.h"
#include "keelctl.h"

enum { TIMEOUT_DEFAULT_S = 10, TIMEOUT_MAX_S = 3600 };

struct ctl_command {
    const char *name, *arguments, *help;
    int operands_min, operands_max;
    int (*run)(const struct ctl *ctl, char **operands);
};

/* ---- the watchdog ---- */

static unsigned watchdog_seconds = TIMEOUT_DEFAULT_S;
static bool watchdog_told;       /* by --timeout */
static atomic_bool watchdog_off; /* all is read: whoever reads our output may take their time */
static atomic_long watchdog_at_s;

static long now_s(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (long)now.tv_sec;
}

void ctl_watchdog_rearm(void)
{
    atomic_store(&watchdog_at_s, now_s() + (long)watchdog_seconds);
}

void ctl_watchdog_extend(unsigned seconds)
{
    if (!watchdog_told)
        watchdog_seconds = TIMEOUT_DEFAULT_S + seconds;
    ctl_watchdog_rearm();
}

/* A read from a FUSE mount that does not answer can only be ended by the end of the process. */
static void *watchdog_run(void *arg)
{
    long left;

    (void)arg;
    while ((left = atomic_load(&watchdog_at_s) - now_s()) > 0)
        nanosleep(&(struct timespec){ .tv_sec = left }, NULL);
    if (atomic_load(&watchdog_off))
        return NULL;
    fprintf(stderr, "keelctl: no answer from the mount within %u s; is the node running?\n",
            watchdog_seconds);
    _exit(EXIT_TROUBLE);
}

static void watchdog_start(void)
{
    pthread_t thread;

    ctl_watchdog_rearm();
    int err = pthread_create(&thread, NULL, watchdog_run, NULL);

    if (err != 0)
        keel_fatal("keelctl: cannot start a thread: %s", strerror(err));
    pthread_detach(thread);
}

/* ---- finding the mount ---- */

/* Undoes the kernel's octal escapes (\040 …) of mountinfo, in place. */
static void unescape(char *s)
{
    char *out = s;

    while (*s != '\0') {
        unsigned code;

        if (s[0] == '\\' && sscanf(s + 1, "%3o", &code) == 1 && strnlen(s, 4) == 4) {
            *out++ = (char)code;
            s += 4;
        } else {
            *out++ = *s++;
        }
    }
    *out = '\0';
}

/* Is `path` the directory `dir` or something below it? */
static bool is_below(const char *path, const char *dir)
{
    size_t len = strlen(dir);

    if (strcmp(dir, "/") == 0)
        return path[0] == '/';
    return strncmp(path, dir, len) == 0 && (path[len] == '\0' || path[len] == '/');
}

/* One line of mountinfo: "id parent dev root MOUNTPOINT options [fields] - FSTYPE SOURCE options".
 * False: malformed. */
static bool parse_mount(char *line, char **ret_point, bool *ret_keelfs)
{
    char *separator = strstr(line, " - "), *save, *field = NULL;

    if (separator == NULL)
        return false;
    *separator = '\0';
    for (int i = 0; i < 5; i++) {
        field = strtok_r(i == 0 ? line : NULL, " ", &save);
        if (field == NULL)
            return false;
    }
    char *type = strtok_r(separator + 3, " ", &save);
    char *source = strtok_r(NULL, " ", &save);

    if (type == NULL || source == NULL)
        return false;
    unescape(field);
    *ret_point = field;
    *ret_keelfs = strcmp(type, "fuse.keelfs") == 0 || strncmp(source, "keelfs:", 7) == 0;
    return true;
}

/* The mount that `path` is in, if that is one of keelfs; else NULL. From mountinfo alone: a stat
 * could hang on a mount that is dead. Of mounts on the same point the last one listed is on top. */
static char *mount_of(const char *path)
{
    FILE *file = fopen("/proc/self/mountinfo", "re");
    char *line = NULL, *best = NULL;
    size_t size = 0;
    bool best_keelfs = false;

    while (file != NULL && getline(&line, &size, file) > 0) {
        char *point;
        bool keelfs;

        if (!parse_mount(line, &point, &keelfs) || !is_below(path, point))
            continue;
        if (best != NULL && strlen(point) < strlen(best))
            continue;
        free(best);
        best = keel_strdup(point);
        best_keelfs = keelfs;
    }
    free(line);
    if (file != NULL)
        fclose(file);
    if (best_keelfs)
        return best;
    free(best);
    return NULL;
}

/* An absolute path: `path` itself, or below the working directory. Nothing is looked up. */
static char *absolute(const char *path)
{
    struct keel_text text = { 0 };

    if (path[0] != '/') {
        char *cwd = getcwd(NULL, 0);

        if (cwd == NULL)
            return NULL;
        keel_text_printf(&text, "%s/", strcmp(cwd, "/") == 0 ? "" : cwd);
        free(cwd);
    }
    keel_text_printf(&text, "%s", path);
    while (text.len > 1 && text.data[text.len - 1] == '/')
        text.data[--text.len] = '\0';
    return text.data;
}

/* From --mount, $KEEL_MOUNT, or the working directory. */
static char *find_mount(const char *option)
{
    const char *named = option != NULL ? option : getenv("KEEL_MOUNT");

    if (named != NULL && *named != '\0') {
        char *real = realpath(named, NULL);

        return real != NULL ? real : absolute(named); /* a dead mount has no real path */
    }
    char *cwd = getcwd(NULL, 0);
    char *mount = cwd != NULL ? mount_of(cwd) : NULL;

    free(cwd);
    return mount;
}

/* ---- reading ---- */

/* All of a file; 0 or an errno. */
static int read_file(const char *path, struct keel_text *text)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    uint8_t chunk[65536];

    if (fd < 0)
        return errno;
    for (;;) {
        ssize_t n = read(fd, chunk, sizeof chunk);

        if (n < 0 && errno == EINTR)
            continue;
        int err = n < 0 ? errno : 0;

        if (n <= 0) {
            close(fd);
            return err;
        }
        keel_text_append(text, keel_slice_of(chunk, (size_t)n));
    }
}

/* What to do about an error of a read, as far as it can be told. */
static const char *advice(int err)
{
    switch (err) {
    case ENOTCONN:
    case ECONNABORTED:
        return "; the node behind this mount has ended: start it again";
    case ETIMEDOUT:
        return "; the node is cut off from the quorum: see keelctl status";
    case EACCES:
        return "; run as a user who may read it";
    default:
        return "";
    }
}

int ctl_read(const struct ctl *ctl, const char *name, struct keel_text *text)
{
    struct keel_text path = { 0 };

    keel_text_printf(&path, "%s/@keel/%s", ctl->mount, name);
    int err = read_file(path.data, text);

    if (err == ENOENT || err == ENOTDIR)
        fprintf(stderr, "keelctl: %s is not the mount point of a running keelfs node\n",
                ctl->mount);
    else if (err != 0)
        fprintf(stderr, "keelctl: cannot read %s: %s%s\n", path.data, strerror(err), advice(err));
    else if (text->len == 0)
        fprintf(stderr, "keelctl: %s is empty\n", path.data);
    keel_text_free(&path);
    return err != 0 || text->len == 0 ? EXIT_TROUBLE : 0;
}

/* ---- writing: one write(2), whose errno says what came of it ---- */

int ctl_write(const struct ctl *ctl, const char *name, const char *text)
{
    struct keel_text path = { 0 };
    int err = 0;

    ctl_watchdog_rearm();
    keel_text_printf(&path, "%s/@keel/%s", ctl->mount, name);
    int fd = open(path.data, O_WRONLY | O_CLOEXEC);

    if (fd < 0)
        err = errno == ENOENT ? ENOTDIR : errno;
    else if (write(fd, text, strlen(text)) < 0)
        err = errno;
    if (fd >= 0)
        close(fd);
    keel_text_free(&path);
    return err;
}

const char *ctl_reason(int err)
{
    switch (err) {
    case ENOTDIR:
        return "this is not the mount point of a running keelfs node";
    case ENOTCONN:
    case ECONNABORTED:
        return "the node behind this mount has ended: start it again";
    case EACCES:
    case EPERM:
        return "only root may do that";
    case EIO:
        return "this node cannot: has it been removed from the cluster? See keelctl status";
    case EINTR:
        return "interrupted; it may still take place";
    default:
        return NULL;
    }
}

int ctl_refused(const char *what, int err, const char *reason)
{
    fprintf(stderr, "keelctl: %s: %s\n", what, reason != NULL ? reason : strerror(err));
    return err == EBUSY || err == EAGAIN ? EXIT_AGAIN : EXIT_TROUBLE;
}

/* ---- JSON ---- */

/* Fields that are text even when they look like a number. */
static bool is_text_field(const char *name)
{
    static const char *const names[] = { "name",   "path",    "id",   "cluster_id",
                                         "leader", "address", "hash", "incarnation",
                                         "lease",  "mode",    "time" };

    for (size_t i = 0; i < KEEL_ARRAY_LEN(names); i++)
        if (strcmp(names[i], name) == 0)
            return true;
    return false;
}

/* "-" and "none" become null, counts become numbers, the rest is text. */
static json_t *json_value(const char *name, const char *value)
{
    if (strcmp(name, "name") != 0 && strcmp(name, "path") != 0 &&
        (strcmp(value, "-") == 0 || strcmp(value, "none") == 0))
        return json_null();
    size_t digits = strspn(value, "0123456789");

    if (digits == 0 || value[digits] != '\0' || digits > 18 || is_text_field(name))
        return json_string(value);
    return json_integer((json_int_t)strtoll(value, NULL, 10));
}

static void json_add(json_t *object, const char *name, const char *value)
{
    if (json_object_set_new(object, name, json_value(name, value)) != 0)
        keel_fatal("keelctl: the node's answer is not UTF-8: %s: %s", name, value);
}

/* "name: value" lines as one object. */
static json_t *json_of_status(char *text)
{
    json_t *object = json_object();
    char *save, *line = strtok_r(text, "\n", &save);

    for (; line != NULL; line = strtok_r(NULL, "\n", &save)) {
        char *colon = strstr(line, ": ");

        if (colon == NULL)
            continue;
        *colon = '\0';
        json_add(object, line, colon + 2);
    }
    return object;
}

/* One line of "name=value" fields as an object. */
static json_t *json_of_fields(char *line)
{
    json_t *object = json_object();
    char *save, *field = strtok_r(line, " ", &save);

    for (; field != NULL; field = strtok_r(NULL, " ", &save)) {
        char *equals = strchr(field, '=');

        if (equals == NULL)
            continue;
        *equals = '\0';
        json_add(object, field, equals + 1);
    }
    return object;
}

/* All lines as an array; "# N more" is left out, and N returned. */
static json_t *json_of_lines(char *text, uint64_t *ret_more)
{
    json_t *array = json_array();
    char *save, *line = strtok_r(text, "\n", &save);

    *ret_more = 0;
    for (; line != NULL; line = strtok_r(NULL, "\n", &save)) {
        if (line[0] == '#')
            *ret_more = strtoull(line + 1, NULL, 10);
        else
            json_array_append_new(array, json_of_fields(line));
    }
    return array;
}

/* ---- output ---- */

int ctl_finish_output(void)
{
    if (fflush(stdout) == 0 && ferror(stdout) == 0)
        return 0;
    fprintf(stderr, "keelctl: cannot write the answer: %s\n", strerror(errno));
    return EXIT_TROUBLE;
}

int ctl_print_text(const struct keel_text *text)
{
    atomic_store(&watchdog_off, true);
    if (text->len > 0)
        fwrite(text->data, 1, text->len, stdout);
    return ctl_finish_output();
}

static int print_json_take(json_t *value)
{
    atomic_store(&watchdog_off, true);
    int err = json_dumpf(value, stdout, JSON_INDENT(2) | JSON_PRESERVE_ORDER);

    json_decref(value);
    if (err == 0)
        putchar('\n');
    return ctl_finish_output();
}

/* ---- the commands ---- */

static int run_status(const struct ctl *ctl, char **operands)
{
    struct keel_text text = { 0 };
    int code = ctl_read(ctl, "status", &text);

    (void)operands;
    if (code == 0)
        code = ctl_print_values(ctl, &text);
    keel_text_free(&text);
    return code;
}

int ctl_print_values(const struct ctl *ctl, struct keel_text *text)
{
    return ctl->json ? print_json_take(json_of_status(text->data)) : ctl_print_text(text);
}

int ctl_print_lines(const struct ctl *ctl, struct keel_text *text)
{
    uint64_t more;

    return ctl->json ? print_json_take(json_of_lines(text->data, &more)) : ctl_print_text(text);
}

/* An absolute path with the links in its directory followed; the name itself need not exist. Takes
 * `path`. */
static char *real_parent_take(char *path)
{
    char *slash = strrchr(path, '/');
    struct keel_text text = { 0 };

    *slash = '\0';
    char *real = realpath(slash == path ? "/" : path, NULL);

    *slash = '/';
    if (real == NULL)
        return path;
    keel_text_printf(&text, "%s%s", strcmp(real, "/") == 0 ? "" : real, slash);
    free(real);
    free(path);
    return text.data;
}

/* PATH, absolute: as given, relative to a working directory in the mount, or else below the mount.
 * Without slashes at the end. */
static char *key_path(const struct ctl *ctl, const char *path)
{
    char *cwd = getcwd(NULL, 0);
    struct keel_text text = { 0 };

    if (path[0] != '/')
        keel_text_printf(&text, "%s/", cwd != NULL && is_below(cwd, ctl->mount) ? cwd : ctl->mount);
    keel_text_printf(&text, "%s", path);
    free(cwd);
    while (text.len > 1 && text.data[text.len - 1] == '/')
        text.data[--text.len] = '\0';
    return is_below(text.data, ctl->mount) ? text.data : real_parent_take(text.data);
}

/* Where the log of PATH is read. NULL: outside the mount. */
static char *log_path(const struct ctl *ctl, const char *path)
{
    char *key = key_path(ctl, path);
    struct keel_text text = { 0 };

    if (is_below(key, ctl->mount)) {
        const char *last = strrchr(key, '/') + 1;
        bool directory =
            strcmp(key, ctl->mount) == 0 || strcmp(last, ".") == 0 || strcmp(last, "..") == 0;

        keel_text_printf(&text, "%s%s@log", key, directory ? "/" : "");
    }
    free(key);
    return text.data;
}

static int print_log(const struct ctl *ctl, const char *path, struct keel_text *text)
{
    uint64_t more;

    if (!ctl->json)
        return ctl_print_text(text);
    json_t *lines = text->len > 0 ? json_of_lines(text->data, &more) : json_array();
    json_t *object = json_object();

    json_add(object, "path", path);
    json_object_set_new(object, "revisions", lines);
    json_object_set_new(object, "more", json_integer(text->len > 0 ? (json_int_t)more : 0));
    return print_json_take(object);
}

static int run_log(const struct ctl *ctl, char **operands)
{
    struct keel_text text = { 0 };
    char *path = log_path(ctl, operands[0]);
    int code = EXIT_TROUBLE;

    if (path == NULL) {
        fprintf(stderr, "keelctl: %s is not in the mount %s; give a path in it, or a key\n",
                operands[0], ctl->mount);
        return EXIT_USAGE;
    }
    int err = read_file(path, &text);

    if (err == 0)
        code = print_log(ctl, operands[0], &text);
    else if (err == ENOENT)
        fprintf(stderr, "keelctl: %s: there is no such key, and no revision of it is kept\n",
                operands[0]);
    else
        fprintf(stderr, "keelctl: cannot read %s: %s%s\n", path, strerror(err), advice(err));
    keel_text_free(&text);
    free(path);
    return code;
}

static const struct ctl_command commands[] = {
    { "status", "", "the node that serves this mount, as name: value lines", 0, 0, run_status },
    { "members", " [CHANGE]", "the members of the cluster, one line each", 0, 64, run_members },
    { "transfer", " [NAME]", "hands leadership to a voter, or to any", 0, 1, run_transfer },
    { "settings", " [CHANGE]", "the replicated settings, or changes to them", 0, 16, run_settings },
    { "compact", " REV", "lets the history before a revision go", 1, 1, run_compact },
    { "defrag", "", "gives this node's free store space back to its disk", 0, 0, run_defrag },
    { "check", "", "compares the state of all members", 0, 0, run_check },
    { "log", " PATH", "the kept revisions of a key, newest first", 1, 1, run_log },
    { "snapshot", " VERB FILE", "saves, looks at or restores a backup", 2, 2, run_snapshot },
    { NULL, NULL, NULL, 0, 0, NULL },
};

/* ---- the command line ---- */

static void print_help(void)
{
    puts("usage: keelctl [--mount DIR] [--json] [--timeout SECONDS] COMMAND\n"
         "\n"
         "Asks a running keelfs node through its mount.\n"
         "\n"
         "commands:");
    for (const struct ctl_command *c = commands; c->name != NULL; c++)
        printf("  %s%-*s %s\n", c->name, (int)(18 - strlen(c->name)), c->arguments, c->help);
    puts("\n"
         "options:\n"
         "  --mount DIR        the mount; else $KEEL_MOUNT, else the one that the working\n"
         "                     directory is in\n"
         "  --json             print JSON\n"
         "  --timeout SECONDS  give up when the mount does not answer (default 10)\n"
         "  --help             print this\n"
         "\n"
         "CHANGE, by root only, on any node; a new member is a learner until it is promoted:\n"
         "  add NAME HOST:PORT [--voter]  then start it with --join\n"
         "  promote NAME [--wait]         makes a learner that has caught up a voter\n"
         "  remove NAME                   for good: its data directory is of no use then\n"
         "  apply 'CHANGE' 'CHANGE'…      several at once; 'add NAME HOST:PORT voter' for --voter\n"
         "\n"
         "CHANGE of settings, by root only, several at once: NAME=VALUE, with NAME one of\n"
         "  file_size, quota        a size: 4096, 512K, 512M, 4G\n"
         "  history_ms              a time: 500ms, 90s, 20m, 2h, 7d\n"
         "  history_revisions       a number; history is kept at least so long, and so many\n"
         "\n"
         "VERB of snapshot:\n"
         "  save [--data-dir DIR]   of the node behind the mount (root only), or of one that is\n"
         "                          stopped, out of its data directory\n"
         "  status                  checks all of the file, and says what is in it\n"
         "  restore --data-dir DIR --name NAME --initial-cluster NAME=HOST:PORT,…\n"
         "          [--cluster-token TOKEN] [--bump-revision N] [--wal-dir DIR]\n"
         "                          a data directory of a new cluster: once for each member\n"
         "\n"
         "PATH is absolute inside the mount, relative to the working directory if that is in\n"
         "the mount, or else a key (conf/db).\n"
         "\n"
         "exit status: 0 success, 1 refused, or the node or the mount could not answer, 2 wrong\n"
         "usage, 3 not now: try again");
}

static const struct ctl_command *find_command(const char *name)
{
    for (const struct ctl_command *c = commands; c->name != NULL; c++)
        if (strcmp(c->name, name) == 0)
            return c;
    return NULL;
}

static int unknown_command(const char *name)
{
    fprintf(stderr, "keelctl: there is no command '%s' in this version; the commands are:", name);
    for (const struct ctl_command *c = commands; c->name != NULL; c++)
        fprintf(stderr, "%s %s", c == commands ? "" : ",", c->name);
    fputs("\n", stderr);
    return EXIT_USAGE;
}

static bool parse_timeout(const char *text)
{
    char *end;

    errno = 0;
    unsigned long seconds = strtoul(text, &end, 10);

    if (text[0] < '0' || text[0] > '9' || *end != '\0' || errno != 0 || seconds == 0 ||
        seconds > TIMEOUT_MAX_S)
        return false;
    watchdog_seconds = (unsigned)seconds;
    watchdog_told = true;
    return true;
}

/* Parses up to the command. -1: go on; else the exit code. */
static int parse_options(int argc, char **argv, struct ctl *ctl, const char **ret_mount)
{
    static const struct option options[] = {
        { "mount", required_argument, NULL, 'm' },
        { "json", no_argument, NULL, 'j' },
        { "timeout", required_argument, NULL, 't' },
        { "voter", no_argument, NULL, 'v' },
        { "wait", no_argument, NULL, 'w' },
        { "data-dir", required_argument, NULL, SNAPSHOT_DATA_DIR },
        { "wal-dir", required_argument, NULL, SNAPSHOT_WAL_DIR },
        { "name", required_argument, NULL, SNAPSHOT_NAME },
        { "initial-cluster", required_argument, NULL, SNAPSHOT_INITIAL_CLUSTER },
        { "cluster-token", required_argument, NULL, SNAPSHOT_CLUSTER_TOKEN },
        { "bump-revision", required_argument, NULL, SNAPSHOT_BUMP_REVISION },
        { "help", no_argument, NULL, 'h' },
        { NULL, 0, NULL, 0 }
    };
    int c;

    while ((c = getopt_long(argc, argv, "h", options, NULL)) != -1) {
        switch (c) {
        case 'm':
            *ret_mount = optarg;
            break;
        case 'j':
            ctl->json = true;
            break;
        case 'v':
            ctl->voter = true;
            break;
        case 'w':
            ctl->wait = true;
            break;
        case 't':
            if (parse_timeout(optarg))
                break;
            fprintf(stderr, "keelctl: --timeout takes 1 to %d seconds, not '%s'\n", TIMEOUT_MAX_S,
                    optarg);
            return EXIT_USAGE;
        case 'h':
            print_help();
            return ctl_finish_output();
        default:
            if (c >= SNAPSHOT_DATA_DIR && c < SNAPSHOT_OPTIONS_END) {
                int code = snapshot_option(ctl, c, optarg);

                if (code == 0)
                    break;
                return code;
            }
            /* getopt has said what is wrong */
            fputs("keelctl: see keelctl --help\n", stderr);
            return EXIT_USAGE;
        }
    }
    return -1;
}

static int run(const struct ctl_command *command, struct ctl *ctl, const char *mount,
               char **operands)
{
    if (command->run == run_snapshot && !snapshot_needs_mount(ctl, operands))
        return command->run(ctl, operands);
    watchdog_start();
    ctl->mount = find_mount(mount);
    if (ctl->mount == NULL) {
        fputs("keelctl: which mount? Give --mount DIR, set KEEL_MOUNT, or run it in the mount\n",
              stderr);
        return EXIT_USAGE;
    }
    int code = command->run(ctl, operands);

    free(ctl->mount);
    return code;
}

int main(int argc, char **argv)
{
    struct ctl ctl = { 0 };
    const char *mount = NULL;
    int code = parse_options(argc, argv, &ctl, &mount);

    if (code >= 0)
        return code;
    if (optind == argc) {
        fputs("keelctl: which command? See keelctl --help\n", stderr);
        return EXIT_USAGE;
    }
    const struct ctl_command *command = find_command(argv[optind]);

    if (command == NULL)
        return unknown_command(argv[optind]);
    int operands = argc - optind - 1;

    if (operands < command->operands_min || operands > command->operands_max ||
        ((ctl.voter || ctl.wait) && command->run != run_members) ||
        (ctl.snapshot.given && command->run != run_snapshot)) {
        fprintf(stderr, "usage: keelctl %s%s\n", command->name, command->arguments);
        return EXIT_USAGE;
    }
    return run(command, &ctl, mount, argv + optind + 1);
}
