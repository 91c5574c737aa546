/* The epilogue of float32 products: bias, residual, activation. */
#include <string.h>

#include "engine/cpu/program/program.h"

struct residual residual_of(const struct lowering *lowering)
{
    const struct value *residual = lowering->node->epilogue.residual;
    if (!residual)
        return (struct residual){0};
    const struct place *places = lowering->program->plan.places;
    const struct place *from = &places[residual->index];
    const struct place *to = &places[lowering->node->outputs[0]->index];
    return (struct residual){
        .present = true,
        .copy = from->kind != PLACE_ARENA || from->offset != to->offset,
        .value = residual->index,
        .bytes = value_bytes(residual),
    };
}

void residual_begin(const struct residual *residual, const struct program *program, void *dst)
{
    if (residual->copy)
        memcpy(dst, program->data[residual->value], residual->bytes);
}

enum status finish_init(const struct lowering *lowering, const struct value *bias,
                        struct finish *ret, struct error *err)
{
    const struct epilogue *e = &lowering->node->epilogue;
    struct finish finish = {.row = *e, .residual = residual_of(lowering)};
    if (bias) {
        TRY(program_keep_constant(lowering->program, bias, err));
        finish.bias = bias->known->data;
    }
    finish.clamp = epilogue_range(e, &finish.low, &finish.high) && e->activation != ACTIVATION_NONE;
    if (finish.clamp)
        finish.row.activation = ACTIVATION_NONE;
    *ret = finish;
    return STATUS_OK;
}
