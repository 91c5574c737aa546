/* ONNX's Attention and RotaryEmbedding: checks, inference and reference kernels; ValidKeys. */
#include <math.h>
#include <string.h>

#include "engine/op/family.h"
#include "engine/op/nn.h"
#include "engine/op/transformer.h"

/* ---- Attention ---- */

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

/* Divides a merged operand's last dimension, heads * numbers per head, by the number of heads. */
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
                         "q_num_heads and kv_num_heads differ from the %lld and %lld heads of Q "
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

/* The mask must broadcast to [batch, q_heads, rows, keys]; in opset 24 it may have fewer keys. */
static enum status check_mask(const struct node *node, const struct attention_call *call,
                              struct error *err)
{
    const struct value *mask = node_input(node, ATTENTION_MASK);
    const int64_t full[4] = {call->batch, call->q_heads, call->rows, call->keys};
    const struct shape scores = SHAPE(full[0], full[1], full[2], full[3]);
    if (!mask)
        return STATUS_OK;
    TRY(operand_rank(node, ATTENTION_MASK, "attn_mask", 1, 4, err));
    for (int d = 1; d <= mask->shape.rank; d++) {
        const int64_t extent = mask->shape.dims[mask->shape.rank - d], most = full[4 - d];
        if (d == 1 && call->mask_pads ? extent > most : extent != most && extent != 1)
            return error_set(err, STATUS_SHAPE,
                             "attn_mask has shape %s, which does not broadcast to %s",
                             SHAPE_STRING(&mask->shape), SHAPE_STRING(&scores));
    }
    return STATUS_OK;
}

