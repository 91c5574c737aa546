/* Conv on [N, H, W, C] images, and products of a matrix with constant weights, which are
 * convolutions of 1 x 1.
 *
 * 16-bit numbers, and float32 with --precision tf32, run on tensor cores. The autotuner chooses
 * among several candidates: shapes of tiles, splits, and cuBLASLt for matrix products. float32 with
 * other precisions, and groups of few channels, run without tensor cores. */
#include "engine/cuda/lowering/lowering.h"

#include <stdlib.h>

#include "engine/base/size.h"
#include "engine/op/families.h"

enum { GROUP_OF_TILES = 16 };
#define MOST_SUMS ((size_t)64 << 20) /* bytes for sums of a split convolution */

struct conv_step {
    struct cuda_step step;
    __typeof__(cuda_conv_simt) *plain; /* kernel for ordinary cores; NULL: runs on tensor cores */
    struct cuda_conv conv;
    struct cuda_epilogue epilogue;
    const void *weights;
    enum dtype x_dtype;
    /* On tensor cores: candidate 0 is `product` unless that is NULL; candidates of `tiles` follow.
     */
    struct cuda_step *product;
    struct conv_tiles tiles;
    int candidate;
};

static void conv_free(struct cuda_step *base)
{
    struct conv_step *s = (struct conv_step *)base;
    cuda_step_free(s->product);
}

static void run_tensor(struct conv_step *s, struct cuda_program *program, const void *x, void *y,
                       const struct cuda_epilogue *epilogue)
{
    struct cuda_backend *backend = program->backend;
    unsigned char *workspace = backend->arena + program->value_bytes;
    x = conv_pad_channels(backend->stream, &s->tiles, &s->conv, dtype_size(s->x_dtype), x,
                          &workspace);
    cuda_conv_tensor(backend->stream, (int)s->x_dtype, x, s->weights, y, &s->conv, epilogue,
                     &s->tiles.candidates[s->candidate - (s->product ? 1 : 0)], workspace);
}

CUDA_RUN(conv_run)
{
    struct conv_step *s = (struct conv_step *)base;
    cudaStream_t stream = program->backend->stream;
    struct cuda_epilogue epilogue = s->epilogue;
    const void *x = program->data[base->x];
    void *y = program->data[base->y];
    epilogue.residual = program->data[base->residual];
    if (s->plain)
        s->plain(stream, (int)s->x_dtype, x, s->weights, y, &s->conv, &epilogue);
    else if (s->product && s->candidate == 0)
        return s->product->run(s->product, program, err);
    else
        run_tensor(s, program, x, y, &epilogue);
    return cuda_launched(base, program, err);
}

CUDA_RUN(conv_tune)
{
    struct conv_step *s = (struct conv_step *)base;
    struct conv_key key = {.conv = s->conv,
                           .x_dtype = (int32_t)s->x_dtype,
                           .y_dtype = s->epilogue.y_dtype,
                           .has_residual = program->data[base->residual] != NULL,
                           .activation = s->epilogue.activation,
                           .unpadded = s->tiles.unpadded,
                           .has_product = s->product != NULL};
    if (s->product)
        TRY(s->product->tune(s->product, program, err));
    TRY(tune_step(base, program, &s->candidate, s->tiles.count + (s->product ? 1 : 0), &key,
                  sizeof key, err));
    base->kernel = s->product && s->candidate == 0 ? s->product->kernel : "tensor-core conv";
    return STATUS_OK;
}

/* ---- classification of a node ---- */

/* True if every output position reads one input position, in the same order. */
static bool is_pointwise(const struct cuda_conv *c)
{
    return c->kh == 1 && c->kw == 1 && c->groups == 1 && c->stride_h == 1 && c->stride_w == 1 &&
           c->pad_h == 0 && c->pad_w == 0 && c->oh == c->h && c->ow == c->w;
}

/* ---- steps ---- */

