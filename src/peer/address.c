/* "host:port": taking it apart, and turning it into a socket address. Nothing here waits for a
 * resolver but address_resolve and peer_address_is_loopback, which are for the start only. */
#include <arpa/inet.h>
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>

#include "err.h"
#include "peer/address.h"

static int copy_part(const char *from, size_t len, char *ret, size_t size)
{
    if (len == 0 || len >= size)
        return KEEL_E_INVALID;
    memcpy(ret, from, len);
    ret[len] = '\0';
    return 0;
}

static bool is_port(const char *text)
{
    size_t len = strlen(text);

    if (len == 0 || len > 5)
        return false;
    for (size_t i = 0; i < len; i++) {
        if (!isdigit((unsigned char)text[i]))
            return false;
    }
    long port = strtol(text, NULL, 10);

    return port >= 1 && port <= 65535;
}

int peer_address_split(const char *address, char *ret_host, size_t host_size, char *ret_port,
                       size_t port_size)
{
    const char *colon = strrchr(address, ':');
    const char *host = address;

    if (colon == NULL || !is_port(colon + 1))
        return KEEL_E_INVALID;
    size_t host_len = (size_t)(colon - address);

    if (host_len >= 2 && host[0] == '[' && host[host_len - 1] == ']') {
        host++;
        host_len -= 2;
    } else if (memchr(host, ':', host_len) != NULL) {
        return KEEL_E_INVALID; /* IPv6 without brackets: which colon is the port's? */
    }
    int err = copy_part(colon + 1, strlen(colon + 1), ret_port, port_size);

    return err != 0 ? err : copy_part(host, host_len, ret_host, host_size);
}

bool address_numeric(const char *host, const char *port, struct sockaddr_storage *ret)
{
    int number = (int)strtol(port, NULL, 10);

    memset(ret, 0, sizeof *ret);
    return uv_ip4_addr(host, number, (struct sockaddr_in *)ret) == 0 ||
           uv_ip6_addr(host, number, (struct sockaddr_in6 *)ret) == 0;
}

int address_resolve(uv_loop_t *loop, const char *host, const char *port,
                    struct sockaddr_storage *ret)
{
    struct addrinfo hints = { .ai_socktype = SOCK_STREAM };
    uv_getaddrinfo_t req;

    if (address_numeric(host, port, ret))
        return 0;
    int err = uv_getaddrinfo(loop, &req, NULL, host, port, &hints);

    if (err != 0)
        return err;
    memcpy(ret, req.addrinfo->ai_addr, req.addrinfo->ai_addrlen);
    uv_freeaddrinfo(req.addrinfo);
    return 0;
}

static bool is_loopback(const struct sockaddr *address)
{
    struct sockaddr_in in;
    struct sockaddr_in6 in6;

    if (address->sa_family == AF_INET) {
        memcpy(&in, address, sizeof in);
        return ntohl(in.sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
    }
    if (address->sa_family != AF_INET6)
        return false;
    memcpy(&in6, address, sizeof in6);
    return IN6_IS_ADDR_LOOPBACK(&in6.sin6_addr);
}

bool peer_address_is_loopback(const char *address)
{
    char host[ADDRESS_HOST_SIZE], port[ADDRESS_PORT_SIZE];
    struct addrinfo hints = { .ai_socktype = SOCK_STREAM }, *found = NULL;
    bool all = true;

    if (peer_address_split(address, host, sizeof host, port, sizeof port) != 0)
        return false;
    if (getaddrinfo(host, port, &hints, &found) != 0)
        return false;
    for (const struct addrinfo *a = found; a != NULL; a = a->ai_next)
        all = all && is_loopback(a->ai_addr);
    freeaddrinfo(found);
    return all;
}

void address_without_port(const struct sockaddr_storage *address, struct sockaddr_storage *ret)
{
    *ret = *address;
    if (ret->ss_family == AF_INET)
        ((struct sockaddr_in *)ret)->sin_port = 0;
    else
        ((struct sockaddr_in6 *)ret)->sin6_port = 0;
}

bool address_is_wildcard(const struct sockaddr_storage *address)
{
    if (address->ss_family == AF_INET)
        return ((const struct sockaddr_in *)address)->sin_addr.s_addr == htonl(INADDR_ANY);
    return IN6_IS_ADDR_UNSPECIFIED(&((const struct sockaddr_in6 *)address)->sin6_addr);
}
