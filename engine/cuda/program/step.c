/* Makes and frees steps, and checks launches. */
#include <stdlib.h>
#include <string.h>

#include "engine/base/size.h"
#include "engine/cuda/program/program.h"

void *cuda_step_create(const struct cuda_lowering *compile, const void *form, size_t size,
                       cuda_step_fn run, struct cuda_step **ret, struct error *err)
{
    struct cuda_step *step = calloc(1, size);
    char *name = strdup(compile->node->name);
    if (!step || !name) {
        FREE_ALL(step, name);
        (void)error_no_memory(err, "while compiling");
        return NULL;
    }
    if (form)
        memcpy(step, form, size);
    step->name = name;
    step->run = run;
    const struct value *x = node_input(compile->node, 0), *y = node_output(compile->node, 0);
    step->x = cuda_index_of(compile, x);
    step->y = cuda_index_of(compile, y);
    step->residual = cuda_index_of(compile, compile->node->epilogue.residual);
    step->bytes = (x ? value_bytes(x) : 0) + (y ? value_bytes(y) : 0);
    *ret = step;
    return step;
}

void cuda_step_free(struct cuda_step *step)
{
    if (!step)
        return;
    if (step->free)
        step->free(step);
    FREE_ALL(step->name, step);
}

enum status cuda_launched(const struct cuda_step *step, struct cuda_program *program,
                          struct error *err)
{
    cudaError_t result = cudaPeekAtLastError();
    return result == cudaSuccess
               ? STATUS_OK
               : cuda_check(cudaGetLastError(), program->backend->device, step->name, err);
}
