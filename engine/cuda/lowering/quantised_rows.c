/* 8-bit integers between products: QuantizeLinear, DequantizeLinear, DynamicQuantizeLinear; the
 * operators of com.microsoft on stored numbers: Add, Mul, Sigmoid, LeakyRelu, Concat and pools; and
 * MaxPool. One scale and zero point for each tensor; everything else runs on the host. */
#include "engine/cuda/lowering/quantised.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/size.h"
#include "engine/ops/families.h"
#include "engine/reference/kernel.h"

enum rows_kind {
    INT8_QUANTIZE,
    INT8_DEQUANTIZE,
    INT8_WIDEN,
    INT8_DYNAMIC,
    INT8_BINARY,
    INT8_TABLE,
    INT8_POOL,
    INT8_MEAN,
};

struct int8_rows_step {
    struct cuda_step step;
    enum rows_kind kind;
    uint32_t x, b, y, y_scale, y_zero;
    const void *x_constant, *b_constant; /* on the device, instead of the values */
    enum dtype x_dtype, y_dtype;
    struct terms from, from_b, to;
    struct cuda_int8_binary binary;
    struct cuda_int8_pool pool;
    const unsigned char *table;
    size_t count, images, positions, channels;
    float factor;
};

/* Concat: parts of different scales in one tensor. */
struct int8_concat_step {
    struct cuda_step step;
    uint32_t y, *parts;
    const void **constants;
    const unsigned char **tables; /* NULL: stored numbers as they are */
    size_t *widths, *offsets, count, rows, width;
};

static enum status quantised_rows_run(struct cuda_step *base, struct cuda_program *program,
                                      struct error *err)
{
    struct int8_rows_step *s = (struct int8_rows_step *)base;
    struct cuda_backend *backend = program->backend;
    cudaStream_t stream = backend->stream;
    const void *x = s->x_constant ? s->x_constant : program->data[s->x];
    void *y = program->data[s->y];
    switch (s->kind) {
    case INT8_QUANTIZE:
        cuda_int8_quantize(stream, (int)s->x_dtype, x, (int)s->y_dtype, y, s->count, s->to.scale,
                           s->to.zero);
        break;
    case INT8_DEQUANTIZE:
        cuda_int8_dequantize(stream, (int)s->x_dtype, x, (int)s->y_dtype, y, s->count,
                             s->from.scale, s->from.zero);
        break;
    case INT8_WIDEN:
        cuda_int8_widen(stream, x, (int)s->y_dtype, y, s->count);
        break;
    case INT8_DYNAMIC:
        cuda_int8_dynamic(stream, x, s->count, backend->arena + program->value_bytes, y,
                          program->data[s->y_scale], program->data[s->y_zero]);
        break;
    case INT8_BINARY:
        cuda_int8_apply_binary(stream, x, s->b_constant ? s->b_constant : program->data[s->b], y,
                               &s->binary);
        break;
    case INT8_TABLE:
        cuda_int8_rows(stream, x, y, 1, s->count, s->count, 0, s->table);
        break;
    case INT8_POOL:
        cuda_int8_pool2d(stream, x, y, &s->pool);
        break;
    case INT8_MEAN:
        cuda_int8_mean(stream, (int)s->x_dtype, x, y, s->images, s->positions, s->channels,
                       s->factor, s->from.zero, s->to.zero);
        break;
    }
    return cuda_launched(base, program, err);
}

static enum status concat_run(struct cuda_step *base, struct cuda_program *program,
                              struct error *err)
{
    struct int8_concat_step *s = (struct int8_concat_step *)base;
    for (size_t p = 0; p < s->count; p++) {
        const void *x = s->constants[p] ? s->constants[p] : program->data[s->parts[p]];
        if (s->widths[p] && s->rows)
            cuda_int8_rows(program->backend->stream, x, program->data[s->y], s->rows, s->widths[p],
                           s->width, s->offsets[p], s->tables[p]);
    }
    return cuda_launched(base, program, err);
}

