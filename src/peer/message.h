/* What peers say to each other, and its wire form (docs/protocol-peer.md). Pure: the sockets are in
 * peer.h.
 *
 * A message is cut into frames of at most KEEL_FRAME_BYTES, so that a heartbeat can go between two
 * pieces of a large append. Frame: 16 bytes of header (u32le length of the payload, u8 type, u8
 * flags, u16le zero, u64le xxh3-64 of the payload seeded with the first 8 bytes), then the payload.
 * Flag 1: more pieces of this message follow. There are three lanes, urgent, bulk (flag 2) and
 * snapshot (flag 4): each is put together by itself. */
#ifndef PEER_MESSAGE_H
#define PEER_MESSAGE_H

#include "hash.h"
#include "raft/types.h"

enum keel_message_type {
    MESSAGE_RAFT = 1,        /* all of raft's, as in types.h */
    MESSAGE_FORWARD,         /* follower -> leader: propose this command */
    MESSAGE_FORWARD_REFUSED, /* leader -> follower: not proposed (not the leader, or too old) */
    MESSAGE_RENEW,           /* holder's node -> leader: keep these leases alive */
    MESSAGE_RENEWED,         /* leader -> node: done for these */
    MESSAGE_HELLO,           /* first frame each way; protobuf Hello */
    MESSAGE_REFUSAL,         /* protobuf Refusal; the sender closes */
    MESSAGE_PING,            /* nothing for a while: a sign of life */
    MESSAGE_SNAPSHOT,        /* leader -> follower: a piece of a snapshot; without data: an offer */
    MESSAGE_SNAPSHOT_STATE,  /* follower -> leader: how much of it has been stored */
    MESSAGE_CHANGE,          /* node -> leader: change the members */
    MESSAGE_CHANGE_REPLY,    /* leader -> node: refused, or begun with this entry */
    MESSAGE_TRANSFER,        /* node -> leader: hand leadership over */
    MESSAGE_JOIN,            /* first frame of a new node; protobuf Join */
    MESSAGE_WELCOME,         /* the answer to it; protobuf Welcome; the sender closes */
    MESSAGE_DIGEST,          /* member -> member: the sender's state as of a check */
    MESSAGE_TYPES
};

/* Where the receiver of a snapshot stands. */
enum keel_snapshot_state {
    SNAPSHOT_RECEIVING = 0, /* everything up to `offset` is stored: go on from there */
    SNAPSHOT_DONE = 1,      /* installed, or not needed */
    SNAPSHOT_REFUSED = 2,   /* damaged, or no room: begin with a new one, later */
};

/* Of a member's name and address, with the NUL. */
enum { MEMBER_NAME_SIZE = 64, MEMBER_ADDRESS_SIZE = 300 };

/* Letters, digits, '_', '.' and '-', and it fits. NULL: false. */
bool keel_member_name_ok(const char *name);
/* Something on both sides of a last colon, nothing that would end it in a list of members, and it
 * fits. NULL: false. Whether it can be dialled, peer_address_split knows. */
bool keel_member_address_ok(const char *address);

/* One change of one member. */
enum keel_change_verb { MEMBER_ADD = 1, MEMBER_ADD_VOTER, MEMBER_REMOVE, MEMBER_PROMOTE };

struct keel_member_change {
    enum keel_change_verb verb;
    char *name;    /* owned; neither it nor the address is empty */
    char *address; /* owned; of additions; else NULL */
    uint64_t id;   /* of additions: the new member's, not 0 */
};

struct keel_message {
    enum keel_message_type type;
    struct raft_message *raft; /* MESSAGE_RAFT: owned */
    uint64_t number;           /* FORWARD, FORWARD_REFUSED: the command's number in its session */
    uint64_t session;          /* FORWARD, FORWARD_REFUSED */
    uint64_t deadline_us;      /* FORWARD: on the leader's clock … */
    uint64_t term;             /* … of this term: a later life of it may have another clock */
    struct keel_buf *data; /* FORWARD: the command; SNAPSHOT: the piece, or NULL; HELLO, REFUSAL,
                              JOIN, WELCOME: packed protobuf; owned */
    uint64_t sent_us;      /* RENEW: sender's clock; RENEWED echoes it */
    uint64_t *leases;      /* RENEW, RENEWED: owned array */
    size_t lease_count;
    struct {
        uint64_t index, term;           /* SNAPSHOT, SNAPSHOT_STATE: which one … */
        uint64_t nonce;                 /* … and which making of it */
        uint64_t offset;                /* SNAPSHOT: of the data; SNAPSHOT_STATE: stored so far */
        uint64_t total;                 /* SNAPSHOT: bytes of the whole */
        enum keel_snapshot_state state; /* SNAPSHOT_STATE */
    } snapshot;
    struct keel_member_change *changes; /* CHANGE: owned array, at least one; one joint change */
    size_t change_count;
    int err;        /* CHANGE_REPLY: 0 or a KEEL_E_*; number echoes that of the CHANGE */
    uint64_t index; /* CHANGE: of the configuration that it changes; CHANGE_REPLY: of the entry;
                       DIGEST: of the check */
    uint64_t to;    /* TRANSFER: the new leader; 0: whoever is furthest */
    struct keel_hash128 digest; /* DIGEST */
};

/* Frees an array of changes with its strings. Takes NULL. */
void keel_member_changes_free(struct keel_member_change *changes, size_t count);

struct keel_message *keel_message_new(enum keel_message_type type);
/* Wraps a raft message (taken). */
struct keel_message *keel_message_raft(struct raft_message *msg_take);
/* With everything it owns; takes NULL, returns NULL. */
struct keel_message *keel_message_free(struct keel_message *msg);

/* A connection has three lanes. Frames of a lower one wait for those of a higher one. */
enum keel_lane {
    LANE_URGENT,   /* everything that is not named below */
    LANE_BULK,     /* appends with entries, forwards */
    LANE_SNAPSHOT, /* snapshots: offers and pieces, in order */
    LANES
};
enum keel_lane keel_message_lane(const struct keel_message *msg);

/* One message -> one or more whole frames, in order, in one new buf. */
struct keel_buf *keel_message_encode(const struct keel_message *msg);

/* The payload of a message that has been put together. KEEL_E_MALFORMED: anything out of place:
 * lengths, counts over keel_limits.h, trailing bytes, unknown types. */
int keel_message_decode(enum keel_message_type type, struct keel_slice payload,
                        struct keel_message **ret_msg);

/* Puts messages together from a stream of bytes. */
struct frame_reader;

struct frame_reader *frame_reader_new(void);
struct frame_reader *frame_reader_free(struct frame_reader *reader);

/* Feeds bytes; calls fn for each whole message (which it takes). The first error is for good:
 * KEEL_E_MALFORMED (bad header, checksum, size over KEEL_MESSAGE_SIZE_MAX, bad message). Non-zero
 * results of fn stop and are returned. */
int frame_reader_feed(struct frame_reader *reader, struct keel_slice bytes,
                      int (*fn)(void *arg, struct keel_message *msg_take), void *arg);

#endif
