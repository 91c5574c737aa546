/* Converts masks from COCO's compressed run lengths (struct segment) to runs, bitmaps or polygons.
 * Pure; any thread. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/status.h"

/* The form of masks in an answer. */
enum mask_form {
    MASK_FORM_NONE, /* not given */
    MASK_FORM_RLE,
    MASK_FORM_POLYGON,
    MASK_FORM_PNG,
};

/* A position in a text of COCO's run lengths. Initialise with {.at = text}. */
struct mask_reader {
    const char *at;
    int64_t counts[2]; /* the last two run lengths, the latest first */
    size_t read;
};

/* Reads the next run. Runs lie alternately outside and inside the mask, column by column. Returns
 * false at the end, or if the text is not valid run lengths. */
bool mask_next(struct mask_reader *reader, uint32_t *ret_length, bool *ret_is_inside);

/* The bounding rectangle of a mask's pixels, as a bitmap. */
struct mask_bitmap {
    uint32_t left, top, width, height; /* pixels of the photo */
    uint8_t *pixels;                   /* row by row, one byte per pixel: 1 inside, 0 outside */
};

/* Makes the bitmap of a mask in a photo of `height` pixels. An empty mask has no pixels. The caller
 * frees ret->pixels. STATUS_NO_MEMORY. */
enum status mask_bitmap_of(const char *counts, uint32_t height, struct mask_bitmap *ret,
                           struct error *err) MUST_USE;

/* Outlines of the parts of a mask. Zeroed: empty. Free `points` and `ends`. */
struct mask_polygons {
    uint32_t *points; /* x, y, x, y … in pixels from the photo's upper left corner */
    size_t count;     /* numbers in `points` */
    size_t *ends;     /* for each polygon, the end of its numbers in `points` */
    size_t polygons;
};

/* An edge of an outline, between a pixel inside the mask on its right and a pixel outside on its
 * left. It begins at the upper left corner of pixel (x, y) and leads to the right (`heading` 0),
 * down (1), to the left (2) or up (3). */
struct mask_edge {
    int64_t x, y;
    int heading;
};

/* True if an outline begins at the upper edge of pixel (x, y), and was not followed yet. */
static inline bool mask_begins(const struct mask_bitmap *bitmap, uint32_t x, uint32_t y)
{
    const uint8_t *pixel = bitmap->pixels + (size_t)y * bitmap->width + x;
    return *pixel == 1 && (y == 0 || !*(pixel - bitmap->width));
}

/* Moves to the outline's next edge, clockwise around a part or counter-clockwise around a hole, and
 * marks the upper edges of pixels as followed. With `joins_corners` pixels that touch only at a
 * corner belong to the same part. Returns true if the outline turns. */
bool mask_next_edge(struct mask_bitmap *bitmap, bool joins_corners, struct mask_edge *edge);

/* Makes clockwise outlines, within 0.75 pixels of the exact outlines. Pixels that touch only at a
 * corner belong to different parts; holes are omitted. Marks pixels of the bitmap, so a bitmap can
 * be used only once. *ret must be zeroed; the caller frees it, also after an error.
 * STATUS_NO_MEMORY. */
enum status mask_polygons_of(struct mask_bitmap *bitmap, struct mask_polygons *ret,
                             struct error *err) MUST_USE;
