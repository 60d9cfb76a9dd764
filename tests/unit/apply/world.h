/* See world.c. */
#ifndef APPLY_WORLD_H
#define APPLY_WORLD_H

#include "unit.h"

#include <string.h>

#include "apply.h"

enum { NAME = 40 };

struct node {
    struct kv *kv;
    struct mvcc *mvcc;
    struct apply *apply;
    struct apply_outcome outcome;
};

struct world {
    struct node ahead, behind;
    bool together; /* the entries go to both */
    uint64_t session, number, next_ino;
    int64_t time_ns;
    struct keel_text told; /* of the reload */
    struct model *model;   /* checked against what is told, if there is one */
    size_t parked, replaced;
};

void node_open(struct node *n);
void node_close(struct node *n);
void node_checkpoint(struct node *n);

int reload_setup(void **state);
int reload_teardown(void **state);

/* Executes the session's next command on the node that is ahead, and on the other while they are
 * together; its result. */
int run_command(struct world *w, Keel__Command *head, const char *body);

/* ---- commands by path, as run_command ---- */

/* 0: nothing is live there. */
uint64_t ino_of(struct world *w, const char *path);
/* ttl_ms > 0: with a lease of its own. */
int make(struct world *w, const char *path, Keel__Kind kind, const char *body, uint64_t ttl_ms);
int make_file(struct world *w, const char *path, const char *body);
int make_dir(struct world *w, const char *path);
int move(struct world *w, const char *from, const char *to);
int remove_path(struct world *w, const char *path, bool directory);
int rewrite(struct world *w, uint64_t ino, const char *body);
int change_mode(struct world *w, uint64_t ino, uint32_t mode);
int revoke_lease(struct world *w, uint64_t lease);
int compact(struct world *w, uint64_t revision);
/* Records taken off the books. */
uint64_t compact_step(struct world *w, uint32_t budget);
int set_quota(struct world *w, uint64_t bytes);

/* ---- the reload ---- */

/* Appends to what was told, and applies it to the model if there is one. */
void reload_note(void *arg, const struct keel_change *c);
int write_batch(void *arg, struct kv_batch *batch_take);
/* A kv with the snapshot of another. */
struct kv *copy_of(struct kv *kv);
/* The node that is behind gets the state of the other. What is told must lead there, step by step;
 * both must be the same in everything. */
void catch_up(struct world *w);
void catch_up_telling(struct world *w, const char *expected);

#endif
