/* What the files of keelctl share. */
#ifndef KEELCTL_H
#define KEELCTL_H

#include <stdbool.h>

#include "buf.h"

enum { EXIT_TROUBLE = 1, EXIT_USAGE = 2, EXIT_AGAIN = 3 };

struct ctl {
    char *mount; /* absolute, without a trailing slash */
    bool json;
    bool voter, wait; /* of members add, members promote */
};

/* The time that the mount has for its answer begins anew. */
void ctl_watchdog_rearm(void);

/* Reads MOUNT/@keel/NAME. Prints what is wrong and returns an exit code. */
int ctl_read(const struct ctl *ctl, const char *name, struct keel_text *text);
int ctl_print_text(const struct keel_text *text);
int ctl_print_lines(const struct ctl *ctl, struct keel_text *text);

/* ---- keelctl_members.c: changing the members, and who leads ---- */

/* operands end with a NULL; an exit code. */
int run_members(const struct ctl *ctl, char **operands);
int run_transfer(const struct ctl *ctl, char **operands);

#endif
