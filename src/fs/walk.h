/* One barrier a path walk.
 *
 * With entry timeouts of zero the kernel asks for every component of a path, and then for what the
 * path was walked for. All of that is one system call, and so one barrier, taken when it began, is
 * enough for all of its requests: whatever had returned on any node before the call began is in the
 * state that answers each of them. (To answer the steps first and to check them under a barrier at
 * the end would be as cheap, but a positive LOOKUP can be the end: that is how mkdir and O_EXCL get
 * their EEXIST, and `[ -d x ]` its answer.)
 *
 *     stat("a/b/f")      LOOKUP 1 "a" -> 5     barrier
 *                        LOOKUP 5 "b" -> 9     goes on: this thread stands at 5
 *                        LOOKUP 9 "f" -> 12    goes on
 *                        GETATTR 12            goes on, and ends the walk
 *
 * A request goes on with its thread's walk if it is for the node that the walk has reached, comes
 * within WALK_GAP_US of the last answer, and the barrier is not older than WALK_AGE_US. What can be
 * mistaken for a continuation (chdir("a") and, at once, stat("b")) sees a state that is as old as
 * that at most. Thread 0 (another pid namespace) never goes on. */
#ifndef FS_WALK_H
#define FS_WALK_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

enum { WALK_GAP_US = 2000, WALK_AGE_US = 50000 };

struct fs_walks;

struct fs_walks *fs_walks_new(void);
struct fs_walks *fs_walks_free(struct fs_walks *walks); /* takes NULL, returns NULL */

/* Does a request of this thread for this node go on with a walk? Then ret_barrier_us is when its
 * barrier was taken. */
bool fs_walk_continues(const struct fs_walks *walks, pid_t pid, uint64_t nodeid, uint64_t now_us,
                       uint64_t *ret_barrier_us);

/* The thread's walk has reached this node, from a barrier taken at barrier_us. The oldest walk may
 * be dropped for it. */
void fs_walk_step(struct fs_walks *walks, pid_t pid, uint64_t nodeid, uint64_t barrier_us,
                  uint64_t now_us);

/* The thread's walk is over. */
void fs_walk_end(struct fs_walks *walks, pid_t pid);

#endif
