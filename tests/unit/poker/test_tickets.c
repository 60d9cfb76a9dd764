/* Which changes become tickets, in which order these go, and what names meant at the time of each;
 * and the packets. */
#include "unit.h"

#include "err.h"
#include "fs/poker_scan.h"
#include "fs/poker_tickets.h"
#include "fs/poker_wire.h"
#include "keel_limits.h"

enum { DIR_A = 10, DIR_B = 11, FILE_X = 20, FILE_Y = 21, FILE_Z = 22 };

/* The state is a handful of (directory, name) -> inode. */
struct world {
    struct ticket_queue q;
    struct fs_nodes *nodes;
    struct poker_hooks hooks;
    uint64_t now_us;
    struct {
        uint64_t dir, ino;
        char name[8];
    } names[8];
    size_t name_count;
};

static bool hook_attributes(void *arg, struct fs_node *node, struct stat *ret_stat)
{
    (void)arg;
    *ret_stat = (struct stat){ .st_ino = node->ino, .st_mode = S_IFREG | 0640 };
    return true;
}

static bool hook_path(void *arg, uint64_t ino, struct keel_text *text)
{
    (void)arg;
    keel_text_printf(text, "d%u", (unsigned)ino);
    return ino != 0;
}

static uint64_t hook_child(void *arg, uint64_t parent, struct keel_slice name)
{
    struct world *w = arg;

    for (size_t i = 0; i < w->name_count; i++)
        if (w->names[i].dir == parent && keel_slice_equal(keel_slice_str(w->names[i].name), name))
            return w->names[i].ino;
    return 0;
}

static uint64_t hook_now(void *arg)
{
    return ((struct world *)arg)->now_us;
}

static void state_set(struct world *w, uint64_t dir, const char *name, uint64_t ino)
{
    w->names[w->name_count].dir = dir;
    w->names[w->name_count].ino = ino;
    snprintf(w->names[w->name_count].name, sizeof w->names[0].name, "%s", name);
    w->name_count++;
}

static void hot(struct world *w, uint64_t ino)
{
    fs_node_get(w->nodes, ino)->marked = true;
}

static int setup(void **state)
{
    struct world *w = calloc(1, sizeof *w);

    w->nodes = fs_nodes_new();
    w->now_us = 1000000000;
    w->hooks = (struct poker_hooks){ w, hook_attributes, hook_path, hook_child, hook_now };
    ticket_queue_init(&w->q, w->nodes, &w->hooks);
    w->q.sighted_until_us = UINT64_MAX;
    *state = w;
    return 0;
}

static int teardown(void **state)
{
    struct world *w = *state;

    ticket_queue_clear(&w->q);
    fs_nodes_free(w->nodes);
    free(w);
    return 0;
}

static void change(struct world *w, enum keel_change_kind kind, uint64_t dir, const char *name,
                   uint64_t ino)
{
    ticket_queue_add(&w->q, &(struct keel_change){ .kind = kind,
                                                   .object = MVCC_FILE,
                                                   .ino = ino,
                                                   .parent = dir,
                                                   .name = keel_slice_str(name) });
}

static void rename_change(struct world *w, uint64_t dir, const char *name, uint64_t new_dir,
                          const char *new_name, uint64_t ino, uint64_t replaced)
{
    ticket_queue_add(&w->q, &(struct keel_change){ .kind = CHANGE_RENAME,
                                                   .object = MVCC_FILE,
                                                   .ino = ino,
                                                   .parent = dir,
                                                   .name = keel_slice_str(name),
                                                   .new_parent = new_dir,
                                                   .new_name = keel_slice_str(new_name),
                                                   .replaced = replaced });
}

/* Lets go whatever may; returns the ids, in order, as text. */
static const char *go(struct world *w)
{
    static char text[256];
    struct ticket *t;
    size_t len = 0;

    text[0] = '\0';
    while ((t = ticket_queue_next(&w->q))) {
        len += (size_t)snprintf(text + len, sizeof text - len, len ? " %u" : "%u", (unsigned)t->id);
        ticket_queue_fly(&w->q, t);
    }
    return text;
}

static void land_all(struct world *w)
{
    while (ticket_queue_current(&w->q))
        ticket_queue_remove(&w->q, ticket_queue_current(&w->q));
}

