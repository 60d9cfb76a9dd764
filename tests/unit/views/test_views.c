/* What views contain: over a real mvcc on kv_mem, and a replica that is faked at link time. */
#include "unit.h"

#include <stdio.h>
#include <time.h>

#include "check.h"
#include "err.h"
#include "fs/view.h"

enum { S = 1000000000 };

/* ---- the fake replica ---- */

struct apply {
    struct apply_member members[4];
    size_t count;
    struct apply_settings settings;
    bool nospace;
};

struct replica {
    struct mvcc *mvcc;
    struct apply apply;
    struct replica_status status;
    struct replica_check_report report;
    uint64_t now_us;
    uint64_t lease, lease_ms; /* the only one that there is */
    bool removed;
};

struct mvcc *replica_mvcc(const struct replica *r)
{
    return r->mvcc;
}

struct apply *replica_apply(const struct replica *r)
{
    return (struct apply *)&r->apply;
}

const struct apply_member *apply_members(const struct apply *a, size_t *ret_count)
{
    *ret_count = a->count;
    return a->members;
}

const struct apply_settings *apply_settings(const struct apply *a)
{
    return &a->settings;
}

bool apply_nospace(const struct apply *a)
{
    return a->nospace;
}

void replica_check_report(const struct replica *r, struct replica_check_report *ret_report)
{
    *ret_report = r->report;
}

void replica_status(const struct replica *r, struct replica_status *ret_status)
{
    *ret_status = r->status;
}

uint64_t replica_now_us(const struct replica *r)
{
    return r->now_us;
}

bool replica_is_removed(const struct replica *r)
{
    return r->removed;
}

int replica_lease_remaining(struct replica *r, uint64_t lease, uint64_t *ret_ms)
{
    if (lease != r->lease)
        return KEEL_E_NOTFOUND;
    *ret_ms = r->lease_ms;
    return 0;
}

/* ---- a keyspace ---- */

struct world {
    struct kv *kv;
    struct replica r;
    uint64_t index, ino;
    struct keel_text text;
};

static int set_up(void **state)
{
    struct world *w = keel_calloc(1, sizeof *w);
    char why[256] = "";

    w->kv = kv_mem_new();
    if (mvcc_open(w->kv, &w->r.mvcc, why, sizeof why) != 0)
        fail_msg("%s", why);
    w->ino = 100;
    *state = w;
    return 0;
}

static int tear_down(void **state)
{
    struct world *w = *state;

    keel_text_free(&w->text);
    mvcc_close(w->r.mvcc);
    w->kv->ops->close(w->kv);
    free(w);
    return 0;
}

/* A record as apply would put it; the tests change what they are about. */
static struct mvcc_record record_of(struct world *w, uint32_t uid, uint16_t mode)
{
    return (struct mvcc_record){ .kind = MVCC_FILE,
                                 .mode = mode,
                                 .uid = uid,
                                 .gid = uid,
                                 .ctime_ns = 1000 * (int64_t)S,
                                 .ino = w->ino };
}

/* Puts in a transaction of its own; returns the revision. */
static uint64_t put(struct world *w, const char *name, struct mvcc_record record, const char *value)
{
    struct mvcc_txn *txn = mvcc_begin(w->r.mvcc, ++w->index, 1);
    struct keel_buf *buf = keel_buf_copy(keel_slice_str(value));
    struct mvcc_value bytes = { .owner = buf, .bytes = keel_buf_slice(buf) };

    mvcc_put(txn, mvcc_root(w->r.mvcc), keel_slice_str(name), &record, &bytes);
    keel_buf_free(buf);
    return mvcc_commit(txn);
}

static struct mvcc_key *key_of(struct world *w, const char *name)
{
    return mvcc_child(w->r.mvcc, mvcc_root(w->r.mvcc), keel_slice_str(name));
}

static void remove_key(struct world *w, const char *name, int64_t time_ns, uint64_t lease)
{
    struct mvcc_txn *txn = mvcc_begin(w->r.mvcc, ++w->index, 1);

    mvcc_delete(txn, key_of(w, name), time_ns, lease, false);
    mvcc_commit(txn);
}

