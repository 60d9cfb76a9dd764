/* Snapshots between replicas. The leader has one made of its store, and sends it in pieces to each
 * follower that needs what its log does not have any more; the follower stores the pieces, has the
 * whole put in the place of its store, and goes on behind it. docs/raft.md has the protocol.
 *
 *     leader     SNAPSHOT (an offer: which one, how long)    after 500 ms without an answer: again
 *     follower   SNAPSHOT_STATE receiving, 0                 or how far it has come: a connection
 * was leader     SNAPSHOT 0, SNAPSHOT 131072, …                lost in between follower
 * SNAPSHOT_STATE receiving, 131072 … follower   SNAPSHOT_STATE done installed, or not needed
 *
 * There are never more than KEEL_SNAPSHOT_CHUNKS pieces on their way to one follower: a dead or
 * slow one costs the leader no more than that. */
#include <stdlib.h>

#include "check.h"
#include "err.h"
#include "hash.h"
#include "replica_internal.h"

static const uint64_t window_bytes = (uint64_t)KEEL_SNAPSHOT_CHUNKS * KEEL_SNAPSHOT_CHUNK_BYTES;

/* ---- sending ---- */

static struct snapshot_transfer *transfer_of(struct keel_link *link)
{
    return KEEL_CONTAINER_OF(link, struct snapshot_transfer, link);
}

static struct snapshot_transfer *find_transfer(struct replica *r, uint64_t peer)
{
    for (struct keel_link *l = r->transfers.next; l != &r->transfers; l = l->next)
        if (transfer_of(l)->peer == peer)
            return transfer_of(l);
    return NULL;
}

static void drop_source(struct replica *r)
{
    if (r->source != SOURCE_NONE)
        r->env->ops->snapshot_drop(r->env);
    r->source = SOURCE_NONE;
}

/* index 0: it came to nothing. */
static void end_transfer(struct replica *r, struct snapshot_transfer *transfer, uint64_t index,
                         uint64_t now)
{
    raft_on_snapshot_sent(r->raft, now, transfer->peer, index);
    keel_list_remove(&transfer->link);
    free(transfer);
    if (keel_list_empty(&r->transfers))
        drop_source(r);
}

static struct keel_message *piece_new(const struct replica *r, uint64_t offset)
{
    struct keel_message *msg = keel_message_new(MESSAGE_SNAPSHOT);

    msg->snapshot.index = r->source_info.index;
    msg->snapshot.term = r->source_info.term;
    msg->snapshot.nonce = r->source_nonce;
    msg->snapshot.total = r->source_info.bytes;
    msg->snapshot.offset = offset;
    return msg;
}

static void offer(struct replica *r, struct snapshot_transfer *transfer, uint64_t now)
{
    transfer->progress_us = now;
    if (r->source != SOURCE_READY)
        return;
    transfer->offered = true;
    r->env->ops->send(r->env, transfer->peer, piece_new(r, 0));
}

static void make_source(struct replica *r)
{
    drop_source(r);
    r->source = SOURCE_MAKING;
    r->source_nonce = keel_hash64_seed(
        keel_slice_of((const uint8_t *)&r->source_nonce, sizeof r->source_nonce), r->options.nonce);
    r->env->ops->snapshot_make(r->env);
}

/* Whether the log still has what follows the snapshot: if not, it would help nobody. */
static bool source_is_current(const struct replica *r)
{
    return r->source == SOURCE_READY &&
           r->source_info.index + 1 >= raft_first_stored_index(r->raft);
}

void snapshots_begin(struct replica *r, uint64_t peer, uint64_t now)
{
    struct snapshot_transfer *transfer = find_transfer(r, peer);

    if (transfer == NULL) {
        transfer = keel_calloc(1, sizeof *transfer);
        transfer->peer = peer;
        keel_list_add(&r->transfers, &transfer->link);
    }
    transfer->acked = transfer->sent = 0;
    if (r->source != SOURCE_MAKING && !source_is_current(r))
        make_source(r);
    offer(r, transfer, now);
}

