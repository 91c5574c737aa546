/* A deployment serves one version of a model. It has the model's description, a lane (a thread and
 * a compiled session) on each device, a scheduler and counters.
 *
 *     deployment_create ─▶ serves ─▶ deployment_retire: no new requests, answers admitted ones
 *                                       └─▶ deployment_end: joins threads, frees sessions, buffers
 *
 * A model takes photos, which the server decodes and preprocesses, or raw tensors in the form of
 * the file's inputs. Once the model is compiled, only counters and the model host's members change.
 * A deployment is reference-counted: the table of models and every request hold one reference. So a
 * replaced version's names and labels outlive its threads and buffers.
 *
 * A model whose file does not fix height and width has a deployment for each recently used size
 * (model_table.h). */
#pragma once

#include <pthread.h>
#include <stdatomic.h>

#include "engine/runtime/session.h"
#include "models/folder/model.h"
#include "models/tasks/tensor_copy.h"
#include "server/precision/precision.h"
#include "server/schedule/policy/batcher.h"
#include "server/schedule/runtime/meters.h"

/* A number of events and the sum of their durations. */
struct deployment_count {
    uint64_t count, ns;
};

/* Counts since this version was loaded. */
struct deployment_stats {
    uint64_t last_inference_ms; /* wall-clock time of the last request, milliseconds since 1970 */
    uint64_t inference_count;   /* images and rows answered without an error */
    uint64_t execution_count;   /* successful forward passes */
    /* success, fail: requests; their times from the first byte to the answer. queue, input, infer,
     * output: successful requests; the time of their slowest image in the phase. cache_hit:
     * requests answered from the response cache; the time of the look-up. cache_miss: answers
     * stored in this cache; the time to store them. */
    struct deployment_count success, fail, queue, input, infer, output, cache_hit, cache_miss;
    struct deployment_batch {
        struct deployment_count input, infer, output;
    } batches[BATCHER_MAX_BATCH + 1]; /* index: number of images in a pass */
};

/* The most image sizes, besides the model's own, for which a model is compiled at a time. */
#define DEPLOYMENT_SIZES 4

struct deployment {
    struct model *model; /* owned; has no graph after the compilation */
    /* Changes with each load of the version or change of its precision; its sizes share it. */
    _Atomic uint64_t generation;
    /* The leading dimension of every input and output is the batch: a request may have any number
     * of rows, which can run together with other requests' rows. Otherwise a request is one row. */
    bool has_rows;
    int max_batch; /* rows per forward pass */
    size_t input_count, output_count;
    struct served_tensor *inputs, *outputs; /* in the file's order; owned */
    size_t max_rows;     /* most rows of a request: model_host_options.max_queue */
    size_t image_input;  /* index of the input for photos, [H, W, C] float32; SIZE_MAX: none */
    bool takes_images;   /* requests can contain photos: deployment_image_input() */
    size_t output;       /* index of the class scores, or of the task's first output */
    size_t class_count;  /* classes of a classifier; 0: unknown before a run, or no classifier */
    char no_answer[320]; /* a sentence: why photos get no answer; "" if they get one */
    struct text_cache *text_cache; /* of texts, or of photos for a mask decoder; owned; or NULL */
    pthread_mutex_t stats_lock;    /* guards `stats` */
    struct deployment_stats stats;
    struct meters
        meters; /* the scheduler's metrics; also used by requests that outlive the scheduler */

    struct scheduler *scheduler; /* like `lanes`, exists until deployment_end() */
    struct lane *lanes[DEVICE_MAX];
    size_t lane_count;
    double load_ms;   /* CPU time of the thread that created the deployment */
    _Atomic int refs; /* the creator's and one for each request */

    /* Members for the model host, guarded by its lock. */
    struct precision_choice choices[DEVICE_KINDS]; /* index: device_kind; unset while `why` is "" */
    size_t users;  /* callers between model_host_acquire() and model_host_release(), or in submit */
    bool has_left; /* it is neither in the table nor in `retiring`: do not use its scheduler */
    struct deployment *next_retiring;
    TAILQ_ENTRY(deployment) of_host; /* in model_host.deployments */
    int64_t used_at;                 /* clock_now() when this size was last used */
};

/* True if a model's file does not fix the first dimension of its inputs, so that rows of several
 * requests can share a forward pass. Otherwise its session is compiled for one row. */
bool deployment_may_batch(const struct model *model);

/* True if the model answers texts with vectors. */
bool deployment_takes_texts(const struct model *model);

/* The input for photos in the session (session_options.image_input): the model's image input, if it
 * is the only input or the other inputs take words. Otherwise SIZE_MAX. */
size_t deployment_image_input(const struct model *model);

/* Fills in the inputs, outputs and limits of `deployment`, whose model `session` has compiled.
 * `run_memory` is charged for cached outputs. STATUS_SHAPE when the preprocessing and the session
 * have different sizes; STATUS_NO_MEMORY. */
enum status deployment_describe(struct deployment *deployment, const struct session *session,
                                struct memory_budget *run_memory, struct error *err) MUST_USE;

struct deployment *deployment_ref(struct deployment *deployment);
void deployment_unref(
    struct deployment *deployment); /* the last reference frees the model; NULL is fine */

/* Counts a request when all its images are answered. Called before its on_done. */
struct predict_request;
void deployment_note_request(struct deployment *deployment, const struct predict_request *request);

/* Hit: counts a request that began at `started` (clock_now()) and was answered from the response
 * cache; the look-up took `ms`. Miss: counts an answer that was stored in the cache; storing it
 * took `ms`. */
void deployment_note_cache_hit(struct deployment *deployment, int64_t started, double ms);
void deployment_note_cache_miss(struct deployment *deployment, double ms);

/* Counts a successful forward pass of `rows` rows: `input_ms` is the time to prepare the slowest
 * row, `infer_ms` the duration of the pass. Call it before the rows are answered, so that a client
 * finds its rows counted. */
void deployment_note_run(struct deployment *deployment, int rows, double input_ms, double infer_ms);

/* Counts the time to answer the rows of a successful forward pass. */
void deployment_note_output(struct deployment *deployment, int rows, double output_ms);
