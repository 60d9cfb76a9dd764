/* Socket addresses out of "host:port". Private to src/peer; peer_address_split is in peer.h. */
#ifndef PEER_ADDRESS_H
#define PEER_ADDRESS_H

#include <uv.h>

#include "peer/peer.h"

enum { ADDRESS_HOST_SIZE = 256, ADDRESS_PORT_SIZE = 6 };

/* True when the host is an IP address: then nobody need be asked. */
bool address_numeric(const char *host, const char *port, struct sockaddr_storage *ret);

/* Waits for the resolver. A libuv error. */
int address_resolve(uv_loop_t *loop, const char *host, const char *port,
                    struct sockaddr_storage *ret);

/* The same address with port 0: for the near end of an outgoing connection. */
void address_without_port(const struct sockaddr_storage *address, struct sockaddr_storage *ret);

/* 0.0.0.0 or ::. */
bool address_is_wildcard(const struct sockaddr_storage *address);

#endif
