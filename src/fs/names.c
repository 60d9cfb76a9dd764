/* Tells view names from ordinary ones, and takes the view names apart. What the words then do is
 * the mount's business. */
#include "err.h"
#include "fs/names.h"
#include "keel_limits.h"

#define WORDS_WITH_NAME (WORD_IF | WORD_TTL | WORD_LEASE | WORD_HOLD)

enum value_kind { VALUE_NONE, VALUE_DECIMAL, VALUE_HEX };

/* The reserved words. Those with WORD_RESERVED mean nothing yet: no file may have such a name, so
 * that they can. */
static const struct word_rule {
    const char *text;
    unsigned word;
    enum value_kind value;
} word_rules[] = {
    { "rev", WORD_REV, VALUE_DECIMAL },
    { "stat", WORD_STAT, VALUE_NONE },
    { "log", WORD_LOG, VALUE_NONE },
    { "if", WORD_IF, VALUE_DECIMAL },
    { "ttl", WORD_TTL, VALUE_DECIMAL },
    { "lease", WORD_LEASE, VALUE_HEX },
    { "hold", WORD_HOLD, VALUE_NONE },
    { "keel", WORD_KEEL, VALUE_NONE },
    { "watch", WORD_RESERVED, VALUE_NONE },
    { "fence", WORD_RESERVED, VALUE_NONE },
    { "keys", WORD_RESERVED, VALUE_NONE },
    { "put", WORD_RESERVED, VALUE_NONE },
    { "delete", WORD_RESERVED, VALUE_NONE },
    { "json", WORD_RESERVED, VALUE_NONE },
    { "lock", WORD_RESERVED, VALUE_NONE },
    { "txn", WORD_RESERVED, VALUE_NONE },
    { NULL, 0, VALUE_NONE },
};

/* For "keel…" with something behind it. */
static const struct word_rule keel_prefix_rule = { "keel", WORD_RESERVED, VALUE_NONE };

static bool is_prefix(const char *prefix, struct keel_slice of)
{
    size_t len = strlen(prefix);

    return of.len >= len && memcmp(of.data, prefix, len) == 0;
}

/* The rule of a word, or NULL: not reserved. */
static const struct word_rule *word_find(struct keel_slice word)
{
    const struct word_rule *rule = word_rules;

    for (; rule->text != NULL; rule++)
        if (keel_slice_equal(word, keel_slice_str(rule->text)))
            return rule;
    return is_prefix("keel", word) ? &keel_prefix_rule : NULL;
}

/* The length up to the first `stop` (or `other`), or all of it. */
static size_t length_until(struct keel_slice s, char stop, char other)
{
    size_t len = 0;

    while (len < s.len && s.data[len] != (uint8_t)stop && s.data[len] != (uint8_t)other)
        len++;
    return len;
}

static struct keel_slice slice_skip(struct keel_slice s, size_t len)
{
    return keel_slice_of(s.data + len, s.len - len);
}

/* Splits at the last '@'. False: there is none. */
static bool split_at(struct keel_slice name, struct keel_slice *ret_base,
                     struct keel_slice *ret_list)
{
    for (size_t i = name.len; i-- > 0;) {
        if (name.data[i] != '@')
            continue;
        *ret_base = keel_slice_of(name.data, i);
        *ret_list = slice_skip(name, i + 1);
        return true;
    }
    return false;
}

/* Is this list of words one of a view: is its first word reserved? */
static bool is_view_list(struct keel_slice list)
{
    return word_find(keel_slice_of(list.data, length_until(list, ',', '='))) != NULL;
}

static bool is_view_name(struct keel_slice name)
{
    struct keel_slice base, list;

    return split_at(name, &base, &list) && is_view_list(list);
}

/* Canonical decimal: digits, no sign, no leading zero, at most UINT64_MAX. */
static bool parse_decimal(struct keel_slice s, uint64_t *ret_value)
{
    uint64_t value = 0;

    if (s.len == 0 || (s.data[0] == '0' && s.len > 1))
        return false;
    for (size_t i = 0; i < s.len; i++) {
        unsigned digit = s.data[i] - (unsigned)'0';

        if (digit > 9 || value > (UINT64_MAX - digit) / 10)
            return false;
        value = value * 10 + digit;
    }
    *ret_value = value;
    return true;
}

