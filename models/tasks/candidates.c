/* Keeps the best candidates, and suppresses those that overlap with better ones.
 *
 * The results equal torchvision's nms(): intersection over union in float32, strictly greater than
 * the threshold, in the order of the scores. */
#include "engine/base/array.h"
#include "models/tasks/decoders.h"

#include <math.h>
#include <stdlib.h>

#include "engine/base/size.h"

void detections_done(struct detections *detections)
{
    FREE_ALL(detections->items, detections->points);
    for (size_t i = 0; detections->masks && i < detections->count; i++)
        free(detections->masks[i].counts);
    free(detections->masks);
    *detections = (struct detections){0};
}

void detections_drop(struct detections *found)
{
    const size_t all = found->count, points = found->point_count;
    found->count = 0;
    for (size_t i = 0, to = 0; i < all; i++, to = found->count) {
        found->count += found->items[i].score >= 0;
        if (found->masks && to == found->count)
            free(found->masks[i].counts);
        if (found->masks)
            found->masks[to] = found->masks[i];
        for (size_t p = 0; p < points; p++)
            found->points[to * points + p] = found->points[i * points + p];
        found->items[to] = found->items[i];
    }
}

double detection_overlap(const struct detection *a, const struct detection *b)
{
    const double width = (double)fminf(a->x2, b->x2) - (double)fmaxf(a->x1, b->x1);
    const double height = (double)fminf(a->y2, b->y2) - (double)fmaxf(a->y1, b->y1);
    const double both = width > 0 && height > 0 ? width * height : 0;
    const double whole = (double)(a->x2 - a->x1) * (double)(a->y2 - a->y1) +
                         (double)(b->x2 - b->x1) * (double)(b->y2 - b->y1) - both;
    return whole > 0 ? both / whole : 0;
}

void detection_corners(const struct detection *box, float ret[static 4][2])
{
    const float x = (box->x1 + box->x2) / 2, y = (box->y1 + box->y2) / 2;
    const float width = (box->x2 - box->x1) / 2, height = (box->y2 - box->y1) / 2;
    const float cosine = cosf(box->angle), sine = sinf(box->angle);
    for (int i = 0; i < 4; i++) {
        const float right = i < 2 ? width : -width, down = i == 0 || i == 3 ? height : -height;
        ret[i][0] = x + right * cosine - down * sine;
        ret[i][1] = y + right * sine + down * cosine;
    }
}

static bool is_better(const struct detection *a, const struct detection *b)
{
    return a->score > b->score || (a->score >= b->score && a->place < b->place);
}

/* Moves the entry at `root` of a heap down. Entry 0 is the best (`sign` 1) or the worst (-1). */
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

void candidates_add(struct candidates *candidates, struct detection box, float score, size_t index,
                    size_t place)
{
    struct detections *found = &candidates->found;
    struct detection *added = &box;
    const struct task_words *words = candidates->options->words;
    box.score = score;
    /* A model's rows after the last word repeat word 0. */
    box.index = words && index >= words->count ? 0 : (uint32_t)index;
    box.place = (uint32_t)place;
    const size_t most = candidates->is_oriented ? DETECT_MAX_ORIENTED : DETECT_MAX_CANDIDATES;
    if (!(added->score > candidates->options->confidence) || !isfinite(added->score) ||
        !isfinite(added->angle) || !isfinite(added->x1) || !isfinite(added->y1) ||
        !isfinite(added->x2) || !isfinite(added->y2) ||
        !task_option_wants(candidates->options, added->index))
        return;
    if (found->count == most) { /* `items` is a heap, whose root is the worst candidate */
        if (is_better(added, &found->items[0])) {
            found->items[0] = *added;
            heap_sift(found->items, found->count, 0, -1);
        }
        return;
    }
    if (!array_reserve(&found->items, &found->capacity, found->count + 1, sizeof *found->items)) {
        candidates->is_out_of_memory = true;
        return;
    }
    found->items[found->count++] = *added;
    if (found->count == most)
        heap_make(found->items, found->count, -1);
}

/* True if a kept box overlaps `box` by more than `iou`. Only boxes with the class of `box` count,
 * unless `agnostic` is set. */
static bool is_suppressed(const struct detection *kept, size_t count, const struct detection *box,
                          float iou, bool agnostic)
{
    const float area = detection_area(box);
    for (size_t i = 0; i < count; i++) {
        const struct detection *k = &kept[i];
        const float width =
            (box->x2 < k->x2 ? box->x2 : k->x2) - (box->x1 > k->x1 ? box->x1 : k->x1);
        const float height =
            (box->y2 < k->y2 ? box->y2 : k->y2) - (box->y1 > k->y1 ? box->y1 : k->y1);
        const float shared = width * height;
        if (width > 0 && height > 0 && (agnostic || k->index == box->index) &&
            shared / (area + detection_area(k) - shared) > iou)
            return true;
    }
    return false;
}

