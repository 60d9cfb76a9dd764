/* Blocks of at least 16 KiB; a larger request gets a block of its own. */
#include <stdalign.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "arena.h"
#include "check.h"

enum { ARENA_BLOCK_SIZE = 16 << 10 };

struct arena_block {
    struct arena_block *next;
    size_t capacity;
    alignas(max_align_t) uint8_t data[];
};

static void *arena_pb_alloc(void *arena, size_t size)
{
    return keel_arena_alloc(arena, size);
}

static void arena_pb_free(void *arena, void *ptr)
{
    (void)arena;
    (void)ptr;
}

void keel_arena_init(struct keel_arena *arena)
{
    *arena = (struct keel_arena){
        .allocator = { .alloc = arena_pb_alloc, .free = arena_pb_free, .allocator_data = arena },
    };
}

void *keel_arena_alloc(struct keel_arena *arena, size_t size)
{
    size_t rounded = (size + alignof(max_align_t) - 1) & ~(alignof(max_align_t) - 1);
    struct arena_block *block = arena->blocks;

    KEEL_ASSERT(rounded >= size);
    if (block == NULL || block->capacity - arena->used < rounded) {
        size_t capacity = rounded > ARENA_BLOCK_SIZE ? rounded : ARENA_BLOCK_SIZE;

        block = keel_malloc(sizeof *block + capacity);
        block->next = arena->blocks;
        block->capacity = capacity;
        arena->blocks = block;
        arena->used = 0;
    }
    void *p = block->data + arena->used;

    arena->used += rounded;
    return memset(p, 0, rounded);
}

static void arena_free_from(struct arena_block *block)
{
    while (block != NULL) {
        struct arena_block *next = block->next;

        free(block);
        block = next;
    }
}

void keel_arena_reset(struct keel_arena *arena)
{
    struct arena_block *block = arena->blocks;

    if (block == NULL)
        return;
    arena_free_from(block->next);
    block->next = NULL;
    arena->used = 0;
    if (block->capacity > ARENA_BLOCK_SIZE) {
        free(block);
        arena->blocks = NULL;
    }
}

void keel_arena_free(struct keel_arena *arena)
{
    arena_free_from(arena->blocks);
    arena->blocks = NULL;
    arena->used = 0;
}
