/* A new node asks to be let in. Blocking, on one plain socket: at that time nothing else is there
 * yet. */
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

#include "err.h"
#include "peer/address.h"
#include "peer/connection.h"
#include "peer/handshake.h"

struct asking {
    int fd;
    uint64_t deadline_ms;
    struct frame_reader *reader;
    struct keel_message *answer;
};

/* 0, or a positive errno: ETIMEDOUT once the time is over. */
static int wait_for(const struct asking *ask, short events)
{
    struct pollfd poll_fd = { .fd = ask->fd, .events = events };

    for (;;) {
        uint64_t now = connection_now_ms();
        uint64_t left = now < ask->deadline_ms ? ask->deadline_ms - now : 0;
        int n = left > 0 ? poll(&poll_fd, 1, left < INT32_MAX ? (int)left : INT32_MAX) : 0;

        if (n > 0)
            return 0;
        if (n == 0 && connection_now_ms() >= ask->deadline_ms)
            return ETIMEDOUT;
        if (n < 0 && errno != EINTR)
            return errno;
    }
}

static int connect_to(struct asking *ask, const struct addrinfo *to)
{
    socklen_t len = sizeof(int);
    int err = 0;

    ask->fd = socket(to->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (ask->fd < 0)
        return errno;
    if (connect(ask->fd, to->ai_addr, to->ai_addrlen) == 0)
        return 0;
    if (errno != EINPROGRESS)
        return errno;
    err = wait_for(ask, POLLOUT);
    if (err == 0 && getsockopt(ask->fd, SOL_SOCKET, SO_ERROR, &err, &len) != 0)
        err = errno;
    return err;
}

/* The first of the addresses at which somebody listens. */
static int connect_to_any(struct asking *ask, const struct addrinfo *found)
{
    int err = EADDRNOTAVAIL;

    for (const struct addrinfo *to = found; to != NULL; to = to->ai_next) {
        err = connect_to(ask, to);
        if (err == 0)
            return 0;
        if (ask->fd >= 0)
            close(ask->fd);
        ask->fd = -1;
    }
    return err;
}

static int send_all(const struct asking *ask, struct keel_slice bytes)
{
    while (bytes.len > 0) {
        ssize_t n = send(ask->fd, bytes.data, bytes.len, MSG_NOSIGNAL);

        if (n >= 0) {
            bytes.data += n;
            bytes.len -= (size_t)n;
            continue;
        }
        int err = errno == EAGAIN ? wait_for(ask, POLLOUT) : errno == EINTR ? 0 : errno;

        if (err != 0)
            return err;
    }
    return 0;
}

static int send_join(const struct asking *ask, const char *name, uint64_t incarnation)
{
    struct keel_message *join = handshake_join(name, incarnation);
    struct keel_buf *frames = keel_message_encode(join);
    int err = send_all(ask, keel_buf_slice(frames));

    keel_buf_free(frames);
    keel_message_free(join);
    return err;
}

/* The first message is the answer; whatever follows is not looked at. */
static int take_answer(void *arg, struct keel_message *msg_take)
{
    struct asking *ask = arg;

    ask->answer = msg_take;
    return KEEL_E_CLOSED;
}

/* 0: there is an answer. EPROTO: what was sent is none. */
static int receive_answer(struct asking *ask)
{
    uint8_t bytes[4096];

    while (ask->answer == NULL) {
        int err = wait_for(ask, POLLIN);

        if (err != 0)
            return err;
        ssize_t n = recv(ask->fd, bytes, sizeof bytes, 0);

        if (n == 0)
            return ECONNRESET;
        if (n < 0 && errno != EAGAIN && errno != EINTR)
            return errno;
        if (n > 0 && frame_reader_feed(ask->reader, keel_slice_of(bytes, (size_t)n), take_answer,
                                       ask) == KEEL_E_MALFORMED)
            return EPROTO;
    }
    return 0;
}

/* What the answer says, whichever it is. */
static int read_answer(const struct keel_message *answer, const char *address,
                       struct peer_welcome *ret_welcome, char *ret_why, size_t why_size)
{
    int err = KEEL_E_MALFORMED;
    enum peer_refusal kind;

    if (answer->type == MESSAGE_REFUSAL) {
        err = handshake_read_refusal(keel_buf_slice(answer->data), &kind, ret_why, why_size);
        if (err == 0)
            return KEEL_E_PERM;
    } else if (answer->type == MESSAGE_WELCOME) {
        err = handshake_read_welcome(keel_buf_slice(answer->data), ret_welcome);
        if (err == 0)
            return 0;
        peer_welcome_free(ret_welcome);
    }
    snprintf(ret_why, why_size, "what answers at %s is not a keelfs of this release", address);
    return err;
}

static int resolve(const char *address, struct addrinfo **ret_found, char *ret_why, size_t why_size)
{
    char host[ADDRESS_HOST_SIZE], port[ADDRESS_PORT_SIZE];
    struct addrinfo hints = { .ai_socktype = SOCK_STREAM };

    if (peer_address_split(address, host, sizeof host, port, sizeof port) != 0) {
        snprintf(ret_why, why_size, "'%s' is not host:port (IPv6: [address]:port)", address);
        return KEEL_E_INVALID;
    }
    int err = getaddrinfo(host, port, &hints, ret_found);

    if (err != 0) {
        snprintf(ret_why, why_size, "'%s' cannot be resolved (%s)", address, gai_strerror(err));
        return KEEL_E_TIMEDOUT;
    }
    return 0;
}

int peer_join(const char *address, const char *name, uint64_t incarnation, unsigned timeout_ms,
              struct peer_welcome *ret_welcome, char *ret_why, size_t why_size)
{
    struct asking ask = { .fd = -1, .deadline_ms = connection_now_ms() + timeout_ms };
    struct addrinfo *found = NULL;
    int err = resolve(address, &found, ret_why, why_size);

    if (err != 0)
        return err;
    ask.reader = frame_reader_new();
    int sys = connect_to_any(&ask, found);

    freeaddrinfo(found);
    if (sys == 0)
        sys = send_join(&ask, name, incarnation);
    if (sys == 0)
        sys = receive_answer(&ask);
    if (sys == 0) {
        err = read_answer(ask.answer, address, ret_welcome, ret_why, why_size);
    } else {
        snprintf(ret_why, why_size, "no answer from %s (%s)", address, strerror(sys));
        err = sys == EPROTO ? KEEL_E_MALFORMED : KEEL_E_TIMEDOUT;
    }
    if (ask.fd >= 0)
        close(ask.fd);
    frame_reader_free(ask.reader);
    keel_message_free(ask.answer);
    return err;
}
