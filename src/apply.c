/* The replicated state machine around apply_ops.c: sessions, settings, members, dispatch, and the
 * state's form in a checkpoint. */
#include <stdlib.h>

#include "apply_internal.h"
#include "bytes.h"
#include "check.h"
#include "err.h"
#include "mutant.h"

enum {
    CLUSTER_STATE_VERSION = 2,
    UNCHECKED_VERSION = 1, /* had no check behind it */
    CHECK_LEN = 8,
};

#define META_CLUSTER "cluster"
#define META_LEASES "leases"

/* ---- sessions ---- */

static struct apply_session *find_session(const struct apply *a, uint64_t id)
{
    for (size_t i = 0; i < a->session_count; i++)
        if (a->sessions[i].id == id)
            return &a->sessions[i];
    return NULL;
}

static struct apply_session *add_session(struct apply *a, uint64_t id, uint64_t node,
                                         uint64_t nonce, uint64_t first_ino)
{
    if (a->session_count == a->session_capacity) {
        a->session_capacity = a->session_capacity ? a->session_capacity * 2 : 8;
        a->sessions = keel_realloc(a->sessions, a->session_capacity * sizeof *a->sessions);
    }
    struct apply_session *session = &a->sessions[a->session_count++];

    *session =
        (struct apply_session){ .id = id, .node = node, .nonce = nonce, .first_ino = first_ino };
    return session;
}

/* A node has one session: a process that starts ends that of the one before it. */
void apply_end_sessions(struct apply *a, uint64_t node)
{
    size_t kept = 0;

    for (size_t i = 0; i < a->session_count; i++) {
        if (a->sessions[i].node == node)
            free(a->sessions[i].results);
        else
            a->sessions[kept++] = a->sessions[i];
    }
    a->session_count = kept;
}

static void forget_results(struct apply_session *session, uint64_t acked)
{
    if (acked > session->last)
        acked = session->last;
    if (acked <= session->acked)
        return;
    size_t dropped = (size_t)(acked - session->acked);
    size_t left = (size_t)(session->last - acked);

    memmove(session->results, session->results + dropped, left * sizeof *session->results);
    session->acked = acked;
}

static void keep_result(struct apply_session *session, const struct command_result *result)
{
    size_t count = (size_t)(session->last - session->acked);

    if (count == session->capacity) {
        session->capacity = session->capacity ? session->capacity * 2 : 16;
        session->results =
            keel_realloc(session->results, session->capacity * sizeof *session->results);
    }
    session->results[count] = *result;
    session->last++;
}

bool apply_session(const struct apply *a, uint64_t session, uint64_t *ret_last)
{
    const struct apply_session *found = find_session(a, session);

    if (found != NULL)
        *ret_last = found->last;
    return found != NULL;
}

bool apply_session_result(const struct apply *a, uint64_t id, uint64_t number,
                          struct command_result *ret_result)
{
    const struct apply_session *session = find_session(a, id);

    if (session == NULL || number <= session->acked || number > session->last)
        return false;
    *ret_result = session->results[number - session->acked - 1];
    return true;
}

size_t apply_session_count(const struct apply *a)
{
    return a->session_count;
}

struct apply_session_info apply_session_at(const struct apply *a, size_t i)
{
    const struct apply_session *session = &a->sessions[i];

    KEEL_ASSERT(i < a->session_count);
    return (struct apply_session_info){ session->id, session->node, session->nonce,
                                        session->first_ino };
}

/* ---- commands of the cluster itself ---- */

static int op_open_session(struct apply_op *op, const Keel__OpenSession *open)
{
    struct apply *a = op->a;

    if (!raft_config_is_member(&a->config, open->node))
        return KEEL_E_REMOVED;
    for (size_t i = 0; i < a->session_count; i++)
        if (a->sessions[i].node == open->node && a->sessions[i].nonce == open->nonce)
            return 0; /* sent twice: the session that it asks for is there */
    apply_end_sessions(a, open->node);
    add_session(a, op->entry->index, open->node, open->nonce, a->next_ino);
    op->outcome->opened_session = true;
    op->outcome->node = open->node;
    op->outcome->nonce = open->nonce;
    op->result->value = op->entry->index;
    op->result->ino = a->next_ino;
    a->next_ino += KEEL_INODE_RANGE;
    return 0;
}

