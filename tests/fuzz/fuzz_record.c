/* Records of the store: any bytes decode or are refused, and what decodes encodes to the same bytes
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
#include "mvcc/mvcc.h"

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

static void sign(struct keel_buf *buf)
{
    if (buf->len >= 8)
        put_le64(buf->data + buf->len - 8, keel_hash64(keel_slice_of(buf->data, buf->len - 8)));
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
        buf = example_record();
        replace_bytes(buf, input);
        sign(buf);
    }
    check_record(keel_buf_slice(buf));
    keel_buf_free(buf);
    return 0;
}
