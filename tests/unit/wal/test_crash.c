/* Power cuts. Whatever wal_write acknowledged is there afterwards, unless it has been released or
 * reset; of a write that was under way, any number of its first records. */
#include "fixture.h"

#include "check.h"
#include "err.h"
#include "rng.h"

enum { ENTRIES_MAX = 4096, PENDING_MAX = 512 };

/* What a log holds: terms of its entries, hard state, and the highest term of any entry that ever
 * was in it. */
struct model {
    uint64_t terms[ENTRIES_MAX + 1];
    uint64_t base, last; /* base: 0, or what the log was reset to */
    uint64_t floor;      /* entries up to here may have been released */
    uint64_t top_term;
    struct raft_hard_state hard_state;
};

/* One record of the write that is under way. */
struct step {
    enum wal_record_kind kind;
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
    uint64_t acknowledged, released, resets; /* to prove that the test does something */
};

static void model_step(struct model *m, const struct step *step)
{
    if (step->kind == WAL_HARD_STATE) {
        m->hard_state = step->hard_state;
        return;
    }
    assert_true(step->index >= 1 && step->index <= ENTRIES_MAX);
    if (step->kind == WAL_RESET) {
        m->base = step->index;
        m->floor = 0;
        m->hard_state.commit = step->index;
    } else {
        assert_true(step->index > m->base && step->index <= m->last + 1);
    }
    m->terms[step->index] = step->term;
    m->last = step->index;
    if (step->term > m->top_term)
        m->top_term = step->term;
}

/* What opening the log does if the store is at a snapshot that the log does not go on from. */
static void model_install(struct model *m, const struct wal_options *options)
{
    struct step reset = { .kind = WAL_RESET,
                          .term = options->install_term,
                          .index = options->install_index };

    if (reset.index == 0 ||
        (reset.index >= m->base && reset.index <= m->last && m->terms[reset.index] == reset.term))
        return;
    model_step(m, &reset);
}

/* All that has not been released can be read, from each end of what there is. */
static void check_entries(const struct model *m, struct log *log)
{
    uint64_t first = wal_first_index(log->wal), prev_term;
    uint64_t floor = m->floor < m->last ? m->floor : m->last - (m->last > 0);
    struct raft_entry *entries;
    size_t count;

    assert_true(first >= m->base + 1);
    assert_true(first <= (m->base > floor ? m->base : floor) + 2);
    assert_true(m->base > 0 || floor > 0 || first == 1);
    assert_int_equal(wal_read(log->wal, first - 1, 1, &entries, &count, &prev_term),
                     KEEL_E_NOTFOUND);
    if (first > m->last) {
        assert_int_equal(wal_read(log->wal, first, 1, &entries, &count, &prev_term),
                         KEEL_E_NOTFOUND);
        return;
    }
    assert_int_equal(wal_read(log->wal, first, SIZE_MAX, &entries, &count, &prev_term), 0);
    assert_true(prev_term == (first == 1 ? 0 : m->terms[first - 1]));
    assert_true(count == m->last - first + 1);
    for (size_t i = 0; i < count; i++)
        assert_entry(&entries[i], first + i, m->terms[first + i]);
    raft_entries_free(entries, count);
}

static bool hard_state_equals(const struct model *m, struct raft_hard_state got)
{
    struct raft_hard_state want = m->hard_state;

    if (want.term < m->top_term)
        want = (struct raft_hard_state){ m->top_term, 0, want.commit };
    return got.term == want.term && got.vote == want.vote && got.commit == want.commit;
}

/* Terms are compared with what recovery has returned, so that the model is found; content after. */
static bool model_equals(const struct model *m, const struct log *log)
{
    const struct wal_recovery *recovery = &log->recovery;
    uint64_t applied = log->options.store_applied;

    if (recovery->last_index != m->last || !hard_state_equals(m, recovery->hard_state))
        return false;
    assert_int_equal(recovery->count, m->last - applied);
    for (size_t i = 0; i < recovery->count; i++)
        if (recovery->entries[i].term != m->terms[applied + 1 + i])
            return false;
    return true;
}

