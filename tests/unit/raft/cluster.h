/* A small cluster for seeded random runs: messages are delayed, reordered, lost and doubled, links
 * break (noticed or not, one way or both), nodes crash and lose what was not durable, no two clocks
 * agree, members come and go, logs are released and snapshots installed. After each call the
 * harness asserts what Raft promises. */
#ifndef CLUSTER_H
#define CLUSTER_H

#include "unit.h"

#include "raft/raft.h"
#include "rng.h"

enum {
    NODES_MAX = 7,
    LOG_MAX = 4096,
    FLIGHT_MAX = 8192,
    TERMS_MAX = 4096,
    READS_MAX = 4096,
    SHIPMENTS_MAX = 64
};

struct request { /* a persist request under way */
    struct raft_mark mark;
    uint64_t reset_index, reset_term;
    bool has_hard;
    struct raft_hard_state hard;
    struct raft_entry *entries;
    size_t count;
    uint64_t due_us;
};

struct notice { /* one side's view of a link lags behind */
    bool pending, up;
    uint64_t due_us;
};

struct node {
    struct raft *r;
    uint64_t id;
    uint64_t lives;
    /* clock = offset + now * rate / 1000 */
    uint64_t offset_us, rate;
    /* The disk: the log, of which entries before first_stored count as gone, and a store that has
     * applied everything up to an index. */
    struct raft_hard_state hard;
    struct raft_entry disk[LOG_MAX]; /* disk[i] is entry i + 1 */
    uint64_t disk_last, first_stored, store_index;
    struct request requests[256];
    size_t request_count;
    uint64_t installing; /* index of the snapshot that is taking the store's place; 0: none */
    uint64_t checked;    /* commit index that has been compared */
    uint64_t restart_us;
    struct notice notices[NODES_MAX];
};

struct flight {
    struct raft_message *msg;
    uint64_t due_us;
};

/* A snapshot: on its way, then being installed. */
struct shipment {
    size_t from, to;
    uint64_t from_lives, to_lives, index, due_us;
    bool arrived;
};

struct read {
    size_t node;
    uint64_t context, at_least;
    bool open;
};

struct cluster {
    struct keel_rng rng;
    uint64_t seed, now_us, lease_us;
    size_t count;
    struct raft_config config; /* that it starts with */
    struct node nodes[NODES_MAX];
    bool link[NODES_MAX][NODES_MAX]; /* connections, both ways */
    bool mute[NODES_MAX][NODES_MAX]; /* one way, silent */
    bool faults, keep_down;
    uint64_t delay_us, disk_us, step_us; /* exactly so long, instead of random; 0: random */
    struct flight flights[FLIGHT_MAX];
    size_t flight_count;
    struct shipment shipments[SHIPMENTS_MAX];
    size_t shipment_count;
    struct read reads[READS_MAX];
    size_t read_count;
    uint64_t next_value;
    /* What has been seen. */
    uint64_t leader_of[TERMS_MAX];
    struct raft_entry committed[LOG_MAX]; /* with references of their own */
    uint64_t committed_in[LOG_MAX];       /* the term in which each was */
    uint64_t committed_last;
    struct {
        uint64_t term, value, prev_term;
    } seen[LOG_MAX][16]; /* entries ever proposed at an index, by term */
    size_t seen_count[LOG_MAX];
};

/* Over all seeds: a run in which nothing happens proves nothing. */
struct cluster_totals {
    uint64_t leaders, commits, lease_reads, round_reads, restarts, fetches, cuts;
    uint64_t configs, joints, own_removals, installs, cut_installs, transfers;
};
extern struct cluster_totals totals;

#define REQUIRE(c, cond)                                                        \
    do {                                                                        \
        if (!(cond))                                                            \
            fail_msg("seed %llu at %llu us: %s", (unsigned long long)(c)->seed, \
                     (unsigned long long)(c)->now_us, #cond);                   \
    } while (0)

/* `voters` nodes in a configuration, and others that wait to be put into one. */
struct cluster *cluster_new(uint64_t seed, size_t voters, size_t others);
void cluster_free(struct cluster *c);

uint64_t below(struct cluster *c, uint64_t bound);
bool chance(struct cluster *c, uint64_t percent);
uint64_t clock_of(const struct cluster *c, const struct node *n);

/* A moment passes; the world acts. */
void step(struct cluster *c);
/* Everything is well again: runs until all members agree. */
void heal(struct cluster *c);
/* The configuration as of a committed index, and the index of its entry. */
struct raft_config config_at(const struct cluster *c, uint64_t index, uint64_t *ret_index);

/* Up to where the store of a node may be: what it has applied and its disk holds as well. */
uint64_t durable_applied(const struct cluster *c, const struct node *n);

/* Checks and carries out whatever the last call on a node has brought. */
void settle(struct cluster *c, struct node *n);
void set_link(struct cluster *c, size_t a, size_t b, bool up);
void crash(struct cluster *c, struct node *n);
/* A snapshot of what node `from` has at an index sets out. */
void ship(struct cluster *c, size_t from, size_t to, uint64_t index);
struct node *leader(struct cluster *c);

/* cluster_act.c: one thing that clients, operators or bad luck do. */
void act(struct cluster *c);

#endif
