/* ONNX's Attention and RotaryEmbedding: reads and checks a node's attributes and
 * operands, and infers its outputs. */
#include "engine/ops/transformer.h"

#include <math.h>

#include "engine/base/size.h"
#include "engine/ops/families.h"
#include "engine/ops/operands.h"

/* ---- Attention ---- */

static enum status check_dtypes(const struct node *node, struct error *err)
{
    const struct value *v = node_input(node, ATTENTION_V);
    const struct value *past = node_input(node, ATTENTION_PAST_VALUE);
    TRY(operand_dtype(node, ATTENTION_Q, "Q", DTYPES_FLOAT, err));
    TRY(operand_same_dtype(node, ATTENTION_K, "K", err));
    TRY(operand_dtype(node, ATTENTION_V, "V", DTYPES_FLOAT, err));
    TRY(operand_dtype(node, ATTENTION_MASK, "attn_mask", DTYPES_ANY, err));
    TRY(operand_same_dtype(node, ATTENTION_PAST_KEY, "past_key", err));
    TRY(operand_dtype(node, ATTENTION_VALID, "nonpad_kv_seqlen", DTYPE_BIT(I64), err));
    if (past && past->dtype != v->dtype)
        return error_set(err, STATUS_MODEL, "past_value is %s, but V is %s; they must agree",
                         dtype_name(past->dtype), dtype_name(v->dtype));
    return STATUS_OK;
}

static enum status load_flags(const struct node *node, struct attention_call *call,
                              struct error *err)
{
    const int64_t precision = node_int(node, "softmax_precision", DTYPE_F32);
    const int64_t stage = node_int(node, "qk_matmul_output_mode", STAGE_PRODUCT);
    if (precision < 0 || precision > DTYPE_BF16 || !dtype_is_float((enum dtype)precision))
        return error_set(err, STATUS_MODEL,
                         "softmax_precision is %lld, expected a floating-point type",
                         (long long)precision);
    if (stage < STAGE_PRODUCT || stage > STAGE_PROBABILITIES)
        return error_set(err, STATUS_MODEL, "qk_matmul_output_mode is %lld, expected 0 to 3",
                         (long long)stage);
    call->stage = (enum attention_stage)stage;
    call->is_causal = node_int(node, "is_causal", 0) != 0;
    call->left = node_int(node, "left_window_size", -1);
    call->right = node_int(node, "right_window_size", -1);
    if (call->left < -1 || call->right < -1)
        return error_set(err, STATUS_MODEL,
                         "left_window_size and right_window_size are %lld and %lld, expected -1 "
                         "(no bound) or more",
                         (long long)call->left, (long long)call->right);
    call->softcap = node_float(node, "softcap", 0);
    if (!(call->softcap >= 0) || isinf(call->softcap))
        return error_set(err, STATUS_MODEL, "softcap is %g, expected 0 (none) or more",
                         (double)call->softcap);
    call->mask_pads = node->opset >= 24;
    return STATUS_OK;
}

/* Heads times numbers a head in the last dimension of a merged operand. */
static enum status split_heads(const char *name, int64_t hidden, int64_t heads, int64_t *ret,
                               struct error *err)
{
    if (hidden % heads)
        return error_set(err, STATUS_SHAPE, "%s has %lld channels, which %lld heads do not divide",
                         name, (long long)hidden, (long long)heads);
    *ret = hidden / heads;
    return STATUS_OK;
}

static enum status load_merged(const struct node *node, struct attention_call *call,
                               struct error *err)
{
    const struct shape *q = &node->inputs[ATTENTION_Q]->shape;
    const struct shape *k = &node->inputs[ATTENTION_K]->shape;
    const struct shape *v = &node->inputs[ATTENTION_V]->shape;
    int64_t depth = 0;
    call->q_heads = node_int(node, "q_num_heads", 0);
    call->kv_heads = node_int(node, "kv_num_heads", 0);
    if (call->q_heads < 1 || call->kv_heads < 1)
        return error_set(err, STATUS_MODEL,
                         "operands of three dimensions need q_num_heads and kv_num_heads of at "
                         "least 1, and they are %lld and %lld",
                         (long long)call->q_heads, (long long)call->kv_heads);
    call->rows = q->dims[1];
    call->added = k->dims[1];
    TRY(split_heads("Q", q->dims[2], call->q_heads, &call->depth, err));
    TRY(split_heads("K", k->dims[2], call->kv_heads, &depth, err));
    if (depth != call->depth)
        return error_set(err, STATUS_SHAPE, "a head of Q has %lld channels, one of K has %lld",
                         (long long)call->depth, (long long)depth);
    TRY(split_heads("V", v->dims[2], call->kv_heads, &call->width, err));
    const struct shape wanted_k = SHAPE(call->batch, call->added, k->dims[2]);
    const struct shape wanted_v = SHAPE(call->batch, call->added, v->dims[2]);
    TRY(operand_has_shape(node, ATTENTION_K, "K", &wanted_k, err));
    return operand_has_shape(node, ATTENTION_V, "V", &wanted_v, err);
}

