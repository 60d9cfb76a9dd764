/* keel-wal dump: records in words. What a command says is printed by the descriptors of
 * command.proto, so that whatever it comes to know is known here. */
#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bytes.h"
#include "check.h"
#include "command.h"
#include "err.h"
#include "keel_wal.h"
#include "raft/config.h"

enum { DONE = 1 };

/* Members whose names a configuration has told. */
struct member_name {
    uint64_t id;
    char name[64];
};

struct dump {
    const struct dump_options *options;
    uint64_t printed;
    bool begun;                  /* options.from has been met */
    bool head_due;               /* the segment's own line is still to come */
    bool behind_told;            /* that the segment's chain has ended */
    bool has_before;             /* a segment stands before this one: */
    uint64_t sequence, checksum; /* its last record's */
    struct member_name names[4 * KEEL_MEMBERS_MAX];
    size_t name_count;
    struct keel_arena arena;
};

/* ---- names ---- */

static void learn_name(struct dump *d, uint64_t id, const char *name)
{
    for (size_t i = 0; i < d->name_count; i++)
        if (d->names[i].id == id)
            return;
    if (d->name_count == KEEL_ARRAY_LEN(d->names))
        return;
    struct member_name *known = &d->names[d->name_count++];

    known->id = id;
    snprintf(known->name, sizeof known->name, "%s", name);
}

static void print_id(const struct dump *d, uint64_t id)
{
    for (size_t i = 0; i < d->name_count; i++)
        if (d->names[i].id == id) {
            printf(" %s", d->names[i].name);
            return;
        }
    printf(" %016" PRIx64, id);
}

/* Bytes that may be anything, so that a line stays one. */
static void print_text(const uint8_t *bytes, size_t len)
{
    putchar(' ');
    for (size_t i = 0; i < len; i++) {
        if (bytes[i] == '\\' || iscntrl(bytes[i]) != 0 || bytes[i] == ' ')
            printf("\\%03o", bytes[i]);
        else
            putchar(bytes[i]);
    }
    if (len == 0)
        fputs("\"\"", stdout);
}

/* ---- configurations ---- */

static void print_members(const struct dump *d, const char *what, const uint64_t *ids, size_t count)
{
    if (count == 0)
        return;
    printf(" %s", what);
    for (size_t i = 0; i < count; i++)
        print_id(d, ids[i]);
}

/* Of the member list behind a configuration. NULL: there is none. */
static Keel__Members *learn_config(struct dump *d, struct keel_slice bytes,
                                   struct raft_config *ret_config)
{
    struct keel_slice rest;
    Keel__Members *members = NULL;

    if (raft_config_decode(bytes, ret_config, &rest) == 0)
        members = keel__members__unpack(&d->arena.allocator, rest.len, rest.data);
    for (size_t i = 0; members != NULL && i < members->n_members; i++)
        learn_name(d, members->members[i]->id, members->members[i]->name);
    return members;
}

static void print_config(struct dump *d, struct keel_slice bytes)
{
    struct raft_config config;
    const Keel__Members *members = learn_config(d, bytes, &config);

    if (members == NULL) {
        fputs(" (not a configuration that this keel-wal knows)", stdout);
        return;
    }
    print_members(d, "voters", config.voters, config.voter_count);
    print_members(d, "old voters", config.old_voters, config.old_voter_count);
    print_members(d, "learners", config.learners, config.learner_count);
    for (size_t i = 0; i < members->n_members; i++)
        printf("; %s at %s", members->members[i]->name, members->members[i]->address);
}

/* ---- commands ---- */

static void print_message(struct dump *d, const ProtobufCMessage *message);

static void print_number(const ProtobufCFieldDescriptor *field, uint64_t value, bool is_signed)
{
    if (strcmp(field->name, "mode") == 0)
        printf(" %04" PRIo64, value);
    else if (is_signed)
        printf(" %" PRId64, (int64_t)value);
    else
        printf(" %" PRIu64, value);
}

static void print_enum(const ProtobufCFieldDescriptor *field, uint32_t value)
{
    const ProtobufCEnumValue *name =
        protobuf_c_enum_descriptor_get_value(field->descriptor, (int)value);

    putchar(' ');
    for (const char *c = name != NULL ? name->name : "?"; *c != '\0'; c++)
        putchar(tolower((unsigned char)*c));
}

static uint64_t number_of(const ProtobufCFieldDescriptor *field, const void *value)
{
    uint64_t wide;
    uint32_t narrow;

    if (field->type == PROTOBUF_C_TYPE_INT64 || field->type == PROTOBUF_C_TYPE_SINT64 ||
        field->type == PROTOBUF_C_TYPE_UINT64 || field->type == PROTOBUF_C_TYPE_FIXED64) {
        memcpy(&wide, value, sizeof wide);
        return wide;
    }
    memcpy(&narrow, value, sizeof narrow);
    return narrow;
}

