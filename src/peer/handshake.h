/* HELLO and REFUSAL: packing, reading, and the rules by which one side recognizes the other.
 * Private to src/peer. */
#ifndef PEER_HANDSHAKE_H
#define PEER_HANDSHAKE_H

#include "peer/peer.h"

enum {
    PEER_PROTOCOL_VERSION = 1,
    HANDSHAKE_WHY_SIZE = 256,
};

struct hello {
    uint32_t version, level;
    uint64_t cluster_id, id, to, incarnation;
    char name[KEEL_NAME_MAX + 1];
};

struct keel_message *handshake_hello(const struct peer_options *self, uint64_t to);
struct keel_message *handshake_refusal(const char *why);

/* KEEL_E_MALFORMED. */
int handshake_read_hello(struct keel_slice packed, struct hello *ret_hello);
/* The text has only printable characters afterwards: it goes into our log. KEEL_E_MALFORMED. */
int handshake_read_refusal(struct keel_slice packed, char *ret_why, size_t size);

/* Who is this? The member that the other side rightly claims to be; NULL: ret_why says what is
 * wrong and what to do, in words for the other side's log. `dialled`: the member whose address was
 * dialled, NULL on the accepting side. */
const struct peer_member *handshake_check(const struct peer_options *self,
                                          const struct hello *hello,
                                          const struct peer_member *dialled, char *ret_why,
                                          size_t size);

#endif
