/* The configuration in a log entry: any bytes are refused, or decoded into a valid one that encodes
 * to the same bytes. */
#include <stddef.h>
#include <stdint.h>

#include "check.h"
#include "err.h"
#include "raft/config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct keel_slice input = keel_slice_of(data, size), rest;
    struct raft_config config;
    uint64_t members[KEEL_MEMBERS_MAX];
    struct keel_buf *again;
    int err = raft_config_decode(input, &config, &rest);

    KEEL_ASSERT(err == 0 || err == KEEL_E_MALFORMED || err == KEEL_E_NEWER);
    if (err != 0)
        return 0;
    KEEL_ASSERT(raft_config_valid(&config));
    KEEL_ASSERT(raft_config_members(&config, members) <= KEEL_MEMBERS_MAX);
    again = raft_config_encode(&config, rest);
    KEEL_ASSERT(keel_slice_equal(input, keel_buf_slice(again)));
    keel_buf_free(again);
    return 0;
}
