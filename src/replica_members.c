/* Members in motion: changes that somebody here asks for, and what a leader makes of them; handing
 * leadership over; who was heard when, and the sessions of those who are not heard any more. */
#include <stdlib.h>

#include "check.h"
#include "err.h"
#include "mutant.h"
#include "raft/quorum.h"
#include "replica_internal.h"

/* ---- who was heard ---- */

static struct known_node *find_known(struct replica *r, uint64_t id)
{
    for (size_t i = 0; i < r->known_count; i++)
        if (r->known[i].id == id)
            return &r->known[i];
    return NULL;
}

/* Room for one more: whoever is not a member goes first. */
static struct known_node *add_known(struct replica *r, uint64_t id)
{
    size_t at = r->known_count;

    for (size_t i = 0; at == KNOWN_MAX && i < KNOWN_MAX; i++)
        if (replica_member(r, r->known[i].id) == NULL)
            at = i;
    if (at == KNOWN_MAX)
        return NULL;
    if (at == r->known_count)
        r->known_count++;
    r->known[at] = (struct known_node){ .id = id };
    return &r->known[at];
}

static struct known_node *get_known(struct replica *r, uint64_t id)
{
    struct known_node *known = find_known(r, id);

    return known != NULL ? known : add_known(r, id);
}

void members_heard(struct replica *r, uint64_t id, uint64_t now)
{
    struct known_node *known = get_known(r, id);

    if (known != NULL)
        known->heard_us = now;
}

void members_connected(struct replica *r, uint64_t id, uint64_t incarnation)
{
    struct known_node *known = get_known(r, id);

    if (known != NULL)
        known->incarnation = incarnation;
}

uint64_t members_incarnation(const struct replica *r, uint64_t id)
{
    for (size_t i = 0; i < r->known_count; i++)
        if (r->known[i].id == id)
            return r->known[i].incarnation;
    return 0;
}

void members_configured(struct replica *r)
{
    bool is_member = replica_member(r, r->options.raft.id) != NULL;

    snapshots_follow(r);
    if (r->was_member && !is_member && !r->removed) {
        r->removed = true;
        r->env->ops->note(r->env,
                          "this node has been removed from the cluster: stop it, and delete "
                          "its data directory before it is added again");
        requests_fail_all(r, KEEL_E_REMOVED);
    }
    r->was_member |= is_member;
}

bool replica_is_removed(const struct replica *r)
{
    return r->removed;
}

/* ---- sessions that are over ---- */

static uint64_t session_end(const struct replica *r, const struct apply_session_info *session)
{
    if (session->node == r->options.raft.id)
        return UINT64_MAX;
    for (size_t i = 0; i < r->known_count; i++)
        if (r->known[i].id == session->node)
            return r->known[i].heard_us + r->options.session_ttl_us;
    return 0;
}

void members_begin_term(struct replica *r, uint64_t now)
{
    for (size_t i = 0; i < apply_session_count(r->apply); i++)
        members_heard(r, apply_session_at(r->apply, i).node, now);
}

static void propose_expiry(struct replica *r, uint64_t now, uint64_t session)
{
    Keel__Command head = KEEL__COMMAND__INIT;
    Keel__SessionExpire expire = KEEL__SESSION_EXPIRE__INIT;

    expire.session = session;
    expire.term = raft_term(r->raft);
    head.op_case = KEEL__COMMAND__OP_SESSION_EXPIRE;
    head.session_expire = &expire;
    requests_send_bare(r, now, &head);
}

/* Proposed again after a while, should the first one come to nothing. */
void members_expire_sessions(struct replica *r, uint64_t now)
{
    for (size_t i = 0; i < apply_session_count(r->apply); i++) {
        struct apply_session_info session = apply_session_at(r->apply, i);
        struct known_node *known = get_known(r, session.node);

        if (known == NULL || session_end(r, &session) > now)
            continue;
        propose_expiry(r, now, session.id);
        known->heard_us = now + DUTY_US - r->options.session_ttl_us;
    }
}

/* ---- what a leader makes of a change ---- */

/* The table and the configuration that a change begins with, and what it makes of them. */
struct draft {
    struct raft_config config;
    struct apply_member members[KEEL_MEMBERS_MAX];
    size_t count;
};

