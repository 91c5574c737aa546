/* Routes: path, methods, handler. The server's table decides 404, 405 with Allow, HEAD for each
 * GET, and which requests have a body. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "engine/base/status.h"

struct dialect;
struct exchange;

/* A handler, or a later step of its work. */
typedef void exchange_fn(struct exchange *exchange);

/* Checks before the body is read whether the request can be handled now; an error becomes the
 * answer. It may also answer the request and return STATUS_OK. */
typedef enum status admit_fn(struct exchange *exchange, struct error *err);

enum method {
    METHOD_GET = 1u << 0,
    METHOD_HEAD = 1u << 1,
    METHOD_POST = 1u << 2,
    METHOD_OPTIONS = 1u << 3, /* always allowed; route->methods has it if the handler answers it */
    METHOD_PUT = 1u << 4,
};

/* Who may use a route (keys.h). */
enum route_access {
    ROUTE_KEY,          /* any key, if keys are configured; not on --admin-port */
    ROUTE_STATUS,       /* like ROUTE_KEY, but also on --admin-port: status for operators */
    ROUTE_OPEN,         /* every client, unless --protect-health: health, metrics, pages */
    ROUTE_ADMIN,        /* only an admin's key; closed if there is none */
    ROUTE_ADMIN_WRITES, /* ROUTE_STATUS for GET and HEAD, ROUTE_ADMIN for other methods */
};

/* The parts of a path that match the route's {names}. */
struct route_match {
    char model[128];  /* {model}; "" without one */
    char version[32]; /* {version} */
};

struct route {
    /* Segments are literal; "{model}" or "{version}", possibly with a literal tail
     * ("{model}:predict"); or "{number}", a version of digits only. */
    const char *path;
    unsigned methods; /* bits of enum method */
    bool takes_body;
    admit_fn *admit; /* or NULL */
    /* Called with the complete body: answers (respond.h), or waits (exchange_wait). */
    exchange_fn *handle;
    const char *about; /* a description, for GET / */
    enum route_access access;
    const char *advice;            /* advice for a client that used another method; or NULL */
    const struct dialect *dialect; /* for its requests, answers and errors; NULL: lensd's own */
    const char *model;             /* the only model that it uses; NULL: any */
    const char *fixed;             /* the constant text of its answers; NULL: `handle` writes one */
    bool is_message;               /* uses Open Inference Protocol messages, not JSON */
    bool streams;                  /* gRPC: any number of messages in both directions */
    /* gRPC: called when the message that names a model has been read; NULL: `handle` reads it. */
    exchange_fn *handle_named;
    int document; /* enum v2_document, for routes whose answer describes a model */
};

struct route_table {
    const struct route *routes;
    size_t count;
};

/* Returns the first route in the table that matches the path, and *ret_match; or NULL. */
const struct route *route_find(const struct route_table *table, const char *path,
                               struct route_match *ret_match);

/* The methods that a route allows: its own, HEAD if GET, and OPTIONS. */
unsigned route_methods(const struct route *route);

/* The bit of the method with this name; 0 for a name that enum method lacks. */
unsigned route_method(const char *name);

#define ALLOW_TEXT 64
/* Writes names such as "GET, HEAD" for the Allow header; returns `text`. */
const char *route_allow(unsigned methods, char *text, size_t size);