/* The mode in a view of "f" at a revision, and its owner. */
static void expect_shown(struct world *w, uint64_t at, unsigned mode, uint32_t uid)
{
    struct mvcc_record shown;

    assert_int_equal(view_record(w->r.mvcc, key_of(w, "f"), at, &shown), 0);
    if (shown.mode != mode || shown.uid != uid || shown.gid != uid)
        fail_msg("shown as %04o of %u:%u", shown.mode, shown.uid, shown.gid);
}

static void expect_text(struct world *w, const char *expected)
{
    assert_string_equal(w->text.data != NULL ? w->text.data : "", expected);
    keel_text_free(&w->text);
}

/* ---- @rev: permissions ---- */

static void a_past_mode_is_bounded_by_todays(void **state)
{
    struct world *w = *state;
    uint64_t open = put(w, "f", record_of(w, 7, 0666), "a");
    uint64_t closed = put(w, "f", record_of(w, 7, 0600), "b");
    uint64_t now = put(w, "f", record_of(w, 7, 0640), "c");

    expect_shown(w, open, 0640, 7);
    expect_shown(w, closed, 0600, 7);
    expect_shown(w, now, 0640, 7);
}

static void a_new_owner_of_the_same_file_owns_its_past(void **state)
{
    struct world *w = *state;
    uint64_t before = put(w, "f", record_of(w, 0, 0600), "a");

    put(w, "f", record_of(w, 7, 0600), "a");
    expect_shown(w, before, 0600, 7);
}

static void who_replaced_a_secret_file_does_not_get_to_read_it(void **state)
{
    struct world *w = *state;
    uint64_t secret = put(w, "f", record_of(w, 0, 0600), "secret");
    uint64_t group = put(w, "f", record_of(w, 0, 0640), "for the group");
    uint64_t not_group = put(w, "f", record_of(w, 0, 0604), "for all but the group");
    uint64_t public = put(w, "f", record_of(w, 0, 0644), "public");

    w->ino = 101;
    put(w, "f", record_of(w, 7, 0666), "mine");
    expect_shown(w, secret, 0000, 7);
    expect_shown(w, group, 0000, 7);
    expect_shown(w, not_group, 0004, 7); /* the new owner may have been in the old group */
    expect_shown(w, public, 0444, 7);
}

static void a_file_deleted_and_made_again_by_another_is_no_way_in_either(void **state)
{
    struct world *w = *state;
    uint64_t secret = put(w, "f", record_of(w, 0, 0600), "secret");

    remove_key(w, "f", 1001 * (int64_t)S, 0);
    w->ino = 101;
    put(w, "f", record_of(w, 7, 0666), "mine");
    expect_shown(w, secret, 0000, 7);
}

static void a_save_by_rename_of_the_same_owner_hides_nothing(void **state)
{
    struct world *w = *state;
    uint64_t before = put(w, "f", record_of(w, 7, 0640), "a");

    w->ino = 101;
    put(w, "f", record_of(w, 7, 0640), "b");
    expect_shown(w, before, 0640, 7);
}

static void a_path_that_is_gone_is_its_last_owners(void **state)
{
    struct world *w = *state;
    uint64_t before = put(w, "f", record_of(w, 7, 0666), "a");
    uint64_t last = put(w, "f", record_of(w, 8, 0644), "b");
    struct mvcc_record shown;

    remove_key(w, "f", 1001 * (int64_t)S, 0);
    expect_shown(w, before, 0600, 8);
    expect_shown(w, last, 0600, 8);
    assert_int_equal(view_record(w->r.mvcc, key_of(w, "f"), last + 1, &shown), KEEL_E_NOTFOUND);
    assert_int_equal(view_record(w->r.mvcc, key_of(w, "f"), 1, &shown), KEEL_E_NOTFOUND);
    assert_int_equal(view_record(w->r.mvcc, key_of(w, "f"), last + 9, &shown), KEEL_E_STALE);
}

static void text_views_are_readable_by_whom_the_file_is(void **state)
{
    struct world *w = *state;
    struct mvcc_record owner;

    put(w, "f", record_of(w, 7, 0754), "a");
    assert_int_equal(view_owner(w->r.mvcc, key_of(w, "f"), &owner), 0);
    assert_int_equal(owner.mode, 0444);
    put(w, "f", record_of(w, 7, 0650), "a");
    assert_int_equal(view_owner(w->r.mvcc, key_of(w, "f"), &owner), 0);
    assert_int_equal(owner.mode, 0440);
    assert_int_equal(owner.uid, 7);
    remove_key(w, "f", 1001 * (int64_t)S, 0);
    assert_int_equal(view_owner(w->r.mvcc, key_of(w, "f"), &owner), 0);
    assert_int_equal(owner.mode, 0400);
    assert_int_equal(owner.uid, 7);
}

