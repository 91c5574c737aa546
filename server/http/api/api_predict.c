/* POST /predict: images in, labels, boxes or vectors out. Also handles the paths of other servers'
 * APIs for photos (proto/dialects.h), which have other parameters and other forms of answers. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/size.h"
#include "proto/answers.h"
#include "server/answers/annotate.h"
#include "server/answers/describe.h"
#include "server/answers/tracks.h"
#include "server/http/api/predict_body.h"
#include "server/http/api/route_table.h"
#include "server/http/api/submission.h"
#include "server/http/transport/negotiate.h"
#include "server/http/transport/respond.h"
#include "server/schedule/runtime/stages.h"

static void predict_free_work(struct exchange *x)
{
    struct predict_work *work = x->work;
    request_labels_done(&work->labels);
    request_prompt_done(&work->prompt);
    submission_free(x); /* first: the request's images use memory that is freed below */
    texts_done(&work->texts);
    multipart_done(&work->multipart);
    predict_json_free(work->json);
    slices_free(&work->slices);
    stages_free(work->staged);
    FREE_ALL(work->before, work->photo);
}

/* ---- admission ---- */

/* The forms of an answer, in the order of enum describe_form; errors are JSON in all of them. */
static const char *const forms[] = {TYPE_JSON, "text/plain", TYPE_BYTES, "image/jpeg", "image/png"};

/* Asks whether the model host would admit the request now. A multipart or JSON body, or a body in
 * another server's API, may contain the model and size, but it has not been read yet. */
static enum status check_room(struct exchange *x, struct error *err)
{
    struct predict_request request = {.model = query_value(&x->query, "model")};
    const char *size = query_value(&x->query, "size");
    bool names_it_inside = exchange_dialect(x) || multipart_is(x->content_type) ||
                           (x->content_type && strstr(x->content_type, "json"));
    if (!request.model && names_it_inside && model_host_has_choice(x->server->options.model_host))
        return STATUS_OK;
    /* A malformed size is refused later, when the request is parsed. */
    request.any_size = size ? !predict_read_size(size, &request) : names_it_inside;
    return request_limits_ask_room(x, &request, err);
}

static enum status check_state(struct exchange *x, struct error *err)
{
    struct model_host *host = x->server->options.model_host;
    const enum model_host_state state = model_host_state(host);
    if (state == MODEL_HOST_DRAINING)
        return error_set(err, STATUS_DRAINING, "the server is shutting down; ask another one");
    const enum status status = check_room(x, err);
    if (status != STATUS_NOT_FOUND || state != MODEL_HOST_LOADING)
        return status;
    error_set(err, STATUS_NOT_READY, "models are still loading; GET /health shows their progress");
    err->retry_after_s = model_host_retry_after(host);
    return STATUS_NOT_READY;
}

enum status predict_admit(struct exchange *x, struct error *err)
{
    x->answer_form = negotiate_type(exchange_header(x, "Accept"), forms, COUNT_OF(forms));
    if (x->answer_form < 0) {
        respond_refusal(x, 406, "not_acceptable",
                        "%s answers as %s, %s, %s, %s or %s; name one in Accept, or omit it",
                        x->path, forms[0], forms[1], forms[2], forms[3], forms[4]);
        return STATUS_OK;
    }
    if (!x->chunked && !exchange_header(x, "Content-Length")) {
        respond_refusal(x, 411, "length_required",
                        "the request has no body and no Content-Length; send an image: curl "
                        "--data-binary @photo.jpg %s/predict",
                        x->server->listener.url);
        return STATUS_OK;
    }
    return check_state(x, err);
}

enum status dialect_admit(struct exchange *x, struct error *err)
{
    const struct dialect *dialect = x->route->dialect;
    const char *name = dialect->header ? exchange_header(x, dialect->header) : NULL;
    if (!dialect->write)
        TRY(face_admit(x, err));
    if (dialect->header && (!name || !*name || strlen(name) >= sizeof x->match.model))
        return error_set(err, STATUS_INVALID, "the header %s must name a model", dialect->header);
    if (name)
        snprintf(x->match.model, sizeof x->match.model, "%s", name);
    if (x->route->model)
        snprintf(x->match.model, sizeof x->match.model, "%s", x->route->model);
    return x->match.model[0] ? v2_admit(x, err) : check_state(x, err);
}

/* ---- to the model host and back ---- */

