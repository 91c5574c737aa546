/* A trial runs fp32 and a candidate on the same probes in turns. First their speed is compared: a
 * candidate that is not faster is dropped after a few passes. Then the answers of the probes that
 * have not run yet are compared; a trial ends as soon as they can no longer agree, or when the time
 * for trials is over. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/size.h"
#include "server/precision/internal.h"

enum { REFERENCE, CANDIDATE, SIDES };

/* Rounds after the warm-up. A trial ends earlier if the result is clear after CLEAR_ROUNDS, or when
 * the runs have cost SPEED_MS. */
#define SPEED_ROUNDS 9
#define CLEAR_ROUNDS 1
#define SPEED_MS     1500
/* Other work on the machine changes the CPU time of a run by less than this factor. Runs on a GPU
 * are timed by the clock, which other work can change by more. They are short: all rounds run. */
#define CLEAR_GAIN 2.0

struct trial {
    const struct trial_input *input;
    struct session *sessions[SIDES];
    struct precision_trial *ret;
    struct outputs outputs;
    int batch;              /* images of a batch that is timed */
    float *values;          /* the current batch of probes */
    int next;               /* its first probe */
    int images;             /* in it */
    bool ran[SIDES];        /* which sessions have run it */
    void *numbers;          /* the batch in the number format that a session reads */
    size_t image_floats;    /* floats of a probe */
    _Atomic int is_stopped; /* cancelled, or out of time */
    int compared;           /* how many probes' answers have been compared, from the first on */
    bool is_lost;           /* the answers cannot agree any more */
    float *answers[SIDES];
    size_t answers_capacity, each[SIDES];  /* floats of an image's answer */
    double one_ms[SIDES], batch_ms[SIDES]; /* the quickest runs */
};

static bool is_cancelled(const struct trial *trial)
{
    const _Atomic int *cancel = trial->input->options.cancel;
    return cancel && *cancel;
}

static bool is_over(const struct trial *trial)
{
    return clock_ms(clock_thread()) >= trial->input->cpu_deadline_ms;
}

/* session_options.on_progress: ends the candidate's compilation early. */
static void on_progress(void *context, const char *phase, double fraction)
{
    struct trial *trial = context;
    (void)phase, (void)fraction;
    if (is_cancelled(trial) || is_over(trial))
        trial->is_stopped = 1;
}

static int largest_batch(const struct session *session)
{
    const struct session_info *info = session_info(session);
    return info->batched ? info->batches[info->batch_count - 1].size : 1;
}

static int at_most(int number, int most)
{
    return number < most ? number : most;
}

/* On a CPU a candidate is compiled for the batches of the trial only and does not measure kernels:
 * it uses what was measured for the reference, or the rules. On a GPU each precision has kernels of
 * its own. */
static struct session_options candidate_options(struct trial *trial, enum precision precision)
{
    const struct session_info *reference = session_info(trial->input->reference);
    struct session_options options = trial->input->options;
    options.precision = precision;
    options.trial = true;
    options.threads = reference->threads;
    options.max_batch_is_pinned = false;
    options.on_progress = on_progress;
    options.progress_context = trial;
    options.cancel = &trial->is_stopped;
    if (options.device.kind == DEVICE_CPU) {
        options.no_kernel_tuning = true;
        options.max_batch = at_most(options.max_batch, PRECISION_TRIAL_BATCH);
    }
    return options;
}

static enum status trial_init(struct trial *trial, struct error *err)
{
    struct session *reference = trial->sessions[REFERENCE], *other = trial->sessions[CANDIDATE];
    /* A candidate may lack the larger batch sizes for lack of memory. */
    trial->batch = at_most(at_most(largest_batch(reference), largest_batch(other)),
                           probes_count(trial->input->probes));
    if (trial->input->options.device.kind == DEVICE_CPU)
        trial->batch = at_most(trial->batch, PRECISION_TRIAL_BATCH);
    trial->image_floats = shape_count(&session_input(reference, 0)->shape);
    TRY(outputs_init(&trial->outputs, trial->input->model, reference, err));
    trial->ret->agreement.is_vector = trial->outputs.is_vector;
    size_t count, padded = (size_t)session_batch_for(reference, trial->batch);
    if ((size_t)session_batch_for(other, trial->batch) > padded)
        padded = (size_t)session_batch_for(other, trial->batch);
    if (!size_mul(trial->image_floats, padded, &count))
        return error_set(err, STATUS_TOO_LARGE, "a batch of probe images is too large");
    trial->values = alloc_array(count, sizeof *trial->values);
    trial->numbers = alloc_array(count, sizeof *trial->values);
    if (!trial->values || !trial->numbers)
        return error_no_memory(err, "for a trial of precisions");
    return STATUS_OK;
}

static void trial_done(struct trial *trial)
{
    free(trial->values);
    free(trial->numbers);
    outputs_done(&trial->outputs);
    free(trial->answers[REFERENCE]);
    free(trial->answers[CANDIDATE]);
}

