/* Test doubles of sessions, image decoding and models; the text of an "image" says what happens. */
#include "tests/unit/server/schedule/fakes.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/size.h"
#include "engine/runtime/session.h"
#include "server/image/frame.h"
#include "server/image/transform.h"
#include "server/image/warp.h"
#include "server/precision/precision.h"
#include "server/schedule/runtime/model_host.h"
#include "tests/unit/tap.h"

#define CLASS_POISON (-1)
#define CLASS_NAN    (-2)
#define CLASS_VAST   (-3)

static void fail(const char *what)
{
    fprintf(stderr, "fakes: %s\n", what);
    abort();
}

/* --- gates and counters, all guarded by `lock` --- */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static bool runs_shut[FAKE_MODELS], decodes_shut;
static int runs[FAKE_MODELS], images_run[FAKE_MODELS], greatest_run[FAKE_MODELS];
static int running[FAKE_MODELS];
static int decodes, large_decodes, sessions_alive, models_freed;
static int memory_fits;
static bool broken[2][DEVICE_MAX];
static int runs_on[2][DEVICE_MAX], running_on[DEVICE_MAX]; /* the latter of GPUs */
static int run_sizes[FAKE_MODELS][31], run_size_count[FAKE_MODELS];
static struct fake_session_plan plan;
static int greatest_under_way, session_depth = 1;

static void set(bool *flag, bool value)
{
    pthread_mutex_lock(&lock);
    *flag = value;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

void fake_shut_runs(int height)
{
    set(&runs_shut[height], true);
}

void fake_open_runs(int height)
{
    set(&runs_shut[height], false);
}

void fake_shut_decodes(void)
{
    set(&decodes_shut, true);
}

void fake_open_decodes(void)
{
    set(&decodes_shut, false);
}

static int read_counter(const int *counter)
{
    pthread_mutex_lock(&lock);
    int value = *counter;
    pthread_mutex_unlock(&lock);
    return value;
}

int fake_runs(int height)
{
    return read_counter(&runs[height]);
}

int fake_images_run(int height)
{
    return read_counter(&images_run[height]);
}

int fake_greatest_run(int height)
{
    return read_counter(&greatest_run[height]);
}

int fake_running(int height)
{
    return read_counter(&running[height]);
}

int fake_decodes(void)
{
    return read_counter(&decodes);
}

int fake_large_decodes(void)
{
    return read_counter(&large_decodes);
}

int fake_sessions_alive(void)
{
    return read_counter(&sessions_alive);
}

int fake_models_freed(void)
{
    return read_counter(&models_freed);
}

bool fake_wait(int (*counter)(int), int height, int least)
{
    for (int64_t end = clock_now() + PATIENCE_MS * INT64_C(1000000); clock_now() < end; usleep(500))
        if (counter(height) >= least)
            return true;
    return false;
}

static int decodes_counter(int height)
{
    (void)height;
    return fake_decodes();
}

bool fake_wait_decodes(int least)
{
    return fake_wait(decodes_counter, 0, least);
}

void fake_plan(struct fake_session_plan new_plan)
{
    pthread_mutex_lock(&lock);
    plan = new_plan;
    pthread_mutex_unlock(&lock);
}

void fake_memory_fits(int images)
{
    pthread_mutex_lock(&lock);
    memory_fits = images;
    pthread_mutex_unlock(&lock);
}

void fake_break(struct device_id device, bool is_broken)
{
    set(&broken[device.kind == DEVICE_CUDA][device.index], is_broken);
}

int fake_runs_on(struct device_id device)
{
    return read_counter(&runs_on[device.kind == DEVICE_CUDA][device.index]);
}

const char *fake_run_sizes(int height)
{
    static char text[31 * 5 + 1];
    size_t used = 0;
    text[0] = '\0';
    pthread_mutex_lock(&lock);
    for (int i = 0; i < run_size_count[height]; i++)
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%d", i ? " " : "",
                                 run_sizes[height][i]);
    run_size_count[height] = 0;
    pthread_mutex_unlock(&lock);
    return text;
}

/* --- models --- */

size_t list_models(struct model_host *host, struct model_status *ret, size_t max)
{
    size_t count;
    struct model_status *models = model_host_snapshot(host, &count);
    if (!models)
        fail("no memory");
    count = count < max ? count : max;
    memcpy(ret, models, count * sizeof *ret);
    free(models);
    return count;
}

