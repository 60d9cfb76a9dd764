/* Answers to the poker's own requests: from the ticket that it works on, as things were then.
 * Nothing is ever proposed here, and whatever doesn't fit the ticket is refused. */
#include "fs/poker_internal.h"

#include <errno.h>
#include <fcntl.h>

#include "check.h"

static struct ticket *current(struct poker *p)
{
    poker_drain(p);
    return ticket_queue_current(&p->queue);
}

static uint64_t ino_of(struct poker *p, fuse_ino_t nodeid)
{
    const struct fs_node *node = fs_node_find(p->nodes, nodeid);

    return node ? node->ino : 0;
}

static void refuse(struct poker *p, fuse_req_t req)
{
    (void)p;
    fuse_reply_err(req, EPERM);
}

/* The attributes to show: of what is removed, as it was; else as they are now. */
static bool stat_of(struct poker *p, const struct ticket *t, struct fs_node *node,
                    struct stat *ret_stat)
{
    const struct stat *gone = ticket_queue_gone(&p->queue, node->ino);

    if (gone) {
        *ret_stat = *gone;
        return true;
    }
    if (p->hooks.attributes(p->hooks.arg, node, ret_stat))
        return true;
    if (!t || ticket_node(t, LANE_OBJECT) != node)
        return false;
    *ret_stat = t->object;
    return true;
}

static bool entry_of(struct poker *p, const struct ticket *t, struct fs_node *node,
                     struct fuse_entry_param *ret_entry)
{
    *ret_entry = (struct fuse_entry_param){ .ino = node->nodeid };
    return stat_of(p, t, node, &ret_entry->attr);
}

/* Each entry that the kernel gets counts as a lookup; one that it couldn't take doesn't. */
static void reply_entry(struct poker *p, fuse_req_t req, const struct ticket *t,
                        struct fs_node *node)
{
    struct fuse_entry_param entry;

    if (!entry_of(p, t, node, &entry)) {
        fuse_reply_err(req, ENOENT);
        return;
    }
    fs_node_looked_up(node);
    if (fuse_reply_entry(req, &entry) != 0)
        fs_node_forget(p->nodes, node, 1);
}

/* A directory on the way to the ticket's own. */
static void lookup_step(struct poker *p, fuse_req_t req, const struct ticket *t, uint64_t dir,
                        struct keel_slice name)
{
    const struct ticket *later = ticket_queue_after(&p->queue, t, dir, name);
    struct fs_node *node = NULL;
    struct fuse_entry_param entry;

    if (later) {
        enum ticket_lane_role role = ticket_held_before(later, dir, name);

        node = role == LANE_ROLES ? NULL : ticket_node(later, role);
    } else {
        uint64_t ino = p->hooks.child(p->hooks.arg, dir, name);

        if (ino != 0)
            node = fs_node_by_ino(p->nodes, ino);
        if (ino != 0 && !node)
            node = fs_node_get(p->nodes, ino);
    }
    if (!node) {
        fuse_reply_err(req, ENOENT);
        return;
    }
    fs_node_ref(node);
    if (entry_of(p, t, node, &entry) && S_ISDIR(entry.attr.st_mode))
        reply_entry(p, req, t, node);
    else
        fuse_reply_err(req, ENOENT);
    fs_node_unref(p->nodes, node);
}

void poker_op_lookup(struct poker *p, fuse_req_t req, fuse_ino_t parent, const char *name)
{
    struct ticket *t = current(p);
    struct keel_slice text = keel_slice_str(name);
    uint64_t dir = ino_of(p, parent);

    if (!t || dir == 0) {
        refuse(p, req);
        return;
    }
    if (!ticket_name_is(&t->name, dir, text) && !ticket_name_is(&t->new_name, dir, text)) {
        lookup_step(p, req, t, dir, text);
        return;
    }
    enum ticket_lane_role role = ticket_held_before(t, dir, text);

    if (role == LANE_ROLES || ticket_overtaken(&p->queue, t))
        fuse_reply_err(req, ENOENT);
    else
        reply_entry(p, req, t, ticket_node(t, role));
}

void poker_op_getattr(struct poker *p, fuse_req_t req, fuse_ino_t ino)
{
    const struct ticket *t = current(p);
    struct fs_node *node = fs_node_find(p->nodes, ino);
    struct stat attr;

    if (node && stat_of(p, t, node, &attr))
        fuse_reply_attr(req, &attr, 0);
    else
        fuse_reply_err(req, ENOENT);
}

static bool setattr_fits(const struct ticket *t, int to_set)
{
    switch (t->kind) {
    case CHANGE_CREATE:
        return t->created && (to_set & FUSE_SET_ATTR_SIZE);
    case CHANGE_CONTENT:
        return (to_set & (FUSE_SET_ATTR_SIZE | FUSE_SET_ATTR_MTIME)) != 0;
    case CHANGE_ATTR:
        return (to_set & FUSE_SET_ATTR_MTIME) && !(to_set & FUSE_SET_ATTR_SIZE);
    case CHANGE_MKDIR:
    case CHANGE_SYMLINK:
    case CHANGE_REMOVE:
    case CHANGE_RMDIR:
    case CHANGE_RENAME:
        break;
    }
    return false;
}

/* The kernel takes size and times from the answer, so they are the present ones, whatever it asked
 * for. */