static struct apply_member *draft_find(struct draft *draft, const char *name)
{
    for (size_t i = 0; i < draft->count; i++)
        if (strcmp(draft->members[i].name, name) == 0)
            return &draft->members[i];
    return NULL;
}

static int draft_add(struct draft *draft, const struct keel_member_change *change)
{
    if (!keel_member_address_ok(change->address) || change->id == 0)
        return KEEL_E_INVALID;
    for (size_t i = 0; i < draft->count; i++)
        if (strcmp(draft->members[i].name, change->name) == 0 ||
            strcmp(draft->members[i].address, change->address) == 0 ||
            draft->members[i].id == change->id)
            return KEEL_E_EXISTS;
    if (draft->count == KEEL_MEMBERS_MAX ||
        !raft_config_put(&draft->config, change->id, change->verb == MEMBER_ADD_VOTER))
        return KEEL_E_INVALID;
    draft->members[draft->count++] = (struct apply_member){
        .id = change->id,
        .name = change->name,
        .address = change->address,
    };
    return 0;
}

/* Its name may be given to another one in the same change. */
static int draft_remove(struct draft *draft, struct apply_member *member)
{
    raft_config_drop(&draft->config, member->id);
    *member = draft->members[--draft->count];
    return 0;
}

static int draft_promote(struct draft *draft, const struct apply_member *member)
{
    if (raft_config_is_voter(&draft->config, member->id))
        return KEEL_E_EXISTS;
    return raft_config_put(&draft->config, member->id, true) ? 0 : KEEL_E_INVALID;
}

static int draft_change(struct draft *draft, const struct keel_member_change *change)
{
    if (!keel_member_name_ok(change->name))
        return KEEL_E_INVALID;
    struct apply_member *member = draft_find(draft, change->name);

    switch (change->verb) {
    case MEMBER_ADD:
    case MEMBER_ADD_VOTER:
        return draft_add(draft, change);
    case MEMBER_REMOVE:
        return member != NULL ? draft_remove(draft, member) : KEEL_E_NOTFOUND;
    case MEMBER_PROMOTE:
        return member != NULL ? draft_promote(draft, member) : KEEL_E_NOTFOUND;
    }
    return KEEL_E_INVALID;
}

/* Begins the change. On a leader whose state has the configuration that its log has. */
static int begin_change(struct replica *r, uint64_t now, uint64_t config_index,
                        const struct keel_member_change *changes, size_t count, uint64_t *ret_index)
{
    struct draft draft;
    uint64_t applied;
    const struct apply_member *members = apply_members(r->apply, &draft.count);
    int err = 0;

    draft.config = *apply_config(r->apply, &applied);
    memcpy(draft.members, members, draft.count * sizeof *members);
    if (!leases_leads_for_sure(r))
        return KEEL_E_NOTLEADER;
    if ((applied != raft_config_index(r->raft) && !MUTANT(CHANGE_OVER_CHANGE)) ||
        raft_config_is_joint(&draft.config))
        return KEEL_E_BUSY;
    /* Asked for when the members were others: it may be late, and have been done then. */
    if (config_index != applied)
        return KEEL_E_AGAIN;
    for (size_t i = 0; i < count && err == 0; i++)
        err = draft_change(&draft, &changes[i]);
    if (err != 0)
        return err;
    struct keel_buf *rest = apply_pack_members(draft.members, draft.count);

    err = raft_propose_config(r->raft, now, &draft.config, keel_buf_slice(rest), ret_index);
    keel_buf_free(rest);
    return err;
}

void members_on_change(struct replica *r, uint64_t from, const struct keel_message *msg)
{
    struct keel_message *reply = keel_message_new(MESSAGE_CHANGE_REPLY);

    reply->number = msg->number;
    reply->err =
        begin_change(r, now_of(r), msg->index, msg->changes, msg->change_count, &reply->index);
    r->env->ops->send(r->env, from, reply);
}

void members_on_transfer(struct replica *r, const struct keel_message *msg)
{
    /* Whoever asked sees for himself what comes of it. */
    raft_transfer(r->raft, now_of(r), msg->to);
}

/* ---- what somebody here asks for ---- */

