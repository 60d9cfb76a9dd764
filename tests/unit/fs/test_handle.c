/* What a handle may hold back, as a table; and the bytes that it holds back. */
#include "unit.h"

#include <fcntl.h>

#include "check.h"
#include "fs/handle.h"

#define LIMIT ((uint64_t)KEEL_FILE_SIZE_MAX)

struct buffer_case {
    const char *what;
    int open_flags, write_flags;
    bool fresh, exclusive, failed, lost;
    size_t staged;
    uint64_t offset;
    size_t len, uid_bytes, node_bytes;
    uint64_t limit;
    bool may;
};

static const struct buffer_case buffer_cases[] = {
    { "stdio's buffer of jq > f", O_WRONLY | O_TRUNC, 0, .fresh = true, .len = 8192, .limit = LIMIT,
      .may = true },
    { "the next one", O_WRONLY | O_TRUNC, 0, .fresh = true, .staged = 8192, .offset = 8192,
      .len = 8192, .limit = LIMIT, .may = true },
    { "the rest, which is the end", O_WRONLY, 0, .fresh = true, .staged = 8192, .offset = 8192,
      .len = 100, .limit = LIMIT },
    { "one sector is not a buffer", O_WRONLY, 0, .fresh = true, .len = 512, .limit = LIMIT },
    { "the smallest buffer", O_WRONLY, 0, .fresh = true, .len = 4096, .limit = LIMIT, .may = true },
    { "not a multiple of 512", O_WRONLY, 0, .fresh = true, .len = 4097, .limit = LIMIT },
    { "not in sequence", O_WRONLY, 0, .fresh = true, .staged = 4096, .offset = 8192, .len = 4096,
      .limit = LIMIT },
    { "not fresh any more", O_WRONLY, 0, .len = 4096, .limit = LIMIT },
    { "one that reads could tell", O_RDWR, 0, .fresh = true, .len = 4096, .limit = LIMIT },
    { "unless it created the file", O_RDWR, 0, .fresh = true, .exclusive = true, .len = 4096,
      .limit = LIMIT, .may = true },
    { "O_APPEND", O_WRONLY | O_APPEND, O_APPEND, .fresh = true, .len = 4096, .limit = LIMIT },
    { "O_APPEND set later", O_WRONLY, O_APPEND, .fresh = true, .len = 4096, .limit = LIMIT },
    { "O_SYNC", O_WRONLY, O_SYNC, .fresh = true, .len = 4096, .limit = LIMIT },
    { "O_DSYNC", O_WRONLY, O_DSYNC, .fresh = true, .len = 4096, .limit = LIMIT },
    { "O_DIRECT", O_WRONLY, O_DIRECT, .fresh = true, .len = 4096, .limit = LIMIT },
    { "bytes of it were lost", O_WRONLY, 0, .fresh = true, .failed = true, .len = 4096,
      .limit = LIMIT },
    { "its lease was lost", O_WRONLY, 0, .fresh = true, .lost = true, .len = 4096, .limit = LIMIT },
    { "up to the size limit", O_WRONLY, 0, .fresh = true, .staged = 4096, .offset = 4096,
      .len = 4096, .limit = 8192, .may = true },
    { "over the size limit", O_WRONLY, 0, .fresh = true, .staged = 4096, .offset = 4096,
      .len = 4096, .limit = 8191 },
    { "the user's last", O_WRONLY, 0, .fresh = true, .len = 4096,
      .uid_bytes = KEEL_STAGED_UID_BYTES - 4096, .limit = LIMIT, .may = true },
    { "the user has too much", O_WRONLY, 0, .fresh = true, .len = 4096,
      .uid_bytes = KEEL_STAGED_UID_BYTES - 4095, .limit = LIMIT },
    { "the node has too much", O_WRONLY, 0, .fresh = true, .len = 4096,
      .node_bytes = KEEL_STAGED_NODE_BYTES, .limit = LIMIT },
};

