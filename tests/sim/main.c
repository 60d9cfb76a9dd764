/* keel-sim: runs seeds of a shape. A failure prints the line that replays it. */
#include <getopt.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "check.h"
#include "sim.h"

static const struct sim_shape shapes[] = {
    { .name = "sprint",
      .nodes = 3,
      .spare = 2,
      .clients = 3,
      .ops = 30,
      .loss = 10,
      .duplicate = 20,
      .reorder = 100,
      .delay_max_us = 3000,
      .disk_max_us = 3000,
      .fault_every_us = 400000,
      .think_max_us = 60000,
      .operated = 200,
      .operator_every_us = 250000,
      .short_log = 300,
      .rough = 300,
      .lease_reads = true,
      .limit_us = 90000000 },
    { .name = "members",
      .nodes = 0,
      .spare = 3,
      .clients = 4,
      .ops = 200,
      .loss = 10,
      .duplicate = 20,
      .reorder = 100,
      .delay_max_us = 3000,
      .disk_max_us = 3000,
      .fault_every_us = 900000,
      .think_max_us = 80000,
      .operated = 1000,
      .operator_every_us = 200000,
      .short_log = 700,
      .rough = 200,
      .lease_reads = true,
      .limit_us = 300000000 },
    { .name = "marathon",
      .nodes = 0,
      .spare = 2,
      .clients = 6,
      .ops = 1500,
      .loss = 10,
      .duplicate = 20,
      .reorder = 100,
      .delay_max_us = 8000,
      .disk_max_us = 5000,
      .fault_every_us = 700000,
      .think_max_us = 100000,
      .operated = 600,
      .operator_every_us = 1500000,
      .short_log = 600,
      .rough = 300,
      .lease_reads = true,
      .codec = true,
      .limit_us = 600000000 },
    { .name = "storm",
      .nodes = 3,
      .spare = 1,
      .clients = 6,
      .ops = 200,
      .loss = 100,
      .duplicate = 100,
      .reorder = 400,
      .delay_max_us = 30000,
      .disk_max_us = 20000,
      .fault_every_us = 150000,
      .think_max_us = 50000,
      .operated = 300,
      .operator_every_us = 1000000,
      .short_log = 400,
      .rough = 500,
      .lease_reads = true,
      .codec = true,
      .limit_us = 300000000 },
    { .name = "rounds",
      .nodes = 3,
      .spare = 1,
      .clients = 3,
      .ops = 60,
      .loss = 20,
      .duplicate = 20,
      .reorder = 200,
      .delay_max_us = 5000,
      .disk_max_us = 3000,
      .fault_every_us = 200000,
      .think_max_us = 40000,
      .operated = 200,
      .operator_every_us = 400000,
      .short_log = 300,
      .rough = 700,
      .lease_reads = false,
      .codec = true,
      .limit_us = 150000000 },
    { .name = "handover",
      .nodes = 3,
      .spare = 0,
      .clients = 4,
      .ops = 80,
      .loss = 10,
      .duplicate = 50,
      .reorder = 200,
      .delay_max_us = 3000,
      .disk_max_us = 3000,
      .fault_every_us = 100000,
      .think_max_us = 15000,
      .operated = 1000,
      .operator_every_us = 40000,
      .transfers = 950,
      .short_log = 200,
      .rough = 400,
      .lease_reads = true,
      .limit_us = 120000000 },
    { .name = "leases",
      .nodes = 3,
      .spare = 0,
      .clients = 6,
      .ops = 150,
      .loss = 10,
      .duplicate = 20,
      .reorder = 100,
      .delay_max_us = 30000,
      .disk_max_us = 3000,
      .fault_every_us = 400000,
      .think_max_us = 150000,
      .operated = 300,
      .operator_every_us = 500000,
      .transfers = 900,
      .leases = 300,
      .short_log = 200,
      .rough = 600,
      .lease_reads = true,
      .limit_us = 200000000 },
    { .name = "single",
      .nodes = 1,
      .spare = 2,
      .clients = 3,
      .ops = 60,
      .delay_max_us = 3000,
      .disk_max_us = 3000,
      .fault_every_us = 300000,
      .think_max_us = 60000,
      .operated = 300,
      .operator_every_us = 200000,
      .short_log = 500,
      .rough = 200,
      .lease_reads = true,
      .limit_us = 120000000 },
};

