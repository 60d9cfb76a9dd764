/* The grammar of names with an '@': each rule, and a property test against a second, slower reading
 * of it. */
#include "unit.h"

#include <stdio.h>

#include "err.h"
#include "fs/names.h"
#include "keel_limits.h"
#include "rng.h"

static int parse(const char *text, struct fs_name *ret_name)
{
    memset(ret_name, 0xaa, sizeof *ret_name);
    return fs_name_parse(keel_slice_str(text), ret_name);
}

static void expect_view(const char *text, const char *base, unsigned words)
{
    struct fs_name name;

    if (parse(text, &name) != 0)
        fail_msg("%s: refused", text);
    if (name.words != words || !keel_slice_equal(name.base, keel_slice_str(base)))
        fail_msg("%s: base '%.*s', words %x", text, (int)name.base.len,
                 (const char *)name.base.data, name.words);
}

static void expect_invalid(const char *text)
{
    struct fs_name name;

    if (parse(text, &name) != KEEL_E_INVALID)
        fail_msg("%s: not refused", text);
}

static void names_without_a_reserved_word_are_ordinary(void **state)
{
    static const char *const names[] = {
        "a",          "user@host",    "user@host.example",
        "@",          "@@",           "a@",
        "@x",         "a@statx",      "a@stat.txt",
        "a@STAT",     "a@revision=3", "a@x,rev=1",
        "a@x=1,stat", "a@log@b",      "stat",
        "rev=3",      "..",           ".",
        "@ stat",     "a@ rev=1",     "a@kee",
        "a@Keel",     "a@rev2",       "a@if-then",
        "a@,stat",    "a@=1",         "a@lo",
    };

    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        expect_view(names[i], names[i], 0);
}

static void each_view_is_recognised_with_its_value(void **state)
{
    struct fs_name name;

    (void)state;
    expect_view("db@stat", "db", WORD_STAT);
    expect_view("db@log", "db", WORD_LOG);
    expect_view("@stat", "", WORD_STAT);
    expect_view("@log", "", WORD_LOG);
    expect_view("@keel", "", WORD_KEEL);
    expect_view("user@host@stat", "user@host", WORD_STAT);
    expect_view("a@log@b@stat", "a@log@b", WORD_STAT);
    assert_int_equal(parse("db@rev=42", &name), 0);
    assert_int_equal(name.words, WORD_REV);
    assert_int_equal(name.rev, 42);
    assert_int_equal(parse("@rev=18446744073709551615", &name), 0);
    assert_true(name.rev == UINT64_MAX);
    assert_int_equal(name.base.len, 0);
    assert_int_equal(parse("db@if=0", &name), 0);
    assert_int_equal(name.words, WORD_IF);
    assert_int_equal(name.if_revision, 0);
    assert_int_equal(parse("l@ttl=10", &name), 0);
    assert_int_equal(name.ttl_s, 10);
    assert_int_equal(parse("l@lease=00000000000004aF", &name), 0);
    assert_int_equal(name.lease, 0x4af);
    assert_int_equal(parse("l@lease=4af", &name), 0);
    assert_int_equal(name.lease, 0x4af);
}

static void words_for_writing_are_joined_in_any_order(void **state)
{
    struct fs_name name;

    (void)state;
    assert_int_equal(parse("leader@if=0,ttl=10,hold", &name), 0);
    assert_int_equal(name.words, WORD_IF | WORD_TTL | WORD_HOLD);
    assert_int_equal(name.ttl_s, 10);
    assert_int_equal(name.if_revision, 0);
    expect_view("leader@hold,ttl=10", "leader", WORD_TTL | WORD_HOLD);
    expect_view("leader@lease=1f,hold,if=7", "leader", WORD_LEASE | WORD_HOLD | WORD_IF);
    expect_view("leader@lease=1f,if=7", "leader", WORD_LEASE | WORD_IF);
}

static void bad_values_are_refused(void **state)
{
    static const char *const names[] = {
        "a@rev",
        "a@rev=",
        "a@rev=0",
        "a@rev=-1",
        "a@rev=+1",
        "a@rev=1x",
        "a@rev=0x10",
        "a@rev= 1",
        "a@rev=1 ",
        "a@rev=007",
        "a@rev=1=2",
        "a@rev=18446744073709551616",
        "a@rev=99999999999999999999999999",
        "a@if",
        "a@if=",
        "a@if=00",
        "a@if=x",
        "a@ttl",
        "a@ttl=0",
        "a@ttl=31536001",
        "a@ttl=1.5",
        "a@lease",
        "a@lease=",
        "a@lease=0",
        "a@lease=xyz",
        "a@lease=11112222333344445",
        "a@hold",
        "a@stat=",
        "a@stat=1",
        "a@log=5",
        "a@ttl=5,hold=1",
        "@keel=1",
    };

    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        expect_invalid(names[i]);
}

