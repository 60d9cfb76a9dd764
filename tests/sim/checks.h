/* The checkers: what must hold, whatever happens. The first failure counts. */
#ifndef SIM_CHECKS_H
#define SIM_CHECKS_H

#include "sim.h"

void check_fail(struct sim *sim, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* ---- check.c ---- */

void check_append(struct sim_node *node, const struct wal_batch *batch);
void check_started(struct sim_node *node, const struct wal_recovery *recovery);
void check_node(struct sim_node *node);
/* A message leaves: what it promises is on the disk. */
void check_sent(struct sim_node *node, const struct raft_message *msg);
/* A caller was told that his operation timed out. */
void check_gave_up(struct sim *sim, uint64_t value);
void check_converged(struct sim *sim);
bool check_is_converged(struct sim *sim);
void check_free(struct sim *sim);

/* ---- check_quorum.c ---- */

/* The node's configurations follow its log. */
void check_config_appended(struct sim_node *node, const struct raft_entry *entry);
void check_config_cut(struct sim_node *node, uint64_t from);
/* The log begins with a store or snapshot now, which has what is committed there. */
void check_config_based(struct sim_node *node, uint64_t index);
/* A leader has advanced its commit index: enough disks must have the entry. */
void check_commit_counted(struct sim_node *node, uint64_t commit, bool leads);
/* What is committed for the first time. */
void check_config_committed(struct sim_node *node, uint64_t index);
const struct sim_config *check_config_at(const struct sim *sim, uint64_t index);
const struct raft_config *check_committed_config(const struct sim *sim);
void check_members(struct sim_node *node);
bool check_holds_id(const uint64_t *ids, size_t count, uint64_t id);

/* ---- check_changes.c ---- */

void check_changed(struct sim_node *node, const struct keel_change *change);
void check_reload_begins(struct sim_node *node);
void check_reloaded(struct sim_node *node);
/* The mirror is what the node's state says. */
void check_mirror_start(struct sim_node *node);
void check_mirror(struct sim_node *node);
/* The value of a file at a revision by the common history; false: no such file then. */
bool check_value_at(struct sim *sim, uint64_t ino, uint64_t revision, uint64_t *ret_hash);
/* A write was told this revision: it must be its own. */
void check_wrote(struct sim *sim, uint64_t revision, uint64_t value);
struct sim_value *check_value(struct sim *sim, uint64_t value);

#endif
