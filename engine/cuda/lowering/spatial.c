/* Steps of normalizations, and of image operators other than convolutions: pools, Resize,
 * ConvTranspose, GridSample. GridSample reads images in ONNX's layout; all others read [N, H, W,
 * C]. Rare forms of Resize and GridSample run on the host. */
#include "engine/cuda/lowering/lowering.h"

#include <limits.h>
#include <string.h>

#include "engine/base/size.h"
#include "engine/op/families.h"
#include "engine/op/geometry.h"

struct spatial_step {
    struct cuda_step step;
    struct cuda_operand grid;
    enum dtype dtype;
    enum {
        SPATIAL_ROWS,
        SPATIAL_POOL,
        SPATIAL_POOL_GLOBAL,
        SPATIAL_RESIZE,
        SPATIAL_GROUPS,
        SPATIAL_CONV,
        SPATIAL_SAMPLE
    } kind;
    size_t rows,
        row; /* of LayerNormalization and RMSNormalization: number of rows, elements of a row */
    float epsilon;
    bool is_rms; /* RMSNormalization: the mean counts as 0 */
    struct cuda_pool pool;
    size_t images, positions, channels; /* of global pools */
    bool is_max;
    struct cuda_resize resize;
    const void *index, *weight; /* tables of int32 and float32 */
    struct cuda_groups groups;
    const void *scale, *bias; /* float32 */
    struct cuda_conv conv;
    const void *weights;
    struct cuda_epilogue epilogue;
    struct cuda_grid_sample sample;
};

CUDA_RUN(spatial_run)
{
    struct spatial_step *s = (struct spatial_step *)base;
    cudaStream_t stream = program->backend->stream;
    const void *x = program->data[base->x];
    void *y = program->data[base->y];
    const int dtype = (int)s->dtype;
    switch (s->kind) {
    case SPATIAL_ROWS:
        cuda_norm_rows(stream, dtype, x, s->scale, s->bias, y, s->rows, s->row, s->epsilon,
                       s->is_rms);
        break;
    case SPATIAL_POOL:
        cuda_pool2d(stream, dtype, x, y, &s->pool);
        break;
    case SPATIAL_POOL_GLOBAL:
        cuda_pool_global(stream, dtype, x, y, s->images, s->positions, s->channels, s->is_max,
                         &s->pool.scales);
        break;
    case SPATIAL_RESIZE:
        cuda_resize_image(stream, dtype, x, y, s->index, s->weight, &s->resize);
        break;
    case SPATIAL_GROUPS:
        cuda_normalise_groups(stream, dtype, x, s->scale, s->bias, y, &s->groups,
                              program->backend->arena + program->value_bytes);
        break;
    case SPATIAL_CONV:
        cuda_conv_transposed(stream, dtype, x, s->weights, y, &s->conv, &s->epilogue);
        break;
    case SPATIAL_SAMPLE:
        cuda_sample_grid(stream, dtype, x, cuda_operand_at(program, &s->grid), y, &s->sample);
        break;
    }
    return cuda_launched(base, program, err);
}

/* True if operand and result have one type, and nothing is fused. */
static bool type_is_kept(const struct node *node)
{
    const struct value *x = node_input(node, 0), *y = node_output(node, 0);
    return x && y && !x->known && x->dtype == y->dtype && shape_count(&x->shape) &&
           shape_count(&y->shape) && !node->epilogue.activation && !node->epilogue.residual;
}

/* True if type_is_kept(), and all kernels support the type. */
static bool image_is_kept(const struct node *node)
{
    return type_is_kept(node) && is_computed(node->inputs[0]->dtype);
}

/* Creates a step as a copy of `form` (NULL: zeroed); NULL when out of memory. */
static struct spatial_step *spatial_create(const struct cuda_lowering *compile,
                                           const struct spatial_step *form, int kind,
                                           const char *kernel, struct cuda_step **ret,
                                           struct error *err)
{
    struct spatial_step *s = cuda_step_create(compile, form, sizeof *s, spatial_run, ret, err);
    if (!s)
        return NULL;
    s->kind = kind;
    s->step.kernel = kernel;
    s->dtype = compile->node->inputs[0]->dtype;
    return s;
}

/* ---- LayerNormalization, RMSNormalization, pools ---- */

/* read_rows() and read_pool() set all members that depend only on the node, and return false if the
 * kernels cannot run the node. */
