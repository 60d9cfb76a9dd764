/* Stores that are committed as test data: every later build has to read them. With --write-golden
 * DIR it writes the one of the current version, and what it says. */
#include "sample.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "check.h"
#include "err.h"
#include "help.h"

enum { FILE_MAX = 1 << 20 };

static struct keel_buf *read_file(const char *path)
{
    FILE *f = fopen(path, "rb");
    struct keel_buf *bytes = keel_buf_new(FILE_MAX);

    if (f == NULL)
        fail_msg("%s is not there", path);
    bytes->len = fread(bytes->data, 1, FILE_MAX, f);
    fclose(f);
    assert_true(bytes->len < FILE_MAX);
    return bytes;
}

static bool write_file(const char *path, struct keel_slice bytes)
{
    FILE *f = fopen(path, "wb");

    if (f == NULL)
        return false;
    bool ok = fwrite(bytes.data, 1, bytes.len, f) == bytes.len;

    return fclose(f) == 0 && ok;
}

/* What the committed store says is what it said when it was written. */
static void assert_golden(const char *name)
{
    char dir[128], path[512];
    struct keel_text said = { 0 };

    snprintf(path, sizeof path, "%s/store/%s.mdb", TEST_DATA, name);
    struct keel_buf *store = read_file(path);

    snprintf(path, sizeof path, "%s/store/%s.txt", TEST_DATA, name);
    struct keel_buf *expected = read_file(path);

    help_dir_new(dir, sizeof dir);
    snprintf(path, sizeof path, "%s/data.mdb", dir);
    assert_true(write_file(path, keel_buf_slice(store)));
    struct kv *kv = help_lmdb(dir);

    sample_say_all(kv, &said);
    kv->ops->close(kv);
    help_dir_remove(dir);
    assert_int_equal(said.len, expected->len);
    assert_memory_equal(said.data, expected->data, said.len);
    keel_text_free(&said);
    keel_buf_free(expected);
    keel_buf_free(store);
}

static void a_store_of_format_1_stays_readable(void **state)
{
    (void)state;
    assert_golden("golden-v1");
}

static void a_store_whose_clusters_state_has_a_check_stays_readable(void **state)
{
    (void)state;
    assert_golden("golden-v1-cluster-v2");
}

static int not_asked(void *arg)
{
    (void)arg;
    return 0;
}

static int write_golden(const char *out)
{
    char dir[128], path[512];
    struct keel_text said = { 0 };
    struct kv *kv = sample_new();

    help_dir_new(dir, sizeof dir);
    struct kv *lmdb = help_lmdb(dir);

    KEEL_ASSERT(kv_copy(kv, lmdb, not_asked, NULL) == 0);
    sample_say_all(lmdb, &said);
    lmdb->ops->close(lmdb);
    kv->ops->close(kv);
    snprintf(path, sizeof path, "%s/data.mdb", dir);
    struct keel_buf *store = read_file(path);

    help_dir_remove(dir);
    snprintf(path, sizeof path, "%s/golden.mdb", out);
    bool ok = write_file(path, keel_buf_slice(store));

    snprintf(path, sizeof path, "%s/golden.txt", out);
    ok = ok && write_file(path, keel_slice_of(said.data, said.len));
    keel_buf_free(store);
    keel_text_free(&said);
    return ok ? 0 : 1;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_store_of_format_1_stays_readable),
        cmocka_unit_test(a_store_whose_clusters_state_has_a_check_stays_readable),
    };

    if (argc == 3 && strcmp(argv[1], "--write-golden") == 0)
        return write_golden(argv[2]);
    return cmocka_run_group_tests_name("store-golden", tests, NULL, NULL);
}
