/* Rewrites ONNX's function operators of transformers, Attention and RotaryEmbedding, in the
 * primitives that exporters used before opset 23. So passes and kernels need no code for the two
 * operators. pass_attention() then makes one operator of Attention's primitives.
 *
 *     q ─ (apart) ─ · scale ─────────┐
 *     [past_key ─] k ─ (apart) ─ swap ┴ MatMul ─ (cap) ─ + bias ─ Softmax ─ p
 *
 *     p ───────────────────────────┐
 *     [past_value ─] v ─ (apart) ─ ┴ MatMul ─ (0 where hidden) ─ y
 *
 * "Apart" is Reshape and Transpose of an operand whose heads are merged. Where several heads of Q
 * share one of K and V, the heads become two dimensions, [kv_heads, group], and K and V broadcast
 * over the second: nothing is repeated in memory. Causality and windows become a constant bias;
 * with nonpad_kv_seqlen, which may be known only in a run, comparisons compute the bias. For a row
 * whose biases are all -inf, Softmax gives NaN, but Attention gives 0. The biases decide which rows
 * become 0, because a NaN in Q, K or V must stay. If a constant bias has no row of only -inf,
 * folding removes the nodes that set rows to 0.
 *
 *     x ─┬───────────────────── · [cos, cos]  ─┐
 *        └ halves (pairs) swapped · [-sin, sin] ┴ Add
 *
 * The reference kernels (engine/op/transformer.c) run nodes that are not rewritten. */
#include <float.h>
#include <math.h>

#include "engine/base/size.h"
#include "engine/op/transformer.h"
#include "engine/passes/functions.h"

/* New nodes are inserted at graph->nodes[at], before `from`. After a failure every function that
 * makes a value returns NULL, and edit->status has the reason. */
struct expansion {
    struct edit *edit;
    struct node *from;
    size_t at;
};

static struct value *list(struct expansion *e, const int64_t *data, int count)
{
    return edit_constant(e->edit, DTYPE_I64, &SHAPE(count), data);
}

/* ---- making nodes ---- */

/* Describes a new node: up to four operands, and two attributes, an integer and an integer list. */
struct function_step {
    enum op op;
    struct value *in[4];
    const char *name; /* name of the integer; NULL: no such attribute */
    int64_t number;
    const char *list; /* name of the list; NULL: no such attribute */
    const int64_t *numbers;
    size_t count;
};

static struct value *expansion_emit(struct expansion *e, const struct function_step *step)
{
    size_t count = 0;
    if (e->edit->status != STATUS_OK)
        return NULL; /* creating an operand failed */
    while (count < COUNT_OF(step->in) && step->in[count])
        count++;
    struct graph *graph = e->edit->graph;
    struct value *value = edit_insert_value(e->edit, e->at, step->op, 13, e->from->name, step->in,
                                            count, DTYPE_NONE, NULL);
    if (!value)
        return NULL;
    e->at++;
    struct node *node = value->producer;
    if ((step->name && !node_set_int(graph, node, step->name, step->number)) ||
        (step->list && !node_set_ints(graph, node, step->list, step->numbers, step->count)))
        edit_no_memory(e->edit);
    IF_OK(e->edit->status, graph_infer_node(node, e->edit->err));
    return e->edit->status == STATUS_OK ? value : NULL;
}

static struct value *two(struct expansion *e, enum op op, struct value *a, struct value *b)
{
    return expansion_emit(e, &(struct function_step){.op = op, .in = {a, b}});
}

static struct value *one(struct expansion *e, enum op op, struct value *a)
{
    return expansion_emit(e, &(struct function_step){.op = op, .in = {a}});
}

static struct value *expansion_join(struct expansion *e, struct value *a, struct value *b,
                                    int64_t axis)
{
    return expansion_emit(
        e, &(struct function_step){.op = OP_CONCAT, .in = {a, b}, .name = "axis", .number = axis});
}

static struct value *transpose(struct expansion *e, struct value *a, const int64_t *perm,
                               size_t rank)
{
    return expansion_emit(
        e, &(struct function_step){
               .op = OP_TRANSPOSE, .in = {a}, .list = "perm", .numbers = perm, .count = rank});
}

