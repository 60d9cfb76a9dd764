/* Connections to the other members, on the loop thread (libuv): one TCP connection a pair, dialled
 * by the member whose name sorts first (and by the other one too after 3 s without a connection,
 * since the first may not know it yet), redialled for ever with a short, jittered back-off. Each
 * side starts with HELLO; whoever isn't who he says (other cluster, unknown id, wrong name, another
 * incarnation than the one on record) gets a REFUSAL with the reason, is closed, and nothing he
 * sent is looked at. Silence: a ping each 250 ms of no output, closed after 1,500 ms without input.
 * Malformed input closes that connection and nothing else.
 *
 * A node that is no member here may still be one by a later configuration than ours: if its HELLO
 * names a higher config_index, it is let in as a guest (no dialling, closed by
 * peer_pool_set_members when that is as new and does not have it). What it may do is raft's to
 * decide.
 *
 * The callbacks come from libuv's poll phase only, never from inside a call of this header: whoever
 * finishes its work in a uv_prepare or uv_check handle misses nothing. SIGPIPE is ignored for the
 * process from peer_pool_new on. */
#ifndef PEER_PEER_H
#define PEER_PEER_H

#include <uv.h>

#include "peer/message.h"

struct peer_pool;

struct peer_member {
    uint64_t id;
    const char *name;
    const char *address; /* host:port; resolved off the loop (uv_getaddrinfo) */
};

struct peer_options {
    uint64_t cluster_id, id, incarnation;
    const char *name;
    const char *listen;                           /* host:port */
    struct peer_member members[KEEL_MEMBERS_MAX]; /* self included; strings are copied */
    size_t member_count;
    uint64_t config_index; /* of the entry that these members come from */
    uint32_t level;        /* semantics level */
};

/* Why a peer will have nothing to do with us. */
enum peer_refusal {
    PEER_REFUSAL_OTHER, /* another cluster, version, address …: one of the two is set up wrongly */
    PEER_REFUSAL_LOST,  /* our data directory is not the one that was a member: for good */
    PEER_REFUSAL_REMOVED, /* we are no member by a configuration that is at least as new as ours */
};

struct peer_events {
    void *arg;
    /* A message from an authenticated member; taken. */
    void (*message)(void *arg, uint64_t from, struct keel_message *msg_take);
    void (*connected)(void *arg, uint64_t peer, uint64_t incarnation, uint32_t level);
    void (*disconnected)(void *arg, uint64_t peer);
    /* Bytes came in. */
    void (*alive)(void *arg, uint64_t peer);
    /* Is this the incarnation on record? (0 on record: any.) Asked at each handshake. */
    bool (*incarnation_ok)(void *arg, uint64_t peer, uint64_t incarnation);
    /* We were refused: `why` says what to do; logged by the pool already. It dials on, once a
     * second. */
    void (*refused)(void *arg, uint64_t peer, enum peer_refusal kind, const char *why);
    /* A new node asks to be let in: packs the WELCOME for the member that was added under its name,
     * or says why not. NULL: ret_why. May be NULL itself: nobody is let in. */
    struct keel_buf *(*join)(void *arg, const char *name, uint64_t incarnation, char *ret_why,
                             size_t why_size);
};

/* Listens and starts dialling, from the address that it listens on unless that is a wildcard. On an
 * error ret_why says what and what to do (address in use, cannot be resolved, not ours); libuv lets
 * go of the handles in the loop's next turn. */
int peer_pool_new(uv_loop_t *loop, const struct peer_options *options,
                  const struct peer_events *events, struct peer_pool **ret_pool, char *ret_why,
                  size_t why_size);

/* Queues a message (taken); dropped when the peer isn't connected. Written by peer_pool_flush, or
 * at the latest at the end of the loop turn. Urgent messages pass bulk ones, and both pass
 * those of a snapshot, between frames. */
void peer_send(struct peer_pool *pool, uint64_t to, struct keel_message *msg_take);
void peer_pool_flush(struct peer_pool *pool);

bool peer_connected(const struct peer_pool *pool, uint64_t peer);

/* The members are these now (self need not be among them; strings are copied): new ones are dialled
 * or expected, connections to those that are gone are closed once what was queued for them is
 * written, at the latest after a second; a changed address is dialled at the next attempt. */
void peer_pool_set_members(struct peer_pool *pool, const struct peer_member *members, size_t count,
                           uint64_t config_index);

/* Stops listening, closes everything; `closed` is called once when libuv has let go of all handles,
 * and the pool is freed. */
void peer_pool_close(struct peer_pool *pool, void (*closed)(void *arg), void *arg);

/* What a new node is told (protobuf Welcome), plain. Strings are owned. */
struct peer_welcome {
    uint64_t cluster_id, id;
    char *token;
    struct peer_member members[KEEL_MEMBERS_MAX];
    size_t member_count;
};

/* Asks the member at `address` (host:port) to let this node in: connects, sends JOIN, waits for the
 * answer, at most timeout_ms (a resolver may take longer). Blocking, for the start only.
 * KEEL_E_TIMEDOUT: nobody there, try again; KEEL_E_PERM: refused; KEEL_E_INVALID: not host:port;
 * KEEL_E_MALFORMED: what is there is not a member's port. ret_why says what and what to do. */
int peer_join(const char *address, const char *name, uint64_t incarnation, unsigned timeout_ms,
              struct peer_welcome *ret_welcome, char *ret_why, size_t why_size);
void peer_welcome_free(struct peer_welcome *welcome);

/* "host:port" into its parts, IPv6 in brackets. KEEL_E_INVALID. */
int peer_address_split(const char *address, char *ret_host, size_t host_size, char *ret_port,
                       size_t port_size);

/* Does every address behind host:port belong to this host's loopback? Waits for the resolver: for
 * the start only. */
bool peer_address_is_loopback(const char *address);

#endif
