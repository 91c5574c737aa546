/* Steps that only move bytes: Transpose and Move, Concat, Split, Identity, and Casts between
 * float32 and bfloat16. Views (Reshape …) need no step at all. */
#include "engine/cpu/kernels/simd.h"
#include "engine/cpu/lowering/lowering.h"
#include "engine/cpu/program/parallel.h"
#include "engine/op/access_map.h"
#include "engine/op/resolve.h"

#include <stdlib.h>
#include <string.h>

/* ---- Transpose: a walk over the output with the input's steps ---- */

struct transpose_step {
    struct step step;
    uint32_t x, y;
    size_t size; /* of an element */
    int rank;
    size_t dims[ACCESS_MAP_PARTS],
        steps[ACCESS_MAP_PARTS]; /* of the output; steps in x, elements */
    size_t offset;               /* in x, elements */
    size_t outer;                /* product of all but the two innermost dims */
    const unsigned char *x_data;
    unsigned char *y_data;
};

#define TILE 16

#define COPY_TILE(type)                                                                            \
    for (size_t i = i0; i < i1; i++)                                                               \
        for (size_t j = j0; j < j1; j++)                                                           \
            ((type *)(void *)y)[i * columns + j] =                                                 \
                ((const type *)(const void *)x)[i * row_step + j * column_step];                   \
    break

/* rows x columns of y from x with the given steps, tile by tile so that both stay in the cache. */
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

static void transpose_outer(void *context, size_t begin, size_t end)
{
    const struct transpose_step *s = context;
    int last = s->rank - 1;
    size_t plane = s->dims[last - 1] * s->dims[last];
    for (size_t o = begin; o < end; o++) {
        size_t at = s->offset, rest = o;
        for (int d = last - 2; d >= 0; d--) {
            at += rest % s->dims[d] * s->steps[d];
            rest /= s->dims[d];
        }
        transpose_plane(s->x_data + at * s->size, s->y_data + o * plane * s->size, s->size,
                        s->dims[last - 1], s->dims[last], s->steps[last - 1], s->steps[last]);
    }
}

static enum status transpose_run(struct step *base, struct program *program, struct error *err)
{
    struct transpose_step *s = (struct transpose_step *)base;
    (void)err;
    s->x_data = program->data[s->x];
    s->y_data = program->data[s->y];
    parallel_for(program->backend->options.threads, s->outer,
                 s->dims[s->rank - 2] * s->dims[s->rank - 1], transpose_outer, s);
    return STATUS_OK;
}

/* The walk over x that a Transpose or Move is. */
static enum status read_walk(const struct node *node, struct access_map *ret, struct error *err)
{
    const struct shape *x = &node->inputs[0]->shape;
    size_t count;
    if (node->op == OP_STRIDED_COPY)
        return access_map_load(node, "map", 1, shape_count(x), ret, err);
    const int64_t *perm = node_ints(node, "perm", &count);
    int64_t steps[TENSOR_MAX_RANK], stride = 1;
    for (int d = x->rank - 1; d >= 0; d--) {
        steps[d] = stride;
        stride *= x->dims[d];
    }
    *ret = (struct access_map){.groups = 1, .group[0].count = x->rank};
    for (int d = 0; d < x->rank; d++) {
        const int64_t from = perm ? perm[d] : x->rank - 1 - d;
        ret->group[0].parts[d] = (struct access_map_part){x->dims[from], steps[from]};
    }
    access_map_join(&ret->group[0]);
    return STATUS_OK;
}

