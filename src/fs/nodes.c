/* The table of nodes: by nodeid, and once more by inode number for those few that have adopted one.
 *
 *     nodeid 7, ino 7            found by both in the first table
 *     nodeid 8, ino 5 (adopted)  nodeid 8 in the first table, ino 5 in the second
 *     nodeid 5, ino 5            found by its nodeid; by ino 5 the adopted one comes first, since
 * that is the one that this node's own file was created under */
#include <stdlib.h>

#include "check.h"
#include "fs/nodes.h"

enum { FIRST_BUCKETS = 1024 };

struct fs_nodes {
    struct fs_node **buckets, **adopted; /* chains; as many of each */
    size_t bucket_count;                 /* a power of two */
    size_t count;
    void (*on_drop)(void *arg, struct fs_node *node);
    void *on_drop_arg;
};

struct fs_nodes *fs_nodes_new(void)
{
    struct fs_nodes *nodes = keel_calloc(1, sizeof *nodes);

    nodes->bucket_count = FIRST_BUCKETS;
    nodes->buckets = keel_calloc(nodes->bucket_count, sizeof *nodes->buckets);
    nodes->adopted = keel_calloc(nodes->bucket_count, sizeof *nodes->adopted);
    return nodes;
}

static void node_free(struct fs_nodes *nodes, struct fs_node *node)
{
    if (nodes->on_drop != NULL)
        nodes->on_drop(nodes->on_drop_arg, node);
    keel_buf_free(node->orphan_data);
    free(node->record);
    free(node);
}

void fs_node_set_record(struct fs_node *node, const struct mvcc_record *record)
{
    struct mvcc_record *copy = NULL;

    if (record != NULL) {
        copy = keel_malloc(sizeof *copy);
        *copy = *record;
    }
    free(node->record);
    node->record = copy;
}

struct fs_nodes *fs_nodes_free(struct fs_nodes *nodes)
{
    if (nodes == NULL)
        return NULL;
    for (size_t i = 0; i < nodes->bucket_count; i++) {
        for (struct fs_node *node = nodes->buckets[i], *next; node != NULL; node = next) {
            next = node->next;
            node_free(nodes, node);
        }
    }
    free(nodes->buckets);
    free(nodes->adopted);
    free(nodes);
    return NULL;
}

void fs_nodes_on_drop(struct fs_nodes *nodes, void (*fn)(void *arg, struct fs_node *node),
                      void *arg)
{
    nodes->on_drop = fn;
    nodes->on_drop_arg = arg;
}

/* Inode numbers come in runs, one for each member: a multiplication spreads them. */
static size_t bucket_of(const struct fs_nodes *nodes, uint64_t id)
{
    return (size_t)((id * UINT64_C(0x9e3779b97f4a7c15)) >> 32) & (nodes->bucket_count - 1);
}

static void chain(struct fs_nodes *nodes, struct fs_node *node)
{
    struct fs_node **bucket = &nodes->buckets[bucket_of(nodes, node->nodeid)];

    node->next = *bucket;
    *bucket = node;
}

static void chain_adopted(struct fs_nodes *nodes, struct fs_node *node)
{
    struct fs_node **bucket = &nodes->adopted[bucket_of(nodes, node->ino)];

    node->next_adopted = *bucket;
    *bucket = node;
}

static void unchain(struct fs_nodes *nodes, struct fs_node *node)
{
    struct fs_node **link = &nodes->buckets[bucket_of(nodes, node->nodeid)];

    while (*link != node)
        link = &(*link)->next;
    *link = node->next;
}

static void unchain_adopted(struct fs_nodes *nodes, struct fs_node *node)
{
    struct fs_node **link = &nodes->adopted[bucket_of(nodes, node->ino)];

    while (*link != node)
        link = &(*link)->next_adopted;
    *link = node->next_adopted;
}

