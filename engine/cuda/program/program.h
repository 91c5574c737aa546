/* Private to engine/cuda/: compiles a graph to steps for a GPU.
 *
 * As on the CPU, plan_create() assigns arena memory to every value, and each node becomes a step.
 * Here the arena is device memory, and a step enqueues work on the backend's stream. Constants are
 * uploaded once per backend in the layout and number type that their step reads. A node without a
 * GPU kernel runs on the host with its reference kernel, between copies.
 *
 * A program without host steps is recorded as CUDA graphs once the arena is allocated, so that a
 * batch is one launch. One thread at a time per backend (engine/backend/backend.h).
 *
 * Two runs may be in flight (runs.c). While the device computes one run, the inputs of the next run
 * are copied to the device, and the results of the previous run are copied to the host. Each copy
 * has a stream of its own. */
#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include "engine/backend/backend.h"
#include "engine/backend/plan.h"
#include "engine/cuda/kernels/kernels.h"

struct cuda_step;
/* struct cuda_backend and struct cuda_program implement the opaque struct backend and struct
 * program of engine/backend/backend.h, which functions of backend_ops take. */
struct cuda_program;
typedef enum status (*cuda_step_fn)(struct cuda_step *step, struct cuda_program *program,
                                    struct error *err);

enum {
    RUNS = 2,         /* the most runs in flight */
    RESULTS = 3,      /* the runs in flight, and one whose results are being read */
    ARENA_ALIGN = 256 /* cudaMalloc's alignment */
};

/* Memory and events of a run in flight. */
struct cuda_slot {
    unsigned char *staging, *results; /* device memory, in the arena */
    uint8_t *marks; /* page-locked; marks[r]: row r of the batch has pixels as bytes */
    /* arrived: the inputs are on the device. computed: the inputs have been read, and the results
     * are written. fetched: the results are on the host. */
    cudaEvent_t arrived, computed, fetched;
    struct cuda_program *program; /* the running program; NULL: none */
    unsigned char *host;          /* host memory for the results */
};

struct cuda_backend {
    struct backend_options options;
    int device;
    int capability;         /* 90: compute capability 9.0 */
    int processors;         /* multiprocessors */
    size_t shared_limit;    /* bytes of shared memory that a block can have */
    bool has_pool;          /* memory comes from the device's pool (cudaMallocAsync) */
    struct graph_hash kind; /* identifies the device and its software: tune_kind() */
    cudaStream_t stream;    /* steps compute on it */
    cudaStream_t in, out;   /* `in` copies inputs, `out` copies results */
    cudaStream_t trial;     /* lowest priority, for measuring candidates */
    cublasLtHandle_t blas;
    struct cuda_weight *weights; /* uploaded constants: weights.c */
    size_t weight_bytes;
    unsigned char *arena; /* device memory: values, the steps' workspace, the slots */
    size_t arena_bytes;
    struct cuda_program *programs;
    struct cuda_slot slots[RUNS];
    unsigned long submitted, collected;
    unsigned char *pinned; /* page-locked memory: results, then marks */
    size_t pinned_bytes, results_bytes;
    float *pixel_table; /* on the device; NULL: no input has pixels */
    int pixel_channels;
    bool pixels_are_reversed;
};

/* A float32 image input whose rows a caller may pass as bytes. A run first converts the bytes to
 * numbers, which have a place of their own in the arena. */
struct pixels {
    size_t offset;    /* start of the numbers in the arena */
    size_t row_count; /* numbers of a row; 0: there is no such input */
};

struct cuda_program {
    struct cuda_backend *backend;
    struct cuda_program *next;
    struct plan plan;
    const struct graph *graph; /* lives as long as the program */
    void **data;               /* device addresses by cuda_index_of() */
    struct cuda_step **steps;
    size_t step_count;
    size_t value_bytes;    /* bytes of the values and of the numbers made from pixels */
    size_t workspace;      /* the largest workspace of a step; it follows the values in the arena */
    size_t *input_offsets; /* where each graph input starts in a slot's staging */
    size_t staging_bytes;
    size_t *result_offsets; /* where each graph output starts in a slot's results */
    size_t result_bytes;
    int rows; /* number of images of the batch */
    struct pixels pixels;
    struct tensor **constants; /* constants[o]: value of graph output o; NULL: a run computes it */
    bool has_host_steps;
    cudaGraphExec_t captured[RUNS]; /* the recording for each slot; NULL: none */
};

