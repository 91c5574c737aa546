/* Private to models/onnx/: the bytes of a model's file, and the memory budget of its load. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/arena.h"
#include "engine/base/mapping.h"
#include "engine/tensor/tensor.h"
#include "models/onnx/onnx.h"
#include "proto/onnx.pb-c.h"

/* The file of a model that is being loaded. One thread. */
struct onnx_file {
    const uint8_t *data; /* the whole file */
    size_t size;
    struct mapping *mapping; /* the mapping that `data` points to, or NULL */
    uint8_t *owned;          /* the memory that `data` points to if it was read, or NULL */
    int fd;                  /* of the mapped file; -1: it is not mapped */
    int folder;              /* the model's folder, which has the external data; -1: none */
    size_t limit, used;      /* bytes that the load may use, and has used */
    uint64_t external_bytes;
    /* The most recently used external file stays open, because a model has hundreds of tensors in
     * one file. */
    char *external_name;
    int external_fd; /* -1: none */
    uint64_t external_size;
};

/* Maps the file, which must be a regular file, or reads it if it cannot be mapped. Opens the file's
 * folder for external data. The caller calls onnx_file_check() before it uses results from the
 * bytes, and onnx_file_close() even after a failure. */
enum status onnx_file_open(struct onnx_file *file, const char *path, size_t memory_limit,
                           struct error *err) MUST_USE;

/* Uses bytes that the caller owns; there is no folder. */
void onnx_file_borrow(struct onnx_file *file, const void *data, size_t size, size_t memory_limit);
void onnx_file_close(struct onnx_file *file);

/* Returns `status`, or STATUS_IO if the file changed while it was read. */
enum status onnx_file_check(const struct onnx_file *file, enum status status,
                            struct error *err) MUST_USE;

/* The messages of one file. The arena contains the messages and everything to which they point. */
struct onnx_messages {
    struct arena *arena;
    ProtobufCMessage *root;
};

/* Checks the wire format (onnx_wire.h) and unpacks the messages. The caller frees ret->arena with
 * arena_free(). */
enum status onnx_unpack(struct onnx_file *file, const ProtobufCMessageDescriptor *descriptor,
                        struct onnx_messages *ret, struct error *err) MUST_USE;

/* Charges `bytes` to the load's budget; STATUS_NO_MEMORY names the limit. */
enum status onnx_charge(struct onnx_file *file, size_t bytes, struct error *err) MUST_USE;

/* The only function that converts a TensorProto to a tensor: for initialisers, attributes, parts of
 * sparse tensors, test data. Declared sizes are compared with the actual bytes before anything is
 * allocated. Errors: STATUS_MODEL, STATUS_UNSUPPORTED (data types), STATUS_SHAPE, STATUS_IO,
 * STATUS_NO_MEMORY; the caller adds the tensor's name. *ret is one reference; no tensor budget is
 * charged for the tensor. */
enum status onnx_tensor_read(struct onnx_file *file, const Onnx__TensorProto *proto,
                             struct tensor **ret, struct error *err) MUST_USE;

/* Reads a SparseTensorProto (COO, linear or per-dimension indices, ascending) as a dense tensor. */
enum status onnx_sparse_read(struct onnx_file *file, const Onnx__SparseTensorProto *proto,
                             struct tensor **ret, struct error *err) MUST_USE;

/* The checked place of a tensor's external data: `bytes` bytes in a regular file in the model's
 * folder. onnx_file_close() closes the descriptor. */
struct onnx_external {
    int fd;
    uint64_t offset;
};
enum status onnx_external_find(struct onnx_file *file, const Onnx__TensorProto *proto, size_t bytes,
                               struct onnx_external *ret, struct error *err) MUST_USE;

/* Reads all of the external data into `data`. STATUS_IO if the file has become shorter. */
enum status onnx_external_read(const struct onnx_external *external, void *data, size_t bytes,
                               struct error *err) MUST_USE;

/* An ONNX data type that lensd's tensors do not have. Constants are read as the wider `dtype`,
 * which represents all numbers of the ONNX type: integers of 2 and 4 bits become 8-bit integers,
 * floats of 4 and 8 bits become float32. Only DequantizeLinear and Cast may read such a constant,
 * because other operators would use the wider range. */
struct onnx_packed {
    const char *name;
    uint8_t bits;
    enum dtype dtype;
    uint8_t mantissa; /* bits of a float's mantissa */
    int bias;
    enum { /* the bit patterns that are not finite numbers */
           ALL_FINITE,
           LAST_IS_NAN,   /* types FN: NaN has all bits of exponent and mantissa set */
           AS_IEEE,       /* the highest exponent is for infinities and NaN */
           MINUS_0_IS_NAN /* types FNUZ: NaN has the pattern of -0 */
    } specials;
};
/* Finds the type by ONNX's number (TensorProto.DataType). Returns NULL for other types. */
const struct onnx_packed *onnx_packed_find(int32_t number);

/* Widens `count` elements to type->dtype. The first element is in the lowest bits of *from. */
void onnx_packed_widen(const struct onnx_packed *type, const uint8_t *from, size_t count, void *to);

/* Converts ONNX's data type to lensd's; STATUS_UNSUPPORTED / STATUS_MODEL name the type. */
enum status onnx_dtype(int32_t number, enum dtype *ret, struct error *err) MUST_USE;
