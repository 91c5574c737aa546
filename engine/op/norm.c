/* Normalisation: BatchNormalization, InstanceNormalization, LayerNormalization, RMSNormalization,
 * GroupNormalization, LRN; and ScaleShift, which passes make from other normalisations. */
#include <math.h>

#include "engine/op/family.h"
#include "engine/op/nn.h"
#include "engine/op/strided.h"

/* True if the value is computed from constants only, by at most MOST_NODES nodes. */
static bool is_made_of_constants(const struct value *value)
{
    enum { MOST_NODES = 64, MOST_VALUES = 128 };
    const struct value *open[MOST_VALUES];
    size_t count = 0, nodes = 0;
    open[count++] = value;
    while (count) {
        const struct value *v = open[--count];
        if (v->known)
            continue;
        const struct node *from = v->producer;
        if (!from || ++nodes > MOST_NODES || from->input_count > MOST_VALUES - count)
            return false;
        for (size_t i = 0; i < from->input_count; i++)
            if (from->inputs[i])
                open[count++] = from->inputs[i];
    }
    return true;
}

/* Refuses training_mode, in which an image's answer would depend on other images. Accepts it on
 * constants: exporters write weight standardisation (NFNet, BiT) this way. */
static enum status check_training(const struct node *node, struct error *err)
{
    bool training = node_int(node, "training_mode", 0) != 0;
    if (training && node->output_count <= 3 && is_made_of_constants(node->inputs[0]))
        return STATUS_OK;
    for (size_t i = 1; i < node->output_count; i++)
        training = training || node->outputs[i];
    if (training) {
        (void)error_set(err, STATUS_UNSUPPORTED,
                        "this is the training form (batch statistics); lensd runs the inference "
                        "form");
        return error_advise(err, "export the model in eval mode");
    }
    return STATUS_OK;
}

static enum status infer_batch_normalization(struct node *node, struct error *err)
{
    TRY(check_training(node, err));
    /* outputs of the training form: running statistics */
    for (size_t i = 1; i < 3; i++)
        TRY(infer_output(node, i, node->inputs[i + 2]->dtype, &node->inputs[i + 2]->shape, err));
    return infer_like(node, err);
}

static enum status check_stash(int64_t stash, struct error *err)
{
    if (stash < 0 || stash > DTYPE_BF16 || !dtype_is_float((enum dtype)stash))
        return error_set(err, STATUS_MODEL, "stash_type is %lld, expected a floating-point type",
                         (long long)stash);
    return STATUS_OK;
}

/* The result of RMSNormalization has the type of the scale. */
static enum status infer_layer_normalization(struct node *node, struct error *err)
{
    const struct value *x = node->inputs[0];
    int64_t axis, stash = node_int(node, "stash_type", DTYPE_F32);
    TRY(infer_attribute_axis(node, -1, &axis, err));
    TRY(operand_broadcasts(node, 1, "the scale", &x->shape, err));
    TRY(operand_broadcasts(node, 2, "B", &x->shape, err));
    TRY(check_stash(stash, err));
    struct shape statistics = x->shape;
    for (int i = (int)axis; i < statistics.rank; i++)
        statistics.dims[i] = 1;
    TRY(infer_output(node, 1, (enum dtype)stash, &statistics, err));
    TRY(infer_output(node, 2, (enum dtype)stash, &statistics, err));
    return infer_output(node, 0, node->inputs[node->op == OP_RMS_NORMALIZATION]->dtype, &x->shape,
                        err);
}

static enum status infer_group_normalization(struct node *node, struct error *err)
{
    const int64_t groups = node_int(node, "num_groups", 0), c = node->inputs[0]->shape.dims[1];
    if (groups < 1 || c % groups)
        return error_set(err, STATUS_SHAPE,
                         "num_groups is %lld, expected a divisor of the %lld channels",
                         (long long)groups, (long long)c);
    TRY(operand_has_shape(node, 1, "scale", &SHAPE(c), err));
    TRY(operand_has_shape(node, 2, "bias", &SHAPE(c), err));
    return infer_like(node, err);
}

static enum status infer_lrn(struct node *node, struct error *err)
{
    int64_t size = node_int(node, "size", 0);
    if (size < 1)
        return error_set(err, STATUS_MODEL, "size is %lld, expected at least 1", (long long)size);
    return infer_like(node, err);
}

/* Mean and population variance of `runs` runs of n numbers, which start `step` apart. */
static void moments(const double *x, size_t runs, size_t n, size_t step, double *ret_mean,
                    double *ret_variance)
{
    const double count = (double)runs * (double)n;
    double sum = 0, squares = 0;
    for (size_t r = 0; r < runs; r++)
        for (size_t i = 0; i < n; i++)
            sum += x[r * step + i];
    const double mean = count > 0 ? sum / count : 0;
    for (size_t r = 0; r < runs; r++)
        for (size_t i = 0; i < n; i++)
            squares += (x[r * step + i] - mean) * (x[r * step + i] - mean);
    *ret_mean = mean;
    *ret_variance = count > 0 ? squares / count : 0;
}

