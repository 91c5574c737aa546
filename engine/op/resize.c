/* Resize.
 *
 * Easy to get wrong: an empty tensor means "left out" (Resize-11); coordinates use the scale that
 * was given, not out / in; the extent is floor(in * scale) in float32, as exporters and ONNX's own
 * inference compute it (onnx.reference does so in double: 10 * 0.9f is 9 here and 8 there);
 * align_corners and regions use the whole output extent (PyTorch, ONNX Runtime), where the
 * reference uses in * scale; pytorch_half_pixel puts an extent of one at 0, as the text of the
 * specification says (the reference puts it at -0.5); an axis whose extent stays the same is
 * computed when its scale is not 1 or a region is cut out (ONNX Runtime copies). */
#include <math.h>
#include <string.h>

#include "engine/op/family.h"
#include "engine/op/nn.h"

/* The values of Resize's attributes, in the order of the enumerations. Only the importer makes
 * "simple". */
#define MODES "nearest linear cubic"
#define COORDINATES                                                                                \
    "half_pixel half_pixel_symmetric pytorch_half_pixel align_corners asymmetric "                 \
    "tf_half_pixel_for_nn tf_crop_and_resize"
#define NEARESTS "round_prefer_floor round_prefer_ceil floor ceil simple"
#define POLICIES "stretch not_larger not_smaller"
enum policy { POLICY_STRETCH, POLICY_NOT_LARGER, POLICY_NOT_SMALLER };

static enum status read_modes(const struct node *node, struct resize_plan *plan, struct error *err)
{
    static const char coordinate[] = "coordinate_transformation_mode";
    TRY(infer_word(node, "mode", MODES, err));
    TRY(infer_word(node, coordinate, COORDINATES, err));
    TRY(infer_word(node, "nearest_mode", NEARESTS, err));
    plan->mode = (enum resize_mode)node_word(node, "mode", MODES);
    plan->coordinate = (enum resize_coordinate)node_word(node, coordinate, COORDINATES);
    plan->nearest = (enum resize_nearest)node_word(node, "nearest_mode", NEARESTS);
    plan->antialias = node_int(node, "antialias", 0) != 0;
    plan->exclude_outside = node_int(node, "exclude_outside", 0) != 0;
    plan->cubic_a = node_float(node, "cubic_coeff_a", -0.75f);
    plan->extrapolation = node_float(node, "extrapolation_value", 0.0f);
    if (plan->antialias && plan->mode == RESIZE_NEAREST)
        return error_set(err, STATUS_MODEL, "antialias cannot be combined with the mode nearest");
    return STATUS_OK;
}

static bool is_given(const struct tensor *tensor)
{
    return tensor && shape_count(&tensor->shape);
}

static enum status check_count(const struct tensor *tensor, const char *name, size_t expected,
                               struct error *err)
{
    size_t count = shape_count(&tensor->shape);
    if (count == expected)
        return STATUS_OK;
    return error_set(err, STATUS_SHAPE, "%s has %zu numbers, expected %zu", name, count, expected);
}

static enum status apply_scale(struct resize_axis *axis, float scale, struct error *err)
{
    if (!(scale > 0) || isinf(scale))
        return error_set(err, STATUS_SHAPE, "a scale is %g, expected a number above 0",
                         (double)scale);
    float extent = floorf((float)axis->in * scale);
    if (extent >= 0x1p62f)
        return error_set(err, STATUS_SHAPE, "a scale of %g makes the output too large",
                         (double)scale);
    axis->out = (int64_t)extent;
    axis->scale = scale;
    axis->from_sizes = false;
    return STATUS_OK;
}

static enum status apply_size(struct resize_axis *axis, int64_t size, struct error *err)
{
    if (size < 0)
        return error_set(err, STATUS_SHAPE, "a size is %lld, expected no negative number",
                         (long long)size);
    if (size > 0 && axis->in == 0)
        return error_set(err, STATUS_SHAPE, "an empty dimension cannot be resized to %lld",
                         (long long)size);
    axis->out = size;
    axis->scale = axis->in ? (double)size / (double)axis->in : 1;
    axis->from_sizes = true;
    return STATUS_OK;
}

