/* Private to engine/runtime: a session and its compiled batch sizes.
 *
 * A file uses only files on its left:
 *
 *     session_state ◀ session_image, session_memory, session_weights ◀ session_compile
 *       ◀ session_run ◀ session_measure ◀ session_create
 *
 * session_compile.c compiles a batch size, session_run.c runs it, session_measure.c feeds it
 * made-up numbers to time, check and profile it, and session_create.c does all of that for a new
 * session. */
#pragma once

#include "engine/backend/backend.h"
#include "engine/runtime/session.h"

/* One batch size. */
struct compiled_size {
    int size;
    struct graph *graph; /* static part; constants dropped once compiled */
    struct graph *tail;  /* NULL without data-dependent nodes */
    int *output_of;      /* see optimize_split */
    size_t crossing;     /* outputs of the static part that feed the tail: the last ones */
    struct program *program;
    const void **static_data;
    struct tensor **tensors; /* the session's outputs: wrappers of static data, or tail results */
    struct tensor **tail_inputs; /* wrappers */
    struct tensor **tail_outputs;
};

#define SESSION_MOST_DEPTH 2

/* A run under way. */
struct submitted_run {
    struct compiled_size *c;
    int batch;
};

/* Progress of session_create() after each phase. The first size takes longest: it packs the weights
 * and measures kernels, which the others reuse. */
#define PHASE_OPTIMISE   "optimising"
#define PHASE_COMPILE    "compiling"
#define PHASE_MEASURE    "measuring"
#define PROGRESS_WEIGHTS 0.05 /* folded, checked */
#define PROGRESS_FIRST   0.45 /* the first size is compiled */
#define PROGRESS_ALL     0.55 /* all sizes are compiled */
#define PROGRESS_ROWS    0.65 /* memory is reserved; measuring sizes is left */

struct session {
    const struct backend_ops *ops;
    struct backend *backend;
    struct session_info info;
    struct graph *base;   /* only while creating */
    struct graph *single; /* the same for one image, until size 1 is compiled; may be NULL */
    bool fixes_batch;     /* the file fixes the batch size (1 or more) */
    uint64_t
        rows_hash; /* engine/passes/batch_independence.h, of the first size; 0: there is none */
    bool rows_are_refused; /* a size was given up because images may mix */
    struct {
        int at, count; /* which of how many sizes is compiled now */
        bool is_over;  /* all sizes are compiled; the backend reserves memory and tunes */
    } compiling;
    size_t input_count, output_count;
    struct session_tensor *inputs, *outputs;
    struct compiled_size compiled[SESSION_MAX_BATCHES];
    size_t compiled_count;
    struct memory_budget memory;      /* on a CPU: of folded constants, packed weights and trials */
    struct memory_budget tail_budget; /* of the data-dependent parts of one run */
    struct backend *tail_backend;     /* runs their products; NULL where no graph has such a part */
    struct compiled_size *last;       /* whose tail outputs are alive */
    struct session_options options;
    bool (*stop)(void *context); /* session_set_stop */
    void *stop_context;
    bool image_is_integer; /* the file wants integers where the caller feeds float32 */

    /* session_run.c */
    struct submitted_run runs[SESSION_MOST_DEPTH];
    unsigned long submitted, collected;
    bool *wanted; /* by output of the static part, of the run being submitted */
    const unsigned char *best;
    size_t best_step;
    uint8_t *all_pixels; /* as many ones as the largest batch; NULL: it takes none */
};

/* ---- session_state.c ---- */

/* Whether to stop (session_set_stop); for backend_options.is_stopped of a struct session. */
bool session_is_stopped(void *session);

/* The smallest compiled size for n images; NULL when n is less than 1 or above the largest. */
struct compiled_size *compiled_for(struct session *session, int n);

/* Releases the outputs of the last run of the data-dependent tail. */
void compiled_drop_tail_outputs(struct session *session, struct compiled_size *c);

/* ---- session_compile.c ---- */

/* Puts an [N, H, W, C] float32 input in front of the declared image input of session->base. */
enum status session_feed_channels_last(struct session *session, struct error *err) MUST_USE;

/* Chooses options.threads where the caller left it 0. */
enum status session_choose_threads(struct session *session, struct error *err) MUST_USE;

/* Compiles session->base for `size` images into *c, which is to be freed with compiled_done() in
 * every case. STATUS_SHAPE when the graph does not follow that batch. */
enum status compiled_create(struct session *session, int size, struct compiled_size *c,
                            struct error *err) MUST_USE;
void compiled_done(struct session *session, struct compiled_size *c);

/* Output i of the session; its shape is SHAPE_NONE when it depends on data. */
const struct value *compiled_output(const struct compiled_size *c, size_t i);

/* ---- session_image.c ---- */

/* With IMAGE_NHWC_ANY: makes the image input bfloat16 if the first operators of the graph only
 * round it to that. Call it right before compiling. The first batch size decides for all
 * (info.image_dtype). */
enum status session_take_image(struct session *session, struct graph *graph, bool is_first,
                               struct error *err) MUST_USE;

/* ---- session_weights.c ---- */

/* Call once everything is compiled. Constants of the caller's `graph` that lie in mapped files and
 * that programs read in place are copied to memory of the process; the pages of the others are
 * given back. STATUS_IO when a file has shrunk since it was mapped. */
enum status session_settle_weights(const struct graph *graph, struct error *err) MUST_USE;

/* ---- session_run.c ---- */

/* Allocates what runs need beside their programs and sets info.depth, info.takes_pixels and
 * info.best. Call once everything is compiled. */
enum status session_prepare_runs(struct session *session, struct error *err) MUST_USE;

/* Runs exactly this size, with no run in flight. are_pixels: as in struct session_request. */
enum status compiled_run(struct session *session, struct compiled_size *c,
                         const void *const *inputs, const uint8_t *are_pixels,
                         const struct tensor **outputs, struct error *err) MUST_USE;

/* Where only single images are run: sets info.batched and rows_mix as if batches were compiled. */
void compiled_look_at_two(struct session *session);

/* ---- session_memory.c ---- */

/* On a CPU: sets what compiling session->base may take, of memory_limit or of what is free. */
void session_begin_memory(struct session *session);

/* Checks, before anything is compiled, that the weights of session->base fit into memory_limit.
 * STATUS_NO_MEMORY says how much is missing. */
enum status session_check_weights(const struct session *session, struct error *err) MUST_USE;

/* Checks that the batch size compiled last fits into memory_limit. STATUS_NO_MEMORY says how much
 * is missing and which size would fit. */
enum status session_check_memory(struct session *session, struct error *err) MUST_USE;

/* ---- session_measure.c ---- */

/* Runs the compiled sizes in turns (engine/backend/autotune.h) and puts L(b) into info.batches: the
 * least CPU time of a pass, times the ratio of wall-clock time to CPU time in the least disturbed
 * run. L(b) is 0 if the model does not run on synthetic inputs. STATUS_CANCELLED. */
enum status session_measure(struct session *session, struct error *err) MUST_USE;
