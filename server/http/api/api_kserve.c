/* KServe's V1 protocol, the same as TensorFlow Serving's: POST /v1/models/M:predict with
 * {"instances": […]}, and the list of models. Instances are photos as base64, texts for a model
 * that takes them, or rows of numbers for a model with one input. */
#include <stdlib.h>
#include <string.h>

#include "engine/base/size.h"
#include "proto/v1.h"
#include "proto/v2.h"
#include "server/answers/describe.h"
#include "server/http/api/request_limits.h"
#include "server/http/api/route_table.h"
#include "server/http/api/submission.h"
#include "server/http/api/texts.h"
#include "server/http/transport/exchange.h"
#include "server/http/transport/respond.h"

struct kserve_work {
    struct predict_request request; /* must be first (submission.h) */
    struct v1_request *v1;
    void *numbers; /* owned: rows of the model's input */
    const void *tensors[1];
    struct request_texts texts;
};

static void kserve_free_work(struct exchange *x)
{
    struct kserve_work *work = x->work;
    submission_free(x); /* first: the request's images use memory that is freed below */
    texts_done(&work->texts);
    v1_request_free(work->v1);
    free(work->numbers);
}

static enum status take_photos(struct kserve_work *work, struct error *err)
{
    TRY(submission_images(&work->request, work->v1->image_count, err));
    for (size_t i = 0; i < work->v1->image_count; i++) {
        const struct predict_json_image *from = &work->v1->images[i];
        struct predict_image *image = &work->request.images[i];
        image->data = from->data;
        image->size = from->size;
        image->preset = from->error;
    }
    return STATUS_OK;
}

static enum status take_instance_texts(struct exchange *x, struct kserve_work *work,
                                       const struct deployment *deployment, struct error *err)
{
    struct request_texts *texts = &work->texts;
    TRY(texts_begin(texts, work->v1->image_count, err));
    for (size_t i = 0; i < texts->count; i++)
        texts->items[i] = (struct text_item){.text = (const char *)work->v1->images[i].data,
                                             .size = work->v1->images[i].size};
    TRY(texts_make_rows(x, texts, deployment, err));
    work->request.tensors = (const void *const *)texts->rows.inputs;
    return submission_images(&work->request, texts->count, err);
}

static enum status take_numbers(struct exchange *x, struct kserve_work *work,
                                const struct deployment *deployment,
                                const struct json_limits *limits, struct error *err)
{
    const struct served_tensor *wanted = &deployment->inputs[0];
    size_t rows = work->v1->rows;
    if (deployment->input_count != 1 || !deployment->has_rows)
        return error_set(err, STATUS_INVALID,
                         "model '%s' has several inputs or no batch dimension; send tensors to "
                         "POST /v2/models/%s/infer",
                         deployment->model->name, deployment->model->name);
    if (rows > deployment->max_rows)
        return error_set(err, STATUS_TOO_LARGE,
                         "%zu instances, but model '%s' takes at most %zu at a time (--max-queue)",
                         rows, deployment->model->name, deployment->max_rows);
    struct v2_input input = {.name = "instances",
                             .dtype = wanted->dtype,
                             .shape = wanted->shape,
                             .json = work->v1->numbers,
                             .json_size = work->v1->numbers_size};
    input.shape.dims[0] = (int64_t)rows;
    input.max_nesting = v2_max_nesting(&input.shape, 1, limits);
    size_t bytes;
    if (shape_check(&input.shape, input.dtype, &input.count, &bytes, err) != STATUS_OK ||
        input.count > input.json_size)
        return error_set(err, STATUS_INVALID,
                         "the %zu instances have too few numbers: each must have %zu", rows,
                         wanted->count);
    TRY(upload_charge(&x->body, bytes, err));
    work->numbers = malloc(bytes ? bytes : 1);
    TRY(check_memory(work->numbers, "for a request", err));
    TRY(v2_read_numbers(&input, work->numbers, err));
    work->tensors[0] = work->numbers;
    work->request.tensors = work->tensors;
    work->request.raw_outputs = true;
    return submission_images(&work->request, rows, err);
}

/* Charges the memory that the rows of a model's outputs may take until they have been sent. */
static enum status expect_rows(struct exchange *x, const struct deployment *deployment, size_t rows,
                               struct error *err)
{
    size_t bytes = 0;
    for (size_t o = 0; o < deployment->output_count; o++)
        if (!size_add(bytes, submission_output_bytes(&deployment->outputs[o], rows, true), &bytes))
            bytes = SIZE_MAX;
    return charge_answer(x, bytes, err);
}

