/* API keys: who may ask for what, and how often.
 *
 * A file has a line a key: a name, the SHA-256 of the key, and if wanted its rate.
 *
 *     # name   hash                rate: requests a second   burst: how many at once
 *     alice    sha256:9f86d081…    rate=10                   burst=20
 *
 * `lensd key NAME` makes a key (256 random bits) and its line. Keys are that long so that a plain
 * hash is enough: nobody can try them all, and the file is of no use to whoever reads it. A key is
 * compared with every line, in time that does not depend on which one fits, or how far.
 *
 * Thread-safe: one lock guards the lines and the buckets of their rates; it is held while they are
 * compared, never while a file is read. GnuTLS (hash, random numbers, comparison) is named in
 * server/http/transport only. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include "engine/base/status.h"
#include "server/http/transport/routes.h"

#define KEY_NAME_MAX  63   /* bytes; letters, digits and -_.@ */
#define KEY_LINES_MAX 1000 /* of a file */
#define KEY_TEXT_MAX  256  /* bytes of a key that is looked at */

struct keyring;

struct keyring_options {
    const char *keys_file;  /* NULL: everybody may ask */
    const char *admin_file; /* NULL: nobody may do what an admin may; the same form */
    bool protect_open;      /* ROUTE_OPEN needs a key, too */
};

/* Reads the files. STATUS_CONFIG with a sentence that names file and line. Texts are borrowed. */
enum status keyring_create(const struct keyring_options *options, struct keyring **ret,
                           struct error *err) MUST_USE;
void keyring_free(struct keyring *keyring); /* NULL is fine */

/* Reads the files again. What is left of a name's rate is kept. On failure everything stays as it
 * was. */
enum status keyring_reload(struct keyring *keyring, struct error *err) MUST_USE;

/* How many lines there are, of both files. */
void keyring_count(struct keyring *keyring, size_t *ret_keys, size_t *ret_admins);

enum key_verdict {
    KEY_GRANTED,
    KEY_MISSING,  /* 401: the route wants one */
    KEY_UNKNOWN,  /* 401: this is none */
    KEY_NO_ADMIN, /* 403: a good key, or none needed, but an admin's is wanted */
    KEY_LIMITED,  /* 429: more often than its rate */
};

/* May `key` (NULL: none was given) use a route that asks for `access`? `name` gets the key's name
 * ("" without one), *ret_wait_s when KEY_LIMITED the seconds until the next request may come. An
 * admin's key is good for everything. A rate is used up by what is granted alone. */
enum key_verdict keyring_check(struct keyring *keyring, enum route_access access, const char *key,
                               char name[static KEY_NAME_MAX + 1], int *ret_wait_s);

/* A new key for `name`, and its line for the file ("alice sha256:…"). rate 0: none. STATUS_CONFIG
 * for a name that cannot be one; STATUS_IO without random numbers. */
#define KEY_LINE_MAX 256
struct key_made {
    char key[80];
    char line[KEY_LINE_MAX];
};
enum status key_make(const char *name, double rate, double burst, struct key_made *ret,
                     struct error *err) MUST_USE;

/* The key in `Authorization: Bearer KEY`, else in `X-API-Key: KEY`; NULL when neither is there.
 * Points into what was given. */
const char *key_given(const char *authorization, const char *x_api_key);
