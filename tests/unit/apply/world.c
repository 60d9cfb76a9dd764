/* Two nodes of one log for test_reload.c, one of which may be behind; commands by path; a naive
 * tree to which the changes are applied that a reload tells. */
#include "world.h"

#include <stdio.h>

#include "check.h"
#include "err.h"
#include "mvcc/snapshot.h"

enum { NODES = 400 };

/* ---- two nodes, one log ---- */

void node_open(struct node *n)
{
    char why[256];

    n->kv = kv_mem_new();
    assert_int_equal(mvcc_open(n->kv, &n->mvcc, why, sizeof why), 0);
    assert_int_equal(apply_new(n->mvcc, &n->apply), 0);
}

void node_close(struct node *n)
{
    apply_free(n->apply);
    mvcc_close(n->mvcc);
    n->kv->ops->close(n->kv);
}

void node_checkpoint(struct node *n)
{
    struct kv_batch *batch = apply_checkpoint(n->apply);

    assert_int_equal(n->kv->ops->write(n->kv, batch), 0);
    mvcc_checkpointed(n->mvcc);
    kv_batch_free(batch);
}

static void node_apply(struct node *n, enum raft_entry_kind kind, struct keel_buf *data)
{
    struct raft_entry entry = {
        .term = 1, .index = mvcc_applied_index(n->mvcc) + 1, .kind = kind, .data = data
    };

    assert_int_equal(apply_entry(n->apply, &entry, 1000, &n->outcome), 0);
    mvcc_read_end(n->mvcc);
}

int run_command(struct world *w, Keel__Command *head, const char *body)
{
    head->level = 1;
    head->time_ns = w->time_ns += 1000;
    if (w->session != 0) {
        head->session = w->session;
        head->number = ++w->number;
        head->acked = w->number > 3 ? w->number - 3 : 0;
    }
    struct keel_buf *data = command_pack(head, keel_slice_str(body));

    node_apply(&w->ahead, RAFT_ENTRY_COMMAND, data);
    if (w->together)
        node_apply(&w->behind, RAFT_ENTRY_COMMAND, data);
    keel_buf_free(data);
    return w->ahead.outcome.result.err;
}

/* The first entry of a log: who the members are. */
static void configure(struct world *w)
{
    const struct apply_member member = { .id = 1, .name = "n1", .address = "h:1", .voter = true };
    struct raft_entry first = apply_first_entry(&member, 1);

    node_apply(&w->ahead, first.kind, first.data);
    node_apply(&w->behind, first.kind, first.data);
    keel_buf_free(first.data);
}

int reload_setup(void **state)
{
    struct world *w = calloc(1, sizeof *w);
    Keel__Command head = KEEL__COMMAND__INIT;
    Keel__OpenSession open = KEEL__OPEN_SESSION__INIT;

    node_open(&w->ahead);
    node_open(&w->behind);
    w->together = true;
    configure(w);
    open.node = 1;
    open.nonce = 7;
    head.op_case = KEEL__COMMAND__OP_OPEN_SESSION;
    head.open_session = &open;
    assert_int_equal(run_command(w, &head, ""), 0);
    w->session = w->ahead.outcome.result.value;
    w->next_ino = w->ahead.outcome.result.ino;
    *state = w;
    return 0;
}

int reload_teardown(void **state)
{
    struct world *w = *state;

    node_close(&w->ahead);
    node_close(&w->behind);
    keel_text_free(&w->told);
    free(w);
    return 0;
}

/* ---- commands by path ---- */

static ProtobufCBinaryData bytes(const char *s)
{
    return (ProtobufCBinaryData){ strlen(s), (uint8_t *)(uintptr_t)s };
}

