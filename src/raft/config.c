/* Sorted lists of ids, and what a configuration does with them. */
#include <string.h>

#include "bytes.h"
#include "check.h"
#include "err.h"
#include "raft/config.h"
#include "raft/quorum.h"

enum { CONFIG_VERSION = 1, CONFIG_HEAD_BYTES = 4 };

/* ---- lists ---- */

static bool list_valid(const uint64_t *ids, size_t count)
{
    if (count > KEEL_MEMBERS_MAX || (count > 0 && ids[0] == 0))
        return false;
    for (size_t i = 1; i < count; i++) {
        if (ids[i] <= ids[i - 1])
            return false;
    }
    return true;
}

static bool list_equal(const uint64_t *a, size_t a_count, const uint64_t *b, size_t b_count)
{
    return a_count == b_count && memcmp(a, b, a_count * sizeof *a) == 0;
}

/* The position of the first id that is not smaller. */
static size_t list_find(const uint64_t *ids, size_t count, uint64_t id)
{
    size_t at = 0;

    while (at < count && ids[at] < id)
        at++;
    return at;
}

static bool list_has(const uint64_t *ids, size_t count, uint64_t id)
{
    size_t at = list_find(ids, count, id);

    return at < count && ids[at] == id;
}

/* False: it is there already. */
static bool list_insert(uint64_t *ids, size_t *count, uint64_t id)
{
    size_t at = list_find(ids, *count, id);

    if (at < *count && ids[at] == id)
        return false;
    KEEL_ASSERT(*count < KEEL_MEMBERS_MAX);
    memmove(&ids[at + 1], &ids[at], (*count - at) * sizeof *ids);
    ids[at] = id;
    (*count)++;
    return true;
}

/* False: it is not there. */
static bool list_remove(uint64_t *ids, size_t *count, uint64_t id)
{
    size_t at = list_find(ids, *count, id);

    if (at == *count || ids[at] != id)
        return false;
    (*count)--;
    memmove(&ids[at], &ids[at + 1], (*count - at) * sizeof *ids);
    return true;
}

/* ---- configurations ---- */

/* Voters and learners are disjoint; an old voter may be either, or neither. */
static size_t member_count(const struct raft_config *config)
{
    size_t count = config->voter_count + config->learner_count;

    for (size_t i = 0; i < config->old_voter_count; i++) {
        uint64_t id = config->old_voters[i];

        if (!list_has(config->voters, config->voter_count, id) &&
            !list_has(config->learners, config->learner_count, id))
            count++;
    }
    return count;
}

bool raft_config_valid(const struct raft_config *config)
{
    if (!list_valid(config->voters, config->voter_count) ||
        !list_valid(config->old_voters, config->old_voter_count) ||
        !list_valid(config->learners, config->learner_count))
        return false;
    for (size_t i = 0; i < config->learner_count; i++) {
        if (list_has(config->voters, config->voter_count, config->learners[i]))
            return false;
    }
    if (raft_config_is_joint(config) && config->voter_count == 0)
        return false;
    return member_count(config) <= KEEL_MEMBERS_MAX;
}

bool raft_config_equal(const struct raft_config *a, const struct raft_config *b)
{
    return list_equal(a->voters, a->voter_count, b->voters, b->voter_count) &&
           list_equal(a->old_voters, a->old_voter_count, b->old_voters, b->old_voter_count) &&
           list_equal(a->learners, a->learner_count, b->learners, b->learner_count);
}

bool raft_config_put(struct raft_config *config, uint64_t id, bool voter)
{
    KEEL_ASSERT(id != 0);
    if (!raft_config_is_member(config, id) && member_count(config) >= KEEL_MEMBERS_MAX)
        return false;
    if (voter) {
        list_remove(config->learners, &config->learner_count, id);
        list_insert(config->voters, &config->voter_count, id);
    } else {
        list_remove(config->voters, &config->voter_count, id);
        list_insert(config->learners, &config->learner_count, id);
    }
    return true;
}

