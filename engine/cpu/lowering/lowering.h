/* Private to engine/cpu/: the lowerings, one file a family. A lowering turns a node into a step:
 * products (Conv, Gemm, MatMul) by one of lensd's or oneDNN's kernels, which candidates.c chooses,
 * the rest of the hot path by lensd's own, everything else by the reference kernel. compile.c asks
 * them in turn. */
#pragma once

#include "engine/cpu/program/program.h"

struct window;

/* Builds a step for compile->node. *ret stays NULL when the lowering does not take the node
 * (another one may); an error ends the compilation. */
typedef enum status (*lowering_fn)(const struct compile *compile, struct step **ret,
                                   struct error *err);

/* Conv, Gemm, MatMul: by one of the lowerings in candidates.c's table. */
enum status lower_candidate(const struct compile *compile, struct step **ret, struct error *err);
enum status lower_winograd(const struct compile *compile, struct step **ret, struct error *err);
enum status lower_dense(const struct compile *compile, struct step **ret, struct error *err);
enum status lower_depthwise(const struct compile *compile, struct step **ret, struct error *err);
enum status lower_qdepthwise(const struct compile *compile, struct step **ret, struct error *err);
enum status lower_qconv(const struct compile *compile, struct step **ret, struct error *err);
enum status lower_qmatmul(const struct compile *compile, struct step **ret, struct error *err);
enum status lower_dynamic_round(const struct compile *compile, struct step **ret,
                                struct error *err);
enum status lower_qconcat(const struct compile *compile, struct step **ret, struct error *err);
enum status lower_qrows(const struct compile *compile, struct step **ret, struct error *err);
enum status lower_conv(const struct compile *compile, struct step **ret, struct error *err);
enum status lower_deconv(const struct compile *compile, struct step **ret, struct error *err);
enum status lower_matmul(const struct compile *compile, struct step **ret, struct error *err);
enum status lower_attention(const struct compile *compile, struct step **ret, struct error *err);
enum status lower_join(const struct compile *compile, struct step **ret, struct error *err);
enum status lower_pool(const struct compile *compile, struct step **ret, struct error *err);
enum status lower_groups(const struct compile *compile, struct step **ret, struct error *err);
enum status lower_resize(const struct compile *compile, struct step **ret, struct error *err);
enum status lower_elementwise(const struct compile *compile, struct step **ret, struct error *err);
enum status lower_norm(const struct compile *compile, struct step **ret, struct error *err);
enum status lower_copy(const struct compile *compile, struct step **ret, struct error *err);
enum status lower_generic(const struct compile *compile, struct step **ret, struct error *err);

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
bool resize_takes_8bit(const struct node *node); /* the same of 8-bit integers, to nearest */
bool qconv_takes(const struct node *node);       /* an 8-bit QLinearConv, channels-last */
bool qrows_take_channels_last(const struct node *node);
