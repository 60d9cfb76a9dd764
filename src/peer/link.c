/* Who there is besides us, and who dials whom and when. What is said on a connection is channel.c's
 * business. */
#include <stdio.h>
#include <stdlib.h>

#include "check.h"
#include "err.h"
#include "log.h"
#include "peer/pool.h"

enum {
    REDIAL_MIN_MS = 20,
    REDIAL_MAX_MS = 250,
    REDIAL_REFUSED_MS = 1000,
    OUT_OF_TURN_MS = 3000, /* without a connection: then whoever's turn it isn't dials too */
    REDIAL_OUT_OF_TURN_MS = 1000,
};

struct peer_link *link_find(const struct peer_pool *pool, uint64_t id)
{
    for (size_t i = 0; i < pool->link_count; i++) {
        if (pool->links[i]->id == id)
            return pool->links[i];
    }
    return NULL;
}

struct peer_link *link_ref(struct peer_link *link)
{
    link->refs++;
    return link;
}

void link_unref(struct peer_link *link)
{
    KEEL_ASSERT(link->refs > 0);
    if (--link->refs > 0)
        return;
    free(link->name);
    free(link->address);
    free(link);
}

void link_complain(struct peer_link *link, const char *what, const char *why)
{
    char line[COMPLAINT_SIZE];

    snprintf(line, sizeof line, "%s: %s", what, why);
    if (strcmp(line, link->complaint) == 0)
        return;
    memcpy(link->complaint, line, sizeof line);
    log_warning("%s at %s: %s", link->name, link->address ? link->address : "an unknown address",
                line);
}

void link_connected(struct peer_link *link)
{
    link->backoff_ms = REDIAL_MIN_MS;
    link->refused = false;
    link->complaint[0] = '\0';
}

/* ---- dialling ---- */

static void dial(struct peer_link *link, const struct sockaddr *to)
{
    struct peer_pool *pool = link->pool;
    bool from = pool->has_from && pool->from.ss_family == to->sa_family;
    struct channel *ch = channel_new(pool, link);

    link->dialling = ch;
    link->refused = false;
    int err = connection_dial(&ch->conn, from ? (const struct sockaddr *)&pool->from : NULL, to);

    if (err != 0)
        connection_fail(&ch->conn, "%s", uv_strerror(err));
}

static void on_looked_up(uv_getaddrinfo_t *req, int status, struct addrinfo *found)
{
    struct peer_link *link = req->data;
    struct peer_pool *pool = link->pool;

    link->looking_up = false;
    if (!pool->closing && !link->gone) {
        if (status == 0) {
            dial(link, found->ai_addr);
        } else {
            link_complain(link, "cannot be resolved", uv_strerror(status));
            link_redial(link, false);
        }
    }
    uv_freeaddrinfo(found);
    link_unref(link);
    pool_let_go(pool);
}

static void look_up(struct peer_link *link)
{
    struct addrinfo hints = { .ai_socktype = SOCK_STREAM };
    int err = uv_getaddrinfo(link->pool->loop, &link->lookup, on_looked_up, link->host, link->port,
                             &hints);

    if (err != 0) {
        link_complain(link, "cannot be resolved", uv_strerror(err));
        link_redial(link, false);
        return;
    }
    link->looking_up = true;
    link_ref(link);
    link->pool->handles++;
}

static void on_redial(uv_timer_t *timer)
{
    struct peer_link *link = timer->data;
    struct sockaddr_storage to;

    if (link->current != NULL || link->dialling != NULL || link->looking_up)
        return;
    if (address_numeric(link->host, link->port, &to))
        dial(link, (const struct sockaddr *)&to);
    else
        look_up(link);
}

/* Half of the delay is random, so that nodes that were cut off together do not come back in step.
 */
static uint64_t redial_delay(struct peer_link *link)
{
    uint64_t base = link->refused ? REDIAL_REFUSED_MS
                    : link->first ? link->backoff_ms
                                  : REDIAL_OUT_OF_TURN_MS;

    link->backoff_ms = link->backoff_ms * 2 < REDIAL_MAX_MS ? link->backoff_ms * 2 : REDIAL_MAX_MS;
    return base / 2 + keel_rng_below(&link->pool->rng, base / 2 + 1);
}

void link_redial(struct peer_link *link, bool was_connected)
{
    bool wait = was_connected && !link->first;

    if (link->guest || link->host[0] == '\0')
        return;
    uv_timer_start(&link->redial, on_redial, wait ? OUT_OF_TURN_MS : redial_delay(link), 0);
}

/* ---- coming and going ---- */

static struct peer_link *add_link(struct peer_pool *pool, uint64_t id, const char *name)
{
    struct peer_link *link = keel_calloc(1, sizeof *link);

    KEEL_ASSERT(pool->link_count < LINKS_MAX);
    link->pool = pool;
    link->id = id;
    link->name = keel_strdup(name);
    link->first = strcmp(pool->options.name, name) < 0;
    link->backoff_ms = REDIAL_MIN_MS;
    pool_own_handle(pool, (uv_handle_t *)&link->redial, uv_timer_init(pool->loop, &link->redial));
    link->redial.data = link_ref(link);
    link->lookup.data = link;
    pool->links[pool->link_count++] = link;
    return link;
}

