/* ONNX files: graph in, file out. */
#pragma once

#include "models/onnx/onnx.h"

struct onnx_write_options {
    const struct onnx_metadata *metadata; /* borrowed; NULL: none */
    size_t metadata_count;
    const char *producer; /* producer_name of the file */
};

/* Writes `graph`, whose nodes are in topological order and have ONNX's operators only, to the new
 * file `path`. It is on the disk (fsync) on success; after a failure there is none. Values without
 * a name get one, and names given twice a suffix. Errors: STATUS_IO (also where there is such a
 * file), STATUS_NO_MEMORY, STATUS_TOO_LARGE (tensors of more than 1.5 GiB), STATUS_UNSUPPORTED (a
 * node that a pass has made). Any thread. */
enum status onnx_write_file(const struct graph *graph, const struct onnx_write_options *options,
                            const char *path, struct error *err) MUST_USE;
