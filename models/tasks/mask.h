/* Reads masks from COCO's compressed run lengths (struct segment): as runs, as a bitmap, as
 * polygons. Pure; any thread. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/status.h"

/* How masks are written in an answer. */
enum mask_form {
    MASK_FORM_NONE, /* not given */
    MASK_FORM_RLE,
    MASK_FORM_POLYGON,
    MASK_FORM_PNG,
};

/* A position in a text of counts. Begins as {text}. */
struct mask_reader {
    const char *at;
    int64_t counts[2]; /* the last one, and the one before */
    size_t read;
};

/* The next run: pixels outside and inside the mask in turn, column by column. False at the end, or
 * if the text is not valid run lengths. */
bool mask_next(struct mask_reader *reader, uint32_t *ret_length, bool *ret_is_inside);

/* The part of a mask around its pixels. */
struct mask_bitmap {
    uint32_t left, top, width, height; /* pixels of the photo */
    uint8_t *pixels;                   /* row by row, a byte a pixel: 1 inside, 0 outside */
};

/* Makes the bitmap of a mask in a photo of `height` pixels. An empty mask has no pixels. The caller
 * frees ret->pixels. STATUS_NO_MEMORY. */
enum status mask_bitmap_of(const char *counts, uint32_t height, struct mask_bitmap *ret,
                           struct error *err) MUST_USE;

/* Outlines of the parts of a mask. Zeroed: none. Free with mask_polygons_done. */
struct mask_polygons {
    uint32_t *points; /* x, y, x, y … in pixels of the photo, from the left upper corner */
    size_t count;     /* numbers in `points` */
    size_t *ends;     /* for each polygon where its points end */
    size_t polygons;
};

/* Clockwise outlines, within 0.75 pixels of the mask's own; pixels that touch at a corner are
 * different parts; holes are left out. *ret is the caller's after a success. STATUS_NO_MEMORY. */
enum status mask_polygons_of(struct mask_bitmap *bitmap, struct mask_polygons *ret,
                             struct error *err) MUST_USE;
void mask_polygons_done(struct mask_polygons *polygons);