/* A compiled node. Implementations have it as their first member. */
struct cuda_step {
    char *name;
    const char *kernel;      /* static text */
    uint32_t x, y, residual; /* first operand, first result, residual: cuda_index_of() */
    double flops;
    size_t bytes;
    size_t workspace;
    bool on_host; /* the step waits for the stream, so it cannot be recorded */
    cuda_step_fn run;
    /* Chooses the fastest candidate; may be NULL. The arena is allocated, with any contents. */
    cuda_step_fn tune;
    void (*free)(struct cuda_step *step);
};

struct cuda_lowering {
    struct cuda_backend *backend;
    struct cuda_program *program;
    const struct node *node;
};

/* Returns the index in program->data of a value's address; if `value` is NULL, the index of a NULL
 * address. */
static inline uint32_t cuda_index_of(const struct cuda_lowering *compile, const struct value *value)
{
    return value ? value->index : (uint32_t)compile->program->graph->value_count;
}

/* Allocates a step of `size` bytes as a copy of `form` (NULL: zeroed), and sets its name, run, x,
 * y, residual and bytes. Returns the step and stores it in *ret; NULL with an error when out of
 * memory. A lowering that fails later leaves the step in *ret, and the program frees the step. */
void *cuda_step_create(const struct cuda_lowering *compile, const void *form, size_t size,
                       cuda_step_fn run, struct cuda_step **ret, struct error *err);

void cuda_step_free(struct cuda_step *step); /* NULL is fine */

/* Returns STATUS_OK, STATUS_DEVICE_MEMORY or STATUS_DEVICE; the error names device and `what`. */
enum status cuda_check(cudaError_t result, int device, const char *what,
                       struct error *err) MUST_USE;
enum status blas_check(cublasStatus_t result, int device, const char *what,
                       struct error *err) MUST_USE;
/* Clears the error of a call whose failure does not matter, so that no later launch reports it. */
static inline void cuda_ignore(cudaError_t result)
{
    if (result != cudaSuccess)
        (void)cudaGetLastError();
}
/* Checks that the last launch was accepted. */
enum status cuda_launched(const struct cuda_step *step, struct cuda_program *program,
                          struct error *err) MUST_USE;

/* Sets *chosen, which step->run reads, to the fastest of the candidates 0 … count - 1, by the
 * autotuner (LENSD_CUDA_TUNING: see tune.c). Candidate 0 is the best guess; count is at most
 * AUTOTUNE_CANDIDATES. `key` identifies the step on a kind of device. Each key is measured once
 * (engine/backend/tuning_store.h). If other sessions' batches run on the device meanwhile, the
 * result is used for this step only. */
enum status tune_step(struct cuda_step *step, struct cuda_program *program, int *chosen, int count,
                      const void *key, size_t size, struct error *err) MUST_USE;

/* Returns a hash of the kind of device, the build, the driver and the libraries. */
struct graph_hash tune_kind(const struct cudaDeviceProp *device);

/* True if products of this dtype run on tensor cores; float32 only as TF32. */
static inline bool has_tensor_cores(const struct cuda_backend *backend, enum dtype dtype)
{
    return (dtype == DTYPE_F16 && backend->capability >= 75) ||
           (dtype == DTYPE_BF16 && backend->capability >= 80) ||
           (dtype == DTYPE_F32 && backend->options.precision == PRECISION_TF32);
}

/* True if the kernels compute in this dtype. */
static inline bool is_computed(enum dtype dtype)
{
    return dtype == DTYPE_F32 || dtype == DTYPE_F16 || dtype == DTYPE_BF16;
}

/* ---- the device (device.c) ---- */

