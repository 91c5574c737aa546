/* Preprocessing of a photo for a model: resize, crop, channel order, normalisation.
 *
 * This is data, read by this folder from a model's files (Hugging Face preprocessor_config.json,
 * timm pretrained_cfg …) or from defaults, and carried out by server/image/transform.c. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "engine/base/status.h"

/* Pillow's filters by the numbers that Pillow and Hugging Face's "resample" use, and one of
 * OpenCV's. */
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
    RESIZE_NONE,       /* pixels as they are; the crop must then find them large enough, or pads */
    RESIZE_SHORT_SIDE, /* short side to `resize_short`, aspect kept: torchvision.Resize(n) */
    RESIZE_EXACT,      /* to resize_width x resize_height, aspect not kept */
    RESIZE_LETTERBOX,  /* largest size that fits in resize_width x resize_height, aspect kept, the
                          rest padded: centred as Ultralytics has it, or in the upper left corner */
    RESIZE_BODY, /* VitPose's: warp_affine() puts the picture, aspect kept, into the middle of the
                    input, so that the input shows 1.25 times the picture; pixels outside are black.
                    A picture of the input's size is not changed */
};

enum channel_order {
    CHANNELS_RGB,
    CHANNELS_BGR,
    CHANNELS_GRAY, /* one, Pillow's convert("L"): (19595 R + 38470 G + 7471 B + 2^15) >> 16 */
};

struct preprocess {
    bool pads_square; /* before the resize, the right or lower side gets black pixels up to a square
                         (OWLv2); nothing is cropped then */
    double first_width, first_height; /* before the resize a centred crop to these shares of the
                                        picture's short side is taken (Perceiver); 0: none */
    enum resize_rule resize;
    enum resample resample;
    int resize_short;                /* pixels, RESIZE_SHORT_SIDE only */
    int resize_width, resize_height; /* pixels, all but NONE and SHORT_SIDE */
    int width, height;               /* pixels the model gets (0: not set yet): after the resize a
                                        centred crop to this size is taken; where the image is
                                        smaller, it is padded with zeros as torchvision.CenterCrop
                                        does */
    bool crop_floors; /* where the middle is half a pixel: the crop begins before it (Hugging Face's
                         processors: int(rest / 2)), instead of at the even pixel (torchvision,
                         timm, Ultralytics: round(rest / 2)) */
    enum channel_order channels;
    /* RESIZE_LETTERBOX: */
    int pad_value;        /* 0 … 255 */
    bool pads_normalised; /* the padding is 0 after normalising, instead of pad_value */
    bool pads_corner;     /* the padding is on the right and below only */
    bool sides_floor;     /* sides are rounded down (YOLOX, max_height of Hugging Face) */
    bool invert;          /* x = 255 - x before anything else: dark strokes on paper for models that
                             learnt light strokes on black (digits) */
    float scale;          /* y = (x * scale - mean[c]) / std[c], x in 0 … 255; 1/255 usually */
    float mean[3];        /* in the order of `channels` */
    float std[3];         /* in the order of `channels`; never 0 */
};

/* ImageNet's: short side 256 bilinear, centre crop 224, RGB, 1/255, the usual mean and std. */
void preprocess_default(struct preprocess *ret);

/* 3, or 1 for CHANNELS_GRAY. */
int preprocess_channels(const struct preprocess *p);

/* STATUS_INVALID, with what is wrong, unless every size is 1 … 16384, std is not 0, numbers are
 * finite. Called on whatever was read from a file. */
enum status preprocess_check(const struct preprocess *p, struct error *err) MUST_USE;

/* Longest side that a model is compiled for. */
#define MODEL_SIDE_MAX 4096

/* Reads "640x480", width and height of 1 to MODEL_SIDE_MAX pixels; false: it is something else. */
bool model_read_size(const char *text, int *ret_width, int *ret_height);

/* Writes a line for people, as `lensd inspect` shows it ("resize short side to 256 (bilinear),
 * centre crop 224 x 224, RGB, x/255, mean …, std …"), at most `size` bytes with its terminator. */
void preprocess_describe(const struct preprocess *p, char *text, size_t size);