enum status attention_call_load(const struct node *node, struct attention_call *ret,
                                struct error *err)
{
    const struct shape *q = &node->inputs[ATTENTION_Q]->shape;
    struct attention_call call = {.merged = q->rank == 3};
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
    const int64_t ahead = key - row - offset; /* relative to the row's own position */
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
                         "rotary_embedding_dim is %lld, expected an even number of the head's %lld "
                         "channels",
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

static int attention_axis(const struct node *node, const int *axes)
{
    return batch_of_samples(node, axes, 3);
}

/* A mask of two or three dimensions applies to all images; nonpad_kv_seqlen has one dimension. */
static int attention_beside(const struct node *node, size_t i, int axis)
{
    const int rank = node->inputs[i]->shape.rank;
    (void)axis;
    return i < 3 || rank < 2 || rank > 3 ? 0 : BATCH_OTHER;
}

static const struct batch_rule attention_rule = {attention_axis, attention_beside};

/* A cache of two dimensions is indexed by positions. */
static int rotary_beside(const struct node *node, size_t i, int axis)
{
    (void)axis;
    return i == 3 || node->inputs[i]->shape.rank > 2 ? 0 : BATCH_OTHER;
}

/* ---- Attention ---- */

/* Copies Q, K or V to *ret as [batch, heads, past_rows + rows, width]: the past rows, then the
 * added rows. `added` is [batch, rows, heads * width] if `merged`. *ret is also the contents of
 * output `output`, if that output is wanted. */
static enum status lay_out(const struct kernel_args *args, size_t output,
                           const struct attention_call *call, const double *past,
                           const double *added, int64_t heads, int64_t past_rows, int64_t rows,
                           int64_t width, double **ret, struct error *err)
{
    const size_t size = (size_t)width * sizeof(double);
    TRY(result_open(args, output, DTYPE_F64, ret, err));
    if (!*ret)
        *ret = kernel_scratch(args, (size_t)(call->batch * heads * (past_rows + rows)), size, err);
    TRY(allocated(*ret));
    double *to = *ret;
    for (int64_t i = 0; i < call->batch * heads && size; i++) {
        const int64_t image = i / heads, head = i % heads;
        if (past_rows)
            memcpy(to, past + i * past_rows * width, (size_t)past_rows * size);
        to += past_rows * width;
        for (int64_t row = 0; row < rows; row++, to += width)
            memcpy(to,
                   added + (call->merged ? (image * rows + row) * heads + head : i * rows + row) *
                               width,
                   size);
    }
    return STATUS_OK;
}

struct attend_call {
    struct attention_call call;
    const double *in[ATTENTION_VALID];
    const int64_t *valid; /* number of keys of each image, or NULL */
    const double *mask;   /* or NULL */
    bool mask_is_bool;
    int64_t mask_step[4], mask_keys; /* steps, 0 where the mask repeats; keys of the mask */
    double *q, *k, *v;               /* [batch, heads, rows or keys, depth or width] */
    double *y, *scores;              /* NULL: not wanted */
    double *row, *shown;             /* [keys]; shown: a row of ATTENTION_SCORES */
};

/* Returns what is added to a key's score; -inf for a hidden key. */
static double bias_of(const struct attend_call *a, int64_t image, int64_t head, int64_t row,
                      int64_t key)
{
    const struct attention_call *call = &a->call;
    const int64_t offset = a->valid ? a->valid[image] - call->rows : call->past;
    if (!attention_call_sees(call, row, key, offset) || (a->valid && key >= a->valid[image]))
        return -INFINITY;
    if (key >= a->mask_keys) /* a mask without keys has no data */
        return -INFINITY;
    if (!a->mask)
        return 0;
    const double bias = a->mask[image * a->mask_step[0] + head * a->mask_step[1] +
                                row * a->mask_step[2] + key * a->mask_step[3]];
    return !a->mask_is_bool ? bias : bias != 0 ? 0 : -INFINITY;
}

/* Computes one row: the probabilities in a->row, and the scores at call->stage in a->shown. */
static void attend_row(struct attend_call *a, const double *q, const double *k, int64_t image,
                       int64_t head, int64_t row)
{
    const struct attention_call *call = &a->call;
    double greatest = -INFINITY, sum = 0;
    bool is_hidden = true;
    for (int64_t key = 0; key < call->keys; key++, k += call->depth) {
        const double bias = bias_of(a, image, head, row, key);
        double score = 0;
        for (int64_t d = 0; d < call->depth; d++)
            score += q[d] * k[d];
        score *= call->scale;
        if (call->stage == STAGE_PRODUCT)
            a->shown[key] = score;
        if (call->softcap > 0)
            score = tanh(score / call->softcap) * call->softcap;
        if (call->stage == STAGE_CAPPED)
            a->shown[key] = score;
        a->row[key] = score += bias;
        if (call->stage == STAGE_BIASED)
            a->shown[key] = score;
        greatest = score > greatest || isnan(score) ? score : greatest;
        is_hidden = is_hidden && bias == -INFINITY;
    }
    for (int64_t key = 0; key < call->keys; key++)
        sum += a->row[key] = is_hidden ? 0 : exp(a->row[key] - greatest);
    for (int64_t key = 0; key < call->keys; key++)
        a->row[key] = is_hidden ? 0 : a->row[key] / sum;
    if (call->stage == STAGE_PROBABILITIES)
        memcpy(a->shown, a->row, (size_t)call->keys * sizeof *a->row);
}

static enum status attend_all(const struct kernel_args *args, struct attend_call *a,
                              struct error *err)
{
    const struct attention_call *call = &a->call;
    const double *q = a->q;
    double *y = a->y, *scores = a->scores;
    for (int64_t image = 0; image < call->batch; image++)
        for (int64_t head = 0; head < call->q_heads; head++)
            for (int64_t row = 0; row < call->rows; row++, q += call->depth) {
                const int64_t shared = head / (call->q_heads / call->kv_heads);
                const int64_t first = (image * call->kv_heads + shared) * call->keys;
                const int64_t at = call->merged ? (image * call->rows + row) * call->q_heads + head
                                                : (image * call->q_heads + head) * call->rows + row;
                TRY(kernel_goes_on(args, (size_t)(call->keys * (call->depth + call->width)), err));
                attend_row(a, q, a->k + first * call->depth, image, head, row);
                if (scores)
                    memcpy(scores +
                               ((image * call->q_heads + head) * call->rows + row) * call->keys,
                           a->shown, (size_t)call->keys * sizeof *scores);
                for (int64_t d = 0; y && d < call->width; d++)
                    y[at * call->width + d] = 0;
                for (int64_t key = 0; y && key < call->keys; key++)
                    for (int64_t d = 0; d < call->width; d++)
                        y[at * call->width + d] +=
                            a->row[key] * a->v[(first + key) * call->width + d];
            }
    return STATUS_OK;
}

static void open_mask(const struct kernel_args *args, struct attend_call *a)
{
    const struct tensor *mask = kernel_input(args, ATTENTION_MASK);
    int64_t step = 1;
    a->mask_keys = a->call.keys;
    if (!mask)
        return;
    a->mask = a->in[ATTENTION_MASK];
    a->mask_is_bool = mask->dtype == DTYPE_BOOL;
    for (int d = 1; d <= mask->shape.rank; d++) {
        const int64_t extent = mask->shape.dims[mask->shape.rank - d];
        const bool pads = d == 1 && a->call.mask_pads;
        a->mask_step[4 - d] = extent == 1 && !pads ? 0 : step;
        step *= extent;
        if (pads)
            a->mask_keys = extent;
    }
}

/* Checks nonpad_kv_seqlen: 0 to `keys` for each image. */
static enum status check_valid(const int64_t *valid, size_t count, int64_t keys, struct error *err)
{
    for (size_t image = 0; image < count; image++)
        if (valid[image] < 0 || valid[image] > keys)
            return error_set(err, STATUS_INVALID,
                             "nonpad_kv_seqlen is %lld for image %zu, expected 0 to %lld",
                             (long long)valid[image], image, (long long)keys);
    return STATUS_OK;
}

static enum status open_attend(const struct kernel_args *args, struct attend_call *a,
                               struct error *err)
{
    const struct attention_call *call = &a->call;
    TRY(operands_open(args, 0, ATTENTION_VALID, a->in, err));
    TRY(result_open(args, ATTENTION_Y, DTYPE_F64, &a->y, err));
    TRY(result_open(args, ATTENTION_SCORES, DTYPE_F64, &a->scores, err));
    a->row = kernel_scratch(args, (size_t)call->keys, 2 * sizeof *a->row, err);
    TRY(allocated(a->row));
    a->shown = a->row + call->keys;
    a->valid = kernel_input(args, ATTENTION_VALID) ? args->in[ATTENTION_VALID]->data : NULL;
    TRY(lay_out(args, SIZE_MAX, call, NULL, a->in[ATTENTION_Q], call->q_heads, 0, call->rows,
                call->depth, &a->q, err));
    TRY(lay_out(args, ATTENTION_PRESENT_KEY, call, a->in[ATTENTION_PAST_KEY], a->in[ATTENTION_K],
                call->kv_heads, call->past, call->added, call->depth, &a->k, err));
    TRY(lay_out(args, ATTENTION_PRESENT_VALUE, call, a->in[ATTENTION_PAST_VALUE],
                a->in[ATTENTION_V], call->kv_heads, call->past, call->added, call->width, &a->v,
                err));
    open_mask(args, a);
    /* For any file, row + offset and key - row - offset fit in int64_t. */
    return a->valid ? check_valid(a->valid, (size_t)call->batch, call->keys, err) : STATUS_OK;
}

KERNEL(kernel_valid_keys)
{
    const struct tensor *valid = args->in[0];
    TRY(check_valid(valid->data, shape_count(&valid->shape), node_int(args->node, "keys", 0), err));
    memcpy(args->out[0]->data, valid->data, valid->bytes);
    return STATUS_OK;
}

KERNEL(kernel_onnx_attention)
{
    struct attend_call a = {0};
    TRY(attention_call_load(args->node, &a.call, err));
    TRY(open_attend(args, &a, err));
    return attend_all(args, &a, err);
}

/* ---- RotaryEmbedding ---- */

/* Finds the row of the tables by which a token is rotated. */
static enum status table_row(const struct kernel_args *args, const struct rotary_call *call,
                             int64_t image, int64_t token, int64_t *ret, struct error *err)
{
    const int64_t at = (call->table_images == 1 ? 0 : image) * call->tokens + token;
    *ret = at;
    if (!kernel_input(args, 3))
        return STATUS_OK;
    const int64_t position = ((const int64_t *)args->in[3]->data)[at];
    if (position < -call->positions || position >= call->positions)
        return error_set(err, STATUS_INVALID,
                         "position_ids has %lld, but cos_cache and sin_cache have %lld rows",
                         (long long)position, (long long)call->positions);
    *ret = position < 0 ? position + call->positions : position;
    return STATUS_OK;
}

static void rotate_head(const struct rotary_call *call, const double *x, const double *cosines,
                        const double *sines, double *y)
{
    const int64_t half = call->rotated / 2;
    memcpy(y, x, (size_t)call->size * sizeof *y);
    for (int64_t i = 0; i < half; i++) {
        const int64_t first = call->interleaved ? 2 * i : i;
        const int64_t second = call->interleaved ? 2 * i + 1 : half + i;
        y[first] = cosines[i] * x[first] - sines[i] * x[second];
        y[second] = sines[i] * x[first] + cosines[i] * x[second];
    }
}

KERNEL(kernel_rotary_embedding)
{
    struct rotary_call call;
    const double *in[3]; /* X, cosines, sines */
    double *y;
    TRY(rotary_call_load(args->node, &call, err));
    TRY(operands_open(args, 0, COUNT_OF(in), in, err));
    TRY(result_open(args, 0, DTYPE_F64, &y, err));
    for (int64_t i = 0; i < call.batch * call.tokens; i++) {
        const int64_t image = i / call.tokens, token = i % call.tokens;
        int64_t row;
        TRY(table_row(args, &call, image, token, &row, err));
        row *= call.rotated / 2;
        for (int64_t head = 0; head < call.heads; head++) {
            const int64_t at = (call.merged ? i * call.heads + head
                                            : (image * call.heads + head) * call.tokens + token) *
                               call.size;
            rotate_head(&call, in[0] + at, in[1] + row, in[2] + row, y + at);
        }
    }
    return STATUS_OK;
}

#define ATTENTION_ROW(since, until, most, attrs)                                                   \
    {                                                                                              \
        OP_ONNX_ATTENTION, since, until, 3, most, 1, 4,                                            \
            "Q:float K:= V:float attn_mask:any past_key:=[BHPD] past_value:=2 "                    \
            "nonpad_kv_seqlen:int64",                                                              \
            OP_HEAVY,                                                                              \
            "is_causal:int kv_num_heads:int q_num_heads:int qk_matmul_output_mode:int "            \
            "scale:float softcap:float softmax_precision:int" attrs,                               \
            infer_attention, &attention_rule, work_attention, kernel_onnx_attention                \
    }

const struct op_info ops_transformer[] = {
    ATTENTION_ROW(23, 23, 6, ""),
    ATTENTION_ROW(24, 24, 7, ""),
    ATTENTION_ROW(25, 0, 7, " left_window_size:int right_window_size:int"),
    OP_ROW_OF(ROTARY_EMBEDDING, 23, 3, 4, "X:float cos_cache:= sin_cache:= position_ids:int64[NT]",
              OP_PLAIN, "interleaved:int num_heads:int rotary_embedding_dim:int", rotary,
              BATCH(batch_of_sample, rotary_beside), rotary_embedding),
    OP_ROW_OF(VALID_KEYS, 1, 1, 1, "keys:int64", OP_PLAIN, "keys:int", like, &batch_unary,
              valid_keys),
    {0},
};
