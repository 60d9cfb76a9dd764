/* What each command does to the replicated state, and what sessions promise. */
#include "unit.h"

#include <string.h>

#include "apply.h"
#include "check.h"
#include "err.h"
#include "mvcc/kv.h"

struct world {
    struct kv *kv;
    struct mvcc *mvcc;
    struct apply *apply;
    uint64_t index, session, number, next_ino;
    uint64_t term;
    int64_t time_ns;
    struct apply_outcome outcome;
};

static const struct apply_member members[] = {
    { .id = 1, .name = "n1", .address = "h:1", .voter = true },
    { .id = 2, .name = "n2", .address = "h:2", .voter = true },
};

static void world_open(struct world *w)
{
    char why[256];

    assert_int_equal(mvcc_open(w->kv, &w->mvcc, why, sizeof why), 0);
    assert_int_equal(apply_new(w->mvcc, &w->apply), 0);
}

static int run_at(struct world *w, Keel__Command *head, const char *body)
{
    struct raft_entry entry = { .term = w->term, .index = ++w->index, .kind = RAFT_ENTRY_COMMAND };

    if (head->level == 0)
        head->level = 1;
    head->time_ns = w->time_ns += 1000;
    entry.data = command_pack(head, keel_slice_str(body));
    int err = apply_entry(w->apply, &entry, 1000000, &w->outcome);

    keel_buf_free(entry.data);
    mvcc_read_end(w->mvcc);
    return err != 0 ? err : w->outcome.result.err;
}

/* As the next command of the session. */
static int run(struct world *w, Keel__Command *head, const char *body)
{
    head->session = w->session;
    head->number = ++w->number;
    head->acked = w->number - 1;
    return run_at(w, head, body);
}

/* The next entry is a configuration. */
static int configure(struct world *w, const struct raft_config *config,
                     const struct apply_member *named, size_t count)
{
    struct keel_buf *rest = count > 0 ? apply_pack_members(named, count) : NULL;
    struct raft_entry entry = { .term = w->term, .index = ++w->index, .kind = RAFT_ENTRY_CONFIG };

    entry.data = raft_config_encode(config, keel_buf_slice(rest));
    int err = apply_entry(w->apply, &entry, 0, &w->outcome);

    keel_buf_free(rest);
    keel_buf_free(entry.data);
    return err;
}

static void open_session(struct world *w, uint64_t node, uint64_t nonce)
{
    Keel__Command head = KEEL__COMMAND__INIT;
    Keel__OpenSession open = KEEL__OPEN_SESSION__INIT;

    open.node = node;
    open.nonce = nonce;
    head.op_case = KEEL__COMMAND__OP_OPEN_SESSION;
    head.open_session = &open;
    assert_int_equal(run_at(w, &head, ""), 0);
}

static int setup(void **state)
{
    struct world *w = calloc(1, sizeof *w);

    w->kv = kv_mem_new();
    w->term = 1;
    world_open(w);
    struct raft_entry first = apply_first_entry(members, 2);

    assert_int_equal(first.index, ++w->index);
    assert_int_equal(apply_entry(w->apply, &first, 0, &w->outcome), 0);
    keel_buf_free(first.data);
    open_session(w, 1, 7);
    assert_true(w->outcome.opened_session);
    w->session = w->outcome.result.value;
    w->next_ino = w->outcome.result.ino;
    *state = w;
    return 0;
}

static int teardown(void **state)
{
    struct world *w = *state;

    apply_free(w->apply);
    mvcc_close(w->mvcc);
    w->kv->ops->close(w->kv);
    free(w);
    return 0;
}

/* ---- shorthand for commands ---- */

static ProtobufCBinaryData bytes(const char *s)
{
    return (ProtobufCBinaryData){ strlen(s), (uint8_t *)(uintptr_t)s };
}

static Keel__Create create_of(struct world *w, const char *name)
{
    Keel__Create create = KEEL__CREATE__INIT;

    create.parent = MVCC_ROOT_INO;
    create.name = bytes(name);
    create.kind = KEEL__KIND__FILE;
    create.mode = 0644;
    create.ino = w->next_ino++;
    create.exclusive = true;
    return create;
}

static int create(struct world *w, Keel__Create *create, const char *body)
{
    Keel__Command head = KEEL__COMMAND__INIT;

    head.op_case = KEEL__COMMAND__OP_CREATE;
    head.create = create;
    return run(w, &head, body);
}

/* A file with content; its inode number. */
static uint64_t make(struct world *w, const char *name, const char *body)
{
    Keel__Create c = create_of(w, name);

    assert_int_equal(create(w, &c, body), 0);
    return c.ino;
}

static uint64_t make_dir(struct world *w, const char *name, uint32_t mode, uint32_t gid)
{
    Keel__Create c = create_of(w, name);

    c.kind = KEEL__KIND__DIR;
    c.mode = mode;
    c.gid = gid;
    assert_int_equal(create(w, &c, ""), 0);
    return c.ino;
}

static int write_op(struct world *w, Keel__Write *write, const char *body)
{
    Keel__Command head = KEEL__COMMAND__INIT;

    head.op_case = KEEL__COMMAND__OP_WRITE;
    head.write = write;
    return run(w, &head, body);
}

static int write_at(struct world *w, uint64_t ino, uint64_t offset, const char *body)
{
    Keel__Write write = KEEL__WRITE__INIT;

    write.ino = ino;
    write.offset = offset;
    return write_op(w, &write, body);
}

static int append(struct world *w, uint64_t ino, const char *body)
{
    Keel__Write write = KEEL__WRITE__INIT;

    write.ino = ino;
    write.append = true;
    return write_op(w, &write, body);
}

