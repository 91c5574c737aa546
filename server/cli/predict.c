/* lensd predict: images from files through the same model host as the server's. */
#include <errno.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/file.h"
#include "engine/base/size.h"
#include "engine/base/utf8.h"
#include "models/folder/repository.h"
#include "server/answers/annotate.h"
#include "server/answers/describe.h"
#include "server/app/process.h"
#include "server/app/settings.h"
#include "server/cli/commands.h"
#include "server/loader/model_open.h"
#include "server/schedule/runtime/stages.h"

#define FILE_BYTES_MAX ((size_t)1 << 30)

/* The main thread waits here for the model host. */
struct wait {
    pthread_mutex_t lock;
    pthread_cond_t done_changed;
    bool done;
};

static void predict_on_done(struct predict_request *request)
{
    struct wait *wait = request->context;
    pthread_mutex_lock(&wait->lock);
    wait->done = true;
    pthread_cond_signal(&wait->done_changed);
    pthread_mutex_unlock(&wait->lock);
}

static enum status predict_read_file(const char *path, uint8_t **ret, size_t *ret_size,
                                     struct error *err)
{
    struct error cause;
    enum status status = file_read(path, FILE_BYTES_MAX, ret, ret_size, &cause);
    switch (status) {
    case STATUS_OK:
        return STATUS_OK;
    case STATUS_TOO_LARGE:
        return error_set(err, status, "larger than 1 GB");
    case STATUS_NO_MEMORY:
        return error_no_memory(err, "for the file");
    case STATUS_INVALID:
        return error_set(err, status, "%s", cause.message);
    default:
        return error_set(err, STATUS_NOT_FOUND, "cannot read it: %s", cause.message);
    }
}

static void print_points(const struct predict_image *image, size_t box)
{
    const struct detections *found = &image->answer.detections;
    char shown[1024];
    for (size_t i = 0; i < found->point_count; i++) {
        const struct task_point *point = &found->points[box * found->point_count + i];
        const char *name = labels_name(&image->request->used_model->point_names, i);
        printf("        ");
        if (point->score >= 0)
            printf("%6.2f %%  ", (double)point->score * 100);
        printf("(%.0f, %.0f)  ", (double)point->x, (double)point->y);
        if (name)
            printf("%s\n", utf8_shown(name, shown, sizeof shown));
        else
            printf("point %zu\n", i);
    }
}

static void print_place(const struct predict_image *image, const struct detection *box)
{
    if (image->request->used_model->task.kind != TASK_ORIENTED) {
        printf("(%.0f, %.0f) to (%.0f, %.0f)", (double)box->x1, (double)box->y1, (double)box->x2,
               (double)box->y2);
        return;
    }
    printf("%.0f x %.0f around (%.0f, %.0f), rotated by %.1f degrees", (double)(box->x2 - box->x1),
           (double)(box->y2 - box->y1), (double)(box->x1 + box->x2) / 2,
           (double)(box->y1 + box->y2) / 2, (double)box->angle * 180 / 3.14159265358979);
}

/* "3 boxes: 2 person, 1 car". */
static void print_counts(const struct predict_image *image)
{
    const struct detections *found = &image->answer.detections;
    const struct labels *labels = &image->request->used_model->labels;
    char shown[1024];
    if (found->count == 0)
        return;
    printf("    %zu box%s", found->count, found->count == 1 ? "" : "es");
    for (size_t i = 0, classes = 0; i < found->count && labels->count; i++) {
        size_t same = 0, before = 0;
        for (size_t k = 0; k < found->count; k++) {
            same += found->items[k].index == found->items[i].index;
            before += k < i && found->items[k].index == found->items[i].index;
        }
        if (before > 0)
            continue;
        const char *label = labels_name(labels, found->items[i].index);
        printf("%s%zu ", classes++ ? ", " : ": ", same);
        if (label)
            printf("%s", utf8_shown(label, shown, sizeof shown));
        else
            printf("class %u", found->items[i].index);
    }
    printf("\n");
}