/* A new address counts from the next attempt on. */
static void set_address(struct peer_link *link, const char *address)
{
    free(link->address);
    link->address = keel_strdup(address);
    if (peer_address_split(address, link->host, sizeof link->host, link->port, sizeof link->port) ==
        0)
        return;
    link->host[0] = '\0';
    link_complain(link, "cannot be dialled", "its address is not host:port");
}

/* With a connection, or while an attempt is under way, it comes to nothing. */
static void start_dialling(struct peer_link *link)
{
    if (link->host[0] != '\0')
        uv_timer_start(&link->redial, on_redial, link->first ? 0 : OUT_OF_TURN_MS, 0);
}

static void add_member(struct peer_pool *pool, const struct peer_member *member)
{
    struct peer_link *link = add_link(pool, member->id, member->name);

    set_address(link, member->address);
    start_dialling(link);
}

struct peer_link *link_new_guest(struct peer_pool *pool, const struct hello *hello)
{
    size_t guests = 0;

    for (size_t i = 0; i < pool->link_count; i++)
        guests += pool->links[i]->guest;
    if (guests == GUESTS_MAX)
        return NULL;
    struct peer_link *link = add_link(pool, hello->id, hello->name);

    link->guest = true;
    link->config_index = hello->config_index;
    return link;
}

static void on_timer_closed(uv_handle_t *handle)
{
    struct peer_link *link = handle->data;
    struct peer_pool *pool = link->pool;

    link_unref(link);
    pool_let_go(pool);
}

void link_drop(struct peer_link *link)
{
    struct peer_pool *pool = link->pool;

    for (size_t i = 0; i < pool->link_count; i++) {
        if (pool->links[i] == link) {
            pool->links[i] = pool->links[--pool->link_count];
            break;
        }
    }
    link->gone = true;
    if (link->looking_up)
        uv_cancel((uv_req_t *)&link->lookup); /* else it ends by itself */
    uv_close((uv_handle_t *)&link->redial, on_timer_closed);
    for (struct channel *ch = pool->channels; ch != NULL; ch = ch->next) {
        if (ch->link != link || ch->conn.failed)
            continue;
        if (ch->state == CHANNEL_MEMBER)
            channel_part(ch);
        else if (ch->state != CHANNEL_PARTING)
            connection_fail(&ch->conn, "%s is no member any more", link->name);
    }
}

/* ---- the members ---- */

static void copy_members(struct peer_options *options, const struct peer_member *members,
                         size_t count)
{
    KEEL_ASSERT(count <= KEEL_MEMBERS_MAX);
    for (size_t i = 0; i < count; i++)
        options->members[i] = (struct peer_member){ .id = members[i].id,
                                                    .name = keel_strdup(members[i].name),
                                                    .address = keel_strdup(members[i].address) };
    options->member_count = count;
}

void link_free_members(struct peer_options *options)
{
    for (size_t i = 0; i < options->member_count; i++) {
        free((char *)(uintptr_t)options->members[i].name);
        free((char *)(uintptr_t)options->members[i].address);
    }
    options->member_count = 0;
}

/* It stays; what is known of it may be new. A guest may have become a member. */
static void update_link(struct peer_link *link, const struct peer_member *member)
{
    if (strcmp(link->name, member->name) != 0) {
        free(link->name);
        link->name = keel_strdup(member->name);
        link->first = strcmp(link->pool->options.name, member->name) < 0;
    }
    if (!link->guest && strcmp(link->address, member->address) == 0)
        return;
    set_address(link, member->address);
    link->guest = false;
    start_dialling(link);
}

static const struct peer_member *find_member(const struct peer_options *options, uint64_t id)
{
    for (size_t i = 0; i < options->member_count; i++) {
        if (options->members[i].id == id)
            return &options->members[i];
    }
    return NULL;
}

/* Updates those that stay, drops those that have gone. A guest stays as long as it may know better.
 * Backwards, since the last one takes the place of one that is dropped. */
static void sift_links(struct peer_pool *pool)
{
    for (size_t i = pool->link_count; i-- > 0;) {
        struct peer_link *link = pool->links[i];
        const struct peer_member *member = find_member(&pool->options, link->id);

        if (member != NULL) {
            update_link(link, member);
        } else if (!link->guest || link->config_index <= pool->options.config_index) {
            log_info("%s is no member any more", link->name);
            link_drop(link);
        }
    }
}

void link_set_members(struct peer_pool *pool, const struct peer_member *members, size_t count,
                      uint64_t config_index)
{
    struct peer_options old = pool->options;

    /* First copied, then freed: the new list may point into the old one. */
    copy_members(&pool->options, members, count);
    pool->options.config_index = config_index;
    link_free_members(&old);
    sift_links(pool);
    for (size_t i = 0; i < count; i++) {
        const struct peer_member *member = &pool->options.members[i];

        if (member->id != pool->options.id && link_find(pool, member->id) == NULL)
            add_member(pool, member);
    }
}