static int replace(struct world *w, uint64_t ino, const char *body, Keel__Condition *condition)
{
    Keel__Write write = KEEL__WRITE__INIT;

    write.ino = ino;
    write.replace = true;
    write.condition = condition;
    return write_op(w, &write, body);
}

static int remove_op(struct world *w, const char *name, bool directory, Keel__Condition *condition)
{
    Keel__Command head = KEEL__COMMAND__INIT;
    Keel__Remove remove = KEEL__REMOVE__INIT;

    remove.parent = MVCC_ROOT_INO;
    remove.name = bytes(name);
    remove.directory = directory;
    remove.condition = condition;
    head.op_case = KEEL__COMMAND__OP_REMOVE;
    head.remove = &remove;
    return run(w, &head, "");
}

static int rename_op(struct world *w, const char *from, const char *to, bool no_replace,
                     Keel__Condition *condition)
{
    Keel__Command head = KEEL__COMMAND__INIT;
    Keel__Rename rename = KEEL__RENAME__INIT;

    rename.parent = rename.new_parent = MVCC_ROOT_INO;
    rename.name = bytes(from);
    rename.new_name = bytes(to);
    rename.no_replace = no_replace;
    rename.condition = condition;
    head.op_case = KEEL__COMMAND__OP_RENAME;
    head.rename = &rename;
    return run(w, &head, "");
}

static int set_attr(struct world *w, Keel__SetAttr *set)
{
    Keel__Command head = KEEL__COMMAND__INIT;

    head.op_case = KEEL__COMMAND__OP_SET_ATTR;
    head.set_attr = set;
    return run(w, &head, "");
}

static struct mvcc_record record(struct world *w, const char *name)
{
    struct mvcc_record r;
    struct mvcc_key *key = mvcc_child(w->mvcc, mvcc_root(w->mvcc), keel_slice_str(name));

    assert_non_null(key);
    assert_int_equal(mvcc_get(w->mvcc, key, 0, &r), 0);
    return r;
}

static bool exists(struct world *w, const char *name)
{
    struct mvcc_key *key = mvcc_child(w->mvcc, mvcc_root(w->mvcc), keel_slice_str(name));

    return key != NULL && mvcc_live_ino(key) != 0;
}

static void assert_content(struct world *w, const char *name, const char *expected)
{
    struct mvcc_record r = record(w, name);
    struct keel_slice content;

    assert_int_equal(mvcc_read(w->mvcc, &r.content, &content), 0);
    assert_int_equal(content.len, strlen(expected));
    if (content.len > 0)
        assert_memory_equal(content.data, expected, content.len);
    mvcc_read_end(w->mvcc);
}

static void restart(struct world *w)
{
    struct kv_batch *batch = apply_checkpoint(w->apply);

    assert_int_equal(w->kv->ops->write(w->kv, batch), 0);
    mvcc_checkpointed(w->mvcc);
    kv_batch_free(batch);
    apply_free(w->apply);
    mvcc_close(w->mvcc);
    world_open(w);
}

/* ---- files ---- */

static void creation_and_first_content_are_one_revision_version_1(void **state)
{
    struct world *w = *state;
    uint64_t before = mvcc_revision(w->mvcc);

    make(w, "f", "hello");
    assert_int_equal(mvcc_revision(w->mvcc), before + 1);
    assert_int_equal(w->outcome.result.revision, before + 1);
    struct mvcc_record r = record(w, "f");

    assert_int_equal(r.version, 1);
    assert_int_equal(r.create_revision, before + 1);
    assert_content(w, "f", "hello");
    assert_int_equal(w->outcome.change_count, 1);
    assert_int_equal(w->outcome.changes[0].kind, CHANGE_CREATE);
}

static void exclusive_creation_of_what_exists_fails_and_changes_nothing(void **state)
{
    struct world *w = *state;

    make(w, "f", "first");
    uint64_t before = mvcc_revision(w->mvcc);
    Keel__Create c = create_of(w, "f");

    assert_int_equal(create(w, &c, "second"), KEEL_E_EXISTS);
    assert_int_equal(mvcc_revision(w->mvcc), before);
    assert_content(w, "f", "first");
}

static void creation_without_exclusive_adopts_what_another_node_created(void **state)
{
    struct world *w = *state;
    uint64_t ino = make(w, "f", "theirs");
    Keel__Create c = create_of(w, "f");

    c.exclusive = false;
    assert_int_equal(create(w, &c, ""), 0);
    assert_int_equal(w->outcome.result.ino, ino);
    assert_int_equal(w->outcome.result.revision, 0);
    c = create_of(w, "f");
    c.exclusive = false;
    c.write = true;
    c.append = true;
    assert_int_equal(create(w, &c, "+ours"), 0);
    assert_content(w, "f", "theirs+ours");
    assert_int_equal(record(w, "f").version, 2);
}

static void write_at_an_offset_keeps_the_rest_and_fills_a_gap_with_zeroes(void **state)
{
    struct world *w = *state;
    uint64_t ino = make(w, "f", "abcdef");

    assert_int_equal(write_at(w, ino, 2, "XY"), 0);
    assert_content(w, "f", "abXYef");
    assert_int_equal(write_at(w, ino, 8, "z"), 0);
    struct mvcc_record r = record(w, "f");
    struct keel_slice content;

    assert_int_equal(mvcc_read(w->mvcc, &r.content, &content), 0);
    assert_int_equal(content.len, 9);
    assert_memory_equal(content.data, "abXYef\0\0z", 9);
    mvcc_read_end(w->mvcc);
}

