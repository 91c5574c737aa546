/* fp32 and a candidate run the same probes in turns, so that a machine that changes its pace
 * disturbs both alike; the ratio of a turn counts, and of all turns the median. A candidate that is
 * not quicker after a few turns, or that answers one probe differently, is not looked at further.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/size.h"
#include "server/precision/agreement.h"
#include "server/precision/internal.h"

enum {
    TURNS_OF_ONE = 5,
    FEW_TURNS = 2,    /* enough to see that a candidate is slower */
    MOST_TURNS = 512, /* PROBES_FROM_FOLDER images, one by one, and then some */
};

/* A candidate has to gain this much: less is within what a machine's pace changes. */
#define WORTHWHILE 1.05

/* So long a trial that has failed goes on to see how other probes fare. */
#define SURVEY_MS 1500

/* Slower than that no choice of layers helps. */
#define FAR_SLOWER 0.8

/* A run that takes so many times its CPU time was kept from the cores by something else. */
#define DISTURBED 1.25

struct turns {
    double reference[MOST_TURNS], candidate[MOST_TURNS], ratio[MOST_TURNS];
    size_t count;
};

struct trial {
    const struct trial_input *input;
    struct session *candidate;
    struct precision_trial *ret;
    struct survey *survey; /* or NULL */
    int compared;          /* probes so far */
    int batch;             /* images of a turn */
    size_t image_floats;   /* of a probe */
    struct outputs outputs;
    float *values;    /* a batch of probes */
    float *scores[2]; /* of fp32 and of the candidate: what a turn gave */
    size_t scores_capacity;
    struct turns ones, batches;
};

double trial_ms_left(const struct trial_input *input)
{
    return input->end ? clock_ms(input->end - clock_now()) : INFINITY;
}

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

/* Making a session takes as long as some forward passes. */
#define SESSION_IMAGES 8

void trial_progress(void *context, double fraction)
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
struct session_options trial_options(const struct trial_input *input, enum precision precision,
                                     const struct layer_set *fp32_layers)
{
    struct session_options options = input->options;
    options.precision = precision;
    options.fp32_layers = *fp32_layers;
    options.no_kernel_trials |= options.device.kind == DEVICE_CPU;
    options.on_progress = trial_progress;
    options.progress_context = (void *)(uintptr_t)input;
    options.threads = session_info(input->reference)->threads;
    return options;
}

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double median(double *values, size_t count)
{
    qsort(values, count, sizeof *values, compare_doubles);
    return count ? values[count / 2] : 0;
}

static enum status prepare(struct trial *trial, struct error *err)
{
    struct session *reference = trial->input->reference;
    const struct session_info *info = session_info(reference);
    const struct session_tensor *input = session_input(reference, 0);
    trial->batch = info->batched ? info->batches[info->batch_count - 1].size : 1;
    trial->image_floats = shape_count(&input->shape);
    TRY(outputs_init(&trial->outputs, trial->input->model, reference, err));
    trial->ret->is_classifier = trial->outputs.is_classifier;
    const size_t padded = (size_t)session_batch_for(reference, trial->batch);
    size_t count;
    if (!size_mul(trial->image_floats, padded, &count))
        return error_set(err, STATUS_TOO_LARGE, "a batch of probe images is too large");
    trial->values = alloc_array(count, sizeof *trial->values);
    if (!trial->values)
        return error_set(err, STATUS_NO_MEMORY, "out of memory for a trial of precisions");
    return STATUS_OK;
}

static void trial_done(struct trial *trial)
{
    session_free(trial->candidate);
    free(trial->values);
    outputs_done(&trial->outputs);
    free(trial->scores[0]);
    free(trial->scores[1]);
}

/* Keeps the compared outputs of the last run of `images` images: scores[side], each image's floats
 * after the other's. *ret_each: floats of an image. */
static enum status keep(struct trial *trial, int side, int images, size_t *ret_each,
                        struct error *err)
{
    const size_t each = outputs_each(&trial->outputs, images), total = each * (size_t)images;
    if (total > trial->scores_capacity) {
        free(trial->scores[0]);
        free(trial->scores[1]);
        trial->scores[0] = alloc_array(total, sizeof(float));
        trial->scores[1] = alloc_array(total, sizeof(float));
        trial->scores_capacity = trial->scores[0] && trial->scores[1] ? total : 0;
        if (!trial->scores_capacity)
            return error_set(err, STATUS_NO_MEMORY, "out of memory for a trial of precisions");
    }
    outputs_read(&trial->outputs, images, trial->scores[side]);
    *ret_each = each;
    return STATUS_OK;
}

static bool is_disturbed(const struct run_time *time)
{
    return time->ms > DISTURBED * time->cpu_ms;
}

