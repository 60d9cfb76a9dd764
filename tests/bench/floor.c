/* `floor`: the least that a replicated write can cost on this machine, for comparison. Three
 * processes, each with a zero-filled file, are connected by TCP over loopback; there is no
 * consensus, no file system interface, no index.
 *
 *     client --record--> leader --record--> follower 1, follower 2      each: append, fdatasync
 *     client <--done---- leader <--"n is durable here"-- followers
 *
 * The leader sends to the followers first and appends on a thread of its own meanwhile; record n is
 * done when two of the three have it durable, whichever two. The client has one record outstanding
 * at a time. A slow third may be behind: it then appends all that has arrived with one fdatasync,
 * as any group commit would. */
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench.h"
#include "check.h"

enum { MEMBERS = 3, FOLLOWERS = MEMBERS - 1, QUORUM = 2 };
enum { RECORD_SIZE = 256, FILE_SIZE = 16 << 20, BATCH_MAX = 64 };
enum { WARM_UP_RECORDS = 50, SOCKET_TIMEOUT_S = 20 };

/* Its number is all that matters in it: the first is 1. */
union record {
    uint64_t number;
    uint8_t bytes[RECORD_SIZE];
};

/* ---- the file of a member ---- */

struct appender {
    int fd;
    off_t end;
};

static void appender_open(struct appender *appender, const char *dir, unsigned member)
{
    static const uint8_t zeros[1 << 16];
    char *path = bench_path(dir, "floor", member);

    appender->fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (appender->fd < 0)
        bench_die("cannot create %s: %s", path, strerror(errno));
    unlink(path);
    for (off_t at = 0; at < FILE_SIZE; at += (off_t)sizeof zeros)
        if (pwrite(appender->fd, zeros, sizeof zeros, at) != (ssize_t)sizeof zeros)
            bench_die("cannot fill %s: %s", path, strerror(errno));
    if (fsync(appender->fd) != 0)
        bench_die("cannot sync %s: %s", path, strerror(errno));
    appender->end = 0;
    free(path);
}

static void append_durably(struct appender *appender, const union record *records, size_t count)
{
    size_t size = count * sizeof *records;

    if (appender->end + (off_t)size > FILE_SIZE)
        appender->end = 0;
    if (pwrite(appender->fd, records, size, appender->end) != (ssize_t)size)
        bench_die("floor: cannot append: %s", strerror(errno));
    if (fdatasync(appender->fd) != 0)
        bench_die("floor: cannot sync: %s", strerror(errno));
    appender->end += (off_t)size;
}

/* ---- sockets ---- */

static int listen_on_loopback(struct sockaddr_in *ret_address)
{
    struct sockaddr_in address = { .sin_family = AF_INET,
                                   .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t length = sizeof *ret_address;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof address) != 0 ||
        listen(fd, 1) != 0 || getsockname(fd, (struct sockaddr *)ret_address, &length) != 0)
        bench_die("floor: cannot listen on loopback: %s", strerror(errno));
    return fd;
}

/* Nothing here waits for ever for a process that is gone. */
static void prepare_socket(int fd)
{
    struct timeval timeout = { .tv_sec = SOCKET_TIMEOUT_S };
    int on = 1;

    if (setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) != 0 ||
        setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout) != 0)
        bench_die("floor: cannot set up a socket: %s", strerror(errno));
}

static int accept_one(int listener)
{
    int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);

    if (fd < 0)
        bench_die("floor: cannot accept: %s", strerror(errno));
    prepare_socket(fd);
    close(listener);
    return fd;
}

static int connect_to(const struct sockaddr_in *address)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (fd < 0 || connect(fd, (const struct sockaddr *)address, sizeof *address) != 0)
        bench_die("floor: cannot connect: %s", strerror(errno));
    prepare_socket(fd);
    return fd;
}

static void send_all(int fd, const void *data, size_t size)
{
    const uint8_t *at = data;

    while (size > 0) {
        ssize_t n = send(fd, at, size, MSG_NOSIGNAL);

        if (n < 0)
            bench_die("floor: cannot send: %s", strerror(errno));
        at += n;
        size -= (size_t)n;
    }
}

/* The next whole items of `item_size`, 1 to `max`, waiting for the first; 0 at the end of the
 * stream. */
