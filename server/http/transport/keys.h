/* API keys: who may send which requests, and how often.
 *
 * A file has one line for each key: a name, the SHA-256 of the key, and an optional rate limit:
 *
 *     # name   hash                rate: per second   burst: at once
 *     alice    sha256:9f86d081…    rate=10                   burst=20
 *
 * `lensd key NAME` makes a key (256 random bits) and its line. Nobody can guess a key of that
 * length from its hash, so a stolen file gives no access. A key is compared with every line in
 * constant time, so that the time reveals nothing about the lines.
 *
 * Thread-safe. One lock guards the lines and their rate limits. The lock is held during
 * comparisons, but not while a file is read. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include "engine/base/status.h"
#include "server/http/transport/routes.h"
#include "server/observe/metrics.h"

#define KEY_NAME_MAX 63   /* bytes; letters, digits and -_.@ */
#define KEYS_MAX     2000 /* keys in both files together */
#define KEY_TEXT_MAX 256  /* bytes of the longest key that is compared */

struct keyring;

struct keyring_options {
    const char *keys_file;   /* NULL: no key is needed */
    const char *admin_file;  /* keys of admins, in the same format; NULL: none */
    bool protect_open;       /* ROUTE_OPEN needs a key, too */
    struct metrics *metrics; /* borrowed; NULL: nothing is counted */
};

/* Reads the files. STATUS_CONFIG names file and line; STATUS_NO_MEMORY. Borrows the texts. The
 * caller frees *ret, also after a failure. */
enum status keyring_create(const struct keyring_options *options, struct keyring **ret,
                           struct error *err) MUST_USE;
void keyring_free(struct keyring *keyring); /* accepts NULL */

/* Reads the files again. A key's name keeps its count of requests. On failure nothing changes. */
enum status keyring_reload(struct keyring *keyring, struct error *err) MUST_USE;

/* Returns the number of keys in keys_file and in admin_file. */
void keyring_count(struct keyring *keyring, size_t *ret_keys, size_t *ret_admins);

enum key_verdict {
    KEY_GRANTED,
    KEY_MISSING,  /* 401: the route needs a key */
    KEY_UNKNOWN,  /* 401: no line has this key */
    KEY_NO_ADMIN, /* 403: the route needs an admin's key */
    KEY_LIMITED,  /* 429: the key is over its rate */
};

/* Checks whether `key` (NULL: not given) allows a route with `access`. `name` receives the key's
 * name, "" without a known key. With KEY_LIMITED *ret_wait_s is the number of seconds until the
 * next request is allowed. An admin's key allows every route. Only granted requests count towards a
 * rate. Metrics count granted and limited requests for each key's name. */
enum key_verdict keyring_check(struct keyring *keyring, enum route_access access, const char *key,
                               char name[static KEY_NAME_MAX + 1], int *ret_wait_s);

/* Makes a key for `name` and its line for the file ("alice sha256:…"). rate, burst: numbers, as in
 * that file; NULL: no limit. STATUS_CONFIG for a malformed name or number; STATUS_IO when the
 * system has no random numbers. */
#define KEY_LINE_MAX 256
struct key_made {
    char key[80];
    char line[KEY_LINE_MAX];
};
enum status key_make(const char *name, const char *rate, const char *burst, struct key_made *ret,
                     struct error *err) MUST_USE;