/* Inode number of the directory, and the last component. */
static uint64_t split(struct world *w, const char *path, const char **ret_name)
{
    struct mvcc_key *key = mvcc_root(w->ahead.mvcc);
    const char *slash;

    for (; (slash = strchr(path, '/')) != NULL; path = slash + 1) {
        key = mvcc_child(w->ahead.mvcc, key, keel_slice_of(path, (size_t)(slash - path)));
        assert_non_null(key);
    }
    *ret_name = path;
    return mvcc_live_ino(key);
}

uint64_t ino_of(struct world *w, const char *path)
{
    const char *name;
    struct mvcc_key *dir = mvcc_by_ino(w->ahead.mvcc, split(w, path, &name));
    struct mvcc_key *key = mvcc_child(w->ahead.mvcc, dir, keel_slice_str(name));

    return key != NULL ? mvcc_live_ino(key) : 0;
}

int make(struct world *w, const char *path, Keel__Kind kind, const char *body, uint64_t ttl_ms)
{
    Keel__Command head = KEEL__COMMAND__INIT;
    Keel__Create create = KEEL__CREATE__INIT;
    Keel__Bind bind = KEEL__BIND__INIT;
    const char *name;

    create.parent = split(w, path, &name);
    create.name = bytes(name);
    create.kind = kind;
    create.mode = 0644;
    create.ino = w->next_ino++;
    create.exclusive = true;
    bind.ttl_ms = ttl_ms;
    create.bind = ttl_ms > 0 ? &bind : NULL;
    head.op_case = KEEL__COMMAND__OP_CREATE;
    head.create = &create;
    return run_command(w, &head, body);
}

int make_file(struct world *w, const char *path, const char *body)
{
    return make(w, path, KEEL__KIND__FILE, body, 0);
}

int make_dir(struct world *w, const char *path)
{
    return make(w, path, KEEL__KIND__DIR, "", 0);
}

int move(struct world *w, const char *from, const char *to)
{
    Keel__Command head = KEEL__COMMAND__INIT;
    Keel__Rename rename = KEEL__RENAME__INIT;
    const char *name, *new_name;

    rename.parent = split(w, from, &name);
    rename.new_parent = split(w, to, &new_name);
    rename.name = bytes(name);
    rename.new_name = bytes(new_name);
    head.op_case = KEEL__COMMAND__OP_RENAME;
    head.rename = &rename;
    return run_command(w, &head, "");
}

int remove_path(struct world *w, const char *path, bool directory)
{
    Keel__Command head = KEEL__COMMAND__INIT;
    Keel__Remove remove = KEEL__REMOVE__INIT;
    const char *name;

    remove.parent = split(w, path, &name);
    remove.name = bytes(name);
    remove.directory = directory;
    head.op_case = KEEL__COMMAND__OP_REMOVE;
    head.remove = &remove;
    return run_command(w, &head, "");
}

int rewrite(struct world *w, uint64_t ino, const char *body)
{
    Keel__Command head = KEEL__COMMAND__INIT;
    Keel__Write write = KEEL__WRITE__INIT;

    write.ino = ino;
    write.replace = true;
    head.op_case = KEEL__COMMAND__OP_WRITE;
    head.write = &write;
    return run_command(w, &head, body);
}

int change_mode(struct world *w, uint64_t ino, uint32_t mode)
{
    Keel__Command head = KEEL__COMMAND__INIT;
    Keel__SetAttr set = KEEL__SET_ATTR__INIT;

    set.ino = ino;
    set.set = KEEL__ATTR__ATTR_MODE;
    set.mode = mode;
    head.op_case = KEEL__COMMAND__OP_SET_ATTR;
    head.set_attr = &set;
    return run_command(w, &head, "");
}

int revoke_lease(struct world *w, uint64_t lease)
{
    Keel__Command head = KEEL__COMMAND__INIT;
    Keel__LeaseRevoke end = KEEL__LEASE_REVOKE__INIT;

    end.lease = lease;
    head.op_case = KEEL__COMMAND__OP_LEASE_REVOKE;
    head.lease_revoke = &end;
    return run_command(w, &head, "");
}

