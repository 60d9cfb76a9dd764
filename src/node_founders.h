/* Who founds a cluster: the list of --initial-cluster, for a node that does (--bootstrap) and for
 * whoever makes the data directories of a new cluster out of a snapshot. */
#ifndef KEEL_NODE_FOUNDERS_H
#define KEEL_NODE_FOUNDERS_H

#include "apply.h"

/* --cluster-token, when it is not given. */
#define DEFAULT_TOKEN "keelfs"

struct founders {
    struct apply_member members[KEEL_MEMBERS_MAX]; /* all of them voters */
    size_t count;
    char *text; /* what their strings point into */
};

/* One for a member, and one that can be dialled. */
bool node_address_ok(const char *address);

/* "n1=HOST:PORT,n2=HOST:PORT". KEEL_E_INVALID, with ret_why: not such a list. */
int founders_parse(const char *list, const char *token, struct founders *ret_founders,
                   char *ret_why, size_t why_size);
/* KEEL_E_INVALID: a name or an address is there twice, or the node `name` is not. */
int founders_check(const struct founders *founders, const char *name, char *ret_why,
                   size_t why_size);
void founders_free(struct founders *founders);

#endif
