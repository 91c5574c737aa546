/* Proofs that the images of a batch stay apart, and graphs for which there must be none. */
#include <criterion/criterion.h>

#include "engine/passes/batch_independence.h"
#include "tests/unit/random_build.h"

enum { BATCH = 2, TOKENS = 4, WIDTH = 6 };

static struct value *begin_batch(struct builder *b, int64_t batch)
{
    const struct shape shape = SHAPE(batch, TOKENS, WIDTH);
    *b = (struct builder){.graph = graph_create(NULL), .state = 7};
    b->graph->opset = 18;
    b->graph->inputs = arena_alloc(b->graph->arena, 1, sizeof(struct value *));
    b->graph->outputs = arena_alloc(b->graph->arena, 1, sizeof(struct value *));
    b->graph->inputs[b->graph->input_count++] =
        graph_add_value(b->graph, "image", DTYPE_F32, &shape);
    return b->graph->inputs[0];
}

static struct value *begin(struct builder *b)
{
    return begin_batch(b, BATCH);
}

static bool ends(struct builder *b, struct value *output)
{
    cr_assert_not_null(output);
    b->graph->outputs[b->graph->output_count++] = output;
    uint64_t ignored;
    const struct node *where;
    const bool is_proven =
        batch_is_independent(b->graph, NULL, BATCH, &(bool){true}, &ignored, &where);
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
    struct value *const operands[] = {x, NULL, scales};
    add(b, OP_RESIZE, 3, operands, 1, &node);
    cr_assert_not_null(node);
    node->opset = 18;
    return finish(b, node);
}

/* Numbers 0, 1, … of this shape, or the same ones for every index of dimension 0. */
static struct value *numbers(struct builder *b, struct shape shape, bool repeats)
{
    struct value *value = constant(b, shape, 0, 0);
    const size_t count = shape_count(&shape), each = count / (size_t)shape.dims[0];
    for (size_t i = 0; i < count; i++)
        ((float *)value->known->data)[i] = (float)(repeats ? i % each : i);
    return value;
}

static struct value *plus_own_number(struct builder *b, struct value *x)
{
    return take(b, OP_ADD, x, numbers(b, SHAPE(BATCH, 1, 1), false), 99, NULL);
}

static struct value *times_own_matrix(struct builder *b, struct value *x)
{
    return take(b, OP_MATMUL, x, numbers(b, SHAPE(BATCH, WIDTH, WIDTH), false), 99, NULL);
}

static struct value *beside_own_token(struct builder *b, struct value *x)
{
    return take(b, OP_CONCAT, x, numbers(b, SHAPE(BATCH, 1, WIDTH), false), 1, NULL);
}

static struct value *alternating_with_own_number(struct builder *b, struct value *x)
{
    x = take(b, OP_TRANSPOSE, x, NULL, 99, swapped);
    x = take(b, OP_ADD, reshape(b, x, TOKENS * BATCH, WIDTH, 0),
             numbers(b, SHAPE(TOKENS * BATCH, 1), false), 99, NULL);
    return take(b, OP_TRANSPOSE, reshape(b, x, TOKENS, BATCH, WIDTH), NULL, 99, swapped);
}

Test(batch_rows, stay_apart_beside_constants_that_are_the_same_for_all)
{
    struct builder b;
    struct value *x = begin(&b);
    x = take(&b, OP_ADD, x, numbers(&b, SHAPE(BATCH, TOKENS, WIDTH), true), 99, NULL);
    x = take(&b, OP_MATMUL, x, numbers(&b, SHAPE(BATCH, WIDTH, WIDTH), true), 99, NULL);
    x = take(&b, OP_CONCAT, x, numbers(&b, SHAPE(BATCH, 1, WIDTH), true), 1, NULL);
    cr_expect(ends(&b, x));
}

/* D-FINE's distances: a mean with one weight for each bin. */
Test(batch_rows, stay_apart_beside_a_vector)
{
    struct builder b;
    struct value *x = begin(&b);
    x = take(&b, OP_MATMUL, x, numbers(&b, SHAPE(WIDTH), false), 99, NULL);
    cr_expect(ends(&b, x));
    x = take(&b, OP_TRANSPOSE, begin(&b), NULL, 99, (const int64_t[]){1, 2, 0});
    x = take(&b, OP_MATMUL, x, numbers(&b, SHAPE(BATCH), false), 99, NULL);
    cr_expect_not(ends(&b, x), "a sum of both images");
    x = begin(&b);
    x = take(&b, OP_MATMUL, numbers(&b, SHAPE(TOKENS), false), x, 99, NULL);
    cr_expect_not(ends(&b, x), "nothing follows a vector before the images");
}

