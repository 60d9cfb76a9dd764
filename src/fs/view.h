/* What views contain, apart from FUSE: text of @stat, @log and the files of /@keel, records of the
 * past under today's permissions, computed extended attributes. Reads local state; the caller has
 * taken the barrier. */
#ifndef FS_VIEW_H
#define FS_VIEW_H

#include "fs/fs.h"
#include "fs/names.h"

/* The record of `key` at main revision `at`, as a view may show it: mode intersected with what the
 * same path carries now, today's owner (one who is not the old owner, and put another inode there,
 * has no more than a stranger had); a path that is gone: last owner and mode & 0700 (owner and root
 * only). KEEL_E_NOTFOUND, KEEL_E_STALE as mvcc_get. */
int view_record(struct mvcc *m, const struct mvcc_key *key, uint64_t at,
                struct mvcc_record *ret_record);

/* Appends UTC as 2026-11-29T18:00:00.123Z. */
void view_time_text(struct keel_text *text, int64_t time_ns);
/* Appends 16 hex digits; 0: "none". */
void view_lease_text(struct keel_text *text, uint64_t lease);
/* Seconds left, rounded up; 0 when the lease is gone. */
uint64_t view_ttl_s(struct replica *r, uint64_t lease);

/* "name: value" lines: revision, create_revision, version, lease, ttl, size. `key` may be gone:
 * KEEL_E_NOTFOUND. */
int view_stat_text(struct replica *r, const struct mvcc_key *key, struct keel_text *text);

/* One line for each kept revision, newest first (docs/semantics.md has the format), at most
 * KEEL_LOG_LINES_MAX, then "# N more". */
int view_log_text(struct replica *r, const struct mvcc_key *key, struct keel_text *text);

/* Owner and mode of a text view of a key (0444 of what may be read now; gone: last owner). */
int view_owner(struct mvcc *m, const struct mvcc_key *key, struct mvcc_record *ret_record);

/* Computed attributes of a live key, by name ("user.keel.revision" …); appends the value.
 * KEEL_E_NOATTR: no such attribute (or no lease); KEEL_E_NOTSUPPORTED: not in the user.* namespace;
 * KEEL_E_NOTFOUND: the key is gone. */
int xattr_get(struct replica *r, const struct mvcc_key *key, const char *name,
              struct keel_text *text);
/* Their names, NUL-terminated one after another, for -o list_xattr. */
void xattr_list(struct replica *r, const struct mvcc_key *key, struct keel_text *text);
/* The error for setting or removing an attribute by name in this version. */
int xattr_set_error(const char *name);

/* The files of /@keel. control_find looks in there; CONTROL_ROOT is the directory itself, for the
 * caller's use. */
enum control_file {
    CONTROL_NONE,
    CONTROL_ROOT,
    CONTROL_STATUS,
    CONTROL_ALARMS,
    CONTROL_MEMBERS,  /* root writes changes to it */
    CONTROL_SETTINGS, /* the same */
    CONTROL_TRANSFER, /* only to be written */
    CONTROL_COMPACT,  /* the same */
    CONTROL_DEFRAG,   /* the same */
    CONTROL_SNAPSHOT, /* no text: op_snapshot.c */
    CONTROL_CHECK,    /* the check is made when it is opened */
};

struct control_entry {
    const char *name;
    enum control_file file;
    uint16_t mode;
};

/* Entries of the /@keel directory, ended by a NULL name. */
extern const struct control_entry control_entries[];
enum control_file control_find(struct keel_slice name);
void control_text(enum control_file file, struct replica *r, const struct fs_options *options,
                  const struct fs_node_info *info, struct keel_text *text);

bool control_is_writable(enum control_file file);
/* What is written to /@keel/members, a change a line: "add NAME HOST:PORT [voter]", "remove NAME",
 * "promote NAME". The text is cut up, and the changes point into it; additions have no id yet.
 * KEEL_E_INVALID: anything else, nothing, or more than KEEL_MEMBERS_MAX. */
int control_parse_changes(char *text, const struct fs_node_info *info,
                          struct keel_member_change ret_changes[KEEL_MEMBERS_MAX],
                          size_t *ret_count);

/* ---- control_settings.c ---- */

void control_settings_text(const struct apply_settings *settings, struct keel_text *text);
/* What is written to /@keel/settings, lines or words "NAME=NUMBER": what is not named stays 0. The
 * text is cut up. KEEL_E_INVALID: anything else, nothing, a name twice, or out of range. */
int control_parse_settings(char *text, const struct fs_options *options,
                           struct apply_settings *ret_changes);
/* One decimal number and white space. KEEL_E_INVALID. */
int control_parse_revision(char *text, uint64_t *ret_revision);

#endif