static void buffers_are_held_back_as_the_table_says(void **state)
{
    (void)state;
    for (size_t i = 0; i < KEEL_ARRAY_LEN(buffer_cases); i++) {
        const struct buffer_case *c = &buffer_cases[i];
        struct fs_handle h = {
            .flags = c->open_flags,
            .fresh = c->fresh,
            .exclusive = c->exclusive,
            .failed = c->failed,
            .lost = c->lost,
            .staged.len = c->staged,
        };
        struct defer_buffer buffer = {
            .offset = c->offset,
            .len = c->len,
            .flags = c->write_flags,
            .uid_bytes = c->uid_bytes,
            .node_bytes = c->node_bytes,
            .size_limit = c->limit,
        };

        if (handle_may_defer(&h, DEFER_BUFFER, &buffer) != c->may)
            fail_msg("%s", c->what);
    }
}

static void creation_waits_unless_somebody_has_to_win(void **state)
{
    struct fs_handle plain = { .flags = O_WRONLY }, exclusive = { .exclusive = true };
    struct fs_handle absent = { .conditional = true, .condition = 0 };
    struct fs_handle at = { .conditional = true, .condition = 7 };

    (void)state;
    assert_true(handle_may_defer(&plain, DEFER_CREATION, NULL));
    assert_false(handle_may_defer(&exclusive, DEFER_CREATION, NULL));
    assert_false(handle_may_defer(&absent, DEFER_CREATION, NULL));
    assert_true(handle_may_defer(&at, DEFER_CREATION, NULL));
}

static void truncation_waits_on_handles_that_can_still_write(void **state)
{
    struct fs_handle reading = { .flags = O_RDONLY }, writing = { .flags = O_RDWR };
    struct fs_handle failed = { .flags = O_WRONLY, .failed = true };
    struct fs_handle lost = { .flags = O_WRONLY, .lost = true };

    (void)state;
    assert_true(handle_may_defer(&writing, DEFER_TRUNCATION, NULL));
    assert_false(handle_may_defer(&reading, DEFER_TRUNCATION, NULL));
    assert_false(handle_may_defer(&failed, DEFER_TRUNCATION, NULL));
    assert_false(handle_may_defer(&lost, DEFER_TRUNCATION, NULL));
}

static void pieces_lie_over_each_other_and_gaps_are_zero(void **state)
{
    struct staged staged = { 0 };

    (void)state;
    staged_put(&staged, 0, keel_slice_str("abcdef"));
    staged_put(&staged, 2, keel_slice_str("XY"));
    assert_int_equal(staged.len, 6);
    assert_memory_equal(staged.data, "abXYef", 6);
    staged_put(&staged, 9, keel_slice_str("z"));
    assert_int_equal(staged.len, 10);
    assert_memory_equal(staged.data, "abXYef\0\0\0z", 10);
    staged_put(&staged, 10, keel_slice_of(NULL, 0));
    assert_int_equal(staged.len, 10);
    staged_free(&staged);
}

static void staged_bytes_grow_to_the_largest_file_and_can_be_taken(void **state)
{
    static uint8_t block[65536];
    struct staged staged = { 0 }, taken;

    (void)state;
    memset(block, 'b', sizeof block);
    for (size_t at = 0; at < KEEL_FILE_SIZE_MAX; at += sizeof block) {
        size_t left = KEEL_FILE_SIZE_MAX - at;

        staged_put(&staged, at, keel_slice_of(block, left < sizeof block ? left : sizeof block));
    }
    assert_int_equal(staged.len, KEEL_FILE_SIZE_MAX);
    taken = staged_take(&staged);
    assert_int_equal(staged.len, 0);
    assert_null(staged.data);
    for (size_t i = 0; i < taken.len; i++)
        assert_int_equal(taken.data[i], 'b');
    staged_free(&taken);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(buffers_are_held_back_as_the_table_says),
        cmocka_unit_test(creation_waits_unless_somebody_has_to_win),
        cmocka_unit_test(truncation_waits_on_handles_that_can_still_write),
        cmocka_unit_test(pieces_lie_over_each_other_and_gaps_are_zero),
        cmocka_unit_test(staged_bytes_grow_to_the_largest_file_and_can_be_taken),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