static bool is_number(const ProtobufCFieldDescriptor *field)
{
    return field->type != PROTOBUF_C_TYPE_STRING && field->type != PROTOBUF_C_TYPE_BYTES &&
           field->type != PROTOBUF_C_TYPE_MESSAGE;
}

/* A number that is 0 is one that was not set. */
static void print_number_field(const struct dump *d, const ProtobufCFieldDescriptor *field,
                               const void *value)
{
    uint64_t number = number_of(field, value);

    if (number == 0)
        return;
    printf(" %s", field->name);
    if (field->type == PROTOBUF_C_TYPE_BOOL)
        return;
    if (field->type == PROTOBUF_C_TYPE_FIXED64)
        print_id(d, number);
    else if (field->type == PROTOBUF_C_TYPE_ENUM)
        print_enum(field, (uint32_t)number);
    else
        print_number(field, number,
                     field->type == PROTOBUF_C_TYPE_SINT64 || field->type == PROTOBUF_C_TYPE_INT64);
}

static void print_field(struct dump *d, const ProtobufCFieldDescriptor *field, const void *value)
{
    if (is_number(field)) {
        print_number_field(d, field, value);
    } else if (field->type == PROTOBUF_C_TYPE_BYTES) {
        const ProtobufCBinaryData *bytes = value;

        printf(" %s", field->name);
        print_text(bytes->data, bytes->len);
    } else if (field->type == PROTOBUF_C_TYPE_STRING) {
        const char *text = *(const char *const *)value;

        printf(" %s", field->name);
        print_text((const uint8_t *)text, strlen(text));
    } else if (*(const ProtobufCMessage *const *)value != NULL) {
        printf(" %s (", field->name);
        print_message(d, *(const ProtobufCMessage *const *)value);
        fputs(" )", stdout);
    }
}

/* Its fields that are set. */
static void print_message(struct dump *d, const ProtobufCMessage *message)
{
    for (unsigned i = 0; i < message->descriptor->n_fields; i++) {
        const ProtobufCFieldDescriptor *field = &message->descriptor->fields[i];
        const uint8_t *value = (const uint8_t *)message + field->offset;

        if (field->label != PROTOBUF_C_LABEL_REPEATED)
            print_field(d, field, value);
    }
}

/* 2026-01-31T12:00:00.123Z */
static void print_time(int64_t time_ns)
{
    time_t seconds = (time_t)(time_ns / 1000000000);
    char text[32];
    struct tm tm;

    if (time_ns <= 0 || gmtime_r(&seconds, &tm) == NULL ||
        strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &tm) == 0)
        return;
    printf(" %s.%03uZ", text, (unsigned)(time_ns / 1000000 % 1000));
}

static void print_op(struct dump *d, const Keel__Command *head)
{
    const ProtobufCFieldDescriptor *field = protobuf_c_message_descriptor_get_field(
        &keel__command__descriptor, (unsigned)head->op_case);

    if (field == NULL)
        return;
    printf(" %s", field->name);
    print_message(d, *(const ProtobufCMessage *const *)((const uint8_t *)head + field->offset));
}

static void print_command(struct dump *d, struct keel_slice bytes)
{
    Keel__Command *head;
    struct keel_slice body;

    if (command_unpack(bytes, &d->arena, &head, &body) != 0) {
        fputs(" (not a command that this keel-wal knows)", stdout);
        return;
    }
    print_time(head->time_ns);
    if (head->session != 0)
        printf(" session %" PRIu64 " number %" PRIu64, head->session, head->number);
    fputs(":", stdout);
    print_op(d, head);
    if (body.len > 0)
        printf(", %zu bytes", body.len);
}

/* ---- records ---- */

static const char *kind_name(const struct wal_record *record)
{
    static const char *const entries[] = { "no-op", "command", "config" };
    static const char *const others[] = {
        [WAL_HARD_STATE] = "hard-state", [WAL_DURABLE] = "durable", [WAL_RESET] = "reset"
    };

    return record->kind == WAL_ENTRY ? entries[record->entry_kind] : others[record->kind];
}

