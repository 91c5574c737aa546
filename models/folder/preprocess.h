/* Preprocessing of a photo for a model: resize, crop, channel order, normalisation.
 *
 * This folder reads these settings from a model's files (Hugging Face preprocessor_config.json,
 * timm pretrained_cfg …) or takes defaults. server/image/transform.c applies them. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "engine/base/status.h"

/* The first six are Pillow's filters, numbered as in Pillow and in Hugging Face's "resample". */
enum resample {
    RESAMPLE_NEAREST = 0,
    RESAMPLE_LANCZOS = 1,
    RESAMPLE_BILINEAR = 2,
    RESAMPLE_BICUBIC = 3,
    RESAMPLE_BOX = 4,
    RESAMPLE_HAMMING = 5,
    RESAMPLE_LINEAR = 6,  /* OpenCV's INTER_LINEAR: two neighbours per axis, no antialiasing */
    RESAMPLE_BLURRED = 7, /* OWLv2's: torchvision's gaussian_blur(), then two neighbours per axis */
};

enum resize_rule {
    RESIZE_NONE,       /* no resize; a photo smaller than the crop is padded */
    RESIZE_SHORT_SIDE, /* short side to `resize_short`, aspect ratio kept: torchvision.Resize(n) */
    RESIZE_EXACT,      /* to resize_width x resize_height, aspect ratio not kept */
    RESIZE_LETTERBOX,  /* largest size that fits in resize_width x resize_height, aspect ratio kept;
                          the rest is padding, on all sides or right and below */
    RESIZE_BODY, /* VitPose's: warp_affine() centres the photo with its aspect ratio so that the
                    input shows 1.25 times the photo; pixels outside are black. A photo of the
                    input's size does not change */
};

enum channel_order {
    CHANNELS_RGB,
    CHANNELS_BGR,
    CHANNELS_GRAY, /* Pillow's convert("L"): (19595 R + 38470 G + 7471 B + 2^15) >> 16 */
};

struct preprocess {
    bool pads_square; /* before the resize, black pixels on the right or below make the photo a
                         square (OWLv2), and nothing is cropped */
    double first_width, first_height; /* crop first to these shares of the short side; 0: no crop */
    enum resize_rule resize;
    enum resample resample;
    int resize_short;                /* pixels, RESIZE_SHORT_SIDE only */
    int resize_width, resize_height; /* pixels; not for RESIZE_NONE, RESIZE_SHORT_SIDE */
    /* Pixels of the model's input (0: not set yet). After the resize a larger image is cropped to
     * its centre, and a smaller one padded with zeros, as by torchvision.CenterCrop. */
    int width, height;
    bool crop_floors; /* if the margin is odd, the crop begins at int(margin / 2) (Hugging Face's
                         processors), not at round(margin / 2) (torchvision, timm, Ultralytics) */
    enum channel_order channels;
    /* RESIZE_LETTERBOX: */
    int pad_value;        /* 0 … 255 */
    bool pads_normalised; /* the padding is 0 after normalisation, instead of pad_value */
    bool pads_corner;     /* the padding is on the right and below only */
    bool sides_floor;     /* sides of the resized photo are rounded down (YOLOX, Hugging Face's
                             max_height) */
    bool invert;          /* first of all x = 255 - x, so that dark strokes become light */
    float scale;          /* y = (x * scale - mean[c]) / std[c], x in 0 … 255; usually 1/255 */
    float mean[3];        /* by channel, in the order of `channels` */
    float std[3];         /* by channel, in the order of `channels`; never 0 */
};

/* Sets ImageNet's settings: short side 256 bilinear, centre crop 224, RGB, 1/255, mean and std. */
void preprocess_default(struct preprocess *ret);

/* Returns the number of channels: 3, or 1 for CHANNELS_GRAY. */
int preprocess_channels(const struct preprocess *p);

/* Checks that every size is 1 … 16384, that scale and std are finite and not 0, and that they do
 * not make numbers too large for float32. STATUS_INVALID says what is wrong. Settings from files
 * need this check. */
enum status preprocess_check(const struct preprocess *p, struct error *err) MUST_USE;

/* Longest side, in pixels, of a size that a request or a pipeline.json asks for. */
#define MODEL_SIDE_MAX 4096

/* Reads "640x480", a width and height of 1 to MODEL_SIDE_MAX pixels. False for other text. */
bool model_read_size(const char *text, int *ret_width, int *ret_height);

/* Writes a line for people, for `lensd inspect`: "resize short side to 256 (bilinear), centre crop
 * 224 x 224, RGB, x/255, mean …, std …". `size` includes the terminator. */
void preprocess_describe(const struct preprocess *p, char *text, size_t size);
