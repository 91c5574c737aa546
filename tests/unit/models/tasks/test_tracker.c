/* Tracks of a made-up scene are those that Ultralytics' ByteTrack finds
 * (tests/data/make_tracks.py). */
#include <cjson/cJSON.h>
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>

#include "engine/base/file.h"
#include "engine/base/size.h"
#include "models/tasks/tracker.h"

#define SIDE 240

static double at(const cJSON *row, int i)
{
    return cJSON_GetArrayItem(row, i)->valuedouble;
}

/* Numbers the boxes in their members `place`. */
static struct detections copy_boxes(const struct detection *boxes, size_t count)
{
    struct detections found = {.items = alloc_array(count + 1, sizeof *found.items),
                               .count = count};
    for (size_t i = 0; i < count; i++) {
        found.items[i] = boxes[i];
        found.items[i].place = (uint32_t)i;
    }
    return found;
}

static struct detections follow(struct tracker *tracker, const struct detection *boxes,
                                size_t count)
{
    struct detections found = copy_boxes(boxes, count);
    struct error err;
    cr_assert_eq(tracker_update(tracker, &found, SIDE, SIDE, -1, &err), STATUS_OK);
    return found;
}

Test(tracker, follows_objects_as_the_reference_does)
{
    struct tracker *tracker = calloc(1, sizeof *tracker);
    struct detection boxes[TRACKER_BOXES];
    size_t size, tracks = 0, again = 0;
    uint8_t *text;
    struct error err;
    cr_assert_eq(
        file_read(LENSD_SOURCE_ROOT "/tests/data/tracks.json", 1 << 20, &text, &size, &err),
        STATUS_OK);
    cJSON *frames = cJSON_ParseWithLength((char *)text, size);
    cr_assert_geq(cJSON_GetArraySize(frames), 120);
    const cJSON *frame, *row;
    cJSON_ArrayForEach(frame, frames)
    {
        size_t count = 0, place = 0;
        cJSON_ArrayForEach(row, cJSON_GetObjectItem(frame, "boxes"))
        {
            cr_assert_lt(count, COUNT_OF(boxes));
            boxes[count++] = (struct detection){(float)at(row, 0),
                                                (float)at(row, 1),
                                                (float)at(row, 2),
                                                (float)at(row, 3),
                                                .score = (float)at(row, 4) / 255,
                                                .index = (uint32_t)at(row, 5)};
        }
        struct detections found = follow(tracker, boxes, count);
        const cJSON *wanted = cJSON_GetObjectItem(frame, "tracks");
        cr_assert_eq((int)found.count, cJSON_GetArraySize(wanted), "frame %lu", tracker->frame);
        cJSON_ArrayForEach(row, wanted)
        {
            for (place = 0; place < found.count; place++)
                if (found.items[place].place == (uint32_t)at(row, 0))
                    break;
            cr_assert_lt(place, found.count, "frame %lu has no box %g", tracker->frame, at(row, 0));
            const struct detection *box = &found.items[place];
            const float corners[] = {box->x1, box->y1, box->x2, box->y2};
            cr_expect_eq(box->track_id, (uint32_t)at(row, 1), "frame %lu, box %g: %u, not %g",
                         tracker->frame, at(row, 0), box->track_id, at(row, 1));
            cr_expect_eq(box->index, boxes[box->place].index);
            cr_expect_float_eq(box->score, boxes[box->place].score, 0);
            for (int i = 0; i < 4; i++)
                cr_expect_float_eq(corners[i], (float)fmin(fmax(at(row, 2 + i), 0), SIDE), 0.05f,
                                   "frame %lu, track %u: %g, not %g", tracker->frame, box->track_id,
                                   (double)corners[i], at(row, 2 + i));
            tracks = box->track_id > tracks ? box->track_id : tracks;
            again++;
        }
        detections_done(&found);
    }
    cr_expect_geq(tracks, 12);
    cr_expect_geq(again, 800);
    cJSON_Delete(frames);
    free(text);
    free(tracker);
}

/* A box that begins a track. */
static struct detection box_at(float x, float y)
{
    return (struct detection){x, y, x + 20, y + 20, .score = .9f};
}

