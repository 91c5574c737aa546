/* Submits a request to the model host, waits for it, and limits the memory of its answer. */
#include "server/http/api/submission.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/size.h"
#include "engine/base/text.h"
#include "proto/v2.h"
#include "server/answers/annotate.h"
#include "server/answers/describe.h"
#include "server/http/transport/penalty.h"
#include "server/http/transport/respond.h"
#include "server/schedule/runtime/parts.h"

/* Bytes of one prediction in an answer (label, index and probability), if no label has more than
 * LABEL_BYTES. Otherwise the size of the longest label is added for each prediction. */
#define PREDICTION_BYTES 64
#define LABEL_BYTES      20

/* Overhead of each entry in an answer. An entry is an image, or one output of one row. */
#define ENTRY_BYTES 512

#define MAX_TIMEOUT_MS 86400000 /* a day */

size_t submission_output_bytes(const struct served_tensor *output, size_t rows, bool as_json)
{
    /* Each nested array needs two brackets and a comma. */
    size_t text = output->bytes, arrays = 0, before = 1;
    for (int d = 0; as_json && d < output->shape.rank; d++) {
        arrays = size_sum(arrays, before);
        before = size_product(before, (size_t)output->shape.dims[d]);
    }
    if (as_json)
        text = size_sum(size_product(output->count, v2_number_most(output->dtype)),
                        size_product(arrays, 3));
    return size_product(rows, size_sum(text, size_sum(output->bytes, ENTRY_BYTES)));
}

enum status charge_answer(struct exchange *x, size_t bytes, struct error *err)
{
    struct http_budget *budget = x->body.budget;
    const size_t most = http_budget_most(budget);
    size_t own = x->body.capacity + x->body.beside + x->answer.charged;
    /* Charge a small answer without checking the limit: a connection alone needs this much memory,
     * so a refusal after an upload would save little. Many small charges (masks, crops) can make a
     * large answer, so the sum counts, too. */
    if (bytes < SUBMISSION_LARGE_ANSWER && x->answer.charged < SUBMISSION_LARGE_ANSWER) {
        http_budget_settle(budget, &x->answer.charged, x->answer.charged + bytes);
        return STATUS_OK;
    }
    if (own > most || bytes > most - own)
        return error_set(err, STATUS_TOO_LARGE,
                         "this request and its answer may need %.1f MiB, but the limit for all "
                         "requests together is %.1f MiB; request fewer rows or outputs at a time, "
                         "or binary data instead of JSON, or raise the limit (--max-upload-memory)",
                         ((double)bytes + (double)own) / (1 << 20), (double)most / (1 << 20));
    if (!http_budget_charge(budget, own, bytes))
        return error_set(err, STATUS_OVERLOADED,
                         "the answer may take %zu bytes; with it the bodies and answers of all "
                         "requests would exceed %zu bytes, or those of your address three quarters "
                         "of that; try again soon, or raise the limit (--max-upload-memory)",
                         bytes, most);
    x->answer.charged += bytes;
    return STATUS_OK;
}

static enum status expect_predictions(struct exchange *x, const struct predict_request *request,
                                      struct error *err)
{
    if (request->raw_outputs) /* charged by the endpoint, which knows the form of its answer */
        return STATUS_OK;
    /* PREDICTION_BYTES counts twice: for the predictions, and for their text. */
    const size_t each = ENTRY_BYTES + 2 * PREDICTION_BYTES * (size_t)request->top_k;
    return charge_answer(x, size_product(request->image_count, each), err);
}

/* Returns the size of the results from which an answer is written. *ret_unforeseen is the memory,
 * also for the text, of the results whose size was unknown before the run. */
