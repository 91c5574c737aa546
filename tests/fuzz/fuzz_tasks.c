/* Decodes arbitrary outputs in every layout. For any numbers, boxes lie in the photo, are sorted
 * and above the threshold; areas cover no pixel twice; vectors are finite. The first bytes of the
 * input select layout, dimensions and thresholds. Floats follow; they repeat if an output is
 * larger. */
#include <math.h>
#include <string.h>

#include "engine/base/size.h"
#include "models/tasks/answer.h"
#include "tests/fuzz/target.h"

enum { HEAD = 8, MOST = 1 << 16 };

/* Fills `ret` with a row of this shape; the caller frees its numbers. */
static struct task_rows make_row(const uint8_t *data, size_t size, struct shape shape)
{
    const size_t count = shape_count(&shape);
    float *numbers = alloc_array(count, sizeof *numbers);
    for (size_t i = 0; numbers && i < count && size >= sizeof *numbers; i++)
        memcpy(&numbers[i], data + i % (size / sizeof *numbers) * sizeof *numbers, sizeof *numbers);
    return (struct task_rows){numbers, shape, count};
}

/* Its runs cover the photo; its bitmap and outlines exist. */
static void check_mask(const struct segment *mask, uint32_t width, uint32_t height)
{
    struct mask_reader reader = {.at = mask->counts};
    uint64_t all = 0, area = 0;
    uint32_t length;
    for (bool inside; mask_next(&reader, &length, &inside); all += length)
        area += inside ? length : 0;
    HOLDS(!*reader.at && all == (uint64_t)width * height && area == mask->area);
    struct mask_bitmap bitmap;
    struct mask_polygons polygons = {0};
    enum status status = mask_bitmap_of(mask->counts, height, &bitmap, NULL);
    HOLDS(status == STATUS_OK || status == STATUS_NO_MEMORY);
    if (status != STATUS_OK)
        return;
    HOLDS(bitmap.left + bitmap.width <= width && bitmap.top + bitmap.height <= height);
    status = mask_polygons_of(&bitmap, &polygons, NULL);
    HOLDS(status == STATUS_OK || status == STATUS_NO_MEMORY);
    HOLDS(status != STATUS_OK || (polygons.polygons > 0) == (area > 0));
    for (size_t i = 0; i < polygons.count; i++)
        HOLDS(polygons.points[i] <= (i % 2 ? height : width));
    FREE_ALL(polygons.points, polygons.ends);
    free(bitmap.pixels);
}

static void check_boxes(const struct detections *found, const struct task_options *options,
                        const struct task_geometry *geometry, bool is_oriented, bool is_face)
{
    HOLDS(found->count <= (size_t)options->max_detections);
    for (size_t i = 0; i < found->count; i++) {
        const struct detection *box = &found->items[i];
        HOLDS(box->score > options->confidence && isfinite(box->score));
        HOLDS(i == 0 || box->score <= box[-1].score);
        if (is_oriented)
            continue;
        HOLDS(box->x1 >= 0 && box->x1 <= geometry->photo_width);
        HOLDS(box->y2 >= 0 && box->y2 <= geometry->photo_height);
        HOLDS(box->x2 >= 0 && box->x2 <= geometry->photo_width);
        HOLDS(box->y1 >= 0 && box->y1 <= geometry->photo_height);
    }
    for (size_t i = 0; i < found->count && found->items[i].mask.counts; i++)
        check_mask(&found->items[i].mask, (uint32_t)geometry->photo_width,
                   (uint32_t)geometry->photo_height);
    for (size_t i = 0; i < found->count * found->point_count; i++) {
        const float x = found->points[i].x, y = found->points[i].y;
        const float width = geometry->photo_width, height = geometry->photo_height;
        HOLDS(x >= (is_face ? -width : 0) && x <= (is_face ? 2 : 1) * width);
        HOLDS(y >= (is_face ? -height : 0) && y <= (is_face ? 2 : 1) * height);
        HOLDS(found->points[i].score >= -1 && found->points[i].score <= 1);
    }
}

static enum task_layout layout_of(const uint8_t *head)
{
    return (enum task_layout)(1 + head[0] % LAYOUT_PADDLE_FLAT);
}