/* keep_aspect_ratio_policy: one scale for all axes, the smallest or the largest. */
static enum status keep_aspect(struct resize_plan *plan, enum policy policy, const int *axes,
                               int count, struct error *err)
{
    double scale = 0;
    for (int i = 0; i < count; i++) {
        double own = plan->axis[axes[i]].scale;
        if (!i || (policy == POLICY_NOT_LARGER ? own < scale : own > scale))
            scale = own;
    }
    for (int i = 0; i < count; i++) {
        struct resize_axis *axis = &plan->axis[axes[i]];
        double extent = floor(scale * (double)axis->in + 0.5);
        if (extent >= 0x1p62)
            return error_set(err, STATUS_SHAPE, "sizes make the output too large");
        axis->out = (int64_t)extent;
        axis->scale = scale;
        axis->from_sizes = false;
    }
    return STATUS_OK;
}

static enum status read_extents(const struct node *node, const int *axes, int count,
                                struct resize_plan *plan, struct error *err)
{
    const struct tensor *scales = resolve_contents(node, 2), *sizes = resolve_contents(node, 3);
    bool sized = is_given(sizes), scaled = is_given(scales);
    if (sized == scaled)
        return error_set(err, STATUS_MODEL, "%s",
                         sized ? "both scales and sizes are given, expected one of them"
                               : "neither scales nor sizes is given");
    TRY(check_count(sized ? sizes : scales, sized ? "sizes" : "scales", (size_t)count, err));
    for (int i = 0; i < count; i++) {
        struct resize_axis *axis = &plan->axis[axes[i]];
        axis->resized = true;
        if (sized)
            TRY(apply_size(axis, tensor_int(sizes, (size_t)i), err));
        else
            TRY(apply_scale(axis, (float)tensor_number(scales, (size_t)i), err));
    }
    if (!sized)
        return STATUS_OK;
    TRY(infer_word(node, "keep_aspect_ratio_policy", POLICIES, err));
    const int policy = node_word(node, "keep_aspect_ratio_policy", POLICIES);
    return policy ? keep_aspect(plan, (enum policy)policy, axes, count, err) : STATUS_OK;
}

static enum status read_roi(const struct tensor *roi, const int *axes, int count,
                            struct resize_plan *plan, struct error *err)
{
    if (!is_given(roi))
        return error_set(err, STATUS_MODEL, "tf_crop_and_resize needs the input roi");
    TRY(check_count(roi, "roi", 2 * (size_t)count, err));
    for (int i = 0; i < count; i++) {
        struct resize_axis *axis = &plan->axis[axes[i]];
        axis->start = tensor_number(roi, (size_t)i);
        axis->end = tensor_number(roi, (size_t)(count + i));
        if (!(fabs(axis->start) <= 1e9 && fabs(axis->end) <= 1e9))
            return error_set(err, STATUS_SHAPE,
                             "roi holds a number that is not a position in an image");
    }
    return STATUS_OK;
}

/* True if the contents of input i are known, or if input i is omitted or empty. */
static bool is_settled(const struct node *node, size_t i)
{
    const struct value *value = node_input(node, i);
    return !value || value->known || !shape_count(&value->shape);
}

enum status resize_plan_init(const struct node *node, const struct shape *x,
                             struct resize_plan *ret, bool *ret_known, struct error *err)
{
    struct resize_plan plan = {.rank = x->rank};
    int axes[TENSOR_MAX_RANK], count = 0; /* axes that scales, sizes and roi refer to */
    size_t given;
    const int64_t *listed = node_ints(node, "axes", &given);
    const bool crop =
        node_word(node, "coordinate_transformation_mode", COORDINATES) == RESIZE_TF_CROP_AND_RESIZE;
    *ret_known = is_settled(node, 2) && is_settled(node, 3) && (!crop || is_settled(node, 1));
    if (!*ret_known)
        return STATUS_OK;
    TRY(read_modes(node, &plan, err));
    TRY(resolve_axis_list(listed, given, x->rank, axes, &count, err));
    for (int i = 0; i < x->rank; i++)
        plan.axis[i] = (struct resize_axis){
            .in = x->dims[i], .out = x->dims[i], .scale = 1, .from_sizes = true, .end = 1};
    TRY(read_extents(node, axes, count, &plan, err));
    if (crop)
        TRY(read_roi(resolve_contents(node, 1), axes, count, &plan, err));
    for (int i = 0; i < x->rank; i++) {
        struct resize_axis *axis = &plan.axis[i];
        /* compare exactly: a scale close to 1 still changes coordinates */
        bool whole = !crop || (axis->start == 0 && axis->end == 1);
        if (axis->out == axis->in && axis->scale == 1 && whole)
            axis->resized = false;
    }
    *ret = plan;
    return STATUS_OK;
}