static void changes_of_what_the_kernel_does_not_know_make_no_tickets(void **state)
{
    struct world *w = *state;

    change(w, CHANGE_CREATE, DIR_A, "x", FILE_X);
    assert_int_equal(w->q.waiting.count, 0);
    assert_int_equal(w->q.stats.skipped, 1);
    assert_int_equal(fs_nodes_count(w->nodes), 0);
}

static void a_directory_is_hot_for_ten_seconds_after_somebody_asked(void **state)
{
    struct world *w = *state;

    fs_node_get(w->nodes, DIR_A)->asked_us = w->now_us;
    w->now_us += TICKET_HOT_US - 1;
    change(w, CHANGE_CREATE, DIR_A, "x", FILE_X);
    assert_int_equal(w->q.waiting.count, 1);
    assert_string_equal(go(w), "1");
    land_all(w);
    w->now_us += 1;
    change(w, CHANGE_CREATE, DIR_A, "y", FILE_Y);
    assert_int_equal(w->q.waiting.count, 0);
}

static void open_marked_target_and_replaced_nodes_are_hot(void **state)
{
    struct world *w = *state;

    fs_node_get(w->nodes, FILE_X)->handles = 1;
    change(w, CHANGE_CONTENT, DIR_A, "x", FILE_X);
    hot(w, FILE_Z);
    rename_change(w, DIR_B, "y", DIR_B, "z", FILE_Y, FILE_Z);
    assert_int_equal(w->q.waiting.count, 2);
    fs_node_find(w->nodes, FILE_X)->handles = 0;
}

static void without_a_scan_all_that_the_kernel_knows_is_hot(void **state)
{
    struct world *w = *state;

    fs_node_looked_up(fs_node_get(w->nodes, DIR_A));
    change(w, CHANGE_CREATE, DIR_A, "x", FILE_X);
    assert_int_equal(w->q.waiting.count, 0);
    w->q.sighted_until_us = w->now_us;
    change(w, CHANGE_CREATE, DIR_A, "x", FILE_X);
    assert_int_equal(w->q.waiting.count, 1);
}

static void a_node_that_is_watched_no_more_when_its_ticket_may_go_is_skipped(void **state)
{
    struct world *w = *state;

    hot(w, DIR_A);
    change(w, CHANGE_CREATE, DIR_A, "x", FILE_X);
    fs_node_find(w->nodes, DIR_A)->marked = false;
    assert_string_equal(go(w), "");
    assert_int_equal(w->q.stats.skipped, 1);
    assert_int_equal(w->q.waiting.count, 0);
}

static void a_cold_ticket_stays_while_an_older_one_may_need_its_name(void **state)
{
    struct world *w = *state;

    hot(w, FILE_X);
    change(w, CHANGE_CONTENT, DIR_A, "x", FILE_X);
    change(w, CHANGE_REMOVE, DIR_A, "y", FILE_Y); /* cold, but in the directory of a ticket */
    assert_string_equal(go(w), "1");
    assert_int_equal(w->q.waiting.count, 1);
    land_all(w);
    assert_string_equal(go(w), "");
    assert_int_equal(w->q.waiting.count, 0);
}

static void waiting_contents_of_one_inode_are_one(void **state)
{
    struct world *w = *state;

    hot(w, DIR_A);
    change(w, CHANGE_CONTENT, DIR_A, "x", FILE_X);
    change(w, CHANGE_CONTENT, DIR_A, "y", FILE_Y);
    change(w, CHANGE_CONTENT, DIR_A, "x", FILE_X);
    assert_int_equal(w->q.waiting.count, 2);
    assert_string_equal(go(w), "1 2");
    change(w, CHANGE_CONTENT, DIR_A, "x", FILE_X); /* the one in flight may be past it */
    assert_int_equal(w->q.waiting.count, 1);
}

static void content_is_not_merged_over_another_change_of_the_inode(void **state)
{
    struct world *w = *state;

    hot(w, DIR_A);
    change(w, CHANGE_CONTENT, DIR_A, "x", FILE_X);
    rename_change(w, DIR_A, "x", DIR_A, "y", FILE_X, 0);
    change(w, CHANGE_CONTENT, DIR_A, "y", FILE_X);
    assert_int_equal(w->q.waiting.count, 3);
    change(w, CHANGE_CREATE, DIR_A, "z", FILE_Z);
    change(w, CHANGE_CONTENT, DIR_A, "z", FILE_Z);
    assert_int_equal(w->q.waiting.count, 5);
}

