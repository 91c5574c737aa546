/* Normalisation: BatchNormalization, InstanceNormalization, LayerNormalization, RMSNormalization,
 * GroupNormalization, MeanVarianceNormalization, LpNormalization, LRN, Softmax, LogSoftmax,
 * Hardmax; and ScaleShift, which passes make of them. */
#include "engine/base/size.h"
#include "engine/ops/geometry.h"
#include "engine/ops/operands.h"
#include "engine/ops/ops.h"
#include "engine/ops/resolve.h"

/* Does the value follow from constants alone? Looks back over as many nodes as weights are ever
 * prepared with; a longer chain counts as no. */
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

/* Batch statistics make an image's answer depend on its neighbours: refused. On constants they are
 * how weight standardisation is exported (NFNet, BiT), and mean what they say. */
static enum status check_training(const struct node *node, struct error *err)
{
    bool training = node->opset >= 14 ? node_int(node, "training_mode", 0) != 0
                    : node->opset < 7 ? node_int(node, "is_test", 0) == 0
                                      : false;
    if (training && node->opset >= 14 && node->output_count <= 3 &&
        is_made_of_constants(node->inputs[0]))
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
    static const char *const names[] = {"X", "scale", "B", "mean", "var"};
    const struct value *x = node->inputs[0];
    TRY(check_training(node, err));
    for (size_t i = 0; i < COUNT_OF(names); i++)
        TRY(operand_dtype(node, i, names[i], DTYPES_FLOAT, err));
    TRY(operand_rank(node, 0, "X", 2, TENSOR_MAX_RANK, err));
    /* Before opset 9, spatial = 0 has statistics for every position of [C, D1, D2 …]. */
    bool spatial = node->opset >= 9 || node_int(node, "spatial", 1) != 0;
    struct shape wanted = {.rank = spatial ? 1 : x->shape.rank - 1};
    for (int i = 0; i < wanted.rank; i++)
        wanted.dims[i] = x->shape.dims[1 + i];
    for (size_t i = 1; i < COUNT_OF(names); i++)
        TRY(operand_has_shape(node, i, names[i], &wanted, err));
    /* running statistics, of the training form */
    TRY(infer_output(node, 1, node->inputs[3]->dtype, &wanted, err));
    TRY(infer_output(node, 2, node->inputs[4]->dtype, &wanted, err));
    return infer_output(node, 0, x->dtype, &x->shape, err);
}

static enum status infer_instance_normalization(struct node *node, struct error *err)
{
    const struct value *x = node->inputs[0];
    TRY(operand_dtype(node, 0, "input", DTYPES_FLOAT, err));
    TRY(operand_same_dtype(node, 1, "scale", err));
    TRY(operand_same_dtype(node, 2, "B", err));
    TRY(operand_rank(node, 0, "input", 3, TENSOR_MAX_RANK, err));
    TRY(operand_vector(node, 1, "scale", x->shape.dims[1], err));
    TRY(operand_vector(node, 2, "B", x->shape.dims[1], err));
    return infer_output(node, 0, x->dtype, &x->shape, err);
}

static enum status check_stash(int64_t stash, struct error *err)
{
    if (stash < 0 || stash > DTYPE_BF16 || !dtype_is_float((enum dtype)stash))
        return error_set(err, STATUS_MODEL, "stash_type is %lld, expected a floating-point type",
                         (long long)stash);
    return STATUS_OK;
}

static enum status infer_layer_normalization(struct node *node, struct error *err)
{
    const struct value *x = node->inputs[0];
    int64_t axis = node_int(node, "axis", -1), stash = node_int(node, "stash_type", DTYPE_F32);
    TRY(operand_dtype(node, 0, "X", DTYPES_FLOAT, err));
    TRY(operand_dtype(node, 1, "Scale", DTYPES_FLOAT, err));
    TRY(operand_dtype(node, 2, "B", DTYPES_FLOAT, err));
    TRY(infer_axis(&axis, x->shape.rank, err));
    TRY(operand_broadcasts(node, 1, "Scale", &x->shape, err));
    TRY(operand_broadcasts(node, 2, "B", &x->shape, err));
    TRY(check_stash(stash, err));
    struct shape statistics = x->shape;
    for (int i = (int)axis; i < statistics.rank; i++)
        statistics.dims[i] = 1;
    TRY(infer_output(node, 1, (enum dtype)stash, &statistics, err));
    TRY(infer_output(node, 2, (enum dtype)stash, &statistics, err));
    return infer_output(node, 0, x->dtype, &x->shape, err);
}

