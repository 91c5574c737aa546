/* Attention: exporters' softmax(scale * q k^T + biases) v becomes one operator that reads q, k and
 * v from the results of the products before it, and writes its result in the layout of the product
 * after it.
 *
 *     q ─ (moves, · number) ─┐
 *     k ─ (moves, · number) ─┴ MatMul ─ · number ─ + bias ─ Softmax ─ MatMul ─ (moves) ─ y
 *     v ─ (moves) ──────────────────────────────────────────────────────┘
 *
 * "Moves" are Transposes, Reshapes, Splits, Slices … (view.h). The pass also matches Einsum in
 * place of MatMul, a transposed second product (v^T softmax^T), biases and masks of any shape that
 * can be broadcast to the scores, Where with a constant mask, and PyTorch's Where(IsNaN(p), 0, p)
 * after the Softmax. Swin adds two biases and has Reshapes between the two Adds. */
#include "engine/op/attention.h"

#include <string.h>

#include "engine/base/size.h"
#include "engine/op/resolve.h"
#include "engine/passes/passes.h"
#include "engine/passes/view.h"

struct match {
    struct edit *edit;
    struct attention attention;
    struct value *q, *k, *v, *bias[ATTENTION_BIASES]; /* inputs of the new node */
    struct shape scores;                              /* shape of the first product's result */
    struct value *result; /* result of the second product, or of the moves after it */
};

static bool is_float(const struct value *value)
{
    return value && value->dtype == DTYPE_F32 && value->shape.rank >= 2 &&
           shape_count(&value->shape);
}

/* Operands of a product of batched matrices, [..., m, k] and [..., k, n] or, with `b_transposed`,
 * [..., n, k]. */
struct batched_product {
    struct value *a, *b;
    bool b_transposed;
};

/* Reads an Einsum's equation, "… i d, … j d -> … i j" (*ret_transposed) or "… i j, … j d -> … i d".
 * "…" stands for the same letters in all three operands. */
static bool read_equation(const struct node *node, bool *ret_transposed)
{
    char text[64];
    size_t n = 0;
    for (const char *c = node_string(node, "equation", ""); *c; c++)
        if (*c != ' ' && n < sizeof text - 1)
            text[n++] = *c;
    text[n] = '\0';
    const char *comma = strchr(text, ','), *arrow = strstr(text, "->");
    if (!comma || !arrow || arrow < comma || strchr(text, '.'))
        return false;
    const char *a = text, *b = comma + 1, *y = arrow + 2;
    const size_t length = (size_t)(comma - a), front = length - 2;
    if (length < 2 || (size_t)(arrow - b) != length || strlen(y) != length ||
        strncmp(a, b, front) != 0 || strncmp(a, y, front) != 0)
        return false;
    const char i = a[front], k = a[front + 1], j = y[front + 1];
    if (y[front] != i || i == j || i == k || j == k)
        return false;
    *ret_transposed = b[front] == j && b[front + 1] == k;
    return *ret_transposed || (b[front] == k && b[front + 1] == j);
}

static bool read_product(const struct node *node, struct batched_product *ret)
{
    if (!node || node->input_count < 2 || !is_float(node->inputs[0]) || !is_float(node->inputs[1]))
        return false;
    *ret = (struct batched_product){node->inputs[0], node->inputs[1], false};
    if (node->op == OP_MATMUL)
        return true;
    return node->op == OP_EINSUM && node->input_count == 2 &&
           read_equation(node, &ret->b_transposed);
}

/* ---- the scores, from the Softmax upwards ---- */

/* Records `bias`, which is added to scores of this shape. Returns false if attention kernels cannot
 * read the bias. */
static bool take_bias(struct match *m, struct value *bias, const struct shape *shape)
{
    struct attention *a = &m->attention;
    struct view view;
    int64_t stride;
    if (!bias || bias->dtype != DTYPE_F32 || !shape_count(&bias->shape))
        return false;
    if (edit_is_all(bias, 0))
        return true;
    if (a->bias_count == ATTENTION_BIASES)
        return false;
    for (int plain = 0; plain < 2; plain++) { /* try the base of bias's view, then `bias` itself */
        struct access_map *map = &a->bias[a->bias_count];
        const int rank = shape->rank;
        if (plain)
            view_init(&view, bias);
        else
            view_of(bias, false, &view);
        if (!view_expand(&view, shape))
            continue;
        *map = (struct access_map){.offset = view.offset, .groups = 3};
        if (!view_group(&view, 0, rank - 2, &map->group[0]) ||
            !view_group(&view, rank - 2, rank - 1, &map->group[1]) ||
            !view_group(&view, rank - 1, rank, &map->group[2]) ||
            (a->keys > 1 && (!access_map_is_even(&map->group[2], &stride) || stride != 1)))
            continue;
        m->bias[a->bias_count++] = view.base;
        return true;
    }
    return false;
}

