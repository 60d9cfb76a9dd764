/* What is seen of changes: every node sees each revision once and in order, with the same change; a
 * value is committed once; and who only follows the changes sees the same files as who looks. */
#include <inttypes.h>
#include <stdlib.h>

#include "check.h"
#include "checks.h"
#include "hash.h"

struct sim_value *check_value(struct sim *sim, uint64_t value)
{
    uint64_t number = value & ~SIM_VALUE_MASK;

    sim->values = sim_reserve(sim->values, &sim->value_capacity, number, sizeof *sim->values);
    return &sim->values[number];
}

/* ---- the mirror of one node ---- */

/* 0 … SIM_NAMES - 1, or -1: f0 …, lease0 … */
static int name_slot(struct keel_slice name)
{
    if (name.len == 2 && name.data[0] == 'f')
        return name.data[1] - '0';
    if (name.len == 6 && name.data[0] == 'l')
        return SIM_FILES + name.data[5] - '0';
    return -1;
}

static void slot_name(int slot, char ret_name[SIM_NAME_SIZE])
{
    if (slot < SIM_FILES)
        snprintf(ret_name, SIM_NAME_SIZE, "f%d", slot);
    else
        snprintf(ret_name, SIM_NAME_SIZE, "lease%d", slot - SIM_FILES);
}

static void mirror_ino(struct sim_node *node, struct keel_slice name, uint64_t ino, uint64_t hash)
{
    int slot = name_slot(name);

    if (slot >= 0)
        node->mirror[slot] = (struct sim_mirror){ ino, hash };
}

static void mirror_content(struct sim_node *node, uint64_t ino, uint64_t hash)
{
    for (int i = 0; i < SIM_NAMES; i++)
        if (node->mirror[i].ino == ino)
            node->mirror[i].value_hash = hash;
}

static void mirror_change(struct sim_node *node, const struct keel_change *change, uint64_t hash)
{
    switch (change->kind) {
    case CHANGE_CREATE:
        mirror_ino(node, change->name, change->ino, hash);
        break;
    case CHANGE_CONTENT:
        mirror_content(node, change->ino, hash);
        break;
    case CHANGE_REMOVE:
        mirror_ino(node, change->name, 0, 0);
        break;
    case CHANGE_RENAME:
        mirror_ino(node, change->name, 0, 0);
        mirror_ino(node, change->new_name, change->ino, hash);
        break;
    case CHANGE_MKDIR:
    case CHANGE_SYMLINK:
    case CHANGE_ATTR:
    case CHANGE_RMDIR:
        break;
    }
}

/* The content of a file now, and the value that it ends with. */
static uint64_t content_hash(const struct sim_node *node, uint64_t ino, uint64_t *ret_last_value)
{
    const struct mvcc_key *key = mvcc_by_ino(node->mvcc, ino);
    struct mvcc_record record;
    struct keel_slice bytes;

    *ret_last_value = 0;
    if (key == NULL || mvcc_get(node->mvcc, key, 0, &record) != 0 ||
        mvcc_read(node->mvcc, &record.content, &bytes) != 0)
        return 0;
    if (bytes.len >= 8)
        memcpy(ret_last_value, bytes.data + bytes.len - 8, 8);
    return keel_hash64(bytes);
}

static struct sim_mirror look(const struct sim_node *node, int slot)
{
    char name[SIM_NAME_SIZE];
    uint64_t value;

    slot_name(slot, name);
    const struct mvcc_key *key =
        mvcc_child(node->mvcc, mvcc_root(node->mvcc), keel_slice_str(name));
    uint64_t ino = key != NULL ? mvcc_live_ino(key) : 0;

    return (struct sim_mirror){ ino, ino != 0 ? content_hash(node, ino, &value) : 0 };
}

void check_mirror_start(struct sim_node *node)
{
    for (int i = 0; i < SIM_NAMES; i++)
        node->mirror[i] = look(node, i);
    mvcc_read_end(node->mvcc);
}