void replica_on_snapshot_made(struct replica *r, int err, const struct snapshot_info *info)
{
    uint64_t now = now_of(r);

    if (r->source != SOURCE_MAKING)
        return; /* dropped meanwhile */
    r->source = SOURCE_READY;
    if (err != 0) {
        r->env->ops->note(r->env, "no snapshot could be made for a follower: trying again");
        while (!keel_list_empty(&r->transfers))
            end_transfer(r, transfer_of(r->transfers.next), 0, now);
        return;
    }
    r->source_info = *info;
    for (struct keel_link *l = r->transfers.next; l != &r->transfers; l = l->next) {
        transfer_of(l)->acked = transfer_of(l)->sent = 0;
        offer(r, transfer_of(l), now);
    }
}

static void fill_window(struct replica *r, struct snapshot_transfer *transfer)
{
    uint64_t total = r->source_info.bytes;

    while (transfer->sent < total && transfer->sent - transfer->acked < window_bytes) {
        uint64_t rest = total - transfer->sent;
        size_t bytes = rest < KEEL_SNAPSHOT_CHUNK_BYTES ? (size_t)rest : KEEL_SNAPSHOT_CHUNK_BYTES;

        r->env->ops->snapshot_read(r->env, transfer->peer, transfer->sent, bytes);
        transfer->sent += bytes;
    }
}

void replica_on_snapshot_read(struct replica *r, uint64_t peer, uint64_t offset,
                              struct keel_buf *bytes)
{
    struct snapshot_transfer *transfer = find_transfer(r, peer);

    if (transfer == NULL || r->source != SOURCE_READY)
        return;
    if (bytes == NULL) {
        end_transfer(r, transfer, 0, now_of(r));
        return;
    }
    if (offset < transfer->acked || offset + bytes->len > r->source_info.bytes)
        return; /* read for an earlier attempt */
    struct keel_message *msg = piece_new(r, offset);

    msg->data = keel_buf_ref(bytes);
    r->env->ops->send(r->env, peer, msg);
}

static void on_receiving(struct replica *r, struct snapshot_transfer *transfer, uint64_t offset,
                         uint64_t now)
{
    if (offset > r->source_info.bytes)
        return;
    if (transfer->offered) {
        transfer->offered = false;
        transfer->acked = transfer->sent = offset;
    } else if (offset <= transfer->acked) {
        return; /* late, or twice */
    } else {
        transfer->acked = offset;
        transfer->sent = transfer->sent > offset ? transfer->sent : offset;
    }
    transfer->progress_us = now;
    fill_window(r, transfer);
}

void snapshots_on_state(struct replica *r, uint64_t from, const struct keel_message *msg)
{
    struct snapshot_transfer *transfer = find_transfer(r, from);
    uint64_t now = now_of(r);

    if (transfer == NULL || r->source != SOURCE_READY || msg->snapshot.nonce != r->source_nonce ||
        msg->snapshot.index != r->source_info.index)
        return;
    switch (msg->snapshot.state) {
    case SNAPSHOT_RECEIVING:
        on_receiving(r, transfer, msg->snapshot.offset, now);
        break;
    case SNAPSHOT_DONE:
        r->snapshots_sent++;
        end_transfer(r, transfer, r->source_info.index, now);
        break;
    case SNAPSHOT_REFUSED:
        end_transfer(r, transfer, 0, now);
        /* It may be this file that is damaged. */
        while (!keel_list_empty(&r->transfers))
            end_transfer(r, transfer_of(r->transfers.next), 0, now);
        break;
    }
}

void snapshots_connected(struct replica *r, uint64_t peer, uint64_t now)
{
    struct snapshot_transfer *transfer = find_transfer(r, peer);

    if (transfer != NULL)
        offer(r, transfer, now);
}

void snapshots_follow(struct replica *r)
{
    bool leads = replica_is_leader(r);

    for (struct keel_link *l = r->transfers.next, *next; l != &r->transfers; l = next) {
        struct snapshot_transfer *transfer = transfer_of(l);

        next = l->next;
        if (!leads || !raft_is_member(r->raft, transfer->peer))
            end_transfer(r, transfer, 0, now_of(r));
    }
}