Test(tracker, boxes_that_are_none_are_passed_over)
{
    struct tracker *tracker = calloc(1, sizeof *tracker);
    const struct detection boxes[] = {{NAN, 0, 10, 10, .score = .9f},
                                      {0, -INFINITY, 10, 10, .score = .9f},
                                      {-INFINITY, 0, INFINITY, 10, .score = .9f},
                                      {0, 0, 1e38f, 1e38f, .score = .9f},
                                      {5, 5, 5, 9, .score = .9f},
                                      {9, 5, 5, 9, .score = .9f},
                                      {0, 0, 10, 10, .score = NAN},
                                      {0, 0, 10, 10, .score = .2f},
                                      box_at(100, 100)};
    for (int frame = 0; frame < 40; frame++) {
        struct detections found = follow(tracker, boxes, COUNT_OF(boxes));
        for (size_t i = 0; i < found.count; i++)
            cr_expect(found.items[i].x1 >= 0 && found.items[i].x2 <= SIDE, "box %u",
                      found.items[i].place);
        cr_assert_geq(found.count, 1);
        cr_expect_eq(found.items[found.count - 1].place, COUNT_OF(boxes) - 1);
        cr_expect_leq(found.count, 2, "the large one is finite");
        detections_done(&found);
    }
    free(tracker);
}

Test(tracker, points_and_masks_go_with_their_boxes)
{
    struct tracker *tracker = calloc(1, sizeof *tracker);
    const struct detection boxes[] = {box_at(10, 10), box_at(110, 10), box_at(210, 10)};
    struct detections first = follow(tracker, &boxes[1], 1);
    struct detections found = copy_boxes(boxes, 3);
    struct error err;
    found.point_count = 2;
    found.points = alloc_array(6, sizeof *found.points);
    for (size_t i = 0; i < 3; i++) {
        found.items[i].mask = (struct segment){.area = i, .counts = strdup("0")};
        for (size_t p = 0; p < 2; p++)
            found.points[2 * i + p] = (struct task_point){(float)i, (float)p, 1};
    }
    cr_assert_eq(tracker_update(tracker, &found, SIDE, SIDE, -1, &err), STATUS_OK);
    cr_assert_eq(found.count, 1, "the others are new");
    cr_expect_eq(found.items[0].place, 1);
    cr_expect_eq(found.items[0].mask.area, 1);
    cr_expect_float_eq(found.points[0].x, 1, 0);
    cr_expect_float_eq(found.points[1].y, 1, 0);
    detections_done(&found);
    detections_done(&first);
    free(tracker);
}

Test(tracker, a_confidence_cuts_answers_and_not_tracks)
{
    struct tracker *tracker = calloc(1, sizeof *tracker);
    struct error err;
    for (int frame = 0; frame < 9; frame++) {
        struct detection box = box_at(50 + (float)frame, 50);
        box.score = frame % 3 == 1 ? .15f : .9f;
        struct detections found = copy_boxes(&box, 1);
        cr_assert_eq(tracker_update(tracker, &found, SIDE, SIDE, .5f, &err), STATUS_OK);
        cr_assert_eq(found.count, frame % 3 != 1, "frame %d", frame);
        cr_expect(!found.count || found.items[0].track_id == 1);
        detections_done(&found);
    }
    free(tracker);
}

Test(tracker, more_boxes_and_objects_than_there_is_room_for)
{
    enum { MANY = TRACKER_BOXES + 50 };
    struct tracker *tracker = calloc(1, sizeof *tracker);
    struct detection *boxes = alloc_array(MANY, sizeof *boxes);
    for (int frame = 0; frame < 6; frame++) {
        /* The same objects twice, then others: the lost ones keep their places. */
        for (size_t i = 0; i < MANY; i++)
            boxes[i] = (struct detection){
                (float)(i % 20 * 100), (float)(i / 20 * 100 + (size_t)frame / 2 * 10000),
                (float)(i % 20 * 100 + 50), (float)(i / 20 * 100 + (size_t)frame / 2 * 10000 + 50),
                .score = .9f};
        struct detections found = copy_boxes(boxes, MANY);
        struct error err;
        cr_assert_eq(tracker_update(tracker, &found, 4000, 40000, -1, &err), STATUS_OK);
        const size_t wanted[] = {
            TRACKER_BOXES, TRACKER_BOXES, 0, TRACKER_OBJECTS - TRACKER_BOXES, 0, 0};
        cr_expect_eq(found.count, wanted[frame], "frame %d: %zu", frame, found.count);
        cr_expect_leq(tracker->count, TRACKER_OBJECTS);
        detections_done(&found);
    }
    free(boxes);
    free(tracker);
}