static void append_goes_to_the_end_as_of_apply(void **state)
{
    struct world *w = *state;
    uint64_t ino = make(w, "f", "1");

    assert_int_equal(append(w, ino, "2"), 0);
    assert_int_equal(append(w, ino, "3"), 0);
    assert_int_equal(w->outcome.result.offset, 2);
    assert_int_equal(w->outcome.result.size, 3);
    assert_content(w, "f", "123");
}

static void write_of_identical_bytes_is_a_revision_and_of_nothing_is_none(void **state)
{
    struct world *w = *state;
    uint64_t ino = make(w, "f", "same");
    uint64_t before = mvcc_revision(w->mvcc);

    assert_int_equal(replace(w, ino, "same", NULL), 0);
    assert_int_equal(mvcc_revision(w->mvcc), before + 1);
    assert_int_equal(write_at(w, ino, 1, ""), 0);
    assert_int_equal(mvcc_revision(w->mvcc), before + 1);
}

static void file_over_the_limit_is_refused_and_the_old_value_stays(void **state)
{
    struct world *w = *state;
    uint64_t ino = make(w, "f", "old");
    Keel__SetAttr set = KEEL__SET_ATTR__INIT;

    assert_int_equal(write_at(w, ino, KEEL_FILE_SIZE_MAX, "x"), KEEL_E_FILETOOBIG);
    assert_int_equal(write_at(w, ino, UINT64_MAX - 1, "xyz"), KEEL_E_FILETOOBIG);
    set.ino = ino;
    set.set = KEEL__ATTR__ATTR_SIZE;
    set.size = KEEL_FILE_SIZE_MAX + 1;
    assert_int_equal(set_attr(w, &set), KEEL_E_FILETOOBIG);
    assert_content(w, "f", "old");
}

static void condition_on_the_revision_holds_or_the_write_is_stale(void **state)
{
    struct world *w = *state;
    uint64_t ino = make(w, "f", "a");
    Keel__Condition condition = KEEL__CONDITION__INIT;

    condition.revision = record(w, "f").revision.main;
    assert_int_equal(replace(w, ino, "b", &condition), 0);
    assert_int_equal(replace(w, ino, "c", &condition), KEEL_E_STALE);
    assert_content(w, "f", "b");
    assert_int_equal(remove_op(w, "f", false, &condition), KEEL_E_STALE);
    condition.revision = record(w, "f").revision.main;
    assert_int_equal(remove_op(w, "f", false, &condition), 0);
}

static void creation_if_absent_and_rename_onto_if_absent(void **state)
{
    struct world *w = *state;
    Keel__Condition absent = KEEL__CONDITION__INIT;
    Keel__Create c = create_of(w, "f");

    c.condition = &absent;
    c.exclusive = false;
    assert_int_equal(create(w, &c, "x"), 0);
    c = create_of(w, "f");
    c.condition = &absent;
    c.exclusive = false;
    assert_int_equal(create(w, &c, "y"), KEEL_E_EXISTS);
    make(w, "t", "z");
    assert_int_equal(rename_op(w, "t", "f", false, &absent), KEEL_E_EXISTS);
    assert_int_equal(rename_op(w, "t", "g", false, &absent), 0);
}

/* ---- attributes ---- */

static void chmod_to_the_same_mode_is_no_revision_and_touch_always_is_one(void **state)
{
    struct world *w = *state;
    uint64_t ino = make(w, "f", "x");
    uint64_t before = mvcc_revision(w->mvcc);
    Keel__SetAttr set = KEEL__SET_ATTR__INIT;

    set.ino = ino;
    set.set = KEEL__ATTR__ATTR_MODE;
    set.mode = 0644;
    assert_int_equal(set_attr(w, &set), 0);
    assert_int_equal(mvcc_revision(w->mvcc), before);
    set.mode = 0600;
    assert_int_equal(set_attr(w, &set), 0);
    assert_int_equal(mvcc_revision(w->mvcc), before + 1);
    assert_int_equal(record(w, "f").version, 2);
    set.set = KEEL__ATTR__ATTR_MTIME;
    set.now = KEEL__ATTR__ATTR_MTIME;
    assert_int_equal(set_attr(w, &set), 0);
    assert_int_equal(mvcc_revision(w->mvcc), before + 2);
    assert_content(w, "f", "x");
}

static void write_by_others_than_root_clears_set_id_bits(void **state)
{
    struct world *w = *state;
    Keel__Create c = create_of(w, "f");
    Keel__Write write = KEEL__WRITE__INIT;

    c.mode = 06755;
    assert_int_equal(create(w, &c, "x"), 0);
    write.ino = c.ino;
    write.keep_id = true;
    assert_int_equal(write_op(w, &write, "root"), 0);
    assert_int_equal(record(w, "f").mode, 06755);
    write.keep_id = false;
    assert_int_equal(write_op(w, &write, "user"), 0);
    assert_int_equal(record(w, "f").mode, 0755);
}

static void set_group_id_directory_hands_its_group_on(void **state)
{
    struct world *w = *state;
    uint64_t dir = make_dir(w, "d", 02775, 50);
    Keel__Create c = create_of(w, "sub");

    c.parent = dir;
    c.kind = KEEL__KIND__DIR;
    c.mode = 0755;
    c.gid = 7;
    assert_int_equal(create(w, &c, ""), 0);
    struct mvcc_record r;

    assert_int_equal(mvcc_get(w->mvcc, mvcc_by_ino(w->mvcc, c.ino), 0, &r), 0);
    assert_int_equal(r.gid, 50);
    assert_int_equal(r.mode, 02755);
}

