/* Tensors: dtype, shape, data.
 *
 * A tensor is a reference-counted object. Its bytes are contiguous, row-major and little-endian.
 * Bytes that lensd allocated are 64-byte aligned; those of tensor_part() and of wrapped memory are
 * aligned to the element's size. The creator fills a tensor; once shared it is immutable. Reference
 * counts are atomic; otherwise one thread at a time may use a tensor. */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/float_bits.h"
#include "engine/base/status.h"
#include "engine/tensor/device.h"
#include "engine/tensor/dtype.h"

#define TENSOR_MAX_RANK 8
#define TENSOR_ALIGN    64

/* Size of one element in bytes; 0 for an unsupported dtype. */
size_t dtype_size(enum dtype dtype);

/* Returns a name such as "float32"; "unknown" for an unsupported dtype. */
const char *dtype_name(enum dtype dtype);

/* Returns the Open Inference Protocol's name, such as "FP32"; NULL for an unsupported dtype. */
const char *dtype_oip_name(enum dtype dtype);

/* True for float32, float16, bfloat16 and float64. */
bool dtype_is_float(enum dtype dtype);

/* True for uint8 and int8. */
static inline bool dtype_is_8bit(enum dtype dtype)
{
    return dtype == DTYPE_U8 || dtype == DTYPE_I8;
}

/* Extents, outermost first. With rank SHAPE_UNKNOWN nothing else is known. Only declared shapes of
 * graph inputs and outputs can contain DIM_UNKNOWN (symbolic dimensions); any other shape is either
 * fully known or fully unknown. */
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

/* True if the rank is known and no dimension is DIM_UNKNOWN. */
bool shape_is_known(const struct shape *shape);

bool shape_equal(const struct shape *a, const struct shape *b);

/* Number of elements: 1 for a scalar, 0 if any dimension is 0. Only for shapes that shape_check()
 * has accepted. */
size_t shape_count(const struct shape *shape);

/* The one place where a shape from outside becomes sizes. Checks that rank and dimensions are in
 * range and that element count and byte size fit, even if a dimension is 0; otherwise STATUS_SHAPE.
 * STATUS_UNSUPPORTED: unknown dtype. ret_count and ret_bytes may be NULL. */
enum status shape_check(const struct shape *shape, enum dtype dtype, size_t *ret_count,
                        size_t *ret_bytes, struct error *err) MUST_USE;

/* Writes "[1, 3, 224, 224]", "[]" for a scalar, "[?]" for an unknown shape, "?" for an unknown
 * dimension; returns `text`. */
#define SHAPE_TEXT 128
const char *shape_text(const struct shape *shape, char text[static SHAPE_TEXT]);

/* The text of shape_text(), in memory that lasts until the enclosing block ends. */
#define SHAPE_STRING(shape) shape_text((shape), (char[SHAPE_TEXT]){0})

/* A limit in bytes on the sum of tensors of one load, of one run, or of all runs of a session. A
 * limit of 0 means none. Thread-safe. */
struct memory_budget {
    _Atomic size_t limit, used;
    struct memory_budget *whole; /* for a run: the budget of all runs, charged too; else NULL */
    bool is_temporary; /* large blocks are mapped, so that freeing returns them to the system */
};

/* Adds `bytes` to the budget, or subtracts them; a NULL budget is ignored. If the limit would be
 * exceeded, nothing is charged and the result is STATUS_NO_MEMORY. For a run (`whole` is set) the
 * result is STATUS_INVALID if the bytes can never fit, and STATUS_SHORT_OF_MEMORY while other runs
 * use the memory. */
enum status memory_charge(struct memory_budget *budget, size_t bytes, struct error *err) MUST_USE;
void memory_uncharge(struct memory_budget *budget, size_t bytes);

/* Allocates at least one byte, aligned to TENSOR_ALIGN, and charges `budget` (NULL: none). Pass the
 * same budget and size to memory_free(). Errors as memory_charge(). */
enum status memory_alloc(struct memory_budget *budget, size_t bytes, void **ret,
                         struct error *err) MUST_USE;
void memory_free(struct memory_budget *budget, void *data, size_t bytes); /* NULL is fine */
/* Frees the memory, but the bytes stay charged. */
void memory_free_charged(struct memory_budget *budget, void *data, size_t bytes);

struct tensor {
    enum dtype dtype;
    struct shape shape; /* fully known */
    void *data;         /* NULL only when bytes is 0 */
    size_t bytes;

    /* private to tensor.c */
    enum { TENSOR_OWNED, TENSOR_VIEW, TENSOR_WRAPPED } memory;
    _Atomic int refs;
    struct memory_budget *budget;
    struct tensor *base; /* for views: the tensor that owns the bytes */
    void (*release)(void *context, void *data);
    void *release_context;
};

/* Creates an uninitialised tensor in host memory. `budget` may be NULL and must outlive the tensor.
 * Errors are those of shape_check() and memory_charge(). Returns one reference. */
enum status tensor_create(struct memory_budget *budget, enum dtype dtype, const struct shape *shape,
                          struct tensor **ret, struct error *err) MUST_USE;

/* Creates a tensor with the bytes and dtype of `base` but another shape of equally many elements.
 * It holds a reference to `base`. */
enum status tensor_view(struct tensor *base, const struct shape *shape, struct tensor **ret,
                        struct error *err) MUST_USE;

/* Creates a view of part `part` of `parts` equal parts along the outermost dimension, which `parts`
 * must divide; a single part is the whole tensor, of any shape. Holds a reference to `base`. */
enum status tensor_part(struct tensor *base, int part, int parts, struct tensor **ret,
                        struct error *err) MUST_USE;

/* Lets a run's tensor outlive the run: from now on only `whole` is charged. Returns false if the
 * tensor was never charged to `whole`, as for a constant or wrapped memory; then copy it. Call this
 * before other threads have the tensor. */
bool tensor_keep(struct tensor *tensor, struct memory_budget *whole);

/* Wraps the caller's memory in a tensor. release(context, data) is called when the last reference
 * is dropped, but not if this function fails. `release` may be NULL. */
enum status tensor_wrap(enum dtype dtype, const struct shape *shape, void *data,
                        void (*release)(void *context, void *data), void *context,
                        struct tensor **ret, struct error *err) MUST_USE;

struct tensor *tensor_ref(struct tensor *tensor);
void tensor_unref(struct tensor *tensor); /* NULL is fine */

/* Returns element i as int64 (uint64 and floats saturate, floats are truncated, NaN is 0), or as
 * double. For small host tensors (shapes, axes, scalars), not for hot loops. */
int64_t tensor_int(const struct tensor *tensor, size_t i);
double tensor_number(const struct tensor *tensor, size_t i);
