/* The small cluster that scripts are played on: nodes with disks, connections, messages on their
 * way, and the trace of all that happens. raft_script.c has the commands. */
#ifndef SCRIPT_WORLD_H
#define SCRIPT_WORLD_H

#include "buf.h"
#include "raft/raft.h"

enum { NODES_MAX = 7, LOG_MAX = 256, FLIGHTS_MAX = 1024, REQUESTS_MAX = 64 };

struct request {
    struct raft_mark mark;
    uint64_t reset_index, reset_term;
    bool has_hard;
    struct raft_hard_state hard;
    struct raft_entry *entries;
    size_t count;
};

/* A store: everything up to an entry applied, and the configuration that came of it. */
struct snapshot {
    uint64_t index, term;
    struct raft_config config;
    uint64_t config_index;
};

struct node {
    struct raft *r;
    uint64_t id;
    /* The disk: hard state, and entry i + 1 at log[i], of which those before first_stored count as
     * gone. */
    struct raft_hard_state hard;
    struct raft_entry log[LOG_MAX];
    uint64_t log_last, first_stored;
    struct snapshot store;
    struct snapshot arriving; /* index not 0: an installation is under way */
    bool has_config;          /* of its own, not the one that `nodes` gives to all */
    bool stalled;             /* its disk waits for `persist` */
    bool slow;                /* its snapshots wait for `snapshot` */
    struct request requests[REQUESTS_MAX];
    size_t request_count;
    struct raft_fetch fetches[NODES_MAX];
    size_t fetch_count;
    uint64_t snapshots[NODES_MAX]; /* peers that wait for one */
    size_t snapshot_count;
    /* As last reported. */
    enum raft_role role;
    uint64_t term, leader, commit, config_index;
    struct raft_config config;
};

struct world {
    const char *file;
    uint64_t now_us;
    size_t count;
    struct raft_options options; /* what all nodes have in common */
    struct node nodes[NODES_MAX];
    bool link[NODES_MAX][NODES_MAX];
    struct raft_message *flights[FLIGHTS_MAX];
    size_t flight_count;
    bool quiet; /* only changes of role, leader, commit index and configuration, and answers */
    struct keel_text out;
};

/* ---- script_trace.c ---- */

const char *role_name(enum raft_role role);
void print_entries(struct keel_text *out, const struct raft_entry *entries, size_t count);
void print_config(struct keel_text *out, const struct raft_config *config);
void print_message(struct keel_text *out, const struct raft_message *m);
void print_request(struct keel_text *out, uint64_t id, const struct raft_ready *ready);
/* What is different from what was last reported. */
void print_changes(struct world *w, struct node *n);

/* ---- script_world.c ---- */

struct world *world_new(const char *file);
void world_free(struct world *w);

/* From what its disk holds. */
void start_node(struct world *w, struct node *n);
/* Everything that was not durable is lost. */
void crash_node(struct node *n);
/* a's view of its connection with b. */
void set_link(struct world *w, struct node *a, struct node *b, bool up);
/* Carries out what the last call on a node has brought. */
void settle_node(struct world *w, struct node *n);
/* Everything that is waiting happens, until nothing is. */
void settle_all(struct world *w);

/* Messages on their way that match (0: any), taken out, at most `limit`. */
size_t take_flights(struct world *w, uint64_t from, uint64_t to, size_t limit,
                    struct raft_message *ret[FLIGHTS_MAX]);
void arrive(struct world *w, struct raft_message *msg_take);

/* The oldest `count` requests of a node become durable with one fsync. False: there is none. */
bool persist(struct world *w, struct node *n, size_t count);
bool fetch_one(struct world *w, struct node *n, bool fails);

/* The state of a node at an index that it has applied. */
struct snapshot snapshot_at(const struct node *n, uint64_t index);
/* Its log is given up below an index, which its store has passed. */
void release(struct world *w, struct node *n, uint64_t first);
/* Begins an installation, if it is needed. */
bool install_begin(struct world *w, struct node *n, const struct snapshot *snapshot);
void install_end(struct world *w, struct node *n);
void snapshot_sent(struct world *w, struct node *n, uint64_t peer, uint64_t index);

#endif