/* Loads the batch of probes that begins with `first`. */
static enum status load_probes(struct trial *trial, int first, struct error *err)
{
    trial->next = first;
    trial->images = at_most(trial->batch, probes_count(trial->input->probes) - first);
    memset(trial->ran, 0, sizeof trial->ran);
    for (int i = 0; i < trial->images; i++)
        TRY(probes_write(trial->input->probes, first + i,
                         trial->values + (size_t)i * trial->image_floats, err));
    return STATUS_OK;
}

/* Copies the answers of a session's last run, image after image. */
static enum status keep_answers(struct trial *trial, int side, struct error *err)
{
    trial->each[side] = outputs_each(&trial->outputs, trial->images);
    size_t total;
    if (!size_mul(trial->each[side], (size_t)trial->images, &total))
        return error_set(err, STATUS_TOO_LARGE, "the outputs of probe images are too large");
    if (total > trial->answers_capacity) {
        for (int s = 0; s < SIDES; s++) {
            float *bigger = reallocarray(trial->answers[s], total, sizeof(float));
            if (!bigger)
                return error_no_memory(err, "for a trial of precisions");
            trial->answers[s] = bigger;
        }
        trial->answers_capacity = total;
    }
    outputs_read(&trial->outputs, trial->images, trial->answers[side]);
    return STATUS_OK;
}

static enum status compare_answers(struct trial *trial, struct error *err)
{
    const size_t each = trial->each[REFERENCE];
    const int count = probes_count(trial->input->probes);
    if (each != trial->each[CANDIDATE])
        return error_set(err, STATUS_SHAPE, "the outputs have other sizes than in fp32");
    for (int i = 0; i < trial->images; i++)
        outputs_compare(&trial->outputs, trial->answers[REFERENCE] + (size_t)i * each,
                        trial->answers[CANDIDATE] + (size_t)i * each,
                        trial->input->model->has_probabilities, &trial->ret->agreement);
    trial->compared += trial->images;
    trial->is_lost = agreement_is_lost(&trial->ret->agreement, count - trial->compared);
    return STATUS_OK;
}

/* Runs a session on the first `images` probes of the batch. */
static enum status run_images(struct trial *trial, int side, int images, struct run_time *ret,
                              struct error *err)
{
    struct session *session = trial->sessions[side];
    if (is_cancelled(trial))
        return error_set(err, STATUS_CANCELLED, "the trial was cancelled");
    image_numbers_write(&session_info(session)->image, trial->values, trial->numbers,
                        (size_t)images * trial->image_floats);
    return outputs_run(&trial->outputs, session, trial->numbers, images, ret, err);
}

/* Runs a session on the batch, before that on its first probe if `one` is not NULL. Keeps the
 * answers, unless they were compared in an earlier round: the gate may give the session away. */
static enum status run_within_gate(struct trial *trial, int side, struct run_time *one,
                                   struct run_time *batch, struct error *err)
{
    const struct precision_gate *gate = trial->input->gate;
    if (gate->begin)
        gate->begin(gate->context);
    enum status status = one ? run_images(trial, side, 1, one, err) : STATUS_OK;
    if (status == STATUS_OK)
        status = run_images(trial, side, trial->images, batch, err);
    if (status == STATUS_OK && trial->next >= trial->compared)
        status = keep_answers(trial, side, err);
    if (gate->end)
        gate->end(gate->context);
    return status;
}

/* When both sides have run the batch, compares their answers. */
static enum status run_batch(struct trial *trial, int side, struct run_time *one,
                             struct run_time *batch, struct error *err)
{
    TRY(run_within_gate(trial, side, one, batch, err));
    trial->ran[side] = true;
    return trial->next >= trial->compared && trial->ran[REFERENCE] && trial->ran[CANDIDATE]
               ? compare_answers(trial, err)
               : STATUS_OK;
}

/* The first probe of the next batch to time. Only whole batches are timed; after the last one the
 * first follows. */
static int next_batch(const struct trial *trial)
{
    const int next = trial->next + trial->images;
    return next + trial->batch <= probes_count(trial->input->probes) ? next : 0;
}

/* autotune.run. The cost is the geometric mean of a single image and a batch, because a server runs
 * both. No further round begins once the answers cannot agree any more. */
static enum status time_side(void *context, size_t side, struct autotune_run *ret,
                             struct error *err)
{
    struct trial *trial = context;
    struct run_time one, batch;
    if (trial->ran[REFERENCE] && trial->ran[CANDIDATE])
        TRY(load_probes(trial, next_batch(trial), err));
    TRY(run_batch(trial, (int)side, &one, &batch, err));
    ret->cost = sqrt(one.cost * batch.cost);
    ret->spent = trial->is_lost || is_over(trial) ? INFINITY : one.cost + batch.cost;
    trial->one_ms[side] = fmin(trial->one_ms[side], one.ms);
    trial->batch_ms[side] = fmin(trial->batch_ms[side], batch.ms);
    return STATUS_OK;
}

