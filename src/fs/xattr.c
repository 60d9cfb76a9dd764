/* The computed attributes user.keel.*: what they are called and what they say. Users' own
 * attributes do not exist in this version, nor does setting user.keel.lease. */
#include <inttypes.h>
#include <string.h>

#include "check.h"
#include "err.h"
#include "fs/view.h"

#define XATTR_PREFIX "user.keel."

enum xattr {
    XATTR_REVISION,
    XATTR_CREATE_REVISION,
    XATTR_VERSION,
    XATTR_LEASE,
    XATTR_TTL,
    XATTR_LOCK_REVISION,
};

/* What is behind the prefix. lock_revision is known by name, but no file has it: there are no locks
 * yet. */
static const char *const xattr_names[] = {
    [XATTR_REVISION] = "revision", [XATTR_CREATE_REVISION] = "create_revision",
    [XATTR_VERSION] = "version",   [XATTR_LEASE] = "lease",
    [XATTR_TTL] = "ttl",           [XATTR_LOCK_REVISION] = "lock_revision",
};

static bool starts_with(const char *s, const char *prefix)
{
    return strncmp(s, prefix, strlen(prefix)) == 0;
}

/* Finds a computed attribute by its full name. */
static bool xattr_find(const char *name, enum xattr *ret_xattr)
{
    if (!starts_with(name, XATTR_PREFIX))
        return false;
    for (size_t i = 0; i < KEEL_ARRAY_LEN(xattr_names); i++) {
        if (strcmp(name + strlen(XATTR_PREFIX), xattr_names[i]) == 0) {
            *ret_xattr = (enum xattr)i;
            return true;
        }
    }
    return false;
}

static bool xattr_present(enum xattr xattr, const struct mvcc_record *record)
{
    switch (xattr) {
    case XATTR_REVISION:
    case XATTR_CREATE_REVISION:
    case XATTR_VERSION:
        return true;
    case XATTR_LEASE:
    case XATTR_TTL:
        return record->lease != 0;
    case XATTR_LOCK_REVISION:
        return false;
    }
    return false;
}

static void xattr_value(struct replica *r, enum xattr xattr, const struct mvcc_record *record,
                        struct keel_text *text)
{
    switch (xattr) {
    case XATTR_REVISION:
        keel_text_printf(text, "%" PRIu64, record->revision.main);
        break;
    case XATTR_CREATE_REVISION:
        keel_text_printf(text, "%" PRIu64, record->create_revision);
        break;
    case XATTR_VERSION:
        keel_text_printf(text, "%" PRIu64, record->version);
        break;
    case XATTR_LEASE:
        view_lease_text(text, record->lease);
        break;
    case XATTR_TTL:
        keel_text_printf(text, "%" PRIu64, view_ttl_s(r, record->lease));
        break;
    case XATTR_LOCK_REVISION:
        KEEL_ASSERT(false && "never present");
    }
}

int xattr_get(struct replica *r, const struct mvcc_key *key, const char *name,
              struct keel_text *text)
{
    struct mvcc_record record;
    enum xattr xattr;

    if (!starts_with(name, "user."))
        return KEEL_E_NOTSUPPORTED;
    if (!xattr_find(name, &xattr))
        return KEEL_E_NOATTR;
    int err = mvcc_get(replica_mvcc(r), key, 0, &record);

    if (err != 0)
        return err;
    if (!xattr_present(xattr, &record))
        return KEEL_E_NOATTR;
    xattr_value(r, xattr, &record, text);
    return 0;
}

void xattr_list(struct replica *r, const struct mvcc_key *key, struct keel_text *text)
{
    struct mvcc_record record;

    if (mvcc_get(replica_mvcc(r), key, 0, &record) != 0)
        return;
    for (size_t i = 0; i < KEEL_ARRAY_LEN(xattr_names); i++) {
        if (!xattr_present((enum xattr)i, &record))
            continue;
        keel_text_printf(text, XATTR_PREFIX "%s", xattr_names[i]);
        keel_text_append(text, keel_slice_of("", 1));
    }
}

int xattr_set_error(const char *name)
{
    if (strcmp(name, XATTR_PREFIX "lease") == 0)
        return KEEL_E_NOTSUPPORTED;
    return starts_with(name, XATTR_PREFIX) ? KEEL_E_PERM : KEEL_E_NOTSUPPORTED;
}
