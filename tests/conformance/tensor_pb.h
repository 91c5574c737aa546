/* Reads a single TensorProto, as ONNX's test data has them (input_0.pb). */
#pragma once

#include "models/onnx/onnx_file.h"

/* The default memory limit of a load holds. */
static inline enum status load_tensor_pb(const void *data, size_t size, struct tensor **ret,
                                         struct error *err)
{
    struct onnx_file file;
    struct onnx_messages messages;
    onnx_file_borrow(&file, data, size, 0);
    TRY(onnx_unpack(&file, &onnx__tensor_proto__descriptor, &messages, err));
    const enum status status =
        onnx_tensor_read(&file, (const Onnx__TensorProto *)messages.root, ret, err);
    arena_free(messages.arena);
    onnx_file_close(&file);
    return status;
}
