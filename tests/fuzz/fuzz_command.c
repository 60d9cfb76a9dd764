/* The command envelope: any bytes are unpacked or refused; what is unpacked packs into a command
 * that means the same, and peek agrees with it. */
#include <stddef.h>
#include <stdint.h>

#include "check.h"
#include "command.h"
#include "err.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Does the message, or one in it, carry fields that this version does not know? Those are kept as
 * raw bytes, and the library reads some (field 0 in two bytes) that it won't read again once
 * packed. Nothing of ours packs the heads of others, so that only heads without them are packed
 * here. Nesting ends with command.proto's. */
static bool has_unknown(const ProtobufCMessage *message)
{
    const ProtobufCMessageDescriptor *descriptor = message->descriptor;

    if (message->n_unknown_fields > 0)
        return true;
    for (unsigned i = 0; i < descriptor->n_fields; i++) {
        const ProtobufCFieldDescriptor *field = &descriptor->fields[i];
        const uint8_t *base = (const uint8_t *)message;
        const ProtobufCMessage *inner;
        uint32_t present;

        if (field->type != PROTOBUF_C_TYPE_MESSAGE)
            continue;
        memcpy(&present, base + field->quantifier_offset, sizeof present);
        if ((field->flags & PROTOBUF_C_FIELD_FLAG_ONEOF) != 0 && present != field->id)
            continue;
        memcpy(&inner, base + field->offset, sizeof inner);
        if (inner != NULL && has_unknown(inner))
            return true;
    }
    return false;
}

static void check_unpacked(struct keel_slice input, const Keel__Command *head,
                           struct keel_slice body, struct keel_arena *arena)
{
    uint64_t session, number;

    KEEL_ASSERT(head->op_case != KEEL__COMMAND__OP__NOT_SET);
    KEEL_ASSERT(body.len <= input.len - 4);
    KEEL_ASSERT(body.len == 0 || body.data + body.len == input.data + input.len);
    KEEL_ASSERT(command_peek(input, &session, &number) == 0);
    KEEL_ASSERT(session == head->session && number == head->number);

    if (has_unknown(&head->base))
        return;
    struct keel_buf *packed = command_pack(head, body);
    Keel__Command *head_again;
    struct keel_slice body_again;

    KEEL_ASSERT(command_unpack(keel_buf_slice(packed), arena, &head_again, &body_again) == 0);
    KEEL_ASSERT(head_again->op_case == head->op_case && head_again->session == head->session);
    KEEL_ASSERT(head_again->number == head->number && head_again->time_ns == head->time_ns);
    KEEL_ASSERT(keel_slice_equal(body, body_again));
    keel_buf_free(packed);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct keel_slice input = keel_slice_of(data, size), body;
    struct keel_arena arena;
    Keel__Command *head;

    keel_arena_init(&arena);
    int err = command_unpack(input, &arena, &head, &body);

    KEEL_ASSERT(err == 0 || err == KEEL_E_MALFORMED);
    if (err == 0)
        check_unpacked(input, head, body, &arena);
    keel_arena_free(&arena);
    return 0;
}
