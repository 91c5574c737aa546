/* A session: one model on one device, compiled for a set of batch sizes and warmed up for each.
 *
 * session_create() does everything that can be slow or fail: optimise, plan, pack weights, compile,
 * measure. session_submit() and session_collect() then only run (session_run() is both): no
 * allocation on the CPU device, nothing kept for a backward pass. A session is used by one thread
 * at a time (its lane). */
#pragma once

#include "engine/backend/run.h"
#include "engine/backend/shared_arena.h"
#include "engine/graph/graph.h"

const char *precision_name(enum precision precision); /* "fp32", "auto" */

/* True for a file quantized as QDQ or QOperator. PRECISION_INT8 requires it. QLinear… operators
 * compute in integers at any precision. */
bool session_is_quantized(const struct graph *graph);

/* How the caller lays out the image input that session_options.image_input names. */
enum image_layout {
    IMAGE_AS_DECLARED, /* as the file declares it: raw tensors */
    IMAGE_NHWC_F32,    /* [N, H, W, C] float32, as decoders write it, whatever the file declares */
    IMAGE_NHWC_ANY, /* [N, H, W, C] in the data type that the session chooses: info.image_dtype */
};

#define SESSION_MAX_BATCHES 16

struct session_batch {
    int size;
    double milliseconds;     /* L(b), measured at creation; 0: not measurable */
    size_t activation_bytes; /* planned arena */
};

struct session_options {
    struct device_id device;
    enum precision precision;
    int threads;   /* CPU: threads of the forward pass; 0 = device_cpu_threads(), or 1 for a model
                      so small that splitting it costs more than it gains */
    int max_batch; /* largest batch compiled; 1, 2, 4 … max_batch are compiled */
    int batches[SESSION_MAX_BATCHES]; /* instead of those, ascending; 0 ends them */
    bool trial; /* compile only 1 and max_batch, and neither check nor measure them: this session
                   is compared with another and discarded */
    bool no_kernel_tuning; /* CPU: choose kernels by the tuning store and by rule, without
                              measuring; a GPU measures all the same */
    /* L(b) of an earlier session of the model, ascending; size 0 ends them. If every size has one,
     * a CPU does not measure. */
    struct session_batch known[SESSION_MAX_BATCHES];
    size_t image_input; /* index in graph->inputs; SIZE_MAX: the graph takes no image */
    enum image_layout image_layout;
    const struct session_pixels *pixels; /* for image_input; borrowed by session_create; or NULL */
    bool image_channels_last;            /* the file declares [N, H, W, C], not [N, C, H, W] */
    int image_height, image_width;       /* for symbolic H and W; 0 = the file's own */
    size_t memory_limit;                 /* bytes of weights, activations and the caller's inputs;
                                            0 = no limit */
    size_t batch_memory; /* the same with all sizes but the smallest, where max_batch is not pinned:
                            what others will want stays free; 0 = memory_limit */
    size_t batch_activations; /* batch sizes with more bytes of activations are not compiled, except
                                 the smallest; 0: no limit */
    struct memory_budget *run_memory; /* what the tensors of data-dependent parts are charged to,
                                         all sessions' together; outlives them; or NULL */
    bool poison;              /* for tests: a device with memory of its own fills activations and
                                 outputs with NaN before each run */
    bool max_batch_is_pinned; /* beyond memory_limit it is an error; else smaller batches are
                                 compiled, as many as fit, and the note says so */
    size_t input_batches, input_images; /* what the caller keeps for the session beside it: inputs
                                           of so many largest batches and so many single images */
    /* Called by session_create on its thread: 0 … 1 of the whole, and what it does ("compiling");
     * or NULL. */
    void (*on_progress)(void *context, const char *phase, double fraction);
    void *progress_context;
    const _Atomic int *cancel; /* when it becomes 1, session_create ends with STATUS_CANCELLED, as
                                  do runs before session_set_stop() was called; or NULL */
};

/* Memory for the inputs of sessions on `device`, from which it copies best (page-locked for a GPU):
 * zeroed, aligned to 64 bytes or more. A CPU's takes pages as they are written. Any thread.
 * STATUS_NO_MEMORY, STATUS_DEVICE. session_buffer_free takes NULL, and needs no session to be
 * alive. */
enum status session_buffer_create(struct device_id device, size_t bytes, void **ret,
                                  struct error *err) MUST_USE;
void session_buffer_free(struct device_id device, void *data);

/* What one input or output of a session looks like for one image. */
struct session_tensor {
    const char *name;
    enum dtype dtype;
    struct shape shape; /* the batch dimension, where there is one, is 1 */
};

struct session_info {
    struct device_id device;
    enum precision precision;
    int threads;
    size_t parameter_bytes;  /* packed weights held on the device */
    size_t activation_bytes; /* the arena, for the largest batch */
    int depth;               /* runs that may be under way at a time: session_submit */
    enum dtype image_dtype;  /* of the image input; IMAGE_NHWC_ANY: DTYPE_F32 or DTYPE_BF16 */
    bool takes_pixels;       /* rows of the image input may be bytes (session_pixels) */
    int best;                /* largest session_want.best; 0: outputs are always whole */
    bool batched;      /* false: the graph does not allow batches, so images are run one by one */
    bool rows_mix;     /* images of a batch change each other's results: never together */
    char note[160];    /* a sentence for the log ("the file fixes its batch to 1; …"), or "" */
    size_t node_count; /* nodes left after the passes */
    size_t batch_count;
    struct session_batch batches[SESSION_MAX_BATCHES]; /* ascending sizes */
};