/* What exporters make of as_strided: the numbers of all images in one row, by their places. */
static struct value *strided(struct builder *b, struct value *x, bool by_place)
{
    int64_t places[BATCH * TOKENS * WIDTH];
    for (int i = 0; i < BATCH * TOKENS * WIDTH; i++)
        places[i] = i ^ (by_place && i == BATCH * TOKENS * WIDTH - 1);
    x = take(b, OP_RESHAPE, x, ints(b, (const int64_t[]){-1}, 1), 99, NULL);
    struct value *indices = ints(b, places, COUNT_OF(places));
    return reshape(b, take(b, OP_GATHER, x, indices, 0, NULL), BATCH, TOKENS, WIDTH);
}

Test(batch_rows, stay_apart_where_each_is_gathered_from_itself)
{
    for (int by_place = 0; by_place < 2; by_place++) {
        struct builder b;
        struct value *x = begin(&b);
        cr_expect_eq(ends(&b, strided(&b, x, by_place)), !by_place);
    }
}

static uint64_t hash_of(struct builder *b, struct value *output, int64_t batch, bool is_of_file)
{
    uint64_t hash;
    cr_assert_not_null(output);
    b->graph->outputs[b->graph->output_count++] = output;
    cr_expect(batch_is_independent(b->graph, is_of_file ? b->graph : NULL, batch, &(bool){true},
                                   &hash, &(const struct node *){NULL}));
    graph_free(b->graph);
    return hash;
}

/* ---- constant places and numbers of images ---- */

static struct value *places(struct builder *b, struct shape shape, const int64_t *numbers)
{
    struct value *value = ints(b, numbers, shape_count(&shape));
    value->known->shape = value->shape = shape;
    return value;
}

static struct value *scatter(struct builder *b, struct value *x, struct value *tuples,
                             struct value *updates)
{
    struct node *node;
    struct value *const operands[] = {x, tuples, updates};
    add(b, OP_SCATTER_ND, 3, operands, 1, &node);
    cr_assert_not_null(node);
    node->opset = 18;
    return finish(b, node);
}

/* x[:, 0] = x[:, 1], or what looks like it: the last tuple of two images writes elsewhere. */
static bool scatters(int64_t image, int64_t token, int64_t first_token)
{
    struct builder b;
    const int64_t tuples[] = {0, first_token, image, token};
    struct value *x = begin(&b);
    struct value *from = take(&b, OP_GATHER, x, ints(&b, (const int64_t[]){1}, 1), 1, NULL);
    return ends(&b, scatter(&b, x, places(&b, SHAPE(BATCH, 1, 2), tuples), from));
}

Test(batch_rows, stay_apart_where_each_is_scattered_into_itself)
{
    cr_expect(scatters(1, 0, 0));
    cr_expect(scatters(-1, -TOKENS, 0), "the same place, counted from the end");
    cr_expect_not(scatters(0, 0, 0), "the second image is written into the first");
    cr_expect_not(scatters(1, 2, 0), "the second image has another place");
    cr_expect_not(scatters(1, 0, 3));
}

/* The tokens come first: each slice that is written has all images, in their order or not. */
Test(batch_rows, stay_apart_where_slices_of_all_are_scattered)
{
    for (int is_turned = 0; is_turned < 2; is_turned++) {
        struct builder b;
        struct value *x = take(&b, OP_TRANSPOSE, begin(&b), NULL, 99, swapped);
        struct value *from = take(&b, OP_GATHER, x, ints(&b, (const int64_t[]){2, 0}, 2), 0, NULL);
        if (is_turned) /* [2, images, WIDTH], where 2 is the number of images, too */
            from = take(&b, OP_TRANSPOSE, from, NULL, 99, swapped);
        x = scatter(&b, x, places(&b, SHAPE(2, 1), (const int64_t[]){1, 3}), from);
        cr_expect_eq(ends(&b, take(&b, OP_TRANSPOSE, x, NULL, 99, swapped)), !is_turned);
    }
}

