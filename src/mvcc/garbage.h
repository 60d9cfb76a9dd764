/* What compaction will take off, in the order in which it became garbage: a FIFO of keys. An entry
 * stands for the oldest kept record of its key that no earlier entry stands for (mvcc.h has an
 * example). Eight bytes an entry, in blocks that come and go with them. */
#ifndef MVCC_GARBAGE_H
#define MVCC_GARBAGE_H

#include <stddef.h>

struct mvcc_key;
struct garbage_block;

struct garbage {
    struct garbage_block *oldest, *newest; /* linked; NULL: nothing was ever put in */
    size_t first;                          /* of the oldest block: the first entry left */
    size_t end;                            /* of the newest block: behind its last entry */
    size_t count;
};

void garbage_push(struct garbage *g, struct mvcc_key *key);
/* NULL: there is none. */
struct mvcc_key *garbage_first(const struct garbage *g);
/* There must be one. */
struct mvcc_key *garbage_pop(struct garbage *g);
void garbage_free(struct garbage *g); /* it can be used again */

#endif
