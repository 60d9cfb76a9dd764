/* Looking at the store of a data directory without changing anything in it. */
#ifndef STORE_LOOK_H
#define STORE_LOOK_H

#include "mvcc/kv.h"

/* Opens the store that counts: while a snapshot is being installed, that may be the new one, and
 * then the log is to be reset to ret_index, ret_term (else 0, 0). Reading a damaged store may end
 * in a memory fault, which from now on ends the process with a message and `fault_code`. Errors as
 * of kv_lmdb_open and store_install_recover. */
int store_look(int data_dir_fd, int fault_code, struct kv **ret_kv, uint64_t *ret_index,
               uint64_t *ret_term, char *ret_why, size_t why_size);

#endif
