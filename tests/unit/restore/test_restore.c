/* Data directories of a new cluster, out of the snapshot of another one: what is kept, what is new,
 * and that nothing is left of a restore that fails. */
#include "world.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "check.h"
#include "data_dir.h"
#include "err.h"
#include "help.h"
#include "place.h"
#include "rng.h"
#include "snapshot_restore.h"
#include "wal/wal.h"

enum { OLD_CLUSTER = 77, OPS = 60, SEEDS = 12 };

#define MEMBERS "a=10.0.0.1:7400,b=10.0.0.2:7400,c=10.0.0.3:7400"

struct restoring {
    struct world *world;
    struct place place;
    struct snapshot_info info; /* of the file `snapshot` */
};

/* ---- the snapshot ---- */

static void write_bytes(const char *name, struct keel_slice bytes)
{
    int fd = open(name, O_WRONLY | O_CREAT | O_TRUNC, 0600);

    assert_true(fd >= 0);
    assert_int_equal(write(fd, bytes.data, bytes.len), bytes.len);
    close(fd);
}

static void save(struct restoring *p)
{
    node_checkpoint(&p->world->ahead);
    struct snapshot_writer *writer;
    struct keel_text all = { 0 };
    struct keel_slice piece;

    assert_int_equal(snapshot_writer_new(p->world->ahead.kv, OLD_CLUSTER, &writer), 0);
    do {
        assert_int_equal(snapshot_writer_next(writer, &piece), 0);
        keel_text_append(&all, piece);
    } while (piece.len > 0);
    p->info = *snapshot_writer_info(writer);
    snapshot_writer_free(writer);
    write_bytes("snapshot", keel_slice_of(all.data, all.len));
    keel_text_free(&all);
}

static void random_op(struct world *w, struct keel_rng *rng)
{
    char path[16], other[16];

    snprintf(path, sizeof path, "f%u", (unsigned)keel_rng_below(rng, 8));
    snprintf(other, sizeof other, "d/g%u", (unsigned)keel_rng_below(rng, 8));
    switch (keel_rng_below(rng, 5)) {
    case 0:
        make_file(w, path, "text");
        break;
    case 1:
        make(w, other, KEEL__KIND__FILE, other, 1000 + 1000 * keel_rng_below(rng, 9));
        break;
    case 2:
        if (ino_of(w, path) != 0)
            rewrite(w, ino_of(w, path), other);
        break;
    case 3:
        move(w, path, other);
        break;
    default:
        remove_path(w, other, false);
        break;
    }
}

static void make_state(struct restoring *p, uint64_t seed)
{
    struct keel_rng rng;

    keel_rng_seed(&rng, seed);
    make_dir(p->world, "d");
    for (int i = 0; i < OPS; i++)
        random_op(p->world, &rng);
    save(p);
}

static int setup(void **state)
{
    struct restoring *p = calloc(1, sizeof *p);

    reload_setup((void **)&p->world);
    place_enter(&p->place);
    make_state(p, 1);
    *state = p;
    return 0;
}

static int teardown(void **state)
{
    struct restoring *p = *state;

    place_leave(&p->place);
    reload_teardown((void **)&p->world);
    free(p);
    return 0;
}

/* ---- restoring ---- */

static struct restore_options options_for(const char *name)
{
    return (struct restore_options){
        .file = "snapshot", .data_dir = name, .name = name, .initial_cluster = MEMBERS
    };
}

static void restore(const struct restore_options *options)
{
    struct snapshot_info info;
    char why[512] = "";

    if (snapshot_restore(options, &info, why, sizeof why) != 0)
        fail_msg("%s", why);
}

static void assert_refused(const struct restore_options *options, int err, const char *text)
{
    struct snapshot_info info;
    char why[512] = "";

    assert_int_equal(snapshot_restore(options, &info, why, sizeof why), err);
    if (strstr(why, text) == NULL)
        fail_msg("'%s' is not in '%s'", text, why);
}

