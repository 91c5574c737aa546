/* 8-bit integers between products: QuantizeLinear, DequantizeLinear, DynamicQuantizeLinear, tables
 * (OP_LOOKUP). A tensor has one scale and one zero point; nodes with other scales run on the host.
 */
#include "engine/cuda/lowering/lowering.h"

#include "engine/base/size.h"

struct int8_rows_step {
    struct cuda_step step;
    enum op op;
    uint32_t y_scale, y_zero; /* results of DynamicQuantizeLinear */
    enum dtype x_dtype, y_dtype;
    struct scale_zero scale;
    const void *table; /* 256 bytes */
    size_t count;
};

CUDA_RUN(quantized_rows_run)
{
    struct int8_rows_step *s = (struct int8_rows_step *)base;
    struct cuda_backend *backend = program->backend;
    void *x = program->data[base->x], *y = program->data[base->y];
    const struct cuda_parts all = {
        .count = 1, .rows = 1, .pitch = s->count, .parts = {{x, s->count, 0, s->table}}};
    if (s->op == OP_LOOKUP)
        cuda_copy_parts(backend->stream, y, &all);
    else if (s->op == OP_DYNAMIC_QUANTIZE_LINEAR)
        cuda_int8_dynamic(backend->stream, x, s->count, backend->arena + program->value_bytes, y,
                          program->data[s->y_scale], program->data[s->y_zero]);
    else
        cuda_int8_convert(backend->stream, (int)s->x_dtype, x, (int)s->y_dtype, y, s->count,
                          s->scale.scale, s->scale.zero);
    return cuda_launched(base, program, err);
}

/* Reads the scale of a node; false: the kernels cannot run the node. */
static bool quantized_rows_classify(const struct node *node, struct scale_zero *ret)
{
    const struct value *x = node_input(node, 0), *y = node_output(node, 0);
    if (!x || !y || x->known || !shape_count(&x->shape) || !shape_count(&y->shape))
        return false;
    switch (node->op) {
    case OP_QUANTIZE_LINEAR:
        return is_computed(x->dtype) && !node_int(node, "precision", 0) &&
               scale_zero_of(node, 1, y->dtype, ret);
    case OP_DEQUANTIZE_LINEAR:
        return is_computed(y->dtype) && scale_zero_of(node, 1, x->dtype, ret);
    case OP_DYNAMIC_QUANTIZE_LINEAR:
        return x->dtype == DTYPE_F32 && node_output(node, 1) && node_output(node, 2);
    default:
        return node->inputs[1]->known != NULL;
    }
}

KERNEL_CLAIM(quantized_rows_claim)
{
    struct scale_zero ignored;
    if (node->op == OP_LOOKUP)
        ret->in_place = 0;
    return quantized_rows_classify(node, &ignored);
}

CUDA_CREATE(lower_quantized_rows)
{
    const struct node *node = compile->node;
    const struct value *x = node->inputs[0], *y = node->outputs[0];
    const bool is_dynamic = node->op == OP_DYNAMIC_QUANTIZE_LINEAR;
    struct int8_rows_step s = {
        .step = {.kernel = node->op == OP_QUANTIZE_LINEAR     ? "quantize"
                           : node->op == OP_DEQUANTIZE_LINEAR ? "dequantize"
                           : is_dynamic                       ? "dynamic quantize"
                                                              : "int8 table",
                 .workspace = is_dynamic ? 2 * CUDA_INT8_RANGES * sizeof(float) : 0},
        .op = node->op,
        .y_scale = cuda_index_of(compile, node_output(node, 1)),
        .y_zero = cuda_index_of(compile, node_output(node, 2)),
        .x_dtype = x->dtype,
        .y_dtype = y->dtype,
        .count = shape_count(&y->shape)};
    (void)quantized_rows_classify(node, &s.scale);
    if (node->op == OP_LOOKUP)
        TRY(cuda_weights_of(compile->backend, node->inputs[1], DTYPE_U8, &s.table, err));
    return allocated(cuda_step_create(compile, &s, sizeof s, quantized_rows_run, ret, err));
}

const struct cuda_kernel cuda_kernel_int8_rows = {
    {"int8 rows",
     {OP_QUANTIZE_LINEAR, OP_DEQUANTIZE_LINEAR, OP_DYNAMIC_QUANTIZE_LINEAR, OP_LOOKUP},
     quantized_rows_claim},
    lower_quantized_rows};