cudaError_t device_failure(int device); /* why the device was given up; cudaSuccess: it works */
void device_note_success(int device);   /* call it after a pass has succeeded */

/* Counts the batches that all sessions of this process have started and finished on a device: adds
 * to the counts and returns them. */
struct batch_counts {
    unsigned long begun, ended;
};
struct batch_counts device_note_batches(int device, int begun, int ended);

/* Records that this process has a context on the device. */
void device_note_opened(int device);
bool device_has_context(int device);
/* Selects any device with a context for the calling thread: without this the thread would create a
 * context on cuda:0. */
void device_use_any(void);

/* Selects the backend's device for the calling thread. */
enum status use_device(const struct cuda_backend *backend, struct error *err) MUST_USE;

/* Copies to device memory and waits for the copy. `from` may be any host memory. */
enum status device_upload(const struct cuda_backend *backend, void *to, const void *from,
                          size_t bytes, const char *what, struct error *err) MUST_USE;

/* Allocates device memory for work on backend->stream. The error says how much is missing. */
enum status device_alloc(const struct cuda_backend *backend, size_t bytes, const char *what,
                         void **ret, struct error *err) MUST_USE;
/* Allocates page-locked host memory; free it with cudaFreeHost(). Fails with STATUS_NO_MEMORY, not
 * STATUS_DEVICE_MEMORY, because the caller must not retry with a smaller batch. */
enum status device_pin(int device, size_t bytes, unsigned flags, const char *what, void **ret,
                       struct error *err) MUST_USE;
/* Frees device memory after the work that is enqueued on backend->stream. Unlike cudaFree() it does
 * not wait for other models on the device. NULL is fine. */
void device_free(const struct cuda_backend *backend, void *data);
/* Lets the backend's device read memory of device `peer`. Returns false if that is impossible. */
bool device_reads_peer(const struct cuda_backend *backend, int peer);

/* ---- programs, and the arena that a backend's programs share (program.c) ---- */

void cuda_program_free(struct program *program); /* NULL is fine; updates the backend's list */
/* Returns the bytes of the arena that this program alone would need. */
size_t cuda_program_activation_bytes(const struct program *program);
/* Allocates the arena for all programs of the backend, places values, tunes and records. */
enum status cuda_programs_reserve(struct backend *backend, struct error *err) MUST_USE;

/* ---- runs (runs.c) ---- */

enum status runs_open(struct cuda_backend *backend, struct error *err) MUST_USE;
/* Waits until all runs in flight have ended or failed. The caller may then reuse their memory. */
void runs_settle(struct cuda_backend *backend);
void runs_close(struct cuda_backend *backend); /* also after runs_open() failed */

/* Assigns memory to a program's inputs and results. Call it before the steps are created. */
void runs_place(struct cuda_program *program);
/* Sets the bytes of staging and results that are enough for every program of the backend. */
void runs_bytes(const struct cuda_backend *backend, size_t *ret_staging, size_t *ret_results);
/* Allocates page-locked memory, and assigns the arena from `first` on to the slots. */
enum status runs_reserve(struct cuda_backend *backend, unsigned char *first,
                         struct error *err) MUST_USE;
/* Runs the program once on any inputs and records it for every slot, if no step is on the host. */
enum status runs_capture(struct cuda_program *program, struct error *err) MUST_USE;
/* Records the work that `launch` enqueues on backend->stream as a CUDA graph, which the caller
 * destroys. *ret does not change on failure. Every kernel that `launch` starts must have run
 * before, because a recording cannot load kernels. */
enum status runs_record(struct cuda_backend *backend,
                        enum status (*launch)(void *context, struct error *err), void *context,
                        cudaGraphExec_t *ret, struct error *err) MUST_USE;
/* True unless LENSD_CUDA_GRAPHS is "off". */
bool runs_records(void);
void runs_forget(struct cuda_program *program); /* discards the recordings */

enum status runs_submit(struct program *program, const struct run_request *request,
                        struct error *err) MUST_USE;
