/* One flipped bit in any key or value of a store: it is refused at the start, or whoever reads it
 * is told, or everything is as it was. What a start would make of it is never another state. */
#include "sample.h"

#include <stdio.h>
#include <string.h>

#include "bytes.h"
#include "err.h"
#include "hash.h"
#include "help.h"
#include "world.h"

static const char *const tables[KV_TABLES] = { "records", "content", "meta", "dirs" };

static int not_asked(void *arg)
{
    (void)arg;
    return 0;
}

static struct kv *copy(struct kv *kv)
{
    struct kv *to = kv_mem_new();

    assert_int_equal(kv_copy(kv, to, not_asked, NULL), 0);
    return to;
}

/* ---- what it says, beside what it should say ---- */

struct bits {
    struct kv *kv; /* the sound one */
    struct keel_text said;
    uint64_t meta; /* hash of what the next checkpoint would write there */
    size_t refused, told, harmless;
};

/* Opens, and says nothing wrong. */
static size_t look(const struct bits *b, struct kv *kv)
{
    struct opened o;
    struct keel_text said = { 0 };
    char why[256] = "";
    size_t damaged;

    if (sample_open(kv, &o, why, sizeof why) != 0)
        fail_msg("%s", why);
    sample_say(&o, &said);
    assert_true(sample_meta(&o) == b->meta);
    sample_close(&o);
    if (!sample_agrees(&b->said, &said, &damaged))
        fail_msg("%s", said.data);
    keel_text_free(&said);
    return damaged;
}

static int try_snapshot(struct kv *kv)
{
    struct snapshot_writer *writer;
    struct keel_slice piece = { 0 };
    int err = snapshot_writer_new(kv, 1, &writer);

    if (err != 0)
        return err;
    do {
        err = snapshot_writer_next(writer, &piece);
    } while (err == 0 && piece.len > 0);
    snapshot_writer_free(writer);
    return err;
}

/* What is damaged gets into no snapshot: neither to another node nor into a backup. */
static void look_at_snapshot(const struct bits *b, struct kv *kv, bool sound)
{
    int err = try_snapshot(kv);

    assert_int_equal(err, sound ? 0 : KEEL_E_CORRUPT);
    if (err != 0)
        return;
    struct kv *other = copy_of(kv);

    assert_int_equal(look(b, other), 0);
    other->ops->close(other);
}

/* ---- one bit ---- */

struct victim {
    enum kv_table table;
    uint8_t key[32];
    size_t key_len;
    struct keel_buf *value;
};

static void put(struct kv *kv, const struct victim *v, const uint8_t *key, struct keel_buf *value)
{
    struct kv_batch *batch = kv_batch_new();

    if (memcmp(key, v->key, v->key_len) != 0)
        kv_batch_remove(batch, v->table, keel_slice_of(v->key, v->key_len));
    kv_batch_put(batch, v->table, keel_slice_of(key, v->key_len), value);
    assert_int_equal(kv->ops->write(kv, batch), 0);
    kv_batch_free(batch);
}

/* A message of the start names what is wrong: one of these is in it. */
static void assert_named(const struct victim *v, const char *why)
{
    static const char *const names[KV_TABLES][3] = {
        [KV_RECORDS] = { "record ", "state hash", "no root" },
        [KV_CONTENT] = { "its content", "its content", "its content" },
        [KV_META] = { "format version", "applied state", "cluster's state" },
        [KV_DIRS] = { "times of ", "times of ", "times of " },
    };

    for (size_t i = 0; i < 3; i++)
        if (strstr(why, names[v->table][i]) != NULL)
            return;
    fail_msg("%s: \"%s\" does not say what is wrong", tables[v->table], why);
}

static void judge(struct bits *b, const struct victim *v, struct kv *kv)
{
    struct opened o;
    char why[256] = "";
    int err = sample_open(kv, &o, why, sizeof why);

    if (err != 0) {
        assert_true(err == KEEL_E_CORRUPT || err == KEEL_E_NEWER);
        assert_named(v, why);
        b->refused++;
        return;
    }
    sample_close(&o);
    size_t damaged = look(b, kv);

    look_at_snapshot(b, kv, damaged == 0 && v->table != KV_CONTENT);
    b->told += damaged > 0;
    b->harmless += damaged == 0;
}

static void flip_in_key(struct bits *b, const struct victim *v, size_t bit)
{
    struct kv *kv = copy(b->kv);
    uint8_t key[32];

    memcpy(key, v->key, v->key_len);
    key[bit / 8] ^= (uint8_t)(1u << bit % 8);
    put(kv, v, key, keel_buf_ref(v->value));
    judge(b, v, kv);
    kv->ops->close(kv);
}

