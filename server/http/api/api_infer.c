/* POST /v2/models/M[/versions/V]/infer and /v1/models/M[/versions/V]:predict: inference of KServe's
 * protocols, V2 (the Open Inference Protocol) and V1 (TensorFlow Serving).
 *
 * A body of V2 has one of three forms: JSON; JSON followed by binary tensors (the header
 * Inference-Header-Content-Length is the size of the JSON); or only the raw bytes of the single
 * input (the header is 0). Binary tensors are used in place in the body, JSON numbers are read into
 * separate memory. An image input also accepts BYTES with a JPEG or PNG in each element, which is
 * decoded and prepared as for /predict. gRPC calls send messages instead. V1's instances become the
 * model's only input; photos are answered with classes if the model has them. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/size.h"
#include "engine/base/text.h"
#include "models/tasks/class_scores.h"
#include "proto/base64.h"
#include "server/answers/describe.h"
#include "server/http/api/route_table.h"
#include "server/http/api/submission.h"
#include "server/http/transport/exchange.h"
#include "server/http/transport/respond.h"

struct asked_output {
    size_t at;      /* its index in the model */
    size_t classes; /* how many of the best classes instead of the tensor; 0: the tensor */
    bool is_binary;
};

struct infer_work {
    struct predict_request request; /* must be first (submission.h) */
    struct v2_request *v2;          /* NULL if the body is raw */
    const void **tensors;           /* owned: one per input of the model; NULL: photos or texts */
    struct request_texts rows_of_texts;
    bool is_v1;
    struct asked_output *asked; /* the outputs to answer with */
    size_t asked_count;
    bool *wanted, *as_binary; /* one per output of the model; `wanted` owns both */
    size_t rows;
};

static void infer_free_work(struct exchange *x)
{
    struct infer_work *work = x->work;
    submission_free(x); /* first: the request's images use memory that is freed below */
    v2_request_free(work->v2);
    texts_done(&work->rows_of_texts);
    FREE_ALL(work->tensors, work->asked, work->wanted);
}

enum status v2_admit(struct exchange *x, struct error *err)
{
    if (atomic_load(&x->server->draining))
        return error_set(err, STATUS_DRAINING, "the server is shutting down; ask another one");
    struct predict_request request = {
        .model = x->match.model, .version = exchange_version(x), .any_size = true};
    /* A gRPC message names the model whose queue needs room, but it has not arrived yet. */
    return x->route->is_message ? STATUS_OK : request_limits_ask_room(x, &request, err);
}

/* ---- inputs ---- */

static enum status infer_make_images(struct infer_work *work, size_t count, struct error *err)
{
    work->rows = count;
    return submission_images(&work->request, count, err);
}

static const char *tensor_names(const struct served_tensor *tensors, size_t count, char *text,
                                size_t size)
{
    text[0] = '\0';
    for (size_t i = 0; i < count; i++)
        text_append(text, size, ", ", "%s", tensors[i].name);
    return text;
}

static enum status find_tensor(const struct deployment *deployment, bool is_output,
                               const char *name, size_t *ret, struct error *err)
{
    const struct served_tensor *tensors = is_output ? deployment->outputs : deployment->inputs;
    const size_t count = is_output ? deployment->output_count : deployment->input_count;
    char names[200];
    for (*ret = 0; *ret < count; ++*ret)
        if (!strcmp(tensors[*ret].name, name))
            return STATUS_OK;
    return error_set(err, STATUS_INVALID, "model '%s' has no %s '%.80s'; it has: %s",
                     deployment->model->name, is_output ? "output" : "input", name,
                     tensor_names(tensors, count, names, sizeof names));
}

/* Writes the shape that requests may have, such as "[-1, 3, 224, 224]"; returns `text`. */
static const char *wanted_shape(const struct deployment *deployment,
                                const struct served_tensor *tensor, char text[static SHAPE_TEXT])
{
    shape_text(&tensor->shape, text);
    if (!deployment->has_rows || tensor->shape.rank < 1)
        return text;
    char rest[SHAPE_TEXT];
    snprintf(rest, sizeof rest, "%s", text + strcspn(text, ",]"));
    snprintf(text, SHAPE_TEXT, "[-1%.*s", SHAPE_TEXT - 4, rest);
    return text;
}

