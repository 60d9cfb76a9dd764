/* See place.h. */
#include "place.h"

#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "help.h"

enum { KILLED = 42, STEPS_MAX = 64 };

void place_enter(struct place *p)
{
    help_dir_new(p->dir, sizeof p->dir);
    p->home = open(".", O_RDONLY | O_DIRECTORY);
    assert_int_equal(chdir(p->dir), 0);
}

void place_leave(const struct place *p)
{
    assert_int_equal(fchdir(p->home), 0);
    close(p->home);
    remove_tree(p->dir);
}

bool is_there(const char *name)
{
    struct stat st;

    return lstat(name, &st) == 0;
}

static int remove_one(const char *path, const struct stat *st, int flag, struct FTW *ftw)
{
    (void)st;
    (void)flag;
    (void)ftw;
    return remove(path);
}

void remove_tree(const char *dir)
{
    assert_int_equal(nftw(dir, remove_one, 8, FTW_DEPTH | FTW_PHYS), 0);
}

void must(int err, const char *why)
{
    if (err != 0)
        fail_msg("%d: %s", err, why);
}

/* ---- steps ---- */

static const char *names[STEPS_MAX];
static size_t count; /* of names */
static size_t left;  /* in a child, until it dies */

static void note(const char *step)
{
    assert_true(count < STEPS_MAX);
    names[count++] = step;
}

static void die(const char *step)
{
    (void)step;
    if (left-- == 0)
        _exit(KILLED);
}

void steps_learn(void (**hook)(const char *step), void (*run)(void))
{
    count = 0;
    *hook = note;
    run();
    *hook = NULL;
}

size_t steps_count(void)
{
    return count;
}

const char *step_name(size_t at)
{
    assert_true(at < count);
    return names[at];
}

size_t step_named(const char *name)
{
    for (size_t i = 0; i < count; i++)
        if (strcmp(names[i], name) == 0)
            return i;
    fail_msg("there is no step '%s'", name);
    return 0;
}

bool killed_at(void (**hook)(const char *step), void (*run)(void), size_t at)
{
    int status;
    pid_t child = fork();

    assert_true(child >= 0);
    if (child == 0) {
        *hook = die;
        left = at;
        run();
        _exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_true(WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == KILLED);
    return WEXITSTATUS(status) == KILLED;
}