static enum status lower_transpose(const struct lowering *lowering, struct step **ret,
                                   struct error *err)
{
    const struct node *node = lowering->node;
    const struct value *x = node->inputs[0], *y = node->outputs[0];
    struct access_map walk;
    TRY(read_walk(node, &walk, err));
    struct transpose_step *step = step_create(lowering, sizeof *step, transpose_run, ret, err);
    if (!step)
        return STATUS_NO_MEMORY;
    step->step.kernel = node->op == OP_STRIDED_COPY ? "move" : "transpose";
    step->x = x->index;
    step->y = y->index;
    step->size = dtype_size(x->dtype);
    step->offset = (size_t)walk.offset;
    const struct access_map_group *group = &walk.group[0];
    const int missing = group->count < 2 ? 2 - group->count : 0; /* ones in front */
    for (int d = 0; d < missing; d++)
        step->dims[d] = 1;
    for (int p = 0; p < group->count; p++) {
        step->dims[missing + p] = (size_t)group->parts[p].extent;
        step->steps[missing + p] = (size_t)group->parts[p].stride;
    }
    step->rank = missing + group->count;
    if (!group->count) /* one element: a run of one */
        step->steps[1] = 1;
    step->outer = 1;
    for (int d = 0; d < step->rank - 2; d++)
        step->outer *= step->dims[d];
    step->step.bytes = 2 * shape_count(&y->shape) * step->size;
    return STATUS_OK;
}

/* ---- Concat and Split: runs of bytes between one tensor and its parts ---- */

struct copy_parts_step {
    struct step step;
    uint32_t whole, *parts;
    size_t *runs,
        *offsets; /* bytes of a part in one outer row, and where they lie in the whole's */
    size_t count, outer, run;
    bool gather; /* Concat: parts into whole; otherwise Split */
    unsigned char *whole_data;
    struct program *program;
};

static void parts_rows(void *context, size_t begin, size_t end)
{
    const struct copy_parts_step *s = context;
    for (size_t p = 0; p < s->count; p++) {
        unsigned char *part = s->program->data[s->parts[p]];
        for (size_t o = begin; o < end; o++) {
            unsigned char *in_whole = s->whole_data + o * s->run + s->offsets[p];
            unsigned char *in_part = part + o * s->runs[p];
            memcpy(s->gather ? in_whole : in_part, s->gather ? in_part : in_whole, s->runs[p]);
        }
    }
}

static enum status parts_run(struct step *base, struct program *program, struct error *err)
{
    struct copy_parts_step *s = (struct copy_parts_step *)base;
    (void)err;
    s->whole_data = program->data[s->whole];
    s->program = program;
    parallel_for(program->backend->options.threads, s->outer, s->run / 8 + 1, parts_rows, s);
    return STATUS_OK;
}

static void parts_free(struct step *base)
{
    struct copy_parts_step *s = (struct copy_parts_step *)base;
    free(s->parts);
    free(s->runs);
    free(s->offsets);
}

static enum status lower_parts(const struct lowering *lowering, struct step **ret,
                               struct error *err)
{
    const struct node *node = lowering->node;
    bool gather = node->op == OP_CONCAT;
    const struct value *whole = gather ? node->outputs[0] : node->inputs[0];
    size_t count = gather ? node->input_count : node->output_count;
    int rank = whole->shape.rank;
    int64_t axis = node_int(node, "axis", gather ? 1 : 0); /* Concat: until opset 3 */
    if (axis < 0)
        axis += rank;
    const struct value *split = gather ? NULL : node_input(node, 1);
    if (split && !split->known)
        return STATUS_OK;
    struct copy_parts_step *step = step_create(lowering, sizeof *step, parts_run, ret, err);
    if (!step)
        return STATUS_NO_MEMORY;
    step->step.free = parts_free;
    step->step.kernel = "copy";
    step->gather = gather;
    step->parts = calloc(count + 1, sizeof *step->parts);
    step->runs = calloc(count + 1, sizeof *step->runs);
    step->offsets = calloc(count + 1, sizeof *step->offsets);
    if (!step->parts || !step->runs || !step->offsets)
        return error_no_memory(err, "while compiling");
    const size_t inner =
        dtype_size(whole->dtype) * resolve_extent(&whole->shape, (int)axis + 1, rank);
    step->outer = resolve_extent(&whole->shape, 0, (int)axis);
    for (size_t p = 0; p < count; p++) {
        const struct value *part = gather ? node->inputs[p] : node->outputs[p];
        const int64_t extent =
            part ? part->shape.dims[axis]
                 : resolve_split(node, split ? split->known : NULL, whole->shape.dims[axis], p);
        const size_t run = inner * (size_t)extent;
        if (part) { /* Split may leave a part out */
            step->parts[step->count] = part->index;
            step->runs[step->count] = run;
            step->offsets[step->count++] = step->run;
        }
        step->run += run;
    }
    step->whole = whole->index;
    step->step.bytes = 2 * step->outer * step->run;
    return STATUS_OK;
}

