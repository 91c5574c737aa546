/* The epilogue of products: residual and activation. */
#include <math.h>
#include <string.h>

#include "engine/cpu/program/program.h"

struct residual residual_of(const struct lowering *lowering)
{
    const struct value *residual = lowering->node->epilogue.residual;
    if (!residual)
        return (struct residual){0};
    struct program *program = lowering->program;
    const struct place *places = program->plan.places;
    const struct place *from = &places[residual->index];
    const struct place *to = &places[lowering->node->outputs[0]->index];
    const bool in_place = from->kind == PLACE_ARENA && from->offset == to->offset;
    return (struct residual){.present = true,
                             .copied = in_place ? NULL : &program->data[residual->index],
                             .bytes = value_bytes(residual)};
}

void residual_begin(const struct residual *residual, void *dst)
{
    if (residual->copied)
        memcpy(dst, *residual->copied, residual->bytes);
}

struct epilogue epilogue_with_clip(const struct epilogue *epilogue)
{
    struct epilogue e = *epilogue;
    if (e.activation == ACTIVATION_RELU)
        e = (struct epilogue){.activation = ACTIVATION_CLIP, .beta = INFINITY};
    return e;
}