static size_t answer_bytes(const struct predict_request *request, size_t *ret_unforeseen)
{
    const struct deployment *deployment = request->deployment;
    const size_t longest = request->text_names   ? request->longest_name
                           : request->used_model ? request->used_model->labels.longest
                                                 : 0;
    size_t bytes = 0, labels = 0;
    *ret_unforeseen = 0;
    for (size_t i = 0; i < request->image_count; i++) {
        const struct predict_image *image = &request->images[i];
        if (image->status != STATUS_OK)
            continue;
        bytes += image->prediction_count * PREDICTION_BYTES;
        labels +=
            image->prediction_count + image->answer.detections.count + image->answer.segments.count;
        /* The size of these results was unknown until the run. */
        const size_t own = task_answer_bytes(&image->answer) +
                           (request->wants_picture ? annotate_bytes(image) / 2 : 0);
        bytes += own;
        *ret_unforeseen += 2 * own;
        for (size_t o = 0; image->outputs && deployment && o < deployment->output_count; o++) {
            const struct tensor *output = image->outputs[o];
            if (!output)
                continue;
            bytes += output->bytes;
            if (deployment->outputs[o].shape.rank == SHAPE_UNKNOWN) {
                const struct served_tensor known = {.dtype = output->dtype,
                                                    .shape = output->shape,
                                                    .count = shape_count(&output->shape),
                                                    .bytes = output->bytes};
                const bool as_json = !request->binary_outputs || !request->binary_outputs[o];
                *ret_unforeseen =
                    size_sum(*ret_unforeseen, submission_output_bytes(&known, 1, as_json));
            }
        }
    }
    if (longest > LABEL_BYTES)
        *ret_unforeseen = size_sum(*ret_unforeseen, size_product(labels, longest));
    return bytes;
}

/* Charges memory whose size was unknown before the run. */
static enum status expect_results(struct exchange *x, const struct predict_request *request,
                                  size_t *ret_bytes, struct error *err)
{
    size_t unforeseen;
    *ret_bytes = answer_bytes(request, &unforeseen);
    return unforeseen ? charge_answer(x, unforeseen, err) : STATUS_OK;
}

/* Runs on a thread of the model host or the watcher, which must not write megabytes. */
static void submission_done(struct predict_request *request)
{
    struct exchange *x = request->context;
    struct error err;
    size_t bytes;
    if (expect_results(x, request, &bytes, &err) != STATUS_OK) {
        predict_request_free_results(request); /* free these now, because they exceed the budget */
        respond_error(x, &err);
        exchange_resume(x);
    } else if (bytes >= SUBMISSION_LARGE_ANSWER || describe_is_slow(request)) {
        /* Pass the size of a body that takes as much CPU time as this answer. */
        exchange_offload(x, bytes * (SUBMISSION_LARGE_BODY / SUBMISSION_LARGE_ANSWER),
                         exchange_answer);
    } else {
        exchange_resume(x);
    }
}

void *submission_create(struct exchange *x, size_t size, exchange_fn *finish,
                        exchange_fn *free_work)
{
    struct predict_request *request = calloc(1, size);
    struct error err;
    if (!request) {
        submit_or_refuse(x, error_no_memory(&err, "for a request"), &err);
        return NULL;
    }
    x->work = request;
    x->free_work = free_work;
    x->finish = finish;
    request->top_k = x->server->options.top_k;
    request->context = x;
    return request;
}

void submission_free(struct exchange *x)
{
    struct predict_request *request = x->work;
    predict_request_free_results(request);
    free(request->images);
}

/* True if the client sends `directive` in Cache-Control (RFC 9111, section 5.2.1). */
static bool client_says(const struct exchange *x, const char *directive)
{
    const char *control = exchange_header(x, "Cache-Control");
    return control && strcasestr(control, directive);
}

static void answer_again(struct exchange *x, const struct cached_answer *kept,
                         struct deployment *deployment)
{
    struct error err;
    const size_t size = kept->size;
    x->is_cached = true;
    x->image_count = kept->image_count;
    snprintf(x->model, sizeof x->model, "%s", deployment->model->name);
    deployment_note_cache_hit(deployment, x->started, x->cache_key.search_ms);
    if (charge_answer(x, size, &err) != STATUS_OK) {
        respond_error(x, &err);
    } else {
        char *text = malloc(size + 1);
        if (text)
            memcpy(text, kept->text, size);
        respond_text(x, 200, kept->type, text, size);
        x->answer.json_size = kept->json_size;
        respond_header(x, "Age", "%.0f", floor(clock_ms(clock_now() - kept->made) / 1000));
        respond_header(x, "X-Cache", "hit");
    }
    if (x->state == EXCHANGE_SUSPENDED) {
        exchange_answer(x);
    } else if (size >= SUBMISSION_LARGE_ANSWER) { /* compressing it takes long */
        exchange_offload(x, size * (SUBMISSION_LARGE_BODY / SUBMISSION_LARGE_ANSWER),
                         exchange_answer);
    }
}