struct model *fake_model(const char *name, int height)
{
    struct model *model = calloc(1, sizeof *model);
    if (!model)
        fail("no memory");
    model->name = strdup(name);
    model->version = strdup("1");
    model->idle_unload_s = -1;
    preprocess_default(&model->preprocess);
    model->preprocess.width = FAKE_WIDTH;
    model->preprocess.height = height;
    model->preprocess.channels = CHANNELS_GRAY;
    model->input_channels_last = true;
    model->task.kind = TASK_CLASSIFICATION;
    model->inputs = calloc(1, sizeof *model->inputs);
    model->outputs = calloc(1, sizeof *model->outputs);
    if (!model->inputs || !model->outputs)
        fail("no memory");
    model->input_count = model->output_count = 1;
    *model->inputs = (struct model_tensor){strdup("image"), DTYPE_F32,
                                           SHAPE(DIM_UNKNOWN, height, FAKE_WIDTH, 1)};
    *model->outputs =
        (struct model_tensor){strdup("scores"), DTYPE_F32, SHAPE(DIM_UNKNOWN, FAKE_CLASSES)};
    return model;
}

enum status model_check_size(const struct model *model, int height, int width, struct error *err)
{
    (void)height, (void)width;
    return model->free_width ? STATUS_OK : error_set(err, STATUS_INVALID, "the file fixes it");
}

void model_set_size(struct model *model, int height, int width)
{
    model->preprocess.height = height;
    model->preprocess.width = width;
    if (model->text.allows_short_rows)
        model->text.length = (size_t)width;
}

void model_drop_graph(struct model *model)
{
    model->graph = NULL;
}

enum status model_find_classes(const struct model *model, const char *const *own, size_t own_count,
                               struct task_options *options, struct error *err)
{
    (void)model;
    (void)own;
    (void)own_count;
    (void)options;
    (void)err; /* no test names classes */
    return STATUS_OK;
}

void model_free(struct model *model)
{
    if (!model)
        return;
    free(model->inputs[0].name);
    free(model->outputs[0].name);
    free(model->inputs);
    free(model->outputs);
    free(model->version);
    free(model->name);
    free(model);
    pthread_mutex_lock(&lock);
    models_freed++;
    pthread_mutex_unlock(&lock);
}

/* --- images: text --- */

struct image_decoder {
    union {
        int value;            /* of the last image */
        uint8_t row[640 * 3]; /* every row of its pixels: the stride is 0 */
    };
};

struct transform {
    char nothing;
};

struct image_decoder *image_decoder_create(const struct image_memory *memory)
{
    (void)memory;
    return calloc(1, sizeof(struct image_decoder));
}

void image_decoder_free(struct image_decoder *decoder)
{
    free(decoder);
}

void image_decoder_done(struct image_decoder *decoder, bool all)
{
    (void)decoder, (void)all;
}

static bool is_large_text(const char *text, size_t size)
{
    return size > 6 && !memcmp(text + size - 6, " large", 6);
}

void warp_quadrilateral(const struct image *image, const float corners[static 4][2], uint32_t width,
                        uint32_t height, uint8_t *ret)
{
    (void)image, (void)corners;
    memset(ret, 7, 3 * (size_t)width * height);
}

void warp_affine(const struct image *image, const double map[static 6], uint32_t width,
                 uint32_t height, bool fades, uint8_t *ret)
{
    (void)image, (void)map, (void)fades;
    memset(ret, 9, 3 * (size_t)width * height);
}

void image_orient(const uint8_t *src, size_t stride, uint32_t width, uint32_t height,
                  int orientation, uint8_t *dst)
{
    (void)src, (void)stride, (void)width, (void)height, (void)orientation, (void)dst;
    abort(); /* no fake finds lines of text, nor classes of lines */
}

enum status image_decode(struct image_decoder *decoder, const uint8_t *data, size_t size,
                         const struct image_limits *limits, const struct preprocess *p,
                         bool reduces, struct image *ret, struct error *err)
{
    char text[64];
    (void)limits, (void)p, (void)reduces;
    snprintf(text, sizeof text, "%.*s", (int)size, (const char *)data);
    pthread_mutex_lock(&lock);
    decodes++;
    large_decodes += is_large_text((const char *)data, size);
    while (decodes_shut)
        pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
    if (!strncmp(text, "ok ", 3))
        decoder->value = (int)strtol(text + 3, NULL, 10);
    else if (!strcmp(text, "poison"))
        decoder->value = CLASS_POISON;
    else if (!strcmp(text, "nan"))
        decoder->value = CLASS_NAN;
    else if (!strcmp(text, "vast"))
        decoder->value = CLASS_VAST;
    else if (!strcmp(text, "untransformed"))
        decoder->value = INT32_MAX;
    else
        return error_set(err, STATUS_BAD_IMAGE, "'%s' does not decode", text);
    *ret = (struct image){
        .info = {.width = 640, .height = 480}, .width = 640, .height = 480, .pixels = decoder->row};
    return STATUS_OK;
}

