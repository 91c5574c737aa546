/* Reads the parameters of a POST /predict, and the images or texts in its body. */
#include "server/http/api/predict_body.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "engine/base/size.h"
#include "engine/base/text.h"
#include "engine/base/utf8.h"
#include "proto/base64.h"
#include "server/answers/describe.h"
#include "server/http/api/submission.h"
#include "server/http/transport/exchange.h"
#include "server/http/transport/query.h"

/* Number of parts that may be parameters in addition to the images. */
#define PARAMETER_PARTS 8

bool predict_read_size(const char *text, struct predict_request *request)
{
    request->size_choice = *text == '~' ? SIZE_NEAREST : SIZE_EXACT;
    return model_read_size(text + (*text == '~'), &request->width, &request->height);
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
    if (!predict_read_size(text, &work->request))
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
    if (is_track || !strcmp(name, "classes")) /* set_parameter() has checked the length */
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

/* Sets whether the answer has vectors as base64 or as numbers (OpenAI's encoding_format). */
static enum status set_encoding(struct predict_work *work, const char *text, struct error *err)
{
    work->is_base64 = !strcmp(text, "base64");
    if (!work->is_base64 && strcmp(text, "float") != 0)
        return error_set(err, STATUS_INVALID,
                         "encoding_format is '%.40s'; it must be float or base64", text);
    return STATUS_OK;
}

/* Sets the least similarity of a face, as min_confidence of DeepStack. */
static enum status set_similarity(struct predict_work *work, const char *text, struct error *err)
{
    struct task_options share = TASK_OPTIONS_NONE;
    TRY(task_option_set(&share, "confidence", text, err));
    work->faces.least = share.confidence;
    return STATUS_OK;
}

static const struct {
    const char *name;
    enum status (*set)(struct predict_work *work, const char *text, struct error *err);
} parameters[] = {{"top_k", set_top_k},       {"model", set_model},
                  {"format", set_format},     {"size", set_size},
                  {"truncate", set_truncate}, {"prompt", set_prompt},
                  {"encoding", set_encoding}, {"min_similarity", set_similarity},
                  {"keep_alive", NULL}}; /* request_limits_read() reads it */

/* The parameters of /predict itself; dialects have more. */
static const char *const parameter_names[] = {
    "model",      "format",  "size",      "keep_alive",    "top_k",  "confidence",
    "iou",        "classes", "masks",     "agnostic",      "track",  "slices",
    "overlap",    "merge",   "normalize", "labels",        "prompt", "truncate",
    "dimensions", "points",  "box",       "max_detections"};

static bool predict_has_parameter(const char *name)
{
    for (size_t i = 0; i < COUNT_OF(parameter_names); i++)
        if (!strcmp(name, parameter_names[i]))
            return true;
    return false;
}

static enum status refuse_parameter(const char *name, struct error *err)
{
    const char *near = text_nearest(name, parameter_names, COUNT_OF(parameter_names));
    return error_set(err, STATUS_INVALID,
                     "unknown parameter '%.60s'; %s%s%sthe API's page, /docs, lists them all", name,
                     near ? "did you mean '" : "", near ? near : "", near ? "'? " : "");
}

static enum status set_value(struct predict_work *work, const char *name, const char *value,
                             struct error *err)
{
    for (size_t i = 0; i < COUNT_OF(parameters); i++)
        if (!strcmp(name, parameters[i].name))
            return parameters[i].set ? parameters[i].set(work, value, err) : STATUS_OK;
    return slices_is_parameter(name) ? slices_set(&work->slices, name, value, err)
           : request_prompt_is(name) ? request_prompt_set(&work->prompt, name, value, err)
           : !strcmp(name, "userid") ? face_set_userid(&work->faces, value, strlen(value), err)
                                     : set_task_option(work, name, value, err);
}

/* Sets the parameter that the dialect (NULL: /predict itself) calls `name`. Every dialect refuses
 * "track"; a dialect with a table of parameters ignores names that are not in the table. */
static enum status set_parameter(struct predict_work *work, const struct dialect *dialect,
                                 const char *name, const char *text, size_t size, struct error *err)
{
    const bool has_table = dialect && dialect->parameters;
    const struct dialect_parameter *row = has_table ? dialect_parameter(dialect, name) : NULL;
    const char *own = row ? row->own : name;
    char value[sizeof work->classes], *end;
    if (dialect && !strcmp(name, "track"))
        return error_no_tracks(dialect->name, err);
    if (has_table && !row)
        return STATUS_OK;
    if (!row && !predict_has_parameter(name))
        return refuse_parameter(name, err);
    if (!strcmp(own, "labels"))
        return request_labels_read(&work->labels, text, size, err);
    if (size >= sizeof value || memchr(text, '\0', size))
        return error_set(err, STATUS_INVALID, "%s has more than %zu characters, or a zero byte",
                         name, sizeof value - 1);
    memcpy(value, text, size);
    value[size] = '\0';
    const double number = row && row->is_percent ? strtod(value, &end) : 0;
    if (number > 1 && !*end)
        snprintf(value, sizeof value, "%.6f", number / 100);
    return set_value(work, own, value, err);
}

/* ---- the three forms of a body ---- */

static enum status read_raw(const struct exchange *x, struct predict_work *work, struct error *err)
{
    if (x->body.size == 0)
        return error_set(
            err, STATUS_INVALID,
            "the body is empty; send an image: curl --data-binary @photo.jpg %s/predict",
            x->server->listener.url);
    TRY(submission_images(&work->request, 1, err));
    work->request.images[0] = (struct predict_image){.data = x->body.data, .size = x->body.size};
    return STATUS_OK;
}

/* A field without a file name is a parameter, unless its bytes are an image. */
static bool predict_is_parameter(const struct multipart_part *part)
{
    return !part->has_filename && image_sniff(part->data, part->size) == IMAGE_UNKNOWN;
}

/* Reads a text field as a parameter. The error for an unknown parameter suggests curl's @FILE. */
static enum status predict_read_field(struct predict_work *work, const struct dialect *dialect,
                                      const struct multipart_part *part, struct error *err)
{
    const char *text = (const char *)part->data;
    if ((dialect && dialect->parameters) || predict_has_parameter(part->name))
        return set_parameter(work, dialect, part->name, text, part->size, err);
    size_t digits = 0;
    while (digits < part->size && (isdigit((unsigned char)text[digits]) || text[digits] == '.'))
        digits++;
    if (digits == part->size) /* a number is not a file name */
        return refuse_parameter(part->name, err);
    bool short_text = part->size <= 80 && utf8_valid(text, part->size);
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

/* Takes a part as the request's only text. Like Immich's service, writes single blanks between the
 * words and, if given, the language before them. */
static enum status take_words(struct exchange *x, struct predict_work *work,
                              const struct multipart_part *part, struct error *err)
{
    /* Writes in place: the part lies in the body. */
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
    text -= IMMICH_LANGUAGE; /* overwrites the end of the part's headers */
    memcpy(text, language, IMMICH_LANGUAGE);
    return take_text(work, text, used + IMMICH_LANGUAGE, err);
}

/* True if `data` is a text for the model in the path, or for that model's text encoder.
 * `is_declared`: the request says that the data is text. Undeclared data might be a damaged image,
 * so it must also be UTF-8, and the path must name the text model itself. */
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

enum status predict_set_task(struct exchange *x, struct predict_work *work, struct error *err)
{
    const struct immich_entry *asked = &work->immich.list[work->task];
    char score[32];
    snprintf(score, sizeof score, "%.6f", (double)asked->least_box);
    x->dialect = asked->dialect;
    work->request.waits_for_sizes = true; /* after a 503, Immich would consider the server dead */
    TRY(set_model(work, asked->model, err));
    return asked->least_box >= 0 ? set_task_option(work, "confidence", score, err) : STATUS_OK;
}

/* Reads a form of Immich's server; `entries` is the form's part named "entries". */
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
    TRY(predict_set_task(x, work, err));
    if (!picture)
        return take_words(x, work, text, err);
    TRY(submission_images(&work->request, 1, err));
    work->request.images[0] = (struct predict_image){.data = picture->data, .size = picture->size};
    return STATUS_OK;
}

/* Decodes the base64 of an image in a form's field, in place. */
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
                             "a part of the form has no name and is not an image; send images as "
                             "files: curl -F image=@photo.jpg %s/predict",
                             x->server->listener.url);
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
            x->server->listener.url);
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