/* A node's store, as its start opens it. */
static void open_node(const char *dir, struct node *n)
{
    char path[160], why[256] = "";

    snprintf(path, sizeof path, "%s/store", dir);
    n->kv = help_lmdb(path);
    n->mvcc = help_open(n->kv);
    if (apply_new(n->mvcc, &n->apply) != 0)
        fail_msg("%s", why);
    mvcc_read_end(n->mvcc);
}

static void assert_hash(const struct node *n, struct keel_hash128 hash)
{
    struct keel_hash128 got = mvcc_state_hash(n->mvcc);

    assert_true(keel_hash128_equal(got, hash));
}

static struct identity load_identity(const char *dir)
{
    struct identity identity;
    char why[256];
    int fd = open(dir, O_RDONLY | O_DIRECTORY);

    assert_int_equal(identity_load(fd, &identity, why, sizeof why), 0);
    close(fd);
    return identity;
}

/* ---- what is kept ---- */

/* At every revision. */
static void assert_same_files(struct mvcc *a, struct mvcc *b)
{
    for (unsigned i = 0; i < 16; i++)
        for (uint64_t at = 0; at <= mvcc_revision(b); at++) {
            char path[16], text[64];

            snprintf(path, sizeof path, "%s%u", i % 2 ? "f" : "d/g", i / 2);
            snprintf(text, sizeof text, "%s", help_read(b, path, at));
            assert_string_equal(help_read(a, path, at), text);
        }
    mvcc_read_end(b);
}

static void a_restored_store_has_the_state_hash_of_the_saved_one(void **state)
{
    struct restoring *p = *state;
    const struct restore_options options = options_for("a");

    for (uint64_t seed = 2; seed < SEEDS; seed++) {
        struct node n;

        make_state(p, seed);
        restore(&options);
        open_node("a", &n);
        assert_hash(&n, p->info.hash);
        assert_hash(&n, mvcc_state_hash(p->world->ahead.mvcc));
        assert_int_equal(mvcc_revision(n.mvcc), p->info.revision);
        assert_int_equal(mvcc_applied_index(n.mvcc), p->info.index);
        assert_same_files(n.mvcc, p->world->ahead.mvcc);
        node_close(&n);
        remove_tree("a");
    }
}

static void every_member_gets_the_same_store(void **state)
{
    static const char *const names[] = { "a", "b", "c" };
    struct node n[3];

    (void)state;
    for (size_t i = 0; i < 3; i++) {
        const struct restore_options options = options_for(names[i]);

        restore(&options);
        open_node(names[i], &n[i]);
    }
    help_assert_same_tables(n[0].kv, n[1].kv);
    help_assert_same_tables(n[0].kv, n[2].kv);
    for (size_t i = 0; i < 3; i++)
        node_close(&n[i]);
    assert_int_not_equal(load_identity("a").id, load_identity("b").id);
    assert_true(load_identity("a").cluster_id == load_identity("b").cluster_id);
    assert_true(load_identity("a").incarnation != load_identity("b").incarnation);
}

static void leases_keep_their_keys_and_the_time_that_they_had_left(void **state)
{
    struct restoring *p = *state;
    const struct restore_options options = options_for("a");
    struct node n;

    assert_true(lease_count(apply_leases(p->world->ahead.apply)) > 0);
    restore(&options);
    open_node("a", &n);
    struct keel_buf *before = lease_table_encode(apply_leases(p->world->ahead.apply));
    struct keel_buf *after = lease_table_encode(apply_leases(n.apply));

    assert_true(keel_slice_equal(keel_buf_slice(before), keel_buf_slice(after)));
    keel_buf_free(before);
    keel_buf_free(after);
    node_close(&n);
}

/* ---- what is new ---- */

