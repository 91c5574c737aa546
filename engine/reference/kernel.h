/* Reference kernels: every operator in plain C on contiguous host tensors, in ONNX's own layout.
 *
 * They are the judge of every faster path, they fold constants at load, and they run whatever no
 * faster path covers. Each takes one node and already inferred outputs, keeps no state, and is
 * thread-safe as long as the outputs are not shared. One file a family. */
#pragma once

#include "engine/graph/graph.h"
#include "engine/ops/ops.h"

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
};

/* Errors: STATUS_SHAPE / STATUS_MODEL / STATUS_INVALID for contents that no inference could check
 * (an index out of range, division of INT_MIN by -1 …), STATUS_NO_MEMORY. Never crashes on any
 * contents. On failure outputs are undefined but still owned by the caller. */
typedef enum status (*kernel_fn)(const struct kernel_args *args, struct error *err);

/* The kernel of an operator, or NULL. */
kernel_fn kernel_find(enum op op);

/* Makes output i when its shape was not known beforehand; the caller of the kernel owns it. */
enum status kernel_output(const struct kernel_args *args, size_t i, enum dtype dtype,
                          const struct shape *shape, struct error *err) MUST_USE;

/* Scratch memory charged to the budget's limit (checked, not counted); NULL with *err set. free().
 */
void *kernel_scratch(const struct kernel_args *args, size_t count, size_t size, struct error *err);

struct kernel_entry {
    enum op op;
    kernel_fn run;
};

struct kernel_family {
    const struct kernel_entry *kernels;
    size_t count;
};

extern const struct kernel_family kernels_elementwise;
extern const struct kernel_family kernels_shape;
extern const struct kernel_family kernels_index;
extern const struct kernel_family kernels_reduce;
extern const struct kernel_family kernels_linear;
extern const struct kernel_family kernels_convolution;
extern const struct kernel_family kernels_norm;
extern const struct kernel_family kernels_resample;
extern const struct kernel_family kernels_quantize;
extern const struct kernel_family kernels_control;
extern const struct kernel_family kernels_attention;
extern const struct kernel_family kernels_transformer;
