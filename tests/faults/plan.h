/* What is to happen, and at which call. Read from the file `plan`, again whenever another one has
 * taken its place; without it nothing happens. A line each:
 *
 *   kill-before N CALLS FILES   SIGKILL before the N-th of these calls
 *   kill-after N CALLS FILES    after it
 *   cut-in N CALLS FILES        power is lost in it: a sync is not done, a write not synced
 *   cut-after N CALLS FILES     after it: a sync is done
 *   eio N CALLS FILES           that sync fails with EIO, and so do all later ones of the same file
 *   full N-M CALLS FILES        the N-th to the M-th of these calls fail with ENOSPC; the first
 * write of them may write a half before; there is no space meanwhile seed S for what is lost in a
 * cut lies                        syncs report success and do nothing cut-at-end power is lost when
 * the process ends by itself
 *
 * CALLS: names with commas between them, or *. FILES: a pattern as for the shell, of paths below
 * the disk, where * stands for slashes too. Calls are counted from the reading of the plan on:
 *
 *   create mkdir rename exchange unlink rmdir    of names
 *   write commit truncate allocate sync          of files; commit: a write with O_DSYNC
 *   syncdir                                      of a directory
 *
 * Each counted call is a line in the file `calls`: its number, its name, the file, bytes, and what
 * the plan makes of it, or `-`. */
#ifndef KEEL_FAULTS_PLAN_H
#define KEEL_FAULTS_PLAN_H

#include <stdbool.h>
#include <stdint.h>

enum plan_verb {
    PLAN_NOTHING,
    PLAN_KILL_BEFORE,
    PLAN_KILL_AFTER,
    PLAN_CUT_IN,
    PLAN_CUT_AFTER,
    PLAN_EIO,
    PLAN_FULL, /* the first of them */
    PLAN_STILL_FULL,
};

void plan_init(const char *own);

/* A call is about to be made. `file`: below the disk, "." is the disk itself. */
enum plan_verb plan_next(const char *call, const char *file, uint64_t bytes);

bool plan_lies(void);
bool plan_cuts_at_end(void);
bool plan_is_full(void);
uint64_t plan_seed(void);

#endif
