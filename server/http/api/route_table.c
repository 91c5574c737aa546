/* Every HTTP path and gRPC method of lensd, with its handler. GET / and a test of openapi.yaml read
 * the table of paths. */
#include "server/http/api/route_table.h"

#include "engine/base/size.h"
#include "lensd_version.h"
#include "proto/dialects.h"
#include "proto/v2.h"
#include "server/http/transport/exchange.h"
#include "server/http/transport/respond.h"

#define READ (METHOD_GET | METHOD_HEAD)

#define GET(at, who, handler, text, ...)                                                           \
    {                                                                                              \
        .path = at, .methods = READ, .handle = handler, .about = text, .access = ROUTE_##who,      \
        __VA_ARGS__                                                                                \
    }
#define POST(at, who, handler, text, ...)                                                          \
    {                                                                                              \
        .path = at, .methods = METHOD_POST, .takes_body = true, .handle = handler, .about = text,  \
        .access = ROUTE_##who, __VA_ARGS__                                                         \
    }
/* A path of another server's API that takes photos. */
#define PHOTO(at, form, text, ...)                                                                 \
    POST(at, KEY, predict_handle, text, .admit = dialect_admit, .dialect = &form, __VA_ARGS__)
/* Two routes: a path below a model, and the same path below one of its versions. */
#define OF_MODEL(method, api, tail, who, handler, text, ...)                                       \
    method(api "/models/{model}" tail, who, handler, text, __VA_ARGS__),                           \
        method(api "/models/{model}/versions/{version}" tail, who, handler,                        \
               "the same for one version", __VA_ARGS__)
/* The paths of Triton's shared memory, which lensd does not have. */
#define SHARED_MEMORY(kind)                                                                        \
    GET("/v2/" kind "sharedmemory/status", KEY, fixed_handle,                                      \
        "an empty list: there is no shared memory", .fixed = "[]\n"),                              \
        POST("/v2/" kind "sharedmemory/unregister", KEY, fixed_handle, UNREGISTER),                \
        POST("/v2/" kind "sharedmemory/region/{region}/register", KEY, absent_handle, NO_MEMORY),  \
        GET("/v2/" kind "sharedmemory/region/{region}/status", KEY, absent_handle, NO_MEMORY),     \
        POST("/v2/" kind "sharedmemory/region/{region}/unregister", KEY, fixed_handle, UNREGISTER)
#define NO_MEMORY                                                                                  \
    "501: there is no shared memory",                                                              \
        .fixed = "shared memory is not available; send tensors in the body of the request"
#define UNREGISTER "nothing to do: there is no shared memory", .fixed = "{}\n"
#define NO_TRACE                                                                                   \
    "tracing is off",                                                                              \
        .fixed = "{\"trace_level\":[\"OFF\"],\"trace_rate\":\"1000\",\"trace_count\":\"-1\","      \
                 "\"log_frequency\":\"0\",\"trace_file\":\"\",\"trace_mode\":\"triton\"}\n"
#define THIS_VERSION                                                                               \
    "{\"major\":0,\"minor\":1,\"patch\":0,\"securityUpdate\":false,\"build\":0,\"file\":\"\","     \
    "\"releaseNotes\":\"\"}"
#define NO_UPDATE                                                                                  \
    "{\"success\":true,\"message\":\"\",\"current\":" THIS_VERSION ",\"latest\":" THIS_VERSION     \
    ",\"updateAvailable\":false}\n"
#define NO_REMOVAL                                                                                 \
    "clients cannot unload models here; an admin can: POST /v2/repository/models/NAME/unload"
#define POST_A_PHOTO                                                                               \
    "send a photo as the body (curl --data-binary @photo.jpg), or drop one on the page at /"

