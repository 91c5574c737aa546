/* Conv on [N, H, W, C] images: 1×1 as a matrix product through cuBLASLt, the rest by lensd's own
 * kernels. */
#include "engine/cuda/cuda.h"

#include <limits.h>

#include "engine/ops/families.h"

struct conv_step {
    struct step step;
    struct cuda_conv conv;
    struct cuda_epilogue epilogue;
    const void *weights;
    uint32_t x, y, residual;
    bool has_residual, direct;
    enum dtype x_dtype, y_dtype;
};

static enum status run(struct step *base, struct program *program, struct error *err)
{
    struct conv_step *s = (struct conv_step *)base;
    struct cuda_epilogue epilogue = s->epilogue;
    epilogue.residual = s->has_residual ? program->data[s->residual] : NULL;
    (s->direct ? cuda_conv_direct : cuda_conv_gemm)(
        program->backend->stream, (int)s->x_dtype, program->data[s->x], s->weights,
        program->data[s->y], (int)s->y_dtype, &s->conv, &epilogue);
    return cuda_launched(base, program, err);
}

static bool fits_int(const struct shape *shape)
{
    for (int d = 0; d < shape->rank; d++)
        if (shape->dims[d] > INT_MAX)
            return false;
    return true;
}

static struct cuda_conv conv_of(const struct node *node, const struct window *w)
{
    const struct shape *x = &node->inputs[0]->shape, *y = &node->outputs[0]->shape;
    return (struct cuda_conv){.n = (int)x->dims[0],
                              .h = (int)x->dims[1],
                              .w = (int)x->dims[2],
                              .c = (int)x->dims[3],
                              .oh = (int)y->dims[1],
                              .ow = (int)y->dims[2],
                              .m = (int)y->dims[3],
                              .kh = (int)w->kernel[0],
                              .kw = (int)w->kernel[1],
                              .groups = (int)node_int(node, "group", 1),
                              .stride_h = (int)w->stride[0],
                              .stride_w = (int)w->stride[1],
                              .dilation_h = (int)w->dilation[0],
                              .dilation_w = (int)w->dilation[1],
                              .pad_h = (int)w->pad_begin[0],
                              .pad_w = (int)w->pad_begin[1]};
}

/* Every output position reads one input position, in order. */
static bool is_pointwise(const struct cuda_conv *c)
{
    return c->kh == 1 && c->kw == 1 && c->groups == 1 && c->stride_h == 1 && c->stride_w == 1 &&
           c->pad_h == 0 && c->pad_w == 0 && c->oh == c->h && c->ow == c->w;
}

static enum status make_pointwise(const struct compile *compile, const struct cuda_conv *c,
                                  const void *weights, const float *bias, struct step **ret,
                                  struct error *err)
{
    const struct value *x = compile->node->inputs[0], *y = compile->node->outputs[0];
    struct product product = {.m = (int64_t)c->n * c->h * c->w,
                              .n = c->m,
                              .k = c->c,
                              .trans_b = true,
                              .batch = 1,
                              .dtype = x->dtype,
                              .y_dtype = y->dtype};
    return product_create(compile, &product, x->index, 0, weights, bias, ret, err);
}

enum status make_conv(const struct compile *compile, struct step **ret, struct error *err)
{
    const struct node *node = compile->node;
    if (node->op != OP_CONV || !node->channels_last)
        return STATUS_OK;
    const struct value *x = node->inputs[0], *y = node->outputs[0];
    const struct value *bias = node_bias(node);
    struct tensor *constant = node->inputs[1]->known;
    struct window window;
    void *weights, *bias_data = NULL;
    char text[NODE_TEXT];
    if (!fits_int(&x->shape) || !fits_int(&y->shape))
        return error_set(err, STATUS_UNSUPPORTED, "%s: images of over 2^31 elements a side",
                         node_text(node, text));
    TRY(window_init(node, 2, x->shape.dims + 1, constant->shape.dims + 2, &window, err));
    struct cuda_conv conv = conv_of(node, &window);
    conv.tensor_cores = compile->backend->tensor_cores;
    TRY(weights_get(compile->backend, constant, WEIGHT_CONV, x->dtype, &weights, err));
    if (bias)
        TRY(weights_get(compile->backend, bias->known, WEIGHT_AS_IS, DTYPE_F32, &bias_data, err));
    if (is_pointwise(&conv))
        return make_pointwise(compile, &conv, weights, bias_data, ret, err);
    struct conv_step *s = step_create(compile, sizeof *s, run);
    if (!s)
        return error_set(err, STATUS_NO_MEMORY, "out of memory while compiling");
    const struct epilogue *e = &node->epilogue;
    s->conv = conv;
    s->weights = weights;
    s->epilogue = (struct cuda_epilogue){bias_data, NULL, (int)e->activation, e->alpha, e->beta};
    s->has_residual = e->residual != NULL;
    s->residual = e->residual ? e->residual->index : 0;
    s->x = x->index;
    s->y = y->index;
    s->x_dtype = x->dtype;
    s->y_dtype = y->dtype;
    /* A tile of the matrix kernels is 64 channels of one group wide. */
    s->direct = conv.groups > 1 && conv.m / conv.groups < 16;
    s->step.kernel = s->direct ? "conv direct" : "conv implicit gemm";
    s->step.flops = 2.0 * (double)shape_count(&y->shape) * (double)constant->shape.dims[1] *
                    (double)(conv.kh * conv.kw);
    s->step.bytes = shape_count(&x->shape) * dtype_size(x->dtype) +
                    shape_count(&y->shape) * dtype_size(y->dtype) +
                    shape_count(&constant->shape) * dtype_size(x->dtype);
    *ret = &s->step;
    return STATUS_OK;
}