/* Answers with the annotated photo, if it has at most --max-body bytes. */
static void finish_picture(struct exchange *x, const struct predict_image *image)
{
    const bool is_jpeg = x->answer_form == DESCRIBE_JPEG;
    const size_t most = x->server->options.max_body;
    struct error err;
    uint8_t *bytes;
    size_t size;
    exchange_note(x, image->request);
    enum status status =
        annotate_image(image, is_jpeg ? ANNOTATE_JPEG : ANNOTATE_PNG, &bytes, &size, &err);
    if (status == STATUS_OK && size > most) {
        free(bytes);
        status = error_set(&err, STATUS_TOO_LARGE,
                           "the answer is a %s of %zu bytes, more than the limit of %zu "
                           "(--max-body); send a smaller photo, or request %s",
                           is_jpeg ? "JPEG" : "PNG", size, most,
                           is_jpeg ? "JSON" : "a JPEG (format=image)");
    }
    if (status != STATUS_OK)
        respond_error(x, &err);
    else
        respond_text(x, 200, forms[x->answer_form], (char *)bytes, size);
}

/* True if the server lacked time, memory or capacity; false if the image or its answer is bad. */
static bool is_shortage(enum status status)
{
    return status == STATUS_NO_MEMORY || status == STATUS_TOO_LARGE || status_http(status) > 500;
}

/* Returns the crop of a photo, or of one of its crops, for which time or memory ran out; or NULL.
 * The recursion is shallow, because a pipeline has at most three stages. */
static const struct predict_image *find_short_crop(const struct predict_image *image)
{
    const size_t crops = image->crops ? image->answer.detections.count : 0;
    const struct predict_image *found = NULL;
    for (size_t i = 0; i < crops && !found; i++)
        if (image->crops[i])
            found = is_shortage(image->crops[i]->status) ? image->crops[i]
                                                         : find_short_crop(image->crops[i]);
    return found;
}

/* Returns the failed image or crop whose error is the answer to the whole request, or NULL. In an
 * API that has a place for errors beside answers, only a request for one image fails as a whole. In
 * another server's API a crop fails the request if time or memory ran out for it, because an answer
 * without its box would look complete. A crop that fails at every try does not fail the request:
 * its box's points coincide, or its vector is not finite. */
static const struct predict_image *failed_image(const struct predict_work *work,
                                                const struct dialect *dialect)
{
    const struct predict_request *request = &work->request;
    const bool is_whole = !work->as_list || (dialect && dialect->fails_whole);
    for (size_t i = 0; is_whole && i < request->image_count; i++) {
        const struct predict_image *image = &request->images[i];
        const struct predict_image *failed = image->status != STATUS_OK ? image
                                             : dialect                  ? find_short_crop(image)
                                                                        : NULL;
        if (failed)
            return failed;
    }
    return NULL;
}

static enum status take_memory(void *context, size_t bytes, struct error *err)
{
    return charge_answer(context, bytes, err);
}

/* Returns the model's name for the answer; NULL: that of the model which answered. */
static const char *answered_name(const struct predict_work *work, const struct dialect *dialect)
{
    if (dialect)
        return work->texts.count && work->model[0] ? work->model : NULL;
    return work->staged                           ? work->staged->name
           : request_prompt_is_set(&work->prompt) ? work->prompt.model
                                                  : NULL;
}

/* Answers in the form of the dialect or, without one, in one of /predict's own. */
static void predict_answer(struct exchange *x, const struct dialect *dialect)
{
    static const char *const types[] = {TYPE_JSON, TYPE_TEXT, TYPE_BYTES, TYPE_JSON, TYPE_JSON};
    struct predict_work *work = x->work;
    const struct predict_request *request = &work->request;
    const struct predict_image *failed = failed_image(work, dialect);
    const char *name = answered_name(work, dialect);
    const enum describe_form form = dialect ? DESCRIBE_JSON : (enum describe_form)x->answer_form;
    struct error err = {STATUS_OK};
    exchange_note(x, request);
    if (!dialect && name)
        snprintf(x->model, sizeof x->model, "%.63s", name);
    if (failed) {
        respond_error(x, &failed->error);
    } else if (request->wants_picture) {
        finish_picture(x, &request->images[0]);
    } else if (dialect && (!(dialect->kinds & 1u << describe_kind(request)) ||
                           (work->immich.count && dialect->takes_pipelines && !work->staged))) {
        error_set(&err, STATUS_INVALID,
                  "model '%s' is for %s, but %s needs %s; POST /predict serves any model",
                  request->used_model->name, task_name(request->used_model->task.kind),
                  dialect->name, dialect->takes);
        respond_error(x, &err);
    } else if (dialect && !dialect->write) {
        faces_answer(x, &work->faces);
    } else {
        const struct describe_how how = {
            .form = form,
            .answer = {.dialect = dialect,
                       .as_list = work->as_list,
                       .is_base64 = work->is_base64,
                       .model = name,
                       .tokens = work->texts.rows.tokens,
                       .least_text = work->immich.list[work->task].least_text,
                       .request = work->json ? work->json->tree : NULL,
                       .total_ms = clock_ms(clock_now() - request->started),
                       .id = x->request_id},
            .take = take_memory,
            .context = x,
            .err = &err};
        size_t size = 0;
        char *text = describe_predictions(request, &how, &size);
        if (work->before) {
            text = immich_join(work->before, text);
            size = text ? strlen(text) : 0;
        }
        work->before = NULL;
        if (!text && err.status != STATUS_OK)
            respond_error(x, &err);
        else
            respond_text(x, 200, types[form], text, size);
    }
}

