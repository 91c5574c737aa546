/* The interface of a backend. engine/cpu and engine/cuda implement struct backend_ops.
 *
 * A backend object belongs to one session. compile() may be called for several graphs, one per
 * batch size. Their programs share one arena, so only one of them runs at a time. They also share
 * the weights, which are packed once per constant. One thread at a time per backend object. */
#pragma once

#include "engine/backend/run.h"
#include "engine/graph/graph.h"
#include "engine/passes/optimize.h"

struct backend; /* one opened device of one session */
struct program; /* one compiled graph */
struct kernel_args;
struct shared_arena;

struct backend_options {
    struct device_id device;
    enum precision precision;
    int threads; /* CPU only; less than 1: device_cpu_threads() */
    bool poison; /* for tests: a GPU fills activations with NaN before a run */
    /* Format of images passed as bytes; only open() reads it. NULL: bytes are never passed. */
    const struct session_pixels *pixels;
    size_t pixels_input; /* index of the graph input that receives the pixels */
    /* Budget for the packed weights of a device that computes in host memory; NULL: no limit. */
    struct memory_budget *memory;
    /* Reports progress, on the calling thread: the CPU's compile() counts the nodes of its graph, a
     * GPU's reserve() counts the steps of all programs. If it returns false, that function returns
     * STATUS_CANCELLED. May be NULL. */
    bool (*on_node)(void *context, size_t done, size_t count);
    /* A run on a CPU calls it before each step, and reference kernels call it in their loops, on
     * the run's thread. For runs in streams collect() calls it every 20 ms. If it returns true, the
     * run ends with STATUS_CANCELLED. May be NULL. */
    bool (*is_stopped)(void *context);
    /* Called on any thread when a run in streams has ended. May be NULL. */
    void (*on_run_ended)(void *context);
    void *context; /* for these callbacks */
};

/* The inputs of one run. */
struct run_request {
    const void *const *inputs; /* host memory, one per graph input */
    int rows, valid_rows; /* number of images to compute, and number in inputs; 0: batch size */
    const uint8_t *are_pixels; /* one per image; 1: the image is 8-bit pixels; NULL: no image is */
    const bool *wanted;        /* one per graph output; NULL: all outputs */
    bool in_streams; /* each stream computes an image (compile_streams()); `rows` is not 0 */
};

struct backend_ops {
    const char *name; /* "cpu", "cuda" */

    enum status (*open)(const struct backend_options *options, struct backend **ret,
                        struct error *err);
    void (*close)(struct backend *backend); /* call it after freeing its programs; accepts NULL */

    /* Prepares the calling thread for running the backend's programs, as open() did for its own
     * thread. STATUS_NO_MEMORY. NULL: no preparation is needed. */
    enum status (*enter)(struct backend *backend, struct error *err);

    /* Tells the optimizer which kernel runs a node, and the kernel's abilities. */
    kernel_claim_fn claim;

    /* True if kernels can multiply 8-bit integers with a float32 result (optimize_quantized()). */
    bool multiplies_to_float;

    /* True if the backend runs dynamically quantized products as float products of rounded
     * activations (optimize_dynamic()). Otherwise it gets the file's integer operators. */
    bool rounds_dynamically;

    /* Compiles a graph whose shapes are all known. The graph must outlive the program, because a
     * run may read its nodes and values. Only the graph's constants may be dropped, because the
     * program holds references to those that it needs. Nothing may run before reserve(). */
    enum status (*compile)(struct backend *backend, const struct graph *graph, struct program **ret,
                           struct error *err);
    /* Call it after compile() of the graph for one image: compiles that graph for streams, too. A
     * stream is a few threads that compute one image, so several images run at the same time. In a
     * run without streams all threads compute a layer, and wait for the slowest before the next
     * layer. Does nothing if streams cannot help or memory is short. stream_count(), after
     * reserve(): the number of streams; 0: none. NULL: the device has no streams. */
    enum status (*compile_streams)(struct backend *backend, struct error *err);
    int (*stream_count)(const struct backend *backend);
    void (*free_program)(struct program *program);

    /* Allocates the arena for the largest program. A GPU then measures its kernels and records its
     * runs. After programs were freed, another call may shrink the arena. Errors: STATUS_NO_MEMORY,
     * STATUS_DEVICE_MEMORY; the message has the number of bytes and the device. */
    enum status (*reserve)(struct backend *backend, struct error *err);

    /* Returns the arena's pages to the system; the next run allocates them again. NULL: the device
     * has no such pages. */
    void (*release_pages)(struct backend *backend);

    /* Moves the activations of the backend's programs, except outputs, to `arena`, which must
     * outlive the backend. Do not call it during a run. Returns the bytes that they need there.
     * When out of memory, returns 0 and changes nothing. NULL: the device cannot share memory. */
    size_t (*share_arena)(struct backend *backend, struct shared_arena *arena);

    /* submit() starts a run of a program. collect() waits for the oldest run and sets outputs[],
     * one per graph output, to host memory that is valid until the next collect(); outputs that are
     * not wanted are undefined. At most `depth` runs are in flight. A CPU has a depth
     * of 1, and computes in collect(). But runs in streams compute from submit() on, and at most
     * stream_count() + 1 of them are in flight. The inputs must not change until collect(). If
     * submit() fails, no run has started.
     */
    int depth;
    bool takes_pixels;
    /* False while the runs in flight do not allow another; NULL: they always do. */
    bool (*may_submit)(struct backend *backend);
    /* For runs in streams: true if the oldest run in flight has ended. NULL: no streams. */
    bool (*run_has_ended)(struct backend *backend);
    enum status (*submit)(struct program *program, const struct run_request *request,
                          struct error *err);
    enum status (*collect)(struct backend *backend, const void **outputs, struct error *err);

    /* Allocates zeroed page-locked memory for inputs of any session on the backend's devices. NULL:
     * the backend does not need it. Any thread. */
    enum status (*host_alloc)(struct device_id device, size_t bytes, void **ret, struct error *err);
    void (*host_free)(void *data);

    /* Bytes that can still be allocated on the device. NULL or SIZE_MAX: unknown. */
    size_t (*available_bytes)(struct backend *backend);
    /* Bytes that reserve() has allocated; NULL: it allocates the largest activation_bytes(). */
    size_t (*reserved_bytes)(const struct backend *backend);

    /* Runs a node for the interpreter (node_runner.run in engine/op/interpret.h). This must be the
     * backend's only use. NULL: the interpreter runs all nodes. */
    enum status (*run_node)(void *backend, const struct kernel_args *call, bool *ret_taken,
                            struct error *err);

    size_t (*activation_bytes)(const struct program *program); /* planned peak, scratch included */
    size_t (*weight_bytes)(const struct backend *backend);

    /* Runs once and times each step; ret[max] receives one line per step. */
    enum status (*profile)(struct program *program, const void *const *inputs,
                           struct session_step *ret, size_t max, size_t *ret_count,
                           struct error *err);

    /* CPU time in milliseconds so far, averaged over the threads that run the calling thread's
     * passes. On an idle machine a pass increases it by the pass's duration, because waiting
     * threads spin first. A busy machine hardly changes the increase. NULL: a pass takes no CPU
     * time. */
    double (*cpu_ms)(const struct backend *backend);

    /* Measures the milliseconds of `runs` consecutive passes without the copies before and after
     * them. NULL: there are no copies. */
    enum status (*time)(struct program *program, const void *const *inputs, int runs,
                        double *ret_ms, struct error *err);
};

extern const struct backend_ops backend_cpu;
