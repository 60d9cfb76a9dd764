/* What the daemon's side of the poker shares between its files: the process that runs, and its
 * tickets. */
#ifndef FS_POKER_INTERNAL_H
#define FS_POKER_INTERNAL_H

#include "fs/poker_tickets.h"
#include "fs/poker_wire.h"

struct poker;

/* One life of the process. Outlives the pointer in struct poker until libuv has closed both
 * handles. */
struct poker_run {
    struct poker *poker; /* NULL: given up */
    uv_process_t process;
    uv_poll_t poll;
    int socket;
    unsigned handles; /* not closed yet */
};

struct poker {
    uv_loop_t *loop;
    char *mount_point;
    dev_t dev;
    struct fs_nodes *nodes;
    struct poker_hooks hooks;
    struct ticket_queue queue;

    struct poker_run *run; /* NULL: it has ended and waits to be started again */
    pid_t pid;             /* 0: no process. Until it is reaped nobody else can have this number */
    uint64_t started_us, restarts;
    uint64_t backoff_ms;
    uv_timer_t timer; /* the next start; when closing: patience */

    struct {
        uint64_t *inos;
        size_t count;
    } marked, scanning; /* nodes with `marked` set; what the present scan has found so far */

    bool closing, killed;
    void (*done)(void *arg);
    void *done_arg;
};

/* Takes in what the process has reported, and gives it what may go. Afterwards the oldest flying
 * ticket is the present one. */
void poker_drain(struct poker *p);

#endif