static void members_and_configuration_are_the_new_clusters(void **state)
{
    struct restoring *p = *state;
    const struct restore_options options = options_for("b");
    struct identity identity;
    struct node n;
    size_t count;
    uint64_t config_index;

    restore(&options);
    open_node("b", &n);
    identity = load_identity("b");
    const struct apply_member *members = apply_members(n.apply, &count);

    assert_int_equal(count, 3);
    assert_string_equal(members[1].name, "b");
    assert_string_equal(members[1].address, "10.0.0.2:7400");
    assert_true(members[1].id == identity.id);
    for (size_t i = 0; i < count; i++) {
        assert_true(members[i].voter);
        assert_int_equal(members[i].incarnation, 0);
    }
    assert_int_equal(apply_config(n.apply, &config_index)->voter_count, 3);
    assert_int_equal(config_index, p->info.index);
    assert_true(identity.cluster_id == identity_cluster_id("keelfs", MEMBERS));
    assert_string_equal(identity.name, "b");
    node_close(&n);
}

static void sessions_of_the_old_cluster_are_over(void **state)
{
    struct restoring *p = *state;
    const struct restore_options options = options_for("a");
    struct node n;

    assert_int_equal(apply_session_count(p->world->ahead.apply), 1);
    restore(&options);
    open_node("a", &n);
    assert_int_equal(apply_session_count(n.apply), 0);
    node_close(&n);
}

static void open_session(struct node *n, uint64_t node)
{
    Keel__Command head = KEEL__COMMAND__INIT;
    Keel__OpenSession open = KEEL__OPEN_SESSION__INIT;

    open.node = node;
    open.nonce = 9;
    head.op_case = KEEL__COMMAND__OP_OPEN_SESSION;
    head.open_session = &open;
    const struct raft_entry entry = {
        .term = mvcc_applied_term(n->mvcc) + 1,
        .index = mvcc_applied_index(n->mvcc) + 1,
        .kind = RAFT_ENTRY_COMMAND,
        .data = command_pack(&head, keel_slice_str("")),
    };

    assert_int_equal(apply_entry(n->apply, &entry, 1, &n->outcome), 0);
    assert_int_equal(n->outcome.result.err, 0);
    keel_buf_free(entry.data);
}

static void new_inode_numbers_are_none_of_the_old_ones(void **state)
{
    struct restoring *p = *state;
    const struct restore_options options = options_for("a");
    struct node n;

    restore(&options);
    open_node("a", &n);
    open_session(&n, load_identity("a").id);
    assert_true(n.outcome.result.ino >= p->world->next_ino);
    for (uint64_t ino = 0; ino < KEEL_INODE_RANGE; ino++)
        assert_null(mvcc_by_ino(n.mvcc, n.outcome.result.ino + ino));
    node_close(&n);
}

static void the_log_begins_behind_the_snapshots_entry(void **state)
{
    struct restoring *p = *state;
    const struct restore_options options = options_for("a");

    restore(&options);
    const struct identity identity = load_identity("a");
    const struct wal_options log = {
        .cluster_id = identity.cluster_id,
        .node_id = identity.id,
        .store_applied = p->info.index,
    };
    struct wal_recovery recovery;
    struct disk *disk;
    struct wal *wal;
    char why[512] = "";
    int sys_err;

    assert_int_equal(disk_posix_open("a/wal", &disk, &sys_err), 0);
    if (wal_open(disk, &log, &wal, &recovery, why, sizeof why) != 0)
        fail_msg("%s", why);
    assert_false(recovery.fresh);
    assert_int_equal(recovery.last_index, p->info.index);
    assert_int_equal(recovery.first_index, p->info.index + 1);
    assert_int_equal(recovery.base_term, p->info.term);
    assert_int_equal(recovery.hard_state.term, p->info.term);
    assert_int_equal(recovery.hard_state.commit, p->info.index);
    assert_int_equal(recovery.hard_state.vote, 0);
    wal_recovery_free(&recovery);
    wal_close(wal);
    disk->ops->free(disk);
}

static void the_log_may_lie_elsewhere(void **state)
{
    struct restore_options options = options_for("a");

    (void)state;
    options.wal_dir = "log";
    restore(&options);
    assert_true(is_there("log/0000000000000001.wal"));
    assert_false(is_there("a/wal"));
}

