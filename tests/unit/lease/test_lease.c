/* Leases: limits, keys, the leader's clock, checkpoints of remaining time, and the bytes of a
 * table. */
#include "unit.h"

#include <stdio.h>

#include "bytes.h"
#include "err.h"
#include "hash.h"
#include "lease/lease.h"
#include "rng.h"

#define SECOND UINT64_C(1000000)

static int set_up(void **state)
{
    *state = lease_table_new();
    return 0;
}

static int tear_down(void **state)
{
    lease_table_free(*state);
    return 0;
}

static struct lease_info info_of(struct lease_table *t, uint64_t id)
{
    struct lease_info info;

    assert_int_equal(lease_get(t, id, &info), 0);
    return info;
}

/* ---- facts ---- */

static void a_lease_is_granted_once_within_the_limits_of_its_ttl(void **state)
{
    struct lease_table *t = *state;
    uint64_t max_ms = KEEL_LEASE_TTL_MAX_S * UINT64_C(1000);

    assert_int_equal(lease_grant(t, 5, 999, 0, 0), KEEL_E_INVALID);
    assert_int_equal(lease_grant(t, 5, max_ms + 1, 0, 0), KEEL_E_INVALID);
    assert_int_equal(lease_grant(t, 0, 1000, 0, 0), KEEL_E_INVALID);
    assert_int_equal(lease_grant(t, 5, 1000, 7, 0), 0);
    assert_int_equal(lease_grant(t, 6, max_ms, 7, 0), 0);
    assert_int_equal(lease_grant(t, 5, 1000, 7, 0), KEEL_E_EXISTS);
    assert_int_equal(lease_count(t), 2);
    assert_int_equal(info_of(t, 5).uid, 7);
    assert_int_equal(info_of(t, 5).remaining_ms, 1000);
    assert_true(info_of(t, 5).expires_us == UINT64_MAX);
}

static void a_uid_may_have_so_many_leases_and_gets_room_back(void **state)
{
    struct lease_table *t = *state;

    for (uint64_t id = 1; id <= KEEL_LEASES_PER_UID; id++)
        assert_int_equal(lease_grant(t, id, 1000, 9, 0), 0);
    assert_int_equal(lease_grant(t, 90000, 1000, 9, 0), KEEL_E_AGAIN);
    assert_int_equal(lease_grant(t, 90000, 1000, 8, 0), 0);
    assert_int_equal(lease_revoke(t, 17), 0);
    assert_int_equal(lease_grant(t, 90001, 1000, 9, 0), 0);
    assert_int_equal(lease_grant(t, 90002, 1000, 9, 0), KEEL_E_AGAIN);
}

static void the_cluster_may_have_so_many_leases(void **state)
{
    struct lease_table *t = *state;

    for (uint64_t id = 1; id <= KEEL_LEASES_MAX; id++)
        assert_int_equal(lease_grant(t, id, 1000, (uint32_t)(id % 1000), 0), 0);
    assert_int_equal(lease_grant(t, 90000, 1000, 5000, 0), KEEL_E_AGAIN);
    assert_int_equal(lease_revoke(t, 1), 0);
    assert_int_equal(lease_grant(t, 90000, 1000, 5000, 0), 0);
}

static int print_ino(void *arg, uint64_t ino)
{
    keel_text_printf(arg, "%llu ", (unsigned long long)ino);
    return 0;
}

static void assert_keys(struct lease_table *t, uint64_t id, const char *expected)
{
    struct keel_text text = { 0 };

    keel_text_printf(&text, "keys: ");
    assert_int_equal(lease_keys(t, id, print_ino, &text), 0);
    assert_string_equal(text.data + 6, expected);
    keel_text_free(&text);
}

static void keys_are_ascending_and_belong_to_one_lease(void **state)
{
    struct lease_table *t = *state;

    lease_grant(t, 1, 1000, 0, 0);
    lease_grant(t, 2, 1000, 0, 0);
    assert_int_equal(lease_attach(t, 1, 30), 0);
    assert_int_equal(lease_attach(t, 1, 10), 0);
    assert_int_equal(lease_attach(t, 1, 20), 0);
    assert_int_equal(lease_attach(t, 1, 20), 0);
    assert_int_equal(lease_attach(t, 9, 20), KEEL_E_NOTFOUND);
    assert_keys(t, 1, "10 20 30 ");
    assert_int_equal(lease_attach(t, 2, 20), 0); /* moves */
    assert_keys(t, 1, "10 30 ");
    assert_keys(t, 2, "20 ");
    lease_detach(t, 1, 20); /* not its own: nothing */
    assert_keys(t, 2, "20 ");
    lease_detach(t, 2, 20);
    assert_keys(t, 2, "");
    assert_int_equal(info_of(t, 1).keys, 2);
    assert_int_equal(lease_revoke(t, 1), 0);
    assert_int_equal(lease_attach(t, 2, 10), 0); /* free again */
    assert_int_equal(lease_revoke(t, 1), KEEL_E_NOTFOUND);
}

