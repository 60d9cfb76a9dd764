/* The trace: values as text. */
#include <inttypes.h>

#include "err.h"
#include "raft/config.h"
#include "script_world.h"

const char *role_name(enum raft_role role)
{
    switch (role) {
    case RAFT_FOLLOWER:
        return "follower";
    case RAFT_PRECANDIDATE:
        return "precandidate";
    case RAFT_CANDIDATE:
        return "candidate";
    case RAFT_LEADER:
        return "leader";
    case RAFT_LEARNER:
        return "learner";
    default:
        return "?";
    }
}

/* Without the filling of `padded`, which begins with the first blank. */
static int text_len(const struct keel_buf *data)
{
    int len = 0;

    while (len < 8 && (size_t)len < data->len && data->data[len] != ' ')
        len++;
    return len;
}

static void print_ids(struct keel_text *out, const char *what, const uint64_t *ids, size_t count)
{
    for (size_t i = 0; i < count; i++)
        keel_text_printf(out, "%s%" PRIu64, i == 0 ? what : " ", ids[i]);
}

void print_config(struct keel_text *out, const struct raft_config *config)
{
    if (config->voter_count + config->learner_count == 0)
        keel_text_printf(out, "nobody");
    print_ids(out, "voters ", config->voters, config->voter_count);
    print_ids(out, " and ", config->old_voters, config->old_voter_count);
    print_ids(out, config->voter_count ? ", learners " : "learners ", config->learners,
              config->learner_count);
}

static void print_config_entry(struct keel_text *out, const struct keel_buf *data)
{
    struct raft_config config;
    struct keel_slice rest;
    int err = raft_config_decode(keel_buf_slice(data), &config, &rest);

    keel_text_printf(out, ":{");
    if (err == 0)
        print_config(out, &config);
    keel_text_printf(out, "%s}", err == 0 ? "" : keel_strerror(err));
    if (err == 0 && rest.len > 0)
        keel_text_printf(out, "%.*s", (int)rest.len, (const char *)rest.data);
}

void print_entries(struct keel_text *out, const struct raft_entry *entries, size_t count)
{
    for (size_t i = 0; i < count && i < 6; i++) {
        const struct keel_buf *data = entries[i].data;

        keel_text_printf(out, " %" PRIu64 "/%" PRIu64, entries[i].index, entries[i].term);
        if (entries[i].kind == RAFT_ENTRY_CONFIG)
            print_config_entry(out, data);
        else if (data != NULL)
            keel_text_printf(out, ":%.*s", text_len(data), (const char *)data->data);
    }
    if (count > 6)
        keel_text_printf(out, " … %" PRIu64 "/%" PRIu64, entries[count - 1].index,
                         entries[count - 1].term);
}

static void print_vote_reply(struct keel_text *out, const struct raft_message *m)
{
    uint64_t age_us = m->u.vote_reply.ack_age_us;

    keel_text_printf(out, "%s %s", m->u.vote_reply.pre ? " pre" : "",
                     m->u.vote_reply.granted ? "granted" : "rejected");
    if (age_us == RAFT_AGE_NEVER)
        keel_text_printf(out, " age never");
    else
        keel_text_printf(out, " age %" PRIu64 ".%03" PRIu64 "ms", age_us / 1000, age_us % 1000);
}

static void print_vote(struct keel_text *out, const struct raft_message *m)
{
    if (m->type == RAFT_VOTE_REQUEST)
        keel_text_printf(out, "%s%s last %" PRIu64 "/%" PRIu64, m->u.vote_request.pre ? " pre" : "",
                         m->u.vote_request.transfer ? " transfer" : "",
                         m->u.vote_request.last_index, m->u.vote_request.last_term);
    else
        print_vote_reply(out, m);
}

static void print_append(struct keel_text *out, const struct raft_message *m)
{
    if (m->type == RAFT_APPEND) {
        keel_text_printf(out, " prev %" PRIu64 "/%" PRIu64 " commit %" PRIu64,
                         m->u.append.prev_index, m->u.append.prev_term, m->u.append.commit);
        if (m->u.append.sent_us == 0)
            keel_text_printf(out, " (no reply)");
        print_entries(out, m->u.append.entries, m->u.append.count);
    } else if (m->u.append_reply.rejected) {
        keel_text_printf(out, " rejected %" PRIu64 " hint %" PRIu64 "/%" PRIu64,
                         m->u.append_reply.index, m->u.append_reply.hint_index,
                         m->u.append_reply.hint_term);
    } else {
        keel_text_printf(out, " up to %" PRIu64, m->u.append_reply.index);
    }
}

