/* Who the members are: configuration entries bring them, contacts say which data directory each
 * has. */
#include <stdlib.h>

#include "apply_internal.h"
#include "check.h"
#include "err.h"
#include "mutant.h"

static bool plain(const char *text, size_t max)
{
    size_t len = text != NULL ? strlen(text) : 0;

    return len > 0 && len <= max;
}

static struct apply_member *find(struct apply *a, uint64_t id)
{
    for (size_t i = 0; i < a->member_count; i++)
        if (a->members[i].id == id)
            return &a->members[i];
    return NULL;
}

void apply_add_member(struct apply *a, const struct apply_member *member)
{
    KEEL_ASSERT(a->member_count < KEEL_MEMBERS_MAX);
    struct apply_member *copy = &a->members[a->member_count++];

    *copy = *member;
    copy->name = keel_strdup(member->name);
    copy->address = keel_strdup(member->address);
}

void apply_clear_members(struct apply *a)
{
    for (size_t i = 0; i < a->member_count; i++) {
        free(a->members[i].name);
        free(a->members[i].address);
    }
    a->member_count = 0;
}

/* ---- configurations ---- */

/* Takes in whoever is named and in the configuration; whoever was known keeps his incarnation. */
static int take_named(struct apply *a, const struct raft_config *config, struct keel_slice rest)
{
    if (rest.len == 0)
        return 0;
    Keel__Members *named = keel__members__unpack(&a->arena.allocator, rest.len, rest.data);

    if (named == NULL)
        return KEEL_E_MALFORMED;
    for (size_t i = 0; i < named->n_members; i++) {
        const Keel__MemberState *m = named->members[i];

        if (find(a, m->id) != NULL || !raft_config_is_member(config, m->id))
            continue;
        if (!plain(m->name, KEEL_NAME_MAX) || !plain(m->address, KEEL_PATH_MAX) ||
            a->member_count == KEEL_MEMBERS_MAX)
            return KEEL_E_MALFORMED;
        apply_add_member(
            a, &(struct apply_member){ .id = m->id, .name = m->name, .address = m->address });
    }
    return 0;
}

static void drop_gone(struct apply *a)
{
    size_t kept = 0;

    for (size_t i = 0; i < a->member_count; i++) {
        struct apply_member *member = &a->members[i];

        if (raft_config_is_member(&a->config, member->id)) {
            member->voter = raft_config_is_voter(&a->config, member->id);
            a->members[kept++] = *member;
            continue;
        }
        apply_end_sessions(a, member->id);
        free(member->name);
        free(member->address);
    }
    a->member_count = kept;
}

int apply_configuration(struct apply *a, const struct raft_entry *entry,
                        struct apply_outcome *outcome)
{
    struct raft_config config;
    struct keel_slice rest;
    int err = raft_config_decode(keel_buf_slice(entry->data), &config, &rest);
    uint64_t ids[KEEL_MEMBERS_MAX];

    if (err == 0)
        err = take_named(a, &config, rest);
    if (err != 0)
        return err;
    a->config = config;
    a->config_index = entry->index;
    drop_gone(a);
    if (a->member_count != raft_config_members(&config, ids))
        return KEEL_E_MALFORMED; /* somebody has no name */
    outcome->members_changed = outcome->config_changed = true;
    return 0;
}

struct keel_buf *apply_pack_members(const struct apply_member *members, size_t count)
{
    Keel__Members all = KEEL__MEMBERS__INIT;
    Keel__MemberState states[KEEL_MEMBERS_MAX], *list[KEEL_MEMBERS_MAX];

    KEEL_ASSERT(count <= KEEL_MEMBERS_MAX);
    for (size_t i = 0; i < count; i++) {
        keel__member_state__init(&states[i]);
        states[i].id = members[i].id;
        states[i].name = members[i].name;
        states[i].address = members[i].address;
        list[i] = &states[i];
    }
    all.n_members = count;
    all.members = list;
    struct keel_buf *buf = keel_buf_new(keel__members__get_packed_size(&all));

    keel__members__pack(&all, buf->data);
    return buf;
}

struct raft_entry apply_first_entry(const struct apply_member *members, size_t count)
{
    struct raft_config config = { 0 };

    for (size_t i = 0; i < count; i++) {
        bool fits = raft_config_put(&config, members[i].id, true);

        KEEL_ASSERT(fits);
    }
    struct keel_buf *rest = apply_pack_members(members, count);
    struct raft_entry entry = {
        .term = 1,
        .index = 1,
        .kind = RAFT_ENTRY_CONFIG,
        .data = raft_config_encode(&config, keel_buf_slice(rest)),
    };

    keel_buf_free(rest);
    return entry;
}

void apply_found(struct apply *a, const struct apply_member *members, size_t count)
{
    while (a->session_count > 0)
        apply_end_sessions(a, a->sessions[0].node);
    apply_clear_members(a);
    a->config = (struct raft_config){ 0 };
    a->config_index = mvcc_applied_index(a->mvcc);
    for (size_t i = 0; i < count; i++) {
        struct apply_member member = members[i];
        bool fits = raft_config_put(&a->config, member.id, true);

        KEEL_ASSERT(fits);
        member.voter = true;
        member.incarnation = 0;
        apply_add_member(a, &member);
    }
}

/* ---- contacts ---- */

int apply_contact(struct apply_op *op, const Keel__Contact *contact)
{
    struct apply_member *member = find(op->a, contact->node);

    if (member == NULL)
        return KEEL_E_NOTFOUND;
    if (member->incarnation != 0)
        return KEEL_E_EXISTS;
    member->incarnation = MUTANT(WIPED_VOTES) ? 0 : contact->incarnation;
    op->outcome->members_changed = true;
    return 0;
}

/* ---- verdicts ---- */

/* It stays with the member until that is removed: nobody can tell what else is wrong with its data.
 */
int apply_verdict(struct apply_op *op, const Keel__Verdict *verdict)
{
    for (size_t i = 0; i < verdict->n_nodes; i++) {
        struct apply_member *member = find(op->a, verdict->nodes[i]);

        if (member == NULL || member->corrupt_index != 0)
            continue;
        member->corrupt_index = verdict->index;
        op->outcome->members_changed = true;
    }
    return 0;
}

/* ---- state ---- */

const struct apply_member *apply_members(const struct apply *a, size_t *ret_count)
{
    *ret_count = a->member_count;
    return a->members;
}

const struct raft_config *apply_config(const struct apply *a, uint64_t *ret_index)
{
    if (ret_index != NULL)
        *ret_index = a->config_index;
    return &a->config;
}