static void copy_changes(struct member_request *request, const struct keel_member_change *changes,
                         size_t count)
{
    request->changes = keel_calloc(count, sizeof *changes);
    request->count = count;
    for (size_t i = 0; i < count; i++) {
        request->changes[i] = changes[i];
        request->changes[i].name = keel_strdup(changes[i].name);
        request->changes[i].address =
            changes[i].address != NULL ? keel_strdup(changes[i].address) : NULL;
    }
}

static bool make_sense(const struct keel_member_change *changes, size_t count)
{
    for (size_t i = 0; i < count && i < KEEL_MEMBERS_MAX; i++) {
        bool adds = changes[i].verb == MEMBER_ADD || changes[i].verb == MEMBER_ADD_VOTER;

        if (!keel_member_name_ok(changes[i].name) ||
            (adds && (!keel_member_address_ok(changes[i].address) || changes[i].id == 0)))
            return false;
    }
    return count > 0 && count <= KEEL_MEMBERS_MAX;
}

static void forget_change(struct replica *r)
{
    keel_member_changes_free(r->change.changes, r->change.count);
    r->change = (struct member_request){ 0 };
}

void replica_change_members(struct replica *r, struct replica_call *call,
                            const struct keel_member_change *changes, size_t count)
{
    requests_call_start(r, call, now_of(r), false);
    if (r->removed) {
        requests_call_fail_later(r, call, KEEL_E_REMOVED);
    } else if (r->change.call != NULL) {
        requests_call_fail_later(r, call, KEEL_E_BUSY);
    } else if (!make_sense(changes, count)) {
        requests_call_fail_later(r, call, KEEL_E_INVALID);
    } else {
        keel_list_add(&r->admin_calls, &call->link);
        r->change.call = call;
        r->change.number = ++r->change_number;
        copy_changes(&r->change, changes, count);
    }
}

void replica_transfer_to(struct replica *r, struct replica_call *call, uint64_t to)
{
    requests_call_start(r, call, now_of(r), false);
    if (r->removed) {
        requests_call_fail_later(r, call, KEEL_E_REMOVED);
    } else if (r->transfer.call != NULL) {
        requests_call_fail_later(r, call, KEEL_E_BUSY);
    } else if (to != 0 && !raft_config_is_voter(apply_config(r->apply, NULL), to)) {
        requests_call_fail_later(r, call, KEEL_E_NOTFOUND);
    } else {
        keel_list_add(&r->admin_calls, &call->link);
        r->transfer = (struct transfer_request){ call, to, raft_leader(r->raft), 0 };
    }
}

void members_call_stopped(struct replica *r, const struct replica_call *call)
{
    if (r->change.call == call)
        forget_change(r);
    if (r->transfer.call == call)
        r->transfer = (struct transfer_request){ 0 };
}

static const struct apply_member *member_named(const struct replica *r, const char *name)
{
    size_t count;
    const struct apply_member *members = apply_members(r->apply, &count);

    for (size_t i = 0; i < count; i++)
        if (strcmp(members[i].name, name) == 0)
            return &members[i];
    return NULL;
}

static bool is_added(const struct replica *r, const char *name)
{
    for (size_t i = 0; i < r->change.count; i++)
        if (r->change.changes[i].address != NULL && strcmp(r->change.changes[i].name, name) == 0)
            return true;
    return false;
}

static bool has_happened(const struct replica *r, const struct keel_member_change *change)
{
    const struct apply_member *member = member_named(r, change->name);

    switch (change->verb) {
    case MEMBER_ADD:
    case MEMBER_ADD_VOTER:
        return member != NULL && member->id == change->id;
    case MEMBER_REMOVE:
        return member == NULL || is_added(r, change->name);
    case MEMBER_PROMOTE:
        return member != NULL && member->voter;
    }
    return false;
}

/* Asked twice, it may have been done the first time. */
static bool all_has_happened(const struct replica *r)
{
    for (size_t i = 0; i < r->change.count; i++)
        if (!has_happened(r, &r->change.changes[i]))
            return false;
    return !raft_config_is_joint(apply_config(r->apply, NULL));
}

static void change_answered(struct replica *r, int err, uint64_t index)
{
    bool later = err == KEEL_E_NOTLEADER || err == KEEL_E_AGAIN ||
                 (err == KEEL_E_BUSY && r->change.attempts > 1);

    if (later)
        return; /* asked again after a while */
    if (err != 0)
        requests_call_finish(r, r->change.call, err);
    else
        r->change.index = index;
}

