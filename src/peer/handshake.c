/* Who is who on a new connection. No socket here. The incarnation is checked by the pool, since the
 * record of it is replicated state that only the owner of the pool can look up. */
#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

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
    hello.config_index = self->config_index;
    msg->data = keel_buf_new(keel__hello__get_packed_size(&hello));
    keel__hello__pack(&hello, msg->data->data);
    return msg;
}

struct keel_message *handshake_refusal(enum peer_refusal kind, const char *why)
{
    struct keel_message *msg = keel_message_new(MESSAGE_REFUSAL);
    Keel__Refusal refusal = KEEL__REFUSAL__INIT;

    refusal.why = (char *)(uintptr_t)why;
    refusal.kind = kind;
    msg->data = keel_buf_new(keel__refusal__get_packed_size(&refusal));
    keel__refusal__pack(&refusal, msg->data->data);
    return msg;
}

struct keel_message *handshake_join(const char *name, uint64_t incarnation)
{
    struct keel_message *msg = keel_message_new(MESSAGE_JOIN);
    Keel__Join join = KEEL__JOIN__INIT;

    join.version = PEER_PROTOCOL_VERSION;
    join.name = (char *)(uintptr_t)name;
    join.incarnation = incarnation;
    msg->data = keel_buf_new(keel__join__get_packed_size(&join));
    keel__join__pack(&join, msg->data->data);
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
        ret_hello->config_index = hello->config_index;
        copy_printable(hello->name, ret_hello->name, sizeof ret_hello->name);
    }
    keel__hello__free_unpacked(hello, NULL);
    return fits ? 0 : KEEL_E_MALFORMED;
}

int handshake_read_refusal(struct keel_slice packed, enum peer_refusal *ret_kind, char *ret_why,
                           size_t size)
{
    Keel__Refusal *refusal = keel__refusal__unpack(NULL, packed.len, packed.data);

    if (refusal == NULL)
        return KEEL_E_MALFORMED;
    copy_printable(refusal->why, ret_why, size);
    *ret_kind = refusal->kind <= PEER_REFUSAL_REMOVED ? (enum peer_refusal)refusal->kind
                                                      : PEER_REFUSAL_OTHER;
    keel__refusal__free_unpacked(refusal, NULL);
    return 0;
}

int handshake_read_join(struct keel_slice packed, struct join *ret_join)
{
    Keel__Join *join = keel__join__unpack(NULL, packed.len, packed.data);

    if (join == NULL)
        return KEEL_E_MALFORMED;
    bool fits = join->name[0] != '\0' && strlen(join->name) < sizeof ret_join->name;

    if (fits) {
        ret_join->version = join->version;
        ret_join->incarnation = join->incarnation;
        copy_printable(join->name, ret_join->name, sizeof ret_join->name);
    }
    keel__join__free_unpacked(join, NULL);
    return fits ? 0 : KEEL_E_MALFORMED;
}

/* A copy; NULL: empty, or does not fit. */
static char *copy_fitting(const char *text, size_t size)
{
    return text[0] != '\0' && strlen(text) < size ? keel_strdup(text) : NULL;
}

static int copy_welcome(const Keel__Welcome *from, struct peer_welcome *ret)
{
    if (from->cluster_id == 0 || from->id == 0 || from->n_members > KEEL_MEMBERS_MAX)
        return KEEL_E_MALFORMED;
    ret->cluster_id = from->cluster_id;
    ret->id = from->id;
    ret->token = copy_fitting(from->token, KEEL_FRAME_BYTES);
    ret->member_count = from->n_members;
    bool whole = ret->token != NULL;

    for (size_t i = 0; i < from->n_members; i++) {
        struct peer_member *member = &ret->members[i];

        member->id = from->members[i]->id;
        member->name = copy_fitting(from->members[i]->name, MEMBER_NAME_SIZE);
        member->address = copy_fitting(from->members[i]->address, MEMBER_ADDRESS_SIZE);
        whole = whole && member->id != 0 && member->name != NULL && member->address != NULL;
    }
    return whole ? 0 : KEEL_E_MALFORMED;
}

int handshake_read_welcome(struct keel_slice packed, struct peer_welcome *ret_welcome)
{
    Keel__Welcome *welcome = keel__welcome__unpack(NULL, packed.len, packed.data);

    *ret_welcome = (struct peer_welcome){ 0 };
    if (welcome == NULL)
        return KEEL_E_MALFORMED;
    int err = copy_welcome(welcome, ret_welcome);

    keel__welcome__free_unpacked(welcome, NULL);
    return err;
}

void peer_welcome_free(struct peer_welcome *welcome)
{
    free(welcome->token);
    for (size_t i = 0; i < welcome->member_count; i++) {
        free((char *)(uintptr_t)welcome->members[i].name);
        free((char *)(uintptr_t)welcome->members[i].address);
    }
    *welcome = (struct peer_welcome){ 0 };
}

bool handshake_check_version(const char *self, const char *name, uint32_t version, char *ret_why,
                             size_t size)
{
    if (version == PEER_PROTOCOL_VERSION)
        return true;
    snprintf(ret_why, size,
             "%s speaks version %d of the peer protocol, %s version %" PRIu32
             ": install the same release of keelfs on both",
             self, PEER_PROTOCOL_VERSION, name, version);
    return false;
}

static const struct peer_member *find_member(const struct peer_options *self, uint64_t id)
{
    for (size_t i = 0; i < self->member_count; i++) {
        if (self->members[i].id == id && id != self->id)
            return &self->members[i];
    }
    return NULL;
}

/* Not in our configuration. If it knows a later one, it may be in that. */
static enum handshake_verdict check_unknown(const struct peer_options *self,
                                            const struct hello *hello, char *ret_why, size_t size)
{
    if (hello->id == 0 || hello->id == self->id || hello->config_index == 0) {
        snprintf(ret_why, size, "%s is not a member of this cluster: add it first", hello->name);
        return HANDSHAKE_REFUSED;
    }
    if (hello->config_index > self->config_index)
        return HANDSHAKE_GUEST;
    snprintf(ret_why, size, "%s has been removed from the cluster", hello->name);
    return HANDSHAKE_REMOVED;
}

enum handshake_verdict handshake_check(const struct peer_options *self, const struct hello *hello,
                                       uint64_t dialled, char *ret_why, size_t size)
{
    const struct peer_member *member = find_member(self, hello->id);

    if (!handshake_check_version(self->name, hello->name, hello->version, ret_why, size))
        return HANDSHAKE_REFUSED;
    if (hello->cluster_id != self->cluster_id) {
        snprintf(ret_why, size,
                 "%s belongs to cluster %016" PRIx64 ", %s to cluster %016" PRIx64
                 ": check --cluster-token, --initial-cluster and the data directory",
                 self->name, self->cluster_id, hello->name, hello->cluster_id);
        return HANDSHAKE_REFUSED;
    }
    if (hello->to != self->id) {
        snprintf(
            ret_why, size,
            "%s answers at an address that is another member's for %s: check --initial-cluster",
            self->name, hello->name);
        return HANDSHAKE_REFUSED;
    }
    if (dialled != 0 && hello->id != dialled) {
        snprintf(ret_why, size,
                 "%s is not the one that was expected at this end: check --initial-cluster",
                 hello->name);
        return HANDSHAKE_REFUSED;
    }
    if (member == NULL)
        return check_unknown(self, hello, ret_why, size);
    if (strcmp(member->name, hello->name) != 0) {
        snprintf(ret_why, size, "%s is not a member of this cluster: add it first", hello->name);
        return HANDSHAKE_REFUSED;
    }
    return HANDSHAKE_MEMBER;
}
