/* Layers of known networks with lensd's products beside oneDNN's, in turns on one thread: which of
 * the two is quicker, and by how much.
 *
 *     bench_products [VARIANT [TEXT]]     a row for each layer, batch size and precision
 *
 * VARIANT: a variant of lensd's kernels (avx2, avx512, avx512_bf16, avx512_amx; the widest without
 * it), to which oneDNN is held, too. TEXT: only rows that contain it ("ResNet-50   8 int8"). Times
 * are CPU time of the thread, the least of many turns; before each run something else is read, so
 * that weights and activations come from the third-level cache or memory, as in a network. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/forkjoin.h"
#include "engine/base/size.h"
#include "engine/cpu/kernels/simd.h"
#include "engine/cpu/program/onednn.h"
#include "tests/bench/isa.h"

struct bench_layer {
    const char *network;
    int in, out, size, taps, stride; /* size: of the image; 0: a matrix product of `rows` */
    int rows;
    bool residual;
    enum activation activation;
};

#define RES  "ResNet-50"
#define MOB  "MobileNetV2"
#define VIT  "ViT-B/32"
#define RELU ACTIVATION_RELU
#define GELU ACTIVATION_GELU
#define NONE ACTIVATION_NONE

static const struct bench_layer layers[] = {
    {RES, 3, 64, 224, 7, 2, 0, false, RELU},     {RES, 64, 64, 56, 1, 1, 0, false, RELU},
    {RES, 64, 64, 56, 3, 1, 0, false, RELU},     {RES, 64, 256, 56, 1, 1, 0, true, RELU},
    {RES, 256, 64, 56, 1, 1, 0, false, RELU},    {RES, 256, 128, 56, 1, 1, 0, false, RELU},
    {RES, 128, 128, 56, 3, 2, 0, false, RELU},   {RES, 128, 512, 28, 1, 1, 0, true, RELU},
    {RES, 256, 512, 56, 1, 2, 0, false, NONE},   {RES, 512, 128, 28, 1, 1, 0, false, RELU},
    {RES, 128, 128, 28, 3, 1, 0, false, RELU},   {RES, 512, 256, 28, 1, 1, 0, false, RELU},
    {RES, 256, 256, 28, 3, 2, 0, false, RELU},   {RES, 256, 1024, 14, 1, 1, 0, true, RELU},
    {RES, 512, 1024, 28, 1, 2, 0, false, NONE},  {RES, 1024, 256, 14, 1, 1, 0, false, RELU},
    {RES, 256, 256, 14, 3, 1, 0, false, RELU},   {RES, 1024, 512, 14, 1, 1, 0, false, RELU},
    {RES, 512, 512, 14, 3, 2, 0, false, RELU},   {RES, 512, 2048, 7, 1, 1, 0, true, RELU},
    {RES, 1024, 2048, 14, 1, 2, 0, false, NONE}, {RES, 2048, 512, 7, 1, 1, 0, false, RELU},
    {RES, 512, 512, 7, 3, 1, 0, false, RELU},    {RES, 2048, 1000, 0, 1, 1, 1, false, NONE},
    {MOB, 3, 32, 224, 3, 2, 0, false, RELU},     {MOB, 32, 16, 112, 1, 1, 0, false, NONE},
    {MOB, 16, 96, 112, 1, 1, 0, false, RELU},    {MOB, 96, 24, 56, 1, 1, 0, false, NONE},
    {MOB, 24, 144, 56, 1, 1, 0, false, RELU},    {MOB, 144, 32, 28, 1, 1, 0, false, NONE},
    {MOB, 32, 192, 28, 1, 1, 0, false, RELU},    {MOB, 192, 64, 14, 1, 1, 0, false, NONE},
    {MOB, 64, 384, 14, 1, 1, 0, false, RELU},    {MOB, 384, 96, 14, 1, 1, 0, false, NONE},
    {MOB, 96, 576, 14, 1, 1, 0, false, RELU},    {MOB, 576, 160, 7, 1, 1, 0, false, NONE},
    {MOB, 160, 960, 7, 1, 1, 0, false, RELU},    {MOB, 960, 320, 7, 1, 1, 0, false, NONE},
    {MOB, 320, 1280, 7, 1, 1, 0, false, RELU},   {MOB, 1280, 1000, 0, 1, 1, 1, false, NONE},
    {VIT, 3, 768, 224, 32, 32, 0, false, NONE},  {VIT, 768, 2304, 0, 1, 1, 50, false, NONE},
    {VIT, 768, 768, 0, 1, 1, 50, true, NONE},    {VIT, 768, 3072, 0, 1, 1, 50, false, GELU},
    {VIT, 3072, 768, 0, 1, 1, 50, true, NONE},
};

