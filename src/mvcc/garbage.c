/* The queue of garbage: see garbage.h. When something becomes garbage is for index.c to say, when
 * it goes for compact.c. */
#include <stdlib.h>

#include "check.h"
#include "mvcc/garbage.h"

enum { BLOCK_KEYS = 511 }; /* with the link, a page */

struct garbage_block {
    struct garbage_block *next;
    struct mvcc_key *keys[BLOCK_KEYS];
};

static void add_block(struct garbage *g)
{
    struct garbage_block *block = keel_malloc(sizeof *block);

    block->next = NULL;
    if (g->newest != NULL)
        g->newest->next = block;
    else
        g->oldest = block;
    g->newest = block;
    g->end = 0;
}

void garbage_push(struct garbage *g, struct mvcc_key *key)
{
    if (g->newest == NULL || g->end == BLOCK_KEYS)
        add_block(g);
    g->newest->keys[g->end++] = key;
    g->count++;
}

struct mvcc_key *garbage_first(const struct garbage *g)
{
    return g->count > 0 ? g->oldest->keys[g->first] : NULL;
}

struct mvcc_key *garbage_pop(struct garbage *g)
{
    KEEL_ASSERT(g->count > 0);
    struct garbage_block *block = g->oldest;
    struct mvcc_key *key = block->keys[g->first++];

    if (--g->count == 0) {
        KEEL_ASSERT(block == g->newest && g->first == g->end);
        g->first = g->end = 0;
    } else if (g->first == BLOCK_KEYS) {
        g->oldest = block->next;
        g->first = 0;
        free(block);
    }
    return key;
}

void garbage_free(struct garbage *g)
{
    while (g->oldest != NULL) {
        struct garbage_block *block = g->oldest;

        g->oldest = block->next;
        free(block);
    }
    *g = (struct garbage){ 0 };
}