static void concat_free(struct cuda_step *base)
{
    struct int8_concat_step *s = (struct int8_concat_step *)base;
    free(s->parts);
    free(s->constants);
    free(s->tables);
    free(s->widths);
    free(s->offsets);
}

/* ---- what a node is ---- */

static bool binary_fits(const struct node *node, struct int8_rows_step *ret)
{
    const struct value *a = node->inputs[0], *b = node_input(node, 3), *y = node->outputs[0];
    return b && shape_count(&b->shape) && !(a->known && b->known) &&
           terms_read(node, 1, a->dtype, &ret->from) &&
           terms_read(node, 4, b->dtype, &ret->from_b) && terms_read(node, 6, y->dtype, &ret->to);
}

static bool pool_fits(const struct node *node, struct int8_rows_step *ret)
{
    const struct value *x = node->inputs[0], *y = node->outputs[0];
    size_t count;
    const int64_t *kernel = node_ints(node, "kernel_shape", &count);
    if (x->known || x->shape.rank != 4 || !is_8bit(x->dtype) || y->dtype != x->dtype || !kernel ||
        count != 2)
        return false;
    if (node->op == OP_MAX_POOL)
        return !node_output(node, 1);
    return !node_int(node, "channels_last", 0) && terms_read(node, 1, x->dtype, &ret->from) &&
           terms_read(node, 3, y->dtype, &ret->to);
}

/* The kind of a node, and its parameters; false when it is none of these. */
static bool quantised_rows_classify(const struct node *node, struct int8_rows_step *ret)
{
    const struct value *x = node_input(node, 0), *y = node_output(node, 0);
    if (!x || !y || !shape_count(&x->shape) || !shape_count(&y->shape))
        return false;
    switch (node->op) {
    case OP_QUANTIZE_LINEAR:
        ret->kind = INT8_QUANTIZE;
        return !x->known && is_computed(x->dtype) && !node_int(node, "precision", 0) &&
               terms_read(node, 1, y->dtype, &ret->to);
    case OP_DEQUANTIZE_LINEAR:
        ret->kind = INT8_DEQUANTIZE;
        return !x->known && is_computed(y->dtype) && terms_read(node, 1, x->dtype, &ret->from);
    case OP_CAST:
        ret->kind = INT8_WIDEN;
        return !x->known && x->dtype == DTYPE_I32 && is_computed(y->dtype);
    case OP_DYNAMIC_QUANTIZE_LINEAR:
        ret->kind = INT8_DYNAMIC;
        return !x->known && x->dtype == DTYPE_F32 && node_output(node, 1) && node_output(node, 2);
    case OP_QLINEAR_ADD:
    case OP_QLINEAR_MUL:
        ret->kind = INT8_BINARY;
        return binary_fits(node, ret);
    case OP_QLINEAR_SIGMOID:
    case OP_QLINEAR_LEAKY_RELU:
        ret->kind = INT8_TABLE;
        return !x->known && terms_read(node, 1, x->dtype, &ret->from) &&
               terms_read(node, 3, y->dtype, &ret->to);
    case OP_LOOKUP:
        ret->kind = INT8_TABLE;
        return !x->known && node->inputs[1]->known;
    case OP_MAX_POOL:
    case OP_QLINEAR_AVERAGE_POOL:
        ret->kind = INT8_POOL;
        return pool_fits(node, ret);
    case OP_QLINEAR_GLOBAL_AVERAGE_POOL:
        ret->kind = INT8_MEAN;
        return !x->known && x->dtype == y->dtype && x->shape.rank >= 3 &&
               shape_count(&x->shape) / shape_count(&y->shape) <= CUDA_INT8_MEAN_MOST &&
               !node_int(node, "channels_last", 0) && terms_read(node, 1, x->dtype, &ret->from) &&
               terms_read(node, 3, y->dtype, &ret->to);
    default:
        return false;
    }
}

