/* Leases in motion: what this node keeps alive, and what a leader does for everybody: renewals,
 * expiry, checkpoints of remaining time, and the standing duties of a new cluster (settings, first
 * contacts). */
#include <stdlib.h>

#include "check.h"
#include "err.h"
#include "mutant.h"
#include "replica_internal.h"

enum { AGAIN_US = 50000 }; /* after an expiry could not be proposed */

/* A renewal is a read of the leader's own position: it counts only once a quorum (or the leader
 * lease) has confirmed that no other leader can have given the lease away. */
struct renewal {
    struct replica_call call;
    struct replica *r;
    uint64_t from, sent_us;
    size_t count;
    uint64_t leases[];
};

static struct lease_keeper *keeper_of(struct keel_link *link)
{
    return KEEL_CONTAINER_OF(link, struct lease_keeper, link);
}

static struct lease_keeper *find_keeper(const struct replica *r, uint64_t lease)
{
    for (struct keel_link *l = r->keepers.next; l != &r->keepers; l = l->next)
        if (keeper_of(l)->lease == lease)
            return keeper_of(l);
    return NULL;
}

/* ---- the holder's side ---- */

/* One percent less than the ttl: clocks drift, and the holder has to be the first to lose it. */
static uint64_t lost_at(const struct lease_keeper *keeper)
{
    return keeper->confirmed_us + keeper->ttl_us - keeper->ttl_us / 100;
}

static uint64_t renew_at(const struct lease_keeper *keeper)
{
    uint64_t fresh = keeper->confirmed_us + keeper->ttl_us / 3;
    uint64_t again =
        keeper->asked_us + (keeper->ttl_us / 12 < 200000 ? keeper->ttl_us / 12 : 200000);

    return fresh > again ? fresh : again;
}

void replica_lease_keep(struct replica *r, uint64_t lease, uint64_t sent_us)
{
    struct lease_keeper *keeper = find_keeper(r, lease);
    struct lease_info info;

    if (keeper != NULL) {
        keeper->count++;
        return;
    }
    keeper = keel_calloc(1, sizeof *keeper);
    keeper->lease = lease;
    keeper->count = 1;
    keeper->confirmed_us = sent_us;
    if (lease_get(apply_leases(r->apply), lease, &info) == 0)
        keeper->ttl_us = info.ttl_ms * 1000;
    else
        keeper->lost = true;
    keel_list_add(&r->keepers, &keeper->link);
}

void replica_lease_release(struct replica *r, uint64_t lease)
{
    struct lease_keeper *keeper = find_keeper(r, lease);

    if (keeper == NULL || --keeper->count > 0)
        return;
    keel_list_remove(&keeper->link);
    free(keeper);
}

bool replica_lease_is_lost(const struct replica *r, uint64_t lease)
{
    const struct lease_keeper *keeper = find_keeper(r, lease);

    return keeper != NULL && (keeper->lost || now_of(r) >= lost_at(keeper));
}

static void keeper_lose(struct replica *r, struct lease_keeper *keeper)
{
    if (keeper->lost)
        return;
    keeper->lost = true;
    r->env->ops->lease_lost(r->env, keeper->lease);
}

void leases_on_revoked(struct replica *r, uint64_t lease)
{
    struct lease_keeper *keeper = find_keeper(r, lease);

    if (keeper != NULL)
        keeper_lose(r, keeper);
}

void leases_reloaded(struct replica *r)
{
    for (struct keel_link *l = r->keepers.next, *next; l != &r->keepers; l = next) {
        struct lease_info info;

        next = l->next;
        if (lease_get(apply_leases(r->apply), keeper_of(l)->lease, &info) != 0)
            keeper_lose(r, keeper_of(l));
    }
}