enum { LEASES = 20, INOS = 3000 };

static int count_owned(void *arg, uint64_t ino)
{
    const uint64_t *owners = arg; /* the last one is the lease that is asked */

    assert_int_equal(owners[ino], owners[INOS]);
    return 0;
}

static void inodes_stay_with_their_lease_through_any_moves(void **state)
{
    struct lease_table *t = *state;
    uint64_t owners[INOS + 1] = { 0 };
    size_t owned[LEASES + 1] = { 0 };
    struct keel_rng rng;

    keel_rng_seed(&rng, 6);
    for (uint64_t id = 1; id <= LEASES; id++)
        lease_grant(t, id, 1000, 0, 0);
    for (int i = 0; i < 20000; i++) {
        uint64_t ino = 1 + keel_rng_below(&rng, INOS - 1), id = 1 + keel_rng_below(&rng, LEASES);

        if (keel_rng_below(&rng, 3) > 0) {
            assert_int_equal(lease_attach(t, id, ino), 0);
            owned[owners[ino]] -= owners[ino] != 0;
            owned[id]++;
            owners[ino] = id;
        } else if (owners[ino] != 0) {
            lease_detach(t, owners[ino], ino);
            owned[owners[ino]]--;
            owners[ino] = 0;
        }
    }
    for (uint64_t id = 1; id <= LEASES; id++) {
        assert_int_equal(info_of(t, id).keys, owned[id]);
        owners[INOS] = id;
        assert_int_equal(lease_keys(t, id, count_owned, owners), 0);
    }
}

/* ---- the leader's clock ---- */

static void only_a_leader_has_a_clock(void **state)
{
    struct lease_table *t = *state;
    uint64_t remaining;

    lease_grant(t, 1, 1000, 0, 0);
    assert_false(lease_is_primary(t));
    assert_true(lease_deadline(t) == UINT64_MAX);
    assert_int_equal(lease_expired(t, UINT64_MAX), 0);
    assert_int_equal(lease_due(t, UINT64_MAX, &remaining), 0);
    assert_int_equal(lease_renew(t, 1, 0), KEEL_E_NOTLEADER);
}

static void leases_expire_in_the_order_of_their_end(void **state)
{
    struct lease_table *t = *state;

    lease_promote(t, 0);
    lease_grant(t, 1, 3000, 0, 0);
    lease_grant(t, 2, 1000, 0, 0);
    lease_grant(t, 3, 2000, 0, 0);
    lease_grant(t, 4, 1000, 0, 0);
    assert_int_equal(lease_deadline(t), SECOND);
    assert_int_equal(lease_expired(t, SECOND - 1), 0);
    assert_int_equal(lease_expired(t, 5 * SECOND), 2);
    assert_int_equal(lease_expired(t, 5 * SECOND), 4);
    assert_int_equal(lease_expired(t, 5 * SECOND), 3);
    assert_int_equal(lease_expired(t, 5 * SECOND), 1);
    assert_int_equal(lease_expired(t, 5 * SECOND), 0); /* each once */
    assert_true(lease_deadline(t) == UINT64_MAX);
    assert_int_equal(lease_count(t), 4); /* until the log says so */
}

static void an_expiry_that_could_not_be_proposed_comes_again(void **state)
{
    struct lease_table *t = *state;

    lease_promote(t, 0);
    lease_grant(t, 1, 1000, 0, 0);
    assert_int_equal(lease_expired(t, SECOND), 1);
    assert_int_equal(lease_renew(t, 1, SECOND), KEEL_E_NOTFOUND);
    lease_expire_again(t, 1);
    lease_expire_again(t, 1);
    lease_expire_again(t, 77); /* revoked meanwhile */
    assert_int_equal(lease_deadline(t), SECOND);
    assert_int_equal(lease_renew(t, 1, SECOND), KEEL_E_NOTFOUND);
    assert_int_equal(lease_expired(t, SECOND), 1);
    assert_int_equal(lease_expired(t, SECOND), 0);
    assert_int_equal(lease_revoke(t, 1), 0);
}

