/* Fronts: the first steps of a batch size run as pieces, the rest whole.
 *
 * Where activations are large, in early layers, a few images at a time stay in the caches; where
 * they are small, pieces only read the weights again and again. From what each step takes in each
 * compiled size follows where pieces would best end. It is tried, and stays where it is clearly
 * quicker than everything else there is for that many images; such a size is then one among the
 * others for session_pieces.c, only quicker. */
#include <math.h>
#include <stdlib.h>

#include "engine/base/clock.h"
#include "engine/base/size.h"
#include "engine/session_internal.h"

/* By the times of steps a front has to gain that much to be tried, and measured that much to stay:
 * the two are found in different passes. */
#define WORTH_TRYING 0.97
#define WORTH_HAVING 0.99

#define MOST_TRIED    256 /* places for one size that the backend refuses */
#define ALL_WITHIN_MS 600 /* no further size is begun with after that */

/* A front is measured beside what it has to beat, in turns, until it has, or for so long. */
#define LEAST_TURNS 2
#define MOST_TURNS  8
#define TURNS_MS    200
#define HOPELESS    1.05 /* times what it has to beat, after any turn */

static bool same_values(struct value *const *a, struct value *const *b, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (!a[i] != !b[i] || (a[i] && a[i]->index != b[i]->index))
            return false;
    return true;
}

/* Are they one graph for different numbers of images? The passes may take another one for another
 * way. */
static bool is_same_graph(const struct graph *a, const struct graph *b)
{
    if (a->node_count != b->node_count || a->value_count != b->value_count)
        return false;
    for (size_t n = 0; n < a->node_count; n++) {
        const struct node *x = a->nodes[n], *y = b->nodes[n];
        if (x->op != y->op || x->channels_last != y->channels_last ||
            x->input_count != y->input_count || x->output_count != y->output_count ||
            !same_values(x->inputs, y->inputs, x->input_count) ||
            !same_values(x->outputs, y->outputs, x->output_count))
            return false;
    }
    for (size_t v = 0; v < a->value_count; v++)
        if (a->values[v]->dtype != b->values[v]->dtype)
            return false;
    return true;
}

/* Operators that make each image of their results of the same image of their operands and of
 * nothing else, where operands and results have one image after the other. */
static bool keeps_images_apart(enum op op)
{
    switch (op) {
    case OP_CONV:
    case OP_CONV_TRANSPOSE:
    case OP_QLINEAR_CONV:
    case OP_GEMM:
    case OP_MATMUL:
    case OP_QLINEAR_MATMUL:
    case OP_QGEMM:
    case OP_MAX_POOL:
    case OP_AVERAGE_POOL:
    case OP_GLOBAL_AVERAGE_POOL:
    case OP_GLOBAL_MAX_POOL:
    case OP_QLINEAR_AVERAGE_POOL:
    case OP_QLINEAR_GLOBAL_AVERAGE_POOL:
    case OP_BATCH_NORMALIZATION:
    case OP_INSTANCE_NORMALIZATION:
    case OP_GROUP_NORMALIZATION:
    case OP_LRN:
    case OP_SCALE_SHIFT:
    case OP_RELU:
    case OP_LEAKY_RELU:
    case OP_PRELU:
    case OP_SIGMOID:
    case OP_HARD_SIGMOID:
    case OP_HARD_SWISH:
    case OP_SILU:
    case OP_GELU:
    case OP_TANH:
    case OP_ELU:
    case OP_CLIP:
    case OP_ADD:
    case OP_SUB:
    case OP_MUL:
    case OP_DIV:
    case OP_CONCAT:
    case OP_SPLIT:
    case OP_RESHAPE:
    case OP_FLATTEN:
    case OP_SQUEEZE:
    case OP_UNSQUEEZE:
    case OP_IDENTITY:
    case OP_CAST:
    case OP_LOOKUP:
    case OP_QUANTIZE_LINEAR:
    case OP_DEQUANTIZE_LINEAR:
    case OP_QLINEAR_ADD:
    case OP_QLINEAR_MUL:
    case OP_QLINEAR_CONCAT:
        return true;
    default:
        return false;
    }
}