static void print_answer(const struct predict_image *image);

/* What the next stage of a pipeline says of a box. */
static void print_crop(const struct predict_image *crop)
{
    if (crop->status != STATUS_OK) {
        printf("      crop: error: %s\n", crop->error.message);
        return;
    }
    printf("      the crop of %u x %u\n", crop->width, crop->height);
    print_answer(crop);
}

static void print_boxes(const struct predict_image *image)
{
    const struct detections *found = &image->answer.detections;
    char shown[1024];
    for (size_t i = 0; i < found->count; i++) {
        const struct detection *box = &found->items[i];
        const char *label = labels_name(&image->request->used_model->labels, box->index);
        printf("    %6.2f %%  ", (double)box->score * 100);
        print_place(image, box);
        printf("  %s%s%u%s\n", label ? utf8_shown(label, shown, sizeof shown) : "class ",
               label ? "  (class " : "", box->index, label ? ")" : "");
        if (found->masks)
            printf("        %llu pixels\n", (unsigned long long)found->masks[i].area);
        if (image->request->used_model->task.kind == TASK_POSE)
            print_points(image, i);
        if (image->crops && image->crops[i])
            print_crop(image->crops[i]);
    }
    print_counts(image);
    if (task_has_boxes(image->request->used_model->task.kind) && found->count == 0)
        printf("    nothing found\n");
}

static void print_areas(const struct predict_image *image)
{
    const struct segments *found = &image->answer.segments;
    char shown[1024];
    for (size_t i = 0; i < found->count; i++) {
        const struct segment *area = &found->items[i];
        const char *label = labels_name(&image->request->used_model->labels, area->index);
        printf("    %6.2f %% of the picture  %s%s%u%s\n",
               (double)area->area * 100 / ((double)found->width * (double)found->height),
               label ? utf8_shown(label, shown, sizeof shown) : "class ", label ? "  (class " : "",
               area->index, label ? ")" : "");
    }
}

static void print_line(const struct predict_image *image)
{
    const struct text_reading *line = &image->answer.text;
    char shown[1024];
    if (!line->is_read)
        return;
    printf("    %6.2f %%  ", (double)line->score * 100);
    for (size_t i = 0; i < line->count; i++) {
        const char *character =
            labels_name(&image->request->used_model->labels, line->characters[i]);
        fputs(character ? utf8_shown(character, shown, sizeof shown) : " ", stdout);
    }
    printf("\n");
}

static void print_answer(const struct predict_image *image)
{
    char label[1024];
    for (size_t i = 0; i < image->prediction_count; i++) {
        const struct prediction *prediction = &image->predictions[i];
        printf("    %6.2f %%  %s%s%zu%s\n", (double)prediction->probability * 100,
               prediction->label ? utf8_shown(prediction->label, label, sizeof label) : "class ",
               prediction->label ? "  (class " : "", prediction->index,
               prediction->label ? ")" : "");
    }
    print_boxes(image);
    print_areas(image);
    print_line(image);
    const struct depth *depth = &image->answer.depth;
    if (depth->values)
        printf("    a depth map of %u x %u points; --json or --annotate writes it\n", depth->width,
               depth->height);
    const struct embedding *vector = &image->answer.embedding;
    for (size_t i = 0; i < vector->count; i++)
        printf("%s%.9g", i ? " " : "    ", (double)vector->values[i]);
    if (vector->count)
        printf("\n");
}

static void print_image(const char *path, const struct predict_image *image)
{
    char device[DEVICE_TEXT];
    if (image->status != STATUS_OK) {
        printf("%s\n    error: %s\n", path, image->error.message);
        return;
    }
    printf("%s  (%u x %u; %s, forward %.2f ms)\n", path, image->width, image->height,
           device_text(image->device, device), image->forward_ms);
    print_answer(image);
}

