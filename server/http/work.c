#include "server/http/work.h"

#include <stdio.h>
#include <stdlib.h>

#include "engine/base/size.h"
#include "server/http/respond.h"

/* What a prediction costs to write: its label, index and probability. */
#define PREDICTION_BYTES 64

/* Bytes of numbers, or what stands for them, that an answer is made of. */
static size_t answer_bytes(const struct predict_request *request)
{
    const struct served *served = request->hold;
    size_t bytes = 0;
    for (size_t i = 0; i < request->image_count; i++) {
        const struct predict_image *image = &request->images[i];
        if (image->status != STATUS_OK)
            continue;
        bytes += image->prediction_count * PREDICTION_BYTES;
        for (size_t o = 0; image->outputs && served && o < served->output_count; o++)
            bytes += image->outputs[o] ? image->outputs[o]->bytes : 0;
    }
    return bytes;
}

/* On a thread of the pipeline, or the watcher's: writing megabytes is not their affair either. */
static void on_done(struct predict_request *request)
{
    struct exchange *x = request->context;
    size_t bytes = answer_bytes(request);
    if (bytes >= WORK_LARGE_ANSWER)
        exchange_offload(x, bytes * (WORK_LARGE_BODY / WORK_LARGE_ANSWER), exchange_answer);
    else
        exchange_resume(x);
}

void *work_create(struct exchange *x, size_t size, void (*finish)(struct exchange *exchange),
                  void (*free_work)(struct exchange *exchange))
{
    struct predict_request *request = calloc(1, size);
    if (!request)
        return NULL;
    x->work = request;
    x->free_work = free_work;
    x->finish = finish;
    request->top_k = x->server->options.top_k;
    request->on_done = on_done;
    request->context = x;
    return request;
}

void work_free(struct exchange *x)
{
    struct predict_request *request = x->work;
    predict_request_done(request);
    free(request->images);
    free(request);
    x->work = NULL;
}

enum status work_images(struct predict_request *request, size_t count, struct error *err)
{
    request->images = alloc_array(count, sizeof *request->images);
    if (!request->images)
        return error_set(err, STATUS_NO_MEMORY, "out of memory for %zu images", count);
    request->image_count = count;
    return STATUS_OK;
}

void work_handle(struct exchange *x, void (*start)(struct exchange *exchange))
{
    /* By the size alone: no client shall have a say in which thread reads its megabytes. */
    if (x->body.size < WORK_LARGE_BODY) {
        start(x);
        return;
    }
    exchange_wait(x, NULL, x->finish);
    exchange_offload(x, x->body.size, start);
}

void work_submit(struct exchange *x)
{
    struct error err;
    struct predict_request *request = x->work;
    int retry_after_s = 0;
    /* Waiting comes first: the pipeline may be done, and wake us, before submit returns. */
    exchange_wait(x, request, x->finish);
    if (pipeline_submit(x->server->options.pipeline, request, &retry_after_s, &err) == STATUS_OK)
        return;
    x->answer.retry_after_s = retry_after_s;
    respond_error(x, &err);
    exchange_resume(x);
}

void work_submit_or(struct exchange *x, enum status status, const struct error *err)
{
    if (status == STATUS_OK) {
        work_submit(x);
        return;
    }
    respond_error(x, err);
    if (x->state == EXCHANGE_WAITING)
        exchange_resume(x);
}

void work_submit_served(struct exchange *x,
                        enum status (*prepare)(struct exchange *exchange, struct served *served,
                                               struct error *err))
{
    struct pipeline *pipeline = x->server->options.pipeline; /* x may be gone before the end */
    const char *version = x->match.version[0] ? x->match.version : NULL;
    struct served *served = NULL;
    struct error err;
    enum status status =
        x->work ? pipeline_acquire(pipeline, x->match.model, version, &served, NULL, &err)
                : error_set(&err, STATUS_NO_MEMORY, "out of memory for a request");
    if (status == STATUS_OK)
        status = prepare(x, served, &err);
    if (status == STATUS_OK)
        snprintf(x->model, sizeof x->model, "%s", served->model->name);
    work_submit_or(x, status, &err);
    if (served)
        pipeline_release(pipeline, served);
}
