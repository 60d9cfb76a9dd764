/* keel-bench: the load generators of tools/bench. Options and subcommands are read here; each
 * measures in a file of its own and prints its figures as one line of JSON. */
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "check.h"

static const struct command {
    const char *name, *arguments, *help;
    size_t dirs_min, dirs_max;
    void (*run)(const struct bench_options *options, json_t *ret);
} commands[] = {
    { "floor", "DIR", "three processes, fdatasync on each, no keelfs", 1, 1, bench_floor },
    { "write", "DIR...", "each client writes a file of its own", 1, BENCH_DIRS_MAX, bench_write },
    { "read", "DIR...", "each client opens, reads and closes a file", 1, BENCH_DIRS_MAX,
      bench_read },
    { "event", "DIR WATCHED", "from a write in DIR to its event in WATCHED", 2, 2, bench_event },
    { "watch", "DIR...", "count inotify events until stdin ends", 1, BENCH_DIRS_MAX, bench_watch },
    { "gap", "DIR...", "kill --victim, until a write succeeds again", 1, BENCH_DIRS_MAX,
      bench_gap },
    { "fill", "DIR", "make --files files, write --count times to them", 1, 1, bench_fill },
    { "await", "FILE", "until it can be read; at most --seconds", 1, 1, bench_await },
};

static void usage(FILE *out)
{
    fputs("usage: keel-bench COMMAND [OPTION...] DIR...\n", out);
    for (size_t i = 0; i < KEEL_ARRAY_LEN(commands); i++)
        fprintf(out, "  %-6s %-12s %s\n", commands[i].name, commands[i].arguments,
                commands[i].help);
    fputs(
        "options:\n"
        "  --seconds S     how long to measure (3)\n"
        "  --clients N     threads of write and read (1); client i works in DIR i modulo their "
        "number\n"
        "  --size BYTES    of a value (256)\n"
        "  --until-eof     write, read: measure until stdin ends\n"
        "  --trace         write, read: tell when each operation began and how long it took\n"
        "  --rate N        write, read: at most so many operations a second\n"
        "  --files N       fill: how many (1000)\n"
        "  --count N       fill: how many writes in all (one for each file)\n"
        "  --replace       write: open(O_TRUNC) + write + close instead of pwrite on an open file\n"
        "  --pid PID       write, read: report this process's CPU time too (up to 64 times)\n"
        "  --victim PID    gap: whom to kill\n",
        out);
}

_Noreturn static void wrong_usage(const char *what, const char *why)
{
    fprintf(stderr, "keel-bench: %s: %s\n", what, why);
    usage(stderr);
    exit(2);
}

static unsigned long whole_number(const char *option, const char *text, unsigned long max)
{
    char *end;
    unsigned long value = strtoul(text, &end, 10);

    if (text[0] < '0' || text[0] > '9' || *end != '\0' || value == 0 || value > max)
        wrong_usage(option, "not a whole number in its range");
    return value;
}

static double seconds_of(const char *text)
{
    char *end;
    double value = strtod(text, &end);

    if (end == text || *end != '\0' || !(value >= 0.05 && value <= 3600))
        wrong_usage("--seconds", "not a number from 0.05 to 3600");
    return value;
}

enum {
    OPTION_SECONDS = 1,
    OPTION_CLIENTS,
    OPTION_SIZE,
    OPTION_REPLACE,
    OPTION_UNTIL_EOF,
    OPTION_TRACE,
    OPTION_RATE,
    OPTION_FILES,
    OPTION_COUNT,
    OPTION_PID,
    OPTION_VICTIM,
};

static void take_option(struct bench_options *options, int option)
{
    switch (option) {
    case OPTION_SECONDS:
        options->seconds = seconds_of(optarg);
        break;
    case OPTION_CLIENTS:
        options->clients = (unsigned)whole_number("--clients", optarg, BENCH_CLIENTS_MAX);
        break;
    case OPTION_SIZE:
        options->size_bytes = whole_number("--size", optarg, BENCH_SIZE_MAX);
        break;
    case OPTION_REPLACE:
        options->replace = true;
        break;
    case OPTION_UNTIL_EOF:
        options->until_eof = true;
        break;
    case OPTION_TRACE:
        options->trace = true;
        break;
    case OPTION_RATE:
        options->rate = whole_number("--rate", optarg, 1000000);
        break;
    case OPTION_FILES:
        options->files = whole_number("--files", optarg, BENCH_COUNT_MAX);
        break;
    case OPTION_COUNT:
        options->count = whole_number("--count", optarg, BENCH_COUNT_MAX);
        break;
    case OPTION_PID:
        if (options->pid_count == BENCH_PIDS_MAX)
            wrong_usage("--pid", "given too often");
        options->pids[options->pid_count++] = (pid_t)whole_number("--pid", optarg, INT32_MAX);
        break;
    case OPTION_VICTIM:
        options->victim = (pid_t)whole_number("--victim", optarg, INT32_MAX);
        break;
    default:
        usage(stderr);
        exit(2);
    }
}

static void read_options(struct bench_options *options, int argc, char **argv)
{
    static const struct option known[] = {
        { "seconds", required_argument, NULL, OPTION_SECONDS },
        { "clients", required_argument, NULL, OPTION_CLIENTS },
        { "size", required_argument, NULL, OPTION_SIZE },
        { "replace", no_argument, NULL, OPTION_REPLACE },
        { "until-eof", no_argument, NULL, OPTION_UNTIL_EOF },
        { "trace", no_argument, NULL, OPTION_TRACE },
        { "rate", required_argument, NULL, OPTION_RATE },
        { "files", required_argument, NULL, OPTION_FILES },
        { "count", required_argument, NULL, OPTION_COUNT },
        { "pid", required_argument, NULL, OPTION_PID },
        { "victim", required_argument, NULL, OPTION_VICTIM },
        { 0 },
    };
    int option;

    while ((option = getopt_long(argc, argv, "", known, NULL)) != -1)
        take_option(options, option);
    for (; optind < argc; optind++) {
        if (options->dir_count == BENCH_DIRS_MAX)
            wrong_usage(argv[optind], "too many directories");
        options->dirs[options->dir_count++] = argv[optind];
    }
}

static const struct command *find_command(const char *name)
{
    for (size_t i = 0; i < KEEL_ARRAY_LEN(commands); i++)
        if (strcmp(commands[i].name, name) == 0)
            return &commands[i];
    wrong_usage(name, "no such command");
}

int main(int argc, char **argv)
{
    struct bench_options options = {
        .clients = 1, .size_bytes = BENCH_SIZE_DEFAULT, .seconds = 3, .files = 1000
    };
    const struct command *command;
    json_t *figures = json_object();

    if (argc < 2)
        wrong_usage("COMMAND", "is missing");
    command = find_command(argv[1]);
    read_options(&options, argc - 1, argv + 1);
    if (options.dir_count < command->dirs_min || options.dir_count > command->dirs_max)
        wrong_usage(command->name, "a wrong number of directories");
    if (command->run == bench_gap && options.victim == 0)
        wrong_usage(command->name, "--victim is missing");
    signal(SIGPIPE, SIG_IGN);
    command->run(&options, figures);
    if (json_dumpf(figures, stdout, JSON_COMPACT | JSON_REAL_PRECISION(9)) != 0 ||
        fputc('\n', stdout) == EOF || fflush(stdout) != 0)
        bench_die("cannot print the figures");
    json_decref(figures);
    return 0;
}
