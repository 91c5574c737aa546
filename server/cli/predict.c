/* lensd predict: sends photos from files, folders and standard input, or a text, through the
 * server's model host. Prints each answer as soon as possible, in the order of the photos. */
#include <errno.h>
#include <glob.h>
#include <limits.h>
#include <semaphore.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/array.h"
#include "engine/base/clock.h"
#include "engine/base/file.h"
#include "engine/base/size.h"
#include "models/folder/repository.h"
#include "server/answers/annotate.h"
#include "server/answers/describe.h"
#include "server/app/process.h"
#include "server/cli/commands.h"
#include "server/image/photo_files.h"
#include "server/loader/loader.h"
#include "server/observe/log.h"
#include "server/schedule/runtime/stages.h"

#define FILE_BYTES_MAX ((size_t)1 << 30)
#define STANDARD_INPUT "-"

/* The maximum of photos in memory that wait for an answer. It suffices for a batch per device and
 * for the decode workers. */
#define PHOTOS_AT_ONCE 32

/* A stage's queue must hold the crops of PHOTOS_AT_ONCE photos; a photo has at most 1000 crops. */
#define CROPS_AT_ONCE ((size_t)PHOTOS_AT_ONCE * 1000)

/* The callback of requests and the signal handler post `events`; the main thread waits for it. */
static sem_t events;
static volatile sig_atomic_t is_interrupted;

struct photo {
    struct predict_request request;
    struct staged_request *staged; /* NULL: the model is not a pipeline */
    uint8_t *file;
    _Atomic bool is_answered; /* the callback sets it when the photo's current request is done */
    bool is_done;             /* all requests for the photo are done */
};

struct prediction_run {
    const struct config *config;
    struct model_host *host;
    struct photo_files files;
    /* `photos` and `images` have `places` elements each; photo i uses element i % places. */
    struct photo *photos;
    struct predict_image *images;
    size_t places;
    size_t begun, ended; /* photos */
    int64_t started;
    int result;       /* exit status */
    struct error err; /* why no further photos are started; or STATUS_OK */
};

static void on_interrupt(int number)
{
    (void)number;
    is_interrupted = 1;
    sem_post(&events);
}

static void predict_on_done(struct predict_request *request)
{
    struct photo *photo = request->context;
    photo->is_answered = true; /* from now on the main thread may free the photo */
    sem_post(&events);
}

/* ---- photos ---- */

static enum status read_standard_input(uint8_t **ret, size_t *ret_size, struct error *err)
{
    uint8_t *bytes = NULL;
    size_t size = 0, capacity = 0, got;
    do {
        const bool is_large = size > FILE_BYTES_MAX;
        if (is_large || !array_reserve(&bytes, &capacity, size + (1 << 16), 1)) {
            free(bytes);
            return is_large ? error_set(err, STATUS_TOO_LARGE, "larger than 1 GB")
                            : error_no_memory(err, "for standard input");
        }
        got = fread(bytes + size, 1, capacity - size, stdin);
        size += got;
    } while (got > 0);
    *ret = bytes;
    *ret_size = size;
    return STATUS_OK;
}

static enum status predict_read_file(const char *path, uint8_t **ret, size_t *ret_size,
                                     struct error *err)
{
    struct error cause;
    if (!strcmp(path, STANDARD_INPUT))
        return read_standard_input(ret, ret_size, err);
    const enum status status = file_read(path, FILE_BYTES_MAX, ret, ret_size, &cause);
    return status == STATUS_OK ? status
                               : error_set(err, status == STATUS_IO ? STATUS_NOT_FOUND : status,
                                           "cannot read it: %s", cause.message);
}

static enum status add_pattern(struct photo_files *files, const char *pattern, struct error *err)
{
    glob_t found;
    enum status status = STATUS_OK;
    const int failed = glob(pattern, GLOB_NOCHECK, NULL, &found);
    if (failed)
        return error_no_memory(err, "for the names of photos");
    for (size_t i = 0; i < found.gl_pathc && status == STATUS_OK; i++)
        status = photo_files_add(files, found.gl_pathv[i], err);
    globfree(&found);
    return status;
}

/* Adds a file, the photos of a folder, or the files that match a pattern such as
 * 'photos/2026*.jpg'. Also adds a name that matches no file; reading it will fail. */
