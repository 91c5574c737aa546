/* What the endpoints that infer have in common: from a whole body to a request of the model host,
 * and back to an answer.
 *
 *     handle        work_handle(): a large body goes to an offload thread
 *       start       the endpoint's own: reads the body into its work, then work_submit()
 *     model host    … and done, on a thread of the model host: so does a large answer
 *       finish      the endpoint's own: writes the answer
 *
 * An endpoint's work is a struct of its own that begins with a struct predict_request. */
#pragma once

#include "proto/v2.h"
#include "server/http/transport/exchange.h"

/* Bytes of a body, and of numbers in an answer, from which on the thread of the connection may be
 * kept from others for about a millisecond, whatever is in them. */
#define WORK_LARGE_BODY   ((size_t)128 << 10)
#define WORK_LARGE_ANSWER ((size_t)64 << 10)

/* Answers with what the response cache has for this request (true: the exchange must not be touched
 * afterwards), or prepares work_keep(). The beginning of every `start`. `reads_forms`: as for
 * response_cache_key(). */
bool work_answer_again(struct exchange *exchange, bool reads_forms);

/* Puts the answer into the response cache if every image is in it. The end of every `finish`. */
void work_keep(struct exchange *exchange);

/* `size` bytes of zeros as exchange->work, and the request in their beginning ready for
 * work_submit(). NULL when out of memory. */
void *work_create(struct exchange *exchange, size_t size, void (*finish)(struct exchange *exchange),
                  void (*free_work)(struct exchange *exchange));

/* For messages, which name their model in the body: as if the path did. */
void work_name_model(struct exchange *exchange, const struct v2_named *named);

/* Frees what work_create() made, and the request's images; for the endpoint's free_work. */
void work_free(struct exchange *exchange);

/* request->images of `count`, zeroed. */
enum status work_images(struct predict_request *request, size_t count, struct error *err) MUST_USE;

/* The handler: calls `start` here or, for a large body, on an offload thread. `start` is to
 * end in work_submit() or in respond_error(). */
void work_handle(struct exchange *exchange, void (*start)(struct exchange *exchange));

/* Most bytes that `rows` rows of an output take until they have been sent: the tensors, and their
 * text, as JSON or as bytes. Of an output whose shape depends on data only what is sure is counted;
 * the rest is when it is there. SIZE_MAX: more than can be counted. */
size_t work_output_bytes(const struct served_tensor *output, size_t rows, bool as_json);

/* Charges what the answer may take beside what it has been charged so far. From `prepare`, for raw
 * outputs; predictions are charged by work_submit(). STATUS_OVERLOADED when that does not fit now,
 * STATUS_TOO_LARGE when it never will. */
enum status work_expect_answer(struct exchange *exchange, size_t bytes, struct error *err) MUST_USE;

/* For a request that has been divided (request->parts), before it is submitted: its parts are
 * submitted one after the other, from offload threads. Charges the pixels of its photos; errors as
 * of work_expect_answer(). */
enum status work_in_parts(struct exchange *exchange, struct predict_request *request,
                          struct error *err) MUST_USE;

/* Hands exchange->work to the model host: `finish` answers once it is done; a refusal is answered
 * here. The exchange must not be touched afterwards. */
void work_submit(struct exchange *exchange);

/* The same, or an error: the end of every `start`. */
void work_submit_or(struct exchange *exchange, enum status status, const struct error *err);

/* For all but /predict's own JSON, which alone shows crops. STATUS_INVALID with a sentence if this
 * model of a request (`model` NULL: the default; `version` NULL: the newest) is a pipeline.json.
 * STATUS_NO_MEMORY. */
enum status work_refuse_pipeline(const struct exchange *exchange, const char *model,
                                 const char *version, struct error *err) MUST_USE;

/* For a `start` whose model the path names, and which is no pipeline: acquires the model, lets
 * `prepare` read the body, and submits. `prepare` may put another one that it acquired in the place
 * of *served, which it releases. exchange->work may be NULL: out of memory. */
void work_submit_served(struct exchange *exchange,
                        enum status (*prepare)(struct exchange *exchange,
                                               struct deployment **deployment, struct error *err));
