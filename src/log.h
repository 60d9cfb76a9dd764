/* The node's log: one line a message on standard error, with wall time, level and node name. Only
 * the layer that handles an error logs it; the pure folders never do. */
#ifndef KEEL_LOG_H
#define KEEL_LOG_H

enum keel_log_level { KEEL_LOG_ERROR, KEEL_LOG_WARNING, KEEL_LOG_INFO, KEEL_LOG_DEBUG };

void keel_log_setup(const char *node_name, enum keel_log_level level);
void keel_log(enum keel_log_level level, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

#define log_error(...) keel_log(KEEL_LOG_ERROR, __VA_ARGS__)
#define log_warning(...) keel_log(KEEL_LOG_WARNING, __VA_ARGS__)
#define log_info(...) keel_log(KEEL_LOG_INFO, __VA_ARGS__)
#define log_debug(...) keel_log(KEEL_LOG_DEBUG, __VA_ARGS__)

#endif
