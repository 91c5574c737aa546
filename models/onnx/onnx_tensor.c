/* TensorProto to memory.
 *
 * Easy to get wrong (onnx.proto, TensorProto): values are in exactly one of raw_data, the typed
 * list of their data type, or an external file; float16 and bfloat16 in int32_data are bit
 * patterns; lists may be packed or not; a tensor of no elements has no data field at all; raw_data
 * is little-endian and not aligned; bool is one byte an element. */
#include "models/onnx/onnx_file.h"

#include <string.h>

#include "engine/base/size.h"
#include "engine/tensor/tensor_file.h"
#include "models/onnx/onnx_wire.h"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "raw tensor data is copied as it is: lensd needs a little-endian machine"
#endif

/* Size of a tensor object without its elements. The budget counts this size, because a file may
 * have a million empty tensors. The sum with the elements' bytes cannot overflow, because
 * shape_check() limits the elements to INT64_MAX bytes. */
#define TENSOR_OVERHEAD 320

/* Smaller tensors are read, because a mapping costs more than copying a few pages. */
#define MAPPED_BYTES ((size_t)128 << 10)

enum status onnx_dtype(int32_t number, enum dtype *ret, struct error *err)
{
    static const char *const others[] = {
        [8] = "string", [14] = "complex64", [15] = "complex128", [24] = "float8e8m0"};
    const struct onnx_packed *packed = onnx_packed_find(number);
    if (number == 0)
        return error_set(err, STATUS_MODEL, "the data type is not given");
    if (number > 0 && dtype_size((enum dtype)number)) {
        *ret = (enum dtype)number;
        return STATUS_OK;
    }
    if (packed)
        return error_set(err, STATUS_UNSUPPORTED,
                         "data type %s is supported only in constants that DequantizeLinear or "
                         "Cast reads, not in what a run computes",
                         packed->name);
    if (number > 0 && (size_t)number < COUNT_OF(others) && others[number])
        return error_set(err, STATUS_UNSUPPORTED, "data type %s is not supported by lensd",
                         others[number]);
    return error_set(err, STATUS_MODEL, "%d is not a data type of ONNX", (int)number);
}

/* ---- which field holds the values ---- */

struct tensor_field {
    const char *name;
    enum dtype dtype; /* data type of the elements of a typed list; DTYPE_NONE: raw_data, or
                         external data */
    size_t count;     /* elements of a list, bytes of raw_data; 0: the field is absent */
    const void *list;
};

/* Returns the type of the list that holds elements of `dtype`. */
static enum dtype list_dtype(enum dtype dtype)
{
    return dtype == DTYPE_U32                             ? DTYPE_U64
           : dtype_size(dtype) == 8 || dtype == DTYPE_F32 ? dtype
                                                          : DTYPE_I32;
}

/* Returns the range of raw_data in the file; {0, 0}: the tensor has none. */
static struct wire_reference raw_place(const Onnx__TensorProto *proto)
{
    struct wire_reference reference = {0, 0};
    if (proto->has_raw_data && proto->raw_data.len == sizeof reference)
        memcpy(&reference, proto->raw_data.data, sizeof reference);
    return reference;
}

/* Finds the field that has the values. It is an error if two fields have values, or if the list of
 * another data type has values. */