/* Is it an image after the other, so many of the same shape in either graph? */
static bool has_images(const struct value *whole, const struct value *piece, int64_t images,
                       int64_t images_of_piece)
{
    struct shape shape = piece->shape;
    if (shape.rank < 1 || shape.dims[0] != images_of_piece)
        return false;
    shape.dims[0] = images;
    return shape_equal(&whole->shape, &shape);
}

/* Which values are made of a piece's images, or of none: by value->index. */
struct images_of {
    int64_t whole, piece;
    bool *values;
};

/* Does it have the images of every operand that has some, and only these, where the results have
 * theirs? Operands of less dimensions than the result have other ones there. What has none is the
 * same for all: a constant, or made of inputs that are. */
static bool operands_fit(const struct images_of *of, const struct node *whole,
                         const struct node *piece, bool *ret_any)
{
    const int rank = whole->outputs[0]->shape.rank;
    const bool is_move = whole->op == OP_RESHAPE || whole->op == OP_FLATTEN ||
                         whole->op == OP_SQUEEZE || whole->op == OP_UNSQUEEZE;
    *ret_any = false;
    for (size_t i = 0; i < whole->input_count; i++) {
        const struct value *a = whole->inputs[i], *b = piece->inputs[i];
        if (!a)
            continue;
        const bool has = of->values[a->index];
        if (has ? !is_move && a->shape.rank != rank : !shape_equal(&a->shape, &b->shape))
            return false;
        *ret_any = *ret_any || has;
    }
    return true;
}

static bool node_keeps_images_apart(struct images_of *of, const struct node *whole,
                                    const struct node *piece)
{
    bool any;
    if (!keeps_images_apart(whole->op) || whole->capture_count || !whole->output_count ||
        !whole->outputs[0] || !operands_fit(of, whole, piece, &any))
        return false;
    for (size_t o = 0; o < whole->output_count; o++) {
        const struct value *a = whole->outputs[o], *b = piece->outputs[o];
        if (!a)
            continue;
        of->values[a->index] = any;
        if (any ? !has_images(a, b, of->whole, of->piece) : !shape_equal(&a->shape, &b->shape))
            return false;
    }
    return true;
}

/* How many nodes there are before the first that is not known to keep images apart. A piece may run
 * no node behind that: an index of an image, say, means another one there than in the whole batch.
 */
static enum status count_nodes(const struct compiled *whole, const struct compiled *piece,
                               size_t *ret, struct error *err)
{
    const struct graph *a = whole->graph, *b = piece->graph;
    struct images_of of = {whole->size, piece->size, alloc_array(a->value_count, sizeof(bool))};
    *ret = 0;
    if (!of.values)
        return session_no_memory(err);
    for (size_t i = 0; i < a->input_count; i++)
        of.values[a->inputs[i]->index] =
            has_images(a->inputs[i], b->inputs[i], whole->size, piece->size);
    while (*ret < a->node_count && node_keeps_images_apart(&of, a->nodes[*ret], b->nodes[*ret]))
        ++*ret;
    free(of.values);
    return STATUS_OK;
}

static bool could_be_front(const struct session *session, size_t i, size_t by)
{
    const struct compiled *whole = &session->compiled[i], *piece = &session->compiled[by];
    return piece->size < whole->size && whole->size % piece->size == 0 && !piece->front &&
           !piece->tail && !whole->tail && is_same_graph(whole->graph, piece->graph);
}

