/* What apply has changed, as far as this mount has to know: files that go while they are known
 * here, and names that come to be where this node has a file that is not committed yet. Everything
 * else is asked for anew each time; that is why a snapshot in the place of the whole state is no
 * more to it than the changes that it comes to. */
#include <string.h>

#include "check.h"
#include "fs/fs_internal.h"

/* Also of a file that the kernel only knows: it may be about to be opened. */
static void gone(struct fs *fs, uint64_t ino, const struct mvcc_record *before)
{
    struct fs_node *node = fs_node_by_ino(fs->nodes, ino);

    if (node == NULL || node->orphan)
        return;
    if (node->handles > 0 || (node->lookups > 0 && before->kind != MVCC_DIR))
        orphan_make(fs, node, before);
}

/* A file has come to a name that one was opened under here: it is the same file from now on. */
static void come(struct fs *fs, uint64_t parent, struct keel_slice name, uint64_t ino)
{
    struct fs_creation *creation = creation_find(fs, parent, name);

    if (creation != NULL)
        creation_settled(fs, creation, ino);
}

/* ---- files that are lost here ----
 *
 * When its lease is lost here, a file is as good as gone: this node's watchers are told so before
 * the cluster, which cannot be reached perhaps, gives the lease to somebody else. When the removal
 * comes then, it is no news. Until it comes, the file counts as gone for what the poker does; any
 * other change shows that it lives on. */

bool change_is_lost(const struct fs *fs, uint64_t ino)
{
    for (size_t i = 0; i < fs->lost_count; i++)
        if (fs->lost[i] == ino)
            return true;
    return false;
}

static void lost_forget(struct fs *fs, uint64_t ino)
{
    for (size_t i = 0; i < fs->lost_count; i++) {
        if (fs->lost[i] != ino)
            continue;
        memmove(&fs->lost[i], &fs->lost[i + 1], (--fs->lost_count - i) * sizeof fs->lost[0]);
        return;
    }
}

void change_lost(struct fs *fs, const struct fs_node *node, uint64_t lease)
{
    const struct mvcc_key *key = mvcc_by_ino(fs->mvcc, node->ino);
    struct keel_change change = { .kind = CHANGE_REMOVE, .object = MVCC_FILE, .lease = lease };

    if (fs->poker == NULL || key == NULL || change_is_lost(fs, node->ino) ||
        mvcc_get(fs->mvcc, key, 0, &change.before) != 0 || change.before.lease != lease)
        return;
    if (fs->lost_count == FS_LOST_FILES)
        lost_forget(fs, fs->lost[0]);
    fs->lost[fs->lost_count++] = node->ino;
    change.revision = change.before.revision.main;
    change.ino = node->ino;
    change.parent = mvcc_live_ino(mvcc_parent(key));
    change.name = mvcc_name(key);
    poker_change(fs->poker, &change);
}

/* Have this node's watchers been told of it already? */
static bool is_no_news(struct fs *fs, const struct keel_change *change)
{
    if (fs->lost_count == 0 || !change_is_lost(fs, change->ino))
        return false;
    lost_forget(fs, change->ino);
    return change->kind == CHANGE_REMOVE;
}

void fs_changed(struct fs *fs, const struct keel_change *change)
{
    switch (change->kind) {
    case CHANGE_CREATE:
        come(fs, change->parent, change->name, change->ino);
        break;
    case CHANGE_REMOVE:
    case CHANGE_RMDIR:
        gone(fs, change->ino, &change->before);
        break;
    case CHANGE_RENAME:
        if (change->replaced != 0)
            gone(fs, change->replaced, &change->replaced_before);
        if (change->object == MVCC_FILE)
            come(fs, change->new_parent, change->new_name, change->ino);
        break;
    case CHANGE_MKDIR:
    case CHANGE_SYMLINK:
    case CHANGE_CONTENT:
    case CHANGE_ATTR:
        break;
    }
    if (!is_no_news(fs, change) && fs->poker != NULL)
        poker_change(fs->poker, change);
}

/* Keys stay where they are, and views, listings and pinned content name revisions that every later
 * state has too. But the steps of a walk are checked by what a key has now, and between two of them
 * a key may have gone and come back. */
void fs_reloaded(struct fs *fs)
{
    fs_walks_free(fs->walks);
    fs->walks = fs_walks_new();
}
