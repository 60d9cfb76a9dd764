/* Records of the store: any bytes decode or are refused, and what decodes encodes to the same bytes
 * again. */
#include <stddef.h>
#include <stdint.h>

#include "check.h"
#include "err.h"
#include "mvcc/mvcc.h"
#include "signed.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_record(struct keel_slice bytes)
{
    struct mvcc_record record;
    struct keel_slice path;
    int err = mvcc_record_decode(bytes, &record, &path);

    KEEL_ASSERT(err == 0 || err == KEEL_E_CORRUPT || err == KEEL_E_NEWER);
    if (err != 0)
        return;
    struct keel_buf *again = mvcc_record_encode(&record, path);

    KEEL_ASSERT(keel_slice_equal(keel_buf_slice(again), bytes));
    keel_buf_free(again);
}

static struct keel_buf *example_record(void)
{
    struct mvcc_record record = {
        .kind = MVCC_FILE,
        .mode = 0644,
        .ino = 100,
        .revision = { 42, 7 },
        .create_revision = 40,
        .version = 3,
        .content = { .at = { 41, 2 }, .length = 12, .hash = 99 },
        .xattrs = keel_slice_str("attributes"),
    };

    return mvcc_record_encode(&record, keel_slice_str("conf/app/db"));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    return run_signed(keel_slice_of(data, size), example_record, check_record);
}