static void flip_in_value(struct bits *b, const struct victim *v, size_t bit)
{
    struct kv *kv = copy(b->kv);
    struct keel_buf *value = keel_buf_copy(keel_buf_slice(v->value));

    value->data[bit / 8] ^= (uint8_t)(1u << bit % 8);
    put(kv, v, v->key, value);
    judge(b, v, kv);
    kv->ops->close(kv);
}

struct flipping {
    struct bits *b;
    enum kv_table table;
};

static int flip_all_of_one(void *arg, struct keel_slice key, struct keel_slice value)
{
    struct flipping *f = arg;
    struct victim v = { f->table, { 0 }, key.len, keel_buf_copy(value) };

    memcpy(v.key, key.data, key.len);
    for (size_t bit = 0; bit < key.len * 8; bit++)
        flip_in_key(f->b, &v, bit);
    for (size_t bit = 0; bit < value.len * 8; bit++)
        flip_in_value(f->b, &v, bit);
    keel_buf_free(v.value);
    return 0;
}

static void flip_all(struct bits *b, enum kv_table table)
{
    struct flipping f = { b, table };
    struct kv_read *read = b->kv->ops->read_begin(b->kv);

    b->refused = b->told = b->harmless = 0;
    assert_int_equal(b->kv->ops->scan(read, table, keel_slice_of(NULL, 0), flip_all_of_one, &f), 0);
    b->kv->ops->read_end(read);
    print_message("# %s: %zu refused, %zu told when read, %zu harmless\n", tables[table],
                  b->refused, b->told, b->harmless);
}

/* ---- tests ---- */

static int setup(void **state)
{
    struct bits *b = calloc(1, sizeof *b);
    struct opened o;
    char why[256] = "";

    b->kv = sample_new();
    assert_int_equal(sample_open(b->kv, &o, why, sizeof why), 0);
    sample_say(&o, &b->said);
    b->meta = sample_meta(&o);
    sample_close(&o);
    *state = b;
    return 0;
}

static int teardown(void **state)
{
    struct bits *b = *state;

    keel_text_free(&b->said);
    b->kv->ops->close(b->kv);
    free(b);
    return 0;
}

static void any_flipped_bit_of_a_record_or_its_key_is_refused(void **state)
{
    struct bits *b = *state;

    flip_all(b, KV_RECORDS);
    assert_true(b->refused > 0 && b->told == 0 && b->harmless == 0);
}

static void any_flipped_bit_of_content_is_told_to_its_readers_or_refused(void **state)
{
    struct bits *b = *state;

    flip_all(b, KV_CONTENT);
    assert_true(b->refused > 0 && b->told > 0);
    assert_int_equal(b->harmless, 8 * strlen(SAMPLE_GARBAGE));
}

static void any_flipped_bit_of_the_state_the_cluster_or_the_leases_is_refused(void **state)
{
    struct bits *b = *state;

    flip_all(b, KV_META);
    assert_true(b->refused > 0 && b->told == 0 && b->harmless == 0);
}

static void any_flipped_bit_of_a_directorys_times_is_refused(void **state)
{
    struct bits *b = *state;

    flip_all(b, KV_DIRS);
    assert_true(b->refused > 0 && b->told == 0 && b->harmless == 0);
}

static void a_newer_state_of_the_cluster_is_refused_as_newer(void **state)
{
    struct bits *b = *state;
    struct victim v = { KV_META, "cluster", 7, NULL };
    struct kv_read *read = b->kv->ops->read_begin(b->kv);
    struct opened o;
    struct keel_slice value;
    char why[256] = "";

    assert_int_equal(b->kv->ops->get(read, KV_META, keel_slice_str("cluster"), &value), 0);
    struct keel_buf *newer = keel_buf_copy(value);

    b->kv->ops->read_end(read);
    assert_int_equal(newer->data[0], 0x08); /* of the message's first field, a number */
    newer->data[1]++;
    put_le64(newer->data + newer->len - 8, keel_hash64(keel_slice_of(newer->data, newer->len - 8)));
    put(b->kv, &v, v.key, newer);
    assert_int_equal(sample_open(b->kv, &o, why, sizeof why), KEEL_E_NEWER);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(any_flipped_bit_of_a_record_or_its_key_is_refused),
        TEST(any_flipped_bit_of_content_is_told_to_its_readers_or_refused),
        TEST(any_flipped_bit_of_the_state_the_cluster_or_the_leases_is_refused),
        TEST(any_flipped_bit_of_a_directorys_times_is_refused),
        TEST(a_newer_state_of_the_cluster_is_refused_as_newer),
    };

    return cmocka_run_group_tests_name("store-bits", tests, NULL, NULL);
}
