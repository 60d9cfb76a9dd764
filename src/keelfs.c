/* main: options from the command line and a configuration file, then the node, or the poker
 * process. */
#include <errno.h>
#include <getopt.h>
#include <ini.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "arena.h"
#include "check.h"
#include "fs/poker.h"
#include "keel_limits.h"
#include "log.h"
#include "node.h"
#include "units.h"

#define KEELFS_VERSION "0.1.0"

static const char usage_text[] =
    "usage: keelfs --name NAME --data-dir DIR [options] MOUNT_POINT\n"
    "\n"
    "One node of a keelfs cluster: replicates a small tree of files and mounts it.\n"
    "\n"
    "  --config FILE             options from an ini file: lines NAME = VALUE with the\n"
    "                            long names below; the command line wins\n"
    "  --name NAME               this node's name in the cluster\n"
    "  --data-dir DIR            where its log and store are\n"
    "  --wal-dir DIR             where the log is, if on another disk\n"
    "  --listen-peer HOST:PORT   where peers connect (default: as in --initial-cluster)\n"
    "  --initial-cluster LIST    n1=HOST:PORT,n2=HOST:PORT,…: the members of a new cluster\n"
    "  --cluster-token NAME      tells clusters apart (default: keelfs)\n"
    "  --bootstrap               an empty data directory starts a new cluster\n"
    "  --join HOST:PORT          an empty data directory becomes that of a member which was\n"
    "                            added to the cluster of this member (keelctl members add)\n"
    "  --insecure-peers          listen elsewhere than on loopback, without TLS\n"
    "  -o OPTION[,OPTION…]       mount options: read=local, list_xattr, no_poke, and FUSE's own\n"
    "\n"
    "  --request-timeout MS      how long requests wait without a quorum (5000)\n"
    "  --heartbeat-interval MS   (25)\n"
    "  --election-timeout MS     (600; randomized up to twice that)\n"
    "  --leader-lease MS         (100)\n"
    "  --no-lease-reads          ask a majority for each read\n"
    "  --quota BYTES             store quota, first value of the setting (2147483648)\n"
    "  --file-size BYTES         largest file, first value of the setting (1044480)\n"
    "  --history TIME            how long history is kept at least: 90s, 20m, 2h, 7d; first\n"
    "                            value of the setting (1h)\n"
    "  --history-revisions N     and at least so many revisions (10000)\n"
    "  --log-kept BYTES          kept of the log, for members that lag\n"
    "                            (268435456; less for small disks and tests)\n"
    "\n"
    "  --log-level LEVEL         error, warning, info (default) or debug\n"
    "  --version, --help\n"
    "\n"
    "It runs in the foreground until SIGTERM or SIGINT. Exit codes: 0 stopped, 1 an error,\n"
    "2 wrong usage or a data directory that does not fit the options; the last line of the\n"
    "log says what is wrong and what to do.\n";

struct settings {
    struct node_options node;
    const char *config;
    enum keel_log_level level;
    bool from_file; /* values come from the file now: they do not replace any */
    unsigned long given;
    struct keel_arena texts; /* of the file */
};

enum option_id {
    OPT_NAME = 1,
    OPT_DATA_DIR,
    OPT_WAL_DIR,
    OPT_LISTEN_PEER,
    OPT_INITIAL_CLUSTER,
    OPT_CLUSTER_TOKEN,
    OPT_BOOTSTRAP,
    OPT_JOIN,
    OPT_INSECURE_PEERS,
    OPT_REQUEST_TIMEOUT,
    OPT_HEARTBEAT,
    OPT_ELECTION_TIMEOUT,
    OPT_LEADER_LEASE,
    OPT_NO_LEASE_READS,
    OPT_QUOTA,
    OPT_FILE_SIZE,
    OPT_HISTORY,
    OPT_HISTORY_REVISIONS,
    OPT_LOG_KEPT,
    OPT_LOG_LEVEL,
    OPT_MOUNT_OPTIONS,
    OPT_MOUNT_POINT,
    OPT_CONFIG,
    OPT_VERSION,
    OPT_HELP,
};

