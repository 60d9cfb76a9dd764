/* A node that was removed from the cluster: nobody may take what it knows for the state of the
 * cluster. It goes on to say so in /@keel, until somebody stops it. */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "check.h"
#include "err.h"
#include "fs/fs_internal.h"

/* What only lets go, and what never needed a member. */
static bool is_harmless(uint32_t opcode)
{
    switch (opcode) {
    case FUSE_INIT:
    case FUSE_DESTROY:
    case FUSE_INTERRUPT:
    case FUSE_FORGET:
    case FUSE_BATCH_FORGET:
    case FUSE_RELEASE:
    case FUSE_RELEASEDIR:
    case FUSE_STATFS:
        return true;
    default:
        return false;
    }
}

/* df(1) opens the root, and the way to /@keel leads through it. */
static bool is_of_the_root(const struct fuse_in_header *in)
{
    if (in->nodeid != FUSE_ROOT_ID)
        return false;
    if (in->opcode == FUSE_LOOKUP)
        return in->len >= sizeof *in + sizeof "@keel" &&
               memcmp(in + 1, "@keel", sizeof "@keel") == 0;
    return in->opcode == FUSE_GETATTR || in->opcode == FUSE_OPENDIR || in->opcode == FUSE_ACCESS;
}

bool removed_refuses(struct fs *fs, const struct fuse_in_header *in)
{
    if (!replica_is_removed(fs->replica) || is_harmless(in->opcode) || is_of_the_root(in))
        return false;
    const struct fs_node *node = op_node(fs, in->nodeid);

    if (node != NULL && node_is_keel(node))
        return false;
    const struct fuse_out_header out = {
        .len = sizeof out,
        .error = -keel_errno(KEEL_E_REMOVED),
        .unique = in->unique,
    };
    ssize_t written = write(fuse_session_fd(fs->session), &out, sizeof out);

    KEEL_ASSERT(written == sizeof out || errno == ENOENT || errno == ENODEV);
    return true;
}
