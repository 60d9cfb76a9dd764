/* Power cuts. Whatever wal_write acknowledged is there afterwards; of a write that was under way,
 * any number of its first records. */
#include "fixture.h"

#include "check.h"
#include "err.h"
#include "rng.h"

enum { ENTRIES_MAX = 4096, PENDING_MAX = 512 };

/* What a log holds: terms of its entries, hard state, and the highest term of any entry that ever
 * was in it. */
struct model {
    uint64_t terms[ENTRIES_MAX];
    uint64_t count, top_term;
    struct raft_hard_state hard_state;
};

/* One record of the write that is under way. */
struct step {
    bool is_hard_state;
    uint64_t term, index;
    struct raft_hard_state hard_state;
};

struct crash_test {
    struct log log;
    struct keel_rng rng;
    struct model acked;
    struct step pending[PENDING_MAX];
    size_t pending_count;
    uint64_t term;
    uint64_t acknowledged; /* writes, to prove that the test does something */
};

static void model_step(struct model *m, const struct step *step)
{
    if (step->is_hard_state) {
        m->hard_state = step->hard_state;
        return;
    }
    assert_true(step->index >= 1 && step->index <= m->count + 1 && step->index <= ENTRIES_MAX);
    m->terms[step->index - 1] = step->term;
    m->count = step->index;
    if (step->term > m->top_term)
        m->top_term = step->term;
}

static bool model_equals(const struct model *m, struct log *log)
{
    struct raft_hard_state want = m->hard_state, got = log->recovery.hard_state;
    struct raft_entry *entries = NULL;
    size_t count = 0;
    uint64_t prev_term;
    bool equal = true;

    if (want.term < m->top_term)
        want = (struct raft_hard_state){ m->top_term, 0, want.commit };
    if (log->recovery.last_index != m->count || got.term != want.term || got.vote != want.vote ||
        got.commit != want.commit)
        return false;
    if (m->count > 0)
        assert_int_equal(wal_read(log->wal, 1, SIZE_MAX, &entries, &count, &prev_term), 0);
    assert_true(count == m->count);
    for (size_t i = 0; i < count && equal; i++)
        equal = entries[i].term == m->terms[i];
    for (size_t i = 0; i < count && equal; i++)
        assert_entry(&entries[i], i + 1, m->terms[i]);
    raft_entries_free(entries, count);
    return equal;
}

/* The recovered log is what was acknowledged, plus a prefix of the write that was under way. */
static void check_recovered(struct crash_test *t)
{
    bool found = model_equals(&t->acked, &t->log);

    for (size_t i = 0; i < t->pending_count && !found; i++) {
        model_step(&t->acked, &t->pending[i]);
        found = model_equals(&t->acked, &t->log);
    }
    assert_true(found);
    t->pending_count = 0;
    t->acked.hard_state = t->log.recovery.hard_state;

    size_t above = (size_t)(t->acked.count - t->log.options.store_applied);

    assert_int_equal(t->log.recovery.count, above);
    for (size_t i = 0; i < above; i++) {
        uint64_t index = t->log.options.store_applied + 1 + i;

        assert_entry(&t->log.recovery.entries[i], index, t->acked.terms[index - 1]);
    }
}

static void start(struct crash_test *t, uint64_t seed)
{
    *t = (struct crash_test){ 0 };
    keel_rng_seed(&t->rng, seed);
    t->log.disk = disk_mem_new(seed + 1);
    t->log.options = (struct wal_options){ .cluster_id = TEST_CLUSTER,
                                           .node_id = TEST_NODE,
                                           .segment_bytes = 1024u << keel_rng_below(&t->rng, 4),
                                           .fill_bytes = 256u << keel_rng_below(&t->rng, 3) };
}

/* A batch that goes on from what the pending steps will have made of the log. */
static struct wal_batch *random_batch(struct crash_test *t, const struct model *m)
{
    uint64_t kept = m->hard_state.commit > t->log.options.store_applied
                        ? m->hard_state.commit
                        : t->log.options.store_applied;
    uint64_t loose = m->count - kept;
    bool new_term = keel_rng_below(&t->rng, 4) == 0;
    uint64_t first = m->count + 1;
    size_t count = (size_t)keel_rng_below(&t->rng, 6);

    t->term += new_term || t->term == 0;
    if (new_term && loose > 0)
        first -= keel_rng_below(&t->rng, loose + 1);
    if (first + count > ENTRIES_MAX)
        count = 0;

    struct wal_batch *batch = batch_of(first, count, t->term);
    uint64_t last = count > 0 ? first + count - 1 : m->count;

    if (new_term || keel_rng_below(&t->rng, 3) == 0)
        batch_hard_state(batch, t->term, keel_rng_below(&t->rng, 3),
                         kept + keel_rng_below(&t->rng, last - kept + 1));
    return batch;
}

static void add_pending(struct crash_test *t, struct model *m, const struct wal_batch *batch)
{
    for (size_t i = 0; i <= batch->count; i++) {
        struct step step = { .is_hard_state = i == batch->count, .hard_state = batch->hard_state };

        if (step.is_hard_state && !batch->has_hard_state)
            continue;
        if (!step.is_hard_state) {
            step.term = batch->entries[i].term;
            step.index = batch->entries[i].index;
        }
        assert_true(t->pending_count < PENDING_MAX);
        t->pending[t->pending_count++] = step;
        model_step(m, &step);
    }
}