static const struct option long_options[] = {
    { "name", required_argument, NULL, OPT_NAME },
    { "data-dir", required_argument, NULL, OPT_DATA_DIR },
    { "wal-dir", required_argument, NULL, OPT_WAL_DIR },
    { "listen-peer", required_argument, NULL, OPT_LISTEN_PEER },
    { "initial-cluster", required_argument, NULL, OPT_INITIAL_CLUSTER },
    { "cluster-token", required_argument, NULL, OPT_CLUSTER_TOKEN },
    { "bootstrap", no_argument, NULL, OPT_BOOTSTRAP },
    { "join", required_argument, NULL, OPT_JOIN },
    { "insecure-peers", no_argument, NULL, OPT_INSECURE_PEERS },
    { "request-timeout", required_argument, NULL, OPT_REQUEST_TIMEOUT },
    { "heartbeat-interval", required_argument, NULL, OPT_HEARTBEAT },
    { "election-timeout", required_argument, NULL, OPT_ELECTION_TIMEOUT },
    { "leader-lease", required_argument, NULL, OPT_LEADER_LEASE },
    { "no-lease-reads", no_argument, NULL, OPT_NO_LEASE_READS },
    { "quota", required_argument, NULL, OPT_QUOTA },
    { "file-size", required_argument, NULL, OPT_FILE_SIZE },
    { "history", required_argument, NULL, OPT_HISTORY },
    { "history-revisions", required_argument, NULL, OPT_HISTORY_REVISIONS },
    { "log-kept", required_argument, NULL, OPT_LOG_KEPT },
    { "log-level", required_argument, NULL, OPT_LOG_LEVEL },
    { "mount-options", required_argument, NULL, OPT_MOUNT_OPTIONS },
    { "mount-point", required_argument, NULL, OPT_MOUNT_POINT },
    { "config", required_argument, NULL, OPT_CONFIG },
    { "version", no_argument, NULL, OPT_VERSION },
    { "help", no_argument, NULL, OPT_HELP },
    { NULL, 0, NULL, 0 },
};

/* A whole number in a range; complains otherwise. */
static bool parse_number(const char *name, const char *text, uint64_t min, uint64_t max,
                         uint64_t *ret)
{
    char *end;

    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);

    if (errno != 0 || end == text || *end != '\0' || text[0] == '-' || value < min || value > max) {
        fprintf(stderr, "keelfs: --%s: '%s' is not a number from %llu to %llu\n", name, text,
                (unsigned long long)min, (unsigned long long)max);
        return false;
    }
    *ret = value;
    return true;
}

/* A whole number of milliseconds, seconds, minutes, hours or days. */
static bool parse_time(const char *name, const char *text, uint64_t *ret_ms)
{
    if (keel_units_time(text, ret_ms) && *ret_ms > 0)
        return true;
    fprintf(stderr, "keelfs: --%s: '%s' is not a time, as in 500ms, 90s, 20m, 2h or 7d\n", name,
            text);
    return false;
}

static bool parse_level(const char *text, enum keel_log_level *ret)
{
    static const char *const names[] = { "error", "warning", "info", "debug" };

    for (unsigned i = 0; i < KEEL_ARRAY_LEN(names); i++)
        if (strcmp(text, names[i]) == 0) {
            *ret = (enum keel_log_level)i;
            return true;
        }
    fprintf(stderr, "keelfs: --log-level: '%s' is none of error, warning, info, debug\n", text);
    return false;
}