void check_mirror(struct sim_node *node)
{
    for (int i = 0; i < SIM_NAMES; i++) {
        struct sim_mirror now = look(node, i);
        const struct sim_mirror *seen = &node->mirror[i];

        if (now.ino != seen->ino || now.value_hash != seen->value_hash)
            check_fail(node->sim,
                       "n%u: by the changes that it told, name %d is file %" PRIu64
                       ", in its state it is %" PRIu64 "%s",
                       node->slot, i, seen->ino, now.ino,
                       now.ino == seen->ino ? " with another content" : "");
    }
    mvcc_read_end(node->mvcc);
}

/* ---- the changes of all ---- */

static bool has_value(const struct sim_change *change)
{
    return change->kind == CHANGE_CREATE || change->kind == CHANGE_CONTENT;
}

/* A value that is committed a second time was applied twice. */
static void check_once(struct sim *sim, const struct sim_change *change, uint64_t revision)
{
    if (!has_value(change) || (change->value & SIM_VALUE_MASK) != SIM_VALUE_TAG)
        return;
    struct sim_value *value = check_value(sim, change->value);

    if (value->revision != 0 && value->revision != revision)
        check_fail(sim,
                   "value %" PRIu64 " was written at revision %" PRIu64 " and again at %" PRIu64,
                   change->value & ~SIM_VALUE_MASK, value->revision, revision);
    value->revision = revision;
}

static void check_order(struct sim_node *node, uint64_t revision)
{
    if (revision != node->seen_revision + 1)
        check_fail(node->sim, "n%u sees revision %" PRIu64 " after %" PRIu64, node->slot, revision,
                   node->seen_revision);
    node->seen_revision = revision;
}

static void check_same(struct sim_node *node, const struct sim_change *now, uint64_t revision)
{
    struct sim *sim = node->sim;

    sim->changes = sim_reserve(sim->changes, &sim->change_capacity, revision, sizeof *sim->changes);
    struct sim_change *known = &sim->changes[revision];

    if (known->hash == 0) {
        check_once(sim, now, revision);
        *known = *now;
        if (revision > sim->change_last)
            sim->change_last = revision;
    }
    if (known->kind != now->kind || known->ino != now->ino || known->hash != now->hash ||
        known->value_hash != now->value_hash)
        check_fail(sim, "n%u sees another change at revision %" PRIu64 " than others did",
                   node->slot, revision);
}

void check_changed(struct sim_node *node, const struct keel_change *change)
{
    struct sim_change now = { .kind = change->kind, .ino = change->ino };

    now.value_hash = content_hash(node, change->ino, &now.value);
    now.hash = 1 + (change->replaced ^ change->lease << 32 ^ keel_hash64(change->name) ^
                    keel_hash64(change->new_name));
    mirror_change(node, change, now.value_hash);
    if (node->reloading)
        return; /* what is different, not what happened */
    check_order(node, change->revision);
    check_same(node, &now, change->revision);
}

void check_reload_begins(struct sim_node *node)
{
    node->reloading = true;
}

void check_reloaded(struct sim_node *node)
{
    if (!node->reloading)
        check_fail(node->sim, "n%u reloads, and has installed nothing", node->slot);
    node->reloading = false;
    if (mvcc_revision(node->mvcc) < node->seen_revision)
        check_fail(node->sim, "n%u goes back from revision %" PRIu64 " to %" PRIu64, node->slot,
                   node->seen_revision, mvcc_revision(node->mvcc));
    node->seen_revision = mvcc_revision(node->mvcc);
    check_mirror(node);
}

bool check_value_at(struct sim *sim, uint64_t ino, uint64_t revision, uint64_t *ret_hash)
{
    for (uint64_t r = revision < sim->change_last ? revision : sim->change_last; r > 0; r--) {
        const struct sim_change *change = &sim->changes[r];

        if (change->hash == 0 || change->ino != ino)
            continue;
        *ret_hash = change->value_hash;
        return change->kind != CHANGE_REMOVE;
    }
    return false;
}

void check_wrote(struct sim *sim, uint64_t revision, uint64_t value)
{
    const struct sim_change *change = &sim->changes[revision];

    if (revision > sim->change_last || change->hash == 0 || !has_value(change) ||
        change->value != (SIM_VALUE_TAG | value))
        check_fail(sim,
                   "value %" PRIu64 " was acknowledged for revision %" PRIu64
                   ", which is another change",
                   value, revision);
}