/* Printed once on standard error: the answers have numbers instead of names. */
static void hint_at_labels(const struct predict_request *request)
{
    bool nameless = false;
    /* Faces and texts are of one kind. */
    const bool has_classes = request->used_model->task.kind != TASK_TEXT_BOXES &&
                             request->used_model->task.layout != LAYOUT_YUNET;
    for (size_t i = 0; i < request->image_count; i++)
        for (size_t k = 0; k < request->images[i].prediction_count; k++)
            nameless |= !request->images[i].predictions[k].label;
    for (size_t i = 0; i < request->image_count && has_classes; i++)
        for (size_t k = 0; k < request->images[i].answer.detections.count; k++)
            nameless |= !labels_name(&request->used_model->labels,
                                     request->images[i].answer.detections.items[k].index);
    if (!nameless)
        return;
    if (request->used_model->warning[0])
        fprintf(stderr, "lensd: %s\n", request->used_model->warning);
    else
        fprintf(stderr, "lensd: the model has no labels; put labels.txt beside the .onnx file, "
                        "one name a line\n");
}

/* Whether OUT of --annotate is the name of a picture; else it is a folder. */
static bool is_picture_name(const char *out)
{
    const char *dot = strrchr(out, '.');
    return dot &&
           (!strcasecmp(dot, ".png") || !strcasecmp(dot, ".jpg") || !strcasecmp(dot, ".jpeg"));
}

/* Makes the folder OUT of --annotate unless it, or a file of its name, is there. */
static enum status prepare_annotate(const struct config *config, struct error *err)
{
    const char *out = config->annotate;
    if (!out)
        return STATUS_OK;
    if (is_picture_name(out) && config->argument_count > 1)
        return error_set(err, STATUS_CONFIG,
                         "--annotate %s is one picture, but there are %zu photos; name a folder",
                         out, config->argument_count);
    if (is_picture_name(out) || mkdir(out, 0777) == 0 || errno == EEXIST)
        return STATUS_OK;
    return error_set(err, STATUS_IO, "--annotate: cannot make the folder '%.200s': %s", out,
                     strerror(errno));
}

/* Where the picture of photo `path` goes: `out` itself if it is named as a picture, else a file in
 * the folder `out`. */
static enum status annotated_path(const char *out, const char *path, enum annotate_format *ret,
                                  char *ret_path, size_t size, struct error *err)
{
    const char *slash = strrchr(path, '/');
    const char *name = slash ? slash + 1 : path, *end = strrchr(name, '.');
    int length;
    *ret = ANNOTATE_JPEG;
    if (is_picture_name(out)) {
        *ret = strcasecmp(strrchr(out, '.'), ".png") ? ANNOTATE_JPEG : ANNOTATE_PNG;
        length = snprintf(ret_path, size, "%s", out);
    } else {
        length = snprintf(ret_path, size, "%s/%.*s.jpg", out,
                          (int)(end && end != name ? end - name : (ptrdiff_t)strlen(name)), name);
    }
    return length >= 0 && (size_t)length < size
               ? STATUS_OK
               : error_set(err, STATUS_INVALID, "the name is longer than %zu bytes", size - 1);
}

static enum status write_bytes(const char *path, const uint8_t *bytes, size_t size,
                               struct error *err)
{
    /* Not over another file: it could be a photo, or the drawing of one with the same name. */
    FILE *file = fopen(path, "wbx");
    if (!file && errno == EEXIST)
        return error_set(err, STATUS_IO, "there is such a file; remove it, or name another");
    bool is_done = file && fwrite(bytes, 1, size, file) == size;
    if (file && fclose(file) != 0)
        is_done = false;
    if (is_done)
        return STATUS_OK;
    error_set(err, STATUS_IO, "cannot write it: %s", strerror(errno));
    if (file)
        unlink(path);
    return STATUS_IO;
}

/* Writes the annotated photo; says on standard error what went wrong. */
static bool annotate_photo(const char *out, const char *path, const struct predict_image *image)
{
    char target[4096] = "";
    enum annotate_format format;
    uint8_t *bytes = NULL;
    size_t size;
    struct error err;
    enum status status = annotated_path(out, path, &format, target, sizeof target, &err);
    if (status == STATUS_OK)
        status = annotate_image(image, format, &bytes, &size, &err);
    if (status == STATUS_OK)
        status = write_bytes(target, bytes, size, &err);
    free(bytes);
    if (status != STATUS_OK)
        fprintf(stderr, "lensd: --annotate %s: %s\n", target[0] ? target : out, err.message);
    return status == STATUS_OK;
}

