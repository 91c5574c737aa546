/* A reference kernel as a step of a compiled program: the node without its epilogue, and the
 * tensors that the kernel reads and writes. */
#pragma once

#include "engine/op/kernel.h"

struct bound_kernel {
    kernel_fn kernel;
    struct node node; /* a copy that lacks the epilogue, the residual and a MatMul's bias */
    struct epilogue epilogue;
    const struct value *bias;  /* a MatMul's bias, added along the last dimension; NULL: no bias */
    struct tensor **in, **out; /* [inputs], [outputs]; NULL: omitted */
    bool *constant;            /* [inputs]: in[i] is a reference to a constant */
    bool *lent;                /* [inputs]: the run has set the value's `known` and will reset it */
};

/* With own_memory, operands that are not constants have their own memory. Otherwise these operands
 * wrap memory that the caller sets before each run. The caller frees *ret, even after a failure.
 * STATUS_NO_MEMORY. */
enum status bound_kernel_create(const struct node *node, bool own_memory, struct bound_kernel *ret,
                                struct error *err) MUST_USE;
void bound_kernel_free(struct bound_kernel *bound);

/* Runs the kernel; an error names the node. `stop` and its context are as in kernel_args. During
 * the run, value->known of the node's inputs refers to the tensors of `bound`, as in the
 * interpreter. So only one thread at a time may run kernels of a graph. */
enum status bound_kernel_run(struct bound_kernel *bound, bool (*stop)(void *context),
                             void *stop_context, struct error *err) MUST_USE;

/* True if the step has a part that the kernel does not compute: a bias, residual, activation or
 * rounding. */
static inline bool bound_kernel_has_more(const struct bound_kernel *bound)
{
    return bound->bias || bound->epilogue.residual || bound->epilogue.activation ||
           bound->epilogue.step != 0;
}
