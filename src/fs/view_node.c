/* Nodes of view names. What they contain is in view.c and control.c. A view is found by its
 * parent's nodeid and its name, so that it keeps its nodeid as long as the kernel knows it. */
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "check.h"
#include "err.h"
#include "fs/fs_internal.h"
#include "hash.h"

static size_t bucket_of(uint64_t parent_nodeid, const char *name)
{
    return keel_hash64_seed(keel_slice_str(name), parent_nodeid) % FS_VIEW_BUCKETS;
}

static struct fs_view *find(struct fs *fs, uint64_t parent_nodeid, const char *name)
{
    struct fs_view *view = fs->view_buckets[bucket_of(parent_nodeid, name)];

    while (view != NULL && (view->parent_nodeid != parent_nodeid || strcmp(view->name, name) != 0))
        view = view->next;
    return view;
}

/* The view of that name, new or known; what it is of may have changed since. */
static int intern(struct fs *fs, struct fs_node *parent, const char *name, const struct fs_view *as,
                  struct fs_node **ret_node)
{
    struct fs_view *view = find(fs, parent->nodeid, name);

    if (as->key != NULL)
        mvcc_pin(as->key);
    if (view != NULL) {
        if (view->key != NULL)
            mvcc_unpin(fs->mvcc, view->key);
        view->key = as->key;
        *ret_node = view->node;
        return 0;
    }
    if (fs->view_count >= KEEL_VIEW_NODES_MAX) {
        if (as->key != NULL)
            mvcc_unpin(fs->mvcc, as->key);
        return KEEL_E_MFILE;
    }
    struct fs_view **bucket = &fs->view_buckets[bucket_of(parent->nodeid, name)];

    view = keel_malloc(sizeof *view);
    *view = *as;
    view->parent_nodeid = parent->nodeid;
    view->name = keel_strdup(name);
    if (view->kind == VIEW_CONDITIONAL)
        view->words.base = keel_slice_of(view->name, as->words.base.len);
    view->node = fs_node_get(fs->nodes, FS_VIEW_BIT | fs->next_view++);
    view->node->view = view;
    view->next = *bucket;
    *bucket = view;
    fs->view_count++;
    *ret_node = view->node;
    return 0;
}

void view_free(struct fs *fs, struct fs_node *node)
{
    struct fs_view *view = node->view, **link;

    if (view == NULL)
        return;
    link = &fs->view_buckets[bucket_of(view->parent_nodeid, view->name)];
    while (*link != view)
        link = &(*link)->next;
    *link = view->next;
    fs->view_count--;
    if (view->key != NULL)
        mvcc_unpin(fs->mvcc, view->key);
    free(view->name);
    free(view);
}

static int lookup_keel(struct fs *fs, struct fs_node *parent, const char *name,
                       struct fs_node **ret_node)
{
    struct fs_view as = { .kind = VIEW_KEEL, .file = CONTROL_ROOT };

    if (parent->nodeid != FUSE_ROOT_ID)
        return KEEL_E_INVALID;
    return intern(fs, parent, name, &as, ret_node);
}

int view_conditional(struct fs *fs, struct fs_node *parent, const struct fs_name *parsed,
                     const char *name, struct fs_node **ret_node)
{
    struct fs_view as = { .kind = VIEW_CONDITIONAL, .parent = parent->ino, .words = *parsed };

    return intern(fs, parent, name, &as, ret_node);
}

/* There is no such key: there was none at `rev`, or it is not known any more. */
static int no_key(const struct fs *fs, uint64_t rev)
{
    return rev != 0 && rev < mvcc_compact_revision(fs->mvcc) ? KEEL_E_STALE : KEEL_E_NOTFOUND;
}

int view_lookup(struct fs *fs, struct fs_node *parent, const struct fs_name *parsed,
                const char *name, struct fs_node **ret_node)
{
    struct fs_view as = { .kind = VIEW_PAST, .rev = parsed->rev };
    struct mvcc_record record;

    if (parsed->words & WORD_KEEL)
        return lookup_keel(fs, parent, name, ret_node);
    struct mvcc_key *dir = mvcc_by_ino(fs->mvcc, parent->ino);

    if (dir == NULL)
        return KEEL_E_NOTFOUND;
    as.key = parsed->base.len > 0 ? mvcc_child(fs->mvcc, dir, parsed->base) : dir;
    if (as.key == NULL)
        return no_key(fs, parsed->words & WORD_REV ? parsed->rev : 0);
    if (parsed->words & FS_CONDITIONAL) {
        if (mvcc_live_ino(as.key) == 0)
            return KEEL_E_NOTFOUND;
        if (mvcc_live_kind(as.key) != MVCC_FILE)
            return KEEL_E_INVALID;
        return view_conditional(fs, parent, parsed, name, ret_node);
    }
    if (parsed->words & WORD_REV) {
        int err = view_record(fs->mvcc, as.key, parsed->rev, &record);

        return err != 0 ? err : intern(fs, parent, name, &as, ret_node);
    }
    as.kind = parsed->words & WORD_STAT ? VIEW_STAT : VIEW_LOG;
    if (as.kind == VIEW_STAT && mvcc_live_ino(as.key) == 0)
        return KEEL_E_NOTFOUND;
    return intern(fs, parent, name, &as, ret_node);
}