int compact(struct world *w, uint64_t revision)
{
    Keel__Command head = KEEL__COMMAND__INIT;
    Keel__Compact command = KEEL__COMPACT__INIT;

    command.revision = revision;
    head.op_case = KEEL__COMMAND__OP_COMPACT;
    head.compact = &command;
    return run_command(w, &head, "");
}

uint64_t compact_step(struct world *w, uint32_t budget)
{
    Keel__Command head = KEEL__COMMAND__INIT;
    Keel__CompactStep command = KEEL__COMPACT_STEP__INIT;

    command.budget = budget;
    head.op_case = KEEL__COMMAND__OP_COMPACT_STEP;
    head.compact_step = &command;
    assert_int_equal(run_command(w, &head, ""), 0);
    return w->ahead.outcome.result.value;
}

int set_quota(struct world *w, uint64_t bytes)
{
    Keel__Command head = KEEL__COMMAND__INIT;
    Keel__Settings settings = KEEL__SETTINGS__INIT;

    settings.quota_bytes = bytes;
    head.op_case = KEEL__COMMAND__OP_SETTINGS;
    head.settings = &settings;
    return run_command(w, &head, "");
}

/* ---- a naive tree ---- */

struct entry {
    uint64_t ino, parent;
    char name[NAME];
    enum mvcc_kind kind;
    uint64_t content; /* its hash */
    uint32_t mode, uid, gid;
    uint64_t lease;
};

struct model {
    struct entry entries[NODES];
    size_t count;
};

static struct entry *model_find(struct model *t, uint64_t ino)
{
    for (size_t i = 0; i < t->count; i++)
        if (t->entries[i].ino == ino)
            return &t->entries[i];
    return NULL;
}

static struct entry *model_at(struct model *t, uint64_t parent, struct keel_slice name)
{
    for (size_t i = 0; i < t->count; i++)
        if (t->entries[i].parent == parent &&
            keel_slice_equal(keel_slice_str(t->entries[i].name), name))
            return &t->entries[i];
    return NULL;
}

static void set_name(struct entry *e, struct keel_slice name)
{
    assert_true(name.len < NAME);
    if (name.len > 0)
        memcpy(e->name, name.data, name.len);
    e->name[name.len] = '\0';
}

static void set_content(struct entry *e, struct mvcc *m)
{
    struct mvcc_record record;

    assert_int_equal(mvcc_get(m, mvcc_by_ino(m, e->ino), 0, &record), 0);
    e->content = record.content.hash;
}

static void set_attributes(struct entry *e, struct mvcc *m)
{
    struct mvcc_record record;

    assert_int_equal(mvcc_get(m, mvcc_by_ino(m, e->ino), 0, &record), 0);
    e->mode = record.mode;
    e->uid = record.uid;
    e->gid = record.gid;
    e->lease = record.lease;
}

static struct entry *model_add(struct model *t, uint64_t ino, uint64_t parent,
                               struct keel_slice name, enum mvcc_kind kind, struct mvcc *m)
{
    assert_true(t->count < NODES);
    struct entry *e = &t->entries[t->count++];

    memset(e, 0, sizeof *e);
    e->ino = ino;
    e->parent = parent;
    e->kind = kind;
    set_name(e, name);
    set_content(e, m);
    set_attributes(e, m);
    return e;
}

static void model_read(struct model *t, struct mvcc *m, struct mvcc_key *key)
{
    struct mvcc_key *parent = mvcc_parent(key), *child;
    struct keel_slice after = keel_slice_of(NULL, 0);

    model_add(t, mvcc_live_ino(key), parent ? mvcc_live_ino(parent) : 0, mvcc_name(key),
              mvcc_live_kind(key), m);
    if (mvcc_live_kind(key) != MVCC_DIR)
        return;
    while ((child = mvcc_next_child(m, key, 0, after)) != NULL) {
        model_read(t, m, child);
        after = mvcc_name(child);
    }
}

static int by_ino(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;

    return (x->ino > y->ino) - (x->ino < y->ino);
}

