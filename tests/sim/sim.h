/* The simulator: a whole cluster of real replicas (raft, apply, mvcc, leases; the WAL codec on a
 * memory disk; the snapshot codec over memory stores) on virtual time. One heap of events;
 * everything random comes from the seed, one generator a concern.
 *
 *   sim.c         time, events, the plan of a seed
 *   node.c        the life of nodes: start, crash, clean stop, a disk that is wiped
 *   disk.c        a node's log, store and snapshots: what its env does asynchronously
 *   network.c     delay, loss, duplication, reordering, cuts, clogging, connections, admission
 *   faults.c      what goes wrong, and when
 *   clients.c     the workload: writes, appends, creations, removals, renames, reads, leases
 *   operator.c    the workload of an administrator: members come, go and are replaced
 *   check.c       what must hold after every event: leaders, logs, states (docs/testing.md)
 *   check_quorum.c  … commits: counted from the disks; configurations
 *   check_changes.c … what is seen of changes: revisions, values, a mirror of the files
 *   main.c        keel-sim: shapes, seeds, counting
 *
 * A slot is a place for a node. Each data directory in it has an id of its own:
 * slot + 1 + SIM_ID_STRIDE * generation. */
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
    SIM_SLOTS_MAX = 10,
    SIM_ID_STRIDE = 16,
    SIM_CLIENTS_MAX = 8,
    SIM_FILES = 4,
    SIM_NAMES = SIM_FILES + SIM_CLIENTS_MAX, /* f0 … and lease0 … */
    SIM_NAME_SIZE = 16,
};

/* Values are unique, and cannot be mistaken for anything else at the end of an entry. */
#define SIM_VALUE_TAG 0x5eed5eed5e000000u
#define SIM_VALUE_MASK 0xffffffffff000000u

/* What is tried, and how hard. Chances are in 1/1000. */
struct sim_shape {
    const char *name;
    unsigned nodes; /* voters at first; 0: 3, 5 or 7 */
    unsigned spare; /* slots beyond them */
    unsigned clients, ops;
    unsigned loss, duplicate, reorder;
    uint64_t delay_max_us, disk_max_us;
    uint64_t fault_every_us; /* mean time between two faults; 0: none */
    uint64_t think_max_us;   /* between two operations of a client */
    unsigned operated;       /* of the seeds: with an operator */
    uint64_t operator_every_us;
    unsigned transfers; /* of what the operator does */
    unsigned leases;    /* of the operations */
    unsigned short_log; /* of the seeds: little of the log is kept, so that snapshots are needed */
    unsigned rough;     /* of the seeds: clogging, stalling disks, long pauses */
    bool lease_reads, codec; /* codec: every message goes through its wire form */
    uint64_t limit_us;       /* of virtual time, for the workload and for convergence */
};

/* What a seed makes of its shape. */
struct sim_plan {
    unsigned nodes, slots;
    bool operated, short_log, rough;
    uint64_t request_timeout_us, session_ttl_us, log_kept_bytes, tail_entries;
    uint64_t history_ms, history_revisions, quota_bytes; /* 0: the default */
    uint64_t check_us;
};

struct sim;

/* A configuration, as decoded from the entry at an index. */
struct sim_config {
    uint64_t index;
    struct raft_config config;
};

/* One entry of a node's log, as handed to its disk. */
struct sim_entry {
    uint64_t term, hash;
};

enum sim_slot_state {
    SLOT_FREE,     /* no data directory */
    SLOT_RESERVED, /* its id has been proposed as a member */
    SLOT_MEMBER,
    SLOT_WIPED,   /* lost its disk, started again under its old id */
    SLOT_RETIRED, /* removed; its process may still be there */
};

/* What a reader of a name sees, kept by changes alone. */
struct sim_mirror {
    uint64_t ino, value_hash;
};