static void lists_that_make_no_sense_are_refused(void **state)
{
    static const char *const names[] = {
        "a@rev=1,rev=1", "a@if=1,if=1", "a@ttl=1,ttl=1", "a@stat,stat",     "a@rev=1,stat",
        "a@rev=1,if=1",  "a@stat,log",  "a@log,if=0",    "a@ttl=1,lease=1", "a@ttl=1,lease=1,hold",
        "a@if=0,hold",   "a@rev=1,",    "a@stat,",       "a@if=0,,ttl=1",   "a@if=0,x",
        "a@if=0,user=1", "a@stat,host", "@keel,stat",    "a@rev=1,hold",    "a@ttl=1,hold,stat",
    };

    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        expect_invalid(names[i]);
}

static void reserved_words_without_a_meaning_yet_are_refused(void **state)
{
    static const char *const names[] = {
        "a@watch",  "@watch",     "a@watch=42", "a@fence=3",    "a@keys",       "a@put",
        "a@delete", "a@json",     "a@lock",     "a@txn",        "a@keel",       "a@keels",
        "@keel2",   "@keel.conf", "a@keel=1",   "a@if=0,watch", "a@if=0,keelx", "a@json,stat",
    };

    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        expect_invalid(names[i]);
}

static void a_view_has_no_views_and_dots_have_none(void **state)
{
    static const char *const names[] = { "a@stat@stat", "a@rev=1@log", "a@bad,rev@rev=1@stat",
                                         "@keel@stat",  "..@ttl=5",    ".@stat",
                                         "..@rev=3",    "@rev=x@stat", "a@watch@log" };

    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        expect_invalid(names[i]);
}

static void words_for_writing_need_a_name(void **state)
{
    (void)state;
    expect_invalid("@if=0");
    expect_invalid("@ttl=5");
    expect_invalid("@lease=1");
    expect_invalid("@ttl=5,hold");
    expect_invalid("");
}

static void length_is_counted_without_the_words(void **state)
{
    char base[KEEL_NAME_MAX + 1], text[KEEL_NAME_MAX + 64];
    struct fs_name name;

    (void)state;
    memset(base, 'n', KEEL_NAME_MAX);
    base[KEEL_NAME_MAX] = '\0';
    assert_int_equal(parse(base, &name), 0);
    snprintf(text, sizeof text, "%s@rev=1234", base);
    assert_int_equal(parse(text, &name), 0);
    assert_int_equal(name.base.len, KEEL_NAME_MAX);
    snprintf(text, sizeof text, "%s@rev=99999999999999999999", base);
    assert_int_equal(parse(text, &name), KEEL_E_INVALID);
    snprintf(text, sizeof text, "n%s@rev=1234", base);
    assert_int_equal(parse(text, &name), KEEL_E_NAMETOOLONG);
    snprintf(text, sizeof text, "n%s", base);
    assert_int_equal(parse(text, &name), KEEL_E_NAMETOOLONG);
}

/* ---- the same grammar once more, by string functions and tables of what is allowed ---- */

static bool twin_reserved(const char *word)
{
    static const char *const words[] = { "rev",   "stat",   "log",   "if",    "ttl",
                                         "lease", "hold",   "watch", "fence", "keys",
                                         "put",   "delete", "json",  "lock",  "txn" };

    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strcmp(words[i], word) == 0)
            return true;
    return strncmp(word, "keel", 4) == 0;
}

static bool twin_is_view(const char *text)
{
    const char *at = strrchr(text, '@');
    char word[64];

    if (at == NULL)
        return false;
    snprintf(word, sizeof word, "%.*s", (int)strcspn(at + 1, ",="), at + 1);
    return twin_reserved(word);
}

/* A value, by printing it back: only the canonical spelling survives. */
static bool twin_number(const char *value, uint64_t min, uint64_t max)
{
    char back[32];
    unsigned long long n = strtoull(value, NULL, 10);

    snprintf(back, sizeof back, "%llu", n);
    return strcmp(back, value) == 0 && n >= min && n <= max;
}

static bool twin_lease(const char *value)
{
    size_t len = strlen(value);

    return len >= 1 && len <= 16 && strspn(value, "0123456789abcdefABCDEF") == len &&
           strspn(value, "0") < len;
}

