/* The description of the API as YAML, as JSON, and as a page: proto/openapi.py makes them of
 * proto/openapi.yaml when lensd is built. */
#include <string.h>

#include "server/http/api/route_table.h"
#include "server/http/transport/exchange.h"
#include "server/http/transport/respond.h"

#define TYPE_YAML "application/yaml"

extern const unsigned char openapi_yaml[], openapi_json[], openapi_page[];
extern const size_t openapi_yaml_size, openapi_json_size, openapi_page_size;

void openapi_yaml_handle(struct exchange *x)
{
    respond_asset(x, TYPE_YAML, openapi_yaml, openapi_yaml_size);
}

void openapi_json_handle(struct exchange *x)
{
    respond_asset(x, TYPE_JSON, openapi_json, openapi_json_size);
}

void docs_handle(struct exchange *x)
{
    respond_asset(x, TYPE_HTML, openapi_page, openapi_page_size);
}

/* GET answers with the console; OPTIONS, as TorchServe's clients send it, with the API. With
 * --immich programs get what Immich's service answers. */
void root_handle(struct exchange *x)
{
    const char *accept = exchange_header(x, "Accept");
    static const char immich[] = "{\"message\":\"Immich ML\"}";
    if (!strcmp(x->method, "OPTIONS"))
        openapi_json_handle(x);
    else if (x->server->options.is_immich && !(accept && strstr(accept, "text/html")))
        respond_text(x, 200, TYPE_JSON, strdup(immich), sizeof immich - 1);
    else
        page_handle(x);
}