static enum task_kind kind_of(const uint8_t *head)
{
    static const enum task_kind kinds[] = {TASK_DETECTION, TASK_POSE, TASK_ORIENTED,
                                           TASK_INSTANCES};
    switch (layout_of(head)) {
    case LAYOUT_YOLOV8:
    case LAYOUT_YOLO_FINAL:
        return kinds[head[7] >> 6];
    case LAYOUT_RFDETR:
        return head[7] & 64 ? TASK_INSTANCES : TASK_DETECTION;
    case LAYOUT_PANOPTIC:
    case LAYOUT_MASKFORMER:
        return TASK_INSTANCES;
    case LAYOUT_YUNET:
    case LAYOUT_SCRFD:
    case LAYOUT_SCRFD_FLAT:
    case LAYOUT_HEATMAPS:
        return TASK_POSE;
    case LAYOUT_TEXT:
        return TASK_TEXT_BOXES;
    default:
        return TASK_DETECTION;
    }
}

/* The shapes of the outputs, mostly those that the layout expects. */
static void shapes_of(const uint8_t *head, struct shape ret[static TASK_MAX_OUTPUTS])
{
    static const int64_t cells[] = {64, 16, 4}, numbers[] = {1, 1, 4, 10};
    const int64_t first = head[1] * 8, second = head[2], third = head[3] % 16;
    const bool is_list = head[7] & 16;       /* of lists: one box a row and a number for each */
    const bool is_masks = head[7] >> 6 == 3; /* then the last one is prototypes */
    ret[0] = is_list ? SHAPE(first, 4) : SHAPE(first, second);
    ret[1] = is_list ? SHAPE(first) : SHAPE(first, 4);
    ret[2] = SHAPE(first);
    ret[3] = is_masks ? SHAPE(2, third, 1 + third) : SHAPE(1);
    for (int i = 4; i < TASK_MAX_OUTPUTS; i++)
        ret[i] = SHAPE(0);
    switch (layout_of(head)) {
    case LAYOUT_YUNET:
        for (int i = 0; i < TASK_MAX_OUTPUTS; i++)
            ret[i] = SHAPE(cells[i % 3], numbers[i / 3]);
        break;
    case LAYOUT_SCRFD:
    case LAYOUT_SCRFD_FLAT:
        for (int i = 0; i < 9; i++)
            ret[i] = SHAPE(2 * cells[i % 3], numbers[1 + i / 3]);
        break;
    case LAYOUT_YOLO_NAS:
        ret[0] = SHAPE(first, 4);
        ret[1] = SHAPE(first, second % 8);
        break;
    case LAYOUT_YOLO_NAS_FLAT:
        ret[0] = SHAPE(first, 7);
        break;
    case LAYOUT_PADDLE:
    case LAYOUT_PADDLE_FLAT:
        ret[0] = SHAPE(first, 6);
        ret[1] = SHAPE(1 + third / 15);
        break;
    case LAYOUT_PANOPTIC:
    case LAYOUT_MASKFORMER:
        ret[0] = SHAPE(head[1], 1 + second % 8);
        ret[1] = SHAPE(head[1], third, 1 + second % 16);
        break;
    case LAYOUT_RFDETR:
        ret[0] = SHAPE(head[1], second % 8);
        ret[1] = SHAPE(head[1], 4);
        ret[3] = SHAPE(head[1], third, 1 + third);
        break;
    case LAYOUT_HEATMAPS:
        ret[0] = SHAPE(5, second % 64, third);
        break;
    case LAYOUT_TEXT:
        ret[0] = SHAPE(1, second % 64, 1 + head[1] % 64);
        break;
    default:
        break;
    }
}

