/* ONNX's Attention and RotaryEmbedding (engine/ops/transformer.h), computed in double and rounded
 * once. */
#include "engine/ops/transformer.h"

#include <math.h>
#include <string.h>

#include "engine/base/size.h"
#include "engine/reference/convert.h"
#include "engine/reference/nn.h"

/* ---- Attention ---- */

/* K or V of all images: what was there before, and what is added. */
struct cache {
    const double *past, *added;
    int64_t heads, past_rows, added_rows, width;
    bool merged; /* `added` is [batch, rows, heads * width] */
};

static const double *cache_row(const struct cache *c, int64_t image, int64_t head, int64_t row)
{
    if (row < c->past_rows)
        return c->past + ((image * c->heads + head) * c->past_rows + row) * c->width;
    row -= c->past_rows;
    return c->added + (c->merged ? (image * c->added_rows + row) * c->heads + head
                                 : (image * c->heads + head) * c->added_rows + row) *
                          c->width;
}

static void store_cache(const struct kernel_args *args, enum attention_output output,
                        const struct attention_call *call, const struct cache *c)
{
    struct tensor *tensor = kernel_result(args, output);
    size_t at = 0;
    if (!tensor)
        return;
    for (int64_t image = 0; image < call->batch; image++)
        for (int64_t head = 0; head < call->kv_heads; head++)
            for (int64_t row = 0; row < call->keys; row++, at += (size_t)c->width)
                store_doubles(cache_row(c, image, head, row), tensor->dtype,
                              element_at(tensor->data, tensor->dtype, at), (size_t)c->width);
}

struct attend_call {
    struct attention_call call;
    const double *in[ATTENTION_VALID];
    const int64_t *valid; /* keys of each image, or NULL */
    const double *mask;   /* or NULL; steps of its four dimensions, 0 where it is broadcast */
    bool mask_is_bool;
    int64_t mask_step[4], mask_keys;
    struct cache k, v;
    double *y, *scores;  /* NULL: not wanted */
    double *row, *shown; /* [keys]: what becomes probabilities, what ATTENTION_SCORES gets */
};

/* What is added to the score of a key: -inf where it is hidden. */
static double bias_of(const struct attend_call *a, int64_t image, int64_t head, int64_t row,
                      int64_t key)
{
    const struct attention_call *call = &a->call;
    const int64_t offset = a->valid ? a->valid[image] - call->rows : call->past;
    if (!attention_call_sees(call, row, key, offset) || (a->valid && key >= a->valid[image]))
        return -INFINITY;
    if (key >= a->mask_keys) /* of a mask without keys there are no data, either */
        return -INFINITY;
    if (!a->mask)
        return 0;
    const double bias = a->mask[image * a->mask_step[0] + head * a->mask_step[1] +
                                row * a->mask_step[2] + key * a->mask_step[3]];
    return !a->mask_is_bool ? bias : bias != 0 ? 0 : -INFINITY;
}

