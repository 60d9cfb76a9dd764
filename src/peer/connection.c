/* Reading and writing on one connection. The output rule: everything urgent, then bulk frame by
 * frame, in as few system calls as possible; what the socket does not take stays here, where urgent
 * messages can still pass it. A snapshot is in no hurry: one frame of it a turn of the loop, so
 * that whatever comes up goes before the next one, also where the socket would take megabytes. */
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "check.h"
#include "err.h"
#include "peer/connection.h"
#include "peer/frame.h"

enum {
    WRITE_PIECES = 128,      /* iovecs in one system call */
    WRITE_BYTES = 256 << 10, /* bulk is not gathered beyond this in one call */
    UNSENT_IN_KERNEL =
        128 << 10 /* TCP_NOTSENT_LOWAT: what the kernel holds can't be passed any more */
};

uint64_t connection_now_ms(void)
{
    return uv_hrtime() / 1000000;
}

void connection_init(struct connection *conn, uv_loop_t *loop, struct keel_slice read_area,
                     const struct connection_events *events)
{
    conn->events = events;
    conn->read_area = read_area;
    conn->reader = frame_reader_new();
    conn->opened_ms = conn->input_ms = conn->output_ms = connection_now_ms();
    int err = uv_tcp_init(loop, &conn->tcp);

    KEEL_ASSERT(err == 0); /* it makes no system call without a family */
}

void connection_fail(struct connection *conn, const char *fmt, ...)
{
    va_list args;

    if (conn->failed)
        return;
    va_start(args, fmt);
    vsnprintf(conn->why, sizeof conn->why, fmt, args);
    va_end(args);
    conn->failed = true;
    conn->events->failed(conn);
}

/* ---- the lanes ---- */

static void lane_push(struct connection_lane *lane, struct keel_buf *buf_take)
{
    if (lane->count == lane->capacity) {
        size_t capacity = lane->capacity ? lane->capacity * 2 : 32;
        struct keel_buf **bufs = keel_calloc(capacity, sizeof *bufs);

        for (size_t i = 0; i < lane->count; i++)
            bufs[i] = lane->bufs[(lane->head + i) % lane->capacity];
        free(lane->bufs);
        lane->bufs = bufs;
        lane->head = 0;
        lane->capacity = capacity;
    }
    lane->bufs[(lane->head + lane->count) % lane->capacity] = buf_take;
    lane->count++;
}

static struct keel_buf *lane_at(const struct connection_lane *lane, size_t i)
{
    return lane->bufs[(lane->head + i) % lane->capacity];
}

static void lane_pop(struct connection_lane *lane)
{
    keel_buf_free(lane_at(lane, 0));
    lane->head = (lane->head + 1) % lane->capacity;
    lane->count--;
    lane->offset = 0;
}

static void lane_clear(struct connection_lane *lane)
{
    while (lane->count > 0)
        lane_pop(lane);
    free(lane->bufs);
    *lane = (struct connection_lane){ 0 };
}

/* Counts n bytes as written. Returns how many of them lay beyond this lane. */
static size_t lane_advance(struct connection_lane *lane, size_t n)
{
    while (n > 0 && lane->count > 0) {
        size_t left = lane_at(lane, 0)->len - lane->offset;
        size_t part = n < left ? n : left;

        lane->unsent -= part;
        lane->offset += part;
        n -= part;
        if (part == left)
            lane_pop(lane);
    }
    return n;
}

/* What is left of the frame that `offset` lies in (or begins). */
static struct keel_slice lane_frame(const struct connection_lane *lane)
{
    const struct keel_buf *buf = lane_at(lane, 0);
    size_t end = (lane->offset / FRAME_BYTES_MAX + 1) * FRAME_BYTES_MAX;

    if (end > buf->len)
        end = buf->len;
    return keel_slice_of(buf->data + lane->offset, end - lane->offset);
}

static bool lane_is_inside_frame(const struct connection_lane *lane)
{
    return lane->count > 0 && lane->offset % FRAME_BYTES_MAX != 0;
}

/* ---- writing ---- */

struct gather {
    uv_buf_t pieces[WRITE_PIECES];
    unsigned int count;
    size_t bytes;
};