enum { OTHER_BYTES = 6 << 20, MOST_TURNS = 200, LEAST_TURNS = 7 };

static void row_major(struct strided_layout *layout)
{
    int64_t stride = 1;
    for (int a = layout->rank - 1; a >= 0; a--) {
        layout->strides[a] = stride;
        stride *= layout->dims[a];
    }
}

static void image(struct strided_layout *layout, int batch, int channels, int size)
{
    *layout = (struct strided_layout){layout->dtype, 4, {batch, channels, size, size}, {0}};
    layout->strides[1] = 1;
    layout->strides[3] = channels;
    layout->strides[2] = (int64_t)channels * size;
    layout->strides[0] = layout->strides[2] * size;
}

static size_t elements(const struct strided_layout *layout)
{
    size_t count = 1;
    for (int a = 0; a < layout->rank; a++)
        count *= (size_t)layout->dims[a];
    return count;
}

static struct product_desc describe(const struct bench_layer *l, int batch, bool int8)
{
    struct product_desc d = {.packed = int8 ? DTYPE_I8 : DTYPE_BF16};
    d.src.dtype = int8 ? DTYPE_U8 : DTYPE_BF16;
    d.dst.dtype = int8 ? DTYPE_U8 : DTYPE_BF16;
    d.weights.dtype = int8 ? DTYPE_I8 : DTYPE_F32;
    if (l->size) {
        d.op = PRODUCT_CONV;
        image(&d.src, batch, l->in, l->size);
        image(&d.dst, batch, l->out, (l->size + l->stride - 1) / l->stride);
        d.weights =
            (struct strided_layout){d.weights.dtype, 4, {l->out, l->in, l->taps, l->taps}, {0}};
        for (int a = 0; a < 2; a++) {
            const int all = (int)(d.dst.dims[2] - 1) * l->stride + l->taps - l->size;
            d.stride[a] = l->stride;
            d.dilation[a] = 1;
            d.pad_begin[a] = l->taps == l->stride ? 0 : l->taps / 2;
            d.pad_end[a] = all - d.pad_begin[a];
        }
    } else {
        d.op = PRODUCT_MATMUL;
        d.src = (struct strided_layout){d.src.dtype, 2, {batch * l->rows, l->in}, {0}};
        d.dst = (struct strided_layout){d.dst.dtype, 2, {batch * l->rows, l->out}, {0}};
        d.weights = (struct strided_layout){d.weights.dtype, 2, {l->in, l->out}, {0}};
        row_major(&d.src);
        row_major(&d.dst);
    }
    row_major(&d.weights);
    return d;
}

struct contender {
    struct onednn_product *product;
    void *packed, *scratch, *dst;
    double best;
};

static void *memory(size_t bytes)
{
    void *block = aligned_alloc(64, size_align(bytes + 64, 64));
    if (!block)
        abort();
    memset(block, 0x3c, bytes);
    return block;
}

static void must(enum status status, const struct error *err)
{
    if (status != STATUS_OK) {
        fprintf(stderr, "bench_products: %s\n", err->message);
        exit(EXIT_FAILURE);
    }
}

static void contender_make(struct contender *c, const struct onednn *onednn,
                           const struct product_desc *desc, const struct epilogue *epilogue,
                           void *weights)
{
    struct error err = {0};
    *c = (struct contender){.best = 1e9};
    must(onednn_product_create(onednn, desc, epilogue, &c->product, &err), &err);
    if (!c->product)
        return;
    const struct packed_layout *wanted = onednn_product_weights(c->product);
    c->packed = memory(packed_layout_bytes(wanted));
    c->scratch = memory(onednn_product_scratch(c->product));
    c->dst = memory(elements(&desc->dst) * dtype_size(desc->dst.dtype));
    must(onednn_reorder(onednn, &desc->weights, weights, wanted, c->packed, &err), &err);
    must(onednn_product_bind(c->product, c->packed, NULL, &err), &err);
}

