/* Makes, keeps and finds the 8-bit forms of models. */
#include "server/precision/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "engine/backend/tuning_store.h"
#include "engine/base/clock.h"
#include "engine/base/size.h"
#include "models/onnx/onnx_write.h"
#include "server/observe/log.h"

/* CPU time for quantizing in the loader's thread. Requests are served meanwhile. */
#define CALIBRATION_MS 60000.0

enum status calibrate_model(const struct model *model, const struct image_limits *limits,
                            struct quantize_options options, struct graph **ret,
                            struct quantize_report *report, struct error *err)
{
    struct probes *probes;
    TRY(probes_open(model, limits, &probes, err));
    options.photos = (struct quantize_photos){.folder = model->calibration,
                                              .count = probes->files.count,
                                              .read = probes_read,
                                              .name = probes_file,
                                              .context = probes};
    const enum status status = quantize_model(model, &options, ret, report, err);
    probes_free(probes);
    return status;
}

static char *path_of_key(const struct graph_hash *key, const char *cache)
{
    char *path = NULL;
    return !cache || asprintf(&path, "%s/int8-%016llx%016llx.onnx", cache,
                              (unsigned long long)key->words[0],
                              (unsigned long long)key->words[1]) < 0
               ? NULL
               : path;
}

bool calibrated_is_possible(const struct model *model, const struct session_options *session,
                            const char *cache)
{
    return cache && model->calibration && session->device.kind == DEVICE_CPU &&
           model->image_input != SIZE_MAX && model->graph->input_count == 1 &&
           !quantizer_is_quantized(model->graph);
}

bool calibrated_exists(const struct graph_hash *key, const char *cache)
{
    char *path = path_of_key(key, cache);
    const bool is_there = path && access(path, R_OK) == 0;
    free(path);
    return is_there;
}

enum status calibrated_read(const struct graph_hash *key, const char *cache, struct graph **ret,
                            struct error *err)
{
    struct onnx_model onnx = {0};
    char *path = path_of_key(key, cache);
    const enum status status = path ? onnx_load_file(path, NULL, &onnx, err)
                                    : error_no_memory(err, "for a model in the cache");
    free(path);
    *ret = onnx.graph;
    return status;
}

/* Writes under another name first, because another process may read the file. */
static enum status keep_graph(const struct graph_hash *key, const char *cache,
                              const struct graph *graph, struct error *err)
{
    const struct onnx_write_options options = {.producer = "lensd"};
    char *path = path_of_key(key, cache), *own = NULL;
    enum status status = STATUS_OK;
    if (!path || asprintf(&own, "%s.%ld", path, (long)getpid()) < 0) {
        own = NULL;
        status = error_no_memory(err, "for a model in the cache");
    } else {
        (void)tuning_make_folder(cache); /* writing reports the error */
        (void)unlink(own);
        status = onnx_write_file(graph, &options, own, err);
        if (status == STATUS_OK && rename(own, path) != 0)
            status = error_set(err, STATUS_IO, "%s cannot be renamed", own);
    }
    FREE_ALL(path, own);
    return status;
}

enum status calibrated_make(const struct model *model, const struct precision_options *options,
                            const struct session_options *session, const struct graph_hash *key,
                            struct graph **ret, int *ret_photos, struct error *err)
{
    struct quantize_report report;
    const struct quantize_options how = {.threads = session->threads,
                                         .weight_max = QUANTIZER_WEIGHT_MAX,
                                         .cancel = session->cancel,
                                         .cpu_deadline_ms =
                                             clock_ms(clock_thread()) + CALIBRATION_MS};
    log_event(LOG_INFO, "calibrating", LOG_STR("model", model->name),
              LOG_STR("folder", model->calibration),
              LOG_STR("text", "making an 8-bit form of the model, once per model and machine"));
    TRY(calibrate_model(model, options->limits, how, ret, &report, err));
    const enum status status = keep_graph(key, options->cache, *ret, err);
    log_event(LOG_INFO, "calibrated", LOG_STR("model", model->name),
              LOG_INT("photos", report.calibrated),
              LOG_INT("layers_in_fp32", (int64_t)report.kept));
    *ret_photos = report.calibrated;
    quantize_report_done(&report);
    if (status != STATUS_OK) {
        graph_free(*ret);
        *ret = NULL;
    }
    return status;
}
