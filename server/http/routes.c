#include "server/http/routes.h"

#include <stdio.h>
#include <string.h>

#include "engine/base/size.h"

#define READ (METHOD_GET | METHOD_HEAD)

const struct route http_routes[] = {
    {"/predict", METHOD_POST, true, predict_admit, predict_handle,
     "an image, or several, in; labels out"},
    {"/health", READ, false, NULL, health_handle,
     "200 when ready, 503 while loading or draining; the models and their progress", ROUTE_OPEN},
    {"/livez", READ, false, NULL, livez_handle, "200 as long as the process answers", ROUTE_OPEN},
    {"/readyz", READ, false, NULL, readyz_handle, "200 when requests will be served, else 503",
     ROUTE_OPEN},
    {"/ping", READ, false, NULL, ping_handle, "the same, in TorchServe's words", ROUTE_OPEN},
    {"/devices", READ, false, NULL, devices_handle,
     "the devices of the machine and the models on them"},
    {"/metrics", READ, false, NULL, metrics_handle, "counters and histograms for Prometheus",
     ROUTE_OPEN},
    {"/", READ, false, NULL, page_handle, "this page", ROUTE_OPEN},
};

const size_t http_route_count = COUNT_OF(http_routes);

const struct route *route_find(const char *path)
{
    for (size_t i = 0; i < http_route_count; i++)
        if (!strcmp(http_routes[i].path, path))
            return &http_routes[i];
    return NULL;
}

static const struct {
    unsigned bit;
    const char *name;
} methods[] = {
    {METHOD_GET, "GET"}, {METHOD_HEAD, "HEAD"}, {METHOD_POST, "POST"}, {METHOD_OPTIONS, "OPTIONS"}};

unsigned route_methods(const struct route *route)
{
    return route->methods | METHOD_OPTIONS | (route->methods & METHOD_GET ? METHOD_HEAD : 0);
}

unsigned route_method(const char *name)
{
    for (size_t i = 0; i < COUNT_OF(methods); i++)
        if (!strcmp(methods[i].name, name))
            return methods[i].bit;
    return 0;
}

const char *route_allow(unsigned allowed, char *text, size_t size)
{
    size_t used = 0;
    text[0] = '\0';
    for (size_t i = 0; i < COUNT_OF(methods); i++) {
        if (!(allowed & methods[i].bit) || used >= size)
            continue;
        int n = snprintf(text + used, size - used, "%s%s", used ? ", " : "", methods[i].name);
        used += n < 0 ? 0 : (size_t)n;
    }
    return text;
}