/* Constants: the same for each image, or not. */
Test(batch_rows, stay_apart_where_constants_are_scattered)
{
    for (int repeats = 0; repeats < 2; repeats++) {
        struct builder b;
        struct value *x = begin(&b);
        struct value *ones = numbers(&b, SHAPE(BATCH, 1, WIDTH), repeats);
        const int64_t tuples[] = {0, 2, 1, 2};
        x = scatter(&b, x, places(&b, SHAPE(BATCH, 1, 2), tuples), ones);
        cr_expect_eq(ends(&b, x), repeats);
    }
    for (int repeats = 0; repeats < 2; repeats++) { /* into zeros */
        struct builder b;
        struct value *x = begin(&b), *zeros = numbers(&b, SHAPE(BATCH, 2, WIDTH), repeats);
        struct value *from = take(&b, OP_GATHER, x, ints(&b, (const int64_t[]){1}, 1), 1, NULL);
        const int64_t tuples[] = {0, 1, 1, 1};
        x = scatter(&b, zeros, places(&b, SHAPE(BATCH, 1, 2), tuples), from);
        cr_expect_eq(ends(&b, x), repeats);
    }
}

/* The places of one image are in the hash, so that they are compared between sizes. */
Test(batch_rows, have_a_hash_of_constant_places)
{
    uint64_t hashes[3];
    for (int i = 0; i < 3; i++) {
        struct builder b;
        const int64_t batch = i ? BATCH : 1, token = i == 2 ? 3 : 0;
        const int64_t tuples[] = {0, token, 1, token};
        struct value *x = begin_batch(&b, batch);
        struct value *from = take(&b, OP_GATHER, x, ints(&b, (const int64_t[]){1}, 1), 1, NULL);
        hashes[i] =
            hash_of(&b, scatter(&b, x, places(&b, SHAPE(batch, 1, 2), tuples), from), batch, false);
    }
    cr_expect_eq(hashes[0], hashes[1]);
    cr_expect_neq(hashes[1], hashes[2]);
}

/* x[arange(n)[:, None], i]: `first` and `second` are the numbers that stand before the indices. */
static struct value *gather_rows(struct builder *b, struct value *x, int64_t first, int64_t second,
                                 bool is_reshaped)
{
    struct node *node;
    struct value *best = take(b, OP_ARG_MAX, x, NULL, 1, NULL); /* [BATCH, 1, WIDTH] */
    best = reshape(b, best, BATCH, WIDTH, 1);
    int64_t own[BATCH * WIDTH];
    for (int i = 0; i < BATCH * WIDTH; i++)
        own[i] = i < WIDTH ? first : second;
    struct value *tuples =
        take(b, OP_CONCAT, places(b, SHAPE(BATCH, WIDTH, 1), own), best, 2, NULL);
    if (is_reshaped) /* pairs are no longer pairs */
        tuples = reshape(b, tuples, BATCH, 2 * WIDTH, 1);
    add(b, OP_GATHER_ND, 2, (struct value *[]){x, tuples}, 1, &node);
    cr_assert_not_null(node);
    node->opset = 18;
    return finish(b, node);
}

Test(batch_rows, stay_apart_where_each_gathers_by_its_own_number)
{
    static const struct {
        int64_t first, second;
        bool is_reshaped, is_proven;
    } cases[] = {{0, 1, false, true},
                 {1, 0, false, false},
                 {0, 0, false, false},
                 {1, 1, false, false},
                 {0, 1, true, false}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct builder b;
        struct value *x = begin(&b);
        x = gather_rows(&b, x, cases[i].first, cases[i].second, cases[i].is_reshaped);
        cr_expect_eq(ends(&b, x), cases[i].is_proven, "case %zu", i);
    }
    struct builder b; /* rows of another order of the images */
    struct value *x = begin(&b);
    x = gather_rows(&b,
                    reshape(&b, take(&b, OP_TRANSPOSE, x, NULL, 99, swapped), BATCH, TOKENS, WIDTH),
                    0, 1, false);
    cr_expect_not(ends(&b, x));
}

/* f.flatten(0, 1)[i + arange(n) * tokens]: `step` is what stands before the second image's. */
static struct value *gather_listed(struct builder *b, struct value *x, int64_t step, bool is_chosen)
{
    struct node *node;
    struct value *best = is_chosen ? take(b, OP_ARG_MAX, x, NULL, 1, NULL)  /* [BATCH, 1, WIDTH] */
                                   : take(b, OP_ARG_MAX, x, NULL, 2, NULL); /* [BATCH, TOKENS, 1] */
    const int64_t each = is_chosen ? WIDTH : TOKENS;
    best = reshape(b, best, BATCH, each, 1);
    int64_t first[BATCH * (WIDTH > TOKENS ? WIDTH : TOKENS)];
    for (int64_t i = 0; i < BATCH * each; i++)
        first[i] = i / each * step;
    struct value *operands[] = {best, places(b, SHAPE(BATCH, each, 1), first)};
    add(b, OP_ADD, 2, operands, 1, &node);
    cr_assert_not_null(node);
    struct value *rows = finish(b, node);
    return take(b, OP_GATHER, reshape(b, x, BATCH * TOKENS, WIDTH, 1), rows, 0, NULL);
}

