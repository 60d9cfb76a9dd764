/* The part of the log that is in memory: everything not yet applied or not yet durable, and below
 * that at most KEEL_TAIL_BYTES and KEEL_TAIL_ENTRIES for followers that lag a little. What is older
 * is read from the WAL by fetches.
 *
 * One growing array; `start` moves up as entries leave at the front, and the rest is moved down
 * only when the array is full and at least half of it is free, so that append and trim are O(1)
 * amortized, and any run of entries is contiguous (raft_ready hands out a pointer into it). An
 * example, after entries 1..3 have left:
 *
 *     items   [  -  -  -  4  5  6  7  - ]     start 3, count 4, capacity 8
 *     base    (index 3, its term)             what an append of entry 4 names as its predecessor
 *     settled 5                               applied and durable up to here: 4 and 5 may leave, 6
 * may not
 */
#ifndef RAFT_TAIL_H
#define RAFT_TAIL_H

#include "raft/types.h"

struct raft_tail {
    struct raft_entry *items;
    size_t start, count, capacity;
    uint64_t base_index, base_term;
    uint64_t settled;
    size_t settled_bytes; /* of the entries base_index + 1 … settled */
    size_t bytes;         /* of all */
    size_t max_bytes;     /* of settled entries that are kept, … */
    uint64_t max_entries; /* … and how many of them */
};

void raft_tail_init(struct raft_tail *tail, uint64_t base_index, uint64_t base_term,
                    size_t max_bytes, uint64_t max_entries);
/* Everything goes; the next entry is base_index + 1. */
void raft_tail_reset(struct raft_tail *tail, uint64_t base_index, uint64_t base_term);
void raft_tail_free(struct raft_tail *tail);

static inline uint64_t raft_tail_last(const struct raft_tail *tail)
{
    return tail->base_index + tail->count;
}

/* Bytes of the entries that are not applied, or not durable. */
static inline size_t raft_tail_unsettled_bytes(const struct raft_tail *tail)
{
    return tail->bytes - tail->settled_bytes;
}

uint64_t raft_tail_last_term(const struct raft_tail *tail);

/* Whether the term of an index is known (base_index … last), and if so, which it is. */
bool raft_tail_term(const struct raft_tail *tail, uint64_t index, uint64_t *ret_term);

/* The entry at base_index < index <= last; those after it follow in the array. */
const struct raft_entry *raft_tail_at(const struct raft_tail *tail, uint64_t index);

/* Appends the entry last + 1; takes its reference. */
void raft_tail_append(struct raft_tail *tail, struct raft_entry entry_take);

/* Drops every entry from an index on; it lies above settled. */
void raft_tail_cut(struct raft_tail *tail, uint64_t from);

/* Entries up to index are applied and durable: they may leave at the front. */
void raft_tail_settle(struct raft_tail *tail, uint64_t index);

/* The largest i <= index whose term is at most `term`, but not below `floor` (floor >= base_index):
 * where two logs can agree at best, given what the other one has there. */
uint64_t raft_tail_agree(const struct raft_tail *tail, uint64_t index, uint64_t term,
                         uint64_t floor);

#endif
