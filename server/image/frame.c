/* Computes the size of the resized picture and the place of the crop.
 *
 * The rules agree to the pixel with:
 * - torchvision 0.14 transforms.Resize(n): the long side is int(n * long / short);
 * - torchvision transforms.CenterCrop: the offset is int(round(difference / 2)), where Python
 *   rounds halves to even; if the picture is smaller, (missing // 2) zeros precede it;
 * - Hugging Face's processors: the same rules, but the crop's offset is int(difference / 2);
 * - Ultralytics LetterBox(auto=False, center=True): ratio min(W / w, H / h), sides round(side *
 *   ratio), offset round(rest / 2 - 0.1);
 * - Hugging Face's longest_edge: sides int(side * ratio + 0.5), and max_height with max_width:
 *   int(side * ratio), both padded to the right and below;
 * - VitPose's box_to_center_and_scale() and get_warp_matrix();
 * - Perceiver's crop before the resize: int(share * short side), offset int(rest / 2). */
#include "server/image/frame.h"

#include "server/image/resample.h"

#include <math.h>

enum { SIDE_MAX = 65535 };

static double letterbox_side(const struct preprocess *p, double side)
{
    if (p->sides_floor)
        return floor(side);
    return p->pads_corner ? floor(side + 0.5) : nearbyint(side);
}

static enum status resized_size(const struct preprocess *p, uint64_t width, uint64_t height,
                                struct crop_frame *frame, struct error *err)
{
    uint64_t to_width = width, to_height = height;
    switch (p->resize) {
    case RESIZE_NONE:
        break;
    case RESIZE_SHORT_SIDE:
        if (width <= height) {
            to_width = (uint64_t)p->resize_short;
            to_height = to_width * height / width;
        } else {
            to_height = (uint64_t)p->resize_short;
            to_width = to_height * width / height;
        }
        break;
    case RESIZE_EXACT:
        to_width = (uint64_t)p->resize_width;
        to_height = (uint64_t)p->resize_height;
        break;
    case RESIZE_BODY:
    case RESIZE_LETTERBOX: {
        const double room = p->resize == RESIZE_BODY ? BODY_PADDING : 1;
        const double ratio =
            fmin((double)p->resize_height / height, (double)p->resize_width / width) / room;
        to_width = (uint64_t)fmax(1, letterbox_side(p, width * ratio));
        to_height = (uint64_t)fmax(1, letterbox_side(p, height * ratio));
        break;
    }
    }
    if (to_width > SIDE_MAX || to_height > SIDE_MAX)
        return error_set(err, STATUS_TOO_LARGE,
                         "a picture of %llu x %llu pixels would be resized to %llu x %llu, but a "
                         "side may have at most %d; send one with a less extreme aspect ratio",
                         (unsigned long long)width, (unsigned long long)height,
                         (unsigned long long)to_width, (unsigned long long)to_height, SIDE_MAX);
    frame->resized_width = (int)to_width;
    frame->resized_height = (int)to_height;
    return STATUS_OK;
}

/* Returns the position of the first of `have` pixels of the canvas in a centred crop of `want`
 * pixels; negative if the crop cuts it off. */
static int crop_begin(int have, int want, bool floors)
{
    if (want >= have) /* `floors` rounds (have - want) / 2 down: -13.5 to -14 */
        return (want - have + floors) / 2;
    const int rest = have - want, half = rest / 2;
    /* round(rest / 2.0): a half goes to the even neighbour. */
    return -(!floors && rest % 2 && half % 2 ? half + 1 : half);
}

static int letterbox_begin(int picture, int canvas)
{
    return (int)nearbyint((canvas - picture) / 2.0 - 0.1);
}

enum status frame_of(const struct preprocess *p, uint32_t width, uint32_t height,
                     struct crop_frame *ret, struct error *err)
{
    struct crop_frame frame = {.map = {1, 0, 0, 0, 1, 0}};
    if (width != (uint32_t)p->width || height != (uint32_t)p->height)
        frame_body(p, width, height, frame.map);
    TRY(resized_size(p, width, height, &frame, err));
    const bool letterbox = p->resize == RESIZE_LETTERBOX || p->resize == RESIZE_BODY;
    frame.canvas_width = letterbox ? p->resize_width : frame.resized_width;
    frame.canvas_height = letterbox ? p->resize_height : frame.resized_height;
    frame.canvas_left = crop_begin(frame.canvas_width, p->width, p->crop_floors);
    frame.canvas_top = crop_begin(frame.canvas_height, p->height, p->crop_floors);
    frame.left = frame.canvas_left;
    frame.top = frame.canvas_top;
    if (letterbox && !p->pads_corner) {
        frame.left += letterbox_begin(frame.resized_width, frame.canvas_width);
        frame.top += letterbox_begin(frame.resized_height, frame.canvas_height);
    }
    *ret = frame;
    return STATUS_OK;
}

static uint32_t share_of(double share, uint32_t side)
{
    const uint32_t kept = (uint32_t)(share * side);
    return kept ? kept : 1;
}

struct source_frame frame_source(const struct preprocess *p, uint32_t width, uint32_t height)
{
    const uint32_t side = width < height ? width : height;
    if (p->first_width <= 0 || p->first_height <= 0)
        return (struct source_frame){0, 0, width, height};
    const uint32_t kept_width = share_of(p->first_width, side);
    const uint32_t kept_height = share_of(p->first_height, side);
    return (struct source_frame){(width - kept_width) / 2, (height - kept_height) / 2, kept_width,
                                 kept_height};
}

/* Orientations 5 … 8 exchange rows and columns. Orientations 2, 3, 7 and 8 reverse the columns. */
void frame_columns(const struct preprocess *p, uint32_t width, uint32_t height, int orientation,
                   uint32_t *ret_begin, uint32_t *ret_end)
{
    const bool is_swapped = orientation >= 5;
    const bool is_mirrored =
        orientation == 2 || orientation == 3 || orientation == 7 || orientation == 8;
    struct crop_frame frame;
    struct error ignored;
    const struct source_frame source =
        frame_source(p, is_swapped ? height : width, is_swapped ? width : height);
    *ret_begin = 0;
    *ret_end = width;
    if (frame_of(p, source.width, source.height, &frame, &ignored) != STATUS_OK)
        return; /* transform.c will report the error */
    const int resized = is_swapped ? frame.resized_height : frame.resized_width;
    const int place = is_swapped ? frame.top : frame.left, side = is_swapped ? p->height : p->width;
    const int first = place < 0 ? -place : 0;
    const int end = resized < side - place ? resized : side - place;
    const uint32_t before = is_swapped ? source.top : source.left;
    int from, to;
    if (first >= end)
        return;
    resample_reach(p->resample, (int)(is_swapped ? source.height : source.width), resized, first,
                   end - first, &from, &to);
    from += (int)before;
    to += (int)before;
    *ret_begin = is_mirrored ? width - (uint32_t)to : (uint32_t)from;
    *ret_end = is_mirrored ? width - (uint32_t)from : (uint32_t)to;
}