static const char usage[] =
    "usage: keel-sim --shape sprint|members|marathon|storm|rounds|handover|leases|\n"
    "                single --seed S [--count N]\n"
    "                [--trace]\n"
    "\n"
    "Simulates whole clusters on virtual time, seeds S to S + N - 1. Exit code 1 and the line\n"
    "that replays it when something does not hold. --trace shows what happens, twice:\n"
    "messages too.\n";

static const struct sim_shape *find_shape(const char *name)
{
    for (size_t i = 0; i < KEEL_ARRAY_LEN(shapes); i++)
        if (strcmp(shapes[i].name, name) == 0)
            return &shapes[i];
    return NULL;
}

struct totals {
    uint64_t ops, ok, elections, virtual_us, hash, changes, transfers, wipes, snapshots;
};

/* What is running, for an assertion that fails in it. */
static const char *running_shape;
static uint64_t running_seed;

static void on_abort(int signal)
{
    char line[128];
    int len =
        snprintf(line, sizeof line, "\nreplay: keel-sim --shape %s --seed %" PRIu64 " --trace\n",
                 running_shape, running_seed);

    if (write(STDOUT_FILENO, line, (size_t)len) < 0)
        _exit(3);
    raise(signal);
}

static void catch_aborts(void)
{
    struct sigaction action = { .sa_handler = on_abort, .sa_flags = (int)SA_RESETHAND };

    sigaction(SIGABRT, &action, NULL);
    sigaction(SIGSEGV, &action, NULL);
    sigaction(SIGTERM, &action, NULL); /* it hung */
}

static bool run_seed(const struct sim_shape *shape, uint64_t seed, int trace, struct totals *totals)
{
    running_shape = shape->name;
    running_seed = seed;
    struct sim *sim = sim_new(shape, seed, trace);
    bool good = sim_run(sim);

    totals->ops += sim->ops_done;
    totals->ok += sim->ops_ok;
    totals->elections += sim->elections;
    totals->virtual_us += sim->now_us;
    totals->hash ^= sim->trace_hash + seed;
    totals->changes += sim->changes_done;
    totals->transfers += sim->transfers_done;
    totals->wipes += sim->wipes;
    totals->snapshots += sim->snapshots_installed;
    if (!good)
        printf("FAILED at %" PRIu64 " ms: %s\nreplay: keel-sim --shape %s --seed %" PRIu64
               " --trace\n",
               sim->now_us / 1000, sim->failure, shape->name, seed);
    sim_free(sim);
    return good;
}

int main(int argc, char **argv)
{
    static const struct option options[] = {
        { "shape", required_argument, NULL, 's' }, { "seed", required_argument, NULL, 'e' },
        { "count", required_argument, NULL, 'n' }, { "trace", no_argument, NULL, 't' },
        { "help", no_argument, NULL, 'h' },        { NULL, 0, NULL, 0 },
    };
    const struct sim_shape *shape = &shapes[0];
    uint64_t seed = 1, count = 1;
    struct totals totals = { 0 };
    int trace = 0;
    int c;

    while ((c = getopt_long(argc, argv, "", options, NULL)) != -1) {
        if (c == 's')
            shape = find_shape(optarg);
        else if (c == 'e')
            seed = strtoull(optarg, NULL, 10);
        else if (c == 'n')
            count = strtoull(optarg, NULL, 10);
        else if (c == 't')
            trace++;
        if (c == '?' || c == 'h' || shape == NULL) {
            fputs(usage, c == 'h' ? stdout : stderr);
            return c == 'h' ? 0 : 2;
        }
    }
    catch_aborts();
    clock_t start = clock();

    for (uint64_t i = 0; i < count; i++)
        if (!run_seed(shape, seed + i, trace, &totals))
            return 1;
    double seconds = (double)(clock() - start) / CLOCKS_PER_SEC;

    printf("%s: %" PRIu64 " seeds from %" PRIu64 " passed, %" PRIu64 " of %" PRIu64
           " operations succeeded, %" PRIu64 " elections, %" PRIu64 " changes of members, %" PRIu64
           " transfers, %" PRIu64 " lost disks, %" PRIu64 " snapshots, %" PRIu64
           " s virtual, %.0f seeds/s, hash %016" PRIx64 "\n",
           shape->name, count, seed, totals.ok, totals.ops, totals.elections, totals.changes,
           totals.transfers, totals.wipes, totals.snapshots, totals.virtual_us / 1000000,
           seconds > 0 ? (double)count / seconds : 0, totals.hash);
    return 0;
}
