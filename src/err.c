/* The error table of err.h, as functions. */
#include "err.h"

const char *keel_strerror(int err)
{
    switch (err) {
    case KEEL_OK:
        return "success";
#define X(name, value, errno_value, text) \
    case KEEL_E_##name:                   \
        return text;
        KEEL_ERRORS(X)
#undef X
    default:
        return "unknown error";
    }
}

int keel_errno(int err)
{
    switch (err) {
    case KEEL_OK:
        return 0;
#define X(name, value, errno_value, text) \
    case KEEL_E_##name:                   \
        return errno_value;
        KEEL_ERRORS(X)
#undef X
    default:
        return EIO;
    }
}
