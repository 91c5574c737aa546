/* Private to engine/session*.c: a session and its compiled batch sizes.
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

#include "engine/backend.h"
#include "engine/session.h"

/* One batch size. */
struct compiled {
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
    struct compiled *c;
    int batch;
};

/* What of a session's making is done, by what it mostly takes: the first size packs the weights and
 * tries kernels, the others take what there is. */
#define PROGRESS_WEIGHTS 0.05 /* folded, checked */
#define PROGRESS_FIRST   0.45 /* the first size is compiled */
#define PROGRESS_ALL     0.55 /* all are */
#define PROGRESS_ROWS    0.65 /* images were seen not to mix; then sizes are measured */

struct session {
    const struct backend_ops *ops;
    struct backend *backend;
    struct session_info info;
    struct session_facts facts;
    struct graph *base; /* only while creating */
    struct {
        int at, count; /* which of how many sizes is compiled now */
    } compiling;
    size_t input_count, output_count;
    struct session_tensor *inputs, *outputs;
    struct compiled compiled[SESSION_MAX_BATCHES];
    size_t compiled_count;
    struct budget tail_budget;    /* of the data-dependent parts of one run */
    struct backend *tail_backend; /* runs their products; NULL where no graph has such a part */
    struct compiled *last;        /* whose tail outputs are alive */
    struct session_options options;
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

/* STATUS_NO_MEMORY, with the sentence for it. */
enum status session_no_memory(struct error *err);

/* The smallest that takes n images; NULL when n is too many, or less than 1. */
struct compiled *compiled_for(struct session *session, int n);

/* Lets go of what the last run of the data-dependent tail left. */
void compiled_drop_tail_outputs(struct session *session, struct compiled *c);

/* ---- session_compile.c ---- */

/* Puts an [N, H, W, C] float32 input in front of the declared image input of session->base. */
enum status session_feed_channels_last(struct session *session, struct error *err) MUST_USE;

/* Settles options.threads where the caller left it to the session. */
enum status session_choose_threads(struct session *session, struct error *err) MUST_USE;

/* Compiles session->base for `size` images into *c, which is to be freed with compiled_done() in
 * every case. STATUS_SHAPE when the graph does not follow that batch. */
enum status compiled_create(struct session *session, int size, struct compiled *c,
                            struct error *err) MUST_USE;
void compiled_done(struct session *session, struct compiled *c);

/* Output i of the session; its shape is SHAPE_NONE when it depends on data. */
const struct value *compiled_output(const struct compiled *c, size_t i);

/* ---- session_image.c ---- */

/* With IMAGE_NHWC_ANY: makes the image input of a batch's graph, ready to be compiled, take the
 * numbers that its first operators would make of float32. The first batch size settles
 * (info.image) what all of them take. STATUS_SHAPE when this one cannot. */
enum status session_take_image(struct session *session, struct graph *graph, bool is_first,
                               struct error *err) MUST_USE;

/* ---- session_weights.c ---- */

/* Once everything is compiled: of the constants of `graph`, the caller's, that lie in mapped files,
 * those that programs read in place become memory of their own, the others' pages are given back.
 * STATUS_IO when a file has shrunk since it was mapped. */
enum status session_settle_weights(const struct graph *graph, struct error *err) MUST_USE;

/* ---- session_run.c ---- */

/* What runs need beside their programs; settles info's depth, takes_pixels and best. Once
 * everything is compiled. */
enum status session_prepare_runs(struct session *session, struct error *err) MUST_USE;

/* Runs this very size, with nothing under way. are_pixels: as in struct session_run. */
enum status compiled_run(struct session *session, struct compiled *c, const void *const *inputs,
                         const uint8_t *are_pixels, const struct tensor **outputs,
                         struct error *err) MUST_USE;

/* ---- session_memory.c ---- */

/* Before anything is compiled: do the weights of session->base fit into memory_limit?
 * STATUS_NO_MEMORY says how much is missing. */
enum status session_check_weights(const struct session *session, struct error *err) MUST_USE;

/* Does the batch size compiled last fit into memory_limit? STATUS_NO_MEMORY says how much is
 * missing, and which size would fit. */
enum status session_check_memory(struct session *session, struct error *err) MUST_USE;

/* ---- session_measure.c ---- */

/* Runs the compiled sizes in turns (engine/tuning/autotune.h) and puts L(b) into info.batches: the
 * least CPU time of a pass, times what the run that was disturbed least took by the clock for each
 * millisecond of CPU time. 0 when made-up inputs do not run. Where options.known has a time for
 * every size, two rounds are all, and the quicker time counts. STATUS_CANCELLED. */
enum status session_measure(struct session *session, struct error *err) MUST_USE;

/* Which time counts where an earlier session had `known` ms (0: nothing) and this one measured `ms`
 * (0: nothing): the quicker, unless `known` cannot be true (SESSION_BELIEVED). */
double session_believed_time(double known, double ms);

/* Does a batch of two give each image what it gets alone? */
enum status session_rows_are_independent(struct session *session, bool *ret,
                                         struct error *err) MUST_USE;

/* Does an image of a batch get the same answer, to the bit, whoever its neighbours are? A graph
 * with a mean over the batch gives one client numbers made of another's. Runs the largest batch;
 * where that has been done before (options.known), the next to the smallest. */
enum status session_rows_ignore_neighbours(struct session *session, bool *ret,
                                           struct error *err) MUST_USE;
