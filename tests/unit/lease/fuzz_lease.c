/* The table of leases: any bytes decode or are refused, and what decodes encodes to the same bytes
 * again. They end with a check that random bytes never have, so that there are three ways in,
 * chosen by the first byte: the bytes as they are; the bytes with a check that fits; a good example
 * with some of its bytes replaced (three bytes of input each: where, and by what) and a check that
 * fits. */
#include <stddef.h>
#include <stdint.h>

#include "bytes.h"
#include "check.h"
#include "err.h"
#include "hash.h"
#include "lease/lease.h"

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

static void sign(struct keel_buf *buf)
{
    if (buf->len >= 8)
        put_le64(buf->data + buf->len - 8, keel_hash64(keel_slice_of(buf->data, buf->len - 8)));
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

static void replace_bytes(struct keel_buf *buf, struct keel_slice input)
{
    for (size_t i = 0; i + 3 <= input.len; i += 3)
        buf->data[get_le16(input.data + i) % buf->len] = input.data[i + 2];
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0)
        return 0;
    struct keel_slice input = keel_slice_of(data + 1, size - 1);
    struct keel_buf *buf;

    switch (data[0] % 3) {
    case 0:
        buf = keel_buf_copy(input);
        break;
    case 1:
        buf = keel_buf_copy(input);
        sign(buf);
        break;
    default:
        buf = example_leases();
        replace_bytes(buf, input);
        sign(buf);
    }
    check_leases(keel_buf_slice(buf));
    keel_buf_free(buf);
    return 0;
}