enum status runs_collect(struct backend *backend, const void **outputs, struct error *err) MUST_USE;
enum status runs_time(struct program *program, const void *const *inputs, int runs, double *ret_ms,
                      struct error *err) MUST_USE;
enum status runs_profile(struct program *program, const void *const *inputs,
                         struct session_step *ret, size_t max, size_t *ret_count,
                         struct error *err) MUST_USE;

/* ---- constants on the device (weights.c) ---- */

/* `padded rows` are padded to a multiple of 8 numbers, of 16 for 8-bit integers. */
enum weight_layout {
    WEIGHT_AS_IS,
    WEIGHT_CONV,      /* [m, c, kh, kw] as [m, kh, kw, c] */
    WEIGHT_CONV_ROWS, /* as WEIGHT_CONV, with padded rows and c padded to a multiple of 2 (for 8-bit
                         integers: of 4) */
    WEIGHT_TAPS,      /* [m, c, kh, kw] as [kh, kw, m, c] */
    WEIGHT_TRANSPOSED, /* [k, n] as [n, k], padded rows */
    WEIGHT_ROWS,       /* [n, k], padded rows */
    WEIGHT_OF_F16,     /* unchanged order, each number rounded to float16 */
    WEIGHT_OF_BF16,    /* unchanged order, each number rounded to bfloat16 */
};

/* Returns the constant in device memory, which is stored once per device for all sessions and is
 * valid as long as the backend. A float constant is converted to the float type `dtype`. */
enum status cuda_weights_get(struct cuda_backend *backend, struct tensor *constant,
                             enum weight_layout layout, enum dtype dtype, const void **ret,
                             struct error *err) MUST_USE;
/* Like cuda_weights_get(), but subtracts zero points from 8-bit integers and stores the differences
 * as I8 or I16. `zero` has one number, or one for each output channel; NULL: 0. */
enum status cuda_weights_without_zero(struct cuda_backend *backend, struct tensor *constant,
                                      struct tensor *zero, enum weight_layout layout,
                                      enum dtype dtype, const void **ret,
                                      struct error *err) MUST_USE;
/* Returns number i of the constant minus its zero point, and the number's output channel. */
int cuda_weight_at(const struct tensor *constant, const struct tensor *zero,
                   enum weight_layout layout, size_t i, size_t *ret_channel);
/* Like cuda_weights_get() with WEIGHT_AS_IS; *ret is NULL if the value is no constant. */
enum status cuda_weights_of(struct cuda_backend *backend, const struct value *value,
                            enum dtype dtype, const void **ret, struct error *err) MUST_USE;
/* Sets up the node's epilogue, without its residual, and uploads the bias (NULL: none): float32
 * numbers rounded to the type of the node's result. cuBLASLt requires a bias of its result's type,
 * so every candidate adds the same rounded bias. */
enum status cuda_epilogue_of(const struct cuda_lowering *compile, const struct value *bias,
                             struct cuda_epilogue *ret, struct error *err) MUST_USE;
/* Like cuda_weights_get(), for `count` numbers of this dtype in host memory. */
enum status cuda_weights_upload(struct cuda_backend *backend, enum dtype dtype, const void *numbers,
                                size_t count, const void **ret, struct error *err) MUST_USE;

/* An operand of a step: a constant on the device, or a value. */
struct cuda_operand {
    const void *constant; /* NULL: use the value */
    uint32_t value;
};
/* Reads an operand; a constant is converted to `dtype`. */
enum status cuda_operand_of(const struct cuda_lowering *compile, const struct value *value,
                            enum dtype dtype, struct cuda_operand *ret, struct error *err) MUST_USE;
static inline const void *cuda_operand_at(const struct cuda_program *program,
                                          const struct cuda_operand *operand)
{
    return operand->constant ? operand->constant : program->data[operand->value];
}
/* Returns the distance in numbers between rows of the packed constant. */
int64_t cuda_weights_row(const struct tensor *constant, enum weight_layout layout,
                         enum dtype dtype);
void cuda_weights_settle(struct cuda_backend *backend); /* frees the host's copies */
void cuda_weights_free(struct cuda_backend *backend);
