/* Ownership of entries and messages. */
#include <stdlib.h>

#include "check.h"
#include "raft/types.h"

struct raft_message *raft_message_new(enum raft_message_type type, uint64_t from, uint64_t to,
                                      uint64_t term)
{
    struct raft_message *msg = keel_calloc(1, sizeof *msg);

    msg->type = type;
    msg->from = from;
    msg->to = to;
    msg->term = term;
    return msg;
}

struct raft_message *raft_message_free(struct raft_message *msg)
{
    if (msg == NULL)
        return NULL;
    if (msg->type == RAFT_APPEND)
        raft_entries_free(msg->u.append.entries, msg->u.append.count);
    free(msg);
    return NULL;
}

void raft_entries_free(struct raft_entry *entries, size_t count)
{
    for (size_t i = 0; i < count; i++)
        keel_buf_free(entries[i].data);
    free(entries);
}

struct raft_entry *raft_entries_copy(const struct raft_entry *entries, size_t count)
{
    struct raft_entry *copy = keel_calloc(count, sizeof *copy);

    for (size_t i = 0; i < count; i++) {
        copy[i] = entries[i];
        if (copy[i].data != NULL)
            keel_buf_ref(copy[i].data);
    }
    return copy;
}

const char *raft_message_name(enum raft_message_type type)
{
    static const char *const names[RAFT_MESSAGE_TYPES] = {
        [RAFT_VOTE_REQUEST] = "vote-request",
        [RAFT_VOTE_REPLY] = "vote-reply",
        [RAFT_APPEND] = "append",
        [RAFT_APPEND_REPLY] = "append-reply",
        [RAFT_HEARTBEAT] = "heartbeat",
        [RAFT_HEARTBEAT_REPLY] = "heartbeat-reply",
        [RAFT_READ_REQUEST] = "read-request",
        [RAFT_READ_REPLY] = "read-reply",
        [RAFT_TIMEOUT_NOW] = "timeout-now",
    };

    return type > 0 && type < RAFT_MESSAGE_TYPES ? names[type] : "unknown";
}
