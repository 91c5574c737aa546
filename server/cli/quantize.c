/* lensd quantize: converts a float32 model folder to 8 bits, and reports how well both models
 * agree. */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/file.h"
#include "engine/base/size.h"
#include "engine/base/utf8.h"
#include "engine/op/ops.h"
#include "models/onnx/onnx_write.h"
#include "proto/writer.h"
#include "server/app/process.h"
#include "server/cli/commands.h"
#include "server/precision/precision.h"

#define MODEL_FILE  "model.onnx"
#define REPORT_FILE "report.json"

/* If there are fewer photos, fewer than ten of them are held out for the comparison. */
#define FEW_PHOTOS 50

static _Atomic int quantize_cancel;

/* The command frees all members at its end. */
struct quantizing {
    const struct config *config;
    struct model *model;
    struct graph *graph;
    struct quantize_report report;
    uint64_t int8_bytes; /* of the new model's file */
    char *out;           /* the new folder */
    char *folder;        /* a temporary folder, which gets the name `out` at the end */
    bool is_made;        /* `folder` exists */
};

static void on_signal(int number)
{
    (void)number;
    quantize_cancel = 1;
}

static void on_quantize_progress(void *context, const char *phase, double fraction)
{
    (void)context;
    progress_show(phase, fraction, true);
}

/* ---- the folder ---- */

static char *default_output(const char *model)
{
    size_t length = strlen(model);
    char *out;
    while (length > 1 && model[length - 1] == '/')
        length--;
    if (length > 5 && !strncmp(model + length - 5, ".onnx", 5))
        length -= 5;
    return asprintf(&out, "%.*s-int8", (int)length, model) < 0 ? NULL : out;
}

/* Makes the temporary folder q->folder beside q->out, the final one. */
static enum status make_folder(struct quantizing *q, struct error *err)
{
    q->out = q->config->output ? strdup(q->config->output) : default_output(q->config->model);
    TRY(command_folder(q->out, err));
    if (asprintf(&q->folder, "%s.XXXXXX", q->out) < 0) {
        q->folder = NULL;
        return error_no_memory(err, NULL);
    }
    q->is_made = mkdtemp(q->folder);
    return q->is_made ? STATUS_OK
                      : error_set(err, STATUS_IO,
                                  "cannot make the folder '%.200s': %s; name another with -o",
                                  q->out, strerror(errno));
}

static bool sync_folder(const char *path)
{
    const int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    const bool ok = fd >= 0 && fsync(fd) == 0;
    if (fd >= 0)
        close(fd);
    return ok;
}

static enum status settle_folder(struct quantizing *q, struct error *err)
{
    if (chmod(q->folder, 0755) != 0 || !sync_folder(q->folder) ||
        renameat2(AT_FDCWD, q->folder, AT_FDCWD, q->out, RENAME_NOREPLACE) != 0)
        return error_set(err, STATUS_IO, "cannot make the folder '%.200s': %s", q->out,
                         strerror(errno));
    q->is_made = false;
    return STATUS_OK;
}

/* ---- the report ---- */

static enum status write_report(const struct quantizing *q, const char *json, struct error *err)
{
    char *path = path_join(q->folder, REPORT_FILE);
    FILE *file = path ? fopen(path, "wxe") : NULL;
    bool ok = file && fputs(json, file) >= 0 && fflush(file) == 0 && fsync(fileno(file)) == 0;
    const int cause = errno;
    if (file && fclose(file) != 0)
        ok = false;
    free(path);
    return ok ? STATUS_OK
              : error_set(err, STATUS_IO, "cannot write " REPORT_FILE ": %s", strerror(cause));
}

