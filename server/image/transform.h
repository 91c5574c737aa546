/* From pixels to the numbers a model wants: resize, centre crop, channel order, normalise, in one
 * pass into the slot of a batch, as the session's first layer reads them.
 *
 * The resize is Pillow's (Image.resize with reducing_gap None): separable, antialiased, fixed-point
 * 8 bit intermediate as Pillow's Resample.c does it, so that a model sees what it saw in training:
 * greatest difference 1/255, mean at most 0.05/255. RESAMPLE_LINEAR is OpenCV's cv::resize() on
 * bytes, to the bit. Only the rows and columns that the crop keeps are computed. */
#pragma once

#include "engine/tensor/image_numbers.h"
#include "models/folder/preprocess.h"
#include "server/image/image.h"

struct transform; /* filter tables and row buffers of one worker; used by one thread at a time */

/* NULL when out of memory. Free with transform_free (NULL is fine). */
struct transform *transform_create(void);
void transform_free(struct transform *transform);

/* dst: [height, width, channels] float32 of `p`, contiguous (one image of an NHWC batch), fully
 * written on success. `p` has passed preprocess_check(). Errors: STATUS_NO_MEMORY; STATUS_TOO_LARGE
 * when the resized side would pass 65535. dst's content is undefined after a failure. */
enum status transform_apply(struct transform *transform, const struct image *image,
                            const struct preprocess *p, float *dst, struct error *err) MUST_USE;

/* The same in the numbers that a session reads (session_info.image), to the bit what
 * image_numbers_write() makes of the floats: there are 256 of them a channel, so it costs no pass
 * of its own. dst: [height, width, channels] of as->dtype. */
enum status transform_numbers(struct transform *transform, const struct image *image,
                              const struct preprocess *p, const struct image_numbers *as, void *dst,
                              struct error *err) MUST_USE;

/* The same in two halves, for devices that do the second: bytes, [height, width, channels] uint8 of
 * which three are RGB whatever the model's order, and what the byte x of the model's channel c
 * becomes, table[c][x]. Together they equal transform_apply() to the bit, unless
 * preprocess.pads_normalised is set: no byte represents that padding. */
enum status transform_bytes(struct transform *transform, const struct image *image,
                            const struct preprocess *p, uint8_t *dst, struct error *err) MUST_USE;
void transform_table(const struct preprocess *p, float table[static 3][256]);

/* The same without normalisation and channel order, for tests and tools: Pillow-exact RGB bytes,
 * dst: [height, width, 3] uint8. */
enum status transform_pixels(struct transform *transform, const struct image *image,
                             const struct preprocess *p, uint8_t *dst, struct error *err) MUST_USE;
