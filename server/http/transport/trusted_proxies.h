/* Trusted proxies (--trusted-proxies): their X-Forwarded-For header names the client. Pure. */
#pragma once

#include <netinet/in.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/status.h"

#define TRUSTED_PROXIES_MAX 64

struct trusted_proxies {
    bool has_unix; /* "unix": every client of the --unix socket is trusted */
    size_t count;
    struct proxy_range {
        int family; /* AF_INET, AF_INET6 */
        unsigned bits;
        uint8_t address[16];
    } ranges[TRUSTED_PROXIES_MAX];
};

/* Parses a list such as "10.0.0.0/8,::1,unix"; NULL is the empty list. STATUS_CONFIG. */
enum status trusted_proxies_parse(const char *list, struct trusted_proxies *ret,
                                  struct error *err) MUST_USE;

#define PEER_ADDRESS_MAX INET6_ADDRSTRLEN

/* Writes the address of a socket's peer: "192.0.2.1" (also for IPv4-mapped IPv6), "2001:db8::1",
 * "uid:1000" for a Unix socket, or "local" if its user is unknown. `address`: from accept(), or the
 * client that a PROXY header names. */
void trusted_proxies_text(int fd, const struct sockaddr *address,
                          char text[static PEER_ADDRESS_MAX]);

/* Whether `address` (of trusted_proxies_text()) is a trusted proxy. */
bool trusted_proxies_have(const struct trusted_proxies *proxies, const char *address);

/* Finds the client in `forwarded_for`: the last address that is not a trusted proxy's, or the first
 * address if all are. The search begins at the last address and ends at an invalid one. Writes the
 * address in canonical form. Returns false if the last entry is invalid. */
bool trusted_proxies_client(const struct trusted_proxies *proxies, const char *forwarded_for,
                            char ret[static INET6_ADDRSTRLEN]);
