/* Private to engine/op/: the kernels one by one, for the records. */
#pragma once

#include "engine/op/kernel.h"

/* Defines a kernel; many cannot fail. */
#define KERNEL(name)                                                                               \
    enum status name(const struct kernel_args *args, __attribute__((unused)) struct error *err)

/* elementwise */
kernel_function kernel_unary, kernel_clip, kernel_cast, kernel_view, kernel_dropout, kernel_binary,
    kernel_pow, kernel_variadic, kernel_where;

/* shape and layout */
kernel_function kernel_constant, kernel_constant_of_shape, kernel_shape, kernel_size,
    kernel_transpose, kernel_concat, kernel_split, kernel_slice, kernel_expand, kernel_tile,
    kernel_pad, kernel_range, kernel_eye_like, kernel_trilu, kernel_blocks, kernel_center,
    kernel_col2im;

/* indexing */
kernel_function kernel_gather, kernel_gather_elements, kernel_gather_nd, kernel_scatter_elements,
    kernel_scatter_nd, kernel_one_hot, kernel_non_zero, kernel_compress, kernel_unique,
    kernel_top_k, kernel_cum_sum;

/* reductions */
kernel_function kernel_reduce, kernel_extreme, kernel_arg;

/* linear algebra */
kernel_function kernel_gemm, kernel_matmul, kernel_einsum;

/* convolution and pooling */
kernel_function kernel_conv, kernel_conv_transpose, kernel_deform_conv, kernel_max_pool,
    kernel_average_pool, kernel_lp_pool, kernel_global_pool, kernel_max_unpool;

/* normalisation */
kernel_function kernel_batch_normalization, kernel_instance_normalization,
    kernel_layer_normalization, kernel_rms_normalization, kernel_group_normalization,
    kernel_mean_variance_normalization, kernel_lp_normalization, kernel_lrn, kernel_softmax,
    kernel_hardmax, kernel_scale_shift;

/* resampling and detection */
kernel_function kernel_resize, kernel_grid_sample, kernel_affine_grid, kernel_roi_align,
    kernel_non_max_suppression;

/* quantization */
kernel_function kernel_quantize, kernel_dequantize, kernel_dynamic_quantize, kernel_qlinear_conv,
    kernel_conv_integer, kernel_qlinear_matmul, kernel_matmul_integer, kernel_matmul_nbits,
    kernel_qgemm, kernel_qlinear_binary, kernel_qlinear_unary, kernel_lookup, kernel_dynamic_round,
    kernel_qlinear_softmax, kernel_qlinear_where, kernel_qlinear_concat,
    kernel_qlinear_average_pool, kernel_qlinear_global_average_pool;

/* control flow */
kernel_function kernel_if, kernel_loop, kernel_scan;

/* made by passes */
kernel_function kernel_attention, kernel_move;

/* transformers */
kernel_function kernel_onnx_attention, kernel_rotary_embedding, kernel_valid_keys;
