/* Operators by name. engine/op/ops.h describes what operators compute. */
#pragma once

/* Every operator that lensd supports, in any order. X(ID, "Name", "domain"). The importer rewrites
 * other spellings of operators (models/onnx/onnx_forms.h). Only passes make operators of the
 * `lensd` domain; files cannot contain such operators. */
/* clang-format off */
#define OP_LIST(X)                                                                                 \
    /* elementwise, unary */                                                                       \
    X(ABS, "Abs", "") X(NEG, "Neg", "") X(SIGN, "Sign", "") X(FLOOR, "Floor", "")                  \
    X(CEIL, "Ceil", "") X(ROUND, "Round", "") X(SQRT, "Sqrt", "")                                  \
    X(RECIPROCAL, "Reciprocal", "") X(EXP, "Exp", "")                                              \
    X(LOG, "Log", "") X(SIN, "Sin", "") X(COS, "Cos", "") X(TANH, "Tanh", "")                      \
    X(ERF, "Erf", "") X(SIGMOID, "Sigmoid", "") X(HARD_SIGMOID, "HardSigmoid", "")                 \
    X(HARD_SWISH, "HardSwish", "") X(RELU, "Relu", "") X(LEAKY_RELU, "LeakyRelu", "")              \
    X(THRESHOLDED_RELU, "ThresholdedRelu", "") X(ELU, "Elu", "") X(SELU, "Selu", "")               \
    X(CELU, "Celu", "") X(SOFTPLUS, "Softplus", "") X(SOFTSIGN, "Softsign", "")                    \
    X(MISH, "Mish", "") X(SWISH, "Swish", "") X(GELU, "Gelu", "") X(SHRINK, "Shrink", "")          \
    X(NOT, "Not", "") X(IS_NAN, "IsNaN", "") X(IS_INF, "IsInf", "") X(CLIP, "Clip", "")            \
    X(CAST, "Cast", "") X(CAST_LIKE, "CastLike", "") X(IDENTITY, "Identity", "")                   \
    X(DROPOUT, "Dropout", "")                                                                      \
    /* elementwise, broadcasting */                                                                \
    X(ADD, "Add", "") X(SUB, "Sub", "") X(MUL, "Mul", "") X(DIV, "Div", "") X(POW, "Pow", "")      \
    X(MOD, "Mod", "") X(PRELU, "PRelu", "") X(MAX, "Max", "") X(MIN, "Min", "")                    \
    X(AND, "And", "") X(OR, "Or", "") X(XOR, "Xor", "")                                            \
    X(EQUAL, "Equal", "") X(GREATER, "Greater", "") X(LESS, "Less", "")                            \
    X(GREATER_OR_EQUAL, "GreaterOrEqual", "") X(LESS_OR_EQUAL, "LessOrEqual", "")                  \
    X(WHERE, "Where", "")                                                                          \
    /* shape and layout */                                                                         \
    X(CONSTANT_OF_SHAPE, "ConstantOfShape", "")                                                    \
    X(SHAPE, "Shape", "") X(SIZE, "Size", "") X(RESHAPE, "Reshape", "")                            \
    X(FLATTEN, "Flatten", "") X(SQUEEZE, "Squeeze", "") X(UNSQUEEZE, "Unsqueeze", "")              \
    X(TRANSPOSE, "Transpose", "") X(CONCAT, "Concat", "") X(SPLIT, "Split", "")                    \
    X(SLICE, "Slice", "") X(EXPAND, "Expand", "") X(TILE, "Tile", "") X(PAD, "Pad", "")            \
    X(RANGE, "Range", "") X(EYE_LIKE, "EyeLike", "") X(TRILU, "Trilu", "")                         \
    X(DEPTH_TO_SPACE, "DepthToSpace", "") X(SPACE_TO_DEPTH, "SpaceToDepth", "")                    \
    X(CENTER_CROP_PAD, "CenterCropPad", "") X(COL2IM, "Col2Im", "")            \
    /* indexing */                                                                                 \
    X(GATHER, "Gather", "") X(GATHER_ELEMENTS, "GatherElements", "")                               \
    X(GATHER_ND, "GatherND", "")                                                                   \
    X(SCATTER_ELEMENTS, "ScatterElements", "") X(SCATTER_ND, "ScatterND", "")                      \
    X(ONE_HOT, "OneHot", "") X(NON_ZERO, "NonZero", "")                                            \
    X(UNIQUE, "Unique", "") X(TOP_K, "TopK", "") X(CUM_SUM, "CumSum", "")                          \
    /* reductions */                                                                               \
    X(REDUCE_SUM, "ReduceSum", "") X(REDUCE_MEAN, "ReduceMean", "")                                \
    X(REDUCE_MAX, "ReduceMax", "") X(REDUCE_MIN, "ReduceMin", "")                                  \
    X(REDUCE_PROD, "ReduceProd", "") X(REDUCE_L1, "ReduceL1", "") X(REDUCE_L2, "ReduceL2", "")     \
    X(REDUCE_LOG_SUM, "ReduceLogSum", "") X(REDUCE_LOG_SUM_EXP, "ReduceLogSumExp", "")             \
    X(REDUCE_SUM_SQUARE, "ReduceSumSquare", "") X(ARG_MAX, "ArgMax", "")                           \
    X(ARG_MIN, "ArgMin", "")                                                                       \
    /* linear algebra */                                                                           \
    X(GEMM, "Gemm", "") X(MATMUL, "MatMul", "") X(EINSUM, "Einsum", "")                            \
    /* convolution and pooling */                                                                  \
    X(CONV, "Conv", "") X(CONV_TRANSPOSE, "ConvTranspose", "")                                     \
    X(DEFORM_CONV, "DeformConv", "") X(MAX_POOL, "MaxPool", "")                                    \
    X(AVERAGE_POOL, "AveragePool", "") X(LP_POOL, "LpPool", "")                                    \
    X(GLOBAL_AVERAGE_POOL, "GlobalAveragePool", "") X(GLOBAL_MAX_POOL, "GlobalMaxPool", "")        \
    X(GLOBAL_LP_POOL, "GlobalLpPool", "") X(MAX_UNPOOL, "MaxUnpool", "")                           \
    /* normalisation */                                                                            \
    X(BATCH_NORMALIZATION, "BatchNormalization", "")                                               \
    X(INSTANCE_NORMALIZATION, "InstanceNormalization", "")                                         \
    X(LAYER_NORMALIZATION, "LayerNormalization", "")                                               \
    X(GROUP_NORMALIZATION, "GroupNormalization", "")                                               \
    X(LP_NORMALIZATION, "LpNormalization", "") X(LRN, "LRN", "") X(SOFTMAX, "Softmax", "")         \
    X(LOG_SOFTMAX, "LogSoftmax", "") X(HARDMAX, "Hardmax", "")                                     \
    X(RMS_NORMALIZATION, "RMSNormalization", "")                                                   \
    /* of transformers, opset 23 (engine/op/transformer.h) */                                     \
    X(ONNX_ATTENTION, "Attention", "") X(ROTARY_EMBEDDING, "RotaryEmbedding", "")                  \
    /* recurrent (engine/op/recurrent.h) */                                                        \
    X(LSTM, "LSTM", "") X(GRU, "GRU", "") X(RNN, "RNN", "")                                        \
    /* resampling and detection */                                                                 \
    X(RESIZE, "Resize", "") X(GRID_SAMPLE, "GridSample", "")           \
    X(AFFINE_GRID, "AffineGrid", "") X(ROI_ALIGN, "RoiAlign", "")                                  \
    X(NON_MAX_SUPPRESSION, "NonMaxSuppression", "")                                                \
    /* quantization */                                                                             \
    X(QUANTIZE_LINEAR, "QuantizeLinear", "") X(DEQUANTIZE_LINEAR, "DequantizeLinear", "")          \
    X(DYNAMIC_QUANTIZE_LINEAR, "DynamicQuantizeLinear", "") X(QLINEAR_CONV, "QLinearConv", "")     \
    X(QLINEAR_MATMUL, "QLinearMatMul", "") X(CONV_INTEGER, "ConvInteger", "")                      \
    X(MATMUL_INTEGER, "MatMulInteger", "") X(QLINEAR_ADD, "QLinearAdd", "com.microsoft")           \
    X(QLINEAR_MUL, "QLinearMul", "com.microsoft")                                                  \
    X(QLINEAR_CONCAT, "QLinearConcat", "com.microsoft")                                            \
    X(QLINEAR_AVERAGE_POOL, "QLinearAveragePool", "com.microsoft")                                 \
    X(QLINEAR_GLOBAL_AVERAGE_POOL, "QLinearGlobalAveragePool", "com.microsoft")                    \
    X(QGEMM, "QGemm", "com.microsoft")                                                             \
    X(MATMUL_NBITS, "MatMulNBits", "com.microsoft")                                                \
    /* control flow */                                                                             \
    X(IF, "If", "") X(LOOP, "Loop", "") X(SCAN, "Scan", "")                                        \
    /* made by passes */                                                                           \
    X(SCALE_SHIFT, "ScaleShift", "lensd")                                                          \
    X(SILU, "Silu", "lensd") X(ATTENTION, "Attention", "lensd")                                    \
    X(STRIDED_COPY, "StridedCopy", "lensd")                                                        \
    X(LOOKUP, "Lookup", "lensd") X(DYNAMIC_ROUND, "DynamicRound", "lensd")                         \
    X(VALID_KEYS, "ValidKeys", "lensd") X(RECURRENCE, "Recurrence", "lensd")
