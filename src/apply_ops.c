/* What each command does to the keyspace: POSIX checks first, all of them, then the change. Nothing
 * here can fail half-way, so there is nothing to roll back. Sessions and dispatch are in apply.c.
 */
#include <stdlib.h>
#include <sys/stat.h>

#include "apply_internal.h"
#include "check.h"
#include "err.h"

static struct keel_slice bytes_of(ProtobufCBinaryData data)
{
    return keel_slice_of(data.data, data.len);
}

static struct keel_change *add_change(struct apply_op *op, enum keel_change_kind kind)
{
    struct apply *a = op->a;

    if (a->change_count == a->change_capacity) {
        a->change_capacity = a->change_capacity ? a->change_capacity * 2 : 16;
        a->changes = keel_realloc(a->changes, a->change_capacity * sizeof *a->changes);
    }
    struct keel_change *change = &a->changes[a->change_count++];

    *change = (struct keel_change){
        .kind = kind,
        .revision = mvcc_txn_revision(op->txn),
        .index = op->entry->index,
    };
    return change;
}

/* The record of a live key. The keyspace is trusted once it is open: anything but success is lost
 * trust. */
static struct mvcc_record record_now(struct apply_op *op, const struct mvcc_key *key)
{
    struct mvcc_record record;
    int err = mvcc_get(op->a->mvcc, key, 0, &record);

    if (err != 0)
        keel_fatal("the record of a live key cannot be read: %s", keel_strerror(err));
    return record;
}

static struct keel_slice content_now(struct apply_op *op, const struct mvcc_record *record)
{
    struct keel_slice bytes;

    if (mvcc_read(op->a->mvcc, &record->content, &bytes) != 0)
        keel_fatal("the store is damaged: content of revision %llu does not match its checksum; "
                   "restore the data directory from a backup, or remove this member and add it "
                   "again",
                   (unsigned long long)record->content.at.main);
    return bytes;
}

static bool name_is_valid(struct keel_slice name)
{
    return name.len > 0 && memchr(name.data, '/', name.len) == NULL &&
           memchr(name.data, '\0', name.len) == NULL &&
           !keel_slice_equal(name, keel_slice_str(".")) &&
           !keel_slice_equal(name, keel_slice_str(".."));
}

size_t apply_path_len(const struct mvcc_key *key)
{
    size_t len = 0;

    for (; mvcc_parent(key) != NULL; key = mvcc_parent(key))
        len += mvcc_name(key).len + 1;
    return len;
}

/* A directory and a name in it: the key if there is one, live or not. */
struct place {
    struct mvcc_key *dir;
    struct keel_slice name;
    struct mvcc_key *key; /* NULL: no revision of it is kept */
    bool live;
};

static int find_place(struct apply_op *op, uint64_t parent, struct keel_slice name,
                      struct place *ret_place)
{
    struct mvcc_key *dir = mvcc_by_ino(op->a->mvcc, parent);

    if (dir == NULL)
        return KEEL_E_NOTFOUND;
    if (mvcc_live_kind(dir) != MVCC_DIR)
        return KEEL_E_NOTDIR;
    if (name.len > KEEL_NAME_MAX)
        return KEEL_E_NAMETOOLONG;
    if (!name_is_valid(name))
        return KEEL_E_INVALID;
    struct mvcc_key *key = mvcc_child(op->a->mvcc, dir, name);

    *ret_place = (struct place){ dir, name, key, key != NULL && mvcc_live_ino(key) != 0 };
    return 0;
}

/* etcd's compare on mod_revision; 0 means "absent". */
static int check_condition(const Keel__Condition *condition, const struct mvcc_key *key, bool live)
{
    if (condition == NULL)
        return 0;
    if (condition->revision == 0)
        return live ? KEEL_E_EXISTS : 0;
    if (!live || mvcc_mod_revision(key).main != condition->revision)
        return KEEL_E_STALE;
    return 0;
}