static void truncate_grows_with_zeroes_and_a_range_can_be_zeroed(void **state)
{
    struct world *w = *state;
    uint64_t ino = make(w, "f", "abcdef");
    Keel__SetAttr set = KEEL__SET_ATTR__INIT;

    set.ino = ino;
    set.set = KEEL__ATTR__ATTR_SIZE;
    set.size = 3;
    assert_int_equal(set_attr(w, &set), 0);
    assert_content(w, "f", "abc");
    set.grow_only = true;
    set.size = 1;
    assert_int_equal(set_attr(w, &set), 0);
    assert_content(w, "f", "abc");
    set = (Keel__SetAttr)KEEL__SET_ATTR__INIT;
    set.ino = ino;
    set.zero_from = 1;
    set.zero_to = 100;
    assert_int_equal(set_attr(w, &set), 0);
    struct mvcc_record r = record(w, "f");
    struct keel_slice content;

    assert_int_equal(mvcc_read(w->mvcc, &r.content, &content), 0);
    assert_int_equal(content.len, 3);
    assert_memory_equal(content.data, "a\0\0", 3);
    mvcc_read_end(w->mvcc);
}

/* ---- names ---- */

static void rename_over_a_file_is_the_next_version_of_that_key(void **state)
{
    struct world *w = *state;

    make(w, "conf", "v1");
    uint64_t created = record(w, "conf").create_revision;
    uint64_t ino = make(w, "tmp", "v2");
    uint64_t before = mvcc_revision(w->mvcc);

    assert_int_equal(rename_op(w, "tmp", "conf", false, NULL), 0);
    assert_int_equal(mvcc_revision(w->mvcc), before + 1);
    struct mvcc_record r = record(w, "conf");

    assert_int_equal(r.create_revision, created);
    assert_int_equal(r.version, 2);
    assert_int_equal(r.ino, ino);
    assert_content(w, "conf", "v2");
    assert_false(exists(w, "tmp"));
    assert_int_equal(w->outcome.change_count, 1);
    assert_int_equal(w->outcome.changes[0].kind, CHANGE_RENAME);
    assert_int_not_equal(w->outcome.changes[0].replaced, 0);
}

static void rename_keeps_content_by_reference(void **state)
{
    struct world *w = *state;

    make(w, "a", "value");
    struct mvcc_content content = record(w, "a").content;

    assert_int_equal(rename_op(w, "a", "b", true, NULL), 0);
    assert_int_equal(record(w, "b").content.at.main, content.at.main);
    assert_int_equal(record(w, "b").version, 1);
    assert_content(w, "b", "value");
}

static void rename_checks_its_names(void **state)
{
    struct world *w = *state;

    make(w, "a", "1");
    make(w, "b", "2");
    make_dir(w, "d", 0755, 0);
    uint64_t before = mvcc_revision(w->mvcc);

    assert_int_equal(rename_op(w, "a", "b", true, NULL), KEEL_E_EXISTS);
    assert_int_equal(rename_op(w, "missing", "b", false, NULL), KEEL_E_NOTFOUND);
    assert_int_equal(rename_op(w, "a", "d", false, NULL), KEEL_E_ISDIR);
    assert_int_equal(rename_op(w, "d", "e", false, NULL), KEEL_E_XDEV);
    assert_int_equal(rename_op(w, "a", "a", false, NULL), 0);
    assert_int_equal(rename_op(w, "a", "x/y", false, NULL), KEEL_E_INVALID);
    assert_int_equal(mvcc_revision(w->mvcc), before);
}

static void removal_follows_posix(void **state)
{
    struct world *w = *state;
    uint64_t dir = make_dir(w, "d", 0755, 0);
    Keel__Create c = create_of(w, "f");

    c.parent = dir;
    assert_int_equal(create(w, &c, "x"), 0);
    assert_int_equal(remove_op(w, "d", false, NULL), KEEL_E_ISDIR);
    assert_int_equal(remove_op(w, "d", true, NULL), KEEL_E_NOTEMPTY);
    make(w, "f", "y");
    assert_int_equal(remove_op(w, "f", true, NULL), KEEL_E_NOTDIR);
    assert_int_equal(remove_op(w, "f", false, NULL), 0);
    assert_int_equal(remove_op(w, "f", false, NULL), KEEL_E_NOTFOUND);
    struct mvcc_dir_info info = mvcc_dir_info(mvcc_root(w->mvcc));

    assert_int_equal(info.entries, 1);
    assert_int_equal(info.subdirs, 1);
    assert_int_equal(info.mtime_ns, w->time_ns - 1000); /* of the removal that succeeded */
}

static void names_and_inode_numbers_are_checked(void **state)
{
    struct world *w = *state;
    char long_name[300];
    Keel__Create c = create_of(w, "..");

    assert_int_equal(create(w, &c, ""), KEEL_E_INVALID);
    memset(long_name, 'x', sizeof long_name);
    long_name[256] = '\0';
    c = create_of(w, long_name);
    assert_int_equal(create(w, &c, ""), KEEL_E_NAMETOOLONG);
    long_name[255] = '\0';
    c = create_of(w, long_name);
    assert_int_equal(create(w, &c, ""), 0);
    c = create_of(w, "taken");
    c.ino = MVCC_ROOT_INO;
    assert_int_equal(create(w, &c, ""), KEEL_E_INVALID);
    c.ino = UINT64_MAX;
    assert_int_equal(create(w, &c, ""), KEEL_E_INVALID);
    c = create_of(w, "orphan");
    c.parent = 424242;
    assert_int_equal(create(w, &c, ""), KEEL_E_NOTFOUND);
}