static int print_as_json(struct model_host *model_host, const struct predict_request *request)
{
    struct model_status *model = calloc(1, sizeof *model);
    bool known = model && model_host_models(model_host, model, 1) == 1;
    char *text = describe_predictions(request, known ? model : NULL,
                                      clock_ms(clock_now() - request->started), NULL);
    free(model);
    return print_json(text);
}

static int print_results(const struct config *config, struct model_host *model_host,
                         const struct predict_request *request)
{
    int failed = 0;
    for (size_t i = 0; i < request->image_count; i++)
        failed |= request->images[i].status != STATUS_OK;
    for (size_t i = 0; config->annotate && i < request->image_count; i++)
        if (request->images[i].status == STATUS_OK &&
            !annotate_photo(config->annotate, config->arguments[i], &request->images[i]))
            failed = 1;
    if (config->json) {
        int printed = print_as_json(model_host, request);
        return printed ? printed : failed;
    }
    for (size_t i = 0; i < request->image_count; i++)
        print_image(config->arguments[i], &request->images[i]);
    return failed;
}

static enum status predict_part(struct model_host *model_host, struct predict_request *request,
                                struct wait *wait, struct error *err)
{
    int retry_after_s;
    wait->done = false;
    TRY(model_host_submit(model_host, request, &retry_after_s, err));
    pthread_mutex_lock(&wait->lock);
    while (!wait->done)
        pthread_cond_wait(&wait->done_changed, &wait->lock);
    pthread_mutex_unlock(&wait->lock);
    return STATUS_OK;
}

/* *ret: NULL, or the stages of a pipeline, to be freed. */
static enum status predict_run(struct model_host *model_host, struct predict_request *request,
                               struct staged_request **ret, struct error *err)
{
    struct wait wait = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, false};
    int retry_after_s = 0;
    request->on_done = predict_on_done;
    request->context = &wait;
    TRY(stages_begin(model_host, request, ret, &retry_after_s, err));
    if (*ret)
        (*ret)->max_images = request->image_count > 64 ? request->image_count : 64;
    enum status status = predict_part(model_host, request, &wait, err);
    struct request_part *part = NULL;
    while (status == STATUS_OK && *ret) {
        status = request->parts->next(request->parts, &part, &retry_after_s, err);
        if (status != STATUS_OK || !part)
            break;
        status = predict_part(model_host, &part->request, &wait, err);
    }
    /* Everything the callback touches is on this stack: it must have returned. */
    (void)model_host_drain(model_host, 0);
    return status;
}

static enum status predict_set_size(struct model *model, const char *text, struct error *err)
{
    int width, height;
    if (!model_read_size(text, &width, &height))
        return error_set(err, STATUS_CONFIG,
                         "--size '%.40s' is not width and height of 1 to %d pixels, such as "
                         "640x480",
                         text, MODEL_SIDE_MAX);
    TRY(model_check_size(model, height, width, err));
    model_set_size(model, height, width);
    return STATUS_OK;
}

/* The models of a pipeline, and the sizes that it names. */
static enum status predict_add_stages(struct model_host *model_host,
                                      const struct repository *repository, struct error *err)
{
    const struct repository_model *models = repository->models;
    char name[128], version[16];
    struct model *model;
    int height, width;
    if (models[0].problem.status != STATUS_OK) {
        *err = models[0].problem;
        return err->status;
    }
    TRY(model_host_add_pipeline(model_host, models[0].name, "1", models[0].stages, err));
    for (size_t i = 1; i < repository->count; i++) {
        TRY(model_load(models[i].path, models[i].name, NULL, &model, err));
        TRY(model_host_add_model(model_host, model, NULL, err));
    }
    while (model_host_next_size(model_host, name, version, &height, &width)) {
        TRY(model_load(repository_find(repository, name)->path, name, NULL, &model, err));
        model_host_add_size(model_host, model, height, width, NULL);
    }
    return STATUS_OK;
}