static struct value *reshape(struct expansion *e, struct value *a, const int64_t *dims, int rank)
{
    return two(e, OP_RESHAPE, a, list(e, dims, rank));
}

static struct value *cast(struct expansion *e, struct value *a, enum dtype dtype)
{
    if (!a || a->dtype == dtype)
        return a;
    return expansion_emit(
        e, &(struct function_step){.op = OP_CAST, .in = {a}, .name = "to", .number = dtype});
}

/* Returns a[..., begin : end]. */
static struct value *part(struct expansion *e, struct value *a, int64_t begin, int64_t end)
{
    const int64_t axis = -1;
    struct value *last = list(e, &axis, 1), *from = list(e, &begin, 1), *to = list(e, &end, 1);
    return expansion_emit(e, &(struct function_step){.op = OP_SLICE, .in = {a, from, to, last}});
}

/* Returns a constant number in the dtype of the computation. */
static struct value *number(struct expansion *e, float x, enum dtype dtype)
{
    return cast(e, edit_constant(e->edit, DTYPE_F32, &SHAPE_SCALAR, &x), dtype);
}

/* Returns 0 where `condition` is true, otherwise -inf. */
static struct value *hide_unless(struct expansion *e, struct value *condition, enum dtype dtype)
{
    struct value *zero = number(e, 0, dtype), *low = number(e, -INFINITY, dtype);
    return expansion_emit(e, &(struct function_step){.op = OP_WHERE, .in = {condition, zero, low}});
}

static bool is_operand(const struct node *node, const struct value *value)
{
    for (size_t i = 0; i < node->input_count; i++)
        if (node->inputs[i] == value)
            return true;
    return false;
}

/* Uses `made` as output i of the rewritten node, if that output is wanted. Returns the value that
 * then has the contents of `made`. */
static struct value *bind(struct expansion *e, size_t i, struct value *made)
{
    struct value *output = node_output(e->from, i);
    if (!output || !made || e->edit->status != STATUS_OK)
        return made;
    if (is_operand(e->from, made)) /* an operand is also an output: copy it */
        made = one(e, OP_IDENTITY, made);
    if (!made)
        return NULL;
    struct node *producer = made->producer;
    edit_replace(e->edit->graph, made, output);
    node_set_output(producer, 0, output);
    e->from->outputs[i] = NULL;
    return output;
}

/* ---- Attention ---- */

struct attention_expansion {
    struct expansion *e;
    struct attention_call call;
    enum dtype dtype;
    int64_t group;      /* heads of Q that share one of K and V */
    struct value *bias; /* added to the scores, [batch, q_heads, rows, keys] or broadcast to it;
                           NULL: nothing */
};

/* Converts [batch, rows, heads * width] to [batch, heads, rows, width]. */
static struct value *apart(struct attention_expansion *a, struct value *x, int64_t rows,
                           int64_t heads, int64_t width)
{
    static const int64_t perm[4] = {0, 2, 1, 3};
    const int64_t dims[4] = {a->call.batch, rows, heads, width};
    return a->call.merged ? transpose(a->e, reshape(a->e, x, dims, 4), perm, 4) : x;
}

/* Splits the heads of [batch, heads, rows, width] in two dimensions, [kv_heads, heads /
 * kv_heads]. */
static struct value *grouped(struct attention_expansion *a, struct value *x, int64_t heads,
                             int64_t rows, int64_t width)
{
    const struct attention_call *c = &a->call;
    const int64_t dims[5] = {c->batch, c->kv_heads, heads / c->kv_heads, rows, width};
    return a->group > 1 ? reshape(a->e, x, dims, 5) : x;
}

/* Undoes grouped() for a result, [batch, kv_heads, group, rows, width]. */
static struct value *ungrouped(struct attention_expansion *a, struct value *x, int64_t width)
{
    const struct attention_call *c = &a->call;
    const int64_t dims[4] = {c->batch, c->q_heads, c->rows, width};
    return a->group > 1 ? reshape(a->e, x, dims, 4) : x;
}

