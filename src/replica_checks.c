/* Do all members have the same state? What is applied is a pure function of the log, so they must;
 * if one has not (a bug, memory that went bad), it must not go on answering.
 *
 *   leader      Check ──> log            now and then, and when somebody asks
 *   everybody   applies it, and tells everybody a digest of the state right behind it
 *   leader      a majority of the voters agrees, others do not: Verdict(those) ──> log
 *   everybody   applies it: they are marked; who is one of them stops
 *
 * The log puts all digests of a check at the same index, and so at the same compaction point. While
 * no majority agrees nobody can be judged: that is only told. */
#include <inttypes.h>

#include "check.h"
#include "raft/quorum.h"
#include "replica_internal.h"

enum {
    CHECK_US = 10000000, /* between two that nobody asked for */
    ANSWERS_US = 2000000 /* for the others' digests, while somebody waits for them */
};

static uint64_t check_us(const struct replica *r)
{
    return r->options.check_us != 0 ? r->options.check_us : CHECK_US;
}

/* The command, with its operation in `check`. */
static Keel__Command check_command(Keel__Check *check)
{
    Keel__Command head = KEEL__COMMAND__INIT;

    keel__check__init(check);
    head.op_case = KEEL__COMMAND__OP_CHECK;
    head.check = check;
    return head;
}

/* ---- what was said ---- */

/* The one at that index; a new one takes the place of the oldest. NULL: it is older than all. */
static struct check *check_at(struct replica *r, uint64_t index)
{
    struct check *oldest = &r->checks.kept[0];

    for (size_t i = 0; i < CHECKS_KEPT; i++) {
        struct check *c = &r->checks.kept[i];

        if (c->index == index)
            return c;
        if (c->index < oldest->index)
            oldest = c;
    }
    if (oldest->index >= index)
        return NULL;
    *oldest = (struct check){ .index = index };
    return oldest;
}

static const struct check *latest_check(const struct replica *r)
{
    for (size_t i = 0; i < CHECKS_KEPT; i++)
        if (r->checks.kept[i].index == r->checks.applied_index)
            return &r->checks.kept[i];
    return NULL;
}

static const struct keel_hash128 *said_by(const struct check *c, uint64_t id)
{
    for (size_t i = 0; i < c->count; i++)
        if (c->said[i].id == id)
            return &c->said[i].digest;
    return NULL;
}

static void note_digest(struct replica *r, struct check *c, uint64_t id, struct keel_hash128 digest)
{
    if (c == NULL || said_by(c, id) != NULL || c->count == KEEL_ARRAY_LEN(c->said))
        return;
    c->said[c->count++] = (struct said_digest){ id, digest };
    if (!keel_hash128_equal(digest, c->said[0].digest))
        r->checks.differ = true;
}

void checks_on_digest(struct replica *r, uint64_t from, const struct keel_message *msg)
{
    if (replica_member(r, from) != NULL && msg->index > 0)
        note_digest(r, check_at(r, msg->index), from, msg->digest);
}

void checks_applied(struct replica *r, uint64_t index)
{
    struct keel_hash128 digest = apply_digest(r->apply);
    size_t count;
    const struct apply_member *members = apply_members(r->apply, &count);

    r->checks.applied_index = index;
    note_digest(r, check_at(r, index), r->options.raft.id, digest);
    for (size_t i = 0; i < count; i++) {
        if (members[i].id == r->options.raft.id)
            continue;
        struct keel_message *msg = keel_message_new(MESSAGE_DIGEST);

        msg->index = index;
        msg->digest = digest;
        r->env->ops->send(r->env, members[i].id, msg);
    }
}

/* ---- verdicts ---- */

struct opinion {
    const struct check *check;
    struct keel_hash128 digest;
};

static bool has_opinion(const void *arg, uint64_t id)
{
    const struct opinion *o = arg;
    const struct keel_hash128 *said = said_by(o->check, id);

    return said != NULL && keel_hash128_equal(*said, o->digest);
}

/* What a majority of the voters says, of both sets of them while the configuration is joint. */
static bool majority_of(const struct replica *r, const struct check *c,
                        struct keel_hash128 *ret_digest)
{
    for (size_t i = 0; i < c->count; i++) {
        struct opinion opinion = { c, c->said[i].digest };

        if (raft_quorum_reached(apply_config(r->apply, NULL), has_opinion, &opinion)) {
            *ret_digest = opinion.digest;
            return true;
        }
    }
    return false;
}

/* Members that are not marked yet, and said something else than the majority. */
static size_t find_corrupt(const struct replica *r, const struct check *c,
                           uint64_t ret_ids[KEEL_MEMBERS_MAX])
{
    struct keel_hash128 majority;
    size_t count = 0;

    if (!majority_of(r, c, &majority))
        return 0;
    for (size_t i = 0; i < c->count; i++) {
        const struct apply_member *member = replica_member(r, c->said[i].id);

        if (member != NULL && member->corrupt_index == 0 &&
            !keel_hash128_equal(c->said[i].digest, majority))
            ret_ids[count++] = member->id;
    }
    return count;
}

