/* What power would take with it: the changes of files that are not synced yet, and those of
 * directories. Not safe for threads: the caller holds a lock.
 *
 * Of a file each write since its last sync is known with the bytes that it replaced, and each
 * change of its size. Of directories each name that was made, moved or removed since the
 * directory's last sync; the file of a name that was removed stays linked in `graves`, so that it
 * can come back. The sync of a file says nothing about its name.
 *
 * A cut takes back all of it, and does again what has reached the disk by chance: each sector of
 * 512 bytes of each write by itself is there, or not, or in part, or zeroes; each change of a size,
 * and each change of a directory, is there or not. A change of a directory that needs one that is
 * lost (the renaming of a file that was never made) is lost as well. */
#ifndef KEEL_FAULTS_UNSYNCED_H
#define KEEL_FAULTS_UNSYNCED_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>

struct unsynced_file;

/* `own` is a directory on the same file system as the files: it has `graves`, and `state`, what a
 * life before this one has left unsynced: that counts here too, and is forgotten there. */
void unsynced_init(const char *own);

/* Leaves it for the next life. */
void unsynced_save(void);

/* ---- files ---- */

/* That of an open file. */
struct unsynced_file *unsynced_file(int fd, const struct stat *st);

/* A write with O_DSYNC is durable when it is done. If power is lost in it, then each of its sectors
 * is written from the front as far as it comes: LMDB relies on that for its meta page. */
enum unsynced_through { NOT_THROUGH, THROUGH, THROUGH_CUT };

/* Do the call, and remember what it changed. Results and errno are the call's. */
ssize_t unsynced_write(struct unsynced_file *file, int fd, const struct iovec *iov, int count,
                       off_t offset, enum unsynced_through through);
int unsynced_truncate(struct unsynced_file *file, off_t size);
int unsynced_allocate(struct unsynced_file *file, int mode, off_t offset, off_t len);

/* Is mapped for writing: nobody knows what of it is on the disk. */
void unsynced_mapped(struct unsynced_file *file);

/* The number of the last change, of anything: taken before a sync begins, which covers no later
 * one.
 */
uint64_t unsynced_last(void);
void unsynced_sync(struct unsynced_file *file, uint64_t last);

/* ---- directories ---- */

enum unsynced_op { OP_CREATE, OP_MKDIR, OP_UNLINK, OP_RMDIR, OP_RENAME, OP_EXCHANGE };

/* Absolute paths; `to` of OP_RENAME and OP_EXCHANGE only, in the same directory. unsynced_bury
 * comes before what removes or replaces a file, and its result is `grave` then (NULL: there was
 * none). */
char *unsynced_bury(const char *path);
void unsynced_name(enum unsynced_op op, const char *path, const char *to, char *grave_take);
void unsynced_sync_names(const char *dir, uint64_t last);

/* ---- power is lost ---- */

/* Afterwards the files are as a machine that comes back would find them, and the process has to end
 * without touching them. */
void unsynced_cut(uint64_t seed);

#endif
