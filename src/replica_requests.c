/* This node's requests: numbered proposals that are applied exactly once and in order, and read
 * barriers. */
#include <stdlib.h>

#include "check.h"
#include "err.h"
#include "mutant.h"
#include "replica_internal.h"

static struct replica_call *call_of(struct keel_link *link)
{
    return KEEL_CONTAINER_OF(link, struct replica_call, link);
}

static struct proposal *proposal_of(struct keel_link *link)
{
    return KEEL_CONTAINER_OF(link, struct proposal, link);
}

static struct read_round *round_of(struct keel_link *link)
{
    return KEEL_CONTAINER_OF(link, struct read_round, link);
}

/* ---- calls ---- */

void requests_call_start(struct replica *r, struct replica_call *call, uint64_t now, bool barrier)
{
    keel_list_init(&call->link);
    call->barrier = barrier;
    if (barrier)
        r->barrier_count++;
    call->proposal = NULL;
    call->failed = 0;
    call->started_us = now;
    call->deadline.slot = 0;
    keel_heap_push(&r->deadlines, &call->deadline, now + r->options.request_timeout_us, 0);
}

void requests_call_stop(struct replica *r, struct replica_call *call)
{
    keel_list_remove(&call->link);
    members_call_stopped(r, call);
    if (call->barrier)
        r->barrier_count--;
    call->barrier = false;
    if (keel_heap_contains(&call->deadline))
        keel_heap_remove(&r->deadlines, &call->deadline);
}

void requests_call_fail_later(struct replica *r, struct replica_call *call, int err)
{
    requests_call_stop(r, call);
    call->failed = err;
    keel_list_add(&r->failed, &call->link);
}

void requests_call_finish(struct replica *r, struct replica_call *call, int err)
{
    requests_call_stop(r, call);
    call->done(call, err, NULL);
}

/* ---- proposals ---- */

static void number_proposal(struct replica *r, Keel__Command *head)
{
    head->session = r->session;
    head->number = r->next_number++;
    head->acked = r->acked;
}

static struct keel_buf *pack_noop(struct replica *r, uint64_t number)
{
    Keel__Command head = KEEL__COMMAND__INIT;
    Keel__Noop noop = KEEL__NOOP__INIT;

    head.session = r->session;
    head.number = number;
    head.acked = r->acked;
    head.level = 1;
    head.time_ns = r->env->ops->wall_ns(r->env);
    head.op_case = KEEL__COMMAND__OP_NOOP;
    head.noop = &noop;
    return command_pack(&head, keel_slice_of(NULL, 0));
}

static void proposal_free(struct replica *r, struct proposal *p)
{
    if (r->next_to_send == &p->link)
        r->next_to_send = p->link.next;
    keel_list_remove(&p->link);
    keel_buf_free(p->data);
    free(p);
    r->proposal_count--;
}

static void proposal_queue(struct replica *r, struct proposal *p, uint64_t now)
{
    if (keel_list_empty(&r->proposals))
        r->progress_us = now;
    keel_list_add(&r->proposals, &p->link);
    if (r->next_to_send == &r->proposals)
        r->next_to_send = &p->link;
    r->proposal_count++;
}

void replica_propose(struct replica *r, struct replica_call *call, Keel__Command *head,
                     struct keel_slice body)
{
    uint64_t now = now_of(r);

    requests_call_start(r, call, now, false);
    if (r->removed || replica_quorum_lost(r)) {
        requests_call_fail_later(r, call, r->removed ? KEEL_E_REMOVED : KEEL_E_TIMEDOUT);
        return;
    }
    if (r->proposal_count >= KEEL_SESSION_COMMANDS) {
        requests_call_fail_later(r, call, KEEL_E_AGAIN);
        return;
    }
    struct proposal *p = keel_calloc(1, sizeof *p);

    head->level = 1;
    head->time_ns = r->env->ops->wall_ns(r->env);
    if (r->session != 0) {
        number_proposal(r, head);
        p->number = head->number;
    }
    p->data = command_pack(head, body);
    p->call = call;
    call->proposal = p;
    proposal_queue(r, p, now);
}

/* The caller is gone: what may be in a log goes on as a no-op under its own number, so that those
 * behind it are not held up; whichever of the two stands first in the log counts. */
static void proposal_abandon(struct replica *r, struct proposal *p)
{
    p->call->proposal = NULL;
    p->call = NULL;
    if (p->number == 0) {
        proposal_free(r, p);
        return;
    }
    if (!MUTANT(ABANDONED_GOES_ON)) {
        keel_buf_free(p->data);
        p->data = pack_noop(r, p->number);
    }
    if (!p->sent)
        return; /* its turn comes */
    /* in front of those behind it: they may wait for just this number */
    r->next_to_send = &p->link;
}