static void gather_lane(struct gather *g, const struct connection_lane *lane, size_t bytes_max)
{
    size_t offset = lane->offset;

    for (size_t i = 0; i < lane->count; i++) {
        const struct keel_buf *buf = lane_at(lane, i);

        for (; offset < buf->len; offset += FRAME_BYTES_MAX) {
            size_t left = buf->len - offset;
            size_t len = left < FRAME_BYTES_MAX ? left : FRAME_BYTES_MAX;

            if (g->count == WRITE_PIECES || g->bytes >= bytes_max)
                return;
            g->pieces[g->count++] =
                uv_buf_init((char *)(uintptr_t)(buf->data + offset), (unsigned int)len);
            g->bytes += len;
        }
        offset = 0;
    }
}

static void on_shutdown(uv_shutdown_t *req, int status)
{
    struct connection *conn = KEEL_CONTAINER_OF(req, struct connection, shutdown_req);

    if (status != 0 && status != UV_ECANCELED)
        connection_fail(conn, "%s", uv_strerror(status));
}

bool connection_is_idle(const struct connection *conn)
{
    for (size_t i = 0; i < LANES; i++) {
        if (conn->lanes[i].count > 0)
            return false;
    }
    return !conn->writing;
}

static void drained(struct connection *conn)
{
    if (!conn->draining || !connection_is_idle(conn) || !conn->open)
        return;
    conn->draining = false;
    int err = uv_shutdown(&conn->shutdown_req, (uv_stream_t *)&conn->tcp, on_shutdown);

    if (err != 0)
        connection_fail(conn, "%s", uv_strerror(err));
}

static void on_written(uv_write_t *req, int status)
{
    struct connection *conn = KEEL_CONTAINER_OF(req, struct connection, write_req);

    conn->writing = false;
    conn->write_buf = keel_buf_free(conn->write_buf);
    if (conn->closing)
        return;
    if (status != 0) {
        connection_fail(conn, "%s", uv_strerror(status));
        return;
    }
    conn->output_ms = connection_now_ms();
    connection_flush(conn);
}

/* Which lane has the next frame: the rest of one that has been begun, else the highest. */
static struct connection_lane *next_lane(struct connection *conn)
{
    struct connection_lane *next = NULL;

    for (size_t i = LANES; i-- > 0;) {
        struct connection_lane *lane = &conn->lanes[i];

        if (lane_is_inside_frame(lane))
            return lane;
        if (lane->count > 0)
            next = lane;
    }
    KEEL_ASSERT(next != NULL);
    return next;
}

/* libuv gets the next frame, or its rest, and calls back in a later turn of the loop, when the
 * socket has taken it; everything else stays in its lane. */
static void hand_over(struct connection *conn)
{
    struct connection_lane *lane = next_lane(conn);
    struct keel_slice frame = lane_frame(lane);
    uv_buf_t piece = uv_buf_init((char *)(uintptr_t)frame.data, (unsigned int)frame.len);

    conn->write_buf = keel_buf_ref(lane_at(lane, 0));
    lane_advance(lane, frame.len);
    conn->writing = true;
    int err = uv_write(&conn->write_req, (uv_stream_t *)&conn->tcp, &piece, 1, on_written);

    if (err != 0) {
        conn->writing = false;
        conn->write_buf = keel_buf_free(conn->write_buf);
        connection_fail(conn, "%s", uv_strerror(err));
    }
}

/* Urgent and bulk frames, as many as one call takes. False: the socket is full, or broken. */
static bool write_some(struct connection *conn)
{
    struct gather g;

    g.count = 0;
    g.bytes = 0;
    gather_lane(&g, &conn->lanes[LANE_URGENT], SIZE_MAX);
    gather_lane(&g, &conn->lanes[LANE_BULK], WRITE_BYTES);
    int n = uv_try_write((uv_stream_t *)&conn->tcp, g.pieces, g.count);

    if (n < 0 && n != UV_EAGAIN) {
        connection_fail(conn, "%s", uv_strerror(n));
        return false;
    }
    size_t written = n < 0 ? 0 : (size_t)n;

    lane_advance(&conn->lanes[LANE_BULK], lane_advance(&conn->lanes[LANE_URGENT], written));
    if (written > 0)
        conn->output_ms = connection_now_ms();
    return written == g.bytes;
}

static bool only_snapshot_waits(const struct connection *conn)
{
    return conn->lanes[LANE_URGENT].count == 0 && conn->lanes[LANE_BULK].count == 0;
}

void connection_flush(struct connection *conn)
{
    while (conn->open && !conn->failed && !connection_is_idle(conn) && !conn->writing) {
        if ((only_snapshot_waits(conn) || !write_some(conn)) && !conn->failed)
            hand_over(conn);
    }
    drained(conn);
}

