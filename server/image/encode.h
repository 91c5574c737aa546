/* Writes photos as JPEG (libjpeg-turbo) and PNG (libpng). Any thread. */
#pragma once

#include "engine/base/status.h"
#include "server/image/draw.h"

/* Encodes a canvas. On success the caller frees *ret. STATUS_TOO_LARGE: a side is longer than the
 * 65,500 pixels of a JPEG. STATUS_INTERNAL: libjpeg failed; *err has its message. */
enum status image_encode_jpeg(const struct canvas *canvas, uint8_t **ret, size_t *ret_size,
                              struct error *err) MUST_USE;

enum png_kind {
    PNG_KIND_RGB8,
    PNG_KIND_GREY1,  /* one byte per pixel in memory, 0 or 1; one bit in the file */
    PNG_KIND_GREY16, /* two bytes per pixel, in the machine's byte order */
};

/* Encodes contiguous rows of pixels of this kind. On success the caller frees *ret.
 * STATUS_INTERNAL: libpng failed; *err has its message. */
enum status image_encode_png(enum png_kind kind, const void *pixels, uint32_t width,
                             uint32_t height, uint8_t **ret, size_t *ret_size,
                             struct error *err) MUST_USE;
