/* Sliding windows: strides, pads, dilations and auto_pad of convolutions and pools, worked out once
 * for inference and kernels alike.
 *
 * Easy to get wrong: the odd pixel of SAME_UPPER goes to the end, of SAME_LOWER to the beginning;
 * ceil_mode drops a last window that would start in the end padding (ONNX AveragePool-19, as
 * PyTorch); an auto_pad other than NOTSET wins over pads and ceil_mode. */
#include "engine/op/families.h"
#include "engine/op/geometry.h"
#include "engine/op/nn.h"
#include "engine/op/operands.h"

static enum status too_large(struct error *err)
{
    return error_set(err, STATUS_SHAPE, "kernel, dilations and pads are too large to add up");
}

static enum status place_same(struct window *w, int i, int64_t extent, bool upper,
                              struct error *err)
{
    if (w->in[i] < 1)
        return error_set(err, STATUS_SHAPE, "spatial dimension %d of the input is empty", i);
    w->out[i] = (w->in[i] - 1) / w->stride[i] + 1;
    /* (out - 1) * stride < in by construction */
    int64_t needed;
    if (__builtin_add_overflow((w->out[i] - 1) * w->stride[i] - w->in[i], extent, &needed))
        return too_large(err);
    if (needed < 0)
        needed = 0;
    w->pad_begin[i] = upper ? needed / 2 : needed - needed / 2;
    w->pad_end[i] = needed - w->pad_begin[i];
    return STATUS_OK;
}

static enum status place_explicit(struct window *w, int i, int64_t extent, bool ceil_mode,
                                  struct error *err)
{
    int64_t padded;
    if (__builtin_add_overflow(w->in[i], w->pad_begin[i], &padded) ||
        __builtin_add_overflow(padded, w->pad_end[i], &padded))
        return too_large(err);
    /* The window is larger than the padded input: clip the window, as in PyTorch (Hugging Face's
     * EfficientNet has a window of 1280 over 7 pixels). */
    if (ceil_mode && padded > 0 && padded < extent && extent - padded < w->stride[i]) {
        w->kernel[i] = (padded - 1) / w->dilation[i] + 1;
        w->out[i] = 1;
        return STATUS_OK;
    }
    if (padded < extent)
        return error_set(err, STATUS_SHAPE,
                         "a window of extent %lld (kernel %lld, dilation %lld) does not fit into "
                         "spatial dimension %d of %lld with pads %lld and %lld",
                         (long long)extent, (long long)w->kernel[i], (long long)w->dilation[i], i,
                         (long long)w->in[i], (long long)w->pad_begin[i], (long long)w->pad_end[i]);
    int64_t room = padded - extent;
    w->out[i] = room / w->stride[i] + 1;
    if (ceil_mode && room % w->stride[i]) {
        int64_t start; /* start of one more window, which extends beyond the padding */
        bool beyond = __builtin_mul_overflow(w->out[i], w->stride[i], &start) ||
                      start >= w->in[i] + w->pad_begin[i];
        if (!beyond)
            w->out[i]++;
    }
    return STATUS_OK;
}

int window_auto_pad(const struct node *node)
{
    return *node_string(node, "auto_pad", "") ? node_word(node, "auto_pad", AUTO_PADS)
                                              : AUTO_PAD_NOTSET;
}