/* Our own mount options out of the list; the rest is FUSE's. */
static void split_mount_options(struct node_options *o, const char *text)
{
    static char rest[4096];
    char *copy = keel_strdup(text), *save = NULL;

    for (char *p = strtok_r(copy, ",", &save); p != NULL; p = strtok_r(NULL, ",", &save)) {
        if (strcmp(p, "read=local") == 0) {
            o->read_local = true;
        } else if (strcmp(p, "list_xattr") == 0) {
            o->list_xattr = true;
        } else if (strcmp(p, "no_poke") == 0) {
            o->no_poke = true;
        } else if (strlen(rest) + strlen(p) + 2 < sizeof rest) {
            if (rest[0] != '\0')
                strcat(rest, ",");
            strcat(rest, p);
        }
    }
    free(copy);
    o->mount_options = rest;
}

static bool parse_bool(const char *name, const char *text, bool *ret)
{
    *ret = text == NULL || strcmp(text, "yes") == 0 || strcmp(text, "true") == 0 ||
           strcmp(text, "1") == 0;
    if (*ret || strcmp(text, "no") == 0 || strcmp(text, "false") == 0 || strcmp(text, "0") == 0)
        return true;
    fprintf(stderr, "keelfs: %s: '%s' is neither yes nor no\n", name, text);
    return false;
}

/* Where an option goes whose text is taken as it is; NULL: it is not one of those. */
static const char **text_option(struct settings *s, int id)
{
    struct node_options *o = &s->node;
    const struct {
        enum option_id id;
        const char **text;
    } texts[] = {
        { OPT_NAME, &o->name },
        { OPT_DATA_DIR, &o->data_dir },
        { OPT_WAL_DIR, &o->wal_dir },
        { OPT_LISTEN_PEER, &o->listen_peer },
        { OPT_INITIAL_CLUSTER, &o->initial_cluster },
        { OPT_CLUSTER_TOKEN, &o->cluster_token },
        { OPT_JOIN, &o->join },
        { OPT_MOUNT_POINT, &o->mount_point },
        { OPT_CONFIG, &s->config },
    };

    for (size_t i = 0; i < KEEL_ARRAY_LEN(texts); i++)
        if ((int)texts[i].id == id)
            return texts[i].text;
    return NULL;
}

/* One option; text is NULL for flags on the command line. False: complained. */
static bool set_option(struct settings *s, int id, const char *name, const char *text)
{
    struct node_options *o = &s->node;
    const uint64_t hour_ms = 3600000;

    if (s->from_file && (s->given & (1ul << id)))
        return true;
    if (!s->from_file)
        s->given |= 1ul << id;
    const char **place = text_option(s, id);

    if (place != NULL) {
        *place = text;
        return true;
    }
    switch (id) {
    case OPT_MOUNT_OPTIONS:
        split_mount_options(o, text);
        return true;
    case OPT_BOOTSTRAP:
        return parse_bool(name, text, &o->bootstrap);
    case OPT_INSECURE_PEERS:
        return parse_bool(name, text, &o->insecure_peers);
    case OPT_NO_LEASE_READS:
        return parse_bool(name, text, &o->no_lease_reads);
    case OPT_REQUEST_TIMEOUT:
        return parse_number(name, text, 100, hour_ms, &o->request_timeout_ms);
    case OPT_HEARTBEAT:
        return parse_number(name, text, 1, 10000, &o->heartbeat_ms);
    case OPT_ELECTION_TIMEOUT:
        return parse_number(name, text, 20, 60000, &o->election_timeout_ms);
    case OPT_LEADER_LEASE:
        return parse_number(name, text, 1, 60000, &o->lease_ms);
    case OPT_QUOTA:
        return parse_number(name, text, 1 << 20, 1ull << 40, &o->quota_bytes);
    case OPT_FILE_SIZE:
        return parse_number(name, text, 4096, KEEL_FILE_SIZE_MAX, &o->file_size_bytes);
    case OPT_HISTORY:
        return parse_time(name, text, &o->history_ms);
    case OPT_HISTORY_REVISIONS:
        return parse_number(name, text, 1, 1ull << 53, &o->history_revisions);
    case OPT_LOG_KEPT:
        return parse_number(name, text, 1 << 20, 1ull << 40, &o->log_kept_bytes);
    case OPT_LOG_LEVEL:
        return parse_level(text, &s->level);
    default: /* --version and --help, in a file */
        return false;
    }
}