static enum status kserve_prepare(struct exchange *x, struct deployment **chosen, struct error *err)
{
    struct kserve_work *work = x->work;
    struct deployment *deployment = *chosen;
    const struct http_options *options = &x->server->options;
    struct json_limits limits = {options->max_json_depth, 16 * options->max_images + 1000};
    TRY(request_limits_read(x, &work->request, err));
    if (x->body.size == 0)
        return error_set(err, STATUS_INVALID,
                         "the body is empty; send {\"instances\": [{\"b64\": \"…\"}]}");
    const bool takes_texts = deployment_takes_texts(deployment->model);
    TRY(v1_request_parse((const char *)x->body.data, x->body.size, &limits, options->max_images,
                         takes_texts, &work->v1, err));
    if (takes_texts && !work->v1->numbers) {
        TRY(take_instance_texts(x, work, deployment, err));
    } else if (work->v1->numbers) {
        TRY(take_numbers(x, work, deployment, &limits, err));
        upload_release_bytes(&x->body); /* the numbers are copied and charged separately */
    } else {
        TRY(take_photos(work, err));
        upload_drop_bytes(&x->body); /* the parsed tree replaces the body */
    }
    /* A model without classes answers photos with its raw outputs. */
    if (deployment->model->task.kind != TASK_CLASSIFICATION || deployment->no_answer[0])
        work->request.raw_outputs = true;
    if (work->request.raw_outputs)
        TRY(expect_rows(x, deployment, work->request.image_count, err));
    work->request.target = deployment;
    x->image_count = work->request.image_count;
    return STATUS_OK;
}

static char *write_rows(const struct predict_request *request)
{
    const struct deployment *deployment = request->deployment;
    struct v1_row *rows = alloc_array(request->image_count, sizeof *rows);
    const char **names = alloc_array(deployment->output_count, sizeof *names);
    char *text = NULL;
    for (size_t i = 0; rows && i < request->image_count; i++)
        rows[i] = (struct v1_row){request->images[i].outputs};
    for (size_t o = 0; names && o < deployment->output_count; o++)
        names[o] = deployment->outputs[o].name;
    if (rows && names)
        text = v1_rows_json(rows, request->image_count, names, deployment->output_count,
                            deployment->has_rows);
    FREE_ALL(rows, names);
    return text;
}

static void kserve_finish(struct exchange *x)
{
    struct kserve_work *work = x->work;
    const struct predict_request *request = &work->request;
    x->write_seconds = request->write_seconds;
    if (respond_failed_row(x, "instance"))
        return;
    const struct describe_how how = {.form = DESCRIBE_KSERVE, .as_list = true};
    respond_json(x, 200,
                 request->raw_outputs ? write_rows(request)
                                      : describe_predictions(request, &how, NULL));
    store_in_cache(x);
}

static void kserve_start(struct exchange *x)
{
    if (answer_from_cache(x, false))
        return;
    (void)submission_create(x, sizeof(struct kserve_work), kserve_finish, kserve_free_work);
    submission_to_model(x, kserve_prepare);
}

void kserve_predict_handle(struct exchange *x)
{
    submission_handle(x, kserve_start);
}

void kserve_model_handle(struct exchange *x)
{
    size_t count, found = 0;
    bool ready = false;
    struct model_status *models = model_host_snapshot(x->server->options.model_host, &count);
    struct v1_version *versions = alloc_array(count, sizeof *versions);
    for (size_t i = 0; models && versions && i < count; i++) {
        if (strcmp(models[i].name, x->match.model) != 0 ||
            (x->match.version[0] && strcmp(models[i].version, x->match.version) != 0))
            continue;
        bool is_ready = models[i].can_answer;
        versions[found++] = (struct v1_version){models[i].version, is_ready, models[i].failure};
        ready = ready || is_ready;
    }
    if (found == 0 && models && versions) {
        respond_refusal(x, 404, "not_found", "there is no model '%s'%s%s", x->match.model,
                        x->match.version[0] ? " of version " : "", x->match.version);
    } else {
        char *text =
            models && versions ? v1_model_json(x->match.model, ready, versions, found) : NULL;
        x->answer.retry_after_s = ready ? 0 : model_host_retry_after(x->server->options.model_host);
        respond_json(x, ready ? 200 : 503, text);
    }
    FREE_ALL(versions, models);
}

void kserve_models_handle(struct exchange *x)
{
    size_t count, found = 0;
    struct model_status *models = model_host_snapshot(x->server->options.model_host, &count);
    const char **names = alloc_array(count, sizeof *names);
    for (size_t i = 0; models && names && i < count; i++)
        if (found == 0 || strcmp(names[found - 1], models[i].name) != 0)
            names[found++] = models[i].name;
    respond_json(x, 200, models && names ? v1_models_json(names, found) : NULL);
    FREE_ALL(names, models);
}
