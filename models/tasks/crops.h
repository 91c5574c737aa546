/* Cuts out a detector's boxes for a pipeline's next model. Pure; any thread. */
#pragma once

#include "models/tasks/detect.h"

/* A part of a photo, in pixels of the upright photo. */
struct crop {
    bool is_warped;
    uint32_t x, y;          /* if not is_warped: the upper left corner */
    uint32_t width, height; /* of the crop, before it is turned */
    float corners[4][2];    /* if is_warped: the photo's points for the crop's corners top left,
                               top right, bottom right, bottom left; may lie outside the photo */
    bool is_turned;         /* after the warp, turn by 90 degrees counter-clockwise */
    bool is_aligned;        /* if is_warped: `map` replaces `corners` */
    double map[6]; /* (x, y) of the crop is (map[0] x + map[1] y + map[2], map[3] x + …) */
};

/* Positions of a box's points in its crop. */
#define ALIGN_POINTS_MAX 16
struct align_template {
    int width, height; /* of the crop */
    size_t count;
    float points[ALIGN_POINTS_MAX][2]; /* x, y in pixels of the crop */
};

/* Computes the crop of item `box` by Umeyama's similarity transform (without reflection). It moves
 * the box's points to those of `to`, with the least sum of squared distances. STATUS_INVALID if the
 * box has another number of points, or all points are equal. */
enum status crop_align(const struct detections *found, size_t box, const struct align_template *to,
                       struct crop *ret, struct error *err) MUST_USE;

/* Computes the crop of item `box`, enlarged on each side by the share `margin` (0 … 1) of its width
 * or height. A box without an angle is cut out along whole pixels and clipped to the photo of
 * `width` x `height`. A box with an angle is rectified. A line of text is rectified as in PP-OCR's
 * get_rotate_crop_image(): its corners lie on whole pixels of the photo, and it is turned if it is
 * at least 1.5 times as high as wide. STATUS_INVALID if no pixel is left, or if the crop is many
 * times as large as the photo. */
enum status crop_of(enum task_kind kind, const struct detections *found, size_t box, double margin,
                    uint32_t width, uint32_t height, struct crop *ret, struct error *err) MUST_USE;

/* Keeps at most `most` of the boxes whose `wanted` flag is set: those with the best scores. */
void crops_limit(const struct detections *found, bool *wanted, size_t most);

/* Puts lines of text in reading order, as PP-OCR does: from top to bottom by their first corner. A
 * line whose first corner is less than 10 pixels below the previous line's is in the same row;
 * a row is read from left to right. STATUS_NO_MEMORY. */
enum status text_reading_order(struct detections *found, struct error *err) MUST_USE;
