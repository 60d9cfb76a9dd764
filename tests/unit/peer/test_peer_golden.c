/* One message of each kind as version 1 of the protocol writes it: what a node of another release
 * says is understood, and it understands what this one says. With --write-golden FILE it writes
 * them. */
#include "unit.h"

#include <stdio.h>
#include <string.h>

#include "check.h"
#include "random_message.h"

enum { FILE_MAX = 1 << 16, DATA_MAX = 100 };

/* By its number alone: those of kinds that are added do not change those that are there. */
static struct keel_message *message_of_kind(size_t kind)
{
    struct keel_rng rng;

    keel_rng_seed(&rng, 1000 + kind);
    return random_message(&rng, kind, DATA_MAX);
}

static void append_encoded(struct keel_text *frames, size_t kind)
{
    struct keel_message *msg = message_of_kind(kind);
    struct keel_buf *bytes = keel_message_encode(msg);

    keel_text_append(frames, keel_buf_slice(bytes));
    keel_buf_free(bytes);
    keel_message_free(msg);
}

static struct keel_buf *golden(void)
{
    struct keel_buf *bytes = keel_buf_new(FILE_MAX);
    FILE *f = fopen(GOLDEN_FRAMES, "rb");

    assert_non_null(f);
    bytes->len = fread(bytes->data, 1, FILE_MAX, f);
    fclose(f);
    assert_true(bytes->len < FILE_MAX);
    return bytes;
}

static int compare(void *arg, struct keel_message *msg_take)
{
    size_t *kind = arg;
    struct keel_message *expected = message_of_kind((*kind)++);

    assert_true(messages_equal(msg_take, expected));
    keel_message_free(expected);
    keel_message_free(msg_take);
    return 0;
}

static void messages_of_version_1_are_understood(void **state)
{
    struct keel_buf *frames = golden();
    struct frame_reader *reader = frame_reader_new();
    size_t kinds = 0;

    (void)state;
    assert_int_equal(frame_reader_feed(reader, keel_buf_slice(frames), compare, &kinds), 0);
    assert_int_equal(kinds, RANDOM_MESSAGE_KINDS);
    frame_reader_free(reader);
    keel_buf_free(frames);
}

static void messages_are_written_as_version_1_has_them(void **state)
{
    struct keel_buf *frames = golden();
    struct keel_text now = { 0 };

    (void)state;
    for (size_t kind = 0; kind < RANDOM_MESSAGE_KINDS; kind++)
        append_encoded(&now, kind);
    assert_int_equal(now.len, frames->len);
    assert_memory_equal(now.data, frames->data, now.len);
    keel_text_free(&now);
    keel_buf_free(frames);
}

static int write_golden(const char *path)
{
    struct keel_text frames = { 0 };
    FILE *f = fopen(path, "wb");

    if (f == NULL)
        return 1;
    for (size_t kind = 0; kind < RANDOM_MESSAGE_KINDS; kind++)
        append_encoded(&frames, kind);
    bool ok = fwrite(frames.data, 1, frames.len, f) == frames.len;

    keel_text_free(&frames);
    return fclose(f) == 0 && ok ? 0 : 1;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(messages_of_version_1_are_understood),
        cmocka_unit_test(messages_are_written_as_version_1_has_them),
    };

    if (argc == 3 && strcmp(argv[1], "--write-golden") == 0)
        return write_golden(argv[2]);
    return cmocka_run_group_tests_name("peer-golden", tests, NULL, NULL);
}
