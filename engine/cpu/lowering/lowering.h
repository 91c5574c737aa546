/* Private to engine/cpu/: the lowerings, one file a family. A lowering turns a node into a step:
 * products (Conv, Gemm, MatMul) by one of lensd's or oneDNN's kernels, which product_kernels.c
 * chooses, the rest of the hot path by lensd's own, everything else by the reference kernel.
 * compile.c asks them in turn. */
#pragma once

#include "engine/cpu/program/program.h"

struct window;

/* Builds a step for lowering->node. *ret stays NULL when the lowering does not take the node
 * (another one may); an error ends the compilation. */
typedef enum status (*lowering_fn)(const struct lowering *lowering, struct step **ret,
                                   struct error *err);

/* Conv, Gemm, MatMul: by one of the lowerings in product_kernels.c's table. */
enum status lower_product(const struct lowering *lowering, struct step **ret, struct error *err);
enum status lower_winograd(const struct lowering *lowering, struct step **ret, struct error *err);
enum status lower_gemm(const struct lowering *lowering, struct step **ret, struct error *err);
enum status lower_depthwise(const struct lowering *lowering, struct step **ret, struct error *err);
enum status lower_qdepthwise(const struct lowering *lowering, struct step **ret, struct error *err);
enum status lower_qconv(const struct lowering *lowering, struct step **ret, struct error *err);
enum status lower_qmatmul(const struct lowering *lowering, struct step **ret, struct error *err);
enum status lower_dynamic_round(const struct lowering *lowering, struct step **ret,
                                struct error *err);
enum status lower_qconcat(const struct lowering *lowering, struct step **ret, struct error *err);
enum status lower_qrows(const struct lowering *lowering, struct step **ret, struct error *err);
enum status lower_onednn_conv(const struct lowering *lowering, struct step **ret,
                              struct error *err);
enum status lower_deconv(const struct lowering *lowering, struct step **ret, struct error *err);
enum status lower_onednn_matmul(const struct lowering *lowering, struct step **ret,
                                struct error *err);
enum status lower_attention(const struct lowering *lowering, struct step **ret, struct error *err);
enum status lower_join(const struct lowering *lowering, struct step **ret, struct error *err);
enum status lower_pool(const struct lowering *lowering, struct step **ret, struct error *err);
enum status lower_groups(const struct lowering *lowering, struct step **ret, struct error *err);
enum status lower_resize(const struct lowering *lowering, struct step **ret, struct error *err);
enum status lower_elementwise(const struct lowering *lowering, struct step **ret,
                              struct error *err);
enum status lower_norm(const struct lowering *lowering, struct step **ret, struct error *err);
enum status lower_copy(const struct lowering *lowering, struct step **ret, struct error *err);
enum status lower_reference(const struct lowering *lowering, struct step **ret, struct error *err);

/* Would the lowering take this node (its activations being float32 or bfloat16)? */
bool matmul_takes(const struct node *node);
bool dense_takes_gate(const struct node *node);
bool depthwise_makes_mean(const struct node *node);
/* The taps of a pool's result pixel (oy, ox) that lie inside the channels-last image; *ret_counted:
 * how many positions on the image and its padding the window has. */
size_t pool_taps(const struct window *window, const unsigned char *image, size_t pixel_bytes,
                 int64_t oy, int64_t ox, const void **taps, int64_t *ret_counted);

bool join_takes_parts(const struct node *node);
bool elementwise_takes(const struct node *node);
bool norm_takes(const struct node *node);
bool groups_take(const struct node *node);  /* GroupNormalization, InstanceNormalization, LRN */
bool deconv_takes(const struct node *node); /* a ConvTranspose, channels-last */
bool resize_takes(const struct node *node); /* keeping images and channels, channels-last */
bool resize_takes_8bit(const struct node *node);       /* the same of 8-bit integers, to nearest */
bool qconv_takes(const struct node *node);             /* an 8-bit QLinearConv, channels-last */
bool quantized_stores_result(const struct node *node); /* a product of 8-bit integers */
bool qrows_take_channels_last(const struct node *node);