static void a_ticket_waits_for_local_requests_and_only_its_lanes_wait_with_it(void **state)
{
    struct world *w = *state;

    hot(w, DIR_A);
    hot(w, DIR_B);
    fs_node_find(w->nodes, DIR_A)->busy = 1;
    change(w, CHANGE_REMOVE, DIR_A, "x", FILE_X);
    change(w, CHANGE_CREATE, DIR_B, "y", FILE_Y);
    rename_change(w, DIR_B, "y", DIR_A, "z", FILE_Y, 0);
    change(w, CHANGE_CREATE, DIR_B, "w", FILE_Z);
    assert_string_equal(go(w), "2");
    fs_node_find(w->nodes, DIR_A)->busy = 0;
    assert_string_equal(go(w), "1 3 4");
}

static void a_busy_target_holds_its_directory_too(void **state)
{
    struct world *w = *state;

    hot(w, DIR_A);
    fs_node_get(w->nodes, FILE_X)->busy = 1;
    change(w, CHANGE_CONTENT, DIR_A, "x", FILE_X);
    change(w, CHANGE_CREATE, DIR_A, "y", FILE_Y);
    assert_string_equal(go(w), "");
    fs_node_find(w->nodes, FILE_X)->busy = 0;
    assert_string_equal(go(w), "1 2");
}

static void a_local_rename_across_directories_holds_all_such_tickets(void **state)
{
    struct world *w = *state;

    hot(w, DIR_A);
    hot(w, DIR_B);
    rename_change(w, DIR_A, "x", DIR_B, "x", FILE_X, 0);
    rename_change(w, 12, "y", 12, "z", FILE_Y, FILE_Z);
    w->q.local_renames = 1;
    assert_string_equal(go(w), "");
    w->q.local_renames = 0;
    assert_string_equal(go(w), "1");
}

static void what_a_name_held_is_told_by_the_next_ticket_about_it(void **state)
{
    struct world *w = *state;
    struct keel_slice x = keel_slice_str("x");

    hot(w, DIR_A);
    change(w, CHANGE_CREATE, DIR_A, "x", FILE_X);
    change(w, CHANGE_REMOVE, DIR_A, "x", FILE_X);
    rename_change(w, DIR_A, "y", DIR_A, "x", FILE_Y, 0);
    change(w, CHANGE_CONTENT, DIR_A, "x", FILE_Y);
    struct ticket *created = w->q.waiting.oldest;
    struct ticket *removed = ticket_queue_after(&w->q, created, DIR_A, x);
    struct ticket *moved = ticket_queue_after(&w->q, removed, DIR_A, x);

    assert_int_equal(created->id, 1);
    assert_int_equal(removed->id, 2);
    assert_int_equal(moved->id, 3);
    assert_null(ticket_queue_after(&w->q, moved, DIR_A, x));
    assert_int_equal(ticket_held_before(created, DIR_A, x), LANE_ROLES);
    assert_int_equal(ticket_held_before(removed, DIR_A, x), LANE_OBJECT);
    assert_int_equal(ticket_held_before(moved, DIR_A, x), LANE_ROLES);
    assert_int_equal(ticket_held_before(moved, DIR_A, keel_slice_str("y")), LANE_OBJECT);
}

static void a_local_change_of_the_name_wins_and_a_later_remote_one_does_not(void **state)
{
    struct world *w = *state;

    hot(w, DIR_A);
    state_set(w, DIR_A, "x", FILE_Y); /* made here, after the removal */
    change(w, CHANGE_REMOVE, DIR_A, "x", FILE_X);
    assert_true(ticket_overtaken(&w->q, w->q.waiting.oldest));
    change(w, CHANGE_CREATE, DIR_A, "x", FILE_Y);
    assert_false(ticket_overtaken(&w->q, w->q.waiting.oldest));
    assert_false(ticket_overtaken(&w->q, w->q.waiting.newest));
}

static void a_later_ticket_does_not_vouch_for_a_name_that_was_changed_here_after_it(void **state)
{
    struct world *w = *state;

    hot(w, DIR_A);
    rename_change(w, DIR_A, "0", DIR_A, "2", FILE_X, 0);
    rename_change(w, DIR_A, "1", DIR_A, "2", FILE_Y, FILE_X);
    state_set(w, DIR_A, "1", FILE_Y); /* mv 2 1, here */
    struct ticket *first = w->q.waiting.oldest, *second = first->newer;

    assert_string_equal(go(w), "1 2");
    assert_true(ticket_overtaken(&w->q, second));
    assert_true(ticket_overtaken(&w->q, first));
    assert_true(ticket_queue_salvage(&w->q, first));
    assert_int_equal(first->kind, CHANGE_REMOVE);
    assert_true(ticket_name_is(&first->name, DIR_A, keel_slice_str("0")));
    assert_false(ticket_queue_salvage(&w->q, second));
}

