/* Which lease an inode number belongs to, and which numbers a lease has: one hash table for the
 * first question, one sorted array a lease for the second. */
#include <stdlib.h>

#include "check.h"
#include "lease/table.h"

/* ---- the hash table ---- */

static size_t home_slot(const struct lease_table *t, uint64_t ino)
{
    /* Fibonacci hashing (Knuth, vol. 3, 6.4): consecutive numbers spread evenly. */
    int shift = 64 - __builtin_ctzll(t->owner_capacity);

    return (size_t)(ino * UINT64_C(0x9e3779b97f4a7c15) >> shift);
}

/* The slot of the number, or the free one where it would go. */
static size_t find_slot(const struct lease_table *t, uint64_t ino)
{
    size_t i = home_slot(t, ino);

    while (t->owners[i].ino != 0 && t->owners[i].ino != ino)
        i = (i + 1) & (t->owner_capacity - 1);
    return i;
}

struct lease *lease_owner_of(const struct lease_table *t, uint64_t ino)
{
    return t->owner_capacity ? t->owners[find_slot(t, ino)].lease : NULL;
}

static void owners_grow(struct lease_table *t)
{
    struct lease_owner *old = t->owners;
    size_t old_capacity = t->owner_capacity;

    t->owner_capacity = old_capacity ? old_capacity * 2 : 64;
    t->owners = keel_calloc(t->owner_capacity, sizeof *t->owners);
    for (size_t i = 0; i < old_capacity; i++)
        if (old[i].ino != 0)
            t->owners[find_slot(t, old[i].ino)] = old[i];
    free(old);
}

static void owners_add(struct lease_table *t, struct lease *lease, uint64_t ino)
{
    if (t->owner_count >= t->owner_capacity / 4 * 3)
        owners_grow(t);
    struct lease_owner *slot = &t->owners[find_slot(t, ino)];

    KEEL_ASSERT(ino != 0 && slot->ino == 0);
    *slot = (struct lease_owner){ ino, lease };
    t->owner_count++;
}

/* Moves back what was pushed past the freed slot (Knuth, algorithm 6.4R). */
static void owners_remove(struct lease_table *t, uint64_t ino)
{
    size_t mask = t->owner_capacity - 1;
    size_t gap = find_slot(t, ino);

    for (size_t i = (gap + 1) & mask; t->owners[i].ino != 0; i = (i + 1) & mask) {
        size_t home = home_slot(t, t->owners[i].ino);

        if (((i - home) & mask) >= ((i - gap) & mask)) {
            t->owners[gap] = t->owners[i];
            gap = i;
        }
    }
    t->owners[gap] = (struct lease_owner){ 0 };
    t->owner_count--;
}

/* ---- a lease's own numbers ---- */

static size_t inos_find(const struct lease *lease, uint64_t ino)
{
    size_t low = 0, high = lease->ino_count;

    while (low < high) {
        size_t middle = low + (high - low) / 2;

        if (lease->inos[middle] < ino)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

void lease_set_add(struct lease_table *t, struct lease *lease, uint64_t ino)
{
    owners_add(t, lease, ino);
    if (lease->ino_count == lease->ino_capacity) {
        lease->ino_capacity = lease->ino_capacity ? lease->ino_capacity * 2 : 4;
        lease->inos = keel_realloc(lease->inos, lease->ino_capacity * sizeof *lease->inos);
    }
    size_t at = inos_find(lease, ino);

    memmove(&lease->inos[at + 1], &lease->inos[at], (lease->ino_count - at) * sizeof ino);
    lease->inos[at] = ino;
    lease->ino_count++;
}

void lease_set_remove(struct lease_table *t, struct lease *lease, uint64_t ino)
{
    size_t at = inos_find(lease, ino);

    KEEL_ASSERT(at < lease->ino_count && lease->inos[at] == ino);
    owners_remove(t, ino);
    lease->ino_count--;
    memmove(&lease->inos[at], &lease->inos[at + 1], (lease->ino_count - at) * sizeof ino);
}

void lease_set_clear(struct lease_table *t, struct lease *lease)
{
    for (size_t i = 0; i < lease->ino_count; i++)
        owners_remove(t, lease->inos[i]);
    free(lease->inos);
    lease->inos = NULL;
    lease->ino_count = lease->ino_capacity = 0;
}
