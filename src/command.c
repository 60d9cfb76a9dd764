/* The envelope: length, head, body. */
#include "bytes.h"
#include "check.h"
#include "command.h"
#include "err.h"
#include "keel_limits.h"

struct keel_buf *command_pack(const Keel__Command *head, struct keel_slice body)
{
    size_t head_len = keel__command__get_packed_size(head);
    struct keel_buf *buf = keel_buf_new(4 + head_len + body.len);

    KEEL_ASSERT(buf->len <= KEEL_ENTRY_SIZE_MAX);
    put_le32(buf->data, (uint32_t)head_len);
    keel__command__pack(head, buf->data + 4);
    if (body.len > 0)
        memcpy(buf->data + 4 + head_len, body.data, body.len);
    return buf;
}

/* Splits the envelope. */
static int command_split(struct keel_slice bytes, struct keel_slice *ret_head,
                         struct keel_slice *ret_body)
{
    struct keel_cursor c = { .rest = bytes };
    uint32_t head_len = cursor_le32(&c);
    struct keel_slice head = cursor_slice(&c, head_len);

    if (c.bad || bytes.len > KEEL_ENTRY_SIZE_MAX)
        return KEEL_E_MALFORMED;
    *ret_head = head;
    *ret_body = c.rest;
    return 0;
}

int command_unpack(struct keel_slice bytes, struct keel_arena *arena, Keel__Command **ret_head,
                   struct keel_slice *ret_body)
{
    struct keel_slice head, body;

    if (command_split(bytes, &head, &body) != 0)
        return KEEL_E_MALFORMED;
    Keel__Command *command = keel__command__unpack(&arena->allocator, head.len, head.data);

    if (command == NULL || command->op_case == KEEL__COMMAND__OP__NOT_SET)
        return KEEL_E_MALFORMED;
    *ret_head = command;
    *ret_body = body;
    return 0;
}

int command_peek(struct keel_slice bytes, uint64_t *ret_session, uint64_t *ret_number)
{
    struct keel_arena arena;
    struct keel_slice head, body;

    if (command_split(bytes, &head, &body) != 0)
        return KEEL_E_MALFORMED;
    keel_arena_init(&arena);
    Keel__Command *command = keel__command__unpack(&arena.allocator, head.len, head.data);

    if (command != NULL) {
        *ret_session = command->session;
        *ret_number = command->number;
    }
    keel_arena_free(&arena);
    return command != NULL ? 0 : KEEL_E_MALFORMED;
}
