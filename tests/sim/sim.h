/* The simulator: a whole cluster of real replicas (raft, apply, mvcc, leases; the WAL codec on a
 * memory disk; a memory store) on virtual time. One heap of events; everything random comes from
 * the seed, one generator a concern.
 *
 *   sim.c      time, events, disks, crashes and restarts of nodes
 *   network.c  delay, loss, duplication, reordering, partitions, connection resets
 *   clients.c  the workload: writes, appends, creations, removals, renames, reads, leases
 *   check.c    what must hold after every event (docs/testing.md)
 *   main.c     keel-sim: shapes, seeds, counting
 */
#ifndef SIM_SIM_H
#define SIM_SIM_H

#include <stdio.h>

#include "heap.h"
#include "list.h"
#include "mvcc/kv.h"
#include "replica.h"
#include "replica_internal.h"
#include "rng.h"
#include "wal/disk_mem.h"
#include "wal/wal.h"

enum {
    SIM_NODES_MAX = 7,
    SIM_CLIENTS_MAX = 8,
    SIM_FILES = 4,
    SIM_BATCHES_MAX = 4096,
};

/* What is tried, and how hard. Chances are in 1/1000. */
struct sim_shape {
    const char *name;
    unsigned nodes, clients, ops; /* ops in all */
    unsigned loss, duplicate, reorder;
    uint64_t delay_max_us, disk_max_us;
    uint64_t fault_every_us; /* mean time between two faults; 0: none */
    uint64_t think_max_us;   /* between two operations of a client */
    bool lease_reads, codec; /* codec: every message goes through its wire form */
    uint64_t limit_us;       /* of virtual time, for the workload and for convergence */
};

struct sim;

/* One entry of a node's log, as handed to its disk. */
struct sim_entry {
    uint64_t term, hash;
};

struct sim_node {
    struct keel_env env;
    struct sim *sim;
    unsigned slot;
    uint64_t id, incarnation;
    bool up;
    uint64_t paused_until_us;
    uint64_t epoch; /* of its process: events of an older one are void */
    uint64_t clock_offset_us;
    int64_t drift_ppm;
    int64_t wall_skew_ns;

    struct disk *disk;
    struct kv *kv;
    struct wal *wal;
    struct mvcc *mvcc;
    struct apply *apply;
    struct replica *replica;
    struct wal_batch *queue[SIM_BATCHES_MAX]; /* handed over, not written */
    size_t queued;
    bool writing; /* an event for the queue is under way */
    struct kv_batch *checkpoint;
    uint64_t timer_us; /* earliest timer event that is in the heap */

    /* Checkers. */
    struct sim_entry *log; /* by index; what it has handed to its disk */
    uint64_t log_last, log_capacity;
    uint64_t persisted_last; /* as far as it was told */
    uint64_t checked_commit;
    uint64_t seen_revision;
};

enum sim_event_kind {
    EVENT_TIMER,
    EVENT_MESSAGE,
    EVENT_DISK,
    EVENT_LOG_READ,
    EVENT_STORE,
    EVENT_FAULT,
    EVENT_CLIENT,
    EVENT_RESTART,
    EVENT_HEAL,
    EVENT_CONNECT,
    EVENT_DISCONNECT
};

struct sim_event {
    struct keel_heap_node heap;
    enum sim_event_kind kind;
    unsigned node; /* or client */
    uint64_t epoch;
    unsigned from;
    uint64_t link_epoch;
    struct keel_message *msg;
    uint64_t first;
    size_t max_bytes;
};

/* A link between two nodes, one way. */
struct sim_link {
    bool cut, connected;
    uint64_t epoch;
    uint64_t last_delivery_us;
};

struct sim_client;

/* What became of one revision: for the linearizability check. */
struct sim_change {
    enum keel_change_kind kind;
    uint64_t ino, value_hash, size, hash;
};

struct sim {
    const struct sim_shape *shape;
    uint64_t seed, now_us;
    bool trace;
    uint64_t trace_hash;
    struct keel_rng net_rng, disk_rng, fault_rng, client_rng, clock_rng;
    struct keel_heap events;
    uint64_t event_seq;
    struct sim_node nodes[SIM_NODES_MAX];
    struct sim_link links[SIM_NODES_MAX][SIM_NODES_MAX];
    bool calm; /* no more faults: heal and converge */
    struct apply_member members[KEEL_MEMBERS_MAX];
    char member_names[SIM_NODES_MAX][16];

    struct sim_client *clients;
    unsigned ops_started, ops_done, ops_ok, clients_busy;
    uint64_t next_value;

    /* Checkers: what the cluster as a whole has shown. */
    uint64_t *leaders; /* by term */
    size_t leader_capacity;
    struct sim_entry *committed; /* by index */
    uint64_t committed_last, committed_capacity;
    struct keel_hash128 *state_hashes; /* by index; zero: not seen */
    size_t state_capacity;
    struct sim_change *changes; /* by revision */
    uint64_t change_last, change_capacity;
    uint64_t floor_revision; /* the highest point of any completed operation */
    uint64_t elections;
    char failure[512]; /* "": none */
};

/* ---- sim.c ---- */

struct sim *sim_new(const struct sim_shape *shape, uint64_t seed, bool trace);
void sim_free(struct sim *sim);
/* Runs it to its end. True: nothing was wrong. */
bool sim_run(struct sim *sim);

struct sim_event *sim_event_at(struct sim *sim, uint64_t at_us, enum sim_event_kind kind,
                               unsigned node);
void sim_node_start(struct sim *sim, struct sim_node *node);
void sim_node_crash(struct sim *sim, struct sim_node *node);
/* After anything was put into a node: pump, check, set its timer. */
void sim_node_settle(struct sim_node *node);
uint64_t sim_node_clock(const struct sim_node *node);
void sim_trace(struct sim *sim, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
bool sim_chance(struct keel_rng *rng, unsigned per_mille);

/* ---- network.c ---- */

void network_send(struct sim *sim, unsigned from, unsigned to, struct keel_message *msg_take);
void network_deliver(struct sim *sim, struct sim_event *event);
void network_reset(struct sim *sim, unsigned a, unsigned b);
void network_fault(struct sim *sim);
void network_heal(struct sim *sim);
void network_disconnect_event(struct sim *sim, struct sim_event *event);
void network_connect_event(struct sim *sim, struct sim_event *event);
void network_node_up(struct sim *sim, unsigned slot);
void network_node_down(struct sim *sim, unsigned slot);

/* ---- clients.c ---- */

void clients_start(struct sim *sim);
void clients_free(struct sim *sim);
void clients_event(struct sim *sim, unsigned client);
void clients_node_down(struct sim *sim, unsigned slot);
void clients_lease_lost(struct sim *sim, unsigned slot, uint64_t lease);
void clients_changed(struct sim *sim, unsigned slot, const struct keel_change *change);
bool clients_done(const struct sim *sim);

/* ---- check.c ---- */

void check_fail(struct sim *sim, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void check_append(struct sim_node *node, const struct wal_batch *batch);
void check_recovered(struct sim_node *node, const struct wal_recovery *recovery);
void check_changed(struct sim_node *node, const struct keel_change *change);
void check_node(struct sim_node *node);
void check_converged(struct sim *sim);
bool check_is_converged(struct sim *sim);
/* The value of a file at a revision by the common history; false: no such file then. */
bool check_value_at(struct sim *sim, uint64_t ino, uint64_t revision, uint64_t *ret_hash);
void check_free(struct sim *sim);

#endif