static char *keep_text(struct keel_arena *texts, const char *text)
{
    size_t size = strlen(text) + 1;

    return memcpy(keel_arena_alloc(texts, size), text, size);
}

static int on_ini_line(void *arg, const char *section, const char *name, const char *value)
{
    struct settings *s = arg;

    (void)section;
    for (const struct option *o = long_options; o->name != NULL; o++)
        if (strcmp(o->name, name) == 0 && o->val < OPT_CONFIG)
            return set_option(s, o->val, name, keep_text(&s->texts, value));
    fprintf(stderr, "keelfs: unknown option '%s' in the configuration file\n", name);
    return 0;
}

static bool read_config(struct settings *s)
{
    if (s->config == NULL)
        return true;
    s->from_file = true;
    FILE *file = fopen(s->config, "re");
    int line = file != NULL ? ini_parse_file(file, on_ini_line, s) : 0;
    bool read_it = file != NULL && ferror(file) == 0; /* a directory opens, but can't be read */

    if (!read_it)
        fprintf(stderr, "keelfs: cannot read %s: %s\n", s->config, strerror(errno));
    else if (line != 0)
        fprintf(stderr, "keelfs: %s, line %d: not understood\n", s->config, line);
    if (file != NULL)
        fclose(file);
    return read_it && line == 0;
}

/* 0: go on; otherwise exit with ret_code. */
static int parse_arguments(struct settings *s, int argc, char **argv, int *ret_code)
{
    int id, index;

    *ret_code = 2;
    while ((id = getopt_long(argc, argv, "o:", long_options, &index)) != -1) {
        if (id == OPT_HELP || id == OPT_VERSION) {
            fputs(id == OPT_HELP ? usage_text : "keelfs " KEELFS_VERSION "\n", stdout);
            *ret_code = 0;
            return -1;
        }
        if (id == '?') {
            fputs("keelfs --help lists the options\n", stderr);
            return -1;
        }
        if (!set_option(s, id == 'o' ? OPT_MOUNT_OPTIONS : id,
                        id == 'o' ? "mount-options" : long_options[index].name, optarg))
            return -1;
    }
    if (optind < argc)
        set_option(s, OPT_MOUNT_POINT, "mount-point", argv[optind++]);
    if (optind < argc) {
        fprintf(stderr, "keelfs: one mount point, please: '%s' is too much\n", argv[optind]);
        return -1;
    }
    return read_config(s) ? 0 : -1;
}

static int run(struct settings *s, int argc, char **argv)
{
    int code;

    if (parse_arguments(s, argc, argv, &code) != 0)
        return code;
    if (s->node.name == NULL || s->node.data_dir == NULL || s->node.mount_point == NULL) {
        fprintf(stderr, "keelfs: %s is missing; keelfs --help lists the options\n",
                s->node.name == NULL       ? "--name"
                : s->node.data_dir == NULL ? "--data-dir"
                                           : "the mount point");
        return 2;
    }
    keel_log_setup(s->node.name, s->level);
    return node_run(&s->node);
}

int main(int argc, char **argv)
{
    struct settings s = {
        .node = {
            .request_timeout_ms = 5000,
            .heartbeat_ms = 25,
            .election_timeout_ms = 600,
            .lease_ms = 100,
        },
        .level = KEEL_LOG_INFO,
    };

    if (argc > 1 && strcmp(argv[1], "--poker") == 0)
        return poker_main(argc - 2, argv + 2);
    keel_arena_init(&s.texts);
    int code = run(&s, argc, argv);

    keel_arena_free(&s.texts);
    return code;
}