/* ---- sessions ---- */

static void command_that_is_sent_again_is_answered_from_the_table(void **state)
{
    struct world *w = *state;
    uint64_t ino = make(w, "f", "");

    assert_int_equal(append(w, ino, "x"), 0);
    uint64_t revision = w->outcome.result.revision;
    Keel__Command head = KEEL__COMMAND__INIT;
    Keel__Write write = KEEL__WRITE__INIT;

    write.ino = ino;
    write.append = true;
    head.op_case = KEEL__COMMAND__OP_WRITE;
    head.write = &write;
    head.session = w->session;
    head.number = w->number;
    head.acked = w->number - 1;
    assert_int_equal(run_at(w, &head, "x"), 0);
    assert_false(w->outcome.fresh);
    assert_int_equal(w->outcome.result.revision, revision);
    assert_int_equal(w->outcome.change_count, 0);
    assert_content(w, "f", "x");
    head.number = w->number + 2; /* a gap */
    assert_int_equal(run_at(w, &head, "y"), KEEL_E_OUTOFORDER);
    head.number = w->number - 1; /* acknowledged: forgotten */
    assert_int_equal(run_at(w, &head, "y"), KEEL_E_OUTOFORDER);
    head.session = 4711;
    assert_int_equal(run_at(w, &head, "y"), KEEL_E_NOSESSION);
    assert_content(w, "f", "x");
}

static void error_results_are_kept_too(void **state)
{
    struct world *w = *state;

    assert_int_equal(remove_op(w, "none", false, NULL), KEEL_E_NOTFOUND);
    make(w, "none", "now it is there");
    Keel__Command head = KEEL__COMMAND__INIT;
    Keel__Remove remove = KEEL__REMOVE__INIT;

    remove.parent = MVCC_ROOT_INO;
    remove.name = bytes("none");
    head.op_case = KEEL__COMMAND__OP_REMOVE;
    head.remove = &remove;
    head.session = w->session;
    head.number = w->number; /* of the creation, in fact: its result is what counts */
    assert_int_equal(run_at(w, &head, ""), 0);
    assert_false(w->outcome.fresh);
    assert_true(exists(w, "none"));
}

static void session_that_is_asked_for_twice_stays_and_a_new_process_ends_it(void **state)
{
    struct world *w = *state;

    open_session(w, 1, 7); /* the same request again */
    assert_false(w->outcome.opened_session);
    make(w, "a", "1");
    open_session(w, 1, 8); /* another start of the process */
    assert_true(w->outcome.opened_session);
    Keel__Create c = create_of(w, "b");

    assert_int_equal(create(w, &c, "2"), KEEL_E_NOSESSION);
    assert_false(exists(w, "b"));
}

static void noop_fills_the_place_of_a_cancelled_command(void **state)
{
    struct world *w = *state;
    Keel__Command head = KEEL__COMMAND__INIT;
    Keel__Noop noop = KEEL__NOOP__INIT;

    head.op_case = KEEL__COMMAND__OP_NOOP;
    head.noop = &noop;
    assert_int_equal(run(w, &head, ""), KEEL_E_CANCELLED);
    assert_true(w->outcome.fresh);
    make(w, "next", "goes on");
}

static void state_survives_a_checkpoint_and_a_restart(void **state)
{
    struct world *w = *state;
    uint64_t ino = make(w, "f", "x");
    Keel__Create c = create_of(w, "l");
    Keel__Bind bind = KEEL__BIND__INIT;

    bind.ttl_ms = 5000;
    bind.uid = 12;
    c.bind = &bind;
    assert_int_equal(create(w, &c, "held"), 0);
    uint64_t lease = w->outcome.granted, revision = mvcc_revision(w->mvcc);
    struct keel_hash128 hash = mvcc_state_hash(w->mvcc), digest = apply_digest(w->apply);

    restart(w);
    struct keel_hash128 again = mvcc_state_hash(w->mvcc), digest_again = apply_digest(w->apply);
    struct lease_info info;

    assert_memory_equal(&hash, &again, sizeof hash);
    assert_memory_equal(&digest, &digest_again, sizeof digest);
    assert_int_equal(mvcc_revision(w->mvcc), revision);
    assert_int_equal(lease_get(apply_leases(w->apply), lease, &info), 0);
    assert_int_equal(info.keys, 1);
    assert_int_equal(info.uid, 12);
    assert_int_equal(append(w, ino, "y"), 0); /* the session goes on */
    assert_content(w, "f", "xy");
}

static void command_of_a_newer_level_stops_before_it_is_applied(void **state)
{
    struct world *w = *state;
    Keel__Command head = KEEL__COMMAND__INIT;
    Keel__Noop noop = KEEL__NOOP__INIT;
    struct raft_entry entry = { .term = 1, .index = w->index + 1, .kind = RAFT_ENTRY_COMMAND };

    head.level = KEEL_SEMANTICS_LEVEL + 1;
    head.op_case = KEEL__COMMAND__OP_NOOP;
    head.noop = &noop;
    entry.data = command_pack(&head, keel_slice_str(""));
    assert_int_equal(apply_entry(w->apply, &entry, 0, &w->outcome), KEEL_E_NEWER);
    keel_buf_free(entry.data);
    assert_int_equal(mvcc_applied_index(w->mvcc), w->index);
}

/* ---- leases ---- */