static int op_reserve_inodes(struct apply_op *op, const Keel__ReserveInodes *reserve)
{
    if (reserve->count == 0 || reserve->count > KEEL_INODE_RANGE)
        return KEEL_E_INVALID;
    op->result->value = op->a->next_ino;
    op->a->next_ino += reserve->count;
    return 0;
}

static int op_settings(struct apply_op *op, const Keel__Settings *set)
{
    struct apply_settings *settings = &op->a->settings;

    if (set->first && settings->known)
        return 0;
    if (set->file_size_bytes > KEEL_FILE_SIZE_MAX || set->txn_ops > KEEL_TXN_OPS_MAX ||
        set->level > KEEL_SEMANTICS_LEVEL)
        return KEEL_E_INVALID;
    if (set->file_size_bytes != 0)
        settings->file_size_bytes = set->file_size_bytes;
    if (set->quota_bytes != 0)
        settings->quota_bytes = set->quota_bytes;
    if (set->txn_ops != 0)
        settings->txn_ops = set->txn_ops;
    if (set->history_ms != 0)
        settings->history_ms = set->history_ms;
    if (set->history_revisions != 0)
        settings->history_revisions = set->history_revisions;
    if (set->level > settings->level)
        settings->level = set->level;
    settings->known = true;
    op->outcome->settings_changed = true;
    return 0;
}

/* Counted by a leader whose term is over: its clock has no say any more. */
static int op_session_expire(struct apply_op *op, const Keel__SessionExpire *expire)
{
    const struct apply_session *session = find_session(op->a, expire->session);

    if (expire->term != op->entry->term)
        return KEEL_E_STALE;
    if (session == NULL)
        return KEEL_E_NOSESSION;
    op->outcome->expired_session = expire->session;
    apply_end_sessions(op->a, session->node);
    return 0;
}

/* ---- dispatch ---- */

static int op_lease_expire(struct apply_op *op, const Keel__LeaseExpire *expire)
{
    /* Counted by a leader whose term is over: its clock has no say any more. */
    if (expire->term != op->entry->term)
        return KEEL_E_STALE;
    return apply_lease_end(op, expire->lease);
}

static int execute(struct apply_op *op)
{
    const Keel__Command *head = op->head;

    switch (head->op_case) {
    case KEEL__COMMAND__OP_OPEN_SESSION:
        return op_open_session(op, head->open_session);
    case KEEL__COMMAND__OP_NOOP:
        return KEEL_E_CANCELLED;
    case KEEL__COMMAND__OP_CREATE:
        return apply_create(op, head->create);
    case KEEL__COMMAND__OP_WRITE:
        return apply_write(op, head->write);
    case KEEL__COMMAND__OP_SET_ATTR:
        return apply_set_attr(op, head->set_attr);
    case KEEL__COMMAND__OP_REMOVE:
        return apply_remove(op, head->remove);
    case KEEL__COMMAND__OP_RENAME:
        return apply_rename(op, head->rename);
    case KEEL__COMMAND__OP_COPY_RANGE:
        return apply_copy_range(op, head->copy_range);
    case KEEL__COMMAND__OP_LEASE_GRANT:
        return apply_lease_grant(op, head->lease_grant);
    case KEEL__COMMAND__OP_LEASE_REVOKE:
        return apply_lease_end(op, head->lease_revoke->lease);
    case KEEL__COMMAND__OP_LEASE_EXPIRE:
        return op_lease_expire(op, head->lease_expire);
    case KEEL__COMMAND__OP_LEASE_CHECKPOINT:
        return lease_checkpoint(op->a->leases, head->lease_checkpoint->lease,
                                head->lease_checkpoint->remaining_ms, op->now_us);
    case KEEL__COMMAND__OP_RESERVE_INODES:
        return op_reserve_inodes(op, head->reserve_inodes);
    case KEEL__COMMAND__OP_SETTINGS:
        return op_settings(op, head->settings);
    case KEEL__COMMAND__OP_CONTACT:
        return apply_contact(op, head->contact);
    case KEEL__COMMAND__OP_SESSION_EXPIRE:
        return op_session_expire(op, head->session_expire);
    case KEEL__COMMAND__OP_COMPACT:
        return apply_compact(op, head->compact);
    case KEEL__COMMAND__OP_COMPACT_STEP:
        return apply_compact_step(op, head->compact_step);
    case KEEL__COMMAND__OP_CHECK:
        op->outcome->check = true;
        op->result->value = op->entry->index;
        return 0;
    case KEEL__COMMAND__OP_VERDICT:
        return apply_verdict(op, head->verdict);
    case KEEL__COMMAND__OP__NOT_SET:
    case _KEEL__COMMAND__OP__CASE_IS_INT_SIZE:
    default:
        return KEEL_E_MALFORMED;
    }
}

