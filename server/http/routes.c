#include "server/http/routes.h"

#include <stdio.h>
#include <string.h>

#include "engine/base/size.h"

#define READ (METHOD_GET | METHOD_HEAD)
#define POST_A_PHOTO                                                                               \
    "send a photo as the body, curl --data-binary @photo.jpg does, or drop one on the page at /"

const struct route http_routes[] = {
    {"/predict", METHOD_POST, true, predict_admit, predict_handle,
     "an image, or several, in; labels out", ROUTE_KEY, POST_A_PHOTO},
    {"/health", READ, false, NULL, health_handle,
     "200 when ready, else 503; the state, the models and their progress", ROUTE_OPEN},
    {"/livez", READ, false, NULL, livez_handle, "200 as long as the process answers", ROUTE_OPEN},
    {"/readyz", READ, false, NULL, readyz_handle, "200 when requests will be served, else 503",
     ROUTE_OPEN},
    {"/ping", READ, false, NULL, ping_handle, "the same, in TorchServe's words", ROUTE_OPEN},
    {"/devices", READ, false, NULL, devices_handle,
     "the devices of the machine and the models on them"},
    {"/metrics", READ, false, NULL, metrics_handle, "counters and histograms for Prometheus",
     ROUTE_OPEN},
    {"/v2/models/{model}/infer", METHOD_POST, true, v2_admit, v2_infer_handle,
     "Open Inference Protocol: tensors or images in, tensors or classes out"},
    {"/v2/models/{model}/versions/{version}/infer", METHOD_POST, true, v2_admit, v2_infer_handle,
     "the same, of one version"},
    {"/v2", READ, false, NULL, v2_server_handle, "the server's name, version and extensions"},
    {"/v2/health/live", READ, false, NULL, v2_live_handle, "200 as long as the process answers",
     ROUTE_OPEN},
    {"/v2/health/ready", READ, false, NULL, v2_ready_handle,
     "200 when requests will be served, else 400 or 503", ROUTE_OPEN},
    {"/v2/models/stats", READ, false, NULL, v2_stats_handle, "statistics of all models"},
    {"/v2/models/{model}", READ, false, NULL, v2_metadata_handle, "a model's inputs and outputs"},
    {"/v2/models/{model}/versions/{version}", READ, false, NULL, v2_metadata_handle,
     "the same, of one version"},
    {"/v2/models/{model}/ready", READ, false, NULL, v2_model_ready_handle,
     "200 when the model is ready, else 400", ROUTE_OPEN},
    {"/v2/models/{model}/versions/{version}/ready", READ, false, NULL, v2_model_ready_handle,
     "the same, of one version", ROUTE_OPEN},
    {"/v2/models/{model}/config", READ, false, NULL, v2_config_handle,
     "a model's configuration, as Triton has it"},
    {"/v2/models/{model}/versions/{version}/config", READ, false, NULL, v2_config_handle,
     "the same, of one version"},
    {"/v2/models/{model}/stats", READ, false, NULL, v2_stats_handle, "statistics of a model"},
    {"/v2/models/{model}/versions/{version}/stats", READ, false, NULL, v2_stats_handle,
     "the same, of one version"},
    {"/v2/repository/index", METHOD_POST, true, NULL, v2_index_handle,
     "the models there are, and their states"},
    {"/v2/repository/models/{model}/load", METHOD_POST, true, NULL, v2_load_handle,
     "loads a model again from where it lies; for admins", ROUTE_ADMIN},
    {"/v2/repository/models/{model}/unload", METHOD_POST, true, NULL, v2_unload_handle,
     "stops serving a model; for admins", ROUTE_ADMIN},
    {"/v2/systemsharedmemory/status", READ, false, NULL, v2_regions_handle,
     "an empty list: there is no shared memory"},
    {"/v2/cudasharedmemory/status", READ, false, NULL, v2_regions_handle,
     "an empty list: there is no shared memory"},
    {"/v2/systemsharedmemory/unregister", METHOD_POST, true, NULL, v2_unregister_handle,
     "nothing to do: there is no shared memory"},
    {"/v2/cudasharedmemory/unregister", METHOD_POST, true, NULL, v2_unregister_handle,
     "nothing to do: there is no shared memory"},
    {"/v2/systemsharedmemory/region/{region}/register", METHOD_POST, true, NULL,
     v2_no_regions_handle, "501: there is no shared memory"},
    {"/v2/cudasharedmemory/region/{region}/register", METHOD_POST, true, NULL, v2_no_regions_handle,
     "501: there is no shared memory"},
    {"/v2/systemsharedmemory/region/{region}/status", READ, false, NULL, v2_no_regions_handle,
     "501: there is no shared memory"},
    {"/v2/cudasharedmemory/region/{region}/status", READ, false, NULL, v2_no_regions_handle,
     "501: there is no shared memory"},
    {"/v2/systemsharedmemory/region/{region}/unregister", METHOD_POST, true, NULL,
     v2_unregister_handle, "nothing to do: there is no shared memory"},
    {"/v2/cudasharedmemory/region/{region}/unregister", METHOD_POST, true, NULL,
     v2_unregister_handle, "nothing to do: there is no shared memory"},
    {"/v2/trace/setting", READ, false, NULL, v2_trace_handle, "tracing is off"},
    {"/v2/models/{model}/trace/setting", READ, false, NULL, v2_trace_handle, "tracing is off"},
    {"/v2/logging", READ | METHOD_POST, true, NULL, logging_handle,
     "what the log says; POST changes it", ROUTE_ADMIN_WRITES},
    {"/predictions/{model}", METHOD_POST | METHOD_PUT, true, v2_admit, torchserve_handle,
     "TorchServe: an image in, {label: probability} out", ROUTE_KEY, POST_A_PHOTO},
    {"/predictions/{model}/{version}", METHOD_POST | METHOD_PUT, true, v2_admit, torchserve_handle,
     "the same, of one version"},
    {"/v1/models/{model}:predict", METHOD_POST, true, v2_admit, kserve_predict_handle,
     "KServe V1 and TensorFlow Serving: {\"instances\": […]} in, {\"predictions\": […]} out"},
    {"/v1/models/{model}/versions/{version}:predict", METHOD_POST, true, v2_admit,
     kserve_predict_handle, "the same, of one version"},
    {"/v1/models/{model}:explain", METHOD_POST, true, NULL, kserve_explain_handle,
     "501: there is no explainer"},
    {"/v1/models", READ, false, NULL, kserve_models_handle, "the names of the models"},
    {"/v1/models/{model}", READ, false, NULL, kserve_model_handle,
     "a model's versions, and whether it is ready", ROUTE_OPEN},
    {"/v1/models/{model}/versions/{version}", READ, false, NULL, kserve_model_handle,
     "the same, of one version", ROUTE_OPEN},
    {"/", READ | METHOD_OPTIONS, false, NULL, root_handle, "this page", ROUTE_OPEN},
    {"/docs", READ, false, NULL, docs_handle, "every path, its parameters and errors, as a page",
     ROUTE_OPEN},
    {"/openapi.yaml", READ, false, NULL, openapi_yaml_handle, "the same for programs", ROUTE_OPEN},
    {"/openapi.json", READ, false, NULL, openapi_json_handle, "the same as JSON", ROUTE_OPEN},
    {"/console.css", READ, false, NULL, console_css_handle, "its looks", ROUTE_OPEN},
    {"/favicon.ico", READ, false, NULL, favicon_handle, "its picture", ROUTE_OPEN},
    {"/console.json", READ, false, NULL, console_json_handle,
     "the models as the page shows them: photos, resize, labels"},
    {"/console.js", READ, false, NULL, console_js_handle, "its script", ROUTE_OPEN},
};