static int expire(struct world *w, uint64_t lease, uint64_t term)
{
    Keel__Command head = KEEL__COMMAND__INIT;
    Keel__LeaseExpire e = KEEL__LEASE_EXPIRE__INIT;

    e.lease = lease;
    e.term = term;
    head.op_case = KEEL__COMMAND__OP_LEASE_EXPIRE;
    head.lease_expire = &e;
    return run_at(w, &head, "");
}

static uint64_t make_bound(struct world *w, const char *name, uint64_t lease)
{
    Keel__Create c = create_of(w, name);
    Keel__Bind bind = KEEL__BIND__INIT;

    if (lease == 0)
        bind.ttl_ms = 5000;
    else
        bind.lease = lease;
    c.bind = &bind;
    assert_int_equal(create(w, &c, "x"), 0);
    return w->outcome.result.lease;
}

static void expiry_deletes_all_keys_in_one_revision_in_key_order(void **state)
{
    struct world *w = *state;
    uint64_t lease = make_bound(w, "zz", 0);

    make_bound(w, "aa", lease);
    make_bound(w, "mm", lease);
    uint64_t before = mvcc_revision(w->mvcc);

    assert_int_equal(expire(w, lease, w->term), 0);
    assert_int_equal(mvcc_revision(w->mvcc), before + 1);
    assert_int_equal(w->outcome.change_count, 3);
    assert_memory_equal(w->outcome.changes[0].name.data, "aa", 2);
    assert_memory_equal(w->outcome.changes[1].name.data, "mm", 2);
    assert_memory_equal(w->outcome.changes[2].name.data, "zz", 2);
    assert_int_equal(w->outcome.changes[0].lease, lease);
    assert_int_equal(w->outcome.revoked, lease);
    assert_false(exists(w, "aa") || exists(w, "mm") || exists(w, "zz"));
    assert_int_equal(lease_count(apply_leases(w->apply)), 0);
}

static void expiry_counted_by_a_deposed_leader_is_ignored(void **state)
{
    struct world *w = *state;
    uint64_t lease = make_bound(w, "f", 0);

    w->term = 5;
    assert_int_equal(expire(w, lease, 4), KEEL_E_STALE);
    assert_true(exists(w, "f"));
    assert_int_equal(expire(w, lease, 5), 0);
    assert_false(exists(w, "f"));
}

static void lease_goes_with_the_inode_and_ends_with_its_removal(void **state)
{
    struct world *w = *state;
    uint64_t lease = make_bound(w, "f", 0);
    struct lease_info info;

    assert_int_equal(rename_op(w, "f", "g", false, NULL), 0);
    assert_int_equal(record(w, "g").lease, lease);
    uint64_t ino = record(w, "g").ino;

    assert_int_equal(replace(w, ino, "new", NULL), 0);
    assert_int_equal(record(w, "g").lease, lease); /* an overwrite keeps it */
    assert_int_equal(remove_op(w, "g", false, NULL), 0);
    assert_int_equal(lease_get(apply_leases(w->apply), lease, &info), 0);
    assert_int_equal(info.keys, 0);
    make(w, "g", "free");
    assert_int_equal(expire(w, lease, w->term), 0);
    assert_true(exists(w, "g"));
}

static void lease_of_another_uid_cannot_be_used_and_none_on_directories(void **state)
{
    struct world *w = *state;
    Keel__Command head = KEEL__COMMAND__INIT;
    Keel__LeaseGrant grant = KEEL__LEASE_GRANT__INIT;
    Keel__Bind bind = KEEL__BIND__INIT;
    Keel__Create c = create_of(w, "f");

    grant.ttl_ms = 5000;
    grant.uid = 100;
    head.op_case = KEEL__COMMAND__OP_LEASE_GRANT;
    head.lease_grant = &grant;
    assert_int_equal(run(w, &head, ""), 0);
    bind.lease = w->outcome.granted;
    bind.uid = 101;
    c.bind = &bind;
    assert_int_equal(create(w, &c, ""), KEEL_E_PERM);
    bind.uid = 100;
    c.kind = KEEL__KIND__DIR;
    assert_int_equal(create(w, &c, ""), KEEL_E_INVALID);
    c.kind = KEEL__KIND__FILE;
    assert_int_equal(create(w, &c, ""), 0);
    bind.lease = 999;
    c = create_of(w, "g");
    c.bind = &bind;
    assert_int_equal(create(w, &c, ""), KEEL_E_NOTFOUND);
}

static void incarnation_is_recorded_once_and_settings_once_at_bootstrap(void **state)
{
    struct world *w = *state;
    Keel__Command head = KEEL__COMMAND__INIT;
    Keel__Contact contact = KEEL__CONTACT__INIT;
    Keel__Settings settings = KEEL__SETTINGS__INIT;
    size_t count;

    contact.node = 2;
    contact.incarnation = 77;
    head.op_case = KEEL__COMMAND__OP_CONTACT;
    head.contact = &contact;
    assert_int_equal(run_at(w, &head, ""), 0);
    contact.incarnation = 78;
    assert_int_equal(run_at(w, &head, ""), KEEL_E_EXISTS);
    assert_int_equal(apply_members(w->apply, &count)[1].incarnation, 77);
    assert_int_equal(count, 2);
    settings.first = true;
    settings.file_size_bytes = 8192;
    head.op_case = KEEL__COMMAND__OP_SETTINGS;
    head.settings = &settings;
    assert_int_equal(run_at(w, &head, ""), 0);
    settings.file_size_bytes = 4096;
    assert_int_equal(run_at(w, &head, ""), 0);
    assert_int_equal(apply_settings(w->apply)->file_size_bytes, 8192);
    settings.first = false;
    settings.file_size_bytes = KEEL_FILE_SIZE_MAX + 1;
    assert_int_equal(run_at(w, &head, ""), KEEL_E_INVALID);
}

