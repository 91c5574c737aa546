/* Iterates over the rows of an elementwise output and tracks the offset of every broadcast operand.
 * Neighbouring dimensions that broadcast alike are merged first. */
#include "engine/op/strided.h"

#include <string.h>

void broadcast_steps(const struct shape *out, const struct shape *shape, size_t *steps)
{
    size_t step = 1;
    for (int i = 1; i <= out->rank; i++) {
        size_t extent = i <= shape->rank ? (size_t)shape->dims[shape->rank - i] : 1;
        steps[out->rank - i] = extent == 1 ? 0 : step;
        step *= extent;
    }
}

void broadcast_start(struct broadcast *broadcast, const struct shape *out,
                     const struct shape *const *shapes, int operands)
{
    struct strided_iterator *it = &broadcast->rows;
    size_t steps[BROADCAST_MAX][TENSOR_MAX_RANK];
    int kept = 0;
    memset(it, 0, sizeof *it);
    for (int k = 0; k < operands; k++)
        broadcast_steps(out, shapes[k], steps[k]);
    for (int i = 0; i < out->rank; i++) {
        size_t extent = (size_t)out->dims[i];
        if (extent == 1)
            continue;
        bool joins = kept > 0;
        for (int k = 0; k < operands && joins; k++)
            joins = it->step[k][kept - 1] == steps[k][i] * extent;
        if (joins)
            it->extent[kept - 1] *= extent;
        else
            it->extent[kept++] = extent;
        for (int k = 0; k < operands; k++)
            it->step[k][kept - 1] = steps[k][i];
    }
    if (!kept)
        it->extent[kept++] = 1;
    it->rank = kept - 1;
    broadcast->operands = operands;
    broadcast->row = it->extent[kept - 1];
    broadcast->done = 0;
    for (int k = 0; k < operands; k++)
        broadcast->moves[k] = it->step[k][kept - 1] != 0;
}

bool broadcast_next(struct broadcast *broadcast)
{
    broadcast->done += broadcast->row;
    return strided_next(&broadcast->rows, broadcast->operands);
}
