/* keelctl members and transfer. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "keelctl.h"

enum { WAIT_PAUSE_MS = 250 };

static int wrong_usage(void)
{
    fputs("usage: keelctl members [add NAME HOST:PORT [--voter] | remove NAME | promote NAME "
          "[--wait]\n"
          "                        | apply CHANGE…]\n"
          "a CHANGE is one argument: 'add NAME HOST:PORT', 'add NAME HOST:PORT voter',\n"
          "'remove NAME' or 'promote NAME'; all of them take place at once\n",
          stderr);
    return EXIT_USAGE;
}

/* ---- what went wrong ---- */

static const char *change_reason(int err)
{
    switch (err) {
    case EEXIST:
        return "a member has that name or address already: see keelctl members";
    case ENOENT:
        return "there is no such member: see keelctl members";
    case EBUSY:
        return "another change of the members is under way: try again";
    case EINVAL:
        return "not possible: names have letters, digits, '_', '.' or '-', addresses are "
               "HOST:PORT, "
               "at least one voter has to remain, and a cluster has at most 16 members";
    case ETIMEDOUT:
        return "no answer from a quorum in time; the change may still take place: see keelctl "
               "members";
    default:
        return ctl_reason(err);
    }
}

static const char *transfer_reason(int err)
{
    switch (err) {
    case ENOENT:
        return "there is no such voter, or none that could lead: see keelctl members";
    case EBUSY:
        return "leadership is being handed over already: try again";
    case EINVAL:
        return "a NAME is one word";
    case ETIMEDOUT:
        return "it has not come to lead in time: see keelctl status";
    default:
        return ctl_reason(err);
    }
}

/* ---- promoting ---- */

/* The value of a field in the line of a member, of at most size - 1 bytes. False: not known. */
static bool member_field(const struct ctl *ctl, const char *name, const char *field, char *ret,
                         size_t size)
{
    struct keel_text text = { 0 }, start = { 0 }, key = { 0 };
    char *save = NULL;
    bool found = false;

    keel_text_printf(&start, "name=%s ", name);
    keel_text_printf(&key, " %s=", field);
    if (ctl_read(ctl, "members", &text) == 0)
        for (char *line = strtok_r(text.data, "\n", &save); line != NULL && !found;
             line = strtok_r(NULL, "\n", &save)) {
            const char *at = strstr(line, key.data);

            found = strncmp(line, start.data, start.len) == 0 && at != NULL &&
                    strcmp(at + key.len, "-") != 0;
            if (found)
                snprintf(ret, size, "%.*s", (int)strcspn(at + key.len, " \n"), at + key.len);
        }
    keel_text_free(&text);
    keel_text_free(&start);
    keel_text_free(&key);
    return found && strcmp(ret, "-") != 0;
}

/* Only the leader knows it. */
static void lag_text(const struct ctl *ctl, const char *name, struct keel_text *text)
{
    char lag[32];

    if (member_field(ctl, name, "lag", lag, sizeof lag))
        keel_text_printf(text, ": lag %s", lag);
}

static void show_progress(const struct ctl *ctl, const char *name, bool over)
{
    struct keel_text lag = { 0 };

    if (isatty(STDERR_FILENO) == 0)
        return;
    if (!over)
        lag_text(ctl, name, &lag);
    fprintf(stderr, over ? "\r\033[K" : "\r\033[K%s has not caught up yet%s", name,
            lag.len > 0 ? lag.data : "");
    keel_text_free(&lag);
}

static int promote(const struct ctl *ctl, const char *name)
{
    const struct timespec pause = { .tv_nsec = WAIT_PAUSE_MS * 1000000L };
    struct keel_text change = { 0 }, lag = { 0 };
    int err, code = 0;

    keel_text_printf(&change, "promote %s\n", name);
    while ((err = ctl_write(ctl, "members", change.data)) == EAGAIN && ctl->wait) {
        show_progress(ctl, name, false);
        nanosleep(&pause, NULL);
    }
    if (ctl->wait)
        show_progress(ctl, name, true);
    if (err == EAGAIN) {
        lag_text(ctl, name, &lag);
        fprintf(stderr, "keelctl: %s has not caught up yet%s; try again, or give --wait\n", name,
                lag.len > 0 ? lag.data : "");
        code = EXIT_AGAIN;
    } else if (err == EEXIST) {
        code = ctl_refused(name, err, "it is a voter already");
    } else if (err != 0) {
        code = ctl_refused(name, err, change_reason(err));
    }
    keel_text_free(&change);
    keel_text_free(&lag);
    return code;
}

/* ---- the commands ---- */

static bool is_word(const char *text)
{
    return text != NULL && *text != '\0' && strpbrk(text, " \t\n") == NULL;
}

static int change(const struct ctl *ctl, const char *what, const char *text)
{
    int err = ctl_write(ctl, "members", text);

    if (err == EAGAIN)
        return ctl_refused(what, err,
                           "a learner has not caught up yet, or too few of the voters are "
                           "there to agree: try again");
    return err != 0 ? ctl_refused(what, err, change_reason(err)) : 0;
}

static int add(const struct ctl *ctl, char *const *operands)
{
    struct keel_text text = { 0 };

    if (!is_word(operands[0]) || !is_word(operands[1]) || operands[2] != NULL || ctl->wait)
        return wrong_usage();
    keel_text_printf(&text, "add %s %s%s\n", operands[0], operands[1], ctl->voter ? " voter" : "");
    int code = change(ctl, operands[0], text.data);

    keel_text_free(&text);
    return code;
}

static int apply(const struct ctl *ctl, char *const *operands)
{
    struct keel_text text = { 0 };
    int code;

    for (; *operands != NULL; operands++)
        keel_text_printf(&text, "%s\n", *operands);
    code = text.len > 0 ? change(ctl, "members apply", text.data) : wrong_usage();
    keel_text_free(&text);
    return code;
}

static int remove_member(const struct ctl *ctl, const char *name)
{
    struct keel_text text = { 0 };

    keel_text_printf(&text, "remove %s\n", name);
    int code = change(ctl, name, text.data);

    keel_text_free(&text);
    return code;
}

static int list(const struct ctl *ctl)
{
    struct keel_text text = { 0 };
    int code = ctl_read(ctl, "members", &text);

    if (code == 0)
        code = ctl_print_lines(ctl, &text);
    keel_text_free(&text);
    return code;
}

int run_members(const struct ctl *ctl, char **operands)
{
    const char *verb = operands[0];
    bool plain = !ctl->voter && !ctl->wait;

    if (verb == NULL)
        return plain ? list(ctl) : wrong_usage();
    if (strcmp(verb, "add") == 0)
        return add(ctl, operands + 1);
    if (strcmp(verb, "apply") == 0 && plain)
        return apply(ctl, operands + 1);
    if (!is_word(operands[1]) || operands[2] != NULL || ctl->voter)
        return wrong_usage();
    if (strcmp(verb, "promote") == 0)
        return promote(ctl, operands[1]);
    if (strcmp(verb, "remove") == 0 && plain)
        return remove_member(ctl, operands[1]);
    return wrong_usage();
}

int run_transfer(const struct ctl *ctl, char **operands)
{
    struct keel_text text = { 0 };
    const char *name = operands[0] != NULL ? operands[0] : "";

    keel_text_printf(&text, "%s\n", name);
    int err = ctl_write(ctl, "transfer", text.data);

    keel_text_free(&text);
    return err != 0 ? ctl_refused(*name != '\0' ? name : "transfer", err, transfer_reason(err)) : 0;
}