static void confirm(struct replica *r, uint64_t lease, uint64_t sent_us)
{
    struct lease_keeper *keeper = find_keeper(r, lease);

    if (keeper != NULL && !keeper->lost && sent_us > keeper->confirmed_us && sent_us <= now_of(r))
        keeper->confirmed_us = MUTANT(RENEWAL_FROM_RECEIPT) ? now_of(r) : sent_us;
}

/* ---- the leader's side ---- */

static void propose_checkpoint(struct replica *r, uint64_t now, uint64_t lease,
                               uint64_t remaining_ms)
{
    Keel__Command head = KEEL__COMMAND__INIT;
    Keel__LeaseCheckpoint checkpoint = KEEL__LEASE_CHECKPOINT__INIT;

    checkpoint.lease = lease;
    checkpoint.remaining_ms = remaining_ms;
    head.op_case = KEEL__COMMAND__OP_LEASE_CHECKPOINT;
    head.lease_checkpoint = &checkpoint;
    requests_send_bare(r, now, &head);
}

static bool renew_one(struct replica *r, uint64_t now, uint64_t lease)
{
    struct lease_info info;
    int err = lease_renew(apply_leases(r->apply), lease, now);

    if (err == KEEL_E_STALE && lease_get(apply_leases(r->apply), lease, &info) == 0)
        propose_checkpoint(r, now, lease, info.ttl_ms); /* the holder asks again soon */
    return err == 0;
}

static void renewal_done(struct replica_call *call, int err, const struct command_result *result)
{
    struct renewal *renewal = KEEL_CONTAINER_OF(call, struct renewal, call);
    struct replica *r = renewal->r;
    uint64_t now = now_of(r);
    size_t kept = 0;

    (void)result;
    if (err == 0 && lease_is_primary(apply_leases(r->apply))) {
        for (size_t i = 0; i < renewal->count; i++)
            if (renew_one(r, now, renewal->leases[i]))
                renewal->leases[kept++] = renewal->leases[i];
    }
    if (kept > 0 && renewal->from == r->options.raft.id) {
        for (size_t i = 0; i < kept; i++)
            confirm(r, renewal->leases[i], renewal->sent_us);
    } else if (kept > 0) {
        struct keel_message *msg = keel_message_new(MESSAGE_RENEWED);

        msg->sent_us = renewal->sent_us;
        msg->leases = keel_calloc(kept, sizeof *msg->leases);
        memcpy(msg->leases, renewal->leases, kept * sizeof *msg->leases);
        msg->lease_count = kept;
        r->env->ops->send(r->env, renewal->from, msg);
    }
    free(renewal);
}

static void renew_here(struct replica *r, uint64_t from, uint64_t sent_us, const uint64_t *leases,
                       size_t count)
{
    struct renewal *renewal = keel_calloc(1, sizeof *renewal + count * sizeof *leases);

    renewal->call.done = renewal_done;
    renewal->r = r;
    renewal->from = from;
    renewal->sent_us = sent_us;
    renewal->count = count;
    memcpy(renewal->leases, leases, count * sizeof *leases);
    int state = replica_barrier(r, &renewal->call);

    if (MUTANT(RENEWED_BY_ANYBODY) && state == 0 && replica_cancel(r, &renewal->call, true))
        state = 1;
    if (state != 0)
        renewal_done(&renewal->call, state == 1 ? 0 : state, NULL);
}

void leases_on_renew(struct replica *r, uint64_t from, struct keel_message *msg)
{
    if (replica_is_leader(r) && msg->lease_count > 0)
        renew_here(r, from, msg->sent_us, msg->leases, msg->lease_count);
}

void leases_on_renewed(struct replica *r, const struct keel_message *msg)
{
    for (size_t i = 0; i < msg->lease_count; i++)
        confirm(r, msg->leases[i], msg->sent_us);
}

