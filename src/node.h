/* The composition root: one keelfs process. Knows every module; nobody includes this but keelfs.c.
 */
#ifndef KEEL_NODE_H
#define KEEL_NODE_H

#include <stdbool.h>
#include <stdint.h>

#include "keel_limits.h"

struct node_options {
    const char *name, *data_dir, *wal_dir, *listen_peer, *initial_cluster;
    const char *cluster_token; /* NULL: not given */
    const char *join;          /* a member's address; NULL: not given */
    const char *mount_point, *mount_options;
    bool bootstrap, read_local, list_xattr, insecure_peers, no_lease_reads, no_poke;
    uint64_t request_timeout_ms, heartbeat_ms, election_timeout_ms, lease_ms;
    uint64_t quota_bytes, file_size_bytes;
    uint64_t history_ms, history_revisions;
    uint64_t log_kept_bytes; /* 0: KEEL_LOG_KEPT_BYTES */
};

/* Runs until a signal asks it to stop. The exit code: 0 clean stop, 1 operating error (logged, with
 * what to do), 2 wrong usage. */
int node_run(const struct node_options *options);

#endif
