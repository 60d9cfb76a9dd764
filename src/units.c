/* A number, and a unit out of a table. */
#include "units.h"

#include <string.h>

struct unit {
    const char *name;
    uint64_t factor;
};

static const struct unit sizes[] = {
    { "", 1 },           { "K", 1ull << 10 }, { "M", 1ull << 20 },
    { "G", 1ull << 30 }, { "T", 1ull << 40 }, { NULL, 0 },
};

static const struct unit times[] = {
    { "ms", 1 }, { "s", 1000 }, { "m", 60000 }, { "h", 3600000 }, { "d", 86400000 }, { NULL, 0 },
};

static bool parse(const char *text, const struct unit *units, uint64_t *ret)
{
    size_t digits = strspn(text, "0123456789");
    uint64_t number = 0;

    if (digits == 0 || digits > 18) /* more than 64 bits may take */
        return false;
    for (size_t i = 0; i < digits; i++)
        number = 10 * number + (uint64_t)(text[i] - '0');
    for (const struct unit *unit = units; unit->name != NULL; unit++)
        if (strcmp(text + digits, unit->name) == 0)
            return !__builtin_mul_overflow(number, unit->factor, ret);
    return false;
}

bool keel_units_size(const char *text, uint64_t *ret_bytes)
{
    return parse(text, sizes, ret_bytes);
}

bool keel_units_time(const char *text, uint64_t *ret_ms)
{
    return parse(text, times, ret_ms);
}