bool answer_from_cache(struct exchange *x, bool reads_forms)
{
    struct response_cache *cache = x->server->cache;
    struct model_host *model_host = x->server->options.model_host;
    struct deployment *deployment;
    struct error err;
    const int64_t begun = clock_now();
    if (!cache || client_says(x, "no-store") || !response_cache_key(cache, x, reads_forms) ||
        client_says(x, "no-cache"))
        return false;
    struct cached_answer *kept = response_cache_find(cache, x);
    x->cache_key.search_ms = clock_ms(clock_now() - begun);
    if (!kept)
        return false;
    /* A cached answer skips the code that submits, so check headers such as X-Priority here. */
    struct predict_request asked = {0};
    if (request_limits_read(x, &asked, &err) != STATUS_OK) {
        cached_answer_release(kept);
        return false;
    }
    /* If the model cannot be acquired, the request fails as it would without the cache. */
    const struct cached_model *model = &kept->model;
    bool is_hit = model_host_acquire(model_host, model->name[0] ? model->name : NULL,
                                     model->version[0] ? model->version : NULL, &deployment,
                                     &err) == STATUS_OK;
    if (is_hit) {
        is_hit = deployment->generation == model->generation;
        if (is_hit)
            answer_again(x, kept, deployment);
        model_host_release(model_host, deployment);
    }
    cached_answer_release(kept);
    return is_hit;
}

void store_in_cache(struct exchange *x)
{
    const struct predict_request *request = x->work;
    struct cached_model model = {.generation =
                                     request->deployment ? request->deployment->generation : 0};
    const int64_t begun = clock_now();
    bool is_whole =
        x->cache_key.is_set && x->answer.status == 200 && request->size_choice == SIZE_EXACT;
    for (size_t i = 0; is_whole && i < request->image_count; i++)
        is_whole = request->images[i].status == STATUS_OK;
    if (!is_whole)
        return;
    const bool is_in_path = x->match.model[0];
    const char *name = is_in_path ? x->match.model : request->model;
    const char *version = is_in_path ? x->match.version : request->version;
    snprintf(model.name, sizeof model.name, "%s", name ? name : "");
    snprintf(model.version, sizeof model.version, "%s", version ? version : "");
    response_cache_keep(x->server->cache, x, &model);
    deployment_note_cache_miss(request->deployment,
                               x->cache_key.search_ms + clock_ms(clock_now() - begun));
    respond_header(x, "X-Cache", "miss");
}

enum status submission_images(struct predict_request *request, size_t count, struct error *err)
{
    request->images = alloc_array(count, sizeof *request->images);
    if (!request->images)
        return error_set(err, STATUS_NO_MEMORY, "out of memory for %zu images", count);
    request->image_count = count;
    return STATUS_OK;
}

void submission_handle(struct exchange *x, exchange_fn *start)
{
    /* Decide by the size only: no header of a client may choose the thread that reads megabytes. */
    if (x->body.size < SUBMISSION_LARGE_BODY)
        start(x);
    else
        exchange_offload(x, x->body.size, start);
}

void submission_submit(struct exchange *x, struct predict_request *request)
{
    struct error err;
    if (request == x->work && !request->parts)
        request->on_done = submission_done;
    /* Suspend first: the model host may resume the exchange before submit returns. */
    exchange_wait(x, request, x->finish);
    if (expect_predictions(x, request, &err) == STATUS_OK &&
        model_host_submit(x->server->options.model_host, request, &err) == STATUS_OK)
        return;
    submit_or_refuse(x, err.status, &err);
}

void submit_work(struct exchange *x)
{
    submission_submit(x, x->work);
}

void submit_next_part(struct exchange *x)
{
    const struct predict_request *whole = x->work;
    struct request_parts *parts = whole->parts;
    struct request_part *part = NULL;
    struct error err;
    size_t ignored;
    enum status status = STATUS_OK;
    if (parts->last)
        status = expect_results(x, &parts->last->request, &ignored, &err);
    IF_OK(status, parts->next(parts, &part, &err));
    if (status != STATUS_OK)
        submit_or_refuse(x, status, &err);
    else if (part)
        submission_submit(x, &part->request);
    else
        (x->next ? x->next : exchange_answer)(x);
}

/* Called on any thread after the load. If the load failed, submitting returns the load's error. */
static void submission_loaded(struct predict_request *request)
{
    struct exchange *x = request->context;
    exchange_offload(x, SIZE_MAX, x->awaited); /* a long job: `awaited` may tokenize texts */
}

