/* Extents of convolutions, transposed convolutions, pools and unpooling. */
#include <string.h>

#include "engine/base/size.h"
#include "engine/op/geometry.h"

static enum status check_spatial_rank(const struct shape *x, struct error *err)
{
    if (x->rank < 3 || x->rank > 5)
        return error_set(err, STATUS_SHAPE,
                         "the input has shape %s, expected [N, C, ...] with 1 to 3 spatial "
                         "dimensions",
                         SHAPE_STRING(x));
    return STATUS_OK;
}

/* Checks that x and w have equal rank 3 … 5, and that kernel_shape, if present, fits w. */
static enum status check_operands(const struct node *node, const struct shape *x,
                                  const struct shape *w, struct error *err)
{
    TRY(check_spatial_rank(x, err));
    if (w->rank != x->rank)
        return error_set(err, STATUS_SHAPE,
                         "the weights have shape %s, expected rank %d as the input %s has",
                         SHAPE_STRING(w), x->rank, SHAPE_STRING(x));
    size_t count;
    const int64_t *kernel = node_ints(node, "kernel_shape", &count);
    bool same = !count || count == (size_t)(x->rank - 2);
    for (size_t i = 0; same && i < count; i++)
        same = kernel[i] == w->dims[2 + i];
    if (!same) {
        struct shape given = {.rank = count < TENSOR_MAX_RANK ? (int)count : TENSOR_MAX_RANK};
        memcpy(given.dims, kernel, (size_t)given.rank * sizeof *kernel);
        return error_set(err, STATUS_SHAPE,
                         "kernel_shape is %s, expected the last %d dimensions of the weights, %s",
                         SHAPE_STRING(&given), x->rank - 2, SHAPE_STRING(w));
    }
    if (w->dims[0] < 1 || w->dims[1] < 1)
        return error_set(err, STATUS_SHAPE, "the weights have shape %s: no channels",
                         SHAPE_STRING(w));
    return STATUS_OK;
}

/* ---- transposed convolution ---- */

/* The result's extent before the pads are cut off: stride * (in - 1) + extent of the kernel +
 * output_padding. */
static bool full_extent(const struct window *w, int i, int64_t output_padding, int64_t *ret)
{
    int64_t span, extent;
    return !__builtin_mul_overflow(w->stride[i], w->in[i] - 1, &span) &&
           !__builtin_mul_overflow(w->kernel[i] - 1, w->dilation[i], &extent) &&
           !__builtin_add_overflow(span, extent + 1, &span) &&
           !__builtin_add_overflow(span, output_padding, ret);
}

/* Sets pads that reduce the full extent to the wanted extent. If the wanted extent is larger, there
 * are no pads, and the added elements are the bias (as in ONNX's test data and ONNX Runtime). */
static void place_wanted(struct window *w, int i, int64_t full, int64_t wanted, bool upper)
{
    int64_t total = full > wanted ? full - wanted : 0;
    w->pad_begin[i] = upper ? total / 2 : total - total / 2;
    w->pad_end[i] = total - w->pad_begin[i];
    w->out[i] = wanted;
}

static enum status transpose_window(const struct node *node, struct window *w, struct error *err)
{
    int64_t output_padding[3], output_shape[5], *wanted = output_shape;
    size_t shaped;
    const size_t count = (size_t)w->spatial;
    node_ints(node, "output_shape", &shaped);
    TRY(infer_list(node, "output_padding", count, 0, INT64_MAX, 0, output_padding, err));
    /* use the last entries: some exporters begin output_shape with N and C, or with -1 and -1 */
    wanted += shaped == count + 2 ? 2 : 0;
    TRY(infer_list(node, "output_shape", shaped == count + 2 ? shaped : count, INT64_MIN, INT64_MAX,
                   0, output_shape, err));
    const int mode = window_auto_pad(node);
    bool upper = mode == AUTO_PAD_SAME_UPPER, same = upper || mode == AUTO_PAD_SAME_LOWER;
    for (int i = 0; i < w->spatial; i++) {
        int64_t full, out;
        if (wanted[i] < 0)
            return error_set(err, STATUS_SHAPE, "output_shape holds %lld, expected 0 or more",
                             (long long)wanted[i]);
        if (w->in[i] < 1)
            return error_set(err, STATUS_SHAPE, "spatial dimension %d of the input is empty", i);
        if (!full_extent(w, i, output_padding[i], &full))
            return error_set(err, STATUS_SHAPE, "strides, kernel and dilations are too large");
        if (same && !shaped && __builtin_mul_overflow(w->in[i], w->stride[i], &wanted[i]))
            return error_set(err, STATUS_SHAPE, "strides are too large");
        if (same || shaped) {
            place_wanted(w, i, full, wanted[i], upper);
        } else if (__builtin_sub_overflow(full, w->pad_begin[i], &out) ||
                   __builtin_sub_overflow(out, w->pad_end[i], &w->out[i])) {
            return error_set(err, STATUS_SHAPE, "pads are too large");
        }
        if (w->out[i] < 1)
            return error_set(err, STATUS_SHAPE,
                             "spatial dimension %d of the output would be %lld, expected at least "
                             "1",
                             i, (long long)w->out[i]);
    }
    return STATUS_OK;
}

