/* Path walks, and how few barriers they need (docs/adr/0001-barriers-of-a-walk.md).
 *
 * With entry timeouts of zero the kernel asks for every component of a path, and then for what the
 * path was walked for. The first LOOKUP takes a barrier, the steps after it go on under that one,
 * and the request that ends the walk (OPEN, GETATTR of a file, OPENDIR, READLINK, GETXATTR, a name
 * that is not there) takes its own and checks the steps that went on: ESTALE if one has changed,
 * and the kernel walks anew.
 *
 *     stat("a/b/f")      LOOKUP 1 "a" -> 5     barrier
 *                        LOOKUP 5 "b" -> 9     goes on: this thread stands at 5
 *                        LOOKUP 9 "f" -> 12    goes on
 *                        GETATTR 12            barrier; b and f are checked
 *
 * A request goes on with its thread's walk if it is for the node that the walk has reached, comes
 * within WALK_GAP_US of the last answer, and the barrier is not older than WALK_AGE_US. What only
 * looks like a continuation (chdir("a") and, at once, stat("b")) does no harm: it is checked under
 * the barrier of the end. Thread 0 (another pid namespace) never goes on. On a leader a barrier
 * costs nothing.
 *
 * The kernel asks for a file's attributes (GETATTR, to check permissions) right before its OPEN: an
 * OPEN within WALK_OPEN_US of that answer, by the same thread, needs no third barrier.
 *
 * The kernel walks again only once. So for a while after an ESTALE a thread is careful: each of its
 * LOOKUPs has a barrier of its own, there is nothing to check, and a file that was replaced between
 * its LOOKUP and its OPEN is opened all the same, as on any filesystem. */
#ifndef FS_WALK_H
#define FS_WALK_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "mvcc/mvcc.h"

enum {
    WALK_GAP_US = 2000,
    WALK_AGE_US = 50000,
    WALK_STEPS_MAX = 16,
    WALK_CAREFUL_US = 100000,
    WALK_OPEN_US = 300
};

struct fs_walks;

struct fs_walks *fs_walks_new(void);
struct fs_walks *fs_walks_free(struct fs_walks *walks); /* takes NULL, returns NULL */

/* Does a request of this thread for this node go on with a walk? Then ret_barrier_us is when its
 * barrier was taken. */
bool fs_walk_continues(const struct fs_walks *walks, pid_t pid, uint64_t nodeid, uint64_t now_us,
                       uint64_t *ret_barrier_us);

/* The thread's walk has reached this node, from a barrier taken at barrier_us; `key` had `ino` then
 * (NULL: nothing to check at the end). The oldest walk may be dropped for it. */
void fs_walk_step(struct fs_walks *walks, pid_t pid, uint64_t nodeid, const struct mvcc_key *key,
                  uint64_t ino, uint64_t barrier_us, uint64_t now_us);

/* Is the walk still there, and every one of its steps still true? */
bool fs_walk_holds(const struct fs_walks *walks, const struct mvcc *m, pid_t pid, uint64_t nodeid);

/* The thread was told ESTALE; is that only a moment ago? (Of thread 0: always.) */
void fs_walk_stale(struct fs_walks *walks, pid_t pid, uint64_t now_us);
bool fs_walk_is_careful(const struct fs_walks *walks, pid_t pid, uint64_t now_us);

/* A walk has ended with a GETATTR of this node, under a barrier; is this the OPEN that follows? */
void fs_walk_looked(struct fs_walks *walks, pid_t pid, uint64_t nodeid, uint64_t now_us);
bool fs_walk_has_looked(const struct fs_walks *walks, pid_t pid, uint64_t nodeid, uint64_t now_us);

/* The thread's walk is over. */
void fs_walk_end(struct fs_walks *walks, pid_t pid);

#endif
