/* Visits the rows of an elementwise output, with the place of every broadcast operand. Neighbouring
 * dimensions that broadcast alike are merged first. */
#include "engine/reference/elementwise.h"

#include <string.h>

/* Steps of one operand along every dimension of the output. */
static void operand_steps(const struct shape *out, const struct shape *shape, size_t *steps)
{
    size_t step = 1;
    for (int i = 1; i <= out->rank; i++) {
        size_t extent = i <= shape->rank ? (size_t)shape->dims[shape->rank - i] : 1;
        steps[out->rank - i] = extent == 1 ? 0 : step;
        step *= extent;
    }
}

bool broadcast_start(struct broadcast *walk, const struct shape *out,
                     const struct shape *const *shapes, int operands)
{
    size_t steps[BROADCAST_MAX][TENSOR_MAX_RANK];
    for (int k = 0; k < operands; k++)
        operand_steps(out, shapes[k], steps[k]);
    walk->operands = operands;
    int kept = 0;
    for (int i = 0; i < out->rank; i++) {
        size_t extent = (size_t)out->dims[i];
        if (extent == 1)
            continue;
        bool joins = kept > 0;
        for (int k = 0; k < operands && joins; k++)
            joins = walk->step[k][kept - 1] == steps[k][i] * extent;
        if (joins)
            walk->extent[kept - 1] *= extent;
        else
            walk->extent[kept++] = extent;
        for (int k = 0; k < operands; k++)
            walk->step[k][kept - 1] = steps[k][i];
    }
    walk->rank = kept ? kept - 1 : 0;
    walk->row = kept ? walk->extent[kept - 1] : 1;
    for (int k = 0; k < operands; k++) {
        walk->moves[k] = kept && walk->step[k][kept - 1] != 0;
        walk->offset[k] = 0;
    }
    memset(walk->at, 0, sizeof walk->at);
    walk->done = 0;
    return shape_count(out) != 0;
}

bool broadcast_next(struct broadcast *walk)
{
    walk->done += walk->row;
    for (int d = walk->rank - 1; d >= 0; d--) {
        for (int k = 0; k < walk->operands; k++)
            walk->offset[k] += walk->step[k][d];
        if (++walk->at[d] < walk->extent[d])
            return true;
        for (int k = 0; k < walk->operands; k++)
            walk->offset[k] -= walk->step[k][d] * walk->at[d];
        walk->at[d] = 0;
    }
    return false;
}