static enum status infer_check_shape(const struct deployment *deployment,
                                     const struct served_tensor *wanted,
                                     const struct v2_input *input, size_t *ret_rows,
                                     struct error *err)
{
    struct shape shape = input->shape;
    char expected[SHAPE_TEXT];
    const int64_t images = shape.rank >= 1 ? shape.dims[0] : 0;
    *ret_rows = 1;
    if (deployment->has_rows && shape.rank >= 1) {
        *ret_rows = (size_t)shape.dims[0];
        shape.dims[0] = 1;
    }
    if (input->dtype == wanted->dtype && shape_equal(&shape, &wanted->shape) && *ret_rows > 0)
        return STATUS_OK;
    shape.dims[0] = 1;
    const bool is_batch = !deployment->has_rows && images > 1 && deployment->takes_images &&
                          shape_equal(&shape, &wanted->shape);
    return error_set(
        err, STATUS_INVALID, "input '%s' of model '%s' is %s %s, the request has %s %s%s",
        wanted->name, deployment->model->name, dtype_oip_name(wanted->dtype),
        wanted_shape(deployment, wanted, expected), input->datatype, SHAPE_STRING(&input->shape),
        is_batch ? "; images of this model run one by one (`lensd inspect` says why): "
                   "send a request for each"
        : !deployment->takes_images ? ""
        : deployment->model->free_height && deployment->model->free_width
            ? "; height and width are free, and BYTES with a JPEG or PNG work, too"
            : "; BYTES with a JPEG or PNG work, too, and a file exported with free "
              "height and width takes other sizes");
}

/* Reads JSON numbers into separate memory, which is charged like the body. */
static enum status infer_read_numbers(struct exchange *x, struct v2_input *input, struct error *err)
{
    size_t size = dtype_size(input->dtype);
    /* Each number needs bytes of JSON, so a client cannot make lensd allocate by a shape alone. */
    if (input->count > input->json_size)
        return error_set(err, STATUS_INVALID,
                         "input '%.80s' has too little data for its shape %s: the %zu elements "
                         "need more than the %zu bytes of its data",
                         input->name, SHAPE_STRING(&input->shape), input->count, input->json_size);
    TRY(upload_charge(&x->body, input->count * size, err)); /* shape_check() excludes an overflow */
    input->numbers = alloc_array(input->count, size);
    TRY(check_memory(input->numbers, "for a request", err));
    return v2_read_numbers(input, input->numbers, err);
}

static enum status take_tensor(struct exchange *x, struct infer_work *work,
                               const struct deployment *deployment, struct v2_input *input,
                               size_t i, struct error *err)
{
    size_t rows;
    TRY(infer_check_shape(deployment, &deployment->inputs[i], input, &rows, err));
    if (work->rows && rows != work->rows)
        return error_set(err, STATUS_INVALID,
                         "the inputs differ in their first dimension: %zu and %zu", work->rows,
                         rows);
    work->rows = rows;
    if (!input->binary)
        TRY(infer_read_numbers(x, input, err));
    work->tensors[i] = input->binary ? input->binary : input->numbers;
    return STATUS_OK;
}