/* Executes, and fills in the result. */
static void run(struct apply_op *op)
{
    uint64_t before = mvcc_revision(op->a->mvcc);

    op->outcome->fresh = true;
    apply_make_room(op);
    op->result->err = execute(op);
    if (op->a->change_count > 0) {
        KEEL_ASSERT(op->result->err == 0);
        op->result->revision = before + 1;
    }
}

/* A command of a session: the next number is executed, an older one answered from the table. */
static void run_in_session(struct apply_op *op)
{
    struct apply_session *session = find_session(op->a, op->head->session);
    uint64_t number = op->head->number;

    if (session == NULL) {
        if (MUTANT(EXPIRED_SESSION_APPLIES))
            run(op);
        else
            op->result->err = KEEL_E_NOSESSION;
        return;
    }
    if (MUTANT(HIGHEST_NUMBER_ONLY) && number > session->last + 1)
        session->acked = session->last = number - 1;
    if (number <= session->acked || number > session->last + 1) {
        op->result->err = KEEL_E_OUTOFORDER;
        return;
    }
    if (MUTANT(NO_DEDUPLICATION) && number <= session->last) {
        run(op);
        return;
    }
    if (number <= session->last) {
        *op->result = session->results[number - session->acked - 1];
        return;
    }
    forget_results(session, op->head->acked);
    if (session->last - session->acked >= KEEL_SESSION_COMMANDS) {
        op->result->err = KEEL_E_OUTOFORDER;
        return;
    }
    run(op);
    keep_result(find_session(op->a, op->head->session), op->result);
}

static int run_command(struct apply_op *op)
{
    Keel__Command *head;
    int err = command_unpack(keel_buf_slice(op->entry->data), &op->a->arena, &head, &op->body);

    if (err != 0)
        return err;
    if (head->level > KEEL_SEMANTICS_LEVEL)
        return KEEL_E_NEWER;
    op->head = head;
    op->outcome->is_command = true;
    op->outcome->session = head->session;
    op->outcome->number = head->number;
    if (head->session == 0)
        run(op);
    else
        run_in_session(op);
    return 0;
}

int apply_entry(struct apply *a, const struct raft_entry *entry, uint64_t now_us,
                struct apply_outcome *ret_outcome)
{
    struct apply_outcome outcome = { 0 };
    struct apply_op op = {
        .a = a,
        .entry = entry,
        .now_us = now_us,
        .outcome = &outcome,
        .result = &outcome.result,
    };
    int err = 0;