static const struct route routes[] = {
    POST("/predict", KEY, predict_handle, "an image, or several, in; labels out",
         .advice = POST_A_PHOTO, .admit = predict_admit),
    GET("/health", OPEN, health_handle,
        "200 when ready, else 503; the state, the models and their progress"),
    GET("/livez", OPEN, livez_handle, "200 as long as the process answers"),
    GET("/readyz", OPEN, readyz_handle, "200 when requests will be served, else 503"),
    GET("/ping", OPEN, ping_handle, "the same, for TorchServe's clients"),
    GET("/devices", STATUS, devices_handle, "the devices of the machine and the models on them"),
    GET("/metrics", OPEN, metrics_handle, "counters and histograms for Prometheus"),
    OF_MODEL(POST, "/v2", "/infer", KEY, v2_infer_handle,
             "Open Inference Protocol: tensors or images in, tensors or classes out",
             .admit = v2_admit),
    GET("/v2", KEY, v2_server_handle, "the server's name, version and extensions"),
    GET("/v2/health/live", OPEN, v2_live_handle, "200 as long as the process answers"),
    GET("/v2/health/ready", OPEN, v2_ready_handle,
        "200 when requests will be served, else 400 or 503"),
    GET("/v2/models/stats", STATUS, v2_stats_handle, "statistics of all models"),
    OF_MODEL(GET, "/v2", "", KEY, v2_document_handle, "a model's inputs and outputs",
             .document = V2_METADATA),
    OF_MODEL(GET, "/v2", "/ready", OPEN, v2_model_ready_handle,
             "200 when the model is ready, else 400, 404 or 503"),
    OF_MODEL(GET, "/v2", "/config", KEY, v2_document_handle,
             "a model's configuration, as Triton has it", .document = V2_CONFIG),
    OF_MODEL(GET, "/v2", "/stats", STATUS, v2_stats_handle, "statistics of a model"),
    POST("/v2/repository/index", STATUS, v2_index_handle,
         "the models of the repository, and their states"),
    POST("/v2/repository/models/{model}/load", ADMIN, v2_load_handle,
         "loads a model again from its files; for admins"),
    POST("/v2/repository/models/{model}/unload", ADMIN, v2_unload_handle,
         "stops serving a model; for admins"),
    SHARED_MEMORY("system"),
    SHARED_MEMORY("cuda"),
    GET("/v2/trace/setting", KEY, fixed_handle, NO_TRACE),
    GET("/v2/models/{model}/trace/setting", KEY, fixed_handle, NO_TRACE),
    {"/v2/logging", READ | METHOD_POST, true, NULL, logging_handle,
     "the settings of the log; POST changes them", ROUTE_ADMIN_WRITES},
    {"/predictions/{model}", METHOD_POST | METHOD_PUT, true, v2_admit, predict_handle,
     "TorchServe: an image in, {label: probability} out", ROUTE_KEY, POST_A_PHOTO,
     &dialect_torchserve},
    {"/predictions/{model}/{version}", METHOD_POST | METHOD_PUT, true, v2_admit, predict_handle,
     "the same for one version", ROUTE_KEY, NULL, &dialect_torchserve},
    OF_MODEL(
        POST, "/v1", ":predict", KEY, v2_infer_handle,
        "KServe V1 and TensorFlow Serving: {\"instances\": […]} in, {\"predictions\": […]} out",
        .admit = v2_admit, .dialect = &dialect_v1),
    POST("/v1/models/{model}:explain", KEY, absent_handle, "501: there is no explainer",
         .fixed = "lensd has no explainer; POST /v1/models/NAME:predict returns predictions, and a "
                  "KServe explainer in front of it explains them"),
    GET("/v1/models", KEY, kserve_models_handle, "the names of the models"),
    OF_MODEL(GET, "/v1", "", OPEN, kserve_model_handle,
             "a model's versions, and whether it is ready"),
    PHOTO("/v1/vision/detection", dialect_deepstack,
          "DeepStack, CodeProject.AI: an image in, boxes out"),
    POST("/v1/vision/custom/list", KEY, deepstack_list_handle,
         "the models that the next path takes", .dialect = &dialect_deepstack),
    PHOTO("/v1/vision/custom/{model}", dialect_deepstack_custom,
          "the same as detection, of one model"),
    PHOTO("/v1/vision/scene", dialect_deepstack_scene, "the best class, of the model 'scene'",
          .model = "scene"),
    PHOTO("/v1/vision/alpr", dialect_deepstack_plates, "number plates, of the pipeline 'plates'",
          .model = "plates"),
    PHOTO("/v1/image/alpr", dialect_deepstack_plates, "the same, at CodeProject.AI's older path",
          .model = "plates"),
    PHOTO("/v1/vision/ocr", dialect_deepstack_text, "lines of text, of the pipeline 'ocr'",
          .model = "ocr"),
    PHOTO("/v1/vision/face", dialect_deepstack_face, "faces, of the pipeline 'faces'",
          .model = "faces"),
    PHOTO("/v1/vision/face/register", dialect_deepstack_register,
          "stores a face in the registry (--faces)", .model = "faces"),
    PHOTO("/v1/vision/face/recognize", dialect_deepstack_recognize,
          "names of the faces that are in the registry", .model = "faces"),
    PHOTO("/v1/vision/face/match", dialect_deepstack_match, "compares two faces", .model = "faces"),
    POST("/v1/vision/face/list", KEY, face_list_handle, "the names in the registry",
         .dialect = &dialect_deepstack, .admit = face_admit),
    POST("/v1/vision/face/delete", KEY, face_delete_handle, "erases a face from the registry",
         .dialect = &dialect_deepstack, .admit = face_admit),
    GET("/v1/status/updateavailable", KEY, fixed_handle, "CodeProject.AI: no update",
        .fixed = NO_UPDATE, .dialect = &dialect_deepstack),
    GET("/v1/status/ping", OPEN, deepstack_ping_handle, "CodeProject.AI: the server answers",
        .dialect = &dialect_deepstack),
    PHOTO("/v1/plate-reader/", dialect_plate_recognizer,
          "Plate Recognizer: number plates, of the pipeline 'plates'", .model = "plates"),
    GET("/detectors", KEY, labelled_models_handle, "DOODS: the models that the next path takes",
        .dialect = &dialect_doods),
    PHOTO("/detect", dialect_doods, "DOODS, Home Assistant: an image in, boxes out"),
    PHOTO("/api/v1/vision/labels", dialect_photoprism_labels, "PhotoPrism: images in, labels out"),
    PHOTO("/api/v1/vision/nsfw", dialect_photoprism_nsfw, "the same, how unsafe each is"),
    PHOTO("/api/v1/vision/face", dialect_photoprism_face, "the same, a vector of each face"),
    GET("/api/functions", KEY, labelled_models_handle,
        "CVAT (Nuclio): the models that the next paths take, and their labels",
        .dialect = &dialect_cvat),
    GET("/api/functions/{model}", KEY, labelled_models_handle, "the same, of one model",
        .dialect = &dialect_cvat),
    PHOTO("/api/function_invocations", dialect_cvat, "CVAT: an image in; tags, boxes or masks out"),
    PHOTO("/models/{model}", dialect_hugging_face,
          "Hugging Face: an image in; classes, boxes or masks out"),
    GET("/models/{model}/labels", KEY, v2_document_handle, "the labels of a model's classes",
        .document = V2_LABELS),
    PHOTO("/v1/embeddings", dialect_openai, "OpenAI: data: URIs of images in, vectors out"),
    PHOTO("/embeddings", dialect_llama_cpp,
          "llama.cpp, for Frigate: texts or images in, vectors out"),
    GET("/props", KEY, fixed_handle, "llama.cpp: the mark that stands for an image in a text",
        .fixed = "{\"media_marker\":\"<__media__>\"}\n", .dialect = &dialect_llama_cpp),
    GET("/model/registry", KEY, roboflow_registry_handle, "the models that the next paths take",
        .dialect = &dialect_roboflow),
    POST("/model/add", KEY, roboflow_registry_handle,
         "the same list: models that are not in it do not exist", .dialect = &dialect_roboflow),
    POST("/model/remove", KEY, absent_handle, "501: admins unload models through /v2/repository",
         .fixed = NO_REMOVAL, .dialect = &dialect_roboflow),
    POST("/model/clear", KEY, absent_handle, "the same", .fixed = NO_REMOVAL,
         .dialect = &dialect_roboflow),
    GET("/info", KEY, fixed_handle, "the server's name and version",
        .fixed = "{\"name\":\"lensd\",\"version\":\"" LENSD_VERSION "\",\"uuid\":\"\"}\n",
        .dialect = &dialect_roboflow),
    PHOTO("/infer/object_detection", dialect_roboflow, "Roboflow Inference: images in, boxes out"),
    PHOTO("/infer/instance_segmentation", dialect_roboflow, "the same, boxes with outlines"),
    PHOTO("/infer/keypoints_detection", dialect_roboflow, "the same, boxes with key points"),
    PHOTO("/infer/classification", dialect_roboflow, "the same, classes"),
    {"/", READ | METHOD_OPTIONS, false, NULL, root_handle, "this page", ROUTE_OPEN,
     "POST a photo to /predict, or to /models/NAME as Hugging Face's clients do"},
    GET("/docs", OPEN, asset_handle, "every path, its parameters and errors, as a page"),
    GET("/openapi.yaml", OPEN, asset_handle, "the same for programs"),
    GET("/openapi.json", OPEN, asset_handle, "the same as JSON"),
    GET("/console.css", OPEN, asset_handle, "the page's style sheet"),
    GET("/favicon.ico", OPEN, asset_handle, "the page's icon"),
    GET("/console.json", STATUS, console_json_handle,
        "the models and their options, for the page's script"),
    GET("/console.js", OPEN, asset_handle, "the page's script"),
    /* Last, because {model} also matches the first segment of the paths above. */
    PHOTO("/{model}/{number}", dialect_roboflow, "Roboflow: an image in, predictions out"),
};