static enum status take_tensors(struct exchange *x, struct infer_work *work,
                                const struct deployment *deployment, struct error *err)
{
    char names[200];
    work->request.tensors = work->tensors =
        alloc_array(deployment->input_count, sizeof *work->tensors);
    TRY(check_memory(work->tensors, "for a request", err));
    for (size_t k = 0; k < work->v2->input_count; k++) {
        struct v2_input *input = &work->v2->inputs[k];
        size_t i;
        TRY(find_tensor(deployment, false, input->name, &i, err));
        if (work->tensors[i])
            return error_set(err, STATUS_INVALID, "input '%.80s' is given twice", input->name);
        TRY(take_tensor(x, work, deployment, input, i, err));
    }
    for (size_t i = 0; i < deployment->input_count; i++)
        if (!work->tensors[i])
            return error_set(
                err, STATUS_INVALID, "input '%s' is missing; model '%s' has: %s",
                deployment->inputs[i].name, deployment->model->name,
                tensor_names(deployment->inputs, deployment->input_count, names, sizeof names));
    if (work->rows > deployment->max_rows)
        return error_set(err, STATUS_TOO_LARGE,
                         "the request has %zu rows, but model '%s' takes at most %zu at a time "
                         "(--max-queue); send them in several requests",
                         work->rows, deployment->model->name, deployment->max_rows);
    return infer_make_images(work, work->rows, err);
}

static bool infer_is_image(const uint8_t *data, size_t size)
{
    return image_sniff(data, size) != IMAGE_UNKNOWN;
}

/* If a string of JSON is not an image but base64 of one, replaces it by the decoded image. */
static void take_base64(struct v2_bytes *bytes)
{
    size_t size;
    uint8_t *picture;
    if (infer_is_image(bytes->data, bytes->size) ||
        picture_text_decode((char *)(uintptr_t)bytes->data, bytes->size, &picture, &size, NULL) !=
            STATUS_OK)
        return;
    bytes->data = picture;
    bytes->size = size;
}

/* Reads the elements of a BYTES input into *ret, which the caller frees after success. `what` names
 * the elements in errors. `is_bare` as for v2_read_bytes(). */
static enum status read_elements(struct exchange *x, const struct infer_work *work,
                                 const struct v2_input *input, const char *what,
                                 bool (*is_bare)(const uint8_t *data, size_t size),
                                 struct v2_bytes **ret, struct error *err)
{
    const size_t most = x->server->options.max_images;
    if (input->count < 1 || input->count > most)
        return error_set(err, input->count ? STATUS_TOO_LARGE : STATUS_INVALID,
                         "%zu %s in one request; send 1 to %zu (--max-images)", input->count, what,
                         most);
    if (input->json)
        TRY(upload_charge(&x->body, input->json_size, err));
    *ret = alloc_array(input->count, sizeof **ret);
    TRY(check_memory(*ret, "for a request", err));
    const enum status status = v2_read_bytes(work->v2, input, is_bare, *ret, err);
    if (status != STATUS_OK)
        free(*ret);
    return status;
}

static enum status take_images(struct exchange *x, struct infer_work *work,
                               const struct deployment *deployment, const struct v2_input *input,
                               struct error *err)
{
    size_t unused;
    struct v2_bytes *bytes;
    TRY(find_tensor(deployment, false, input->name, &unused, err));
    if (!deployment->takes_images ||
        strcmp(input->name, deployment->inputs[deployment->image_input].name) != 0)
        return error_set(err, STATUS_INVALID,
                         "input '%.80s' of model '%s' takes numbers, not photos (BYTES)",
                         input->name, deployment->model->name);
    TRY(read_elements(x, work, input, "images", infer_is_image, &bytes, err));
    const enum status status = infer_make_images(work, input->count, err);
    for (size_t i = 0; status == STATUS_OK && i < input->count; i++) {
        if (input->json)
            take_base64(&bytes[i]);
        work->request.images[i].data = bytes[i].data;
        work->request.images[i].size = bytes[i].size;
    }
    free(bytes);
    return status;
}

/* Makes rows for all inputs from texts: the tokenizer writes token ids, mask and types. */
static enum status take_texts(struct exchange *x, struct infer_work *work,
                              const struct deployment *deployment, const struct v2_input *input,
                              struct error *err)
{
    struct request_texts *texts = &work->rows_of_texts;
    struct v2_bytes *bytes;
    size_t at;
    TRY(find_tensor(deployment, false, input->name, &at, err));
    if (deployment->model->text.kinds[at] != TEXT_IDS)
        return error_set(
            err, STATUS_INVALID,
            "texts (BYTES) belong in the input of token ids, but '%.80s' is another input",
            input->name);
    TRY(read_elements(x, work, input, "texts", NULL, &bytes, err));
    const enum status status = texts_begin(texts, input->count, err);
    for (size_t i = 0; status == STATUS_OK && i < input->count; i++)
        texts->items[i] =
            (struct text_item){.text = (const char *)bytes[i].data, .size = bytes[i].size};
    free(bytes);
    TRY(status);
    TRY(texts_make_rows(x, texts, deployment, err));
    work->request.tensors = (const void *const *)texts->rows.inputs;
    return infer_make_images(work, input->count, err);
}

