/* What Resize does along each axis.
 *
 * Easy to get wrong: an empty tensor means "left out" (Resize-11); coordinates use the scale that
 * was given, not out / in; the extent is floor(in * scale) in float32, as exporters and ONNX's own
 * inference compute it (onnx.reference does so in double: 10 * 0.9f is 9 here and 8 there);
 * align_corners and regions use the whole output extent (PyTorch, ONNX Runtime), where the
 * reference uses in * scale; pytorch_half_pixel puts an extent of one at 0, as the text of the
 * specification says, and the reference at -0.5; an axis whose extent stays is computed all the
 * same when its scale is not 1 or a region is cut out (the reference; ONNX Runtime copies the
 * tensor). */
#include <math.h>
#include <string.h>

#include "engine/base/size.h"
#include "engine/op/convert.h"
#include "engine/op/copy.h"
#include "engine/op/geometry.h"
#include "engine/op/nn.h"

struct choice {
    const char *text;
    int value;
};

static enum status read_choice(const struct node *node, const char *name, const char *otherwise,
                               const struct choice *choices, size_t count, int *ret,
                               struct error *err)
{
    const char *text = node_string(node, name, otherwise);
    for (size_t i = 0; i < count; i++) {
        if (!strcmp(text, choices[i].text)) {
            *ret = choices[i].value;
            return STATUS_OK;
        }
    }
    return error_set(err, STATUS_MODEL, "%s is '%.60s', which this operator does not have", name,
                     text);
}

static const struct choice modes[] = {
    {"nearest", RESIZE_NEAREST}, {"linear", RESIZE_LINEAR}, {"cubic", RESIZE_CUBIC}};
static const struct choice coordinates[] = {
    {"half_pixel", RESIZE_HALF_PIXEL},
    {"half_pixel_symmetric", RESIZE_HALF_PIXEL_SYMMETRIC},
    {"pytorch_half_pixel", RESIZE_PYTORCH_HALF_PIXEL},
    {"align_corners", RESIZE_ALIGN_CORNERS},
    {"asymmetric", RESIZE_ASYMMETRIC},
    {"tf_half_pixel_for_nn", RESIZE_TF_HALF_PIXEL_FOR_NN},
    {"tf_crop_and_resize", RESIZE_TF_CROP_AND_RESIZE},
};
static const struct choice nearests[] = {
    {"round_prefer_floor", NEAREST_ROUND_PREFER_FLOOR},
    {"round_prefer_ceil", NEAREST_ROUND_PREFER_CEIL},
    {"floor", NEAREST_FLOOR},
    {"ceil", NEAREST_CEIL},
    {"simple", NEAREST_SIMPLE}, /* of the importer, not ONNX */
};
enum policy { POLICY_STRETCH, POLICY_NOT_LARGER, POLICY_NOT_SMALLER };
static const struct choice policies[] = {
    {"stretch", POLICY_STRETCH},
    {"not_larger", POLICY_NOT_LARGER},
    {"not_smaller", POLICY_NOT_SMALLER},
};

static enum status read_modes(const struct node *node, struct resize_plan *plan, struct error *err)
{
    int mode = 0, coordinate = 0, nearest = 0;
    TRY(read_choice(node, "mode", "nearest", modes, COUNT_OF(modes), &mode, err));
    TRY(read_choice(node, "coordinate_transformation_mode", "half_pixel", coordinates,
                    COUNT_OF(coordinates), &coordinate, err));
    TRY(read_choice(node, "nearest_mode", "round_prefer_floor", nearests, COUNT_OF(nearests),
                    &nearest, err));
    plan->mode = (enum resize_mode)mode;
    plan->coordinate = (enum resize_coordinate)coordinate;
    plan->nearest = (enum resize_nearest)nearest;
    plan->antialias = node_int(node, "antialias", 0) != 0;
    plan->exclude_outside = node_int(node, "exclude_outside", 0) != 0;
    plan->cubic_a = node_float(node, "cubic_coeff_a", -0.75f);
    plan->extrapolation = node_float(node, "extrapolation_value", 0.0f);
    if (plan->antialias && plan->mode == RESIZE_NEAREST)
        return error_set(err, STATUS_MODEL, "antialias does not go with the mode nearest");
    return STATUS_OK;
}