static void write_agreement(struct writer *w, json_node *root, const struct quantize_report *report)
{
    const struct agreement *a = &report->agreement;
    json_node *entry = write_object(w, root, "agreement");
    write_members(w, entry, "images=%d", a->images);
    if (a->is_vector)
        write_members(w, entry, "same_best_class=%d", a->same);
    write_members(w, entry, "clear=%zu clear_agreeing=%zu difference_of=%s mean=%g greatest=%g",
                  a->clear, a->agreeing,
                  a->is_vector ? "probability of the best class" : "outputs, relative", a->mean,
                  a->greatest);
    if (a->is_vector)
        write_members(w, entry, "correlation=%g", a->correlation);
}

/* Returns the report as indented JSON:
 * {"model","folder","target","photos":{…},"agreement":{…},"boxes"?:{…},"text"?:{…},"within_bounds","error",
 * "bytes":{…},"milliseconds":{…},"faster","biases_corrected","smoothed","fp32_share",
 * "all_int8"?:{…},"layers":[{"name","operator","precision","error_alone"?}]} */
static char *report_json(const struct quantizing *q)
{
    const struct quantize_report *report = &q->report;
    struct writer w = {.root = write_root(), .indents = true};
    write_members(&w, w.root,
                  "model=%s folder=%s target=%s photos{calibrated=%d held_out=%d unreadable=%d}",
                  q->model->name, q->out, q->config->is_for_avx2 ? "avx2" : "vnni",
                  report->calibrated, report->held_out, report->unreadable);
    write_agreement(&w, w.root, report);
    if (report->has_boxes)
        write_members(&w, w.root, "boxes{fp32=%zu int8=%zu pairs=%zu mean_iou=%.3f}",
                      report->fp32_boxes, report->int8_boxes, report->box_pairs, report->overlap);
    if (report->has_text)
        write_members(&w, w.root, "text{lines=%zu same=%zu characters=%zu edits=%zu}",
                      report->lines, report->same_lines, report->characters, report->edits);
    write_members(&w, w.root,
                  "within_bounds=%hhd error=%g bytes{fp32=%lu int8=%lu} milliseconds{fp32=%.3f "
                  "int8=%.3f} faster=%hhd biases_corrected=%hhd smoothed=%hhd fp32_share=%.3f",
                  report->holds, report->error, q->model->file_bytes, q->int8_bytes,
                  report->fp32_ms, report->int8_ms, report->is_faster, report->corrects_biases,
                  report->is_smoothed, report->fp32_share);
    if (report->kept) {
        json_node *all = write_object(&w, w.root, "all_int8");
        if (report->agreement.is_vector)
            write_members(&w, all, "same_best_class=%d", report->all_same);
        write_members(&w, all, "error=%g milliseconds=%.3f", report->all_error, report->all_ms);
    }
    json_node *layers = write_array(&w, w.root, "layers");
    for (size_t i = 0; i < report->layer_count; i++) {
        const struct quantizer_layer *layer = &report->layers[i];
        write_members(&w, layers, "{name=%s operator=%s precision=%s error_alone?=%g}",
                      layer->node->name, op_name(layer->node->op), layer->is_kept ? "fp32" : "int8",
                      layer->error_alone);
    }
    return write_finish(&w);
}

static void print_kept(const struct quantize_report *report)
{
    enum { SHOWN = 8 };
    char shown[1024];
    size_t count = 0;
    if (!report->kept) {
        printf("%-12sall %zu layers\n", "in int8", report->layer_count);
        return;
    }
    printf("%-12s%zu of %zu layers, %.0f %% of the multiply-adds", "in float32", report->kept,
           report->layer_count, 100 * report->fp32_share);
    for (size_t i = 0; i < report->layer_count; i++)
        if (report->layers[i].is_kept && count++ < SHOWN)
            printf("%s%s", count == 1 ? ": " : ", ",
                   utf8_shown(report->layers[i].node->name, shown, sizeof shown));
    printf("%s\n", count > SHOWN ? ", …" : "");
    printf("%-12sall layers in 8 bits: %.2f ms per image, error %.5f instead of %.5f", "",
           report->all_ms, report->all_error, report->error);
    if (report->agreement.is_vector)
        printf(", best class as in float32 for %d of %d held-out photos", report->all_same,
               report->agreement.images);
    printf("\n");
}