/* Takes a body without JSON as the single input: one row or one image. The image's length may
 * precede the image, in four bytes, as in a BYTES tensor. */
static enum status infer_take_raw(struct exchange *x, struct infer_work *work,
                                  const struct deployment *deployment, struct error *err)
{
    const struct served_tensor *input = &deployment->inputs[0];
    const uint8_t *data = x->body.data;
    size_t size = x->body.size;
    if (deployment->input_count != 1)
        return error_set(err, STATUS_INVALID,
                         "model '%s' has %zu inputs; a raw body is for models with one",
                         deployment->model->name, deployment->input_count);
    bool has_length = size > 4 && !infer_is_image(data, size) && infer_is_image(data + 4, size - 4);
    if (deployment->takes_images && size > 0 && (has_length || infer_is_image(data, size))) {
        TRY(infer_make_images(work, 1, err));
        work->request.images[0].data = data + (has_length ? 4 : 0);
        work->request.images[0].size = size - (has_length ? 4 : 0);
        return STATUS_OK;
    }
    if (size != input->bytes || size == 0)
        return error_set(err, STATUS_INVALID,
                         "the raw body has %zu bytes; input '%s' of model '%s' takes %zu%s", size,
                         input->name, deployment->model->name, input->bytes,
                         deployment->takes_images ? ", or a JPEG or PNG" : "");
    work->request.tensors = work->tensors = alloc_array(1, sizeof *work->tensors);
    TRY(check_memory(work->tensors, "for a request", err));
    work->tensors[0] = data;
    return infer_make_images(work, 1, err);
}

static enum status infer_take_inputs(struct exchange *x, struct infer_work *work,
                                     const struct deployment *deployment, struct error *err)
{
    const struct v2_request *v2 = work->v2;
    for (size_t k = 0; k < v2->input_count; k++) {
        if (v2->inputs[k].dtype != DTYPE_NONE)
            continue;
        if (v2->input_count != 1)
            return error_set(err, STATUS_INVALID,
                             "BYTES with images or texts must be the only input of the request");
        if (deployment_takes_texts(deployment->model))
            return take_texts(x, work, deployment, &v2->inputs[k], err);
        return take_images(x, work, deployment, &v2->inputs[k], err);
    }
    return take_tensors(x, work, deployment, err);
}

/* ---- outputs ---- */

/* Refuses more than PREDICT_MAX_TOP_K classes per row if a row has more values than that. */
static enum status check_classes(const char *name, size_t wanted, size_t classes, struct error *err)
{
    if (wanted <= PREDICT_MAX_TOP_K || classes <= PREDICT_MAX_TOP_K)
        return STATUS_OK;
    return error_set(err, STATUS_INVALID,
                     "\"classification\" is %zu for output '%s', whose rows have %zu values; ask "
                     "for 1 to %d of them, or for the tensor itself",
                     wanted, name, classes, PREDICT_MAX_TOP_K);
}