/* The lease that a Bind asks for: checked before anything changes … */
static int check_bind(struct apply_op *op, const Keel__Bind *bind)
{
    struct lease_info info;

    if (bind == NULL)
        return 0;
    if (bind->ttl_ms != 0) /* granting is the check, and always the last one */
        return lease_grant(op->a->leases, op->entry->index, bind->ttl_ms, bind->uid, op->now_us);
    int err = lease_get(op->a->leases, bind->lease, &info);

    if (err != 0)
        return err;
    return bind->uid == 0 || bind->uid == info.uid ? 0 : KEEL_E_PERM;
}

/* … and attached once the change is certain. Returns its id. */
static uint64_t attach_bind(struct apply_op *op, const Keel__Bind *bind, uint64_t ino)
{
    if (bind == NULL)
        return 0;
    uint64_t id = bind->ttl_ms != 0 ? op->entry->index : bind->lease;
    int err = lease_attach(op->a->leases, id, ino);

    KEEL_ASSERT(err == 0);
    if (bind->ttl_ms != 0)
        op->outcome->granted = id;
    op->result->lease = id;
    return id;
}

static void drop_lease(struct apply_op *op, const struct mvcc_record *record)
{
    if (record->lease != 0)
        lease_detach(op->a->leases, record->lease, record->ino);
}

/* `old` with `body` laid over it at `offset`, zeroes in a gap, in a new buf. */
static struct keel_buf *overlay(struct keel_slice old, uint64_t offset, struct keel_slice body)
{
    size_t end = (size_t)offset + body.len;
    struct keel_buf *buf = keel_buf_new(end > old.len ? end : old.len);

    if (old.len > 0)
        memcpy(buf->data, old.data, old.len);
    if (offset > old.len)
        memset(buf->data + old.len, 0, (size_t)offset - old.len);
    if (body.len > 0)
        memcpy(buf->data + offset, body.data, body.len);
    return buf;
}

static bool too_big(const struct apply_op *op, uint64_t offset, uint64_t len)
{
    uint64_t limit = op->a->settings.file_size_bytes;

    return len > limit || offset > limit - len;
}

/* write(2) by anyone but root clears set-user-id, and set-group-id where the group may execute. */
static uint16_t without_set_id(uint16_t mode)
{
    mode = (uint16_t)(mode & ~S_ISUID);
    if (mode & S_IXGRP)
        mode = (uint16_t)(mode & ~S_ISGID);
    return mode;
}

/* ---- create ---- */

static void put_new(struct apply_op *op, const struct place *place, struct mvcc_record *record,
                    const struct mvcc_value *value, enum keel_change_kind kind)
{
    mvcc_put(op->txn, place->dir, place->name, record, value);
    mvcc_touch_dir(op->txn, place->dir, op->head->time_ns);
    struct keel_change *change = add_change(op, kind);

    change->ino = record->ino;
    change->object = record->kind;
    change->parent = mvcc_live_ino(place->dir);
    change->name = place->name;
    change->size = record->content.length;
    op->result->ino = record->ino;
    op->result->size = record->content.length;
}

static int write_file(struct apply_op *op, struct mvcc_key *key, const Keel__Write *write);

/* open(O_CREAT) without O_EXCL of a file that another node has created meanwhile. */
static int adopt(struct apply_op *op, const Keel__Create *create, struct mvcc_key *key)
{
    Keel__Write write = KEEL__WRITE__INIT;

    switch (mvcc_live_kind(key)) {
    case MVCC_DIR:
        return KEEL_E_ISDIR;
    case MVCC_SYMLINK:
        return KEEL_E_EXISTS;
    case MVCC_FILE:
        break;
    }
    op->result->ino = mvcc_live_ino(key);
    op->result->size = record_now(op, key).content.length;
    if (!create->write && !create->truncate)
        return 0;
    write.ino = op->result->ino;
    write.offset = create->offset;
    write.append = create->append;
    write.replace = create->truncate;
    write.keep_id = create->uid == 0;
    write.bind = create->bind;
    return write_file(op, key, &write);
}