/* ---- @stat, @log ---- */

static void stat_text_names_revisions_lease_and_size(void **state)
{
    struct world *w = *state;
    struct mvcc_record bound = record_of(w, 7, 0644);

    put(w, "f", record_of(w, 7, 0644), "hello");
    assert_int_equal(view_stat_text(&w->r, key_of(w, "f"), &w->text), 0);
    expect_text(w,
                "revision: 2\ncreate_revision: 2\nversion: 1\nlease: none\nttl: none\nsize: 5\n");

    bound.lease = w->r.lease = 0x4af;
    w->r.lease_ms = 4001;
    put(w, "f", bound, "");
    assert_int_equal(view_stat_text(&w->r, key_of(w, "f"), &w->text), 0);
    expect_text(w, "revision: 3\ncreate_revision: 2\nversion: 2\nlease: 00000000000004af\nttl: 5\n"
                   "size: 0\n");
    remove_key(w, "f", 1001 * (int64_t)S, 0);
    assert_int_equal(view_stat_text(&w->r, key_of(w, "f"), &w->text), KEEL_E_NOTFOUND);
    expect_text(w, "");
}

static void log_lists_every_revision_newest_first(void **state)
{
    struct world *w = *state;
    struct mvcc_record bound = record_of(w, 7, 04640);

    bound.lease = 0x4af;
    bound.ctime_ns = 1796148000 * (int64_t)S + 123456789;
    put(w, "f", record_of(w, 7, 0644), "hello");
    put(w, "f", bound, "hello again!");
    w->ino = 101;
    put(w, "g", record_of(w, 7, 0600), "not in this log");
    remove_key(w, "f", 1796148001 * (int64_t)S, 0x4af);
    w->ino = 102;
    bound.lease = 0;
    bound.ctime_ns = 1796148002 * (int64_t)S + 7 * 1000000;
    put(w, "f", bound, "");
    assert_int_equal(view_log_text(&w->r, key_of(w, "f"), &w->text), 0);
    expect_text(w, "revision=6 version=1 type=put size=0 mode=4640 time=2026-12-01T18:00:02.007Z"
                   " lease=none\n"
                   "revision=5 version=0 type=delete size=0 mode=0000 time=2026-12-01T18:00:01.000Z"
                   " lease=00000000000004af\n"
                   "revision=3 version=2 type=put size=12 mode=4640 time=2026-12-01T18:00:00.123Z"
                   " lease=00000000000004af\n"
                   "revision=2 version=1 type=put size=5 mode=0644 time=1970-01-01T00:16:40.000Z"
                   " lease=none\n");
}

static void log_of_the_root_begins_at_revision_one(void **state)
{
    struct world *w = *state;

    assert_int_equal(view_log_text(&w->r, mvcc_root(w->r.mvcc), &w->text), 0);
    assert_non_null(strstr(w->text.data, "revision=1 version=1 type=put size=0 mode=0755 time="));
}

static void a_long_log_is_cut_and_says_so(void **state)
{
    struct world *w = *state;
    size_t lines = 0;

    for (int i = 0; i < KEEL_LOG_LINES_MAX + 17; i++)
        put(w, "f", record_of(w, 7, 0644), "x");
    assert_int_equal(view_log_text(&w->r, key_of(w, "f"), &w->text), 0);
    for (const char *c = w->text.data; *c != '\0'; c++)
        lines += *c == '\n';
    assert_int_equal(lines, KEEL_LOG_LINES_MAX + 1);
    assert_non_null(strstr(w->text.data, "\n# 17 more\n"));
    assert_int_equal(strncmp(w->text.data, "revision=10018 version=10017 ", 29), 0);
}

static void times_before_1970_are_told_right(void **state)
{
    struct world *w = *state;

    view_time_text(&w->text, -1);
    expect_text(w, "1969-12-31T23:59:59.999Z");
    view_time_text(&w->text, 0);
    expect_text(w, "1970-01-01T00:00:00.000Z");
    view_time_text(&w->text, -(int64_t)S);
    expect_text(w, "1969-12-31T23:59:59.000Z");
    view_time_text(&w->text, 1709210096 * (int64_t)S + 999999999);
    expect_text(w, "2024-02-29T12:34:56.999Z");
}