/* Lists the outputs to answer with: those of the request in its order, or else all of the model. */
static enum status check_outputs(struct infer_work *work, const struct deployment *deployment,
                                 struct error *err)
{
    const struct v2_request *v2 = work->v2;
    const struct v2_output all = v2 ? v2->default_output : (struct v2_output){.binary = true};
    const size_t listed = v2 ? v2->output_count : 0, outputs = deployment->output_count;
    work->asked_count = listed ? listed : outputs;
    work->asked = alloc_array(work->asked_count, sizeof *work->asked);
    work->wanted = alloc_array(2 * outputs, sizeof *work->wanted);
    TRY(check_memory(work->asked && work->wanted, "for a request", err));
    work->as_binary = work->wanted + outputs;
    for (size_t k = 0; k < work->asked_count; k++) {
        const struct v2_output *how = listed ? &v2->outputs[k] : &all;
        size_t i = k;
        if (listed)
            TRY(find_tensor(deployment, true, how->name, &i, err));
        if (work->wanted[i])
            return error_set(err, STATUS_INVALID, "output '%.80s' is given twice",
                             deployment->outputs[i].name);
        TRY(check_classes(deployment->outputs[i].name, how->classification,
                          deployment->outputs[i].count, err));
        work->wanted[i] = true;
        work->as_binary[i] = how->binary && !how->classification;
        work->asked[k] = (struct asked_output){i, how->classification, how->binary};
    }
    work->request.wanted_outputs = work->wanted;
    work->request.binary_outputs = work->as_binary;
    return STATUS_OK;
}

/* Returns the maximum number of bytes for the texts of a row's `classes` best classes. Each text
 * counts twice: for the text itself, and for its copy in the answer. */
static size_t class_bytes(size_t classes, const struct deployment *deployment)
{
    const size_t each = 64 + deployment->model->labels.longest;
    return (classes < PREDICT_MAX_TOP_K ? classes : PREDICT_MAX_TOP_K) * 2 * each;
}

/* Charges the memory that the answer can take until it has been sent. */
static enum status expect_outputs(struct exchange *x, const struct infer_work *work,
                                  const struct deployment *deployment, struct error *err)
{
    size_t bytes = 0;
    for (size_t k = 0; k < work->asked_count; k++) {
        const struct asked_output *asked = &work->asked[k];
        bytes = size_sum(bytes, submission_output_bytes(&deployment->outputs[asked->at], work->rows,
                                                        !work->as_binary[asked->at]));
        bytes = size_sum(bytes, size_product(work->rows, class_bytes(asked->classes, deployment)));
    }
    return charge_answer(x, bytes, err);
}

/* ---- the answer ---- */

/* Writes the `most` best classes of a row as texts such as "0.812345:3:cat": value, class, and the
 * label if there is one. */
static enum status classify_row(const struct tensor *row, size_t most, const struct labels *labels,
                                char **ret, struct error *err)
{
    struct ranking ranking = {alloc_array(most, sizeof *ranking.best), most, 0};
    TRY(check_memory(ranking.best, "for a request", err));
    for (size_t i = 0; most && i < shape_count(&row->shape); i++)
        ranking_add(&ranking, (float)tensor_number(row, i), i);
    ranking_sort(&ranking);
    enum status status = STATUS_OK;
    for (size_t i = 0; i < most && status == STATUS_OK; i++) {
        const size_t index = ranking_index(&ranking, i);
        const char *label = labels && index < labels->count && labels->names[index][0]
                                ? labels->names[index]
                                : NULL;
        if (asprintf(&ret[i], "%f:%zu%s%s", tensor_number(row, index), index, label ? ":" : "",
                     label ? label : "") < 0) {
            ret[i] = NULL;
            status = error_no_memory(err, "for a request");
        }
    }
    free(ranking.best);
    return status;
}

/* Sets output->shape to that of a row of output `o`, with the number of rows as dimension 0. */
static enum status shape_rows(const struct infer_work *work, size_t o,
                              struct v2_answer_output *output, struct error *err)
{
    const struct deployment *deployment = work->request.deployment;
    const struct tensor *first = work->request.images[0].outputs[o];
    output->shape = first->shape;
    if (work->rows == 1)
        return STATUS_OK;
    for (size_t r = 1; r < work->rows; r++) {
        const struct tensor *row = work->request.images[r].outputs[o];
        if (first->shape.rank < 1 || first->shape.dims[0] != 1 ||
            !shape_equal(&row->shape, &first->shape))
            return error_set(err, STATUS_INVALID,
                             "the rows of output '%s' differ in shape; send one row per request",
                             deployment->outputs[o].name);
    }
    output->shape.dims[0] = (int64_t)work->rows;
    return STATUS_OK;
}

