/* In the poker process: a thread that never touches the mount. It scans for watches, and when the
 * daemon dies without having unmounted, it aborts the FUSE connection, so that nobody hangs in it.
 */
#ifndef FS_POKER_GUARD_H
#define FS_POKER_GUARD_H

#include <pthread.h>
#include <sys/types.h>

struct poker_guard {
    pid_t daemon;
    int pidfd;
    dev_t dev;
    int socket;
    unsigned long abort_ino; /* of the connection's abort file, when the daemon was last seen alive;
                                0: no such file */
    pthread_t thread;
};

/* Starts it; it ends the whole process when the daemon is dead. 0 or an errno. */
int poker_guard_start(struct poker_guard *guard);

#endif