static bool read_rows(const struct node *node, struct spatial_step *s)
{
    const struct value *bias = node_input(node, 2);
    s->kind = SPATIAL_ROWS;
    s->is_rms = node->op == OP_RMS_NORMALIZATION;
    s->row = claim_row_length(node);
    s->rows = s->row ? shape_count(&node->inputs[0]->shape) / s->row : 0;
    s->epsilon = node_float(node, "epsilon", 1e-5f);
    return s->row && s->rows <= INT32_MAX && !node_output(node, 1) && !node_output(node, 2) &&
           claim_is_row(node, node->inputs[1]) && (!bias || claim_is_row(node, bias));
}

static bool read_pool(const struct node *node, struct spatial_step *s)
{
    const struct shape *x = &node->inputs[0]->shape;
    const enum dtype dtype = node->inputs[0]->dtype;
    struct scale_zero from, to;
    if (node->op == OP_QLINEAR_AVERAGE_POOL || node->op == OP_QLINEAR_GLOBAL_AVERAGE_POOL) {
        if (node_int(node, "channels_last", 0) || !scale_zero_of(node, 1, dtype, &from) ||
            !scale_zero_of(node, 3, dtype, &to))
            return false;
        s->pool.scales = (struct cuda_scales){from.scale, to.scale, from.zero, to.zero};
    } else if (!is_computed(dtype) && (node->op != OP_MAX_POOL || !dtype_is_8bit(dtype))) {
        return false;
    }
    s->is_max = node->op == OP_GLOBAL_MAX_POOL;
    s->kind = s->is_max || node->op == OP_GLOBAL_AVERAGE_POOL ||
                      node->op == OP_QLINEAR_GLOBAL_AVERAGE_POOL
                  ? SPATIAL_POOL_GLOBAL
                  : SPATIAL_POOL;
    s->images = (size_t)x->dims[0];
    s->channels = (size_t)x->dims[x->rank - 1];
    s->positions = shape_count(x) / shape_count(&node->outputs[0]->shape);
    if (s->kind == SPATIAL_POOL_GLOBAL)
        return is_computed(dtype) || s->positions <= CUDA_MEAN_MOST;
    return x->rank == 4 && !node_output(node, 1);
}

KERNEL_CLAIM(rows_claim)
{
    struct spatial_step ignored = {0};
    ret->narrow = NARROW_SAME;
    return image_is_kept(node) && read_rows(node, &ignored);
}

KERNEL_CLAIM(rows_pool_claim)
{
    struct spatial_step ignored = {0};
    if (!type_is_kept(node) || node->inputs[0]->shape.rank < 3 || !read_pool(node, &ignored))
        return false;
    ret->can = KERNEL_CHANNELS_LAST;
    if (!is_computed(node->inputs[0]->dtype))
        return true;
    ret->narrow = NARROW_SAME;
    return claim_reads_image(node);
}

CUDA_CREATE(lower_row_norms)
{
    const struct node *node = compile->node;
    struct spatial_step proto = {0};
    (void)read_rows(node, &proto);
    TRY(cuda_weights_of(compile->backend, node->inputs[1], DTYPE_F32, &proto.scale, err));
    TRY(cuda_weights_of(compile->backend, node_input(node, 2), DTYPE_F32, &proto.bias, err));
    return allocated(spatial_create(compile, &proto, proto.kind, "rows", ret, err));
}

CUDA_CREATE(lower_pool)
{
    struct spatial_step proto = {0};
    (void)read_pool(compile->node, &proto);
    if (proto.kind == SPATIAL_POOL)
        TRY(window_of_pool(compile->node, &proto.pool, err));
    return allocated(spatial_create(compile, &proto, proto.kind, "rows", ret, err));
}

const struct cuda_kernel cuda_kernel_row_norms = {
    {"row norms", {OP_LAYER_NORMALIZATION, OP_RMS_NORMALIZATION}, rows_claim}, lower_row_norms};
const struct cuda_kernel cuda_kernel_pool = {
    {"pool",
     {OP_GLOBAL_AVERAGE_POOL, OP_GLOBAL_MAX_POOL, OP_MAX_POOL, OP_AVERAGE_POOL,
      OP_QLINEAR_AVERAGE_POOL, OP_QLINEAR_GLOBAL_AVERAGE_POOL},
     rows_pool_claim},
    lower_pool};

/* ---- Resize ---- */

