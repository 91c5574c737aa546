/* Backends: what a device must be able to do. engine/cpu and engine/cuda implement this table; a
 * further backend is registered in session_create.c and device_list.c (engine/runtime).
 *
 * A backend object belongs to one session. compile() may be called for several graphs (one per
 * batch size); their programs share weights (packed once per constant) and one arena, so only one
 * of them runs at a time. One thread at a time per backend object. */
#pragma once

#include "engine/backend/run.h"
#include "engine/graph/graph.h"
#include "engine/passes/optimize.h"

struct backend; /* one opened device of one session */
struct program; /* one compiled graph */
struct node_call;
struct shared_arena;

struct backend_options {
    struct device_id device;
    enum precision precision;
    int threads; /* CPU only */
    bool poison; /* session_options.poison */
    /* For backends that take pixels; NULL: none come. Borrowed by open(). */
    const struct session_pixels *pixels;
    size_t pixels_input;   /* graph input */
    bool no_kernel_tuning; /* as in session_options */
    /* What compile() charges packed weights and trials of kernels to, on a device that computes in
     * the host's memory; NULL: nothing. A kernel that does not fit gives way to another one. */
    struct memory_budget *memory;
    /* Called by compile() and reserve() on their thread to report progress: `done` of a program's
     * `count` nodes, or of all programs'. If it returns false, they end with STATUS_CANCELLED. May
     * be NULL. A backend need not call it. */
    bool (*on_node)(void *context, size_t done, size_t count);
    /* Called now and then by compile(), and by runs on a device that computes in collect(), on
     * their thread. If it returns true, they end with STATUS_CANCELLED. May be NULL. */
    bool (*is_stopped)(void *context);
    void *context; /* of both */
};

/* A run as a backend gets it. */
struct run_request {
    const void *const *inputs; /* host memory, one per graph input */
    int rows, valid_rows;      /* of the program's batch: rows wanted, rows the inputs hold; 0:
                           all of them */
    const uint8_t *are_pixels; /* as session_run.are_pixels */
    const bool *wanted;        /* by graph output; NULL: all */
    int best;                  /* as session_want.best, of graph output `scores` */
    size_t scores;
};

struct run_result {
    const void **outputs; /* in: room for one per graph output. Out: host pointers; of an output
                             that was not wanted anything */
    const void *best;     /* with best: a session_best for each row, best_step bytes apart */
    size_t best_step;
};

struct backend_ops {
    const char *name; /* "cpu", "cuda" */

    enum status (*open)(const struct backend_options *options, struct backend **ret,
                        struct error *err);
    void (*close)(struct backend *backend); /* after its programs; NULL is fine */

    /* The calling thread is going to run the backend's programs: takes what it needs for that, as
     * open() did for its own. STATUS_NO_MEMORY. NULL: nothing. */
    enum status (*enter)(struct backend *backend, struct error *err);

    /* What the optimizer asks about nodes. */
    kernel_claim_fn claim;

    /* Can kernels multiply 8-bit integers where the result is float32 (optimize_quantized)? */
    bool multiplies_to_float;

    /* Does it run dynamically quantized products as real ones on rounded activations
     * (optimize_dynamic)? Otherwise their integer operators come to it as the file has them. */
    bool rounds_dynamically;

    /* Compiles a graph whose shapes are all known. The graph must live as long as the program,
     * which may read its nodes and values in a run; only its constants may be dropped: the program
     * holds references to those it needs. Nothing may run before reserve(). */
    enum status (*compile)(struct backend *backend, const struct graph *graph, struct program **ret,
                           struct error *err);
    void (*free_program)(struct program *program);

    /* Takes the arena for the largest program there is, and does what needs the arena: a GPU
     * measures its kernels and records its runs here. Called again after programs were freed, it
     * may give memory back. STATUS_NO_MEMORY / STATUS_DEVICE_MEMORY naming bytes and device. */
    enum status (*reserve)(struct backend *backend, struct error *err);

    /* Gives the arena's pages back to the system; runs take them again as they use them. NULL: the
     * device has no such pages. */
    void (*release_pages)(struct backend *backend);

    /* Moves the values of the backend's programs, except outputs, to `arena`, which must outlive
     * the backend. Not during a run. Returns how many bytes of it they need; 0: out of memory, and
     * nothing has changed. NULL: the device does not share memory. */
    size_t (*share_arena)(struct backend *backend, struct shared_arena *arena);

    /* Runs a program: submit() begins, collect() waits for the oldest run and gives its outputs,
     * valid until the next collect(). At most `depth` runs are under way; a device that cannot work
     * by itself has a depth of 1 and computes in collect(). The inputs stay as they are until then.
     * A submit() that fails has begun nothing. */
    int depth;
    bool takes_pixels;
    int best; /* the greatest run_request.best it takes; 0: none */
    enum status (*submit)(struct program *program, const struct run_request *request,
                          struct error *err);
    enum status (*collect)(struct backend *backend, struct run_result *ret, struct error *err);

    /* Page-locked memory for inputs of any session of the backend's devices; zeroed. NULL: the
     * backend does not need it. Any thread. */
    enum status (*host_alloc)(struct device_id device, size_t bytes, void **ret, struct error *err);
    void (*host_free)(void *data);

    /* Bytes that could be had of the device now, beside what this backend has; NULL, SIZE_MAX: not
     * known. */
    size_t (*available_bytes)(struct backend *backend);
    /* All that reserve() has taken; NULL: the largest activation_bytes(). */
    size_t (*reserved_bytes)(const struct backend *backend);

    /* A node_runner's function (engine/op/interpret.h), its context being a backend that is
     * used for nothing else. NULL: the backend has none. */
    enum status (*run_node)(void *backend, const struct node_call *call, bool *ret_taken,
                            struct error *err);

    size_t (*activation_bytes)(const struct program *program); /* planned peak, scratch included */
    size_t (*weight_bytes)(const struct backend *backend);

    /* Runs once with a clock around each step; ret[max] receives a line per step. */
    enum status (*profile)(struct program *program, const void *const *inputs,
                           struct session_step *ret, size_t max, size_t *ret_count,
                           struct error *err);

    /* Milliseconds of CPU time that the calling thread and those its passes are split over have
     * had, over their number: what a pass adds to it is how long it takes where nothing disturbs it
     * (who waits for the others waits awake for a while), and hardly more where something does.
     * NULL: a pass takes no CPU time. */
    double (*cpu_ms)(const struct backend *backend);

    /* Milliseconds of `runs` passes in a row, without the copies before and after them. NULL: there
     * are no copies. */
    enum status (*time)(struct program *program, const void *const *inputs, int runs,
                        double *ret_ms, struct error *err);
};

extern const struct backend_ops backend_cpu;
