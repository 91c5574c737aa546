/* Reference kernels: every operator in plain C on contiguous host tensors, in ONNX's own layout.
 *
 * Tests compare every faster kernel with a reference kernel. Reference kernels also fold constants
 * at load, and run nodes without a faster kernel. A kernel gets one node and outputs with inferred
 * shapes, keeps no state, and is thread-safe if the outputs are not shared. */
#pragma once

#include "engine/graph/graph.h"
#include "engine/op/ops.h"

struct interpreter;

struct kernel_args {
    const struct node *node;
    const struct tensor *const *in; /* node->input_count entries; NULL: omitted. Host memory. */
    /* node->output_count entries. out[i] is NULL if node->outputs[i] is NULL: the output is not
     * wanted. If inference knew the shape, out[i] is an allocated tensor whose bytes the kernel
     * must all write. If the shape depends on data (OP_DATA_SHAPE, bodies of If …), out[i] is NULL
     * until the kernel calls kernel_output(). */
    struct tensor **out;
    struct memory_budget *budget; /* for kernel_output and scratch; may be NULL */
    /* Runs a body of If, Loop or Scan on inputs[body->input_count]. On success
     * outputs[body->output_count] receives one reference each. Values of enclosing graphs are read
     * through value->outer. Only the interpreter sets this member and the next two. */
    enum status (*run_body)(struct interpreter *interpreter, struct graph *body,
                            struct tensor *const *inputs, struct tensor **outputs,
                            struct error *err);
    struct interpreter *interpreter;
    const bool *constant;        /* [inputs]: the same tensor with the same bytes in every run */
    bool (*stop)(void *context); /* returns true if the run must end; may be NULL */
    void *stop_context;
    struct scratch_block **scratch; /* private to kernel_call(), like `unasked` */
    size_t *unasked;                /* elements computed since the last call of `stop` */
};

/* Errors: STATUS_SHAPE / STATUS_MODEL / STATUS_INVALID for contents that inference cannot check (an
 * index out of range, INT_MIN / -1 …), STATUS_NO_MEMORY, STATUS_CANCELLED. Never crashes on any
 * contents. On failure outputs are undefined but still owned by the caller. Called through
 * kernel_call(). */
typedef kernel_function *kernel_fn;

/* Begins the definition of a kernel. Many kernels cannot fail, so `err` may be unused. */
#define KERNEL(name)                                                                               \
    static enum status name(const struct kernel_args *args,                                        \
                            __attribute__((unused)) struct error *err)

/* Copies the bytes of input 0 to output 0, unless both tensors have the same memory. */
enum status kernel_view(const struct kernel_args *args, struct error *err);

/* The kernel of an operator, or NULL. */
kernel_fn kernel_find(enum op op);

/* Runs a kernel, then frees its scratch memory. Does not run the kernel if all outputs are
 * empty. */
enum status kernel_call(kernel_fn kernel, const struct kernel_args *args,
                        struct error *err) MUST_USE;

/* Kernels whose work can exceed the size of their operands many times call this function in loops,
 * before they compute `elements` more elements. The function calls kernel_args.stop once per
 * KERNEL_ASKS elements, and returns STATUS_CANCELLED if the run must stop. */
enum { KERNEL_ASKS = 1 << 22 };
enum status kernel_goes_on(const struct kernel_args *args, size_t elements,
                           struct error *err) MUST_USE;

/* Input i; NULL if it is omitted. */
static inline const struct tensor *kernel_input(const struct kernel_args *args, size_t i)
{
    return i < args->node->input_count ? args->in[i] : NULL;
}

/* Output i; NULL if it is not wanted, or if inference did not know its shape. */
static inline struct tensor *kernel_result(const struct kernel_args *args, size_t i)
{
    return i < args->node->output_count ? args->out[i] : NULL;
}

/* Creates output i, whose shape inference did not know. The caller of the kernel owns the
 * output. */
enum status kernel_output(const struct kernel_args *args, size_t i, enum dtype dtype,
                          const struct shape *shape, struct error *err) MUST_USE;

/* Allocates scratch memory that lasts until the kernel returns, charged to the budget. On failure
 * returns NULL and sets *err. */
void *kernel_scratch(const struct kernel_args *args, size_t count, size_t size, struct error *err);

/* Returns scratch memory for the elements of output i as numbers of `dtype`. When the kernel has
 * succeeded, these numbers are converted into the output. */
void *kernel_result_scratch(const struct kernel_args *args, size_t i, enum dtype dtype,
                            struct error *err);

/* Like realloc(), for memory from kernel_scratch() or this function, or NULL. After success, the
 * old pointer `memory` is invalid. */
void *kernel_scratch_grow(const struct kernel_args *args, void *memory, size_t count, size_t size,
                          struct error *err);
