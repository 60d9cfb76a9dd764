/* The replicated settings as text: what /@keel/settings says, and what is written to it and to
 * /@keel/compact. */
#include <inttypes.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "err.h"
#include "fs/view.h"

enum { QUOTA_MIN = 1 << 20 };

static const uint64_t ANY_MAX = 1ull << 53; /* is a number in JSON, too */

struct setting {
    const char *name;
    size_t offset; /* in struct apply_settings */
    uint64_t min, max;
};

static const struct setting changeable[] = {
    { "file_size", offsetof(struct apply_settings, file_size_bytes), 1, KEEL_FILE_SIZE_MAX },
    { "quota", offsetof(struct apply_settings, quota_bytes), QUOTA_MIN, 0 /* the node's */ },
    { "history_ms", offsetof(struct apply_settings, history_ms), 1, ANY_MAX },
    { "history_revisions", offsetof(struct apply_settings, history_revisions), 1, ANY_MAX },
    { NULL, 0, 0, 0 },
};

void control_settings_text(const struct apply_settings *settings, struct keel_text *text)
{
    keel_text_printf(text, "file_size: %" PRIu64 "\nquota: %" PRIu64 "\ntxn_ops: %" PRIu64 "\n",
                     settings->file_size_bytes, settings->quota_bytes, settings->txn_ops);
    keel_text_printf(text, "history_ms: %" PRIu64 "\nhistory_revisions: %" PRIu64 "\n",
                     settings->history_ms, settings->history_revisions);
    keel_text_printf(text, "level: %" PRIu32 "\n", settings->level);
}

/* Nothing but digits, and less than ANY_MAX. */
static bool parse_number(const char *text, uint64_t *ret)
{
    size_t digits = strspn(text, "0123456789");

    if (digits == 0 || digits > 19 || text[digits] != '\0')
        return false;
    *ret = strtoull(text, NULL, 10);
    return *ret <= ANY_MAX;
}

static bool parse_setting(char *word, const struct fs_options *options,
                          struct apply_settings *changes)
{
    char *equals = strchr(word, '=');
    uint64_t number;

    if (equals == NULL || !parse_number(equals + 1, &number))
        return false;
    *equals = '\0';
    for (const struct setting *s = changeable; s->name != NULL; s++) {
        uint64_t *value = (uint64_t *)(void *)((char *)changes + s->offset);
        uint64_t max = s->max != 0 ? s->max : options->quota_max;

        if (strcmp(word, s->name) != 0)
            continue;
        if (*value != 0 || number < s->min || number > max)
            return false;
        *value = number;
        return true;
    }
    return false;
}

int control_parse_settings(char *text, const struct fs_options *options,
                           struct apply_settings *ret_changes)
{
    char *save = NULL, *word = strtok_r(text, " \t\n", &save);

    *ret_changes = (struct apply_settings){ 0 };
    if (word == NULL)
        return KEEL_E_INVALID;
    for (; word != NULL; word = strtok_r(NULL, " \t\n", &save))
        if (!parse_setting(word, options, ret_changes))
            return KEEL_E_INVALID;
    return 0;
}

int control_parse_revision(char *text, uint64_t *ret_revision)
{
    char *save = NULL, *word = strtok_r(text, " \t\n", &save);

    if (word == NULL || strtok_r(NULL, " \t\n", &save) != NULL)
        return KEEL_E_INVALID;
    return parse_number(word, ret_revision) ? 0 : KEEL_E_INVALID;
}