static void renewal_counts_the_whole_ttl_from_its_arrival(void **state)
{
    struct lease_table *t = *state;

    lease_promote(t, 0);
    lease_grant(t, 1, 1000, 0, 0);
    assert_int_equal(lease_renew(t, 1, SECOND - 1), 0);
    assert_int_equal(info_of(t, 1).expires_us, 2 * SECOND - 1);
    assert_int_equal(lease_expired(t, SECOND), 0);
    assert_int_equal(lease_renew(t, 2, 0), KEEL_E_NOTFOUND);
    assert_int_equal(lease_renew(t, 1, 2 * SECOND - 1), KEEL_E_NOTFOUND); /* too late */
    assert_int_equal(lease_expired(t, 2 * SECOND - 1), 1);
}

static void a_new_leader_gives_what_was_checkpointed_and_no_more(void **state)
{
    struct lease_table *t = *state;

    lease_grant(t, 1, 10000, 0, 0);
    lease_grant(t, 2, 10000, 0, 0);
    assert_int_equal(lease_checkpoint(t, 1, 4000, 0), 0);
    assert_int_equal(lease_checkpoint(t, 2, 99999, 0), 0); /* never more than the ttl */
    lease_promote(t, 100 * SECOND);
    assert_int_equal(info_of(t, 1).expires_us, 104 * SECOND);
    assert_int_equal(info_of(t, 2).expires_us, 110 * SECOND);
    lease_demote(t);
    assert_true(lease_deadline(t) == UINT64_MAX);
    assert_true(info_of(t, 1).expires_us == UINT64_MAX);
    lease_promote(t, 200 * SECOND);
    assert_int_equal(info_of(t, 1).expires_us, 204 * SECOND);
    assert_int_equal(lease_checkpoint(t, 9, 1, 0), KEEL_E_NOTFOUND);
}

static void it_is_known_when_the_remaining_time_was_learned(void **state)
{
    struct lease_table *t = *state, *copy;

    assert_int_equal(lease_grant(t, 1, 10000, 0, 3 * SECOND), 0);
    assert_int_equal(info_of(t, 1).known_us, 3 * SECOND);
    assert_int_equal(lease_checkpoint(t, 1, 4000, 9 * SECOND), 0);
    assert_int_equal(info_of(t, 1).known_us, 9 * SECOND);

    struct keel_buf *bytes = lease_table_encode(t);

    assert_int_equal(lease_table_decode(keel_buf_slice(bytes), &copy), 0);
    keel_buf_free(bytes);
    assert_int_equal(info_of(copy, 1).remaining_ms, 4000);
    assert_int_equal(info_of(copy, 1).known_us, 0);
    lease_table_free(copy);
}

/* ---- checkpoints of remaining time ---- */

static void an_unrenewed_lease_is_due_after_a_third_of_its_ttl(void **state)
{
    struct lease_table *t = *state;
    uint64_t remaining = 0;

    lease_promote(t, 0);
    lease_grant(t, 1, 30000, 0, 0);
    assert_int_equal(lease_deadline(t), 10 * SECOND);
    assert_int_equal(lease_due(t, 10 * SECOND - 1, &remaining), 0);
    assert_int_equal(lease_due(t, 10 * SECOND + 1500, &remaining), 1);
    assert_int_equal(remaining, 19999); /* 19.9985 s, never cut short */
    assert_int_equal(lease_due(t, 10 * SECOND + 1500, &remaining), 0);
    assert_int_equal(lease_checkpoint(t, 1, remaining, 11 * SECOND), 0);
    assert_int_equal(lease_deadline(t), 21 * SECOND);
    assert_int_equal(info_of(t, 1).expires_us, 30 * SECOND); /* the clock runs on */
    assert_int_equal(lease_due(t, 21 * SECOND, &remaining), 1);
    assert_int_equal(remaining, 9000);
}

static void a_renewed_lease_is_not_due(void **state)
{
    struct lease_table *t = *state;
    uint64_t remaining;

    lease_promote(t, 0);
    lease_grant(t, 1, 30000, 0, 0);
    for (uint64_t at = 9 * SECOND; at < 100 * SECOND; at += 9 * SECOND) {
        assert_int_equal(lease_due(t, at, &remaining), 0);
        assert_int_equal(lease_renew(t, 1, at), 0);
    }
}

