/* Sift up, sift down: CLRS chapter 6, with slots kept in the items so that any of them can be
 * removed. */
#include <stdlib.h>

#include "check.h"
#include "heap.h"

static bool before(const struct keel_heap_node *a, const struct keel_heap_node *b)
{
    return a->key != b->key ? a->key < b->key : a->tie < b->tie;
}

static void place(struct keel_heap *heap, size_t i, struct keel_heap_node *node)
{
    heap->items[i] = node;
    node->slot = i + 1;
}

static void sift_up(struct keel_heap *heap, size_t i, struct keel_heap_node *node)
{
    while (i > 0 && before(node, heap->items[(i - 1) / 2])) {
        place(heap, i, heap->items[(i - 1) / 2]);
        i = (i - 1) / 2;
    }
    place(heap, i, node);
}

static void sift_down(struct keel_heap *heap, size_t i, struct keel_heap_node *node)
{
    for (;;) {
        size_t child = 2 * i + 1;

        if (child >= heap->count)
            break;
        if (child + 1 < heap->count && before(heap->items[child + 1], heap->items[child]))
            child++;
        if (!before(heap->items[child], node))
            break;
        place(heap, i, heap->items[child]);
        i = child;
    }
    place(heap, i, node);
}

void keel_heap_free(struct keel_heap *heap)
{
    free(heap->items);
    *heap = (struct keel_heap){ 0 };
}

void keel_heap_push(struct keel_heap *heap, struct keel_heap_node *node, uint64_t key, uint64_t tie)
{
    KEEL_ASSERT(node->slot == 0);
    if (heap->count == heap->capacity) {
        heap->capacity = heap->capacity ? heap->capacity * 2 : 16;
        heap->items = keel_realloc(heap->items, heap->capacity * sizeof *heap->items);
    }
    node->key = key;
    node->tie = tie;
    heap->count++;
    sift_up(heap, heap->count - 1, node);
}

void keel_heap_remove(struct keel_heap *heap, struct keel_heap_node *node)
{
    KEEL_ASSERT(node->slot != 0 && heap->items[node->slot - 1] == node);
    size_t i = node->slot - 1;
    struct keel_heap_node *last = heap->items[--heap->count];

    node->slot = 0;
    if (last == node)
        return;
    if (i > 0 && before(last, heap->items[(i - 1) / 2]))
        sift_up(heap, i, last);
    else
        sift_down(heap, i, last);
}
