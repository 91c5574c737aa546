/* Cuts a photo into slices, and merges the boxes found in them. */
#include "models/tasks/slices.h"

#include <math.h>
#include <stdlib.h>

#include "engine/base/size.h"
#include "models/tasks/decoders.h"

#define MATCH 0.5f /* SAHI's default for both rules of enum slices_rule */

static uint32_t least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* Returns the number of slices of `side` pixels along a photo's side. Each slice starts
 * `step` pixels after the slice before, but the last slice ends with the photo. */
static size_t count_along(uint32_t length, uint32_t side, uint32_t step)
{
    return length <= side ? 1 : 1 + (length - side + step - 1) / step;
}

static uint32_t begin_of(size_t i, uint32_t length, uint32_t side, uint32_t step)
{
    return length <= side ? 0 : (uint32_t)least((uint32_t)i * step, length - side);
}

size_t slices_plan(uint32_t width, uint32_t height, uint32_t side, double overlap,
                   struct photo_slice *ret, size_t most)
{
    const uint32_t shared = (uint32_t)(overlap * side);
    const uint32_t step = side > shared ? side - shared : 1;
    const size_t columns = count_along(width, side, step), rows = count_along(height, side, step);
    for (size_t i = 0; i < columns * rows && i < most; i++)
        ret[i] = (struct photo_slice){.x = begin_of(i % columns, width, side, step),
                                      .y = begin_of(i / columns, height, side, step),
                                      .width = least(side, width),
                                      .height = least(side, height)};
    return columns * rows;
}

/* Equal scores are sorted by corners, as in SAHI. */
static int compare_boxes(const void *left, const void *right)
{
    const struct detection *a = left, *b = right;
    const float a_keys[] = {-a->score, a->x1, a->y1, a->x2, a->y2};
    const float b_keys[] = {-b->score, b->x1, b->y1, b->x2, b->y2};
    for (size_t i = 0; i < COUNT_OF(a_keys); i++)
        if (a_keys[i] < b_keys[i] || a_keys[i] > b_keys[i])
            return a_keys[i] < b_keys[i] ? -1 : 1;
    return a->place < b->place ? -1 : a->place > b->place;
}

static bool matches(const struct detection *a, const struct detection *b, enum slices_rule rule)
{
    const float width = fminf(a->x2, b->x2) - fmaxf(a->x1, b->x1);
    const float height = fminf(a->y2, b->y2) - fmaxf(a->y1, b->y1);
    const float shared = fmaxf(width, 0) * fmaxf(height, 0);
    const float of = rule == SLICES_GREEDY_NMM ? fminf(detection_area(a), detection_area(b))
                                               : detection_area(a) + detection_area(b) - shared;
    return shared / of >= MATCH; /* false for two empty boxes, whose overlap is NaN */
}

static void unite(struct detection *box, const struct detection *other)
{
    box->x1 = fminf(box->x1, other->x1);
    box->y1 = fminf(box->y1, other->y1);
    box->x2 = fmaxf(box->x2, other->x2);
    box->y2 = fmaxf(box->y2, other->y2);
}

/* Merges box i with its matches, as SAHI does. Drops the boxes that match the original box i. With
 * SLICES_GREEDY_NMM, a dropped box that also matches the merged box extends the merged box. */
static void absorb(struct detection *boxes, size_t count, size_t i, enum slices_rule rule,
                   bool agnostic)
{
    const struct detection as_found = boxes[i];
    for (size_t k = i + 1; k < count; k++) {
        if (boxes[k].score < 0 || (boxes[k].index != as_found.index && !agnostic) ||
            !matches(&as_found, &boxes[k], rule))
            continue;
        boxes[k].score = -1;
        if (rule == SLICES_GREEDY_NMM && matches(&boxes[i], &boxes[k], rule))
            unite(&boxes[i], &boxes[k]);
    }
}

enum status slices_merge(const struct detections *const *parts, const struct photo_slice *slices,
                         size_t count, enum slices_rule rule, bool agnostic, size_t most,
                         struct detections *ret, struct error *err)
{
    size_t all = 0, used = 0, kept = 0;
    for (size_t i = 0; i < count; i++)
        all += parts[i]->count;
    struct detection *boxes = alloc_array(all + 1, sizeof *boxes);
    TRY(check_memory(boxes, "for the boxes of slices", err));
    for (size_t i = 0; i < count; i++)
        for (size_t k = 0; k < parts[i]->count; k++) {
            struct detection *box = &boxes[used];
            *box = parts[i]->items[k];
            box->x1 += (float)slices[i].x;
            box->x2 += (float)slices[i].x;
            box->y1 += (float)slices[i].y;
            box->y2 += (float)slices[i].y;
            box->place = (uint32_t)used++;
            box->mask = (struct segment){0};
        }
    qsort(boxes, all, sizeof *boxes, compare_boxes);
    all = all < DETECT_MAX_CANDIDATES ? all : DETECT_MAX_CANDIDATES;
    for (size_t i = 0; i < all && kept < most; i++) {
        if (boxes[i].score < 0) /* absorb() has dropped it */
            continue;
        absorb(boxes, all, i, rule, agnostic);
        boxes[kept++] = boxes[i];
    }
    *ret = (struct detections){.items = boxes, .count = kept, .capacity = all};
    return STATUS_OK;
}
