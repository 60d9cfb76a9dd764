/* Connections to the other members, on the loop thread (libuv): one TCP connection a pair, dialled
 * by the member whose name sorts first, redialled for ever with a short, jittered back-off. Each
 * side starts with HELLO; whoever isn't who he says (other cluster, unknown id, wrong name, another
 * incarnation than the one on record) gets a REFUSAL with the reason, is closed, and nothing he
 * sent is looked at. Silence: a ping each 250 ms of no output, closed after 1,500 ms without input.
 * Malformed input closes that connection and nothing else.
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
    uint32_t level; /* semantics level */
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
    void (*refused)(void *arg, uint64_t peer, const char *why);
};

/* Listens and starts dialling, from the address that it listens on unless that is a wildcard. On an
 * error ret_why says what and what to do (address in use, cannot be resolved, not ours); libuv lets
 * go of the handles in the loop's next turn. */
int peer_pool_new(uv_loop_t *loop, const struct peer_options *options,
                  const struct peer_events *events, struct peer_pool **ret_pool, char *ret_why,
                  size_t why_size);

/* Queues a message (taken); dropped when the peer isn't connected. Written by peer_pool_flush, or
 * at the latest at the end of the loop turn. Urgent messages pass bulk ones between frames. */
void peer_send(struct peer_pool *pool, uint64_t to, struct keel_message *msg_take);
void peer_pool_flush(struct peer_pool *pool);

bool peer_connected(const struct peer_pool *pool, uint64_t peer);

/* Stops listening, closes everything; `closed` is called once when libuv has let go of all handles,
 * and the pool is freed. */
void peer_pool_close(struct peer_pool *pool, void (*closed)(void *arg), void *arg);

/* "host:port" into its parts, IPv6 in brackets. KEEL_E_INVALID. */
int peer_address_split(const char *address, char *ret_host, size_t host_size, char *ret_port,
                       size_t port_size);

/* Does every address behind host:port belong to this host's loopback? Waits for the resolver: for
 * the start only. */
bool peer_address_is_loopback(const char *address);

#endif
