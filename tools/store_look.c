/* The working directory becomes the data directory for a moment: that is what store_install.c goes
 * by. */
#include "store_look.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "err.h"
#include "store_install.h"

static int fault_exit_code;

static void on_fault(int signum)
{
    static const char text[] = "the store is damaged: reading it ended in a memory fault\n";
    ssize_t written = write(STDERR_FILENO, text, sizeof text - 1);

    (void)signum;
    (void)written;
    _exit(fault_exit_code);
}

static void catch_faults(int code)
{
    const struct sigaction fault = { .sa_handler = on_fault };

    fault_exit_code = code;
    sigaction(SIGSEGV, &fault, NULL);
    sigaction(SIGBUS, &fault, NULL);
}

static int look(struct kv **ret_kv, uint64_t *ret_index, uint64_t *ret_term, char *ret_why,
                size_t why_size)
{
    const char *store;
    int err = store_install_peek(&store, ret_index, ret_term, ret_why, why_size);

    return err != 0 ? err : kv_lmdb_open_read_only(store, ret_kv, ret_why, why_size);
}

int store_look(int data_dir_fd, int fault_code, struct kv **ret_kv, uint64_t *ret_index,
               uint64_t *ret_term, char *ret_why, size_t why_size)
{
    int back = open(".", O_RDONLY | O_DIRECTORY | O_CLOEXEC), err;

    if (back < 0 || fchdir(data_dir_fd) != 0) {
        snprintf(ret_why, why_size, "cannot change directories: %s", strerror(errno));
        if (back >= 0)
            close(back);
        return KEEL_E_IO;
    }
    catch_faults(fault_code);
    err = look(ret_kv, ret_index, ret_term, ret_why, why_size);
    if (fchdir(back) != 0 && err == 0) {
        snprintf(ret_why, why_size, "cannot change directories: %s", strerror(errno));
        (*ret_kv)->ops->close(*ret_kv);
        err = KEEL_E_IO;
    }
    close(back);
    return err;
}