bool resize_is_spatial(const struct node *node, struct resize_plan *ret)
{
    struct shape x = node->inputs[0]->shape;
    bool is_known;
    if (x.rank != 4)
        return false;
    x.dims[0] = node->outputs[0]->shape.dims[0];
    x.dims[1] = node->outputs[0]->shape.dims[1];
    return resize_plan_init(node, &x, ret, &is_known, NULL) == STATUS_OK && is_known &&
           ret->coordinate != RESIZE_TF_CROP_AND_RESIZE && ret->axis[0].scale == 1 &&
           ret->axis[1].scale == 1;
}

static enum status infer_resize(struct node *node, struct error *err)
{
    const struct value *x = node->inputs[0];
    struct resize_plan plan;
    bool known;
    if (node_word(node, "mode", MODES) != RESIZE_NEAREST)
        TRY(operand_dtype(node, 0, "X", DTYPES_NUMBER, err));
    TRY(resize_plan_init(node, &node->inputs[0]->shape, &plan, &known, err));
    if (!known)
        return infer_unknown(node, 0, x->dtype);
    struct shape out = {.rank = plan.rank};
    for (int i = 0; i < plan.rank; i++)
        out.dims[i] = plan.axis[i].out;
    return infer_output(node, 0, x->dtype, &out, err);
}

/* Axis 0 must not be resized: a scale close to 1 blends images, and a region may reverse them. */
static int resize_axis(const struct node *node, const int *axes)
{
    struct resize_plan plan;
    bool is_known;
    if (resize_plan_init(node, &node->inputs[0]->shape, &plan, &is_known, NULL) != STATUS_OK ||
        !is_known || plan.axis[0].resized)
        return BATCH_MIXES;
    return batch_of_samples(node, axes, 1);
}

/* Unless the policy is "stretch", two operands `sizes` can give the same extents but other scales,
 * so each batch size must have the same operand. */
static int resize_beside(const struct node *node, size_t i, int axis)
{
    (void)axis;
    return i == 3 && !node_word(node, "keep_aspect_ratio_policy", POLICIES) ? BATCH_EXTENTS
                                                                            : BATCH_OTHER;
}

/* ---- taps: the input positions of an output position and their weights; positions outside are
 * clamped to the edge, or omitted (exclude_outside) ---- */

/* Returns x / scale. If the scale comes from sizes, the exact ratio in / out is used. A scale that
 * was given is float32, and the quotient is computed in float32: 6.5 / 2.6 is then exactly 2.5. */
static double unscale(const struct resize_axis *axis, double x)
{
    if (axis->from_sizes)
        return x * (double)axis->in / (double)axis->out;
    return (double)((float)x / (float)axis->scale);
}