void members_on_reply(struct replica *r, const struct keel_message *msg)
{
    if (r->change.call != NULL && r->change.number == msg->number && r->change.index == 0)
        change_answered(r, msg->err, msg->index);
}

static void ask_change(struct replica *r, uint64_t leader, uint64_t now)
{
    struct member_request *request = &r->change;
    uint64_t applied;

    apply_config(r->apply, &applied);
    request->asked_us = now;
    request->attempts++;
    if (leader == r->options.raft.id) {
        uint64_t index = 0;
        int err = begin_change(r, now, applied, request->changes, request->count, &index);

        change_answered(r, err, index);
        return;
    }
    struct keel_message *msg = keel_message_new(MESSAGE_CHANGE);
    struct member_request copy;

    copy_changes(&copy, request->changes, request->count);
    msg->number = request->number;
    msg->index = applied;
    msg->changes = copy.changes;
    msg->change_count = copy.count;
    r->env->ops->send(r->env, leader, msg);
}

static bool is_due(uint64_t asked_us, uint64_t now)
{
    return asked_us == 0 || now - asked_us >= DUTY_US;
}

static void pump_change(struct replica *r, uint64_t now)
{
    struct member_request *request = &r->change;
    uint64_t leader = raft_leader(r->raft), applied;
    bool joint = raft_config_is_joint(apply_config(r->apply, &applied));

    if (request->index != 0 && applied >= request->index && !joint && !all_has_happened(r))
        request->index = 0; /* that entry is another one: its leader was deposed */
    if (request->index != 0 ? applied >= request->index && !joint
                            : request->attempts > 0 && all_has_happened(r))
        requests_call_finish(r, request->call, 0);
    else if (request->index == 0 && leader != 0 && is_due(request->asked_us, now))
        ask_change(r, leader, now);
}

static void ask_transfer(struct replica *r, uint64_t leader, uint64_t now)
{
    r->transfer.asked_us = now;
    if (leader == r->options.raft.id) {
        if (raft_transfer(r->raft, now, r->transfer.to) == KEEL_E_INVALID)
            requests_call_finish(r, r->transfer.call, KEEL_E_NOTFOUND);
        return;
    }
    struct keel_message *msg = keel_message_new(MESSAGE_TRANSFER);

    msg->to = r->transfer.to;
    r->env->ops->send(r->env, leader, msg);
}

static void pump_transfer(struct replica *r, uint64_t now)
{
    uint64_t leader = raft_leader(r->raft);

    if (leader == 0)
        return;
    if (r->transfer.from == 0)
        r->transfer.from = leader;
    if (r->transfer.to != 0 ? leader == r->transfer.to : leader != r->transfer.from)
        requests_call_finish(r, r->transfer.call, 0);
    else if (is_due(r->transfer.asked_us, now))
        ask_transfer(r, leader, now);
}

void members_pump(struct replica *r, uint64_t now)
{
    if (r->change.call != NULL)
        pump_change(r, now);
    if (r->transfer.call != NULL)
        pump_transfer(r, now);
}

/* Whether the entry that began the change outlives its leader is not known: the next one is asked,
 * unless the change is seen to be done. */
void members_again(struct replica *r)
{
    r->change.index = 0;
    r->change.asked_us = 0;
    r->transfer.asked_us = 0;
}

uint64_t members_deadline(const struct replica *r)
{
    uint64_t at = UINT64_MAX;

    if (raft_leader(r->raft) != 0 && r->change.call != NULL && r->change.index == 0)
        at = r->change.asked_us + DUTY_US;
    if (raft_leader(r->raft) != 0 && r->transfer.call != NULL &&
        r->transfer.asked_us + DUTY_US < at)
        at = r->transfer.asked_us + DUTY_US;
    for (size_t i = 0; leases_leads_for_sure(r) && i < apply_session_count(r->apply); i++) {
        struct apply_session_info session = apply_session_at(r->apply, i);
        uint64_t end = session_end(r, &session);

        at = end < at ? end : at;
    }
    return at;
}

void members_init(struct replica *r)
{
    keel_list_init(&r->admin_calls);
    r->was_member = replica_member(r, r->options.raft.id) != NULL;
}

void members_free(struct replica *r)
{
    forget_change(r);
}
