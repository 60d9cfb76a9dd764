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

/* Any byte, and any length. */
static void a_damaged_file_is_told(void **state)
{
    struct place *p = *state;
    struct identity id = identity_of(2), again;
    char text[4096];

    save(p, &id);
    int fd = openat(p->fd, "identity", O_RDWR);
    ssize_t len = read(fd, text, sizeof text);

    assert_true(len > 0);
    for (ssize_t i = 0; i < len - 1; i++) {
        char other = (char)(text[i] ^ 1);

        assert_int_equal(pwrite(fd, &other, 1, i), 1);
        assert_int_not_equal(load(p, &again), 0);
        assert_int_equal(pwrite(fd, &text[i], 1, i), 1);
    }
    assert_int_equal(load(p, &again), 0);
    for (off_t cut = len - 2; cut >= 0; cut -= 7) {
        assert_int_equal(ftruncate(fd, cut), 0);
        assert_int_equal(load(p, &again), KEEL_E_CORRUPT);
    }
    close(fd);
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
        IN_PLACE(a_damaged_file_is_told),
        IN_PLACE(a_removal_is_noted_for_good),
        cmocka_unit_test(ids_of_a_new_cluster_do_not_depend_on_the_order_of_its_members),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
