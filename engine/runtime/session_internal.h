/* Private to engine/runtime: a session and its compiled batch sizes.
 *
 * A file uses only files on its left:
 *
 *     session_state ◀ session_memory ◀ session_compile
 *       ◀ session_run ◀ session_measure ◀ session_create
 *
 * session_compile.c compiles a batch size, session_run.c runs it, session_measure.c times and
 * profiles it on synthetic inputs, and session_create.c does all of this for a new session. */
#pragma once

#include "engine/backend/backend.h"
#include "engine/runtime/session.h"

/* A batch size and its programs. */
struct compiled_size {
    int size;
    struct graph *graph; /* static part; without constants once the size is compiled */
    struct graph *tail;  /* data-dependent part; NULL: none */
    int *output_of;  /* with x = output_of[i], output i is output x of `graph` if x >= 0, otherwise
                        output -1 - x of `tail` */
    size_t crossing; /* the tail's inputs are the last `crossing` outputs of the static part */
    struct program *program;
    const void **static_data; /* results of the program: one per output of `graph` */
    struct tensor **results;  /* wrap static_data */
    struct tensor **tail_outputs;
};

#define SESSION_MOST_DEPTH 9 /* eight runs in streams, and one run that waits */

struct submitted_run {
    struct compiled_size *c;
    int batch;
};

/* Progress of session_create() after each phase. The first size takes longest, because compiling it
 * packs the weights, which the other sizes reuse. */
#define PHASE_OPTIMISE   "optimising"
#define PHASE_COMPILE    "compiling"
#define PHASE_MEASURE    "measuring"
#define PROGRESS_WEIGHTS 0.05 /* constants are folded, and the weights' size is checked */
#define PROGRESS_FIRST   0.45 /* the first size is compiled */
#define PROGRESS_ALL     0.55 /* all sizes are compiled */
#define PROGRESS_ROWS    0.65 /* memory is reserved; the sizes are not measured yet */

struct session {
    const struct backend_ops *ops;
    struct backend *backend;
    struct session_info info;
    struct graph *base;    /* NULL after session_create() */
    bool fixes_batch;      /* the file fixes the batch size (1 or more) */
    uint64_t rows_hash;    /* batch_is_independent()'s hash for the first size; 0: not proven */
    bool rows_are_refused; /* a size was dropped because images may affect each other */
    struct {
        int at, count; /* index of the size that is being compiled, and number of sizes */
        bool is_over;  /* all sizes are compiled; the backend reserves memory and tunes kernels */
    } compiling;
    struct compiled_size compiled[SESSION_MAX_BATCHES];
    size_t compiled_count;
    struct memory_budget memory;      /* on a CPU: for folded constants and packed weights */
    struct memory_budget tail_budget; /* for the data-dependent parts of one run */
    struct backend *tail_backend;     /* computes matrix products of tails; NULL: not needed */
    struct compiled_size *last;       /* the size whose tail outputs are still allocated */
    struct session_options options;
    bool (*stop)(void *context); /* set by session_set_stop() */
    void *stop_context;
    void (*run_ended)(void *context); /* set by session_set_run_ended() */
    void *run_ended_context;
    bool image_is_integer; /* the file declares integers, but the caller passes float32 */

    /* used by session_run.c: */
    struct submitted_run runs[SESSION_MOST_DEPTH];
    unsigned long submitted, collected;
    bool *wanted;        /* one per output of the static part, for the run being submitted */
    uint8_t *all_pixels; /* a session_request.are_pixels with 1 for each image; NULL: the session
                            does not accept pixels */
};

/* ---- session_state.c ---- */

/* Calls the session's run_ended(); for backend_options.on_run_ended. */
void session_run_ended(void *session);

/* True if the session's run must stop (session_set_stop()); for backend_options.is_stopped. */
bool session_is_stopped(void *session);

/* The smallest compiled size for n images; NULL if n is below 1 or above the largest size. */
struct compiled_size *compiled_for(struct session *session, int n);

/* Releases the outputs of the last run of the data-dependent tail. */
void compiled_drop_tail_outputs(struct session *session, struct compiled_size *c);

/* ---- session_compile.c ---- */

/* Inserts an [N, H, W, C] float32 input before the declared image input of session->base. */
enum status session_feed_channels_last(struct session *session, struct error *err) MUST_USE;

/* Sets options.threads if it is 0. */
enum status session_choose_threads(struct session *session, struct error *err) MUST_USE;

/* Compiles session->base for `size` images into *c; the caller frees *c with compiled_done() in
 * every case. STATUS_SHAPE if the graph does not support that batch size. */
enum status compiled_create(struct session *session, int size, struct compiled_size *c,
                            struct error *err) MUST_USE;
void compiled_done(struct session *session, struct compiled_size *c);

/* For a session that has only size 1: sets info.batched and info.rows_mix as compiling size 2
 * would. */
void compiled_look_at_two(struct session *session);

/* Output i of the session; its shape is SHAPE_NONE when it depends on data. */
const struct value *compiled_output(const struct compiled_size *c, size_t i);

/* ---- session_run.c ---- */

/* Allocates memory that runs need in addition to their programs, and sets info.depth,
 * info.takes_pixels. Call this function after compiling. */
enum status session_prepare_runs(struct session *session, struct error *err) MUST_USE;

/* ---- session_memory.c ---- */

/* On a CPU, sets the limit for compiling session->base from memory_limit or free memory. */
void session_begin_memory(struct session *session);

/* Checks before compiling that the weights of session->base fit into memory_limit. STATUS_NO_MEMORY
 * says how much is missing. */
enum status session_check_weights(const struct session *session, struct error *err) MUST_USE;

/* Checks that the batch size compiled last fits into memory_limit. STATUS_NO_MEMORY says how much
 * is missing and which size would fit. */
enum status session_check_memory(struct session *session, struct error *err) MUST_USE;

/* ---- session_measure.c ---- */

/* Runs the compiled sizes in turns (engine/backend/autotune.h) and stores L(b) in info.batches: the
 * lowest CPU time of a pass, multiplied by the ratio of wall-clock to CPU time in the least
 * disturbed run. L(b) is 0 if the model does not run on synthetic inputs, or is too slow on a CPU
 * to measure size b. If streams are used, L(b) of sizes of at least one image per stream is the
 * time of a run in streams (session_batch.in_streams). STATUS_CANCELLED: the session was
 * stopped. */
enum status session_measure(struct session *session, struct error *err) MUST_USE;
