/* Names with an '@': any bytes are parsed or refused, and what is accepted keeps its promises. */
#include <stddef.h>
#include <stdint.h>

#include "check.h"
#include "err.h"
#include "fs/names.h"
#include "keel_limits.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_accepted(struct keel_slice input, const struct fs_name *name)
{
    bool ordinary = name->words == 0;

    KEEL_ASSERT(name->base.data == input.data && name->base.len <= KEEL_NAME_MAX);
    KEEL_ASSERT(ordinary == (name->base.len == input.len));
    KEEL_ASSERT(ordinary || input.data[name->base.len] == '@');
    KEEL_ASSERT((name->words & WORD_RESERVED) == 0);
    KEEL_ASSERT((name->words & WORD_REV) == 0 || (name->words == WORD_REV && name->rev > 0));
    KEEL_ASSERT((name->words & WORD_TTL) == 0 || name->ttl_s <= KEEL_LEASE_TTL_MAX_S);
    KEEL_ASSERT((name->words & WORD_LEASE) == 0 || name->lease > 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct keel_slice input = keel_slice_of(data, size);
    struct fs_name name, again;
    int err = fs_name_parse(input, &name);

    KEEL_ASSERT(err == 0 || err == KEEL_E_INVALID || err == KEEL_E_NAMETOOLONG);
    if (err != 0)
        return 0;
    check_accepted(input, &name);
    /* A view is of an ordinary name. */
    if (name.base.len > 0)
        KEEL_ASSERT(fs_name_parse(name.base, &again) == 0 && again.words == 0);
    return 0;
}
