/* What lensd's own products do behind the sum. */
#include <math.h>
#include <string.h>

#include "engine/cpu/program.h"

enum status finish_init(const struct compile *compile, const struct value *bias, struct finish *ret,
                        struct error *err)
{
    const struct node *node = compile->node;
    struct program *program = compile->program;
    const struct epilogue *e = &node->epilogue;
    struct finish finish = {.row = *e};
    if (bias) {
        TRY(program_keep_constant(program, bias, err));
        finish.bias = bias->known->data;
    }
    finish.clamp = e->activation == ACTIVATION_RELU || e->activation == ACTIVATION_CLIP;
    finish.low = e->activation == ACTIVATION_CLIP ? e->alpha : 0;
    finish.high = e->activation == ACTIVATION_CLIP ? e->beta : INFINITY;
    if (finish.clamp)
        finish.row.activation = ACTIVATION_NONE;
    if (e->residual) {
        const struct place *from = &program->plan.places[e->residual->index];
        const struct place *to = &program->plan.places[node->outputs[0]->index];
        finish.residual = true;
        finish.residual_value = e->residual->index;
        finish.residual_bytes = shape_count(&e->residual->shape) * dtype_size(e->residual->dtype);
        finish.copy_residual = from->kind != PLACE_ARENA || from->offset != to->offset;
    }
    *ret = finish;
    return STATUS_OK;
}

void finish_begin(const struct finish *finish, const struct program *program, void *dst)
{
    if (finish->copy_residual)
        memcpy(dst, program->data[finish->residual_value], finish->residual_bytes);
}
