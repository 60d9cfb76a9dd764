/* Commits, counted anew from the disks: what a leader takes for committed must be durable on a
 * majority of the voters of the configuration in force, on both when it is joint. Configurations
 * are followed entry by entry, apart from raft's own book-keeping. */
#include <inttypes.h>
#include <stdlib.h>

#include "check.h"
#include "checks.h"

bool check_holds_id(const uint64_t *ids, size_t count, uint64_t id)
{
    for (size_t i = 0; i < count; i++)
        if (ids[i] == id)
            return true;
    return false;
}

/* ---- configurations of one log ---- */

static void push(struct sim_config **configs, size_t *count, size_t *capacity,
                 const struct sim_config *config)
{
    if (*count == *capacity) {
        *capacity = *capacity ? 2 * *capacity : 4;
        *configs = keel_realloc(*configs, *capacity * sizeof **configs);
    }
    (*configs)[(*count)++] = *config;
}

static const struct sim_config *config_until(const struct sim_config *configs, size_t count,
                                             uint64_t index)
{
    while (count > 0 && configs[count - 1].index > index)
        count--;
    return count > 0 ? &configs[count - 1] : NULL;
}

void check_config_appended(struct sim_node *node, const struct raft_entry *entry)
{
    struct sim_config config = { .index = entry->index };
    struct keel_slice rest;

    if (entry->kind != RAFT_ENTRY_CONFIG)
        return;
    if (raft_config_decode(keel_buf_slice(entry->data), &config.config, &rest) != 0 ||
        !raft_config_valid(&config.config))
        check_fail(node->sim, "n%u appends a configuration that is none at %" PRIu64, node->slot,
                   entry->index);
    if (node->replica != NULL && entry->term == raft_term(node->replica->raft) &&
        raft_role(node->replica->raft) == RAFT_LEADER && node->config_count > 0 &&
        node->configs[node->config_count - 1].index > raft_commit_index(node->replica->raft))
        check_fail(node->sim,
                   "n%u appends a configuration at %" PRIu64 ", the one before is not committed",
                   node->slot, entry->index);
    push(&node->configs, &node->config_count, &node->config_capacity, &config);
}

void check_config_cut(struct sim_node *node, uint64_t from)
{
    while (node->config_count > 0 && node->configs[node->config_count - 1].index >= from)
        node->config_count--;
    if (node->counted_by >= from)
        node->counted_by = 0;
}

void check_config_based(struct sim_node *node, uint64_t index)
{
    const struct sim_config *config = check_config_at(node->sim, index);
    size_t below = 0;

    while (below < node->config_count && node->configs[below].index <= index)
        below++;
    if (config == NULL || (below > 0 && node->configs[below - 1].index == config->index))
        return;
    push(&node->configs, &node->config_count, &node->config_capacity, config);
    memmove(node->configs + 1, node->configs + below,
            (node->config_count - 1 - below) * sizeof *node->configs);
    node->configs[0] = *config;
    node->config_count -= below;
}

/* ---- committed ones ---- */

const struct sim_config *check_config_at(const struct sim *sim, uint64_t index)
{
    return config_until(sim->configs, sim->config_count, index);
}

const struct raft_config *check_committed_config(const struct sim *sim)
{
    const struct sim_config *config = check_config_at(sim, UINT64_MAX);

    return config != NULL ? &config->config : NULL;
}

void check_config_committed(struct sim_node *node, uint64_t index)
{
    struct sim *sim = node->sim;
    const struct sim_config *config = config_until(node->configs, node->config_count, index);

    if (config == NULL || config->index != index)
        return;
    sim_trace(sim, "configuration of %" PRIu64 ": %zu voters, %zu old ones, %zu learners", index,
              config->config.voter_count, config->config.old_voter_count,
              config->config.learner_count);
    push(&sim->configs, &sim->config_count, &sim->config_capacity, config);
}

/* ---- counting ---- */

static bool node_holds(const struct sim_node *node, uint64_t index, uint64_t term)
{
    return node->store_durable >= index ||
           (node->persisted_last >= index && node->log[index].term == term);
}

/* A disk that is lost had it, when its node acknowledged. */
static bool lost_held(const struct sim *sim, uint64_t id, uint64_t index)
{
    for (size_t i = 0; i < sim->lost_count; i++)
        if (sim->lost[i].id == id &&
            (sim->lost[i].persisted_last >= index || sim->lost[i].store_durable >= index))
            return true;
    return false;
}

static bool is_majority(struct sim *sim, const uint64_t *ids, size_t count, uint64_t index,
                        uint64_t term)
{
    size_t holders = 0;

    for (size_t i = 0; i < count; i++) {
        const struct sim_node *node = sim_node_by_id(sim, ids[i]);
        bool there = node != NULL && node->state != SLOT_WIPED && node_holds(node, index, term);

        holders += there || lost_held(sim, ids[i], index);
    }
    return holders * 2 > count;
}