/* clang-format on */

/* OP_SCALE_SHIFT: y = x * inputs[1] + inputs[2] per channel, the last dimension. x is inputs[0] or,
 * after pass_joins(), the concatenation of inputs[0], inputs[3], inputs[4] … along the channels.
 * Operands and result may be quantized to 8 bits (pass_stored_scales()): then x and y are the
 * stored numbers, and y is rounded half to even.
 *
 * OP_ATTENTION: softmax(scale * q k^T + biases) v on operands read through access maps
 * (engine/op/attention.h). OP_STRIDED_COPY replaces a chain of Transposes, Reshapes, Slices …: the
 * elements of input 0 in the order of the attribute "map" (an access map with one group,
 * engine/op/access_map.h). The passes that make these two operators set the result's shape.
 *
 * OP_VALID_KEYS: returns Attention's nonpad_kv_seqlen unchanged, int64; the run fails if an element
 * is not between 0 and the attribute "keys". OP_DYNAMIC_ROUND: x rounded to the values that
 * DynamicQuantizeLinear can represent, as real numbers. OP_LOOKUP: y = inputs[1][x] for an 8-bit x.
 * inputs[1] is a constant of shape [256] and y's type. The index is the byte of x, read as uint8
 * even if x is int8. OP_RECURRENCE: an LSTM, GRU or RNN whose X is already multiplied by W
 * (engine/op/recurrent.h). */

