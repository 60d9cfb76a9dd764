/* Remembered walks: sets of four by a hash of the thread id; the oldest of a full set makes room.
 */
#include <stdlib.h>

#include "check.h"
#include "fs/walk.h"
#include "keel_limits.h"

enum { WAYS = 4, SETS = KEEL_WALKS_MAX / WAYS };

struct walk_step {
    const struct mvcc_key *key;
    uint64_t ino;
};

struct walk {
    pid_t pid; /* 0: free */
    uint32_t step_count;
    struct walk_step steps[WALK_STEPS_MAX];
    uint64_t nodeid;
    uint64_t barrier_us;
    uint64_t answered_us;
    uint64_t looked_nodeid, looked_us; /* its last walk ended with a GETATTR of that node then */
    uint64_t stale_us;                 /* its last walk ended in ESTALE then; 0: it did not */
};

struct fs_walks {
    struct walk sets[SETS][WAYS];
};

struct fs_walks *fs_walks_new(void)
{
    return keel_calloc(1, sizeof(struct fs_walks));
}

struct fs_walks *fs_walks_free(struct fs_walks *walks)
{
    free(walks);
    return NULL;
}

static size_t set_of(pid_t pid)
{
    return (size_t)(((uint32_t)pid * UINT32_C(2654435769)) >> 16) % SETS;
}

static struct walk *find(const struct fs_walks *walks, pid_t pid)
{
    const struct walk *set = walks->sets[set_of(pid)];

    for (size_t i = 0; i < WAYS; i++)
        if (set[i].pid == pid)
            return (struct walk *)&set[i];
    return NULL;
}

static bool is_careful(const struct walk *walk, uint64_t now_us)
{
    return walk->stale_us != 0 && now_us - walk->stale_us <= WALK_CAREFUL_US;
}

bool fs_walk_is_careful(const struct fs_walks *walks, pid_t pid, uint64_t now_us)
{
    const struct walk *walk = pid != 0 ? find(walks, pid) : NULL;

    return pid == 0 || (walk != NULL && is_careful(walk, now_us));
}

bool fs_walk_continues(const struct fs_walks *walks, pid_t pid, uint64_t nodeid, uint64_t now_us,
                       uint64_t *ret_barrier_us)
{
    const struct walk *walk = pid != 0 ? find(walks, pid) : NULL;

    if (walk == NULL || walk->nodeid != nodeid || is_careful(walk, now_us) ||
        now_us - walk->answered_us > WALK_GAP_US || now_us - walk->barrier_us > WALK_AGE_US)
        return false;
    *ret_barrier_us = walk->barrier_us;
    return true;
}

/* The thread's own place, a free one, or that of the oldest. */
static struct walk *place(struct fs_walks *walks, pid_t pid)
{
    struct walk *set = walks->sets[set_of(pid)], *best = find(walks, pid);

    if (best != NULL)
        return best;
    best = set;
    for (size_t i = 0; i < WAYS; i++) {
        if (set[i].pid == 0)
            return &set[i];
        if (set[i].answered_us < best->answered_us)
            best = &set[i];
    }
    return best;
}

static struct walk *claim(struct fs_walks *walks, pid_t pid)
{
    struct walk *walk = place(walks, pid);

    if (walk->pid != pid)
        *walk = (struct walk){ .pid = pid };
    return walk;
}

void fs_walk_stale(struct fs_walks *walks, pid_t pid, uint64_t now_us)
{
    if (pid == 0)
        return;
    struct walk *walk = claim(walks, pid);

    walk->nodeid = 0;
    walk->answered_us = walk->stale_us = now_us;
}

void fs_walk_step(struct fs_walks *walks, pid_t pid, uint64_t nodeid, const struct mvcc_key *key,
                  uint64_t ino, uint64_t barrier_us, uint64_t now_us)
{
    if (pid == 0)
        return;
    struct walk *walk = claim(walks, pid);

    if (walk->barrier_us != barrier_us)
        walk->step_count = 0;
    walk->nodeid = nodeid;
    walk->looked_nodeid = 0; /* another walk, or another step of it */
    walk->barrier_us = barrier_us;
    walk->answered_us = now_us;
    if (key == NULL)
        return;
    if (walk->step_count == WALK_STEPS_MAX)
        walk->nodeid = 0; /* so deep a walk begins again */
    else
        walk->steps[walk->step_count++] = (struct walk_step){ key, ino };
}

/* The keys are only compared: one that has gone in between is nobody's. */
bool fs_walk_holds(const struct fs_walks *walks, const struct mvcc *m, pid_t pid, uint64_t nodeid)
{
    const struct walk *walk = pid != 0 ? find(walks, pid) : NULL;

    if (walk == NULL || walk->nodeid != nodeid)
        return false;
    for (uint32_t i = 0; i < walk->step_count; i++)
        if (mvcc_by_ino(m, walk->steps[i].ino) != walk->steps[i].key)
            return false;
    return true;
}

void fs_walk_looked(struct fs_walks *walks, pid_t pid, uint64_t nodeid, uint64_t now_us)
{
    if (pid == 0)
        return;
    struct walk *walk = claim(walks, pid);

    walk->looked_nodeid = nodeid;
    walk->answered_us = walk->looked_us = now_us;
}

bool fs_walk_has_looked(const struct fs_walks *walks, pid_t pid, uint64_t nodeid, uint64_t now_us)
{
    const struct walk *walk = pid != 0 ? find(walks, pid) : NULL;

    return walk != NULL && walk->looked_nodeid == nodeid &&
           now_us - walk->looked_us <= WALK_OPEN_US;
}

void fs_walk_end(struct fs_walks *walks, pid_t pid)
{
    struct walk *walk = pid != 0 ? find(walks, pid) : NULL;

    if (walk != NULL)
        walk->nodeid = 0; /* nothing goes on from there */
}