bool cuda_takes_quantised_rows(const struct node *node)
{
    struct int8_rows_step ignored;
    return quantised_rows_classify(node, &ignored);
}

bool cuda_takes_quantised_pool(const struct node *node)
{
    struct int8_rows_step s;
    return quantised_rows_classify(node, &s) && (s.kind == INT8_POOL || s.kind == INT8_MEAN);
}

/* ---- tables ---- */

static enum status upload_table(const struct cuda_compile *compile, const unsigned char bytes[256],
                                const unsigned char **ret, struct error *err)
{
    struct tensor *tensor;
    struct shape shape = SHAPE(256);
    void *data = NULL;
    TRY(tensor_create(NULL, DTYPE_U8, &shape, &tensor, err));
    memcpy(tensor->data, bytes, 256);
    enum status status =
        cuda_weights_get(compile->backend, tensor, WEIGHT_AS_IS, DTYPE_U8, &data, err);
    tensor_unref(tensor);
    *ret = data;
    return status;
}

/* The reference kernel's result for each stored number. */
static enum status function_table(const struct cuda_compile *compile, const unsigned char **ret,
                                  struct error *err)
{
    const struct node *node = compile->node;
    struct shape shape = SHAPE(256);
    struct tensor *in[5] = {NULL}, *out = NULL;
    struct tensor **outs[1] = {&out};
    if (node->op == OP_LOOKUP)
        return upload_table(compile, node->inputs[1]->known->data, ret, err);
    if (node->input_count > COUNT_OF(in))
        return error_set(err, STATUS_INTERNAL, "a table of too many operands");
    for (size_t i = 1; i < node->input_count; i++)
        in[i] = node->inputs[i] ? node->inputs[i]->known : NULL;
    TRY(tensor_create(NULL, node->inputs[0]->dtype, &shape, &in[0], err));
    enum status status = tensor_create(NULL, node->outputs[0]->dtype, &shape, &out, err);
    for (int i = 0; i < 256; i++)
        ((unsigned char *)in[0]->data)[i] = (unsigned char)i;
    const struct kernel_args args = {
        .node = node, .in = (const struct tensor *const *)in, .out = outs};
    if (status == STATUS_OK)
        status = kernel_call(kernel_find(node->op), &args, err);
    if (status == STATUS_OK)
        status = upload_table(compile, out->data, ret, err);
    tensor_unref(in[0]);
    tensor_unref(out);
    return status;
}

/* The table from numbers stored by `from` to those stored by `to`; *ret stays NULL if these are the
 * same. */
static enum status requantise_table(const struct cuda_compile *compile, enum dtype dtype,
                                    const struct terms *from, enum dtype to_dtype,
                                    const struct terms *to, const unsigned char **ret,
                                    struct error *err)
{
    unsigned char bytes[256];
    const float low = to_dtype == DTYPE_I8 ? -128 : 0;
    *ret = NULL;
    if (dtype == to_dtype && from->scale == to->scale && from->zero == to->zero)
        return STATUS_OK;
    for (int i = 0; i < 256; i++) {
        const int stored = dtype == DTYPE_I8 ? (int8_t)i : i;
        const float real = (float)(stored - from->zero) * from->scale;
        const float number = rintf(real / to->scale) + (float)to->zero;
        const float above = number > low ? number : low;
        bytes[i] = (unsigned char)(int)(above < low + 255 ? above : low + 255);
    }
    return upload_table(compile, bytes, ret, err);
}

/* ---- steps ---- */

static enum status operand(const struct cuda_compile *compile, const struct value *value,
                           uint32_t *ret, const void **ret_constant, struct error *err)
{
    *ret = value->index;
    return cuda_weights_of(compile->backend, value, value->dtype, ret_constant, err);
}