/* The candidates compared so far, each as a Gaussian with the covariance matrix [a c; c b]. */
struct oriented_boxes {
    size_t count;
    float x[DETECT_MAX_ORIENTED], y[DETECT_MAX_ORIENTED];
    float a[DETECT_MAX_ORIENTED], b[DETECT_MAX_ORIENTED], c[DETECT_MAX_ORIENTED];
    float root[DETECT_MAX_ORIENTED]; /* square root of the determinant */
    uint32_t index[DETECT_MAX_ORIENTED];
};

static void oriented_add(struct oriented_boxes *boxes, const struct detection *box)
{
    const size_t i = boxes->count++;
    const float width = box->x2 - box->x1, height = box->y2 - box->y1;
    const float wide = width * width / 12, high = height * height / 12;
    const float cosine = cosf(box->angle), sine = sinf(box->angle);
    boxes->x[i] = (box->x1 + box->x2) / 2;
    boxes->y[i] = (box->y1 + box->y2) / 2;
    boxes->a[i] = wide * cosine * cosine + high * sine * sine;
    boxes->b[i] = wide * sine * sine + high * cosine * cosine;
    boxes->c[i] = (wide - high) * cosine * sine;
    const float determinant = boxes->a[i] * boxes->b[i] - boxes->c[i] * boxes->c[i];
    boxes->root[i] = sqrtf(determinant > 0 ? determinant : 0);
    boxes->index[i] = box->index;
}

/* Adds a box. Returns true if it overlaps an earlier box of its class, or with `agnostic` of any
 * class, by more than `iou`.
 *
 * The overlap is 1 - sqrt(1 - exp(-d)), where d is the Bhattacharyya distance of the Gaussians: the
 * sum of a term for the centres and of log(r) / 2 for the shapes. So the overlap is above `iou`
 * if d is below a limit; log(r) >= 2 (r - 1) / (r + 1) for r >= 1 saves most logarithms. */
static bool oriented_is_suppressed(struct oriented_boxes *boxes, const struct detection *box,
                                   float iou, bool agnostic)
{
    static const float tiny = 1e-7f; /* as in Ultralytics' batch_probiou() */
    oriented_add(boxes, box);
    const size_t last = boxes->count - 1;
    const float most = -logf(1 + tiny - (1 - iou) * (1 - iou));
    for (size_t i = 0; i < last; i++) {
        const float a = boxes->a[i] + boxes->a[last], b = boxes->b[i] + boxes->b[last];
        const float c = boxes->c[i] + boxes->c[last];
        const float x = boxes->x[last] - boxes->x[i], y = boxes->y[i] - boxes->y[last];
        const float determinant = a * b - c * c;
        const float centres = (a * y * y + b * x * x + 2 * c * x * y) / (determinant + tiny) / 4;
        const float r = determinant / (4 * boxes->root[i] * boxes->root[last] + tiny) + tiny;
        if (((boxes->index[i] != boxes->index[last]) & !agnostic) ||
            !(centres + (r - 1) / (r + 1) < most + 1e-3f))
            continue;
        const float distance = centres + logf(r) / 2;
        const float clipped = distance < tiny ? tiny : distance > 100 ? 100 : distance;
        if (1 - sqrtf(1 - expf(-clipped) + tiny) > iou)
            return true;
    }
    return false;
}

void candidates_suppress(struct candidates *candidates, const struct task_options *options)
{
    struct detections *found = &candidates->found;
    struct detection *items = found->items;
    const size_t all = found->count, most = (size_t)options->max_detections;
    const float iou = options->iou;
    const bool agnostic = options->agnostic > 0;
    struct oriented_boxes oriented;
    size_t kept = 0;
    oriented.count = 0;
    heap_make(items, all, 1);
    /* The heap shrinks at its end. Kept candidates follow the heap in the array, the best last. */
    for (size_t count = all; count > 0 && kept < most; count--) {
        const struct detection best = items[0];
        items[0] = items[count - 1];
        heap_sift(items, count - 1, 0, 1);
        if (iou < 1 && (candidates->is_oriented
                            ? oriented_is_suppressed(&oriented, &best, iou, agnostic)
                            : is_suppressed(items + all - kept, kept, &best, iou, agnostic)))
            continue;
        items[all - 1 - kept++] = best;
    }
    for (size_t i = 0; i < all / 2; i++) {
        const struct detection swapped = items[i];
        items[i] = items[all - 1 - i];
        items[all - 1 - i] = swapped;
    }
    found->count = kept;
}