static enum status run_side(void *context, size_t side, struct autotune_run *ret, struct error *err)
{
    struct speed_comparison *comparison = context;
    TRY(comparison->run(comparison->context, side, ret, err));
    if (comparison->runs++ < SIDES) /* the warm-up */
        return STATUS_OK;
    double *least = &comparison->least[side];
    *least = *least > 0 ? fmin(*least, ret->cost) : ret->cost;
    const double gain = comparison->least[REFERENCE] / comparison->least[CANDIDATE];
    if (comparison->runs >= SIDES * (1 + CLEAR_ROUNDS) &&
        (gain >= comparison->clear_gain || gain <= 1 / comparison->clear_gain))
        ret->spent = INFINITY;
    return STATUS_OK;
}

enum status trial_compare_speed(struct speed_comparison *comparison, double *ret, struct error *err)
{
    double costs[SIDES];
    size_t ignored;
    const struct autotune tune = {.count = SIDES,
                                  .rounds = SPEED_ROUNDS,
                                  .budget = comparison->budget_ms,
                                  .all = true,
                                  .run = run_side,
                                  .context = comparison};
    TRY(autotune_choose(&tune, costs, &ignored, err));
    *ret = costs[REFERENCE] / costs[CANDIDATE];
    return STATUS_OK;
}

static enum status time_both(struct trial *trial, struct error *err)
{
    struct precision_trial *ret = trial->ret;
    const bool is_cpu = trial->input->options.device.kind == DEVICE_CPU;
    struct speed_comparison comparison = {.run = time_side,
                                          .context = trial,
                                          .budget_ms = SPEED_MS,
                                          .clear_gain = is_cpu ? CLEAR_GAIN : INFINITY};
    TRY(load_probes(trial, 0, err));
    for (int side = 0; side < SIDES; side++)
        trial->one_ms[side] = trial->batch_ms[side] = INFINITY;
    TRY(trial_compare_speed(&comparison, &ret->speed, err));
    ret->fp32_one_ms = trial->one_ms[REFERENCE];
    ret->one_ms = trial->one_ms[CANDIDATE];
    ret->fp32_image_ms = trial->batch_ms[REFERENCE] / trial->batch;
    ret->image_ms = trial->batch_ms[CANDIDATE] / trial->batch;
    return STATUS_OK;
}

static enum status compare_rest(struct trial *trial, struct error *err)
{
    const int count = probes_count(trial->input->probes);
    while (trial->compared < count && !trial->is_lost && !is_over(trial)) {
        struct run_time ignored;
        TRY(load_probes(trial, trial->compared, err));
        for (int side = 0; side < SIDES; side++)
            TRY(run_batch(trial, side, NULL, &ignored, err));
    }
    return STATUS_OK;
}

static enum status make_trial(struct trial *trial, struct error *err)
{
    const struct trial_input *input = trial->input;
    struct precision_trial *ret = trial->ret;
    const struct session_options options = candidate_options(trial, ret->precision);
    trial->sessions[REFERENCE] = input->reference;
    const bool is_int8 = ret->precision == PRECISION_INT8 && input->int8;
    TRY(session_create(is_int8 ? input->int8 : input->model->graph, &options,
                       &trial->sessions[CANDIDATE], err));
    TRY(trial_init(trial, err));
    TRY(time_both(trial, err));
    ret->outcome = TRIAL_SLOWER;
    if (ret->speed < PRECISION_GAIN)
        return STATUS_OK;
    TRY(compare_rest(trial, err));
    const int count = probes_count(input->probes);
    const bool are_all = trial->compared == count;
    const bool is_enough = are_all || trial->compared >= PRECISION_LEAST_PROBES;
    if (is_enough && agreement_holds(&ret->agreement))
        ret->outcome = TRIAL_PASSED;
    else if (are_all || trial->is_lost || agreement_is_lost(&ret->agreement, 0))
        ret->outcome = TRIAL_DIFFERS;
    else
        ret->outcome = TRIAL_COSTLY;
    return STATUS_OK;
}

enum status trial_run(const struct trial_input *input, enum precision precision,
                      struct precision_trial *ret, struct error *err)
{
    *ret = (struct precision_trial){.precision = precision, .outcome = TRIAL_FAILED};
    struct trial trial = {.input = input, .ret = ret};
    const enum status status = make_trial(&trial, err);
    const bool is_costly = status == STATUS_CANCELLED && trial.is_stopped && !is_cancelled(&trial);
    trial_done(&trial);
    session_free(trial.sessions[CANDIDATE]);
    if (is_costly)
        ret->outcome = TRIAL_COSTLY;
    else if (status == STATUS_CANCELLED || status == STATUS_NO_MEMORY ||
             status == STATUS_DEVICE_MEMORY)
        return status;
    else if (status != STATUS_OK)
        ret->outcome = TRIAL_FAILED;
    return STATUS_OK;
}
