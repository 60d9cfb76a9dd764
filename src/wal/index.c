/* Where each entry of the log is: eight bytes an entry, in memory only. What is dropped at the
 * front (released) and at the end (cut) leaves with one step each, because an entry lies behind the
 * one before it: it was written later, or it would have cut it off. */
#include <stdlib.h>

#include "check.h"
#include "wal/internal.h"

enum { SPARE_KEPT = 4096 };

uint64_t wal_index_last(const struct wal_index *x)
{
    return x->base + x->count;
}

uint64_t wal_index_first(const struct wal_index *x)
{
    if (x->base_term_known)
        return x->base + 1;
    return x->count == 0 ? x->base + 1 : x->base + 2;
}

/* An entry cuts off what stood at its own index and above:
 *
 *   positions  1@64 2@144 3@224        entry 2 comes again, at 304
 *   positions  1@64 2@304              3 is gone, as raft wants it */
void wal_index_set(struct wal_index *x, uint64_t index, uint64_t epoch, uint64_t offset)
{
    KEEL_ASSERT(index > x->base && index <= wal_index_last(x) + 1);
    KEEL_ASSERT(offset % 8 == 0 && offset / 8 <= UINT32_MAX);
    KEEL_ASSERT(epoch >= x->origin && epoch - x->origin <= UINT32_MAX);

    size_t i = (size_t)(index - x->base - 1);

    if (i >= x->capacity) {
        x->capacity = x->capacity ? 2 * x->capacity : 256;
        x->at = keel_realloc(x->at, x->capacity * sizeof x->at[0]);
    }
    x->at[i] = (struct wal_position){ (uint32_t)(epoch - x->origin), (uint32_t)(offset / 8) };
    x->count = i + 1;
}

void wal_index_reset(struct wal_index *x, uint64_t index, uint64_t term, uint64_t epoch)
{
    wal_index_rebase(x, index);
    x->base_term = term;
    x->base_term_known = true;
    x->mark_epoch = epoch;
}

void wal_index_rebase(struct wal_index *x, uint64_t base)
{
    x->count = 0;
    x->base = base;
    x->base_term = 0;
    x->base_term_known = base == 0;
}

/* Memory follows the log's length, but not every little step of it. */
static void give_back_memory(struct wal_index *x)
{
    if (x->capacity <= SPARE_KEPT || x->count > x->capacity / 4)
        return;
    x->capacity = x->count > SPARE_KEPT / 2 ? 2 * x->count : SPARE_KEPT;
    x->at = keel_realloc(x->at, x->capacity * sizeof x->at[0]);
}

void wal_index_trim(struct wal_index *x, uint64_t oldest_epoch)
{
    size_t gone = 0;

    while (gone < x->count && x->origin + x->at[gone].segment < oldest_epoch)
        gone++;
    if (gone > 0) {
        memmove(x->at, x->at + gone, (x->count - gone) * sizeof x->at[0]);
        x->count -= gone;
        x->base += gone;
    }
    if (x->mark_epoch < oldest_epoch)
        x->mark_epoch = 0;
    if (gone > 0 || x->mark_epoch == 0) {
        x->base_term = 0;
        x->base_term_known = x->base == 0;
    }
    give_back_memory(x);
}

uint64_t wal_index_epoch(const struct wal_index *x, uint64_t index)
{
    return x->origin + x->at[index - x->base - 1].segment;
}

uint64_t wal_index_offset(const struct wal_index *x, uint64_t index)
{
    return (uint64_t)x->at[index - x->base - 1].slot * 8;
}

uint64_t wal_index_needs(const struct wal_index *x, uint64_t index)
{
    uint64_t last = wal_index_last(x);

    if (x->count == 0)
        return x->mark_epoch;
    if (index >= last)
        index = last - 1;
    return wal_index_epoch(x, (index > x->base ? index : x->base) + 1);
}

void wal_index_free(struct wal_index *x)
{
    free(x->at);
    *x = (struct wal_index){ 0 };
}