bool raft_config_drop(struct raft_config *config, uint64_t id)
{
    return list_remove(config->voters, &config->voter_count, id) ||
           list_remove(config->learners, &config->learner_count, id);
}

struct raft_config raft_config_enter(const struct raft_config *from, const struct raft_config *to)
{
    struct raft_config joint = *to;

    KEEL_ASSERT(!raft_config_is_joint(from) && !raft_config_is_joint(to));
    if (list_equal(from->voters, from->voter_count, to->voters, to->voter_count))
        return joint;
    memcpy(joint.old_voters, from->voters, sizeof joint.old_voters);
    joint.old_voter_count = from->voter_count;
    return joint;
}

struct raft_config raft_config_leave(const struct raft_config *joint)
{
    struct raft_config config = *joint;

    KEEL_ASSERT(raft_config_is_joint(joint));
    memset(config.old_voters, 0, sizeof config.old_voters);
    config.old_voter_count = 0;
    return config;
}

size_t raft_config_members(const struct raft_config *config, uint64_t ret[KEEL_MEMBERS_MAX])
{
    size_t count = config->voter_count;

    KEEL_ASSERT(member_count(config) <= KEEL_MEMBERS_MAX);
    memcpy(ret, config->voters, count * sizeof *ret);
    for (size_t i = 0; i < config->old_voter_count; i++)
        list_insert(ret, &count, config->old_voters[i]);
    for (size_t i = 0; i < config->learner_count; i++)
        list_insert(ret, &count, config->learners[i]);
    return count;
}

/* ---- the form in an entry ---- */

static uint8_t *put_list(uint8_t *p, const uint64_t *ids, size_t count)
{
    for (size_t i = 0; i < count; i++)
        put_le64(p + 8 * i, ids[i]);
    return p + 8 * count;
}

struct keel_buf *raft_config_encode(const struct raft_config *config, struct keel_slice rest)
{
    size_t ids = config->voter_count + config->old_voter_count + config->learner_count;
    struct keel_buf *buf;
    uint8_t *p;

    KEEL_ASSERT(raft_config_valid(config));
    buf = keel_buf_new(CONFIG_HEAD_BYTES + 8 * ids + rest.len);
    p = buf->data;
    *p++ = CONFIG_VERSION;
    *p++ = (uint8_t)config->voter_count;
    *p++ = (uint8_t)config->old_voter_count;
    *p++ = (uint8_t)config->learner_count;
    p = put_list(p, config->voters, config->voter_count);
    p = put_list(p, config->old_voters, config->old_voter_count);
    p = put_list(p, config->learners, config->learner_count);
    if (rest.len > 0)
        memcpy(p, rest.data, rest.len);
    return buf;
}

static void get_list(struct keel_cursor *c, uint64_t *ids, size_t count)
{
    for (size_t i = 0; i < count && i < KEEL_MEMBERS_MAX; i++)
        ids[i] = cursor_le64(c);
}

int raft_config_decode(struct keel_slice bytes, struct raft_config *ret_config,
                       struct keel_slice *ret_rest)
{
    struct keel_cursor c = { .rest = bytes };
    struct raft_config config = { 0 };
    uint8_t version = cursor_u8(&c);

    if (version != CONFIG_VERSION)
        return version > CONFIG_VERSION ? KEEL_E_NEWER : KEEL_E_MALFORMED;
    config.voter_count = cursor_u8(&c);
    config.old_voter_count = cursor_u8(&c);
    config.learner_count = cursor_u8(&c);
    get_list(&c, config.voters, config.voter_count);
    get_list(&c, config.old_voters, config.old_voter_count);
    get_list(&c, config.learners, config.learner_count);
    if (c.bad || !raft_config_valid(&config))
        return KEEL_E_MALFORMED;
    *ret_config = config;
    *ret_rest = c.rest;
    return 0;
}
