/* The files of /@keel: which there are, what they say, and the grammar of what is written to
 * members (settings: control_settings.c). Answered from local state without a barrier, so that they
 * can be read when there is no quorum. */
#include <inttypes.h>
#include <string.h>
#include <time.h>

#include "check.h"
#include "err.h"
#include "fs/view.h"

enum { NS_PER_US = 1000, NS_PER_S = 1000000000 };

const struct control_entry control_entries[] = {
    { "status", CONTROL_STATUS, 0444 },     { "members", CONTROL_MEMBERS, 0444 },
    { "alarms", CONTROL_ALARMS, 0400 },     { "settings", CONTROL_SETTINGS, 0600 },
    { "transfer", CONTROL_TRANSFER, 0200 }, { "compact", CONTROL_COMPACT, 0200 },
    { "snapshot", CONTROL_SNAPSHOT, 0400 }, { "defrag", CONTROL_DEFRAG, 0200 },
    { "check", CONTROL_CHECK, 0400 },       { NULL, CONTROL_NONE, 0 },
};

enum control_file control_find(struct keel_slice name)
{
    for (const struct control_entry *entry = control_entries; entry->name != NULL; entry++)
        if (keel_slice_equal(name, keel_slice_str(entry->name)))
            return entry->file;
    return CONTROL_NONE;
}

static const char *role_name(enum raft_role role)
{
    switch (role) {
    case RAFT_FOLLOWER:
        return "follower";
    case RAFT_PRECANDIDATE:
    case RAFT_CANDIDATE:
        return "candidate";
    case RAFT_LEADER:
        return "leader";
    case RAFT_LEARNER:
        return "learner";
    }
    return "unknown";
}

/* A member's name, its id while the table does not have it, or "none". */
static void member_name(struct keel_text *text, struct replica *r, uint64_t id)
{
    size_t count;
    const struct apply_member *members = apply_members(replica_apply(r), &count);

    for (size_t i = 0; i < count; i++) {
        if (members[i].id == id) {
            keel_text_printf(text, "%s", members[i].name);
            return;
        }
    }
    if (id == 0)
        keel_text_printf(text, "none");
    else
        keel_text_printf(text, "%016" PRIx64, id);
}

/* A moment of the replica's clock, as UTC. */
static void replica_time_text(struct keel_text *text, struct replica *r, uint64_t at_us)
{
    int64_t ago_us = (int64_t)(replica_now_us(r) - at_us);
    struct timespec now;

    KEEL_ASSERT(clock_gettime(CLOCK_REALTIME, &now) == 0);
    view_time_text(text, now.tv_sec * NS_PER_S + now.tv_nsec - ago_us * NS_PER_US);
}

static void quorum_text(struct keel_text *text, struct replica *r,
                        const struct replica_status *status)
{
    if (status->quorum) {
        keel_text_printf(text, "quorum: yes\n");
        return;
    }
    keel_text_printf(text, "quorum: no since ");
    replica_time_text(text, r, status->quorum_lost_us);
    keel_text_printf(text, "\n");
}

static void raft_text(struct keel_text *text, struct replica *r,
                      const struct replica_status *status)
{
    keel_text_printf(
        text, "role: %s\nleader: ", replica_is_removed(r) ? "removed" : role_name(status->role));
    member_name(text, r, status->leader);
    keel_text_printf(text,
                     "\nterm: %" PRIu64 "\ncommit_index: %" PRIu64 "\napplied_index: %" PRIu64,
                     status->term, status->commit_index, status->applied_index);
    keel_text_printf(text, "\nfirst_index: %" PRIu64 "\nlast_index: %" PRIu64, status->first_index,
                     status->last_index);
    keel_text_printf(text, "\npersisted_index: %" PRIu64 "\njoint: %s\n", status->persisted_index,
                     status->joint ? "yes" : "no");
    keel_text_printf(text, "snapshots_sent: %" PRIu64 "\nsnapshots_installed: %" PRIu64,
                     status->snapshots_sent, status->snapshots_installed);
    keel_text_printf(text, "\nreceiving_snapshot: %s\n", status->receiving_snapshot ? "yes" : "no");
}

static void store_text(struct keel_text *text, struct mvcc *m)
{
    struct keel_hash128 hash = mvcc_state_hash(m);

    keel_text_printf(text, "revision: %" PRIu64 "\ncompact_revision: %" PRIu64 "\n",
                     mvcc_revision(m), mvcc_compact_revision(m));
    keel_text_printf(text, "hash: %016" PRIx64 "%016" PRIx64 " at %" PRIu64 "\n", hash.high,
                     hash.low, mvcc_applied_index(m));
    keel_text_printf(text, "keys: %" PRIu64 "\nquota_used: %" PRIu64 "\n", mvcc_live_keys(m),
                     mvcc_quota_used(m));
}

