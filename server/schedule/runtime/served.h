/* A served version of a model: its inputs, outputs and statistics.
 *
 * A model takes photos (decoded and preprocessed; classes and labels out) and raw tensors (the
 * file's own inputs and outputs). `struct served` describes both when the model has been compiled;
 * afterwards only counters change. It is reference-counted: the table of models holds one reference
 * and every request another. So names and labels outlive the threads and buffers of a version that
 * was replaced. */
#pragma once

#include <stdatomic.h>

#include "engine/runtime/session.h"
#include "models/folder/model.h"
#include "models/tasks/tensor_copy.h"
#include "server/schedule/policy/batcher.h"
#include "server/schedule/runtime/meters.h"

/* Counts and nanoseconds since this version is served. They only grow. */
struct served_count {
    _Atomic uint64_t count, ns;
};

struct served_batch {
    struct served_count input, infer, output;
};

struct served_stats {
    _Atomic uint64_t last_ms;    /* wall clock, milliseconds since 1970, of the last request */
    _Atomic uint64_t rows;       /* images and rows answered without an error */
    _Atomic uint64_t executions; /* forward passes that succeeded */
    /* One a request: from its first byte to its answer, and of its slowest image in each phase. */
    struct served_count success, fail, queue, input, infer, output;
    /* Of the response cache: with the time of the search, and for a miss that of keeping it. */
    struct served_count cache_hit, cache_miss;
    struct served_batch batches[BATCHER_MAX_BATCH + 1]; /* by size of a forward pass */
};

struct served {
    struct model *model; /* owned; its graph is gone */
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
    size_t image_input;                     /* fed as [H, W, C] of image_numbers; SIZE_MAX: none */
    struct image_numbers image_numbers;
    bool takes_images;   /* photos can be sent: the image is the only input */
    size_t output;       /* index of the class scores, or of the task's first output */
    size_t class_count;  /* of a classifier; 0: not known before a run */
    char no_answer[320]; /* a sentence: why photos get no answer; "" if they do */
    struct served_stats stats;
    struct meters meters; /* its scheduler's, for requests that outlive that */

    _Atomic int refs;          /* private to served.c */
    struct instance *instance; /* private to the model host; NULL once it has ended */
};

/* Whether a model's file leaves the first dimension of its inputs to the caller, so that rows of
 * several requests can share a forward pass; else its session is compiled for one row. */
bool served_may_batch(const struct model *model);

/* Whether photos are answered with classes. */
bool served_is_classifier(const struct served *served);

/* The input that photos are fed to in the session (session_options.image_input): the model's image
 * input when it is the only one, else SIZE_MAX. */
size_t served_image_input(const struct model *model);

/* Describes `model`, compiled into `session`. Takes over `model` on success only. STATUS_SHAPE when
 * the preprocessing makes other sizes than the session takes; STATUS_NO_MEMORY. */
enum status served_create(struct model *model, const struct session *session, struct served **ret,
                          struct error *err) MUST_USE;

struct served *served_ref(struct served *served);
void served_unref(struct served *served); /* the last one frees the model; NULL is fine */

/* Counts a request whose images are all answered. Called before its on_done. */
struct predict_request;
void served_note_request(struct served *served, const struct predict_request *request);

/* Counts a request that began at `started` (clock_now()) and is answered from the response cache,
 * or whose answer has just been put there; `ms`: what the cache took of it. */
void served_note_cache_hit(struct served *served, int64_t started, double ms);
void served_note_cache_miss(struct served *served, double ms);

/* Counts a forward pass of `rows` rows: milliseconds of its slowest row's preparation and of the
 * pass. Called before its rows are answered, so that a client with an answer finds it counted. */
void served_note_run(struct served *served, int rows, double input_ms, double infer_ms);

/* Counts the milliseconds that answering those rows took. */
void served_note_output(struct served *served, int rows, double output_ms);
