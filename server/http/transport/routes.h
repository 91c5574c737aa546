/* Routes: path, methods, handler. 404, 405 with its Allow header, HEAD for what has GET, and the
 * bound of a body all follow from the table that the server is given. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "engine/base/status.h"

struct dialect;
struct exchange;

enum method {
    METHOD_GET = 1u << 0,
    METHOD_HEAD = 1u << 1,
    METHOD_POST = 1u << 2,
    METHOD_OPTIONS = 1u << 3, /* said of every route; in the table: it has an answer of its own */
    METHOD_PUT = 1u << 4,
};

/* Who may use a route (keys.h). */
enum route_access {
    ROUTE_KEY,          /* whoever has a key, where there are keys; not on --admin-port */
    ROUTE_STATUS,       /* the same, and on --admin-port, too: what operators read */
    ROUTE_OPEN,         /* everybody: health, metrics, pages; unless --protect-health */
    ROUTE_ADMIN,        /* only an admin's key; nobody where there is none */
    ROUTE_ADMIN_WRITES, /* to GET it ROUTE_KEY, for all else ROUTE_ADMIN */
};

/* What the path of a request says where the route's has a {name}. */
struct route_match {
    char model[128];  /* {model}; "" without one */
    char version[32]; /* {version} */
};

struct route {
    /* Segments are literal, or "{model}", "{version}" with a literal tail ("{model}:predict"), or
     * "{number}", a version of digits only. */
    const char *path;
    unsigned methods; /* enum method, several */
    bool takes_body;
    /* NULL, or: can this be served now? Asked before the body is read; an error becomes
     * the answer. It may also answer by itself and return STATUS_OK. */
    enum status (*admit)(struct exchange *exchange, struct error *err);
    /* Called with the whole body: answers (respond.h), or waits (exchange_wait). */
    void (*handle)(struct exchange *exchange);
    const char *about; /* for GET / */
    enum route_access access;
    const char *advice;            /* for a client that uses another method: what to do; or NULL */
    const struct dialect *dialect; /* whose requests, answers and errors; NULL: lensd's own */
    bool is_message;               /* the Open Inference Protocol's messages, not JSON */
    bool streams;                  /* over gRPC: any number of messages both ways */
};

struct route_table {
    const struct route *routes;
    size_t count;
};

/* The route of a path, or NULL; the first of the table that fits. *ret_match is set when there is
 * one. */
const struct route *route_find(const struct route_table *table, const char *path,
                               struct route_match *ret_match);

/* What may be asked of it: its methods, HEAD with GET, and OPTIONS. */
unsigned route_methods(const struct route *route);

/* The bit of a method's name; 0 for one that no route has. */
unsigned route_method(const char *name);

#define ALLOW_TEXT 64
/* "GET, HEAD" for the Allow header; returns text. */
const char *route_allow(unsigned methods, char *text, size_t size);
