/* A store without holes in the place of the one that is there, in the data directory (the working
 * directory), while that goes on being read and written. Blocking; for one thread at a time, and
 * not while a snapshot is being installed.
 *
 *   copy      store.new is made of what is in the store at some moment. Of whatever is written to
 *             the store after the beginning of it, the caller keeps the keys
 *   catch up  and these are copied again
 *   switch    with all of them copied, and nobody writing: store and store.new change places
 *   remove    the old one is closed, and goes
 *
 * A crash leaves one that is complete in `store`, at every step: before the switch that is the old
 * one, and at the switch both are the same. What is in store.new without a manifest is rubbish to
 * store_install_recover. */
#ifndef KEEL_STORE_DEFRAG_H
#define KEEL_STORE_DEFRAG_H

#include <stdatomic.h>

#include "mvcc/kv.h"

/* Enough room on the disk for a copy of `used` bytes, and for whoever else writes? */
bool store_defrag_has_room(uint64_t used);

/* give_up: becomes true when the copy is not wanted any more. KEEL_E_CANCELLED; KEEL_E_DISKFULL
 * (before the disk is full for everybody); others with ret_why. Nothing is left then. */
int store_defrag_copy(struct kv *from, uint64_t map_bytes, const atomic_bool *give_up,
                      struct kv **ret_kv, char *ret_why, size_t why_size);

/* With all keys that are written in the batches, a list: as kv_follow. */
int store_defrag_catch_up(struct kv *from, struct kv *kv, const struct kv_batch *batches,
                          char *ret_why, size_t why_size);

/* Both stay open, and each is then where the other one was. An error: nothing has happened. When it
 * cannot be told whether it has, the process ends. */
int store_defrag_switch(struct kv *old, struct kv *kv, char *ret_why, size_t why_size);

/* Closes one that is open in store.new, and removes it. */
int store_defrag_remove(struct kv *kv, char *ret_why, size_t why_size);

/* For tests: called with the name of each step once it is done. NULL otherwise. */
extern void (*store_defrag_step)(const char *step);

#endif
