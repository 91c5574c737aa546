/* Softmax (over the last dimension), LayerNormalization and RMSNormalization in float32 and
 * bfloat16, the last two also with 8-bit results; ReduceMean over the last dimension in float32. */
#include "engine/cpu/kernels/simd.h"
#include "engine/cpu/lowering/lowering.h"
#include "engine/cpu/program/parallel.h"
#include "engine/op/resolve.h"

struct norm_step {
    struct step step;
    const struct simd_kernels *simd;
    enum op op;
    float epsilon;
    size_t rows, row;
    enum dtype dtype;
    void **scale, **bias;     /* addresses in program->data; NULL: no such operand */
    size_t bytes_per_thread;  /* bytes of scratch: one float32 row */
    struct epilogue epilogue; /* of the stored result */
    bool is_signed;
};

static void norm_row(const struct norm_step *s, const float *x, float *y)
{
    if (s->op == OP_SOFTMAX)
        s->simd->softmax(x, y, s->row);
    else
        s->simd->norm_row(x, *s->scale, s->bias ? *s->bias : NULL, s->epsilon,
                          s->op == OP_RMS_NORMALIZATION, y, s->row);
}

static void norm_rows(void *context, size_t begin, size_t end)
{
    const struct norm_step *s = context;
    const void *x = s->step.x;
    void *y = s->step.y;
    if (s->op == OP_REDUCE_MEAN) {
        for (size_t r = begin; r < end; r++)
            ((float *)y)[r] =
                s->simd->sum_row((const float *)x + r * s->row, s->row) / (float)s->row;
        return;
    }
    if (s->dtype == DTYPE_F32 && s->epilogue.step == 0) {
        for (size_t r = begin; r < end; r++)
            norm_row(s, (const float *)x + r * s->row, (float *)y + r * s->row);
        return;
    }
    float *wide =
        (float *)(void *)(s->step.memory + (size_t)forkjoin_member() * s->bytes_per_thread);
    for (size_t r = begin; r < end; r++) {
        if (s->epilogue.step != 0) {
            norm_row(s, (const float *)x + r * s->row, wide);
            s->simd->quantize(wide, s->epilogue.step, s->epilogue.zero, s->is_signed,
                              (unsigned char *)y + r * s->row, s->row);
            continue;
        }
        s->simd->widen_bf16((const uint16_t *)x + r * s->row, wide, s->row);
        norm_row(s, wide, wide);
        s->simd->narrow_bf16(wide, (uint16_t *)y + r * s->row, s->row);
    }
}

STEP_RUN(norm_run)
{
    struct norm_step *s = (struct norm_step *)base;
    parallel_for(program->threads, s->rows, s->row, norm_rows, s);
    return STATUS_OK;
}

/* True for a mean over only the last dimension. */
static bool is_row_mean(const struct node *node)
{
    const struct value *x = node_input(node, 0), *y = node_output(node, 0);
    struct reduction reduction;
    return x && y && x->dtype == DTYPE_F32 && y->dtype == DTYPE_F32 && shape_count(&x->shape) &&
           x->shape.rank > 0 && resolve_is_known(node) &&
           resolve_reduction(node, &reduction, NULL) == STATUS_OK &&
           reduction.axes == 1u << (x->shape.rank - 1);
}

KERNEL_CLAIM(norm_claim)
{
    const struct value *x = node_input(node, 0), *y = node_output(node, 0);
    const struct value *bias = node_input(node, 2);
    const bool is_softmax = node->op == OP_SOFTMAX;
    if (node->op == OP_REDUCE_MEAN)
        return is_row_mean(node);
    if (!x || !y || node_output(node, 1) || node_output(node, 2) ||
        (x->dtype != DTYPE_F32 && x->dtype != DTYPE_BF16) ||
        (x->dtype != y->dtype && node->epilogue.step == 0) || shape_count(&x->shape) == 0)
        return false;
    ret->narrow = NARROW_SAME;
    if (!is_softmax)
        ret->can = KERNEL_STORED_RESULT;
    return claim_row_length(node) && (is_softmax || (claim_is_row(node, node->inputs[1]) &&
                                                     (!bias || claim_is_row(node, bias))));
}

STEP_CREATE(lower_norm)
{
    const struct node *node = lowering->node;
    const struct value *x = node->inputs[0], *y = node->outputs[0];
    const bool is_mean = node->op == OP_REDUCE_MEAN;
    const size_t row = is_mean ? (size_t)x->shape.dims[x->shape.rank - 1] : claim_row_length(node);
    const struct value *bias = is_mean ? NULL : node_input(node, 2);
    struct norm_step *step = step_create(lowering, sizeof *step, norm_run, ret, err);
    TRY(allocated(step));
    step->simd = simd();
    step->step.kernel = step->simd->name;
    step->op = node->op;
    step->epsilon = node_float(node, "epsilon", 1e-5f);
    step->row = row;
    step->rows = shape_count(&x->shape) / row;
    step->dtype = x->dtype;
    if (node->op != OP_SOFTMAX && !is_mean)
        step->scale = &lowering->program->data[node->inputs[1]->index];
    step->bias = bias ? &lowering->program->data[bias->index] : NULL;
    step->epilogue = node->epilogue;
    step->is_signed = y->dtype == DTYPE_I8;
    if (x->dtype == DTYPE_BF16 || node->epilogue.step != 0) {
        step->bytes_per_thread = (row * sizeof(float) + 63) & ~(size_t)63;
        step->step.scratch = step->bytes_per_thread * (size_t)lowering->program->threads;
    }
    step->step.flops = 5 * (double)shape_count(&x->shape);
    return STATUS_OK;
}

const struct cpu_kernel cpu_norm = {
    {"norm",
     {OP_SOFTMAX, OP_LAYER_NORMALIZATION, OP_RMS_NORMALIZATION, OP_REDUCE_MEAN},
     norm_claim},
    lower_norm};
