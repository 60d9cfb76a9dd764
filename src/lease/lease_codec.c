/* The replicated part of a lease table as bytes: a meta value of the store (docs/format-store.md,
 * "Leases"). Equal histories give equal bytes, whoever leads. */
#include "bytes.h"
#include "err.h"
#include "hash.h"
#include "lease/table.h"

enum {
    LEASES_VERSION = 1,
    HEAD_LEN = 8,   /* version, number of leases */
    LEASE_LEN = 32, /* id, ttl, remaining, uid, number of inodes; before the inode numbers */
    CHECK_LEN = 8,
};

struct keel_buf *lease_table_encode(const struct lease_table *t)
{
    struct keel_buf *buf =
        keel_buf_new(HEAD_LEN + t->count * LEASE_LEN + t->owner_count * 8 + CHECK_LEN);
    uint8_t *p = buf->data;

    put_le32(p, LEASES_VERSION);
    put_le32(p + 4, (uint32_t)t->count);
    p += HEAD_LEN;
    for (size_t i = 0; i < t->count; i++) {
        const struct lease *lease = t->leases[i];

        put_le64(p, lease->id);
        put_le64(p + 8, lease->ttl_ms);
        put_le64(p + 16, lease->remaining_ms);
        put_le32(p + 24, lease->uid);
        put_le32(p + 28, (uint32_t)lease->ino_count);
        p += LEASE_LEN;
        for (size_t k = 0; k < lease->ino_count; k++, p += 8)
            put_le64(p, lease->inos[k]);
    }
    put_le64(p, keel_hash64(keel_slice_of(buf->data, buf->len - CHECK_LEN)));
    return buf;
}

/* Version and check are at the same place in all versions: damage is not taken for a newer version.
 */
static int check_frame(struct keel_slice bytes)
{
    if (bytes.len < HEAD_LEN + CHECK_LEN)
        return KEEL_E_MALFORMED;
    size_t len = bytes.len - CHECK_LEN;
    uint32_t version = get_le32(bytes.data);

    if (get_le64(bytes.data + len) != keel_hash64(keel_slice_of(bytes.data, len)))
        return KEEL_E_MALFORMED;
    if (version > LEASES_VERSION)
        return KEEL_E_NEWER;
    return version == LEASES_VERSION ? 0 : KEEL_E_MALFORMED;
}

static int decode_inos(struct keel_cursor *c, struct lease_table *t, struct lease *lease,
                       uint32_t count)
{
    uint64_t last = 0;

    if (count > c->rest.len / 8)
        return KEEL_E_MALFORMED;
    for (uint32_t k = 0; k < count; k++) {
        uint64_t ino = cursor_le64(c);

        if (ino <= last || lease_owner_of(t, ino) != NULL)
            return KEEL_E_MALFORMED;
        lease_set_add(t, lease, ino);
        last = ino;
    }
    return 0;
}

static int decode_lease(struct keel_cursor *c, struct lease_table *t)
{
    uint64_t id = cursor_le64(c), ttl_ms = cursor_le64(c), remaining_ms = cursor_le64(c);
    uint32_t uid = cursor_le32(c), inos = cursor_le32(c);
    uint64_t last = t->count > 0 ? t->leases[t->count - 1]->id : 0;

    if (c->bad || id <= last || remaining_ms > ttl_ms ||
        ttl_ms < KEEL_LEASE_TTL_MIN_S * UINT64_C(1000) ||
        ttl_ms > KEEL_LEASE_TTL_MAX_S * UINT64_C(1000))
        return KEEL_E_MALFORMED;
    struct lease *lease = lease_insert(t, id, ttl_ms, uid);

    lease->remaining_ms = remaining_ms;
    return decode_inos(c, t, lease, inos);
}

int lease_table_decode(struct keel_slice bytes, struct lease_table **ret_table)
{
    int err = check_frame(bytes);

    if (err != 0)
        return err;
    struct keel_cursor c = { .rest = keel_slice_of(bytes.data + 4, bytes.len - 4 - CHECK_LEN) };
    uint32_t count = cursor_le32(&c);
    struct lease_table *t = lease_table_new();

    if (count > KEEL_LEASES_MAX)
        err = KEEL_E_MALFORMED;
    for (uint32_t i = 0; i < count && err == 0; i++)
        err = decode_lease(&c, t);
    if (err == 0 && c.rest.len != 0)
        err = KEEL_E_MALFORMED;
    if (err != 0) {
        lease_table_free(t);
        return err;
    }
    *ret_table = t;
    return 0;
}