static enum status find_field(const Onnx__TensorProto *proto, enum dtype dtype, size_t count,
                              struct tensor_field *ret, struct error *err)
{
    const struct tensor_field fields[] = {
        {"external data", DTYPE_NONE, proto->data_location == 1, NULL},
        {"float_data", DTYPE_F32, proto->n_float_data, proto->float_data},
        {"int32_data", DTYPE_I32, proto->n_int32_data, proto->int32_data},
        {"int64_data", DTYPE_I64, proto->n_int64_data, proto->int64_data},
        {"double_data", DTYPE_F64, proto->n_double_data, proto->double_data},
        {"uint64_data", DTYPE_U64, proto->n_uint64_data, proto->uint64_data},
        {"raw_data", DTYPE_NONE, (size_t)raw_place(proto).size, NULL},
    };
    size_t own = 0;
    while (fields[own].dtype != list_dtype(dtype))
        own++;
    *ret = (struct tensor_field){.name = NULL};
    if (proto->data_location != 0 && proto->data_location != 1)
        return error_set(err, STATUS_MODEL, "data_location %d is neither DEFAULT nor EXTERNAL",
                         (int)proto->data_location);
    for (size_t i = 0; i < COUNT_OF(fields); i++) {
        if (fields[i].count && ret->name)
            return error_set(err, STATUS_MODEL, "values in both %s and %s", ret->name,
                             fields[i].name);
        *ret = fields[i].count ? fields[i] : *ret;
    }
    if (!ret->name && count)
        return error_set(err, STATUS_MODEL, "%zu elements are declared but there is no data",
                         count);
    if (ret->dtype != DTYPE_NONE && ret->dtype != list_dtype(dtype))
        return error_set(err, STATUS_MODEL, "%s values in %s, expected %s or raw_data",
                         dtype_name(dtype), ret->name, fields[own].name);
    return STATUS_OK;
}

/* Makes every byte 0 or 1, as kernels expect. In files, any byte except 0 means true. */
static void tidy_bools(struct tensor *tensor)
{
    uint8_t *values = tensor->data;
    for (size_t i = 0; i < tensor->bytes; i++)
        values[i] = values[i] != 0;
}

/* Copies a list of int32 or uint64 numbers to a tensor of a narrower type. */
static enum status take_list(const struct tensor_field *field, struct tensor *tensor,
                             struct error *err)
{
    static const struct {
        int64_t low, high;
    } ranges[] = {[DTYPE_U8] = {0, UINT8_MAX},          [DTYPE_I8] = {INT8_MIN, INT8_MAX},
                  [DTYPE_U16] = {0, UINT16_MAX},        [DTYPE_F16] = {0, UINT16_MAX},
                  [DTYPE_BF16] = {0, UINT16_MAX},       [DTYPE_BOOL] = {0, 1},
                  [DTYPE_I16] = {INT16_MIN, INT16_MAX}, [DTYPE_U32] = {0, UINT32_MAX}};
    const int64_t low = ranges[tensor->dtype].low, high = ranges[tensor->dtype].high;
    const size_t size = dtype_size(tensor->dtype);
    for (size_t i = 0; i < field->count; i++) {
        const int64_t number = field->dtype == DTYPE_I32 ? ((const int32_t *)field->list)[i]
                                                         : ((const int64_t *)field->list)[i];
        if (number < low || number > high)
            return error_set(err, STATUS_MODEL,
                             field->dtype == DTYPE_I32
                                 ? "element %zu is %lld, outside %lld to %lld"
                                 : "element %zu is %llu, outside %lld to %lld",
                             i, (long long)number, (long long)low, (long long)high);
        memcpy((char *)tensor->data + i * size, &number, size);
    }
    return STATUS_OK;
}

/* Copies the values into the tensor: from the list, or from the bytes at `place`. */
static enum status fill(const struct onnx_file *file, const struct tensor_field *field,
                        bool is_external, const struct onnx_external *place, struct tensor *tensor,
                        struct error *err)
{
    if (!tensor->bytes)
        return STATUS_OK;
    if (field->dtype != DTYPE_NONE && field->dtype != tensor->dtype)
        return take_list(field, tensor, err);
    if (is_external)
        TRY(onnx_external_read(place, tensor->data, tensor->bytes, err));
    else
        memcpy(tensor->data, field->list ? field->list : file->data + place->offset, tensor->bytes);
    if (tensor->dtype == DTYPE_BOOL)
        tidy_bools(tensor);
    return STATUS_OK;
}

/* True for large tensors at an offset that is aligned for their elements (writers usually store
 * tensors without gaps). Bools are not mapped, because they are normalised in place. */
static bool is_worth_mapping(const struct onnx_external *place, enum dtype dtype, size_t bytes)
{
    return place->fd >= 0 && bytes >= MAPPED_BYTES && place->offset % dtype_size(dtype) == 0 &&
           dtype != DTYPE_BOOL;
}