void print_message(struct keel_text *out, const struct raft_message *m)
{
    keel_text_printf(out, "%" PRIu64 ">%" PRIu64 " %s term %" PRIu64, m->from, m->to,
                     raft_message_name(m->type), m->term);
    switch (m->type) {
    case RAFT_VOTE_REQUEST:
    case RAFT_VOTE_REPLY:
        print_vote(out, m);
        break;
    case RAFT_APPEND:
    case RAFT_APPEND_REPLY:
        print_append(out, m);
        break;
    case RAFT_HEARTBEAT:
        keel_text_printf(out, " commit %" PRIu64 " round %" PRIu64, m->u.heartbeat.commit,
                         m->u.heartbeat.round);
        break;
    case RAFT_HEARTBEAT_REPLY:
        keel_text_printf(out, " round %" PRIu64, m->u.heartbeat_reply.round);
        break;
    case RAFT_READ_REQUEST:
        keel_text_printf(out, " context %" PRIu64, m->u.read_request.context);
        break;
    case RAFT_READ_REPLY:
        keel_text_printf(out, " context %" PRIu64, m->u.read_reply.context);
        if (m->u.read_reply.refused)
            keel_text_printf(out, " refused");
        else
            keel_text_printf(out, " index %" PRIu64, m->u.read_reply.index);
        break;
    case RAFT_TIMEOUT_NOW:
        if (m->u.timeout_now.renounced)
            keel_text_printf(out, " renounced");
        break;
    case RAFT_MESSAGE_TYPES:
    default:
        break;
    }
    keel_text_printf(out, "\n");
}

void print_request(struct keel_text *out, uint64_t id, const struct raft_ready *ready)
{
    keel_text_printf(out, "  %" PRIu64 " persists #%" PRIu64 ":", id, ready->mark.seq);
    if (ready->reset_index != 0)
        keel_text_printf(out, " reset to %" PRIu64 "/%" PRIu64, ready->reset_index,
                         ready->reset_term);
    if (ready->hard_state != NULL)
        keel_text_printf(out, " term %" PRIu64 " vote %" PRIu64 " commit %" PRIu64,
                         ready->hard_state->term, ready->hard_state->vote,
                         ready->hard_state->commit);
    if (ready->entry_count > 0)
        keel_text_printf(out, "%s entries", ready->hard_state != NULL ? "," : "");
    print_entries(out, ready->entries, ready->entry_count);
    keel_text_printf(out, "\n");
}

static void print_config_change(struct world *w, struct node *n)
{
    const struct raft_config *config = raft_config(n->r);

    if (n->config_index == raft_config_index(n->r) && raft_config_equal(&n->config, config))
        return;
    n->config = *config;
    n->config_index = raft_config_index(n->r);
    keel_text_printf(&w->out, "  %" PRIu64 " counts by %" PRIu64 ": ", n->id, n->config_index);
    print_config(&w->out, config);
    keel_text_printf(&w->out, "\n");
}

void print_changes(struct world *w, struct node *n)
{
    if (n->role != raft_role(n->r) || n->term != raft_term(n->r)) {
        keel_text_printf(&w->out, "  %" PRIu64 " is %s in term %" PRIu64 "\n", n->id,
                         role_name(raft_role(n->r)), raft_term(n->r));
        n->leader = raft_role(n->r) == RAFT_LEADER ? n->id : n->leader;
    }
    if (n->leader != raft_leader(n->r) && raft_leader(n->r) != 0)
        keel_text_printf(&w->out, "  %" PRIu64 " follows %" PRIu64 "\n", n->id, raft_leader(n->r));
    else if (n->leader != raft_leader(n->r) && raft_role(n->r) == RAFT_FOLLOWER)
        keel_text_printf(&w->out, "  %" PRIu64 " has no leader\n", n->id);
    if (n->commit != raft_commit_index(n->r))
        keel_text_printf(&w->out, "  %" PRIu64 " commits %" PRIu64 "\n", n->id,
                         raft_commit_index(n->r));
    print_config_change(w, n);
    n->role = raft_role(n->r);
    n->term = raft_term(n->r);
    n->leader = raft_leader(n->r);
    n->commit = raft_commit_index(n->r);
}
