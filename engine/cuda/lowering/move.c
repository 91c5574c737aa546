/* Steps that only move bytes: Transpose, Slice, Expand, Concat, Split, Gather, Move, Cast, and
 * views whose bytes the planner could not share. */
#include "engine/cuda/lowering/lowering.h"

#include <stdlib.h>
#include <string.h>

#include "engine/ops/access_map.h"
#include "engine/ops/resolve.h"

struct cuda_move_step {
    struct cuda_step step;
    enum { MOVE_MAP, MOVE_CONVERT, MOVE_BYTES, MOVE_GATHER } kind;
    uint32_t x, y, indices;
    const void *x_constant, *indices_constant;
    struct cuda_access_map map;
    int size, index_bytes;
    enum dtype from, to;
    size_t count, bytes;
    size_t outer, axis, picked, inner;
};

/* Parts of a whole: Concat and Split. */
struct cuda_parts_step {
    struct cuda_step step;
    bool gather;
    uint32_t whole, *parts;
    const void **constants;                       /* by part, or NULL */
    size_t *widths, *offsets, count, rows, width; /* bytes */
};

static enum status move_run(struct cuda_step *base, struct cuda_program *program, struct error *err)
{
    struct cuda_move_step *s = (struct cuda_move_step *)base;
    cudaStream_t stream = program->backend->stream;
    const void *x = s->x_constant ? s->x_constant : program->data[s->x];
    void *y = program->data[s->y];
    switch (s->kind) {
    case MOVE_MAP:
        cuda_copy_strided(stream, s->size, x, y, &s->map);
        break;
    case MOVE_CONVERT:
        cuda_convert(stream, (int)s->from, x, (int)s->to, y, s->count);
        break;
    case MOVE_BYTES:
        return x == y
                   ? STATUS_OK
                   : cuda_check(cudaMemcpyAsync(y, x, s->bytes, cudaMemcpyDeviceToDevice, stream),
                                program->backend->device, base->name, err);
    case MOVE_GATHER:
        cuda_gather(stream, s->size, x,
                    s->indices_constant ? s->indices_constant : program->data[s->indices],
                    s->index_bytes, y, s->outer, s->axis, s->picked, s->inner);
        break;
    }
    return cuda_launched(base, program, err);
}

static enum status parts_run(struct cuda_step *base, struct cuda_program *program,
                             struct error *err)
{
    struct cuda_parts_step *s = (struct cuda_parts_step *)base;
    unsigned char *whole = program->data[s->whole];
    for (size_t p = 0; p < s->count; p++) {
        const void *part = s->constants[p] ? s->constants[p] : program->data[s->parts[p]];
        unsigned char *inside = whole + s->offsets[p];
        if (!s->widths[p])
            continue;
        const struct pitched in = {part, inside, s->widths[p], s->width, s->widths[p], s->rows};
        const struct pitched out = {
            inside, program->data[s->parts[p]], s->width, s->widths[p], s->widths[p], s->rows};
        TRY(device_copy_rows(program->backend, s->gather ? &in : &out, cudaMemcpyDeviceToDevice,
                             program->backend->stream, base->name, err));
    }
    return STATUS_OK;
}

static void parts_free(struct cuda_step *base)
{
    struct cuda_parts_step *s = (struct cuda_parts_step *)base;
    free(s->parts);
    free(s->constants);
    free(s->widths);
    free(s->offsets);
}

static bool transpose_map(const struct node *node, struct cuda_access_map *map)
{
    const struct shape *x = &node->inputs[0]->shape;
    int64_t steps[TENSOR_MAX_RANK];
    size_t count;
    const int64_t *perm = node_ints(node, "perm", &count);
    cuda_dense_steps(x, steps);
    for (int d = 0; d < x->rank; d++) {
        const int64_t from = perm ? perm[d] : x->rank - 1 - d;
        if (!cuda_map_append(map, x->dims[from], (const int64_t[CUDA_OPERANDS]){steps[from]}))
            return false;
    }
    return true;
}

static bool expand_map(const struct node *node, struct cuda_access_map *map)
{
    *map = cuda_map_broadcast(&node->outputs[0]->shape, &node->inputs[0]->shape, 1);
    return true;
}

/* Integers of a constant input, or an attribute of older opsets; -1 when they are not known. */
static int known_ints(const struct node *node, size_t input, const char *attribute,
                      int64_t ret[TENSOR_MAX_RANK])
{
    const struct value *value = node_input(node, input);
    size_t count = 0;
    const int64_t *listed = value ? NULL : node_ints(node, attribute, &count);
    if (value && !value->known)
        return -1;
    if (value)
        count = shape_count(&value->known->shape);
    if (count > TENSOR_MAX_RANK)
        return -1;
    for (size_t i = 0; i < count; i++)
        ret[i] = value ? tensor_int(value->known, i) : listed[i];
    return (int)count;
}

