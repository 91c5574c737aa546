/* Tensors: dtype, shape, device, data.
 *
 * A tensor is a reference-counted object. Its bytes are contiguous, row-major, little-endian,
 * 64-byte aligned when lensd allocated them, else aligned to their elements. Tensors are immutable
 * once shared: its creator fills it, then all only read. Reference counts are atomic;
 * everything else is "one thread at a time".
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/status.h"
#include "engine/tensor/device.h"

#define TENSOR_MAX_RANK 8
#define TENSOR_ALIGN    64

/* Numbers are ONNX's TensorProto.DataType. X(NAME, number, bytes, ONNX word, Open Inference word)
 */
#define DTYPE_LIST(X)                                                                              \
    X(F32, 1, 4, "float32", "FP32")                                                                \
    X(U8, 2, 1, "uint8", "UINT8")                                                                  \
    X(I8, 3, 1, "int8", "INT8")                                                                    \
    X(U16, 4, 2, "uint16", "UINT16")                                                               \
    X(I16, 5, 2, "int16", "INT16")                                                                 \
    X(I32, 6, 4, "int32", "INT32")                                                                 \
    X(I64, 7, 8, "int64", "INT64")                                                                 \
    X(BOOL, 9, 1, "bool", "BOOL")                                                                  \
    X(F16, 10, 2, "float16", "FP16")                                                               \
    X(F64, 11, 8, "float64", "FP64")                                                               \
    X(U32, 12, 4, "uint32", "UINT32")                                                              \
    X(U64, 13, 8, "uint64", "UINT64")                                                              \
    X(BF16, 16, 2, "bfloat16", "BF16")

enum dtype {
    DTYPE_NONE = 0,
#define DTYPE_ENUM(name, number, bytes, word, oip) DTYPE_##name = number,
    DTYPE_LIST(DTYPE_ENUM)
#undef DTYPE_ENUM
};

/* Bytes of one element; 0 for a dtype lensd does not have. */
size_t dtype_size(enum dtype dtype);

/* "float32" …; "unknown" for a dtype lensd does not have. */
const char *dtype_name(enum dtype dtype);

/* "FP32" …, the Open Inference Protocol's word; NULL for a dtype lensd does not have. */
const char *dtype_oip_name(enum dtype dtype);

/* float32, float16, bfloat16 or float64. */
bool dtype_is_float(enum dtype dtype);

/* Extents, outermost first. rank SHAPE_UNKNOWN: nothing is known. A dimension of DIM_UNKNOWN
 * appears only in the declared shapes of graph inputs and outputs (symbolic dimensions); everywhere
 * else a shape is either wholly known or wholly unknown. */
#define SHAPE_UNKNOWN (-1)
#define DIM_UNKNOWN   ((int64_t)-1)

struct shape {
    int rank; /* 0 (a scalar) … TENSOR_MAX_RANK, or SHAPE_UNKNOWN */
    int64_t dims[TENSOR_MAX_RANK];
};

#define SHAPE(...)                                                                                 \
    ((struct shape){sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t), {__VA_ARGS__}})
#define SHAPE_SCALAR ((struct shape){0, {0}})
#define SHAPE_NONE   ((struct shape){SHAPE_UNKNOWN, {0}})

/* Rank known and no dimension DIM_UNKNOWN. */
bool shape_is_known(const struct shape *shape);

bool shape_equal(const struct shape *a, const struct shape *b);

/* Product of the dimensions (1 for a scalar, 0 when any is 0). Only for shapes that went through
 * shape_check(). */
size_t shape_count(const struct shape *shape);

/* The one place where a shape from outside becomes sizes: rank and dims in range, element count and
 * byte size fit (also when a dimension is 0 and the rest would overflow). STATUS_SHAPE otherwise.
 * ret_count and ret_bytes may be NULL. */
enum status shape_check(const struct shape *shape, enum dtype dtype, size_t *ret_count,
                        size_t *ret_bytes, struct error *err) MUST_USE;

/* "[1, 3, 224, 224]", "[]" for a scalar, "[?]" for an unknown one, "?" for an unknown dimension;
 * returns text. */
#define SHAPE_TEXT 128
const char *shape_text(const struct shape *shape, char text[static SHAPE_TEXT]);

