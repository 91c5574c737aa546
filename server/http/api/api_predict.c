/* POST /predict: images in, labels, boxes or vectors out; and the paths of other servers' APIs with
 * the same purpose (proto/dialects.h), which differ in the names of parameters and the form of
 * answers.
 *
 * The body is a plain photo, multipart/form-data with photos in it, or JSON with base64. Its bytes
 * decide: an image is an image under any Content-Type. The model host reads the images in place in
 * the body (or, for base64, in the JSON text into which they were decoded), so the body stays until
 * it is done. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "engine/base/clock.h"
#include "engine/base/size.h"
#include "engine/base/utf8.h"
#include "proto/answers.h"
#include "proto/dialects.h"
#include "proto/picture_text.h"
#include "server/answers/annotate.h"
#include "server/answers/describe.h"
#include "server/answers/tracks.h"
#include "server/http/api/faces.h"
#include "server/http/api/labels.h"
#include "server/http/api/prompts.h"
#include "server/http/api/request_limits.h"
#include "server/http/api/route_table.h"
#include "server/http/api/slices.h"
#include "server/http/api/submission.h"
#include "server/http/api/texts.h"
#include "server/http/transport/exchange.h"
#include "server/http/transport/multipart.h"
#include "server/http/transport/negotiate.h"
#include "server/http/transport/query.h"
#include "server/http/transport/respond.h"
#include "server/schedule/runtime/stages.h"

/* Number of parts that may be parameters in addition to the images. */
#define PARAMETER_PARTS 8

struct predict_work {
    struct predict_request request; /* first: submission.h */
    bool as_list;
    struct multipart multipart; /* zeroed without one */
    struct predict_json *json;  /* NULL without one */
    struct sliced_photo slices;
    struct staged_request *staged; /* NULL: the model is not a pipeline */
    struct request_texts texts;    /* instead of images */
    struct request_labels labels;  /* of the images */
    struct request_prompt prompt;  /* for the only image */
    int form;                      /* enum describe_form from `format`; -1: use Accept */
    bool is_base64;                /* vectors as base64 */
    struct face_question faces;
    struct immich_entries immich; /* zeroed, unless Immich's server sends the request */
    size_t task;                  /* of `immich`, which is under way */
    char *before;                 /* the answer to the tasks before; NULL: none */
    uint8_t *photo;               /* their decoded photo; owned */
    struct image pixels;          /* of that photo */
    char model[128];              /* as requested; "" for the default */
    struct task_options options;
    char classes[32 * TASK_MAX_CLASSES], track[32 * TASK_MAX_CLASSES]; /* which options borrow */
};

static void predict_free_work(struct exchange *x)
{
    struct predict_work *work = x->work;
    struct multipart multipart = work->multipart;
    struct predict_json *json = work->json;
    struct sliced_photo slices = work->slices;
    struct staged_request *staged = work->staged;
    struct request_texts texts = work->texts;
    free(work->before);
    uint8_t *photo = work->photo;
    request_labels_done(&work->labels);
    request_prompt_done(&work->prompt);
    submission_free(x); /* first, because its images lie in the others */
    free(photo);
    texts_done(&texts);
    multipart_done(&multipart);
    predict_json_free(json);
    slices_free(&slices);
    stages_free(staged);
}

/* ---- admission ---- */

/* The forms of an answer, in the order of enum describe_form; errors are JSON in all of them. */
static const char *const forms[] = {TYPE_JSON, "text/plain", TYPE_BYTES, "image/jpeg", "image/png"};

/* "640x480": width and height; "~640x480": or the nearest size that is compiled. */
static bool read_size(const char *text, struct predict_request *request)
{
    request->size_choice = *text == '~' ? SIZE_NEAREST : SIZE_EXACT;
    return model_read_size(text + (*text == '~'), &request->width, &request->height);
}

/* Multipart and JSON bodies, and those of other servers' APIs, may contain the model and size, and
 * have not been read yet. */
static enum status check_room(struct exchange *x, struct error *err)
{
    struct predict_request request = {.model = query_value(&x->query, "model")};
    const char *size = query_value(&x->query, "size");
    bool names_it_inside = exchange_dialect(x) || multipart_is(x->content_type) ||
                           (x->content_type && strstr(x->content_type, "json"));
    if (!request.model && names_it_inside && model_host_has_choice(x->server->options.model_host))
        return STATUS_OK;
    /* A size that cannot be read is refused when the request is. */
    request.any_size = size ? !read_size(size, &request) : names_it_inside;
    return request_limits_ask_room(x, &request, err);
}