int view_child(struct fs *fs, struct fs_node *dir, const char *name, struct fs_node **ret_node)
{
    const struct fs_view *view = dir->view;
    struct fs_view as = { .kind = view->kind, .rev = view->rev };
    struct mvcc_record record;

    if (view->kind == VIEW_KEEL) {
        as.file = control_find(keel_slice_str(name));
        if (view->file != CONTROL_ROOT || as.file == CONTROL_NONE)
            return KEEL_E_NOTFOUND;
        return intern(fs, dir, name, &as, ret_node);
    }
    if (view->kind != VIEW_PAST)
        return KEEL_E_NOTDIR;
    as.key = mvcc_child(fs->mvcc, view->key, keel_slice_str(name));
    if (as.key == NULL)
        return no_key(fs, view->rev);
    int err = view_record(fs->mvcc, as.key, view->rev, &record);

    return err != 0 ? err : intern(fs, dir, name, &as, ret_node);
}

/* Another file than the one of today: diff and cp compare inode numbers. The same at each lookup.
 */
uint64_t view_past_ino(uint64_t ino, uint64_t rev)
{
    return keel_hash64_seed(keel_slice_of(&ino, sizeof ino), rev) | FS_VIEW_BIT;
}

int view_text(struct fs *fs, const struct fs_view *view, struct keel_text *text)
{
    switch (view->kind) {
    case VIEW_STAT:
        return view_stat_text(fs->replica, view->key, text);
    case VIEW_LOG:
        return view_log_text(fs->replica, view->key, text);
    case VIEW_KEEL:
        if (view->file == CONTROL_ROOT)
            return KEEL_E_ISDIR;
        control_text(view->file, fs->replica, &fs->options, &fs->info, text);
        return 0;
    case VIEW_PAST:
    case VIEW_CONDITIONAL:
        break;
    }
    return KEEL_E_INVALID;
}

static int text_size(struct fs *fs, const struct fs_view *view, struct stat *attr)
{
    struct keel_text text = { 0 };
    int err = view_text(fs, view, &text);

    attr->st_size = (off_t)text.len;
    attr->st_blocks = ((blkcnt_t)text.len + 511) / 512;
    keel_text_free(&text);
    return err;
}

static int keel_attr(struct fs *fs, const struct fs_view *view, struct stat *ret_attr)
{
    *ret_attr = (struct stat){
        .st_mode = S_IFDIR | 0555,
        .st_nlink = 2,
        .st_blksize = FS_BLOCK_SIZE,
    };
    clock_gettime(CLOCK_REALTIME, &ret_attr->st_mtim);
    ret_attr->st_atim = ret_attr->st_ctim = ret_attr->st_mtim;
    if (view->file == CONTROL_ROOT)
        return 0;
    for (const struct control_entry *entry = control_entries; entry->name != NULL; entry++)
        if (entry->file == view->file)
            ret_attr->st_mode = S_IFREG | entry->mode;
    ret_attr->st_nlink = 1;
    if (view->file == CONTROL_SNAPSHOT) {
        ret_attr->st_size = (off_t)fs->snapshot.size;
        return 0;
    }
    return text_size(fs, view, ret_attr);
}

static int past_attr(struct fs *fs, const struct fs_view *view, struct stat *ret_attr)
{
    struct mvcc_record record;
    int err = view_record(fs->mvcc, view->key, view->rev, &record);

    if (err != 0)
        return err;
    attr_of_record(&record, ret_attr);
    ret_attr->st_ino = view_past_ino(record.ino, view->rev);
    return 0;
}

uint64_t view_base(struct fs *fs, const struct fs_view *view)
{
    const struct mvcc_key *dir = mvcc_by_ino(fs->mvcc, view->parent);
    const struct mvcc_key *key = dir != NULL ? mvcc_child(fs->mvcc, dir, view->words.base) : NULL;

    if (key == NULL || mvcc_live_ino(key) == 0 || mvcc_live_kind(key) != MVCC_FILE)
        return 0;
    return mvcc_live_ino(key);
}

static int conditional_attr(struct fs *fs, struct fs_view *view, struct stat *ret_attr)
{
    struct fs_creation *creation = creation_find(fs, view->parent, view->words.base);
    uint64_t ino = view_base(fs, view);

    int err = creation != NULL ? attr_of_node(fs, creation->node, ret_attr)
              : ino != 0       ? attr_of_key(fs, mvcc_by_ino(fs->mvcc, ino), ret_attr)
                               : KEEL_E_STALE;

    if (err == 0)
        view->attr = *ret_attr;
    if (err != KEEL_E_STALE || view->attr.st_mode == 0)
        return err;
    *ret_attr = view->attr; /* as when it was found: what comes of it is for open to say */
    return 0;
}

int view_attr(struct fs *fs, struct fs_node *node, struct stat *ret_attr)
{
    struct fs_view *view = node->view;
    struct mvcc_record record;
    int err;

    switch (view->kind) {
    case VIEW_PAST:
        return past_attr(fs, view, ret_attr);
    case VIEW_CONDITIONAL:
        return conditional_attr(fs, view, ret_attr);
    case VIEW_STAT:
    case VIEW_LOG:
        err = view_owner(fs->mvcc, view->key, &record);
        if (err != 0)
            return err;
        record.kind = MVCC_FILE;
        attr_of_record(&record, ret_attr);
        ret_attr->st_ino = node->nodeid;
        return text_size(fs, view, ret_attr);
    case VIEW_KEEL:
        err = keel_attr(fs, view, ret_attr);
        ret_attr->st_ino = node->nodeid;
        return err;
    }
    return KEEL_E_INVALID;
}

double view_entry_timeout(const struct fs_node *node)
{
    return node_is_keel(node) ? FS_FOREVER_S : 0;
}