/* True if a row of the condition has no element equal to `where`: all its keys are hidden. */
static bool hides_a_row(const struct value *condition, bool where)
{
    const bool *keeps = condition->known->data;
    const struct shape *shape = &condition->shape;
    const size_t all = shape_count(shape);
    const size_t keys = shape->rank ? (size_t)shape->dims[shape->rank - 1] : 1;
    for (size_t first = 0; first < all; first += keys) {
        size_t i = 0;
        while (i < keys && keeps[first + i] != where)
            i++;
        if (i == keys)
            return true;
    }
    return false;
}

/* Makes a bias from the constant `condition`: 0 for elements equal to `where`, whose scores count,
 * and `low` for the other elements. Returns NULL unless exp(low) is 0. If a row has only `low`,
 * `low` must be so small (-1e30) that adding a score does not change it. */
static struct value *mask_of(struct match *m, const struct value *condition, bool where,
                             const struct value *low)
{
    float fill;
    if (!condition->known || condition->dtype != DTYPE_BOOL || !edit_scalar(low, &fill) ||
        !(fill <= -1e9f) || (fill > -1e30f && hides_a_row(condition, where)))
        return NULL;
    const bool *keeps = condition->known->data;
    struct value *mask = edit_constant(m->edit, DTYPE_F32, &condition->shape, NULL);
    for (size_t i = 0; mask && i < shape_count(&condition->shape); i++)
        ((float *)mask->known->data)[i] = keeps[i] == where ? 0 : fill;
    return mask;
}

/* True if both shapes have the same last two dimensions: rows and keys of the scores. */
static bool keeps_matrices(const struct shape *a, const struct shape *b)
{
    return a->rank >= 2 && b->rank >= 2 && a->dims[a->rank - 1] == b->dims[b->rank - 1] &&
           a->dims[a->rank - 2] == b->dims[b->rank - 2];
}

/* Records what a node between the first product and the Softmax does to its operand i, 0 or 1; a
 * Where's operands are counted without its condition. Returns operand i, or NULL if the node does
 * not fit. */
static struct value *pass_score_node(struct match *m, const struct node *node, size_t i)
{
    struct attention *a = &m->attention;
    const struct shape *y = &node->outputs[0]->shape;
    const size_t at = node->op == OP_WHERE ? i + 1 : i,
                 other = node->op == OP_WHERE ? 2 - i : 1 - i;
    struct value *scores = node_input(node, at);
    float factor;
    if (!scores || scores->known)
        return NULL;
    switch (node->op) {
    case OP_RESHAPE:
    case OP_SQUEEZE:
    case OP_UNSQUEEZE:
        return i == 0 && keeps_matrices(&scores->shape, y) ? scores : NULL;
    case OP_MUL:
    case OP_DIV:
        if ((node->op == OP_DIV && i > 0) || !edit_scalar(node->inputs[other], &factor) ||
            !shape_equal(&scores->shape, y))
            return NULL;
        a->scale *= node->op == OP_DIV ? 1 / factor : factor;
        return scores;
    case OP_ADD: /* a factor that multiplies the sum would scale the bias, too */
        return shape_equal(&scores->shape, y) && a->scale == 1 &&
                       take_bias(m, node->inputs[other], y)
                   ? scores
                   : NULL;
    case OP_WHERE:
        if (!shape_equal(&scores->shape, y) || a->scale != 1 || !node->inputs[other]->known)
            return NULL;
        return take_bias(m, mask_of(m, node->inputs[0], i == 0, node->inputs[other]), y) ? scores
                                                                                         : NULL;
    default:
        return NULL;
    }
}

/* Returns the product that computes the scores, and records the nodes between it and the Softmax in
 * m. Returns NULL if none of the last `most` nodes before `scores` is such a product. */
static const struct node *find_scores(struct match *m, struct value *scores, int most)
{
    struct node *node = scores->producer;
    if (!most || !node || !edit_single_reader(m->edit, scores) || node->epilogue.activation)
        return NULL;
    if (node->op == OP_MATMUL || node->op == OP_EINSUM) {
        const struct value *bias = node->op == OP_MATMUL ? node_bias(node) : NULL;
        if (node->epilogue.residual &&
            (m->attention.scale != 1 || !take_bias(m, node->epilogue.residual, &scores->shape)))
            return NULL;
        if (bias && (m->attention.scale != 1 || !take_bias(m, node->inputs[2], &scores->shape)))
            return NULL;
        m->scores = scores->shape;
        return node;
    }
    for (size_t i = 0; i < 2 && !node->epilogue.residual; i++) {
        const struct match before = *m;
        struct value *next = pass_score_node(m, node, i);
        const struct node *product = next ? find_scores(m, next, most - 1) : NULL;
        if (product)
            return product;
        *m = before;
    }
    return NULL;
}