enum status window_init(const struct node *node, int spatial, const int64_t *in,
                        const int64_t *kernel, struct window *ret, struct error *err)
{
    struct window w = {.spatial = spatial};
    const int mode = window_auto_pad(node);
    if (spatial < 1 || spatial > 3)
        return error_set(err, STATUS_UNSUPPORTED,
                         "%d spatial dimensions; lensd supports windows of 1, 2 and 3", spatial);
    if (mode != AUTO_PAD_NOTSET)
        TRY(infer_word(node, "auto_pad", AUTO_PADS, err));
    int64_t pads[6]; /* begins, then ends */
    const size_t count = (size_t)spatial;
    TRY(infer_list(node, "strides", count, 1, INT64_MAX, 1, w.stride, err));
    TRY(infer_list(node, "dilations", count, 1, INT64_MAX, 1, w.dilation, err));
    TRY(infer_list(node, "pads", 2 * count, 0, INT64_MAX, 0, pads, err));
    bool ceil_mode = node_int(node, "ceil_mode", 0) != 0;
    for (int i = 0; i < spatial; i++) {
        w.in[i] = in[i];
        w.kernel[i] = kernel[i];
        w.pad_begin[i] = pads[i];
        w.pad_end[i] = pads[spatial + i];
        if (kernel[i] < 1)
            return error_set(err, STATUS_SHAPE, "the kernel's extent %d is %lld, expected >= 1", i,
                             (long long)kernel[i]);
        int64_t extent;
        if (__builtin_mul_overflow(kernel[i] - 1, w.dilation[i], &extent) ||
            __builtin_add_overflow(extent, 1, &extent))
            return too_large(err);
        if (mode == AUTO_PAD_VALID)
            w.pad_begin[i] = w.pad_end[i] = 0;
        if (mode == AUTO_PAD_SAME_UPPER || mode == AUTO_PAD_SAME_LOWER)
            TRY(place_same(&w, i, extent, mode == AUTO_PAD_SAME_UPPER, err));
        else
            TRY(place_explicit(&w, i, extent, ceil_mode && mode == AUTO_PAD_NOTSET, err));
    }
    *ret = w;
    return STATUS_OK;
}

struct window window_in_3d(const struct window *window)
{
    struct window w = {.spatial = 3};
    int lead = 3 - window->spatial;
    for (int i = 0; i < 3; i++) {
        bool own = i >= lead;
        int from = own ? i - lead : 0;
        w.kernel[i] = own ? window->kernel[from] : 1;
        w.stride[i] = own ? window->stride[from] : 1;
        w.dilation[i] = own ? window->dilation[from] : 1;
        w.pad_begin[i] = own ? window->pad_begin[from] : 0;
        w.pad_end[i] = own ? window->pad_end[from] : 0;
        w.in[i] = own ? window->in[from] : 1;
        w.out[i] = own ? window->out[from] : 1;
    }
    return w;
}

size_t window_volume(const int64_t extents[static 3])
{
    return (size_t)(extents[0] * extents[1] * extents[2]);
}

int64_t window_taps(const struct window *w, int i, int64_t start, int64_t *ret_first,
                    int64_t *ret_end)
{
    const int64_t room = w->in[i] - start; /* positions from start on that are inside */
    const int64_t padded = room + w->pad_end[i], step = w->dilation[i];
    const int64_t taps = room <= 0 ? 0 : ceil_div(room, step);
    const int64_t all = padded <= 0 ? 0 : ceil_div(padded, step);
    *ret_first = start >= 0 ? 0 : ceil_div(-start, step);
    *ret_end = taps < w->kernel[i] ? taps : w->kernel[i];
    return all < w->kernel[i] ? all : w->kernel[i];
}

size_t window_read(const struct window *w, size_t position, const double *plane, double *values,
                   size_t *places, double *ret_padded)
{
    const int64_t t = (int64_t)position, row = t / w->out[2], *const step = w->dilation;
    const int64_t at[3] = {row / w->out[1], row % w->out[1], t % w->out[2]};
    int64_t start[3], first[3], end[3];
    size_t count = 0;
    *ret_padded = 1;
    for (int i = 0; i < 3; i++) {
        start[i] = at[i] * w->stride[i] - w->pad_begin[i];
        *ret_padded *= (double)window_taps(w, i, start[i], &first[i], &end[i]);
    }
    for (int64_t z = first[0]; z < end[0]; z++)
        for (int64_t y = first[1]; y < end[1]; y++) {
            const int64_t line = (start[0] + z * step[0]) * w->in[1] + start[1] + y * step[1];
            size_t place = (size_t)(line * w->in[2] + start[2] + first[2] * step[2]);
            for (int64_t x = first[2]; x < end[2]; x++, place += (size_t)step[2]) {
                places[count] = place;
                values[count++] = plane[place];
            }
        }
    return count;
}

enum status window_room(const struct kernel_args *args, const struct window *w, double **ret_values,
                        size_t **ret_places, struct error *err)
{
    size_t room = 1;
    for (int i = 0; i < 3; i++)
        room *= (size_t)(w->kernel[i] < w->in[i] ? w->kernel[i] : w->in[i]);
    *ret_values = kernel_scratch(args, room, sizeof **ret_values, err);
    *ret_places = kernel_scratch(args, room, sizeof **ret_places, err);
    return *ret_values && *ret_places ? STATUS_OK : STATUS_NO_MEMORY;
}