void poker_op_setattr(struct poker *p, fuse_req_t req, fuse_ino_t ino, struct stat *attr,
                      int to_set)
{
    struct ticket *t = current(p);
    struct fs_node *node = fs_node_find(p->nodes, ino);
    struct stat now;

    (void)attr;
    if (!t || !node || node != ticket_node(t, LANE_OBJECT) || !setattr_fits(t, to_set)) {
        refuse(p, req);
        return;
    }
    if (!stat_of(p, t, node, &now)) {
        fuse_reply_err(req, ENOENT);
        return;
    }
    t->answered = true;
    fuse_reply_attr(req, &now, 0);
}

/* No page cache, and no FLUSH at close: its inode lock is of no use here. */
static void handle_fill(struct fuse_file_info *fi)
{
    fi->fh = POKER_HANDLE_BIT;
    fi->direct_io = 1;
    fi->keep_cache = 0;
    fi->noflush = 1;
}

void poker_op_open(struct poker *p, fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    const struct ticket *t = current(p);
    const struct fs_node *node = fs_node_find(p->nodes, ino);

    if (!t || t->kind != CHANGE_CONTENT || !node || node != ticket_node(t, LANE_OBJECT) ||
        (fi->flags & (O_ACCMODE | O_TRUNC)) != O_WRONLY) {
        refuse(p, req);
        return;
    }
    handle_fill(fi);
    fuse_reply_open(req, fi);
}

/* Does the ticket want just this, and is it still to be done? Otherwise the request has been
 * answered. */
static bool wanted(struct poker *p, fuse_req_t req, const struct ticket *t,
                   enum keel_change_kind kind, fuse_ino_t parent, const char *name)
{
    if (!t || t->kind != kind || t->created || t->answered ||
        !ticket_name_is(&t->name, ino_of(p, parent), keel_slice_str(name))) {
        refuse(p, req);
        return false;
    }
    if (ticket_overtaken(&p->queue, t)) {
        fuse_reply_err(req, ENOENT);
        return false;
    }
    return true;
}

void poker_op_create(struct poker *p, fuse_req_t req, fuse_ino_t parent, const char *name,
                     mode_t mode, struct fuse_file_info *fi)
{
    struct ticket *t = current(p);
    struct fuse_entry_param entry;

    (void)mode;
    if (!wanted(p, req, t, CHANGE_CREATE, parent, name))
        return;
    struct fs_node *node = ticket_node(t, LANE_OBJECT);

    if (!entry_of(p, t, node, &entry)) {
        fuse_reply_err(req, ENOENT);
        return;
    }
    handle_fill(fi);
    t->created = t->size > 0;
    t->answered = t->size == 0;
    fs_node_looked_up(node);
    if (fuse_reply_create(req, &entry, fi) != 0)
        fs_node_forget(p->nodes, node, 1);
}

static void make(struct poker *p, fuse_req_t req, enum keel_change_kind kind, fuse_ino_t parent,
                 const char *name)
{
    struct ticket *t = current(p);

    if (!wanted(p, req, t, kind, parent, name))
        return;
    t->answered = true;
    reply_entry(p, req, t, ticket_node(t, LANE_OBJECT));
}

void poker_op_mkdir(struct poker *p, fuse_req_t req, fuse_ino_t parent, const char *name,
                    mode_t mode)
{
    (void)mode;
    make(p, req, CHANGE_MKDIR, parent, name);
}

void poker_op_symlink(struct poker *p, fuse_req_t req, const char *target, fuse_ino_t parent,
                      const char *name)
{
    (void)target;
    make(p, req, CHANGE_SYMLINK, parent, name);
}

static void take_away(struct poker *p, fuse_req_t req, enum keel_change_kind kind,
                      fuse_ino_t parent, const char *name)
{
    struct ticket *t = current(p);

    if (!wanted(p, req, t, kind, parent, name))
        return;
    t->answered = true;
    fuse_reply_err(req, 0);
}

void poker_op_unlink(struct poker *p, fuse_req_t req, fuse_ino_t parent, const char *name)
{
    take_away(p, req, CHANGE_REMOVE, parent, name);
}

void poker_op_rmdir(struct poker *p, fuse_req_t req, fuse_ino_t parent, const char *name)
{
    take_away(p, req, CHANGE_RMDIR, parent, name);
}

void poker_op_rename(struct poker *p, fuse_req_t req, fuse_ino_t parent, const char *name,
                     fuse_ino_t new_parent, const char *new_name, unsigned int flags)
{
    struct ticket *t = current(p);

    if (t && (flags != 0 ||
              !ticket_name_is(&t->new_name, ino_of(p, new_parent), keel_slice_str(new_name)))) {
        refuse(p, req);
        return;
    }
    take_away(p, req, CHANGE_RENAME, parent, name);
}

/* Attributes are poked with times, which symbolic links have too: no ticket sets an xattr. */
void poker_op_setxattr(struct poker *p, fuse_req_t req, fuse_ino_t ino, const char *name)
{
    (void)ino;
    (void)name;
    refuse(p, req);
}

void poker_op_other(struct poker *p, fuse_req_t req)
{
    refuse(p, req);
}

void poker_op_release(struct poker *p, fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    (void)p;
    (void)ino;
    KEEL_ASSERT(fi->fh & POKER_HANDLE_BIT);
    fuse_reply_err(req, 0);
}
