/* Reads and checks nodes of ONNX's Attention and RotaryEmbedding (opset 23 and later), for
 * inference, the reference kernels and the pass that rewrites both as primitives
 * (engine/passes/functions.c). */
#pragma once

#include "engine/graph/graph.h"

/* ONNX Attention (opsets 23, 24, 25):
 *
 *     Y = softmax(softcap(scale * Q K^T) + bias) V     for every image and head
 *
 * Q [batch, q_heads, rows, depth], K [batch, kv_heads, added, depth], V [batch, kv_heads, added,
 * width], or, where `merged` is set, [batch, rows, q_heads * depth] and so on, and Y like Q. Head h
 * of Q reads head h / (q_heads / kv_heads) of K and V (grouped-query attention). past_key and
 * past_value [batch, kv_heads, past, …] come in front of K and V: keys = past + added.
 *
 * bias is 0, plus the mask (a float, or 0 / -inf for true / false) and -inf where causality, the
 * window (opset 25) or nonpad_kv_seqlen (opset 24) hide a key. A row of -inf has the result 0. */
enum attention_input {
    ATTENTION_Q,
    ATTENTION_K,
    ATTENTION_V,
    ATTENTION_MASK,
    ATTENTION_PAST_KEY,
    ATTENTION_PAST_VALUE,
    ATTENTION_VALID, /* nonpad_kv_seqlen */
};

enum attention_output {
    ATTENTION_Y,
    ATTENTION_PRESENT_KEY,
    ATTENTION_PRESENT_VALUE,
    ATTENTION_SCORES, /* qk_matmul_output */
};

/* What ATTENTION_SCORES contains: the attribute qk_matmul_output_mode. */
enum attention_stage { STAGE_PRODUCT, STAGE_CAPPED, STAGE_BIASED, STAGE_PROBABILITIES };

struct attention_call {
    int64_t batch, q_heads, kv_heads, rows, depth, width, past, added, keys;
    bool merged;
    float scale, softcap; /* softcap 0: no capping */
    enum attention_stage stage;
    bool is_causal;
    int64_t left, right; /* numbers of keys that a row sees before and after itself; -1: all */
    bool mask_pads;      /* keys beyond the end of a shorter mask are hidden (opset 24) */
};

/* Reads and checks the node; the inputs' shapes must be known. Errors: STATUS_MODEL (attributes,
 * dtypes), STATUS_SHAPE. softmax_precision is checked but has no effect: scores and exponentials
 * are float32 or wider. Thread-safe. */
enum status attention_call_load(const struct node *node, struct attention_call *ret,
                                struct error *err) MUST_USE;

/* True if causality and window let row `row`, at position row + offset, see key `key`. `offset` is
 * `past`, or with ATTENTION_VALID the number of valid keys minus rows. */
bool attention_call_sees(const struct attention_call *call, int64_t row, int64_t key,
                         int64_t offset);

/* ONNX RotaryEmbedding (opset 23): rotates pairs of numbers of each head by an angle that depends
 * on the token.
 *
 * X is [batch, heads, tokens, size], or [batch, tokens, heads * size] if `merged`. The first
 * `rotated` of the `size` numbers form pairs: (i, i + rotated / 2), or (2 i, 2 i + 1) if
 * `interleaved`. cos_cache and sin_cache are [positions, rotated / 2], indexed by position_ids
 * [batch or 1, tokens]; without position_ids they are [batch or 1, tokens, rotated / 2]. */
struct rotary_call {
    int64_t batch, heads, tokens, size, rotated;
    int64_t positions;    /* rows of the tables; 0 without position_ids */
    int64_t table_images; /* 1 or batch: first extent of position_ids, if any, or of the tables */
    bool merged, interleaved;
};

/* Like attention_call_load(). */
enum status rotary_call_load(const struct node *node, struct rotary_call *ret,
                             struct error *err) MUST_USE;