static void print_record(struct dump *d, uint64_t offset, const struct wal_record *record)
{
    printf("%10" PRIu64 " %-10s term=%" PRIu64 " index=%" PRIu64 " sequence=%" PRIu64
           " durable=%" PRIu64,
           offset, kind_name(record), record->term, record->index, record->sequence,
           record->durable);
    keel_arena_reset(&d->arena);
    if (record->kind == WAL_HARD_STATE) {
        uint64_t vote = get_le64(record->body.data);

        printf(" commit %" PRIu64 "%s", record->index, vote != 0 ? ", vote" : ", no vote");
        if (vote != 0)
            print_id(d, vote);
    } else if (record->kind == WAL_RESET) {
        fputs(" void up to here: a snapshot took its place", stdout);
    } else if (record->kind == WAL_ENTRY && record->entry_kind == RAFT_ENTRY_CONFIG) {
        print_config(d, record->body);
    } else if (record->kind == WAL_ENTRY && record->entry_kind == RAFT_ENTRY_COMMAND) {
        print_command(d, record->body);
    }
    putchar('\n');
}

static void print_head(const struct dump *d, const struct walk_segment *s)
{
    printf("%s epoch=%" PRIu64 " sequence=%" PRIu64 " cluster=%016" PRIx64 " node=%016" PRIx64
           "%s\n",
           s->name, s->epoch, s->header.first_sequence, s->header.cluster_id, s->header.node_id,
           s->header.recycled ? " recycled" : "");
    if (d->has_before &&
        (s->header.first_sequence != d->sequence + 1 || s->header.previous_checksum != d->checksum))
        puts("# it does not go on from the record before it");
}

static int begin_segment(void *arg, const struct walk_segment *s)
{
    static const char *const states[] = { [WALK_READY] = "made ready, and not in use",
                                          [WALK_BAD] = "its header does not check",
                                          [WALK_NEWER] = "written by a newer keelfs" };
    struct dump *d = arg;

    d->head_due = s->state == WALK_SOUND;
    d->behind_told = false;
    if (!d->head_due && d->begun)
        printf("%s # %s\n", s->name, states[s->state]);
    return 0;
}

/* Its names are wanted all the same. */
static void skip_record(struct dump *d, const struct wal_record *record)
{
    struct raft_config config;

    keel_arena_reset(&d->arena);
    if (record->kind == WAL_ENTRY && record->entry_kind == RAFT_ENTRY_CONFIG)
        learn_config(d, record->body, &config);
}

static int dump_record(void *arg, const struct walk_segment *s, uint64_t offset,
                       const struct wal_record *record)
{
    struct dump *d = arg;

    d->begun = d->begun || (record->kind == WAL_ENTRY && record->index >= d->options->from);
    if (!d->begun) {
        skip_record(d, record);
        return 0;
    }
    if (d->options->count != 0 && d->printed == d->options->count)
        return DONE;
    if (d->head_due)
        print_head(d, s);
    d->head_due = false;
    print_record(d, offset, record);
    d->printed++;
    return 0;
}

static int dump_stray(void *arg, const struct walk_segment *s, uint64_t offset,
                      const struct wal_record *record)
{
    struct dump *d = arg;

    if (!d->begun || (d->options->count != 0 && d->printed == d->options->count))
        return 0;
    if (!d->behind_told)
        printf("# the chain ends at offset %" PRIu64 "; sound records behind it:\n", s->used);
    d->behind_told = true;
    print_record(d, offset, record);
    return 0;
}

static int end_segment(void *arg, const struct walk_segment *s)
{
    struct dump *d = arg;

    if (s->state != WALK_SOUND)
        return 0;
    if (d->begun && d->head_due)
        print_head(d, s);
    if (d->begun && !s->clean_end && !d->behind_told)
        printf("# the chain ends at offset %" PRIu64 ", before something that is no record\n",
               s->used);
    d->has_before = true;
    d->sequence = s->last_sequence;
    d->checksum = s->last_checksum;
    return 0;
}

/* The name, with or without directories before it. */
static int dump_segment(const struct walk *walk, const char *path)
{
    const char *slash = strrchr(path, '/');
    uint64_t epoch;

    if (!wal_segment_parse_name(slash != NULL ? slash + 1 : path, &epoch))
        return KEEL_E_NOTFOUND;
    return walk_one(walk, epoch);
}

int dump_log(struct disk *disk, const struct dump_options *options)
{
    struct dump dump = { .options = options, .begun = options->from == 0 };
    const struct walk walk = {
        .disk = disk,
        .arg = &dump,
        .begin = begin_segment,
        .record = dump_record,
        .stray = dump_stray,
        .end = end_segment,
    };

    keel_arena_init(&dump.arena);
    int err = options->segment != NULL ? dump_segment(&walk, options->segment) : walk_all(&walk);

    keel_arena_free(&dump.arena);
    return err == DONE ? 0 : err;
}
