/* Quorum arithmetic over a configuration, joint or not (thesis 4.3: a majority of both). Pure
 * functions, tested against brute force. */
#ifndef RAFT_QUORUM_H
#define RAFT_QUORUM_H

#include "raft/types.h"

/* Whether the nodes for which `has(arg, id)` is true contain a majority of each voter set. An empty
 * current voter set has no quorum. */
bool raft_quorum_reached(const struct raft_config *config,
                         bool (*has)(const void *arg, uint64_t id), const void *arg);

/* The largest value v such that voters with value(arg, id) >= v form a quorum. */
uint64_t raft_quorum_value(const struct raft_config *config,
                           uint64_t (*value)(const void *arg, uint64_t id), const void *arg);

bool raft_ids_contain(const uint64_t *ids, size_t count, uint64_t id);
bool raft_config_is_voter(const struct raft_config *config, uint64_t id);
bool raft_config_is_member(const struct raft_config *config, uint64_t id);

#endif
