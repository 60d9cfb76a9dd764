/* See sample.h. */
#include "sample.h"

#include <inttypes.h>
#include <stdio.h>

#include "err.h"
#include "hash.h"
#include "mvcc/kv.h"
#include "world.h"

/* ---- what is in it ---- */

static void write_history(struct world *w)
{
    make_dir(w, "d");
    make_dir(w, "d/e");
    make_file(w, "d/a", "first");
    rewrite(w, ino_of(w, "d/a"), "second");
    remove_path(w, "d/a", false);
    make_file(w, "d/a", "another generation");
    make(w, "d/link", KEEL__KIND__SYMLINK, "e/target", 0);
    make(w, "d/e/leased", KEEL__KIND__FILE, "as long as the lease", 5000);
    make(w, "gone", KEEL__KIND__FILE, SAMPLE_GARBAGE, 7000);
    revoke_lease(w, w->ahead.outcome.result.lease);
    make_file(w, "shared", "content of several records");
    change_mode(w, ino_of(w, "shared"), 0600);
    move(w, "shared", "d/e/moved");
    make_file(w, "empty", "");
    make_dir(w, "old");
    remove_path(w, "old", true);
    rewrite(w, ino_of(w, "d/a"), "third");
}

struct kv *sample_new(void)
{
    struct world *w;
    struct kv *kv;

    reload_setup((void **)&w);
    w->together = false;
    write_history(w);
    set_quota(w, 1 << 20);
    assert_int_equal(compact(w, mvcc_revision(w->ahead.mvcc) - 4), 0);
    assert_true(compact_step(w, 2) > 0);
    assert_true(mvcc_has_garbage(w->ahead.mvcc));
    node_checkpoint(&w->ahead);
    kv = w->ahead.kv;
    w->ahead.kv = kv_mem_new(); /* for the end of the world */
    reload_teardown((void **)&w);
    return kv;
}

/* ---- opening ---- */

static int open_apply(struct opened *o, char *ret_why, size_t why_size)
{
    uint64_t config_index = 0;
    int err = apply_new(o->mvcc, &o->apply);

    mvcc_read_end(o->mvcc);
    if (err == 0) {
        apply_config(o->apply, &config_index);
        if (config_index > 0)
            return 0;
        apply_free(o->apply);
        err = KEEL_E_CORRUPT;
    }
    snprintf(ret_why, why_size, "the cluster's state");
    return err;
}

int sample_open(struct kv *kv, struct opened *ret_opened, char *ret_why, size_t why_size)
{
    int err = mvcc_open(kv, &ret_opened->mvcc, ret_why, why_size);

    if (err != 0)
        return err;
    err = open_apply(ret_opened, ret_why, why_size);
    if (err != 0)
        mvcc_close(ret_opened->mvcc);
    return err;
}

void sample_close(struct opened *o)
{
    apply_free(o->apply);
    mvcc_close(o->mvcc);
}

/* ---- what it says ---- */

static void say_error(int err, struct keel_text *text)
{
    if (err == KEEL_E_CORRUPT)
        keel_text_printf(text, SAMPLE_DAMAGED "\n");
    else
        keel_text_printf(text, "error: %s\n", keel_strerror(err));
}

static void say_record(struct mvcc *m, const struct mvcc_record *r, struct keel_text *text)
{
    struct keel_slice bytes;
    int err = mvcc_read(m, &r->content, &bytes);

    if (err != 0) {
        say_error(err, text);
        return;
    }
    keel_text_printf(text,
                     "%" PRIu64 ".%u kind %d%s, inode %" PRIu64
                     ", mode %o, owner %u:%u, lease %" PRIu64 ", created %" PRIu64
                     ", version %" PRIu64 ", times %" PRId64 " %" PRId64 " %" PRId64 " %" PRId64
                     ", content %" PRIu64 ".%u of %zu bytes %016" PRIx64 "\n",
                     r->revision.main, r->revision.sub, (int)r->kind, r->tombstone ? " gone" : "",
                     r->ino, r->mode, r->uid, r->gid, r->lease, r->create_revision, r->version,
                     r->atime_ns, r->mtime_ns, r->ctime_ns, r->btime_ns, r->content.at.main,
                     r->content.at.sub, bytes.len, keel_hash64(bytes));
}

/* Of the key itself, and of what was in it. */
static void say_at(struct mvcc *m, struct mvcc_key *key, uint64_t at, struct keel_text *text)
{
    struct keel_slice after = keel_slice_of(NULL, 0);
    struct mvcc_record record;
    struct mvcc_key *child;
    int err = mvcc_get(m, key, at, &record);

    keel_text_printf(text, "at %" PRIu64 " /", at);
    mvcc_path(key, text);
    keel_text_printf(text, ":\n");
    if (err != 0) {
        say_error(err, text);
        return;
    }
    say_record(m, &record, text);
    if (record.kind != MVCC_DIR)
        return;
    for (; (child = mvcc_next_child(m, key, at, after)) != NULL; after = mvcc_name(child))
        say_at(m, child, at, text);
}

struct history {
    struct opened *o;
    struct mvcc_key *key;
    struct keel_text *text;
};

