/* See the header. Pure. */
#include "lookout.h"

static void began(struct lookout *l, uint64_t now_us)
{
    if (l->pause > 0)
        l->pause--;
    else
        l->end_us = now_us + LOOKOUT_US;
}

static void ended(struct lookout *l)
{
    l->end_us = 0;
    if (l->failures < LOOKOUT_FAILURES_MAX)
        l->failures++;
    l->pause = (1u << l->failures) - 1;
}

bool lookout_turn(struct lookout *l, uint64_t requests, uint64_t answers, uint64_t now_us)
{
    bool asked = requests != l->requests, answered = answers != l->answers;

    l->requests = requests;
    l->answers = answers;
    if (l->end_us != 0 && asked) {
        l->failures = 0;
        l->end_us = 0;
    }
    if (answered && l->end_us == 0)
        began(l, now_us);
    else if (l->end_us != 0 && now_us >= l->end_us)
        ended(l);
    return l->end_us != 0;
}