    KEEL_ASSERT(entry->index == mvcc_applied_index(a->mvcc) + 1);
    keel_arena_reset(&a->arena);
    a->change_count = 0;
    op.txn = mvcc_begin(a->mvcc, entry->index, entry->term);
    if (entry->kind == RAFT_ENTRY_COMMAND)
        err = run_command(&op);
    else if (entry->kind == RAFT_ENTRY_CONFIG)
        err = apply_configuration(a, entry, &outcome);
    if (err != 0)
        return err; /* the node stops: the transaction is never committed */
    mvcc_commit(op.txn);
    apply_watch_room(a, outcome.result.err);
    outcome.changes = a->changes;
    outcome.change_count = a->change_count;
    *ret_outcome = outcome;
    return 0;
}

/* ---- the state in a checkpoint ---- */

static void pack_result(Keel__Result *to, const struct command_result *from)
{
    keel__result__init(to);
    to->err = from->err;
    to->revision = from->revision;
    to->ino = from->ino;
    to->size = from->size;
    to->lease = from->lease;
    to->value = from->value;
    to->offset = from->offset;
}

static Keel__SessionState *pack_session(struct keel_arena *arena,
                                        const struct apply_session *session)
{
    Keel__SessionState *state = keel_arena_alloc(arena, sizeof *state);
    size_t count = (size_t)(session->last - session->acked);
    Keel__Result *results = keel_arena_alloc(arena, count * sizeof *results);

    keel__session_state__init(state);
    state->id = session->id;
    state->node = session->node;
    state->nonce = session->nonce;
    state->first_ino = session->first_ino;
    state->last = session->last;
    state->acked = session->acked;
    state->n_results = count;
    state->results = keel_arena_alloc(arena, count * sizeof(Keel__Result *));
    for (size_t i = 0; i < count; i++) {
        pack_result(&results[i], &session->results[i]);
        state->results[i] = &results[i];
    }
    return state;
}

static Keel__MemberState *pack_member(struct keel_arena *arena, const struct apply_member *member)
{
    Keel__MemberState *state = keel_arena_alloc(arena, sizeof *state);

    keel__member_state__init(state);
    state->id = member->id;
    state->name = member->name;
    state->address = member->address;
    state->voter = member->voter;
    state->incarnation = member->incarnation;
    state->corrupt_index = member->corrupt_index;
    return state;
}

static struct keel_buf *pack_cluster(const struct apply *a)
{
    Keel__ClusterState state = KEEL__CLUSTER_STATE__INIT;
    Keel__Settings settings = KEEL__SETTINGS__INIT;
    struct keel_arena arena;

    keel_arena_init(&arena);
    state.version = CLUSTER_STATE_VERSION;
    state.next_ino = a->next_ino;
    state.n_sessions = MUTANT(SESSIONS_LOST) ? 0 : a->session_count;
    state.sessions = keel_arena_alloc(&arena, a->session_count * sizeof *state.sessions);
    for (size_t i = 0; i < a->session_count; i++)
        state.sessions[i] = pack_session(&arena, &a->sessions[i]);
    state.n_members = a->member_count;
    state.members = keel_arena_alloc(&arena, a->member_count * sizeof *state.members);
    for (size_t i = 0; i < a->member_count; i++)
        state.members[i] = pack_member(&arena, &a->members[i]);
    settings.first = a->settings.known;
    settings.file_size_bytes = a->settings.file_size_bytes;
    settings.quota_bytes = a->settings.quota_bytes;
    settings.txn_ops = a->settings.txn_ops;
    settings.level = a->settings.level;
    settings.history_ms = a->settings.history_ms;
    settings.history_revisions = a->settings.history_revisions;
    state.nospace = a->nospace;
    state.settings = &settings;
    struct keel_buf *config = raft_config_encode(&a->config, keel_slice_of(NULL, 0));

    state.config = (ProtobufCBinaryData){ config->len, config->data };
    state.config_index = a->config_index;
    size_t len = keel__cluster_state__get_packed_size(&state);
    struct keel_buf *buf = keel_buf_new(len + CHECK_LEN);