void submission_await(struct exchange *x, struct predict_request *request, exchange_fn *run)
{
    struct model_host *host = x->server->options.model_host;
    struct error err;
    request->on_done = submission_loaded;
    x->awaited = run;
    if (model_host_hold(host, request)) {
        run(x);
        return;
    }
    exchange_wait(x, request, x->finish); /* before model_host_await(): the load may end at once */
    if (model_host_await(host, request, &err) == STATUS_OK)
        return;
    submit_or_refuse(x, err.status, &err);
}

void submission_when_loaded(struct exchange *x, const char *model, const char *version,
                            exchange_fn *run)
{
    struct predict_request *request = x->work;
    struct error err;
    request->model = model;
    request->version = version;
    if (request_limits_read(x, request, &err) == STATUS_OK)
        submission_await(x, request, run);
    else
        submit_or_refuse(x, err.status, &err);
}

void submit_or_refuse(struct exchange *x, enum status status, const struct error *err)
{
    if (status == STATUS_OK) {
        submit_work(x);
        return;
    }
    respond_error(x, err);
    if (x->state == EXCHANGE_SUSPENDED)
        exchange_resume(x);
}

void submission_with(struct exchange *x, const char *model, const char *version, prepare_fn *use)
{
    struct model_host *host = x->server->options.model_host; /* x may be freed below */
    struct deployment *deployment;
    struct error err;
    enum status status = model_host_acquire(host, model, version, &deployment, &err);
    if (status == STATUS_OK) {
        status = use(x, &deployment, &err);
        model_host_release(host, deployment);
    }
    if (status != STATUS_OK)
        submit_or_refuse(x, status, &err);
}

enum status refuse_pipeline(const struct exchange *x, const char *model, const char *version,
                            struct error *err)
{
    char name[128];
    struct pipeline_config *stages;
    TRY(model_host_find_pipeline(x->server->options.model_host, model, version, name, &stages,
                                 err));
    if (!stages)
        return STATUS_OK;
    const enum status status =
        error_set(err, STATUS_INVALID,
                  "'%s' is a pipeline of models; only POST /predict?model=%s answers for it, as "
                  "JSON, lines of text or a picture, and without track, slices or labels; name one "
                  "of its models here, such as '%s'",
                  name, name, stages->stages[0].model);
    free(stages);
    return status;
}

enum status submission_choose_size(struct exchange *x, const struct shape *shape,
                                   struct deployment **deployment, struct error *err)
{
    const struct model *model = (*deployment)->model;
    const int h = model->input_channels_last ? 1 : 2;
    struct model_host *model_host = x->server->options.model_host;
    struct deployment *sized;
    struct error reported; /* not used: the later check of the shape reports the error */
    if (!(*deployment)->takes_images || shape->rank != 4 || shape->dims[h] > MODEL_SIDE_MAX ||
        shape->dims[h + 1] > MODEL_SIDE_MAX ||
        model_check_size(model, (int)shape->dims[h], (int)shape->dims[h + 1], &reported) !=
            STATUS_OK)
        return STATUS_OK;
    TRY(model_host_acquire_size(model_host, *deployment, (int)shape->dims[h],
                                (int)shape->dims[h + 1], SIZE_EXACT, &sized, err));
    model_host_release(model_host, *deployment);
    *deployment = sized;
    return STATUS_OK;
}

static void use_model(struct exchange *x)
{
    struct error err;
    if (refuse_pipeline(x, x->match.model, exchange_version(x), &err) == STATUS_OK)
        submission_with(x, x->match.model, exchange_version(x), x->use);
    else
        submit_or_refuse(x, err.status, &err);
}

static void use_model_or_offload(struct exchange *x)
{
    char texts[128];
    struct error ignored;
    if (model_host_find_text(x->server->options.model_host, x->match.model, texts, &ignored) ==
            STATUS_OK &&
        !strcmp(texts, x->match.model)) {
        exchange_wait(x, NULL, x->finish);
        exchange_offload(x, SIZE_MAX, use_model);
    } else {
        use_model(x);
    }
}

void submission_to_model(struct exchange *x, prepare_fn *use)
{
    x->use = use;
    submission_when_loaded(x, x->match.model, exchange_version(x), use_model_or_offload);
}

/* ---- texts ---- */

enum status texts_begin(struct request_texts *texts, size_t count, struct error *err)
{
    texts->items = alloc_array(count, sizeof *texts->items);
    texts->count = texts->items ? count : 0;
    return texts->items ? STATUS_OK : error_no_memory(err, "for the texts of a request");
}