/* Puts the past values in front of K or V. Binds the result to output `present`, and returns it. */
static struct value *cached(struct attention_expansion *a, size_t operand, size_t past,
                            size_t present, int64_t width)
{
    struct node *node = a->e->from;
    struct value *before = node_input(node, past);
    struct value *x = apart(a, node->inputs[operand], a->call.added, a->call.kv_heads, width);
    if (before && a->call.past)
        x = expansion_join(a->e, before, x, 2);
    return bind(a->e, present, x);
}

/* Returns the bias of causality and windows for rows at known positions, [rows, keys] of 0 and
 * -inf. Returns NULL if no key is hidden. */
static struct value *fixed_bias(struct attention_expansion *a)
{
    const struct attention_call *c = &a->call;
    const struct shape shape = SHAPE(c->rows, c->keys);
    bool hides = false;
    if (!c->is_causal && c->left < 0 && c->right < 0)
        return NULL;
    struct value *bias = edit_constant(a->e->edit, DTYPE_F32, &shape, NULL);
    for (int64_t row = 0; bias && row < c->rows; row++)
        for (int64_t key = 0; key < c->keys; key++) {
            const bool sees = attention_call_sees(c, row, key, c->past);
            ((float *)bias->known->data)[row * c->keys + key] = sees ? 0 : -INFINITY;
            hides = hides || !sees;
        }
    return hides ? cast(a->e, bias, a->dtype) : NULL;
}

/* Returns [1, 1, rows, keys] of `key + by_row * row + more`, to compare with the number of valid
 * keys. */
static struct value *positions(struct attention_expansion *a, int64_t by_row, int64_t more)
{
    const struct attention_call *c = &a->call;
    const struct shape shape = SHAPE(1, 1, by_row ? c->rows : 1, c->keys);
    struct value *line = edit_constant(a->e->edit, DTYPE_I64, &shape, NULL);
    for (int64_t row = 0; line && row < shape.dims[2]; row++)
        for (int64_t key = 0; key < c->keys; key++)
            ((int64_t *)line->known->data)[row * c->keys + key] = key + by_row * row + more;
    return line;
}

/* Limits a bound of a window to rows + keys, to avoid overflow. Larger bounds hide no key. */
static int64_t reach(const struct attention_call *c, int64_t bound)
{
    const int64_t all = c->rows + c->keys;
    return bound < all ? bound : all;
}

/* Returns the bias [batch, 1, rows, keys] that hides keys from n on, where nonpad_kv_seqlen gives
 * n. Row r has the position r + n - rows. */
static struct value *valid_bias(struct attention_expansion *a, struct value *valid)
{
    const struct attention_call *c = &a->call;
    struct expansion *e = a->e;
    const int64_t dims[4] = {c->batch, 1, 1, 1};
    valid = expansion_emit(
        e, &(struct function_step){
               .op = OP_VALID_KEYS, .in = {valid}, .name = "keys", .number = c->keys});
    struct value *n = reshape(e, valid, dims, 4);
    struct value *sees = two(e, OP_LESS, positions(a, 0, 0), n);
    if (c->is_causal) /* key <= row + n - rows */
        sees = two(e, OP_AND, sees, two(e, OP_LESS_OR_EQUAL, positions(a, -1, c->rows), n));
    if (c->right >= 0) /* key <= row + n - rows + right */
        sees = two(e, OP_AND, sees,
                   two(e, OP_LESS_OR_EQUAL, positions(a, -1, c->rows - reach(c, c->right)), n));
    if (c->left >= 0) /* row + n - rows <= key + left */
        sees = two(e, OP_AND, sees,
                   two(e, OP_GREATER_OR_EQUAL, positions(a, -1, c->rows + reach(c, c->left)), n));
    return hide_unless(e, sees, a->dtype);
}