static size_t receive_items(int fd, void *items, size_t item_size, size_t max)
{
    size_t have = 0;

    while (have == 0 || have % item_size != 0) {
        size_t room = have == 0 ? max * item_size : item_size - have % item_size;
        ssize_t n = recv(fd, (uint8_t *)items + have, room, 0);

        if (n < 0)
            bench_die("floor: cannot receive: %s", strerror(errno));
        if (n == 0)
            return 0;
        have += (size_t)n;
    }
    return have / item_size;
}

/* ---- a follower ---- */

static void follower_run(struct appender *appender, int listener)
{
    union record records[BATCH_MAX];
    int leader = accept_one(listener);
    size_t count;

    while ((count = receive_items(leader, records, sizeof *records, BATCH_MAX)) > 0) {
        append_durably(appender, records, count);
        send_all(leader, &records[count - 1].number, sizeof records->number);
    }
}

/* ---- the leader ---- */

struct leader {
    struct appender *appender;
    int client, followers[FOLLOWERS];
    int synced;                /* eventfd: own_durable has grown */
    atomic_ulong own_durable;  /* the last record that is durable here */
    uint64_t durable[MEMBERS]; /* the same of each member, own first; for the network thread */
    uint64_t done;             /* told to the client */

    pthread_mutex_t mutex; /* of the rest: records on their way to the appending thread */
    pthread_cond_t changed;
    union record queue[BATCH_MAX];
    size_t queued;
};

static void queue_record(struct leader *leader, const union record *record)
{
    pthread_mutex_lock(&leader->mutex);
    while (leader->queued == BATCH_MAX)
        pthread_cond_wait(&leader->changed, &leader->mutex);
    leader->queue[leader->queued++] = *record;
    pthread_cond_broadcast(&leader->changed);
    pthread_mutex_unlock(&leader->mutex);
}

static void *append_run(void *arg)
{
    struct leader *leader = arg;
    union record batch[BATCH_MAX];
    uint64_t one = 1;
    size_t count;

    for (;;) {
        pthread_mutex_lock(&leader->mutex);
        while (leader->queued == 0)
            pthread_cond_wait(&leader->changed, &leader->mutex);
        count = leader->queued;
        memcpy(batch, leader->queue, count * sizeof *batch);
        leader->queued = 0;
        pthread_cond_broadcast(&leader->changed);
        pthread_mutex_unlock(&leader->mutex);

        append_durably(leader->appender, batch, count);
        atomic_store(&leader->own_durable, batch[count - 1].number);
        if (write(leader->synced, &one, sizeof one) != (ssize_t)sizeof one)
            bench_die("floor: cannot wake the leader: %s", strerror(errno));
    }
    return NULL;
}

/* The last record that a quorum has: of three, the one in the middle. */
static uint64_t quorum_durable(const uint64_t durable[MEMBERS])
{
    for (int i = 0; i < MEMBERS; i++) {
        int at_least = 0, more = 0;

        for (int j = 0; j < MEMBERS; j++) {
            at_least += durable[j] >= durable[i];
            more += durable[j] > durable[i];
        }
        if (at_least >= QUORUM && more < QUORUM)
            return durable[i];
    }
    keel_fatal("floor: no record is the quorum's");
}

static void tell_client(struct leader *leader)
{
    uint64_t durable = quorum_durable(leader->durable);

    if (durable <= leader->done)
        return;
    leader->done = durable;
    send_all(leader->client, &durable, sizeof durable);
}

/* False at the end of the client's stream. */
static bool take_record(struct leader *leader)
{
    union record record;

    if (receive_items(leader->client, &record, sizeof record, 1) == 0)
        return false;
    for (int i = 0; i < FOLLOWERS; i++)
        send_all(leader->followers[i], &record, sizeof record);
    queue_record(leader, &record);
    return true;
}

static void take_acknowledgement(struct leader *leader, int follower)
{
    uint64_t numbers[BATCH_MAX];
    size_t count = receive_items(leader->followers[follower], numbers, sizeof *numbers, BATCH_MAX);

    if (count == 0)
        bench_die("floor: a follower has ended");
    leader->durable[1 + follower] = numbers[count - 1];
}

static void take_own(struct leader *leader)
{
    uint64_t ignored;

    if (read(leader->synced, &ignored, sizeof ignored) != (ssize_t)sizeof ignored)
        bench_die("floor: cannot read an eventfd: %s", strerror(errno));
    leader->durable[0] = atomic_load(&leader->own_durable);
}