static void propose_verdict(struct replica *r, uint64_t now, const struct check *c, uint64_t *ids,
                            size_t count)
{
    Keel__Command head = KEEL__COMMAND__INIT;
    Keel__Verdict verdict = KEEL__VERDICT__INIT;

    verdict.index = c->index;
    verdict.nodes = ids;
    verdict.n_nodes = count;
    head.op_case = KEEL__COMMAND__OP_VERDICT;
    head.verdict = &verdict;
    requests_send_bare(r, now, &head);
}

static void judge(struct replica *r, uint64_t now)
{
    struct checks *k = &r->checks;
    uint64_t ids[KEEL_MEMBERS_MAX];

    if (!k->differ || (k->judged_us != 0 && now - k->judged_us < DUTY_US))
        return;
    for (size_t i = 0; i < CHECKS_KEPT; i++) {
        size_t count = find_corrupt(r, &k->kept[i], ids);

        if (count == 0)
            continue;
        k->judged_us = now;
        propose_verdict(r, now, &k->kept[i], ids, count);
        return;
    }
}

/* Nothing new since the last one: nothing to check. */
static bool is_due(const struct replica *r, uint64_t now)
{
    const struct checks *k = &r->checks;

    return mvcc_applied_index(r->mvcc) > k->applied_index && now - k->asked_us >= check_us(r);
}

void checks_pump(struct replica *r, uint64_t now)
{
    struct checks *k = &r->checks;
    const struct keel_link *first = keel_list_first(&k->waiting);

    if (first != NULL && (now >= k->answers_until_us || checks_complete(r))) {
        while (!keel_list_empty(&k->waiting))
            requests_call_finish(r, KEEL_CONTAINER_OF(k->waiting.next, struct replica_call, link),
                                 0);
    }
    if (!leases_leads_for_sure(r))
        return;
    if (is_due(r, now)) {
        Keel__Check check;
        Keel__Command head = check_command(&check);

        k->asked_us = now;
        requests_send_bare(r, now, &head);
    }
    judge(r, now);
}

uint64_t checks_deadline(const struct replica *r)
{
    return keel_list_empty(&r->checks.waiting) ? UINT64_MAX : r->checks.answers_until_us;
}

/* ---- the marked one ---- */

/* The latest check before that at which this node was like the others; 0: none that is known. */
static uint64_t same_before(const struct replica *r, uint64_t index)
{
    uint64_t latest = 0;

    for (size_t i = 0; i < CHECKS_KEPT; i++) {
        const struct check *c = &r->checks.kept[i];
        const struct keel_hash128 *own = said_by(c, r->options.raft.id);
        struct keel_hash128 majority;

        if (own != NULL && c->index < index && c->index > latest && majority_of(r, c, &majority) &&
            keel_hash128_equal(*own, majority))
            latest = c->index;
    }
    return latest;
}

void checks_members_changed(const struct replica *r)
{
    const struct apply_member *self = replica_member(r, r->options.raft.id);

    if (self == NULL || self->corrupt_index == 0)
        return;
    keel_fatal("the state of this node is not that of the others: it became another one behind log "
               "index %" PRIu64 ", and the check at %" PRIu64 " found it. Nothing here is to be "
               "trusted any more, so it stops. Keep a copy of its data directory, remove it "
               "(keelctl members remove %s), and add it again with an empty one",
               same_before(r, self->corrupt_index), self->corrupt_index, self->name);
}

/* ---- being asked ---- */

void replica_check(struct replica *r, struct replica_call *call)
{
    Keel__Check check;
    Keel__Command head = check_command(&check);

    replica_propose(r, call, &head, keel_slice_of(NULL, 0));
}

/* The entry is applied here: now the others' digests are waited for. */
void checks_wait(struct replica *r, struct replica_call *call, uint64_t now)
{
    requests_call_start(r, call, now, false);
    keel_list_add(&r->checks.waiting, &call->link);
    r->checks.answers_until_us = now + ANSWERS_US;
}

bool checks_complete(const struct replica *r)
{
    struct raft_peer_status peers[KEEL_MEMBERS_MAX];
    size_t count = raft_peers(r->raft, peers);
    const struct check *c = latest_check(r);

    for (size_t i = 0; i < count; i++)
        if (peers[i].id != r->options.raft.id && peers[i].connected &&
            (c == NULL || said_by(c, peers[i].id) == NULL))
            return false;
    return true;
}

void replica_check_report(const struct replica *r, struct replica_check_report *ret_report)
{
    const struct check *c = latest_check(r);
    size_t count;
    const struct apply_member *members = apply_members(r->apply, &count);
    struct keel_hash128 majority = { 0 };

    *ret_report = (struct replica_check_report){ .index = r->checks.applied_index, .count = count };
    ret_report->agreed = c != NULL && majority_of(r, c, &majority);
    for (size_t i = 0; i < count; i++) {
        const struct keel_hash128 *said = c != NULL ? said_by(c, members[i].id) : NULL;
        struct replica_checked_member *m = &ret_report->members[i];

        m->id = members[i].id;
        m->answered = said != NULL;
        if (said == NULL)
            continue;
        m->digest = *said;
        m->differs = ret_report->agreed ? !keel_hash128_equal(*said, majority)
                                        : !keel_hash128_equal(*said, c->said[0].digest);
        ret_report->differ |= m->differs;
    }
}

void checks_init(struct replica *r)
{
    keel_list_init(&r->checks.waiting);
    r->checks.asked_us = r->started_us;
}