/* A session has opened: new numbers for everything that waits, in the old order. What nobody waits
 * for is dropped: it was to fill a place in a session that is over. */
static void renumber_proposals(struct replica *r)
{
    for (struct keel_link *l = r->proposals.next, *next; l != &r->proposals; l = next) {
        struct proposal *p = proposal_of(l);
        Keel__Command *head;
        struct keel_slice body;

        next = l->next;
        if (p->call == NULL) {
            proposal_free(r, p);
            continue;
        }
        keel_arena_reset(&r->arena);
        int err = command_unpack(keel_buf_slice(p->data), &r->arena, &head, &body);

        KEEL_ASSERT(err == 0);
        number_proposal(r, head);
        p->number = head->number;
        p->sent = false;
        struct keel_buf *data = command_pack(head, body);

        keel_buf_free(p->data);
        p->data = data;
    }
    r->next_to_send = r->proposals.next;
    keel_arena_reset(&r->arena);
}

/* Proposes here, or forwards to the leader. KEEL_E_NOTLEADER, KEEL_E_AGAIN: later. */
static int send_command(struct replica *r, uint64_t now, struct keel_buf *data, uint64_t number,
                        uint64_t remaining_us)
{
    uint64_t leader = raft_leader(r->raft), index;

    if (leader == 0)
        return KEEL_E_NOTLEADER;
    if (leader == r->options.raft.id) {
        if (mvcc_pending_bytes(r->mvcc) >= r->options.pending_limit_bytes)
            return KEEL_E_AGAIN;
        return raft_propose(r->raft, now, keel_buf_ref(data), &index);
    }
    struct keel_message *msg = keel_message_new(MESSAGE_FORWARD);

    msg->session = number != 0 ? r->session : 0;
    msg->number = number;
    msg->deadline_us = raft_leader_clock(r->raft, now) + remaining_us;
    msg->term = raft_term(r->raft);
    msg->data = keel_buf_ref(data);
    r->env->ops->send(r->env, leader, msg);
    return 0;
}

int requests_send_bare(struct replica *r, uint64_t now, Keel__Command *head)
{
    head->level = 1;
    head->time_ns = r->env->ops->wall_ns(r->env);
    struct keel_buf *data = command_pack(head, keel_slice_of(NULL, 0));
    int err = send_command(r, now, data, 0, DUTY_US);

    keel_buf_free(data);
    return err;
}

static uint64_t remaining_of(const struct replica *r, const struct proposal *p, uint64_t now)
{
    if (p->call == NULL)
        return r->options.request_timeout_us;
    uint64_t end = p->call->started_us + r->options.request_timeout_us;

    return end > now ? end - now : 0;
}

static bool send_proposals(struct replica *r, uint64_t now)
{
    bool any = false;

    if (r->session == 0)
        return false;
    while (r->next_to_send != &r->proposals) {
        struct proposal *p = proposal_of(r->next_to_send);

        if (send_command(r, now, p->data, p->number, remaining_of(r, p, now)) != 0)
            break;
        p->sent = true;
        r->next_to_send = r->next_to_send->next;
        any = true;
    }
    return any;
}

bool requests_expects(const struct replica *r, const struct apply_outcome *outcome)
{
    struct keel_link *first = keel_list_first(&r->proposals);

    return outcome->session == r->session && r->session != 0 && outcome->fresh && first != NULL &&
           proposal_of(first)->number == outcome->number && proposal_of(first)->call != NULL &&
           outcome->result.err == 0;
}

struct replica_call *requests_take(struct replica *r, uint64_t now,
                                   const struct apply_outcome *outcome)
{
    if (r->session == 0 || outcome->session != r->session)
        return NULL;
    if (!outcome->fresh) {
        /* A gap: something before it was lost on the way to the leader. */
        if (outcome->result.err == KEEL_E_OUTOFORDER && outcome->number > r->acked + 1)
            r->next_to_send = r->proposals.next;
        return NULL;
    }
    struct keel_link *first = keel_list_first(&r->proposals);

    KEEL_ASSERT(first != NULL && proposal_of(first)->number == outcome->number);
    struct proposal *p = proposal_of(first);
    struct replica_call *call = p->call;

    r->acked = outcome->number;
    r->progress_us = now;
    proposal_free(r, p);
    if (call != NULL)
        requests_call_stop(r, call);
    return call;
}

/* ---- sessions ---- */