/* Of a turn in which something else had the cores, too, the CPU time counts, on both sides. */
static void note_turn(struct turns *turns, const struct run_time times[2])
{
    const bool by_cpu = times[0].cpu_ms > 0 && times[1].cpu_ms > 0 &&
                        (is_disturbed(&times[0]) || is_disturbed(&times[1]));
    const double reference = by_cpu ? times[0].cpu_ms : times[0].ms;
    const double candidate = by_cpu ? times[1].cpu_ms : times[1].ms;
    if (turns->count == MOST_TURNS || candidate <= 0)
        return;
    turns->reference[turns->count] = reference;
    turns->candidate[turns->count] = candidate;
    turns->ratio[turns->count++] = reference / candidate;
}

/* Both sessions on the `images` probes that lie in values; who begins changes from turn to turn. */
static enum status take_turn(struct trial *trial, int images, struct turns *turns, bool compare,
                             struct error *err)
{
    struct session *sessions[2] = {trial->input->reference, trial->candidate};
    struct run_time times[2];
    size_t each[2] = {0, 0};
    for (int k = 0; k < 2; k++) {
        const int side = (k + (int)turns->count) % 2;
        TRY(outputs_run(&trial->outputs, sessions[side], trial->values, images, &times[side], err));
        trial_note(trial->input, images);
        if (compare)
            TRY(keep(trial, side, images, &each[side], err));
    }
    note_turn(turns, times);
    for (int i = 0; compare && i < images; i++) {
        if (each[0] != each[1])
            return error_set(err, STATUS_SHAPE, "the outputs have other sizes than in fp32");
        const float *reference = trial->scores[0] + (size_t)i * each[0];
        const float *candidate = trial->scores[1] + (size_t)i * each[0];
        const bool probabilities = trial->input->model->has_probabilities;
        agreement_add(trial->ret, reference, candidate, each[0], probabilities);
        if (trial->survey && trial->compared < PROBES_FROM_FOLDER) {
            struct precision_trial one = {.is_classifier = trial->ret->is_classifier};
            agreement_add(&one, reference, candidate, each[0], probabilities);
            trial->survey->excess[trial->compared] = agreement_excess(&one);
        }
        trial->compared++;
    }
    return STATUS_OK;
}

/* What is known so far: times, and the speed, which is the mean (geometric) of that of a single
 * image and that of a full batch. */
static void settle_times(struct trial *trial)
{
    struct precision_trial *ret = trial->ret;
    struct turns ones = trial->ones, batches = trial->batches;
    ret->fp32_one_ms = median(ones.reference, ones.count);
    ret->one_ms = median(ones.candidate, ones.count);
    ret->fp32_image_ms = median(batches.reference, batches.count) / trial->batch;
    ret->image_ms = median(batches.candidate, batches.count) / trial->batch;
    const double one = median(ones.ratio, ones.count);
    ret->speed = batches.count ? sqrt(one * median(batches.ratio, batches.count)) : one;
}

static enum status time_ones(struct trial *trial, struct error *err)
{
    struct turns warm_up = {.count = 0};
    TRY(probes_write(trial->input->probes, 0, trial->values, err));
    TRY(take_turn(trial, 1, &warm_up, false, err));
    for (int turn = 0; turn < TURNS_OF_ONE; turn++)
        TRY(take_turn(trial, 1, &trial->ones, false, err));
    settle_times(trial);
    return STATUS_OK;
}

static bool cancelled(const struct trial *trial)
{
    return trial->input->options.cancel && *trial->input->options.cancel;
}

static enum status compare_all(struct trial *trial, struct error *err)
{
    const int count = probes_count(trial->input->probes);
    struct precision_trial *ret = trial->ret;
    const double survey_ms = fmin(SURVEY_MS, 0.3 * trial_ms_left(trial->input));
    const int64_t begin = clock_now();
    ret->outcome = TRIAL_PASSED;
    for (int first = 0; first < count; first += trial->batch) {
        if (cancelled(trial))
            return error_set(err, STATUS_CANCELLED, "loading was cancelled");
        const int images = first + trial->batch <= count ? trial->batch : count - first;
        for (int i = 0; i < images; i++)
            TRY(probes_write(trial->input->probes, first + i,
                             trial->values + (size_t)i * trial->image_floats, err));
        struct turns warm_up = {.count = 0};
        if (first == 0)
            TRY(take_turn(trial, images, &warm_up, false, err));
        /* The rest of a division is a batch that is padded, and says nothing about time. */
        struct turns partly = {.count = trial->batches.count};
        TRY(take_turn(trial, images, images == trial->batch ? &trial->batches : &partly, true,
                      err));
        settle_times(trial);
        if (!agreement_holds(ret)) {
            ret->outcome = TRIAL_DIFFERS;
            if (!trial->survey || clock_ms(clock_now() - begin) > survey_ms)
                return STATUS_OK;
        }
        if (trial->batches.count >= FEW_TURNS && ret->speed < (trial->survey ? FAR_SLOWER : 1))
            break;
    }
    if (agreement_holds(ret))
        ret->outcome = ret->speed >= WORTHWHILE ? TRIAL_PASSED : TRIAL_SLOWER;
    return STATUS_OK;
}

