/* The list of --initial-cluster, and what an address must be that is dialled. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "data_dir.h"
#include "err.h"
#include "node_founders.h"
#include "peer/peer.h"

/* What passes for a name or an address can be kept. */
_Static_assert(sizeof(((struct identity *)0)->name) == MEMBER_NAME_SIZE &&
                   sizeof(((struct identity_member *)0)->name) == MEMBER_NAME_SIZE &&
                   sizeof(((struct identity_member *)0)->address) == MEMBER_ADDRESS_SIZE,
               "the identity file has other limits than the peers' protocol");

bool node_address_ok(const char *address)
{
    char host[256], port[32];

    return keel_member_address_ok(address) &&
           peer_address_split(address, host, sizeof host, port, sizeof port) == 0;
}

static int take_part(struct founders *founders, char *part, const char *token, char *ret_why,
                     size_t why_size)
{
    char *equals = strchr(part, '=');

    if (equals != NULL)
        *equals = '\0';
    if (equals == NULL || !keel_member_name_ok(part) || !node_address_ok(equals + 1)) {
        snprintf(ret_why, why_size, "--initial-cluster: '%s' is not NAME=HOST:PORT", part);
        return KEEL_E_INVALID;
    }
    if (founders->count == KEEL_MEMBERS_MAX) {
        snprintf(ret_why, why_size, "--initial-cluster: at most %d members", KEEL_MEMBERS_MAX);
        return KEEL_E_INVALID;
    }
    founders->members[founders->count++] = (struct apply_member){
        .id = identity_node_id(token, part),
        .name = part,
        .address = equals + 1,
        .voter = true,
    };
    return 0;
}

int founders_parse(const char *list, const char *token, struct founders *ret_founders,
                   char *ret_why, size_t why_size)
{
    char *save = NULL;
    int err = 0;

    *ret_founders = (struct founders){ .text = keel_strdup(list) };
    for (char *part = strtok_r(ret_founders->text, ",", &save); part != NULL && err == 0;
         part = strtok_r(NULL, ",", &save))
        err = take_part(ret_founders, part, token, ret_why, why_size);
    if (err != 0)
        founders_free(ret_founders);
    return err;
}

int founders_check(const struct founders *founders, const char *name, char *ret_why,
                   size_t why_size)
{
    const struct apply_member *m = founders->members;
    bool there = false;

    for (size_t i = 0; i < founders->count; i++) {
        there = there || strcmp(m[i].name, name) == 0;
        for (size_t j = 0; j < i; j++)
            if (strcmp(m[i].name, m[j].name) == 0 || strcmp(m[i].address, m[j].address) == 0 ||
                m[i].id == m[j].id) {
                snprintf(ret_why, why_size,
                         "--initial-cluster: %s and %s have the same name or address", m[j].name,
                         m[i].name);
                return KEEL_E_INVALID;
            }
    }
    if (there)
        return 0;
    snprintf(ret_why, why_size,
             "--initial-cluster does not name this node (%s): add %s=HOST:PORT to it", name, name);
    return KEEL_E_INVALID;
}

void founders_free(struct founders *founders)
{
    free(founders->text);
    *founders = (struct founders){ 0 };
}