/* ---- q, k and v ---- */

/* Sets *ret and *ret_map to the tensor and the map through which the attention reads `value`,
 * [..., rows, columns], with the batch dimensions of m->scores. With `transposed`, `value` is
 * [..., columns, rows]. With `scaled`, a constant factor of `value` may move into the attention's
 * scale. */
static bool take_operand(struct match *m, struct value *value, bool transposed, bool scaled,
                         struct value **ret, struct access_map *ret_map)
{
    const int batch = m->scores.rank - 2;
    for (int plain = 0; plain < 2; plain++) {
        struct view view;
        struct shape full = m->scores;
        struct access_map map = {.groups = 3};
        if (plain)
            view_init(&view, value);
        else
            view_of(value, scaled, &view);
        const int rank = value->shape.rank, first = transposed ? rank - 1 : rank - 2;
        struct access_map_group *row = &map.group[1], *column = &map.group[2];
        if (!view_group(&view, first, first + 1, row) ||
            !view_group(&view, transposed ? rank - 2 : rank - 1, transposed ? rank - 1 : rank,
                        column))
            continue;
        view.rank = rank - 2;
        full.rank = batch;
        if (!view_expand(&view, &full) || !view_group(&view, 0, batch, &map.group[0]))
            continue;
        map.offset = view.offset;
        m->attention.scale *= view.scale;
        *ret = view.base;
        *ret_map = map;
        return true;
    }
    return false;
}

/* ---- the result, from the second product downwards ---- */

/* `view` has the product's elements in another order. Sets *ret to the map from each element of the
 * product to its position in the view. `groups` has the extents of batch, rows and columns. */
static bool invert(const struct view *view, const int64_t *groups, struct access_map *ret)
{
    struct access_map_group from, to;
    int64_t stride = 1;
    if (!view_group(view, 0, view->rank, &from))
        return false;
    to = from;
    for (int p = to.count - 1; p >= 0; p--) { /* innermost first */
        to.parts[p].stride = stride;
        stride *= to.parts[p].extent;
    }
    for (int i = 1; i < to.count;
         i++) /* restore the product's order: sort by stride, largest first */
        for (int k = i; k > 0 && from.parts[k - 1].stride < from.parts[k].stride; k--) {
            const struct access_map_part a = from.parts[k], b = to.parts[k];
            from.parts[k] = from.parts[k - 1];
            to.parts[k] = to.parts[k - 1];
            from.parts[k - 1] = a;
            to.parts[k - 1] = b;
        }
    *ret = (struct access_map){.groups = 3};
    for (int g = 0; g < 3; g++) {
        if (!view_take_front(&to, groups[g], &ret->group[g]))
            return false;
        access_map_join(&ret->group[g]);
    }
    return !to.count;
}

/* Follows the product's result through moves, as long as each move is the only reader of its
 * operand. With `transposed`, the product is [..., columns, rows]. */
static bool take_result(struct match *m, struct value *product, bool transposed)
{
    const struct attention *a = &m->attention;
    const int64_t groups[3] = {a->batch, transposed ? a->width : a->rows,
                               transposed ? a->rows : a->width};
    struct view view;
    view_init(&view, product);
    m->result = product;
    if (!invert(&view, groups, &m->attention.y))
        return false;
    for (;;) {
        const struct node *node = edit_only_reader(m->edit, m->result);
        struct access_map map;
        if (!node || (node->op != OP_TRANSPOSE && node->op != OP_RESHAPE &&
                      node->op != OP_SQUEEZE && node->op != OP_UNSQUEEZE && node->op != OP_FLATTEN))
            break;
        if (node->inputs[0] != m->result || !view_through(&view, node, node->outputs[0], false) ||
            !invert(&view, groups, &map))
            break;
        m->attention.y = map;
        m->result = node->outputs[0];
    }
    if (transposed) {
        const struct access_map_group columns = m->attention.y.group[1];
        m->attention.y.group[1] = m->attention.y.group[2];
        m->attention.y.group[2] = columns;
    }
    return true;
}

/* ---- the whole attention ---- */

/* Returns the operand of the second product: the Softmax's result p, or the result of a
 * Where(IsNaN(p), 0, p) or of a Transpose of the last two dimensions. */