static int check_new(struct apply_op *op, const Keel__Create *create, const struct place *place)
{
    if (create->ino == 0 || create->ino >= op->a->next_ino ||
        mvcc_by_ino(op->a->mvcc, create->ino) != NULL)
        return KEEL_E_INVALID;
    if (apply_path_len(place->dir) + place->name.len > KEEL_PATH_MAX)
        return KEEL_E_NAMETOOLONG;
    switch (create->kind) {
    case KEEL__KIND__FILE:
        return too_big(op, create->offset, op->body.len) ? KEEL_E_FILETOOBIG : 0;
    case KEEL__KIND__SYMLINK:
        if (op->body.len > KEEL_SYMLINK_MAX)
            return KEEL_E_NAMETOOLONG;
        return op->body.len == 0 || create->bind != NULL ? KEEL_E_INVALID : 0;
    case KEEL__KIND__DIR:
        return create->bind != NULL ? KEEL_E_INVALID : 0;
    case KEEL__KIND__KIND_NONE:
    case _KEEL__KIND_IS_INT_SIZE:
    default:
        return KEEL_E_INVALID;
    }
}

static struct mvcc_record new_record(struct apply_op *op, const Keel__Create *create,
                                     const struct mvcc_key *dir)
{
    struct mvcc_record parent = record_now(op, dir);
    struct mvcc_record record = {
        .kind = create->kind == KEEL__KIND__DIR       ? MVCC_DIR
                : create->kind == KEEL__KIND__SYMLINK ? MVCC_SYMLINK
                                                      : MVCC_FILE,
        .mode = create->kind == KEEL__KIND__SYMLINK ? 0777 : (uint16_t)(create->mode & 07777),
        .uid = create->uid,
        .gid = create->gid,
        .atime_ns = op->head->time_ns,
        .mtime_ns = op->head->time_ns,
        .ctime_ns = op->head->time_ns,
        .btime_ns = op->head->time_ns,
        .ino = create->ino,
    };

    if (parent.mode & S_ISGID) { /* set-group-id directories hand their group on */
        record.gid = parent.gid;
        if (record.kind == MVCC_DIR)
            record.mode |= S_ISGID;
    }
    return record;
}

int apply_create(struct apply_op *op, const Keel__Create *create)
{
    static const enum keel_change_kind kinds[] = {
        [MVCC_FILE] = CHANGE_CREATE,
        [MVCC_DIR] = CHANGE_MKDIR,
        [MVCC_SYMLINK] = CHANGE_SYMLINK,
    };
    struct place place;
    int err = find_place(op, create->parent, bytes_of(create->name), &place);

    if (err == 0)
        err = check_condition(create->condition, place.key, place.live);
    if (err != 0)
        return err;
    if (place.live && (create->exclusive || create->kind != KEEL__KIND__FILE))
        return KEEL_E_EXISTS;
    if (place.live)
        return adopt(op, create, place.key);
    err = check_new(op, create, &place);
    if (err == 0)
        err = check_bind(op, create->bind);
    if (err == 0 && op->full)
        err = KEEL_E_NOSPACE;
    if (err != 0)
        return err;
    struct mvcc_record record = new_record(op, create, place.dir);
    struct mvcc_value value = { op->entry->data, op->body };
    struct keel_buf *padded = NULL;

    if (create->kind == KEEL__KIND__FILE && create->offset > 0 && !create->append) {
        op->result->offset = create->offset;
        if (op->body.len > 0) {
            padded = overlay(keel_slice_of(NULL, 0), create->offset, op->body);
            value = (struct mvcc_value){ padded, keel_buf_slice(padded) };
        }
    }
    record.lease = attach_bind(op, create->bind, record.ino);
    put_new(op, &place, &record, &value, kinds[record.kind]);
    keel_buf_free(padded);
    return 0;
}

/* ---- content ---- */