/* Creates a copy of `form`, which needs only the types and the epilogue of the node. */
static enum status conv_create(const struct cuda_lowering *compile, struct conv_step *form,
                               struct cuda_step **ret, struct error *err)
{
    const struct node *node = compile->node;
    const struct value *y = node->outputs[0];
    const struct cuda_conv *conv = &form->conv;
    form->step.free = conv_free;
    form->x_dtype = node->inputs[0]->dtype;
    TRY(cuda_epilogue_of(compile, node_bias(node), &form->epilogue, err));
    struct conv_step *s = cuda_step_create(compile, form, sizeof *s, conv_run, ret, err);
    TRY(allocated(s));
    const double depth = (double)conv->kh * conv->kw * conv->c / conv->groups;
    s->step.flops = 2.0 * (double)shape_count(&y->shape) * depth;
    s->step.bytes += (size_t)conv->m * (size_t)conv->row * dtype_size(s->x_dtype);
    return STATUS_OK;
}

bool conv_find_tiles(const struct cuda_backend *backend, enum dtype dtype, struct cuda_conv *conv,
                     struct conv_tiles *ret)
{
    const int channels = conv->c, depth = channels / conv->groups, even = dtype == DTYPE_I8 ? 4 : 2;
    *ret = (struct conv_tiles){0};
    if (depth % even && conv->groups > 1)
        return false;
    if (depth % even) {
        ret->unpadded = channels;
        conv->c = (int)size_align((size_t)channels, (size_t)even);
        ret->padded_bytes = size_align((size_t)conv->n * (size_t)conv->h * (size_t)conv->w *
                                           (size_t)conv->c * dtype_size(dtype),
                                       256);
    }
    ret->workspace = ret->padded_bytes;
    const int count = cuda_conv_candidates((int)dtype, conv, backend->shared_limit,
                                           backend->processors, ret->candidates, CONV_CANDIDATES);
    for (int i = 0; i < count; i++) {
        const size_t sums = ret->candidates[i].workspace;
        if (sums > MOST_SUMS)
            continue;
        if (ret->padded_bytes + sums > ret->workspace)
            ret->workspace = ret->padded_bytes + sums;
        ret->candidates[ret->count++] = ret->candidates[i];
    }
    if (ret->count)
        return true;
    conv->c = channels;
    *ret = (struct conv_tiles){0};
    return false;
}

const void *conv_pad_channels(cudaStream_t stream, const struct conv_tiles *tiles,
                              const struct cuda_conv *conv, size_t size, const void *x,
                              unsigned char **workspace)
{
    const int64_t positions = (int64_t)conv->n * conv->h * conv->w, from = tiles->unpadded;
    const struct cuda_pad pad = {
        .rank = 2, .out = {positions, conv->c}, .in = {positions, from}, .steps = {from, 1}};
    void *padded = *workspace;
    if (!tiles->unpadded)
        return x;
    cuda_pad_any(stream, (int)size, x, padded, &pad);
    *workspace += tiles->padded_bytes;
    return padded;
}

enum status conv_create_product(const struct cuda_lowering *compile, const struct cuda_product *p,
                                const void *weights, struct cuda_step **ret, struct error *err)
{
    struct cuda_step *step, *product = *ret;
    struct conv_step form = {.step = {.kernel = "matrix product", .tune = conv_tune},
                             .weights = weights,
                             .product = product};
    if (!window_of_rows(p->m, p->n, p->k, &form.conv))
        return STATUS_OK;
    form.conv.y_row = (int)p->y_row;
    form.conv.row = (int)((p->k + 7) / 8 * 8);
    if (!conv_find_tiles(compile->backend, p->dtype, &form.conv, &form.tiles))
        return STATUS_OK;
    const size_t own = form.tiles.workspace;
    form.step.workspace = own > product->workspace ? own : product->workspace;
    TRY(conv_create(compile, &form, &step, err));
    *ret = step;
    return STATUS_OK;
}

static enum status conv_lower_pointwise(const struct cuda_lowering *compile,
                                        const struct cuda_conv *c, struct cuda_step **ret,
                                        struct error *err)
{
    struct tensor *constant = compile->node->inputs[1]->known;
    const enum dtype dtype = compile->node->inputs[0]->dtype;
    const bool on_tensor_cores = has_tensor_cores(compile->backend, dtype);
    const enum weight_layout layout = on_tensor_cores ? WEIGHT_ROWS : WEIGHT_CONV;
    const struct cuda_product product = {.m = (int64_t)c->n * c->h * c->w,
                                         .n = c->m,
                                         .k = c->c,
                                         .b_row = cuda_weights_row(constant, layout, dtype),
                                         .y_row = c->y_row,
                                         .trans_b = true,
                                         .batch = 1,
                                         .dtype = dtype,
                                         .y_dtype = compile->node->outputs[0]->dtype};
    const void *weights;
    TRY(cuda_weights_get(compile->backend, constant, layout, dtype, &weights, err));
    TRY(cuda_product_create(compile, &product, weights, ret, err));
    return on_tensor_cores ? conv_create_product(compile, &product, weights, ret, err) : STATUS_OK;
}

