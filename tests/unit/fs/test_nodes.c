/* The table of nodes: what holds a node in it, and how it is found after an adoption. */
#include "unit.h"

#include "check.h"
#include "fs/nodes.h"
#include "rng.h"

static void node_stays_while_anything_holds_it(void **state)
{
    struct fs_nodes *nodes = fs_nodes_new();
    struct fs_node *node = fs_node_get(nodes, 7);

    (void)state;
    fs_node_looked_up(node);
    fs_node_looked_up(node);
    fs_node_opened(node);
    fs_node_ref(node);
    fs_node_forget(nodes, node, 2);
    assert_ptr_equal(fs_node_find(nodes, 7), node);
    fs_node_closed(nodes, node);
    assert_ptr_equal(fs_node_find(nodes, 7), node);
    fs_node_unref(nodes, node);
    assert_null(fs_node_find(nodes, 7));
    assert_int_equal(fs_nodes_count(nodes), 0);
    fs_nodes_free(nodes);
}

static void adopted_number_leads_to_the_node_that_adopted_it(void **state)
{
    struct fs_nodes *nodes = fs_nodes_new();
    struct fs_node *ours = fs_node_get(nodes, 8), *theirs = fs_node_get(nodes, 5);

    (void)state;
    fs_node_ref(ours);
    fs_node_ref(theirs);
    assert_ptr_equal(fs_node_by_ino(nodes, 5), theirs);
    fs_node_adopt(nodes, ours, 5);
    assert_ptr_equal(fs_node_by_ino(nodes, 5), ours);
    assert_null(fs_node_by_ino(nodes, 8));
    assert_ptr_equal(fs_node_find(nodes, 8), ours);
    assert_ptr_equal(fs_node_find(nodes, 5), theirs);
    fs_node_unref(nodes, ours);
    assert_ptr_equal(fs_node_by_ino(nodes, 5), theirs);
    fs_node_unref(nodes, theirs);
    fs_nodes_free(nodes);
}

static void second_adoption_replaces_the_first(void **state)
{
    struct fs_nodes *nodes = fs_nodes_new();
    struct fs_node *node = fs_node_get(nodes, 8);

    (void)state;
    fs_node_ref(node);
    fs_node_adopt(nodes, node, 5);
    fs_node_adopt(nodes, node, 6);
    assert_null(fs_node_by_ino(nodes, 5));
    assert_ptr_equal(fs_node_by_ino(nodes, 6), node);
    fs_node_adopt(nodes, node, 8);
    assert_null(fs_node_by_ino(nodes, 6));
    assert_ptr_equal(fs_node_by_ino(nodes, 8), node);
    fs_nodes_free(nodes);
}

static void count_drop(void *arg, struct fs_node *node)
{
    size_t *drops = arg;

    assert_true(node->nodeid != 0);
    (*drops)++;
}

static void every_drop_is_told_also_at_the_end(void **state)
{
    struct fs_nodes *nodes = fs_nodes_new();
    size_t drops = 0;

    (void)state;
    fs_nodes_on_drop(nodes, count_drop, &drops);
    fs_node_ref(fs_node_get(nodes, 1));
    fs_node_looked_up(fs_node_get(nodes, 2));
    fs_node_forget(nodes, fs_node_find(nodes, 2), 1);
    assert_int_equal(drops, 1);
    fs_nodes_free(nodes);
    assert_int_equal(drops, 2);
}

static void count_node(void *arg, struct fs_node *node)
{
    size_t *seen = arg;

    (void)node;
    (*seen)++;
}

/* Against an array of counts, over growth of the table, every third node adopting a number of its
 * own. */
static void table_agrees_with_a_plain_array(void **state)
{
    enum { NODES = 5000 };
    static uint64_t counts[NODES];
    struct fs_nodes *nodes = fs_nodes_new();
    struct keel_rng rng;
    size_t held = 0, seen = 0;

    (void)state;
    memset(counts, 0, sizeof counts);
    keel_rng_seed(&rng, 11);
    for (int i = 0; i < 60000; i++) {
        uint64_t id = keel_rng_below(&rng, NODES);
        struct fs_node *node = fs_node_find(nodes, id + 1);

        assert_int_equal(node != NULL, counts[id] > 0);
        if (node != NULL && keel_rng_below(&rng, 2) == 0) {
            uint64_t n = 1 + keel_rng_below(&rng, counts[id]);

            fs_node_forget(nodes, node, n);
            counts[id] -= n;
        } else {
            node = fs_node_get(nodes, id + 1);
            fs_node_looked_up(node);
            counts[id]++;
            if (id % 3 == 0)
                fs_node_adopt(nodes, node, id + 1000000);
        }
    }
    for (uint64_t id = 0; id < NODES; id++) {
        uint64_t ino = id % 3 == 0 ? id + 1000000 : id + 1;
        struct fs_node *node = fs_node_by_ino(nodes, ino);

        held += counts[id] > 0;
        assert_int_equal(node != NULL, counts[id] > 0);
        if (node != NULL)
            assert_int_equal(node->nodeid, id + 1);
    }
    fs_nodes_each(nodes, count_node, &seen);
    assert_int_equal(fs_nodes_count(nodes), held);
    assert_int_equal(seen, held);
    fs_nodes_free(nodes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(node_stays_while_anything_holds_it),
        cmocka_unit_test(adopted_number_leads_to_the_node_that_adopted_it),
        cmocka_unit_test(second_adoption_replaces_the_first),
        cmocka_unit_test(every_drop_is_told_also_at_the_end),
        cmocka_unit_test(table_agrees_with_a_plain_array),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
