/* One flipped bit in each byte of an LMDB file. Its pages have no checks: a process that reads them
 * may be refused, told, or killed by a fault in the map. But whatever it does say is what was
 * written, all of it, or all of it but for the last checkpoint. */
#include "sample.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "err.h"
#include "help.h"

enum { FILE_MAX = 1 << 18, CHILD_SECONDS = 20 };

enum ending { RIGHT, OLDER, TOLD, REFUSED, WRONG, ENDINGS };
static const char *const ending_names[ENDINGS] = { "right", "right as of the checkpoint before",
                                                   "told when read", "refused", "wrong" };

/* Shared with the children. */
struct progress {
    size_t at;    /* the byte that is flipped */
    bool started; /* and what is read then */
    size_t endings[ENDINGS];
};

struct file {
    char dir[128], path[160];
    struct keel_buf *bytes;
    struct keel_text said, said_before; /* by the last checkpoint, and by the one before it */
    struct progress *progress;
};

/* ---- the file ---- */

static void write_more(struct kv *kv)
{
    struct opened o;
    char why[256] = "";

    assert_int_equal(sample_open(kv, &o, why, sizeof why), 0);
    help_write(o.mvcc, "d/e/later", "of the last checkpoint");
    struct kv_batch *batch = apply_checkpoint(o.apply);

    assert_int_equal(kv->ops->write(kv, batch), 0);
    mvcc_checkpointed(o.mvcc);
    kv_batch_free(batch);
    sample_close(&o);
}

static int not_asked(void *arg)
{
    (void)arg;
    return 0;
}

static void write_bytes(const struct file *f)
{
    int fd = open(f->path, O_WRONLY | O_CREAT | O_TRUNC, 0600);

    KEEL_ASSERT(write(fd, f->bytes->data, f->bytes->len) == (ssize_t)f->bytes->len);
    close(fd);
}

static struct keel_buf *read_bytes(const char *path)
{
    struct keel_buf *bytes = keel_buf_new(FILE_MAX);
    int fd = open(path, O_RDONLY);
    ssize_t len = read(fd, bytes->data, FILE_MAX);

    assert_true(len > 0 && len < FILE_MAX);
    bytes->len = (size_t)len;
    close(fd);
    return bytes;
}