    keel__cluster_state__pack(&state, buf->data);
    put_le64(buf->data + len, keel_hash64(keel_slice_of(buf->data, len)));
    keel_buf_free(config);
    keel_arena_free(&arena);
    return buf;
}

struct kv_batch *apply_checkpoint(struct apply *a)
{
    const struct keel_slice names[] = { keel_slice_str(META_CLUSTER), keel_slice_str(META_LEASES) };
    struct keel_buf *values[] = { pack_cluster(a), lease_table_encode(a->leases) };
    struct kv_batch *batch = mvcc_checkpoint(a->mvcc, names, values, KEEL_ARRAY_LEN(names));

    for (size_t i = 0; i < KEEL_ARRAY_LEN(values); i++)
        keel_buf_free(values[i]);
    return batch;
}

struct keel_hash128 apply_digest(const struct apply *a)
{
    struct keel_hash128 records = mvcc_state_hash(a->mvcc), digest;
    const uint64_t counts[] = {
        mvcc_applied_index(a->mvcc),    mvcc_applied_term(a->mvcc), mvcc_revision(a->mvcc),
        mvcc_compact_revision(a->mvcc), mvcc_live_keys(a->mvcc),    mvcc_quota_used(a->mvcc),
    };
    struct keel_buf *parts[] = { pack_cluster(a), lease_table_encode(a->leases) };
    uint8_t bytes[sizeof counts];

    for (size_t i = 0; i < KEEL_ARRAY_LEN(counts); i++)
        put_le64(bytes + 8 * i, counts[i]);
    digest = keel_hash128_add(records, keel_hash128_of(keel_slice_of(bytes, sizeof bytes)));
    for (size_t i = 0; i < KEEL_ARRAY_LEN(parts); i++) {
        digest = keel_hash128_add(digest, keel_hash128_of(keel_buf_slice(parts[i])));
        keel_buf_free(parts[i]);
    }
    return digest;
}

static int load_session(struct apply *a, const Keel__SessionState *state)
{
    if (state->acked > state->last || state->last - state->acked != state->n_results ||
        state->n_results > KEEL_SESSION_COMMANDS)
        return KEEL_E_CORRUPT;
    struct apply_session *session =
        add_session(a, state->id, state->node, state->nonce, state->first_ino);

    session->acked = session->last = state->acked;
    for (size_t i = 0; i + (MUTANT(LAST_RESULT_LOST) ? 1 : 0) < state->n_results; i++) {
        const Keel__Result *from = state->results[i];
        struct command_result result = { from->err,   from->revision, from->ino,   from->size,
                                         from->lease, from->value,    from->offset };

        keep_result(session, &result);
    }
    return 0;
}

static int load_members(struct apply *a, const Keel__ClusterState *state)
{
    struct keel_slice rest;

    for (size_t i = 0; i < state->n_members; i++) {
        const Keel__MemberState *m = state->members[i];

        apply_add_member(a, &(struct apply_member){ m->id, m->name, m->address, m->voter != 0,
                                                    m->incarnation, m->corrupt_index });
    }
    a->config_index = state->config_index;
    return raft_config_decode(keel_slice_of(state->config.data, state->config.len), &a->config,
                              &rest);
}

/* Cuts the check off; false: there is none that fits. */
static bool take_check(struct keel_slice *bytes)
{
    if (bytes->len < CHECK_LEN)
        return false;
    struct keel_slice checked = keel_slice_of(bytes->data, bytes->len - CHECK_LEN);

    if (get_le64(checked.data + checked.len) != keel_hash64(checked))
        return false;
    *bytes = checked;
    return true;
}