static enum status load_apart(const struct node *node, struct attention_call *call,
                              struct error *err)
{
    const struct shape *q = &node->inputs[ATTENTION_Q]->shape;
    const struct shape *k = &node->inputs[ATTENTION_K]->shape;
    const struct shape *v = &node->inputs[ATTENTION_V]->shape;
    call->q_heads = q->dims[1];
    call->rows = q->dims[2];
    call->depth = q->dims[3];
    call->kv_heads = k->dims[1];
    call->added = k->dims[2];
    call->width = v->dims[3];
    if (node_int(node, "q_num_heads", call->q_heads) != call->q_heads ||
        node_int(node, "kv_num_heads", call->kv_heads) != call->kv_heads)
        return error_set(err, STATUS_MODEL,
                         "q_num_heads and kv_num_heads are other than the %lld and %lld heads of Q "
                         "and K",
                         (long long)call->q_heads, (long long)call->kv_heads);
    const struct shape wanted_k = SHAPE(call->batch, call->kv_heads, call->added, call->depth);
    const struct shape wanted_v = SHAPE(call->batch, call->kv_heads, call->added, call->width);
    TRY(operand_has_shape(node, ATTENTION_K, "K", &wanted_k, err));
    return operand_has_shape(node, ATTENTION_V, "V", &wanted_v, err);
}

static enum status load_past(const struct node *node, struct attention_call *call,
                             struct error *err)
{
    const struct value *key = node_input(node, ATTENTION_PAST_KEY);
    if (!key != !node_input(node, ATTENTION_PAST_VALUE))
        return error_set(err, STATUS_MODEL, "past_key and past_value come together or not at all");
    if (key && node_input(node, ATTENTION_VALID))
        return error_set(err, STATUS_MODEL,
                         "past_key and nonpad_kv_seqlen are two forms of a cache; a node has one "
                         "of them");
    if (key) {
        TRY(operand_rank(node, ATTENTION_PAST_KEY, "past_key", 4, 4, err));
        call->past = key->shape.dims[2];
        const struct shape keys = SHAPE(call->batch, call->kv_heads, call->past, call->depth);
        const struct shape values = SHAPE(call->batch, call->kv_heads, call->past, call->width);
        TRY(operand_has_shape(node, ATTENTION_PAST_KEY, "past_key", &keys, err));
        TRY(operand_has_shape(node, ATTENTION_PAST_VALUE, "past_value", &values, err));
    }
    if (__builtin_add_overflow(call->past, call->added, &call->keys))
        return error_set(err, STATUS_SHAPE, "past_key and K have too many keys together");
    return STATUS_OK;
}

/* The mask broadcasts to [batch, q_heads, rows, keys], but for keys it may leave out at the end. */
static enum status check_mask(const struct node *node, const struct attention_call *call,
                              struct error *err)
{
    const struct value *mask = node_input(node, ATTENTION_MASK);
    const int64_t full[4] = {call->batch, call->q_heads, call->rows, call->keys};
    char text[SHAPE_TEXT], wanted[SHAPE_TEXT];
    const struct shape scores = SHAPE(full[0], full[1], full[2], full[3]);
    if (!mask)
        return STATUS_OK;
    TRY(operand_rank(node, ATTENTION_MASK, "attn_mask", 1, 4, err));
    for (int d = 1; d <= mask->shape.rank; d++) {
        const int64_t extent = mask->shape.dims[mask->shape.rank - d], most = full[4 - d];
        if (d == 1 && call->mask_pads ? extent > most : extent != most && extent != 1)
            return error_set(err, STATUS_SHAPE,
                             "attn_mask has shape %s, which does not broadcast to %s",
                             shape_text(&mask->shape, text), shape_text(&scores, wanted));
    }
    return STATUS_OK;
}

