/* Reads ONNX files as graphs.
 *
 * Files are untrusted. First the wire format is checked without recursion: it must be well-formed
 * and not nested too deep. Then protobuf-c unpacks the file into an arena that the load's memory
 * limit bounds. Then every name, attribute, dimension and byte count is checked while the graph is
 * built. All tensors pass through one function (onnx_tensor.c), which compares declared sizes with
 * the actual bytes before it allocates memory. Source: onnx.proto (proto/), ONNX IR.md and
 * Versioning.md. */
#pragma once

#include "engine/graph/graph.h"

struct onnx_metadata { /* an entry of ModelProto.metadata_props, such as "names" and "imgsz" of
                          Ultralytics */
    const char *key, *value;
};

struct onnx_model {
    struct graph *graph;
    struct onnx_metadata *metadata; /* in the graph's arena */
    size_t metadata_count;
    uint64_t file_bytes; /* size of the file and its external data */
};

/* Loads `path`. External data must lie in the folder of `path`; links out of the folder are
 * refused. Errors: STATUS_IO (cannot read), STATUS_MODEL and STATUS_SHAPE (not ONNX, malformed;
 * names node / tensor / attribute), STATUS_UNSUPPORTED (names an unsupported operator or attribute,
 * node, opset and what to do), STATUS_NO_MEMORY. `memory_limit` is the number of bytes that the
 * load may use, without mapped files; 0: the free memory, at most 16 GiB. On success the caller
 * frees with onnx_model_done(). Thread-safe. */
enum status onnx_load_file(const char *path, size_t memory_limit, struct onnx_model *ret,
                           struct error *err) MUST_USE;

/* Loads from memory; external data is refused. The bytes may be freed afterwards. */
enum status onnx_load_memory(const void *data, size_t size, size_t memory_limit,
                             struct onnx_model *ret, struct error *err) MUST_USE;

void onnx_model_done(struct onnx_model *model);

/* An operator of a file: how many nodes use it, and whether lensd supports it. */
struct onnx_op_use {
    char name[64], domain[64];
    int opset;
    size_t count;
    bool supported;
};

/* Lists the operators of a file, or of `data` if `path` is NULL, including bodies and functions.
 * Also works for files that onnx_load_file() refuses for an unsupported operator. *ret is
 * malloc'ed. */
enum status onnx_list_ops(const char *path, const void *data, size_t size, struct onnx_op_use **ret,
                          size_t *ret_count, struct error *err) MUST_USE;

/* Calls `visit` with the name of each input, then of each output of a file's graph. Does not call
 * `visit` for a damaged or unreadable file, or for a file whose names need more than 64 MiB. Only
 * loading the file reports such errors. Any thread. */
typedef void (*onnx_name_visitor)(void *context, bool is_output, const char *name);
void onnx_visit_names(const char *path, onnx_name_visitor visit, void *context);