#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

/* ---- members ---- */

static const struct apply_member third = { .id = 3, .name = "n3", .address = "h:3" };

static void members_come_with_configurations(void **state)
{
    struct world *w = *state;
    struct raft_config config = *apply_config(w->apply, NULL);
    uint64_t index;
    size_t count;

    assert_true(raft_config_put(&config, 3, false));
    assert_int_equal(configure(w, &config, &third, 1), 0);
    assert_true(w->outcome.members_changed && w->outcome.config_changed);
    const struct apply_member *now = apply_members(w->apply, &count);

    assert_int_equal(count, 3);
    assert_string_equal(now[2].name, "n3");
    assert_false(now[2].voter);
    assert_true(raft_config_equal(apply_config(w->apply, &index), &config));
    assert_int_equal(index, w->index);
}

static void a_member_without_a_name_is_no_configuration(void **state)
{
    struct world *w = *state;
    struct raft_config config = *apply_config(w->apply, NULL);

    assert_true(raft_config_put(&config, 3, false));
    assert_int_equal(configure(w, &config, NULL, 0), KEEL_E_MALFORMED);
}

static void removal_takes_effect_when_the_joint_configuration_is_left(void **state)
{
    struct world *w = *state;
    struct raft_config old = *apply_config(w->apply, NULL), target = old;
    uint64_t last;
    size_t count;

    assert_true(raft_config_drop(&target, 1));
    struct raft_config joint = raft_config_enter(&old, &target);

    assert_int_equal(configure(w, &joint, NULL, 0), 0);
    apply_members(w->apply, &count);
    assert_int_equal(count, 2);
    assert_true(apply_session(w->apply, w->session, &last));
    struct raft_config left = raft_config_leave(&joint);

    assert_int_equal(configure(w, &left, NULL, 0), 0);
    assert_int_equal(apply_members(w->apply, &count)[0].id, 2);
    assert_int_equal(count, 1);
    assert_false(apply_session(w->apply, w->session, &last)); /* its session went with it */
}

static void a_removed_node_gets_no_session(void **state)
{
    struct world *w = *state;
    Keel__Command head = KEEL__COMMAND__INIT;
    Keel__OpenSession open = KEEL__OPEN_SESSION__INIT;

    open.node = 99;
    head.op_case = KEEL__COMMAND__OP_OPEN_SESSION;
    head.open_session = &open;
    assert_int_equal(run_at(w, &head, ""), KEEL_E_REMOVED);
    assert_false(w->outcome.opened_session);
}

static int expire_session(struct world *w, uint64_t session, uint64_t term)
{
    Keel__Command head = KEEL__COMMAND__INIT;
    Keel__SessionExpire expire = KEEL__SESSION_EXPIRE__INIT;

    expire.session = session;
    expire.term = term;
    head.op_case = KEEL__COMMAND__OP_SESSION_EXPIRE;
    head.session_expire = &expire;
    return run_at(w, &head, "");
}

static void an_expired_session_takes_no_more_commands(void **state)
{
    struct world *w = *state;
    uint64_t ino = make(w, "f", "x"), last;

    assert_int_equal(expire_session(w, w->session, w->term - 1), KEEL_E_STALE);
    assert_true(apply_session(w->apply, w->session, &last));
    assert_int_equal(expire_session(w, w->session, w->term), 0);
    assert_int_equal(w->outcome.expired_session, w->session);
    assert_int_equal(append(w, ino, "y"), KEEL_E_NOSESSION);
    assert_int_equal(expire_session(w, w->session, w->term), KEEL_E_NOSESSION);
}

static void configuration_survives_a_checkpoint(void **state)
{
    struct world *w = *state;
    struct raft_config config = *apply_config(w->apply, NULL);
    uint64_t index;
    size_t count;

    assert_true(raft_config_put(&config, 3, false));
    assert_int_equal(configure(w, &config, &third, 1), 0);
    uint64_t at = w->index;
    struct kv_batch *batch = apply_checkpoint(w->apply);

    assert_int_equal(w->kv->ops->write(w->kv, batch), 0);
    kv_batch_free(batch);
    apply_free(w->apply);
    mvcc_close(w->mvcc);
    world_open(w);
    assert_true(raft_config_equal(apply_config(w->apply, &index), &config));
    assert_int_equal(index, at);
    assert_string_equal(apply_members(w->apply, &count)[2].address, "h:3");
}

/* The digest behind a command, which then has never been applied. */
static struct keel_hash128 digest_behind(struct world *w, Keel__Command *head)
{
    assert_int_equal(run_at(w, head, ""), 0);
    struct keel_hash128 digest = apply_digest(w->apply);

    apply_free(w->apply);
    mvcc_close(w->mvcc);
    w->index--;
    w->time_ns -= 1000;
    world_open(w);
    return digest;
}