static void send_renewal(struct replica *r, uint64_t now, uint64_t lease)
{
    uint64_t leader = raft_leader(r->raft);

    if (leader == 0)
        return;
    if (leader == r->options.raft.id) {
        renew_here(r, leader, now, &lease, 1);
        return;
    }
    struct keel_message *msg = keel_message_new(MESSAGE_RENEW);

    msg->sent_us = now;
    msg->leases = keel_calloc(1, sizeof *msg->leases);
    msg->leases[0] = lease;
    msg->lease_count = 1;
    r->env->ops->send(r->env, leader, msg);
}

void replica_lease_renew(struct replica *r, uint64_t lease)
{
    send_renewal(r, now_of(r), lease);
}

/* Neither the leader nor the holder: what was left when that was last replicated, less the time
 * since then. A lease that is renewed is not replicated again, and one that isn't is at each third
 * of its ttl, so that more than a third can't have gone by unnoticed. */
static uint64_t remaining_as_known(const struct lease_info *info, uint64_t now)
{
    uint64_t passed_ms =
        info->known_us != 0 && now > info->known_us ? (now - info->known_us) / 1000 : 0;
    uint64_t most_ms = info->ttl_ms / 3 > 1000 ? info->ttl_ms / 3 : 1000;

    if (passed_ms > most_ms)
        passed_ms = most_ms;
    return info->remaining_ms > passed_ms ? info->remaining_ms - passed_ms : 0;
}

int replica_lease_remaining(struct replica *r, uint64_t lease, uint64_t *ret_ms)
{
    uint64_t now = now_of(r);
    struct lease_info info;
    int err = lease_get(apply_leases(r->apply), lease, &info);

    if (err != 0)
        return err;
    const struct lease_keeper *keeper = find_keeper(r, lease);
    uint64_t end = 0;

    if (info.expires_us != UINT64_MAX)
        end = info.expires_us;
    else if (keeper != NULL)
        end = keeper->confirmed_us + keeper->ttl_us;
    if (end != 0)
        *ret_ms = end > now ? (end - now) / 1000 : 0;
    else
        *ret_ms = remaining_as_known(&info, now);
    return 0;
}

/* ---- duties ---- */

static void expire_leases(struct replica *r, uint64_t now)
{
    uint64_t lease;

    if (now < r->expire_again_us)
        return;
    while ((lease = lease_expired(apply_leases(r->apply), now)) != 0) {
        Keel__Command head = KEEL__COMMAND__INIT;
        Keel__LeaseExpire expire = KEEL__LEASE_EXPIRE__INIT;

        expire.lease = lease;
        expire.term = raft_term(r->raft);
        head.op_case = KEEL__COMMAND__OP_LEASE_EXPIRE;
        head.lease_expire = &expire;
        if (requests_send_bare(r, now, &head) != 0) {
            lease_expire_again(apply_leases(r->apply), lease);
            r->expire_again_us = now + AGAIN_US; /* leadership is being handed over, say */
            return;
        }
    }
}

static void checkpoint_leases(struct replica *r, uint64_t now)
{
    uint64_t lease, remaining_ms;

    while ((lease = lease_due(apply_leases(r->apply), now, &remaining_ms)) != 0)
        propose_checkpoint(r, now, lease, remaining_ms);
}

static void propose_settings(struct replica *r, uint64_t now)
{
    Keel__Command head = KEEL__COMMAND__INIT;
    Keel__Settings settings = KEEL__SETTINGS__INIT;

    settings.first = true;
    settings.file_size_bytes = r->options.first_file_size_bytes;
    settings.quota_bytes = r->options.first_quota_bytes;
    settings.history_ms = r->options.first_history_ms;
    settings.history_revisions = r->options.first_history_revisions;
    settings.level = 1;
    head.op_case = KEEL__COMMAND__OP_SETTINGS;
    head.settings = &settings;
    requests_send_bare(r, now, &head);
}

