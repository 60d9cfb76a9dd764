/* Who is who on a new connection. No socket here. The incarnation is checked by the pool, since the
 * record of it is replicated state that only the owner of the pool can look up. */
#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>

#include "check.h"
#include "command.pb-c.h"
#include "err.h"
#include "peer/handshake.h"

struct keel_message *handshake_hello(const struct peer_options *self, uint64_t to)
{
    struct keel_message *msg = keel_message_new(MESSAGE_HELLO);
    Keel__Hello hello = KEEL__HELLO__INIT;

    hello.version = PEER_PROTOCOL_VERSION;
    hello.cluster_id = self->cluster_id;
    hello.id = self->id;
    hello.to = to;
    hello.incarnation = self->incarnation;
    hello.name = (char *)(uintptr_t)self->name;
    hello.level = self->level;
    msg->data = keel_buf_new(keel__hello__get_packed_size(&hello));
    keel__hello__pack(&hello, msg->data->data);
    return msg;
}

struct keel_message *handshake_refusal(const char *why)
{
    struct keel_message *msg = keel_message_new(MESSAGE_REFUSAL);
    Keel__Refusal refusal = KEEL__REFUSAL__INIT;

    refusal.why = (char *)(uintptr_t)why;
    msg->data = keel_buf_new(keel__refusal__get_packed_size(&refusal));
    keel__refusal__pack(&refusal, msg->data->data);
    return msg;
}

/* Cuts the text to size; what is not printable becomes '?'. */
static void copy_printable(const char *from, char *ret, size_t size)
{
    size_t i = 0;

    for (; from[i] != '\0' && i + 1 < size; i++)
        ret[i] = isprint((unsigned char)from[i]) ? from[i] : '?';
    ret[i] = '\0';
}

int handshake_read_hello(struct keel_slice packed, struct hello *ret_hello)
{
    Keel__Hello *hello = keel__hello__unpack(NULL, packed.len, packed.data);

    if (hello == NULL)
        return KEEL_E_MALFORMED;
    bool fits = strlen(hello->name) < sizeof ret_hello->name;

    if (fits) {
        ret_hello->version = hello->version;
        ret_hello->level = hello->level;
        ret_hello->cluster_id = hello->cluster_id;
        ret_hello->id = hello->id;
        ret_hello->to = hello->to;
        ret_hello->incarnation = hello->incarnation;
        copy_printable(hello->name, ret_hello->name, sizeof ret_hello->name);
    }
    keel__hello__free_unpacked(hello, NULL);
    return fits ? 0 : KEEL_E_MALFORMED;
}

int handshake_read_refusal(struct keel_slice packed, char *ret_why, size_t size)
{
    Keel__Refusal *refusal = keel__refusal__unpack(NULL, packed.len, packed.data);

    if (refusal == NULL)
        return KEEL_E_MALFORMED;
    copy_printable(refusal->why, ret_why, size);
    keel__refusal__free_unpacked(refusal, NULL);
    return 0;
}

static const struct peer_member *find_member(const struct peer_options *self, uint64_t id)
{
    for (size_t i = 0; i < self->member_count; i++) {
        if (self->members[i].id == id && id != self->id)
            return &self->members[i];
    }
    return NULL;
}

const struct peer_member *handshake_check(const struct peer_options *self,
                                          const struct hello *hello,
                                          const struct peer_member *dialled, char *ret_why,
                                          size_t size)
{
    const struct peer_member *member = find_member(self, hello->id);

    if (hello->version != PEER_PROTOCOL_VERSION) {
        snprintf(ret_why, size,
                 "%s speaks version %d of the peer protocol, %s version %" PRIu32
                 ": install the same release of keelfs on both",
                 self->name, PEER_PROTOCOL_VERSION, hello->name, hello->version);
        return NULL;
    }
    if (hello->cluster_id != self->cluster_id) {
        snprintf(ret_why, size,
                 "%s belongs to cluster %016" PRIx64 ", %s to cluster %016" PRIx64
                 ": check --cluster-token, --initial-cluster and the data directory",
                 self->name, self->cluster_id, hello->name, hello->cluster_id);
        return NULL;
    }
    if (hello->to != self->id) {
        snprintf(
            ret_why, size,
            "%s answers at an address that is another member's for %s: check --initial-cluster",
            self->name, hello->name);
        return NULL;
    }
    if (member == NULL || strcmp(member->name, hello->name) != 0) {
        snprintf(ret_why, size, "%s is not a member of this cluster: add it first", hello->name);
        return NULL;
    }
    if (dialled != NULL ? member != dialled : strcmp(hello->name, self->name) > 0) {
        snprintf(ret_why, size,
                 "%s is not the one that was expected at this end: check --initial-cluster",
                 hello->name);
        return NULL;
    }
    return member;
}