static void digest_tells_states_apart_at_the_same_index(void **state)
{
    struct world *w = *state;
    Keel__Command heads[6];
    Keel__Settings settings = KEEL__SETTINGS__INIT;
    Keel__SessionExpire expire = KEEL__SESSION_EXPIRE__INIT;
    Keel__LeaseGrant grant = KEEL__LEASE_GRANT__INIT;
    Keel__ReserveInodes reserve = KEEL__RESERVE_INODES__INIT;
    Keel__Compact compact = KEEL__COMPACT__INIT;
    Keel__Check check = KEEL__CHECK__INIT;
    struct keel_hash128 digests[KEEL_ARRAY_LEN(heads)];

    for (size_t i = 0; i < KEEL_ARRAY_LEN(heads); i++)
        keel__command__init(&heads[i]);
    settings.history_ms = 77;
    heads[0].op_case = KEEL__COMMAND__OP_SETTINGS;
    heads[0].settings = &settings;
    expire.session = w->session;
    expire.term = w->term;
    heads[1].op_case = KEEL__COMMAND__OP_SESSION_EXPIRE;
    heads[1].session_expire = &expire;
    grant.ttl_ms = 5000;
    heads[2].op_case = KEEL__COMMAND__OP_LEASE_GRANT;
    heads[2].lease_grant = &grant;
    reserve.count = 1;
    heads[3].op_case = KEEL__COMMAND__OP_RESERVE_INODES;
    heads[3].reserve_inodes = &reserve;
    make(w, "f", "x");
    compact.revision = mvcc_revision(w->mvcc);
    heads[4].op_case = KEEL__COMMAND__OP_COMPACT;
    heads[4].compact = &compact;
    heads[5].op_case = KEEL__COMMAND__OP_CHECK; /* changes nothing */
    heads[5].check = &check;
    restart(w);
    for (size_t i = 0; i < KEEL_ARRAY_LEN(heads); i++) {
        digests[i] = digest_behind(w, &heads[i]);
        for (size_t k = 0; k < i; k++)
            assert_memory_not_equal(&digests[i], &digests[k], sizeof digests[i]);
        struct keel_hash128 again = digest_behind(w, &heads[i]);

        assert_memory_equal(&digests[i], &again, sizeof again);
    }
}

static int give_verdict(struct world *w, uint64_t index, uint64_t node)
{
    Keel__Command head = KEEL__COMMAND__INIT;
    Keel__Verdict verdict = KEEL__VERDICT__INIT;

    verdict.index = index;
    verdict.nodes = &node;
    verdict.n_nodes = 1;
    head.op_case = KEEL__COMMAND__OP_VERDICT;
    head.verdict = &verdict;
    return run_at(w, &head, "");
}

static void a_verdict_marks_a_member_for_good(void **state)
{
    struct world *w = *state;
    size_t count;

    assert_int_equal(give_verdict(w, 5, 99), 0); /* nobody's id */
    assert_false(w->outcome.members_changed);
    assert_int_equal(give_verdict(w, 5, 2), 0);
    assert_true(w->outcome.members_changed);
    assert_int_equal(give_verdict(w, 9, 2), 0);
    assert_false(w->outcome.members_changed);
    restart(w);
    assert_int_equal(apply_members(w->apply, &count)[0].corrupt_index, 0);
    assert_int_equal(apply_members(w->apply, &count)[1].corrupt_index, 5);
}

static void a_check_says_that_it_is_one_and_where(void **state)
{
    struct world *w = *state;
    Keel__Command head = KEEL__COMMAND__INIT;
    Keel__Check check = KEEL__CHECK__INIT;

    head.op_case = KEEL__COMMAND__OP_CHECK;
    head.check = &check;
    assert_int_equal(run_at(w, &head, ""), 0);
    assert_true(w->outcome.check);
    assert_int_equal(w->outcome.result.value, w->index);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(digest_tells_states_apart_at_the_same_index),
        T(a_verdict_marks_a_member_for_good),
        T(a_check_says_that_it_is_one_and_where),
        T(creation_and_first_content_are_one_revision_version_1),
        T(exclusive_creation_of_what_exists_fails_and_changes_nothing),
        T(creation_without_exclusive_adopts_what_another_node_created),
        T(write_at_an_offset_keeps_the_rest_and_fills_a_gap_with_zeroes),
        T(append_goes_to_the_end_as_of_apply),
        T(write_of_identical_bytes_is_a_revision_and_of_nothing_is_none),
        T(file_over_the_limit_is_refused_and_the_old_value_stays),
        T(condition_on_the_revision_holds_or_the_write_is_stale),
        T(creation_if_absent_and_rename_onto_if_absent),
        T(chmod_to_the_same_mode_is_no_revision_and_touch_always_is_one),
        T(write_by_others_than_root_clears_set_id_bits),
        T(set_group_id_directory_hands_its_group_on),
        T(truncate_grows_with_zeroes_and_a_range_can_be_zeroed),
        T(rename_over_a_file_is_the_next_version_of_that_key),
        T(rename_keeps_content_by_reference),
        T(rename_checks_its_names),
        T(removal_follows_posix),
        T(names_and_inode_numbers_are_checked),
        T(command_that_is_sent_again_is_answered_from_the_table),
        T(error_results_are_kept_too),
        T(session_that_is_asked_for_twice_stays_and_a_new_process_ends_it),
        T(noop_fills_the_place_of_a_cancelled_command),
        T(state_survives_a_checkpoint_and_a_restart),
        T(command_of_a_newer_level_stops_before_it_is_applied),
        T(expiry_deletes_all_keys_in_one_revision_in_key_order),
        T(expiry_counted_by_a_deposed_leader_is_ignored),
        T(lease_goes_with_the_inode_and_ends_with_its_removal),
        T(lease_of_another_uid_cannot_be_used_and_none_on_directories),
        T(incarnation_is_recorded_once_and_settings_once_at_bootstrap),
        T(members_come_with_configurations),
        T(a_member_without_a_name_is_no_configuration),
        T(removal_takes_effect_when_the_joint_configuration_is_left),
        T(a_removed_node_gets_no_session),
        T(an_expired_session_takes_no_more_commands),
        T(configuration_survives_a_checkpoint),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