/* Reads strides, dilations, auto_pad and pads. window_init() would check the sizes of a forward
 * convolution, and is called with a kernel and an input of one element, which always fit. */
static enum status read_window(const struct node *node, const struct shape *x,
                               const struct shape *w, struct window *ret, struct error *err)
{
    static const int64_t one[3] = {1, 1, 1};
    int spatial = x->rank - 2;
    TRY(window_init(node, spatial, one, one, ret, err));
    size_t count;
    const int64_t *pads = node_ints(node, "pads", &count);
    bool explicit = count && window_auto_pad(node) == AUTO_PAD_NOTSET;
    for (int i = 0; i < spatial; i++) {
        ret->in[i] = x->dims[2 + i];
        ret->kernel[i] = w->dims[2 + i];
        ret->pad_begin[i] = explicit ? pads[i] : 0;
        ret->pad_end[i] = explicit ? pads[spatial + i] : 0;
        if (ret->kernel[i] < 1)
            return error_set(err, STATUS_SHAPE, "the kernel's extent %d is 0", i);
    }
    return STATUS_OK;
}

/* ---- Conv and ConvTranspose ---- */

enum status conv_shape_init(const struct node *node, const struct shape *x, const struct shape *w,
                            struct conv_shape *ret, struct error *err)
{
    const bool transposed = node->op == OP_CONV_TRANSPOSE;
    const int64_t group = node_int(node, "group", 1), in = x->dims[1];
    struct conv_shape conv = {0};
    int64_t channels; /* of all groups: the weights' second dimension times group */
    TRY(check_operands(node, x, w, err));
    if (group < 1)
        return error_set(err, STATUS_SHAPE, "group is %lld, expected at least 1", (long long)group);
    if (__builtin_mul_overflow(w->dims[1], group, &channels) ||
        (transposed ? w->dims[0] != in || in % group : channels != in || w->dims[0] % group))
        return error_set(err, STATUS_SHAPE,
                         "input %s and weights %s do not agree in %lld group(s) (need C = %s)",
                         SHAPE_STRING(x), SHAPE_STRING(w), (long long)group,
                         transposed
                             ? "weights.dims[0], and group dividing C"
                             : "weights.dims[1] * group, and group dividing weights.dims[0]");
    if (transposed) {
        TRY(read_window(node, x, w, &conv.window, err));
        TRY(transpose_window(node, &conv.window, err));
    } else {
        TRY(window_init(node, x->rank - 2, x->dims + 2, w->dims + 2, &conv.window, err));
    }
    conv.batch = (size_t)x->dims[0];
    conv.group = (size_t)group;
    conv.in_channels = (size_t)in;
    conv.out_channels = (size_t)(transposed ? channels : w->dims[0]);
    conv.out = *x;
    conv.out.dims[1] = (int64_t)conv.out_channels;
    for (int i = 0; i < conv.window.spatial; i++)
        conv.out.dims[2 + i] = conv.window.out[i];
    *ret = conv;
    return STATUS_OK;
}

/* ---- pools ---- */

static enum status read_kernel(const struct node *node, int spatial, int64_t *ret,
                               struct error *err)
{
    size_t given;
    if (!node_ints(node, "kernel_shape", &given) || !given)
        return error_set(err, STATUS_MODEL, "the attribute kernel_shape is missing");
    return infer_list(node, "kernel_shape", (size_t)spatial, 1, INT64_MAX, 1, ret, err);
}

enum status pool_window_init(const struct node *node, const struct shape *x, bool channels_last,
                             struct window *ret, struct error *err)
{
    int64_t kernel[3];
    TRY(check_spatial_rank(x, err));
    TRY(read_kernel(node, x->rank - 2, kernel, err));
    return window_init(node, x->rank - 2, x->dims + (channels_last ? 1 : 2), kernel, ret, err);
}

enum status unpool_shape_init(const struct node *node, const struct shape *x, struct shape *ret,
                              struct error *err)
{
    int64_t kernel[3];
    struct window w;
    struct shape out = *x;
    TRY(check_spatial_rank(x, err));
    TRY(read_kernel(node, x->rank - 2, kernel, err));
    struct shape kernel_extents = {.rank = x->rank};
    for (int i = 2; i < x->rank; i++)
        kernel_extents.dims[i] = kernel[i - 2];
    TRY(read_window(node, x, &kernel_extents, &w, err));
    for (int i = 0; i < w.spatial; i++) {
        int64_t full;
        if (w.in[i] < 1 || !full_extent(&w, i, 0, &full) ||
            __builtin_sub_overflow(full, w.pad_begin[i], &full) ||
            __builtin_sub_overflow(full, w.pad_end[i], &full) || full < 1)
            return error_set(err, STATUS_SHAPE,
                             "strides, kernel_shape and pads give no output for an input of shape "
                             "%s",
                             SHAPE_STRING(x));
        out.dims[2 + i] = full;
    }
    *ret = out;
    return STATUS_OK;
}