static void a_bumped_revision_is_never_given_out_again(void **state)
{
    struct restoring *p = *state;
    struct restore_options options = options_for("a");
    struct node n;

    options.bump_revision = 1000000;
    restore(&options);
    open_node("a", &n);
    assert_int_equal(mvcc_revision(n.mvcc), p->info.revision + 1000000);
    assert_hash(&n, p->info.hash);
    help_write(n.mvcc, "after", "x");
    assert_int_equal(mvcc_mod_revision(help_key(n.mvcc, "after")).main, p->info.revision + 1000001);
    assert_string_equal(help_read(n.mvcc, "after", p->info.revision + 500), "(none)");
    node_close(&n);
}

/* ---- refusals ---- */

static size_t read_snapshot(uint8_t *bytes, size_t size)
{
    int fd = open("snapshot", O_RDONLY);
    ssize_t len = read(fd, bytes, size);

    assert_true(len > 0 && (size_t)len < size);
    close(fd);
    return (size_t)len;
}

static void a_snapshot_with_one_flipped_bit_anywhere_leaves_everything_alone(void **state)
{
    const struct restore_options options = options_for("a");
    uint8_t bytes[1 << 16];
    size_t len = read_snapshot(bytes, sizeof bytes);

    (void)state;
    for (size_t i = 0; i < len; i++) {
        bytes[i] ^= (uint8_t)(1u << i % 8);
        write_bytes("snapshot", keel_slice_of(bytes, len));
        assert_refused(&options, KEEL_E_CORRUPT, "damaged");
        assert_false(is_there("a"));
        bytes[i] ^= (uint8_t)(1u << i % 8);
    }
    for (size_t i = 0; i < len; i += 7) {
        write_bytes("snapshot", keel_slice_of(bytes, i));
        assert_refused(&options, KEEL_E_CORRUPT, "ends");
        assert_false(is_there("a"));
    }
    write_bytes("snapshot", keel_slice_of(bytes, len));
    restore(&options);
}

static void what_is_in_a_directory_is_never_touched(void **state)
{
    const struct restore_options options = options_for("a");
    uint8_t byte;
    int fd;

    (void)state;
    assert_int_equal(mkdir("a", 0700), 0);
    assert_int_equal(mkdir("a/store", 0700), 0);
    write_bytes("a/store/data.mdb", keel_slice_str("x"));
    assert_refused(&options, KEEL_E_NOTEMPTY, "store is in it");
    fd = open("a/store/data.mdb", O_RDONLY);
    assert_int_equal(read(fd, &byte, 1), 1);
    close(fd);
    assert_false(is_there("a/restore.new"));
}

static void the_same_for_the_directory_of_the_log(void **state)
{
    struct restore_options options = options_for("a");

    (void)state;
    options.wal_dir = "log";
    assert_int_equal(mkdir("log", 0700), 0);
    write_bytes("log/0000000000000001.wal", keel_slice_str("x"));
    assert_refused(&options, KEEL_E_NOTEMPTY, "0000000000000001.wal is in it");
    assert_true(is_there("log/0000000000000001.wal"));
    assert_false(is_there("a"));
}

static void the_root_of_a_file_system_counts_as_empty(void **state)
{
    const struct restore_options options = options_for("a");

    (void)state;
    assert_int_equal(mkdir("a", 0700), 0);
    assert_int_equal(mkdir("a/lost+found", 0700), 0);
    restore(&options);
    assert_true(is_there("a/lost+found"));
}

static void what_a_killed_restore_has_left_is_cleared(void **state)
{
    const struct restore_options options = options_for("a");

    (void)state;
    assert_int_equal(mkdir("a", 0700), 0);
    assert_int_equal(mkdir("a/restore.new", 0700), 0);
    assert_int_equal(mkdir("a/restore.new/store", 0700), 0);
    write_bytes("a/restore.new/store/data.mdb", keel_slice_str("half of it"));
    restore(&options);
    assert_false(is_there("a/restore.new"));
}