void texts_done(struct request_texts *texts)
{
    text_rows_done(&texts->rows);
    free(texts->items);
    *texts = (struct request_texts){0};
}

enum status texts_make_rows(struct exchange *x, struct request_texts *texts,
                            const struct deployment *deployment, struct error *err)
{
    const struct text_input *text = &deployment->model->text;
    size_t bytes = (1 + text->input_count) * text->length * sizeof(int64_t);
    if (!deployment_takes_texts(deployment->model))
        return error_set(err, STATUS_INVALID,
                         "model '%s' takes no texts; put its tokenizer (tokenizer.json, or "
                         "vocab.json and merges.txt) into its folder",
                         deployment->model->name);
    TRY(check_memory(size_mul(texts->count, bytes, &bytes), "for the texts of a request", err));
    TRY(upload_charge(&x->body, bytes, err));
    return text_rows_make(text, texts->items, texts->count, texts->truncate, &texts->rows, err);
}

/* ---- limits ---- */

/* Reads a header's integer; without the header *ret does not change. */
static enum status request_limits_read_number(const struct exchange *x, const char *header,
                                              long least, long most, long *ret, struct error *err)
{
    const char *text = exchange_header(x, header);
    char *end = NULL;
    long value = -1;
    if (!text)
        return STATUS_OK;
    errno = 0;
    if (text[0] >= '0' && text[0] <= '9')
        value = strtol(text, &end, 10);
    if (!end || *end || errno || value < least || value > most)
        return error_set(err, STATUS_INVALID,
                         "%s is '%.40s'; it must be a whole number from %ld to %ld", header, text,
                         least, most);
    *ret = value;
    return STATUS_OK;
}

/* Reads a duration as Ollama does: "0", "30s", "5m"; "-1" means forever. */
static enum status read_keep_alive(const struct exchange *x, struct predict_request *request,
                                   struct error *err)
{
    const char *text = query_value(&x->query, "keep_alive");
    double ms = 0;
    if (!text)
        return STATUS_OK;
    if (strcmp(text, "-1") != 0 && (!text_read_ms(text, &ms) || ms > MAX_TIMEOUT_MS))
        return error_set(err, STATUS_INVALID,
                         "keep_alive is '%.40s'; it must be a time from 0 to a day, such as 0, 30s "
                         "or 5m, or -1 for ever",
                         text);
    request->has_keep_alive = true;
    request->keep_alive_ns = text[0] == '-' ? INT64_MAX : (int64_t)(ms * 1e6);
    return STATUS_OK;
}

enum status request_limits_read(const struct exchange *x, struct predict_request *request,
                                struct error *err)
{
    long timeout_ms = (long)x->server->options.default_timeout_ms, priority = 0;
    TRY(request_limits_read_number(x, "X-Request-Timeout-Ms", 1, MAX_TIMEOUT_MS, &timeout_ms, err));
    TRY(request_limits_read_number(x, "X-Priority", 0, QUEUE_PRIORITIES, &priority, err));
    TRY(read_keep_alive(x, request, err));
    const char *client = exchange_client(x);
    request->started = x->started;
    request->deadline = timeout_ms ? x->started + (int64_t)timeout_ms * 1000000 : 0;
    request->priority = (int)priority;
    request->client = client[0] ? penalty_client(client, NULL) : 0;
    return STATUS_OK;
}

enum status request_limits_of_body(struct predict_request *request, int64_t timeout_us,
                                   int64_t priority, struct error *err)
{
    /* Ignore a time limit of centuries: it exceeds the range of clock_now(). */
    if (timeout_us && timeout_us <= (INT64_MAX - request->started) / 1000) {
        const int64_t deadline = request->started + timeout_us * 1000;
        if (request->deadline == 0 || deadline < request->deadline)
            request->deadline = deadline;
    }
    if (priority > QUEUE_PRIORITIES)
        return error_set(err, STATUS_INVALID,
                         "priority is %lld; it may be 1 (goes first) to %d (goes last), 0 for the "
                         "default, %d",
                         (long long)priority, QUEUE_PRIORITIES, QUEUE_DEFAULT_PRIORITY);
    if (priority)
        request->priority = (int)priority;
    return STATUS_OK;
}

enum status request_limits_ask_room(struct exchange *x, struct predict_request *request,
                                    struct error *err)
{
    TRY(request_limits_read(x, request, err));
    return model_host_would_admit(x->server->options.model_host, request, 1, (size_t)x->expected,
                                  err);
}
