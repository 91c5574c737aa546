/* Runs a Kalman filter for each object, and assigns boxes to objects with the least cost. */
#include "models/tasks/tracker.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A lost object stays for this many frames and one more, as in ByteTrack's own code. */
#define KEPT_FRAMES  30
#define SAME_OVERLAP 0.85 /* overlap at which two objects are one */

/* Costs of a box without an object in the three assignments of a frame. */
#define COST_FIRST  0.8
#define COST_SECOND 0.5
#define COST_UNSURE 0.7
/* Standard deviations of noise as shares of an object's height. */
#define NOISE_PLACE (1.0 / 20)
#define NOISE_SPEED (1.0 / 160)

enum { MIDDLE_X, MIDDLE_Y, HEIGHT, ASPECT, MOTIONS };

/* Rows are boxes. Columns are objects; the column after the last object means "none". */
struct assignment {
    size_t rows, columns;
    struct detection *boxes[TRACKER_BOXES];
    struct tracked_object *objects[TRACKER_OBJECTS];
    double costs[TRACKER_BOXES][TRACKER_OBJECTS + 1];
    double row_prices[TRACKER_BOXES], prices[TRACKER_OBJECTS + 1];
    size_t row_of[TRACKER_OBJECTS + 1]; /* the box of each column; SIZE_MAX: none */
};

static double measured(const struct detection *box, int i)
{
    const float width = box->x2 - box->x1, height = box->y2 - box->y1;
    return (double)(i == MIDDLE_X   ? box->x1 + width / 2
                    : i == MIDDLE_Y ? box->y1 + height / 2
                    : i == HEIGHT   ? height
                                    : width / height);
}

/* Returns the variance of motion i's noise: `aspect` squared for the aspect ratio, otherwise the
 * square of `share` times the height. */
static double noise(int i, double height, double aspect, double share)
{
    return i == ASPECT ? aspect * aspect : share * height * share * height;
}

static void object_begin(struct tracked_object *object, struct detection *box, uint32_t id,
                         uint64_t frame)
{
    const double h = measured(box, HEIGHT);
    *object = (struct tracked_object){
        .id = id, .first = frame, .last = frame, .is_sure = frame == 1, .seen = box};
    for (int i = 0; i < MOTIONS; i++)
        object->motions[i] = (struct motion){.at = measured(box, i),
                                             .place = noise(i, h, 1e-2, 2 * NOISE_PLACE),
                                             .spread = noise(i, h, 1e-5, 10 * NOISE_SPEED)};
}

static void object_predict(struct tracked_object *object, uint64_t frame)
{
    const double h = object->motions[HEIGHT].at;
    if (object->last + 1 < frame)
        object->motions[HEIGHT].speed = 0;
    for (int i = 0; i < MOTIONS; i++) {
        struct motion *m = &object->motions[i];
        m->at += m->speed;
        m->place += 2 * m->both + m->spread + noise(i, h, 1e-2, NOISE_PLACE);
        m->both += m->spread;
        m->spread += noise(i, h, 1e-5, NOISE_SPEED);
    }
}

static void object_see(struct tracked_object *object, struct detection *box, uint64_t frame)
{
    const double h = object->motions[HEIGHT].at;
    for (int i = 0; i < MOTIONS; i++) {
        struct motion *m = &object->motions[i];
        const double sum = m->place + noise(i, h, 1e-1, NOISE_PLACE);
        const double gain = m->place / sum, speed_gain = m->both / sum;
        const double error = measured(box, i) - m->at;
        m->at += gain * error;
        m->speed += speed_gain * error;
        m->spread -= speed_gain * speed_gain * sum;
        m->both -= gain * speed_gain * sum;
        m->place -= gain * gain * sum;
    }
    object->last = frame;
    object->is_sure = true;
    object->seen = box;
    box->track_id = object->id;
}

static void place_all(struct tracker *tracker)
{
    for (size_t i = 0; i < tracker->count; i++) {
        struct tracked_object *object = &tracker->objects[i];
        const struct motion *m = object->motions;
        const double x = m[MIDDLE_X].at, y = m[MIDDLE_Y].at, half = m[HEIGHT].at / 2;
        const double half_width = half * m[ASPECT].at;
        object->box = (struct detection){(float)(x - half_width), (float)(y - half),
                                         (float)(x + half_width), (float)(y + half)};
    }
}

/* Adds `row`, and moves other rows to other columns along a shortest path, so that the sum of costs
 * is least. Prices keep the costs of the path's steps non-negative (Jonker and Volgenant, 1987). */
static void assign_row(struct assignment *a, size_t row)
{
    double least[TRACKER_OBJECTS + 1], way = 0;
    size_t from[TRACKER_OBJECTS + 1], column = SIZE_MAX, at = row;
    bool is_done[TRACKER_OBJECTS + 1] = {false};
    for (size_t c = 0; c <= a->columns; c++)
        least[c] = INFINITY;
    for (size_t next = a->columns;; next = a->columns) {
        for (size_t c = 0; c <= a->columns; c++) {
            const double step = way + a->costs[at][c] - a->row_prices[at] - a->prices[c];
            if (!is_done[c] && step < least[c]) {
                least[c] = step;
                from[c] = column;
            }
            if (!is_done[c] && least[c] < least[next])
                next = c;
        }
        column = next;
        way = least[column];
        at = a->row_of[column];
        if (at == SIZE_MAX)
            break;
        is_done[column] = true;
    }
    a->row_prices[row] += way;
    for (size_t c = 0; c < a->columns; c++)
        if (is_done[c]) {
            a->row_prices[a->row_of[c]] += way - least[c];
            a->prices[c] -= way - least[c];
        }
    for (; column != SIZE_MAX; column = from[column])
        a->row_of[column] = from[column] == SIZE_MAX ? row : a->row_of[from[column]];
    a->row_of[a->columns] = SIZE_MAX; /* any number of rows may take "none" */
}

