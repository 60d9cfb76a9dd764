/* Files that exist only on this node so far: opened with O_CREAT, without O_EXCL, and nothing
 * committed yet. Their nodes are provisional; a name is found here before it is looked for in the
 * keyspace. */
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "err.h"
#include "fs/fs_internal.h"
#include "hash.h"

static size_t bucket_of(uint64_t parent, struct keel_slice name)
{
    return keel_hash64_seed(name, parent) % FS_CREATION_BUCKETS;
}

static struct keel_slice name_of(const struct fs_creation *creation)
{
    return keel_slice_of(creation->name, creation->name_len);
}

struct fs_creation *creation_find(struct fs *fs, uint64_t parent, struct keel_slice name)
{
    if (fs->creation_count == 0)
        return NULL;
    struct fs_creation *creation = fs->creation_buckets[bucket_of(parent, name)];

    while (creation != NULL &&
           (creation->parent != parent || !keel_slice_equal(name_of(creation), name)))
        creation = creation->next;
    return creation;
}

static void arm_timer(struct fs *fs)
{
    struct keel_link *first = keel_list_first(&fs->creations);

    if (first == NULL || fs->closing || uv_is_active((uv_handle_t *)&fs->timer))
        return;
    const struct fs_creation *oldest = KEEL_CONTAINER_OF(first, struct fs_creation, link);
    uint64_t now = replica_now_us(fs->replica), due = oldest->created_us + FS_CREATION_US;

    uv_timer_start(&fs->timer, creation_on_timer, due > now ? (due - now) / 1000 + 1 : 0, 0);
}

struct fs_creation *creation_new(struct fs *fs, uint64_t parent, struct keel_slice name,
                                 const struct mvcc_record *record, struct fs_handle *h)
{
    struct fs_creation *creation = keel_calloc(1, sizeof *creation);
    struct fs_creation **bucket = &fs->creation_buckets[bucket_of(parent, name)];

    KEEL_ASSERT(name.len <= KEEL_NAME_MAX && h->node->creation == NULL);
    creation->node = h->node;
    creation->handle = h;
    creation->parent = parent;
    creation->created_us = replica_now_us(fs->replica);
    creation->name_len = (uint8_t)name.len;
    memcpy(creation->name, name.data, name.len);
    creation->next = *bucket;
    *bucket = creation;
    keel_list_add(&fs->creations, &creation->link);
    fs->creation_count++;
    fs_node_ref(creation->node);
    creation->node->provisional = true;
    fs_node_set_record(creation->node, record);
    creation->node->creation = creation;
    arm_timer(fs);
    return creation;
}

static void creation_free(struct fs *fs, struct fs_creation *creation)
{
    struct fs_creation **link =
        &fs->creation_buckets[bucket_of(creation->parent, name_of(creation))];
    struct fs_node *node = creation->node;

    while (*link != creation)
        link = &(*link)->next;
    *link = creation->next;
    keel_list_remove(&creation->link);
    fs->creation_count--;
    node->provisional = false;
    if (!node->orphan)
        fs_node_set_record(node, NULL);
    node->creation = NULL;
    free(creation);
    fs_node_unref(fs->nodes, node);
}

void creation_settled(struct fs *fs, struct fs_creation *creation, uint64_t ino)
{
    if (creation == NULL)
        return;
    fs_node_adopt(fs->nodes, creation->node, ino);
    creation_free(fs, creation);
}

void creation_drop(struct fs *fs, struct fs_creation *creation)
{
    if (creation->node->handles > 0)
        orphan_make(fs, creation->node, creation->node->record);
    creation_free(fs, creation);
}

struct keel_buf *creation_names(struct fs *fs, uint64_t parent)
{
    struct keel_text text = { 0 };

    for (size_t i = 0; fs->creation_count > 0 && i < FS_CREATION_BUCKETS; i++) {
        for (struct fs_creation *c = fs->creation_buckets[i]; c != NULL; c = c->next) {
            uint64_t ino = c->node->ino;

            if (c->parent != parent)
                continue;
            keel_text_append(&text, keel_slice_of(&ino, sizeof ino));
            keel_text_append(&text, keel_slice_of(&c->name_len, 1));
            keel_text_append(&text, name_of(c));
        }
    }
    struct keel_buf *names =
        text.len > 0 ? keel_buf_copy(keel_slice_of(text.data, text.len)) : NULL;

    keel_text_free(&text);
    return names;
}

static void committed(struct fs_request *rq, int err, const struct command_result *result)
{
    struct fs_creation *creation = rq->nodes[0]->creation;

    if (creation != NULL && err == 0)
        creation_settled(rq->fs, creation, result->ino);
    else if (creation != NULL && creation->handle == NULL)
        creation_drop(rq->fs, creation);
    else if (creation != NULL)
        creation->failed = true;
    request_answer(rq, err);
}

void creation_commit(struct fs *fs, struct fs_creation *creation)
{
    struct fs_request *rq = request_new(fs, NULL);
    Keel__Command command = KEEL__COMMAND__INIT;
    Keel__Create create = KEEL__CREATE__INIT;
    const struct mvcc_record *record = creation->node->record;

    keel_list_remove(&creation->link); /* the timer has nothing to do with it any more */
    request_use(rq, creation->node, false);
    create.parent = creation->parent;
    create.name.data = (uint8_t *)creation->name;
    create.name.len = creation->name_len;
    create.kind = KEEL__KIND__FILE;
    create.mode = record->mode;
    create.uid = record->uid;
    create.gid = record->gid;
    create.ino = record->ino;
    command.op_case = KEEL__COMMAND__OP_CREATE;
    command.create = &create;
    request_propose(rq, &command, keel_slice_of(NULL, 0), committed);
}

void creation_commit_in(struct fs *fs, uint64_t parent)
{
    for (size_t i = 0; fs->creation_count > 0 && i < FS_CREATION_BUCKETS; i++) {
        for (struct fs_creation *c = fs->creation_buckets[i], *next; c != NULL; c = next) {
            next = c->next;
            if (c->parent == parent && !c->failed)
                creation_commit(fs, c);
        }
    }
}

void creation_hurry(struct fs *fs)
{
    if (!fs->closing && fs->mounted)
        uv_timer_start(&fs->timer, creation_on_timer, 0, 0);
}

void creation_on_timer(uv_timer_t *timer)
{
    struct fs *fs = timer->data;
    uint64_t now = replica_now_us(fs->replica);
    struct keel_link *first;

    if (fs->lease_lost)
        fs_requests_lost(fs);
    while ((first = keel_list_first(&fs->creations)) != NULL) {
        struct fs_creation *creation = KEEL_CONTAINER_OF(first, struct fs_creation, link);

        if (creation->created_us + FS_CREATION_US > now)
            break;
        keel_list_remove(first);
        if (!creation->failed)
            creation_commit(fs, creation);
    }
    arm_timer(fs);
}