bool image_is_large(const uint8_t *data, size_t size)
{
    return is_large_text((const char *)data, size);
}

struct source_frame frame_source(const struct preprocess *p, uint32_t width, uint32_t height)
{
    (void)p;
    return (struct source_frame){.width = width, .height = height};
}

enum status frame_of(const struct preprocess *p, uint32_t width, uint32_t height,
                     struct crop_frame *ret, struct error *err)
{
    (void)err;
    *ret = (struct crop_frame){.resized_width = p->width, .resized_height = p->height};
    return width && height ? STATUS_OK : STATUS_INTERNAL;
}

struct transform *transform_create(void)
{
    return calloc(1, sizeof(struct transform));
}

void transform_free(struct transform *transform)
{
    free(transform);
}

enum status transform_numbers(struct transform *transform, const struct image *image,
                              const struct preprocess *p, float *dst, struct error *err)
{
    int value;
    (void)transform;
    memcpy(&value, image->pixels, sizeof value);
    if (value == INT32_MAX) {
        dst[0] = 12345; /* half written */
        return error_set(err, STATUS_TOO_LARGE, "it does not fit");
    }
    for (int i = 0; i < p->width * p->height; i++)
        dst[i] = (float)value;
    return STATUS_OK;
}

/* --- sessions --- */

struct session {
    struct session_info info;
    struct fake_session_plan plan;
    int height;
    struct session_tensor input, output;
    float *scores;
    struct tensor *result;
    _Atomic int inside;
    struct session_request flights[2]; /* under way, the oldest first */
    int flight_count;
};

const char *precision_name(enum precision precision)
{
    (void)precision;
    return "fp32";
}

const char *choice_origin_name(enum choice_origin origin)
{
    (void)origin;
    return "only";
}

enum status session_create(const struct graph *graph, const struct session_options *options,
                           struct session **ret, struct error *err)
{
    (void)graph;
    pthread_mutex_lock(&lock);
    struct fake_session_plan chosen = plan;
    const bool is_full = plan.most_alive && sessions_alive >= plan.most_alive;
    pthread_mutex_unlock(&lock);
    if (is_full)
        return error_set(err, STATUS_NO_MEMORY, "no memory for a further fake");
    if (options->cancel && *options->cancel)
        return error_set(err, STATUS_CANCELLED, "cancelled");
    if (chosen.fails)
        return error_set(err, STATUS_UNSUPPORTED, "operator Fake (opset 13) is not supported");
    struct session *session = calloc(1, sizeof *session);
    if (!session)
        fail("no memory");
    int smallest = chosen.smallest_batch ? chosen.smallest_batch : 1;
    int max = chosen.max_batch      ? chosen.max_batch
              : options->batches[0] ? options->batches[0]
                                    : options->max_batch;
    session->plan = chosen;
    session->height = options->image_height;
    session->info = (struct session_info){.device = options->device,
                                          .threads = options->threads,
                                          .batched = max > 1,
                                          .inputs = &session->input,
                                          .outputs = &session->output,
                                          .input_count = 1,
                                          .output_count = 1,
                                          .depth = read_counter(&session_depth)};
    for (int size = smallest;; size = size * 2 < max ? size * 2 : max) {
        const struct session_batch *known = &options->known[session->info.batch_count];
        session->info.batches[session->info.batch_count++] =
            (struct session_batch){.size = size,
                                   .milliseconds = known->size == size   ? known->milliseconds
                                                   : chosen.batch_ms > 0 ? chosen.batch_ms
                                                                         : size + 1};
        if (size >= max)
            break;
    }
    session->input = (struct session_tensor){
        "image", DTYPE_F32, SHAPE(1, options->image_height, options->image_width, 1)};
    session->output = (struct session_tensor){"scores", DTYPE_F32, SHAPE(1, FAKE_CLASSES)};
    if (chosen.unlike_classifier)
        session->output.shape = SHAPE(1, 84, 8400);
    session->scores =
        calloc((size_t)(max > smallest ? max : smallest) * FAKE_CLASSES, sizeof *session->scores);
    if (!session->scores)
        fail("no memory");
    if (options->on_progress)
        options->on_progress(options->progress_context, "compiling", 0.5);
    pthread_mutex_lock(&lock);
    sessions_alive++;
    pthread_mutex_unlock(&lock);
    *ret = session;
    return STATUS_OK;
}

