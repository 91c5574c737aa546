/* Frigate's detector over ZeroMQ (--zmq-port): says whether the model named in a message is loaded,
 * or returns 20 boxes for a tensor. Source: frigate/detectors/plugins/zmq_ipc.py. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/size.h"
#include "proto/frigate.h"
#include "server/http/api/route_table.h"
#include "server/http/api/submission.h"
#include "server/http/transport/exchange.h"
#include "server/http/transport/respond.h"
#include "server/http/transport/zmq.h"

#define BOXES 20

struct frigate_work {
    struct predict_request request; /* must be first (submission.h) */
    struct frigate_header header;
    const void *tensor;
    struct image pixels;
    int width, height; /* of the tensor */
};

static void set_failure_reply(struct exchange *x, const char *text)
{
    struct zmq_frames *frames = zmq_frames_of(x);
    frames->failure = text;
    frames->failure_size = text ? strlen(text) : 0;
}

/* ---- models ---- */

static enum status check_detects(const struct deployment *deployment, struct error *err)
{
    const struct model *model = deployment->model;
    const unsigned kinds = 1u << TASK_DETECTION | 1u << TASK_POSE | 1u << TASK_INSTANCES;
    if (kinds & 1u << model->task.kind && !deployment->no_answer[0] && deployment->input_count == 1)
        return STATUS_OK;
    return error_set(err, STATUS_INVALID,
                     "model '%s' is not a detector (`lensd inspect` says what it is); name another "
                     "file in Frigate's model.path",
                     model->name);
}

/* Succeeds if the model is loaded and is a detector. If it is not loaded, requests its load. */
static enum status ask_model(struct exchange *x, const char *name, struct error *err)
{
    struct model_host *model_host = x->server->options.model_host;
    struct predict_request request = {.model = name};
    struct deployment *deployment;
    (void)model_host_hold(model_host, &request);
    enum status status = model_host_acquire(model_host, name, NULL, &deployment, err);
    if (status == STATUS_OK) {
        status = check_detects(deployment, err);
        model_host_release(model_host, deployment);
    } else if (status == STATUS_NOT_FOUND && model_host_state(model_host) == MODEL_HOST_LOADING) {
        err->status = status = STATUS_NOT_READY; /* the model may not be listed yet */
    }
    predict_request_free_results(&request);
    return status;
}

static void frigate_model_handle(struct exchange *x)
{
    struct zmq_frames *frames = zmq_frames_of(x);
    struct frigate_header header;
    struct error err;
    enum status status = frigate_header_parse(frames->header, frames->header_size, &header, &err);
    if (status == STATUS_OK && header.kind != FRIGATE_ASKS_MODEL)
        status = error_set(&err, STATUS_INVALID, "the message has a header but no tensor");
    if (status == STATUS_OK) {
        status = ask_model(x, header.model, &err);
        set_failure_reply(x, status == STATUS_NOT_FOUND
                                 ? "{\"model_available\": false, \"model_loaded\": false}"
                                 : "{\"model_available\": true, \"model_loaded\": false}");
    }
    if (status != STATUS_OK) {
        respond_error(x, &err);
        return;
    }
    static const char loaded[] = "{\"model_available\": true, \"model_loaded\": true}";
    memcpy(frames->model, header.model, sizeof frames->model);
    respond_json(x, 200, strdup(loaded));
}

/* ---- tensors ---- */

/* Uses the tensor as the model's input or, if only the tensor is uint8 NHWC, as a photo. */
static enum status take_tensor_or_pixels(struct exchange *x, struct frigate_work *work,
                                         struct deployment **chosen, struct error *err)
{
    const struct frigate_header *header = &work->header;
    const int64_t *dims = header->shape.dims;
    const void *tensor = zmq_frames_of(x)->tensor;
    const struct served_tensor *input = &(*chosen)->inputs[0];
    const bool is_nhwc = (*chosen)->model->input_channels_last;
    if (header->dtype == DTYPE_U8 && dims[0] == 1 && dims[3] == 3 && dims[1] <= MODEL_SIDE_MAX &&
        dims[2] <= MODEL_SIDE_MAX && !(is_nhwc && input->dtype == DTYPE_U8)) {
        work->width = (int)dims[2];
        work->height = (int)dims[1];
        work->pixels = (struct image){{.width = (uint32_t)dims[2], .height = (uint32_t)dims[1]},
                                      (uint32_t)dims[2],
                                      (uint32_t)dims[1],
                                      (size_t)dims[2] * 3,
                                      tensor};
        work->request.images[0].pixels = &work->pixels;
        return STATUS_OK;
    }
    TRY(submission_choose_size(x, &header->shape, chosen, err));
    input = &(*chosen)->inputs[0];
    if (header->dtype != input->dtype || !shape_equal(&header->shape, &input->shape))
        return error_set(
            err, STATUS_INVALID,
            "Frigate sends %s %s, but model '%s' takes %s %s or uint8 [1, height, width, "
            "3]; change width, height, input_tensor and input_dtype in Frigate's "
            "model section",
            dtype_name(header->dtype), SHAPE_STRING(&header->shape), (*chosen)->model->name,
            dtype_name(input->dtype), SHAPE_STRING(&input->shape));
    work->width = (int)dims[is_nhwc ? 2 : 3];
    work->height = (int)dims[is_nhwc ? 1 : 2];
    work->tensor = tensor;
    work->request.tensors = &work->tensor;
    return STATUS_OK;
}

