/* Whether to stay awake for a moment. A caller that has just been answered often asks again at
 * once, and to put a thread to sleep and wake it takes longer than that (most of the time of a
 * short request, on a virtual machine). So after an answer the loop looks out for the next request
 * instead of sleeping; in vain it is tried ever more rarely, so that what it costs stays in
 * proportion to what it brings. The same holds for a follower that waits for the leader's answer to
 * a read. */
#ifndef KEEL_LOOKOUT_H
#define KEEL_LOOKOUT_H

#include <stdbool.h>
#include <stdint.h>

enum {
    LOOKOUT_REQUEST_US = 100, /* for the next request after an answer */
    LOOKOUT_BARRIER_US = 200, /* for the leader's answer to a read */
    LOOKOUT_FAILURES_MAX = 9, /* in a row: then it is tried every 512th time */
};

struct lookout {                /* all zeroes at first */
    uint64_t reasons, arrivals; /* as of the last turn */
    uint64_t end_us;            /* 0: not looking out */
    uint32_t failures, pause;
};

/* The end of a loop turn. `reasons` counts what something is expected after, `arrivals` what is
 * expected. True: poll again without sleeping, for up to limit_us. */
bool lookout_turn(struct lookout *l, uint64_t reasons, uint64_t arrivals, uint64_t limit_us,
                  uint64_t now_us);

#endif