static unsigned hex_digit(uint8_t c)
{
    if (c >= '0' && c <= '9')
        return c - (unsigned)'0';
    if (c >= 'a' && c <= 'f')
        return c - (unsigned)'a' + 10;
    if (c >= 'A' && c <= 'F')
        return c - (unsigned)'A' + 10;
    return 16;
}

/* 1 to 16 hex digits, as lease ids are printed (zeroes in front may be left out). */
static bool parse_hex(struct keel_slice s, uint64_t *ret_value)
{
    uint64_t value = 0;

    if (s.len == 0 || s.len > 16)
        return false;
    for (size_t i = 0; i < s.len; i++) {
        unsigned digit = hex_digit(s.data[i]);

        if (digit > 15)
            return false;
        value = value << 4 | digit;
    }
    *ret_value = value;
    return true;
}

/* Stores the value of a word, if it is one that the word may have. */
static bool store_value(struct fs_name *name, unsigned word, uint64_t value)
{
    switch (word) {
    case WORD_REV: /* there is no revision 0 */
        name->rev = value;
        return value > 0;
    case WORD_IF:
        name->if_revision = value;
        return true;
    case WORD_TTL:
        name->ttl_s = value;
        return value >= KEEL_LEASE_TTL_MIN_S && value <= KEEL_LEASE_TTL_MAX_S;
    case WORD_LEASE:
        name->lease = value;
        return value > 0;
    default:
        return false;
    }
}

/* One "word" or "word=value" of the list. */
static bool parse_item(struct fs_name *name, struct keel_slice item)
{
    size_t word_len = length_until(item, '=', '=');
    const struct word_rule *rule = word_find(keel_slice_of(item.data, word_len));
    bool has_value = word_len < item.len;
    uint64_t value = 0;

    if (rule == NULL || rule->word == WORD_RESERVED || (name->words & rule->word) != 0)
        return false;
    name->words |= rule->word;
    if (rule->value == VALUE_NONE)
        return !has_value;
    if (!has_value)
        return false;
    struct keel_slice text = slice_skip(item, word_len + 1);
    bool parsed = rule->value == VALUE_HEX ? parse_hex(text, &value) : parse_decimal(text, &value);

    return parsed && store_value(name, rule->word, value);
}

static bool parse_list(struct fs_name *name, struct keel_slice list)
{
    for (;;) {
        size_t len = length_until(list, ',', ',');

        if (!parse_item(name, keel_slice_of(list.data, len)))
            return false;
        if (len == list.len)
            return true;
        list = slice_skip(list, len + 1);
    }
}

/* Do the words go together? rev, stat, log and keel stand alone; hold needs a lease to hold. */
static bool words_agree(unsigned words)
{
    unsigned alone = words & (WORD_REV | WORD_STAT | WORD_LOG | WORD_KEEL);

    if (alone != 0)
        return words == alone && (alone & (alone - 1)) == 0;
    if ((words & WORD_TTL) != 0 && (words & WORD_LEASE) != 0)
        return false;
    return (words & WORD_HOLD) == 0 || (words & (WORD_TTL | WORD_LEASE)) != 0;
}

/* Can there be such a view of this base? "." and ".." never are names of keys, and a view has no
 * views. */
static bool base_allowed(struct keel_slice base, unsigned words)
{
    if (base.len == 0)
        return (words & WORDS_WITH_NAME) == 0;
    if ((words & WORD_KEEL) != 0 || is_view_name(base))
        return false;
    return !keel_slice_equal(base, keel_slice_str(".")) &&
           !keel_slice_equal(base, keel_slice_str(".."));
}

int fs_name_parse(struct keel_slice name, struct fs_name *ret_name)
{
    struct fs_name parsed = { .base = name };
    struct keel_slice base, list;

    if (name.len == 0)
        return KEEL_E_INVALID;
    if (split_at(name, &base, &list) && is_view_list(list)) {
        parsed.base = base;
        if (!parse_list(&parsed, list) || !words_agree(parsed.words) ||
            !base_allowed(base, parsed.words))
            return KEEL_E_INVALID;
    }
    if (parsed.base.len > KEEL_NAME_MAX)
        return KEEL_E_NAMETOOLONG;
    *ret_name = parsed;
    return 0;
}
