/* Size and position of the resized photo in a model's input, by the rules of the training
 * frameworks. Pure. */
#pragma once

#include <math.h>
#include <stdint.h>

#include "models/folder/preprocess.h"

/* The position of the resized photo in the model's input, in pixels from the input's upper left
 * corner, x to the right, y down. left and top are negative if the crop cuts off pixels there. */
struct crop_frame {
    int resized_width, resized_height;
    int left, top; /* of the resized photo */
    /* The canvas: the photo with its letterbox, which is filled with pad_value, or the photo alone
     * in modes without a letterbox. Pixels of the input outside the canvas are zero. */
    int canvas_width, canvas_height, canvas_left, canvas_top;
    double map[6]; /* for RESIZE_BODY; identity if the photo has the input's size */
};

/* Computes the frame of an upright picture of `width` x `height` pixels, 1 … 2^24 each.
 * STATUS_TOO_LARGE: a resized side would exceed 65535. */
enum status frame_of(const struct preprocess *p, uint32_t width, uint32_t height,
                     struct crop_frame *ret, struct error *err) MUST_USE;

/* VitPose's padding_factor. */
#define BODY_PADDING 1.25

/* For RESIZE_BODY: writes the map for warp_affine() that takes a pixel of the model's input to its
 * place in a photo or box of `width` x `height` pixels. */
static inline void frame_body(const struct preprocess *p, double width, double height,
                              double map[static 6])
{
    const double aspect = (double)p->width / p->height;
    const double across = fmax(width, height * aspect) * BODY_PADDING;
    const double down = fmax(height, width / aspect) * BODY_PADDING;
    map[0] = across / fmax(1, p->width - 1);
    map[4] = down / fmax(1, p->height - 1);
    map[1] = map[3] = 0;
    map[2] = (width - across) / 2;
    map[5] = (height - down) / 2;
}

/* The part of an upright photo that is resized: all of it, or a centred crop of first_width by
 * first_height (in struct preprocess; fractions of the short side). At least one pixel. */
struct source_frame {
    uint32_t left, top, width, height; /* pixels */
};
struct source_frame frame_source(const struct preprocess *p, uint32_t width, uint32_t height);

/* Finds the columns [*ret_begin, *ret_end) that `p` reads of a photo which has `width` x `height`
 * pixels in the file, before it is turned upright. All columns if frame_of() fails. */
void frame_columns(const struct preprocess *p, uint32_t width, uint32_t height, int orientation,
                   uint32_t *ret_begin, uint32_t *ret_end);
