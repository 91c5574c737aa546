/* A trial runs fp32 and a candidate on the same probes: first to compare their speed, then, where
 * the candidate is faster, their answers. Answers of probes that ran for the speed are compared at
 * once. A trial ends as soon as the answers can no longer agree. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/size.h"
#include "server/precision/agreement.h"
#include "server/precision/internal.h"

enum { REFERENCE, CANDIDATE, SIDES };

/* Turns in which speeds are compared, after the warm-up: fewer where the verdict is clear. */
#define SPEED_ROUNDS 9
#define CLEAR_ROUNDS 3
/* Other work on the machine changes the CPU time of a run by less than this factor. A GPU's runs
 * are timed by the clock, which other work may change by more; its turns are short, and all are
 * taken. */
#define CLEAR_GAIN 2.0

struct trial {
    const struct trial_input *input;
    struct session *sessions[SIDES];
    struct precision_trial *ret;
    struct outputs outputs;
    int batch;           /* images of a batch that is timed */
    int next;            /* the probe that the batch in `values` begins with */
    int images;          /* of that batch */
    int compared;        /* probes so far: the first ones */
    bool ran[SIDES];     /* that batch */
    bool is_lost;        /* the answers cannot agree any more */
    size_t image_floats; /* of a probe */
    float *values;       /* a batch of probes */
    float *answers[SIDES];
    size_t answers_capacity, each[SIDES];  /* floats of an image's answer */
    double one_ms[SIDES], batch_ms[SIDES]; /* the quickest runs */
};

void trial_note(const struct trial_input *input, double images)
{
    struct trial_work *work = input->work;
    if (!work)
        return;
    work->done += images;
    const double share = 1 - exp(-work->done / work->expected);
    if (input->options.on_progress)
        input->options.on_progress(input->options.progress_context,
                                   work->from + (0.99 - work->from) * share);
}

/* Creating a session takes about as long as so many forward passes. */
#define SESSION_IMAGES 8

/* session_options.on_progress of the candidate's session: counts its creation as so many images. */
static void note_session(void *context, double fraction)
{
    const struct trial_input *input = context;
    if (!input->work)
        return;
    const double made = fraction - input->work->session;
    input->work->session = fraction;
    trial_note(input, made > 0 ? SESSION_IMAGES * made : 0); /* else another session begins */
}

/* Kernels were tried for the reference; a candidate takes what was found, and else what the rule
 * says. On a GPU each precision has kernels of its own. */
static struct session_options candidate_options(const struct trial_input *input,
                                                enum precision precision)
{
    struct session_options options = input->options;
    options.precision = precision;
    options.no_kernel_trials |= options.device.kind == DEVICE_CPU;
    options.on_progress = note_session;
    options.progress_context = (void *)(uintptr_t)input;
    options.threads = session_info(input->reference)->threads;
    return options;
}

static enum status trial_init(struct trial *trial, struct error *err)
{
    struct session *reference = trial->input->reference;
    const struct session_info *info = session_info(reference);
    const int probes = probes_count(trial->input->probes);
    int largest = info->batched ? info->batches[info->batch_count - 1].size : 1;
    if (trial->sessions[CANDIDATE]) { /* may have compiled fewer sizes */
        const struct session_info *other = session_info(trial->sessions[CANDIDATE]);
        const int most = other->batched ? other->batches[other->batch_count - 1].size : 1;
        largest = most < largest ? most : largest;
    }
    trial->batch = largest < probes ? largest : probes;
    trial->image_floats = shape_count(&session_input(reference, 0)->shape);
    TRY(outputs_init(&trial->outputs, trial->input->model, reference, err));
    trial->ret->agreement.is_vector = trial->outputs.is_vector;
    trial->ret->agreement.is_classifier = trial->outputs.is_classifier;
    size_t count;
    if (!size_mul(trial->image_floats, (size_t)session_batch_for(reference, trial->batch), &count))
        return error_set(err, STATUS_TOO_LARGE, "a batch of probe images is too large");
    trial->values = alloc_array(count, sizeof *trial->values);
    if (!trial->values)
        return error_set(err, STATUS_NO_MEMORY, "out of memory for a trial of precisions");
    return STATUS_OK;
}

static void trial_done(struct trial *trial)
{
    session_free(trial->sessions[CANDIDATE]);
    free(trial->values);
    outputs_done(&trial->outputs);
    free(trial->answers[REFERENCE]);
    free(trial->answers[CANDIDATE]);
}

/* Puts the batch of probes that begins with `first` into `values`. */
static enum status load_probes(struct trial *trial, int first, struct error *err)
{
    const int left = probes_count(trial->input->probes) - first;
    trial->next = first;
    trial->images = trial->batch < left ? trial->batch : left;
    memset(trial->ran, 0, sizeof trial->ran);
    for (int i = 0; i < trial->images; i++)
        TRY(probes_write(trial->input->probes, first + i,
                         trial->values + (size_t)i * trial->image_floats, err));
    return STATUS_OK;
}