/* ---- xattrs ---- */

static void expect_xattr(struct world *w, const char *name, int err, const char *value)
{
    int got = xattr_get(&w->r, key_of(w, "f"), name, &w->text);

    if (got != err)
        fail_msg("%s: %d", name, got);
    expect_text(w, value);
}

static void computed_attributes_are_read_by_name(void **state)
{
    struct world *w = *state;
    struct mvcc_record bound = record_of(w, 7, 0644);

    put(w, "f", record_of(w, 7, 0644), "a");
    put(w, "f", record_of(w, 7, 0644), "b");
    expect_xattr(w, "user.keel.revision", 0, "3");
    expect_xattr(w, "user.keel.create_revision", 0, "2");
    expect_xattr(w, "user.keel.version", 0, "2");
    expect_xattr(w, "user.keel.lease", KEEL_E_NOATTR, "");
    expect_xattr(w, "user.keel.ttl", KEEL_E_NOATTR, "");
    expect_xattr(w, "user.keel.lock_revision", KEEL_E_NOATTR, "");
    expect_xattr(w, "user.keel.", KEEL_E_NOATTR, "");
    expect_xattr(w, "user.keel.revisions", KEEL_E_NOATTR, "");
    expect_xattr(w, "user.mine", KEEL_E_NOATTR, "");
    expect_xattr(w, "security.capability", KEEL_E_NOTSUPPORTED, "");
    expect_xattr(w, "system.posix_acl_access", KEEL_E_NOTSUPPORTED, "");

    bound.lease = 0x4af;
    put(w, "f", bound, "c");
    expect_xattr(w, "user.keel.lease", 0, "00000000000004af");
    expect_xattr(w, "user.keel.ttl", 0, "0"); /* bound, but the lease has just ended */
    w->r.lease = 0x4af;
    w->r.lease_ms = 9000;
    expect_xattr(w, "user.keel.ttl", 0, "9");
    remove_key(w, "f", 1001 * (int64_t)S, 0);
    expect_xattr(w, "user.keel.revision", KEEL_E_NOTFOUND, "");
}

static void the_list_of_attributes_has_those_that_can_be_read(void **state)
{
    static const char expected[] = "user.keel.revision\0user.keel.create_revision\0"
                                   "user.keel.version\0user.keel.lease\0user.keel.ttl";
    struct world *w = *state;
    struct mvcc_record bound = record_of(w, 7, 0644);

    put(w, "f", bound, "a");
    xattr_list(&w->r, key_of(w, "f"), &w->text);
    assert_int_equal(w->text.len, strlen("user.keel.revision.user.keel.create_revision."
                                         "user.keel.version."));
    assert_memory_equal(w->text.data, expected, w->text.len);
    keel_text_free(&w->text);
    bound.lease = 1;
    put(w, "f", bound, "a");
    xattr_list(&w->r, key_of(w, "f"), &w->text);
    assert_int_equal(w->text.len, sizeof expected);
    assert_memory_equal(w->text.data, expected, sizeof expected);
}

static void setting_attributes_fails_by_name(void **state)
{
    (void)state;
    assert_int_equal(xattr_set_error("user.keel.revision"), KEEL_E_PERM);
    assert_int_equal(xattr_set_error("user.keel.anything"), KEEL_E_PERM);
    assert_int_equal(xattr_set_error("user.keel.lease"), KEEL_E_NOTSUPPORTED);
    assert_int_equal(xattr_set_error("user.mine"), KEEL_E_NOTSUPPORTED);
    assert_int_equal(xattr_set_error("security.selinux"), KEEL_E_NOTSUPPORTED);
}

/* ---- /@keel ---- */

static const struct fs_options options = { .name = "n1", .cluster_id = 0xabc };

static void status_of_node(void *arg, struct keel_text *text)
{
    keel_text_printf(text, "db_size: %d\n", *(int *)arg);
}

static bool only_three_is_connected(void *arg, uint64_t peer)
{
    (void)arg;
    return peer == 3;
}