static int write_something(struct crash_test *t)
{
    struct wal_batch *batches[3];
    size_t count = (size_t)keel_rng_below(&t->rng, 3) + 1;
    struct model m = t->acked;

    for (size_t i = 0; i < count; i++) {
        batches[i] = random_batch(t, &m);
        add_pending(t, &m, batches[i]);
    }
    int err = wal_write(t->log.wal, batches, count);

    for (size_t i = 0; i < count; i++)
        wal_batch_free(batches[i]);
    if (err != 0)
        return err;
    t->acked = m;
    t->pending_count = 0;
    t->acknowledged++;
    return 0;
}

static int do_something(struct crash_test *t)
{
    bool more;

    switch (keel_rng_below(&t->rng, 6)) {
    case 0:
        return wal_idle(t->log.wal);
    case 1:
    case 2:
        return wal_prepare(t->log.wal, &more);
    default:
        return write_something(t);
    }
}

/* The store has taken some of what is acknowledged and committed. */
static void advance_store(struct crash_test *t)
{
    uint64_t applied = t->log.options.store_applied, commit = t->acked.hard_state.commit;

    if (commit > applied)
        t->log.options.store_applied = applied + keel_rng_below(&t->rng, commit - applied + 1);
}

/* Opens the log; power may fail meanwhile. Anything but success or that is a failure of the test.
 */
static bool try_open(struct crash_test *t)
{
    int err = log_open(&t->log);

    if (err != 0 && !disk_mem_is_cut(t->log.disk))
        print_message("%s\n", t->log.why);
    assert_true(err == 0 || disk_mem_is_cut(t->log.disk));
    if (err == 0)
        check_recovered(t);
    return err == 0;
}

/* Runs until power fails in the cut_in-th change of the disk (at most `limit` things are done). */
static void run_until_cut(struct crash_test *t, uint64_t cut_in, int limit)
{
    disk_mem_cut(t->log.disk, cut_in);
    if (try_open(t)) {
        int err = 0;

        while (err == 0 && limit-- > 0)
            err = do_something(t);
        assert_true(err == 0 || disk_mem_is_cut(t->log.disk));
    }
    log_close(&t->log);
}

static void finish(struct crash_test *t)
{
    disk_mem_cut(t->log.disk, 0);
    assert_true(try_open(t));
    log_end(&t->log);
}

static void acknowledged_writes_survive_power_cuts_at_random(void **state)
{
    uint64_t acknowledged = 0;

    (void)state;
    for (uint64_t seed = 0; seed < 2000; seed++) {
        struct crash_test t;

        start(&t, seed);
        for (int life = 0; life < 8; life++) {
            run_until_cut(&t, keel_rng_below(&t.rng, 40) + 1, 30);
            /* Sometimes only the process dies, and what it wrote is still there, but not yet safe.
             */
            if (keel_rng_below(&t.rng, 4) > 0)
                disk_mem_crash(t.log.disk);
            advance_store(&t);
        }
        acknowledged += t.acknowledged;
        finish(&t);
    }
    assert_true(acknowledged > 10000);
}

/* The same short life, cut at each change of the disk in turn: creation, filling, switching
 * segments and all. */
static void acknowledged_writes_survive_a_power_cut_at_every_point(void **state)
{
    (void)state;
    for (uint64_t script = 0; script < 5; script++) {
        bool was_cut = true;

        for (uint64_t cut = 1; was_cut; cut++) {
            for (uint64_t variant = 0; variant < 8; variant++) {
                struct crash_test t;

                start(&t, script);
                t.log.disk->ops->free(t.log.disk);
                t.log.disk = disk_mem_new(cut * 8 + variant);
                run_until_cut(&t, cut, 25);
                was_cut = disk_mem_is_cut(t.log.disk);
                disk_mem_crash(t.log.disk);
                finish(&t);
            }
            assert_true(cut < 1000);
        }
    }
}

/* Power fails again and again while the torn tail is being cut. */
static void power_cut_during_recovery_loses_nothing(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 300; seed++) {
        struct crash_test t;

        start(&t, 9000 + seed);
        run_until_cut(&t, 20 + keel_rng_below(&t.rng, 30), 40);
        for (uint64_t cut = 1; cut < 8; cut++) {
            disk_mem_crash(t.log.disk);
            run_until_cut(&t, cut, 0);
        }
        finish(&t);
    }
}

/* Killed between a write and its sync, started again, and then the power fails: what the second
 * life has seen, and may have acted upon, must not vanish. */
static void what_recovery_returned_is_synced_by_it(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 300; seed++) {
        struct crash_test t;

        start(&t, 20000 + seed);
        assert_true(try_open(&t));
        disk_mem_cut(t.log.disk, 1);
        while (t.pending_count == 0)
            (void)write_something(&t);
        log_close(&t.log);
        disk_mem_cut(t.log.disk, 0);
        assert_true(try_open(&t));
        log_close(&t.log);
        disk_mem_crash(t.log.disk);
        finish(&t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(acknowledged_writes_survive_power_cuts_at_random),
        cmocka_unit_test(acknowledged_writes_survive_a_power_cut_at_every_point),
        cmocka_unit_test(power_cut_during_recovery_loses_nothing),
        cmocka_unit_test(what_recovery_returned_is_synced_by_it),
    };

    return cmocka_run_group_tests_name("crash", tests, NULL, NULL);
}
