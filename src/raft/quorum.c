/* Majorities of one voter set, and of both while a configuration is joint. */
#include "check.h"
#include "mutant.h"
#include "raft/quorum.h"

bool raft_ids_contain(const uint64_t *ids, size_t count, uint64_t id)
{
    for (size_t i = 0; i < count; i++) {
        if (ids[i] == id)
            return true;
    }
    return false;
}

static bool majority_has(const uint64_t *ids, size_t count,
                         bool (*has)(const void *arg, uint64_t id), const void *arg)
{
    size_t having = 0;

    for (size_t i = 0; i < count; i++)
        having += has(arg, ids[i]) ? 1 : 0;
    return having > count / 2;
}

bool raft_quorum_reached(const struct raft_config *config,
                         bool (*has)(const void *arg, uint64_t id), const void *arg)
{
    if (!majority_has(config->voters, config->voter_count, has, arg))
        return false;
    return config->old_voter_count == 0 || MUTANT(JOINT_ONE_MAJORITY) ||
           majority_has(config->old_voters, config->old_voter_count, has, arg);
}

/* Sorted descending, the value at position count / 2 is the smallest of the best majority: of 9 7 4
 * it is 7, of 9 7 4 1 it is 4. */
static uint64_t majority_value(const uint64_t *ids, size_t count,
                               uint64_t (*value)(const void *arg, uint64_t id), const void *arg)
{
    uint64_t sorted[KEEL_MEMBERS_MAX];

    KEEL_ASSERT(count > 0 && count <= KEEL_MEMBERS_MAX);
    for (size_t i = 0; i < count; i++) {
        uint64_t v = value(arg, ids[i]);
        size_t at = i;

        for (; at > 0 && sorted[at - 1] < v; at--)
            sorted[at] = sorted[at - 1];
        sorted[at] = v;
    }
    return sorted[count / 2];
}

uint64_t raft_quorum_value(const struct raft_config *config,
                           uint64_t (*value)(const void *arg, uint64_t id), const void *arg)
{
    uint64_t current, old;

    if (config->voter_count == 0)
        return 0;
    current = majority_value(config->voters, config->voter_count, value, arg);
    if (config->old_voter_count == 0 || MUTANT(JOINT_ONE_MAJORITY))
        return current;
    old = majority_value(config->old_voters, config->old_voter_count, value, arg);
    return old < current ? old : current;
}

bool raft_config_is_voter(const struct raft_config *config, uint64_t id)
{
    return raft_ids_contain(config->voters, config->voter_count, id) ||
           raft_ids_contain(config->old_voters, config->old_voter_count, id);
}

bool raft_config_is_member(const struct raft_config *config, uint64_t id)
{
    return raft_config_is_voter(config, id) ||
           raft_ids_contain(config->learners, config->learner_count, id);
}
