/* The table of what is served: path, methods, handler. 404, 405 with its Allow header, HEAD for
 * what has GET, and the bound of a body all follow from it. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "engine/base/status.h"

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
    ROUTE_KEY,          /* whoever has a key, where there are keys */
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
    /* Segments are literal, or "{model}", "{version}" with a literal tail ("{model}:predict"). */
    const char *path;
    unsigned methods; /* enum method, several */
    bool takes_body;
    /* NULL, or: can this be served now? Asked before the body is read; a refusal is the answer. */
    enum status (*admit)(struct exchange *exchange, struct error *err);
    /* Called with the whole body: answers (respond.h), or waits (exchange_wait). */
    void (*handle)(struct exchange *exchange);
    const char *about; /* for GET / */
    enum route_access access;
    const char *advice; /* what to do, for who asks with another method; or NULL */
};

extern const struct route http_routes[];
extern const size_t http_route_count;

/* The route of a path, or NULL; the first of the table that fits. *ret_match is set when there is
 * one. */
const struct route *route_find(const char *path, struct route_match *ret_match);

/* What may be asked of it: its methods, HEAD with GET, and OPTIONS. */
unsigned route_methods(const struct route *route);

/* The bit of a method's name; 0 for one that no route has. */
unsigned route_method(const char *name);

#define ALLOW_TEXT 64
/* "GET, HEAD" for the Allow header; returns text. */
const char *route_allow(unsigned methods, char *text, size_t size);

/* The handlers. */
enum status predict_admit(struct exchange *exchange, struct error *err);
void predict_handle(struct exchange *exchange);
void health_handle(struct exchange *exchange);
void livez_handle(struct exchange *exchange);
void readyz_handle(struct exchange *exchange);
void ping_handle(struct exchange *exchange);
void devices_handle(struct exchange *exchange);
void metrics_handle(struct exchange *exchange);
void logging_handle(struct exchange *exchange);
void page_handle(struct exchange *exchange);
void root_handle(struct exchange *exchange);
void docs_handle(struct exchange *exchange);
void openapi_yaml_handle(struct exchange *exchange);
void openapi_json_handle(struct exchange *exchange);
void console_css_handle(struct exchange *exchange);
void console_js_handle(struct exchange *exchange);
void favicon_handle(struct exchange *exchange);
void console_json_handle(struct exchange *exchange);
void torchserve_handle(struct exchange *exchange);
void kserve_predict_handle(struct exchange *exchange);
void kserve_explain_handle(struct exchange *exchange);
void kserve_model_handle(struct exchange *exchange);
void kserve_models_handle(struct exchange *exchange);
enum status v2_admit(struct exchange *exchange, struct error *err);
void v2_live_handle(struct exchange *exchange);
void v2_ready_handle(struct exchange *exchange);
void v2_server_handle(struct exchange *exchange);
void v2_model_ready_handle(struct exchange *exchange);
void v2_metadata_handle(struct exchange *exchange);
void v2_config_handle(struct exchange *exchange);
void v2_stats_handle(struct exchange *exchange);
void v2_infer_handle(struct exchange *exchange);
void v2_index_handle(struct exchange *exchange);
void v2_load_handle(struct exchange *exchange);
void v2_unload_handle(struct exchange *exchange);
void v2_regions_handle(struct exchange *exchange);
void v2_unregister_handle(struct exchange *exchange);
void v2_no_regions_handle(struct exchange *exchange);
void v2_trace_handle(struct exchange *exchange);
