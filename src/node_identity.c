/* Who this node is: out of its data directory, or new, as a founder of a cluster (--bootstrap) or
 * as a member that was added to one (--join). */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "check.h"
#include "err.h"
#include "log.h"
#include "node_internal.h"

enum {
    JOIN_ATTEMPT_MS = 2000,
    JOIN_PAUSE_MS = 200,
    JOIN_COMPLAIN_US = 10000000, /* one line in the log for so long a time without an answer */
};

uint64_t node_random(void)
{
    uint64_t x = 0;

    while (x == 0)
        if (getrandom(&x, sizeof x, 0) != (ssize_t)sizeof x)
            keel_fatal("no randomness: %s", strerror(errno));
    return x;
}

/* ---- members ---- */

/* --initial-cluster into node->founders. */
static int parse_members(struct node *node)
{
    char why[512];
    int err = founders_parse(node->options->initial_cluster, node->identity.token, &node->founders,
                             why, sizeof why);

    if (err != 0)
        log_error("%s", why);
    return err;
}

static int check_members(const struct node *node)
{
    char why[512];
    int err = founders_check(&node->founders, node->identity.name, why, sizeof why);

    if (err != 0)
        log_error("%s", why);
    return err;
}

size_t node_members(const struct node *node, struct peer_member ret[KEEL_MEMBERS_MAX],
                    uint64_t *ret_config_index)
{
    const struct identity *identity = &node->identity;
    size_t count;
    const struct apply_member *members = apply_members(node->apply, &count);

    apply_config(node->apply, ret_config_index);
    if (*ret_config_index == 0) {
        for (size_t i = 0; i < identity->member_count; i++)
            ret[i] = (struct peer_member){ identity->members[i].id, identity->members[i].name,
                                           identity->members[i].address };
        return identity->member_count;
    }
    for (size_t i = 0; i < count; i++)
        ret[i] = (struct peer_member){ members[i].id, members[i].name, members[i].address };
    return count;
}

/* ---- a new cluster ---- */

static int found_cluster(struct node *node)
{
    const struct node_options *o = node->options;
    struct identity *identity = &node->identity;

    if (o->initial_cluster == NULL) {
        log_error("--bootstrap needs --initial-cluster n1=HOST:PORT,n2=HOST:PORT,…");
        return KEEL_E_INVALID;
    }
    snprintf(identity->name, sizeof identity->name, "%s", o->name);
    snprintf(identity->token, sizeof identity->token, "%s",
             o->cluster_token != NULL ? o->cluster_token : DEFAULT_TOKEN);
    identity->cluster_id = identity_cluster_id(identity->token, o->initial_cluster);
    identity->id = identity_node_id(identity->token, o->name);
    identity->incarnation = node_random();
    node->identity_is_new = true;
    int err = parse_members(node);

    return err != 0 ? err : check_members(node);
}

/* ---- a cluster that there is ---- */

static int take_welcome(struct node *node, const struct peer_welcome *welcome, uint64_t incarnation)
{
    const struct node_options *o = node->options;
    struct identity *identity = &node->identity;

    if (o->cluster_token != NULL && strcmp(o->cluster_token, welcome->token) != 0) {
        log_error("%s is a member of the cluster '%s', not of '%s': correct --join or "
                  "--cluster-token",
                  o->join, welcome->token, o->cluster_token);
        return KEEL_E_INVALID;
    }
    *identity = (struct identity){
        .cluster_id = welcome->cluster_id,
        .id = welcome->id,
        .incarnation = incarnation,
        .member_count = welcome->member_count,
    };
    snprintf(identity->name, sizeof identity->name, "%s", o->name);
    snprintf(identity->token, sizeof identity->token, "%s", welcome->token);
    for (size_t i = 0; i < welcome->member_count; i++) {
        struct identity_member *m = &identity->members[i];

        m->id = welcome->members[i].id;
        if (!keel_member_name_ok(welcome->members[i].name) ||
            !node_address_ok(welcome->members[i].address)) {
            log_error("%s has answered with members that cannot be: is it of another version?",
                      o->join);
            return KEEL_E_MALFORMED;
        }
        snprintf(m->name, sizeof m->name, "%s", welcome->members[i].name);
        snprintf(m->address, sizeof m->address, "%s", welcome->members[i].address);
    }
    node->identity_is_new = true;
    log_info("joined the cluster '%s' as %s (id %016" PRIx64 "), from %s", identity->token,
             identity->name, identity->id, o->join);
    return 0;
}

