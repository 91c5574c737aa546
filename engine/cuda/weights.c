#include "engine/cuda/cuda.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/size.h"

struct weight {
    struct weight *next;
    struct tensor *constant;
    enum weight_layout layout;
    enum dtype dtype;
    void *data;
};

static float float_at(const struct tensor *tensor, size_t i)
{
    switch (tensor->dtype) {
    case DTYPE_F32:
        return ((const float *)tensor->data)[i];
    case DTYPE_F16:
        return half_to_float(((const uint16_t *)tensor->data)[i]);
    case DTYPE_BF16:
        return bfloat16_to_float(((const uint16_t *)tensor->data)[i]);
    default:
        return (float)tensor_number(tensor, i);
    }
}

/* A packed constant: rows whose element i comes from source_of(). */
struct packing {
    size_t rows, row;
    size_t channels, taps; /* of a convolution's weights; channels with their padding */
};

static size_t in_eights(size_t count)
{
    return (count + 7) / 8 * 8;
}

static struct packing packing_of(const struct tensor *constant, enum weight_layout layout)
{
    const struct shape *shape = &constant->shape;
    struct packing p = {.rows = 1, .row = shape_count(shape), .taps = 1};
    if (layout == WEIGHT_AS_IS)
        return p;
    const size_t first = (size_t)shape->dims[0], second = (size_t)shape->dims[1];
    for (int d = 2; d < shape->rank; d++)
        p.taps *= (size_t)shape->dims[d];
    p.channels = second;
    switch (layout) {
    case WEIGHT_CONV_ROWS:
        p.channels += p.channels % 2;
        /* fall through */
    case WEIGHT_CONV:
        p.rows = first;
        p.row = p.taps * p.channels;
        break;
    case WEIGHT_DEPTHWISE:
        p.rows = p.taps;
        p.row = first;
        break;
    case WEIGHT_TRANSPOSED:
        p.rows = second;
        p.row = first;
        break;
    default:
        p.rows = first;
        p.row = second;
        break;
    }
    if (layout != WEIGHT_CONV && layout != WEIGHT_DEPTHWISE)
        p.row = in_eights(p.row);
    return p;
}

/* Where element i of row r comes from; SIZE_MAX: it is padding. */
static size_t source_of(const struct tensor *constant, enum weight_layout layout,
                        const struct packing *p, size_t r, size_t i)
{
    const int64_t *dims = constant->shape.dims;
    size_t channel, tap;
    switch (layout) {
    case WEIGHT_AS_IS:
        return i;
    case WEIGHT_DEPTHWISE:
        return i * p->taps + r;
    case WEIGHT_TRANSPOSED:
        return i < (size_t)dims[0] ? i * (size_t)dims[1] + r : SIZE_MAX;
    case WEIGHT_ROWS:
        return i < (size_t)dims[1] ? r * (size_t)dims[1] + i : SIZE_MAX;
    default:
        channel = i % p->channels;
        tap = i / p->channels;
        return channel < (size_t)dims[1] && tap < p->taps
                   ? (r * (size_t)dims[1] + channel) * p->taps + tap
                   : SIZE_MAX;
    }
}

/* float16 has no room beyond: what is finite stays so. */
static uint16_t half_of(float x)
{
    const float greatest = 65504;
    return float_to_half(isfinite(x) ? fminf(fmaxf(x, -greatest), greatest) : x);
}

static void pack_one(const struct tensor *constant, size_t from, enum dtype dtype, void *to)
{
    if (from == SIZE_MAX)
        memset(to, 0, dtype_size(dtype));
    else if (!dtype_is_float(dtype))
        memcpy(to, (const unsigned char *)constant->data + from * dtype_size(dtype),
               dtype_size(dtype));
    else if (dtype == DTYPE_F32)
        *(float *)to = float_at(constant, from);
    else if (dtype == DTYPE_F64)
        *(double *)to = tensor_number(constant, from);
    else
        *(uint16_t *)to = dtype == DTYPE_BF16 ? float_to_bfloat16(float_at(constant, from))
                                              : half_of(float_at(constant, from));
}

/* The host's copy as the device wants it; malloc'ed. NULL when out of memory. */
static void *pack(const struct tensor *constant, enum weight_layout layout, enum dtype dtype,
                  size_t *ret_bytes)
{
    const struct packing p = packing_of(constant, layout);
    const size_t count = p.rows * p.row, size = dtype_size(dtype);
    unsigned char *packed = alloc_array(count ? count : 1, size);
    if (!packed)
        return NULL;
    for (size_t r = 0; r < p.rows; r++)
        for (size_t i = 0; i < p.row; i++)
            pack_one(constant, source_of(constant, layout, &p, r, i), dtype,
                     packed + (r * p.row + i) * size);
    *ret_bytes = count * size;
    return packed;
}

int64_t weights_row(const struct tensor *constant, enum weight_layout layout)
{
    return (int64_t)packing_of(constant, layout).row;
}

static enum status upload(struct backend *backend, struct weight *weight, struct error *err)
{
    size_t bytes = 0;
    void *packed = pack(weight->constant, weight->layout, weight->dtype, &bytes);
    if (!packed)
        return error_set(err, STATUS_NO_MEMORY, "out of memory while packing weights");
    enum status status =
        cuda_check(cudaMalloc(&weight->data, bytes ? bytes : 1), backend->device, "weights", err);
    if (status == STATUS_OK && bytes)
        status = cuda_check(cudaMemcpy(weight->data, packed, bytes, cudaMemcpyHostToDevice),
                            backend->device, "weights", err);
    if (status == STATUS_OK)
        backend->weight_bytes += bytes;
    free(packed);
    return status;
}

enum status weights_get(struct backend *backend, struct tensor *constant, enum weight_layout layout,
                        enum dtype dtype, void **ret, struct error *err)
{
    if (!dtype_is_float(constant->dtype) || !dtype_is_float(dtype))
        dtype = constant->dtype;
    for (struct weight *w = backend->weights; w; w = w->next) {
        if (w->constant == constant && w->layout == layout && w->dtype == dtype) {
            *ret = w->data;
            return STATUS_OK;
        }
    }
    struct weight *weight = calloc(1, sizeof *weight);
    if (!weight)
        return error_set(err, STATUS_NO_MEMORY, "out of memory while packing weights");
    *weight = (struct weight){.next = backend->weights,
                              .constant = tensor_ref(constant),
                              .layout = layout,
                              .dtype = dtype};
    backend->weights = weight; /* weights_free takes it back on failure */
    TRY(upload(backend, weight, err));
    *ret = weight->data;
    return STATUS_OK;
}

void weights_free(struct backend *backend)
{
    while (backend->weights) {
        struct weight *weight = backend->weights;
        backend->weights = weight->next;
        cudaFree(weight->data);
        tensor_unref(weight->constant);
        free(weight);
    }
}
