/* What peers say to each other, and its wire form (docs/protocol-peer.md). Pure: the sockets are in
 * peer.h.
 *
 * A message is cut into frames of at most KEEL_FRAME_BYTES, so that a heartbeat can go between two
 * pieces of a large append. Frame: 16 bytes of header (u32le length of the payload, u8 type, u8
 * flags, u16le zero, u64le xxh3-64 of the payload seeded with the first 8 bytes), then the payload.
 * Flag 1: more pieces of this message follow. There are two lanes, urgent and bulk (flag 2): each
 * is put together by itself. */
#ifndef PEER_MESSAGE_H
#define PEER_MESSAGE_H

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
    MESSAGE_TYPES
};

struct keel_message {
    enum keel_message_type type;
    struct raft_message *raft; /* MESSAGE_RAFT: owned */
    uint64_t number;           /* FORWARD, FORWARD_REFUSED: the command's number in its session */
    uint64_t session;          /* FORWARD, FORWARD_REFUSED */
    uint64_t deadline_us;      /* FORWARD: on the leader's clock */
    struct keel_buf *data;     /* FORWARD: the command; HELLO, REFUSAL: packed protobuf; owned */
    uint64_t sent_us;          /* RENEW: sender's clock; RENEWED echoes it */
    uint64_t *leases;          /* RENEW, RENEWED: owned array */
    size_t lease_count;
};

struct keel_message *keel_message_new(enum keel_message_type type);
/* Wraps a raft message (taken). */
struct keel_message *keel_message_raft(struct raft_message *msg_take);
/* With everything it owns; takes NULL, returns NULL. */
struct keel_message *keel_message_free(struct keel_message *msg);

/* Bulk lane: appends with entries, forwards. Everything else is urgent. */
bool keel_message_is_bulk(const struct keel_message *msg);

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