/* A new revision of a file with new content: the whole of `value`. */
static void put_content(struct apply_op *op, struct mvcc_key *key, struct mvcc_record *record,
                        const struct mvcc_value *value)
{
    struct mvcc_record before = *record;

    record->ctime_ns = op->head->time_ns;
    mvcc_put(op->txn, mvcc_parent(key), mvcc_name(key), record, value);
    struct keel_change *change = add_change(op, CHANGE_CONTENT);

    before.xattrs = keel_slice_of(NULL, 0);
    change->before = before;
    change->ino = record->ino;
    change->object = record->kind;
    change->parent = mvcc_live_ino(mvcc_parent(key));
    change->name = mvcc_name(key);
    change->size = record->content.length;
    op->result->ino = record->ino;
    op->result->size = record->content.length;
}

/* A live regular file by inode number. */
static int find_file(struct apply_op *op, uint64_t ino, struct mvcc_key **ret_key)
{
    struct mvcc_key *key = mvcc_by_ino(op->a->mvcc, ino);

    if (key == NULL)
        return KEEL_E_NOTFOUND;
    if (mvcc_live_kind(key) == MVCC_DIR)
        return KEEL_E_ISDIR;
    if (mvcc_live_kind(key) != MVCC_FILE)
        return KEEL_E_INVALID;
    *ret_key = key;
    return 0;
}

static int write_file(struct apply_op *op, struct mvcc_key *key, const Keel__Write *write)
{
    struct mvcc_record record = record_now(op, key);
    uint64_t offset = write->replace ? 0 : write->append ? record.content.length : write->offset;

    op->result->ino = record.ino;
    op->result->size = record.content.length;
    op->result->offset = offset;
    if (too_big(op, offset, op->body.len))
        return KEEL_E_FILETOOBIG;
    int err = check_bind(op, write->bind);

    if (err != 0)
        return err;
    if (!write->replace && op->body.len == 0 && write->bind == NULL)
        return 0; /* write(2) of nothing is nothing */
    if (op->full)
        return KEEL_E_NOSPACE;
    struct mvcc_value value = { op->entry->data, op->body };
    struct keel_buf *made = NULL;

    if (!write->replace) {
        made = op->body.len == 0 ? keel_buf_copy(content_now(op, &record))
                                 : overlay(content_now(op, &record), offset, op->body);
        value = (struct mvcc_value){ made, keel_buf_slice(made) };
    }
    if (!write->keep_id)
        record.mode = without_set_id(record.mode);
    record.mtime_ns = op->head->time_ns;
    if (write->bind != NULL) {
        drop_lease(op, &record);
        record.lease = attach_bind(op, write->bind, record.ino);
    }
    put_content(op, key, &record, &value);
    keel_buf_free(made);
    return 0;
}

int apply_write(struct apply_op *op, const Keel__Write *write)
{
    struct mvcc_key *key;
    int err = find_file(op, write->ino, &key);

    if (err == 0)
        err = check_condition(write->condition, key, true);
    return err != 0 ? err : write_file(op, key, write);
}

int apply_copy_range(struct apply_op *op, const Keel__CopyRange *copy)
{
    struct mvcc_key *source, *target;
    int err = find_file(op, copy->source, &source);

    if (err == 0)
        err = find_file(op, copy->target, &target);
    if (err != 0)
        return err;
    struct mvcc_record from = record_now(op, source), to = record_now(op, target);
    uint64_t have =
        from.content.length > copy->source_offset ? from.content.length - copy->source_offset : 0;
    size_t len = (size_t)(have < copy->length ? have : copy->length);

    op->result->ino = to.ino;
    op->result->size = to.content.length;
    op->result->value = len;
    if (too_big(op, copy->target_offset, len))
        return KEEL_E_FILETOOBIG;
    if (len == 0)
        return 0;
    if (op->full)
        return KEEL_E_NOSPACE;
    struct keel_slice bytes = content_now(op, &from);

    bytes = keel_slice_of(bytes.data + copy->source_offset, len);
    struct keel_buf *made = overlay(content_now(op, &to), copy->target_offset, bytes);
    struct mvcc_value value = { made, keel_buf_slice(made) };

    if (!copy->keep_id)
        to.mode = without_set_id(to.mode);
    to.mtime_ns = op->head->time_ns;
    put_content(op, target, &to, &value);
    keel_buf_free(made);
    return 0;
}

