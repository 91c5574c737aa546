/* Tensors: dtypes, shapes, memory, reference counts, elements as numbers, 16-bit floats. */
#include "engine/tensor/tensor.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "engine/base/float_bits.h"
#include "engine/base/size.h"

/* By dtype; zeros for what lensd does not have. */
static const struct {
    size_t size;
    const char *name, *oip_name;
} dtypes[] = {
#define DTYPE_ROW(id, number, bytes, word, oip) [number] = {bytes, word, oip},
    DTYPE_LIST(DTYPE_ROW)
#undef DTYPE_ROW
};

static bool has_row(enum dtype dtype)
{
    return (size_t)dtype < COUNT_OF(dtypes) && dtypes[dtype].size;
}

size_t dtype_size(enum dtype dtype)
{
    return has_row(dtype) ? dtypes[dtype].size : 0;
}

const char *dtype_name(enum dtype dtype)
{
    return has_row(dtype) ? dtypes[dtype].name : "unknown";
}

const char *dtype_oip_name(enum dtype dtype)
{
    return has_row(dtype) ? dtypes[dtype].oip_name : NULL;
}

bool dtype_is_float(enum dtype dtype)
{
    return dtype == DTYPE_F32 || dtype == DTYPE_F16 || dtype == DTYPE_BF16 || dtype == DTYPE_F64;
}

bool shape_is_known(const struct shape *shape)
{
    if (shape->rank < 0)
        return false;
    for (int i = 0; i < shape->rank; i++)
        if (shape->dims[i] < 0)
            return false;
    return true;
}

bool shape_equal(const struct shape *a, const struct shape *b)
{
    if (a->rank != b->rank)
        return false;
    for (int i = 0; i < a->rank; i++)
        if (a->dims[i] != b->dims[i])
            return false;
    return true;
}

size_t shape_count(const struct shape *shape)
{
    size_t count = 1;
    for (int i = 0; i < shape->rank; i++)
        count *= (size_t)shape->dims[i];
    return count;
}

enum status shape_check(const struct shape *shape, enum dtype dtype, size_t *ret_count,
                        size_t *ret_bytes, struct error *err)
{
    char text[SHAPE_TEXT];
    if (shape->rank < 0 || shape->rank > TENSOR_MAX_RANK)
        return error_set(err, STATUS_SHAPE, "a tensor of rank %d; lensd handles ranks 0 to %d",
                         shape->rank, TENSOR_MAX_RANK);
    size_t element = dtype_size(dtype);
    if (!element)
        return error_set(err, STATUS_UNSUPPORTED, "a tensor of unsupported data type %d",
                         (int)dtype);
    size_t count = 1, ignoring_zeros = element;
    for (int i = 0; i < shape->rank; i++) {
        if (shape->dims[i] < 0)
            return error_set(err, STATUS_SHAPE,
                             "dimension %d of shape %s is %lld, expected 0 or more", i,
                             shape_text(shape, text), (long long)shape->dims[i]);
        size_t dim = (size_t)shape->dims[i];
        count *= dim; /* cannot overflow: ignoring_zeros, never smaller, is checked */
        if (!size_mul(ignoring_zeros, dim ? dim : 1, &ignoring_zeros) ||
            ignoring_zeros > (size_t)INT64_MAX)
            return error_set(err, STATUS_SHAPE, "shape %s is too large to address",
                             shape_text(shape, text));
    }
    if (ret_count)
        *ret_count = count;
    if (ret_bytes)
        *ret_bytes = count * element;
    return STATUS_OK;
}

const char *shape_text(const struct shape *shape, char text[static SHAPE_TEXT])
{
    if (shape->rank < 0)
        return memcpy(text, "[?]", 4);
    size_t used = 1;
    text[0] = '[';
    text[1] = '\0';
    for (int i = 0; i < shape->rank && i < TENSOR_MAX_RANK && used < SHAPE_TEXT; i++) {
        int n = shape->dims[i] == DIM_UNKNOWN
                    ? snprintf(text + used, SHAPE_TEXT - used, "%s?", i ? ", " : "")
                    : snprintf(text + used, SHAPE_TEXT - used, "%s%lld", i ? ", " : "",
                               (long long)shape->dims[i]);
        used += (size_t)n;
    }
    if (used > SHAPE_TEXT - 2)
        used = SHAPE_TEXT - 2;
    text[used] = ']';
    text[used + 1] = '\0';
    return text;
}

/* Smaller blocks are not worth a mapping. */
#define MAPPED_BYTES ((size_t)256 << 10)

