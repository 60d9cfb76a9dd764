/* Transactions: the only place where the keyspace changes. What is allowed was decided by apply;
 * here it is asserted, and revisions, versions and times are filled in. There is no rollback: apply
 * decides before it begins to change. */
#include "check.h"
#include "hash.h"
#include "mvcc/store.h"

struct mvcc_txn *mvcc_begin(struct mvcc *m, uint64_t index, uint64_t term)
{
    KEEL_ASSERT(!m->txn.open);
    KEEL_ASSERT(index > m->applied_index && term >= m->applied_term);
    m->txn = (struct mvcc_txn){
        .m = m,
        .index = index,
        .term = term,
        .revision = m->revision + 1,
        .open = true,
    };
    return &m->txn;
}

uint64_t mvcc_txn_revision(const struct mvcc_txn *txn)
{
    return txn->revision;
}

uint64_t mvcc_commit(struct mvcc_txn *txn)
{
    struct mvcc *m = txn->m;

    KEEL_ASSERT(txn->open && m->index.moved == 0);
    if (txn->next_sub > 0)
        m->revision = txn->revision;
    m->applied_index = txn->index;
    m->applied_term = txn->term;
    txn->open = false;
    return m->revision;
}

void mvcc_skip_revisions(struct mvcc *m, uint64_t count)
{
    KEEL_ASSERT(!m->txn.open && count <= UINT64_MAX - m->revision);
    m->revision += count;
}

static int64_t later_of(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static struct mvcc_revision next_revision(struct mvcc_txn *txn)
{
    KEEL_ASSERT(txn->open && txn->next_sub <= MVCC_SUB_MAX);
    return (struct mvcc_revision){ txn->revision, txn->next_sub++ };
}

static void set_content(struct mvcc_record *record, const struct mvcc_value *value)
{
    record->content = (struct mvcc_content){ 0 };
    if (value->bytes.len == 0)
        return;
    KEEL_ASSERT(value->owner != NULL && value->bytes.len <= KEEL_FILE_SIZE_MAX);
    record->content.at = record->revision;
    record->content.length = (uint32_t)value->bytes.len;
    record->content.hash = keel_hash64(value->bytes);
}

static void put_at(struct mvcc_txn *txn, struct mvcc_key *key, struct mvcc_record *record,
                   const struct mvcc_value *value)
{
    struct mvcc *m = txn->m;
    uint64_t old_dir = index_is_live_dir(key) ? key->ino : 0;
    bool is_dir = record->kind == MVCC_DIR;

    KEEL_ASSERT(!record->tombstone && record->ino != 0 && record->mode <= 07777);
    KEEL_ASSERT(record->kind >= MVCC_FILE && record->kind <= MVCC_SYMLINK);
    KEEL_ASSERT(key->ino == 0 || is_dir == (old_dir != 0));
    KEEL_ASSERT(key->ino != 0 || key->dir == NULL || key->dir->entries == 0);
    record->version = index_next_version(key);
    record->create_revision = index_next_create(key, txn->revision);
    record->revision = next_revision(txn);
    if (key->ino != 0)
        record->ctime_ns = later_of(record->ctime_ns, key->ctime_ns);
    if (value != NULL)
        set_content(record, value);
    KEEL_ASSERT(!is_dir || record->content.length == 0);
    store_add(m, key, record, value);
    if (!is_dir)
        return;
    if (old_dir != 0 && old_dir != record->ino)
        store_dir_removed(m, old_dir);
    key->dir->mtime_ns = record->mtime_ns;
    store_dir_dirty(m, key->dir);
}

struct mvcc_key *mvcc_put(struct mvcc_txn *txn, struct mvcc_key *parent, struct keel_slice name,
                          struct mvcc_record *record, const struct mvcc_value *value)
{
    KEEL_ASSERT(index_is_live_dir(parent) && mvcc_name_valid(name));
    struct mvcc_key *key = index_add_child(parent, name);

    put_at(txn, key, record, value);
    return key;
}

void mvcc_put_root(struct mvcc_txn *txn, struct mvcc_record *record)
{
    KEEL_ASSERT(record->kind == MVCC_DIR && record->ino == MVCC_ROOT_INO);
    put_at(txn, txn->m->index.root, record, NULL);
}

void mvcc_delete(struct mvcc_txn *txn, struct mvcc_key *key, int64_t time_ns, uint64_t lease,
                 bool keep_ino)
{
    struct mvcc *m = txn->m;
    struct mvcc_record tombstone = {
        .tombstone = true,
        .kind = (enum mvcc_kind)key->kind,
        .ctime_ns = later_of(time_ns, key->ctime_ns),
        .ino = key->ino,
        .lease = lease,
    };

    KEEL_ASSERT(key->ino != 0 && key->parent != NULL);
    KEEL_ASSERT(key->kind != MVCC_DIR || key->dir->entries == 0);
    KEEL_ASSERT(keep_ino || index_by_ino(&m->index, key->ino) == key);
    if (key->kind == MVCC_DIR && !keep_ino)
        store_dir_removed(m, key->ino);
    tombstone.revision = next_revision(txn);
    store_add(m, key, &tombstone, NULL);
}

void mvcc_touch_dir(struct mvcc_txn *txn, struct mvcc_key *dir, int64_t time_ns)
{
    KEEL_ASSERT(txn->open && index_is_live_dir(dir));
    dir->dir->mtime_ns = time_ns;
    dir->ctime_ns = later_of(dir->ctime_ns, time_ns);
    store_dir_dirty(txn->m, dir->dir);
}