static void predict_finish(struct exchange *x)
{
    struct predict_work *work = x->work;
    const struct dialect *dialect = exchange_dialect(x);
    predict_hint_at_form(x, &work->request.images[0]);
    tracks_follow(x->server->options.tracks, &work->request, x->key_name, clock_now());
    predict_answer(x, dialect);
    /* Pipelines are not cached, because a stage's model can be reloaded without the pipeline. */
    if (!work->staged && !work->options.track && !work->labels.count &&
        !request_prompt_is_set(&work->prompt) && work->immich.count < 2 &&
        (!dialect || !dialect->has_id))
        store_in_cache(x);
}

/* Runs on a thread of the model host or the watcher. */
static void predict_part_done(struct predict_request *request)
{
    const struct predict_image *first = &request->images[0];
    exchange_offload(request->context,
                     request->decode_only ? (size_t)first->width * first->height
                                          : request->image_count * SUBMISSION_LARGE_BODY,
                     submit_next_part);
}

/* Prepares a request whose parts offload threads submit, one after the other. Charges the photos'
 * pixels. */
static enum status predict_in_parts(struct exchange *x, struct predict_request *request,
                                    struct error *err)
{
    const struct image_limits none = {0};
    size_t bytes = 0;
    for (size_t i = 0; i < request->image_count; i++) {
        const struct predict_image *photo = &request->images[i];
        struct image_info info;
        struct error unread;
        if (photo->preset.status == STATUS_OK &&
            image_probe(photo->data, photo->size, &none, &info, &unread) == STATUS_OK)
            bytes = size_sum(bytes, size_product((size_t)info.width * info.height, 3));
    }
    request->on_done = predict_part_done;
    return charge_answer(x, bytes, err);
}

/* Plans slices, or the stages of a pipeline.json. */
static enum status plan_slices_or_stages(struct exchange *x, struct predict_work *work,
                                         struct error *err)
{
    const size_t max_images = x->server->options.max_images;
    struct predict_request *request = &work->request;
    const struct dialect *dialect = exchange_dialect(x);
    if ((dialect && !dialect->takes_pipelines) || x->answer_form == DESCRIBE_NUMBERS ||
        work->slices.side || work->options.track)
        TRY(refuse_pipeline(x, request->model, request->version, err));
    else
        TRY(stages_begin(x->server->options.model_host, request, &work->staged, err));
    TRY(slices_begin(request, max_images, &work->slices, err));
    if (work->staged) {
        work->staged->max_images = max_images;
        work->staged->take = take_memory;
        work->staged->context = x;
    }
    return request->parts ? predict_in_parts(x, request, err) : STATUS_OK;
}

/* Makes a request for the model host from the body. */
static enum status predict_prepare(struct exchange *x, struct predict_work *work, struct error *err)
{
    work->form = -1;
    TRY(request_limits_read(x, &work->request, err));
    TRY(predict_read(x, work, err));
    const struct dialect *dialect = exchange_dialect(x);
    char *slash = dialect ? strchr(work->model, '/') : NULL; /* Roboflow: "model/version" */
    if (slash) {
        *slash = '\0';
        work->request.version = slash + 1;
    }
    if (dialect && dialect->is_single && work->request.image_count > 1)
        return error_set(
            err, STATUS_INVALID,
            "%s takes one picture per request, but this one has %zu; send them one by one",
            dialect->name, work->request.image_count);
    work->request.model = work->model[0] ? work->model : NULL;
    if (x->match.model[0]) { /* the path takes precedence */
        work->request.model = x->match.model;
        work->request.version = exchange_version(x);
    }
    if (request_prompt_is_set(&work->prompt) &&
        (work->texts.count || work->labels.count || work->slices.side))
        return error_set(err, STATUS_INVALID,
                         "points and box cannot be combined with %s; leave it out",
                         work->texts.count    ? "texts"
                         : work->labels.count ? "labels"
                                              : "slices");
    if (work->texts.count) {
        TRY(model_host_find_text(x->server->options.model_host, work->request.model,
                                 work->texts.model, err));
        work->request.model = work->texts.model[0] ? work->texts.model : NULL;
    }
    if (work->labels.count && (dialect || !work->request.asks_top_k)) /* answer with all labels */
        work->request.top_k = (int)work->labels.count;
    x->image_count = work->request.image_count;
    if (work->form >= 0)
        x->answer_form = work->form;
    /* Clients of other APIs send the same options to all models: ignore options without effect. */
    work->request.ignores_unused_options = exchange_dialect(x) != NULL;
    work->request.wants_picture =
        !work->texts.count && (x->answer_form == DESCRIBE_JPEG || x->answer_form == DESCRIBE_PNG);
    if (work->request.wants_picture && work->as_list)
        return error_set(err, STATUS_INVALID,
                         "a picture can show the answer for only one photo, but the request has "
                         "%zu; send them one by one, or ask for JSON",
                         work->request.image_count);
    return STATUS_OK;
}

