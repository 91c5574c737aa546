/* RoiAlign and NonMaxSuppression. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/op/family.h"
#include "engine/op/nn.h"

/* Reads the index of the image to which region i belongs. */
static enum status image_of(const struct tensor *indices, size_t i, int64_t images, size_t *ret,
                            struct error *err)
{
    const int64_t index = tensor_int(indices, i);
    if (index < 0 || index >= images)
        return error_set(err, STATUS_INVALID,
                         "batch index %lld of region %zu is out of range, X has %lld images",
                         (long long)index, i, (long long)images);
    *ret = (size_t)index;
    return STATUS_OK;
}

static enum status infer_roi_align(struct node *node, struct error *err)
{
    const struct value *x = node->inputs[0], *rois = node->inputs[1];
    const struct tensor *batch = node->inputs[2]->known;
    size_t ignored;
    for (size_t i = 0; batch && i < shape_count(&batch->shape); i++)
        TRY(image_of(batch, i, x->shape.dims[0], &ignored, err));
    TRY(infer_word(node, "mode", "avg max", err));
    TRY(infer_word(node, "coordinate_transformation_mode", "half_pixel output_half_pixel", err));
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

/* ---- RoiAlign ---- */

struct roi_settings {
    size_t channels;
    int64_t height, width;               /* of the feature map */
    int64_t pooled_height, pooled_width; /* of the output */
    int64_t sampling;
    float scale;
    bool half_pixel, max, wide; /* wide: the feature map is in double, otherwise in float */
};

struct roi_tap {
    size_t low, high;
    float weight; /* of the value at `high` */
    bool inside;
};

/* Samples along one axis of one region: `grid` samples per bin, `step` apart. */
struct roi_axis {
    float start, bin, step;
    int64_t grid;               /* samples per bin, at most MOST_GRID */
    const struct roi_tap *taps; /* [pooled * grid], for all channels; NULL: too many for a table */
};

/* A float cannot distinguish more samples in a bin. */
#define MOST_GRID ((int64_t)1 << 24)

static struct roi_axis roi_axis(const struct roi_settings *s, float begin, float end,
                                int64_t pooled)
{
    float offset = s->half_pixel ? 0.5f : 0;
    float start = begin * s->scale - offset, extent = end * s->scale - offset - start;
    /* Unless half_pixel is set, the extent of a region is at least 1. */
    if (!s->half_pixel && !(extent >= 1))
        extent = 1;
    struct roi_axis axis = {.start = start, .bin = extent / (float)pooled};
    axis.grid = s->sampling > 0 ? s->sampling : double_to_int64(ceil(axis.bin));
    axis.grid = axis.grid < 0 ? 0 : axis.grid > MOST_GRID ? MOST_GRID : axis.grid;
    axis.step = axis.grid > 0 ? (float)(axis.bin / (double)axis.grid) : 0;
    return axis;
}

/* Finds the samples *first … *end-1 of bin `at` that lie in -1 … extent. Other samples are zero and
 * are skipped, so that the feature map bounds the work for any region. */
static void roi_samples(const struct roi_axis *axis, int64_t at, int64_t extent, int64_t *first,
                        int64_t *end)
{
    double start = axis->start + (double)at * axis->bin, step = axis->step;
    *first = 0;
    *end = axis->grid;
    if (step > 0) {
        /* one extra sample on each side; roi_tap() checks every sample */
        int64_t low = double_to_int64(floor((-1 - start) / step - 0.5) - 1);
        int64_t high = double_to_int64(ceil(((double)extent - start) / step - 0.5) + 2);
        *first = low > 0 ? low : 0;
        *end = high < axis->grid ? high : axis->grid;
    }
}

static struct roi_tap roi_tap(const struct roi_axis *axis, int64_t at, int64_t sample,
                              int64_t extent)
{
    struct roi_tap tap = {0};
    float x = axis->start + (float)at * axis->bin +
              ((float)sample + 0.5f) * axis->bin / (float)axis->grid;
    if (!(x >= -1 && x <= (float)extent))
        return tap;
    tap.inside = true;
    x = x > 0 ? x : 0;
    tap.low = (size_t)x;
    if (tap.low >= (size_t)extent - 1) {
        tap.low = tap.high = (size_t)extent - 1;
    } else {
        tap.high = tap.low + 1;
        tap.weight = x - (float)tap.low;
    }
    return tap;
}

/* Size of the table of one axis's taps. */
enum { MOST_TAPS = 4096 };

/* Fills the axis's table if all taps fit in the table. */
static void roi_tabulate(struct roi_axis *axis, int64_t pooled, int64_t extent,
                         struct roi_tap taps[static MOST_TAPS])
{
    if (axis->grid > MOST_TAPS / pooled)
        return;
    for (int64_t at = 0; at < pooled; at++)
        for (int64_t sample = 0; sample < axis->grid; sample++)
            taps[at * axis->grid + sample] = roi_tap(axis, at, sample, extent);
    axis->taps = taps;
}

static struct roi_tap roi_tap_of(const struct roi_axis *axis, int64_t at, int64_t sample,
                                 int64_t extent)
{
    return axis->taps ? axis->taps[at * axis->grid + sample] : roi_tap(axis, at, sample, extent);
}

static double roi_pixel(const void *plane, bool wide, size_t at)
{
    return wide ? ((const double *)plane)[at] : (double)((const float *)plane)[at];
}

/* Returns the value of one sample: the interpolated value, or in mode max the largest of the
 * sample's four weighted neighbours (as in ONNX's reference and ONNX Runtime). */
static double roi_value(const struct roi_settings *s, const void *plane, struct roi_tap y,
                        struct roi_tap x)
{
    size_t top = y.low * (size_t)s->width, bottom = y.high * (size_t)s->width;
    double a = (1 - y.weight) * (1 - x.weight) * roi_pixel(plane, s->wide, top + x.low);
    double b = (1 - y.weight) * x.weight * roi_pixel(plane, s->wide, top + x.high);
    double c = y.weight * (1 - x.weight) * roi_pixel(plane, s->wide, bottom + x.low);
    double d = y.weight * x.weight * roi_pixel(plane, s->wide, bottom + x.high);
    return s->max ? fmax(fmax(a, b), fmax(c, d)) : a + b + c + d;
}

static enum status roi_bin(const struct kernel_args *args, const struct roi_settings *s,
                           const void *plane, const struct roi_axis *rows,
                           const struct roi_axis *columns, int64_t row, int64_t column, double *ret,
                           struct error *err)
{
    int64_t y_first, y_end, x_first, x_end;
    double sum = 0, best = -INFINITY, inside = 0;
    roi_samples(rows, row, s->height, &y_first, &y_end);
    roi_samples(columns, column, s->width, &x_first, &x_end);
    for (int64_t iy = y_first; iy < y_end; iy++) {
        struct roi_tap y = roi_tap_of(rows, row, iy, s->height);
        TRY(kernel_goes_on(args, y.inside && x_end > x_first ? (size_t)(x_end - x_first) : 1, err));
        for (int64_t ix = x_first; ix < x_end && y.inside; ix++) {
            struct roi_tap x = roi_tap_of(columns, column, ix, s->width);
            if (!x.inside)
                continue;
            double value = roi_value(s, plane, y, x);
            sum += value;
            best = value > best ? value : best;
            inside++;
        }
    }
    double count = (double)rows->grid * (double)columns->grid;
    if (!s->max)
        *ret = sum / (count > 1 ? count : 1);
    else /* samples outside are 0 */
        *ret = count <= 0 || (inside < count && !(best > 0)) ? 0 : best;
    return STATUS_OK;
}

static enum status roi_region(const struct kernel_args *args, const struct roi_settings *s,
                              const char *image, const float *box, void *dst, struct roi_tap *taps,
                              struct error *err)
{
    /* boxes are x1, y1, x2, y2 */
    struct roi_axis columns = roi_axis(s, box[0], box[2], s->pooled_width);
    struct roi_axis rows = roi_axis(s, box[1], box[3], s->pooled_height);
    bool finite = isfinite(rows.start) && isfinite(rows.bin) && isfinite(columns.start) &&
                  isfinite(columns.bin);
    size_t at = 0, plane_bytes =
                       (size_t)(s->height * s->width) * (s->wide ? sizeof(double) : sizeof(float));
    if (finite) {
        roi_tabulate(&rows, s->pooled_height, s->height, taps);
        roi_tabulate(&columns, s->pooled_width, s->width, taps + MOST_TAPS);
    }
    for (size_t c = 0; c < s->channels; c++) {
        const char *plane = image + c * plane_bytes;
        for (int64_t row = 0; row < s->pooled_height; row++)
            for (int64_t column = 0; column < s->pooled_width; column++, at++) {
                double value = 0;
                if (finite)
                    TRY(roi_bin(args, s, plane, &rows, &columns, row, column, &value, err));
                if (s->wide)
                    ((double *)dst)[at] = value;
                else
                    ((float *)dst)[at] = (float)value;
            }
    }
    return STATUS_OK;
}

KERNEL(kernel_roi_align)
{
    const struct tensor *x = args->in[0], *rois = args->in[1], *batch = args->in[2];
    size_t count = (size_t)rois->shape.dims[0];
    const struct node *node = args->node;
    const struct roi_settings s = {
        .channels = (size_t)x->shape.dims[1],
        .height = x->shape.dims[2],
        .width = x->shape.dims[3],
        .pooled_height = node_int(node, "output_height", 1),
        .pooled_width = node_int(node, "output_width", 1),
        .sampling = node_int(node, "sampling_ratio", 0),
        .scale = node_float(node, "spatial_scale", 1),
        .half_pixel = !node_word(node, "coordinate_transformation_mode", "half_pixel"),
        .max = node_word(node, "mode", "avg max") == 1,
        .wide = x->dtype == DTYPE_F64,
    };
    const char *src;
    const float *boxes;
    char *dst;
    enum dtype working = s.wide ? DTYPE_F64 : DTYPE_F32;
    size_t size = dtype_size(working);
    size_t image = s.channels * (size_t)(s.height * s.width) * size;
    size_t region = s.channels * (size_t)s.pooled_height * (size_t)s.pooled_width * size;
    struct roi_tap *taps = kernel_scratch(args, 2 * MOST_TAPS, sizeof *taps, err);
    TRY(allocated(taps));
    TRY(operand_open(args, 0, working, &src, err));
    TRY(operand_open(args, 1, DTYPE_F32, &boxes, err));
    TRY(result_open(args, 0, working, &dst, err));
    for (size_t i = 0; i < count; i++) {
        size_t n = 0;
        TRY(image_of(batch, i, x->shape.dims[0], &n, err));
        if (!image)
            memset(dst + i * region, 0, region);
        else
            TRY(roi_region(args, &s, src + n * image, boxes + i * 4, dst + i * region, taps, err));
    }
    return STATUS_OK;
}

/* ---- NonMaxSuppression ---- */

struct box_candidate {
    float score;
    size_t box;
};

/* A box; top and left are its smaller coordinates. */
struct box {
    float top, left, bottom, right, area;
};

struct suppression {
    int64_t max_boxes;
    float iou_threshold, score_threshold;
    bool has_score_threshold, center;
    size_t boxes;
    struct box_candidate *candidates; /* [boxes] */
    struct box *selected;             /* [boxes]: boxes selected in the current class */
    int64_t *out;                     /* triples */
    size_t count, capacity;           /* of triples */
};

/* Faster than fminf() and fmaxf(), which would be calls for every pair of boxes. With a NaN, boxes
 * do not overlap, as with fminf() and fmaxf(). */
static float least(float a, float b)
{
    return a < b ? a : b;
}

static float greatest(float a, float b)
{
    return a > b ? a : b;
}

static struct box box_of(const float *box, bool center)
{
    struct box ret;
    if (center) /* x_center, y_center, width, height */
        ret = (struct box){box[1] - box[3] / 2, box[0] - box[2] / 2, box[1] + box[3] / 2,
                           box[0] + box[2] / 2, 0};
    else
        ret = (struct box){least(box[0], box[2]), least(box[1], box[3]), greatest(box[0], box[2]),
                           greatest(box[1], box[3]), 0};
    ret.area = (ret.bottom - ret.top) * (ret.right - ret.left);
    return ret;
}

static bool overlaps(const struct box *p, const struct box *q, float threshold)
{
    float height = least(p->bottom, q->bottom) - greatest(p->top, q->top);
    float width = least(p->right, q->right) - greatest(p->left, q->left);
    if (!(height > 0 && width > 0))
        return false;
    float common = height * width, both = p->area + q->area - common;
    return p->area > 0 && q->area > 0 && both > 0 && common / both > threshold;
}

/* Sorts by falling score, and equal scores by rising index. */
static int compare_candidates(const void *a, const void *b)
{
    const struct box_candidate *x = a, *y = b;
    if (x->score != y->score)
        return x->score > y->score ? -1 : 1;
    return x->box < y->box ? -1 : x->box > y->box;
}

static enum status emit(const struct kernel_args *args, struct suppression *s, size_t batch,
                        size_t class, size_t box, struct error *err)
{
    if (s->count == s->capacity) {
        size_t wanted = s->capacity ? s->capacity * 2 : 64;
        int64_t *bigger = kernel_scratch_grow(args, s->out, wanted, 3 * sizeof *bigger, err);
        TRY(allocated(bigger));
        s->out = bigger;
        s->capacity = wanted;
    }
    int64_t *triple = s->out + 3 * s->count++;
    triple[0] = (int64_t)batch;
    triple[1] = (int64_t) class;
    triple[2] = (int64_t)box;
    return STATUS_OK;
}

static enum status suppress_class(const struct kernel_args *args, struct suppression *s,
                                  const float *boxes, const float *scores, size_t batch,
                                  size_t class, struct error *err)
{
    size_t candidates = 0, selected = 0;
    for (size_t i = 0; i < s->boxes; i++) {
        /* NaN is not above any threshold */
        bool wanted = s->has_score_threshold ? scores[i] > s->score_threshold : !isnan(scores[i]);
        if (wanted)
            s->candidates[candidates++] = (struct box_candidate){scores[i], i};
    }
    qsort(s->candidates, candidates, sizeof *s->candidates, compare_candidates);
    for (size_t i = 0; i < candidates && (int64_t)selected < s->max_boxes; i++) {
        size_t at = s->candidates[i].box;
        struct box box = box_of(boxes + 4 * at, s->center);
        bool keep = true;
        TRY(kernel_goes_on(args, selected + 1, err));
        for (size_t k = 0; k < selected && keep; k++)
            keep = !overlaps(&box, &s->selected[k], s->iou_threshold);
        if (!keep)
            continue;
        s->selected[selected++] = box;
        TRY(emit(args, s, batch, class, at, err));
    }
    return STATUS_OK;
}

static const struct tensor *optional_number(const struct kernel_args *args, size_t i)
{
    const struct tensor *tensor = kernel_input(args, i);
    return tensor && shape_count(&tensor->shape) ? tensor : NULL;
}

KERNEL(kernel_non_max_suppression)
{
    const struct shape *shape = &args->in[1]->shape; /* [images, classes, boxes] */
    const size_t images = (size_t)shape->dims[0], classes = (size_t)shape->dims[1];
    const struct tensor *max = optional_number(args, 2), *iou = optional_number(args, 3);
    const struct tensor *score = optional_number(args, 4);
    struct suppression s = {.max_boxes = max ? tensor_int(max, 0) : 0,
                            .iou_threshold = iou ? (float)tensor_number(iou, 0) : 0,
                            .has_score_threshold = score != NULL,
                            .score_threshold = score ? (float)tensor_number(score, 0) : 0,
                            .center = node_int(args->node, "center_point_box", 0) != 0,
                            .boxes = (size_t)shape->dims[2]};
    const float *boxes, *scores;
    if (!(s.iou_threshold >= 0 && s.iou_threshold <= 1))
        return error_set(err, STATUS_INVALID, "iou_threshold is %g, expected 0 to 1",
                         (double)s.iou_threshold);
    s.candidates = kernel_scratch(args, s.boxes, sizeof *s.candidates, err);
    s.selected = kernel_scratch(args, s.boxes, sizeof *s.selected, err);
    if (!s.candidates || !s.selected)
        return STATUS_NO_MEMORY;
    TRY(operand_open(args, 0, DTYPE_F32, &boxes, err));
    TRY(operand_open(args, 1, DTYPE_F32, &scores, err));
    for (size_t i = 0; i < images * classes && s.boxes && s.max_boxes > 0; i++)
        TRY(suppress_class(args, &s, boxes + i / classes * s.boxes * 4, scores + i * s.boxes,
                           i / classes, i % classes, err));
    TRY(kernel_output(args, 0, DTYPE_I64, &SHAPE((int64_t)s.count, 3), err));
    if (s.count)
        memcpy(args->out[0]->data, s.out, s.count * 3 * sizeof *s.out);
    return STATUS_OK;
}

const struct op_info ops_detection[] = {
    OP_ROW(ROI_ALIGN, 10, 3, 3, "X:float[NCHW] rois:=[R4] batch_indices:index[R]", OP_HEAVY,
           "coordinate_transformation_mode:string mode:string output_height:int output_width:int "
           "sampling_ratio:int spatial_scale:float",
           roi_align, &batch_mixes),
    OP_ROW_OF(NON_MAX_SUPPRESSION, 10, 2, 5,
              "boxes:float[NB4] scores:float[NCB] max_output_boxes_per_class:index[?] "
              "iou_threshold:float[?] score_threshold:float[?]",
              OP_DATA_SHAPE | OP_HEAVY, "center_point_box:int", unknown_i64, &batch_mixes,
              non_max_suppression),
    {0},
};