/* Reads elements. `declared` is the tensor's shape, or for packed elements [bytes]. */
static enum status read_elements(struct onnx_file *file, const Onnx__TensorProto *proto,
                                 enum dtype dtype, const struct shape *declared,
                                 struct tensor **ret, struct error *err)
{
    const struct shape shape = *declared;
    size_t count = 0, bytes = 0;
    TRY(shape_check(&shape, dtype, &count, &bytes, err));
    struct tensor_field field;
    TRY(find_field(proto, dtype, count, &field, err));
    struct onnx_external place = {.fd = -1};
    const struct wire_reference raw = raw_place(proto);
    if (raw.offset > file->size || raw.size > file->size - raw.offset)
        return error_set(err, STATUS_INTERNAL, "raw data lies outside the file");
    const bool is_external = proto->data_location == 1, is_raw = !is_external && !field.list;
    if (is_external)
        TRY(onnx_external_find(file, proto, bytes, &place, err));
    else if (field.count != (is_raw ? bytes : count))
        return error_set(err, STATUS_MODEL, "%s of shape %s needs %zu %s in %s, found %zu",
                         dtype_name(dtype), SHAPE_STRING(&shape), is_raw ? bytes : count,
                         is_raw ? "bytes" : "elements", field.name, field.count);
    else if (is_raw)
        place = (struct onnx_external){.fd = file->fd, .offset = raw.offset};
    struct tensor *tensor;
    /* Mapped pages are not charged, because the kernel can reclaim them. */
    if (is_worth_mapping(&place, dtype, bytes) &&
        tensor_from_file(place.fd, place.offset, dtype, &shape, &tensor, NULL) == STATUS_OK) {
        const enum status status = onnx_charge(file, TENSOR_OVERHEAD, err);
        if (status == STATUS_OK)
            *ret = tensor;
        else
            tensor_unref(tensor);
        return status;
    }
    TRY(onnx_charge(file, bytes + TENSOR_OVERHEAD, err)); /* not mapped */
    TRY(tensor_create(NULL, dtype, &shape, &tensor, err));
    enum status status = fill(file, &field, is_external, &place, tensor, err);
    if (status != STATUS_OK) {
        tensor_unref(tensor);
        return status;
    }
    *ret = tensor;
    return STATUS_OK;
}

/* Reads the stored bytes, then widens each element. */
static enum status read_packed(struct onnx_file *file, const Onnx__TensorProto *proto,
                               const struct onnx_packed *packed, const struct shape *shape,
                               struct tensor **ret, struct error *err)
{
    size_t count, bytes;
    struct tensor *stored, *tensor;
    TRY(shape_check(shape, packed->dtype, &count, &bytes, err));
    const size_t each = 8 / packed->bits;
    const struct shape as_bytes = SHAPE((int64_t)(count / each + (count % each != 0)));
    TRY(read_elements(file, proto, DTYPE_U8, &as_bytes, &stored, err));
    enum status status = onnx_charge(file, bytes + TENSOR_OVERHEAD, err);
    IF_OK(status, tensor_create(NULL, packed->dtype, shape, &tensor, err));
    if (status == STATUS_OK) {
        onnx_packed_widen(packed, stored->data, count, tensor->data);
        *ret = tensor;
    }
    tensor_unref(stored);
    return status;
}

enum status onnx_tensor_read(struct onnx_file *file, const Onnx__TensorProto *proto,
                             struct tensor **ret, struct error *err)
{
    const struct onnx_packed *packed = onnx_packed_find(proto->data_type);
    enum dtype dtype = DTYPE_NONE;
    if (!packed)
        TRY(onnx_dtype(proto->data_type, &dtype, err));
    if (proto->segment)
        return error_set(err, STATUS_UNSUPPORTED, "tensors stored in segments are not supported");
    if (proto->n_dims > TENSOR_MAX_RANK)
        return error_set(err, STATUS_UNSUPPORTED, "rank %zu; lensd handles ranks 0 to %d",
                         proto->n_dims, TENSOR_MAX_RANK);
    struct shape shape = {.rank = (int)proto->n_dims};
    for (size_t i = 0; i < proto->n_dims; i++)
        shape.dims[i] = proto->dims[i];
    return packed ? read_packed(file, proto, packed, &shape, ret, err)
                  : read_elements(file, proto, dtype, &shape, ret, err);
}