/* The input coordinate of output position i. */
static double source_position(const struct resize_plan *plan, const struct resize_axis *axis,
                              int64_t i)
{
    double x = (double)i, in = (double)axis->in, out = (double)axis->out, span, first;
    switch (plan->coordinate) {
    case RESIZE_HALF_PIXEL:
        return unscale(axis, x + 0.5) - 0.5;
    case RESIZE_HALF_PIXEL_SYMMETRIC:
        /* in / 2 * (1 - out / (scale * in)) + (x + 0.5) / scale - 0.5 with a single division, so
         * that the middle of the output is exactly the middle of the input */
        return axis->from_sizes ? unscale(axis, x + 0.5) - 0.5
                                : (in - 1) / 2 + unscale(axis, x + 0.5 - out / 2);
    case RESIZE_PYTORCH_HALF_PIXEL:
        return axis->out > 1 ? unscale(axis, x + 0.5) - 0.5 : 0;
    case RESIZE_ALIGN_CORNERS:
        return axis->out > 1 ? x * (in - 1) / (out - 1) : 0;
    case RESIZE_ASYMMETRIC:
        return unscale(axis, x);
    case RESIZE_TF_HALF_PIXEL_FOR_NN:
        return unscale(axis, x + 0.5);
    case RESIZE_TF_CROP_AND_RESIZE:
        /* the region is given in float32; in double 0.8 - 0.1 would be less than 0.7 */
        span = (double)((float)axis->end - (float)axis->start);
        first = (double)((float)axis->start * (float)(axis->in - 1));
        return first + (axis->out > 1 ? x * span * (in - 1) / (out - 1) : span * (in - 1) / 2);
    }
    return x;
}

static double nearest_position(const struct resize_plan *plan, const struct resize_axis *axis,
                               double x)
{
    switch (plan->nearest) {
    case NEAREST_ROUND_PREFER_FLOOR:
        return ceil(x - 0.5);
    case NEAREST_ROUND_PREFER_CEIL:
        return floor(x + 0.5);
    case NEAREST_FLOOR:
        return floor(x);
    case NEAREST_CEIL:
        return ceil(x);
    case NEAREST_SIMPLE:
        return axis->scale < 1 ? ceil(x) : floor(x);
    }
    return x;
}

/* The cubic convolution kernel (Keys 1981) and the triangle. */
static double cubic(double x, double a)
{
    x = fabs(x);
    if (x <= 1)
        return ((a + 2) * x - (a + 3)) * x * x + 1;
    return x < 2 ? (((x - 5) * x + 8) * x - 4) * a : 0;
}

static double triangle(double x)
{
    x = fabs(x);
    return x < 1 ? 1 - x : 0;
}

/* Returns the factor for distances to taps. It is below 1, which widens the kernel, if an
 * antialiased axis shrinks. */
static double kernel_scale(const struct resize_plan *plan, const struct resize_axis *axis)
{
    return plan->antialias && axis->scale < 1 ? axis->scale : 1;
}

/* The first tap. Tap 0 is the input position left of the source position. */
static int64_t first_tap(const struct resize_plan *plan, const struct resize_axis *axis)
{
    double reach = plan->mode == RESIZE_CUBIC ? 2 : 1;
    return (int64_t)floor(-reach / kernel_scale(plan, axis)) + 1;
}

size_t resize_tap_count(const struct resize_plan *plan, const struct resize_axis *axis)
{
    return plan->mode == RESIZE_NEAREST ? 1 : (size_t)(2 - 2 * first_tap(plan, axis));
}

/* A position can be anywhere, even beyond int64, because crop regions come from the model. */
static double bounded(double x, const struct resize_axis *axis)
{
    double low = -1e9 - (double)axis->in, high = 1e9 + 2 * (double)axis->in;
    return x < low ? low : x > high ? high : x;
}

static size_t clamp_index(int64_t i, int64_t in)
{
    return (size_t)(i < 0 ? 0 : i >= in ? in - 1 : i);
}

/* Computes the taps of the output position that reads the input at x. */
static void fill_taps(const struct resize_plan *plan, const struct resize_axis *axis, double x,
                      size_t taps, size_t *index, double *weight)
{
    if (plan->mode == RESIZE_NEAREST) {
        index[0] = clamp_index((int64_t)nearest_position(plan, axis, x), axis->in);
        weight[0] = 1;
        return;
    }
    double scale = kernel_scale(plan, axis), sum = 0;
    /* the position left of x; if x is a whole number, the position x - 1 */
    int64_t base = (int64_t)ceil(x) - 1, first = first_tap(plan, axis);
    double ratio = x - (double)base;
    for (size_t k = 0; k < taps; k++) {
        int64_t at = base + first + (int64_t)k;
        double distance = scale * ((double)(first + (int64_t)k) - ratio);
        weight[k] =
            plan->mode == RESIZE_CUBIC ? cubic(distance, plan->cubic_a) : triangle(distance);
        if (plan->exclude_outside && (at < 0 || at >= axis->in))
            weight[k] = 0;
        index[k] = clamp_index(at, axis->in);
        sum += weight[k];
    }
    if ((plan->exclude_outside || plan->antialias) && sum != 0)
        for (size_t k = 0; k < taps; k++)
            weight[k] /= sum;
}

