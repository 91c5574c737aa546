/* Proxies whose word on their clients is taken (--trusted-proxies): X-Forwarded-For. Pure. */
#pragma once

#include <netinet/in.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/status.h"

#define PROXIES_MAX 64

struct proxies {
    bool has_unix; /* "unix": whoever may use the socket of --unix */
    size_t count;
    struct proxy_range {
        int family; /* AF_INET, AF_INET6 */
        unsigned bits;
        uint8_t address[16];
    } ranges[PROXIES_MAX];
};

/* "10.0.0.0/8,::1,unix"; NULL: none. STATUS_CONFIG with a sentence. */
enum status proxies_parse(const char *list, struct proxies *ret, struct error *err) MUST_USE;

/* Whether a client's address (connection_address()) is one of theirs. */
bool proxies_have(const struct proxies *proxies, const char *address);

/* The last address of `forwarded_for` that is not a trusted proxy's own, in its usual form: true.
 * What is left of an entry that is no address is not believed. False: there is none. */
bool proxies_client(const struct proxies *proxies, const char *forwarded_for,
                    char ret[static INET6_ADDRSTRLEN]);
