/* PROXY headers as proxies send them, cut, and as nobody should send them. */
#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/size.h"
#include "server/http/transport/proxy_header.h"

#define SIGNATURE "\r\n\r\n\0\r\nQUIT\n"
#define V4        "\xC0\0\2\1\xC0\0\2\2\x12\x67\0\x50"
#define V6                                                                                         \
    "\x20\x01\x0d\xb8\0\0\0\0\0\0\0\0\0\0\0\1\x20\x01\x0d\xb8\0\0\0\0\0\0\0\0\0\0\0\2\x12\x67\0"   \
    "\x50"
#define CASE(bytes, state, client)                                                                 \
    {                                                                                              \
        bytes, sizeof bytes - 1, state, client                                                     \
    }

static const struct header_case {
    const char *bytes;
    size_t size;
    enum proxy_header_state state;
    const char *client; /* "" : the connection's own */
} cases[] = {
    CASE("PROXY TCP4 192.0.2.1 192.0.2.2 4711 80\r\n", PROXY_HEADER_WHOLE, "192.0.2.1"),
    CASE("PROXY TCP6 2001:db8::1 2001:db8::2 4711 80\r\n", PROXY_HEADER_WHOLE, "2001:db8::1"),
    CASE("PROXY TCP4 192.0.2.1 192.0.2.2 0 65535\r\n", PROXY_HEADER_WHOLE, "192.0.2.1"),
    CASE("PROXY UNKNOWN\r\n", PROXY_HEADER_WHOLE, ""),
    CASE("PROXY UNKNOWN whatever it says\r\n", PROXY_HEADER_WHOLE, ""),
    CASE("PROXY TCP4 192.0.2.1 192.0.2.2 4711 80\n", PROXY_HEADER_MORE, ""),
    CASE("PROXY TCP4 192.0.2.1 192.0.2.2 4711\r\n", PROXY_HEADER_INVALID, ""),
    CASE("PROXY TCP4 192.0.2.1 192.0.2.2 4711 80 1\r\n", PROXY_HEADER_INVALID, ""),
    CASE("PROXY TCP4 192.0.2.1  192.0.2.2 4711 80\r\n", PROXY_HEADER_INVALID, ""),
    CASE("PROXY TCP4 192.0.2.1 192.0.2.2 4711 65536\r\n", PROXY_HEADER_INVALID, ""),
    CASE("PROXY TCP4 192.0.2.1 192.0.2.2 04711 80\r\n", PROXY_HEADER_INVALID, ""),
    CASE("PROXY TCP4 192.0.2.1 192.0.2.2 -1 80\r\n", PROXY_HEADER_INVALID, ""),
    CASE("PROXY TCP4 192.0.2.01 192.0.2.2 4711 80\r\n", PROXY_HEADER_INVALID, ""),
    CASE("PROXY TCP4 2001:db8::1 2001:db8::2 4711 80\r\n", PROXY_HEADER_INVALID, ""),
    CASE("PROXY TCP6 192.0.2.1 192.0.2.2 4711 80\r\n", PROXY_HEADER_INVALID, ""),
    CASE("PROXY UDP4 192.0.2.1 192.0.2.2 4711 80\r\n", PROXY_HEADER_INVALID, ""),
    CASE("PROXY TCP4 192.0.2.1\0 192.0.2.2 4711 80\r\n", PROXY_HEADER_INVALID, ""),
    CASE("PROXY UNKNOWNS\r\n", PROXY_HEADER_INVALID, ""),
    CASE("PROXY \r\n", PROXY_HEADER_INVALID, ""),
    CASE("proxy TCP4 192.0.2.1 192.0.2.2 4711 80\r\n", PROXY_HEADER_INVALID, ""),
    CASE("GET / HTTP/1.1\r\n\r\n", PROXY_HEADER_INVALID, ""),
    CASE("\x16\x03\x01", PROXY_HEADER_INVALID, ""),
    CASE(SIGNATURE "\x21\x11\0\x0C" V4, PROXY_HEADER_WHOLE, "192.0.2.1"),
    CASE(SIGNATURE "\x21\x11\0\x10" V4 "\x04\0\1\0", PROXY_HEADER_WHOLE, "192.0.2.1"),
    CASE(SIGNATURE "\x21\x21\0\x24" V6, PROXY_HEADER_WHOLE, "2001:db8::1"),
    CASE(SIGNATURE "\x20\0\0\0", PROXY_HEADER_WHOLE, ""),
    CASE(SIGNATURE "\x20\x11\0\x0C" V4, PROXY_HEADER_WHOLE, ""),
    CASE(SIGNATURE "\x21\0\0\0", PROXY_HEADER_WHOLE, ""),
    CASE(SIGNATURE "\x21\x12\0\x0C" V4, PROXY_HEADER_WHOLE, ""),
    CASE(SIGNATURE "\x21\x11\0\x0B" V4, PROXY_HEADER_INVALID, ""),
    CASE(SIGNATURE "\x21\x21\0\x0C" V4, PROXY_HEADER_INVALID, ""),
    CASE(SIGNATURE "\x21\x41\0\0", PROXY_HEADER_INVALID, ""),
    CASE(SIGNATURE "\x21\x13\0\0", PROXY_HEADER_INVALID, ""),
    CASE(SIGNATURE "\x11\x11\0\x0C" V4, PROXY_HEADER_INVALID, ""),
    CASE(SIGNATURE "\x22\x11\0\x0C" V4, PROXY_HEADER_INVALID, ""),
    CASE(SIGNATURE "\x21\x11\xFF\xFF", PROXY_HEADER_INVALID, ""),
    CASE("\r\n\r\nGET / HTTP/1.1\r\n\r\n", PROXY_HEADER_INVALID, ""),
};