static void three_members(struct world *w)
{
    static char *const names[] = { "n1", "n2", "n3" };
    static char *const addresses[] = { "127.0.0.1:7", "127.0.0.2:7", "127.0.0.3:7" };

    w->r.apply.count = w->r.status.peer_count = 3;
    for (size_t i = 0; i < 3; i++) {
        w->r.apply.members[i] = (struct apply_member){ .id = i + 1,
                                                       .name = names[i],
                                                       .address = addresses[i],
                                                       .voter = i < 2,
                                                       .incarnation = i * 16 };
        w->r.status.peers[i] = (struct raft_peer_status){ .id = i + 1,
                                                          .connected = i != 1,
                                                          .state = RAFT_REPLICATE,
                                                          .match = 50 - 10 * i,
                                                          .learner = i == 2 };
    }
    w->r.status.id = 1;
    w->r.status.last_index = 50;
}

/* The value of a "name: value" line, or fails. */
static void expect_line(const struct world *w, const char *name, const char *value)
{
    char line[128];

    snprintf(line, sizeof line, "%s: %s\n", name, value);
    const char *at = strstr(w->text.data, line);

    if (at == NULL || (at != w->text.data && at[-1] != '\n'))
        fail_msg("no %s in:\n%s", line, w->text.data);
}

static void status_tells_the_node_and_its_place_in_the_cluster(void **state)
{
    struct world *w = *state;
    int db_size = 4096;
    struct fs_node_info info = { .arg = &db_size, .status = status_of_node };
    char hash[64];

    three_members(w);
    put(w, "f", record_of(w, 7, 0644), "hello");
    w->r.status.role = RAFT_FOLLOWER;
    w->r.status.leader = 2;
    w->r.status.term = 4;
    w->r.status.commit_index = 49;
    w->r.status.applied_index = 48;
    w->r.status.persisted_index = 47;
    w->r.status.quorum = true;
    w->r.status.session = 5;
    w->r.status.proposals = 2;
    control_text(CONTROL_STATUS, &w->r, &options, &info, &w->text);
    expect_line(w, "name", "n1");
    expect_line(w, "id", "0000000000000001");
    expect_line(w, "cluster_id", "0000000000000abc");
    expect_line(w, "role", "follower");
    expect_line(w, "leader", "n2");
    expect_line(w, "term", "4");
    expect_line(w, "commit_index", "49");
    expect_line(w, "applied_index", "48");
    expect_line(w, "last_index", "50");
    expect_line(w, "persisted_index", "47");
    expect_line(w, "revision", "2");
    expect_line(w, "compact_revision", "0");
    expect_line(w, "quorum", "yes");
    expect_line(w, "stale", "no");
    expect_line(w, "session", "5");
    expect_line(w, "waiting_writes", "2");
    expect_line(w, "waiting_reads", "0");
    expect_line(w, "joint", "no");
    expect_line(w, "receiving_snapshot", "no");
    expect_line(w, "db_size", "4096");
    snprintf(hash, sizeof hash, "%016llx%016llx at 1",
             (unsigned long long)mvcc_state_hash(w->r.mvcc).high,
             (unsigned long long)mvcc_state_hash(w->r.mvcc).low);
    expect_line(w, "hash", hash);
}

static void status_tells_since_when_there_is_no_quorum(void **state)
{
    struct world *w = *state;
    const struct fs_node_info info = { 0 };
    struct tm tm = { 0 };

    w->r.status.role = RAFT_PRECANDIDATE;
    w->r.status.stale = true;
    w->r.now_us = 70 * 1000000;
    w->r.status.quorum_lost_us = 10 * 1000000;
    time_t before = time(NULL);

    control_text(CONTROL_STATUS, &w->r, &options, &info, &w->text);
    expect_line(w, "role", "candidate");
    expect_line(w, "leader", "none");
    expect_line(w, "stale", "yes");
    const char *at = strstr(w->text.data, "\nquorum: no since ");

    assert_non_null(at);
    assert_non_null(strptime(at, "\nquorum: no since %Y-%m-%dT%H:%M:%S", &tm));
    /* A minute before it was asked for, however long that took. */
    assert_in_range(timegm(&tm), before - 61, time(NULL) - 60);
}