static void a_creation_that_was_undone_here_is_overtaken(void **state)
{
    struct world *w = *state;

    hot(w, DIR_A);
    change(w, CHANGE_CREATE, DIR_A, "x", FILE_X); /* the state has no x */
    assert_true(ticket_overtaken(&w->q, w->q.waiting.oldest));
    rename_change(w, DIR_A, "y", DIR_A, "z", FILE_Y, 0);
    assert_true(ticket_overtaken(&w->q, w->q.waiting.newest));
    state_set(w, DIR_A, "z", FILE_Y);
    assert_false(ticket_overtaken(&w->q, w->q.waiting.newest));
}

static void what_is_left_of_an_overtaken_rename_goes_in_its_place(void **state)
{
    struct world *w = *state;

    hot(w, DIR_A);
    rename_change(w, DIR_A, "y", DIR_B, "z", FILE_Y, 0); /* z was removed here since */
    change(w, CHANGE_ATTR, DIR_A, "x", FILE_X);
    assert_string_equal(go(w), "1 2");
    assert_true(ticket_queue_salvage(&w->q, ticket_queue_current(&w->q)));
    assert_int_equal(w->q.waiting.oldest->kind, CHANGE_REMOVE);
    assert_true(ticket_name_is(&w->q.waiting.oldest->name, DIR_A, keel_slice_str("y")));
    assert_false(ticket_overtaken(&w->q, w->q.waiting.oldest));
    assert_string_equal(go(w), "1");
    land_all(w);

    hot(w, DIR_A);
    state_set(w, DIR_A, "y", FILE_X); /* made here since */
    state_set(w, DIR_B, "z", FILE_Y);
    rename_change(w, DIR_A, "y", DIR_B, "z", FILE_Y, FILE_Z);
    assert_string_equal(go(w), "3");
    assert_true(ticket_queue_salvage(&w->q, ticket_queue_current(&w->q)));
    assert_int_equal(w->q.waiting.oldest->kind, CHANGE_CREATE);
    assert_true(ticket_name_is(&w->q.waiting.oldest->name, DIR_B, keel_slice_str("z")));
    assert_string_equal(go(w), "3");
    assert_false(ticket_queue_salvage(&w->q, ticket_queue_current(&w->q)));
}

static void a_file_that_was_created_here_too_is_not_created_again(void **state)
{
    struct world *w = *state;
    struct fs_node *node = fs_node_get(w->nodes, FILE_Y);
    struct keel_change c = { .kind = CHANGE_CREATE,
                             .object = MVCC_FILE,
                             .ino = FILE_X,
                             .parent = DIR_A,
                             .name = keel_slice_str("x") };

    fs_node_looked_up(node);
    fs_node_adopt(w->nodes, node, FILE_X);
    hot(w, DIR_A);
    ticket_queue_add(&w->q, &c);
    assert_int_equal(w->q.waiting.count, 0);
    c.size = 3;
    ticket_queue_add(&w->q, &c);
    assert_int_equal(w->q.waiting.oldest->kind, CHANGE_CONTENT);
    assert_ptr_equal(ticket_node(w->q.waiting.oldest, LANE_OBJECT), node);
}

static void after_a_crash_only_what_was_not_answered_goes_again(void **state)
{
    struct world *w = *state;

    hot(w, DIR_A);
    change(w, CHANGE_REMOVE, DIR_A, "x", FILE_X);
    change(w, CHANGE_CREATE, DIR_A, "y", FILE_Y);
    change(w, CHANGE_REMOVE, DIR_A, "z", FILE_Z);
    assert_string_equal(go(w), "1 2 3");
    w->q.flying.oldest->answered = true;
    w->q.flying.oldest->newer->created = true;
    change(w, CHANGE_CREATE, DIR_A, "w", 23);
    ticket_queue_land(&w->q);
    assert_int_equal(w->q.stats.done, 1);
    assert_int_equal(w->q.waiting.oldest->kind, CHANGE_CONTENT);
    assert_string_equal(go(w), "2 3 4");
}