Test(batch_rows, stay_apart_where_each_gathers_from_its_rows_of_a_list)
{
    struct builder b;
    struct value *x = begin(&b);
    cr_expect(ends(&b, gather_listed(&b, x, TOKENS, true)));
    x = begin(&b);
    cr_expect_not(ends(&b, gather_listed(&b, x, TOKENS - 1, true)), "rows of its neighbour");
    x = begin(&b);
    cr_expect_not(ends(&b, gather_listed(&b, x, 0, true)), "rows of the first image");
    if (WIDTH > TOKENS) {
        x = begin(&b);
        cr_expect_not(ends(&b, gather_listed(&b, x, TOKENS, false)), "beyond its last row");
    }
}

/* f.flatten(0, 1)[best + arange(n)[:, None, None] * tokens] with the best 3 along an axis, or, by
 * mistake, with their values; `last` is added to the number of the last image's first row. */
static bool gathers_best(int64_t axis, int64_t step, int64_t last, bool by_value)
{
    struct builder b;
    struct node *node;
    struct value *x = begin(&b), *three = ints(&b, (const int64_t[]){3}, 1);
    add(&b, OP_TOP_K, 2, (struct value *[]){x, three}, 2, &node);
    cr_assert_not_null(node);
    node->opset = 18;
    cr_assert(node_set_int(b.graph, node, "axis", axis));
    finish(&b, node);
    struct value *best = node->outputs[1];
    if (by_value) {
        add(&b, OP_CAST, 1, &node->outputs[0], 1, &node);
        cr_assert(node_set_int(b.graph, node, "to", 7));
        best = finish(&b, node);
    }
    int64_t first[BATCH];
    for (int64_t i = 0; i < BATCH; i++)
        first[i] = i * step + (i == BATCH - 1 ? last : 0);
    add(&b, OP_ADD, 2, (struct value *[]){best, places(&b, SHAPE(BATCH, 1, 1), first)}, 1, &node);
    struct value *rows = finish(&b, node);
    return ends(&b, take(&b, OP_GATHER, reshape(&b, x, BATCH * TOKENS, WIDTH, 0), rows, 0, NULL));
}

Test(batch_rows, stay_apart_where_each_gathers_its_best_rows_of_a_list)
{
    cr_expect(gathers_best(1, TOKENS, 0, false));
    cr_expect(gathers_best(-2, TOKENS, 0, false));
    cr_expect_not(gathers_best(1, TOKENS, -1, false), "rows of its neighbour");
    cr_expect_not(gathers_best(1, 0, 0, false), "rows of the first image");
    cr_expect_not(gathers_best(2, TOKENS, 0, false), "beyond its last row");
    cr_expect_not(gathers_best(1, TOKENS, 0, true), "a value is no row");
}

/* Two equations: the letter of the images stays in the result, or is summed over. */
Test(batch_rows, follow_the_letters_of_an_equation)
{
    static const struct {
        const char *equation;
        bool is_proven;
        const struct shape other; /* of a free second operand */
        bool repeats;             /* it is the same for all images */
    } cases[] = {
        {"bij,bkj->bik", true},
        {"bij, bkj -> bki", true},
        {"bij,ckj->bik", false},
        {"bij,bij->ij", false},
        {"bij,bkj", false},
        {"...ij,...kj->...ik", true},
        {"bij,kj->bik", true, SHAPE(5, WIDTH)},
        {"bij,bkj->bik", true, SHAPE(BATCH, 5, WIDTH), true},
        {"bij,bkj->bik", false, SHAPE(BATCH, 5, WIDTH), false},
        {"bij,kbj->bki", false, SHAPE(BATCH, BATCH, WIDTH), true}, /* the same for each k */
        {"bij,bbj->bi", false, SHAPE(BATCH, BATCH, WIDTH), true},
        {"bij,bj->ij", false, SHAPE(BATCH, WIDTH), true}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct builder b;
        struct node *node;
        struct value *x = begin(&b);
        const bool is_free = cases[i].other.rank;
        struct value *y = is_free ? numbers(&b, cases[i].other, cases[i].repeats) : x;
        add(&b, OP_EINSUM, 2, (struct value *[]){x, y}, 1, &node);
        node->opset = 18;
        struct attr equation = {.name = "equation",
                                .kind = ATTR_STRING,
                                .count = strlen(cases[i].equation),
                                .s = cases[i].equation};
        node->attrs = &equation;
        node->attr_count = 1;
        cr_expect_eq(ends(&b, finish(&b, node)), cases[i].is_proven, "case %zu: %s", i,
                     cases[i].equation);
    }
}