static int setup(void **state)
{
    struct file *f = calloc(1, sizeof *f);
    struct kv *sample = sample_new();

    if (access("/dev/shm", W_OK) == 0)
        setenv("TMPDIR", "/dev/shm", 0); /* thousands of starts, each of which syncs */
    help_dir_new(f->dir, sizeof f->dir);
    snprintf(f->path, sizeof f->path, "%s/data.mdb", f->dir);
    struct kv *kv = help_lmdb(f->dir);

    assert_int_equal(kv_copy(sample, kv, not_asked, NULL), 0);
    sample_say_all(kv, &f->said_before);
    write_more(kv);
    sample_say_all(kv, &f->said);
    kv->ops->close(kv);
    sample->ops->close(sample);
    f->bytes = read_bytes(f->path);
    f->progress =
        mmap(NULL, sizeof *f->progress, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(f->progress != MAP_FAILED);
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    struct file *f = *state;

    help_dir_remove(f->dir);
    munmap(f->progress, sizeof *f->progress);
    keel_buf_free(f->bytes);
    keel_text_free(&f->said);
    keel_text_free(&f->said_before);
    free(f);
    return 0;
}

/* Behind it, the next byte that is used; of the rest, which are zeroes that have only zeroes around
 * them, a few. */
static size_t next_byte(const struct file *f, size_t at)
{
    enum { AROUND = 16, FEW = 61 };
    static const uint8_t zeroes[2 * AROUND + 1];
    const struct keel_buf *b = f->bytes;

    for (at++; at + AROUND < b->len && at % FEW != 0; at++)
        if (at < AROUND || memcmp(b->data + at - AROUND, zeroes, sizeof zeroes) != 0)
            return at;
    return at;
}

/* ---- in a child ---- */

static enum ending ending_of(struct file *f)
{
    struct kv *kv;
    struct opened o;
    struct keel_text said = { 0 };
    char why[256] = "";
    enum ending ending = WRONG;
    size_t damaged;

    if (kv_lmdb_open(f->dir, UINT64_C(1) << 30, &kv, why, sizeof why) != 0)
        return why[0] != '\0' ? REFUSED : WRONG;
    if (sample_open(kv, &o, why, sizeof why) != 0) {
        kv->ops->close(kv);
        return why[0] != '\0' ? REFUSED : WRONG;
    }
    f->progress->started = true;
    sample_say(&o, &said);
    if (sample_agrees(&f->said, &said, &damaged))
        ending = damaged > 0 ? TOLD : RIGHT;
    else if (sample_agrees(&f->said_before, &said, &damaged))
        ending = damaged > 0 ? TOLD : OLDER;
    sample_close(&o);
    kv->ops->close(kv);
    keel_text_free(&said);
    return ending;
}

static void flip_on(struct file *f)
{
    struct progress *p = f->progress;

    for (; p->at < f->bytes->len; p->at = next_byte(f, p->at)) {
        uint8_t mask = (uint8_t)(1u << p->at % 8);

        alarm(CHILD_SECONDS);
        p->started = false;
        f->bytes->data[p->at] ^= mask;
        write_bytes(f);
        f->bytes->data[p->at] ^= mask;
        enum ending ending = ending_of(f);

        p->endings[ending]++;
        if (ending == WRONG)
            _exit(WRONG);
    }
    _exit(0);
}

/* cmocka's handlers would go on with the next test, in the child. */
static void end_by_faults(void)
{
    static const int faults[] = { SIGFPE, SIGILL, SIGSEGV, SIGBUS, SIGSYS };

    for (size_t i = 0; i < KEEL_ARRAY_LEN(faults); i++)
        signal(faults[i], SIG_DFL);
}

/* From the byte at hand on, until something ends it. */
static int run_child(struct file *f)
{
    int status;
    pid_t child = fork();

    assert_true(child >= 0);
    if (child == 0) {
        int null = open("/dev/null", O_WRONLY);

        dup2(null, STDERR_FILENO);
        end_by_faults();
        flip_on(f);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    return status;
}

static void a_flipped_bit_in_any_byte_of_the_file_never_makes_it_say_anything_wrong(void **state)
{
    struct file *f = *state;
    struct progress *p = f->progress;
    size_t killed = 0;

    for (; p->at < f->bytes->len; p->at = next_byte(f, p->at)) {
        int status = run_child(f);

        if (WIFEXITED(status) && WEXITSTATUS(status) == WRONG)
            fail_msg("with byte %zu changed it says something else", p->at);
        if (WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM)
            fail_msg("with byte %zu changed it never ends", p->at);
        if (p->at >= f->bytes->len)
            break;
        if (p->started)
            fail_msg("with byte %zu changed it starts, and ends by a fault later", p->at);
        killed++;
    }
    for (size_t i = 0; i < WRONG; i++)
        print_message("# %s: %zu\n", ending_names[i], p->endings[i]);
    print_message("# killed: %zu\n", killed);
    assert_true(p->endings[RIGHT] > 0 && p->endings[OLDER] > 0);
    assert_true(p->endings[TOLD] > 0 && p->endings[REFUSED] > 0 && killed > 0);
    assert_int_equal(p->endings[WRONG], 0);
}

/* Such a table would be searched in another order than that of its keys, and some not be found. */
static void a_table_with_flags_that_nobody_gave_it_is_damage(void **state)
{
    enum { NAME_LEN = 7, FLAGS_AT = NAME_LEN + 4 }; /* as LMDB's struct MDB_db has it */
    struct file *f = *state;
    struct kv *kv;
    const uint8_t *end = f->bytes->data + f->bytes->len;
    char why[256] = "";
    size_t found = 0;

    for (uint8_t *at = f->bytes->data;
         (at = memmem(at, (size_t)(end - at), "records", NAME_LEN)) != NULL; at += FLAGS_AT) {
        assert_int_equal(at[FLAGS_AT], 0);
        at[FLAGS_AT] = 0x08; /* MDB_INTEGERKEY */
        found++;
    }
    assert_true(found > 0);
    write_bytes(f);
    assert_int_equal(kv_lmdb_open(f->dir, UINT64_C(1) << 30, &kv, why, sizeof why), KEEL_E_CORRUPT);
    assert_non_null(strstr(why, "damaged"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(
            a_flipped_bit_in_any_byte_of_the_file_never_makes_it_say_anything_wrong, setup,
            teardown),
        cmocka_unit_test_setup_teardown(a_table_with_flags_that_nobody_gave_it_is_damage, setup,
                                        teardown),
    };

    return cmocka_run_group_tests_name("store-file", tests, NULL, NULL);
}