/* Keeps the answers of a side's last run: each image's floats after the other's. */
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
                return error_set(err, STATUS_NO_MEMORY, "out of memory for a trial of precisions");
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
    if (each != trial->each[CANDIDATE])
        return error_set(err, STATUS_SHAPE, "the outputs have other sizes than in fp32");
    for (int i = 0; i < trial->images; i++)
        outputs_compare(&trial->outputs, trial->answers[REFERENCE] + (size_t)i * each,
                        trial->answers[CANDIDATE] + (size_t)i * each,
                        trial->input->model->has_probabilities, &trial->ret->agreement);
    trial->compared += trial->images;
    trial->is_lost = agreement_is_lost(&trial->ret->agreement,
                                       probes_count(trial->input->probes) - trial->compared);
    return STATUS_OK;
}

/* Runs a side on the batch in `values`; answers that were not compared yet are, when both sides
 * have run it. */
static enum status run_batch(struct trial *trial, int side, struct run_time *ret, struct error *err)
{
    const struct trial_input *input = trial->input;
    if (input->options.cancel && *input->options.cancel)
        return error_set(err, STATUS_CANCELLED, "loading was cancelled");
    TRY(outputs_run(&trial->outputs, trial->sessions[side], trial->values, trial->images, ret,
                    err));
    trial_note(input, trial->images);
    trial->ran[side] = true;
    if (trial->next < trial->compared)
        return STATUS_OK;
    TRY(keep_answers(trial, side, err));
    return trial->ran[REFERENCE] && trial->ran[CANDIDATE] ? compare_answers(trial, err) : STATUS_OK;
}

/* Where the next batch begins. Timing takes whole batches only, and begins anew behind the last. */
static int next_batch(const struct trial *trial)
{
    const int next = trial->next + trial->images;
    return next + trial->batch <= probes_count(trial->input->probes) ? next : 0;
}

/* autotune.run: a single image and a batch, both alike (geometric mean), since a server runs both.
 * Once the answers cannot agree any more, the speed does not matter. */
static enum status time_side(void *context, size_t side, struct autotune_run *ret,
                             struct error *err)
{
    struct trial *trial = context;
    struct run_time one, batch;
    if (trial->ran[REFERENCE] && trial->ran[CANDIDATE])
        TRY(load_probes(trial, next_batch(trial), err));
    TRY(outputs_run(&trial->outputs, trial->sessions[side], trial->values, 1, &one, err));
    trial_note(trial->input, 1);
    TRY(run_batch(trial, (int)side, &batch, err));
    ret->cost = sqrt(one.cost * batch.cost);
    ret->spent = trial->is_lost ? INFINITY : one.ms + batch.ms;
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
                                          .budget_ms = trial->input->speed_ms,
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
    while (trial->compared < count && !trial->is_lost) {
        struct run_time ignored;
        TRY(load_probes(trial, trial->compared, err));
        for (int side = 0; side < SIDES; side++)
            TRY(run_batch(trial, side, &ignored, err));
    }
    return STATUS_OK;
}

static enum status make_trial(struct trial *trial, struct error *err)
{
    const struct trial_input *input = trial->input;
    struct precision_trial *ret = trial->ret;
    const struct session_options options = candidate_options(input, ret->precision);
    trial->sessions[REFERENCE] = input->reference;
    TRY(session_create(input->model->graph, &options, &trial->sessions[CANDIDATE], err));
    TRY(trial_init(trial, err));
    TRY(time_both(trial, err));
    ret->outcome = TRIAL_SLOWER;
    if (ret->speed < PRECISION_GAIN)
        return STATUS_OK;
    TRY(compare_rest(trial, err));
    ret->outcome =
        trial->compared == probes_count(input->probes) && agreement_holds(&ret->agreement)
            ? TRIAL_PASSED
            : TRIAL_DIFFERS;
    return STATUS_OK;
}

/* Memory that others hold now says nothing of the model. */
static bool is_memory(enum status status)
{
    return status == STATUS_NO_MEMORY || status == STATUS_DEVICE_MEMORY;
}

enum status trial_run(const struct trial_input *input, enum precision precision,
                      struct precision_trial *ret, struct error *err)
{
    struct trial *trial = calloc(1, sizeof *trial);
    if (!trial)
        return error_set(err, STATUS_NO_MEMORY, "out of memory for a trial of precisions");
    *ret = (struct precision_trial){.precision = precision};
    trial->input = input;
    trial->ret = ret;
    const enum status status = make_trial(trial, err);
    trial_done(trial);
    free(trial);
    if (status == STATUS_OK || status == STATUS_CANCELLED || is_memory(status))
        return status;
    ret->outcome = TRIAL_FAILED;
    return STATUS_OK;
}

enum status trial_time_one(const struct trial_input *input, struct run_time *ret, struct error *err)
{
    enum { RUNS = 3 };
    struct precision_trial ignored = {.precision = PRECISION_FP32};
    struct trial trial = {.input = input, .ret = &ignored};
    struct run_time run, sum = {0, INFINITY};
    enum status status = trial_init(&trial, err);
    if (status == STATUS_OK)
        status = probes_write(input->probes, 0, trial.values, err);
    for (int i = 0; status == STATUS_OK && i < RUNS; i++) {
        status = outputs_run(&trial.outputs, input->reference, trial.values, 1, &run, err);
        if (status == STATUS_OK)
            sum = (struct run_time){sum.ms + run.ms / RUNS, fmin(sum.cost, run.cost)};
    }
    trial_done(&trial);
    *ret = sum;
    return status;
}