/* It is sound, so that it is found out when the store is there already. */
static void a_snapshot_of_no_cluster_is_refused_and_nothing_is_left_of_it(void **state)
{
    struct restore_options options = options_for("a");
    struct kv *kv = kv_mem_new();
    struct mvcc *m = help_open(kv);
    struct snapshot_info info;

    (void)state;
    help_write(m, "file", "text");
    help_checkpoint(m, kv);
    mvcc_close(m);
    struct keel_buf *stream = help_snapshot(kv, &info);

    write_bytes("snapshot", keel_buf_slice(stream));
    keel_buf_free(stream);
    kv->ops->close(kv);
    options.wal_dir = "log";
    assert_refused(&options, KEEL_E_CORRUPT, "no members");
    assert_false(is_there("a"));
    assert_false(is_there("log"));
    assert_int_equal(mkdir("a", 0700), 0);
    assert_refused(&options, KEEL_E_CORRUPT, "no members");
    assert_int_equal(rmdir("a"), 0);
}

static void a_log_that_cannot_be_made_leaves_no_data_directory(void **state)
{
    struct restore_options options = options_for("a");

    (void)state;
    options.wal_dir = "no/such/place";
    assert_refused(&options, KEEL_E_IO, "no/such/place");
    assert_false(is_there("a"));
}

static void wrong_options_are_told_before_anything_is_touched(void **state)
{
    struct restore_options options = options_for("d");

    (void)state;
    assert_refused(&options, KEEL_E_INVALID, "does not name this node (d)");
    options = options_for("a/b");
    assert_refused(&options, KEEL_E_INVALID, "--name");
    options = options_for("a");
    options.initial_cluster = "a=nowhere";
    assert_refused(&options, KEEL_E_INVALID, "NAME=HOST:PORT");
    options = options_for("a");
    options.cluster_token = "x y";
    assert_refused(&options, KEEL_E_INVALID, "--cluster-token");
    options = options_for("a");
    options.bump_revision = UINT64_MAX;
    assert_refused(&options, KEEL_E_INVALID, "--bump-revision");
    options.file = "nothing";
    assert_refused(&options, KEEL_E_IO, "nothing");
    assert_false(is_there("a"));
    assert_false(is_there("d"));
}

/* A member of the old one that is still there would be let in. */
static void the_new_cluster_is_never_the_old_one(void **state)
{
    struct restoring *p = *state;
    struct restore_options options = options_for("a");
    struct node *n = &p->world->ahead;
    struct snapshot_writer *writer;
    struct keel_text all = { 0 };
    struct keel_slice piece;

    assert_int_equal(snapshot_writer_new(n->kv, identity_cluster_id("keelfs", MEMBERS), &writer),
                     0);
    while (snapshot_writer_next(writer, &piece) == 0 && piece.len > 0)
        keel_text_append(&all, piece);
    snapshot_writer_free(writer);
    write_bytes("snapshot", keel_slice_of(all.data, all.len));
    keel_text_free(&all);
    assert_refused(&options, KEEL_E_INVALID, "another --cluster-token");
    options.cluster_token = "second";
    restore(&options);
    assert_string_equal(load_identity("a").token, "second");
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_restored_store_has_the_state_hash_of_the_saved_one),
        TEST(every_member_gets_the_same_store),
        TEST(leases_keep_their_keys_and_the_time_that_they_had_left),
        TEST(members_and_configuration_are_the_new_clusters),
        TEST(sessions_of_the_old_cluster_are_over),
        TEST(new_inode_numbers_are_none_of_the_old_ones),
        TEST(the_log_begins_behind_the_snapshots_entry),
        TEST(the_log_may_lie_elsewhere),
        TEST(a_bumped_revision_is_never_given_out_again),
        TEST(a_snapshot_with_one_flipped_bit_anywhere_leaves_everything_alone),
        TEST(what_is_in_a_directory_is_never_touched),
        TEST(the_same_for_the_directory_of_the_log),
        TEST(the_root_of_a_file_system_counts_as_empty),
        TEST(what_a_killed_restore_has_left_is_cleared),
        TEST(a_snapshot_of_no_cluster_is_refused_and_nothing_is_left_of_it),
        TEST(a_log_that_cannot_be_made_leaves_no_data_directory),
        TEST(wrong_options_are_told_before_anything_is_touched),
        TEST(the_new_cluster_is_never_the_old_one),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