static struct value *probabilities(struct match *m, struct node *softmax, bool *ret_transposed)
{
    struct value *p = softmax->outputs[0];
    *ret_transposed = false;
    for (int i = 0; i < 4; i++) {
        const struct node *reader = edit_only_reader(m->edit, p);
        size_t count;
        if (reader && reader->op == OP_TRANSPOSE && !*ret_transposed) {
            const int64_t *perm = node_ints(reader, "perm", &count);
            const int rank = p->shape.rank;
            bool is_swap = perm && count == (size_t)rank && perm[rank - 1] == rank - 2 &&
                           perm[rank - 2] == rank - 1;
            for (int d = 0; is_swap && d < rank - 2; d++)
                is_swap = perm[d] == d;
            if (!is_swap)
                return p;
            *ret_transposed = true;
            p = reader->outputs[0];
            continue;
        }
        if (reader || m->edit->readers[p->index] != 2)
            return p;
        /* p has two readers: an IsNaN, and a Where that reads p and the IsNaN's result */
        struct value *replaced = NULL;
        for (size_t n = 0; n < m->edit->graph->node_count && !replaced; n++) {
            const struct node *node = m->edit->graph->nodes[n];
            const struct node *test = node->op == OP_WHERE ? node->inputs[0]->producer : NULL;
            float zero;
            if (test && test->op == OP_IS_NAN && test->inputs[0] == p && node->inputs[2] == p &&
                edit_single_reader(m->edit, test->outputs[0]) &&
                edit_scalar(node->inputs[1], &zero) && zero == 0)
                replaced = node->outputs[0];
        }
        if (!replaced || !shape_equal(&replaced->shape, &p->shape))
            return p;
        m->attention.nan_is_zero = true;
        p = replaced;
    }
    return p;
}

static bool is_row_softmax(const struct node *node)
{
    const struct value *x = node_input(node, 0);
    if (node->op != OP_SOFTMAX || !is_float(x))
        return false;
    const int rank = x->shape.rank;
    const int64_t axis = node_int(node, "axis", -1);
    return axis == -1 || axis == rank - 1;
}

/* Matches the attention around a Softmax, and fills m. *ret_at is the second product. Returns false
 * if there is no attention. */
static bool find_attention(struct match *m, struct node *softmax, struct node **ret_at)
{
    enum { LONGEST = 12 }; /* nodes from the first product to the Softmax */
    struct attention *a = &m->attention;
    struct batched_product first, second;
    bool transposed;
    const struct shape *scores = &softmax->inputs[0]->shape;
    struct value *p = probabilities(m, softmax, &transposed);
    struct node *product = p ? edit_only_reader(m->edit, p) : NULL;
    if (!product || !read_product(product, &second) || product->epilogue.activation ||
        product->input_count > 2 ||
        (transposed ? second.b != p || second.b_transposed : second.a != p))
        return false;
    a->rows = scores->dims[scores->rank - 2];
    a->keys = scores->dims[scores->rank - 1];
    const struct node *source = find_scores(m, softmax->inputs[0], LONGEST);
    if (!source || !read_product(source, &first))
        return false;
    /* use the batch count of the first product, because a Reshape may have regrouped the scores */
    a->batch = (int64_t)resolve_extent(&m->scores, 0, m->scores.rank - 2);
    a->depth = first.a->shape.dims[first.a->shape.rank - 1];
    if (!take_operand(m, first.a, false, true, &m->q, &a->q) ||
        !take_operand(m, first.b, !first.b_transposed, true, &m->k, &a->k))
        return false;
    /* read v with the batch dimensions of the second product */
    struct value *v = transposed ? second.a : second.b;
    const int rank = v->shape.rank;
    const bool v_transposed = transposed || second.b_transposed;
    m->scores = p->shape;
    a->width = v->shape.dims[v_transposed ? rank - 2 : rank - 1];
    const struct shape *y = &product->outputs[0]->shape;
    if ((int64_t)resolve_extent(y, 0, y->rank - 2) != a->batch ||
        !take_operand(m, v, v_transposed, false, &m->v, &a->v) ||
        !take_result(m, product->outputs[0], transposed))
        return false;
    *ret_at = product;
    return true;
}

static bool fuse(struct match *m, const struct node *softmax, const struct node *at)
{
    struct graph *graph = m->edit->graph;
    struct value *inputs[3 + ATTENTION_BIASES] = {m->q, m->k, m->v};
    for (size_t i = 0; i < m->attention.bias_count; i++)
        inputs[3 + i] = m->bias[i];
    struct node *node = edit_insert_node(m->edit, edit_position(graph, at), OP_ATTENTION, 1,
                                         softmax->name, inputs, 3 + m->attention.bias_count);
    if (!node)
        return false;
    if (!attention_store(graph, node, &m->attention))
        return edit_no_memory(m->edit);
    edit_take_over(node, m->result->producer);
    return true;
}

bool pass_attention(struct edit *edit, size_t *n)
{
    struct node *softmax = edit->graph->nodes[*n], *at;
    struct match match = {.edit = edit, .attention = {.scale = 1}};
    return is_row_softmax(softmax) && find_attention(&match, softmax, &at) &&
           fuse(&match, softmax, at);
}
