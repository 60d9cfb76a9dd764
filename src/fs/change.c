/* What apply has changed, as far as this mount has to know: files that go while they are known
 * here, and names that come to be where this node has a file that is not committed yet. Everything
 * else is asked for anew each time. */
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
    if (fs->poker != NULL)
        poker_change(fs->poker, change);
}