struct sim_node {
    struct keel_env env;
    struct sim *sim;
    unsigned slot;
    enum sim_slot_state state;
    uint64_t generation;
    uint64_t id, incarnation;
    bool up;
    bool bootstrap; /* its log is yet to be begun with the first entry */
    bool reboots;   /* its machine's clock begins anew with the next start */
    bool stopping;  /* cleanly */
    uint64_t paused_until_us;
    uint64_t last_turn_us; /* on its clock */
    uint64_t epoch;        /* of its process: events of an older one are void */
    uint64_t clock_offset_us;
    int64_t drift_ppm;
    uint64_t read_at_us, read_us; /* its clock, as read last, and when */
    int64_t wall_skew_ns;
    uint64_t welcome[KEEL_MEMBERS_MAX]; /* members that it was told of when it joined */
    size_t welcome_count;
    bool pruning; /* an event to close connections is under way */

    struct disk *disk;
    struct kv *kv, *old_kv;               /* old_kv: until the installation of a snapshot is over */
    uint64_t install_index, install_term; /* of the manifest on its disk; 0: none */
    struct wal *wal;
    struct mvcc *mvcc;
    struct apply *apply;
    struct replica *replica;
    struct wal_batch *queue, **queue_end; /* handed over, not written */
    size_t queued;
    bool writing;           /* an event for the queue is under way */
    uint64_t release_index; /* a release is under way up to here */
    uint64_t store_free_us; /* the store thread does one thing after the other */
    struct kv_batch *checkpoint;
    struct keel_buf *snapshot; /* that it sends */
    uint64_t snapshot_making;  /* how many have been begun, or dropped */
    uint8_t *received;
    size_t received_len, received_capacity;
    uint64_t timer_us; /* earliest timer event that is in the heap */

    /* Checkers. */
    struct sim_entry *log; /* by index; what it has handed to its disk */
    uint64_t log_last, log_capacity;
    uint64_t persisted_last; /* as far as it was told */
    uint64_t store_durable;  /* applied index of its store */
    uint64_t checked_commit, checked_applied;
    uint64_t checked_members; /* index of the configuration whose members were compared */
    struct sim_config
        *configs; /* in its log, ascending by index; the first may stand for a store */
    size_t config_count, config_capacity;
    uint64_t counted_by; /* index of the latest one when its commit index was looked at last */
    uint64_t led_term;   /* at the last look; 0: it did not lead */
    struct raft_hard_state hard;        /* on its disk */
    uint64_t voted_term, voted_for;     /* the latest vote that left */
    uint64_t answered_us;               /* a heartbeat last, or its start; on its clock */
    uint64_t last_context, old_context; /* of reads: the latest, and that of its last life */
    uint64_t seen_revision;
    bool reloading;
    struct sim_mirror mirror[SIM_NAMES];
    uint64_t session, trouble_us; /* last time that it may have been out of touch */
};

enum sim_event_kind {
    EVENT_TIMER,
    EVENT_MESSAGE,
    EVENT_DISK,
    EVENT_LOG_READ,
    EVENT_LOG_RELEASE,
    EVENT_STORE,
    EVENT_SNAPSHOT_MAKE,
    EVENT_SNAPSHOT_READ,
    EVENT_SNAPSHOT_STORE,
    EVENT_SNAPSHOT_INSTALL,
    EVENT_SNAPSHOT_SWAPPED,
    EVENT_STOP,
    EVENT_PRUNE,
    EVENT_DISCONNECT,
    /* not of a running process: */
    EVENT_CONNECT,
    EVENT_START,
    EVENT_CRASH,
    EVENT_RETIRE,
    EVENT_FAULT,
    EVENT_CLIENT,
    EVENT_OPERATOR,
    EVENT_HEAL
};

struct sim_event {
    struct keel_heap_node heap;
    struct sim_event *next; /* free ones */
    enum sim_event_kind kind;
    unsigned node; /* or client */
    unsigned from;
    uint64_t epoch, link_epoch;
    uint64_t from_id; /* of a stray message, which belongs to no connection */
    struct keel_message *msg;
    struct keel_buf *buf;
    uint64_t first; /* or peer's id, making, start of a stop */
    uint64_t offset;
    size_t max_bytes;
    struct snapshot_info info;
};

