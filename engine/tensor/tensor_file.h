/* Tensors whose bytes lie in a mapped file: constants of large models.
 *
 * They are memory that the system can take back at any time, until weights are packed. Whoever
 * reads one must expect the file to shrink meanwhile (engine/base/mapping.h): session_create()
 * does, and leaves nothing behind that depends on the file. */
#pragma once

#include "engine/base/mapping.h"
#include "engine/tensor/tensor.h"

/* Elements from `offset` of the file on, which the caller has compared with its size. The file may
 * be closed afterwards. The offset is a multiple of the element size, which is all the alignment
 * that the data then has, and the tensor is not empty. */
enum status tensor_from_file(int fd, uint64_t offset, enum dtype dtype, const struct shape *shape,
                             struct tensor **ret, struct error *err) MUST_USE;

/* The mapping the bytes lie in, of a view too; NULL when they lie in ordinary memory. */
struct mapping *tensor_mapping(const struct tensor *tensor);