const struct route_table http_route_table = {routes, COUNT_OF(routes)};

/* ---- the Open Inference Protocol over gRPC: the same handlers write messages ---- */

/* Reads the model's name in the message, and calls the route's handle_named. */
static void grpc_handle_named(struct exchange *x)
{
    struct error err;
    if (respond_if_long(x))
        return;
    if (v2_named_unpack(x->body.data, x->body.size, x->match.model, x->match.version, &err) !=
        STATUS_OK) {
        respond_error(x, &err);
        return;
    }
    x->route->handle_named(x);
}

#define CALL(name, admitted, handler, who, ...)                                                    \
    {                                                                                              \
        .path = "/inference.GRPCInferenceService/" name, .methods = METHOD_POST,                   \
        .takes_body = true, .admit = admitted, .handle = handler, .access = who,                   \
        .dialect = &dialect_grpc, .is_message = true, __VA_ARGS__                                  \
    }
#define NAMED(name, handler, who, ...)                                                             \
    CALL(name, NULL, grpc_handle_named, who, .handle_named = handler, __VA_ARGS__)

static const struct route grpc_routes[] = {
    CALL("ModelInfer", v2_admit, v2_infer_handle, ROUTE_KEY),
    CALL("ModelStreamInfer", v2_admit, v2_infer_handle, ROUTE_KEY, .streams = true),
    CALL("ServerLive", NULL, v2_live_handle, ROUTE_OPEN),
    CALL("ServerReady", NULL, v2_ready_handle, ROUTE_OPEN),
    NAMED("ModelReady", v2_model_ready_handle, ROUTE_OPEN),
    CALL("ServerMetadata", NULL, v2_server_handle, ROUTE_KEY),
    NAMED("ModelMetadata", v2_document_handle, ROUTE_KEY, .document = V2_METADATA),
    NAMED("ModelConfig", v2_document_handle, ROUTE_KEY, .document = V2_CONFIG),
    NAMED("ModelStatistics", v2_stats_handle, ROUTE_KEY),
    CALL("RepositoryIndex", NULL, v2_index_handle, ROUTE_KEY),
    CALL("RepositoryModelLoad", NULL, v2_load_handle, ROUTE_ADMIN),
    CALL("RepositoryModelUnload", NULL, v2_unload_handle, ROUTE_ADMIN),
};

const struct route_table grpc_route_table = {grpc_routes, COUNT_OF(grpc_routes)};
