/* Steps that only move numbers: Transpose and strided copies, Identity, Casts between float32 and
 * 16 bits, and views (Reshape …) that do not share their input's bytes. */
#include "engine/cpu/kernels/simd.h"
#include "engine/cpu/lowering/lowering.h"
#include "engine/cpu/program/parallel.h"
#include "engine/op/access_map.h"

#include <string.h>

/* ---- Transpose: iterates over the output with the input's strides ---- */

struct transpose_step {
    struct step step;
    size_t size;           /* bytes of an element */
    struct access_map map; /* where x has the elements of y */
    size_t rows, columns;  /* the two innermost parts of the map: a plane */
    size_t row_step, column_step, planes;
};

#define TILE 16

#define COPY_TILE(type)                                                                            \
    for (size_t i = i0; i < i1; i++)                                                               \
        for (size_t j = j0; j < j1; j++)                                                           \
            ((type *)(void *)y)[i * columns + j] =                                                 \
                ((const type *)(const void *)x)[i * row_step + j * column_step];                   \
    break

/* Copies rows x columns of y from x with the given steps, in tiles, so that x and y stay cached. */
static void transpose_plane(const unsigned char *x, unsigned char *y, size_t size, size_t rows,
                            size_t columns, size_t row_step, size_t column_step)
{
    if (column_step == 1) {
        for (size_t i = 0; i < rows; i++)
            memcpy(y + i * columns * size, x + i * row_step * size, columns * size);
        return;
    }
    for (size_t i0 = 0; i0 < rows; i0 += TILE) {
        size_t i1 = i0 + TILE < rows ? i0 + TILE : rows;
        for (size_t j0 = 0; j0 < columns; j0 += TILE) {
            size_t j1 = j0 + TILE < columns ? j0 + TILE : columns;
            switch (size) {
            case 1:
                COPY_TILE(uint8_t);
            case 2:
                COPY_TILE(uint16_t);
            case 4:
                COPY_TILE(uint32_t);
            default:
                COPY_TILE(uint64_t);
            }
        }
    }
}

static void transpose_planes(void *context, size_t begin, size_t end)
{
    const struct transpose_step *s = context;
    for (size_t p = begin; p < end; p++) {
        const size_t to = p * s->rows * s->columns;
        const size_t at = (size_t)(s->map.offset + access_map_at(&s->map.group[0], (int64_t)to));
        transpose_plane(s->step.x + at * s->size, s->step.y + to * s->size, s->size, s->rows,
                        s->columns, s->row_step, s->column_step);
    }
}

STEP_RUN(transpose_run)
{
    struct transpose_step *s = (struct transpose_step *)base;
    parallel_for(program->threads, s->planes, s->rows * s->columns, transpose_planes, s);
    return STATUS_OK;
}

STEP_CREATE(lower_transpose)
{
    const struct node *node = lowering->node;
    const struct value *x = node->inputs[0], *y = node->outputs[0];
    const struct access_map map = access_map_of_copy(node);
    const struct access_map_group *group = &map.group[0];
    const struct access_map_part one = {1, 1};
    const struct access_map_part row = group->count > 1 ? group->parts[group->count - 2] : one;
    const struct access_map_part column = group->count ? group->parts[group->count - 1] : one;
    struct transpose_step *step = step_create(lowering, sizeof *step, transpose_run, ret, err);
    TRY(allocated(step));
    step->step.kernel = node->op == OP_STRIDED_COPY ? "move" : "transpose";
    step->size = dtype_size(x->dtype);
    step->map = map;
    step->rows = (size_t)row.extent;
    step->columns = (size_t)column.extent;
    step->row_step = (size_t)row.stride;
    step->column_step = (size_t)column.stride;
    step->planes = shape_count(&y->shape) / step->rows / step->columns;
    return STATUS_OK;
}

/* ---- Identity, Cast between float32 and 16 bits, views that the plan could not share ---- */

struct move_step {
    struct step step;
    enum dtype from, to;
    size_t count;
    const struct simd_kernels *simd;
};

#define MOVE_PIECE 4096

static void move_pieces(void *context, size_t begin, size_t end)
{
    const struct move_step *s = context;
    size_t first = begin * MOVE_PIECE, last = end * MOVE_PIECE;
    size_t n = (last < s->count ? last : s->count) - first;
    const unsigned char *x = s->step.x + first * dtype_size(s->from);
    unsigned char *y = s->step.y + first * dtype_size(s->to);
    if (s->from == s->to)
        memcpy(y, x, n * dtype_size(s->from));
    else if (s->from == DTYPE_BF16)
        s->simd->widen_bf16((const uint16_t *)(const void *)x, (float *)(void *)y, n);
    else if (s->from == DTYPE_F16)
        s->simd->widen_f16((const uint16_t *)(const void *)x, (float *)(void *)y, n);
    else if (s->to == DTYPE_BF16)
        s->simd->narrow_bf16((const float *)(const void *)x, (uint16_t *)(void *)y, n);
    else
        s->simd->narrow_f16((const float *)(const void *)x, (uint16_t *)(void *)y, n);
}

STEP_RUN(move_run)
{
    struct move_step *s = (struct move_step *)base;
    if (s->step.x != s->step.y)
        parallel_for(program->threads, (s->count + MOVE_PIECE - 1) / MOVE_PIECE, MOVE_PIECE / 4,
                     move_pieces, s);
    return STATUS_OK;
}

static bool is_16_bits(enum dtype dtype)
{
    return dtype == DTYPE_BF16 || dtype == DTYPE_F16;
}

STEP_CREATE(lower_move)
{
    const struct node *node = lowering->node;
    const struct value *x = node->inputs[0], *y = node->outputs[0];
    const bool widens = is_16_bits(x->dtype) && y->dtype == DTYPE_F32;
    const bool narrows = x->dtype == DTYPE_F32 && is_16_bits(y->dtype);
    if (x->dtype != y->dtype && !widens && !narrows)
        return STATUS_OK;
    struct move_step *step = step_create(lowering, sizeof *step, move_run, ret, err);
    TRY(allocated(step));
    step->step.kernel = x->dtype == y->dtype ? "copy" : "cast";
    step->from = x->dtype;
    step->to = y->dtype;
    step->count = shape_count(&x->shape);
    step->simd = simd();
    return STATUS_OK;
}

KERNEL_CLAIM(copy_claim)
{
    const struct value *x = node_input(node, 0), *y = node_output(node, 0);
    ret->narrow = NARROW_SAME;
    return x && y && shape_count(&x->shape) && shape_count(&y->shape);
}

KERNEL_CLAIM(cast_claim)
{
    const bool is_claimed = copy_claim(node, ret);
    ret->narrow = NARROW_NO;
    return is_claimed;
}

const struct cpu_kernel cpu_transpose = {{"transpose", {OP_TRANSPOSE, OP_STRIDED_COPY}, copy_claim},
                                         lower_transpose};
const struct cpu_kernel cpu_view = {
    {"view", {OP_RESHAPE, OP_FLATTEN, OP_SQUEEZE, OP_UNSQUEEZE}, copy_claim}, lower_move};
const struct cpu_kernel cpu_cast = {{"cast", {OP_IDENTITY, OP_CAST}, cast_claim}, lower_move};
