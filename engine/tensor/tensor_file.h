/* Tensors whose bytes lie in a mapped file, for constants of large models.
 *
 * The system can reclaim their memory at any time until weights are packed. The file can shrink
 * while the bytes are read (engine/base/mapping.h). session_create() handles this; afterwards
 * nothing depends on the file. */
#pragma once

#include "engine/base/mapping.h"
#include "engine/tensor/tensor.h"

/* Creates a non-empty tensor of the file's elements from `offset` on. The caller has checked that
 * they are inside the file, and may close it afterwards. The offset must be a multiple of the
 * element size; the data has only this alignment. */
enum status tensor_from_file(int fd, uint64_t offset, enum dtype dtype, const struct shape *shape,
                             struct tensor **ret, struct error *err) MUST_USE;

/* The mapping that contains the bytes of a tensor or view; NULL for bytes in ordinary memory. */
struct mapping *tensor_mapping(const struct tensor *tensor);