/* Lists the boxes without an object that have high scores or, if `is_high` is false, low ones. */
static void list_boxes(struct assignment *a, const struct detections *found, bool is_high)
{
    a->rows = 0;
    for (size_t i = 0; i < found->count && i < TRACKER_BOXES; i++) {
        struct detection *box = &found->items[i];
        const float width = box->x2 - box->x1, height = box->y2 - box->y1;
        if (!box->track_id && box->score > TRACKER_LOW && is_high == (box->score >= TRACKER_HIGH) &&
            isfinite(width) && isfinite(height) && width > 0 && height > 0)
            a->boxes[a->rows++] = box;
    }
}

/* Assigns boxes to the objects that are sure, or if `is_sure` is false to the others. `limit` is
 * the cost of "none". Boxes with low scores match only objects that the last frame had. */
static void associate(struct tracker *tracker, struct assignment *a, const struct detections *found,
                      bool is_high, bool is_sure, double limit)
{
    list_boxes(a, found, is_high);
    a->columns = 0;
    for (size_t i = 0; i < tracker->count; i++) {
        struct tracked_object *object = &tracker->objects[i];
        if (object->is_sure == is_sure && !object->seen &&
            (is_high || object->last + 1 == tracker->frame))
            a->objects[a->columns++] = object;
    }
    for (size_t r = 0; r < a->rows; r++) {
        const double factor = is_high ? (double)a->boxes[r]->score : 1;
        for (size_t c = 0; c < a->columns; c++)
            a->costs[r][c] = 1 - detection_overlap(&a->objects[c]->box, a->boxes[r]) * factor;
        a->costs[r][a->columns] = limit;
    }
    memset(a->prices, 0, sizeof a->prices);
    memset(a->row_prices, 0, sizeof a->row_prices);
    memset(a->row_of, 0xFF, sizeof a->row_of);
    for (size_t r = 0; r < a->rows; r++)
        assign_row(a, r);
    for (size_t c = 0; c < a->columns; c++)
        if (a->row_of[c] != SIZE_MAX)
            object_see(a->objects[c], a->boxes[a->row_of[c]], tracker->frame);
}

/* Decides which objects stay, and moves the boxes of this frame to the filters' positions. */
static void settle(struct tracker *tracker, float width, float height)
{
    size_t kept = 0;
    for (size_t i = 0; i < tracker->count; i++) {
        struct tracked_object *lost = &tracker->objects[i];
        if (lost->seen)
            continue;
        const bool stays = lost->is_sure && !lost->is_old;
        lost->is_gone = !stays;
        lost->is_old = tracker->frame - lost->last > KEPT_FRAMES;
        /* Of two objects at one place, the object with the longer track stays. */
        for (size_t k = 0; stays && k < tracker->count; k++) {
            struct tracked_object *other = &tracker->objects[k];
            const bool is_shorter = other->last - other->first > lost->last - lost->first;
            if (other->seen && detection_overlap(&lost->box, &other->box) > SAME_OVERLAP)
                (is_shorter ? lost : other)->is_gone = true;
        }
    }
    for (size_t i = 0; i < tracker->count; i++) {
        struct tracked_object *object = &tracker->objects[i];
        struct detection *box = object->seen;
        const bool stays = !object->is_gone && isfinite(object->box.x2) && isfinite(object->box.y2);
        if (box) {
            box->track_id = stays && object->is_sure ? object->id : 0;
            box->x1 = fminf(fmaxf(object->box.x1, 0), width);
            box->y1 = fminf(fmaxf(object->box.y1, 0), height);
            box->x2 = fminf(fmaxf(object->box.x2, 0), width);
            box->y2 = fminf(fmaxf(object->box.y2, 0), height);
        }
        object->seen = NULL;
        if (stays)
            tracker->objects[kept++] = *object;
    }
    tracker->count = kept;
}

enum status tracker_update(struct tracker *tracker, struct detections *found, float width,
                           float height, float least, struct error *err)
{
    struct assignment *a = malloc(sizeof *a);
    TRY(check_memory(a, "for tracks", err));
    tracker->frame++;
    for (size_t i = 0; i < tracker->count; i++)
        if (tracker->objects[i].is_sure)
            object_predict(&tracker->objects[i], tracker->frame);
    place_all(tracker);
    associate(tracker, a, found, true, true, COST_FIRST);
    associate(tracker, a, found, false, true, COST_SECOND);
    associate(tracker, a, found, true, false, COST_UNSURE);
    list_boxes(a, found, true);
    for (size_t r = 0; r < a->rows && tracker->count < TRACKER_OBJECTS; r++)
        object_begin(&tracker->objects[tracker->count++], a->boxes[r], ++tracker->last_id,
                     tracker->frame);
    free(a);
    place_all(tracker);
    settle(tracker, width, height);
    for (size_t i = 0; i < found->count; i++)
        if (!found->items[i].track_id || !(found->items[i].score > least))
            found->items[i].score = -1;
    detections_drop(found);
    return STATUS_OK;
}