/* Adds `sign` times the times of a batch's layers, an image's share of them. */
static enum status add_profile(struct trial *trial, struct session *session, int batch, double sign,
                               struct error *err)
{
    enum { RUNS = 2 };
    struct session_step *steps;
    size_t count;
    TRY(session_profile(session, batch, RUNS, &steps, &count, err));
    trial_note(trial->input, RUNS * batch);
    for (size_t i = 0; i < count; i++) {
        const double ms = steps[i].milliseconds / batch;
        if (steps[i].layer > 0 && steps[i].layer <= LAYERS_MAX)
            trial->survey->saved_ms[steps[i].layer] += sign * ms;
        if (sign > 0)
            trial->survey->fp32_ms += ms;
    }
    free(steps);
    return STATUS_OK;
}

/* Times of layers, of a single image and of a full batch as the speed is made of. */
static enum status profile_both(struct trial *trial, struct error *err)
{
    const int sizes[2] = {1, trial->batch};
    for (int i = 0; i < (trial->batch > 1 ? 2 : 1); i++) {
        TRY(add_profile(trial, trial->input->reference, sizes[i], 1, err));
        TRY(add_profile(trial, trial->candidate, sizes[i], -1, err));
    }
    return STATUS_OK;
}

void trial_name_layers(const struct session_step *steps, size_t count,
                       const struct layer_set *layers, char *ret, size_t size)
{
    enum { TAIL = sizeof " … and 1000000 more" };
    size_t used = 0, left = 0;
    int named = 0;
    for (size_t i = 0; i < count; i++)
        left += layer_set_has(layers, steps[i].layer);
    ret[0] = '\0';
    for (size_t i = 0; i < count && left > 0; i++) {
        if (!layer_set_has(layers, steps[i].layer))
            continue;
        const size_t room = size - used - (left > 1 ? TAIL : 0);
        const int n = snprintf(ret + used, room, "%s%s", named ? ", " : "", steps[i].name);
        if (n < 0 || (size_t)n >= room)
            break;
        used += (size_t)n;
        named++;
        left--;
    }
    if (left > 0)
        snprintf(ret + used, size - used, named ? " … and %zu more" : "%zu with long names", left);
    for (char *c = ret; *c; c++)
        *c = (unsigned char)*c < ' ' ? '?' : *c;
}

/* Names the layers that were kept in fp32. */
static enum status name_layers(struct trial *trial, const struct layer_set *layers,
                               struct error *err)
{
    struct session_step *steps;
    size_t count;
    TRY(session_profile(trial->candidate, 1, 1, &steps, &count, err));
    trial_name_layers(steps, count, layers, trial->ret->layer_names,
                      sizeof trial->ret->layer_names);
    free(steps);
    return STATUS_OK;
}

enum status trial_run(const struct trial_input *input, enum precision precision,
                      const struct layer_set *fp32_layers, struct survey *ret_survey,
                      struct precision_trial *ret, struct error *err)
{
    struct trial *trial = calloc(1, sizeof *trial);
    if (!trial)
        return error_set(err, STATUS_NO_MEMORY, "out of memory for a trial of precisions");
    *ret = (struct precision_trial){.precision = precision};
    ret->layer_count = session_info(input->reference)->layer_count;
    if (fp32_layers)
        ret->fp32_layers = *fp32_layers;
    trial->input = input;
    trial->ret = ret;
    trial->survey = ret_survey;
    if (ret_survey)
        ret_survey->layer_count = ret->layer_count < LAYERS_MAX ? ret->layer_count : LAYERS_MAX;
    const struct session_options options = trial_options(input, precision, &ret->fp32_layers);
    enum status status = session_create(input->model->graph, &options, &trial->candidate, err);
    if (status == STATUS_OK)
        status = prepare(trial, err);
    if (status == STATUS_OK)
        status = time_ones(trial, err);
    if (status == STATUS_OK)
        status = compare_all(trial, err);
    if (status == STATUS_OK && ret_survey && ret->speed >= FAR_SLOWER)
        status = profile_both(trial, err);
    if (status == STATUS_OK && fp32_layers)
        status = name_layers(trial, fp32_layers, err);
    trial_done(trial);
    free(trial);
    if (status == STATUS_OK || status == STATUS_CANCELLED)
        return status;
    ret->outcome = TRIAL_FAILED;
    return STATUS_OK;
}

enum status trial_time_one(const struct trial_input *input, double *ret_ms, struct error *err)
{
    struct precision_trial ignored = {.precision = PRECISION_FP32};
    struct trial trial = {.input = input, .ret = &ignored};
    double ms[3];
    enum status status = prepare(&trial, err);
    if (status == STATUS_OK)
        status = probes_write(input->probes, 0, trial.values, err);
    for (size_t i = 0; status == STATUS_OK && i < COUNT_OF(ms); i++) {
        struct run_time time = {0};
        status = outputs_run(&trial.outputs, input->reference, trial.values, 1, &time, err);
        ms[i] = time.ms; /* how long a trial is going to take here: disturbed or not */
    }
    trial_done(&trial);
    if (status == STATUS_OK)
        *ret_ms = median(ms, COUNT_OF(ms));
    return status;
}