/* Returns the mask as a bias, extended with -inf to all keys. */
static struct value *mask_bias(struct attention_expansion *a, struct value *mask)
{
    struct expansion *e = a->e;
    struct shape rest = mask->shape;
    mask = mask->dtype == DTYPE_BOOL ? hide_unless(e, mask, a->dtype) : cast(e, mask, a->dtype);
    int64_t *last = &rest.dims[rest.rank - 1];
    *last = a->call.keys - *last;
    if (!mask || !a->call.mask_pads || !*last)
        return mask;
    struct value *low = edit_constant(e->edit, DTYPE_F32, &rest, NULL);
    for (size_t i = 0; low && i < shape_count(&rest); i++)
        ((float *)low->known->data)[i] = -INFINITY;
    return expansion_join(e, mask, cast(e, low, a->dtype), -1);
}

/* Splits the heads of a bias in two dimensions, as grouped() does for Q, K and V. */
static struct value *grouped_bias(struct attention_expansion *a, struct value *bias)
{
    const struct attention_call *c = &a->call;
    if (!bias || a->group == 1 || bias->shape.rank < 3)
        return bias;
    const struct shape *s = &bias->shape;
    const int r = s->rank;
    const bool each = s->dims[r - 3] != 1;
    const int64_t dims[5] = {r == 4 ? s->dims[0] : 1, each ? c->kv_heads : 1, each ? a->group : 1,
                             s->dims[r - 2], s->dims[r - 1]};
    return reshape(a->e, bias, dims, 5);
}

/* Binds the scores or probabilities `s` to output ATTENTION_SCORES if the node wants this
 * stage. Returns the value that then has the contents of `s`. */
static struct value *shown(struct attention_expansion *a, enum attention_stage stage,
                           struct value *s)
{
    if (!s || a->call.stage != stage || !node_output(a->e->from, ATTENTION_SCORES))
        return s;
    if (a->group == 1)
        return bind(a->e, ATTENTION_SCORES, s);
    (void)bind(a->e, ATTENTION_SCORES, ungrouped(a, s, a->call.keys));
    return s;
}

/* Computes the scores with their bias, and sets a->bias. Binds ATTENTION_SCORES if the node wants a
 * stage before the probabilities. */
static struct value *scores(struct attention_expansion *a, struct value *q, struct value *k)
{
    static const int64_t perm4[4] = {0, 1, 3, 2}, perm5[5] = {0, 1, 2, 4, 3};
    const struct attention_call *c = &a->call;
    struct expansion *e = a->e;
    struct value *valid = node_input(e->from, ATTENTION_VALID);
    struct value *mask = node_input(e->from, ATTENTION_MASK);
    q = grouped(a, q, c->q_heads, c->rows, c->depth);
    k = grouped(a, k, c->kv_heads, c->keys, c->depth);
    k = a->group > 1 ? transpose(e, k, perm5, 5) : transpose(e, k, perm4, 4);
    if (c->scale != 1)
        q = two(e, OP_MUL, q, number(e, c->scale, a->dtype));
    struct value *s = shown(a, STAGE_PRODUCT, two(e, OP_MATMUL, q, k));
    if (c->softcap > 0) {
        /* 1 / softcap may exceed float32: then all scores and their errors are below 1e-38 */
        const float inverse = fminf(1 / c->softcap, FLT_MAX);
        s = one(e, OP_TANH, two(e, OP_MUL, s, number(e, inverse, a->dtype)));
        s = two(e, OP_MUL, s, number(e, c->softcap, a->dtype));
    }
    s = shown(a, STAGE_CAPPED, s);
    struct value *bias = valid ? valid_bias(a, valid) : fixed_bias(a);
    struct value *more = mask ? mask_bias(a, mask) : NULL;
    if (more && bias)
        bias = two(e, OP_ADD, more, bias);
    else if (more)
        bias = more;
    a->bias = bias;
    if (bias)
        s = two(e, OP_ADD, s, grouped_bias(a, bias));
    return shown(a, STAGE_BIASED, s);
}

/* Returns a tensor that is true for each row whose keys are all hidden. Its shape is [batch,
 * q_heads, rows, 1] or can be broadcast to it. */