static void a_short_lease_is_not_due_before_a_second_or_at_its_end(void **state)
{
    struct lease_table *t = *state;
    uint64_t remaining;

    lease_promote(t, 0);
    lease_grant(t, 1, 1000, 0, 0);
    lease_grant(t, 2, 1500, 0, 0);
    assert_int_equal(lease_due(t, SECOND - 1, &remaining), 0);
    assert_int_equal(lease_due(t, SECOND, &remaining), 2);
    assert_int_equal(remaining, 500);
    assert_int_equal(lease_due(t, 2 * SECOND, &remaining), 0);
}

static void renewal_waits_for_the_full_ttl_after_a_checkpoint(void **state)
{
    struct lease_table *t = *state;
    uint64_t remaining;

    lease_promote(t, 0);
    lease_grant(t, 1, 30000, 0, 0);
    assert_int_equal(lease_due(t, 10 * SECOND, &remaining), 1);
    lease_checkpoint(t, 1, remaining, 10 * SECOND);
    assert_int_equal(lease_renew(t, 1, 11 * SECOND), KEEL_E_STALE);
    assert_int_equal(info_of(t, 1).expires_us, 30 * SECOND);
    lease_checkpoint(t, 1, 30000, 12 * SECOND);
    assert_int_equal(lease_renew(t, 1, 12 * SECOND), 0);
    assert_int_equal(info_of(t, 1).expires_us, 42 * SECOND);
}

/* Else the renewal would be promised, and the checkpoint behind it would take it back at the next
 * change of leader. */
static void renewal_waits_while_a_checkpoint_is_on_its_way(void **state)
{
    struct lease_table *t = *state;
    uint64_t remaining;

    lease_promote(t, 0);
    lease_grant(t, 1, 30000, 0, 0);
    assert_int_equal(lease_due(t, 10 * SECOND, &remaining), 1);
    assert_int_equal(lease_renew(t, 1, 10 * SECOND), KEEL_E_STALE);
    assert_int_equal(lease_due(t, 25 * SECOND, &remaining), 0); /* the full ttl is on its way */
    lease_checkpoint(t, 1, remaining, 25 * SECOND);
    assert_int_equal(lease_renew(t, 1, 25 * SECOND), KEEL_E_STALE);
    lease_checkpoint(t, 1, 30000, 25 * SECOND);
    assert_int_equal(lease_renew(t, 1, 25 * SECOND), 0);
}

static void a_checkpoint_that_was_lost_does_not_stop_renewals(void **state)
{
    struct lease_table *t = *state;
    uint64_t remaining;

    lease_promote(t, 0);
    lease_grant(t, 1, 30000, 0, 0);
    assert_int_equal(lease_due(t, 10 * SECOND, &remaining), 1);
    assert_int_equal(lease_renew(t, 1, 11 * SECOND), KEEL_E_STALE);
    lease_checkpoint(t, 1, 30000, 12 * SECOND);
    assert_int_equal(lease_renew(t, 1, 12 * SECOND), 0);
    /* And in the next leadership nothing is on its way. */
    assert_int_equal(lease_due(t, 22 * SECOND, &remaining), 1);
    lease_demote(t);
    lease_promote(t, 30 * SECOND);
    assert_int_equal(lease_renew(t, 1, 31 * SECOND), 0);
}

static void a_late_full_checkpoint_does_not_hide_a_shorter_one_behind_it(void **state)
{
    struct lease_table *t = *state;
    uint64_t remaining;

    lease_promote(t, 0);
    lease_grant(t, 1, 30000, 0, 0);
    assert_int_equal(lease_due(t, 10 * SECOND, &remaining), 1);
    assert_int_equal(lease_renew(t, 1, 11 * SECOND), KEEL_E_STALE); /* a full one is proposed */
    assert_int_equal(lease_renew(t, 1, 12 * SECOND), KEEL_E_STALE); /* and another one */
    lease_checkpoint(t, 1, 30000, 12 * SECOND);
    assert_int_equal(lease_renew(t, 1, 12 * SECOND), 0);
    assert_int_equal(lease_due(t, 22 * SECOND, &remaining), 1);
    lease_checkpoint(t, 1, 30000, 22 * SECOND); /* the other one */
    assert_int_equal(lease_renew(t, 1, 22 * SECOND), KEEL_E_STALE);
}

