/* Converts pixels to a model's input: resize, centre crop, channel order, normalisation, in one
 * pass into the slot of a batch.
 *
 * The resize is Pillow's (Image.resize with reducing_gap None): separable, antialiased, with
 * Pillow's 8-bit fixed-point numbers between the passes. So a model sees the pixels of its
 * training: the largest difference is 1/255, the mean at most 0.05/255. RESAMPLE_LINEAR is OpenCV's
 * cv::resize() on bytes, bit for bit. Only rows and columns that the crop keeps are computed. */
#pragma once

#include "engine/tensor/tensor.h"
#include "models/folder/preprocess.h"
#include "server/image/image.h"

struct transform; /* filter tables and row buffers of one worker; used by one thread at a time */

/* NULL when out of memory. Free with transform_free (accepts NULL). */
struct transform *transform_create(void);
void transform_free(struct transform *transform);

/* Writes the model's input to dst: [height, width, channels] of `p`, contiguous (one image of an
 * NHWC batch). `p` has passed preprocess_check(). STATUS_NO_MEMORY; STATUS_TOO_LARGE if a resized
 * side would exceed 65535. After a failure dst is undefined. */
enum status transform_numbers(struct transform *transform, const struct image *image,
                              const struct preprocess *p, float *dst, struct error *err) MUST_USE;

/* The two steps of transform_numbers(), for devices that do the second step themselves.
 * transform_bytes() resizes and crops to dst: [height, width, channels] uint8; three channels are
 * always in RGB order. transform_table() sets table[c][x] to the number for byte x in the model's
 * channel c. The two steps give the numbers of transform_numbers() bit for bit, except if
 * preprocess.pads_normalised is set: no byte stands for a 0 after normalisation. */
enum status transform_bytes(struct transform *transform, const struct image *image,
                            const struct preprocess *p, uint8_t *dst, struct error *err) MUST_USE;
void transform_table(const struct preprocess *p, float table[static 3][256]);
