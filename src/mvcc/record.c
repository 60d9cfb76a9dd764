/* The codec of records and of revision keys: docs/format-store.md. Whatever decodes is well-formed;
 * whether it fits the rest of the store is scan.c's to judge. */
#include "bytes.h"
#include "check.h"
#include "err.h"
#include "hash.h"
#include "mvcc/record.h"

enum {
    RECORD_VERSION = 1,
    RECORD_TOMBSTONE = 1, /* the only flag */
    RECORD_HEAD_LEN = 120,
    RECORD_CHECK_LEN = 8,
    XATTRS_MAX = 160 << 10, /* 128 KiB of values, and 64 names */
};

void revision_key_encode(struct mvcc_revision rev, uint8_t ret_key[MVCC_REVISION_KEY_LEN])
{
    put_be64(ret_key, rev.main);
    ret_key[8] = '_';
    put_be64(ret_key + 9, rev.sub);
}

int revision_key_decode(struct keel_slice key, struct mvcc_revision *ret_rev)
{
    if (key.len != MVCC_REVISION_KEY_LEN || key.data[8] != '_')
        return KEEL_E_CORRUPT;
    uint64_t main = get_be64(key.data), sub = get_be64(key.data + 9);

    if (main == 0 || sub > MVCC_SUB_MAX)
        return KEEL_E_CORRUPT;
    *ret_rev = (struct mvcc_revision){ main, (uint32_t)sub };
    return 0;
}

bool mvcc_name_valid(struct keel_slice name)
{
    if (name.len == 0 || name.len > KEEL_NAME_MAX)
        return false;
    if (keel_slice_equal(name, keel_slice_str(".")) || keel_slice_equal(name, keel_slice_str("..")))
        return false;
    return memchr(name.data, '/', name.len) == NULL && memchr(name.data, '\0', name.len) == NULL;
}

bool mvcc_path_valid(struct keel_slice path)
{
    if (path.len == 0)
        return true;
    if (path.len > KEEL_PATH_MAX)
        return false;
    for (;;) {
        const uint8_t *slash = memchr(path.data, '/', path.len);
        size_t len = slash ? (size_t)(slash - path.data) : path.len;

        if (!mvcc_name_valid(keel_slice_of(path.data, len)))
            return false;
        if (slash == NULL)
            return true;
        path = keel_slice_of(slash + 1, path.len - len - 1);
    }
}

static size_t record_size(const struct mvcc_record *record, struct keel_slice path)
{
    KEEL_ASSERT(path.len <= KEEL_PATH_MAX && record->xattrs.len <= XATTRS_MAX);
    return RECORD_HEAD_LEN + path.len + record->xattrs.len + RECORD_CHECK_LEN;
}

static void put_bytes(uint8_t *p, struct keel_slice bytes)
{
    if (bytes.len > 0)
        memcpy(p, bytes.data, bytes.len);
}

static void encode_into(const struct mvcc_record *r, struct keel_slice path, uint8_t *p)
{
    size_t size = record_size(r, path);

    p[0] = RECORD_VERSION;
    p[1] = r->tombstone ? RECORD_TOMBSTONE : 0;
    p[2] = (uint8_t)r->kind;
    p[3] = 0;
    put_le16(p + 4, r->mode);
    put_le16(p + 6, (uint16_t)path.len);
    put_le32(p + 8, r->uid);
    put_le32(p + 12, r->gid);
    put_le64(p + 16, r->ino);
    put_le64(p + 24, r->lease);
    put_le64(p + 32, r->revision.main);
    put_le32(p + 40, r->revision.sub);
    put_le32(p + 44, (uint32_t)r->xattrs.len);
    put_le64(p + 48, r->create_revision);
    put_le64(p + 56, r->version);
    put_le64(p + 64, (uint64_t)r->atime_ns);
    put_le64(p + 72, (uint64_t)r->mtime_ns);
    put_le64(p + 80, (uint64_t)r->ctime_ns);
    put_le64(p + 88, (uint64_t)r->btime_ns);
    put_le64(p + 96, r->content.at.main);
    put_le32(p + 104, r->content.at.sub);
    put_le32(p + 108, r->content.length);
    put_le64(p + 112, r->content.hash);
    put_bytes(p + RECORD_HEAD_LEN, path);
    put_bytes(p + RECORD_HEAD_LEN + path.len, r->xattrs);
    put_le64(p + size - RECORD_CHECK_LEN, keel_hash64(keel_slice_of(p, size - RECORD_CHECK_LEN)));
}

struct keel_buf *mvcc_record_encode(const struct mvcc_record *record, struct keel_slice path)
{
    struct keel_buf *buf = keel_buf_new(record_size(record, path));

    encode_into(record, path, buf->data);
    return buf;
}

struct keel_buf *record_encode_keyed(const struct mvcc_record *record, struct keel_slice path)
{
    struct keel_buf *buf = keel_buf_new(MVCC_REVISION_KEY_LEN + record_size(record, path));

