/* Writes graphs as ONNX files. */
#pragma once

#include "models/onnx/onnx.h"

struct onnx_write_options {
    const struct onnx_metadata *metadata; /* borrowed; NULL: none */
    size_t metadata_count;
    const char *producer; /* producer_name of the file */
};

/* Writes `graph` to the new file `path`. Its nodes must be in topological order. On success the
 * file is on disk (fsync); on failure it is removed. Values without a name get one, and duplicate
 * names get a suffix. Errors: STATUS_IO (also if `path` exists; that file stays), STATUS_NO_MEMORY,
 * STATUS_TOO_LARGE (tensors of more than 1.5 GiB), STATUS_UNSUPPORTED (an operator that only
 * lensd's passes use, or a Resize that newer opsets cannot express). Any thread. */
enum status onnx_write_file(const struct graph *graph, const struct onnx_write_options *options,
                            const char *path, struct error *err) MUST_USE;