static void leader_serve(struct leader *leader)
{
    struct pollfd polled[] = { { .fd = leader->client, .events = POLLIN },
                               { .fd = leader->synced, .events = POLLIN },
                               { .fd = leader->followers[0], .events = POLLIN },
                               { .fd = leader->followers[1], .events = POLLIN } };

    for (;;) {
        if (poll(polled, KEEL_ARRAY_LEN(polled), -1) < 0)
            bench_die("floor: cannot poll: %s", strerror(errno));
        if (polled[1].revents)
            take_own(leader);
        for (int i = 0; i < FOLLOWERS; i++)
            if (polled[2 + i].revents)
                take_acknowledgement(leader, i);
        tell_client(leader);
        if (polled[0].revents && !take_record(leader))
            return;
    }
}

static void leader_run(struct appender *appender, int listener,
                       const struct sockaddr_in followers[FOLLOWERS])
{
    static struct leader leader = { .mutex = PTHREAD_MUTEX_INITIALIZER,
                                    .changed = PTHREAD_COND_INITIALIZER };
    pthread_t thread;

    leader.appender = appender;
    for (int i = 0; i < FOLLOWERS; i++)
        leader.followers[i] = connect_to(&followers[i]);
    leader.client = accept_one(listener);
    leader.synced = eventfd(0, EFD_CLOEXEC);
    if (leader.synced < 0 || pthread_create(&thread, NULL, append_run, &leader) != 0)
        bench_die("floor: cannot start the appending thread");
    leader_serve(&leader);
}

/* ---- the client, and the processes ---- */

/* Member 0 is the leader. The children end with their connections, or with the client. */
static void start_member(int member, struct appender *appender, const int listeners[MEMBERS],
                         const struct sockaddr_in addresses[MEMBERS])
{
    pid_t parent = getpid(), pid = fork();

    if (pid < 0)
        bench_die("floor: cannot fork: %s", strerror(errno));
    if (pid > 0)
        return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(1);
    for (int i = 0; i < MEMBERS; i++)
        if (i != member)
            close(listeners[i]);
    if (member == 0)
        leader_run(appender, listeners[0], &addresses[1]);
    else
        follower_run(appender, listeners[member]);
    _exit(0);
}

/* The time that one record takes from sending to being done. */
static uint64_t write_one(int leader, union record *record)
{
    uint64_t from = bench_now_ns(), done;

    record->number++;
    send_all(leader, record, sizeof *record);
    if (receive_items(leader, &done, sizeof done, 1) != 1 || done != record->number)
        bench_die("floor: the leader has ended");
    return bench_now_ns() - from;
}

static void client_measure(const struct bench_options *options, int leader, json_t *ret)
{
    union record record = { .bytes = { 0 } };
    struct bench_samples samples;
    uint64_t begin_ns, end_ns, now_ns;

    bench_samples_init(&samples);
    for (int i = 0; i < WARM_UP_RECORDS; i++)
        write_one(leader, &record);
    begin_ns = now_ns = bench_now_ns();
    end_ns = begin_ns + bench_seconds_to_ns(options->seconds);
    do {
        bench_samples_add(&samples, now_ns, write_one(leader, &record));
        now_ns = bench_now_ns();
    } while (now_ns < end_ns);
    bench_set_count(ret, "count", samples.count);
    bench_set_number(ret, "rate", (double)samples.count * 1e9 / (double)(now_ns - begin_ns));
    bench_samples_report(&samples, "latency", ret);
    bench_samples_free(&samples);
}

void bench_floor(const struct bench_options *options, json_t *ret)
{
    struct appender appenders[MEMBERS];
    struct sockaddr_in addresses[MEMBERS];
    int listeners[MEMBERS], leader;

    for (int i = 0; i < MEMBERS; i++) {
        appender_open(&appenders[i], options->dirs[0], (unsigned)i);
        listeners[i] = listen_on_loopback(&addresses[i]);
    }
    for (int i = 0; i < MEMBERS; i++)
        start_member(i, &appenders[i], listeners, addresses);
    for (int i = 0; i < MEMBERS; i++)
        close(listeners[i]);
    leader = connect_to(&addresses[0]);
    client_measure(options, leader, ret);
    close(leader);
    for (int i = 0; i < MEMBERS; i++)
        if (wait(NULL) < 0)
            bench_die("floor: cannot wait for a member: %s", strerror(errno));
}