static bool is_mapped(const struct memory_budget *budget, size_t bytes)
{
    return budget && budget->is_temporary && bytes >= MAPPED_BYTES;
}

enum status memory_alloc(struct memory_budget *budget, size_t bytes, void **ret, struct error *err)
{
    const size_t before =
        budget ? atomic_fetch_add_explicit(&budget->used, bytes, memory_order_relaxed) : 0;
    size_t after;
    if (budget && budget->limit && (!size_add(before, bytes, &after) || after > budget->limit)) {
        atomic_fetch_sub_explicit(&budget->used, bytes, memory_order_relaxed);
        return error_set(err, STATUS_NO_MEMORY,
                         "%zu bytes more would pass the memory limit of %zu bytes (%zu in use); "
                         "raise --memory, or give the process more memory",
                         bytes, budget->limit, before);
    }
    void *data = NULL;
    if (is_mapped(budget, bytes))
        data = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    else if (bytes <= SIZE_MAX - TENSOR_ALIGN)
        data = aligned_alloc(TENSOR_ALIGN, size_align(bytes + !bytes, TENSOR_ALIGN));
    if (data && data != MAP_FAILED) {
        *ret = data;
        return STATUS_OK;
    }
    if (budget)
        atomic_fetch_sub_explicit(&budget->used, bytes, memory_order_relaxed);
    return error_set(err, STATUS_NO_MEMORY, "out of memory: a block of %zu bytes", bytes);
}

void memory_free(struct memory_budget *budget, void *data, size_t bytes)
{
    if (!data)
        return;
    if (is_mapped(budget, bytes))
        munmap(data, bytes);
    else
        free(data);
    if (budget)
        atomic_fetch_sub_explicit(&budget->used, bytes, memory_order_relaxed);
}

static struct tensor *tensor_object(enum dtype dtype, const struct shape *shape, size_t bytes)
{
    struct tensor *tensor = calloc(1, sizeof *tensor);
    if (!tensor)
        return NULL;
    tensor->dtype = dtype;
    tensor->shape = *shape;
    tensor->bytes = bytes;
    atomic_init(&tensor->refs, 1);
    return tensor;
}

enum status tensor_create(struct memory_budget *budget, enum dtype dtype, const struct shape *shape,
                          struct tensor **ret, struct error *err)
{
    size_t bytes;
    TRY(shape_check(shape, dtype, NULL, &bytes, err));
    void *data = NULL;
    if (bytes)
        TRY(memory_alloc(budget, bytes, &data, err));
    struct tensor *tensor = tensor_object(dtype, shape, bytes);
    if (!tensor) {
        memory_free(budget, data, bytes);
        return error_no_memory(err, "for a tensor");
    }
    tensor->data = data;
    tensor->memory = TENSOR_OWNED;
    tensor->budget = budget;
    *ret = tensor;
    return STATUS_OK;
}

enum status tensor_view(struct tensor *base, const struct shape *shape, struct tensor **ret,
                        struct error *err)
{
    size_t bytes;
    TRY(shape_check(shape, base->dtype, NULL, &bytes, err));
    if (bytes != base->bytes) {
        char from[SHAPE_TEXT], to[SHAPE_TEXT];
        return error_set(err, STATUS_SHAPE, "shape %s cannot be viewed as %s",
                         shape_text(&base->shape, from), shape_text(shape, to));
    }
    struct tensor *tensor = tensor_object(base->dtype, shape, bytes);
    if (!tensor)
        return error_no_memory(err, NULL);
    tensor->device = base->device;
    tensor->data = base->data;
    tensor->memory = TENSOR_VIEW;
    tensor->base = tensor_ref(base->memory == TENSOR_VIEW ? base->base : base);
    *ret = tensor;
    return STATUS_OK;
}

enum status tensor_wrap(enum dtype dtype, const struct shape *shape, struct device_id device,
                        void *data, void (*release)(void *context, void *data), void *context,
                        struct tensor **ret, struct error *err)
{
    size_t bytes;
    TRY(shape_check(shape, dtype, NULL, &bytes, err));
    struct tensor *tensor = tensor_object(dtype, shape, bytes);
    if (!tensor)
        return error_no_memory(err, NULL);
    tensor->device = device;
    tensor->data = data;
    tensor->memory = TENSOR_WRAPPED;
    tensor->release = release;
    tensor->release_context = context;
    *ret = tensor;
    return STATUS_OK;
}