/* A link between two nodes, one way. */
struct sim_link {
    bool cut, connected;
    bool untold; /* closed, and the receiving side has not noticed: what was sent still arrives */
    bool connecting; /* an attempt is under way (of the pair: at [smaller][larger]) */
    uint64_t epoch;
    uint64_t last_delivery_us, clogged_until_us;
};

struct sim_client;
struct sim_operator;

/* What became of one revision: for the linearizability check. */
struct sim_change {
    enum keel_change_kind kind;
    uint64_t ino, value_hash, value, hash; /* hash 0: not seen */
};

/* A data directory that is gone: what was on it counted when it was acknowledged. */
struct sim_lost {
    uint64_t id, persisted_last, store_durable;
};

/* What a value's caller was told. */
struct sim_value {
    uint64_t revision;    /* at which it was seen; 0: not */
    uint64_t given_up_us; /* the caller was told that it had timed out; 0: not */
};

struct sim {
    const struct sim_shape *shape;
    struct sim_plan plan;
    uint64_t seed, now_us;
    bool trace, trace_messages;
    uint64_t trace_hash;
    struct keel_rng net_rng, disk_rng, fault_rng, client_rng, clock_rng, operator_rng;
    struct keel_heap events;
    struct sim_event *free_events;
    uint64_t event_seq;
    struct sim_node nodes[SIM_SLOTS_MAX];
    struct sim_link links[SIM_SLOTS_MAX][SIM_SLOTS_MAX];
    bool calm; /* no more faults: heal and converge */
    struct wal_batch **scratch;
    size_t scratch_capacity;

    struct sim_client *clients;
    struct sim_operator *operator;
    unsigned ops_started, ops_done, ops_ok;
    unsigned changes_done, transfers_done, wipes, snapshots_installed;
    unsigned last_leader, former_leader; /* slots */
    uint64_t next_value;

    /* Checkers: what the cluster as a whole has shown. */
    uint64_t *leaders; /* by term */
    uint64_t leader_capacity;
    struct sim_entry *committed; /* by index */
    uint64_t committed_last, committed_capacity;
    struct sim_config *configs; /* the committed ones, ascending */
    size_t config_count, config_capacity;
    struct sim_lost *lost;
    size_t lost_count;
    struct keel_hash128 *state_hashes; /* by index; zero: not seen */
    uint64_t state_capacity;
    struct sim_change *changes; /* by revision */
    uint64_t change_last, change_capacity;
    struct sim_value *values; /* by number */
    uint64_t value_capacity;
    uint64_t floor_revision; /* the highest point of any completed operation */
    uint64_t elections;
    uint64_t leader_change_us;
    char failure[512]; /* "": none */
};

/* ---- sim.c ---- */

/* trace: 0 nothing, 1 what happens, 2 messages too. */
struct sim *sim_new(const struct sim_shape *shape, uint64_t seed, int trace);
void sim_free(struct sim *sim);
/* Runs it to its end. True: nothing was wrong. */
bool sim_run(struct sim *sim);

struct sim_event *sim_event_at(struct sim *sim, uint64_t at_us, enum sim_event_kind kind,
                               unsigned node);
