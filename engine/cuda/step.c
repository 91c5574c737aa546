/* What all steps share: how they are made, freed, and how a launch is checked. */
#include <stdlib.h>
#include <string.h>

#include "engine/cuda/program.h"

void *step_create(const struct compile *compile, size_t size,
                  enum status (*run)(struct step *, struct program *, struct error *))
{
    struct step *step = calloc(1, size);
    if (!step)
        return NULL;
    step->name = strdup(compile->node->name);
    if (!step->name) {
        free(step);
        return NULL;
    }
    step->kernel = "cuda";
    step->run = run;
    return step;
}

void step_free(struct step *step)
{
    if (!step)
        return;
    if (step->free)
        step->free(step);
    free(step->name);
    free(step);
}

enum status cuda_launched(const struct step *step, struct program *program, struct error *err)
{
    cudaError_t result = cudaPeekAtLastError();
    return result == cudaSuccess
               ? STATUS_OK
               : cuda_check(cudaGetLastError(), program->backend->device, step->name, err);
}
