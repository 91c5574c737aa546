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
    for (size_t i = 0; i < detections->count; i++)
        free(detections->items[i].mask.counts);
    FREE_ALL(detections->items, detections->points);
    *detections = (struct detections){0};
}

void detections_drop(struct detections *found)
{
    const size_t all = found->count, points = found->point_count;
    found->count = 0;
    for (size_t i = 0, to = 0; i < all; i++, to = found->count) {
        found->count += found->items[i].score >= 0;
        if (to == found->count)
            free(found->items[i].mask.counts);
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

static int by_rank(const void *a, const void *b)
{
    const struct detection *left = a, *right = b;
    if (left->score < right->score || left->score > right->score)
        return left->score > right->score ? -1 : 1;
    return left->place < right->place ? -1 : left->place > right->place;
}

/* Sorts the candidates, best first, and drops candidates beyond the limit. */
static void candidates_sort(struct candidates *candidates)
{
    struct detections *found = &candidates->found;
    const size_t most = candidates->is_oriented ? DETECT_MAX_ORIENTED : DETECT_MAX_CANDIDATES;
    if (found->count)
        qsort(found->items, found->count, sizeof *found->items, by_rank);
    if (found->count < most)
        return;
    found->count = most;
    candidates->least = found->items[most - 1];
}

void candidates_add(struct candidates *candidates, struct detection box, float score, size_t index,
                    size_t place)
{
    struct detections *found = &candidates->found;
    const struct task_words *words = candidates->options->words;
    box.score = score;
    /* A model may have places for more words than the request; word 0 fills them. */
    box.index = words && index >= words->count ? 0 : (uint32_t)index;
    box.place = (uint32_t)place;
    if (!(score > candidates->options->confidence) || by_rank(&box, &candidates->least) > 0 ||
        !isfinite(score) || !isfinite(box.angle) || !isfinite(box.x1) || !isfinite(box.y1) ||
        !isfinite(box.x2) || !isfinite(box.y2) ||
        !task_option_wants(candidates->options, box.index))
        return;
    if (found->count == 2 * DETECT_MAX_CANDIDATES)
        candidates_sort(candidates);
    if (!array_reserve(&found->items, &found->capacity, found->count + 1, sizeof *found->items))
        candidates->is_out_of_memory = true;
    else
        found->items[found->count++] = box;
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
    const size_t most = (size_t)options->max_detections;
    const float iou = options->iou;
    const bool agnostic = options->agnostic > 0;
    struct oriented_boxes oriented;
    size_t kept = 0;
    oriented.count = 0;
    candidates_sort(candidates);
    for (size_t i = 0; i < found->count && kept < most; i++)
        if (!(iou < 1) ||
            !(candidates->is_oriented ? oriented_is_suppressed(&oriented, &items[i], iou, agnostic)
                                      : is_suppressed(items, kept, &items[i], iou, agnostic)))
            items[kept++] = items[i];
    found->count = kept;
}
