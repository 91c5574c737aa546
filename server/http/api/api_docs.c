/* Serves fixed texts, and files that are part of the binary: the console's files, and the
 * description of the API as YAML, JSON and a page. During the build, proto/openapi.py makes the
 * three forms of the description from proto/openapi.yaml. */
#include <string.h>

#include "engine/base/size.h"
#include "server/http/api/route_table.h"
#include "server/http/transport/exchange.h"
#include "server/http/transport/respond.h"

#define TYPE_YAML "application/yaml"

/* Texts; the build adds a 0 byte. */
extern const unsigned char openapi_yaml[], openapi_json[], openapi_page[];
extern const unsigned char console_css[], console_icon[], console_js[];

static const struct asset {
    const char *path, *type;
    const unsigned char *text;
} assets[] = {
    {"/docs", TYPE_HTML, openapi_page},
    {"/openapi.yaml", TYPE_YAML, openapi_yaml},
    {"/openapi.json", TYPE_JSON, openapi_json},
    {"/console.css", TYPE_CSS, console_css},
    {"/console.js", TYPE_JS, console_js},
    {"/favicon.ico", TYPE_SVG, console_icon}, /* browsers request this path */
};

static void respond_file(struct exchange *x, const char *path)
{
    for (size_t i = 0; i < COUNT_OF(assets); i++) {
        const char *text = (const char *)assets[i].text;
        if (!strcmp(path, assets[i].path))
            respond_page(x, assets[i].type, strdup(text), strlen(text));
    }
}

void fixed_handle(struct exchange *x)
{
    respond_json(x, 200, strdup(x->route->fixed));
}

void absent_handle(struct exchange *x)
{
    respond_refusal(x, 501, "not_implemented", "%s", x->route->fixed);
}

void asset_handle(struct exchange *x)
{
    respond_file(x, x->route->path);
}

/* GET returns the console. OPTIONS, which TorchServe's clients send, returns the description of the
 * API. With --immich, clients that do not accept HTML get the answer of Immich's service. */
void root_handle(struct exchange *x)
{
    const char *accept = exchange_header(x, "Accept");
    static const char immich[] = "{\"message\":\"Immich ML\"}";
    if (!strcmp(x->method, "OPTIONS"))
        respond_file(x, "/openapi.json");
    else if (x->server->options.is_immich && !(accept && strstr(accept, "text/html")))
        respond_json(x, 200, strdup(immich));
    else
        page_handle(x);
}
