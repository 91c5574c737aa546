/* Makes, keeps and finds the 8-bit forms of models. */
#include "server/precision/internal.h"

#include <limits.h>
#include <stdio.h>
#include <unistd.h>

#include "engine/backend/tuning_store.h"
#include "engine/base/clock.h"
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

/* Writes the path of the 8-bit form in the folder `cache`. */
static void write_path(const struct graph_hash *key, const char *cache, char ret[static PATH_MAX])
{
    snprintf(ret, PATH_MAX, "%s/int8-%016llx%016llx.onnx", cache, (unsigned long long)key->words[0],
             (unsigned long long)key->words[1]);
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
    char path[PATH_MAX];
    write_path(key, cache, path);
    return access(path, R_OK) == 0;
}

enum status calibrated_read(const struct graph_hash *key, const char *cache, struct graph **ret,
                            struct error *err)
{
    struct onnx_model onnx = {0};
    char path[PATH_MAX];
    write_path(key, cache, path);
    const enum status status = onnx_load_file(path, 0, &onnx, err);
    *ret = onnx.graph;
    return status;
}

/* Writes under another name first, because another process may read the file. */
static enum status keep_graph(const struct graph_hash *key, const char *cache,
                              const struct graph *graph, struct error *err)
{
    const struct onnx_write_options options = {.producer = "lensd"};
    char path[PATH_MAX], own[PATH_MAX + 24];
    write_path(key, cache, path);
    snprintf(own, sizeof own, "%s.%ld", path, (long)getpid());
    (void)tuning_make_folder(cache); /* writing reports the error */
    (void)unlink(own);
    TRY(onnx_write_file(graph, &options, own, err));
    if (rename(own, path) != 0)
        return error_set(err, STATUS_IO, "%s cannot be renamed", own);
    return STATUS_OK;
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