enum status attention_call_load(const struct node *node, struct attention_call *ret,
                                struct error *err)
{
    const struct shape *q = &node->inputs[ATTENTION_Q]->shape;
    struct attention_call call = {.merged = q->rank == 3};
    TRY(check_dtypes(node, err));
    TRY(load_flags(node, &call, err));
    TRY(operand_rank(node, ATTENTION_Q, "Q", 3, 4, err));
    TRY(operand_rank(node, ATTENTION_K, "K", q->rank, q->rank, err));
    TRY(operand_rank(node, ATTENTION_V, "V", q->rank, q->rank, err));
    call.batch = q->dims[0];
    TRY(call.merged ? load_merged(node, &call, err) : load_apart(node, &call, err));
    if (call.q_heads < 1 || call.kv_heads < 1 || call.q_heads % call.kv_heads)
        return error_set(err, STATUS_SHAPE,
                         "Q has %lld heads, expected a multiple of the %lld of K and V",
                         (long long)call.q_heads, (long long)call.kv_heads);
    TRY(load_past(node, &call, err));
    if (call.depth < 1 || call.keys < 1)
        return error_set(err, STATUS_SHAPE,
                         "K has %lld keys of %lld channels, expected one or more",
                         (long long)call.keys, (long long)call.depth);
    TRY(check_mask(node, &call, err));
    const struct shape valid = SHAPE(call.batch);
    TRY(operand_has_shape(node, ATTENTION_VALID, "nonpad_kv_seqlen", &valid, err));
    call.scale = node_float(node, "scale", (float)(1 / sqrt((double)call.depth)));
    if (!isfinite(call.scale))
        return error_set(err, STATUS_MODEL, "scale is not a finite number");
    *ret = call;
    return STATUS_OK;
}

bool attention_call_sees(const struct attention_call *call, int64_t row, int64_t key,
                         int64_t offset)
{
    const int64_t ahead = key - row - offset; /* of the row's own position */
    return !(call->is_causal && ahead > 0) && !(call->right >= 0 && ahead > call->right) &&
           !(call->left >= 0 && -ahead > call->left);
}

static enum status infer_attention(struct node *node, struct error *err)
{
    struct attention_call c;
    int64_t hidden;
    TRY(attention_call_load(node, &c, err));
    if (__builtin_mul_overflow(c.q_heads, c.width, &hidden))
        return error_set(err, STATUS_SHAPE, "the result has too many channels");
    const enum dtype dtype = node->inputs[ATTENTION_Q]->dtype;
    const struct shape y =
        c.merged ? SHAPE(c.batch, c.rows, hidden) : SHAPE(c.batch, c.q_heads, c.rows, c.width);
    const struct shape key = SHAPE(c.batch, c.kv_heads, c.keys, c.depth);
    const struct shape value = SHAPE(c.batch, c.kv_heads, c.keys, c.width);
    const struct shape scores = SHAPE(c.batch, c.q_heads, c.rows, c.keys);
    TRY(infer_output(node, ATTENTION_Y, dtype, &y, err));
    TRY(infer_output(node, ATTENTION_PRESENT_KEY, dtype, &key, err));
    TRY(infer_output(node, ATTENTION_PRESENT_VALUE, node->inputs[ATTENTION_V]->dtype, &value, err));
    return infer_output(node, ATTENTION_SCORES, dtype, &scores, err);
}

/* ---- RotaryEmbedding ---- */

static enum status load_tables(const struct node *node, struct rotary_call *call, struct error *err)
{
    const struct shape *cosines = &node->inputs[1]->shape;
    const struct value *ids = node_input(node, 3);
    struct shape wanted = SHAPE(0, call->rotated / 2);
    call->table_images = 1;
    if (ids) {
        TRY(operand_rank(node, 1, "cos_cache", 2, 2, err));
        TRY(operand_rank(node, 3, "position_ids", 2, 2, err));
        const int64_t images = ids->shape.dims[0];
        const struct shape positions = SHAPE(images == 1 ? 1 : call->batch, call->tokens);
        TRY(operand_has_shape(node, 3, "position_ids", &positions, err));
        call->table_images = images;
        call->positions = wanted.dims[0] = cosines->dims[0];
    } else {
        TRY(operand_rank(node, 1, "cos_cache", 3, 3, err));
        call->table_images = cosines->dims[0] == 1 ? 1 : call->batch;
        wanted = SHAPE(call->table_images, call->tokens, call->rotated / 2);
    }
    TRY(operand_has_shape(node, 1, "cos_cache", &wanted, err));
    return operand_has_shape(node, 2, "sin_cache", &wanted, err);
}