/* ---- attributes ---- */

static int64_t attr_time(const struct apply_op *op, const Keel__SetAttr *set, unsigned bit,
                         int64_t given, int64_t old)
{
    if (!(set->set & bit))
        return old;
    return set->now & bit ? op->head->time_ns : given;
}

/* Everything in the record but its content. */
static void set_record(struct apply_op *op, const Keel__SetAttr *set, struct mvcc_record *record)
{
    bool owner = (set->set & (KEEL__ATTR__ATTR_UID | KEEL__ATTR__ATTR_GID)) != 0;

    if (set->set & KEEL__ATTR__ATTR_UID)
        record->uid = set->uid;
    if (set->set & KEEL__ATTR__ATTR_GID)
        record->gid = set->gid;
    if (record->kind == MVCC_FILE && (owner || set->clear_id))
        record->mode = without_set_id(record->mode);
    if (set->set & KEEL__ATTR__ATTR_MODE)
        record->mode = (uint16_t)(set->mode & 07777);
    record->atime_ns = attr_time(op, set, KEEL__ATTR__ATTR_ATIME, set->atime_ns, record->atime_ns);
    record->mtime_ns = attr_time(op, set, KEEL__ATTR__ATTR_MTIME, set->mtime_ns, record->mtime_ns);
}

/* The content after a change of size and zeroed ranges; NULL: it stays as it is. */
static struct keel_buf *set_content(struct apply_op *op, const Keel__SetAttr *set,
                                    const struct mvcc_record *record)
{
    uint64_t old_size = record->content.length;
    uint64_t size = set->set & KEEL__ATTR__ATTR_SIZE ? set->size : old_size;
    uint64_t zero_to = set->zero_to < size ? set->zero_to : size;

    if (set->grow_only && size < old_size)
        size = old_size;
    if (size == old_size && set->zero_from >= zero_to)
        return NULL;
    struct keel_slice old = content_now(op, record);
    struct keel_buf *buf = keel_buf_new((size_t)size);
    size_t kept = (size_t)(old_size < size ? old_size : size);

    if (kept > 0)
        memcpy(buf->data, old.data, kept);
    memset(buf->data + kept, 0, (size_t)size - kept);
    if (set->zero_from < zero_to)
        memset(buf->data + set->zero_from, 0, (size_t)(zero_to - set->zero_from));
    return buf;
}

static void put_attributes(struct apply_op *op, struct mvcc_key *key, struct mvcc_record *record)
{
    struct mvcc_key *parent = mvcc_parent(key);
    struct mvcc_record before = *record;

    before.xattrs = keel_slice_of(NULL, 0);
    record->ctime_ns = op->head->time_ns;
    if (parent == NULL)
        mvcc_put_root(op->txn, record);
    else
        mvcc_put(op->txn, parent, mvcc_name(key), record, NULL);
    struct keel_change *change = add_change(op, CHANGE_ATTR);

    change->before = before;
    change->ino = record->ino;
    change->object = record->kind;
    change->parent = parent != NULL ? mvcc_live_ino(parent) : 0;
    change->name = mvcc_name(key);
    change->size = record->content.length;
}

static bool same_attributes(const struct mvcc_record *a, const struct mvcc_record *b)
{
    return a->mode == b->mode && a->uid == b->uid && a->gid == b->gid &&
           a->atime_ns == b->atime_ns && a->mtime_ns == b->mtime_ns;
}