/* ---- sparse tensors ---- */

/* Sets *ret to the position of entry i in the dense tensor. `indices` has positions, [n], or an
 * index for each dimension, [n, rank]. Returns false if an index is out of range. */
static bool sparse_position(const struct tensor *indices, size_t i, const struct shape *shape,
                            size_t count, size_t *ret)
{
    const int64_t *index = indices->data;
    if (indices->shape.rank == 1) {
        if (index[i] < 0 || (uint64_t)index[i] >= count)
            return false;
        *ret = (size_t)index[i];
        return true;
    }
    size_t position = 0;
    for (int d = 0; d < shape->rank; d++) {
        int64_t at = index[i * (size_t)shape->rank + (size_t)d];
        if (at < 0 || at >= shape->dims[d])
            return false;
        position = position * (size_t)shape->dims[d] + (size_t)at;
    }
    *ret = position;
    return true;
}

static enum status sparse_fill(const struct tensor *values, const struct tensor *indices,
                               const struct shape *shape, struct tensor *dense, struct error *err)
{
    size_t n = shape_count(&values->shape), count = shape_count(shape);
    size_t element = dtype_size(values->dtype);
    bool per_dim = indices->shape.rank == 2 && indices->shape.dims[1] == shape->rank;
    if (values->shape.rank != 1 || indices->dtype != DTYPE_I64 ||
        (indices->shape.rank != 1 && !per_dim) || (size_t)indices->shape.dims[0] != n)
        return error_set(err, STATUS_MODEL,
                         "a sparse tensor needs values [n] and int64 indices [n] or [n, rank]");
    if (dense->bytes)
        memset(dense->data, 0, dense->bytes);
    size_t before = 0;
    for (size_t i = 0; i < n; i++) {
        size_t position;
        if (!sparse_position(indices, i, shape, count, &position))
            return error_set(err, STATUS_MODEL, "sparse index %zu lies outside the tensor", i);
        if (i && position <= before)
            return error_set(err, STATUS_MODEL, "sparse indices are not ascending at %zu", i);
        memcpy((char *)dense->data + position * element, (const char *)values->data + i * element,
               element);
        before = position;
    }
    return STATUS_OK;
}

enum status onnx_sparse_read(struct onnx_file *file, const Onnx__SparseTensorProto *proto,
                             struct tensor **ret, struct error *err)
{
    if (!proto->values || !proto->indices || proto->n_dims > TENSOR_MAX_RANK || !proto->n_dims)
        return error_set(err, STATUS_MODEL, "a sparse tensor needs values, indices and dims");
    struct shape shape = {.rank = (int)proto->n_dims};
    for (size_t i = 0; i < proto->n_dims; i++)
        shape.dims[i] = proto->dims[i];
    struct tensor *values = NULL, *indices = NULL, *dense = NULL;
    size_t bytes;
    enum dtype dtype;
    enum status status = onnx_dtype(proto->values->data_type, &dtype, err);
    IF_OK(status, onnx_tensor_read(file, proto->values, &values, err));
    IF_OK(status, onnx_tensor_read(file, proto->indices, &indices, err));
    IF_OK(status, shape_check(&shape, values->dtype, NULL, &bytes, err));
    IF_OK(status, onnx_charge(file, bytes, err));
    IF_OK(status, tensor_create(NULL, values->dtype, &shape, &dense, err));
    IF_OK(status, sparse_fill(values, indices, &shape, dense, err));
    tensor_unref(values);
    tensor_unref(indices);
    if (status != STATUS_OK) {
        tensor_unref(dense);
        return status;
    }
    *ret = dense;
    return STATUS_OK;
}
