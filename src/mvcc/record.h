/* Bytes of records and revision keys (docs/format-store.md): inside mvcc. The public codec is in
 * mvcc.h. */
#ifndef MVCC_RECORD_H
#define MVCC_RECORD_H

#include "mvcc/mvcc.h"

enum {
    MVCC_FORMAT_VERSION = 1, /* of the whole store */
    MVCC_REVISION_KEY_LEN = 17,
};

void revision_key_encode(struct mvcc_revision rev, uint8_t ret_key[MVCC_REVISION_KEY_LEN]);
/* KEEL_E_CORRUPT. */
int revision_key_decode(struct keel_slice key, struct mvcc_revision *ret_rev);

/* A record behind its revision key, in one buf: what the state hash is taken of. The record is what
 * follows MVCC_REVISION_KEY_LEN. */
struct keel_buf *record_encode_keyed(const struct mvcc_record *record, struct keel_slice path);

/* No empty, ".", ".." or too long component, no NUL; "" is the root. */
bool mvcc_path_valid(struct keel_slice path);
bool mvcc_name_valid(struct keel_slice name);

static inline int revision_compare(struct mvcc_revision a, struct mvcc_revision b)
{
    if (a.main != b.main)
        return a.main < b.main ? -1 : 1;
    return (a.sub > b.sub) - (a.sub < b.sub);
}

#endif