/* ---- receiving ---- */

static void reply(struct replica *r, enum keel_snapshot_state state)
{
    const struct snapshot_target *target = &r->target;
    struct keel_message *msg = keel_message_new(MESSAGE_SNAPSHOT_STATE);

    msg->snapshot.index = target->index;
    msg->snapshot.term = target->term;
    msg->snapshot.nonce = target->nonce;
    msg->snapshot.offset = target->stored;
    msg->snapshot.state = state;
    r->env->ops->send(r->env, target->from, msg);
}

static void drop_queue(struct snapshot_target *target)
{
    for (size_t i = 0; i < target->queued; i++)
        keel_buf_free(target->queue[i]);
    target->queued = 0;
}

static void end_target(struct replica *r, enum keel_snapshot_state state)
{
    reply(r, state);
    drop_queue(&r->target);
    r->target.state = TARGET_NONE;
}

static bool is_same(const struct snapshot_target *target, const struct keel_message *msg)
{
    return target->state != TARGET_NONE && target->index == msg->snapshot.index &&
           target->term == msg->snapshot.term && target->nonce == msg->snapshot.nonce;
}

static void begin_target(struct replica *r, uint64_t from, const struct keel_message *msg)
{
    struct snapshot_target *target = &r->target;
    bool storing = target->storing;

    drop_queue(target);
    *target = (struct snapshot_target){
        .state = TARGET_PIECES,
        .from = from,
        .index = msg->snapshot.index,
        .term = msg->snapshot.term,
        .nonce = msg->snapshot.nonce,
        .total = msg->snapshot.total,
    };
    KEEL_ASSERT(!storing);
}

static void on_offer(struct replica *r, uint64_t from, const struct keel_message *msg)
{
    struct snapshot_target *target = &r->target;
    uint64_t now = now_of(r);

    if (is_same(target, msg)) {
        target->from = from;
        if (target->state == TARGET_PIECES)
            reply(r, SNAPSHOT_RECEIVING);
        return;
    }
    if (target->storing || r->reset_seq != 0 ||
        (target->state != TARGET_NONE && target->state != TARGET_PIECES))
        return; /* it will be offered again: the one before is not over */
    begin_target(r, from, msg);
    if (raft_wants_snapshot(r->raft, target->index, target->term)) {
        reply(r, SNAPSHOT_RECEIVING);
        return;
    }
    raft_install_begin(r->raft, now, target->index, target->term); /* the log has as much */
    end_target(r, SNAPSHOT_DONE);
}

static void store_next(struct replica *r)
{
    struct snapshot_target *target = &r->target;

    if (target->storing || target->queued == 0)
        return;
    struct keel_buf *bytes = target->queue[0];

    target->queued--;
    memmove(target->queue, target->queue + 1, target->queued * sizeof(struct keel_buf *));
    target->storing = true;
    r->env->ops->snapshot_store(r->env, target->stored, bytes);
}

void snapshots_on_piece(struct replica *r, uint64_t from, struct keel_message *msg)
{
    struct snapshot_target *target = &r->target;

    if (msg->data == NULL) {
        on_offer(r, from, msg);
        return;
    }
    if (target->state != TARGET_PIECES || !is_same(target, msg) ||
        msg->snapshot.offset != target->expected || msg->data->len == 0 ||
        msg->data->len > target->total - target->expected ||
        target->queued == KEEL_ARRAY_LEN(target->queue))
        return;
    target->expected += msg->data->len;
    target->queue[target->queued++] = keel_buf_ref(msg->data);
    store_next(r);
}

/* The store must have no other writer while it is replaced. */
static void install(struct replica *r)
{
    r->target.state = TARGET_WAITING;
    if (r->checkpoint_out)
        return;
    r->target.state = TARGET_INSTALLING;
    r->env->ops->snapshot_install(r->env);
}

