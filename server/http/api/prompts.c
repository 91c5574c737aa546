/* Runs a model's encoder and mask decoder for a prompt.
 *
 *     photo ─▶ cached? ─ no ─▶ encoder ─▶ its outputs ─┐
 *                 └───────────────── yes ──────────────┴─▶ decoder, with points ─▶ masks */
#include "server/http/api/prompts.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/size.h"
#include "server/http/api/predict_body.h"
#include "server/http/api/submission.h"
#include "server/schedule/runtime/image_answer.h"
#include "server/schedule/runtime/text_cache.h"

/* Maximum number of points in a request. The other two of PROMPT_POINTS_MAX are a box's corners. */
#define POINTS_MOST (PROMPT_POINTS_MAX - 2)

/* Limit for an output of the encoder, so that a float can store its number of elements exactly. */
#define OUTPUT_BYTES_MOST ((size_t)64 << 20)

/* ---- parameters ---- */

bool request_prompt_is(const char *name)
{
    static const char *const names[] = {"points", "box", "inside", "outside", "corners"};
    for (size_t i = 0; i < COUNT_OF(names); i++)
        if (!strcmp(name, names[i]))
            return true;
    return false;
}

/* Reads at most `most` numbers, separated by commas or semicolons; returns 0 for any other text. */
static size_t read_numbers(const char *text, float *ret, size_t most)
{
    for (size_t count = 0; count < most; text++) {
        char *end = NULL;
        const float number = strspn(text, "0123456789.-") ? strtof(text, &end) : NAN;
        if (!end || end == text || !isfinite(number))
            return 0;
        ret[count++] = number;
        text = end;
        if (!*text)
            return count;
        if (*text != ',' && *text != ';')
            return 0;
    }
    return 0;
}

enum status request_prompt_set(struct request_prompt *prompt, const char *name, const char *text,
                               struct error *err)
{
    const bool is_box = !strcmp(name, "box") || !strcmp(name, "corners");
    const bool is_inside = !strcmp(name, "inside"), is_list = is_inside || !strcmp(name, "outside");
    float n[3 * POINTS_MOST] = {0};
    if (!*text && (is_list || !strcmp(name, "corners")))
        return STATUS_OK;
    const size_t count = read_numbers(text, n, COUNT_OF(n)), each = is_list ? 2 : 3;
    if (is_box) {
        prompt->has_box = count == 4 && n[0] < n[2] && n[1] < n[3];
        prompt->box[0] = (struct prompt_point){n[0], n[1], 2};
        prompt->box[1] = (struct prompt_point){n[2], n[3], 3};
        return prompt->has_box ? STATUS_OK
                               : error_set(err, STATUS_INVALID,
                                           "box is '%.60s'; it must be left, top, right and bottom "
                                           "in pixels of the photo: box=10,10,200,150",
                                           text);
    }
    prompt->count = is_list ? prompt->count : 0;
    bool is_good = count && count % each == 0 && prompt->count + count / each <= POINTS_MOST;
    for (size_t i = 0; is_good && i < count; i += each) {
        const float label = is_list ? is_inside : n[i + 2];
        prompt->points[prompt->count++] = (struct prompt_point){n[i], n[i + 1], label};
        is_good = label == 0 || label == 1;
    }
    if (is_good)
        return STATUS_OK;
    return is_list
               ? error_set(err, STATUS_INVALID,
                           "%s must be a list of [x, y] in pixels of the photo; both lists "
                           "together have at most %d points",
                           is_inside ? "pos_points" : "neg_points", POINTS_MOST)
               : error_set(err, STATUS_INVALID,
                           "points is '%.60s'; it must be x, y and 1 (inside) or 0 (outside) for "
                           "each of at most %d points: points=120,80,1;30,40,0",
                           text, POINTS_MOST);
}

/* ---- the decoder ---- */

/* Writes the points in pixels of the encoder's input, and their labels. */
static enum status write_points(struct request_prompt *prompt, const struct deployment *decoder,
                                const struct predict_image *photo, struct error *err)
{
    const struct mask_prompt *form = &decoder->model->prompt;
    const struct task_geometry *g = &prompt->place;
    const struct prompt_point none = {0, 0, -1};
    struct prompt_point *points = prompt->points;
    size_t count = prompt->count;
    for (size_t i = 0; prompt->has_box && i < 2; i++)
        points[count++] = prompt->box[i];
    if (!prompt->has_box && form->adds_point)
        points[count++] = none;
    for (size_t i = 0; i < PROMPT_POINTS_MAX; i++) {
        const float x = points[i].x, y = points[i].y;
        const float label = i < count ? points[i].label : PROMPT_NO_POINT;
        if (!(x >= 0 && y >= 0 && x <= (float)photo->width && y <= (float)photo->height))
            return error_set(err, STATUS_INVALID,
                             "%g,%g is outside the photo of %u x %u pixels; points and box are in "
                             "pixels of the upright photo",
                             (double)x, (double)y, photo->width, photo->height);
        prompt->coordinates[2 * i] = label < 0 ? 0 : x * g->gain_x + g->left;
        prompt->coordinates[2 * i + 1] = label < 0 ? 0 : y * g->gain_y + g->top;
        prompt->labels[i] = label;
    }
    return STATUS_OK;
}

