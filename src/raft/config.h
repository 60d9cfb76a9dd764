/* Configurations as values: comparing, changing, and their form in a log entry. Pure functions,
 * tested against brute force.
 *
 * A change of voters goes through a joint configuration (thesis 4.3):
 *
 *     voters 1 2 3                      remove 1, add 4
 *     voters 2 3 4, old voters 1 2 3    C_old,new: a majority of each decides
 *     voters 2 3 4                      C_new, which the leader appends by itself
 *
 * A change of learners alone is one step. */
#ifndef RAFT_CONFIG_H
#define RAFT_CONFIG_H

#include "raft/types.h"

/* Whether lists are sorted, without duplicates or zeroes, within KEEL_MEMBERS_MAX in all; voters
 * and learners disjoint; nobody in the old voters without any voters. */
bool raft_config_valid(const struct raft_config *config);
bool raft_config_equal(const struct raft_config *a, const struct raft_config *b);
static inline bool raft_config_is_joint(const struct raft_config *config)
{
    return config->old_voter_count > 0;
}

/* Puts a member in as a voter or a learner, wherever it was before; takes it out of both. The old
 * voters are left alone. False: no room, or nothing to take out. */
bool raft_config_put(struct raft_config *config, uint64_t id, bool voter);
bool raft_config_drop(struct raft_config *config, uint64_t id);

/* The first step from one configuration (not joint) to another (not joint): itself when the voters
 * are the same, else joint. */
struct raft_config raft_config_enter(const struct raft_config *from, const struct raft_config *to);
/* The end of a joint one. */
struct raft_config raft_config_leave(const struct raft_config *joint);

/* Every member once, sorted. */
size_t raft_config_members(const struct raft_config *config, uint64_t ret[KEEL_MEMBERS_MAX]);

/* The data of a RAFT_ENTRY_CONFIG: u8 version 1, u8 counts of voters, old voters and learners, then
 * their ids, u64le each; behind it `rest`, which is the driver's (names, addresses). */
struct keel_buf *raft_config_encode(const struct raft_config *config, struct keel_slice rest);
/* KEEL_E_MALFORMED, KEEL_E_NEWER. rest points into bytes. */
int raft_config_decode(struct keel_slice bytes, struct raft_config *ret_config,
                       struct keel_slice *ret_rest);

#endif