/* Bytes that may be allocated on behalf of one load or of the runs of a session; shared by its
 * tensors. limit 0: none. Thread-safe. */
struct memory_budget {
    _Atomic size_t limit, used;
    struct memory_budget *whole; /* what all runs together may take: the bytes of a run are charged
                                    to both; NULL: this is no run's */
    bool is_tight;               /* prefer alternatives that need less memory */
    bool is_temporary; /* large blocks are mapped: the system gets each back when it is freed */
};

/* Charges bytes, or takes a charge back; a NULL budget charges nothing. Beyond the limit nothing is
 * charged: STATUS_NO_MEMORY; of a run (`whole` is set) STATUS_INVALID where it would never fit, and
 * STATUS_SHORT_OF_MEMORY while other runs have what it needs. */
enum status memory_charge(struct memory_budget *budget, size_t bytes, struct error *err) MUST_USE;
void memory_uncharge(struct memory_budget *budget, size_t bytes);

/* A block of at least one byte, aligned to TENSOR_ALIGN and charged to `budget` (NULL: to none), as
 * memory_free is told again. Errors as memory_charge's. */
enum status memory_alloc(struct memory_budget *budget, size_t bytes, void **ret,
                         struct error *err) MUST_USE;
void memory_free(struct memory_budget *budget, void *data, size_t bytes); /* NULL is fine */
/* The same, but the bytes stay charged. */
void memory_free_charged(struct memory_budget *budget, void *data, size_t bytes);

struct tensor {
    enum dtype dtype;
    struct shape shape; /* wholly known */
    struct device_id device;
    void *data; /* NULL only when bytes is 0 */
    size_t bytes;

    /* private to tensor.c */
    enum { TENSOR_OWNED, TENSOR_VIEW, TENSOR_WRAPPED } memory;
    _Atomic int refs;
    struct memory_budget *budget;
    struct tensor *base; /* for views: the tensor that owns the bytes */
    void (*release)(void *context, void *data);
    void *release_context;
};

/* A tensor in host memory, uninitialised. `budget` may be NULL and must outlive the tensor.
 * STATUS_SHAPE, or memory_charge's errors, naming the bytes asked for. The caller owns one
 * reference. */
enum status tensor_create(struct memory_budget *budget, enum dtype dtype, const struct shape *shape,
                          struct tensor **ret, struct error *err) MUST_USE;

/* The same bytes under another shape of equal element count and the same dtype; holds a reference
 * to `base`. */
enum status tensor_view(struct tensor *base, const struct shape *shape, struct tensor **ret,
                        struct error *err) MUST_USE;

/* Part `part` of `parts` along the outermost dimension, which they divide; one part is the whole,
 * of any shape. It holds a reference to `base`. STATUS_NO_MEMORY. */
enum status tensor_part(struct tensor *base, int part, int parts, struct tensor **ret,
                        struct error *err) MUST_USE;

/* Lets a tensor that a run has made outlive the run: its bytes are charged to `whole` alone from
 * now on. False: it was charged to no part of `whole` (a constant, memory that it wraps) and is to
 * be copied. Call it before other threads have the tensor. */
bool tensor_keep(struct tensor *tensor, struct memory_budget *whole);

/* Wraps memory the tensor does not own the layout of: release(context, data) is called when the
 * last reference goes (NULL: never). On failure nothing is released. */
enum status tensor_wrap(enum dtype dtype, const struct shape *shape, struct device_id device,
                        void *data, void (*release)(void *context, void *data), void *context,
                        struct tensor **ret, struct error *err) MUST_USE;

struct tensor *tensor_ref(struct tensor *tensor);
void tensor_unref(struct tensor *tensor); /* NULL is fine */

/* Element i of an integer or bool tensor as int64 (uint64 above INT64_MAX saturates), of any
 * numeric tensor as double. For small host tensors (shapes, axes, scalars), not for hot loops. */
int64_t tensor_int(const struct tensor *tensor, size_t i);
double tensor_number(const struct tensor *tensor, size_t i);

/* IEEE half and bfloat16 <-> float, round to nearest even. */
float half_to_float(uint16_t bits);
uint16_t float_to_half(float value);
float bfloat16_to_float(uint16_t bits);
uint16_t float_to_bfloat16(float value);