static enum status check_state(struct exchange *x, struct error *err)
{
    enum status status;
    switch (model_host_state(x->server->options.model_host)) {
    case MODEL_HOST_READY:
    case MODEL_HOST_STUCK:
    case MODEL_HOST_UNLOADED: /* it says which model was */
        return check_room(x, err);
    case MODEL_HOST_LOADING: /* its model may be ready */
        status = check_room(x, err);
        if (status != STATUS_NOT_FOUND)
            return status;
        x->answer.retry_after_s = model_host_retry_after(x->server->options.model_host);
        return error_set(err, STATUS_NOT_READY,
                         "models are still loading; GET /health shows how far they are");
    case MODEL_HOST_DRAINING:
        return error_set(err, STATUS_DRAINING, "the server is shutting down; ask another one");
    case MODEL_HOST_FAILED:
        return error_set(err, STATUS_NOT_READY,
                         "the model could not be loaded; GET /health says why");
    }
    return error_set(err, STATUS_INTERNAL, "the model host is in an unknown state");
}

enum status predict_admit(struct exchange *x, struct error *err)
{
    x->answer_form = negotiate_type(exchange_header(x, "Accept"), forms, COUNT_OF(forms));
    if (x->answer_form < 0) {
        respond_refusal(x, 406, "not_acceptable",
                        "%s answers as %s, %s, %s, %s or %s; name one of them in Accept, or none",
                        x->path, forms[0], forms[1], forms[2], forms[3], forms[4]);
        return STATUS_OK;
    }
    if (!x->has_length && !x->chunked) {
        respond_refusal(x, 411, "length_required",
                        "the request has no body and no Content-Length; send an image: curl "
                        "--data-binary @photo.jpg %s/predict",
                        x->server->url);
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

/* ---- parameters ---- */

static enum status set_top_k(struct predict_work *work, const char *text, struct error *err)
{
    work->request.asks_top_k = true;
    return task_option_whole("top_k", text, PREDICT_MAX_TOP_K, &work->request.top_k, err);
}

static enum status set_format(struct predict_work *work, const char *text, struct error *err)
{
    static const struct {
        const char *name;
        enum describe_form form;
    } formats[] = {{"json", DESCRIBE_JSON},
                   {"image", DESCRIBE_JPEG},
                   {"jpeg", DESCRIBE_JPEG},
                   {"png", DESCRIBE_PNG}};
    for (size_t i = 0; i < COUNT_OF(formats); i++) {
        if (strcmp(text, formats[i].name) != 0)
            continue;
        work->form = (int)formats[i].form;
        return STATUS_OK;
    }
    return error_set(err, STATUS_INVALID,
                     "format is '%.40s'; it must be json, image (a JPEG), jpeg or png", text);
}

static enum status set_model(struct predict_work *work, const char *text, struct error *err)
{
    const size_t size = strlen(text);
    if (size == 0 || size >= sizeof work->model || !utf8_valid(text, size))
        return error_set(err, STATUS_INVALID, "model must be a name of 1 to %zu bytes",
                         sizeof work->model - 1);
    memcpy(work->model, text, size + 1);
    return STATUS_OK;
}

static enum status set_size(struct predict_work *work, const char *text, struct error *err)
{
    if (!read_size(text, &work->request))
        return error_set(err, STATUS_INVALID,
                         "size is '%.40s'; it must be width and height of 1 to %d pixels, such as "
                         "640x480, or ~640x480 for the nearest size that is compiled",
                         text, MODEL_SIDE_MAX);
    return STATUS_OK;
}

static enum status set_task_option(struct predict_work *work, const char *name, const char *text,
                                   struct error *err)
{
    if (!work->request.options)
        work->options = TASK_OPTIONS_NONE;
    work->request.options = &work->options;
    const bool is_track = !strcmp(name, "track");
    if (is_track || !strcmp(name, "classes")) /* set_parameter() has checked its length */
        text = memcpy(is_track ? work->track : work->classes, text, strlen(text) + 1);
    return task_option_set(&work->options, name, text, err);
}

static enum status set_truncate(struct predict_work *work, const char *text, struct error *err)
{
    work->texts.truncate = !strcmp(text, "true") || !strcmp(text, "1");
    if (!work->texts.truncate && strcmp(text, "false") != 0 && strcmp(text, "0") != 0)
        return error_set(err, STATUS_INVALID, "truncate is '%.40s'; it must be true or false",
                         text);
    return STATUS_OK;
}

static enum status set_prompt(struct predict_work *work, const char *text, struct error *err)
{
    return request_labels_set_prompt(&work->labels, text, err);
}

static const struct {
    const char *name;
    enum status (*set)(struct predict_work *work, const char *text, struct error *err);
} parameters[] = {{"top_k", set_top_k}, {"model", set_model},       {"format", set_format},
                  {"size", set_size},   {"truncate", set_truncate}, {"prompt", set_prompt},
                  {"keep_alive", NULL}}; /* request_limits_read() reads it */

static bool predict_has_parameter(const char *name)
{
    for (size_t i = 0; i < COUNT_OF(parameters); i++)
        if (!strcmp(name, parameters[i].name))
            return true;
    return slices_is_parameter(name) || request_prompt_is(name) || task_option_is(name) ||
           !strcmp(name, "labels");
}

static enum status set_parameter(struct predict_work *work, const char *name, const char *text,
                                 size_t size, struct error *err)
{
    char value[sizeof work->classes];
    if (!predict_has_parameter(name))
        return error_set(
            err, STATUS_INVALID,
            "unknown parameter '%.60s'; /predict takes model, format and size; for classifiers "
            "also top_k; for detectors confidence, iou, max_detections, classes, agnostic, "
            "track, slices, overlap and merge; for segmenters classes and masks; for embedding "
            "models normalize and dimensions; for models of photos and texts labels, prompt and "
            "truncate; for SAM points and box",
            name);
    if (!strcmp(name, "labels"))
        return request_labels_read(&work->labels, text, size, err);
    if (size >= sizeof value || memchr(text, '\0', size))
        return error_set(err, STATUS_INVALID, "%s has more than %zu characters", name,
                         sizeof value - 1);
    memcpy(value, text, size);
    value[size] = '\0';
    for (size_t i = 0; i < COUNT_OF(parameters); i++)
        if (!strcmp(name, parameters[i].name))
            return parameters[i].set ? parameters[i].set(work, value, err) : STATUS_OK;
    return slices_is_parameter(name) ? slices_set(&work->slices, name, value, err)
           : request_prompt_is(name) ? request_prompt_set(&work->prompt, name, value, err)
                                     : set_task_option(work, name, value, err);
}

/* Sets the form of vectors in OpenAI's API. */
static enum status set_encoding(struct predict_work *work, const char *text, struct error *err)
{
    work->is_base64 = !strcmp(text, "base64");
    if (!work->is_base64 && strcmp(text, "float") != 0)
        return error_set(err, STATUS_INVALID,
                         "encoding_format is '%.40s'; it must be float or base64", text);
    return STATUS_OK;
}

/* Sets a parameter by its name in the path's API. Other parameters of that API are ignored. */
static enum status set_named(struct predict_work *work, const struct dialect *dialect,
                             const char *name, const char *text, size_t size, struct error *err)
{
    char given[sizeof work->classes], room[32];
    const char *value;
    if (!dialect || !dialect->parameters)
        return set_parameter(work, name, text, size, err);
    const char *own = dialect_parameter(dialect, name, "", room, &value);
    if (!own)
        return STATUS_OK;
    if (!strcmp(own, "labels")) /* of any length */
        return set_parameter(work, own, text, size, err);
    if (size >= sizeof given || memchr(text, '\0', size))
        return error_set(err, STATUS_INVALID, "%s has more than %zu characters, or a zero byte",
                         name, sizeof given - 1);
    memcpy(given, text, size);
    given[size] = '\0';
    own = dialect_parameter(dialect, name, given, room, &value);
    enum status status;
    if (face_question_set(&work->faces, own, value, &status, err) ||
        request_prompt_add(&work->prompt, own, value, &status, err))
        return status;
    return !strcmp(own, "encoding") ? set_encoding(work, value, err)
                                    : set_parameter(work, own, value, strlen(value), err);
}

static enum status read_query(const struct exchange *x, struct predict_work *work,
                              struct error *err)
{
    const struct dialect *dialect = exchange_dialect(x);
    const struct dialect_default *own = dialect ? dialect->defaults : NULL;
    for (; own && own->name; own++)
        TRY(set_parameter(work, own->name, own->value, strlen(own->value), err));
    for (size_t i = 0; i < x->query.count; i++) {
        const struct query_parameter *p = &x->query.parameters[i];
        TRY(set_named(work, dialect, p->name, p->value, strlen(p->value), err));
    }
    return STATUS_OK;
}

/* ---- the three forms of a body ---- */

static enum status read_raw(const struct exchange *x, struct predict_work *work, struct error *err)
{
    if (x->body.size == 0)
        return error_set(
            err, STATUS_INVALID,
            "the body is empty; send an image: curl --data-binary @photo.jpg %s/predict",
            x->server->url);
    TRY(submission_images(&work->request, 1, err));
    work->request.images[0].data = x->body.data;
    work->request.images[0].size = x->body.size;
    return STATUS_OK;
}

/* A field without a file name is a parameter, unless its bytes are an image. */
static bool predict_is_parameter(const struct multipart_part *part)
{
    return !part->has_filename && image_sniff(part->data, part->size) == IMAGE_UNKNOWN;
}

/* Reads a text field: a known parameter, or an error that suggests a forgotten @. */
static enum status predict_read_field(struct predict_work *work, const struct dialect *dialect,
                                      const struct multipart_part *part, struct error *err)
{
    const char *text = (const char *)part->data;
    if (dialect && dialect->parameters)
        return set_named(work, dialect, part->name, text, part->size, err);
    if (predict_has_parameter(part->name))
        return set_parameter(work, part->name, text, part->size, err);
    bool short_text = part->size > 0 && part->size <= 80 && utf8_valid(text, part->size);
    return error_set(err, STATUS_INVALID,
                     "field '%.60s' is text, not a file; write -F %.60s=@%.*s (text fields are "
                     "only top_k, model and the other parameters)",
                     part->name, part->name, short_text ? (int)part->size : 9,
                     short_text ? text : "photo.jpg");
}

static const struct multipart_part *part_named(const struct multipart *form, const char *name)
{
    for (size_t i = 0; i < form->count; i++)
        if (!strcmp(form->parts[i].name, name))
            return &form->parts[i];
    return NULL;
}

static enum status take_text(struct predict_work *work, const uint8_t *text, size_t size,
                             struct error *err)
{
    if (work->texts.count)
        return error_set(err, STATUS_INVALID, "the request has several texts; send one");
    TRY(texts_begin(&work->texts, 1, err));
    work->texts.items[0] = (struct text_item){.text = (const char *)text, .size = size};
    return submission_images(&work->request, 1, err);
}

/* Takes a part as the only text, with single blanks between its words, as Immich's service does,
 * and perhaps with its language before it. */
static enum status take_words(struct exchange *x, struct predict_work *work,
                              const struct multipart_part *part, struct error *err)
{
    /* In place: the part lies in the body. */
    uint8_t *text = x->body.data + (part->data - x->body.data);
    size_t used = 0;
    bool is_between = false;
    for (size_t i = 0; i < part->size; i++) {
        if (text[i] && strchr(" \t\n\v\f\r", text[i])) {
            is_between = used > 0;
            continue;
        }
        if (is_between)
            text[used++] = ' ';
        is_between = false;
        text[used++] = text[i];
    }
    work->texts.truncate = true;
    const char *language = work->immich.list[0].language;
    if (!used || !language)
        return take_text(work, text, used, err);
    text -= IMMICH_LANGUAGE; /* over the part's head, which has the name `text` */
    memcpy(text, language, IMMICH_LANGUAGE);
    return take_text(work, text, used + IMMICH_LANGUAGE, err);
}

/* True if these bytes, which are not an image, are a text for the path's model or its text half. If
 * the client has not declared a text (`is_declared`), they must also be UTF-8, and the path must
 * name the text model itself, because they might be a damaged image. */
static bool is_text(const struct exchange *x, const uint8_t *data, size_t size, bool is_declared)
{
    const struct dialect *dialect = exchange_dialect(x);
    char model[128];
    struct error ignored;
    return dialect && dialect->text && size > 0 && image_sniff(data, size) == IMAGE_UNKNOWN &&
           model_host_find_text(x->server->options.model_host, x->match.model, model, &ignored) ==
               STATUS_OK &&
           (is_declared ||
            (!strcmp(model, x->match.model) && utf8_valid((const char *)data, size)));
}

/* Sets model and options of the task of Immich's that is under way. */
static enum status set_task(struct exchange *x, struct predict_work *work, struct error *err)
{
    const struct immich_entry *asked = &work->immich.list[work->task];
    char score[32];
    snprintf(score, sizeof score, "%.6f", (double)asked->least_box);
    x->dialect = asked->dialect;
    work->request.waits_for_sizes = true; /* after a 503 Immich considers a server dead */
    TRY(set_model(work, asked->model, err));
    return asked->least_box >= 0 ? set_task_option(work, "confidence", score, err) : STATUS_OK;
}

/* Reads a form of Immich's server; `entries` is its part of that name. */
static enum status read_immich(struct exchange *x, struct predict_work *work,
                               const struct multipart_part *entries, struct error *err)
{
    struct immich_entries *asked = &work->immich;
    const struct multipart_part *picture = part_named(&work->multipart, "image");
    const struct multipart_part *text = part_named(&work->multipart, "text");
    x->dialect = &dialect_immich;
    x->answer_form = DESCRIBE_JSON;
    TRY(immich_entries_parse((const char *)entries->data, entries->size, asked, err));
    x->dialect = asked->list[0].dialect;
    if (!picture && !text)
        return error_set(err, STATUS_INVALID, "Either image or text must be provided");
    if (asked->refusal || asked->is_text == (picture != NULL))
        return error_set(err, STATUS_INVALID, "%s",
                         asked->refusal   ? asked->refusal
                         : asked->is_text ? "clip's textual takes a `text` and no `image`"
                                          : "this task takes an `image`");
    TRY(set_task(x, work, err));
    if (!picture)
        return take_words(x, work, text, err);
    TRY(submission_images(&work->request, 1, err));
    work->request.images[0].data = picture->data;
    work->request.images[0].size = picture->size;
    return STATUS_OK;
}

/* Replaces the base64 of a picture in a form's field by the picture. */
static enum status read_field_picture(struct exchange *x, struct multipart_part *part,
                                      struct error *err)
{
    uint8_t *data;
    TRY(picture_text_decode((char *)x->body.data + (part->data - x->body.data), part->size, &data,
                            &part->size, err));
    part->data = data;
    part->has_filename = true;
    return STATUS_OK;
}

static enum status read_multipart(struct exchange *x, struct predict_work *work, struct error *err)
{
    const struct dialect *dialect = exchange_dialect(x);
    size_t max_images = x->server->options.max_images, count = 0;
    TRY(multipart_parse(x->content_type, x->body.data, x->body.size, max_images + PARAMETER_PARTS,
                        &work->multipart, err));
    const struct multipart_part *entries = part_named(&work->multipart, "entries");
    if (entries && !exchange_dialect(x))
        return read_immich(x, work, entries, err);
    for (size_t i = 0; i < work->multipart.count; i++) {
        struct multipart_part *part = &work->multipart.parts[i];
        if (dialect && dialect->images && !strcmp(part->name, dialect->images) &&
            predict_is_parameter(part))
            TRY(read_field_picture(x, part, err));
        if (dialect && dialect->text && !strcmp(part->name, dialect->text) &&
            is_text(x, part->data, part->size, true)) {
            TRY(take_text(work, part->data, part->size, err));
            continue;
        }
        if (predict_is_parameter(part) && !part->name[0])
            return error_set(err, STATUS_INVALID,
                             "a part of the form has no name and is no image; send images as "
                             "files: curl -F image=@photo.jpg %s/predict",
                             x->server->url);
        if (predict_is_parameter(part) && !dialect &&
            part_named(&work->multipart, part->name) != part)
            return error_set(err, STATUS_INVALID, "field '%.60s' is given twice", part->name);
        if (predict_is_parameter(part))
            TRY(predict_read_field(work, dialect, part, err));
        else
            count++;
    }
    if (work->texts.count && count == 0)
        return STATUS_OK;
    if (work->texts.count)
        return error_set(err, STATUS_INVALID, "the form has a text and images; send one of them");
    if (count == 0)
        return error_set(
            err, STATUS_INVALID,
            "the form has no image in it; send one: curl -F image=@photo.jpg %s/predict",
            x->server->url);
    if (count > max_images)
        return error_set(err, STATUS_TOO_LARGE,
                         "%zu images in one request; the limit is %zu (--max-images)", count,
                         max_images);
    TRY(submission_images(&work->request, count, err));
    work->as_list = count > 1;
    struct predict_image *image = work->request.images;
    for (size_t i = 0; i < work->multipart.count; i++) {
        const struct multipart_part *part = &work->multipart.parts[i];
        if (predict_is_parameter(part))
            continue;
        image->data = part->data;
        image->size = part->size;
        image->name = part->filename[0] ? part->filename : part->name;
        image++;
    }
    return STATUS_OK;
}

/* Takes the request's "images" as texts, for the half of the model that takes them. */
static enum status predict_read_texts(struct predict_work *work, struct error *err)
{
    const struct predict_json *json = work->json;
    TRY(texts_begin(&work->texts, json->image_count, err));
    for (size_t i = 0; i < json->image_count; i++) {
        const struct predict_json_image *from = &json->images[i];
        work->texts.items[i] =
            (struct text_item){(const char *)from->data, from->size, from->ids, from->id_count};
    }
    return STATUS_OK;
}

static enum status predict_read_json(struct exchange *x, struct predict_work *work,
                                     struct error *err)
{
    const struct http_options *options = &x->server->options;
    struct predict_json_limits limits = {
        .json = {options->max_json_depth, 16 * options->max_images},
        .max_images = options->max_images,
        .max_top_k = PREDICT_MAX_TOP_K};
    if (limits.json.max_values < 1000)
        limits.json.max_values = 1000;
    const struct dialect *dialect = exchange_dialect(x);
    if (dialect && dialect->takes_texts) /* as tokens */
        limits.json.max_values += TEXT_LENGTH_MAX * options->max_images;
    const char *text = (const char *)x->body.data;
    TRY(predict_json_parse(dialect, text, x->body.size, &limits, &work->json, err));
    /* The tree holds copies, so the text can be freed before the model host is done. */
    upload_drop_bytes(&x->body);
    const struct predict_json *json = work->json;
    if (json->top_k) {
        work->request.top_k = json->top_k;
        work->request.asks_top_k = true;
    }
    if (json->model)
        TRY(set_model(work, json->model, err));
    for (size_t i = 0; i < json->parameter_count; i++)
        TRY(set_named(work, dialect, json->parameters[i].name, json->parameters[i].text,
                      strlen(json->parameters[i].text), err));
    TRY(submission_images(&work->request, json->image_count, err));
    work->as_list = json->as_list;
    for (size_t i = 0; i < json->image_count; i++) {
        struct predict_image *image = &work->request.images[i];
        image->data = json->images[i].data;
        image->size = json->images[i].size;
        image->name = json->images[i].name;
        image->preset = json->images[i].error;
    }
    return json->are_texts ? predict_read_texts(work, err) : STATUS_OK;
}

static bool begins_json(const struct exchange *x)
{
    size_t i = 0;
    while (i < x->body.size && strchr(" \t\r\n", x->body.data[i]) && x->body.data[i])
        i++;
    return i < x->body.size && (x->body.data[i] == '{' || x->body.data[i] == '[');
}

/* True if a body that is not an image may be base64. */
static bool looks_like_text(const struct exchange *x)
{
    for (size_t i = 0; i < x->body.size && i < 64; i++)
        if (x->body.data[i] < '\t' || x->body.data[i] > '~')
            return false;
    return x->body.size > 0;
}

static enum status read_base64(struct exchange *x, struct predict_work *work, struct error *err)
{
    uint8_t *data;
    size_t size;
    TRY(picture_text_decode((char *)x->body.data, x->body.size, &data, &size, err));
    TRY(submission_images(&work->request, 1, err));
    work->request.images[0].data = data;
    work->request.images[0].size = size;
    return STATUS_OK;
}

static bool is_urlencoded(const struct exchange *x)
{
    static const char form[] = "application/x-www-form-urlencoded";
    return x->content_type && !strncasecmp(x->content_type, form, sizeof form - 1);
}

static enum status predict_read_body(struct exchange *x, struct predict_work *work,
                                     struct error *err)
{
    if (x->body.size && image_sniff(x->body.data, x->body.size) != IMAGE_UNKNOWN)
        return read_raw(x, work, err);
    if (multipart_is(x->content_type))
        return read_multipart(x, work, err);
    const struct dialect *dialect = exchange_dialect(x);
    const bool says_text = x->content_type && !strncasecmp(x->content_type, "text/plain", 10);
    size_t size = 0;
    const uint8_t *field = dialect && dialect->text && is_urlencoded(x)
                               ? query_form_field(x->body.data, x->body.size, dialect->text, &size)
                               : NULL;
    if (field && is_text(x, field, size, true))
        return take_text(work, field, size, err);
    if (!field && is_text(x, x->body.data, x->body.size, says_text && !begins_json(x)))
        return take_text(work, x->body.data, x->body.size, err);
    if (begins_json(x))
        return predict_read_json(x, work, err);
    /* Before checking the type: inference-sdk declares its base64 as JSON. */
    if (dialect && dialect->is_base64 && looks_like_text(x))
        return read_base64(x, work, err);
    return x->content_type && strstr(x->content_type, "json") && x->body.size > 0
               ? predict_read_json(x, work, err)
               : read_raw(x, work, err);
}

/* ---- to the model host and back ---- */

/* True if line ends were removed: a PNG without its first one, or a long JPEG without any. */
static bool lost_line_ends(const uint8_t *data, size_t size)
{
    if (size > 5 && !memcmp(data, "\x89PNG", 4))
        return data[4] != '\r';
    return size > 1024 && data[0] == 0xFF && data[1] == 0xD8 && !memchr(data, '\n', size) &&
           !memchr(data, '\r', size);
}

/* curl --data @file drops line ends, and the image with them; --data-binary sends the same type. */
static void hint_at_form(const struct exchange *x, struct predict_image *image)
{
    if ((image->status != STATUS_BAD_IMAGE && image->status != STATUS_UNSUPPORTED_MEDIA) ||
        !is_urlencoded(x) || !image->data || !lost_line_ends(image->data, image->size))
        return;
    struct error plain = image->error;
    error_set(&image->error, plain.status,
              "%.380s; with curl, --data changes the file: use --data-binary @file", plain.message);
}

/* Answers with the annotated photo. It may not be larger than a request: a small file can have many
 * pixels. */
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

/* Returns the failed image that fails the request: the only one, or the first if the API has no
 * place for errors beside answers. For Immich also a crop for which time or memory ran out, because
 * an answer without its box would be taken for whole; a box whose points lie at one place is left
 * out. NULL: none. */
static const struct predict_image *failed_image(const struct predict_work *work,
                                                const struct dialect *dialect)
{
    const struct predict_request *request = &work->request;
    const struct predict_image *first = &request->images[0];
    const size_t count = !work->as_list || dialect->fails_whole ? request->image_count : 0;
    for (size_t i = 0; i < count; i++)
        if (request->images[i].status != STATUS_OK)
            return &request->images[i];
    const size_t crops = work->immich.count && first->crops ? first->answer.detections.count : 0;
    for (size_t i = 0; i < crops; i++)
        if (first->crops[i] && status_http(first->crops[i]->status) >= 500)
            return first->crops[i];
    return NULL;
}

static enum status take_memory(void *context, size_t bytes, struct error *err)
{
    return charge_answer(context, bytes, err);
}

/* Answers in the form of another server's API. */
static void dialect_finish(struct exchange *x, const struct dialect *dialect)
{
    struct predict_work *work = x->work;
    const struct predict_request *request = &work->request;
    const struct predict_image *failed = failed_image(work, dialect);
    struct error err = {STATUS_OK};
    size_t size = 0;
    exchange_note(x, request);
    if (failed) {
        respond_error(x, &failed->error);
    } else if (request->wants_picture) {
        finish_picture(x, &request->images[0]);
    } else if (!(dialect->kinds & 1u << describe_kind(request)) ||
               (work->immich.count && dialect->takes_pipelines && !work->staged)) {
        error_set(&err, STATUS_INVALID,
                  "model '%s' is for %s, but %s needs %s; POST /predict serves any model",
                  request->used_model->name, task_name(request->used_model->task.kind),
                  dialect->name, dialect->takes);
        respond_error(x, &err);
    } else if (!dialect->write) {
        faces_answer(x, &work->faces);
    } else {
        const struct describe_how how = {.dialect = dialect,
                                         .as_list = work->as_list,
                                         .is_base64 = work->is_base64,
                                         .model = work->texts.count && work->model[0] ? work->model
                                                                                      : NULL,
                                         .tokens = work->texts.rows.tokens,
                                         .least_text = work->immich.list[work->task].least_text,
                                         .json = work->json ? work->json->tree : NULL,
                                         .take = take_memory,
                                         .context = x,
                                         .err = &err,
                                         .total_ms = clock_ms(clock_now() - request->started),
                                         .id = x->request_id};
        char *text = describe_predictions_as(request, &how, &size);
        if (work->before)
            text = immich_join(work->before, text, &size);
        work->before = NULL;
        if (!text && err.status != STATUS_OK)
            respond_error(x, &err);
        else
            respond_text(x, 200, TYPE_JSON, text, size);
    }
}

/* Answers in one of /predict's own forms. */
static void predict_answer(struct exchange *x)
{
    const struct predict_work *work = x->work;
    const struct predict_request *request = &work->request;
    size_t size = 0;
    /* A single image's failure fails the request; with several, each reports its own. */
    const struct predict_image *image = &request->images[0];
    int http = work->as_list || image->status == STATUS_OK ? 200 : status_http(image->status);
    if (http == 200 && request->wants_picture) {
        finish_picture(x, image);
        return;
    }
    static const char *const types[] = {TYPE_JSON, TYPE_TEXT, TYPE_BYTES, TYPE_JSON, TYPE_JSON};
    enum describe_form form = http == 200 ? (enum describe_form)x->answer_form : DESCRIBE_JSON;
    const struct describe_how how = {.form = form,
                                     .as_list = work->as_list,
                                     .model = work->staged ? work->staged->name
                                              : request_prompt_is_set(&work->prompt)
                                                  ? work->prompt.model
                                                  : NULL,
                                     .total_ms = clock_ms(clock_now() - request->started)};
    char *text = describe_predictions_as(request, &how, &size);
    if (http == 503)
        x->answer.retry_after_s = 1;
    exchange_note(x, request);
    if (how.model)
        snprintf(x->model, sizeof x->model, "%s", how.model);
    respond_text(x, http, types[form], text, size);
    if (text && http >= 400)
        x->answer.code = status_word(image->status);
}

static void predict_finish(struct exchange *x)
{
    struct predict_work *work = x->work;
    const struct dialect *dialect = exchange_dialect(x);
    hint_at_form(x, &work->request.images[0]);
    tracks_follow(x->server->options.tracks, &work->request, x->key_name, clock_now());
    if (dialect)
        dialect_finish(x, dialect);
    else
        predict_answer(x);
    /* A stage's model can be reloaded without the pipeline. */
    if (!work->staged && !work->options.track && !work->labels.count &&
        !request_prompt_is_set(&work->prompt) && work->immich.count < 2 &&
        (!dialect || !dialect->has_id))
        store_in_cache(x);
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
        TRY(stages_begin(x->server->options.model_host, request, &work->staged,
                         &x->answer.retry_after_s, err));
    TRY(slices_begin(request, max_images, &work->slices, err));
    if (work->staged) {
        work->staged->max_images = max_images;
        work->staged->take = take_memory;
        work->staged->context = x;
    }
    return request->parts ? submission_in_parts(x, request, err) : STATUS_OK;
}

/* Makes a request for the model host from the body. */
static enum status predict_prepare(struct exchange *x, struct error *err)
{
    struct predict_work *work =
        submission_create(x, sizeof *work, predict_finish, predict_free_work);
    TRY(check_memory(work, "for a request", err));
    work->form = -1;
    TRY(request_limits_read(x, &work->request, err));
    TRY(read_query(x, work, err));
    TRY(predict_read_body(x, work, err));
    const struct dialect *dialect = exchange_dialect(x);
    if (dialect && !dialect->takes_prompts && request_prompt_is_set(&work->prompt))
        return error_set(err, STATUS_INVALID,
                         "answers of %s have no masks of points and boxes; POST them to /predict",
                         dialect->name);
    if (dialect && request_prompt_is_set(&work->prompt)) {
        TRY(set_task_option(work, "confidence", "0", err));
        TRY(set_task_option(work, "max_detections", "1", err));
    }
    char *slash = dialect ? strchr(work->model, '/') : NULL; /* Roboflow: "model/version" */
    if (slash) {
        *slash = '\0';
        work->request.version = slash + 1;
    }
    if (dialect && dialect->is_single && work->request.image_count > 1)
        return error_set(
            err, STATUS_INVALID,
            "%s takes one picture in a request, and this one has %zu; send them one by one",
            dialect->name, work->request.image_count);
    work->request.model = work->model[0] ? work->model : NULL;
    if (x->match.model[0]) { /* the path takes precedence */
        work->request.model = x->match.model;
        work->request.version = x->match.version[0] ? x->match.version : NULL;
    }
    if (request_prompt_is_set(&work->prompt) &&
        (work->texts.count || work->labels.count || work->slices.side))
        return error_set(err, STATUS_INVALID,
                         "points and box go with a photo, without %s; leave it out",
                         work->texts.count    ? "texts"
                         : work->labels.count ? "labels"
                                              : "slices");
    if (work->texts.count) {
        TRY(model_host_find_text(x->server->options.model_host, work->request.model,
                                 work->texts.model, err));
        work->request.model = work->texts.model[0] ? work->texts.model : NULL;
    }
    if (work->labels.count && (dialect || !work->request.asks_top_k)) /* all of them */
        work->request.top_k = (int)work->labels.count;
    x->image_count = work->request.image_count;
    if (work->form >= 0)
        x->answer_form = work->form;
    /* Clients of other APIs send the same options to all models. */
    work->request.ignores_unused_options = exchange_dialect(x) != NULL;
    work->request.wants_picture =
        !work->texts.count && (x->answer_form == DESCRIBE_JPEG || x->answer_form == DESCRIBE_PNG);
    if (work->request.wants_picture && work->as_list)
        return error_set(err, STATUS_INVALID,
                         "a picture is the answer to one photo, and the request has %zu; send them "
                         "one by one, or ask for JSON",
                         work->request.image_count);
    return STATUS_OK;
}

static void predict_next_task(struct exchange *x);

/* Submits the photos once the labels, if any, have vectors. */
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

/* Keeps the answer to a task of Immich's, and begins the next one with the decoded photo. */
static void predict_next_task(struct exchange *x)
{
    struct predict_work *work = x->work;
    struct predict_request *request = &work->request;
    struct predict_image *image = request->images;
    struct error err;
    dialect_finish(x, exchange_dialect(x));
    if (x->answer.status != 200) {
        exchange_answer(x);
        return;
    }
    work->before = x->answer.text;
    x->answer.text = NULL;
    x->answer.status = 0;
    exchange_wait(x, NULL, x->finish); /* ends the watch over the last part, which goes now */
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
    const enum status status = set_task(x, work, &err);
    if (status == STATUS_OK)
        submission_when_loaded(x, work->model, NULL, predict_submit_photos);
    else
        submit_or_refuse(x, status, &err);
}

/* Runs on an offload thread, because encoding texts or photos is slow. */
static void predict_submit_texts(struct exchange *x)
{
    struct predict_work *work = x->work;
    struct error err;
    if (request_prompt_is_set(&work->prompt)) {
        request_prompt_begin(x, &work->prompt, submit_work);
        return;
    }
    if (work->texts.count) {
        const enum status status = texts_submit(x, &work->texts, &work->request, &err);
        if (status != STATUS_OK)
            submit_or_refuse(x, status, &err);
        return;
    }
    work->labels.texts.truncate = work->texts.truncate;
    request_labels_begin(x, &work->labels, &work->request, predict_submit_photos);
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
    const enum status status = predict_prepare(x, &err);
    const struct predict_work *work = x->work;
    if (status == STATUS_OK)
        submission_when_loaded(x, work->request.model, work->request.version, predict_submit);
    else
        submit_or_refuse(x, status, &err);
}

void predict_handle(struct exchange *x)
{
    submission_handle(x, predict_start);
}
