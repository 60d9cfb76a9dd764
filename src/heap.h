/* An intrusive binary min-heap by a 64-bit key: deadlines, expiries, simulated events. The item
 * embeds a keel_heap_node; the heap owns only its array. Equal keys come out in the order of `tie`
 * (lower first). */
#ifndef KEEL_HEAP_H
#define KEEL_HEAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct keel_heap_node {
    uint64_t key;
    uint64_t tie;
    size_t slot; /* index + 1 in the heap; 0 when in none */
};

struct keel_heap { /* all zeroes is an empty heap */
    struct keel_heap_node **items;
    size_t count, capacity;
};

void keel_heap_free(struct keel_heap *heap);
void keel_heap_push(struct keel_heap *heap, struct keel_heap_node *node, uint64_t key,
                    uint64_t tie);
void keel_heap_remove(struct keel_heap *heap, struct keel_heap_node *node);

/* The smallest, or NULL. */
static inline struct keel_heap_node *keel_heap_top(const struct keel_heap *heap)
{
    return heap->count ? heap->items[0] : NULL;
}

static inline bool keel_heap_contains(const struct keel_heap_node *node)
{
    return node->slot != 0;
}

#endif
