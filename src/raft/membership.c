/* Which configuration counts, who is a peer by it, and changes of membership (thesis chapter 4).
 *
 * The configuration of the latest entry in the log counts, committed or not. So the ones since the
 * last committed one are kept: if entries are cut off, an earlier one counts again. A peer that is
 * being removed stays a peer until the configuration without it is committed: it is told as much.
 *
 *     configs    {3: 1 2 3} {17: 2 3 4 and 1 2 3} {18: 2 3 4}      commit 16: all of them are kept
 *     cut at 18  {3: 1 2 3} {17: 2 3 4 and 1 2 3}                  17 counts again
 *     commit 17             {17: 2 3 4 and 1 2 3}
 */
#include <stdlib.h>

#include "check.h"
#include "err.h"
#include "mutant.h"
#include "raft/raft_internal.h"

/* ---- peers ---- */

static size_t count_strangers(const struct raft *r)
{
    size_t count = 0;

    for (size_t i = 0; i < r->peer_count; i++)
        count += r->peers[i].member ? 0 : 1;
    return count;
}

static struct raft_peer *insert_peer(struct raft *r, uint64_t id)
{
    size_t at = r->peer_count;

    KEEL_ASSERT(id != 0 && id != r->id && r->peer_count < RAFT_PEERS_MAX);
    for (; at > 0 && r->peers[at - 1].id > id; at--)
        r->peers[at] = r->peers[at - 1];
    r->peers[at] = (struct raft_peer){ .id = id };
    r->peer_count++;
    return &r->peers[at];
}

struct raft_peer *raft_peer_make(struct raft *r, uint64_t id)
{
    struct raft_peer *peer = raft_peer_find(r, id);

    if (peer != NULL || count_strangers(r) >= KEEL_MEMBERS_MAX)
        return peer;
    return insert_peer(r, id);
}

void raft_peer_release(struct raft *r, struct raft_peer *peer)
{
    size_t at = (size_t)(peer - r->peers);

    if (peer->member || (peer->connected && count_strangers(r) <= KEEL_MEMBERS_MAX))
        return;
    free(peer->inflight);
    r->peer_count--;
    memmove(peer, peer + 1, (r->peer_count - at) * sizeof *peer);
}

static void join(struct raft *r, uint64_t id)
{
    struct raft_peer *peer = raft_peer_find(r, id);

    if (peer == NULL)
        peer = insert_peer(r, id);
    if (peer->member)
        return;
    peer->member = true;
    if (r->role == RAFT_LEADER)
        raft_progress_reset(r, peer);
}

static bool is_due_member(const struct raft *r, uint64_t id)
{
    return raft_config_is_member(&r->config, id) ||
           raft_config_is_member(&r->configs[0].config, id);
}

static void part(struct raft *r, struct raft_peer *peer)
{
    /* Its own end is the last thing that it learns. */
    if (r->role == RAFT_LEADER && peer->connected && peer->state == RAFT_REPLICATE)
        raft_send_commit(r, peer);
    if (r->transferee == peer->id)
        r->transferee = 0;
    peer->member = false;
    raft_peer_release(r, peer);
}

/* After every change of what counts. Who is out goes first: so there is room for who is in. */
static void adopt(struct raft *r)
{
    uint64_t members[KEEL_MEMBERS_MAX];
    size_t count;

    r->config = r->configs[r->config_count - 1].config;
    for (size_t i = r->peer_count; i-- > 0;)
        if (r->peers[i].member && !is_due_member(r, r->peers[i].id))
            part(r, &r->peers[i]);
    count = raft_config_members(&r->config, members);
    for (size_t i = 0; i < count; i++)
        if (members[i] != r->id)
            join(r, members[i]);
}

/* ---- what counts ---- */

static void push_config(struct raft *r, uint64_t index, const struct raft_config *config)
{
    r->configs = raft_grow(r->configs, r->config_count, &r->config_capacity, sizeof *r->configs);
    r->configs[r->config_count++] = (struct raft_config_at){ index, *config };
}

void raft_config_init(struct raft *r, const struct raft_config *config, uint64_t index)
{
    KEEL_ASSERT(raft_config_valid(config));
    r->config_count = 0;
    push_config(r, index, config);
    adopt(r);
}

static bool decode(const struct raft_entry *entry, struct raft_config *ret_config)
{
    struct keel_slice rest;

    return entry->data != NULL &&
           raft_config_decode(keel_buf_slice(entry->data), ret_config, &rest) == 0 &&
           ret_config->voter_count > 0;
}

bool raft_config_entry_valid(const struct raft_entry *entry)
{
    struct raft_config config;

    return decode(entry, &config);
}

void raft_config_appended(struct raft *r, const struct raft_entry *entry)
{
    struct raft_config config;
    bool valid = decode(entry, &config);

    KEEL_ASSERT(valid);
    push_config(r, entry->index, &config);
    adopt(r);
}

