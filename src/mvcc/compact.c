/* Compaction: the point moves, and what is garbage there goes off the books, oldest first. Nothing
 * here depends on anything but the books, so that all replicas lose the same at the same log index.
 * Keys that have lost their last record go too. */
#include <stdlib.h>

#include "check.h"
#include "err.h"
#include "mvcc/store.h"

/* ---- what goes ---- */

static void take_oldest(struct mvcc *m, struct mvcc_key *key)
{
    const struct mvcc_rev *oldest = index_revs(key);
    struct mvcc_revision rev = { oldest->main, oldest->sub };
    uint8_t rev_key[MVCC_REVISION_KEY_LEN];
    struct index_path scratch;
    struct mvcc_record record;
    struct keel_slice bytes;

    if (store_load(m, key, rev, &record, &bytes) != 0)
        keel_fatal("the store is damaged: record %llu.%u cannot be read; restore the data "
                   "directory from a backup, or remove this member and add it again",
                   (unsigned long long)rev.main, rev.sub);
    revision_key_encode(rev, rev_key);
    m->hash =
        keel_hash128_sub(m->hash, store_hash_of(m, keel_slice_of(rev_key, sizeof rev_key), bytes));
    store_remove(m, KV_RECORDS, rev);
    if (index_remove_oldest(&m->index, key, &record, index_path_of(key, &scratch).len))
        store_remove(m, KV_CONTENT, record.content.at);
}

/* The record in front. With it goes the tombstone that ended it, which would be one for nothing:
 * a rebuild takes that for damage. */
static uint32_t take_first(struct mvcc *m)
{
    struct mvcc_key *key = garbage_pop(&m->index.garbage);

    take_oldest(m, key);
    if (!index_revs(key)->tombstone)
        return 1;
    struct mvcc_key *same = garbage_pop(&m->index.garbage);

    KEEL_ASSERT(same == key);
    take_oldest(m, key);
    index_release(key);
    return 2;
}

/* ---- the point ---- */

bool mvcc_has_garbage(const struct mvcc *m)
{
    const struct mvcc_key *key = garbage_first(&m->index.garbage);

    return key != NULL && index_garbage_since(key) <= m->compact_revision;
}

void mvcc_compact(struct mvcc_txn *txn, uint64_t at)
{
    KEEL_ASSERT(txn->open && at < txn->revision);
    if (at > txn->m->compact_revision)
        txn->m->compact_revision = at;
}

uint32_t mvcc_compact_step(struct mvcc_txn *txn, uint32_t budget)
{
    uint32_t taken = 0;

    KEEL_ASSERT(txn->open && budget > 0);
    while (taken < budget && mvcc_has_garbage(txn->m))
        taken += take_first(txn->m);
    for (uint32_t i = 0; i < budget && txn->m->emptied_count > 0; i++)
        mvcc_unpin(txn->m, txn->m->emptied[--txn->m->emptied_count]);
    return taken;
}

/* The point goes to the first revision at which there is garbage, if that is not open yet. */
static bool move_to_garbage(struct mvcc_txn *txn)
{
    const struct mvcc_key *key = garbage_first(&txn->m->index.garbage);

    if (key == NULL || index_garbage_since(key) >= txn->revision)
        return false;
    mvcc_compact(txn, index_garbage_since(key));
    return true;
}

/* Whatever became garbage at the same revision as what is in front. Returns the number of records.
 */
static uint32_t take_revision(struct mvcc *m)
{
    const struct mvcc_key *key = garbage_first(&m->index.garbage);
    uint64_t since = index_garbage_since(key);
    uint32_t taken = 0;

    while (key != NULL && index_garbage_since(key) == since) {
        taken += take_first(m);
        key = garbage_first(&m->index.garbage);
    }
    return taken;
}

enum mvcc_room mvcc_compact_for(struct mvcc_txn *txn, uint64_t bytes, uint32_t budget)
{
    struct mvcc *m = txn->m;
    uint64_t before = m->index.quota_used;
    uint32_t taken = 0;

    KEEL_ASSERT(txn->open);
    while (before - m->index.quota_used < bytes) {
        if (taken >= budget)
            return MVCC_ROOM_LATER;
        if (!mvcc_has_garbage(m) && !move_to_garbage(txn))
            return MVCC_ROOM_NONE;
        taken += take_revision(m);
    }
    return MVCC_ROOM_ENOUGH;
}

bool mvcc_has_history(const struct mvcc *m)
{
    return garbage_first(&m->index.garbage) != NULL;
}

/* ---- keys ---- */

void mvcc_pin(struct mvcc_key *key)
{
    KEEL_ASSERT(key->pins < UINT32_MAX);
    key->pins++;
}

void mvcc_unpin(struct mvcc *m, struct mvcc_key *key)
{
    (void)m;
    KEEL_ASSERT(key->pins > 0);
    key->pins--;
    index_release(key);
}

void store_keep_emptied(struct mvcc *m)
{
    size_t capacity = 0;

    KEEL_ASSERT(m->emptied_count == 0);
    for (struct mvcc_key *key = m->index.root; key != NULL; key = index_next_key(key)) {
        if (key->count > 0)
            continue;
        if (m->emptied_count == capacity) {
            capacity = capacity ? capacity * 2 : 16;
            m->emptied = keel_realloc(m->emptied, capacity * sizeof(struct mvcc_key *));
        }
        mvcc_pin(key);
        m->emptied[m->emptied_count++] = key;
    }
}

void store_forget_emptied(struct mvcc *m)
{
    while (m->emptied_count > 0)
        m->emptied[--m->emptied_count]->pins--;
}