void connection_queue(struct connection *conn, struct keel_buf *frames_take, enum keel_lane lane)
{
    struct connection_lane *to = &conn->lanes[lane];

    if (conn->failed || conn->closing || conn->mute) {
        keel_buf_free(frames_take);
        return;
    }
    if (to->unsent + frames_take->len > KEEL_PEER_QUEUE_BYTES) {
        keel_buf_free(frames_take);
        connection_fail(conn, "it takes nothing: %zu bytes unsent", to->unsent);
        return;
    }
    to->unsent += frames_take->len;
    lane_push(to, frames_take);
}

void connection_drain(struct connection *conn)
{
    conn->mute = true;
    conn->draining = true;
    connection_flush(conn);
}

/* ---- reading ---- */

static void on_alloc(uv_handle_t *handle, size_t suggested, uv_buf_t *ret_buf)
{
    struct connection *conn = KEEL_CONTAINER_OF(handle, struct connection, tcp);

    (void)suggested;
    *ret_buf =
        uv_buf_init((char *)(uintptr_t)conn->read_area.data, (unsigned int)conn->read_area.len);
}

static int on_message(void *arg, struct keel_message *msg_take)
{
    struct connection *conn = arg;

    if (conn->failed || conn->mute) {
        keel_message_free(msg_take);
        return KEEL_E_CLOSED;
    }
    return conn->events->message(conn, msg_take);
}

static void on_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *buf)
{
    struct connection *conn = KEEL_CONTAINER_OF(stream, struct connection, tcp);

    if (n == 0 || conn->failed)
        return;
    if (n < 0) {
        connection_fail(conn, "%s", n == UV_EOF ? "closed by the other side" : uv_strerror((int)n));
        return;
    }
    conn->input_ms = connection_now_ms();
    if (conn->mute)
        return;
    conn->events->input(conn);
    int err =
        frame_reader_feed(conn->reader, keel_slice_of(buf->base, (size_t)n), on_message, conn);

    if (err != 0 && !conn->mute)
        connection_fail(conn, "%s", keel_strerror(err));
}

/* ---- beginning and end ---- */

static int start(struct connection *conn)
{
    int fd, low = UNSENT_IN_KERNEL;
    int err = uv_fileno((uv_handle_t *)&conn->tcp, &fd);

    if (err == 0)
        err = uv_tcp_nodelay(&conn->tcp, 1);
    if (err == 0 && setsockopt(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &low, sizeof low) != 0)
        err = uv_translate_sys_error(errno);
    if (err == 0)
        err = uv_read_start((uv_stream_t *)&conn->tcp, on_alloc, on_read);
    if (err == 0) {
        conn->open = true;
        conn->opened_ms = conn->input_ms = conn->output_ms = connection_now_ms();
    }
    return err;
}

static void on_connect(uv_connect_t *req, int status)
{
    struct connection *conn = KEEL_CONTAINER_OF(req, struct connection, connect_req);

    if (conn->closing || conn->failed)
        return;
    if (status == 0)
        status = start(conn);
    if (status != 0) {
        connection_fail(conn, "%s", uv_strerror(status));
        return;
    }
    conn->events->opened(conn);
}

int connection_dial(struct connection *conn, const struct sockaddr *from, const struct sockaddr *to)
{
    int err = from != NULL ? uv_tcp_bind(&conn->tcp, from, 0) : 0;

    return err != 0 ? err : uv_tcp_connect(&conn->connect_req, &conn->tcp, to, on_connect);
}

int connection_accept(struct connection *conn, uv_stream_t *server)
{
    int err = uv_accept(server, (uv_stream_t *)&conn->tcp);

    return err != 0 ? err : start(conn);
}

static void on_close(uv_handle_t *handle)
{
    struct connection *conn = KEEL_CONTAINER_OF(handle, struct connection, tcp);

    for (size_t i = 0; i < LANES; i++)
        lane_clear(&conn->lanes[i]);
    conn->write_buf = keel_buf_free(conn->write_buf);
    conn->reader = frame_reader_free(conn->reader);
    conn->events->closed(conn);
}

void connection_close(struct connection *conn)
{
    if (conn->closing)
        return;
    conn->closing = true;
    conn->failed = true;
    uv_close((uv_handle_t *)&conn->tcp, on_close);
}