static struct model *model_of(struct mvcc *m)
{
    struct model *t = calloc(1, sizeof *t);

    model_read(t, m, mvcc_root(m));
    mvcc_read_end(m);
    return t;
}

static void assert_same_model(struct model *a, struct model *b)
{
    qsort(a->entries, a->count, sizeof a->entries[0], by_ino);
    qsort(b->entries, b->count, sizeof b->entries[0], by_ino);
    assert_int_equal(a->count, b->count);
    for (size_t i = 0; i < a->count; i++) {
        assert_int_equal(a->entries[i].ino, b->entries[i].ino);
        assert_int_equal(a->entries[i].parent, b->entries[i].parent);
        assert_string_equal(a->entries[i].name, b->entries[i].name);
        assert_int_equal(a->entries[i].kind, b->entries[i].kind);
        assert_true(a->entries[i].content == b->entries[i].content);
        assert_int_equal(a->entries[i].mode, b->entries[i].mode);
        assert_int_equal(a->entries[i].lease, b->entries[i].lease);
    }
}

static void assert_is_dir(struct model *t, uint64_t ino)
{
    struct entry *e = model_find(t, ino);

    assert_non_null(e);
    assert_int_equal(e->kind, MVCC_DIR);
}

static void model_remove(struct model *t, struct entry *e)
{
    for (size_t i = 0; i < t->count; i++)
        assert_true(t->entries[i].parent != e->ino);
    *e = t->entries[--t->count];
}

static void model_rename(struct world *w, struct model *t, const struct keel_change *c)
{
    struct entry *e = model_at(t, c->parent, c->name);
    struct entry *there = model_at(t, c->new_parent, c->new_name);

    assert_non_null(e);
    assert_int_equal(e->ino, c->ino);
    assert_is_dir(t, c->new_parent);
    e->parent = 0;
    assert_int_equal(there ? there->ino : 0, c->replaced);
    if (there != NULL) {
        assert_int_equal(c->replaced_before.ino, there->ino);
        assert_true(there->kind != MVCC_DIR);
        model_remove(t, there);
        w->replaced++;
    }
    w->parked += c->new_name.len > 14 && memcmp(c->new_name.data, ".keelfs-moved-", 14) == 0;
    e = model_find(t, c->ino);
    e->parent = c->new_parent;
    set_name(e, c->new_name);
}

static void model_change(struct world *w, struct model *t, const struct keel_change *c)
{
    struct mvcc *m = w->behind.mvcc;
    struct entry *e = model_at(t, c->parent, c->name);

    assert_int_equal(c->index, mvcc_applied_index(m));
    assert_int_equal(c->revision, mvcc_revision(m));
    switch (c->kind) {
    case CHANGE_CREATE:
    case CHANGE_MKDIR:
    case CHANGE_SYMLINK:
        assert_null(e);
        assert_is_dir(t, c->parent);
        model_add(t, c->ino, c->parent, c->name, c->object, m);
        break;
    case CHANGE_REMOVE:
    case CHANGE_RMDIR:
        assert_int_equal(e->ino, c->ino);
        assert_int_equal(c->before.ino, c->ino);
        assert_int_equal(c->before.mode, e->mode);
        assert_true(c->before.content.hash == e->content);
        assert_int_equal(c->kind == CHANGE_RMDIR, e->kind == MVCC_DIR);
        model_remove(t, e);
        break;
    case CHANGE_RENAME:
        model_rename(w, t, c);
        break;
    case CHANGE_CONTENT:
        assert_int_equal(e->ino, c->ino);
        assert_true(c->before.content.hash == e->content);
        set_content(e, m);
        break;
    case CHANGE_ATTR:
        assert_int_equal(e->ino, c->ino);
        assert_int_equal(c->before.mode, e->mode);
        set_attributes(e, m);
        break;
    }
}

/* ---- the reload ---- */

