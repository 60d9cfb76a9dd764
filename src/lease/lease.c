/* Leases: the replicated facts, and the leader's clock over them. Bytes are in lease_codec.c; the
 * keys of a lease in lease_set.c. */
#include <stdlib.h>

#include "check.h"
#include "err.h"
#include "lease/table.h"

enum { CHECKPOINT_MIN_US = 1000000 };

struct lease_table *lease_table_new(void)
{
    return keel_calloc(1, sizeof(struct lease_table));
}

struct lease_table *lease_table_free(struct lease_table *t)
{
    if (t == NULL)
        return NULL;
    for (size_t i = 0; i < t->count; i++) {
        free(t->leases[i]->inos);
        free(t->leases[i]);
    }
    free(t->leases);
    free(t->uids);
    free(t->owners);
    keel_heap_free(&t->expiries);
    keel_heap_free(&t->dues);
    free(t);
    return NULL;
}

/* ---- finding ---- */

/* The first lease with an id >= id. */
static size_t position(const struct lease_table *t, uint64_t id)
{
    size_t low = 0, high = t->count;

    while (low < high) {
        size_t middle = low + (high - low) / 2;

        if (t->leases[middle]->id < id)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

struct lease *lease_find(const struct lease_table *t, uint64_t id)
{
    size_t at = position(t, id);

    return at < t->count && t->leases[at]->id == id ? t->leases[at] : NULL;
}

static size_t uid_position(const struct lease_table *t, uint32_t uid)
{
    size_t low = 0, high = t->uid_count;

    while (low < high) {
        size_t middle = low + (high - low) / 2;

        if (t->uids[middle].uid < uid)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static uint32_t uid_leases(const struct lease_table *t, uint32_t uid)
{
    size_t at = uid_position(t, uid);

    return at < t->uid_count && t->uids[at].uid == uid ? t->uids[at].leases : 0;
}

static void uid_count_up(struct lease_table *t, uint32_t uid)
{
    size_t at = uid_position(t, uid);

    if (at < t->uid_count && t->uids[at].uid == uid) {
        t->uids[at].leases++;
        return;
    }
    if (t->uid_count == t->uid_capacity) {
        t->uid_capacity = t->uid_capacity ? t->uid_capacity * 2 : 8;
        t->uids = keel_realloc(t->uids, t->uid_capacity * sizeof *t->uids);
    }
    memmove(&t->uids[at + 1], &t->uids[at], (t->uid_count - at) * sizeof *t->uids);
    t->uids[at] = (struct lease_uid){ uid, 1 };
    t->uid_count++;
}

static void uid_count_down(struct lease_table *t, uint32_t uid)
{
    size_t at = uid_position(t, uid);

    KEEL_ASSERT(at < t->uid_count && t->uids[at].uid == uid);
    if (--t->uids[at].leases > 0)
        return;
    t->uid_count--;
    memmove(&t->uids[at], &t->uids[at + 1], (t->uid_count - at) * sizeof *t->uids);
}

/* ---- the leader's clock ---- */

static void unschedule(struct keel_heap *heap, struct keel_heap_node *node)
{
    if (keel_heap_contains(node))
        keel_heap_remove(heap, node);
}

/* A third of the ttl from now. */
static void schedule_due(struct lease_table *t, struct lease *lease, uint64_t now_us)
{
    uint64_t wait_us = lease->ttl_ms * 1000 / 3;

    unschedule(&t->dues, &lease->due);
    if (wait_us < CHECKPOINT_MIN_US)
        wait_us = CHECKPOINT_MIN_US;
    keel_heap_push(&t->dues, &lease->due, now_us + wait_us, lease->id);
}

static void start_clock(struct lease_table *t, struct lease *lease, uint64_t remaining_ms,
                        uint64_t now_us)
{
    lease->expires_us = now_us + remaining_ms * 1000;
    unschedule(&t->expiries, &lease->expiry);
    keel_heap_push(&t->expiries, &lease->expiry, lease->expires_us, lease->id);
    schedule_due(t, lease, now_us);
}

void lease_promote(struct lease_table *t, uint64_t now_us)
{
    KEEL_ASSERT(!t->primary);
    t->primary = true;
    for (size_t i = 0; i < t->count; i++)
        start_clock(t, t->leases[i], t->leases[i]->remaining_ms, now_us);
}

void lease_demote(struct lease_table *t)
{
    t->primary = false;
    for (size_t i = 0; i < t->count; i++) {
        struct lease *lease = t->leases[i];

        unschedule(&t->expiries, &lease->expiry);
        unschedule(&t->dues, &lease->due);
        lease->checkpoint = CHECKPOINT_NONE;
    }
}

bool lease_is_primary(const struct lease_table *t)
{
    return t->primary;
}

int lease_renew(struct lease_table *t, uint64_t id, uint64_t now_us)
{
    struct lease *lease = lease_find(t, id);

    if (!t->primary)
        return KEEL_E_NOTLEADER;
    if (lease == NULL || !keel_heap_contains(&lease->expiry) || now_us >= lease->expires_us)
        return KEEL_E_NOTFOUND;
    if (lease->remaining_ms < lease->ttl_ms || lease->checkpoint != CHECKPOINT_NONE) {
        lease->checkpoint = CHECKPOINT_COVERED;
        return KEEL_E_STALE;
    }
    start_clock(t, lease, lease->ttl_ms, now_us);
    return 0;
}

uint64_t lease_deadline(const struct lease_table *t)
{
    const struct keel_heap_node *expiry = keel_heap_top(&t->expiries);
    const struct keel_heap_node *due = keel_heap_top(&t->dues);
    uint64_t first = expiry ? expiry->key : UINT64_MAX;

    return due != NULL && due->key < first ? due->key : first;
}

uint64_t lease_expired(struct lease_table *t, uint64_t now_us)
{
    struct keel_heap_node *top = keel_heap_top(&t->expiries);

    if (top == NULL || top->key > now_us)
        return 0;
    struct lease *lease = KEEL_CONTAINER_OF(top, struct lease, expiry);

    keel_heap_remove(&t->expiries, top);
    unschedule(&t->dues, &lease->due);
    return lease->id;
}

void lease_expire_again(struct lease_table *t, uint64_t id)
{
    struct lease *lease = lease_find(t, id);

    if (lease == NULL || !t->primary || keel_heap_contains(&lease->expiry))
        return;
    keel_heap_push(&t->expiries, &lease->expiry, lease->expires_us, lease->id);
}

uint64_t lease_due(struct lease_table *t, uint64_t now_us, uint64_t *ret_remaining_ms)
{
    for (;;) {
        struct keel_heap_node *top = keel_heap_top(&t->dues);

        if (top == NULL || top->key > now_us)
            return 0;
        struct lease *lease = KEEL_CONTAINER_OF(top, struct lease, due);

        schedule_due(t, lease, now_us);
        /* Covered: its holder lives and waits for the full ttl: a shorter time behind that would
         * undo it. */
        if (lease->checkpoint == CHECKPOINT_COVERED || now_us >= lease->expires_us)
            continue;
        lease->checkpoint = CHECKPOINT_OUT;
        lease->out_remaining_ms = (lease->expires_us - now_us + 999) / 1000;
        *ret_remaining_ms = lease->out_remaining_ms;
        return lease->id;
    }
}

/* ---- replicated state ---- */

struct lease *lease_insert(struct lease_table *t, uint64_t id, uint64_t ttl_ms, uint32_t uid)
{
    struct lease *lease = keel_calloc(1, sizeof *lease);
    size_t at = position(t, id);

    KEEL_ASSERT(id != 0 && (at == t->count || t->leases[at]->id != id));
    *lease = (struct lease){ .id = id, .ttl_ms = ttl_ms, .remaining_ms = ttl_ms, .uid = uid };
    if (t->count == t->capacity) {
        t->capacity = t->capacity ? t->capacity * 2 : 16;
        t->leases = keel_realloc(t->leases, t->capacity * sizeof(struct lease *));
    }
    memmove(&t->leases[at + 1], &t->leases[at], (t->count - at) * sizeof(struct lease *));
    t->leases[at] = lease;
    t->count++;
    uid_count_up(t, uid);
    return lease;
}

int lease_grant(struct lease_table *t, uint64_t id, uint64_t ttl_ms, uint32_t uid, uint64_t now_us)
{
    if (lease_find(t, id) != NULL)
        return KEEL_E_EXISTS;
    if (id == 0 || ttl_ms < KEEL_LEASE_TTL_MIN_S * UINT64_C(1000) ||
        ttl_ms > KEEL_LEASE_TTL_MAX_S * UINT64_C(1000))
        return KEEL_E_INVALID;
    if (t->count >= KEEL_LEASES_MAX || uid_leases(t, uid) >= KEEL_LEASES_PER_UID)
        return KEEL_E_AGAIN;
    struct lease *lease = lease_insert(t, id, ttl_ms, uid);

    lease->known_us = now_us;
    if (t->primary)
        start_clock(t, lease, ttl_ms, now_us);
    return 0;
}

int lease_revoke(struct lease_table *t, uint64_t id)
{
    size_t at = position(t, id);

    if (at == t->count || t->leases[at]->id != id)
        return KEEL_E_NOTFOUND;
    struct lease *lease = t->leases[at];

    unschedule(&t->expiries, &lease->expiry);
    unschedule(&t->dues, &lease->due);
    lease_set_clear(t, lease);
    uid_count_down(t, lease->uid);
    t->count--;
    memmove(&t->leases[at], &t->leases[at + 1], (t->count - at) * sizeof(struct lease *));
    free(lease);
    return 0;
}

int lease_attach(struct lease_table *t, uint64_t id, uint64_t ino)
{
    struct lease *lease = lease_find(t, id);
    struct lease *old = lease_owner_of(t, ino);

    KEEL_ASSERT(ino != 0);
    if (lease == NULL)
        return KEEL_E_NOTFOUND;
    if (old == lease)
        return 0;
    if (old != NULL)
        lease_set_remove(t, old, ino);
    lease_set_add(t, lease, ino);
    return 0;
}

void lease_detach(struct lease_table *t, uint64_t id, uint64_t ino)
{
    struct lease *lease = lease_find(t, id);

    if (lease != NULL && lease_owner_of(t, ino) == lease)
        lease_set_remove(t, lease, ino);
}

int lease_checkpoint(struct lease_table *t, uint64_t id, uint64_t remaining_ms, uint64_t now_us)
{
    struct lease *lease = lease_find(t, id);

    if (lease == NULL)
        return KEEL_E_NOTFOUND;
    lease->remaining_ms = remaining_ms < lease->ttl_ms ? remaining_ms : lease->ttl_ms;
    lease->known_us = now_us;
    if (!t->primary || !keel_heap_contains(&lease->expiry))
        return 0;
    if (lease->checkpoint == CHECKPOINT_OUT && remaining_ms == lease->out_remaining_ms)
        lease->checkpoint = CHECKPOINT_NONE;
    if (lease->checkpoint == CHECKPOINT_COVERED && remaining_ms >= lease->ttl_ms)
        lease->checkpoint = CHECKPOINT_NONE;
    schedule_due(t, lease, now_us);
    return 0;
}

/* ---- questions ---- */

static struct lease_info info_of(const struct lease_table *t, const struct lease *lease)
{
    return (struct lease_info){
        .id = lease->id,
        .ttl_ms = lease->ttl_ms,
        .remaining_ms = lease->remaining_ms,
        .uid = lease->uid,
        .keys = lease->ino_count,
        .expires_us = t->primary ? lease->expires_us : UINT64_MAX,
        .known_us = lease->known_us,
    };
}

int lease_get(const struct lease_table *t, uint64_t id, struct lease_info *ret_info)
{
    const struct lease *lease = lease_find(t, id);

    if (lease == NULL)
        return KEEL_E_NOTFOUND;
    *ret_info = info_of(t, lease);
    return 0;
}

size_t lease_count(const struct lease_table *t)
{
    return t->count;
}

int lease_keys(const struct lease_table *t, uint64_t id, int (*fn)(void *arg, uint64_t ino),
               void *arg)
{
    const struct lease *lease = lease_find(t, id);
    int result = 0;

    for (size_t i = 0; lease != NULL && i < lease->ino_count && result == 0; i++)
        result = fn(arg, lease->inos[i]);
    return result;
}

int lease_each(const struct lease_table *t, int (*fn)(void *arg, const struct lease_info *info),
               void *arg)
{
    int result = 0;

    for (size_t i = 0; i < t->count && result == 0; i++) {
        struct lease_info info = info_of(t, t->leases[i]);

        result = fn(arg, &info);
    }
    return result;
}
