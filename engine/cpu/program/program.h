/* Private to engine/cpu/: compiled graphs, their steps, and functions for lowerings to build steps.
 *
 * program->data[value index] is the address of an operand: of a kept constant from compilation on,
 * of a value in the arena after programs_place(), and of a caller's input during a run. */
#pragma once

#include "engine/backend/backend.h"
#include "engine/backend/plan.h"
#include "engine/backend/shared_arena.h"
#include "engine/cpu/program/packed_layout.h"

struct step;

struct backend {
    struct backend_options options;
    struct weight *weights; /* packed constants that all programs share: weights.c */
    size_t weight_bytes;
    bool prefers_winograd;         /* for tests: uses Winograd's kernel also where it is slower */
    struct shared_arena *arena;    /* holds the programs' values, except outputs */
    struct shared_arena own_arena; /* used until the backend joins another arena */
    struct backend *next_user;     /* next one in arena->users */
    size_t arena_bytes;            /* bytes that the largest program needs */
    unsigned char *outputs;        /* memory for outputs; the programs use it in turn */
    size_t output_bytes;           /* bytes that the largest outputs need */
    size_t output_room;            /* size of `outputs`: for stream_count + 1 runs, or for one */
    struct program *programs;      /* list of all programs, linked by `next` */
    struct program *submitted;     /* collect() will run it; or NULL */
    const void *const *submitted_inputs;
    int stream_count;
    struct cpu_streams *streams;        /* NULL: there are none */
    struct node_program *node_programs; /* most recently used first: node_runner.c */
};

struct program {
    struct backend *backend;
    struct program *next;
    struct weight *weights_before; /* backend->weights when compilation started */
    const struct graph *graph;     /* lives as long as the program */
    int threads;                   /* of a run */
    struct plan plan;
    void **data;               /* address of each value, by index */
    const unsigned char *base; /* the arena's base when `data` was set */
    struct step **steps;
    size_t step_count;
    size_t scratch_bytes; /* largest step.scratch; `scratch` follows the arena's values */
    unsigned char *scratch;
    bool is_stream;            /* belongs to a stream: its outputs follow the scratch memory */
    size_t at;                 /* of a stream's program: offset of its memory in the arena */
    struct tensor **constants; /* references held for steps that read them in place */
    size_t constant_count, constant_capacity;
};

/* Returns STATUS_CANCELLED if the run must stop (backend_options.is_stopped). */
enum status backend_check_stop(const struct backend *backend, struct error *err) MUST_USE;

typedef enum status (*step_run_fn)(struct step *step, struct program *program, struct error *err);

/* A compiled node. The steps of lowerings have a struct step as their first member. */
struct step {
    const char *name;     /* the node's, in a copy that the step owns */
    const char *kernel;   /* static text for profiles, such as "gemm" */
    double flops;         /* a multiply-add counts as two */
    size_t bytes;         /* minimal traffic: operands read plus results written */
    bool packs_constants; /* the step has its own copy of every constant operand, even of those that
                             folding made: nothing else keeps them */
    enum precision precision;  /* precision of its first operand */
    bool is_reference;         /* it runs the node's reference kernel */
    size_t scratch;            /* bytes of program->scratch that it needs during a run */
    uint32_t x_value, y_value; /* indexes of the first operand and the first result */
    const unsigned char *x;    /* address of x_value in this run */
    unsigned char *y, *memory; /* addresses of y_value and of the scratch in this run */
    step_run_fn run;
    void (*free)(struct step *step);
};

/* Arguments for creating a step. */
struct lowering {
    struct backend *backend;
    struct program *program;
    const struct node *node;
};

/* ---- steps (program.c) ---- */

/* Creates a step of `size` bytes, zeroed but for name, kernel, flops, bytes (without constants),
 * run, x_value and y_value. Also stores it in *ret, from where cpu_compile() frees it after an
 * error. Returns NULL and sets *err when out of memory (STATUS_NO_MEMORY). */
void *step_create(const struct lowering *lowering, size_t size, step_run_fn run, struct step **ret,
                  struct error *err);

void step_free(struct step *step); /* NULL is fine */

/* Returns the elements from one pixel of a channels-last image to the next: more than its channels
 * if the image is a part of a Concat's result. */
size_t pixel_pitch(const struct lowering *lowering, const struct value *image);

/* Runs a step of the program. The program's values must have addresses. */
enum status program_step(struct program *program, struct step *step, struct error *err) MUST_USE;

/* Keeps a reference to a constant and makes it readable through program->data. */
enum status program_keep_constant(struct program *program, const struct value *value,
                                  struct error *err);

/* ---- programs (program.c) ---- */

void program_free(struct program *program); /* NULL is fine */

/* Sets the addresses of all values for a run. The program's batch begins at number `image` of the
 * inputs. Call it while the arena is locked. */
void program_bind(struct program *program, const void *const *inputs, int image);

