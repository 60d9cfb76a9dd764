/* The identity file: what is written is read again, and nothing else is taken for one. */
#include "unit.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "check.h"
#include "data_dir.h"
#include "err.h"
#include "hash.h"

struct place {
    char path[64];
    int fd;
    char why[512];
};

static int set_up(void **state)
{
    struct place *p = keel_calloc(1, sizeof *p);

    snprintf(p->path, sizeof p->path, "/tmp/keel-identity-XXXXXX");
    assert_non_null(mkdtemp(p->path));
    p->fd = open(p->path, O_RDONLY | O_DIRECTORY);
    assert_true(p->fd >= 0);
    *state = p;
    return 0;
}

static int tear_down(void **state)
{
    struct place *p = *state;

    unlinkat(p->fd, "identity", 0);
    unlinkat(p->fd, "removed", 0);
    close(p->fd);
    assert_int_equal(rmdir(p->path), 0);
    free(p);
    return 0;
}

/* As long as they can be. */
static struct identity identity_of(size_t members)
{
    struct identity id = { .cluster_id = 1, .id = UINT64_MAX, .incarnation = 3 };

    memset(id.name, 'n', sizeof id.name - 1);
    memset(id.token, 't', sizeof id.token - 1);
    id.member_count = members;
    for (size_t i = 0; i < members; i++) {
        id.members[i].id = UINT64_MAX - i;
        memset(id.members[i].name, 'a' + (int)i, sizeof id.members[i].name - 1);
        memset(id.members[i].address, 'A' + (int)i, sizeof id.members[i].address - 1);
    }
    return id;
}

static void save(struct place *p, const struct identity *id)
{
    assert_int_equal(identity_save(p->fd, id, p->why, sizeof p->why), 0);
}

static int load(struct place *p, struct identity *ret)
{
    return identity_load(p->fd, ret, p->why, sizeof p->why);
}

static void what_is_saved_is_loaded_with_all_members(void **state)
{
    struct place *p = *state;

    for (size_t members = 0; members <= KEEL_MEMBERS_MAX; members++) {
        struct identity id = identity_of(members), again;

        save(p, &id);
        memset(&again, 0xaa, sizeof again);
        assert_int_equal(load(p, &again), 0);
        assert_memory_equal(&again, &id, sizeof id);
    }
}

static void without_a_file_there_is_no_identity(void **state)
{
    struct identity id;

    assert_int_equal(load(*state, &id), KEEL_E_NOTFOUND);
}

enum { TEXT_MAX = 4096 };

/* The file, open to be damaged, and what is in it. */
static int save_and_open(struct place *p, const struct identity *id, char text[TEXT_MAX],
                         ssize_t *ret_len)
{
    save(p, id);
    int fd = openat(p->fd, "identity", O_RDWR);

    *ret_len = read(fd, text, TEXT_MAX);
    return fd;
}

/* The last line may be written in another way, and say the same. */
static void one_flipped_bit_anywhere_is_told_or_changes_nothing(void **state)
{
    enum { CHECKSUM_LINE = 26 };
    struct place *p = *state;
    struct identity id = identity_of(2), again;
    char text[TEXT_MAX];
    ssize_t len;
    int fd = save_and_open(p, &id, text, &len);

    assert_true(len > CHECKSUM_LINE);
    for (ssize_t bit = 0; bit < len * 8; bit++) {
        char other = (char)(text[bit / 8] ^ (1 << bit % 8));

        assert_int_equal(pwrite(fd, &other, 1, bit / 8), 1);
        int err = load(p, &again);

        if (err == 0 && bit / 8 >= len - CHECKSUM_LINE)
            assert_memory_equal(&again, &id, sizeof id);
        else
            assert_int_equal(err, KEEL_E_CORRUPT);
        assert_int_equal(pwrite(fd, &text[bit / 8], 1, bit / 8), 1);
    }
    assert_int_equal(load(p, &again), 0);
    close(fd);
}

