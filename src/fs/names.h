/* The grammar of names with an '@' (CONTRACT.md section 4), pure: for the mount and the fuzzer.
 *
 *   NAME@word[=value][,word[=value]…]   a view of NAME
 *   @word[=value][,…]                   a view of the directory that it is looked up in
 *
 * A name is a view name only if its first word after the last '@' is one of the reserved ones; anything else (user@host) is an ordinary
 * name. */
#ifndef FS_NAMES_H
#define FS_NAMES_H

#include <stdbool.h>
#include <stdint.h>

#include "buf.h"

enum name_word { /* bits of fs_name.words */
    WORD_REV = 1 << 0,
    WORD_STAT = 1 << 1,
    WORD_LOG = 1 << 2,
    WORD_IF = 1 << 3,
    WORD_TTL = 1 << 4,
    WORD_LEASE = 1 << 5,
    WORD_HOLD = 1 << 6,
    WORD_KEEL = 1 << 7,     /* "@keel" itself */
    WORD_RESERVED = 1 << 8, /* reserved, not in this version: watch, fence, keys, put, delete, json, lock, txn, keel… */
};

struct fs_name {
    struct keel_slice base;   /* NAME; empty: the directory itself. Borrowed */
    unsigned words;           /* 0: an ordinary name (base is all of it) */
    uint64_t rev, if_revision, ttl_s, lease;
};

/* KEEL_E_INVALID: a view name that is malformed: word twice, bad value, unknown word in a list after a reserved one, reserved words that do
 * not go together. KEEL_E_NAMETOOLONG. */
int fs_name_parse(struct keel_slice name, struct fs_name *ret_name);

#endif