/* The axes that scales, sizes and roi talk about. */
static enum status read_axes(const struct node *node, int rank, int *ret, int *ret_count,
                             struct error *err)
{
    size_t count;
    const int64_t *axes = node_ints(node, "axes", &count);
    unsigned seen = 0;
    if (!axes) {
        for (int i = 0; i < rank; i++)
            ret[i] = i;
        *ret_count = rank;
        return STATUS_OK;
    }
    if (count > (size_t)rank)
        return error_set(err, STATUS_SHAPE, "axes has %zu entries for a tensor of rank %d", count,
                         rank);
    for (size_t i = 0; i < count; i++) {
        int64_t axis = axes[i];
        TRY(infer_axis(&axis, rank, err));
        if (seen >> axis & 1)
            return error_set(err, STATUS_SHAPE, "axes names axis %lld twice", (long long)axis);
        seen |= 1u << axis;
        ret[i] = (int)axis;
    }
    *ret_count = (int)count;
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

/* keep_aspect_ratio_policy: one scale for all the axes, the smallest or the largest. */
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

static enum status read_extents(const struct node *node, const struct tensor *scales,
                                const struct tensor *sizes, const int *axes, int count,
                                struct resize_plan *plan, struct error *err)
{
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
    int policy = POLICY_STRETCH;
    if (sized)
        TRY(read_choice(node, "keep_aspect_ratio_policy", "stretch", policies, COUNT_OF(policies),
                        &policy, err));
    if (policy != POLICY_STRETCH)
        TRY(keep_aspect(plan, (enum policy)policy, axes, count, err));
    return STATUS_OK;
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
                             "roi holds a number that is no position in an image");
    }
    return STATUS_OK;
}

enum status resize_plan_from(const struct node *node, const struct shape *x,
                             const struct tensor *roi, const struct tensor *scales,
                             const struct tensor *sizes, struct resize_plan *ret, struct error *err)
{
    struct resize_plan plan = {.rank = x->rank};
    int axes[TENSOR_MAX_RANK], count = 0;
    TRY(read_modes(node, &plan, err));
    TRY(read_axes(node, x->rank, axes, &count, err));
    for (int i = 0; i < x->rank; i++)
        plan.axis[i] = (struct resize_axis){
            .in = x->dims[i], .out = x->dims[i], .scale = 1, .from_sizes = true, .end = 1};
    TRY(read_extents(node, scales, sizes, axes, count, &plan, err));
    bool crop = plan.coordinate == RESIZE_TF_CROP_AND_RESIZE;
    if (crop)
        TRY(read_roi(roi, axes, count, &plan, err));
    for (int i = 0; i < x->rank; i++) {
        struct resize_axis *axis = &plan.axis[i];
        /* exactly: a scale next to 1 still moves the coordinates */
        bool whole = !crop || (axis->start == 0 && axis->end == 1);
        if (axis->out == axis->in && axis->scale == 1 && whole)
            axis->resized = false;
    }
    *ret = plan;
    return STATUS_OK;
}

enum status resize_plan_init(const struct node *node, const struct shape *x,
                             struct resize_plan *ret, bool *ret_known, struct error *err)
{
    const struct value *roi = node_input(node, 1), *scales = node_input(node, 2);
    const struct value *sizes = node_input(node, 3);
    bool crop =
        !strcmp(node_string(node, "coordinate_transformation_mode", ""), "tf_crop_and_resize");
    /* An operand of no elements is as good as known. */
    bool known = true;
    known = known && (!scales || scales->known || !shape_count(&scales->shape));
    known = known && (!sizes || sizes->known || !shape_count(&sizes->shape));
    known = known && (!crop || !roi || roi->known);
    *ret_known = known;
    if (!known)
        return STATUS_OK;
    return resize_plan_from(node, x, roi ? roi->known : NULL, scales ? scales->known : NULL,
                            sizes ? sizes->known : NULL, ret, err);
}

bool resize_is_spatial(const struct node *node, struct resize_plan *ret)
{
    struct shape x = node->inputs[0]->shape;
    struct error ignored;
    bool is_known;
    if (x.rank != 4)
        return false;
    x.dims[0] = node->outputs[0]->shape.dims[0];
    x.dims[1] = node->outputs[0]->shape.dims[1];
    return resize_plan_init(node, &x, ret, &is_known, &ignored) == STATUS_OK && is_known &&
           ret->coordinate != RESIZE_TF_CROP_AND_RESIZE && ret->axis[0].scale == 1 &&
           ret->axis[1].scale == 1;
}