static void open_session(struct replica *r, uint64_t now)
{
    Keel__Command head = KEEL__COMMAND__INIT;
    Keel__OpenSession open = KEEL__OPEN_SESSION__INIT;

    if (r->session != 0 || r->removed || raft_leader(r->raft) == 0 ||
        !raft_is_member(r->raft, r->options.raft.id))
        return;
    if (r->open_sent_us != 0 && now - r->open_sent_us < DUTY_US)
        return;
    open.node = r->options.raft.id;
    open.incarnation = r->options.incarnation;
    open.nonce = r->options.nonce;
    head.op_case = KEEL__COMMAND__OP_OPEN_SESSION;
    head.open_session = &open;
    r->open_sent_us = now; /* also when it could not be sent: again after a while */
    requests_send_bare(r, now, &head);
}

static void finish_all(struct replica *r, struct keel_link *list, int err)
{
    struct keel_link batch;

    keel_list_init(&batch);
    keel_list_splice(&batch, list);
    while (!keel_list_empty(&batch))
        requests_call_finish(r, call_of(batch.next), err);
}

void requests_session_opened(struct replica *r, uint64_t now, uint64_t session, uint64_t first_ino)
{
    r->session = session;
    r->next_number = 1;
    r->acked = 0;
    r->progress_us = now;
    r->ino_next = first_ino;
    r->ino_end = first_ino + KEEL_INODE_RANGE;
    renumber_proposals(r);
    finish_all(r, &r->ready_waiters, 0);
}

void requests_session_ended(struct replica *r)
{
    r->session = 0;
    r->open_sent_us = 0;
}

/* ---- a state that came as a whole ---- */

/* The session has applied these numbers on the way to the new state; their results are in its
 * table, since nothing after the last one that was answered here has been acknowledged. */
static void answer_applied(struct replica *r, uint64_t last, uint64_t now)
{
    struct keel_link *first;

    while ((first = keel_list_first(&r->proposals)) != NULL && proposal_of(first)->number <= last) {
        struct proposal *p = proposal_of(first);
        struct replica_call *call = p->call;
        struct command_result result;
        bool kept = apply_session_result(r->apply, r->session, p->number, &result);

        KEEL_ASSERT(kept);
        r->acked = p->number;
        r->progress_us = now;
        proposal_free(r, p);
        if (call == NULL)
            continue;
        requests_call_stop(r, call);
        call->done(call, result.err, &result);
    }
}

/* The session ended on the way: what was sent may have been applied before that, or not; nobody
 * knows any more, and it must not be applied again. */
static void give_up_sent(struct replica *r)
{
    for (struct keel_link *l = r->proposals.next, *next; l != &r->proposals; l = next) {
        struct proposal *p = proposal_of(l);
        struct replica_call *call = p->call;

        next = l->next;
        if (!p->sent)
            continue;
        proposal_free(r, p);
        if (call == NULL)
            continue;
        call->proposal = NULL;
        requests_call_fail_later(r, call, KEEL_E_TIMEDOUT);
    }
}

static void adopt_session(struct replica *r, uint64_t now)
{
    for (size_t i = 0; i < apply_session_count(r->apply); i++) {
        struct apply_session_info session = apply_session_at(r->apply, i);

        if (session.node == r->options.raft.id && session.nonce == r->options.nonce)
            requests_session_opened(r, now, session.id, session.first_ino);
    }
}

void requests_reloaded(struct replica *r, uint64_t now)
{
    uint64_t last;

    r->reloaded = false;
    if (r->session != 0 && apply_session(r->apply, r->session, &last)) {
        answer_applied(r, last, now);
        return;
    }
    if (r->session != 0) {
        give_up_sent(r);
        requests_session_ended(r);
    }
    adopt_session(r, now);
}

void requests_fail_all(struct replica *r, int err)
{
    struct keel_heap_node *top;

    while ((top = keel_heap_top(&r->deadlines)) != NULL) {
        struct replica_call *call = KEEL_CONTAINER_OF(top, struct replica_call, deadline);

        if (call->proposal != NULL)
            proposal_abandon(r, call->proposal);
        requests_call_fail_later(r, call, err);
    }
}

/* ---- inode numbers ---- */

static void on_reserved(struct replica_call *call, int err, const struct command_result *result)
{
    struct replica *r = KEEL_CONTAINER_OF(call, struct replica, reserve_call);

    r->reserving = false;
    if (err != 0)
        return; /* asked again with the next number that is taken */
    r->spare_next = result->value;
    r->spare_end = result->value + KEEL_INODE_RANGE;
    finish_all(r, &r->ready_waiters, 0);
}

