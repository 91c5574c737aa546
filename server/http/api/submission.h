/* Turns a complete body into a request of the model host, and the result into an answer.
 *
 *     handle        submission_handle(): moves a large body to an offload thread
 *       start       the endpoint's own: reads the body into its work, then submit_work()
 *     model host    … submission_done() on its thread: moves a large answer to an offload thread
 *       finish      the endpoint's own: writes the answer
 *
 * An endpoint's work is its own struct that begins with a struct predict_request. */
#pragma once

#include "proto/v2.h"
#include "server/http/transport/exchange.h"

/* Sizes of a body and of an answer's numbers that take about a millisecond of CPU time. */
#define SUBMISSION_LARGE_BODY   ((size_t)128 << 10)
#define SUBMISSION_LARGE_ANSWER ((size_t)64 << 10)

/* Answers from the response cache and returns true; do not touch the exchange then. Otherwise it
 * prepares store_in_cache(). Every `start` begins with it. `reads_forms`: as for
 * response_cache_key(). */
bool answer_from_cache(struct exchange *exchange, bool reads_forms);

/* Caches the answer if every image succeeded. Every `finish` ends with it. */
void store_in_cache(struct exchange *exchange);

/* Allocates `size` zeroed bytes as exchange->work and prepares the request at their beginning for
 * submit_work(). NULL when out of memory. */
void *submission_create(struct exchange *exchange, size_t size,
                        void (*finish)(struct exchange *exchange),
                        void (*free_work)(struct exchange *exchange));

/* If an image of exchange->work failed, answers with its error and returns true. `row` names one of
 * several. */
bool respond_failed_row(struct exchange *exchange, const char *row);

/* Sets the model that a message names in its body. */
void submission_name_model(struct exchange *exchange, const struct v2_named *named);

/* Frees exchange->work and the request's images; for the endpoint's free_work. */
void submission_free(struct exchange *exchange);

enum status submission_images(struct predict_request *request, size_t count,
                              struct error *err) MUST_USE;

/* The handler: calls `start` on this thread or, for a large body, on an offload thread. `start`
 * must end in submit_work() or respond_error(). */
void submission_handle(struct exchange *exchange, void (*start)(struct exchange *exchange));

/* Returns the most bytes that `rows` rows of an output occupy until they are sent: the tensors and
 * their text, as JSON or bytes. If its shape depends on data, only the known part counts. SIZE_MAX
 * on overflow. */
size_t submission_output_bytes(const struct served_tensor *output, size_t rows, bool as_json);

/* Charges additional memory for the answer. Call it from `prepare` for raw outputs; submit_work()
 * charges predictions. STATUS_OVERLOADED: no room now; STATUS_TOO_LARGE: never. */
enum status charge_answer(struct exchange *exchange, size_t bytes, struct error *err) MUST_USE;

/* Call it before submitting a request with parts (request->parts). Offload threads submit the parts
 * one after the other. Charges the pixels of its images; errors as charge_answer(). */
enum status submission_in_parts(struct exchange *exchange, struct predict_request *request,
                                struct error *err) MUST_USE;

/* On an offload thread: submits the next part of a request in parts whose photos are decoded, or
 * calls exchange->next after the last part. The exchange must not be touched afterwards. */
void submit_next_part(struct exchange *exchange);

/* Submits exchange->work to the model host; `finish` answers later. A refusal is answered here. Do
 * not touch the exchange afterwards. */
void submit_work(struct exchange *exchange);
/* Does the same for another request, whose context is the exchange. */
void submission_submit(struct exchange *exchange, struct predict_request *request);

/* Submits, or answers with the error if `status` is one. Every `start` ends with it. */
void submit_or_refuse(struct exchange *exchange, enum status status, const struct error *err);

/* `request` names the other half of a model. Calls `run` once that half is loaded: at once, or from
 * request->on_done. Answers with the error if it cannot be loaded in time. Call it from an offload
 * thread; do not touch the exchange afterwards. */
void submission_await(struct exchange *exchange, struct predict_request *request,
                      void (*run)(struct exchange *exchange));

/* Refuses a pipeline, as only /predict's own JSON can show crops. STATUS_INVALID if the requested
 * model (`model` NULL: the default; `version` NULL: the newest) is one. STATUS_NO_MEMORY. */
enum status refuse_pipeline(const struct exchange *exchange, const char *model, const char *version,
                            struct error *err) MUST_USE;

/* Calls `run` once `model` (NULL: the default) and `version` (NULL: the newest) can answer the
 * request in exchange->work: at once, or on an offload thread when the model is loaded. `run` must
 * end as `start` does. Refuses the request if the model cannot be loaded in time. Do not touch the
 * exchange afterwards. */
void submission_when_loaded(struct exchange *exchange, const char *model, const char *version,
                            void (*run)(struct exchange *exchange));

/* The same for the model in the path; exchange->work may be NULL: out of memory. */
void submission_when_named(struct exchange *exchange, void (*run)(struct exchange *exchange));

/* Replaces *deployment, which the caller has acquired, by the model compiled for the height and
 * width of a tensor of this shape. If the model does not support the size, *deployment stays, and
 * the later check of the shape reports the error. Errors of model_host_acquire_size(). */
enum status submission_choose_size(struct exchange *exchange, const struct shape *shape,
                                   struct deployment **deployment, struct error *err) MUST_USE;

/* For a route with the model in its path; refuses pipelines. Acquires the model once it can answer,
 * calls `prepare` to read the body, and submits. If the model takes texts, `prepare` runs on an
 * offload thread, because tokenizing is too slow for a connection's thread. exchange->work may be
 * NULL: out of memory. Do not touch the exchange afterwards. */
void submission_to_model(struct exchange *exchange, prepare_fn *prepare);
