/* Writes to the files of /@keel. Each write(2) is a request of its own, and waits for its outcome.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "check.h"
#include "err.h"
#include "fs/fs_internal.h"

enum { CONTROL_WRITE_MAX = 16384 };

static uint64_t random_id(void)
{
    uint64_t id = 0;

    while (id == 0)
        if (getrandom(&id, sizeof id, 0) != (ssize_t)sizeof id)
            keel_fatal("no randomness: %s", strerror(errno));
    return id;
}

static void control_written(struct fs_request *rq, int err, const struct command_result *result)
{
    (void)result;
    if (err != 0)
        request_answer(rq, err);
    else
        request_answer_write(rq, rq->size);
}

static void write_members(struct fs_request *rq, char *text)
{
    struct keel_member_change changes[KEEL_MEMBERS_MAX];
    size_t count;
    int err = control_parse_changes(text, &rq->fs->info, changes, &count);

    if (err != 0) {
        request_answer(rq, err);
        return;
    }
    for (size_t i = 0; i < count; i++)
        if (changes[i].verb == MEMBER_ADD || changes[i].verb == MEMBER_ADD_VOTER)
            changes[i].id = random_id();
    request_change_members(rq, changes, count, control_written);
}

static const struct apply_member *member_named(const struct fs *fs, const char *name)
{
    size_t count;
    const struct apply_member *members = apply_members(replica_apply(fs->replica), &count);

    for (size_t i = 0; i < count; i++)
        if (strcmp(members[i].name, name) == 0)
            return &members[i];
    return NULL;
}

/* A name, or nothing for whoever is furthest. */
static void write_transfer(struct fs_request *rq, char *text)
{
    char *save = NULL, *name = strtok_r(text, " \t\n", &save);
    const struct apply_member *to = name != NULL ? member_named(rq->fs, name) : NULL;

    if (name != NULL && strtok_r(NULL, " \t\n", &save) != NULL)
        request_answer(rq, KEEL_E_INVALID);
    else if (name != NULL && to == NULL)
        request_answer(rq, KEEL_E_NOTFOUND);
    else
        request_transfer(rq, to != NULL ? to->id : 0, control_written);
}

static void write_settings(struct fs_request *rq, char *text)
{
    struct apply_settings changes;
    int err = control_parse_settings(text, &rq->fs->options, &changes);

    if (err != 0)
        request_answer(rq, err);
    else
        request_change_settings(rq, &changes, control_written);
}

static void write_compact(struct fs_request *rq, char *text)
{
    uint64_t revision;
    int err = control_parse_revision(text, &revision);

    if (err != 0)
        request_answer(rq, err);
    else
        request_compact(rq, revision, control_written);
}

/* A 1: it is begun, and goes on behind the answer. */
static void write_defrag(struct fs_request *rq, char *text)
{
    const struct fs_node_info *info = &rq->fs->info;
    char *save = NULL, *word = strtok_r(text, " \t\n", &save);

    if (word == NULL || strcmp(word, "1") != 0 || strtok_r(NULL, " \t\n", &save) != NULL)
        request_answer(rq, KEEL_E_INVALID);
    else
        control_written(rq, info->defrag(info->arg), NULL);
}

static void write_text(struct fs_request *rq, enum control_file file, char *text)
{
    switch (file) {
    case CONTROL_MEMBERS:
        write_members(rq, text);
        break;
    case CONTROL_SETTINGS:
        write_settings(rq, text);
        break;
    case CONTROL_TRANSFER:
        write_transfer(rq, text);
        break;
    case CONTROL_COMPACT:
        write_compact(rq, text);
        break;
    case CONTROL_DEFRAG:
        write_defrag(rq, text);
        break;
    case CONTROL_NONE:
    case CONTROL_ROOT:
    case CONTROL_STATUS:
    case CONTROL_ALARMS:
    case CONTROL_SNAPSHOT:
    case CONTROL_CHECK:
        KEEL_ASSERT(false && "control_is_writable");
    }
}

void control_write(fuse_req_t req, struct fs_node *node, struct keel_slice bytes)
{
    if (!control_is_writable(node->view->file) || bytes.len > CONTROL_WRITE_MAX ||
        memchr(bytes.data, '\0', bytes.len) != NULL) {
        answer_error(req, KEEL_E_INVALID);
        return;
    }
    struct fs_request *rq = request_new(fs_of(req), req);
    char *text = keel_malloc(bytes.len + 1);

    memcpy(text, bytes.data, bytes.len);
    text[bytes.len] = '\0';
    rq->size = bytes.len;
    request_use(rq, node, true);
    write_text(rq, node->view->file, text);
    free(text);
}