/* An LSTM on steps that lie on axis 0, or on the axis of the images of a time-major file. */
static struct value *recur(struct builder *b, struct value *x, int64_t layout, size_t output)
{
    struct node *node;
    struct value *const operands[] = {x, numbers(b, SHAPE(1, 4 * WIDTH, WIDTH), false),
                                      numbers(b, SHAPE(1, 4 * WIDTH, WIDTH), false)};
    add(b, OP_LSTM, 3, operands, 3, &node);
    cr_assert_not_null(node);
    node->opset = 18;
    cr_assert(node_set_int(b->graph, node, "layout", layout));
    if (output) /* the file does not name Y */
        node->outputs[0] = NULL;
    finish(b, node);
    return node->outputs[output];
}

Test(batch_rows, stay_apart_in_recurrent_networks)
{
    struct builder b;
    struct value *x = recur(&b, begin(&b), 1, 0);
    cr_expect(ends(&b, x));
    x = recur(&b, begin(&b), 1, 2); /* [images, 1, WIDTH] */
    cr_expect(ends(&b, x));
    x = recur(&b, take(&b, OP_TRANSPOSE, begin(&b), NULL, 99, swapped), 0, 0);
    x = take(&b, OP_TRANSPOSE, reshape(&b, x, TOKENS, BATCH, WIDTH), NULL, 99, swapped);
    cr_expect(ends(&b, x));
    x = recur(&b, take(&b, OP_TRANSPOSE, begin(&b), NULL, 99, swapped), 0, 1);
    cr_expect(ends(&b, reshape(&b, x, BATCH, WIDTH, 0)));
    x = recur(&b, begin(&b), 0, 1); /* images are the steps */
    cr_expect_not(ends(&b, x));
}

/* The hash tells a constant that follows the size of the batch. */
Test(batch_rows, have_a_hash_of_what_each_image_reads)
{
    uint64_t hashes[3];
    for (int i = 0; i < 3; i++) {
        struct builder b;
        struct value *x = begin(&b);
        struct value *y = numbers(&b, SHAPE(i == 1 ? 1 : BATCH, TOKENS, WIDTH), true);
        ((float *)y->known->data)[0] += i == 2;
        if (i == 2)
            ((float *)y->known->data)[TOKENS * WIDTH] += 1;
        b.graph->outputs[b.graph->output_count++] = take(&b, OP_ADD, x, y, 99, NULL);
        cr_expect(batch_is_independent(b.graph, NULL, BATCH, &(bool){true}, &hashes[i],
                                       &(const struct node *){NULL}));
        graph_free(b.graph);
    }
    cr_expect_eq(hashes[0], hashes[1]);
    cr_expect_neq(hashes[0], hashes[2]);
}

/* As of MatMul(x, W / Shape(x)[0]): each image reads all of it. A constant of the file is the same
 * for every size of the batch. */
Test(batch_rows, have_a_hash_of_what_each_reads_as_a_whole)
{
    uint64_t hashes[2][2];
    for (int of_file = 0; of_file < 2; of_file++)
        for (int i = 0; i < 2; i++) {
            struct builder b;
            struct value *x = begin(&b), *weights = numbers(&b, SHAPE(WIDTH, WIDTH), false);
            ((float *)weights->known->data)[WIDTH] *= (float)(1 + i);
            x = take(&b, OP_MATMUL, x, weights, 99, NULL);
            hashes[of_file][i] = hash_of(&b, x, BATCH, of_file);
        }
    cr_expect_neq(hashes[0][0], hashes[0][1]);
    cr_expect_eq(hashes[1][0], hashes[1][1]);
}