/* The result has the type of the scale. */
static enum status infer_rms_normalization(struct node *node, struct error *err)
{
    const struct value *x = node->inputs[0];
    int64_t axis = node_int(node, "axis", -1), stash = node_int(node, "stash_type", DTYPE_F32);
    TRY(operand_dtype(node, 0, "X", DTYPES_FLOAT, err));
    TRY(operand_dtype(node, 1, "scale", DTYPES_FLOAT, err));
    TRY(infer_axis(&axis, x->shape.rank, err));
    TRY(operand_broadcasts(node, 1, "scale", &x->shape, err));
    TRY(check_stash(stash, err));
    return infer_output(node, 0, node->inputs[1]->dtype, &x->shape, err);
}

static enum status infer_group_normalization(struct node *node, struct error *err)
{
    const struct value *x = node->inputs[0];
    int64_t groups = node_int(node, "num_groups", 0);
    TRY(operand_dtype(node, 0, "X", DTYPES_FLOAT, err));
    TRY(operand_dtype(node, 1, "scale", DTYPES_FLOAT, err));
    TRY(operand_dtype(node, 2, "bias", DTYPES_FLOAT, err));
    TRY(operand_rank(node, 0, "X", 2, TENSOR_MAX_RANK, err));
    if (groups < 1 || x->shape.dims[1] % groups)
        return error_set(err, STATUS_SHAPE,
                         "num_groups is %lld, expected a divisor of the %lld "
                         "channels",
                         (long long)groups, (long long)x->shape.dims[1]);
    /* Opset 18 had one scale a group, opset 21 has one a channel. */
    int64_t length = node->opset < 21 ? groups : x->shape.dims[1];
    TRY(operand_vector(node, 1, "scale", length, err));
    TRY(operand_vector(node, 2, "bias", length, err));
    return infer_output(node, 0, x->dtype, &x->shape, err);
}

enum status mean_variance_axes(const struct node *node, const struct shape *x, unsigned *ret,
                               struct error *err)
{
    static const int64_t otherwise[] = {0, 2, 3};
    size_t count;
    const int64_t *axes = node_ints(node, "axes", &count);
    unsigned reduced = 0;
    if (!axes) {
        axes = otherwise;
        count = COUNT_OF(otherwise);
    }
    for (size_t i = 0; i < count; i++) {
        int64_t axis = axes[i];
        TRY(infer_axis(&axis, x->rank, err));
        reduced |= 1u << axis;
    }
    *ret = reduced;
    return STATUS_OK;
}

static enum status infer_mean_variance_normalization(struct node *node, struct error *err)
{
    const struct value *x = node->inputs[0];
    unsigned ignored;
    TRY(operand_dtype(node, 0, "X", DTYPES_FLOAT, err));
    TRY(mean_variance_axes(node, &x->shape, &ignored, err));
    return infer_output(node, 0, x->dtype, &x->shape, err);
}

static enum status infer_lp_normalization(struct node *node, struct error *err)
{
    const struct value *x = node->inputs[0];
    int64_t axis = node_int(node, "axis", -1), p = node_int(node, "p", 2);
    TRY(operand_dtype(node, 0, "input", DTYPES_FLOAT, err));
    TRY(infer_axis(&axis, x->shape.rank, err));
    if (p != 1 && p != 2)
        return error_set(err, STATUS_MODEL, "p is %lld, expected 1 or 2", (long long)p);
    return infer_output(node, 0, x->dtype, &x->shape, err);
}

static enum status infer_lrn(struct node *node, struct error *err)
{
    const struct value *x = node->inputs[0];
    int64_t size = node_int(node, "size", 0);
    TRY(operand_dtype(node, 0, "X", DTYPES_FLOAT, err));
    TRY(operand_rank(node, 0, "X", 2, TENSOR_MAX_RANK, err));
    if (size < 1)
        return error_set(err, STATUS_MODEL, "size is %lld, expected at least 1", (long long)size);
    return infer_output(node, 0, x->dtype, &x->shape, err);
}