/* Has a member another state than the others? */
static bool is_corrupt(struct replica *r)
{
    struct replica_check_report report;
    size_t count;
    const struct apply_member *members = apply_members(replica_apply(r), &count);

    replica_check_report(r, &report);
    for (size_t i = 0; i < count; i++)
        if (members[i].corrupt_index != 0)
            return true;
    return report.differ;
}

static void status_text(struct replica *r, const struct fs_options *options,
                        const struct fs_node_info *info, struct keel_text *text)
{
    struct replica_status status;

    replica_status(r, &status);
    keel_text_printf(text, "name: %s\nid: %016" PRIx64 "\ncluster_id: %016" PRIx64 "\n",
                     options->name, status.id, options->cluster_id);
    raft_text(text, r, &status);
    store_text(text, replica_mvcc(r));
    quorum_text(text, r, &status);
    bool corrupt = is_corrupt(r), nospace = apply_nospace(replica_apply(r));

    keel_text_printf(text, "alarms: %s%s%s%s\n", corrupt ? "CORRUPT" : "",
                     corrupt && nospace ? " " : "", nospace ? "NOSPACE" : "",
                     corrupt || nospace ? "" : "none");
    keel_text_printf(text, "stale: %s\nsession: %" PRIu64 "\n", status.stale ? "yes" : "no",
                     status.session);
    keel_text_printf(text, "waiting_writes: %zu\nwaiting_reads: %zu\n", status.proposals,
                     status.barriers);
    if (info->status != NULL)
        info->status(info->arg, text);
}

static const struct raft_peer_status *find_peer(const struct replica_status *status, uint64_t id)
{
    for (size_t i = 0; i < status->peer_count; i++)
        if (status->peers[i].id == id)
            return &status->peers[i];
    return NULL;
}

static const char *progress_name(const struct raft_peer_status *peer)
{
    if (!peer->connected)
        return "disconnected";
    switch (peer->state) {
    case RAFT_PROBE:
        return "probe";
    case RAFT_REPLICATE:
        return "replicate";
    case RAFT_SNAPSHOT:
        return "snapshot";
    }
    return "unknown";
}

/* What this node knows of a member. Only a leader knows how far the others are. */
static const char *member_state(const struct replica_status *status,
                                const struct fs_node_info *info,
                                const struct raft_peer_status *peer,
                                const struct apply_member *member)
{
    uint64_t id = member->id;

    if (member->corrupt_index != 0)
        return "corrupt";
    if (id == status->id)
        return role_name(status->role);
    if (status->role == RAFT_LEADER && peer != NULL)
        return progress_name(peer);
    if (id == status->leader)
        return "leader";
    return info->peer_connected != NULL && info->peer_connected(info->arg, id) ? "connected"
                                                                               : "disconnected";
}

static void progress_text(struct keel_text *text, const struct replica_status *status,
                          const struct raft_peer_status *peer)
{
    if (status->role != RAFT_LEADER || peer == NULL) {
        keel_text_printf(text, " match=- lag=-");
        return;
    }
    uint64_t lag = status->last_index > peer->match ? status->last_index - peer->match : 0;

    keel_text_printf(text, " match=%" PRIu64 " lag=%" PRIu64, peer->match, lag);
}

static void members_text(struct replica *r, const struct fs_node_info *info, struct keel_text *text)
{
    struct replica_status status;
    size_t count;
    const struct apply_member *members = apply_members(replica_apply(r), &count);

    replica_status(r, &status);
    for (size_t i = 0; i < count; i++) {
        const struct apply_member *member = &members[i];
        const struct raft_peer_status *peer = find_peer(&status, member->id);

        keel_text_printf(text, "name=%s id=%016" PRIx64 " address=%s voter=%s state=%s",
                         member->name, member->id, member->address, member->voter ? "yes" : "no",
                         member_state(&status, info, peer, member));
        progress_text(text, &status, peer);
        if (member->incarnation != 0)
            keel_text_printf(text, " incarnation=%016" PRIx64 "\n", member->incarnation);
        else
            keel_text_printf(text, " incarnation=-\n");
    }
}

static const char *answer_name(const struct replica_checked_member *member)
{
    if (!member->answered)
        return "unknown";
    return member->differs ? "differs" : "same";
}

static void check_text(struct replica *r, struct keel_text *text)
{
    struct replica_check_report report;

    replica_check_report(r, &report);
    for (size_t i = 0; i < report.count; i++) {
        const struct replica_checked_member *member = &report.members[i];

        keel_text_printf(text, "name=");
        member_name(text, r, member->id);
        keel_text_printf(text, " id=%016" PRIx64 " index=%" PRIu64 " state=%s hash=", member->id,
                         report.index, answer_name(member));
        if (member->answered)
            keel_text_printf(text, "%016" PRIx64 "%016" PRIx64 "\n", member->digest.high,
                             member->digest.low);
        else
            keel_text_printf(text, "-\n");
    }
}