static void propose_contacts(struct replica *r, uint64_t now)
{
    size_t count;
    const struct apply_member *members = apply_members(r->apply, &count);

    for (size_t i = 0; i < count; i++) {
        Keel__Command head = KEEL__COMMAND__INIT;
        Keel__Contact contact = KEEL__CONTACT__INIT;

        uint64_t heard = members_incarnation(r, members[i].id);

        if (members[i].incarnation != 0 || heard == 0)
            continue;
        contact.node = members[i].id;
        contact.incarnation = heard;
        head.op_case = KEEL__COMMAND__OP_CONTACT;
        head.contact = &contact;
        requests_send_bare(r, now, &head);
    }
}

static bool duties_left(const struct replica *r)
{
    size_t count;
    const struct apply_member *members = apply_members(r->apply, &count);

    if (!apply_settings(r->apply)->known)
        return true;
    for (size_t i = 0; i < count; i++)
        if (members[i].incarnation == 0 && members_incarnation(r, members[i].id) != 0)
            return true;
    return false;
}

/* A leader acts on the state only once an entry of its own term has been applied: then it has all
 * of the state, and the time that it had to wait out for the old leader's lease is over. */
bool leases_leads_for_sure(const struct replica *r)
{
    return replica_is_leader(r) && mvcc_applied_term(r->mvcc) == raft_term(r->raft);
}

void leases_duties(struct replica *r, uint64_t now)
{
    if (!leases_leads_for_sure(r) && !MUTANT(DEPOSED_EXPIRES))
        return;
    expire_leases(r, now);
    checkpoint_leases(r, now);
    members_expire_sessions(r, now);
    if (!duties_left(r) || (r->duty_us != 0 && now - r->duty_us < DUTY_US))
        return;
    r->duty_us = now;
    if (!apply_settings(r->apply)->known)
        propose_settings(r, now);
    propose_contacts(r, now);
}

void leases_follow_role(struct replica *r, uint64_t now)
{
    struct lease_table *leases = apply_leases(r->apply);
    bool primary = leases_leads_for_sure(r);

    if (primary && !lease_is_primary(leases)) {
        lease_promote(leases, now);
        members_begin_term(r, now);
    }
    if (!replica_is_leader(r) && lease_is_primary(leases) && !MUTANT(DEPOSED_EXPIRES))
        lease_demote(leases);
}

void leases_tick(struct replica *r, uint64_t now)
{
    for (struct keel_link *l = r->keepers.next, *next; l != &r->keepers; l = next) {
        struct lease_keeper *keeper = keeper_of(l);

        next = l->next;
        if (keeper->lost)
            continue;
        if (now >= lost_at(keeper)) {
            keeper_lose(r, keeper);
        } else if (now >= renew_at(keeper)) {
            keeper->asked_us = now;
            send_renewal(r, now, keeper->lease);
        }
    }
    leases_duties(r, now);
}

uint64_t leases_deadline(const struct replica *r)
{
    uint64_t at = UINT64_MAX;

    for (const struct keel_link *l = r->keepers.next; l != &r->keepers; l = l->next) {
        const struct lease_keeper *keeper = KEEL_CONTAINER_OF(l, const struct lease_keeper, link);

        if (keeper->lost)
            continue;
        at = lost_at(keeper) < at ? lost_at(keeper) : at;
        at = renew_at(keeper) < at ? renew_at(keeper) : at;
    }
    if (!leases_leads_for_sure(r))
        return at;
    uint64_t lease = lease_deadline(apply_leases(r->apply));

    if (lease < r->expire_again_us)
        lease = r->expire_again_us;
    at = lease < at ? lease : at;
    if (duties_left(r) && r->duty_us + DUTY_US < at)
        at = r->duty_us + DUTY_US;
    return at;
}

void leases_init(struct replica *r)
{
    keel_list_init(&r->keepers);
}

void leases_free(struct replica *r)
{
    while (!keel_list_empty(&r->keepers)) {
        struct lease_keeper *keeper = keeper_of(r->keepers.next);

        keel_list_remove(&keeper->link);
        free(keeper);
    }
}