/* True if the models may agree well enough on more photos: at most one photo was compared, or the
 * means keep the wider bounds for AGREEMENT_FEW or more photos. */
static bool wants_photos(const struct quantize_report *report)
{
    struct agreement many = report->agreement;
    many.images = AGREEMENT_FEW;
    return report->agreement.images < 2 || agreement_holds(&many, NULL);
}

static void print_report(const struct quantizing *q)
{
    const struct quantize_report *report = &q->report;
    char shown[1024];
    printf("%s\n\n", utf8_shown(q->out, shown, sizeof shown));
    printf("%-12s%d to calibrate with, %d held out%s", "photos", report->calibrated,
           report->held_out, report->unreadable ? "" : "\n");
    if (report->unreadable)
        printf(", %d cannot be read\n", report->unreadable);
    if (report->calibrated + report->held_out < FEW_PHOTOS)
        printf("%-12sThese are few: about 100 give better ranges and a better comparison.\n", "");
    print_kept(report);
    if (report->agreement.is_vector)
        printf("%-12sas in float32 for %d of %d held-out photos; its probability changes by %.4f "
               "on average, %.4f at most\n",
               "best class", report->agreement.same, report->agreement.images,
               report->agreement.mean, report->agreement.greatest);
    else if (!report->has_boxes && !report->has_text)
        printf("%-12srelative error %.4f on average, %.4f at most, on %d held-out photos\n",
               "outputs", report->agreement.mean, report->agreement.greatest,
               report->agreement.images);
    if (report->has_text)
        printf("%-12sas in float32 for %zu of %zu lines; %zu edits for %zu characters\n", "text",
               report->same_lines, report->lines, report->edits, report->characters);
    if (report->has_boxes)
        printf("%-12s%zu, float32 %zu; %zu pairs overlap by half or more, by %.3f on average\n",
               "boxes", report->int8_boxes, report->fp32_boxes, report->box_pairs, report->overlap);
    if ((report->has_boxes && !report->fp32_boxes) || (report->has_text && !report->lines))
        printf("%-12sIn float32 the model finds nothing in the held-out photos, so nothing is "
               "compared.\n%-12sGive photos like those that it will see.\n",
               "", "");
    printf("%-12s%s, before %s\n", "size", SIZE_STRING(q->int8_bytes),
           SIZE_STRING(q->model->file_bytes));
    printf("%-12s%.2f ms, float32 %.2f ms\n", "one image", report->int8_ms, report->fp32_ms);
    if (!report->is_faster)
        printf("\nNot faster than float32 on this machine: serve the float32 model here.\n");
    if (!report->holds)
        printf("\nBounds not met: %s, measured on %d held-out photo%s. %s\n", report->bound,
               report->agreement.images, report->agreement.images == 1 ? "" : "s",
               wants_photos(report) ? "Give more photos."
                                    : "The model loses accuracy; see " REPORT_FILE ".");
}

/* ---- the command ---- */

static enum status check_photos(const struct config *config, struct error *err)
{
    char *inside = path_join(config->calibrate, "."); /* for a file, access() fails with ENOTDIR */
    TRY(check_memory(inside, NULL, err));
    const bool is_readable = access(inside, R_OK | X_OK) == 0;
    const int cause = errno;
    free(inside);
    return is_readable ? STATUS_OK
                       : error_set(err, STATUS_CONFIG,
                                   "cannot read --calibrate '%.200s': %s; name a folder of photos",
                                   config->calibrate, strerror(cause));
}

