/* Reads --trusted-proxies and X-Forwarded-For. */
#include "server/http/transport/trusted_proxies.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

/* Reads an address. Turns IPv4-mapped ones, which sockets for both families report, into IPv4. */
static bool read_address(const char *text, int *ret_family, uint8_t ret[static 16])
{
    static const uint8_t mapped[12] = {[10] = 0xFF, [11] = 0xFF};
    *ret_family = strchr(text, ':') ? AF_INET6 : AF_INET;
    memset(ret, 0, 16);
    if (inet_pton(*ret_family, text, ret) != 1)
        return false;
    if (*ret_family == AF_INET6 && !memcmp(ret, mapped, sizeof mapped)) {
        *ret_family = AF_INET;
        memmove(ret, ret + 12, 4);
        memset(ret + 4, 0, 12);
    }
    return true;
}

static bool read_range(char *text, struct proxy_range *ret)
{
    char *slash = strchr(text, '/'), *end;
    if (slash)
        *slash++ = '\0';
    if (!read_address(text, &ret->family, ret->address))
        return false;
    const unsigned most = ret->family == AF_INET ? 32 : 128;
    ret->bits = most;
    if (!slash)
        return true;
    const unsigned long bits = strtoul(slash, &end, 10);
    ret->bits = (unsigned)bits;
    return isdigit((unsigned char)*slash) && !*end && bits <= most;
}

enum status trusted_proxies_parse(const char *list, struct trusted_proxies *ret, struct error *err)
{
    *ret = (struct trusted_proxies){.count = 0};
    while (list && *list) {
        char entry[INET6_ADDRSTRLEN + 8] = "";
        const size_t length = strcspn(list, ",");
        if (length < sizeof entry)
            memcpy(entry, list, length);
        if (!strcmp(entry, "unix"))
            ret->has_unix = true;
        else if (ret->count == TRUSTED_PROXIES_MAX)
            return error_set(err, STATUS_CONFIG, "--trusted-proxies has more than %d entries",
                             TRUSTED_PROXIES_MAX);
        else if (!read_range(entry, &ret->ranges[ret->count++]))
            return error_set(err, STATUS_CONFIG,
                             "--trusted-proxies has '%.*s'; write addresses, ranges such as "
                             "10.0.0.0/8, or unix, with commas between them",
                             length < 80 ? (int)length : 80, list);
        list += length;
        list += *list == ',';
    }
    return STATUS_OK;
}

static bool in_range(const struct proxy_range *range, int family, const uint8_t address[static 16])
{
    const unsigned bytes = range->bits / 8, rest = range->bits % 8;
    return range->family == family && !memcmp(range->address, address, bytes) &&
           (rest == 0 || (range->address[bytes] ^ address[bytes]) >> (8 - rest) == 0);
}

bool trusted_proxies_have(const struct trusted_proxies *proxies, const char *address)
{
    uint8_t binary[16];
    int family;
    if (proxies->has_unix && !strncmp(address, "uid:", 4))
        return true;
    if (proxies->count == 0 || !read_address(address, &family, binary))
        return false;
    for (size_t i = 0; i < proxies->count; i++)
        if (in_range(&proxies->ranges[i], family, binary))
            return true;
    return false;
}

/* Reads an element of X-Forwarded-For: an address, which may have a port ("192.0.2.1:4711",
 * "[2001:db8::1]:4711") or brackets. */
static bool read_element(const char *from, const char *to, int *ret_family, uint8_t ret[static 16])
{
    char text[sizeof "[]:65535" + INET6_ADDRSTRLEN] = "";
    char *address = text, *port = NULL;
    if ((size_t)(to - from) >= sizeof text)
        return false;
    memcpy(text, from, (size_t)(to - from));
    if (text[0] == '[') {
        address = text + 1;
        char *end = strchr(address, ']');
        if (!end || (end[1] && end[1] != ':') || !strchr(address, ':') ||
            strchr(address, ':') > end)
            return false;
        port = end[1] ? end + 2 : NULL;
        *end = '\0';
    } else if (strchr(text, ':') && strchr(text, ':') == strrchr(text, ':')) {
        port = strchr(text, ':') + 1;
        port[-1] = '\0';
    }
    if (port && (!*port || strlen(port) > 5 || port[strspn(port, "0123456789")]))
        return false;
    return read_address(address, ret_family, ret);
}

bool trusted_proxies_client(const struct trusted_proxies *proxies, const char *forwarded_for,
                            char ret[static INET6_ADDRSTRLEN])
{
    const char *end = forwarded_for + strlen(forwarded_for);
    bool found = false;
    while (end > forwarded_for) {
        uint8_t binary[16];
        int family;
        const char *start = end;
        while (start > forwarded_for && start[-1] != ',')
            start--;
        const char *from = start + strspn(start, " \t"), *to = end;
        while (to > from && (to[-1] == ' ' || to[-1] == '\t'))
            to--;
        if (to <= from || !read_element(from, to, &family, binary))
            return found;
        (void)inet_ntop(family, binary, ret, INET6_ADDRSTRLEN);
        found = true;
        if (!trusted_proxies_have(proxies, ret))
            return true;
        end = start > forwarded_for ? start - 1 : start;
    }
    return found;
}

void trusted_proxies_text(int fd, const struct sockaddr *address,
                          char text[static PEER_ADDRESS_MAX])
{
    struct ucred peer;
    socklen_t size = sizeof peer;
    const int family = address ? address->sa_family : AF_UNSPEC;
    if (family == AF_INET || family == AF_INET6) {
        const struct sockaddr_in *v4 = (const void *)address;
        const struct sockaddr_in6 *v6 = (const void *)address;
        const bool is_mapped = family == AF_INET6 && IN6_IS_ADDR_V4MAPPED(&v6->sin6_addr);
        const void *binary = family == AF_INET ? (const void *)&v4->sin_addr
                                               : &v6->sin6_addr.s6_addr[is_mapped ? 12 : 0];
        (void)inet_ntop(is_mapped ? AF_INET : family, binary, text, PEER_ADDRESS_MAX);
    } else if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 &&
               peer.uid != (uid_t)-1) {
        /* A client in another container may have no pid here, but it has a user. */
        snprintf(text, PEER_ADDRESS_MAX, "uid:%u", (unsigned)peer.uid);
    } else {
        memcpy(text, "local", sizeof "local");
    }
}