enum status session_set_front(struct session *session, size_t i, size_t by, size_t steps, bool *ret,
                              struct error *err)
{
    struct compiled *c = &session->compiled[i];
    const struct compiled *piece = &session->compiled[by];
    *ret = false;
    if (!session->ops->set_front || !could_be_front(session, i, by))
        return STATUS_OK;
    struct program_front how = {steps, piece->size, c->size / piece->size, 0};
    TRY(count_nodes(c, piece, &how.most_nodes, err));
    TRY(session->ops->set_front(c->program, piece->program, &how, ret, err));
    if (*ret && !session_fits(session, c)) {
        bool taken;
        *ret = false;
        return session->ops->set_front(c->program, NULL, NULL, &taken, err);
    }
    if (*ret) {
        c->front = piece->size;
        c->front_steps = steps;
    }
    return STATUS_OK;
}

static enum status unset_front(struct session *session, size_t i, struct error *err)
{
    struct compiled *c = &session->compiled[i];
    bool taken;
    c->front = 0;
    c->front_steps = 0;
    TRY(session->ops->set_front(c->program, NULL, NULL, &taken, err));
    return session->ops->reserve(session->backend, err);
}

struct place_of_front {
    size_t by, steps;
    double ms;
};

static double sum_of(const struct session_steps *steps)
{
    double sum = 0;
    for (size_t s = 0; s < steps->count; s++)
        sum += steps->ms[s];
    return sum;
}

/* The quickest front for size number i, less than `least` ms as a whole, that is not refused. */
static bool choose_place(const struct session *session, size_t i, double least,
                         const struct place_of_front *refused, size_t refused_count,
                         struct place_of_front *ret)
{
    const struct session_steps *whole = &session->steps[i];
    bool found = false;
    for (size_t by = 0; by < i; by++) {
        const struct session_steps *piece = &session->steps[by];
        if (!piece->ms || piece->count != whole->count || !could_be_front(session, i, by))
            continue;
        const int pieces = session->compiled[i].size / session->compiled[by].size;
        double ms = sum_of(whole);
        for (size_t s = 1; s < whole->count; s++) {
            ms += pieces * piece->ms[s - 1] - whole->ms[s - 1];
            bool again = false;
            for (size_t r = 0; r < refused_count; r++)
                again = again || (refused[r].by == by && refused[r].steps == s);
            if (again || ms >= least)
                continue;
            *ret = (struct place_of_front){by, s, least = ms};
            found = true;
        }
    }
    return found;
}

/* What size number i takes by the times of steps, whole or as pieces of one size. */
static double without_front(const struct session *session, size_t i)
{
    double least = INFINITY;
    for (size_t by = 0; by <= i; by++) {
        const int size = session->compiled[i].size, piece = session->compiled[by].size;
        if (session->steps[by].ms && !session->compiled[by].front && size % piece == 0)
            least = fmin(least, sum_of(&session->steps[by]) * size / piece);
    }
    return least;
}

/* The first of the places that seem worth it which the backend takes; *ret_ms: by the times of
 * steps. */
static enum status take_place(struct session *session, size_t i, bool *ret, double *ret_ms,
                              struct error *err)
{
    struct place_of_front refused[MOST_TRIED], place;
    const double least = without_front(session, i) * WORTH_TRYING;
    *ret = false;
    for (size_t count = 0; count < MOST_TRIED && !*ret; count++) {
        if (!choose_place(session, i, least, refused, count, &place))
            return STATUS_OK;
        TRY(session_set_front(session, i, place.by, place.steps, ret, err));
        refused[count] = place;
        *ret_ms = place.ms;
    }
    return STATUS_OK;
}

/* What the quickest way for as many images takes that does not need the front, and the size that it
 * begins with. */
static double other_way(const struct session *session, size_t i, double *cost, int *first,
                        size_t *ret)
{
    const int size = session->compiled[i].size;
    session_find_exact(session, size, cost, first);
    for (*ret = 0; session->compiled[*ret].size < first[size];)
        ++*ret;
    return cost[size];
}

/* Measures size number i with its front and size number `other` in turns. *ret: the quickest pass
 * of the one over that of the other. */
