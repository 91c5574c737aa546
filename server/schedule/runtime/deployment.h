/* A deployment: what serves one version of a model: its description, its lanes (a thread and a
 * compiled session on each device), its scheduler, its counters.
 *
 *     deployment_create ─▶ serves ─▶ deployment_retire: no new requests, answers what it has
 *                                       └─▶ deployment_end: joins threads, frees all but this
 *
 * A model takes photos (decoded and preprocessed; classes and labels out) and raw tensors (the
 * file's own inputs and outputs). The description of both does not change once the model has been
 * compiled; afterwards only counters do. A deployment is reference-counted: the table of models
 * holds one reference and every request another. So names and labels outlive the threads and
 * buffers of a version that was replaced.
 *
 * A model whose file leaves height and width free has a deployment for each size that clients asked
 * for lately (model_table.h). */
#pragma once

#include <stdatomic.h>

#include "engine/runtime/session.h"
#include "models/folder/model.h"
#include "models/tasks/tensor_copy.h"
#include "server/precision/precision.h"
#include "server/schedule/policy/batcher.h"
#include "server/schedule/runtime/meters.h"

/* Counts and nanoseconds since this version was loaded. They only grow. */
struct deployment_count {
    _Atomic uint64_t count, ns;
};

struct deployment_batch {
    struct deployment_count input, infer, output;
};

struct deployment_stats {
    _Atomic uint64_t last_ms;    /* wall clock, milliseconds since 1970, of the last request */
    _Atomic uint64_t rows;       /* images and rows answered without an error */
    _Atomic uint64_t executions; /* forward passes that succeeded */
    /* Per request: from first byte to answer, and its slowest image in each phase. */
    struct deployment_count success, fail, queue, input, infer, output;
    /* Of the response cache: time to look up, and for a miss to store. */
    struct deployment_count cache_hit, cache_miss;
    struct deployment_batch batches[BATCHER_MAX_BATCH + 1]; /* by size of a forward pass */
};

/* The most sizes, besides its own, that a model is compiled for at a time. */
#define DEPLOYMENT_SIZES 4

/* How the sessions of a deployment are made. */
enum deployment_plan {
    PLAN_MEASURE, /* layers whose kernels were not measured yet are measured */
    PLAN_KNOWN,   /* their kernels are chosen by rule */
    PLAN_FIRST, /* the same, and single images alone are compiled: for a quick start on CPUs; where
                   memory has no room for a second deployment beside it, PLAN_MEASURE */
};

struct deployment {
    struct model *model; /* owned; its graph is gone once it is compiled */
    /* Another one for each load of a version, and each change of precision; the same for all its
     * sizes. */
    _Atomic uint64_t generation;
    /* The leading dimension of every input and output is the batch: a request may have any number
     * of rows, which run together with neighbours'. Otherwise a request is one row. */
    bool has_rows;
    int max_batch; /* rows of a forward pass */
    size_t input_count, output_count;
    struct served_tensor *inputs, *outputs; /* in the file's order; owned */
    size_t max_rows;                        /* of a request: the queue's bound */
    size_t image_input;                     /* fed as [H, W, C] of image_dtype; SIZE_MAX: none */
    enum dtype image_dtype;
    bool takes_images;             /* photos can be sent: deployment_image_input() */
    size_t output;                 /* index of the class scores, or of the task's first output */
    size_t class_count;            /* of a classifier; 0: not known before a run */
    char no_answer[320];           /* a sentence: why photos get no answer; "" if they do */
    struct text_cache *text_cache; /* of a model that takes texts, or of photos for a decoder of
                                      masks; owned; NULL keeps nothing */
    struct deployment_stats stats;
    struct meters meters; /* its scheduler's, for requests that outlive that */

    struct scheduler *scheduler; /* as `lanes`: until deployment_end */
    struct lane *lanes[DEVICE_MAX];
    size_t lane_count;
    double load_ms; /* CPU time of the thread that created it */
    enum deployment_plan plan;
    _Atomic int refs; /* private to deployment.c */

    /* The model host's, guarded by its lock. */
    struct precision_choice choices[DEVICE_KINDS]; /* by enum device_kind; `why` "": none */
    size_t users;  /* callers between model_host_acquire and model_host_release, or within submit */
    bool has_left; /* the table and its list of what retires: its scheduler must not be used */
    struct deployment *next_retiring;
    uint64_t serial;  /* another one for each deployment that was put into the table */
    uint64_t used_at; /* of a size: number of its last use, counted over all sizes of the model */
};

/* Whether a model's file leaves the first dimension of its inputs to the caller, so that rows of
 * several requests can share a forward pass; else its session is compiled for one row. */
bool deployment_may_batch(const struct model *model);

/* Whether photos are answered with classes. */
bool deployment_is_classifier(const struct deployment *deployment);

/* True if the model answers texts with vectors. */
bool deployment_takes_texts(const struct model *model);

/* The input that photos are fed to in the session (session_options.image_input): the model's image
 * input when it is the only one, or the others take words; else SIZE_MAX. */
size_t deployment_image_input(const struct model *model);

/* Fills in the description of deployment->model, compiled into `session`. STATUS_SHAPE when the
 * preprocessing makes other sizes than the session takes; STATUS_NO_MEMORY. */
enum status deployment_describe(struct deployment *deployment, const struct session *session,
                                struct error *err) MUST_USE;

struct deployment *deployment_ref(struct deployment *deployment);
/* References at present: the creator's and one for each request. */
int deployment_refs(const struct deployment *deployment);
void deployment_unref(
    struct deployment *deployment); /* the last one frees the model; NULL is fine */

/* Counts a request whose images are all answered. Called before its on_done. */
struct predict_request;
void deployment_note_request(struct deployment *deployment, const struct predict_request *request);

/* Counts a request that began at `started` (clock_now()) and is answered from the response cache,
 * or whose answer has just been put there; `ms`: the cache's share of the time. */
void deployment_note_cache_hit(struct deployment *deployment, int64_t started, double ms);
void deployment_note_cache_miss(struct deployment *deployment, double ms);

/* Counts a forward pass of `rows` rows: milliseconds of its slowest row's preparation and of the
 * pass. Called before its rows are answered, so that a client with an answer finds it counted. */
void deployment_note_run(struct deployment *deployment, int rows, double input_ms, double infer_ms);

/* Counts the milliseconds that answering those rows took. */
void deployment_note_output(struct deployment *deployment, int rows, double output_ms);
