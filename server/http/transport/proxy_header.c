/* Parses PROXY headers, versions 1 (text) and 2 (binary). */
#include "server/http/transport/proxy_header.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/size.h"

#define TEXT_MAX    107 /* maximum bytes of a version 1 header, with CR LF */
#define BINARY_HEAD 16  /* bytes of version 2's signature, command, family and length */

static const char text_start[] = "PROXY ";
static const uint8_t binary_start[] = {'\r', '\n', '\r', '\n', 0,   '\r',
                                       '\n', 'Q',  'U',  'I',  'T', '\n'};

static void set_client(struct proxy_header *ret, bool is_v6, const void *address, uint16_t port)
{
    struct sockaddr_in *v4 = (void *)&ret->client;
    struct sockaddr_in6 *v6 = (void *)&ret->client;
    ret->client.ss_family = is_v6 ? AF_INET6 : AF_INET;
    v4->sin_port = htons(port); /* at the same offset as sin6_port */
    if (is_v6)
        memcpy(&v6->sin6_addr, address, sizeof v6->sin6_addr);
    else
        memcpy(&v4->sin_addr, address, sizeof v4->sin_addr);
    ret->client_size = is_v6 ? sizeof *v6 : sizeof *v4;
}

/* Accepts 0 … 65535 in decimal digits, without leading zeros. */
static bool parse_port(const char *text, uint16_t *ret)
{
    const unsigned long value = strtoul(text, NULL, 10);
    *ret = (uint16_t)value;
    return *text && !text[strspn(text, "0123456789")] && (*text != '0' || !text[1]) &&
           value <= UINT16_MAX;
}

/* `line`: "TCP4 192.0.2.1 192.0.2.2 4711 80", or "UNKNOWN" and whatever follows. */
static bool parse_line(char *line, struct proxy_header *ret)
{
    char *fields[5], *rest = line;
    uint8_t source[16], target[16];
    uint16_t source_port, target_port;
    size_t count = 0;
    if (!strncmp(line, "UNKNOWN", 7) && (!line[7] || line[7] == ' '))
        return true;
    while (rest && count < COUNT_OF(fields))
        fields[count++] = strsep(&rest, " ");
    const bool is_v6 = !strcmp(fields[0], "TCP6");
    const int family = is_v6 ? AF_INET6 : AF_INET;
    if (rest || count < COUNT_OF(fields) || (!is_v6 && strcmp(fields[0], "TCP4") != 0) ||
        inet_pton(family, fields[1], source) != 1 || inet_pton(family, fields[2], target) != 1 ||
        !parse_port(fields[3], &source_port) || !parse_port(fields[4], &target_port))
        return false;
    set_client(ret, is_v6, source, source_port);
    return true;
}

static enum proxy_header_state parse_text(const uint8_t *bytes, size_t size,
                                          struct proxy_header *ret)
{
    char line[TEXT_MAX + 1];
    const size_t most = size < TEXT_MAX ? size : TEXT_MAX;
    const uint8_t *end = memmem(bytes, most, "\r\n", 2);
    if (!end)
        return size < TEXT_MAX ? PROXY_HEADER_MORE : PROXY_HEADER_INVALID;
    const size_t start = sizeof text_start - 1, length = (size_t)(end - bytes) - start;
    memcpy(line, bytes + start, length);
    line[length] = '\0';
    ret->size = (size_t)(end - bytes) + 2;
    return strlen(line) == length && parse_line(line, ret) ? PROXY_HEADER_WHOLE
                                                           : PROXY_HEADER_INVALID;
}

static uint16_t big_endian(const uint8_t *bytes)
{
    return (uint16_t)(bytes[0] << 8 | bytes[1]);
}

static enum proxy_header_state parse_binary(const uint8_t *bytes, size_t size,
                                            struct proxy_header *ret)
{
    enum { LOCAL = 0x20, PROXIED = 0x21, TCP4 = 0x11, TCP6 = 0x21, FAMILY_MOST = 3, KIND_MOST = 2 };
    if (size < BINARY_HEAD)
        return PROXY_HEADER_MORE;
    const uint8_t command = bytes[12], family = bytes[13], *body = bytes + BINARY_HEAD;
    const size_t length = big_endian(bytes + 14);
    if ((command != LOCAL && command != PROXIED) || BINARY_HEAD + length > PROXY_HEADER_MAX)
        return PROXY_HEADER_INVALID;
    if (size < BINARY_HEAD + length)
        return PROXY_HEADER_MORE;
    ret->size = BINARY_HEAD + length;
    if (command == LOCAL) /* a health check of the proxy itself */
        return PROXY_HEADER_WHOLE;
    const bool is_v6 = family == TCP6;
    const size_t bytes_of_one = is_v6 ? 16 : 4;
    if (family != TCP4 && !is_v6) /* Unix sockets, datagrams, unspecified: no address to use */
        return family >> 4 <= FAMILY_MOST && (family & 0xF) <= KIND_MOST ? PROXY_HEADER_WHOLE
                                                                         : PROXY_HEADER_INVALID;
    if (length < 2 * bytes_of_one + 4) /* too short for two addresses and two ports */
        return PROXY_HEADER_INVALID;
    set_client(ret, is_v6, body, big_endian(body + 2 * bytes_of_one));
    return PROXY_HEADER_WHOLE;
}

enum proxy_header_state proxy_header_parse(const uint8_t *bytes, size_t size,
                                           struct proxy_header *ret)
{
    const size_t text = sizeof text_start - 1, binary = sizeof binary_start;
    *ret = (struct proxy_header){.size = 0};
    if (!memcmp(bytes, text_start, size < text ? size : text))
        return size < text ? PROXY_HEADER_MORE : parse_text(bytes, size, ret);
    if (!memcmp(bytes, binary_start, size < binary ? size : binary))
        return size < binary ? PROXY_HEADER_MORE : parse_binary(bytes, size, ret);
    return PROXY_HEADER_INVALID;
}
