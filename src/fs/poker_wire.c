/* Tickets as packets: written by the daemon, read by the poker process. Pure. */
#include "fs/poker_wire.h"

#include "bytes.h"
#include "check.h"
#include "err.h"

enum { NO_PATH = UINT16_MAX };

static uint8_t *put_text(uint8_t *p, const char *text, size_t len)
{
    if (len > 0)
        memcpy(p, text, len);
    p[len] = '\0';
    return p + len + 1;
}

static uint8_t *put_place(uint8_t *p, const struct poker_place *place)
{
    put_le64(p, place->nodeid);
    put_le16(p + 8, place->has_path ? (uint16_t)place->path_len : NO_PATH);
    return put_text(p + 10, place->path, place->has_path ? place->path_len : 0);
}

static uint8_t *put_name(uint8_t *p, const char *name, size_t len)
{
    put_le16(p, (uint16_t)len);
    return put_text(p + 2, name, len);
}

size_t poker_order_encode(const struct poker_order *order, uint8_t *ret_bytes)
{
    uint8_t *p = ret_bytes;

    KEEL_ASSERT(order->dir.path_len <= KEEL_PATH_MAX && order->new_dir.path_len <= KEEL_PATH_MAX);
    KEEL_ASSERT(order->name_len <= KEEL_NAME_MAX && order->new_name_len <= KEEL_NAME_MAX);
    put_le32(p, (uint32_t)order->verb);
    put_le64(p + 4, order->id);
    put_le64(p + 12, order->object);
    put_le64(p + 20, order->size);
    p = put_place(p + 28, &order->dir);
    p = put_place(p, &order->new_dir);
    p = put_name(p, order->name, order->name_len);
    p = put_name(p, order->new_name, order->new_name_len);
    KEEL_ASSERT((size_t)(p - ret_bytes) <= POKER_ORDER_MAX);
    return (size_t)(p - ret_bytes);
}

/* `len` bytes without a NUL, and one NUL. */
static const char *take_text(struct keel_cursor *c, size_t len, size_t max)
{
    const uint8_t *p = cursor_take(c, len + 1);

    if (!p || len > max || p[len] != '\0' || (len > 0 && memchr(p, '\0', len))) {
        c->bad = true;
        return "";
    }
    return (const char *)p;
}

static void take_place(struct keel_cursor *c, struct poker_place *place)
{
    place->nodeid = cursor_le64(c);
    uint16_t len = cursor_le16(c);

    place->has_path = len != NO_PATH;
    place->path_len = place->has_path ? len : 0;
    place->path = take_text(c, place->path_len, KEEL_PATH_MAX);
}

static const char *take_name(struct keel_cursor *c, size_t *ret_len)
{
    *ret_len = cursor_le16(c);
    const char *name = take_text(c, *ret_len, KEEL_NAME_MAX);

    if (strchr(name, '/') || strcmp(name, ".") == 0 || strcmp(name, "..") == 0)
        c->bad = true;
    return name;
}

int poker_order_decode(struct keel_slice bytes, struct poker_order *ret_order)
{
    struct keel_cursor c = { .rest = bytes };
    struct poker_order order = { .verb = (enum poker_verb)cursor_le32(&c) };

    order.id = cursor_le64(&c);
    order.object = cursor_le64(&c);
    order.size = cursor_le64(&c);
    take_place(&c, &order.dir);
    take_place(&c, &order.new_dir);
    order.name = take_name(&c, &order.name_len);
    order.new_name = take_name(&c, &order.new_name_len);
    if (c.bad || c.rest.len > 0 || order.verb < POKER_QUIT || order.verb > POKER_RENAME)
        return KEEL_E_MALFORMED;
    *ret_order = order;
    return 0;
}