void reload_note(void *arg, const struct keel_change *c)
{
    static const char *const words[] = {
        [CHANGE_CREATE] = "create", [CHANGE_MKDIR] = "mkdir",     [CHANGE_SYMLINK] = "symlink",
        [CHANGE_CONTENT] = "write", [CHANGE_ATTR] = "attributes", [CHANGE_REMOVE] = "remove",
        [CHANGE_RMDIR] = "rmdir",   [CHANGE_RENAME] = "rename",
    };
    struct world *w = arg;

    keel_text_printf(&w->told, "%s%s ", w->told.len ? ", " : "", words[c->kind]);
    keel_text_append(&w->told, c->name);
    if (c->kind == CHANGE_RENAME) {
        keel_text_printf(&w->told, " to ");
        keel_text_append(&w->told, c->new_name);
        keel_text_printf(&w->told, "%s", c->replaced ? " over another" : "");
    }
    if (c->lease != 0)
        keel_text_printf(&w->told, " with its lease");
    if (w->model != NULL)
        model_change(w, w->model, c);
}

int write_batch(void *arg, struct kv_batch *batch_take)
{
    struct kv *kv = arg;
    int err = kv->ops->write(kv, batch_take);

    kv_batch_free(batch_take);
    return err;
}

struct kv *copy_of(struct kv *kv)
{
    struct kv *copy = kv_mem_new();
    struct snapshot_reader *reader = snapshot_reader_new(write_batch, copy);
    struct snapshot_writer *writer;
    struct snapshot_info info;
    struct keel_slice piece;
    char why[256];

    assert_int_equal(snapshot_writer_new(kv, 1, &writer), 0);
    do {
        assert_int_equal(snapshot_writer_next(writer, &piece), 0);
        assert_int_equal(snapshot_reader_feed(reader, piece, why, sizeof why), 0);
    } while (piece.len > 0);
    assert_int_equal(snapshot_reader_finish(reader, &info, why, sizeof why), 0);
    snapshot_writer_free(writer);
    snapshot_reader_free(reader);
    return copy;
}

/* What the two nodes would checkpoint beside the keyspace. */
static void assert_same_meta(struct world *w)
{
    static const char *const names[] = { "cluster", "leases" };

    node_checkpoint(&w->behind);
    for (size_t i = 0; i < KEEL_ARRAY_LEN(names); i++) {
        struct keel_buf *a, *b;

        assert_int_equal(mvcc_meta(w->ahead.mvcc, keel_slice_str(names[i]), &a), 0);
        assert_int_equal(mvcc_meta(w->behind.mvcc, keel_slice_str(names[i]), &b), 0);
        assert_true(keel_slice_equal(keel_buf_slice(a), keel_buf_slice(b)));
        keel_buf_free(a);
        keel_buf_free(b);
    }
    mvcc_read_end(w->ahead.mvcc);
    mvcc_read_end(w->behind.mvcc);
}

/* The node that is behind gets the state of the other; what is told leads there. */
void catch_up(struct world *w)
{
    struct model *before = model_of(w->behind.mvcc), *after;
    struct kv *old = w->behind.kv;
    char why[256] = "";

    node_checkpoint(&w->ahead);
    w->behind.kv = copy_of(w->ahead.kv);
    w->model = before;
    keel_text_free(&w->told);
    keel_text_printf(&w->told, "%s", "");
    if (apply_reload(w->behind.apply, w->behind.kv, reload_note, w, why, sizeof why) != 0)
        fail_msg("%s", why);
    w->model = NULL;
    old->ops->close(old);
    after = model_of(w->behind.mvcc);
    assert_same_model(before, after);
    free(after);
    after = model_of(w->ahead.mvcc);
    assert_same_model(before, after);
    free(after);
    free(before);
    assert_same_meta(w);
    w->together = true;
}

void catch_up_telling(struct world *w, const char *expected)
{
    catch_up(w);
    assert_string_equal(w->told.data, expected);
}
