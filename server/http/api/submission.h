/* Turns a complete body into a request of the model host, and the result into an answer.
 *
 *     handle        submission_handle(): reads a large body on an offload thread
 *       start       of the endpoint: reads the body into its work, then submits
 *     model host    … submission_done() on its thread: writes a large answer on an offload thread
 *       finish      of the endpoint: writes the answer
 *
 * An endpoint's work is its own struct that begins with a struct predict_request. */
#pragma once

#include "models/folder/text_input.h"
#include "proto/v2.h"
#include "server/http/transport/exchange.h"
#include "server/schedule/runtime/model_host.h"

/* Sizes of a body and of an answer's numbers that take about a millisecond of CPU time. */
#define SUBMISSION_LARGE_BODY   ((size_t)128 << 10)
#define SUBMISSION_LARGE_ANSWER ((size_t)64 << 10)

/* Answers from the response cache and returns true; do not touch the exchange then. If the cache
 * has no answer, prepares store_in_cache() and returns false. Call this function first in `start`.
 * `reads_forms`: see response_cache_key(). */
bool answer_from_cache(struct exchange *exchange, bool reads_forms);

/* Caches the answer if every image succeeded. Call this function last in `finish`, unless the
 * answer depends on more than the request and its model. */
void store_in_cache(struct exchange *exchange);

/* Allocates `size` zeroed bytes as exchange->work and prepares the request at their beginning for
 * submit_work(). When out of memory, answers and returns NULL; do not touch the exchange then. */
void *submission_create(struct exchange *exchange, size_t size, exchange_fn *finish,
                        exchange_fn *free_work);

/* Frees the request's results and images; for the endpoint's free_work. */
void submission_free(struct exchange *exchange);

/* Allocates request->images. */
enum status submission_images(struct predict_request *request, size_t count,
                              struct error *err) MUST_USE;

/* For a route's handler: calls `start` on this thread or, for a large body, on an offload thread.
 * `start` must answer, or call a function of this header that submits. */
void submission_handle(struct exchange *exchange, exchange_fn *start);

/* Returns the maximum number of bytes that `rows` rows of an output occupy until they are sent: the
 * tensors and their text, as JSON or bytes. If the output's shape depends on data, only the part
 * that is known counts. SIZE_MAX on overflow. */
size_t submission_output_bytes(const struct served_tensor *output, size_t rows, bool as_json);

/* Charges additional memory for the answer. Call it from `prepare` for raw outputs; submit_work()
 * charges predictions. STATUS_OVERLOADED: no room now; STATUS_TOO_LARGE: more than the limit. */
enum status charge_answer(struct exchange *exchange, size_t bytes, struct error *err) MUST_USE;

/* On an offload thread, when the photos of a request with parts are decoded: submits the next part,
 * or calls exchange->next after the last one. Do not touch the exchange afterwards. */
void submit_next_part(struct exchange *exchange);

/* Submits exchange->work to the model host; `finish` answers later. A refusal is answered here. Do
 * not touch the exchange afterwards. */
void submit_work(struct exchange *exchange);
/* Like submit_work(), for another request, whose context is the exchange. */
void submission_submit(struct exchange *exchange, struct predict_request *request);

/* Calls submit_work() or, if `status` is an error, answers with it. */
void submit_or_refuse(struct exchange *exchange, enum status status, const struct error *err);

/* Acquires a version of a model for a call of `use`, which must answer or submit, or return an
 * error that becomes the answer. Do not touch the exchange afterwards. */
void submission_with(struct exchange *exchange, const char *model, const char *version,
                     prepare_fn *use);

/* Calls `run` if the model that `request` names is loaded. Otherwise requests its load, and calls
 * `run` on an offload thread when the load has ended. Sets request->on_done. Answers with the error
 * if the model cannot be loaded in time. Do not touch the exchange afterwards. */
void submission_await(struct exchange *exchange, struct predict_request *request, exchange_fn *run);

/* Returns STATUS_INVALID if the model is a pipeline, for APIs whose answers cannot show crops.
 * `model` NULL means the default model, `version` NULL the newest version. STATUS_NO_MEMORY. */
enum status refuse_pipeline(const struct exchange *exchange, const char *model, const char *version,
                            struct error *err) MUST_USE;

/* Calls `run` once `model` (NULL: the default) and `version` (NULL: the newest) can answer the
 * request in exchange->work: now, or on an offload thread after the model's load. As `start` in
 * submission_handle(), `run` must answer or submit. Refuses the request if the model cannot be
 * loaded in time. Do not touch the exchange afterwards. */
void submission_when_loaded(struct exchange *exchange, const char *model, const char *version,
                            exchange_fn *run);

/* Replaces *deployment, which the caller has acquired, by the model compiled for the height and
 * width of a tensor of this shape. If the model does not support the size, *deployment stays, and
 * the later check of the shape reports the error. Errors of model_host_acquire_size(). */
enum status submission_choose_size(struct exchange *exchange, const struct shape *shape,
                                   struct deployment **deployment, struct error *err) MUST_USE;

/* Like submission_with(), for the model in the path once the model can answer; refuses pipelines.
 * If the model takes texts, `use` runs on an offload thread, because tokenizing is too slow for a
 * connection's thread. */
void submission_to_model(struct exchange *exchange, prepare_fn *use);

/* ---- texts of a request as tokens for their model ---- */

/* A zeroed struct means that the request has no texts. Free with texts_done(). */
struct request_texts {
    struct text_item *items; /* owned; the texts and tokens that the items point to are borrowed */
    size_t count;
    bool truncate;   /* truncate a text that is too long; otherwise refuse it */
    char model[128]; /* the model for these texts */
    struct text_rows rows;
};

/* Makes room for `count` texts. STATUS_NO_MEMORY. */
enum status texts_begin(struct request_texts *texts, size_t count, struct error *err) MUST_USE;
void texts_done(struct request_texts *texts);

/* Writes texts->rows, the deployment's inputs for the texts, and charges them to the body. Errors:
 * those of text_rows_make() and upload_charge(); STATUS_INVALID if the model takes no texts. */
enum status texts_make_rows(struct exchange *x, struct request_texts *texts,
                            const struct deployment *deployment, struct error *err) MUST_USE;

/* ---- limits of a request ----
 *
 *     X-Request-Timeout-Ms: 250     from the request line to the answer; default: --default-timeout
 *     X-Priority: 1                 1 goes first, 8 last; 0 or absent: the default, 4
 *
 * The client is the name of its API key, otherwise its address. */

/* Sets started, deadline, priority and client, and keep_alive from the query. STATUS_INVALID: a
 * number or time is malformed or out of range. */
enum status request_limits_read(const struct exchange *exchange, struct predict_request *request,
                                struct error *err) MUST_USE;

/* Applies the V2 protocol's `timeout`, in microseconds from request->started, and `priority`;
 * neither is negative. 0: not set, so the header's value applies. If there are several time limits,
 * the shortest applies. STATUS_INVALID: a priority above 8. */
enum status request_limits_of_body(struct predict_request *request, int64_t timeout_us,
                                   int64_t priority, struct error *err) MUST_USE;

/* For a route's admit: asks model_host_would_admit(), and sets Retry-After if that refuses. The
 * caller has set model, version and size of `request` from the request line and headers. */
enum status request_limits_ask_room(struct exchange *exchange, struct predict_request *request,
                                    struct error *err) MUST_USE;
