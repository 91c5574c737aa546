/* Parses the PROXY header that a proxy sends before the client's bytes (HAProxy's
 * proxy-protocol.txt, versions 1 and 2). Pure. */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

/* The longest header accepted. Version 1 has at most 107 bytes. Version 2 has at most 232 bytes and
 * extensions of a few hundred bytes. */
#define PROXY_HEADER_MAX 2048

enum proxy_header_state {
    PROXY_HEADER_MORE,    /* the bytes are the beginning of a header */
    PROXY_HEADER_WHOLE,   /* *ret is set */
    PROXY_HEADER_INVALID, /* not a header, or longer than PROXY_HEADER_MAX */
};

struct proxy_header {
    size_t size; /* bytes of the header; the client's bytes begin after it */
    struct sockaddr_storage client;
    socklen_t client_size; /* 0: the header names no client with an IP address */
};

/* `bytes` are all bytes that the connection has received so far. */
enum proxy_header_state proxy_header_parse(const uint8_t *bytes, size_t size,
                                           struct proxy_header *ret);