const size_t http_route_count = COUNT_OF(http_routes);

/* A segment of `length` bytes against one of a pattern; {name} takes what is before its tail. */
static bool match_segment(const char *pattern, size_t pattern_length, const char *text,
                          size_t length, struct route_match *match)
{
    if (pattern[0] != '{')
        return pattern_length == length && !memcmp(pattern, text, length);
    const char *brace = memchr(pattern, '}', pattern_length);
    size_t tail = (size_t)(pattern + pattern_length - brace) - 1;
    if (length <= tail || memcmp(brace + 1, text + length - tail, tail) != 0)
        return false;
    bool is_version = !strncmp(pattern, "{version}", 9);
    char *value = is_version ? match->version : match->model;
    size_t capacity = is_version ? sizeof match->version : sizeof match->model;
    if (length - tail >= capacity)
        return false;
    memcpy(value, text, length - tail);
    value[length - tail] = '\0';
    return true;
}

static bool match_path(const char *pattern, const char *path, struct route_match *match)
{
    for (;;) {
        size_t pattern_length = strcspn(pattern, "/"), length = strcspn(path, "/");
        if (!match_segment(pattern, pattern_length, path, length, match))
            return false;
        pattern += pattern_length;
        path += length;
        if (*pattern != *path)
            return false;
        if (!*path)
            return true;
        pattern++;
        path++;
    }
}

const struct route *route_find(const char *path, struct route_match *ret_match)
{
    for (size_t i = 0; i < http_route_count; i++) {
        struct route_match match = {"", ""};
        bool plain = !strchr(http_routes[i].path, '{');
        if (plain ? strcmp(http_routes[i].path, path) != 0
                  : !match_path(http_routes[i].path, path, &match))
            continue;
        *ret_match = match;
        return &http_routes[i];
    }
    return NULL;
}

static const struct {
    unsigned bit;
    const char *name;
} methods[] = {{METHOD_GET, "GET"},
               {METHOD_HEAD, "HEAD"},
               {METHOD_POST, "POST"},
               {METHOD_PUT, "PUT"},
               {METHOD_OPTIONS, "OPTIONS"}};

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
