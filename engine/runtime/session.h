/* A session: one model on one device, compiled for a set of batch sizes.
 *
 * session_create() does everything that can be slow or fail: optimise, plan, pack weights, compile,
 * measure. session_submit() and session_collect(), or session_run() for both, only run. A run on a
 * CPU allocates memory only for data-dependent parts of the graph. Nothing is kept for a backward
 * pass. Only one thread at a time may use a session. */
#pragma once

#include "engine/backend/run.h"
#include "engine/backend/shared_arena.h"
#include "engine/graph/graph.h"

const char *precision_name(enum precision precision); /* "fp32", "auto" … */

/* The caller's layout of the image input (session_options.image_input). */
enum image_layout {
    IMAGE_AS_DECLARED, /* as the file declares it, for raw tensors */
    IMAGE_NHWC_F32,    /* [N, H, W, C] float32, as decoders write it, whatever the file declares */
};

#define SESSION_MAX_BATCHES 16

struct session_batch {
    int size;
    double milliseconds;     /* L(b), the duration of a pass; 0: not measured */
    size_t activation_bytes; /* size of the planned arena */
    bool in_streams;         /* L(b) was measured with session_request.in_streams */
};

struct session_options {
    struct device_id device;
    enum precision precision;
    int threads;   /* number of threads that compute on a CPU; 0: device_cpu_threads(), but 1 for a
                      small model, which more threads would slow down */
    int max_batch; /* largest batch; sizes 1, 2, 4 … max_batch are compiled */
    int batches[SESSION_MAX_BATCHES]; /* ascending sizes to compile in place of 1, 2, 4 …; 0 ends
                                         the list */
    bool trial; /* compile only sizes 1 and max_batch, and measure nothing, because the session is
                   only compared with another session */
    /* L(b) from an earlier session of the model, by ascending size; size 0 ends the list. If the
     * list has every compiled size, a session on a CPU does not measure, unless part of the graph
     * depends on data. */
    struct session_batch known[SESSION_MAX_BATCHES];
    size_t image_input; /* index of the image in graph->inputs; SIZE_MAX: none */
    enum image_layout image_layout;
    /* format of image_input's pixels as bytes; NULL: no bytes. Only session_create() reads it */
    const struct session_pixels *pixels;
    bool image_channels_last;      /* the file declares [N, H, W, C], not [N, C, H, W] */
    int image_height, image_width; /* used if the file leaves H and W free */
    size_t memory_limit; /* bytes for weights, activations and the caller's inputs; 0 = no limit */
    size_t batch_memory; /* limit for all sizes but the smallest, to leave memory for other models;
                            0: memory_limit; ignored if max_batch_is_pinned */
    size_t batch_activations; /* limit for the activations of each size but the smallest; 0: none */
    struct memory_budget *run_memory; /* budget that the data-dependent parts of all sessions' runs
                                         share; must outlive the sessions; may be NULL */
    bool poison;                      /* for tests: a GPU fills activations with NaN before a run */
    bool max_batch_is_pinned; /* if max_batch does not fit memory_limit, report an error instead of
                                 compiling only the batches that fit, with a note */
    /* The caller allocates inputs for input_batches batches and input_images images, and
     * memory_limit includes these inputs. */
    size_t input_batches, input_images;
    /* session_create() calls on_progress(), on the thread of its caller, with the current phase
     * ("compiling") and the finished share, 0 … 1. NULL: no calls. */
    void (*on_progress)(void *context, const char *phase, double fraction);
    void *progress_context;
    const _Atomic int *cancel; /* if *cancel becomes 1, session_create() returns STATUS_CANCELLED,
                                  and so do runs before the first session_set_stop(). May be NULL */
};

/* Allocates zeroed memory for inputs of sessions on `device`. It is aligned to at least 64 bytes,
 * and for a GPU it is page-locked. A CPU's pages are allocated on first write. Any thread. Errors:
 * STATUS_NO_MEMORY, STATUS_DEVICE. session_buffer_free() accepts NULL and works after the sessions
 * are freed. */
enum status session_buffer_create(struct device_id device, size_t bytes, void **ret,
                                  struct error *err) MUST_USE;
void session_buffer_free(struct device_id device, void *data);