static enum status frigate_submit(struct exchange *x, struct deployment **chosen, struct error *err)
{
    struct frigate_work *work = x->work;
    TRY(check_detects(*chosen, err));
    TRY(submission_images(&work->request, 1, err));
    TRY(take_tensor_or_pixels(x, work, chosen, err));
    work->request.target = *chosen;
    x->image_count = 1;
    snprintf(x->model, sizeof x->model, "%s", (*chosen)->model->name);
    submit_work(x);
    return STATUS_OK;
}

/* Writes rows of class, score, top, left, bottom, right; the sides as fractions of the picture. */
static void frigate_finish(struct exchange *x)
{
    const struct frigate_work *work = x->work;
    const struct predict_image *image = &work->request.images[0];
    const float width = (float)work->width, height = (float)work->height;
    exchange_note(x, &work->request);
    if (image->status != STATUS_OK) {
        respond_error(x, &image->error);
        return;
    }
    float(*rows)[6] = calloc(BOXES, sizeof *rows);
    for (size_t i = 0; rows && i < image->answer.detections.count && i < BOXES; i++) {
        const struct detection *box = &image->answer.detections.items[i];
        const float row[6] = {(float)box->index, box->score,       box->y1 / height,
                              box->x1 / width,   box->y2 / height, box->x2 / width};
        memcpy(rows[i], row, sizeof row);
    }
    respond_text(x, 200, TYPE_BYTES, (char *)rows, BOXES * sizeof *rows);
}

static void frigate_detect_handle(struct exchange *x)
{
    struct zmq_frames *frames = zmq_frames_of(x);
    struct error err;
    struct frigate_work *work = submission_create(x, sizeof *work, frigate_finish, submission_free);
    if (!work)
        return;
    enum status status =
        frigate_header_parse(frames->header, frames->header_size, &work->header, &err);
    if (status == STATUS_OK && work->header.kind == FRIGATE_SENDS_MODEL) {
        set_failure_reply(x, "{\"model_saved\": false, \"model_loaded\": false}");
        status = error_set(&err, STATUS_INVALID,
                           "lensd takes no model files from Frigate; put %.100s into the folder of "
                           "--models and restart Frigate",
                           work->header.model);
    } else if (status == STATUS_OK && work->header.kind == FRIGATE_ASKS_MODEL) {
        status =
            error_set(&err, STATUS_INVALID, "the message requests a model, but also has a tensor");
    } else if (status == STATUS_OK && work->header.bytes != frames->tensor_size) {
        status = error_set(&err, STATUS_INVALID,
                           "the tensor has %zu bytes, but its shape and dtype need %zu",
                           frames->tensor_size, work->header.bytes);
    } else if (status == STATUS_OK && !frames->model[0]) {
        set_failure_reply(x, NULL);
        status =
            error_set(&err, STATUS_NOT_FOUND,
                      "the client has not named its model; Frigate does so when it gets no answer");
    }
    if (status != STATUS_OK) {
        respond_error(x, &err);
        return;
    }
    memcpy(x->match.model, frames->model, sizeof x->match.model);
    submission_to_model(x, frigate_submit);
}

static const struct route routes[] = {
    {.path = "/zmq/model",
     .takes_body = true,
     .handle = frigate_model_handle,
     .access = ROUTE_OPEN},
    {.path = "/zmq/detect",
     .takes_body = true,
     .handle = frigate_detect_handle,
     .access = ROUTE_OPEN},
};

const struct route_table zmq_route_table = {routes, COUNT_OF(routes)};