static void predict_next_task(struct exchange *x);

/* Submits the photos when the labels, if any, have vectors or tokens. */
static void predict_submit_photos(struct exchange *x)
{
    const struct predict_work *work = x->work;
    struct error err;
    const enum status status = plan_slices_or_stages(x, x->work, &err);
    x->next = work->task + 1 < work->immich.count ? predict_next_task : NULL;
    if (status == STATUS_OK && work->staged && work->photo)
        submit_next_part(x);
    else
        submit_or_refuse(x, status, &err);
}

/* Stores the answer to one task of Immich's request, and begins the next task with the photo. */
static void predict_next_task(struct exchange *x)
{
    struct predict_work *work = x->work;
    struct predict_request *request = &work->request;
    struct predict_image *image = request->images;
    struct error err;
    predict_answer(x, exchange_dialect(x));
    if (x->answer.status != 200) {
        exchange_answer(x);
        return;
    }
    work->before = x->answer.text;
    x->answer.text = NULL;
    x->answer.status = 0;
    exchange_wait(x, NULL, x->finish); /* stop watching the request that is freed below */
    work->pixels = parts_photo(image);
    if (image->photo)
        work->photo = image->photo;
    image->photo = NULL;
    predict_request_free_results(request);
    stages_free(work->staged);
    work->staged = NULL;
    *image = (struct predict_image){
        .pixels = &work->pixels, .width = work->pixels.width, .height = work->pixels.height};
    request->options = NULL;
    request->parts = NULL;
    request->decode_only = false;
    work->task++;
    const enum status status = predict_set_task(x, work, &err);
    if (status == STATUS_OK)
        submission_when_loaded(x, work->model, NULL, predict_submit_photos);
    else
        submit_or_refuse(x, status, &err);
}

/* Submits the texts as rows of the deployment's inputs; if the longest has few tokens, to the same
 * model compiled for short texts. */
static enum status predict_submit_rows(struct exchange *x, struct deployment **deployment,
                                       struct error *err)
{
    struct model_host *host = x->server->options.model_host;
    struct predict_work *work = x->work;
    struct text_rows *rows = &work->texts.rows;
    TRY(texts_make_rows(x, &work->texts, *deployment, err));
    struct deployment *shorter = model_host_acquire_length(host, *deployment, rows->longest);
    if (shorter) {
        text_rows_shorten(&(*deployment)->model->text, work->texts.count,
                          shorter->model->text.length, rows);
        model_host_release(host, *deployment);
        *deployment = shorter;
    }
    work->request.tensors = (const void *const *)rows->inputs;
    work->request.target = *deployment;
    submit_work(x);
    return STATUS_OK;
}

/* Runs on an offload thread, because encoding texts or photos takes long. */
static void predict_submit_texts(struct exchange *x)
{
    const struct predict_work *work = x->work;
    if (request_prompt_is_set(&work->prompt))
        request_prompt_begin(x);
    else if (work->texts.count)
        submission_with(x, work->request.model, work->request.version, predict_submit_rows);
    else
        request_labels_begin(x, predict_submit_photos);
}

static void predict_submit(struct exchange *x)
{
    const struct predict_work *work = x->work;
    if (!work->texts.count && !work->labels.count && !request_prompt_is_set(&work->prompt)) {
        predict_submit_photos(x);
        return;
    }
    exchange_wait(x, NULL, x->finish);
    exchange_offload(x, SIZE_MAX, predict_submit_texts); /* a long job */
}

static void predict_start(struct exchange *x)
{
    struct error err;
    if (answer_from_cache(x, true))
        return;
    struct predict_work *work =
        submission_create(x, sizeof *work, predict_finish, predict_free_work);
    if (!work)
        return;
    if (predict_prepare(x, work, &err) == STATUS_OK)
        submission_when_loaded(x, work->request.model, work->request.version, predict_submit);
    else
        submit_or_refuse(x, err.status, &err);
}

void predict_handle(struct exchange *x)
{
    submission_handle(x, predict_start);
}
