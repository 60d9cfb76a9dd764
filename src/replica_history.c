/* How much history is kept: what a leader proposes so that it does not grow for ever.
 *
 * Which revision was the latest so and so long ago is remembered in samples, by every node, so that
 * a new leader need not begin anew:
 *
 *     kept at least   one hour, 10,000 revisions
 *     samples         10:00 r 100,  10:02 r 4000,  …  11:00 r 90,000
 *     at 11:01        an hour ago it was 100; 10,000 before now is 80,000: compact at 100
 *
 * What the point has made garbage leaves in steps, each a small command among the others. */
#include "check.h"
#include "replica_internal.h"

enum {
    STEP_BUDGET = 1024,     /* records: less than a millisecond of everybody's loop */
    STEP_BUDGET_BUSY = 256, /* while others have entries too: each may have to wait for a step */
    BUSY_US = 20000,        /* so long after the last of those */
    SAMPLE_MIN_US = 100000,
};

static uint64_t history_us(const struct replica *r)
{
    return apply_settings(r->apply)->history_ms * 1000;
}

static void take_sample(struct replica *r, uint64_t now)
{
    struct history *h = &r->history;
    uint64_t spacing = history_us(r) / (HISTORY_SAMPLES / 2);
    const struct history_sample *last = &h->samples[(h->first + h->count - 1) % HISTORY_SAMPLES];

    if (spacing < SAMPLE_MIN_US)
        spacing = SAMPLE_MIN_US;
    if (h->count > 0 && now - last->at_us < spacing)
        return;
    if (h->count == HISTORY_SAMPLES) {
        h->first = (h->first + 1) % HISTORY_SAMPLES;
        h->count--;
    }
    h->samples[(h->first + h->count++) % HISTORY_SAMPLES] =
        (struct history_sample){ now, mvcc_revision(r->mvcc) };
}

/* The latest revision that is known to be old enough; 0: none. */
static uint64_t old_enough(const struct replica *r, uint64_t now)
{
    const struct history *h = &r->history;
    uint64_t revision = 0;

    for (size_t i = 0; i < h->count; i++) {
        const struct history_sample *sample = &h->samples[(h->first + i) % HISTORY_SAMPLES];

        if (now - sample->at_us >= history_us(r))
            revision = sample->revision;
    }
    return revision;
}

/* Where the point should move, if that is beyond `point`; else something at most as far. The
 * samples are looked through only if there is enough history to let go: this is asked all the time.
 */
static uint64_t target(const struct replica *r, uint64_t now, uint64_t point)
{
    uint64_t revision = mvcc_revision(r->mvcc), kept = apply_settings(r->apply)->history_revisions;
    uint64_t by_count = revision > kept ? revision - kept : 0;

    if (by_count <= point)
        return by_count;
    uint64_t by_time = old_enough(r, now);

    return by_time < by_count ? by_time : by_count;
}

/* The command, with its operation in `compact`. */
static Keel__Command compact_command(Keel__Compact *compact, uint64_t revision)
{
    Keel__Command head = KEEL__COMMAND__INIT;

    keel__compact__init(compact);
    compact->revision = revision;
    head.op_case = KEEL__COMMAND__OP_COMPACT;
    head.compact = compact;
    return head;
}

static void propose_step(struct replica *r, uint64_t now)
{
    struct history *h = &r->history;
    Keel__Command head = KEEL__COMMAND__INIT;
    Keel__CompactStep step = KEEL__COMPACT_STEP__INIT;

    if (raft_last_index(r->raft) != h->step)
        h->others_us = now;
    step.budget = now - h->others_us < BUSY_US ? STEP_BUDGET_BUSY : STEP_BUDGET;
    head.op_case = KEEL__COMMAND__OP_COMPACT_STEP;
    head.compact_step = &step;
    if (requests_send_bare(r, now, &head) == 0)
        h->step = raft_last_index(r->raft);
}

/* Not applied yet, and still in the log: it may have been lost with a leader. One at a time, so
 * that what comes meanwhile has never more than one in front of it. */
static bool step_is_out(const struct replica *r)
{
    return r->history.step > mvcc_applied_index(r->mvcc) &&
           r->history.step <= raft_last_index(r->raft);
}

/* Is something to go, for the point or for the quota? */
static bool has_work(const struct replica *r)
{
    return mvcc_has_garbage(r->mvcc) ||
           (mvcc_quota_used(r->mvcc) > apply_settings(r->apply)->quota_bytes &&
            mvcc_has_history(r->mvcc));
}

void history_duties(struct replica *r, uint64_t now)
{
    struct history *h = &r->history;

    take_sample(r, now);
    if (!leases_leads_for_sure(r))
        return;
    /* Not for every single revision. */
    uint64_t point =
        mvcc_compact_revision(r->mvcc) + apply_settings(r->apply)->history_revisions / 20;
    uint64_t to = target(r, now, point);

    if (to > point && (h->asked_us == 0 || now - h->asked_us >= DUTY_US)) {
        Keel__Compact compact;
        Keel__Command head = compact_command(&compact, to);

        h->asked_us = now;
        requests_send_bare(r, now, &head);
    }
    if (has_work(r) && !step_is_out(r))
        propose_step(r, now);
}

void replica_compact(struct replica *r, struct replica_call *call, uint64_t revision)
{
    Keel__Compact compact;
    Keel__Command head = compact_command(&compact, revision);

    replica_propose(r, call, &head, keel_slice_of(NULL, 0));
}

void replica_change_settings(struct replica *r, struct replica_call *call,
                             const struct apply_settings *changes)
{
    Keel__Command head = KEEL__COMMAND__INIT;
    Keel__Settings settings = KEEL__SETTINGS__INIT;

    settings.file_size_bytes = changes->file_size_bytes;
    settings.quota_bytes = changes->quota_bytes;
    settings.txn_ops = changes->txn_ops;
    settings.history_ms = changes->history_ms;
    settings.history_revisions = changes->history_revisions;
    head.op_case = KEEL__COMMAND__OP_SETTINGS;
    head.settings = &settings;
    replica_propose(r, call, &head, keel_slice_of(NULL, 0));
}