/* Passes may omit the result's scale and zero point of OP_QLINEAR_CONV, OP_QLINEAR_MATMUL and
 * OP_QGEMM. Then the result is float32 and can have an epilogue (struct epilogue).
 *
 * Operands that passes append. First the product is quantized with its own scale, then added to the
 * residual as by QLinearAdd, then mapped through the table. If the result is float32,
 * QUANTIZED_RESIDUAL is the epilogue's residual. NULL: the operand is omitted. */
enum quantized_operand {
    QUANTIZED_BIAS = 8,       /* int32, for OP_QLINEAR_CONV and OP_QLINEAR_MATMUL */
    QUANTIZED_RESIDUAL = 9,   /* shaped like the result; its scale and zero point follow */
    QUANTIZED_SUM_SCALE = 12, /* scale of the sum; its zero point follows */
    QUANTIZED_TABLE = 14,     /* as in OP_LOOKUP */
    QUANTIZED_OPERANDS
};

/* The order has no meaning. */
enum op {
    OP_NONE,
#define OP_ENUM(id, name, domain) OP_##id,
    OP_LIST(OP_ENUM)
#undef OP_ENUM
        OP_COUNT
};

/* Finds an operator by name and domain ("ai.onnx" is ""). Returns OP_NONE for an unknown operator,
 * and never an operator of the lensd domain. */
enum op op_by_name(const char *domain, const char *name);

const char *op_name(enum op op);   /* "Conv" */
const char *op_domain(enum op op); /* "" or "com.microsoft" … */