static bool is_quorum(struct sim *sim, const struct raft_config *config, uint64_t index,
                      uint64_t term)
{
    return is_majority(sim, config->voters, config->voter_count, index, term) &&
           (config->old_voter_count == 0 ||
            is_majority(sim, config->old_voters, config->old_voter_count, index, term));
}

/* By the configuration that was the log's latest at the last look, or by a later one that is
 * committed by this: one that was appended only after the counting does not count. */
static const struct sim_config *config_in_force(const struct sim_node *node, uint64_t commit)
{
    const struct sim_config *before =
        config_until(node->configs, node->config_count, node->counted_by);
    const struct sim_config *by_commit = config_until(node->configs, node->config_count, commit);

    if (before == NULL || (by_commit != NULL && by_commit->index > before->index))
        return by_commit;
    return before;
}

/* In one event a leader may have committed the joint configuration, left it, and counted on by the
 * new one: then both majorities hold an entry of its term from the joint one on, and the new one's
 * the rest. */
static bool left_meanwhile(const struct sim_node *node, const struct sim_config *joint,
                           uint64_t commit, uint64_t term)
{
    const struct sim_config *last = &node->configs[node->config_count - 1];
    struct raft_config left = raft_config_leave(&joint->config);

    if (!raft_config_is_joint(&joint->config) || last->index <= commit ||
        !raft_config_equal(&last->config, &left) || !is_quorum(node->sim, &left, commit, term))
        return false;
    for (uint64_t i = joint->index; i <= commit; i++)
        if (node->log[i].term == term && is_quorum(node->sim, &joint->config, i, term))
            return true;
    return false;
}

void check_commit_counted(struct sim_node *node, uint64_t commit, bool leads)
{
    struct sim *sim = node->sim;

    if (commit > sim->committed_last && commit > 1) {
        const struct sim_config *config = config_in_force(node, commit);
        uint64_t term = commit <= node->log_last ? node->log[commit].term : 0;

        if (config == NULL)
            check_fail(sim, "n%u commits %" PRIu64 " without a configuration", node->slot, commit);
        else if (!leads && node->led_term == 0)
            check_fail(sim, "n%u takes %" PRIu64 " for committed, before any leader does",
                       node->slot, commit);
        else if (leads && term != raft_term(node->replica->raft))
            check_fail(sim, "n%u commits %" PRIu64 " of an earlier term by counting", node->slot,
                       commit);
        else if (!is_quorum(sim, &config->config, commit, term) &&
                 !left_meanwhile(node, config, commit, term))
            check_fail(
                sim, "n%u takes %" PRIu64 " for committed, which is not on the disks of a majority",
                node->slot, commit);
    }
    node->counted_by = node->config_count > 0 ? node->configs[node->config_count - 1].index : 0;
    if (raft_config_index(node->replica->raft) != node->counted_by)
        check_fail(sim, "n%u goes by the configuration of %" PRIu64 ", its log has one at %" PRIu64,
                   node->slot, raft_config_index(node->replica->raft), node->counted_by);
}

/* ---- members, as applied ---- */

static bool same_ids(const uint64_t *a, size_t a_count, const uint64_t *b, size_t b_count)
{
    return a_count == b_count && (a_count == 0 || memcmp(a, b, a_count * sizeof *a) == 0);
}

static bool same_config(const struct raft_config *a, const struct raft_config *b)
{
    return same_ids(a->voters, a->voter_count, b->voters, b->voter_count) &&
           same_ids(a->old_voters, a->old_voter_count, b->old_voters, b->old_voter_count) &&
           same_ids(a->learners, a->learner_count, b->learners, b->learner_count);
}

/* The applied configuration is the latest committed up to there, and the member table agrees. */
void check_members(struct sim_node *node)
{
    struct sim *sim = node->sim;
    uint64_t index;
    const struct raft_config *config = apply_config(node->apply, &index);
    size_t count;
    const struct apply_member *members = apply_members(node->apply, &count);

    if (index == node->checked_members)
        return;
    node->checked_members = index;
    const struct sim_config *known = check_config_at(sim, index);

    if (known == NULL || known->index != index || !same_config(&known->config, config)) {
        check_fail(sim, "n%u applied another configuration at %" PRIu64 " than was committed",
                   node->slot, index);
        return;
    }
    for (size_t i = 0; i < count; i++) {
        bool voter = check_holds_id(config->voters, config->voter_count, members[i].id);
        bool other = check_holds_id(config->old_voters, config->old_voter_count, members[i].id) ||
                     check_holds_id(config->learners, config->learner_count, members[i].id);

        if (!voter && !other)
            check_fail(sim, "n%u lists %" PRIu64 " as a member, which it is not", node->slot,
                       members[i].id);
    }
}