/* ---- reference kernels ---- */

struct table {
    size_t taps;    /* for each output position */
    size_t *index;  /* [out, taps] */
    double *weight; /* [out, taps] */
    bool *outside;  /* [out], tf_crop_and_resize: the extrapolation value */
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

/* An array seen as [outer, extent, inner] from the axis of the pass. */
struct stage {
    const char *data;
    size_t item; /* bytes of an element */
    int64_t dims[TENSOR_MAX_RANK];
    int rank;
};

static size_t stage_product(const struct stage *stage, int begin, int end)
{
    size_t count = 1;
    for (int i = begin; i < end; i++)
        count *= (size_t)stage->dims[i];
    return count;
}

/* A weight of 0 keeps infinities and NaN out of a result that lies exactly beside them. */
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

/* The same for a whole row of the last axis, where every output is one element. */
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
    size_t outer = stage_product(from, 0, axis), in = (size_t)from->dims[axis];
    size_t inner = stage_product(from, axis + 1, from->rank), row = inner * from->item;
    for (size_t o = 0; o < outer; o++) {
        const char *src = from->data + o * in * row;
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

/* Runs the pass along one axis; *stage becomes its result. */
static enum status advance(const struct kernel_args *args, const struct resize_plan *plan,
                           struct table *table, int axis, struct stage *stage, struct error *err)
{
    const struct resize_axis *a = &plan->axis[axis];
    struct stage next = *stage;
    struct shape shape = {.rank = stage->rank};
    size_t count;
    next.dims[axis] = a->out;
    memcpy(shape.dims, next.dims, sizeof shape.dims);
    TRY(shape_check(&shape, DTYPE_F64, &count, NULL, err));
    if (a->out)
        TRY(table_fill(args, plan, a, table, err));
    char *data = kernel_scratch(args, count, stage->item, err);
    if (!data)
        return STATUS_NO_MEMORY;
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
    for (size_t i = 0; i < count; i += BLOCK) {
        size_t n = count - i < BLOCK ? count - i : BLOCK;
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

static enum status resize_by_plan(const struct kernel_args *args, const struct resize_plan *plan,
                                  struct tensor *y, struct error *err)
{
    const struct tensor *x = args->in[0];
    bool nearest = plan->mode == RESIZE_NEAREST;
    struct table tables[TENSOR_MAX_RANK] = {0};
    struct stage stage = {.data = x->data, .item = dtype_size(x->dtype), .rank = x->shape.rank};
    memcpy(stage.dims, x->shape.dims, sizeof stage.dims);
    if (!nearest) {
        const void *data;
        TRY(operand_open(args, 0, ARITHMETIC_F64, &data, err));
        stage.data = data;
        stage.item = sizeof(double);
    }
    for (int i = 0; i < plan->rank; i++)
        if (plan->axis[i].resized)
            TRY(advance(args, plan, &tables[i], i, &stage, err));
    store_result(&stage, y, nearest);
    if (plan->coordinate == RESIZE_TF_CROP_AND_RESIZE)
        extrapolate(plan, tables, y);
    return STATUS_OK;
}

KERNEL(kernel_resize)
{
    const struct node *node = args->node;
    const struct tensor *operands[3] = {0}; /* roi, scales, sizes */
    struct resize_plan plan;
    for (size_t i = 1; i < node->input_count && i < 4; i++)
        operands[i - 1] = args->in[i];
    TRY(resize_plan_from(node, &args->in[0]->shape, operands[0], operands[1], operands[2], &plan,
                         err));
    struct shape out = {.rank = plan.rank};
    for (int i = 0; i < plan.rank; i++)
        out.dims[i] = plan.axis[i].out;
    if (!*args->out[0])
        TRY(kernel_output(args, 0, args->in[0]->dtype, &out, err));
    struct tensor *y = *args->out[0];
    if (!shape_equal(&y->shape, &out)) {
        char left[SHAPE_TEXT], right[SHAPE_TEXT];
        return error_set(err, STATUS_SHAPE, "the output is %s, but was planned as %s",
                         shape_text(&out, left), shape_text(&y->shape, right));
    }
    return resize_by_plan(args, &plan, y, err);
}