void raft_config_cut(struct raft *r, uint64_t from)
{
    size_t count = r->config_count;

    while (count > 1 && r->configs[count - 1].index >= from)
        count--;
    KEEL_ASSERT(r->configs[count - 1].index < from);
    if (count == r->config_count || MUTANT(CONFIG_KEPT_ON_CUT))
        return;
    r->config_count = count;
    adopt(r);
}

void raft_config_committed(struct raft *r)
{
    size_t old = 0;

    while (old + 1 < r->config_count && r->configs[old + 1].index <= r->hard.commit)
        old++;
    if (old == 0)
        return;
    r->config_count -= old;
    memmove(r->configs, r->configs + old, r->config_count * sizeof *r->configs);
    adopt(r);
}

bool raft_may_stand(const struct raft *r)
{
    for (size_t i = 0; i < r->config_count; i++)
        if (raft_config_is_voter(&r->configs[i].config, r->id))
            return true;
    return false;
}

/* ---- changes ---- */

bool raft_is_caught_up(const struct raft *r, uint64_t id)
{
    const struct raft_peer *peer = raft_peer_get(r, id);

    return r->role == RAFT_LEADER && peer != NULL && peer->connected &&
           peer->state == RAFT_REPLICATE && peer->match >= r->caught_up_index;
}

/* A learner votes when it holds what the others have: else the cluster might have to wait for it
 * (thesis 4.2.1). Whoever is made a voter from nothing is so by the operator's express wish. */
static bool learners_are_ready(const struct raft *r, const struct raft_config *target)
{
    for (size_t i = 0; i < target->voter_count; i++) {
        uint64_t id = target->voters[i];

        if (raft_ids_contain(r->config.learners, r->config.learner_count, id) &&
            !raft_is_caught_up(r, id))
            return false;
    }
    return true;
}

/* The new voters that are members already, and here, are a majority of it: whoever is new cannot be
 * waited for, since he is let in only by what he would have to agree to. */
static bool can_be_committed(const struct raft *r, const struct raft_config *target)
{
    size_t here = 0;

    for (size_t i = 0; i < target->voter_count; i++) {
        uint64_t id = target->voters[i];
        const struct raft_peer *peer = raft_peer_get(r, id);

        if (raft_config_is_member(&r->config, id) &&
            (id == r->id || (peer != NULL && peer->connected)))
            here++;
    }
    return here > target->voter_count / 2;
}

static int check_change(const struct raft *r, const struct raft_config *target)
{
    if (r->role != RAFT_LEADER || r->transferee != 0 || !raft_term_committed(r))
        return KEEL_E_NOTLEADER;
    if (!raft_config_valid(target) || raft_config_is_joint(target) || target->voter_count == 0)
        return KEEL_E_INVALID;
    if (raft_config_is_joint(&r->config) ||
        (raft_config_index(r) > r->hard.commit && !MUTANT(CHANGE_OVER_CHANGE)))
        return KEEL_E_BUSY;
    if (raft_config_equal(&r->config, target))
        return KEEL_E_EXISTS;
    return learners_are_ready(r, target) && can_be_committed(r, target) ? 0 : KEEL_E_NOTREADY;
}

int raft_propose_config(struct raft *r, uint64_t now_us, const struct raft_config *target,
                        struct keel_slice rest, uint64_t *ret_index)
{
    raft_enter(r, now_us);
    int err = check_change(r, target);

    if (err != 0)
        return err;
    struct raft_config first = raft_config_enter(&r->config, target);

    if (!raft_config_valid(&first))
        return KEEL_E_INVALID; /* old and new members together are too many */
    raft_append_own(r, RAFT_ENTRY_CONFIG, raft_config_encode(&first, rest));
    *ret_index = raft_tail_last(&r->log);
    return 0;
}

static void leave_joint(struct raft *r)
{
    struct raft_config config = raft_config_leave(&r->config);

    raft_append_own(r, RAFT_ENTRY_CONFIG, raft_config_encode(&config, keel_slice_of(NULL, 0)));
}

/* The configuration without this node as a voter is committed: what it still had to do is done
 * (thesis 4.2.2). Somebody else is asked to take over at once. */
static void leave_office(struct raft *r)
{
    uint64_t to = raft_furthest_voter(r);

    if (to != 0)
        raft_hand_over(r, to);
    raft_become_follower(r, r->hard.term, 0);
}

void raft_membership_step(struct raft *r)
{
    if (r->role != RAFT_LEADER || !raft_term_committed(r) ||
        (raft_config_index(r) > r->hard.commit && !MUTANT(LEAVE_TOO_EARLY)))
        return;
    if (raft_config_is_joint(&r->config))
        leave_joint(r);
    else if (!raft_config_is_voter(&r->config, r->id))
        leave_office(r);
}