void sim_trace_line(struct sim *sim, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
#define sim_trace(sim, ...)                   \
    do {                                      \
        if ((sim)->trace)                     \
            sim_trace_line(sim, __VA_ARGS__); \
    } while (0)
bool sim_chance(struct keel_rng *rng, unsigned per_mille);
/* Room for index `last` in an array; what is new is zero. */
void *sim_reserve(void *array, uint64_t *capacity, uint64_t last, size_t size);

/* ---- node.c ---- */

/* A new data directory in a free slot. */
void sim_node_create(struct sim_node *node, bool bootstrap);
/* Its data directory is gone for good. */
void sim_node_destroy(struct sim_node *node);
void sim_node_start(struct sim_node *node);
/* power: of the whole machine; else only the process is gone. */
void sim_node_crash(struct sim_node *node, bool power);
/* Hands leadership over first, then stops, and starts again after a while. */
void sim_node_stop_event(struct sim_node *node, const struct sim_event *event);
/* After anything was put into a node: pump, check, set its timer. */
void sim_node_settle(struct sim_node *node);
void sim_node_timer(struct sim_node *node, uint64_t at);
/* Until then it may be out of touch with the others. */
void sim_node_trouble(struct sim_node *node, uint64_t until_us);
uint64_t sim_node_clock(const struct sim_node *node);
void sim_node_name(unsigned slot, char ret_name[SIM_NAME_SIZE]);
void sim_node_address(unsigned slot, char ret_address[SIM_NAME_SIZE]);
/* The node with this id, if its data directory is still there. */
struct sim_node *sim_node_by_id(struct sim *sim, uint64_t id);
static inline unsigned sim_slot_of(uint64_t id)
{
    return (unsigned)((id - 1) % SIM_ID_STRIDE);
}

/* ---- disk.c ---- */

void disk_log_append(struct keel_env *env, struct wal_batch *batch_take);
void disk_log_read(struct keel_env *env, uint64_t peer, uint64_t first, size_t max_bytes);
void disk_log_release(struct keel_env *env, uint64_t index);
void disk_checkpoint(struct keel_env *env, struct kv_batch *batch_take);
void disk_snapshot_make(struct keel_env *env);
void disk_snapshot_read(struct keel_env *env, uint64_t peer, uint64_t offset, size_t bytes);
void disk_snapshot_drop(struct keel_env *env);
void disk_snapshot_store(struct keel_env *env, uint64_t offset, struct keel_buf *bytes_take);
void disk_snapshot_install(struct keel_env *env);
void disk_snapshot_finish(struct keel_env *env);
void disk_event(struct sim_node *node, struct sim_event *event);
/* Power fails: what waits may be lost, torn or there after all. */
void disk_crash(struct sim_node *node);

/* ---- network.c ---- */

void network_send(struct sim *sim, struct sim_node *from, uint64_t to,
                  struct keel_message *msg_take);
void network_deliver(struct sim *sim, struct sim_event *event);
void network_reset(struct sim *sim, unsigned a, unsigned b);
void network_heal(struct sim *sim);
void network_disconnect_event(struct sim *sim, struct sim_event *event);
void network_connect_event(struct sim *sim, struct sim_event *event);
void network_prune_event(struct sim_node *node);
void network_members_changed(struct sim_node *node);
void network_node_up(struct sim *sim, unsigned slot);
/* power: nobody closes its connections. */
void network_node_down(struct sim *sim, unsigned slot, bool power);
/* Whether a node knows another one's data directory as a member. */
bool network_knows(const struct sim_node *node, const struct sim_node *other);

/* ---- faults.c ---- */

void faults_start(struct sim *sim);
void faults_event(struct sim *sim);
/* A message leaves: its sender may not live much longer. */
void faults_after(struct sim_node *node, const struct raft_message *msg);
void faults_crash(struct sim_node *node, bool power, uint64_t within_us);
/* May this node's disk be lost now? (The others can do without it, whatever they know.) */
bool faults_may_wipe(const struct sim_node *node);

/* ---- clients.c ---- */

void clients_start(struct sim *sim);
void clients_free(struct sim *sim);
void clients_event(struct sim *sim, unsigned client);
void clients_node_down(struct sim *sim, unsigned slot);
void clients_lease_lost(struct sim *sim, unsigned slot, uint64_t lease);
void clients_changed(struct sim *sim, unsigned slot, const struct keel_change *change);
bool clients_done(const struct sim *sim);

/* ---- operator.c ---- */

void operator_start(struct sim *sim);
void operator_free(struct sim *sim);
void operator_event(struct sim *sim);
/* Nothing is left to be done that others wait for. */
bool operator_done(const struct sim *sim);
/* A node has been told of members: those among them that were proposed may begin. */
void operator_members_changed(struct sim_node *node);

#endif