struct session;

/* The graph is only read. Errors: STATUS_UNSUPPORTED / STATUS_SHAPE / STATUS_MODEL (the model),
 * STATUS_DEVICE, STATUS_NO_MEMORY, STATUS_CANCELLED. On success the caller owns *ret
 * (session_free, NULL is fine); the graph may be freed. */
enum status session_create(const struct graph *graph, const struct session_options *options,
                           struct session **ret, struct error *err) MUST_USE;
void session_free(struct session *session);

/* Sets a function that runs call before each step on a CPU, before each node that the interpreter
 * runs, and inside of reference kernels, on the thread that runs the session. If it returns true,
 * the run ends with STATUS_CANCELLED. NULL: nothing stops a run. This replaces options.cancel for
 * runs. Do not call it during a run. */
void session_set_stop(struct session *session, bool (*stop)(void *context), void *context);

/* Returns the pages of activations to the system. The next run allocates them again on first use.
 */
void session_release_pages(struct session *session);

/* Makes the session compute in `arena`, which must outlive it, as others do that never run at the
 * same time; outputs stay its own. Returns how many of info.activation_bytes lie there; 0: none, on
 * a GPU or when out of memory. Not during a run. */
size_t session_share_arena(struct session *session, struct shared_arena *arena);

/* A thread that did not create the session calls this before its first run. It starts the worker
 * threads that passes are split over; they live as long as the calling thread. STATUS_NO_MEMORY:
 * the thread must not run the session. */
enum status session_enter(struct session *session, struct error *err) MUST_USE;

const struct session_info *session_info(const struct session *session);

size_t session_input_count(const struct session *session);
size_t session_output_count(const struct session *session);
/* Descriptions for batch size 1, alive as long as the session. Output shapes of data-dependent
 * graphs may be SHAPE_NONE. */
const struct session_tensor *session_input(const struct session *session, size_t i);
const struct session_tensor *session_output(const struct session *session, size_t i);

/* Smallest compiled batch size >= n (n <= the largest). */
int session_batch_for(const struct session *session, int n);

/* ---- runs ---- */

/* What a run returns. Zeroed: every output. */
struct session_want {
    const bool *outputs; /* by output: false, and it is not copied from the device; NULL: all */
    int best;            /* 1 … info.best: no output at all, but the best so many of each row of
                            output `scores`; 0: outputs */
    size_t scores;
};

/* The first `batch` images (1 … the largest compiled size) run in the smallest compiled size that
 * takes them. */
struct session_request {
    int batch;
    const void *const *inputs; /* host memory as session_input(i) describes it, with room for
                                  session_batch_for(batch) images, whose tail may be anything finite
                                */
    const uint8_t *are_pixels; /* by image, 0 or 1: the row is bytes; NULL: none is. Only where
                                  info.takes_pixels. */
    int valid_rows; /* images that the inputs hold: those behind `batch` are read, too, as padding;
                at least `batch`, at most session_batch_for(batch) */
    struct session_want want;
};

/* Begins a run; at most info.depth are under way. Inputs and are_pixels stay as they are until it
 * is collected; `run` itself and want.outputs may go. A CPU computes in session_collect. On failure
 * no run was begun; others that are under way stay so. Errors: STATUS_DEVICE, STATUS_NO_MEMORY,
 * STATUS_DEVICE_MEMORY. */
enum status session_submit(struct session *session, const struct session_request *run,
                           struct error *err) MUST_USE;

/* Waits for the oldest run under way. On success outputs[i] are host tensors that the session owns,
 * valid until the next session_collect or session_drop_outputs: first dimension `batch` where the
 * output has a batch dimension. Those that were not wanted hold anything, and after want.best all
 * of them: session_best_of() tells. Errors as session_submit's, STATUS_CANCELLED, and of
 * data-dependent parts STATUS_SHAPE, STATUS_MODEL, STATUS_INVALID (contents that an operator cannot
 * take, or tensors beyond what a run may have), STATUS_SHORT_OF_MEMORY (options.run_memory).
 * Floating-point exceptions are no error: NaN and Inf come out as they are. */
enum status session_collect(struct session *session, const struct tensor **outputs,
                            struct error *err) MUST_USE;

/* Frees what the last run's data-dependent part has made. Outputs that tensor_keep() has kept for
 * options.run_memory stay with who holds references to them. */
void session_drop_outputs(struct session *session);

/* Submits and collects, with nothing else under way. */
enum status session_run(struct session *session, int batch, const void *const *inputs,
                        const struct tensor **outputs, struct error *err) MUST_USE;

/* Of the run collected last, with want.best. */
const struct session_best *session_best_of(const struct session *session, int row);

/* Runs the size for `batch` images `runs` times with a clock around each step; *ret is malloc'ed.
 */
enum status session_profile(struct session *session, int batch, int runs, struct session_step **ret,
                            size_t *ret_count, struct error *err) MUST_USE;

/* Milliseconds of CPU time so far (backend_ops.cpu_ms): the difference around a run is how long it
 * takes on an idle machine. Call it on the thread that runs the session. 0: not known. */
double session_cpu_ms(const struct session *session);

/* For measurements: milliseconds of `runs` passes of batch size `batch` in a row, from the start of
 * the first to the end of the last, after as many that are not counted, on made-up inputs that are
 * on the device already; outputs stay there. STATUS_UNSUPPORTED on a device that computes in the
 * host's memory (a run is just that) and for graphs with a data-dependent part. */
enum status session_time(struct session *session, int batch, int runs, double *ret_ms,
                         struct error *err) MUST_USE;