static int load_cluster(struct apply *a, struct keel_slice bytes)
{
    bool checked = take_check(&bytes);
    Keel__ClusterState *state =
        keel__cluster_state__unpack(&a->arena.allocator, bytes.len, bytes.data);

    if (state == NULL || (!checked && state->version != UNCHECKED_VERSION))
        return KEEL_E_CORRUPT;
    if (state->version > CLUSTER_STATE_VERSION)
        return KEEL_E_NEWER;
    if (state->settings == NULL || state->n_members > KEEL_MEMBERS_MAX)
        return KEEL_E_CORRUPT;
    for (size_t i = 0; i < state->n_sessions; i++)
        if (load_session(a, state->sessions[i]) != 0)
            return KEEL_E_CORRUPT;
    if (load_members(a, state) != 0)
        return KEEL_E_CORRUPT;
    a->settings = (struct apply_settings){
        .known = state->settings->first != 0,
        .file_size_bytes = state->settings->file_size_bytes,
        .quota_bytes = state->settings->quota_bytes,
        .txn_ops = state->settings->txn_ops,
        .level = state->settings->level,
        .history_ms = state->settings->history_ms,
        .history_revisions = state->settings->history_revisions,
    };
    a->next_ino = state->next_ino;
    a->nospace = state->nospace != 0;
    return 0;
}

static void fresh_state(struct apply *a)
{
    a->settings = (struct apply_settings){
        .file_size_bytes = KEEL_FILE_SIZE_MAX,
        .quota_bytes = 2ull << 30,
        .txn_ops = KEEL_TXN_OPS_MAX,
        .history_ms = KEEL_HISTORY_MS,
        .history_revisions = KEEL_HISTORY_REVISIONS,
        .level = 1,
    };
    a->next_ino = MVCC_ROOT_INO + 1;
    a->leases = lease_table_new();
}

int apply_load(struct apply *a)
{
    struct keel_buf *cluster, *leases;
    int err = mvcc_meta(a->mvcc, keel_slice_str(META_CLUSTER), &cluster);

    if (err != 0)
        return err;
    err = load_cluster(a, keel_buf_slice(cluster));
    keel_buf_free(cluster);
    keel_arena_reset(&a->arena);
    if (err != 0)
        return err;
    if (mvcc_meta(a->mvcc, keel_slice_str(META_LEASES), &leases) != 0)
        return KEEL_E_CORRUPT;
    err = lease_table_decode(keel_buf_slice(leases), &a->leases);
    keel_buf_free(leases);
    return err == KEEL_E_MALFORMED ? KEEL_E_CORRUPT : err;
}

int apply_new(struct mvcc *mvcc, struct apply **ret_apply)
{
    struct apply *a = keel_calloc(1, sizeof *a);

    a->mvcc = mvcc;
    keel_arena_init(&a->arena);
    int err = apply_load(a);

    if (err == KEEL_E_NOTFOUND) {
        fresh_state(a);
        err = 0;
    }
    if (err != 0) {
        apply_free(a);
        return err;
    }
    *ret_apply = a;
    return 0;
}

void apply_clear(struct apply *a)
{
    for (size_t i = 0; i < a->session_count; i++)
        free(a->sessions[i].results);
    apply_clear_members(a);
    a->session_count = 0;
    a->config = (struct raft_config){ 0 };
    a->config_index = 0;
    a->settings = (struct apply_settings){ 0 };
    a->nospace = false;
    a->next_ino = 0;
    a->leases = lease_table_free(a->leases);
    a->change_count = 0;
}

struct apply *apply_free(struct apply *a)
{
    if (a == NULL)
        return NULL;
    apply_clear(a);
    free(a->sessions);
    free(a->changes);
    keel_arena_free(&a->arena);
    free(a);
    return NULL;
}

struct mvcc *apply_mvcc(const struct apply *a)
{
    return a->mvcc;
}

struct lease_table *apply_leases(const struct apply *a)
{
    return a->leases;
}

const struct apply_settings *apply_settings(const struct apply *a)
{
    return &a->settings;
}

bool apply_nospace(const struct apply *a)
{
    return a->nospace;
}
