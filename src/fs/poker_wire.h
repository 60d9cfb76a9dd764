/* What the daemon and its poker process say to each other: one message a packet, both ends the same
 * binary on one host, so host byte order. Pure.
 *
 *   daemon -> poker   a ticket; QUIT
 *   poker -> daemon   DONE for each ticket, in their order; MARKS with inode numbers, then SCANNED,
 * every few seconds */
#ifndef FS_POKER_WIRE_H
#define FS_POKER_WIRE_H

#include <stdbool.h>

#include "buf.h"
#include "keel_limits.h"

enum poker_verb {
    POKER_QUIT = 1,
    POKER_CREATE,
    POKER_MKDIR,
    POKER_SYMLINK,
    POKER_CONTENT,
    POKER_ATTR,
    POKER_REMOVE,
    POKER_RMDIR,
    POKER_RENAME,
    POKER_DONE,
    POKER_MARKS,
    POKER_SCANNED,
};

/* A directory, by nodeid and, if it still has one, by path ("" is the root). */
struct poker_place {
    uint64_t nodeid;
    bool has_path;
    const char *path; /* NUL-terminated when decoded */
    size_t path_len;
};

struct poker_order {
    enum poker_verb verb;
    uint64_t id;
    uint64_t object; /* nodeid */
    uint64_t size;
    struct poker_place dir, new_dir;
    const char *name, *new_name; /* NUL-terminated when decoded; "": the directory itself */
    size_t name_len, new_name_len;
};

struct poker_done {
    enum poker_verb verb; /* POKER_DONE */
    int error;            /* errno, 0: done */
    uint64_t id;
};

enum { POKER_MARKS_MAX = 1000, POKER_WATCHED_MAX = 65536 };

struct poker_marks {
    enum poker_verb verb; /* POKER_MARKS */
    uint32_t count;
    uint64_t inos[POKER_MARKS_MAX];
};

struct poker_scanned {
    enum poker_verb verb; /* POKER_SCANNED: the MARKS before it were all */
    int64_t started_ms;   /* CLOCK_MONOTONIC */
    bool blind;           /* it could not see everything, or a mark covers the whole mount */
};

enum { POKER_ORDER_MAX = 128 + 2 * (KEEL_PATH_MAX + 1 + KEEL_NAME_MAX + 1) };

/* Into at least POKER_ORDER_MAX bytes; returns the length. */
size_t poker_order_encode(const struct poker_order *order, uint8_t *ret_bytes);

/* KEEL_E_MALFORMED. Strings point into bytes. */
int poker_order_decode(struct keel_slice bytes, struct poker_order *ret_order);

#endif
