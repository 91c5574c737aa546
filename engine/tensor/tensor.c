/* Tensors: dtypes, shapes, memory, reference counts, elements as numbers. */
#include "engine/tensor/tensor.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "engine/base/size.h"
#include "engine/base/text.h"

/* Indexed by enum dtype; a size of 0 marks numbers without a dtype. */
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
                             SHAPE_STRING(shape), (long long)shape->dims[i]);
        size_t dim = (size_t)shape->dims[i];
        count *= dim; /* an overflow also makes ignoring_zeros overflow */
        if (!size_mul(ignoring_zeros, dim ? dim : 1, &ignoring_zeros) ||
            ignoring_zeros > (size_t)INT64_MAX)
            return error_set(err, STATUS_SHAPE, "shape %s is too large to address",
                             SHAPE_STRING(shape));
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
    memcpy(text, "[", 2);
    for (int i = 0; i < shape->rank && i < TENSOR_MAX_RANK; i++) {
        const char *comma = i ? ", " : "";
        if (shape->dims[i] == DIM_UNKNOWN)
            text_append(text, SHAPE_TEXT - 1, comma, "?");
        else
            text_append(text, SHAPE_TEXT - 1, comma, "%lld", (long long)shape->dims[i]);
    }
    text_append(text, SHAPE_TEXT, "", "]");
    return text;
}

/* Smaller blocks are not mapped. */
#define MAPPED_BYTES ((size_t)256 << 10)

static bool is_mapped(const struct memory_budget *budget, size_t bytes)
{
    return budget && budget->is_temporary && bytes >= MAPPED_BYTES;
}

static bool fits(size_t used, size_t bytes, size_t limit)
{
    size_t sum;
    return !limit || (size_add(used, bytes, &sum) && sum <= limit);
}

/* `full` is the budget that has no room: `budget` or its `whole`. */
static enum status refuse(const struct memory_budget *budget, const struct memory_budget *full,
                          size_t bytes, struct error *err)
{
    const size_t limit = atomic_load_explicit(&full->limit, memory_order_relaxed);
    const size_t own = atomic_load_explicit(&budget->used, memory_order_relaxed);
    if (!budget->whole)
        return error_set(err, STATUS_NO_MEMORY,
                         "%zu bytes more would exceed the memory limit of %zu bytes (%zu in use); "
                         "raise --memory, or give the process more memory",
                         bytes, limit, own);
    if (full == budget || !fits(own, bytes, limit))
        return error_set(err, STATUS_INVALID,
                         "the request's values make tensors that are too large: %.1f MiB in "
                         "addition to %.1f MiB, but a forward pass may take %.1f MiB; send values "
                         "that make smaller ones, or give the process more memory",
                         (double)bytes / (1 << 20), (double)own / (1 << 20),
                         (double)limit / (1 << 20));
    return error_set(
        err, STATUS_SHORT_OF_MEMORY,
        "other requests use the memory: a tensor of this one needs %.1f MiB; try again soon",
        (double)bytes / (1 << 20));
}

enum status memory_charge(struct memory_budget *budget, size_t bytes, struct error *err)
{
    for (struct memory_budget *b = budget; b; b = b->whole) {
        const size_t limit = atomic_load_explicit(&b->limit, memory_order_relaxed);
        size_t used = atomic_load_explicit(&b->used, memory_order_relaxed);
        bool is_charged = false;
        while (!is_charged && fits(used, bytes, limit))
            is_charged = atomic_compare_exchange_weak_explicit(
                &b->used, &used, used + bytes, memory_order_relaxed, memory_order_relaxed);
        if (is_charged)
            continue;
        for (struct memory_budget *charged = budget; charged != b; charged = charged->whole)
            atomic_fetch_sub_explicit(&charged->used, bytes, memory_order_relaxed);
        return refuse(budget, b, bytes, err);
    }
    return STATUS_OK;
}

void memory_uncharge(struct memory_budget *budget, size_t bytes)
{
    for (; budget; budget = budget->whole)
        atomic_fetch_sub_explicit(&budget->used, bytes, memory_order_relaxed);
}

