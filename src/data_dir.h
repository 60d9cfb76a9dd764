/* A node's data directory: its lock, its identity, and the mounts that it must not collide with. */
#ifndef KEEL_DATA_DIR_H
#define KEEL_DATA_DIR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "keel_limits.h"

struct identity_member {
    uint64_t id;
    char name[64], address[300];
};

struct identity {
    uint64_t cluster_id, id, incarnation;
    char name[64], token[64];
    /* Of a node that has joined: who the members were then. It starts with them until its log says
     * more. */
    struct identity_member members[KEEL_MEMBERS_MAX];
    size_t member_count;
};

/* Opens (with `create`: makes) the directory and takes its lock; ret_fd holds it for as long as it
 * is open. KEEL_E_BUSY: another process has it. Errors are explained in ret_why. */
int data_dir_lock(const char *dir, bool create, int *ret_fd, char *ret_why, size_t why_size);

/* KEEL_E_NOTFOUND: there is no identity yet. KEEL_E_CORRUPT, KEEL_E_NEWER. */
int identity_load(int dir_fd, struct identity *ret_identity, char *ret_why, size_t why_size);
/* The directory's own name is synced; the identity is written to a new name, synced, renamed, and
 * the directory synced. */
int identity_save(int dir_fd, const struct identity *identity, char *ret_why, size_t why_size);

/* Whoever was removed from its cluster does not come back with this directory: noted in it, for the
 * next start. */
bool removal_is_noted(int dir_fd);
void removal_note(int dir_fd);

/* Ids that every node of a new cluster computes alike. */
uint64_t identity_cluster_id(const char *token, const char *initial_cluster);
uint64_t identity_node_id(const char *token, const char *name);

/* The mount point as an absolute path without symbolic links, after a dead mount of this node
 * (source) on it has been cleared. KEEL_E_NOTFOUND, KEEL_E_NOTDIR, KEEL_E_BUSY (something else that
 * is keelfs is mounted there). */
int mount_point_prepare(const char *path, const char *source, char ret_path[KEEL_PATH_MAX + 1],
                        char *ret_why, size_t why_size);

/* KEEL_E_INVALID: the directory lies below the mount point, or on some keelfs mount. */
int data_dir_check_place(const char *dir, const char *mount_point, char *ret_why, size_t why_size);

/* The same for what the process itself reads and writes while it runs: its program and its standard
 * error. */
int own_files_check_place(char *ret_why, size_t why_size);

#endif
