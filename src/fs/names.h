/* The grammar of names with an '@' (docs/semantics.md), pure: for the mount and the fuzzer.
 *
 *   NAME@word[=value][,word[=value]…]   a view of NAME
 *   @word[=value][,…]                   a view of the directory that it is looked up in
 *
 * A name is a view name only if its first word after the last '@' is one of the reserved ones;
 * anything else (user@host) is an ordinary name. Numbers are decimal without sign or leading zero;
 * lease ids are 1 to 16 hex digits. if, ttl, lease and hold need a NAME. */
#ifndef FS_NAMES_H
#define FS_NAMES_H

#include <stdbool.h>
#include <stdint.h>

#include "buf.h"

/* Bits of fs_name.words.
 * KEEL: "@keel" itself; below the root the caller refuses it (KEEL_E_INVALID).
 * RESERVED: watch, fence, keys, put, delete, json, lock, txn, keel…: without a meaning in this
 * version. Never in fs_name.words: such a name is KEEL_E_INVALID. */
enum name_word {
    WORD_REV = 1 << 0,
    WORD_STAT = 1 << 1,
    WORD_LOG = 1 << 2,
    WORD_IF = 1 << 3,
    WORD_TTL = 1 << 4,
    WORD_LEASE = 1 << 5,
    WORD_HOLD = 1 << 6,
    WORD_KEEL = 1 << 7,
    WORD_RESERVED = 1 << 8,
};

struct fs_name {
    struct keel_slice base; /* NAME; empty: the directory itself. Borrowed */
    unsigned words;         /* 0: an ordinary name (base is all of it) */
    uint64_t rev, if_revision, ttl_s, lease;
};

/* KEEL_E_INVALID: a view name that is malformed: word twice, bad value, unknown word in a list
 * after a reserved one, reserved words that do not go together, a view of a view, of "." or of
 * "..". KEEL_E_NAMETOOLONG: the base is; a view name may be longer than KEEL_NAME_MAX by its words.
 */
int fs_name_parse(struct keel_slice name, struct fs_name *ret_name);

#endif