/* ---- bytes ---- */

static struct lease_table *random_table(uint64_t seed)
{
    struct lease_table *t = lease_table_new();
    struct keel_rng rng;

    keel_rng_seed(&rng, seed);
    for (int i = 0; i < 400; i++) {
        uint64_t id = 1 + keel_rng_below(&rng, 60), ino = 1 + keel_rng_below(&rng, 200);

        switch (keel_rng_below(&rng, 6)) {
        case 0:
        case 1:
            lease_grant(t, id, 1000 + keel_rng_below(&rng, 50000), (uint32_t)id % 5, 0);
            break;
        case 2:
            lease_revoke(t, id);
            break;
        case 3:
            lease_checkpoint(t, id, keel_rng_below(&rng, 50000), 0);
            break;
        case 4:
            lease_detach(t, id, ino);
            break;
        default:
            lease_attach(t, id, ino);
        }
    }
    return t;
}

static void assert_same_bytes(const struct keel_buf *a, const struct keel_buf *b)
{
    assert_int_equal(a->len, b->len);
    assert_memory_equal(a->data, b->data, a->len);
}

static void a_table_comes_back_from_its_bytes(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 20; seed++) {
        struct lease_table *t = random_table(seed), *back;
        struct keel_buf *bytes = lease_table_encode(t);

        assert_int_equal(lease_table_decode(keel_buf_slice(bytes), &back), 0);
        struct keel_buf *again = lease_table_encode(back);

        assert_same_bytes(bytes, again);
        assert_int_equal(lease_count(t), lease_count(back));
        assert_true(lease_count(t) > 5);
        keel_buf_free(bytes);
        keel_buf_free(again);
        lease_table_free(t);
        lease_table_free(back);
    }
}

static void leading_changes_no_byte(void **state)
{
    struct lease_table *leader = *state, *follower = lease_table_new();
    struct lease_table *both[2] = { leader, follower };
    uint64_t remaining;

    lease_promote(leader, 5);
    for (int i = 0; i < 2; i++) {
        lease_grant(both[i], 1, 30000, 0, (uint64_t)i * 1000);
        lease_attach(both[i], 1, 12);
        lease_grant(both[i], 2, 30000, 0, (uint64_t)i * 1000);
        lease_checkpoint(both[i], 2, 15000, (uint64_t)i * 1000);
    }
    lease_renew(leader, 1, 1000);
    lease_due(leader, 20 * SECOND, &remaining);
    lease_expired(leader, 60 * SECOND);
    struct keel_buf *a = lease_table_encode(leader), *b = lease_table_encode(follower);

    assert_same_bytes(a, b);
    keel_buf_free(a);
    keel_buf_free(b);
    lease_table_free(follower);
}

static int decode(struct keel_slice bytes)
{
    struct lease_table *t = NULL;
    int err = lease_table_decode(bytes, &t);

    lease_table_free(t);
    return err;
}

static int decode_signed(struct keel_buf *buf)
{
    put_le64(buf->data + buf->len - 8, keel_hash64(keel_slice_of(buf->data, buf->len - 8)));
    return decode(keel_buf_slice(buf));
}