static void a_file_that_is_cut_is_told(void **state)
{
    struct place *p = *state;
    struct identity id = identity_of(2), again;
    char text[TEXT_MAX];
    ssize_t len;
    int fd = save_and_open(p, &id, text, &len);

    for (off_t cut = len - 2; cut >= 0; cut -= 7) {
        assert_int_equal(ftruncate(fd, cut), 0);
        assert_int_equal(load(p, &again), KEEL_E_CORRUPT);
    }
    close(fd);
}

static void write_text(struct place *p, const char *text)
{
    int fd = openat(p->fd, "identity", O_WRONLY | O_CREAT | O_TRUNC, 0600);

    assert_int_equal(write(fd, text, strlen(text)), strlen(text));
    close(fd);
}

static void a_file_of_version_1_stays_readable(void **state)
{
    struct place *p = *state;
    struct identity id;

    write_text(p, "keelfs identity 1\n"
                  "cluster_id=00000000000c1c1c\n"
                  "id=0000000000000d0d\n"
                  "incarnation=1234567890abcdef\n"
                  "name=n1\n"
                  "token=keelfs\n"
                  "member=0000000000000d0d n1 127.0.0.1:7000\n"
                  "member=0000000000000e0e n2 [::1]:7000\n"
                  "checksum=966f0a582f164ede\n");
    assert_int_equal(load(p, &id), 0);
    assert_int_equal(id.cluster_id, 0xc1c1c);
    assert_int_equal(id.id, 0xd0d);
    assert_int_equal(id.incarnation, 0x1234567890abcdef);
    assert_string_equal(id.name, "n1");
    assert_string_equal(id.token, "keelfs");
    assert_int_equal(id.member_count, 2);
    assert_int_equal(id.members[1].id, 0xe0e);
    assert_string_equal(id.members[1].name, "n2");
    assert_string_equal(id.members[1].address, "[::1]:7000");
}

static void a_newer_file_is_refused_as_newer(void **state)
{
    static const char text[] = "keelfs identity 2\nwhatever\n";
    struct place *p = *state;
    struct identity id;
    char file[128];

    snprintf(file, sizeof file, "%schecksum=%016llx\n", text,
             (unsigned long long)keel_hash64(keel_slice_str(text)));
    write_text(p, file);
    assert_int_equal(load(p, &id), KEEL_E_NEWER);
    assert_non_null(strstr(p->why, "newer"));
}

static void a_removal_is_noted_for_good(void **state)
{
    struct place *p = *state;

    assert_false(removal_is_noted(p->fd));
    removal_note(p->fd);
    assert_true(removal_is_noted(p->fd));
    removal_note(p->fd);
    assert_true(removal_is_noted(p->fd));
}

static void ids_of_a_new_cluster_do_not_depend_on_the_order_of_its_members(void **state)
{
    uint64_t id = identity_cluster_id("t", "n1=a:1,n2=b:2,n3=c:3");

    (void)state;
    assert_true(id == identity_cluster_id("t", "n3=c:3,n1=a:1,n2=b:2"));
    assert_true(id != identity_cluster_id("u", "n1=a:1,n2=b:2,n3=c:3"));
    assert_true(id != identity_cluster_id("t", "n1=a:1,n2=b:2,n3=c:4"));
    assert_true(identity_node_id("t", "n1") != identity_node_id("t", "n2"));
    assert_true(identity_node_id("t", "n1") != identity_node_id("u", "n1"));
}

int main(void)
{
#define IN_PLACE(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        IN_PLACE(what_is_saved_is_loaded_with_all_members),
        IN_PLACE(without_a_file_there_is_no_identity),
        IN_PLACE(one_flipped_bit_anywhere_is_told_or_changes_nothing),
        IN_PLACE(a_file_that_is_cut_is_told),
        IN_PLACE(a_file_of_version_1_stays_readable),
        IN_PLACE(a_newer_file_is_refused_as_newer),
        IN_PLACE(a_removal_is_noted_for_good),
        cmocka_unit_test(ids_of_a_new_cluster_do_not_depend_on_the_order_of_its_members),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
