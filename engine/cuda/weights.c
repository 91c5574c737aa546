#include "engine/cuda/cuda.h"

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

/* Where element i of the packed constant comes from. */
static size_t source_of(const struct tensor *constant, enum weight_layout layout, size_t i)
{
    if (layout == WEIGHT_AS_IS)
        return i;
    const int64_t *dims = constant->shape.dims;
    size_t channels = (size_t)dims[1], taps = 1;
    for (int d = 2; d < constant->shape.rank; d++)
        taps *= (size_t)dims[d];
    size_t channel = i % channels, tap = i / channels % taps, m = i / channels / taps;
    return (m * channels + channel) * taps + tap;
}

/* The host's copy as the device wants it; malloc'ed. NULL when out of memory. */
static void *pack(const struct tensor *constant, enum weight_layout layout, enum dtype dtype)
{
    size_t count = shape_count(&constant->shape);
    void *packed = alloc_array(count ? count : 1, dtype_size(dtype));
    if (!packed)
        return NULL;
    for (size_t i = 0; i < count; i++) {
        size_t from = source_of(constant, layout, i);
        if (!dtype_is_float(dtype))
            memcpy((unsigned char *)packed + i * dtype_size(dtype),
                   (const unsigned char *)constant->data + from * dtype_size(dtype),
                   dtype_size(dtype));
        else if (dtype == DTYPE_F32)
            ((float *)packed)[i] = float_at(constant, from);
        else if (dtype == DTYPE_F64)
            ((double *)packed)[i] = tensor_number(constant, from);
        else
            ((uint16_t *)packed)[i] = dtype == DTYPE_BF16
                                          ? float_to_bfloat16(float_at(constant, from))
                                          : float_to_half(float_at(constant, from));
    }
    return packed;
}

static enum status upload(struct backend *backend, struct weight *weight, struct error *err)
{
    size_t bytes = shape_count(&weight->constant->shape) * dtype_size(weight->dtype);
    void *packed = pack(weight->constant, weight->layout, weight->dtype);
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