static void tickets_keep_nodes_and_let_them_go(void **state)
{
    struct world *w = *state;

    hot(w, DIR_A);
    change(w, CHANGE_REMOVE, DIR_A, "x", FILE_X);
    fs_node_forget(w->nodes, fs_node_find(w->nodes, DIR_A), 0);
    assert_non_null(fs_node_find(w->nodes, DIR_A));
    assert_non_null(fs_node_find(w->nodes, FILE_X));
    assert_string_equal(go(w), "1");
    land_all(w);
    assert_int_equal(fs_nodes_count(w->nodes), 0);
}

static void what_was_removed_looks_as_it_did(void **state)
{
    struct world *w = *state;
    struct keel_change gone = { .kind = CHANGE_REMOVE,
                                .object = MVCC_FILE,
                                .ino = FILE_X,
                                .parent = DIR_A,
                                .name = keel_slice_str("x"),
                                .before = { .kind = MVCC_FILE, .mode = 0604, .uid = 7 } };

    hot(w, DIR_A);
    ticket_queue_add(&w->q, &gone);
    const struct stat *st = ticket_queue_gone(&w->q, FILE_X);

    assert_non_null(st);
    assert_int_equal(st->st_mode, S_IFREG | 0604);
    assert_int_equal(st->st_uid, 7);
    assert_int_equal(st->st_nlink, 1);
    assert_null(ticket_queue_gone(&w->q, DIR_A));
}

static void at_the_limit_the_oldest_are_dropped(void **state)
{
    struct world *w = *state;

    hot(w, DIR_A);
    for (uint64_t i = 0; i < KEEL_TICKETS_MAX + 3; i++)
        change(w, CHANGE_CREATE, DIR_A, "x", 1000 + i);
    assert_int_equal(w->q.waiting.count, KEEL_TICKETS_MAX);
    assert_int_equal(w->q.stats.dropped, 3);
    assert_int_equal(w->q.waiting.oldest->id, 4);
}

static void names_that_no_key_can_have_are_skipped(void **state)
{
    struct world *w = *state;
    char name[KEEL_NAME_MAX + 2];

    memset(name, 'n', sizeof name);
    name[sizeof name - 1] = '\0';
    hot(w, DIR_A);
    change(w, CHANGE_CREATE, DIR_A, name, FILE_X);
    change(w, CHANGE_CREATE, DIR_A, "", FILE_X);
    assert_int_equal(w->q.waiting.count, 0);
    hot(w, MVCC_ROOT_INO);
    change(w, CHANGE_ATTR, 0, "", MVCC_ROOT_INO);
    assert_int_equal(w->q.waiting.count, 1);
}

/* ---- packets ---- */

static struct poker_order an_order(void)
{
    return (
        struct poker_order){ .verb = POKER_RENAME,
                             .id = 1,
                             .object = 2,
                             .size = 3,
                             .dir = { .nodeid = 4, .has_path = true, .path = "a/b", .path_len = 3 },
                             .new_dir = { .nodeid = 5 },
                             .name = "x",
                             .name_len = 1,
                             .new_name = "yy",
                             .new_name_len = 2 };
}

static void a_ticket_survives_its_packet(void **state)
{
    uint8_t bytes[POKER_ORDER_MAX];
    struct poker_order in = an_order(), out;
    size_t len = poker_order_encode(&in, bytes);

    (void)state;
    assert_int_equal(poker_order_decode(keel_slice_of(bytes, len), &out), 0);
    assert_int_equal(out.verb, POKER_RENAME);
    assert_int_equal(out.size, 3);
    assert_string_equal(out.dir.path, "a/b");
    assert_true(out.dir.has_path);
    assert_false(out.new_dir.has_path);
    assert_int_equal(out.new_dir.nodeid, 5);
    assert_string_equal(out.name, "x");
    assert_string_equal(out.new_name, "yy");
}