static void corrupt_text(struct replica *r, struct keel_text *text)
{
    struct replica_check_report report;
    size_t count;
    const struct apply_member *members = apply_members(replica_apply(r), &count);

    for (size_t i = 0; i < count; i++)
        if (members[i].corrupt_index != 0)
            keel_text_printf(text,
                             "CORRUPT: the check at log index %" PRIu64 " found that the state of "
                             "%s is not that of the others; it has stopped. Keep a copy of its "
                             "data directory, remove it (keelctl members remove %s), and add it "
                             "again with an empty one\n",
                             members[i].corrupt_index, members[i].name, members[i].name);
    replica_check_report(r, &report);
    if (report.differ && !report.agreed)
        keel_text_printf(text,
                         "CORRUPT: the check at log index %" PRIu64 " found members with different "
                         "states, and no majority that agrees: keelctl check shows which. Take a "
                         "snapshot of each, compare, and restore the right one\n",
                         report.index);
}

static void alarms_text(struct replica *r, struct keel_text *text)
{
    const struct apply_settings *settings = apply_settings(replica_apply(r));

    corrupt_text(r, text);
    if (!apply_nospace(replica_apply(r)))
        return;
    keel_text_printf(text,
                     "NOSPACE: %" PRIu64 " of %" PRIu64 " bytes of the quota are used: delete "
                     "files, compact, or raise it (keelctl settings quota=SIZE)\n",
                     mvcc_quota_used(replica_mvcc(r)), settings->quota_bytes);
}

void control_text(enum control_file file, struct replica *r, const struct fs_options *options,
                  const struct fs_node_info *info, struct keel_text *text)
{
    switch (file) {
    case CONTROL_STATUS:
        status_text(r, options, info, text);
        break;
    case CONTROL_MEMBERS:
        members_text(r, info, text);
        break;
    case CONTROL_ALARMS:
        alarms_text(r, text);
        break;
    case CONTROL_CHECK:
        check_text(r, text);
        break;
    case CONTROL_SETTINGS:
        control_settings_text(apply_settings(replica_apply(r)), text);
        break;
    case CONTROL_TRANSFER:
    case CONTROL_COMPACT:
    case CONTROL_SNAPSHOT:
    case CONTROL_DEFRAG:
        break; /* have nothing to say */
    case CONTROL_NONE:
    case CONTROL_ROOT:
        KEEL_ASSERT(false && "not a file");
    }
}

/* ---- what is written ---- */

bool control_is_writable(enum control_file file)
{
    return file == CONTROL_MEMBERS || file == CONTROL_SETTINGS || file == CONTROL_TRANSFER ||
           file == CONTROL_COMPACT || file == CONTROL_DEFRAG;
}

enum { CHANGE_WORDS = 4 };

static bool parse_addition(char *const *words, size_t count, const struct fs_node_info *info,
                           struct keel_member_change *ret_change)
{
    bool voter = count == 4 && strcmp(words[3], "voter") == 0;

    if ((count != 3 && !voter) || !info->member_ok(info->arg, words[1], words[2]))
        return false;
    *ret_change = (struct keel_member_change){
        .verb = voter ? MEMBER_ADD_VOTER : MEMBER_ADD,
        .name = words[1],
        .address = words[2],
    };
    return true;
}

/* A line without words is no change, and not wrong either: its verb stays 0. */
static bool parse_change(char *line, const struct fs_node_info *info,
                         struct keel_member_change *ret_change)
{
    char *words[CHANGE_WORDS + 1], *save = NULL;
    size_t count = 0;

    for (char *word = strtok_r(line, " \t", &save); word != NULL && count <= CHANGE_WORDS;
         word = strtok_r(NULL, " \t", &save))
        words[count++] = word;
    *ret_change = (struct keel_member_change){ 0 };
    if (count == 0)
        return true;
    if (strcmp(words[0], "add") == 0)
        return parse_addition(words, count, info, ret_change);
    if (strcmp(words[0], "remove") == 0)
        ret_change->verb = MEMBER_REMOVE;
    else if (strcmp(words[0], "promote") == 0)
        ret_change->verb = MEMBER_PROMOTE;
    if (count != 2 || ret_change->verb == 0)
        return false;
    ret_change->name = words[1];
    return true;
}

int control_parse_changes(char *text, const struct fs_node_info *info,
                          struct keel_member_change ret_changes[KEEL_MEMBERS_MAX],
                          size_t *ret_count)
{
    struct keel_member_change change;
    char *save = NULL;
    size_t count = 0;

    for (char *line = strtok_r(text, "\n", &save); line != NULL;
         line = strtok_r(NULL, "\n", &save)) {
        if (!parse_change(line, info, &change))
            return KEEL_E_INVALID;
        if (change.verb == 0)
            continue;
        if (count == KEEL_MEMBERS_MAX)
            return KEEL_E_INVALID;
        ret_changes[count++] = change;
    }
    *ret_count = count;
    return count > 0 ? 0 : KEEL_E_INVALID;
}
