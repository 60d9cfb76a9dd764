/* Puts a store that was received in the place of a node's own, in its data directory (the working
 * directory). Blocking; for one thread at a time.
 *
 *   store/       the store
 *   store.new/   the one that is being built; after the exchange: the old one
 *   install      the manifest: which snapshot takes the place. A copy is in the new store, as
 *                `installed`: so it is known which of the two is the new one
 *
 *   build        store.new is filled, checked and synced; then the manifest comes to its name.
 *                From here on the new store is the one that counts
 *   swap         store and store.new change places
 *   (the caller opens the new store, and has the log reset to it, durably)
 *   finish       the manifest goes, and then the old store
 *
 * Before there is a manifest, a crash leaves the old store and rubbish. While there is one,
 * store_install_recover brings the new store to its place and says to what the log is to be reset.
 *
 * KEEL_E_DISKFULL and KEEL_E_IO: ret_why says what failed, the caller ends the process; the next
 * start recovers. */
#ifndef KEEL_STORE_INSTALL_H
#define KEEL_STORE_INSTALL_H

#include <stddef.h>
#include <stdint.h>

#include "mvcc/snapshot.h"

/* Reads the snapshot from the start of the file. KEEL_E_CORRUPT, KEEL_E_NEWER, KEEL_E_INVALID (of
 * another cluster), KEEL_E_NOTSUPPORTED (a file system that cannot exchange two names): it is not
 * used, nothing is left of it, and the node goes on with what it has.
 * The store in store.new is closed again. */
int store_install_build(int snapshot_fd, uint64_t map_bytes, uint64_t cluster_id,
                        struct snapshot_info *ret_info, char *ret_why, size_t why_size);

/* A kv that is open in `store` goes on working: it is now in store.new. */
int store_install_swap(char *ret_why, size_t why_size);

/* Only after the reset of the log is durable; also after store_install_recover. A kv that is still
 * open in store.new goes on working. */
int store_install_finish(char *ret_why, size_t why_size);

/* At the start, before the store is opened. Makes one where there is none: in store.new, so that
 * one that a crash has left half made does not count. ret_index 0: nothing was under way. Otherwise
 * the store is the new one (which may have gone on since): the log is reset to ret_index, ret_term
 * (wal_options.install_index), then comes store_install_finish. KEEL_E_CORRUPT: ret_why says what
 * to do. */
int store_install_recover(uint64_t map_bytes, uint64_t *ret_index, uint64_t *ret_term,
                          char *ret_why, size_t why_size);

/* What store_install_recover would find, without changing anything: in which of the two directories
 * the store is that counts, and to what the log would be reset (0, 0: nothing is under way). Errors
 * as there. */
int store_install_peek(const char **ret_store, uint64_t *ret_index, uint64_t *ret_term,
                       char *ret_why, size_t why_size);

/* store.new and what is in it goes, for whoever else builds one there, and has failed. Not while
 * there is a manifest. A kv that is open in it goes on working. */
int store_new_remove(char *ret_why, size_t why_size);

/* For tests: called with the name of each step once it is done. NULL otherwise. */
extern void (*store_install_step)(const char *step);

#endif
