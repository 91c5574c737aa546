/* Types of a tensor's elements, also for device code. */
#pragma once

/* X(NAME, number in ONNX's TensorProto.DataType, bytes, ONNX's word, Open Inference's word). */
#define DTYPE_LIST(X)                                                                              \
    X(F32, 1, 4, "float32", "FP32")                                                                \
    X(U8, 2, 1, "uint8", "UINT8")                                                                  \
    X(I8, 3, 1, "int8", "INT8")                                                                    \
    X(U16, 4, 2, "uint16", "UINT16")                                                               \
    X(I16, 5, 2, "int16", "INT16")                                                                 \
    X(I32, 6, 4, "int32", "INT32")                                                                 \
    X(I64, 7, 8, "int64", "INT64")                                                                 \
    X(BOOL, 9, 1, "bool", "BOOL")                                                                  \
    X(F16, 10, 2, "float16", "FP16")                                                               \
    X(F64, 11, 8, "float64", "FP64")                                                               \
    X(U32, 12, 4, "uint32", "UINT32")                                                              \
    X(U64, 13, 8, "uint64", "UINT64")                                                              \
    X(BF16, 16, 2, "bfloat16", "BF16")

enum dtype {
    DTYPE_NONE = 0,
#define DTYPE_ENUM(name, number, bytes, word, oip) DTYPE_##name = number,
    DTYPE_LIST(DTYPE_ENUM)
#undef DTYPE_ENUM
};