static void reserve_inodes(struct replica *r)
{
    Keel__Command head = KEEL__COMMAND__INIT;
    Keel__ReserveInodes reserve = KEEL__RESERVE_INODES__INIT;

    if (r->reserving || r->session == 0 || r->spare_next != r->spare_end)
        return;
    r->reserving = true;
    reserve.count = KEEL_INODE_RANGE;
    head.op_case = KEEL__COMMAND__OP_RESERVE_INODES;
    head.reserve_inodes = &reserve;
    r->reserve_call.done = on_reserved;
    replica_propose(r, &r->reserve_call, &head, keel_slice_of(NULL, 0));
}

uint64_t replica_new_ino(struct replica *r)
{
    if (r->ino_next == r->ino_end) {
        r->ino_next = r->spare_next;
        r->ino_end = r->spare_end;
        r->spare_next = r->spare_end = 0;
    }
    if (r->ino_end - r->ino_next < KEEL_INODE_RANGE / 2)
        reserve_inodes(r);
    return r->ino_next == r->ino_end ? 0 : r->ino_next++;
}

int replica_when_ready(struct replica *r, struct replica_call *call)
{
    if (r->ino_next != r->ino_end || r->spare_next != r->spare_end)
        return 1;
    if (r->removed)
        return KEEL_E_REMOVED;
    if (replica_quorum_lost(r))
        return KEEL_E_TIMEDOUT;
    reserve_inodes(r);
    requests_call_start(r, call, now_of(r), true);
    keel_list_add(&r->ready_waiters, &call->link);
    return 0;
}

/* ---- barriers ---- */

int replica_barrier(struct replica *r, struct replica_call *call)
{
    uint64_t now = now_of(r);

    if (r->options.lease_reads && raft_lease_valid(r->raft, now) &&
        mvcc_applied_index(r->mvcc) >= raft_commit_index(r->raft))
        return 1;
    if (r->removed)
        return KEEL_E_REMOVED;
    if (replica_quorum_lost(r))
        return KEEL_E_TIMEDOUT;
    requests_call_start(r, call, now, true);
    keel_list_add(&r->new_barriers, &call->link);
    return 0;
}

static bool start_round(struct replica *r, uint64_t now)
{
    if (keel_list_empty(&r->new_barriers) || r->rounds_out >= ROUNDS_MAX)
        return false;
    uint64_t context = ++r->next_context;

    if (raft_read_index(r->raft, now, context) != 0)
        return false;
    struct read_round *round = keel_calloc(1, sizeof *round);

    round->context = context;
    round->sent_us = now;
    keel_list_init(&round->calls);
    keel_list_splice(&round->calls, &r->new_barriers);
    keel_list_add(&r->rounds, &round->link);
    r->rounds_out++;
    r->rounds_begun++;
    return true;
}

static void round_free(struct replica *r, struct read_round *round)
{
    if (!round->answered)
        r->rounds_out--;
    r->rounds_over++;
    keel_list_remove(&round->link);
    free(round);
}

void requests_on_read(struct replica *r, uint64_t context, uint64_t index)
{
    for (struct keel_link *l = r->rounds.next; l != &r->rounds; l = l->next) {
        struct read_round *round = round_of(l);

        if (round->context != context || round->answered)
            continue;
        round->answered = true;
        round->index = index;
        r->rounds_out--;
        return;
    }
}

void requests_on_applied(struct replica *r)
{
    uint64_t applied = mvcc_applied_index(r->mvcc);
    struct keel_link done;

    keel_list_init(&done);
    for (struct keel_link *l = r->rounds.next, *next; l != &r->rounds; l = next) {
        struct read_round *round = round_of(l);

        next = l->next;
        if (!round->answered || round->index > applied)
            continue;
        keel_list_splice(&done, &round->calls);
        round_free(r, round);
    }
    finish_all(r, &done, 0);
}

/* Rounds without an answer, sent before `before`, are asked again. */
static void rounds_again(struct replica *r, uint64_t before)
{
    for (struct keel_link *l = r->rounds.next, *next; l != &r->rounds; l = next) {
        struct read_round *round = round_of(l);

        next = l->next;
        if (round->answered || round->sent_us > before)
            continue;
        keel_list_splice(&r->new_barriers, &round->calls);
        round_free(r, round);
    }
}

/* ---- the ways out ---- */

static void call_time_out(struct replica *r, struct replica_call *call)
{
    if (call->proposal != NULL)
        proposal_abandon(r, call->proposal);
    requests_call_finish(r, call, KEEL_E_TIMEDOUT);
}

