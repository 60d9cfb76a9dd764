/* A bump allocator: everything allocated from it goes at once. Unpacking a protobuf message into an
 * arena is an order of magnitude faster than into malloc, and leaves nothing to free on an error
 * path. */
#ifndef KEEL_ARENA_H
#define KEEL_ARENA_H

#include <stddef.h>

#include <protobuf-c/protobuf-c.h>

struct keel_arena {
    ProtobufCAllocator allocator; /* hand this to unpack; its free does nothing */
    struct arena_block *blocks;   /* newest first */
    size_t used;                  /* in the newest block */
};

void keel_arena_init(struct keel_arena *arena);

/* Zeroed memory, aligned for any type, valid until reset. */
void *keel_arena_alloc(struct keel_arena *arena, size_t size);

/* Drops everything but keeps one block for the next use. */
void keel_arena_reset(struct keel_arena *arena);
void keel_arena_free(struct keel_arena *arena);

#endif
