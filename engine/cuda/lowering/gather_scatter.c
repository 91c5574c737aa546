/* Steps that pick elements: Pad, CenterCropPad, Tile, and gathers and scatters by indices. Nodes
 * whose indices may be out of range run on the host, which reports the error. These steps take only
 * indices that bounds.c proves to be in range. If a scatter writes an element twice, the result
 * depends on the order; these steps take only constant indices that all differ. */
#include "engine/cuda/lowering/lowering.h"

#include <stdlib.h>
#include <string.h>

#include "engine/base/size.h"
#include "engine/op/resolve.h"

struct gather_scatter_step {
    struct cuda_step step;
    enum { GATHER_PAD, GATHER_REPEAT, GATHER_TUPLES } kind;
    int size;
    bool scatters; /* writes `from` into y, a copy of x */
    struct cuda_operand x, from, indices;
    size_t bytes; /* size of x */
    struct cuda_pad pad;
    struct cuda_access_map map;
    struct cuda_tuples tuples;
};

CUDA_RUN(gather_scatter_run)
{
    struct gather_scatter_step *s = (struct gather_scatter_step *)base;
    cudaStream_t stream = program->backend->stream;
    const void *x = cuda_operand_at(program, &s->x);
    const void *from = s->scatters ? cuda_operand_at(program, &s->from) : x;
    const void *indices = cuda_operand_at(program, &s->indices);
    void *y = program->data[base->y];
    if (s->scatters && x != y)
        TRY(cuda_check(cudaMemcpyAsync(y, x, s->bytes, cudaMemcpyDeviceToDevice, stream),
                       program->backend->device, base->name, err));
    if (s->kind == GATHER_PAD)
        cuda_pad_any(stream, s->size, x, y, &s->pad);
    else if (s->kind == GATHER_REPEAT)
        cuda_copy_strided(stream, s->size, x, y, &s->map);
    else
        cuda_index_tuples(stream, s->size, s->scatters, from, indices, y, &s->tuples);
    return cuda_launched(base, program, err);
}

/* ---- Pad ---- */

static bool read_pad(const struct node *node, struct gather_scatter_step *s)
{
    const struct value *x = node->inputs[0];
    struct padding padding;
    struct cuda_pad *p = &s->pad;
    if (x->known || !resolve_is_known(node) || resolve_padding(node, &padding, NULL) != STATUS_OK ||
        padding.mode != PAD_CONSTANT)
        return false;
    const struct tensor *fill = node->op == OP_PAD ? resolve_contents(node, 2) : NULL;
    if (fill && fill->bytes && fill->dtype != x->dtype)
        return false;
    if (fill && fill->bytes)
        memcpy(&p->fill, fill->data, dtype_size(fill->dtype));
    p->rank = x->shape.rank;
    cuda_dense_steps(&x->shape, p->steps);
    for (int d = 0; d < p->rank; d++) {
        p->out[d] = node->outputs[0]->shape.dims[d];
        p->in[d] = x->shape.dims[d];
        p->begin[d] = padding.begin[d];
    }
    s->kind = GATHER_PAD;
    return true;
}

/* ---- Tile: a repeated dimension of x has the step 0 ---- */

static bool read_tile(const struct node *node, struct gather_scatter_step *s)
{
    const struct shape *x = &node->inputs[0]->shape, *y = &node->outputs[0]->shape;
    int64_t steps[TENSOR_MAX_RANK] = {0};
    if (node->inputs[0]->known)
        return false;
    cuda_dense_steps(x, steps);
    for (int d = 0; d < x->rank; d++) {
        if (!cuda_map_append(&s->map, y->dims[d] / x->dims[d], 0) ||
            !cuda_map_append(&s->map, x->dims[d], steps[d]))
            return false;
    }
    s->kind = GATHER_REPEAT;
    return node->inputs[1]->known != NULL;
}

/* ---- indices ---- */

/* Reads tuples of one index along an axis. All positions before the axis use the same tuples of a
 * Gather. In GatherElements and ScatterElements a slice is one element. */
static bool read_axis(const struct node *node, struct gather_scatter_step *s)
{
    const struct value *x = node->inputs[0], *indices = node->inputs[1];
    const int64_t axis = node_axis(node, 0, x->shape.rank), extent = x->shape.dims[axis];
    struct cuda_tuples *t = &s->tuples;
    int64_t steps[TENSOR_MAX_RANK] = {0};
    if (!indices_stay_within(indices, extent))
        return false;
    cuda_dense_steps(&x->shape, steps);
    s->kind = GATHER_TUPLES;
    *t = (struct cuda_tuples){.depth = 1, .extent = {extent}, .step = {steps[axis]}, .slice = 1};
    t->listed = shape_count(&indices->shape);
    /* A map has room for the dimensions of a tensor. */
    for (int d = 0; node->op != OP_GATHER && d < x->shape.rank; d++)
        (void)cuda_map_append(&t->map, indices->shape.dims[d], d == axis ? 0 : steps[d]);
    if (node->op == OP_GATHER) {
        t->slice = (size_t)steps[axis];
        (void)cuda_map_append(&t->map, (int64_t)resolve_extent(&x->shape, 0, (int)axis),
                              extent * steps[axis]);
        (void)cuda_map_append(&t->map, (int64_t)t->listed, 0);
    }
    return t->listed > 0;
}