/* Slice-1 … 13: starts are clamped as ONNX says; extents are the output's. */
static bool slice_map(const struct node *node, struct cuda_access_map *map)
{
    const struct shape *x = &node->inputs[0]->shape, *y = &node->outputs[0]->shape;
    int64_t starts[TENSOR_MAX_RANK], axes[TENSOR_MAX_RANK], jumps[TENSOR_MAX_RANK];
    int count = known_ints(node, 1, "starts", starts),
        axis_count = known_ints(node, 3, "axes", axes);
    int jump_count = known_ints(node, 4, "steps", jumps);
    int64_t dense[TENSOR_MAX_RANK], steps[TENSOR_MAX_RANK];
    if (count < 0 || axis_count < 0 || jump_count < 0)
        return false;
    cuda_dense_steps(x, dense);
    cuda_dense_steps(x, steps);
    for (int i = 0; i < count; i++) {
        int64_t axis = axis_count ? axes[i] : i, jump = jump_count ? jumps[i] : 1;
        if (axis < 0)
            axis += x->rank;
        if (axis < 0 || axis >= x->rank || jump == 0)
            return false;
        int64_t dim = x->dims[axis], start = starts[i] < 0 ? starts[i] + dim : starts[i];
        int64_t last = jump > 0 ? dim : dim - 1;
        start = start < 0 ? 0 : start > last ? last : start;
        map->offset += start * dense[axis];
        steps[axis] = jump * dense[axis];
    }
    for (int d = 0; d < y->rank; d++)
        if (!cuda_map_append(map, y->dims[d], (const int64_t[CUDA_OPERANDS]){steps[d]}))
            return false;
    return true;
}

static enum status move_create(const struct cuda_compile *compile,
                               const struct cuda_move_step *proto, const char *kernel,
                               struct cuda_step **ret, struct error *err)
{
    struct cuda_move_step *s = cuda_step_create(compile, sizeof *s, move_run);
    if (!s)
        return error_set(err, STATUS_NO_MEMORY, "out of memory while compiling");
    struct cuda_step base = s->step;
    *s = *proto;
    s->step = base;
    s->step.kernel = kernel;
    s->y = compile->node->outputs[0]->index;
    s->x = compile->node->inputs[0]->index;
    s->step.bytes = 2 * shape_count(&compile->node->outputs[0]->shape) *
                    dtype_size(compile->node->outputs[0]->dtype);
    *ret = &s->step;
    return STATUS_OK;
}

static enum status lower_map(const struct cuda_compile *compile,
                             bool (*describe)(const struct node *, struct cuda_access_map *),
                             struct cuda_step **ret, struct error *err)
{
    struct cuda_move_step s = {.kind = MOVE_MAP};
    s.size = (int)dtype_size(compile->node->inputs[0]->dtype);
    if (!describe(compile->node, &s.map))
        return STATUS_OK;
    return move_create(compile, &s, "copy", ret, err);
}

/* OP_MOVE: a chain of moves that a pass has merged (engine/ops/access_map.h). */
static enum status lower_chain(const struct cuda_compile *compile, struct cuda_step **ret,
                               struct error *err)
{
    const struct value *x = compile->node->inputs[0];
    struct cuda_move_step s = {.kind = MOVE_MAP, .size = (int)dtype_size(x->dtype)};
    struct access_map walk;
    TRY(access_map_load(compile->node, "map", 1, shape_count(&x->shape), &walk, err));
    const struct access_map_group *group = &walk.group[0];
    s.map.offset = walk.offset;
    for (int p = 0; p < group->count; p++)
        if (!cuda_map_append(&s.map, group->parts[p].extent,
                             (const int64_t[CUDA_OPERANDS]){group->parts[p].stride}))
            return STATUS_OK;
    return move_create(compile, &s, "copy", ret, err);
}

static enum status lower_convert(const struct cuda_compile *compile, struct cuda_step **ret,
                                 struct error *err)
{
    const struct value *x = compile->node->inputs[0], *y = compile->node->outputs[0];
    bool same = x->dtype == y->dtype;
    bool floats = (x->dtype == DTYPE_F32 || x->dtype == DTYPE_BF16 || x->dtype == DTYPE_F16) &&
                  (y->dtype == DTYPE_F32 || y->dtype == DTYPE_BF16 || y->dtype == DTYPE_F16);
    if ((!same && !floats) || shape_count(&x->shape) != shape_count(&y->shape))
        return STATUS_OK;
    struct cuda_move_step s = {.kind = same ? MOVE_BYTES : MOVE_CONVERT,
                               .from = x->dtype,
                               .to = y->dtype,
                               .count = shape_count(&x->shape),
                               .bytes = shape_count(&x->shape) * dtype_size(x->dtype)};
    return move_create(compile, &s, same ? "copy" : "convert", ret, err);
}

