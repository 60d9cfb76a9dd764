/* Pools on one libuv loop over loopback, and bare sockets that play a bad peer. Every wait is for a
 * condition; the bound only ends a test that hangs. */
#ifndef PEER_WORLD_H
#define PEER_WORLD_H

#include "unit.h"

#include "peer/handshake.h"

enum {
    NODES = 3, /* that have an address; the members, where nothing else is said */
    IDS = 32,  /* who may play a part: 1 … IDS - 1 */
    BOUND_MS = 30000,
    PULSE_MS = 20,
};

struct world;

struct node {
    struct world *world;
    uint64_t id;
    struct peer_pool *pool;
    bool closed;
    unsigned int connected[IDS], disconnected[IDS], alive[IDS];
    uint64_t seen_incarnation[IDS];
    uint64_t expected[IDS]; /* incarnation on record; 0: any */
    char refused[HANDSHAKE_WHY_SIZE];
    unsigned int refusals;
    enum peer_refusal refusal; /* the last one */
    size_t bulk, urgent;       /* messages received */
    size_t bulk_before_urgent; /* bulk ones when the first urgent one came */
    struct keel_message *last;
    void (*during_message)(struct node *node); /* may be NULL */
    const char *awaited;                       /* who may join; NULL: nobody */
    uint64_t join_incarnation;
};

struct world {
    uv_loop_t loop;
    uv_timer_t bound;
    uv_timer_t pulse; /* bare sockets do not wake the loop */
    bool late;
    struct node nodes[NODES + 1]; /* by id, from 1 */
    char names[IDS][8], addresses[IDS][32];
};

struct world *world_new(void);
void world_free(struct world *world);
void world_start(struct world *world, uint64_t id);
void world_start_with(struct world *world, const struct peer_options *options);
void world_stop(struct world *world, uint64_t id);
void on_bound(uv_timer_t *timer);

#define WAIT_FOR(world, cond)                                   \
    do {                                                        \
        uv_timer_start(&(world)->bound, on_bound, BOUND_MS, 0); \
        while (!(cond) && !(world)->late)                       \
            uv_run(&(world)->loop, UV_RUN_ONCE);                \
        uv_timer_stop(&(world)->bound);                         \
        if ((world)->late)                                      \
            fail_msg("waited in vain for: %s", #cond);          \
    } while (0)

/* All are members; of the configuration 0. */
struct peer_options options_of(struct world *world, uint64_t id);
/* The same with the members whose digits are in `ids`. */
struct peer_options options_with(struct world *world, uint64_t id, const char *ids,
                                 uint64_t config_index);
void set_members(struct world *world, uint64_t id, const char *ids, uint64_t config_index);

bool together(struct world *world, uint64_t a, uint64_t b);
struct keel_message *heartbeat(uint64_t from, uint64_t to);
struct keel_message *forward(size_t len, uint64_t number);

/* A bare socket that plays a peer. */
struct fake {
    int fd;
    struct frame_reader *reader;
    enum keel_message_type last; /* received; 0: nothing yet */
    size_t count;
    char why[HANDSHAKE_WHY_SIZE]; /* of the last refusal */
    enum peer_refusal refusal;
};

struct fake fake_dial(const char *address);
int fake_listen(const char *address);
struct fake fake_accept(struct world *world, int server);
void fake_free(struct fake *fake);
void fake_write(struct fake *fake, struct keel_slice bytes);
void fake_send(struct fake *fake, struct keel_message *msg_take);
/* Reads what is there. True: the other side has closed. */
bool fake_read(struct fake *fake);
bool fake_got(struct fake *fake, enum keel_message_type type);
struct keel_message *hello_of(struct world *world, uint64_t id, uint64_t to);

/* Dials node `to` in the name of `id`, up to the answer to its HELLO. */
struct fake fake_hello(struct world *world, uint64_t id, uint64_t to);
/* Node 1 dials; the test answers as node 2 and does the handshake. */
struct fake fake_member_2(struct world *world, int server);

#endif
