/* Files and their order: see store_defrag.h. */
#include "store_defrag.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "check.h"
#include "err.h"
#include "store_install.h"

#define STORE "store"
#define STORE_NEW "store.new"
#define STATE "state" /* in KV_META: log index, revision, state hash (docs/format-store.md) */

static const uint64_t ROOM_LEFT = 64 << 20; /* of the disk, for the log and the store itself */

void (*store_defrag_step)(const char *step);

static void step(const char *name)
{
    if (store_defrag_step != NULL)
        store_defrag_step(name);
}

/* ---- copy ---- */

bool store_defrag_has_room(uint64_t used)
{
    struct statvfs space;

    return statvfs(".", &space) == 0 &&
           (uint64_t)space.f_bavail * space.f_frsize >= used + used / 4 + ROOM_LEFT;
}

static int may_go_on(void *arg)
{
    const atomic_bool *give_up = arg;

    step("piece read");
    if (atomic_load(give_up))
        return KEEL_E_CANCELLED;
    return store_defrag_has_room(0) ? 0 : KEEL_E_DISKFULL;
}

static int fill(struct kv *from, struct kv *kv, const atomic_bool *give_up, char *ret_why,
                size_t why_size)
{
    int err = kv_copy(from, kv, may_go_on, (void *)(uintptr_t)give_up);

    if (err != 0)
        snprintf(ret_why, why_size, "cannot copy the store to " STORE_NEW ": %s",
                 keel_strerror(err));
    return err;
}

int store_defrag_copy(struct kv *from, uint64_t map_bytes, const atomic_bool *give_up,
                      struct kv **ret_kv, char *ret_why, size_t why_size)
{
    struct kv *kv;
    char unsaid[1];
    int err = store_new_remove(ret_why, why_size);

    if (err == 0)
        err = kv_lmdb_open(STORE_NEW, map_bytes, &kv, ret_why, why_size);
    if (err != 0) {
        store_new_remove(unsaid, sizeof unsaid);
        return err;
    }
    step("opened");
    err = fill(from, kv, give_up, ret_why, why_size);
    step("copied");
    if (err != 0) {
        store_defrag_remove(kv, unsaid, sizeof unsaid);
        return err;
    }
    *ret_kv = kv;
    return 0;
}

int store_defrag_catch_up(struct kv *from, struct kv *kv, const struct kv_batch *batches,
                          char *ret_why, size_t why_size)
{
    int err = kv_follow(from, kv, batches);

    if (err != 0)
        snprintf(ret_why, why_size, "cannot write to " STORE_NEW ": %s", keel_strerror(err));
    step("caught up");
    return err;
}

/* ---- switch ---- */

/* Empty when nothing has ever been written. */
static struct keel_slice state_of(struct kv *kv, struct kv_read *read)
{
    struct keel_slice state;

    return kv->ops->get(read, KV_META, keel_slice_str(STATE), &state) == 0 ? state
                                                                           : keel_slice_of(NULL, 0);
}

static bool is_same_state(struct kv *a, struct kv *b)
{
    struct kv_read *read_a = a->ops->read_begin(a), *read_b = b->ops->read_begin(b);
    bool same = keel_slice_equal(state_of(a, read_a), state_of(b, read_b));

    a->ops->read_end(read_a);
    b->ops->read_end(read_b);
    return same;
}

static void sync_exchange(void)
{
    int fd = open(".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    if (fd < 0 || fsync(fd) != 0)
        keel_fatal("cannot sync the data directory: %s; check the disk before the node is started "
                   "again",
                   strerror(errno));
    close(fd);
}

int store_defrag_switch(struct kv *old, struct kv *kv, char *ret_why, size_t why_size)
{
    if (!is_same_state(old, kv)) {
        snprintf(ret_why, why_size, "the copy is not what the store is");
        return KEEL_E_CORRUPT;
    }
    step("compared");
    if (renameat2(AT_FDCWD, STORE, AT_FDCWD, STORE_NEW, RENAME_EXCHANGE) != 0) {
        snprintf(ret_why, why_size, "cannot exchange " STORE " and " STORE_NEW ": %s",
                 strerror(errno));
        return KEEL_E_IO;
    }
    step("exchanged");
    sync_exchange();
    step("exchange synced");
    return 0;
}

/* A map keeps the space of a file that has no name any more: so it is closed first. */
int store_defrag_remove(struct kv *kv, char *ret_why, size_t why_size)
{
    kv->ops->close(kv);
    step("closed");
    int err = store_new_remove(ret_why, why_size);

    step("removed");
    return err;
}
