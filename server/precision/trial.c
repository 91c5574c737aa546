/* A trial runs fp32 and a candidate in rounds, each on the next batch of probes. Rounds compare
 * answers until all probes have run, and time both sessions until their speed is known. The trial
 * ends after that, if the candidate is not faster, or when the time for trials is over. */
#include <math.h>
#include <stdlib.h>

#include "engine/base/clock.h"
#include "engine/base/size.h"
#include "server/precision/internal.h"

/* The most rounds that measure the speed; the first one is a warm-up. No further round follows when
 * their runs have cost SPEED_MS milliseconds. */
#define SPEED_ROUNDS 10
#define SPEED_MS     1500

/* On a CPU no further round is needed if costs differ by more than this factor, because a cost is
 * CPU time, and other work on the machine changes it less. Runs on a GPU are timed by the clock,
 * and other work can change these times more. */
#define SPEED_CLEAR 2.0

void speed_add(struct speed *speed, double fp32_cost, double candidate_cost)
{
    const double costs[SIDES] = {fp32_cost, candidate_cost};
    /* Keep the minimum, because other work of the machine only adds cost. */
    for (int side = 0; side < SIDES; side++)
        if (speed->rounds < 2 || costs[side] < speed->least[side])
            speed->least[side] = costs[side];
    speed->rounds++;
}

double speed_gain(const struct speed *speed)
{
    return speed->least[REFERENCE] / speed->least[CANDIDATE];
}

bool speed_is_known(const struct speed *speed, bool is_cpu)
{
    const double gain = speed_gain(speed);
    const bool is_clear = gain >= SPEED_CLEAR || gain <= 1 / SPEED_CLEAR;
    return speed->rounds >= SPEED_ROUNDS || (speed->rounds > 0 && speed->spent_ms >= SPEED_MS) ||
           (is_cpu && speed->rounds > 1 && is_clear);
}

struct trial {
    const struct trial_input *input;
    struct session *sessions[SIDES];
    struct precision_trial *ret;
    struct outputs outputs;
    int count, batch;       /* number of probes; images of a timed batch */
    int ran;                /* probes run so far; after the last probe, the first one runs again */
    int images;             /* size of the current batch */
    float *values;          /* the current batch */
    size_t image_floats;    /* floats of a probe */
    _Atomic int is_stopped; /* 1: cancelled, or the time is over */
    struct speed speed;
    float *answers[SIDES];                 /* to the current batch, if they are to be compared */
    size_t each[SIDES];                    /* floats of an image's answer */
    double one_ms[SIDES], batch_ms[SIDES]; /* milliseconds of the quickest runs */
};

static bool is_on_cpu(const struct trial *trial)
{
    return trial->input->options.device.kind == DEVICE_CPU;
}

static bool is_cancelled(const struct trial *trial)
{
    const _Atomic int *cancel = trial->input->options.cancel;
    return cancel && *cancel;
}

static bool is_over(const struct trial *trial)
{
    return clock_ms(clock_thread()) >= trial->input->cpu_deadline_ms;
}

/* The callback session_options.on_progress, which stops the candidate's compilation early. */
static void on_progress(void *context, const char *phase, double fraction)
{
    struct trial *trial = context;
    (void)phase, (void)fraction;
    if (is_cancelled(trial) || is_over(trial))
        trial->is_stopped = 1;
}

static int at_most(int number, int most)
{
    return number < most ? number : most;
}

/* On a CPU a candidate is compiled for the batches of the trial only and does not measure kernels:
 * it uses those measured for the reference, or chooses by rules. On a GPU each precision has its
 * own kernels. */
static struct session_options candidate_options(struct trial *trial, enum precision precision)
{
    struct session_options options = trial->input->options;
    options.precision = precision;
    options.trial = true;
    options.threads = session_info(trial->input->reference)->threads;
    options.max_batch_is_pinned = false;
    options.on_progress = on_progress;
    options.progress_context = trial;
    options.cancel = &trial->is_stopped;
    if (is_on_cpu(trial))
        options.max_batch = at_most(options.max_batch, PRECISION_TRIAL_BATCH);
    return options;
}