static enum status fill_binary(const struct cuda_compile *compile, struct int8_rows_step *s,
                               struct error *err)
{
    const struct node *node = compile->node;
    const struct value *a = node->inputs[0], *b = node->inputs[3], *y = node->outputs[0];
    struct cuda_int8_binary *binary = &s->binary;
    *binary = (struct cuda_int8_binary){.is_product = node->op == OP_QLINEAR_MUL,
                                        .a_type = (int)a->dtype,
                                        .b_type = (int)b->dtype,
                                        .y_type = (int)y->dtype,
                                        .a_zero = s->from.zero,
                                        .b_zero = s->from_b.zero,
                                        .is_dense = shape_equal(&a->shape, &y->shape) &&
                                                    shape_equal(&b->shape, &y->shape),
                                        .count = s->count};
    if (binary->is_product) {
        binary->a_ratio = s->from.scale * s->from_b.scale / s->to.scale;
        binary->fixed = (float)s->to.zero;
    } else {
        terms_add(&s->from, &s->from_b, &s->to, &binary->a_ratio, &binary->b_ratio, &binary->fixed);
    }
    if (!binary->is_dense)
        binary->map = cuda_map_broadcast(&y->shape, (const struct shape[]){a->shape, b->shape}, 2);
    TRY(operand(compile, a, &s->x, &s->x_constant, err));
    return operand(compile, b, &s->b, &s->b_constant, err);
}

static enum status fill_pool(const struct node *node, struct int8_rows_step *s, struct error *err)
{
    s->pool = (struct cuda_int8_pool){.type = (int)s->x_dtype,
                                      .from_scale = s->from.scale,
                                      .to_scale = s->to.scale,
                                      .from_zero = s->from.zero,
                                      .to_zero = s->to.zero};
    return window_of_pool(node, &s->pool.pool, err);
}

static enum status quantised_rows_fill(const struct cuda_compile *compile, struct int8_rows_step *s,
                                       struct error *err)
{
    static const char *const kernels[] = {
        [INT8_QUANTIZE] = "quantize",  [INT8_DEQUANTIZE] = "dequantize",
        [INT8_WIDEN] = "convert",      [INT8_DYNAMIC] = "dynamic quantize",
        [INT8_BINARY] = "int8 binary", [INT8_TABLE] = "int8 table",
        [INT8_POOL] = "int8 pool",     [INT8_MEAN] = "int8 mean"};
    const struct node *node = compile->node;
    const struct value *x = node->inputs[0], *y = node->outputs[0];
    s->step.kernel = kernels[s->kind];
    s->x = x->index;
    s->y = y->index;
    s->x_dtype = x->dtype;
    s->y_dtype = y->dtype;
    s->count = shape_count(&y->shape);
    s->step.bytes = shape_count(&x->shape) * dtype_size(x->dtype) + s->count * dtype_size(y->dtype);
    switch (s->kind) {
    case INT8_BINARY:
        return fill_binary(compile, s, err);
    case INT8_TABLE:
        return function_table(compile, &s->table, err);
    case INT8_POOL:
        return fill_pool(node, s, err);
    case INT8_MEAN:
        s->images = (size_t)x->shape.dims[0];
        s->channels = (size_t)x->shape.dims[x->shape.rank - 1];
        s->positions = shape_count(&x->shape) / s->images / s->channels;
        s->factor = s->from.scale / (s->to.scale * (float)s->positions);
        return STATUS_OK;
    case INT8_DYNAMIC:
        s->y_scale = node->outputs[1]->index;
        s->y_zero = node->outputs[2]->index;
        s->step.workspace = 2 * CUDA_INT8_RANGES * sizeof(float);
        return STATUS_OK;
    default:
        return STATUS_OK;
    }
}

/* ---- Concat ---- */

