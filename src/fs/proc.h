/* What the mount wants to know about a caller, from /proc: only `status`, `stat`, `children` and
 * the links in `fd/`, which never touch our own mount. Each look costs some 30 µs: only where
 * docs/architecture.md says so. */
#ifndef FS_PROC_H
#define FS_PROC_H

#include <stdbool.h>
#include <sys/types.h>

#include "buf.h"

/* Is a fatal signal waiting? (The kernel turns each one into SIGKILL.) False when it can't be told.
 */
bool proc_kill_pending(pid_t pid);
/* Is this thread going because of a signal? False when it can't be told. */
bool proc_killed(pid_t pid);
/* The thread group of a thread; 0: gone, or unknown. */
pid_t proc_group(pid_t pid);
/* Has this thread no children that live? They may have inherited its descriptors. False when it
 * can't be told. */
bool proc_childless(pid_t pid);
/* Has the process a descriptor of the file at `path` below `mount_point`? A link to elsewhere may
 * be the same file by a bind mount: one that ends in the same name counts. True when it can't be
 * told. */
bool proc_holds(pid_t pid, struct keel_slice mount_point, struct keel_slice path);

/* The same on the text of the files: pure. */
bool proc_parse_kill_pending(const char *status);
bool proc_parse_killed(const char *stat);
pid_t proc_parse_group(const char *status);
bool proc_link_is(struct keel_slice link, struct keel_slice mount_point, struct keel_slice path);

#endif
