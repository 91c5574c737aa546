/* Resampling and detection: Resize, Upsample, GridSample, AffineGrid, RoiAlign,
 * NonMaxSuppression. */
#include <string.h>

#include "engine/base/size.h"
#include "engine/op/geometry.h"
#include "engine/op/kernels.h"
#include "engine/op/operands.h"
#include "engine/op/ops.h"

static enum status infer_resize(struct node *node, struct error *err)
{
    const struct value *x = node->inputs[0];
    bool nearest = !strcmp(node_string(node, "mode", "nearest"), "nearest");
    struct resize_plan plan;
    bool known;
    TRY(operand_dtype(node, 0, "X", nearest ? DTYPES_ANY : DTYPES_NUMBER, err));
    TRY(operand_dtype(node, 2, "scales", DTYPE_BIT(F32), err));
    TRY(operand_dtype(node, 1, "roi", DTYPES_FLOAT, err));
    TRY(operand_dtype(node, 3, "sizes", DTYPE_BIT(I64) | DTYPE_BIT(I32), err));
    TRY(resize_plan_init(node, &node->inputs[0]->shape, &plan, &known, err));
    if (!known)
        return infer_unknown(node, 0, x->dtype);
    struct shape out = {.rank = plan.rank};
    for (int i = 0; i < plan.rank; i++)
        out.dims[i] = plan.axis[i].out;
    return infer_output(node, 0, x->dtype, &out, err);
}

/* A string attribute is one of `words`, which are separated by spaces. */
static enum status check_word(const struct node *node, const char *name, const char *otherwise,
                              const char *words, struct error *err)
{
    const char *text = node_string(node, name, otherwise);
    size_t length = strlen(text);
    for (const char *word = words; *word; word += strcspn(word, " "), word += *word == ' ')
        if (strcspn(word, " ") == length && !memcmp(word, text, length))
            return STATUS_OK;
    return error_set(err, STATUS_MODEL, "%s is '%.40s', expected one of: %s", name, text, words);
}

static enum status infer_grid_sample(struct node *node, struct error *err)
{
    const struct shape *x = &node->inputs[0]->shape, *grid = &node->inputs[1]->shape;
    char left[SHAPE_TEXT], right[SHAPE_TEXT];
    TRY(operand_dtype(node, 0, "X", DTYPES_NUMBER, err));
    TRY(operand_dtype(node, 1, "grid", DTYPES_FLOAT, err));
    TRY(operand_rank(node, 0, "X", 3, 5, err));
    if (grid->rank != x->rank || grid->dims[0] != x->dims[0] ||
        grid->dims[grid->rank - 1] != x->rank - 2)
        return error_set(err, STATUS_SHAPE,
                         "X %s and grid %s do not agree (need grid [N, out ..., %d])",
                         shape_text(x, left), shape_text(grid, right), x->rank - 2);
    TRY(check_word(node, "mode", "linear", "linear cubic nearest", err));
    TRY(check_word(node, "padding_mode", "zeros", "zeros border reflection", err));
    for (int i = 2; i < x->rank; i++)
        if (x->dims[i] < 1)
            return error_set(err, STATUS_SHAPE, "X has an empty spatial dimension: %s",
                             shape_text(x, left));
    struct shape out = *x;
    for (int i = 2; i < x->rank; i++)
        out.dims[i] = grid->dims[i - 1];
    return infer_output(node, 0, node->inputs[0]->dtype, &out, err);
}

static enum status infer_affine_grid(struct node *node, struct error *err)
{
    const struct value *theta = node->inputs[0];
    int64_t size[TENSOR_MAX_RANK];
    size_t count;
    bool known;
    char text[SHAPE_TEXT];
    TRY(operand_dtype(node, 0, "theta", DTYPES_FLOAT, err));
    TRY(operand_rank(node, 0, "theta", 3, 3, err));
    TRY(infer_ints(node, 1, size, COUNT_OF(size), &count, &known, err));
    if (!known)
        return infer_unknown(node, 0, theta->dtype);
    int spatial = (int)count - 2;
    if ((spatial != 2 && spatial != 3) || theta->shape.dims[1] != spatial ||
        theta->shape.dims[2] != spatial + 1 || theta->shape.dims[0] != size[0])
        return error_set(err, STATUS_SHAPE,
                         "theta has shape %s and size has %zu numbers, expected [N, 2, 3] and 4, "
                         "or [N, 3, 4] and 5",
                         shape_text(&theta->shape, text), count);
    struct shape out = {.rank = spatial + 2};
    out.dims[0] = size[0];
    for (int i = 0; i < spatial; i++)
        out.dims[1 + i] = size[2 + i];
    out.dims[spatial + 1] = spatial;
    return infer_output(node, 0, theta->dtype, &out, err);
}

/* Where the indices are known, one that names no image is an error of the model. */
static enum status check_batch_indices(const struct node *node, int64_t images, struct error *err)
{
    const struct tensor *indices = node->inputs[2]->known;
    size_t count = indices ? shape_count(&indices->shape) : 0;
    for (size_t i = 0; i < count; i++) {
        int64_t index = tensor_int(indices, i);
        if (index < 0 || index >= images)
            return error_set(err, STATUS_INVALID,
                             "batch index %lld of region %zu is out of range, X has %lld images",
                             (long long)index, i, (long long)images);
    }
    return STATUS_OK;
}

