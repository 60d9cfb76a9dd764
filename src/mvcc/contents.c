/* Shared content, counted: see contents.h. */
#include <stdlib.h>

#include "check.h"
#include "mvcc/contents.h"

enum { CAPACITY_MIN = 16 };

static size_t home_of(const struct contents *c, uint64_t main, uint32_t sub)
{
    /* Fibonacci hashing (Knuth, vol. 3, 6.4). */
    uint64_t hash = (main + ((uint64_t)sub << 32)) * UINT64_C(0x9e3779b97f4a7c15);

    return (size_t)(hash >> (64 - __builtin_ctzll(c->capacity)));
}

/* The entry of that content, or the free slot where it would be. */
static struct contents_entry *find(const struct contents *c, struct mvcc_revision at)
{
    size_t i = home_of(c, at.main, at.sub);

    while (c->slots[i].main != 0 && (c->slots[i].main != at.main || c->slots[i].sub != at.sub))
        i = (i + 1) & (c->capacity - 1);
    return &c->slots[i];
}

static void resize(struct contents *c, size_t capacity)
{
    struct contents old = *c;

    c->capacity = capacity;
    c->slots = keel_calloc(capacity, sizeof *c->slots);
    for (size_t i = 0; i < old.capacity; i++)
        if (old.slots[i].main != 0)
            *find(c, (struct mvcc_revision){ old.slots[i].main, old.slots[i].sub }) = old.slots[i];
    free(old.slots);
}

static struct contents_entry *find_or_add(struct contents *c, struct mvcc_revision at,
                                          uint32_t records)
{
    if (c->count >= c->capacity / 4 * 3)
        resize(c, c->capacity ? c->capacity * 2 : CAPACITY_MIN);
    struct contents_entry *entry = find(c, at);

    if (entry->main == 0) {
        *entry = (struct contents_entry){ at.main, at.sub, records };
        c->count++;
    }
    return entry;
}

/* Closes the gap: what was pushed past the freed slot moves back (Knuth, algorithm 6.4R). */
static void remove_entry(struct contents *c, struct contents_entry *entry)
{
    size_t mask = c->capacity - 1, gap = (size_t)(entry - c->slots);

    for (size_t i = (gap + 1) & mask; c->slots[i].main != 0; i = (i + 1) & mask) {
        size_t home = home_of(c, c->slots[i].main, c->slots[i].sub);

        if (((i - home) & mask) >= ((i - gap) & mask)) {
            c->slots[gap] = c->slots[i];
            gap = i;
        }
    }
    c->slots[gap] = (struct contents_entry){ 0 };
    c->count--;
    if (c->capacity > CAPACITY_MIN && c->count < c->capacity / 8)
        resize(c, c->capacity / 2);
}

void contents_share(struct contents *c, struct mvcc_revision at)
{
    KEEL_ASSERT(at.main > 0);
    struct contents_entry *entry = find_or_add(c, at, 1);

    KEEL_ASSERT(entry->records < UINT32_MAX);
    entry->records++;
}

bool contents_drop(struct contents *c, struct mvcc_revision at)
{
    struct contents_entry *entry = c->capacity > 0 ? find(c, at) : NULL;

    if (entry == NULL || entry->main == 0)
        return true;
    KEEL_ASSERT(entry->records > 1);
    if (--entry->records == 1)
        remove_entry(c, entry);
    return false;
}

bool contents_has(const struct contents *c, struct mvcc_revision at)
{
    return c->capacity > 0 && find(c, at)->main != 0;
}

void contents_adopt(struct contents *c, struct mvcc_revision at)
{
    KEEL_ASSERT(!contents_has(c, at));
    find_or_add(c, at, 0);
}

void contents_settle(struct contents *c)
{
    struct contents settled = { 0 };

    for (size_t i = 0; i < c->capacity; i++)
        if (c->slots[i].records > 1)
            find_or_add(&settled, (struct mvcc_revision){ c->slots[i].main, c->slots[i].sub },
                        c->slots[i].records);
    contents_free(c);
    *c = settled;
}

void contents_free(struct contents *c)
{
    free(c->slots);
    *c = (struct contents){ 0 };
}