/* Refuses a weight that is not finite, because one NaN spoils the scale of a channel. */
static enum status check_weight(const struct value *weight, struct error *err)
{
    const struct tensor *tensor = weight ? weight->known : NULL;
    const size_t count = tensor && dtype_is_float(tensor->dtype) ? shape_count(&tensor->shape) : 0;
    for (size_t i = 0; i < count; i++)
        if (!isfinite(tensor_number(tensor, i)))
            return error_set(err, STATUS_NUMERIC,
                             "number %zu of the weight '%.200s' is %s; the file is broken: export "
                             "the model again from weights that are finite",
                             i, weight->name, isnan(tensor_number(tensor, i)) ? "NaN" : "infinite");
    return STATUS_OK;
}

static enum status check_weights(const struct graph *graph, struct error *err)
{
    for (size_t n = 0; n < graph->node_count; n++) {
        const struct node *node = graph->nodes[n];
        const bool has_weights = op_has(node->op, OP_PRODUCT);
        for (size_t i = 0; has_weights && i < node->input_count; i++)
            TRY(check_weight(node->inputs[i], err));
    }
    return STATUS_OK;
}

static enum status write_model_file(struct quantizing *q, struct error *err)
{
    struct stat info = {0};
    const struct onnx_write_options options = {.metadata = q->model->metadata,
                                               .metadata_count = q->model->metadata_count,
                                               .producer = "lensd quantize"};
    char *path = path_join(q->folder, MODEL_FILE);
    const enum status status =
        path ? onnx_write_file(q->graph, &options, path, err) : error_no_memory(err, NULL);
    if (status == STATUS_OK && stat(path, &info) == 0)
        q->int8_bytes = (uint64_t)info.st_size;
    free(path);
    return status;
}

static enum status quantize_steps(struct quantizing *q, char **ret_json, struct error *err)
{
    const struct config *config = q->config;
    const struct quantize_options options = {
        .threads = config->model_host.threads,
        .weight_max = config->is_for_avx2 ? QUANTIZER_WEIGHT_MAX_AVX2 : QUANTIZER_WEIGHT_MAX,
        .cancel = &quantize_cancel,
        .has_report = true,
        .on_progress = on_quantize_progress};
    if (!config->model)
        return error_set(err, STATUS_CONFIG,
                         "the built-in model is too small to gain from 8 bits; name a model");
    TRY(check_photos(config, err));
    TRY(model_load(config->model, NULL, NULL, &q->model, err));
    TRY(check_weights(q->model->graph, err));
    TRY(make_folder(q, err));
    free(q->model->calibration);
    q->model->calibration = strdup(config->calibrate);
    TRY(check_memory(q->model->calibration, NULL, err));
    TRY(calibrate_model(q->model, &IMAGE_LIMITS_DEFAULT, options, &q->graph, &q->report, err));
    TRY(write_model_file(q, err));
    TRY(model_copy_files(config->model, q->model->labels_source, q->folder, err));
    *ret_json = report_json(q);
    TRY(check_memory(*ret_json, NULL, err));
    TRY(write_report(q, *ret_json, err));
    return settle_folder(q, err);
}

int command_quantize(const struct config *config)
{
    struct quantizing q = {.config = config};
    struct error err;
    char *json = NULL;
    const struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESETHAND};
    struct sigaction hangup;
    int result = 0;
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    if (sigaction(SIGHUP, NULL, &hangup) == 0 && hangup.sa_handler != SIG_IGN) /* nohup */
        sigaction(SIGHUP, &action, NULL);
    const enum status status = quantize_steps(&q, &json, &err);
    progress_clear();
    if (status == STATUS_CANCELLED) /* instead of the message of the interrupted step */
        (void)error_set(&err, status, "cancelled; nothing was written");
    if (status != STATUS_OK)
        result = process_failed(&err);
    else if (config->json)
        fputs(json, stdout);
    else
        print_report(&q);
    if (q.is_made)
        model_remove_files(q.folder);
    FREE_ALL(json, q.out, q.folder);
    quantize_report_done(&q.report);
    graph_free(q.graph);
    model_free(q.model);
    return status == STATUS_CANCELLED || status == STATUS_IO ? 1 : result;
}
