/* Virtual time: events, what a seed makes of its shape, the run. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>

#include "check.h"
#include "checks.h"
#include "sim.h"

bool sim_chance(struct keel_rng *rng, unsigned per_mille)
{
    return keel_rng_below(rng, 1000) < per_mille;
}

void sim_trace_line(struct sim *sim, const char *fmt, ...)
{
    va_list args;

    printf("%10" PRIu64 ".%03" PRIu64 " ", sim->now_us / 1000, sim->now_us % 1000);
    va_start(args, fmt);
    vprintf(fmt, args);
    va_end(args);
    putchar('\n');
}

void *sim_reserve(void *array, uint64_t *capacity, uint64_t last, size_t size)
{
    if (last < *capacity)
        return array;
    uint64_t more = last + last / 2 + 64;

    array = keel_realloc(array, more * size);
    memset((char *)array + *capacity * size, 0, (more - *capacity) * size);
    *capacity = more;
    return array;
}

/* ---- events ---- */

static bool is_of_process(enum sim_event_kind kind)
{
    return kind < EVENT_CONNECT;
}

struct sim_event *sim_event_at(struct sim *sim, uint64_t at_us, enum sim_event_kind kind,
                               unsigned node)
{
    struct sim_event *event = sim->free_events;

    if (event != NULL)
        sim->free_events = event->next;
    else
        event = keel_malloc(sizeof *event);
    memset(event, 0, offsetof(struct sim_event, info));
    event->kind = kind;
    event->node = node;
    if (is_of_process(kind))
        event->epoch = sim->nodes[node].epoch;
    keel_heap_push(&sim->events, &event->heap, at_us > sim->now_us ? at_us : sim->now_us,
                   ++sim->event_seq);
    return event;
}

static void event_free(struct sim *sim, struct sim_event *event)
{
    keel_message_free(event->msg);
    keel_buf_free(event->buf);
    event->next = sim->free_events;
    sim->free_events = event;
}

/* A paused node's events wait for it. */
static bool postponed(struct sim *sim, struct sim_event *event)
{
    struct sim_node *node = &sim->nodes[event->node];

    if (node->paused_until_us <= sim->now_us)
        return false;
    keel_heap_push(&sim->events, &event->heap, node->paused_until_us, ++sim->event_seq);
    return true;
}

static void process_event(struct sim *sim, struct sim_event *event, uint64_t at)
{
    struct sim_node *node = &sim->nodes[event->node];

    if (!node->up || (event->epoch != node->epoch && event->from_id == 0) ||
        (event->epoch != node->epoch && event->kind != EVENT_MESSAGE))
        return;
    if (event->kind == EVENT_TIMER)
        sim_node_timer(node, at);
    else if (event->kind == EVENT_MESSAGE)
        network_deliver(sim, event);
    else if (event->kind == EVENT_DISCONNECT)
        network_disconnect_event(sim, event);
    else if (event->kind == EVENT_PRUNE)
        network_prune_event(node);
    else if (event->kind == EVENT_STOP)
        sim_node_stop_event(node, event);
    else
        disk_event(node, event);
}

static void world_event(struct sim *sim, struct sim_event *event)
{
    struct sim_node *node = &sim->nodes[event->node];

    if (event->kind == EVENT_CONNECT)
        network_connect_event(sim, event);
    else if (event->kind == EVENT_FAULT)
        faults_event(sim);
    else if (event->kind == EVENT_CLIENT)
        clients_event(sim, event->node);
    else if (event->kind == EVENT_OPERATOR)
        operator_event(sim);
    else if (event->kind == EVENT_HEAL)
        network_heal(sim);
    else if (event->kind == EVENT_START && event->first == node->id && !node->up)
        sim_node_start(node);
    else if (event->kind == EVENT_CRASH && event->first == node->id && !sim->calm)
        faults_crash(node, event->offset != 0, 20000);
    else if (event->kind == EVENT_RETIRE && event->first == node->id)
        sim_node_destroy(node);
}

/* What happened, and when: two runs that differ anywhere differ in this. */
static void mix(struct sim *sim, const struct sim_event *event)
{
    uint64_t what = sim->now_us << 12 ^ (uint64_t)event->kind << 4 ^ event->node;

    sim->trace_hash = (sim->trace_hash ^ what) * 0x9e3779b97f4a7c15u;
    sim->trace_hash ^= sim->trace_hash >> 29;
}

static void step(struct sim *sim)
{
    struct keel_heap_node *top = keel_heap_top(&sim->events);
    struct sim_event *event = KEEL_CONTAINER_OF(top, struct sim_event, heap);
    uint64_t at = top->key;

    keel_heap_remove(&sim->events, top);
    sim->now_us = at;
    mix(sim, event);
    if (!is_of_process(event->kind))
        world_event(sim, event);
    else if (postponed(sim, event))
        return;
    else
        process_event(sim, event, at);
    event_free(sim, event);
}

static void run_until(struct sim *sim, uint64_t end_us, bool (*done)(struct sim *sim))
{
    while (sim->failure[0] == '\0' && !done(sim)) {
        struct keel_heap_node *top = keel_heap_top(&sim->events);

        if (top == NULL || top->key > end_us)
            return;
        step(sim);
    }
}