/* ---- Identity, Cast between float32 and 16 bits, views whose bytes the plan could not share ----
 */

struct move_step {
    struct step step;
    uint32_t x, y;
    enum dtype from, to;
    size_t count;
    const struct simd_kernels *simd;
    const unsigned char *x_data;
    unsigned char *y_data;
};

#define MOVE_PIECE 4096

static void move_pieces(void *context, size_t begin, size_t end)
{
    const struct move_step *s = context;
    size_t first = begin * MOVE_PIECE, last = end * MOVE_PIECE;
    size_t n = (last < s->count ? last : s->count) - first;
    const unsigned char *x = s->x_data + first * dtype_size(s->from);
    unsigned char *y = s->y_data + first * dtype_size(s->to);
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

static enum status move_run(struct step *base, struct program *program, struct error *err)
{
    struct move_step *s = (struct move_step *)base;
    (void)err;
    s->x_data = program->data[s->x];
    s->y_data = program->data[s->y];
    if (s->x_data != s->y_data)
        parallel_for(program->backend->options.threads, (s->count + MOVE_PIECE - 1) / MOVE_PIECE,
                     MOVE_PIECE / 4, move_pieces, s);
    return STATUS_OK;
}

static bool is_16_bits(enum dtype dtype)
{
    return dtype == DTYPE_BF16 || dtype == DTYPE_F16;
}

static enum status lower_move(const struct lowering *lowering, struct step **ret, struct error *err)
{
    const struct node *node = lowering->node;
    const struct value *x = node->inputs[0], *y = node->outputs[0];
    const bool widens = is_16_bits(x->dtype) && y->dtype == DTYPE_F32;
    const bool narrows = x->dtype == DTYPE_F32 && is_16_bits(y->dtype);
    if (x->dtype != y->dtype && !widens && !narrows)
        return STATUS_OK;
    struct move_step *step = step_create(lowering, sizeof *step, move_run, ret, err);
    if (!step)
        return STATUS_NO_MEMORY;
    step->step.kernel = x->dtype == y->dtype ? "copy" : "cast";
    step->x = x->index;
    step->y = y->index;
    step->from = x->dtype;
    step->to = y->dtype;
    step->count = shape_count(&x->shape);
    step->simd = simd();
    step->step.bytes = step->count * (dtype_size(x->dtype) + dtype_size(y->dtype));
    return STATUS_OK;
}

/* Split may leave its first part out. */
static bool copy_claim(const struct node *node, struct kernel_caps *ret)
{
    const struct value *x = node_input(node, 0), *y = node_output(node, 0);
    ret->narrow = NARROW_SAME;
    return x && shape_count(&x->shape) && (y ? shape_count(&y->shape) > 0 : node->op == OP_SPLIT);
}

static bool cast_claim(const struct node *node, struct kernel_caps *ret)
{
    const bool is_claimed = copy_claim(node, ret);
    ret->narrow = NARROW_NO;
    return is_claimed;
}

const struct cpu_kernel cpu_transpose = {{"transpose", {OP_TRANSPOSE, OP_STRIDED_COPY}, copy_claim},
                                         lower_transpose};
const struct cpu_kernel cpu_concat = {{"concat", {OP_CONCAT, OP_SPLIT}, copy_claim}, lower_parts};
const struct cpu_kernel cpu_view = {
    {"view", {OP_RESHAPE, OP_FLATTEN, OP_SQUEEZE, OP_UNSQUEEZE}, copy_claim}, lower_move};
const struct cpu_kernel cpu_cast = {{"cast", {OP_IDENTITY, OP_CAST}, cast_claim}, lower_move};