static void status_tells_of_changes_of_members_and_of_snapshots(void **state)
{
    struct world *w = *state;
    const struct fs_node_info info = { 0 };

    w->r.removed = true;
    w->r.status.role = RAFT_FOLLOWER;
    w->r.status.quorum = true;
    w->r.status.joint = true;
    w->r.status.receiving_snapshot = true;
    w->r.status.snapshots_sent = 3;
    w->r.status.snapshots_installed = 4;
    w->r.status.first_index = 17;
    control_text(CONTROL_STATUS, &w->r, &options, &info, &w->text);
    expect_line(w, "role", "removed");
    expect_line(w, "joint", "yes");
    expect_line(w, "receiving_snapshot", "yes");
    expect_line(w, "snapshots_sent", "3");
    expect_line(w, "snapshots_installed", "4");
    expect_line(w, "first_index", "17");
}

static void a_leader_tells_how_far_the_members_are(void **state)
{
    struct world *w = *state;
    const struct fs_node_info info = { .peer_connected = only_three_is_connected };

    three_members(w);
    w->r.status.role = RAFT_LEADER;
    w->r.status.leader = 1;
    control_text(CONTROL_MEMBERS, &w->r, &options, &info, &w->text);
    expect_text(w, "name=n1 id=0000000000000001 address=127.0.0.1:7 voter=yes state=leader"
                   " match=50 lag=0 incarnation=-\n"
                   "name=n2 id=0000000000000002 address=127.0.0.2:7 voter=yes state=disconnected"
                   " match=40 lag=10 incarnation=0000000000000010\n"
                   "name=n3 id=0000000000000003 address=127.0.0.3:7 voter=no state=replicate"
                   " match=30 lag=20 incarnation=0000000000000020\n");
}

static void a_follower_tells_only_what_it_knows(void **state)
{
    struct world *w = *state;
    const struct fs_node_info info = { .peer_connected = only_three_is_connected };

    three_members(w);
    w->r.status.role = RAFT_FOLLOWER;
    w->r.status.leader = 2;
    control_text(CONTROL_MEMBERS, &w->r, &options, &info, &w->text);
    expect_text(w, "name=n1 id=0000000000000001 address=127.0.0.1:7 voter=yes state=follower"
                   " match=- lag=- incarnation=-\n"
                   "name=n2 id=0000000000000002 address=127.0.0.2:7 voter=yes state=leader"
                   " match=- lag=- incarnation=0000000000000010\n"
                   "name=n3 id=0000000000000003 address=127.0.0.3:7 voter=no state=connected"
                   " match=- lag=- incarnation=0000000000000020\n");
}

static void control_files_are_found_by_name(void **state)
{
    (void)state;
    assert_int_equal(control_find(keel_slice_str("status")), CONTROL_STATUS);
    assert_int_equal(control_find(keel_slice_str("members")), CONTROL_MEMBERS);
    assert_int_equal(control_find(keel_slice_str("")), CONTROL_NONE);
    assert_int_equal(control_find(keel_slice_str("statu")), CONTROL_NONE);
    assert_int_equal(control_find(keel_slice_str("status2")), CONTROL_NONE);
    for (const struct control_entry *e = control_entries; e->name != NULL; e++) {
        assert_int_equal(control_find(keel_slice_str(e->name)), e->file);
        assert_int_equal(e->mode & 022, 0);
        assert_int_equal((e->mode & 0200) != 0,
                         control_is_writable(e->file) && e->file != CONTROL_MEMBERS);
    }
}

static void settings_are_shown_one_a_line(void **state)
{
    struct world *w = *state;
    const struct fs_node_info info = { 0 };

    w->r.apply.settings = (struct apply_settings){ true, 1000, 1 << 20, 4096, 3600000, 77, 1 };
    control_text(CONTROL_SETTINGS, &w->r, &options, &info, &w->text);
    expect_text(w, "file_size: 1000\nquota: 1048576\ntxn_ops: 4096\nhistory_ms: 3600000\n"
                   "history_revisions: 77\nlevel: 1\n");
}

static void an_alarm_is_shown_while_it_is_raised(void **state)
{
    struct world *w = *state;
    const struct fs_node_info info = { 0 };

    control_text(CONTROL_ALARMS, &w->r, &options, &info, &w->text);
    assert_int_equal(w->text.len, 0);
    control_text(CONTROL_STATUS, &w->r, &options, &info, &w->text);
    expect_line(w, "alarms", "none");
    keel_text_free(&w->text);
    w->r.apply.nospace = true;
    control_text(CONTROL_ALARMS, &w->r, &options, &info, &w->text);
    assert_ptr_equal(strstr(w->text.data, "NOSPACE: "), w->text.data);
    assert_ptr_equal(strchr(w->text.data, '\n'), w->text.data + w->text.len - 1);
    control_text(CONTROL_STATUS, &w->r, &options, &info, &w->text);
    expect_line(w, "alarms", "NOSPACE");
}