/* The size of the batch in a Reshape or an Expand gives one image the same shapes. */
Test(batch_rows, have_the_same_hash_where_the_batch_is_an_extent)
{
    uint64_t hashes[2];
    for (int64_t batch = 1; batch <= BATCH; batch++) {
        struct builder b;
        struct value *x = take(&b, OP_TRANSPOSE, begin_batch(&b, batch), NULL, 99, swapped);
        x = weigh(&b, reshape(&b, x, TOKENS * batch, WIDTH, 0));
        x = take(&b, OP_TRANSPOSE, reshape(&b, x, TOKENS, batch, WIDTH), NULL, 99, swapped);
        x = take(&b, OP_REDUCE_MEAN, x, ints(&b, (const int64_t[]){1}, 1), 99, NULL);
        x = take(&b, OP_EXPAND, x, ints(&b, (const int64_t[]){batch, TOKENS, WIDTH}, 3), 99, NULL);
        hashes[batch - 1] = hash_of(&b, x, batch, false);
    }
    cr_expect_eq(hashes[0], hashes[1]);
}

/* Softmax over TOKENS * WIDTH / batch numbers: what an image gets follows the size of the batch. */
Test(batch_rows, have_a_hash_of_the_shapes_of_one)
{
    uint64_t hashes[2];
    for (int64_t batch = 1; batch <= BATCH; batch++) {
        struct builder b;
        struct value *x = reshape(&b, begin_batch(&b, batch), batch * batch, -1, 0);
        hashes[batch - 1] = hash_of(&b, take(&b, OP_SOFTMAX, x, NULL, -1, NULL), batch, false);
    }
    cr_expect_neq(hashes[0], hashes[1]);
}

/* The sum of what an Expand to the size of the batch makes, in a pass of its own. */
Test(batch_rows, have_a_hash_of_extents_that_no_image_has)
{
    uint64_t hashes[2];
    for (int64_t batch = 1; batch <= BATCH; batch++) {
        struct builder b;
        struct value *x = begin_batch(&b, batch), *row = numbers(&b, SHAPE(1, WIDTH), false);
        row = take(&b, OP_EXPAND, row, ints(&b, (const int64_t[]){batch, WIDTH}, 2), 99, NULL);
        row = take(&b, OP_REDUCE_SUM, row, ints(&b, (const int64_t[]){0}, 1), 99, NULL);
        hashes[batch - 1] = hash_of(&b, take(&b, OP_MUL, x, row, 99, NULL), batch, false);
    }
    cr_expect_neq(hashes[0], hashes[1]);
}

/* 3 x 8 becomes 2 x 5 for both sizes, but by other scales. */
Test(batch_rows, have_a_hash_of_sizes_that_only_limit)
{
    static const int64_t sizes[2][2] = {{2, 9}, {9, 5}}, axes[2] = {2, 3};
    uint64_t hashes[2];
    for (int i = 0; i < 2; i++) {
        struct builder b;
        struct node *node;
        struct value *x = begin(&b), *shape = ints(&b, (const int64_t[]){BATCH, 1, 3, 8}, 4);
        x = take(&b, OP_RESHAPE, x, shape, 99, NULL);
        struct value *const operands[] = {x, NULL, NULL, ints(&b, sizes[i], 2)};
        add(&b, OP_RESIZE, 4, operands, 1, &node);
        cr_assert_not_null(node);
        node->opset = 18;
        cr_assert(node_set_ints(b.graph, node, "axes", axes, 2));
        cr_assert(node_set_int(b.graph, node, "keep_aspect_ratio_policy", 0));
        struct attr *policy = (struct attr *)(uintptr_t)node_attr(node, "keep_aspect_ratio_policy");
        policy->kind = ATTR_STRING;
        policy->s = "not_larger";
        hashes[i] = hash_of(&b, finish(&b, node), BATCH, false);
    }
    cr_expect_neq(hashes[0], hashes[1]);
}

Test(batch_rows, are_not_proven_apart_where_they_mix)
{
    static struct value *(*const mixing[])(struct builder *, struct value *) = {
        softmax_over_images, mean_over_images, tokens_of_all_images, images_in_another_order,
        gathered_images,     sum_along_images, joined_images,        resized_images,
        plus_own_number,     times_own_matrix, beside_own_token,     alternating_with_own_number};
    for (size_t i = 0; i < COUNT_OF(mixing); i++) {
        struct builder b;
        struct value *x = begin(&b);
        cr_expect_not(ends(&b, mixing[i](&b, x)), "case %zu", i);
    }
}