/* Writes the best classes of each row of output `o`. All rows must have the same shape. */
static enum status infer_classify(const struct infer_work *work, size_t o, size_t classes,
                                  struct v2_answer_output *output, struct error *err)
{
    const struct deployment *deployment = work->request.deployment;
    const struct labels *labels =
        o == deployment->model->output ? &deployment->model->labels : NULL;
    const size_t count = shape_count(&work->request.images[0].outputs[o]->shape);
    const size_t each = classes < count ? classes : count;
    size_t cells;
    TRY(check_classes(output->name, classes, count, err));
    if (size_mul(work->rows, each, &cells))
        output->texts = alloc_array(cells, sizeof *output->texts);
    TRY(check_memory(output->texts, "for a request", err));
    output->rows = NULL;
    output->shape =
        deployment->has_rows ? SHAPE((int64_t)work->rows, (int64_t)each) : SHAPE((int64_t)each);
    for (size_t r = 0; r < work->rows; r++)
        TRY(classify_row(work->request.images[r].outputs[o], each, labels, output->texts + r * each,
                         err));
    return STATUS_OK;
}

static enum status shape_output(const struct infer_work *work, const struct asked_output *asked,
                                const struct tensor **rows, struct v2_answer_output *output,
                                struct error *err)
{
    *output = (struct v2_answer_output){.name = work->request.deployment->outputs[asked->at].name,
                                        .binary = asked->is_binary,
                                        .rows = rows,
                                        .row_count = work->rows};
    for (size_t r = 0; r < work->rows; r++)
        rows[r] = work->request.images[r].outputs[asked->at];
    if (work->is_v1)
        return STATUS_OK;
    TRY(shape_rows(work, asked->at, output, err));
    return asked->classes ? infer_classify(work, asked->at, asked->classes, output, err)
                          : STATUS_OK;
}

static enum status respond_outputs(struct exchange *x, struct infer_work *work, struct error *err)
{
    const struct deployment *deployment = work->request.deployment;
    size_t count = work->asked_count, cells;
    struct v2_answer_output *outputs = alloc_array(count, sizeof *outputs);
    const struct tensor **rows =
        size_mul(count, work->rows, &cells) ? alloc_array(cells, sizeof *rows) : NULL;
    enum status status = check_memory(outputs && rows, "for a request", err);
    for (size_t k = 0; status == STATUS_OK && k < count; k++)
        status = shape_output(work, &work->asked[k], rows + k * work->rows, &outputs[k], err);
    if (status == STATUS_OK) {
        struct v2_answer answer = {.model = deployment->model->name,
                                   .version = deployment->model->version,
                                   .id = work->v2 ? work->v2->id : NULL,
                                   .outputs = outputs,
                                   .output_count = count};
        size_t size = 0, json_size = 0;
        bool binary = false;
        char *text = work->is_v1            ? v1_rows_json(&answer, deployment->has_rows, &size)
                     : x->route->is_message ? v2_answer_message(&answer, &size)
                                            : v2_answer_body(&answer, &size, &json_size, &binary);
        respond_text(x, 200, binary ? TYPE_BYTES : TYPE_JSON, text, size);
        x->answer.json_size = text && binary ? json_size : 0;
    }
    for (size_t k = 0; outputs && k < count; k++) {
        for (size_t i = 0; outputs[k].texts && i < shape_count(&outputs[k].shape); i++)
            free(outputs[k].texts[i]);
        free(outputs[k].texts);
    }
    FREE_ALL(rows, outputs);
    return status;
}

/* If an image failed, answers with its error and returns true. `row`: the word for an image in the
 * message, if there are several. */
static bool respond_failed_row(struct exchange *x, const char *row)
{
    const struct predict_request *request = x->work;
    for (size_t i = 0; i < request->image_count; i++) {
        const struct predict_image *image = &request->images[i];
        struct error err = image->error;
        if (image->status == STATUS_OK)
            continue;
        if (request->image_count > 1)
            error_set(&err, image->status, "%s %zu: %s", row, i, image->error.message);
        respond_error(x, &err);
        return true;
    }
    return false;
}