static void damaged_bytes_are_refused(void **state)
{
    struct lease_table *t = random_table(3);
    struct keel_buf *bytes = lease_table_encode(t);
    struct keel_rng rng;

    (void)state;
    keel_rng_seed(&rng, 8);
    for (size_t len = 0; len < bytes->len; len++)
        assert_int_equal(decode(keel_slice_of(bytes->data, len)), KEEL_E_MALFORMED);
    for (size_t bit = 0; bit < bytes->len * 8; bit += 3) {
        bytes->data[bit / 8] ^= (uint8_t)(1u << bit % 8);
        assert_int_equal(decode(keel_buf_slice(bytes)), KEEL_E_MALFORMED);
        bytes->data[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    for (int i = 0; i < 2000; i++) {
        struct keel_buf *noise = keel_buf_new(keel_rng_below(&rng, 200));

        for (size_t k = 0; k < noise->len; k++)
            noise->data[k] = (uint8_t)keel_rng_next(&rng);
        assert_int_equal(decode(keel_buf_slice(noise)), KEEL_E_MALFORMED);
        keel_buf_free(noise);
    }
    keel_buf_free(bytes);
    lease_table_free(t);
}

/* Bytes whose check fits, with one field wrong. Offsets: 4 count; 8 id, 16 ttl, 24 remaining, 32
 * uid, 36 inodes, 40 the first inode; the second lease at 56. */
static void fields_that_no_table_has_are_refused(void **state)
{
    struct lease_table *t = *state;
    static const struct {
        size_t offset;
        uint8_t value;
        int expected;
    } cases[] = {
        { 0, 1, 0 },
        { 0, 2, KEEL_E_NEWER },
        { 0, 0, KEEL_E_MALFORMED },
        { 4, 3, KEEL_E_MALFORMED },
        { 4, 1, KEEL_E_MALFORMED },
        { 7, 1, KEEL_E_MALFORMED },
        { 8, 0, KEEL_E_MALFORMED },
        { 8, 6, KEEL_E_MALFORMED },
        { 22, 1, KEEL_E_MALFORMED },
        { 17, 0, KEEL_E_MALFORMED },
        { 26, 1, KEEL_E_MALFORMED },
        { 36, 3, KEEL_E_MALFORMED },
        { 39, 1, KEEL_E_MALFORMED },
        { 40, 0, KEEL_E_MALFORMED },
        { 40, 12, KEEL_E_MALFORMED },
        { 40, 13, KEEL_E_MALFORMED },
        { 88, 12, KEEL_E_MALFORMED },
    };

    lease_grant(t, 5, 1000, 7, 0);
    lease_grant(t, 6, 1000, 7, 0);
    lease_attach(t, 5, 11);
    lease_attach(t, 5, 12);
    lease_attach(t, 6, 20);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct keel_buf *bytes = lease_table_encode(t);

        bytes->data[cases[i].offset] = cases[i].value;
        if (decode_signed(bytes) != cases[i].expected)
            fail_msg("byte %zu = %d", cases[i].offset, cases[i].value);
        keel_buf_free(bytes);
    }
}

static int print_id(void *arg, const struct lease_info *info)
{
    keel_text_printf(arg, "%llu ", (unsigned long long)info->id);
    return info->id == 8 ? 5 : 0;
}

static void leases_are_listed_by_id(void **state)
{
    struct lease_table *t = *state;
    struct keel_text text = { 0 };

    lease_grant(t, 8, 1000, 0, 0);
    lease_grant(t, 3, 1000, 0, 0);
    lease_grant(t, 12, 1000, 0, 0);
    lease_grant(t, 5, 1000, 0, 0);
    lease_revoke(t, 3);
    assert_int_equal(lease_each(t, print_id, &text), 5);
    assert_string_equal(text.data, "5 8 ");
    keel_text_free(&text);
}

#define TABLE_TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TABLE_TEST(a_lease_is_granted_once_within_the_limits_of_its_ttl),
        TABLE_TEST(a_uid_may_have_so_many_leases_and_gets_room_back),
        TABLE_TEST(the_cluster_may_have_so_many_leases),
        TABLE_TEST(keys_are_ascending_and_belong_to_one_lease),
        TABLE_TEST(inodes_stay_with_their_lease_through_any_moves),
        TABLE_TEST(only_a_leader_has_a_clock),
        TABLE_TEST(leases_expire_in_the_order_of_their_end),
        TABLE_TEST(an_expiry_that_could_not_be_proposed_comes_again),
        TABLE_TEST(renewal_counts_the_whole_ttl_from_its_arrival),
        TABLE_TEST(a_new_leader_gives_what_was_checkpointed_and_no_more),
        TABLE_TEST(it_is_known_when_the_remaining_time_was_learned),
        TABLE_TEST(an_unrenewed_lease_is_due_after_a_third_of_its_ttl),
        TABLE_TEST(a_renewed_lease_is_not_due),
        TABLE_TEST(a_short_lease_is_not_due_before_a_second_or_at_its_end),
        TABLE_TEST(renewal_waits_for_the_full_ttl_after_a_checkpoint),
        TABLE_TEST(renewal_waits_while_a_checkpoint_is_on_its_way),
        TABLE_TEST(a_checkpoint_that_was_lost_does_not_stop_renewals),
        TABLE_TEST(a_late_full_checkpoint_does_not_hide_a_shorter_one_behind_it),
        cmocka_unit_test(a_table_comes_back_from_its_bytes),
        TABLE_TEST(leading_changes_no_byte),
        cmocka_unit_test(damaged_bytes_are_refused),
        TABLE_TEST(fields_that_no_table_has_are_refused),
        TABLE_TEST(leases_are_listed_by_id),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
