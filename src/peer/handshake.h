/* HELLO, JOIN, WELCOME and REFUSAL: packing, reading, and the rules by which one side recognizes
 * the other. Private to src/peer. */
#ifndef PEER_HANDSHAKE_H
#define PEER_HANDSHAKE_H

#include "peer/peer.h"

enum {
    PEER_PROTOCOL_VERSION = 1,
    HANDSHAKE_WHY_SIZE = 256,
};

struct hello {
    uint32_t version, level;
    uint64_t cluster_id, id, to, incarnation, config_index;
    char name[MEMBER_NAME_SIZE];
};

struct join {
    uint32_t version;
    uint64_t incarnation;
    char name[MEMBER_NAME_SIZE];
};

struct keel_message *handshake_hello(const struct peer_options *self, uint64_t to);
struct keel_message *handshake_refusal(enum peer_refusal kind, const char *why);

struct keel_message *handshake_join(const char *name, uint64_t incarnation);

/* KEEL_E_MALFORMED. Names have only printable characters afterwards: they go into our log. */
int handshake_read_hello(struct keel_slice packed, struct hello *ret_hello);
int handshake_read_join(struct keel_slice packed, struct join *ret_join);
int handshake_read_refusal(struct keel_slice packed, enum peer_refusal *ret_kind, char *ret_why,
                           size_t size);
/* Free it with peer_welcome_free, also after an error. */
int handshake_read_welcome(struct keel_slice packed, struct peer_welcome *ret_welcome);

/* Whether `name` speaks our version; ret_why. */
bool handshake_check_version(const char *self, const char *name, uint32_t version, char *ret_why,
                             size_t size);

enum handshake_verdict {
    HANDSHAKE_REFUSED, /* ret_why says what is wrong and what to do, for the other side's log */
    HANDSHAKE_REMOVED, /* the same: no member any more */
    HANDSHAKE_MEMBER,
    HANDSHAKE_GUEST, /* not a member by our configuration, but it knows a later one */
};

/* Who is this? `dialled`: the member whose address was dialled, 0 on the accepting side. */
enum handshake_verdict handshake_check(const struct peer_options *self, const struct hello *hello,
                                       uint64_t dialled, char *ret_why, size_t size);

#endif
