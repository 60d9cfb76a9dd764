/* What the files of keelctl share. */
#ifndef KEELCTL_H
#define KEELCTL_H

#include <stdbool.h>

#include "buf.h"

enum { EXIT_TROUBLE = 1, EXIT_USAGE = 2, EXIT_AGAIN = 3 };

/* The options of snapshot. */
enum {
    SNAPSHOT_DATA_DIR = 256,
    SNAPSHOT_WAL_DIR,
    SNAPSHOT_NAME,
    SNAPSHOT_INITIAL_CLUSTER,
    SNAPSHOT_CLUSTER_TOKEN,
    SNAPSHOT_BUMP_REVISION,
    SNAPSHOT_OPTIONS_END
};

struct ctl_snapshot {
    bool given; /* any of them */
    const char *data_dir, *wal_dir, *name, *initial_cluster, *cluster_token;
    uint64_t bump_revision;
};

struct ctl {
    char *mount; /* absolute, without a trailing slash */
    bool json;
    bool voter, wait; /* of members add, members promote */
    struct ctl_snapshot snapshot;
};

/* The time that the mount has for its answer begins anew. */
void ctl_watchdog_rearm(void);
/* The same, and as much longer, for something that takes its time, unless --timeout says how long.
 */
void ctl_watchdog_extend(unsigned seconds);

/* Reads MOUNT/@keel/NAME. Prints what is wrong and returns an exit code. */
int ctl_read(const struct ctl *ctl, const char *name, struct keel_text *text);
int ctl_print_text(const struct keel_text *text);
/* Flushes what was printed; an exit code. */
int ctl_finish_output(void);
int ctl_print_lines(const struct ctl *ctl, struct keel_text *text);
/* "name: value" lines. */
int ctl_print_values(const struct ctl *ctl, struct keel_text *text);

/* One write to MOUNT/@keel/NAME. 0, or an errno: ENOTDIR when there is no such file, so that ENOENT
 * is the node's answer. */
int ctl_write(const struct ctl *ctl, const char *name, const char *text);
/* What an errno of it means whatever was asked for; NULL: it depends on that. */
const char *ctl_reason(int err);
/* Prints that; an exit code. reason NULL: the errno's own. */
int ctl_refused(const char *what, int err, const char *reason);

/* ---- keelctl_members.c: changing the members, and who leads ---- */

/* operands end with a NULL; an exit code. */
int run_members(const struct ctl *ctl, char **operands);
int run_transfer(const struct ctl *ctl, char **operands);

/* ---- keelctl_settings.c: the replicated settings, and the store ---- */

int run_settings(const struct ctl *ctl, char **operands);
int run_compact(const struct ctl *ctl, char **operands);
int run_defrag(const struct ctl *ctl, char **operands);
int run_check(const struct ctl *ctl, char **operands);

/* ---- keelctl_snapshot.c: saving, looking at and restoring snapshots ---- */

/* One of SNAPSHOT_...; 0 or an exit code. */
int snapshot_option(struct ctl *ctl, int option, const char *value);
/* Only saving the snapshot of a running node. */
bool snapshot_needs_mount(const struct ctl *ctl, char *const *operands);
int run_snapshot(const struct ctl *ctl, char **operands);

#endif