/* a->row becomes the probabilities of one row's keys, a->shown its scores before that. */
static void attend_row(struct attend_call *a, const double *q, int64_t image, int64_t head,
                       int64_t row)
{
    const struct attention_call *call = &a->call;
    const int64_t shared = head / (call->q_heads / call->kv_heads);
    double greatest = -INFINITY, sum = 0;
    bool is_hidden = true;
    for (int64_t key = 0; key < call->keys; key++) {
        const double *k = cache_row(&a->k, image, shared, key);
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
    struct cache queries = {.added = a->in[ATTENTION_Q],
                            .heads = call->q_heads,
                            .added_rows = call->rows,
                            .width = call->depth,
                            .merged = call->merged};
    double *y = a->y, *scores = a->scores;
    for (int64_t image = 0; image < call->batch; image++)
        for (int64_t head = 0; head < call->q_heads; head++)
            for (int64_t row = 0; row < call->rows; row++) {
                const int64_t shared = head / (call->q_heads / call->kv_heads);
                const int64_t at = call->merged ? (image * call->rows + row) * call->q_heads + head
                                                : (image * call->q_heads + head) * call->rows + row;
                TRY(kernel_goes_on(args, (size_t)(call->keys * (call->depth + call->width)), err));
                attend_row(a, cache_row(&queries, image, head, row), image, head, row);
                if (scores)
                    memcpy(scores +
                               ((image * call->q_heads + head) * call->rows + row) * call->keys,
                           a->shown, (size_t)call->keys * sizeof *scores);
                for (int64_t d = 0; y && d < call->width; d++)
                    y[at * call->width + d] = 0;
                for (int64_t key = 0; y && key < call->keys; key++)
                    for (int64_t d = 0; d < call->width; d++)
                        y[at * call->width + d] +=
                            a->row[key] * cache_row(&a->v, image, shared, key)[d];
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

/* nonpad_kv_seqlen, of 0 to `keys` for each image. */
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
    TRY(result_open_doubles(args, ATTENTION_Y, &a->y, err));
    TRY(result_open_doubles(args, ATTENTION_SCORES, &a->scores, err));
    a->row = kernel_scratch(args, (size_t)call->keys, 2 * sizeof *a->row, err);
    if (!a->row)
        return STATUS_NO_MEMORY;
    a->shown = a->row + call->keys;
    a->valid = kernel_input(args, ATTENTION_VALID) ? args->in[ATTENTION_VALID]->data : NULL;
    a->k = (struct cache){.past = a->in[ATTENTION_PAST_KEY],
                          .added = a->in[ATTENTION_K],
                          .heads = call->kv_heads,
                          .past_rows = call->past,
                          .added_rows = call->added,
                          .width = call->depth,
                          .merged = call->merged};
    a->v = a->k;
    a->v.past = a->in[ATTENTION_PAST_VALUE];
    a->v.added = a->in[ATTENTION_V];
    a->v.width = call->width;
    open_mask(args, a);
    /* Whatever the file says: row + offset and key - row - offset stay within int64_t. */
    return a->valid ? check_valid(a->valid, (size_t)call->batch, call->keys, err) : STATUS_OK;
}

KERNEL(kernel_valid_keys)
{
    const struct tensor *valid = args->in[0];
    TRY(check_valid(valid->data, shape_count(&valid->shape), node_int(args->node, "keys", 0), err));
    memcpy((*args->out[0])->data, valid->data, valid->bytes);
    return STATUS_OK;
}

KERNEL(kernel_onnx_attention)
{
    struct attend_call a = {0};
    TRY(attention_call_load(args->node, &a.call, err));
    TRY(open_attend(args, &a, err));
    TRY(attend_all(args, &a, err));
    result_store(args, ATTENTION_Y, ARITHMETIC_F64, a.y);
    result_store(args, ATTENTION_SCORES, ARITHMETIC_F64, a.scores);
    store_cache(args, ATTENTION_PRESENT_KEY, &a.call, &a.k);
    store_cache(args, ATTENTION_PRESENT_VALUE, &a.call, &a.v);
    return STATUS_OK;
}

/* ---- RotaryEmbedding ---- */

/* Which row of the tables rotates a token. */
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

/* One head of one token. */
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

static enum status rotate_all(const struct kernel_args *args, const struct rotary_call *call,
                              const double *const in[3], double *y, struct error *err)
{
    const double *x = in[0], *cosines = in[1], *sines = in[2];
    for (int64_t image = 0; image < call->batch; image++)
        for (int64_t token = 0; token < call->tokens; token++) {
            int64_t row;
            TRY(table_row(args, call, image, token, &row, err));
            row *= call->rotated / 2;
            for (int64_t head = 0; head < call->heads; head++) {
                const int64_t at =
                    (call->merged ? (image * call->tokens + token) * call->heads + head
                                  : (image * call->heads + head) * call->tokens + token) *
                    call->size;
                rotate_head(call, x + at, cosines + row, sines + row, y + at);
            }
        }
    return STATUS_OK;
}

KERNEL(kernel_rotary_embedding)
{
    struct rotary_call call;
    const double *in[3];
    double *y;
    TRY(rotary_call_load(args->node, &call, err));
    TRY(operands_open(args, 0, COUNT_OF(in), in, err));
    TRY(result_open_doubles(args, 0, &y, err));
    TRY(rotate_all(args, &call, in, y, err));
    result_store(args, 0, ARITHMETIC_F64, y);
    return STATUS_OK;
}