/* Creates a step for tensor cores; *ret stays NULL if they cannot run the convolution. */
static enum status conv_lower_tensor(const struct cuda_lowering *compile, const struct cuda_conv *c,
                                     struct cuda_step **ret, struct error *err)
{
    struct tensor *constant = compile->node->inputs[1]->known;
    const enum dtype dtype = compile->node->inputs[0]->dtype;
    struct conv_step form = {.step = {.kernel = "tensor-core conv", .tune = conv_tune}, .conv = *c};
    form.conv.row = (int)cuda_weights_row(constant, WEIGHT_CONV_ROWS, dtype);
    if (!has_tensor_cores(compile->backend, dtype) ||
        !conv_find_tiles(compile->backend, dtype, &form.conv, &form.tiles))
        return STATUS_OK;
    form.step.workspace = form.tiles.workspace;
    TRY(cuda_weights_get(compile->backend, constant, WEIGHT_CONV_ROWS, dtype, &form.weights, err));
    return conv_create(compile, &form, ret, err);
}

static enum status conv_lower_plain(const struct cuda_lowering *compile, const struct cuda_conv *c,
                                    struct cuda_step **ret, struct error *err)
{
    const bool depthwise = c->groups == c->c && c->m == c->c;
    const bool direct = c->groups > 1 && c->m / c->groups < GROUP_OF_TILES;
    struct conv_step form = {.step.kernel = depthwise ? "depthwise conv"
                                            : direct  ? "direct conv"
                                                      : "conv",
                             .plain = depthwise ? cuda_conv_depthwise
                                      : direct  ? cuda_conv_direct
                                                : cuda_conv_simt,
                             .conv = *c};
    TRY(cuda_weights_get(compile->backend, compile->node->inputs[1]->known,
                         depthwise ? WEIGHT_TAPS : WEIGHT_CONV, compile->node->inputs[0]->dtype,
                         &form.weights, err));
    return conv_create(compile, &form, ret, err);
}

bool conv_is_for_tiles(const struct cuda_conv *c)
{
    return c->groups == 1 || (c->m / c->groups >= 8 && c->c / c->groups >= 8);
}

KERNEL_CLAIM(conv_claim)
{
    const struct value *x = node_input(node, 0), *bias = node_bias(node);
    if (!claim_reads_image(node) || x->shape.rank != 4 || !is_f32_constant(node_input(node, 1)) ||
        (bias && !is_f32_constant(bias)))
        return false;
    ret->can = KERNEL_CHANNELS_LAST;
    ret->narrow = NARROW_PRODUCT;
    ret->in_place = claim_residual(node);
    if (!node->epilogue.residual && node_int(node, "group", 1) != x->shape.dims[x->shape.rank - 1])
        ret->can |= KERNEL_PITCH;
    return true;
}

CUDA_CREATE(lower_conv)
{
    const struct node *node = compile->node;
    const struct value *x = node->inputs[0], *y = node->outputs[0];
    struct tensor *constant = node->inputs[1]->known;
    struct window window;
    struct cuda_conv conv;
    TRY(window_init(node, 2, x->shape.dims + 1, constant->shape.dims + 2, &window, err));
    TRY(window_of_conv(node, &window, node_int(node, "group", 1), &conv, err));
    conv.y_row = (int)(compile->program->plan.places[y->index].pitch / dtype_size(y->dtype));
    if (is_pointwise(&conv))
        return conv_lower_pointwise(compile, &conv, ret, err);
    if (conv_is_for_tiles(&conv))
        TRY(conv_lower_tensor(compile, &conv, ret, err));
    return *ret ? STATUS_OK : conv_lower_plain(compile, &conv, ret, err);
}

const struct cuda_kernel cuda_kernel_conv = {{"conv", {OP_CONV}, conv_claim}, lower_conv};