static void complain(const char *address, const char *why, uint64_t *last_us)
{
    uint64_t now = node_now_us();

    if (*last_us != 0 && now - *last_us < JOIN_COMPLAIN_US)
        return;
    *last_us = now;
    log_warning("--join %s: %s; trying again", address, why);
}

/* Asks until somebody answers. A signal that ends the process finds nothing to be put in order. */
static int join_cluster(struct node *node)
{
    const struct node_options *o = node->options;
    const struct timespec pause = { .tv_nsec = JOIN_PAUSE_MS * 1000000L };
    uint64_t incarnation = node_random(), complained_us = 0;
    struct peer_welcome welcome;
    char why[512];
    int err;

    while ((err = peer_join(o->join, o->name, incarnation, JOIN_ATTEMPT_MS, &welcome, why,
                            sizeof why)) == KEEL_E_TIMEDOUT) {
        complain(o->join, why, &complained_us);
        nanosleep(&pause, NULL);
    }
    if (err != 0) {
        log_error("--join %s: %s", o->join, why);
        return err == KEEL_E_INVALID ? err : KEEL_E_PERM;
    }
    err = take_welcome(node, &welcome, incarnation);
    peer_welcome_free(&welcome);
    return err;
}

/* ---- one that is there ---- */

static int check_identity(struct node *node)
{
    const struct node_options *o = node->options;

    if (removal_is_noted(node->dir_fd)) {
        log_error("%s", NODE_REMOVED);
        return KEEL_E_REMOVED;
    }
    if (strcmp(o->name, node->identity.name) != 0) {
        log_error("the data directory %s belongs to node %s, not to %s: correct --name or "
                  "--data-dir",
                  o->data_dir, node->identity.name, o->name);
        return KEEL_E_INVALID;
    }
    if (o->cluster_token != NULL && strcmp(o->cluster_token, node->identity.token) != 0) {
        log_error("the data directory %s belongs to the cluster '%s', not to '%s': correct "
                  "--cluster-token or --data-dir",
                  o->data_dir, node->identity.token, o->cluster_token);
        return KEEL_E_INVALID;
    }
    if (o->bootstrap)
        log_info("--bootstrap is ignored: the data directory has a cluster already");
    if (o->join != NULL)
        log_info("--join is ignored: the data directory has a cluster already");
    if (o->initial_cluster != NULL &&
        identity_cluster_id(node->identity.token, o->initial_cluster) != node->identity.cluster_id)
        log_warning("--initial-cluster differs from the one at bootstrap and is ignored: "
                    "membership comes from the data directory");
    return o->initial_cluster != NULL ? parse_members(node) : 0;
}

static int make_identity(struct node *node)
{
    const struct node_options *o = node->options;

    if (o->bootstrap)
        return found_cluster(node);
    if (o->join != NULL)
        return join_cluster(node);
    log_error("the data directory %s is empty: --bootstrap starts a new cluster in it, --join "
              "HOST:PORT makes it that of a member which was added to one; if this node was a "
              "member before, its data are lost: remove it from the cluster and add it again",
              o->data_dir);
    return KEEL_E_INVALID;
}

int node_open_data_dir(struct node *node)
{
    const struct node_options *o = node->options;
    char why[512];
    int err =
        data_dir_lock(o->data_dir, o->bootstrap || o->join != NULL, &node->dir_fd, why, sizeof why);

    if (err == 0) {
        err = identity_load(node->dir_fd, &node->identity, why, sizeof why);
        if (err == 0)
            return check_identity(node);
        if (err == KEEL_E_NOTFOUND)
            return make_identity(node);
    }
    log_error("%s", why);
    return err;
}