static struct value *hidden_rows(struct attention_expansion *a)
{
    static const int64_t last[1] = {-1};
    struct expansion *e = a->e;
    struct value *greatest = two(e, OP_REDUCE_MAX, a->bias, list(e, last, 1));
    return two(e, OP_EQUAL, greatest, number(e, -INFINITY, a->dtype));
}

/* Returns 0 where `hidden` is true, otherwise x. */
static struct value *clear(struct attention_expansion *a, struct value *hidden, struct value *x)
{
    struct value *zero = number(a->e, 0, a->dtype);
    return expansion_emit(a->e, &(struct function_step){.op = OP_WHERE, .in = {hidden, zero, x}});
}

/* Computes p v in the layout of Y. `hidden` is from hidden_rows(), or NULL if no row is hidden. */
static struct value *results(struct attention_expansion *a, struct value *p, struct value *v,
                             struct value *hidden)
{
    static const int64_t perm[4] = {0, 2, 1, 3};
    const struct attention_call *c = &a->call;
    const int64_t merged[3] = {c->batch, c->rows, c->q_heads * c->width};
    struct expansion *e = a->e;
    v = grouped(a, cast(e, v, a->dtype), c->kv_heads, c->keys, c->width);
    struct value *y = ungrouped(a, two(e, OP_MATMUL, p, v), c->width);
    if (!c->merged)
        return hidden ? clear(a, hidden, y) : y;
    y = transpose(e, y, perm, 4);
    if (hidden) { /* after the Transpose, so that pass_attention() can follow the moves */
        int64_t dims[4] = {1, 1, 1, 1};
        for (int d = 1; d <= hidden->shape.rank; d++)
            dims[4 - d] = hidden->shape.dims[hidden->shape.rank - d];
        y = clear(a, transpose(e, reshape(e, hidden, dims, 4), perm, 4), y);
    }
    return reshape(e, y, merged, 3);
}

static enum status expand_attention(struct expansion *e)
{
    struct node *node = e->from;
    struct attention_expansion a = {.e = e, .dtype = node->inputs[ATTENTION_Q]->dtype};
    const struct attention_call *c = &a.call;
    TRY(attention_call_load(node, &a.call, e->edit->err));
    a.group = c->q_heads / c->kv_heads;
    struct value *q = apart(&a, node->inputs[ATTENTION_Q], c->rows, c->q_heads, c->depth);
    struct value *k = cached(&a, ATTENTION_K, ATTENTION_PAST_KEY, ATTENTION_PRESENT_KEY, c->depth);
    struct value *v =
        cached(&a, ATTENTION_V, ATTENTION_PAST_VALUE, ATTENTION_PRESENT_VALUE, c->width);
    struct value *s = scores(&a, q, k);
    struct value *p = expansion_emit(
        e, &(struct function_step){.op = OP_SOFTMAX, .in = {s}, .name = "axis", .number = -1});
    struct value *hidden = a.bias ? hidden_rows(&a) : NULL;
    if (hidden && c->stage == STAGE_PROBABILITIES && node_output(node, ATTENTION_SCORES)) {
        p = clear(&a, grouped_bias(&a, hidden), p);
        hidden = NULL;
    }
    p = shown(&a, STAGE_PROBABILITIES, p);
    (void)bind(e, ATTENTION_Y, results(&a, p, v, hidden));
    return e->edit->status;
}

/* ---- RotaryEmbedding ---- */

/* Returns a table of cosines or sines, [images, tokens, rotated / 2] after the look-up of
 * position_ids, in a form to multiply x: [images, 1, tokens, rotated], or [images, tokens, 1,
 * rotated] if x has merged heads. With `negated`, negates the first number of each pair. */