void replica_on_snapshot_stored(struct replica *r, int err, uint64_t offset)
{
    struct snapshot_target *target = &r->target;

    KEEL_ASSERT(target->storing && target->state == TARGET_PIECES);
    target->storing = false;
    if (err != 0) {
        r->env->ops->note(r->env, "a snapshot could not be stored: is the disk full?");
        end_target(r, SNAPSHOT_REFUSED);
        return;
    }
    target->stored = offset;
    if (target->stored < target->total) {
        reply(r, SNAPSHOT_RECEIVING);
        store_next(r);
    } else if (raft_install_begin(r->raft, now_of(r), target->index, target->term)) {
        install(r);
    } else {
        end_target(r, SNAPSHOT_DONE);
    }
}

void snapshots_checkpointed(struct replica *r)
{
    if (r->target.state == TARGET_WAITING)
        install(r);
}

bool snapshots_installing(const struct replica *r)
{
    return r->target.state == TARGET_WAITING || r->target.state == TARGET_INSTALLING;
}

/* ---- the new state ---- */

static void reload(struct replica *r, struct kv *kv)
{
    char why[512];
    uint64_t now = now_of(r), config_index;
    int err = apply_reload(r->apply, kv, replica_report_change, r, why, sizeof why);

    if (err != 0)
        keel_fatal("the snapshot that was installed cannot be read: %s", why);
    const struct raft_config *config = apply_config(r->apply, &config_index);

    raft_on_installed(r->raft, now, mvcc_applied_index(r->mvcc), mvcc_applied_term(r->mvcc), config,
                      config_index);
    r->pending_since_us = 0;
    r->snapshots_installed++;
    r->reloaded = true; /* whoever waits is answered in the pump */
    leases_reloaded(r);
    members_configured(r);
    checks_members_changed(r);
    r->env->ops->reloaded(r->env);
    r->env->ops->members_changed(r->env);
}

void replica_on_snapshot_installed(struct replica *r, int err, struct kv *kv,
                                   const struct snapshot_info *info)
{
    struct snapshot_target *target = &r->target;

    KEEL_ASSERT(target->state == TARGET_INSTALLING);
    if (err == 0)
        KEEL_ASSERT(info->index == target->index && info->term == target->term);
    if (err != 0) {
        r->env->ops->note(r->env, "a snapshot that was received is damaged, or there was no room "
                                  "for it: asking for another one");
        raft_install_failed(r->raft);
        end_target(r, SNAPSHOT_REFUSED);
        return;
    }
    r->env->ops->note(r->env, "a snapshot has been installed");
    reload(r, kv);
    end_target(r, SNAPSHOT_DONE);
}

void snapshots_persisted(struct replica *r, struct raft_mark mark)
{
    if (r->reset_seq == 0 || mark.seq < r->reset_seq)
        return;
    r->reset_seq = 0;
    r->env->ops->snapshot_finish(r->env);
}

/* ---- time ---- */

void snapshots_tick(struct replica *r, uint64_t now)
{
    for (struct keel_link *l = r->transfers.next; l != &r->transfers; l = l->next)
        if (now - transfer_of(l)->progress_us >= OFFER_US)
            offer(r, transfer_of(l), now);
}

uint64_t snapshots_deadline(const struct replica *r)
{
    uint64_t at = UINT64_MAX;

    for (const struct keel_link *l = r->transfers.next; l != &r->transfers; l = l->next) {
        const struct snapshot_transfer *transfer =
            KEEL_CONTAINER_OF(l, const struct snapshot_transfer, link);

        if (transfer->progress_us + OFFER_US < at)
            at = transfer->progress_us + OFFER_US;
    }
    return at;
}

void snapshots_init(struct replica *r)
{
    keel_list_init(&r->transfers);
}

void snapshots_free(struct replica *r)
{
    while (!keel_list_empty(&r->transfers)) {
        struct snapshot_transfer *transfer = transfer_of(r->transfers.next);

        keel_list_remove(&transfer->link);
        free(transfer);
    }
    drop_queue(&r->target);
}