static enum status add_argument(struct photo_files *files, const char *argument, struct error *err)
{
    struct stat info;
    const size_t before = files->count;
    if (!strcmp(argument, STANDARD_INPUT))
        return photo_files_add(files, argument, err);
    if (stat(argument, &info) != 0)
        return add_pattern(files, argument, err);
    if (!S_ISDIR(info.st_mode))
        return photo_files_add(files, argument, err);
    TRY(photo_files_add_folder(files, argument, SIZE_MAX, err));
    return files->count > before
               ? STATUS_OK
               : error_set(err, STATUS_CONFIG,
                           "the folder '%.200s' has no photos: no file whose name ends in .jpg, "
                           ".png or that of another format",
                           argument);
}

static void print_doubt(const struct model *model, const char *text)
{
    fprintf(stderr, "lensd: model '%s': %s\n", model->name, text);
}

/* True if OUT of --annotate is the name of a JPEG or PNG; otherwise OUT is a folder. */
static bool is_picture_name(const char *out)
{
    const char *dot = strrchr(out, '.');
    return dot &&
           (!strcasecmp(dot, ".png") || !strcasecmp(dot, ".jpg") || !strcasecmp(dot, ".jpeg"));
}

/* Checks OUT of --annotate. Makes the folder unless a folder or file of that name exists. */
static enum status prepare_annotate(const struct config *config, size_t count, struct error *err)
{
    const char *out = config->annotate;
    if (!out)
        return STATUS_OK;
    if (is_picture_name(out) && count > 1)
        return error_set(err, STATUS_CONFIG,
                         "--annotate %s is one picture, but there are %zu photos; name a folder",
                         out, count);
    if (!is_picture_name(out) && photo_files_has_ending(out))
        return error_set(err, STATUS_CONFIG,
                         "--annotate %s: lensd draws into JPEG and PNG only; name a file that ends "
                         "in .jpg or .png, or a folder",
                         out);
    if (is_picture_name(out) || mkdir(out, 0777) == 0 || errno == EEXIST)
        return STATUS_OK;
    return error_set(err, STATUS_IO, "--annotate: cannot make the folder '%.200s': %s", out,
                     strerror(errno));
}

/* Finds the name of the file for the annotated photo `path`: `out` itself if it names an image
 * file, else a file in the folder `out`. */
