/* Reference kernels: every operator in plain C on contiguous host tensors, in ONNX's own layout.
 *
 * They are the judge of every faster path, they fold constants at load, and they run whatever no
 * faster path covers. Each takes one node and already inferred outputs, keeps no state, and is
 * thread-safe as long as the outputs are not shared. One file a family. */
#pragma once

#include "engine/graph/graph.h"
#include "engine/op/ops.h"

struct interpreter;

struct kernel_args {
    const struct node *node;
    const struct tensor *const *in; /* node->input_count entries; NULL: left out. Host memory. */
    /* node->output_count entries. out[i] is NULL where the output is not wanted. Where inference
     * knew the shape, out[i] is an allocated tensor to fill wholly. Where the shape depends on data
     * (OP_DATA_SHAPE, bodies of If …), out[i] points at a NULL tensor pointer that the kernel sets
     * through kernel_output(). */
    struct tensor **const *out;
    struct memory_budget *budget; /* for kernel_output and scratch; may be NULL */
    /* Runs a body of If, Loop or Scan on inputs[body->input_count]; outputs[body->output_count]
     * receives one reference each on success. Values of enclosing graphs are read through
     * value->outer. Only the interpreter sets these two. */
    enum status (*run_body)(struct interpreter *interpreter, struct graph *body,
                            struct tensor *const *inputs, struct tensor **outputs,
                            struct error *err);
    struct interpreter *interpreter;
    bool (*stop)(void *context); /* if it returns true, the run is to end; NULL: nothing stops it */
    void *stop_context;
    struct scratch_block **scratch; /* kernel_call()'s, as is the next one */
    size_t *unasked;                /* elements computed since `stop` was called */
};

/* Errors: STATUS_SHAPE / STATUS_MODEL / STATUS_INVALID for contents that no inference could check
 * (an index out of range, division of INT_MIN by -1 …), STATUS_NO_MEMORY, STATUS_CANCELLED. Never
 * crashes on any contents. On failure outputs are undefined but still owned by the caller. Called
 * through kernel_call(). */
typedef kernel_function *kernel_fn;

/* Defines a kernel of the family's file; many cannot fail. */
#define KERNEL(name)                                                                               \
    static enum status name(const struct kernel_args *args,                                        \
                            __attribute__((unused)) struct error *err)

/* Output 0 is input 0's bytes under another shape; it may be the same memory. */
enum status kernel_view(const struct kernel_args *args, struct error *err);

/* The kernel of an operator, or NULL. */
kernel_fn kernel_find(enum op op);

/* Runs a kernel, unless all outputs are allocated and empty, then frees its scratch memory. */
enum status kernel_call(kernel_fn kernel, const struct kernel_args *args,
                        struct error *err) MUST_USE;

/* Kernels whose work can exceed the elements of their operands many times call this in their loops,
 * before they compute `elements` more. It asks kernel_args.stop once in KERNEL_ASKS elements:
 * STATUS_CANCELLED. */
enum { KERNEL_ASKS = 1 << 22 };
enum status kernel_goes_on(const struct kernel_args *args, size_t elements,
                           struct error *err) MUST_USE;

/* Input i; NULL if it is left out. */
static inline const struct tensor *kernel_input(const struct kernel_args *args, size_t i)
{
    return i < args->node->input_count ? args->in[i] : NULL;
}

/* Output i, whose shape inference has determined; NULL if it is not wanted. */
static inline struct tensor *kernel_result(const struct kernel_args *args, size_t i)
{
    return i < args->node->output_count && args->out[i] ? *args->out[i] : NULL;
}

/* Makes output i when its shape was not known beforehand; the caller of the kernel owns it. */
enum status kernel_output(const struct kernel_args *args, size_t i, enum dtype dtype,
                          const struct shape *shape, struct error *err) MUST_USE;

/* Allocates scratch memory that lasts until the kernel returns, charged to the budget. NULL with
 * *err set on failure: of its status the interpreter makes that of the run. */
void *kernel_scratch(const struct kernel_args *args, size_t count, size_t size, struct error *err);

/* Returns scratch memory for the elements of output i as numbers of `dtype`, whose values the
 * output gets when the kernel has succeeded. */
void *kernel_result_scratch(const struct kernel_args *args, size_t i, enum dtype dtype,
                            struct error *err);

/* Grows scratch memory that one of these functions has returned, or allocates it if `memory`
 * is NULL. `memory` becomes invalid, except after a failure. */
void *kernel_scratch_grow(const struct kernel_args *args, void *memory, size_t count, size_t size,
                          struct error *err);
