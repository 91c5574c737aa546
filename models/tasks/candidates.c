/* Keeps the best candidates, and suppresses those that overlap with better ones.
 *
 * The numbers are torchvision's nms(): intersection over union in float32, strictly greater than
 * the threshold, in the order of the scores. */
#include "models/tasks/candidates.h"

#include <math.h>
#include <stdlib.h>

#include "engine/base/size.h"

enum { FIRST_CAPACITY = 64, KEPT_BLOCK = 16 };

void detections_done(struct detections *detections)
{
    free(detections->items);
    *detections = (struct detections){NULL, 0, 0};
}

static bool is_better(const struct detection *a, const struct detection *b)
{
    return a->score > b->score || (a->score >= b->score && a->place < b->place);
}

/* Moves the entry at `root` of a heap down: its root is the best with `sign` 1, the worst with -1.
 */
static void heap_sift(struct detection *heap, size_t count, size_t root, int sign)
{
    const struct detection moved = heap[root];
    for (size_t child = 2 * root + 1; child < count; child = 2 * root + 1) {
        if (child + 1 < count && is_better(&heap[child + 1], &heap[child]) == (sign > 0))
            child++;
        if (is_better(&heap[child], &moved) != (sign > 0))
            break;
        heap[root] = heap[child];
        root = child;
    }
    heap[root] = moved;
}

static void heap_make(struct detection *heap, size_t count, int sign)
{
    for (size_t i = count / 2; i-- > 0;)
        heap_sift(heap, count, i, sign);
}

static bool candidates_grow(struct candidates *candidates)
{
    struct detections *found = &candidates->found;
    size_t capacity = found->capacity ? 2 * found->capacity : FIRST_CAPACITY;
    struct detection *items = realloc(found->items, capacity * sizeof *items);
    if (!items) {
        candidates->is_out_of_memory = true;
        return false;
    }
    found->items = items;
    found->capacity = capacity;
    return true;
}

void candidates_add(struct candidates *candidates, const struct detection *added)
{
    struct detections *found = &candidates->found;
    if (!(added->score > candidates->options->confidence) || !isfinite(added->score) ||
        !isfinite(added->x1) || !isfinite(added->y1) || !isfinite(added->x2) ||
        !isfinite(added->y2) || !task_option_wants(candidates->options, added->index))
        return;
    if (found->count == DETECT_MAX_CANDIDATES) { /* a heap, whose root is the worst candidate */
        if (is_better(added, &found->items[0])) {
            found->items[0] = *added;
            heap_sift(found->items, found->count, 0, -1);
        }
        return;
    }
    if (found->count == found->capacity && !candidates_grow(candidates))
        return;
    found->items[found->count++] = *added;
    if (found->count == DETECT_MAX_CANDIDATES)
        heap_make(found->items, found->count, -1);
}

/* The boxes that were kept so far, in blocks, so that the compiler can vectorise loops over them.
 */
struct kept_boxes {
    size_t count;
    float x1[TASK_MAX_DETECTIONS + KEPT_BLOCK], y1[TASK_MAX_DETECTIONS + KEPT_BLOCK];
    float x2[TASK_MAX_DETECTIONS + KEPT_BLOCK], y2[TASK_MAX_DETECTIONS + KEPT_BLOCK];
    float area[TASK_MAX_DETECTIONS + KEPT_BLOCK];
    uint32_t index[TASK_MAX_DETECTIONS + KEPT_BLOCK];
};

static float area_of(const struct detection *box)
{
    return (box->x2 - box->x1) * (box->y2 - box->y1);
}

/* Whether a kept box overlaps with `box` by more than `iou`. The rest of the last block is zero:
 * empty boxes, which overlap with nothing. */
static bool is_suppressed(const struct kept_boxes *kept, const struct detection *box, float iou,
                          bool agnostic)
{
    const float area = area_of(box);
    for (size_t first = 0; first < kept->count; first += KEPT_BLOCK) {
        uint32_t hit = 0;
        for (size_t i = first; i < first + KEPT_BLOCK; i++) {
            const float left = box->x1 > kept->x1[i] ? box->x1 : kept->x1[i];
            const float top = box->y1 > kept->y1[i] ? box->y1 : kept->y1[i];
            const float right = box->x2 < kept->x2[i] ? box->x2 : kept->x2[i];
            const float bottom = box->y2 < kept->y2[i] ? box->y2 : kept->y2[i];
            const float width = right - left > 0 ? right - left : 0;
            const float height = bottom - top > 0 ? bottom - top : 0;
            const float shared = width * height;
            const bool same = (kept->index[i] == box->index) | agnostic;
            hit |= (uint32_t)(shared / (area + kept->area[i] - shared) > iou) & (uint32_t)same;
        }
        if (hit)
            return true;
    }
    return false;
}

static void keep(struct kept_boxes *kept, const struct detection *box)
{
    const size_t i = kept->count++;
    if (i % KEPT_BLOCK == 0)
        for (size_t k = i; k < i + KEPT_BLOCK; k++) {
            kept->x1[k] = kept->y1[k] = kept->x2[k] = kept->y2[k] = kept->area[k] = 0;
            kept->index[k] = 0;
        }
    kept->x1[i] = box->x1;
    kept->y1[i] = box->y1;
    kept->x2[i] = box->x2;
    kept->y2[i] = box->y2;
    kept->area[i] = area_of(box);
    kept->index[i] = box->index;
}

void candidates_suppress(struct detections *found, const struct task_options *options)
{
    struct kept_boxes kept = {.count = 0};
    struct detection *items = found->items;
    const size_t all = found->count, most = (size_t)options->max_detections;
    heap_make(items, all, 1);
    /* The heap shrinks from its end. The kept candidates go there, the best last. */
    for (size_t count = all; count > 0 && kept.count < most; count--) {
        const struct detection best = items[0];
        items[0] = items[count - 1];
        heap_sift(items, count - 1, 0, 1);
        if (options->iou < 1 && is_suppressed(&kept, &best, options->iou, options->agnostic > 0))
            continue;
        items[all - 1 - kept.count] = best;
        keep(&kept, &best);
    }
    for (size_t i = 0; i < all / 2; i++) {
        const struct detection swapped = items[i];
        items[i] = items[all - 1 - i];
        items[all - 1 - i] = swapped;
    }
    found->count = kept.count;
}