bool replica_cancel(struct replica *r, struct replica_call *call, bool force)
{
    struct proposal *p = call->proposal;

    if (call->failed == 0 && p != NULL && p->sent && !force)
        return false;
    bool sent = p != NULL && p->sent;

    if (p != NULL && call->failed == 0)
        proposal_abandon(r, p);
    requests_call_stop(r, call);
    return !sent;
}

/* A leader's own proposals are in its log, once and for all of its term. */
static bool resend_is_armed(const struct replica *r)
{
    return !keel_list_empty(&r->proposals) && raft_leader(r->raft) != r->options.raft.id;
}

void requests_tick(struct replica *r, uint64_t now)
{
    bool lost = replica_quorum_lost(r);
    struct keel_heap_node *top;

    while ((top = keel_heap_top(&r->deadlines)) != NULL && (lost || top->key <= now))
        call_time_out(r, KEEL_CONTAINER_OF(top, struct replica_call, deadline));
    if (now > ROUND_US)
        rounds_again(r, now - ROUND_US);
    if (resend_is_armed(r) && now - r->progress_us >= RESEND_US) {
        r->next_to_send = r->proposals.next;
        r->progress_us = now;
    }
    open_session(r, now);
}

uint64_t requests_deadline(const struct replica *r)
{
    uint64_t at = UINT64_MAX;
    const struct keel_heap_node *top = keel_heap_top(&r->deadlines);

    if (top != NULL) {
        uint64_t lost = replica_quorum_lost_us(r);

        at = top->key;
        if (lost != 0 && lost + r->options.request_timeout_us < at)
            at = lost + r->options.request_timeout_us;
    }
    if (resend_is_armed(r) && r->progress_us + RESEND_US < at)
        at = r->progress_us + RESEND_US;
    for (const struct keel_link *l = r->rounds.next; l != &r->rounds; l = l->next) {
        const struct read_round *round = KEEL_CONTAINER_OF(l, const struct read_round, link);

        if (!round->answered && round->sent_us + ROUND_US < at)
            at = round->sent_us + ROUND_US;
    }
    if (r->session == 0 && !r->removed && raft_leader(r->raft) != 0 &&
        raft_is_member(r->raft, r->options.raft.id) && r->open_sent_us + DUTY_US < at)
        at = r->open_sent_us + DUTY_US;
    return at;
}

void requests_again(struct replica *r, uint64_t now)
{
    r->next_to_send = r->proposals.next;
    r->progress_us = now;
    r->open_sent_us = 0;
    rounds_again(r, UINT64_MAX);
    members_again(r);
    for (struct keel_link *l = r->keepers.next; l != &r->keepers; l = l->next)
        KEEL_CONTAINER_OF(l, struct lease_keeper, link)->asked_us = 0;
}

void requests_on_refused(struct replica *r, uint64_t now)
{
    /* Not at once: whoever refused knows no better leader yet. */
    if (now - r->progress_us < RESEND_US - 50000)
        r->progress_us = now - (RESEND_US - 50000);
}

bool requests_pump(struct replica *r, uint64_t now)
{
    bool any = false;

    while (!keel_list_empty(&r->failed)) {
        struct replica_call *call = call_of(r->failed.next);

        keel_list_remove(&call->link);
        call->done(call, call->failed, NULL);
        any = true;
    }
    open_session(r, now);
    any |= send_proposals(r, now);
    any |= start_round(r, now);
    return any;
}

void requests_init(struct replica *r)
{
    keel_list_init(&r->proposals);
    keel_list_init(&r->new_barriers);
    keel_list_init(&r->rounds);
    keel_list_init(&r->ready_waiters);
    keel_list_init(&r->failed);
    r->next_to_send = &r->proposals;
}

void requests_free(struct replica *r)
{
    struct keel_heap_node *top;

    while ((top = keel_heap_top(&r->deadlines)) != NULL) {
        struct replica_call *call = KEEL_CONTAINER_OF(top, struct replica_call, deadline);

        requests_call_stop(r, call);
        call->done(call, KEEL_E_CLOSED, NULL);
    }
    while (!keel_list_empty(&r->failed)) {
        struct replica_call *call = call_of(r->failed.next);

        keel_list_remove(&call->link);
        call->done(call, call->failed, NULL);
    }
    while (!keel_list_empty(&r->rounds))
        round_free(r, round_of(r->rounds.next));
    while (!keel_list_empty(&r->proposals))
        proposal_free(r, proposal_of(r->proposals.next));
    keel_heap_free(&r->deadlines);
}
