/* Convolutions and pools of [N, H, W, C] images for kernels with int indices. Shapes that do not
 * fit int are refused here. */
#include <limits.h>

#include "engine/cuda/lowering/lowering.h"
#include "engine/op/families.h"

/* The largest start of a window in the padded image, and the largest extent of a window. */
#define MOST_PLACES ((int64_t)1 << 30)

static bool fits_window(const struct window *w)
{
    for (int i = 0; i < 2; i++)
        if (w->pad_begin[i] > MOST_PLACES || w->pad_end[i] > MOST_PLACES ||
            w->in[i] + w->pad_begin[i] + w->pad_end[i] > MOST_PLACES ||
            w->stride[i] > MOST_PLACES || w->dilation[i] > MOST_PLACES ||
            (w->kernel[i] - 1) * w->dilation[i] >= MOST_PLACES)
            return false;
    return w->kernel[0] * w->kernel[1] <= INT_MAX;
}

bool window_fits_shape(const struct shape *shape)
{
    for (int d = 0; d < shape->rank; d++)
        if (shape->dims[d] > INT_MAX - 16) /* channels are padded */
            return false;
    return true;
}

static enum status check(const struct node *node, const struct window *w, struct error *err)
{
    if (fits_window(w) && window_fits_shape(&node->inputs[0]->shape) &&
        window_fits_shape(&node->outputs[0]->shape))
        return STATUS_OK;
    return error_set(err, STATUS_UNSUPPORTED,
                     "%s: the image, window, strides or pads are too large: a side may have 2^30 "
                     "elements, a window 2^31, an image 2^31 channels",
                     NODE_STRING(node));
}

/* x, y: dimensions of the images, [N, H, W, C]. */
static struct cuda_conv window_between(const int64_t *x, const int64_t *y, const struct window *w)
{
    return (struct cuda_conv){.n = (int)x[0],
                              .h = (int)x[1],
                              .w = (int)x[2],
                              .c = (int)x[3],
                              .oh = (int)y[1],
                              .ow = (int)y[2],
                              .m = (int)y[3],
                              .kh = (int)w->kernel[0],
                              .kw = (int)w->kernel[1],
                              .groups = 1,
                              .stride_h = (int)w->stride[0],
                              .stride_w = (int)w->stride[1],
                              .dilation_h = (int)w->dilation[0],
                              .dilation_w = (int)w->dilation[1],
                              .pad_h = (int)w->pad_begin[0],
                              .pad_w = (int)w->pad_begin[1]};
}

enum status window_of_conv(const struct node *node, const struct window *w, int64_t groups,
                           struct cuda_conv *ret, struct error *err)
{
    TRY(check(node, w, err));
    if (node->inputs[0]->shape.dims[3] > INT_MAX / (w->kernel[0] * w->kernel[1]))
        return error_set(err, STATUS_UNSUPPORTED, "%s: a window has more than 2^31 numbers",
                         NODE_STRING(node));
    *ret = window_between(node->inputs[0]->shape.dims, node->outputs[0]->shape.dims, w);
    ret->groups = (int)groups;
    ret->row = ret->kh * ret->kw * (ret->c / ret->groups);
    return STATUS_OK;
}

enum status window_of_pool(const struct node *node, struct cuda_pool *ret, struct error *err)
{
    struct window w;
    size_t count;
    TRY(window_init(node, 2, node->inputs[0]->shape.dims + 1,
                    node_ints(node, "kernel_shape", &count), &w, err));
    TRY(check(node, &w, err));
    ret->window = window_between(node->inputs[0]->shape.dims, node->outputs[0]->shape.dims, &w);
    ret->pad_h_end = (int)w.pad_end[0];
    ret->pad_w_end = (int)w.pad_end[1];
    ret->is_max = node->op == OP_MAX_POOL;
    ret->count_include_pad = (int)node_int(node, "count_include_pad", 0);
    return STATUS_OK;
}

bool window_of_rows(int64_t rows, int64_t n, int64_t k, struct cuda_conv *ret)
{
    const struct window one = {.kernel = {1, 1}, .stride = {1, 1}, .dilation = {1, 1}};
    if (rows > INT_MAX || n > INT_MAX || k > INT_MAX - 16)
        return false;
    *ret = window_between((const int64_t[]){rows, 1, 1, k}, (const int64_t[]){rows, 1, 1, n}, &one);
    ret->row = (int)k;
    return true;
}