KERNEL(kernel_batch_normalization)
{
    const struct shape *x = &args->in[0]->shape;
    const size_t images = (size_t)x->dims[0], channels = (size_t)x->dims[1];
    const size_t inner = resolve_extent(x, 2, x->rank), image = channels * inner;
    const double momentum = node_float(args->node, "momentum", 0.9f);
    const double epsilon = node_float(args->node, "epsilon", 1e-5f);
    const double *in[5]; /* X, scale, B, mean, var */
    double *out[3];      /* Y and the updated statistics */
    TRY(operands_open(args, 0, COUNT_OF(in), in, err));
    for (size_t i = 0; i < COUNT_OF(out); i++)
        TRY(result_open(args, i, DTYPE_F64, &out[i], err));
    for (size_t c = 0; c < channels; c++) {
        double mean = in[3][c], variance = in[4][c];
        /* training_mode of opset 14 normalises by the statistics of X itself. */
        if (node_int(args->node, "training_mode", 0))
            moments(in[0] + c * inner, images, inner, image, &mean, &variance);
        if (out[1])
            out[1][c] = in[3][c] * momentum + mean * (1 - momentum);
        if (out[2])
            out[2][c] = in[4][c] * momentum + variance * (1 - momentum);
        const double factor = in[1][c] / sqrt(variance + epsilon);
        for (size_t n = 0; n < images && out[0]; n++)
            for (size_t i = n * image + c * inner, end = i + inner; i < end; i++)
                out[0][i] = in[0][i] * factor + (in[2][c] - mean * factor);
    }
    return STATUS_OK;
}

/* InstanceNormalization has as many groups as channels. */
KERNEL(kernel_group_normalization)
{
    const struct shape *x = &args->in[0]->shape;
    const double *in[3];
    double *dst, epsilon = node_float(args->node, "epsilon", 1e-5f);
    const size_t channels = (size_t)x->dims[1], inner = resolve_extent(x, 2, x->rank);
    const size_t groups = (size_t)node_int(args->node, "num_groups", (int64_t)channels);
    const size_t per = channels / groups, block = per * inner;
    TRY(operands_open(args, 0, COUNT_OF(in), in, err));
    TRY(result_open(args, 0, DTYPE_F64, &dst, err));
    const double *src = in[0], *scale = in[1], *shift = in[2];
    for (size_t i = 0; i < (size_t)x->dims[0] * groups; i++) {
        double mean, variance;
        moments(src + i * block, 1, block, 0, &mean, &variance);
        const double factor = 1 / sqrt(variance + epsilon);
        for (size_t k = 0; k < block; k++) {
            size_t c = i % groups * per + k / inner;
            dst[i * block + k] = (src[i * block + k] - mean) * factor * scale[c] + shift[c];
        }
    }
    return STATUS_OK;
}

/* ---- LayerNormalization, RMSNormalization ---- */

/* RMSNormalization does not subtract the mean, divides by the root of the mean square, and has no
 * shift. */
KERNEL(kernel_layer_normalization)
{
    const struct shape *shape = &args->in[0]->shape;
    const double epsilon = node_float(args->node, "epsilon", 1e-5f);
    const bool is_centered = args->node->op == OP_LAYER_NORMALIZATION;
    const int axis = (int)node_axis(args->node, -1, shape->rank);
    const size_t rows = resolve_extent(shape, 0, axis);
    const size_t columns = resolve_extent(shape, axis, shape->rank);
    const double *in[3]; /* X, Scale, B */
    double *dst, *statistics[2];
    struct strided_iterator at = {.rank = shape->rank - 1}; /* of lines along the last dimension */
    TRY(operands_open(args, 0, COUNT_OF(in), in, err));
    TRY(result_open(args, 0, DTYPE_F64, &dst, err));
    for (size_t i = 0; i < 2; i++) {
        TRY(result_open(args, 1 + i, DTYPE_F64, &statistics[i], err));
        if (kernel_input(args, 1 + i))
            broadcast_steps(shape, &args->in[1 + i]->shape, at.step[i]);
    }
    for (int i = 0; i < shape->rank; i++)
        at.extent[i] = (size_t)shape->dims[i];
    const size_t width = at.extent[at.rank], steps[] = {at.step[0][at.rank], at.step[1][at.rank]};
    for (size_t r = 0; r < rows; r++) {
        double mean, variance;
        const double *x = in[0] + r * columns;
        moments(x, 1, columns, 0, &mean, &variance);
        if (!is_centered) {
            variance += mean * mean;
            mean = 0;
        }
        const double factor = 1 / sqrt(variance + epsilon);
        if (statistics[0])
            statistics[0][r] = mean;
        if (statistics[1])
            statistics[1][r] = factor;
        for (size_t i = 0; i < columns && dst; i += width, strided_next(&at, 2))
            for (size_t k = 0; k < width; k++)
                dst[r * columns + i + k] =
                    (x[i + k] - mean) * factor * in[1][at.offset[0] + k * steps[0]] +
                    (in[2] ? in[2][at.offset[1] + k * steps[1]] : 0);
    }
    return STATUS_OK;
}