int apply_set_attr(struct apply_op *op, const Keel__SetAttr *set)
{
    struct mvcc_key *key = mvcc_by_ino(op->a->mvcc, set->ino);

    if (key == NULL)
        return KEEL_E_NOTFOUND;
    int err = check_condition(set->condition, key, true);

    if (err != 0)
        return err;
    struct mvcc_record before = record_now(op, key), record = before;

    op->result->ino = record.ino;
    op->result->size = record.content.length;
    bool sized = (set->set & KEEL__ATTR__ATTR_SIZE) != 0 || set->zero_from < set->zero_to;

    if (sized && record.kind != MVCC_FILE)
        return record.kind == MVCC_DIR ? KEEL_E_ISDIR : KEEL_E_INVALID;
    if ((set->set & KEEL__ATTR__ATTR_SIZE) && too_big(op, 0, set->size))
        return KEEL_E_FILETOOBIG;
    if (op->full)
        return KEEL_E_NOSPACE;
    set_record(op, set, &record);
    struct keel_buf *content = sized ? set_content(op, set, &record) : NULL;

    if (content != NULL) {
        struct mvcc_value value = { content, keel_buf_slice(content) };

        if (!set->keep_id)
            record.mode = without_set_id(record.mode);
        if (!(set->set & KEEL__ATTR__ATTR_MTIME))
            record.mtime_ns = op->head->time_ns;
        put_content(op, key, &record, &value);
        keel_buf_free(content);
        return 0;
    }
    if (!same_attributes(&before, &record) || set->now != 0)
        put_attributes(op, key, &record);
    return 0;
}

/* ---- names ---- */

static int check_remove(const Keel__Remove *remove, const struct place *place)
{
    if (!place->live)
        return KEEL_E_NOTFOUND;
    bool is_dir = mvcc_live_kind(place->key) == MVCC_DIR;

    if (remove->directory && !is_dir)
        return KEEL_E_NOTDIR;
    if (!remove->directory && is_dir)
        return KEEL_E_ISDIR;
    return is_dir && mvcc_dir_info(place->key).entries > 0 ? KEEL_E_NOTEMPTY : 0;
}

/* Deletes a key; `lease`: whose end it is. */
static void delete_key(struct apply_op *op, struct mvcc_key *key, uint64_t lease)
{
    struct mvcc_record before = record_now(op, key);
    struct mvcc_key *dir = mvcc_parent(key);
    struct keel_change *change =
        add_change(op, before.kind == MVCC_DIR ? CHANGE_RMDIR : CHANGE_REMOVE);

    before.xattrs = keel_slice_of(NULL, 0);
    change->before = before;
    change->ino = before.ino;
    change->object = before.kind;
    change->parent = mvcc_live_ino(dir);
    change->name = mvcc_name(key);
    change->lease = lease;
    drop_lease(op, &before);
    mvcc_delete(op->txn, key, op->head->time_ns, lease, false);
    mvcc_touch_dir(op->txn, dir, op->head->time_ns);
}

int apply_remove(struct apply_op *op, const Keel__Remove *remove)
{
    struct place place;
    int err = find_place(op, remove->parent, bytes_of(remove->name), &place);

    if (err == 0)
        err = check_remove(remove, &place);
    if (err == 0)
        err = check_condition(remove->condition, place.key, place.live);
    if (err != 0)
        return err;
    op->result->ino = mvcc_live_ino(place.key);
    delete_key(op, place.key, 0);
    return 0;
}

static int check_rename(const Keel__Rename *rename, const struct place *from,
                        const struct place *to)
{
    if (!from->live)
        return KEEL_E_NOTFOUND;
    int err = check_condition(rename->condition, to->key, to->live);

    if (err != 0)
        return err;
    if (rename->exchange)
        return KEEL_E_INVALID;
    if (mvcc_live_kind(from->key) == MVCC_DIR)
        return KEEL_E_XDEV;
    if (to->live && rename->no_replace)
        return KEEL_E_EXISTS;
    if (to->live && mvcc_live_kind(to->key) == MVCC_DIR)
        return KEEL_E_ISDIR;
    return apply_path_len(to->dir) + to->name.len > KEEL_PATH_MAX ? KEEL_E_NAMETOOLONG : 0;
}