    revision_key_encode(record->revision, buf->data);
    encode_into(record, path, buf->data + MVCC_REVISION_KEY_LEN);
    return buf;
}

/* ---- decoding ---- */

static void decode_head(struct keel_cursor *c, struct mvcc_record *r, uint16_t *ret_path_len,
                        uint32_t *ret_xattrs_len)
{
    r->mode = cursor_le16(c);
    *ret_path_len = cursor_le16(c);
    r->uid = cursor_le32(c);
    r->gid = cursor_le32(c);
    r->ino = cursor_le64(c);
    r->lease = cursor_le64(c);
    r->revision.main = cursor_le64(c);
    r->revision.sub = cursor_le32(c);
    *ret_xattrs_len = cursor_le32(c);
    r->create_revision = cursor_le64(c);
    r->version = cursor_le64(c);
    r->atime_ns = (int64_t)cursor_le64(c);
    r->mtime_ns = (int64_t)cursor_le64(c);
    r->ctime_ns = (int64_t)cursor_le64(c);
    r->btime_ns = (int64_t)cursor_le64(c);
    r->content.at.main = cursor_le64(c);
    r->content.at.sub = cursor_le32(c);
    r->content.length = cursor_le32(c);
    r->content.hash = cursor_le64(c);
}

static bool content_is_sane(const struct mvcc_record *r)
{
    const struct mvcc_content *content = &r->content;

    if (content->length == 0)
        return content->at.main == 0 && content->at.sub == 0 && content->hash == 0;
    if (content->at.main == 0 || revision_compare(content->at, r->revision) > 0)
        return false;
    switch (r->kind) {
    case MVCC_FILE:
        return content->length <= KEEL_FILE_SIZE_MAX;
    case MVCC_SYMLINK:
        return content->length <= KEEL_SYMLINK_MAX;
    case MVCC_DIR:
    default:
        return false;
    }
}

/* One form for one meaning: the fields without one are zero. */
static bool tombstone_is_sane(const struct mvcc_record *r)
{
    return r->mode == 0 && r->uid == 0 && r->gid == 0 && r->create_revision == 0 &&
           r->version == 0 && r->atime_ns == 0 && r->mtime_ns == 0 && r->btime_ns == 0 &&
           r->content.length == 0 && r->content.at.main == 0 && r->content.at.sub == 0 &&
           r->content.hash == 0 && r->xattrs.len == 0;
}

static bool record_is_sane(const struct mvcc_record *r)
{
    if (r->kind < MVCC_FILE || r->kind > MVCC_SYMLINK || r->ino == 0 || r->revision.main == 0)
        return false;
    if (r->tombstone)
        return tombstone_is_sane(r);
    return r->mode <= 07777 && r->version > 0 && r->create_revision > 0 &&
           r->create_revision <= r->revision.main && content_is_sane(r);
}

/* The first byte and the check at the end are the same in all versions: damage is not taken for a
 * newer version. */
static int check_frame(struct keel_slice bytes)
{
    if (bytes.len <= RECORD_CHECK_LEN)
        return KEEL_E_CORRUPT;
    size_t len = bytes.len - RECORD_CHECK_LEN;

    if (get_le64(bytes.data + len) != keel_hash64(keel_slice_of(bytes.data, len)))
        return KEEL_E_CORRUPT;
    if (bytes.data[0] > RECORD_VERSION)
        return KEEL_E_NEWER;
    return bytes.data[0] == RECORD_VERSION ? 0 : KEEL_E_CORRUPT;
}

int mvcc_record_decode(struct keel_slice bytes, struct mvcc_record *ret_record,
                       struct keel_slice *ret_path)
{
    struct mvcc_record r = { 0 };
    uint16_t path_len;
    uint32_t xattrs_len;
    int err = check_frame(bytes);

    if (err != 0)
        return err;
    struct keel_cursor c = { .rest =
                                 keel_slice_of(bytes.data + 1, bytes.len - 1 - RECORD_CHECK_LEN) };
    uint8_t flags = cursor_u8(&c), kind = cursor_u8(&c), reserved = cursor_u8(&c);

    if (flags > RECORD_TOMBSTONE || reserved != 0)
        return KEEL_E_CORRUPT;
    r.tombstone = flags == RECORD_TOMBSTONE;
    r.kind = (enum mvcc_kind)kind;
    decode_head(&c, &r, &path_len, &xattrs_len);
    struct keel_slice path = cursor_slice(&c, path_len);

    r.xattrs = cursor_slice(&c, xattrs_len);
    if (c.bad || c.rest.len != 0 || xattrs_len > XATTRS_MAX || !mvcc_path_valid(path))
        return KEEL_E_CORRUPT;
    if (!record_is_sane(&r))
        return KEEL_E_CORRUPT;
    *ret_record = r;
    *ret_path = path;
    return 0;
}
