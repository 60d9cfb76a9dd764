/* Sizes and times as people write them: 512M, 2h. */
#ifndef KEEL_UNITS_H
#define KEEL_UNITS_H

#include <stdbool.h>
#include <stdint.h>

/* A whole number of bytes, or with K, M, G, T behind it of the powers of 1024. */
bool keel_units_size(const char *text, uint64_t *ret_bytes);
/* A whole number with ms, s, m, h or d behind it, in milliseconds. */
bool keel_units_time(const char *text, uint64_t *ret_ms);

#endif
