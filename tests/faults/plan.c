/* Reads the plan, counts, and keeps the list of calls. */
#include "plan.h"

#include <fnmatch.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "real.h"

enum { LINES_MAX = 16 };

struct line {
    enum plan_verb verb;
    uint64_t from, to, seen;
    char calls[128], files[128];
};

static struct {
    char path[PATH_MAX];
    struct stat read; /* of the one that was read; zeroes: none */
    struct line lines[LINES_MAX];
    size_t count;
    bool lies, cuts_at_end, full;
    uint64_t seed;
} plan;

static uint64_t calls_counted;
static int calls_fd = -1;

static const struct {
    const char *word;
    enum plan_verb verb;
} words[] = {
    { "kill-before", PLAN_KILL_BEFORE },
    { "kill-after", PLAN_KILL_AFTER },
    { "cut-in", PLAN_CUT_IN },
    { "cut-after", PLAN_CUT_AFTER },
    { "eio", PLAN_EIO },
    { "full", PLAN_FULL },
};

static const char *word_of(enum plan_verb verb)
{
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        if (words[i].verb == verb)
            return words[i].word;
    return verb == PLAN_STILL_FULL ? "full" : "-";
}

static enum plan_verb verb_of(const char *word)
{
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        if (strcmp(words[i].word, word) == 0)
            return words[i].verb;
    return PLAN_NOTHING;
}

static void read_line(const char *text)
{
    struct line line = { 0 };
    char word[32] = "";
    unsigned long long from = 0, to = 0;
    int got = sscanf(text, "%31s %llu-%llu %127s %127s", word, &from, &to, line.calls, line.files);

    if (got == 2) {
        to = from;
        got = sscanf(text, "%31s %llu %127s %127s", word, &from, line.calls, line.files) + 1;
    }
    line.verb = verb_of(word);
    line.from = from;
    line.to = to;
    if (strcmp(word, "seed") == 0)
        plan.seed = from;
    else if (strcmp(word, "lies") == 0)
        plan.lies = true;
    else if (strcmp(word, "cut-at-end") == 0)
        plan.cuts_at_end = true;
    else if (line.verb != PLAN_NOTHING && got == 5 && plan.count < LINES_MAX)
        plan.lines[plan.count++] = line;
    else
        dprintf(STDERR_FILENO, "keel-faults: fatal: not a line of a plan: %s", text);
}

/* A number may have been given to a new file since. */
static bool is_same(const struct stat *a, const struct stat *b)
{
    return a->st_ino == b->st_ino && a->st_ctim.tv_sec == b->st_ctim.tv_sec &&
           a->st_ctim.tv_nsec == b->st_ctim.tv_nsec;
}

static void read_again(void)
{
    struct stat st;
    char text[512];

    if (stat(plan.path, &st) != 0)
        st = (struct stat){ 0 };
    if (is_same(&st, &plan.read))
        return;
    plan.read = st;
    plan.count = 0;
    plan.lies = plan.cuts_at_end = plan.full = false;
    FILE *in = fopen(plan.path, "r");

    while (in != NULL && fgets(text, sizeof text, in) != NULL)
        read_line(text);
    if (in != NULL)
        fclose(in);
}

void plan_init(const char *own)
{
    char calls[PATH_MAX];

    snprintf(plan.path, sizeof plan.path, "%s/plan", own);
    snprintf(calls, sizeof calls, "%s/calls", own);
    calls_fd = real_openat(AT_FDCWD, calls, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    read_again();
}

static bool is_among(const char *call, const char *calls)
{
    size_t len = strlen(call);

    if (strcmp(calls, "*") == 0)
        return true;
    for (const char *at = calls; at != NULL; at = strchr(at, ',')) {
        at += *at == ',';
        if (strncmp(at, call, len) == 0 && (at[len] == '\0' || at[len] == ','))
            return true;
    }
    return false;
}

static enum plan_verb consider(struct line *line, const char *call, const char *file)
{
    if (!is_among(call, line->calls) || fnmatch(line->files, file, 0) != 0)
        return PLAN_NOTHING;
    line->seen++;
    if (line->verb == PLAN_FULL)
        plan.full = line->seen >= line->from && line->seen <= line->to;
    if (line->seen < line->from || line->seen > line->to)
        return PLAN_NOTHING;
    return line->verb == PLAN_FULL && line->seen > line->from ? PLAN_STILL_FULL : line->verb;
}

enum plan_verb plan_next(const char *call, const char *file, uint64_t bytes)
{
    enum plan_verb verb = PLAN_NOTHING;

    read_again();
    for (size_t i = 0; i < plan.count; i++) {
        enum plan_verb wanted = consider(&plan.lines[i], call, file);

        if (verb == PLAN_NOTHING)
            verb = wanted;
    }
    dprintf(calls_fd, "%llu %s %s %llu %s\n", (unsigned long long)++calls_counted, call, file,
            (unsigned long long)bytes, word_of(verb));
    return verb;
}

bool plan_lies(void)
{
    return plan.lies;
}

bool plan_cuts_at_end(void)
{
    return plan.cuts_at_end;
}

bool plan_is_full(void)
{
    return plan.full;
}

uint64_t plan_seed(void)
{
    return plan.seed;
}