static bool read_tuples(const struct node *node, struct gather_scatter_step *s)
{
    const struct value *x = node->inputs[0], *indices = node->inputs[1];
    const struct shape *list = &indices->shape;
    const int batch_dims = node->op == OP_GATHER_ND ? (int)node_int(node, "batch_dims", 0) : 0;
    struct cuda_tuples *t = &s->tuples;
    struct bounds bounds;
    int64_t steps[TENSOR_MAX_RANK] = {0};
    if (list->rank < 1 || batch_dims < 0 || batch_dims >= list->rank ||
        list->dims[list->rank - 1] > CUDA_MAX_RANK || !value_bounds(indices, &bounds))
        return false;
    cuda_dense_steps(&x->shape, steps);
    t->depth = (int)list->dims[list->rank - 1];
    for (int k = 0; k < t->depth; k++) {
        const int64_t extent = x->shape.dims[batch_dims + k];
        if (bounds.low < -extent || bounds.high >= extent)
            return false;
        t->extent[k] = extent;
        t->step[k] = steps[batch_dims + k];
    }
    const size_t batches = resolve_extent(list, 0, batch_dims);
    t->listed = resolve_extent(list, 0, list->rank - 1);
    t->slice = resolve_extent(&x->shape, batch_dims + t->depth, x->shape.rank);
    s->kind = GATHER_TUPLES;
    return t->listed > 0 && t->slice > 0 &&
           cuda_map_append(&t->map, (int64_t)batches,
                           (int64_t)resolve_extent(&x->shape, batch_dims, x->shape.rank)) &&
           cuda_map_append(&t->map, (int64_t)(t->listed / batches), 0);
}

/* Returns the element of x where the slice of tuple i starts, as the kernel computes it. */
static size_t place_of(const struct cuda_tuples *t, const struct tensor *indices, size_t i)
{
    int64_t at = 0;
    for (int k = 0; k < t->depth; k++) {
        const int64_t index = tensor_int(indices, i * (size_t)t->depth + (size_t)k);
        at += (index < 0 ? index + t->extent[k] : index) * t->step[k];
    }
    for (int d = t->map.rank - 1; d >= 0; d--) {
        at += (int64_t)i % t->map.dims[d] * t->map.steps[0][d];
        i /= (size_t)t->map.dims[d];
    }
    return (size_t)at;
}

static bool goes_nowhere_twice(const struct node *node, const struct gather_scatter_step *s)
{
    const struct tensor *indices = node->inputs[1]->known;
    if (!indices || strcmp(node_string(node, "reduction", "none"), "none") != 0)
        return false;
    bool *taken = calloc(shape_count(&node->inputs[0]->shape), sizeof *taken);
    bool once = taken != NULL;
    for (size_t i = 0; i < s->tuples.listed && once; i++) {
        const size_t place = place_of(&s->tuples, indices, i);
        once = !taken[place];
        taken[place] = true;
    }
    free(taken);
    return once;
}

/* ---- the lowering ---- */

static const struct {
    enum op op;
    bool (*read)(const struct node *node, struct gather_scatter_step *s);
    bool scatters;
} readers[] = {{OP_PAD, read_pad, false},
               {OP_CENTER_CROP_PAD, read_pad, false},
               {OP_TILE, read_tile, false},
               {OP_GATHER, read_axis, false},
               {OP_GATHER_ELEMENTS, read_axis, false},
               {OP_GATHER_ND, read_tuples, false},
               {OP_SCATTER_ND, read_tuples, true},
               {OP_SCATTER_ELEMENTS, read_axis, true}};

static bool gather_scatter_classify(const struct node *node, struct gather_scatter_step *s)
{
    const struct value *x = node_input(node, 0), *y = node_output(node, 0);
    if (!x || !y || !shape_count(&x->shape) || !shape_count(&y->shape) || node->channels_last ||
        node->epilogue.activation || node->epilogue.residual || x->dtype != y->dtype)
        return false;
    s->size = (int)dtype_size(x->dtype);
    for (size_t i = 0; i < COUNT_OF(readers); i++)
        if (readers[i].op == node->op) {
            s->scatters = readers[i].scatters;
            return readers[i].read(node, s) && (!s->scatters || goes_nowhere_twice(node, s));
        }
    return false;
}

KERNEL_CLAIM(gather_scatter_claim)
{
    struct gather_scatter_step ignored = {0};
    return gather_scatter_classify(node, &ignored);
}

CUDA_CREATE(lower_gather_scatter)
{
    const struct node *node = compile->node;
    struct gather_scatter_step proto = {0};
    (void)gather_scatter_classify(node, &proto);
    struct gather_scatter_step *s =
        cuda_step_create(compile, &proto, sizeof *s, gather_scatter_run, ret, err);
    TRY(allocated(s));
    const struct value *x = node->inputs[0], *y = node->outputs[0];
    s->step.kernel = s->kind == GATHER_PAD ? "pad" : s->kind == GATHER_REPEAT ? "copy" : "gather";
    s->bytes = shape_count(&x->shape) * dtype_size(x->dtype);
    s->step.bytes = 2 * shape_count(&y->shape) * dtype_size(y->dtype);
    TRY(cuda_operand_of(compile, x, x->dtype, &s->x, err));
    if (s->kind != GATHER_TUPLES)
        return STATUS_OK;
    s->tuples.index_bytes = (int)dtype_size(node->inputs[1]->dtype);
    TRY(cuda_operand_of(compile, node->inputs[1], node->inputs[1]->dtype, &s->indices, err));
    if (!s->scatters)
        return STATUS_OK;
    s->step.kernel = "scatter";
    return cuda_operand_of(compile, node->inputs[2], node->inputs[2]->dtype, &s->from, err);
}

const struct cuda_kernel cuda_kernel_gather_scatter = {{"gather", {OP_NONE}, gather_scatter_claim},
                                                       lower_gather_scatter};
