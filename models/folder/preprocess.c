/* Preprocessing as data: its defaults, the checks of its values, a description in one line. */
#include "models/folder/preprocess.h"

#include <math.h>
#include <stdlib.h>

#include "engine/base/text.h"

enum { SIDE_MAX = 16384 };

static const char *const resample_names[] = {
    [RESAMPLE_NEAREST] = "nearest",
    [RESAMPLE_LANCZOS] = "Lanczos",
    [RESAMPLE_BILINEAR] = "bilinear",
    [RESAMPLE_BICUBIC] = "bicubic",
    [RESAMPLE_BOX] = "box",
    [RESAMPLE_HAMMING] = "Hamming",
    [RESAMPLE_LINEAR] = "linear, not antialiased",
    [RESAMPLE_BLURRED] = "linear, blurred before",
};

void preprocess_default(struct preprocess *ret)
{
    *ret = (struct preprocess){
        .resize = RESIZE_SHORT_SIDE,
        .resample = RESAMPLE_BILINEAR,
        .resize_short = 256,
        .width = 224,
        .height = 224,
        .channels = CHANNELS_RGB,
        .pad_value = 114,
        .scale = 1.0f / 255.0f,
        .mean = {0.485f, 0.456f, 0.406f},
        .std = {0.229f, 0.224f, 0.225f},
    };
}

int preprocess_channels(const struct preprocess *p)
{
    return p->channels == CHANNELS_GRAY ? 1 : 3;
}

static enum status check_side(const char *name, int value, struct error *err)
{
    if (value >= 1 && value <= SIDE_MAX)
        return STATUS_OK;
    return error_set(err, STATUS_INVALID, "preprocessing: %s is %d, but must be 1 … %d pixels",
                     name, value, SIDE_MAX);
}

static enum status check_sizes(const struct preprocess *p, struct error *err)
{
    TRY(check_side("the model's input width", p->width, err));
    TRY(check_side("the model's input height", p->height, err));
    if (p->resize == RESIZE_NONE)
        return STATUS_OK;
    if (p->resize == RESIZE_SHORT_SIDE)
        return check_side("the short side to resize to", p->resize_short, err);
    TRY(check_side("the width to resize to", p->resize_width, err));
    return check_side("the height to resize to", p->resize_height, err);
}

/* The results for 0 and 255 must be finite: a tiny std makes infinities of valid numbers. */
static enum status check_channel(const struct preprocess *p, int c, struct error *err)
{
    if (!isfinite(p->std[c]) || p->std[c] == 0.0f)
        return error_set(err, STATUS_INVALID,
                         "preprocessing: the std of channel %d is %g, but must be finite and not 0",
                         c, (double)p->std[c]);
    const float low = (0.0f - p->mean[c]) / p->std[c];
    const float high = (255.0f * p->scale - p->mean[c]) / p->std[c];
    if (!isfinite(low) || !isfinite(high))
        return error_set(err, STATUS_INVALID,
                         "preprocessing: scale %g, mean %g and std %g of channel %d make numbers "
                         "too large for float32",
                         (double)p->scale, (double)p->mean[c], (double)p->std[c], c);
    return STATUS_OK;
}

enum status preprocess_check(const struct preprocess *p, struct error *err)
{
    TRY(check_sizes(p, err));
    if (!isfinite(p->scale) || p->scale == 0.0f)
        return error_set(err, STATUS_INVALID,
                         "preprocessing: the scale is %g, but must be finite and not 0 (1/255 "
                         "usually)",
                         (double)p->scale);
    for (int c = 0; c < preprocess_channels(p); c++)
        TRY(check_channel(p, c, err));
    return STATUS_OK;
}

static void append_numbers(char *text, size_t size, const char *name, const float *values,
                           int count)
{
    text_append(text, size, ", ", "%s", name);
    for (int i = 0; i < count; i++)
        text_append(text, size, " ", "%g", (double)values[i]);
}

/* Appends the resize. Returns true if a crop to the model's input follows. */
static bool append_resize(char *text, size_t size, const struct preprocess *p)
{
    const char *filter = resample_names[p->resample];
    switch (p->resize) {
    case RESIZE_NONE:
        text_append(text, size, ", ", "no resize");
        return true;
    case RESIZE_SHORT_SIDE:
        text_append(text, size, ", ", "resize short side to %d (%s)", p->resize_short, filter);
        return true;
    case RESIZE_EXACT:
        text_append(text, size, ", ", "resize to %d x %d (%s)", p->resize_width, p->resize_height,
                    filter);
        break;
    case RESIZE_BODY:
        text_append(text, size, ", ", "fit with a margin into %d x %d", p->resize_width,
                    p->resize_height);
        break;
    case RESIZE_LETTERBOX:
        text_append(text, size, ", ", "letterbox into %d x %d (%s, padded%s with ", p->resize_width,
                    p->resize_height, filter, p->pads_corner ? " right and below" : "");
        if (p->pads_normalised)
            text_append(text, size, "", "normalised 0)");
        else
            text_append(text, size, "", "%d)", p->pad_value);
        break;
    }
    return p->resize_width != p->width || p->resize_height != p->height;
}

void preprocess_describe(const struct preprocess *p, char *text, size_t size)
{
    static const char *const orders[] = {"RGB", "BGR", "gray"};
    text[0] = '\0';
    if (p->invert)
        text_append(text, size, ", ", "invert");
    if (p->first_width > 0)
        text_append(text, size, ", ", "centre crop %g x %g of the short side", p->first_width,
                    p->first_height);
    if (p->pads_square)
        text_append(text, size, ", ", "pad right or below to a square");
    if (append_resize(text, size, p))
        text_append(text, size, ", ", "centre crop %d x %d", p->width, p->height);
    text_append(text, size, ", ", "%s", orders[p->channels]);
    if (p->scale == 1.0f)
        text_append(text, size, ", ", "x");
    else if (fabsf(p->scale * 255.0f - 1.0f) < 1e-6f)
        text_append(text, size, ", ", "x/255");
    else
        text_append(text, size, ", ", "x * %g", (double)p->scale);
    const int channels = preprocess_channels(p);
    bool normalises = false;
    for (int c = 0; c < channels; c++)
        normalises = normalises || p->mean[c] != 0 || p->std[c] != 1;
    if (!normalises)
        return;
    append_numbers(text, size, "mean", p->mean, channels);
    append_numbers(text, size, "std", p->std, channels);
}

bool model_read_size(const char *text, int *ret_width, int *ret_height)
{
    char *end;
    const long width = text[0] >= '1' && text[0] <= '9' ? strtol(text, &end, 10) : 0;
    const bool has_height = width > 0 && *end == 'x' && end[1] >= '1' && end[1] <= '9';
    const long height = has_height ? strtol(end + 1, &end, 10) : 0;
    if (height < 1 || *end || width > MODEL_SIDE_MAX || height > MODEL_SIDE_MAX)
        return false;
    *ret_width = (int)width;
    *ret_height = (int)height;
    return true;
}