/* Describes one input or output of a session for one image. */
struct session_tensor {
    const char *name;
    enum dtype dtype;
    struct shape shape; /* the batch dimension, if any, is 1 */
};

struct session_info {
    struct device_id device;
    enum precision precision;
    int threads;
    size_t parameter_bytes;  /* packed weights on the device */
    size_t activation_bytes; /* size of the arena, for the largest batch */
    int depth;               /* number of runs that may be in flight: session_submit() */
    int streams;             /* images that a CPU's threads can compute at the same time:
                                session_request.in_streams; 0: one batch at a time */
    bool takes_pixels;       /* images may be passed as bytes (struct session_pixels) */
    bool batched;   /* false: graph or memory do not allow batches, so images are run one by one */
    bool rows_mix;  /* images may affect each other's results in a batch, so they never run
                       together */
    char note[160]; /* a sentence for the log ("images are run one by one: …"), or "" */
    size_t node_count; /* number of nodes after the passes */
    /* For batch size 1. Output shapes of data-dependent graphs may be SHAPE_NONE. */
    const struct session_tensor *inputs, *outputs;
    size_t input_count, output_count;
    size_t batch_count;
    struct session_batch batches[SESSION_MAX_BATCHES]; /* ascending sizes */
};

/* Returns the maximum number of images in one run. */
static inline int session_max_batch(const struct session_info *info)
{
    return info->batched ? info->batches[info->batch_count - 1].size : 1;
}

struct session;

/* Only reads the graph, which the caller may free afterwards. Errors: STATUS_UNSUPPORTED /
 * STATUS_SHAPE / STATUS_MODEL (the model), STATUS_IO (the model's file changed), STATUS_DEVICE,
 * STATUS_NO_MEMORY, STATUS_DEVICE_MEMORY, STATUS_CANCELLED. On success the caller owns *ret
 * (session_free(), NULL is fine). */
enum status session_create(const struct graph *graph, const struct session_options *options,
                           struct session **ret, struct error *err) MUST_USE;
void session_free(struct session *session);

/* Sets *ret to a copy of the graph, with shapes inferred for `batch` images. The caller owns the
 * copy. `options` gives the height and width of an image if the file leaves them free. Errors:
 * STATUS_UNSUPPORTED (an input's shape stays unknown), and those of the passes. */
enum status session_specialise(const struct graph *graph, const struct session_options *options,
                               int batch, struct graph **ret, struct error *err) MUST_USE;

/* Sets a function that can stop a run, in place of options.cancel. The running thread calls stop()
 * before each step on a CPU, before each node of the interpreter, and inside reference kernels. For
 * runs in streams session_collect() calls stop() every 20 ms. If stop() returns true, the run ends
 * with STATUS_CANCELLED. NULL: nothing stops a run. Do not call session_set_stop() during a run. */
void session_set_stop(struct session *session, bool (*stop)(void *context), void *context);

/* Returns the pages of activations to the system; outputs become invalid. The next run allocates
 * pages again. */
void session_release_pages(struct session *session);

/* Makes the session compute in `arena`, which must outlive the session. Runs of sessions that share
 * an arena wait for each other. Outputs stay in the session's own memory. Returns how many of
 * info.activation_bytes are in the arena, 0 on a GPU or when out of memory. Do not call this
 * function during a run. */
size_t session_share_arena(struct session *session, struct shared_arena *arena);

/* A thread that did not create the session calls session_enter() before its first run.
 * session_enter() starts the worker threads of passes, which live as long as the calling thread.
 * STATUS_NO_MEMORY: the thread must not run the session. */
enum status session_enter(struct session *session, struct error *err) MUST_USE;

const struct session_info *session_info(const struct session *session);

/* Smallest compiled batch size >= n; 0 if n is larger than all. */
int session_batch_for(const struct session *session, int n);

/* ---- runs ---- */