struct tensor *tensor_ref(struct tensor *tensor)
{
    if (tensor)
        atomic_fetch_add_explicit(&tensor->refs, 1, memory_order_relaxed);
    return tensor;
}

void tensor_unref(struct tensor *tensor)
{
    if (!tensor)
        return;
    /* acq_rel: whoever drops the last reference must see every other holder's writes. */
    int before = atomic_fetch_sub_explicit(&tensor->refs, 1, memory_order_acq_rel);
    assert(before > 0);
    if (before > 1)
        return;
    switch (tensor->memory) {
    case TENSOR_OWNED:
        memory_free(tensor->budget, tensor->data, tensor->bytes);
        break;
    case TENSOR_VIEW:
        tensor_unref(tensor->base);
        break;
    case TENSOR_WRAPPED:
        if (tensor->release)
            tensor->release(tensor->release_context, tensor->data);
        break;
    }
    free(tensor);
}

int64_t tensor_int(const struct tensor *tensor, size_t i)
{
    switch (tensor->dtype) {
    case DTYPE_U8:
    case DTYPE_BOOL:
        return ((const uint8_t *)tensor->data)[i];
    case DTYPE_I8:
        return ((const int8_t *)tensor->data)[i];
    case DTYPE_U16:
        return ((const uint16_t *)tensor->data)[i];
    case DTYPE_I16:
        return ((const int16_t *)tensor->data)[i];
    case DTYPE_I32:
        return ((const int32_t *)tensor->data)[i];
    case DTYPE_U32:
        return ((const uint32_t *)tensor->data)[i];
    case DTYPE_I64:
        return ((const int64_t *)tensor->data)[i];
    case DTYPE_U64: {
        uint64_t value = ((const uint64_t *)tensor->data)[i];
        return value > INT64_MAX ? INT64_MAX : (int64_t)value;
    }
    default: {
        double value = tensor_number(tensor, i);
        if (value != value)
            return 0;
        if (value >= 9223372036854775808.0)
            return INT64_MAX;
        if (value <= -9223372036854775808.0)
            return INT64_MIN;
        return (int64_t)value;
    }
    }
}

double tensor_number(const struct tensor *tensor, size_t i)
{
    switch (tensor->dtype) {
    case DTYPE_F32:
        return ((const float *)tensor->data)[i];
    case DTYPE_F64:
        return ((const double *)tensor->data)[i];
    case DTYPE_F16:
        return half_to_float(((const uint16_t *)tensor->data)[i]);
    case DTYPE_BF16:
        return bfloat16_to_float(((const uint16_t *)tensor->data)[i]);
    case DTYPE_U64:
        return (double)((const uint64_t *)tensor->data)[i];
    case DTYPE_NONE:
        return 0;
    default:
        return (double)tensor_int(tensor, i);
    }
}

float half_to_float(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000) << 16;
    uint32_t exponent = (half >> 10) & 0x1f, mantissa = half & 0x3ff;
    if (exponent == 0x1f)
        return float_from_bits(sign | 0x7f800000 | mantissa << 13);
    if (exponent)
        return float_from_bits(sign | (exponent + 112) << 23 | mantissa << 13);
    /* subnormal: mantissa * 2^-24, exact in float */
    float value = (float)mantissa * 0x1p-24f;
    return sign ? -value : value;
}

uint16_t float_to_half(float value)
{
    uint32_t bits = float_bits(value);
    uint16_t sign = (uint16_t)(bits >> 16 & 0x8000);
    uint32_t magnitude = bits & 0x7fffffff;
    if (magnitude > 0x7f800000)
        return (uint16_t)(sign | 0x7e00 | (magnitude >> 13 & 0x1ff));
    if (magnitude >= 0x477ff000) /* 65520 and above round to infinity */
        return sign | 0x7c00;
    if (magnitude < 0x38800000) {
        /* subnormal result: adding 0.5 puts the 10 bits at the end of the mantissa, rounded to
         * nearest even by the addition itself */
        uint32_t rounded = float_bits(float_from_bits(magnitude) + 0.5f) - float_bits(0.5f);
        return (uint16_t)(sign | rounded);
    }
    uint32_t odd = magnitude >> 13 & 1;
    return (uint16_t)(sign | ((magnitude - 0x38000000 + 0xfff + odd) >> 13));
}

float bfloat16_to_float(uint16_t value)
{
    return float_from_bits((uint32_t)value << 16);
}

uint16_t float_to_bfloat16(float value)
{
    return float_narrow_bfloat16(value);
}