static enum status infer_roi_align(struct node *node, struct error *err)
{
    const struct value *x = node->inputs[0], *rois = node->inputs[1];
    char text[SHAPE_TEXT];
    TRY(operand_dtype(node, 0, "X", DTYPES_FLOAT, err));
    TRY(operand_same_dtype(node, 1, "rois", err));
    TRY(operand_dtype(node, 2, "batch_indices", DTYPE_BIT(I64) | DTYPE_BIT(I32), err));
    TRY(operand_rank(node, 0, "X", 4, 4, err));
    if (rois->shape.rank != 2 || rois->shape.dims[1] != 4)
        return error_set(err, STATUS_SHAPE, "rois has shape %s, expected [rois, 4]",
                         shape_text(&rois->shape, text));
    TRY(operand_vector(node, 2, "batch_indices", rois->shape.dims[0], err));
    TRY(check_batch_indices(node, x->shape.dims[0], err));
    TRY(check_word(node, "mode", "avg", "avg max", err));
    TRY(check_word(node, "coordinate_transformation_mode", "half_pixel",
                   "half_pixel output_half_pixel", err));
    int64_t height = node_int(node, "output_height", 1), width = node_int(node, "output_width", 1);
    int64_t sampling = node_int(node, "sampling_ratio", 0);
    if (height < 1 || width < 1 || sampling < 0 || sampling > 1000)
        return error_set(err, STATUS_SHAPE,
                         "output_height %lld, output_width %lld or sampling_ratio %lld is out of "
                         "range",
                         (long long)height, (long long)width, (long long)sampling);
    struct shape out = SHAPE(rois->shape.dims[0], x->shape.dims[1], height, width);
    return infer_output(node, 0, x->dtype, &out, err);
}

static enum status infer_non_max_suppression(struct node *node, struct error *err)
{
    const struct shape *boxes = &node->inputs[0]->shape, *scores = &node->inputs[1]->shape;
    char left[SHAPE_TEXT], right[SHAPE_TEXT];
    static const char *const names[] = {"boxes", "scores", "max_output_boxes_per_class",
                                        "iou_threshold", "score_threshold"};
    for (size_t i = 0; i < COUNT_OF(names); i++)
        TRY(operand_dtype(node, i, names[i],
                          i == 2 ? DTYPE_BIT(I64) | DTYPE_BIT(I32) : DTYPES_FLOAT, err));
    if (boxes->rank != 3 || scores->rank != 3 || boxes->dims[2] != 4 ||
        boxes->dims[0] != scores->dims[0] || boxes->dims[1] != scores->dims[2])
        return error_set(err, STATUS_SHAPE,
                         "boxes %s and scores %s do not agree (need [batch, boxes, 4] and [batch, "
                         "classes, boxes])",
                         shape_text(boxes, left), shape_text(scores, right));
    for (size_t i = 2; i < COUNT_OF(names); i++) {
        const struct value *value = node_input(node, i);
        if (value && shape_count(&value->shape) > 1)
            TRY(operand_single(node, i, names[i], err));
    }
    infer_unknown(node, 0, DTYPE_I64);
    return STATUS_OK;
}

/* ---- batches ---- */

/* A scale next to 1 blends images though their number stays, and a region may turn them round. */
static int resize_axis(const struct node *node, const int *axes)
{
    struct resize_plan plan;
    bool is_known;
    struct error ignored;
    if (resize_plan_init(node, &node->inputs[0]->shape, &plan, &is_known, &ignored) != STATUS_OK ||
        !is_known || plan.axis[0].resized)
        return BATCH_MIXES;
    return batch_of_samples(node, axes, 1);
}

/* With another policy two sizes with the same result differ in scale. */
static int resize_beside(const struct node *node, size_t i, int axis)
{
    (void)axis;
    return i == 3 && !strcmp(node_string(node, "keep_aspect_ratio_policy", "stretch"), "stretch")
               ? BATCH_EXTENTS
               : BATCH_OTHER;
}

static const struct batch_rule resize_rule = {resize_axis, resize_beside};

static int affine_grid_axis(const struct node *node, const int *axes)
{
    return batch_of_samples(node, axes, 1);
}

static int affine_grid_beside(const struct node *node, size_t i, int axis)
{
    (void)node, (void)axis;
    return i == 1 ? BATCH_EXTENTS : BATCH_OTHER;
}

static const struct batch_rule affine_grid_rule = {affine_grid_axis, affine_grid_beside};

/* ---- the table ---- */

static const struct op_info entries[] = {
    {OP_RESIZE, 11, 0, 1, 4, 1, 1, OP_KEEPS_NUMBERS | OP_HEAVY,
     "mode:string coordinate_transformation_mode:string cubic_coeff_a:float exclude_outside:int "
     "extrapolation_value:float nearest_mode:string antialias:int axes:ints "
     "keep_aspect_ratio_policy:string",
     infer_resize, &resize_rule, work_elements, kernel_resize},
    {OP_GRID_SAMPLE, 16, 0, 2, 2, 1, 1, OP_HEAVY,
     "align_corners:int mode:string padding_mode:string", infer_grid_sample,
     &batch_by_sample_of_two, work_elements, kernel_grid_sample},
    {OP_AFFINE_GRID, 20, 0, 2, 2, 1, 1, OP_PLAIN, "align_corners:int", infer_affine_grid,
     &affine_grid_rule, work_elements, kernel_affine_grid},
    {OP_ROI_ALIGN, 10, 0, 3, 3, 1, 1, OP_HEAVY,
     "coordinate_transformation_mode:string mode:string output_height:int output_width:int "
     "sampling_ratio:int spatial_scale:float",
     infer_roi_align, &batch_mixes, work_elements, kernel_roi_align},
    {OP_NON_MAX_SUPPRESSION, 10, 0, 2, 5, 1, 1, OP_DATA_SHAPE | OP_HEAVY, "center_point_box:int",
     infer_non_max_suppression, &batch_mixes, work_elements, kernel_non_max_suppression},
};

const struct op_family ops_resample = {entries, COUNT_OF(entries)};