/* Returns the data of the encoder's output with the name and shape of the decoder's input, or NULL.
 * If a shape is not known before a run, compares the number of elements. */
static const float *output_for(const struct request_prompt *prompt,
                               const struct deployment *encoder, const struct served_tensor *input)
{
    const float *counts = prompt->embeddings + 2, *at = counts + encoder->output_count;
    for (size_t i = 0; i < encoder->output_count; at += (size_t)counts[i++]) {
        const struct served_tensor *output = &encoder->outputs[i];
        if (!strcmp(output->name, input->name) && input->dtype == DTYPE_F32 &&
            (size_t)counts[i] == input->count &&
            (output->shape.rank == SHAPE_UNKNOWN || shape_equal(&output->shape, &input->shape)))
            return at;
    }
    return NULL;
}

static enum status fill_inputs(struct request_prompt *prompt, const struct deployment *encoder,
                               const struct deployment *decoder, struct error *err)
{
    const struct mask_prompt *form = &decoder->model->prompt;
    if (!form->is_set || decoder->input_count > COUNT_OF(prompt->rows))
        return error_set(err, STATUS_MODEL, "model '%s' is not a decoder of masks that lensd knows",
                         prompt->decoder);
    if (prompt->has_box && !form->takes_boxes)
        return error_set(err, STATUS_INVALID,
                         "the decoder of model '%s' takes points, but no box; send points",
                         prompt->model);
    for (size_t i = 0; i < decoder->input_count; i++) {
        prompt->rows[i] = i == form->points   ? prompt->coordinates
                          : i == form->labels ? prompt->labels
                                              : output_for(prompt, encoder, &decoder->inputs[i]);
        if (!prompt->rows[i])
            return error_set(err, STATUS_MODEL,
                             "input '%.60s' of the decoder of model '%s' is not an output of its "
                             "encoder, by name and shape; export both halves from one model",
                             decoder->inputs[i].name, prompt->model);
    }
    return STATUS_OK;
}

static enum status submit_prompt(struct exchange *x, const struct deployment *encoder,
                                 struct error *err)
{
    struct predict_work *work = x->work;
    struct request_prompt *prompt = &work->prompt;
    struct predict_image *photo = &work->request.images[0];
    struct model_host *host = x->server->options.model_host; /* x may be freed below */
    struct deployment *decoder;
    photo->width = (uint32_t)prompt->embeddings[0];
    photo->height = (uint32_t)prompt->embeddings[1];
    TRY(image_place(&encoder->model->preprocess, photo, &prompt->place, err));
    TRY(model_host_acquire(host, prompt->decoder, NULL, &decoder, err));
    enum status status = fill_inputs(prompt, encoder, decoder, err);
    IF_OK(status, write_points(prompt, decoder, photo, err));
    if (status == STATUS_OK) {
        work->request.tensors = prompt->rows;
        work->request.target = decoder;
        submit_work(x);
    }
    model_host_release(host, decoder);
    return status;
}

/* ---- the encoder ---- */

/* Copies the encoder's outputs to prompt->embeddings. */
static enum status take_outputs(struct exchange *x, struct request_prompt *prompt,
                                struct error *err)
{
    const struct predict_image *image = &prompt->image;
    const size_t outputs = prompt->encoding.deployment->output_count;
    size_t count = 2 + outputs, bytes;
    for (size_t i = 0; i < outputs; i++)
        if (image->outputs[i]->dtype != DTYPE_F32 || image->outputs[i]->bytes > OUTPUT_BYTES_MOST ||
            !size_add(count, image->outputs[i]->bytes / sizeof(float), &count))
            return error_set(err, STATUS_MODEL,
                             "output %zu of the encoder of model '%s' is not float32, or has more "
                             "than %zu bytes",
                             i, prompt->model, OUTPUT_BYTES_MOST);
    if (!size_mul(count, sizeof(float), &bytes))
        return error_no_memory(err, "for a photo's embeddings");
    TRY(upload_charge(&x->body, bytes, err));
    float *at = prompt->embeddings = malloc(bytes);
    TRY(check_memory(at, "for a photo's embeddings", err));
    prompt->count_all = count;
    *at++ = (float)image->width;
    *at++ = (float)image->height;
    for (size_t i = 0; i < outputs; i++) {
        const size_t numbers = image->outputs[i]->bytes / sizeof(float);
        *at++ = (float)numbers;
    }
    for (size_t i = 0; i < outputs; at += image->outputs[i++]->bytes / sizeof(float))
        memcpy(at, image->outputs[i]->data, image->outputs[i]->bytes);
    return STATUS_OK;
}

