/* Limits on a picture's size, which every reader checks on the header before it decodes. */
#include <inttypes.h>

#include "server/image/decode.h"

enum status limits_check(const char *name, uint64_t width, uint64_t height,
                         const struct image_limits *limits, struct error *err)
{
    if (width == 0 || height == 0)
        return error_set(err, STATUS_BAD_IMAGE,
                         "the %s header says %" PRIu64 " x %" PRIu64
                         " pixels, which is not possible; send an intact file",
                         name, width, height);
    uint64_t side = width > height ? width : height;
    if (limits->max_side && side > limits->max_side)
        return error_set(err, STATUS_TOO_LARGE,
                         "the %s is %" PRIu64 " x %" PRIu64
                         " pixels, but a side may have at most %" PRIu32
                         " (--max-side); send a smaller picture",
                         name, width, height, limits->max_side);
    /* Both sides are below 2^32, so the product fits. */
    if (limits->max_pixels && width * height > limits->max_pixels)
        return error_set(err, STATUS_TOO_LARGE,
                         "the %s is %" PRIu64 " x %" PRIu64 " = %" PRIu64
                         " pixels, but at most %" PRIu64
                         " are allowed (--max-pixels); send a smaller picture",
                         name, width, height, width * height, limits->max_pixels);
    return STATUS_OK;
}
