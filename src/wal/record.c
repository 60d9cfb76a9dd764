/* The record codec: one header and body to bytes and back. Pure; segments, chains and epochs are
 * judged by recovery.c. The table of fields is in docs/format-wal.md. */
#include "bytes.h"
#include "check.h"
#include "err.h"
#include "hash.h"
#include "wal/internal.h"

enum {
    OFF_MAGIC = 0,
    OFF_LENGTH = 4,
    OFF_KIND = 8,
    OFF_ENTRY_KIND = 9,
    OFF_RESERVED = 10,
    OFF_TERM = 16,
    OFF_INDEX = 24,
    OFF_EPOCH = 32,
    OFF_SEQUENCE = 40,
    OFF_PREVIOUS = 48,
    OFF_DURABLE = 56,
    OFF_CHECKSUM = 64,
};

static const uint8_t record_magic[4] = { 'K', 'W', 'R', '1' };

/* The body's hash seeds the header's: one figure over both without copying them together. */
static uint64_t record_checksum(const uint8_t *header, struct keel_slice body)
{
    return keel_hash64_seed(keel_slice_of(header, OFF_CHECKSUM), keel_hash64(body));
}

uint64_t wal_record_encode(const struct wal_record *record, uint8_t *p)
{
    KEEL_ASSERT(record->body.len <= KEEL_ENTRY_SIZE_MAX && record->length == record->body.len);
    KEEL_ASSERT(record->durable < record->sequence);

    memset(p, 0, WAL_RECORD_HEADER);
    memcpy(p + OFF_MAGIC, record_magic, sizeof record_magic);
    put_le32(p + OFF_LENGTH, record->length);
    p[OFF_KIND] = record->kind;
    p[OFF_ENTRY_KIND] = record->entry_kind;
    put_le64(p + OFF_TERM, record->term);
    put_le64(p + OFF_INDEX, record->index);
    put_le64(p + OFF_EPOCH, record->epoch);
    put_le64(p + OFF_SEQUENCE, record->sequence);
    put_le64(p + OFF_PREVIOUS, record->previous_checksum);
    put_le64(p + OFF_DURABLE, record->durable);

    uint64_t checksum = record_checksum(p, record->body);

    put_le64(p + OFF_CHECKSUM, checksum);
    return checksum;
}

static bool all_zero(const uint8_t *p, size_t len)
{
    for (size_t i = 0; i < len; i++)
        if (p[i] != 0)
            return false;
    return true;
}

/* What no writer of this version makes, whatever the checksum says. */
static bool record_is_possible(const struct wal_record *record)
{
    if (record->sequence == 0 || record->durable >= record->sequence)
        return false;
    switch ((enum wal_record_kind)record->kind) {
    case WAL_ENTRY:
        return record->index > 0 && record->entry_kind <= RAFT_ENTRY_CONFIG;
    case WAL_HARD_STATE:
        return record->length == 8 && record->entry_kind == 0;
    case WAL_DURABLE:
        return record->length == 0 && record->entry_kind == 0;
    case WAL_RESET:
        return record->index > 0 && record->length == 0 && record->entry_kind == 0;
    }
    return false;
}

bool wal_record_peek(const uint8_t *p, size_t *ret_size, uint64_t *ret_epoch)
{
    uint32_t length = get_le32(p + OFF_LENGTH);

    if (memcmp(p, record_magic, sizeof record_magic) != 0 || length > KEEL_ENTRY_SIZE_MAX)
        return false;
    *ret_size = wal_record_size(length);
    *ret_epoch = get_le64(p + OFF_EPOCH);
    return true;
}

int wal_record_decode(struct keel_slice bytes, struct wal_record *ret_record, size_t *ret_size)
{
    const uint8_t *p = bytes.data;

    size_t size;
    uint64_t epoch;

    if (bytes.len < WAL_RECORD_HEADER || !wal_record_peek(p, &size, &epoch) || size > bytes.len)
        return KEEL_E_MALFORMED;

    uint32_t length = get_le32(p + OFF_LENGTH);
    size_t used = WAL_RECORD_HEADER + (size_t)length;
    struct wal_record record = {
        .length = length,
        .kind = p[OFF_KIND],
        .entry_kind = p[OFF_ENTRY_KIND],
        .term = get_le64(p + OFF_TERM),
        .index = get_le64(p + OFF_INDEX),
        .epoch = epoch,
        .sequence = get_le64(p + OFF_SEQUENCE),
        .previous_checksum = get_le64(p + OFF_PREVIOUS),
        .durable = get_le64(p + OFF_DURABLE),
        .checksum = get_le64(p + OFF_CHECKSUM),
        .body = keel_slice_of(p + WAL_RECORD_HEADER, length),
    };

    if (record.checksum != record_checksum(p, record.body) || !record_is_possible(&record) ||
        !all_zero(p + OFF_RESERVED, OFF_TERM - OFF_RESERVED) || !all_zero(p + used, size - used))
        return KEEL_E_MALFORMED;
    *ret_record = record;
    *ret_size = size;
    return 0;
}