static void infer_finish(struct exchange *x)
{
    struct infer_work *work = x->work;
    const struct describe_how how = {.answer = {.dialect = &dialect_v1, .as_list = true}};
    struct error err;
    exchange_note(x, &work->request);
    if (respond_failed_row(x, work->is_v1 ? "instance" : "element"))
        return;
    if (!work->request.raw_outputs)
        respond_json(x, 200, describe_predictions(&work->request, &how, NULL));
    else if (respond_outputs(x, work, &err) != STATUS_OK)
        respond_error(x, &err);
    store_in_cache(x);
}

/* ---- to the model host and back ---- */

/* Writes the number of JSON bytes in the body to *ret. Sets *ret_raw if the body has no JSON: if
 * Inference-Header-Content-Length is 0, or the body is a photo and the model takes photos. */
static enum status json_size(const struct exchange *x, const struct deployment *deployment,
                             size_t *ret, bool *ret_raw, struct error *err)
{
    *ret = x->body.size;
    *ret_raw =
        !x->json_length && deployment->takes_images && infer_is_image(x->body.data, x->body.size);
    if (!x->json_length)
        return STATUS_OK;
    char *end;
    errno = 0;
    unsigned long long value = strtoull(x->json_length, &end, 10);
    if (x->json_length[0] < '0' || x->json_length[0] > '9' || *end || errno || value > x->body.size)
        return error_set(err, STATUS_INVALID,
                         "Inference-Header-Content-Length is '%.40s'; it must be a number from 0 "
                         "to the length of the body, %zu",
                         x->json_length, x->body.size);
    *ret = (size_t)value;
    *ret_raw = value == 0;
    return STATUS_OK;
}

/* Refuses a body without Inference-Header-Content-Length that cannot be JSON. */
static enum status check_is_json(const struct exchange *x, struct error *err)
{
    const uint8_t *data = x->body.data;
    size_t size = x->body.size, json = 0;
    if (x->json_length)
        return STATUS_OK;
    if (infer_is_image(data, size))
        return error_set(err, STATUS_INVALID,
                         "the body is a picture, but no input of this model takes only a picture; "
                         "GET /v2/models/%s lists its inputs",
                         x->match.model);
    while (json < size && (data[json] == ' ' || (data[json] >= '\t' && data[json] <= '\r')))
        json++;
    if ((json < size && data[json] < ' ') || memchr(data, '\0', size))
        return error_set(
            err, STATUS_INVALID,
            "the body is binary, not JSON; the header Inference-Header-Content-Length says how "
            "many bytes of JSON it begins with (0: none, it is the input itself)");
    return STATUS_OK;
}

/* Reads a body of V1: photos or texts, or numbers for the only input. */
static enum status infer_read_instances(struct exchange *x, struct infer_work *work,
                                        const struct deployment *deployment, struct error *err)
{
    const struct http_options *options = &x->server->options;
    const struct json_limits limits = {options->max_json_depth, 16 * options->max_images + 1000};
    const struct model *model = deployment->model;
    const bool takes_texts = deployment_takes_texts(model);
    size_t i = deployment->takes_images ? deployment->image_input : 0;
    while (takes_texts && model->text.kinds[i] != TEXT_IDS)
        i++;
    const struct v2_input wanted = {.name = deployment->inputs[i].name,
                                    .datatype = dtype_oip_name(deployment->inputs[i].dtype),
                                    .shape = deployment->inputs[i].shape};
    if (x->body.size == 0)
        return error_set(err, STATUS_INVALID,
                         "the body is empty; send {\"instances\": [{\"b64\": \"…\"}]}");
    TRY(v1_request_parse((const char *)x->body.data, x->body.size, &limits, &wanted, takes_texts,
                         &work->v2, err));
    const bool are_numbers = work->v2->inputs[0].json;
    if (are_numbers && (deployment->input_count != 1 || !deployment->has_rows))
        return error_set(err, STATUS_INVALID,
                         "model '%s' has several inputs or no batch dimension; send tensors to "
                         "POST /v2/models/%s/infer",
                         model->name, model->name);
    work->request.raw_outputs =
        are_numbers || model->task.kind != TASK_CLASSIFICATION || deployment->no_answer[0];
    return STATUS_OK;
}

