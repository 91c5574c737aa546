/* ONNX files: bytes in, graph out.
 *
 * A file is hostile until proven otherwise: the wire format is checked first without recursion
 * (well-formed, depth, message count), then unpacked by protobuf-c with an allocator that is
 * charged to the load budget, then every name, attribute, dimension and byte count is checked while
 * the graph is built. All tensors pass through one function (onnx_tensor.c), which compares
 * declared sizes with the bytes that are really there before it allocates. Source: onnx.proto
 * (proto/), ONNX IR.md and Versioning.md. */
#pragma once

#include "engine/graph/graph.h"

struct onnx_metadata { /* model.metadata_props, e.g. Ultralytics' names, imgsz */
    const char *key, *value;
};

struct onnx_model {
    struct graph *graph;
    struct onnx_metadata *metadata; /* in the graph's arena */
    size_t metadata_count;
    uint64_t file_bytes; /* the file and its external data */
};

struct onnx_options {
    size_t memory_limit; /* bytes of tensors and structures, but not of mapped files; 0 = what is
                            free, at most 16 GiB */
};

/* Loads `path`; external data is looked up beside it and may not leave that folder (nor follow a
 * link out of it). Errors: STATUS_IO (cannot read), STATUS_MODEL (not ONNX, malformed; the sentence
 * names node / tensor / attribute), STATUS_UNSUPPORTED (operator, opset, attribute that lensd does
 * not have: names op, node, opset and what to do), STATUS_NO_MEMORY. On success the caller frees
 * with onnx_model_done(). Thread-safe. */
enum status onnx_load_file(const char *path, const struct onnx_options *options,
                           struct onnx_model *ret, struct error *err) MUST_USE;

/* From memory; external data is refused. The bytes may be freed afterwards. */
enum status onnx_load_memory(const void *data, size_t size, const struct onnx_options *options,
                             struct onnx_model *ret, struct error *err) MUST_USE;

void onnx_model_done(struct onnx_model *model);

/* One operator of a file with how many nodes use it and whether lensd has it: for
 * `lensd inspect`, which must list everything that is missing, not stop at the first. */
struct onnx_op_use {
    char name[64], domain[64];
    int opset;
    size_t count;
    bool supported;
};

/* Lists the operators of a file, bodies and functions included, also of files onnx_load_file
 * refuses for an unsupported operator. *ret is malloc'ed. */
enum status onnx_list_ops(const char *path, struct onnx_op_use **ret, size_t *ret_count,
                          struct error *err) MUST_USE;

/* Calls `visit` with the name of each input and output of a file's graph; `name` is not terminated.
 * A file that is damaged or cannot be read gives fewer names or none; loading it gives the error.
 * Any thread. */
typedef void (*onnx_name_visitor)(void *context, bool is_output, const char *name, size_t size);
void onnx_visit_names(const char *path, onnx_name_visitor visit, void *context);