static void cut_and_false_packets_are_refused(void **state)
{
    uint8_t bytes[POKER_ORDER_MAX], longer[POKER_ORDER_MAX + 1] = { 0 };
    struct poker_order order = an_order(), out;
    size_t len = poker_order_encode(&order, bytes);

    (void)state;
    for (size_t cut = 0; cut < len; cut++)
        assert_int_equal(poker_order_decode(keel_slice_of(bytes, cut), &out), KEEL_E_MALFORMED);
    memcpy(longer, bytes, len);
    assert_int_equal(poker_order_decode(keel_slice_of(longer, len + 1), &out), KEEL_E_MALFORMED);
    for (const char *const *name = (const char *const[]){ ".", "..", "a/b", NULL }; *name; name++) {
        order.name = *name;
        order.name_len = strlen(*name);
        len = poker_order_encode(&order, bytes);
        assert_int_equal(poker_order_decode(keel_slice_of(bytes, len), &out), KEEL_E_MALFORMED);
    }
    order = an_order();
    order.verb = POKER_DONE;
    len = poker_order_encode(&order, bytes);
    assert_int_equal(poker_order_decode(keel_slice_of(bytes, len), &out), KEEL_E_MALFORMED);
}

/* ---- scan ---- */

static void marks_of_our_device_are_found(void **state)
{
    struct poker_scan scan = { .device = 0x2b };

    (void)state;
    poker_scan_line(&scan, "pos:\t0\n");
    poker_scan_line(&scan, "inotify wd:1 ino:1f sdev:2b mask:fce ignored_mask:0 fhandle-bytes:c\n");
    poker_scan_line(&scan, "inotify wd:2 ino:20 sdev:2c mask:fce ignored_mask:0\n");
    poker_scan_line(&scan, "fanotify ino:ff sdev:2b mflags:0 mask:3b ignored_mask:40000000\n");
    poker_scan_line(&scan, "fanotify flags:0 event-flags:8002\n");
    assert_int_equal(scan.count, 2);
    assert_int_equal(scan.inos[0], 0x1f);
    assert_int_equal(scan.inos[1], 0xff);
    assert_false(scan.blind);
    free(scan.inos);
}

static void a_mark_on_the_whole_filesystem_blinds(void **state)
{
    struct poker_scan scan = { .device = 0x2b };

    (void)state;
    poker_scan_line(&scan, "fanotify sdev:2c mflags:0 mask:3b ignored_mask:0\n");
    assert_false(scan.blind);
    poker_scan_line(&scan, "fanotify sdev:2b mflags:0 mask:3b ignored_mask:0\n");
    assert_true(scan.blind);
    scan.blind = false;
    poker_scan_line(&scan,
                    "fanotify mnt_id:7ffffff0 mflags:0 mask:3b\n"); /* some other namespace's */
    assert_true(scan.blind);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(changes_of_what_the_kernel_does_not_know_make_no_tickets),
        TEST(a_directory_is_hot_for_ten_seconds_after_somebody_asked),
        TEST(open_marked_target_and_replaced_nodes_are_hot),
        TEST(without_a_scan_all_that_the_kernel_knows_is_hot),
        TEST(a_node_that_is_watched_no_more_when_its_ticket_may_go_is_skipped),
        TEST(a_cold_ticket_stays_while_an_older_one_may_need_its_name),
        TEST(waiting_contents_of_one_inode_are_one),
        TEST(content_is_not_merged_over_another_change_of_the_inode),
        TEST(a_ticket_waits_for_local_requests_and_only_its_lanes_wait_with_it),
        TEST(a_busy_target_holds_its_directory_too),
        TEST(a_local_rename_across_directories_holds_all_such_tickets),
        TEST(what_a_name_held_is_told_by_the_next_ticket_about_it),
        TEST(a_local_change_of_the_name_wins_and_a_later_remote_one_does_not),
        TEST(a_later_ticket_does_not_vouch_for_a_name_that_was_changed_here_after_it),
        TEST(a_creation_that_was_undone_here_is_overtaken),
        TEST(what_is_left_of_an_overtaken_rename_goes_in_its_place),
        TEST(a_file_that_was_created_here_too_is_not_created_again),
        TEST(after_a_crash_only_what_was_not_answered_goes_again),
        TEST(tickets_keep_nodes_and_let_them_go),
        TEST(what_was_removed_looks_as_it_did),
        TEST(at_the_limit_the_oldest_are_dropped),
        TEST(names_that_no_key_can_have_are_skipped),
        cmocka_unit_test(a_ticket_survives_its_packet),
        cmocka_unit_test(cut_and_false_packets_are_refused),
        cmocka_unit_test(marks_of_our_device_are_found),
        cmocka_unit_test(a_mark_on_the_whole_filesystem_blinds),
    };

    return cmocka_run_group_tests_name("tickets", tests, NULL, NULL);
}
