/* Records of the past under today's permissions, and the text of @stat and @log. The names of views
 * are taken apart in names.c; their nodes and handles live with the operations. */
#include <inttypes.h>
#include <time.h>

#include "check.h"
#include "err.h"
#include "fs/view.h"

enum { NS_PER_S = 1000000000, NS_PER_MS = 1000000, MS_PER_S = 1000 };

void view_time_text(struct keel_text *text, int64_t time_ns)
{
    int64_t rest = time_ns % NS_PER_S;
    time_t seconds = (time_t)(time_ns / NS_PER_S) - (rest < 0);
    struct tm tm;
    char date[48];

    if (rest < 0)
        rest += NS_PER_S;
    KEEL_ASSERT(gmtime_r(&seconds, &tm) != NULL);
    KEEL_ASSERT(strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%S", &tm) > 0);
    keel_text_printf(text, "%s.%03dZ", date, (int)(rest / NS_PER_MS));
}

void view_lease_text(struct keel_text *text, uint64_t lease)
{
    if (lease == 0)
        keel_text_printf(text, "none");
    else
        keel_text_printf(text, "%016" PRIx64, lease);
}

uint64_t view_ttl_s(struct replica *r, uint64_t lease)
{
    uint64_t ms;

    if (replica_lease_remaining(r, lease, &ms) != 0)
        return 0;
    return ms / MS_PER_S + (ms % MS_PER_S != 0);
}

/* ---- permissions ---- */

struct last_put {
    struct mvcc_revision revision;
    bool found;
};

static int last_put_step(void *arg, struct mvcc_revision revision, bool tombstone)
{
    struct last_put *last = arg;

    last->found = !tombstone;
    last->revision = revision;
    return last->found;
}

/* The newest kept record of a key that is gone. */
static int last_record(struct mvcc *m, const struct mvcc_key *key, struct mvcc_record *ret_record)
{
    struct last_put last = { .found = false };

    mvcc_history(m, key, last_put_step, &last);
    return last.found ? mvcc_get_revision(m, key, last.revision, ret_record) : KEEL_E_NOTFOUND;
}

/* What bounds every view of a key: the record that it has now, or its last one, for its owner
 * alone. */
static int bounds_of(struct mvcc *m, const struct mvcc_key *key, struct mvcc_record *ret_bounds)
{
    int err = mvcc_get(m, key, 0, ret_bounds);

    if (err != KEEL_E_NOTFOUND)
        return err;
    err = last_record(m, key, ret_bounds);
    if (err == 0)
        ret_bounds->mode &= 0700;
    return err;
}

/* The mode of a past record: what both it and the bounds allow. The owner shown is today's. If the
 * path carries another inode of another owner by now, then that owner was a stranger to the old
 * one: whoever could replace a secret file by one of his own must not get to read the secret in a
 * view.
 *
 *     then root 0600, now root 0644 (chmod)                    -> root 0600
 *     then root 0600, now alice 0600, same inode (chown)       -> alice 0600
 *     then root 0600, now alice 0644, another inode (mv)       -> alice 0000
 *     then root 0644, now alice 0644, another inode (mv)       -> alice 0444 */
static uint16_t view_mode(const struct mvcc_record *then, const struct mvcc_record *bounds)
{
    unsigned mode = then->mode & bounds->mode;
    unsigned strangers = then->mode & (then->mode >> 3) & 07; /* group and others both have it */

    if (then->ino == bounds->ino)
        return (uint16_t)mode;
    if (then->uid != bounds->uid)
        mode &= strangers << 6 | 077;
    if (then->gid != bounds->gid)
        mode &= strangers << 3 | 0707;
    return (uint16_t)(mode & 0777);
}

int view_record(struct mvcc *m, const struct mvcc_key *key, uint64_t at,
                struct mvcc_record *ret_record)
{
    struct mvcc_record then, bounds;
    int err = mvcc_get(m, key, at, &then);

    if (err == 0)
        err = bounds_of(m, key, &bounds);
    if (err != 0)
        return err;
    then.mode = view_mode(&then, &bounds);
    then.uid = bounds.uid;
    then.gid = bounds.gid;
    *ret_record = then;
    return 0;
}

int view_owner(struct mvcc *m, const struct mvcc_key *key, struct mvcc_record *ret_record)
{
    struct mvcc_record bounds;
    int err = bounds_of(m, key, &bounds);

    if (err != 0)
        return err;
    bounds.mode &= 0444;
    *ret_record = bounds;
    return 0;
}

/* ---- text ---- */

int view_stat_text(struct replica *r, const struct mvcc_key *key, struct keel_text *text)
{
    struct mvcc_record record;
    int err = mvcc_get(replica_mvcc(r), key, 0, &record);

    if (err != 0)
        return err;
    keel_text_printf(text, "revision: %" PRIu64 "\ncreate_revision: %" PRIu64 "\nversion: %" PRIu64,
                     record.revision.main, record.create_revision, record.version);
    keel_text_printf(text, "\nlease: ");
    view_lease_text(text, record.lease);
    if (record.lease != 0)
        keel_text_printf(text, "\nttl: %" PRIu64, view_ttl_s(r, record.lease));
    else
        keel_text_printf(text, "\nttl: none");
    keel_text_printf(text, "\nsize: %" PRIu32 "\n", record.content.length);
    return 0;
}

struct log_walk {
    struct mvcc *mvcc;
    const struct mvcc_key *key;
    struct keel_text *text;
    uint64_t lines;
};

static void log_line(struct keel_text *text, const struct mvcc_record *record)
{
    keel_text_printf(text, "revision=%" PRIu64, record->revision.main);
    if (record->tombstone)
        keel_text_printf(text, " version=0 type=delete size=0 mode=0000 time=");
    else
        keel_text_printf(text, " version=%" PRIu64 " type=put size=%" PRIu32 " mode=%04o time=",
                         record->version, record->content.length, record->mode);
    view_time_text(text, record->ctime_ns);
    keel_text_printf(text, " lease=");
    view_lease_text(text, record->lease);
    keel_text_printf(text, "\n");
}

static int log_step(void *arg, struct mvcc_revision revision, bool tombstone)
{
    struct log_walk *walk = arg;
    struct mvcc_record record;

    if (++walk->lines > KEEL_LOG_LINES_MAX)
        return 0; /* only counted */
    int err = mvcc_get_revision(walk->mvcc, walk->key, revision, &record);

    if (err != 0)
        return err;
    KEEL_ASSERT(record.tombstone == tombstone);
    log_line(walk->text, &record);
    return 0;
}

int view_log_text(struct replica *r, const struct mvcc_key *key, struct keel_text *text)
{
    struct log_walk walk = { .mvcc = replica_mvcc(r), .key = key, .text = text };
    int err = mvcc_history(walk.mvcc, key, log_step, &walk);

    if (err != 0)
        return err;
    if (walk.lines == 0)
        return KEEL_E_NOTFOUND;
    if (walk.lines > KEEL_LOG_LINES_MAX)
        keel_text_printf(text, "# %" PRIu64 " more\n", walk.lines - KEEL_LOG_LINES_MAX);
    return 0;
}