static int say_one_of_history(void *arg, struct mvcc_revision rev, bool tombstone)
{
    struct history *h = arg;
    struct mvcc_record record;
    int err = mvcc_get_revision(h->o->mvcc, h->key, rev, &record);

    (void)tombstone;
    if (err != 0)
        say_error(err, h->text);
    else
        say_record(h->o->mvcc, &record, h->text);
    return 0;
}

static void say_history(struct opened *o, uint64_t parent, const char *name, struct keel_text *text)
{
    struct mvcc_key *key = mvcc_child(o->mvcc, mvcc_by_ino(o->mvcc, parent), keel_slice_str(name));
    struct history h = { o, key, text };

    keel_text_printf(text, "history of %s:\n", name);
    if (key != NULL)
        mvcc_history(o->mvcc, key, say_one_of_history, &h);
}

static void say_directories(struct opened *o, struct keel_text *text)
{
    for (uint64_t ino = 1; ino < 100; ino++) {
        struct mvcc_key *key = mvcc_by_ino(o->mvcc, ino);

        if (key == NULL || mvcc_live_kind(key) != MVCC_DIR)
            continue;
        struct mvcc_dir_info info = mvcc_dir_info(key);

        keel_text_printf(text,
                         "directory %" PRIu64 ": %" PRId64 " %" PRId64
                         ", %u entries, %u of them directories\n",
                         ino, info.mtime_ns, info.ctime_ns, info.entries, info.subdirs);
    }
}

static void say_state(struct opened *o, struct keel_text *text)
{
    struct keel_hash128 hash = mvcc_state_hash(o->mvcc);
    const struct apply_settings *s = apply_settings(o->apply);
    size_t members;
    const struct apply_member *m = apply_members(o->apply, &members);

    keel_text_printf(text,
                     "entry %" PRIu64 " of term %" PRIu64 ", revision %" PRIu64
                     ", compacted %" PRIu64 ", hash %016" PRIx64 "%016" PRIx64 ", garbage %d\n",
                     mvcc_applied_index(o->mvcc), mvcc_applied_term(o->mvcc),
                     mvcc_revision(o->mvcc), mvcc_compact_revision(o->mvcc), hash.high, hash.low,
                     mvcc_has_garbage(o->mvcc));
    keel_text_printf(text, "quota %" PRIu64 ", %" PRIu64 " used, files of %" PRIu64 " bytes\n",
                     s->quota_bytes, mvcc_quota_used(o->mvcc), s->file_size_bytes);
    for (size_t i = 0; i < members; i++)
        keel_text_printf(text, "member %" PRIx64 " %s %s\n", m[i].id, m[i].name, m[i].address);
    for (size_t i = 0; i < apply_session_count(o->apply); i++) {
        struct apply_session_info session = apply_session_at(o->apply, i);

        keel_text_printf(text, "session %" PRIu64 " of node %" PRIx64 "\n", session.id,
                         session.node);
    }
}

void sample_say(struct opened *o, struct keel_text *text)
{
    struct mvcc *m = o->mvcc;

    say_state(o, text);
    say_at(m, mvcc_root(m), 0, text);
    for (uint64_t at = mvcc_compact_revision(m); at <= mvcc_revision(m); at++)
        if (at > 0)
            say_at(m, mvcc_root(m), at, text);
    say_directories(o, text);
    say_history(o, MVCC_ROOT_INO, "shared", text);
    say_history(o, MVCC_ROOT_INO, "gone", text);
    say_history(o, mvcc_live_ino(mvcc_child(m, mvcc_root(m), keel_slice_str("d"))), "a", text);
    mvcc_read_end(m);
}

/* ---- what it should have said ---- */

static struct keel_slice take_line(struct keel_slice *text)
{
    const uint8_t *end = memchr(text->data, '\n', text->len);
    size_t len = end != NULL ? (size_t)(end - text->data) + 1 : text->len;
    struct keel_slice line = keel_slice_of(text->data, len);

    *text = keel_slice_of(text->data + len, text->len - len);
    return line;
}

bool sample_agrees(const struct keel_text *sound, const struct keel_text *said, size_t *ret_damaged)
{
    struct keel_slice left = keel_slice_of(sound->data, sound->len);
    struct keel_slice other = keel_slice_of(said->data, said->len);

    *ret_damaged = 0;
    while (left.len > 0 && other.len > 0) {
        struct keel_slice line = take_line(&left), other_line = take_line(&other);

        if (keel_slice_equal(other_line, keel_slice_str(SAMPLE_DAMAGED "\n")))
            ++*ret_damaged;
        else if (!keel_slice_equal(line, other_line))
            return false;
    }
    return left.len == 0 && other.len == 0;
}

uint64_t sample_meta(struct opened *o)
{
    struct kv_batch *batch = apply_checkpoint(o->apply);
    uint64_t hash = 0;

    for (size_t i = 0; i < batch->count; i++)
        if (batch->writes[i].table == KV_META)
            hash = keel_hash64_seed(batch->writes[i].bytes, hash);
    kv_batch_free(batch);
    return hash;
}

void sample_say_all(struct kv *kv, struct keel_text *text)
{
    struct opened o;
    char why[256] = "";

    if (sample_open(kv, &o, why, sizeof why) != 0)
        fail_msg("%s", why);
    sample_say(&o, text);
    sample_close(&o);
}
