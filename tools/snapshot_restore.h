/* A data directory of a new cluster, out of a snapshot file. The same call for each of the members
 * makes the same replicated state on all of them, as of the snapshot's log entry; their logs begin
 * behind it. What was in it of the old cluster (who its members were, the sessions of their nodes)
 * is gone; leases are kept with the time that they had left, and so end unless their holders come
 * back. */
#ifndef SNAPSHOT_RESTORE_H
#define SNAPSHOT_RESTORE_H

#include "mvcc/snapshot.h"

struct restore_options {
    const char *file;
    const char *data_dir; /* absent, or empty */
    const char *wal_dir;  /* NULL: in the data directory; else absent, or empty, too */
    const char *name, *initial_cluster;
    const char *cluster_token; /* NULL: the default */
    uint64_t bump_revision;    /* main revisions that are skipped */
};

/* Reads the file to its end and checks all of it. sink: as of snapshot_reader_new. KEEL_E_IO,
 * KEEL_E_CORRUPT, KEEL_E_NEWER, or the sink's. */
int snapshot_file_read(int fd, int (*sink)(void *arg, struct kv_batch *batch_take), void *arg,
                       struct snapshot_info *ret_info, char *ret_why, size_t why_size);

/* Nothing is touched before the file was found good, and whatever was made is removed when it
 * fails. After a crash there is no identity in the directory, so that no node takes it for its own;
 * what is left in restore.new is cleared by the next call. KEEL_E_INVALID (options),
 * KEEL_E_NOTEMPTY, KEEL_E_BUSY, KEEL_E_CORRUPT, KEEL_E_NEWER, KEEL_E_IO, KEEL_E_DISKFULL: ret_why
 * says what. */
int snapshot_restore(const struct restore_options *options, struct snapshot_info *ret_info,
                     char *ret_why, size_t why_size);

#endif