/* Caches the encoder's outputs and runs the decoder. Runs on an offload thread. */
static void take_photo(struct exchange *x)
{
    struct predict_work *work = x->work;
    struct request_prompt *prompt = &work->prompt;
    const struct predict_image *image = &prompt->image;
    const struct deployment *encoder = prompt->encoding.deployment;
    struct error err = image->error;
    if (image->status == STATUS_OK && take_outputs(x, prompt, &err) == STATUS_OK) {
        if (prompt->hash[0])
            text_cache_keep(encoder->text_cache, prompt->hash, prompt->embeddings,
                            prompt->count_all);
        if (submit_prompt(x, encoder, &err) == STATUS_OK)
            return;
    }
    submit_or_refuse(x, err.status, &err);
}

static void photo_encoded(struct predict_request *request)
{
    exchange_offload(request->context, SIZE_MAX, take_photo);
}

static enum status find_or_encode(struct exchange *x, struct deployment **encoder,
                                  struct error *err)
{
    struct predict_work *work = x->work;
    struct request_prompt *prompt = &work->prompt;
    struct predict_request *request = &prompt->encoding;
    const struct predict_image *photo = &work->request.images[0];
    if (photo->preset.status != STATUS_OK) {
        *err = photo->preset;
        return err->status;
    }
    if (!response_photo_hash(x, photo->data, photo->size, prompt->hash))
        prompt->hash[0] = '\0';
    prompt->embeddings = text_cache_copy((*encoder)->text_cache, prompt->hash, &prompt->count_all);
    if (prompt->embeddings) {
        TRY(upload_charge(&x->body, prompt->count_all * sizeof(float), err));
        return submit_prompt(x, *encoder, err);
    }
    prompt->image = (struct predict_image){.data = photo->data, .size = photo->size};
    request->images = &prompt->image;
    request->image_count = 1;
    request->target = *encoder;
    request->raw_outputs = true;
    request->on_done = photo_encoded;
    submission_submit(x, request);
    return STATUS_OK;
}

/* Called on an offload thread when the encoder and the decoder are loaded. */
static void encode_photo(struct exchange *x)
{
    const struct predict_work *work = x->work;
    submission_with(x, work->prompt.model, work->request.version, find_or_encode);
}

/* Sets work->prompt.model and work->prompt.decoder, and refuses a model that has no mask decoder.
 */
static enum status find_halves(struct exchange *x, struct predict_work *work, struct error *err)
{
    struct request_prompt *prompt = &work->prompt;
    const struct predict_request *request = &work->request;
    struct model_host *host = x->server->options.model_host;
    struct deployment *encoder;
    if (request->image_count != 1)
        return error_set(err, STATUS_INVALID,
                         "points and box are for one photo, and the request has %zu; send them one "
                         "by one",
                         request->image_count);
    TRY(refuse_pipeline(x, request->model, request->version, err));
    TRY(model_host_acquire(host, request->model, request->version, &encoder, err));
    const struct task *task = &encoder->model->task;
    const bool is_encoder = task->kind == TASK_MASKS && encoder->takes_images;
    snprintf(prompt->model, sizeof prompt->model, "%s", encoder->model->name);
    snprintf(prompt->decoder, sizeof prompt->decoder, "%s" MODEL_DECODER_ENDING, prompt->model);
    const char *does = task_name(task->kind);
    model_host_release(host, encoder);
    return is_encoder ? STATUS_OK
                      : error_set(err, STATUS_INVALID,
                                  "points and box need a model with an encoder and a mask decoder, "
                                  "such as SAM; name its folder, because model '%s' is for %s",
                                  prompt->model, does);
}

void request_prompt_begin(struct exchange *x)
{
    struct predict_work *work = x->work;
    struct request_prompt *prompt = &work->prompt;
    struct predict_request *request = &work->request;
    struct error err;
    request->place = &prompt->place;
    prompt->encoding = (struct predict_request){.model = prompt->decoder,
                                                .top_k = 1,
                                                .started = request->started,
                                                .deadline = request->deadline,
                                                .priority = request->priority,
                                                .client = request->client,
                                                .context = x};
    if (find_halves(x, work, &err) != STATUS_OK)
        submit_or_refuse(x, err.status, &err);
    else
        submission_await(x, &prompt->encoding, encode_photo);
}

void request_prompt_done(struct request_prompt *prompt)
{
    predict_request_free_results(&prompt->encoding);
    free(prompt->embeddings);
}