static enum status trial_init(struct trial *trial, struct error *err)
{
    struct session *reference = trial->sessions[REFERENCE], *other = trial->sessions[CANDIDATE];
    trial->count = probes_count(trial->input->probes);
    /* A candidate may lack the larger batch sizes if memory was short. */
    trial->batch = at_most(session_max_batch(session_info(other)),
                           at_most(session_max_batch(session_info(reference)), trial->count));
    if (is_on_cpu(trial))
        trial->batch = at_most(trial->batch, PRECISION_TRIAL_BATCH);
    trial->image_floats = shape_count(&session_info(reference)->inputs[0].shape);
    TRY(outputs_init(&trial->outputs, trial->input->model, reference, err));
    trial->ret->agreement.is_vector = trial->outputs.is_vector;
    size_t count, padded = (size_t)session_batch_for(reference, trial->batch);
    if ((size_t)session_batch_for(other, trial->batch) > padded)
        padded = (size_t)session_batch_for(other, trial->batch);
    if (!size_mul(trial->image_floats, padded, &count))
        return error_set(err, STATUS_TOO_LARGE, "a batch of probe images is too large");
    trial->values = alloc_array(count, sizeof *trial->values);
    return check_memory(trial->values, "for a trial of precisions", err);
}

static void trial_done(struct trial *trial)
{
    outputs_done(&trial->outputs);
    FREE_ALL(trial->values, trial->answers[REFERENCE], trial->answers[CANDIDATE]);
    session_free(trial->sessions[CANDIDATE]);
}

/* True if the current batch has probes whose answers were not compared yet. */
static bool is_new(const struct trial *trial)
{
    return trial->ran < trial->count;
}

static enum status load_probes(struct trial *trial, struct error *err)
{
    const int first = trial->ran % trial->count;
    trial->images = at_most(trial->batch, trial->count - first);
    for (int i = 0; i < trial->images; i++)
        TRY(probes_write(trial->input->probes, first + i,
                         trial->values + (size_t)i * trial->image_floats, err));
    return STATUS_OK;
}

/* Copies the answers of a session's last run, image by image. */
static enum status keep_answers(struct trial *trial, int side, struct error *err)
{
    size_t total;
    trial->each[side] = trial->outputs.each;
    if (!size_mul(trial->outputs.each, (size_t)trial->images, &total))
        return error_set(err, STATUS_TOO_LARGE, "the outputs of probe images are too large");
    free(trial->answers[side]);
    trial->answers[side] = alloc_array(total, sizeof(float));
    TRY(check_memory(trial->answers[side], "for a trial of precisions", err));
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
    return STATUS_OK;
}

/* Runs a session on the first `images` probes of the batch. */
static enum status run_images(struct trial *trial, int side, int images, struct run_time *ret,
                              struct error *err)
{
    if (is_cancelled(trial))
        return error_set(err, STATUS_CANCELLED, "the trial was cancelled");
    return outputs_run(&trial->outputs, trial->sessions[side], trial->values, images, ret, err);
}

/* Runs a session on the batch. If `ret_cost`, first runs it on the batch's first image alone; sets
 * *ret_cost to the geometric mean of the two costs, because a server runs both sizes. Copies
 * answers that were not compared yet before the gate releases the session. */