static void contender_free(struct contender *c)
{
    onednn_product_free(c->product);
    free(c->packed);
    free(c->scratch);
    free(c->dst);
}

static double run(struct contender *c, void *src, const unsigned char *other)
{
    struct error err = {0};
    volatile unsigned sum = 0;
    for (size_t i = 0; i < OTHER_BYTES; i += 64)
        sum += other[i];
    const int64_t begin = clock_thread();
    must(onednn_product_run(c->product, src, NULL, c->dst, c->scratch, &err), &err);
    const double ms = clock_ms(clock_thread() - begin);
    c->best = ms < c->best ? ms : c->best;
    return ms;
}

static void compare(const struct onednn *onednn, const struct bench_layer *l, int batch, bool int8,
                    const char *text)
{
    char label[64];
    (void)snprintf(label, sizeof label, "%-11s %d %-4s %4d-%-4d %dx%d/%-2d %3d %-5s", l->network,
                   batch, int8 ? "int8" : "bf16", l->in, l->out, l->taps, l->taps, l->stride,
                   l->size ? l->size : l->rows, l->residual && !int8 ? "+res" : "");
    if (!strstr(label, text))
        return;
    static float scales[4096];
    for (size_t i = 0; i < COUNT_OF(scales); i++)
        scales[i] = 1e-3f;
    struct value added = {0};
    struct product_desc desc = describe(l, batch, int8);
    struct epilogue epilogue = {.activation = l->activation,
                                .alpha = l->activation == GELU ? 1 : 0,
                                .residual = l->residual ? &added : NULL};
    struct tensor constant = {.data = memory(elements(&desc.weights) * sizeof(float)),
                              .bytes = elements(&desc.weights)};
    if (int8) {
        epilogue = (struct epilogue){0}; /* saturation is the ReLU; Adds are steps of their own */
        desc.scales = scales;
        desc.scale_count = (size_t)l->out;
    }
    desc.weights_constant = &constant;
    unsigned char *other = memory(OTHER_BYTES);
    void *src = memory(elements(&desc.src) * dtype_size(desc.src.dtype));
    struct contender own, theirs;
    contender_make(&theirs, onednn, &desc, &epilogue, constant.data);
    desc.own = true;
    contender_make(&own, onednn, &desc, &epilogue, constant.data);
    double spent = 0;
    for (int t = 0;
         t < MOST_TURNS && own.product && theirs.product && (t < LEAST_TURNS || spent < 60); t++)
        spent += run(&own, src, other) + run(&theirs, src, other);
    if (own.product && theirs.product)
        printf("%s %9.3f %9.3f %6.2f  %s %s\n", label, own.best, theirs.best,
               theirs.best / own.best, onednn_product_name(own.product),
               onednn_product_name(theirs.product));
    fflush(stdout);
    contender_free(&own);
    contender_free(&theirs);
    free(src);
    free(other);
    free(constant.data);
}

int main(int argc, char **argv)
{
    struct onednn *onednn;
    struct error err = {0};
    if (argc > 1 && !isa_hold(argv[1])) {
        fprintf(stderr, "bench_products: this CPU has no variant '%s'\n", argv[1]);
        return EXIT_FAILURE;
    }
    forkjoin_set_threads(1);
    must(onednn_open(&onednn, &err), &err);
    printf("# %s; ms of CPU time: lensd's, oneDNN's, oneDNN's / lensd's\n", simd()->name);
    for (int batch = 1; batch <= 8; batch += 7)
        for (int int8 = 0; int8 < 2; int8++)
            for (size_t i = 0; i < COUNT_OF(layers); i++)
                compare(onednn, &layers[i], batch, int8, argc > 2 ? argv[2] : "");
    onednn_close(onednn);
    return EXIT_SUCCESS;
}