/* Behind an exact copy, so that AddressSanitizer sees a read past the end. */
static enum proxy_header_state parse(const char *bytes, size_t size, struct proxy_header *ret)
{
    uint8_t *copy = malloc(size + !size);
    cr_assert_not_null(copy);
    memcpy(copy, bytes, size);
    const enum proxy_header_state state = proxy_header_parse(copy, size, ret);
    free(copy);
    return state;
}

static const char *client_of(const struct proxy_header *header, char text[INET6_ADDRSTRLEN])
{
    const struct sockaddr_in *v4 = (const void *)&header->client;
    const struct sockaddr_in6 *v6 = (const void *)&header->client;
    if (!header->client_size)
        return "";
    const bool is_v4 = header->client.ss_family == AF_INET;
    const unsigned port = ntohs(is_v4 ? v4->sin_port : v6->sin6_port);
    cr_assert(port == 4711 || port == 0, "%u", port);
    return inet_ntop(header->client.ss_family, is_v4 ? (const void *)&v4->sin_addr : &v6->sin6_addr,
                     text, INET6_ADDRSTRLEN);
}

Test(proxy_header, table)
{
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct proxy_header header;
        char text[INET6_ADDRSTRLEN];
        const struct header_case *c = &cases[i];
        cr_expect_eq(parse(c->bytes, c->size, &header), c->state, "case %zu", i);
        if (c->state != PROXY_HEADER_WHOLE)
            continue;
        cr_expect_eq(header.size, c->size, "case %zu", i);
        cr_expect_str_eq(client_of(&header, text), c->client, "case %zu", i);
    }
}

Test(proxy_header, every_cut_asks_for_more)
{
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct proxy_header header;
        for (size_t size = 0; cases[i].state == PROXY_HEADER_WHOLE && size < cases[i].size; size++)
            cr_expect_eq(parse(cases[i].bytes, size, &header), PROXY_HEADER_MORE, "case %zu, %zu",
                         i, size);
    }
}

Test(proxy_header, bytes_after_it_are_the_clients)
{
    struct proxy_header header;
    static const char text[] = "PROXY UNKNOWN\r\nGET / HTTP/1.1\r\n\r\n";
    static const char binary[] = SIGNATURE "\x20\0\0\0GET / HTTP/1.1\r\n\r\n";
    cr_assert_eq(parse(text, sizeof text - 1, &header), PROXY_HEADER_WHOLE);
    cr_assert_eq(header.size, 15);
    cr_assert_eq(parse(binary, sizeof binary - 1, &header), PROXY_HEADER_WHOLE);
    cr_assert_eq(header.size, 16);
}

Test(proxy_header, a_line_has_an_end)
{
    char line[200] = "PROXY UNKNOWN ";
    struct proxy_header header;
    memset(line + 14, 'x', sizeof line - 14);
    cr_assert_eq(parse(line, 106, &header), PROXY_HEADER_MORE);
    cr_assert_eq(parse(line, 107, &header), PROXY_HEADER_INVALID);
    memcpy(line + 105, "\r\n", 2);
    cr_assert_eq(parse(line, 107, &header), PROXY_HEADER_WHOLE);
    memcpy(line + 105, "xx\r\n", 4);
    cr_assert_eq(parse(line, 109, &header), PROXY_HEADER_INVALID);
}