/* The first `batch` images (1 … the largest compiled size) run in the smallest size that fits. */
struct session_request {
    int batch;
    const void *const *inputs; /* inputs[i]: host memory for info.inputs[i], with room for
                                  session_batch_for(batch) images; images after the first `batch`
                                  may be any finite numbers */
    const uint8_t *are_pixels; /* are_pixels[i] is 1 if image i is passed as bytes, which needs
                                  info.takes_pixels; NULL: no image is */
    int valid_rows;     /* number of images in the inputs, from `batch` to session_batch_for(batch);
                           images after the first `batch` are padding */
    const bool *wanted; /* wanted[i] is false if output i need not be copied from the device; NULL:
                           all outputs are wanted */
    /* Needs info.streams. True: each image is computed by a stream, which is a few threads, at
     * the same time as other images. False: all threads compute one layer of the batch at a
     * time. */
    bool in_streams;
};

/* True if another run may be submitted: if no run is in flight. Also if fewer than info.depth runs
 * are in flight, none of these runs needs all threads of a CPU, and no thread waits to resize the
 * arena. */
bool session_may_submit(const struct session *session);

/* With info.streams: true if the oldest run in flight has ended. session_set_run_ended() sets a
 * function that is called, on any thread, when a run in streams ends. Call session_set_run_ended()
 * while no run is in flight. */
bool session_run_has_ended(const struct session *session);
void session_set_run_ended(struct session *session, void (*ended)(void *context), void *context);

/* Starts a run. Call session_submit() only if session_may_submit() was true since the last run was
 * submitted. Inputs and are_pixels must not change until the run is collected; `run` itself and
 * `wanted` may be freed. A CPU computes in session_collect(), except runs in streams, which start
 * at once. With info.streams, a run that starts while other runs are in flight is always in
 * streams. On failure no run was started, and other runs continue. STATUS_DEVICE, STATUS_NO_MEMORY,
 * STATUS_DEVICE_MEMORY. */
enum status session_submit(struct session *session, const struct session_request *run,
                           struct error *err) MUST_USE;

/* Waits for the oldest run in flight. On success outputs[i] are host tensors that the session owns,
 * valid until the next session_collect() or session_drop_outputs(). Their first dimension is
 * `batch` if the output has a batch dimension. Outputs that were not wanted are undefined. Errors:
 * those of session_submit(), STATUS_CANCELLED, and for data-dependent parts STATUS_SHAPE,
 * STATUS_MODEL, STATUS_INVALID (contents that an operator does not accept, or tensors beyond a
 * run's memory limit), STATUS_SHORT_OF_MEMORY (options.run_memory). NaN and Inf are not errors. */
enum status session_collect(struct session *session, const struct tensor **outputs,
                            struct error *err) MUST_USE;

/* Frees the results of the last run's data-dependent part. Outputs that the caller has passed to
 * tensor_keep() live until their references are dropped. */
void session_drop_outputs(struct session *session);

/* Submits and collects; no other run may be in flight. */
enum status session_run(struct session *session, int batch, const void *const *inputs,
                        const struct tensor **outputs, struct error *err) MUST_USE;

/* Synthetic inputs of the largest batch size. */
struct session_feed {
    void **buffers;
    size_t count;
};

/* Allocates and fills inputs. The images differ and have ordinary values, so that a pass runs as
 * for a request. Free the inputs with session_feed_done(), even after a failure.
 * STATUS_NO_MEMORY. */
enum status session_feed_make(const struct session *session, struct session_feed *feed,
                              struct error *err) MUST_USE;
void session_feed_done(struct session_feed *feed);

/* Runs `batch` images, padded, `runs` times. *ret (malloc'ed) has the steps of the fastest run. The
 * shortest times of the steps in different runs would add up to less than any run takes. */
enum status session_profile(struct session *session, int batch, int runs, struct session_step **ret,
                            size_t *ret_count, struct error *err) MUST_USE;

/* CPU time so far in milliseconds (backend_ops.cpu_ms). On an idle machine this time increases by a
 * run's duration during the run. Call session_cpu_ms() on the thread that runs the session. 0:
 * unknown. */
double session_cpu_ms(const struct session *session);

/* For measurements: milliseconds of `runs` consecutive passes of batch size `batch`, after `runs`
 * passes of warm-up. Synthetic inputs are already on the device, and outputs stay there.
 * STATUS_UNSUPPORTED: the graph has a data-dependent part, or the device computes in host memory
 * (measure session_run() instead). */
enum status session_time(struct session *session, int batch, int runs, double *ret_ms,
                         struct error *err) MUST_USE;