/* Takes the texts that predict_json_parse() has put into json->images. */
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
    struct json_limits limits = {options->max_json_depth, 16 * options->max_images};
    if (limits.max_values < 1000)
        limits.max_values = 1000;
    const struct dialect *dialect = exchange_dialect(x);
    if (dialect && dialect->takes_texts) /* texts may come as lists of tokens */
        limits.max_values += TEXT_LENGTH_MAX * options->max_images;
    const char *text = (const char *)x->body.data;
    TRY(predict_json_parse(dialect, text, x->body.size, &limits, options->max_images, &work->json,
                           err));
    /* The tree holds copies, so the body can be freed before the model host is done. */
    upload_drop_bytes(&x->body);
    const struct predict_json *json = work->json;
    if (json->model)
        TRY(set_model(work, json->model, err));
    for (size_t i = 0; i < json->parameter_count; i++)
        TRY(set_parameter(work, dialect, json->parameters[i].name, json->parameters[i].text,
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
    const size_t i = text_skip_blanks((const char *)x->body.data, 0, x->body.size);
    return i < x->body.size && (x->body.data[i] == '{' || x->body.data[i] == '[');
}

/* True if the body may be base64: it begins with printable ASCII or white space. */
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
    work->request.images[0] = (struct predict_image){.data = data, .size = size};
    return STATUS_OK;
}

