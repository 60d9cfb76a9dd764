/* The table of leases: any bytes decode or are refused, and what decodes encodes to the same bytes
 * again. */
#include <stddef.h>
#include <stdint.h>

#include "check.h"
#include "err.h"
#include "lease/lease.h"
#include "signed.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_leases(struct keel_slice bytes)
{
    struct lease_table *table;
    int err = lease_table_decode(bytes, &table);

    KEEL_ASSERT(err == 0 || err == KEEL_E_MALFORMED || err == KEEL_E_NEWER);
    if (err != 0)
        return;
    struct keel_buf *again = lease_table_encode(table);

    KEEL_ASSERT(keel_slice_equal(keel_buf_slice(again), bytes));
    keel_buf_free(again);
    lease_table_free(table);
}

static struct keel_buf *example_leases(void)
{
    struct lease_table *table = lease_table_new();

    for (uint64_t id = 5; id < 9; id++) {
        KEEL_ASSERT(lease_grant(table, id, 1000 * id, (uint32_t)id, 0) == 0);
        for (uint64_t ino = 0; ino < id; ino++)
            KEEL_ASSERT(lease_attach(table, id, 10 * id + ino) == 0);
    }
    struct keel_buf *buf = lease_table_encode(table);

    lease_table_free(table);
    return buf;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    return run_signed(keel_slice_of(data, size), example_leases, check_leases);
}
