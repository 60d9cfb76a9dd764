/* The in-memory tail of the log. */
#include <stdlib.h>

#include "check.h"
#include "raft/tail.h"

enum { TAIL_CAPACITY_MIN = 64 };

void raft_tail_init(struct raft_tail *tail, uint64_t base_index, uint64_t base_term,
                    size_t max_bytes, uint64_t max_entries)
{
    *tail = (struct raft_tail){
        .base_index = base_index,
        .base_term = base_term,
        .settled = base_index,
        .max_bytes = max_bytes,
        .max_entries = max_entries,
    };
}

void raft_tail_reset(struct raft_tail *tail, uint64_t base_index, uint64_t base_term)
{
    size_t max_bytes = tail->max_bytes;
    uint64_t max_entries = tail->max_entries;

    raft_tail_free(tail);
    raft_tail_init(tail, base_index, base_term, max_bytes, max_entries);
}

void raft_tail_free(struct raft_tail *tail)
{
    for (size_t i = 0; i < tail->count; i++)
        keel_buf_free(tail->items[tail->start + i].data);
    free(tail->items);
    *tail = (struct raft_tail){ 0 };
}

uint64_t raft_tail_last_term(const struct raft_tail *tail)
{
    return tail->count ? tail->items[tail->start + tail->count - 1].term : tail->base_term;
}

bool raft_tail_term(const struct raft_tail *tail, uint64_t index, uint64_t *ret_term)
{
    if (index < tail->base_index || index > raft_tail_last(tail))
        return false;
    *ret_term = index == tail->base_index ? tail->base_term : raft_tail_at(tail, index)->term;
    return true;
}

const struct raft_entry *raft_tail_at(const struct raft_tail *tail, uint64_t index)
{
    KEEL_ASSERT(index > tail->base_index && index <= raft_tail_last(tail));
    return &tail->items[tail->start + (size_t)(index - tail->base_index - 1)];
}

static void make_room(struct raft_tail *tail)
{
    if (tail->start + tail->count < tail->capacity)
        return;
    if (tail->start > 0 && tail->start >= tail->capacity / 2) {
        memmove(tail->items, tail->items + tail->start, tail->count * sizeof *tail->items);
        tail->start = 0;
        return;
    }
    tail->capacity = tail->capacity ? tail->capacity * 2 : TAIL_CAPACITY_MIN;
    tail->items = keel_realloc(tail->items, tail->capacity * sizeof *tail->items);
}

void raft_tail_append(struct raft_tail *tail, struct raft_entry entry_take)
{
    KEEL_ASSERT(entry_take.index == raft_tail_last(tail) + 1);
    KEEL_ASSERT(entry_take.term >= raft_tail_last_term(tail));
    make_room(tail);
    tail->items[tail->start + tail->count++] = entry_take;
    tail->bytes += raft_entry_bytes(&entry_take);
}

void raft_tail_cut(struct raft_tail *tail, uint64_t from)
{
    KEEL_ASSERT(from > tail->settled);
    while (raft_tail_last(tail) >= from) {
        tail->count--;
        tail->bytes -= raft_entry_bytes(&tail->items[tail->start + tail->count]);
        keel_buf_free(tail->items[tail->start + tail->count].data);
    }
}

static void drop_front(struct raft_tail *tail)
{
    struct raft_entry *front = &tail->items[tail->start];

    tail->settled_bytes -= raft_entry_bytes(front);
    tail->bytes -= raft_entry_bytes(front);
    tail->base_index = front->index;
    tail->base_term = front->term;
    keel_buf_free(front->data);
    tail->start++;
    tail->count--;
}

void raft_tail_settle(struct raft_tail *tail, uint64_t index)
{
    KEEL_ASSERT(index <= raft_tail_last(tail));
    while (tail->settled < index) {
        tail->settled++;
        tail->settled_bytes += raft_entry_bytes(raft_tail_at(tail, tail->settled));
    }
    while (tail->settled_bytes > tail->max_bytes ||
           tail->settled - tail->base_index > tail->max_entries)
        drop_front(tail);
}

uint64_t raft_tail_agree(const struct raft_tail *tail, uint64_t index, uint64_t term,
                         uint64_t floor)
{
    uint64_t here;

    KEEL_ASSERT(floor >= tail->base_index);
    while (index > floor && raft_tail_term(tail, index, &here) && here > term)
        index--;
    return index;
}
