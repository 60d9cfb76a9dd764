/* See the header. Pure. */
#include "lookout.h"

static void began(struct lookout *l, uint64_t end_us)
{
    if (l->pause > 0)
        l->pause--;
    else
        l->end_us = end_us;
}

static void ended(struct lookout *l)
{
    l->end_us = 0;
    if (l->failures < LOOKOUT_FAILURES_MAX)
        l->failures++;
    l->pause = (1u << l->failures) - 1;
}

bool lookout_turn(struct lookout *l, uint64_t reasons, uint64_t arrivals, uint64_t limit_us,
                  uint64_t now_us)
{
    bool reason = reasons != l->reasons, arrived = arrivals != l->arrivals;

    l->reasons = reasons;
    l->arrivals = arrivals;
    if (l->end_us != 0 && arrived) {
        l->failures = 0;
        l->end_us = 0;
    }
    if (reason && l->end_us == 0)
        began(l, now_us + limit_us);
    else if (l->end_us != 0 && now_us >= l->end_us)
        ended(l);
    return l->end_us != 0;
}
