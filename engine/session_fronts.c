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

#define MOST_TRIED    64  /* places for one size that the backend refuses */
#define ALL_WITHIN_MS 600 /* no further size is begun with after that */

/* A front is measured beside what it has to beat, in turns, until it has, or for so long. */
#define LEAST_TURNS 3
#define MOST_TURNS  8
#define TURNS_MS    200

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
    const struct program_front how = {steps, piece->size, c->size / piece->size};
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