enum status precision_open(const struct model *model, const struct precision_options *options,
                           const struct session_options *session, struct precision_choice *ret,
                           struct session **ret_session, struct error *err)
{
    (void)options;
    *ret = (struct precision_choice){.precision = PRECISION_FP32, .why = "a fake chooses nothing"};
    TRY(session_create(model->graph, session, ret_session, err));
    ret->origin = (*ret_session)->plan.pends ? CHOICE_PENDING : CHOICE_ONLY;
    return STATUS_OK;
}

enum status precision_session(const struct model *model, const struct precision_options *options,
                              const struct session_options *session, struct session **ret,
                              struct error *err)
{
    (void)options;
    return session_create(model->graph, session, ret, err);
}

enum status precision_try(const struct model *model, const struct precision_options *options,
                          const struct session_options *session, struct session *fp32,
                          const struct precision_gate *gate, double load_ms,
                          struct precision_choice *ret_choice, struct error *err)
{
    const bool wins = fp32->plan.wins;
    float image[FAKE_MODELS * FAKE_WIDTH] = {0};
    (void)model, (void)options, (void)load_ms;
    for (int run = 0; run < 30; run++) {
        const void *inputs[] = {image};
        const struct tensor *outputs[1];
        if (session->cancel && *session->cancel)
            return error_set(err, STATUS_CANCELLED, "cancelled");
        gate->begin(gate->context);
        if (session_run(fp32, 1, inputs, outputs, err) != STATUS_OK ||
            ((const float *)outputs[0]->data)[0] != 1)
            fail("a pass of a trial");
        gate->end(gate->context);
    }
    *ret_choice = (struct precision_choice){.precision = wins ? PRECISION_BF16 : PRECISION_FP32,
                                            .origin = CHOICE_MEASURED,
                                            .why = "measured by a fake"};
    return STATUS_OK;
}

void session_release_pages(struct session *session)
{
    (void)session;
}

void session_free(struct session *session)
{
    if (!session)
        return;
    if (session->inside)
        fail("a session is freed while it runs");
    tensor_unref(session->result);
    free(session->scores);
    free(session);
    pthread_mutex_lock(&lock);
    sessions_alive--;
    pthread_mutex_unlock(&lock);
}

const struct session_info *session_info(const struct session *session)
{
    return &session->info;
}

enum status session_enter(struct session *session, struct error *err)
{
    return session->plan.refuses ? error_set(err, STATUS_NO_MEMORY, "no thread for it") : STATUS_OK;
}

size_t session_share_arena(struct session *session, struct shared_arena *arena)
{
    (void)session;
    (void)arena; /* as on a GPU */
    return 0;
}

void session_set_stop(struct session *session, bool (*stop)(void *context), void *context)
{
    (void)session;
    (void)stop;
    (void)context; /* the fake has no loops */
}

void session_set_run_ended(struct session *session, void (*ended)(void *context), void *context)
{
    (void)session;
    (void)ended;
    (void)context; /* the fake has no streams */
}

bool session_run_has_ended(const struct session *session)
{
    (void)session;
    return false;
}

int session_batch_for(const struct session *session, int n)
{
    for (size_t i = 0; i < session->info.batch_count; i++)
        if (session->info.batches[i].size >= n)
            return session->info.batches[i].size;
    fail("a batch beyond the largest");
    return 0;
}

static void begin_run(const struct session *session, int batch)
{
    int h = session->height;
    pthread_mutex_lock(&lock);
    if (session->info.device.kind == DEVICE_CUDA && running_on[session->info.device.index]++ > 0)
        fail("two forward passes on one GPU at a time");
    if (run_size_count[h] < (int)COUNT_OF(run_sizes[h]))
        run_sizes[h][run_size_count[h]++] = batch;
    runs[h]++;
    images_run[h] += batch;
    running[h]++;
    if (batch > greatest_run[h])
        greatest_run[h] = batch;
    while (runs_shut[h])
        pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
    if (session->plan.run_us)
        usleep((useconds_t)session->plan.run_us);
}

static void end_run(const struct session *session)
{
    pthread_mutex_lock(&lock);
    if (session->info.device.kind == DEVICE_CUDA)
        running_on[session->info.device.index]--;
    running[session->height]--;
    pthread_mutex_unlock(&lock);
}

