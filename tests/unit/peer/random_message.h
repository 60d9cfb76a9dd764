/* Messages with random contents, and whether two of them say the same: for the tests and as a
 * fuzzing corpus. */
#ifndef RANDOM_MESSAGE_H
#define RANDOM_MESSAGE_H

#include "peer/message.h"
#include "rng.h"

enum { RANDOM_MESSAGE_KINDS = RAFT_MESSAGE_TYPES - 1 + MESSAGE_TYPES - 2 };

/* kind: 0 … RANDOM_MESSAGE_KINDS - 1; each type of message is one. size_max: of what has a size, in
 * bytes. */
struct keel_message *random_message(struct keel_rng *rng, size_t kind, size_t size_max);

bool messages_equal(const struct keel_message *a, const struct keel_message *b);

#endif