static void grow(struct fs_nodes *nodes)
{
    struct fs_node **old = nodes->buckets;
    size_t old_count = nodes->bucket_count;

    nodes->bucket_count *= 2;
    free(nodes->adopted);
    nodes->buckets = keel_calloc(nodes->bucket_count, sizeof(struct fs_node *));
    nodes->adopted = keel_calloc(nodes->bucket_count, sizeof(struct fs_node *));
    for (size_t i = 0; i < old_count; i++) {
        for (struct fs_node *node = old[i], *next; node != NULL; node = next) {
            next = node->next;
            chain(nodes, node);
            if (node->ino != node->nodeid)
                chain_adopted(nodes, node);
        }
    }
    free(old);
}

struct fs_node *fs_node_find(struct fs_nodes *nodes, uint64_t nodeid)
{
    struct fs_node *node = nodes->buckets[bucket_of(nodes, nodeid)];

    while (node != NULL && node->nodeid != nodeid)
        node = node->next;
    return node;
}

struct fs_node *fs_node_by_ino(struct fs_nodes *nodes, uint64_t ino)
{
    struct fs_node *node = nodes->adopted[bucket_of(nodes, ino)];

    while (node != NULL && node->ino != ino)
        node = node->next_adopted;
    if (node != NULL)
        return node;
    node = fs_node_find(nodes, ino);
    return node != NULL && node->ino == ino ? node : NULL;
}

struct fs_node *fs_node_get(struct fs_nodes *nodes, uint64_t nodeid)
{
    struct fs_node *node = fs_node_find(nodes, nodeid);

    if (node != NULL)
        return node;
    KEEL_ASSERT(nodeid != 0);
    if (nodes->count >= nodes->bucket_count)
        grow(nodes);
    node = keel_calloc(1, sizeof *node);
    node->nodeid = node->ino = nodeid;
    chain(nodes, node);
    nodes->count++;
    return node;
}

void fs_node_adopt(struct fs_nodes *nodes, struct fs_node *node, uint64_t ino)
{
    KEEL_ASSERT(ino != 0);
    if (node->ino == ino)
        return;
    if (node->ino != node->nodeid)
        unchain_adopted(nodes, node);
    node->ino = ino;
    if (ino != node->nodeid)
        chain_adopted(nodes, node);
}

static void drop_if_unheld(struct fs_nodes *nodes, struct fs_node *node)
{
    if (node->lookups > 0 || node->handles > 0 || node->refs > 0)
        return;
    KEEL_ASSERT(node->busy == 0);
    unchain(nodes, node);
    if (node->ino != node->nodeid)
        unchain_adopted(nodes, node);
    nodes->count--;
    node_free(nodes, node);
}

void fs_node_looked_up(struct fs_node *node)
{
    node->lookups++;
}

void fs_node_forget(struct fs_nodes *nodes, struct fs_node *node, uint64_t n)
{
    KEEL_ASSERT(node->lookups >= n);
    node->lookups -= n;
    drop_if_unheld(nodes, node);
}

void fs_node_opened(struct fs_node *node)
{
    node->handles++;
}

void fs_node_closed(struct fs_nodes *nodes, struct fs_node *node)
{
    KEEL_ASSERT(node->handles > 0);
    node->handles--;
    drop_if_unheld(nodes, node);
}

void fs_node_ref(struct fs_node *node)
{
    node->refs++;
}

void fs_node_unref(struct fs_nodes *nodes, struct fs_node *node)
{
    KEEL_ASSERT(node->refs > 0);
    node->refs--;
    drop_if_unheld(nodes, node);
}

size_t fs_nodes_count(const struct fs_nodes *nodes)
{
    return nodes->count;
}

void fs_nodes_each(struct fs_nodes *nodes, void (*fn)(void *arg, struct fs_node *node), void *arg)
{
    for (size_t i = 0; i < nodes->bucket_count; i++)
        for (struct fs_node *node = nodes->buckets[i]; node != NULL; node = node->next)
            fn(arg, node);
}
