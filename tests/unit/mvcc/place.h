/* A data directory to work in, and a process that is killed at each step of what it does there. */
#ifndef MVCC_PLACE_H
#define MVCC_PLACE_H

#include "unit.h"

#include <stdbool.h>

struct place {
    char dir[128];
    int home;
};

/* A new one becomes the working directory. */
void place_enter(struct place *p);
/* It is gone, with everything in it. */
void place_leave(const struct place *p);

bool is_there(const char *name);
/* A directory with everything in it. */
void remove_tree(const char *dir);
/* Fails the test with the text, if there is an error. */
void must(int err, const char *why);

/* `hook` is what the module under test calls at each of its steps, if it is not NULL. Runs it to
 * its end, and keeps the names of the steps. */
void steps_learn(void (**hook)(const char *step), void (*run)(void));
size_t steps_count(void);
const char *step_name(size_t at);
size_t step_named(const char *name);
/* Runs it in a child that is killed at that step; false: it has not so many. */
bool killed_at(void (**hook)(const char *step), void (*run)(void), size_t at);

#endif