bool resize_taps(const struct resize_plan *plan, const struct resize_axis *axis, int64_t i,
                 size_t *index, double *weight)
{
    const double x = source_position(plan, axis, i);
    fill_taps(plan, axis, bounded(x, axis), resize_tap_count(plan, axis), index, weight);
    return plan->coordinate == RESIZE_TF_CROP_AND_RESIZE && (x < 0 || x > (double)(axis->in - 1));
}

struct table {
    size_t taps;    /* per output position */
    size_t *index;  /* [out, taps] */
    double *weight; /* [out, taps] */
    bool *outside;  /* [out], tf_crop_and_resize: use the extrapolation value */
};

static enum status table_fill(const struct kernel_args *args, const struct resize_plan *plan,
                              const struct resize_axis *axis, struct table *ret, struct error *err)
{
    size_t taps = resize_tap_count(plan, axis), out = (size_t)axis->out, room;
    if (!size_mul(out, taps, &room))
        return error_set(err, STATUS_NO_MEMORY, "the resize is too large");
    *ret = (struct table){.taps = taps,
                          .index = kernel_scratch(args, room, sizeof *ret->index, err),
                          .weight = kernel_scratch(args, room, sizeof *ret->weight, err),
                          .outside = kernel_scratch(args, out, sizeof *ret->outside, err)};
    if (!ret->index || !ret->weight || !ret->outside)
        return STATUS_NO_MEMORY;
    for (size_t i = 0; i < out; i++) {
        TRY(kernel_goes_on(args, taps, err));
        ret->outside[i] =
            resize_taps(plan, axis, (int64_t)i, ret->index + i * taps, ret->weight + i * taps);
    }
    return STATUS_OK;
}

/* ---- passes ---- */

/* The array after some of the axes have been resized. */
struct stage {
    const char *data;
    size_t item; /* bytes of an element */
    struct shape shape;
};

/* Skips weights of 0, so that infinities and NaN beside an exact position do not matter. */
static void weigh_row(double *dst, const double *src, const size_t *index, const double *weight,
                      size_t taps, size_t inner)
{
    for (size_t i = 0; i < inner; i++)
        dst[i] = 0;
    for (size_t k = 0; k < taps; k++) {
        const double *row = src + index[k] * inner;
        double w = weight[k];
        if (w != 0)
            for (size_t i = 0; i < inner; i++)
                dst[i] += w * row[i];
    }
}

/* Like weigh_row(), but for the last axis, where an output is one element. Computes a whole row of
 * `out` elements. */
static void weigh_elements(double *dst, const double *src, const struct table *table, size_t out)
{
    const size_t *index = table->index;
    const double *weight = table->weight;
    for (size_t i = 0; i < out; i++, index += table->taps, weight += table->taps) {
        double sum = 0;
        for (size_t k = 0; k < table->taps; k++)
            sum += weight[k] != 0 ? weight[k] * src[index[k]] : 0;
        dst[i] = sum;
    }
}

static enum status pass(const struct kernel_args *args, const struct stage *from, char *dst,
                        const struct table *table, int axis, size_t out, bool nearest,
                        struct error *err)
{
    const struct axis_layout layout = axis_layout_of(&from->shape, axis);
    const size_t inner = layout.inner, row = inner * from->item;
    for (size_t o = 0; o < layout.outer; o++) {
        const char *src = from->data + o * layout.extent * row;
        TRY(kernel_goes_on(args, out * table->taps * inner, err));
        if (inner == 1 && !nearest) {
            weigh_elements((double *)dst, (const double *)src, table, out);
            dst += out * row;
            continue;
        }
        for (size_t i = 0; i < out; i++, dst += row) {
            const size_t *index = table->index + i * table->taps;
            if (nearest)
                memcpy(dst, src + index[0] * row, row);
            else
                weigh_row((double *)dst, (const double *)src, index,
                          table->weight + i * table->taps, table->taps, inner);
        }
    }
    return STATUS_OK;
}

