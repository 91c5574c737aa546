/* The epilogue of products: residual and activation. */
#include <math.h>
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

struct epilogue epilogue_with_clip(const struct epilogue *epilogue)
{
    struct epilogue e = *epilogue;
    if (e.activation == ACTIVATION_RELU)
        e = (struct epilogue){.activation = ACTIVATION_CLIP, .beta = INFINITY};
    return e;
}