enum status memory_alloc(struct memory_budget *budget, size_t bytes, void **ret, struct error *err)
{
    TRY(memory_charge(budget, bytes, err));
    void *data = NULL;
    if (is_mapped(budget, bytes))
        data = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    else if (bytes <= SIZE_MAX - TENSOR_ALIGN)
        data = aligned_alloc(TENSOR_ALIGN, size_align(bytes + !bytes, TENSOR_ALIGN));
    if (data && data != MAP_FAILED) {
        *ret = data;
        return STATUS_OK;
    }
    memory_uncharge(budget, bytes);
    return error_set(err, STATUS_NO_MEMORY, "out of memory: a block of %zu bytes", bytes);
}

void memory_free_charged(struct memory_budget *budget, void *data, size_t bytes)
{
    if (data && is_mapped(budget, bytes))
        munmap(data, bytes);
    else
        free(data);
}

void memory_free(struct memory_budget *budget, void *data, size_t bytes)
{
    memory_free_charged(budget, data, bytes);
    if (data)
        memory_uncharge(budget, bytes);
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

/* Returns a view of `bytes` bytes of `base` from `offset` on. */
static enum status view_bytes(struct tensor *base, size_t offset, const struct shape *shape,
                              size_t bytes, struct tensor **ret, struct error *err)
{
    struct tensor *tensor = tensor_object(base->dtype, shape, bytes);
    TRY(check_memory(tensor, NULL, err));
    tensor->data = bytes ? (char *)base->data + offset : NULL;
    tensor->memory = TENSOR_VIEW;
    tensor->base = tensor_ref(base->memory == TENSOR_VIEW ? base->base : base);
    *ret = tensor;
    return STATUS_OK;
}

enum status tensor_view(struct tensor *base, const struct shape *shape, struct tensor **ret,
                        struct error *err)
{
    size_t bytes;
    TRY(shape_check(shape, base->dtype, NULL, &bytes, err));
    if (bytes != base->bytes)
        return error_set(err, STATUS_SHAPE, "shape %s cannot be viewed as %s",
                         SHAPE_STRING(&base->shape), SHAPE_STRING(shape));
    return view_bytes(base, 0, shape, bytes, ret, err);
}

enum status tensor_part(struct tensor *base, int part, int parts, struct tensor **ret,
                        struct error *err)
{
    struct shape shape = base->shape;
    const size_t bytes = base->bytes / (size_t)parts;
    if (parts > 1)
        shape.dims[0] /= parts;
    return view_bytes(base, (size_t)part * bytes, &shape, bytes, ret, err);
}

bool tensor_keep(struct tensor *tensor, struct memory_budget *whole)
{
    struct tensor *owner = tensor->memory == TENSOR_VIEW ? tensor->base : tensor;
    struct memory_budget *run = owner->memory == TENSOR_OWNED ? owner->budget : NULL;
    if (!whole || !run)
        return false;
    if (run->whole == whole) {
        atomic_fetch_sub_explicit(&run->used, owner->bytes, memory_order_relaxed);
        owner->budget = run = whole;
    }
    return run == whole;
}

enum status tensor_wrap(enum dtype dtype, const struct shape *shape, void *data,
                        void (*release)(void *context, void *data), void *context,
                        struct tensor **ret, struct error *err)
{
    size_t bytes;
    TRY(shape_check(shape, dtype, NULL, &bytes, err));
    struct tensor *tensor = tensor_object(dtype, shape, bytes);
    TRY(check_memory(tensor, NULL, err));
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
    /* acq_rel: the thread that drops the last reference must see the other threads' writes. */
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

#define INTEGER_AT(name, type)                                                                     \
    case DTYPE_##name:                                                                             \
        return ((const type *)tensor->data)[i];

int64_t tensor_int(const struct tensor *tensor, size_t i)
{
    switch (tensor->dtype) {
        INTEGER_AT(U8, uint8_t)
        INTEGER_AT(BOOL, uint8_t)
        INTEGER_AT(I8, int8_t)
        INTEGER_AT(U16, uint16_t)
        INTEGER_AT(I16, int16_t)
        INTEGER_AT(I32, int32_t)
        INTEGER_AT(U32, uint32_t)
        INTEGER_AT(I64, int64_t)
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
        return value <= -9223372036854775808.0 ? INT64_MIN : (int64_t)value;
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