static bool is_urlencoded(const struct exchange *x)
{
    static const char form[] = "application/x-www-form-urlencoded";
    return x->content_type && !strncasecmp(x->content_type, form, sizeof form - 1);
}

static enum status read_body(struct exchange *x, struct predict_work *work, struct error *err)
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
    /* Ignore the Content-Type of base64, because inference-sdk declares its base64 as JSON. */
    if (dialect && dialect->is_base64 && looks_like_text(x))
        return read_base64(x, work, err);
    return x->content_type && strstr(x->content_type, "json") && x->body.size > 0
               ? predict_read_json(x, work, err)
               : read_raw(x, work, err);
}

enum status predict_read(struct exchange *x, struct predict_work *work, struct error *err)
{
    const struct dialect *dialect = exchange_dialect(x);
    const struct dialect_default *own = dialect ? dialect->defaults : NULL;
    for (; own && own->name; own++)
        TRY(set_parameter(work, NULL, own->name, own->value, strlen(own->value), err));
    for (size_t i = 0; i < x->query.count; i++) {
        const struct query_parameter *p = &x->query.parameters[i];
        TRY(set_parameter(work, dialect, p->name, p->value, strlen(p->value), err));
    }
    TRY(read_body(x, work, err));
    dialect = exchange_dialect(x); /* read_immich() may have set it */
    if (!dialect || !request_prompt_is_set(&work->prompt))
        return STATUS_OK;
    if (!dialect->takes_prompts)
        return error_set(err, STATUS_INVALID,
                         "%s does not answer points and boxes with masks; POST them to /predict",
                         dialect->name);
    TRY(set_task_option(work, "confidence", "0", err));
    return set_task_option(work, "max_detections", "1", err);
}

/* True if line ends were removed: a PNG lacks its first one, or a long JPEG has none. */
static bool lost_line_ends(const uint8_t *data, size_t size)
{
    if (size > 5 && !memcmp(data, "\x89PNG", 4))
        return data[4] != '\r';
    return size > 1024 && data[0] == 0xFF && data[1] == 0xD8 && !memchr(data, '\n', size) &&
           !memchr(data, '\r', size);
}

/* curl --data @file removes line ends, and sends the same Content-Type as --data-binary does. */
void predict_hint_at_form(const struct exchange *x, struct predict_image *image)
{
    if ((image->status != STATUS_BAD_IMAGE && image->status != STATUS_UNSUPPORTED_MEDIA) ||
        !is_urlencoded(x) || !image->data || !lost_line_ends(image->data, image->size))
        return;
    struct error plain = image->error;
    error_set(&image->error, plain.status,
              "%.380s; with curl, --data changes the file: use --data-binary @file", plain.message);
}