/* ---- LRN ---- */

KERNEL(kernel_lrn)
{
    const struct node *node = args->node;
    const struct shape *x = &args->in[0]->shape;
    const size_t channels = (size_t)x->dims[1], inner = resolve_extent(x, 2, x->rank);
    const size_t size = (size_t)node_int(node, "size", 1);
    const size_t before = (size - 1) / 2, after = size - 1 - before;
    const double alpha = node_float(node, "alpha", 1e-4f), beta = node_float(node, "beta", 0.75f);
    const double bias = node_float(node, "bias", 1);
    const double *src;
    double *dst, *sums = kernel_scratch(args, inner, sizeof *sums, err);
    TRY(allocated(sums));
    TRY(operands_open(args, 0, 1, &src, err));
    TRY(result_open(args, 0, DTYPE_F64, &dst, err));
    for (size_t row = 0; row < (size_t)x->dims[0] * channels && inner; row++) {
        const size_t c = row % channels, first = c > before ? row - before : row - c;
        const size_t last = row + (after < channels - 1 - c ? after : channels - 1 - c);
        zero_bytes(sums, inner * sizeof *sums);
        for (size_t k = first; k <= last; k++)
            for (size_t i = 0; i < inner; i++)
                sums[i] += src[k * inner + i] * src[k * inner + i];
        for (size_t i = 0; i < inner; i++)
            dst[row * inner + i] =
                src[row * inner + i] / pow(bias + alpha / (double)size * sums[i], beta);
    }
    return STATUS_OK;
}

/* ---- made by passes ---- */

KERNEL(kernel_scale_shift)
{
    const struct shape *x = &args->in[0]->shape;
    size_t channels = (size_t)x->dims[x->rank - 1], count = shape_count(x);
    const double *in[3];
    double *dst;
    TRY(operands_open(args, 0, COUNT_OF(in), in, err));
    TRY(result_open(args, 0, DTYPE_F64, &dst, err));
    for (size_t i = 0; i < count; i++)
        dst[i] = in[0][i] * in[1][i % channels] + in[2][i % channels];
    return STATUS_OK;
}

const struct op_info ops_norm[] = {
    {OP_BATCH_NORMALIZATION, 9, 0, 5, 5, 1, 5,
     "X:float[NC*] scale:float[C] B:float[C] mean:float[C] var:float[C]", OP_NORMALIZATION,
     "epsilon:float momentum:float training_mode:int", infer_batch_normalization, &batch_by_sample,
     work_elements, kernel_batch_normalization},
    OP_ROW_OF(INSTANCE_NORMALIZATION, 1, 3, 3, "input:float[NCD*] scale:=[C] B:=[C]",
              OP_NORMALIZATION, "epsilon:float", like, &batch_by_sample, group_normalization),
    {OP_LAYER_NORMALIZATION, 17, 0, 2, 3, 1, 3, "X:float Scale:float B:float", OP_NORMALIZATION,
     "axis:int epsilon:float stash_type:int", infer_layer_normalization, &batch_before_last,
     work_elements, kernel_layer_normalization},
    OP_ROW_OF(RMS_NORMALIZATION, 23, 2, 2, "X:float scale:float", OP_NORMALIZATION,
              "axis:int epsilon:float stash_type:int", layer_normalization, &batch_before_last,
              layer_normalization),
    OP_ROW(GROUP_NORMALIZATION, 21, 3, 3, "X:float[NC*] scale:float bias:float", OP_NORMALIZATION,
           "epsilon:float num_groups:int stash_type:int", group_normalization, &batch_by_sample),
    OP_ROW(LRN, 1, 1, 1, "X:float[NC*]", OP_HEAVY, "alpha:float beta:float bias:float size:int",
           lrn, &batch_by_sample),
    OP_ROW_OF(SCALE_SHIFT, 1, 3, 3, "x:float[*C] scale:float[C] shift:float[C]", OP_PLAIN, NULL,
              like, &batch_mixes, scale_shift),
    {0},
};