/* Runs all steps. `inputs` as in struct run_request, `outputs` as for collect() of backend_ops. */
enum status program_run(struct program *program, const void *const *inputs, const void **outputs,
                        struct error *err) MUST_USE;
enum status program_profile(struct program *program, const void *const *inputs,
                            struct session_step *ret, size_t max, size_t *ret_count,
                            struct error *err) MUST_USE;
size_t program_output_bytes(const struct program *program);
size_t program_activation_bytes(const struct program *program);
size_t programs_weight_bytes(const struct backend *backend);

/* Allocates memory for the largest program and sets the addresses of all values. Calls
 * free_streams() if the streams need much more memory than that program. STATUS_NO_MEMORY. */
enum status programs_place(struct backend *backend, void (*free_streams)(struct backend *backend),
                           struct error *err) MUST_USE;

/* ---- streams (streams.c) ---- */

#define STREAMS_MOST 8 /* with more threads, a stream has several */
/* Makes `count` streams with equal shares of single->threads. `single` is a program for one image,
 * and has no reference kernels, because these write to the graph, which all streams read. compile()
 * makes a stream's program. On failure the caller frees the streams. Only the session's thread
 * calls these functions. STATUS_NO_MEMORY. */
typedef enum status (*stream_compile)(struct backend *backend, const struct graph *graph,
                                      int threads, bool is_stream, struct program **ret,
                                      struct error *err);
enum status streams_create(struct backend *backend, const struct program *single, int count,
                           stream_compile compile, struct error *err) MUST_USE;
void streams_free(struct backend *backend);

/* Starts a run of the first `rows` images. The arena stays locked until all runs are collected.
 * Returns false and starts nothing if the system refuses threads. */
bool streams_submit(struct program *program, const void *const *inputs, int rows) MUST_USE;
bool streams_are_running(const struct backend *backend); /* a run is in flight */
bool streams_run_has_ended(struct backend *backend);     /* the oldest run in flight has ended */
double streams_cpu_ms(const struct backend *backend);    /* mean of the streams' threads */
/* Waits for the oldest run. The results are those of collect() of backend_ops. */
enum status streams_collect(struct backend *backend, const void **outputs, struct error *err);
void streams_stop(struct backend *backend); /* ends the threads; the next run starts them again */

/* ---- arenas (shared_arena.c) ---- */

/* Resizes memory at *pages from `before` to `bytes` bytes: maps or moves it, or for 0 unmaps it.
 * Returns false and changes nothing when out of memory. */
bool pages_resize(unsigned char **pages, size_t before, size_t bytes);

/* Makes the arena as large as its users' largest program needs. Returns false and changes nothing
 * when out of memory. Like arena_join() and arena_leave(), it takes the arena's lock. */
bool arena_fit(struct shared_arena *arena);
/* Moves the backend to `arena`, and enlarges the arena if needed. Returns false and moves nothing
 * when out of memory. */
bool arena_join(struct backend *backend, struct shared_arena *arena);
void arena_leave(struct backend *backend); /* the backend may have no arena */

/* ---- epilogues (program.c) ---- */

/* The value that an epilogue adds to the node's result. */
struct residual {
    void **copied; /* address in program->data; NULL: the value is in the result's place, or
                      there is none */
    size_t bytes;
};

struct residual residual_of(const struct lowering *lowering);

/* At the start of a run, copies the residual to the result's place if necessary. */
void residual_begin(const struct residual *residual, void *dst);

/* Returns the epilogue with a clip in place of a Relu: kernels apply clips in registers. */
struct epilogue epilogue_with_clip(const struct epilogue *epilogue);

/* ---- packed weights (weights.c) ---- */

/* Sets the strides of a row-major tensor from its dims. */
void strided_layout_row_major(struct strided_layout *layout);
/* Exchanges two dims and their strides. */
void strided_layout_swap(struct strided_layout *layout, int a, int b);

/* Returns `constant`, which has the layout `given`, packed in the layout `wanted`. It is packed
 * once per (constant, given, wanted) and backend; the backend owns the memory. */
enum status weights_get(struct backend *backend, struct tensor *constant,
                        const struct strided_layout *given, const struct packed_layout *wanted,
                        const void **ret_data, struct error *err) MUST_USE;
/* Like weights_get(), but pack() fills the memory from the constant. `layout` (static text) and
 * `bytes` identify the layout that pack() gives a constant. */
typedef void (*weights_pack)(const void *context, const struct tensor *constant, float *packed);
enum status weights_pack_own(struct backend *backend, struct tensor *constant, const char *layout,
                             size_t bytes, weights_pack pack, const void *context,
                             const float **ret, struct error *err) MUST_USE;
/* Frees the weights that were packed since backend->weights was `oldest`; NULL: all. No step may
 * read the freed weights. */
void weights_free_since(struct backend *backend, const struct weight *oldest);
/* Call it after compiling: drops the references to constants that have been packed. */
void weights_seal(struct backend *backend);