/* y's scale and zero point, then three operands a part. */
static bool concat_fits(const struct node *node)
{
    const struct value *y = node_output(node, 0);
    struct terms ignored;
    if (node->op != OP_QLINEAR_CONCAT || !y || !shape_count(&y->shape) || node->input_count < 5 ||
        node->input_count % 3 != 2 || !terms_read(node, 0, y->dtype, &ignored))
        return false;
    for (size_t k = 2; k < node->input_count; k += 3)
        if (!node->inputs[k] || !terms_read(node, k + 1, node->inputs[k]->dtype, &ignored))
            return false;
    return true;
}

static enum status concat_fill(const struct cuda_compile *compile, struct int8_concat_step *s,
                               struct error *err)
{
    const struct node *node = compile->node;
    const struct value *y = node->outputs[0];
    struct terms from = {0}, to = {0};
    int64_t axis = node_int(node, "axis", 0);
    axis += axis < 0 ? y->shape.rank : 0;
    size_t inner = 1;
    s->rows = 1;
    for (int d = (int)axis + 1; d < y->shape.rank; d++)
        inner *= (size_t)y->shape.dims[d];
    for (int d = 0; d < axis; d++)
        s->rows *= (size_t)y->shape.dims[d];
    (void)terms_read(node, 0, y->dtype, &to);
    for (size_t p = 0; p < s->count; p++) {
        const struct value *part = node->inputs[2 + 3 * p];
        (void)terms_read(node, 3 + 3 * p, part->dtype, &from);
        TRY(operand(compile, part, &s->parts[p], &s->constants[p], err));
        TRY(requantise_table(compile, part->dtype, &from, y->dtype, &to, &s->tables[p], err));
        s->widths[p] = inner * (size_t)part->shape.dims[axis];
        s->offsets[p] = s->width;
        s->width += s->widths[p];
    }
    s->step.bytes = 2 * s->rows * s->width;
    return STATUS_OK;
}

static enum status lower_concat(const struct cuda_compile *compile, struct cuda_step **ret,
                                struct error *err)
{
    struct int8_concat_step *s = cuda_step_create(compile, sizeof *s, concat_run);
    if (!s)
        return error_set(err, STATUS_NO_MEMORY, "out of memory while compiling");
    s->step.free = concat_free;
    s->step.kernel = "int8 concat";
    s->count = compile->node->input_count / 3;
    s->y = compile->node->outputs[0]->index;
    s->parts = calloc(s->count, sizeof *s->parts);
    s->constants = calloc(s->count, sizeof *s->constants);
    s->tables = calloc(s->count, sizeof *s->tables);
    s->widths = calloc(s->count, sizeof *s->widths);
    s->offsets = calloc(s->count, sizeof *s->offsets);
    enum status status = s->parts && s->constants && s->tables && s->widths && s->offsets
                             ? concat_fill(compile, s, err)
                             : error_set(err, STATUS_NO_MEMORY, "out of memory while compiling");
    if (status == STATUS_OK)
        *ret = &s->step;
    else
        cuda_step_free(&s->step);
    return status;
}

enum status cuda_lower_quantised_rows(const struct cuda_compile *compile, struct cuda_step **ret,
                                      struct error *err)
{
    const struct node *node = compile->node;
    struct int8_rows_step proto = {0};
    if (concat_fits(node))
        return lower_concat(compile, ret, err);
    if (!quantised_rows_classify(node, &proto) ||
        ((proto.kind == INT8_POOL || proto.kind == INT8_MEAN) && !node->channels_last))
        return STATUS_OK;
    struct int8_rows_step *s = cuda_step_create(compile, sizeof *s, quantised_rows_run);
    if (!s)
        return error_set(err, STATUS_NO_MEMORY, "out of memory while compiling");
    proto.step = s->step;
    *s = proto;
    enum status status = quantised_rows_fill(compile, s, err);
    if (status == STATUS_OK)
        *ret = &s->step;
    else
        cuda_step_free(&s->step);
    return status;
}