static struct value *rotary_table(struct expansion *e, const struct rotary_call *c, size_t operand,
                                  bool negated)
{
    const int64_t half = c->rotated / 2;
    struct value *table = e->from->inputs[operand], *ids = node_input(e->from, 3);
    if (ids)
        table = expansion_emit(
            e, &(struct function_step){.op = OP_GATHER, .in = {table, ids}, .name = "axis"});
    const int64_t dims[5] = {c->table_images, c->merged ? c->tokens : 1, c->merged ? 1 : c->tokens,
                             half, 1};
    const int64_t whole[4] = {dims[0], dims[1], dims[2], c->rotated};
    table = reshape(e, table, dims, c->interleaved ? 5 : 4);
    struct value *first = negated ? one(e, OP_NEG, table) : table;
    table = expansion_join(e, first, table, -1);
    return c->interleaved ? reshape(e, table, whole, 4) : table;
}

/* Returns x with the two numbers of each pair swapped. */
static struct value *swapped(struct expansion *e, const struct rotary_call *c, struct value *x)
{
    if (!x)
        return NULL;
    const struct shape shape = x->shape;
    const int64_t pairs[5] = {shape.dims[0], shape.dims[1], shape.dims[2], c->rotated / 2, 2};
    if (!c->interleaved)
        return expansion_join(e, part(e, x, c->rotated / 2, c->rotated),
                              part(e, x, 0, c->rotated / 2), -1);
    x = reshape(e, x, pairs, 5);
    return reshape(e, expansion_join(e, part(e, x, 1, 2), part(e, x, 0, 1), -1), shape.dims, 4);
}

static enum status expand_rotary(struct expansion *e)
{
    struct rotary_call c;
    struct node *node = e->from;
    TRY(rotary_call_load(node, &c, e->edit->err));
    struct value *x = node->inputs[0];
    const struct shape shape = x->shape;
    const int64_t dims[4] = {c.batch, c.tokens, c.heads, c.size};
    if (c.merged)
        x = reshape(e, x, dims, 4);
    struct value *rotated = c.rotated < c.size ? part(e, x, 0, c.rotated) : x;
    struct value *rest = c.rotated < c.size ? part(e, x, c.rotated, c.size) : NULL;
    struct value *y = two(e, OP_MUL, rotated, rotary_table(e, &c, 1, false));
    struct value *z = two(e, OP_MUL, swapped(e, &c, rotated), rotary_table(e, &c, 2, true));
    y = two(e, OP_ADD, y, z);
    if (rest)
        y = expansion_join(e, y, rest, -1);
    if (c.merged)
        y = reshape(e, y, shape.dims, 3);
    (void)bind(e, 0, y);
    return e->edit->status;
}

/* ---- Attention and RotaryEmbedding ---- */

/* Limit for the elements of fixed_bias(): 256 MiB of float32. A file of a few bytes could request
 * any size. */
#define BIAS_MAX ((size_t)1 << 26)

static bool is_bias_small(const struct node *node)
{
    struct attention_call c;
    size_t count;
    if (attention_call_load(node, &c, NULL) != STATUS_OK)
        return true; /* the expansion reports the error */
    const bool sees_all = !c.is_causal && c.left < 0 && c.right < 0;
    return sees_all || (size_mul((size_t)c.rows, (size_t)c.keys, &count) && count <= BIAS_MAX);
}

bool composite_is_expanded(const struct node *node)
{
    if (node->op != OP_ONNX_ATTENTION && node->op != OP_ROTARY_EMBEDDING)
        return false;
    for (size_t i = 0; i < node->input_count; i++) {
        const struct value *value = node->inputs[i];
        const bool may_be_empty = i == ATTENTION_PAST_KEY || i == ATTENTION_PAST_VALUE;
        if (value &&
            (!shape_is_known(&value->shape) || (!shape_count(&value->shape) && !may_be_empty)))
            return false;
    }
    return node->op != OP_ONNX_ATTENTION || is_bias_small(node);
}

enum status composite_expand(struct edit *edit, size_t at)
{
    struct expansion e = {.edit = edit, .from = edit->graph->nodes[at], .at = at};
    TRY(graph_infer_node(e.from, edit->err));
    edit->status = e.from->op == OP_ONNX_ATTENTION ? expand_attention(&e) : expand_rotary(&e);
    if (edit->status != STATUS_OK)
        return error_prefix(edit->err, "%s", NODE_STRING(e.from));
    e.from->op = OP_NONE;
    return STATUS_OK;
}