/* Resizes along one axis; *stage becomes the result. */
static enum status advance(const struct kernel_args *args, const struct resize_plan *plan,
                           struct table *table, int axis, struct stage *stage, struct error *err)
{
    const struct resize_axis *a = &plan->axis[axis];
    struct stage next = *stage;
    size_t count;
    next.shape.dims[axis] = a->out;
    TRY(shape_check(&next.shape, DTYPE_F64, &count, NULL, err));
    if (a->out)
        TRY(table_fill(args, plan, a, table, err));
    char *data = kernel_scratch(args, count, stage->item, err);
    TRY(allocated(data));
    if (count)
        TRY(pass(args, stage, data, table, axis, (size_t)a->out, plan->mode == RESIZE_NEAREST,
                 err));
    next.data = data;
    *stage = next;
    return STATUS_OK;
}

/* ---- result ---- */

static void store_result(const struct stage *stage, struct tensor *y, bool nearest)
{
    size_t count = shape_count(&y->shape);
    double values[BLOCK];
    if (nearest) {
        copy_bytes(y->data, stage->data, y->bytes);
        return;
    }
    bool rounds = !dtype_is_float(y->dtype);
    FOR_BLOCKS(i, n, count) {
        const double *src = (const double *)stage->data + i;
        for (size_t k = 0; k < n; k++)
            values[k] = rounds ? rint(src[k]) : src[k];
        store_doubles(values, y->dtype, element_at(y->data, y->dtype, i), n);
    }
}

/* Positions outside the crop along any axis get the extrapolation value. */
static void extrapolate(const struct resize_plan *plan, const struct table *tables,
                        struct tensor *y)
{
    size_t at[TENSOR_MAX_RANK] = {0}, count = shape_count(&y->shape);
    for (size_t i = 0; i < count; i++) {
        bool outside = false;
        for (int a = 0; a < plan->rank; a++)
            outside = outside || (tables[a].outside && tables[a].outside[at[a]]);
        if (outside)
            store_floats(&plan->extrapolation, y->dtype, element_at(y->data, y->dtype, i), 1);
        for (int a = plan->rank - 1; a >= 0 && ++at[a] == (size_t)y->shape.dims[a]; a--)
            at[a] = 0;
    }
}

KERNEL(kernel_resize)
{
    const struct tensor *x = args->in[0];
    struct resize_plan plan;
    bool is_known; /* always in a run */
    TRY(resize_plan_init(args->node, &x->shape, &plan, &is_known, err));
    const bool nearest = plan.mode == RESIZE_NEAREST;
    struct table tables[TENSOR_MAX_RANK] = {0};
    struct stage stage = {.data = x->data, .item = dtype_size(x->dtype), .shape = x->shape};
    if (!nearest) {
        TRY(operand_open(args, 0, DTYPE_F64, &stage.data, err));
        stage.item = sizeof(double);
    }
    for (int i = 0; i < plan.rank; i++)
        if (plan.axis[i].resized)
            TRY(advance(args, &plan, &tables[i], i, &stage, err));
    store_result(&stage, args->out[0], nearest);
    if (plan.coordinate == RESIZE_TF_CROP_AND_RESIZE)
        extrapolate(&plan, tables, args->out[0]);
    return STATUS_OK;
}

const struct op_info ops_resize[] = {
    OP_ROW(
        RESIZE, 11, 1, 4, "X:any roi:float scales:float32 sizes:index", OP_KEEPS_NUMBERS | OP_HEAVY,
        "mode:string coordinate_transformation_mode:string cubic_coeff_a:float exclude_outside:int "
        "extrapolation_value:float nearest_mode:string antialias:int axes:ints "
        "keep_aspect_ratio_policy:string",
        resize, BATCH(resize_axis, resize_beside)),
    {0},
};