/* ---- what is written to settings and compact ---- */

static int parse_settings(const char *text, struct apply_settings *ret)
{
    const struct fs_options of_node = { .quota_max = 1ull << 32 };
    char copy[256];

    snprintf(copy, sizeof copy, "%s", text);
    return control_parse_settings(copy, &of_node, ret);
}

static void settings_that_are_not_named_stay(void **state)
{
    struct apply_settings s;

    (void)state;
    assert_int_equal(parse_settings("quota=4294967296\n", &s), 0);
    assert_true(s.quota_bytes == 1ull << 32);
    assert_true(s.file_size_bytes == 0 && s.txn_ops == 0 && s.history_ms == 0);
    assert_true(s.history_revisions == 0 && s.level == 0);
    assert_int_equal(parse_settings("history_ms=1\n\n history_revisions=2\tfile_size=3", &s), 0);
    assert_true(s.history_ms == 1 && s.history_revisions == 2 && s.file_size_bytes == 3);
    assert_true(s.quota_bytes == 0);
}

static void settings_are_refused_outside_of_their_range(void **state)
{
    static const char *const good[] = { "file_size=1", "file_size=1044480", "quota=1048576",
                                        "history_ms=1", "history_revisions=1" };
    static const char *const bad[] = { "",
                                       "\n",
                                       "file_size=0",
                                       "file_size=1044481",
                                       "quota=1048575",
                                       "quota=4294967297",
                                       "history_ms=0",
                                       "history_revisions=0",
                                       "history_ms=9007199254740993",
                                       "history_ms=99999999999999999999999",
                                       "quota",
                                       "quota=",
                                       "quota=1G",
                                       "quota=-1048576",
                                       "quota =2097152",
                                       "=1048576",
                                       "level=1",
                                       "txn_ops=1",
                                       "size=1048576",
                                       "quota=1048576 quota=1048576",
                                       "quota=1048576\nhistory_ms=0" };
    struct apply_settings s;

    (void)state;
    for (size_t i = 0; i < KEEL_ARRAY_LEN(good); i++)
        if (parse_settings(good[i], &s) != 0)
            fail_msg("refused: %s", good[i]);
    for (size_t i = 0; i < KEEL_ARRAY_LEN(bad); i++)
        if (parse_settings(bad[i], &s) != KEEL_E_INVALID)
            fail_msg("taken: %s", bad[i]);
}

static void a_revision_is_one_number(void **state)
{
    static const char *const bad[] = { "",     " \n", "x",
                                       "1 2",  "-1",  "+1",
                                       "0x10", "1.5", "18446744073709551616" };
    char copy[64];
    uint64_t revision;

    (void)state;
    snprintf(copy, sizeof copy, " 42\n");
    assert_int_equal(control_parse_revision(copy, &revision), 0);
    assert_int_equal(revision, 42);
    for (size_t i = 0; i < KEEL_ARRAY_LEN(bad); i++) {
        snprintf(copy, sizeof copy, "%s", bad[i]);
        if (control_parse_revision(copy, &revision) != KEEL_E_INVALID)
            fail_msg("taken: %s", bad[i]);
    }
}

/* ---- what is written to members ---- */

static bool fake_member_ok(void *arg, const char *name, const char *address)
{
    (void)arg;
    return strcmp(name, "bad") != 0 && strchr(address, ':') != NULL;
}

static int parse(const char *text, struct keel_member_change changes[KEEL_MEMBERS_MAX],
                 size_t *ret_count)
{
    static char copy[8192];
    const struct fs_node_info info = { .member_ok = fake_member_ok };

    snprintf(copy, sizeof copy, "%s", text);
    return control_parse_changes(copy, &info, changes, ret_count);
}

static void expect_change(const struct keel_member_change *change, enum keel_change_verb verb,
                          const char *name, const char *address)
{
    assert_int_equal(change->verb, verb);
    assert_string_equal(change->name, name);
    assert_int_equal(change->id, 0);
    if (address == NULL)
        assert_null(change->address);
    else
        assert_string_equal(change->address, address);
}