/* One item; adds its letter to `seen`. */
static bool twin_item(char *item, char *seen)
{
    char *value = strchr(item, '='), letter = '\0';

    if (value != NULL)
        *value++ = '\0';
    if (strcmp(item, "rev") == 0 && value != NULL && twin_number(value, 1, UINT64_MAX))
        letter = 'r';
    else if (strcmp(item, "if") == 0 && value != NULL && twin_number(value, 0, UINT64_MAX))
        letter = 'i';
    else if (strcmp(item, "ttl") == 0 && value != NULL && twin_number(value, 1, 31536000))
        letter = 't';
    else if (strcmp(item, "lease") == 0 && value != NULL && twin_lease(value))
        letter = 'e';
    else if (value == NULL && strcmp(item, "stat") == 0)
        letter = 's';
    else if (value == NULL && strcmp(item, "log") == 0)
        letter = 'l';
    else if (value == NULL && strcmp(item, "hold") == 0)
        letter = 'h';
    else if (value == NULL && strcmp(item, "keel") == 0)
        letter = 'k';
    if (letter == '\0' || strchr(seen, letter) != NULL)
        return false;
    strncat(seen, &letter, 1);
    return true;
}

/* Every set of words that there is, in alphabetic order of the letters. */
static bool twin_set_allowed(const char *seen, bool has_base)
{
    static const char *const anywhere[] = { "l", "r", "s" };
    static const char *const named[] = { "i", "t", "e", "it", "ei", "ht", "eh", "hit", "ehi" };
    char sorted[16];
    size_t len = 0;

    for (const char *c = "ehiklrst"; *c != '\0'; c++)
        if (strchr(seen, *c) != NULL)
            sorted[len++] = *c;
    sorted[len] = '\0';
    if (!has_base && strcmp(sorted, "k") == 0)
        return true;
    for (size_t i = 0; i < 3; i++)
        if (strcmp(sorted, anywhere[i]) == 0)
            return true;
    for (size_t i = 0; has_base && i < sizeof named / sizeof *named; i++)
        if (strcmp(sorted, named[i]) == 0)
            return true;
    return false;
}

static bool twin_valid(const char *text)
{
    char copy[128], seen[16] = "";

    if (*text == '\0')
        return false;
    if (!twin_is_view(text))
        return true;
    snprintf(copy, sizeof copy, "%s", text);
    char *list = strrchr(copy, '@');

    *list++ = '\0';
    if (twin_is_view(copy) || strcmp(copy, ".") == 0 || strcmp(copy, "..") == 0)
        return false;
    for (char *item = list, *next; item != NULL; item = next) {
        next = strchr(item, ',');
        if (next != NULL)
            *next++ = '\0';
        if (!twin_item(item, seen))
            return false;
    }
    return twin_set_allowed(seen, copy[0] != '\0');
}

static void random_names_agree_with_a_second_reading_of_the_grammar(void **state)
{
    static const char *const pieces[] = {
        "@",     "@",        "@",        ",",           ",",    "=",    "rev",   "stat",
        "log",   "if",       "ttl",      "lease",       "hold", "keel", "watch", "0",
        "1",     "42",       "af",       "a",           "db",   ".",    "..",    "rev=7",
        "if=0",  "ttl=10",   "lease=1f", "ttl=10,hold", "-",    "x",    "@rev=", "@if=0,ttl=5,hold",
        "@stat", "31536000", "31536001",
    };
    struct keel_rng rng;
    unsigned views = 0, refused = 0;

    (void)state;
    keel_rng_seed(&rng, 4);
    for (int round = 0; round < 200000; round++) {
        char text[128] = "";
        struct fs_name name;
        size_t len = 0;

        for (uint64_t n = keel_rng_below(&rng, 6); n > 0; n--) {
            const char *piece = pieces[keel_rng_below(&rng, sizeof pieces / sizeof *pieces)];

            len += (size_t)snprintf(text + len, sizeof text - len, "%s", piece);
        }
        int err = parse(text, &name);

        if ((err == 0) != twin_valid(text) || (err != 0 && err != KEEL_E_INVALID))
            fail_msg("'%s': %d", text, err);
        if (err == 0 && (name.words != 0) != twin_is_view(text))
            fail_msg("'%s': words %x", text, name.words);
        views += err == 0 && name.words != 0;
        refused += err != 0;
    }
    assert_true(views > 1000 && refused > 1000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_without_a_reserved_word_are_ordinary),
        cmocka_unit_test(each_view_is_recognised_with_its_value),
        cmocka_unit_test(words_for_writing_are_joined_in_any_order),
        cmocka_unit_test(bad_values_are_refused),
        cmocka_unit_test(lists_that_make_no_sense_are_refused),
        cmocka_unit_test(reserved_words_without_a_meaning_yet_are_refused),
        cmocka_unit_test(a_view_has_no_views_and_dots_have_none),
        cmocka_unit_test(words_for_writing_need_a_name),
        cmocka_unit_test(length_is_counted_without_the_words),
        cmocka_unit_test(random_names_agree_with_a_second_reading_of_the_grammar),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