static enum status infer_softmax(struct node *node, struct error *err)
{
    const struct value *x = node->inputs[0];
    int64_t axis = node_int(node, "axis", -1);
    TRY(operand_dtype(node, 0, "input", DTYPES_FLOAT, err));
    TRY(infer_axis(&axis, x->shape.rank, err));
    return infer_output(node, 0, x->dtype, &x->shape, err);
}

static enum status infer_scale_shift(struct node *node, struct error *err)
{
    const struct value *x = node->inputs[0];
    TRY(operand_dtype(node, 0, "x", DTYPES_FLOAT, err));
    TRY(operand_dtype(node, 1, "scale", DTYPES_FLOAT, err));
    TRY(operand_dtype(node, 2, "shift", DTYPES_FLOAT, err));
    TRY(operand_rank(node, 0, "x", 1, TENSOR_MAX_RANK, err));
    int64_t channels = x->shape.dims[x->shape.rank - 1];
    TRY(operand_vector(node, 1, "scale", channels, err));
    TRY(operand_vector(node, 2, "shift", channels, err));
    return infer_output(node, 0, x->dtype, &x->shape, err);
}

/* ---- batches ---- */

static int mean_variance_axis(const struct node *node, const int *axes)
{
    unsigned reduced;
    struct error ignored;
    return mean_variance_axes(node, &node->inputs[0]->shape, &reduced, &ignored) == STATUS_OK &&
                   !(reduced >> axes[0] & 1)
               ? axes[0]
               : BATCH_MIXES;
}

static const struct batch_rule mean_variance_rule = {mean_variance_axis, NULL};

/* ---- the table ---- */

static const struct op_info entries[] = {
    {OP_BATCH_NORMALIZATION, 1, 0, 5, 5, 1, 5, OP_NORMALIZATION,
     "epsilon:float momentum:float spatial:int is_test:int training_mode:int",
     infer_batch_normalization, &batch_by_sample, work_elements},
    {OP_INSTANCE_NORMALIZATION, 1, 0, 3, 3, 1, 1, OP_NORMALIZATION, "epsilon:float",
     infer_instance_normalization, &batch_by_sample, work_elements},
    {OP_LAYER_NORMALIZATION, 17, 0, 2, 3, 1, 3, OP_NORMALIZATION,
     "axis:int epsilon:float stash_type:int", infer_layer_normalization, &batch_before_last,
     work_elements},
    {OP_RMS_NORMALIZATION, 23, 0, 2, 2, 1, 1, OP_NORMALIZATION,
     "axis:int epsilon:float stash_type:int", infer_rms_normalization, &batch_before_last,
     work_elements},
    {OP_GROUP_NORMALIZATION, 18, 0, 3, 3, 1, 1, OP_NORMALIZATION,
     "epsilon:float num_groups:int stash_type:int", infer_group_normalization, &batch_by_sample,
     work_elements},
    {OP_MEAN_VARIANCE_NORMALIZATION, 9, 0, 1, 1, 1, 1, OP_PLAIN, "axes:ints",
     infer_mean_variance_normalization, &mean_variance_rule, work_elements},
    {OP_LP_NORMALIZATION, 1, 0, 1, 1, 1, 1, OP_PLAIN, "axis:int p:int", infer_lp_normalization,
     &batch_beside_last, work_elements},
    {OP_LRN, 1, 0, 1, 1, 1, 1, OP_HEAVY, "alpha:float beta:float bias:float size:int", infer_lrn,
     &batch_by_sample, work_elements},
    {OP_SOFTMAX, 1, 0, 1, 1, 1, 1, OP_PROBABILITIES, "axis:int", infer_softmax, &batch_beside_last,
     work_elements},
    {OP_LOG_SOFTMAX, 1, 0, 1, 1, 1, 1, OP_PLAIN, "axis:int", infer_softmax, &batch_beside_last,
     work_elements},
    {OP_HARDMAX, 1, 0, 1, 1, 1, 1, OP_PLAIN, "axis:int", infer_softmax, &batch_beside_last,
     work_elements},
    {OP_SCALE_SHIFT, 1, 0, 3, 3, 1, 1, OP_PLAIN, NULL, infer_scale_shift, &batch_mixes,
     work_elements},
};

const struct op_family ops_norm = {entries, COUNT_OF(entries)};
