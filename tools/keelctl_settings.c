/* keelctl settings, compact, defrag and check. Sizes and times are written with units here, and as
 * plain numbers to the node. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "keelctl.h"
#include "units.h"

static bool parse_number(const char *text, uint64_t *ret)
{
    return strspn(text, "0123456789") == strlen(text) && keel_units_size(text, ret);
}

struct setting {
    const char *name;
    bool (*parse)(const char *text, uint64_t *ret);
    const char *what;
};

static const struct setting settings[] = {
    { "file_size", keel_units_size, "a size from 1 to 1020K" },
    { "quota", keel_units_size, "a size: 512M, 4G; at least 1M" },
    { "history_ms", keel_units_time, "a time: 500ms, 90s, 20m, 2h, 7d" },
    { "history_revisions", parse_number, "a number, at least 1" },
    { NULL, NULL, NULL },
};

static int usage(void)
{
    fputs("usage: keelctl settings [NAME=VALUE…]\nNAME and VALUE:\n", stderr);
    for (const struct setting *s = settings; s->name != NULL; s++)
        fprintf(stderr, "  %-18s %s\n", s->name, s->what);
    return EXIT_USAGE;
}

static const struct setting *find_setting(const char *name, size_t len)
{
    for (const struct setting *s = settings; s->name != NULL; s++)
        if (strlen(s->name) == len && strncmp(s->name, name, len) == 0)
            return s;
    return NULL;
}

/* Appends one change as the node reads it. 0 or an exit code. */
static int add_change(const char *operand, struct keel_text *text)
{
    size_t len = strcspn(operand, "=");
    const struct setting *s = find_setting(operand, len);
    uint64_t value;

    if (operand[len] == '\0' || s == NULL) {
        fprintf(stderr, "keelctl: %s: there is no such setting to change\n", operand);
        return usage();
    }
    if (!s->parse(operand + len + 1, &value) || value == 0) {
        fprintf(stderr, "keelctl: %s: %s is %s\n", operand, s->name, s->what);
        return EXIT_USAGE;
    }
    keel_text_printf(text, "%s=%" PRIu64 "\n", s->name, value);
    return 0;
}

static const char *settings_reason(int err)
{
    switch (err) {
    case EINVAL:
        return "out of range, or named twice, and nothing has been changed: file_size is at most "
               "1020K, quota at least 1M and at most a quarter of the address space of this "
               "node's store (4G, or as keelfs --quota says)";
    case ETIMEDOUT:
        return "no answer from a quorum in time; it may still take place: see keelctl settings";
    default:
        return ctl_reason(err);
    }
}

static int change(const struct ctl *ctl, char *const *operands)
{
    struct keel_text text = { 0 };
    int code = 0;

    for (char *const *operand = operands; *operand != NULL && code == 0; operand++)
        code = add_change(*operand, &text);
    int err = code == 0 ? ctl_write(ctl, "settings", text.data) : 0;

    keel_text_free(&text);
    return err != 0 ? ctl_refused("settings", err, settings_reason(err)) : code;
}

int run_settings(const struct ctl *ctl, char **operands)
{
    struct keel_text text = { 0 };

    if (operands[0] != NULL)
        return change(ctl, operands);
    int code = ctl_read(ctl, "settings", &text);

    if (code == 0)
        code = ctl_print_values(ctl, &text);
    keel_text_free(&text);
    return code;
}

static const char *compact_reason(int err)
{
    switch (err) {
    case EINVAL:
        return "there is no such revision yet: see keelctl status";
    case ESTALE:
        return "history is compacted up to there already: see compact_revision in keelctl status";
    case ETIMEDOUT:
        return "no answer from a quorum in time; it may still take place: see keelctl status";
    default:
        return ctl_reason(err);
    }
}

int run_compact(const struct ctl *ctl, char **operands)
{
    struct keel_text text = { 0 };
    uint64_t revision;

    if (!parse_number(operands[0], &revision)) {
        fprintf(stderr, "keelctl: compact takes a revision, not '%s'\n", operands[0]);
        return EXIT_USAGE;
    }
    keel_text_printf(&text, "%" PRIu64 "\n", revision);
    int err = ctl_write(ctl, "compact", text.data);

    keel_text_free(&text);
    return err != 0 ? ctl_refused(operands[0], err, compact_reason(err)) : 0;
}

static const char *defrag_reason(int err)
{
    switch (err) {
    case EBUSY:
        return "this node is installing a snapshot; again when it is done";
    case ENOSPC:
        return "no room on the node's disk for a second store: see db_used in keelctl status";
    default:
        return ctl_reason(err);
    }
}

int run_defrag(const struct ctl *ctl, char **operands)
{
    (void)operands;
    int err = ctl_write(ctl, "defrag", "1\n");

    return err != 0 ? ctl_refused("defrag", err, defrag_reason(err)) : 0;
}

/* ---- check ---- */

/* How many lines have that state. */
static size_t count_state(const char *text, const char *state)
{
    size_t count = 0;

    for (const char *at = text; (at = strstr(at, state)) != NULL; at += strlen(state))
        count++;
    return count;
}

int run_check(const struct ctl *ctl, char **operands)
{
    struct keel_text text = { 0 };

    (void)operands;
    int code = ctl_read(ctl, "check", &text);

    if (code != 0) {
        keel_text_free(&text);
        return code;
    }
    size_t differ = count_state(text.data, " state=differs ");
    size_t unknown = count_state(text.data, " state=unknown ");

    code = ctl_print_lines(ctl, &text);
    keel_text_free(&text);
    if (code != 0)
        return code;
    if (differ > 0)
        fputs("keelctl: the members have not the same state: see keelctl status, and "
              "/@keel/alarms for what to do\n",
              stderr);
    else if (unknown > 0)
        fprintf(stderr, "keelctl: %zu of the members did not answer; the others are the same\n",
                unknown);
    return differ > 0 ? EXIT_TROUBLE : unknown > 0 ? EXIT_AGAIN : 0;
}
