/* What the pool's three parts share: pool.c (beginning and end, listening, time), link.c (who there
 * is, who dials whom and when) and channel.c (one connection's way through the handshake). Private
 * to src/peer. */
#ifndef PEER_POOL_H
#define PEER_POOL_H

#include "peer/address.h"
#include "peer/connection.h"
#include "peer/handshake.h"
#include "rng.h"

enum {
    HANDSHAKE_TIMEOUT_MS = 1000, /* also of saying good-bye */
    STRANGERS_MAX = 64,          /* accepted connections that have not said who they are */
    GUESTS_MAX = KEEL_MEMBERS_MAX,
    LINKS_MAX = KEEL_MEMBERS_MAX + GUESTS_MAX,
    READ_AREA_BYTES = 256 << 10,
    COMPLAINT_SIZE = HANDSHAKE_WHY_SIZE + 32,
};

/* A connection's way to being a member's:
 *
 *     dialled   CONNECTING -> GREETING --their HELLO is right, we send PING------> MEMBER
 *     accepted                GREETING --their HELLO is right, we send ours--> CONFIRMING
 *               CONFIRMING --PING--> MEMBER
 *     either    GREETING --their HELLO is wrong, we send REFUSAL-----------------> PARTING
 *     accepted  GREETING --JOIN, we send WELCOME or REFUSAL----------------------> PARTING
 *     either    MEMBER --no member any more--------------------------------------> PARTING
 *
 * The accepting side waits for the PING because the dialling side may still refuse it. PARTING:
 * what is queued goes out, nothing is looked at any more, until they close or a second is over. */
enum channel_state {
    CHANNEL_CONNECTING,
    CHANNEL_GREETING,
    CHANNEL_CONFIRMING,
    CHANNEL_MEMBER,
    CHANNEL_PARTING
};

struct channel {
    struct connection conn;
    struct peer_pool *pool;
    struct peer_link *link; /* NULL: a stranger; a reference */
    struct channel *next, *prev;
    enum channel_state state;
    bool dialled;
    uint64_t started_ms;
    uint64_t incarnation; /* from its HELLO */
    uint32_t level;
};

/* Somebody else, connected or not: a member, or a guest, which is one only as long as it has a
 * connection. Whoever is neither any more is gone from the pool's table; the memory stays until
 * timer, look-up and channels have let go. */
struct peer_link {
    struct peer_pool *pool;
    unsigned int refs; /* the timer, the look-up under way, each channel */
    uint64_t id;
    char *name, *address; /* owned; address NULL: a guest's */
    bool guest, gone;
    uint64_t config_index;                                 /* a guest's, from its HELLO */
    char host[ADDRESS_HOST_SIZE], port[ADDRESS_PORT_SIZE]; /* of the address; empty: of no use */
    bool first;              /* our name sorts first: it is for us to dial */
    struct channel *current; /* in state MEMBER, or PARTING after it */
    struct channel *dialling;
    uv_timer_t redial;
    uv_getaddrinfo_t lookup;
    bool looking_up;
    uint64_t backoff_ms;
    bool refused;                   /* by them, at the last attempt */
    char complaint[COMPLAINT_SIZE]; /* what the log knows already */
};

struct peer_pool {
    uv_loop_t *loop;
    struct peer_options options; /* strings are owned; members: as they are now */
    struct peer_events events;
    struct peer_link *links[LINKS_MAX]; /* in no order */
    size_t link_count;
    struct channel *channels; /* all that libuv knows, in no order */
    size_t strangers;
    uv_tcp_t server;
    uv_timer_t tick;
    uv_async_t reaper;
    uv_prepare_t prepare;
    size_t handles; /* that libuv has not let go, look-ups included */
    struct sockaddr_storage from;
    bool has_from; /* we listen on one address: dial from it, so that a peer sees one address of
                      ours */
    uint64_t ticked_ms, complained_ms;
    struct keel_rng rng;
    uint8_t *read_area;
    bool closing;
    void (*closed)(void *arg);
    void *closed_arg;
};

/* ---- pool.c ---- */

void pool_own_handle(struct peer_pool *pool, uv_handle_t *handle, int err);
/* libuv has let go of one handle. The pool may be gone afterwards. */
void pool_let_go(struct peer_pool *pool);

/* ---- link.c ---- */

struct peer_link *link_find(const struct peer_pool *pool, uint64_t id);
/* NULL: too many. */
struct peer_link *link_new_guest(struct peer_pool *pool, const struct hello *hello);
struct peer_link *link_ref(struct peer_link *link);
void link_unref(struct peer_link *link);
/* Takes it out of the table: its connection parts, everything else of it ends. */
void link_drop(struct peer_link *link);
/* After a connection to it has ended or has not come about. */
void link_redial(struct peer_link *link, bool was_connected);
/* The same complaint is written once, until it has been connected in between. */
void link_complain(struct peer_link *link, const char *what, const char *why);
void link_connected(struct peer_link *link);
/* As peer_pool_set_members. An address that is not host:port is complained of, and not dialled. */
void link_set_members(struct peer_pool *pool, const struct peer_member *members, size_t count,
                      uint64_t config_index);
/* Frees the strings in the options. */
void link_free_members(struct peer_options *options);

/* ---- channel.c ---- */

/* link NULL: for an accepted connection. */
struct channel *channel_new(struct peer_pool *pool, struct peer_link *link);
void channel_send(struct channel *ch, struct keel_message *msg_take);
/* Says good-bye: see PARTING. */
void channel_part(struct channel *ch);
/* Closes; what was connected through it isn't any more. */
void channel_end(struct channel *ch);
/* Strangers can make us write lines; not more than one a second. */
void channel_complain_of_stranger(struct peer_pool *pool, const char *why);

#endif