enum status rotary_call_load(const struct node *node, struct rotary_call *ret, struct error *err)
{
    const struct shape *x = &node->inputs[0]->shape;
    struct rotary_call call = {.merged = x->rank == 3,
                               .interleaved = node_int(node, "interleaved", 0) != 0};
    TRY(operand_dtype(node, 0, "X", DTYPES_FLOAT, err));
    TRY(operand_same_dtype(node, 1, "cos_cache", err));
    TRY(operand_same_dtype(node, 2, "sin_cache", err));
    TRY(operand_dtype(node, 3, "position_ids", DTYPE_BIT(I64), err));
    TRY(operand_rank(node, 0, "X", 3, 4, err));
    call.batch = x->dims[0];
    call.tokens = x->dims[call.merged ? 1 : 2];
    call.heads = call.merged ? node_int(node, "num_heads", 0) : x->dims[1];
    call.size = x->dims[3 - call.merged];
    if (call.merged && call.heads < 1)
        return error_set(err, STATUS_MODEL,
                         "X has three dimensions, so num_heads must be at least 1; it is %lld",
                         (long long)call.heads);
    if (call.merged)
        TRY(split_heads("X", call.size, call.heads, &call.size, err));
    call.rotated = node_int(node, "rotary_embedding_dim", 0);
    if (!call.rotated)
        call.rotated = call.size;
    if (call.rotated < 2 || call.rotated % 2 || call.rotated > call.size)
        return error_set(err, STATUS_MODEL,
                         "%lld numbers of a head are to be rotated, expected an even number of the "
                         "%lld it has",
                         (long long)call.rotated, (long long)call.size);
    TRY(load_tables(node, &call, err));
    *ret = call;
    return STATUS_OK;
}

static enum status infer_rotary(struct node *node, struct error *err)
{
    struct rotary_call call;
    TRY(rotary_call_load(node, &call, err));
    return infer_output(node, 0, node->inputs[0]->dtype, &node->inputs[0]->shape, err);
}

/* ---- batches ---- */

static int attention_axis(const struct node *node, const int *axes)
{
    return batch_of_samples(node, axes, 3);
}

/* A mask of two or three dimensions is for all images. */
static int attention_beside(const struct node *node, size_t i, int axis)
{
    const int rank = node->inputs[i]->shape.rank;
    (void)axis;
    return i < 3 || rank < 2 || rank > 3 ? 0 : BATCH_OTHER;
}

static const struct batch_rule attention_rule = {attention_axis, attention_beside};

static int rotary_axis(const struct node *node, const int *axes)
{
    return batch_of_samples(node, axes, 1);
}

/* A cache of two dimensions is indexed by positions. */
static int rotary_beside(const struct node *node, size_t i, int axis)
{
    (void)axis;
    return i == 3 || node->inputs[i]->shape.rank > 2 ? 0 : BATCH_OTHER;
}

static const struct batch_rule rotary_rule = {rotary_axis, rotary_beside};

/* ---- the table ---- */

#define ATTENTION_ATTRS                                                                            \
    "is_causal:int kv_num_heads:int q_num_heads:int qk_matmul_output_mode:int scale:float "        \
    "softcap:float softmax_precision:int"

static const struct op_info entries[] = {
    {OP_ONNX_ATTENTION, 23, 23, 3, 6, 1, 4, OP_HEAVY, ATTENTION_ATTRS, infer_attention,
     &attention_rule, work_attention},
    {OP_ONNX_ATTENTION, 24, 24, 3, 7, 1, 4, OP_HEAVY, ATTENTION_ATTRS, infer_attention,
     &attention_rule, work_attention},
    {OP_ONNX_ATTENTION, 25, 0, 3, 7, 1, 4, OP_HEAVY,
     ATTENTION_ATTRS " left_window_size:int right_window_size:int", infer_attention,
     &attention_rule, work_attention},
    {OP_ROTARY_EMBEDDING, 23, 0, 3, 4, 1, 1, OP_PLAIN,
     "interleaved:int num_heads:int rotary_embedding_dim:int", infer_rotary, &rotary_rule,
     work_elements},
};

const struct op_family ops_transformer = {entries, COUNT_OF(entries)};
