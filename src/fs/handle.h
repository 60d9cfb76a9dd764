/* Open files and directories: what a handle holds back, what it reads from, what it is bound to.
 * How it is committed is in commit.c.
 *
 * What a handle may hold back (docs/semantics.md), and until when:
 *
 *     truncation   O_TRUNC or ftruncate(fd, 0)    its first write, which replaces; fsync; its last
 * close creation     O_CREAT without O_EXCL         its first write; any other operation; its last
 * close; one second buffers      full ones, from offset 0 on    the first that isn't full or in
 * sequence; fsync; a close by the writer
 *
 * A handle is fresh while it began empty and nothing of it was committed: only then are its buffers
 * held back, and so the staged bytes always begin at offset 0. */
#ifndef FS_HANDLE_H
#define FS_HANDLE_H

#include <sys/types.h>

#include "fs/nodes.h"
#include "keel_limits.h"
#include "list.h"

enum handle_kind {
    HANDLE_FILE,     /* a live file, or one that lives on while it is open */
    HANDLE_TEXT,     /* @stat, @log, a file of /@keel: the text of when it was opened */
    HANDLE_PAST,     /* a file of @rev */
    HANDLE_SNAPSHOT, /* /@keel/snapshot */
    HANDLE_DIR,
};

enum truncation {
    TRUNCATION_NONE,
    TRUNCATION_PENDING, /* goes with the next write, or at the last close if nobody changed the
                           content meanwhile */
    TRUNCATION_WRITE,   /* goes with the next write only: an earlier one failed, or there was no
                           content to truncate */
};

/* Bytes staged by one user: shared by that user's handles. */
struct staged_account {
    struct staged_account *next;
    uid_t uid;
    uint32_t handles;
    size_t bytes;
};

struct staged {
    uint8_t *data;
    size_t len, capacity;
    struct staged_account *account; /* NULL while nothing is staged */
};

/* What is listed of a directory: the names as of one revision, then those that were created here
 * and are not committed. */
struct handle_listing {
    struct mvcc_key *dir;
    uint64_t at;
    bool past;           /* a @rev directory */
    uint64_t parent_ino; /* for ".." */
    uint64_t position;   /* entries given so far; 0 and 1 are "." and ".." */
    uint8_t last_len;
    uint8_t last[KEEL_NAME_MAX]; /* the last name given of the revision */
    bool at_end;                 /* of the revision's */
    struct keel_buf *extra;      /* packed: u64 ino, u8 length, name */
    size_t extra_offset;
};

struct fs_handle {
    struct keel_link link; /* in fs->handles */
    enum handle_kind kind;
    uint32_t refs;
    struct fs_node *node; /* the file */
    struct fs_node *via;  /* the view node that it was opened by; NULL: by the file itself */
    int flags;            /* of open */
    uid_t uid;            /* of the opener */
    pid_t opener;
    uint32_t committing; /* commits under way */

    bool fresh;
    bool exclusive; /* created with O_EXCL */
    bool failed;    /* bytes that were answered are lost: writing goes on failing */
    bool too_big;   /* the same: a piece of the new content was refused for its size */
    enum truncation truncation;
    struct mvcc_revision seen; /* revision that wrote the content at open, for the truncation */
    struct staged staged;
    pid_t writer; /* thread that wrote last */

    bool pinned; /* reading a run of one revision's content: */
    uint64_t pin_next;
    struct mvcc_content content; /* also HANDLE_PAST's */

    struct keel_link bound_link; /* in fs->bound while it keeps a lease */
    bool conditional;            /* commits only at mod_revision `condition` */
    bool binding;                /* the next commit binds the file: */
    bool hold;
    bool kept; /* a lease that this handle keeps alive: */
    bool lost;
    uint64_t condition, bind_ttl_ms, bind_lease, lease;

    struct keel_text text;
    struct handle_listing *listing;
};

/* ---- the one predicate: may this wait? ---- */

enum defer_what { DEFER_TRUNCATION, DEFER_CREATION, DEFER_BUFFER };

struct defer_buffer {
    uint64_t offset;
    size_t len;
    int flags; /* of the write: O_APPEND, O_SYNC … may have been set since open */
    uid_t uid;
    size_t uid_bytes; /* staged so far */
    size_t node_bytes;
    uint64_t size_limit; /* of a file */
};

/* buffer: for DEFER_BUFFER only. */
bool handle_may_defer(const struct fs_handle *h, enum defer_what what,
                      const struct defer_buffer *buffer);

/* Is its content, for itself, what it holds back, and nothing of what is committed? */
bool handle_begins_anew(const struct fs_handle *h);

/* ---- staged bytes ---- */

/* Lays a piece over what is staged, zeroes in a gap. The caller has checked offset + len against
 * KEEL_FILE_SIZE_MAX. */
void staged_put(struct staged *staged, uint64_t offset, struct keel_slice piece);
/* Moves the bytes out; `from` is empty afterwards. */
struct staged staged_take(struct staged *from);
void staged_free(struct staged *staged);

#endif