/* The value of the image, which fills its whole slot. */
static int read_image(const struct session *session, const float *image)
{
    size_t count = (size_t)session->height * FAKE_WIDTH;
    for (size_t i = 1; i < count; i++)
        if (image[i] != image[0])
            fail("an image in a batch is torn");
    return (int)image[0];
}

enum status session_run(struct session *session, int batch, const void *const *inputs,
                        const struct tensor **outputs, struct error *err)
{
    if (atomic_fetch_add(&session->inside, 1) != 0)
        fail("two threads run one session");
    begin_run(session, batch);
    const float *images = inputs[0];
    size_t each = (size_t)session->height * FAKE_WIDTH;
    enum status status = STATUS_OK;
    int padded = session_batch_for(session, batch);
    int fits = read_counter(&memory_fits);
    if (fits && padded > fits)
        status = error_set(err, STATUS_DEVICE_MEMORY, "%d images do not fit", padded);
    for (int i = 0; i < padded; i++) {
        /* The padding holds anything, and what is poisonous there is so for the whole pass. */
        const float *image = images + (size_t)i * each;
        int value = i < batch ? read_image(session, image) : (int)image[0];
        if (value == CLASS_POISON)
            status = error_set(err, STATUS_DEVICE, "poison in image %d of %d", i, batch);
        if (value == CLASS_VAST)
            status = error_set(err, STATUS_DEVICE_MEMORY, "image %d of %d is vast", i, batch);
        float *scores = session->scores + (size_t)i * FAKE_CLASSES;
        for (int c = 0; c < FAKE_CLASSES; c++)
            scores[c] = value == CLASS_NAN ? NAN : (float)(c == value);
    }
    if (status == STATUS_OK) {
        tensor_unref(session->result);
        session->result = NULL;
        struct shape shape = SHAPE(batch, FAKE_CLASSES);
        if (tensor_wrap(DTYPE_F32, &shape, session->scores, NULL, NULL, &session->result, err) !=
            STATUS_OK)
            fail("no tensor");
        outputs[0] = session->result;
    }
    pthread_mutex_lock(&lock);
    bool is_gpu = session->info.device.kind == DEVICE_CUDA;
    if (broken[is_gpu][session->info.device.index])
        status = error_set(err, STATUS_DEVICE, "the fake device is broken");
    runs_on[is_gpu][session->info.device.index] += status == STATUS_OK;
    pthread_mutex_unlock(&lock);
    end_run(session);
    atomic_fetch_sub(&session->inside, 1);
    return status;
}

bool session_may_submit(const struct session *session)
{
    return session->flight_count < session->info.depth;
}

enum status session_submit(struct session *session, const struct session_request *run,
                           struct error *err)
{
    (void)err;
    if (session->flight_count == session->info.depth)
        fail("more passes under way than a session takes");
    session->flights[session->flight_count++] = *run;
    pthread_mutex_lock(&lock);
    if (session->flight_count > greatest_under_way)
        greatest_under_way = session->flight_count;
    pthread_mutex_unlock(&lock);
    return STATUS_OK;
}

enum status session_collect(struct session *session, const struct tensor **outputs,
                            struct error *err)
{
    if (session->flight_count == 0)
        fail("a pass is collected that was not submitted");
    const struct session_request run = session->flights[0];
    session->flights[0] = session->flights[1];
    session->flight_count--;
    return session_run(session, run.batch, run.inputs, outputs, err);
}

void session_drop_outputs(struct session *session)
{
    (void)session;
}

void fake_depth(int depth)
{
    pthread_mutex_lock(&lock);
    session_depth = depth;
    pthread_mutex_unlock(&lock);
}

int fake_greatest_under_way(void)
{
    return read_counter(&greatest_under_way);
}

enum status session_buffer_create(struct device_id device, size_t bytes, void **ret,
                                  struct error *err)
{
    (void)device;
    *ret = aligned_alloc(TENSOR_ALIGN, size_align(bytes + 1, TENSOR_ALIGN));
    if (!*ret)
        return error_set(err, STATUS_NO_MEMORY, "no memory");
    memset(*ret, 0, bytes);
    return STATUS_OK;
}

void session_buffer_free(struct device_id device, void *data)
{
    (void)device;
    free(data);
}

enum status transform_bytes(struct transform *transform, const struct image *image,
                            const struct preprocess *p, uint8_t *dst, struct error *err)
{
    (void)transform;
    (void)image;
    (void)p;
    (void)dst;
    return error_set(err, STATUS_INTERNAL, "no session here takes bytes");
}

void transform_table(const struct preprocess *p, float table[static 3][256])
{
    (void)p;
    memset(table, 0, sizeof(float[3][256]));
}