/* Reads the body, if read_message() has not. Sets *ret_raw if the body is the single input. */
static enum status read_body(struct exchange *x, struct infer_work *work,
                             const struct deployment *deployment, size_t *ret_json, bool *ret_raw,
                             struct error *err)
{
    const struct json_limits limits = {x->server->options.max_json_depth, 20000};
    *ret_raw = false;
    *ret_json = x->body.size;
    work->request.raw_outputs = true;
    if (work->v2)
        return STATUS_OK;
    if (work->is_v1)
        return infer_read_instances(x, work, deployment, err);
    TRY(json_size(x, deployment, ret_json, ret_raw, err));
    if (*ret_raw)
        return STATUS_OK;
    if (x->body.size == 0)
        return error_set(
            err, STATUS_INVALID,
            "the body is empty; send {\"inputs\": […]} as GET /v2/models/%s describes them",
            deployment->model->name);
    TRY(check_is_json(x, err));
    return v2_request_parse(x->body.data, x->body.size, *ret_json, &limits, &work->v2, err);
}

static enum status infer_submit(struct exchange *x, struct deployment **chosen, struct error *err)
{
    struct infer_work *work = x->work;
    const struct deployment *deployment = *chosen;
    size_t json;
    bool is_raw;
    TRY(read_body(x, work, deployment, &json, &is_raw, err));
    if (is_raw) {
        TRY(infer_take_raw(x, work, deployment, err));
    } else {
        TRY(request_limits_of_body(&work->request, work->v2->timeout_us, work->v2->priority, err));
        if (work->v2->input_count == 1 && work->v2->inputs[0].dtype != DTYPE_NONE && !work->is_v1)
            TRY(submission_choose_size(x, &work->v2->inputs[0].shape, chosen, err));
        deployment = *chosen;
        TRY(infer_take_inputs(x, work, deployment, err));
        /* The values of the JSON have been copied, so the body can be freed. */
        if (work->v2->input_count && work->v2->inputs[0].elements)
            upload_drop_bytes(&x->body);
        else if (json == x->body.size)
            upload_release_bytes(&x->body);
    }
    if (work->request.raw_outputs) {
        TRY(check_outputs(work, deployment, err));
        TRY(expect_outputs(x, work, deployment, err));
    }
    work->request.target = *chosen;
    x->image_count = work->rows;
    snprintf(x->model, sizeof x->model, "%s", (*chosen)->model->name);
    submit_work(x);
    return STATUS_OK;
}

static enum status charge_message(void *context, size_t bytes, struct error *err)
{
    struct exchange *x = context;
    return upload_charge(&x->body, bytes, err);
}

/* Reads the body of a gRPC call, which contains the model's name. */
static enum status read_message(struct exchange *x, struct infer_work *work, struct error *err)
{
    TRY(v2_request_unpack(x->body.data, x->body.size, charge_message, x, &work->v2, err));
    upload_release_bytes(&x->body); /* the unpacked message is a copy */
    return v2_copy_names(work->v2->model, work->v2->version, x->match.model, x->match.version, err);
}

static void infer_start(struct exchange *x)
{
    if (answer_from_cache(x, false))
        return;
    struct infer_work *work = submission_create(x, sizeof *work, infer_finish, infer_free_work);
    struct error err;
    if (!work)
        return;
    work->is_v1 = x->route->dialect == &dialect_v1;
    if (!x->route->is_message || read_message(x, work, &err) == STATUS_OK)
        submission_to_model(x, infer_submit);
    else
        submit_or_refuse(x, err.status, &err);
}

void v2_infer_handle(struct exchange *x)
{
    submission_handle(x, infer_start);
}
