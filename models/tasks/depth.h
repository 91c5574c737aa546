/* Reads a depth map, and interpolates it to the pixels of the photo. Pure; any thread. */
#pragma once

#include "models/tasks/detect.h"

/* The map from the model. Zeroed: empty. Free with depth_done(). */
struct depth {
    float *values; /* [height, width], finite */
    uint32_t width, height;
    struct task_geometry geometry;
};

void depth_done(struct depth *depth);

/* Copies the map of one image, [height, width] or [1, height, width]. On success the caller frees
 * *ret. STATUS_INVALID if the row is not a map; STATUS_NUMERIC if a number is NaN or infinite;
 * STATUS_NO_MEMORY. */
enum status depth_decode(const struct task_rows *row, const struct task_geometry *geometry,
                         struct depth *ret, struct error *err) MUST_USE;

/* Interpolates the map to the photo's pixels like torch.nn.functional.interpolate with "bicubic"
 * and align_corners=False. This is slow for large photos. In *ret, 0 is the lowest depth
 * (*ret_least) and 65535 the highest (*ret_greatest). *ret is [photo height, photo width]; the
 * caller frees it. STATUS_NO_MEMORY. */
enum status depth_render(const struct depth *depth, uint16_t **ret, float *ret_least,
                         float *ret_greatest, struct error *err) MUST_USE;