static enum status annotated_path(const char *out, const char *path, enum annotate_format *ret,
                                  char *ret_path, size_t size, struct error *err)
{
    const char *name = !strcmp(path, STANDARD_INPUT) ? "stdin" : basename(path);
    const char *end = strrchr(name, '.');
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
    /* Never overwrites a file: it may be a photo, or the result for a photo of the same name. */
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

/* Writes the annotated photo; reports errors on standard error. */
static bool annotate_photo(const char *out, const char *path, const struct predict_image *image)
{
    char target[4096] = "";
    enum annotate_format format;
    uint8_t *bytes = NULL;
    size_t size;
    struct error err;
    enum status status = annotated_path(out, path, &format, target, sizeof target, &err);
    IF_OK(status, annotate_image(image, format, &bytes, &size, &err));
    IF_OK(status, write_bytes(target, bytes, size, &err));
    free(bytes);
    if (status != STATUS_OK)
        fprintf(stderr, "lensd: --annotate %s: %s\n", target[0] ? target : out, err.message);
    return status == STATUS_OK;
}

/* ---- the model ---- */

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

/* Implements model_host_source.read: reads a model of the pipeline again. */
static enum status predict_read(void *repository, const char *name, const char *version,
                                struct model **ret, struct error *err)
{
    (void)version;
    return model_load(repository_find(repository, name)->path, name, NULL, ret, err);
}

/* Checks that the command can use the model. Sets the model's input size to --size, if given. */
static enum status prepare_model(const struct config *config, struct model *model,
                                 struct error *err)
{
    if (config->text && !deployment_takes_texts(model))
        return error_set(err, STATUS_INVALID,
                         "model '%s' takes no texts; name a folder with a half for texts and a "
                         "tokenizer",
                         model->name);
    if (!config->text && config->command == COMMAND_EMBED && model->task.kind != TASK_EMBEDDING)
        return error_set(err, STATUS_CONFIG,
                         "model '%.100s' returns no vectors; use: lensd predict", model->name);
    return config->size && !config->text ? predict_set_size(model, config->size, err) : STATUS_OK;
}

static enum status add_model(struct model_host *host, const struct config *config, const char *path,
                             const char *name, struct error *err)
{
    struct model *model;
    TRY(model_load(path, name, NULL, &model, err));
    model_tell_doubts(model, print_doubt);
    const enum status status = prepare_model(config, model, err);
    if (status == STATUS_OK)
        return model_host_add_model(host, model, NULL, err);
    model_free(model);
    return status;
}

/* Adds a pipeline and its models, and compiles the models for the sizes that the pipeline names. */
static enum status add_pipeline(struct model_host *host, const struct config *config,
                                struct repository *repository, struct error *err)
{
    const struct repository_model *models = repository->models;
    if (config->size)
        return error_set(err, STATUS_CONFIG,
                         "--size is for one model; a stage of " PIPELINE_FILE
                         " has \"sizes\" instead");
    if (config->command == COMMAND_EMBED)
        return error_set(err, STATUS_CONFIG, "a pipeline returns no vectors; use: lensd predict");
    if (models[0].problem.status != STATUS_OK) {
        *err = models[0].problem;
        return err->status;
    }
    TRY(model_host_add_pipeline(host, models[0].name, "1", models[0].stages, err));
    for (size_t i = 1; i < repository->count; i++)
        TRY(add_model(host, config, models[i].path, models[i].name, err));
    model_host_set_source(host,
                          &(struct model_host_source){.read = predict_read, .context = repository});
    const size_t sizes = model_host_sizes_left(host);
    do {
        const size_t left = model_host_sizes_left(host);
        if (left > 0)
            progress_show("compiling sizes", 1 - (double)left / (double)sizes, false);
    } while (model_host_make_size(host, NULL));
    model_host_set_source(host, &(struct model_host_source){0});
    return STATUS_OK;
}

/* The caller frees *ret, even after a failure. */
static enum status open_model_host(const struct config *config, struct model_host **ret,
                                   struct error *err)
{
    struct model_host_options options = config->model_host;
    struct repository repository = {0};
    struct error unlisted; /* ignored, because model_load() reports the same error */
    char half[PATH_MAX];
    const char *path = config->model, *ending;
    if (options.max_queue < CROPS_AT_ONCE)
        options.max_queue = CROPS_AT_ONCE;
    TRY(model_host_create(&options, ret, err));
    if (config->text && path && model_find_half(path, half, &ending))
        path = half; /* the model's encoder of texts */
    const bool is_pipeline =
        !config->text && repository_scan_model(path, NULL, &repository, &unlisted) == STATUS_OK &&
        repository.models[0].stages;
    const enum status status = is_pipeline ? add_pipeline(*ret, config, &repository, err)
                                           : add_model(*ret, config, path, NULL, err);
    repository_done(&repository);
    return status;
}

/* ---- answers ---- */

/* Prints {"name": path, …} with the members of the answer, in one line. */
static void print_json_line(const char *path, const struct photo *photo)
{
    const struct describe_how how = {
        .answer = {.model = photo->staged ? photo->staged->name : NULL,
                   .name = path,
                   .total_ms = clock_ms(clock_now() - photo->request.started)}};
    (void)print_json(describe_predictions(&photo->request, &how, NULL));
}

static int print_as_json(const struct prediction_run *run)
{
    const struct photo *first = &run->photos[0];
    const struct predict_request all = {
        .images = run->images, .image_count = run->ended, .used_model = first->request.used_model};
    size_t count;
    struct model_status *models = model_host_snapshot(run->host, &count);
    const struct describe_how how = {
        .status = first->staged ? NULL : models, /* a pipeline has no precision of its own */
        .answer = {.model = first->staged ? first->staged->name : NULL,
                   .as_list = true,
                   .total_ms = clock_ms(clock_now() - run->started)}};
    char *text = describe_predictions(&all, &how, NULL);
    free(models);
    return print_json(text);
}

static void photo_done(struct photo *photo)
{
    stages_free(photo->staged);
    predict_request_free_results(&photo->request);
    free(photo->file);
    *photo = (struct photo){0};
}

static void show_progress(const struct prediction_run *run)
{
    char text[64];
    const double seconds = clock_ms(clock_now() - run->started) / 1000;
    const double rate = (double)run->ended / (seconds > 0.001 ? seconds : 0.001);
    if (isatty(STDOUT_FILENO) || run->files.count == 1)
        return;
    snprintf(text, sizeof text, "%zu of %zu, %.1f photos/s, %.0f s left", run->ended,
             run->files.count, rate, (double)(run->files.count - run->ended) / rate);
    progress_show(text, (double)run->ended / (double)run->files.count, false);
}

/* Prints the answer of the next photo. */
static void end_photo(struct prediction_run *run)
{
    const char *path = run->files.paths[run->ended];
    const size_t place = run->ended++ % run->places;
    struct photo *photo = &run->photos[place];
    const struct predict_image *image = &run->images[place];
    if (image->status != STATUS_OK)
        run->result = 1;
    if (run->config->annotate && image->status == STATUS_OK &&
        !annotate_photo(run->config->annotate, path, image))
        run->result = 1;
    free(photo->file);
    photo->file = NULL;
    if (run->config->json)
        return;
    if (run->config->jsonl || run->config->command == COMMAND_EMBED)
        print_json_line(path, photo);
    else
        print_image(path, image);
    if (fflush(stdout) != 0)
        putchar('\n'); /* cannot be written either, so main() reports the failure */
    photo_done(photo);
    run->images[place] = (struct predict_image){0};
    show_progress(run);
}

/* ---- a text ---- */

static void text_on_done(struct predict_request *request)
{
    (void)request;
}

/* Prints the vector of --text. The host has one model, the encoder. Returns the exit status. */
static int predict_text(struct model_host *host, const char *text)
{
    const struct text_item item = {.text = text, .size = strlen(text)};
    struct text_rows rows = {0};
    struct predict_image image = {0};
    struct predict_request request = {.images = &image,
                                      .image_count = 1,
                                      .top_k = 1,
                                      .started = clock_now(),
                                      .on_done = text_on_done};
    struct error err;
    int result = 0;
    if (model_host_acquire(host, NULL, NULL, &request.target, &err) != STATUS_OK)
        return process_failed(&err);
    enum status status = text_rows_make(&request.target->model->text, &item, 1, false, &rows, &err);
    request.tensors = (const void *const *)rows.inputs;
    IF_OK(status, model_host_submit(host, &request, &err));
    model_host_release(host, request.target);
    (void)model_host_drain(host, INT_MAX); /* waits for the answer */
    const struct describe_how how = {.answer.total_ms = clock_ms(clock_now() - request.started)};
    if (status != STATUS_OK)
        result = process_failed(&err);
    else if (image.status != STATUS_OK)
        result = process_failed(&image.error);
    else
        result = print_json(describe_predictions(&request, &how, NULL));
    predict_request_free_results(&request);
    text_rows_done(&rows);
    return result;
}

/* ---- the run ---- */

/* Begins the next photo. Returns false after SIGINT, or with run->err after a failure. */
static bool begin_photo(struct prediction_run *run)
{
    const size_t place = run->begun % run->places;
    struct photo *photo = &run->photos[place];
    struct predict_image *image = &run->images[place];
    photo->request = (struct predict_request){.images = image,
                                              .image_count = 1,
                                              .top_k = run->config->http.top_k,
                                              .started = clock_now(),
                                              .on_done = predict_on_done,
                                              .context = photo};
    image->name = run->files.paths[run->begun];
    if (predict_read_file(image->name, &photo->file, &image->size, &image->preset) == STATUS_OK)
        image->data = photo->file;
    if (is_interrupted) { /* a signal may have come while standard input was read */
        photo_done(photo);
        return false;
    }
    enum status status = stages_begin(run->host, &photo->request, &photo->staged, &run->err);
    if (status == STATUS_OK && photo->staged)
        photo->staged->max_images = 64;
    IF_OK(status, model_host_submit(run->host, &photo->request, &run->err));
    if (status == STATUS_OK)
        run->begun++;
    else
        photo_done(photo);
    return status == STATUS_OK;
}

/* Call this when a request for a photo is answered. Submits the photo's next request, if its
 * pipeline has one. */
static void continue_photo(const struct prediction_run *run, struct photo *photo)
{
    struct predict_image *image = photo->request.images;
    struct request_part *part = NULL;
    struct error err;
    enum status status = STATUS_OK;
    if (photo->staged)
        status = photo->request.parts->next(photo->request.parts, &part, &err);
    if (status == STATUS_OK && part)
        status = model_host_submit(run->host, &part->request, &err);
    if (status != STATUS_OK && image->status == STATUS_OK) {
        image->status = status;
        image->error = err;
    }
    photo->is_done = status != STATUS_OK || !part;
}

/* Handles the requests that were answered. Returns true if there were any. */
static bool continue_answered(const struct prediction_run *run)
{
    bool has_changed = false;
    for (size_t i = run->ended; i < run->begun; i++) {
        struct photo *photo = &run->photos[i % run->places];
        if (photo->is_done || !atomic_exchange(&photo->is_answered, false))
            continue;
        continue_photo(run, photo);
        has_changed = true;
    }
    return has_changed;
}

static void predict_photos(struct prediction_run *run)
{
    sigset_t interrupt;
    sigemptyset(&interrupt);
    sigaddset(&interrupt, SIGINT);
    for (bool goes_on = true;;) {
        goes_on = goes_on && !is_interrupted && !ferror(stdout);
        while (goes_on && run->begun < run->files.count && run->begun - run->ended < PHOTOS_AT_ONCE)
            goes_on = begin_photo(run) && !is_interrupted;
        if (run->ended == run->begun)
            break;
        const bool has_changed = continue_answered(run);
        pthread_sigmask(SIG_BLOCK, &interrupt, NULL); /* a signal could interrupt a write */
        while (run->ended < run->begun && run->photos[run->ended % run->places].is_done)
            end_photo(run);
        pthread_sigmask(SIG_UNBLOCK, &interrupt, NULL);
        if (!has_changed)
            while (sem_wait(&events) != 0 && errno == EINTR)
                ;
    }
    /* All callbacks must have returned, because they use the photos. */
    (void)model_host_drain(run->host, 0);
    progress_clear();
}

static enum status prepare_run(struct prediction_run *run, struct error *err)
{
    for (size_t i = 0; i < run->config->argument_count; i++)
        TRY(add_argument(&run->files, run->config->arguments[i], err));
    TRY(prepare_annotate(run->config, run->files.count, err));
    /* With --json all answers are kept, because one document contains them. */
    run->places =
        run->config->json || run->files.count < PHOTOS_AT_ONCE ? run->files.count : PHOTOS_AT_ONCE;
    run->photos = alloc_array(run->places, sizeof *run->photos);
    run->images = alloc_array(run->places, sizeof *run->images);
    return run->photos && run->images
               ? STATUS_OK
               : error_set(err, STATUS_NO_MEMORY, "out of memory for %zu images", run->places);
}

static int finish_run(const struct prediction_run *run)
{
    const int printed = run->config->json && run->ended > 0 ? print_as_json(run) : 0;
    if (run->err.status != STATUS_OK)
        return process_failed(&run->err);
    if (is_interrupted) {
        fprintf(stderr, "lensd: interrupted after %zu of %zu photos\n", run->ended,
                run->files.count);
        return 128 + SIGINT;
    }
    return printed ? printed : run->result;
}

int command_predict(const struct config *config)
{
    struct prediction_run run = {.config = config, .started = clock_now()};
    struct sigaction action = {.sa_handler = on_interrupt, .sa_flags = (int)SA_RESETHAND};
    struct error err;
    log_lowest = LOG_WARN;
    enum status status = open_model_host(config, &run.host, &err);
    progress_clear();
    IF_OK(status, config->text ? STATUS_OK : prepare_run(&run, &err));
    int result = 0;
    if (status != STATUS_OK) {
        result = process_failed(&err);
    } else if (config->text) {
        result = predict_text(run.host, config->text);
    } else {
        sem_init(&events, 0, 0);
        sigaction(SIGINT, &action, NULL);
        predict_photos(&run);
        result = finish_run(&run);
    }
    for (size_t i = 0; run.photos && i < run.places; i++)
        photo_done(&run.photos[i]);
    FREE_ALL(run.photos, run.images);
    photo_files_done(&run.files);
    model_host_free(run.host);
    return result;
}
