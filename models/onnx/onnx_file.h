/* Private to models/onnx/: where the bytes of a model come from, and what its load may take. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/arena.h"
#include "engine/base/mapping.h"
#include "engine/tensor/tensor.h"
#include "models/onnx/onnx.h"
#include "proto/onnx.pb-c.h"

/* One model being loaded. One thread. */
struct onnx_file {
    const uint8_t *data; /* the whole file */
    size_t size;
    struct mapping *mapping; /* where data lies; NULL: elsewhere */
    uint8_t *owned;          /* data, if it was read; NULL: it was not */
    int fd;                  /* of the mapped file; -1: it is not mapped */
    int folder;         /* directory of the file, where external data lies; -1: there is none */
    size_t limit, used; /* bytes the load may take, and has taken */
    uint64_t external_bytes;
    /* The external file used last: a model has hundreds of tensors in one. */
    char *external_name;
    int external_fd; /* -1: none */
    uint64_t external_size;
};

/* Maps the file, which must be a regular one, or reads it where files cannot be mapped; sets up its
 * folder for external data. The caller calls onnx_file_check() before what was made of the bytes is
 * used, and onnx_file_close() also after a failure. */
enum status onnx_file_open(struct onnx_file *file, const char *path,
                           const struct onnx_options *options, struct error *err) MUST_USE;

/* Bytes that stay the caller's; there is no folder. */
void onnx_file_borrow(struct onnx_file *file, const void *data, size_t size,
                      const struct onnx_options *options);
void onnx_file_close(struct onnx_file *file);

/* Returns `status`, or STATUS_IO if the file changed while it was read. */
enum status onnx_file_check(const struct onnx_file *file, enum status status,
                            struct error *err) MUST_USE;

/* The messages of one file; they, and all they point at, lie in the arena. */
struct onnx_messages {
    struct arena *arena;
    ProtobufCMessage *root;
};

/* Checks the wire format (onnx_wire.h) and unpacks. The caller frees with arena_free(). */
enum status onnx_unpack(struct onnx_file *file, const ProtobufCMessageDescriptor *descriptor,
                        struct onnx_messages *ret, struct error *err) MUST_USE;

/* Books `bytes` of the load budget; STATUS_NO_MEMORY naming the limit. */
enum status onnx_charge(struct onnx_file *file, size_t bytes, struct error *err) MUST_USE;

/* The one function that turns a TensorProto into memory: initialisers, attributes, parts of sparse
 * tensors, test data. Declared sizes are compared with the bytes that are there before anything is
 * allocated. Errors: STATUS_MODEL, STATUS_UNSUPPORTED (data types), STATUS_SHAPE, STATUS_IO,
 * STATUS_NO_MEMORY; the text does not name the tensor (the caller puts that in front).
 * *ret: one reference, not charged to any tensor budget. */
enum status onnx_tensor_read(struct onnx_file *file, const Onnx__TensorProto *proto,
                             struct tensor **ret, struct error *err) MUST_USE;

/* A SparseTensorProto (COO, linear or per-dimension indices, ascending) as a dense tensor. */
enum status onnx_sparse_read(struct onnx_file *file, const Onnx__SparseTensorProto *proto,
                             struct tensor **ret, struct error *err) MUST_USE;

/* Where the external data of a tensor lies, checked: inside the model's folder, a regular file,
 * offset and length inside it, exactly `bytes` long. The descriptor belongs to `file`. */
struct onnx_external {
    int fd;
    uint64_t offset;
};
enum status onnx_external_find(struct onnx_file *file, const Onnx__TensorProto *proto, size_t bytes,
                               struct onnx_external *ret, struct error *err) MUST_USE;

/* Reads all of it into `data`; a file that has become shorter meanwhile is STATUS_IO. */
enum status onnx_external_read(const struct onnx_external *external, void *data, size_t bytes,
                               struct error *err) MUST_USE;

/* A data type of ONNX that lensd's tensors do not have. Constants are read as the wider `dtype`,
 * which has all of its numbers: 2 and 4 bits become 8, floats of 4 and 8 bits float32. Only
 * DequantizeLinear and Cast may read such a constant; other operators would take the wider range
 * for its own. */
struct onnx_packed {
    const char *name;
    uint8_t bits;
    enum dtype dtype;
    uint8_t mantissa; /* bits; of floats */
    int bias;
    enum { /* which bit patterns of a float are no finite number */
           ALL_FINITE,
           LAST_IS_NAN,   /* FN: exponent and mantissa have all bits set */
           AS_IEEE,       /* the last exponent is for infinities and NaN */
           MINUS_0_IS_NAN /* FNUZ */
    } specials;
};
/* Finds the type with ONNX's number (TensorProto.DataType); NULL: it is none of these. */
const struct onnx_packed *onnx_packed_find(int32_t number);

/* Widens `count` elements, of which the first is in the lowest bits of *from, to type->dtype. */
void onnx_packed_widen(const struct onnx_packed *type, const uint8_t *from, size_t count, void *to);

/* ONNX's data type number as lensd's; STATUS_UNSUPPORTED / STATUS_MODEL naming the type. */
enum status onnx_dtype(int32_t number, enum dtype *ret, struct error *err) MUST_USE;