static enum status run_side(struct trial *trial, int side, double *ret_cost, struct error *err)
{
    const struct precision_gate *gate = trial->input->gate;
    struct run_time one = {0}, batch;
    if (gate->begin)
        gate->begin(gate->context);
    enum status status = ret_cost ? run_images(trial, side, 1, &one, err) : STATUS_OK;
    IF_OK(status, run_images(trial, side, trial->images, &batch, err));
    if (status == STATUS_OK && is_new(trial))
        status = keep_answers(trial, side, err);
    if (gate->end)
        gate->end(gate->context);
    TRY(status);
    if (ret_cost) {
        *ret_cost = sqrt(one.cost * batch.cost);
        trial->speed.spent_ms += one.cost + batch.cost;
        trial->one_ms[side] = fmin(trial->one_ms[side], one.ms);
        trial->batch_ms[side] = fmin(trial->batch_ms[side], batch.ms);
    }
    return STATUS_OK;
}

/* Timed rounds begin with each side in turn: changes of the machine's speed then affect both. */
static enum status run_round(struct trial *trial, struct error *err)
{
    double costs[SIDES];
    TRY(load_probes(trial, err));
    const bool is_timed =
        trial->images == trial->batch && !speed_is_known(&trial->speed, is_on_cpu(trial));
    const int begins = trial->speed.rounds % SIDES;
    for (int turn = 0; turn < SIDES; turn++) {
        const int side = turn ^ begins;
        TRY(run_side(trial, side, is_timed ? &costs[side] : NULL, err));
    }
    if (is_timed)
        speed_add(&trial->speed, costs[REFERENCE], costs[CANDIDATE]);
    if (is_new(trial))
        TRY(compare_answers(trial, err));
    trial->ran += trial->images;
    return STATUS_OK;
}

static enum status run_rounds(struct trial *trial, struct error *err)
{
    bool goes_on = true;
    for (int side = 0; side < SIDES; side++)
        trial->one_ms[side] = trial->batch_ms[side] = INFINITY;
    while (goes_on) {
        TRY(run_round(trial, err));
        goes_on =
            !is_over(trial) && (!speed_is_known(&trial->speed, is_on_cpu(trial)) ||
                                (is_new(trial) && speed_gain(&trial->speed) >= PRECISION_GAIN));
    }
    return STATUS_OK;
}

static enum trial_outcome outcome_of(const struct trial *trial)
{
    if (trial->ret->speed < PRECISION_GAIN)
        return TRIAL_SLOWER;
    if (is_new(trial) && trial->ran < PRECISION_LEAST_PROBES)
        return TRIAL_COSTLY;
    return agreement_holds(&trial->ret->agreement, NULL) ? TRIAL_PASSED : TRIAL_DIFFERS;
}

static enum status make_trial(struct trial *trial, struct error *err)
{
    const struct trial_input *input = trial->input;
    struct precision_trial *ret = trial->ret;
    const struct session_options options = candidate_options(trial, ret->precision);
    trial->sessions[REFERENCE] = input->reference;
    TRY(session_create(ret->precision == PRECISION_INT8 ? input->int8 : input->model->graph,
                       &options, &trial->sessions[CANDIDATE], err));
    TRY(trial_init(trial, err));
    TRY(run_rounds(trial, err));
    ret->speed = speed_gain(&trial->speed);
    ret->fp32_one_ms = trial->one_ms[REFERENCE];
    ret->one_ms = trial->one_ms[CANDIDATE];
    ret->fp32_image_ms = trial->batch_ms[REFERENCE] / trial->batch;
    ret->image_ms = trial->batch_ms[CANDIDATE] / trial->batch;
    ret->outcome = outcome_of(trial);
    return STATUS_OK;
}

enum status trial_run(const struct trial_input *input, enum precision precision,
                      struct precision_trial *ret, struct error *err)
{
    *ret = (struct precision_trial){.precision = precision, .outcome = TRIAL_FAILED};
    struct trial trial = {.input = input, .ret = ret};
    enum status status = make_trial(&trial, err);
    trial_done(&trial);
    if (status == STATUS_CANCELLED && trial.is_stopped && !is_cancelled(&trial)) {
        ret->outcome = TRIAL_COSTLY;
        return STATUS_OK;
    }
    return status == STATUS_CANCELLED || status_lacks_memory(status) ? status : STATUS_OK;
}