static enum status measure_beside(struct session *session, size_t i, size_t other, double *ret,
                                  struct error *err)
{
    const int64_t start = clock_now();
    double own = INFINITY, others = INFINITY, ms;
    for (int turn = 0; turn < MOST_TURNS; turn++) {
        if (turn >= LEAST_TURNS && clock_ms(clock_now() - start) > TURNS_MS)
            break;
        TRY(session_measure_now(session, i, &ms, err));
        own = fmin(own, ms);
        TRY(session_measure_now(session, other, &ms, err));
        others = fmin(others, ms);
        if (own > HOPELESS * others)
            break;
    }
    *ret = others > 0 && isfinite(others) ? own / others : INFINITY;
    return STATUS_OK;
}

/* Is size number i clearly quicker with its front than everything else there is, by the times of
 * its steps, `step_ms` together, and as a whole? Then L(b) is the larger of the two. The machine
 * changes its pace: of the whole counts how it compares now. */
static enum status measure_front(struct session *session, size_t i, double step_ms, double *cost,
                                 int *first, bool *ret, struct error *err)
{
    struct session_batch *batch = &session->info.batches[i];
    size_t other;
    double ratio;
    *ret = false;
    const double best = other_way(session, i, cost, first, &other);
    if (step_ms >= WORTH_HAVING * best)
        return STATUS_OK;
    if (other == i) { /* itself, whole: that is to be had no more, but in what was measured */
        TRY(session_measure_now(session, i, &ratio, err));
        ratio /= session->times[i].cpu > 0 ? session->times[i].cpu : best;
    } else {
        TRY(measure_beside(session, i, other, &ratio, err));
        ratio *= session->info.batches[other].milliseconds / best;
    }
    *ret = ratio > 0 && ratio < WORTH_HAVING;
    if (!*ret)
        return STATUS_OK;
    batch->milliseconds = fmax(ratio * best, step_ms);
    session->facts.times[i] =
        (struct session_time){batch->size, batch->milliseconds, session->compiled[i].front,
                              session->compiled[i].front_steps};
    return STATUS_OK;
}

static enum status try_front(struct session *session, size_t i, double *cost, int *first,
                             struct error *err)
{
    struct place_of_front place;
    struct tensor **kept = NULL;
    double step_ms = 0;
    bool good = false;
    if (!choose_place(session, i, without_front(session, i) * WORTH_TRYING, NULL, 0, &place))
        return STATUS_OK;
    struct compiled *c = &session->compiled[i];
    enum status status = session_compare_answers(session, c, &kept, &good, err);
    if (status == STATUS_OK)
        status = take_place(session, i, &good, &step_ms, err);
    if (status == STATUS_OK && good) {
        status = session->ops->reserve(session->backend, err);
        if (status == STATUS_OK)
            status = session_compare_answers(session, c, &kept, &good, err);
        if (status == STATUS_OK && good)
            status = measure_front(session, i, step_ms, cost, first, &good, err);
        if (status == STATUS_OK && !good)
            status = unset_front(session, i, err);
    }
    session_answers_done(session, kept);
    return status;
}

void session_forget_steps(struct session *session)
{
    for (size_t i = 0; i < SESSION_MAX_BATCHES; i++) {
        free(session->steps[i].ms);
        session->steps[i] = (struct session_steps){0};
    }
    session->wants_steps = false;
}

bool session_has_front(const struct session *session)
{
    for (size_t i = 0; i < session->compiled_count; i++)
        if (session->compiled[i].front)
            return true;
    return false;
}

enum status session_find_fronts(struct session *session, double *cost, int *first,
                                struct error *err)
{
    const int64_t start = clock_now();
    for (size_t i = 1; i < session->compiled_count; i++) {
        if (session->options.cancel && *session->options.cancel)
            return error_set(err, STATUS_CANCELLED, "loading was cancelled");
        if (!session->ops->set_front || clock_ms(clock_now() - start) > ALL_WITHIN_MS)
            break;
        if (session->steps[i].ms && !session->compiled[i].front &&
            session->info.batches[i].milliseconds >= WORTH_CUTTING_MS)
            TRY(try_front(session, i, cost, first, err));
    }
    return STATUS_OK;
}