/* ---- the run ---- */

static bool workload_done(struct sim *sim)
{
    return clients_done(sim);
}

static void calm_down(struct sim *sim)
{
    sim->calm = true;
    sim_trace(sim, "calm");
    network_heal(sim);
    for (unsigned i = 0; i < sim->plan.slots; i++) {
        struct sim_node *node = &sim->nodes[i];

        sim_node_trouble(node, sim->now_us);
        node->reboots = false; /* it is back at once */
        if (!node->up && node->state == SLOT_MEMBER)
            sim_node_start(node);
    }
}

bool sim_run(struct sim *sim)
{
    for (unsigned i = 0; i < sim->plan.nodes; i++)
        sim_node_start(&sim->nodes[i]);
    clients_start(sim);
    operator_start(sim);
    faults_start(sim);
    run_until(sim, sim->shape->limit_us, workload_done);
    if (sim->failure[0] == '\0') {
        calm_down(sim);
        run_until(sim, sim->now_us + sim->shape->limit_us, check_is_converged);
    }
    if (sim->failure[0] == '\0')
        check_converged(sim);
    return sim->failure[0] == '\0';
}

/* ---- a seed ---- */

static unsigned choose_nodes(struct keel_rng *rng, const struct sim_shape *shape)
{
    return shape->nodes != 0 ? shape->nodes : 3 + 2 * (unsigned)keel_rng_below(rng, 3);
}

static void make_plan(struct sim *sim)
{
    const struct sim_shape *shape = sim->shape;
    struct sim_plan *plan = &sim->plan;
    struct keel_rng rng;

    keel_rng_seed(&rng, sim->seed ^ 0x77);
    plan->nodes = choose_nodes(&rng, shape);
    plan->operated = sim_chance(&rng, shape->operated);
    plan->short_log = sim_chance(&rng, shape->short_log);
    plan->rough = sim_chance(&rng, shape->rough);
    plan->slots = plan->nodes + (plan->operated ? shape->spare : 0);
    plan->request_timeout_us = sim_chance(&rng, 300) ? 1000000 : 3000000;
    plan->session_ttl_us = sim_chance(&rng, 500) ? 2500000 : 10000000;
    plan->log_kept_bytes = plan->short_log ? UINT64_C(1024) << keel_rng_below(&rng, 4) : 1 << 20;
    plan->tail_entries = plan->short_log ? 4 + keel_rng_below(&rng, 60) : KEEL_TAIL_ENTRIES;
    if (sim_chance(&rng, 500)) {
        plan->history_ms = 1 + keel_rng_below(&rng, 3000);
        plan->history_revisions = 1 + keel_rng_below(&rng, 40);
    }
    if (sim_chance(&rng, 100))
        plan->quota_bytes = 2500 + keel_rng_below(&rng, 6000);
    plan->check_us = 50000 << keel_rng_below(&rng, 8);
    KEEL_ASSERT(plan->slots <= SIM_SLOTS_MAX);
}

struct sim *sim_new(const struct sim_shape *shape, uint64_t seed, int trace)
{
    struct sim *sim = keel_calloc(1, sizeof *sim);

    sim->shape = shape;
    sim->seed = seed;
    sim->trace = trace > 0;
    sim->trace_messages = trace > 1;
    keel_rng_seed(&sim->net_rng, seed ^ 0x11);
    keel_rng_seed(&sim->disk_rng, seed ^ 0x22);
    keel_rng_seed(&sim->fault_rng, seed ^ 0x33);
    keel_rng_seed(&sim->client_rng, seed ^ 0x44);
    keel_rng_seed(&sim->clock_rng, seed ^ 0x55);
    keel_rng_seed(&sim->operator_rng, seed ^ 0x66);
    make_plan(sim);
    for (unsigned i = 0; i < sim->plan.slots; i++) {
        sim->nodes[i].sim = sim;
        sim->nodes[i].slot = i;
        sim->nodes[i].queue_end = &sim->nodes[i].queue;
    }
    for (unsigned i = 0; i < sim->plan.nodes; i++)
        sim_node_create(&sim->nodes[i], true);
    return sim;
}

static void free_events(struct sim *sim)
{
    struct keel_heap_node *top;

    while ((top = keel_heap_top(&sim->events)) != NULL) {
        keel_heap_remove(&sim->events, top);
        event_free(sim, KEEL_CONTAINER_OF(top, struct sim_event, heap));
    }
    while (sim->free_events != NULL) {
        struct sim_event *event = sim->free_events;

        sim->free_events = event->next;
        free(event);
    }
    keel_heap_free(&sim->events);
}

void sim_free(struct sim *sim)
{
    if (sim->failure[0] == '\0')
        check_fail(sim, "over"); /* nobody acts any more */
    for (unsigned i = 0; i < sim->plan.slots; i++) {
        struct sim_node *node = &sim->nodes[i];

        if (node->state != SLOT_FREE)
            sim_node_destroy(node);
        free(node->log);
        free(node->configs);
        free(node->received);
    }
    clients_free(sim);
    operator_free(sim);
    free_events(sim);
    free(sim->scratch);
    check_free(sim);
    free(sim);
}
