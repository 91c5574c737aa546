/* Sliding windows of convolutions and pools: which taps lie inside the input, and any window as a
 * three-dimensional one. */
#include "engine/reference/nn.h"

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

size_t window_size(const struct window *window)
{
    return (size_t)(window->kernel[0] * window->kernel[1] * window->kernel[2]);
}

size_t window_inputs(const struct window *window)
{
    return (size_t)(window->in[0] * window->in[1] * window->in[2]);
}

size_t window_outputs(const struct window *window)
{
    return (size_t)(window->out[0] * window->out[1] * window->out[2]);
}

void window_taps(const struct window *window, int i, int64_t at, int64_t *first, int64_t *end)
{
    int64_t start = at * window->stride[i] - window->pad_begin[i], step = window->dilation[i];
    int64_t room = window->in[i] - start; /* positions from start on that are inside */
    int64_t from = start >= 0 ? 0 : ceil_div(-start, step);
    int64_t to = room <= 0 ? 0 : ceil_div(room, step);
    if (to > window->kernel[i])
        to = window->kernel[i];
    *first = from;
    *end = to > from ? to : from;
}

int64_t window_padded_taps(const struct window *window, int i, int64_t at)
{
    int64_t start = at * window->stride[i] - window->pad_begin[i];
    int64_t room = window->in[i] + window->pad_end[i] - start;
    int64_t taps = room <= 0 ? 0 : ceil_div(room, window->dilation[i]);
    return taps < window->kernel[i] ? taps : window->kernel[i];
}
