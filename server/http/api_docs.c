/* What this API is: proto/openapi.yaml, which is part of the binary, as it is, as JSON, and as a
 * page. Everything but the YAML is made from it when lensd is built (proto/openapi.py). */
#include <stdlib.h>
#include <string.h>

#include "server/http/exchange.h"
#include "server/http/respond.h"

#define TYPE_YAML "application/yaml"

extern const unsigned char openapi_yaml[], openapi_json[], openapi_page[];
extern const size_t openapi_yaml_size, openapi_json_size, openapi_page_size;

static void respond_document(struct exchange *x, const char *type, const unsigned char *bytes,
                             size_t size)
{
    char *text = malloc(size + 1);
    if (text)
        memcpy(text, bytes, size);
    respond_page(x, type, text, text ? size : 0);
}

void openapi_yaml_handle(struct exchange *x)
{
    respond_document(x, TYPE_YAML, openapi_yaml, openapi_yaml_size);
}

void openapi_json_handle(struct exchange *x)
{
    respond_document(x, TYPE_JSON, openapi_json, openapi_json_size);
}

void docs_handle(struct exchange *x)
{
    respond_document(x, TYPE_HTML, openapi_page, openapi_page_size);
}

/* The console; TorchServe's clients ask the same path with OPTIONS what there is. */
void root_handle(struct exchange *x)
{
    if (!strcmp(x->method, "OPTIONS"))
        openapi_json_handle(x);
    else
        page_handle(x);
}