static void all_lines_of_one_write_are_one_list_of_changes(void **state)
{
    struct keel_member_change changes[KEEL_MEMBERS_MAX];
    size_t count;

    (void)state;
    assert_int_equal(
        parse("add n4 host:7\n\n remove\tn1 \npromote n2\nadd n5 [::1]:7 voter", changes, &count),
        0);
    assert_int_equal(count, 4);
    expect_change(&changes[0], MEMBER_ADD, "n4", "host:7");
    expect_change(&changes[1], MEMBER_REMOVE, "n1", NULL);
    expect_change(&changes[2], MEMBER_PROMOTE, "n2", NULL);
    expect_change(&changes[3], MEMBER_ADD_VOTER, "n5", "[::1]:7");
}

static void what_is_no_change_is_refused_whole(void **state)
{
    static const char *const texts[] = {
        "",
        "\n \n",
        "add",
        "add n4",
        "add n4 host",
        "add bad host:7",
        "add n4 host:7 learner",
        "add n4 host:7 voter now",
        "remove",
        "remove n1 n2",
        "promote",
        "demote n1",
        "n1",
        "remove n1\npromote",
        "remove n1\na b c d e f g h i",
    };
    struct keel_member_change changes[KEEL_MEMBERS_MAX];
    size_t count;

    (void)state;
    for (size_t i = 0; i < KEEL_ARRAY_LEN(texts); i++)
        if (parse(texts[i], changes, &count) != KEEL_E_INVALID)
            fail_msg("taken: %s", texts[i]);
}

static void no_more_changes_than_members_at_once(void **state)
{
    struct keel_member_change changes[KEEL_MEMBERS_MAX];
    struct keel_text text = { 0 };
    size_t count;

    (void)state;
    for (int i = 0; i < KEEL_MEMBERS_MAX; i++)
        keel_text_printf(&text, "remove n%d\n", i);
    assert_int_equal(parse(text.data, changes, &count), 0);
    assert_int_equal(count, KEEL_MEMBERS_MAX);
    keel_text_printf(&text, "remove one_more\n");
    assert_int_equal(parse(text.data, changes, &count), KEEL_E_INVALID);
    keel_text_free(&text);
}

#define WITH_WORLD(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH_WORLD(a_past_mode_is_bounded_by_todays),
        WITH_WORLD(a_new_owner_of_the_same_file_owns_its_past),
        WITH_WORLD(who_replaced_a_secret_file_does_not_get_to_read_it),
        WITH_WORLD(a_file_deleted_and_made_again_by_another_is_no_way_in_either),
        WITH_WORLD(a_save_by_rename_of_the_same_owner_hides_nothing),
        WITH_WORLD(a_path_that_is_gone_is_its_last_owners),
        WITH_WORLD(text_views_are_readable_by_whom_the_file_is),
        WITH_WORLD(stat_text_names_revisions_lease_and_size),
        WITH_WORLD(log_lists_every_revision_newest_first),
        WITH_WORLD(log_of_the_root_begins_at_revision_one),
        WITH_WORLD(a_long_log_is_cut_and_says_so),
        WITH_WORLD(times_before_1970_are_told_right),
        WITH_WORLD(computed_attributes_are_read_by_name),
        WITH_WORLD(the_list_of_attributes_has_those_that_can_be_read),
        cmocka_unit_test(setting_attributes_fails_by_name),
        WITH_WORLD(status_tells_the_node_and_its_place_in_the_cluster),
        WITH_WORLD(status_tells_since_when_there_is_no_quorum),
        WITH_WORLD(status_tells_of_changes_of_members_and_of_snapshots),
        WITH_WORLD(a_leader_tells_how_far_the_members_are),
        WITH_WORLD(a_follower_tells_only_what_it_knows),
        cmocka_unit_test(control_files_are_found_by_name),
        WITH_WORLD(settings_are_shown_one_a_line),
        WITH_WORLD(an_alarm_is_shown_while_it_is_raised),
        cmocka_unit_test(settings_that_are_not_named_stay),
        cmocka_unit_test(settings_are_refused_outside_of_their_range),
        cmocka_unit_test(a_revision_is_one_number),
        cmocka_unit_test(all_lines_of_one_write_are_one_list_of_changes),
        cmocka_unit_test(what_is_no_change_is_refused_whole),
        cmocka_unit_test(no_more_changes_than_members_at_once),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
