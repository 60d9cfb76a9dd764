/* The command envelope: packing a protobuf head and a raw body into one log entry, and back without
 * copying the body. Wire form: u32le length of the head, head, body. */
#ifndef KEEL_COMMAND_H
#define KEEL_COMMAND_H

#include "arena.h"
#include "buf.h"
#include "command.pb-c.h"

/* The highest semantics level that this build knows; commands carry the level that they need. */
enum { KEEL_SEMANTICS_LEVEL = 1 };

/* What a command came to; the plain form of Keel__Result. */
struct command_result {
    int err;
    uint64_t revision, ino, size, lease, value, offset;
};

/* Packs into a new buf. */
struct keel_buf *command_pack(const Keel__Command *head, struct keel_slice body);

/* Unpacks: the head into the arena, the body borrowed from bytes. KEEL_E_MALFORMED; checks lengths
 * and that there is an op, not its meaning. */
int command_unpack(struct keel_slice bytes, struct keel_arena *arena, Keel__Command **ret_head,
                   struct keel_slice *ret_body);

/* Only session and number, without unpacking (they are the first fields, but any order is read). */
int command_peek(struct keel_slice bytes, uint64_t *ret_session, uint64_t *ret_number);

#endif