/* The recovered log is what was acknowledged, plus a prefix of the write that was under way. */
static void check_recovered(struct crash_test *t)
{
    struct model m = t->acked;
    size_t taken = 0;

    for (;;) {
        struct model installed = m;

        model_install(&installed, &t->log.options);
        if (model_equals(&installed, &t->log)) {
            t->acked = installed;
            break;
        }
        assert_true(taken < t->pending_count);
        model_step(&m, &t->pending[taken++]);
    }
    t->pending_count = 0;
    t->acked.hard_state = t->log.recovery.hard_state;
    t->log.options.install_index = t->log.options.install_term = 0;
    assert_true(t->log.recovery.first_index == wal_first_index(t->log.wal));
    check_entries(&t->acked, &t->log);
    for (size_t i = 0; i < t->log.recovery.count; i++) {
        uint64_t index = t->log.options.store_applied + 1 + i;

        assert_entry(&t->log.recovery.entries[i], index, t->acked.terms[index]);
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
    uint64_t loose = m->last - kept;
    bool new_term = keel_rng_below(&t->rng, 4) == 0;
    uint64_t first = m->last + 1;
    size_t count = (size_t)keel_rng_below(&t->rng, 6);

    t->term += new_term || t->term == 0;
    if (new_term && loose > 0)
        first -= keel_rng_below(&t->rng, loose + 1);
    if (first + count > ENTRIES_MAX)
        count = 0;

    struct wal_batch *batch = batch_of(first, count, t->term);
    uint64_t last = count > 0 ? first + count - 1 : m->last;

    if (new_term || keel_rng_below(&t->rng, 3) == 0)
        batch_hard_state(batch, t->term, keel_rng_below(&t->rng, 3),
                         kept + keel_rng_below(&t->rng, last - kept + 1));
    return batch;
}

static void add_step(struct crash_test *t, struct model *m, struct step step)
{
    assert_true(t->pending_count < PENDING_MAX);
    t->pending[t->pending_count++] = step;
    model_step(m, &step);
}

static void add_pending(struct crash_test *t, struct model *m, const struct wal_batch *batch)
{
    if (batch->reset)
        add_step(t, m,
                 (struct step){
                     .kind = WAL_RESET, .term = batch->reset_term, .index = batch->reset_index });
    for (size_t i = 0; i < batch->count; i++)
        add_step(t, m,
                 (struct step){ .kind = WAL_ENTRY,
                                .term = batch->entries[i].term,
                                .index = batch->entries[i].index });
    if (batch->has_hard_state)
        add_step(t, m, (struct step){ .kind = WAL_HARD_STATE, .hard_state = batch->hard_state });
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

/* The store has taken some of what is acknowledged and committed. */
static void advance_store(struct crash_test *t)
{
    uint64_t applied = t->log.options.store_applied, commit = t->acked.hard_state.commit;

    if (commit > applied)
        t->log.options.store_applied = applied + keel_rng_below(&t->rng, commit - applied + 1);
}

/* A snapshot has come; the store is at it before the log is. */
static int install_something(struct crash_test *t)
{
    struct model m = t->acked;
    uint64_t applied = t->log.options.store_applied;
    uint64_t kept = m.hard_state.commit > applied ? m.hard_state.commit : applied;
    uint64_t index = kept + 1 + keel_rng_below(&t->rng, 15);
    struct wal_batch *batch = batch_of(index + 1, (size_t)keel_rng_below(&t->rng, 4), t->term);

    batch->reset = true;
    batch->reset_index = index;
    batch->reset_term = t->term;
    batch_hard_state(batch, t->term, keel_rng_below(&t->rng, 3), index);
    if (index + batch->count > ENTRIES_MAX || t->term == 0) {
        wal_batch_free(batch);
        return 0;
    }
    t->log.options.store_applied = t->log.options.install_index = index;
    t->log.options.install_term = t->term;
    add_pending(t, &m, batch);
    int err = wal_write(t->log.wal, &batch, 1);

    wal_batch_free(batch);
    if (err != 0)
        return err;
    t->log.options.install_index = t->log.options.install_term = 0;
    t->acked = m;
    t->pending_count = 0;
    t->resets++;
    return 0;
}

static int release_something(struct crash_test *t)
{
    uint64_t index = keel_rng_below(&t->rng, t->log.options.store_applied + 1);
    uint64_t before = wal_first_index(t->log.wal);

    if (t->acked.floor < index)
        t->acked.floor = index;
    int err = wal_release(t->log.wal, index, keel_rng_below(&t->rng, 3) * 1000);

    if (err != 0)
        return err;
    t->released += wal_first_index(t->log.wal) > before;
    check_entries(&t->acked, &t->log);
    return 0;
}

static int do_something(struct crash_test *t)
{
    bool more;

    switch (keel_rng_below(&t->rng, 16)) {
    case 0:
    case 1:
        return wal_idle(t->log.wal);
    case 2:
    case 3:
    case 4:
        return wal_prepare(t->log.wal, &more);
    case 5:
    case 6:
    case 7:
        advance_store(t);
        return release_something(t);
    case 8:
        return keel_rng_below(&t->rng, 3) == 0 ? install_something(t) : 0;
    default:
        return write_something(t);
    }
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
    uint64_t acknowledged = 0, released = 0, resets = 0, renames = 0;

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
        released += t.released;
        resets += t.resets;
        renames += disk_mem_counters(t.log.disk).renames;
        finish(&t);
    }
    assert_true(acknowledged > 10000);
    assert_true(released > 1000 && resets > 200 && renames > 1000);
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
