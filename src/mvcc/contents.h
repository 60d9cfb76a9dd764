/* How many kept records refer to a content, where that is more than one: content lives as long as
 * the last of them. Most content has one record, which wrote it, or to which a rename brought it;
 * that needs no entry here:
 *
 *     5.0 writes       no entry           the one that refers to it may go, and the content with it
 *     6.0 chmod        5.0: 2 records
 *     5.0 goes         no entry           6.0 is the only one
 */
#ifndef MVCC_CONTENTS_H
#define MVCC_CONTENTS_H

#include "mvcc/mvcc.h"

struct contents_entry {
    uint64_t main; /* the revision that wrote the content; 0: a free slot */
    uint32_t sub;
    uint32_t records;
};

/* Open addressing with linear probing. */
struct contents {
    struct contents_entry *slots;
    size_t count, capacity; /* capacity: 0 or a power of two */
};

/* One more record refers to content that another one wrote. */
void contents_share(struct contents *c, struct mvcc_revision at);
/* One record fewer. True: it was the last one. */
bool contents_drop(struct contents *c, struct mvcc_revision at);

/* For the scan, which meets content whose writer is gone: an entry that no record refers to yet
 * (contents_share follows), and afterwards the end of all entries that one record refers to. */
bool contents_has(const struct contents *c, struct mvcc_revision at);
void contents_adopt(struct contents *c, struct mvcc_revision at);
void contents_settle(struct contents *c);

void contents_free(struct contents *c); /* it can be used again */

#endif
