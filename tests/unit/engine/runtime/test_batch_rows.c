/* Proofs that the images of a batch stay apart, and graphs for which there must be none. */
#include <criterion/criterion.h>

#include "engine/passes/rows.h"
#include "tests/unit/random_build.h"

enum { BATCH = 2, TOKENS = 4, WIDTH = 6 };

static struct value *begin(struct builder *b)
{
    const struct shape shape = SHAPE(BATCH, TOKENS, WIDTH);
    *b = (struct builder){.graph = graph_create(NULL), .state = 7};
    b->graph->opset = 18;
    b->graph->inputs = arena_alloc(b->graph->arena, 1, sizeof(struct value *));
    b->graph->outputs = arena_alloc(b->graph->arena, 1, sizeof(struct value *));
    b->graph->inputs[b->graph->input_count++] =
        graph_add_value(b->graph, "image", DTYPE_F32, &shape);
    return b->graph->inputs[0];
}

static bool ends(struct builder *b, struct value *output)
{
    cr_assert_not_null(output);
    b->graph->outputs[b->graph->output_count++] = output;
    const bool is_proven = rows_are_separate(b->graph, BATCH);
    graph_free(b->graph);
    return is_proven;
}

/* A node of one output with an axis (99: none) or a permutation. */
static struct value *take(struct builder *b, enum op op, struct value *x, struct value *y,
                          int64_t axis, const int64_t *perm)
{
    struct node *node;
    struct value *const operands[] = {x, y};
    add(b, op, y ? 2 : 1, operands, 1, &node);
    cr_assert_not_null(node);
    node->opset = 18;
    if (axis != 99)
        cr_assert(node_set_int(b->graph, node, "axis", axis));
    if (perm)
        cr_assert(node_set_ints(b->graph, node, "perm", perm, 3));
    return finish(b, node);
}

static struct value *reshape(struct builder *b, struct value *x, int64_t a, int64_t c, int64_t d)
{
    return take(b, OP_RESHAPE, x, ints(b, (const int64_t[]){a, c, d}, d ? 3 : 2), 99, NULL);
}

static struct value *weigh(struct builder *b, struct value *x)
{
    return take(b, OP_MATMUL, x, constant(b, SHAPE(WIDTH, WIDTH), 1, 0), 99, NULL);
}

static const int64_t swapped[] = {1, 0, 2}, turned[] = {0, 2, 1};

Test(batch_rows, stay_apart_in_an_encoder)
{
    struct builder b;
    struct value *x = begin(&b);
    struct value *y = weigh(&b, reshape(&b, x, BATCH * TOKENS, WIDTH, 0)); /* tokens together */
    x = take(&b, OP_ADD, x, reshape(&b, y, BATCH, TOKENS, WIDTH), 99, NULL);
    struct value *scores =
        take(&b, OP_MATMUL, x, take(&b, OP_TRANSPOSE, x, NULL, 99, turned), 99, NULL);
    scores = take(&b, OP_SOFTMAX, scores, NULL, -1, NULL);
    x = take(&b, OP_MATMUL, scores, x, 99, NULL);
    x = take(&b, OP_REDUCE_MEAN, x, ints(&b, (const int64_t[]){1}, 1), 99, NULL);
    cr_expect(ends(&b, take(&b, OP_RELU, x, NULL, 99, NULL)));
}

/* As PyTorch's MultiheadAttention: tokens first, images and tokens merged into one axis. */
Test(batch_rows, stay_apart_where_images_alternate)
{
    struct builder b;
    struct value *x = take(&b, OP_TRANSPOSE, begin(&b), NULL, 99, swapped);
    x = weigh(&b, reshape(&b, x, TOKENS * BATCH, WIDTH, 0));
    x = take(&b, OP_TRANSPOSE, reshape(&b, x, TOKENS, BATCH, WIDTH), NULL, 99, swapped);
    cr_expect(ends(&b, x));
}

static struct value *softmax_over_images(struct builder *b, struct value *x)
{
    return take(b, OP_SOFTMAX, x, NULL, 0, NULL);
}

static struct value *mean_over_images(struct builder *b, struct value *x)
{
    x = take(b, OP_REDUCE_MEAN, x, ints(b, (const int64_t[]){0}, 1), 99, NULL);
    return take(b, OP_EXPAND, x, ints(b, (const int64_t[]){BATCH, TOKENS, WIDTH}, 3), 99, NULL);
}

static struct value *tokens_of_all_images(struct builder *b, struct value *x)
{
    x = reshape(b, x, 1, BATCH * TOKENS, WIDTH);
    x = take(b, OP_MATMUL, x, take(b, OP_TRANSPOSE, x, NULL, 99, turned), 99, NULL);
    return reshape(b, x, BATCH, TOKENS, BATCH * TOKENS);
}

static struct value *images_in_another_order(struct builder *b, struct value *x)
{
    return reshape(b, take(b, OP_TRANSPOSE, x, NULL, 99, swapped), BATCH, TOKENS, WIDTH);
}

static struct value *gathered_images(struct builder *b, struct value *x)
{
    return take(b, OP_GATHER, x, ints(b, (const int64_t[]){1, 0}, 2), 0, NULL);
}

static struct value *sum_along_images(struct builder *b, struct value *x)
{
    return take(b, OP_CUM_SUM, x, ints(b, (const int64_t[]){0}, 1), 99, NULL);
}

static struct value *joined_images(struct builder *b, struct value *x)
{
    x = take(b, OP_CONCAT, x, x, 0, NULL);
    x = take(b, OP_SOFTMAX, reshape(b, x, BATCH, BATCH * TOKENS, WIDTH), NULL, 1, NULL);
    return x;
}

/* floor(2 * 1.2) is 2: as many images as before, but the second one is a copy of the first. */
static struct value *resized_images(struct builder *b, struct value *x)
{
    struct node *node;
    struct value *scales = constant(b, SHAPE(3), 0, 1);
    ((float *)scales->known->data)[0] = 1.2f;
    struct value *const operands[] = {x, scales};
    add(b, OP_RESIZE, 2, operands, 1, &node);
    cr_assert_not_null(node);
    node->opset = 10;
    return finish(b, node);
}

Test(batch_rows, are_not_proven_apart_where_they_mix)
{
    static struct value *(*const mixing[])(struct builder *, struct value *) = {
        softmax_over_images, mean_over_images, tokens_of_all_images, images_in_another_order,
        gathered_images,     sum_along_images, joined_images,        resized_images};
    for (size_t i = 0; i < COUNT_OF(mixing); i++) {
        struct builder b;
        struct value *x = begin(&b);
        cr_expect_not(ends(&b, mixing[i](&b, x)), "case %zu", i);
    }
}