static enum status predict_open_pipeline(const struct config *config,
                                         const struct model_host_options *options,
                                         bool *ret_is_pipeline, struct model_host **ret,
                                         struct error *err)
{
    struct repository repository;
    *ret_is_pipeline = false;
    if (model_is_embedded(config->model) ||
        repository_scan_model(config->model, NULL, &repository, err) != STATUS_OK)
        return STATUS_OK; /* model_open() says why */
    *ret_is_pipeline = repository.models[0].stages != NULL;
    struct model_host *model_host = NULL;
    enum status status = STATUS_OK;
    if (*ret_is_pipeline && config->size)
        status = error_set(err, STATUS_CONFIG,
                           "--size is for one model; a stage of " PIPELINE_FILE
                           " has \"sizes\" instead");
    if (*ret_is_pipeline && status == STATUS_OK)
        status = model_host_create(options, &model_host, err);
    if (*ret_is_pipeline && status == STATUS_OK)
        status = predict_add_stages(model_host, &repository, err);
    repository_done(&repository);
    if (status == STATUS_OK)
        *ret = model_host;
    else
        model_host_free(model_host);
    return status;
}

static enum status open_model_host(const struct config *config, struct model_host **ret,
                                   struct error *err)
{
    struct model_host_options options = settings_model_host(config, NULL);
    if (options.max_queue < config->argument_count)
        options.max_queue = config->argument_count;
    struct model *model;
    struct model_host *model_host;
    bool is_pipeline;
    TRY(predict_open_pipeline(config, &options, &is_pipeline, ret, err));
    if (is_pipeline)
        return STATUS_OK;
    TRY(model_open(config->model, NULL, &model, err));
    enum status status = config->size ? predict_set_size(model, config->size, err) : STATUS_OK;
    if (status == STATUS_OK)
        status = model_host_create(&options, &model_host, err);
    if (status != STATUS_OK) {
        model_free(model);
        return status;
    }
    model_host_announce(model_host, model->name, model->version, 1);
    status = model_host_add_model(model_host, model, NULL, err);
    if (status != STATUS_OK) {
        model_host_free(model_host);
        return status;
    }
    *ret = model_host;
    return STATUS_OK;
}

int command_predict(const struct config *config)
{
    struct error err;
    struct model_host *model_host;
    command_notes(config);
    if (open_model_host(config, &model_host, &err) != STATUS_OK)
        return process_failed(&err);
    size_t count = config->argument_count;
    if (prepare_annotate(config, &err) != STATUS_OK) {
        model_host_free(model_host);
        return process_failed(&err);
    }
    struct predict_request request = {
        .image_count = count, .top_k = (int)config->top_k, .started = clock_now()};
    request.images = alloc_array(count, sizeof *request.images);
    uint8_t **files = alloc_array(count, sizeof *files);
    struct staged_request *staged = NULL;
    int result = 2;
    if (!request.images || !files) {
        error_set(&err, STATUS_NO_MEMORY, "out of memory for %zu images", count);
        result = process_failed(&err);
        goto out;
    }
    for (size_t i = 0; i < count; i++) {
        struct predict_image *image = &request.images[i];
        image->name = config->arguments[i];
        if (predict_read_file(image->name, &files[i], &image->size, &image->preset) == STATUS_OK)
            image->data = files[i];
    }
    if (predict_run(model_host, &request, &staged, &err) == STATUS_OK)
        hint_at_labels(&request), result = print_results(config, model_host, &request);
    else
        result = process_failed(&err);
out:
    stages_free(staged);
    predict_request_free_results(&request);
    for (size_t i = 0; files && i < count; i++)
        free(files[i]);
    free(files);
    free(request.images);
    model_host_free(model_host);
    return result;
}