/* Returns the shape of a [N, …, C] tensor in ONNX's order. */
static struct shape channels_first(const struct shape *last)
{
    struct shape plain = *last;
    plain.dims[1] = last->dims[last->rank - 1];
    for (int d = 2; d < last->rank; d++)
        plain.dims[d] = last->dims[d - 1];
    return plain;
}

KERNEL_CLAIM(resize_claim)
{
    struct resize_plan plan;
    ret->can = KERNEL_CHANNELS_LAST;
    ret->narrow = NARROW_SAME;
    /* The layout pass asks before it changes the shapes. */
    return image_is_kept(node) && claim_reads_image(node) &&
           (node->channels_last || resize_is_spatial(node, &plan));
}

/* Fills `resize`'s taps and tables on the device. Axes 2 and 3 of the plan are rows and columns,
 * whose extents fit int32. */
static enum status make_tables(const struct cuda_lowering *compile, const struct resize_plan *plan,
                               struct spatial_step *s, struct error *err)
{
    struct cuda_resize *r = &s->resize;
    size_t total = 0, at = 0;
    for (int d = 0; d < 2; d++) {
        const struct resize_axis *axis = &plan->axis[2 + d];
        const size_t taps = axis->resized ? resize_tap_count(plan, axis) : 1;
        if (taps > INT_MAX)
            return error_set(err, STATUS_NO_MEMORY, "'%s' has too many taps", s->step.name);
        r->taps[d] = (int)taps;
        total += taps * (size_t)axis->out;
    }
    size_t *positions = alloc_array(total, sizeof *positions);
    double *weights = alloc_array(total, sizeof *weights);
    int32_t *index = alloc_array(total, sizeof *index);
    float *weight = alloc_array(total, sizeof *weight);
    const bool has_memory = positions && weights && index && weight;
    for (int d = 0; d < 2 && has_memory; d++)
        for (int64_t i = 0; i < plan->axis[2 + d].out; i++, at += (size_t)r->taps[d]) {
            positions[at] = (size_t)i;
            weights[at] = 1;
            if (plan->axis[2 + d].resized)
                (void)resize_taps(plan, &plan->axis[2 + d], i, positions + at, weights + at);
        }
    for (size_t i = 0; i < total && has_memory; i++) {
        index[i] = (int32_t)positions[i];
        weight[i] = (float)weights[i];
    }
    enum status status = check_memory(has_memory, "while compiling", err);
    IF_OK(status, cuda_weights_upload(compile->backend, DTYPE_I32, index, total, &s->index, err));
    IF_OK(status, cuda_weights_upload(compile->backend, DTYPE_F32, weight, total, &s->weight, err));
    FREE_ALL(positions, weights, index, weight);
    return status;
}

CUDA_CREATE(lower_resize)
{
    const struct node *node = compile->node;
    const struct shape *x = &node->inputs[0]->shape, *y = &node->outputs[0]->shape;
    const struct shape plain = channels_first(x);
    struct resize_plan plan;
    bool is_known;
    if (!window_fits_shape(x) || !window_fits_shape(y))
        return STATUS_OK;
    TRY(resize_plan_init(node, &plain, &plan, &is_known, err));
    if (!is_known)
        return STATUS_OK;
    struct spatial_step *s = spatial_create(compile, NULL, SPATIAL_RESIZE, "resize", ret, err);
    TRY(allocated(s));
    memcpy(s->resize.in, x->dims, sizeof s->resize.in);
    memcpy(s->resize.out, y->dims, sizeof s->resize.out);
    return make_tables(compile, &plan, s, err);
}

const struct cuda_kernel cuda_kernel_resize = {{"resize", {OP_RESIZE}, resize_claim}, lower_resize};

/* ---- GroupNormalization, InstanceNormalization ---- */

/* Called before and after the layout pass, so the number of channels comes from the parameters. */
KERNEL_CLAIM(groups_claim)
{
    ret->can = KERNEL_CHANNELS_LAST;
    ret->narrow = NARROW_SAME;
    return image_is_kept(node) && claim_reads_image(node) && claim_group_parameters(node);
}

