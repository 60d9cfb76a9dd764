/* One TCP connection that carries messages: three output lanes, coalesced writes, a frame reader.
 * Knows nothing of members or of who the other side is: pool.c does. Private to src/peer. */
#ifndef PEER_CONNECTION_H
#define PEER_CONNECTION_H

#include <uv.h>

#include "peer/message.h"

struct connection;

/* None of these may call connection_close from within `message`; connection_fail is always allowed.
 */
struct connection_events {
    /* A dialled connection is up; not called for accepted ones. */
    void (*opened)(struct connection *conn);
    /* Bytes came in; before the messages in them. */
    void (*input)(struct connection *conn);
    /* Taken. Non-zero: the connection fails with that error. */
    int (*message)(struct connection *conn, struct keel_message *msg_take);
    /* It has become useless, for conn->why: close it soon (not from here: the call may come from
     * anywhere). Once. */
    void (*failed)(struct connection *conn);
    /* After connection_close: libuv has let go, its memory is the owner's again. */
    void (*closed)(struct connection *conn);
};

/* Encoded messages in order, as a ring. `offset` is how much of the first one has been written; it
 * always lies between two frames while no write is under way. */
struct connection_lane {
    struct keel_buf **bufs;
    size_t head, count, capacity;
    size_t offset;
    size_t unsent; /* bytes */
};

struct connection {
    uv_tcp_t tcp;
    const struct connection_events *events;
    struct keel_slice
        read_area; /* where all connections of one loop read to; bytes do not stay there */
    struct frame_reader *reader;
    struct connection_lane lanes[LANES];
    bool open, failed, closing, mute, draining;
    bool writing; /* libuv has a frame, or the rest of one, and will call back */
    struct keel_buf *write_buf;
    uv_write_t write_req;
    uv_connect_t connect_req;
    uv_shutdown_t shutdown_req;
    uint64_t opened_ms, input_ms, output_ms; /* on connection_now_ms's clock */
    char why[200];
};

uint64_t connection_now_ms(void);

/* read_area must outlive the connection. */
void connection_init(struct connection *conn, uv_loop_t *loop, struct keel_slice read_area,
                     const struct connection_events *events);

/* A libuv error; then nothing will be called but, after connection_close, closed. `from` may be
 * NULL. */
int connection_dial(struct connection *conn, const struct sockaddr *from,
                    const struct sockaddr *to);
int connection_accept(struct connection *conn, uv_stream_t *server);

/* Queues whole frames, as keel_message_encode makes them. Fails the connection beyond
 * KEEL_PEER_QUEUE_BYTES in one lane. */
void connection_queue(struct connection *conn, struct keel_buf *frames_take, enum keel_lane lane);
/* Is there nothing left to write? */
bool connection_is_idle(const struct connection *conn);
void connection_flush(struct connection *conn);

/* Looks at no more input, and shuts the output down once all that is queued has been written. The
 * owner closes it when `failed` comes (the other side has closed too) or when it has waited long
 * enough. */
void connection_drain(struct connection *conn);

void connection_fail(struct connection *conn, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
void connection_close(struct connection *conn);

#endif