static void move_key(struct apply_op *op, const struct place *from, const struct place *to)
{
    struct mvcc_record record = record_now(op, from->key);
    struct keel_change *change = add_change(op, CHANGE_RENAME);

    record.xattrs = keel_slice_of(NULL, 0);
    change->before = record;
    change->ino = record.ino;
    change->object = record.kind;
    change->parent = mvcc_live_ino(from->dir);
    change->name = from->name;
    change->new_parent = mvcc_live_ino(to->dir);
    change->new_name = to->name;
    change->size = record.content.length;
    if (to->live) {
        change->replaced_before = record_now(op, to->key);
        change->replaced_before.xattrs = keel_slice_of(NULL, 0);
        change->replaced = change->replaced_before.ino;
        drop_lease(op, &change->replaced_before);
    }
    mvcc_delete(op->txn, from->key, op->head->time_ns, 0, true);
    if (record.ctime_ns < op->head->time_ns)
        record.ctime_ns = op->head->time_ns;
    /* the key at the new name goes on, and with it the time at which it began */
    record.btime_ns = to->live ? change->replaced_before.btime_ns : op->head->time_ns;
    mvcc_put(op->txn, to->dir, to->name, &record, NULL);
    mvcc_touch_dir(op->txn, from->dir, op->head->time_ns);
    mvcc_touch_dir(op->txn, to->dir, op->head->time_ns);
    op->result->ino = record.ino;
}

int apply_rename(struct apply_op *op, const Keel__Rename *rename)
{
    struct place from, to;
    int err = find_place(op, rename->parent, bytes_of(rename->name), &from);

    if (err == 0)
        err = find_place(op, rename->new_parent, bytes_of(rename->new_name), &to);
    if (err == 0)
        err = check_rename(rename, &from, &to);
    if (err != 0)
        return err;
    op->result->ino = mvcc_live_ino(from.key);
    if (from.key != to.key) /* onto itself: done already */
        move_key(op, &from, &to);
    return 0;
}

/* ---- leases ---- */

int apply_lease_grant(struct apply_op *op, const Keel__LeaseGrant *grant)
{
    uint64_t id = op->entry->index;
    int err = lease_grant(op->a->leases, id, grant->ttl_ms, grant->uid, op->now_us);

    if (err != 0)
        return err;
    op->outcome->granted = id;
    op->result->lease = id;
    return 0;
}

struct key_list {
    struct apply_op *op;
    struct mvcc_key **keys;
    size_t count;
};

static int collect_key(void *arg, uint64_t ino)
{
    struct key_list *list = arg;
    struct mvcc_key *key = mvcc_by_ino(list->op->a->mvcc, ino);

    KEEL_ASSERT(key != NULL);
    list->keys[list->count++] = key;
    return 0;
}

static int compare_paths(const void *a, const void *b)
{
    struct keel_text x = { 0 }, y = { 0 };

    mvcc_path(*(struct mvcc_key *const *)a, &x);
    mvcc_path(*(struct mvcc_key *const *)b, &y);
    int order = keel_slice_compare(keel_slice_of(x.data, x.len), keel_slice_of(y.data, y.len));

    keel_text_free(&x);
    keel_text_free(&y);
    return order;
}

int apply_lease_end(struct apply_op *op, uint64_t lease)
{
    struct lease_info info;
    int err = lease_get(op->a->leases, lease, &info);

    if (err != 0)
        return err;
    struct key_list list = { op, keel_calloc(info.keys, sizeof *list.keys), 0 };

    lease_keys(op->a->leases, lease, collect_key, &list);
    qsort(list.keys, list.count, sizeof(struct mvcc_key *), compare_paths);
    for (size_t i = 0; i < list.count; i++)
        delete_key(op, list.keys[i], lease);
    free(list.keys);
    err = lease_revoke(op->a->leases, lease);
    KEEL_ASSERT(err == 0);
    op->outcome->revoked = lease;
    op->result->lease = lease;
    return 0;
}