CUDA_CREATE(lower_groups)
{
    const struct node *node = compile->node;
    const struct value *x = node->inputs[0];
    const bool instance = node->op == OP_INSTANCE_NORMALIZATION;
    struct spatial_step *s = spatial_create(compile, NULL, SPATIAL_GROUPS, "groups", ret, err);
    TRY(allocated(s));
    TRY(cuda_weights_of(compile->backend, node->inputs[1], DTYPE_F32, &s->scale, err));
    TRY(cuda_weights_of(compile->backend, node->inputs[2], DTYPE_F32, &s->bias, err));
    struct cuda_groups *g = &s->groups;
    g->images = (size_t)x->shape.dims[0];
    g->channels = (size_t)x->shape.dims[x->shape.rank - 1];
    g->pixels = shape_count(&x->shape) / g->images / g->channels;
    g->per = instance ? 1 : g->channels / (size_t)node_int(node, "num_groups", 1);
    g->epsilon = node_float(node, "epsilon", 1e-5f);
    s->step.workspace = cuda_groups_workspace(g);
    s->step.bytes *= 2; /* the kernels read x three times and write y once */
    return STATUS_OK;
}

const struct cuda_kernel cuda_kernel_groups = {
    {"groups", {OP_GROUP_NORMALIZATION, OP_INSTANCE_NORMALIZATION}, groups_claim}, lower_groups};

/* ---- ConvTranspose ---- */

KERNEL_CLAIM(conv_transposed_claim)
{
    const struct value *w = node_input(node, 1), *bias = node_bias(node);
    ret->can = KERNEL_CHANNELS_LAST;
    ret->narrow = NARROW_PRODUCT;
    return claim_reads_image(node) && is_computed(node->outputs[0]->dtype) &&
           node->inputs[0]->shape.rank == 4 && is_f32_constant(w) &&
           (!bias || is_f32_constant(bias)) && !node->epilogue.residual;
}

CUDA_CREATE(lower_transposed)
{
    const struct node *node = compile->node;
    const struct value *x = node->inputs[0];
    const struct shape plain = channels_first(&x->shape);
    struct conv_shape shape;
    struct cuda_conv conv;
    TRY(conv_shape_init(node, &plain, &node->inputs[1]->known->shape, &shape, err));
    TRY(window_of_conv(node, &shape.window, shape.group, &conv, err));
    struct spatial_step *s =
        spatial_create(compile, NULL, SPATIAL_CONV, "transposed conv", ret, err);
    TRY(allocated(s));
    TRY(cuda_weights_get(compile->backend, node->inputs[1]->known, WEIGHT_TAPS, x->dtype,
                         &s->weights, err));
    TRY(cuda_epilogue_of(compile, node_bias(node), &s->epilogue, err));
    s->conv = conv;
    const int group_channels = s->conv.m / s->conv.groups;
    s->step.flops = 2.0 * (double)shape_count(&x->shape) * (double)(s->conv.kh * s->conv.kw) *
                    (double)group_channels;
    return STATUS_OK;
}

const struct cuda_kernel cuda_kernel_conv_transpose = {
    {"transposed conv", {OP_CONV_TRANSPOSE}, conv_transposed_claim}, lower_transposed};

/* ---- GridSample ---- */

KERNEL_CLAIM(sample_claim)
{
    const struct value *x = node_input(node, 0), *grid = node_input(node, 1);
    return image_is_kept(node) && grid && x->shape.rank == 4 &&
           strstr(node_string(node, "mode", "linear"), "linear") &&
           !strcmp(node_string(node, "padding_mode", "zeros"), "zeros") &&
           (grid->known ? grid->known->dtype == DTYPE_F32 : grid->dtype == x->dtype);
}

CUDA_CREATE(lower_sample)
{
    const struct node *node = compile->node;
    const struct value *x = node->inputs[0], *grid = node->inputs[1];
    const int64_t *in = x->shape.dims, *out = node->outputs[0]->shape.dims;
    struct spatial_step *s = spatial_create(compile, NULL, SPATIAL_SAMPLE, "grid sample", ret, err);
    TRY(allocated(s));
    TRY(cuda_operand_of(compile, grid, x->dtype, &s->grid, err));
    s->sample = (struct cuda_grid_sample){.n = in[0],
                                          .c = in[1],
                                          .h = in[2],
                                          .w = in[3],
                                          .oh = out[2],
                                          .ow = out[3],
                                          .align_corners = node_int(node, "align_corners", 0) != 0};
    return STATUS_OK;
}

const struct cuda_kernel cuda_kernel_grid_sample = {{"grid sample", {OP_GRID_SAMPLE}, sample_claim},
                                                    lower_sample};