static enum status lower_gather(const struct cuda_compile *compile, struct cuda_step **ret,
                                struct error *err)
{
    const struct node *node = compile->node;
    const struct value *x = node->inputs[0], *indices = node->inputs[1];
    int64_t axis = node_int(node, "axis", 0);
    if (axis < 0)
        axis += x->shape.rank;
    /* Indices that may be out of range run on the host, which reports the error. */
    if (!indices_stay_within(indices, x->shape.dims[axis]))
        return STATUS_OK;
    struct cuda_move_step s = {.kind = MOVE_GATHER,
                               .size = (int)dtype_size(x->dtype),
                               .index_bytes = (int)dtype_size(indices->dtype),
                               .indices = indices->index,
                               .outer = 1,
                               .axis = (size_t)x->shape.dims[axis],
                               .picked = shape_count(&indices->shape),
                               .inner = 1};
    for (int d = 0; d < axis; d++)
        s.outer *= (size_t)x->shape.dims[d];
    for (int d = (int)axis + 1; d < x->shape.rank; d++)
        s.inner *= (size_t)x->shape.dims[d];
    void *data = NULL;
    if (indices->known)
        TRY(cuda_weights_get(compile->backend, indices->known, WEIGHT_AS_IS, indices->dtype, &data,
                             err));
    s.indices_constant = data;
    return move_create(compile, &s, "gather", ret, err);
}

static enum status lower_parts(const struct cuda_compile *compile, struct cuda_step **ret,
                               struct error *err)
{
    const struct node *node = compile->node;
    bool gather = node->op == OP_CONCAT;
    const struct value *whole = gather ? node->outputs[0] : node->inputs[0];
    size_t count = gather ? node->input_count : node->output_count;
    int64_t axis = node_int(node, "axis", gather ? 1 : 0);
    if (axis < 0)
        axis += whole->shape.rank;
    for (size_t p = 0; p < count && gather; p++)
        if (!node->inputs[p])
            return STATUS_OK;
    const struct value *lengths = gather ? NULL : node_input(node, 1);
    if (lengths && !lengths->known)
        return STATUS_OK;
    struct cuda_parts_step *s = cuda_step_create(compile, sizeof *s, parts_run);
    if (!s)
        return error_set(err, STATUS_NO_MEMORY, "out of memory while compiling");
    *ret = &s->step;
    s->step.free = parts_free;
    s->step.kernel = "copy";
    s->gather = gather;
    s->count = count;
    s->whole = whole->index;
    s->rows = 1;
    s->parts = calloc(count + 1, sizeof *s->parts);
    s->constants = calloc(count + 1, sizeof *s->constants);
    s->widths = calloc(count + 1, sizeof *s->widths);
    s->offsets = calloc(count + 1, sizeof *s->offsets);
    if (!s->parts || !s->constants || !s->widths || !s->offsets)
        return error_set(err, STATUS_NO_MEMORY, "out of memory while compiling");
    size_t inner = dtype_size(whole->dtype);
    for (int d = (int)axis + 1; d < whole->shape.rank; d++)
        inner *= (size_t)whole->shape.dims[d];
    for (int d = 0; d < axis; d++)
        s->rows *= (size_t)whole->shape.dims[d];
    for (size_t p = 0; p < count; p++) {
        const struct value *part = gather ? node->inputs[p] : node->outputs[p];
        void *data = NULL;
        if (!part) { /* that nobody reads */
            s->width += inner * (size_t)resolve_split(node, lengths ? lengths->known : NULL,
                                                      whole->shape.dims[axis], p);
            continue;
        }
        if (part->known)
            TRY(cuda_weights_get(compile->backend, part->known, WEIGHT_AS_IS, whole->dtype, &data,
                                 err));
        s->constants[p] = data;
        s->parts[p] = part->index;
        s->widths[p] = inner * (size_t)part->shape.dims[axis];
        s->offsets[p] = s->width;
        s->width += s->widths[p];
    }
    s->step.bytes = 2 * s->rows * s->width;
    return STATUS_OK;
}

enum status cuda_lower_move(const struct cuda_compile *compile, struct cuda_step **ret,
                            struct error *err)
{
    const struct node *node = compile->node;
    const struct value *x = node_input(node, 0), *y = node_output(node, 0);
    if (node->op == OP_SPLIT && x && !x->known && shape_count(&x->shape))
        return lower_parts(compile, ret, err); /* also where nobody reads the first part */
    if (!x || !y || !shape_count(&x->shape) || !shape_count(&y->shape) ||
        node->epilogue.activation || node->epilogue.residual)
        return STATUS_OK;
    if (node->op == OP_CONCAT)
        return lower_parts(compile, ret, err);
    if (x->known)
        return STATUS_OK;
    switch (node->op) {
    case OP_TRANSPOSE:
        return lower_map(compile, transpose_map, ret, err);
    case OP_EXPAND:
        return lower_map(compile, expand_map, ret, err);
    case OP_SLICE:
        return lower_map(compile, slice_map, ret, err);
    case OP_GATHER:
        return lower_gather(compile, ret, err);
    case OP_MOVE:
        return lower_chain(compile, ret, err);
    case OP_IDENTITY:
    case OP_CAST:
    case OP_RESHAPE:
    case OP_FLATTEN:
    case OP_SQUEEZE:
    case OP_UNSQUEEZE:
        return lower_convert(compile, ret, err);
    default:
        return STATUS_OK;
    }
}