static void decode_boxes(const uint8_t *head, const struct task_rows *rows,
                         const struct task_options *options, const struct task_geometry *geometry)
{
    struct error err;
    struct detections found = {0};
    const enum task_layout layout = layout_of(head);
    static const uint16_t of_tokens[] = {3, 0, 1, 3, 2, 2};
    const struct task_words words = {.count = 3,
                                     .of_tokens = layout == LAYOUT_GROUNDING ? of_tokens : NULL,
                                     .token_count = COUNT_OF(of_tokens)};
    struct task_options with_words = *options;
    with_words.words =
        layout == LAYOUT_OWL || layout == LAYOUT_GROUNDING || head[7] & 8 ? &words : NULL;
    const struct task task = {.kind = kind_of(head),
                              .layout = layout,
                              .output_count = layout == LAYOUT_YUNET         ? 12
                                              : task_layout_is_faces(layout) ? 9
                                                                             : 4,
                              .point_count = 5,
                              .point_numbers = task_layout_is_faces(layout) ? 2 : 3,
                              .prototypes = layout == LAYOUT_RFDETR ? 0 : 2,
                              .mask_side = head[7] & 32 ? 24 : 0};
    if (detect_decode(&task, rows, &with_words, geometry, &found, &err) != STATUS_OK) {
        HOLDS(err.message[0]);
        detections_done(&found);
        return;
    }
    check_boxes(&found, options, geometry, task.kind == TASK_ORIENTED,
                task_layout_is_faces(layout) || layout == LAYOUT_HEATMAPS);
    for (size_t i = 0; with_words.words && i < found.count; i++)
        HOLDS(found.items[i].index < words.count);
    detections_done(&found);
}

static void decode_others(const struct task_rows *row, const struct task_options *options,
                          const struct task_geometry *geometry)
{
    struct error err;
    struct segments areas = {0};
    struct embedding vector = {0};
    struct text_reading line = {0};
    struct depth depth = {0};
    uint16_t *pixels = NULL;
    float least, greatest;
    if (depth_decode(row, geometry, &depth, &err) == STATUS_OK)
        HOLDS(depth_render(&depth, &pixels, &least, &greatest, &err) == STATUS_OK || !pixels);
    free(pixels);
    depth_done(&depth);
    if (segment_decode(row, options, geometry, &areas, &err) == STATUS_OK) {
        uint64_t covered = 0;
        for (size_t i = 0; i < areas.count; i++) {
            HOLDS(areas.items[i].area > 0);
            check_mask(&areas.items[i], areas.width, areas.height);
            HOLDS(i == 0 || areas.items[i].area <= areas.items[i - 1].area);
            covered += areas.items[i].area;
        }
        HOLDS(covered <= (uint64_t)areas.width * areas.height);
    }
    segments_done(&areas);
    if (embed_decode(row, options, &vector, &err) == STATUS_OK)
        for (size_t i = 0; i < vector.count; i++)
            HOLDS(isfinite(vector.values[i]));
    embedding_done(&vector);
    if (text_decode(row, &line, &err) == STATUS_OK)
        for (size_t i = 0; i < line.count; i++)
            HOLDS(line.characters[i] + 1 < (uint64_t)row->shape.dims[1]);
    text_done(&line);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < HEAD)
        return 0;
    const int64_t first = data[1] * 8, second = data[2], third = data[3] % 16;
    const struct task_options options = {.confidence = (float)data[4] / 255,
                                         .iou = (float)data[5] / 255,
                                         .max_detections = 1 + data[6] * 3,
                                         .agnostic = data[7] & 1,
                                         .normalize = data[7] >> 1 & 1};
    const float gain = data[7] & 4 ? 0.25f : 1.5f;
    const struct task_geometry geometry = {gain, gain, data[7] & 8 ? -3 : 2, 1, 97, 31, 64, 64};
    if (first * second > MOST)
        return 0;
    struct shape shapes[TASK_MAX_OUTPUTS];
    struct task_rows rows[TASK_MAX_OUTPUTS];
    shapes_of(data, shapes);
    for (size_t i = 0; i < TASK_MAX_OUTPUTS; i++)
        rows[i] = make_row(data + HEAD, size - HEAD, shapes[i]);
    const struct task_rows map =
        make_row(data + HEAD, size - HEAD, SHAPE(third, second % 32, 1 + first % 32));
    bool has_memory = map.data;
    for (size_t i = 0; i < COUNT_OF(rows); i++)
        has_memory = has_memory && rows[i].data;
    if (has_memory) {
        decode_boxes(data, rows, &options, &geometry);
        decode_others(&map, &options, &geometry);
        decode_others(&rows[0], &options, &geometry);
    }
    for (size_t i = 0; i < COUNT_OF(rows); i++)
        free((void *)(uintptr_t)rows[i].data);
    free((void *)(uintptr_t)map.data);
    return 0;
}
