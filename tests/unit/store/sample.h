/* A store that has a bit of everything, and all that a store says when it is asked. */
#ifndef STORE_SAMPLE_H
#define STORE_SAMPLE_H

#include "unit.h"

#include "apply.h"

/* Content of a record that cannot be asked for any more, and that compaction has yet to take off.
 */
#define SAMPLE_GARBAGE "with its lease"

/* In memory, always the same: files, directories and symbolic links, several generations, content
 * that records share or that has lost the record that wrote it, leases, tombstones, a session,
 * settings, and a compaction that is half done. */
struct kv *sample_new(void);

struct opened {
    struct mvcc *mvcc;
    struct apply *apply;
};

/* As the start of a node does it. An error is one that the node would not start with;
 * KEEL_E_CORRUPT and KEEL_E_NEWER are explained. */
int sample_open(struct kv *kv, struct opened *ret_opened, char *ret_why, size_t why_size);
void sample_close(struct opened *o);

/* What stands in the place of an answer that is refused as damaged. */
#define SAMPLE_DAMAGED "damaged"

/* One line for each answer: every key at every revision that can be asked for, and by every one of
 * its records, with its content; the live directories' times; sessions, members, settings. */
void sample_say(struct opened *o, struct keel_text *text);
/* The same of a store that is not open, and must be sound. */
void sample_say_all(struct kv *kv, struct keel_text *text);
/* Line by line the same, but for those that are refused as damaged: they are counted. */
bool sample_agrees(const struct keel_text *sound, const struct keel_text *said,
                   size_t *ret_damaged);

/* Hash of what the next checkpoint would write of the cluster's state and the leases. */
uint64_t sample_meta(struct opened *o);

#endif
